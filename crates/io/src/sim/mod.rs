//! A volume that keeps what is volatile apart from what is durable, fails on purpose, and can crash after any operation.
//!
//! Fault model. Every operation that changes something (create, write, file sync, rename, remove, folder, directory
//! sync) has a number; reads have numbers of their own.
//! 1. *Crashes.* From the number given to [`SimVolume::crash_at`] on, operations fail and change nothing: the process is dead,
//!    it only does not know it yet. [`SimVolume::crash_image`] then gives a volume as a machine would find it after power came
//!    back: everything synced is there; bytes and names that were not synced are there or not, each sector and each name by
//!    itself ([`CrashImage`]). A sector that was written several times may have any of its versions. A rename is one change: the
//!    file has its new name or still its old one.
//! 2. *A device with a bad moment*, under a process that goes on: [`SimVolume::fail_at`], and [`Faults`] by seed. A write that
//!    fails may have put down a part. After a sync that failed some of its sectors or names are durable, and the system has
//!    forgotten the others: reads see them, and no later sync writes them. A volume without room refuses new names and longer
//!    files, the last of these when a part is written.
//! 3. *A slow operation*: [`SimVolume::call_after`] calls what happens while it takes long.
//! 4. *Recording.* After [`SimVolume::record`] the volume keeps its contents after every operation, which costs little, as
//!    contents share what they have in common. So one run of a program gives the images of a crash at each of its operations.

mod bytes;
mod contents;
mod replay;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::contents::Contents;
pub use self::replay::Replay;
use crate::faulty::mix;
use crate::{Error, IoHints, Ledger, MemoryFile, Operation, ReadAt, Result, Volume, WriteAt};

/// What a crash leaves of things that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashImage {
    /// Nothing.
    Durable,
    /// All of it.
    Everything,
    /// Each name and each 512-byte sector by itself, by this seed.
    Random(u64),
    /// The same, and some sectors have bytes that were never written.
    Garbled(u64),
}

/// Failures of a device under a process that goes on.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Decides what a failed operation does all the same.
    pub seed: u64,
    /// Operations that fail.
    pub failing: BTreeSet<u64>,
    /// Operations during which there is no room for anything new.
    pub full: Range<u64>,
    /// The length in bytes from which there is no room for a file to grow.
    pub longest: Option<u64>,
    /// Reads that fail, by the numbers of reads.
    pub unreadable: Range<u64>,
    /// Syncs of files and folders (`""`, `"folder/"`) that do nothing and say that they did.
    pub forgotten: Option<fn(&str) -> bool>,
}

/// The contents of a volume after an operation.
#[derive(Clone, Debug)]
pub struct CrashPoint {
    contents: Contents,
    operations: u64,
    event: String,
}

impl CrashPoint {
    /// Operations that were done.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// The operation, in words.
    pub fn event(&self) -> &str {
        &self.event
    }

    /// The volume after a crash that came after the operation.
    pub fn image(&self, image: CrashImage) -> SimVolume {
        SimVolume::with(self.contents.after_crash(image))
    }
}

#[derive(Debug, Default)]
struct Disk {
    contents: Contents,
    operations: u64,
    reads: u64,
    failures: u64,
    crash_at: Option<u64>,
    fail_at: Option<u64>,
    faults: Faults,
    /// A write was cut short for lack of room, and the next one gets nothing.
    is_cut_short: bool,
    trace: u64,
    recording: Option<Vec<CrashPoint>>,
    slow: Option<Slow>,
}

/// An operation or read that takes long.
struct Slow {
    /// Those before it.
    left: u64,
    meanwhile: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slow").field("left", &self.left).finish_non_exhaustive()
    }
}

/// What becomes of an operation.
enum Verdict {
    Done,
    /// It fails, and does by the seed what such a failure does.
    Fails(u64),
    /// There is no room for anything new.
    Full,
}

fn failure() -> io::Error {
    io::Error::other("simulated failure")
}

impl Disk {
    /// Calls what happens during an operation that takes long.
    fn take_time(&mut self) {
        if let Some(Slow { left, .. }) = &mut self.slow
            && let Some(fewer) = left.checked_sub(1)
        {
            *left = fewer;
        } else if let Some(slow) = self.slow.take() {
            (slow.meanwhile)();
        }
    }

    /// Numbers an operation and fails it if a crash is due.
    fn step(&mut self, operation: Operation, object: &str) -> Result<Verdict> {
        let number = self.operations;
        self.operations += 1;
        self.take_time();
        let failed = |reason: &str| Err(Error::new(operation, object, io::Error::other(reason)));
        if self.crash_at.is_some_and(|at| number >= at) {
            return failed("simulated crash");
        }
        if self.fail_at == Some(number) {
            return failed("simulated failure");
        }
        if self.faults.failing.contains(&number) {
            return Ok(Verdict::Fails(mix(self.faults.seed ^ number)));
        }
        Ok(if self.faults.full.contains(&number) { Verdict::Full } else { Verdict::Done })
    }

    /// The same for one that fails whole or not at all. Those that take room fail where there is none.
    fn step_whole(&mut self, operation: Operation, object: &str, takes_room: bool) -> Result<()> {
        let verdict = self.step(operation, object)?;
        let refused = match verdict {
            Verdict::Fails(_) => failure(),
            Verdict::Full if takes_room => io::ErrorKind::StorageFull.into(),
            Verdict::Full | Verdict::Done => return Ok(()),
        };
        self.failures += 1;
        self.note(operation, object, 0, 0, "fails");
        Err(Error::new(operation, object, refused))
    }

    /// Puts an operation down, with the contents as it left them.
    fn note(&mut self, operation: Operation, object: &str, at: u64, hash: u64, outcome: &str) {
        let words = object.bytes().chain(outcome.bytes()).fold(self.trace, |hash, byte| mix(hash ^ u64::from(byte)));
        self.trace = mix(mix(words ^ operation as u64) ^ at) ^ hash;
        if let Some(points) = &mut self.recording {
            let event = format!(
                "{:>4} {operation} {object}{} {outcome}",
                self.operations - 1,
                match operation {
                    Operation::Write => format!(" at {at}"),
                    _ => String::new(),
                }
            );
            let event = event.trim_end().to_string();
            points.push(CrashPoint { contents: self.contents.clone(), operations: self.operations, event });
        }
    }

    fn forgets(&self, object: &str) -> bool {
        self.faults.forgotten.is_some_and(|forgets| forgets(object))
    }
}

/// A simulated directory. Folders made from it share its operation numbers and its faults.
#[derive(Clone, Debug)]
pub struct SimVolume {
    disk: Arc<Mutex<Disk>>,
    /// "" or "folder/".
    prefix: String,
    name: String,
}

impl Default for SimVolume {
    fn default() -> Self {
        Self::with(Contents::default())
    }
}

impl SimVolume {
    fn with(contents: Contents) -> Self {
        let disk = Disk { contents, ..Disk::default() };
        Self { disk: Arc::new(Mutex::new(disk)), prefix: String::new(), name: "sim".into() }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Operations done so far.
    pub fn operations(&self) -> u64 {
        self.disk().operations
    }

    /// Reads done so far.
    pub fn reads(&self) -> u64 {
        self.disk().reads
    }

    /// Operations and reads that have failed on purpose so far.
    pub fn failures(&self) -> u64 {
        self.disk().failures
    }

    /// Fails the operation with this number and all later ones.
    pub fn crash_at(&self, operation: u64) {
        let mut disk = self.disk();
        (disk.crash_at, disk.fail_at) = (Some(operation), None);
    }

    /// Fails the operation with this number, and no other.
    pub fn fail_at(&self, operation: u64) {
        let mut disk = self.disk();
        (disk.crash_at, disk.fail_at) = (None, Some(operation));
    }

    /// Has operations fail from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.disk().faults = faults;
    }

    /// Makes the operation or read after so many others slow, and calls `meanwhile` then, which must not use the volume.
    pub fn call_after(&self, others: u64, meanwhile: impl FnOnce() + Send + 'static) {
        self.disk().slow = Some(Slow { left: others, meanwhile: Box::new(meanwhile) });
    }

    /// Makes no operation slow any more; true if none was yet.
    pub fn call_nothing(&self) -> bool {
        self.disk().slow.take().is_some()
    }

    /// Keeps the contents as they are now, and after every operation from now on.
    pub fn record(&self) {
        let mut disk = self.disk();
        let (contents, operations) = (disk.contents.clone(), disk.operations);
        let point = CrashPoint { contents, operations, event: "as it was".into() };
        disk.recording = Some(vec![point]);
    }

    /// The contents since [`record`](Self::record): as they were then, and after each operation.
    pub fn take_recording(&self) -> Vec<CrashPoint> {
        self.disk().recording.take().unwrap_or_default()
    }

    /// A hash of all operations so far, and of what was written.
    pub fn trace(&self) -> u64 {
        self.disk().trace
    }

    /// A hash of all names and bytes that a process sees.
    pub fn hash(&self) -> u64 {
        self.disk().contents.hash()
    }

    /// The volume after the machine has crashed and started again.
    pub fn crash_image(&self, image: CrashImage) -> SimVolume {
        Self::with(self.disk().contents.after_crash(image))
    }

    /// The volume after the process has died and the machine has not: nothing is lost but what failed syncs have lost.
    pub fn kill_image(&self) -> SimVolume {
        Self::with(self.disk().contents.after_kill())
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
        Ok(self.volume.disk().contents.len(self.inode) as u64)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], _ledger: &Ledger) -> io::Result<usize> {
        let mut disk = self.volume.disk();
        let number = disk.reads;
        disk.reads += 1;
        disk.take_time();
        if disk.faults.unreadable.contains(&number) {
            disk.failures += 1;
            return Err(failure());
        }
        Ok(disk.contents.read(self.inode, usize::try_from(offset).unwrap_or(usize::MAX), buf))
    }
}

impl WriteAt for SimFile {
    fn try_write_at(&self, offset: u64, buf: &[u8], _ledger: &Ledger) -> io::Result<usize> {
        let mut guard = self.volume.disk();
        let disk = &mut *guard;
        let at = usize::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let verdict = disk.step(Operation::Write, &self.name).map_err(io::Error::other)?;
        let end = at + buf.len();
        let grows = end > disk.contents.len(self.inode);
        let is_too_long = disk.faults.longest.is_some_and(|longest| end as u64 > longest);
        let verdict = if is_too_long && matches!(verdict, Verdict::Done) { Verdict::Full } else { verdict };
        let hash = buf.iter().fold(0, |hash: u64, byte| hash.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte));
        let (part, outcome) = match verdict {
            Verdict::Fails(seed) => ((seed as usize) % (buf.len() + 1), Err(failure())),
            Verdict::Full if grows && std::mem::replace(&mut disk.is_cut_short, true) => {
                (0, Err(io::ErrorKind::StorageFull.into()))
            }
            Verdict::Full if grows => match buf.len() / 2 {
                0 => (0, Err(io::ErrorKind::StorageFull.into())),
                half => (half, Ok(half)),
            },
            Verdict::Full | Verdict::Done => (buf.len(), Ok(buf.len())),
        };
        disk.failures += u64::from(part < buf.len() || outcome.is_err());
        if part > 0 {
            disk.contents.write(self.inode, at, &buf[..part]);
        }
        let words = if part == buf.len() { String::new() } else { format!("{part} of {} bytes", buf.len()) };
        disk.note(Operation::Write, &self.name, offset, hash, &words);
        outcome
    }

    fn sync(&self) -> Result<()> {
        let mut disk = self.volume.disk();
        match disk.step(Operation::Sync, &self.name)? {
            _ if disk.forgets(&self.name) => disk.note(Operation::Sync, &self.name, 0, 0, "does nothing"),
            Verdict::Fails(seed) => {
                disk.failures += 1;
                disk.contents.fail_sync(self.inode, seed);
                disk.note(Operation::Sync, &self.name, 0, 0, "fails");
                return Err(Error::new(Operation::Sync, &self.name, failure()));
            }
            Verdict::Full | Verdict::Done => {
                disk.contents.sync(self.inode);
                disk.note(Operation::Sync, &self.name, 0, 0, "");
            }
        }
        Ok(())
    }
}

fn not_found(operation: Operation, name: String) -> Error {
    Error::new(operation, name, io::Error::from(io::ErrorKind::NotFound))
}

impl SimVolume {
    fn opened(&self, name: &str) -> Result<Arc<SimFile>> {
        let full = self.full(name);
        match self.disk().contents.find(&full) {
            Some(inode) => Ok(Arc::new(SimFile { volume: self.clone(), inode, name: full })),
            None => Err(not_found(Operation::Open, full)),
        }
    }
}

impl Volume for SimVolume {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>> {
        Ok(self.opened(name)?)
    }

    fn open_for_update(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        Ok(self.opened(name)?)
    }

    fn create(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        let full = self.full(name);
        let mut disk = self.disk();
        disk.step_whole(Operation::Create, &full, true)?;
        let inode = disk.contents.create(&full);
        disk.note(Operation::Create, &full, 0, 0, "");
        Ok(Arc::new(SimFile { volume: self.clone(), inode, name: full }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.full(from), self.full(to));
        let mut disk = self.disk();
        disk.step_whole(Operation::Rename, &from, true)?;
        if !disk.contents.rename(&from, &to) {
            return Err(not_found(Operation::Rename, from));
        }
        disk.note(Operation::Rename, &from, 0, 0, &format!("to {to}"));
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let full = self.full(name);
        let mut disk = self.disk();
        disk.step_whole(Operation::Remove, &full, false)?;
        if !disk.contents.remove(&full) {
            return Err(not_found(Operation::Remove, full));
        }
        disk.note(Operation::Remove, &full, 0, 0, "");
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        let disk = self.disk();
        let here = disk.contents.names().filter_map(|name| name.strip_prefix(self.prefix.as_str()));
        Ok(here.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_string).collect())
    }

    fn sync(&self) -> Result<()> {
        let mut disk = self.disk();
        match disk.step(Operation::Sync, &self.prefix)? {
            _ if disk.forgets(&self.prefix) => disk.note(Operation::Sync, &self.prefix, 0, 0, "of names does nothing"),
            Verdict::Fails(seed) => {
                disk.failures += 1;
                disk.contents.fail_sync_names(&self.prefix, seed);
                disk.note(Operation::Sync, &self.prefix, 0, 0, "of names fails");
                return Err(Error::new(Operation::Sync, &self.name, failure()));
            }
            Verdict::Full | Verdict::Done => {
                disk.contents.sync_names(&self.prefix);
                disk.note(Operation::Sync, &self.prefix, 0, 0, "of names");
            }
        }
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Volume>> {
        let prefix = format!("{}/", self.full(name));
        let mut disk = self.disk();
        if disk.contents.find(&prefix).is_none() {
            disk.step_whole(Operation::Create, &prefix, true)?;
            disk.contents.put_folder(&prefix);
            disk.note(Operation::Create, &prefix, 0, 0, "");
        }
        drop(disk);
        Ok(Arc::new(SimVolume { disk: Arc::clone(&self.disk), name: format!("sim/{prefix}"), prefix }))
    }
}
