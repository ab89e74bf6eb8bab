//! A JSON value as normalized text: without blanks, numbers with their original digits, strings
//! with only the necessary escapes.

use jiter::Peek;

use super::fault::Problem;
use super::parser::{Found, Json};
use super::shape::MAX_DEPTH;

/// Writes the next value.
pub(super) fn write(json: &mut Json<'_>, peek: Peek, out: &mut String, depth: usize) -> Result<(), Problem> {
    match peek {
        Peek::Null => {
            json.known_null()?;
            out.push_str("null");
        }
        Peek::True | Peek::False => {
            let value = json.known_bool(peek)?;
            out.push_str(if value { "true" } else { "false" });
        }
        Peek::String => write_string(json.known_str()?, out),
        Peek::Array | Peek::Object if depth >= MAX_DEPTH => return Err(Problem::Deep { at: json.current_index() }),
        Peek::Array => write_array(json, out, depth + 1)?,
        Peek::Object => write_object(json, out, depth + 1)?,
        number => out.push_str(json.known_number(number)?),
    }
    Ok(())
}

fn write_array(json: &mut Json<'_>, out: &mut String, depth: usize) -> Result<(), Problem> {
    out.push('[');
    let mut next = json.known_array()?;
    while let Some(peek) = next {
        write(json, peek, out, depth)?;
        next = json.array_step()?;
        if next.is_some() {
            out.push(',');
        }
    }
    out.push(']');
    Ok(())
}

fn write_object(json: &mut Json<'_>, out: &mut String, depth: usize) -> Result<(), Problem> {
    out.push('{');
    let mut next = json.known_object(None)?;
    while let Some(key) = next {
        if let Found::Key(key) = key {
            write_string(key, out);
        }
        out.push(':');
        let peek = json.peek()?;
        write(json, peek, out, depth)?;
        next = json.next_key(None)?;
        if next.is_some() {
            out.push(',');
        }
    }
    out.push('}');
    Ok(())
}

/// Writes a string in quotes.
pub(super) fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1F)) {
        let (plain, behind) = rest.split_at(at);
        out.push_str(plain);
        let mut behind = behind.chars();
        match behind.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\u{8}') => out.push_str("\\b"),
            Some('\u{c}') => out.push_str("\\f"),
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            control => out.push_str(&format!("\\u{:04x}", control.map_or(0, u32::from))),
        }
        rest = behind.as_str();
    }
    out.push_str(rest);
    out.push('"');
}
