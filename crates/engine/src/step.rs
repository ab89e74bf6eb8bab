//! What a transaction has done so far, as a list of steps that are carried out twice: over what it sees, one after the other, and
//! at its end over what is committed by then, all at once.
//!
//! 1. Rows are edited in the version of a table that was looked at ([`Snapshot::unchanged`]), unless the table is the
//!    transaction's own: made by an earlier step, it is nobody else's.
//! 2. The catalog is changed by a function that looks before it does anything: it fails the second time if somebody else has
//!    taken the name meanwhile.
//! 3. What is written is the difference between the catalogs before and after, and then rows of tables that are there in the end:
//!    of one that was made and dropped again nothing is left.

use std::collections::HashSet;
use std::sync::Arc;

use onehop_io::Volume;

use crate::catalog::{Catalog, Change};
use crate::edit::TableEdit;
use crate::snapshot::Snapshot;
use crate::{Error, ErrorKind, Result};

/// A change of the catalog, which may be carried out again over another one.
pub(crate) type CatalogChange = Arc<dyn Fn(&mut Catalog) -> Result<()> + Send + Sync>;

/// One thing that a transaction has done.
#[derive(Clone)]
pub(crate) enum Step {
    /// Rows of a table, by its name.
    Rows(String, TableEdit),
    Catalog(CatalogChange),
}

impl Step {
    /// If it is one of the catalog.
    pub fn of_catalog(&self) -> Option<&CatalogChange> {
        match self {
            Self::Rows(..) => None,
            Self::Catalog(change) => Some(change),
        }
    }
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rows(name, edit) => f.debug_tuple("Rows").field(name).field(edit).finish(),
            Self::Catalog(_) => f.debug_tuple("Catalog").finish_non_exhaustive(),
        }
    }
}

impl Snapshot {
    /// What comes of it by `steps`, which looked at `seen`; and what makes that durable.
    pub(crate) fn after(
        &self,
        steps: &[Step],
        seen: &Snapshot,
        volume: &Arc<dyn Volume>,
    ) -> Result<(Snapshot, Vec<Change>)> {
        let (mut next, mut rows) = (self.clone(), Vec::new());
        for step in steps {
            match step {
                Step::Rows(name, edit) => {
                    if !next.is_own(name, self) {
                        self.unchanged(name, edit, seen)?;
                    }
                    rows.extend(next.apply(name, edit)?);
                }
                Step::Catalog(change) => next = next.changed(&**change, volume)?,
            }
        }
        if !steps.iter().any(|step| step.of_catalog().is_some()) {
            return Ok((next, rows));
        }
        let mut changes = difference(&self.catalog, &next.catalog);
        let there: HashSet<u64> = next.tables().map(|table| table.entry.id).collect();
        changes.extend(rows.into_iter().filter(|change| table_of(change).is_none_or(|id| there.contains(&id))));
        Ok((next, changes))
    }

    /// The same with another catalog.
    pub(crate) fn changed(
        &self,
        change: &(dyn Fn(&mut Catalog) -> Result<()> + Send + Sync),
        volume: &Arc<dyn Volume>,
    ) -> Result<Snapshot> {
        let mut catalog = Catalog::clone(&self.catalog);
        change(&mut catalog)?;
        refuse_same_names(&self.catalog, &catalog)?;
        self.with_catalog(catalog, volume)
    }

    /// Whether a table was made since `before`, or is another one than it was there.
    pub(crate) fn is_own(&self, name: &str, before: &Snapshot) -> bool {
        let there = before.table(name).map(|table| table.entry.id);
        self.table(name).is_some_and(|table| there != Some(table.entry.id))
    }
}

/// A statement looks before it works; somebody may have been faster since.
pub(crate) fn refuse_same_names(before: &Catalog, next: &Catalog) -> Result<()> {
    let Some(name) = next.tables.keys().find(|name| next.views.contains_key(*name)) else { return Ok(()) };
    let kind = if before.views.contains_key(name) { "view" } else { "table" };
    Err(Error::new(ErrorKind::AlreadyExists, format!("there is a {kind} \"{name}\"")))
}

fn difference(before: &Catalog, after: &Catalog) -> Vec<Change> {
    let mut changes = Vec::new();
    let gone = before.tables.keys().filter(|name| !after.tables.contains_key(*name)).cloned();
    changes.extend(gone.map(|name| Change::DropTable { name }));
    let is_other = |name: &str, id: u64| before.tables.get(name).is_none_or(|table| table.id != id);
    let new = after.tables.iter().filter(|(name, table)| is_other(name, table.id));
    changes.extend(new.map(|(name, _)| Change::PutTable { name: name.clone() }));
    texts(&before.views, &after.views, &mut changes, |name| Change::PutView { name }, |name| Change::DropView { name });
    let (put, drop) = (|name| Change::PutModel { name }, |name| Change::DropModel { name });
    texts(&before.models, &after.models, &mut changes, put, drop);
    let (put, drop) = (|name| Change::PutFunction { name }, |name| Change::DropFunction { name });
    texts(&before.functions, &after.functions, &mut changes, put, drop);
    changes
}

type Texts = std::collections::BTreeMap<String, String>;

fn texts(
    before: &Texts,
    after: &Texts,
    changes: &mut Vec<Change>,
    put: impl Fn(String) -> Change,
    drop: impl Fn(String) -> Change,
) {
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    changes.extend(gone.cloned().map(drop));
    let new = after.iter().filter(|(name, text)| before.get(*name) != Some(*text));
    changes.extend(new.map(|(name, _)| put(name.clone())));
}

/// The table that a change of rows or segments is about.
fn table_of(change: &Change) -> Option<u64> {
    match change {
        Change::AddSegments { table, .. }
        | Change::RemoveSegments { table, .. }
        | Change::AddRows { table, .. }
        | Change::RemoveRows { table, .. }
        | Change::DeleteRows { table, .. } => Some(*table),
        Change::PutTable { .. }
        | Change::DropTable { .. }
        | Change::PutView { .. }
        | Change::DropView { .. }
        | Change::PutModel { .. }
        | Change::DropModel { .. }
        | Change::PutFunction { .. }
        | Change::DropFunction { .. }
        | Change::PutPlace { .. }
        | Change::PutIdentity { .. }
        | Change::ForgetRemoved { .. } => None,
    }
}
