//! `DROP TABLE | VIEW [IF EXISTS] name, ...`: all of them or none.

use datafusion::sql::sqlparser::ast::{ObjectName, ObjectType};

use super::{Context, done, table_name};
use crate::catalog::Change;
use crate::query::Done;
use crate::{Error, ErrorKind, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Table,
    View,
}

/// The parsed statement.
#[derive(Debug)]
pub(super) struct Drop {
    kind: Kind,
    if_exists: bool,
    names: Vec<String>,
}

impl Drop {
    pub fn new(object: ObjectType, if_exists: bool, names: &[ObjectName]) -> Result<Self> {
        let kind = if object == ObjectType::View { Kind::View } else { Kind::Table };
        Ok(Self { kind, if_exists, names: names.iter().map(table_name).collect::<Result<_>>()? })
    }

    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        context.database.check_writable()?;
        let writing = context.database.writing(&context.settings()).await?;
        let ((), commit) = context.database.change(writing, |catalog| {
            let mut changes = Vec::new();
            for name in &self.names {
                let was_there = match self.kind {
                    Kind::Table => catalog.tables.remove(name).is_some(),
                    Kind::View => catalog.views.remove(name).is_some(),
                };
                if was_there {
                    changes.push(match self.kind {
                        Kind::Table => Change::DropTable { name: name.clone() },
                        Kind::View => Change::DropView { name: name.clone() },
                    });
                    continue;
                }
                let other = match self.kind {
                    Kind::Table => catalog.views.contains_key(name).then_some("view"),
                    Kind::View => catalog.tables.contains_key(name).then_some("table"),
                };
                if let Some(other) = other {
                    let error = Error::new(ErrorKind::Invalid, format!("\"{name}\" is a {other}"));
                    return Err(error.with_hint(format!("DROP {} {name}", other.to_uppercase())));
                }
                if !self.if_exists {
                    return Err(match self.kind {
                        Kind::Table => Error::unknown_table(name, catalog.tables.keys().map(String::as_str)),
                        Kind::View => Error::new(ErrorKind::NotFound, format!("there is no view \"{name}\"")),
                    });
                }
            }
            Ok(((), changes))
        })?;
        commit.wait().await?;
        Ok(done(if self.kind == Kind::View { "DROP VIEW" } else { "DROP TABLE" }, None))
    }
}
