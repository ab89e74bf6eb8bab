//! Passes over rows for fits of linear models: each pass computes sums over columns that stay on
//! the device.
//!
//! ```text
//! once        the program's only pipeline: its morsels, its columns on the device
//! next        the wanted sums: once for each kind, one kernel is compiled, or several
//!             if registers do not hold all sums
//! pass        launch: the parameters of the fit are in the argument, so nothing is
//!             copied to the device
//!             one number of each sum per block comes back, in one copy; the caller
//!             adds them and chooses the next sums
//! ```
//! Invariants:
//! - The grid is a function of the device and the rows alone, not of the load. The same rows give
//!   the same partial sums.
//! - All columns are on the device as a whole. A fit over columns that would have to be copied
//!   again for every pass is refused.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use onehop_pipeline::cpu::Execution;
use onehop_pipeline::fit::{Next, Parts, Sums};
use onehop_pipeline::ir::Sink;
use onehop_pipeline::{Error as PipelineError, Source};

use super::codegen::Fold;
use super::dry::{Dry, texts};
use super::image::Images;
use super::launch::{Code, FoldTarget, PipelineColumns, Reading, Reads, Sinks};
use super::memory::Piece;
use super::partition::Partition;
use super::plan::Plan;
use super::result::words_of;
use super::run::{Executor, Lane, PipelineFacts, Run, RunMemory, STATUS_WORDS};
use super::schedule::Scan;
use super::sinks::{SinkMemory, Targets};
use super::table::Rows;
use super::{Error, Result};

/// Maximum number of features of sums on a device. The sums grow with its square.
pub const MOST_FEATURES: usize = 32;

/// Blocks for each multiprocessor. This many make a whole number of rounds, or nearly, with any
/// number of registers per block.
const BLOCKS: u64 = 6;
/// Maximum size in bytes of all blocks' sums. They are copied through a buffer a few times as
/// large.
const SUMS_BYTES: u64 = 256 << 10;

/// Returns the number of features of the rows that a program collects, if its rows can be added up.
fn features_of(execution: &Execution) -> Result<usize> {
    let [pipeline] = execution.program().pipelines.as_slice() else { return Err(Error::refused("a fit over a join")) };
    let Sink::Collect { columns } = &pipeline.sink else { return Err(Error::refused("a fit over groups")) };
    let features = columns.len().saturating_sub(1);
    if features > MOST_FEATURES {
        return Err(Error::Refused(format!("a fit of {features} features, which are more than {MOST_FEATURES}")));
    }
    Ok(features)
}

/// Generates the kernel sources that sums over the rows of a program need, for columns of these
/// forms.
pub(super) fn fold_texts(execution: &Execution, sums: &Sums, dry: &Dry<'_>) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for fold in Fold::all_of(sums, features_of(execution)?) {
        all.extend(texts(execution, &Dry { fold: Some(fold), ..*dry })?);
    }
    Ok(all)
}

impl Executor {
    /// Checks that there is code for sums over the rows that a program collects. It reads and runs
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Refused`], with the reason.
    pub fn check_fold(&self, execution: &Execution, sums: &Sums) -> Result<()> {
        let (forms, threads) = (|_: &dyn Source, _| Vec::new(), self.options.threads());
        let dry = Dry {
            forms: &forms,
            rows: Rows::Unique,
            split: false,
            many_rows: u64::MAX,
            counts: false,
            threads,
            fold: None,
        };
        fold_texts(execution, sums, &dry).map(drop)
    }

    /// Computes the sums that `next` requests over the rows that a program collects, pass after
    /// pass, until `next` requests none.
    ///
    /// # Errors
    /// [`Error::Refused`] before anything has run; errors of the query, of `next` and of the
    /// device.
    pub fn fold(
        &self,
        execution: &Execution,
        images: &dyn Images,
        cancelled: &AtomicBool,
        memory: RunMemory,
        next: &mut Next<'_>,
    ) -> Result<PipelineFacts> {
        let features = features_of(execution)?;
        self.with_run(execution, images, cancelled, false, memory, |run| run.fold(features, next))
    }
}

/// A kernel of a fold, ready to be launched.
struct Ready {
    code: Code,
    sums: Piece,
    blocks: u32,
}

/// Input that all passes read.
struct Scanned<'a> {
    plan: &'a Plan<'a>,
    morsels: &'a [(u32, u32)],
    columns: PipelineColumns,
    reads: Reads,
}

fn reading_of<'a>(
    source: &'a Arc<dyn Source>,
    plan: &'a Plan<'a>,
    morsels: &'a [(u32, u32)],
    fold: Option<Fold>,
) -> Reading<'a> {
    let rows = source.all_rows();
    Reading { plan, source, morsels, tables: &[], built: None, splits_groups: false, rows, fold }
}

impl Run<'_> {
    fn fold(&mut self, features: usize, next: &mut Next<'_>) -> Result<PipelineFacts> {
        let execution = self.execution;
        let pipeline = &execution.program().pipelines[0];
        let source = &execution.sources()[pipeline.source];
        let plan = Plan::new(pipeline, &execution.shapes()[0], &[], &**source, self.counts)?;
        let morsels = self.morsels(0, &plan, Scan::All);
        let mut facts = PipelineFacts {
            rows: morsels.iter().map(|(_, rows)| u64::from(*rows)).sum(),
            morsels_skipped: source.morsels() - morsels.len(),
            ..PipelineFacts::default()
        };
        let reading = reading_of(source, &plan, &morsels, None);
        let columns = self.columns(&reading)?;
        if !columns.streamed.is_empty() {
            return Err(Error::refused("a fit over columns that do not fit in its memory"));
        }
        facts.column_bytes = columns.images.values().map(|image| image.bytes() as u64).sum();
        let reads = Reads::of_whole(&columns, &morsels);
        let scanned = Scanned { plan: &plan, morsels: &morsels, columns, reads };
        let status = self.zeros(STATUS_WORDS as u64 * 8)?;
        let memory = SinkMemory { status, table: None, targets: Targets::default(), scanned: facts.rows };
        let mut ready = BTreeMap::new();
        let mut last = None;
        while let Some(sums) = next(last.as_ref())? {
            if self.cancelled.load(Relaxed) {
                return Err(Error::Pipeline(PipelineError::Cancelled));
            }
            let mut parts = Parts { words: sums.words(features), values: Vec::new() };
            for fold in Fold::all_of(&sums, features) {
                self.lane.bounce.reset(&self.lane.stream)?;
                if let Entry::Vacant(place) = ready.entry(fold) {
                    place.insert(self.ready(fold, &scanned, parts.words, &mut facts)?);
                }
                let Some(ready) = ready.get_mut(&fold) else { continue };
                self.fold_once(fold, &Fold::numbers(&sums), ready, &scanned, &memory, &mut parts, &mut facts)?;
            }
            facts.passes += 1;
            last = Some(parts);
        }
        source.all_finished(&mut morsels.iter().map(|(morsel, _)| *morsel as usize));
        Ok(facts)
    }

    /// Compiles a kernel and reserves memory for the sums of its blocks.
    fn ready(&mut self, fold: Fold, of: &Scanned<'_>, words: usize, facts: &mut PipelineFacts) -> Result<Ready> {
        let Scanned { plan, morsels, columns, reads } = of;
        let source = &self.execution.sources()[plan.pipeline.source];
        let reading = reading_of(source, plan, morsels, Some(fold));
        let mut code = self.code(&reading, &columns.forms(), morsels, facts)?;
        self.make_room_for_codes(&mut code, reads)?;
        let warps = u64::from(code.generated.threads / 32).max(1);
        let multiprocessors = u64::from(self.executor.context.device().multiprocessors);
        let most = (multiprocessors * BLOCKS).min(SUMS_BYTES / (words as u64 * 8));
        let blocks = reads.vectors.div_ceil(warps).clamp(1, most.max(1)) as u32;
        let sums = self.piece(u64::from(blocks) * fold.words() as u64 * 8)?;
        Ok(Ready { code, sums, blocks })
    }

    /// Runs one launch and stores the sums of its blocks in `parts`.
    #[allow(clippy::too_many_arguments, reason = "all that a launch is made of")]
    fn fold_once(
        &mut self,
        fold: Fold,
        numbers: &[f64],
        ready: &Ready,
        of: &Scanned<'_>,
        memory: &SinkMemory,
        parts: &mut Parts,
        facts: &mut PipelineFacts,
    ) -> Result<()> {
        let target = FoldTarget { numbers, sums: ready.sums, blocks: ready.blocks };
        let sinks = Sinks { memory, partition: Partition::ALL, threshold: None, fold: Some(target) };
        let [before, after] = &self.lane.events;
        self.launch(&ready.code, &sinks, &of.reads, [before, after])?;
        let Lane { stream, bounce, events: [before, after], .. } = &mut *self.lane;
        bounce.fetch(stream, memory.status)?;
        bounce.fetch(stream, ready.sums)?;
        stream.synchronize().map_err(|source| Error::Device { attempt: "a pass on the GPU".into(), source })?;
        facts.kernel += after.since(before)?;
        facts.launches += 1;
        let status = words_of(&self.read(memory.status)?);
        if status[0] != 0 {
            let failure = ready.code.generated.checks.get(!status[0] as usize);
            let unknown = || PipelineError::Invalid("an unknown check has failed".into());
            return Err(Error::Pipeline(failure.map_or_else(unknown, |failure| failure.error())));
        }
        let sums: Vec<f64> = words_of(&self.read(ready.sums)?).into_iter().map(f64::from_bits).collect();
        facts.bytes_down += (sums.len() + status.len()) as u64 * 8;
        parts.values.resize(ready.blocks as usize * parts.words, 0.0);
        let each = sums.chunks_exact(fold.words()).zip(parts.values.chunks_exact_mut(parts.words));
        each.for_each(|(from, to)| fold.put(from, to));
        Ok(())
    }
}
