//! Reads past the page cache into a few pinned buffers, which are reused. Each buffer is copied to
//! the device before the next read into it.
//!
//! ```text
//! threads    pread │ copy, wait │ pread │ copy, wait │ ...   each owns its buffer
//! of the     wait for a buffer  │ pread │ copy, wait │ ...   with fewer buffers than threads
//! ring
//! ```
//! No processor of this machine reads the bytes, and the reads cycle through little memory. On the
//! disk of a virtual machine, where the processors of its host copy, both make reads faster. On an
//! array of drives, the first leaves the processors to other work.
//!
//! Invariants:
//! - A buffer belongs to one thread until its copy is known to have ended. If that cannot be
//!   determined, the buffer and the destination memory are leaked, and a new buffer is made in its
//!   place.
//! - The buffers of a disk bound its bytes in flight, independent of the number of queries and
//!   threads.
//! - A thread that has a buffer waits only for the disk and the copy, and never for another buffer.
//!   Waiting threads therefore make progress.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use onehop_io::{IoHints, Ledger, PAGE_BYTES, ReadAt};

use crate::queue::lose;
use crate::staging::MOST_THREADS;
use crate::{Context, DeviceBuf, PinnedBuf, Result, Stream};

/// Bytes of a buffer, and of a read. With fewer, the overhead of calls and of waits for copies
/// grows. With more, fewer reads are in flight within the few MiB at which a disk performs best.
pub const BOUNCE_BYTES: usize = 1 << 20;

const _: () = assert!(BOUNCE_BYTES.is_multiple_of(PAGE_BYTES));

/// A file that is read past the page cache, and the buffers of its disk.
pub struct Bounced {
    file: Arc<dyn ReadAt>,
    bounces: Arc<Bounces>,
}

impl fmt::Debug for Bounced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounced").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Bounced {
    /// Wraps a file that is open past the page cache.
    pub fn new(file: Arc<dyn ReadAt>, bounces: &Arc<Bounces>) -> Self {
        Self { file, bounces: Arc::clone(bounces) }
    }

    /// Returns the name of the file.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Returns the number of threads that keep all buffers in use.
    pub fn readers(&self) -> usize {
        self.bounces.most
    }

    /// Reads up to `bytes` bytes at `offset` of the file to the memory from `at` on, and waits. 0
    /// means the end of the file.
    ///
    /// # Errors
    /// Returns the error of the file or of the driver. If it is unknown whether the copy has ended,
    /// the memory is leaked.
    ///
    /// # Panics
    /// Panics if the range is not in the memory.
    ///
    /// # Safety
    /// These bytes of the memory have no other user until the call returns.
    pub unsafe fn read_part(&self, offset: u64, to: &Arc<DeviceBuf>, at: usize, bytes: usize) -> io::Result<usize> {
        let bytes = bytes.min(BOUNCE_BYTES);
        let place = to.address_of(&(at..at + bytes));
        let mut taken = self.bounces.take()?;
        // The caller counts the bytes, as it does for cuFile. This ledger is not reported.
        let moved = self.file.try_read_at(offset, &mut taken.memory[..bytes], &self.bounces.uncounted)?;
        if moved == 0 {
            return Ok(0);
        }
        let from = taken.memory.as_ptr();
        // SAFETY: `moved` bytes lie in the buffer, which this thread owns, and at `place`, which
        // has no other user, as the caller guarantees. The stream is waited for before any further
        // use of either. If the wait fails, both are leaked.
        let begun = unsafe { taken.stream.copy_to_device(place, from, moved) };
        let over = taken.stream.synchronize();
        if over.is_err() {
            taken.is_lost = true;
            lose(Arc::clone(to));
        }
        begun.and(over)?;
        Ok(moved)
    }
}

/// A pinned buffer, and the stream of its copies.
struct Bounce {
    memory: PinnedBuf,
    stream: Stream,
}

impl Bounce {
    fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { memory: PinnedBuf::zeroed(context, BOUNCE_BYTES)?, stream: Stream::new(context)? })
    }
}

/// Buffers of a disk. They are made on demand, and kept. All methods are thread-safe.
pub struct Bounces {
    context: Arc<Context>,
    most: usize,
    state: Mutex<State>,
    /// Signals that a buffer is idle, or that another may be made.
    given: Condvar,
    uncounted: Ledger,
}

impl fmt::Debug for Bounces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounces").field("most", &self.most).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// A stack: the buffer that was used last is taken next.
    idle: Vec<Bounce>,
    /// Number of buffers, including those in use and those being made.
    made: usize,
}

impl Bounces {
    /// Returns as many buffers as keep a disk busy with such files.
    pub fn new(context: &Arc<Context>, hints: &IoHints) -> Self {
        // Hints include half as much again as a disk needs, in case the next read is late. Here a
        // thread waits with that read.
        Self::of(context, hints.in_flight_bytes / 3 * 2 / BOUNCE_BYTES)
    }

    /// Returns at most `most` buffers. The number is raised to 2, and limited to the maximum number
    /// of threads.
    pub fn of(context: &Arc<Context>, most: usize) -> Self {
        let (context, most) = (Arc::clone(context), most.clamp(2, MOST_THREADS));
        Self { context, most, state: Mutex::default(), given: Condvar::new(), uncounted: Ledger::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a buffer for the exclusive use of the caller, and waits until there is one.
    fn take(&self) -> Result<Taken<'_>> {
        let taken = |bounce| Taken { of: self, bounce: ManuallyDrop::new(bounce), is_lost: false };
        let mut state = self.lock();
        loop {
            if let Some(bounce) = state.idle.pop() {
                return Ok(taken(bounce));
            }
            if state.made < self.most {
                state.made += 1;
                drop(state);
                let made = Bounce::new(&self.context);
                state = self.lock();
                match made {
                    Ok(bounce) => return Ok(taken(bounce)),
                    Err(e) => {
                        state.made -= 1;
                        if state.made == 0 {
                            // Each waiting thread now tries to make a buffer itself.
                            self.given.notify_all();
                            return Err(e);
                        }
                        // Fewer buffers are sufficient.
                        if !state.idle.is_empty() {
                            continue;
                        }
                    }
                }
            }
            state = self.given.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A buffer in use.
struct Taken<'a> {
    of: &'a Bounces,
    bounce: ManuallyDrop<Bounce>,
    /// True if a copy may still read the buffer.
    is_lost: bool,
}

impl Deref for Taken<'_> {
    type Target = Bounce;

    fn deref(&self) -> &Bounce {
        &self.bounce
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Bounce {
        &mut self.bounce
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // SAFETY: the value is not used after this.
        let bounce = unsafe { ManuallyDrop::take(&mut self.bounce) };
        let mut state = self.of.lock();
        match self.is_lost {
            true => {
                state.made -= 1;
                lose(bounce);
            }
            false => state.idle.push(bounce),
        }
        drop(state);
        self.of.given.notify_one();
    }
}
