//! `ATTACH 'postgresql://...' AS name`, `DETACH name`: databases of PostgreSQL, for this session.

use std::sync::Arc;

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use onehop_postgres::Server;

use super::{Context, Statement, done, parse_word};
use crate::identifiers::normal;
use crate::query::Done;
use crate::{Error, ErrorKind, Result};

/// Names that are schemas or catalogs already.
const TAKEN: [&str; 5] =
    [crate::identifiers::CATALOG, crate::identifiers::SCHEMA, crate::postgres::SCHEMA, "information_schema", "pg_temp"];

/// A parsed `ATTACH` or `DETACH`.
#[derive(Debug)]
pub(super) enum Attach {
    Attach { address: String, name: String, if_not_exists: bool },
    Detach { name: String, if_exists: bool },
}

type Parsed<T> = std::result::Result<T, ParserError>;

/// Parses either statement. The first word of the input is one of the two.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Statement> {
    if parse_word(parser, "attach") {
        // The parser's message would contain the address.
        return attach(parser).map(Statement::Attach).map_err(|_| {
            Error::new(ErrorKind::Syntax, "this is not how a database is attached").with_hint(
                "ATTACH [DATABASE] [IF NOT EXISTS] 'postgresql://USER@HOST:PORT/DATABASE' AS name [(TYPE postgres)]",
            )
        });
    }
    parser.next_token();
    detach(parser).map(Statement::Attach).map_err(|e| super::syntax::<()>(Err(e)))
}

fn attach(parser: &mut Parser<'_>) -> Parsed<Attach> {
    let _ = parser.parse_keyword(Keyword::DATABASE);
    let if_not_exists = parser.parse_keywords(&[Keyword::IF, Keyword::NOT, Keyword::EXISTS]);
    let address = parser.parse_literal_string()?;
    parser.expect_keyword(Keyword::AS)?;
    let name = normal(&parser.parse_identifier()?);
    // Other engines write the type of database here, since they attach several.
    if parser.consume_token(&Token::LParen) {
        let is_type = parse_word(parser, "type");
        if !is_type || !(parse_word(parser, "postgres") || parse_word(parser, "postgresql")) {
            return parser.expected_ref("TYPE postgres", parser.peek_token_ref());
        }
        parser.expect_token(&Token::RParen)?;
    }
    Ok(Attach::Attach { address, name, if_not_exists })
}

fn detach(parser: &mut Parser<'_>) -> Parsed<Attach> {
    let _ = parser.parse_keyword(Keyword::DATABASE);
    let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    Ok(Attach::Detach { name: normal(&parser.parse_identifier()?), if_exists })
}

impl Attach {
    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        match self {
            Self::Attach { address, name, if_not_exists } => {
                if TAKEN.contains(&name.as_str()) || name.is_empty() {
                    let message = format!("\"{name}\" cannot be the name of an attached database");
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                if context.session.attached().contains_key(&name) {
                    if if_not_exists {
                        return Ok(done("ATTACH", None));
                    }
                    let message = format!("there is an attached database \"{name}\"");
                    return Err(Error::new(ErrorKind::AlreadyExists, message).with_hint(format!("DETACH {name} first")));
                }
                let server = Arc::new(Server::new(&address)?);
                // Connects now, to report a missing server or a refused login with this statement.
                server.view().await?;
                context.session.attach(name, server);
                Ok(done("ATTACH", None))
            }
            Self::Detach { name, if_exists } => match context.session.detach(&name) || if_exists {
                true => Ok(done("DETACH", None)),
                false => Err(Error::new(ErrorKind::NotFound, format!("there is no attached database \"{name}\""))
                    .with_hint("SELECT * FROM onehop_attached shows those there are")),
            },
        }
    }
}
