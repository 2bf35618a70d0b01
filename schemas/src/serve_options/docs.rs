//! The options' documentation, from the table.

use super::{OPTIONS, OptionSpec, Status};
use std::fmt::Write;

/// The options as Markdown: one table a group.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Serve options\n\n\
         Each key stands under a recipe's `defaults`, and is a flag of `atlas serve` in kebab-case (`max_seq_len` is \
         `--max-seq-len`). `–` is no default: the engine chooses.\n",
    );
    let mut group = "";
    for spec in OPTIONS {
        if spec.group != group {
            group = spec.group;
            let _ = write!(page, "\n## {group}\n\n| key | values | default | meaning |\n|---|---|---|---|\n");
        }
        let _ = writeln!(page, "{}", row(spec));
    }
    page
}

fn row(spec: &OptionSpec) -> String {
    let default = spec.default_value();
    let default = if default.is_null() { "–".to_owned() } else { format!("`{}`", spec.show(&default)) };
    let mut meaning = spec.doc();
    if let Status::Accepted { why } = spec.status {
        let _ = write!(meaning, " *No effect in this build: {why}.*");
    }
    if !spec.aliases.is_empty() {
        let names: Vec<String> = spec.aliases.iter().map(|alias| format!("`{alias}`")).collect();
        let _ = write!(meaning, " Also {}.", names.join(", "));
    }
    let cell = |text: &str| text.replace('|', "\\|");
    format!("| `{}` | {} | {} | {} |", spec.key, cell(&spec.values()), cell(&default), cell(&meaning))
}
