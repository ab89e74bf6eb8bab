//! ```text
//! SELECT ... FOR {UPDATE | SHARE} [OF name] [NOWAIT | SKIP LOCKED]
//! ```
//! Rows are locked until their transaction ends: no other transaction changes or locks them
//! meanwhile. One transaction writes at a time, so the lock is the writer slot, which covers more
//! than these rows:
//!
//! 1. The transaction takes the slot before its query is planned. If it has not read anything yet,
//!    it reads the newest snapshot.
//! 2. Otherwise the tables of the query must be unchanged since its snapshot. If they are not, the
//!    statement fails, as in PostgreSQL's REPEATABLE READ: the locked rows would be outdated.
//! 3. `NOWAIT` does not wait for the slot. `SKIP LOCKED` does: once the transaction has the slot,
//!    no row is locked, so none is skipped.
//!
//! A statement that is a transaction by itself ends with its rows, and locks nothing. The planner
//! refuses a clause that is left in a tree: COPY, CREATE TABLE AS, CREATE VIEW and INSERT do not
//! lock the rows they read.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::{
    NonBlock, ObjectName, Query, Statement as Sql, Visit, VisitMut, VisitorMut, visit_relations,
};

use super::write::no_transaction;
use super::{Context, named};
use crate::rights::Rights;
use crate::transaction::Transaction;
use crate::{Error, ErrorKind, Result};

/// The wait for a lock that another transaction holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Waits for `lock_timeout` at most.
    UntilFree,
    /// `NOWAIT`: does not wait.
    Not,
}

/// The locks that a query requests.
#[derive(Debug)]
pub(super) struct Locks {
    wait: Wait,
    /// The relations that the query names: tables, views, files, and its own parts.
    relations: Vec<ObjectName>,
}

/// Removes the locking clauses from a query and its subqueries, and returns them.
pub(super) fn take_out(statement: &mut DataFusionStatement) -> Option<Locks> {
    let DataFusionStatement::Statement(sql) = statement else { return None };
    let Sql::Query(query) = sql.as_mut() else { return None };
    take_out_of(query.as_mut())
}

/// Removes the locking clauses from the queries in a tree, and returns them.
pub(super) fn take_out_of<T: Visit + VisitMut>(tree: &mut T) -> Option<Locks> {
    let mut clauses = Clauses::default();
    let _ = VisitMut::visit(tree, &mut clauses);
    let wait = clauses.wait?;
    let mut relations = Vec::new();
    let _ = visit_relations(tree, |name| {
        relations.push(name.clone());
        ControlFlow::<()>::Continue(())
    });
    Some(Locks { wait, relations })
}

#[derive(Default)]
struct Clauses {
    /// `None` if there is no clause.
    wait: Option<Wait>,
}

impl VisitorMut for Clauses {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        for clause in query.locks.drain(..) {
            let is_now = self.wait == Some(Wait::Not) || clause.nonblock == Some(NonBlock::Nowait);
            self.wait = Some(if is_now { Wait::Not } else { Wait::UntilFree });
        }
        ControlFlow::Continue(())
    }
}

impl Locks {
    /// Takes the locks. In a transaction, returns the context in which the query must run.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if a table has been changed since the transaction began;
    /// [`ErrorKind::Locked`] if another transaction writes for too long; an error if the session
    /// may not change data.
    pub async fn take<'a>(&self, context: &Context<'a>) -> Result<Option<Context<'a>>> {
        let tables = self.tables(context)?;
        context.settings().rights().need(Rights::Write, "FOR UPDATE or FOR SHARE")?;
        context.session.refuse_if_read_only()?;
        if context.transaction().is_none() || tables.iter().all(|name| context.snapshot.is_temporary(name)) {
            return Ok(None);
        }
        let is_writing = context.transaction().as_ref().is_some_and(Transaction::is_writing);
        if !is_writing {
            let limit = match self.wait {
                Wait::UntilFree => context.settings().lock_timeout(),
                Wait::Not => Some(Duration::ZERO),
            };
            let writing = context.database.writing_within(limit).await?;
            let mut slot = context.transaction();
            slot.as_mut().ok_or_else(no_transaction)?.begin_writing(writing, context.database)?;
        }
        let slot = context.transaction();
        let transaction = slot.as_ref().ok_or_else(no_transaction)?;
        let head = context.database.head(transaction.writing()?)?;
        if let Some(name) = tables.iter().find(|name| transaction.is_overtaken(name, &head)) {
            return Err(changed(name));
        }
        let snapshot = context.with_the_others(Arc::clone(transaction.view()));
        Ok(Some(Context { snapshot, state: OnceLock::new(), ..context.another() }))
    }

    /// Returns the tables whose rows are locked. A view locks all tables of the database.
    fn tables(&self, context: &Context<'_>) -> Result<BTreeSet<String>> {
        let snapshot = &context.snapshot;
        let mut tables = BTreeSet::new();
        for name in &self.relations {
            let Ok(known) = named(name, snapshot) else {
                match name.0.len() {
                    // The name is a part of the query, or planning reports that it does not exist.
                    1 => continue,
                    _ => return Err(elsewhere(name)),
                }
            };
            if snapshot.catalog.views.contains_key(&known) {
                tables.extend(snapshot.tables().map(|table| table.name.clone()));
            }
            tables.extend(snapshot.table(&known).map(|table| table.name.clone()));
        }
        Ok(tables)
    }
}

fn changed(name: &str) -> Error {
    let message = format!("rows of table \"{name}\" were changed by another session since this transaction began");
    Error::new(ErrorKind::Conflict, message)
        .with_hint("ROLLBACK, and do the transaction again; a FOR UPDATE that is its first query sees what is newest")
}

fn elsewhere(name: &ObjectName) -> Error {
    Error::new(ErrorKind::Invalid, format!("rows of {name} cannot be locked by FOR UPDATE or FOR SHARE"))
        .with_hint("the tables of this database can be")
}
