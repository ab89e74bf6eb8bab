//! A process that forks: its child has its memory, and one of its threads.
//!
//! Locks that another thread holds at that moment would stay locked in the child, and its sampler is
//! gone. So the thread that forks holds the locks of this crate meanwhile, all of them, in the order in
//! which others take them. In the child no statement runs yet, and the next one starts a sampler.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use crate::{account, caches, sampler};

/// The locks of this crate, held.
type Held = (sampler::Held, account::Held, caches::Held);

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Prepares this process to fork, once.
///
/// # Errors
/// The system has no memory for that.
pub(crate) fn prepare() -> io::Result<()> {
    static ONCE: Once = Once::new();
    let mut prepared = Ok(());
    ONCE.call_once(|| {
        // SAFETY: the functions take nothing and live as long as the program.
        let code = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
        if code != 0 {
            prepared = Err(io::Error::from_raw_os_error(code));
        }
    });
    prepared
}

extern "C" fn before() {
    let held = (sampler::hold(), account::hold(), caches::hold());
    // A thread whose storage is gone forks without: it runs no statement.
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
