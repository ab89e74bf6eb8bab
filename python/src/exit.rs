//! The end of the interpreter.
//!
//! An engine's thread that is in a reader of Python's then would take the process down. So statements are ended first, and
//! their threads waited for until they have let go of what is Python's; not for ever, for a reader may wait for anything.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::process::OfProcess;
use crate::rows::Stream;

/// How long a reader may take to come back.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Results that may have rows to come. Locked with the interpreter's lock only, so that nobody has it when a process forks.
static STREAMS: Mutex<Vec<Weak<OfProcess<Stream>>>> = Mutex::new(Vec::new());

/// Readers of Python's that are being read.
static READERS: AtomicUsize = AtomicUsize::new(0);

/// Has a result end before the interpreter does.
pub fn ends(_: Python<'_>, stream: &Arc<OfProcess<Stream>>) {
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    streams.retain(|stream| stream.strong_count() > 0);
    streams.push(Arc::downgrade(stream));
}

/// A reader of Python's is being read, until this is dropped.
pub struct InPython(());

impl InPython {
    /// From now on.
    pub fn enter() -> Self {
        READERS.fetch_add(1, SeqCst);
        Self(())
    }
}

impl Drop for InPython {
    fn drop(&mut self) {
        READERS.fetch_sub(1, SeqCst);
    }
}

/// Ends what runs, and waits a moment for threads that are in Python. `onehop` has it called when the interpreter ends.
#[pyfunction]
pub fn finish(py: Python<'_>) {
    let streams = std::mem::take(&mut *STREAMS.lock().unwrap_or_else(PoisonError::into_inner));
    for stream in streams.iter().filter_map(Weak::upgrade) {
        if let Ok(stream) = stream.get(py) {
            stream.close("the interpreter ends");
        }
    }
    py.detach(|| {
        let deadline = Instant::now() + PATIENCE;
        while READERS.load(SeqCst) > 0 && Instant::now() < deadline {
            thread::sleep(LOOK_AGAIN);
        }
    });
}

/// In a forked child no thread reads anything. `onehop` has it called there.
#[pyfunction]
pub fn forked() {
    READERS.store(0, SeqCst);
}
