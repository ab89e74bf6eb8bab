//! `VACUUM`, `ANALYZE`, `UNLISTEN`: statements that PostgreSQL's clients send and that do nothing
//! here.
//!
//! ```text
//! VACUUM [(option, ...) | FULL | FREEZE | VERBOSE | ANALYZE] [table [(column, ...)], ...]
//! ANALYZE [(option, ...) | VERBOSE] [table [(column, ...)], ...]
//! UNLISTEN [channel | *]
//! ```
//! Commits free the space of replaced data themselves, segments hold the statistics, and there are
//! no notifications. A missing table is an error all the same.

use datafusion::sql::sqlparser::ast::ObjectName;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

use super::{Context, done, table_name};
use crate::query::Done;
use crate::{Error, Result};

/// A parsed statement of these.
#[derive(Debug)]
pub(super) struct Housekeeping {
    tag: &'static str,
    tables: Vec<String>,
}

/// Parses the statement whose first word is `word`.
pub(super) fn parse(word: Keyword, parser: &mut Parser<'_>) -> Result<Housekeeping> {
    let tag = match word {
        Keyword::VACUUM => "VACUUM",
        Keyword::ANALYZE => "ANALYZE",
        _ => "UNLISTEN",
    };
    parser.next_token();
    let names = match tag {
        "UNLISTEN" => channel(parser).map(|()| Vec::new()),
        _ => names(parser),
    };
    let names = names.map_err(|e| super::syntax::<()>(Err(e)))?;
    Ok(Housekeeping { tag, tables: names.iter().map(table_name).collect::<Result<_>>()? })
}

fn channel(parser: &mut Parser<'_>) -> std::result::Result<(), ParserError> {
    match parser.consume_token(&Token::Mul) {
        true => Ok(()),
        false => parser.parse_identifier().map(drop),
    }
}

fn names(parser: &mut Parser<'_>) -> std::result::Result<Vec<ObjectName>, ParserError> {
    const WORDS: [Keyword; 5] = [Keyword::FULL, Keyword::FREEZE, Keyword::VERBOSE, Keyword::ANALYZE, Keyword::SKIP];
    skip_brackets(parser)?;
    while parser.parse_one_of_keywords(&WORDS).is_some() {}
    match parser.peek_token().token {
        Token::EOF | Token::SemiColon => Ok(Vec::new()),
        _ => parser.parse_comma_separated(|parser| {
            let name = parser.parse_object_name(false)?;
            skip_brackets(parser)?;
            Ok(name)
        }),
    }
}

/// Skips options or columns in parentheses.
fn skip_brackets(parser: &mut Parser<'_>) -> std::result::Result<(), ParserError> {
    if parser.consume_token(&Token::LParen) {
        while !parser.consume_token(&Token::RParen) {
            if matches!(parser.peek_token().token, Token::EOF | Token::SemiColon | Token::LParen) {
                return parser.expect_token(&Token::RParen).map(drop);
            }
            parser.next_token();
        }
    }
    Ok(())
}

impl Housekeeping {
    /// True if it cannot be part of a transaction.
    pub fn is_by_itself(&self) -> bool {
        self.tag == "VACUUM"
    }

    /// Runs the statement.
    pub fn run(&self, context: &Context<'_>) -> Result<Done> {
        let snapshot = &context.snapshot;
        match self.tables.iter().find(|name| snapshot.table(name).is_none()) {
            Some(name) => Err(Error::unknown_table(name, snapshot.catalog.tables.keys().map(String::as_str))),
            None => Ok(done(self.tag, None)),
        }
    }
}
