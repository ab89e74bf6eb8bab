//! NVIDIA GPUs as devices that run programs ([`onehop_pipeline::backend`]): combines the generation
//! and execution of code ([`crate::fused`]) with the columns kept on the device
//! ([`crate::resident`]).
//!
//! Nothing is loaded before devices are requested. A machine without a driver has no devices, and
//! an error with the reason.

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use onehop_io::Hop;
use onehop_pipeline::arrays::Arrays;
use onehop_pipeline::backend::{
    Backend, Compiled, Control, DevicePath, DeviceRan, Devices, Estimate, Hints, Loaded, MemoryLimit, Prepared, Rates,
    Refusal, Residence, Residency, Resident, SegmentKey, Stored, Streamed, Take,
};
use onehop_pipeline::cpu::{Execution, TableFacts};
use onehop_pipeline::fit::{Fit, Next, Sums};
use onehop_pipeline::ir::Program;
use onehop_pipeline::spread::Topology;
use onehop_pipeline::{Error as PipelineError, Result as PipelineResult, Source};

use crate::arrays::{Kept, Key};
use crate::fused::{Error as FusedError, Executor, Options, PipelineFacts, Result as FusedResult, RunMemory, WhenFull};
use crate::kernels::copy;
use crate::kernels::decode::Decoder;
use crate::resident::{Assembled, Columns, ResidentImages};
use crate::{Context, DeviceBuf, Driver, Error, Nvrtc};

/// Bytes of the copy within the device that measures its rate.
const MEASURED_BYTES: usize = 256 << 20;
/// Bytes of the transfers over the bus that measure its rates.
const MOVED_BYTES: usize = 64 << 20;
/// Number of runs. The best one counts.
const RUNS: usize = 5;
/// Assumed time to compile a kernel, before one was compiled.
const COMPILE_GUESS: Duration = Duration::from_millis(300);
/// Divisor for the part of the memory that is left to runs: tables, groups, columns that do not
/// stay.
const FOR_RUNS: u64 = 8;

/// GPUs of this machine that this process may use, searched for on first request.
#[derive(Debug)]
pub struct CudaDevices {
    /// Folder of cached kernels.
    folder: Option<PathBuf>,
    ending: Ending,
    found: OnceLock<Result<Vec<Arc<dyn Backend>>, String>>,
    /// Command line of the program that runs functions.
    helper: OnceLock<Vec<OsString>>,
}

/// Manner in which the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By `exit` of the C library, which runs the driver's exit handlers.
    WithHandlers,
    /// By `_exit`: threads may be anywhere.
    AtOnce,
}

/// Returns the GPUs, to be registered with a database. Compiled kernels are cached in `folder`, if
/// there is one.
pub fn devices(folder: Option<PathBuf>, ending: Ending) -> Arc<CudaDevices> {
    Arc::new(CudaDevices { folder, ending, found: OnceLock::new(), helper: OnceLock::new() })
}

impl CudaDevices {
    /// Wraps existing contexts, such as a fake one.
    pub fn of_contexts(contexts: &[Arc<Context>], nvrtc: &Arc<Nvrtc>, options: Options) -> Arc<Self> {
        let devices = contexts.iter().map(|context| Arc::new(CudaBackend::new(context, nvrtc, None, options)) as _);
        let found = OnceLock::from(Ok(devices.collect()));
        Arc::new(Self { folder: None, ending: Ending::WithHandlers, found, helper: OnceLock::new() })
    }

    /// Sets the command line of the program that runs user-defined functions: a program that serves
    /// [`crate::functions`], and its arguments. Only the first call has an effect.
    pub fn set_helper(&self, words: Vec<OsString>) {
        let _ = self.helper.set(words);
    }

    fn look(&self) -> Result<Vec<Arc<dyn Backend>>, String> {
        let said = |e: Error| match e.cure() {
            Some(cure) => format!("{e}; {cure}"),
            None => e.to_string(),
        };
        let found = Driver::load().and_then(|driver| driver.devices()).map_err(said)?;
        if found.is_empty() {
            return Err("the driver knows no GPU that this process may use".into());
        }
        let nvrtc = Nvrtc::load().map_err(said)?;
        let mut backends: Vec<Arc<dyn Backend>> = Vec::with_capacity(found.len());
        for device in &found {
            let context = device.context().map_err(said)?;
            backends.push(Arc::new(CudaBackend::new(&context, &nvrtc, self.folder.clone(), Options::default())));
        }
        Ok(backends)
    }
}

impl Devices for CudaDevices {
    fn all(&self) -> Result<&[Arc<dyn Backend>], String> {
        self.found.get_or_init(|| self.look()).as_ref().map(Vec::as_slice).map_err(Clone::clone)
    }

    fn found(&self) -> &[Arc<dyn Backend>] {
        match self.found.get() {
            Some(Ok(found)) => found,
            _ => &[],
        }
    }

    fn are_waited_for(&self) -> bool {
        self.ending == Ending::WithHandlers
    }

    fn helper(&self) -> Option<Vec<OsString>> {
        self.helper.get().cloned()
    }

    fn are_ready(&self) -> bool {
        self.found.get().is_some_and(|found| match found {
            Ok(found) => found.iter().all(|backend| backend.is_measured()),
            Err(_) => true,
        })
    }

    fn are_likely(&self) -> bool {
        match self.found.get() {
            Some(found) => found.as_ref().is_ok_and(|found| !found.is_empty()),
            // Device nodes of the driver, which exist without loading it.
            None => ["/dev/nvidiactl", "/dev/dxg"].iter().any(|node| Path::new(node).exists()),
        }
    }
}

/// A GPU.
#[derive(Debug)]
pub struct CudaBackend(Arc<Gpu>);

#[derive(Debug)]
pub(crate) struct Gpu {
    pub name: String,
    description: String,
    memory_bytes: u64,
    node: Option<u32>,
    pub executor: Executor,
    pub nvrtc: Arc<Nvrtc>,
    pub columns: Columns,
    pub assembled: Assembled,
    /// Columns in the array layout of other programs.
    pub arrays: Kept,
    /// Number of the next array from host memory.
    pub uploads: AtomicUsize,
    /// Decoder for arrays, loaded on first use.
    pub decoder: Mutex<Option<Arc<Decoder>>>,
    rates: OnceLock<PipelineResult<Rates>>,
    /// Hashes of compiled sources of pipelines, generated without facts about their columns.
    compiled: Mutex<HashSet<u64>>,
    looked_at: Mutex<LookedAt>,
}

/// Cached result of the placement check for prepared programs, by address: hashes of their sources.
/// It answers a repeated check of the same program without generating code.
#[derive(Debug, Default)]
struct LookedAt(HashMap<usize, (Weak<Program>, Arc<[u64]>)>);

impl LookedAt {
    /// Number of entries at which those of dropped programs are removed.
    const MOST: usize = 256;

    fn find(&self, program: &Arc<Program>) -> Option<Arc<[u64]>> {
        let (known, texts) = self.0.get(&(Arc::as_ptr(program) as usize))?;
        // The weak reference keeps the address from being reused by another program.
        (known.as_ptr() == Arc::as_ptr(program)).then(|| Arc::clone(texts))
    }

    fn keep(&mut self, program: &Arc<Program>, texts: &Arc<[u64]>) {
        if self.0.len() >= Self::MOST {
            self.0.retain(|_, (program, _)| program.strong_count() > 0);
        }
        if self.0.len() < Self::MOST {
            self.0.insert(Arc::as_ptr(program) as usize, (Arc::downgrade(program), Arc::clone(texts)));
        }
    }
}

impl CudaBackend {
    fn new(context: &Arc<Context>, nvrtc: &Arc<Nvrtc>, folder: Option<PathBuf>, options: Options) -> Self {
        let device = context.device();
        Self(Arc::new(Gpu {
            name: format!("cuda:{}", device.ordinal),
            description: device.name.clone(),
            memory_bytes: device.memory_bytes,
            node: Topology::of_system().of_pci(&device.pci),
            executor: Executor::new(context, nvrtc, folder, options),
            nvrtc: Arc::clone(nvrtc),
            columns: Columns::default(),
            assembled: Assembled::default(),
            arrays: Kept::default(),
            uploads: AtomicUsize::default(),
            decoder: Mutex::default(),
            rates: OnceLock::new(),
            compiled: Mutex::default(),
            looked_at: Mutex::default(),
        }))
    }
}

impl Gpu {
    /// Converts an error to that of the pipeline.
    pub fn error(&self, error: FusedError) -> PipelineError {
        match error {
            FusedError::Refused(what) => PipelineError::Unsupported(what),
            FusedError::Pipeline(e) => e,
            FusedError::Device { attempt, source } => self.device_error(&attempt, &source),
        }
    }

    pub fn device_error(&self, attempt: &str, source: &Error) -> PipelineError {
        if !source.is_out_of_memory() {
            return PipelineError::device(&self.name, format!("{attempt}: {source}"));
        }
        let taken = self.columns.bytes() + self.arrays.bytes();
        let available = self.memory_bytes.saturating_sub(taken) as usize;
        PipelineError::Memory { what: attempt.into(), needed: available.saturating_add(1), available }
    }

    /// Returns the bytes that columns and arrays may take.
    pub fn limit_of_all(&self, memory: MemoryLimit) -> u64 {
        let all = memory.bytes_of(self.memory_bytes);
        all - all / FOR_RUNS
    }

    /// Returns the bytes that columns may take beside arrays.
    pub fn limit(&self, memory: MemoryLimit) -> u64 {
        self.limit_of_all(memory).saturating_sub(self.arrays.bytes())
    }

    /// Evicts arrays without a holder.
    fn evict_arrays(&self) {
        let of_nobody = self.arrays.list().into_iter().filter(|listed| listed.pins == 0).map(|listed| listed.key);
        self.arrays.evict(&of_nobody.collect::<Vec<_>>());
    }

    /// Returns the stored bytes that a program reads, and how many of them are on the device.
    fn read_and_resident(&self, hints: &Hints) -> (u64, u64) {
        let stored = || hints.stored.iter().flatten();
        (stored().map(Stored::bytes).sum(), stored().map(|stored| self.resident_bytes(stored)).sum())
    }

    /// Returns the bytes that a run may take beside columns, once the columns that it reads are
    /// loaded as far as possible.
    fn left_for_run(&self, hints: &Hints, (read, resident): (u64, u64)) -> u64 {
        let to_come = read.saturating_sub(resident);
        let columns = self.columns.bytes().saturating_add(to_come).min(self.limit(hints.memory));
        hints.memory.bytes_of(self.memory_bytes).saturating_sub(columns)
    }

    fn measure(&self) -> PipelineResult<Rates> {
        self.measured().map_err(|e| match e {
            FusedError::Device { source, .. } => self.device_error("measuring it", &source),
            other => self.error(other),
        })
    }

    fn measured(&self) -> FusedResult<Rates> {
        let context = self.executor.context();
        // A device that is nearly full, or small, is measured with less.
        let bytes = MEASURED_BYTES.min((self.memory_bytes / 64) as usize).max(1 << 20);
        let copy = copy::measure(context, &self.nvrtc, bytes, RUNS)?;
        let moved = MOVED_BYTES.min(bytes);
        let mut host = vec![1u8; moved];
        // Uses the transfer path of columns and its buffers, which queries then find pinned.
        let up = self.executor.stager().bytes_per_sec(self.executor.options().staging, &host, RUNS)?;
        let mut buffer = DeviceBuf::new(context, moved)?;
        let (mut down, mut launch) = (Duration::MAX, Duration::MAX);
        for _ in 0..RUNS {
            let began = Instant::now();
            buffer.copy_to(0, &mut host)?;
            down = down.min(began.elapsed());
            let began = Instant::now();
            // Small copies in both directions. They estimate the minimum of a run: a copy to the
            // device, a launch, a copy back.
            buffer.copy_from(0, &[0; 64])?;
            buffer.copy_to(0, &mut [0; 64])?;
            launch = launch.min(began.elapsed());
        }
        let rate = |bytes: usize, time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9);
        Ok(Rates {
            copy_bytes_per_sec: rate(2 * bytes, copy),
            to_device_bytes_per_sec: up,
            to_host_bytes_per_sec: rate(moved, down),
            launch: launch * 3,
            compile: COMPILE_GUESS,
        })
    }

    /// Returns hashes of the sources of a program's pipelines, generated without facts about their
    /// columns.
    fn texts_of(&self, execution: &Execution) -> FusedResult<Arc<[u64]>> {
        let looked_at = || self.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(texts) = looked_at().find(execution.program()) {
            return Ok(texts);
        }
        let texts: Arc<[u64]> = self.executor.dry_texts(execution)?.iter().map(|text| hash_of(text)).collect();
        looked_at().keep(execution.program(), &texts);
        Ok(texts)
    }

    fn is_compiled(&self, text: u64) -> bool {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).contains(&text)
    }
}

/// Returns true if an error of any origin means that device memory is exhausted.
fn is_lack_of_memory(error: &FusedError) -> bool {
    error.is_out_of_memory() || matches!(error, FusedError::Pipeline(PipelineError::Memory { .. }))
}

fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Backend for CudaBackend {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn description(&self) -> &str {
        &self.0.description
    }

    fn rates(&self) -> PipelineResult<Rates> {
        let mut rates = self.0.rates.get_or_init(|| self.0.measure()).clone()?;
        // The measured average replaces the assumed compile time.
        let counts = self.0.executor.compiler().counts();
        if counts.compiled > 0 {
            rates.compile = counts.elapsed / u32::try_from(counts.compiled).unwrap_or(u32::MAX);
        }
        Ok(rates)
    }

    fn is_measured(&self) -> bool {
        self.0.rates.get().is_some()
    }

    fn prepare(&self, execution: &Execution, hints: &Hints) -> Result<Arc<dyn Prepared>, Refusal> {
        // Kernels read blocks as they are stored, with all of their rows.
        if let Some(source) = execution.sources().iter().find(|source| !source.is_settled()) {
            return Err(Refusal(format!("the fresh and deleted rows of {}", source.name())));
        }
        let texts = self.0.texts_of(execution).map_err(|e| match e {
            FusedError::Refused(what) => Refusal(what),
            other => Refusal(other.to_string()),
        })?;
        let (gpu, execution, hints) = (Arc::clone(&self.0), execution.clone(), hints.clone());
        Ok(Arc::new(CudaProgram { gpu, execution, hints, texts, foreseen: OnceLock::new() }))
    }

    fn prepare_fit(&self, execution: &Execution, hints: &Hints, sums: &Sums) -> Result<Arc<dyn Fit>, Refusal> {
        if let Some(source) = execution.sources().iter().find(|source| !source.is_settled()) {
            return Err(Refusal(format!("the fresh and deleted rows of {}", source.name())));
        }
        self.0.executor.check_fold(execution, sums).map_err(|e| match e {
            FusedError::Refused(what) => Refusal(what),
            other => Refusal(other.to_string()),
        })?;
        Ok(Arc::new(CudaFit { gpu: Arc::clone(&self.0), execution: execution.clone(), hints: hints.clone() }))
    }

    fn residency(&self) -> Option<&dyn Residency> {
        Some(&*self.0)
    }

    fn arrays(&self) -> Option<&dyn Arrays> {
        Some(&*self.0)
    }

    fn node(&self) -> Option<u32> {
        self.0.node
    }
}

/// A program over whose rows a GPU accumulates the sums that fits need.
#[derive(Debug)]
struct CudaFit {
    gpu: Arc<Gpu>,
    execution: Execution,
    hints: Hints,
}

impl Fit for CudaFit {
    fn run(&self, control: &Control<'_>, next: &mut Next<'_>) -> PipelineResult<DeviceRan> {
        let gpu = &*self.gpu;
        let stored = self.hints.stored.first().and_then(Option::as_ref);
        let ledger = control.ledgers.first().cloned().unwrap_or_default();
        let sources = self.execution.sources().iter().map(|source| (Arc::clone(source), stored, Arc::clone(&ledger)));
        let began = Instant::now();
        // Passes read the same data repeatedly: it stays on the device meanwhile, whether or not it
        // is kept.
        let limit = (gpu.limit(self.hints.memory), Residence::Auto);
        let images = ResidentImages::new(&gpu.executor, &gpu.columns, &gpu.assembled, limit, sources.collect())
            .by(self.hints.path);
        let facts = gpu
            .executor
            .fold(&self.execution, &images, control.cancelled, RunMemory::default(), next)
            .map_err(|e| gpu.error(e))?;
        let bytes = images.bytes(0);
        ledger.planned_blocks(0, facts.morsels_skipped as u64);
        ledger.moved(Hop::HostToDevice, facts.bytes_up as usize);
        ledger.moved(Hop::DeviceToHost, facts.bytes_down as usize);
        Ok(DeviceRan {
            rows: facts.rows,
            morsels_skipped: facts.morsels_skipped as u64,
            elapsed: began.elapsed(),
            kernel: facts.kernel,
            launches: facts.launches as u64,
            passes: facts.passes,
            compiled: if facts.compile.is_zero() { Compiled::Before } else { Compiled::Now(facts.compile) },
            resident_bytes: bytes.resident,
            moved_bytes: bytes.moved + facts.bytes_up,
            returned_bytes: facts.bytes_down,
            brought: images.brought(0),
            ..DeviceRan::default()
        })
    }
}

/// A program that a GPU has code for.
#[derive(Debug)]
struct CudaProgram {
    gpu: Arc<Gpu>,
    execution: Execution,
    hints: Hints,
    /// Hashes of its pipelines' sources.
    texts: Arc<[u64]>,
    /// Stored bytes that it reads, and how many of them were on the device at the estimate. Cached,
    /// because there may be thousands of columns of segments to check.
    foreseen: OnceLock<(u64, u64)>,
}

impl Prepared for CudaProgram {
    fn estimate(&self) -> Estimate {
        let (read, resident) = *self.foreseen.get_or_init(|| self.gpu.read_and_resident(&self.hints));
        // A table that does not fit is built in several passes. Data of later passes counts as
        // resident: the first pass loads it.
        let left = self.gpu.left_for_run(&self.hints, (read, resident));
        let passes = self.gpu.executor.expected_passes(&self.execution, left);
        let again = self.execution.program().pipelines.iter().zip(passes).map(|(pipeline, passes)| {
            let stored = self.hints.stored.get(pipeline.source).and_then(Option::as_ref);
            stored.map_or(0, Stored::bytes).saturating_mul(passes - 1)
        });
        let again: u64 = again.fold(0, u64::saturating_add);
        Estimate {
            read_bytes: read.saturating_add(again),
            resident_bytes: resident.saturating_add(again),
            to_compile: self.texts.iter().filter(|text| !self.gpu.is_compiled(**text)).count(),
        }
    }

    fn run(&self, control: &Control<'_>, take: &mut Take<'_>) -> PipelineResult<Vec<DeviceRan>> {
        let gpu = &*self.gpu;
        let sources = self.execution.sources().iter().enumerate().map(|(number, source)| {
            let stored = self.hints.stored.get(number).and_then(Option::as_ref);
            (Arc::clone(source), stored, control.ledgers.get(number).cloned().unwrap_or_default())
        });
        let sources: Vec<_> = sources.collect();
        let began = Instant::now();
        let mut when_full = WhenFull::Fail;
        let mut foreseen = *self.foreseen.get_or_init(|| gpu.read_and_resident(&self.hints));
        // The columns of a query take precedence over arrays without a holder.
        if foreseen.0 - foreseen.1.min(foreseen.0) > gpu.columns.available(gpu.limit(self.hints.memory), false) {
            gpu.evict_arrays();
        }
        let (answer, images) = loop {
            let limit = gpu.limit(self.hints.memory);
            let limit = (limit, self.hints.residence);
            let images = ResidentImages::new(&gpu.executor, &gpu.columns, &gpu.assembled, limit, sources.clone())
                .by(self.hints.path);
            let memory = RunMemory { bytes: gpu.left_for_run(&self.hints, foreseen), when_full };
            let (cancelled, counts) = (control.cancelled, control.counts_steps);
            match gpu.executor.run_within(&self.execution, &images, cancelled, counts, memory) {
                Ok(answer) => break (answer, images),
                Err(e) if when_full == WhenFull::Fail && is_lack_of_memory(&e) => {
                    // Before the tables are split, columns that were not loaded to stay make room.
                    when_full = WhenFull::Split;
                    drop(images);
                    let may_go: HashSet<(SegmentKey, usize)> = gpu
                        .columns
                        .list()
                        .into_iter()
                        .filter(|listed| !listed.is_kept)
                        .map(|listed| listed.key)
                        .collect();
                    gpu.columns.evict(&may_go);
                    gpu.evict_arrays();
                    gpu.assembled.sweep();
                    gpu.executor.stager().trim();
                    gpu.executor.direct().trim();
                    foreseen = gpu.read_and_resident(&self.hints);
                }
                Err(e) => return Err(gpu.error(e)),
            }
        };
        gpu.compiled.lock().unwrap_or_else(PoisonError::into_inner).extend(self.texts.iter());
        let ran = self.facts(&answer.pipelines, &images, control, began.elapsed());
        for chunk in answer.chunks {
            if control.cancelled.load(Relaxed) {
                return Err(PipelineError::Cancelled);
            }
            take(chunk)?;
        }
        Ok(ran)
    }
}

impl CudaProgram {
    /// Returns the statistics of each pipeline. A source that several pipelines read is counted
    /// once.
    fn facts(
        &self,
        pipelines: &[PipelineFacts],
        images: &ResidentImages<'_>,
        control: &Control<'_>,
        elapsed: Duration,
    ) -> Vec<DeviceRan> {
        let mut told = HashSet::new();
        let kernels: Duration = pipelines.iter().map(|facts| facts.kernel + facts.compile).sum();
        // The time outside of kernels is not measured per pipeline, so it is divided evenly.
        let beside = elapsed.saturating_sub(kernels) / u32::try_from(pipelines.len().max(1)).unwrap_or(1);
        let each = pipelines.iter().zip(&self.execution.program().pipelines).map(|(facts, pipeline)| {
            let (bytes, brought) = match told.insert(pipeline.source) {
                true => (images.bytes(pipeline.source), images.brought(pipeline.source)),
                false => Default::default(),
            };
            if let Some(ledger) = control.ledgers.get(pipeline.source) {
                ledger.planned_blocks(0, facts.morsels_skipped as u64);
                ledger.moved(Hop::HostToDevice, facts.bytes_up as usize);
                ledger.moved(Hop::DeviceToHost, facts.bytes_down as usize);
            }
            (control.did_rows)(facts.rows);
            DeviceRan {
                rows: facts.rows,
                morsels_skipped: facts.morsels_skipped as u64,
                steps: facts.steps.clone(),
                table: facts.table.map(|table| TableFacts {
                    kind: table.kind,
                    is_unique: Some(table.is_unique),
                    rows: table.rows as usize,
                    bytes: table.bytes as usize,
                }),
                elapsed: facts.kernel + facts.compile + beside,
                kernel: facts.kernel,
                launches: facts.launches as u64,
                passes: facts.passes,
                compiled: if facts.compile.is_zero() { Compiled::Before } else { Compiled::Now(facts.compile) },
                resident_bytes: bytes.resident,
                moved_bytes: bytes.moved + facts.bytes_up,
                returned_bytes: facts.bytes_down,
                streamed: facts.streamed.map(|streamed| Streamed {
                    batches: streamed.batches as u64,
                    bytes: streamed.bytes,
                    waited: streamed.waited,
                }),
                brought,
                ..DeviceRan::default()
            }
        });
        each.collect()
    }
}

impl Residency for Gpu {
    fn load(
        &self,
        source: &Arc<dyn Source>,
        stored: &Stored,
        (limit, path): (MemoryLimit, DevicePath),
        control: &Control<'_>,
    ) -> PipelineResult<Loaded> {
        let ledger = control.ledgers.first().cloned().unwrap_or_default();
        let sources = vec![(Arc::clone(source), Some(stored), ledger)];
        if stored.bytes() > self.columns.available(self.limit(limit), true) {
            self.evict_arrays();
        }
        let limit = (self.limit(limit), Residence::Auto);
        let images = ResidentImages::new(&self.executor, &self.columns, &self.assembled, limit, sources).by(path);
        let columns: Vec<usize> = (0..stored.columns.len()).collect();
        let bytes = images.load(0, &columns, control.cancelled).map_err(|e| self.error(e))?;
        Ok(Loaded { bytes, moved_bytes: images.bytes(0).moved })
    }

    fn evict(&self, columns: &[(SegmentKey, usize)]) -> u64 {
        let bytes = self.columns.evict(columns);
        self.arrays.evict_if(|array| columns.iter().any(|column| array.has(column)));
        self.assembled.sweep();
        bytes
    }

    fn resident_bytes(&self, stored: &Stored) -> u64 {
        let runs = stored.runs();
        let columns = runs.iter().flat_map(|run| {
            let key = SegmentKey::of(&run.segment);
            stored.columns.iter().map(move |column| ((key.clone(), *column), stored.run_bytes(run, *column)))
        });
        self.columns.sum_of(columns)
    }

    fn sweep(&self) {
        self.columns.evict_if(|(segment, _)| segment.is_gone());
        self.arrays.evict_if(Key::is_gone);
        self.assembled.sweep();
        self.executor.direct().sweep();
    }

    fn list(&self) -> Vec<Resident> {
        let resident = self.columns.list().into_iter().map(|listed| Resident {
            segment: listed.key.0,
            column: listed.key.1,
            bytes: listed.bytes,
            hits: listed.hits,
            is_kept: listed.is_kept,
            pins: listed.pins,
        });
        resident.collect()
    }
}
