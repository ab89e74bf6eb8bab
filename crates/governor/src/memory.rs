//! The process's memory: bytes counted by the allocator, and resident bytes reported by the system.
//!
//! `limit = counted bytes + overhead`. The overhead is memory that the process has without having
//! allocated it: pages of its program, stacks, and free memory that the allocator keeps for later.
//! It is measured at intervals ([`resident`]) and constant in between.

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
/// True once the counting allocator is in place.
static IS_COUNTING: AtomicBool = AtomicBool::new(false);

/// Counted bytes without statements and caches: the process's own bytes, and those that sessions
/// and databases keep.
static BASE: AtomicU64 = AtomicU64::new(0);
/// The smallest [`BASE`] so far: the process's own bytes.
static OWN: AtomicU64 = AtomicU64::new(u64::MAX);

/// Divisor of a limit for the part always left to statements, however large the process itself is:
/// a half.
const LEAST_SHARE: u64 = 2;

/// Least bytes always left to statements, however low the limit is: a sort that spills needs some
/// memory.
const LEAST_BYTES: u64 = 16 << 20;

/// Bytes that memory that outlives statements may always take, however low the limit is: each
/// session has some.
const LEAST_KEPT_BYTES: u64 = 64 << 20;

/// Function that returns the allocator's free memory to the system.
static PURGE: OnceLock<fn()> = OnceLock::new();

/// Sets the function with which the allocator below [`Counting`](crate::Counting) returns free
/// memory to the system. The first call counts.
pub fn set_purge(purge: fn()) {
    let _ = PURGE.set(purge);
}

pub(crate) fn purge() {
    if let Some(purge) = PURGE.get() {
        purge();
    }
}

/// Memory usage of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes allocated and not freed.
    pub counted: u64,
    /// Bytes resident beside those.
    pub overhead: u64,
    /// Bytes resident at the last sample.
    pub resident: u64,
}

/// Returns the current memory usage of the process.
pub fn usage() -> Usage {
    Usage { counted: counted(), overhead: OVERHEAD.load(Relaxed), resident: RESIDENT.load(Relaxed) }
}

/// Returns true if [`Counting`](crate::Counting) allocates for this process.
pub fn is_counting() -> bool {
    IS_COUNTING.load(Relaxed)
}

pub(crate) fn set_counting() {
    IS_COUNTING.store(true, Relaxed);
}

/// Adds to the counted bytes. Returns the new sum.
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

/// Records the bytes counted while no statement runs, without caches.
pub(crate) fn sampled_at_rest(counted: u64) {
    BASE.store(counted, Relaxed);
    OWN.fetch_min(counted, Relaxed);
}

/// Returns the bytes that the process may allocate under a limit of resident bytes.
pub(crate) fn allowed(limit: u64) -> u64 {
    limit.saturating_sub(OVERHEAD.load(Relaxed)).max(BASE.load(Relaxed) + least(limit))
}

/// Returns the bytes that are always left to statements.
fn least(limit: u64) -> u64 {
    (limit / LEAST_SHARE).max(LEAST_BYTES)
}

/// Returns true if the process may keep `bytes` more after a statement, under a limit of resident
/// bytes. Such bytes are rows of a transaction or of a table in memory, or a prepared statement.
/// Memory of caches and statements is left out, since they release it. The memory always left to
/// statements does not grow with the kept bytes. This function does not wait.
pub fn may_keep(bytes: u64, limit: u64) -> bool {
    let overhead = OVERHEAD.load(Relaxed);
    let own = OWN.load(Relaxed).min(BASE.load(Relaxed));
    let (all, most) = (counted() + overhead + bytes, limit.max(own + overhead + least(limit).max(LEAST_KEPT_BYTES)));
    !is_counting() || all <= most || all - most <= caches::held() + account::held()
}

/// Returns the part of the allowed bytes that is for statements and caches.
pub fn allowed_to_statements(limit: u64) -> u64 {
    allowed(limit).saturating_sub(BASE.load(Relaxed))
}

/// Time between two checks of the memory that stopped statements have freed.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns true if the process may allocate `bytes` more under a limit of resident bytes. It first
/// evicts from caches, then waits for stopped statements to free memory, for up to 100 ms.
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
        // The allocator may keep freed memory.
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

/// Requests memory before a statement allocates something large. Nothing is reserved: the allocator
/// counts the memory when it is allocated.
///
/// # Errors
/// Returns a [`Reason`] if the statement must end anyway, or would pass its limit.
pub fn try_reserve(bytes: u64) -> Result<(), Reason> {
    scope::check()?;
    let Some(limit) = scope::limit() else { return Ok(()) };
    match fits(bytes, limit) {
        true => Ok(()),
        false => Err(Reason::Memory),
    }
}
