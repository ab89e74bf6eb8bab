//! Queue over `cuFileReadAsync` and `cuFileWriteAsync`. Each place has a CUDA stream, and an event
//! recorded after the transfer.
//!
//! Streams are registered with cuFile under the promise that transfers are known and in whole pages
//! at submission, which is cuFile's fastest mode. A transfer that is not in whole pages, such as
//! the rest of one that was cut short, uses the blocking call.

use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;

use onehop_io::{Direction, Done, Ledger, PAGE_BYTES, Path, Queue, Transfer};

use super::{check_transfer, count, lose, path_of};
use crate::cufile::sys;
use crate::{CufileFile, DeviceBuf, Error, Event, Stream};

/// Queue of transfers on streams.
pub struct CufileAsyncQueue {
    files: Vec<Arc<CufileFile>>,
    places: Vec<Place>,
    free: Vec<usize>,
    /// Busy places in the order of submission.
    busy: Vec<usize>,
    /// Completed transfers that were not reaped yet.
    held: Vec<Done<DeviceBuf>>,
    ledger: Arc<Ledger>,
    path: Path,
}

/// Parameters that cuFile reads and writes during a transfer. The address stays fixed.
#[derive(Debug, Default)]
struct Request {
    bytes: usize,
    file_offset: libc::off_t,
    buffer_offset: libc::off_t,
    moved: isize,
}

struct Place {
    stream: Stream,
    is_registered: bool,
    event: Event,
    request: Box<Request>,
    transfer: Option<Transfer<DeviceBuf>>,
    /// True if the event marks the end of the transfer; otherwise the stream has to be waited for.
    is_marked: bool,
}

impl fmt::Debug for CufileAsyncQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CufileAsyncQueue").field("files", &self.files).field("busy", &self.busy).finish_non_exhaustive()
    }
}

impl CufileAsyncQueue {
    /// Creates a queue for `depth` concurrent transfers, at least one.
    ///
    /// # Errors
    /// Returns an error if cuFile is too old for these calls, or if no further stream can be
    /// created.
    pub fn new(files: Vec<Arc<CufileFile>>, depth: usize, ledger: Arc<Ledger>) -> io::Result<Self> {
        let Some(cufile) = files.first().map(|file| Arc::clone(file.cufile())) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a queue needs a file"));
        };
        if cufile.api().read_async.is_none() || cufile.api().write_async.is_none() {
            return Err(Error::TooOld { library: "libcufile", symbol: "cuFileReadAsync" }.into());
        }
        let place = |_| -> Result<Place, Error> {
            let stream = Stream::new(cufile.context())?;
            let event = Event::new(cufile.context())?;
            let is_registered = match cufile.api().stream_register {
                // SAFETY: the stream lives, and is deregistered before it is destroyed.
                Some(register) => unsafe { register(stream.raw(), sys::STREAM_KNOWN_ALIGNED) }.code == 0,
                None => false,
            };
            Ok(Place { stream, is_registered, event, request: Box::default(), transfer: None, is_marked: false })
        };
        let places = (0..depth.max(1)).map(place).collect::<Result<Vec<_>, _>>()?;
        let free = (0..places.len()).rev().collect();
        Ok(Self { path: path_of(&files), files, places, free, busy: Vec::new(), held: Vec::new(), ledger })
    }

    /// Begins the transfer of a place.
    fn begin(&mut self, number: usize) -> io::Result<()> {
        let place = &mut self.places[number];
        let Some(transfer) = &mut place.transfer else { return Ok(()) };
        let file = &self.files[transfer.file];
        let cufile = file.cufile();
        *place.request = Request {
            bytes: transfer.bytes,
            file_offset: transfer.offset as libc::off_t,
            buffer_offset: transfer.at as libc::off_t,
            moved: 0,
        };
        let (call, start) = match transfer.direction {
            Direction::Read => ("cuFileReadAsync", cufile.api().read_async),
            Direction::Write => ("cuFileWriteAsync", cufile.api().write_async),
        };
        let Some(start) = start else { return Err(io::ErrorKind::Unsupported.into()) };
        cufile.context().bind()?;
        let request: *mut Request = &raw mut *place.request;
        // SAFETY: buffer, file and request stay in this queue until the event behind the transfer
        // has completed, or the stream was waited for. The request has no other user before that.
        let status = unsafe {
            start(
                file.handle(),
                transfer.buffer.address() as *mut _,
                &raw mut (*request).bytes,
                &raw mut (*request).file_offset,
                &raw mut (*request).buffer_offset,
                &raw mut (*request).moved,
                place.stream.raw(),
            )
        };
        cufile.check(call, status)?;
        place.is_marked = place.event.record(&place.stream).is_ok();
        Ok(())
    }

    fn come_back(&mut self, number: usize, moved: io::Result<usize>) {
        let Some(transfer) = self.places[number].transfer.take() else { return };
        if let Ok(n) = moved {
            count(&self.ledger, transfer.direction, self.path, n);
        }
        self.free.push(number);
        self.held.push(Done { transfer, moved });
    }

    /// Returns true if the transfer of a place has ended. A failed event query is inconclusive: the
    /// stream decides.
    fn is_over(&self, number: usize) -> Result<bool, Error> {
        let place = &self.places[number];
        match place.is_marked.then(|| place.event.is_done()) {
            Some(Ok(is_done)) => Ok(is_done),
            Some(Err(_)) | None => place.stream.synchronize().map(|()| true),
        }
    }

    /// Returns the result of an ended transfer. A failed transfer is repeated with the blocking
    /// call. cuFile fails transfers that the end of the file cuts short, and the error number
    /// belongs to another thread.
    fn outcome(&mut self, number: usize) -> io::Result<usize> {
        let place = &mut self.places[number];
        // SAFETY: cuFile has finished with it; the read is volatile, because cuFile writes this
        // memory.
        let moved = unsafe { (&raw const place.request.moved).read_volatile() };
        match (usize::try_from(moved), &mut place.transfer) {
            (Ok(moved), _) => Ok(moved),
            (Err(_), Some(transfer)) => wait_for(&self.files, transfer),
            (Err(_), None) => Ok(0),
        }
    }

    /// Collects ended transfers. A transfer whose end is unknown stays in flight.
    fn look(&mut self) -> Result<(), Error> {
        let (mut i, mut looked) = (0, Ok(()));
        while i < self.busy.len() {
            let number = self.busy[i];
            match self.is_over(number) {
                Ok(true) => {
                    self.busy.remove(i);
                    let moved = self.outcome(number);
                    self.come_back(number, moved);
                    continue;
                }
                Ok(false) => {}
                Err(e) => looked = Err(e),
            }
            i += 1;
        }
        looked
    }
}

/// Executes a transfer with the blocking call.
fn wait_for(files: &[Arc<CufileFile>], transfer: &mut Transfer<DeviceBuf>) -> io::Result<usize> {
    let file = &files[transfer.file];
    let (offset, at, bytes) = (transfer.offset, transfer.at, transfer.bytes);
    match transfer.direction {
        Direction::Read => file.read(offset, &mut transfer.buffer, at, bytes),
        Direction::Write => file.write(offset, &transfer.buffer, at, bytes),
    }
}

/// Returns true if the transfer consists of whole pages.
fn is_aligned(transfer: &Transfer<DeviceBuf>) -> bool {
    let page = PAGE_BYTES as u64;
    [transfer.offset, transfer.at as u64, transfer.bytes as u64].iter().all(|n| n.is_multiple_of(page))
}

impl Queue<DeviceBuf> for CufileAsyncQueue {
    fn path(&self) -> Path {
        self.path
    }

    fn depth(&self) -> usize {
        self.places.len()
    }

    fn in_flight(&self) -> usize {
        self.busy.len() + self.held.len()
    }

    fn submit(&mut self, mut transfer: Transfer<DeviceBuf>) {
        check_transfer(&transfer, self.files.len());
        assert!(self.in_flight() < self.places.len(), "the queue is full");
        let Some(number) = self.free.pop() else { panic!("the queue is full") };
        if self.places[number].is_registered && !is_aligned(&transfer) {
            let moved = wait_for(&self.files, &mut transfer);
            self.places[number].transfer = Some(transfer);
            return self.come_back(number, moved);
        }
        self.places[number].transfer = Some(transfer);
        match self.begin(number) {
            Ok(()) => self.busy.push(number),
            Err(e) => self.come_back(number, Err(e)),
        }
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<Done<DeviceBuf>>) -> io::Result<()> {
        let wanted = at_least.min(self.in_flight());
        let before = done.len();
        loop {
            let looked = self.look();
            done.append(&mut self.held);
            if done.len() - before >= wanted {
                return Ok(());
            }
            looked?;
            std::thread::yield_now();
        }
    }
}

impl Drop for CufileAsyncQueue {
    fn drop(&mut self) {
        let mut is_quiet = true;
        for number in mem::take(&mut self.busy) {
            is_quiet &= self.places[number].stream.synchronize().is_ok();
        }
        if !is_quiet {
            return lose((mem::take(&mut self.places), mem::take(&mut self.files)));
        }
        let Some(cufile) = self.files.first().map(|file| Arc::clone(file.cufile())) else { return };
        if let (Some(forget), Ok(())) = (cufile.api().stream_forget, cufile.context().bind()) {
            for place in self.places.iter().filter(|place| place.is_registered) {
                // SAFETY: registered by `new`, idle, and destroyed after this.
                unsafe { forget(place.stream.raw()) };
            }
        }
    }
}
