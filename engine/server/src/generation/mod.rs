//! From prompt ids to text: submission of a request's choices, and each choice's tokens as a stream of text.

pub(crate) mod logprobs;
pub(crate) mod submit;
pub(crate) mod text_stream;
pub(crate) mod usage;
