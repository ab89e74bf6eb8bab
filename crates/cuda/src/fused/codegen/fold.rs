//! Rows as sums for fits of linear models: what `Collect` would have given, features and then a target, is added up by
//! `fold.cuh`, and rows with a NULL among them are left out.
//!
//! Where a fit is, its centres, scales and coefficients, is in the kernel's argument: a text serves all passes.

use onehop_pipeline::bind::Bound;
use onehop_pipeline::cpu::Kind;
use onehop_pipeline::fit::{COLUMN_WORDS, Family, GRADIENT, Sums, Target};

use super::Word;
use super::expr::{Operand, Valid};
use super::pipeline::Builder;
use crate::fused::Result;

/// What stands before a text that ends in sums, behind [`DEVICE`](super::DEVICE).
pub(super) const FOLD: &str = include_str!("../fold.cuh");

/// Sums of a thread: twice as many registers, beside those that it takes anyway.
const MOST_WORDS: usize = 80;
/// Columns of which a thread has five sums each.
const MOST_COLUMNS: usize = 12;

/// What a text adds up of all that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::fused) struct Fold {
    kind: FoldKind,
    features: usize,
    /// Columns or words, from the one on and before the other.
    first: usize,
    last: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FoldKind {
    Columns(IsLabel),
    Logistic,
    Gaussian,
}

/// Whether a target is 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum IsLabel {
    Yes,
    No,
}

impl Fold {
    /// The texts that sums of so many features take.
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
        // Parts of equal size: the slowest is what a pass takes.
        let size = count.div_ceil(count.div_ceil(most));
        let part = |first| Self { kind, features, first, last: count.min(first + size) };
        (0..count).step_by(size).map(part).collect()
    }

    /// Words of what a block writes.
    pub fn words(&self) -> usize {
        match self.kind {
            FoldKind::Columns(_) => onehop_pipeline::fit::ROW_WORDS + COLUMN_WORDS * (self.last - self.first),
            FoldKind::Logistic | FoldKind::Gaussian => self.last - self.first,
        }
    }

    /// Puts what a block wrote into what all texts together have of it.
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

    /// The numbers that a launch's argument has of where the sums are.
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

    /// What is before the rows.
    pub fn begin_fold(&mut self, fold: Fold) {
        let Fold { kind, features, first, last } = fold;
        match kind {
            FoldKind::Columns(_) => self.w.line(format!("ColumnSums<{first}, {last}> sums;")),
            FoldKind::Logistic | FoldKind::Gaussian => {
                self.w.line(format!("ModelSums<{}, {first}, {last}> sums;", features + 1));
            }
        }
    }

    /// What becomes of a row.
    pub fn fold_row(&mut self, columns: &[Bound], fold: Fold) -> Result<()> {
        let values = self.operands(columns)?;
        let all: Vec<&Operand> = values.iter().collect();
        let counts = matches!(fold.kind, FoldKind::Columns(_));
        let left_out = if counts { "{ sums.nulls += 1; continue; }" } else { "continue;" };
        match self.w.all_valid(&all) {
            Valid::Always => {}
            Valid::Never => {
                // All that follows is nobody's.
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

    /// What is after the rows.
    pub fn end_fold(&mut self, fold: Fold) {
        let to = self.w.args.named("double*", "sums", Word::FoldSums);
        self.w.line(format!("sums.put({to} + (u64)blockIdx.x * {});", fold.words()));
    }
}

const _: () = assert!(GRADIENT == 2 && COLUMN_WORDS == 5, "as in fold.cuh");
