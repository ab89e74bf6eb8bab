//! Resident memory, as the system tells it, and free memory that the allocator keeps of it.
//!
//! Freed memory counts no more, and stays resident until the allocator gives it back. So between two
//! looks the process may have all that was resident at the first of them, and all that was allocated
//! since. A thread whose allocation could pass the limit in this way looks itself, and gives free memory
//! back before it goes on ([`allocated`]). One thread looks at a time; others that have to wait for it.
//!
//! Invariants: nothing here allocates or takes a lock after [`open`], for the allocator calls it.

use std::fs::File;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};
use std::thread;

use crate::{account, memory};

/// Free memory that the allocator may keep, of the largest limit: one thirty-second part.
const KEPT_PART: u64 = 32;

/// The same without a limit.
const KEPT_BYTES: u64 = 64 << 20;

/// The least that may be allocated between two looks, of the largest limit: one sixty-fourth part.
const LEAST_ROOM_PART: u64 = 64;

/// The file that tells what is resident, open for as long as the process lives; less than 0 before.
static STATM: AtomicI32 = AtomicI32::new(-1);

/// Bytes allocated since the last look, what was freed since left out.
static SINCE: AtomicU64 = AtomicU64::new(0);

/// The most of these before the next look.
static ROOM: AtomicU64 = AtomicU64::new(u64::MAX);

/// The least of [`Seen::anonymous`] that was seen: stacks, and what else is no free memory.
static LEAST: AtomicU64 = AtomicU64::new(u64::MAX);

static IS_LOOKING: AtomicBool = AtomicBool::new(false);

/// Bytes that are resident, and those of them that are not counted.
#[derive(Clone, Copy)]
struct Seen {
    resident: u64,
    /// Pages of files: the program's own.
    shared: u64,
    /// Free memory that the allocator keeps, and stacks.
    anonymous: u64,
}

/// Opens the file, once in a process. The sampler's lock is held.
pub(crate) fn open() {
    if STATM.load(Relaxed) < 0
        && let Ok(file) = File::open("/proc/self/statm")
    {
        STATM.store(file.into_raw_fd(), Relaxed);
    }
}

/// In a child, where no other thread looks, and the parent's file tells of the parent.
pub(crate) fn forget() {
    STATM.store(-1, Relaxed);
    ROOM.store(u64::MAX, Relaxed);
    LEAST.store(u64::MAX, Relaxed);
    IS_LOOKING.store(false, Relaxed);
}

/// A statement begins: looks, if the last look was under no limit.
pub(crate) fn begin() {
    if ROOM.load(SeqCst) == u64::MAX {
        look(false);
    }
}

/// Counts an allocation, and looks if it could pass the limit.
pub(crate) fn allocated(bytes: u64) {
    let room = ROOM.load(Relaxed);
    if room != u64::MAX && SINCE.fetch_add(bytes, Relaxed).saturating_add(bytes) > room {
        look(false);
    }
}

/// Looks at resident memory under the largest limit in force. Free memory goes back to the system if
/// it is more than the allocator may keep; all of it, if the process is idle.
pub(crate) fn look(is_idle: bool) {
    if IS_LOOKING.swap(true, Acquire) {
        while IS_LOOKING.load(Acquire) {
            thread::yield_now();
        }
        return;
    }
    if let Some(mut seen) = see() {
        let least = LEAST.fetch_min(seen.anonymous, Relaxed).min(seen.anonymous);
        let kept = match account::largest_limit() {
            _ if is_idle => 0,
            0 => KEPT_BYTES,
            limit => limit / KEPT_PART,
        };
        if seen.anonymous - least > kept {
            memory::purge();
            seen = see().unwrap_or(seen);
        }
        memory::sampled(seen.resident, seen.shared + seen.anonymous);
        SINCE.store(0, Relaxed);
        make_room(seen.resident);
    }
    IS_LOOKING.store(false, Release);
}

/// Says how much may be allocated until the next look.
fn make_room(resident: u64) {
    let mut limit = account::largest_limit();
    loop {
        let room = match limit {
            0 => u64::MAX,
            limit => limit.saturating_sub(resident).max(limit / LEAST_ROOM_PART),
        };
        ROOM.store(room, SeqCst);
        // A statement that began meanwhile may have seen the room of a limit before.
        let now = account::largest_limit();
        if now == limit {
            break;
        }
        limit = now;
    }
}

fn see() -> Option<Seen> {
    let (resident, shared) = pages()?;
    let page = rustix::param::page_size() as u64;
    let (resident, shared) = (resident * page, shared * page);
    // Pages of files are never counted. Of the others, those that are allocated and untouched are
    // counted and not resident.
    let anonymous = resident.saturating_sub(shared);
    Some(Seen { resident, shared, anonymous: anonymous.saturating_sub(memory::counted()) })
}

/// Pages that are resident, and those of them that belong to files.
fn pages() -> Option<(u64, u64)> {
    let statm = STATM.load(Relaxed);
    if statm < 0 {
        return None;
    }
    // SAFETY: the descriptor is never closed.
    let statm = unsafe { BorrowedFd::borrow_raw(statm) };
    let mut text = [0; 128];
    let length = rustix::io::pread(statm, &mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    let mut numbers = text.split_ascii_whitespace().skip(1).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
