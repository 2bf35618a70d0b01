//! Reading a JSON object field by field, so that every refusal names the field at fault.
//!
//! serde's derived readers report a line and a column; a person who sent `"top_p": "0.9"` needs the name.

use crate::error::ApiError;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use std::ops::RangeInclusive;

/// The largest value of every count; a larger one is surely a mistake.
pub(crate) const MAX_COUNT: i64 = i32::MAX as i64;

/// A JSON object whose fields are taken out one by one.
#[derive(Debug)]
pub(crate) struct Fields {
    values: Map<String, Value>,
    /// What error messages put before a field's name: empty, or as in `messages[2].`.
    path: String,
}

impl Fields {
    /// Parses a request body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut reading = None;
        let mut json = serde_json::Deserializer::from_slice(body);
        let parsed = json.deserialize_map(NamedFields { reading: &mut reading }).and_then(|map| {
            json.end()?;
            Ok(map)
        });
        match (parsed, reading) {
            (Ok(values), _) => Ok(Self { values, path: String::new() }),
            (Err(error), Some(field)) => Err(ApiError::field(crate::error::shorten(&field), error)),
            (Err(error), None) => Err(ApiError::bad_request(format!("the body is not a JSON object: {error}"))),
        }
    }

    /// The fields of the object `value`, which stands at `path`.
    pub(crate) fn nested(value: Value, path: impl Into<String>) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(values) => Ok(Self { values, path: format!("{path}.") }),
            other => Err(ApiError::field(path, format!("must be an object, not {}", kind(&other)))),
        }
    }

    /// The full name of a field.
    pub(crate) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// An error about a field.
    pub(crate) fn error(&self, field: &str, problem: impl fmt::Display) -> ApiError {
        ApiError::field(self.name(field), problem)
    }

    /// Takes a value out; `null` counts as absent.
    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        self.values.shift_remove(field).filter(|value| !value.is_null())
    }

    pub(crate) fn string(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(field, format!("must be a string, not {}", kind(&other)))),
        }
    }

    pub(crate) fn required_string(&mut self, field: &str) -> Result<String, ApiError> {
        self.string(field)?.ok_or_else(|| self.error(field, "is required"))
    }

    pub(crate) fn boolean(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.error(field, format!("must be true or false, not {}", kind(&other)))),
        }
    }

    pub(crate) fn integer(&mut self, field: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.take(field).map(|value| integer(&value, &self.name(field), range)).transpose()
    }

    /// A count within `0..=MAX_COUNT` and within `range`.
    pub(crate) fn count(&mut self, field: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, ApiError> {
        let bound = |value: usize| i64::try_from(value).unwrap_or(MAX_COUNT);
        let value = self.integer(field, bound(*range.start())..=bound(*range.end()))?;
        Ok(value.and_then(|value| usize::try_from(value).ok()))
    }

    pub(crate) fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        self.take(field).map(|value| number(&value, &self.name(field), range)).transpose()
    }

    pub(crate) fn array(&mut self, field: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.error(field, format!("must be an array, not {}", kind(&other)))),
        }
    }

    pub(crate) fn object(&mut self, field: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(self.error(field, format!("must be an object, not {}", kind(&other)))),
        }
    }

    /// The fields that nobody took.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.values
    }
}

/// `value` as an integer within `range`; `4.0` counts as 4.
pub(crate) fn integer(value: &Value, name: &str, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    let wanted = || format!("must be an integer from {} to {}", range.start(), range.end());
    let Value::Number(given) = value else {
        return Err(ApiError::field(name, format!("{}, not {}", wanted(), kind(value))));
    };
    // Up to 2^53 every f64 without a fraction is exactly one integer.
    let whole = |float: f64| float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0;
    let parsed = given.as_i64().or_else(|| given.as_f64().filter(|float| whole(*float)).map(|float| float as i64));
    match parsed {
        Some(integer) if range.contains(&integer) => Ok(integer),
        _ => Err(ApiError::field(name, format!("{}, not {given}", wanted()))),
    }
}

/// `value` as a finite number within `range`.
pub(crate) fn number(value: &Value, name: &str, range: RangeInclusive<f64>) -> Result<f64, ApiError> {
    let wanted = || format!("must be a number from {} to {}", range.start(), range.end());
    let Value::Number(given) = value else {
        return Err(ApiError::field(name, format!("{}, not {}", wanted(), kind(value))));
    };
    match given.as_f64() {
        Some(number) if range.contains(&number) => Ok(number),
        _ => Err(ApiError::field(name, format!("{}, not {given}", wanted()))),
    }
}

/// What a value is, with its article.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Collects an object and leaves the name of the field that failed in `reading`.
struct NamedFields<'a> {
    reading: &'a mut Option<String>,
}

impl<'de> Visitor<'de> for NamedFields<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut values = Map::new();
        while let Some(field) = access.next_key::<String>()? {
            *self.reading = Some(field.clone());
            let value = access.next_value()?;
            if values.insert(field, value).is_some() {
                return Err(A::Error::custom("the field is given twice"));
            }
            *self.reading = None;
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(error: ApiError) -> String {
        serde_json::to_value(error.body()).unwrap()["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn names_the_field_that_json_itself_cannot_hold() {
        let error = Fields::parse(br#"{"model": "m", "top_p": 1e400}"#).unwrap_err();
        insta::assert_snapshot!(problem(error), @"top_p: number out of range at line 1 column 29");
        let error = Fields::parse(br#"{"model": "m", "top_p": NaN}"#).unwrap_err();
        insta::assert_snapshot!(problem(error), @"top_p: expected value at line 1 column 25");
    }

    #[test]
    fn refuses_what_is_not_one_object() {
        for body in [&b"[]"[..], b"", b"3", b"{} {}", b"{\"a\"", b"\xff\xfe", b"{\"a\": 1} x"] {
            assert!(Fields::parse(body).is_err(), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn refuses_duplicate_fields_and_deep_nesting() {
        let error = Fields::parse(br#"{"n": 1, "n": 2}"#).unwrap_err();
        insta::assert_snapshot!(problem(error), @"n: the field is given twice at line 1 column 16");
        let deep = format!("{{\"messages\": {}", "[".repeat(100_000));
        assert!(problem(Fields::parse(deep.as_bytes()).unwrap_err()).starts_with("messages: recursion limit exceeded"));
    }

    #[test]
    fn integers_are_exact_and_bounded() {
        let parse = |text: &str| integer(&serde_json::from_str(text).unwrap(), "n", 0..=10);
        assert_eq!(parse("10").unwrap(), 10);
        assert_eq!(parse("4.0").unwrap(), 4);
        for bad in ["-1", "11", "4.5", "9223372036854775808", "1e300", "\"3\"", "true", "[]", "{}", "-0.5"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_bounded() {
        let parse = |text: &str| number(&serde_json::from_str(text).unwrap(), "top_p", 0.0..=1.0);
        assert_eq!(parse("1").unwrap(), 1.0);
        for bad in ["-0.1", "1.0001", "9223372036854775808", "\"NaN\"", "true"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
