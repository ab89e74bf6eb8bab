//! The process's memory: bytes counted by the allocator, beside what the system says is resident.
//!
//! `limit = counted bytes + overhead`, where overhead is what the process has without having allocated
//! it: pages of its program, stacks, and free memory that the allocator keeps for later. It is measured
//! now and then ([`resident`]), and a constant in between.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::account::{self, Reason};
use crate::{caches, resident, scope};

/// Bytes that all threads have allocated and not freed.
static COUNTED: AtomicI64 = AtomicI64::new(0);
/// Resident bytes that are not counted.
static OVERHEAD: AtomicU64 = AtomicU64::new(0);
/// Resident bytes, as of the last sample.
static RESIDENT: AtomicU64 = AtomicU64::new(0);
/// Whether the counting allocator is in place.
static IS_COUNTING: AtomicBool = AtomicBool::new(false);

/// Counted bytes without statements and caches: the process's own, and what sessions and databases keep.
static BASE: AtomicU64 = AtomicU64::new(0);
/// The least of these: the process's own.
static OWN: AtomicU64 = AtomicU64::new(u64::MAX);

/// Of a limit so much is always left for statements, however large the process is by itself: a half.
const LEAST_SHARE: u64 = 2;

/// The same, however low the limit is: a sort that spills needs some of it.
const LEAST_BYTES: u64 = 16 << 20;

/// Memory that outlives statements may always be so much, however low the limit is: each session has some.
const LEAST_KEPT_BYTES: u64 = 64 << 20;

/// Gives free memory that the allocator keeps back to the system.
static PURGE: OnceLock<fn()> = OnceLock::new();

/// Tells how the allocator below [`Counting`](crate::Counting) gives free memory back to the system. The
/// first counts.
pub fn set_purge(purge: fn()) {
    let _ = PURGE.set(purge);
}

pub(crate) fn purge() {
    if let Some(purge) = PURGE.get() {
        purge();
    }
}

/// What the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes allocated and not freed.
    pub counted: u64,
    /// Bytes resident beside those.
    pub overhead: u64,
    /// Bytes resident at the last sample.
    pub resident: u64,
}

/// What the process has now.
pub fn usage() -> Usage {
    Usage { counted: counted(), overhead: OVERHEAD.load(Relaxed), resident: RESIDENT.load(Relaxed) }
}

/// Whether [`Counting`](crate::Counting) allocates for this process.
pub fn is_counting() -> bool {
    IS_COUNTING.load(Relaxed)
}

pub(crate) fn set_counting() {
    IS_COUNTING.store(true, Relaxed);
}

/// Adds to what is counted; the new sum.
pub(crate) fn count(bytes: i64) -> u64 {
    let counted = (COUNTED.fetch_add(bytes, Relaxed) + bytes).max(0) as u64;
    if bytes > 0 {
        resident::allocated(bytes as u64);
    }
    counted
}

pub(crate) fn counted() -> u64 {
    COUNTED.load(Relaxed).max(0) as u64
}

pub(crate) fn sampled(resident: u64, overhead: u64) {
    RESIDENT.store(resident, Relaxed);
    OVERHEAD.store(overhead, Relaxed);
}

/// What is counted while no statement runs, caches left out.
pub(crate) fn sampled_at_rest(counted: u64) {
    BASE.store(counted, Relaxed);
    OWN.fetch_min(counted, Relaxed);
}

/// Bytes that the process may allocate under a limit of resident bytes.
pub(crate) fn allowed(limit: u64) -> u64 {
    limit.saturating_sub(OVERHEAD.load(Relaxed)).max(BASE.load(Relaxed) + least(limit))
}

/// Bytes that are always left for statements.
fn least(limit: u64) -> u64 {
    (limit / LEAST_SHARE).max(LEAST_BYTES)
}

/// Whether the process may keep so many bytes more when a statement is over: rows of a transaction or of a table that lies in
/// memory, a prepared statement. Under a limit of resident bytes; caches and statements, which give back what they have, are left
/// out. What statements are always left does not grow with it. Does not wait.
pub fn may_keep(bytes: u64, limit: u64) -> bool {
    let overhead = OVERHEAD.load(Relaxed);
    let own = OWN.load(Relaxed).min(BASE.load(Relaxed));
    let (all, most) = (counted() + overhead + bytes, limit.max(own + overhead + least(limit).max(LEAST_KEPT_BYTES)));
    !is_counting() || all <= most || all - most <= caches::held() + account::held()
}

/// Those of them that are for statements and caches.
pub fn allowed_to_statements(limit: u64) -> u64 {
    allowed(limit).saturating_sub(BASE.load(Relaxed))
}

/// Between two looks at what stopped statements give back.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether the process may allocate so many bytes more under a limit of resident bytes, after its caches
/// gave way and statements that were stopped gave back what they have. Blocks for that, up to 100 ms.
pub fn fits(bytes: u64, limit: u64) -> bool {
    if !is_counting() {
        return true;
    }
    let missing = || match caches::missing(bytes, limit) {
        0 => 0,
        missing if caches::evict(missing) > 0 => caches::missing(bytes, limit),
        missing => missing,
    };
    if missing() == 0 {
        return true;
    }
    loop {
        // What was freed may be kept by the allocator.
        resident::look(false);
        let missing = missing();
        if missing == 0 {
            return true;
        }
        if missing > account::held_by_stopped() || scope::check().is_err() {
            return false;
        }
        thread::sleep(PAUSE);
    }
}

/// Asks for memory before it is allocated, for a statement that is about to make something large.
/// Nothing is reserved: the allocator counts it when it is there.
///
/// # Errors
/// [`Reason`] if the statement has to end anyway, or would pass its limit.
pub fn try_reserve(bytes: u64) -> Result<(), Reason> {
    scope::check()?;
    let Some(limit) = scope::limit() else { return Ok(()) };
    match fits(bytes, limit) {
        true => Ok(()),
        false => Err(Reason::Memory),
    }
}
