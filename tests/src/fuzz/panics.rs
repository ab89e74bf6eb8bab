//! Records this process's panics, caught or not.
//!
//! The hook wraps the one that [`guarded`] installs, which ignores panics that it catches.

use std::panic;
use std::sync::{Mutex, Once, PoisonError};

use onehop_engine::guarded;

/// The panics since they were last taken.
static SEEN: Mutex<Vec<Panic>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

/// A panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic {
    /// The location: `file:line:column`.
    pub location: String,
    /// The message.
    pub message: String,
}

/// Records panics from now on, and prints none.
pub fn watch() {
    HOOK.call_once(|| {
        // The hook that is installed first is the inner one.
        let _ = guarded(|| ());
        panic::set_hook(Box::new(|info| {
            let location = info.location().map_or_else(|| "nowhere".into(), ToString::to_string);
            let text = info.payload().downcast_ref::<&str>().map(|text| (*text).to_string());
            let text = text.or_else(|| info.payload().downcast_ref::<String>().cloned());
            let panic = Panic { location, message: text.unwrap_or_else(|| "no reason".into()) };
            if std::env::var_os("ONEHOP_FUZZ_TRACE").is_some() {
                eprintln!("{}: {}\n{}", panic.location, panic.message, std::backtrace::Backtrace::force_capture());
            }
            SEEN.lock().unwrap_or_else(PoisonError::into_inner).push(panic);
        }));
    });
}

/// Takes the panics since the last call.
pub fn take() -> Vec<Panic> {
    std::mem::take(&mut *SEEN.lock().unwrap_or_else(PoisonError::into_inner))
}
