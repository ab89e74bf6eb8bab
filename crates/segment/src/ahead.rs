//! Reads the blocks of a scan before they are wanted.
//!
//! ```text
//! blocks in the order in which workers take them
//! ... ended │ taken │ planned: asked for, in flight, in memory │ not planned yet ...
//!           └ load  └ front goes on while no more than the horizon is asked for
//! ```
//! 1. As long as every block that is wanted is in the cache, nothing happens: no thread, no ring. The first one that is
//!    not starts the reading, if there is enough left to be worth it.
//! 2. A column is read ahead while it is wanted of every other block, at least, of those that were taken. One that few
//!    rows get to, behind filters, is read when it is wanted; then the others that are wanted as often are asked for.
//! 3. What is in the page cache already is left to whoever wants it: that copies it.
//! 4. What has been read belongs to nobody until it is wanted: then its checksums are verified and the cache has it. What
//!    was not wanted after all is forgotten when its block ends.
//!
//! A read ahead never fails ([`ReadAhead`]): errors come to who wants a block, from a read of their own.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use onehop_io::{
    BlockingQueue, Extent, Ledger, LentBuf, LocalFile, Path, Queue, ReadAhead, ReadAt, RequestedPath, UringQueue,
    memory_bytes,
};

use crate::{BlockCache, BlockColumn, Result, Segment};

/// Before the first block has ended, so much is asked for of what the first are wanted for: the horizon, in parts.
const CAUTION: usize = 8;
/// After so many blocks, what was wanted of earlier ones counts half.
const MEMORY: usize = 64;
/// With less than this left to read, nothing is read ahead.
const WORTH_BYTES: u64 = 2 << 20;
/// Reads in flight in a ring.
const DEPTH: usize = 32;
/// Threads where there is no ring, or the page cache is read: a ring reads that no faster than one thread.
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

/// A scan of blocks. All methods may be called from many threads.
#[derive(Debug)]
pub struct BlockScan {
    cache: Arc<BlockCache>,
    ledger: Arc<Ledger>,
    blocks: Arc<Vec<(Arc<Segment>, usize)>>,
    /// The order in which they are taken: what is *at* a place here is a block's number.
    order: Vec<usize>,
    /// By their place in the segments.
    columns: Vec<usize>,
    horizon_bytes: usize,
    reading: OnceLock<Option<Reading>>,
    /// Of each column, how many blocks it was wanted of.
    wanted: Vec<AtomicUsize>,
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
    /// Of each block, the number of its segment's file.
    file_of: Vec<usize>,
    /// The files, to ask the page cache.
    buffered: Vec<Arc<LocalFile>>,
    plan: Mutex<Plan>,
}

#[derive(Debug)]
struct Plan {
    /// The first place that has not been planned.
    front: usize,
    /// Of each column, the first place that it has not been planned for.
    planned: Vec<usize>,
}

/// Queues, what they are, and the files to ask the page cache.
type Queues = (Vec<Box<dyn Queue<LentBuf>>>, String, Vec<Arc<LocalFile>>);

impl BlockScan {
    /// Of columns of blocks, some of them or all, in an order, with up to so many bytes ahead of those that are worked
    /// on.
    pub fn new(
        cache: &Arc<BlockCache>,
        ledger: &Arc<Ledger>,
        blocks: &Arc<Vec<(Arc<Segment>, usize)>>,
        order: Vec<usize>,
        columns: Vec<usize>,
        horizon_bytes: usize,
    ) -> Self {
        Self {
            cache: Arc::clone(cache),
            ledger: Arc::clone(ledger),
            blocks: Arc::clone(blocks),
            order,
            wanted: columns.iter().map(|_| AtomicUsize::new(0)).collect(),
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
            reading.io.forget((0..self.columns.len()).flat_map(|column| self.extents(reading, at, column)));
        }
    }

    /// A block of a column, verified, as [`BlockCache::load`] has it.
    ///
    /// # Errors
    /// As [`Segment::load`].
    pub fn load(&self, at: usize, column: usize) -> Result<Arc<BlockColumn>> {
        let is_first = self.wanted[column].fetch_add(1, Relaxed) == 0;
        let (segment, block) = self.block(at);
        let (cache, index) = (&self.cache, self.columns[column]);
        if let Some(cached) = cache.get(segment, index, block, &self.ledger) {
            return Ok(cached);
        }
        let Some(reading) = self.reading.get_or_init(|| self.start(at)) else {
            return cache.read(segment, index, block, &self.ledger, |_, _| None);
        };
        if is_first {
            self.plan(reading);
        }
        let file = reading.file_of[self.order[at]];
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

    fn block(&self, at: usize) -> (&Arc<Segment>, usize) {
        let (segment, block) = &self.blocks[self.order[at]];
        (segment, *block)
    }

    fn extents(&self, reading: &Reading, at: usize, column: usize) -> impl Iterator<Item = Extent> + use<> {
        let (segment, block) = self.block(at);
        let file = reading.file_of[self.order[at]];
        segment.chunks(self.columns[column], block).map(move |(offset, bytes)| Extent { file, offset, bytes })
    }

    /// Whether a column is wanted of so many blocks that it is likely to be wanted of the next.
    fn is_likely(&self, column: usize) -> bool {
        let wanted = self.wanted[column].load(Relaxed);
        wanted > 0 && 2 * wanted >= self.ended.load(Relaxed)
    }

    /// Asks for what is likely to be wanted of the next blocks.
    fn plan(&self, reading: &Reading) {
        let mut plan = reading.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.next.load(Relaxed);
        let likely: Vec<usize> = (0..self.columns.len()).filter(|column| self.is_likely(*column)).collect();
        let mut asked = Vec::new();
        for column in &likely {
            // One that has become likely since the others were planned.
            for at in plan.planned[*column].max(next)..plan.front {
                self.add(reading, at, *column, &mut asked);
            }
        }
        plan.front = plan.front.max(next);
        let caution = if self.ended.load(Relaxed) == 0 { CAUTION } else { 1 };
        let bytes_of = |asked: &[(usize, Extent)]| asked.iter().map(|(_, extent)| extent.bytes).sum::<usize>();
        let mut bytes = reading.io.bytes() + bytes_of(&asked);
        while plan.front < self.order.len() && bytes < self.horizon_bytes / caution && !likely.is_empty() {
            let before = asked.len();
            likely.iter().for_each(|column| self.add(reading, plan.front, *column, &mut asked));
            bytes += bytes_of(&asked[before..]);
            plan.front += 1;
        }
        let front = plan.front;
        likely.iter().for_each(|column| plan.planned[*column] = front);
        if !asked.is_empty() {
            reading.io.ask(asked);
        }
    }

    /// What has to be read of a block that is in no memory yet.
    fn add(&self, reading: &Reading, at: usize, column: usize, asked: &mut Vec<(usize, Extent)>) {
        let (segment, block) = self.block(at);
        if self.cache.has(segment, self.columns[column], block) {
            return;
        }
        let is_on_storage = |extent: &Extent| {
            let file = reading.buffered.get(extent.file);
            let cached = file.and_then(|file| file.page_cache_has(extent.offset, extent.bytes));
            cached.is_none_or(|cached| cached < extent.bytes as u64)
        };
        asked.extend(self.extents(reading, at, column).filter(is_on_storage).map(|extent| (at, extent)));
    }

    /// Sets threads to it, if what is left is worth it.
    fn start(&self, from: usize) -> Option<Reading> {
        let stored = |at| -> u64 {
            let (segment, block) = self.block(at);
            self.columns.iter().map(|column| segment.stored_bytes(*column, block)).sum()
        };
        let left: u64 = (from..self.order.len()).map(stored).sum();
        if left < WORTH_BYTES || self.order.len() < 2 || self.horizon_bytes == 0 {
            return None;
        }
        let mut segments: Vec<&Arc<Segment>> = Vec::new();
        let mut file_of = Vec::with_capacity(self.blocks.len());
        for (segment, _) in self.blocks.iter() {
            let known = segments.iter().rposition(|other| Arc::ptr_eq(other, segment));
            file_of.push(known.unwrap_or_else(|| {
                segments.push(segment);
                segments.len() - 1
            }));
        }
        let files = segments.iter().map(|segment| Arc::clone(segment.file())).collect();
        let (queues, way, buffered) = self.queues(files, left)?;
        let io = ReadAhead::start(queues, self.cache.allowance().clone());
        let plan = Plan { front: from + 1, planned: vec![from + 1; self.columns.len()] };
        Some(Reading { io, way, file_of, buffered, plan: Mutex::new(plan) })
    }

    fn queues(&self, files: Vec<Arc<dyn ReadAt>>, left: u64) -> Option<Queues> {
        let path = files.first()?.hints().path;
        if path == Path::Memory {
            return None;
        }
        let locals: Option<Vec<Arc<LocalFile>>> = files.iter().map(|file| Arc::clone(file).as_local()).collect();
        let direct = match (&locals, path) {
            (Some(locals), Path::HostDirect) => Some(locals.clone()),
            (Some(locals), Path::Buffered) if self.passes_page_cache_by(locals, left) => {
                locals.iter().map(LocalFile::past_page_cache).collect()
            }
            _ => None,
        };
        let buffered = locals.filter(|_| path == Path::Buffered).unwrap_or_default();
        let Some(direct) = direct else {
            return Some((self.threads(&files), format!("{THREADS} threads, {path}"), buffered));
        };
        if let Ok(ring) = UringQueue::<LentBuf>::new(direct.clone(), DEPTH, None, Arc::clone(&self.ledger)) {
            return Some((vec![Box::new(ring)], format!("io_uring, {}", Path::HostDirect), buffered));
        }
        let direct: Vec<_> = direct.into_iter().map(|file| file as Arc<dyn ReadAt>).collect();
        Some((self.threads(&direct), format!("{THREADS} threads, {}", Path::HostDirect), buffered))
    }

    fn threads(&self, files: &[Arc<dyn ReadAt>]) -> Vec<Box<dyn Queue<LentBuf>>> {
        let queue = |_| -> Box<dyn Queue<LentBuf>> {
            Box::new(BlockingQueue::reader(files.to_vec(), Arc::clone(&self.ledger)))
        };
        (0..THREADS).map(queue).collect()
    }

    /// Whether the page cache is of no use to what is left to read, because the cache of blocks has room for it, or
    /// because it is more than memory holds. Only where the system says what the page cache has, which is used.
    fn passes_page_cache_by(&self, files: &[Arc<LocalFile>], left: u64) -> bool {
        let has_room = self.cache.bytes() as u64 + left <= self.cache.budget() as u64;
        self.cache.path() == RequestedPath::Auto
            && (has_room || left > memory_bytes())
            && files.first().is_some_and(|file| file.page_cache_has(0, 1).is_some())
    }
}
