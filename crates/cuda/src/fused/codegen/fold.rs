//! Sums over rows for fits of linear models. `fold.cuh` adds up the rows that `Collect` would have
//! returned: features, then a target. Rows with a NULL among them are left out.
//!
//! The parameters of a fit (centres, scales and coefficients) are in the kernel's argument, so one
//! kernel source serves all passes.

use onehop_pipeline::bind::Bound;
use onehop_pipeline::cpu::Kind;
use onehop_pipeline::fit::{COLUMN_WORDS, Family, GRADIENT, Sums, Target};

use super::Word;
use super::expr::{Operand, Valid};
use super::pipeline::Builder;
use crate::fused::Result;

/// Source that precedes a kernel with sums, after [`DEVICE`](super::DEVICE).
pub(super) const FOLD: &str = include_str!("../fold.cuh");

/// Maximum number of sums of a thread. They take twice as many registers, in addition to those that
/// it needs anyway.
const MOST_WORDS: usize = 80;
/// Maximum number of columns, of which a thread has five sums each.
const MOST_COLUMNS: usize = 12;

/// The part of the wanted sums that one kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::fused) struct Fold {
    kind: FoldKind,
    features: usize,
    /// Range of columns or words: first, and one past the last.
    first: usize,
    last: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FoldKind {
    Columns(IsLabel),
    Logistic,
    Gaussian,
}

/// Type of a target: 0 or 1, or any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum IsLabel {
    Yes,
    No,
}

impl Fold {
    /// Returns the kernels that sums of `features` features need.
    pub fn all_of(sums: &Sums, features: usize) -> Vec<Self> {
        let (kind, count, most) = match sums {
            Sums::Columns { target: Target::Label, .. } => {
                (FoldKind::Columns(IsLabel::Yes), features + 1, MOST_COLUMNS)
            }
            Sums::Columns { target: Target::Number, .. } => {
                (FoldKind::Columns(IsLabel::No), features + 1, MOST_COLUMNS)
            }
            Sums::Model { family: Family::Logistic, .. } => (FoldKind::Logistic, sums.words(features), MOST_WORDS),
            Sums::Model { family: Family::Gaussian, .. } => (FoldKind::Gaussian, sums.words(features), MOST_WORDS),
        };
        // Parts of equal size: a pass takes as long as the slowest of them.
        let size = count.div_ceil(count.div_ceil(most));
        let part = |first| Self { kind, features, first, last: count.min(first + size) };
        (0..count).step_by(size).map(part).collect()
    }

    /// Returns the number of words that a block writes.
    pub fn words(&self) -> usize {
        match self.kind {
            FoldKind::Columns(_) => onehop_pipeline::fit::ROW_WORDS + COLUMN_WORDS * (self.last - self.first),
            FoldKind::Logistic | FoldKind::Gaussian => self.last - self.first,
        }
    }

    /// Copies the words that a block wrote to their places among all sums.
    pub fn put(&self, from: &[f64], to: &mut [f64]) {
        match self.kind {
            FoldKind::Columns(_) => {
                let rows = onehop_pipeline::fit::ROW_WORDS;
                to[..rows].copy_from_slice(&from[..rows]);
                let at = rows + COLUMN_WORDS * self.first;
                to[at..at + from.len() - rows].copy_from_slice(&from[rows..]);
            }
            FoldKind::Logistic | FoldKind::Gaussian => to[self.first..self.last].copy_from_slice(from),
        }
    }

    /// Returns the parameters of the fit, as the argument of a launch has them.
    pub fn numbers(sums: &Sums) -> Vec<f64> {
        match sums {
            Sums::Columns { centres, .. } => centres.clone(),
            Sums::Model { centres, scales, coefficients, target_centre, .. } => {
                let features = centres.iter().zip(scales).zip(&coefficients[1..]);
                let features = features.flat_map(|((centre, scale), coefficient)| [*centre, *scale, *coefficient]);
                [coefficients[0], *target_centre].into_iter().chain(features).collect()
            }
        }
    }
}

impl Builder<'_> {
    fn fold_number(&mut self, number: usize) -> String {
        self.w.args.named("double", &format!("m{number}"), Word::FoldNumber(number))
    }

    /// Generates the declaration of the sums, before the rows.
    pub fn begin_fold(&mut self, fold: Fold) {
        let Fold { kind, features, first, last } = fold;
        match kind {
            FoldKind::Columns(_) => self.w.line(format!("ColumnSums<{first}, {last}> sums;")),
            FoldKind::Logistic | FoldKind::Gaussian => {
                self.w.line(format!("ModelSums<{}, {first}, {last}> sums;", features + 1));
            }
        }
    }

    /// Generates the processing of a row.
    pub fn fold_row(&mut self, columns: &[Bound], fold: Fold) -> Result<()> {
        let values = self.operands(columns)?;
        let all: Vec<&Operand> = values.iter().collect();
        let counts = matches!(fold.kind, FoldKind::Columns(_));
        let left_out = if counts { "{ sums.nulls += 1; continue; }" } else { "continue;" };
        match self.w.all_valid(&all) {
            Valid::Always => {}
            Valid::Never => {
                // The statements that follow are unreachable.
                self.w.line(format!("if (true) {left_out}"));
            }
            Valid::If(valid) => self.w.line(format!("if (!{valid}) {left_out}")),
        }
        match fold.kind {
            FoldKind::Columns(is_label) => self.fold_columns(&values, is_label),
            FoldKind::Logistic | FoldKind::Gaussian => self.fold_model(&values, fold.kind),
        }
        Ok(())
    }

    fn fold_columns(&mut self, values: &[Operand], is_label: IsLabel) {
        self.w.line("sums.rows += 1;");
        for (number, value) in values.iter().enumerate() {
            let centre = self.fold_number(number);
            let is_target = number + 1 == values.len();
            let add = if is_target && is_label == IsLabel::Yes { "label" } else { "add" };
            let value = value.as_kind(Kind::F64);
            self.w.line(format!("sums.template {add}<{number}>({value}, {centre});"));
        }
    }

    fn fold_model(&mut self, values: &[Operand], kind: FoldKind) {
        let Some((target, features)) = values.split_last() else { return };
        let intercept = self.fold_number(0);
        self.w.line(format!("double z[{}];", features.len() + 1));
        self.w.line("z[0] = 1;");
        self.w.line(format!("double eta = {intercept};"));
        for (number, value) in features.iter().enumerate() {
            let [centre, scale, coefficient] = [0, 1, 2].map(|of| self.fold_number(2 + 3 * number + of));
            let (z, value) = (format!("z[{}]", number + 1), value.as_kind(Kind::F64));
            self.w.line(format!("{z} = ({value} - {centre}) * {scale};"));
            self.w.line(format!("eta = fma({coefficient}, {z}, eta);"));
        }
        let target = target.as_kind(Kind::F64);
        match kind {
            FoldKind::Gaussian => {
                let centre = self.fold_number(1);
                self.w.line(format!("sums.gaussian(z, eta, {target} - {centre});"));
            }
            _ => self.w.line(format!("sums.logistic(z, eta, {target});")),
        }
    }

    /// Generates the output of the sums, after the rows.
    pub fn end_fold(&mut self, fold: Fold) {
        let to = self.w.args.named("double*", "sums", Word::FoldSums);
        self.w.line(format!("sums.put({to} + (u64)blockIdx.x * {});", fold.words()));
    }
}

const _: () = assert!(GRADIENT == 2 && COLUMN_WORDS == 5, "as in fold.cuh");
