//! Extents of files in, filled buffers out: the reader that everything reads through that reads much.
//!
//! The caller says which bytes it wants, in the order in which it wants them. They are made *requests*: what is
//! adjacent, or nearly, is read at once, and what is longer than a request is read in pieces. Each device has threads
//! of its own, each with a [`Queue`] that it keeps full, and buffers of its own from a [`Supply`]: a slow device holds
//! up nothing but what is read from it.
//!
//! Invariants:
//! - Memory is bounded by the supplies: a request begins when it has its buffer, and a buffer goes back when its
//!   [`Filled`] is dropped.
//! - A thread takes its buffer and its request in one step, and a device's requests begin in order: of all that wait for
//!   a reader in order, the first has its buffer, so that it cannot wait for those behind it.
//! - After an error nothing more begins, and every later call reports the same error: an end that looks like the whole
//!   is one.
//! - Dropping the reader cancels it. Its threads end when what is in flight has come back, and are waited for, unless it
//!   is given up by [`StreamReader::abandon`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use crate::queue::{Advance, Direction, Done, Metered, Queue, Transfer};
use crate::{Allowance, Error, LentBuf, Operation, PAGE_BYTES, Pool, PoolBuf, Result};

/// A run of bytes that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Which file.
    pub file: usize,
    /// Where it starts. In bytes.
    pub offset: u64,
    /// How long it is. In bytes.
    pub bytes: usize,
}

/// In which order buffers are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As the extents were given.
    #[default]
    Given,
    /// As they come.
    Arrival,
}

/// Where what is longer than a request is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// On any page.
    #[default]
    Anywhere,
    /// Between extents alone: each comes in one piece, and one that is longer than a request is one all the same.
    BetweenExtents,
}

/// How extents become requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// The most bytes of a request, whole pages.
    pub request_bytes: usize,
    /// Where what is longer is cut.
    pub cut: Cut,
    /// Extents with a gap of at most this between them are read at once, gap and all. `None`: each by itself.
    pub gap_bytes: Option<usize>,
    /// In which order buffers are handed out.
    pub order: Order,
}

/// A part of an extent and where it lies in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which of the extents.
    pub extent: usize,
    /// Where in the extent it starts. In bytes.
    pub from: usize,
    /// Where in the buffer it lies.
    pub range: Range<usize>,
}

/// One read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    file: usize,
    /// A page's edge.
    offset: u64,
    /// Whole pages, but for the end of the file.
    bytes: usize,
    pieces: Vec<Piece>,
}

/// Where buffers come from. Bounded: that is what bounds a reader's memory.
pub trait Supply<B>: Send + Sync {
    /// A buffer of at least so many bytes, if there is one now.
    fn try_get(&self, bytes: usize) -> Option<B>;

    /// Waits until there is one, or it is over. Somebody else may be faster.
    fn wait_for(&self, bytes: usize, is_over: &AtomicBool);

    /// Has everybody who waits look whether it is over.
    fn wake(&self);
}

impl Supply<PoolBuf> for Arc<Pool> {
    fn try_get(&self, bytes: usize) -> Option<PoolBuf> {
        debug_assert!(bytes <= self.buffer_bytes());
        self.take()
    }

    fn wait_for(&self, _bytes: usize, is_over: &AtomicBool) {
        Pool::wait_for(self, is_over);
    }

    fn wake(&self) {
        Pool::wake(self);
    }
}

impl Supply<LentBuf> for Allowance {
    fn try_get(&self, bytes: usize) -> Option<LentBuf> {
        self.take(bytes)
    }

    fn wait_for(&self, bytes: usize, is_over: &AtomicBool) {
        Allowance::wait_for(self, bytes, is_over);
    }

    fn wake(&self) {
        Allowance::wake(self);
    }
}

/// What reads from one device: threads, each with a queue, and the buffers of all of them.
pub struct Reads<B> {
    /// Which of the files lie on it.
    pub files: Vec<usize>,
    /// A queue for each thread. Each knows all files, by their numbers.
    pub queues: Vec<Box<dyn Queue<B>>>,
    /// The buffers: this device's alone. Two that share them, read in order, wait for each other.
    pub supply: Box<dyn Supply<B>>,
}

impl<B> fmt::Debug for Reads<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reads").field("files", &self.files).field("queues", &self.queues.len()).finish_non_exhaustive()
    }
}

/// A buffer with what was asked for. Gives it back when it is dropped.
#[derive(Debug)]
pub struct Filled<B> {
    /// The memory, of which [`Filled::pieces`] has been filled.
    pub buffer: B,
    /// What lies where, in the order of the extents.
    pub pieces: Vec<Piece>,
}

/// Reads extents.
#[derive(Debug)]
pub struct StreamReader<B: Send + 'static> {
    shared: Arc<Shared<B>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<B> {
    requests: Vec<Request>,
    /// Of each extent, the last request that has some of it, or that of one before it.
    last_of: Vec<usize>,
    names: Vec<String>,
    order: Order,
    state: Mutex<State<B>>,
    arrived: Condvar,
    supplies: Vec<Arc<dyn Supply<B>>>,
    /// Failed or cancelled: nothing more begins.
    is_over: AtomicBool,
}

impl<B> fmt::Debug for Shared<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("requests", &self.requests.len()).finish_non_exhaustive()
    }
}

struct State<B> {
    /// For each device, its requests, and how many of them have begun.
    devices: Vec<(Vec<usize>, usize)>,
    /// What has come and is not handed out yet, by the request's number.
    ready: BTreeMap<usize, B>,
    /// Requests that were handed out.
    handed_out: usize,
    failed: Option<Error>,
    /// Of tasks that wait for buffers, with the request up to which they want to have them.
    wakers: Vec<(usize, Waker)>,
    /// Of each device, whether it has found no buffer: until it does, nobody waits for more than there is.
    is_short: Vec<bool>,
}

impl<B: Send + 'static> StreamReader<B> {
    /// Begins to read. `names` are the files', for messages; each file lies on one of the devices.
    ///
    /// # Panics
    /// If an extent's file is on no device, or a request is longer than the supply's buffers: errors of the caller.
    pub fn start(names: Vec<String>, extents: &[Extent], options: StreamOptions, devices: Vec<Reads<B>>) -> Self {
        let requests = plan(extents, options);
        let of_device = |device: &Reads<B>| -> Vec<usize> {
            (0..requests.len()).filter(|n| device.files.contains(&requests[*n].file)).collect()
        };
        let numbers: Vec<(Vec<usize>, usize)> = devices.iter().map(|device| (of_device(device), 0)).collect();
        let all: usize = numbers.iter().map(|(numbers, _)| numbers.len()).sum();
        assert_eq!(all, requests.len(), "each file lies on one device");
        let (supplies, queues): (Vec<Arc<dyn Supply<B>>>, Vec<_>) =
            devices.into_iter().map(|device| (Arc::from(device.supply), device.queues)).unzip();
        let shared = Arc::new(Shared {
            last_of: last_of(&requests, extents.len()),
            requests,
            names,
            order: options.order,
            state: Mutex::new(State::of(numbers)),
            arrived: Condvar::new(),
            supplies,
            is_over: AtomicBool::new(false),
        });
        let mut threads = Vec::new();
        for (device, queues) in queues.into_iter().enumerate() {
            for queue in queues {
                let lane = Lane { shared: Arc::clone(&shared), device };
                match thread::Builder::new().name("onehop-read".into()).spawn(move || lane.run(queue)) {
                    Ok(thread) => threads.push(thread),
                    // Nobody would read what is on this device.
                    Err(e) => shared.end(Some(Error::new(Operation::Read, shared.names.join(", "), e))),
                }
            }
        }
        Self { shared, threads }
    }

    /// The next buffer; `None` after the last. May be called from many threads.
    ///
    /// # Errors
    /// The first that any read met, with file and offset, for every call from then on.
    pub fn next(&self) -> Result<Option<Filled<B>>> {
        let mut state = self.shared.lock();
        loop {
            if let Some(next) = self.shared.hand_out(&mut state) {
                self.shared.tell(state);
                return next;
            }
            state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// As [`StreamReader::next`], for a task: it is woken when it is worth asking again.
    ///
    /// # Errors
    /// As [`StreamReader::next`].
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Result<Option<Filled<B>>>> {
        self.poll_for(context, 0)
    }

    /// As [`StreamReader::poll_next`], for who has no use for a buffer before all extents up to one have come: what has
    /// come is handed out at once, but who waits is woken when all of them have, or no more can come before some are
    /// dropped. Waking somebody for every buffer costs as much as reading a short one.
    ///
    /// # Errors
    /// As [`StreamReader::next`].
    pub fn poll_for(&self, context: &mut Context<'_>, extent: usize) -> Poll<Result<Option<Filled<B>>>> {
        let mut state = self.shared.lock();
        match self.shared.hand_out(&mut state) {
            Some(next) => {
                self.shared.tell(state);
                Poll::Ready(next)
            }
            None => {
                let last = self.shared.last_of.get(extent).copied().unwrap_or(0);
                state.wakers.retain(|(_, waker)| !waker.will_wake(context.waker()));
                state.wakers.push((last, context.waker().clone()));
                Poll::Pending
            }
        }
    }

    /// Cancels it, and waits for nothing: threads that wait for the system end by themselves when it answers, with the
    /// buffers that it may still write to.
    pub fn abandon(mut self) {
        self.threads.clear();
    }
}

impl<B: Send + 'static> Drop for StreamReader<B> {
    fn drop(&mut self) {
        self.shared.end(None);
        for thread in self.threads.drain(..) {
            // A panic there was told as an error.
            let _ = thread.join();
        }
    }
}

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes next, if it is known by now.
    fn hand_out(&self, state: &mut State<B>) -> Option<Result<Option<Filled<B>>>> {
        if let Some(error) = &state.failed {
            return Some(Err(error.clone()));
        }
        if state.handed_out == self.requests.len() {
            return Some(Ok(None));
        }
        let number = self.next_of(state)?;
        let buffer = state.ready.remove(&number)?;
        state.handed_out += 1;
        Some(Ok(Some(Filled { buffer, pieces: self.requests[number].pieces.clone() })))
    }

    /// The request whose buffer is handed out next, if it has come.
    fn next_of(&self, state: &State<B>) -> Option<usize> {
        match self.order {
            Order::Given => Some(state.handed_out).filter(|number| state.ready.contains_key(number)),
            Order::Arrival => state.ready.keys().next().copied(),
        }
    }

    /// Has those who wait look again, if there is something to be seen.
    fn tell(&self, mut state: MutexGuard<'_, State<B>>) {
        let is_over = state.failed.is_some() || state.handed_out == self.requests.len();
        if !is_over && self.next_of(&state).is_none() {
            return;
        }
        let worth_it = is_over || state.is_short.contains(&true);
        let wakers = std::mem::take(&mut state.wakers);
        let (woken, waiting): (Vec<_>, Vec<_>) =
            wakers.into_iter().partition(|(last, _)| worth_it || self.has_come(&state, *last));
        state.wakers = waiting;
        // Whoever is woken may come back at once.
        drop(state);
        self.arrived.notify_all();
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Whether all requests up to one have come, of those that are not handed out.
    fn has_come(&self, state: &State<B>, last: usize) -> bool {
        match self.order {
            Order::Given => {
                let wanted = state.handed_out..(last + 1).max(state.handed_out);
                state.ready.range(wanted.clone()).count() == wanted.len()
            }
            Order::Arrival => true,
        }
    }

    /// Lets nothing more begin, and gives back what nobody will take.
    fn end(&self, error: Option<Error>) {
        self.is_over.store(true, Release);
        let mut state = self.lock();
        if let Some(error) = error {
            state.failed.get_or_insert(error);
        }
        let unclaimed = std::mem::take(&mut state.ready);
        self.tell(state);
        drop(unclaimed);
        for supply in &self.supplies {
            supply.wake();
        }
    }
}

impl<B> State<B> {
    fn of(devices: Vec<(Vec<usize>, usize)>) -> Self {
        let is_short = vec![false; devices.len()];
        Self { devices, ready: BTreeMap::new(), handed_out: 0, failed: None, wakers: Vec::new(), is_short }
    }
}

/// One thread's part.
struct Lane<B> {
    shared: Arc<Shared<B>>,
    device: usize,
}

impl<B> Drop for Lane<B> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Whoever waits for what this thread was reading must not wait for ever.
            let error = io::Error::other("a thread that reads has panicked");
            self.shared.end(Some(Error::new(Operation::Read, "a stream", error)));
        }
    }
}

impl<B: Send + 'static> Lane<B> {
    fn run(self, queue: Box<dyn Queue<B>>) {
        let (mut queue, mut done, mut come) = (Metered::new(queue), Vec::new(), Vec::new());
        loop {
            // Before those who wait for what has come are woken: meanwhile the device has something to do.
            while queue.has_room()
                && let Some(transfer) = self.begin(queue.is_idle() && come.is_empty())
            {
                queue.submit(transfer);
            }
            if queue.is_idle() && come.is_empty() {
                return;
            }
            self.hand_over(&mut come);
            if queue.is_idle() {
                continue;
            }
            if let Err(e) = queue.reap(&mut done) {
                let of = self.shared.names.join(", ");
                return self.shared.end(Some(Error::new(Operation::Read, of, e)));
            }
            come.extend(done.drain(..).filter_map(|one| self.finish(one, &mut queue)));
        }
    }

    /// The device's next request with a buffer for it; `None` if there is none, or no buffer. Waits for a buffer if
    /// there is nothing else to do.
    fn begin(&self, may_wait: bool) -> Option<Transfer<B>> {
        let (shared, supply) = (&self.shared, &self.shared.supplies[self.device]);
        loop {
            let mut state = shared.lock();
            let (numbers, begun) = &mut state.devices[self.device];
            let number = *numbers.get(*begun).filter(|_| !shared.is_over.load(Acquire))?;
            let request = &shared.requests[number];
            let Some(buffer) = supply.try_get(request.bytes) else {
                state.is_short[self.device] = true;
                shared.tell(state);
                if !may_wait {
                    return None;
                }
                supply.wait_for(request.bytes, &shared.is_over);
                continue;
            };
            *begun += 1;
            state.is_short[self.device] = false;
            return Some(Transfer {
                direction: Direction::Read,
                file: request.file,
                offset: request.offset,
                at: 0,
                bytes: request.bytes,
                needed: request.pieces.last().map_or(0, |piece| piece.range.end),
                buffer,
                tag: number as u64,
            });
        }
    }

    /// What has come, if all of it has.
    fn finish(&self, done: Done<B>, queue: &mut Metered<B>) -> Option<Transfer<B>> {
        match done.advance() {
            Advance::Whole(transfer) => return Some(transfer),
            Advance::Rest(transfer) => queue.submit(transfer),
            Advance::Failed(transfer, e) => {
                let name = self.shared.names.get(transfer.file).map_or("a file", String::as_str);
                let error = Error::at(Operation::Read, name, transfer.offset, transfer.needed, e);
                self.shared.end(Some(error));
            }
        }
        None
    }

    /// Has whoever waits look at what has come, if anybody wants it still.
    fn hand_over(&self, come: &mut Vec<Transfer<B>>) {
        if come.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        if !self.shared.is_over.load(Acquire) {
            state.ready.extend(come.drain(..).map(|transfer| (transfer.tag as usize, transfer.buffer)));
            self.shared.tell(state);
        } else {
            drop(state);
            come.clear();
        }
    }
}

/// Of each extent, the last request that has some of it; of an empty one, that of the extent before it.
fn last_of(requests: &[Request], extents: usize) -> Vec<usize> {
    let mut last_of = vec![0; extents];
    for (number, request) in requests.iter().enumerate() {
        request.pieces.iter().for_each(|piece| last_of[piece.extent] = number);
    }
    for extent in 1..extents {
        last_of[extent] = last_of[extent].max(last_of[extent - 1]);
    }
    last_of
}

/// Makes requests of extents: whole pages, no longer than allowed, neighbours together.
fn plan(extents: &[Extent], options: StreamOptions) -> Vec<Request> {
    let page = PAGE_BYTES as u64;
    let most = options.request_bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
    let mut requests: Vec<Request> = Vec::new();
    for (number, extent) in extents.iter().enumerate() {
        let (mut offset, end) = (extent.offset, extent.offset + extent.bytes as u64);
        while offset < end {
            let joined = match (requests.last_mut(), options.gap_bytes) {
                (Some(last), Some(gap)) => join(last, extent, number, offset, gap, most, options.cut),
                _ => 0,
            };
            if joined > 0 {
                offset += joined as u64;
                continue;
            }
            let start = offset - offset % page;
            let stop = match options.cut {
                Cut::Anywhere => end.min(start + most as u64),
                Cut::BetweenExtents => end,
            };
            let range = (offset - start) as usize..(stop - start) as usize;
            requests.push(Request {
                file: extent.file,
                offset: start,
                bytes: range.end.next_multiple_of(PAGE_BYTES),
                pieces: vec![Piece { extent: number, from: (offset - extent.offset) as usize, range }],
            });
            offset = stop;
        }
    }
    requests
}

/// Adds as much of an extent, from `offset` on, to a request as it takes. How many bytes.
fn join(last: &mut Request, extent: &Extent, number: usize, offset: u64, gap: usize, most: usize, cut: Cut) -> usize {
    let filled = last.offset + last.pieces.last().map_or(0, |piece| piece.range.end) as u64;
    let is_near = last.file == extent.file && offset >= filled && offset - filled <= gap as u64;
    let at = offset.saturating_sub(last.offset) as usize;
    if !is_near || at >= most {
        return 0;
    }
    let left = extent.bytes - (offset - extent.offset) as usize;
    if cut == Cut::BetweenExtents && left > most - at {
        return 0;
    }
    let bytes = left.min(most - at);
    last.bytes = (at + bytes).next_multiple_of(PAGE_BYTES);
    last.pieces.push(Piece { extent: number, from: (offset - extent.offset) as usize, range: at..at + bytes });
    bytes
}
