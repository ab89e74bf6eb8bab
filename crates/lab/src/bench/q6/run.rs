//! One run of a point: its time by what it was spent on, what it cost, and its answer.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use onehop_cuda::kernels::q6::Threads;
use serde::{Deserialize, Serialize};

use super::{Error, Gpu, Mode, Plan, Result, Way, overlapped, paper};
use crate::bench::io::usage::{Meters, Usage};

/// How runs are carried out.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads of the processor, where there may be several.
    pub threads: usize,
    /// Reads in flight, where there may be several.
    pub depth: usize,
    /// Threads of the device in [`Mode::Paper`].
    pub device_threads: Threads,
    /// How cuFile reads in [`Mode::Overlapped`].
    pub cufile: Flight,
}

/// What keeps cuFile's reads in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flight {
    /// A batch where bytes go direct, threads where they do not: in compat mode batches of large reads have been seen to
    /// wait for cuFile's own buffers for ever.
    Auto,
    /// A batch that is filled again.
    Batch,
    /// A thread for each read.
    Threads,
}

/// Where the time went. All of it together is the time of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Reading; where work goes on meanwhile, waiting for what is read.
    pub io_seconds: f64,
    /// Copying between host and device; where reads go through pinned buffers by themselves, that is part of waiting
    /// for them.
    pub transfer_seconds: f64,
    /// Computing; where that is the device's and reads go on meanwhile, waiting for it.
    pub compute_seconds: f64,
    /// Everything else: files, buffers, threads, launches.
    pub other_seconds: f64,
}

impl Spent {
    /// All of it.
    pub fn total_seconds(&self) -> f64 {
        self.io_seconds + self.transfer_seconds + self.compute_seconds + self.other_seconds
    }

    /// With what is left of the whole time as *other*.
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

/// What a way found.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub answer: i128,
    pub io: Duration,
    pub transfer: Duration,
    pub compute: Duration,
    /// Before the first byte was asked for.
    pub setup: Duration,
    /// Of all kernels, by the device's own clock.
    pub kernel: Option<Duration>,
    /// How bytes travelled.
    pub path: String,
    /// Threads of the processor that took part.
    pub threads: usize,
    /// Reads that were in flight at most.
    pub depth: usize,
}

/// What one run gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// From opening the files to the answer.
    pub seconds: f64,
    /// By what it was spent on.
    pub spent: Spent,
    /// Of `other`, what came before the first read: files, buffers, registrations.
    pub setup_seconds: f64,
    /// Of all kernels, by events on the device; they may run while others wait.
    pub kernel_seconds: Option<f64>,
    /// Bytes that were read, of the table alone.
    pub read_bytes: u64,
    /// By the time of the run.
    pub bytes_per_sec: f64,
    /// Rows, by the time of the run.
    pub rows_per_sec: f64,
    /// How the bytes travelled, as it was found out.
    pub effective_path: String,
    /// Threads of the processor.
    pub threads: usize,
    /// Reads in flight, at most.
    pub depth: usize,
    /// What it cost.
    pub usage: Usage,
    /// The answer, in ten thousandths.
    #[serde(skip)]
    pub answer: i128,
}

/// Runs once. No page of the plan's files is cached when it begins.
///
/// # Errors
/// [`Error::NotHere`] for a way that this machine does not have; [`Error::Cancelled`]; what went wrong.
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
