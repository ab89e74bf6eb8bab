//! Places a fused subtree on the CPU, or on a device that was registered with the database.
//!
//! 1. With `gpu.mode = 'off'`, or without registered devices, it stays on the CPU.
//! 2. A subtree that reads fewer stored bytes than `gpu.min_bytes`, or too few to gain anything,
//!    stays on the CPU without detecting devices.
//! 3. Detecting and measuring devices may take seconds. If the CPU is estimated to finish before,
//!    the first query runs there, and the devices are detected concurrently.
//! 4. Each permitted device checks the program. One that cannot run it returns the reason.
//! 5. Among the others, the device with most of the columns in memory is chosen. All of them
//!    together ([`spread`]), each with a part of the last pipeline's input, are chosen if they are
//!    estimated to be faster, or if `gpu.spread` is 'on'. They run the program if `gpu.mode` is
//!    'require', or if they are estimated to be faster than the CPU.
//!
//! [`spread`]: onehop_pipeline::spread
//!
//! A program that is cheaper on the CPU is no fallback, and only EXPLAIN shows it. If a device
//! refuses a program that it would have been used for, `exec.fallback` applies.

mod cost;
mod cpu_rate;
pub(crate) mod homes;
pub(crate) mod residence;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use onehop_pipeline::backend::{
    Backend, DevicePath, Devices, Estimate, Hints, MemoryLimit, Prepared, Rates, Refusal, Residence, Site, Stored,
};
use onehop_pipeline::cpu::Execution;
use onehop_pipeline::spread::{ShareProgram, Spread, Topology};

use onehop_segment::BlockList;

pub(crate) use self::cost::Cost;
use crate::query::Query;
use crate::settings::{DeviceNames, Fallback, GpuMode, GpuSpread, Settings};
use crate::units::{bytes, time};
use crate::{Error, ErrorKind, Result};

/// The minimum with `gpu.min_bytes = 'auto'`: the CPU finishes with fewer bytes before a device has
/// begun.
const LEAST_BYTES: u64 = 1 << 20;

/// A query that is estimated to be faster than this does not wait for the detection of devices.
const WORTH_WAITING: Duration = Duration::from_secs(2);

/// The devices that all sessions of a database share.
#[derive(Debug, Default)]
pub(crate) struct Known {
    devices: OnceLock<Arc<dyn Devices>>,
    /// The thread that detects them, or has done so.
    looking: Mutex<Option<JoinHandle<()>>>,
    /// Stored bytes per second that a thread of a pipeline processes.
    cpu_rate: OnceLock<f64>,
    /// The directory of the segments, and the NUMA node of its disk, computed on demand.
    storage: OnceLock<PathBuf>,
    storage_node: OnceLock<Option<u32>>,
}

impl Known {
    /// Registers devices. The first registration wins.
    pub fn register(&self, devices: Arc<dyn Devices>) {
        // Two sets of devices would each claim the whole memory.
        let _ = self.devices.set(devices);
    }

    /// Returns the devices, if any were registered.
    pub fn devices(&self) -> Option<&Arc<dyn Devices>> {
        self.devices.get()
    }

    /// Detects and measures devices on a thread of its own, once.
    fn look(&self, devices: &Arc<dyn Devices>) {
        let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if looking.is_some() {
            return;
        }
        let devices = Arc::clone(devices);
        let look = move || {
            // A later query reports the error.
            let all = devices.all().map_or(&[][..], |all| all);
            all.iter().for_each(|backend| drop(backend.rates()));
        };
        // If the thread cannot be started, the next query retries.
        *looking = std::thread::Builder::new().name("onehop-devices".into()).spawn(look).ok();
    }

    /// Sets the directory of the segments, if it is on this machine.
    pub fn stores_in(&self, directory: &Path) {
        // A database has one.
        let _ = self.storage.set(directory.to_path_buf());
    }

    fn storage_node(&self) -> Option<u32> {
        *self.storage_node.get_or_init(|| Topology::of_system().of_file(self.storage.get()?))
    }

    fn cpu_rate(&self) -> f64 {
        *self.cpu_rate.get_or_init(cpu_rate::measured)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let looking = self.looking.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.devices.get().is_some_and(|devices| devices.are_waited_for())
            && let Some(thread) = looking
        {
            // Its result is not needed any more.
            let _ = thread.join();
        }
    }
}

/// The settings of a session and the devices of its database that determine the placement.
#[derive(Clone, Debug)]
pub(crate) struct Placing {
    pub known: Arc<Known>,
    pub mode: GpuMode,
    pub names: DeviceNames,
    pub spread: GpuSpread,
    pub memory: MemoryLimit,
    pub residence: Residence,
    pub path: DevicePath,
    pub min_bytes: Option<u64>,
}

impl Placing {
    /// Returns whether anything might run on a device: there are some, or one is required.
    pub fn may_use_devices(&self) -> bool {
        let is_likely = || self.known.devices().is_some_and(|devices| devices.are_likely());
        self.mode == GpuMode::Require || self.mode == GpuMode::Auto && is_likely()
    }

    /// Returns whether both have the same database and settings.
    pub fn places_as(&self, other: &Self) -> bool {
        let Self { known, mode, names, spread, memory, residence, path, min_bytes } = self;
        Arc::ptr_eq(known, &other.known)
            && (mode, names, spread, memory) == (&other.mode, &other.names, &other.spread, &other.memory)
            && (residence, path, min_bytes) == (&other.residence, &other.path, &other.min_bytes)
    }

    /// Creates it from a session's settings.
    pub fn new(known: &Arc<Known>, settings: &Settings) -> Self {
        Self {
            known: Arc::clone(known),
            mode: settings.gpu_mode(),
            names: settings.gpu_devices(),
            spread: settings.gpu_spread(),
            memory: settings.gpu_memory_limit(),
            residence: settings.gpu_residence(),
            path: settings.gpu_path(),
            min_bytes: settings.gpu_min_bytes(),
        }
    }
}

/// The placement of a subtree, and the reason for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    /// The device; `None` for the CPU.
    pub device: Option<Placed>,
    /// The reason, if devices were considered.
    pub why: Option<String>,
    /// The estimated cost.
    pub cost: Option<Cost>,
    /// The reason why a device that would have been used is not.
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

    /// Creates a placement on the CPU, because a device refused.
    pub fn refused(why: String) -> Self {
        Self { why: Some(why.clone()), refused: Some(why), ..Self::default() }
    }
}

/// A device that can run a program.
#[derive(Clone)]
struct Candidate {
    placed: Placed,
    estimate: Estimate,
    /// Stored bytes that are not there yet, and will stay once they are.
    kept_bytes: u64,
}

impl Candidate {
    /// Returns the bytes that no later query has to move.
    fn near_bytes(&self) -> u64 {
        self.estimate.resident_bytes + self.kept_bytes
    }
}

/// Returns the bytes that belong on a device and are not there yet.
fn kept_bytes(backend: &dyn Backend, hints: &Hints) -> u64 {
    let Some(residency) = backend.residency() else { return 0 };
    let missing = |(stored, sites): (&Option<Stored>, &Vec<Site>)| {
        let here = stored.as_ref().and_then(|stored| belonging(stored, sites, backend));
        here.map_or(0, |stored| stored.bytes().saturating_sub(residency.resident_bytes(&stored)))
    };
    hints.stored.iter().zip(&hints.sites).map(missing).sum()
}

/// Returns the segments of a source that belong on a device.
fn belonging(stored: &Stored, sites: &[Site], backend: &dyn Backend) -> Option<Stored> {
    let belongs = |site: &Site| homes::belongs_on(&site.devices, backend);
    if !sites.iter().any(belongs) {
        return None;
    }
    if sites.iter().all(belongs) {
        return Some(stored.clone());
    }
    let mut blocks = BlockList::default();
    for run in stored.blocks.runs().iter().filter(|run| sites.get(run.segment).is_some_and(belongs)) {
        let segment = &stored.blocks.segments()[run.segment];
        blocks.push_all(segment, run.places.clone().map(|place| stored.blocks.at(place).1));
    }
    Some(Stored { blocks: Arc::new(blocks), columns: stored.columns.clone() })
}

/// Adds the NUMA node of the disk of all segments.
fn with_node(mut sites: Vec<Vec<Site>>, stored: &[Option<Stored>], node: Option<u32>) -> Vec<Vec<Site>> {
    let Some(node) = node else { return sites };
    for (sites, stored) in sites.iter_mut().zip(stored) {
        let segments = stored.as_ref().map_or(0, |stored| stored.blocks.segments().len());
        sites.resize(segments, Site::default());
        sites.iter_mut().for_each(|site| site.node = Some(node));
    }
    sites
}

/// The data that a program reads.
pub(crate) struct Read {
    /// The stored blocks of each source.
    pub stored: Vec<Option<Stored>>,
    /// The preferred devices of each source's segments, if there are any.
    pub sites: Vec<Vec<Site>>,
    /// A description of the fresh and deleted rows, which no device reads.
    pub changed: Option<String>,
}

/// Places a program. `threads` is the number of threads that the CPU would use.
pub(crate) fn place(placing: &Placing, execution: &Execution, read: Read, threads: usize) -> Placement {
    let Read { stored, sites, changed } = read;
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
        // Without a requirement, a missing GPU is not reported by each query.
        Err(_) if !is_required => return Placement::default(),
        Err(why) => return Placement::refused(why),
    };
    let sites = with_node(sites, &stored, placing.known.storage_node());
    let hints =
        Arc::new(Hints { stored, memory: placing.memory, residence: placing.residence, path: placing.path, sites });
    let mut refused: Option<(&Arc<dyn Backend>, String)> = None;
    let mut best: Option<Candidate> = None;
    let mut takers: Vec<Arc<dyn Backend>> = Vec::new();
    for backend in all.iter().filter(|backend| placing.names.has(backend.name())) {
        let prepared = match &changed {
            Some(rows) => Err(Refusal(rows.clone())),
            None => backend.prepare(execution, &hints),
        };
        match prepared {
            Ok(prepared) => {
                let estimate = prepared.estimate();
                let kept_bytes = kept_bytes(&**backend, &hints);
                takers.push(Arc::clone(backend));
                let placed = Placed { backend: Arc::clone(backend), prepared, hints: Arc::clone(&hints) };
                let candidate = Candidate { placed, estimate, kept_bytes };
                // Ties go to the first, since devices are ordered.
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
        (Some(best), _) => {
            let subject = Subject { placing, execution, reads, threads };
            let spread = subject.spread(takers, &hints);
            subject.weigh(best, spread)
        }
        (None, Some((_, why))) if is_required => Placement::refused(why),
        (None, Some((backend, why))) => {
            // If it would not have been used anyway, this is no fallback.
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

/// The program to be placed.
struct Subject<'a> {
    placing: &'a Placing,
    execution: &'a Execution,
    /// Stored bytes.
    reads: u64,
    /// The number of threads that the CPU would use.
    threads: usize,
}

/// Several devices, each with a part of the program; or the reason why not, if `gpu.spread` is
/// 'on'.
enum Together {
    Placed(Placed, Cost),
    Not(Option<String>),
}

impl Subject<'_> {
    /// Returns the cost on a device.
    fn cost(&self, candidate: &Candidate, rates: &Rates) -> Cost {
        let Candidate { estimate, kept_bytes, .. } = candidate;
        // Bytes that stay are moved once for all queries, so they are not charged to this one.
        let near = Estimate { resident_bytes: candidate.near_bytes().min(estimate.read_bytes), ..*estimate };
        let (pipelines, cpu_rate) = (self.execution.pipelines(), self.placing.known.cpu_rate());
        let cost = cost::of(&near, rates, pipelines, self.reads, cpu_rate, self.threads);
        Cost { estimate: *estimate, kept_bytes: *kept_bytes, ..cost }
    }

    /// Divides the program among all devices that can run it.
    fn spread(&self, takers: Vec<Arc<dyn Backend>>, hints: &Arc<Hints>) -> Together {
        if self.placing.spread == GpuSpread::Off || takers.len() < 2 {
            return Together::Not(None);
        }
        let wants_to_know = self.placing.spread == GpuSpread::On;
        let not = |why: String| Together::Not(wants_to_know.then_some(why));
        let spread = Spread::new(takers);
        let kept = kept_bytes(&spread, hints);
        let program = match spread.divide(self.execution, hints) {
            Ok(program) if program.shares().len() > 1 => program,
            Ok(program) => {
                let only = program.shares().first().map_or("one device", |share| share.backend().name());
                return not(format!("all that is to be divided is {only}'s"));
            }
            Err(Refusal(reason)) => return not(format!("several devices cannot run {reason}")),
        };
        let missing = |estimate: &Estimate| estimate.read_bytes.saturating_sub(estimate.resident_bytes);
        let all = program.estimate();
        let cost = |share: &ShareProgram| {
            let estimate = share.estimate();
            // The bytes that will stay are divided in proportion to the bytes that each device
            // lacks.
            let part = missing(&estimate) as f64 / missing(&all).max(1) as f64;
            let kept_bytes = (kept as f64 * part) as u64;
            let placed = Placed::new(share.backend(), share.prepared(), hints);
            Ok(self.cost(&Candidate { placed, estimate, kept_bytes }, &share.backend().rates()?))
        };
        let each = program.shares().iter().map(cost).collect::<onehop_pipeline::Result<Vec<Cost>>>();
        match each {
            Ok(each) => {
                let cost = cost::together(&each, &all);
                // Devices without a part are not reported.
                let parts = program.shares().iter().map(|share| Arc::clone(share.backend())).collect();
                let backend: Arc<dyn Backend> = Arc::new(Spread::new(parts));
                let prepared: Arc<dyn Prepared> = Arc::new(program);
                Together::Placed(Placed::new(&backend, &prepared, hints), cost)
            }
            Err(e) => not(e.to_string()),
        }
    }

    /// Chooses one device, several or the CPU, by estimated time.
    fn weigh(&self, best: Candidate, together: Together) -> Placement {
        let rates = match best.placed.backend.rates() {
            Ok(rates) => rates,
            // A device that cannot be measured would not return an answer either.
            Err(e) => return Placement::refused(e.to_string()),
        };
        let alone = self.cost(&best, &rates);
        let is_wanted = |cost: &Cost| self.placing.spread == GpuSpread::On || cost.device < alone.device;
        let (placed, cost, not) = match together {
            Together::Placed(placed, cost) if is_wanted(&cost) => (placed, cost, None),
            Together::Placed(..) => (best.placed, alone, None),
            Together::Not(why) => (best.placed, alone, why),
        };
        let not = not.map_or_else(String::new, |why| format!("; not on several: {why}"));
        if self.placing.mode == GpuMode::Require {
            let why = format!("gpu.mode = 'require'{not}");
            return Placement { device: Some(placed), why: Some(why), cost: Some(cost), refused: None };
        }
        let is_faster = cost.device < cost.cpu;
        let device = placed.backend.name();
        let why = match is_faster {
            true => format!("estimated {} on {device}, {} on the CPU{not}", time(cost.device), time(cost.cpu)),
            false => format!("estimated {} on the CPU, {} on {device}{not}", time(cost.cpu), time(cost.device)),
        };
        Placement { device: is_faster.then_some(placed), why: Some(why), cost: Some(cost), refused: None }
    }
}

/// Reports a device that is not used although it should have been.
///
/// # Errors
/// [`ErrorKind::Unmet`] if a device is required and `exec.fallback` is 'error'.
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

/// Returns the error of a session that requires a device.
fn unmet(why: &str) -> Error {
    Error::new(ErrorKind::Unmet, format!("a GPU is required, and {why}"))
        .with_hint("SET gpu.mode = 'auto' or exec.fallback = 'warn' lets the CPU do what the GPU cannot")
}

impl Placed {
    fn new(backend: &Arc<dyn Backend>, prepared: &Arc<dyn Prepared>, hints: &Arc<Hints>) -> Self {
        Self { backend: Arc::clone(backend), prepared: Arc::clone(prepared), hints: Arc::clone(hints) }
    }

    /// Returns the copy rate of one of the devices of several.
    pub fn copy_rate_of(&self, name: &str) -> Option<f64> {
        let part = self.backend.parts().iter().find(|part| part.name() == name)?;
        part.rates().ok().map(|rates| rates.copy_bytes_per_sec)
    }

    /// Returns the names of the devices.
    pub fn names(&self) -> Vec<&str> {
        match self.backend.parts() {
            [] => vec![self.backend.name()],
            parts => parts.iter().map(|part| part.name()).collect(),
        }
    }

    /// Returns the rate at which the device copies within its memory, in bytes per second, if it
    /// can be measured. No kernel is faster.
    pub fn copy_rate(&self) -> Option<f64> {
        self.backend.rates().ok().map(|Rates { copy_bytes_per_sec, .. }| copy_bytes_per_sec)
    }
}
