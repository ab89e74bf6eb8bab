//! Reads the blocks of a scan before they are wanted.
//!
//! ```text
//! blocks in the order in which workers take them
//! ... ended │ being worked on │ asked for: in flight or in memory │ later ...
//! ```
//! 1. As long as every block that is wanted is in the cache, nothing happens: no thread, no ring. The first one that is
//!    not starts the reading, if there is enough left to be worth it: with the other columns of the blocks that are worked
//!    on.
//! 2. A column is read ahead while it is wanted of every other block, at least, of those that were worked on; the further,
//!    the more often it was wanted. One that few rows get to, behind filters, is read when it is wanted, and those that
//!    are wanted together with it are asked for at the same time.
//! 3. Of a block that somebody begins to work on, all of these are asked for, however much was before: where many threads work
//!    on large blocks, the horizon ends before the last of them, and a column read alone, by who waits for it, is a short read.
//! 4. What is in the page cache already is left to whoever wants it: that copies it.
//! 5. What has been read belongs to nobody until it is wanted: then its checksums are verified and the cache has it. What
//!    was not wanted after all is forgotten when its block ends.
//!
//! Reading ahead never fails ([`ReadAhead`]): errors come to who wants a block, from a read of their own.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use onehop_io::{Extent, Ledger, LocalFile, ReadAhead};

use crate::queues::{Queues, REQUEST_BYTES, Wanted};
use crate::{BlockCache, BlockColumn, BlockList, Result, Segment};

/// Each time that a column was wanted again is worth so many blocks of it.
const REACH: usize = 4;
/// A column that will be wanted of every block begins as one that was wanted so often.
const SURE: usize = 16;
/// After so many blocks, what was wanted of earlier ones counts half.
const MEMORY: usize = 64;
/// With less than this left to read, nothing is read ahead.
const WORTH_BYTES: u64 = 2 << 20;
/// Memory that nobody has used yet is found and cleared when a read into it begins: by two threads, side by side.
const RINGS: usize = 2;
/// Threads where there is no ring.
const THREADS: usize = 4;

/// What has come of reading ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AheadFacts {
    /// How, if anything was: `io_uring, host direct`.
    pub way: Option<String>,
    /// Stored bytes that were there, or on their way, when they were wanted.
    pub ahead_bytes: u64,
    /// Stored bytes that were read by whoever wanted them.
    pub late_bytes: u64,
}

impl AheadFacts {
    /// Adds what has come of another pass.
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
    /// The order in which they are taken: what is *at* a place here is a block's number.
    order: Vec<usize>,
    /// By their place in the segments.
    columns: Vec<usize>,
    horizon_bytes: usize,
    reading: OnceLock<Option<Reading>>,
    /// Of each column, how many blocks it was wanted of.
    wanted: Vec<AtomicUsize>,
    /// Of each place, a bit for each of the first 64 columns that was wanted.
    wanted_at: Vec<AtomicU64>,
    /// Blocks that nobody wants anything more of.
    ended: AtomicUsize,
    /// The next block that will be taken.
    next: AtomicUsize,
    ahead_bytes: AtomicU64,
    late_bytes: AtomicU64,
}

#[derive(Debug)]
struct Reading {
    io: ReadAhead,
    way: String,
    /// The files, to ask the page cache.
    buffered: Vec<Arc<LocalFile>>,
    /// Of each column, the first place that it has not been asked for at.
    asked: Mutex<Vec<usize>>,
}

impl BlockScan {
    /// Of columns of blocks, some of them or all, in an order, in which numbers past the last block stand for rows of
    /// which nothing is read, with up to so many bytes ahead of those that are worked
    /// on. `sure` are those of the columns, by their place among them, that will be wanted of every block.
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

    /// Somebody works on a block from now on.
    pub fn begin(&self, at: usize) {
        self.next.fetch_max(at + 1, Relaxed);
        if let Some(Some(reading)) = self.reading.get() {
            self.ask_for_block(reading, at);
            self.plan(reading);
        }
    }

    /// Nobody wants anything more of a block.
    pub fn end(&self, at: usize) {
        if self.ended.fetch_add(1, Relaxed) >= MEMORY {
            // Estimates: what others add meanwhile may get lost.
            self.wanted.iter().chain([&self.ended]).for_each(|n| n.store(n.load(Relaxed) / 2, Relaxed));
        }
        self.skip(at);
    }

    /// Nobody wants anything of a block, which says nothing about others.
    pub fn skip(&self, at: usize) {
        if let Some(Some(reading)) = self.reading.get() {
            reading.io.forget((0..self.columns.len()).flat_map(|column| self.extents(at, column)));
        }
    }

    /// A block of a column, verified, as [`BlockCache::load`] has it.
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

    /// What has come of it so far.
    pub fn facts(&self) -> AheadFacts {
        AheadFacts {
            way: self.reading.get().and_then(|reading| Some(reading.as_ref()?.way.clone())),
            ahead_bytes: self.ahead_bytes.load(Relaxed),
            late_bytes: self.late_bytes.load(Relaxed),
        }
    }

    /// The block at a place; `None` if nothing is read there.
    fn block(&self, at: usize) -> Option<(&Arc<Segment>, usize)> {
        self.blocks.get(self.order[at])
    }

    /// A segment's file has the segment's number.
    fn extents(&self, at: usize, column: usize) -> impl Iterator<Item = Extent> + use<> {
        let chunks = self.block(at).map(|(segment, block)| {
            let file = self.blocks.segment_at(self.order[at]);
            let chunks = segment.chunks(self.columns[column], block);
            chunks.map(move |(offset, bytes)| Extent { file, offset, bytes })
        });
        chunks.into_iter().flatten()
    }

    /// How many blocks of a column are likely to be wanted next.
    fn reach(&self, column: usize) -> usize {
        let wanted = self.wanted[column].load(Relaxed);
        // What was wanted once may have been wanted of a single row.
        if 2 * wanted >= self.ended.load(Relaxed) { REACH * wanted.saturating_sub(1) } else { 0 }
    }

    /// Asks for what is likely to be wanted of the next blocks.
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

    /// Asks for what is likely to be wanted of a block that nobody has worked on before, but for what was asked for already.
    fn ask_for_block(&self, reading: &Reading, at: usize) {
        let mut extents = Vec::new();
        for column in (0..self.columns.len()).filter(|column| self.reach(*column) > 0) {
            self.add(reading, at, column, &mut extents);
        }
        if !extents.is_empty() {
            reading.io.ask(extents);
        }
    }

    /// Asks for what is wanted as often as a column of the same block that nobody has asked for.
    fn ask_for_companions(&self, reading: &Reading, at: usize, column: usize) {
        if self.reach(column) > 0 {
            return;
        }
        let (wanted, wanted_at) = (self.wanted[column].load(Relaxed), self.wanted_at[at].load(Relaxed));
        let is_companion = |other: &usize| {
            // What is read ahead has been asked for, and what comes after the 64th column is not kept account of.
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

    /// What has to be read of a block that is in no memory yet.
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

    /// Sets threads to it, if what is left is worth it. Whoever calls is about to read a column by itself.
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
        // What is not to be had is an error of who reads a block by itself.
        let Queues { queues, way, cached, .. } = Queues::of(self.blocks.segments(), &wanted).ok()??;
        let io = ReadAhead::start(queues, self.cache.allowance().clone(), REQUEST_BYTES);
        let next = self.next.load(Relaxed).max(from + 1);
        let reading = Reading { io, way, buffered: cached, asked: Mutex::new(vec![next; self.columns.len()]) };
        // The blocks that are worked on already: one read after the other, behind all that is read ahead from now on, they
        // would hold up everything.
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
        // Who gives up a query does not wait for a device that does not answer.
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

        // A horizon that the first block alone goes beyond.
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
        // Once.
        scan.begin(7);
        assert_eq!(reading.io.bytes(), before + of(7));
        scan.skip(7);
        assert_eq!(reading.io.bytes(), before);
    }
}
