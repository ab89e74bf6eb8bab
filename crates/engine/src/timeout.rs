//! `statement_timeout`: how long a statement may take, from its text to its last row.
//!
//! Whoever waits for the statement stops waiting when the time is over, which cancels it as if they had left: tasks are
//! aborted, pipelines stop within a vector, and files of a load or an export that is not committed are removed by those
//! who hold them. A commit is never interrupted, nor what follows it: a statement whose changes are being committed has all the
//! time that it takes, and ends as what it is ([`Query::settle`]).
//!
//! The clock is a thread of its own. The runtime's timers are looked after by the threads that run operators, and may
//! be late by as long as an operator does not let go of them.

use std::pin::Pin;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use tokio::sync::oneshot;

use crate::settings::format_duration;
use crate::{Error, ErrorKind, Query, Result};

/// The time that a statement has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimit {
    began: Instant,
    limit: Duration,
}

impl TimeLimit {
    /// For a statement that begins now.
    pub fn from_now(limit: Duration) -> Self {
        Self { began: Instant::now(), limit }
    }

    /// The outcome of `work`, which `query` does, if there is one in time, or nobody stops it any more.
    pub async fn hold<T>(self, query: &Query, work: impl Future<Output = Result<T>>) -> Result<T> {
        // What is done counts, late or not: the work is asked first.
        match select(std::pin::pin!(work), self.alarm()?).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right((error, _)) if query.try_stop() => Err(error),
            Either::Right((_, work)) => work.await,
        }
    }

    /// Tells when it is over.
    pub fn alarm(self) -> Result<Alarm> {
        let (silence, silenced) = mpsc::channel::<()>();
        let (ring, rings) = oneshot::channel();
        let left = self.limit.saturating_sub(self.began.elapsed());
        let wait = move || {
            if silenced.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                // Without a listener there is nobody to tell.
                let _ = ring.send(());
            }
        };
        let thread = std::thread::Builder::new().name("timeout".into()).spawn(wait);
        thread.map_err(|e| {
            let message = "no thread to be had for the clock of statement_timeout";
            Error::new(ErrorKind::Resources, message).with_source(e)
        })?;
        Ok(Alarm { rings: Some(rings), limit: self.limit, _silence: silence })
    }
}

/// Rings once, with the error of the statement that it was set for. Its clock stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Alarm {
    rings: Option<oneshot::Receiver<()>>,
    limit: Duration,
    _silence: mpsc::Sender<()>,
}

impl Future for Alarm {
    type Output = Error;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        let Some(rings) = &mut self.rings else { return Poll::Pending };
        let rang = std::task::ready!(Pin::new(rings).poll(cx));
        self.rings = None;
        match rang {
            Ok(()) => Poll::Ready(timed_out(self.limit)),
            Err(_) => Poll::Pending,
        }
    }
}

fn timed_out(limit: Duration) -> Error {
    let limit = format_duration(limit);
    let message = format!("the statement took longer than statement_timeout = '{limit}' and was cancelled");
    Error::new(ErrorKind::Timeout, message)
        .with_hint("SET statement_timeout = '0' lets statements take as long as they need")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A statement that takes longer than it may, and is told so while it does what `before` leaves it to do.
    async fn late(before: impl FnOnce(&Query)) -> Result<u32> {
        let limit = TimeLimit::from_now(Duration::from_millis(1));
        let query = Query::start(1, 1, "INSERT", Some(limit));
        let work = async {
            before(&query);
            let (tell, told) = oneshot::channel();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                tell.send(7)
            });
            told.await.map_err(|_| Error::new(ErrorKind::Internal, "nothing came"))
        };
        limit.hold(&query, work).await
    }

    #[tokio::test]
    async fn a_commit_that_has_begun_is_waited_for() {
        assert_eq!(late(|_| {}).await.map_err(|e| e.kind()), Err(ErrorKind::Timeout));
        let settled = |query: &Query| assert!(query.settle().is_ok() && query.settle().is_ok() && !query.try_stop());
        assert_eq!(late(settled).await.map_err(|e| e.kind()), Ok(7));
        // What was stopped before commits nothing.
        let stopped = Query::start(1, 1, "INSERT", None);
        assert!(stopped.try_stop() && stopped.try_stop() && !stopped.is_settled());
        assert_eq!(stopped.settle().map_err(|e| e.kind()), Err(ErrorKind::Cancelled));
    }
}
