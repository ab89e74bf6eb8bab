//! Runs a program on a device.
//!
//! ```text
//! for each pipeline
//!   plan, columns on the device or on their way, text, kernel
//!   memory for what it ends in, filled with zeros
//!   launch, once or for each batch; wait, status
//!     a check failed         the query's error
//!     a key came twice       once more, with chains
//!     there was no room      once more, with more
//!   a table stays on the device; groups and rows are copied
//! ```
//! Nothing is left behind by a run that fails: its memory is the arena's, which is taken back when the stream is through.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onehop_pipeline::bind::BoundKind;
use onehop_pipeline::cpu::{Execution, ResultColumn, StepRows, TableKind};
use onehop_pipeline::ir::{JoinKind, Sink};
use onehop_pipeline::{Error as PipelineError, Source};

use super::built::{Built, TableFacts, TableKey, filled};
use super::codegen::{Generated, Groups, Output, SinkShape};
use super::compile::Compiler;
use super::dry::{Dry, rows_of, table_shape, texts};
use super::image::{ColumnImage, Images};
use super::launch::{Reading, Sinks};
use super::memory::{Arena, Piece};
use super::plan::{ActKind, Plan};
use super::result::{first_rows, may_meet, of_groups, of_rows, rank_of_last, words_of};
use super::stream::StreamFacts;
use super::table::{Rows, TableShape};
use super::{Error, Result};
use crate::staging::{Shape, Stager};
use crate::{Context, Event, Nvrtc, Stream};

/// Words of a status, before the steps'.
pub(super) const STATUS_WORDS: usize = 5;
/// Bytes of collected rows that there is room for at first.
const ROWS_BYTES: u64 = 256 << 20;
/// Rows that there is room for at first, if those that come first in an order are wanted.
const FIRST_ROWS: u64 = 1 << 20;
/// Places of hashed groups at first, at most.
const GROUP_PLACES: u64 = 1 << 20;
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
    pub(super) options: Options,
    idle: Mutex<Vec<Lane>>,
}

/// What a run has to itself.
#[derive(Debug)]
pub(super) struct Lane {
    pub stream: Stream,
    pub arena: Arena,
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
    /// Rows seen and passed on, by step, if they were counted.
    pub steps: Vec<StepRows>,
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

/// Room for what a pipeline ends in.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    /// Rows of a table with chains, or collected ones.
    rows: u64,
    /// Places of hashed keys.
    places: u64,
    /// The rank of the last row that may be among the first.
    threshold: Option<u64>,
}

/// Memory for groups or rows, besides tables.
#[derive(Default)]
pub(super) struct Targets {
    pub groups: Option<Piece>,
    pub group_keys: Option<Piece>,
    pub group_places: u64,
    pub outputs: Vec<(Piece, Option<Piece>)>,
    pub capacity: u64,
}

impl Executor {
    /// For a device. Compiled kernels are kept in `folder`, if there is one.
    pub fn new(context: &Arc<Context>, nvrtc: &Arc<Nvrtc>, folder: Option<PathBuf>, options: Options) -> Self {
        let compiler = Compiler::new(context, nvrtc, folder);
        let stager = Stager::new(context);
        Self { context: Arc::clone(context), compiler, stager, options, idle: Mutex::default() }
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
        texts(execution, &Dry { forms: &forms, rows: Rows::Unique, many_rows: u64::MAX, counts, threads })
    }

    /// Runs a program, which stops soon after `cancelled` was set.
    ///
    /// # Errors
    /// [`Error::Refused`] before anything has run; the query's own; the device's.
    pub fn run(&self, execution: &Execution, images: &dyn Images, cancelled: &AtomicBool) -> Result<Answer> {
        self.check(execution)?;
        self.run_counting(execution, images, cancelled, self.options.counts)
    }

    /// As [`Executor::run`], of a program that was found to have code, with steps counting the rows that they let through, or
    /// not: that takes time.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run_counting(
        &self,
        execution: &Execution,
        images: &dyn Images,
        cancelled: &AtomicBool,
        counts: bool,
    ) -> Result<Answer> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut lane = match idle {
            Some(lane) => lane,
            None => Lane::new(&self.context)?,
        };
        let (tables, held) = (Vec::new(), Vec::new());
        let mut run = Run { executor: self, execution, images, cancelled, counts, lane: &mut lane, tables, held };
        let outcome = run.all();
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
}

impl Lane {
    fn new(context: &Arc<Context>) -> Result<Self> {
        let events = [Event::timed(context)?, Event::timed(context)?];
        Ok(Self { stream: Stream::new(context)?, arena: Arena::new(context), events })
    }
}

/// One run of a program.
pub(super) struct Run<'a> {
    pub executor: &'a Executor,
    execution: &'a Execution,
    pub images: &'a dyn Images,
    pub cancelled: &'a AtomicBool,
    pub counts: bool,
    pub lane: &'a mut Lane,
    pub tables: Vec<Built>,
    /// Columns that kernels may be reading.
    pub held: Vec<Arc<ColumnImage>>,
}

/// What an attempt at a pipeline came to.
enum Outcome {
    Done(Vec<ResultColumn>),
    /// Once more, with chains and room for so many rows.
    Chains(u64),
    /// Once more, with more room.
    More(Room),
}

impl Run<'_> {
    fn all(&mut self) -> Result<Answer> {
        let mut answer = Answer { chunks: Vec::new(), pipelines: Vec::new() };
        for number in 0..self.execution.pipelines() {
            let (chunk, facts) = self.pipeline(number)?;
            if chunk.first().is_some_and(|column| !column.is_empty()) {
                answer.chunks.push(chunk);
            }
            answer.pipelines.push(facts);
        }
        Ok(answer)
    }

    fn pipeline(&mut self, number: usize) -> Result<(Vec<ResultColumn>, PipelineFacts)> {
        let execution = self.execution;
        let (pipeline, shape) = (&execution.program().pipelines[number], &execution.shapes()[number]);
        let source = &execution.sources()[pipeline.source];
        let mut facts = PipelineFacts { steps: vec![StepRows::default(); pipeline.steps.len()], ..Default::default() };
        let shapes: Vec<TableShape> = self.tables.iter().map(|table| table.shape.clone()).collect();
        let plan = Plan::new(pipeline, shape, &shapes, &**source)?;
        let morsels = self.morsels(&plan, &**source);
        facts.morsels_skipped = source.morsels() - morsels.len();
        facts.rows = morsels.iter().map(|(_, rows)| u64::from(*rows)).sum();
        let mut built = table_shape(execution, number, pipeline, shape, facts.rows)?;
        let mut room = Room::default();
        loop {
            if self.cancelled.load(Relaxed) {
                return Err(Error::Pipeline(PipelineError::Cancelled));
            }
            match self.attempt(&plan, &shapes, built.as_ref(), &morsels, room, &mut facts)? {
                Outcome::Done(columns) => {
                    morsels.iter().for_each(|(morsel, _)| source.finished(*morsel as usize));
                    return Ok((columns, facts));
                }
                Outcome::Chains(rows) => {
                    built.iter_mut().for_each(|shape| shape.rows = Rows::Chains);
                    room.rows = rows;
                }
                Outcome::More(more) => room = more,
            }
        }
    }

    /// Morsels that may have rows for the sink, with their rows.
    fn morsels(&self, plan: &Plan<'_>, source: &dyn Source) -> Vec<(u32, u32)> {
        let mut wanted = Vec::new();
        for act in &plan.acts {
            match &act.kind {
                ActKind::Filter(bound) => {
                    if let BoundKind::Within { inner, interval } = &bound.kind
                        && let Some(column) = plan.column_register(inner).and_then(|register| plan.column(register))
                    {
                        wanted.push((column, *interval));
                    }
                }
                ActKind::Probe(probe) if matches!(probe.kind, JoinKind::Inner | JoinKind::Semi) => {
                    let table = &self.tables[probe.table];
                    if table.rows == 0 {
                        return Vec::new();
                    }
                    if let [key] = probe.keys.as_slice()
                        && let Some(column) = plan.column_register(key).and_then(|register| plan.column(register))
                        && let Some(interval) = table.shape.filled.as_ref().and_then(|filled| filled.key)
                    {
                        wanted.push((column, interval));
                    }
                }
                ActKind::Probe(_) => {}
            }
        }
        let may_pass = |morsel: &usize| {
            wanted.iter().all(|(column, interval)| may_meet(source.interval(*morsel, *column), *interval))
        };
        let all = (0..source.morsels()).filter(|morsel| source.rows(*morsel) > 0);
        all.filter(may_pass).map(|morsel| (morsel as u32, source.rows(morsel) as u32)).collect()
    }

    fn attempt(
        &mut self,
        plan: &Plan<'_>,
        shapes: &[TableShape],
        built: Option<&TableShape>,
        morsels: &[(u32, u32)],
        room: Room,
        facts: &mut PipelineFacts,
    ) -> Result<Outcome> {
        let source = &self.execution.sources()[plan.pipeline.source];
        let reading = Reading { plan, source, morsels, tables: shapes, built, rows: facts.rows };
        let columns = self.columns(&reading)?;
        facts.column_bytes = columns.images.values().map(|image| image.bytes() as u64).sum();
        let is_whole = columns.streamed.is_empty();
        let mut code = self.code(&reading, &columns.forms(), if is_whole { morsels } else { &[] }, facts)?;

        let table = built.map(|shape| self.table(shape, facts.rows, room)).transpose()?;
        let targets = self.targets(&code.generated, &plan.pipeline.sink, facts.rows, room)?;
        let words = STATUS_WORDS + code.generated.counted.len() + 2 * code.generated.ends.len();
        let status = self.zeros(words as u64 * 8)?;
        let mut sinks = Sinks { table, targets, status, threshold: room.threshold };
        match is_whole {
            true => self.launch_once(&reading, &columns, &mut code, &sinks, facts)?,
            false => self.stream(&reading, &columns, &mut code, &sinks, facts)?,
        }
        self.outcome(plan, source, &code.generated, &mut sinks, room, facts)
    }

    /// What has come of it, once all kernels are through.
    fn outcome(
        &mut self,
        plan: &Plan<'_>,
        source: &Arc<dyn Source>,
        generated: &Generated,
        sinks: &mut Sinks,
        room: Room,
        facts: &mut PipelineFacts,
    ) -> Result<Outcome> {
        let (status, targets) = (sinks.status, &sinks.targets);
        let status = words_of(&self.lane.arena.read(status, status.len)?);
        facts.bytes_down += status.len() as u64 * 8;
        let [failed, rows, keyless, repeated, full] = [0, 1, 2, 3, 4].map(|n: usize| status[n]);
        if failed != 0 {
            let failure = generated.checks.get(!failed as usize);
            let unknown = || PipelineError::Invalid("a check that nobody made has failed".into());
            return Err(Error::Pipeline(failure.map_or_else(unknown, |failure| failure.error())));
        }
        if let Some(mut table) = sinks.table.take() {
            if repeated != 0 {
                return Ok(Outcome::Chains(rows));
            }
            if full != 0 {
                return Ok(Outcome::More(Room {
                    rows: rows.max(room.rows),
                    places: table.places * 4,
                    threshold: None,
                }));
            }
            (table.rows, table.has_keyless) = (rows, keyless != 0);
            let ends = &status[STATUS_WORDS + generated.counted.len()..];
            table.shape.filled = Some(filled(generated, &table.shape, rows, rows_of(&**source), ends));
            facts.table = Some(table.facts());
            self.tables.push(table);
            step_rows(generated, plan, &status[STATUS_WORDS..], facts);
            return Ok(Outcome::Done(Vec::new()));
        }
        step_rows(generated, plan, &status[STATUS_WORDS..], facts);
        match &generated.sink {
            SinkShape::Groups(_) if full != 0 => {
                Ok(Outcome::More(Room { places: targets.group_places * 4, ..Room::default() }))
            }
            SinkShape::Groups(groups) => self.groups(groups, targets, facts).map(Outcome::Done),
            SinkShape::Rows { outputs, has_threshold } if rows > targets.capacity => {
                // Some rows are here, of which the first say what all others have to beat; then few are left.
                let threshold = match (has_threshold, room.threshold) {
                    (true, None) => self.threshold(plan, &outputs[0], targets)?,
                    (_, known) => known,
                };
                let is_new = threshold != room.threshold;
                Ok(Outcome::More(Room { rows: if is_new { room.rows } else { rows }, places: 0, threshold }))
            }
            SinkShape::Rows { outputs, .. } => self.rows(plan, outputs, targets, rows, facts).map(Outcome::Done),
            SinkShape::Table => Ok(Outcome::Done(Vec::new())),
        }
    }

    /// Memory that is filled with a byte before the next kernel.
    fn filled(&mut self, bytes: u64, byte: u8) -> Result<Piece> {
        let piece = self.piece(bytes)?;
        // SAFETY: the piece is nobody else's, and its arena is not taken back before the stream is through.
        unsafe { self.lane.stream.fill_at(piece.address, byte, piece.len)? };
        Ok(piece)
    }

    fn zeros(&mut self, bytes: u64) -> Result<Piece> {
        self.filled(bytes, 0)
    }

    pub fn piece(&mut self, bytes: u64) -> Result<Piece> {
        let attempt = || format!("{bytes} bytes of device memory");
        let too_much = || self.too_much(bytes);
        let len = usize::try_from(bytes).ok().filter(|_| bytes < MOST_BYTES).ok_or_else(too_much)?;
        self.lane.arena.take(len.max(16)).map_err(|error| match error {
            Error::Device { source, .. } => Error::Device { attempt: attempt(), source },
            other => other,
        })
    }

    fn too_much(&self, bytes: u64) -> Error {
        let available = self.executor.context.device().memory_bytes as usize;
        Error::Pipeline(PipelineError::Memory { what: "a query on the GPU".into(), needed: bytes as usize, available })
    }

    /// Memory for a table.
    fn table(&mut self, shape: &TableShape, rows: u64, room: Room) -> Result<Built> {
        let places = shape.places(rows).max(room.places);
        let has_chains = shape.rows == Rows::Chains;
        let capacity = if has_chains { room.rows.max(1) } else { places };
        if capacity >= u64::from(u32::MAX) && has_chains {
            // Rows are numbered in 32 bits.
            return Err(self.too_much(capacity * 8));
        }
        let mut memory = BTreeMap::new();
        match shape.kind {
            TableKind::Direct => {
                memory.insert(TableKey::Bits, self.zeros(places.div_ceil(64) * 8)?);
            }
            TableKind::Hashed => {
                memory.insert(TableKey::Keys, self.filled(places * 8, 0xff)?);
            }
        }
        if has_chains || shape.rows == Rows::Unique && shape.kind == TableKind::Hashed {
            memory.insert(TableKey::Head, self.zeros(places * 4)?);
        }
        if has_chains {
            memory.insert(TableKey::Next, self.piece(capacity * 4)?);
        }
        for (column, element) in shape.payload.iter().enumerate() {
            let Some(element) = element else { continue };
            memory.insert(TableKey::Payload(column), self.piece(capacity * element.bytes as u64)?);
            if element.nullable {
                memory.insert(TableKey::PayloadValid(column), self.piece(capacity)?);
            }
        }
        Ok(Built { shape: shape.clone(), places, memory, rows: capacity, has_keyless: false })
    }

    /// Memory for groups or rows.
    fn targets(&mut self, generated: &Generated, sink: &Sink, rows: u64, room: Room) -> Result<Targets> {
        let mut targets = Targets::default();
        match &generated.sink {
            SinkShape::Table => {}
            SinkShape::Groups(groups) => {
                let keys = groups.count();
                targets.group_places = match groups.is_hashed() {
                    true => (rows.min(keys).max(32) * 2).next_power_of_two().min(GROUP_PLACES).max(room.places),
                    false => keys,
                };
                let bytes = targets.group_places.saturating_mul(groups.words as u64 * 8);
                targets.groups = Some(self.zeros(bytes)?);
                if groups.is_hashed() {
                    targets.group_keys = Some(self.filled(targets.group_places * 8, 0xff)?);
                }
            }
            SinkShape::Rows { outputs, has_threshold } => {
                let bytes: u64 = outputs.iter().map(|output| output.bytes() as u64 + 1).sum();
                let most = match sink {
                    Sink::Top { rows, .. } if *has_threshold => {
                        (*rows as u64 * 16).max(self.executor.options.many_rows.min(FIRST_ROWS))
                    }
                    _ => ROWS_BYTES / bytes.max(1),
                };
                targets.capacity = rows.clamp(1, most.max(1)).max(room.rows);
                for output in outputs {
                    let values = self.piece(targets.capacity * output.bytes() as u64)?;
                    let valid = output.domain.nullable.then(|| self.piece(targets.capacity)).transpose()?;
                    targets.outputs.push((values, valid));
                }
            }
        }
        Ok(targets)
    }

    fn groups(&mut self, groups: &Groups, targets: &Targets, facts: &mut PipelineFacts) -> Result<Vec<ResultColumn>> {
        let mut read = |piece: Option<Piece>| -> Result<Vec<u64>> {
            let Some(piece) = piece else { return Ok(Vec::new()) };
            facts.bytes_down += piece.len as u64;
            Ok(words_of(&self.lane.arena.read(piece, piece.len)?))
        };
        let states = read(targets.groups)?;
        let keys = read(targets.group_keys)?;
        Ok(of_groups(groups, &states, groups.is_hashed().then_some(&keys), targets.group_places as usize))
    }

    /// The rank of the last of the first rows, of those that are there.
    fn threshold(&self, plan: &Plan<'_>, first: &Output, targets: &Targets) -> Result<Option<u64>> {
        let Sink::Top { rows, keys, .. } = &plan.pipeline.sink else { return Ok(None) };
        let (Some(key), Some((values, valid))) = (keys.first(), targets.outputs.first()) else { return Ok(None) };
        let count = targets.capacity as usize;
        let values = self.lane.arena.read(*values, count * first.bytes())?;
        let valid = valid.map(|valid| self.lane.arena.read(valid, count)).transpose()?;
        Ok(rank_of_last(&of_rows(first, &values, valid.as_deref()), key, *rows))
    }

    fn rows(
        &mut self,
        plan: &Plan<'_>,
        outputs: &[Output],
        targets: &Targets,
        rows: u64,
        facts: &mut PipelineFacts,
    ) -> Result<Vec<ResultColumn>> {
        let mut columns = Vec::with_capacity(outputs.len());
        for (output, (values, valid)) in outputs.iter().zip(&targets.outputs) {
            let values = self.lane.arena.read(*values, rows as usize * output.bytes())?;
            let valid = valid.map(|valid| self.lane.arena.read(valid, rows as usize)).transpose()?;
            facts.bytes_down += (values.len() + valid.as_ref().map_or(0, Vec::len)) as u64;
            columns.push(of_rows(output, &values, valid.as_deref()));
        }
        Ok(match &plan.pipeline.sink {
            Sink::Top { rows, keys, .. } => first_rows(columns, keys, *rows),
            _ => columns,
        })
    }
}

/// What the counters say, by step of the pipeline: rows go through the acts in their order.
fn step_rows(generated: &Generated, plan: &Plan<'_>, counted: &[u64], facts: &mut PipelineFacts) {
    let mut rows_in = facts.rows;
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
