//! Write transactions, one at a time.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use crate::Result;
use crate::backend::PageNo;
use crate::pages::{Durability, Handed, Savepoint, Transaction, Turn};
use crate::read::names;
use crate::store::Inner;
use crate::tree::{self, CATALOG};
use crate::view::{Tree, View, lock};

/// Changes to any trees, which become durable together or not at all. A transaction dropped without
/// [`commit`](Self::commit) has changed nothing.
///
/// There is one at a time. A thread that has one and requests another deadlocks. After a failed
/// change (the medium is full, or damaged) the transaction can only be aborted, or rolled back to a
/// savepoint.
#[derive(Debug)]
pub struct WriteTransaction {
    transaction: Mutex<Transaction>,
    /// Keeps the file locked.
    store: Arc<Inner>,
}

/// A committed transaction that may not be durable yet. If this value is dropped, the transaction
/// becomes durable with the next group commit.
#[derive(Debug)]
#[must_use = "a transaction is durable when it has been waited for"]
pub struct Pending {
    handed: Handed,
    /// Keeps the file locked.
    _store: Arc<Inner>,
}

/// The cost of making a transaction durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// The transaction's share of the bytes that its group commit wrote to the medium.
    pub written_bytes: u64,
}

impl Pending {
    /// Waits until the transaction is durable, together with concurrent commits.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full): nothing was changed. After any other error the durable
    /// state is known only after the store is opened again.
    pub fn wait(mut self) -> Result<Committed> {
        self.handed.wait().map(|written_bytes| Committed { written_bytes })
    }

    /// Ready when [`wait`](Self::wait) waits for no other thread. Then the outcome is known, or the
    /// caller is to make the transaction durable, with all that other threads have handed over.
    /// None of them becomes durable before the caller does so: call `wait` soon, on a thread that
    /// may block on storage. A dropped `Pending` leaves the work to another thread.
    ///
    /// ```
    /// # fn main() -> onehop_store::Result<()> {
    /// let store = onehop_store::Store::memory()?;
    /// let transaction = store.write()?;
    /// transaction.tree("fruit")?.insert("apple", "red")?;
    /// let mut pending = transaction.commit_later()?;
    /// futures::executor::block_on(std::future::poll_fn(|context| pending.poll_turn(context)));
    /// pending.wait()?; // durable
    /// # Ok(())
    /// # }
    /// ```
    pub fn poll_turn(&mut self, context: &Context<'_>) -> Poll<Turn> {
        self.handed.poll_turn(context)
    }
}

impl WriteTransaction {
    pub(crate) fn new(transaction: Transaction, store: &Arc<Inner>) -> Self {
        Self { transaction: Mutex::new(transaction), store: Arc::clone(store) }
    }

    fn tree_at(&self, root: PageNo) -> TreeMut<'_> {
        TreeMut {
            tree: Tree { view: View::Open(&self.transaction), root: Some(root) },
            transaction: &self.transaction,
            root,
        }
    }

    fn catalog(&self) -> Tree<'_> {
        Tree { view: View::Open(&self.transaction), root: Some(CATALOG) }
    }

    /// Returns the tree of that name. Creates it if it does not exist.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the name has more than
    /// [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
    pub fn tree(&self, name: impl AsRef<str>) -> Result<TreeMut<'_>> {
        let name = name.as_ref();
        if let Some(tree) = self.open_tree(name)? {
            return Ok(tree);
        }
        let root = lock(&self.transaction).change(|transaction| {
            tree::check_key(name.as_bytes())?;
            let root = tree::create(transaction)?;
            tree::insert(transaction, CATALOG, name.as_bytes(), &tree::encode_root(root))?;
            Ok(root)
        })?;
        Ok(self.tree_at(root))
    }

    /// Returns the tree of that name, if it exists.
    pub fn open_tree(&self, name: impl AsRef<str>) -> Result<Option<TreeMut<'_>>> {
        let name = name.as_ref().as_bytes();
        match self.catalog().get(name)? {
            None => Ok(None),
            Some(value) => Ok(Some(self.tree_at(tree::decode_root(name, &value)?))),
        }
    }

    /// Drops the tree of that name with all its entries. Returns true if it existed.
    pub fn drop_tree(&mut self, name: impl AsRef<str>) -> Result<bool> {
        let name = name.as_ref().as_bytes();
        let Some(value) = self.catalog().get(name)? else { return Ok(false) };
        let root = tree::decode_root(name, &value)?;
        lock(&self.transaction).change(|transaction| {
            tree::free_tree(transaction, root)?;
            tree::remove(transaction, CATALOG, name)
        })
    }

    /// Returns the number of times that ordered commits were rolled back for lack of space, from
    /// the opening of the store to the start of this transaction. If the number differs from that
    /// of the previous transaction, this transaction does not include all commits ordered since. A
    /// caller that caches their contents must read them again.
    pub fn epoch(&self) -> u64 {
        lock(&self.transaction).epoch()
    }

    /// Lets this transaction use the space that the store reserves for transactions that free some:
    /// it must remove more than it adds. On a full medium it commits where others fail, if it
    /// changes few pages: about 20, or a hundredth of a large store.
    ///
    /// ```
    /// # fn main() -> onehop_store::Result<()> {
    /// let store = onehop_store::Store::memory()?;
    /// # let transaction = store.write()?;
    /// # transaction.tree("log")?.insert("a", "b")?;
    /// # transaction.commit()?;
    /// let mut transaction = store.write()?;
    /// transaction.use_reserve();
    /// transaction.drop_tree("log")?;
    /// transaction.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn use_reserve(&mut self) {
        lock(&self.transaction).use_reserve();
    }

    /// Returns the names of all trees, in order.
    pub fn trees(&self) -> Result<Vec<String>> {
        names(&self.catalog())
    }

    /// Returns a savepoint for [`rollback_to`](Self::rollback_to). Savepoints nest.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if a change has stopped half-way.
    pub fn savepoint(&mut self) -> Result<Savepoint> {
        lock(&self.transaction).savepoint()
    }

    /// Undoes all changes since `savepoint`, which stays valid. Later savepoints are discarded.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if it does not belong to this transaction, or was
    /// discarded.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        lock(&self.transaction).roll_back_to(savepoint)
    }

    /// Discards `savepoint` and later ones. The changes since then stay.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if it does not belong to this transaction, or was
    /// discarded.
    pub fn release(&mut self, savepoint: Savepoint) -> Result<()> {
        lock(&self.transaction).release(savepoint)
    }

    /// Makes all changes durable, together with those of other threads that commit at the same
    /// time.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full): nothing was changed. After any other error the durable
    /// state is known only after the store is opened again.
    pub fn commit(self) -> Result<()> {
        self.commit_with(Durability::Now)
    }

    /// Commits as [`commit`](Self::commit) does, durable now or later.
    pub fn commit_with(self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Now => {
                // The store stays open until the commit returns.
                let (transaction, _store) = self.into_parts();
                transaction.commit()
            }
            Durability::Later => self.commit_later().map(drop),
        }
    }

    /// Orders all changes, so that the next transaction continues from there. The returned
    /// [`Pending`] makes them durable, with those of other threads, while this thread does other
    /// work.
    ///
    /// ```
    /// # fn main() -> onehop_store::Result<()> {
    /// let store = onehop_store::Store::memory()?;
    /// let transaction = store.write()?;
    /// transaction.tree("fruit")?.insert("apple", "red")?;
    /// let pending = transaction.commit_later()?;
    /// // Here the next transaction may begin, on this thread or another.
    /// pending.wait()?; // durable
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`commit`](Self::commit). A transaction too large to be kept in memory is durable on
    /// return.
    pub fn commit_later(self) -> Result<Pending> {
        let (transaction, store) = self.into_parts();
        Ok(Pending { handed: transaction.commit_later()?, _store: store })
    }

    fn into_parts(self) -> (Transaction, Arc<Inner>) {
        (self.transaction.into_inner().unwrap_or_else(PoisonError::into_inner), self.store)
    }

    /// Changes nothing, as dropping the transaction does.
    pub fn abort(self) {}
}

/// An ordered map of byte strings, to change. [`Tree`] has the reading methods.
#[derive(Debug)]
pub struct TreeMut<'tx> {
    tree: Tree<'tx>,
    transaction: &'tx Mutex<Transaction>,
    root: PageNo,
}

impl TreeMut<'_> {
    /// Puts `value` at `key`. Returns true if there was a value before.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the key has more than
    /// [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
    pub fn insert(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        lock(self.transaction).change(|transaction| tree::insert(transaction, self.root, key, value))
    }

    /// Removes `key`. Returns true if it was there.
    pub fn remove(&mut self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        lock(self.transaction).change(|transaction| tree::remove(transaction, self.root, key))
    }

    /// Removes all entries.
    pub fn clear(&mut self) -> Result<()> {
        lock(self.transaction).change(|transaction| tree::clear(transaction, self.root))
    }
}

impl<'tx> Deref for TreeMut<'tx> {
    type Target = Tree<'tx>;

    fn deref(&self) -> &Tree<'tx> {
        &self.tree
    }
}
