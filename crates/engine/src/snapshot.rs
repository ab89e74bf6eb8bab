//! What a database is as of one moment: its catalog, its tables, and the files and fresh rows that they have then.
//!
//! A [`Snapshot`] never changes. The next one shares all that is the same, and is made of the last one by edits of tables, or of
//! another catalog. A session that has temporary tables sees them in one with those of the database ([`Snapshot::with`]).

use std::collections::{BTreeMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{FieldRef, SchemaRef};
use onehop_io::{Ledger, Volume};
use onehop_segment::{DeletedRows, Segment};
use onehop_store::mutant::skips;

use crate::catalog::{Catalog, CatalogStore, SegmentEntry, TableEntry, row};
use crate::deleted_vectors::{deleted_rows_of, may_have};
use crate::fresh::{self, FreshRows};
use crate::scan_plan::ScanPlans;
use crate::{Error, ErrorKind, Result};

/// A database as of one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What was committed.
    pub catalog: Arc<Catalog>,
    pub(crate) tables: Tables,
    /// Commits before it, since the database was opened.
    pub(crate) number: u64,
    /// How often writers had gone on from what the store has when it was made.
    pub(crate) epoch: u64,
    /// Of what it was made, if it is what a session with temporary tables sees.
    parts: Option<Arc<Parts>>,
}

/// What a session with temporary tables sees, apart.
#[derive(Debug)]
struct Parts {
    permanent: Arc<Snapshot>,
    temporary: Arc<Snapshot>,
}

/// Tables in the order of their names, which they have themselves: every commit makes another list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables(Vec<Arc<Table>>);

impl Tables {
    fn place(&self, name: &str) -> std::result::Result<usize, usize> {
        self.0.binary_search_by(|table| table.name.as_str().cmp(name))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Table>> {
        self.place(name).ok().map(|place| &self.0[place])
    }

    /// Puts a table where another one of its name is, if there is one.
    pub(crate) fn put(&mut self, table: Arc<Table>) {
        match self.place(&table.name) {
            Ok(place) => self.0[place] = table,
            Err(place) => self.0.insert(place, table),
        }
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Arc<Table>> {
        self.0.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Arc<Table>> {
        self.0.iter_mut()
    }
}

/// A table as of one moment.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its description.
    pub entry: Arc<TableEntry>,
    /// Its columns.
    pub schema: SchemaRef,
    /// Its segments, in the order of the entry.
    pub segments: Vec<TableSegment>,
    /// Rows that no segment holds yet.
    pub fresh: Arc<FreshRows>,
    /// What its scans read.
    pub(crate) scans: ScanPlans,
}

/// A segment of a table as of one moment.
#[derive(Clone, Debug)]
pub struct TableSegment {
    /// The file, which versions share.
    pub file: Arc<SegmentFile>,
    /// Which of its rows are deleted; `None` if none are.
    pub deleted: Option<Arc<DeletedRows>>,
}

impl TableSegment {
    /// Its rows that are not deleted.
    pub fn live_rows(&self) -> u64 {
        self.file.entry.rows.saturating_sub(fresh::count_of(self.deleted.as_ref()))
    }

    /// Sees to it that rows which are deleted are there. The catalog alone does not know the lengths of blocks.
    pub(crate) fn check_deleted(&self) -> Result<()> {
        let Some(deleted) = &self.deleted else { return Ok(()) };
        let segment = self.segment()?;
        let is_there =
            |(block, row): &(usize, u16)| *block < segment.blocks() && usize::from(*row) < segment.block_rows(*block);
        match deleted.rows().find(|row| !is_there(row)) {
            None => Ok(()),
            Some((block, row)) => Err(self.corrupt(&format!("has no row {row} of block {block}, which is deleted"))),
        }
    }
}

impl Deref for TableSegment {
    type Target = SegmentFile;

    fn deref(&self) -> &SegmentFile {
        &self.file
    }
}

impl Table {
    /// Rows that are there: those of segments that are not deleted, and fresh ones.
    pub fn rows(&self) -> u64 {
        self.segments.iter().map(TableSegment::live_rows).sum::<u64>() + self.fresh.rows()
    }

    /// Rows of segments that are deleted.
    pub fn deleted_rows(&self) -> u64 {
        self.segments.iter().map(|segment| fresh::count_of(segment.deleted.as_ref())).sum()
    }

    /// Whether all its rows are in segments, and all rows of these are its.
    pub fn is_settled(&self) -> bool {
        self.fresh.is_empty() && self.deleted_rows() == 0
    }
}

/// A segment file, opened when it is first needed.
#[derive(Debug)]
pub struct SegmentFile {
    /// What the catalog says of it.
    pub entry: SegmentEntry,
    /// The name of its table.
    table: String,
    /// The columns of its table.
    pub(crate) schema: SchemaRef,
    volume: Arc<dyn Volume>,
    open: OnceLock<Arc<Segment>>,
    /// No catalog mentions it any more: the last reader removes the file.
    pub(crate) is_dropped: AtomicBool,
}

impl SegmentFile {
    pub(crate) fn new(entry: SegmentEntry, table: &str, schema: &SchemaRef, volume: &Arc<dyn Volume>) -> Self {
        let (table, schema, volume) = (table.to_string(), Arc::clone(schema), Arc::clone(volume));
        Self { entry, table, schema, volume, open: OnceLock::new(), is_dropped: AtomicBool::new(false) }
    }

    /// The open segment.
    pub fn segment(&self) -> Result<&Arc<Segment>> {
        if let Some(segment) = self.open.get() {
            return Ok(segment);
        }
        let file = match self.volume.open(&self.entry.file) {
            Ok(file) => file,
            Err(e) if e.is_not_found() => return Err(self.corrupt("is missing").with_source(e)),
            Err(e) => return Err(e.into()),
        };
        let segment = Segment::open(file, &Ledger::default())?;
        self.check(&segment)?;
        Ok(self.open.get_or_init(|| Arc::new(segment)))
    }

    /// A whole segment under the wrong name is as bad as a damaged one.
    fn check(&self, segment: &Segment) -> Result<()> {
        if skips("segment.identity") {
            return Ok(());
        }
        if segment.rows() != self.entry.rows {
            let (has, says) = (segment.rows(), self.entry.rows);
            return Err(self.corrupt(&format!("has {has} rows, and the catalog says {says}")));
        }
        let bytes = segment.file().len()?;
        if bytes != self.entry.bytes {
            return Err(self.corrupt(&format!("has {bytes} bytes, and the catalog says {}", self.entry.bytes)));
        }
        let (has, says) = (segment.schema().fields(), self.schema.fields());
        let is_same = |(a, b): (&FieldRef, &FieldRef)| a.name() == b.name() && a.data_type() == b.data_type();
        if has.len() != says.len() || !has.iter().zip(says).all(is_same) {
            return Err(self.corrupt("has the columns of another table"));
        }
        // Every whole segment matches its own checksums: only the catalog knows which one belongs here.
        if self.entry.checksum.is_some_and(|checksum| checksum != segment.checksum()) {
            return Err(
                self.corrupt("is whole, and not the one that was loaded: another segment has been put in its place")
            );
        }
        Ok(())
    }

    /// Where the file is: a path, or a URL.
    pub fn path(&self) -> String {
        format!("{}/{}", self.volume.name(), self.entry.file)
    }

    /// The segment, if somebody has opened it.
    pub fn opened(&self) -> Option<&Arc<Segment>> {
        self.open.get()
    }

    fn corrupt(&self, reason: &str) -> Error {
        let (folder, file) = (self.volume.name(), &self.entry.file);
        let message = format!("the segment file {folder}/{file} of table \"{}\" {reason}", self.table);
        let hint = "`onehop check` lists everything that is damaged; load the table again from its source";
        Error::new(ErrorKind::Corrupt, message).with_hint(hint)
    }
}

impl Drop for SegmentFile {
    fn drop(&mut self) {
        if self.is_dropped.load(SeqCst) {
            // What cannot be removed now is an orphan, which the next open collects.
            let _ = self.volume.remove(&self.entry.file);
        }
    }
}

impl Snapshot {
    /// Whether writers have gone on from what the store has since `earlier` was made, which may thus have what never happened.
    pub(crate) fn is_of_later_epoch(&self, earlier: &Snapshot) -> bool {
        self.epoch != earlier.epoch
    }

    /// A table by its exact name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.get(name)
    }

    /// All tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.iter()
    }

    /// The names of all files of segments.
    pub(crate) fn segment_names(&self) -> HashSet<&str> {
        self.tables.iter().flat_map(|table| &table.segments).map(|segment| segment.entry.file.as_str()).collect()
    }

    /// Segments that another snapshot has no more.
    pub(crate) fn segments_not_in(&self, next: &Snapshot) -> Vec<Arc<SegmentFile>> {
        let is_same = |table: &&Arc<Table>| next.table(&table.name).is_some_and(|now| Arc::ptr_eq(now, table));
        let mut gone = Vec::new();
        for table in self.tables.iter().filter(|table| !is_same(table) && !table.segments.is_empty()) {
            let now = next.table(&table.name).map_or(&[][..], |now| &now.segments);
            let kept: HashSet<&str> = now.iter().map(|segment| segment.entry.file.as_str()).collect();
            let all = table.segments.iter().map(|segment| &segment.file);
            gone.extend(all.filter(|file| !kept.contains(file.entry.file.as_str())).cloned());
        }
        gone
    }

    /// A snapshot of `catalog` that shares the segments it has in common with `before`.
    fn build(catalog: Catalog, before: Option<&Snapshot>, volume: &Arc<dyn Volume>) -> Result<Self> {
        let open: BTreeMap<&str, &TableSegment> = before
            .into_iter()
            .flat_map(|before| before.tables.iter().flat_map(|table| &table.segments))
            .map(|segment| (segment.entry.file.as_str(), segment))
            .collect();
        let mut tables = Tables::default();
        for (name, entry) in &catalog.tables {
            if let Some(same) = before.and_then(|b| b.tables.get(name)).filter(|table| *table.entry == *entry) {
                tables.put(Arc::clone(same));
                continue;
            }
            let schema: SchemaRef = Arc::new(entry.schema()?);
            let segments = entry.segments.iter().map(|segment| match open.get(segment.file.as_str()) {
                Some(open) => TableSegment::clone(open),
                None => TableSegment {
                    file: Arc::new(SegmentFile::new(segment.clone(), name, &schema, volume)),
                    deleted: None,
                },
            });
            let same = before.and_then(|before| before.tables.get(name)).filter(|table| table.entry.id == entry.id);
            let table = Table {
                name: name.clone(),
                schema: Arc::clone(&schema),
                segments: segments.collect(),
                entry: Arc::new(entry.clone()),
                fresh: same.map(|table| Arc::clone(&table.fresh)).unwrap_or_default(),
                scans: ScanPlans::default(),
            };
            tables.put(Arc::new(table));
        }
        let (number, epoch) = before.map_or((0, 0), |before| (before.number, before.epoch));
        Ok(Self { catalog: Arc::new(catalog), tables, number, epoch, parts: None })
    }

    /// This one, with tables that nobody else sees; `catalog` has those of both.
    ///
    /// A name that is in both is a temporary table here: who looks for one by its name asks [`only_once`](Self::only_once) first.
    pub(crate) fn with(self: &Arc<Self>, temporary: &Arc<Snapshot>, catalog: Arc<Catalog>) -> Self {
        let mut tables = self.tables.clone();
        temporary.tables.iter().for_each(|table| tables.put(Arc::clone(table)));
        let parts = Parts { permanent: Arc::clone(self), temporary: Arc::clone(temporary) };
        Self { catalog, tables, number: self.number, epoch: self.epoch, parts: Some(Arc::new(parts)) }
    }

    /// What all sessions see of it.
    pub(crate) fn permanent(self: &Arc<Self>) -> Arc<Snapshot> {
        Arc::clone(self.parts.as_deref().map_or(self, |parts| &parts.permanent))
    }

    /// Whether a table is its session's alone.
    pub(crate) fn is_temporary(&self, name: &str) -> bool {
        self.parts.as_deref().is_some_and(|parts| parts.temporary.tables.get(name).is_some())
    }

    /// Sees to it that a name is not a temporary table's and something of the database as well.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: another session has made something of this name meanwhile.
    pub(crate) fn only_once(&self, name: &str) -> Result<()> {
        let Some(parts) = self.parts.as_deref().filter(|_| self.is_temporary(name)) else { return Ok(()) };
        let what = match (parts.permanent.table(name), parts.permanent.catalog.views.contains_key(name)) {
            (Some(_), _) => "table",
            (None, true) => "view",
            (None, false) => return Ok(()),
        };
        let message = format!(
            "\"{name}\" is a temporary table of this session, and another session has made a {what} of this name"
        );
        Err(Error::new(ErrorKind::Invalid, message).with_hint(format!("DROP TABLE {name} drops the temporary one")))
    }

    /// The same with another catalog.
    pub(crate) fn with_catalog(&self, catalog: Catalog, volume: &Arc<dyn Volume>) -> Result<Self> {
        Self::build(catalog, Some(self), volume)
    }
}

/// Reads the tables of a catalog; and the id that the next row gets. Files that `before` has open stay so.
pub(crate) fn load(
    catalog: Catalog,
    before: Option<&Snapshot>,
    store: &dyn CatalogStore,
    volume: &Arc<dyn Volume>,
) -> Result<(Snapshot, u64)> {
    let mut snapshot = Snapshot::build(catalog, before, volume)?;
    let mut next_row = 0;
    for table in snapshot.tables.iter_mut() {
        let table = Arc::make_mut(table);
        for segment in &mut table.segments {
            let (mut vectors, mut deleted) = (Vec::new(), 0);
            store.deleted(table.entry.id, &segment.file.entry.file, &mut |vector, rows| {
                deleted += rows.places().count() as u64;
                if !may_have(segment.entry.rows, vector) || deleted > segment.entry.rows {
                    return Err(segment.corrupt(&format!("has no rows to delete as vector {vector} of it says")));
                }
                vectors.push((vector, rows));
                Ok(())
            })?;
            segment.deleted = (!vectors.is_empty()).then(|| Arc::new(deleted_rows_of(vectors)));
        }
        let (mut decoder, mut ids) = (row::Decoder::new(&table.schema)?, Vec::new());
        store.rows(table.entry.id, &mut |id, bytes| {
            decoder.push(bytes).map_err(|reason| {
                let message = format!("row {id} of table \"{}\" in the store is corrupt: {reason}", table.name);
                Error::new(ErrorKind::Corrupt, message).with_hint("restore the database directory from a backup")
            })?;
            if id >= fresh::MOST_IDS {
                let message =
                    format!("a row of table \"{}\" in the store is corrupt: its id cannot be {id}", table.name);
                return Err(
                    Error::new(ErrorKind::Corrupt, message).with_hint("restore the database directory from a backup")
                );
            }
            ids.push(id);
            Ok(())
        })?;
        if !skips("open.next-row") {
            next_row = next_row.max(ids.last().map_or(0, |last| last + 1));
        }
        table.fresh = match ids.is_empty() {
            true => Arc::default(),
            false => Arc::new(FreshRows::stored(decoder.finish()?, ids)?),
        };
    }
    Ok((snapshot, next_row))
}
