//! `COPY table [(columns)] FROM 'path' [(options)]` and `COPY table | (query) TO 'path'
//! [(options)]`.
//!
//! Options, after an optional WITH: `FORMAT csv`, `COMPRESSION zstd`, and those of text files
//! ([`options`]): `HEADER [true|false]`, `DELIMITER '|'`, `QUOTE '"'`, `ESCAPE '\'`, `NULL 'text'`.
//! Missing options are inferred from the file: see [`from`] and [`to`].

mod client;
mod from;
mod json;
mod to;
mod written_types;

use datafusion::sql::parser::CopyToSource;
use datafusion::sql::sqlparser::ast::{ObjectName, Value};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

pub(crate) use self::client::parse as parse_client;
pub use self::client::{ClientCopy, CopyDirection, CopyFormat};
pub(super) use self::from::CopyFrom;
pub(super) use self::to::CopyTo;
use super::{Statement, parse_name_list, syntax, table_name};
use crate::error::nearest;
use crate::files::{CsvOptions, Format, options};
use crate::{Error, ErrorKind, Result};

#[derive(Debug, Default)]
struct Options {
    format: Option<Format>,
    csv: CsvOptions,
    /// The names of the text options that the statement gives.
    given: Vec<String>,
    compression: Option<String>,
}

pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Statement> {
    parse_copy(parser).map_err(|e| syntax::<()>(Err(e)))?
}

fn parse_copy(parser: &mut Parser<'_>) -> std::result::Result<Result<Statement>, ParserError> {
    parser.expect_keyword(Keyword::COPY)?;
    if parser.consume_token(&Token::LParen) {
        let query = parser.parse_query()?;
        parser.expect_token(&Token::RParen)?;
        parser.expect_keyword(Keyword::TO)?;
        return parse_to(parser, CopyToSource::Query(query));
    }
    let name: ObjectName = parser.parse_object_name(false)?;
    let columns = match parser.peek_token().token {
        Token::LParen => parse_name_list(parser)?,
        _ => Vec::new(),
    };
    if parser.parse_keyword(Keyword::TO) {
        if columns.is_empty() {
            return parse_to(parser, CopyToSource::Relation(name));
        }
        return Err(ParserError::ParserError("COPY (SELECT ...) TO writes some of a table's columns".into()));
    }
    parser.expect_keyword(Keyword::FROM)?;
    let path = parser.parse_literal_string()?;
    let options = parse_options(parser)?;
    Ok(options
        .and_then(|options| Ok(Statement::CopyFrom(CopyFrom { table: table_name(&name)?, columns, path, options }))))
}

fn parse_to(parser: &mut Parser<'_>, source: CopyToSource) -> std::result::Result<Result<Statement>, ParserError> {
    let path = parser.parse_literal_string()?;
    let stored_as = if parser.parse_keywords(&[Keyword::STORED, Keyword::AS]) {
        Some(parser.parse_identifier()?.value)
    } else {
        None
    };
    let options = parse_options(parser)?;
    Ok(options.and_then(|mut options| {
        if let Some(name) = stored_as {
            options.format = Some(Format::parse(&name)?);
        }
        Ok(Statement::CopyTo(CopyTo { source, path, options }))
    }))
}

/// Parses `[WITH | OPTIONS] (NAME [value], ...)`.
fn parse_options(parser: &mut Parser<'_>) -> std::result::Result<Result<Options>, ParserError> {
    let _ = parser.parse_keyword(Keyword::WITH) || parser.parse_keyword(Keyword::OPTIONS);
    let mut options = Options::default();
    if !parser.consume_token(&Token::LParen) {
        return Ok(Ok(options));
    }
    let mut outcome = Ok(());
    loop {
        let name = parser.parse_identifier()?.value.to_lowercase();
        let value = match parser.peek_token().token {
            Token::Comma | Token::RParen => None,
            Token::Word(word) => {
                parser.next_token();
                Some(word.value)
            }
            Token::Minus => {
                parser.next_token();
                Some(format!("-{}", parser.parse_value()?.value))
            }
            _ => Some(match parser.parse_value()?.value {
                Value::Number(number, _) => number,
                Value::Boolean(b) => b.to_string(),
                other => other.clone().into_string().unwrap_or_else(|| other.to_string()),
            }),
        };
        outcome = outcome.and_then(|()| options.set(&name, value.as_deref()));
        if !parser.consume_token(&Token::Comma) {
            break;
        }
    }
    parser.expect_token(&Token::RParen)?;
    Ok(outcome.map(|()| options))
}

impl Options {
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let invalid =
            |wanted: &str| Err(Error::new(ErrorKind::Invalid, format!("{} takes {wanted}", name.to_uppercase())));
        match (name, value) {
            ("format", Some(format)) => self.format = Some(Format::parse(format)?),
            ("compression", Some(text)) => self.compression = Some(text.to_string()),
            ("format" | "compression", None) => return invalid("a value"),
            (other, value) => {
                if self.csv.set(other, value)? {
                    self.given.push(other.to_string());
                    return Ok(());
                }
                let known = options::NAMES.into_iter().chain(["format", "compression"]);
                let error = Error::new(ErrorKind::Invalid, format!("COPY has no option {}", other.to_uppercase()));
                return Err(match nearest(other, known) {
                    Some(near) => error.with_hint(format!("did you mean {}?", near.to_uppercase())),
                    None => error.with_hint(format!(
                        "options: FORMAT, {}, COMPRESSION",
                        options::NAMES.map(str::to_uppercase).join(", ")
                    )),
                });
            }
        }
        Ok(())
    }

    /// Refuses options that have no meaning for a format.
    fn check(&self, format: Format) -> Result<()> {
        if format == Format::Csv {
            return self.csv.check();
        }
        match self.given.first() {
            Some(name) => {
                let (name, format) = (name.to_uppercase(), format.copy_name().to_lowercase());
                Err(Error::new(ErrorKind::Invalid, format!("{name} is an option of csv, and this is {format}")))
            }
            None => Ok(()),
        }
    }
}
