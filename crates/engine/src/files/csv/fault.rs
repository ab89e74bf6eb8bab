//! Faults of a text file with their position: the line as in an editor, the column, the text.
//!
//! The message names the option that reads the file, if there is one.

use std::io;

use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use super::Types;
use crate::convert::Misfit;
use crate::files::over_memory;
use crate::files::site::{of_cluster, refused};
use crate::type_names::sql_name;
use crate::{Error, ErrorKind};

/// The maximum number of characters of a value in a message.
const SHOWN_LETTERS: usize = 60;

/// A fault of a text file.
#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    Utf16,
    /// A format other than the name says.
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
    /// The first line ends with a delimiter, but this one does not.
    NoTrailing {
        line: u64,
    },
    /// Text follows the delimiter that should end the line.
    Trailing {
        line: u64,
        text: String,
    },
    /// Text follows a closing quote.
    BrokenQuote {
        line: u64,
        column: String,
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
        misfit: Misfit,
    },
    /// The builder's own message, for a fault that cannot be classified.
    Other {
        line: u64,
        reason: ArrowError,
    },
}

impl Fault {
    /// Converts the fault to the error of the file `name`.
    pub fn into_error(self, name: &str, types: Types, has_header: bool) -> Error {
        let data = |message: String| Error::new(ErrorKind::Data, message);
        match self {
            Self::Io(e) if e.raw_os_error().is_some() || of_cluster(&e).is_some() => {
                refused(onehop_io::Operation::Read, name, e)
            }
            Self::Io(e) => over_memory(name, &e).unwrap_or_else(|| {
                data(format!("cannot read '{name}': {e}"))
                    .with_hint("the file is damaged, or compressed in another way than its name says")
            }),
            Self::Utf16 => data(format!("'{name}' is UTF-16 text, and UTF-8 is read"))
                .with_hint("convert it first: iconv -f UTF-16 -t UTF-8"),
            Self::NotText { is, extension } => data(format!("'{name}' is {is}, and text is read"))
                .with_hint(format!("formats go by name: give it one that ends in .{extension}")),
            Self::OpenQuote { line } => data(format!("'{name}' line {line}: a quote is opened and never closed"))
                .with_hint(option(name, types, "quote = ''", "reads it where quotes mean nothing")),
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
                    None if found < expected => {
                        error.with_hint(option(name, types, "null_padding = true", "reads missing fields as NULL"))
                    }
                    None => error.with_hint("a field that holds the delimiter has to be in quotes"),
                }
            }
            Self::BrokenQuote { line, column } => {
                data(format!("'{name}' line {line}, column \"{column}\": text follows the quote that closes the value"))
                    .with_hint(format!(
                        "are quotes escaped otherwise, or do they mean nothing? {}",
                        option(name, types, "escape = '\\'", "or quote = '' reads it")
                    ))
            }
            Self::NoTrailing { line } => {
                data(format!("'{name}' line {line}: no delimiter at the end, where the first line has one"))
            }
            Self::Trailing { line, text } => data(format!(
                "'{name}' line {line}: {} follows the delimiter that ends the first line",
                shortened(&text)
            )),
            Self::NotUtf8 { line, column } => data(format!(
                "'{name}' line {line}, column \"{column}\": the text is not UTF-8"
            ))
            .with_hint(option(name, types, "encoding = 'latin1'", "reads it where it is ISO 8859-1")),
            Self::Value { line, column, data_type, text, misfit } => {
                let kind = sql_name(&data_type);
                let text = shortened(&text);
                let error = data(match misfit {
                    Misfit::Form => {
                        format!("'{name}' line {line}, column \"{column}\": cannot read {text} as {kind}")
                    }
                    Misfit::Range => {
                        format!("'{name}' line {line}, column \"{column}\": {text} is out of range for {kind}")
                    }
                });
                match types {
                    Types::Declared if line == 1 && !has_header => {
                        error.with_hint("is the first line a header? COPY ... (HEADER true)")
                    }
                    Types::Declared => error,
                    Types::Guessed => error.with_hint(format!(
                        "the type is that of the first rows; {}",
                        option(name, types, "sample_size = -1", "looks at all rows, all_varchar = true reads text")
                    )),
                }
            }
            Self::Other { line, reason } => data(format!("cannot read '{name}' from line {line} on: {reason}")),
        }
    }
}

/// Returns the statement with the option that would read a file.
fn option(name: &str, types: Types, option: &str, what: &str) -> String {
    match types {
        Types::Guessed => format!("read_csv('{name}', {option}) {what}"),
        Types::Declared => format!("COPY ... ({}) {what}", option.replace(" = ", " ").to_uppercase()),
    }
}

fn shortened(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN_LETTERS).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(SHOWN_LETTERS).is_some() { "..." } else { "" };
    format!("\"{shown}{more}\"")
}
