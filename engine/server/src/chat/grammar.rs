//! What an answer is held to: its content to a grammar, its calls to the schemas of their tools.

use crate::chat::tools::{Callable, Tools};
use crate::config::ToolGrammar;
use crate::structured::Bound;
use atlas_engine::sampling::grammar::{Calls, Content, OutputGrammar, Thinking, ToolSchema};
use atlas_engine::text::parser::ToolFormat;
use serde_json::json;

/// What a chat request holds its answer to.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The grammar of the content.
    pub(crate) content: Option<Bound>,
    /// The tools that may be called, if calls are held to anything.
    tools: Option<Vec<ToolSchema>>,
    /// Whether there must be a call.
    required: bool,
    parallel: bool,
}

impl Held {
    pub(crate) fn new(content: Option<Bound>, tools: &Tools, policy: ToolGrammar) -> Self {
        let schemas: Vec<ToolSchema> = tools.callable.iter().map(|tool| schema(tool, tools.required, policy)).collect();
        let bound = tools.required || tools.restricted || schemas.iter().any(|tool| tool.parameters.is_some());
        // Content that is held to a grammar must be told from calls, whatever these are held to.
        let needed = !schemas.is_empty() && (bound || content.is_some());
        Self { content, tools: needed.then_some(schemas), required: tools.required, parallel: tools.parallel }
    }

    /// The grammar of the whole answer and the field that asks for it; `None` if the answer is free.
    pub(crate) fn grammar(self, format: ToolFormat, thinking: Thinking) -> Option<(OutputGrammar, String)> {
        let calls = self.tools.map(|tools| Calls { format, tools, parallel: self.parallel });
        let (content, field) = match (self.content, &calls) {
            (_, Some(_)) if self.required => (None, "tools".to_owned()),
            (Some(Bound { field, grammar }), _) => (Some(Content::Bound(grammar)), field),
            (None, Some(_)) => (Some(Content::Free), "tools".to_owned()),
            (None, None) => return None,
        };
        Some((OutputGrammar { thinking, content, calls }, field))
    }
}

fn schema(tool: &Callable, required: bool, policy: ToolGrammar) -> ToolSchema {
    let held = match policy {
        ToolGrammar::Never => false,
        ToolGrammar::Auto => tool.strict || required,
        ToolGrammar::Always => true,
    };
    // A tool without parameters takes none.
    let none = || json!({ "type": "object", "properties": {}, "additionalProperties": false });
    ToolSchema {
        name: tool.name.clone(),
        parameters: held.then(|| tool.parameters.clone().unwrap_or_else(none)),
        strict: tool.strict,
    }
}
