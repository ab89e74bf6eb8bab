//! A volume that keeps what is volatile apart from what is durable, and can crash after any operation.
//!
//! Fault model. Every operation that changes something (create, write, file sync, rename, remove, folder, directory
//! sync) has a number. From the number given to [`SimVolume::crash_at`] on, operations fail and change nothing: the
//! process is dead, it only does not know it yet. The operation given to [`SimVolume::fail_at`] alone fails, and those
//! after it work: a device with a bad moment, under a process that goes on. [`SimVolume::crash_image`] then gives a
//! volume as a machine would find it after power came back:
//! - bytes written but not synced are there, not there, or there in part ([`CrashImage`]);
//! - names created, renamed or removed but not synced in their directory likewise, each by itself;
//! - everything synced is there.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::faulty::mix;
use crate::{Error, IoHints, Ledger, MemoryFile, Operation, ReadAt, Result, Volume, WriteAt};

/// What a crash leaves of things that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashImage {
    /// Nothing.
    Durable,
    /// All of it.
    Everything,
    /// Each name and each 512-byte sector by itself, by this seed.
    Random(u64),
}

#[derive(Debug, Default)]
struct Inode {
    volatile: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    /// Full path to inode; folders are names that end in '/', with no inode of interest.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    operations: u64,
    fault: Option<Fault>,
}

/// Which operations fail.
#[derive(Clone, Copy, Debug)]
enum Fault {
    CrashAt(u64),
    FailAt(u64),
}

impl State {
    /// Numbers an operation and fails it if the crash is due.
    fn step(&mut self, operation: Operation, object: &str) -> Result<()> {
        let number = self.operations;
        self.operations += 1;
        let reason = match self.fault {
            Some(Fault::CrashAt(at)) if number >= at => "simulated crash",
            Some(Fault::FailAt(at)) if number == at => "simulated failure",
            _ => return Ok(()),
        };
        Err(Error::new(operation, object, io::Error::other(reason)))
    }
}

/// A simulated directory. Folders made from it share its operation numbers and its crash.
#[derive(Clone, Debug)]
pub struct SimVolume {
    state: Arc<Mutex<State>>,
    /// "" or "folder/".
    prefix: String,
    name: String,
}

impl Default for SimVolume {
    fn default() -> Self {
        Self { state: Arc::default(), prefix: String::new(), name: "sim".into() }
    }
}

impl SimVolume {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Operations done so far.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Fails the operation with this number and all later ones.
    pub fn crash_at(&self, operation: u64) {
        self.state().fault = Some(Fault::CrashAt(operation));
    }

    /// Fails the operation with this number, and no other.
    pub fn fail_at(&self, operation: u64) {
        self.state().fault = Some(Fault::FailAt(operation));
    }

    /// The volume after a restart.
    pub fn crash_image(&self, image: CrashImage) -> SimVolume {
        let state = self.state();
        let mut restarted = State::default();
        for (index, inode) in state.inodes.iter().enumerate() {
            let bytes = surviving_bytes(inode, image, index as u64);
            restarted.inodes.push(Inode { volatile: bytes.clone(), durable: bytes });
        }
        let all: BTreeSet<&String> = state.names.keys().chain(state.durable_names.keys()).collect();
        for (index, name) in all.into_iter().enumerate() {
            let keeps_new = match image {
                CrashImage::Durable => false,
                CrashImage::Everything => true,
                CrashImage::Random(seed) => mix(seed ^ (index as u64) << 17) & 1 == 1,
            };
            let names = if keeps_new { &state.names } else { &state.durable_names };
            if let Some(inode) = names.get(name) {
                restarted.names.insert(name.clone(), *inode);
            }
        }
        let folders: BTreeSet<String> = restarted.names.keys().filter(|n| n.ends_with('/')).cloned().collect();
        restarted.names.retain(|name, _| match name.split_once('/') {
            Some((folder, rest)) => rest.is_empty() || folders.contains(&format!("{folder}/")),
            None => true,
        });
        restarted.durable_names = restarted.names.clone();
        SimVolume { state: Arc::new(Mutex::new(restarted)), prefix: String::new(), name: "sim".into() }
    }
}

fn surviving_bytes(inode: &Inode, image: CrashImage, salt: u64) -> Vec<u8> {
    match image {
        CrashImage::Durable => inode.durable.clone(),
        CrashImage::Everything => inode.volatile.clone(),
        CrashImage::Random(seed) => {
            let dice = |n: u64| mix(seed ^ mix(salt) ^ n);
            let (short, long) = (inode.durable.len(), inode.volatile.len());
            let len = short.min(long) + (dice(u64::MAX) as usize) % (short.abs_diff(long) + 1);
            (0..len)
                .map(|i| {
                    let new = dice((i / 512) as u64) & 1 == 1;
                    let from = if new { &inode.volatile } else { &inode.durable };
                    from.get(i).copied().unwrap_or(0)
                })
                .collect()
        }
    }
}

#[derive(Debug)]
struct SimFile {
    volume: SimVolume,
    inode: usize,
    name: String,
}

impl ReadAt for SimFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn hints(&self) -> IoHints {
        MemoryFile::new("", Vec::new()).hints()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.volume.state().inodes[self.inode].volatile.len() as u64)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], _ledger: &Ledger) -> io::Result<usize> {
        let state = self.volume.state();
        let bytes = &state.inodes[self.inode].volatile;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let n = buf.len().min(bytes.len() - from);
        buf[..n].copy_from_slice(&bytes[from..from + n]);
        Ok(n)
    }
}

impl WriteAt for SimFile {
    fn try_write_at(&self, offset: u64, buf: &[u8], _ledger: &Ledger) -> io::Result<usize> {
        let mut state = self.volume.state();
        state.step(Operation::Write, &self.name).map_err(io::Error::other)?;
        let bytes = &mut state.inodes[self.inode].volatile;
        let from = offset as usize;
        if bytes.len() < from + buf.len() {
            bytes.resize(from + buf.len(), 0);
        }
        bytes[from..from + buf.len()].copy_from_slice(buf);
        Ok(buf.len())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.volume.state();
        state.step(Operation::Sync, &self.name)?;
        let inode = &mut state.inodes[self.inode];
        inode.durable = inode.volatile.clone();
        Ok(())
    }
}

impl Volume for SimVolume {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>> {
        let full = self.full(name);
        match self.state().names.get(&full) {
            Some(&inode) => Ok(Arc::new(SimFile { volume: self.clone(), inode, name: full })),
            None => Err(Error::new(Operation::Open, full, io::Error::from(io::ErrorKind::NotFound))),
        }
    }

    fn open_for_update(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        let full = self.full(name);
        match self.state().names.get(&full) {
            Some(&inode) => Ok(Arc::new(SimFile { volume: self.clone(), inode, name: full })),
            None => Err(Error::new(Operation::Open, full, io::Error::from(io::ErrorKind::NotFound))),
        }
    }

    fn create(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        let full = self.full(name);
        let mut state = self.state();
        state.step(Operation::Create, &full)?;
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.names.insert(full.clone(), inode);
        Ok(Arc::new(SimFile { volume: self.clone(), inode, name: full }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.full(from), self.full(to));
        let mut state = self.state();
        state.step(Operation::Rename, &from)?;
        let inode = state
            .names
            .remove(&from)
            .ok_or_else(|| Error::new(Operation::Rename, from, io::Error::from(io::ErrorKind::NotFound)))?;
        state.names.insert(to, inode);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let full = self.full(name);
        let mut state = self.state();
        state.step(Operation::Remove, &full)?;
        match state.names.remove(&full) {
            Some(_) => Ok(()),
            None => Err(Error::new(Operation::Remove, full, io::Error::from(io::ErrorKind::NotFound))),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        let state = self.state();
        let here = state.names.keys().filter_map(|name| name.strip_prefix(self.prefix.as_str()));
        Ok(here.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_string).collect())
    }

    fn sync(&self) -> Result<()> {
        let mut guard = self.state();
        guard.step(Operation::Sync, &self.prefix)?;
        let state = &mut *guard;
        let is_here = |name: &str| match name.strip_prefix(self.prefix.as_str()) {
            // A folder's own name is its parent's to make durable.
            Some(rest) => !rest.is_empty() && !rest.trim_end_matches('/').contains('/'),
            None => false,
        };
        state.durable_names.retain(|name, _| !is_here(name));
        let here = state.names.iter().filter(|(name, _)| is_here(name));
        state.durable_names.extend(here.map(|(name, inode)| (name.clone(), *inode)));
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Volume>> {
        let prefix = format!("{}/", self.full(name));
        let mut state = self.state();
        if !state.names.contains_key(&prefix) {
            state.step(Operation::Create, &prefix)?;
            state.names.insert(prefix.clone(), usize::MAX);
        }
        Ok(Arc::new(SimVolume { state: Arc::clone(&self.state), name: format!("sim/{prefix}"), prefix }))
    }
}
