//! Several devices as one. Each device runs the program over a part of the last pipeline's source,
//! and the CPU merges their answers.
//!
//! ```text
//!              ┌─ share of the last source, other sources whole ─► device 0 ─ answer ─┐
//! program ─────┼─ share ...                                      ─► device 1 ─ ...    ─┼─► merge
//! (divide.rs)  └─ ...                                                                  ─┘
//! ```
//! - The segments of the last pipeline's source are divided. Each segment goes to one device as a
//!   whole ([`divide`]). Every device with a share builds the join tables, once, from all of their
//!   rows.
//! - A [`Spread`] knows nothing about its devices: any [`Backend`] can be one of its parts. Each
//!   part refuses, runs and fails independently.
//! - The answer is that of a single device: the same rows, and the same errors of data. Such errors
//!   concern single rows, and do not depend on the other rows that are read. If several devices
//!   report an error of data, that of the first device is returned.
//! - If one part fails, or the client no longer wants the answer, all other parts are stopped
//!   before the call returns.
//! - Sources that all devices read count once for rows and blocks. For bytes they count as often as
//!   they were moved.

mod divide;
mod facts;
mod merge;
mod residence;
mod run;
mod share;
mod topology;

use std::sync::Arc;

use self::divide::{Pace, Unit, divide};
use self::merge::{Merge, parted};
use self::share::{Share, Told};
pub use self::topology::Topology;
use crate::backend::{Backend, Estimate, Hints, Prepared, Rates, Refusal, Residency, Site, Stored};
use crate::cpu::Execution;
use crate::ir::Program;
use crate::{Result, Source};

/// Devices, each with its morsels.
type Shares<'a> = Vec<(&'a Arc<dyn Backend>, Vec<u32>)>;

/// Fraction of the fastest rate from which a device counts as the fastest.
const ALIKE: f64 = 0.8;

/// Several devices that run programs together.
#[derive(Debug)]
pub struct Spread {
    name: String,
    description: String,
    devices: Vec<Arc<dyn Backend>>,
}

/// A program that several devices run.
#[derive(Debug)]
pub struct SpreadProgram {
    shares: Vec<ShareProgram>,
    merge: Merge,
    /// Rows of all pipelines' sources, each read once.
    all_rows: u64,
    /// Number of the program's source for each source of the shares' programs.
    sources: Vec<usize>,
    /// The one of them that is divided.
    divided: usize,
}

/// The part of a program that one device runs.
#[derive(Debug)]
pub struct ShareProgram {
    backend: Arc<dyn Backend>,
    prepared: Arc<dyn Prepared>,
    /// Its share of the last pipeline's source.
    share: Share,
}

impl ShareProgram {
    /// Returns the device.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Returns the program that it runs.
    pub fn prepared(&self) -> &Arc<dyn Prepared> {
        &self.prepared
    }

    /// Returns the estimated cost of its part.
    pub fn estimate(&self) -> Estimate {
        self.prepared.estimate()
    }

    /// Returns the rows that only this device reads.
    pub fn rows(&self) -> u64 {
        self.share.all_rows()
    }
}

impl Spread {
    /// Creates a spread over devices. Their order decides between otherwise equal devices.
    pub fn new(devices: Vec<Arc<dyn Backend>>) -> Self {
        let name = devices.iter().map(|device| device.name()).collect::<Vec<_>>().join(",");
        let mut kinds: Vec<(&str, usize)> = Vec::new();
        for device in &devices {
            match kinds.iter_mut().find(|(kind, _)| *kind == device.description()) {
                Some((_, count)) => *count += 1,
                None => kinds.push((device.description(), 1)),
            }
        }
        let kind =
            |(kind, count): &(&str, usize)| if *count > 1 { format!("{count} x {kind}") } else { (*kind).into() };
        let description = kinds.iter().map(kind).collect::<Vec<_>>().join(", ");
        Self { name, description, devices }
    }

    /// Prepares a program as [`Backend::prepare`] does, and returns each device's part.
    ///
    /// # Errors
    /// The reason why the devices cannot run it together, or why the first refusing device cannot
    /// run its part.
    pub fn divide(&self, execution: &Execution, hints: &Hints) -> std::result::Result<SpreadProgram, Refusal> {
        let (program, merge) = parted(execution.program(), execution.shapes())?;
        let Some(number) = program.pipelines.last().map(|last| last.source) else {
            return Err(Refusal("a program without pipelines".into()));
        };
        let source = &execution.sources()[number];
        let shares =
            self.shares(source, stored_of(hints, number), hints.sites.get(number).map_or(&[], Vec::as_slice))?;
        // Another pipeline with the same source reads all of it.
        let is_shared = program.pipelines.iter().rev().skip(1).any(|pipeline| pipeline.source == number);
        let place = if is_shared { execution.sources().len() } else { number };
        let program = if is_shared { reading(&program, place) } else { program };
        let mut programs = Vec::with_capacity(shares.len());
        for (nth, (backend, morsels)) in shares.into_iter().enumerate() {
            let share = Share::new(source, morsels, Told::Yes);
            let told = if nth == 0 { Told::Yes } else { Told::No };
            let (execution, hints) = with_share(execution, hints, &program, (number, place), &share, told);
            let execution = execution.map_err(|e| Refusal(e.to_string()))?;
            let prepared = backend.prepare(&execution, &hints)?;
            programs.push(ShareProgram { backend: Arc::clone(backend), prepared, share });
        }
        let all_rows = |pipeline: &crate::ir::Pipeline| execution.sources()[pipeline.source].all_rows();
        let sources = (0..execution.sources().len()).chain(is_shared.then_some(number)).collect();
        let all_rows = execution.program().pipelines.iter().map(all_rows).sum();
        Ok(SpreadProgram { shares: programs, merge, all_rows, sources, divided: place })
    }

    /// Returns the devices that have something to read, each with its morsels; the first device if
    /// there is nothing to read.
    fn shares(
        &self,
        source: &Arc<dyn Source>,
        stored: Option<&Stored>,
        sites: &[Site],
    ) -> std::result::Result<Shares<'_>, Refusal> {
        let rates = self.devices.iter().map(|device| device.rates()).collect::<Result<Vec<Rates>>>();
        let rates = rates.map_err(|e| Refusal(e.to_string()))?;
        let read = levelled(rates.iter().map(|rates| rates.copy_bytes_per_sec));
        let moved = levelled(rates.iter().map(|rates| rates.to_device_bytes_per_sec));
        let paces: Vec<Pace> = read.zip(moved).map(|(read, moved)| Pace { read, moved }).collect();
        let (units, bytes) = match stored {
            Some(stored) => (self.units(&**source, stored, sites), stored.bytes()),
            None => (morsels(&**source), 8 * source.all_rows()),
        };
        let row_bytes = bytes as f64 / source.all_rows().max(1) as f64;
        let shares = divide(&units, &paces, row_bytes).into_iter();
        let mut shares: Vec<_> = self.devices.iter().zip(shares).filter(|(_, share)| !share.is_empty()).collect();
        match self.devices.first() {
            Some(first) if shares.is_empty() => shares.push((first, Vec::new())),
            Some(_) => {}
            None => return Err(Refusal("anything: there is no device".into())),
        }
        Ok(shares)
    }

    /// Returns the segments of a source.
    fn units(&self, source: &dyn Source, stored: &Stored, sites: &[Site]) -> Vec<Unit> {
        let mut units: Vec<Unit> = vec![Unit::default(); stored.blocks.segments().len()];
        for run in stored.blocks.runs() {
            let unit = &mut units[run.segment];
            unit.rows += run.places.clone().map(|morsel| source.rows(morsel) as u64).sum::<u64>();
            unit.morsels.push(run.places.clone());
        }
        let residence = Resident::of(&self.devices, stored);
        for (number, unit) in units.iter_mut().enumerate() {
            unit.resident = residence.parts(number, &unit.morsels);
            let Some(site) = sites.get(number) else { continue };
            if !site.devices.is_empty() {
                unit.allowed =
                    self.devices.iter().map(|device| site.devices.iter().any(|n| n == device.name())).collect();
            }
            if let Some(node) = site.node {
                // A device of unknown node counts as near.
                unit.near = self.devices.iter().map(|device| device.node().is_none_or(|of| of == node)).collect();
            }
        }
        units
    }
}

/// Returns the seconds per byte of several devices. Measured rates of equal devices differ
/// slightly. Rates near the fastest count as the fastest, so that every process divides work in the
/// same way.
fn levelled(rates: impl Iterator<Item = f64> + Clone) -> impl Iterator<Item = f64> {
    let fastest = rates.clone().fold(1.0, f64::max);
    rates.map(move |rate| 1.0 / if rate < fastest * ALIKE { rate.max(1.0) } else { fastest })
}

/// Returns the storage of a source's rows.
fn stored_of(hints: &Hints, source: usize) -> Option<&Stored> {
    hints.stored.get(source).and_then(Option::as_ref)
}

/// Returns rows that are in memory only, one unit per morsel.
fn morsels(source: &dyn Source) -> Vec<Unit> {
    (0..source.morsels()).map(|morsel| Unit::of(morsel, source.rows(morsel) as u64)).collect()
}

/// Returns the same program with another source for the last pipeline.
fn reading(program: &Arc<Program>, source: usize) -> Arc<Program> {
    let mut program = Program::clone(program);
    if let Some(last) = program.pipelines.last_mut() {
        last.source = source;
    }
    Arc::new(program)
}

/// Returns the execution of a device with a share of a source, which its program finds at another
/// index.
fn with_share(
    execution: &Execution,
    hints: &Hints,
    program: &Arc<Program>,
    (source, place): (usize, usize),
    share: &Share,
    told: Told,
) -> (Result<Execution>, Hints) {
    let replica = |source: &Arc<dyn Source>| match told {
        Told::Yes => Arc::clone(source),
        Told::No => Arc::new(Share::whole(source, told)) as Arc<dyn Source>,
    };
    let mut sources: Vec<Arc<dyn Source>> = execution.sources().iter().map(replica).collect();
    let mut stored = hints.stored.clone();
    stored.resize(execution.sources().len(), None);
    let (of, of_share) =
        (Arc::new(share.clone()) as Arc<dyn Source>, stored_of(hints, source).map(|all| share.stored(all)));
    match place < sources.len() {
        true => (sources[place], stored[place]) = (of, of_share),
        false => {
            sources.push(of);
            stored.push(of_share);
        }
    }
    let hints = Hints { stored, sites: Vec::new(), ..hints.clone() };
    (execution.of_parts(program, sources), hints)
}

/// The resident part of a source's segments on each device.
struct Resident<'a> {
    stored: &'a Stored,
    /// For each device with a resident part: its residency, and true if all of the source is
    /// resident.
    devices: Vec<Option<(&'a dyn Residency, bool)>>,
}

impl<'a> Resident<'a> {
    fn of(devices: &'a [Arc<dyn Backend>], stored: &'a Stored) -> Self {
        let all = stored.bytes();
        let of = |device: &'a Arc<dyn Backend>| {
            let residency = device.residency()?;
            // If the whole source is resident, segments need not be checked one by one.
            let bytes = residency.resident_bytes(stored);
            (bytes > 0).then_some((residency, bytes == all))
        };
        Self { stored, devices: devices.iter().map(of).collect() }
    }

    /// Returns, for each device, the resident fraction of a segment's blocks.
    fn parts(&self, segment: usize, morsels: &[std::ops::Range<usize>]) -> Vec<f64> {
        if self.devices.iter().all(Option::is_none) {
            return Vec::new();
        }
        let of = self.stored.part(morsels.iter().map(|run| (segment, run.clone())));
        let bytes = of.bytes().max(1) as f64;
        let part = |device: &Option<(&dyn Residency, bool)>| match device {
            None => 0.0,
            Some((_, true)) => 1.0,
            Some((residency, false)) => residency.resident_bytes(&of) as f64 / bytes,
        };
        self.devices.iter().map(part).collect()
    }
}

impl SpreadProgram {
    /// Returns the part of each device that has something to read.
    pub fn shares(&self) -> &[ShareProgram] {
        &self.shares
    }
}

impl Backend for Spread {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        &self.description
    }

    /// Returns the combined rates of all devices.
    fn rates(&self) -> Result<Rates> {
        let mut all: Option<Rates> = None;
        for device in &self.devices {
            let rates = device.rates()?;
            all = Some(all.map_or(rates, |all| Rates {
                copy_bytes_per_sec: all.copy_bytes_per_sec + rates.copy_bytes_per_sec,
                to_device_bytes_per_sec: all.to_device_bytes_per_sec + rates.to_device_bytes_per_sec,
                to_host_bytes_per_sec: all.to_host_bytes_per_sec + rates.to_host_bytes_per_sec,
                launch: all.launch.max(rates.launch),
                compile: all.compile.max(rates.compile),
            }));
        }
        all.ok_or_else(|| crate::Error::device(&self.name, "there is no device"))
    }

    fn is_measured(&self) -> bool {
        self.devices.iter().all(|device| device.is_measured())
    }

    fn prepare(&self, execution: &Execution, hints: &Hints) -> std::result::Result<Arc<dyn Prepared>, Refusal> {
        Ok(Arc::new(self.divide(execution, hints)?))
    }

    fn residency(&self) -> Option<&dyn Residency> {
        self.devices.iter().any(|device| device.residency().is_some()).then_some(self)
    }

    fn parts(&self) -> &[Arc<dyn Backend>] {
        &self.devices
    }
}
