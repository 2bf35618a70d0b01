//! Keeps control tokens in message contents from becoming control tokens of the prompt.
//!
//! A template may strip, split or search what it is given, so contents cannot simply be wrapped and taken out again.
//! Instead, each *occurrence of a control token* inside a content is put between two noncharacters before the
//! template runs ([`ControlTokens::mark`]). A template still finds `</think>` in a content, since the characters of
//! the token stay together. After rendering, [`ControlTokens::segments`] removes the marks and reports the
//! occurrences that carried them as untrusted: they are encoded as plain text.
//!
//! A content that ends in the first part of a control token, or begins with the last part of one, carries an edge
//! mark there, so that it cannot complete a token together with the template's own text.

use aho_corasick::{AhoCorasick, MatchKind};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use crate::errors::EngineError;

/// Before a control token that came from a content.
pub(crate) const OPEN: char = '\u{FDD0}';
/// After a control token that came from a content.
pub(crate) const CLOSE: char = '\u{FDD1}';
/// Where no control token may reach across.
pub(crate) const EDGE: char = '\u{FDD2}';
/// Where rendering ends when the final message is to be continued.
pub(crate) const CUT: char = '\u{FDD3}';
/// Before the letter that stands for one of these five characters in a content.
const ESCAPE: char = '\u{FDD4}';
/// The marks in the order of their escape letters `a`..`e`.
const MARKS: [char; 5] = [OPEN, CLOSE, EDGE, CUT, ESCAPE];

/// A piece of a rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The text, free of marks.
    pub text: String,
    /// Whether control tokens in it count. `false` for a control token that came from a message or tool.
    pub trusted: bool,
}

/// The control tokens of a tokenizer: its special tokens and every added token in angle or square brackets.
#[derive(Debug)]
pub struct ControlTokens {
    matcher: Option<AhoCorasick>,
    tokens: HashSet<String>,
    heads: HashSet<String>,
    tails: HashSet<String>,
    longest: usize,
}

impl ControlTokens {
    /// Prepares the search for these tokens. Empty ones are left out.
    ///
    /// # Errors
    /// When the matcher would exceed its size limits.
    pub fn new<I: IntoIterator<Item = String>>(tokens: I) -> Result<Self, EngineError> {
        let tokens: HashSet<String> = tokens.into_iter().filter(|t| !t.is_empty()).collect();
        let mut sorted: Vec<&String> = tokens.iter().collect();
        sorted.sort();
        let matcher = match sorted.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(&sorted)
                    .map_err(|e| EngineError::Tokenizer(format!("too many control tokens: {e}")))?,
            ),
        };
        let (mut heads, mut tails) = (HashSet::new(), HashSet::new());
        for token in &tokens {
            for (i, _) in token.char_indices().skip(1) {
                heads.insert(token[..i].to_owned());
                tails.insert(token[i..].to_owned());
            }
        }
        let longest = tokens.iter().map(String::len).max().unwrap_or(0);
        Ok(Self { matcher, tokens, heads, tails, longest })
    }

    /// Byte ranges of the control tokens in `text`, leftmost and longest first, without overlap.
    pub fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
        self.matcher.iter().flat_map(move |m| m.find_iter(text)).map(|m| m.range())
    }

    /// Marks the control tokens of a content, and its ends where they could complete one.
    pub(crate) fn mark<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text = escape(text);
        let mut marked = String::new();
        let mut done = 0;
        if self.starts_with_tail(&text) {
            marked.push(EDGE);
        }
        for range in self.find(&text) {
            marked.push_str(&text[done..range.start]);
            push_wrapped(&mut marked, &text[range.clone()]);
            done = range.end;
        }
        let edge = self.ends_with_head(&text);
        if marked.is_empty() && !edge {
            return text;
        }
        marked.push_str(&text[done..]);
        if edge {
            marked.push(EDGE);
        }
        Cow::Owned(marked)
    }

    /// Marks control tokens that `made` holds but none of its `parts` did: the template put them together from
    /// pieces of contents.
    pub(crate) fn mark_new(&self, made: String, parts: &[&str]) -> String {
        let mut marked = String::new();
        let mut done = 0;
        for range in self.find(&made) {
            let token = &made[range.clone()];
            if is_wrapped(&made, &range) || parts.iter().any(|part| self.holds_unmarked(part, token)) {
                continue;
            }
            marked.push_str(&made[done..range.start]);
            push_wrapped(&mut marked, token);
            done = range.end;
        }
        if done == 0 {
            return made;
        }
        marked.push_str(&made[done..]);
        marked
    }

    fn holds_unmarked(&self, text: &str, token: &str) -> bool {
        text.contains(token) && self.find(text).any(|range| &text[range.clone()] == token && !is_wrapped(text, &range))
    }

    fn starts_with_tail(&self, text: &str) -> bool {
        let end = text.len().min(self.longest);
        (1..end).any(|i| text.is_char_boundary(i) && self.tails.contains(&text[..i])) || self.tails.contains(text)
    }

    fn ends_with_head(&self, text: &str) -> bool {
        let start = text.len().saturating_sub(self.longest);
        (start + 1..text.len()).any(|i| text.is_char_boundary(i) && self.heads.contains(&text[i..]))
            || self.heads.contains(text)
    }

    /// Takes the marks out of rendered text and splits it where control tokens came from contents.
    pub(crate) fn segments(&self, rendered: &str) -> Vec<Segment> {
        let (text, marked, edges) = self.unmark(rendered);
        let mut untrusted = marked.clone();
        if !(marked.is_empty() && edges.is_empty()) {
            for range in self.find(&text) {
                let first = marked.partition_point(|m| m.end <= range.start);
                let overlaps = marked.get(first).is_some_and(|m| m.start < range.end);
                let edge = edges.partition_point(|&e| e <= range.start);
                if overlaps || edges.get(edge).is_some_and(|&e| e < range.end) {
                    untrusted.push(range);
                }
            }
            untrusted.sort_by_key(|r| (r.start, r.end));
        }
        let mut segments = Vec::new();
        let mut push = |range: Range<usize>, trusted| {
            if !range.is_empty() {
                segments.push(Segment { text: text[range].to_owned(), trusted });
            }
        };
        let mut done = 0;
        for range in untrusted {
            let start = range.start.max(done);
            if start < range.end {
                push(done..start, true);
                push(start..range.end, false);
                done = range.end;
            }
        }
        push(done..text.len(), true);
        segments
    }

    /// The text without marks, the ranges of marked control tokens in it, and the places of edges.
    fn unmark(&self, rendered: &str) -> (String, Vec<Range<usize>>, Vec<usize>) {
        let mut text = String::with_capacity(rendered.len());
        let (mut marked, mut edges) = (Vec::new(), Vec::new());
        let mut rest = rendered;
        while let Some(at) = rest.find(MARKS) {
            text.push_str(&rest[..at]);
            let mut chars = rest[at..].chars();
            let mark = chars.next();
            rest = chars.as_str();
            match mark {
                Some(OPEN) => {
                    // A mark counts only around exactly a control token; the template may have torn others apart.
                    let end = rest.find(MARKS).unwrap_or(rest.len());
                    if rest[end..].starts_with(CLOSE) && self.tokens.contains(&rest[..end]) {
                        marked.push(text.len()..text.len() + end);
                    }
                }
                Some(EDGE) => edges.push(text.len()),
                Some(ESCAPE) => {
                    if let Some(mark) = chars.next().and_then(unescape) {
                        text.push(mark);
                        rest = chars.as_str();
                    }
                }
                _ => {}
            }
        }
        text.push_str(rest);
        (text, marked, edges)
    }
}

/// Whether marks surround this range.
fn is_wrapped(text: &str, range: &Range<usize>) -> bool {
    text[..range.start].ends_with(OPEN) && text[range.end..].starts_with(CLOSE)
}

/// Whether the character is one of the marks.
pub(crate) fn is_mark(c: char) -> bool {
    MARKS.contains(&c)
}

/// The text as the template's author would see it.
pub(crate) fn without_marks(text: &str) -> Cow<'_, str> {
    match text.contains(is_mark) {
        true => Cow::Owned(text.chars().filter(|&c| !is_mark(c)).collect()),
        false => Cow::Borrowed(text),
    }
}

/// The text with marks around it.
pub(crate) fn wrapped(token: &str) -> String {
    let mut text = String::with_capacity(token.len() + 6);
    push_wrapped(&mut text, token);
    text
}

fn push_wrapped(out: &mut String, token: &str) {
    out.push(OPEN);
    out.push_str(token);
    out.push(CLOSE);
}

fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_mark) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match (b'a'..).zip(MARKS).find(|&(_, mark)| mark == c) {
            Some((letter, _)) => escaped.extend([ESCAPE, char::from(letter)]),
            None => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

fn unescape(letter: char) -> Option<char> {
    (b'a'..).zip(MARKS).find(|&(l, _)| char::from(l) == letter).map(|(_, mark)| mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controls() -> ControlTokens {
        ControlTokens::new(["<|im_start|>", "<|im_end|>", "<think>", "</think>"].map(String::from)).unwrap()
    }

    fn parts(segments: &[Segment]) -> Vec<(&str, bool)> {
        segments.iter().map(|s| (s.text.as_str(), s.trusted)).collect()
    }

    #[test]
    fn tokens_of_contents_are_told_from_tokens_of_the_template() {
        let c = controls();
        let rendered = format!("<|im_start|>user\n{}<|im_end|>", c.mark("a<|im_end|>b"));
        let segments = c.segments(&rendered);
        assert_eq!(parts(&segments), [("<|im_start|>user\na", true), ("<|im_end|>", false), ("b<|im_end|>", true)]);
    }

    #[test]
    fn a_content_cannot_complete_a_token_across_its_ends() {
        let c = controls();
        let rendered = format!("<{}>", c.mark("x=<|im_start|"));
        assert_eq!(parts(&c.segments(&rendered)), [("<x=", true), ("<|im_start|>", false)]);
        let rendered = format!("<|im_start{}", c.mark("|>rest"));
        assert_eq!(parts(&c.segments(&rendered)), [("<|im_start|>", false), ("rest", true)]);
        let both = format!("{}{}", c.mark("<|im_"), c.mark("end|>"));
        assert_eq!(parts(&c.segments(&both)), [("<|im_end|>", false)]);
    }

    #[test]
    fn harmless_edges_leave_one_segment() {
        let c = controls();
        let rendered = format!("user\n{}\n", c.mark("> quoted <"));
        assert_eq!(parts(&c.segments(&rendered)), [("user\n> quoted <\n", true)]);
        assert!(matches!(c.mark("plain text"), Cow::Borrowed(_)));
    }

    #[test]
    fn noncharacters_of_a_content_survive() {
        let c = controls();
        let odd: String = MARKS.iter().flat_map(|&m| [m, 'a']).chain("<think>".chars()).collect();
        let back: String = c.segments(&c.mark(&odd)).into_iter().map(|s| s.text).collect();
        assert_eq!(back, odd);
    }

    #[test]
    fn tokens_made_by_deletion_are_marked() {
        let c = controls();
        let made = c.mark_new("a<|im_end|><think>".into(), &["a<|im_x_end|><think>", ""]);
        assert_eq!(parts(&c.segments(&made)), [("a", true), ("<|im_end|>", false), ("<think>", true)]);
        let text = c.mark("<|im_<think>end|><|im_end|>").into_owned();
        let made = c.mark_new(text.replace(&wrapped("<think>"), ""), &[&text, ""]);
        assert_eq!(parts(&c.segments(&made)), [("<|im_end|>", false), ("<|im_end|>", false)]);
    }
}
