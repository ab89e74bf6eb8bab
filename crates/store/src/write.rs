//! Writing: one transaction at a time.

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

/// Changes to any trees, which become durable together or not at all. Dropped without [`commit`](Self::commit), it has changed
/// nothing.
///
/// There is one at a time: a thread that has one and asks for another waits for itself. After a change that failed (the medium
/// is full, or damaged) it can only be aborted, or rolled back to a savepoint.
#[derive(Debug)]
pub struct WriteTransaction {
    transaction: Mutex<Transaction>,
    /// Keeps the file locked.
    store: Arc<Inner>,
}

/// A transaction that was committed, and may not be durable yet. Dropped, it becomes durable with the next that is.
#[derive(Debug)]
#[must_use = "a transaction is durable when it has been waited for"]
pub struct Pending {
    handed: Handed,
    /// Keeps the file locked.
    _store: Arc<Inner>,
}

/// What it took to make a transaction durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// Its share of the bytes that were written to the medium for all that became durable with it.
    pub written_bytes: u64,
}

impl Pending {
    /// Waits until it is durable, together with what others commit meanwhile.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full) and nothing was changed; after any other, what is durable is found out by opening the
    /// store again.
    pub fn wait(mut self) -> Result<Committed> {
        self.handed.wait().map(|written_bytes| Committed { written_bytes })
    }

    /// Ready when [`wait`](Self::wait) waits for no other thread: what has become of the transaction is known, or it is for the
    /// caller to make it durable, with all that others have handed over. Until then none of them becomes durable, so that it is to
    /// be done soon, on a thread that may wait for storage; a `Pending` that is dropped leaves it to another.
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

    /// The tree of that name; makes it if there is none.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the name has more than [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
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

    /// The tree of that name, if there is one.
    pub fn open_tree(&self, name: impl AsRef<str>) -> Result<Option<TreeMut<'_>>> {
        let name = name.as_ref().as_bytes();
        match self.catalog().get(name)? {
            None => Ok(None),
            Some(value) => Ok(Some(self.tree_at(tree::decode_root(name, &value)?))),
        }
    }

    /// Drops the tree of that name with all that is in it; returns whether there was one.
    pub fn drop_tree(&mut self, name: impl AsRef<str>) -> Result<bool> {
        let name = name.as_ref().as_bytes();
        let Some(value) = self.catalog().get(name)? else { return Ok(false) };
        let root = tree::decode_root(name, &value)?;
        lock(&self.transaction).change(|transaction| {
            tree::free_tree(transaction, root)?;
            tree::remove(transaction, CATALOG, name)
        })
    }

    /// How often commits that were in order had been taken back for lack of room when this transaction began, since the store was
    /// opened. If that is not what it was for the transaction before, this one does not stand on all that was put in order
    /// since: whoever knows what it was by heart has to read it again.
    pub fn epoch(&self) -> u64 {
        lock(&self.transaction).epoch()
    }

    /// Lets this transaction have the room that a store keeps for those that make some: it takes out more than it puts in. On a
    /// medium without room it commits where others fail, if it changes few pages: some 20, or a hundredth of a large store.
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

    /// The names of all trees, in order.
    pub fn trees(&self) -> Result<Vec<String>> {
        names(&self.catalog())
    }

    /// A point that [`rollback_to`](Self::rollback_to) goes back to. They nest.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if a change has stopped half-way.
    pub fn savepoint(&mut self) -> Result<Savepoint> {
        lock(&self.transaction).savepoint()
    }

    /// Undoes all that was done since `savepoint`, which can be gone back to again; later ones are forgotten.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if it is not one of this transaction's, or was forgotten.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        lock(&self.transaction).roll_back_to(savepoint)
    }

    /// Forgets `savepoint` and later ones; what was done since stays.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if it is not one of this transaction's, or was forgotten.
    pub fn release(&mut self, savepoint: Savepoint) -> Result<()> {
        lock(&self.transaction).release(savepoint)
    }

    /// Makes all changes durable, together with those of other threads that commit at the same time.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full) and nothing was changed; after any other, what is durable is found out by opening the
    /// store again.
    pub fn commit(self) -> Result<()> {
        self.commit_with(Durability::Now)
    }

    /// As [`commit`](Self::commit), durable now or later.
    pub fn commit_with(self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Now => {
                // The store stays open until this is over.
                let (transaction, _store) = self.into_parts();
                transaction.commit()
            }
            Durability::Later => self.commit_later().map(drop),
        }
    }

    /// Puts all changes in order, so that the next transaction goes on from there, and leaves it to the [`Pending`] that is returned
    /// to make them durable: with those of others, while this thread does something else.
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
    /// As [`commit`](Self::commit). A transaction too large to be kept in memory is durable on return.
    pub fn commit_later(self) -> Result<Pending> {
        let (transaction, store) = self.into_parts();
        Ok(Pending { handed: transaction.commit_later()?, _store: store })
    }

    fn into_parts(self) -> (Transaction, Arc<Inner>) {
        (self.transaction.into_inner().unwrap_or_else(PoisonError::into_inner), self.store)
    }

    /// Changes nothing: the same as dropping it.
    pub fn abort(self) {}
}

/// An ordered map of byte strings, to change; [`Tree`] has what reads it.
#[derive(Debug)]
pub struct TreeMut<'tx> {
    tree: Tree<'tx>,
    transaction: &'tx Mutex<Transaction>,
    root: PageNo,
}

impl TreeMut<'_> {
    /// Puts `value` at `key`; returns whether there was a value before.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the key has more than [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
    pub fn insert(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        lock(self.transaction).change(|transaction| tree::insert(transaction, self.root, key, value))
    }

    /// Takes `key` out; returns whether it was there.
    pub fn remove(&mut self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        lock(self.transaction).change(|transaction| tree::remove(transaction, self.root, key))
    }

    /// Takes everything out.
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
