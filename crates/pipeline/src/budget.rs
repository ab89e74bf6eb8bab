//! Memory that pipelines take, asked for before it is taken, and where they put what does not fit.
//!
//! Everything that grows with rows has an [`Account`]. One that is refused more puts what it has into files, if it can,
//! and goes on with what it holds; nothing is taken first and told afterwards. A vector that grows is in memory twice
//! while it is copied, and counts twice.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use onehop_io::{Ledger, Volume, WriteAt};

use crate::{Error, Result};

/// What somebody holds of a budget; given back when it is dropped. All methods may be called from many threads.
pub trait Account: Send + Sync + Debug {
    /// Makes it so many bytes in all.
    ///
    /// # Errors
    /// [`Error::Memory`] if there are not so many; what is held stays as it is.
    fn try_resize(&self, bytes: usize) -> Result<()>;
}

/// Whether who has an account can do with what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// It puts things into files, and has its share of the budget.
    Spills,
    /// It takes what there is, or fails.
    Keeps,
}

/// Where memory and temporary files come from. All methods may be called from many threads.
pub trait Resources: Send + Sync + Debug {
    /// Bytes of all accounts.
    fn limit(&self) -> usize;

    /// A new account for something, of nothing so far.
    fn account(&self, what: &'static str, holder: Holder) -> Box<dyn Account>;

    /// An empty file that is gone when it is dropped, or when the process is; `None` if there is no place for files.
    ///
    /// # Errors
    /// [`Error::Spill`].
    fn file(&self) -> Result<Option<Arc<dyn WriteAt>>>;

    /// Counts what the files move.
    fn ledger(&self) -> &Ledger;
}

/// A budget, shared by all who draw on it.
#[derive(Clone, Debug)]
pub struct Budget(pub Arc<dyn Resources>);

impl Budget {
    /// So many bytes, and a directory for what does not fit.
    pub fn with_volume(bytes: usize, volume: Arc<dyn Volume>, ledger: Arc<Ledger>) -> Self {
        let fair = Arc::new(Mutex::new(Fair { limit: bytes, ..Fair::default() }));
        Self(Arc::new(Fixed { fair, limit: bytes, volume: Some(volume), ledger, files: AtomicU64::new(0) }))
    }

    /// Room for somebody's things, none of it taken so far.
    pub(crate) fn room(&self, what: &'static str, holder: Holder) -> Room {
        Room { account: self.0.account(what, holder), bytes: 0 }
    }
}

impl From<usize> for Budget {
    /// So many bytes, and no place for what does not fit.
    fn from(bytes: usize) -> Self {
        let fair = Arc::new(Mutex::new(Fair { limit: bytes, ..Fair::default() }));
        Self(Arc::new(Fixed { fair, limit: bytes, volume: None, ledger: Arc::default(), files: AtomicU64::new(0) }))
    }
}

/// What one holds, and has asked for.
#[derive(Debug)]
pub(crate) struct Room {
    account: Box<dyn Account>,
    bytes: usize,
}

impl Room {
    /// Makes sure of so many bytes in all.
    pub fn hold(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.bytes {
            self.account.try_resize(bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Gives back what is more than so many bytes.
    pub fn keep(&mut self, bytes: usize) {
        // What was held may always be less.
        if bytes < self.bytes && self.account.try_resize(bytes).is_ok() {
            self.bytes = bytes;
        }
    }
}

/// What something takes when it has grown, and beside that while it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    after: usize,
    beside: usize,
}

impl Growth {
    /// Of what does not grow.
    pub fn none(bytes: usize) -> Self {
        Self { after: bytes, beside: 0 }
    }

    /// To `after` bytes, made of the last `beside`.
    pub fn new(after: usize, beside: usize) -> Self {
        Self { after, beside }
    }

    /// Of a vector that `more` entries are added to, in one go or one by one.
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

    /// Of both, one after the other.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { after: self.after + other.after, beside: self.beside.max(other.beside) }
    }

    /// At most.
    pub fn bytes(self) -> usize {
        self.after + self.beside
    }
}

/// A budget of its own. Those who can spill have an even share each of what the others leave.
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
        // Without a name, it is gone with its last handle.
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
        // Less is never refused.
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
        // What was held before may be kept.
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
