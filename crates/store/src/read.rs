//! Read transactions: a snapshot of all trees.

use std::sync::Arc;

use crate::Result;
use crate::store::Inner;
use crate::tree::{self, CATALOG};
use crate::view::{Reading, Tree, View};

/// All trees as of the last commit that was durable at its start. Neither readers nor writers wait
/// for each other. The snapshot does not change until it, and every [`Tree`] and
/// [`Range`](crate::Range) of it, is dropped.
#[derive(Clone, Debug)]
pub struct ReadTransaction {
    reading: Arc<Reading>,
}

impl ReadTransaction {
    pub(crate) fn new(store: &Arc<Inner>) -> Self {
        Self { reading: Arc::new(Reading { snapshot: store.pages.read(), _store: Arc::clone(store) }) }
    }

    /// Returns the tree of that name. A tree that does not exist is empty.
    pub fn tree(&self, name: impl AsRef<[u8]>) -> Result<Tree<'static>> {
        let name = name.as_ref();
        let root = match tree::get(&mut &self.reading.snapshot, CATALOG, name)? {
            None => None,
            Some(value) => Some(tree::decode_root(name, &value)?),
        };
        Ok(Tree { view: View::Snapshot(Arc::clone(&self.reading)), root })
    }

    /// Returns the tree of that name, if it exists.
    pub fn open_tree(&self, name: impl AsRef<[u8]>) -> Result<Option<Tree<'static>>> {
        let tree = self.tree(name)?;
        Ok(tree.root.is_some().then_some(tree))
    }

    /// Returns the names of all trees, in order.
    pub fn trees(&self) -> Result<Vec<String>> {
        names(&Tree { view: View::Snapshot(Arc::clone(&self.reading)), root: Some(CATALOG) })
    }

    /// Returns the number of the commit that the snapshot sees, counted from the opening of the
    /// store.
    pub fn commit(&self) -> u64 {
        self.reading.snapshot.commit()
    }
}

/// Returns the keys of the tree of trees.
pub(crate) fn names(catalog: &Tree<'_>) -> Result<Vec<String>> {
    catalog.iter().map(|entry| Ok(String::from_utf8_lossy(entry?.key()).into_owned())).collect()
}
