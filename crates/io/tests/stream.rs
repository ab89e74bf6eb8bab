//! The streaming reader over every kind of queue: what it hands out is what the files hold, whatever the extents, and
//! whatever goes wrong is an error that says where, after which every buffer is back.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "support/stuck.rs"]
mod stuck;
mod support;

use std::fs;
use std::path::Path as FsPath;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use onehop_io::{
    Allowance, BlockingQueue, Cut, Extent, Fault, Faulty, FaultyQueue, HostBuffer, Ledger, LocalFile, Order, Pool,
    Queue, ReadAt, Reads, RequestedPath, StreamOptions, StreamReader, Supply, UringQueue,
};
use stuck::Stuck;
use support::mix;

/// Random numbers of a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Files whose every byte says where it is.
struct Files {
    _dir: tempfile::TempDir,
    contents: Vec<Vec<u8>>,
    files: Vec<Arc<LocalFile>>,
}

impl Files {
    fn new(lengths: &[usize], requested: RequestedPath) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let contents: Vec<Vec<u8>> = lengths
            .iter()
            .enumerate()
            .map(|(f, n)| (0..*n).map(|i| mix(((f as u64) << 40) | (i as u64 / 8)) as u8 ^ i as u8).collect())
            .collect();
        let make = |(n, bytes): (usize, &Vec<u8>)| {
            let path = dir.path().join(n.to_string());
            fs::write(&path, bytes).unwrap();
            Arc::new(LocalFile::open(&path, requested).unwrap())
        };
        let files = contents.iter().enumerate().map(make).collect();
        Self { _dir: dir, contents, files }
    }

    fn names(&self) -> Vec<String> {
        self.files.iter().map(|file| file.name().to_owned()).collect()
    }

    fn readers(&self) -> Vec<Arc<dyn ReadAt>> {
        self.files.iter().map(|file| Arc::clone(file) as Arc<dyn ReadAt>).collect()
    }

    fn path(&self, n: usize) -> &FsPath {
        FsPath::new(self.files[n].name())
    }

    fn extents(&self, random: &mut Random, count: usize) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for _ in 0..count {
            let near = extents.last().copied().filter(|_| random.below(3) > 0);
            let file = near.map_or_else(|| random.below(self.contents.len()), |last| last.file);
            let length = self.contents[file].len();
            let start = match near {
                None => random.below(length),
                Some(last) => (last.offset as usize + last.bytes + random.below(2) * random.below(9000)).min(length),
            };
            let most = [1, 4096, 70_000, 300_000][random.below(4)];
            let bytes = random.below(most + 1).min(length - start);
            extents.push(Extent { file, offset: start as u64, bytes });
        }
        extents
    }
}

/// Reads everything and compares. What the error is, if there is one.
fn read_all<B: HostBuffer + 'static>(
    files: &Files,
    extents: &[Extent],
    options: StreamOptions,
    devices: Vec<Reads<B>>,
) -> onehop_io::Result<()> {
    let reader = StreamReader::start(files.names(), extents, options, devices);
    let mut got: Vec<Vec<Option<u8>>> = extents.iter().map(|extent| vec![None; extent.bytes]).collect();
    let mut last = 0;
    while let Some(filled) = reader.next()? {
        for piece in &filled.pieces {
            assert!(options.order == Order::Arrival || piece.extent >= last, "out of order");
            last = piece.extent;
            let part = &mut got[piece.extent][piece.from..piece.from + piece.range.len()];
            for (to, from) in part.iter_mut().zip(&filled.buffer[piece.range.clone()]) {
                assert!(to.replace(*from).is_none(), "a byte came twice");
            }
        }
    }
    assert!(reader.next()?.is_none(), "the end stays the end");
    for (extent, got) in extents.iter().zip(&got) {
        let expected = &files.contents[extent.file][extent.offset as usize..][..extent.bytes];
        assert!(got.iter().zip(expected).all(|(got, expected)| *got == Some(*expected)), "{extent:?}");
    }
    Ok(())
}

/// Both files on a device of their own, so many threads each.
fn devices<B: 'static>(
    threads: usize,
    queue: impl Fn() -> Box<dyn Queue<B>>,
    supply: impl Fn() -> Box<dyn Supply<B>>,
) -> Vec<Reads<B>> {
    (0..2)
        .map(|n| Reads { files: vec![n], queues: (0..threads).map(|_| queue()).collect(), supply: supply() })
        .collect()
}

fn options(random: &mut Random) -> StreamOptions {
    StreamOptions {
        request_bytes: [4096, 65_536, 1 << 20][random.below(3)],
        cut: Cut::Anywhere,
        gap_bytes: [None, Some(0), Some(5000)][random.below(3)],
        order: [Order::Given, Order::Arrival][random.below(2)],
    }
}

fn rings_are_allowed(files: &Files) -> bool {
    let ring = UringQueue::<onehop_io::PoolBuf>::new(files.files.clone(), 1, None, Arc::default());
    ring.inspect_err(|e| eprintln!("no io_uring here: {e}")).is_ok()
}

#[test]
fn what_is_read_is_what_is_there() {
    for requested in [RequestedPath::Buffered, RequestedPath::PreferHostDirect] {
        let files = Files::new(&[1_000_003, 300_000], requested);
        for seed in 0..40 {
            let random = &mut Random(seed);
            let count = random.below(60);
            let extents = files.extents(random, count);
            let options = options(random);
            let (threads, depth, buffers) = (1 + random.below(3), 1 + random.below(9), 1 + random.below(6));
            let ledger = Arc::new(Ledger::default());
            let pool = || Box::new(Pool::new(buffers, options.request_bytes)) as Box<dyn Supply<_>>;
            let blocking =
                || Box::new(BlockingQueue::reader(files.readers(), Arc::clone(&ledger))) as Box<dyn Queue<_>>;
            read_all(&files, &extents, options, devices(threads, blocking, pool)).unwrap();
            if !rings_are_allowed(&files) {
                continue;
            }
            // Registered buffers and others.
            let registered = [true, false][random.below(2)];
            let rings: Vec<_> = (0..2)
                .map(|n| {
                    let pool = Pool::new(buffers, options.request_bytes);
                    let of_ring = registered.then(|| Arc::clone(&pool));
                    let queue = || {
                        let ring = UringQueue::new(files.files.clone(), depth, of_ring.clone(), Arc::clone(&ledger));
                        Box::new(ring.unwrap()) as Box<dyn Queue<_>>
                    };
                    Reads { files: vec![n], queues: (0..threads).map(|_| queue()).collect(), supply: Box::new(pool) }
                })
                .collect();
            read_all(&files, &extents, options, rings).unwrap();
            let bytes = options.request_bytes * buffers;
            let allowances = [Allowance::new(bytes), Allowance::new(bytes)];
            let ring = || {
                let ring = UringQueue::new(files.files.clone(), depth, None, Arc::clone(&ledger)).unwrap();
                Box::new(ring) as Box<dyn Queue<_>>
            };
            let rings = |n: usize| Reads {
                files: vec![n],
                queues: (0..threads).map(|_| ring()).collect(),
                supply: Box::new(allowances[n].clone()),
            };
            read_all(&files, &extents, options, vec![rings(0), rings(1)]).unwrap();
            assert!(allowances.iter().all(|all| all.take(bytes).is_some()), "everything came back");
        }
    }
}

#[test]
fn short_and_interrupted_transfers_are_begun_again() {
    let files = Files::new(&[500_000, 200_000], RequestedPath::Buffered);
    for seed in 0..30 {
        let random = &mut Random(seed);
        let extents = files.extents(random, 30);
        let options = options(random);
        let faults = vec![Fault::Short(seed), Fault::InterruptAt(seed % 7), Fault::InterruptAt(11)];
        let pool = || Box::new(Pool::new(4, options.request_bytes)) as Box<dyn Supply<_>>;
        let by_calls = || {
            let faulty =
                |file: &Arc<LocalFile>| Arc::new(Faulty::new(Arc::clone(file), faults.clone())) as Arc<dyn ReadAt>;
            let readers = files.files.iter().map(faulty).collect();
            Box::new(BlockingQueue::reader(readers, Arc::default())) as Box<dyn Queue<_>>
        };
        read_all(&files, &extents, options, devices(2, by_calls, pool)).unwrap();
        if rings_are_allowed(&files) {
            let by_transfers = || {
                let ring = UringQueue::new(files.files.clone(), 8, None, Arc::default()).unwrap();
                Box::new(FaultyQueue::new(ring, faults.clone())) as Box<dyn Queue<_>>
            };
            read_all(&files, &extents, options, devices(2, by_transfers, pool)).unwrap();
        }
    }
}

/// Every transfer in turn fails: the error names file and offset, and no buffer is lost.
#[test]
fn an_error_at_any_transfer_is_reported_and_loses_nothing() {
    let files = Files::new(&[400_000, 200_000], RequestedPath::Buffered);
    let random = &mut Random(7);
    let extents = files.extents(random, 90);
    let options = StreamOptions { request_bytes: 16_384, cut: Cut::Anywhere, gap_bytes: Some(0), order: Order::Given };
    let kinds = if rings_are_allowed(&files) { 2 } else { 1 };
    for kind in 0..kinds {
        let mut at = 0;
        loop {
            let pools = [Pool::new(3, options.request_bytes), Pool::new(3, options.request_bytes)];
            let faults = vec![Fault::FailFrom(at)];
            let queue = || -> Box<dyn Queue<_>> {
                match kind {
                    0 => {
                        let blocking = BlockingQueue::reader(files.readers(), Arc::default());
                        Box::new(FaultyQueue::new(blocking, faults.clone()))
                    }
                    _ => {
                        let ring = UringQueue::new(files.files.clone(), 4, None, Arc::default()).unwrap();
                        Box::new(FaultyQueue::new(ring, faults.clone()))
                    }
                }
            };
            let reads =
                |n: usize| Reads { files: vec![n], queues: vec![queue()], supply: Box::new(Arc::clone(&pools[n])) };
            let outcome = read_all(&files, &extents, options, vec![reads(0), reads(1)]);
            for pool in &pools {
                let back: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
                assert_eq!(back.len(), 3, "every buffer is back");
            }
            match outcome {
                Ok(()) => break,
                Err(e) => {
                    assert!(files.names().contains(&e.object) && e.extent.is_some(), "{e}");
                    assert_eq!(e.source.raw_os_error(), Some(5), "{e}");
                }
            }
            at += 1;
        }
        assert!(at > 20, "only {at} transfers");
    }
}

#[test]
fn a_file_that_was_cut_is_an_error_with_its_place() {
    let files = Files::new(&[100_000, 10], RequestedPath::Buffered);
    fs::OpenOptions::new().write(true).open(files.path(0)).unwrap().set_len(40_960).unwrap();
    let extents = [Extent { file: 0, offset: 0, bytes: 100_000 }];
    let options = StreamOptions { request_bytes: 8192, cut: Cut::Anywhere, gap_bytes: Some(0), order: Order::Given };
    let pool = || Box::new(Pool::new(2, 8192)) as Box<dyn Supply<_>>;
    let blocking = || Box::new(BlockingQueue::reader(files.readers(), Arc::default())) as Box<dyn Queue<_>>;
    let error = read_all(&files, &extents, options, devices(1, blocking, pool)).unwrap_err();
    assert_eq!((error.object.as_str(), error.extent), (files.files[0].name(), Some((40_960, 8192))));
    assert!(error.to_string().contains("the file ends at 40960"), "{error}");
}

/// Whoever stops in the middle, holding buffers or not, waits for nothing that cannot come.
#[test]
fn dropped_at_any_point_it_ends() {
    let files = Files::new(&[300_000, 300_000], RequestedPath::Buffered);
    let extents: Vec<Extent> =
        (0..60).map(|n| Extent { file: n % 2, offset: (n as u64 / 2) * 9_000, bytes: 9_000 }).collect();
    let options = StreamOptions { request_bytes: 12_288, cut: Cut::Anywhere, gap_bytes: None, order: Order::Given };
    for taken in 0..20 {
        let pool = || Box::new(Pool::new(12, 12_288)) as Box<dyn Supply<_>>;
        let queue = || -> Box<dyn Queue<_>> {
            match UringQueue::new(files.files.clone(), 4, None, Arc::default()) {
                Ok(ring) => Box::new(ring),
                Err(_) => Box::new(BlockingQueue::reader(files.readers(), Arc::default())),
            }
        };
        let reader = StreamReader::start(files.names(), &extents, options, devices(2, queue, pool));
        let held: Vec<_> = (0..taken).map(|_| reader.next().unwrap().unwrap()).collect();
        drop(reader);
        drop(held);
    }
}

/// Extents that are not cut come in one piece each, neighbours in one buffer, however long one of them is.
#[test]
fn extents_that_are_not_cut_come_whole() {
    let files = Files::new(&[1_000_003, 300_000], RequestedPath::Buffered);
    for seed in 0..40 {
        let random = &mut Random(seed);
        let count = random.below(60);
        let extents = files.extents(random, count);
        let options = StreamOptions { cut: Cut::BetweenExtents, ..options(random) };
        let limit = options.request_bytes * (1 + random.below(4));
        let allowances = [Allowance::new(limit), Allowance::new(limit)];
        let reads = |n: usize| Reads {
            files: vec![n],
            queues: vec![Box::new(BlockingQueue::reader(files.readers(), Arc::default())) as Box<dyn Queue<_>>],
            supply: Box::new(allowances[n].clone()),
        };
        read_all(&files, &extents, options, vec![reads(0), reads(1)]).unwrap();
        let reader = StreamReader::start(files.names(), &extents, options, vec![reads(0), reads(1)]);
        while let Some(filled) = reader.next().unwrap() {
            for piece in &filled.pieces {
                assert_eq!((piece.from, piece.range.len()), (0, extents[piece.extent].bytes), "{piece:?}");
            }
            let longest = filled.pieces.iter().map(|piece| piece.range.len()).max().unwrap_or(0);
            assert!(filled.buffer.len() <= options.request_bytes.max(longest + 2 * 4096), "{}", filled.buffer.len());
        }
    }
}

/// A task is woken when there is something to be had, and who gives up waits for nothing: what is in flight goes back
/// when the device answers.
#[test]
fn a_device_that_does_not_answer_holds_up_nobody() {
    struct Wakes(AtomicUsize);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let files = Files::new(&[100_000], RequestedPath::Buffered);
    let extents: Vec<Extent> = (0..20).map(|n| Extent { file: 0, offset: n * 4096, bytes: 4096 }).collect();
    let options = StreamOptions { request_bytes: 4096, cut: Cut::Anywhere, gap_bytes: None, order: Order::Given };
    let start = |allowance: &Allowance, gate: &Arc<(Mutex<bool>, Condvar)>| {
        let inner = BlockingQueue::reader(files.readers(), Arc::default());
        let queues =
            vec![Box::new(Stuck { inner, gate: Arc::clone(gate), is_asked: Arc::default() }) as Box<dyn Queue<_>>];
        let reads = Reads { files: vec![0], queues, supply: Box::new(allowance.clone()) };
        StreamReader::start(files.names(), &extents, options, vec![reads])
    };
    let open = |gate: &(Mutex<bool>, Condvar)| {
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
    };
    let (gate, allowance) = (Arc::default(), Allowance::new(3 * 4096));
    let reader = start(&allowance, &gate);
    let wakes = Arc::new(Wakes(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    assert!(reader.poll_next(&mut context).is_pending());
    assert_eq!(wakes.0.load(SeqCst), 0);
    open(&gate);
    let mut woken = 0;
    for n in 0..20 {
        let filled = loop {
            match reader.poll_next(&mut context) {
                Poll::Ready(next) => break next.unwrap().unwrap(),
                // Every time that there is nothing, somebody says when there is.
                Poll::Pending => {
                    while wakes.0.load(SeqCst) == woken {
                        std::thread::yield_now();
                    }
                    woken += 1;
                }
            }
        };
        assert_eq!(filled.pieces[0].extent, n);
    }
    assert!(matches!(reader.poll_next(&mut context), Poll::Ready(Ok(None))));
    // Given up while the device has a buffer.
    let gate = Arc::default();
    let reader = start(&allowance, &gate);
    while allowance.take(3 * 4096).is_some() {
        std::thread::yield_now();
    }
    reader.abandon();
    assert!(allowance.take(3 * 4096).is_none(), "the device still has it");
    open(&gate);
    while allowance.take(3 * 4096).is_none() {
        std::thread::yield_now();
    }
}

/// Who waits for many extents is woken when they have come, or when no more can come before some are dropped: never for
/// each of them, and never too late.
#[test]
fn who_waits_for_many_is_woken_once() {
    #[derive(Default)]
    struct Wakes(AtomicUsize);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    const EXTENTS: usize = 60;
    let files = Files::new(&[300_000, 300_000], RequestedPath::Buffered);
    // Of two devices by turns.
    let extents: Vec<Extent> =
        (0..EXTENTS).map(|n| Extent { file: n % 2, offset: n as u64 / 2 * 4096, bytes: 4096 }).collect();
    let options = StreamOptions { request_bytes: 4096, cut: Cut::Anywhere, gap_bytes: None, order: Order::Given };
    let run = |buffers: [usize; 2], together: usize| -> usize {
        let gate: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let reads = |n: usize| {
            let inner = BlockingQueue::reader(files.readers(), Arc::default());
            let queues =
                vec![Box::new(Stuck { inner, gate: Arc::clone(&gate), is_asked: Arc::default() }) as Box<dyn Queue<_>>];
            Reads { files: vec![n], queues, supply: Box::new(Allowance::new(buffers[n] * 4096)) }
        };
        let reader = StreamReader::start(files.names(), &extents, options, vec![reads(0), reads(1)]);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let (mut woken, mut held) = (0, Vec::new());
        for n in 0..EXTENTS {
            let wanted = (n / together * together + together - 1).min(EXTENTS - 1);
            let filled = loop {
                match reader.poll_for(&mut context, wanted) {
                    Poll::Ready(next) => break next.unwrap().unwrap(),
                    Poll::Pending => {
                        *gate.0.lock().unwrap() = true;
                        gate.1.notify_all();
                        while wakes.0.load(SeqCst) == woken {
                            std::thread::yield_now();
                        }
                        woken = wakes.0.load(SeqCst);
                    }
                }
            };
            assert_eq!(filled.pieces[0].extent, n);
            // What is taken out is not the reader's any more.
            held.push(filled.buffer.into_inner());
        }
        assert!(matches!(reader.poll_for(&mut context, EXTENTS - 1), Poll::Ready(Ok(None))));
        woken
    };
    // With buffers for all of them, nobody is woken more often than there are runs that are wanted together.
    assert!(run([EXTENTS; 2], EXTENTS) <= 1);
    assert!(run([EXTENTS; 2], 10) <= EXTENTS / 10);
    // With few, as often as it takes.
    for buffers in [[1, 1], [1, 40], [40, 1], [2, 3], [5, 5]] {
        for together in [1, 2, 7, EXTENTS] {
            run(buffers, together);
        }
    }
}

/// A device whose buffers are all held up does not hold up another.
#[test]
fn devices_do_not_wait_for_each_other() {
    let files = Files::new(&[200_000, 200_000], RequestedPath::Buffered);
    let on = |file: usize| (0..10).map(move |n| Extent { file, offset: n * 4096, bytes: 4096 });
    let extents: Vec<Extent> = on(0).chain(on(1)).collect();
    let options = StreamOptions { request_bytes: 4096, cut: Cut::Anywhere, gap_bytes: None, order: Order::Arrival };
    let pools = [Pool::new(1, 4096), Pool::new(10, 4096)];
    let held = pools[0].take();
    let reads = |n: usize| Reads {
        files: vec![n],
        queues: vec![Box::new(BlockingQueue::reader(files.readers(), Arc::default())) as Box<dyn Queue<_>>],
        supply: Box::new(Arc::clone(&pools[n])),
    };
    let reader = StreamReader::start(files.names(), &extents, options, vec![reads(0), reads(1)]);
    for _ in 0..10 {
        let filled = reader.next().unwrap().unwrap();
        assert!(filled.pieces[0].extent >= 10);
    }
    drop(held);
    for _ in 0..10 {
        assert!(reader.next().unwrap().unwrap().pieces[0].extent < 10);
    }
    assert!(reader.next().unwrap().is_none());
}
