//! A compiled pipeline: the origin of each register, the steps, the sink, and the morsels left to
//! read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use onehop_segment::{AheadFacts, BlockScan};

use super::aggregate::{Plan, interns};
use super::clock::{StageTimes, Times};
use super::code::{Code, Compiler};
use super::facts::{Grouping, SinkFacts, StepRows, TopFacts};
use super::keys::KeyLayout;
use super::screen::Screen;
use super::spill::SpillCounts;
use super::states::{Function, FunctionKind};
use super::table::{JoinTable, KeyPart, Tables};
use super::top::{Threshold, TopColumn, TopCounts, TopKey, TopPlan, may_put_off};
use super::vector::Kind;
use crate::bind::{Bound, bind};
use crate::block::Block;
use crate::budget::Budget;
use crate::ir::{Aggregate, JoinKind, Pipeline, Probe, Shape, Sink, SortKey, Step};
use crate::{Domain, Expr, Interval, Result, Source, Type};

/// Most bytes that a scan reads ahead: the amount that a fast device delivers while workers are
/// busy elsewhere.
const HORIZON_BYTES: usize = 32 << 20;
/// Divisor of the memory limit for the read-ahead.
const HORIZON_SHARE: usize = 16;

/// A pipeline that workers run in parallel.
#[derive(Debug)]
pub struct Stage {
    pub(super) source: Arc<dyn Source>,
    pub(super) compiler: Compiler,
    pub(super) registers: Vec<Register>,
    pub(super) steps: Vec<CompiledStep>,
    pub(super) sink: CompiledSink,
    /// Registers that the sink reads.
    pub(super) sink_needs: Vec<usize>,
    /// Upper bound on the rows that reach the sink, if no probe multiplies them.
    pub(super) most_rows: Option<u64>,
    /// Budget of the workers' sinks.
    pub(super) budget: Budget,
    pub(super) spilled: Arc<SpillCounts>,
    morsels: Vec<usize>,
    next: AtomicUsize,
    /// Reads the morsels, including read-ahead.
    scan: Option<BlockScan>,
    skipped: Vec<Skipped>,
    /// Row counts of each compiled step.
    pub(super) counts: Vec<StepCounts>,
    pub(super) times: Times,
    /// For each compiled step, the step of the pipeline that it is part of, if there is one.
    parts_of: Vec<Option<usize>>,
    pipeline_steps: usize,
}

/// Blocks that were never read, with the join table whose keys they cannot contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The step that probes the table.
    pub step: usize,
    /// Numbers of the blocks, ascending.
    pub morsels: Vec<usize>,
}

/// Rows that a compiled step has read and emitted, summed over all workers.
#[derive(Debug, Default)]
pub(super) struct StepCounts {
    rows_in: AtomicU64,
    rows_out: AtomicU64,
}

impl StepCounts {
    pub(super) fn add(&self, rows_in: u64, rows_out: u64) {
        self.rows_in.fetch_add(rows_in, Relaxed);
        self.rows_out.fetch_add(rows_out, Relaxed);
    }
}

/// Origin of a register.
#[derive(Debug)]
pub(super) enum Register {
    /// A column of the source.
    Column(usize),
    /// A payload column of a probe's match.
    Payload { step: usize, column: usize },
    /// A computed expression.
    Map { code: Code, needs: Vec<usize>, is_fallible: bool },
}

#[derive(Debug)]
pub(super) struct CompiledStep {
    pub kind: StepKind,
    /// The step as a screen on encoded data, if it can be one.
    pub screen: Option<Screen>,
    /// Registers that it reads.
    pub needs: Vec<usize>,
    /// Steps that must run before it.
    pub after: Vec<usize>,
    /// True if it can fail for a row.
    pub is_fallible: bool,
    /// Its index among the compiled steps.
    pub number: usize,
}

#[derive(Debug)]
pub(super) enum StepKind {
    Filter(Code),
    /// Keeps rows that may be among the first in an order, judged by the register of the first key.
    Threshold(usize),
    Probe {
        table: Arc<JoinTable>,
        kind: JoinKind,
        keys: Vec<Code>,
        slots: Vec<usize>,
        condition: Option<MatchCode>,
    },
}

/// Additional condition on a match.
#[derive(Debug)]
pub(super) struct MatchCode {
    pub code: Code,
    /// Registers that it reads.
    pub needs: Vec<usize>,
    /// For each register: true if the condition reads it from the probing row.
    pub of_row: Vec<bool>,
}

#[derive(Debug)]
pub(super) enum CompiledSink {
    Build {
        layout: KeyLayout,
        part: KeyPart,
        codes: Vec<Code>,
        key_slots: Vec<usize>,
        payload: Vec<(usize, Domain)>,
    },
    Aggregate {
        codes: Vec<Code>,
        plan: Plan,
    },
    Collect {
        codes: Vec<Code>,
        columns: Vec<(usize, Domain)>,
    },
    /// A sink of the first rows in an order. `codes` belong to the columns.
    Top {
        keys: Vec<Code>,
        codes: Vec<Code>,
        plan: TopPlan,
    },
}

impl Stage {
    /// Compiles a pipeline. `tables` are those built so far.
    pub(super) fn new(
        pipeline: &Pipeline,
        shape: &Shape,
        source: Arc<dyn Source>,
        tables: &Tables,
        budget: &Budget,
    ) -> Result<Self> {
        let wanted = morsels(pipeline, &*source, tables);
        Self::of_morsels(pipeline, shape, source, tables, budget, wanted)
    }

    /// Compiles a pipeline as [`Stage::new`] does, without any morsels, to check that it can be
    /// compiled.
    pub(super) fn unread(
        pipeline: &Pipeline,
        shape: &Shape,
        source: Arc<dyn Source>,
        tables: &Tables,
        budget: &Budget,
    ) -> Result<Self> {
        Self::of_morsels(pipeline, shape, source, tables, budget, Default::default())
    }

    fn of_morsels(
        pipeline: &Pipeline,
        shape: &Shape,
        source: Arc<dyn Source>,
        tables: &Tables,
        budget: &Budget,
        (mut morsels, skipped): (Vec<usize>, Vec<Skipped>),
    ) -> Result<Self> {
        let mut builder = Builder {
            compiler: Compiler::new(shape.registers.iter().map(Kind::of).collect()),
            domains: &shape.registers,
            twins: &shape.twins,
            registers: pipeline.columns.iter().map(|column| Register::Column(*column)).collect(),
            steps: Vec::new(),
            parts_of: Vec::new(),
        };
        for (number, step) in pipeline.steps.iter().enumerate() {
            builder.step(number, step, tables)?;
        }
        builder.put_fallible_steps_last();
        let (sink, sink_needs) = builder.sink(&pipeline.sink)?;
        let Builder { compiler, registers, steps, parts_of, .. } = builder;
        let multiplies = steps.iter().any(|step| match &step.kind {
            StepKind::Probe { table, kind: JoinKind::Inner | JoinKind::Left, .. } => !table.is_unique(),
            _ => false,
        });
        // Rows of other passes go into the same sink, which must not depend on the row bound of a
        // single pass.
        let is_in_passes = steps.iter().any(|step| match &step.kind {
            StepKind::Probe { table, .. } => table.is_part(),
            StepKind::Filter(_) | StepKind::Threshold(_) => false,
        });
        if let CompiledSink::Top { plan, .. } = &sink {
            plan.arrange(&mut morsels, &*source);
        }
        if let Sink::Aggregate { keys, .. } = &pipeline.sink {
            put_in_order(&mut morsels, pipeline, &*source, keys);
        }
        let rows: u64 = morsels.iter().map(|morsel| source.live_rows(*morsel) as u64).sum();
        let counts: Vec<StepCounts> = steps.iter().map(|_| StepCounts::default()).collect();
        let times = Times::new(counts.len());
        let sure = match steps.as_slice() {
            [] => sink_needs.as_slice(),
            [only] => only.needs.as_slice(),
            // The first step depends on measurements at run time.
            _ => &[],
        };
        let column_of = |register: &usize| match &registers[*register] {
            Register::Column(column) => Some(*column),
            _ => None,
        };
        let sure: Vec<usize> = match &sink {
            // For most rows it reads only a few columns.
            CompiledSink::Top { .. } if steps.is_empty() => Vec::new(),
            _ => sure.iter().filter_map(column_of).collect(),
        };
        let scan = source.scan(&morsels, &sure, HORIZON_BYTES.min(budget.0.limit() / HORIZON_SHARE));
        Ok(Self {
            source,
            compiler,
            registers,
            steps,
            sink,
            sink_needs,
            most_rows: (!multiplies && !is_in_passes).then_some(rows),
            budget: budget.clone(),
            spilled: Arc::default(),
            morsels,
            next: AtomicUsize::new(0),
            scan,
            skipped,
            counts,
            times,
            parts_of,
            pipeline_steps: pipeline.steps.len(),
        })
    }

    /// Takes the next morsel. Returns its position in the reading order and its number.
    pub(super) fn take(&self) -> Option<(usize, usize)> {
        let at = self.next.fetch_add(1, Relaxed);
        let morsel = *self.morsels.get(at)?;
        if let Some(scan) = &self.scan {
            scan.begin(at);
        }
        Some((at, morsel))
    }

    /// Loads a column of a morsel that a worker has taken.
    pub(super) fn load(&self, at: usize, column: usize) -> Result<Block> {
        let morsel = self.morsels[at];
        match &self.scan {
            Some(scan) => self.source.load_of(scan, at, morsel, column),
            None => self.source.load(morsel, column),
        }
    }

    /// Records that a morsel has been read.
    pub(super) fn finished(&self, at: usize) {
        self.source.finished(self.morsels[at]);
        if let Some(scan) = &self.scan {
            scan.end(at);
        }
    }

    /// Records that a morsel will not be read.
    pub(super) fn ruled_out(&self, at: usize) {
        if let Some(scan) = &self.scan {
            scan.skip(at);
        }
    }

    /// Returns statistics of the read-ahead.
    pub fn ahead(&self) -> AheadFacts {
        self.scan.as_ref().map(BlockScan::facts).unwrap_or_default()
    }

    /// Returns the number of morsels to read.
    pub fn morsels(&self) -> usize {
        self.morsels.len()
    }

    /// Returns the morsels ruled out by the keys of join tables.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Returns the rows of the morsels to read.
    pub fn rows(&self) -> u64 {
        self.morsels.iter().map(|morsel| self.source.live_rows(*morsel) as u64).sum()
    }

    /// Returns the rows of the morsels that workers have taken: fewer than [`Stage::rows`] if the
    /// pipeline stopped early.
    pub fn taken_rows(&self) -> u64 {
        let taken = self.next.load(Relaxed).min(self.morsels.len());
        self.morsels[..taken].iter().map(|morsel| self.source.live_rows(*morsel) as u64).sum()
    }

    /// Returns the rows read and emitted, by step of the pipeline. A condition may have been
    /// compiled in several parts, with other steps in between. Its rows in are those of the part
    /// that read the most, and the rows it removed are the sum over its parts.
    pub fn step_rows(&self) -> Vec<StepRows> {
        let mut all = vec![StepRows::default(); self.pipeline_steps];
        let mut removed = vec![0; self.pipeline_steps];
        for (counts, step) in self.counts.iter().zip(&self.parts_of) {
            let Some(step) = step else { continue };
            let (rows_in, rows_out) = (counts.rows_in.load(Relaxed), counts.rows_out.load(Relaxed));
            all[*step].rows_in = all[*step].rows_in.max(rows_in);
            removed[*step] += rows_in as i64 - rows_out as i64;
        }
        for (rows, removed) in all.iter_mut().zip(removed) {
            rows.rows_out = rows.rows_in.saturating_add_signed(-removed);
        }
        all
    }

    /// Returns statistics of a sink of the first rows in an order.
    pub fn top(&self) -> Option<TopFacts> {
        let CompiledSink::Top { plan, .. } = &self.sink else { return None };
        let left_out = plan.early.map_or(0, |(step, _)| {
            let StepCounts { rows_in, rows_out } = &self.counts[step];
            rows_in.load(Relaxed).saturating_sub(rows_out.load(Relaxed))
        });
        Some(plan.facts(left_out))
    }

    /// Returns the registers that the sink reads of every row that reaches it.
    pub(super) fn sink_reads_first(&self) -> &Vec<usize> {
        match &self.sink {
            CompiledSink::Top { plan, .. } => &plan.first,
            _ => &self.sink_needs,
        }
    }

    /// Returns the time that the finished threads have spent, by step.
    pub fn times(&self) -> StageTimes {
        self.times.told(&self.parts_of, self.pipeline_steps)
    }

    /// Returns the sink if `rows` rows reach it, as far as it is known before the run.
    pub(super) fn planned(&self, rows: u64) -> SinkFacts {
        match &self.sink {
            CompiledSink::Build { layout, payload, .. } => {
                let payload: Vec<Domain> = payload.iter().map(|(_, domain)| domain.clone()).collect();
                SinkFacts::Table(JoinTable::planned(layout, &payload, rows))
            }
            CompiledSink::Aggregate { plan, .. } if plan.is_dense() => SinkFacts::Groups(Grouping::Dense),
            CompiledSink::Aggregate { .. } => SinkFacts::Groups(Grouping::Hashed),
            CompiledSink::Collect { .. } => SinkFacts::Rows,
            CompiledSink::Top { .. } => SinkFacts::Top,
        }
    }

    /// Returns true if a register is a column of the source.
    pub(super) fn is_column(&self, register: usize) -> bool {
        matches!(self.registers[register], Register::Column(_))
    }

    /// Marks `register` and all registers from which it is computed.
    pub(super) fn mark(&self, register: usize, needed: &mut [bool]) {
        if std::mem::replace(&mut needed[register], true) {
            return;
        }
        if let Register::Map { needs, .. } = &self.registers[register] {
            needs.iter().for_each(|register| self.mark(*register, needed));
        }
    }
}

/// Returns the morsels that the tables' keys do not rule out, and the skipped ones.
fn morsels(pipeline: &Pipeline, source: &dyn Source, tables: &Tables) -> (Vec<usize>, Vec<Skipped>) {
    let mut morsels: Vec<usize> = (0..source.morsels()).filter(|morsel| source.live_rows(*morsel) > 0).collect();
    let mut skipped = Vec::new();
    for (number, step) in pipeline.steps.iter().enumerate() {
        let Step::Probe(Probe { table, kind: JoinKind::Inner | JoinKind::Semi, keys, .. }) = step else { continue };
        let [Expr::Register(register)] = keys.as_slice() else { continue };
        let (Some(column), Some(wanted)) = (pipeline.columns.get(*register), tables[*table].interval) else { continue };
        let may_match = |morsel: &usize| {
            !wanted.is_empty()
                && source.interval(*morsel, *column).is_none_or(|held| !held.intersection(wanted).is_empty())
        };
        let (left, mut ruled_out): (Vec<usize>, Vec<usize>) = morsels.into_iter().partition(may_match);
        morsels = left;
        ruled_out.retain(|morsel| source.is_block(*morsel));
        if !ruled_out.is_empty() {
            skipped.push(Skipped { step: number, morsels: ruled_out });
        }
    }
    (morsels, skipped)
}

/// Sorts morsels by the first group key column, if no two morsels share more than one value of it.
/// Grouping is fastest in the order of the keys, and a table written by several threads has its
/// segments in any order. Fresh rows may have any keys, and come last.
fn put_in_order(morsels: &mut Vec<usize>, pipeline: &Pipeline, source: &dyn Source, keys: &[Expr]) {
    let Some(Expr::Register(register)) = keys.first() else { return };
    let Some(column) = pipeline.columns.get(*register) else { return };
    let interval = |morsel: &usize| Some((source.interval(*morsel, *column)?, *morsel));
    let (blocks, others): (Vec<usize>, Vec<usize>) = morsels.iter().partition(|morsel| source.is_block(**morsel));
    let Some(mut held) = blocks.iter().map(interval).collect::<Option<Vec<_>>>() else { return };
    held.sort_by_key(|(interval, morsel)| (interval.min, interval.max, *morsel));
    if held.iter().zip(held.iter().skip(1)).all(|((a, _), (b, _))| a.max <= b.min) {
        *morsels = held.into_iter().map(|(_, morsel)| morsel).chain(others).collect();
    }
}

struct Builder<'a> {
    compiler: Compiler,
    domains: &'a [Domain],
    twins: &'a [usize],
    registers: Vec<Register>,
    steps: Vec<CompiledStep>,
    parts_of: Vec<Option<usize>>,
}

impl Builder<'_> {
    fn code(&mut self, expr: &Expr) -> Result<(Code, Bound)> {
        let bound = bind(expr, self.domains)?;
        Ok((self.compiler.compile(&bound)?, bound))
    }

    fn step(&mut self, number: usize, step: &Step, tables: &Tables) -> Result<()> {
        match step {
            Step::Map(expr) => {
                let (code, bound) = self.code(expr)?;
                let needs = registers_of([expr]);
                self.registers.push(Register::Map { code, needs, is_fallible: bound.is_fallible });
            }
            Step::Filter(condition) => {
                let needs_of = |bound: &Bound| registers_of_bound(bound);
                for bound in bind(condition, self.domains)?.into_conjuncts() {
                    let code = self.compiler.compile(&bound)?;
                    let screen = Screen::of_filter(&bound, self.is_column());
                    self.push(Some(number), StepKind::Filter(code), screen, needs_of(&bound), bound.is_fallible);
                }
            }
            Step::Probe(probe) => {
                let mut keys = Vec::new();
                let mut is_fallible = false;
                let table = Arc::clone(&tables[probe.table]);
                let mut screen = None;
                for key in &probe.keys {
                    let (code, bound) = self.code(key)?;
                    is_fallible |= bound.is_fallible;
                    keys.push(code);
                    screen = Screen::of_probe(&bound, probe.kind, &table, self.is_column());
                }
                // A row that belongs to another part of the table is no row without a match.
                screen = screen.filter(|_| !(table.is_part() && probe.kind == JoinKind::Anti));
                let slots = keys.iter().map(|code| code.result).collect();
                let mut needs = registers_of(&probe.keys);
                let first = self.registers.len();
                let mut condition = None;
                if let Some(expr) = &probe.condition {
                    let (code, _) = self.code(expr)?;
                    let of_both = registers_of([expr]);
                    let mut of_row = vec![false; self.domains.len()];
                    of_both.iter().filter(|register| **register < first).for_each(|register| of_row[*register] = true);
                    needs.extend(of_both.iter().filter(|register| of_row[**register]));
                    needs.sort_unstable();
                    needs.dedup();
                    condition = Some(MatchCode { code, needs: of_both, of_row });
                    screen = None;
                }
                let kind = StepKind::Probe { table, kind: probe.kind, keys, slots, condition };
                let step = self.steps.len();
                self.push(Some(number), kind, screen, needs, is_fallible);
                self.registers.extend(probe.payload.iter().map(|column| Register::Payload { step, column: *column }));
            }
        }
        Ok(())
    }

    fn is_column(&self) -> impl Fn(usize) -> bool {
        |register| matches!(self.registers.get(register), Some(Register::Column(_)))
    }

    fn push(
        &mut self,
        part_of: Option<usize>,
        kind: StepKind,
        screen: Option<Screen>,
        needs: Vec<usize>,
        is_fallible: bool,
    ) {
        let mut after = Vec::new();
        let is_fallible = needs.iter().fold(is_fallible, |any, register| self.look_into(*register, &mut after) || any);
        let number = self.steps.len();
        self.parts_of.push(part_of);
        self.steps.push(CompiledStep { kind, screen, needs, after, is_fallible, number });
    }

    /// Adds the steps that a register depends on. Returns true if computing it can fail.
    fn look_into(&self, register: usize, after: &mut Vec<usize>) -> bool {
        match &self.registers[register] {
            Register::Column(_) => false,
            Register::Payload { step, .. } => {
                after.push(*step);
                false
            }
            Register::Map { needs, is_fallible, .. } => {
                needs.iter().fold(*is_fallible, |any, register| self.look_into(*register, after) || any)
            }
        }
    }

    /// Orders fallible steps last. A step that can fail must not see rows that another step
    /// removes. It runs after all steps that cannot fail, except those that depend on it, and after
    /// earlier steps that can fail.
    fn put_fallible_steps_last(&mut self) {
        // For each step: the last fallible step among itself and its dependencies.
        let mut last: Vec<Option<usize>> = Vec::with_capacity(self.steps.len());
        for (number, step) in self.steps.iter().enumerate() {
            last.push(match step.is_fallible {
                true => Some(number),
                false => step.after.iter().filter_map(|before| last[*before]).max(),
            });
        }
        let mut by_last: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        last.iter().enumerate().for_each(|(number, last)| by_last.entry(*last).or_default().push(number));
        // Each fallible step waits for the previous one and the steps that depend on it. The first
        // one waits for the steps that depend on none.
        let mut before = None;
        for fallible in last.into_iter().enumerate().filter_map(|(number, last)| last.filter(|last| *last == number)) {
            self.steps[fallible].after.extend(by_last.remove(&before).unwrap_or_default());
            before = Some(fallible);
        }
    }

    /// Returns an expression with the same value that other keys may share.
    fn twin(&self, key: &Expr) -> Expr {
        match key {
            Expr::Register(register) => Expr::Register(self.twins[*register]),
            other => other.clone(),
        }
    }

    fn sink(&mut self, sink: &Sink) -> Result<(CompiledSink, Vec<usize>)> {
        let mut codes = Vec::new();
        let mut compile = |builder: &mut Self, expr: &Expr| -> Result<(usize, Domain)> {
            let (code, bound) = builder.code(expr)?;
            let slot = code.result;
            codes.push(code);
            Ok((slot, bound.domain))
        };
        Ok(match sink {
            Sink::Build { keys, payload } => {
                let needs = registers_of(keys.iter().chain(payload));
                let keys = keys.iter().map(|expr| compile(self, expr)).collect::<Result<Vec<_>>>()?;
                let payload = payload.iter().map(|expr| compile(self, expr)).collect::<Result<Vec<_>>>()?;
                let (key_slots, domains): (Vec<usize>, Vec<Domain>) = keys.into_iter().unzip();
                let layout = KeyLayout::new(&domains, false)?;
                (CompiledSink::Build { layout, part: KeyPart::ALL, codes, key_slots, payload }, needs)
            }
            Sink::Aggregate { keys, aggregates } => {
                let domains = keys.iter().map(|key| Ok(bind(key, self.domains)?.domain)).collect::<Result<Vec<_>>>()?;
                // An interned key has a number of its own, determined by its string.
                let is_interned = interns(domains.iter());
                let keys = keys.iter().zip(is_interned);
                let keys: Vec<Expr> =
                    keys.map(|(key, interned)| if interned { key.clone() } else { self.twin(key) }).collect();
                let needs = registers_of(keys.iter().chain(aggregates.iter().filter_map(Aggregate::argument)));
                let slots = keys.iter().map(|key| Ok(compile(self, key)?.0)).collect::<Result<Vec<_>>>()?;
                let keys = slots.into_iter().zip(domains).collect();
                let mut functions = Vec::with_capacity(aggregates.len());
                for aggregate in aggregates {
                    let (slot, domain) = match aggregate.argument() {
                        Some(argument) => compile(self, argument)?,
                        None => (0, Domain::bool(false)),
                    };
                    let kind = match aggregate {
                        Aggregate::CountRows => FunctionKind::CountRows,
                        Aggregate::Count(_) | Aggregate::CountDistinct(_) => FunctionKind::Count,
                        Aggregate::Sum(_) | Aggregate::SumDistinct(_) => FunctionKind::Sum,
                        Aggregate::Min(_) => FunctionKind::Min,
                        Aggregate::Max(_) => FunctionKind::Max,
                        Aggregate::VariancePop(_) => FunctionKind::Variance { is_sample: false },
                        Aggregate::VarianceSamp(_) => FunctionKind::Variance { is_sample: true },
                    };
                    functions.push(Function { kind, is_distinct: aggregate.is_distinct(), slot, domain });
                }
                (CompiledSink::Aggregate { plan: Plan::new(keys, functions)?, codes }, needs)
            }
            Sink::Collect { columns } => {
                let needs = registers_of(columns);
                let columns = columns.iter().map(|expr| compile(self, expr)).collect::<Result<Vec<_>>>()?;
                (CompiledSink::Collect { codes, columns }, needs)
            }
            Sink::Top { rows, keys, columns } => self.top(*rows, keys, columns)?,
        })
    }

    /// Compiles a sink of the first rows in an order. If nothing can fail, a step before it removes
    /// rows beyond the first ones.
    fn top(&mut self, rows: usize, order: &[SortKey], columns: &[Expr]) -> Result<(CompiledSink, Vec<usize>)> {
        let mut is_fallible = self.steps.iter().any(|step| step.is_fallible);
        let read = registers_of(order.iter().map(|key| &key.expr).chain(columns));
        is_fallible |= read.iter().any(|register| self.look_into(*register, &mut Vec::new()));
        let (mut keys, mut key_codes) = (Vec::new(), Vec::new());
        for SortKey { expr, direction, nulls } in order {
            let (code, bound) = self.code(expr)?;
            is_fallible |= bound.is_fallible;
            keys.push(TopKey { slot: code.result, direction: *direction, nulls: *nulls });
            key_codes.push(code);
        }
        // Registers that keys read are loaded anyway.
        let mut first = registers_of(order.iter().map(|key| &key.expr));
        let (mut codes, mut needs, mut outputs) = (Vec::new(), first.clone(), Vec::new());
        for expr in columns {
            if let Expr::Register(register) = expr
                && let Register::Column(column) = self.registers[*register]
                && may_put_off(rows)
                && !first.contains(register)
            {
                outputs.push(TopColumn::PutOff { column, domain: self.domains[*register].clone() });
                continue;
            }
            let (code, bound) = self.code(expr)?;
            is_fallible |= bound.is_fallible;
            outputs.push(TopColumn::Kept { slot: code.result, domain: bound.domain });
            codes.push(code);
            needs.extend(registers_of([expr]));
        }
        needs.sort_unstable();
        needs.dedup();
        if is_fallible {
            first.clone_from(&needs);
        }
        let mut early = None;
        if let ([SortKey { expr: Expr::Register(register), .. }, ..], false) = (order, is_fallible)
            && let Register::Column(column) = self.registers[*register]
            && self.domains[*register].ty != Type::Double
        {
            early = Some((self.steps.len(), column));
            // The passing values are known only at run time.
            let screen = Screen::of_run(*register, Interval::ALL, true);
            self.push(None, StepKind::Threshold(*register), Some(screen), vec![*register], false);
        }
        let (threshold, counts) = (Threshold::default(), TopCounts::default());
        let plan = TopPlan { rows, keys, columns: outputs, first, is_fallible, early, threshold, counts };
        Ok((CompiledSink::Top { keys: key_codes, codes, plan }, needs))
    }
}

fn registers_of<'a>(exprs: impl IntoIterator<Item = &'a Expr>) -> Vec<usize> {
    let mut all = Vec::new();
    exprs.into_iter().for_each(|expr| expr.for_each_register(&mut |register| all.push(register)));
    all.sort_unstable();
    all.dedup();
    all
}

fn registers_of_bound(bound: &Bound) -> Vec<usize> {
    let mut all = Vec::new();
    bound.for_each_register(&mut |register| all.push(register));
    all.sort_unstable();
    all.dedup();
    all
}
