//! `CREATE [OR REPLACE] VIEW [IF NOT EXISTS] name AS query` stores the text of the query, which
//! must plan without errors now.

use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::{CreateTableOptions, CreateView as SqlCreateView, Query, Statement as Sql};

use super::{Context, done, new_name};
use crate::catalog::{Catalog, Change};
use crate::planner;
use crate::query::Done;
use crate::{Error, ErrorKind, Result};

/// A parsed `CREATE VIEW`.
#[derive(Debug)]
pub(super) struct CreateView {
    name: String,
    or_replace: bool,
    if_not_exists: bool,
    query: Box<Query>,
}

pub(super) fn convert(create: SqlCreateView) -> Result<CreateView> {
    // The pattern names every field, so that a field added by a later parser does not compile.
    let SqlCreateView {
        or_alter,
        or_replace,
        materialized,
        secure,
        name,
        name_before_not_exists: _,
        columns,
        query,
        options,
        cluster_by,
        comment,
        with_no_schema_binding,
        if_not_exists,
        temporary,
        copy_grants,
        to,
        params,
    } = create;
    if materialized || temporary || !columns.is_empty() {
        let error = Error::new(ErrorKind::Invalid, "views cannot be materialized, temporary or rename their columns");
        return Err(error.with_hint("name the columns in the query with AS; CREATE TABLE AS keeps the rows"));
    }
    let has_more = [
        (or_alter, "OR ALTER"),
        (secure, "SECURE"),
        (!matches!(options, CreateTableOptions::None), "options"),
        (!cluster_by.is_empty(), "CLUSTER BY"),
        (comment.is_some(), "COMMENT"),
        (with_no_schema_binding, "WITH NO SCHEMA BINDING"),
        (copy_grants, "COPY GRANTS"),
        (to.is_some(), "TO"),
        (params.is_some(), "ALGORITHM, DEFINER or SQL SECURITY"),
    ];
    if let Some((_, clause)) = has_more.iter().find(|(is_there, _)| *is_there) {
        return Err(Error::new(ErrorKind::Invalid, format!("CREATE VIEW with {clause} is not supported"))
            .with_hint("CREATE [OR REPLACE] VIEW [IF NOT EXISTS] name AS query"));
    }
    Ok(CreateView { name: new_name(&name)?, or_replace, if_not_exists, query })
}

impl CreateView {
    /// Settles the expressions of the query. See [`planner::settle`].
    pub fn settle(&mut self) -> Result<()> {
        planner::settle(self.query.as_mut())
    }

    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        context.database.check_writable()?;
        let text = self.query.to_string();
        let statement = DataFusionStatement::Statement(Box::new(Sql::Query(self.query)));
        if context.snapshot.is_temporary(&self.name) {
            let message = format!("there is a temporary table \"{}\"", self.name);
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        if let Err(error) = context.of_database()?.plan(statement.clone()).await {
            // The query is valid in this session, and in no other.
            let is_of_session = context.session.temporary().is_some() && context.plan(statement).await.is_ok();
            return Err(match is_of_session {
                true => error.with_hint("views are for all sessions, and cannot stand on temporary tables of one"),
                false => error,
            });
        }
        let Self { name, or_replace, if_not_exists, .. } = self;
        let change = move |catalog: &mut Catalog| {
            if catalog.tables.contains_key(&name) {
                return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a table \"{name}\"")));
            }
            if catalog.views.contains_key(&name) {
                if if_not_exists {
                    return Ok(((), Vec::new()));
                }
                if !or_replace {
                    let error = Error::new(ErrorKind::AlreadyExists, format!("there is a view \"{name}\" already"));
                    return Err(error.with_hint("CREATE OR REPLACE VIEW replaces it"));
                }
            }
            catalog.views.insert(name.clone(), text.clone());
            Ok(((), vec![Change::PutView { name: name.clone() }]))
        };
        context.change(None, change).await?;
        Ok(done("CREATE VIEW", None))
    }
}
