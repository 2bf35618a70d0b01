//! Chat templates: messages and tools to the model's prompt format.
//!
//! Templates are Jinja as transformers runs it: blocks trimmed, `tojson`, `strftime_now` and `raise_exception`
//! defined, loop controls and Python's string and dict methods available. A template comes with a model and its
//! input comes over the network, so the work and the output are bounded, whatever either holds.
//!
//! One thing is not: `~`, `==`, `<` and `in` between lists that a hostile *template* has built to share parts
//! exponentially (`[x, x]`, sixty times over) run before the engine charges for them. No message can cause that.

mod input;
mod json;
mod methods;
mod source;

use self::input::Marker;
use super::control::{CUT, ControlTokens, Segment, without_marks};
use super::tokenizer::{MAX_TEXT_BYTES, Tokenizer};
use crate::errors::EngineError;
use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};
use std::sync::Arc;

/// The longest template source, in bytes. (Published ones have up to 30 thousand.)
const MAX_SOURCE_BYTES: usize = 128 << 10;
/// The compiler recurses into chains of operators: enough stack for the longest tags.
const COMPILER_STACK_BYTES: usize = 64 << 20;
/// Showing or dropping a value recurses into it. This much stack for every unit of fuel suffices for the deepest
/// value that the fuel can build. (Only what is used becomes memory.)
const STACK_BYTES_PER_FUEL: usize = 512;
/// Fuel of every rendering. One unit is an instruction or 64 bytes of data.
const BASE_FUEL: u64 = 100_000;
/// More fuel for every value in the input: a template may look at each of them many times.
const FUEL_PER_VALUE: u64 = 100;
/// More fuel for the text in the input: enough to copy each byte sixteen times.
const FUEL_PER_BYTES: usize = 4;
/// No input gets more fuel than this.
const MAX_FUEL: u64 = 5_000_000;
/// Names that `kwargs` may not take.
const RESERVED: [&str; 10] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
    "raise_exception",
    "strftime_now",
    "namespace",
];

/// What a template renders.
#[derive(Debug, Clone, Copy)]
pub struct ChatInput<'a> {
    /// A JSON array of message objects, in the shape of the chat completions API.
    pub messages: &'a Json,
    /// A JSON array of tool definitions.
    pub tools: Option<&'a Json>,
    /// End with the header of an assistant message.
    pub add_generation_prompt: bool,
    /// End in the middle of the last message, right after its content.
    pub continue_final_message: bool,
    /// Further variables of the template, such as `enable_thinking`.
    pub kwargs: &'a Map<String, Json>,
}

type Clock = dyn Fn() -> Zoned + Send + Sync;

/// A compiled chat template. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    bos: Option<String>,
    eos: Option<String>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles a template; `bos` and `eos` become its `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// When the source is too long or is no valid template; the message has the line.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, EngineError> {
        Self::with_clock(source, bos, eos, Arc::new(Zoned::now))
    }

    /// Compiles the template that comes with a tokenizer.
    ///
    /// # Errors
    /// When there is none, or as [`Self::new`].
    pub fn of_tokenizer(tokenizer: &Tokenizer) -> Result<Self, EngineError> {
        let source = tokenizer.chat_template().ok_or_else(|| {
            EngineError::Template("the model has none (no chat_template.jinja, none in tokenizer_config.json)".into())
        })?;
        Self::new(&source, tokenizer.bos_token(), tokenizer.eos_token())
    }

    /// As [`Self::new`], with the clock that `strftime_now` reads.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_clock(
        source: &str,
        bos: Option<&str>,
        eos: Option<&str>,
        clock: Arc<Clock>,
    ) -> Result<Self, EngineError> {
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!("the source has {} bytes; at most {MAX_SOURCE_BYTES} are compiled", source.len());
            return Err(EngineError::Template(message));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(report)?;
        environment.set_syntax(syntax);
        environment.add_filter("tojson", json::tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: &str| {
            jiff::fmt::strtime::format(format, &clock())
                .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {e}")))
        });
        let environment = compile(environment, source::prepare(source)?)?;
        Ok(Self { environment: Arc::new(environment), bos: bos.map(str::to_owned), eos: eos.map(str::to_owned) })
    }

    /// Renders a prompt as one text, in which control tokens from contents look like the template's own. Fit for
    /// showing; for the model use [`Self::render_segments`].
    ///
    /// # Errors
    /// When the template fails, raises an exception (whose message is the error's), or does too much.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, EngineError> {
        let segments = self.render_segments(input, &Arc::new(ControlTokens::new([])?))?;
        Ok(segments.into_iter().map(|segment| segment.text).collect())
    }

    /// Renders a prompt in segments that tell the template's control tokens from those that messages, tools and
    /// `kwargs` spell out. See [`super::control`].
    ///
    /// # Errors
    /// As [`Self::render`].
    pub fn render_segments(
        &self,
        input: &ChatInput<'_>,
        controls: &Arc<ControlTokens>,
    ) -> Result<Vec<Segment>, EngineError> {
        let mut marker = Marker::new(controls);
        let context = self.context(input, &mut marker)?;
        let fuel = fuel(&marker);
        let stack = COMPILER_STACK_BYTES + fuel as usize * STACK_BYTES_PER_FUEL;
        let rendered = on_stack(stack, || self.run(context, fuel, controls))??;
        let end = match input.continue_final_message {
            false => rendered.len(),
            true => rendered.rfind(CUT).ok_or_else(|| {
                EngineError::Template(
                    "the template does not render the final message, so it cannot be continued".into(),
                )
            })?,
        };
        Ok(controls.segments(&rendered[..end]))
    }

    fn run(&self, context: Json, fuel: u64, controls: &Arc<ControlTokens>) -> Result<String, EngineError> {
        let mut environment = Environment::clone(&self.environment);
        environment.set_fuel(Some(fuel));
        methods::install(&mut environment, controls);
        let mut output = BoundedOutput(Vec::new());
        let template = environment.get_template("chat").map_err(report)?;
        template.render_captured_to(input::template_value(context), &mut output).map_err(report)?;
        String::from_utf8(output.0)
            .map_err(|_| EngineError::Template("the template rendered something that is not UTF-8".into()))
    }

    fn context(&self, input: &ChatInput<'_>, marker: &mut Marker<'_>) -> Result<Json, EngineError> {
        if let Some(name) = input.kwargs.keys().find(|name| RESERVED.contains(&name.as_str())) {
            let message = format!("chat_template_kwargs must not set {name:?}; the request itself does");
            return Err(EngineError::Template(message));
        }
        if input.add_generation_prompt && input.continue_final_message {
            let message = "add_generation_prompt and continue_final_message exclude each other; set one of them";
            return Err(EngineError::Template(message.into()));
        }
        let mut context = Map::new();
        context.insert("messages".into(), marker.messages(input.messages, input.continue_final_message)?);
        context.insert("tools".into(), input.tools.map_or(Ok(Json::Null), |tools| marker.value(tools))?);
        context.insert("documents".into(), Json::Null);
        context.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        for (name, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            context.insert(name.into(), token.as_deref().unwrap_or_default().into());
        }
        for (name, value) in input.kwargs {
            context.insert(name.clone(), marker.value(value)?);
        }
        Ok(Json::Object(context))
    }
}

fn compile(mut environment: Environment<'static>, source: String) -> Result<Environment<'static>, EngineError> {
    on_stack(COMPILER_STACK_BYTES, move || environment.add_template_owned("chat", source).map(|()| environment))?
        .map_err(report)
}

/// Runs on a thread of its own with a stack of this size: whatever the template does, it does not end the process.
fn on_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> Result<T, EngineError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat-template".into()).stack_size(bytes);
        let running = thread
            .spawn_scoped(scope, work)
            .map_err(|e| EngineError::Template(format!("cannot start a thread with {bytes} bytes of stack: {e}")))?;
        running.join().map_err(|_| EngineError::Template("the template engine failed on this template".into()))
    })
}

fn fuel(marker: &Marker<'_>) -> u64 {
    let bytes = (marker.bytes / FUEL_PER_BYTES) as u64;
    let values = (marker.values as u64).saturating_mul(FUEL_PER_VALUE);
    BASE_FUEL.saturating_add(bytes).saturating_add(values).min(MAX_FUEL)
}

/// The exception a template raises on purpose.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template")]
struct Raised;

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()).with_source(Raised))
}

struct BoundedOutput(Vec<u8>);

impl std::io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT_BYTES {
            return Err(std::io::Error::other(format!("the prompt has more than {MAX_TEXT_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An error as a user needs it: the template's own words, or what is wrong with it and where.
fn report(error: Error) -> EngineError {
    use std::error::Error as _;
    let detail = without_marks(error.detail().unwrap_or_default());
    if error.source().is_some_and(|source| source.is::<Raised>()) {
        return EngineError::Template(detail.into_owned());
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return EngineError::Template("rendering takes more work than its input justifies; it was stopped".into());
    }
    let mut message = error.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    message += &error.kind().to_string();
    for part in [detail.into_owned(), error.source().map(ToString::to_string).unwrap_or_default()] {
        if !part.is_empty() {
            message += ": ";
            message += &part;
        }
    }
    EngineError::Template(message)
}

#[cfg(test)]
mod tests;
