//! `io_uring`: one ring, many transfers in flight, one system call for a batch of them.
//!
//! Files are registered with the ring, and so are the buffers of a [`Pool`] where one is given: the system then has
//! their pages pinned already and need not look them up for every transfer. Without one, memory of the process's
//! [`Slab`](crate::Slab) is registered when it is worth it ([`FixedRegions`]). Buffers that are of neither are transferred
//! all the same.
//!
//! **When the system is told.** Each call costs, but a device that waits for a full batch idles while the batch is made,
//! which a queue whose transfers come back together would have it do again and again. So the first few are told at once,
//! and what goes on top of them in groups; what is left of a group goes with the next wait. At 4 KiB and 32 in flight
//! that gives 1.2 times the rate of one call for all (virtual disk, Linux 6.18).
//!
//! **Whose the ring is.** Where the kernel has it (Linux 6.1), answers are worked off when they are asked for and do not
//! interrupt anybody, at the price that one thread, the first to submit, is the only one that may use the ring. So the
//! ring is made disabled, and enabled by the first transfer.
//!
//! Invariants:
//! - What the system was told to fill is in `flying`, and stays there until it has said that it is done with it: also
//!   when the queue is dropped. If it cannot be waited for, the memory is leaked rather than freed.
//! - The ring holds its pool, or its regions, so that registered memory is not freed while the system may use it.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};

use super::fixed::{FixedRegions, Registered};
use super::{Direction, Done, Queue, Transfer};
use crate::{Hop, HostBuffer, Ledger, LocalFile, Path, Pool, ReadAt};

/// The most bytes that the system moves at once.
const MOST_BYTES: usize = 1 << 30;

/// Transfers that the system is told of at once if it has fewer, and otherwise together.
const GROUP: usize = 4;

/// A ring. Moves from thread to thread until its first transfer, and not after that.
pub struct UringQueue<B> {
    ring: IoUring,
    files: Vec<Arc<LocalFile>>,
    pool: Option<Arc<Pool>>,
    regions: FixedRegions,
    /// By the number that the system knows a transfer by.
    flying: Vec<Option<Transfer<B>>>,
    free: Vec<usize>,
    ledger: Arc<Ledger>,
    path: Path,
    depth_bytes: usize,
    is_enabled: bool,
}

impl<B> std::fmt::Debug for UringQueue<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_flight = self.flying.len() - self.free.len();
        f.debug_struct("UringQueue").field("files", &self.files).field("in_flight", &in_flight).finish_non_exhaustive()
    }
}

impl<B: HostBuffer> UringQueue<B> {
    /// A ring of `depth` transfers, from 1 to 4,096, over these files. All must be on one path.
    ///
    /// # Errors
    /// What the system says: rings are forbidden in many containers; registered memory counts as locked.
    pub fn new(
        files: Vec<Arc<LocalFile>>,
        depth: usize,
        pool: Option<Arc<Pool>>,
        ledger: Arc<Ledger>,
    ) -> io::Result<Self> {
        let depth = depth.clamp(1, 4096);
        let (ring, is_enabled) = make(depth as u32)?;
        let fds: Vec<RawFd> = files.iter().map(|file| file.as_fd().as_raw_fd()).collect();
        ring.submitter().register_files(&fds)?;
        let regions = match &pool {
            Some(_) => FixedRegions::none(),
            None => FixedRegions::new(&ring.submitter()),
        };
        if let Some(pool) = &pool {
            let part = |n| libc::iovec { iov_base: pool.address(n).cast(), iov_len: pool.buffer_bytes() };
            let parts: Vec<libc::iovec> = (0..pool.buffers()).map(part).collect();
            // SAFETY: the pool's memory is as long as the parts say, and lives as long as the ring, which holds it.
            unsafe { ring.submitter().register_buffers(&parts)? };
        }
        let path = files.first().map_or(Path::Memory, |file| file.hints().path);
        let flying = (0..depth).map(|_| None).collect();
        Ok(Self {
            ring,
            files,
            pool,
            regions,
            flying,
            free: (0..depth).rev().collect(),
            ledger,
            path,
            depth_bytes: usize::MAX,
            is_enabled,
        })
    }

    /// The same, for who wants no more in flight than keeps the device busy, as the files' [`IoHints`](crate::IoHints) say, in
    /// so many rings over the same files.
    #[must_use]
    pub fn as_hinted(mut self, rings: usize) -> Self {
        let most = self.files.iter().map(|file| file.hints().in_flight_bytes).max().unwrap_or(usize::MAX);
        self.depth_bytes = most / rings.max(1);
        self
    }

    /// What it has registered beside a pool.
    pub fn registered(&self) -> Registered {
        self.regions.registered
    }

    fn entry(&mut self, number: usize, transfer: &mut Transfer<B>) -> squeue::Entry {
        let bytes = transfer.bytes.min(MOST_BYTES);
        let address = transfer.buffer.address(&(transfer.at..transfer.at + bytes));
        let registered = match (transfer.buffer.of_pool(), &self.pool) {
            (Some((of, n)), Some(pool)) if Arc::ptr_eq(of, pool) => Some(n as u16),
            _ => self.regions.place_of(&self.ring.submitter(), address as usize, bytes),
        };
        let (fd, length, offset) = (types::Fixed(transfer.file as u32), bytes as u32, transfer.offset);
        let entry = match (transfer.direction, registered) {
            (Direction::Read, Some(n)) => opcode::ReadFixed::new(fd, address, length, n).offset(offset).build(),
            (Direction::Read, None) => opcode::Read::new(fd, address, length).offset(offset).build(),
            (Direction::Write, Some(n)) => opcode::WriteFixed::new(fd, address, length, n).offset(offset).build(),
            (Direction::Write, None) => opcode::Write::new(fd, address, length).offset(offset).build(),
        };
        entry.user_data(number as u64)
    }

    /// Tells the system what is new and takes what it is done with.
    fn turn(&mut self, wait_for: usize, done: &mut Vec<Done<B>>) -> io::Result<()> {
        match self.ring.submit_and_wait(wait_for) {
            Ok(_) => {}
            // Interrupted, or its queue of answers is full: both get better by looking at the answers.
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ResourceBusy) => {}
            Err(e) => return Err(e),
        }
        for answer in self.ring.completion() {
            let number = answer.user_data() as usize;
            let Some(transfer) = self.flying.get_mut(number).and_then(Option::take) else { continue };
            self.free.push(number);
            let moved = match answer.result() {
                code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
                n => Ok(n as usize),
            };
            if let Ok(n) = moved {
                count(&self.ledger, transfer.direction, self.path, n);
            }
            done.push(Done { transfer, moved });
        }
        Ok(())
    }
}

/// A ring, and whether any thread may use it; if not, it is disabled yet.
fn make(depth: u32) -> io::Result<(IoUring, bool)> {
    let mut of_one_thread = IoUring::builder();
    of_one_thread.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_r_disabled();
    match of_one_thread.build(depth) {
        Ok(ring) => Ok((ring, false)),
        // An older kernel, which says that it does not know what is asked for.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok((IoUring::new(depth)?, true)),
        Err(e) => Err(e),
    }
}

fn count(ledger: &Ledger, direction: Direction, path: Path, bytes: usize) {
    match direction {
        Direction::Read => {
            ledger.read_op();
            ledger.moved(Hop::StorageToHost, bytes);
        }
        Direction::Write => {
            ledger.write_op();
            ledger.moved(Hop::HostToStorage, bytes);
        }
    }
    if path == Path::Buffered {
        ledger.moved(Hop::HostToHost, bytes);
    }
}

impl<B: HostBuffer> Queue<B> for UringQueue<B> {
    fn path(&self) -> Path {
        self.path
    }

    fn depth(&self) -> usize {
        self.flying.len()
    }

    fn depth_bytes(&self) -> usize {
        self.depth_bytes
    }

    fn in_flight(&self) -> usize {
        self.flying.len() - self.free.len()
    }

    fn submit(&mut self, mut transfer: Transfer<B>) {
        assert!(transfer.file < self.files.len(), "file {} of {}", transfer.file, self.files.len());
        let Some(number) = self.free.pop() else { panic!("the queue is full") };
        let entry = self.entry(number, &mut transfer);
        self.flying[number] = Some(transfer);
        // SAFETY: the buffer lies in `flying` until the system is done with it, and its bytes do not move.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // There are as many entries as transfers, and every turn takes all of them.
        assert!(pushed.is_ok(), "the ring has an entry for each transfer");
        if !self.is_enabled {
            // If that fails, so does the next wait, and says why.
            self.is_enabled = self.ring.submitter().register_enable_rings().is_ok();
        }
        let new = self.ring.submission().len();
        if new >= GROUP || self.in_flight() - new < GROUP {
            // What it does not take now is told again by the next wait, which also says why not.
            let _ = self.ring.submit();
        }
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<Done<B>>) -> io::Result<()> {
        let wanted = at_least.min(self.in_flight());
        let before = done.len();
        loop {
            let missing = wanted.saturating_sub(done.len() - before);
            self.turn(missing, done)?;
            if done.len() - before >= wanted {
                return Ok(());
            }
        }
    }
}

impl<B> Drop for UringQueue<B> {
    fn drop(&mut self) {
        let mut failures = 0;
        while self.free.len() < self.flying.len() {
            if self.ring.submit_and_wait(1).is_err() {
                failures += 1;
                if failures == 1000 {
                    // The system may still write to it: better lost than written to under somebody else.
                    mem::forget(mem::take(&mut self.flying));
                    mem::forget(self.pool.take());
                    return;
                }
            }
            for answer in self.ring.completion() {
                let number = answer.user_data() as usize;
                if self.flying.get_mut(number).and_then(Option::take).is_some() {
                    self.free.push(number);
                }
            }
        }
    }
}
