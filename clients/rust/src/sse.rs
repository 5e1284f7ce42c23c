//! An incremental parser of server-sent events (WHATWG HTML 9.2.6).

/// One event. `id` is the last id seen, as in browsers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub name: String,
    pub data: String,
    pub id: String,
}

const EVENT_BYTES_MAX: usize = 64 << 20; // an event holds one append or one page

/// Parses a body that comes in pieces. An event that the end cuts off is dropped.
#[derive(Default)]
pub(crate) struct EventParser {
    line: Vec<u8>,
    after_cr: bool,
    name: String,
    id: String,
    data: Option<String>,
}

impl EventParser {
    /// The events that this piece completes. None when one is too large.
    pub fn feed(&mut self, piece: &[u8]) -> Option<Vec<Event>> {
        let mut found = Vec::new();
        for byte in piece {
            let was_cr = std::mem::replace(&mut self.after_cr, *byte == b'\r');
            if was_cr && *byte == b'\n' {
                continue;
            }
            if *byte != b'\n' && *byte != b'\r' {
                self.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            found.extend(self.take(&String::from_utf8_lossy(&line)));
        }
        let size = self.line.len() + self.data.as_ref().map_or(0, String::len);
        (size <= EVENT_BYTES_MAX).then_some(found)
    }

    fn take(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            let data = self.data.take()?;
            let name = if name.is_empty() { "message".to_owned() } else { name };
            return Some(Event { name, data, id: self.id.clone() });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                None => self.data = Some(value.to_owned()),
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
            },
            "event" => self.name = value.to_owned(),
            "id" if !value.contains('\0') => self.id = value.to_owned(),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_do_not_depend_on_how_their_bytes_are_cut() {
        let text =
            ":c\r\nid:1\r\nevent: data\r\ndata:[1,\rdata:\"ä🦭\"]\n\ndata\n\nid:2\ndata: x\n\ndata:cut".as_bytes();
        let event = |name: &str, data: &str, id: &str| Event { name: name.into(), data: data.into(), id: id.into() };
        let expected = [event("data", "[1,\n\"ä🦭\"]", "1"), event("message", "", "1"), event("message", "x", "2")];
        for cut in 0..text.len() {
            let mut parser = EventParser::default();
            let mut found = parser.feed(&text[..cut]).unwrap();
            found.extend(parser.feed(&text[cut..]).unwrap());
            assert_eq!(found, expected, "cut at {cut}");
        }
    }
}
