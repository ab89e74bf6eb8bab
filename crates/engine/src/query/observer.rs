//! Notification of the end of statements.
//!
//! The observer is held weakly: it knows sessions, which keep the database open.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{Error, Query};

/// Who is told when statements end.
pub trait Observer: Debug + Send + Sync {
    /// A statement is over, with all its figures, and the error that it ended in. Called once for each, on whatever thread ends
    /// it, before its client knows: it must not wait for anything.
    fn ended(&self, query: &Query, error: Option<&Error>);
}

/// Who is told.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    /// Statements that nobody observes take no lock.
    is_any: AtomicBool,
    observer: Mutex<Option<Weak<dyn Observer>>>,
}

impl Observers {
    pub fn set(&self, observer: &Arc<dyn Observer>) {
        *self.observer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(observer));
        self.is_any.store(true, Relaxed);
    }

    /// For a statement that begins.
    pub fn get(&self) -> Option<Weak<dyn Observer>> {
        if !self.is_any.load(Relaxed) {
            return None;
        }
        self.observer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
