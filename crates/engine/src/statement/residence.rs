//! Tables in the memory of one or several devices. Each segment is in the memory of one of them.
//!
//! ```text
//! ALTER TABLE name SET (residence = 'cuda:0')      sets a device; rows loaded later follow
//! ALTER TABLE name RESET (residence)               removes the setting and evicts the table
//! LOAD TABLE name [(columns)] INTO 'cuda:0'        loads now, in this process
//! EVICT TABLE name [(columns)] [FROM 'cuda:0']     evicts now
//!
//! 'cuda:0,cuda:1'                                  several devices
//! 'y1997=cuda:0; y1998=cuda:1'                     as a residence, by partition
//! ```
//! `residence` is a storage parameter of the table, with PostgreSQL's syntax for those. It is part
//! of the catalog, so each process that opens the database applies it. LOAD and EVICT change no
//! stored data. They name the table first, as other table statements do. They are no COPY, which
//! moves rows from one name to another: these rows keep their place and their name.

use std::sync::Arc;

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

use super::{Context, Statement, done, parse_name_list, parse_word, table_name};
use crate::catalog::Change;
use crate::error::nearest;
use crate::fusing::Fusing;
use crate::identifiers::normal;
use crate::place::homes::{Homes, device_names};
use crate::place::residence::{self, LoadedTable, Wanted};
use crate::query::Done;
use crate::snapshot::Table;
use crate::task::spawn_blocking;
use crate::{Error, ErrorKind, Result};

/// A parsed statement of these.
#[derive(Debug)]
pub(super) struct Residence {
    table: String,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Sets the table's devices, or none.
    Set(Option<String>),
    Load {
        columns: Vec<String>,
        device: String,
    },
    Evict {
        columns: Vec<String>,
        device: Option<String>,
    },
}

type Parsed<T> = std::result::Result<T, ParserError>;

/// Parses the statement. Returns `None`, with nothing consumed, for another statement.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Option<Statement>> {
    let syntax = |e| super::syntax::<()>(Err(e));
    let Some(verb) = parser.maybe_parse(parse_verb).map_err(syntax)? else { return Ok(None) };
    let (name, what) = parse_rest(parser, verb).map_err(syntax)?;
    let device = |text: &String| device_names(text).map(|names| names.join(","));
    let what = match what {
        What::Set(Some(text)) => What::Set(Some(Homes::parse(&text)?.to_string())),
        What::Load { columns, device: text } => What::Load { columns, device: device(&text)? },
        What::Evict { columns, device: Some(text) } => What::Evict { columns, device: Some(device(&text)?) },
        other => other,
    };
    Ok(Some(Statement::Residence(Residence { table: table_name(&name)?, what })))
}

#[derive(Clone, Copy)]
enum Verb {
    Set,
    Reset,
    Load,
    Evict,
}

/// Parses far enough to recognize the statement. Other forms of ALTER TABLE are refused elsewhere.
fn parse_verb(parser: &mut Parser<'_>) -> Parsed<Verb> {
    if parser.parse_keywords(&[Keyword::LOAD, Keyword::TABLE]) {
        return Ok(Verb::Load);
    }
    if parse_word(parser, "evict") {
        parser.expect_keyword(Keyword::TABLE)?;
        return Ok(Verb::Evict);
    }
    parser.expect_keyword(Keyword::ALTER)?;
    parser.expect_keyword(Keyword::TABLE)?;
    // The name comes first and is parsed later.
    let mut ahead = 0;
    while !matches!(parser.peek_nth_token(ahead).token, Token::EOF | Token::SemiColon) {
        let next = |at| parser.peek_nth_token(at).token;
        let is = |word: &str| matches!(next(ahead), Token::Word(w) if w.value.eq_ignore_ascii_case(word));
        if is("set") && next(ahead + 1) == Token::LParen {
            return Ok(Verb::Set);
        }
        if is("reset") && next(ahead + 1) == Token::LParen {
            return Ok(Verb::Reset);
        }
        ahead += 1;
    }
    parser.expected_ref("SET or RESET", parser.peek_token_ref())
}

fn parse_rest(parser: &mut Parser<'_>, verb: Verb) -> Parsed<(datafusion::sql::sqlparser::ast::ObjectName, What)> {
    let name = parser.parse_object_name(false)?;
    let what = match verb {
        Verb::Set => {
            parser.expect_keyword(Keyword::SET)?;
            What::Set(Some(parse_parameters(parser)?))
        }
        Verb::Reset => {
            parser.expect_keyword(Keyword::RESET)?;
            parser.expect_token(&Token::LParen)?;
            expect_residence(parser)?;
            parser.expect_token(&Token::RParen)?;
            What::Set(None)
        }
        Verb::Load => {
            let columns = parse_columns(parser)?;
            parser.expect_keyword(Keyword::INTO)?;
            What::Load { columns, device: parser.parse_literal_string()? }
        }
        Verb::Evict => {
            let columns = parse_columns(parser)?;
            let is_from = parser.parse_keyword(Keyword::FROM);
            What::Evict { columns, device: is_from.then(|| parser.parse_literal_string()).transpose()? }
        }
    };
    Ok((name, what))
}

fn parse_columns(parser: &mut Parser<'_>) -> Parsed<Vec<String>> {
    if parser.peek_token_ref().token == Token::LParen { parse_name_list(parser) } else { Ok(Vec::new()) }
}

/// Parses `(residence = 'cuda:0')` and returns the device.
pub(super) fn parse_parameters(parser: &mut Parser<'_>) -> Parsed<String> {
    parser.expect_token(&Token::LParen)?;
    expect_residence(parser)?;
    parser.expect_token(&Token::Eq)?;
    let device = parser.parse_literal_string()?;
    parser.expect_token(&Token::RParen)?;
    Ok(device)
}

fn expect_residence(parser: &mut Parser<'_>) -> Parsed<()> {
    let word = parser.parse_identifier()?;
    match normal(&word).as_str() {
        "residence" => Ok(()),
        other => Err(ParserError::ParserError(format!("a table has no parameter \"{other}\"; it has residence"))),
    }
}

impl Residence {
    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        let Some(table) = context.snapshot.table(&self.table) else {
            return Err(no_table(&self.table, context));
        };
        let of_table = context.of_table(&self.table)?;
        let context = of_table.as_ref().unwrap_or(context);
        match self.what {
            What::Set(device) => set(table, device, context).await,
            What::Load { columns, device } => {
                let columns = places(table, &columns)?;
                let loaded = load(table, columns, device, context).await?;
                loaded.left_out.iter().for_each(|reason| context.query.notice(format!("left out: {reason}")));
                Ok(done("LOAD TABLE", None))
            }
            What::Evict { columns, device } => {
                let columns = places(table, &columns)?;
                let found = context.database.known().devices().map_or(&[][..], |devices| devices.found());
                let of = found.iter().filter(|backend| {
                    device.as_ref().is_none_or(|names| names.split(',').any(|name| name == backend.name()))
                });
                residence::evict(table, &columns, &of.cloned().collect::<Vec<_>>());
                Ok(done("EVICT TABLE", None))
            }
        }
    }
}

fn no_table(name: &str, context: &Context<'_>) -> Error {
    let catalog = &context.snapshot.catalog;
    if catalog.views.contains_key(name) {
        let error = Error::new(ErrorKind::Invalid, format!("\"{name}\" is a view"));
        return error.with_hint("what can be resident are the tables that it is made of");
    }
    Error::unknown_table(name, catalog.tables.keys().map(String::as_str))
}

/// Returns the positions of the named columns, or of all columns if none is named.
fn places(table: &Table, names: &[String]) -> Result<Vec<usize>> {
    let fields = table.schema.fields();
    if names.is_empty() {
        return Ok((0..fields.len()).collect());
    }
    let place = |name: &String| match table.schema.column_with_name(name) {
        Some((place, _)) => Ok(place),
        None => {
            let error = Error::new(ErrorKind::NotFound, format!("there is no column \"{name}\" in {}", table.name));
            Err(match nearest(name, fields.iter().map(|field| field.name().as_str())) {
                Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                None => error,
            })
        }
    };
    names.iter().map(place).collect()
}

/// Sets a table's devices in the catalog. Loads it there, and evicts it from the previous devices.
async fn set(table: &Arc<Table>, device: Option<String>, context: &Context<'_>) -> Result<Done> {
    if let Some(homes) = device.as_deref().map(Homes::parse).transpose()? {
        homes.check(table.entry.partition_by.as_ref())?;
    }
    let database = context.database;
    let before = table.entry.residence.clone();
    let writing = database.writing(&context.settings()).await?;
    let ((), commit) = database.change(writing, |catalog| {
        let gone = || Error::new(ErrorKind::NotFound, format!("table \"{}\" was dropped meanwhile", table.name));
        let current = catalog.tables.get_mut(&table.name).filter(|now| now.id == table.entry.id).ok_or_else(gone)?;
        current.residence = device.clone();
        Ok(((), vec![Change::PutTable { name: table.name.clone() }]))
    })?;
    commit.wait(context.query.shared_ledger()).await?;
    if before.is_some() && before != device {
        let found = database.known().devices().map_or(&[][..], |devices| devices.found());
        let columns: Vec<usize> = (0..table.schema.fields().len()).collect();
        let homes = before.and_then(|before| Homes::parse(&before).ok()).unwrap_or_default();
        let had = homes.all();
        let of: Vec<_> = found.iter().filter(|backend| had.contains(backend.name())).cloned().collect();
        residence::evict(table, &columns, &of);
    }
    follow(&table.name, context).await?;
    Ok(done("ALTER TABLE", None))
}

/// Loads a table with a residence, as of the newest commit.
pub(super) async fn follow(name: &str, context: &Context<'_>) -> Result<()> {
    let snapshot = context.database.snapshot();
    match snapshot.table(name).filter(|table| table.entry.residence.is_some()) {
        // Few tables have a residence. The box saves callers the space of this future.
        Some(table) => Box::pin(bring(Arc::clone(table), context)).await,
        None => Ok(()),
    }
}

async fn bring(table: Arc<Table>, context: &Context<'_>) -> Result<()> {
    let Some(fusing) = context.state()?.config().get_extension::<Fusing>() else { return Ok(()) };
    let query = Arc::clone(&context.query);
    let stop = crate::lower::StopOnDrop::default();
    let cancelled = Arc::clone(&stop.0);
    let work = spawn_blocking(move || residence::follow(&fusing.placing, &fusing.cache, &table, &query, &cancelled));
    work.await.map_err(|e| datafusion::common::DataFusionError::ExecutionJoin(Box::new(e)).into())
}

async fn load(table: &Arc<Table>, columns: Vec<usize>, device: String, context: &Context<'_>) -> Result<LoadedTable> {
    let Some(fusing) = context.state()?.config().get_extension::<Fusing>() else {
        return Err(Error::new(ErrorKind::Internal, "a session without pipelines"));
    };
    let (table, query) = (Arc::clone(table), Arc::clone(&context.query));
    let stop = crate::lower::StopOnDrop::default();
    let cancelled = Arc::clone(&stop.0);
    let work = spawn_blocking(move || {
        let backend = residence::device(&fusing.placing, &device_names(&device)?)?;
        let wanted = Wanted { table: &table, columns: &columns, home: None };
        residence::load(&fusing.placing, &fusing.cache, wanted, &backend, &query, &cancelled)
    });
    work.await.map_err(|e| Error::from(datafusion::common::DataFusionError::ExecutionJoin(Box::new(e))))?
}
