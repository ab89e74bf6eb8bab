//! Keeps queues full for a given time and measures the transfers.
//!
//! Each job is a thread with a queue and as many buffers as it may have in flight. All begin at
//! once. Transfers that complete during the ramp or after the end are not counted. The latency of a
//! transfer is the time from its submission to the queue until its completion is taken, including
//! the wait in a batch, as a caller sees it.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use onehop_cuda::DeviceBuf;
use onehop_io::{
    Advance, BlockingQueue, Direction, Error, Ledger, LocalFile, Operation, Pool, PoolBuf, Queue, ReadAt,
    RequestedPath, Result, Transfer, UringQueue, WriteAt,
};
use serde::{Deserialize, Serialize};

use super::device::{DeviceBufs, Lane, missing};
use super::pattern::{Blocks, Place};
use super::usage::{Meters, Usage};
use super::{BenchFile, EffectivePath, Effort, Files, Gpu, Point, Way};

/// The number of parts of the measured time, to detect an unsteady rate. Four of them are a third
/// of the time.
const PARTS: usize = 12;

/// The tolerance of a steady rate: no third of the measured time deviates from the mean by more
/// than this, and no part by more than three times this.
const STEADY: f64 = 0.1;

/// The minimum number of transfers for a verdict on steadiness.
const ENOUGH_TRANSFERS: u64 = 10 * PARTS as u64;

/// The interval at which `watch` is called.
const WATCH: Duration = Duration::from_millis(50);

/// The times from the submission of a transfer to its completion, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// The 95th percentile.
    pub p95_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
    /// The maximum.
    pub max_us: f64,
}

/// The figures of a point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// The path that the bytes took, from the open file or from cuFile's counters.
    #[serde(rename = "effective_path")]
    pub path: EffectivePath,
    /// The evidence for the path, if it came from counters.
    #[serde(rename = "effective_path_evidence", default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    /// The number of transfers that completed in the measured time.
    pub transfers: u64,
    /// The rate in bytes per second.
    pub bytes_per_sec: f64,
    /// The rate in transfers per second.
    pub ops_per_sec: f64,
    /// The latencies of transfers.
    pub latency: Latency,
    /// The cost on the system.
    pub usage: Usage,
    /// True if the rate was constant; `None` if there were too few transfers for a verdict.
    pub is_steady: Option<bool>,
    /// The number of bytes whose contents were compared.
    pub verified_bytes: u64,
}

/// Measures a point once. `watch` is called periodically, and may stop the measurement; the result
/// is then `None`.
///
/// # Errors
/// Returns errors of the system, with file and offset. Fails if contents are wrong.
pub fn measure(
    files: &Files,
    gpu: &std::result::Result<Gpu, String>,
    point: Point,
    effort: &Effort,
    watch: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Option<Figures>> {
    let requested = if point.way.opens_direct() { RequestedPath::HostDirect } else { RequestedPath::Buffered };
    // Also if cuFile should bypass the cache, because its batches do not always.
    if !point.way.is_direct() && !point.rw.writes() {
        files.iter().try_for_each(BenchFile::forget)?;
    }
    let open: Result<Vec<Arc<LocalFile>>> = files.iter().map(|file| file.open(requested, point.rw.writes())).collect();
    let open = open?;
    let device = match (point.way, &open[..]) {
        (Way::Device(way), [open]) => Some(Lane::open(gpu, way, open)?),
        (Way::Device(_), _) => return Err(missing(files.name(), "a path to a GPU is measured on one file")),
        _ => None,
    };
    let (gate, failed) = (Gate::default(), AtomicBool::new(false));
    let mut is_stopped = false;
    let mut wait = |until: Instant| {
        while Instant::now() < until && !failed.load(Relaxed) {
            if watch().is_break() {
                is_stopped = true;
                // The jobs end as if one of them had failed.
                failed.store(true, Relaxed);
            }
            thread::sleep(until.saturating_duration_since(Instant::now()).min(WATCH));
        }
    };
    let (outcomes, usage, refused) = thread::scope(|scope| {
        let device = device.as_ref();
        let job = |number| Job { files, open: &open, device, point, effort, number, failed: &failed };
        let (gate, mut refused) = (&gate, None);
        let mut jobs = Vec::with_capacity(point.jobs);
        for number in 0..point.jobs {
            let job = job(number);
            let begun = thread::Builder::new().spawn_scoped(scope, move || {
                let arrival = gate.arrival();
                let prepared = job.prepare();
                // A job that cannot run is awaited, too.
                let start = arrival.wait();
                job.run(prepared?, &Clock { start, ramp: effort.ramp, runtime: effort.runtime })
            });
            match begun {
                Ok(thread) => jobs.push(thread),
                Err(e) => {
                    refused = Some((number, e));
                    failed.store(true, Relaxed);
                    break;
                }
            }
        }
        let start = gate.open(jobs.len());
        wait(start + effort.ramp);
        let meters = Meters::read(files.first().device());
        wait(start + effort.ramp + effort.runtime);
        let usage = meters.since();
        (jobs.into_iter().map(|job| job.join()).collect::<Vec<_>>(), usage, refused)
    });
    if let Some((number, e)) = refused {
        let why =
            io::Error::new(e.kind(), format!("the system has no thread for job {} of {}: {e}", number + 1, point.jobs));
        return Err(Error::new(Operation::Read, files.name(), why));
    }
    let mut all = Outcome::new();
    for outcome in outcomes {
        let Ok(outcome) = outcome else {
            return Err(Error::new(
                Operation::Read,
                files.name(),
                io::Error::other("a job of the benchmark has panicked"),
            ));
        };
        all.add(&outcome?);
    }
    if is_stopped {
        return Ok(None);
    }
    if point.rw.writes() && effort.verify {
        all.verified += verify_all(files.first())?;
    }
    let path = match &device {
        Some(device) => {
            let verdict = device.verdict();
            (verdict.effective.into(), Some(verdict.because))
        }
        // All files are opened in the same way.
        None => (open[0].hints().path.into(), None),
    };
    Ok(Some(all.figures(point, path, usage, effort)))
}

/// Reads the whole file and compares it.
fn verify_all(file: &BenchFile) -> Result<u64> {
    let open = file.open(RequestedPath::PreferHostDirect, false)?;
    let mut buffer = onehop_io::AlignedBuf::zeroed(4 << 20);
    let (mut at, ledger) = (0, Ledger::default());
    while at < file.bytes() {
        let n = (buffer.len() as u64).min(file.bytes() - at) as usize;
        open.read_at(at, &mut buffer[..n], &ledger)?;
        check(file, open.name(), at, &buffer[..n])?;
        at += n as u64;
    }
    Ok(at)
}

fn check(file: &BenchFile, name: &str, offset: u64, found: &[u8]) -> Result<()> {
    match file.first_wrong(offset, found) {
        None => Ok(()),
        Some(at) => {
            let why =
                io::Error::new(io::ErrorKind::InvalidData, format!("the byte at {at} is not what was written there"));
            Err(Error::at(Operation::Read, name, offset, found.len(), why))
        }
    }
}

/// A barrier at which jobs wait until all are ready, and learn the common start time. All counts
/// therefore refer to one span of time, even if the system delays some jobs.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    ready: usize,
    start: Option<Instant>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrival(&self) -> Arrival<'_> {
        Arrival { gate: self, has_arrived: false }
    }

    /// Releases the jobs once `jobs` of them are ready.
    fn open(&self, jobs: usize) -> Instant {
        let mut state = self.lock();
        while state.ready < jobs {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let start = Instant::now();
        state.start = Some(start);
        self.changed.notify_all();
        start
    }
}

/// A job before the barrier. A job that panics counts as arrived.
struct Arrival<'a> {
    gate: &'a Gate,
    has_arrived: bool,
}

impl Arrival<'_> {
    fn arrive(&mut self) {
        if !self.has_arrived {
            self.has_arrived = true;
            self.gate.lock().ready += 1;
            self.gate.changed.notify_all();
        }
    }

    /// Waits for the start and returns its time.
    fn wait(mut self) -> Instant {
        self.arrive();
        let mut state = self.gate.lock();
        loop {
            if let Some(start) = state.start {
                return start;
            }
            state = self.gate.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.arrive();
    }
}

#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    ramp: Duration,
    runtime: Duration,
}

impl Clock {
    /// Returns the offset of a time in the measured span, or `None` before and after it.
    fn measured(&self, at: Instant) -> Option<Duration> {
        at.saturating_duration_since(self.start).checked_sub(self.ramp).filter(|into| *into < self.runtime)
    }

    fn is_over(&self, at: Instant) -> bool {
        at.saturating_duration_since(self.start) >= self.ramp + self.runtime
    }
}

struct Job<'a> {
    files: &'a Files,
    open: &'a [Arc<LocalFile>],
    device: Option<&'a Lane<'a>>,
    point: Point,
    effort: &'a Effort,
    number: usize,
    failed: &'a AtomicBool,
}

enum Prepared {
    Host(Box<dyn Queue<PoolBuf>>, Arc<Pool>),
    Device(Box<dyn Queue<DeviceBuf>>, DeviceBufs),
}

/// The buffers of a job, by number.
pub(super) trait Buffers<B> {
    /// Takes a buffer that is not in flight.
    fn take(&mut self) -> Option<(usize, B)>;

    /// Returns a buffer that is no longer in flight.
    fn give(&mut self, number: usize, buffer: B);

    /// Prepares a buffer for a read.
    fn for_reading(&mut self, buffer: &mut B) -> io::Result<()>;

    /// Writes a block into a buffer.
    fn for_writing(&mut self, file: &BenchFile, offset: u64, buffer: &mut B) -> io::Result<()>;

    /// Returns the contents of a buffer.
    fn content<'a>(&'a mut self, buffer: &'a B, bytes: usize) -> io::Result<&'a [u8]>;
}

impl Buffers<PoolBuf> for Arc<Pool> {
    fn take(&mut self) -> Option<(usize, PoolBuf)> {
        Pool::take(self).map(|buffer| (buffer.number(), buffer))
    }

    fn give(&mut self, _: usize, _: PoolBuf) {}

    fn for_reading(&mut self, _: &mut PoolBuf) -> io::Result<()> {
        Ok(())
    }

    fn for_writing(&mut self, file: &BenchFile, offset: u64, buffer: &mut PoolBuf) -> io::Result<()> {
        file.stamp(offset, buffer);
        Ok(())
    }

    fn content<'a>(&'a mut self, buffer: &'a PoolBuf, bytes: usize) -> io::Result<&'a [u8]> {
        Ok(&buffer[..bytes])
    }
}

impl Job<'_> {
    fn prepare(&self) -> Result<Prepared> {
        if let Some(device) = self.device {
            let (queue, buffers) = device.job(&self.point, self.files.first(), self.effort.verify)?;
            return Ok(Prepared::Device(queue, buffers));
        }
        let depth = if self.point.way.has_depth() { self.point.depth } else { 1 };
        let pool = Pool::new(depth, self.point.block_bytes);
        let mut all: Vec<PoolBuf> = std::iter::from_fn(|| pool.take()).collect();
        all.iter_mut().for_each(|buffer| self.files.first().fill_noise(buffer));
        drop(all);
        let ledger = Arc::new(Ledger::default());
        let queue: Box<dyn Queue<PoolBuf>> = match self.point.way {
            Way::Buffered | Way::Host | Way::Device(_) => {
                let files = self.open.iter().map(|open| Arc::clone(open) as Arc<dyn WriteAt>);
                Box::new(BlockingQueue::writer(files.collect(), ledger))
            }
            Way::Uring | Way::UringBuffered => {
                let ring = UringQueue::new(self.open.to_vec(), depth, Some(Arc::clone(&pool)), ledger);
                let failed = |e| Error::new(Operation::Open, format!("an io_uring over {}", self.files.name()), e);
                Box::new(ring.map_err(failed)?)
            }
        };
        Ok(Prepared::Host(queue, pool))
    }

    fn run(&self, prepared: Prepared, clock: &Clock) -> Result<Outcome> {
        let outcome = match prepared {
            Prepared::Host(mut queue, mut pool) => self.transfer(queue.as_mut(), &mut pool, clock),
            Prepared::Device(mut queue, mut buffers) => self.transfer(queue.as_mut(), &mut buffers, clock),
        };
        if outcome.is_err() {
            self.failed.store(true, Relaxed);
        }
        outcome
    }

    fn transfer<B>(&self, queue: &mut dyn Queue<B>, buffers: &mut impl Buffers<B>, clock: &Clock) -> Result<Outcome> {
        let point = &self.point;
        let (direction, operation) = match point.rw.writes() {
            true => (Direction::Write, Operation::Write),
            false => (Direction::Read, Operation::Read),
        };
        let failed = |place: Place, e: io::Error| {
            Error::at(operation, self.open[place.file].name(), place.offset, point.block_bytes, e)
        };
        let known = self.files.first();
        let lengths: Vec<u64> = self.files.iter().map(BenchFile::bytes).collect();
        let mut blocks = Blocks::new(point.rw, &lengths, point.block_bytes, self.number, point.jobs, self.effort.seed);
        let mut begun = vec![(Instant::now(), Place { file: 0, offset: 0 }); queue.depth()];
        let mut outcome = Outcome::new();
        let mut done = Vec::with_capacity(queue.depth());
        let mut now = Instant::now();
        loop {
            let is_over = clock.is_over(now) || self.failed.load(Relaxed);
            while !is_over && let Some((tag, mut buffer)) = buffers.take() {
                let place = blocks.next_place();
                let ready = match direction {
                    Direction::Write => buffers.for_writing(known, place.offset, &mut buffer),
                    Direction::Read => buffers.for_reading(&mut buffer),
                };
                ready.map_err(|e| failed(place, e))?;
                begun[tag] = (Instant::now(), place);
                let bytes = point.block_bytes;
                queue.submit(Transfer {
                    direction,
                    file: place.file,
                    offset: place.offset,
                    at: 0,
                    bytes,
                    needed: bytes,
                    buffer,
                    tag: tag as u64,
                });
            }
            if queue.in_flight() == 0 {
                return Ok(outcome);
            }
            queue.reap(1, &mut done).map_err(|e| Error::new(operation, self.files.name(), e))?;
            now = Instant::now();
            for one in done.drain(..) {
                match one.advance() {
                    Advance::Rest(transfer) => queue.submit(transfer),
                    Advance::Failed(transfer, e) => {
                        let name = self.open[transfer.file].name();
                        return Err(Error::at(operation, name, transfer.offset, transfer.needed, e));
                    }
                    Advance::Whole(transfer) => {
                        let (since, place) = begun[transfer.tag as usize];
                        if let Some(into) = clock.measured(now) {
                            outcome.count(now - since, point.block_bytes, into, clock.runtime);
                        }
                        if self.effort.verify && direction == Direction::Read {
                            let content = buffers.content(&transfer.buffer, point.block_bytes);
                            let content = content.map_err(|e| failed(place, e))?;
                            check(known, self.open[place.file].name(), place.offset, content)?;
                            outcome.verified += point.block_bytes as u64;
                        }
                        if self.effort.touch && direction == Direction::Read {
                            let content = buffers.content(&transfer.buffer, point.block_bytes);
                            touch(content.map_err(|e| failed(place, e))?);
                        }
                        buffers.give(transfer.tag as usize, transfer.buffer);
                    }
                }
            }
        }
    }
}

/// Reads every byte, as a program that uses them would.
fn touch(content: &[u8]) {
    let sum = content.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    std::hint::black_box(sum.fold(0, u64::wrapping_add));
}

/// The result of a job, or of all of them, in the measured time.
struct Outcome {
    /// The latencies in nanoseconds, to three digits.
    latency: Option<Histogram<u64>>,
    bytes: u64,
    parts: [u64; PARTS],
    verified: u64,
}

impl Outcome {
    fn new() -> Self {
        // Three digits are a valid precision.
        Self { latency: Histogram::new(3).ok(), bytes: 0, parts: [0; PARTS], verified: 0 }
    }

    fn count(&mut self, latency: Duration, bytes: usize, into: Duration, runtime: Duration) {
        if let Some(histogram) = &mut self.latency {
            // The histogram grows as necessary.
            let _ = histogram.record(latency.as_nanos() as u64);
        }
        self.bytes += bytes as u64;
        let part = (into.as_secs_f64() / runtime.as_secs_f64() * PARTS as f64) as usize;
        self.parts[part.min(PARTS - 1)] += bytes as u64;
    }

    fn add(&mut self, other: &Self) {
        if let (Some(mine), Some(theirs)) = (&mut self.latency, &other.latency) {
            // Both have the same precision and grow as necessary.
            let _ = mine.add(theirs);
        }
        self.bytes += other.bytes;
        self.verified += other.verified;
        for (mine, theirs) in self.parts.iter_mut().zip(&other.parts) {
            *mine += theirs;
        }
    }

    fn figures(
        &self,
        point: Point,
        (path, evidence): (EffectivePath, Option<String>),
        usage: Usage,
        effort: &Effort,
    ) -> Figures {
        let seconds = effort.runtime.as_secs_f64();
        let transfers = self.latency.as_ref().map_or(0, Histogram::len);
        Figures {
            point,
            path,
            evidence,
            transfers,
            bytes_per_sec: self.bytes as f64 / seconds,
            ops_per_sec: transfers as f64 / seconds,
            latency: self.latency.as_ref().map(latency).unwrap_or_default(),
            usage,
            is_steady: (transfers >= ENOUGH_TRANSFERS).then(|| is_steady(&self.parts)),
            verified_bytes: self.verified,
        }
    }
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Latency {
        mean_us: histogram.mean() / 1e3,
        p50_us: at(0.5),
        p90_us: at(0.9),
        p95_us: at(0.95),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: histogram.max() as f64 / 1e3,
    }
}

fn is_steady(parts: &[u64; PARTS]) -> bool {
    let mean = parts.iter().sum::<u64>() as f64 / PARTS as f64;
    let is_near = |rate: f64, by: f64| (rate - mean).abs() <= by * mean;
    let third = PARTS / 3;
    parts.chunks(third).all(|parts| is_near(parts.iter().sum::<u64>() as f64 / third as f64, STEADY))
        && parts.iter().all(|part| is_near(*part as f64, 3.0 * STEADY))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Rw;
    use super::*;

    fn no_gpu() -> std::result::Result<Gpu, String> {
        Err("no GPU".into())
    }

    fn fake_gpu() -> Gpu {
        let context = onehop_cuda::fake::context();
        let cufile = onehop_cuda::fake::open_cufile(&context);
        Gpu::with(context, Ok(cufile))
    }

    fn prepared(path: &std::path::Path, bytes: u64) -> Files {
        BenchFile::prepare(path, bytes, 1, |_| ControlFlow::Continue(())).unwrap().unwrap().into()
    }

    #[test]
    fn one_that_is_stopped_has_no_figures() {
        let dir = tempfile::tempdir().unwrap();
        let file = prepared(&dir.path().join("f"), 1 << 20);
        let effort =
            Effort { runtime: Duration::from_secs(3600), ramp: Duration::ZERO, seed: 1, verify: true, touch: true };
        let point = Point { rw: Rw::Write, way: Way::Buffered, block_bytes: 4096, depth: 1, jobs: 3 };
        let mut asked = 0;
        let mut watch = || {
            asked += 1;
            if asked == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        assert!(measure(&file, &no_gpu(), point, &effort, &mut watch).unwrap().is_none());
    }

    /// Measures for increasing times until there is a result, because a busy machine may complete
    /// no transfer within any given time.
    fn measured(file: &Files, point: Point) -> Result<Figures> {
        measured_with(file, &Ok(fake_gpu()), point)
    }

    fn measured_with(file: &Files, gpu: &std::result::Result<Gpu, String>, point: Point) -> Result<Figures> {
        let mut runtime = Duration::from_millis(50);
        loop {
            let effort = Effort { runtime, ramp: Duration::from_millis(10), seed: 1, verify: true, touch: true };
            let figures = measure(file, gpu, point, &effort, &mut || ControlFlow::Continue(()))?.unwrap();
            if figures.transfers > 0 {
                return Ok(figures);
            }
            runtime *= 2;
        }
    }

    #[test]
    fn every_way_moves_bytes_and_checks_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = prepared(&dir.path().join("f"), 4 << 20);
        for (_, way) in Way::all() {
            for (_, rw) in Rw::ALL {
                for (block_bytes, depth, jobs) in [(4096, 4, 2), (1 << 20, 2, 1)] {
                    let point = Point { rw, way, block_bytes, depth, jobs };
                    match measured(&file, point) {
                        Ok(figures) => {
                            assert!(figures.verified_bytes > 0, "{figures:?}");
                            let latency = figures.latency;
                            assert!(latency.p50_us > 0.1 && latency.p50_us <= latency.max_us, "{figures:?}");
                            let expected = match way {
                                Way::Buffered | Way::UringBuffered => EffectivePath::Buffered,
                                Way::Host | Way::Uring => EffectivePath::HostDirect,
                                Way::Device(way) if way.is_cufile() => EffectivePath::Compat,
                                Way::Device(_) => EffectivePath::Staged,
                            };
                            assert_eq!((figures.path, figures.evidence.is_some()), (expected, way.is_device()));
                        }
                        // The path is not available.
                        Err(e) => assert!(way != Way::Buffered && e.operation == Operation::Open, "{e}"),
                    }
                }
            }
        }
    }

    #[test]
    fn content_that_is_wrong_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for (_, way) in Way::all() {
            std::fs::remove_file(&path).ok();
            let file = prepared(&path, 1 << 20);
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[500_000] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            for (rw, jobs) in [(Rw::Read, 1), (Rw::RandRead, 2)] {
                let point = Point { rw, way, block_bytes: 65_536, depth: 4, jobs };
                let error = loop {
                    match measured(&file, point) {
                        Ok(_) => {}
                        Err(e) => break e,
                    }
                };
                let is_missing = way != Way::Buffered && error.operation == Operation::Open;
                assert!(is_missing || error.to_string().contains("the byte at 500000"), "{error}");
            }
        }
    }

    #[test]
    fn what_a_machine_has_not_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = prepared(&dir.path().join("f"), 1 << 20);
        let context = onehop_cuda::fake::context();
        let why = onehop_cuda::Error::TooOld { library: "libcufile", symbol: "cuFileRead" };
        let no_cufile = Ok(Gpu::with(Arc::clone(&context), Err(why)));
        for (_, way) in Way::to_devices() {
            let point = Point { rw: Rw::Read, way, block_bytes: 4096, depth: 1, jobs: 1 };
            let error = measured_with(&file, &no_gpu(), point).unwrap_err();
            // Without O_DIRECT, opening fails first.
            assert!(error.operation == Operation::Open, "{error}");
            let has_direct = file.first().open(RequestedPath::HostDirect, false).is_ok();
            assert!(!has_direct || error.source.to_string() == "no GPU", "{error}");
            if way.is_cufile() && has_direct {
                let error = measured_with(&file, &no_cufile, point).unwrap_err();
                assert!(error.operation == Operation::Open && error.to_string().contains("older than"), "{error}");
            }
        }
        let way = Way::Device(onehop_cuda::Way::CufileBatch);
        let point = Point { rw: Rw::Read, way, block_bytes: 4096, depth: 1000, jobs: 1 };
        let error = measured(&file, point).unwrap_err();
        let is_told = error.to_string().contains("cuFile has 128 transfers in a batch at most, and not 1000");
        assert!(
            error.operation == Operation::Open
                && (is_told || file.first().open(RequestedPath::HostDirect, false).is_err())
        );
    }

    #[test]
    fn what_writes_have_left_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = prepared(&path, 1 << 20);
        // After the last whole block, where no write goes.
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[1_000_000] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let point = Point { rw: Rw::Write, way: Way::Buffered, block_bytes: 600 << 10, depth: 1, jobs: 1 };
        let error = measured(&file, point).unwrap_err().to_string();
        assert!(error.contains("the byte at 1000000"), "{error}");
    }

    #[test]
    fn a_rate_that_falls_is_not_steady() {
        assert!(is_steady(&[100, 101, 99, 100, 102, 98, 100, 100, 101, 99, 100, 100]));
        assert!(!is_steady(&[200, 190, 180, 170, 160, 130, 120, 100, 90, 80, 70, 60]));
        assert!(!is_steady(&[100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 10]));
    }
}
