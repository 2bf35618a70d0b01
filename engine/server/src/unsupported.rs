//! Request fields that would change the result and that this server does not have.
//!
//! They are refused by name unless their value asks for nothing. Fields that cannot change the result (`user`,
//! `store`, `metadata`, `service_tier`, `prediction` …) and fields unknown to us are accepted: clients send many, and
//! a debug line in the log names them.

use crate::error::{ApiError, shorten};
use crate::fields::Fields;
use serde_json::{Value, json};

/// Fields that always ask for something that is not there.
const NEVER: &[(&str, &str)] = &[
    ("functions", "is not supported; use `tools`"),
    ("audio", "this model has no audio"),
    ("web_search_options", "is not supported"),
    ("ebnf", "EBNF is not supported; use Lark in `structured_outputs.grammar`"),
    ("structural_tag", "structural tags are not supported; use `tools` or `response_format`"),
    ("logits_processors", "is not supported"),
    ("allowed_token_ids", "is not supported"),
    ("prompt_logprobs", "use /v1/completions with `echo` and `logprobs`"),
    ("prompt_embeds", "is not supported"),
    ("truncate_prompt_tokens", "is not supported; shorten the prompt"),
    ("chat_template", "a request cannot bring its own template"),
    ("cache_salt", "cache isolation is not supported"),
    ("lora_adapter", "adapters are not supported"),
    ("thinking_token_budget", BUDGET),
    ("thinking_budget", BUDGET),
    ("max_thinking_tokens", BUDGET),
    ("repeat_penalty", "is not supported; use `repetition_penalty`"),
];

const BUDGET: &str = "a budget for thinking is not supported; use `reasoning_effort` or `max_tokens`";

/// Fields that ask for nothing with this one value, given as JSON.
const UNLESS: &[(&str, &str)] = &[
    ("function_call", r#""none""#),
    ("modalities", r#"["text"]"#),
    ("documents", "[]"),
    ("bad_words", "[]"),
    ("suffix", r#""""#),
    ("use_beam_search", "false"),
    ("include_stop_str_in_output", "false"),
    ("no_stop_trim", "false"),
    ("skip_special_tokens", "true"),
    ("include_reasoning", "true"),
    ("separate_reasoning", "true"),
    ("return_tokens_as_token_ids", "false"),
    ("min_tokens", "0"),
    ("length_penalty", "1"),
    ("tfs_z", "1"),
    ("top_a", "0"),
    ("epsilon_cutoff", "0"),
    ("eta_cutoff", "0"),
    ("mirostat", "0"),
    ("mirostat_mode", "0"),
    ("dynatemp_range", "0"),
    ("xtc_probability", "0"),
];

/// Refuses what is left in `fields` if it would have changed the result. Call it after all known fields are taken.
pub(crate) fn refuse_rest(mut fields: Fields) -> Result<(), ApiError> {
    for (field, problem) in NEVER {
        if fields.take(field).is_some() {
            return Err(ApiError::unsupported(fields.name(field), problem));
        }
    }
    for (field, inert) in UNLESS {
        if let Some(value) = fields.take(field)
            && !same(&value, &serde_json::from_str(inert).unwrap_or_default())
        {
            return Err(ApiError::unsupported(fields.name(field), format!("only {inert} is supported")));
        }
    }
    for (field, _) in fields.rest() {
        tracing::debug!(field = %shorten(&field).escape_debug(), "a request field without effect");
    }
    Ok(())
}

/// Equality in which 1 and 1.0 are the same.
fn same(value: &Value, inert: &Value) -> bool {
    value == inert
        || (inert.is_number() && value.as_f64().map(|number| json!(number)) == inert.as_f64().map(|n| json!(n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str) -> Result<(), ApiError> {
        refuse_rest(Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn every_inert_value_is_json_and_passes() {
        for (field, inert) in UNLESS {
            serde_json::from_str::<Value>(inert).unwrap();
            assert!(check(&format!("{{\"{field}\": {inert}}}")).is_ok(), "{field}");
            assert!(check(&format!("{{\"{field}\": null}}")).is_ok(), "{field}");
            assert!(check(&format!("{{\"{field}\": 0.25}}")).is_err(), "{field}");
        }
    }

    #[test]
    fn unsupported_fields_are_named_and_unknown_ones_pass() {
        for (field, _) in NEVER {
            let error = check(&format!("{{\"{field}\": {{}}}}")).unwrap_err();
            assert_eq!(serde_json::to_value(error.body()).unwrap()["error"]["param"], *field);
        }
        check(r#"{"store": true, "metadata": {"a": "b"}, "user": "u", "who_knows": [1]}"#).unwrap();
    }
}
