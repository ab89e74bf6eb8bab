//! Waiting for the engine: without the interpreter's lock, and not for ever once Ctrl-C was pressed.
//!
//! The future is polled on the thread that waits. Nothing of the engine's runtime is needed for its clock: one whose workers
//! are all busy computing hears neither timers nor signals.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How long Ctrl-C may go unnoticed.
const TICK: Duration = Duration::from_millis(50);

/// What a future comes to; `look` is called every now and then meanwhile. Dropping the future, which is done if Python has an exception
/// to raise, must end its work.
///
/// # Errors
/// What Python's signal handlers raise: `KeyboardInterrupt`; those of `look`.
pub fn wait<F>(py: Python<'_>, future: F, mut look: impl FnMut(Python<'_>) -> PyResult<()>) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let deadline = Instant::now() + TICK;
        if let Some(output) = py.detach(|| poll_until(future.as_mut(), &waker, deadline)) {
            return Ok(output);
        }
        py.check_signals()?;
        look(py)?;
    }
}

fn poll_until<F: Future>(mut future: Pin<&mut F>, waker: &Waker, deadline: Instant) -> Option<F::Output> {
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker)) {
            return Some(output);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
