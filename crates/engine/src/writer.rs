//! The writer's place: whoever changes a database has it, from the first thing that it looks at in order to change it until its
//! commit is in order.
//!
//! There is one, so writers cannot wait for each other in a circle. A transaction of several statements keeps it between
//! them, which nobody can foresee the length of: who waits does so for a limited time, on a thread of the runtime's without
//! blocking it, on others blocking them. A statement that is a transaction by itself keeps it for some microseconds, in which
//! nobody could be put to sleep and woken: who waits looks again for as long as that takes, before anything else. It is free
//! again when [`Writing`] is dropped, also by a session that goes away.

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::{Error, ErrorKind, Result};

/// The writer's place of a database.
#[derive(Debug, Default)]
pub(crate) struct WriterPlace {
    is_taken: AtomicBool,
    /// Threads that wait.
    threads: Mutex<usize>,
    /// Wakes a thread that waits, `notify` a task: whoever of the two is first has the place, the other waits on.
    left: Condvar,
    notify: Notify,
}

/// Somebody's being in the writer's place.
#[derive(Debug)]
pub(crate) struct Writing {
    place: Arc<WriterPlace>,
}

/// How often it is looked at again before anybody is put to sleep: some microseconds, as a mutex of the standard library does.
const LOOKS: usize = 100;

impl WriterPlace {
    fn try_take(self: &Arc<Self>) -> Option<Writing> {
        let was_taken = self.is_taken.load(Relaxed) || self.is_taken.swap(true, Acquire);
        (!was_taken).then(|| Writing { place: Arc::clone(self) })
    }

    /// The place, if it is free now or within some microseconds.
    fn take_soon(self: &Arc<Self>) -> Option<Writing> {
        for _ in 0..LOOKS {
            if let Some(writing) = self.try_take() {
                return Some(writing);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Waits for it, for `limit` at most; `None` is for ever.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if it is still taken then.
    pub async fn take(self: &Arc<Self>, limit: Option<Duration>) -> Result<Writing> {
        if let Some(writing) = self.take_soon() {
            return Ok(writing);
        }
        let waits = async {
            loop {
                let mut left = std::pin::pin!(self.notify.notified());
                // In the queue before it looks: what is left in between is not missed.
                left.as_mut().enable();
                if let Some(writing) = self.try_take() {
                    return writing;
                }
                left.await;
            }
        };
        match limit {
            None => Ok(waits.await),
            Some(limit) => tokio::time::timeout(limit, waits).await.map_err(|_| taken(limit)),
        }
    }

    /// As [`take`](Self::take), for threads outside of a runtime.
    pub fn take_blocking(self: &Arc<Self>, limit: Option<Duration>) -> Result<Writing> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(writing) = self.try_take() {
                return Ok(writing);
            }
            let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
            if rest == Some(Duration::ZERO) {
                return Err(taken(limit.unwrap_or_default()));
            }
            // Who leaves looks at their number after that: this thread is among them, or sees that the place is free.
            *threads += 1;
            threads = match rest {
                None => self.left.wait(threads).unwrap_or_else(PoisonError::into_inner),
                Some(rest) => self.left.wait_timeout(threads, rest).unwrap_or_else(PoisonError::into_inner).0,
            };
            *threads -= 1;
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.place.is_taken.store(false, Release);
        let threads = self.place.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // To wake a thread is a call of the system, also where there is none.
        if *threads > 0 {
            self.place.left.notify_one();
        }
        drop(threads);
        self.place.notify.notify_one();
    }
}

fn taken(limit: Duration) -> Error {
    let message =
        format!("another session has been changing the database for {limit:?}, and there is one writer at a time");
    Error::new(ErrorKind::Locked, message)
        .with_hint("COMMIT or ROLLBACK there and try again; SET lock_timeout says how long to wait")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_at_a_time_and_everybody_in_the_end() {
        let place = Arc::new(WriterPlace::default());
        let inside = Arc::new(Mutex::new((0, 0)));
        let visit = |inside: &Mutex<(usize, usize)>| {
            let mut guard = inside.try_lock().unwrap();
            guard.0 += 1;
            assert_eq!(guard.0, 1);
            std::thread::yield_now();
            guard.0 -= 1;
            guard.1 += 1;
        };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (place, inside) = (Arc::clone(&place), Arc::clone(&inside));
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        let _writing = place.take_blocking(None).unwrap();
                        visit(&inside);
                    }
                })
            })
            .collect();
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (place, inside) = (Arc::clone(&place), Arc::clone(&inside));
                tokio::spawn(async move {
                    for _ in 0..200 {
                        let _writing = place.take(None).await.unwrap();
                        visit(&inside);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(inside.lock().unwrap().1, 1600);
    }

    #[tokio::test]
    async fn who_waits_too_long_is_told_why() {
        let place = Arc::new(WriterPlace::default());
        let writing = place.take(None).await.unwrap();
        let short = Some(Duration::from_millis(1));
        assert_eq!(place.take(short).await.unwrap_err().kind(), ErrorKind::Locked);
        assert_eq!(place.take_blocking(short).unwrap_err().kind(), ErrorKind::Locked);
        drop(writing);
        place.take(short).await.unwrap();
    }
}
