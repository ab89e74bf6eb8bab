//! A directory that appears with all its files, or not at all.
//!
//! 1. The directory's object, under an intent of the directory that it is to be in. It has no name, so nobody finds it; the
//!    collector does, by the intent.
//! 2. Files are written into it as into any other: each has a name there once it is whole.
//! 3. [`TreeWriter::close`] gives it its name: one operation, which takes the intent away.
//!
//! A client that dies before step 3 leaves an intent. When its lease is over the directory is condemned, and collected with
//! whatever is in it, as one that was removed. The intent is not renewed: who needs longer than the lease is told so.

use std::sync::Arc;

use super::super::{Problem, Result, WriteOp};
use super::directory::{Made, NewDirectory, object_of};
use super::path::Path;
use super::record::{INTENTS, Node, id_key};
use super::write::{Replace, Writer};
use super::{FileSystem, Id, Retry};
use crate::Ledger;

const OPERATION: &str = "make directory";

/// A directory that is being filled. Nothing of it is visible before [`Self::close`] has succeeded.
#[derive(Debug)]
pub struct TreeWriter {
    fs: FileSystem,
    path: String,
    parent: Id,
    name: String,
    new: NewDirectory,
}

impl FileSystem {
    /// Begins a directory, in one that is there. Whether its name is taken is seen when it is closed.
    pub fn create_tree(&self, path: &str) -> Result<TreeWriter> {
        let parsed = Path::parse(OPERATION, path)?;
        let (parents, name) = parsed.split(OPERATION)?;
        let parent = self.walk(OPERATION, &parsed, parents)?;
        let mut retry = self.retry(OPERATION, &parsed);
        let new = self.promise_directory(parent, None, &mut retry)?.ok_or_else(|| retry.error(Problem::Busy))?;
        let tree = TreeWriter { fs: self.clone(), path: path.into(), parent, name: name.into(), new };
        match tree.make_object(&mut retry) {
            Ok(()) => Ok(tree),
            Err(error) => {
                tree.abort();
                Err(error)
            }
        }
    }
}

impl TreeWriter {
    /// Makes the directory's object. What it will have is found by the intent, so that must be there after the object is.
    fn make_object(&self, retry: &mut Retry<'_>) -> Result<()> {
        let (fs, key) = (&self.fs, id_key(INTENTS, self.new.id));
        self.new.make(fs)?;
        let look = fs.look_live(self.parent, vec![key.clone()], retry)?;
        if look.raw(&key).as_deref() == Some(&self.new.intent) {
            return Ok(());
        }
        // Condemned, perhaps collected before the object was made.
        let _ = fs.inner.meta.write(&object_of(self.new.id), WriteOp::new("remove").remove());
        Err(retry.error(Problem::LeaseLost))
    }

    /// Begins a file in it.
    pub fn create_file(&self, name: &str, ledger: Arc<Ledger>) -> Result<Writer> {
        let path = format!("{}/{name}", self.path.trim_end_matches('/'));
        self.fs.create_file_in(self.new.id, &path, Replace::Never, ledger)
    }

    /// Gives the directory its name.
    ///
    /// # Errors
    /// If the name is taken, or it took longer than the lease: then nothing is visible, and the collector removes what was
    /// written; after [`Problem::OutcomeUnknown`] only looking tells.
    pub fn close(self) -> Result<()> {
        let path = Path::parse(OPERATION, &self.path)?;
        let mut retry = self.fs.retry(OPERATION, &path);
        match self.fs.link_directory(self.parent, &self.name, &self.new, true, &mut retry)? {
            Made::New(_) => Ok(()),
            Made::There(_) => Err(path.error(OPERATION, Problem::Exists)),
        }
    }

    /// Gives the directory up. The collector removes it after the grace time; or after the lease, if it cannot be told now.
    pub fn abort(self) {
        let Self { fs, parent, new, .. } = self;
        let _ = fs.condemn(parent, new.id, &new.intent, Node::Directory(new.id));
    }
}
