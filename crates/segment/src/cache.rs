//! Hot blocks stay in memory, encoded as they are stored, their checksums and values verified once.
//!
//! Each segment keeps its blocks in slots of its own; a [`BlockCache`] is only the budget that several segments share,
//! and decides who has to go: a clock (second chance) over blocks in the order they came. A segment that is dropped
//! takes its blocks with it; what the clock still says about them is forgotten when its hand comes by.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use onehop_io::Ledger;

use crate::{BlockColumn, Result, Segment};

/// Memory for blocks, shared by segments. All methods may be called from many threads.
#[derive(Debug)]
pub struct BlockCache {
    budget: usize,
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

/// The place of a block in its segment.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    block: Mutex<Option<Arc<BlockColumn>>>,
    /// Used since the hand came by.
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

    /// Whether the block is new here: another thread may have been faster.
    fn put(&self, block: &Arc<BlockColumn>) -> bool {
        self.block.lock().unwrap_or_else(PoisonError::into_inner).replace(Arc::clone(block)).is_none()
    }

    fn clear(&self) {
        *self.block.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl BlockCache {
    /// A cache of so many bytes; with 0 every block is read whenever it is needed.
    pub fn new(budget: usize) -> Self {
        Self { budget, clock: Mutex::default() }
    }

    /// Bytes that blocks take.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
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
        let slot = column * segment.blocks() + block;
        if let Some(block) = segment.slots[slot].get() {
            ledger.cached(block.memory_bytes());
            return Ok(block);
        }
        let loaded = segment.load(column, block, ledger)?;
        loaded.verify(&segment.zone(column, block))?;
        let loaded = Arc::new(loaded);
        // A block that fills a good part of the cache by itself would only drive out the others.
        if loaded.memory_bytes() <= self.budget / 8 && segment.slots[slot].put(&loaded) {
            self.admit(Cached { segment: Arc::downgrade(segment), slot, bytes: loaded.memory_bytes() });
        }
        Ok(loaded)
    }

    fn admit(&self, cached: Cached) {
        let mut clock = self.lock();
        clock.bytes += cached.bytes;
        clock.blocks.push_back(cached);
        while clock.bytes > self.budget {
            let Some(candidate) = clock.blocks.pop_front() else { return };
            let Some(segment) = candidate.segment.upgrade() else {
                clock.bytes -= candidate.bytes;
                continue;
            };
            let slot = &segment.slots[candidate.slot];
            if slot.used.swap(false, Relaxed) {
                clock.blocks.push_back(candidate);
            } else {
                slot.clear();
                clock.bytes -= candidate.bytes;
            }
        }
    }
}
