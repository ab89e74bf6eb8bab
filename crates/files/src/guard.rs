//! Panics of decoders: caught, silent, and counted.
//!
//! Decoders of foreign formats panic if a file breaks their assumptions. The checks of this crate
//! come first; the guard is the last resort. A caught panic is a missing check, so
//! [`caught_panics`] counts them, and tests and fuzzers require that it stays 0.
//!
//! A panic hook prints a message, and with `RUST_BACKTRACE` a trace that takes 190 MB. A guard
//! suppresses both: the hook of this module skips panics of guarded threads.

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use futures::stream::{self, Stream, StreamExt};

static CAUGHT: AtomicU64 = AtomicU64::new(0);
static HOOK: Once = Once::new();

thread_local! {
    /// The number of nested guards of this thread.
    static GUARDS: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of panics that guards of this process have caught.
pub fn caught_panics() -> u64 {
    CAUGHT.load(Ordering::Relaxed)
}

/// A panic that a guard has caught.
#[derive(Debug, thiserror::Error)]
#[error("its reader gave up: {message}")]
pub struct Panicked {
    message: String,
}

impl Panicked {
    fn count(payload: &(dyn Any + Send)) -> Self {
        CAUGHT.fetch_add(1, Ordering::Relaxed);
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_string());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self { message: text.unwrap_or_else(|| "no reason".into()) }
    }
}

/// The presence of a thread in a guard.
struct Stay;

impl Stay {
    fn begin() -> Self {
        HOOK.call_once(|| {
            let outer = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                // A thread that ends has no thread-local any more, and is not guarded.
                if GUARDS.try_with(Cell::get).unwrap_or(0) == 0 {
                    outer(panic);
                }
            }));
        });
        GUARDS.set(GUARDS.get() + 1);
        Self
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        GUARDS.set(GUARDS.get() - 1);
    }
}

/// Runs work, and returns its panic as an error.
///
/// # Errors
/// If the work panicked.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let _stay = Stay::begin();
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| Panicked::count(payload.as_ref()))
}

/// Runs a future, and returns its panic as an error.
///
/// # Errors
/// If the future panicked.
pub async fn guarded_future<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut work = pin!(work);
    poll_fn(|context| match guarded(|| work.as_mut().poll(context)) {
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(panicked) => Poll::Ready(Err(panicked)),
    })
    .await
}

/// Returns the items of a stream, with its panic as the last one.
pub fn guarded_stream<S: Stream + Unpin>(stream: S) -> impl Stream<Item = Result<S::Item, Panicked>> {
    let mut rest = Some(stream);
    stream::poll_fn(move |context| {
        let Some(inner) = rest.as_mut() else { return Poll::Ready(None) };
        match guarded(|| inner.poll_next_unpin(context)) {
            Ok(Poll::Ready(item)) => Poll::Ready(item.map(Ok)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panicked) => {
                // A decoder that has panicked must not be polled again.
                rest = None;
                Poll::Ready(Some(Err(panicked)))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_errors_and_counted() {
        let before = caught_panics();
        assert!(guarded(|| 1).is_ok_and(|one| one == 1));
        let panicked = guarded(|| panic!("no such {}", "thing")).err().map(|e| e.to_string());
        assert_eq!(panicked.as_deref(), Some("its reader gave up: no such thing"));
        assert_eq!(GUARDS.get(), 0);
        let steps = stream::iter(0..3).map(|step| if step == 1 { panic!("step") } else { step });
        let seen: Vec<bool> = futures::executor::block_on(guarded_stream(steps).map(|step| step.is_ok()).collect());
        assert_eq!(seen, [true, false]);
        assert_eq!(caught_panics(), before + 2);
    }
}
