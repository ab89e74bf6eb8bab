//! A recorded volume, as another process sees it that reads while the recorded one goes on.
//!
//! Time goes on between any two calls: by a number of operations that a seed decides. So a reader that takes a file for one thing
//! and finds another a moment later does it here.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use super::{CrashPoint, not_found};
use crate::faulty::mix;
use crate::{Error, IoHints, Ledger, MemoryFile, Operation, ReadAt, Result, Volume, WriteAt};

/// A recorded volume that goes on while it is read. Nothing can be changed in it.
#[derive(Clone, Debug)]
pub struct Replay {
    recorded: Arc<Recorded>,
    prefix: String,
}

#[derive(Debug)]
struct Recorded {
    points: Vec<CrashPoint>,
    now: AtomicUsize,
    calls: AtomicU64,
    seed: u64,
    /// Time goes on at one call in so many.
    pace: u64,
}

impl Replay {
    /// What was recorded in `points`, from the one at `first` on. At one call in `pace` time goes on.
    pub fn new(points: Vec<CrashPoint>, first: usize, seed: u64, pace: u64) -> Self {
        let recorded = Recorded { points, now: first.into(), calls: AtomicU64::new(0), seed, pace: pace.max(1) };
        Self { recorded: Arc::new(recorded), prefix: String::new() }
    }

    /// The place, among what was recorded, that time has come to.
    pub fn now(&self) -> usize {
        self.recorded.now.load(SeqCst)
    }

    /// The contents at the next call.
    fn next(&self) -> &CrashPoint {
        let Recorded { points, now, calls, seed, pace } = &*self.recorded;
        let dice = mix(seed ^ calls.fetch_add(1, SeqCst));
        let before = now.load(SeqCst);
        let place = match dice.is_multiple_of(*pace) {
            true => (before + 1 + (dice >> 32) as usize % 4).min(points.len() - 1),
            false => before,
        };
        now.store(place, SeqCst);
        &points[place]
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn opened(&self, name: &str) -> Result<Arc<ReplayFile>> {
        let name = self.full(name);
        match self.next().contents.find(&name) {
            Some(inode) => Ok(Arc::new(ReplayFile { replay: self.clone(), inode, name })),
            None => Err(not_found(Operation::Open, name)),
        }
    }

    fn refused<T>(operation: Operation, name: &str) -> Result<T> {
        Err(Error::new(operation, name, io::Error::from(io::ErrorKind::ReadOnlyFilesystem)))
    }
}

#[derive(Debug)]
struct ReplayFile {
    replay: Replay,
    inode: usize,
    name: String,
}

impl ReadAt for ReplayFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn hints(&self) -> IoHints {
        MemoryFile::new("", Vec::new()).hints()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.replay.next().contents.len(self.inode) as u64)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], _ledger: &Ledger) -> io::Result<usize> {
        Ok(self.replay.next().contents.read(self.inode, usize::try_from(offset).unwrap_or(usize::MAX), buf))
    }
}

impl WriteAt for ReplayFile {
    fn try_write_at(&self, _offset: u64, _buf: &[u8], _ledger: &Ledger) -> io::Result<usize> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Volume for Replay {
    fn name(&self) -> &str {
        "replay"
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>> {
        Ok(self.opened(name)?)
    }

    fn open_for_update(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        Ok(self.opened(name)?)
    }

    fn create(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        Self::refused(Operation::Create, name)
    }

    fn rename(&self, from: &str, _to: &str) -> Result<()> {
        Self::refused(Operation::Rename, from)
    }

    fn remove(&self, name: &str) -> Result<()> {
        Self::refused(Operation::Remove, name)
    }

    fn list(&self) -> Result<Vec<String>> {
        let names = self.next().contents.names().filter_map(|name| name.strip_prefix(self.prefix.as_str()));
        Ok(names.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_string).collect())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Volume>> {
        let prefix = format!("{}/", self.full(name));
        Ok(Arc::new(Self { recorded: Arc::clone(&self.recorded), prefix }))
    }
}
