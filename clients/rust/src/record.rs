//! Records and pages: what an append sends, and what a read returns.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{Error, ErrorKind};
use crate::http::{JSON_TYPE, RECORDS_TYPE};
use crate::text::{format_offset, from_base64, parse_offset, to_base64};

/// A record of a JSON stream, or a piece of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The stream's name.
    pub stream: String,
    /// The exact bytes.
    pub data: Bytes,
    /// The position behind the record, from which another reader goes on; empty where only the end of the page is known.
    pub offset: String,
    /// The key, of readers of whole records.
    pub key: Option<Bytes>,
    /// The headers, of readers of whole records.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// The time in milliseconds since 1970, of readers of whole records.
    pub timestamp: Option<i64>,
}

impl Record {
    /// Decode the JSON.
    ///
    /// # Errors
    /// The record is not JSON of this type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let wrong = |error| {
            Error::new(ErrorKind::Invalid, format!("the record at {} of '{}': {error}", self.offset, self.stream))
        };
        serde_json::from_slice(&self.data).map_err(wrong)
    }

    /// The record as text; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.data).into_owned()
    }
}

/// One response to a read, or one event of a tail.
#[derive(Clone, Debug)]
pub struct Page {
    /// The stream's name.
    pub stream: String,
    /// Where the page begins.
    pub begin: String,
    /// Where the page ends, and the next begins.
    pub offset: String,
    /// The content type.
    pub content_type: String,
    /// The exact bytes.
    pub body: Bytes,
    /// The page reached the tail.
    pub up_to_date: bool,
    /// The page reached the end of a closed stream.
    pub closed: bool,
    pub(crate) json_values: bool,
}

impl Page {
    /// Each record with the offset behind it. A page of a stream that is not JSON is one record.
    ///
    /// # Errors
    /// The body is not an array, where it has to be one.
    pub fn records(&self) -> Result<Vec<Record>, Error> {
        if !is_array(&self.content_type) {
            let record = self.record(self.body.clone(), self.offset.clone());
            return Ok(if self.body.is_empty() { Vec::new() } else { vec![record] });
        }
        let raws = split_array(&self.body).ok_or_else(|| self.damaged())?;
        let end = parse_offset(&self.offset);
        if self.content_type == RECORDS_TYPE {
            return raws.into_iter().map(|raw| self.whole(&raw, end.map_or(0, |(_, byte)| byte))).collect();
        }
        let Some((last, bytes)) = end else {
            let count = raws.len();
            let offset = |at: usize| if at + 1 == count { self.offset.clone() } else { String::new() };
            return Ok(raws.into_iter().enumerate().map(|(at, raw)| self.record(raw, offset(at))).collect());
        };
        let mut number = last.saturating_sub(raws.len() as u64);
        let mut byte = bytes.saturating_sub(raws.iter().map(|raw| raw.len() as u64 + 1).sum());
        let each = |raw: Bytes| {
            number += 1;
            byte += raw.len() as u64 + 1;
            self.record(raw, format_offset(number, byte))
        };
        Ok(raws.into_iter().map(each).collect())
    }

    fn record(&self, data: Bytes, offset: String) -> Record {
        Record { stream: self.stream.clone(), data, offset, key: None, headers: Vec::new(), timestamp: None }
    }

    /// A whole record. The number of the record alone places a reader between them.
    fn whole(&self, raw: &Bytes, end: u64) -> Result<Record, Error> {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(raw).map_err(|_| self.damaged())?;
        let value = |name: &str| {
            fields.get(name).and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok()).unwrap_or(Value::Null)
        };
        let text = fields.get("value").map_or("null", |raw| raw.get());
        let data = if self.json_values {
            raw.slice_ref(text.as_bytes())
        } else {
            bytes_of(&value("value")).unwrap_or_default()
        };
        let number = value("offset").as_u64().ok_or_else(|| self.damaged())?;
        let mut record = self.record(data, format_offset(number + 1, end));
        record.key = bytes_of(&value("key"));
        record.timestamp = value("timestamp").as_i64();
        for pair in value("headers").as_array().into_iter().flatten() {
            record.headers.push((pair[0].as_str().unwrap_or_default().to_owned(), bytes_of(&pair[1])));
        }
        Ok(record)
    }

    fn damaged(&self) -> Error {
        Error::new(
            ErrorKind::AnswerDamaged,
            format!("read '{}': the response is not a JSON array of records", self.stream),
        )
    }
}

/// Report whether pages of this type are JSON arrays: of values, or of whole records.
pub(crate) fn is_array(content_type: &str) -> bool {
    content_type == RECORDS_TYPE || is_json(content_type)
}

pub(crate) fn is_json(content_type: &str) -> bool {
    content_type.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case(JSON_TYPE)
}

/// The exact bytes of each element of a JSON array; none for another body.
pub(crate) fn split_array(body: &Bytes) -> Option<Vec<Bytes>> {
    if body.is_empty() {
        return Some(Vec::new());
    }
    let raws: Vec<&RawValue> = serde_json::from_slice(body).ok()?;
    Some(raws.into_iter().map(|raw| body.slice_ref(raw.get().as_bytes())).collect())
}

fn bytes_of(shown: &Value) -> Option<Bytes> {
    match shown {
        Value::String(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
        Value::Object(coded) => from_base64(coded.get("$base64")?.as_str()?).map(Bytes::from),
        _ => None,
    }
}

/// A record to append, with a key, headers and a time of its own besides its value.
#[derive(Clone, Debug)]
pub struct NewRecord {
    value: String,
    key: Option<String>,
    headers: Vec<String>,
    timestamp: Option<i64>,
}

impl NewRecord {
    /// A record of a JSON stream.
    ///
    /// # Errors
    /// The value is none of JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        Ok(Self { value: encode(value)?, key: None, headers: Vec::new(), timestamp: None })
    }

    /// A record of another stream.
    pub fn bytes(value: impl AsRef<[u8]>) -> Self {
        Self { value: shown(value.as_ref()), key: None, headers: Vec::new(), timestamp: None }
    }

    /// Set the key.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.key = Some(shown(key.as_ref()));
        self
    }

    /// Add a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push(format!("[{},{}]", Value::from(name), shown(value.as_ref())));
        self
    }

    /// Set the time, in milliseconds since 1970. Without it the record has the server's.
    #[must_use]
    pub fn timestamp(mut self, milliseconds: i64) -> Self {
        self.timestamp = Some(milliseconds);
        self
    }

    /// The record as `application/vnd.polynya.records+json` has it.
    pub(crate) fn row(&self) -> String {
        let mut row = format!("{{\"value\":{}", self.value);
        if let Some(key) = &self.key {
            row.push_str(&format!(",\"key\":{key}"));
        }
        if !self.headers.is_empty() {
            row.push_str(&format!(",\"headers\":[{}]", self.headers.join(",")));
        }
        if let Some(timestamp) = self.timestamp {
            row.push_str(&format!(",\"timestamp\":{timestamp}"));
        }
        row.push('}');
        row
    }
}

fn shown(data: &[u8]) -> String {
    match std::str::from_utf8(data) {
        Ok(text) => Value::from(text).to_string(),
        Err(_) => format!("{{\"$base64\":\"{}\"}}", to_base64(data)),
    }
}

/// Encode one record of a JSON stream. serde_json writes NaN and infinities as null.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("the record is no JSON value: {error}")))
}

/// Encode the body of one append of values.
pub(crate) fn encode_all<T: Serialize>(values: &[T]) -> Result<Bytes, Error> {
    if values.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "an append needs at least one record"));
    }
    let texts = values.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    Ok(Bytes::from(format!("[{}]", texts.join(","))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(content_type: &str, body: &'static str, offset: &str) -> Page {
        Page {
            stream: "s".into(),
            begin: "-1".into(),
            offset: offset.into(),
            content_type: content_type.into(),
            body: Bytes::from_static(body.as_bytes()),
            up_to_date: true,
            closed: false,
            json_values: true,
        }
    }

    #[test]
    fn each_record_knows_the_offset_behind_it_and_its_exact_bytes() {
        let body = r#"[ {"big": 12345678901234567890} ,1.0,["a,]\"b"],"\ud800"]"#;
        let records = page("application/json; charset=utf-8", body, &format_offset(4, 100)).records().unwrap();
        let found: Vec<_> = records.iter().map(|each| (each.text(), each.offset.clone())).collect();
        assert_eq!(found[0], (r#"{"big": 12345678901234567890}"#.to_owned(), format_offset(1, 76)));
        assert_eq!(found[1], ("1.0".to_owned(), format_offset(2, 80)));
        assert_eq!(found[3].1, format_offset(4, 100));
        assert_eq!(records[0].json::<Value>().unwrap()["big"].to_string(), "12345678901234567890");
        assert!(page("application/json", "{}", "x").records().is_err());
    }

    #[test]
    fn whole_records_have_keys_of_any_bytes() {
        let body = r#"[{"offset":4,"timestamp":17,"append_time":1,"key":{"$base64":"AP8="},"headers":[["x",null],["y","z"]],"value":{"n": "}],"}}]"#;
        let record = page(RECORDS_TYPE, body, &format_offset(9, 70)).records().unwrap().remove(0);
        assert_eq!(
            (record.text().as_str(), record.offset.as_str()),
            (r#"{"n": "}],"}"#, format_offset(5, 70).as_str())
        );
        assert_eq!((record.key, record.timestamp), (Some(Bytes::from_static(&[0, 255])), Some(17)));
        assert_eq!(record.headers, [("x".to_owned(), None), ("y".to_owned(), Some(Bytes::from_static(b"z")))]);
        let new = NewRecord::json(&1).unwrap().key([0, 255]).header("y", "z\"").timestamp(17).row();
        assert_eq!(new, r#"{"value":1,"key":{"$base64":"AP8="},"headers":[["y","z\""]],"timestamp":17}"#);
    }
}
