//! `atlas chat`: a conversation with a running endpoint in the terminal.

use crate::errors::CliError;
use crate::http::Endpoint;
use crate::interrupt::{Interrupt, block_on};
use crate::output::{GlobalArgs, write_stdout};
use atlas_schemas::serve_options::Secret;
use chat_turn::{ChatTurn, Screen};
use clap::Args;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::PathBuf;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

#[path = "chat_turn.rs"]
mod chat_turn;

const DEFAULT_URL: &str = "http://127.0.0.1:8888";
const HELP: &str = "/reset forgets the conversation, /system TEXT sets the system message, /quit ends";

/// Talk to a running model in the terminal.
///
/// Without a terminal on stdin each line is one message. A key, if the server asks for one, is read from the
/// environment variable ATLAS_API_KEY.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// The server [default: the newest running job, else http://127.0.0.1:8888].
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Model name to ask for [default: the first that the server lists].
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// System message to start with.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// File with a JSON list of tools in OpenAI's form; when one is called, the next message is its result.
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// The most tokens of one answer [default: the server's].
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
}

impl ChatArgs {
    /// Runs until `/quit`, end of input, or Ctrl-C at the prompt.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let tools = self.tools.as_deref().map(read_tools).transpose()?;
        block_on(async move {
            let interrupt = Interrupt::install()?;
            let url = self.url.clone().unwrap_or_else(|| newest_job_url().unwrap_or_else(|| DEFAULT_URL.to_owned()));
            let endpoint = Endpoint::new(&url, api_key())?;
            let model = match self.model {
                Some(name) => name,
                None => interrupt.or(endpoint.model_name()).await?.map_err(|error| with_advice(error, &url))?,
            };
            let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
            let conversation =
                Conversation { model, system: self.system, tools, max_tokens: self.max_tokens, turns: Vec::new() };
            let screen = Screen { interactive, json: global.json, colour: colour(), quiet: global.quiet };
            Session { endpoint, conversation, screen, lines: BufReader::new(tokio::io::stdin()).lines() }
                .run(&interrupt)
                .await
        })
    }
}

fn api_key() -> Option<Secret> {
    std::env::var("ATLAS_API_KEY").ok().filter(|key| !key.is_empty()).map(Secret::new)
}

fn colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

fn newest_job_url() -> Option<String> {
    crate::job::store::JobStore::open().ok()??.newest_running_url()
}

fn with_advice(error: CliError, url: &str) -> CliError {
    match error {
        CliError::Failed(message) => CliError::Failed(format!(
            "{message}\n  start a model with `atlas run @atlas/tiny`, or name its address with `--url` (tried {url})"
        )),
        other => other,
    }
}

fn read_tools(file: &std::path::Path) -> Result<Value, CliError> {
    let wrong = |problem: String| CliError::Usage(format!("{}: {problem}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let tools: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if tools.is_array() { Ok(tools) } else { Err(wrong("must hold a JSON list of tools".to_owned())) }
}

/// What the server is sent again with every turn.
struct Conversation {
    model: String,
    system: Option<String>,
    tools: Option<Value>,
    max_tokens: Option<u32>,
    turns: Vec<Value>,
}

impl Conversation {
    fn request(&self) -> Value {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        let messages: Vec<Value> = system.chain(self.turns.iter().cloned()).collect();
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if let Some(tools) = &self.tools {
            body["tools"] = tools.clone();
        }
        if let Some(limit) = self.max_tokens {
            body["max_tokens"] = json!(limit);
        }
        body
    }

    /// Ids and names of calls that the last answer made and that have no result yet.
    fn open_calls(&self) -> Vec<(String, String)> {
        let answered = self.turns.iter().rev().take_while(|turn| turn["role"] == "tool").count();
        let Some(last) = self.turns.iter().rev().nth(answered) else { return Vec::new() };
        let calls = last["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        calls.iter().skip(answered).map(|call| (text(&call["id"]), text(&call["function"]["name"]))).collect()
    }
}

/// One run of the command.
struct Session {
    endpoint: Endpoint,
    conversation: Conversation,
    screen: Screen,
    lines: Lines<BufReader<Stdin>>,
}

impl Session {
    async fn run(mut self, interrupt: &Interrupt) -> Result<(), CliError> {
        if self.screen.interactive {
            write_stdout(&format!("{} at {}\n{HELP}\n", self.conversation.model, self.endpoint.base()));
        }
        // Signals that came while an answer was printed ended that answer; only later ones end the session.
        let mut signals = 0;
        loop {
            self.prompt();
            let line = tokio::select! {
                () = interrupt.received(signals + 1) => return Err(CliError::Interrupted),
                line = self.lines.next_line() => line.map_err(|error| CliError::Failed(format!("stdin: {error}")))?,
            };
            let Some(line) = line else { return Ok(()) };
            match line.trim() {
                "" => {}
                "/quit" | "/exit" => return Ok(()),
                "/reset" => self.conversation.turns.clear(),
                "/help" => eprintln!("{HELP}"),
                command if command == "/system" || command.starts_with("/system ") => {
                    let text = command.trim_start_matches("/system").trim();
                    self.conversation.system = (!text.is_empty()).then(|| text.to_owned());
                }
                command if self.screen.interactive && command.starts_with('/') => eprintln!("unknown command; {HELP}"),
                _ => signals += self.say(&line, interrupt, signals).await?,
            }
        }
    }

    fn prompt(&self) {
        if self.screen.interactive {
            match self.conversation.open_calls().first() {
                Some((_, name)) => write_stdout(&format!("\nresult of {}> ", self.screen.clean(name))),
                None => write_stdout("\n> "),
            }
        }
    }

    /// Sends one message and prints the answer. Returns how many signals it used up.
    async fn say(&mut self, text: &str, interrupt: &Interrupt, signals: u32) -> Result<u32, CliError> {
        let before = self.conversation.turns.len();
        match self.conversation.open_calls().first() {
            Some((id, _)) => {
                self.conversation.turns.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
                if !self.conversation.open_calls().is_empty() {
                    return Ok(0);
                }
            }
            None => self.conversation.turns.push(json!({ "role": "user", "content": text })),
        }
        let mut turn = ChatTurn::new();
        let request = self.conversation.request();
        let outcome = tokio::select! {
            biased;
            () = interrupt.received(signals + 1) => None,
            outcome = turn.stream(&self.endpoint, &request, &self.screen) => Some(outcome),
        };
        turn.finish(&self.screen, text);
        match outcome {
            Some(Ok(())) => {
                self.conversation.turns.push(turn.message());
                Ok(0)
            }
            Some(Err(error)) if !self.screen.interactive => Err(error),
            Some(Err(error)) => {
                // What was printed stays on the screen; the message can be sent again.
                self.conversation.turns.truncate(before);
                eprintln!("error: {error}\n(this message is not part of the conversation; send it again to retry)");
                Ok(0)
            }
            None if !self.screen.interactive => Err(CliError::Interrupted),
            None => {
                self.conversation.turns.push(turn.message());
                Ok(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(turns: Vec<Value>) -> Conversation {
        Conversation {
            model: "m".to_owned(),
            system: Some("be brief".to_owned()),
            tools: None,
            max_tokens: Some(5),
            turns,
        }
    }

    #[test]
    fn the_whole_history_is_sent_after_the_system_message() {
        let body = conversation(vec![json!({ "role": "user", "content": "hi" })]).request();
        assert_eq!(body["messages"][0]["content"], "be brief");
        assert_eq!(body["messages"][1]["content"], "hi");
        assert_eq!(body["max_tokens"], 5);
        assert!(body.get("tools").is_none());
    }

    #[test]
    fn calls_are_open_until_each_has_its_result() {
        let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": format!("f_{id}"), "arguments": "{}" } });
        let mut chat = conversation(vec![json!({ "role": "assistant", "tool_calls": [call("a"), call("b")] })]);
        assert_eq!(chat.open_calls().len(), 2);
        chat.turns.push(json!({ "role": "tool", "tool_call_id": "a", "content": "1" }));
        assert_eq!(chat.open_calls(), [("b".to_owned(), "f_b".to_owned())]);
        chat.turns.push(json!({ "role": "tool", "tool_call_id": "b", "content": "2" }));
        assert!(chat.open_calls().is_empty());
        assert!(conversation(Vec::new()).open_calls().is_empty());
    }
}
