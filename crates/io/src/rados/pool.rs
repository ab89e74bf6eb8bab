//! A pool of a cluster as [`Objects`].
//!
//! Who owns what while an operation is in flight: a [`Flight`], on the heap, has the library's operation and every place that
//! the library writes to. It is given to the library with the operation, and comes back in the completion's callback, on a
//! thread of the library's, or at once if the operation was refused. Nobody else has it, so a caller who does not wait any
//! more frees nothing under the library's hands. A pool waits for its flights before it closes.
//!
//! The library copies what is written when a step is added, and what is read goes to the flight's own buffer.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::cluster::{check, text};
use super::library::{EQUAL, EXCLUSIVE, FULL_TRY, Handle, Rados, WRITTEN_ONCE};
use super::objects::{EntriesWanted, Held, WriteStep};
use super::{Cluster, Code, Done, Error, Objects, ReadOp, Reply, Result, WriteOnce, WriteOp};

/// One namespace of one pool.
#[derive(Debug)]
pub struct Pool {
    name: Arc<str>,
    context: Handle,
    flights: Arc<Flights>,
    cluster: Arc<Cluster>,
    pool: Box<str>,
    /// Whether objects are kept whole, several times, and not in parts, by an erasure code. Known once an object was written.
    is_replicated: OnceLock<bool>,
}

// SAFETY: a `rados_ioctx_t` may be used by several threads at once; its namespace is set before anybody else has it.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    pub(super) fn open(cluster: &Arc<Cluster>, name: &str, namespace: &str) -> Result<Arc<Self>> {
        let (pool, space) = (text(name)?, text(namespace)?);
        let mut context: Handle = ptr::null_mut();
        // SAFETY: a connected handle, a string that ends; the context is written before the call returns.
        let made = unsafe { (cluster.rados.rados_ioctx_create)(cluster.handle, pool.as_ptr(), &raw mut context) };
        check(made, || format!("open pool {name}"))?;
        // SAFETY: nobody else has the context yet.
        unsafe { (cluster.rados.rados_ioctx_set_namespace)(context, space.as_ptr()) }
        let full_name =
            if namespace.is_empty() { format!("pool {name}") } else { format!("pool {name}, namespace {namespace}") };
        let (flights, cluster, is_replicated) = (Arc::default(), Arc::clone(cluster), OnceLock::new());
        Ok(Arc::new(Self { name: full_name.into(), context, flights, cluster, pool: name.into(), is_replicated }))
    }

    /// By what a monitor says of the pool; if it says nothing, it may be of the other kind.
    fn is_replicated(&self) -> bool {
        *self.is_replicated.get_or_init(|| {
            let settings = self.cluster.settings_of(&self.pool);
            settings
                .is_ok_and(|settings| settings.contains("\"size\"") && !settings.contains("\"erasure_code_profile\""))
        })
    }

    fn rados(&self) -> &Rados {
        &self.cluster.rados
    }

    fn label(&self, object: &str, operation: &'static str) -> Label {
        Label { pool: Arc::clone(&self.name), object: object.into(), operation }
    }
}

impl Pool {
    fn start_built(&self, object: &str, operation: &'static str, built: Result<BuiltWrite>, done: Done<()>) {
        let label = self.label(object, operation);
        let (name, built) = match text(object).and_then(|name| Ok((name, built?))) {
            Ok(both) => both,
            Err(error) => return done(Err(error)),
        };
        let handle = built.handle;
        let finish = move |result: Result<()>| {
            drop(built);
            done(result);
        };
        Flight::launch(self, label, Box::new(finish), |completion| {
            // SAFETY: the operation lives until the callback; the name is copied.
            unsafe {
                (self.rados().rados_aio_write_op_operate)(
                    handle,
                    self.context,
                    completion,
                    name.as_ptr(),
                    ptr::null_mut(),
                    FULL_TRY,
                )
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Each has a time limit.
        self.flights.wait_for_none();
        // SAFETY: no operation has the context any more.
        unsafe { (self.rados().rados_ioctx_destroy)(self.context) }
    }
}

impl Objects for Pool {
    fn name(&self) -> &str {
        &self.name
    }

    fn start_write(&self, object: &str, op: WriteOp, done: Done<()>) {
        self.start_built(object, op.operation, BuiltWrite::new(&self.cluster.rados, op), done);
    }

    /// Erasure-coded pools take whole objects only, which the library copies when it has all of them.
    fn gather(&self, operation: &'static str, most_bytes: usize) -> WriteOnce {
        if !self.is_replicated() {
            return WriteOnce::in_memory(operation, most_bytes, true);
        }
        let built = BuiltWrite::begin(&self.cluster.rados, most_bytes as u64);
        WriteOnce { operation, len: 0, held: Held::Operation(built), is_copied: false }
    }

    fn start_write_once(&self, object: &str, whole: WriteOnce, attribute: (&'static str, &[u8]), done: Done<()>) {
        let built = match whole.held {
            Held::Operation(built) => built.end(whole.len as u64),
            Held::Bytes(bytes) => BuiltWrite::whole(&self.cluster.rados, &bytes),
        };
        let set = built.add(WriteStep::SetAttribute(attribute.0, attribute.1.to_vec()));
        self.start_built(object, whole.operation, set.map(|()| built), done);
    }

    fn start_read(&self, object: &str, op: ReadOp, done: Done<Reply>) {
        let label = self.label(object, op.operation);
        let name = match text(object) {
            Ok(name) => name,
            Err(error) => return done(Err(error)),
        };
        let built = match BuiltRead::new(&self.cluster.rados, &op) {
            Ok(built) => built,
            Err(error) => return done(Err(error)),
        };
        let handle = built.handle;
        let finish = move |result: Result<()>| {
            done(result.map(|()| built.reply()));
        };
        Flight::launch(self, label, Box::new(finish), |completion| {
            // SAFETY: the operation and what it writes to live until the callback; the name is copied.
            unsafe { (self.rados().rados_aio_read_op_operate)(handle, self.context, completion, name.as_ptr(), 0) }
        });
    }

    fn list(&self) -> Result<Vec<String>> {
        let rados = self.rados();
        let mut cursor: Handle = ptr::null_mut();
        // SAFETY: an open context; the cursor is written before the call returns.
        check(unsafe { (rados.rados_nobjects_list_open)(self.context, &raw mut cursor) }, || {
            format!("list the objects of {}", self.name)
        })?;
        let mut names = Vec::new();
        let ended = loop {
            let (mut entry, mut key, mut space) = (ptr::null(), ptr::null(), ptr::null());
            // SAFETY: an open cursor; the strings are valid until the next call.
            let returned =
                unsafe { (rados.rados_nobjects_list_next)(cursor, &raw mut entry, &raw mut key, &raw mut space) };
            if returned < 0 {
                break returned;
            }
            // SAFETY: as above.
            names.push(unsafe { CStr::from_ptr(entry) }.to_string_lossy().into_owned());
        };
        // SAFETY: nobody uses the cursor any more.
        unsafe { (rados.rados_nobjects_list_close)(cursor) }
        if ended == -libc::ENOENT {
            return Ok(names);
        }
        check(ended, || format!("list the objects of {}", self.name))?;
        Ok(names)
    }
}

/// How many operations are in flight.
#[derive(Debug, Default)]
struct Flights {
    count: Mutex<usize>,
    none: Condvar,
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_none(&self) {
        let mut count = self.lock();
        while *count > 0 {
            count = self.none.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn ended(&self) {
        let mut count = self.lock();
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }
}

/// What an error says about an operation.
struct Label {
    pool: Arc<str>,
    object: String,
    operation: &'static str,
}

impl Label {
    fn error(self, code: Code) -> Error {
        Error::Object { pool: self.pool.to_string(), object: self.object, operation: self.operation, code }
    }
}

/// An operation that the library has.
struct Flight {
    rados: Arc<Rados>,
    flights: Arc<Flights>,
    label: Label,
    finish: Box<dyn FnOnce(Result<()>) + Send>,
}

impl Flight {
    fn launch(
        pool: &Pool,
        label: Label,
        finish: Box<dyn FnOnce(Result<()>) + Send>,
        operate: impl FnOnce(Handle) -> c_int,
    ) {
        *pool.flights.lock() += 1;
        let rados = Arc::clone(&pool.cluster.rados);
        let flight = Self { rados: Arc::clone(&rados), flights: Arc::clone(&pool.flights), label, finish };
        let flight = Box::into_raw(Box::new(flight));
        let mut completion: Handle = ptr::null_mut();
        // SAFETY: the completion is written before the call returns; it gives the flight to `landed`.
        let made = unsafe { (rados.rados_aio_create_completion2)(flight.cast(), landed, &raw mut completion) };
        let started = if made < 0 { made } else { operate(completion) };
        if started < 0 {
            if made >= 0 {
                // SAFETY: the operation was refused: nobody completes it.
                unsafe { (rados.rados_aio_release)(completion) }
            }
            // SAFETY: from `into_raw` above, and not given to anybody.
            unsafe { Box::from_raw(flight) }.land(started);
        }
    }

    fn land(self, returned: c_int) {
        let Self { flights, label, finish, .. } = self;
        let result = if returned < 0 { Err(label.error(Code(-returned))) } else { Ok(()) };
        // A panic must not unwind into the library. Who waits for the answer sees that nobody gives it.
        let _ = catch_unwind(AssertUnwindSafe(|| finish(result)));
        flights.ended();
    }
}

/// Called by the library, once, when an operation has ended.
unsafe extern "C" fn landed(completion: Handle, flight: *mut c_void) {
    // SAFETY: the library gives back what it was given, and does not use it any more.
    let flight = unsafe { Box::from_raw(flight.cast::<Flight>()) };
    // SAFETY: the completion is complete, and ours to release; the library has its own hold on it while we are called.
    let returned = unsafe {
        let returned = (flight.rados.rados_aio_get_return_value)(completion);
        (flight.rados.rados_aio_release)(completion);
        returned
    };
    flight.land(returned);
}

/// An operation of the library that changes an object. It copies all that it is given.
///
/// An object that never changes is begun, written, and ended, or written whole.
#[derive(Debug)]
pub(super) struct BuiltWrite {
    rados: Arc<Rados>,
    handle: Handle,
}

// SAFETY: one thread has it at a time.
unsafe impl Send for BuiltWrite {}

impl BuiltWrite {
    fn empty(rados: &Arc<Rados>) -> Self {
        // SAFETY: no arguments.
        Self { rados: Arc::clone(rados), handle: unsafe { (rados.rados_create_write_op)() } }
    }

    fn new(rados: &Arc<Rados>, op: WriteOp) -> Result<Self> {
        let built = Self::empty(rados);
        for step in op.steps {
            built.add(step)?;
        }
        Ok(built)
    }

    /// Of an object that is written whole an OSD computes a digest, beside the checksums of the message and of its disk: a tenth
    /// of what the object costs it, for what the attribute has, too. It does without if there is a byte behind what is written, for
    /// as long as that takes.
    fn begin(rados: &Arc<Rados>, most_bytes: u64) -> Self {
        let built = Self::empty(rados);
        built.hint(most_bytes);
        // SAFETY: as in `add`.
        unsafe { (rados.rados_write_op_truncate)(built.handle, most_bytes + 1) }
        built
    }

    /// Of what does not change, an OSD keeps larger pieces with fewer checksums: a sixth more chunks in the same time.
    fn hint(&self, bytes: u64) {
        // SAFETY: as in `add`.
        unsafe { (self.rados.rados_write_op_set_alloc_hint2)(self.handle, bytes, bytes, WRITTEN_ONCE) }
    }

    /// The bytes come first: what an operation begins with lies on a page in the OSD's memory, and goes to its disk from there.
    /// Behind an attribute they would be copied before that, which costs an OSD as much as all else that it does.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: as in `add`.
        unsafe { (self.rados.rados_write_op_write)(self.handle, bytes.as_ptr().cast(), bytes.len(), at as u64) }
    }

    fn whole(rados: &Arc<Rados>, bytes: &[u8]) -> Self {
        let built = Self::empty(rados);
        built.hint(bytes.len() as u64);
        // SAFETY: as in `add`.
        unsafe { (rados.rados_write_op_write_full)(built.handle, bytes.as_ptr().cast(), bytes.len()) }
        built
    }

    /// Nothing is behind what is written.
    fn end(self, len: u64) -> Self {
        // SAFETY: as in `add`.
        unsafe { (self.rados.rados_write_op_truncate)(self.handle, len) }
        self
    }

    fn add(&self, step: WriteStep) -> Result<()> {
        let (rados, op) = (&self.rados, self.handle);
        // SAFETY: an operation that was not started yet; pointers and lengths of buffers that live until the calls return,
        // which copy them; names are strings that end.
        unsafe {
            match step {
                WriteStep::AssertExists => (rados.rados_write_op_assert_exists)(op),
                WriteStep::AttributeIs(name, value) => {
                    let name = text(name)?;
                    (rados.rados_write_op_cmpxattr)(op, name.as_ptr(), EQUAL, value.as_ptr().cast(), value.len());
                }
                WriteStep::EntryIs(key, value) => (rados.rados_write_op_omap_cmp2)(
                    op,
                    key.as_ptr().cast(),
                    EQUAL,
                    value.as_ptr().cast(),
                    key.len(),
                    value.len(),
                    ptr::null_mut(),
                ),
                WriteStep::Create => (rados.rados_write_op_create)(op, 0, ptr::null()),
                WriteStep::CreateNew => (rados.rados_write_op_create)(op, EXCLUSIVE, ptr::null()),
                WriteStep::SetAttribute(name, value) => {
                    let name = text(name)?;
                    (rados.rados_write_op_setxattr)(op, name.as_ptr(), value.as_ptr().cast(), value.len());
                }
                WriteStep::SetEntry(key, value) => {
                    let (keys, values) = ([key.as_ptr().cast()], [value.as_ptr().cast()]);
                    let (key_lens, value_lens) = ([key.len()], [value.len()]);
                    (rados.rados_write_op_omap_set2)(
                        op,
                        keys.as_ptr(),
                        values.as_ptr(),
                        key_lens.as_ptr(),
                        value_lens.as_ptr(),
                        1,
                    );
                }
                WriteStep::RemoveEntry(key) => {
                    let (keys, lens) = ([key.as_ptr().cast()], [key.len()]);
                    (rados.rados_write_op_omap_rm_keys2)(op, keys.as_ptr(), lens.as_ptr(), 1);
                }
                WriteStep::WriteFull(bytes) => {
                    (rados.rados_write_op_write_full)(op, bytes.as_ptr().cast(), bytes.len());
                }
                WriteStep::Remove => (rados.rados_write_op_remove)(op),
            }
        }
        Ok(())
    }
}

impl Drop for BuiltWrite {
    fn drop(&mut self) {
        // SAFETY: made by `rados_create_write_op`; its operation has ended, or was never started.
        unsafe { (self.rados.rados_release_write_op)(self.handle) }
    }
}

/// Where the library writes to, at addresses that do not change.
struct Outputs {
    size: u64,
    attributes: Handle,
    entries: Handle,
    more: c_uchar,
    bytes_read: usize,
}

/// An operation of the library that reads an object, and the places for what it reads.
struct BuiltRead {
    rados: Arc<Rados>,
    handle: Handle,
    /// Of `Box::into_raw`: while the library has its address there must be no reference to it.
    outputs: *mut Outputs,
    buffer: Vec<u8>,
}

// SAFETY: one thread has it at a time, and the library writes before it calls back.
unsafe impl Send for BuiltRead {}

impl BuiltRead {
    fn new(rados: &Arc<Rados>, op: &ReadOp) -> Result<Self> {
        let outputs =
            Outputs { size: 0, attributes: ptr::null_mut(), entries: ptr::null_mut(), more: 0, bytes_read: 0 };
        let mut built = Self {
            rados: Arc::clone(rados),
            // SAFETY: no arguments.
            handle: unsafe { (rados.rados_create_read_op)() },
            outputs: Box::into_raw(Box::new(outputs)),
            buffer: vec![0; op.bytes.map_or(0, |(_, len)| len)],
        };
        built.add(op)?;
        Ok(built)
    }

    fn add(&mut self, op: &ReadOp) -> Result<()> {
        let (rados, handle, out) = (&self.rados, self.handle, self.outputs);
        // SAFETY: an operation that was not started yet. Outputs and buffer live as long as it, at addresses that do not
        // change. Keys are copied when they are added.
        unsafe {
            (rados.rados_read_op_assert_exists)(handle);
            if op.size {
                (rados.rados_read_op_stat)(handle, &raw mut (*out).size, ptr::null_mut(), ptr::null_mut());
            }
            if op.attributes {
                (rados.rados_read_op_getxattrs)(handle, &raw mut (*out).attributes, ptr::null_mut());
            }
            match &op.entries {
                None => {}
                Some(EntriesWanted::Keys(keys)) => {
                    let pointers: Vec<*const c_char> = keys.iter().map(|key| key.as_ptr().cast()).collect();
                    let lens: Vec<usize> = keys.iter().map(Vec::len).collect();
                    (rados.rados_read_op_omap_get_vals_by_keys2)(
                        handle,
                        pointers.as_ptr(),
                        pointers.len(),
                        lens.as_ptr(),
                        &raw mut (*out).entries,
                        ptr::null_mut(),
                    );
                }
                Some(EntriesWanted::Page { prefix, after, limit }) => {
                    let (after, prefix) = (bytes_text(after)?, bytes_text(prefix)?);
                    (rados.rados_read_op_omap_get_vals2)(
                        handle,
                        after.as_ptr(),
                        prefix.as_ptr(),
                        *limit,
                        &raw mut (*out).entries,
                        &raw mut (*out).more,
                        ptr::null_mut(),
                    );
                }
            }
            if let Some((offset, _)) = op.bytes {
                let (buffer, len) = (self.buffer.as_mut_ptr().cast(), self.buffer.len());
                (rados.rados_read_op_read)(handle, offset, len, buffer, &raw mut (*out).bytes_read, ptr::null_mut());
            }
        }
        Ok(())
    }

    /// What was read. To be called once the operation has succeeded: iterators of one that has failed point nowhere, and
    /// must not be used but to free them.
    fn reply(mut self) -> Reply {
        let mut reply = Reply::default();
        // SAFETY: the operation has ended: nobody writes there any more.
        let out = unsafe { &*self.outputs };
        reply.size = out.size;
        reply.more = out.more != 0;
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.truncate(out.bytes_read);
        reply.bytes = bytes;
        if !out.attributes.is_null() {
            // SAFETY: an iterator of the library's that is there until `drop`.
            while let Some((name, value)) = unsafe { next_attribute(&self.rados, out.attributes) } {
                reply.attributes.insert(name, value);
            }
        }
        if !out.entries.is_null() {
            // SAFETY: as above.
            while let Some(entry) = unsafe { next_entry(&self.rados, out.entries) } {
                reply.entries.push(entry);
            }
        }
        reply
    }
}

impl Drop for BuiltRead {
    fn drop(&mut self) {
        // SAFETY: the operation has ended, or was never started; iterators were made with it, and are freed once; outputs
        // came of a box.
        unsafe {
            let outputs = Box::from_raw(self.outputs);
            if !outputs.attributes.is_null() {
                (self.rados.rados_getxattrs_end)(outputs.attributes);
            }
            if !outputs.entries.is_null() {
                (self.rados.rados_omap_get_end)(outputs.entries);
            }
            (self.rados.rados_release_read_op)(self.handle);
        }
    }
}

fn bytes_text(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes)
        .map_err(|_| Error::Cluster { what: "list entries from behind a zero byte".into(), code: Code(libc::EINVAL) })
}

/// # Safety
/// `iterator` is one of `rados_read_op_getxattrs`, of an operation that has ended.
unsafe fn next_attribute(rados: &Rados, iterator: Handle) -> Option<(String, Vec<u8>)> {
    let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
    // SAFETY: the caller's word; the library writes before it returns.
    let returned = unsafe { (rados.rados_getxattrs_next)(iterator, &raw mut name, &raw mut value, &raw mut len) };
    if returned < 0 || name.is_null() {
        return None;
    }
    // SAFETY: name and value are valid until the iterator is freed.
    Some(unsafe { (CStr::from_ptr(name).to_string_lossy().into_owned(), copied(value, len)) })
}

/// # Safety
/// `iterator` is one of the omap's, of an operation that has ended.
unsafe fn next_entry(rados: &Rados, iterator: Handle) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut key, mut value, mut key_len, mut value_len) = (ptr::null_mut(), ptr::null_mut(), 0, 0);
    // SAFETY: the caller's word; the library writes before it returns.
    let returned = unsafe {
        (rados.rados_omap_get_next2)(iterator, &raw mut key, &raw mut value, &raw mut key_len, &raw mut value_len)
    };
    if returned < 0 || key.is_null() {
        return None;
    }
    // SAFETY: key and value are valid until the iterator is freed.
    Some(unsafe { (copied(key, key_len), copied(value, value_len)) })
}

/// # Safety
/// `len` bytes are there, unless it is 0.
unsafe fn copied(bytes: *const c_char, len: usize) -> Vec<u8> {
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's word.
    unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) }.to_vec()
}
