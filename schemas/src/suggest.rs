//! Did-you-mean: the known name nearest to a misspelt one.

/// The candidate nearest to `word`, if one is near enough to be what was meant.
///
/// Case, `-` and `_` do not count. "Near" grows with the length of the word: one typing error in a short word, about
/// a third of the letters in a long one.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = normal(word);
    // Longer input than any real name: not a typing error, and not worth a quadratic comparison.
    if wanted.is_empty() || wanted.len() > 64 {
        return None;
    }
    let limit = (wanted.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&wanted, &normal(candidate)), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// ` (did you mean X?)`, or nothing.
pub fn hint<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}

fn normal(word: &str) -> String {
    word.trim_start_matches('-').replace('-', "_").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["max_seq_len", "max_num_seqs", "port", "kv_cache_dtype"];

    #[test]
    fn finds_the_nearest_name_whatever_the_separators() {
        assert_eq!(nearest("--max-sequence-len", NAMES), Some("max_seq_len"));
        assert_eq!(nearest("KV_cache_dype", NAMES), Some("kv_cache_dtype"));
        assert_eq!(nearest("prot", NAMES), Some("port"));
    }

    #[test]
    fn stays_silent_when_nothing_is_near() {
        assert_eq!(nearest("temperature", NAMES), None);
        assert_eq!(nearest("", NAMES), None);
        assert_eq!(nearest(&"x".repeat(10_000), NAMES), None);
    }
}
