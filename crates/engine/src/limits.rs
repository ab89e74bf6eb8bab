//! What a statement may take: `statement_timeout`, from its text to its last row, and `memory_limit`.
//!
//! Each statement has an [`Account`]. It is stopped when its time or its memory is at an end, or by its
//! client; its work sees that between two slices ([`go_on`]), and its caller hears of it at once
//! ([`Limited`]), whether the work has seen it or not. A statement whose changes are being committed is
//! not stopped any more, and ends as what it is ([`Query::settle`]).
//!
//! The clock is the governor's thread. The runtime's timers belong to threads that run operators, and
//! may be late by as long as an operator does not let go of them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use onehop_governor::{self as governor, Account, Reason};

use crate::settings::{Settings, format_duration, format_size};
use crate::{Error, ErrorKind, Result};

/// The time and the memory that a statement has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    time: Option<Duration>,
    /// Bytes of the process; 0 for as many as there are.
    memory: u64,
    /// When it came, if that was before it begins.
    came: Option<Instant>,
}

impl Limits {
    /// Those that settings have.
    pub fn of(settings: &Settings) -> Self {
        Self { time: settings.statement_timeout(), memory: settings.memory_limit_bytes(), came: None }
    }

    /// So much time, and all memory.
    #[cfg(test)]
    pub fn of_time(time: Duration) -> Self {
        Self { time: Some(time), ..Self::default() }
    }

    /// The same memory, and all the time that it takes.
    pub fn without_time(self) -> Self {
        Self { time: None, ..self }
    }

    /// An account of a statement that begins now.
    pub fn account(&self, id: u64) -> Arc<Account> {
        let memory = if self.memory == 0 { u64::MAX } else { self.memory };
        Account::new(id, memory, self.deadline())
    }

    /// The same limits, of a statement that came some time ago.
    pub fn since(self, came: Option<Instant>) -> Self {
        Self { came, ..self }
    }

    /// When `statement_timeout` ends the statement, if it does.
    pub fn deadline(&self) -> Option<Instant> {
        self.came.unwrap_or_else(Instant::now).checked_add(self.time?)
    }

    /// The error of a statement that was stopped.
    pub fn error(&self, reason: Reason) -> Error {
        match reason {
            Reason::Cancelled => Error::new(ErrorKind::Cancelled, "the query was cancelled"),
            Reason::TimedOut => {
                let limit = self.time.map_or_else(|| "0".into(), format_duration);
                let message = format!("the statement took longer than statement_timeout = '{limit}' and was cancelled");
                Error::new(ErrorKind::Timeout, message)
                    .with_hint("SET statement_timeout = '0' lets statements take as long as they need")
            }
            Reason::Memory => {
                let message = match self.memory {
                    0 => "memory_limit is reached".to_string(),
                    memory => format!("memory_limit = '{}' is reached", format_size(memory)),
                };
                Error::new(ErrorKind::Resources, message)
                    .with_hint("raise memory_limit (SET memory_limit = '8GiB'), or lower threads (SET threads = 1)")
            }
        }
    }
}

/// Whether the statement that this thread works for may go on. For work whose length its input decides.
///
/// # Errors
/// [`ErrorKind::Cancelled`], [`ErrorKind::Timeout`] or [`ErrorKind::Resources`]: it has to end.
pub(crate) fn go_on() -> Result<()> {
    governor::check().map_err(|reason| Limits::default().error(reason))
}

/// The same before something of so many bytes is made.
///
/// # Errors
/// As [`go_on`].
pub(crate) fn go_on_with(bytes: u64) -> Result<()> {
    governor::try_reserve(bytes).map_err(|reason| Limits::default().error(reason))
}

/// Refuses what a process keeps, so many bytes of it, when it is beyond a `memory_limit` already.
///
/// # Errors
/// [`ErrorKind::Resources`]: see [`governor::may_keep`].
pub fn may_keep(bytes: u64, limit: u64) -> Result<()> {
    if governor::may_keep(bytes, limit) {
        return Ok(());
    }
    let message = format!("memory_limit = '{}' is reached by what is kept in memory", format_size(limit));
    Err(Error::new(ErrorKind::Resources, message).with_hint(
        "COMMIT and CHECKPOINT write rows to storage; ROLLBACK, DEALLOCATE and DROP give memory back; or raise memory_limit",
    ))
}

/// Ends, with its error, when a statement is stopped.
pub(crate) struct Limited {
    /// Locked by nothing: what rows are made of has to be shared between threads.
    stopped: Mutex<BoxFuture<'static, Reason>>,
    limits: Limits,
}

impl Limited {
    /// Waits for the stop of the statement with this account and these limits.
    pub fn new(account: &Arc<Account>, limits: Limits) -> Self {
        let account = Arc::clone(account);
        Self { stopped: Mutex::new(Box::pin(async move { account.stopped().await })), limits }
    }
}

impl Future for Limited {
    type Output = Error;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Error> {
        let Self { stopped, limits } = &mut *self;
        let stopped = stopped.get_mut().unwrap_or_else(PoisonError::into_inner);
        stopped.as_mut().poll(context).map(|reason| limits.error(reason))
    }
}
