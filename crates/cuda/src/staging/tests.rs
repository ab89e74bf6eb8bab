//! The ring by itself, with a device that does nothing before it is waited for: what arrives is what was put in, memory is
//! bounded, and whatever fails leaves nothing behind.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use onehop_pipeline::Error as PipelineError;

use super::*;
use crate::fake::{Answer, Call, Fault, Machine};

/// Bytes of an item: its own, and not two alike.
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
    /// Where in its batch an item lies.
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
        // SAFETY: each batch has a place of its own in the buffer, which lives longer than the run, or is leaked.
        unsafe { filled.copy(to, 0, filled.bytes(), stream)? };
        Ok(())
    }
}

fn shape(slots: usize, threads: usize) -> Shape {
    Shape { batch_bytes: BATCH_BYTES, slots, threads }
}

/// Nothing was done that must not be done, and all that lives is what is given.
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
            // What each thread had begun is finished.
            assert!(cargo.filled.load(SeqCst) <= 21 + threads, "{:?}", cargo.filled);
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

/// Every call of the driver that fails once, at every place.
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
    // Two pinned buffers, their events, and what they were copied to; a stream is told to end all the same.
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
    // Ten and fifty and sixty are too much: the smallest go.
    assert_eq!((take(1), take(1)), (60, 1));
    pool.give(Bytes(30));
    let mut tries = 0;
    let full = || crate::Error::System { what: "memory".into(), reason: "there is none".into() };
    let outcome = pool.take(70, || Err::<Bytes, _>(full()));
    assert!(outcome.is_err());
    // What was kept was let go for it.
    let outcome = pool.take(5, || {
        tries += 1;
        Ok(Bytes(5))
    });
    assert!(outcome.is_ok() && tries == 1);
}
