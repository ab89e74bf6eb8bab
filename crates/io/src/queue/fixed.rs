//! Which parts of the slab's regions a ring has registered: the system has their pages pinned, and need not look them up
//! for every transfer.
//!
//! 1. A ring begins with an empty table, and counts its transfers by the regions that their buffers lie in.
//! 2. A region that has had so many is registered, as far as it is used: the pages are there by then, and pinning them is
//!    a step in a table for each, where pinning untouched ones would have the system find and clear them all.
//! 3. What is used of a region grows: transfers beyond what is registered are counted again, and at the same number more
//!    is registered, in the same place of the table.
//!
//! What it is worth: a transfer of 4 KiB takes 15 % less time of the system's, one of 64 KiB 5 to 10 % less, and one of
//! 256 KiB or more, within a huge page, the same. Registering a touched MiB takes 2 us, which is what five short transfers
//! win by it, and an untouched one up to 4 ms (virtual disk, Linux 6.18). So whoever reads little never registers anything.
//!
//! Invariants:
//! - A region in the table is kept, so that its addresses do not become another one's, of which the ring would know the
//!   wrong pages.
//! - A place of the table is never given to another region: transfers that the system has not seen yet may name it.
//! - Where the system refuses (before Linux 5.19; more than may be locked), nothing is registered from then on, and every
//!   transfer is carried out all the same.

use std::sync::Arc;
use std::time::Instant;

use io_uring::Submitter;

use crate::Slab;
use crate::slab::Region;

/// Regions that are counted or registered at once.
const PLACES: usize = 32;
/// After so many transfers a region is registered.
pub(super) const WORTH_TRANSFERS: usize = 256;
/// The most that the system registers in one piece.
const MOST_BYTES: usize = 1 << 30;

/// What a ring has registered of its own accord.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Bytes that are registered now.
    pub bytes: usize,
    /// Calls that registered something.
    pub calls: usize,
    /// How long these took. In nanoseconds.
    pub register_ns: u64,
    /// Transfers whose memory was registered when they began.
    pub transfers: u64,
    /// The system has refused to register more.
    pub is_refused: bool,
}

/// The table of a ring.
#[derive(Debug)]
pub(super) struct FixedRegions {
    places: Vec<Place>,
    may_register: bool,
    pub registered: Registered,
}

#[derive(Debug)]
struct Place {
    region: Arc<Region>,
    /// From its start.
    registered_bytes: usize,
    /// Transfers that were not within that.
    transfers: usize,
}

impl FixedRegions {
    /// An empty table, if the system has such.
    pub fn new(submitter: &Submitter<'_>) -> Self {
        let may_register = submitter.register_buffers_sparse(PLACES as u32).is_ok();
        Self { places: Vec::new(), may_register, registered: Registered::default() }
    }

    /// None: the ring's table is somebody else's.
    pub fn none() -> Self {
        Self { places: Vec::new(), may_register: false, registered: Registered::default() }
    }

    /// The place in the table that a transfer to or from these bytes may name, if it is worth it or has been.
    pub fn place_of(&mut self, submitter: &Submitter<'_>, address: usize, bytes: usize) -> Option<u16> {
        if !self.may_register && self.registered.bytes == 0 {
            return None;
        }
        let number = self.number_of(address, bytes)?;
        let place = &mut self.places[number];
        let end = address + bytes - place.region.addresses().start;
        if end > place.registered_bytes {
            place.transfers += 1;
            if place.transfers < WORTH_TRANSFERS || !self.may_register {
                return None;
            }
            self.register(submitter, number);
            if self.places.get(number).is_none_or(|place| end > place.registered_bytes) {
                return None;
            }
        }
        self.registered.transfers += 1;
        Some(number as u16)
    }

    /// The number of the region that bytes lie in, which it may get now.
    fn number_of(&mut self, address: usize, bytes: usize) -> Option<usize> {
        if let Some(known) = self.places.iter().position(|place| place.region.addresses().contains(&address)) {
            return Some(known);
        }
        let region = Slab::of_process().region_of(&(address..address + bytes))?;
        let place = Place { region, registered_bytes: 0, transfers: 0 };
        if self.places.len() < PLACES {
            self.places.push(place);
            return Some(self.places.len() - 1);
        }
        // No transfer names a place that nothing is registered in.
        let number = self.places.iter().position(|place| place.registered_bytes == 0)?;
        self.places[number] = place;
        Some(number)
    }

    fn register(&mut self, submitter: &Submitter<'_>, number: usize) {
        let place = &mut self.places[number];
        let bytes = place.region.used_bytes().min(MOST_BYTES);
        let part = libc::iovec { iov_base: place.region.addresses().start as *mut libc::c_void, iov_len: bytes };
        let begun = Instant::now();
        // SAFETY: the region is mapped as long as it is in the table, and what the system writes to is the buffer of a
        // transfer, which the queue owns. What is in flight in an earlier registration keeps that.
        let outcome = unsafe { submitter.register_buffers_update(number as u32, &[part], None) };
        match outcome {
            Ok(()) => {
                self.registered.bytes += bytes - place.registered_bytes;
                self.registered.calls += 1;
                self.registered.register_ns += begun.elapsed().as_nanos() as u64;
                (place.registered_bytes, place.transfers) = (bytes, 0);
            }
            Err(_) => {
                (self.may_register, self.registered.is_refused) = (false, true);
                if self.registered.bytes == 0 {
                    // Nobody need keep what will not be registered.
                    self.places.clear();
                }
            }
        }
    }
}
