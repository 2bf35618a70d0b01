//! The problems of one file, and a bound on how many are told.

use super::{Diagnostic, Severity, Source, Span};

/// Most problems that are told of one file. Nobody reads more, and a hostile file could have one a byte.
const MAX_PROBLEMS: usize = 50;

/// The problems of one file. Beyond a bound they are only counted.
#[derive(Debug, Default)]
pub struct Problems {
    list: Vec<Diagnostic>,
    untold_errors: usize,
    untold_warnings: usize,
}

impl Problems {
    /// Adds a problem made by `make`, which is only called if the problem will be told.
    pub fn add(&mut self, severity: Severity, make: impl FnOnce() -> Diagnostic) -> Option<&mut Diagnostic> {
        if self.list.len() < MAX_PROBLEMS {
            let mut problem = make();
            problem.severity = severity;
            self.list.push(problem);
            return self.list.last_mut();
        }
        match severity {
            Severity::Error => self.untold_errors += 1,
            Severity::Warning => self.untold_warnings += 1,
        }
        None
    }

    /// The problems in the order of the file; the last one says how many are not told.
    pub fn into_sorted(mut self, source: &Source<'_>) -> Vec<Diagnostic> {
        self.list.sort_by_key(|problem| (problem.line, problem.column, problem.severity));
        let count = |number: usize, word: &str| {
            (number > 0).then(|| format!("{number} more {word}{}", if number == 1 { "" } else { "s" }))
        };
        let untold = [count(self.untold_errors, "error"), count(self.untold_warnings, "warning")];
        let untold: Vec<String> = untold.into_iter().flatten().collect();
        if !untold.is_empty() {
            let make = if self.untold_errors > 0 { Diagnostic::error } else { Diagnostic::warning };
            let message = format!("{} not shown", untold.join(" and "));
            self.list.push(make(source.name, Span::default(), message).help("fix the ones above first"));
        }
        self.list
    }
}
