//! Crashes at every instant, and the check of the state afterwards.
//!
//! 1. A simulated medium runs a workload and keeps the [trace](Event) of all operations on it, with
//!    marks for the commits that were begun and acknowledged.
//! 2. A [`Durability`] is the model of the hardware's guarantees. The explorer passes it the trace,
//!    event by event. After each event, at the *boundary*, it requests the images that a crash can
//!    leave there and could not leave before. It visits all of them, up to [`Limits::exhaustive`] a
//!    boundary, otherwise those near the extremes and a random sample.
//! 3. Each image that is new for its progress goes to a judge, which recovers from it and compares
//!    with the acknowledged state. Judging may record a trace in turn, and explore it: a crash
//!    during recovery.
//!
//! This module is independent of the stored data and of the kind of medium.

#[cfg(test)]
pub(crate) mod backends;
mod image;
#[cfg(test)]
pub(crate) mod mutants;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::medium::range;

pub use image::{CrashImage, mix, word_hash};

/// The progress of a workload: commits are numbered from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last commit that was acknowledged: a crash must not lose it.
    pub acked: u64,
    /// The last commit that was begun: a crash may leave it done. `acked` or one more.
    pub begun: u64,
}

/// An operation on a medium.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// The position.
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Bytes were flushed.
    Flush {
        /// The position.
        at: u64,
        /// The number of bytes.
        len: usize,
    },
    /// All flushed bytes (on files: all written bytes) are durable.
    Fence,
    /// A fence failed. The bytes that it should have made durable are lost or not, and the system
    /// does not write them any more.
    FailedFence,
    /// The length changed.
    Grow {
        /// The new length in bytes.
        len: u64,
    },
    /// The workload made this progress.
    Mark(Progress),
}

/// The model of the state of a medium after a crash.
pub trait Durability {
    /// Creates the model of a medium that holds `image`, all of it durable.
    fn new(image: &CrashImage) -> Self;

    /// Applies the next event.
    fn apply(&mut self, event: &Event);

    /// Visits the images that a crash after the last event can leave, and could not have left
    /// before it.
    fn images(&self, limits: &Limits, random: &mut Random, visit: &mut dyn FnMut(&dyn Candidate)) -> Coverage;
}

/// An image that a crash may leave: its hash is ready, its bytes are built on request.
pub trait Candidate {
    /// Returns [`CrashImage::hash`] of the image, mixed with its length if that may differ.
    fn hash(&self) -> u64;

    /// Builds the image.
    fn build(&self) -> CrashImage;
}

/// The coverage of a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// A crash here leaves no image that it could not leave before.
    Nothing,
    /// All images were visited.
    All,
    /// There are too many images: a sample was visited.
    Sample,
}

/// The limits of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of images of a boundary that is enumerated.
    pub exhaustive: u64,
    /// The number of random images at other boundaries, beside those near the extremes.
    pub samples: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { exhaustive: 4096, samples: 256 }
    }
}

/// Random numbers from a seed (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Returns the next number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }
}

/// Counters of an exploration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// The number of boundaries at which a crash could leave a new image.
    pub boundaries: u64,
    /// The number of those boundaries whose images were only sampled.
    pub sampled: u64,
    /// The number of images visited.
    pub images: u64,
    /// The number of distinct images, each with its progress: all of them were judged.
    pub distinct: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { boundaries, sampled, images, distinct } = self;
        write!(
            f,
            "{distinct} distinct crash images of {images}, at {boundaries} boundaries ({sampled} of them sampled)"
        )
    }
}

/// A crash after which the judge found an error.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The number of events of the trace before the crash.
    pub events: usize,
    /// The progress of the workload.
    pub progress: Progress,
    /// The image that the crash left.
    pub image: CrashImage,
    /// The error that was found.
    pub reason: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, progress, image, reason } = self;
        let Progress { acked, begun } = progress;
        write!(
            f,
            "crash after event {events} (commits acknowledged: {acked}, begun: {begun}; image {:016x}): {reason}",
            image.hash()
        )
    }
}

/// Recovers from an image, and compares with the expected state. The error is a sentence.
pub type Judge<'a> = dyn FnMut(&CrashImage, Progress) -> Result<(), String> + 'a;

/// Explores the crashes of traces, and counts.
#[derive(Debug)]
pub struct Explorer {
    limits: Limits,
    random: Random,
    seen: HashSet<u64>,
    counts: Counts,
}

impl Explorer {
    /// Creates an explorer that draws its samples from `seed`, which the test prints.
    #[must_use]
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self { limits, random: Random::new(seed), seen: HashSet::new(), counts: Counts::default() }
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Passes `judge` every new image that a crash during `trace` may leave of a medium that held
    /// `start` durably.
    ///
    /// # Errors
    /// The first crash that the judge rejects.
    pub fn explore<D: Durability>(
        &mut self,
        start: &CrashImage,
        trace: &[Event],
        judge: &mut Judge<'_>,
    ) -> Result<(), Box<Violation>> {
        let mut model = D::new(start);
        let mut progress = Progress::default();
        for (index, event) in trace.iter().enumerate() {
            model.apply(event);
            if let Event::Mark(now) = event {
                progress = *now;
            }
            self.crash(&model, index + 1, progress, judge)?;
        }
        Ok(())
    }

    /// Explores a crash after all of `trace`, when the workload has made `progress`.
    ///
    /// # Errors
    /// The first crash that the judge rejects.
    pub fn explore_end<D: Durability>(
        &mut self,
        start: &CrashImage,
        trace: &[Event],
        progress: Progress,
        judge: &mut Judge<'_>,
    ) -> Result<(), Box<Violation>> {
        let mut model = D::new(start);
        trace.iter().for_each(|event| model.apply(event));
        model.apply(&Event::Mark(progress));
        self.crash(&model, trace.len(), progress, judge)
    }

    fn crash<D: Durability>(
        &mut self,
        model: &D,
        events: usize,
        progress: Progress,
        judge: &mut Judge<'_>,
    ) -> Result<(), Box<Violation>> {
        let mut violation = None;
        let (seen, counts) = (&mut self.seen, &mut self.counts);
        let coverage = model.images(&self.limits, &mut self.random, &mut |candidate| {
            counts.images += 1;
            let key = mix(candidate.hash() ^ mix(progress.acked << 32 | progress.begun));
            if violation.is_some() || !seen.insert(key) {
                return;
            }
            counts.distinct += 1;
            let image = candidate.build();
            if let Err(reason) = judge(&image, progress) {
                violation = Some(Box::new(Violation { events, progress, image, reason }));
            }
        });
        self.counts.boundaries += u64::from(coverage != Coverage::Nothing);
        self.counts.sampled += u64::from(coverage == Coverage::Sample);
        violation.map_or(Ok(()), Err)
    }
}

/// The bytes of a simulated medium as the program sees them, and the trace of operations on it. The
/// base of simulated media.
#[derive(Debug)]
pub struct Recording {
    recorded: Mutex<Recorded>,
    /// The limit of `grow`, in bytes.
    room: u64,
}

#[derive(Debug)]
struct Recorded {
    now: CrashImage,
    trace: Option<Vec<Event>>,
}

impl Recording {
    /// Creates the recording of a medium that holds `image`, with a trace, or with the bytes only.
    #[must_use]
    pub fn new(image: CrashImage, with_trace: bool) -> Self {
        let recorded = Mutex::new(Recorded { now: image, trace: with_trace.then(Vec::new) });
        Self { recorded, room: u64::MAX }
    }

    /// Limits the medium to `room` bytes.
    #[must_use]
    pub fn with_room(self, room: u64) -> Self {
        Self { room, ..self }
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies `event`, and adds it to the trace.
    pub fn record(&self, event: Event) {
        let mut recorded = self.recorded();
        match &event {
            Event::Write { at, bytes } => recorded.now.write(*at, bytes),
            Event::Grow { len } => recorded.now.set_len(*len),
            Event::Flush { .. } | Event::Fence | Event::FailedFence | Event::Mark(_) => {}
        }
        if let Some(trace) = &mut recorded.trace {
            trace.push(event);
        }
    }

    /// Returns the length that the program sees.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.recorded().now.len()
    }

    /// Returns true if the program sees no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the bytes that the program sees of `object`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] beyond its end.
    pub fn read(&self, object: &str, at: u64, into: &mut [u8]) -> crate::Result<()> {
        let recorded = self.recorded();
        range(object, at, into.len(), recorded.now.len() as usize)?;
        recorded.now.read(at, into);
        Ok(())
    }

    /// Writes within the length of `object`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] beyond its end.
    pub fn write(&self, object: &str, at: u64, bytes: &[u8]) -> crate::Result<()> {
        range(object, at, bytes.len(), self.len() as usize)?;
        self.record(Event::Write { at, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Extends `object`.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no space.
    pub fn grow(&self, object: &str, len: u64) -> crate::Result<()> {
        if len > self.room {
            let reason = format!("there is room for {} bytes, not for {len}", self.room);
            return Err(Error::Full { object: object.into(), reason });
        }
        self.record(Event::Grow { len });
        Ok(())
    }

    /// Returns the bytes that the program sees.
    #[must_use]
    pub fn now(&self) -> CrashImage {
        self.recorded().now.clone()
    }

    /// Returns the trace so far, and begins another.
    #[must_use]
    pub fn take_trace(&self) -> Vec<Event> {
        let mut recorded = self.recorded();
        recorded.trace.replace(Vec::new()).unwrap_or_default()
    }
}
