//! Interrupts of a statement or a connection. They have three sources: a cancel request from
//! another connection, the message reader, which detects that the client is gone, and the server,
//! which shuts down.
//!
//! - A cancel request applies to the running statement, and is ignored if none runs.
//! - The other two conditions are permanent.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The reason of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The client has sent a cancel request.
    Cancelled,
    /// The client is gone.
    Gone,
    /// The server shuts down: running statements may continue for a while, and no statement begins.
    Closing,
    /// The grace period is over.
    Killed,
}

#[derive(Debug, Default)]
struct State {
    is_busy: bool,
    is_cancelled: bool,
    is_gone: bool,
    is_closing: bool,
    is_killed: bool,
}

/// The interrupts of one connection.
#[derive(Debug, Default)]
pub struct Interrupt {
    state: Mutex<State>,
    changed: Notify,
}

/// A running statement. Dropping it marks the end of the statement.
#[derive(Debug)]
pub struct Busy<'a>(&'a Interrupt);

impl Interrupt {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the begin of a statement.
    pub fn busy(&self) -> Busy<'_> {
        let mut state = self.state();
        (state.is_busy, state.is_cancelled) = (true, false);
        drop(state);
        Busy(self)
    }

    /// Returns true if a statement runs.
    pub fn is_busy(&self) -> bool {
        self.state().is_busy
    }

    /// Raises an interrupt.
    pub fn raise(&self, reason: Reason) {
        let mut state = self.state();
        match reason {
            Reason::Cancelled => state.is_cancelled = state.is_busy,
            Reason::Gone => state.is_gone = true,
            Reason::Closing => state.is_closing = true,
            Reason::Killed => state.is_killed = true,
        }
        drop(state);
        // Wakes the current waiter, or the next one.
        self.changed.notify_one();
    }

    /// Clears a cancel request that came too late.
    pub fn forget_request(&self) {
        self.state().is_cancelled = false;
    }

    /// Returns the reason the running statement has to end, if any.
    pub fn of_statement(&self) -> Option<Reason> {
        let state = self.state();
        match () {
            () if state.is_gone => Some(Reason::Gone),
            () if state.is_killed => Some(Reason::Killed),
            () if state.is_cancelled => Some(Reason::Cancelled),
            () => None,
        }
    }

    /// Returns the reason an idle connection has to end, if any.
    fn of_connection(&self) -> Option<Reason> {
        let state = self.state();
        (state.is_closing || state.is_killed).then_some(Reason::Closing)
    }

    async fn when(&self, why: impl Fn(&Self) -> Option<Reason>) -> Reason {
        loop {
            if let Some(reason) = why(self) {
                return reason;
            }
            self.changed.notified().await;
        }
    }

    /// Waits until the running statement has to end.
    pub async fn statement_ends(&self) -> Reason {
        self.when(Self::of_statement).await
    }

    /// Waits until an idle connection has to end.
    pub async fn connection_ends(&self) -> Reason {
        self.when(Self::of_connection).await
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.is_busy, state.is_cancelled) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_cancel_is_about_what_runs() {
        let interrupt = Interrupt::default();
        interrupt.raise(Reason::Cancelled);
        let busy = interrupt.busy();
        assert_eq!(interrupt.of_statement(), None);
        interrupt.raise(Reason::Cancelled);
        assert_eq!(interrupt.of_statement(), Some(Reason::Cancelled));
        drop(busy);
        assert_eq!(interrupt.of_statement(), None);
    }

    #[test]
    fn who_is_gone_stays_gone() {
        let interrupt = Interrupt::default();
        interrupt.raise(Reason::Gone);
        let _busy = interrupt.busy();
        assert_eq!(interrupt.of_statement(), Some(Reason::Gone));
        assert_eq!(interrupt.of_connection(), None);
        interrupt.raise(Reason::Closing);
        assert_eq!(interrupt.of_connection(), Some(Reason::Closing));
    }
}
