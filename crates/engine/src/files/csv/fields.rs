//! Boundaries of fields in text.
//!
//! A plain field ends at the next delimiter or line end. A quoted field is blanks, a quote, text in
//! which quotes are doubled or escaped, a quote, blanks. Anything else after the closing quote
//! makes the field [`Ends::Broken`], never another value. A carriage return before a line feed
//! belongs to the line end. Lines that begin with the comment character are skipped. Empty lines
//! are skipped unless records have a single field, where they are NULL.

use super::Dialect;

/// A field in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub start: usize,
    pub end: usize,
    pub form: FieldForm,
    /// The offset after the delimiter or the line end.
    pub next: usize,
    pub ends: Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldForm {
    Plain,
    Quoted,
    /// Quoted, with escaped bytes.
    Escaped,
}

/// The end of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Field,
    Record,
    /// Text after a closing quote, or a quote that is not closed.
    Broken,
}

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Marks bytes of a word that equal the pattern's. Only the first mark is exact.
#[inline]
fn equal(word: u64, pattern: u64) -> u64 {
    let differ = word ^ pattern;
    differ.wrapping_sub(LOW) & !differ & HIGH
}

/// Returns the offset of the first byte that is one of two, or the end.
#[inline]
fn find(bytes: &[u8], mut at: usize, one: u8, other: u8) -> usize {
    let (one_word, other_word) = (LOW * u64::from(one), LOW * u64::from(other));
    while let Some(chunk) = bytes.get(at..at + 8).and_then(|chunk| <[u8; 8]>::try_from(chunk).ok()) {
        let word = u64::from_le_bytes(chunk);
        let found = equal(word, one_word) | equal(word, other_word);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    rest.iter().position(|byte| *byte == one || *byte == other).map_or(bytes.len(), |found| at + found)
}

/// Returns the field that begins at `start`.
#[inline]
pub(super) fn field(bytes: &[u8], start: usize, dialect: &Dialect) -> Field {
    if let Some(quote) = dialect.quote {
        let blanks = bytes[start..].iter().take_while(|byte| **byte == b' ' && dialect.delimiter != b' ').count();
        if bytes.get(start + blanks) == Some(&quote) {
            return quoted(bytes, start + blanks + 1, quote, dialect);
        }
    }
    let end = find(bytes, start, dialect.delimiter, dialect.line_end);
    let (ends, next) = match bytes.get(end) {
        Some(byte) if *byte == dialect.delimiter => (Ends::Field, end + 1),
        Some(_) => (Ends::Record, end + 1),
        None => (Ends::Record, end),
    };
    let is_return = ends == Ends::Record && end > start && bytes[end - 1] == b'\r' && dialect.line_end == b'\n';
    Field { start, end: end - usize::from(is_return), form: FieldForm::Plain, next, ends }
}

#[cold]
fn broken(start: usize, end: usize) -> Field {
    Field { start, end, form: FieldForm::Quoted, next: end, ends: Ends::Broken }
}

fn quoted(bytes: &[u8], start: usize, quote: u8, dialect: &Dialect) -> Field {
    let (mut at, mut form) = (start, FieldForm::Quoted);
    let escape = dialect.escape.unwrap_or(quote);
    let end = loop {
        let found = match escape == quote {
            true => memchr::memchr(quote, &bytes[at..]),
            false => memchr::memchr2(quote, escape, &bytes[at..]),
        };
        let Some(found) = found.map(|found| at + found) else { return broken(start, bytes.len()) };
        let is_doubled = bytes.get(found + 1) == Some(&quote);
        if bytes[found] != quote || is_doubled {
            form = FieldForm::Escaped;
            at = (found + 2).min(bytes.len());
            continue;
        }
        break found;
    };
    let blanks = bytes[end + 1..].iter().take_while(|byte| **byte == b' ' && dialect.delimiter != b' ').count();
    let after = end + 1 + blanks;
    let (ends, next) = match (bytes.get(after), bytes.get(after + 1)) {
        (None, _) => (Ends::Record, after),
        (Some(byte), _) if *byte == dialect.delimiter => (Ends::Field, after + 1),
        (Some(byte), _) if *byte == dialect.line_end => (Ends::Record, after + 1),
        (Some(b'\r'), Some(b'\n')) if dialect.line_end == b'\n' => (Ends::Record, after + 2),
        (Some(b'\r'), None) if dialect.line_end == b'\n' => (Ends::Record, after + 1),
        _ => return broken(start, after),
    };
    Field { start, end, form, next, ends }
}

/// Appends a field's text without its escape characters.
pub(super) fn unescape(text: &[u8], dialect: &Dialect, into: &mut Vec<u8>) {
    let quote = dialect.quote.unwrap_or(b'"');
    let escape = dialect.escape.unwrap_or(quote);
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let next = text.get(at + 1);
        if (byte == quote && next == Some(&quote)) || (byte == escape && next.is_some()) {
            into.extend(next);
            at += 2;
            continue;
        }
        into.push(byte);
        at += 1;
    }
}

/// Returns a field's value.
pub(super) fn value<'a>(bytes: &'a [u8], field: &Field, dialect: &Dialect) -> std::borrow::Cow<'a, [u8]> {
    let text = &bytes[field.start..field.end];
    match field.form {
        FieldForm::Escaped => {
            let mut value = Vec::with_capacity(text.len());
            unescape(text, dialect, &mut value);
            value.into()
        }
        _ => text.into(),
    }
}

/// Returns whether a comment begins at `at`.
#[inline]
pub(super) fn is_comment(bytes: &[u8], at: usize, dialect: &Dialect) -> bool {
    dialect.comment.is_some() && bytes.get(at).copied() == dialect.comment
}

/// Returns the offset after the line that contains `at`.
pub(super) fn after_line(bytes: &[u8], at: usize, line_end: u8) -> usize {
    memchr::memchr(line_end, &bytes[at..]).map_or(bytes.len(), |found| at + found + 1)
}

/// Returns the length of an empty line that begins at `at`.
#[inline]
pub(super) fn empty_line(bytes: &[u8], at: usize, line_end: u8) -> Option<usize> {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(byte), _) if *byte == line_end => Some(1),
        (Some(b'\r'), Some(b'\n')) if line_end == b'\n' => Some(2),
        _ => None,
    }
}

/// Returns the start of the next record. Comments are skipped, and so are empty lines unless they
/// are records.
#[inline]
pub(super) fn next_record(bytes: &[u8], mut at: usize, dialect: &Dialect, has_single_field: bool) -> usize {
    while at < bytes.len() {
        if is_comment(bytes, at, dialect) {
            at = after_line(bytes, at, dialect.line_end);
            continue;
        }
        match empty_line(bytes, at, dialect.line_end).filter(|_| !has_single_field) {
            Some(len) => at += len,
            None => break,
        }
    }
    at
}
