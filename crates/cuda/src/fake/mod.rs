//! A fake CUDA driver and a fake cuFile in the memory of this process, for tests without a GPU.
//!
//! Device memory is host memory. Streams do nothing by themselves: their operations execute one at
//! a time, when their events are queried or waited for. A buffer that is used too early therefore
//! has the wrong bytes. Transfers of cuFile are `pread` and `pwrite` of the same descriptor. Every
//! third is cut short, and batches complete in another order. The compiler is the system's C++
//! compiler: kernels become shared libraries, and a launch is a call.
//!
//! A [`Machine`] is one device with a state of its own, even if several tests run concurrently.
//! Calls find it by the context that is current on their thread, so that a call without a current
//! context is detected, too. It checks accesses to memory: freeing, copying or deregistering a
//! range that a pending operation may touch is a *problem*. It also counts live resources, so that
//! leaks are detected.
//!
//! A device may also execute early. With [`Order::KernelsFirst`], a launch runs at once, after the
//! operations that its stream waits for and no others. With [`Order::CopiesFirst`], copies execute
//! at once. This detects a kernel that does not wait for its columns, and a copy that does not wait
//! for the readers of the previous content.
//!
//! Fault model: the N-th call of a kind, alone or with all later ones, returns an [`Answer`] that
//! the test selects. Calls of transfers are counted when the transfer executes, not when it is
//! submitted.

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
    /// A transfer by cuFile, started by any call.
    Transfer,
    /// `cuFileBatchIOSubmit`.
    Submit,
    /// `cuFileBatchIOGetStatus`.
    Status,
    /// Start of `cuFileReadAsync` and `cuFileWriteAsync`.
    Start,
    /// Start of `cuMemcpyHtoDAsync` and `cuMemcpyDtoHAsync`.
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

/// Injected result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Code of the driver or of cuFile.
    Code(c_int),
    /// For transfers: an error of the system.
    System(c_int),
    /// For transfers: at most so many bytes.
    Short(usize),
    /// For transfers: the end of the file.
    End,
    /// For transfers in batches: cancelled, which has a status of its own.
    Cancelled,
}

/// A fault at one call, or at all calls from one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kind of the call.
    pub call: Call,
    /// Number of the call, from 0.
    pub at: u64,
    /// True if all later calls fail, too.
    pub lasts: bool,
    /// Returned answer.
    pub answer: Answer,
}

/// Time at which a machine executes the operations of its streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// When a stream or event is waited for or queried.
    #[default]
    Late,
    /// Launches, and the operations before them in their streams, at once.
    KernelsFirst,
    /// Copies, and the operations before them in their streams, at once.
    CopiesFirst,
}

/// A fake device.
#[derive(Debug, Default)]
pub struct Machine {
    order: Mutex<Order>,
    faults: Mutex<Vec<Fault>>,
    calls: [AtomicU64; CALLS],
    /// Number of executed transfers, which is cuFile's counter.
    transfers: AtomicU64,
    /// True if cuFile counts them as direct.
    is_direct: AtomicBool,
    /// Memory that a pending operation may touch, by the operation's number.
    touched: Mutex<Vec<(u64, usize, usize)>>,
    begun: AtomicU64,
    /// Registered host memory: address and length in bytes.
    registered: Mutex<Vec<(usize, usize)>>,
    /// Allocations, pinned memory, streams, events, batches, files, registered buffers.
    living: Mutex<Vec<(&'static str, usize)>>,
    memory: Mutex<Memory>,
    problems: Mutex<Vec<String>>,
    /// Held by the thread that executes operations of a stream.
    at_work: Mutex<()>,
}

/// Device memory: its size, if it is limited, and the length of each allocation.
#[derive(Debug, Default)]
struct Memory {
    limit: Option<usize>,
    allocations: HashMap<usize, usize>,
    /// Memory of other processes, or of other devices of this one: mapped addresses and lengths.
    opened: HashMap<usize, usize>,
    /// Shared allocations, and the file with the content of each.
    shared: HashMap<usize, std::fs::File>,
    most: usize,
}

impl Memory {
    fn taken(&self) -> usize {
        self.allocations.values().sum()
    }
}

/// All machines that were ever made, so that pointers to them stay valid.
static MACHINES: Mutex<Vec<&'static Machine>> = Mutex::new(Vec::new());

thread_local! {
    static CURRENT: Cell<Option<&'static Machine>> = const { Cell::new(None) };
}

/// Returns the machine of the context that is current on this thread.
fn current() -> &'static Machine {
    let Some(machine) = CURRENT.get() else { panic!("a call without a current context") };
    machine
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// Starts a machine without faults, and returns it with its context.
    pub fn start() -> (&'static Self, Arc<Context>) {
        Self::start_as(0)
    }

    /// Starts a machine whose device has this number.
    pub fn start_as(ordinal: i32) -> (&'static Self, Arc<Context>) {
        let machine: &'static Self = Box::leak(Box::default());
        lock(&MACHINES).push(machine);
        CURRENT.set(Some(machine));
        let driver = Driver::with(driver::api()).unwrap();
        let mut device = driver.devices().unwrap().remove(0);
        device.ordinal = ordinal;
        (machine, device.context().unwrap())
    }

    /// Replaces the faults, and resets the counters of calls to 0.
    pub fn set_faults(&self, faults: &[Fault]) {
        *lock(&self.faults) = faults.to_vec();
        self.calls.iter().for_each(|calls| calls.store(0, SeqCst));
    }

    /// Changes the order in which the machine executes the operations of its streams.
    pub fn set_order(&self, order: Order) {
        *lock(&self.order) = order;
    }

    fn order(&self) -> Order {
        *lock(&self.order)
    }

    /// Reports all transfers, including earlier ones, as direct or as made by POSIX calls.
    pub fn set_direct(&self, is_direct: bool) {
        self.is_direct.store(is_direct, SeqCst);
    }

    /// Sets the size of device memory, independent of the bytes already allocated.
    pub fn set_memory(&self, bytes: usize) {
        let mut memory = lock(&self.memory);
        (memory.limit, memory.most) = (Some(bytes), memory.taken());
    }

    /// Returns the peak of allocated memory since then.
    pub fn most_memory(&self) -> usize {
        lock(&self.memory).most
    }

    /// Returns the number of calls of a kind since the faults were set.
    pub fn calls(&self, call: Call) -> u64 {
        self.calls[call as usize].load(SeqCst)
    }

    /// Returns the violations found so far.
    pub fn problems(&self) -> Vec<String> {
        lock(&self.problems).clone()
    }

    /// Returns the live resources: none when all is dropped.
    pub fn living(&self) -> Vec<&'static str> {
        lock(&self.living).iter().map(|(what, _)| *what).collect()
    }

    /// Returns true if a pending operation may touch these bytes.
    pub fn may_touch(&self, address: u64, bytes: usize) -> bool {
        let (from, to) = (address as usize, address as usize + bytes);
        lock(&self.touched).iter().any(|(_, start, end)| *start < to && from < *end)
    }

    /// Counts a call, and returns its injected answer if one is due.
    fn fault(&self, call: Call) -> Option<Answer> {
        let n = self.calls[call as usize].fetch_add(1, SeqCst);
        let is_due = |fault: &&Fault| fault.call == call && (fault.at == n || fault.lasts && fault.at < n);
        lock(&self.faults).iter().find(is_due).map(|fault| fault.answer)
    }

    /// Counts a call that has only a code, and returns that code.
    fn code(&self, call: Call) -> c_int {
        match self.fault(call) {
            Some(Answer::Code(code)) => code,
            Some(other) => panic!("{call:?} cannot give {other:?}"),
            None => 0,
        }
    }

    /// Returns the registered host memory: addresses and lengths in bytes.
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

    /// Records that a pending operation may touch these bytes.
    fn begin(&self, address: usize, bytes: usize) -> u64 {
        let number = self.begun.fetch_add(1, SeqCst);
        lock(&self.touched).push((number, address, address + bytes));
        number
    }

    fn end(&self, number: u64) {
        lock(&self.touched).retain(|(of, ..)| *of != number);
    }

    /// Checks a use of bytes that no pending operation may touch.
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

/// Starts a machine, and returns its context.
pub fn context() -> Arc<Context> {
    Machine::start().1
}

/// Opens the fake cuFile over a context.
pub fn open_cufile(context: &Arc<Context>) -> Arc<Cufile> {
    Cufile::with(cufile::api(), context, Counting::On).unwrap()
}

/// Returns the system's compiler in place of NVRTC.
pub fn nvrtc() -> Arc<Nvrtc> {
    Nvrtc::with(compiler::api()).unwrap()
}
