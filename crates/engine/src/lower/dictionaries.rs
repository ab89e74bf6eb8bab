//! Which texts that are stored without a dictionary get one while a query is planned.
//!
//! A dictionary can do everything: be compared, joined by, sorted, turned into other texts. But all texts of the column
//! are read and sorted for it before the query begins, be there ten rows left of it. So none is made at first, and texts
//! are read late, when their rows are known. Where pipelines cannot do without one, the columns of small tables get theirs.

use std::cell::Cell;

use onehop_pipeline::{SegmentSource, Source, Type};

use super::{Failure, Lowered};
use crate::scan::ScanPlan;

/// Texts of segments of more rows than this are never made a dictionary.
const MOST_TEXTS: u64 = 1 << 17;

/// Which columns get one.
#[derive(Debug)]
pub(super) struct Dictionaries {
    /// Those of segments with no more rows than this.
    pub most_texts: u64,
    /// Whether more of them would if this were [`MOST_TEXTS`].
    leaves_out: Cell<bool>,
}

impl Dictionaries {
    /// Lowers something with as few as that takes.
    ///
    /// # Errors
    /// Those of the last attempt.
    pub fn fewest<T>(mut lower: impl FnMut(&Self) -> Lowered<T>) -> Lowered<T> {
        let none = Self { most_texts: 0, leaves_out: Cell::new(false) };
        match lower(&none) {
            Err(Failure::Reason(_)) if none.leaves_out.get() => {
                lower(&Self { most_texts: MOST_TEXTS, leaves_out: Cell::new(false) })
            }
            outcome => outcome,
        }
    }

    /// Takes a look at what became of a table's columns.
    pub fn look_at(&self, source: &SegmentSource, plan: &ScanPlan) {
        let is_small = plan.blocks.iter().all(|block| block.segment.rows() <= MOST_TEXTS);
        let is_late = source.columns().iter().any(|column| column.ty == Type::LateText);
        self.leaves_out.set(self.leaves_out.get() || is_late && is_small && self.most_texts < MOST_TEXTS);
    }
}
