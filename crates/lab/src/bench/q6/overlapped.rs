//! Overlapped execution: many reads in flight, and completed ones are processed meanwhile.
//!
//! - CPU: a [`StreamReader`] over `io_uring`, or over threads if there are no rings, and several
//!   processing threads.
//! - GPU indirect: a ring of pinned buffers, read into and copied from concurrently; kernels follow
//!   in a stream.
//! - GPU direct: a cuFile batch whose slots are refilled at once, or threads that each wait for a
//!   read if it goes through host memory; kernels follow in a stream.
//! - GPU I/O: the same reads; threads that each copy a unit into pinned memory and process it.
//!
//! Times are those of the processing threads, and therefore add up to the whole: waiting for reads,
//! copying, processing. With several threads they are means.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use onehop_cuda::kernels::q6::Threads;
use onehop_cuda::queue::{Batching, Ring};
use onehop_cuda::{CufileBatchQueue, CufileSyncQueue, DeviceBuf, Effective, Event, PinnedBuf, StagedQueue};
use onehop_io::{
    BlockingQueue, Cut, Error as IoError, Extent, Filled, Ledger, LocalFile, Operation, Order, Pool, PoolBuf, Queue,
    ReadAt, Reads, StreamOptions, StreamReader, Supply, UringQueue, WriteAt,
};

use super::gpu::Adder;
use super::plan::{Plan, Unit};
use super::run::{Flight, Options, Outcome};
use super::{Error, Gpu, Result, Way, cpu};

/// The approximate number of bytes in flight. More reads gain nothing, and their memory takes time
/// to allocate.
const FLIGHT_BYTES: usize = 128 << 20;
/// The approximate number of bytes being processed.
const WORK_BYTES: usize = 512 << 20;
/// The maximum number of threads in `cuFileRead`. Each has a copy of its own in progress.
const CUFILE_THREADS: usize = 16;
/// The maximum number of queued kernels: enough to hide their launches.
const KERNELS: usize = 8;

/// Runs a plan on a path.
pub fn run(plan: &Plan, way: Way, gpu: Option<&Gpu>, options: &Options, cancel: &AtomicBool) -> Result<Outcome> {
    let started = Instant::now();
    let files = plan.open()?;
    let depth = options.depth.min(FLIGHT_BYTES / plan.part_bytes).max(2).min(plan.parts().max(1));
    let run = Run { plan, cancel, started, depth };
    match (way, gpu) {
        (Way::Cpu, _) => run.cpu(files, options),
        (_, None) => Err(Error::NotHere("there is no GPU".into())),
        (Way::GpuIndirect, Some(gpu)) => {
            let (queue, path) = run.staged(gpu, files)?;
            run.kernels(gpu, queue, path, |bytes| Ok(DeviceBuf::new(&gpu.context, bytes)?))
        }
        (Way::GpuDirect, Some(gpu)) => {
            let (queue, path) = run.cufile(gpu, &files, options)?;
            run.kernels(gpu, queue, path, |bytes| gpu.registered_buffer(bytes))
        }
        (Way::GpuIo, Some(gpu)) => {
            let (queue, path) = run.cufile(gpu, &files, options)?;
            run.device_io(gpu, queue, path, options)
        }
    }
}

struct Run<'a> {
    plan: &'a Plan,
    cancel: &'a AtomicBool,
    started: Instant,
    depth: usize,
}

/// The work of one thread.
#[derive(Default)]
struct Part {
    answer: i128,
    io: Duration,
    transfer: Duration,
    compute: Duration,
}

impl Run<'_> {
    fn cpu(&self, files: Vec<Arc<LocalFile>>, options: &Options) -> Result<Outcome> {
        let workers = self.workers(options);
        let pool = Pool::new(self.buffers(workers), self.plan.part_bytes);
        let (queues, path) = host_queues(files, self.depth);
        let feed = self.feed(queues, Box::new(pool));
        let setup = self.started.elapsed();
        let work = || -> Result<Part> {
            let mut part = Part::default();
            loop {
                let from = Instant::now();
                let Some((unit, filled)) = self.next(&feed)? else { return Ok(part) };
                let come = Instant::now();
                let bytes: Vec<&[u8]> =
                    filled.iter().zip(&unit.parts).map(|(one, part)| &one.buffer[..part.bytes]).collect();
                part.answer = part.answer.wrapping_add(cpu::add(self.plan, unit, &bytes)?);
                part.io += come - from;
                part.compute += come.elapsed();
            }
        };
        let mut outcome = self.all(workers, &feed, &work)?;
        (outcome.path, outcome.setup) = (path, setup);
        Ok(outcome)
    }

    fn device_io(
        &self,
        gpu: &Gpu,
        queue: Box<dyn Queue<DeviceBuf>>,
        path: String,
        options: &Options,
    ) -> Result<Outcome> {
        let workers = self.workers(options);
        let buffers = (0..self.buffers(workers)).map(|_| gpu.registered_buffer(self.plan.part_bytes));
        let supply = DevicePool::new(buffers.collect::<Result<_>>()?);
        let pinned = || PinnedBuf::zeroed(&gpu.context, self.plan.part_bytes);
        let sets = (0..workers).map(|_| (0..self.plan.most_parts()).map(|_| pinned()).collect::<Result<Vec<_>, _>>());
        let sets = Mutex::new(sets.collect::<Result<Vec<_>, _>>()?);
        let feed = self.feed(vec![queue], Box::new(supply.clone()));
        let setup = self.started.elapsed();
        let work = || -> Result<Part> {
            let mut part = Part::default();
            let Some(mut host) = sets.lock().unwrap_or_else(PoisonError::into_inner).pop() else { return Ok(part) };
            loop {
                let from = Instant::now();
                let Some((unit, filled)) = self.next(&feed)? else { return Ok(part) };
                let come = Instant::now();
                for ((one, host), part) in filled.iter().zip(&mut host).zip(&unit.parts) {
                    one.buffer.copy_to(0, &mut host[..part.bytes])?;
                }
                filled.into_iter().for_each(|one| supply.give_back(one.buffer));
                let copied = Instant::now();
                let bytes: Vec<&[u8]> = host.iter().zip(&unit.parts).map(|(host, part)| &host[..part.bytes]).collect();
                part.answer = part.answer.wrapping_add(cpu::add(self.plan, unit, &bytes)?);
                part.io += come - from;
                part.transfer += copied - come;
                part.compute += copied.elapsed();
            }
        };
        let mut outcome = self.all(workers, &feed, &work)?;
        (outcome.path, outcome.setup) = (path, setup);
        Ok(outcome)
    }

    /// Runs kernels after any reader into the device's memory.
    fn kernels(
        &self,
        gpu: &Gpu,
        queue: Box<dyn Queue<DeviceBuf>>,
        path: String,
        buffer: impl Fn(usize) -> Result<DeviceBuf>,
    ) -> Result<Outcome> {
        let behind = KERNELS.min(WORK_BYTES / (self.plan.part_bytes * self.plan.most_parts().max(1)).max(1)).max(2);
        let buffers = (0..self.buffers(behind)).map(|_| buffer(self.plan.part_bytes));
        let supply = DevicePool::new(buffers.collect::<Result<_>>()?);
        let adder = Adder::new(gpu, self.plan, Threads::Many)?;
        let (running, free) = (VecDeque::new(), Vec::new());
        let mut kernels = Kernels { adder: &adder, supply: &supply, running, free, time: Duration::ZERO };
        let feed = self.feed(vec![queue], Box::new(supply.clone()));
        let setup = self.started.elapsed();
        let mut part = Part::default();
        loop {
            let from = Instant::now();
            let Some((unit, filled)) = self.next(&feed)? else { break };
            part.io += from.elapsed();
            kernels.begin(unit, filled)?;
            let from = Instant::now();
            kernels.finish(behind)?;
            part.compute += from.elapsed();
        }
        let from = Instant::now();
        kernels.finish(0)?;
        part.compute += from.elapsed();
        let from = Instant::now();
        let answer = adder.read()?;
        let transfer = from.elapsed();
        let kernel = Some(kernels.time);
        let (io, compute, depth) = (part.io, part.compute, self.depth);
        drop(kernels);
        Ok(Outcome { answer, io, transfer, compute, setup, kernel, path, threads: 1, depth })
    }

    /// Creates a batch that is refilled as transfers complete, or threads.
    fn cufile(
        &self,
        gpu: &Gpu,
        files: &[Arc<LocalFile>],
        options: &Options,
    ) -> Result<(Box<dyn Queue<DeviceBuf>>, String)> {
        let registered = gpu.register(files)?;
        let is_direct = registered.iter().all(|file| file.verdict().effective == Effective::Direct);
        let verdict = registered.first().map(|file| file.verdict().to_string()).unwrap_or_default();
        let ledger = Arc::new(Ledger::default());
        let not_here = |e: std::io::Error| Error::NotHere(e.to_string());
        if options.cufile == Flight::Batch || options.cufile == Flight::Auto && is_direct {
            let queue = CufileBatchQueue::new(registered, self.depth, Batching::Refill, ledger).map_err(not_here)?;
            return Ok((Box::new(queue), format!("cuFile batch, {verdict}")));
        }
        let threads = self.depth.min(CUFILE_THREADS);
        let queue = CufileSyncQueue::new(registered, threads, ledger).map_err(not_here)?;
        Ok((Box::new(queue), format!("cuFileRead by {threads} threads, {verdict}")))
    }

    /// Creates a ring of pinned buffers, filled by `io_uring`, or by `pread` if there are no rings.
    fn staged(&self, gpu: &Gpu, files: Vec<Arc<LocalFile>>) -> Result<(Box<dyn Queue<DeviceBuf>>, String)> {
        let (ring, ledger) = (Ring::for_transfers(self.plan.part_bytes, self.depth), Arc::new(Ledger::default()));
        let path = files.first().map_or(onehop_io::Path::Memory, |file| file.hints().path);
        match StagedQueue::uring(&gpu.context, files.clone(), self.depth, ring, Arc::clone(&ledger)) {
            Ok(queue) => Ok((Box::new(queue), format!("io_uring into pinned memory, {path}, copied to the device"))),
            Err(_) => {
                let files = files.into_iter().map(|file| file as Arc<dyn WriteAt>).collect();
                let queue = StagedQueue::blocking(&gpu.context, files, self.depth, ring, ledger);
                let queue = queue.map_err(|e| Error::NotHere(e.to_string()))?;
                Ok((Box::new(queue), format!("pread into pinned memory, {path}, copied to the device")))
            }
        }
    }

    /// Returns the number of threads that the work and memory permit.
    fn workers(&self, options: &Options) -> usize {
        options.threads.min(WORK_BYTES / self.plan.unit_bytes()).min(self.plan.units.len()).max(1)
    }

    /// Returns the number of buffers for reads in flight and units being processed, and one more
    /// unit.
    fn buffers(&self, units: usize) -> usize {
        (self.depth + (units + 1) * self.plan.most_parts()).min(self.plan.parts()).max(1)
    }

    fn feed<B: Send + 'static>(&self, queues: Vec<Box<dyn Queue<B>>>, supply: Box<dyn Supply<B>>) -> Feed<B> {
        let extents: Vec<Extent> = self.plan.units.iter().flat_map(|unit| unit.parts.iter().copied()).collect();
        let names = self.plan.paths.iter().map(|path| path.display().to_string()).collect();
        let options = StreamOptions {
            request_bytes: self.plan.part_bytes,
            cut: Cut::Anywhere,
            gap_bytes: None,
            order: Order::Given,
        };
        let files = (0..self.plan.paths.len()).collect();
        let reader = StreamReader::start(names, &extents, options, vec![Reads { files, queues, supply }]);
        Feed { reader, next: Mutex::new(0) }
    }

    /// Returns the next unit, with its parts, or `None` after the last.
    fn next<B: Send + 'static>(&self, feed: &Feed<B>) -> Result<Option<Come<'_, B>>> {
        if self.cancel.load(Relaxed) {
            return Err(Error::Cancelled);
        }
        // The first thread waits for all parts of a unit, because they arrive in order.
        let mut next = feed.next.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(unit) = self.plan.units.get(*next) else { return Ok(None) };
        *next += 1;
        let ended =
            || IoError::new(Operation::Read, "a stream", std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        let parts = unit.parts.iter().map(|_| feed.reader.next()?.ok_or_else(ended));
        Ok(Some((unit, parts.collect::<onehop_io::Result<_>>()?)))
    }

    /// Runs `workers` threads, and sums their results. Their times are means.
    fn all<B: Send + 'static>(
        &self,
        workers: usize,
        feed: &Feed<B>,
        work: &(dyn Fn() -> Result<Part> + Sync),
    ) -> Result<Outcome> {
        let parts: Vec<Result<Part>> = thread::scope(|scope| {
            let run = || {
                let part = work();
                if part.is_err() {
                    // No thread begins another unit.
                    *feed.next.lock().unwrap_or_else(PoisonError::into_inner) = usize::MAX;
                }
                part
            };
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(run)).collect();
            let panicked = || IoError::new(Operation::Read, "a stream", std::io::Error::other("a thread has panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked().into()))).collect()
        });
        let mut outcome = Outcome { threads: workers, depth: self.depth, ..Outcome::default() };
        let share = |time: Duration| time / workers as u32;
        for part in parts {
            let part = part?;
            outcome.answer = outcome.answer.wrapping_add(part.answer);
            outcome.io += share(part.io);
            outcome.transfer += share(part.transfer);
            outcome.compute += share(part.compute);
        }
        Ok(outcome)
    }
}

/// A unit, and its parts as they were read.
type Come<'a, B> = (&'a Unit, Vec<Filled<B>>);

/// A reader, and the number of its next unit.
struct Feed<B: Send + 'static> {
    reader: StreamReader<B>,
    next: Mutex<usize>,
}

/// Creates a ring with all reads in flight, or a thread for each.
fn host_queues(files: Vec<Arc<LocalFile>>, depth: usize) -> (Vec<Box<dyn Queue<PoolBuf>>>, String) {
    let ledger = Arc::new(Ledger::default());
    let path = files.first().map_or(onehop_io::Path::Memory, |file| file.hints().path);
    match UringQueue::new(files.clone(), depth, None, Arc::clone(&ledger)) {
        Ok(queue) => (vec![Box::new(queue)], format!("io_uring, {path}")),
        Err(_) => {
            let files: Vec<Arc<dyn ReadAt>> = files.into_iter().map(|file| file as Arc<dyn ReadAt>).collect();
            let queue =
                |_| -> Box<dyn Queue<PoolBuf>> { Box::new(BlockingQueue::reader(files.clone(), Arc::clone(&ledger))) };
            ((0..depth).map(queue).collect(), format!("pread by {depth} threads, {path}"))
        }
    }
}

/// The events before and after a kernel.
type Events = (Event, Event);

/// Launched kernels that are not known to have ended, with their inputs.
struct Kernels<'a> {
    adder: &'a Adder<'a>,
    supply: &'a DevicePool,
    running: VecDeque<(Events, Vec<Filled<DeviceBuf>>)>,
    free: Vec<Events>,
    time: Duration,
}

impl Kernels<'_> {
    fn begin(&mut self, unit: &Unit, filled: Vec<Filled<DeviceBuf>>) -> Result<()> {
        let (adder, stream) = (self.adder, &self.adder.stream);
        let events = match self.free.pop() {
            Some(events) => events,
            None => (Event::timed(stream.context())?, Event::timed(stream.context())?),
        };
        events.0.record(stream)?;
        self.running.push_back((events, filled));
        let Some(((_, end), filled)) = self.running.back() else { return Ok(()) };
        let parts: Vec<&DeviceBuf> = filled.iter().map(|one| &one.buffer).collect();
        // SAFETY: the parts have been read completely, and are in `running` until the event after
        // the kernel has come, or the stream was waited for.
        unsafe { adder.begin(unit, &parts)? };
        Ok(end.record(stream)?)
    }

    /// Releases the buffers of completed kernels, and waits for the oldest while more than `most`
    /// are running.
    fn finish(&mut self, most: usize) -> Result<()> {
        while let Some(((_, end), _)) = self.running.front() {
            if !end.is_done()? {
                if self.running.len() <= most {
                    return Ok(());
                }
                end.wait()?;
            }
            let Some((events, filled)) = self.running.pop_front() else { return Ok(()) };
            self.time += events.1.since(&events.0)?;
            self.free.push(events);
            filled.into_iter().for_each(|one| self.supply.give_back(one.buffer));
        }
        Ok(())
    }
}

impl Drop for Kernels<'_> {
    fn drop(&mut self) {
        if !self.running.is_empty() && self.adder.stream.synchronize().is_err() {
            // The device may still read them. A leak is better than a reuse meanwhile.
            std::mem::forget(std::mem::take(&mut self.running));
        }
    }
}

/// The device's buffers for reads.
#[derive(Clone)]
struct DevicePool(Arc<(Mutex<Vec<DeviceBuf>>, Condvar)>);

impl DevicePool {
    fn new(buffers: Vec<DeviceBuf>) -> Self {
        Self(Arc::new((Mutex::new(buffers), Condvar::new())))
    }

    fn give_back(&self, buffer: DeviceBuf) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        self.0.1.notify_all();
    }
}

impl Supply<DeviceBuf> for DevicePool {
    fn try_get(&self, _bytes: usize) -> Option<DeviceBuf> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn wait_for(&self, _bytes: usize, is_over: &AtomicBool) {
        let mut free = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        while free.is_empty() && !is_over.load(Acquire) {
            free = self.0.1.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wake(&self) {
        let _free = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.1.notify_all();
    }
}
