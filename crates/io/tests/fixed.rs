//! Transfers through a ring that registers the memory of the slab when it is used often: whatever is registered by then,
//! every byte comes to where it belongs.

#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onehop_io::{
    Advance, AlignedBuf, Direction, LocalFile, Pool, PoolBuf, Queue, ReadAt, RequestedPath, Slab, Transfer, UringQueue,
};
use support::mix;

const PAGE: usize = 4096;
const PAGES: usize = 300;
const DEPTH: usize = 16;

fn page_of(page: usize, version: u64) -> Vec<u8> {
    (0..PAGE as u64 / 8).flat_map(|word| mix(version << 48 | (page as u64) << 16 | word).to_le_bytes()).collect()
}

struct Sample {
    _dir: tempfile::TempDir,
    file: Arc<LocalFile>,
}

impl Sample {
    fn new(requested: RequestedPath) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, (0..PAGES).flat_map(|page| page_of(page, 0)).collect::<Vec<u8>>()).unwrap();
        let file = Arc::new(LocalFile::open_for_update(&path, requested).unwrap());
        Self { _dir: dir, file }
    }

    fn ring(&self) -> Option<UringQueue<AlignedBuf>> {
        match UringQueue::new(vec![Arc::clone(&self.file)], DEPTH, None, Arc::default()) {
            Ok(ring) => Some(ring),
            Err(e) => {
                eprintln!("no io_uring here: {e}");
                None
            }
        }
    }

    fn read(&self, page: usize, version: u64) {
        let mut buffer = AlignedBuf::zeroed(PAGE);
        self.file.read_at((page * PAGE) as u64, &mut buffer, &Default::default()).unwrap();
        assert!(buffer[..] == page_of(page, version), "page {page}");
    }
}

/// All tests of a process have their memory of one slab, and one of them looks at its addresses.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Carries out so many transfers of whole pages, each with a buffer of its own, and looks at what was read.
fn transfer(
    ring: &mut UringQueue<AlignedBuf>,
    direction: Direction,
    count: usize,
    version: u64,
    new: impl Fn(usize) -> AlignedBuf,
) {
    let (mut begun, mut done) = (0, Vec::new());
    loop {
        while begun < count && ring.in_flight() < DEPTH {
            let page = mix(begun as u64) as usize % PAGES;
            let page = if direction == Direction::Write { begun % PAGES } else { page };
            let mut buffer = new(begun);
            // Not all of them begin where the buffer does.
            let at = if buffer.len() > PAGE && begun % 2 == 1 { buffer.len() - PAGE } else { 0 };
            match direction {
                Direction::Read => buffer.fill(0xa5),
                Direction::Write => buffer[at..at + PAGE].copy_from_slice(&page_of(page, version)),
            }
            let (offset, tag) = ((page * PAGE) as u64, page as u64);
            ring.submit(Transfer { direction, file: 0, offset, at, bytes: PAGE, needed: PAGE, buffer, tag });
            begun += 1;
        }
        if ring.in_flight() == 0 {
            return;
        }
        ring.reap(1, &mut done).unwrap();
        for one in done.drain(..) {
            match one.advance() {
                Advance::Whole(transfer) if direction == Direction::Read => {
                    let at = transfer.at;
                    assert!(transfer.buffer[at..at + PAGE] == page_of(transfer.tag as usize, version));
                    let around = transfer.buffer[..at].iter().chain(&transfer.buffer[at + PAGE..]);
                    assert!(around.into_iter().all(|byte| *byte == 0xa5), "what lies around it is as it was");
                }
                Advance::Whole(_) => {}
                Advance::Rest(transfer) => ring.submit(transfer),
                Advance::Failed(transfer, e) => panic!("{transfer:?}: {e}"),
            }
        }
    }
}

#[test]
fn memory_that_is_used_often_is_registered() {
    let _alone = alone();
    for requested in [RequestedPath::Buffered, RequestedPath::PreferHostDirect] {
        let sample = Sample::new(requested);
        let Some(mut ring) = sample.ring() else { return };
        transfer(&mut ring, Direction::Read, 20, 0, |_| AlignedBuf::uncleared(PAGE));
        assert_eq!(ring.registered().calls, 0, "not for a few");
        transfer(&mut ring, Direction::Read, 1000, 0, |_| AlignedBuf::uncleared(PAGE));
        let first = ring.registered();
        if first.is_refused {
            return eprintln!("the system registers no memory");
        }
        assert!(first.bytes >= DEPTH * PAGE && first.transfers > 200, "{first:?}");
        // Much more memory in use, so that some of it is new: after as many again, that is registered as well.
        transfer(&mut ring, Direction::Read, 2000, 0, |n| AlignedBuf::uncleared(PAGE * (1 + n % 301)));
        let more = ring.registered();
        // The slab is the process's: the second ring finds all of that used.
        let has_grown = more.bytes > first.bytes && more.calls > first.calls;
        assert!(has_grown || more.is_refused || requested != RequestedPath::Buffered, "{first:?} {more:?}");
        assert!(more.transfers > first.transfers, "{more:?}");
        // Memory of the allocator among the others.
        transfer(&mut ring, Direction::Read, 1000, 0, |n| match n % 3 {
            0 => AlignedBuf::zeroed(PAGE),
            _ => AlignedBuf::uncleared(PAGE),
        });
        transfer(&mut ring, Direction::Write, 2 * PAGES, 7, |n| AlignedBuf::uncleared(PAGE * (1 + n % 3)));
        let all = ring.registered();
        assert!(all.transfers > more.transfers + 500 || all.is_refused, "{all:?}");
        (0..PAGES).for_each(|page| sample.read(page, 7));
    }
}

#[test]
fn what_a_ring_has_registered_is_not_mapped_anew() {
    let _alone = alone();
    let sample = Sample::new(RequestedPath::PreferHostDirect);
    let Some(mut ring) = sample.ring() else { return };
    // A region of its own, used often: then it is let go.
    let mut long = Some(AlignedBuf::uncleared(100 << 20));
    let address = long.as_ref().unwrap().as_ptr();
    for _ in 0..600 {
        let buffer = long.take().unwrap();
        let (direction, needed) = (Direction::Read, PAGE);
        ring.submit(Transfer { direction, file: 0, offset: 0, at: 0, bytes: PAGE, needed, buffer, tag: 0 });
        let mut done = Vec::new();
        ring.reap(1, &mut done).unwrap();
        long = done.pop().map(|one| one.transfer.buffer);
    }
    assert!(long.as_ref().unwrap()[..PAGE] == page_of(0, 0));
    let is_registered = ring.registered().calls > 0;
    drop(long);
    assert_eq!(Slab::of_process().is_in_region(address, 1), is_registered);
    // The addresses are not had again, so that nothing is read into pages that nobody sees.
    transfer(&mut ring, Direction::Read, 4, 0, |n| AlignedBuf::uncleared((100 << 20) * (n % 2) + PAGE));
    drop(ring);
    assert!(!Slab::of_process().is_in_region(address, 1));
}

#[test]
fn a_ring_with_a_pool_registers_that_alone() {
    let _alone = alone();
    let sample = Sample::new(RequestedPath::PreferHostDirect);
    let pool = Pool::new(2, PAGE);
    let ring = UringQueue::<PoolBuf>::new(vec![Arc::clone(&sample.file)], 2, Some(Arc::clone(&pool)), Arc::default());
    let Ok(mut ring) = ring else { return eprintln!("no io_uring here") };
    for n in 0..600 {
        let (page, buffer) = (n % PAGES, pool.take().unwrap());
        let (direction, offset) = (Direction::Read, (page * PAGE) as u64);
        ring.submit(Transfer { direction, file: 0, offset, at: 0, bytes: PAGE, needed: PAGE, buffer, tag: 0 });
        let mut done = Vec::new();
        ring.reap(1, &mut done).unwrap();
        assert!(done[0].transfer.buffer[..] == page_of(page, 0));
    }
    assert_eq!(ring.registered(), Default::default());
}
