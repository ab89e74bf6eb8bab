//! The statement that a thread works for.
//!
//! A thread enters a [`Scope`] while it polls a future or runs a closure. Scopes nest. The contents
//! of a scope live as long as any work of the statement: a lent runtime, its place among the
//! running statements. The work of a statement is over when its last scope is dropped, even if its
//! client got the answer earlier.

use std::cell::RefCell;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::account::{Account, Guest, Open, Reason};
use crate::allocator::swap_account;

/// The work of one statement, on any thread.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    open: Option<Arc<Open>>,
    guest: Option<Arc<dyn Guest>>,
}

thread_local! {
    static CURRENT: RefCell<Scope> = const { RefCell::new(Scope { open: None, guest: None }) };
}

/// Returns the scope of this thread, an empty one if the thread works for no statement.
pub fn current() -> Scope {
    CURRENT.try_with(|current| current.try_borrow().map(|scope| scope.clone()).unwrap_or_default()).unwrap_or_default()
}

/// Returns `Ok` if the statement of this thread may continue. Loops whose length depends on input
/// call it.
///
/// # Errors
/// The reason to end the statement.
#[inline]
pub fn check() -> Result<(), Reason> {
    of_current(Account::reason).map_or(Ok(()), Err)
}

/// Returns the limit of the statement that this thread works for.
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

/// Wraps a closure for another thread so that it runs in the scope of this one.
pub fn bind<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let scope = current();
    move || scope.run(work)
}

impl Scope {
    /// Creates an empty scope: memory is counted for the process alone, and nothing stops the work.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the scope with the account that memory is counted for. The account is watched until
    /// the last work in the scope is over.
    #[must_use]
    pub fn with_account(&self, account: Arc<Account>) -> Self {
        Self { open: Some(Open::new(account, self.guest.as_ref())), guest: self.guest.clone() }
    }

    /// Returns the scope with `guest`, kept until its last work is over. Set the guest before the
    /// account.
    #[must_use]
    pub fn with_guest(&self, guest: Arc<dyn Guest>) -> Self {
        Self { open: self.open.clone(), guest: Some(guest) }
    }

    /// Returns the account of the scope, if it has one.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.open.as_ref().map(|open| &open.0)
    }

    /// Runs a closure in the scope.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = Entered::new(self.clone());
        work()
    }

    /// Wraps a future so that it is polled and dropped in the scope.
    pub fn future<F: Future>(&self, future: F) -> ScopedFuture<F> {
        ScopedFuture { scope: self.clone(), future: Some(Box::pin(future)) }
    }
}

/// Guard that makes the thread work in a scope for as long as it lives.
struct Entered {
    before: Scope,
    account_before: *const Account,
}

impl Entered {
    fn new(scope: Scope) -> Self {
        let account = scope.account().map_or(ptr::null(), Arc::as_ptr);
        let before = CURRENT.try_with(|current| current.replace(scope)).unwrap_or_default();
        // SAFETY: `CURRENT` keeps the account until `drop` has restored the previous one.
        let account_before = unsafe { swap_account(account) };
        Self { before, account_before }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: `before` keeps that account and returns to `CURRENT`.
        unsafe { swap_account(self.account_before) };
        let before = std::mem::take(&mut self.before);
        let left = CURRENT.try_with(|current| current.replace(before));
        drop(left);
    }
}

/// A future that runs in a scope.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct ScopedFuture<F> {
    scope: Scope,
    /// `None` once the future is dropped.
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
        // Memory that the drop frees belongs to the statement.
        let _entered = Entered::new(self.scope.clone());
        self.future = None;
    }
}
