//! Applies the changes of a statement to the session's transaction, or without one in a commit of
//! its own.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::insert::LoadedRows;
use super::{Context, checkpoint, residence};
use crate::catalog::{Catalog, Change};
use crate::edit::TableEdit;
use crate::fresh::NewRows;
use crate::load::Target;
use crate::snapshot::{Snapshot, Table};
use crate::transaction::Transaction;
use crate::writer::Writing;
use crate::{Error, ErrorKind, Result};

/// A statement with the writer slot, by itself or through its transaction.
#[derive(Debug)]
pub(super) struct Write {
    /// The writer slot; `None` if the transaction has it.
    writing: Option<Writing>,
    /// The snapshot that the statement reads.
    pub seen: Arc<Snapshot>,
}

impl Context<'_> {
    /// Returns the session's transaction, locked.
    pub fn transaction(&self) -> MutexGuard<'_, Option<Transaction>> {
        self.transaction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the write of a statement that adds rows computed from its initial snapshot.
    pub(super) async fn write(&self) -> Result<Write> {
        let writing = self.take_place().await?;
        Ok(Write { writing, seen: Arc::clone(&self.snapshot) })
    }

    /// Begins the write of a statement that has read nothing yet and changes the rows it reads.
    /// Without a transaction, it reads the newest snapshot.
    pub(super) async fn write_what_it_sees(&self) -> Result<Write> {
        let writing = self.take_place().await?;
        let seen = match (&writing, self.transaction().as_ref()) {
            (Some(writing), _) => self.database.head(writing)?,
            (None, Some(transaction)) => Arc::clone(transaction.view()),
            (None, None) => return Err(no_transaction()),
        };
        Ok(Write { writing, seen: self.with_the_others(seen) })
    }

    /// Returns the snapshot of a statement that sees the tables it changes as they are in
    /// `changed`.
    pub(super) fn with_the_others(&self, changed: Arc<Snapshot>) -> Arc<Snapshot> {
        match (self.temporary, self.session.temporary()) {
            (Some(temporary), _) => temporary.over(&self.snapshot.permanent(), &changed),
            (None, Some(temporary)) => temporary.over(&changed, &temporary.snapshot()),
            (None, None) => changed,
        }
    }

    /// Changes the catalog: in the transaction, or durably. `change` may run several times, on
    /// catalogs of different moments. It returns its result and its changes. `files` are those of
    /// the segments of a new table. They are kept if there were changes.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        files: Option<Target>,
        change: impl Fn(&mut Catalog) -> Result<(T, Vec<Change>)> + Send + Sync + 'static,
    ) -> Result<T> {
        let Some(writing) = self.take_place().await? else {
            let mut slot = self.transaction();
            let transaction = slot.as_mut().ok_or_else(no_transaction)?;
            let (result, changes) = change(&mut Catalog::clone(&transaction.view().catalog))?;
            if !changes.is_empty() {
                let again = Arc::new(move |catalog: &mut Catalog| change(catalog).map(drop));
                transaction.change(self.database, again, files)?;
            }
            return Ok(result);
        };
        self.query.settle()?;
        let ((result, is_done), commit) = self.database.change(writing, |catalog| {
            let (result, changes) = change(catalog)?;
            Ok(((result, !changes.is_empty()), changes))
        })?;
        if let (Some(files), true) = (&files, is_done) {
            files.keep_files();
        }
        commit.wait(self.query.shared_ledger()).await?;
        Ok(result)
    }

    /// Takes the writer slot for this statement. Returns `None` if its transaction has it from now
    /// on.
    async fn take_place(&self) -> Result<Option<Writing>> {
        let is_writing = self.transaction().as_ref().map(Transaction::is_writing);
        if is_writing == Some(true) {
            return Ok(None);
        }
        let writing = self.database.writing(&self.settings()).await?;
        match self.transaction().as_mut() {
            None => Ok(Some(writing)),
            Some(transaction) => {
                transaction.begin_writing(writing, self.database)?;
                Ok(None)
            }
        }
    }
}

pub(super) fn no_transaction() -> Error {
    Error::new(ErrorKind::Internal, "a statement's transaction is gone")
}

impl Write {
    /// Adds loaded rows to an edit. The caller passes the returned target along with the edit.
    pub fn add(
        &self,
        rows: LoadedRows,
        table: &Table,
        edit: &mut TableEdit,
        context: &Context<'_>,
    ) -> Result<Option<Target>> {
        let LoadedRows { loaded, target } = rows;
        for rows in loaded.rows {
            let slot = context.transaction();
            let writing = match (&self.writing, slot.as_ref()) {
                (Some(writing), _) => writing,
                (None, Some(transaction)) => transaction.writing()?,
                (None, None) => return Err(no_transaction()),
            };
            let first_id = context.database.new_rows(rows.len(), writing).start;
            edit.rows.push(NewRows { first_id, rows });
        }
        let Some(target) = target else { return Ok(None) };
        let files = loaded.segments.into_iter().map(|entry| target.segment_file(entry, &table.name));
        edit.segments.extend(files);
        Ok((!edit.segments.is_empty()).then_some(target))
    }

    /// Changes a table: in the transaction, or durably.
    pub async fn edit(self, table: &str, edit: TableEdit, target: Option<Target>, context: &Context<'_>) -> Result<()> {
        self.edits(vec![(table.to_string(), edit)], target, context).await
    }

    /// Changes all of the tables or none.
    pub async fn edits(
        self,
        mut edits: Vec<(String, TableEdit)>,
        mut target: Option<Target>,
        context: &Context<'_>,
    ) -> Result<()> {
        edits.retain(|(_, edit)| !edit.is_empty());
        let Some(writing) = self.writing else {
            let mut slot = context.transaction();
            let transaction = slot.as_mut().ok_or_else(no_transaction)?;
            return edits
                .into_iter()
                .try_for_each(|(name, edit)| transaction.edit(context.database, &name, edit, target.take()));
        };
        if edits.is_empty() {
            return Ok(());
        }
        context.query.settle()?;
        let commit = context.database.edit(writing, &edits, &self.seen)?;
        if let Some(target) = &target {
            target.keep_files();
        }
        commit.wait(context.query.shared_ledger()).await?;
        let names: Vec<String> = edits.into_iter().map(|(name, _)| name).collect();
        for name in &names {
            residence::follow(name, context).await?;
        }
        checkpoint::if_due(&names, context).await;
        Ok(())
    }
}
