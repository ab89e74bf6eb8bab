//! Back-pressure by bytes: what all writers of a file system have in flight together.
//!
//! A permit goes back when its operation has been answered, on the library's thread: nobody has to wait for an operation
//! so that others go on, and writers that wait for room cannot wait for each other.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Inner {
    limit: usize,
    used: Mutex<usize>,
    freed: Condvar,
}

/// Bytes that may be in flight.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

/// Some of them, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Inner>,
    bytes: usize,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Inner { limit, used: Mutex::new(0), freed: Condvar::new() }))
    }

    /// Waits for room. What is larger than the whole budget goes alone.
    pub fn take(&self, bytes: usize) -> Permit {
        let mut used = self.0.lock();
        while *used > 0 && *used + bytes > self.0.limit {
            used = self.0.freed.wait(used).unwrap_or_else(PoisonError::into_inner);
        }
        *used += bytes;
        Permit { budget: Arc::clone(&self.0), bytes }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.budget.lock() -= self.bytes;
        self.budget.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_waited_for_and_what_is_too_large_goes_alone() {
        let budget = Budget::new(10);
        let first = budget.take(7);
        let (budget, waiter) = {
            let other = budget.clone();
            (budget, std::thread::spawn(move || drop(other.take(100))))
        };
        drop(first);
        waiter.join().map_err(|_| "the waiter has panicked").unwrap_or_default();
        assert_eq!(*budget.0.lock(), 0);
    }
}
