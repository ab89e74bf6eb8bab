//! The CPU backend: morsel-driven and vectorized, with all intermediate data between storage and
//! sink in the CPU caches.
//!
//! ```text
//! Execution ── one Stage per pipeline ── Workers, one per thread ── one Frame per vector
//!                 compiled steps            own sink state             live rows, loaded registers
//! ```
//! The caller owns the threads. A [`Worker`] is a plain value whose [`Worker::step`] processes one
//! morsel, so a query can be cancelled between morsels. [`run`] uses scoped threads.

mod aggregate;
mod ascending;
mod clock;
mod code;
mod distinct;
mod exact;
mod facts;
mod grouper;
mod index;
mod interner;
pub(crate) mod kernels;
mod keys;
mod order;
mod output;
mod page;
mod screen;
mod spill;
mod stage;
mod states;
mod table;
mod top;
mod unify;
mod vector;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;

pub use aggregate::{Answer, Chunks};
pub use clock::{StageTimes, thread_cpu_time};
pub use facts::{Grouping, SinkFacts, StepRows, TableFacts, TableKind, TopFacts};
pub use grouper::{Merger, Spilled};
pub use keys::{KeyDigit, KeyLayout};
pub use output::{ResultColumn, ResultValues};
pub use spill::SpillCounts;
pub use stage::{Skipped, Stage};
pub use table::KeyPart;
pub use vector::Kind;
pub use worker::Worker;

use onehop_io::Ledger;

use self::stage::CompiledSink;
use self::table::{Collected, JoinTable, Tables, Wanted};
use self::worker::SinkState;
use crate::budget::{Budget, Holder, Room};
use crate::ir::{JoinKind, Pipeline, Program, Shape, Step, validate};
use crate::{Domain, Error, Result, Source};

/// A program and the state of its run.
#[derive(Clone, Debug)]
pub struct Execution {
    program: Arc<Program>,
    sources: Vec<Arc<dyn Source>>,
    shapes: Arc<[Shape]>,
    tables: Tables,
    /// Memory reservations of the tables.
    rooms: Vec<Arc<Room>>,
    /// Budget for tables and groups.
    budget: Budget,
}

impl Execution {
    /// Checks a program and creates its execution.
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::Unsupported`], before any row is read.
    pub fn new(program: Program, sources: Vec<Arc<dyn Source>>, budget: impl Into<Budget>) -> Result<Self> {
        let columns: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
        let (shapes, program) = (validate(&program, &columns)?.into(), Arc::new(program));
        Ok(Self { program, sources, shapes, tables: Vec::new(), rooms: Vec::new(), budget: budget.into() })
    }

    /// Returns the same program, already checked, at its start and with another budget.
    #[must_use]
    pub fn with_budget(&self, budget: impl Into<Budget>) -> Self {
        Self { budget: budget.into(), tables: Vec::new(), rooms: Vec::new(), ..self.clone() }
    }

    /// Returns the same program over other sources, at its start and with another budget. Some
    /// sources may have been placeholders when the program was checked, so it is checked again.
    ///
    /// # Errors
    /// As [`Execution::new`].
    pub fn with_sources(&self, sources: Vec<Arc<dyn Source>>, budget: impl Into<Budget>) -> Result<Self> {
        Self::new(Program::clone(&self.program), sources, budget)
    }

    /// Returns the same program, already checked and at its start, with other ledgers for its I/O:
    /// `ledger` gives that of each source. `None` if a source cannot change its ledger
    /// ([`Source::for_ledger`]).
    pub fn for_ledgers(&self, ledger: impl Fn(usize) -> Option<Arc<Ledger>>) -> Option<Self> {
        let sources = self.sources.iter().enumerate().map(|(number, source)| match ledger(number) {
            Some(ledger) => source.for_ledger(&ledger),
            None => Some(Arc::clone(source)),
        });
        let sources = sources.collect::<Option<_>>()?;
        Some(Self { sources, tables: Vec::new(), rooms: Vec::new(), ..self.clone() })
    }

    /// Compiles every pipeline with empty join tables, so that unsupported programs are refused
    /// before any row is read. Returns the planned sink of each pipeline.
    ///
    /// # Errors
    /// [`Error::Unsupported`] in most cases.
    pub fn check(&self) -> Result<Vec<SinkFacts>> {
        let mut tables: Tables = Vec::new();
        let mut unbounded = Budget::from(usize::MAX).room("a join table", Holder::Keeps);
        let mut planned = Vec::with_capacity(self.pipelines());
        for (pipeline, shape) in self.program.pipelines.iter().zip(self.shapes.iter()) {
            let source = Arc::clone(&self.sources[pipeline.source]);
            // The keys of an empty table rule out every morsel. Therefore the steps are compiled
            // with the table, and rows are counted without it.
            let rows = source.all_live_rows();
            let stage = Stage::unread(pipeline, shape, source, &tables, &self.budget)?;
            planned.push(stage.planned(rows));
            if let CompiledSink::Build { layout, payload, .. } = &stage.sink {
                let payload: Vec<Domain> = payload.iter().map(|(_, domain)| domain.clone()).collect();
                let nothing = vec![Collected::new(&payload)];
                tables.push(Arc::new(JoinTable::build(nothing, layout, Wanted::Rows, &mut unbounded)?));
            }
        }
        Ok(planned)
    }

    /// Returns the program. Executions derived from one execution share it.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Returns the domains of registers, tables and answer, by pipeline.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// Returns the same program, or one with the same registers and tables, over parts of the
    /// sources and additional sources. No register may hold other values than before.
    pub(crate) fn of_parts(&self, program: &Arc<Program>, sources: Vec<Arc<dyn Source>>) -> Result<Self> {
        if Arc::ptr_eq(program, &self.program) {
            return Ok(Self { sources, tables: Vec::new(), rooms: Vec::new(), ..self.clone() });
        }
        let columns: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
        let (shapes, program) = (validate(program, &columns)?.into(), Arc::clone(program));
        Ok(Self { program, sources, shapes, tables: Vec::new(), rooms: Vec::new(), budget: self.budget.clone() })
    }

    /// Returns the sources that it reads.
    pub fn sources(&self) -> &[Arc<dyn Source>] {
        &self.sources
    }

    /// Returns the number of pipelines, which run in order.
    pub fn pipelines(&self) -> usize {
        self.program.pipelines.len()
    }

    /// Returns the domains of the answer's columns.
    pub fn outputs(&self) -> &[Domain] {
        self.shapes.last().map_or(&[], |shape| &shape.outputs)
    }

    /// Prepares a pipeline. All pipelines before it must be finished.
    pub fn stage(&self, pipeline: usize) -> Result<Arc<Stage>> {
        let (pipeline, shape) = (&self.program.pipelines[pipeline], &self.shapes[pipeline]);
        let source = Arc::clone(&self.sources[pipeline.source]);
        Ok(Arc::new(Stage::new(pipeline, shape, source, &self.tables, &self.budget)?))
    }

    /// Returns true if the table of a pipeline may be built in parts ([`KeyPart`]), with one run of
    /// the last pipeline per part. The last pipeline must probe the table, and no other pipeline
    /// may. Every row finds its matches in one of the passes. `NOT IN` depends on all rows of the
    /// table, including those without a key.
    pub fn may_pass(&self, pipeline: usize) -> bool {
        let probes = |of: &Pipeline| -> Vec<JoinKind> {
            let kind_of = |step: &Step| match step {
                Step::Probe(probe) if probe.table == pipeline => Some(probe.kind),
                _ => None,
            };
            of.steps.iter().filter_map(kind_of).collect()
        };
        let Some((last, others)) = self.program.pipelines.split_last() else { return false };
        matches!(probes(last).as_slice(), [kind] if *kind != JoinKind::NotIn)
            && others.iter().all(|other| probes(other).is_empty())
    }

    /// Prepares a pipeline as [`Execution::stage`] does, for a part of the keys of a table.
    pub fn stage_of_part(&self, pipeline: usize, part: KeyPart) -> Result<Arc<Stage>> {
        let (of, shape) = (&self.program.pipelines[pipeline], &self.shapes[pipeline]);
        let source = Arc::clone(&self.sources[of.source]);
        let mut stage = Stage::new(of, shape, source, &self.tables, &self.budget)?;
        if let CompiledSink::Build { part: only, .. } = &mut stage.sink {
            *only = part;
        }
        Ok(Arc::new(stage))
    }

    /// Leaves a pipeline's table empty, so that others can be built before it. Releases a table
    /// that was built before.
    pub fn leave_out(&mut self, pipeline: usize) -> Result<()> {
        let stage = self.stage(pipeline)?;
        if let CompiledSink::Build { layout, payload, .. } = &stage.sink {
            let payload: Vec<Domain> = payload.iter().map(|(_, domain)| domain.clone()).collect();
            let mut room = self.budget.room("a join table", Holder::Keeps);
            let nothing = JoinTable::build(vec![Collected::new(&payload)], layout, Wanted::Rows, &mut room)?;
            self.put(pipeline, nothing, room);
        }
        Ok(())
    }

    /// Sets the table of a pipeline.
    fn put(&mut self, pipeline: usize, table: JoinTable, room: Room) {
        let (table, room) = (Arc::new(table), Arc::new(room));
        match self.tables.get_mut(pipeline) {
            Some(before) => (*before, self.rooms[pipeline]) = (table, room),
            None => {
                self.tables.push(table);
                self.rooms.push(room);
            }
        }
    }

    /// Returns the requirements of the program's probes on a table.
    fn wanted_of(&self, table: usize) -> Wanted {
        let only_asks = |step: &Step| match step {
            Step::Probe(probe) => probe.table != table || matches!(probe.kind, JoinKind::Semi | JoinKind::Anti),
            Step::Filter(_) | Step::Map(_) => true,
        };
        let only_asked = self.program.pipelines.iter().all(|pipeline| pipeline.steps.iter().all(only_asks));
        if only_asked { Wanted::Keys } else { Wanted::Rows }
    }

    /// Combines the workers' results once no morsel is left: into a table for later pipelines, or
    /// into groups.
    ///
    /// # Errors
    /// [`Error::Memory`], and those of files.
    pub fn finish(&mut self, pipeline: usize, stage: &Stage, workers: Vec<Worker>) -> Result<Answer> {
        match &stage.sink {
            CompiledSink::Build { layout, part, .. } => {
                let collected = workers.into_iter().filter_map(|worker| match worker.sink {
                    SinkState::Build(collected, room) => Some((collected, room)),
                    _ => None,
                });
                // The workers' reservations cover the rows until they are in the table.
                let (collected, _rooms): (Vec<_>, Vec<_>) = collected.unzip();
                let mut room = self.budget.room("a join table", Holder::Keeps);
                let table = JoinTable::build(collected, layout, self.wanted_of(pipeline), &mut room)?;
                self.put(pipeline, table.of_part(*part, layout), room);
                Ok(Answer::Rows(Chunks::default()))
            }
            CompiledSink::Aggregate { plan, .. } => {
                let groupers = workers.into_iter().filter_map(|worker| match worker.sink {
                    SinkState::Aggregate(grouper) => Some(*grouper),
                    _ => None,
                });
                plan.finish(groupers.collect(), stage.most_rows, &self.budget)
            }
            CompiledSink::Collect { .. } => Ok(Answer::Rows(Chunks::default())),
            CompiledSink::Top { plan, .. } => {
                let tops = workers.into_iter().filter_map(|worker| match worker.sink {
                    SinkState::Top(top) => Some(*top),
                    _ => None,
                });
                top::finish(plan, tops.collect(), &*stage.source, &self.budget)
            }
        }
    }

    /// Returns statistics of the tables built so far.
    pub fn tables(&self) -> Vec<TableFacts> {
        self.tables.iter().map(|table| table.facts()).collect()
    }
}

/// Runs a program on `threads` threads. Returns the answer in chunks of columns.
///
/// # Errors
/// The first error of any worker.
pub fn run(execution: &mut Execution, threads: usize) -> Result<Vec<Vec<ResultColumn>>> {
    run_until(execution, threads, &AtomicBool::new(false))
}

/// Runs as [`run`] does, and stops between morsels if `cancelled` is set.
///
/// # Errors
/// As [`run`], and [`Error::Cancelled`].
pub(crate) fn run_until(
    execution: &mut Execution,
    threads: usize,
    cancelled: &AtomicBool,
) -> Result<Vec<Vec<ResultColumn>>> {
    let mut answer = Vec::new();
    for pipeline in 0..execution.pipelines() {
        let stage = execution.stage(pipeline)?;
        let work = || -> Result<(Worker, Vec<Vec<ResultColumn>>)> {
            let (sender, chunks) = channel();
            let taker = move |chunk| sender.send(chunk).map_err(|_| Error::Cancelled);
            let mut worker = Worker::new(&stage, &Arc::default()).with_taker(taker);
            while worker.step()?.is_some() {
                if cancelled.load(Relaxed) {
                    return Err(Error::Cancelled);
                }
            }
            Ok((worker, chunks.try_iter().collect()))
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mine = work();
            handles.into_iter().map(|handle| handle.join()).chain([Ok(mine)]).collect()
        });
        let mut workers = Vec::with_capacity(threads);
        for result in results {
            let (worker, chunks) = match result {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            workers.push(worker);
            answer.extend(chunks.into_iter().filter(|chunk| !chunk.is_empty()));
        }
        match execution.finish(pipeline, &stage, workers)? {
            Answer::Rows(rows) => answer.extend(rows.chunks),
            Answer::Spilled(spilled) => {
                let mut merger = spilled.merger(&Arc::default());
                while let Some(chunk) = merger.next()? {
                    answer.push(chunk);
                }
            }
        }
    }
    Ok(answer)
}
