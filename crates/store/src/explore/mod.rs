//! Crashes at every instant, and what must be there afterwards.
//!
//! 1. A simulated medium runs a workload and keeps the [trace](Event) of everything that it was asked, with marks of what was
//!    begun and acknowledged.
//! 2. A [`Durability`] is the model of what its hardware promises. The explorer feeds it the trace, event by event, and
//!    after each, at the *boundary*, asks for the images that a crash can leave there and could not leave before: all
//!    of them, up to [`Limits::exhaustive`] a boundary, otherwise those near the extremes and a random sample.
//! 3. Each image that was not yet seen with the same progress is given to a judge, who recovers from it and compares with
//!    what was acknowledged. Judging may record a trace in turn, and explore that: a crash within recovery.
//!
//! Nothing here knows what is stored, or on which kind of medium.

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

/// How far a workload had come: commits are numbered from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last commit that was acknowledged: a crash must not lose it.
    pub acked: u64,
    /// The last commit that was begun: a crash may find it done. `acked` or one more.
    pub begun: u64,
}

/// What a medium was asked to do.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// Where.
        at: u64,
        /// Which.
        bytes: Vec<u8>,
    },
    /// Bytes were flushed.
    Flush {
        /// From where.
        at: u64,
        /// How many.
        len: usize,
    },
    /// What was flushed (on files: written) is durable.
    Fence,
    /// A fence failed, and whatever it should have made durable is lost or not; the system forgot that it was to be written.
    FailedFence,
    /// The length changed.
    Grow {
        /// The new length in bytes.
        len: u64,
    },
    /// The workload came this far.
    Mark(Progress),
}

/// The model of what a crash leaves of a medium.
pub trait Durability {
    /// Of a medium that holds `image`, all of it durable.
    fn new(image: &CrashImage) -> Self;

    /// What happens next.
    fn apply(&mut self, event: &Event);

    /// Visits what a crash after the last event can leave, and could not have left before it.
    fn images(&self, limits: &Limits, random: &mut Random, visit: &mut dyn FnMut(&dyn Candidate)) -> Coverage;
}

/// An image that a crash may leave: its hash at once, its bytes when asked for.
pub trait Candidate {
    /// [`CrashImage::hash`] of the image, mixed with its length if that may differ.
    fn hash(&self) -> u64;

    /// The image.
    fn build(&self) -> CrashImage;
}

/// How far a boundary was covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// A crash here leaves nothing that it could not leave before.
    Nothing,
    /// All images were visited.
    All,
    /// There are too many; some were.
    Sample,
}

/// How many images are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A boundary with no more images than this is enumerated.
    pub exhaustive: u64,
    /// At others, so many random ones are drawn, beside those near the extremes.
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
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// The next one below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Boundaries at which a crash could leave something new.
    pub boundaries: u64,
    /// Those of them whose images were only sampled.
    pub sampled: u64,
    /// Images visited.
    pub images: u64,
    /// Different ones among them, each with its progress: so many were judged.
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

/// A crash that something did not survive.
#[derive(Clone, Debug)]
pub struct Violation {
    /// How many events of the trace had happened.
    pub events: usize,
    /// How far the workload had come.
    pub progress: Progress,
    /// What the crash left.
    pub image: CrashImage,
    /// What is wrong.
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

/// Recovers from an image, and compares with what must be there; what is wrong is a sentence.
pub type Judge<'a> = dyn FnMut(&CrashImage, Progress) -> Result<(), String> + 'a;

/// Goes through the crashes of traces, and counts.
#[derive(Debug)]
pub struct Explorer {
    limits: Limits,
    random: Random,
    seen: HashSet<u64>,
    counts: Counts,
}

impl Explorer {
    /// One that draws its samples from `seed`, which the test prints.
    #[must_use]
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self { limits, random: Random::new(seed), seen: HashSet::new(), counts: Counts::default() }
    }

    /// What it looked at so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Gives `judge` every image, not yet seen, that a crash during `trace` may leave of a medium that held `start` durably.
    ///
    /// # Errors
    /// The first crash that the judge is not content with.
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

    /// The same for a crash after all of `trace`, when the workload has come as far as `progress`.
    ///
    /// # Errors
    /// The first crash that the judge is not content with.
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

/// The bytes of a simulated medium as the program sees them, and the trace of what it did to them. What simulated media are
/// made of.
#[derive(Debug)]
pub struct Recording {
    recorded: Mutex<Recorded>,
    /// `grow` beyond it fails.
    room: u64,
}

#[derive(Debug)]
struct Recorded {
    now: CrashImage,
    trace: Option<Vec<Event>>,
}

impl Recording {
    /// Of a medium that holds `image`; with a trace, or only the bytes.
    #[must_use]
    pub fn new(image: CrashImage, with_trace: bool) -> Self {
        let recorded = Mutex::new(Recorded { now: image, trace: with_trace.then(Vec::new) });
        Self { recorded, room: u64::MAX }
    }

    /// The same with room for no more than `room` bytes.
    #[must_use]
    pub fn with_room(self, room: u64) -> Self {
        Self { room, ..self }
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `event` into effect, and down in the trace.
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

    /// The length that the program sees.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.recorded().now.len()
    }

    /// Whether the program sees no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads what the program sees of `object`.
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

    /// Makes `object` longer.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room.
    pub fn grow(&self, object: &str, len: u64) -> crate::Result<()> {
        if len > self.room {
            let reason = format!("there is room for {} bytes, not for {len}", self.room);
            return Err(Error::Full { object: object.into(), reason });
        }
        self.record(Event::Grow { len });
        Ok(())
    }

    /// What the program sees.
    #[must_use]
    pub fn now(&self) -> CrashImage {
        self.recorded().now.clone()
    }

    /// Hands over the trace so far, and begins another.
    #[must_use]
    pub fn take_trace(&self) -> Vec<Event> {
        let mut recorded = self.recorded();
        recorded.trace.replace(Vec::new()).unwrap_or_default()
    }
}
