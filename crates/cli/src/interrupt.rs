//! Ctrl-C. The first press cancels the running statement. A second one before the cancellation has
//! taken effect, or a press while nothing runs, ends the process. The shell never ends by it: at
//! its prompt Ctrl-C is a key, not a signal. A press just before the prompt, or while a cancelled
//! statement stops, is ignored.
//!
//! SIGTERM cancels the running statement, so that it removes its partial output, and then ends the
//! process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::exit::Exit;

/// No statement runs.
const IDLE: u8 = 0;
/// A statement runs.
const BUSY: u8 = 1;
/// A statement runs, and has been asked to stop.
const ASKED: u8 = 2;

/// The presses of Ctrl-C from now on.
#[derive(Clone, Debug)]
pub struct Interrupts {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: AtomicU8,
    /// True if the process survives a press that has no statement to cancel.
    stays: AtomicBool,
    pressed: Notify,
}

/// A running statement. Dropping it marks the end of the statement.
#[derive(Debug)]
pub struct Busy<'a>(&'a Shared);

impl Interrupts {
    /// Takes over the signal. Must be called within a tokio runtime.
    pub fn listen() -> io::Result<Self> {
        let mut signals = signal(SignalKind::interrupt())?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                match theirs.state.compare_exchange(BUSY, ASKED, SeqCst, SeqCst) {
                    Ok(_) => theirs.pressed.notify_one(),
                    Err(_) if theirs.stays.load(SeqCst) => {}
                    Err(_) => crate::leave(Exit::Interrupted as u8),
                }
            }
        });
        let mut terminations = signal(SignalKind::terminate())?;
        let theirs = Arc::clone(&shared);
        tokio::spawn(async move {
            if terminations.recv().await.is_some() {
                theirs.terminate().await;
            }
        });
        Ok(Self { shared })
    }

    /// Ignores presses that have no statement to cancel, from now on.
    pub fn stay(&self) {
        self.shared.stays.store(true, SeqCst);
    }

    /// Marks the begin of a statement.
    pub fn busy(&self) -> Busy<'_> {
        self.shared.state.store(BUSY, SeqCst);
        Busy(&self.shared)
    }
}

impl Shared {
    /// Ends the process, once the running statement has stopped.
    async fn terminate(&self) {
        const PAUSE: Duration = Duration::from_millis(10);
        if self.state.compare_exchange(BUSY, ASKED, SeqCst, SeqCst).is_ok() {
            self.pressed.notify_one();
        }
        while self.state.load(SeqCst) != IDLE {
            tokio::time::sleep(PAUSE).await;
        }
        // The resources of a statement are dropped right after it.
        tokio::time::sleep(PAUSE).await;
        crate::leave(Exit::Terminated as u8);
    }
}

impl Busy<'_> {
    /// Waits for a press.
    pub async fn pressed(&self) {
        while self.0.state.load(SeqCst) != ASKED {
            self.0.pressed.notified().await;
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.store(IDLE, SeqCst);
    }
}
