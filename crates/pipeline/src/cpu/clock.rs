//! Where the time of a pipeline's workers goes, by samples.
//!
//! Of so many vectors and frames one is *watched*: what passes until something else sets to work belongs to what was at
//! work, so that nothing is counted twice, however frames are nested. Loading blocks, and handing rows over, takes long and happens
//! seldom: it is measured whenever it happens, and kept out of what is watched. In the end what was watched is extended by the rows
//! that were not, and all of it to the time that the threads have really taken.
//!
//! A clock costs as much as some dozens of rows do: two for a load of tens of thousands, a few for one of some thirty
//! vectors. Which vectors are watched does not depend on where blocks begin: the period and a block's vectors have no
//! divisor in common.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Of so many vectors, and of so many frames, one is watched; the first is.
const PERIOD: u64 = 31;

/// What is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Decoding, and picking rows.
    Source,
    Step(usize),
    Sink,
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Screens,
    Frames,
}

/// Rows of one phase, and of those that were watched.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    times: u64,
    rows: u64,
    watched_rows: u64,
}

impl Seen {
    fn is_watched(&mut self, rows: usize) -> bool {
        let is_watched = self.times.is_multiple_of(PERIOD);
        self.times += 1;
        self.rows += rows as u64;
        self.watched_rows += if is_watched { rows as u64 } else { 0 };
        is_watched
    }

    /// What a watched time stands for.
    fn extended(&self, watched: Duration) -> Duration {
        watched.mul_f64(self.rows as f64 / self.watched_rows.max(1) as f64)
    }
}

/// Of the source, the sink, then the steps.
type Laps = Vec<Duration>;

fn place(work: Work) -> usize {
    match work {
        Work::Source => 0,
        Work::Sink => 1,
        Work::Step(step) => 2 + step,
    }
}

/// One worker's, or that of all of them.
#[derive(Debug)]
struct Watched {
    seen: [Seen; 2],
    laps: [Laps; 2],
    loading: Duration,
    handing_over: Duration,
    threads: Duration,
    cpu: Duration,
}

impl Watched {
    fn new(steps: usize) -> Self {
        let none = || vec![Duration::ZERO; 2 + steps];
        Self {
            seen: Default::default(),
            laps: [none(), none()],
            loading: Duration::ZERO,
            handing_over: Duration::ZERO,
            threads: Duration::ZERO,
            cpu: Duration::ZERO,
        }
    }

    fn add(&mut self, other: &Self) {
        for (seen, other) in self.seen.iter_mut().zip(&other.seen) {
            seen.rows += other.rows;
            seen.watched_rows += other.watched_rows;
        }
        for (laps, other) in self.laps.iter_mut().flatten().zip(other.laps.iter().flatten()) {
            *laps += *other;
        }
        self.loading += other.loading;
        self.handing_over += other.handing_over;
        self.threads += other.threads;
        self.cpu += other.cpu;
    }
}

/// A worker's watch.
#[derive(Debug)]
pub(super) struct Clock {
    watched: Watched,
    phase: Phase,
    /// What is at work, while something is watched.
    at: Work,
    /// Since when that has not been counted.
    lap: Option<Instant>,
    /// Since when, by the clock and by the processor's time of this thread.
    began: Option<(Instant, Duration)>,
}

impl Clock {
    pub fn new(steps: usize) -> Self {
        Self { watched: Watched::new(steps), phase: Phase::Screens, at: Work::Source, lap: None, began: None }
    }

    /// The thread sets to work, if it has not done so before.
    pub fn start(&mut self) {
        self.began.get_or_insert_with(|| (Instant::now(), thread_cpu_time()));
    }

    /// The screens are about to see so many rows.
    pub fn screens(&mut self, rows: usize) {
        self.watch(Phase::Screens, rows);
    }

    /// The steps behind them are about to see so many rows.
    pub fn frame(&mut self, rows: usize) {
        self.watch(Phase::Frames, rows);
    }

    fn watch(&mut self, phase: Phase, rows: usize) {
        (self.phase, self.at) = (phase, Work::Source);
        self.lap = self.watched.seen[phase as usize].is_watched(rows).then(Instant::now);
    }

    /// `work` begins; returns what was at work until now.
    #[inline]
    pub fn turn_to(&mut self, work: Work) -> Work {
        let before = std::mem::replace(&mut self.at, work);
        if let Some(lap) = &mut self.lap {
            let now = Instant::now();
            self.watched.laps[self.phase as usize][place(before)] += now - *lap;
            *lap = now;
        }
        before
    }

    /// What was watched has come to its end.
    pub fn stop(&mut self) {
        self.turn_to(Work::Source);
        self.lap = None;
    }

    /// A block has been loaded since `began`.
    pub fn loaded(&mut self, began: Instant) {
        let took = began.elapsed();
        self.watched.loading += took;
        if let Some(lap) = &mut self.lap {
            *lap += took;
        }
    }

    /// Rows have been handed over since `began`.
    pub fn handed_over(&mut self, began: Instant) {
        let took = began.elapsed();
        self.watched.handing_over += took;
        if let Some(lap) = &mut self.lap {
            *lap += took;
        }
    }

    /// Tells what is known to those who add it up, once the thread's work has ended.
    pub fn tell(&mut self, times: &Times) {
        let Some((began, cpu)) = self.began.take() else { return };
        self.watched.threads += began.elapsed();
        self.watched.cpu += thread_cpu_time().saturating_sub(cpu);
        let watched = std::mem::replace(&mut self.watched, Watched::new(times.steps));
        times.all.lock().unwrap_or_else(PoisonError::into_inner).add(&watched);
    }
}

/// What the workers of a stage have told.
#[derive(Debug)]
pub(super) struct Times {
    all: Mutex<Watched>,
    steps: usize,
}

impl Times {
    pub fn new(steps: usize) -> Self {
        Self { all: Mutex::new(Watched::new(steps)), steps }
    }

    /// The time of all threads, dealt to what they did. `parts_of` has the step of the pipeline that each compiled one
    /// is a part of.
    pub fn told(&self, parts_of: &[Option<usize>], pipeline_steps: usize) -> StageTimes {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let extended = |work: Work| -> Duration {
            let phases = all.seen.iter().zip(&all.laps);
            phases.map(|(seen, laps)| seen.extended(laps[place(work)])).sum()
        };
        let mut steps = vec![Duration::ZERO; pipeline_steps];
        let mut sink = all.handing_over + extended(Work::Sink);
        for (step, part_of) in parts_of.iter().enumerate() {
            match part_of {
                Some(part_of) => steps[*part_of] += extended(Work::Step(step)),
                // What the sink knows of rows before they come to it.
                None => sink += extended(Work::Step(step)),
            }
        }
        let mut times = StageTimes {
            threads: all.threads,
            cpu: all.cpu,
            source: all.loading + extended(Work::Source),
            steps,
            sink,
        };
        let known = times.source + times.sink + times.steps.iter().sum::<Duration>();
        let scale = all.threads.as_secs_f64() / known.as_secs_f64().max(f64::MIN_POSITIVE);
        let scale = if scale.is_finite() { scale } else { 0.0 };
        [&mut times.source, &mut times.sink].into_iter().chain(&mut times.steps).for_each(|time| {
            *time = time.mul_f64(scale);
        });
        times
    }
}

/// What the threads of a pipeline have spent their time on. Only `threads` and `cpu` are measured throughout: the rest
/// are parts of `threads`, by samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// From each thread's first morsel to its last, waiting included, all threads together.
    pub threads: Duration,
    /// The processor's time of these threads.
    pub cpu: Duration,
    /// Loading blocks, decoding what steps and the sink ask for, and picking rows.
    pub source: Duration,
    /// Each step.
    pub steps: Vec<Duration>,
    /// Groups, rows for a table, or rows that are handed over.
    pub sink: Duration,
}

impl StageTimes {
    /// Adds those of another pass.
    pub fn add(&mut self, other: &Self) {
        self.threads += other.threads;
        self.cpu += other.cpu;
        self.source += other.source;
        self.sink += other.sink;
        self.steps.resize(self.steps.len().max(other.steps.len()), Duration::ZERO);
        self.steps.iter_mut().zip(&other.steps).for_each(|(time, other)| *time += *other);
    }

    /// The part of the threads' time that `time` is.
    pub fn share(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.threads.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// The processor's time that this thread has taken so far; none where that is not to be known.
pub fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of our own, which the call fills or leaves alone; it keeps nothing of it.
    let outcome = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    match (outcome, u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (0, Ok(seconds), Ok(nanoseconds)) => Duration::new(seconds, nanoseconds),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn all_time_belongs_to_something() {
        let times = Times::new(3);
        let mut clock = Clock::new(3);
        clock.start();
        for _ in 0..PERIOD + 1 {
            clock.screens(1000);
            clock.turn_to(Work::Step(0));
            busy(Duration::from_micros(30));
            clock.stop();
            clock.frame(10);
            clock.turn_to(Work::Step(2));
            let loading = Instant::now();
            busy(Duration::from_micros(10));
            clock.loaded(loading);
            clock.turn_to(Work::Sink);
            busy(Duration::from_micros(10));
            clock.stop();
        }
        clock.tell(&times);
        // Two compiled steps are one of the pipeline's.
        let told = times.told(&[Some(0), Some(0), Some(1)], 2);
        let sum = told.source + told.sink + told.steps.iter().sum::<Duration>();
        assert!(sum.abs_diff(told.threads) < Duration::from_micros(1), "{told:?}");
        // Loads are the source's, and nobody else's.
        assert!(told.source > Duration::ZERO && told.steps[1] < told.steps[0], "{told:?}");
        assert!(told.cpu > Duration::ZERO, "{told:?}");
        // Who told has nothing more to tell.
        clock.tell(&times);
        assert_eq!(times.told(&[Some(0), Some(0), Some(1)], 2), told);
    }

    #[test]
    fn nothing_done_takes_no_time() {
        let told = Times::new(1).told(&[Some(0)], 1);
        assert_eq!(told, StageTimes { steps: vec![Duration::ZERO], ..StageTimes::default() });
        assert!(told.share(told.source) == 0.0);
    }
}
