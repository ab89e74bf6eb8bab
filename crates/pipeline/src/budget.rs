//! Memory of pipelines, reserved before it is allocated, and the files for spilled data.
//!
//! Every structure that grows with rows has an [`Account`]. If the budget refuses a reservation,
//! the operator spills, if it can, and continues with the memory it holds. No operator allocates
//! before it reserves. A growing vector is in memory twice while it is copied, and counts twice.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use onehop_io::{Ledger, Volume, WriteAt};

use crate::{Error, Result};

/// Reservation in a budget, released on drop. All methods may be called from many threads.
pub trait Account: Send + Sync + Debug {
    /// Resizes the reservation to `bytes` in total.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget has too few bytes; the reservation then stays as it is.
    fn try_resize(&self, bytes: usize) -> Result<()>;
}

/// Kind of an account's holder: it can spill or it cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The holder spills to files, and has its share of the budget.
    Spills,
    /// The holder takes available memory, or fails.
    Keeps,
}

/// Provider of memory and temporary files. All methods may be called from many threads.
pub trait Resources: Send + Sync + Debug {
    /// Returns the bytes of all accounts together.
    fn limit(&self) -> usize;

    /// Creates an empty account for `what`.
    fn account(&self, what: &'static str, holder: Holder) -> Box<dyn Account>;

    /// Creates an empty file that is removed when it is dropped or the process ends; `None` if
    /// there is no directory for files.
    ///
    /// # Errors
    /// [`Error::Spill`].
    fn file(&self) -> Result<Option<Arc<dyn WriteAt>>>;

    /// Returns the ledger that counts the I/O of the files.
    fn ledger(&self) -> &Ledger;
}

/// A budget, shared by all its users.
#[derive(Clone, Debug)]
pub struct Budget(pub Arc<dyn Resources>);

impl Budget {
    /// Creates a budget of `bytes`, with a directory for spilled data.
    pub fn with_volume(bytes: usize, volume: Arc<dyn Volume>, ledger: Arc<Ledger>) -> Self {
        let fair = Arc::new(Mutex::new(Fair { limit: bytes, ..Fair::default() }));
        Self(Arc::new(Fixed { fair, limit: bytes, volume: Some(volume), ledger, files: AtomicU64::new(0) }))
    }

    /// Creates an empty reservation.
    pub(crate) fn room(&self, what: &'static str, holder: Holder) -> Room {
        Room { account: self.0.account(what, holder), bytes: 0 }
    }
}

impl From<usize> for Budget {
    /// Creates a budget of `bytes` without a directory for spilled data.
    fn from(bytes: usize) -> Self {
        let fair = Arc::new(Mutex::new(Fair { limit: bytes, ..Fair::default() }));
        Self(Arc::new(Fixed { fair, limit: bytes, volume: None, ledger: Arc::default(), files: AtomicU64::new(0) }))
    }
}

/// Reservation that remembers its size.
#[derive(Debug)]
pub(crate) struct Room {
    account: Box<dyn Account>,
    bytes: usize,
}

impl Room {
    /// Ensures that at least `bytes` in total are reserved.
    pub fn hold(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.bytes {
            self.account.try_resize(bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Releases the bytes above `bytes`.
    pub fn keep(&mut self, bytes: usize) {
        // A reservation may always shrink.
        if bytes < self.bytes && self.account.try_resize(bytes).is_ok() {
            self.bytes = bytes;
        }
    }
}

/// Memory of a structure after it has grown, and extra memory while it grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    after: usize,
    beside: usize,
}

impl Growth {
    /// Returns the growth of a structure that does not grow.
    pub fn none(bytes: usize) -> Self {
        Self { after: bytes, beside: 0 }
    }

    /// Returns a growth to `after` bytes that copies from `beside` bytes.
    pub fn new(after: usize, beside: usize) -> Self {
        Self { after, beside }
    }

    /// Returns the growth of a vector to which `more` entries are added, at once or one by one.
    pub fn of_vec<T>(vec: &Vec<T>, more: usize) -> Self {
        let (wanted, mut capacity) = (vec.len() + more, vec.capacity());
        if wanted <= capacity {
            return Self::none(capacity * size_of::<T>());
        }
        capacity = capacity.max(4);
        while capacity < wanted {
            capacity *= 2;
        }
        Self { after: capacity * size_of::<T>(), beside: capacity / 2 * size_of::<T>() }
    }

    /// Returns the growth of two structures that grow one after the other.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { after: self.after + other.after, beside: self.beside.max(other.beside) }
    }

    /// Returns the peak of the memory, as an upper bound.
    pub fn bytes(self) -> usize {
        self.after + self.beside
    }
}

/// A fixed budget. Each account that can spill has an even share of the bytes left by those that
/// cannot.
#[derive(Debug)]
struct Fixed {
    fair: Arc<Mutex<Fair>>,
    limit: usize,
    volume: Option<Arc<dyn Volume>>,
    ledger: Arc<Ledger>,
    files: AtomicU64,
}

#[derive(Debug, Default)]
struct Fair {
    limit: usize,
    kept: usize,
    spillable: usize,
    spillers: usize,
}

#[derive(Debug)]
struct FixedAccount {
    fair: Arc<Mutex<Fair>>,
    what: &'static str,
    holder: Holder,
    held: Mutex<usize>,
}

impl Resources for Fixed {
    fn limit(&self) -> usize {
        self.limit
    }

    fn account(&self, what: &'static str, holder: Holder) -> Box<dyn Account> {
        let mut fair = self.fair.lock().unwrap_or_else(PoisonError::into_inner);
        fair.spillers += usize::from(holder == Holder::Spills);
        Box::new(FixedAccount { fair: Arc::clone(&self.fair), what, holder, held: Mutex::new(0) })
    }

    fn file(&self) -> Result<Option<Arc<dyn WriteAt>>> {
        let Some(volume) = &self.volume else { return Ok(None) };
        let failed = |source| Error::Spill { directory: volume.name().into(), source };
        let name = format!("spill-{}", self.files.fetch_add(1, Relaxed));
        let file = volume.create(&name).map_err(failed)?;
        // The file has no name left, so it disappears with its last handle.
        volume.remove(&name).map_err(failed)?;
        Ok(Some(file))
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl Account for FixedAccount {
    fn try_resize(&self, bytes: usize) -> Result<()> {
        let mut fair = self.fair.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (available, taken) = match self.holder {
            Holder::Spills => (fair.limit.saturating_sub(fair.kept) / fair.spillers.max(1), bytes),
            Holder::Keeps => (fair.limit.saturating_sub(fair.kept + fair.spillable), bytes.saturating_sub(*held)),
        };
        if bytes > *held && taken > available {
            return Err(Error::Memory { what: self.what.into(), needed: bytes, available });
        }
        let sum = match self.holder {
            Holder::Spills => &mut fair.spillable,
            Holder::Keeps => &mut fair.kept,
        };
        *sum = *sum + bytes - *held;
        *held = bytes;
        Ok(())
    }
}

impl Drop for FixedAccount {
    fn drop(&mut self) {
        // A smaller reservation is never refused.
        let _ = self.try_resize(0);
        if self.holder == Holder::Spills {
            self.fair.lock().unwrap_or_else(PoisonError::into_inner).spillers -= 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn those_who_spill_share_what_the_others_leave() {
        let budget = Budget::from(100);
        let (mut keeps, mut one) = (budget.room("things", Holder::Keeps), budget.room("things", Holder::Spills));
        keeps.hold(40).unwrap();
        one.hold(60).unwrap();
        assert!(keeps.hold(41).is_err());
        let mut other = budget.room("things", Holder::Spills);
        assert!(other.hold(31).is_err());
        other.hold(30).unwrap();
        // An earlier reservation may be kept.
        one.hold(60).unwrap();
        one.keep(10);
        assert!(one.hold(31).is_err());
        drop(other);
        one.hold(60).unwrap();
        drop(one);
        keeps.hold(100).unwrap();
    }

    #[test]
    fn what_grows_is_there_twice() {
        let mut vec: Vec<u64> = Vec::with_capacity(8);
        vec.resize(6, 0);
        assert_eq!(Growth::of_vec(&vec, 2), Growth::none(64));
        assert_eq!(Growth::of_vec(&vec, 3).bytes(), 128 + 64);
        assert_eq!(Growth::of_vec(&vec, 11).bytes(), 256 + 128);
    }
}
