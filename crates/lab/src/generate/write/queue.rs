//! A queue of numbered work: claimed in order by many threads, delivered in any order, taken in
//! order by one.
//!
//! Invariants: `taken <= claimed <= taken + window`; a number is claimed once and delivered once.
//! The number to be taken next is therefore always claimed before any later one, and a thread is
//! working on it: the queue cannot stall.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    len: usize,
    window: usize,
}

struct State<T> {
    claimed: usize,
    taken: usize,
    delivered: BTreeMap<usize, T>,
    closed: bool,
}

/// Closes the queue when dropped: claims and takes return `None` from then on.
pub(super) struct Closer<'a, T>(&'a Queue<T>);

/// Closes the queue when dropped by a panic, so that no thread waits for a number that is never
/// delivered.
pub(super) struct CloserOnPanic<'a, T>(&'a Queue<T>);

impl<T> Queue<T> {
    /// Creates a queue of the numbers `0..len`, of which at most `window` are claimed and not yet
    /// taken.
    pub(super) fn new(len: usize, window: usize) -> Self {
        let state = State { claimed: 0, taken: 0, delivered: BTreeMap::new(), closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), len, window }
    }

    pub(super) fn closer(&self) -> Closer<'_, T> {
        Closer(self)
    }

    pub(super) fn closer_on_panic(&self) -> CloserOnPanic<'_, T> {
        CloserOnPanic(self)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Returns the next number, once it is within the window, or `None` when there is no work left.
    /// Callable from any thread.
    pub(super) fn claim(&self) -> Option<usize> {
        let mut state = self.wait_while(|state| state.claimed < self.len && state.claimed >= state.taken + self.window);
        if state.closed || state.claimed == self.len {
            return None;
        }
        state.claimed += 1;
        Some(state.claimed - 1)
    }

    /// Delivers the outcome of a claimed number. Callable from any thread.
    pub(super) fn deliver(&self, number: usize, outcome: T) {
        self.lock().delivered.insert(number, outcome);
        self.changed.notify_all();
    }

    /// Returns the outcome of the next number in order, or `None` after the last. Callable from one
    /// thread.
    pub(super) fn take(&self) -> Option<T> {
        let mut state = self.wait_while(|state| state.taken < self.len && !state.delivered.contains_key(&state.taken));
        if state.closed {
            return None;
        }
        let number = state.taken;
        let outcome = state.delivered.remove(&number)?;
        state.taken += 1;
        drop(state);
        self.changed.notify_all();
        Some(outcome)
    }

    fn wait_while(&self, waits: impl Fn(&State<T>) -> bool) -> MutexGuard<'_, State<T>> {
        let held = self.changed.wait_while(self.lock(), |state| !state.closed && waits(state));
        held.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No caller's code runs while the lock is held, so a poisoned state is still consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Closer<'_, T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Drop for CloserOnPanic<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn outcomes_come_in_order_and_the_window_holds() {
        const LEN: usize = 500;
        let queue = Queue::new(LEN, 3);
        let in_flight = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(number) = queue.claim() {
                        assert!(in_flight.fetch_add(1, Ordering::SeqCst) < 4, "one more while it is handed over");
                        if number % 7 == 0 {
                            std::thread::yield_now();
                        }
                        queue.deliver(number, number);
                    }
                });
            }
            for expected in 0..LEN {
                assert_eq!(queue.take(), Some(expected));
                in_flight.fetch_sub(1, Ordering::SeqCst);
            }
            assert_eq!(queue.take(), None);
        });
    }

    #[test]
    fn closing_wakes_everybody() {
        let queue: Queue<()> = Queue::new(10, 1);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3).map(|_| scope.spawn(|| while queue.claim().is_some() {})).collect();
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(queue.closer());
            assert!(workers.into_iter().all(|worker| worker.join().is_ok()));
        });
        assert_eq!(queue.take(), None);
    }
}
