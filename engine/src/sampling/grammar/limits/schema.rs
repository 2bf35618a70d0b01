//! Bounds of JSON schemas.

use super::super::GrammarError;
use super::{Budget, invalid};
use serde_json::Value;

/// Objects and arrays inside each other.
const MAX_DEPTH: usize = 100;
/// Properties of one object: each that may be left out is a few items of the parser's row.
const MAX_PROPERTIES: usize = 500;
/// The least common multiple of all `multipleOf` of a grammar, without their decimal points.
const MAX_MULTIPLE: u64 = 10_000;

/// The least common multiple so far.
#[derive(Debug)]
pub(super) struct Multiples(u64);

impl Default for Multiples {
    fn default() -> Self {
        Self(1)
    }
}

impl Multiples {
    /// A divisor costs as many states as it has values modulo it, and divisors may meet.
    fn add(&mut self, number: &serde_json::Number) -> Result<(), GrammarError> {
        let digits: String = number.to_string().chars().filter(char::is_ascii_digit).collect();
        let digits = digits.trim_start_matches('0').trim_end_matches('0');
        let value = if digits.is_empty() { Ok(1) } else { digits.parse::<u64>() };
        let least = value.ok().and_then(|value| (self.0 / divisor(self.0, value)).checked_mul(value));
        match least.filter(|least| *least <= MAX_MULTIPLE) {
            Some(least) => {
                self.0 = least;
                Ok(())
            }
            None => Err(invalid(format!(
                "multipleOf {number}: the least common multiple of all such values may be {MAX_MULTIPLE}, decimal \
                 points and final zeros aside"
            ))),
        }
    }
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Checks a schema and takes its regular expressions and multiples into account.
pub(super) fn check(schema: &Value, budget: &mut Budget) -> Result<(), GrammarError> {
    walk(schema, budget, 0)
}

fn walk(value: &Value, budget: &mut Budget, depth: usize) -> Result<(), GrammarError> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!("the schema is nested more than {MAX_DEPTH} deep")));
    }
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| walk(item, budget, depth + 1)),
        Value::Object(fields) => fields.iter().try_for_each(|(key, field)| {
            match (key.as_str(), field) {
                ("multipleOf", Value::Number(number)) => budget.multiples.add(number)?,
                ("properties", Value::Object(properties)) if properties.len() > MAX_PROPERTIES => {
                    let count = properties.len();
                    return Err(invalid(format!(
                        "an object has {count} properties; at most {MAX_PROPERTIES} are compiled"
                    )));
                }
                ("pattern", Value::String(pattern)) => budget.regex(pattern.len())?,
                ("patternProperties", Value::Object(patterns)) => {
                    patterns.keys().try_for_each(|pattern| budget.regex(pattern.len()))?;
                }
                _ => {}
            }
            walk(field, budget, depth + 1)
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn depth_multiples_and_patterns_are_bounded() {
        let check = |value: &Value| super::check(value, &mut Budget::default());
        let nested = |levels: usize| (0..levels).fold(json!({}), |inner, _| json!({ "items": inner }));
        assert!(check(&nested(100)).is_ok() && check(&nested(101)).unwrap_err().to_string().contains("deep"));
        let multiples =
            |values: &[Value]| -> Vec<Value> { values.iter().map(|v| json!({ "multipleOf": v })).collect() };
        for fine in [json!([0.01, 5, 100, 2.5]), json!([9999]), json!([1_000_000]), json!([1e-7])] {
            assert_eq!(check(&json!({ "allOf": multiples(fine.as_array().unwrap()) })), Ok(()), "{fine}");
        }
        for bad in [json!([10_001]), json!([997, 991]), json!([0.999_983]), json!([1.0e300 / 3.0])] {
            let error = check(&json!({ "allOf": multiples(bad.as_array().unwrap()) })).unwrap_err().to_string();
            assert!(error.contains("multipleOf"), "{bad}: {error}");
        }
        // A property of that name is no such keyword.
        assert_eq!(check(&json!({ "properties": { "multipleOf": { "type": "string" } } })), Ok(()));
        let properties = |count: usize| -> Value { (0..count).map(|i| (format!("p{i}"), json!({}))).collect() };
        assert!(check(&json!({ "properties": properties(500) })).is_ok());
        assert!(check(&json!({ "properties": properties(501) })).unwrap_err().to_string().contains("501"));
        let long = "a?".repeat(5000);
        assert!(check(&json!({ "pattern": long })).is_err());
        assert!(check(&json!({ "patternProperties": { long: {} } })).is_err());
    }
}
