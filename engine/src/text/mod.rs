//! Text in and out: tokenizer, chat template, incremental detokenizer, stop strings, tool-call and reasoning parsers.
//!
//! In: [`chat_template`] renders messages to [`control::Segment`]s, [`tokenizer`] turns those into ids.
//! Out: [`detokenizer`] turns ids into text, [`stop`] cuts it, [`parser`] splits it into content, reasoning and calls.

pub mod chat_template;
pub mod control;
pub mod detokenizer;
pub mod parser;
mod prefix;
pub mod stop;
pub mod tokenizer;
