//! From a plan to a job that has answered a question, and on to its end.

use crate::errors::CliError;
use crate::interrupt::Interrupt;
use crate::job::launch::{LaunchPlan, LaunchedJob, start};
use crate::job::log::Follower;
use crate::job::stop::Stopped;
use crate::job::store::JobStore;
use crate::progress::Progress;
use atlas_schemas::job::JobRecord;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

/// A first answer includes what is only set up on first use, on a slow machine.
const SELF_TEST_LIMIT: Duration = Duration::from_secs(300);

/// Starts the job and returns once it has answered its self-test. Whatever goes wrong, and whenever a signal comes,
/// no process is left.
pub(crate) async fn bring_up(
    plan: LaunchPlan,
    store: &JobStore,
    interrupt: &Interrupt,
    progress: &Progress,
) -> Result<LaunchedJob, CliError> {
    progress.stage("starting the server");
    let mut job = start(plan, store).await?;
    let outcome = interrupt.or(until_ready(&mut job, progress)).await.and_then(|result| result);
    progress.finish();
    match outcome {
        Ok(()) => Ok(job),
        Err(CliError::Failed(_)) if job.dir().stop_requested() => {
            let error = CliError::Failed("stopped by `atlas stop` before it was ready".to_owned());
            job.abort(&error, store, interrupt).await?;
            Err(error)
        }
        Err(error) => {
            job.abort(&error, store, interrupt).await?;
            Err(error)
        }
    }
}

async fn until_ready(job: &mut LaunchedJob, progress: &Progress) -> Result<(), CliError> {
    job.wait_ready(progress).await?;
    progress.stage("asking it a first question");
    let endpoint = job.endpoint()?;
    let question = json!({
        "model": job.record.model_name,
        "messages": [{ "role": "user", "content": "Say hello." }],
        "max_tokens": 8,
        "temperature": 0,
    });
    let answer = job.alive_during(endpoint.chat(&question, SELF_TEST_LIMIT)).await?;
    check_answer(&answer)?;
    job.mark_ready()
}

/// An answer counts if it has a choice and at least one token; what the model says is its own affair.
fn check_answer(answer: &Value) -> Result<(), CliError> {
    let tokens = answer.pointer("/usage/completion_tokens").and_then(Value::as_u64).unwrap_or(0);
    if answer.pointer("/choices/0/message").is_some() && tokens > 0 {
        return Ok(());
    }
    Err(CliError::Failed(format!("the server is up, but its first answer is empty: {answer}")))
}

/// How a person goes on from here.
pub(crate) fn summary(record: &JobRecord, url: &str, detached: bool) -> String {
    let id = &record.id;
    let question = json!({ "model": record.model_name, "messages": [{ "role": "user", "content": "Hello!" }] });
    let stop = if detached { format!("atlas stop {id}") } else { format!("Ctrl-C, or atlas stop {id}") };
    format!(
        "{} is ready at {url}\n  chat   atlas chat --url {url}\n  curl   curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{question}'\n  logs   atlas logs {id}\n  stop   {stop}\n",
        record.model_name
    )
}

/// The same for programs.
pub(crate) fn summary_json(record: &JobRecord, url: &str, log: &str, detached: bool) -> Value {
    json!({
        "job": record.id,
        "recipe": record.recipe,
        "recipe_hash": record.recipe_hash,
        "model": record.model,
        "model_name": record.model_name,
        "url": url,
        "port": record.port,
        "pid": record.ranks.first().and_then(|rank| rank.pid),
        "state": record.state,
        "detached": detached,
        "log": log,
    })
}

/// Shows the log on stderr until a signal comes (then the job is stopped and its end verified) or the server ends.
pub(crate) async fn follow(mut job: LaunchedJob, interrupt: &Interrupt, quiet: bool) -> Result<(), CliError> {
    let mut follower =
        Follower::new(job.dir().open_log()?.ok_or_else(|| CliError::Failed("the log vanished".to_owned()))?);
    let show = |bytes: &[u8]| {
        // A closed stderr is no reason to stop serving.
        let _ = std::io::stderr().write_all(bytes);
    };
    // What was logged until now belongs to the launch.
    while !follower.news()?.is_empty() {}
    let death = tokio::select! {
        biased;
        () = interrupt.received(1) => None,
        death = job.death() => Some(death),
        result = follower.follow(|bytes| if !quiet { show(bytes) }) => Some(result.err().unwrap_or(CliError::Reported)),
    };
    match death {
        None => {
            eprintln!("stopping {} (again to kill it)", job.record.id);
            let how = job.stop(interrupt, 1).await?;
            eprintln!("{}", if how == Stopped::Killed { "killed" } else { "stopped" });
            Err(CliError::Interrupted)
        }
        Some(death) if job.dir().stop_requested() => {
            job.mark_ended(&death)?;
            eprintln!("job {} was stopped by `atlas stop`", job.record.id);
            Ok(())
        }
        Some(death) => {
            job.mark_ended(&death)?;
            Err(death)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_answer_is_no_answer() {
        let good = json!({ "choices": [{ "message": { "content": "" } }], "usage": { "completion_tokens": 1 } });
        assert!(check_answer(&good).is_ok());
        for bad in [
            json!({}),
            json!({ "choices": [] }),
            json!({ "choices": [{ "message": {} }], "usage": { "completion_tokens": 0 } }),
        ] {
            assert!(check_answer(&bad).is_err(), "{bad}");
        }
    }
}
