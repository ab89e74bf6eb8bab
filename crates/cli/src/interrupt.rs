//! Ctrl-C. The first press cancels the statement that runs; a second one, before the first has been acted upon, or a
//! press while nothing runs, ends the process. The shell never ends by it: at its prompt Ctrl-C is a key, not a signal,
//! and a press just before the prompt, or while a cancelled statement lets go, is ignored.
//!
//! SIGTERM cancels the statement that runs, so that it removes what it has begun to write, and then ends the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::exit::Exit;

/// Nothing runs.
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
    /// Whether the process outlives a press that has no statement to cancel.
    stays: AtomicBool,
    pressed: Notify,
}

/// A statement runs for as long as this lives.
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

    /// From now on a press that has no statement to cancel does nothing.
    pub fn stay(&self) {
        self.shared.stays.store(true, SeqCst);
    }

    /// A statement begins.
    pub fn busy(&self) -> Busy<'_> {
        self.shared.state.store(BUSY, SeqCst);
        Busy(&self.shared)
    }
}

impl Shared {
    /// Ends the process, once the statement that runs has let go.
    async fn terminate(&self) {
        const PAUSE: Duration = Duration::from_millis(10);
        if self.state.compare_exchange(BUSY, ASKED, SeqCst, SeqCst).is_ok() {
            self.pressed.notify_one();
        }
        while self.state.load(SeqCst) != IDLE {
            tokio::time::sleep(PAUSE).await;
        }
        // What a statement held is dropped right behind it.
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
