//! Caches yield memory to statements: the governor evicts their entries before it refuses memory to
//! a statement.
//!
//! A cache registers once. The governor requests evictions whenever memory runs short, but never
//! from within the allocator, whose caller may hold any lock.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::memory;

/// Part of the allowed memory above which the sampler evicts from caches: seven eighths.
const PRESSURE: (u64, u64) = (7, 8);

/// A component that can release memory on request.
pub trait Cache: Send + Sync {
    /// Evicts at least `bytes`, or everything evictable. Returns the evicted bytes.
    fn evict(&self, bytes: u64) -> u64;

    /// Returns the bytes that it holds.
    fn held(&self) -> u64;
}

static CACHES: Mutex<Vec<Weak<dyn Cache>>> = Mutex::new(Vec::new());

/// The lock of the caches, held by a thread that forks.
pub(crate) type Held = MutexGuard<'static, Vec<Weak<dyn Cache>>>;

pub(crate) fn hold() -> Held {
    CACHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a cache for eviction when memory runs short, for as long as the cache exists.
pub fn register_cache(cache: Weak<dyn Cache>) {
    let mut all = hold();
    all.retain(|cache| cache.strong_count() > 0);
    all.push(cache);
}

/// Evicts up to `bytes` from the registered caches. Returns the evicted bytes.
pub(crate) fn evict(bytes: u64) -> u64 {
    let all: Vec<_> = hold().iter().filter_map(Weak::upgrade).collect();
    let mut evicted = 0;
    for cache in all {
        if evicted >= bytes {
            break;
        }
        evicted += cache.evict(bytes - evicted);
    }
    evicted
}

/// Returns the bytes that caches hold.
pub(crate) fn held() -> u64 {
    let all: Vec<_> = hold().iter().filter_map(Weak::upgrade).collect();
    all.iter().map(|cache| cache.held()).sum()
}

/// Returns the bytes that caches must evict so that `bytes` more fit for statements under `limit`.
pub(crate) fn missing(bytes: u64, limit: u64) -> u64 {
    let allowed = memory::allowed(limit);
    memory::counted().saturating_add(bytes).saturating_sub(allowed)
}

/// Returns the bytes that caches must evict to end memory pressure (see [`PRESSURE`]).
pub(crate) fn pressing(limit: u64) -> u64 {
    let (part, of) = PRESSURE;
    memory::counted().saturating_sub(memory::allowed(limit) / of * part)
}
