//! Which texts that are stored without a dictionary get one while a query is planned.
//!
//! A dictionary can do everything: be compared, joined by, sorted, turned into other texts. But all texts of the column
//! are read and sorted for it before the query begins, be there ten rows left of it. So none is made at first, and texts
//! are read late, when their rows are known. Where pipelines cannot do without one, the columns of small tables get theirs.

use std::cell::Cell;

use onehop_pipeline::{SegmentSource, Source, Type};

use super::{Failure, Lowered};
use crate::place::Placing;
use crate::scan_plan::ScanPlan;

/// Texts of tables of more rows than this are never made a dictionary: a million a second are, and the statement waits.
const MOST_TEXTS: u64 = 1 << 16;

/// Texts of tables of no more rows than this are made one at once where a device might run the pipelines: it has no other use
/// for texts, and these few take no time to speak of.
const FOR_DEVICES: u64 = 1 << 12;

/// Which columns get one.
#[derive(Debug)]
pub(super) struct Dictionaries {
    /// Those of tables with no more rows than this.
    most_texts: u64,
    /// Whether more of them would if this were [`MOST_TEXTS`].
    leaves_out: Cell<bool>,
}

impl Dictionaries {
    /// None gets one.
    pub fn none() -> Self {
        Self { most_texts: 0, leaves_out: Cell::new(false) }
    }

    /// None but those that a device would need, if there might be one.
    pub fn few(placing: &Placing) -> Self {
        let most_texts = if placing.may_use_devices() { FOR_DEVICES } else { 0 };
        Self { most_texts, leaves_out: Cell::new(false) }
    }

    /// Lowers something with as few as that takes.
    ///
    /// # Errors
    /// Those of the last attempt.
    pub fn fewest<T>(placing: &Placing, mut lower: impl FnMut(&Self) -> Lowered<T>) -> Lowered<T> {
        let few = Self::few(placing);
        match lower(&few) {
            Err(Failure::Reason(_)) if few.leaves_out.get() => {
                lower(&Self { most_texts: MOST_TEXTS, leaves_out: Cell::new(false) })
            }
            outcome => outcome,
        }
    }

    /// Of how many rows the segments may be whose texts get one, in a table that is read like this.
    pub fn most_texts(&self, plan: &ScanPlan) -> u64 {
        if rows_of(plan) <= self.most_texts { self.most_texts } else { 0 }
    }

    /// Takes a look at what became of a table's columns.
    pub fn look_at(&self, source: &SegmentSource, plan: &ScanPlan) {
        let is_late = source.columns().iter().any(|column| column.ty == Type::LateText);
        if is_late && (self.most_texts + 1..=MOST_TEXTS).contains(&rows_of(plan)) {
            self.leaves_out.set(true);
        }
    }
}

/// Rows of the segments that are read, also of those of their blocks that are not: a dictionary is of whole segments.
fn rows_of(plan: &ScanPlan) -> u64 {
    plan.blocks.segments().iter().map(|segment| segment.rows()).sum()
}
