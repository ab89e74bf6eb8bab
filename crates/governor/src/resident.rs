//! Resident memory as the system reports it, and the part that the allocator keeps free.
//!
//! Freed memory is no longer counted, but it stays resident until the allocator returns it. Between
//! two samples the process may therefore have all that was resident at the first, plus all that was
//! allocated since. A thread whose allocation could pass the limit takes a sample itself and
//! returns free memory before it continues ([`allocated`]). One thread samples at a time; others
//! that need a sample wait for it.
//!
//! Invariants: this module does not allocate or take a lock after [`open`], because the allocator
//! calls it.

use std::fs::File;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};
use std::thread;

use crate::{account, memory, pages};

/// Divisor of the largest limit for the free memory that the allocator may keep: one thirty-second.
const KEPT_PART: u64 = 32;

/// Free bytes that the allocator may keep without a limit.
const KEPT_BYTES: u64 = 64 << 20;

/// Divisor of the largest limit for the least allocation between two samples: one sixty-fourth.
const LEAST_ROOM_PART: u64 = 64;

/// Descriptor of the file that reports resident memory, open for the life of the process; negative
/// before.
static STATM: AtomicI32 = AtomicI32::new(-1);

/// Bytes allocated since the last sample. Bytes freed since are not subtracted.
static SINCE: AtomicU64 = AtomicU64::new(0);

/// Limit of [`SINCE`] before the next sample.
static ROOM: AtomicU64 = AtomicU64::new(u64::MAX);

/// Least [`Seen::anonymous`] so far: stacks, and other pages that are no free memory.
static LEAST: AtomicU64 = AtomicU64::new(u64::MAX);

static IS_LOOKING: AtomicBool = AtomicBool::new(false);

/// Resident bytes, and those of them that are not counted.
#[derive(Clone, Copy)]
struct Seen {
    resident: u64,
    /// Pages of files: the program's own.
    shared: u64,
    /// Free memory that the allocator keeps, and stacks.
    anonymous: u64,
}

/// Opens the file, once in a process. The caller holds the sampler's lock.
pub(crate) fn open() {
    if STATM.load(Relaxed) < 0
        && let Ok(file) = File::open("/proc/self/statm")
    {
        STATM.store(file.into_raw_fd(), Relaxed);
    }
}

/// Resets the state in a forked child: no other thread samples there, and the parent's file reports
/// the parent.
pub(crate) fn forget() {
    STATM.store(-1, Relaxed);
    ROOM.store(u64::MAX, Relaxed);
    LEAST.store(u64::MAX, Relaxed);
    IS_LOOKING.store(false, Relaxed);
}

/// Takes a sample at the beginning of a statement, if the last one was taken under no limit.
pub(crate) fn begin() {
    if ROOM.load(SeqCst) == u64::MAX {
        look(false);
    }
}

/// Counts an allocation, and takes a sample if it could pass the limit.
pub(crate) fn allocated(bytes: u64) {
    let room = ROOM.load(Relaxed);
    if room != u64::MAX && SINCE.fetch_add(bytes, Relaxed).saturating_add(bytes) > room {
        look(false);
    }
}

/// Samples resident memory under the largest limit in force. Returns free memory to the system if
/// it exceeds what the allocator may keep, or all of it if the process is idle.
pub(crate) fn look(is_idle: bool) {
    if IS_LOOKING.swap(true, Acquire) {
        while IS_LOOKING.load(Acquire) {
            thread::yield_now();
        }
        return;
    }
    if let Some(mut seen) = see() {
        let least = LEAST.fetch_min(seen.anonymous, Relaxed).min(seen.anonymous);
        let limit = account::largest_limit();
        pages::choose(limit);
        let kept = match limit {
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

/// Sets the number of bytes that may be allocated until the next sample.
fn make_room(resident: u64) {
    let mut limit = account::largest_limit();
    loop {
        let room = match limit {
            0 => u64::MAX,
            limit => limit.saturating_sub(resident).max(limit / LEAST_ROOM_PART),
        };
        ROOM.store(room, SeqCst);
        // A statement that began in the meantime may have read the room of the previous limit.
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
    // Pages of files are never counted. Other pages that are allocated but untouched are counted
    // and not resident.
    let anonymous = resident.saturating_sub(shared);
    Some(Seen { resident, shared, anonymous: anonymous.saturating_sub(memory::counted()) })
}

/// Returns the number of resident pages, and of those that belong to files.
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
