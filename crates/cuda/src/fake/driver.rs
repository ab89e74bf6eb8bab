//! Fake driver: memory, events, and streams that execute when they are polled.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use super::compiler::{ARGUMENT_WORDS, Launch};
use super::{CURRENT, Call, Machine, Order, current, lock};
use crate::driver::sys;

/// Operation in a stream.
pub enum Op {
    Launch {
        kernel: Launch,
        blocks: c_uint,
        threads: c_uint,
        /// A copy: the caller's argument is gone when the stream executes the launch.
        argument: Box<[u64]>,
    },
    Copy {
        to: usize,
        from: usize,
        len: usize,
        /// The machine's numbers of the touched ranges.
        touches: [u64; 2],
    },
    Fill {
        to: usize,
        byte: u8,
        len: usize,
        touch: u64,
    },
    /// Completes the recording of an event with this number.
    Mark(Arc<Mark>, u64),
    /// Makes later operations wait for that recording.
    After(Arc<Mark>, u64),
    /// A transfer by cuFile.
    Io(super::cufile::Io),
}

/// A stream.
pub type Ops = Mutex<VecDeque<Op>>;

/// An event: the number of its recordings, and the last completed one.
#[derive(Default)]
pub struct Mark {
    recorded: AtomicU64,
    done: AtomicU64,
    stream: Mutex<Option<*const Ops>>,
}

impl Mark {
    /// Borrows the event behind a pointer. The caller keeps ownership.
    unsafe fn of(event: *mut c_void) -> ManuallyDrop<Arc<Self>> {
        ManuallyDrop::new(unsafe { Arc::from_raw(event.cast::<Self>()) })
    }

    fn has_come(&self, number: u64) -> bool {
        self.done.load(SeqCst) >= number
    }
}

/// Executes the oldest operation of a stream. Returns true if there was one. Only one thread of a
/// machine does this at a time: an operation ends before the next is taken.
unsafe fn step(machine: &Machine, stream: *const Ops) -> bool {
    // The default stream is always empty: its operations execute at once.
    let Some(stream) = (unsafe { stream.as_ref() }) else { return false };
    let Some(op) = lock(stream).pop_front() else { return false };
    match op {
        Op::Launch { kernel, blocks, threads, mut argument } => {
            let mut parameters = [argument.as_mut_ptr().cast::<c_void>()];
            unsafe { kernel(blocks, threads, parameters.as_mut_ptr()) };
        }
        Op::Copy { to, from, len, touches } => {
            unsafe { (to as *mut u8).copy_from_nonoverlapping(from as *const u8, len) };
            touches.into_iter().for_each(|touch| machine.end(touch));
        }
        Op::Fill { to, byte, len, touch } => {
            unsafe { (to as *mut u8).write_bytes(byte, len) };
            machine.end(touch);
        }
        Op::Mark(mark, number) => drop(mark.done.fetch_max(number, SeqCst)),
        Op::After(mark, number) => {
            let other = *lock(&mark.stream);
            while !mark.has_come(number) {
                let other = other.filter(|other| machine.lives("a stream", other.addr()));
                // The recording is in that stream, or was.
                if !other.is_some_and(|other| unsafe { step(machine, other) }) {
                    break;
                }
            }
        }
        Op::Io(io) => unsafe { io.run(machine) },
    }
    true
}

unsafe fn drain(machine: &Machine, stream: *mut c_void) {
    let _one = lock(&machine.at_work);
    while unsafe { step(machine, stream.cast()) } {}
}

/// Enqueues a copy.
unsafe fn copy_later(to: usize, from: usize, len: usize, stream: *mut c_void) -> c_int {
    let machine = current();
    match machine.code(Call::Copy) {
        0 => {
            let touches = [machine.begin(to, len), machine.begin(from, len)];
            lock(unsafe { &*stream.cast::<Ops>() }).push_back(Op::Copy { to, from, len, touches });
            if machine.order() == Order::CopiesFirst {
                unsafe { drain(machine, stream) };
            }
            0
        }
        code => code,
    }
}

fn allocate(what: &'static str, len: usize) -> Option<usize> {
    let mut place = std::ptr::null_mut();
    let code = unsafe { libc::posix_memalign(&raw mut place, 4096, len) };
    (code == 0).then(|| {
        current().born(what, place as usize);
        place as usize
    })
}

fn release(what: &'static str, place: usize) {
    current().uses(what, place, 1);
    current().gone(what, place);
    unsafe { libc::free(place as *mut c_void) };
}

pub fn api() -> sys::Api {
    unsafe extern "C" fn init(_: c_uint) -> c_int {
        0
    }
    unsafe extern "C" fn one(n: *mut c_int) -> c_int {
        unsafe { *n = 1 };
        0
    }
    unsafe extern "C" fn version(n: *mut c_int) -> c_int {
        unsafe { *n = 13000 };
        0
    }
    unsafe extern "C" fn text(code: c_int, out: *mut *const c_char) -> c_int {
        unsafe { *out = if code == 2 { c"CUDA_ERROR_OUT_OF_MEMORY".as_ptr() } else { std::ptr::null() } };
        0
    }
    unsafe extern "C" fn device(n: *mut c_int, ordinal: c_int) -> c_int {
        unsafe { *n = ordinal };
        0
    }
    unsafe extern "C" fn name(out: *mut c_char, _: c_int, _: c_int) -> c_int {
        unsafe { out.copy_from(c"Fake".as_ptr(), 5) };
        0
    }
    unsafe extern "C" fn memory(n: *mut usize, _: c_int) -> c_int {
        unsafe { *n = 1 << 40 };
        0
    }
    unsafe extern "C" fn attribute(n: *mut c_int, _: c_int, _: c_int) -> c_int {
        unsafe { *n = 9 };
        0
    }
    unsafe extern "C" fn uuid(out: *mut u8, _: c_int) -> c_int {
        unsafe { out.write_bytes(7, 16) };
        0
    }
    unsafe extern "C" fn retain(out: *mut *mut c_void, _: c_int) -> c_int {
        unsafe { *out = std::ptr::from_ref(current()).cast_mut().cast() };
        0
    }
    unsafe extern "C" fn let_go(_: c_int) -> c_int {
        0
    }
    unsafe extern "C" fn set_current(context: *mut c_void) -> c_int {
        // Machines are never freed.
        CURRENT.set(unsafe { context.cast::<Machine>().as_ref() });
        0
    }
    unsafe extern "C" fn alloc(out: *mut u64, len: usize) -> c_int {
        let code = current().code(Call::Allocate);
        let mut memory = lock(&current().memory);
        let most = memory.limit.unwrap_or(1 << 40);
        let is_refused = memory.taken() + len > most || code != 0;
        let place = if is_refused { None } else { allocate("device memory", len) };
        let Some(place) = place else { return code.max(2) };
        memory.allocations.insert(place, len);
        memory.most = memory.most.max(memory.taken());
        unsafe { *out = place as u64 };
        0
    }
    unsafe extern "C" fn free(place: u64) -> c_int {
        let mut memory = lock(&current().memory);
        memory.allocations.remove(&(place as usize));
        memory.shared.remove(&(place as usize));
        drop(memory);
        release("device memory", place as usize);
        0
    }
    use super::shared::{close_shared, extent, open_shared, share};
    unsafe extern "C" fn alloc_host(out: *mut *mut c_void, len: usize, _: c_uint) -> c_int {
        let code = current().code(Call::Pin);
        let place = if code == 0 { allocate("pinned memory", len) } else { None };
        let Some(place) = place else { return code.max(2) };
        unsafe { *out = place as *mut c_void };
        0
    }
    unsafe extern "C" fn free_host(place: *mut c_void) -> c_int {
        release("pinned memory", place as usize);
        0
    }
    unsafe extern "C" fn register_host(place: *mut c_void, len: usize, _: c_uint) -> c_int {
        match current().code(Call::Register) {
            0 => {
                current().register(place as usize, len);
                0
            }
            code => code,
        }
    }
    unsafe extern "C" fn unregister_host(place: *mut c_void) -> c_int {
        current().unregister(place as usize);
        0
    }
    unsafe extern "C" fn to_device(to: u64, from: *const c_void, len: usize) -> c_int {
        current().uses("a copy", to as usize, len);
        unsafe { (to as *mut u8).copy_from(from.cast(), len) };
        0
    }
    unsafe extern "C" fn to_host(to: *mut c_void, from: u64, len: usize) -> c_int {
        current().uses("a copy", from as usize, len);
        unsafe { to.cast::<u8>().copy_from(from as *const u8, len) };
        0
    }
    unsafe extern "C" fn later_in(to: u64, from: *const c_void, len: usize, stream: *mut c_void) -> c_int {
        unsafe { copy_later(to as usize, from as usize, len, stream) }
    }
    unsafe extern "C" fn later_out(to: *mut c_void, from: u64, len: usize, stream: *mut c_void) -> c_int {
        unsafe { copy_later(to as usize, from as usize, len, stream) }
    }
    unsafe extern "C" fn within(to: u64, from: u64, len: usize, stream: *mut c_void) -> c_int {
        unsafe { copy_later(to as usize, from as usize, len, stream) }
    }
    unsafe extern "C" fn fill(to: u64, byte: u8, len: usize) -> c_int {
        current().uses("a fill", to as usize, len);
        unsafe { (to as *mut u8).write_bytes(byte, len) };
        0
    }
    unsafe extern "C" fn fill_later(to: u64, byte: u8, len: usize, stream: *mut c_void) -> c_int {
        let touch = current().begin(to as usize, len);
        lock(unsafe { &*stream.cast::<Ops>() }).push_back(Op::Fill { to: to as usize, byte, len, touch });
        0
    }
    unsafe extern "C" fn stream(out: *mut *mut c_void, _: c_uint) -> c_int {
        let stream = Box::into_raw(Box::<Ops>::default());
        current().born("a stream", stream as usize);
        unsafe { *out = stream.cast() };
        0
    }
    unsafe extern "C" fn stream_free(stream: *mut c_void) -> c_int {
        let machine = current();
        unsafe { drain(machine, stream) };
        machine.gone("a stream", stream as usize);
        drop(unsafe { Box::from_raw(stream.cast::<Ops>()) });
        0
    }
    unsafe extern "C" fn stream_wait(stream: *mut c_void) -> c_int {
        if stream.is_null() {
            // The default stream, which is always empty.
            return 0;
        }
        let machine = current();
        match machine.code(Call::Synchronize) {
            0 => {
                unsafe { drain(machine, stream) };
                0
            }
            code => code,
        }
    }
    unsafe extern "C" fn stream_after(stream: *mut c_void, event: *mut c_void, _: c_uint) -> c_int {
        let mark = unsafe { Mark::of(event) };
        let number = mark.recorded.load(SeqCst);
        lock(unsafe { &*stream.cast::<Ops>() }).push_back(Op::After(Arc::clone(&mark), number));
        0
    }
    unsafe extern "C" fn event(out: *mut *mut c_void, _: c_uint) -> c_int {
        let event = Arc::into_raw(Arc::<Mark>::default());
        current().born("an event", event as usize);
        unsafe { *out = event.cast_mut().cast() };
        0
    }
    unsafe extern "C" fn event_free(event: *mut c_void) -> c_int {
        current().gone("an event", event as usize);
        // Streams keep a reference to the event, as the real driver does.
        drop(unsafe { Arc::from_raw(event.cast::<Mark>()) });
        0
    }
    unsafe extern "C" fn record(event: *mut c_void, stream: *mut c_void) -> c_int {
        match current().code(Call::Record) {
            0 => {
                let mark = unsafe { Mark::of(event) };
                let number = mark.recorded.fetch_add(1, SeqCst) + 1;
                *lock(&mark.stream) = Some(stream.cast_const().cast());
                lock(unsafe { &*stream.cast::<Ops>() }).push_back(Op::Mark(Arc::clone(&mark), number));
                0
            }
            code => code,
        }
    }
    /// Returns true if the event has completed. Otherwise executes one more step of its stream.
    unsafe fn has_come(event: *mut c_void) -> bool {
        let mark = unsafe { Mark::of(event) };
        let machine = current();
        let _one = lock(&machine.at_work);
        let is_done = mark.has_come(mark.recorded.load(SeqCst));
        let stream = *lock(&mark.stream);
        if !is_done && let Some(stream) = stream.filter(|stream| machine.lives("a stream", stream.addr())) {
            unsafe { step(machine, stream) };
        }
        is_done
    }
    unsafe extern "C" fn query(event: *mut c_void) -> c_int {
        match current().code(Call::Query) {
            0 if unsafe { has_come(event) } => 0,
            0 => sys::NOT_READY,
            code => code,
        }
    }
    unsafe extern "C" fn wait(event: *mut c_void) -> c_int {
        let code = current().code(Call::Wait);
        while code == 0 && !unsafe { has_come(event) } {}
        code
    }
    unsafe extern "C" fn elapsed(ms: *mut f32, _: *mut c_void, _: *mut c_void) -> c_int {
        unsafe { *ms = 1.0 };
        0
    }
    unsafe extern "C" fn module_load(out: *mut *mut c_void, image: *const c_void) -> c_int {
        // The image is the file name of the library.
        unsafe { *out = libc::dlopen(image.cast(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if unsafe { (*out).is_null() } { 200 } else { 0 }
    }
    unsafe extern "C" fn module_free(module: *mut c_void) -> c_int {
        unsafe { libc::dlclose(module) }
    }
    unsafe extern "C" fn module_function(out: *mut *mut c_void, module: *mut c_void, name: *const c_char) -> c_int {
        unsafe { *out = libc::dlsym(module, name) };
        if unsafe { (*out).is_null() } { 500 } else { 0 }
    }
    unsafe extern "C" fn function_attribute(_: *mut c_void, _: c_int, _: c_int) -> c_int {
        0
    }
    unsafe extern "C" fn launch(
        kernel: *mut c_void,
        blocks: c_uint,
        _: c_uint,
        _: c_uint,
        threads: c_uint,
        _: c_uint,
        _: c_uint,
        _: c_uint,
        stream: *mut c_void,
        parameters: *mut *mut c_void,
        _: *mut *mut c_void,
    ) -> c_int {
        let argument = unsafe { std::slice::from_raw_parts((*parameters).cast::<u64>(), ARGUMENT_WORDS) };
        let kernel = unsafe { std::mem::transmute::<*mut c_void, Launch>(kernel) };
        lock(unsafe { &*stream.cast::<Ops>() }).push_back(Op::Launch {
            kernel,
            blocks,
            threads,
            argument: argument.into(),
        });
        if current().order() == Order::KernelsFirst {
            unsafe { drain(current(), stream) };
        }
        0
    }
    sys::Api {
        init,
        version,
        error_name: text,
        error_text: text,
        device_count: one,
        device,
        device_name: name,
        device_memory: memory,
        device_attribute: attribute,
        device_pci: name,
        device_uuid: uuid,
        retain,
        release: let_go,
        set_current,
        alloc,
        free,
        extent,
        share,
        open_shared,
        close_shared,
        alloc_host,
        free_host,
        register_host,
        unregister_host,
        to_device,
        to_host,
        to_device_async: later_in,
        to_host_async: later_out,
        within_async: within,
        fill,
        fill_async: fill_later,
        stream,
        stream_free,
        stream_wait,
        stream_after,
        event,
        event_free,
        event_record: record,
        event_query: query,
        event_wait: wait,
        event_elapsed: elapsed,
        module_load,
        module_free,
        module_function,
        function_attribute,
        launch,
    }
}
