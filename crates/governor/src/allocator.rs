//! A global allocator that counts bytes and delegates allocation to another allocator.
//!
//! Each thread keeps a balance and flushes it when it is 64 KiB from zero: many allocations cost
//! two atomic additions. The counted bytes are the requested ones. Rounding by the underlying
//! allocator is overhead, which the sampler measures.
//!
//! Invariants: this module does not allocate, take a lock, or unwind. The thread-local state has no
//! destructor, so it remains usable while a thread ends.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;

use crate::account::Account;
use crate::memory;

/// Distance from zero at which a thread's balance is flushed.
const SLACK_BYTES: i64 = 64 << 10;

/// Allocator that counts the allocations of `A` for [`Account`]s.
#[derive(Debug)]
pub struct Counting<A>(A);

impl<A> Counting<A> {
    /// Wraps an allocator.
    pub const fn new(allocator: A) -> Self {
        Self(allocator)
    }
}

struct Local {
    /// Bytes allocated less bytes freed, since the last flush.
    balance: Cell<i64>,
    /// The account of the statement that the thread works for, or null. It outlives its presence
    /// here: see `scope::Entered`.
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

/// Adds to the bytes of the process, and to those of an account if there is one.
fn pass_on(balance: i64, account: *const Account) {
    memory::set_counting();
    let in_all = memory::count(balance);
    // SAFETY: callers of `swap_account` keep the account alive until they swap it out.
    if let Some(account) = unsafe { account.as_ref() } {
        account.add(balance, in_all);
    }
}

/// Flushes this thread's balance and sets the account it works for. Returns the previous account.
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

// SAFETY: memory comes from `A` and returns to it, with the layouts that callers pass.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `A`.
        let allocated = unsafe { self.0.alloc(layout) };
        if !allocated.is_null() {
            add(layout.size() as i64);
        }
        allocated
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `A`.
        let allocated = unsafe { self.0.alloc_zeroed(layout) };
        if !allocated.is_null() {
            add(layout.size() as i64);
        }
        allocated
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `A`.
        unsafe { self.0.dealloc(memory, layout) };
        add(-(layout.size() as i64));
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `A`.
        let moved = unsafe { self.0.realloc(memory, layout, size) };
        if !moved.is_null() {
            add(size as i64 - layout.size() as i64);
        }
        moved
    }
}
