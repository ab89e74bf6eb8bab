//! What is wrong with a text file, and where: the line as an editor counts it, the column, the text.
//!
//! Arrow's reader says that a piece of text cannot be read, in words. [`find`] goes through the piece again, a record
//! at a time and then a column at a time, until the reader refuses the smallest part: what is an error is the reader's
//! to say, where it is follows from how it was asked.

use std::io;

use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use super::records::{Chunk, lines};
use super::{Dialect, Parse, Types};
use crate::catalog::names::sql_name;
use crate::files::site::{of_cluster, refused};
use crate::{Error, ErrorKind};

/// So many letters of a value are shown.
const SHOWN_LETTERS: usize = 60;

#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    Utf16,
    /// Other than its name says.
    NotText {
        is: &'static str,
        extension: &'static str,
    },
    OpenQuote {
        line: u64,
    },
    LongRecord {
        line: u64,
        limit_bytes: usize,
    },
    Fields {
        line: u64,
        found: usize,
        expected: usize,
        separator: Option<char>,
    },
    /// The first line ends with a delimiter, this one does not.
    NoTrailing {
        line: u64,
    },
    /// Something follows the delimiter that should end the line.
    Trailing {
        line: u64,
        text: String,
    },
    NotUtf8 {
        line: u64,
        column: String,
    },
    Value {
        line: u64,
        column: String,
        data_type: DataType,
        text: String,
    },
    /// The reader's own words, for what cannot be told apart.
    Other {
        line: u64,
        reason: Option<ArrowError>,
    },
}

/// Where the reader stumbled in a chunk that it refused with `reason`, or read a number as infinity without one.
pub(super) fn find(chunk: &Chunk, parse: &Parse, reason: Option<ArrowError>) -> Fault {
    let mut rest = chunk.bytes.as_slice();
    let mut line = chunk.first_line;
    let mut is_header = chunk.is_first() && parse.has_header;
    while !rest.is_empty() {
        let blank = rest.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        line += lines(&rest[..blank]);
        rest = &rest[blank..];
        if rest.is_empty() {
            break;
        }
        let (fields, len) = split(rest, parse.dialect);
        let (record, after) = rest.split_at(len);
        if let Some(fault) = check(record, &fields, line, is_header, parse) {
            return fault;
        }
        is_header = false;
        line += lines(record);
        rest = after;
    }
    Fault::Other { line: chunk.first_line, reason }
}

fn check(record: &[u8], fields: &[Vec<u8>], line: u64, is_header: bool, parse: &Parse) -> Option<Fault> {
    let columns = parse.schema.fields();
    if fields.len() != columns.len() {
        let separator = match fields {
            [only] => [',', ';', '\t', '|'].into_iter().find(|mark| only.contains(&(*mark as u8))),
            _ => None,
        };
        let found = fields.len() - usize::from(parse.trailing().is_some() && fields.last().is_some_and(Vec::is_empty));
        let expected = columns.len() - usize::from(parse.trailing().is_some());
        return Some(match found == expected {
            true => Fault::NoTrailing { line },
            false => Fault::Fields { line, found, expected, separator },
        });
    }
    if let Some(text) = parse.trailing().and_then(|column| fields.get(column)).filter(|text| !text.is_empty()) {
        return Some(Fault::Trailing { line, text: String::from_utf8_lossy(text).into_owned() });
    }
    for (field, column) in fields.iter().zip(columns) {
        if std::str::from_utf8(field).is_err() {
            return Some(Fault::NotUtf8 { line, column: column.name().clone() });
        }
    }
    if is_header {
        return None;
    }
    let is_wrong = |column: &usize| is_infinite(columns[*column].data_type(), &fields[*column]);
    let is_read = parse.batches(record, &parse.columns, false).is_ok();
    if is_read && !parse.columns.iter().any(is_wrong) {
        return None;
    }
    let is_refused = |column: &&usize| is_wrong(column) || parse.batches(record, &[**column], false).is_err();
    let refused = parse.columns.iter().find(is_refused)?;
    Some(Fault::Value {
        line,
        column: columns[*refused].name().clone(),
        data_type: columns[*refused].data_type().clone(),
        text: String::from_utf8_lossy(&fields[*refused]).into_owned(),
    })
}

/// Whether a number is read as infinity that is none.
fn is_infinite(data_type: &DataType, field: &[u8]) -> bool {
    let text = std::str::from_utf8(field).unwrap_or_default().trim();
    let is_number = text.contains(|letter: char| letter.is_ascii_digit());
    is_number
        && match data_type {
            DataType::Float32 => text.parse::<f32>().is_ok_and(f32::is_infinite),
            DataType::Float64 => text.parse::<f64>().is_ok_and(f64::is_infinite),
            _ => false,
        }
}

/// The fields of the first record, and its length with its line end. Reads as `csv_core` does; not empty lines.
pub(super) fn split(bytes: &[u8], dialect: Dialect) -> (Vec<Vec<u8>>, usize) {
    let (mut fields, mut field, mut is_quoted) = (Vec::new(), Vec::new(), false);
    let mut is_start = true;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        if is_quoted {
            match bytes.get(at) {
                Some(next) if byte == dialect.quote && *next == dialect.quote => {
                    field.push(byte);
                    at += 1;
                }
                Some(next) if Some(byte) == dialect.escape => {
                    field.push(*next);
                    at += 1;
                }
                _ if byte == dialect.quote => is_quoted = false,
                _ => field.push(byte),
            }
            continue;
        }
        match byte {
            b'\n' | b'\r' => {
                at += usize::from(byte == b'\r' && bytes.get(at) == Some(&b'\n'));
                break;
            }
            byte if byte == dialect.delimiter => {
                fields.push(std::mem::take(&mut field));
                is_start = true;
                continue;
            }
            byte if byte == dialect.quote && is_start => is_quoted = true,
            byte => field.push(byte),
        }
        is_start = false;
    }
    fields.push(field);
    (fields, at)
}

impl Fault {
    /// The error for the file `name`.
    pub fn into_error(self, name: &str, types: Types, has_header: bool) -> Error {
        let data = |message: String| Error::new(ErrorKind::Data, message);
        match self {
            Self::Io(e) if e.raw_os_error().is_some() || of_cluster(&e).is_some() => {
                refused(onehop_io::Operation::Read, name, e)
            }
            Self::Io(e) => data(format!("cannot read '{name}': {e}"))
                .with_hint("the file is damaged, or compressed in another way than its name says"),
            Self::Utf16 => data(format!("'{name}' is UTF-16 text, and UTF-8 is read"))
                .with_hint("convert it first: iconv -f UTF-16 -t UTF-8"),
            Self::NotText { is, extension } => data(format!("'{name}' is {is}, and text is read"))
                .with_hint(format!("formats go by name: give it one that ends in .{extension}")),
            Self::OpenQuote { line } => data(format!("'{name}' line {line}: a quote is opened and never closed"))
                .with_hint("if quotes mean nothing in this file, COPY it with another (QUOTE ...)"),
            Self::LongRecord { line, limit_bytes } => data(format!(
                "'{name}' line {line}: a record that begins here is longer than {} MiB",
                limit_bytes >> 20
            ))
            .with_hint("is it text of this format, and is a quote not closed?"),
            Self::Fields { line, found, expected, separator } => {
                let fields = if found == 1 { "field" } else { "fields" };
                let error = data(format!("'{name}' line {line}: {found} {fields}, and {expected} are expected"));
                match separator {
                    Some('\t') => error.with_hint("are fields separated by tabs? COPY ... (DELIMITER '\\t')"),
                    Some(mark) => {
                        error.with_hint(format!("are fields separated by \"{mark}\"? COPY ... (DELIMITER '{mark}')"))
                    }
                    None => error,
                }
            }
            Self::NoTrailing { line } => {
                data(format!("'{name}' line {line}: no delimiter at the end, where the first line has one"))
            }
            Self::Trailing { line, text } => data(format!(
                "'{name}' line {line}: {} follows the delimiter that ends the first line",
                shortened(&text)
            )),
            Self::NotUtf8 { line, column } => {
                data(format!("'{name}' line {line}, column \"{column}\": the text is not UTF-8"))
                    .with_hint("convert the file first: iconv -f LATIN1 -t UTF-8")
            }
            Self::Value { line, column, data_type, text } => {
                let kind = sql_name(&data_type);
                let error = data(format!(
                    "'{name}' line {line}, column \"{column}\": cannot read {} as {kind}",
                    shortened(&text)
                ));
                match types {
                    Types::Declared if line == 1 && !has_header => {
                        error.with_hint("is the first line a header? COPY ... (HEADER true)")
                    }
                    Types::Declared => error,
                    Types::Guessed => error.with_hint(
                        "types are guessed from the first rows; CREATE TABLE with the right ones and COPY into it",
                    ),
                }
            }
            Self::Other { line, reason } => {
                let reason = reason.map_or_else(|| "it is no text of this kind".into(), |reason| reason.to_string());
                data(format!("cannot read '{name}' from line {line} on: {reason}"))
            }
        }
    }
}

fn shortened(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN_LETTERS).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(SHOWN_LETTERS).is_some() { "..." } else { "" };
    format!("\"{shown}{more}\"")
}
