//! Time, as leases and grace times have it. A trait, so that tests need not wait.
//!
//! Nothing that must hold depends on clocks that agree: a lease that is taken to have ended too early makes a writer fail,
//! never lose what it has been told is there; garbage that goes too early makes a reader of a removed file fail.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells the time, and waits.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
    /// Waits.
    fn sleep(&self, time: Duration);
}

/// The system's.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// One that goes on only when somebody waits, and then at once.
#[derive(Debug)]
pub struct SimClock(AtomicU64);

impl Default for SimClock {
    fn default() -> Self {
        Self(AtomicU64::new(1_000_000))
    }
}

impl Clock for SimClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn sleep(&self, time: Duration) {
        self.0.fetch_add(millis(time), Relaxed);
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
