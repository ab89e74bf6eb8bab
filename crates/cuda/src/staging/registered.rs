//! Memory of blocks that the device copies from where it lies: regions of the slab ([`onehop_io::Slab`]) that are
//! registered with the driver, which saves the host the copy into a pinned buffer.
//!
//! 1. The slab tells of its regions as they come and go ([`RegionWatch`]).
//! 2. Bytes that were copied by the host are counted by region. When a region has been copied as often as
//!    [`WORTH_COPIES`] times, all of it is registered: who reads something once registers nothing.
//! 3. From then on its bytes are copied from where they are, until it is unmapped.
//!
//! Invariants:
//! - A region is registered once, and unregistered before it is unmapped: the slab says so while nobody has a buffer in it.
//!   Copies that are on their way hold the blocks that they read ([`super::Room::hold`]), so that it is not unmapped.
//! - Registered bytes are within a limit. Where that is reached, or the driver refuses, the host copies as ever; a driver
//!   that has refused is not asked again.
//! - What a sick device may still read stays registered, and its blocks are leaked by whoever had them copied.

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

/// How often the host has copied a region's bytes before it is registered: that takes about as long as copying it once.
pub(super) const WORTH_COPIES: usize = 2;
/// Fewer bytes are not worth a copy of their own to the device, however near they are.
pub(super) const LEAST_BYTES: usize = 64 << 10;

/// What is registered of a slab with one device's driver.
pub(super) struct Registered {
    context: Arc<Context>,
    limit_bytes: usize,
    worth_copies: usize,
    state: Mutex<State>,
    direct_bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    /// By where they start.
    regions: BTreeMap<usize, Region>,
    /// Of the regions that are registered, or about to be.
    bytes: usize,
    is_refused: bool,
    /// Nobody knows whether the device still reads some of it.
    is_lost: bool,
}

struct Region {
    end: usize,
    /// Bytes of it that the host has copied.
    copied_bytes: usize,
    memory: Memory,
}

enum Memory {
    Plain,
    /// Somebody is about to register it.
    Busy,
    Registered(RegisteredMemory),
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("limit_bytes", &self.limit_bytes).finish_non_exhaustive()
    }
}

impl Registered {
    /// Nothing, and at most so many bytes of regions that were copied so often. To be given to a slab's watch.
    pub fn new(context: &Arc<Context>, limit_bytes: usize, worth_copies: usize) -> Self {
        let (state, direct_bytes) = (Mutex::default(), AtomicU64::new(0));
        Self { context: Arc::clone(context), limit_bytes, worth_copies, state, direct_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device can copy from these bytes, of a buffer that somebody has. May register their region, which takes
    /// some milliseconds; others are told meanwhile that it cannot.
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
        // SAFETY: the slab keeps the region mapped while somebody has a buffer in it, as the caller has, and says so before
        // it is unmapped; nobody else in the process registers the slab's regions with this context, once for each place.
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

    /// Blocks are leaked that the device may still read: nothing is unregistered on its own account any more.
    pub fn lose(&self) {
        let mut state = self.lock();
        (state.is_lost, state.is_refused) = (true, true);
    }

    /// Unregisters everything, whose regions may be unmapped at the same time: they wait for it.
    pub fn close(&self) {
        let mut state = self.lock();
        let regions = std::mem::take(&mut state.regions);
        (state.bytes, state.is_refused) = (0, true);
        if state.is_lost {
            lose(regions);
        }
    }

    /// Bytes so far that the host need not copy.
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
