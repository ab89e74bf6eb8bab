//! The writer's place: whoever changes a database has it, from the first thing that it looks at in order to change it until its
//! commit is in order.
//!
//! There is one, so writers cannot wait for each other in a circle. A transaction of several statements keeps it between
//! them, which nobody can foresee the length of: who waits does so for a limited time, on a thread of the runtime's without
//! blocking it, on others blocking them. It is free again when [`Writing`] is dropped, also by a session that goes away.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::{Error, ErrorKind, Result};

/// The writer's place of a database.
#[derive(Debug, Default)]
pub(crate) struct WriterPlace {
    place: Mutex<Place>,
    /// Wakes a thread that waits, `notify` a task: whoever of the two is first has the place, the other waits on.
    left: Condvar,
    notify: Notify,
}

#[derive(Debug, Default)]
struct Place {
    is_taken: bool,
    /// Threads that wait.
    threads: usize,
}

/// Somebody's being in the writer's place.
#[derive(Debug)]
pub(crate) struct Writing {
    place: Arc<WriterPlace>,
}

impl WriterPlace {
    fn try_take(self: &Arc<Self>) -> Option<Writing> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        (!std::mem::replace(&mut place.is_taken, true)).then(|| Writing { place: Arc::clone(self) })
    }

    /// Waits for it, for `limit` at most; `None` is for ever.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if it is still taken then.
    pub async fn take(self: &Arc<Self>, limit: Option<Duration>) -> Result<Writing> {
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
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        while place.is_taken {
            let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
            if rest == Some(Duration::ZERO) {
                return Err(taken(limit.unwrap_or_default()));
            }
            place.threads += 1;
            place = match rest {
                None => self.left.wait(place).unwrap_or_else(PoisonError::into_inner),
                Some(rest) => self.left.wait_timeout(place, rest).unwrap_or_else(PoisonError::into_inner).0,
            };
            place.threads -= 1;
        }
        place.is_taken = true;
        Ok(Writing { place: Arc::clone(self) })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut place = self.place.place.lock().unwrap_or_else(PoisonError::into_inner);
        place.is_taken = false;
        // To wake a thread is a call of the system, also where there is none.
        if place.threads > 0 {
            self.place.left.notify_one();
        }
        drop(place);
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
