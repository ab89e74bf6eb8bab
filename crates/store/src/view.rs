//! The readable parts of both kinds of transactions: trees, and ranges of them.

use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Result;
use crate::backend::{Image, PageNo};
use crate::pages::{Snapshot, Source, Transaction};
use crate::store::Inner;
use crate::tree::{self, Cursor, Entry, Value};

/// A snapshot, and its store, which stays open while a reader exists.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) snapshot: Snapshot,
    pub(crate) _store: Arc<Inner>,
}

/// The source of pages.
#[derive(Clone, Debug)]
pub(crate) enum View<'tx> {
    Snapshot(Arc<Reading>),
    Open(&'tx Mutex<Transaction>),
}

pub(crate) fn lock(transaction: &Mutex<Transaction>) -> MutexGuard<'_, Transaction> {
    transaction.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source for View<'_> {
    fn page(&mut self, page: PageNo) -> Result<Arc<Image>> {
        match self {
            Self::Snapshot(reading) => (&reading.snapshot).page(page),
            Self::Open(transaction) => lock(transaction).page(page),
        }
    }

    fn stamp(&self) -> u64 {
        match self {
            Self::Snapshot(_) => 0,
            Self::Open(transaction) => lock(transaction).stamp(),
        }
    }
}

/// An ordered map of byte strings, to read.
///
/// A tree of a [`ReadTransaction`](crate::ReadTransaction) is a snapshot: it owns what it needs and
/// may outlive the transaction. A tree of a [`WriteTransaction`](crate::WriteTransaction) sees the
/// transaction's changes so far.
#[derive(Clone, Debug)]
pub struct Tree<'tx> {
    pub(crate) view: View<'tx>,
    /// The root page, or `None` if the tree does not exist yet. Such a tree reads as empty.
    pub(crate) root: Option<PageNo>,
}

impl<'tx> Tree<'tx> {
    /// Returns the value of `key`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let Some(root) = self.root else { return Ok(None) };
        match &self.view {
            View::Snapshot(reading) => tree::get(&mut &reading.snapshot, root, key.as_ref()),
            View::Open(transaction) => tree::get(&mut *lock(transaction), root, key.as_ref()),
        }
    }

    /// Returns true if there is a value at `key`.
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// Returns all entries, in the order of their keys.
    pub fn iter(&self) -> Range<'tx> {
        self.bounded(Bound::Unbounded, Bound::Unbounded)
    }

    /// Returns the entries whose keys are in `keys`, in the order of their keys. `rev()` reverses
    /// the direction.
    ///
    /// ```
    /// # fn main() -> onehop_store::Result<()> {
    /// let store = onehop_store::Store::memory()?;
    /// let transaction = store.write()?;
    /// let mut tree = transaction.tree("fruit")?;
    /// for name in ["apple", "banana", "cherry", "date"] {
    ///     tree.insert(name, "")?;
    /// }
    /// let found: Vec<_> = tree.range("b".."d").collect::<Result<_, _>>()?;
    /// assert_eq!(found.iter().map(|entry| entry.key()).collect::<Vec<_>>(), [b"banana", b"cherry"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>) -> Range<'tx> {
        let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        self.bounded(owned(keys.start_bound()), owned(keys.end_bound()))
    }

    /// Returns the entries whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range<'tx> {
        let lower = prefix.as_ref().to_vec();
        // The upper bound is the first key after all of them: the prefix without its trailing 0xff
        // bytes, its last byte incremented.
        let mut upper = lower.clone();
        while upper.pop_if(|last| *last == u8::MAX).is_some() {}
        let upper = match upper.last_mut() {
            None => Bound::Unbounded,
            Some(last) => {
                *last += 1;
                Bound::Excluded(upper)
            }
        };
        self.bounded(Bound::Included(lower), upper)
    }

    fn bounded(&self, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Range<'tx> {
        Range { cursor: self.root.map(|root| Cursor::new(self.view.clone(), root, lower, upper)) }
    }

    /// Returns the entry with the least key.
    pub fn first(&self) -> Result<Option<Entry>> {
        self.iter().next().transpose()
    }

    /// Returns the entry with the greatest key.
    pub fn last(&self) -> Result<Option<Entry>> {
        self.iter().next_back().transpose()
    }

    /// Returns the number of entries. Reads every page of the tree: a stored count would cost one
    /// page per commit.
    pub fn len(&self) -> Result<u64> {
        match self.root {
            None => Ok(0),
            Some(root) => tree::count(&mut self.view.clone(), root),
        }
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.first()?.is_none())
    }
}

/// Entries in the order of their keys, from both ends.
///
/// The iterator returns an [`Entry`] that keeps its page alive. [`next_ref`](Self::next_ref) lends
/// the entry, and is several times faster. After an error the range has ended.
#[derive(Clone, Debug)]
pub struct Range<'tx> {
    cursor: Option<Cursor<View<'tx>>>,
}

impl Range<'_> {
    /// Returns the next key and value, valid until the next call.
    ///
    /// ```
    /// # fn sum(tree: &onehop_store::Tree<'_>) -> onehop_store::Result<usize> {
    /// let (mut entries, mut bytes) = (tree.iter(), 0);
    /// while let Some((key, value)) = entries.next_ref()? {
    ///     bytes += key.len() + value.len();
    /// }
    /// # Ok(bytes)
    /// # }
    /// ```
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        match &mut self.cursor {
            None => Ok(None),
            Some(cursor) => cursor.lend(),
        }
    }
}

impl Iterator for Range<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.cursor.as_mut()?.next().transpose()
    }
}

impl DoubleEndedIterator for Range<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.cursor.as_mut()?.next_back().transpose()
    }
}
