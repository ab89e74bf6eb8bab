//! Admission of statements: a bounded number runs, and a bounded number waits. Beyond that the
//! server refuses at once.
//!
//! A connection has one place for all of its statements whose rows are not all sent. One that reads
//! two results alternately therefore needs no second place to continue. A statement in a
//! transaction needs none: statements that wait for the writer's place must not keep its holder
//! from releasing it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Problem, code};

/// The places for running statements.
#[derive(Debug)]
pub struct Admission {
    running: Arc<Semaphore>,
    most_running: usize,
    waiting: AtomicUsize,
    most_waiting: usize,
}

/// A statement in the queue.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Admission {
    /// Creates `most_running` places, and a queue of `most_waiting` statements.
    pub fn new(most_running: usize, most_waiting: usize) -> Self {
        let running = Arc::new(Semaphore::new(most_running));
        Self { running, most_running, waiting: AtomicUsize::new(0), most_waiting }
    }

    /// Waits for a place. Fails if the queue is full.
    pub async fn enter(&self) -> Result<OwnedSemaphorePermit, Problem> {
        if let Ok(place) = Arc::clone(&self.running).try_acquire_owned() {
            return Ok(place);
        }
        let before = self.waiting.fetch_add(1, SeqCst);
        let _waiting = Waiting(&self.waiting);
        if before >= self.most_waiting {
            let message = format!(
                "no room for another statement: running {} (--max-queries), waiting {} (--max-queued)",
                self.most_running, self.most_waiting
            );
            return Err(Problem::error(code::TOO_MANY_CONNECTIONS, message)
                .with_hint("try again later, or start the server with a larger --max-queries or --max-queued"));
        }
        let place = Arc::clone(&self.running).acquire_owned().await;
        place.map_err(|_| Problem::fatal(code::ADMIN_SHUTDOWN, "the server shuts down"))
    }

    /// Returns the numbers of running and waiting statements.
    pub fn counts(&self) -> (usize, usize) {
        (self.most_running - self.running.available_permits(), self.waiting.load(SeqCst))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_the_queue_full_is_told_so() {
        let admission = Arc::new(Admission::new(1, 1));
        let first = admission.enter().await.unwrap();
        let theirs = Arc::clone(&admission);
        let second = tokio::spawn(async move { theirs.enter().await.unwrap() });
        while admission.counts() != (1, 1) {
            tokio::task::yield_now().await;
        }
        assert_eq!(admission.enter().await.unwrap_err().code, "53300");
        drop(first);
        let second = second.await.unwrap();
        assert_eq!(admission.counts(), (1, 0));
        drop(second);
        assert_eq!(admission.counts(), (0, 0));
    }

    #[tokio::test]
    async fn who_leaves_the_queue_makes_room_in_it() {
        let admission = Arc::new(Admission::new(1, 1));
        let _first = admission.enter().await.unwrap();
        let theirs = Arc::clone(&admission);
        let second = tokio::spawn(async move { theirs.enter().await.map(drop) });
        while admission.counts() != (1, 1) {
            tokio::task::yield_now().await;
        }
        second.abort();
        assert!(second.await.unwrap_err().is_cancelled());
        assert_eq!(admission.counts(), (1, 0));
    }
}
