//! Server-sent events: bytes in, the `data` of whole events out.

/// An event may not be longer than this; a server that never ends one would fill the memory otherwise.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Collects bytes, in pieces of any size, into events.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    data: Option<String>,
    skip_newline: bool,
}

/// An event grew beyond all bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a server-sent event is longer than {MAX_EVENT_BYTES} bytes")]
pub struct EventTooLong;

impl SseParser {
    /// Takes the next bytes and returns the data of every event that they complete. Lines end in LF, CRLF or CR;
    /// comments and fields other than `data` are skipped.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, EventTooLong> {
        let mut events = Vec::new();
        for &byte in bytes {
            let after_cr = std::mem::take(&mut self.skip_newline);
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => {
                    self.skip_newline = byte == b'\r';
                    events.extend(self.end_line());
                }
                _ => self.line.push(byte),
            }
            if self.line.len() + self.data.as_ref().map_or(0, String::len) > MAX_EVENT_BYTES {
                return Err(EventTooLong);
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Option<String> {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        if line.is_empty() {
            return self.data.take();
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        if field == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.into()),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_events_comments_and_every_line_end() {
        let text = ": ping\n\ndata: {\"a\":1}\n\nevent: x\r\ndata: one\r\ndata:two\r\n\r\ndata: é\r\rid: 7\n\n";
        let events = SseParser::default().push(text.as_bytes()).unwrap();
        assert_eq!(events, ["{\"a\":1}", "one\ntwo", "é"]);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = SseParser::default();
        let chunk = vec![b'x'; 1 << 20];
        assert!((0..20).any(|_| parser.push(&chunk).is_err()));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(cuts in proptest::collection::vec(0usize..60, 0..8)) {
            let text = "data: hällo\r\n\r\n: c\ndata: a\ndata: b\n\ndata: [DONE]\n\n".as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut parser = SseParser::default();
            let events: Vec<String> =
                cuts.windows(2).flat_map(|pair| parser.push(&text[pair[0]..pair[1]]).unwrap()).collect();
            prop_assert_eq!(events, ["hällo", "a\nb", "[DONE]"]);
        }
    }
}
