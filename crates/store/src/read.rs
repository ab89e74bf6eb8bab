//! Reading: a snapshot of all trees.

use std::sync::Arc;

use crate::Result;
use crate::store::Inner;
use crate::tree::{self, CATALOG};
use crate::view::{Reading, Tree, View};

/// All trees as of the last durable commit at its beginning. It waits for nobody and nobody waits for it; what it sees stays as it
/// is until it, and every [`Tree`] and [`Range`](crate::Range) of it, is dropped.
#[derive(Clone, Debug)]
pub struct ReadTransaction {
    reading: Arc<Reading>,
}

impl ReadTransaction {
    pub(crate) fn new(store: &Arc<Inner>) -> Self {
        Self { reading: Arc::new(Reading { snapshot: store.pages.read(), _store: Arc::clone(store) }) }
    }

    /// The tree of that name. One that nobody has made is empty.
    pub fn tree(&self, name: impl AsRef<[u8]>) -> Result<Tree<'static>> {
        let name = name.as_ref();
        let root = match tree::get(&mut &self.reading.snapshot, CATALOG, name)? {
            None => None,
            Some(value) => Some(tree::decode_root(name, &value)?),
        };
        Ok(Tree { view: View::Snapshot(Arc::clone(&self.reading)), root })
    }

    /// The tree of that name, if there is one.
    pub fn open_tree(&self, name: impl AsRef<[u8]>) -> Result<Option<Tree<'static>>> {
        let tree = self.tree(name)?;
        Ok(tree.root.is_some().then_some(tree))
    }

    /// The names of all trees, in order.
    pub fn trees(&self) -> Result<Vec<String>> {
        names(&Tree { view: View::Snapshot(Arc::clone(&self.reading)), root: Some(CATALOG) })
    }

    /// The number of the commit that it sees, counted from the opening of the store.
    pub fn commit(&self) -> u64 {
        self.reading.snapshot.commit()
    }
}

/// The keys of the tree of trees.
pub(crate) fn names(catalog: &Tree<'_>) -> Result<Vec<String>> {
    catalog.iter().map(|entry| Ok(String::from_utf8_lossy(entry?.key()).into_owned())).collect()
}
