//! `COPY table [(columns)] FROM STDIN` and `COPY table [(columns)] | (query) TO STDOUT`, with
//! options in both of PostgreSQL's styles, parsed for a caller that talks to the client.
//!
//! Clauses beyond rows, such as `WHERE`, are refused, as are formats that no client has.

use datafusion::sql::sqlparser::ast::{
    CopyLegacyCsvOption, CopyLegacyOption, CopyOption, CopySource, CopyTarget, Ident, Statement as Sql,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::super::{syntax, table_name};
use crate::identifiers::normal;
use crate::{Error, ErrorKind, Result, planner};

/// The direction of the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// From the client into a table.
    In {
        /// The table.
        table: String,
        /// The columns that the client sends, in this order. Empty for all columns.
        columns: Vec<String>,
    },
    /// The rows of a query, to the client.
    Out {
        /// The query.
        query: String,
    },
}

/// The format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFormat {
    /// PostgreSQL's own: a tab between values, `\N` for NULL, backslashes before special
    /// characters.
    Text,
    /// Values in quotes where they need them.
    Csv,
    /// PostgreSQL's binary format.
    Binary,
}

/// A COPY between a client and the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCopy {
    /// The direction.
    pub direction: CopyDirection,
    /// The format.
    pub format: CopyFormat,
    /// The delimiter between values.
    pub delimiter: u8,
    /// The string that represents NULL.
    pub null: String,
    /// True if the first line contains the column names.
    pub has_header: bool,
    /// The quote around values, in CSV.
    pub quote: u8,
    /// The escape before a quote within quotes, in CSV.
    pub escape: u8,
}

impl ClientCopy {
    /// Returns a COPY with the default options of a format.
    pub fn new(direction: CopyDirection, format: CopyFormat) -> Self {
        let (delimiter, null) = match format {
            CopyFormat::Csv => (b',', ""),
            CopyFormat::Text | CopyFormat::Binary => (b'\t', "\\N"),
        };
        Self { direction, format, delimiter, null: null.into(), has_header: false, quote: b'"', escape: b'"' }
    }
}

/// Returns whether the text begins with a word other than COPY. This excludes most statements
/// cheaply.
fn begins_otherwise(text: &str) -> bool {
    let text = text.trim_start();
    let word = text.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    !word.is_empty() && !word.eq_ignore_ascii_case("COPY")
}

/// Parses the statement, if it is one of these.
pub(crate) fn parse(text: &str) -> Result<Option<ClientCopy>> {
    if begins_otherwise(text) {
        return Ok(None);
    }
    let mut tokens = planner::tokens(text)?;
    if !is_about_client(&tokens) {
        return Ok(None);
    }
    while matches!(last(&tokens), Some(Token::SemiColon | Token::Whitespace(_))) {
        tokens.pop();
    }
    let query = query_of(&tokens);
    // The parser reads rows behind the semicolon.
    tokens.push(TokenWithSpan::wrap(Token::SemiColon));
    let parsed = Parser::new(&PostgreSqlDialect {}).with_tokens_with_locations(tokens).parse_statement();
    match parsed {
        Ok(Sql::Copy { source, to, target, options, legacy_options, .. }) => {
            let direction = direction(source, to, &target, query)?;
            Options::default().with(options, legacy_options)?.finish(direction).map(Some)
        }
        Ok(_) => Err(Error::new(ErrorKind::Internal, "a COPY came to be something else")),
        Err(e) => Err(syntax::<()>(Err(e))),
    }
}

fn last(tokens: &[TokenWithSpan]) -> Option<&Token> {
    tokens.last().map(|token| &token.token)
}

fn words(tokens: &[TokenWithSpan]) -> impl Iterator<Item = (Keyword, &Token)> {
    let words = tokens.iter().map(|token| &token.token).filter(|token| !matches!(token, Token::Whitespace(_)));
    words.map(|token| match token {
        Token::Word(word) if word.quote_style.is_none() => (word.keyword, token),
        token => (Keyword::NoKeyword, token),
    })
}

/// Returns whether it is `COPY ... FROM STDIN` or `COPY ... TO STDOUT`, with these words outside
/// parentheses.
fn is_about_client(tokens: &[TokenWithSpan]) -> bool {
    let (mut depth, mut before, mut is_first) = (0_i64, Keyword::NoKeyword, true);
    for (keyword, token) in words(tokens) {
        if is_first && keyword != Keyword::COPY {
            return false;
        }
        is_first = false;
        match token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        match (before, keyword) {
            (Keyword::FROM, Keyword::STDIN) | (Keyword::TO, Keyword::STDOUT) if depth == 0 => return true,
            _ => before = keyword,
        }
    }
    false
}

/// Returns the query in parentheses, as written.
fn query_of(tokens: &[TokenWithSpan]) -> Option<String> {
    let start = tokens.iter().position(|token| token.token == Token::LParen)?;
    let (mut depth, mut text) = (0_i64, String::new());
    for token in &tokens[start..] {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        text.push_str(&token.token.to_string());
    }
    text.strip_prefix('(').map(|text| text.trim().to_string())
}

fn direction(source: CopySource, to: bool, target: &CopyTarget, query: Option<String>) -> Result<CopyDirection> {
    let quoted = |name: &String| Ident::with_quote('"', name).to_string();
    match (source, to, target) {
        (CopySource::Table { table_name: name, columns }, false, CopyTarget::Stdin) => {
            Ok(CopyDirection::In { table: table_name(&name)?, columns: columns.iter().map(normal).collect() })
        }
        (CopySource::Table { table_name: name, columns }, true, CopyTarget::Stdout) => {
            let columns: Vec<String> = columns.iter().map(normal).map(|name| quoted(&name)).collect();
            let columns = if columns.is_empty() { "*".to_string() } else { columns.join(", ") };
            // The name as written: a foreign name must not become one of a table here.
            Ok(CopyDirection::Out { query: format!("SELECT {columns} FROM {name}") })
        }
        (CopySource::Query(_), true, CopyTarget::Stdout) => match query {
            Some(query) => Ok(CopyDirection::Out { query }),
            None => Err(Error::new(ErrorKind::Internal, "a COPY has lost its query")),
        },
        _ => Err(Error::new(ErrorKind::Syntax, "COPY goes FROM STDIN or TO STDOUT")),
    }
}

#[derive(Default)]
struct Options {
    format: Option<CopyFormat>,
    delimiter: Option<char>,
    null: Option<String>,
    has_header: bool,
    quote: Option<char>,
    escape: Option<char>,
}

impl Options {
    fn with(mut self, options: Vec<CopyOption>, legacy: Vec<CopyLegacyOption>) -> Result<Self> {
        options.into_iter().try_for_each(|option| self.set(option))?;
        legacy.into_iter().try_for_each(|option| self.set_legacy(option))?;
        Ok(self)
    }

    fn set(&mut self, option: CopyOption) -> Result<()> {
        match option {
            CopyOption::Format(name) => {
                self.format = Some(match name.value.to_lowercase().as_str() {
                    "text" => CopyFormat::Text,
                    "csv" => CopyFormat::Csv,
                    "binary" => CopyFormat::Binary,
                    other => return Err(unsupported(&format!("FORMAT {other}")).with_hint("text, csv or binary")),
                });
            }
            CopyOption::Delimiter(c) => self.delimiter = Some(c),
            CopyOption::Null(text) => self.null = Some(text),
            CopyOption::Header(has_header) => self.has_header = has_header,
            CopyOption::Quote(c) => self.quote = Some(c),
            CopyOption::Escape(c) => self.escape = Some(c),
            CopyOption::Freeze(false) => {}
            CopyOption::Encoding(name) if is_utf8(&name) => {}
            other => return Err(unsupported(&other.to_string())),
        }
        Ok(())
    }

    fn set_legacy(&mut self, option: CopyLegacyOption) -> Result<()> {
        match option {
            CopyLegacyOption::Binary => self.format = Some(CopyFormat::Binary),
            CopyLegacyOption::Delimiter(c) => self.delimiter = Some(c),
            CopyLegacyOption::Null(text) => self.null = Some(text),
            CopyLegacyOption::Header => self.has_header = true,
            CopyLegacyOption::Csv(options) => {
                self.format = Some(CopyFormat::Csv);
                for option in options {
                    match option {
                        CopyLegacyCsvOption::Header => self.has_header = true,
                        CopyLegacyCsvOption::Quote(c) => self.quote = Some(c),
                        CopyLegacyCsvOption::Escape(c) => self.escape = Some(c),
                        other => return Err(unsupported(&other.to_string())),
                    }
                }
            }
            other => return Err(unsupported(&other.to_string())),
        }
        Ok(())
    }

    fn finish(self, direction: CopyDirection) -> Result<ClientCopy> {
        let format = self.format.unwrap_or(CopyFormat::Text);
        let is_csv = format == CopyFormat::Csv;
        let given = self.delimiter.is_some() || self.null.is_some() || self.has_header;
        let of_csv = self.quote.is_some() || self.escape.is_some();
        if (format == CopyFormat::Binary && given) || (of_csv && !is_csv) {
            return Err(Error::new(ErrorKind::Syntax, "an option of this COPY is none of its format"));
        }
        let plain = ClientCopy::new(direction, format);
        let quote = self.quote.map_or(Ok(plain.quote), |c| byte(c, "QUOTE"))?;
        let copy = ClientCopy {
            delimiter: self.delimiter.map_or(Ok(plain.delimiter), |c| byte(c, "DELIMITER"))?,
            null: self.null.unwrap_or(plain.null),
            has_header: self.has_header,
            quote,
            escape: self.escape.map_or(Ok(quote), |c| byte(c, "ESCAPE"))?,
            ..plain
        };
        let is_taken = |byte: u8| matches!(byte, b'\n' | b'\r' | b'\\') || (is_csv && byte == quote);
        if is_taken(copy.delimiter) || copy.null.contains(['\n', '\r', char::from(copy.delimiter)]) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "DELIMITER and NULL of this COPY cannot be told from something else",
            ));
        }
        Ok(copy)
    }
}

fn is_utf8(name: &str) -> bool {
    matches!(name.to_lowercase().as_str(), "utf8" | "utf-8" | "unicode")
}

fn byte(c: char, option: &str) -> Result<u8> {
    u8::try_from(c)
        .ok()
        .filter(u8::is_ascii)
        .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{option} of COPY is a single ASCII character")))
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("COPY with {what} is not supported"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_styles_of_options_are_read() {
        let into = |table: &str, columns: &[&str]| CopyDirection::In {
            table: table.into(),
            columns: columns.iter().map(|name| (*name).to_string()).collect(),
        };
        let out = |query: &str| CopyDirection::Out { query: query.into() };
        let csv = |direction| ClientCopy {
            direction,
            format: CopyFormat::Csv,
            delimiter: b',',
            null: String::new(),
            has_header: false,
            quote: b'"',
            escape: b'"',
        };
        let text =
            |direction| ClientCopy { format: CopyFormat::Text, delimiter: b'\t', null: "\\N".into(), ..csv(direction) };
        for (statement, meant) in [
            ("COPY t FROM STDIN", text(into("t", &[]))),
            ("copy public.T (a, \"B\") from stdin;", text(into("t", &["a", "B"]))),
            (
                "COPY t FROM STDIN WITH (FORMAT csv, HEADER true)",
                ClientCopy { has_header: true, ..csv(into("t", &[])) },
            ),
            (
                "COPY t FROM STDIN WITH CSV HEADER QUOTE ''''",
                ClientCopy { has_header: true, quote: b'\'', escape: b'\'', ..csv(into("t", &[])) },
            ),
            ("COPY t TO STDOUT DELIMITER '|'", ClientCopy { delimiter: b'|', ..text(out("SELECT * FROM t")) }),
            ("COPY t (a) TO STDOUT", text(out("SELECT \"a\" FROM t"))),
            (
                "COPY (SELECT 'to stdout', (1) FROM t) TO STDOUT (FORMAT csv)",
                csv(out("SELECT 'to stdout', (1) FROM t")),
            ),
        ] {
            assert_eq!(parse(statement).unwrap(), Some(meant), "{statement}");
        }
        for other in ["COPY t FROM 'stdin'", "COPY t TO 'x.csv'", "SELECT 1", "COPY (SELECT a FROM stdin) TO 'x.csv'"] {
            assert_eq!(parse(other).unwrap(), None, "{other}");
        }
        for wrong in [
            "COPY t FROM STDIN (FORMAT xml)",
            "COPY t FROM STDIN (DELIMITER '\\')",
            "COPY t TO STDOUT (FORMAT text, QUOTE 'x')",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
