//! Hot blocks stay in memory, encoded as they are stored, their checksums and values verified once.
//!
//! Each segment keeps its blocks in slots of its own. A [`BlockCache`] is only the budget that
//! several segments share, and the eviction policy: a clock (second chance) over blocks in the
//! order of their arrival. A dropped segment drops its blocks. Their entries in the clock are
//! removed when its hand passes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use onehop_governor::{Cache, register_cache};
use onehop_io::{AlignedBuf, Allowance, Ledger, Path, RequestedPath};

use crate::{BlockColumn, Result, Segment};

/// The memory for blocks that are read ahead, of all scans together.
const AHEAD_BYTES: usize = 64 << 20;

/// Memory for blocks, shared by segments, and the path by which they are read. Cheap to clone. All
/// methods may be called from many threads.
#[derive(Clone, Debug)]
pub struct BlockCache {
    path: RequestedPath,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    budget: usize,
    /// The memory for blocks that are read ahead and not wanted yet.
    allowance: Allowance,
    clock: Mutex<Clock>,
}

#[derive(Debug, Default)]
struct Clock {
    bytes: usize,
    /// The hand is at the front.
    blocks: VecDeque<Cached>,
}

#[derive(Debug)]
struct Cached {
    segment: Weak<Segment>,
    slot: usize,
    bytes: usize,
}

/// The slot of a block in its segment.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    block: Mutex<Option<Arc<BlockColumn>>>,
    /// True if the block was used since the hand passed.
    used: AtomicBool,
}

impl Slot {
    fn get(&self) -> Option<Arc<BlockColumn>> {
        let block = self.block.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if block.is_some() {
            self.used.store(true, Relaxed);
        }
        block
    }

    fn is_filled(&self) -> bool {
        self.block.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Stores a block. Returns true if the slot was empty: another thread may have been faster.
    fn put(&self, block: &Arc<BlockColumn>) -> bool {
        self.block.lock().unwrap_or_else(PoisonError::into_inner).replace(Arc::clone(block)).is_none()
    }

    fn clear(&self) {
        *self.block.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl BlockCache {
    /// Creates a cache of `budget` bytes. With 0 every block is read on each use.
    pub fn new(budget: usize) -> Self {
        let shared = Arc::new(Shared { budget, allowance: Allowance::new(AHEAD_BYTES), clock: Mutex::default() });
        let cache: Arc<dyn Cache> = Arc::clone(&shared) as _;
        register_cache(Arc::downgrade(&cache));
        Self { path: RequestedPath::Auto, shared }
    }

    /// Returns the same cache with another read path. With [`RequestedPath::Auto`] files are read
    /// as they were opened, but reads ahead may bypass the page cache.
    #[must_use]
    pub fn by_path(&self, path: RequestedPath) -> Self {
        Self { path, ..self.clone() }
    }

    /// Returns the requested path.
    pub fn path(&self) -> RequestedPath {
        self.path
    }

    /// Returns the maximum bytes of blocks.
    pub fn budget(&self) -> usize {
        self.shared.budget
    }

    /// Returns true if bytes that are read from a segment stay in memory, in this cache or in the
    /// page cache, for the next reader.
    pub fn keeps(&self, segment: &Segment) -> bool {
        if self.budget() > 0 {
            return true;
        }
        match self.path {
            RequestedPath::HostDirect => false,
            RequestedPath::Buffered => true,
            // As the file was opened.
            RequestedPath::Auto | RequestedPath::PreferHostDirect => segment.file().hints().path != Path::HostDirect,
        }
    }

    /// Returns the memory for blocks that are read ahead.
    pub(crate) fn allowance(&self) -> &Allowance {
        &self.shared.allowance
    }

    /// Returns the bytes of the cached blocks.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Clock> {
        self.shared.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a block of a column, or takes it from memory. Its values have been verified as by
    /// [`BlockColumn::verify`].
    ///
    /// # Errors
    /// As [`Segment::load`].
    pub fn load(
        &self,
        segment: &Arc<Segment>,
        column: usize,
        block: usize,
        ledger: &Ledger,
    ) -> Result<Arc<BlockColumn>> {
        match self.get(segment, column, block, ledger) {
            Some(block) => Ok(block),
            None => self.read(segment, column, block, ledger, |_, _| None),
        }
    }

    /// Returns true if a block is in memory.
    pub fn has(&self, segment: &Segment, column: usize, block: usize) -> bool {
        segment.slots[column * segment.blocks() + block].is_filled()
    }

    /// Returns a block that is in memory.
    pub(crate) fn get(
        &self,
        segment: &Segment,
        column: usize,
        block: usize,
        ledger: &Ledger,
    ) -> Option<Arc<BlockColumn>> {
        let block = segment.slots[column * segment.blocks() + block].get()?;
        ledger.cached(block.memory_bytes());
        Some(block)
    }

    /// Reads a block, verifies it and keeps it. `read` returns the parts that have been read
    /// already.
    pub(crate) fn read(
        &self,
        segment: &Arc<Segment>,
        column: usize,
        block: usize,
        ledger: &Ledger,
        mut read: impl FnMut(u64, usize) -> Option<AlignedBuf>,
    ) -> Result<Arc<BlockColumn>> {
        let slot = column * segment.blocks() + block;
        let loaded = segment.load_by(self.path, column, block, ledger, |at, bytes| Some(read(at, bytes)?.into()))?;
        loaded.verify(&segment.zone(column, block))?;
        let loaded = Arc::new(loaded);
        // A block that takes a large part of the cache would only evict the others.
        if loaded.memory_bytes() <= self.shared.budget / 8 && segment.slots[slot].put(&loaded) {
            self.admit(Cached { segment: Arc::downgrade(segment), slot, bytes: loaded.memory_bytes() });
        }
        Ok(loaded)
    }

    fn admit(&self, cached: Cached) {
        let mut clock = self.lock();
        clock.bytes += cached.bytes;
        clock.blocks.push_back(cached);
        clock.shrink(self.shared.budget);
    }
}

impl Clock {
    /// Evicts until at most `bytes` bytes are left.
    fn shrink(&mut self, bytes: usize) {
        while self.bytes > bytes {
            let Some(candidate) = self.blocks.pop_front() else { return };
            let Some(segment) = candidate.segment.upgrade() else {
                self.bytes -= candidate.bytes;
                continue;
            };
            let slot = &segment.slots[candidate.slot];
            if slot.used.swap(false, Relaxed) {
                self.blocks.push_back(candidate);
            } else {
                slot.clear();
                self.bytes -= candidate.bytes;
            }
        }
    }
}

impl Cache for Shared {
    fn evict(&self, bytes: u64) -> u64 {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let before = clock.bytes;
        clock.shrink(before.saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX)));
        (before - clock.bytes) as u64
    }

    fn held(&self) -> u64 {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner).bytes as u64
    }
}
