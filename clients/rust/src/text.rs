//! Small codecs: percent-encoding, base64, offsets, and random ids.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Percent-encode what a path segment or a query value cannot have.
pub(crate) fn quoted(text: &str, keep: &str) -> String {
    let mut found = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || keep.as_bytes().contains(&byte) {
            found.push(char::from(byte));
        } else {
            found.push_str(&format!("%{byte:02X}"));
        }
    }
    found
}

/// A query, with its question mark; empty without parameters.
pub(crate) fn query(parameters: &[(String, String)]) -> String {
    let pairs: Vec<String> =
        parameters.iter().map(|(name, value)| format!("{name}={}", quoted(value, "/@*"))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// Record number and byte of an offset; none for the start, the tail, and offsets of other servers.
pub(crate) fn parse_offset(offset: &str) -> Option<(u64, u64)> {
    let (record, byte) = offset.split_once('_')?;
    let is_number = |text: &str| text.len() == 16 && text.bytes().all(|each| each.is_ascii_digit());
    if !is_number(record) || !is_number(byte) {
        return None;
    }
    Some((record.parse().ok()?, byte.parse().ok()?))
}

pub(crate) fn format_offset(record: u64, byte: u64) -> String {
    format!("{record:016}_{byte:016}")
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn to_base64(data: &[u8]) -> String {
    let mut found = String::with_capacity(data.len().div_ceil(3) * 4);
    for piece in data.chunks(3) {
        let bits = piece.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - piece.len()));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            found.push(if at <= piece.len() { char::from(letter) } else { '=' });
        }
    }
    found
}

/// Decode standard base64 with its padding; none for other text.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if text.len() % 4 != 0 {
        return None;
    }
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    if padding > 2 {
        return None;
    }
    let mut found = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for byte in &text[..text.len() - padding] {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            found.push((bits >> count & 0xff) as u8);
        }
    }
    Some(found)
}

/// A random number, from the seeds that the standard library draws for its maps.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random number from 0 to 1.
pub(crate) fn luck() -> f64 {
    (random() >> 11) as f64 / (1u64 << 53) as f64
}

/// A unique id.
pub(crate) fn drawn_id() -> String {
    format!("{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_inverse_of_itself() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(to_base64(plain.as_bytes()), coded);
            assert_eq!(from_base64(coded).as_deref(), Some(plain.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_base64(&to_base64(&all)), Some(all));
        for wrong in ["Z", "Zg=", "Z===", "Zg==Zg==", "Z\u{e4}=="] {
            assert_eq!(from_base64(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_are_percent_encoded() {
        assert_eq!(quoted("a b/ä?", "/"), "a%20b/%C3%A4%3F");
        let parameters = [("match".to_owned(), "runs/*".to_owned()), ("a".to_owned(), "1&2".to_owned())];
        assert_eq!(query(&parameters), "?match=runs/*&a=1%262");
        assert_eq!(query(&[]), "");
    }

    #[test]
    fn offsets_have_two_numbers() {
        assert_eq!(parse_offset("0000000000000002_0000000000000014"), Some((2, 14)));
        assert_eq!(format_offset(2, 14), "0000000000000002_0000000000000014");
        for other in ["-1", "now", "2_14", "000000000000000x_0000000000000014"] {
            assert_eq!(parse_offset(other), None);
        }
    }

    #[test]
    fn ids_differ() {
        assert_ne!(drawn_id(), drawn_id());
        assert!((0.0..1.0).contains(&luck()));
    }
}
