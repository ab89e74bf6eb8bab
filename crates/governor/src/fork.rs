//! Support for `fork`: a child process has the parent's memory and only one of its threads.
//!
//! Locks that another thread holds at that moment would stay locked in the child, and the child has
//! no sampler. Therefore the forking thread holds all locks of this crate during the fork, taken in
//! the order in which other threads take them. No statement runs in the child yet, and its first
//! statement starts a sampler.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use crate::{account, caches, sampler};

/// The locks of this crate, held during a fork.
type Held = (sampler::Held, account::Held, caches::Held);

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Registers the fork handlers of this process, once.
///
/// # Errors
/// The system has no memory for the handlers.
pub(crate) fn prepare() -> io::Result<()> {
    static ONCE: Once = Once::new();
    let mut prepared = Ok(());
    ONCE.call_once(|| {
        // SAFETY: the functions take no arguments and live as long as the program.
        let code = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
        if code != 0 {
            prepared = Err(io::Error::from_raw_os_error(code));
        }
    });
    prepared
}

extern "C" fn before() {
    let held = (sampler::hold(), account::hold(), caches::hold());
    // A thread whose thread-local storage is gone forks without the locks: it runs no statement.
    let _ = HELD.try_with(|place| place.replace(Some(held)));
}

extern "C" fn after() {
    let _ = HELD.try_with(RefCell::take);
}

extern "C" fn in_child() {
    if let Ok(Some((mut sampler, mut accounts, caches))) = HELD.try_with(RefCell::take) {
        sampler::forget(&mut sampler);
        account::forget(&mut accounts);
        drop((sampler, accounts, caches));
    }
}
