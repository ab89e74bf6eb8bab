//! Every error at every operation, for every path that needs no GPU: what is told, and that no buffer is lost, or touched
//! while it is somebody else's.
//!
//! The matrix: paths (page cache or past it, by calls or by a ring, registered buffers or others) x who uses them (a
//! queue by itself, reading and writing; [`StreamReader`], in order or not; [`ReadAhead`]) x faults x the number of the
//! operation. Buffers are [`Tracked`]: what comes back is poisoned, and the poison is looked at before it is handed out
//! again, so that bytes that arrive in a buffer that nobody has are seen.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path as FsPath;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Condvar, Mutex};

use onehop_io::{
    Advance, AlignedBuf, Allowance, BlockingQueue, Cut, Direction, Extent, Fault, Faulty, FaultyQueue, HostBuffer,
    LentBuf, LocalFile, Order, Path, Pool, PoolBuf, Queue, ReadAhead, ReadAt, Reads, RequestedPath, StreamOptions,
    StreamReader, Supply, Transfer, UringQueue, WriteAt,
};

const BLOCK: usize = 12_288;
const BLOCKS: usize = 9;
const ALL: usize = BLOCK * BLOCKS;
const DEPTH: usize = 4;
const POISON: u8 = 0xa5;

const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const EINTR: i32 = 4;
const ENXIO: i32 = 6;
const ENOSPC: i32 = 28;

/// A buffer that goes home.
#[derive(Debug)]
struct Tracked {
    buffer: Option<AlignedBuf>,
    home: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    free: Mutex<Vec<AlignedBuf>>,
    returned: Condvar,
    problems: Mutex<Vec<String>>,
}

/// Where buffers are at home.
#[derive(Clone, Debug)]
struct Home {
    inner: Arc<Inner>,
    count: usize,
}

impl Home {
    fn new(count: usize) -> Self {
        let inner = Arc::new(Inner::default());
        let poisoned = |_| {
            let mut buffer = AlignedBuf::zeroed(BLOCK);
            buffer.fill(POISON);
            buffer
        };
        inner.free.lock().unwrap().extend((0..count).map(poisoned));
        Self { inner, count }
    }

    /// All are there, and nobody has touched them since they came.
    fn check(&self, said: &str) {
        let free = self.inner.free.lock().unwrap();
        assert_eq!(free.len(), self.count, "{said}: every buffer is back");
        let touched = free.iter().filter(|buffer| buffer.iter().any(|byte| *byte != POISON)).count();
        assert_eq!(touched, 0, "{said}: touched after they came back");
        assert_eq!(*self.inner.problems.lock().unwrap(), Vec::<String>::new(), "{said}");
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if let Some(mut buffer) = self.buffer.take() {
            buffer.fill(POISON);
            self.home.free.lock().unwrap().push(buffer);
            self.home.returned.notify_all();
        }
    }
}

impl Deref for Tracked {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().unwrap()
    }
}

impl DerefMut for Tracked {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().unwrap()
    }
}

// SAFETY: as of the `AlignedBuf` in it, which is there until this is dropped.
unsafe impl HostBuffer for Tracked {}

impl Supply<Tracked> for Home {
    fn try_get(&self, _: usize) -> Option<Tracked> {
        let buffer = self.inner.free.lock().unwrap().pop()?;
        if buffer.iter().any(|byte| *byte != POISON) {
            self.inner.problems.lock().unwrap().push("a buffer was touched that nobody had".into());
        }
        Some(Tracked { buffer: Some(buffer), home: Arc::clone(&self.inner) })
    }

    fn wait_for(&self, _: usize, is_over: &AtomicBool) {
        let mut free = self.inner.free.lock().unwrap();
        while free.is_empty() && !is_over.load(Acquire) {
            free = self.inner.returned.wait(free).unwrap();
        }
    }

    fn wake(&self) {
        let _free = self.inner.free.lock().unwrap();
        self.inner.returned.notify_all();
    }
}

fn content() -> Vec<u8> {
    (0..ALL as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// A path, and where its faults come from.
#[derive(Clone, Copy, Debug)]
struct Kind {
    requested: RequestedPath,
    by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// `pread` and `pwrite`, whose calls fail.
    Calls,
    /// The same, with transfers that fail.
    Blocking,
    Ring,
}

impl Kind {
    /// All that this machine has.
    fn all() -> Vec<Self> {
        let (dir, mut all) = (tempfile::tempdir().unwrap(), Vec::new());
        let path = dir.path().join("f");
        fs::write(&path, [0; 4096]).unwrap();
        for requested in [RequestedPath::Buffered, RequestedPath::HostDirect] {
            let Ok(file) = LocalFile::open(&path, requested) else {
                eprintln!("no O_DIRECT here");
                continue;
            };
            all.extend([By::Calls, By::Blocking].map(|by| Self { requested, by }));
            match UringQueue::<Tracked>::new(vec![Arc::new(file)], 1, None, Arc::default()) {
                Ok(_) => all.push(Self { requested, by: By::Ring }),
                Err(e) => eprintln!("no io_uring here: {e}"),
            }
        }
        all
    }

    fn open(self, path: &FsPath) -> Arc<LocalFile> {
        Arc::new(LocalFile::open_for_update(path, self.requested).unwrap())
    }

    fn queue<B: HostBuffer + std::fmt::Debug + 'static>(
        self,
        files: &[Arc<LocalFile>],
        faults: &[Fault],
        pool: Option<Arc<Pool>>,
    ) -> Box<dyn Queue<B>> {
        let as_is = || files.iter().map(|file| Arc::clone(file) as Arc<dyn WriteAt>).collect();
        let faulty =
            |file: &Arc<LocalFile>| Arc::new(Faulty::new(Arc::clone(file), faults.to_vec())) as Arc<dyn WriteAt>;
        // Faults of the queue itself are its own in any case.
        match self.by {
            By::Calls => {
                let files = files.iter().map(faulty).collect();
                let refusals = faults.iter().filter(|fault| matches!(fault, Fault::RefuseAt(_) | Fault::RefuseFrom(_)));
                let queue = BlockingQueue::writer(files, Arc::default());
                Box::new(FaultyQueue::new(queue, refusals.copied().collect()))
            }
            By::Blocking => Box::new(FaultyQueue::new(BlockingQueue::writer(as_is(), Arc::default()), faults.to_vec())),
            By::Ring => {
                let ring = UringQueue::new(files.to_vec(), DEPTH, pool, Arc::default()).unwrap();
                Box::new(FaultyQueue::new(ring, faults.to_vec()))
            }
        }
    }
}

/// Every fault at operation `n`. Cut short to whole pages only past the page cache, as the system cuts.
fn faults(n: u64, kind: Kind) -> Vec<Fault> {
    let mut faults = vec![
        Fault::FailFrom(n),
        Fault::FailAt(n, EIO),
        Fault::FailAt(n, ENOSPC),
        Fault::FailAt(n, EINTR),
        Fault::FailAt(n, EAGAIN),
        Fault::EndFrom(n),
        Fault::RefuseAt(n),
        Fault::RefuseFrom(n),
    ];
    // What is begun in the middle of a page is no ring's affair past the page cache.
    if kind.requested == RequestedPath::Buffered || kind.by == By::Calls {
        faults.push(Fault::Short(n));
    }
    faults
}

fn is_harmless(fault: Fault) -> bool {
    matches!(fault, Fault::FailAt(_, EINTR | EAGAIN) | Fault::Short(_) | Fault::RefuseAt(_))
}

/// Whether an error is what a fault makes of it.
fn is_of(fault: Fault, e: &io::Error) -> bool {
    match fault {
        Fault::FailFrom(_) => e.raw_os_error() == Some(EIO),
        Fault::FailAt(_, code) => e.raw_os_error() == Some(code),
        Fault::EndFrom(_) => matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero),
        Fault::RefuseAt(_) | Fault::RefuseFrom(_) => e.raw_os_error() == Some(ENXIO),
        _ => false,
    }
}

#[derive(Debug)]
enum End {
    Whole,
    Failed(u64, io::Error),
    Broken(io::Error),
}

/// Moves everything, stops at the first error, and takes back what is in flight.
fn move_all<B: HostBuffer>(
    queue: &mut dyn Queue<B>,
    supply: &dyn Supply<B>,
    direction: Direction,
    content: &[u8],
) -> End {
    let (mut at, mut end, mut done) = (0, End::Whole, Vec::new());
    loop {
        while queue.in_flight() < queue.depth()
            && at < ALL
            && matches!(end, End::Whole)
            && let Some(mut buffer) = supply.try_get(BLOCK)
        {
            if direction == Direction::Write {
                buffer[..BLOCK].copy_from_slice(&content[at..at + BLOCK]);
            }
            let (offset, tag) = (at as u64, at as u64);
            queue.submit(Transfer { direction, file: 0, offset, at: 0, bytes: BLOCK, needed: BLOCK, buffer, tag });
            at += BLOCK;
        }
        if queue.in_flight() == 0 {
            return end;
        }
        if let Err(e) = queue.reap(1, &mut done) {
            // Once more: what was refused for once goes on.
            if queue.reap(1, &mut done).is_err() {
                return End::Broken(e);
            }
        }
        assert!(!done.is_empty(), "who waits is given something");
        for one in done.drain(..) {
            match one.advance() {
                Advance::Rest(rest) => queue.submit(rest),
                Advance::Failed(failed, e) => {
                    let block = failed.tag..failed.tag + BLOCK as u64;
                    assert!(block.contains(&failed.offset), "{} of a transfer at {}", failed.offset, failed.tag);
                    if matches!(end, End::Whole) {
                        end = End::Failed(failed.offset, e);
                    }
                }
                Advance::Whole(whole) => {
                    let wanted = &content[whole.tag as usize..whole.tag as usize + BLOCK];
                    assert!(whole.buffer[..BLOCK] == *wanted, "what came whole is what is there");
                }
            }
        }
    }
}

/// The blocks of operations that surely come, whatever goes on besides.
const LAST: u64 = BLOCKS as u64 + 3;

#[test]
fn a_queue_by_itself() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let path = dir.path().join("f");
    let mut runs = 0;
    for kind in Kind::all() {
        for direction in [Direction::Read, Direction::Write] {
            for (n, fault) in (0..=LAST).flat_map(|n| faults(n, kind).into_iter().map(move |fault| (n, fault))) {
                let before = if direction == Direction::Read { content.clone() } else { vec![1; ALL] };
                fs::write(&path, before).unwrap();
                let home = Home::new(DEPTH + 1);
                let mut queue = kind.queue::<Tracked>(&[kind.open(&path)], &[fault], None);
                let end = move_all(queue.as_mut(), &home, direction, &content);
                let said = format!("{kind:?} {direction:?} {fault:?}: {end:?}");
                runs += 1;
                match &end {
                    End::Whole => assert!(is_harmless(fault) || n >= BLOCKS as u64 / DEPTH as u64, "{said}"),
                    End::Failed(_, e) => assert!(is_of(fault, e) && !is_harmless(fault), "{said}"),
                    End::Broken(e) => assert!(is_of(fault, e) && matches!(fault, Fault::RefuseFrom(_)), "{said}"),
                }
                if n < BLOCKS as u64 && matches!(fault, Fault::FailFrom(_) | Fault::FailAt(_, EIO) | Fault::EndFrom(_))
                {
                    assert!(matches!(end, End::Failed(..)), "{said}");
                }
                let is_past = matches!(fault, Fault::FailAt(..) | Fault::Short(_) | Fault::RefuseAt(_));
                if is_past && !matches!(end, End::Broken(_)) {
                    home.check(&said);
                    let again = move_all(queue.as_mut(), &home, direction, &content);
                    // One that comes only now is past when it has.
                    let again = match again {
                        End::Failed(..) if matches!(end, End::Whole) => {
                            move_all(queue.as_mut(), &home, direction, &content)
                        }
                        again => again,
                    };
                    assert!(matches!(again, End::Whole), "{said}: as good as new, and not {again:?}");
                    assert!(fs::read(&path).unwrap() == content, "{said}");
                }
                drop(queue);
                home.check(&said);
            }
        }
    }
    assert!(runs > 400, "only {runs}");
}

/// The same with buffers that the ring knows beforehand.
#[test]
fn a_ring_with_registered_buffers() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let path = dir.path().join("f");
    for kind in Kind::all().into_iter().filter(|kind| kind.by == By::Ring) {
        for direction in [Direction::Read, Direction::Write] {
            for fault in (0..=LAST).flat_map(|n| faults(n, kind)) {
                fs::write(&path, &content).unwrap();
                let pool = Pool::new(DEPTH + 1, BLOCK);
                let mut queue = kind.queue::<PoolBuf>(&[kind.open(&path)], &[fault], Some(Arc::clone(&pool)));
                let end = move_all(queue.as_mut(), &pool, direction, &content);
                let said = format!("{kind:?} {direction:?} {fault:?}: {end:?}");
                if let End::Failed(_, e) | End::Broken(e) = &end {
                    assert!(is_of(fault, e) && !is_harmless(fault), "{said}");
                }
                drop(queue);
                assert_eq!(std::iter::from_fn(|| pool.take()).collect::<Vec<_>>().len(), DEPTH + 1, "{said}");
            }
        }
    }
}

#[test]
fn a_stream() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let paths = ["a", "b"].map(|name| dir.path().join(name));
    paths.iter().for_each(|path| fs::write(path, &content).unwrap());
    // Two files by turns, adjacent and not.
    let extents: Vec<Extent> = (0..BLOCKS)
        .flat_map(|n| [0, 1].map(|file| Extent { file, offset: (n * BLOCK) as u64, bytes: BLOCK - 100 * (n % 3) }))
        .collect();
    for kind in Kind::all() {
        let files: Vec<Arc<LocalFile>> = paths.iter().map(|path| kind.open(path)).collect();
        let names: Vec<String> = files.iter().map(|file| file.name().to_string()).collect();
        for (n, fault) in (0..=LAST).flat_map(|n| faults(n, kind).into_iter().map(move |fault| (n, fault))) {
            for order in [Order::Given, Order::Arrival] {
                let homes = [Home::new(3), Home::new(3)];
                let reads = |n: usize| Reads {
                    files: vec![n],
                    queues: (0..2).map(|_| kind.queue::<Tracked>(&files, &[fault], None)).collect(),
                    supply: Box::new(homes[n].clone()),
                };
                let options = StreamOptions { request_bytes: BLOCK, gap_bytes: None, order, cut: Cut::Anywhere };
                let reader = StreamReader::start(names.clone(), &extents, options, vec![reads(0), reads(1)]);
                let mut came = 0;
                let outcome = loop {
                    match reader.next() {
                        Ok(None) => break Ok(()),
                        Err(e) => break Err(e),
                        Ok(Some(filled)) => {
                            for piece in &filled.pieces {
                                let Extent { offset, bytes, .. } = extents[piece.extent];
                                assert_eq!((piece.from, piece.range.len()), (0, bytes));
                                let wanted = &content[offset as usize..offset as usize + bytes];
                                assert!(filled.buffer[piece.range.clone()] == *wanted);
                                came += 1;
                            }
                        }
                    }
                };
                let said = format!("{kind:?} {order:?} {fault:?}: {outcome:?}");
                match &outcome {
                    Ok(()) => assert!(came == extents.len() && (is_harmless(fault) || n > 0), "{said}"),
                    // The queue itself has no place in a file.
                    Err(e) if matches!(fault, Fault::RefuseAt(_) | Fault::RefuseFrom(_)) => {
                        assert!(is_of(fault, &e.source) && names.iter().all(|name| e.object.contains(name)), "{said}");
                    }
                    Err(e) => {
                        assert!(is_of(fault, &e.source) && !is_harmless(fault), "{said}");
                        let (offset, bytes) = e.extent.unwrap();
                        assert!(names.contains(&e.object) && offset < ALL as u64 && bytes <= BLOCK, "{said}");
                        assert_eq!(reader.next().unwrap_err().to_string(), e.to_string(), "and again");
                    }
                }
                drop(reader);
                homes.iter().for_each(|home| home.check(&said));
            }
        }
    }
}

#[test]
fn what_is_read_ahead() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let path = dir.path().join("f");
    fs::write(&path, &content).unwrap();
    let limit = 5 * BLOCK;
    let extents: Vec<Extent> =
        (0..BLOCKS).map(|n| Extent { file: 0, offset: (n * BLOCK) as u64, bytes: BLOCK - n }).collect();
    for kind in Kind::all() {
        for fault in (0..=LAST).flat_map(|n| faults(n, kind)) {
            let allowance = Allowance::new(limit);
            let queues = (0..2).map(|_| kind.queue::<LentBuf>(&[kind.open(&path)], &[fault], None)).collect();
            let ahead = ReadAhead::start(queues, allowance.clone(), 0);
            ahead.ask(extents.iter().copied().enumerate());
            for extent in &extents {
                if let Some(buffer) = ahead.take(extent) {
                    let wanted = &content[extent.offset as usize..][..extent.bytes];
                    assert!(buffer[..] == *wanted, "{kind:?} {fault:?} {extent:?}");
                }
            }
            assert_eq!(ahead.bytes(), 0, "{kind:?} {fault:?}: nothing is kept");
            drop(ahead);
            assert!(allowance.take(limit).is_some(), "{kind:?} {fault:?}: every buffer is back");
        }
    }
}

/// No injection: the file is cut while it is read.
#[test]
fn a_file_that_is_cut_underneath() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let path = dir.path().join("f");
    for kind in Kind::all() {
        for left in [0, 1, 511, 512, 4096, 4097, BLOCK, 3 * BLOCK + 5, 3 * BLOCK + 4096, ALL - 1] {
            fs::write(&path, &content).unwrap();
            let file = kind.open(&path);
            let home = Home::new(DEPTH + 1);
            let mut queue = kind.queue::<Tracked>(&[Arc::clone(&file)], &[], None);
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(left as u64).unwrap();
            let end = move_all(queue.as_mut(), &home, Direction::Read, &content);
            let said = format!("{kind:?} cut at {left}: {end:?}");
            // Blocks behind the cut may come back before the one that it goes through.
            let End::Failed(offset, e) = end else { panic!("{said}") };
            assert!(e.kind() == io::ErrorKind::UnexpectedEof && offset >= left as u64, "{said}");
            assert!(e.to_string().contains(&format!("the file ends at {offset}")), "{said}");
            drop(queue);
            home.check(&said);

            let homes = Home::new(3);
            let extents = [Extent { file: 0, offset: 0, bytes: ALL }];
            let options =
                StreamOptions { request_bytes: BLOCK, gap_bytes: None, order: Order::Given, cut: Cut::Anywhere };
            let (files, queues) = (vec![0], vec![kind.queue::<Tracked>(&[file], &[], None)]);
            let reads = Reads { files, queues, supply: Box::new(homes.clone()) };
            let reader = StreamReader::start(vec!["the file".into()], &extents, options, vec![reads]);
            let e = loop {
                match reader.next() {
                    Ok(filled) => assert!(filled.is_some(), "{said}"),
                    Err(e) => break e,
                }
            };
            let place = e.extent.map_or(0, |(offset, _)| offset);
            let is_told = e.object == "the file" && place >= left as u64 && e.to_string().contains("the file ends at ");
            assert!(is_told, "{kind:?} cut at {left}: {e}");
            drop(reader);
            homes.check(&said);
        }
    }
}

/// No injection: places that no file has, and a file that is not open for writing.
#[test]
fn what_the_system_refuses() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let path = dir.path().join("f");
    fs::write(&path, &content).unwrap();
    for kind in Kind::all() {
        let home = Home::new(2);
        let read_only = Arc::new(LocalFile::open(&path, kind.requested).unwrap());
        let past = (i64::MAX as u64 - 4095) & !4095;
        for (file, direction, offset) in
            [(&kind.open(&path), Direction::Write, past), (&read_only, Direction::Write, 0)]
        {
            let mut queue = kind.queue::<Tracked>(&[Arc::clone(file)], &[], None);
            let buffer = home.try_get(BLOCK).unwrap();
            let bytes = BLOCK;
            queue.submit(Transfer { direction, file: 0, offset, at: 0, bytes, needed: bytes, buffer, tag: 0 });
            let mut done = Vec::new();
            queue.reap(1, &mut done).unwrap();
            let Advance::Failed(failed, e) = done.remove(0).advance() else { panic!("{kind:?} at {offset}") };
            assert!(failed.offset == offset && e.raw_os_error().is_some(), "{kind:?} at {offset}: {e}");
            drop(failed);
            // And goes on.
            let end = move_all(queue.as_mut(), &home, Direction::Read, &content);
            assert!(matches!(end, End::Whole), "{kind:?} at {offset}: {end:?}");
            drop(queue);
            home.check("refused");
        }
        assert!(matches!(read_only.hints().path, Path::Buffered | Path::HostDirect));
    }
    assert!(fs::read(&path).unwrap() == content);
}
