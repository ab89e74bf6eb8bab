//! Execution of a program on a device.
//!
//! ```text
//! for each pass of each pipeline (schedule.rs)
//!   plan, columns on the device or on their way, kernel source, kernel
//!   memory for the output, filled with zeros, or as the earlier passes have left it
//!   launch, once or for each batch; wait; read the status
//!     a key was repeated     retry with chains
//!     the memory was full    retry with more memory
//!     a check failed         return the query's error, after all passes
//!   a table stays on the device; groups and rows are copied
//! ```
//! A run that fails leaves nothing behind. Its memory belongs to the arena, which is released after
//! the stream has finished.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onehop_pipeline::cpu::{Execution, ResultColumn, StepRows};
use onehop_pipeline::{Error as PipelineError, Source};

use super::bounce::Bounce;
use super::built::{Built, TableFacts, filled};
use super::codegen::{Generated, Groups, PartitionWord, SinkShape};
use super::compile::Compiler;
use super::dry::{Dry, texts};
use super::image::{ColumnImage, Images};
use super::launch::{Reading, Sinks};
use super::memory::{Arena, Piece, Pool};
use super::partition::{Partition, Partitions, Thing};
use super::plan::Plan;
use super::result::words_of;
use super::schedule::may_be_split;
use super::sinks::{Room, SinkMemory};
use super::stream::StreamFacts;
use super::table::{Rows, TableShape};
use super::{Error, Result};
#[cfg(any(test, feature = "fake"))]
use crate::Cufile;
use crate::direct::Direct;
use crate::staging::{Shape, Stager};
use crate::{Context, Event, Nvrtc, Stream};

/// Words of a status, before the counters of the steps.
pub(super) const STATUS_WORDS: usize = 6;
/// Index of the status word from which warps take units.
pub(super) const NEXT_UNIT_WORD: u64 = 5;
/// Maximum bytes of one allocation, to detect implausible lengths.
const MOST_BYTES: u64 = 1 << 40;

/// Launch options.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads of a block: whole warps.
    pub threads: u32,
    /// Threads of a block that has a bitmap in shared memory. More threads mean fewer bitmaps, and
    /// more of that memory remains as a cache for other data.
    pub wide_threads: u32,
    /// Maximum number of blocks of `threads` threads for each multiprocessor: more than fit at
    /// once, so that no multiprocessor waits for a slow block.
    pub blocks: u32,
    /// Minimum number of rows for which a small bitmap is copied into every block's shared memory.
    pub many_rows: u64,
    /// `true` if steps count the rows that they let through.
    pub counts: bool,
    /// Batches and slots of streamed columns.
    pub staging: Shape,
    /// Maximum bytes of blocks' memory that may be registered with the driver and copied from in
    /// place. The default is 0: it depends on the machine if many direct copies are faster than a
    /// few copies of a buffer that the host has assembled.
    pub registered_bytes: usize,
}

/// Device memory that a run may take for everything except columns: tables, groups, rows of the
/// result.
#[derive(Clone, Copy, Debug)]
pub struct RunMemory {
    /// Maximum bytes of all runs of an executor together.
    pub bytes: u64,
    /// Behaviour if that is not enough, or the device has less.
    pub when_full: WhenFull,
}

/// Behaviour if tables and groups do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The run fails. The caller can free memory and retry.
    Fail,
    /// Tables and groups are resident one partition of their keys at a time.
    Split,
}

impl Default for RunMemory {
    fn default() -> Self {
        Self { bytes: u64::MAX, when_full: WhenFull::Split }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 256,
            wide_threads: 1024,
            blocks: 64,
            many_rows: 1 << 20,
            counts: true,
            staging: Shape::default(),
            registered_bytes: 0,
        }
    }
}

impl Options {
    /// Returns the threads of a block, and of a block that has a bitmap in shared memory.
    pub(super) fn threads(&self) -> [u32; 2] {
        [self.threads, self.wide_threads]
    }
}

/// Runs programs on one device. Its methods may be called from many threads; each run has a stream
/// and memory of its own.
#[derive(Debug)]
pub struct Executor {
    pub(super) context: Arc<Context>,
    pub(super) compiler: Compiler,
    pub(super) stager: Stager,
    pub(super) direct: Direct,
    pub(super) options: Options,
    pool: Pool,
    idle: Mutex<Vec<Lane>>,
}

/// Resources that a run uses exclusively.
#[derive(Debug)]
pub(super) struct Lane {
    pub stream: Stream,
    pub arena: Arena,
    pub bounce: Bounce,
    pub events: [Event; 2],
}

/// Result of a program.
#[derive(Debug)]
pub struct Answer {
    /// Chunks of columns, as the CPU backend returns them.
    pub chunks: Vec<Vec<ResultColumn>>,
    /// Statistics of each pipeline.
    pub pipelines: Vec<PipelineFacts>,
}

/// Execution statistics of a pipeline.
#[derive(Clone, Debug, Default)]
pub struct PipelineFacts {
    /// Rows of the morsels that were read.
    pub rows: u64,
    /// Morsels that were skipped, because none of their values could pass a filter or match a row
    /// of a table.
    pub morsels_skipped: usize,
    /// Rows read and passed on by each step, if they were counted: totals of all passes for one
    /// partition of the output.
    pub steps: Vec<StepRows>,
    /// Number of passes over its source: more than one if a table that it probes, or its output, is
    /// resident one partition at a time.
    pub passes: u64,
    /// Total kernel time of all attempts, by the device's clock.
    pub kernel: Duration,
    /// Number of launches: more than one if the first had the wrong table, or too small a one.
    pub launches: usize,
    /// Compilation time; zero if the kernel was cached.
    pub compile: Duration,
    /// Kernels that were cached.
    pub compile_hits: usize,
    /// The table that it built.
    pub table: Option<TableFacts>,
    /// Bytes copied to the device, except columns.
    pub bytes_up: u64,
    /// Bytes copied from the device.
    pub bytes_down: u64,
    /// Bytes of the columns that it may have read and that are on the device as a whole.
    pub column_bytes: u64,
    /// Data that was streamed for this pipeline alone, if any, by all attempts.
    pub streamed: Option<StreamFacts>,
}

impl Executor {
    /// Creates an executor for a device. Compiled kernels are stored in `folder`, if there is one.
    pub fn new(context: &Arc<Context>, nvrtc: &Arc<Nvrtc>, folder: Option<PathBuf>, options: Options) -> Self {
        let compiler = Compiler::new(context, nvrtc, folder);
        let (stager, pool) = (Stager::registering(context, options.registered_bytes), Pool::default());
        let (context, direct) = (Arc::clone(context), Direct::new(context));
        Self { context, compiler, stager, direct, options, pool, idle: Mutex::default() }
    }

    /// Makes the stager copy blocks from where they lie, starting with the first one.
    #[cfg(test)]
    pub(crate) fn register_eagerly(&mut self) {
        self.stager = Stager::eager(&self.context);
    }

    /// Returns the executor with a cuFile library that the caller has opened.
    #[cfg(any(test, feature = "fake"))]
    #[must_use]
    pub fn with_cufile(self, cufile: &Arc<Cufile>) -> Self {
        Self { direct: Direct::with(&self.context, cufile), ..self }
    }

    /// Returns its access to cuFile.
    pub(crate) fn direct(&self) -> &Direct {
        &self.direct
    }

    /// Returns the cache of compiled kernels.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Returns the device's context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the stager, which brings columns to the device.
    pub fn stager(&self) -> &Stager {
        &self.stager
    }

    /// Returns its launch and staging options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Checks that there is code for a program. It reads and runs nothing.
    ///
    /// # Errors
    /// [`Error::Refused`], with the reason.
    pub fn check(&self, execution: &Execution) -> Result<()> {
        self.dry_texts(execution).map(|_| ())
    }

    /// Generates the kernel sources of a program's pipelines without knowledge of columns and
    /// tables. Two programs of one shape have the same sources.
    ///
    /// # Errors
    /// As [`Executor::check`].
    pub(crate) fn dry_texts(&self, execution: &Execution) -> Result<Vec<String>> {
        let forms = |_: &dyn Source, _| Vec::new();
        let counts = self.options.counts;
        let threads = self.options.threads();
        texts(
            execution,
            &Dry { forms: &forms, rows: Rows::Unique, split: false, many_rows: u64::MAX, counts, threads, fold: None },
        )
    }

    /// Runs a program. The run stops soon after `cancelled` was set.
    ///
    /// # Errors
    /// [`Error::Refused`] before anything has run; errors of the query and of the device.
    pub fn run(&self, execution: &Execution, images: &dyn Images, cancelled: &AtomicBool) -> Result<Answer> {
        self.check(execution)?;
        self.run_within(execution, images, cancelled, self.options.counts, RunMemory::default())
    }

    /// As [`Executor::run`], for a program that [`Executor::check`] has accepted, and within some
    /// memory. If `counts` is set, steps count the rows that they let through, which takes time.
    ///
    /// # Errors
    /// As [`Executor::run`], and [`PipelineError::Memory`].
    pub fn run_within(
        &self,
        execution: &Execution,
        images: &dyn Images,
        cancelled: &AtomicBool,
        counts: bool,
        memory: RunMemory,
    ) -> Result<Answer> {
        self.run_split(execution, images, cancelled, counts, memory, &[])
    }

    /// As [`Executor::run_within`], with the outputs of pipelines split into the given numbers of
    /// partitions from the start, as far as they can be split. Tests use it to check that
    /// partitions do not change the result.
    ///
    /// # Errors
    /// As [`Executor::run_within`].
    pub fn run_split(
        &self,
        execution: &Execution,
        images: &dyn Images,
        cancelled: &AtomicBool,
        counts: bool,
        memory: RunMemory,
        split: &[u64],
    ) -> Result<Answer> {
        self.with_run(execution, images, cancelled, counts, memory, |run| {
            split.iter().enumerate().for_each(|(number, partitions)| run.split(number, *partitions));
            run.all()
        })
    }

    /// Calls `work` with a stream and memory of its own, and waits until the device has finished
    /// with them.
    pub(super) fn with_run<T>(
        &self,
        execution: &Execution,
        images: &dyn Images,
        cancelled: &AtomicBool,
        counts: bool,
        memory: RunMemory,
        work: impl FnOnce(&mut Run<'_>) -> Result<T>,
    ) -> Result<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut lane = match idle {
            Some(lane) => lane,
            None => Lane::new(&self.context, &self.pool)?,
        };
        lane.arena.set_limit(memory.bytes);
        let pipelines = execution.pipelines();
        let mut run = Run {
            executor: self,
            execution,
            images,
            cancelled,
            counts,
            memory,
            lane: &mut lane,
            tables: Vec::new(),
            held: Vec::new(),
            sinks: (0..pipelines).map(|_| None).collect(),
            wanted: vec![None; pipelines],
            rooms: vec![Room::default(); pipelines],
            scans: vec![Vec::new(); pipelines],
            facts: Vec::new(),
            partitions: Partitions::none(pipelines),
            group_partitions: None,
            is_full: false,
        };
        let outcome = work(&mut run);
        let held = run.held;
        match lane.stream.synchronize() {
            Ok(()) => {
                drop(held);
                lane.arena.clear();
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
            }
            // The stream's state is unknown, so the device may still access the lane's memory.
            Err(source) => {
                crate::queue::lose((lane, held));
                return outcome.and(Err(Error::Device { attempt: "waiting for the GPU".into(), source }));
            }
        }
        outcome
    }

    /// Frees the memory that later runs would start with. Returns its size in bytes.
    pub(super) fn give_back_idle(&self) -> u64 {
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        idle.iter().map(|lane| lane.arena.bytes()).sum()
    }
}

impl Lane {
    pub fn new(context: &Arc<Context>, pool: &Pool) -> Result<Self> {
        let events = [Event::timed(context)?, Event::timed(context)?];
        let (stream, bounce) = (Stream::new(context)?, Bounce::new(context)?);
        Ok(Self { stream, arena: Arena::new(context, pool), bounce, events })
    }
}

/// One run of a program.
pub(super) struct Run<'a> {
    pub executor: &'a Executor,
    pub execution: &'a Execution,
    pub images: &'a dyn Images,
    pub cancelled: &'a AtomicBool,
    pub counts: bool,
    pub memory: RunMemory,
    pub lane: &'a mut Lane,
    pub tables: Vec<Built>,
    /// Columns that kernels may be reading.
    pub held: Vec<Arc<ColumnImage>>,
    /// Memory that unfinished passes have added to, and the memory requirement of each pipeline's
    /// output, if it can be split.
    pub sinks: Vec<Option<SinkMemory>>,
    pub wanted: Vec<Option<Thing>>,
    /// Memory requirements learned for each pipeline.
    pub rooms: Vec<Room>,
    /// Morsels that each pipeline reads in any of its passes.
    pub scans: Vec<Vec<(u32, u32)>>,
    pub facts: Vec<PipelineFacts>,
    pub partitions: Partitions,
    /// Number of partitions that have groups, once it is known.
    pub group_partitions: Option<u64>,
    /// `true` if the last error is that the arena has no room.
    pub is_full: bool,
}

/// A pass of a pipeline.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub number: usize,
    pub plan: &'a Plan<'a>,
    pub shapes: &'a [TableShape],
    pub built: Option<&'a TableShape>,
    /// Partition of its output.
    pub partition: Partition,
    pub room: Room,
    /// `true` if no later pass adds to the same output.
    pub is_last: bool,
}

/// Result of an attempt at a pass.
pub(super) enum Outcome {
    /// The rows, or the groups if the pass was the last one.
    Done(Vec<ResultColumn>),
    /// Retry with chains and room for this many rows.
    Chains(u64),
    /// Retry with more room.
    More(Room),
}

impl Run<'_> {
    pub(super) fn attempt(
        &mut self,
        attempt: &Attempt<'_>,
        morsels: &[(u32, u32)],
        facts: &mut PipelineFacts,
    ) -> Result<Outcome> {
        let Attempt { number, plan, shapes, built, partition, room, is_last } = *attempt;
        let source = &self.execution.sources()[plan.pipeline.source];
        let splits_groups = self.partitions.of(number) > 1;
        self.lane.bounce.reset(&self.lane.stream)?;
        let reading = Reading {
            plan,
            source,
            morsels,
            tables: shapes,
            built,
            splits_groups,
            rows: source.all_rows(),
            fold: None,
        };
        if morsels.is_empty() && self.sinks[number].is_none() {
            // If constants leave nothing to read, no kernel is compiled and no column is brought.
            let generated = self.text(&reading)?;
            let memory = self.sink_memory(attempt, &generated, status_words(&generated), facts.rows)?;
            self.lane.stream.synchronize()?;
            return self.outcome(attempt, &generated, memory, facts);
        }
        let columns = self.columns(&reading)?;
        facts.column_bytes = columns.images.values().map(|image| image.bytes() as u64).sum();
        let is_whole = columns.streamed.is_empty();
        let mut code = self.code(&reading, &columns.forms(), if is_whole { morsels } else { &[] }, facts)?;

        let generated = &code.generated;
        let mut memory = match self.sinks[number].take() {
            Some(memory) => memory,
            None => self.sink_memory(attempt, generated, status_words(generated), facts.rows)?,
        };
        memory.scanned += morsels.iter().map(|(_, rows)| u64::from(*rows)).sum::<u64>();
        let sinks = Sinks { memory: &memory, partition, threshold: room.threshold, fold: None };
        match is_whole {
            true => self.launch_once(&reading, &columns, &mut code, &sinks, is_last, facts)?,
            false => self.stream(&reading, &columns, &mut code, &sinks, facts)?,
        }
        self.outcome(attempt, &code.generated, memory, facts)
    }

    /// Evaluates a pass after all of its kernels have finished.
    fn outcome(
        &mut self,
        attempt: &Attempt<'_>,
        generated: &Generated,
        mut memory: SinkMemory,
        facts: &mut PipelineFacts,
    ) -> Result<Outcome> {
        let Attempt { number, plan, partition, room, is_last, .. } = *attempt;
        let source = &self.execution.sources()[plan.pipeline.source];
        let SinkMemory { status, table, targets, scanned } = &mut memory;
        let said = *status;
        let status = words_of(&self.read(said)?);
        facts.bytes_down += status.len() as u64 * 8;
        let [failed, rows, keyless, repeated, full] = [0, 1, 2, 3, 4].map(|n: usize| status[n]);
        if failed != 0 && is_last {
            let failure = generated.checks.get(!failed as usize);
            let unknown = || PipelineError::Invalid("an unknown check has failed".into());
            return Err(Error::Pipeline(failure.map_or_else(unknown, |failure| failure.error())));
        }
        if is_last {
            step_rows(generated, plan, &status[STATUS_WORDS..], *scanned, facts);
        }
        // If memory is scarce, the room grows no more than is sure to be needed.
        let more = if self.lane.arena.is_gathered() { 2 } else { 4 };
        match &generated.sink {
            SinkShape::Table if !is_last => {
                self.sinks[number] = Some(memory);
                Ok(Outcome::Done(Vec::new()))
            }
            SinkShape::Table => {
                let Some(mut table) = table.take() else { return Ok(Outcome::Done(Vec::new())) };
                if repeated != 0 {
                    return Ok(Outcome::Chains(rows));
                }
                if full != 0 {
                    // Partitions have different numbers of rows, so the rows say nothing about
                    // places.
                    let lacks_rows = table.shape.rows == Rows::Chains && rows > table.rows;
                    let places = if lacks_rows { room.places } else { table.places * more };
                    let rows = rows.max(room.rows);
                    return Ok(Outcome::More(Room { rows, places, threshold: None }));
                }
                table.has_keyless = keyless != 0;
                table.has_rows(rows);
                let ends = &status[STATUS_WORDS + generated.counted.len()..];
                let known = filled(generated, &table.shape, rows, source.all_rows(), ends);
                table.keys = known.key;
                if !table.shape.is_split {
                    table.shape.filled = Some(known);
                }
                let largest = facts.table.map_or(0, |table| table.bytes);
                let of = table.facts();
                facts.table = Some(TableFacts { bytes: of.bytes.max(largest), ..of });
                self.tables[number] = table;
                Ok(Outcome::Done(Vec::new()))
            }
            SinkShape::Groups(_) if full != 0 => {
                Ok(Outcome::More(Room { places: targets.group_places * more, ..Room::default() }))
            }
            SinkShape::Groups(_) if !is_last => {
                self.sinks[number] = Some(memory);
                Ok(Outcome::Done(Vec::new()))
            }
            SinkShape::Groups(groups) => {
                self.group_partitions = Some(partitions_of(groups, partition));
                self.groups(groups, targets, partition, facts).map(Outcome::Done)
            }
            SinkShape::Rows { outputs, has_threshold } if rows > targets.capacity => {
                // The sink holds some of the rows. The first of them give a threshold that all
                // others must beat, and after it few rows remain.
                let threshold = match (has_threshold, room.threshold) {
                    (true, None) => self.threshold(plan, &outputs[0], targets)?,
                    (_, known) => known,
                };
                let is_new = threshold != room.threshold;
                Ok(Outcome::More(Room { rows: if is_new { room.rows } else { rows }, places: 0, threshold }))
            }
            SinkShape::Rows { outputs, .. } => {
                let columns = self.rows(outputs, targets, rows, facts)?;
                // The rows have been copied out; the failure and the counters remain.
                self.lane.arena.write(said, &[status[0].to_le_bytes(), [0; 8]].concat())?;
                self.sinks[number] = Some(memory);
                Ok(Outcome::Done(columns))
            }
            SinkShape::Fold => Ok(Outcome::Done(Vec::new())),
        }
    }

    /// Reads a piece as the last kernel has left it.
    pub(super) fn read(&self, piece: Piece) -> Result<Cow<'_, [u8]>> {
        match self.lane.bounce.fetched(piece) {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => self.lane.arena.read(piece, piece.len).map(Cow::Owned),
        }
    }

    /// Splits the output of a pipeline from the start.
    fn split(&mut self, number: usize, partitions: u64) {
        if may_be_split(self.execution, number) {
            self.partitions.set(number, partitions);
        }
    }

    /// Returns a word of the kernel's argument that describes the partition of its groups.
    pub(super) fn group_word(&self, generated: &Generated, partition: Partition, word: PartitionWord) -> u64 {
        let SinkShape::Groups(groups) = &generated.sink else { return 0 };
        partition.word(word, groups.count(), partitions_of(groups, partition) - 1)
    }

    /// Releases memory that no table and no sink uses any more.
    pub(super) fn sweep(&mut self) {
        let tables = self.tables.iter().flat_map(|table| table.memory.values().copied());
        let sinks = self.sinks.iter().flatten().flat_map(SinkMemory::pieces);
        self.lane.arena.keep(tables.chain(sinks));
    }

    /// Allocates memory that is filled with a byte before the next kernel.
    pub(super) fn filled(&mut self, bytes: u64, byte: u8) -> Result<Piece> {
        let piece = self.piece(bytes)?;
        // SAFETY: the piece belongs to this run alone, and its arena is not released before the
        // stream has finished.
        unsafe { self.lane.stream.fill_at(piece.address, byte, piece.len)? };
        Ok(piece)
    }

    pub(super) fn zeros(&mut self, bytes: u64) -> Result<Piece> {
        self.filled(bytes, 0)
    }

    pub(super) fn piece(&mut self, bytes: u64) -> Result<Piece> {
        let attempt = || format!("{bytes} bytes of device memory");
        self.is_full = true;
        let too_much = || self.too_much(bytes);
        let len = usize::try_from(bytes).ok().filter(|_| bytes < MOST_BYTES).ok_or_else(too_much)?;
        let piece = self.lane.arena.take(len.max(16));
        self.is_full = piece.is_err();
        piece.map_err(|error| match error {
            Error::Device { source, .. } => Error::Device { attempt: attempt(), source },
            other => other,
        })
    }

    pub(super) fn too_much(&self, bytes: u64) -> Error {
        let available = self.executor.context.device().memory_bytes as usize;
        Error::Pipeline(PipelineError::Memory { what: "a query on the GPU".into(), needed: bytes as usize, available })
    }
}

/// Returns the number of partitions of groups.
fn partitions_of(groups: &Groups, partition: Partition) -> u64 {
    match groups.is_split {
        true if groups.is_hashed() => partition.of,
        true => partition.ranges(groups.count()),
        false => 1,
    }
}

/// Returns the words of a status with its counters and ends.
fn status_words(generated: &Generated) -> usize {
    STATUS_WORDS + generated.counted.len() + 2 * generated.ends.len()
}

/// Converts the counters to rows by step of the pipeline. Rows pass the acts in their order.
fn step_rows(generated: &Generated, plan: &Plan<'_>, counted: &[u64], scanned: u64, facts: &mut PipelineFacts) {
    let mut rows_in = scanned;
    facts.steps.fill(StepRows::default());
    let mut is_first = vec![true; facts.steps.len()];
    for (act, rows_out) in generated.counted.iter().zip(counted) {
        let step = plan.acts[*act].step;
        let of = &mut facts.steps[step];
        // If a condition was split into several acts, the step has read the rows of its first act
        // and removed those that all of them have removed.
        let before = if std::mem::take(&mut is_first[step]) { rows_in } else { of.rows_in };
        let removed = of.rows_in as i64 - of.rows_out as i64 + rows_in as i64 - *rows_out as i64;
        *of = StepRows { rows_in: before, rows_out: before.saturating_add_signed(-removed) };
        rows_in = *rows_out;
    }
}
