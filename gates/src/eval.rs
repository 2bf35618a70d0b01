//! `atlas eval tools|qa|perplexity` over HTTP: the suites' measurements with every case's outcome.

use crate::client::Client;
use crate::data;
use crate::endpoint::Endpoint;
use crate::progress::Progress;
use crate::suites::cases::{self, Task};
use crate::suites::{self, SuiteError};
use atlas_schemas::eval::{EvalRecord, PerplexityRecord};
use atlas_schemas::gate::Measure;

/// Runs a file of cases (or a built-in data set), `concurrency` at once.
pub async fn cases(
    client: Client,
    task: Task,
    file: &str,
    target: &str,
    concurrency: u32,
    progress: &Progress,
) -> Result<EvalRecord, SuiteError> {
    let cases = cases::parse(task, &data::load(file)?, file)?;
    let max_tokens = match suites::load(task.name())?.measure {
        Measure::Tools(measure) | Measure::Qa(measure) => measure.max_tokens,
        _ => 512,
    };
    let endpoint = Endpoint::new(client, None).await?;
    let results = cases::run(&endpoint, task, &cases, max_tokens, concurrency, progress).await?;
    let (all, categories) = cases::score(&results);
    Ok(EvalRecord {
        task: task.name().into(),
        target: target.into(),
        model: endpoint.card.id,
        cases: all.cases,
        passed: all.passed,
        accuracy: all.accuracy,
        categories,
        results,
    })
}

/// Perplexity of a text (or a built-in data set) with the markers of the `perplexity` suite.
pub async fn perplexity(
    client: Client,
    file: &str,
    target: &str,
    progress: &Progress,
) -> Result<PerplexityRecord, SuiteError> {
    let Measure::Perplexity(mut measure) = suites::load("perplexity")?.measure else {
        return Err(SuiteError::Endpoint("the perplexity suite measures something else".into()));
    };
    file.clone_into(&mut measure.text);
    let endpoint = Endpoint::new(client, None).await?;
    let (documents, tally) = suites::measure_perplexity(&endpoint, &measure, progress).await?;
    let (perplexity, tokens) =
        tally.all().ok_or_else(|| SuiteError::Endpoint(format!("{file} has no token to score")))?;
    let assistant = tally.assistant();
    Ok(PerplexityRecord {
        target: target.into(),
        model: endpoint.card.id,
        documents,
        perplexity,
        tokens,
        assistant_perplexity: assistant.map(|(perplexity, _)| perplexity),
        assistant_tokens: assistant.map_or(0, |(_, tokens)| tokens),
    })
}
