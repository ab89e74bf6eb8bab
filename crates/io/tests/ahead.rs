//! Reading ahead over every kind of queue: what is taken is what the files hold, or is not there; whatever goes wrong,
//! and whenever it is dropped, every buffer is back.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "support/stuck.rs"]
mod stuck;
mod support;

use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex};

use onehop_io::{
    Allowance, BlockingQueue, Extent, Fault, FaultyQueue, Ledger, LentBuf, LocalFile, Queue, ReadAhead, ReadAt,
    RequestedPath, UringQueue,
};
use stuck::Stuck;
use support::mix;

const LIMIT: usize = 200_000;

/// Each read by itself, and several at once.
const REQUEST_BYTES: [usize; 2] = [0, 100_000];

struct Sample {
    _dir: tempfile::TempDir,
    contents: Vec<u8>,
    file: Arc<LocalFile>,
}

impl Sample {
    fn new(requested: RequestedPath) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let contents: Vec<u8> = (0..1_000_003u64).map(|i| mix(i / 8) as u8 ^ i as u8).collect();
        let path = dir.path().join("f");
        fs::write(&path, &contents).unwrap();
        let file = Arc::new(LocalFile::open(&path, requested).unwrap());
        Self { _dir: dir, contents, file }
    }

    /// Of all sizes, each from a page's start.
    fn extents(&self) -> Vec<Extent> {
        let mut extents = Vec::new();
        let mut offset = 0;
        for n in 0.. {
            let bytes = (1 + mix(n) as usize % 40_000).min(self.contents.len().saturating_sub(offset));
            if bytes == 0 {
                return extents;
            }
            extents.push(Extent { file: 0, offset: offset as u64, bytes });
            offset = (offset + bytes).next_multiple_of(4096);
        }
        extents
    }

    fn expected(&self, extent: &Extent) -> &[u8] {
        &self.contents[extent.offset as usize..][..extent.bytes]
    }

    /// Kinds of queues, with faults.
    fn queues(&self, faults: &[Fault]) -> Vec<Vec<Box<dyn Queue<LentBuf>>>> {
        let blocking = || {
            let files = vec![Arc::clone(&self.file) as Arc<dyn ReadAt>];
            let queue = BlockingQueue::reader(files, Arc::default());
            Box::new(FaultyQueue::new(queue, faults.to_vec())) as Box<dyn Queue<LentBuf>>
        };
        let mut kinds = vec![vec![blocking()], (0..3).map(|_| blocking()).collect()];
        match UringQueue::new(vec![Arc::clone(&self.file)], 8, None, Arc::default()) {
            Ok(ring) => kinds.push(vec![Box::new(FaultyQueue::new(ring, faults.to_vec()))]),
            Err(e) => eprintln!("no io_uring here: {e}"),
        }
        kinds
    }
}

fn is_all_back(allowance: &Allowance) -> bool {
    allowance.take(LIMIT).is_some()
}

/// Takes all of them, with some forgotten and some never asked for; how many were there, and as they should be.
fn take_all(sample: &Sample, ahead: &ReadAhead, seed: u64) -> usize {
    let extents = sample.extents();
    let fate = |n: usize| mix(seed ^ n as u64) % 8;
    ahead.ask(extents.iter().enumerate().filter(|(n, _)| fate(*n) != 0).map(|(n, extent)| (n, *extent)));
    let mut there = 0;
    for (n, extent) in extents.iter().enumerate() {
        if fate(n) == 1 {
            ahead.forget([*extent]);
        }
        if let Some(buffer) = ahead.take(extent) {
            assert!(&buffer[..] == sample.expected(extent), "{extent:?}");
            assert!(fate(n) > 1);
            there += 1;
        }
        assert!(ahead.take(extent).is_none(), "taken once");
    }
    assert_eq!(ahead.bytes(), 0);
    there
}

#[test]
fn what_is_taken_is_what_is_there() {
    for requested in [RequestedPath::Buffered, RequestedPath::PreferHostDirect] {
        let sample = Sample::new(requested);
        for (seed, request_bytes) in (0..20).flat_map(|seed| REQUEST_BYTES.map(|bytes| (seed, bytes))) {
            let faults = [Fault::Short(seed), Fault::InterruptAt(seed % 5)];
            for queues in sample.queues(if seed % 2 == 0 { &faults } else { &[] }) {
                let allowance = Allowance::new(LIMIT);
                let ahead = ReadAhead::start(queues, allowance.clone(), request_bytes);
                take_all(&sample, &ahead, seed);
                drop(ahead);
                assert!(is_all_back(&allowance));
            }
        }
    }
}

/// Whoever waits a little finds everything that fits.
#[test]
fn what_was_asked_for_comes() {
    let sample = Sample::new(RequestedPath::Buffered);
    for queues in sample.queues(&[]) {
        let allowance = Allowance::new(LIMIT);
        let ahead = ReadAhead::start(queues, allowance.clone(), 0);
        for (n, extent) in sample.extents().into_iter().enumerate() {
            ahead.ask([(n, extent)]);
            // In flight it is waited for; until it is, it may be withdrawn.
            while allowance.take(LIMIT).is_some() {
                std::thread::yield_now();
            }
            assert!(&ahead.take(&extent).unwrap()[..] == sample.expected(&extent));
        }
    }
}

/// What follows each other in a file comes by fewer reads, each no longer than it may be; each part counts for itself.
#[test]
fn neighbours_are_read_at_once() {
    const ROOM: usize = 1 << 20;
    let sample = Sample::new(RequestedPath::Buffered);
    // One that nobody asks for parts those on both sides of it.
    let is_asked = |n: &u64| *n != 20;
    let extents = || (0..64).filter(is_asked).map(|n| Extent { file: 0, offset: n * 8192, bytes: 5000 });
    let bytes = extents().count() as u64 * 8192;
    for (request_bytes, reads) in [(0, 63), (32 << 10, 5 + 11), (1 << 20, 2)] {
        let (ledger, allowance) = (Arc::new(Ledger::default()), Allowance::new(ROOM));
        let queue = BlockingQueue::reader(vec![Arc::clone(&sample.file) as Arc<dyn ReadAt>], Arc::clone(&ledger));
        let ahead = ReadAhead::start(vec![Box::new(queue)], allowance.clone(), request_bytes);
        ahead.ask(extents().enumerate());
        // Looking at the allowance instead would take from it what a read needs.
        while ledger.snapshot().read_bytes() < bytes {
            std::thread::yield_now();
        }
        for (n, extent) in extents().enumerate() {
            match n % 3 {
                0 => ahead.forget([extent]),
                1 => assert!(&ahead.take(&extent).unwrap()[..] == sample.expected(&extent)),
                _ => {}
            }
        }
        assert_eq!(ahead.bytes(), 21 * 5000);
        assert_eq!(ledger.snapshot().read_ops, reads);
        drop(ahead);
        assert!(allowance.take(ROOM).is_some());
    }
}

/// What fails is not there, what came before is, and nobody waits for ever.
#[test]
fn an_error_at_any_transfer_loses_nothing() {
    let sample = Sample::new(RequestedPath::Buffered);
    for at in 0..50 {
        for queues in sample.queues(&[Fault::FailFrom(at)]) {
            let lanes = queues.len() as u64;
            let allowance = Allowance::new(LIMIT);
            let ahead = ReadAhead::start(queues, allowance.clone(), 0);
            assert!(take_all(&sample, &ahead, at) as u64 <= at * lanes);
            drop(ahead);
            assert!(is_all_back(&allowance));
        }
    }
}

#[test]
fn a_file_that_was_cut_has_less() {
    let sample = Sample::new(RequestedPath::Buffered);
    fs::OpenOptions::new().write(true).open(sample.file.name()).unwrap().set_len(500_000).unwrap();
    for request_bytes in REQUEST_BYTES {
        for queues in sample.queues(&[]) {
            let ahead = ReadAhead::start(queues, Allowance::new(LIMIT), request_bytes);
            ahead.ask(sample.extents().into_iter().enumerate());
            for extent in sample.extents() {
                let end = extent.offset as usize + extent.bytes;
                assert!(ahead.take(&extent).is_none_or(|_| end <= 500_000), "{extent:?}");
            }
        }
    }
}

/// Whoever waits for something that is in flight, or would be if the device had not enough to do, is not forgotten, whether
/// it comes or is forgotten itself.
#[test]
fn who_waits_is_woken() {
    let sample = Sample::new(RequestedPath::Buffered);
    // The first is in flight, the second waits behind it, and the third behind that, until somebody wants it.
    let extents = &sample.extents()[..3];
    for (wanted, is_forgotten) in [(0, false), (0, true), (2, false), (2, true)] {
        let extent = extents[wanted];
        let gate: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let open = || {
            *gate.0.lock().unwrap() = true;
            gate.1.notify_all();
        };
        let inner = BlockingQueue::reader(vec![Arc::clone(&sample.file) as Arc<dyn ReadAt>], Arc::default());
        let allowance = Allowance::new(LIMIT);
        let is_asked = Arc::new(AtomicBool::new(false));
        let queue = Box::new(Stuck { inner, gate: Arc::clone(&gate), is_asked: Arc::clone(&is_asked) });
        let ahead = ReadAhead::start(vec![queue], allowance.clone(), 0);
        ahead.ask(extents.iter().copied().enumerate());
        // Until one is in flight.
        while !is_asked.load(SeqCst) {
            std::thread::yield_now();
        }
        let taken = std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..2).map(|_| scope.spawn(|| ahead.take(&extent))).collect();
            if is_forgotten {
                ahead.forget([extent]);
            } else {
                open();
            }
            let taken = waiting.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>();
            open();
            taken
        });
        assert_eq!(taken.len(), usize::from(!is_forgotten));
        assert!(taken.iter().all(|buffer| &buffer[..] == sample.expected(&extent)));
        drop(ahead);
        assert!(is_all_back(&allowance));
    }
}

/// Many want what waits at once, in whatever order, of a device that is always busy: all of it is there, but for what failed.
#[test]
fn a_busy_device_is_waited_for() {
    let sample = Sample::new(RequestedPath::Buffered);
    let extents = sample.extents();
    let faults = |n| [(n, Fault::FailFrom(n)), (n, Fault::RefuseFrom(n)), (n, Fault::Short(n))];
    for (seed, fault) in (0..6).flat_map(faults) {
        let allowance = Allowance::new(2 << 20);
        let queue = || {
            let file = Arc::clone(&sample.file) as Arc<dyn ReadAt>;
            let inner = BlockingQueue::reader(vec![file], Arc::default());
            let gate = Arc::new((Mutex::new(true), Condvar::new()));
            let queue = Stuck { inner, gate, is_asked: Arc::default() };
            Box::new(FaultyQueue::new(queue, vec![fault])) as Box<dyn Queue<LentBuf>>
        };
        let ahead = ReadAhead::start(vec![queue(), queue()], allowance.clone(), REQUEST_BYTES[seed as usize % 2]);
        ahead.ask(extents.iter().copied().enumerate());
        std::thread::scope(|scope| {
            for part in 0..8 {
                let (ahead, extents, sample) = (&ahead, &extents, &sample);
                scope.spawn(move || {
                    let mut mine: Vec<_> = extents.iter().skip(part).step_by(8).collect();
                    mine.sort_by_key(|extent| mix(seed ^ extent.offset));
                    for extent in mine {
                        if let Some(buffer) = ahead.take(extent) {
                            assert!(&buffer[..] == sample.expected(extent), "{extent:?}");
                        }
                    }
                });
            }
        });
        assert_eq!(ahead.bytes(), 0);
        drop(ahead);
        assert!(allowance.take(2 << 20).is_some());
    }
}

/// One that is never asked again keeps what it has, and another goes on without it.
#[test]
fn many_share_an_allowance_and_none_waits_for_another() {
    let sample = Sample::new(RequestedPath::Buffered);
    for (first, second) in sample.queues(&[]).into_iter().zip(sample.queues(&[])) {
        let allowance = Allowance::new(LIMIT);
        let idle = ReadAhead::start(first, allowance.clone(), 0);
        idle.ask(sample.extents().into_iter().enumerate());
        let busy = ReadAhead::start(second, allowance.clone(), 0);
        take_all(&sample, &busy, 1);
        drop(idle);
        take_all(&sample, &busy, 2);
        drop(busy);
        assert!(is_all_back(&allowance));
    }
}

#[test]
fn dropped_at_any_point_it_ends() {
    let sample = Sample::new(RequestedPath::Buffered);
    let extents = sample.extents();
    for (stop, request_bytes) in (0..extents.len()).zip(REQUEST_BYTES.into_iter().cycle()) {
        for queues in sample.queues(&[]) {
            let allowance = Allowance::new(LIMIT);
            let ahead = ReadAhead::start(queues, allowance.clone(), request_bytes);
            ahead.ask(extents.iter().copied().enumerate());
            let held: Vec<_> = extents[..stop].iter().map(|extent| ahead.take(extent)).collect();
            drop(ahead);
            assert!(is_all_back(&allowance));
            for (extent, buffer) in extents.iter().zip(held) {
                assert!(buffer.is_none_or(|buffer| &buffer[..] == sample.expected(extent)));
            }
        }
    }
}
