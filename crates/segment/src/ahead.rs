//! Reads the blocks of a scan before they are wanted.
//!
//! ```text
//! blocks in the order in which workers take them
//! ... ended │ being worked on │ asked for: in flight or in memory │ later ...
//! ```
//! 1. While every wanted block is in the cache, nothing happens: no thread, no ring. The first miss
//!    starts reading ahead, if enough is left to be worthwhile. It begins with the other columns of
//!    the blocks in progress.
//! 2. A column is read ahead while it is wanted in at least every other block that was worked on.
//!    The more often it was wanted, the further ahead it is read. A column that few rows reach,
//!    behind filters, is read on demand, and the columns that are wanted together with it are
//!    requested at the same time.
//! 3. When a worker begins a block, all of these columns of it are requested, regardless of the
//!    amount requested before. With many threads on large blocks, the horizon ends before the last
//!    of them, and a column that its worker reads alone is a short read.
//! 4. Blocks in the page cache are left to the worker that wants them, which copies them.
//! 5. Blocks that were read have no owner until they are wanted. Then their checksums are verified
//!    and they enter the cache. Blocks that were not wanted are discarded when their block ends.
//!
//! Reading ahead never fails ([`ReadAhead`]). A caller that wants a block gets the error, from a
//! read of its own.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use onehop_io::{Extent, Ledger, LocalFile, ReadAhead};

use crate::queues::{Queues, REQUEST_BYTES, Wanted};
use crate::{BlockCache, BlockColumn, BlockList, Result, Segment};

/// The number of blocks read ahead for each time that a column was wanted again.
const REACH: usize = 4;
/// A column that will be wanted in every block starts with this count.
const SURE: usize = 16;
/// After this number of blocks, the counts of earlier ones are halved.
const MEMORY: usize = 64;
/// If fewer bytes than this are left, nothing is read ahead.
const WORTH_BYTES: u64 = 2 << 20;
/// The number of rings. Memory that was not used before is found and cleared when a read into it
/// begins: by two threads in parallel.
const RINGS: usize = 2;
/// The number of threads without a ring.
const THREADS: usize = 4;

/// Statistics of reading ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AheadFacts {
    /// The method, if blocks were read ahead: `io_uring, host direct`.
    pub way: Option<String>,
    /// The stored bytes that were in memory, or in flight, when they were wanted.
    pub ahead_bytes: u64,
    /// The stored bytes that were read on demand.
    pub late_bytes: u64,
}

impl AheadFacts {
    /// Adds the statistics of another pass.
    pub fn add(&mut self, other: &Self) {
        self.ahead_bytes += other.ahead_bytes;
        self.late_bytes += other.late_bytes;
        if other.way.is_some() {
            self.way.clone_from(&other.way);
        }
    }
}

/// A scan of blocks. All methods may be called from many threads.
#[derive(Debug)]
pub struct BlockScan {
    cache: Arc<BlockCache>,
    ledger: Arc<Ledger>,
    blocks: Arc<BlockList>,
    /// The order in which blocks are taken: the block number *at* each place.
    order: Vec<usize>,
    /// The columns, by their index in the segments.
    columns: Vec<usize>,
    horizon_bytes: usize,
    reading: OnceLock<Option<Reading>>,
    /// For each column, the number of blocks in which it was wanted.
    wanted: Vec<AtomicUsize>,
    /// For each place, a bit for each of the first 64 columns that was wanted.
    wanted_at: Vec<AtomicU64>,
    /// The number of blocks that are finished.
    ended: AtomicUsize,
    /// The next block to be taken.
    next: AtomicUsize,
    ahead_bytes: AtomicU64,
    late_bytes: AtomicU64,
}

#[derive(Debug)]
struct Reading {
    io: ReadAhead,
    way: String,
    /// The files, to query the page cache.
    buffered: Vec<Arc<LocalFile>>,
    /// For each column, the first place that was not requested yet.
    asked: Mutex<Vec<usize>>,
}

impl BlockScan {
    /// Creates a scan of columns of some or all blocks, in an order, with up to `horizon_bytes`
    /// ahead of the blocks in progress. Numbers past the last block stand for rows without reads.
    /// `sure` are those columns, by their index in `columns`, that will be wanted in every block.
    pub fn new(
        cache: &Arc<BlockCache>,
        ledger: &Arc<Ledger>,
        blocks: &Arc<BlockList>,
        order: Vec<usize>,
        columns: Vec<usize>,
        sure: &[usize],
        horizon_bytes: usize,
    ) -> Self {
        let often = |column| if sure.contains(&column) { SURE } else { 0 };
        Self {
            cache: Arc::clone(cache),
            ledger: Arc::clone(ledger),
            blocks: Arc::clone(blocks),
            wanted: (0..columns.len()).map(|column| AtomicUsize::new(often(column))).collect(),
            wanted_at: order.iter().map(|_| AtomicU64::new(0)).collect(),
            order,
            columns,
            horizon_bytes,
            reading: OnceLock::new(),
            ended: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            ahead_bytes: AtomicU64::new(0),
            late_bytes: AtomicU64::new(0),
        }
    }

    /// Records that a worker begins a block.
    pub fn begin(&self, at: usize) {
        self.next.fetch_max(at + 1, Relaxed);
        if let Some(Some(reading)) = self.reading.get() {
            self.ask_for_block(reading, at);
            self.plan(reading);
        }
    }

    /// Records that a block is finished.
    pub fn end(&self, at: usize) {
        if self.ended.fetch_add(1, Relaxed) >= MEMORY {
            // Estimates: concurrent increments may get lost.
            self.wanted.iter().chain([&self.ended]).for_each(|n| n.store(n.load(Relaxed) / 2, Relaxed));
        }
        self.skip(at);
    }

    /// Records that a block is skipped, which does not affect the estimates.
    pub fn skip(&self, at: usize) {
        if let Some(Some(reading)) = self.reading.get() {
            reading.io.forget((0..self.columns.len()).flat_map(|column| self.extents(at, column)));
        }
    }

    /// Returns a verified block of a column, as [`BlockCache::load`] does.
    ///
    /// # Errors
    /// As [`Segment::load`].
    pub fn load(&self, at: usize, column: usize) -> Result<Arc<BlockColumn>> {
        self.wanted[column].fetch_add(1, Relaxed);
        self.wanted_at[at].fetch_or(bit(column), Relaxed);
        let (segment, block) = self.blocks.at(self.order[at]);
        let (cache, index) = (&self.cache, self.columns[column]);
        if let Some(cached) = cache.get(segment, index, block, &self.ledger) {
            return Ok(cached);
        }
        let Some(reading) = self.reading.get_or_init(|| self.start(at, column)) else {
            return cache.read(segment, index, block, &self.ledger, |_, _| None);
        };
        self.plan(reading);
        self.ask_for_companions(reading, at, column);
        let file = self.blocks.segment_at(self.order[at]);
        cache.read(segment, index, block, &self.ledger, |offset, bytes| {
            let buffer = reading.io.take(&Extent { file, offset, bytes });
            let counter = if buffer.is_some() { &self.ahead_bytes } else { &self.late_bytes };
            counter.fetch_add(bytes as u64, Relaxed);
            buffer
        })
    }

    /// Returns the statistics so far.
    pub fn facts(&self) -> AheadFacts {
        AheadFacts {
            way: self.reading.get().and_then(|reading| Some(reading.as_ref()?.way.clone())),
            ahead_bytes: self.ahead_bytes.load(Relaxed),
            late_bytes: self.late_bytes.load(Relaxed),
        }
    }

    /// Returns the block at a place, or `None` if nothing is read there.
    fn block(&self, at: usize) -> Option<(&Arc<Segment>, usize)> {
        self.blocks.get(self.order[at])
    }

    /// Returns the extents of a column at a place. A segment's file has the segment's number.
    fn extents(&self, at: usize, column: usize) -> impl Iterator<Item = Extent> + use<> {
        let chunks = self.block(at).map(|(segment, block)| {
            let file = self.blocks.segment_at(self.order[at]);
            let chunks = segment.chunks(self.columns[column], block);
            chunks.map(move |(offset, bytes)| Extent { file, offset, bytes })
        });
        chunks.into_iter().flatten()
    }

    /// Returns the number of next blocks in which a column is likely to be wanted.
    fn reach(&self, column: usize) -> usize {
        let wanted = self.wanted[column].load(Relaxed);
        // A column that was wanted once may have been wanted for a single row.
        if 2 * wanted >= self.ended.load(Relaxed) { REACH * wanted.saturating_sub(1) } else { 0 }
    }

    /// Requests the columns that are likely to be wanted in the next blocks.
    fn plan(&self, reading: &Reading) {
        let next = self.next.load(Relaxed);
        let mut asked = reading.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let goals = (0..self.columns.len()).map(|column| (next + self.reach(column)).min(self.order.len()));
        let goals: Vec<usize> = goals.collect();
        let left = |column: &usize| goals[*column] > asked[*column].max(next);
        let columns: Vec<usize> = (0..goals.len()).filter(left).collect();
        let first = columns.iter().map(|column| asked[*column]).min().unwrap_or(0).max(next);
        let last = columns.iter().map(|column| goals[*column]).max().unwrap_or(0);
        let (mut extents, mut bytes) = (Vec::new(), reading.io.bytes());
        for at in first..last {
            if bytes >= self.horizon_bytes {
                break;
            }
            for column in columns.iter().filter(|column| (asked[**column]..goals[**column]).contains(&at)).copied() {
                let before = extents.len();
                self.add(reading, at, column, &mut extents);
                bytes += extents[before..].iter().map(|(_, extent)| extent.bytes).sum::<usize>();
            }
            columns.iter().for_each(|column| asked[*column] = asked[*column].max((at + 1).min(goals[*column])));
        }
        if !extents.is_empty() {
            reading.io.ask(extents);
        }
    }

    /// Requests the columns that are likely to be wanted in a block that a worker begins, except
    /// those requested already.
    fn ask_for_block(&self, reading: &Reading, at: usize) {
        let mut extents = Vec::new();
        for column in (0..self.columns.len()).filter(|column| self.reach(*column) > 0) {
            self.add(reading, at, column, &mut extents);
        }
        if !extents.is_empty() {
            reading.io.ask(extents);
        }
    }

    /// Requests the columns that are wanted as often as a column of the same block that was not
    /// requested.
    fn ask_for_companions(&self, reading: &Reading, at: usize, column: usize) {
        if self.reach(column) > 0 {
            return;
        }
        let (wanted, wanted_at) = (self.wanted[column].load(Relaxed), self.wanted_at[at].load(Relaxed));
        let is_companion = |other: &usize| {
            // Columns that are read ahead have been requested, and columns after the 64th are not
            // tracked.
            let as_often = 2 * self.wanted[*other].load(Relaxed) >= wanted;
            as_often && wanted > 1 && *other < 64 && wanted_at & bit(*other) == 0 && self.reach(*other) == 0
        };
        let mut extents = Vec::new();
        for other in (0..self.columns.len()).filter(is_companion) {
            self.add(reading, at, other, &mut extents);
        }
        if !extents.is_empty() {
            reading.io.ask(extents);
        }
    }

    /// Adds the parts of a block that are in no memory yet.
    fn add(&self, reading: &Reading, at: usize, column: usize, asked: &mut Vec<(usize, Extent)>) {
        let Some((segment, block)) = self.block(at) else { return };
        if self.cache.has(segment, self.columns[column], block) {
            return;
        }
        let is_on_storage = |extent: &Extent| {
            let file = reading.buffered.get(extent.file);
            let cached = file.and_then(|file| file.page_cache_has(extent.offset, extent.bytes));
            cached.is_none_or(|cached| cached < extent.bytes as u64)
        };
        asked.extend(self.extents(at, column).filter(is_on_storage).map(|extent| (at, extent)));
    }

    /// Starts reading ahead, if enough is left to be worthwhile. The caller is about to read a
    /// column by itself.
    fn start(&self, from: usize, column: usize) -> Option<Reading> {
        let stored = |at| -> u64 {
            let Some((segment, block)) = self.block(at) else { return 0 };
            self.columns.iter().map(|column| segment.stored_bytes(*column, block)).sum()
        };
        let left: u64 = (from..self.order.len()).map(stored).sum();
        if left < WORTH_BYTES || self.order.len() < 2 || self.horizon_bytes == 0 {
            return None;
        }
        let has_room = self.cache.bytes() as u64 + left <= self.cache.budget() as u64;
        let (path, ledger) = (self.cache.path(), &self.ledger);
        let wanted = Wanted { path, left, is_kept: has_room, rings: RINGS, threads: THREADS, ledger };
        // A path that is unavailable is an error of the caller that reads a block by itself.
        let Queues { queues, way, cached, .. } = Queues::of(self.blocks.segments(), &wanted).ok()??;
        let io = ReadAhead::start(queues, self.cache.allowance().clone(), REQUEST_BYTES);
        let next = self.next.load(Relaxed).max(from + 1);
        let reading = Reading { io, way, buffered: cached, asked: Mutex::new(vec![next; self.columns.len()]) };
        // The blocks in progress: read one by one, behind everything that is read ahead from now
        // on, they would delay all workers.
        let mut extents = Vec::new();
        for at in from..next {
            let likely =
                (0..self.columns.len()).filter(|other| (at, *other) != (from, column) && self.reach(*other) > 0);
            likely.for_each(|other| self.add(&reading, at, other, &mut extents));
        }
        reading.io.ask(extents);
        Some(reading)
    }
}

impl Drop for BlockScan {
    fn drop(&mut self) {
        // A cancelled query does not wait for a device that does not respond.
        if let Some(Some(reading)) = self.reading.take() {
            reading.io.abandon();
        }
    }
}

fn bit(column: usize) -> u64 {
    1u64.checked_shl(column as u32).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use onehop_io::{LocalFile, RequestedPath};

    use super::*;
    use crate::{SegmentOptions, SegmentWriter};

    #[test]
    fn of_a_block_that_is_worked_on_all_is_asked_for_whatever_the_horizon() {
        const BLOCK_ROWS: usize = 64 << 10;
        let rows = (0..12 * BLOCK_ROWS as i64).map(|row| row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64));
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(rows));
        let batch = RecordBatch::try_from_iter([("a", Arc::clone(&column)), ("b", column)]).unwrap();
        let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: BLOCK_ROWS }).unwrap();
        writer.append(&batch).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("segment");
        let file = LocalFile::create(&path, RequestedPath::PreferHostDirect).unwrap();
        writer.finish(&file, &Ledger::default()).unwrap();
        let file = LocalFile::open(&path, RequestedPath::Buffered).unwrap();
        let segment = Arc::new(Segment::open(Arc::new(file), &Ledger::default()).unwrap());
        let blocks: Arc<BlockList> =
            Arc::new((0..segment.blocks()).map(|block| (Arc::clone(&segment), block)).collect());

        // A horizon smaller than the first block.
        let cache = Arc::new(BlockCache::new(0).by_path(RequestedPath::PreferHostDirect));
        let order = (0..blocks.len()).collect();
        let scan = BlockScan::new(&cache, &Arc::default(), &blocks, order, vec![0, 1], &[0, 1], 1);
        scan.begin(0);
        scan.load(0, 0).unwrap();
        let Some(Some(reading)) = scan.reading.get() else { panic!("nothing is read ahead") };
        let of = |at: usize| (0..2).map(|column| segment.stored_bytes(column, at) as usize).sum::<usize>();
        let before = reading.io.bytes();
        scan.begin(7);
        assert_eq!(reading.io.bytes(), before + of(7));
        // Only once.
        scan.begin(7);
        assert_eq!(reading.io.bytes(), before + of(7));
        scan.skip(7);
        assert_eq!(reading.io.bytes(), before);
    }
}
