//! Memory for buffers: large regions of huge pages, of which buffers of whole pages are cut, and to which they come back.
//!
//! A block is read into memory that another block has just left. Three things make that worth an allocator of its own:
//!
//! - **A device is told of memory by physical pages.** A buffer of 1 MiB is 256 of them, one by one, or a single run within
//!   a huge page: the disk of a virtual machine delivers three times as much into the latter.
//! - **Memory that nobody has used is not there yet.** The system finds and clears it when it is touched, and in a virtual
//!   machine has the host find it first: up to a millisecond a MiB, as much as reading it. So what was used is used again,
//!   by whichever scan comes next.
//! - **Addresses can be prepared once.** A region stays where it is for long, so that rings ([`UringQueue`](crate::UringQueue))
//!   and devices ([`RegionWatch`]) have its pages pinned, and need not look them up for every transfer.
//!
//! Invariants:
//! - Buffers do not overlap. A region is unmapped only when it is wholly free, and nobody holds its [`Region`].
//! - The regions of a slab are within its limit. Who is refused takes memory elsewhere.
//! - A region takes addresses alone until its buffers are used: memory is touched from its start, as far as needed.
//! - Of regions that are wholly free, a few are kept; the others go back to the system.

mod poison;
mod region;
mod runs;

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use poison::{poison, unpoison};
pub(crate) use region::Region;
pub use region::RegionWatch;
use region::{Directory, HUGE_PAGE_BYTES};
use runs::FreeRuns;

use crate::{AlignedBuf, PAGE_BYTES, memory_bytes};

/// A region has so many bytes, or those of a single buffer that is longer.
const REGION_BYTES: usize = 32 << 20;
/// Of regions that are wholly free, so many bytes are kept for who comes next.
const KEPT_BYTES: usize = 2 * REGION_BYTES;

/// Memory for buffers. All methods may be called from many threads.
#[derive(Debug)]
pub struct Slab {
    limit_bytes: usize,
    directory: Arc<Directory>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By where they start.
    regions: BTreeMap<usize, Held>,
    free: FreeRuns,
    stats: SlabStats,
    /// Of regions that are wholly free.
    idle_bytes: usize,
}

#[derive(Debug)]
struct Held {
    region: Arc<Region>,
    /// Bytes of the buffers in it.
    lent_bytes: usize,
}

/// What a slab holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabStats {
    /// Regions that are mapped.
    pub regions: usize,
    /// Their bytes, which are addresses, and memory as far as they were used.
    pub mapped_bytes: usize,
    /// Bytes of the buffers that somebody has, whole pages.
    pub lent_bytes: usize,
    /// The most that these were.
    pub most_lent_bytes: usize,
    /// Buffers that were handed out so far.
    pub buffers: u64,
}

impl Slab {
    /// With regions of so many bytes in sum, at most.
    pub fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { limit_bytes, directory: Arc::default(), state: Mutex::default() })
    }

    /// Where the process has its buffers from, as it has other memory from the allocator: what a scan leaves is used by
    /// the next, whoever it belongs to. Budgets are elsewhere ([`Allowance`](crate::Allowance)); this one's limit is the
    /// machine's memory.
    pub fn of_process() -> &'static Arc<Self> {
        static SLAB: LazyLock<Arc<Slab>> =
            LazyLock::new(|| Slab::new(usize::try_from(memory_bytes()).unwrap_or(usize::MAX)));
        &SLAB
    }

    /// `len` bytes of whatever the last owner left, or zeroes; `None` beyond the limit, or if the system has no more.
    pub fn buffer(self: &Arc<Self>, len: usize) -> Option<AlignedBuf> {
        AlignedBuf::of_slab(self, len)
    }

    /// Tells of all regions that there are, and of others from now on, until the watch is dropped. One that is dropped has
    /// to see to the regions that it knows by itself.
    pub fn watch(&self, watch: &Arc<dyn RegionWatch>) {
        self.directory.watch(watch);
    }

    /// Whether these bytes lie in one region, so that those who watch know of them.
    pub fn is_in_region(&self, address: *const u8, bytes: usize) -> bool {
        let start = address as usize;
        start.checked_add(bytes).is_some_and(|end| self.directory.has(&(start..end)))
    }

    /// What it holds now.
    pub fn stats(&self) -> SlabStats {
        self.lock().stats
    }

    /// The region that bytes lie in.
    pub(crate) fn region_of(&self, addresses: &Range<usize>) -> Option<Arc<Region>> {
        let mut state = self.lock();
        let region = &state.held(addresses.start)?.region;
        (addresses.end <= region.addresses().end).then(|| Arc::clone(region))
    }

    /// So many bytes, whole pages, and whether they are as the system gave them: zero. They are the caller's until
    /// [`Slab::give`].
    pub(crate) fn take(&self, bytes: usize) -> Option<(NonNull<u8>, bool)> {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(PAGE_BYTES));
        let mut state = self.lock();
        let start = match state.free.take(bytes) {
            Some(start) => start,
            None => {
                self.grow(&mut state, bytes)?;
                state.free.take(bytes)?
            }
        };
        let held = state.held(start)?;
        let was_idle = held.lent_bytes == 0;
        held.lent_bytes += bytes;
        let region = Arc::clone(&held.region);
        if was_idle {
            state.idle_bytes -= region.addresses().len();
        }
        state.stats.buffers += 1;
        state.stats.lent_bytes += bytes;
        state.stats.most_lent_bytes = state.stats.most_lent_bytes.max(state.stats.lent_bytes);
        let is_new = region.use_up_to(&(start..start + bytes));
        unpoison(&(start..start + bytes));
        Some((region.at(start), is_new))
    }

    /// Takes back what [`Slab::take`] gave.
    pub(crate) fn give(&self, start: NonNull<u8>, bytes: usize) {
        let start = start.as_ptr() as usize;
        let mut state = self.lock();
        let Some(held) = state.held(start) else {
            debug_assert!(false, "given back to another slab");
            return;
        };
        held.lent_bytes -= bytes;
        let (is_idle, addresses) = (held.lent_bytes == 0, held.region.addresses());
        poison(&(start..start + bytes));
        state.free.give(start..start + bytes, &addresses);
        state.stats.lent_bytes -= bytes;
        let mut gone = None;
        if is_idle {
            state.idle_bytes += addresses.len();
            if state.idle_bytes > KEPT_BYTES {
                gone = state.forget(&addresses);
            }
        }
        drop(state);
        // Unmapped where nobody waits for it.
        drop(gone);
    }

    /// Maps a region that a buffer of so many bytes fits into.
    fn grow(&self, state: &mut State, bytes: usize) -> Option<()> {
        let whole = |bytes: usize| bytes - bytes % HUGE_PAGE_BYTES;
        let bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
        if bytes > self.limit_bytes.saturating_sub(state.stats.mapped_bytes) {
            // What is kept is too short for it, and may be what it needs.
            state.forget_idle();
        }
        let left = self.limit_bytes.saturating_sub(state.stats.mapped_bytes);
        if bytes > left {
            return None;
        }
        let region = Region::map(bytes.max(whole(REGION_BYTES.min(left))), &self.directory).ok()?;
        let addresses = region.addresses();
        state.stats.regions += 1;
        state.stats.mapped_bytes += addresses.len();
        state.idle_bytes += addresses.len();
        state.free.give(addresses.clone(), &addresses);
        state.regions.insert(addresses.start, Held { region: Arc::new(region), lent_bytes: 0 });
        Some(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The region of an address that a buffer starts at.
    fn held(&mut self, address: usize) -> Option<&mut Held> {
        self.regions.range_mut(..=address).next_back().map(|(_, held)| held)
    }

    /// Lets go of a region that is wholly free. It is unmapped when nobody else has it.
    fn forget(&mut self, addresses: &Range<usize>) -> Option<Arc<Region>> {
        let held = self.regions.remove(&addresses.start)?;
        self.free.remove(addresses.start, addresses.len());
        self.idle_bytes -= addresses.len();
        self.stats.regions -= 1;
        self.stats.mapped_bytes -= addresses.len();
        Some(held.region)
    }

    fn forget_idle(&mut self) {
        let idle = self.regions.values().filter(|held| held.lent_bytes == 0);
        for addresses in idle.map(|held| held.region.addresses()).collect::<Vec<_>>() {
            self.forget(&addresses);
        }
    }
}

#[cfg(test)]
mod tests;
