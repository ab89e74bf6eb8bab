//! Sampled time measurement of a pipeline's workers.
//!
//! One vector and one frame out of [`PERIOD`] are *watched*. The time until other work begins is
//! charged to the current work, so nothing is counted twice, however frames are nested. Loading a
//! block or handing rows over takes long and happens rarely. Those are always measured, and
//! excluded from the watched time. Finally, the watched time is extrapolated to the unwatched rows,
//! and everything is scaled to the actual time of the threads.
//!
//! One clock reading costs as much as processing some dozens of rows. There are two readings per
//! load of tens of thousands of rows, and a few per some thirty vectors. The choice of watched
//! vectors does not depend on block boundaries: the period and the number of vectors of a block are
//! coprime.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One vector and one frame out of this many are watched, beginning with the first.
const PERIOD: u64 = 31;

/// Work that time is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Decoding and picking rows.
    Source,
    Step(usize),
    Sink,
}

/// Kind of watched unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Screens,
    Frames,
}

/// Rows of one phase, and those of its watched units.
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

    /// Extrapolates a watched time to all rows.
    fn extended(&self, watched: Duration) -> Duration {
        watched.mul_f64(self.rows as f64 / self.watched_rows.max(1) as f64)
    }
}

/// Times of the source, the sink, then the steps.
type Laps = Vec<Duration>;

fn place(work: Work) -> usize {
    match work {
        Work::Source => 0,
        Work::Sink => 1,
        Work::Step(step) => 2 + step,
    }
}

/// Measurements of one worker, or of all workers together.
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

/// Clock of one worker.
#[derive(Debug)]
pub(super) struct Clock {
    watched: Watched,
    phase: Phase,
    /// Current work while a unit is watched.
    at: Work,
    /// Start of the time that is not charged yet.
    lap: Option<Instant>,
    /// Start time of the thread, by wall clock and by its CPU time.
    began: Option<(Instant, Duration)>,
}

impl Clock {
    pub fn new(steps: usize) -> Self {
        Self { watched: Watched::new(steps), phase: Phase::Screens, at: Work::Source, lap: None, began: None }
    }

    /// Starts the clock, if it has not been started.
    pub fn start(&mut self) {
        self.began.get_or_insert_with(|| (Instant::now(), thread_cpu_time()));
    }

    /// Begins the screens of a vector with `rows` rows.
    pub fn screens(&mut self, rows: usize) {
        self.watch(Phase::Screens, rows);
    }

    /// Begins a frame with `rows` rows, for the steps behind the screens.
    pub fn frame(&mut self, rows: usize) {
        self.watch(Phase::Frames, rows);
    }

    fn watch(&mut self, phase: Phase, rows: usize) {
        (self.phase, self.at) = (phase, Work::Source);
        self.lap = self.watched.seen[phase as usize].is_watched(rows).then(Instant::now);
    }

    /// Charges the time so far to the previous work, and begins `work`. Returns the previous work.
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

    /// Ends the watched unit.
    pub fn stop(&mut self) {
        self.turn_to(Work::Source);
        self.lap = None;
    }

    /// Records a block load that started at `began`.
    pub fn loaded(&mut self, began: Instant) {
        let took = began.elapsed();
        self.watched.loading += took;
        if let Some(lap) = &mut self.lap {
            *lap += took;
        }
    }

    /// Records a handover of rows that started at `began`.
    pub fn handed_over(&mut self, began: Instant) {
        let took = began.elapsed();
        self.watched.handing_over += took;
        if let Some(lap) = &mut self.lap {
            *lap += took;
        }
    }

    /// Adds the measurements to the stage's totals when the thread's work ends.
    pub fn tell(&mut self, times: &Times) {
        let Some((began, cpu)) = self.began.take() else { return };
        self.watched.threads += began.elapsed();
        self.watched.cpu += thread_cpu_time().saturating_sub(cpu);
        let watched = std::mem::replace(&mut self.watched, Watched::new(times.steps));
        times.all.lock().unwrap_or_else(PoisonError::into_inner).add(&watched);
    }
}

/// Totals over the workers of a stage.
#[derive(Debug)]
pub(super) struct Times {
    all: Mutex<Watched>,
    steps: usize,
}

impl Times {
    pub fn new(steps: usize) -> Self {
        Self { all: Mutex::new(Watched::new(steps)), steps }
    }

    /// Returns the time of all threads, distributed over the work. `parts_of` has the pipeline step
    /// of each compiled step.
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
                // A step of the sink that removes rows before they reach it.
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

/// Time spent by the threads of a pipeline. Only `threads` and `cpu` are measured throughout. The
/// other fields are parts of `threads`, estimated from samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Time from each thread's first morsel to its last, including waits, summed over all threads.
    pub threads: Duration,
    /// CPU time of these threads.
    pub cpu: Duration,
    /// Loading blocks, decoding values for steps and the sink, and picking rows.
    pub source: Duration,
    /// Time of each step.
    pub steps: Vec<Duration>,
    /// Making groups, collecting rows for a table, or handing rows over.
    pub sink: Duration,
}

impl StageTimes {
    /// Adds the times of another pass.
    pub fn add(&mut self, other: &Self) {
        self.threads += other.threads;
        self.cpu += other.cpu;
        self.source += other.source;
        self.sink += other.sink;
        self.steps.resize(self.steps.len().max(other.steps.len()), Duration::ZERO);
        self.steps.iter_mut().zip(&other.steps).for_each(|(time, other)| *time += *other);
    }

    /// Returns `time` as a fraction of the threads' time.
    pub fn share(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.threads.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Returns the CPU time of this thread so far; zero if it is unavailable.
pub fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local timespec, which the call fills or leaves unchanged. The
    // call does not keep the pointer.
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
        // Two compiled steps are parts of one pipeline step.
        let told = times.told(&[Some(0), Some(0), Some(1)], 2);
        let sum = told.source + told.sink + told.steps.iter().sum::<Duration>();
        assert!(sum.abs_diff(told.threads) < Duration::from_micros(1), "{told:?}");
        // Loads are charged to the source only.
        assert!(told.source > Duration::ZERO && told.steps[1] < told.steps[0], "{told:?}");
        assert!(told.cpu > Duration::ZERO, "{told:?}");
        // A second call adds nothing.
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
