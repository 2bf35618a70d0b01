//! Making a template's source fit the engine.

use std::borrow::Cow;

/// Templates for training mark the assistant's text with `{% generation %}` blocks, which change nothing about the
/// text. They become blocks that are always taken, so that their whitespace control keeps its effect.
pub(super) fn without_generation_tags(source: &str) -> Cow<'static, str> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{#")).min() {
        let comment = rest[at..].starts_with("{#");
        let close = if comment { "#}" } else { "%}" };
        let Some(length) = rest[at + 2..].find(close) else { break };
        let end = at + 2 + length;
        let inside = &rest[at + 2..end];
        out.push_str(&rest[..at + 2]);
        match inside.trim_matches(|c: char| c.is_ascii_whitespace() || c == '-' || c == '+') {
            word @ "generation" if !comment => out.push_str(&inside.replace(word, "if true")),
            word @ "endgeneration" if !comment => out.push_str(&inside.replace(word, "endif")),
            _ => out.push_str(inside),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_generation_tags_change() {
        let source =
            "{# {% generation %} #}a{%- generation -%}b{% endgeneration +%}{% if generation %}{{ x }}{% endif %}";
        let expected = "{# {% generation %} #}a{%- if true -%}b{% endif +%}{% if generation %}{{ x }}{% endif %}";
        assert_eq!(without_generation_tags(source), expected);
        for broken in ["{%", "{% generation", "{#", "a{", "{%é"] {
            assert_eq!(without_generation_tags(broken), broken);
        }
    }
}
