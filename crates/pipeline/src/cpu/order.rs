//! Execution order of a worker's steps, and the choice of the steps that run as screens.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::stage::{CompiledStep, Stage, StepKind};
use crate::ir::JoinKind;

/// Number of measurements of the first step after which the order is reconsidered.
const REORDER: u64 = 6;
/// Least fraction of remaining rows for which a screen that looks up every offset pays off.
const WORTH: f64 = 0.15;

/// The steps in execution order.
#[derive(Debug)]
pub(super) struct Order {
    pub steps: Vec<usize>,
    /// Registers that are still needed after each of them.
    pub needed: Vec<Vec<bool>>,
    /// Number of leading steps that are screens.
    screens: usize,
    /// Columns of the source that the first step after the screens reads, or the sink if there is
    /// none.
    pub first_columns: Vec<usize>,
    /// For each step: true if it costs almost nothing as a screen.
    pub is_light: Vec<bool>,
    /// For each step: rows in, rows out and nanoseconds, as far as they were measured.
    costs: Vec<(u64, u64, u64)>,
    measured: u64,
}

impl Order {
    pub fn new(stage: &Stage) -> Self {
        let is_light = |step: &CompiledStep| step.screen.as_ref().is_some_and(|screen| screen.may_be_light(stage));
        let mut order = Self {
            steps: Vec::new(),
            needed: Vec::new(),
            screens: 0,
            first_columns: Vec::new(),
            is_light: stage.steps.iter().map(is_light).collect(),
            costs: vec![(0, 0, 0); stage.steps.len()],
            measured: 0,
        };
        order.arrange(stage, |step| guess(stage, step));
        order
    }

    /// Returns the leading steps that are screens.
    pub fn screens(&self) -> &[usize] {
        &self.steps[..self.screens]
    }

    pub fn measured(&mut self, step: usize, rows_in: usize, rows_out: usize, nanoseconds: u64) {
        let cost = &mut self.costs[step];
        *cost = (cost.0 + rows_in as u64, cost.1 + rows_out as u64, cost.2 + nanoseconds);
        if self.steps.first() == Some(&step) {
            self.measured += 1;
        }
    }

    /// Moves the steps with the least cost per removed row to the front.
    pub fn reconsider(&mut self, stage: &Stage) {
        if self.measured < REORDER {
            return;
        }
        self.measured = 0;
        let rank = |(rows_in, rows_out, nanoseconds): (u64, u64, u64)| match rows_in {
            // A step that was never reached stays at the end.
            0 => f64::MAX,
            _ => nanoseconds as f64 / (rows_in.saturating_sub(rows_out) as f64 + rows_in as f64 / 1000.0),
        };
        let ranks: Vec<f64> = self.costs.iter().map(|cost| rank(*cost)).collect();
        self.arrange(stage, |step| ranks[step]);
        // Older measurements lose weight.
        self.costs.iter_mut().for_each(|cost| *cost = (cost.0 / 2, cost.1 / 2, cost.2 / 2));
    }

    fn arrange(&mut self, stage: &Stage, rank: impl Fn(usize) -> f64) {
        let steps = sorted(stage, rank);
        self.screens = self.screens_among(stage, &steps);
        let mut read_first = vec![false; stage.registers.len()];
        let first = steps.get(self.screens).map_or(stage.sink_reads_first(), |step| &stage.steps[*step].needs);
        first.iter().for_each(|register| stage.mark(*register, &mut read_first));
        let is_column = |register: &usize| read_first[*register] && stage.is_column(*register);
        self.first_columns = (0..read_first.len()).filter(is_column).collect();
        if steps == self.steps {
            return;
        }
        self.steps = steps;
        let mut needed = vec![false; stage.registers.len()];
        stage.sink_needs.iter().for_each(|register| stage.mark(*register, &mut needed));
        self.needed = vec![Vec::new(); self.steps.len()];
        for at in (0..self.steps.len()).rev() {
            self.needed[at] = needed.clone();
            stage.steps[self.steps[at]].needs.iter().for_each(|register| stage.mark(*register, &mut needed));
        }
    }

    /// Returns the number of leading screens. A screen processes all rows of a vector, however few
    /// are left. That pays off while the screen is light or many rows are left.
    fn screens_among(&self, stage: &Stage, steps: &[usize]) -> usize {
        let mut left = 1.0;
        let is_worth = |step: &&usize| {
            let is_worth = self.is_light[**step] || left >= WORTH;
            left *= match self.costs[**step] {
                (0, ..) => 0.5,
                (rows_in, rows_out, _) => rows_out as f64 / rows_in as f64,
            };
            stage.steps[**step].screen.is_some() && is_worth
        };
        steps.iter().take_while(is_worth).count()
    }
}

/// Sorts the steps by rank, each behind the steps that it depends on. Equal ranks keep their order.
fn sorted(stage: &Stage, rank: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut waits_for: Vec<usize> = stage.steps.iter().map(|step| step.after.len()).collect();
    let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); stage.steps.len()];
    for (number, step) in stage.steps.iter().enumerate() {
        step.after.iter().for_each(|before| waiting[*before].push(number));
    }
    let ready = (0..stage.steps.len()).filter(|step| waits_for[*step] == 0);
    let mut ready: BinaryHeap<_> = ready.map(|step| Reverse(Ranked { rank: rank(step), step })).collect();
    let mut steps = Vec::with_capacity(stage.steps.len());
    while let Some(Reverse(Ranked { step, .. })) = ready.pop() {
        steps.push(step);
        for next in &waiting[step] {
            waits_for[*next] -= 1;
            if waits_for[*next] == 0 {
                ready.push(Reverse(Ranked { rank: rank(*next), step: *next }));
            }
        }
    }
    steps
}

struct Ranked {
    rank: f64,
    step: usize,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.total_cmp(&other.rank).then(self.step.cmp(&other.step))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}

/// Fraction of a table's key range. A probe of a table with fewer keys runs as a screen before
/// filters that are no screens. The screen reads one column in stored form, while those filters
/// read the remaining rows of several decoded columns. Behind such filters, it could not run as a
/// screen.
const SPARSE: f64 = 0.25;

/// Returns the rank of a step before any measurement. Filters come first. The filter that admits
/// the first rows in an order reads a column that no condition reads. Then follow probes of tables
/// that have few of the possible keys, then filters that read strings.
fn guess(stage: &Stage, step: usize) -> f64 {
    let CompiledStep { kind, screen, .. } = &stage.steps[step];
    match kind {
        StepKind::Filter(_) if screen.is_some() => 0.0,
        StepKind::Threshold(_) => 0.25,
        StepKind::Filter(code) if code.reads_texts() => 5.0,
        StepKind::Filter(_) => 1.0,
        StepKind::Probe { kind: JoinKind::Left, .. } => 4.0,
        StepKind::Probe { table, .. } if screen.is_some() && table.fullness() < SPARSE => 0.5 + table.fullness(),
        StepKind::Probe { table, .. } if !table.is_unique() => 3.0,
        StepKind::Probe { table, .. } => 2.0 + table.fullness(),
    }
}
