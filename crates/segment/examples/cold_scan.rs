//! The speed of reading a segment that is not in the page cache, compared with reading the same
//! file raw.
//!
//! ```text
//! cargo run --release -p onehop-segment --example cold_scan -- FOLDER [PAIRS [STREAMS]]
//! ```
//! Creates a segment of 800 MB of wide integers in the folder, if it does not exist, and reads it
//! past the page cache in three ways: by [`BlockStream`], as DataFusion's scans do; by
//! [`BlockScan`], as pipelines do; and raw. The raw read goes front to back, 1 MiB at a time, 4 in
//! flight, into memory that is registered with the ring and was used before. Each read is a process
//! of its own, so that it pays for its memory, and does not profit from another. The ways
//! alternate, because the disks of shared machines are fast one minute and slow the next. The scans
//! verify checksums, and `BlockScan` values as well.
//!
//! The example prints the rate of each read, in GB (10^9 bytes) per second. For each way it prints
//! the median of its ratios to the raw read of the same turn, with the quartiles.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use onehop_io::{
    Advance, Direction, Ledger, LocalFile, Pool, Queue, ReadAt, RequestedPath, Slab, Transfer, UringQueue,
};
use onehop_segment::{BlockCache, BlockList, BlockScan, BlockStream, Segment, SegmentOptions, SegmentWriter};
use rustix::fs::{Advice, fadvise};

const COLUMNS: usize = 8;
const BATCHES: usize = 400;
const BATCH_ROWS: usize = 1 << 15;
/// The bytes that a scan may read ahead of the blocks in progress, all its streams together.
const AHEAD_BYTES: usize = 32 << 20;
const RAW_BYTES: usize = 1 << 20;
const RAW_DEPTH: usize = 4;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |text| text.parse());
    match arguments.first().map(String::as_str) {
        Some("--raw") => raw(Path::new(&arguments[1])),
        Some("--stream") => scan(Path::new(&arguments[1]), number(2, 1)?, stream),
        Some("--scan") => scan(Path::new(&arguments[1]), number(2, 1)?, block_scan),
        Some(folder) => compare(Path::new(folder), number(1, 9)?, number(2, 1)?),
        None => Err("usage: cold_scan FOLDER [PAIRS [STREAMS]]".into()),
    }
}

fn compare(folder: &Path, turns: usize, streams: usize) -> Result<()> {
    let file = folder.join("cold_scan.segment");
    if !file.exists() {
        make(&file)?;
    }
    let ways = ["--raw", "--stream", "--scan"];
    let mut ratios = vec![Vec::new(); ways.len()];
    for turn in 0..turns {
        let mut rates = [0.0; 3];
        // The first way in one turn is the last in the next.
        for n in 0..ways.len() {
            let way = (n + turn) % ways.len();
            let mut child = Command::new(std::env::current_exe()?);
            let said = child.arg(ways[way]).arg(&file).arg(streams.to_string()).output()?;
            let text = String::from_utf8(said.stdout)?;
            let rate = text.split_whitespace().next().and_then(|rate| rate.parse().ok());
            rates[way] = rate.ok_or_else(|| String::from_utf8_lossy(&said.stderr).into_owned())?;
            println!("{:9} {}", ways[way], text.trim());
        }
        ratios.iter_mut().zip(rates).for_each(|(ratios, rate)| ratios.push(rate / rates[0]));
    }
    for (way, ratios) in ways.iter().zip(&mut ratios).skip(1) {
        ratios.sort_by(f64::total_cmp);
        let at = |part: usize| ratios[(ratios.len() - 1) * part / 4];
        println!("{way:9} {:.3} of raw (quartiles {:.3} to {:.3}, {turns} turns)", at(2), at(1), at(3));
    }
    Ok(())
}

/// Creates a segment of integers of which every bit is needed.
fn make(path: &Path) -> Result<()> {
    let mut state = 1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as i64
    };
    let mut batch = || -> Result<RecordBatch> {
        let mut column = |n| {
            let values: Int64Array = (0..BATCH_ROWS).map(|_| Some(next())).collect();
            (format!("c{n}"), Arc::new(values) as ArrayRef)
        };
        Ok(RecordBatch::try_from_iter((0..COLUMNS).map(&mut column))?)
    };
    let first = batch()?;
    let mut writer = SegmentWriter::new(&first.schema(), SegmentOptions::default())?;
    writer.append(&first)?;
    for _ in 1..BATCHES {
        writer.append(&batch()?)?;
    }
    writer.finish(&LocalFile::create(path, RequestedPath::PreferHostDirect)?, &Ledger::default())?;
    Ok(())
}

/// Opens the file, and drops it from the page cache.
fn forgotten(path: &Path, requested: RequestedPath) -> Result<LocalFile> {
    let file = LocalFile::open(path, requested)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(file)
}

fn say(bytes: u64, begun: Instant, way: &str) {
    let rate = bytes as f64 / begun.elapsed().as_secs_f64() / 1e9;
    println!(
        "{rate:.3} GB/s, {way}, {:.0} MiB lent at most",
        Slab::of_process().stats().most_lent_bytes as f64 / 1048576.0
    );
}

fn raw(path: &Path) -> Result<()> {
    let file = Arc::new(forgotten(path, RequestedPath::HostDirect)?);
    let bytes = file.len()?;
    let pool = Pool::new(RAW_DEPTH, RAW_BYTES);
    let mut buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    buffers.iter_mut().for_each(|buffer| buffer.fill(1));
    let mut ring = UringQueue::new(vec![file], RAW_DEPTH, Some(Arc::clone(&pool)), Arc::default())?;
    let (begun, mut offset, mut done) = (Instant::now(), 0, Vec::new());
    loop {
        while offset < bytes
            && let Some(buffer) = buffers.pop()
        {
            let needed = RAW_BYTES.min((bytes - offset) as usize);
            let (direction, bytes) = (Direction::Read, RAW_BYTES);
            ring.submit(Transfer { direction, file: 0, offset, at: 0, bytes, needed, buffer, tag: 0 });
            offset += RAW_BYTES as u64;
        }
        if ring.in_flight() == 0 {
            break;
        }
        ring.reap(1, &mut done)?;
        for one in done.drain(..) {
            match one.advance() {
                Advance::Whole(transfer) => buffers.push(transfer.buffer),
                Advance::Rest(transfer) => ring.submit(transfer),
                Advance::Failed(_, e) => return Err(e.into()),
            }
        }
    }
    say(bytes, begun, "raw");
    Ok(())
}

fn scan(path: &Path, streams: usize, read: impl Fn(&Arc<Segment>, usize) -> Result<String>) -> Result<()> {
    let segment = Arc::new(Segment::open(Arc::new(forgotten(path, RequestedPath::Buffered)?), &Ledger::default())?);
    let bytes =
        (0..segment.blocks()).map(|block| (0..COLUMNS).map(|c| segment.stored_bytes(c, block)).sum::<u64>()).sum();
    let begun = Instant::now();
    let way = read(&segment, streams)?;
    say(bytes, begun, &way);
    Ok(())
}

/// Reads a part of the blocks in each thread, by a stream.
fn stream(segment: &Arc<Segment>, streams: usize) -> Result<String> {
    let part = |n: usize| n * segment.blocks() / streams..(n + 1) * segment.blocks() / streams;
    let ways = thread::scope(|scope| {
        let read = |n| {
            let blocks = part(n).map(|block| (Arc::clone(segment), block)).collect();
            let columns = (0..COLUMNS).collect();
            let budget = AHEAD_BYTES / streams;
            let mut stream = BlockStream::new(RequestedPath::HostDirect, blocks, columns, &Arc::default(), budget);
            while next(&mut stream)? {}
            Ok(format!("{:?}", stream.facts()))
        };
        let threads: Vec<_> = (0..streams).map(|n| scope.spawn(move || read(n))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread has panicked".into())))
            .collect::<Result<Vec<String>>>()
    })?;
    Ok(ways.concat())
}

/// Returns true if there was another block.
fn next(stream: &mut BlockStream) -> Result<bool> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match stream.poll_next(&mut Context::from_waker(&waker)) {
            Poll::Ready(block) => return Ok(block?.is_some()),
            Poll::Pending => thread::park(),
        }
    }
}

/// Reads blocks in threads that take the next block each.
fn block_scan(segment: &Arc<Segment>, streams: usize) -> Result<String> {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    let cache = Arc::new(BlockCache::new(0).by_path(RequestedPath::HostDirect));
    let blocks: Arc<BlockList> = Arc::new((0..segment.blocks()).map(|block| (Arc::clone(segment), block)).collect());
    let columns: Vec<usize> = (0..COLUMNS).collect();
    let order = (0..blocks.len()).collect();
    let scan = BlockScan::new(&cache, &Arc::default(), &blocks, order, columns.clone(), &columns, AHEAD_BYTES);
    let taken = AtomicUsize::new(0);
    let work = || -> Result<()> {
        loop {
            let at = taken.fetch_add(1, Relaxed);
            if at >= blocks.len() {
                return Ok(());
            }
            scan.begin(at);
            for column in 0..COLUMNS {
                scan.load(at, column)?;
            }
            scan.end(at);
        }
    };
    thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..streams).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread has panicked".into())))
    })?;
    Ok(format!("{:?}", scan.facts()))
}
