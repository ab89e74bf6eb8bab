//! A pipeline before code generation: the origin of each register, and filters and probes in their
//! order of execution.
//!
//! Acts that cannot fail come first, ordered by the cost of removing a row. Fallible acts keep
//! their order, and come when no infallible act is ready. They thus see exactly the rows that
//! `crates/pipeline` promises.
//!
//! The order is part of the kernel source, and queries that differ only in constants share one
//! kernel. Constants therefore do not influence the order. The fraction of rows that pass a filter
//! is estimated from its shape (equality, a two-sided or one-sided range, a list of some length)
//! and from the number of values that its column can have. For probes the estimate is better,
//! because it uses the actual number of rows of the table. These are data, but the order of a
//! star's probes is worth a kernel of its own. The estimates are rounded, so that the tables of
//! queries with different constants share one.

use onehop_pipeline::bind::{Bound, BoundKind, LookupValues, bind};
use onehop_pipeline::ir::{JoinKind, Pipeline, Shape, Sink, Step};
use onehop_pipeline::{CompareOp, Domain, Expr, Interval, Source, Type};

use super::table::{SHARED_BITMAP_BYTES, TableShape};
use super::{Error, Result};

/// Origin of a register's values.
#[derive(Clone, Debug)]
pub(super) enum Register {
    Column(usize),
    /// Read from the match of a step's probe: the number of the payload's column.
    Payload {
        step: usize,
        column: usize,
    },
    Map(Bound),
}

/// A filter or a probe.
#[derive(Clone, Debug)]
pub(super) struct Act {
    /// The step of the pipeline that the act implements in full or in part.
    pub step: usize,
    pub kind: ActKind,
    /// Registers that it reads, except those that it adds.
    pub needs: Vec<usize>,
    pub is_fallible: bool,
    /// Estimated fraction of the rows that pass.
    pub passes: f64,
    /// Approximate cost of testing a row.
    pub cost: f64,
}

#[derive(Clone, Debug)]
pub(super) enum ActKind {
    Filter(Bound),
    Probe(Probe),
}

#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub table: usize,
    pub kind: JoinKind,
    pub keys: Vec<Bound>,
    /// Registers of its payload.
    pub added: std::ops::Range<usize>,
    pub condition: Option<Bound>,
}

/// A pipeline in which everything except the kernel source is decided.
#[derive(Clone, Debug)]
pub(super) struct Plan<'a> {
    pub pipeline: &'a Pipeline,
    /// Domains of the registers, narrowed to the values that the tables hold.
    pub domains: Vec<Domain>,
    pub registers: Vec<Register>,
    pub acts: Vec<Act>,
    source: &'a dyn Source,
}

/// Possible values of an estimate.
const GUESSES: [f64; 6] = [0.01, 0.05, 0.2, 0.5, 0.8, 1.0];

/// Estimated fraction of the rows in a two-sided range, as in the benchmarks, and in a one-sided
/// range.
const TWO_SIDED: f64 = 0.2;
const ONE_SIDED: f64 = 0.5;

/// Costs of testing a row: a value of a column that is tested as a whole, a bit of a near bitmap, a
/// bit of a far bitmap, and anything that is computed or looked up row by row.
const VALUE: f64 = 1.0;
const BIT: f64 = 2.0;
const FAR_BIT: f64 = 2.5;
const ROW: f64 = 4.0;

/// Maximum number of keys of a near bitmap: one in shared memory, and one in a cache of the
/// multiprocessor.
const NEAR_KEYS: u64 = SHARED_BITMAP_BYTES * 8;
const CACHED_KEYS: u64 = 256 << 13;

impl<'a> Plan<'a> {
    pub fn new(
        pipeline: &'a Pipeline,
        shape: &'a Shape,
        tables: &[TableShape],
        source: &'a dyn Source,
        counts: bool,
    ) -> Result<Self> {
        let columns = pipeline.columns.iter().map(|column| Register::Column(*column));
        let mut plan =
            Self { pipeline, domains: shape.registers.clone(), registers: columns.collect(), acts: Vec::new(), source };
        for (number, step) in pipeline.steps.iter().enumerate() {
            plan.step(number, step, tables)?;
        }
        if !counts {
            plan.join_ranges();
        }
        plan.arrange()?;
        Ok(plan)
    }

    /// Merges two ranges of one column into one. A caller that counts the rows of each keeps them
    /// apart.
    fn join_ranges(&mut self) {
        let mut joined: Vec<Act> = Vec::with_capacity(self.acts.len());
        for act in std::mem::take(&mut self.acts) {
            let range = self.range(&act.kind);
            let with = joined.iter_mut().find_map(|before| {
                let ((column, range), (of, before_range)) = (range?, self.range(&before.kind)?);
                let both = before_range.intersection(range);
                (column == of && !both.is_empty()).then_some((before, both))
            });
            match with {
                Some((before, both)) => {
                    if let ActKind::Filter(Bound { kind: BoundKind::Within { interval, .. }, .. }) = &mut before.kind {
                        *interval = both;
                    }
                    if let ActKind::Filter(bound) = &before.kind {
                        before.passes = guess(self.passing(bound));
                    }
                }
                None => joined.push(act),
            }
        }
        self.acts = joined;
    }

    /// Returns the column register and the range of a filter, if the filter tests only that.
    fn range(&self, kind: &ActKind) -> Option<(usize, Interval)> {
        let ActKind::Filter(bound) = kind else { return None };
        let BoundKind::Within { inner, interval } = &bound.kind else { return None };
        Some((self.column_register(inner)?, *interval))
    }

    pub fn source(&self) -> &'a dyn Source {
        self.source
    }

    /// Returns true if a row can fail on its way into a table that is built, or in the sink.
    pub fn can_building_fail(&self) -> bool {
        let fails = |expr: &Expr| self.bind(expr).is_ok_and(|bound| self.may_fail(&bound));
        let fails_there = match &self.pipeline.sink {
            Sink::Build { keys, payload } => keys.iter().chain(payload).any(fails),
            Sink::Aggregate { .. } | Sink::Collect { .. } | Sink::Top { .. } => true,
        };
        fails_there || self.acts.iter().any(|act| act.is_fallible)
    }

    pub fn bind(&self, expr: &Expr) -> Result<Bound> {
        Ok(bind(expr, &self.domains)?)
    }

    fn step(&mut self, number: usize, step: &Step, tables: &[TableShape]) -> Result<()> {
        match step {
            Step::Map(expr) => {
                let bound = self.bind(expr)?;
                self.registers.push(Register::Map(bound));
            }
            Step::Filter(condition) => {
                for bound in self.bind(condition)?.into_conjuncts() {
                    let needs = registers_of([&bound]);
                    let (is_fallible, passes) = (bound.is_fallible, self.passing(&bound));
                    let is_range =
                        matches!(&bound.kind, BoundKind::Within { inner, .. } if self.column_register(inner).is_some());
                    let cost = if is_range { VALUE } else { ROW };
                    let kind = ActKind::Filter(bound);
                    self.push(Act { step: number, kind, needs, is_fallible, passes, cost });
                }
            }
            Step::Probe(probe) => {
                let keys = probe.keys.iter().map(|key| self.bind(key)).collect::<Result<Vec<_>>>()?;
                let first = self.registers.len();
                for (register, column) in (first..).zip(&probe.payload) {
                    self.narrow(register, &tables[probe.table], *column);
                }
                let condition = probe.condition.as_ref().map(|condition| self.bind(condition)).transpose()?;
                let mut needs = registers_of(keys.iter().chain(&condition));
                needs.retain(|register| *register < first);
                let is_fallible = keys.iter().any(|key| key.is_fallible);
                let table = &tables[probe.table];
                let key_domain = keys[0].domain.interval;
                let passes = match probe.kind {
                    JoinKind::Left => 1.0,
                    JoinKind::Inner | JoinKind::Semi if keys.len() == 1 => table.fullness(key_domain),
                    JoinKind::Inner | JoinKind::Semi => 0.6,
                    JoinKind::Anti | JoinKind::NotIn => 1.0 - table.fullness(key_domain).min(0.9),
                };
                let is_column = keys.len() == 1 && self.column_register(&keys[0]).is_some();
                let cost = match table.layout.count {
                    _ if !is_column || condition.is_some() || !table.is_bitmap() => ROW,
                    count if count <= NEAR_KEYS => VALUE,
                    count if count <= CACHED_KEYS => BIT,
                    _ => FAR_BIT,
                };
                let added = first..first + probe.payload.len();
                self.registers
                    .extend(probe.payload.iter().map(|column| Register::Payload { step: number, column: *column }));
                let probe = Probe { table: probe.table, kind: probe.kind, keys, added, condition };
                let kind = ActKind::Probe(probe);
                self.push(Act { step: number, kind, needs, is_fallible, passes, cost });
            }
        }
        Ok(())
    }

    /// Narrows the domain of a payload register to the values that the table holds, so that there
    /// may be fewer groups.
    fn narrow(&mut self, register: usize, table: &TableShape, column: usize) {
        let domain = &mut self.domains[register];
        let known = table.filled.as_ref().and_then(|filled| filled.payload[column]);
        if let (Some(known), Type::Int | Type::Text) = (known, domain.ty) {
            domain.interval = domain.interval.intersection(known);
        }
    }

    /// Adds an act. A fallible register makes each act that reads it fallible.
    fn push(&mut self, mut act: Act) {
        act.is_fallible |= act.needs.iter().any(|register| self.is_fallible(*register));
        let is_coded = |column: usize| self.source.is_coded(column);
        // Each code has been looked up by then and has a near bit, however far away the bit of its
        // key is.
        if matches!(act.needs.as_slice(), [only] if self.column(*only).is_some_and(is_coded)) {
            act.cost = act.cost.min(BIT);
        }
        act.passes = guess(act.passes);
        self.acts.push(act);
    }

    fn is_fallible(&self, register: usize) -> bool {
        match &self.registers[register] {
            Register::Column(_) | Register::Payload { .. } => false,
            Register::Map(bound) => self.may_fail(bound),
        }
    }

    /// Returns true if computing `bound` can fail, including the registers that it reads.
    pub fn may_fail(&self, bound: &Bound) -> bool {
        bound.is_fallible || registers_of([bound]).into_iter().any(|register| self.is_fallible(register))
    }

    fn arrange(&mut self) -> Result<()> {
        let mut left = std::mem::take(&mut self.acts);
        let mut probed = vec![false; self.pipeline.steps.len()];
        while !left.is_empty() {
            let is_ready = |act: &Act| act.needs.iter().all(|register| self.is_known(*register, &probed));
            let ready = left.iter().enumerate().filter(|(_, act)| !act.is_fallible && is_ready(act));
            // Cost of removing one row.
            let price = |act: &Act| act.cost / (1.0 - act.passes);
            let best = ready.min_by(|(_, a), (_, b)| price(a).total_cmp(&price(b))).map(|(at, _)| at);
            let next = best.or_else(|| left.iter().position(|act| act.is_fallible));
            let Some(next) = next else {
                return Err(Error::refused("steps that wait for each other"));
            };
            let act = left.remove(next);
            probed[act.step] |= matches!(act.kind, ActKind::Probe(_));
            self.acts.push(act);
        }
        Ok(())
    }

    fn is_known(&self, register: usize, probed: &[bool]) -> bool {
        match &self.registers[register] {
            Register::Column(_) => true,
            Register::Payload { step, .. } => probed[*step],
            Register::Map(bound) => registers_of([bound]).into_iter().all(|register| self.is_known(register, probed)),
        }
    }

    /// Returns the column that a register reads, if it reads one.
    pub fn column(&self, register: usize) -> Option<usize> {
        match self.registers[register] {
            Register::Column(column) => Some(column),
            _ => None,
        }
    }

    /// Returns the register that an expression is, if that is a column.
    pub fn column_register(&self, bound: &Bound) -> Option<usize> {
        match bound.kind {
            BoundKind::Register(register) if self.column(register).is_some() => Some(register),
            _ => None,
        }
    }

    /// Estimates the fraction of the rows for which a condition holds, from its shape. Constants
    /// have no influence.
    fn passing(&self, bound: &Bound) -> f64 {
        let values = |of: &Bound| of.domain.interval.count().unwrap_or(u128::MAX).max(1) as f64;
        match &bound.kind {
            BoundKind::Within { inner, interval } => match (interval.min, interval.max) {
                (min, max) if min == max => 1.0 / values(inner),
                (i128::MIN, _) | (_, i128::MAX) => ONE_SIDED,
                _ => TWO_SIDED,
            },
            BoundKind::In { inner, list } => (list.len() as f64 / values(inner)).min(1.0),
            BoundKind::Compare { op: CompareOp::Equal, .. } => 0.1,
            BoundKind::Compare { op: CompareOp::NotEqual, .. } => 0.9,
            BoundKind::Lookup { table, .. } => match &table.values {
                // A single string is compared for equality or inequality; of several strings, any
                // number is possible.
                LookupValues::Bool(values) => {
                    let all = values.len().max(2);
                    match values.iter().filter(|value| **value).count() {
                        0 | 1 => 1.0 / all as f64,
                        some if some + 1 >= all => 1.0 - 1.0 / all as f64,
                        _ => TWO_SIDED,
                    }
                }
                _ => 0.5,
            },
            BoundKind::Not(inner) => 1.0 - self.passing(inner),
            BoundKind::Or(any) => any.iter().map(|bound| self.passing(bound)).sum::<f64>().min(1.0),
            BoundKind::And(all) => all.iter().map(|bound| self.passing(bound)).product(),
            _ => 0.5,
        }
    }
}

/// Returns the nearest of the guesses.
fn guess(passes: f64) -> f64 {
    let distance = |guess: &f64| (guess.ln() - passes.max(GUESSES[0]).ln()).abs();
    GUESSES.into_iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(passes)
}

pub(super) fn registers_of<'b>(all: impl IntoIterator<Item = &'b Bound>) -> Vec<usize> {
    let mut registers = Vec::new();
    all.into_iter().for_each(|bound| bound.for_each_register(&mut |register| registers.push(register)));
    registers.sort_unstable();
    registers.dedup();
    registers
}
