//! Memory of blocks that the device copies directly: regions of the slab ([`onehop_io::Slab`]) that
//! are registered with the driver. This saves the host the copy into a pinned buffer.
//!
//! 1. The slab notifies about its regions as they are mapped and unmapped ([`RegionWatch`]).
//! 2. Bytes copied by the host are counted by region. After [`WORTH_COPIES`] copies of a region,
//!    all of it is registered. Data that is read once therefore registers nothing.
//! 3. From then on its bytes are copied from their own memory, until the region is unmapped.
//!
//! Invariants:
//! - A region is registered once, and unregistered before it is unmapped: the slab notifies while
//!   it has no buffer in use. Pending copies hold the blocks that they read
//!   ([`super::Room::hold`]), so that the region is not unmapped.
//! - Registered bytes are limited. If the limit is reached, or the driver refuses, the host copies
//!   as before. After a refusal, no further registration is attempted.
//! - Memory that a failed device may still read stays registered, and the owner of a failed copy
//!   leaks its blocks.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onehop_io::RegionWatch;

use crate::Context;
use crate::driver::RegisteredMemory;
use crate::queue::lose;

/// Number of host copies of a region before it is registered. Registration takes about as long as
/// one copy.
pub(super) const WORTH_COPIES: usize = 2;
/// Least bytes that are worth a copy of their own to the device, even from registered memory.
pub(super) const LEAST_BYTES: usize = 64 << 10;

/// Registered regions of a slab, with one device's driver.
pub(super) struct Registered {
    context: Arc<Context>,
    limit_bytes: usize,
    worth_copies: usize,
    state: Mutex<State>,
    direct_bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Regions by start address.
    regions: BTreeMap<usize, Region>,
    /// Bytes of the regions that are registered, or about to be.
    bytes: usize,
    is_refused: bool,
    /// True if the device may still read some of it.
    is_lost: bool,
}

struct Region {
    end: usize,
    /// Bytes of the region that the host has copied.
    copied_bytes: usize,
    memory: Memory,
}

enum Memory {
    Plain,
    /// A thread is about to register it.
    Busy,
    Registered(RegisteredMemory),
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("limit_bytes", &self.limit_bytes).finish_non_exhaustive()
    }
}

impl Registered {
    /// Creates an empty state with a limit in bytes and a number of copies before registration. The
    /// slab watches it.
    pub fn new(context: &Arc<Context>, limit_bytes: usize, worth_copies: usize) -> Self {
        let (state, direct_bytes) = (Mutex::default(), AtomicU64::new(0));
        Self { context: Arc::clone(context), limit_bytes, worth_copies, state, direct_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the device can copy from these bytes, which lie in a buffer in use. May
    /// register their region, which takes some milliseconds; meanwhile it returns false to other
    /// threads.
    pub fn covers(&self, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr() as usize;
        let mut state = self.lock();
        let State { regions, bytes: registered_bytes, is_refused, .. } = &mut *state;
        let Some((at, region)) = regions.range_mut(..=start).next_back() else { return false };
        if start + bytes.len() > region.end {
            return false;
        }
        let addresses = *at..region.end;
        match region.memory {
            Memory::Registered(_) => {
                self.direct_bytes.fetch_add(bytes.len() as u64, Relaxed);
                return true;
            }
            Memory::Busy => return false,
            Memory::Plain => region.copied_bytes += bytes.len(),
        }
        let is_worth_it = region.copied_bytes >= self.worth_copies * addresses.len();
        if *is_refused || !is_worth_it || addresses.len() > self.limit_bytes - *registered_bytes {
            return false;
        }
        region.memory = Memory::Busy;
        *registered_bytes += addresses.len();
        drop(state);
        // SAFETY: the slab keeps the region mapped while a buffer in it is in use, as the caller's
        // is, and notifies before it is unmapped. Nothing else in the process registers the slab's
        // regions with this context, and each region is registered once.
        let outcome = unsafe { RegisteredMemory::new(&self.context, addresses.clone()) };
        let mut state = self.lock();
        let is_registered = outcome.is_ok();
        if !is_registered {
            state.is_refused = true;
            state.bytes -= addresses.len();
        }
        if let Some(region) = state.regions.get_mut(&addresses.start) {
            region.memory = outcome.map_or(Memory::Plain, Memory::Registered);
        }
        if is_registered {
            self.direct_bytes.fetch_add(bytes.len() as u64, Relaxed);
        }
        is_registered
    }

    /// Stops unregistering, because blocks that the device may still read are leaked.
    pub fn lose(&self) {
        let mut state = self.lock();
        (state.is_lost, state.is_refused) = (true, true);
    }

    /// Unregisters everything. A concurrent unmapping of a region waits for it.
    pub fn close(&self) {
        let mut state = self.lock();
        let regions = std::mem::take(&mut state.regions);
        (state.bytes, state.is_refused) = (0, true);
        if state.is_lost {
            lose(regions);
        }
    }

    /// Returns the total bytes that the host did not copy.
    pub fn direct_bytes(&self) -> u64 {
        self.direct_bytes.load(Relaxed)
    }
}

impl RegionWatch for Registered {
    fn mapped(&self, addresses: Range<usize>) {
        let region = Region { end: addresses.end, copied_bytes: 0, memory: Memory::Plain };
        self.lock().regions.insert(addresses.start, region);
    }

    fn unmapping(&self, addresses: Range<usize>) {
        let mut state = self.lock();
        let Some(region) = state.regions.remove(&addresses.start) else { return };
        if let Memory::Registered(memory) = region.memory {
            state.bytes -= addresses.len();
            drop(state);
            drop(memory);
        }
    }
}
