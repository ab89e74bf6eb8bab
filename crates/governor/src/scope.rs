//! Which statement a thread works for.
//!
//! A [`Scope`] is entered for as long as a future is polled or a closure runs, and nests. What it holds
//! lives as long as any work of the statement: a runtime that it was lent, its place among those that
//! run. When the last scope of a statement is dropped, its work is over, whenever its client was told.

use std::cell::RefCell;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::account::{Account, Guest, Open, Reason};
use crate::allocator::swap_account;

/// The work of one statement, wherever it is done.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    open: Option<Arc<Open>>,
    guest: Option<Arc<dyn Guest>>,
}

thread_local! {
    static CURRENT: RefCell<Scope> = const { RefCell::new(Scope { open: None, guest: None }) };
}

/// The scope that this thread works in; an empty one if it works for no statement.
pub fn current() -> Scope {
    CURRENT.try_with(|current| current.try_borrow().map(|scope| scope.clone()).unwrap_or_default()).unwrap_or_default()
}

/// Whether the statement that this thread works for may go on. For loops whose length input decides.
///
/// # Errors
/// Why it has to end.
#[inline]
pub fn check() -> Result<(), Reason> {
    of_current(Account::reason).map_or(Ok(()), Err)
}

/// The limit of the statement that this thread works for.
pub(crate) fn limit() -> Option<u64> {
    of_current(|account| Some(account.limit()))
}

fn of_current<T>(of: impl FnOnce(&Account) -> Option<T>) -> Option<T> {
    let looked = CURRENT.try_with(|current| {
        let scope = current.try_borrow().ok()?;
        scope.account().and_then(|account| of(account))
    });
    looked.ok().flatten()
}

/// A closure for another thread, in the scope of this one.
pub fn bind<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let scope = current();
    move || scope.run(work)
}

impl Scope {
    /// Nothing yet: memory is counted for the process alone, and nothing stops.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, with the account that memory is counted for. It is watched until the last work in
    /// this scope is over.
    #[must_use]
    pub fn with_account(&self, account: Arc<Account>) -> Self {
        Self { open: Some(Open::new(account, self.guest.as_ref())), guest: self.guest.clone() }
    }

    /// The same, keeping `guest` until the last work in it is over. It comes before the account.
    #[must_use]
    pub fn with_guest(&self, guest: Arc<dyn Guest>) -> Self {
        Self { open: self.open.clone(), guest: Some(guest) }
    }

    /// Its account, if it has one.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.open.as_ref().map(|open| &open.0)
    }

    /// Does something in it.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = Entered::new(self.clone());
        work()
    }

    /// A future that is polled, and dropped, in it.
    pub fn future<F: Future>(&self, future: F) -> ScopedFuture<F> {
        ScopedFuture { scope: self.clone(), future: Some(Box::pin(future)) }
    }
}

/// A thread works in a scope for as long as this lives.
struct Entered {
    before: Scope,
    account_before: *const Account,
}

impl Entered {
    fn new(scope: Scope) -> Self {
        let account = scope.account().map_or(ptr::null(), Arc::as_ptr);
        let before = CURRENT.try_with(|current| current.replace(scope)).unwrap_or_default();
        // SAFETY: `CURRENT` keeps the account until `drop` has put the one before in its place.
        let account_before = unsafe { swap_account(account) };
        Self { before, account_before }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: `before` keeps that account, and goes back to where it was.
        unsafe { swap_account(self.account_before) };
        let before = std::mem::take(&mut self.before);
        let left = CURRENT.try_with(|current| current.replace(before));
        drop(left);
    }
}

/// A future in a scope.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct ScopedFuture<F> {
    scope: Scope,
    /// `None` once it is dropped.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for ScopedFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { scope, future } = &mut *self;
        let _entered = Entered::new(scope.clone());
        match future {
            Some(future) => future.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for ScopedFuture<F> {
    fn drop(&mut self) {
        // What it frees is its statement's.
        let _entered = Entered::new(self.scope.clone());
        self.future = None;
    }
}
