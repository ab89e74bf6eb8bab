//! Page size of the process's memory: huge pages only under a limit that has space for them.
//!
//! A huge page is resident as a whole once one byte of it is touched. Under a limit of a few
//! hundred megabytes the partly used pages of threads and arenas would take a noticeable part of
//! it. Under a large limit huge pages save the page faults of large tables.
//!
//! A process starts with small pages if it calls [`start_with_small_pages`], and the governor
//! changes the size when the largest limit in force crosses [`LEAST_LIMIT`]. Pages that exist keep
//! their size. In a process that does not make that call, for example one that embeds the engine,
//! the governor leaves the page size alone.
//!
//! Invariants: as in [`resident`](crate::resident), nothing here allocates or takes a lock.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Least limit of resident memory, in bytes, under which huge pages are used.
const LEAST_LIMIT: u64 = 1 << 30;

const UNMANAGED: u8 = 0;
const SMALL: u8 = 1;
const HUGE: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNMANAGED);

/// Starts the process with small pages, and lets the governor choose the page size from now on. Has
/// no effect on a system without transparent huge pages.
pub fn start_with_small_pages() {
    set(SMALL);
}

/// Chooses the page size under `limit`, the largest limit in force in bytes. Without a limit (0)
/// the size stays.
pub(crate) fn choose(limit: u64) {
    let wanted = match limit {
        0 => return,
        limit if limit < LEAST_LIMIT => SMALL,
        _ => HUGE,
    };
    let now = STATE.load(Relaxed);
    if now != UNMANAGED && now != wanted {
        set(wanted);
    }
}

fn set(state: u8) {
    // SAFETY: this command of `prctl` takes integers alone. If it fails, pages stay as they are.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(state == SMALL), 0, 0, 0) };
    STATE.store(state, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn are_disabled() -> bool {
        // SAFETY: this command of `prctl` takes no argument.
        unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1 }
    }

    #[test]
    fn the_largest_limit_chooses_the_page_size() {
        // Not managed: nothing changes.
        let before = are_disabled();
        choose(1 << 20);
        assert_eq!(are_disabled(), before);
        start_with_small_pages();
        assert!(are_disabled());
        choose(4 << 30);
        assert!(!are_disabled());
        choose(0);
        assert!(!are_disabled());
        choose(256 << 20);
        assert!(are_disabled());
    }
}
