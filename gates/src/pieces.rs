//! Long texts in pieces that a server tokenises.
//!
//! Servers refuse to tokenise what does not fit the context. Tokenizers split text at line ends and before spaces before
//! they merge anything, so that pieces cut there have the same tokens as the whole.

/// Cuts `text` into pieces of at most `max_bytes` (at least 4): after a line end whose next character is not white
/// space, else before a space that follows a letter or digit, else between characters.
pub fn pieces(text: &str, max_bytes: usize) -> Vec<&str> {
    let (mut rest, mut pieces) = (text, Vec::new());
    while rest.len() > max_bytes {
        let (piece, tail) = rest.split_at(cut(rest, max_bytes.max(4)));
        pieces.push(piece);
        rest = tail;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

fn cut(text: &str, max_bytes: usize) -> usize {
    let end = text.floor_char_boundary(max_bytes);
    let pairs = || text[..end].char_indices().zip(text.chars().skip(1)).skip(1);
    let line = pairs().filter(|((_, c), next)| *c == '\n' && !next.is_whitespace()).last();
    if let Some(((at, _), _)) = line {
        return at + 1;
    }
    let word = pairs().filter(|((_, c), next)| c.is_alphanumeric() && *next == ' ').last();
    match word {
        Some(((at, c), _)) => at + c.len_utf8(),
        None => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cuts_at_lines_then_words_then_anywhere() {
        assert_eq!(pieces("", 8), Vec::<&str>::new());
        assert_eq!(pieces("short", 8), ["short"]);
        assert_eq!(pieces("one\ntwo\nthree", 9), ["one\ntwo\n", "three"]);
        assert_eq!(pieces("one\n\n two three", 10), ["one\n\n two", " three"], "white space stays with its line end");
        assert_eq!(pieces("éééééé", 5), ["éé", "éé", "éé"]);
    }

    proptest! {
        #[test]
        fn pieces_make_the_text(text in "[a-c \n\té,]{0,200}", max in 4usize..50) {
            let pieces = pieces(&text, max);
            prop_assert_eq!(&pieces.concat(), &text);
            prop_assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= max));
        }
    }
}
