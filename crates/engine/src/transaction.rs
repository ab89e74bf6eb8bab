//! Transactions of several statements, one per session.
//!
//! - A transaction sees the database as of its first statement, and what it has changed itself. Nobody else sees that before
//!   it is committed.
//! - It is in the writer's place from its first change to its end (from its beginning with `BEGIN IMMEDIATE`). Others read
//!   meanwhile, and wait if they want to change anything.
//! - Its changes, of rows and of the catalog, are values in memory ([`Step`]), and commit as one: a crash leaves all of them or none. Segments that it
//!   wrote are files that nobody mentions until then.
//! - A savepoint is the list of changes so far, which are values: going back to one is putting it in place of the list.
//! - When a statement fails, the transaction has failed, as in PostgreSQL: until ROLLBACK, or ROLLBACK TO a savepoint, all
//!   else is refused, and COMMIT rolls back. Half of what somebody meant to do is never committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use chrono::{DateTime, Utc};
use onehop_io::Ledger;
use onehop_store::mutant::skips;

use crate::catalog::Catalog;
use crate::catalog::stands_on_nothing;
use crate::database::Database;
use crate::edit::TableEdit;
use crate::load::Target;
use crate::snapshot::{SegmentFile, Snapshot};
use crate::step::{CatalogChange, Step, refuse_same_names};
use crate::task;
use crate::writer::Writing;
use crate::{Error, ErrorKind, Object, Result};

/// Steps that are carried out in no more time than a commit takes.
const SHORT_STEPS: usize = 64;

/// A session's transaction.
#[derive(Debug)]
pub(crate) struct Transaction {
    /// What it sees apart from its own changes.
    begun: Arc<Snapshot>,
    /// When it began, which is what `now()` is in all of its statements.
    pub since: DateTime<Utc>,
    /// No statement has looked at `begun` yet.
    is_untouched: bool,
    /// Whether `begun` was in order, and perhaps not durable, when it began: it stands and falls with that.
    stands_on_head: bool,
    writing: Option<Writing>,
    work: Work,
    savepoints: Vec<(String, Work)>,
    /// Segments that it wrote: their files go when these are dropped, unless they are kept.
    files: Vec<Target>,
    /// Segments that it saw once, and does not see any more.
    gone: Vec<Arc<SegmentFile>>,
    /// Set by its statements, and by rows that are still being read.
    is_failed: Arc<AtomicBool>,
    /// Whether it may change nothing but temporary tables, if it says so; otherwise its session does.
    pub is_read_only: Option<bool>,
}

/// What it has changed so far.
#[derive(Clone, Debug)]
struct Work {
    /// What its next statement sees.
    view: Arc<Snapshot>,
    steps: Vec<Step>,
}

/// How a transaction ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// There was nothing to commit.
    Unchanged,
    /// These tables are different now.
    Changed(Vec<String>),
}

impl Transaction {
    /// One that sees `begun`: what is durable or, in the writer's place, all that is in order.
    pub fn new(begun: Arc<Snapshot>, writing: Option<Writing>) -> Self {
        let stands_on_head = writing.is_some();
        let work = Work { view: Arc::clone(&begun), steps: Vec::new() };
        let (savepoints, files, gone) = (Vec::new(), Vec::new(), Vec::new());
        let (is_untouched, is_failed, is_read_only) = (true, Arc::default(), None);
        let since = Utc::now();
        Self {
            begun,
            since,
            is_untouched,
            stands_on_head,
            writing,
            work,
            savepoints,
            files,
            gone,
            is_failed,
            is_read_only,
        }
    }

    /// What its next statement sees.
    pub fn view(&self) -> &Arc<Snapshot> {
        &self.work.view
    }

    /// A statement begins that looks at what is committed: as of now, if it is the first.
    pub fn look(&mut self, now: impl FnOnce() -> Arc<Snapshot>) -> &Arc<Snapshot> {
        if self.is_untouched && self.writing.is_none() {
            self.begin_at(now());
        }
        self.view()
    }

    fn begin_at(&mut self, snapshot: Arc<Snapshot>) {
        self.begun = Arc::clone(&snapshot);
        self.work = Work { view: snapshot, steps: Vec::new() };
    }

    /// A statement has been carried out. Queries' rows may still be on their way.
    pub fn succeeded(&mut self) {
        self.is_untouched = false;
    }

    /// Whether no statement has been carried out in it.
    pub fn is_untouched(&self) -> bool {
        self.is_untouched
    }

    /// A statement has failed.
    pub fn failed(&mut self) {
        self.is_failed.store(true, SeqCst);
    }

    /// The flag of its failure, for rows that are read while it goes on.
    pub fn failure(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_failed)
    }

    /// Whether nothing but its end is accepted.
    pub fn is_failed(&self) -> bool {
        self.is_failed.load(SeqCst)
    }

    /// Whether it is in the writer's place.
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// It is in the writer's place from now on. If nothing has been looked at before, it sees what is newest there.
    pub fn begin_writing(&mut self, writing: Writing, database: &Database) -> Result<()> {
        if self.is_untouched {
            self.begin_at(database.head(&writing)?);
            self.stands_on_head = true;
        }
        self.writing = Some(writing);
        Ok(())
    }

    /// Whether another transaction has changed or dropped a table since this one began.
    pub fn is_overtaken(&self, table: &str, head: &Snapshot) -> bool {
        let is_here = |seen| head.table(table).is_some_and(|here| Arc::ptr_eq(seen, here));
        self.begun.table(table).is_some_and(|seen| !is_here(seen))
    }

    /// The writer's place.
    ///
    /// # Errors
    /// If it is not in it: [`begin_writing`](Self::begin_writing) comes first.
    pub fn writing(&self) -> Result<&Writing> {
        self.writing
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "a transaction changes rows out of its turn"))
    }

    /// Changes a table. `files` are those of its new segments.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if rows are to be removed of a table that others have changed since it began. Nothing is
    /// changed then.
    pub fn edit(&mut self, database: &Database, name: &str, edit: TableEdit, files: Option<Target>) -> Result<()> {
        if !self.work.view.is_own(name, &self.begun) {
            database.head(self.writing()?)?.unchanged(name, &edit, &self.begun)?;
        }
        let mut view = Snapshot::clone(&self.work.view);
        view.apply(name, &edit)?;
        self.did(view, Step::Rows(name.to_string(), edit), files);
        Ok(())
    }

    /// Changes the catalog. `files` are those of the segments of a new table.
    ///
    /// # Errors
    /// Those of `change`, which is tried on what is committed as well: somebody else may have taken a name since it began.
    /// Nothing is changed then.
    pub fn change(&mut self, database: &Database, change: CatalogChange, files: Option<Target>) -> Result<()> {
        let head = database.head(self.writing()?)?;
        if !Arc::ptr_eq(&head.catalog, &self.begun.catalog) {
            let mut catalog = Catalog::clone(&head.catalog);
            let earlier = self.work.steps.iter().filter_map(Step::of_catalog);
            earlier.chain([&change]).try_for_each(|change| change(&mut catalog))?;
            refuse_same_names(&head.catalog, &catalog)?;
        }
        let view = self.work.view.changed(&*change, database.segments())?;
        self.did(view, Step::Catalog(change), files);
        Ok(())
    }

    fn did(&mut self, view: Snapshot, step: Step, files: Option<Target>) {
        self.gone.extend(self.work.view.segments_not_in(&view));
        self.work.view = Arc::new(view);
        self.work.steps.push(step);
        self.files.extend(files);
    }

    /// Remembers what has been done so far, by a name that hides others of its kind.
    pub fn savepoint(&mut self, name: String) {
        // What it goes back to is what was seen here.
        self.is_untouched = false;
        self.savepoints.push((name, self.work.clone()));
    }

    /// The names of savepoints, the oldest first.
    pub fn savepoints(&self) -> impl Iterator<Item = &str> {
        self.savepoints.iter().map(|(name, _)| name.as_str())
    }

    fn place_of(&self, name: &str) -> Result<usize> {
        self.savepoints.iter().rposition(|(known, _)| known == name).ok_or_else(|| {
            let error = Error::new(ErrorKind::NotFound, format!("this transaction has no savepoint \"{name}\""));
            error.of(Object::Savepoint)
        })
    }

    /// Undoes what was done since a savepoint, which stays.
    pub fn roll_back_to(&mut self, name: &str) -> Result<()> {
        let place = self.place_of(name)?;
        self.savepoints.truncate(place + 1);
        let work = self.savepoints[place].1.clone();
        self.gone.extend(self.work.view.segments_not_in(&work.view));
        self.work = work;
        self.is_failed.store(false, SeqCst);
        Ok(())
    }

    /// Forgets a savepoint and later ones; what was done since stays.
    pub fn release(&mut self, name: &str) -> Result<()> {
        let place = self.place_of(name)?;
        self.savepoints.truncate(place);
        Ok(())
    }

    /// Makes its changes durable.
    pub async fn commit(self, database: &Database, ledger: &Arc<Ledger>) -> Result<Ended> {
        let Self { begun, writing, work, files, gone, stands_on_head, .. } = self;
        let (Some(writing), false) = (writing, work.steps.is_empty()) else { return Ok(Ended::Unchanged) };
        // Files are synced before the commit that names them.
        if work.steps.len() > SHORT_STEPS || !files.is_empty() {
            task::long().await;
        }
        if stands_on_head && database.head(&writing)?.is_of_later_epoch(&begun) {
            return Err(stands_on_nothing());
        }
        let commit = database.carry_out(writing, &work.steps, &begun)?;
        if !skips("commit.keep-files") {
            files.iter().for_each(Target::keep_files);
        }
        commit.wait(ledger).await?;
        // What it made and removed again nobody will ever mention.
        let before_and_after = [&begun, &work.view].map(|snapshot| snapshot.segment_names());
        for segment in gone {
            if !before_and_after.iter().any(|names| names.contains(segment.entry.file.as_str())) {
                segment.is_dropped.store(true, SeqCst);
            }
        }
        let tables = work.view.tables();
        let is_other = |name: &str, table| begun.table(name).is_none_or(|before| !Arc::ptr_eq(before, table));
        let changed = tables.filter(|table| is_other(&table.name, *table)).map(|table| table.name.clone());
        Ok(Ended::Changed(changed.collect()))
    }
}

/// Refuses a statement in a transaction that has failed.
pub(crate) fn refuse_failed() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "an earlier statement of this transaction failed, so no further ones are carried out",
    )
    .with_hint("ROLLBACK ends it; ROLLBACK TO a savepoint goes back to before the error")
}
