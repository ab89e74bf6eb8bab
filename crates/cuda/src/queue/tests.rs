//! Every queue over a driver and a cuFile of the process's own memory: what arrives is what was sent, whatever is cut
//! short, comes back in another order, or is dropped on the way.

use std::io;
use std::path::Path as FsPath;
use std::sync::Arc;

use onehop_io::{
    Advance, BlockingQueue, Direction, Fault, FaultyQueue, Hop, Ledger, LocalFile, Path, Queue, RequestedPath,
    Transfer, WriteAt,
};

use super::*;
use crate::{Context, DeviceBuf, fake};

const RING: Ring = Ring { buffers: 3, buffer_bytes: 8192 };

fn open(path: &FsPath) -> Arc<LocalFile> {
    Arc::new(LocalFile::open_for_update(path, RequestedPath::Buffered).unwrap())
}

/// A way, and the path of the file.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    way: Way,
    requested: RequestedPath,
}

impl Kind {
    /// All that there are, of files through the page cache and past it.
    pub fn all() -> Vec<Self> {
        let of = |(_, way)| {
            [RequestedPath::Buffered, RequestedPath::PreferHostDirect].map(|requested| Self { way, requested })
        };
        Way::ALL.into_iter().flat_map(of).collect()
    }

    /// The way.
    pub fn way(self) -> Way {
        self.way
    }

    /// A queue over a file.
    pub fn queue(
        self,
        context: &Arc<Context>,
        path: &FsPath,
        depth: usize,
        ledger: &Arc<Ledger>,
    ) -> Box<dyn Queue<DeviceBuf>> {
        let cufile = fake::open_cufile(context);
        let local = Arc::new(LocalFile::open_for_update(path, self.requested).unwrap());
        let ledger = Arc::clone(ledger);
        let files = || vec![Arc::new(CufileFile::new(&cufile, Arc::clone(&local)).unwrap())];
        let batch = |batching| CufileBatchQueue::new(files(), depth, batching, Arc::clone(&ledger)).unwrap();
        match self.way {
            Way::CufileSync => Box::new(CufileSyncQueue::new(files(), depth, ledger).unwrap()),
            Way::CufileBatch => Box::new(batch(Batching::Refill)),
            Way::CufileBatchSlots => Box::new(batch(Batching::Slots)),
            Way::CufileBatchWait => Box::new(batch(Batching::Wait)),
            Way::CufileAsync => Box::new(CufileAsyncQueue::new(files(), depth, ledger).unwrap()),
            // Rings are forbidden in many containers.
            Way::Staged => {
                match StagedQueue::uring(context, vec![Arc::clone(&local)], depth, RING, Arc::clone(&ledger)) {
                    Ok(queue) => Box::new(queue),
                    Err(_) => Box::new(staged(context, &local, depth, &ledger, Vec::new())),
                }
            }
            Way::StagedPread => Box::new(staged(context, &local, depth, &ledger, Vec::new())),
        }
    }
}

/// Every queue there is.
fn queues(
    context: &Arc<Context>,
    path: &FsPath,
    depth: usize,
    ledger: &Arc<Ledger>,
) -> Vec<(Way, Box<dyn Queue<DeviceBuf>>)> {
    let of = |(_, way)| (way, Kind { way, requested: RequestedPath::Buffered }.queue(context, path, depth, ledger));
    Way::ALL.into_iter().map(of).collect()
}

/// All of a buffer.
pub fn transfer(direction: Direction, offset: u64, bytes: usize, buffer: DeviceBuf, tag: u64) -> Transfer<DeviceBuf> {
    Transfer { direction, file: 0, offset, at: 0, bytes, needed: bytes, buffer, tag }
}

fn staged(
    context: &Arc<Context>,
    file: &Arc<LocalFile>,
    depth: usize,
    ledger: &Arc<Ledger>,
    faults: Vec<Fault>,
) -> StagedQueue {
    let files: Vec<Arc<dyn WriteAt>> = vec![Arc::clone(file) as Arc<dyn WriteAt>];
    let host = FaultyQueue::new(BlockingQueue::writer(files, Arc::clone(ledger)), faults);
    StagedQueue::over(context, Box::new(host), 1, depth, RING, Arc::clone(ledger)).unwrap()
}

pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// Moves the whole file in blocks, through parts of the buffers that do not start where these do, and gives back what
/// was read.
fn move_all(
    queue: &mut dyn Queue<DeviceBuf>,
    context: &Arc<Context>,
    direction: Direction,
    content: &mut [u8],
    block: usize,
) -> io::Result<()> {
    let (mut done, mut at, all) = (Vec::new(), 0, content.len());
    let skip = 4096;
    loop {
        while queue.in_flight() < queue.depth() && at < all {
            let mut buffer = DeviceBuf::new(context, skip + block).unwrap();
            buffer.fill(0xee).unwrap();
            let needed = block.min(all - at);
            // Reads ask for whole blocks also at the end of the file; writes do not.
            let bytes = if direction == Direction::Read { block } else { needed };
            if direction == Direction::Write {
                buffer.copy_from(skip, &content[at..at + needed]).unwrap();
            }
            queue.submit(Transfer {
                direction,
                file: 0,
                offset: at as u64,
                at: skip,
                bytes,
                needed,
                buffer,
                tag: at as u64,
            });
            at += block;
        }
        if queue.in_flight() == 0 {
            return Ok(());
        }
        queue.reap(1, &mut done)?;
        assert!(!done.is_empty());
        for one in done.drain(..) {
            match one.advance() {
                Advance::Rest(transfer) => queue.submit(transfer),
                Advance::Failed(_, e) => return Err(e),
                Advance::Whole(transfer) if direction == Direction::Read => {
                    let at = transfer.tag as usize;
                    let n = block.min(all - at);
                    transfer.buffer.copy_to(skip, &mut content[at..at + n]).unwrap();
                    let mut before = vec![0; skip];
                    transfer.buffer.copy_to(0, &mut before).unwrap();
                    assert!(before.iter().all(|byte| *byte == 0xee), "bytes before the part were written to");
                }
                Advance::Whole(_) => {}
            }
        }
    }
}

#[test]
fn what_arrives_is_what_was_sent() {
    let (dir, context) = (tempfile::tempdir().unwrap(), fake::context());
    for (block, all, depth) in [(4096, 100_000, 1), (20_480, 400_000, 5), (65_536, 1 << 20, 8), (262_144, 300_001, 2)] {
        let content = noise(all, block as u64);
        let (path, ledger) = (dir.path().join("f"), Arc::new(Ledger::default()));
        std::fs::write(&path, &content).unwrap();
        for (way, mut queue) in queues(&context, &path, depth, &ledger) {
            let mut found = vec![0; all];
            move_all(queue.as_mut(), &context, Direction::Read, &mut found, block).unwrap();
            assert!(found == content, "{way}: read in blocks of {block}");
            let staged = !way.is_cufile();
            assert_eq!(queue.path(), if staged { Path::DeviceStaged } else { Path::DeviceCompat }, "{way}");
        }
        let snapshot = ledger.snapshot();
        assert!(snapshot.hop(Hop::HostToDevice) >= 7 * all as u64 && snapshot.hop(Hop::StorageToDevice) == 0);
        for (number, (way, mut queue)) in queues(&context, &path, depth, &ledger).into_iter().enumerate() {
            let mut other = noise(all, number as u64 + 99);
            move_all(queue.as_mut(), &context, Direction::Write, &mut other, block).unwrap();
            assert!(std::fs::read(&path).unwrap() == other, "{way}: written in blocks of {block}");
        }
    }
}

#[test]
fn a_queue_that_is_dropped_waits() {
    let (dir, context) = (tempfile::tempdir().unwrap(), fake::context());
    let path = dir.path().join("f");
    std::fs::write(&path, noise(1 << 20, 3)).unwrap();
    for reaps in [0, 1, 3] {
        for (_, mut queue) in queues(&context, &path, 6, &Arc::new(Ledger::default())) {
            for i in 0..6 {
                let buffer = DeviceBuf::new(&context, 65_536).unwrap();
                queue.submit(transfer(Direction::Read, i * 65_536, 65_536, buffer, i));
            }
            let mut done = Vec::new();
            queue.reap(reaps, &mut done).unwrap();
            assert!(done.len() >= reaps);
            drop(queue);
        }
    }
}

#[test]
fn the_end_of_the_file_is_told() {
    let (dir, context) = (tempfile::tempdir().unwrap(), fake::context());
    let path = dir.path().join("f");
    std::fs::write(&path, noise(10_000, 3)).unwrap();
    for (way, mut queue) in queues(&context, &path, 2, &Arc::new(Ledger::default())) {
        let error = move_all(queue.as_mut(), &context, Direction::Read, &mut vec![0; 60_000], 32_768).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{way}: {error}");
    }
}

#[test]
fn staged_transfers_survive_the_host_s_faults() {
    let (dir, context) = (tempfile::tempdir().unwrap(), fake::context());
    let (path, ledger) = (dir.path().join("f"), Arc::new(Ledger::default()));
    let content = noise(300_000, 5);
    std::fs::write(&path, &content).unwrap();
    let file = open(&path);
    for seed in 0..20 {
        let faults = vec![Fault::Short(seed), Fault::InterruptAt(seed), Fault::InterruptAt(seed + 3)];
        let mut queue = staged(&context, &file, 4, &ledger, faults);
        let mut found = vec![0; content.len()];
        move_all(&mut queue, &context, Direction::Read, &mut found, 32_768).unwrap();
        assert!(found == content, "seed {seed}");
    }
    // An error at every operation: told, and nothing hangs or leaks.
    for from in 0..40 {
        let mut queue = staged(&context, &file, 4, &ledger, vec![Fault::FailFrom(from)]);
        let moved = move_all(&mut queue, &context, Direction::Read, &mut vec![0; content.len()], 32_768);
        match moved {
            Ok(()) => assert!(from >= 37, "{from}"),
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EIO), "{from}: {e}"),
        }
        let mut queue = staged(&context, &file, 4, &ledger, vec![Fault::FailFrom(from)]);
        let moved = move_all(&mut queue, &context, Direction::Write, &mut content.clone(), 32_768);
        assert!(moved.is_ok() == (from >= 37), "{from}: {moved:?}");
    }
}

#[test]
fn an_allocation_that_fails_has_cuda_s_name() {
    let error = DeviceBuf::new(&fake::context(), 1 << 50).unwrap_err();
    assert!(error.to_string().starts_with("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)"), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::OutOfMemory);
}
