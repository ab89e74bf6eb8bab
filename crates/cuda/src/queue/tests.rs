//! Every queue over a fake driver and a fake cuFile in the memory of this process. Transfers arrive
//! intact, even if they are cut short, complete in another order, or are dropped in flight.

use std::io;
use std::path::Path as FsPath;
use std::sync::Arc;

use onehop_io::{
    BlockingQueue, Direction, Fault, FaultyQueue, Hop, Ledger, LocalFile, Path, Queue, ReadAt, RequestedPath, WriteAt,
};

use super::conformance::{Writes, check_queues, move_all, noise};
use super::*;
use crate::fake::Machine;
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
    /// Returns all ways, for files through the page cache and past it.
    pub fn all() -> Vec<Self> {
        let of = |(_, way)| {
            [RequestedPath::Buffered, RequestedPath::PreferHostDirect].map(|requested| Self { way, requested })
        };
        Way::ALL.into_iter().flat_map(of).collect()
    }

    /// Returns the way.
    pub fn way(self) -> Way {
        self.way
    }

    /// Creates a queue over a file.
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
        let file = DeviceFile::open(self.way, &local, Some(&cufile)).unwrap();
        match self.way.queue(context, &file, depth, RING, Arc::clone(&ledger)) {
            // Many containers forbid `io_uring`.
            Err(_) if self.way == Way::Staged => Box::new(staged(context, &local, depth, &ledger, Vec::new())),
            queue => queue.unwrap(),
        }
    }
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

#[test]
fn every_queue_conforms() {
    for kind in Kind::all() {
        let (dir, (machine, context)) = (tempfile::tempdir().unwrap(), Machine::start());
        let ledger = Arc::new(Ledger::default());
        let open = |path: &FsPath, depth| Ok(kind.queue(&context, path, depth, &ledger));
        std::fs::write(dir.path().join("f"), [7; 4096]).unwrap();
        let effective = LocalFile::open(&dir.path().join("f"), kind.requested).unwrap().hints().path;
        assert!(check_queues(&context, dir.path(), Writes::of(kind.way, effective), &open) > 10);
        let snapshot = ledger.snapshot();
        assert!(snapshot.hop(Hop::HostToDevice) > 1 << 20 && snapshot.hop(Hop::StorageToDevice) == 0, "{kind:?}");
        drop(context);
        assert_eq!((machine.problems(), machine.living()), (Vec::new(), Vec::new()), "{kind:?}");
    }
}

#[test]
fn a_queue_says_which_path_it_takes() {
    let (dir, context) = (tempfile::tempdir().unwrap(), fake::context());
    let path = dir.path().join("f");
    std::fs::write(&path, noise(10_000, 3)).unwrap();
    for kind in Kind::all() {
        let expected = if kind.way.is_cufile() { Path::DeviceCompat } else { Path::DeviceStaged };
        let queue = kind.queue(&context, &path, 1, &Arc::new(Ledger::default()));
        assert_eq!(queue.path(), expected, "{kind:?}");
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
    // Injects an error at every operation: it is reported, and nothing hangs or leaks.
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
