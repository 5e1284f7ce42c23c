//! The members of a small JSON object, for reducers that want no dependency. Use `serde_json` for
//! anything more.

use std::borrow::Cow;

/// The text of a member of a JSON object, as it is written: `field(b"{\"n\": 1}", "n")` is `1`.
/// `None` if there is no such member, or if this is no object. The last one of a name counts.
pub fn field<'a>(object: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut found = None;
    walk(object, |quoted, value| {
        let inner = &quoted[1..quoted.len() - 1];
        if inner == name.as_bytes() || (inner.contains(&b'\\') && text(quoted)? == name) {
            found = Some(value);
        }
        Some(())
    })?;
    found
}

/// All members of a JSON object, with their values as they are written. `None` if this is no
/// object.
pub fn members(object: &[u8]) -> Option<Vec<(Cow<'_, str>, &[u8])>> {
    let mut found = Vec::new();
    walk(object, |quoted, value| {
        found.push((text(quoted)?, value));
        Some(())
    })?;
    Some(found)
}

/// A member that is a string.
pub fn string<'a>(object: &'a [u8], name: &str) -> Option<Cow<'a, str>> {
    text(field(object, name)?)
}

/// A member that is a whole number.
pub fn integer(object: &[u8], name: &str) -> Option<i64> {
    number(field(object, name)?)
}

/// The whole number that a JSON text is.
pub fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Append a string in JSON.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for each in text.chars() {
        match each {
            '"' => out.extend(b"\\\""),
            '\\' => out.extend(b"\\\\"),
            '\n' => out.extend(b"\\n"),
            '\r' => out.extend(b"\\r"),
            '\t' => out.extend(b"\\t"),
            control if control < ' ' => out.extend(format!("\\u{:04x}", control as u32).as_bytes()),
            other => out.extend(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

/// The string that a JSON text in quotes is.
pub fn text(quoted: &[u8]) -> Option<Cow<'_, str>> {
    let inner = quoted.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let inner = std::str::from_utf8(inner).ok()?;
    if !inner.as_bytes().contains(&b'\\') {
        return Some(Cow::Borrowed(inner));
    }
    let mut out = String::new();
    let mut rest = inner.chars();
    while let Some(each) = rest.next() {
        if each != '\\' {
            out.push(each);
            continue;
        }
        out.push(match rest.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => unicode(&mut rest)?,
            other => other,
        });
    }
    Some(Cow::Owned(out))
}

/// Call `each` with the name in its quotes and the value of every member.
fn walk<'a>(
    object: &'a [u8],
    mut each: impl FnMut(&'a [u8], &'a [u8]) -> Option<()>,
) -> Option<()> {
    let mut at = space(object, 0);
    if *object.get(at)? != b'{' {
        return None;
    }
    at = space(object, at + 1);
    if object.get(at) == Some(&b'}') {
        return Some(());
    }
    loop {
        if *object.get(at)? != b'"' {
            return None;
        }
        let end = skip(object, at)?;
        let name = &object[at..end];
        at = space(object, end);
        if *object.get(at)? != b':' {
            return None;
        }
        at = space(object, at + 1);
        let end = skip(object, at)?;
        each(name, &object[at..end])?;
        at = space(object, end);
        match object.get(at)? {
            b',' => at = space(object, at + 1),
            b'}' => return Some(()),
            _ => return None,
        }
    }
}

fn unicode(rest: &mut std::str::Chars<'_>) -> Option<char> {
    let high = four(rest)?;
    if !(0xd800..0xdc00).contains(&high) {
        return char::from_u32(high);
    }
    if (rest.next()?, rest.next()?) != ('\\', 'u') {
        return None;
    }
    let low = four(rest)?.checked_sub(0xdc00)?;
    char::from_u32(0x10000 + ((high - 0xd800) << 10) + low)
}

fn four(rest: &mut std::str::Chars<'_>) -> Option<u32> {
    let mut value = 0;
    for _ in 0..4 {
        value = value * 16 + rest.next()?.to_digit(16)?;
    }
    Some(value)
}

fn space(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// The end of the value that begins here.
fn skip(bytes: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin;
    let mut depth = 0;
    loop {
        match *bytes.get(at)? {
            b'"' => {
                at += 1;
                loop {
                    at += bytes.get(at..)?.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
                    if bytes[at] == b'"' {
                        break;
                    }
                    at += 2;
                }
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return None,
            b'}' | b']' => depth -= 1,
            b',' | b':' if depth == 0 => return None,
            _ => {
                while depth == 0
                    && !matches!(
                        bytes.get(at + 1),
                        None | Some(b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t')
                    )
                {
                    at += 1;
                }
            }
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &[u8] =
        br#" { "item" : "a \"pen\" \u00e9\ud83d\ude00\n", "deep": {"item": [1, "}"]}, "count":-3 , "count": 12}"#;

    #[test]
    fn members_are_found() {
        assert_eq!(string(OBJECT, "item").unwrap(), "a \"pen\" \u{e9}\u{1f600}\n");
        assert_eq!(integer(OBJECT, "count"), Some(12));
        assert_eq!(field(OBJECT, "deep"), Some(&br#"{"item": [1, "}"]}"#[..]));
        assert_eq!(field(OBJECT, "none"), None);
        assert_eq!(integer(OBJECT, "item"), None);
    }

    #[test]
    fn other_bytes_are_nothing() {
        assert_eq!(members(b"{}"), Some(vec![]));
        assert_eq!(members(b"{\"a\" : 1}").unwrap(), [(Cow::from("a"), &b"1"[..])]);
        for bad in [
            "",
            "[]",
            "{",
            "{}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":"x"#,
            r#"{"a":1"#,
            r#"{"a":"\ud800"}"#,
            "{\"a\\",
        ] {
            assert_eq!(string(bad.as_bytes(), "a"), None, "{bad}");
        }
    }

    #[test]
    fn strings_are_written_as_they_are_read() {
        let mut out = Vec::new();
        write_string(&mut out, "a \"b\" \\ \u{1} \n\t\r é😀");
        assert_eq!(text(&out).unwrap(), "a \"b\" \\ \u{1} \n\t\r é😀");
    }
}
