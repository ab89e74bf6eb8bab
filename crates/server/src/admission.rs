//! Who may run a statement now: so many at once, and so many more in a queue. Beyond that the answer comes at once, and is no.
//!
//! A connection has one place for all of its statements whose rows are not all sent: one that reads two results in turns needs
//! no second place to go on. In a transaction none is needed: whoever has the writer's place is never kept from giving it back
//! by those who wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Problem, code};

/// The places.
#[derive(Debug)]
pub struct Admission {
    running: Arc<Semaphore>,
    most_running: usize,
    waiting: AtomicUsize,
    most_waiting: usize,
}

/// One who waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Admission {
    pub fn new(most_running: usize, most_waiting: usize) -> Self {
        let running = Arc::new(Semaphore::new(most_running));
        Self { running, most_running, waiting: AtomicUsize::new(0), most_waiting }
    }

    /// A place, when there is one.
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

    /// Statements that run, and that wait.
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
