//! Text in and out: tokenizer, chat template, incremental detokenizer, stop strings, tool-call and reasoning parsers.
