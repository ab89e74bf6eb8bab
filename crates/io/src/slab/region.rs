//! Runs of memory as the system gives them, and who is told of them.
//!
//! Invariants:
//! - A region starts on a huge page and is whole huge pages long. It is mapped once, and its addresses are nobody else's
//!   until the last [`Arc`] of it is gone: whoever has made something of its addresses, as a ring that has registered them,
//!   keeps one.
//! - Everybody who watches is told of a region before anybody has a buffer in it, and again when nobody has one any more,
//!   before it is unmapped. All calls of one directory come one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::poison::{poison, unpoison};

/// Bytes of a huge page: what the common machines' second level of page tables maps.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Is told which memory buffers lie in: for who has to do something to memory once that would be too slow to do for every
/// transfer, as registering it with a device's driver.
///
/// Both calls come from the thread that needs a buffer, or has given the last one back, and others that need a region wait
/// meanwhile: what takes long is better left until the region is used. Neither may take or drop buffers of the slab, nor
/// ask its [`Slab`](crate::Slab) anything.
pub trait RegionWatch: Send + Sync {
    /// There may be buffers in these addresses from now on. The memory is readable and writable, and mostly untouched: the
    /// system finds it page by page when it is first used, or pinned.
    fn mapped(&self, addresses: Range<usize>);

    /// There are no buffers any more in a region that was [`mapped`](RegionWatch::mapped), and its addresses will be
    /// somebody else's when this returns.
    fn unmapping(&self, addresses: Range<usize>);
}

/// What is mapped of a slab, and who wants to know.
#[derive(Default)]
pub(super) struct Directory {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The end of each region, by its start.
    regions: BTreeMap<usize, usize>,
    watches: Vec<Weak<dyn RegionWatch>>,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").finish_non_exhaustive()
    }
}

impl State {
    fn tell(&mut self, what: impl Fn(&dyn RegionWatch)) {
        self.watches.retain(|watch| watch.upgrade().inspect(|watch| what(watch.as_ref())).is_some());
    }
}

impl Directory {
    /// Tells of all regions that there are, and of others from now on, as long as the watch is there.
    pub fn watch(&self, watch: &Arc<dyn RegionWatch>) {
        let mut state = self.lock();
        state.regions.iter().for_each(|(start, end)| watch.mapped(*start..*end));
        state.watches.push(Arc::downgrade(watch));
    }

    /// Whether these addresses lie in one region.
    pub fn has(&self, addresses: &Range<usize>) -> bool {
        let state = self.lock();
        state.regions.range(..=addresses.start).next_back().is_some_and(|(_, end)| addresses.end <= *end)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory from the system. Is unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// Of the first so many bytes, buffers have been handed out: what comes behind them is still zero, and takes no memory.
    used_bytes: AtomicUsize,
    directory: Arc<Directory>,
}

// SAFETY: it owns the mapping, and looks at no byte of it.
unsafe impl Send for Region {}
// SAFETY: as above; what may be changed is atomic.
unsafe impl Sync for Region {}

impl Region {
    /// So many bytes, rounded up to huge pages.
    ///
    /// # Errors
    /// What the system says: there are not so many addresses, or it commits to no more memory.
    pub(super) fn map(bytes: usize, directory: &Arc<Directory>) -> io::Result<Self> {
        let too_many = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or_else(too_many)?;
        let mapped_bytes = bytes.checked_add(HUGE_PAGE_BYTES).ok_or_else(too_many)?;
        // SAFETY: a new mapping wherever the system likes takes nothing from anybody.
        let mapped = unsafe {
            mmap_anonymous(ptr::null_mut(), mapped_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        // What lies before the first huge page and after the last goes back.
        let before = (mapped as usize).next_multiple_of(HUGE_PAGE_BYTES) - mapped as usize;
        let start = mapped.wrapping_byte_add(before);
        for (at, bytes) in [(mapped, before), (start.wrapping_byte_add(bytes), HUGE_PAGE_BYTES - before)] {
            if bytes > 0 {
                // SAFETY: both are parts of the new mapping that nobody knows. If one stays mapped, it is never touched.
                let _ = unsafe { munmap(at, bytes) };
            }
        }
        // SAFETY: the memory is ours and holds nothing yet. Where there are no huge pages, it is made of others.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(too_many)?;
        let region = Self { start, bytes, used_bytes: AtomicUsize::new(0), directory: Arc::clone(directory) };
        let mut state = directory.lock();
        let Range { start, end } = region.addresses();
        state.regions.insert(start, end);
        state.tell(|watch| watch.mapped(start..end));
        drop(state);
        poison(&region.addresses());
        Ok(region)
    }

    /// All of it.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize;
        start..start + self.bytes
    }

    /// Where a part of it lies, by its address.
    pub(super) fn at(&self, address: usize) -> NonNull<u8> {
        let offset = address - self.addresses().start;
        debug_assert!(offset < self.bytes);
        // SAFETY: the offset lies within the mapping.
        unsafe { self.start.add(offset) }
    }

    /// Bytes from the start, whole huge pages, behind which nobody has ever had a buffer.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Acquire).next_multiple_of(HUGE_PAGE_BYTES)
    }

    /// Somebody has a buffer up to `end` from now on. Whether nobody has ever had one behind `start`. Calls come one after
    /// the other.
    pub(super) fn use_up_to(&self, addresses: &Range<usize>) -> bool {
        let used = self.used_bytes.load(Acquire);
        let base = self.addresses().start;
        self.used_bytes.store(used.max(addresses.end - base), Release);
        addresses.start - base >= used
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let addresses = self.addresses();
        unpoison(&addresses);
        let mut state = self.directory.lock();
        state.regions.remove(&addresses.start);
        state.tell(|watch| watch.unmapping(addresses.clone()));
        // Under the lock: nobody is told of these addresses as somebody else's before they have heard that they are free.
        // SAFETY: mapped in `map`; the slab has no buffer out of it, and whoever else knows the addresses had an `Arc`. If
        // the system refuses, the addresses are lost, and nothing else.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
