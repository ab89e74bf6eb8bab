//! Where a fused subtree runs: on the CPU, or on a device that was registered with the database.
//!
//! 1. With `gpu.mode = 'off'`, or where no devices were registered, nothing is asked.
//! 2. What reads fewer stored bytes than `gpu.min_bytes`, or so few that no device could gain anything, stays on the CPU:
//!    no device is looked for on its account.
//! 3. The first query does not wait until devices are found and measured, which may take seconds, if the CPU is done before:
//!    they are looked for beside it.
//! 4. Each device that may be used looks at the program. One that has no code for it says why.
//! 5. Of the others the one is taken that has most of the columns in its memory. It runs the program if `gpu.mode` is
//!    'require', or if it is estimated to take less time than the CPU.
//!
//! That something is cheaper on the CPU is no fallback and nobody is told but EXPLAIN. That a device which would have been
//! used refuses is one, and is treated as `exec.fallback` says: one that would have been used had it not refused.

mod cost;
mod cpu_rate;
pub(crate) mod residence;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use onehop_pipeline::backend::{
    Backend, Devices, Estimate, Hints, MemoryLimit, Prepared, Rates, Refusal, Residence, Stored,
};
use onehop_pipeline::cpu::Execution;

pub(crate) use self::cost::Cost;
use crate::query::Query;
use crate::settings::{DeviceNames, Fallback, GpuMode, Settings};
use crate::units::{bytes, time};
use crate::{Error, ErrorKind, Result};

/// With `gpu.min_bytes = 'auto'`: before a device has begun, the CPU is done with these.
const LEAST_BYTES: u64 = 1 << 20;

/// Who is done so soon does not wait for devices that nobody has looked for yet.
const WORTH_WAITING: Duration = Duration::from_secs(2);

/// What all sessions of a database know of devices.
#[derive(Debug, Default)]
pub(crate) struct Known {
    devices: OnceLock<Arc<dyn Devices>>,
    /// Somebody is looking for them.
    is_looking: AtomicBool,
    /// Stored bytes a second that a thread of a pipeline deals with.
    cpu_rate: OnceLock<f64>,
}

impl Known {
    /// Makes devices known; those that were first stay.
    pub fn register(&self, devices: Arc<dyn Devices>) {
        // Two sets of devices would each believe to have the memory for itself.
        let _ = self.devices.set(devices);
    }

    /// Devices, if any were registered.
    pub fn devices(&self) -> Option<&Arc<dyn Devices>> {
        self.devices.get()
    }

    /// Looks for devices and measures them on a thread of its own, once.
    fn look(&self, devices: &Arc<dyn Devices>) {
        if self.is_looking.swap(true, Relaxed) {
            return;
        }
        let devices = Arc::clone(devices);
        let look = move || {
            // Who wants to know what is wrong asks again.
            let all = devices.all().map_or(&[][..], |all| all);
            all.iter().for_each(|backend| drop(backend.rates()));
        };
        if std::thread::Builder::new().name("onehop-devices".into()).spawn(look).is_err() {
            self.is_looking.store(false, Relaxed);
        }
    }

    fn cpu_rate(&self) -> f64 {
        *self.cpu_rate.get_or_init(cpu_rate::measured)
    }
}

/// What of a session's settings and its database decides where something runs.
#[derive(Clone, Debug)]
pub(crate) struct Placing {
    pub known: Arc<Known>,
    pub mode: GpuMode,
    pub names: DeviceNames,
    pub memory: MemoryLimit,
    pub residence: Residence,
    pub min_bytes: Option<u64>,
}

impl Placing {
    /// Whether anything might run on a device: there are some, or it is required.
    pub fn may_use_devices(&self) -> bool {
        let is_likely = || self.known.devices().is_some_and(|devices| devices.are_likely());
        self.mode == GpuMode::Require || self.mode == GpuMode::Auto && is_likely()
    }

    /// Whether both are of one database and of the same settings.
    pub fn places_as(&self, other: &Self) -> bool {
        let Self { known, mode, names, memory, residence, min_bytes } = self;
        Arc::ptr_eq(known, &other.known)
            && (mode, names, memory, residence, min_bytes)
                == (&other.mode, &other.names, &other.memory, &other.residence, &other.min_bytes)
    }

    pub fn new(known: &Arc<Known>, settings: &Settings) -> Self {
        Self {
            known: Arc::clone(known),
            mode: settings.gpu_mode(),
            names: settings.gpu_devices(),
            memory: settings.gpu_memory_limit(),
            residence: settings.gpu_residence(),
            min_bytes: settings.gpu_min_bytes(),
        }
    }
}

/// Where a subtree runs, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    /// The device; without one it is the CPU.
    pub device: Option<Placed>,
    /// Why, if anybody asked.
    pub why: Option<String>,
    /// What it was estimated to take.
    pub cost: Option<Cost>,
    /// Why a device that would have been used is not.
    pub refused: Option<String>,
}

/// A program on a device.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub backend: Arc<dyn Backend>,
    pub prepared: Arc<dyn Prepared>,
    pub hints: Arc<Hints>,
}

impl Placement {
    fn on_cpu(why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..Self::default() }
    }

    pub fn refused(why: String) -> Self {
        Self { why: Some(why.clone()), refused: Some(why), ..Self::default() }
    }
}

/// A device that takes a program.
struct Candidate {
    placed: Placed,
    estimate: Estimate,
    /// Stored bytes that are not there yet, and are going to stay once they are.
    kept_bytes: u64,
}

impl Candidate {
    /// Bytes that no later query will have to move.
    fn near_bytes(&self) -> u64 {
        self.estimate.resident_bytes + self.kept_bytes
    }
}

/// What belongs on a device and is not there yet.
fn kept_bytes(backend: &Arc<dyn Backend>, hints: &Hints, belongs: &[Option<&str>]) -> u64 {
    let Some(residency) = backend.residency() else { return 0 };
    let here = hints.stored.iter().zip(belongs).filter(|(_, device)| **device == Some(backend.name()));
    here.filter_map(|(stored, _)| stored.as_ref())
        .map(|stored| stored.bytes().saturating_sub(residency.resident_bytes(stored)))
        .sum()
}

/// What a program reads.
pub(crate) struct Read<'a> {
    /// Of each source, where it is stored.
    pub stored: Vec<Option<Stored>>,
    /// On which device its table belongs.
    pub belongs: &'a [Option<&'a str>],
    /// What of it is not as segments have it: no device reads that.
    pub changed: Option<String>,
}

/// Decides. `threads` is how many threads the CPU would use.
pub(crate) fn place(placing: &Placing, execution: &Execution, read: Read<'_>, threads: usize) -> Placement {
    let Read { stored, belongs, changed } = read;
    let Some(devices) = placing.known.devices() else {
        return match placing.mode {
            GpuMode::Require => {
                Placement::refused("no GPU is known here: nothing was registered that could find one".into())
            }
            GpuMode::Auto | GpuMode::Off => Placement::default(),
        };
    };
    if placing.mode == GpuMode::Off {
        return Placement::default();
    }
    let is_required = placing.mode == GpuMode::Require;
    let reads: u64 = stored.iter().flatten().map(Stored::bytes).sum();
    let least = placing.min_bytes.unwrap_or(LEAST_BYTES);
    if reads < least && !is_required {
        let because = if placing.min_bytes.is_some() { "less than gpu.min_bytes" } else { "too little for a GPU" };
        return Placement::on_cpu(format!("{} are {because}", bytes(reads)));
    }
    let on_cpu = cost::on_cpu(reads, placing.known.cpu_rate(), threads);
    if !is_required && !devices.are_ready() && on_cpu < WORTH_WAITING {
        placing.known.look(devices);
        return Placement::on_cpu("GPUs are being looked for");
    }
    let all = match devices.all() {
        Ok(all) => all,
        // Nobody who has no GPU wants to be told so by every query.
        Err(_) if !is_required => return Placement::default(),
        Err(why) => return Placement::refused(why),
    };
    let (memory, residence) = (placing.memory, placing.residence);
    let hints = Arc::new(Hints { stored, memory, residence, ..Hints::default() });
    let mut refused: Option<(&Arc<dyn Backend>, String)> = None;
    let mut best: Option<Candidate> = None;
    for backend in all.iter().filter(|backend| placing.names.has(backend.name())) {
        let prepared = match &changed {
            Some(rows) => Err(Refusal(rows.clone())),
            None => backend.prepare(execution, &hints),
        };
        match prepared {
            Ok(prepared) => {
                let estimate = prepared.estimate();
                let kept_bytes = kept_bytes(backend, &hints, belongs);
                let placed = Placed { backend: Arc::clone(backend), prepared, hints: Arc::clone(&hints) };
                let candidate = Candidate { placed, estimate, kept_bytes };
                // The first of equals: devices are in an order.
                if best.as_ref().is_none_or(|best| best.near_bytes() < candidate.near_bytes()) {
                    best = Some(candidate);
                }
            }
            Err(Refusal(reason)) => {
                refused.get_or_insert((backend, format!("{} cannot run {reason}", backend.name())));
            }
        }
    }
    match (best, refused) {
        (Some(best), _) => weigh(placing, execution, best, reads, threads),
        (None, Some((_, why))) if is_required => Placement::refused(why),
        (None, Some((backend, why))) => {
            // Where it would not have been used anyway, nothing is lost.
            let resident =
                |stored: &Stored| backend.residency().map_or(0, |residency| residency.resident_bytes(stored));
            let resident_bytes = hints.stored.iter().flatten().map(resident).sum();
            let estimate = Estimate { read_bytes: reads, resident_bytes, to_compile: 0 };
            let cost =
                |rates| cost::of(&estimate, &rates, execution.pipelines(), reads, placing.known.cpu_rate(), threads);
            match backend.rates().map(cost) {
                Ok(cost) if cost.cpu <= cost.device => Placement::on_cpu(why),
                _ => Placement::refused(why),
            }
        }
        (None, None) => Placement::refused("none of the GPUs here is one of gpu.devices".into()),
    }
}

/// The one device or the CPU, by time.
fn weigh(placing: &Placing, execution: &Execution, best: Candidate, reads: u64, threads: usize) -> Placement {
    // What stays is moved once for all queries, and is in no query's account.
    let (near_bytes, kept_bytes) = (best.near_bytes(), best.kept_bytes);
    let Candidate { placed, estimate, .. } = best;
    let device = placed.backend.name().to_string();
    let rates = match placed.backend.rates() {
        Ok(rates) => rates,
        // Who cannot even measure it would not get an answer from it.
        Err(e) => return Placement::refused(e.to_string()),
    };
    let near = Estimate { resident_bytes: near_bytes.min(estimate.read_bytes), ..estimate };
    let cost = cost::of(&near, &rates, execution.pipelines(), reads, placing.known.cpu_rate(), threads);
    let cost = Cost { estimate, kept_bytes, ..cost };
    if placing.mode == GpuMode::Require {
        let why = "gpu.mode = 'require'".to_string();
        return Placement { device: Some(placed), why: Some(why), cost: Some(cost), refused: None };
    }
    let is_faster = cost.device < cost.cpu;
    let why = match is_faster {
        true => format!("estimated {} on {device}, {} on the CPU", time(cost.device), time(cost.cpu)),
        false => format!("estimated {} on the CPU, {} on {device}", time(cost.cpu), time(cost.device)),
    };
    Placement { device: is_faster.then_some(placed), why: Some(why), cost: Some(cost), refused: None }
}

/// Tells of a device that is not used although it should have been.
///
/// # Errors
/// [`ErrorKind::Unmet`] if that was required and nothing else will do.
pub(crate) fn report(placement: &Placement, mode: GpuMode, fallback: Fallback, query: Option<&Query>) -> Result<()> {
    let Some(why) = &placement.refused else { return Ok(()) };
    match (fallback, mode, query) {
        (Fallback::Error, GpuMode::Require, _) => Err(unmet(why)),
        (Fallback::Warn, _, Some(query)) => {
            query.notice(format!("not on a GPU: {why}"));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The error of a session that wants nothing but a device.
fn unmet(why: &str) -> Error {
    Error::new(ErrorKind::Unmet, format!("a GPU is required, and {why}"))
        .with_hint("SET gpu.mode = 'auto' or exec.fallback = 'warn' lets the CPU do what the GPU cannot")
}

impl Placed {
    /// Bytes a second that the device copies in its memory, if it can be measured: no kernel is faster.
    pub fn copy_rate(&self) -> Option<f64> {
        self.backend.rates().ok().map(|Rates { copy_bytes_per_sec, .. }| copy_bytes_per_sec)
    }
}
