//! `DROP TABLE | VIEW | MODEL | FUNCTION [IF EXISTS] name, ...` drops all or none. Temporary tables
//! are dropped after the others.

use datafusion::sql::sqlparser::ast::{DropFunction, ObjectName, ObjectType};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::{Context, done, syntax, table_name};
use crate::catalog::{Catalog, Change};
use crate::query::Done;
use crate::snapshot::Snapshot;
use crate::{Error, ErrorKind, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Table,
    View,
    Model,
    Function,
}

impl Kind {
    /// Returns the word for it in messages.
    fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::View => "view",
            Self::Model => "model",
            Self::Function => "function",
        }
    }
}

/// Parses `DROP MODEL`. Returns `None`, with nothing consumed, for another statement.
pub(super) fn parse_model(parser: &mut Parser<'_>) -> Result<Option<Drop>> {
    let is_model =
        matches!(&parser.peek_nth_token(1).token, Token::Word(word) if word.value.eq_ignore_ascii_case("model"));
    if !is_model {
        return Ok(None);
    }
    parser.next_token();
    parser.next_token();
    let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    let names = parser.parse_comma_separated(|parser| parser.parse_object_name(false));
    let names = names.map_err(|e| syntax::<()>(Err(e)))?;
    Ok(Some(Drop { kind: Kind::Model, if_exists, names: names.iter().map(table_name).collect::<Result<_>>()? }))
}

/// Returns the names without duplicates.
fn once(names: &[ObjectName]) -> Result<Vec<String>> {
    let mut all: Vec<String> = Vec::with_capacity(names.len());
    for name in names.iter().map(table_name) {
        let name = name?;
        if !all.contains(&name) {
            all.push(name);
        }
    }
    Ok(all)
}

/// A parsed `DROP`.
#[derive(Debug)]
pub(super) struct Drop {
    kind: Kind,
    if_exists: bool,
    names: Vec<String>,
}

impl Drop {
    /// Returns the `DROP` of tables or views.
    pub fn new(object: ObjectType, if_exists: bool, names: &[ObjectName]) -> Result<Self> {
        let kind = if object == ObjectType::View { Kind::View } else { Kind::Table };
        Ok(Self { kind, if_exists, names: once(names)? })
    }

    /// Returns the `DROP` of functions. A name is enough: a function has no overloads.
    pub fn of_functions(dropped: &DropFunction) -> Result<Self> {
        if let Some(told) = dropped.func_desc.iter().find(|function| function.args.is_some()) {
            let error = Error::new(
                ErrorKind::Invalid,
                format!("DROP FUNCTION {told}: functions are told apart by their names alone"),
            );
            return Err(error.with_hint(format!("DROP FUNCTION {}", told.name)));
        }
        let names: Vec<ObjectName> = dropped.func_desc.iter().map(|function| function.name.clone()).collect();
        Ok(Self { kind: Kind::Function, if_exists: dropped.if_exists, names: once(&names)? })
    }

    /// Returns the dropped names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// True if it drops functions.
    pub fn is_of_functions(&self) -> bool {
        self.kind == Kind::Function
    }

    /// True if it can be part of a transaction.
    pub fn is_of_tables_or_views(&self) -> bool {
        matches!(self.kind, Kind::Table | Kind::View)
    }

    /// True if it drops only the session's own tables.
    pub fn drops_only_temporary(&self, snapshot: &Snapshot) -> bool {
        let is_own = |name: &String| snapshot.is_temporary(name) || (self.if_exists && !is_there(name, snapshot));
        self.kind == Kind::Table && self.names.iter().all(is_own)
    }

    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        let Self { kind, if_exists, names } = self;
        let tag = match kind {
            Kind::Table => "DROP TABLE",
            Kind::View => "DROP VIEW",
            Kind::Model => "DROP MODEL",
            Kind::Function => "DROP FUNCTION",
        };
        let (temporary, mut names) = match kind {
            // If another session has created something of the same name, the session's own table is
            // dropped.
            Kind::Table => context.apart(names),
            _ => (Vec::new(), names),
        };
        // A statement with nothing to do needs no permission.
        if if_exists && matches!(kind, Kind::Table | Kind::View) {
            names.retain(|name| is_there(name, &context.snapshot));
        }
        if !names.is_empty() {
            context.database.check_writable()?;
            Self { kind, if_exists, names }.carry_out(context).await?;
        }
        drop_temporary(temporary, context).await?;
        Ok(done(tag, None))
    }

    async fn carry_out(self, context: &Context<'_>) -> Result<()> {
        let Self { kind, if_exists, names } = self;
        let change = move |catalog: &mut Catalog| {
            let mut changes = Vec::new();
            for name in &names {
                let was_there = match kind {
                    Kind::Table => catalog.tables.remove(name).is_some(),
                    Kind::View => catalog.views.remove(name).is_some(),
                    Kind::Model => catalog.models.remove(name).is_some(),
                    Kind::Function => catalog.functions.remove(name).is_some(),
                };
                if was_there {
                    changes.push(match kind {
                        Kind::Table => Change::DropTable { name: name.clone() },
                        Kind::View => Change::DropView { name: name.clone() },
                        Kind::Model => Change::DropModel { name: name.clone() },
                        Kind::Function => Change::DropFunction { name: name.clone() },
                    });
                    continue;
                }
                let other = match kind {
                    Kind::Table => catalog.views.contains_key(name).then_some("view"),
                    Kind::Model | Kind::Function => None,
                    Kind::View => catalog.tables.contains_key(name).then_some("table"),
                };
                if let Some(other) = other {
                    let error = Error::new(ErrorKind::Invalid, format!("\"{name}\" is a {other}"));
                    return Err(error.with_hint(format!("DROP {} {name}", other.to_uppercase())));
                }
                if !if_exists {
                    return Err(match kind {
                        Kind::Table => Error::unknown_table(name, catalog.tables.keys().map(String::as_str)),
                        Kind::View | Kind::Model | Kind::Function => {
                            Error::new(ErrorKind::NotFound, format!("there is no {} \"{name}\"", kind.name()))
                        }
                    });
                }
            }
            Ok(((), changes))
        };
        context.change(None, change).await
    }
}

fn is_there(name: &str, snapshot: &Snapshot) -> bool {
    snapshot.table(name).is_some() || snapshot.catalog.views.contains_key(name)
}

async fn drop_temporary(names: Vec<String>, context: &Context<'_>) -> Result<()> {
    let Some(temporary) = context.session.temporary().filter(|_| !names.is_empty()) else { return Ok(()) };
    Drop { kind: Kind::Table, if_exists: false, names }.carry_out(&context.of_temporary(temporary, false)).await
}

/// Runs `DISCARD TEMP`: drops all of the session's own tables.
pub(super) async fn all_temporary(context: &Context<'_>) -> Result<Done> {
    let names = context.snapshot.tables().map(|table| &table.name).filter(|name| context.snapshot.is_temporary(name));
    drop_temporary(names.cloned().collect(), context).await?;
    Ok(done("DISCARD TEMP", None))
}
