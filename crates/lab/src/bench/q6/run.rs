//! One run of a point: its time and its parts, its cost, and its answer.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use onehop_cuda::kernels::q6::Threads;
use serde::{Deserialize, Serialize};

use super::{Error, Gpu, Mode, Plan, Result, Way, overlapped, paper};
use crate::bench::io::usage::{Meters, Usage};

/// The options of runs.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The number of CPU threads, if there may be several.
    pub threads: usize,
    /// The number of reads in flight, if there may be several.
    pub depth: usize,
    /// The threads of the device in [`Mode::Paper`].
    pub device_threads: Threads,
    /// The mechanism of cuFile's reads in [`Mode::Overlapped`].
    pub cufile: Flight,
}

/// The mechanism that keeps cuFile's reads in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flight {
    /// A batch if bytes go direct, and threads if they do not: in compat mode, batches of large
    /// reads have been seen to wait forever for cuFile's own buffers.
    Auto,
    /// A batch that is refilled.
    Batch,
    /// A thread for each read.
    Threads,
}

/// The parts of the time. Their sum is the time of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Reading; with overlap, waiting for reads.
    pub io_seconds: f64,
    /// Copying between host and device. For reads through pinned buffers it is part of waiting for
    /// them.
    pub transfer_seconds: f64,
    /// Computing; on the device with overlap, waiting for it.
    pub compute_seconds: f64,
    /// Everything else: files, buffers, threads, launches.
    pub other_seconds: f64,
}

impl Spent {
    /// Returns the sum.
    pub fn total_seconds(&self) -> f64 {
        self.io_seconds + self.transfer_seconds + self.compute_seconds + self.other_seconds
    }

    /// Creates the parts, with the rest of the total time as *other*.
    pub(super) fn of(io: Duration, transfer: Duration, compute: Duration, total: Duration) -> Self {
        let known = io + transfer + compute;
        Self {
            io_seconds: io.as_secs_f64(),
            transfer_seconds: transfer.as_secs_f64(),
            compute_seconds: compute.as_secs_f64(),
            other_seconds: total.saturating_sub(known).as_secs_f64(),
        }
    }
}

/// The result of a path.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub answer: i128,
    pub io: Duration,
    pub transfer: Duration,
    pub compute: Duration,
    /// The time before the first read.
    pub setup: Duration,
    /// The time of all kernels, by the device's own clock.
    pub kernel: Option<Duration>,
    /// The path of the bytes.
    pub path: String,
    /// The number of CPU threads.
    pub threads: usize,
    /// The maximum number of reads in flight.
    pub depth: usize,
}

/// The figures of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// The time from opening the files to the answer.
    pub seconds: f64,
    /// The parts of the time.
    pub spent: Spent,
    /// The part of `other` before the first read: files, buffers, registrations.
    pub setup_seconds: f64,
    /// The time of all kernels, by events on the device; they may run while other work waits.
    pub kernel_seconds: Option<f64>,
    /// The number of bytes that were read, of the table alone.
    pub read_bytes: u64,
    /// The bytes by the time of the run.
    pub bytes_per_sec: f64,
    /// The rows by the time of the run.
    pub rows_per_sec: f64,
    /// The path of the bytes, as detected.
    pub effective_path: String,
    /// The number of CPU threads.
    pub threads: usize,
    /// The maximum number of reads in flight.
    pub depth: usize,
    /// The cost on the system.
    pub usage: Usage,
    /// The answer, in ten thousandths.
    #[serde(skip)]
    pub answer: i128,
}

/// Runs once. No page of the plan's files is cached at the start.
///
/// # Errors
/// Returns [`Error::NotHere`] for a path that this machine does not support, [`Error::Cancelled`],
/// or another error of the run.
pub fn run(
    plan: &Plan,
    mode: Mode,
    way: Way,
    gpu: Option<&Gpu>,
    options: &Options,
    cancel: &AtomicBool,
) -> Result<Figures> {
    let gpu = match way {
        Way::Cpu => None,
        _ => {
            let gpu = gpu.ok_or_else(|| Error::NotHere("there is no GPU".into()))?;
            gpu.can(way).map_err(Error::NotHere)?;
            Some(gpu)
        }
    };
    plan.forget()?;
    let device = plan.paths.first().and_then(|path| std::fs::metadata(path).ok()).map_or(0, |metadata| metadata.dev());
    let meters = Meters::read(device);
    let started = Instant::now();
    let outcome = match mode {
        Mode::Paper => paper::run(plan, way, gpu, options, cancel),
        Mode::Overlapped => overlapped::run(plan, way, gpu, options, cancel),
    }?;
    let total = started.elapsed();
    let usage = meters.since();
    if cancel.load(Relaxed) {
        return Err(Error::Cancelled);
    }
    let seconds = total.as_secs_f64();
    Ok(Figures {
        seconds,
        spent: Spent::of(outcome.io, outcome.transfer, outcome.compute, total),
        setup_seconds: outcome.setup.as_secs_f64(),
        kernel_seconds: outcome.kernel.map(|time| time.as_secs_f64()),
        read_bytes: plan.bytes,
        bytes_per_sec: plan.bytes as f64 / seconds,
        rows_per_sec: plan.rows as f64 / seconds,
        effective_path: outcome.path,
        threads: outcome.threads,
        depth: outcome.depth,
        usage,
        answer: outcome.answer,
    })
}
