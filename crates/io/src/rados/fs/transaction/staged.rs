//! What a transaction would make visible if it were committed now: what its committer has to know, without having heard of
//! any file from anybody.

use std::collections::BTreeMap;

use super::super::super::Result;
use super::super::record::Node;
use super::super::side_by_side::side_by_side;
use super::Transaction;
use super::object::{WINNERS, Winner};

/// What the task attempts that count have written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Staged {
    /// Tasks of which an attempt is committed, and which one, in order of the tasks' names.
    pub tasks: Vec<(String, String)>,
    /// Directories in which there will be new files, by path, the root's being empty. Those that only have such directories
    /// below them are not here.
    pub directories: BTreeMap<String, StagedFiles>,
}

/// Files of one directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagedFiles {
    /// How many.
    pub files: u64,
    /// Of how many bytes in all.
    pub bytes: u64,
}

impl Transaction {
    /// What the task attempts that count have written. While others are being committed: some of these. It is not asked whether
    /// the transaction is still pending: the commit finds that out.
    ///
    /// # Errors
    /// If the transaction is forgotten, or nothing can be read.
    pub fn staged(&self) -> Result<Staged> {
        const OPERATION: &str = "look at the files of";
        self.look(OPERATION, Vec::new())?;
        let (mut staged, mut winners) = (Staged::default(), Vec::new());
        self.fs.each_record(self.id, WINNERS, |look, key, value| {
            let winner: Winner = look.decode(key, value)?;
            let task = String::from_utf8_lossy(key.get(WINNERS.len()..).unwrap_or_default()).into_owned();
            winners.push(winner.directory);
            staged.tasks.push((task, winner.attempt));
            Ok(())
        })?;
        let found = side_by_side(self.fs.inner.options.at_once, winners, |winner| self.fs.staged_files(winner));
        // They are gone if somebody has ended the transaction; else that is damage.
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.look(OPERATION, Vec::new()).and(Err(error)),
        };
        for file in found.into_iter().flat_map(|(files, _)| files) {
            let directory = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
            let counts = staged.directories.entry(directory.to_owned()).or_default();
            counts.files += 1;
            if let Node::File(node) = &file.node {
                counts.bytes += node.len();
            }
        }
        Ok(staged)
    }
}
