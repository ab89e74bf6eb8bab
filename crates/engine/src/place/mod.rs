//! Where a fused subtree runs: on the CPU, or on a device that was registered with the database.
//!
//! 1. With `gpu.mode = 'off'`, or where no devices were registered, nothing is asked.
//! 2. What reads fewer stored bytes than `gpu.min_bytes`, or so few that no device could gain anything, stays on the CPU:
//!    no device is looked for on its account.
//! 3. The first query does not wait until devices are found and measured, which may take seconds, if the CPU is done before:
//!    they are looked for beside it.
//! 4. Each device that may be used looks at the program. One that has no code for it says why.
//! 5. Of the others the one is taken that has most of the columns in its memory; or all of them together ([`spread`]), each with a
//!    part of what the last pipeline reads, if that is estimated to take less time, or `gpu.spread` is 'on'. They run the program
//!    if `gpu.mode` is 'require', or if they are estimated to take less time than the CPU.
//!
//! [`spread`]: onehop_pipeline::spread
//!
//! That something is cheaper on the CPU is no fallback and nobody is told but EXPLAIN. That a device which would have been
//! used refuses is one, and is treated as `exec.fallback` says: one that would have been used had it not refused.

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

/// With `gpu.min_bytes = 'auto'`: before a device has begun, the CPU is done with these.
const LEAST_BYTES: u64 = 1 << 20;

/// Who is done so soon does not wait for devices that nobody has looked for yet.
const WORTH_WAITING: Duration = Duration::from_secs(2);

/// What all sessions of a database know of devices.
#[derive(Debug, Default)]
pub(crate) struct Known {
    devices: OnceLock<Arc<dyn Devices>>,
    /// Who is looking for them, or has looked.
    looking: Mutex<Option<JoinHandle<()>>>,
    /// Stored bytes a second that a thread of a pipeline deals with.
    cpu_rate: OnceLock<f64>,
    /// The directory that segments are in, and the NUMA node of its disk, once somebody has asked.
    storage: OnceLock<PathBuf>,
    storage_node: OnceLock<Option<u32>>,
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
        let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if looking.is_some() {
            return;
        }
        let devices = Arc::clone(devices);
        let look = move || {
            // Who wants to know what is wrong asks again.
            let all = devices.all().map_or(&[][..], |all| all);
            all.iter().for_each(|backend| drop(backend.rates()));
        };
        // Without a thread it is tried again by the next query.
        *looking = std::thread::Builder::new().name("onehop-devices".into()).spawn(look).ok();
    }

    /// Says where segments are, if that is a directory of this machine.
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
            // What it has found out is nobody's any more.
            let _ = thread.join();
        }
    }
}

/// What of a session's settings and its database decides where something runs.
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
    /// Whether anything might run on a device: there are some, or it is required.
    pub fn may_use_devices(&self) -> bool {
        let is_likely = || self.known.devices().is_some_and(|devices| devices.are_likely());
        self.mode == GpuMode::Require || self.mode == GpuMode::Auto && is_likely()
    }

    /// Whether both are of one database and of the same settings.
    pub fn places_as(&self, other: &Self) -> bool {
        let Self { known, mode, names, spread, memory, residence, path, min_bytes } = self;
        Arc::ptr_eq(known, &other.known)
            && (mode, names, spread, memory) == (&other.mode, &other.names, &other.spread, &other.memory)
            && (residence, path, min_bytes) == (&other.residence, &other.path, &other.min_bytes)
    }

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
#[derive(Clone)]
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
fn kept_bytes(backend: &dyn Backend, hints: &Hints) -> u64 {
    let Some(residency) = backend.residency() else { return 0 };
    let missing = |(stored, sites): (&Option<Stored>, &Vec<Site>)| {
        let here = stored.as_ref().and_then(|stored| belonging(stored, sites, backend));
        here.map_or(0, |stored| stored.bytes().saturating_sub(residency.resident_bytes(&stored)))
    };
    hints.stored.iter().zip(&hints.sites).map(missing).sum()
}

/// Those segments of a source that belong on a device.
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

/// Says which node the disk of all segments is attached to.
fn with_node(mut sites: Vec<Vec<Site>>, stored: &[Option<Stored>], node: Option<u32>) -> Vec<Vec<Site>> {
    let Some(node) = node else { return sites };
    for (sites, stored) in sites.iter_mut().zip(stored) {
        let segments = stored.as_ref().map_or(0, |stored| stored.blocks.segments().len());
        sites.resize(segments, Site::default());
        sites.iter_mut().for_each(|site| site.node = Some(node));
    }
    sites
}

/// What a program reads.
pub(crate) struct Read {
    /// Of each source, where it is stored.
    pub stored: Vec<Option<Stored>>,
    /// Of each source, where its segments belong, if anybody said so.
    pub sites: Vec<Vec<Site>>,
    /// What of it is not as segments have it: no device reads that.
    pub changed: Option<String>,
}

/// Decides. `threads` is how many threads the CPU would use.
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
        // Nobody who has no GPU wants to be told so by every query.
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
        (Some(best), _) => {
            let subject = Subject { placing, execution, reads, threads };
            let spread = subject.spread(takers, &hints);
            subject.weigh(best, spread)
        }
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

/// What is placed.
struct Subject<'a> {
    placing: &'a Placing,
    execution: &'a Execution,
    /// Stored bytes.
    reads: u64,
    /// That the CPU would use.
    threads: usize,
}

/// Several devices, each with a part of the program; or why they have none, if somebody wants to know.
enum Together {
    Placed(Placed, Cost),
    Not(Option<String>),
}

impl Subject<'_> {
    /// What a device will take.
    fn cost(&self, candidate: &Candidate, rates: &Rates) -> Cost {
        let Candidate { estimate, kept_bytes, .. } = candidate;
        // What stays is moved once for all queries, and is in no query's account.
        let near = Estimate { resident_bytes: candidate.near_bytes().min(estimate.read_bytes), ..*estimate };
        let (pipelines, cpu_rate) = (self.execution.pipelines(), self.placing.known.cpu_rate());
        let cost = cost::of(&near, rates, pipelines, self.reads, cpu_rate, self.threads);
        Cost { estimate: *estimate, kept_bytes: *kept_bytes, ..cost }
    }

    /// All devices that take it, together.
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
            // What is going to stay is a part of what each of them lacks.
            let part = missing(&estimate) as f64 / missing(&all).max(1) as f64;
            let kept_bytes = (kept as f64 * part) as u64;
            let placed = Placed::new(share.backend(), share.prepared(), hints);
            Ok(self.cost(&Candidate { placed, estimate, kept_bytes }, &share.backend().rates()?))
        };
        let each = program.shares().iter().map(cost).collect::<onehop_pipeline::Result<Vec<Cost>>>();
        match each {
            Ok(each) => {
                let cost = cost::together(&each, &all);
                // Those that have no part are not told of.
                let parts = program.shares().iter().map(|share| Arc::clone(share.backend())).collect();
                let backend: Arc<dyn Backend> = Arc::new(Spread::new(parts));
                let prepared: Arc<dyn Prepared> = Arc::new(program);
                Together::Placed(Placed::new(&backend, &prepared, hints), cost)
            }
            Err(e) => not(e.to_string()),
        }
    }

    /// One device, several or the CPU, by time.
    fn weigh(&self, best: Candidate, together: Together) -> Placement {
        let rates = match best.placed.backend.rates() {
            Ok(rates) => rates,
            // Who cannot even measure it would not get an answer from it.
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
    fn new(backend: &Arc<dyn Backend>, prepared: &Arc<dyn Prepared>, hints: &Arc<Hints>) -> Self {
        Self { backend: Arc::clone(backend), prepared: Arc::clone(prepared), hints: Arc::clone(hints) }
    }

    /// The same of one of the devices that it is made of.
    pub fn copy_rate_of(&self, name: &str) -> Option<f64> {
        let part = self.backend.parts().iter().find(|part| part.name() == name)?;
        part.rates().ok().map(|rates| rates.copy_bytes_per_sec)
    }

    /// What the devices are called.
    pub fn names(&self) -> Vec<&str> {
        match self.backend.parts() {
            [] => vec![self.backend.name()],
            parts => parts.iter().map(|part| part.name()).collect(),
        }
    }

    /// Bytes a second that the device copies in its memory, if it can be measured: no kernel is faster.
    pub fn copy_rate(&self) -> Option<f64> {
        self.backend.rates().ok().map(|Rates { copy_bytes_per_sec, .. }| copy_bytes_per_sec)
    }
}
