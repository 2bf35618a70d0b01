//! Stop strings: ends the text where one of them appears, also across token boundaries.

use super::prefix::PrefixMatcher;

/// What one [`StopMatcher::push`] lets through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopOutput {
    /// Text that is certainly before any stop string.
    pub text: String,
    /// The stop string that ended the text. Everything after it is discarded.
    pub stopped: Option<String>,
}

/// Finds the stop string that ends first; of several that end at the same place, the longest.
///
/// Only a suffix of the text that can still become a stop string is held back. The work is linear in the text.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<(String, PrefixMatcher)>,
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// Empty stop strings are ignored.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|s| !s.is_empty());
        stops.sort_by_key(|s| std::cmp::Reverse(s.len()));
        let stops = stops.into_iter().map(|s| (s.clone(), PrefixMatcher::new(&s))).collect();
        Self { stops, held: String::new(), stopped: false }
    }

    /// Takes the next piece of text. After a stop, all text is discarded.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.stopped {
            return StopOutput::default();
        }
        if self.stops.is_empty() {
            return StopOutput { text: text.to_owned(), stopped: None };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (i, byte) in text.bytes().enumerate() {
            let mut found: Option<&str> = None;
            for (stop, matcher) in &mut self.stops {
                if matcher.step(byte) && found.is_none() {
                    found = Some(stop);
                }
            }
            if let Some(stop) = found {
                self.stopped = true;
                self.held.truncate(before + i + 1 - stop.len());
                return StopOutput { text: std::mem::take(&mut self.held), stopped: Some(stop.to_owned()) };
            }
        }
        let keep = self.stops.iter().map(|(_, m)| m.matched()).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        StopOutput { text: std::mem::replace(&mut self.held, held), stopped: None }
    }

    /// The text that was held back, at the end of the generation.
    pub fn finish(&mut self) -> String {
        self.stopped = true;
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| s.to_string()).collect());
        let (mut text, mut stopped) = (String::new(), None);
        for piece in pieces {
            let out = matcher.push(piece);
            text += &out.text;
            stopped = stopped.or(out.stopped);
        }
        text += &matcher.finish();
        (text, stopped)
    }

    fn chars(text: &str) -> Vec<&str> {
        text.char_indices().map(|(i, c)| &text[i..i + c.len_utf8()]).collect()
    }

    /// The definition, written without any state: the first place where a stop string ends.
    fn reference(stops: &[String], text: &str) -> (String, Option<String>) {
        for end in 1..=text.len() {
            let longest = stops.iter().filter(|s| !s.is_empty() && text.as_bytes()[..end].ends_with(s.as_bytes()));
            if let Some(stop) = longest.max_by_key(|s| s.len()) {
                return (text[..end - stop.len()].to_owned(), Some(stop.clone()));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn holds_back_only_what_can_still_match() {
        let mut matcher = StopMatcher::new(vec!["</s>".into()]);
        assert_eq!(matcher.push("a <").text, "a ");
        assert_eq!(matcher.push("/").text, "");
        assert_eq!(matcher.push("b</s").text, "</b");
        assert_eq!(matcher.finish(), "</s");
    }

    #[test]
    fn stops_across_pieces_and_discards_the_rest() {
        assert_eq!(run(&["END"], &["one E", "N", "D two", "END"]), ("one ".into(), Some("END".into())));
        assert_eq!(run(&["aab"], &["aa", "ab"]), ("a".into(), Some("aab".into())));
        assert_eq!(run(&["é!", "😀"], &["caf", "é", "😀x"]), ("café".into(), Some("😀".into())));
        assert_eq!(run(&["", "x"], &["abc"]), ("abc".into(), None));
    }

    #[test]
    fn a_hostile_megabyte_is_no_work() {
        let text = "a".repeat(1 << 20);
        let (out, stopped) = run(&[&("a".repeat(1 << 16) + "b")], &[&text]);
        assert_eq!((out.len(), stopped), (1 << 20, None));
    }

    proptest! {
        #[test]
        fn split_anywhere_equals_unsplit(
            stops in prop::collection::vec("[ab<é]{0,5}", 0..4),
            text in "[ab<é]{0,40}",
            cut in 0usize..40,
        ) {
            let refs: Vec<&str> = stops.iter().map(String::as_str).collect();
            let expected = reference(&stops, &text);
            prop_assert_eq!(run(&refs, &[&text]), expected.clone());
            prop_assert_eq!(run(&refs, &chars(&text)), expected.clone());
            let cut = (0..=cut.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
            prop_assert_eq!(run(&refs, &[&text[..cut], &text[cut..]]), expected);
        }
    }
}
