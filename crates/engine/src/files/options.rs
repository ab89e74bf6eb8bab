//! Options of text files in COPY and in `read_csv`.

use super::csv::Encoding;
use crate::{Error, ErrorKind, Result};

/// The dialect of text files. `None` means that the file's name or contents determine the option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CsvOptions {
    pub delimiter: Option<u8>,
    pub has_header: Option<bool>,
    /// The quote character. An inner `None` means that no value is quoted.
    pub quote: Option<Option<u8>>,
    pub escape: Option<u8>,
    /// The first character of comment lines.
    pub comment: Option<u8>,
    /// The string that stands for NULL, in addition to an empty field.
    pub null: Option<String>,
    /// The number of lines before the table.
    pub skip: Option<usize>,
    /// True if missing fields at the end of a record are NULL.
    pub null_padding: bool,
    /// The number of records that determine the types of columns; all records if negative.
    pub sample_size: Option<i64>,
    pub all_varchar: bool,
    pub encoding: Encoding,
}

/// The option names that errors suggest.
pub(crate) const NAMES: [&str; 11] = [
    "delimiter",
    "header",
    "quote",
    "escape",
    "null",
    "comment",
    "skip",
    "null_padding",
    "sample_size",
    "all_varchar",
    "encoding",
];

impl CsvOptions {
    /// Sets an option by its name in lower case. Returns whether there is one of that name.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let invalid = |wanted: &str| Error::new(ErrorKind::Invalid, format!("{} takes {wanted}", name.to_uppercase()));
        let given = || value.ok_or_else(|| invalid("a value"));
        let flag = || match value.map(str::to_lowercase).as_deref() {
            None | Some("true" | "on" | "1") => Ok(true),
            Some("false" | "off" | "0") => Ok(false),
            Some(_) => Err(invalid("true or false")),
        };
        let byte = || match given()?.as_bytes() {
            [byte] if byte.is_ascii() && !byte.is_ascii_control() => Ok(*byte),
            _ => Err(invalid("a single ASCII character")),
        };
        let number = || given()?.parse::<i64>().map_err(|_| invalid("a whole number"));
        match name {
            "delimiter" | "delim" | "sep" => {
                self.delimiter = Some(match given()? {
                    "\\t" => b'\t',
                    "\n" | "\r" => return Err(invalid("another character than a line end")),
                    text if text.len() == 1 && text.is_ascii() => text.as_bytes()[0],
                    _ => return Err(invalid("a single ASCII character")),
                });
            }
            "header" => self.has_header = Some(flag()?),
            "quote" => self.quote = Some(if given()?.is_empty() { None } else { Some(byte()?) }),
            "escape" => self.escape = if given()?.is_empty() { None } else { Some(byte()?) },
            "comment" => self.comment = if given()?.is_empty() { None } else { Some(byte()?) },
            "null" | "nullstr" => self.null = Some(given()?.to_string()),
            "skip" => {
                self.skip = Some(usize::try_from(number()?).map_err(|_| invalid("a number of lines"))?);
            }
            "null_padding" => self.null_padding = flag()?,
            "all_varchar" => self.all_varchar = flag()?,
            "sample_size" => self.sample_size = Some(number()?),
            "encoding" => {
                self.encoding = match given()?.to_lowercase().as_str() {
                    "utf8" | "utf-8" | "unicode" => Encoding::Utf8,
                    "latin1" | "latin-1" | "iso-8859-1" | "iso8859-1" | "iso_8859_1" => Encoding::Latin1,
                    _ => return Err(invalid("utf-8 or latin1")),
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Refuses two meanings of one character.
    pub fn check(&self) -> Result<()> {
        let quote = self.quote.unwrap_or(Some(b'"'));
        let same = |what: &str| Err(Error::new(ErrorKind::Invalid, format!("{what} are the same character")));
        match self.delimiter {
            Some(delimiter) if quote == Some(delimiter) => same("DELIMITER and QUOTE"),
            Some(delimiter) if self.comment == Some(delimiter) => same("DELIMITER and COMMENT"),
            Some(delimiter) if self.escape == Some(delimiter) => same("DELIMITER and ESCAPE"),
            _ => Ok(()),
        }
    }
}
