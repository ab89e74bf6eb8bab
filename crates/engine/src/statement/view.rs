//! `CREATE [OR REPLACE] VIEW [IF NOT EXISTS] name AS query`: the text of the query is kept, and must work now.

use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::{CreateView as SqlCreateView, Query, Statement as Sql};

use super::{Context, done, new_name};
use crate::catalog::Change;
use crate::planner;
use crate::query::Done;
use crate::{Error, ErrorKind, Result};

/// The parsed statement.
#[derive(Debug)]
pub(super) struct CreateView {
    name: String,
    or_replace: bool,
    if_not_exists: bool,
    query: Box<Query>,
}

pub(super) fn convert(create: SqlCreateView) -> Result<CreateView> {
    if create.materialized || create.temporary || !create.columns.is_empty() {
        let error = Error::new(ErrorKind::Invalid, "views cannot be materialized, temporary or rename their columns");
        return Err(error.with_hint("name the columns in the query with AS; CREATE TABLE AS keeps the rows"));
    }
    Ok(CreateView {
        name: new_name(&create.name)?,
        or_replace: create.or_replace,
        if_not_exists: create.if_not_exists,
        query: create.query,
    })
}

impl CreateView {
    pub fn settle(&mut self) -> Result<()> {
        planner::settle(self.query.as_mut())
    }

    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        context.database.check_writable()?;
        let text = self.query.to_string();
        let statement = DataFusionStatement::Statement(Box::new(Sql::Query(self.query)));
        context.of_database()?.plan(statement).await?;
        let writing = context.database.writing(&context.settings()).await?;
        let ((), commit) = context.database.change(writing, |catalog| {
            if catalog.tables.contains_key(&self.name) {
                return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a table \"{}\"", self.name)));
            }
            if catalog.views.contains_key(&self.name) {
                if self.if_not_exists {
                    return Ok(((), Vec::new()));
                }
                if !self.or_replace {
                    let error =
                        Error::new(ErrorKind::AlreadyExists, format!("there is a view \"{}\" already", self.name));
                    return Err(error.with_hint("CREATE OR REPLACE VIEW replaces it"));
                }
            }
            catalog.views.insert(self.name.clone(), text);
            Ok(((), vec![Change::PutView { name: self.name.clone() }]))
        })?;
        commit.wait(context.query.shared_ledger()).await?;
        Ok(done("CREATE VIEW", None))
    }
}
