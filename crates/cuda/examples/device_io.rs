//! Every way from a file to device memory and back: is what arrives what was sent, which way did it go, and how fast.
//!
//! ```text
//! cargo build --release -p onehop-cuda --example device_io
//! device_io DIR [--mib N] [--seconds S] [--only WAY,...] [--bs KIB,...] [--depth N,...] [--device N] [--no-write]
//! ```
//!
//! Makes two files of random bytes in DIR, and removes them. Each point is first checked, byte for byte, with cuFile
//! counting which way the bytes take; then it is timed for some seconds: reads once through the file at most, of which no
//! page is cached when they begin. Exits with 1 if any content was wrong, with 2 if there is nothing to run on.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use onehop_cuda::cufile::{Counting, Verdict};
use onehop_cuda::queue::{Batching, Ring};
use onehop_cuda::{
    Context, Cufile, CufileAsyncQueue, CufileBatchQueue, CufileFile, CufileSyncQueue, DeviceBuf, Driver, PinnedBuf,
    StagedQueue, Way,
};
use onehop_io::{
    Advance, AlignedBuf, Direction, Ledger, LocalFile, Queue, ReadAt, RequestedPath, Transfer, UringQueue, WriteAt,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("device_io: {why}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            eprintln!("device_io: {wrong} points had wrong content or failed");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("device_io: {e}");
            let cure = e.downcast_ref::<onehop_cuda::Error>().and_then(onehop_cuda::Error::cure);
            if let Some(cure) = cure {
                eprintln!("  fix: {cure}");
            }
            ExitCode::from(2)
        }
    }
}

struct Options {
    folder: PathBuf,
    mib: u64,
    seconds: f64,
    only: Vec<String>,
    block_kib: Vec<usize>,
    depths: Vec<usize>,
    device: usize,
    writes: bool,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            folder: PathBuf::new(),
            mib: 1024,
            seconds: 1.0,
            only: Vec::new(),
            block_kib: vec![64, 1024, 16384],
            depths: vec![1, 8, 32],
            device: 0,
            writes: true,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--mib" => options.mib = one(&value()?)?,
                "--seconds" => options.seconds = one(&value()?)?,
                "--only" => options.only = value()?.split(',').map(String::from).collect(),
                "--bs" => options.block_kib = list(&value()?)?,
                "--depth" => options.depths = list(&value()?)?,
                "--device" => options.device = one(&value()?)?,
                "--no-write" => options.writes = false,
                dir if !dir.starts_with('-') && options.folder.as_os_str().is_empty() => options.folder = dir.into(),
                other => return Err(format!("what is {other}? see the head of examples/device_io.rs")),
            }
        }
        if !options.folder.is_dir() {
            return Err("name a directory on the storage to be measured".into());
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

fn one<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn list(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(one).collect()
}

/// What is measured on.
struct Bench {
    context: Arc<Context>,
    cufile: Option<Arc<Cufile>>,
    /// Why cuFile cannot be had.
    no_cufile: Option<String>,
    source: Scratch,
    target: Scratch,
    /// What is in the source.
    content: AlignedBuf,
    seconds: f64,
    /// Counts what is written, so that it is never what is there.
    turn: Cell<usize>,
    watch: Watch,
}

/// Ends the program when nothing has happened for long: a library that never comes back is a finding, too.
#[derive(Clone)]
struct Watch(Arc<Mutex<(Instant, String)>>);

/// How long a point may take.
const PATIENCE: Duration = Duration::from_secs(90);

impl Watch {
    fn start() -> Self {
        let watch = Self(Arc::new(Mutex::new((Instant::now(), String::new()))));
        let seen = watch.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let (since, what) = seen.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if since.elapsed() > PATIENCE {
                    println!(
                        "{what}   STUCK: nothing for {} s; gave up here (leave it out: --only)",
                        PATIENCE.as_secs()
                    );
                    std::process::exit(3);
                }
            }
        });
        watch
    }

    fn at(&self, what: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (Instant::now(), what.to_string());
    }
}

/// A file of ours, gone when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn run(options: &Options) -> Outcome<usize> {
    let driver = Driver::load()?;
    let devices = driver.devices()?;
    let device = devices.get(options.device).ok_or("the driver lists no such device")?;
    let (major, minor) = device.compute;
    println!("driver       CUDA {}.{}", driver.version() / 1000, driver.version() % 1000 / 10);
    println!(
        "device       {} ({}, {} GiB, compute {major}.{minor})",
        device.name,
        device.pci,
        device.memory_bytes >> 30
    );
    let context = device.context()?;
    let bytes = (options.mib << 20) as usize;
    let source = Scratch(options.folder.join(format!(".onehop-device-io-{}-a", std::process::id())));
    let target = Scratch(options.folder.join(format!(".onehop-device-io-{}-b", std::process::id())));
    let content = noise(bytes, 1);
    for (file, content) in [(&source, Some(&content)), (&target, None)] {
        make(&file.0, content, bytes)?;
    }
    let (cufile, no_cufile) = match Cufile::open(&context, Counting::On) {
        Ok(cufile) => (Some(cufile), None),
        Err(e) => (None, Some(with_cure(&e))),
    };
    match (&cufile, &no_cufile) {
        (Some(cufile), _) => println!("cufile       {}", cufile.describe()),
        (_, why) => println!("cufile       no: {}", why.as_deref().unwrap_or("?")),
    }
    let bench = Bench {
        context,
        cufile,
        no_cufile,
        source,
        target,
        content,
        seconds: options.seconds,
        turn: Cell::new(0),
        watch: Watch::start(),
    };
    println!(
        "file         {} MiB in {}, opened {}\n",
        options.mib,
        options.folder.display(),
        bench.open(false)?.hints().path
    );
    bench.all(options)
}

fn with_cure(e: &onehop_cuda::Error) -> String {
    match e.cure() {
        Some(cure) => format!("{e}\n             fix: {cure}"),
        None => e.to_string(),
    }
}

/// Random bytes.
fn noise(bytes: usize, seed: u64) -> AlignedBuf {
    let mut buffer = AlignedBuf::zeroed(bytes);
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in buffer.as_chunks_mut::<8>().0 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *word = x.to_le_bytes();
    }
    buffer
}

fn make(path: &FsPath, content: Option<&AlignedBuf>, bytes: usize) -> Outcome<()> {
    let file = LocalFile::create(path, RequestedPath::PreferHostDirect)?;
    let (chunk, ledger) = (16 << 20, Ledger::default());
    let zeroes = AlignedBuf::zeroed(chunk);
    for at in (0..bytes).step_by(chunk) {
        let n = chunk.min(bytes - at);
        let from = content.map_or(&zeroes[..n], |content| &content[at..at + n]);
        file.write_at(at as u64, from, &ledger)?;
    }
    file.sync()?;
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    block: usize,
    depth: usize,
}

impl Bench {
    fn open(&self, writes: bool) -> onehop_io::Result<Arc<LocalFile>> {
        let requested = RequestedPath::PreferHostDirect;
        let file = if writes {
            LocalFile::open_for_update(&self.target.0, requested)
        } else {
            LocalFile::open(&self.source.0, requested)
        };
        file.map(Arc::new)
    }

    fn all(&self, options: &Options) -> Outcome<usize> {
        let mut wrong = 0;
        let mut rates: BTreeMap<(bool, Shape, String), f64> = BTreeMap::new();
        println!(
            "{:<6} {:<19} {:>8} {:>5} {:>10}   effective path, and how that is known",
            "rw", "way", "block", "depth", "MB/s"
        );
        let shape = |kib: usize| options.depths.iter().map(move |depth| Shape { block: kib << 10, depth: *depth });
        for shape in options.block_kib.iter().flat_map(|kib| shape(*kib)) {
            if options.wants("host-uring") {
                let head = format!("{:<6} {:<19} {:>8} {:>5}", "read", "host-uring", size(shape.block), shape.depth);
                self.watch.at(&head);
                match self.raw(shape) {
                    Ok(rate) => {
                        println!("{head} {rate:>10.0}   io_uring into pinned memory, no device");
                        rates.insert((false, shape, "host-uring".into()), rate);
                    }
                    Err(e) => println!("{head} {:>10}   not run: {e}", "-"),
                }
            }
            for writes in [false, true].into_iter().filter(|writes| options.writes || !writes) {
                for (name, way) in Way::ALL.into_iter().filter(|(name, _)| options.wants(name)) {
                    let rw = if writes { "write" } else { "read" };
                    let head = format!("{rw:<6} {name:<19} {:>8} {:>5}", size(shape.block), shape.depth);
                    if way.is_cufile()
                        && let Some(why) = &self.no_cufile
                    {
                        println!("{head} {:>10}   not run: {}", "-", why.lines().next().unwrap_or("?"));
                        continue;
                    }
                    self.watch.at(&head);
                    match self.point(way, writes, shape) {
                        Ok((verdict, rate)) => {
                            println!("{head} {rate:>10.0}   {verdict}");
                            rates.insert((writes, shape, name.into()), rate);
                        }
                        Err(e) => {
                            wrong += 1;
                            println!("{head} {:>10}   FAILED: {e}", "-");
                            if let Some(cure) =
                                e.downcast_ref::<onehop_cuda::Error>().and_then(onehop_cuda::Error::cure)
                            {
                                println!("             fix: {cure}");
                            }
                        }
                    }
                }
            }
        }
        println!("\n{}", self.summary(&rates));
        Ok(wrong)
    }

    fn summary(&self, rates: &BTreeMap<(bool, Shape, String), f64>) -> String {
        let mut text = String::new();
        let rate = |writes, shape, name: &str| rates.get(&(writes, shape, name.to_string())).copied();
        let mut shapes: Vec<(bool, Shape)> = rates.keys().map(|(writes, shape, _)| (*writes, *shape)).collect();
        shapes.dedup();
        for (writes, shape) in &shapes {
            let rw = if *writes { "write" } else { "read" };
            if let (Some(refill), Some(wait)) =
                (rate(*writes, *shape, "cufile-batch"), rate(*writes, *shape, "cufile-batch-wait"))
            {
                let slots = rate(*writes, *shape, "cufile-batch-slots").unwrap_or(0.0);
                let _ = writeln!(
                    text,
                    "batch   {rw:<6} {:>8} x {:<3} refill {refill:>6.0}, slots {slots:>6.0}, wait {wait:>6.0} MB/s: refill/wait {:.3}",
                    size(shape.block),
                    shape.depth,
                    refill / wait
                );
            }
        }
        for (writes, shape) in shapes.iter().filter(|(writes, _)| !writes) {
            if let (Some(staged), Some(raw)) = (rate(*writes, *shape, "staged"), rate(*writes, *shape, "host-uring")) {
                let _ = writeln!(
                    text,
                    "staged  read   {:>8} x {:<3} {staged:>6.0} MB/s, raw {raw:>6.0}: {:.3}",
                    size(shape.block),
                    shape.depth,
                    staged / raw
                );
            }
        }
        let best = |name: &str| {
            rates.iter().filter(|((writes, _, n), _)| !writes && n == name).map(|(_, rate)| *rate).fold(0.0, f64::max)
        };
        let (staged, raw) = (best("staged"), best("host-uring"));
        if raw > 0.0 && staged > 0.0 {
            let _ = writeln!(
                text,
                "best    staged {staged:.0} MB/s, best raw read into host memory {raw:.0}: {:.3}",
                staged / raw
            );
        }
        text
    }

    fn queue(&self, way: Way, writes: bool, shape: Shape) -> Outcome<Box<dyn Queue<DeviceBuf>>> {
        let file = self.open(writes)?;
        let ledger = Arc::new(Ledger::default());
        let ring = Ring::for_transfers(shape.block, shape.depth);
        match way {
            Way::Staged => {
                let queue = StagedQueue::uring(&self.context, vec![file], shape.depth, ring, ledger)?;
                return Ok(Box::new(queue));
            }
            Way::StagedPread => {
                let files: Vec<Arc<dyn WriteAt>> = vec![file];
                return Ok(Box::new(StagedQueue::blocking(&self.context, files, shape.depth, ring, ledger)?));
            }
            _ => {}
        }
        let cufile = self.cufile.as_ref().ok_or("no cuFile")?;
        let files = vec![Arc::new(CufileFile::new(cufile, file)?)];
        let batch = |batching| CufileBatchQueue::new(files.clone(), shape.depth, batching, Arc::clone(&ledger));
        let queue: Box<dyn Queue<DeviceBuf>> = match way {
            Way::CufileBatch => Box::new(batch(Batching::Refill)?),
            Way::CufileBatchSlots => Box::new(batch(Batching::Slots)?),
            Way::CufileBatchWait => Box::new(batch(Batching::Wait)?),
            Way::CufileAsync => Box::new(CufileAsyncQueue::new(files, shape.depth, ledger)?),
            _ => Box::new(CufileSyncQueue::new(files, shape.depth, ledger)?),
        };
        Ok(queue)
    }

    fn buffers(&self, way: Way, shape: Shape, count: usize) -> Outcome<Vec<DeviceBuf>> {
        let mut buffers = Vec::new();
        for _ in 0..count {
            let mut buffer = DeviceBuf::new(&self.context, shape.block)?;
            if let (true, Some(cufile)) = (way.is_cufile(), &self.cufile) {
                cufile.register(&mut buffer)?;
            }
            buffers.push(buffer);
        }
        Ok(buffers)
    }

    /// Checks one point, then times it.
    fn point(&self, way: Way, writes: bool, shape: Shape) -> Outcome<(Verdict, f64)> {
        let mut queue = self.queue(way, writes, shape)?;
        let depth = queue.depth();
        let mut buffers = self.buffers(way, shape, depth)?;
        let before = self.cufile.as_ref().map(|cufile| cufile.counts());
        self.check(queue.as_mut(), writes, shape, &mut buffers)?;
        let verdict = match (&self.cufile, &before) {
            (Some(cufile), Some(before)) if way.is_cufile() => cufile.verdict(before),
            _ => Verdict::staged(),
        };
        let direction = if writes { Direction::Write } else { Direction::Read };
        let rate = time(queue.as_mut(), direction, shape.block, self.content.len(), buffers, self.seconds)?;
        Ok((verdict, rate))
    }

    /// Moves some of the file and compares every byte.
    fn check(
        &self,
        queue: &mut dyn Queue<DeviceBuf>,
        writes: bool,
        shape: Shape,
        buffers: &mut Vec<DeviceBuf>,
    ) -> Outcome<()> {
        let all = self.content.len() / shape.block;
        let count = all.min((256 << 20) / shape.block).max(1);
        // Blocks from all over the file, each once: an odd step through a power of two, or all in order.
        let step = if all.is_power_of_two() && all > 4 { all / 2 - 1 } else { 1 };
        let blocks: Vec<usize> = (0..count).map(|i| i * step % all).collect();
        // What is written must not be what is there already.
        let shift = if writes { self.turn.replace(self.turn.get() + 1) % 61 + 1 } else { 0 };
        let wanted = |block: usize| {
            let from = (block + shift) % all;
            &self.content[from * shape.block..(from + 1) * shape.block]
        };
        let direction = if writes { Direction::Write } else { Direction::Read };
        let mut host = vec![0; shape.block];
        let (mut next, mut done) = (blocks.iter(), Vec::new());
        let mut places = vec![0; all];
        loop {
            while queue.in_flight() < queue.depth()
                && !buffers.is_empty()
                && let Some(block) = next.next()
            {
                let Some(mut buffer) = buffers.pop() else { break };
                match writes {
                    true => buffer.copy_from(0, wanted(*block))?,
                    false => buffer.fill(0xee)?,
                }
                let (offset, bytes) = ((block * shape.block) as u64, shape.block);
                places[*block] += 1;
                queue.submit(Transfer {
                    direction,
                    file: 0,
                    offset,
                    at: 0,
                    bytes,
                    needed: bytes,
                    buffer,
                    tag: *block as u64,
                });
            }
            if queue.in_flight() == 0 {
                break;
            }
            queue.reap(1, &mut done)?;
            for one in done.drain(..) {
                match one.advance() {
                    Advance::Rest(transfer) => queue.submit(transfer),
                    Advance::Failed(transfer, e) => return Err(Failed(transfer.offset, e).into()),
                    Advance::Whole(transfer) => {
                        if !writes {
                            transfer.buffer.copy_to(0, &mut host)?;
                            let block = transfer.tag as usize;
                            compare(block * shape.block, &host, wanted(block))?;
                        }
                        buffers.push(transfer.buffer);
                    }
                }
            }
        }
        if writes {
            self.check_written(&blocks, shape, wanted)?;
        }
        Ok(())
    }

    /// Reads what was written, past the page cache and without the device.
    fn check_written<'a>(&self, blocks: &[usize], shape: Shape, wanted: impl Fn(usize) -> &'a [u8]) -> Outcome<()> {
        let (file, ledger) = (LocalFile::open(&self.target.0, RequestedPath::PreferHostDirect)?, Ledger::default());
        let mut found = AlignedBuf::zeroed(shape.block);
        for block in blocks {
            file.read_at((block * shape.block) as u64, &mut found, &ledger)?;
            compare(block * shape.block, &found, wanted(*block))?;
        }
        Ok(())
    }

    /// The host's own reads into pinned memory: what storage gives.
    fn raw(&self, shape: Shape) -> Outcome<f64> {
        let file = self.open(false)?;
        let mut queue = UringQueue::new(vec![file], shape.depth, None, Arc::new(Ledger::default()))?;
        let buffers: Result<Vec<_>, _> =
            (0..shape.depth).map(|_| PinnedBuf::zeroed(&self.context, shape.block)).collect();
        time(&mut queue, Direction::Read, shape.block, self.content.len(), buffers?, self.seconds)
    }
}

fn compare(at: usize, found: &[u8], wanted: &[u8]) -> Outcome<()> {
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(i) => {
            Err(format!("WRONG CONTENT at byte {}: {:#04x} instead of {:#04x}", at + i, found[i], wanted[i]).into())
        }
    }
}

/// Empties the page cache, where that is allowed.
fn forget_pages() {
    // SAFETY: no arguments, no memory of ours.
    unsafe { libc::sync() };
    if std::fs::write("/proc/sys/vm/drop_caches", "3").is_err() {
        eprintln!("device_io: the page cache could not be emptied: rates may be its own");
    }
}

/// Keeps the queue full, round and round the file, and says how many megabytes a second came back.
fn time<B>(
    queue: &mut dyn Queue<B>,
    direction: Direction,
    block: usize,
    all: usize,
    buffers: Vec<B>,
    seconds: f64,
) -> Outcome<f64> {
    let (mut buffers, mut done, mut next, mut bytes) = (buffers, Vec::new(), 0, 0_u64);
    let (ramp, runtime) = (Duration::from_secs_f64(seconds * 0.2), Duration::from_secs_f64(seconds));
    forget_pages();
    let start = Instant::now();
    let (mut counted_from, mut until) = (None, start);
    // Of slow storage and large blocks, as many as tell something.
    let enough = 2 * (queue.depth() * block) as u64;
    loop {
        let elapsed = start.elapsed();
        // What has been read once may be in the page cache: cuFile's batches do not pass it by.
        let is_read = direction == Direction::Read && next >= all / block;
        let is_over = is_read || elapsed >= ramp + runtime && (bytes >= enough || elapsed >= 10 * (ramp + runtime));
        while !is_over
            && queue.in_flight() < queue.depth()
            && let Some(buffer) = buffers.pop()
        {
            let offset = (next % (all / block) * block) as u64;
            next += 1;
            queue.submit(Transfer { direction, file: 0, offset, at: 0, bytes: block, needed: block, buffer, tag: 0 });
        }
        if queue.in_flight() == 0 {
            break;
        }
        queue.reap(1, &mut done)?;
        let now = Instant::now();
        for one in done.drain(..) {
            match one.advance() {
                Advance::Rest(transfer) => queue.submit(transfer),
                Advance::Failed(transfer, e) => return Err(Failed(transfer.offset, e).into()),
                Advance::Whole(transfer) => {
                    if counted_from.is_some() && (!is_over || is_read) {
                        bytes += block as u64;
                        until = now;
                    }
                    buffers.push(transfer.buffer);
                }
            }
        }
        // From the end of a transfer, or of a batch, to the end of another.
        if counted_from.is_none() && start.elapsed() >= ramp {
            counted_from = Some(now);
        }
    }
    let measured = until.saturating_duration_since(counted_from.unwrap_or(start)).as_secs_f64();
    Ok(if measured > 0.0 { bytes as f64 / measured / 1e6 } else { 0.0 })
}

#[derive(Debug)]
struct Failed(u64, io::Error);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at offset {}: {}", self.0, self.1)
    }
}

impl std::error::Error for Failed {}

fn size(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}
