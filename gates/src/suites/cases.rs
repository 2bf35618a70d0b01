//! `tools` and `qa`: cases with one right answer, by real greedy generation.
//!
//! Cases are JSON lines: `id`, `category`, `messages`, `tools` (tools only) and `expected`; further fields are not
//! used. The prompt is the model's own chat template with its defaults, so thinking is on only where the template says
//! so. A tools case passes when the calls made equal the expected ones, in any order, arguments exact, numbers compared
//! by value; with none expected it passes when none is made. A QA case passes when the answer's text is exactly the
//! expected string.

use super::SuiteError;
use crate::client::{ChatRequest, Reply, Sampling, ToolCall};
use crate::data::DataError;
use crate::endpoint::Endpoint;
use crate::progress::Progress;
use atlas_schemas::eval::{CaseResult, CategoryScore};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Which judgement a file of cases is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Function calling.
    Tools,
    /// Exact answers.
    Qa,
}

impl Task {
    /// `tools` or `qa`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Qa => "qa",
        }
    }
}

/// One case.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Case {
    /// Its name.
    pub id: String,
    /// What it is counted under.
    pub category: String,
    /// The conversation so far.
    pub messages: Vec<Value>,
    /// Functions the model may call.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// Calls (a list of `name` and `arguments`) or an answer (a string).
    pub expected: Value,
}

/// One expected call.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedCall {
    name: String,
    arguments: Map<String, Value>,
}

/// Reads JSON lines and checks every case against its task. `origin` names the file in errors.
pub fn parse(task: Task, text: &str, origin: &str) -> Result<Vec<Case>, DataError> {
    let mut cases = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let fail = |message: String| DataError::content(origin, number + 1, message);
        let case: Case = serde_json::from_str(line).map_err(|error| fail(error.to_string()))?;
        if case.messages.is_empty() {
            return Err(fail("messages is empty".into()));
        }
        match task {
            Task::Tools => drop(expected_calls(&case).map_err(|error| fail(format!("expected: {error}")))?),
            Task::Qa if !case.expected.is_string() => return Err(fail("expected must be a string".into())),
            Task::Qa => {}
        }
        cases.push(case);
    }
    if cases.is_empty() {
        return Err(DataError::content(origin, None, "holds no case"));
    }
    Ok(cases)
}

fn expected_calls(case: &Case) -> Result<Vec<ExpectedCall>, serde_json::Error> {
    Vec::deserialize(&case.expected)
}

/// Runs all cases, `concurrency` at once, and returns their outcomes in order.
pub async fn run(
    endpoint: &Endpoint,
    task: Task,
    cases: &[Case],
    max_tokens: u32,
    concurrency: u32,
    progress: &Progress,
) -> Result<Vec<CaseResult>, SuiteError> {
    let total = cases.len();
    let mut results = Vec::with_capacity(total);
    let mut outcomes = stream::iter(cases.iter().map(|case| async move {
        let request = ChatRequest {
            model: endpoint.model().into(),
            messages: case.messages.clone(),
            tools: case.tools.clone(),
            sampling: Sampling { max_tokens, ..Sampling::default() },
            logprobs: false,
        };
        let reply = endpoint.client.chat(&request, false).await;
        reply.map(|reply| judge(task, case, &reply)).map_err(|source| SuiteError::Case { id: case.id.clone(), source })
    }))
    .buffered(concurrency.max(1) as usize);
    while let Some(result) = outcomes.try_next().await? {
        results.push(result);
        progress.step(task.name(), results.len(), total);
    }
    Ok(results)
}

/// The outcome of one case.
pub fn judge(task: Task, case: &Case, reply: &Reply) -> CaseResult {
    let (passed, got) = match task {
        Task::Tools => {
            let calls: Vec<Value> = reply.tool_calls.iter().map(call_value).collect();
            let expected = expected_calls(case).unwrap_or_default();
            (calls_match(&expected, &reply.tool_calls), if calls.is_empty() { json!(reply.text) } else { json!(calls) })
        }
        Task::Qa => (reply.tool_calls.is_empty() && case.expected == reply.text.as_str(), json!(reply.text)),
    };
    CaseResult { id: case.id.clone(), category: case.category.clone(), passed, expected: case.expected.clone(), got }
}

fn call_value(call: &ToolCall) -> Value {
    let arguments = serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::String(call.arguments.clone()));
    json!({ "name": call.name, "arguments": arguments })
}

/// Whether the calls are the expected ones, in any order.
fn calls_match(expected: &[ExpectedCall], made: &[ToolCall]) -> bool {
    let mut open: Vec<&ExpectedCall> = expected.iter().collect();
    for call in made {
        let Ok(arguments) = serde_json::from_str::<Map<String, Value>>(&call.arguments) else { return false };
        let found = open.iter().position(|want| want.name == call.name && same_map(&want.arguments, &arguments));
        match found {
            Some(position) => drop(open.swap_remove(position)),
            None => return false,
        }
    }
    open.is_empty()
}

fn same_map(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    a.len() == b.len() && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| same(value, other)))
}

/// Equality of JSON values, with 5 equal to 5.0 and the order of keys of no account.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || (a.as_f64().is_some() && a.as_f64() == b.as_f64()),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => same_map(a, b),
        _ => a == b,
    }
}

/// Cases and passes, over all and by category.
pub fn score(results: &[CaseResult]) -> (CategoryScore, BTreeMap<String, CategoryScore>) {
    let mut categories: BTreeMap<String, Vec<&CaseResult>> = BTreeMap::new();
    for result in results {
        categories.entry(result.category.clone()).or_default().push(result);
    }
    let all: Vec<&CaseResult> = results.iter().collect();
    (count(&all), categories.into_iter().map(|(name, results)| (name, count(&results))).collect())
}

fn count(results: &[&CaseResult]) -> CategoryScore {
    let passed = results.iter().filter(|result| result.passed).count();
    let accuracy = if results.is_empty() { 0.0 } else { passed as f64 / results.len() as f64 };
    CategoryScore { cases: results.len(), passed, accuracy }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(expected: Value) -> Case {
        Case { id: "c".into(), category: "k".into(), messages: vec![json!({})], tools: vec![], expected }
    }

    fn reply(calls: &[(&str, &str)]) -> Reply {
        let tool_calls =
            calls.iter().map(|(name, arguments)| ToolCall { name: (*name).into(), arguments: (*arguments).into() });
        Reply { tool_calls: tool_calls.collect(), ..Reply::default() }
    }

    fn passes(expected: Value, calls: &[(&str, &str)]) -> bool {
        judge(Task::Tools, &case(expected), &reply(calls)).passed
    }

    #[test]
    fn calls_match_in_any_order_with_exact_values() {
        let two =
            json!([{"name": "f", "arguments": {"a": 1, "b": "x"}}, {"name": "f", "arguments": {"a": 2, "b": "y"}}]);
        assert!(passes(two.clone(), &[("f", r#"{"b":"y","a":2}"#), ("f", r#"{"a":1.0,"b":"x"}"#)]));
        assert!(!passes(two.clone(), &[("f", r#"{"a":1,"b":"x"}"#)]), "one is missing");
        assert!(!passes(two.clone(), &[("f", r#"{"a":1,"b":"x"}"#), ("f", r#"{"a":1,"b":"x"}"#)]), "one comes twice");
        assert!(!passes(two.clone(), &[("f", r#"{"a":1,"b":"x"}"#), ("f", r#"{"a":2,"b":"Y"}"#)]), "case matters");
        assert!(!passes(two, &[("f", r#"{"a":1,"b":"x"}"#), ("f", r#"{"a":2,"b":"y","c":0}"#)]), "one argument more");
        let one = json!([{"name": "f", "arguments": {"on": true}}]);
        assert!(!passes(one.clone(), &[("f", r#"{"on":1}"#)]));
        assert!(!passes(one.clone(), &[("g", r#"{"on":true}"#)]));
        assert!(!passes(one, &[("f", r#"{"on":tru"#)]), "arguments that are no JSON");
    }

    #[test]
    fn irrelevance_passes_without_a_call() {
        assert!(passes(json!([]), &[]));
        assert!(!passes(json!([]), &[("f", "{}")]));
    }

    #[test]
    fn answers_are_exact() {
        let case = case(json!("22 is even."));
        let said = |text: &str| Reply { text: text.into(), ..Reply::default() };
        assert!(judge(Task::Qa, &case, &said("22 is even.")).passed);
        assert!(!judge(Task::Qa, &case, &said("22 is even. ")).passed);
        assert!(!judge(Task::Qa, &case, &said("22 is Even.")).passed);
    }

    #[test]
    fn bad_cases_name_file_and_line() {
        let good = r#"{"id":"1","category":"k","messages":[{"role":"user","content":"x"}],"expected":"y","extra":1}"#;
        assert_eq!(parse(Task::Qa, &format!("{good}\n\n"), "f").unwrap().len(), 1);
        let error = |text: &str, task| parse(task, text, "f.jsonl").unwrap_err().to_string();
        assert_eq!(error(&format!("{good}\n{{"), Task::Qa).split(": ").next().unwrap(), "f.jsonl:2");
        assert!(error(good, Task::Tools).starts_with("f.jsonl:1: expected: "));
        assert_eq!(error("\n", Task::Qa), "f.jsonl: holds no case");
    }

    #[test]
    fn the_built_in_cases_are_whole() {
        let count = |task, name: &str| parse(task, &crate::data::load(name).unwrap(), name).unwrap().len();
        assert_eq!((count(Task::Tools, "tool_calls"), count(Task::Qa, "qa")), (300, 200));
    }

    #[test]
    fn scores_by_category() {
        let result = |category: &str, passed| CaseResult {
            id: String::new(),
            category: category.into(),
            passed,
            expected: Value::Null,
            got: Value::Null,
        };
        let (all, by) = score(&[result("a", true), result("b", false), result("a", false), result("a", true)]);
        assert_eq!((all.cases, all.passed, all.accuracy), (4, 2, 0.5));
        assert_eq!((by["a"].passed, by["b"].accuracy), (2, 0.0));
    }
}
