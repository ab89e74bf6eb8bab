//! A commit on its way to storage, and the wait for it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use onehop_io::Ledger;
use onehop_store::mutant::skips;
use onehop_store::{Pending, Turn};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::Database;
use crate::snapshot::Snapshot;
use crate::task::{self, spawn_blocking};
use crate::{Error, ErrorKind, Result};

/// A commit that is in order. Whether it is waited for or not, what it mentions may be durable from now on.
#[derive(Debug)]
#[must_use = "a commit is durable, and seen, when it has been waited for"]
pub(crate) struct Commit {
    pub(super) database: Database,
    pub(super) pending: Pending,
    pub(super) after: Arc<Snapshot>,
    /// The commit records the life of this process.
    pub(super) has_life: bool,
}

/// What a thread that has others to look after waits for storage at most, rather than to wake another for that.
const SHORT_FLUSH: Duration = Duration::from_micros(500);

impl Commit {
    /// Waits until it is durable, and shows it to readers. What the store has written for it is counted.
    pub fn wait_blocking(self, ledger: &Ledger) -> Result<()> {
        let Self { database, pending, after, has_life } = self;
        let written_bytes = match skips("commit.wait") {
            true => 0,
            false => database.known_of(pending.wait())?.written_bytes,
        };
        if skips("commit.names-first") {
            database.inner.segments.sync()?;
        }
        database.check_names()?;
        if let Some(own) = database.inner.own.as_ref().filter(|_| has_life) {
            own.life().is_durable();
        }
        database.count_written(usize::try_from(written_bytes).unwrap_or(usize::MAX), ledger);
        database.publish(after);
        Ok(())
    }

    /// The same without keeping the runtime's threads from other work. Dropped, it is still done.
    pub async fn wait(self, ledger: &Arc<Ledger>) -> Result<()> {
        // A thread that came from outside to wait for one future is none of these: another would only have to be woken, which
        // takes as long as some devices take for a commit.
        let is_from_outside = tokio::task::try_id().is_none()
            && Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        if is_from_outside {
            return self.wait_blocking(ledger);
        }
        let mut waited = Waited { commit: Some(self), ledger: Arc::clone(ledger) };
        let turn = poll_fn(|context| waited.poll_turn(context)).await;
        let Some(commit) = waited.commit.take() else { return Ok(()) };
        let is_short = match turn {
            Turn::Known => true,
            // Where others take part, this thread is better used to have them hand over meanwhile.
            Turn::Flush { expected, shared } => task::is_here() && shared <= 1 && expected <= SHORT_FLUSH,
        };
        if is_short {
            return commit.wait_blocking(ledger);
        }
        let ledger = Arc::clone(ledger);
        let waiting = spawn_blocking(move || commit.wait_blocking(&ledger)).await;
        waiting.map_err(|e| Error::new(ErrorKind::Internal, format!("a committing task died: {e}")))?
    }
}

/// A commit that a task waits for.
struct Waited {
    commit: Option<Commit>,
    ledger: Arc<Ledger>,
}

impl Waited {
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Turn> {
        self.commit.as_mut().map_or(Poll::Ready(Turn::Known), |commit| commit.pending.poll_turn(context))
    }
}

impl Drop for Waited {
    /// Nobody waits for it any more, and readers are to see it all the same.
    fn drop(&mut self) {
        if let (Some(commit), Ok(_)) = (self.commit.take(), Handle::try_current()) {
            let ledger = Arc::clone(&self.ledger);
            // Whoever it would be told to is gone. What has gone wrong is kept for those who commit next.
            drop(spawn_blocking(move || commit.wait_blocking(&ledger).ok()));
        }
    }
}
