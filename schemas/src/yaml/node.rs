//! The tree of a YAML document, with places.

use crate::serve_options::shown;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Location, Spanned};
use std::fmt;

/// A place in a text. Lines and columns count from 1, columns in characters; zero is "nowhere in particular".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Line.
    pub line: usize,
    /// Column of the first character.
    pub column: usize,
    /// Byte offset of the first character.
    pub offset: usize,
    /// Length in bytes.
    pub length: usize,
}

impl Span {
    /// The place of byte `offset` in `text`, one character long.
    pub fn at_offset(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let length = text.get(offset..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            offset: before.len(),
            length,
        }
    }

    pub(super) fn of(text: &str, location: &Location) -> Self {
        let clamp = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok());
        let (line, column) = (location.line() as usize, location.column() as usize);
        // Some errors carry no usable byte offset; line and column are always there.
        let offset = clamp(location.span().byte_offset()).filter(|offset| text.is_char_boundary(*offset));
        let length = clamp(location.span().byte_len()).unwrap_or(0);
        let end = offset.map(|offset| offset.saturating_add(length)).filter(|end| text.is_char_boundary(*end));
        match (offset, end) {
            (Some(offset), Some(end)) => Self { line, column, offset, length: end - offset },
            _ => Self { line, column, offset: text.len(), length: 0 },
        }
    }

    /// The text at this place.
    pub fn slice<'a>(&self, text: &'a str) -> &'a str {
        text.get(self.offset..self.offset.saturating_add(self.length)).unwrap_or_default()
    }
}

/// A value with its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Where it stands. For an alias, where the alias stands.
    pub span: Span,
    /// What it is.
    pub value: NodeValue,
}

/// What a value is.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeValue {
    /// Nothing, a truth value, a number or a text.
    Scalar(Value),
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order of the file; keys may repeat.
    Map(Vec<Entry>),
}

/// A key of a mapping and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub key_span: Span,
    /// The value.
    pub value: Node,
}

impl Entry {
    /// The key, fit for a message.
    pub fn shown_key(&self) -> String {
        shown(&self.key)
    }
}

impl Node {
    /// The value as JSON. Of repeated keys the first counts.
    pub fn to_json(&self) -> Value {
        match &self.value {
            NodeValue::Scalar(value) => value.clone(),
            NodeValue::List(items) => items.iter().map(Self::to_json).collect(),
            NodeValue::Map(entries) => {
                let pairs = entries.iter().rev().map(|entry| (entry.key.clone(), entry.value.to_json()));
                let mut map: serde_json::Map<String, Value> = pairs.collect();
                // Insertion went backwards so that the first of repeated keys wins; put the order right again.
                let mut ordered = serde_json::Map::new();
                for entry in entries {
                    if let Some(value) = map.remove(&entry.key) {
                        ordered.insert(entry.key.clone(), value);
                    }
                }
                Value::Object(ordered)
            }
        }
    }

    /// The kind of value, for messages.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            NodeValue::Scalar(Value::Null) => "nothing (null)",
            NodeValue::Scalar(Value::Bool(_)) => "true or false",
            NodeValue::Scalar(Value::Number(_)) => "a number",
            NodeValue::Scalar(_) => "a text",
            NodeValue::List(_) => "a list",
            NodeValue::Map(_) => "a mapping",
        }
    }

    /// Turns places of the parser (in a text) into spans. Called once, on the root.
    fn from_raw(raw: RawNode) -> Self {
        let Spanned { value, referenced, .. } = raw.0;
        let value = match value {
            RawValue::Scalar(value) => NodeValue::Scalar(value),
            RawValue::List(items) => NodeValue::List(items.into_iter().map(Self::from_raw).collect()),
            RawValue::Map(entries) => NodeValue::Map(
                entries
                    .into_iter()
                    .map(|(key, value)| Entry {
                        key_span: raw_span(&key.referenced),
                        key: key.value,
                        value: Self::from_raw(value),
                    })
                    .collect(),
            ),
        };
        Self { span: raw_span(&referenced), value }
    }
}

fn raw_span(location: &Location) -> Span {
    let number = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
    Span {
        line: location.line() as usize,
        column: location.column() as usize,
        offset: number(location.span().byte_offset()),
        length: number(location.span().byte_len()),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RawNode::deserialize(deserializer).map(Self::from_raw)
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct RawNode(Spanned<RawValue>);

enum RawValue {
    Scalar(Value),
    List(Vec<RawNode>),
    Map(Vec<(Spanned<String>, RawNode)>),
}

impl<'de> Deserialize<'de> for RawValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = RawValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawValue, D::Error> {
        RawValue::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<RawValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(RawValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<RawValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(RawValue::Map(entries))
    }
}
