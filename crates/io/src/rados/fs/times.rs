//! When something was last changed, as somebody says who knows better: a copy that is to be as old as what it is of.

use super::super::{Problem, Result};
use super::FileSystem;
use super::directory::Settled;
use super::path::Path;
use super::record::{Dentry, Record, name_key};

const OPERATION: &str = "set the time of";

impl FileSystem {
    /// Sets the modification time of a file or a directory, in milliseconds since 1970. The root has none.
    pub fn set_modified(&self, path: &str, mtime_ms: u64) -> Result<()> {
        let path = Path::parse(OPERATION, path)?;
        let (parents, name) = path.split(OPERATION)?;
        let parent = self.walk(OPERATION, &path, parents)?;
        let mut retry = self.retry(OPERATION, &path);
        let key = name_key(name);
        loop {
            let look = self.look_live(parent, vec![key.clone()], &mut retry)?;
            let Some(dentry) = look.dentry(name)? else { return Err(retry.error(Problem::NotFound)) };
            let raw = look.raw(&key).unwrap_or_default();
            if dentry.tag.is_some() {
                if let Settled::Wait(holder) = self.settle(parent, name, &raw, &dentry)? {
                    retry.wait(holder)?;
                }
                continue;
            }
            let changed = Dentry { stamp: self.new_id()?, mtime_ms, ..dentry };
            if self.swap(OPERATION, parent, &key, &raw, Some(&changed.encode()))? {
                return Ok(());
            }
            retry.again()?;
        }
    }
}
