//! Ends the wait for a statement: its work is done, it was stopped, or its time is over.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use onehop_governor::Reason;

use crate::limits::Limited;
use crate::{Error, Query, Result, Session};

/// Returns the outcome of a statement's work, or an error if the statement was stopped before. Work
/// that is done counts, late or not.
pub(super) async fn hold<T>(query: &Query, work: impl Future<Output = Result<T>>) -> Result<T> {
    let (mut work, mut limited) = (pin!(work), None);
    let outcome = poll_fn(|context| {
        if let Poll::Ready(outcome) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(outcome));
        }
        // Short work is done by the first poll.
        let limited = limited.get_or_insert_with(|| Limited::new(query.account(), query.limits()));
        Pin::new(limited).poll(context).map(Err)
    });
    let outcome = outcome.await?;
    // What was said on the way knows the reason, and not the limits.
    outcome.map_err(|error| query.stopped().unwrap_or(error))
}

/// The time that the work of a stopped statement gets to return its own error.
const TELLING_TIME: Duration = Duration::from_millis(40);

/// Waits until the statement that a session began after `before` was stopped and its work has not
/// returned: all of its threads compute. Also ends for a statement that is still being parsed when
/// its time is over. Returns its error. Must be polled by a thread that does not compute.
pub(super) async fn overdue(session: &Session, before: &Arc<Query>) -> Error {
    let limits = session.limits();
    let deadline = limits.deadline();
    loop {
        tokio::time::sleep(TELLING_TIME).await;
        let query = session.query();
        let has_begun = !Arc::ptr_eq(&query, before);
        let is_late = deadline.is_some_and(|deadline| deadline < Instant::now());
        let error = match has_begun {
            true => query.stopped(),
            false => is_late.then(|| limits.error(Reason::TimedOut)),
        };
        if let Some(error) = error {
            tokio::time::sleep(TELLING_TIME).await;
            return error;
        }
    }
}

/// Waits until a statement that arrived at a session, and has not begun, is out of time. Returns
/// its error.
pub(super) async fn out_of_time(session: &Session) -> Error {
    let limits = session.limits();
    match limits.deadline() {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
    limits.error(Reason::TimedOut)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use onehop_governor as governor;

    use super::*;
    use crate::ErrorKind;
    use crate::limits::{Limits, go_on};

    /// Returns the outcome of a statement with a limit of one millisecond. Its work calls `before`
    /// and then takes `takes` milliseconds.
    async fn late(takes: u64, before: impl FnOnce(&Query)) -> Result<u32> {
        governor::start().unwrap();
        let limits = Limits::of_time(Duration::from_millis(1));
        let query = Query::start(1, 1, "INSERT", limits);
        let work = async {
            before(&query);
            tokio::time::sleep(Duration::from_millis(takes)).await;
            Ok(7)
        };
        hold(&query, work).await
    }

    #[tokio::test]
    async fn a_commit_that_has_begun_is_waited_for() {
        assert_eq!(late(60_000, |_| {}).await.map_err(|e| e.kind()), Err(ErrorKind::Timeout));
        let settled = |query: &Query| assert!(query.settle().is_ok() && query.settle().is_ok() && !query.try_stop());
        assert_eq!(late(50, settled).await.map_err(|e| e.kind()), Ok(7));
        // A statement that was stopped before commits nothing.
        let stopped = Query::start(1, 1, "INSERT", Limits::default());
        assert!(stopped.try_stop() && stopped.try_stop() && !stopped.is_settled());
        assert_eq!(stopped.settle().map_err(|e| e.kind()), Err(ErrorKind::Cancelled));
    }

    #[tokio::test]
    async fn work_hears_that_its_statement_was_stopped() {
        let query = Query::start(1, 1, "SELECT 1", Limits::default());
        let work = query.scope().future(async {
            go_on()?;
            assert!(query.account().stop(Reason::Memory));
            go_on()
        });
        let error = hold(&query, work).await.unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Resources, "memory_limit is reached"));
    }
}
