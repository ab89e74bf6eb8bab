//! Caches give way to statements: what they hold is evicted before a statement is refused memory.
//!
//! A cache registers once, and is asked from then on whenever memory runs short. Never by the allocator,
//! which may hold any lock.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::memory;

/// Of what is allowed, the sampler has caches give way when this part is used: seven eighths.
const PRESSURE: (u64, u64) = (7, 8);

/// Something that can do with less memory.
pub trait Cache: Send + Sync {
    /// Evicts at least `bytes`, or all that can be; what was evicted, in bytes.
    fn evict(&self, bytes: u64) -> u64;

    /// What it has, in bytes.
    fn held(&self) -> u64;
}

static CACHES: Mutex<Vec<Weak<dyn Cache>>> = Mutex::new(Vec::new());

/// The lock of the caches, for a thread that forks.
pub(crate) type Held = MutexGuard<'static, Vec<Weak<dyn Cache>>>;

pub(crate) fn hold() -> Held {
    CACHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a cache evict when memory runs short, as long as it is there.
pub fn register_cache(cache: Weak<dyn Cache>) {
    let mut all = hold();
    all.retain(|cache| cache.strong_count() > 0);
    all.push(cache);
}

/// Has caches evict so many bytes; what was evicted.
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

/// What caches have, in bytes.
pub(crate) fn held() -> u64 {
    let all: Vec<_> = hold().iter().filter_map(Weak::upgrade).collect();
    all.iter().map(|cache| cache.held()).sum()
}

/// Bytes that caches have to give up so that statements under `limit` find room for `bytes` more.
pub(crate) fn missing(bytes: u64, limit: u64) -> u64 {
    let allowed = memory::allowed(limit);
    memory::counted().saturating_add(bytes).saturating_sub(allowed)
}

/// The same before there is pressure.
pub(crate) fn pressing(limit: u64) -> u64 {
    let (part, of) = PRESSURE;
    memory::counted().saturating_sub(memory::allowed(limit) / of * part)
}
