//! Faults of a JSON file with their position: the line and column as in an editor, the key, the
//! text.

use std::io;

use jiter::{JiterError, JiterErrorType, JsonErrorType};

use super::records::Position;
use crate::files::over_memory;
use crate::files::site::{of_cluster, refused};
use crate::{Error, ErrorKind};

/// The maximum number of characters of a value in a message.
const SHOWN_LETTERS: usize = 60;

/// A fault within a chunk. `at` is its offset in the chunk.
#[derive(Debug)]
pub(super) enum Problem {
    /// The text is not JSON.
    Syntax(JiterError),
    /// A value does not have its column's type.
    Value { at: usize, path: Vec<String>, text: String, type_name: String },
    /// A key that does not occur in the sample.
    UnknownKey { at: usize, path: Vec<String> },
    /// Brackets are nested too deeply.
    Deep { at: usize },
}

impl From<JiterError> for Problem {
    fn from(e: JiterError) -> Self {
        match e.error_type {
            JiterErrorType::JsonError(JsonErrorType::RecursionLimitExceeded) => Self::Deep { at: e.index },
            _ => Self::Syntax(e),
        }
    }
}

impl Problem {
    /// Adds a key to the path of the problem.
    pub fn below(mut self, key: &str) -> Self {
        if let Self::Value { path, .. } | Self::UnknownKey { path, .. } = &mut self {
            path.insert(0, key.to_string());
        }
        self
    }

    /// Converts the problem of a chunk that begins at `position` to a fault of its file.
    pub fn within(self, bytes: &[u8], position: Position) -> Fault {
        let place = |at: usize| position.behind(bytes.get(..at).unwrap_or(bytes));
        match self {
            Self::Syntax(e) if is_end(&e) => Fault::Truncated { position: place(bytes.len()) },
            Self::Syntax(e) => Fault::Syntax { position: place(e.index), reason: reason(&e, bytes) },
            Self::Value { at, path, text, type_name } => {
                Fault::Value { position: place(at), path: path.join("."), text, type_name }
            }
            Self::UnknownKey { at, path } => Fault::UnknownKey { position: place(at), path: path.join(".") },
            Self::Deep { at } => Fault::Deep { position: place(at) },
        }
    }
}

/// Returns whether the text ends within a value.
pub(super) fn is_end(e: &JiterError) -> bool {
    use JsonErrorType::{EofWhileParsingList, EofWhileParsingObject, EofWhileParsingString, EofWhileParsingValue};
    matches!(
        e.error_type,
        JiterErrorType::JsonError(
            EofWhileParsingList | EofWhileParsingObject | EofWhileParsingString | EofWhileParsingValue
        )
    )
}

/// Returns the reason of a syntax error.
fn reason(e: &JiterError, bytes: &[u8]) -> String {
    use JsonErrorType as Json;
    let found = match bytes.get(e.index) {
        Some(byte) if byte.is_ascii_graphic() => format!(", and there is {}", char::from(*byte)),
        _ => String::new(),
    };
    let JiterErrorType::JsonError(json) = &e.error_type else { return format!("a value is expected{found}") };
    match json {
        Json::ExpectedColon => format!("a colon is expected behind a key{found}"),
        Json::ExpectedListCommaOrEnd => format!("a comma or the end of the array is expected{found}"),
        Json::ExpectedObjectCommaOrEnd => format!("a comma or the end of the object is expected{found}"),
        Json::ExpectedSomeIdent | Json::ExpectedSomeValue => format!("a value is expected{found}"),
        Json::KeyMustBeAString => format!("a key in quotes is expected{found}"),
        Json::TrailingComma => "a comma is followed by nothing".into(),
        Json::InvalidNumber => "the number is not written as JSON writes numbers".into(),
        Json::NumberOutOfRange => "the number has too many digits".into(),
        Json::InvalidEscape | Json::UnexpectedEndOfHexEscape => {
            "the string has an escape that JSON does not have".into()
        }
        Json::LoneLeadingSurrogateInHexEscape => "the string has half of a surrogate pair".into(),
        Json::ControlCharacterWhileParsingString => {
            "the string has a control character that is not escaped, or its quote is not closed".into()
        }
        Json::InvalidUnicodeCodePoint => "the text is not UTF-8".into(),
        other => other.to_string(),
    }
}

/// A fault of a file.
#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    /// Text of another encoding than UTF-8.
    Encoding(&'static str),
    /// A format other than the name says.
    NotText {
        is: &'static str,
        extension: &'static str,
    },
    NotUtf8 {
        position: Position,
    },
    LongRecord {
        position: Position,
        limit_bytes: usize,
    },
    Truncated {
        position: Position,
    },
    Syntax {
        position: Position,
        reason: String,
    },
    Value {
        position: Position,
        path: String,
        text: String,
        type_name: String,
    },
    UnknownKey {
        position: Position,
        path: String,
    },
    Deep {
        position: Position,
    },
}

/// The origin of column types. It determines the hints of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Types {
    Declared,
    Guessed,
}

impl Fault {
    /// Converts the fault to the error of the file `name`.
    pub fn into_error(self, name: &str, types: Types) -> Error {
        let data = |message: String| Error::new(ErrorKind::Data, message);
        let at = |position: Position, what: &str| {
            data(format!("'{name}' line {}, column {}: {what}", position.line, position.column))
        };
        let declare = format!(
            "types are found in the first rows: read_json('{name}', sample_size = -1) looks at all of them, or CREATE \
             TABLE with the right ones and COPY into it"
        );
        match self {
            Self::Io(e) if e.raw_os_error().is_some() || of_cluster(&e).is_some() => {
                refused(onehop_io::Operation::Read, name, e)
            }
            Self::Io(e) => over_memory(name, &e).unwrap_or_else(|| {
                data(format!("cannot read '{name}': {e}"))
                    .with_hint("the file is damaged, or compressed in another way than its name says")
            }),
            Self::Encoding(encoding) => data(format!("'{name}' is {encoding} text, and UTF-8 is read"))
                .with_hint(format!("convert it first: iconv -f {encoding} -t UTF-8")),
            Self::NotText { is, extension } => data(format!("'{name}' is {is}, and JSON is read"))
                .with_hint(format!("formats go by name: give it one that ends in .{extension}")),
            Self::NotUtf8 { position } => {
                at(position, "the text is not UTF-8").with_hint("convert the file first: iconv -f LATIN1 -t UTF-8")
            }
            Self::LongRecord { position, limit_bytes } => {
                at(position, &format!("a value that begins here is longer than {} MiB", limit_bytes >> 20))
                    .with_hint("is a bracket or a quote not closed?")
            }
            Self::Truncated { position } => {
                at(position, "the file ends within a value").with_hint("the file is cut off")
            }
            Self::Syntax { position, reason } => at(position, &reason),
            Self::Value { position, path, text, type_name } => {
                let error = at(position, &format!("cannot read {} as {type_name} for \"{path}\"", shortened(&text)));
                match types {
                    Types::Declared => error,
                    Types::Guessed => error.with_hint(declare),
                }
            }
            Self::UnknownKey { position, path } => {
                at(position, &format!("the key \"{path}\" is in none of the first rows")).with_hint(declare)
            }
            Self::Deep { position } => at(position, "more than 200 arrays and objects are within each other"),
        }
    }
}

fn shortened(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN_LETTERS).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(SHOWN_LETTERS).is_some() { "..." } else { "" };
    // A string has its own quotes.
    let shown = shown.replace("\\\"", "\"");
    if shown.starts_with('"') { format!("{shown}{more}") } else { format!("\"{shown}{more}\"") }
}
