//! Which pipeline runs when, and how often: a program in device memory that may have room for a part of its tables and
//! groups only.
//!
//! ```text
//! turn         each pipeline has one, in the order of the program
//!   partition    of what it ends in, one after the other: a table's first is built, the others when they are asked for;
//!                groups of each are copied before the next
//!     pass         for each combination of partitions of the tables that it probes
//!       table        those that are not there are built, which is a pipeline with passes of its own
//!       launch       adds to what the passes before it have left: a table, groups; rows are copied after each
//! ```
//! Invariants:
//! - A row goes on in exactly one of the passes, whatever kind of join it meets: that of the partition of its key. One that
//!   has no key that the table could have goes on in the last, by when all of the table has been there. What a pipeline ends
//!   in is thus what it would be in one pass.
//! - What is split is decided between launches, by [`Partitions`]. Nothing of a turn that found no room is used again but
//!   what has been learned: how many rows there are, and whether keys repeat.
//! - An error of data is told when all passes are through, the one that comes first in the text; of pipelines, that of the
//!   first. A table's first partition is built when its turn comes, and all of its rows are looked at then.

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

/// Passes that a pipeline may take. Of more, whoever else can run it is done sooner.
const MOST_PASSES: u64 = 1 << 8;

/// Of so many values less than one is hardly any.
const HARDLY_ANY: i128 = 1 << 10;

/// Which of a source's morsels are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// Those of all passes.
    All,
    /// Those that may have rows for the tables that are there, and this partition of what the pipeline ends in.
    Pass(Partition),
}

impl Executor {
    /// How often each pipeline is going to go through its source, as far as sizes of tables are known by what their keys
    /// could be and by their sources' rows, if a run may take so many bytes. Groups are not known.
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

    /// A pipeline, when all before it had their turns: chunks of the answer, if it ends in that.
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
                // Ranges may be fewer; that is known when the first is through.
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

    /// Carries a pipeline through, once for each combination of partitions of the tables that it probes, for one partition
    /// of what it ends in. A table is there then; what is none is given back.
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

    /// As [`Run::carry`]; `None` if something was learned on the way, and it has to be begun once more.
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

    /// Adds rows to those of the passes before; those that may be among the first.
    fn append(&self, columns: &mut Vec<ResultColumn>, more: Vec<ResultColumn>, sink: &Sink) {
        match columns.is_empty() {
            true => *columns = more,
            false => columns.iter_mut().zip(&more).for_each(|(to, from)| to.append(from)),
        }
        if let Sink::Top { rows, keys, .. } = sink {
            *columns = first_rows(columns, keys, *rows);
        }
    }

    /// Builds what is not there of what a pass needs. Tables before others last: who builds the others may need other
    /// partitions of them.
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

    /// The shape of the table that a pipeline builds, of so many rows at most, if it builds one.
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

    /// Makes room after a turn that found none, or says that there is nothing to be done about it.
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
            // It is built again when it is asked for.
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
        // With something to spare: partitions are not of the same size.
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

    /// What has to be there, or may have to be built again, in a pipeline's turn.
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

    /// Nothing that could be split more often would be smaller.
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

    /// Takes back what a pipeline has added to so far, and what nobody needs any more.
    fn forget_sink(&mut self, number: usize) {
        self.sinks[number] = None;
        self.wanted[number] = None;
        self.sweep();
    }

    fn shapes(&self) -> Vec<TableShape> {
        self.tables.iter().map(|table| table.shape.clone()).collect()
    }

    /// Morsels that may have rows for the sink, with their rows.
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
                        // Rows that find nothing go on as well, in the pass of their keys.
                        let range = table.values().filter(|_| finds || !table.is_last());
                        wanted.extend(range.map(|interval| (column, interval)));
                    }
                }
            }
        }
        if let (Scan::Pass(partition), Sink::Build { keys, .. }) = (scan, &plan.pipeline.sink) {
            wanted.extend(self.built_range(number, plan, keys, partition));
        }
        // What the whole column lies within is asked of no block, nor what it lies within but for so little of its ends that
        // hardly a block could be there.
        wanted.retain(|(column, interval)| !holds_nearly_all(*interval, source.columns()[*column].interval));
        let mut left: Vec<u32> = (0..source.morsels() as u32).collect();
        wanted.iter().for_each(|(column, interval)| source.retain_within(*column, *interval, &mut left));
        let with_rows = left.into_iter().map(|morsel| (morsel, source.rows(morsel as usize) as u32));
        with_rows.filter(|(_, rows)| *rows > 0).collect()
    }

    /// The column that is the key of a table that is built, and the values of a partition, if rows of others need not be
    /// looked at: they cannot fail, and have a key.
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

/// Whether an interval has so much of another that of blocks of that, however their values lie, next to none has none of it.
fn holds_nearly_all(interval: Interval, of: Interval) -> bool {
    let outside =
        (interval.min.saturating_sub(of.min).max(0)).saturating_add(of.max.saturating_sub(interval.max).max(0));
    outside.saturating_mul(HARDLY_ANY) <= of.max.saturating_sub(of.min).max(0)
}

/// Whether it is known now what was not before, and texts differ for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Learned {
    Nothing,
    Something,
}

/// Whether a partition of what a pipeline ends in can be there without the others: not of a table that is asked twice about
/// the same row, which may have two keys.
pub(super) fn may_be_split(execution: &Execution, number: usize) -> bool {
    let probes = |pipeline: &Pipeline| {
        let is_probe = |step: &&Step| matches!(step, Step::Probe(probe) if probe.table == number);
        pipeline.steps.iter().filter(is_probe).count()
    };
    execution.program().pipelines.iter().all(|pipeline| probes(pipeline) <= 1)
}

/// The tables that a pipeline probes, each once, in their order.
fn tables_of(pipeline: &Pipeline) -> Vec<usize> {
    let table = |step: &Step| if let Step::Probe(probe) = step { Some(probe.table) } else { None };
    let mut tables: Vec<usize> = pipeline.steps.iter().filter_map(table).collect();
    tables.sort_unstable();
    tables.dedup();
    tables
}
