//! Temporary tables: tables of one session that other sessions do not see. They end with it.
//!
//! They are the tables of a database in memory beside the session's database
//! ([`Database::for_temporary_tables`]), and support all operations on tables.
//! - A statement sees both databases as one ([`Snapshot::with`]), and changes either. A change of
//!   temporary tables waits for no other session and needs no other right: the database may be open
//!   for reading only.
//! - No name is in both. If another session has meanwhile created something of the same name, a
//!   statement that uses the name gets an error ([`Snapshot::only_once`]).
//! - The session's transaction covers both. The temporary tables' part of it ([`Transaction`])
//!   begins with the first statement that changes one, with the savepoints that exist by then. It
//!   ends after the other part.
//! - Rows that fill a segment are in a folder in `temp_directory` ([`TemporaryVolume`]).

mod volume;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onehop_io::Ledger;

use self::volume::TemporaryVolume;
use crate::Result;
use crate::catalog::Catalog;
use crate::database::Database;
use crate::edit::TableEdit;
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::transaction::{Ended, Transaction};

/// The action on a temporary table at a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnCommit {
    /// Keeps the rows.
    PreserveRows,
    /// Deletes the rows.
    DeleteRows,
    /// Drops the table.
    Drop,
}

impl OnCommit {
    /// Returns the clause of a definition; empty for the default.
    pub fn clause(self) -> &'static str {
        match self {
            Self::PreserveRows => "",
            Self::DeleteRows => "\nON COMMIT DELETE ROWS",
            Self::Drop => "\nON COMMIT DROP",
        }
    }
}

/// The temporary tables of a session.
#[derive(Debug)]
pub(crate) struct Temporary {
    database: Database,
    /// Their part of the session's transaction.
    transaction: Mutex<Option<Transaction>>,
    /// The action by table id, for tables that do not keep their rows.
    on_commit: Mutex<HashMap<u64, OnCommit>>,
    /// The catalogs seen last, since most statements see the same. They hold no files.
    seen: Mutex<Option<Seen>>,
}

/// Catalogs of one moment.
#[derive(Debug)]
struct Seen {
    permanent: Arc<Catalog>,
    temporary: Arc<Catalog>,
    both: Arc<Catalog>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Temporary {
    /// Creates an empty set of temporary tables beside a database.
    pub fn new(beside: &Database, settings: &Settings) -> Result<Self> {
        let volume = Arc::new(TemporaryVolume::new(settings.temp_directory()));
        let database = beside.for_temporary_tables(volume)?;
        Ok(Self { database, transaction: Mutex::default(), on_commit: Mutex::default(), seen: Mutex::default() })
    }

    /// Returns the database of the temporary tables.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Returns their part of the session's transaction.
    pub fn transaction(&self) -> &Mutex<Option<Transaction>> {
        &self.transaction
    }

    /// Returns the temporary tables as the session sees them now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let transaction = lock(&self.transaction);
        transaction.as_ref().map_or_else(|| self.database.snapshot(), |transaction| Arc::clone(transaction.view()))
    }

    /// Returns a snapshot of the database with the temporary tables of another snapshot.
    pub fn over(&self, permanent: &Arc<Snapshot>, temporary: &Arc<Snapshot>) -> Arc<Snapshot> {
        // Without temporary tables, it is the snapshot that all sessions share and for which plans
        // are cached.
        if temporary.tables().next().is_none() {
            return Arc::clone(permanent);
        }
        let mut seen = lock(&self.seen);
        let is_same = |seen: &&Seen| {
            Arc::ptr_eq(&seen.permanent, &permanent.catalog) && Arc::ptr_eq(&seen.temporary, &temporary.catalog)
        };
        let both = match seen.as_ref().filter(is_same) {
            Some(seen) => Arc::clone(&seen.both),
            None => {
                let mut both = Catalog::clone(&permanent.catalog);
                both.tables.extend(temporary.catalog.tables.clone());
                Arc::new(both)
            }
        };
        *seen = Some(Seen {
            permanent: Arc::clone(&permanent.catalog),
            temporary: Arc::clone(&temporary.catalog),
            both: Arc::clone(&both),
        });
        Arc::new(permanent.with(temporary, both))
    }

    /// Begins their part of the transaction `of` the session, or of a single statement, unless it
    /// has begun.
    pub fn begin(&self, of: Option<&Transaction>) {
        lock(&self.transaction).get_or_insert_with(|| {
            let mut transaction = Transaction::new(self.database.snapshot(), None);
            of.iter().flat_map(|of| of.savepoints()).for_each(|name| transaction.savepoint(name.to_string()));
            transaction
        });
    }

    /// Returns whether commits have work to do. Then a statement outside a transaction needs one.
    pub fn has_work_at_commits(&self) -> bool {
        !lock(&self.on_commit).is_empty()
    }

    /// Returns the action on a table at a commit.
    pub fn on_commit(&self, table: u64) -> OnCommit {
        lock(&self.on_commit).get(&table).copied().unwrap_or(OnCommit::PreserveRows)
    }

    /// Records a new table.
    pub fn made(&self, table: u64, on_commit: OnCommit) {
        if on_commit != OnCommit::PreserveRows {
            lock(&self.on_commit).insert(table, on_commit);
        }
    }

    /// Ends the transaction for these tables and returns it, to be committed or dropped.
    pub fn end(&self) -> Option<Transaction> {
        lock(&self.transaction).take()
    }

    /// Commits the transaction that [`end`](Self::end) returned.
    ///
    /// # Errors
    /// Fails if there is no memory for it. Then nothing has changed.
    pub async fn commit(&self, mut transaction: Transaction, ledger: &Arc<Ledger>) -> Result<Ended> {
        if transaction.is_writing() {
            self.work_of_commit(&mut transaction)?;
        }
        let ended = transaction.commit(&self.database, ledger).await?;
        let there = self.database.snapshot();
        let there: Vec<u64> = there.tables().map(|table| table.entry.id).collect();
        lock(&self.on_commit).retain(|table, _| there.contains(table));
        Ok(ended)
    }

    fn work_of_commit(&self, transaction: &mut Transaction) -> Result<()> {
        let view = Arc::clone(transaction.view());
        let on_commit = lock(&self.on_commit).clone();
        for table in view.tables() {
            match on_commit.get(&table.entry.id) {
                Some(OnCommit::Drop) => {
                    let name = table.name.clone();
                    let change = move |catalog: &mut Catalog| {
                        catalog.tables.remove(&name);
                        Ok(())
                    };
                    transaction.change(&self.database, Arc::new(change), None)?;
                }
                Some(OnCommit::DeleteRows) => {
                    let mut edit = TableEdit::default();
                    edit.remove_all(table)?;
                    if !edit.is_empty() {
                        transaction.edit(&self.database, &table.name, edit, None)?;
                    }
                }
                Some(OnCommit::PreserveRows) | None => {}
            }
        }
        Ok(())
    }
}
