//! With any reader, the bytes arrive at the planned places. Failures are reported, and memory that
//! a pending operation may still use is never reused.

use std::ops::Range;
use std::thread;

use onehop_io::{Fault, Faulty, IoHints, ReadAt};
use onehop_pipeline::backend::DevicePath;

use super::*;
use crate::fake::{Answer, Call, Machine, Order};
use crate::fused::Result;

/// A device, and a file of known content.
struct Stored {
    machine: &'static Machine,
    context: Arc<Context>,
    direct: Direct,
    compiler: Compiler,
    bytes: Vec<u8>,
    folder: tempfile::TempDir,
}

const STORED_BYTES: usize = (6 << 20) + 1234;

impl Stored {
    fn new() -> Self {
        let (machine, context) = Machine::start();
        let direct = Direct::with(&context, &fake::open_cufile(&context));
        let compiler = Compiler::new(&context, &fake::nvrtc(), None);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let bytes: Vec<u8> = (0..STORED_BYTES / 2).flat_map(|_| (random.word() as u16).to_le_bytes()).collect();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("0.seg"), &bytes).unwrap();
        Self { machine, context, direct, compiler, bytes, folder }
    }

    /// Opens the file past the page cache if the file system supports it.
    fn file(&self) -> Arc<LocalFile> {
        Arc::new(LocalFile::open(&self.folder.path().join("0.seg"), RequestedPath::PreferHostDirect).unwrap())
    }

    /// Returns an origin with these buffers that injects faults.
    fn bounced(&self, bounces: &Arc<Bounces>, faults: Vec<Fault>) -> Origin {
        Origin::Bounced(Arc::new(Bounced::new(Arc::new(Faulty::new(self.file(), faults)), bounces)))
    }

    fn buffers(&self, most: usize) -> Arc<Bounces> {
        Arc::new(Bounces::of(&self.context, most))
    }

    fn by_cufile(&self) -> Origin {
        let cufile = self.direct.open().unwrap();
        Origin::Cufile(Arc::new(CufileFile::new(cufile, self.file()).unwrap()))
    }

    /// Returns a plan for random chunks of the file in `blocks` blocks, each chunk on a page. The
    /// last ends where the file does.
    fn plan(&self, random: &mut Random, file: &Origin, blocks: usize) -> (Plan, Vec<Wanted>) {
        let mut chunk = || {
            let page = random.word() as usize % (STORED_BYTES / 4096);
            // Some are longer than a buffer.
            let most = if random.word().is_multiple_of(16) { 2500 << 10 } else { 80 << 10 };
            let bytes = (1 + random.word() as usize % most).min(STORED_BYTES - page * 4096);
            (!random.word().is_multiple_of(4)).then_some(ChunkPlace { offset: page as u64 * 4096, bytes, crc: 0 })
        };
        let mut wanted: Vec<Wanted> = (0..blocks).map(|_| block_of(file, chunk(), chunk(), chunk())).collect();
        let offset = (STORED_BYTES / 4096 * 4096) as u64;
        wanted.push(block_of(file, Some(ChunkPlace { offset, bytes: STORED_BYTES % 4096, crc: 0 }), None, None));
        (Plan::new(&wanted), wanted)
    }

    fn passage(&self) -> Passage<'_> {
        self.direct.passage(&self.compiler, DevicePath::Staged, 0).unwrap()
    }

    /// Executes the reads of a plan with several threads. Returns an error if there was one.
    fn read(passage: &Passage<'_>, landing: &Landing, plan: &Plan, threads: usize) -> Result<()> {
        let work = |thread: usize| {
            // SAFETY: one thread executes each read, and the landing was made for the plan.
            let read = |read| unsafe { landing.read(passage, read) };
            plan.reads.iter().skip(thread).step_by(threads).try_for_each(read)
        };
        thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
            all.into_iter().map(|one| one.join().unwrap()).fold(Ok(()), Result::and)
        })
    }

    /// Asserts that all chunks are at the places of the plan.
    fn check(&self, landing: &Landing, plan: &Plan, wanted: &[Wanted]) {
        for (of, landed) in wanted.iter().zip(&plan.blocks) {
            let (place, planes) = (of.place, landed.planes(landing.start()));
            for (chunk, at) in [(place.low, planes.low), (place.high, planes.high), (place.validity, planes.valid)] {
                let Some(ChunkPlace { offset, bytes, .. }) = chunk else { continue };
                // SAFETY: the device's memory is host memory here, and no operation is pending.
                let there = unsafe { std::slice::from_raw_parts(at as *const u8, bytes) };
                let range: Range<usize> = offset as usize..offset as usize + bytes;
                assert!(there == &self.bytes[range.clone()], "{range:?}");
            }
        }
    }

    /// Returns the resources that live after all is dropped.
    fn left(self) -> Vec<&'static str> {
        let Self { machine, context, direct, compiler, .. } = self;
        drop((direct, compiler, context));
        assert!(machine.problems().is_empty(), "{:?}", machine.problems());
        machine.living()
    }
}

/// Many or few threads share many or few buffers, with transfers that are cut short or interrupted.
#[test]
fn what_was_read_is_where_plans_say() {
    let stored = Stored::new();
    let mut random = Random(0x1234_5678_9abc_def1);
    for order in [Order::Late, Order::CopiesFirst] {
        stored.machine.set_order(order);
        let faults = || vec![Fault::Short(7), Fault::InterruptAt(3), Fault::InterruptAt(11)];
        for (origin, threads) in [
            (stored.by_cufile(), 3),
            (stored.bounced(&stored.buffers(2), vec![]), 1),
            (stored.bounced(&stored.buffers(2), vec![]), 7),
            (stored.bounced(&stored.buffers(16), vec![]), 3),
            (stored.bounced(&stored.buffers(3), faults()), 5),
        ] {
            let (plan, wanted) = stored.plan(&mut random, &origin, 40);
            let passage = stored.passage();
            let before = stored.machine.living().len();
            let landing = Landing::new(&passage, plan.bytes, plan.blocks.len()).unwrap();
            Stored::read(&passage, &landing, &plan, threads).unwrap();
            stored.check(&landing, &plan, &wanted);
            // Memory of the landing, and a buffer and a stream for each thread that had one.
            let made = stored.machine.living().len().saturating_sub(before);
            assert!(made <= 3 + 2 * origin.readers().min(threads), "{made}");
            let least: usize = plan.reads.iter().map(|read| read.bytes).sum();
            let most: usize = plan.reads.iter().map(Read::padded_bytes).sum();
            assert!((least as u64..=most as u64).contains(&passage.read_bytes()));
            let carried = passage.carried(5);
            assert_eq!((carried.copied_bytes, carried.reads), (5, plan.reads.len() as u64));
            landing.settle(&passage);
        }
    }
    assert!(stored.left().is_empty());
}

/// Errors of the file name the file, the offset and the bytes, and leave the buffers usable.
#[test]
fn what_fails_in_the_file_is_told_and_leaves_the_buffers() {
    let stored = Stored::new();
    let mut random = Random(0x0fed_cba9_8765_4321);
    let bounces = stored.buffers(2);
    for (fault, said) in [(Fault::FailFrom(5), "Input/output error"), (Fault::EndFrom(2), "cut off")] {
        let passage = stored.passage();
        let once = |random: &mut Random, faults| {
            let (plan, wanted) = stored.plan(random, &stored.bounced(&bounces, faults), 20);
            let landing = Landing::new(&passage, plan.bytes, plan.blocks.len()).unwrap();
            let outcome = Stored::read(&passage, &landing, &plan, 4);
            if outcome.is_ok() {
                stored.check(&landing, &plan, &wanted);
            }
            landing.settle(&passage);
            outcome
        };
        let error = once(&mut random, vec![fault]).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Device { .. }), "{text}");
        assert!([said, "0.seg", "bytes at", "past the page cache"].iter().all(|word| text.contains(word)), "{text}");
        once(&mut random, vec![]).unwrap();
    }
    drop(bounces);
    assert!(stored.left().is_empty());
}

/// A copy whose end is unknown leaks its buffer and its destination. Other reads get another
/// buffer.
#[test]
fn what_a_copy_may_still_touch_is_lost() {
    let stored = Stored::new();
    let mut random = Random(0x5555_1111_7777_3333);
    let bounces = stored.buffers(2);
    let (plan, wanted) = stored.plan(&mut random, &stored.bounced(&bounces, vec![]), 20);
    let once = || {
        let passage = stored.passage();
        let landing = Landing::new(&passage, plan.bytes, plan.blocks.len()).unwrap();
        let outcome = Stored::read(&passage, &landing, &plan, 4);
        if outcome.is_ok() {
            stored.check(&landing, &plan, &wanted);
        }
        landing.settle(&passage);
        outcome
    };
    let fails = |call, at, lasts| {
        stored.machine.set_faults(&[fake::Fault { call, at, lasts, answer: Answer::Code(700) }]);
        let text = once().unwrap_err().to_string();
        assert!(text.contains("700") && text.contains("0.seg"), "{text}");
    };
    // A copy that was not started leaks nothing.
    fails(Call::Copy, 3, false);
    // More failures than there are buffers, one after the other, and then a failure for all
    // threads.
    [0, 1, 2, 5].into_iter().for_each(|at| fails(Call::Synchronize, at, false));
    fails(Call::Synchronize, 1, true);
    stored.machine.set_faults(&[]);
    once().unwrap();
    drop((bounces, plan, wanted));
    let left = stored.left();
    let lost = |what| left.iter().filter(|living| **living == what).count();
    // One buffer for each of the first four failures, and at most one for each thread in the last;
    // and the landings' memory.
    assert!((5..=8).contains(&lost("pinned memory")), "{left:?}");
    assert_eq!((lost("pinned memory"), lost("device memory")), (lost("a stream"), 5), "{left:?}");
}

/// With less pinned memory there are fewer buffers, and with none an error.
#[test]
fn with_less_pinned_memory_there_are_fewer_buffers() {
    let stored = Stored::new();
    let mut random = Random(0x2468_ace0_1357_9bdf);
    // The first allocation is the landing's.
    for (at, is_enough) in [(1, false), (2, true), (3, true)] {
        let (plan, wanted) = stored.plan(&mut random, &stored.bounced(&stored.buffers(8), vec![]), 20);
        stored.machine.set_faults(&[fake::Fault { call: Call::Pin, at, lasts: true, answer: Answer::Code(2) }]);
        let passage = stored.passage();
        let landing = Landing::new(&passage, plan.bytes, plan.blocks.len()).unwrap();
        let outcome = Stored::read(&passage, &landing, &plan, 6);
        stored.machine.set_faults(&[]);
        assert_eq!(outcome.is_ok(), is_enough, "{outcome:?}");
        if is_enough {
            stored.check(&landing, &plan, &wanted);
        }
        landing.settle(&passage);
    }
    assert!(stored.left().is_empty());
}

#[test]
fn disks_have_as_many_buffers_as_keep_them_busy() {
    let context = fake::context();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    std::fs::write(&path, [7]).unwrap();
    let buffers = |in_flight_bytes| {
        let file = Arc::new(LocalFile::open(&path, RequestedPath::Buffered).unwrap());
        let hints = IoHints { in_flight_bytes, ..file.hints() };
        Bounced::new(file, &Arc::new(Bounces::new(&context, &hints))).readers()
    };
    assert_eq!([0, 6 << 20, 24 << 20, 1 << 30].map(buffers), [2, 4, 16, 16]);
}
