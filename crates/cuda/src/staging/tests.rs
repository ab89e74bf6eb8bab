//! The ring by itself, with a device that does nothing before it is waited for. The content arrives
//! intact, memory is bounded, and failures leave nothing behind.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use onehop_pipeline::Error as PipelineError;

use super::*;
use crate::fake::{Answer, Call, Fault, Machine};
use crate::queue::lose;

/// Returns the bytes of an item, which differ between items.
fn item_bytes(batch: usize, item: usize) -> Vec<u8> {
    let len = 1 + (batch * 131 + item * 977) % 3000;
    (0..len).map(|at| (batch * 7 + item * 13 + at) as u8).collect()
}

/// Batches of numbered bytes, each copied to a place of its own.
struct Numbered {
    items: Vec<usize>,
    device: DeviceBuf,
    slots: usize,
    consumed: AtomicUsize,
    /// Offset of each item in its batch.
    places: Mutex<BTreeMap<(usize, usize), usize>>,
    filled: AtomicUsize,
    fails: Option<(usize, usize)>,
    panics: Option<(usize, usize)>,
    cancels: Option<(usize, AtomicBool)>,
}

const BATCH_BYTES: usize = 64 << 10;

impl Numbered {
    fn new(context: &Arc<Context>, batches: usize, slots: usize) -> Self {
        Self {
            items: (0..batches).map(|batch| 1 + batch * 5 % 11).collect(),
            device: DeviceBuf::new(context, batches * BATCH_BYTES).unwrap(),
            slots,
            consumed: AtomicUsize::new(0),
            places: Mutex::default(),
            filled: AtomicUsize::new(0),
            fails: None,
            panics: None,
            cancels: None,
        }
    }

    fn run(&self, stager: &Stager, shape: Shape) -> std::result::Result<(), Failed> {
        let never = AtomicBool::new(false);
        let cancelled = self.cancels.as_ref().map_or(&never, |(_, flag)| flag);
        stager.run(self, shape, cancelled, |batch, copied| {
            assert_eq!(self.consumed.load(SeqCst), batch);
            copied.wait()?;
            for item in 0..self.items[batch] {
                let expected = item_bytes(batch, item);
                let at = batch * BATCH_BYTES + self.places.lock().unwrap()[&(batch, item)];
                let mut found = vec![0; expected.len()];
                self.device.copy_to(at, &mut found)?;
                assert_eq!(found, expected, "item {item} of batch {batch}");
            }
            self.consumed.store(batch + 1, SeqCst);
            Ok(ControlFlow::Continue(()))
        })
    }
}

impl Cargo for Numbered {
    fn batches(&self) -> usize {
        self.items.len()
    }

    fn items(&self, batch: usize) -> usize {
        self.items[batch]
    }

    fn bytes(&self) -> u64 {
        (self.items.len() * BATCH_BYTES) as u64
    }

    fn fill(&self, batch: usize, item: usize, room: &Room) -> Result<()> {
        assert!(batch < self.consumed.load(SeqCst) + self.slots && room.slot() < self.slots);
        if self.fails == Some((batch, item)) {
            return Err(Error::Pipeline(PipelineError::Invalid(format!("item {item} of batch {batch} is torn"))));
        }
        assert_ne!(self.panics, Some((batch, item)), "on purpose");
        if let Some((at, flag)) = &self.cancels
            && self.filled.load(SeqCst) >= *at
        {
            flag.store(true, SeqCst);
        }
        let place = room.put(&item_bytes(batch, item)).unwrap();
        assert!(place.is_multiple_of(ALIGNMENT));
        self.places.lock().unwrap().insert((batch, item), place);
        self.filled.fetch_add(1, SeqCst);
        Ok(())
    }

    fn send(&self, batch: usize, filled: Sent<'_>, stream: &Stream) -> Result<()> {
        let to = self.device.address() + (batch * BATCH_BYTES) as u64;
        // SAFETY: each batch has a place of its own in the buffer, which outlives the run, or is
        // leaked.
        unsafe { filled.copy(to, 0, filled.bytes(), stream)? };
        Ok(())
    }
}

fn shape(slots: usize, threads: usize) -> Shape {
    Shape { batch_bytes: BATCH_BYTES, slots, threads }
}

/// Asserts that there were no violations, and that `living` resources are alive.
fn is_clean(machine: &Machine, living: usize) {
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert_eq!(machine.living().len(), living, "{:?}", machine.living());
}

#[test]
fn what_is_put_in_arrives() {
    let (machine, context) = Machine::start();
    {
        let stager = Stager::new(&context);
        for slots in [1, 2, 5] {
            for threads in [0, 1, 4] {
                for batches in [0, 1, 3, 30] {
                    let cargo = Numbered::new(&context, batches, slots);
                    let automatic = Shape { threads, ..shape(slots, 0) };
                    cargo.run(&stager, automatic).unwrap();
                    assert_eq!(cargo.consumed.load(SeqCst), batches, "{slots} slots, {threads} threads");
                }
            }
        }
    }
    is_clean(machine, 0);
}

#[test]
fn pinned_memory_is_kept_for_the_next_and_small_for_what_is_small() {
    let (machine, context) = Machine::start();
    {
        let stager = Stager::new(&context);
        machine.set_faults(&[]);
        for _ in 0..3 {
            Numbered::new(&context, 9, 3).run(&stager, shape(3, 2)).unwrap();
        }
        assert_eq!(machine.calls(Call::Pin), 3);
        // One batch needs one buffer.
        let other = Stager::new(&context);
        machine.set_faults(&[]);
        Numbered::new(&context, 1, 3).run(&other, shape(3, 2)).unwrap();
        assert_eq!(machine.calls(Call::Pin), 1);
    }
    is_clean(machine, 0);
}

#[test]
fn the_first_error_ends_it_and_says_what_it_was() {
    let (machine, context) = Machine::start();
    {
        let stager = Stager::new(&context);
        for threads in [0, 3] {
            for fails in [(0, 0), (2, 3), (7, 0)] {
                let cargo = Numbered { fails: Some(fails), ..Numbered::new(&context, 8, 2) };
                let Err(Failed { error, in_flight: false }) = cargo.run(&stager, shape(2, threads)) else { panic!() };
                assert!(
                    error.to_string().contains(&format!("item {} of batch {} is torn", fails.1, fails.0)),
                    "{error}"
                );
                assert!(cargo.consumed.load(SeqCst) <= fails.0);
            }
        }
    }
    is_clean(machine, 0);
}

#[test]
fn a_thread_that_dies_is_an_error_and_no_deadlock() {
    let (machine, context) = Machine::start();
    {
        let stager = Stager::new(&context);
        let cargo = Numbered { panics: Some((3, 1)), ..Numbered::new(&context, 8, 2) };
        let Err(Failed { error, in_flight: false }) = cargo.run(&stager, shape(2, 3)) else { panic!() };
        assert!(error.to_string().contains("panicked"), "{error}");
    }
    is_clean(machine, 0);
}

#[test]
fn cancelling_stops_it_soon() {
    let (machine, context) = Machine::start();
    {
        let stager = Stager::new(&context);
        for threads in [0, 4] {
            let cargo = Numbered { cancels: Some((20, AtomicBool::new(false))), ..Numbered::new(&context, 100, 3) };
            let Err(Failed { error, in_flight: false }) = cargo.run(&stager, shape(3, threads)) else { panic!() };
            assert!(matches!(error, Error::Pipeline(PipelineError::Cancelled)));
            // A thread may be within one item when the twentieth is finished, and begin one more
            // before it sees the flag.
            let (most, filled) = (20 + 2 * threads.max(1), cargo.filled.load(SeqCst));
            assert!(filled <= most, "{filled} of at most {most}");
        }
    }
    is_clean(machine, 0);
}

#[test]
fn the_caller_may_have_enough() {
    let (machine, context) = Machine::start();
    {
        let stager = Stager::new(&context);
        for threads in [0, 3] {
            let cargo = Numbered::new(&context, 20, 2);
            let mut seen = 0;
            let outcome = stager.run(&cargo, shape(2, threads), &AtomicBool::new(false), |batch, _| {
                seen += 1;
                cargo.consumed.store(batch + 1, SeqCst);
                Ok(if batch == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
            assert!(outcome.is_ok() && seen == 6);
        }
    }
    is_clean(machine, 0);
}

/// Each driver call fails once, at every position.
#[test]
fn a_driver_that_fails_is_an_error_and_nothing_is_left() {
    let (machine, context) = Machine::start();
    {
        for threads in [0, 2] {
            for call in [Call::Copy, Call::Record, Call::Wait] {
                for at in 0..5 {
                    let stager = Stager::new(&context);
                    let cargo = Numbered::new(&context, 6, 2);
                    machine.set_faults(&[Fault { call, at, lasts: false, answer: Answer::Code(700) }]);
                    let Err(Failed { error, in_flight: false }) = cargo.run(&stager, shape(2, threads)) else {
                        panic!("{call:?} {at}")
                    };
                    assert!(error.to_string().contains("700"), "{error}");
                    machine.set_faults(&[]);
                    Numbered::new(&context, 6, 2).run(&stager, shape(2, threads)).unwrap();
                }
            }
        }
    }
    is_clean(machine, 0);
}

#[test]
fn what_cannot_be_waited_for_is_not_freed() {
    let (machine, context) = Machine::start();
    {
        let stager = Stager::new(&context);
        let cargo = Numbered::new(&context, 6, 2);
        machine.set_faults(&[
            Fault { call: Call::Copy, at: 3, lasts: false, answer: Answer::Code(700) },
            Fault { call: Call::Synchronize, at: 0, lasts: true, answer: Answer::Code(700) },
        ]);
        let Err(Failed { in_flight: true, .. }) = cargo.run(&stager, shape(2, 2)) else { panic!() };
        crate::queue::lose(cargo.device);
        machine.set_faults(&[]);
    }
    // Two pinned buffers with their events, and the destination. The stream is destroyed all the
    // same.
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    let of = |what: &str| machine.living().iter().filter(|one| **one == what).count();
    assert_eq!((of("pinned memory"), of("device memory")), (2, 1), "{:?}", machine.living());
}

#[test]
fn less_memory_than_wished_for_does_as_well() {
    let (machine, context) = Machine::start();
    {
        let stager = Stager::new(&context);
        let at = |at, lasts| [Fault { call: Call::Pin, at, lasts, answer: Answer::Code(2) }];
        machine.set_faults(&at(1, true));
        let cargo = Numbered::new(&context, 12, 4);
        cargo.run(&stager, shape(4, 3)).unwrap();
        assert_eq!(cargo.consumed.load(SeqCst), 12);
        let none = Stager::new(&context);
        machine.set_faults(&at(0, true));
        assert!(cargo.run(&none, shape(4, 3)).is_err());
        machine.set_faults(&[]);
    }
    is_clean(machine, 0);
}

#[test]
fn runs_beside_each_other_have_buffers_of_their_own() {
    let (machine, context) = Machine::start();
    {
        let stager = Stager::new(&context);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        Numbered::new(&context, 10, 2).run(&stager, shape(2, 2)).unwrap();
                    }
                });
            }
        });
    }
    is_clean(machine, 0);
}

#[test]
fn how_fast_it_is_can_be_measured() {
    let (machine, context) = Machine::start();
    {
        let stager = Stager::new(&context);
        for bytes in [256 << 10, 5 << 20] {
            let rate = stager.bytes_per_sec(Shape { slots: 2, ..Shape::default() }, &vec![7; bytes], 2).unwrap();
            assert!(rate.is_finite() && rate > 1e3, "{rate}");
        }
        machine.set_faults(&[Fault { call: Call::Copy, at: 1, lasts: false, answer: Answer::Code(700) }]);
        assert!(stager.bytes_per_sec(Shape::default(), &vec![7; 5 << 20], 2).is_err());
    }
    is_clean(machine, 0);
}

#[test]
fn a_pool_keeps_the_largest_up_to_its_limit() {
    struct Bytes(usize);
    impl pool::Buffer for Bytes {
        fn bytes(&self) -> usize {
            self.0
        }
    }
    let pool = Pool::new(100);
    let take = |bytes| pool.take(bytes, || Ok(Bytes(bytes))).unwrap().0;
    [10, 40, 50].into_iter().for_each(|bytes| pool.give(Bytes(bytes)));
    assert_eq!(take(20), 40);
    pool.give(Bytes(60));
    // Ten, fifty and sixty exceed the limit: the smallest are freed.
    assert_eq!((take(1), take(1)), (60, 1));
    pool.give(Bytes(30));
    let mut tries = 0;
    let full = || crate::Error::System { what: "memory".into(), reason: "there is none".into() };
    let outcome = pool.take(70, || Err::<Bytes, _>(full()));
    assert!(outcome.is_err());
    // The kept buffers were freed for it.
    let outcome = pool.take(5, || {
        tries += 1;
        Ok(Bytes(5))
    });
    assert!(outcome.is_ok() && tries == 1);
}

/// Blocks in buffers of a slab that only the ring holds after they were put in. Later buffers reuse
/// their memory.
struct Blocks {
    slab: Arc<Slab>,
    batches: usize,
    device: DeviceBuf,
    places: Mutex<BTreeMap<(usize, usize), usize>>,
}

const BLOCK_BYTES: usize = 256 << 10;
const BLOCKS: usize = 4;
/// Size of a region, and limit of the registered bytes.
const REGION_BYTES: usize = 8 << 20;

fn block_bytes(batch: usize, item: usize) -> Vec<u8> {
    (0..BLOCK_BYTES).map(|at| (batch * 31 + item * 7 + at / 3) as u8).collect()
}

impl Blocks {
    fn new(context: &Arc<Context>, batches: usize) -> Self {
        let device = DeviceBuf::new(context, batches * Self::batch_bytes()).unwrap();
        Self { slab: Slab::new(REGION_BYTES), batches, device, places: Mutex::default() }
    }

    /// Each block comes with a small put.
    fn batch_bytes() -> usize {
        BLOCKS * (BLOCK_BYTES + ALIGNMENT)
    }

    fn run(&self, stager: &Stager, threads: usize) -> std::result::Result<(), Failed> {
        let shape = Shape { batch_bytes: Self::batch_bytes(), slots: 2, threads };
        stager.run(self, shape, &AtomicBool::new(false), |batch, copied| {
            copied.wait()?;
            for item in 0..BLOCKS {
                let at = batch * Self::batch_bytes() + self.places.lock().unwrap()[&(batch, item)];
                let mut found = vec![0; BLOCK_BYTES + 3];
                self.device.copy_to(at - ALIGNMENT, &mut found[..3])?;
                assert_eq!(found[..3], [batch as u8, item as u8, 77]);
                self.device.copy_to(at, &mut found[3..])?;
                assert!(found[3..] == block_bytes(batch, item), "item {item} of batch {batch}");
            }
            Ok(ControlFlow::Continue(()))
        })
    }
}

impl Cargo for Blocks {
    fn batches(&self) -> usize {
        self.batches
    }

    fn items(&self, _: usize) -> usize {
        BLOCKS
    }

    fn bytes(&self) -> u64 {
        (self.batches * Self::batch_bytes()) as u64
    }

    fn fill(&self, batch: usize, item: usize, room: &Room) -> Result<()> {
        let mut block = self.slab.buffer(BLOCK_BYTES).unwrap();
        block.copy_from_slice(&block_bytes(batch, item));
        let mut region = room.reserve(BLOCK_BYTES + ALIGNMENT).unwrap();
        region.put(&[batch as u8, item as u8, 77]).unwrap();
        // SAFETY: the block is held if it is read, and has no writer.
        let (_, put) = unsafe { region.put_held(&block) }.unwrap();
        self.places.lock().unwrap().insert((batch, item), region.filled().0 + ALIGNMENT);
        if put == Put::Direct {
            room.hold(block);
        }
        // The next user of the memory.
        if let Some(mut next) = self.slab.buffer(BLOCK_BYTES) {
            next.fill(0xee);
        }
        Ok(())
    }

    fn send(&self, batch: usize, filled: Sent<'_>, stream: &Stream) -> Result<()> {
        let to = self.device.address() + (batch * Self::batch_bytes()) as u64;
        // SAFETY: as above.
        unsafe { filled.copy(to, 0, filled.bytes(), stream)? };
        Ok(())
    }
}

/// After enough blocks, their region is registered, and the others are copied from their own
/// memory. It is unregistered once, when the stager or the region is dropped, whichever is first.
#[test]
fn blocks_are_copied_from_where_they_lie() {
    for threads in [0, 3] {
        for slab_goes_first in [false, true] {
            let (machine, context) = Machine::start();
            let batches = 40;
            let cargo = Blocks::new(&context, batches);
            let stager = Stager::over(&context, &cargo.slab, REGION_BYTES, 2);
            cargo.run(&stager, threads).unwrap();
            let [(start, bytes)] = machine.registered()[..] else { panic!("{:?}", machine.registered()) };
            assert_eq!(bytes, REGION_BYTES);
            assert!(cargo.slab.is_in_region(start as *const u8, bytes));
            // All but the copies before the registration, and those during it.
            let all = batches * BLOCKS * BLOCK_BYTES;
            let direct = stager.direct_bytes() as usize;
            assert!(direct > 0 && direct <= all - 2 * REGION_BYTES + BLOCK_BYTES, "{direct} of {all}");
            assert_eq!(machine.calls(Call::Register), 1);
            let keeps = if slab_goes_first {
                drop(cargo);
                Some(stager)
            } else {
                drop(stager);
                assert!(machine.registered().is_empty());
                drop(cargo);
                None
            };
            assert!(machine.registered().is_empty());
            drop(keeps);
            drop(context);
            is_clean(machine, 0);
        }
    }
}

#[test]
fn what_cannot_be_registered_is_copied_by_the_host() {
    for (limit, calls) in [(REGION_BYTES, 1), (REGION_BYTES - 1, 0), (0, 0)] {
        let (machine, context) = Machine::start();
        {
            let cargo = Blocks::new(&context, 40);
            let stager = Stager::over(&context, &cargo.slab, limit, 2);
            machine.set_faults(&[Fault { call: Call::Register, at: 0, lasts: true, answer: Answer::Code(1) }]);
            cargo.run(&stager, 2).unwrap();
            assert_eq!((stager.direct_bytes(), machine.calls(Call::Register)), (0, calls));
            assert!(machine.registered().is_empty());
        }
        drop(context);
        is_clean(machine, 0);
    }
}

/// A device that does not respond may still read: the memory that it reads stays mapped and
/// registered.
#[test]
fn what_a_sick_device_may_read_stays_registered() {
    let (machine, context) = Machine::start();
    let cargo = Blocks::new(&context, 40);
    let stager = Stager::over(&context, &cargo.slab, REGION_BYTES, 2);
    cargo.run(&stager, 0).unwrap();
    assert_eq!(machine.registered().len(), 1);
    let dead = |call| Fault { call, at: 2, lasts: true, answer: Answer::Code(700) };
    machine.set_faults(&[dead(Call::Wait), Fault { at: 0, ..dead(Call::Synchronize) }]);
    let failed = cargo.run(&stager, 0).unwrap_err();
    assert!(failed.in_flight);
    let lent = cargo.slab.stats().lent_bytes;
    assert!(lent > 0);
    drop(stager);
    assert_eq!(machine.registered().len(), 1);
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    lose(cargo.device);
}

/// Threads that wait for storage take no core from others.
#[test]
fn as_many_threads_as_keep_storage_busy() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let threads = |threads, readers| Shape { threads, ..Shape::default() }.helpers(1 << 30, readers);
    assert_eq!([threads(0, 0), threads(0, 1), threads(0, 100)], [cores, cores, MOST_THREADS]);
    assert_eq!([threads(3, 0), threads(3, 100)], [3, 3]);
    assert_eq!(Shape::default().helpers(1 << 10, 100), 0);
}
