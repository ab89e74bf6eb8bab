//! One file of several of a directory, at one moment, without a copy.
//!
//! A file is a list of runs of chunks, and a chunk belongs to one file. So the first file's list gets those of the others, in
//! order, and their names go: one operation on the directory's object, which compares the bytes of every name that it changes.
//! No file that was there before is garbage: all its chunks are the new one's. Who has one of them open reads on.
//!
//! The file has an identity of its own, as every file has: it is not what any of them was.

use super::super::{Problem, Result};
use super::directory::{Outcome, Settled, object_of};
use super::path::Path;
use super::record::{Dentry, FileNode, Node, Record, name_key};
use super::{Entry, FileSystem};

const OPERATION: &str = "concatenate";

impl FileSystem {
    /// Appends files to the first one, which keeps its name; those of the others go. All are in one directory, by their
    /// last names. One that is named twice is not there the second time.
    pub fn concat(&self, directory: &str, names: &[&str]) -> Result<Entry> {
        let path = Path::parse(OPERATION, directory)?;
        let id = self.walk(OPERATION, &path, &path.names)?;
        let mut retry = self.retry(OPERATION, &path);
        let not_found = |name: &str| in_directory(&path, name).error(Problem::NotFound);
        let Some((target, sources)) = names.split_first() else { return Err(not_found("")) };
        if let Some(twice) = (1..names.len()).find(|&at| names[..at].contains(&names[at])) {
            return Err(not_found(names[twice]));
        }
        let keys: Vec<Vec<u8>> = names.iter().map(|name| name_key(name)).collect();
        let (stamp, file_id) = (self.new_id()?, self.new_id()?);
        let mut asked = false;
        'again: loop {
            let look = self.look_live(id, keys.clone(), &mut retry)?;
            if let Some(done) = look.dentry(target)?.filter(|there| there.stamp == stamp) {
                return Ok(Entry::of(target, &done));
            }
            let mut extents = Vec::new();
            let mut op = self.in_live(OPERATION);
            for (name, key) in names.iter().zip(&keys) {
                let Some(dentry) = look.dentry(name)? else {
                    return Err(if asked { retry.error(Problem::OutcomeUnknown) } else { not_found(name) });
                };
                let raw = look.raw(key).unwrap_or_default();
                if dentry.tag.is_some() {
                    if let Settled::Wait(holder) = self.settle(id, name, &raw, &dentry)? {
                        retry.wait(holder)?;
                    }
                    continue 'again;
                }
                let Node::File(file) = dentry.node else {
                    return Err(in_directory(&path, name).error(Problem::IsADirectory));
                };
                extents.extend(file.extents);
                op = op.entry_is(key.clone(), Some(raw));
            }
            let node = Node::File(FileNode { id: file_id, extents });
            let dentry = Dentry { stamp, mtime_ms: self.now_ms(), node, tag: None };
            op = sources.iter().fold(op, |op, name| op.remove_entry(name_key(name)));
            op = op.set_entry(name_key(target), dentry.encode());
            match self.attempt(&object_of(id), op)? {
                Outcome::Done => return Ok(Entry::of(target, &dentry)),
                Outcome::Conflict => retry.again()?,
                Outcome::Unknown(_) if asked => return Err(retry.error(Problem::OutcomeUnknown)),
                Outcome::Unknown(_) => asked = true,
            }
        }
    }
}

/// A name in a directory, for messages.
struct InDirectory(String);

fn in_directory(path: &Path<'_>, name: &str) -> InDirectory {
    InDirectory(format!("{}/{name}", path.whole.trim_end_matches('/')))
}

impl InDirectory {
    fn error(self, problem: Problem) -> super::super::Error {
        super::super::Error::Path { operation: OPERATION, path: self.0, problem }
    }
}
