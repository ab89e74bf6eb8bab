//! A CUDA driver and a cuFile of the process's own memory, for tests without a GPU.
//!
//! Device memory is host memory. Streams do nothing by themselves: what is put into them is done, one piece at a time, when
//! their events are asked for or waited for, so that a buffer that is used too early is seen to have the wrong bytes.
//! cuFile's transfers are `pread` and `pwrite` of the same descriptor; every third is cut short, and batches finish in
//! another order. The compiler is the system's, for C++: kernels become shared libraries, and a launch is a call.
//!
//! A [`Machine`] is one device with a state of its own, however many tests run beside each other: calls find it by the
//! context that is current on their thread, so a call that does not make its context current is found out, too. It
//! watches what is done to memory: what is freed, copied or forgotten while something that was begun may still touch it
//! is a *problem*; and it counts what lives, so that what was not given back is seen.
//!
//! A device may also be early where it can be: with [`Order::KernelsFirst`] what is launched runs at once, with whatever its
//! stream was made to wait for and nothing else, and with [`Order::CopiesFirst`] copies are made at once. So a kernel that does
//! not wait for its columns is seen, and a copy that does not wait for who reads what was there before.
//!
//! Fault model: the N-th call of a kind, alone or with all later ones, gives an [`Answer`] of the test's choice. Calls of
//! transfers are counted where the transfer is made, not where it is handed over.

mod compiler;
mod cufile;
mod driver;
mod shared;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cufile::Counting;
use crate::nvrtc::Nvrtc;
use crate::{Context, Cufile, Driver};

/// Kinds of calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A transfer of cuFile's, by whatever call it was begun.
    Transfer,
    /// `cuFileBatchIOSubmit`.
    Submit,
    /// `cuFileBatchIOGetStatus`.
    Status,
    /// `cuFileReadAsync` and `cuFileWriteAsync`: beginning them.
    Start,
    /// `cuMemcpyHtoDAsync` and `cuMemcpyDtoHAsync`: beginning them.
    Copy,
    /// `cuEventRecord`.
    Record,
    /// `cuEventQuery`.
    Query,
    /// `cuEventSynchronize`.
    Wait,
    /// `cuStreamSynchronize`.
    Synchronize,
    /// `cuMemAlloc`.
    Allocate,
    /// `cuMemHostAlloc`.
    Pin,
    /// `cuMemHostRegister`.
    Register,
    /// `cuFileHandleRegister`.
    Open,
}

const CALLS: usize = Call::Open as usize + 1;

/// What a call gives that was made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The code of the driver or of cuFile.
    Code(c_int),
    /// Of transfers: an error of the system.
    System(c_int),
    /// Of transfers: so many bytes at most.
    Short(usize),
    /// Of transfers: as at the end of the file.
    End,
    /// Of transfers in batches: cancelled, which has a state of its own.
    Cancelled,
}

/// One call, or all from one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Of which kind.
    pub call: Call,
    /// Its number, from 0.
    pub at: u64,
    /// Whether all later ones fail, too.
    pub lasts: bool,
    /// What it gives.
    pub answer: Answer,
}

/// When a machine does what is in its streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// When it is waited for.
    #[default]
    Late,
    /// Launches, and what comes before them in their streams, at once.
    KernelsFirst,
    /// The same of copies.
    CopiesFirst,
}

/// A device of its own.
#[derive(Debug, Default)]
pub struct Machine {
    order: Mutex<Order>,
    faults: Mutex<Vec<Fault>>,
    calls: [AtomicU64; CALLS],
    /// Transfers made, which is what cuFile counts.
    transfers: AtomicU64,
    /// Whether cuFile counts them as direct.
    is_direct: AtomicBool,
    /// Memory that something begun may touch, by a number.
    touched: Mutex<Vec<(u64, usize, usize)>>,
    begun: AtomicU64,
    /// Host memory that is registered: where, and how many bytes.
    registered: Mutex<Vec<(usize, usize)>>,
    /// Allocations, pinned ones, streams, events, batches, files, registered buffers.
    living: Mutex<Vec<(&'static str, usize)>>,
    memory: Mutex<Memory>,
    problems: Mutex<Vec<String>>,
    /// Held by whoever does what is in a stream.
    at_work: Mutex<()>,
}

/// Device memory: how much there is, if that is little, and how long each allocation is.
#[derive(Debug, Default)]
struct Memory {
    limit: Option<usize>,
    allocations: HashMap<usize, usize>,
    /// Of other processes, or of other devices of this one: where they are mapped, and how long they are.
    opened: HashMap<usize, usize>,
    /// What was shared, and the file that it is in.
    shared: HashMap<usize, std::fs::File>,
    most: usize,
}

impl Memory {
    fn taken(&self) -> usize {
        self.allocations.values().sum()
    }
}

/// All that were ever made, so that a pointer to one is never to nothing.
static MACHINES: Mutex<Vec<&'static Machine>> = Mutex::new(Vec::new());

thread_local! {
    static CURRENT: Cell<Option<&'static Machine>> = const { Cell::new(None) };
}

/// Of the context that is current on this thread.
fn current() -> &'static Machine {
    let Some(machine) = CURRENT.get() else { panic!("a call without a current context") };
    machine
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// One without faults, and its context.
    pub fn start() -> (&'static Self, Arc<Context>) {
        Self::start_as(0)
    }

    /// The same, of the device of this number.
    pub fn start_as(ordinal: i32) -> (&'static Self, Arc<Context>) {
        let machine: &'static Self = Box::leak(Box::default());
        lock(&MACHINES).push(machine);
        CURRENT.set(Some(machine));
        let driver = Driver::with(driver::api()).unwrap();
        let mut device = driver.devices().unwrap().remove(0);
        device.ordinal = ordinal;
        (machine, device.context().unwrap())
    }

    /// Replaces the faults, and counts calls from 0 again.
    pub fn set_faults(&self, faults: &[Fault]) {
        *lock(&self.faults) = faults.to_vec();
        self.calls.iter().for_each(|calls| calls.store(0, SeqCst));
    }

    /// Has it do what is in its streams in another order.
    pub fn set_order(&self, order: Order) {
        *lock(&self.order) = order;
    }

    fn order(&self) -> Order {
        *lock(&self.order)
    }

    /// From now on all transfers that were ever made count as direct, or as made by POSIX calls.
    pub fn set_direct(&self, is_direct: bool) {
        self.is_direct.store(is_direct, SeqCst);
    }

    /// From now on it has so much memory, whoever holds how much of it already.
    pub fn set_memory(&self, bytes: usize) {
        let mut memory = lock(&self.memory);
        (memory.limit, memory.most) = (Some(bytes), memory.taken());
    }

    /// The most memory that was taken since then.
    pub fn most_memory(&self) -> usize {
        lock(&self.memory).most
    }

    /// Calls of a kind since then.
    pub fn calls(&self, call: Call) -> u64 {
        self.calls[call as usize].load(SeqCst)
    }

    /// What was done that must not be done.
    pub fn problems(&self) -> Vec<String> {
        lock(&self.problems).clone()
    }

    /// What lives: nothing, when all is dropped.
    pub fn living(&self) -> Vec<&'static str> {
        lock(&self.living).iter().map(|(what, _)| *what).collect()
    }

    /// Whether something that was begun may touch these bytes.
    pub fn may_touch(&self, address: u64, bytes: usize) -> bool {
        let (from, to) = (address as usize, address as usize + bytes);
        lock(&self.touched).iter().any(|(_, start, end)| *start < to && from < *end)
    }

    /// Counts a call, and says how it fails if it is due.
    fn fault(&self, call: Call) -> Option<Answer> {
        let n = self.calls[call as usize].fetch_add(1, SeqCst);
        let is_due = |fault: &&Fault| fault.call == call && (fault.at == n || fault.lasts && fault.at < n);
        lock(&self.faults).iter().find(is_due).map(|fault| fault.answer)
    }

    /// The same of calls that have but a code.
    fn code(&self, call: Call) -> c_int {
        match self.fault(call) {
            Some(Answer::Code(code)) => code,
            Some(other) => panic!("{call:?} cannot give {other:?}"),
            None => 0,
        }
    }

    /// Host memory that is registered: where it begins, and how many bytes.
    pub fn registered(&self) -> Vec<(usize, usize)> {
        lock(&self.registered).clone()
    }

    fn register(&self, address: usize, bytes: usize) {
        let mut registered = lock(&self.registered);
        if registered.iter().any(|(start, bytes_of)| *start < address + bytes && address < start + bytes_of) {
            lock(&self.problems).push(format!("{bytes} bytes of host memory: registered twice"));
        }
        registered.push((address, bytes));
    }

    fn unregister(&self, address: usize) {
        let mut registered = lock(&self.registered);
        match registered.iter().position(|(start, _)| *start == address) {
            Some(at) => {
                let (start, bytes) = registered.swap_remove(at);
                self.uses("unregistering", start, bytes);
            }
            None => lock(&self.problems).push("host memory: unregistered and not registered".into()),
        }
    }

    /// From now on something may touch these bytes.
    fn begin(&self, address: usize, bytes: usize) -> u64 {
        let number = self.begun.fetch_add(1, SeqCst);
        lock(&self.touched).push((number, address, address + bytes));
        number
    }

    fn end(&self, number: u64) {
        lock(&self.touched).retain(|(of, ..)| *of != number);
    }

    /// Somebody uses bytes that must be theirs alone.
    fn uses(&self, what: &str, address: usize, bytes: usize) {
        if self.may_touch(address as u64, bytes) {
            lock(&self.problems).push(format!("{what} of {bytes} bytes that are in flight"));
        }
    }

    fn born(&self, what: &'static str, number: usize) {
        lock(&self.living).push((what, number));
    }

    fn lives(&self, what: &'static str, number: usize) -> bool {
        lock(&self.living).contains(&(what, number))
    }

    fn gone(&self, what: &'static str, number: usize) {
        let mut living = lock(&self.living);
        match living.iter().position(|one| *one == (what, number)) {
            Some(at) => drop(living.swap_remove(at)),
            None => lock(&self.problems).push(format!("{what}: given back and not there")),
        }
    }
}

/// A device.
pub fn context() -> Arc<Context> {
    Machine::start().1
}

/// cuFile over it.
pub fn open_cufile(context: &Arc<Context>) -> Arc<Cufile> {
    Cufile::with(cufile::api(), context, Counting::On).unwrap()
}

/// The system's compiler in NVRTC's place.
pub fn nvrtc() -> Arc<Nvrtc> {
    Nvrtc::with(compiler::api()).unwrap()
}
