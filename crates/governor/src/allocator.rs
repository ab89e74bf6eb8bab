//! A global allocator that counts, around one that allocates.
//!
//! Each thread keeps a balance, and passes it on when it is 64 KiB from zero: two atomic additions for
//! many allocations. The bytes are those that were asked for; what the allocator below rounds up to is
//! overhead, which the sampler sees.
//!
//! Invariants: nothing here allocates, takes a lock, or unwinds. The thread-local state has no
//! destructor, so that it can be used while a thread ends.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;

use crate::account::Account;
use crate::memory;

/// A thread's balance is passed on when it is so far from zero.
const SLACK_BYTES: i64 = 64 << 10;

/// Counts for [`Account`]s what `A` allocates.
#[derive(Debug)]
pub struct Counting<A>(A);

impl<A> Counting<A> {
    /// Around an allocator.
    pub const fn new(allocator: A) -> Self {
        Self(allocator)
    }
}

struct Local {
    /// Bytes allocated less bytes freed, since the balance was passed on.
    balance: Cell<i64>,
    /// The account of the statement that the thread works for, or null. It outlives its being here:
    /// see `scope::Entered`.
    account: Cell<*const Account>,
}

thread_local! {
    static LOCAL: Local = const { Local { balance: Cell::new(0), account: Cell::new(ptr::null()) } };
}

fn add(bytes: i64) {
    LOCAL.with(|local| {
        let balance = local.balance.get() + bytes;
        match balance.abs() < SLACK_BYTES {
            true => local.balance.set(balance),
            false => {
                local.balance.set(0);
                pass_on(balance, local.account.get());
            }
        }
    });
}

/// Adds to the process's bytes, and to an account's, if there is one.
fn pass_on(balance: i64, account: *const Account) {
    memory::set_counting();
    let in_all = memory::count(balance);
    // SAFETY: `swap_account` has its callers keep it alive until they take it away.
    if let Some(account) = unsafe { account.as_ref() } {
        account.add(balance, in_all);
    }
}

/// Passes this thread's balance on, and makes it work for another account; the one before.
///
/// # Safety
/// `account` is null or stays valid until it is swapped for another one on this thread.
pub(crate) unsafe fn swap_account(account: *const Account) -> *const Account {
    LOCAL.with(|local| {
        let balance = local.balance.take();
        let before = local.account.replace(account);
        if balance != 0 {
            pass_on(balance, before);
        }
        before
    })
}

// SAFETY: memory comes from `A`, and goes back to it, with the layouts that callers give.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is that of `A`.
        let allocated = unsafe { self.0.alloc(layout) };
        if !allocated.is_null() {
            add(layout.size() as i64);
        }
        allocated
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is that of `A`.
        let allocated = unsafe { self.0.alloc_zeroed(layout) };
        if !allocated.is_null() {
            add(layout.size() as i64);
        }
        allocated
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is that of `A`.
        unsafe { self.0.dealloc(memory, layout) };
        add(-(layout.size() as i64));
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise is that of `A`.
        let moved = unsafe { self.0.realloc(memory, layout, size) };
        if !moved.is_null() {
            add(size as i64 - layout.size() as i64);
        }
        moved
    }
}
