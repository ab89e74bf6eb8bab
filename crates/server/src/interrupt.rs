//! Why a statement, or a connection, is to end before its time. Three may say so: the client from another connection, the
//! reader of its messages, which sees it go, and the server, which shuts down.
//!
//! - A request to cancel is about the statement that runs, and is forgotten if none does.
//! - That the client is gone, and that the server shuts down, stay true.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The client has asked to.
    Cancelled,
    /// There is no client any more.
    Gone,
    /// The server shuts down: what runs may go on for a while, nothing begins any more.
    Closing,
    /// The server does not wait any longer.
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

/// Of one connection.
#[derive(Debug, Default)]
pub struct Interrupt {
    state: Mutex<State>,
    changed: Notify,
}

/// A statement runs for as long as this lives.
#[derive(Debug)]
pub struct Busy<'a>(&'a Interrupt);

impl Interrupt {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A statement begins.
    pub fn busy(&self) -> Busy<'_> {
        let mut state = self.state();
        (state.is_busy, state.is_cancelled) = (true, false);
        drop(state);
        Busy(self)
    }

    /// Whether a statement runs.
    pub fn is_busy(&self) -> bool {
        self.state().is_busy
    }

    /// Asks for an end.
    pub fn raise(&self, reason: Reason) {
        let mut state = self.state();
        match reason {
            Reason::Cancelled => state.is_cancelled = state.is_busy,
            Reason::Gone => state.is_gone = true,
            Reason::Closing => state.is_closing = true,
            Reason::Killed => state.is_killed = true,
        }
        drop(state);
        // The one who waits, or who will wait next.
        self.changed.notify_one();
    }

    /// The request to cancel came too late.
    pub fn forget_request(&self) {
        self.state().is_cancelled = false;
    }

    /// Why the statement that runs has to end.
    pub fn of_statement(&self) -> Option<Reason> {
        let state = self.state();
        match () {
            () if state.is_gone => Some(Reason::Gone),
            () if state.is_killed => Some(Reason::Killed),
            () if state.is_cancelled => Some(Reason::Cancelled),
            () => None,
        }
    }

    /// Why a connection that does nothing has to end.
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

    /// Waits until the statement that runs has to end.
    pub async fn statement_ends(&self) -> Reason {
        self.when(Self::of_statement).await
    }

    /// Waits until a connection that does nothing has to end.
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
