//! What every request passes before a handler sees it.

pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod origin;
pub(crate) mod request_id;
