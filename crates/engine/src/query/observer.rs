//! Notification of the end of statements.
//!
//! The observer is held weakly: it refers to sessions, which keep the database open.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{Error, Query};

/// An observer of the end of statements.
pub trait Observer: Debug + Send + Sync {
    /// Called once for each statement when it ends, with its final statistics and its error. The
    /// thread that ends it calls this before its client knows, so the method must not block.
    fn ended(&self, query: &Query, error: Option<&Error>);
}

/// The observer of a database, if any.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    /// Spares statements without an observer the lock.
    is_any: AtomicBool,
    observer: Mutex<Option<Weak<dyn Observer>>>,
}

impl Observers {
    /// Sets the observer.
    pub fn set(&self, observer: &Arc<dyn Observer>) {
        *self.observer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(observer));
        self.is_any.store(true, Relaxed);
    }

    /// Returns the observer for a statement that begins.
    pub fn get(&self) -> Option<Weak<dyn Observer>> {
        if !self.is_any.load(Relaxed) {
            return None;
        }
        self.observer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
