//! Making a template's source fit the engine.

use crate::errors::EngineError;

/// The longest tag, without its string literals. The compiler's work grows with the square of a tag's length;
/// published templates stay below a thousand bytes.
const MAX_TAG_BYTES: usize = 4096;

/// Checks the tags' lengths and makes `{% generation %}` blocks plain.
///
/// Templates for training mark the assistant's text with such blocks, which change nothing about the text. They
/// become blocks that are always taken, so that their whitespace control keeps its effect.
pub(super) fn prepare(source: &str) -> Result<String, EngineError> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = next_tag(rest) {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let (length, code) = measure(tag);
        if code > MAX_TAG_BYTES {
            let line = 1 + source[..source.len() - tag.len()].matches('\n').count();
            let message = format!("line {line}: a tag has {code} bytes of code; at most {MAX_TAG_BYTES} are compiled");
            return Err(EngineError::Template(message));
        }
        let (tag, after) = tag.split_at(length);
        let word = tag.trim_matches(|c: char| c.is_ascii_whitespace() || matches!(c, '{' | '}' | '%' | '-' | '+'));
        match word {
            "generation" if is_block(tag) => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" if is_block(tag) => out.push_str(&tag.replace(word, "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
        if word == "raw" {
            let (verbatim, end) = rest.split_at(end_of_raw(rest));
            out.push_str(verbatim);
            rest = end;
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn is_block(tag: &str) -> bool {
    tag.starts_with("{%") && tag.ends_with("%}")
}

fn next_tag(text: &str) -> Option<usize> {
    let opens = |&(i, _): &(usize, &str)| matches!(text.as_bytes().get(i + 1), Some(b'{' | b'%' | b'#'));
    text.match_indices('{').find(opens).map(|(i, _)| i)
}

/// The length of the tag that `text` begins with, and how much of it is code outside string literals.
fn measure(text: &str) -> (usize, usize) {
    let (close, comment) = match text.as_bytes().get(1) {
        Some(b'#') => ("#}", true),
        Some(b'%') => ("%}", false),
        _ => ("}}", false),
    };
    if comment {
        return (text[2..].find(close).map_or(text.len(), |at| at + 4), 0);
    }
    let mut code = 0;
    let mut quote: Option<char> = None;
    let mut chars = text.char_indices().skip(2);
    while let Some((at, c)) = chars.next() {
        match quote {
            Some(_) if c == '\\' => drop(chars.next()),
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if text[at..].starts_with(close) => return (at + close.len(), code),
            None if c == '"' || c == '\'' => quote = Some(c),
            None => code += c.len_utf8(),
        }
    }
    (text.len(), code)
}

/// Where the tag that ends a raw block begins.
fn end_of_raw(text: &str) -> usize {
    let ends = |&(i, _): &(usize, &str)| text[i + 2..].trim_start_matches(['-', '+', ' ', '\n']).starts_with("endraw");
    text.match_indices("{%").find(ends).map_or(text.len(), |(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_generation_tags_change() {
        let source = "{# {% generation %} #}a{%- generation -%}b{% endgeneration +%}{% if generation %}{{ '{% generation %}' }}\
                      {% endif %}{% raw %}{% generation %}{{ ' {% endraw %}{ {% generation %}";
        let expected = "{# {% generation %} #}a{%- if true -%}b{% endif +%}{% if generation %}{{ '{% generation %}' }}\
                        {% endif %}{% raw %}{% generation %}{{ ' {% endraw %}{ {% if true %}";
        assert_eq!(prepare(source).unwrap(), expected);
        for broken in ["{%", "{% generation", "{#", "a{", "{%é", "{{ 'x", "{{ '\\", "{% raw %}", "{% raw %}{%"] {
            assert_eq!(prepare(broken).unwrap(), broken);
        }
    }

    #[test]
    fn long_literals_are_welcome_and_long_code_is_not() {
        let literal = format!("{{{{ '{}' }}}}", "}} ".repeat(10_000));
        assert_eq!(prepare(&literal).unwrap(), literal);
        let code = format!("a\n\n{{{{ {}1 }}}}", "1~".repeat(3000));
        let error = prepare(&code).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("4096"), "{error}");
        assert!(prepare(&format!("{{% raw %}}{{{{ ' {{% endraw %}}{code}")).is_err());
    }
}
