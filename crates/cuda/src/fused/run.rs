//! Runs a program on a device.
//!
//! ```text
//! for each pass of each pipeline (schedule.rs)
//!   plan, columns on the device or on their way, text, kernel
//!   memory for what it ends in, filled with zeros, or what the passes before have left there
//!   launch, once or for each batch; wait, status
//!     a key came twice       once more, with chains
//!     there was no room      once more, with more
//!     a check failed         the query's error, when all passes are through
//!   a table stays on the device; groups and rows are copied
//! ```
//! Nothing is left behind by a run that fails: its memory is the arena's, which is taken back when the stream is through.

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

/// Words of a status, before the steps'.
pub(super) const STATUS_WORDS: usize = 6;
/// Of those, the one that warps take units by.
pub(super) const NEXT_UNIT_WORD: u64 = 5;
/// Bytes of device memory that one thing may ask for: lengths that make no sense are found here.
const MOST_BYTES: u64 = 1 << 40;

/// How kernels are launched.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads of a block: whole warps.
    pub threads: u32,
    /// Threads of a block that has a bitmap in shared memory: the more there are, the fewer bitmaps, and the more is left
    /// of that memory to cache what is not there.
    pub wide_threads: u32,
    /// Blocks of so many threads for each multiprocessor, at most: more than fit at once, so that none waits for a slow
    /// one.
    pub blocks: u32,
    /// Rows from which on a small bitmap is copied into every block's shared memory.
    pub many_rows: u64,
    /// Whether steps count the rows that they let through.
    pub counts: bool,
    /// How columns are brought.
    pub staging: Shape,
    /// Bytes of blocks' memory that may be registered with the driver, to be copied from where they lie. None by default:
    /// whether many copies are faster than a few of what the host has put together is the machine's to say.
    pub registered_bytes: usize,
}

/// Device memory that a run may take for what columns do not: tables, groups, rows on their way.
#[derive(Clone, Copy, Debug)]
pub struct RunMemory {
    /// Bytes that all runs of an executor may take together.
    pub bytes: u64,
    /// What happens if that is not enough, or the device has less.
    pub when_full: WhenFull,
}

/// What happens if tables and groups do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The run fails: somebody can make room, and it is tried once more.
    Fail,
    /// They are there one partition of their keys at a time.
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
    /// Threads of a block, and of one that has a bitmap in shared memory.
    pub(super) fn threads(&self) -> [u32; 2] {
        [self.threads, self.wide_threads]
    }
}

/// Runs programs on one device. May be used from many threads; each run has a stream and memory of its own.
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

/// What a run has to itself.
#[derive(Debug)]
pub(super) struct Lane {
    pub stream: Stream,
    pub arena: Arena,
    pub bounce: Bounce,
    pub events: [Event; 2],
}

/// What a program computed.
#[derive(Debug)]
pub struct Answer {
    /// Chunks of columns, as the CPU backend gives them.
    pub chunks: Vec<Vec<ResultColumn>>,
    /// Of each pipeline.
    pub pipelines: Vec<PipelineFacts>,
}

/// What came of a pipeline.
#[derive(Clone, Debug, Default)]
pub struct PipelineFacts {
    /// Rows of the morsels that were left to read.
    pub rows: u64,
    /// Morsels that were not, for no value of theirs could pass a filter or find a table's row.
    pub morsels_skipped: usize,
    /// Rows seen and passed on, by step, if they were counted: of all passes for one partition of what it ends in.
    pub steps: Vec<StepRows>,
    /// How often its source was gone through: more than once if a table that it probes, or what it ends in, is there one
    /// partition at a time.
    pub passes: u64,
    /// How long the kernels took, by the device's clock; of all attempts.
    pub kernel: Duration,
    /// Launches: more than one if the first had the wrong table, or too small a one.
    pub launches: usize,
    /// How long compilation took; zero if the kernel was there.
    pub compile: Duration,
    /// Kernels that were there.
    pub compile_hits: usize,
    /// The table that it built.
    pub table: Option<TableFacts>,
    /// Bytes copied to the device, but for columns.
    pub bytes_up: u64,
    /// Bytes copied from it.
    pub bytes_down: u64,
    /// Bytes of the columns that it may have read and that are on the device as a whole.
    pub column_bytes: u64,
    /// What was brought for it alone, batch by batch, if anything was; of all attempts.
    pub streamed: Option<StreamFacts>,
}

impl Executor {
    /// For a device. Compiled kernels are kept in `folder`, if there is one.
    pub fn new(context: &Arc<Context>, nvrtc: &Arc<Nvrtc>, folder: Option<PathBuf>, options: Options) -> Self {
        let compiler = Compiler::new(context, nvrtc, folder);
        let (stager, pool) = (Stager::registering(context, options.registered_bytes), Pool::default());
        let (context, direct) = (Arc::clone(context), Direct::new(context));
        Self { context, compiler, stager, direct, options, pool, idle: Mutex::default() }
    }

    /// Has blocks copied from where they lie from the first on.
    #[cfg(test)]
    pub(crate) fn register_eagerly(&mut self) {
        self.stager = Stager::eager(&self.context);
    }

    /// The same, with a cuFile that somebody has opened.
    #[cfg(any(test, feature = "fake"))]
    #[must_use]
    pub fn with_cufile(self, cufile: &Arc<Cufile>) -> Self {
        Self { direct: Direct::with(&self.context, cufile), ..self }
    }

    /// What it has with cuFile.
    pub(crate) fn direct(&self) -> &Direct {
        &self.direct
    }

    /// What was compiled, and what was there.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The device's context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What brings columns to the device.
    pub fn stager(&self) -> &Stager {
        &self.stager
    }

    /// How it launches and brings columns.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Whether there is code for a program: nothing is read and nothing runs.
    ///
    /// # Errors
    /// [`Error::Refused`], with the reason.
    pub fn check(&self, execution: &Execution) -> Result<()> {
        self.dry_texts(execution).map(|_| ())
    }

    /// The texts of a program's pipelines as they are when nothing is known of columns and tables: those of two programs of
    /// one shape are the same.
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

    /// Runs a program, which stops soon after `cancelled` was set.
    ///
    /// # Errors
    /// [`Error::Refused`] before anything has run; the query's own; the device's.
    pub fn run(&self, execution: &Execution, images: &dyn Images, cancelled: &AtomicBool) -> Result<Answer> {
        self.check(execution)?;
        self.run_within(execution, images, cancelled, self.options.counts, RunMemory::default())
    }

    /// As [`Executor::run`], of a program that was found to have code, with steps counting the rows that they let through, or
    /// not, which takes time, and within some memory.
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

    /// As [`Executor::run_within`], with what pipelines end in split into so many partitions from the start, as far as it can
    /// be: for who checks that it makes no difference.
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

    /// Has something done with a stream and memory of its own, and waits until the device is done with them.
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
            // Nobody knows what still touches its memory.
            Err(source) => {
                crate::queue::lose((lane, held));
                return outcome.and(Err(Error::Device { attempt: "waiting for the GPU".into(), source }));
            }
        }
        outcome
    }

    /// Gives the memory back that runs to come would begin with; how much that was.
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
    /// What passes that are not through have added to, and how much each pipeline wants of what could be split.
    pub sinks: Vec<Option<SinkMemory>>,
    pub wanted: Vec<Option<Thing>>,
    /// What was learned of each pipeline.
    pub rooms: Vec<Room>,
    /// Morsels that each reads in any of its passes.
    pub scans: Vec<Vec<(u32, u32)>>,
    pub facts: Vec<PipelineFacts>,
    pub partitions: Partitions,
    /// Partitions that have groups, once that is known.
    pub group_partitions: Option<u64>,
    /// Whether the last error is that the arena has no room.
    pub is_full: bool,
}

/// A pass of a pipeline.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub number: usize,
    pub plan: &'a Plan<'a>,
    pub shapes: &'a [TableShape],
    pub built: Option<&'a TableShape>,
    /// Of what it ends in.
    pub partition: Partition,
    pub room: Room,
    /// Whether no pass adds to the same after it.
    pub is_last: bool,
}

/// What an attempt at a pass came to.
pub(super) enum Outcome {
    /// Rows, or groups if it was the last.
    Done(Vec<ResultColumn>),
    /// Once more, with chains and room for so many rows.
    Chains(u64),
    /// Once more, with more room.
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
            // Constants that leave nothing to be read have no kernel compiled, nor columns brought.
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

    /// What has come of a pass, once all of its kernels are through.
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
            let unknown = || PipelineError::Invalid("a check that nobody made has failed".into());
            return Err(Error::Pipeline(failure.map_or_else(unknown, |failure| failure.error())));
        }
        if is_last {
            step_rows(generated, plan, &status[STATUS_WORDS..], *scanned, facts);
        }
        // Where there is little, no more than what is sure to be wanted is asked for.
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
                    // Partitions have different numbers of rows, which says nothing of their places.
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
                // Some rows are here, of which the first say what all others have to beat; then few are left.
                let threshold = match (has_threshold, room.threshold) {
                    (true, None) => self.threshold(plan, &outputs[0], targets)?,
                    (_, known) => known,
                };
                let is_new = threshold != room.threshold;
                Ok(Outcome::More(Room { rows: if is_new { room.rows } else { rows }, places: 0, threshold }))
            }
            SinkShape::Rows { outputs, .. } => {
                let columns = self.rows(outputs, targets, rows, facts)?;
                // They are gone; what failed and what was counted stays.
                self.lane.arena.write(said, &[status[0].to_le_bytes(), [0; 8]].concat())?;
                self.sinks[number] = Some(memory);
                Ok(Outcome::Done(columns))
            }
            SinkShape::Fold => Ok(Outcome::Done(Vec::new())),
        }
    }

    /// A piece as the last kernel has left it.
    pub(super) fn read(&self, piece: Piece) -> Result<Cow<'_, [u8]>> {
        match self.lane.bounce.fetched(piece) {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => self.lane.arena.read(piece, piece.len).map(Cow::Owned),
        }
    }

    /// Splits what a pipeline ends in from the start.
    fn split(&mut self, number: usize, partitions: u64) {
        if may_be_split(self.execution, number) {
            self.partitions.set(number, partitions);
        }
    }

    /// What a kernel knows the partition of its groups by.
    pub(super) fn group_word(&self, generated: &Generated, partition: Partition, word: PartitionWord) -> u64 {
        let SinkShape::Groups(groups) = &generated.sink else { return 0 };
        partition.word(word, groups.count(), partitions_of(groups, partition) - 1)
    }

    /// Takes back what nobody needs any more.
    pub(super) fn sweep(&mut self) {
        let tables = self.tables.iter().flat_map(|table| table.memory.values().copied());
        let sinks = self.sinks.iter().flatten().flat_map(SinkMemory::pieces);
        self.lane.arena.keep(tables.chain(sinks));
    }

    /// Memory that is filled with a byte before the next kernel.
    pub(super) fn filled(&mut self, bytes: u64, byte: u8) -> Result<Piece> {
        let piece = self.piece(bytes)?;
        // SAFETY: the piece is nobody else's, and its arena is not taken back before the stream is through.
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

/// How many partitions of groups there are.
fn partitions_of(groups: &Groups, partition: Partition) -> u64 {
    match groups.is_split {
        true if groups.is_hashed() => partition.of,
        true => partition.ranges(groups.count()),
        false => 1,
    }
}

/// Words of a status with its counters and ends.
fn status_words(generated: &Generated) -> usize {
    STATUS_WORDS + generated.counted.len() + 2 * generated.ends.len()
}

/// What the counters say, by step of the pipeline: rows go through the acts in their order.
fn step_rows(generated: &Generated, plan: &Plan<'_>, counted: &[u64], scanned: u64, facts: &mut PipelineFacts) {
    let mut rows_in = scanned;
    facts.steps.fill(StepRows::default());
    let mut is_first = vec![true; facts.steps.len()];
    for (act, rows_out) in generated.counted.iter().zip(counted) {
        let step = plan.acts[*act].step;
        let of = &mut facts.steps[step];
        // A condition that was taken apart has seen what its first part has seen, and got rid of what all of them have.
        let before = if std::mem::take(&mut is_first[step]) { rows_in } else { of.rows_in };
        let removed = of.rows_in as i64 - of.rows_out as i64 + rows_in as i64 - *rows_out as i64;
        *of = StepRows { rows_in: before, rows_out: before.saturating_add_signed(-removed) };
        rows_in = *rows_out;
    }
}
