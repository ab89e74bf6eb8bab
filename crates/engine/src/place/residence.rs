//! Loads tables into the memory of one device, or of several that share them.
//!
//! `residence` in the catalog is applied when rows are committed, or when a device first runs a
//! query over them. LOAD TABLE and EVICT TABLE affect only this process.
//!
//! Residence never changes a table's contents. A column that cannot be resident, for lack of memory
//! or of a device, is read from storage like any other. After a commit this is a notice and never
//! an error, since the rows are committed.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use onehop_pipeline::backend::{Backend, Control, Loaded, SegmentKey, Stored};
use onehop_pipeline::spread::Spread;
use onehop_pipeline::{Budget, Error as PipelineError, SegmentSource, Source};
use onehop_segment::{BlockCache, BlockList, ColumnType};

use super::Placing;
use super::homes::Homes;
use crate::query::Query;
use crate::settings::GpuMode;
use crate::snapshot::Table;
use crate::{Error, ErrorKind, Result};

/// The result of loading a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadedTable {
    pub loaded: Loaded,
    /// Columns that no device can hold, and the reasons.
    pub left_out: Vec<String>,
}

/// Returns the devices of a `residence` by name: a single one, or several as one backend.
///
/// # Errors
/// [`ErrorKind::Unmet`] if one of them is missing, or not permitted.
pub(crate) fn device(placing: &Placing, names: &[String]) -> Result<Arc<dyn Backend>> {
    let each: Vec<&Arc<dyn Backend>> = names.iter().map(|name| one(placing, name)).collect::<Result<_>>()?;
    Ok(match each.as_slice() {
        [only] => Arc::clone(only),
        several => Arc::new(Spread::new(several.iter().copied().cloned().collect())),
    })
}

fn one<'a>(placing: &'a Placing, name: &str) -> Result<&'a Arc<dyn Backend>> {
    let unmet = |why: String| Error::new(ErrorKind::Unmet, format!("{name} cannot be used: {why}"));
    if placing.mode == GpuMode::Off {
        return Err(unmet("gpu.mode is off".into()).with_hint("SET gpu.mode = 'auto'"));
    }
    if !placing.names.has(name) {
        return Err(unmet("it is none of gpu.devices".into()).with_hint("SET gpu.devices = 'all'"));
    }
    let Some(devices) = placing.known.devices() else {
        return Err(unmet("no GPU is known here".into()));
    };
    let all = devices.all().map_err(|why| unmet(why).with_hint("`onehop doctor` says what is missing"))?;
    let found = all.iter().find(|backend| backend.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|backend| backend.name()).collect();
        let error = unmet("there is no such device".into());
        if names.is_empty() { error } else { error.with_hint(format!("there is {}", names.join(", "))) }
    })
}

/// Columns of a table, in all of its segments or in those that belong on some devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub table: &'a Table,
    pub columns: &'a [usize],
    /// The devices whose segments are wanted; `None` for all segments.
    pub home: Option<&'a [String]>,
}

impl Wanted<'_> {
    /// Returns all blocks of these segments.
    pub fn stored(&self, columns: &[usize]) -> Result<Stored> {
        let entry = &self.table.entry;
        let homes = self.home.and_then(|_| Homes::of(entry));
        let mut blocks = BlockList::default();
        for segment in &self.table.segments {
            let partition = entry.partition_by.as_ref().map(|by| by.name(segment.file.entry.partition));
            let is_elsewhere =
                |home: &[String]| homes.as_ref().is_none_or(|homes| homes.of_partition(partition.as_deref()) != home);
            if self.home.is_some_and(is_elsewhere) {
                continue;
            }
            let segment = segment.segment()?;
            blocks.push_all(segment, 0..segment.blocks());
        }
        Ok(Stored { blocks: Arc::new(blocks), columns: columns.to_vec() })
    }
}

/// Loads columns of a table, to stay. Blocks until that is done.
///
/// # Errors
/// The errors of the storage and of the device. Columns that were loaded before stay.
pub(crate) fn load(
    placing: &Placing,
    cache: &Arc<BlockCache>,
    wanted: Wanted<'_>,
    backend: &Arc<dyn Backend>,
    query: &Query,
    cancelled: &AtomicBool,
) -> Result<LoadedTable> {
    let Wanted { table, columns, .. } = wanted;
    let mut done = LoadedTable::default();
    let Some(residency) = backend.residency() else {
        return Err(Error::new(ErrorKind::Unmet, format!("{} keeps nothing in its memory", backend.name())));
    };
    let ledgers = [Arc::clone(query.shared_ledger())];
    // Nothing is merged.
    let budget = Budget::from(0);
    let control = Control { cancelled, counts_steps: false, ledgers: &ledgers, did_rows: &|_| (), budget: &budget };
    for column in columns {
        let stored = wanted.stored(&[*column])?;
        if stored.blocks.is_empty() {
            continue;
        }
        let field = table.schema.field(*column);
        let typed = [(*column, ColumnType::of(field.name(), field.data_type())?, field.is_nullable())];
        let (cache, ledger) = (Arc::clone(cache), Arc::clone(&ledgers[0]));
        let source = SegmentSource::new(&table.name, Arc::clone(&stored.blocks), &typed, cache, ledger, 0);
        let loaded = source.and_then(|source| {
            let source: Arc<dyn Source> = Arc::new(source);
            residency.load(&source, &stored, (placing.memory, placing.path), &control)
        });
        match loaded {
            Ok(Loaded { bytes, moved_bytes }) => {
                done.loaded.bytes += bytes;
                done.loaded.moved_bytes += moved_bytes;
            }
            Err(PipelineError::Unsupported(reason)) => done.left_out.push(reason),
            Err(PipelineError::Memory { what, needed, available }) => {
                let message = format!("{}: {what} needs {needed} bytes, and there are {available}", backend.name());
                return Err(Error::new(ErrorKind::Resources, message)
                    .with_hint("EVICT TABLE makes room; gpu.memory_limit says how much there may be"));
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}

/// Evicts columns of a table. Returns the bytes that are freed.
pub(crate) fn evict(table: &Table, columns: &[usize], backends: &[Arc<dyn Backend>]) -> u64 {
    let open = table.segments.iter().filter_map(|file| file.opened());
    let keys: Vec<(SegmentKey, usize)> =
        open.flat_map(|segment| columns.iter().map(|column| (SegmentKey::of(segment), *column))).collect();
    backends.iter().filter_map(|backend| backend.residency()).map(|residency| residency.evict(&keys)).sum()
}

/// Loads a table with a residence, and reports an error as a notice. Blocks until it is done.
pub(crate) fn follow(placing: &Placing, cache: &Arc<BlockCache>, table: &Table, query: &Query, cancelled: &AtomicBool) {
    let Some(homes) = Homes::of(&table.entry).filter(|_| placing.mode != GpuMode::Off) else { return };
    let columns: Vec<usize> = (0..table.schema.fields().len()).collect();
    let bring = |home: &[String]| {
        let wanted = Wanted { table, columns: &columns, home: Some(home) };
        let backend = device(placing, home)?;
        load(placing, cache, wanted, &backend, query, cancelled).map(drop)
    };
    let loaded = homes.choices().into_iter().try_for_each(bring);
    if let Err(e) = loaded {
        query.notice(format!("\"{}\" is not resident: {}", table.name, e.message()));
    }
}
