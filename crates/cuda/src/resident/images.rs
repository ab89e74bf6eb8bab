//! Column images that the kernels of one run read: planes from the store for segments that are
//! resident as a whole, or can be loaded as a whole. The pipeline streams columns that cannot be
//! resident, or do not fit beside the rest.
//!
//! Assembling an image takes a record for every block, and a table of codes for every segment with
//! a dictionary. Queries over the same blocks need the same image. The most recent images are
//! cached, without holding the columns that they refer to.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use onehop_io::{Hop, Ledger};
use onehop_pipeline::backend::{Brought, DevicePath, Residence, SegmentKey, SegmentRun, Stored, TakenPath};
use onehop_pipeline::{Error as PipelineError, Source, StoredMeaning, StoredPlace, Type, ViewValues};
use onehop_segment::CodeTable;

use super::column::{Column, Meaning, bytes_of_segment, can_be_kept};
use super::forecast::foreseen;
use super::load::{Piece, load};
use super::store::{Claim, Full, Store};
use crate::DeviceBuf;
use crate::fused::{
    Carried, CodeMeaning, ColumnImage, Error, Executor, Images, Outlook, Part, Result, bytes_of_table, form,
};
use crate::staging::{Shape, Stager};

/// Maximum number of cached images.
const ASSEMBLED: usize = 64;

/// Columns of segments by segment and column number.
pub type Columns = Store<(SegmentKey, usize), Column>;

/// Reason for loading columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// A query needs them, and they may stay.
    WhileThereIsRoom,
    /// They are to stay.
    ToStay,
}

/// Cache of assembled images, the most recent first.
#[derive(Debug, Default)]
pub struct Assembled(Mutex<VecDeque<Remembered>>);

/// An image, and the columns that it refers to.
#[derive(Debug)]
struct Remembered {
    of: Identity,
    image: Arc<ColumnImage>,
    columns: Vec<Weak<Column>>,
}

/// Identity of an image: segments in order, each whole or with its blocks, the column's number in
/// them, and its type for the reader.
#[derive(Clone, Debug, PartialEq)]
struct Identity {
    column: usize,
    ty: Type,
    segments: Vec<(SegmentKey, Option<Vec<usize>>)>,
}

impl Assembled {
    /// Returns an image if it was made of these columns.
    fn find(&self, of: &Identity, columns: &[Arc<Column>]) -> Option<Arc<ColumnImage>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|known| known.of == *of)?;
        let known = all.remove(at)?;
        // The weak reference keeps the address of a dropped column from being reused.
        let is_of = known.columns.len() == columns.len()
            && known
                .columns
                .iter()
                .zip(columns)
                .all(|(known, column)| std::ptr::eq(known.as_ptr(), &raw const **column));
        if !is_of {
            return None;
        }
        let image = Arc::clone(&known.image);
        all.push_front(known);
        Some(image)
    }

    fn remember(&self, of: Identity, image: &Arc<ColumnImage>, columns: &[Arc<Column>]) {
        let columns = columns.iter().map(Arc::downgrade).collect();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An image of a dropped column can never be found again.
        all.retain(|known| known.of != of && known.columns.iter().all(|column| column.strong_count() > 0));
        all.push_front(Remembered { of, image: Arc::clone(image), columns });
        all.truncate(ASSEMBLED);
    }

    /// Removes images of columns that were dropped.
    pub fn sweep(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.columns.iter().all(|column| column.strong_count() > 0));
    }
}

/// Images of one run. Their columns stay while this value lives.
#[derive(Debug)]
pub struct ResidentImages<'a> {
    executor: &'a Executor,
    stager: &'a Stager,
    shape: Shape,
    columns: &'a Columns,
    assembled: &'a Assembled,
    /// Limit of the store in bytes.
    limit: u64,
    /// Policy that decides if missing columns may become resident.
    residence: Residence,
    /// Path over which missing columns are transferred.
    path: DevicePath,
    sources: Vec<Kept<'a>>,
    counted: Mutex<BTreeMap<usize, Bytes>>,
    brought: Mutex<BTreeMap<usize, Brought>>,
    held: Mutex<Vec<Arc<Column>>>,
}

/// A source, its stored form, and the ledger of its bytes.
pub type SourceOfRun<'a> = (Arc<dyn Source>, Option<&'a Stored>, Arc<Ledger>);

/// A source of a run.
#[derive(Debug)]
struct Kept<'a> {
    source: Arc<dyn Source>,
    /// Its stored form, by blocks and by segments.
    stored: Option<(&'a Stored, Vec<SegmentRun>)>,
    /// Ledger of its bytes.
    ledger: Arc<Ledger>,
}

/// Bytes of a source by location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Bytes that were on the device.
    pub resident: u64,
    /// Bytes that were elsewhere, and were copied to the device.
    pub moved: u64,
}

impl<'a> ResidentImages<'a> {
    /// Creates the images of sources, each with its stored form and its ledger. Missing columns are
    /// loaded as the executor stages its streams.
    pub fn new(
        executor: &'a Executor,
        columns: &'a Columns,
        assembled: &'a Assembled,
        (limit, residence): (u64, Residence),
        sources: Vec<SourceOfRun<'a>>,
    ) -> Self {
        let (counted, brought, held) = (Mutex::default(), Mutex::default(), Mutex::default());
        let kept = |(source, stored, ledger): SourceOfRun<'a>| {
            let stored = stored.map(|stored| (stored, stored.runs()));
            Kept { source, stored, ledger }
        };
        let sources = sources.into_iter().map(kept).collect();
        let (stager, shape) = (executor.stager(), executor.options().staging);
        let path = DevicePath::Staged;
        Self { executor, stager, shape, columns, assembled, limit, residence, path, sources, counted, brought, held }
    }

    /// Sets the path over which missing columns are transferred.
    #[must_use]
    pub fn by(self, path: DevicePath) -> Self {
        Self { path, ..self }
    }

    /// Returns the observed path of a source's transferred bytes, if there is anything to report.
    pub fn brought(&self, source: usize) -> Option<Brought> {
        self.brought.lock().unwrap_or_else(PoisonError::into_inner).get(&source).cloned()
    }

    /// Returns the byte counters of a source.
    pub fn bytes(&self, source: usize) -> Bytes {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.get(&source).copied().unwrap_or_default()
    }

    /// Loads columns of a source to stay. Returns the bytes of them that are now resident.
    ///
    /// # Errors
    /// As [`Images::columns`]. Returns [`PipelineError::Unsupported`] for a column that cannot
    /// stay, and [`PipelineError::Memory`] if they do not fit beside columns that have to stay:
    /// then none of them is loaded.
    pub fn load(&self, number: usize, columns: &[usize], cancelled: &AtomicBool) -> Result<u64> {
        let mut bytes = 0;
        for (column, pieces) in columns.iter().zip(self.pieces(number, columns, Keep::ToStay, cancelled)?) {
            let Some(pieces) = pieces else { return Err(self.sources[number].cannot_stay(*column)) };
            bytes += pieces.iter().map(|piece| piece.bytes() as u64).sum::<u64>();
        }
        Ok(bytes)
    }

    fn count(&self, number: usize, resident: u64, moved: u64) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = counted.entry(number).or_default();
        bytes.resident += resident;
        bytes.moved += moved;
        self.sources[number].ledger.moved(Hop::HostToDevice, moved as usize);
    }

    /// Counts a transfer to the device, on the hops that it took.
    fn count_carried(&self, number: usize, carried: &Carried) {
        self.count(number, 0, carried.copied_bytes);
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.entry(number).or_default().moved += carried.read_bytes;
        drop(counted);
        let (ledger, bytes) = (&self.sources[number].ledger, carried.read_bytes as usize);
        let is_direct = carried.brought.as_ref().is_some_and(|brought| brought.path == TakenPath::Direct);
        match is_direct {
            true => ledger.moved(Hop::StorageToDevice, bytes),
            // Bytes that are not known to be direct are counted on two hops.
            false => {
                ledger.moved(Hop::StorageToHost, bytes);
                ledger.moved(Hop::HostToDevice, bytes);
            }
        }
        ledger.needed(carried.needed_bytes as usize);
        (0..carried.reads).for_each(|_| ledger.read_op());
        let Some(more) = &carried.brought else { return };
        let mut brought = self.brought.lock().unwrap_or_else(PoisonError::into_inner);
        brought.entry(number).and_modify(|all| all.add(more)).or_insert_with(|| more.clone());
    }

    /// Returns the segment columns of each column of a source, and loads missing ones; `None` if
    /// one of them cannot be resident.
    fn pieces(
        &self,
        number: usize,
        columns: &[usize],
        keep: Keep,
        cancelled: &AtomicBool,
    ) -> Result<Vec<Option<Vec<Arc<Column>>>>> {
        let kept = &self.sources[number];
        let mut free = self.columns.available(self.limit, keep == Keep::ToStay);
        let mut wanted: Vec<Option<Wanted<'_>>> = Vec::with_capacity(columns.len());
        for column in columns {
            let found = kept.stays(*column).map(|(stored, runs)| self.found(stored, runs, *column, keep));
            wanted.push(found.filter(|found| {
                let may_stay = found.missing == 0 || self.residence == Residence::Auto && found.missing <= free;
                free -= if may_stay { found.missing } else { 0 };
                found.is_whole && (may_stay || keep == Keep::ToStay)
            }));
        }
        // All runs claim in the same order, so that they cannot deadlock.
        let mut missing: Vec<((SegmentKey, usize), usize, usize)> = Vec::new();
        for (at, wanted) in wanted.iter().enumerate() {
            let Some(wanted) = wanted else { continue };
            let runs = wanted.runs.iter().enumerate().filter(|(run, _)| wanted.columns[*run].is_none());
            missing.extend(runs.map(|(number, run)| ((SegmentKey::of(&run.segment), wanted.place), at, number)));
        }
        missing.sort();
        // A source may have a column twice, which is loaded once.
        let mut twice = Vec::new();
        missing.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            twice.extend(is_same.then(|| later.clone()));
            is_same
        });
        let mut pieces = Vec::new();
        for (key, at, run) in missing {
            let Some(of) = &mut wanted[at] else { continue };
            match self.claimed(kept, of, (key, run), columns[at], keep) {
                Ok(Claimed::There(column)) => of.columns[run] = Some(column),
                Ok(Claimed::Mine(piece)) => pieces.push((piece, (at, run))),
                // The column is transferred for this run only.
                Err(Miss::Full(_)) if keep == Keep::WhileThereIsRoom => wanted[at] = None,
                Err(Miss::Full(Full { needed, available })) => {
                    let what = format!("{} in device memory", of.runs[run].segment.column(of.place).name);
                    let (needed, available) = (needed as usize, available as usize);
                    return Err(Error::Pipeline(PipelineError::Memory { what, needed, available }));
                }
                Err(Miss::Failed(e)) => return Err(e),
            }
        }
        pieces.retain(|(_, (at, _))| wanted[*at].is_some());
        let (pieces, places): (Vec<_>, Vec<_>) = pieces.into_iter().unzip();
        if !pieces.is_empty() {
            let bytes = pieces.iter().map(|piece| bytes_of_segment(&piece.segment, piece.place)).sum();
            let passage = self.executor.direct().passage(self.executor.compiler(), self.path, bytes)?;
            let (loaded, carried) = load(self.stager, &passage, self.shape, pieces, cancelled)?;
            self.count_carried(number, &carried);
            for ((at, run), loaded) in places.into_iter().zip(loaded) {
                if let Some(of) = &mut wanted[at] {
                    of.columns[run] = loaded;
                }
            }
        }
        for ((_, place), at, run) in twice {
            let same = wanted.iter().flatten().filter(|of| of.place == place);
            let found = same.filter_map(|of| of.columns[run].clone()).next();
            if let Some(of) = &mut wanted[at] {
                of.columns[run] = found;
            }
        }
        let ended = wanted.into_iter().map(|wanted| {
            let wanted = wanted?;
            let columns = wanted.columns.into_iter().collect::<Option<Vec<_>>>()?;
            self.count(number, wanted.resident, 0);
            kept.ledger.resident(wanted.resident_morsels, wanted.resident as usize);
            Some(columns)
        });
        Ok(ended.collect())
    }

    /// Returns the present and missing segments of a column.
    fn found<'s>(&self, stored: &Stored, runs: &'s [SegmentRun], column: usize, keep: Keep) -> Wanted<'s> {
        let place = stored.columns[column];
        let columns = match keep {
            Keep::WhileThereIsRoom => {
                self.columns.get_all(runs.iter().map(|run| (SegmentKey::of(&run.segment), place)))
            }
            Keep::ToStay => vec![None; runs.len()],
        };
        let mut wanted = Wanted { place, runs, columns, resident: 0, resident_morsels: 0, missing: 0, is_whole: true };
        for (run, found) in runs.iter().zip(&wanted.columns) {
            if found.is_some() {
                wanted.resident += stored.run_bytes(run, place);
                wanted.resident_morsels += run.morsels.len() as u64;
            } else {
                wanted.missing += bytes_of_segment(&run.segment, place);
                wanted.is_whole &= run.is_whole;
            }
        }
        wanted
    }

    /// Returns a column of a segment that was missing, or memory for it and the claim to load it.
    fn claimed<'s>(
        &'s self,
        kept: &'s Kept<'_>,
        of: &mut Wanted<'_>,
        (key, run): ((SegmentKey, usize), usize),
        column: usize,
        keep: Keep,
    ) -> std::result::Result<Claimed<'s>, Miss> {
        let SegmentRun { segment, morsels, .. } = &of.runs[run];
        let bytes = bytes_of_segment(segment, of.place);
        match self.columns.claim(&key, bytes, self.limit, keep == Keep::ToStay)? {
            Claim::There(there) => {
                of.resident += segment.column(of.place).stored_bytes;
                of.resident_morsels += morsels.len() as u64;
                Ok(Claimed::There(there))
            }
            Claim::Mine(claim) => {
                let data = DeviceBuf::new(self.stager.context(), bytes as usize).map_err(|source| match source {
                    full if full.is_out_of_memory() => Miss::Full(Full { needed: bytes, available: 0 }),
                    source => Miss::Failed(source.into()),
                })?;
                let (segment, place, source, morsels) = (Arc::clone(segment), of.place, &kept.source, morsels.clone());
                Ok(Claimed::Mine(Piece { claim, segment, place, source, morsels, column, data }))
            }
        }
    }

    /// Assembles an image of columns that are on the device.
    fn assemble(
        &self,
        number: usize,
        (stored, runs): (&Stored, &[SegmentRun]),
        column: usize,
        columns: &[Arc<Column>],
    ) -> Result<Option<ColumnImage>> {
        let source = &*self.sources[number].source;
        let place = stored.columns[column];
        let (mut parts, mut tables) = (Vec::with_capacity(stored.blocks.len()), Tables::default());
        for (SegmentRun { segment, morsels, .. }, kept) in runs.iter().zip(columns) {
            let mut codes: Option<Codes> = None;
            for morsel in morsels.clone() {
                let Some(block) = kept.block(stored.blocks.at(morsel).1) else { return Ok(None) };
                let (low, high) = block.widths;
                let mut part = Part { low: block.low, high: block.high, valid: block.valid, ..Part::default() };
                part.width = low + high;
                part.form = match block.meaning {
                    Meaning::Null => form::NULL,
                    Meaning::Doubles => form::F64,
                    Meaning::Packed(base, bias) => {
                        (part.base, part.bias) = (base, bias);
                        packed(low, high)
                    }
                    Meaning::Asked => {
                        let loaded = source.load(morsel, column)?;
                        let ViewValues::Packed { base, bias, .. } = loaded.view().values else { return Ok(None) };
                        (part.base, part.bias) = (base, bias);
                        form::SAME
                    }
                    Meaning::Codes => {
                        let codes = match codes {
                            Some(codes) => codes,
                            None => *codes.insert(tables.of(source, morsel, column)?),
                        };
                        match codes.meaning {
                            CodeMeaning::Steps { first, step } => part.set_steps(first, step, low + high),
                            CodeMeaning::Table(at) => part.set_codes(at, codes.values, codes.is_wide, low + high),
                            CodeMeaning::Unordered => return Ok(None),
                        }
                        part.form
                    }
                };
                parts.push(part);
            }
            debug_assert!(can_be_kept(segment, place));
        }
        let mut data = DeviceBuf::new(self.stager.context(), tables.data.len())?;
        data.copy_from(0, &tables.data)?;
        for part in &mut parts {
            // Offsets begin at 1, so that 0 is none.
            part.table = if part.table == 0 { 0 } else { data.address() + part.table - 1 };
        }
        ColumnImage::of_parts(self.stager.context(), data, parts).map(Some)
    }
}

impl Kept<'_> {
    fn cannot_stay(&self, column: usize) -> Error {
        let name = self.stored.as_ref().map(|(stored, runs)| {
            let place = stored.columns[column];
            runs.first().map_or(String::new(), |run| run.segment.column(place).name.clone())
        });
        let what = format!("column {} of {} on a device", name.unwrap_or_default(), self.source.name());
        Error::Pipeline(PipelineError::Unsupported(what))
    }

    /// Returns the stored form if a column can be resident by segments.
    fn stays(&self, column: usize) -> Option<(&Stored, &[SegmentRun])> {
        let (stored, runs) = self.stored.as_ref()?;
        let place = *stored.columns.get(column)?;
        runs.iter().all(|run| can_be_kept(&run.segment, place)).then_some((*stored, runs.as_slice()))
    }
}

/// State of a requested column of a source.
struct Wanted<'a> {
    /// Number of the column in the segments.
    place: usize,
    runs: &'a [SegmentRun],
    /// By run, once it is present.
    columns: Vec<Option<Arc<Column>>>,
    /// Stored bytes and morsels of the present runs, and maximum bytes of the missing ones.
    resident: u64,
    resident_morsels: u64,
    missing: u64,
    /// True if the missing runs are whole segments.
    is_whole: bool,
}

/// Result of a claim.
enum Claimed<'a> {
    There(Arc<Column>),
    Mine(Piece<'a>),
}

/// Reason why a column of a segment is missing.
enum Miss {
    Full(Full),
    Failed(Error),
}

impl From<Full> for Miss {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

impl Images for ResidentImages<'_> {
    fn column(&self, source: &Arc<dyn Source>, column: usize) -> Result<Option<Arc<ColumnImage>>> {
        let mut one = self.columns(source, &[column], &AtomicBool::new(false))?;
        Ok(one.pop().flatten())
    }

    fn columns(
        &self,
        source: &Arc<dyn Source>,
        columns: &[usize],
        cancelled: &AtomicBool,
    ) -> Result<Vec<Option<Arc<ColumnImage>>>> {
        let Some(number) = self.number_of(&**source) else { return Ok(vec![None; columns.len()]) };
        let pieces = self.pieces(number, columns, Keep::WhileThereIsRoom, cancelled)?;
        let image = |(column, pieces): (&usize, Option<Vec<Arc<Column>>>)| match pieces {
            Some(pieces) => self.image(number, *column, pieces),
            None => Ok(None),
        };
        columns.iter().zip(pieces).map(image).collect()
    }

    fn outlook(&self, source: &dyn Source, column: usize, morsels: &[(u32, u32)]) -> Result<Outlook> {
        let stored = self.number_of(source).and_then(|number| self.sources[number].stored.as_ref());
        match stored {
            Some((stored, runs)) => Ok(foreseen(source, stored, runs, column, morsels)),
            None => Outlook::of_first(source, column, morsels),
        }
    }

    fn path(&self) -> DevicePath {
        self.path
    }

    fn streamed(&self, source: &Arc<dyn Source>, carried: &Carried) {
        if let Some(number) = self.number_of(&**source) {
            self.count_carried(number, carried);
        }
    }
}

impl ResidentImages<'_> {
    fn number_of(&self, source: &dyn Source) -> Option<usize> {
        let is_that = |known: &Kept<'_>| std::ptr::addr_eq(Arc::as_ptr(&known.source), std::ptr::from_ref(source));
        self.sources.iter().position(is_that)
    }

    /// Returns the image of a column that consists of these pieces.
    fn image(&self, number: usize, column: usize, pieces: Vec<Arc<Column>>) -> Result<Option<Arc<ColumnImage>>> {
        let kept = &self.sources[number];
        let Some((stored, runs)) = kept.stays(column) else { return Ok(None) };
        let segments = runs.iter().map(|run| {
            let blocks = || run.morsels.clone().map(|morsel| stored.blocks.at(morsel).1).collect();
            (SegmentKey::of(&run.segment), (!run.is_whole).then(blocks))
        });
        let (segments, place) = (segments.collect(), stored.columns[column]);
        let identity = Identity { segments, column: place, ty: kept.source.columns()[column].ty };
        let image = match self.assembled.find(&identity, &pieces) {
            Some(image) => image,
            None => {
                let Some(image) = self.assemble(number, (stored, runs), column, &pieces)? else { return Ok(None) };
                let image = Arc::new(image);
                self.count(number, 0, image.bytes() as u64);
                self.assembled.remember(identity, &image, &pieces);
                image
            }
        };
        self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(pieces);
        Ok(Some(image))
    }
}

/// Returns the form of packed values.
fn packed(low: u32, high: u32) -> u32 {
    match (low, high) {
        (0, _) => form::SAME,
        (low, 0) => form::PACKED + low,
        (low, high) => form::WIDE + low + high,
    }
}

/// Meaning of a segment's codes for the reader of a source.
#[derive(Clone, Copy)]
struct Codes {
    /// The address of a table is an offset, from 1 on.
    meaning: CodeMeaning<u64>,
    /// Number of values in the table, and true if they have 64 bits each.
    values: usize,
    is_wide: bool,
}

/// Tables of codes, assembled on the host.
#[derive(Default)]
struct Tables {
    data: Vec<u8>,
}

impl Tables {
    fn of(&mut self, source: &dyn Source, morsel: usize, column: usize) -> Result<Codes> {
        // For strings, if all segments share one dictionary: the codes are the source's.
        let for_themselves = Codes { meaning: CodeMeaning::Steps { first: 0, step: 1 }, values: 0, is_wide: false };
        let is_code = |stored: StoredPlace<'_>| {
            stored.place.is_code && stored.place.low.is_some() && matches!(stored.meaning, StoredMeaning::Biased(0))
        };
        let table = match source.code_table(morsel, column) {
            // Known without a read.
            Some(table) => table.clone(),
            None if source.stored_place(morsel, column).is_some_and(is_code) => return Ok(for_themselves),
            None => match source.load(morsel, column)?.view().values {
                ViewValues::Codes32(table, _) => CodeTable::I32(Arc::clone(table)),
                ViewValues::Codes64(table, _) => CodeTable::I64(Arc::clone(table)),
                ViewValues::Packed { base: 0, bias: 0, low: Some(_), high: None } => return Ok(for_themselves),
                _ => return Ok(Codes { meaning: CodeMeaning::Unordered, values: 0, is_wide: false }),
            },
        };
        let meaning = CodeMeaning::of(&table).with_table(|| Ok(self.put(bytes_of_table(&table))))?;
        Ok(Codes { meaning, values: table.len(), is_wide: matches!(table, CodeTable::I64(_)) })
    }

    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.data.len().next_multiple_of(256);
        self.data.resize(at, 0);
        self.data.extend_from_slice(bytes);
        at as u64 + 1
    }
}
