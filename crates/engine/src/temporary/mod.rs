//! Temporary tables: a session's own, which nobody else sees and which end with it.
//!
//! They are the tables of a database in memory beside the one that the session is on ([`Database::for_temporary_tables`]), and
//! all that can be done with tables can be done with these.
//! - A statement sees both as one ([`Snapshot::with`]), and changes either. To change temporary tables it waits for nobody, and
//!   may be allowed nothing else: the database may be open for reading only.
//! - No name is in both: who asks for one that another session has made something of meanwhile is told so
//!   ([`Snapshot::only_once`]).
//! - The session's transaction is about both. The temporary tables' part of it ([`Transaction`]) begins with the first statement
//!   that changes one, and has the savepoints that there are by then; it ends with the other, after it.
//! - Rows that are worth a segment are in a folder in `temp_directory` ([`TemporaryVolume`]).

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

/// What a temporary table is after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnCommit {
    /// What it was.
    PreserveRows,
    /// Empty.
    DeleteRows,
    /// Gone.
    Drop,
}

impl OnCommit {
    /// What says so behind a definition, if it has to be said.
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
    /// By the id of a table; of those that are not to stay as they are.
    on_commit: Mutex<HashMap<u64, OnCommit>>,
    /// The catalogs that were seen last: most statements see the same. They hold no files.
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
    /// None yet, beside a database.
    pub fn new(beside: &Database, settings: &Settings) -> Result<Self> {
        let volume = Arc::new(TemporaryVolume::new(settings.temp_directory()));
        let database = beside.for_temporary_tables(volume)?;
        Ok(Self { database, transaction: Mutex::default(), on_commit: Mutex::default(), seen: Mutex::default() })
    }

    /// What their tables are in.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Where their part of the session's transaction is.
    pub fn transaction(&self) -> &Mutex<Option<Transaction>> {
        &self.transaction
    }

    /// They, as the session sees them now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let transaction = lock(&self.transaction);
        transaction.as_ref().map_or_else(|| self.database.snapshot(), |transaction| Arc::clone(transaction.view()))
    }

    /// A snapshot of the database, with the tables of one of these.
    pub fn over(&self, permanent: &Arc<Snapshot>, temporary: &Arc<Snapshot>) -> Arc<Snapshot> {
        // Where there is nothing besides, it is what all see, and plans are kept of.
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

    /// Begins their part of a transaction that is `of` the session, or of its statement alone, unless it has begun.
    pub fn begin(&self, of: Option<&Transaction>) {
        lock(&self.transaction).get_or_insert_with(|| {
            let mut transaction = Transaction::new(self.database.snapshot(), None);
            of.iter().flat_map(|of| of.savepoints()).for_each(|name| transaction.savepoint(name.to_string()));
            transaction
        });
    }

    /// Whether a statement that is no part of a transaction has to be one, because its commit does more than it says.
    pub fn has_work_at_commits(&self) -> bool {
        !lock(&self.on_commit).is_empty()
    }

    /// What a table is after a commit.
    pub fn on_commit(&self, table: u64) -> OnCommit {
        lock(&self.on_commit).get(&table).copied().unwrap_or(OnCommit::PreserveRows)
    }

    /// A table was made.
    pub fn made(&self, table: u64, on_commit: OnCommit) {
        if on_commit != OnCommit::PreserveRows {
            lock(&self.on_commit).insert(table, on_commit);
        }
    }

    /// What has been done since the transaction began, which is over for them: to be committed, or dropped.
    pub fn end(&self) -> Option<Transaction> {
        lock(&self.transaction).take()
    }

    /// Commits what [`end`](Self::end) gave.
    ///
    /// # Errors
    /// There is no memory for it. Then nothing of it has happened.
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
