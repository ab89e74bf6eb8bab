//! Numbers that Java has in place of what lives here.
//!
//! A number is given out once and never again, so at every moment it is one of: *never issued*, *open*, *closed*. Using one
//! that is not open, or that stands for something of another kind, is an error of the caller's, told as such. Whoever asks for
//! what a number stands for shares it: closing takes the number away and nothing else.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use onehop_io::rados::fs::TaskAttempt;

use crate::input::Input;
use crate::mount::Mount;
use crate::output::Output;

/// What a number can stand for.
#[derive(Clone, Debug)]
pub enum Object {
    /// A file system.
    Mount(Arc<Mount>),
    /// A file that is read.
    Input(Arc<Input>),
    /// A file that is written.
    Output(Arc<Output>),
    /// An attempt at a task of a transaction.
    TaskAttempt(Arc<TaskAttempt>),
}

/// One of the kinds.
pub trait Kind: Sized {
    /// What it is called in messages.
    const NAME: &'static str;
    fn wrap(this: Arc<Self>) -> Object;
    fn unwrap(object: &Object) -> Option<&Arc<Self>>;
}

macro_rules! kinds {
    ($($kind:ident: $name:literal),*) => {
        $(impl Kind for $kind {
            const NAME: &'static str = $name;
            fn wrap(this: Arc<Self>) -> Object {
                Object::$kind(this)
            }
            fn unwrap(object: &Object) -> Option<&Arc<Self>> {
                match object {
                    Object::$kind(this) => Some(this),
                    _ => None,
                }
            }
        })*
        impl Object {
            fn kind(&self) -> &'static str {
                match self {
                    $(Object::$kind(_) => $kind::NAME),*
                }
            }
        }
    };
}

kinds!(Mount: "file system", Input: "input stream", Output: "output stream", TaskAttempt: "task attempt");

/// A number that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHandle {
    /// It was open once.
    #[error("the {wanted} is closed")]
    Closed { wanted: &'static str },
    /// Nobody was given it.
    #[error("no {wanted} has handle {number}: it was never issued")]
    NeverIssued { number: i64, wanted: &'static str },
    /// It is something else's.
    #[error("handle {number} is of the {is}, and that of an {wanted} was asked for")]
    OtherKind { number: i64, is: &'static str, wanted: &'static str },
}

/// All numbers of the process. All methods may be called from many threads.
#[derive(Debug)]
pub struct Handles {
    next: AtomicI64,
    open: RwLock<Option<HashMap<i64, Object>>>,
}

impl Handles {
    pub const fn new() -> Self {
        // 0 is what Java's fields begin with: it is never issued.
        Self { next: AtomicI64::new(1), open: RwLock::new(None) }
    }

    /// A number for something new.
    pub fn issue<K: Kind>(&self, object: K) -> i64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.get_or_insert_default().insert(number, K::wrap(Arc::new(object)));
        number
    }

    /// What a number stands for.
    pub fn get<K: Kind>(&self, number: i64) -> Result<Arc<K>, BadHandle> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        self.of_kind(number, open.as_ref().and_then(|open| open.get(&number)))
    }

    /// Takes a number away; what it stood for goes when nobody uses it any more.
    pub fn close<K: Kind>(&self, number: i64) -> Result<Arc<K>, BadHandle> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let object = self.of_kind(number, open.as_ref().and_then(|open| open.get(&number)))?;
        if let Some(open) = open.as_mut() {
            open.remove(&number);
        }
        Ok(object)
    }

    fn of_kind<K: Kind>(&self, number: i64, object: Option<&Object>) -> Result<Arc<K>, BadHandle> {
        let wanted = K::NAME;
        match object {
            Some(object) => {
                K::unwrap(object).cloned().ok_or(BadHandle::OtherKind { number, is: object.kind(), wanted })
            }
            None if (1..self.next.load(Ordering::Relaxed)).contains(&number) => Err(BadHandle::Closed { wanted }),
            None => Err(BadHandle::NeverIssued { number, wanted }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mount::tests::in_memory;

    #[test]
    fn a_number_is_open_then_closed_and_never_used_again() {
        let handles = Handles::new();
        let mount = in_memory();
        let bad = |number| handles.get::<Mount>(number).unwrap_err();
        for number in [0, -1, 1, i64::MAX, i64::MIN] {
            assert_eq!(bad(number), BadHandle::NeverIssued { number, wanted: "file system" });
        }
        let number = handles.issue(mount);
        let held = handles.get::<Mount>(number).unwrap();
        assert_eq!(
            handles.close::<Input>(number).unwrap_err(),
            BadHandle::OtherKind { number, is: "file system", wanted: "input stream" }
        );
        handles.close::<Mount>(number).unwrap();
        assert_eq!(bad(number), BadHandle::Closed { wanted: "file system" });
        assert_eq!(handles.close::<Mount>(number).unwrap_err(), BadHandle::Closed { wanted: "file system" });
        // Who had it still has it.
        assert!(held.fs.stat("/").is_ok());
        assert_ne!(handles.issue(in_memory()), number);
    }
}
