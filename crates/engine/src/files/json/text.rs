//! A JSON value as text again: without blanks, numbers with the digits that they have, strings with no escapes but those
//! that they need.

use jiter::{Jiter, Peek};

use super::fault::Problem;
use super::shape::MAX_DEPTH;

/// Writes the next value.
pub(super) fn write(json: &mut Jiter<'_>, peek: Peek, out: &mut Vec<u8>, depth: usize) -> Result<(), Problem> {
    match peek {
        Peek::Null => {
            json.known_null()?;
            out.extend_from_slice(b"null");
        }
        Peek::True | Peek::False => {
            let value = json.known_bool(peek)?;
            out.extend_from_slice(if value { b"true" } else { b"false" });
        }
        Peek::String => write_string(json.known_str()?, out),
        Peek::Array | Peek::Object if depth >= MAX_DEPTH => return Err(Problem::Deep { at: json.current_index() }),
        Peek::Array => write_array(json, out, depth + 1)?,
        Peek::Object => write_object(json, out, depth + 1)?,
        number => out.extend_from_slice(json.known_number_bytes(number)?),
    }
    Ok(())
}

fn write_array(json: &mut Jiter<'_>, out: &mut Vec<u8>, depth: usize) -> Result<(), Problem> {
    out.push(b'[');
    let mut next = json.known_array()?;
    while let Some(peek) = next {
        write(json, peek, out, depth)?;
        next = json.array_step()?;
        if next.is_some() {
            out.push(b',');
        }
    }
    out.push(b']');
    Ok(())
}

fn write_object(json: &mut Jiter<'_>, out: &mut Vec<u8>, depth: usize) -> Result<(), Problem> {
    out.push(b'{');
    let mut has_key = json.known_object()?.map(|key| write_string(key, out)).is_some();
    while has_key {
        out.push(b':');
        let peek = json.peek()?;
        write(json, peek, out, depth)?;
        has_key = json
            .next_key()?
            .map(|key| {
                out.push(b',');
                write_string(key, out);
            })
            .is_some();
    }
    out.push(b'}');
    Ok(())
}

/// Writes a string in quotes.
pub(super) fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1F)) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0C => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}
