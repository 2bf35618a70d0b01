//! Finding the first of several strings in text that arrives in pieces, in time linear in the text.

/// Knuth–Morris–Pratt automaton of one pattern.
#[derive(Debug, Clone)]
pub(crate) struct PrefixMatcher {
    pattern: Vec<u8>,
    /// `fallback[k]`: length of the longest proper border of the pattern's first `k + 1` bytes.
    fallback: Vec<usize>,
    matched: usize,
}

impl PrefixMatcher {
    /// `pattern` must not be empty.
    pub(crate) fn new(pattern: &str) -> Self {
        let pattern = pattern.as_bytes().to_vec();
        let mut fallback = vec![0; pattern.len()];
        let mut k = 0;
        for i in 1..pattern.len() {
            while k > 0 && pattern[i] != pattern[k] {
                k = fallback[k - 1];
            }
            if pattern[i] == pattern[k] {
                k += 1;
            }
            fallback[i] = k;
        }
        Self { pattern, fallback, matched: 0 }
    }

    /// Takes one byte; true when the pattern ends here.
    pub(crate) fn step(&mut self, byte: u8) -> bool {
        if self.matched == self.pattern.len() {
            self.matched = self.fallback[self.matched - 1];
        }
        while self.matched > 0 && self.pattern[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if self.pattern[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.pattern.len()
    }

    /// Bytes at the end of the text so far that are the pattern's beginning.
    pub(crate) fn matched(&self) -> usize {
        self.matched
    }
}
