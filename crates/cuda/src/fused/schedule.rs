//! Order and number of the passes of each pipeline, for a program whose tables and groups may be
//! only partly resident in device memory.
//!
//! ```text
//! turn         one for each pipeline, in the order of the program
//!   partition    of its output, one after the other: of a table, the first is built, the others
//!                on demand; the groups of each are copied before the next
//!     pass         one for each combination of partitions of the tables that it probes
//!       table        tables that are not resident are built by a pipeline with its own passes
//!       launch       adds to the output of the earlier passes: a table or groups;
//!                    rows are copied after each pass
//! ```
//! Invariants:
//! - A probe processes a row in exactly one of the passes, whatever the kind of join: the pass of
//!   its key's partition. A row whose key cannot be in the table is processed in the last one, when
//!   all of the table has been resident. The output of a pipeline is therefore the same as after a
//!   single pass.
//! - [`Partitions`] decides between launches which outputs are split. A turn that ran out of memory
//!   is discarded, except for the facts that it has learned: the number of rows, and if keys
//!   repeat.
//! - An error of the data is reported after all passes: the one whose check comes first in the
//!   kernel source, of the first pipeline that fails. The first partition of a table is built in
//!   its turn, and all of its rows are checked then.

use std::sync::atomic::Ordering::Relaxed;

use onehop_pipeline::bind::BoundKind;
use onehop_pipeline::cpu::{Execution, ResultColumn, StepRows};
use onehop_pipeline::ir::{JoinKind, Pipeline, Sink, Step};
use onehop_pipeline::{Error as PipelineError, Expr, Interval, Source};

use super::built::Built;
use super::dry::table_shape;
use super::partition::{Partition, Partitions, Passes, Thing};
use super::plan::{ActKind, Plan};
use super::result::first_rows;
use super::run::{Answer, Attempt, Executor, Outcome, PipelineFacts, Run, WhenFull};
use super::table::{Rows, TableShape};
use super::{Error, Result};

/// Maximum number of passes of a pipeline. With more, another backend finishes sooner.
const MOST_PASSES: u64 = 1 << 8;

/// A fraction of less than one in this many values is negligible.
const HARDLY_ANY: i128 = 1 << 10;

/// Set of a source's morsels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// Morsels of all passes.
    All,
    /// Morsels that may have rows for the resident tables, and for this partition of the pipeline's
    /// output.
    Pass(Partition),
}

impl Executor {
    /// Estimates how often each pipeline will read its source if a run may take `bytes` bytes.
    /// Table sizes are bounded by the possible keys and the rows of the sources. Sizes of groups
    /// are unknown and not counted.
    pub fn expected_passes(&self, execution: &Execution, bytes: u64) -> Vec<u64> {
        let pipelines = &execution.program().pipelines;
        let shapes = pipelines.iter().zip(execution.shapes()).enumerate();
        let tables: Vec<Thing> = shapes
            .filter_map(|(number, (pipeline, shape))| {
                let rows = execution.sources()[pipeline.source].all_rows();
                let table = table_shape(execution, number, pipeline, shape, rows).ok()??;
                Some(Thing { pipeline: number, bytes: table.bytes(rows), how: table.how() })
            })
            .filter(|thing| may_be_split(execution, thing.pipeline))
            .collect();
        let mut partitions = Partitions::none(pipelines.len());
        loop {
            let of = |thing: &Thing| Thing { bytes: thing.bytes / partitions.of(thing.pipeline), ..*thing };
            let things: Vec<Thing> = tables.iter().map(of).collect();
            let fits = things.iter().map(|thing| thing.bytes).sum::<u64>() <= bytes;
            if fits || partitions.split_largest(&things, bytes).is_none() {
                break;
            }
        }
        let passes = |(number, pipeline): (usize, &Pipeline)| {
            let probed: u64 = tables_of(pipeline).into_iter().map(|table| partitions.of(table)).product();
            probed * partitions.of(number)
        };
        pipelines.iter().enumerate().map(passes).collect()
    }
}

impl<'a> Run<'a> {
    pub(super) fn all(&mut self) -> Result<Answer> {
        let mut answer = Answer { chunks: Vec::new(), pipelines: Vec::new() };
        let steps = self.execution.program().pipelines.iter().map(|pipeline| pipeline.steps.len());
        let facts = |steps| PipelineFacts { steps: vec![StepRows::default(); steps], ..PipelineFacts::default() };
        self.facts = steps.map(facts).collect();
        for number in 0..self.execution.pipelines() {
            let chunks = loop {
                match self.turn(number) {
                    Ok(chunks) => break chunks,
                    Err(error) if std::mem::take(&mut self.is_full) => self.make_room(number, error)?,
                    Err(error) => return Err(error),
                }
            };
            answer.chunks.extend(chunks.into_iter().filter(|chunk| chunk.first().is_some_and(|one| !one.is_empty())));
        }
        answer.pipelines = std::mem::take(&mut self.facts);
        Ok(answer)
    }

    /// Executes a pipeline after all earlier ones had their turns. Returns chunks of the result, if
    /// the pipeline produces it.
    fn turn(&mut self, number: usize) -> Result<Vec<Vec<ResultColumn>>> {
        let pipeline = self.pipeline(number);
        let mut chunks = Vec::new();
        match pipeline.sink {
            Sink::Build { .. } => {
                let of = self.partitions.of(number);
                self.carry(number, Partition { number: 0, of })?;
            }
            Sink::Aggregate { .. } => {
                let of = self.partitions.of(number);
                self.group_partitions = None;
                // There may be fewer ranges; their number is known after the first.
                let mut partition = Partition { number: 0, of };
                while partition.number < self.group_partitions.unwrap_or(of) {
                    chunks.push(self.carry(number, partition)?);
                    partition.number += 1;
                }
            }
            Sink::Collect { .. } | Sink::Top { .. } => chunks.push(self.carry(number, Partition::ALL)?),
        }
        let source = &self.execution.sources()[pipeline.source];
        source.all_finished(&mut self.scans[number].iter().map(|(morsel, _)| *morsel as usize));
        Ok(chunks)
    }

    /// Executes a pipeline for one partition of its output, once for each combination of partitions
    /// of the tables that it probes. Afterwards a table is resident; groups and rows are returned.
    fn carry(&mut self, number: usize, partition: Partition) -> Result<Vec<ResultColumn>> {
        let pipeline = self.pipeline(number);
        let source = &self.execution.sources()[pipeline.source];
        let probed = tables_of(pipeline);
        let mut facts = std::mem::take(&mut self.facts[number]);
        let result = loop {
            match self.carried(number, partition, pipeline, &**source, &probed, &mut facts) {
                Ok(None) => {}
                Ok(Some(columns)) => break Ok(columns),
                Err(error) => break Err(error),
            }
        };
        self.facts[number] = facts;
        result
    }

    /// As [`Run::carry`]. Returns `None` if the run has learned a fact that requires another
    /// attempt.
    fn carried(
        &mut self,
        number: usize,
        partition: Partition,
        pipeline: &Pipeline,
        source: &dyn Source,
        probed: &[usize],
        facts: &mut PipelineFacts,
    ) -> Result<Option<Vec<ResultColumn>>> {
        self.forget_sink(number);
        let shapes = self.shapes();
        let mut passes = Passes::new(probed.iter().map(|table| {
            let of = self.partitions.of(*table);
            (*table, self.tables[*table].shape.partitions(of), of)
        }));
        let plan = Plan::new(pipeline, &self.execution.shapes()[number], &shapes, source, self.counts)?;
        if self.are_there(&passes)? == Learned::Something {
            return Ok(None);
        }
        let scan = self.morsels(number, &plan, Scan::All);
        facts.morsels_skipped = source.morsels() - scan.len();
        facts.rows = scan.iter().map(|(_, rows)| u64::from(*rows)).sum();
        let built = self.table_of(number, facts.rows)?;
        let slices = match pipeline.sink {
            Sink::Collect { .. } | Sink::Top { .. } => self.partitions.of(number),
            Sink::Build { .. } | Sink::Aggregate { .. } => 1,
        };
        self.scans[number] = scan;
        let mut columns: Vec<ResultColumn> = Vec::new();
        loop {
            if self.are_there(&passes)? == Learned::Something {
                return Ok(None);
            }
            let morsels = match partition == Partition::ALL && passes.count() == 1 {
                true => self.scans[number].clone(),
                false => self.morsels(number, &plan, Scan::Pass(partition)),
            };
            for slice in 0..slices {
                let is_last = passes.is_last() && slice + 1 == slices;
                let (first, count) = Partition { number: slice, of: slices }.range(morsels.len() as u64);
                let morsels = &morsels[first as usize..(first + count) as usize];
                if morsels.is_empty() && !is_last {
                    continue;
                }
                if self.cancelled.load(Relaxed) {
                    return Err(Error::Pipeline(PipelineError::Cancelled));
                }
                let room = self.rooms[number];
                let (plan, shapes, built) = (&plan, &shapes[..], built.as_ref());
                let attempt = Attempt { number, plan, shapes, built, partition, room, is_last };
                let outcome = self.attempt(&attempt, morsels, facts)?;
                self.sweep();
                match outcome {
                    Outcome::Done(more) => self.append(&mut columns, more, &pipeline.sink),
                    Outcome::Chains(rows) => {
                        self.tables[number].shape.rows = Rows::Chains;
                        self.rooms[number].rows = rows;
                        return Ok(None);
                    }
                    Outcome::More(more) => {
                        self.rooms[number] = more;
                        return Ok(None);
                    }
                }
            }
            if passes.is_last() {
                break;
            }
            passes.advance();
        }
        self.forget_sink(number);
        facts.passes = passes.count()
            * match &built {
                Some(shape) => shape.partitions(partition.of),
                None => self.group_partitions.unwrap_or(slices),
            };
        if let Sink::Top { keys, .. } = &pipeline.sink {
            columns.drain(..keys.len().min(columns.len()));
        }
        Ok(Some(columns))
    }

    /// Appends rows to those of the earlier passes. For `Top`, keeps only rows that may be among
    /// the first.
    fn append(&self, columns: &mut Vec<ResultColumn>, more: Vec<ResultColumn>, sink: &Sink) {
        match columns.is_empty() {
            true => *columns = more,
            false => columns.iter_mut().zip(&more).for_each(|(to, from)| to.append(from)),
        }
        if let Sink::Top { rows, keys, .. } = sink {
            *columns = first_rows(columns, keys, *rows);
        }
    }

    /// Builds the partitions that a pass needs and that are not resident. Later tables come first,
    /// because building them may need other partitions of earlier tables.
    fn are_there(&mut self, passes: &Passes) -> Result<Learned> {
        let mut learned = Learned::Nothing;
        for (table, partition) in passes.tables().rev() {
            if self.tables[table].partition != Some(partition) {
                let before = self.tables[table].shape.rows;
                self.tables[table].leave();
                self.carry(table, partition)?;
                if self.tables[table].shape.rows != before {
                    learned = Learned::Something;
                }
            }
        }
        Ok(learned)
    }

    /// Returns the shape of the table that a pipeline builds from at most `rows` rows, if it builds
    /// one.
    fn table_of(&mut self, number: usize, rows: u64) -> Result<Option<TableShape>> {
        if let Some(table) = self.tables.get(number) {
            return Ok(Some(table.shape.clone()));
        }
        let shape = table_shape(self.execution, number, self.pipeline(number), &self.execution.shapes()[number], rows)?;
        Ok(shape.map(|mut shape| {
            shape.is_split = self.partitions.of(number) > 1;
            self.tables.push(Built::expected(shape.clone()));
            shape
        }))
    }

    /// Makes room after a turn that ran out of memory. Returns an error if that is impossible.
    fn make_room(&mut self, turn: usize, error: Error) -> Result<()> {
        self.lane.stream.synchronize()?;
        self.held.clear();
        if self.executor.give_back_idle() > 0 {
            return Ok(());
        }
        if self.memory.when_full == WhenFull::Fail || self.lane.arena.limit() == 0 {
            return Err(error);
        }
        self.sinks.iter_mut().for_each(|sink| *sink = None);
        self.sweep();
        let pipelines = self.execution.pipelines();
        let wanted = std::mem::replace(&mut self.wanted, vec![None; pipelines]);
        if !self.lane.arena.is_gathered() {
            self.tables.iter_mut().for_each(Built::leave);
            return self.lane.arena.gather();
        }
        let needed = self.needed(turn);
        let idle = self.tables.iter_mut().zip(&needed).filter(|(table, needed)| !**needed && table.bytes() > 0);
        if let Some((table, _)) = idle.max_by_key(|(table, _)| table.bytes()) {
            // It is built again on demand.
            table.leave();
            return Ok(());
        }
        let thing = |pipeline: usize| {
            let there = self.tables.get(pipeline).filter(|table| table.bytes() > 0);
            let there = there.map(|table| Thing { pipeline, bytes: table.bytes(), how: table.shape.how() });
            wanted[pipeline].or(there).filter(|_| may_be_split(self.execution, pipeline))
        };
        let things: Vec<Thing> = (0..pipelines).filter_map(thing).collect();
        let Some((number, part)) = self.partitions.split_largest(&things, self.lane.arena.limit()) else {
            return Err(self.too_large(&things, error));
        };
        let probed = tables_of(self.pipeline(turn)).into_iter().map(|table| self.partitions.of(table));
        if probed.fold(self.partitions.of(turn), u64::saturating_mul) > MOST_PASSES {
            return Err(self.too_large(&things, error));
        }
        // Some reserve is added, because partitions differ in size.
        let room = &mut self.rooms[number];
        room.rows = (room.rows as f64 * part * 1.125).ceil() as u64;
        room.places = ((room.places as f64 * part) as u64).checked_ilog2().map_or(0, |log| 1 << log);
        if let Some(table) = self.tables.get_mut(number) {
            (table.shape.is_split, table.shape.filled) = (true, None);
            self.facts[number].table = None;
            table.leave();
        }
        Ok(())
    }

    /// Returns the tables that must be resident, or may have to be built again, in a pipeline's
    /// turn.
    fn needed(&self, turn: usize) -> Vec<bool> {
        let mut needed = vec![false; self.execution.pipelines()];
        needed[turn] = true;
        for number in (0..=turn).rev() {
            let is_whole = self.tables.get(number).is_some_and(|table| table.partition == Some(Partition::ALL));
            if needed[number] && (number == turn || !is_whole) {
                tables_of(self.pipeline(number)).into_iter().for_each(|table| needed[table] = true);
            }
        }
        needed
    }

    /// Returns the error for objects that further splits would not make smaller.
    fn too_large(&self, things: &[Thing], error: Error) -> Error {
        let Some(thing) = things.iter().max_by_key(|thing| thing.bytes) else { return error };
        let what = match self.pipeline(thing.pipeline).sink {
            Sink::Build { .. } => "a part of a join table, too many of whose rows may have one key,",
            Sink::Aggregate { .. } => "a part of the groups",
            Sink::Collect { .. } | Sink::Top { .. } => "a part of the answer's rows",
        };
        let what = format!("{what} on the GPU, where gpu.memory_limit says what a query may take,");
        let (needed, available) = (thing.bytes as usize, self.lane.arena.limit() as usize);
        Error::Pipeline(PipelineError::Memory { what, needed, available })
    }

    /// Releases the memory that a pipeline has added to so far, and all memory that is no longer in
    /// use.
    fn forget_sink(&mut self, number: usize) {
        self.sinks[number] = None;
        self.wanted[number] = None;
        self.sweep();
    }

    fn shapes(&self) -> Vec<TableShape> {
        self.tables.iter().map(|table| table.shape.clone()).collect()
    }

    /// Returns the morsels that may have rows for the sink, with their numbers of rows.
    pub(super) fn morsels(&self, number: usize, plan: &Plan<'_>, scan: Scan) -> Vec<(u32, u32)> {
        let source = plan.source();
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
                ActKind::Probe(probe) => {
                    let table = &self.tables[probe.table];
                    if table.shape.is_split && scan == Scan::All {
                        continue;
                    }
                    let finds = matches!(probe.kind, JoinKind::Inner | JoinKind::Semi);
                    if finds && table.rows == 0 {
                        return Vec::new();
                    }
                    if let [key] = probe.keys.as_slice()
                        && let Some(column) = plan.column_register(key).and_then(|register| plan.column(register))
                    {
                        let keys = if finds { table.keys } else { None };
                        wanted.extend(keys.map(|interval| (column, interval)));
                        // Rows without a match also pass, in the pass of their keys' partition.
                        let range = table.values().filter(|_| finds || !table.is_last());
                        wanted.extend(range.map(|interval| (column, interval)));
                    }
                }
            }
        }
        if let (Scan::Pass(partition), Sink::Build { keys, .. }) = (scan, &plan.pipeline.sink) {
            wanted.extend(self.built_range(number, plan, keys, partition));
        }
        // An interval that contains all values of the column, or all but a negligible part at its
        // ends, is not checked against blocks: it would exclude almost none.
        wanted.retain(|(column, interval)| !holds_nearly_all(*interval, source.columns()[*column].interval));
        let mut left: Vec<u32> = (0..source.morsels() as u32).collect();
        wanted.iter().for_each(|(column, interval)| source.retain_within(*column, *interval, &mut left));
        let with_rows = left.into_iter().map(|morsel| (morsel, source.rows(morsel as usize) as u32));
        with_rows.filter(|(_, rows)| *rows > 0).collect()
    }

    /// Returns the key column of the table that is built and the values of a partition, if rows of
    /// other partitions can be skipped: they cannot fail, and all have a key.
    fn built_range(
        &self,
        number: usize,
        plan: &Plan<'_>,
        keys: &[Expr],
        partition: Partition,
    ) -> Option<(usize, Interval)> {
        let [key] = keys else { return None };
        let values = self.tables.get(number)?.shape.values_of(partition)?;
        let bound = plan.bind(key).ok()?;
        let column = plan.column_register(&bound).and_then(|register| plan.column(register))?;
        (!bound.domain.nullable && !plan.can_building_fail()).then_some((column, values))
    }

    fn pipeline(&self, number: usize) -> &'a Pipeline {
        &self.execution.program().pipelines[number]
    }
}

/// Returns true if an interval covers so much of `of` that almost no block with values in `of` is
/// outside it, whatever the distribution of the values.
fn holds_nearly_all(interval: Interval, of: Interval) -> bool {
    let outside =
        (interval.min.saturating_sub(of.min).max(0)).saturating_add(of.max.saturating_sub(interval.max).max(0));
    outside.saturating_mul(HARDLY_ANY) <= of.max.saturating_sub(of.min).max(0)
}

/// Result of building tables: tells if a fact was learned that changes kernel sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Learned {
    Nothing,
    Something,
}

/// Returns true if a partition of a pipeline's output can be resident without the others. A table
/// that one pipeline probes twice cannot be split, because a row may have a key in each of two
/// partitions.
pub(super) fn may_be_split(execution: &Execution, number: usize) -> bool {
    let probes = |pipeline: &Pipeline| {
        let is_probe = |step: &&Step| matches!(step, Step::Probe(probe) if probe.table == number);
        pipeline.steps.iter().filter(is_probe).count()
    };
    execution.program().pipelines.iter().all(|pipeline| probes(pipeline) <= 1)
}

/// Returns the tables that a pipeline probes, each once, in order.
fn tables_of(pipeline: &Pipeline) -> Vec<usize> {
    let table = |step: &Step| if let Step::Probe(probe) = step { Some(probe.table) } else { None };
    let mut tables: Vec<usize> = pipeline.steps.iter().filter_map(table).collect();
    tables.sort_unstable();
    tables.dedup();
    tables
}
