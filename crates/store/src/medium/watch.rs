//! Changes of open files by other programs, as the system reports them (inotify).
//!
//! To look up a name takes most of a microsecond, and to read what a file holds half of one; a
//! commit in memory takes three. A file that is watched needs neither as long as the system reports
//! nothing: [`Moment::now`] is one system call that finds an empty queue. The system queues an
//! event before the call returns that renames or removes a file, replaces it by another, changes
//! the number of its names, or opens it. So a commit sees each such change that came before it.
//! Writes through a descriptor that another program has already are no event: after an event, files
//! count as changing for a while ([`UNQUIET`]).
//!
//! A process has one queue. Its events are rare, and do not say more than that every file has to be
//! looked at again. There is no watch where events may be missing: on file systems that other
//! machines change, in the child of a fork, which shares its parent's queue, and where the system
//! has no more of them.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// File systems all of whose changes are made by this machine, by their numbers in `statfs`: ext,
/// XFS, Btrfs, F2FS, ZFS, bcachefs, tmpfs, overlayfs.
const LOCAL: [i64; 8] =
    [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x2FC1_2FC1, 0xCA45_1A4E, 0x0102_1994, 0x794C_7630];

/// Bytes for events that are read at once.
const EVENT_BYTES: usize = 4096;

/// Time after an event in which files are looked at as if more of them were to come.
const UNQUIET: Duration = Duration::from_secs(10);

/// A file that is watched, until this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    queue: &'static Queue,
    /// The system's number of the file.
    number: i32,
}

/// The events that the system has reported until now.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The number of times that there were events; `None` if some may have been missed.
    pub(super) changes: Option<u64>,
    pub(super) at: Instant,
}

impl Moment {
    /// Reads what the system has to report.
    pub fn now() -> Self {
        let at = Instant::now();
        let changes = QUEUE.get().and_then(Option::as_ref).and_then(|queue| queue.changes(at));
        Self { changes, at }
    }
}

/// The process's queue of events.
#[derive(Debug)]
struct Queue {
    descriptor: OwnedFd,
    state: Mutex<State>,
    /// One byte that is 1 in this process, and 0 in the child of a fork.
    is_own: &'static AtomicU8,
}

#[derive(Debug, Default)]
struct State {
    /// The number of times that events were found.
    changes: u64,
    /// The time of the last one.
    changed: Option<Instant>,
    /// The number of watches of each file: the system has one number for all of them.
    watches: HashMap<i32, usize>,
}

impl Watch {
    /// Watches an open file or directory. `None` if events may be missing.
    pub fn new(file: impl AsFd, report: Report) -> Option<Self> {
        let file = file.as_fd();
        let system = rustix::fs::fstatfs(file).ok()?;
        if !LOCAL.contains(&(system.f_type as i64)) {
            return None;
        }
        Self::in_queue(queue()?, file, report)
    }

    fn in_queue(queue: &'static Queue, file: impl AsFd, report: Report) -> Option<Self> {
        let mut state = queue.state();
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let mut flags = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::MASK_ADD;
        match report {
            Report::Contents => flags |= WatchFlags::ATTRIB | WatchFlags::OPEN | WatchFlags::CLOSE_WRITE,
            Report::Links => flags |= WatchFlags::ATTRIB,
            Report::Place => {}
        }
        let number = inotify::add_watch(&queue.descriptor, path, flags).ok()?;
        *state.watches.entry(number).or_default() += 1;
        drop(state);
        Some(Self { queue, number })
    }
}

/// The events of a file that a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// Another place, another number of names, and that a program opens it.
    Contents,
    /// Another place, and another number of names.
    Links,
    /// Another place. A directory has no other names, and events of its files are no events of it.
    Place,
}

impl Drop for Watch {
    fn drop(&mut self) {
        // In the child of a fork, the lock may be held by a thread that is not there.
        if !self.queue.is_own() {
            return;
        }
        let mut state = self.queue.state();
        let Some(count) = state.watches.get_mut(&self.number) else { return };
        *count -= 1;
        if *count == 0 {
            state.watches.remove(&self.number);
            // A file that is gone has no watch any more.
            let _ = inotify::remove_watch(&self.queue.descriptor, self.number);
        }
    }
}

impl Queue {
    fn new() -> Option<Self> {
        let descriptor = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        Some(Self { descriptor, state: Mutex::default(), is_own: own_byte()? })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_own(&self) -> bool {
        self.is_own.load(Relaxed) == 1
    }

    /// Returns the number of times that there were events; `None` if there was one not long before
    /// `at`, or the queue cannot be read.
    fn changes(&self, at: Instant) -> Option<u64> {
        if !self.is_own() {
            return None;
        }
        // Locked while events are read: a thread that finds none must know of those that another
        // one took.
        let mut state = self.state();
        let mut buffer = [MaybeUninit::<u8>::uninit(); EVENT_BYTES];
        let mut events = Reader::new(&self.descriptor, &mut buffer);
        loop {
            match events.next() {
                // Those of a watch that has ended, its end among them, are of no interest.
                Ok(event) => {
                    let is_lost = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                    let is_of_watch = state.watches.contains_key(&event.wd());
                    if is_lost || is_of_watch {
                        state.changes += 1;
                        state.changed = Some(at);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return None,
            }
        }
        let is_unquiet = |changed| at.saturating_duration_since(changed) < UNQUIET;
        (!state.changed.is_some_and(is_unquiet)).then_some(state.changes)
    }
}

static QUEUE: OnceLock<Option<Queue>> = OnceLock::new();

fn queue() -> Option<&'static Queue> {
    QUEUE.get_or_init(Queue::new).as_ref().filter(|queue| queue.is_own())
}

/// Returns a byte that is 1 in this process, and 0 in a child that is forked off.
fn own_byte() -> Option<&'static AtomicU8> {
    let bytes = rustix::param::page_size();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping of its own, at an address that the system chooses. It is never
    // unmapped.
    let page = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }.ok()?;
    // SAFETY: the page is this mapping, and holds nothing yet.
    unsafe { rustix::mm::madvise(page, bytes, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: a page is aligned for a byte, is all zeros, and lives as long as the process.
    let byte = unsafe { &*page.cast::<AtomicU8>() };
    byte.store(1, Relaxed);
    Some(byte)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn changes_by_others_are_events() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("a"), "a").unwrap();
        fs::create_dir(at("d")).unwrap();
        let queue = Queue::new().unwrap();
        // A queue of its own: other tests have events as well.
        let queue: &'static Queue = Box::leak(Box::new(queue));
        let file = fs::File::open(at("a")).unwrap();
        let folder = fs::File::open(at("d")).unwrap();
        let Some(_file) = Watch::in_queue(queue, &file, Report::Contents) else { return };
        let Some(_folder) = Watch::in_queue(queue, &folder, Report::Place) else { return };
        let mut now = Instant::now();
        let mut is_event_after = |change: &dyn Fn()| {
            now += 2 * UNQUIET;
            let before = queue.changes(now);
            change();
            let after = queue.changes(now);
            // A while later, the number counts again.
            now += 2 * UNQUIET;
            assert_eq!(queue.changes(now) > before, after.is_none());
            after.is_none()
        };
        assert!(!is_event_after(&|| {}));
        assert!(!is_event_after(&|| fs::write(at("other"), "b").unwrap()));
        assert!(!is_event_after(&|| fs::write(at("d").join("inside"), "b").unwrap()));
        assert!(is_event_after(&|| drop(fs::File::open(at("a")).unwrap())));
        assert!(is_event_after(&|| fs::write(at("a"), "again").unwrap()));
        assert!(is_event_after(&|| fs::hard_link(at("a"), at("link")).unwrap()));
        assert!(is_event_after(&|| fs::rename(at("a"), at("b")).unwrap()));
        assert!(is_event_after(&|| fs::rename(at("other"), at("b")).unwrap()));
        assert!(is_event_after(&|| fs::remove_file(at("link")).unwrap()));
        assert!(is_event_after(&|| fs::rename(at("d"), at("e")).unwrap()));
    }
}
