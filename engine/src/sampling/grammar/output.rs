//! The grammar of a whole output: thinking, then content or tool calls in the model's own syntax.

use super::limits::Budget;
use super::{Grammar, GrammarError, json_source};
use crate::text::parser::ToolFormat;
use crate::text::tokenizer::Tokenizer;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::regex_to_lark;
use serde_json::{Value, json};

/// Everything that an output may be. It thinks if it may, and then it is content, or tool calls, or either.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OutputGrammar {
    /// What may come first.
    pub thinking: Thinking,
    /// What may stand in place of calls; without it, there must be a call.
    pub content: Option<Content>,
    /// Which tools may be called, if any.
    pub calls: Option<Calls>,
}

/// A block of reasoning in `<think>` tags before everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Thinking {
    /// There is none.
    #[default]
    No,
    /// The prompt has opened it, and the output closes it.
    Open,
    /// The model may begin with one.
    Maybe,
}

/// What the user sees.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Any text, before, between and after calls too.
    Free,
    /// A text of this grammar.
    Bound(Grammar),
}

/// Tool calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// How the model writes them.
    pub format: ToolFormat,
    /// What may be called; at least one.
    pub tools: Vec<ToolSchema>,
    /// Whether several calls may follow each other.
    pub parallel: bool,
}

/// A tool whose arguments are held to a schema.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    /// The function's name.
    pub name: String,
    /// The schema of its arguments, an object. `None` leaves the object free.
    pub parameters: Option<Value>,
    /// Whether keywords that cannot be enforced are errors; otherwise they are ignored.
    pub strict: bool,
}

/// Between markers and what they enclose.
const BLANK: &str = "BLANK: /[ \\n]{1,3}/";
const TEXT: &str = "TEXT: /(?s:.*)/";

impl OutputGrammar {
    /// Only content, without thinking.
    pub fn content(grammar: Grammar) -> Self {
        Self { content: Some(Content::Bound(grammar)), ..Self::default() }
    }

    /// The grammars as the library takes them.
    pub(super) fn source(&self, tokenizer: &Tokenizer) -> Result<Sources, GrammarError> {
        if let (Thinking::No, Some(Content::Bound(grammar)), None) = (self.thinking, &self.content, &self.calls) {
            return Ok(Sources { whole: part(grammar, &mut Budget::default())?, parts: Vec::new() });
        }
        let rules = vec![BLANK.into(), TEXT.into()];
        let mut source = Source { tokenizer, rules, parts: Vec::new(), budget: Budget::default() };
        let body = match (&self.content, &self.calls) {
            (None, None) => return Err(GrammarError::Invalid("neither content nor a call is allowed".into())),
            (Some(Content::Free), None) => "TEXT".to_owned(),
            (Some(Content::Free), Some(calls)) => source.text_with_calls(calls)?,
            (Some(Content::Bound(grammar)), None) => source.part(grammar, String::new())?,
            (None, Some(calls)) => source.only_calls(calls)?,
            (Some(Content::Bound(grammar)), Some(calls)) => {
                let (content, calls) = (source.part(grammar, String::new())?, source.only_calls(calls)?);
                format!("{content} | {calls}")
            }
        };
        source.rules.push(format!("body: {body}"));
        let free = self.content == Some(Content::Free);
        let start = source.start(self.thinking, free);
        source.rules.push(format!("start: {start}"));
        let whole = GrammarWithLexer::from_lark(source.rules.join("\n"));
        Ok(Sources { whole, parts: source.parts })
    }
}

/// A grammar, and the grammars that it names, each with what its errors begin with.
pub(super) struct Sources {
    pub(super) whole: GrammarWithLexer,
    pub(super) parts: Vec<(String, GrammarWithLexer)>,
}

impl Sources {
    /// All together.
    pub(super) fn top_level(&self) -> TopLevelGrammar {
        let parts = self.parts.iter().map(|(_, part)| part);
        let grammars = std::iter::once(&self.whole).chain(parts).cloned().collect();
        TopLevelGrammar { grammars, max_tokens: None }
    }
}

/// A grammar being put together: Lark rules, and the grammars that they name.
struct Source<'a> {
    tokenizer: &'a Tokenizer,
    rules: Vec<String>,
    parts: Vec<(String, GrammarWithLexer)>,
    budget: Budget,
}

impl Source<'_> {
    /// A reference to a further grammar, whose errors begin with `label`.
    fn part(&mut self, grammar: &Grammar, label: String) -> Result<String, GrammarError> {
        let part = part(grammar, &mut self.budget).map_err(|error| error.labelled(&label))?;
        let name = format!("part_{}", self.parts.len());
        self.parts.push((label, GrammarWithLexer { name: Some(name.clone()), ..part }));
        Ok(format!("@{name}"))
    }

    /// A special token is named by its id: no text is it.
    fn special(&self, marker: &str) -> Option<String> {
        let id = self.tokenizer.token_to_id(marker).filter(|id| self.tokenizer.is_special(*id))?;
        Some(format!("<[{id}]>"))
    }

    fn marker(&self, marker: &str) -> String {
        self.special(marker).unwrap_or_else(|| literal(marker))
    }

    /// Any text up to a marker, and the marker. `rule` is the name of a rule for it.
    fn up_to(&mut self, marker: &str, rule: &str) -> String {
        match self.special(marker) {
            Some(token) => format!("TEXT {token}"),
            None => {
                self.rules.push(format!("{rule}[lazy]: TEXT {}", literal(marker)));
                rule.to_owned()
            }
        }
    }

    fn start(&mut self, thinking: Thinking, free: bool) -> String {
        // Free text holds such markers as are text anyway.
        if thinking == Thinking::No || (free && self.special("</think>").is_none()) {
            return "body".into();
        }
        let thought = self.up_to("</think>", "thought");
        match thinking {
            Thinking::Open => format!("{thought} BLANK? body"),
            _ => format!("({} {thought} BLANK?)? body", self.marker("<think>")),
        }
    }

    fn only_calls(&mut self, calls: &Calls) -> Result<String, GrammarError> {
        let call = self.call(calls)?;
        self.rules.push(format!("call: {} {call}", self.marker("<tool_call>")));
        Ok(if calls.parallel { "call (BLANK? call)*" } else { "call" }.into())
    }

    /// Free text that turns into a call at the marker of one.
    fn text_with_calls(&mut self, calls: &Calls) -> Result<String, GrammarError> {
        let call = self.call(calls)?;
        let lead = self.up_to("<tool_call>", "lead");
        self.rules.push(format!("call: {lead} {call}"));
        Ok(if calls.parallel { "call* TEXT" } else { "call | TEXT" }.into())
    }

    /// A call after its opening marker.
    fn call(&mut self, calls: &Calls) -> Result<String, GrammarError> {
        match calls.format {
            ToolFormat::Hermes => {}
            ToolFormat::None => {
                let message = "the syntax of this model's tool calls is not known, so that none can be enforced";
                return Err(GrammarError::Invalid(message.into()));
            }
        }
        self.rules.push("SPACE: \" \"".into());
        let mut names = Vec::new();
        for (index, tool) in calls.tools.iter().enumerate() {
            let name = literal(&format!("{},", Value::from(tool.name.as_str())));
            let (before, after) = (literal("{\"name\":"), literal("\"arguments\":"));
            self.rules.push(format!("HEAD_{index}: {before} SPACE? {name} SPACE? {after} SPACE?"));
            let arguments = self.part(&arguments(tool), format!("tool `{}`: ", tool.name))?;
            self.rules.push(format!("call_{index}: HEAD_{index} {arguments} \"}}\""));
            names.push(format!("call_{index}"));
        }
        Ok(format!("BLANK? ({}) BLANK? {}", names.join(" | "), self.marker("</tool_call>")))
    }
}

/// The schema of a tool's arguments: always of an object, and without properties that the tool does not have unless it
/// says that it takes others.
fn arguments(tool: &ToolSchema) -> Grammar {
    const OPEN: [&str; 6] = ["additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"];
    let mut schema = tool.parameters.clone().unwrap_or_else(|| json!({}));
    if let Value::Object(fields) = &mut schema {
        fields.entry("type").or_insert_with(|| "object".into());
        if fields.contains_key("properties") && !OPEN.iter().any(|keyword| fields.contains_key(*keyword)) {
            fields.insert("additionalProperties".into(), false.into());
        }
    }
    Grammar::JsonSchema { schema, strict: tool.strict }
}

/// A grammar of its own.
fn part(grammar: &Grammar, budget: &mut Budget) -> Result<GrammarWithLexer, GrammarError> {
    budget.check(grammar)?;
    Ok(match grammar {
        Grammar::JsonSchema { schema, strict } => GrammarWithLexer::from_json_schema(json_source(schema, *strict)),
        // `\d` and `\w` are ASCII, as they are in the patterns of JSON schemas.
        Grammar::Regex(regex) => GrammarWithLexer::from_lark(format!("start: /{}/", regex_to_lark(regex, "dw"))),
        Grammar::Lark(lark) => GrammarWithLexer::from_lark(lark.clone()),
        Grammar::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
            GrammarWithLexer::from_lark(format!("start: {}", texts.join(" | ")))
        }
    })
}

/// A text as a Lark literal, which is a JSON string.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
