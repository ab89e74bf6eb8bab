//! Reads past the page cache into few pinned buffers, which are used again and again, each copied to the device before the next
//! read into it.
//!
//! ```text
//! threads of the ring    pread │ copy, wait │ pread │ copy, wait │ ...     each with a buffer that nobody else has
//!                        wait for a buffer  │ pread │ copy, wait │ ...     where there are more threads than buffers
//! ```
//! No processor of ours looks at the bytes, and little memory is cycled through: on the disk of a virtual machine, which the
//! host's processors copy there, both make reads faster; on an array of drives the first leaves the processors to others.
//!
//! Invariants:
//! - A buffer is one thread's until its copy is known to be over. If that cannot be known, the buffer is leaked, and so is
//!   the memory that it is copied to: another one is made in its place.
//! - What is in flight of one disk is bounded by its buffers, whatever queries run, and however many threads they have.
//! - Nobody who has a buffer waits for one, or for anything but the disk and the copy: those who wait get theirs.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use onehop_io::{IoHints, Ledger, PAGE_BYTES, ReadAt};

use crate::queue::lose;
use crate::staging::MOST_THREADS;
use crate::{Context, DeviceBuf, PinnedBuf, Result, Stream};

/// Bytes of a buffer, and of a read: with less the calls and the waits for copies take their share, with more there are fewer
/// reads in flight of the few MiB that a disk is at its best with.
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
    /// A file that is open past the page cache.
    pub fn new(file: Arc<dyn ReadAt>, bounces: &Arc<Bounces>) -> Self {
        Self { file, bounces: Arc::clone(bounces) }
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Threads that it takes to have all buffers in use.
    pub fn readers(&self) -> usize {
        self.bounces.most
    }

    /// Reads up to `bytes` at `offset` of the file to the bytes of the memory from `at` on, and waits; 0 means the end of the
    /// file.
    ///
    /// # Errors
    /// Those of the file and of the driver. If it is not known whether the copy is over, the memory is held for good.
    ///
    /// # Panics
    /// If the bytes do not lie in the memory.
    ///
    /// # Safety
    /// Nobody uses these bytes of the memory until the call returns.
    pub unsafe fn read_part(&self, offset: u64, to: &Arc<DeviceBuf>, at: usize, bytes: usize) -> io::Result<usize> {
        let bytes = bytes.min(BOUNCE_BYTES);
        let place = to.address_of(&(at..at + bytes));
        let mut taken = self.bounces.take()?;
        // Who carries the bytes counts them, as it does of cuFile's.
        let moved = self.file.try_read_at(offset, &mut taken.memory[..bytes], &self.bounces.uncounted)?;
        if moved == 0 {
            return Ok(0);
        }
        let from = taken.memory.as_ptr();
        // SAFETY: so many bytes lie in the buffer, which is this thread's, and at the place, which is nobody else's, as the
        // caller promises. The stream is waited for before anything else happens to either; where that fails, both are leaked.
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

/// A pinned buffer, and the stream that its copies are in.
struct Bounce {
    memory: PinnedBuf,
    stream: Stream,
}

impl Bounce {
    fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { memory: PinnedBuf::zeroed(context, BOUNCE_BYTES)?, stream: Stream::new(context)? })
    }
}

/// The buffers of a disk. They are made when they are needed, and stay. All methods may be called from many threads.
pub struct Bounces {
    context: Arc<Context>,
    most: usize,
    state: Mutex<State>,
    /// There is one, or there may be another.
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
    /// The one that was used last is the next to be.
    idle: Vec<Bounce>,
    /// How many there are, idle or not, or are being made.
    made: usize,
}

impl Bounces {
    /// As many as keep a disk busy with such files.
    pub fn new(context: &Arc<Context>, hints: &IoHints) -> Self {
        // Hints have half as much again as a disk needs, in case that the next read is late: here a thread waits with it.
        Self::of(context, hints.in_flight_bytes / 3 * 2 / BOUNCE_BYTES)
    }

    /// So many, if that is neither next to none nor more than threads would use.
    pub fn of(context: &Arc<Context>, most: usize) -> Self {
        let (context, most) = (Arc::clone(context), most.clamp(2, MOST_THREADS));
        Self { context, most, state: Mutex::default(), given: Condvar::new(), uncounted: Ledger::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer that nobody else has, when there is one.
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
                            // Whoever waits for one of others tries for itself.
                            self.given.notify_all();
                            return Err(e);
                        }
                        // Fewer do as well.
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
    /// Whether something may still read it.
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
        // SAFETY: nobody uses it after this.
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
