//! Decides which text columns without a stored dictionary get one while a query is planned.
//!
//! A dictionary supports all operations: comparisons, joins, sorts and text functions. But it takes
//! reading and sorting all text of the column before the query begins, even if the query selects
//! ten rows. So no dictionary is built at first, and text is read late, when its rows are known. If
//! pipelines need one, the columns of small tables get it.

use std::cell::Cell;

use onehop_pipeline::{SegmentSource, Source, Type};

use super::{Failure, Lowered};
use crate::place::Placing;
use crate::scan_plan::ScanPlan;

/// Maximum rows of a table whose text gets a dictionary. Building takes one second for a million
/// values, and the statement waits.
const MOST_TEXTS: u64 = 1 << 16;

/// Maximum rows of a table whose text gets a dictionary immediately if a device might run the
/// pipelines. A device can use text in no other form, and so few values take negligible time.
const FOR_DEVICES: u64 = 1 << 12;

/// The columns that get a dictionary.
#[derive(Debug)]
pub(super) struct Dictionaries {
    /// The maximum number of rows of their tables.
    most_texts: u64,
    /// True if more columns would get one with [`MOST_TEXTS`].
    leaves_out: Cell<bool>,
}

impl Dictionaries {
    /// Returns a choice without dictionaries.
    pub fn none() -> Self {
        Self { most_texts: 0, leaves_out: Cell::new(false) }
    }

    /// Returns a choice of only those dictionaries that a device would need, if there might be one.
    pub fn few(placing: &Placing) -> Self {
        let most_texts = if placing.may_use_devices() { FOR_DEVICES } else { 0 };
        Self { most_texts, leaves_out: Cell::new(false) }
    }

    /// Calls `lower` with as few dictionaries as it needs.
    ///
    /// # Errors
    /// The errors of the last attempt.
    pub fn fewest<T>(placing: &Placing, mut lower: impl FnMut(&Self) -> Lowered<T>) -> Lowered<T> {
        let few = Self::few(placing);
        match lower(&few) {
            Err(Failure::Reason(_)) if few.leaves_out.get() => {
                lower(&Self { most_texts: MOST_TEXTS, leaves_out: Cell::new(false) })
            }
            outcome => outcome,
        }
    }

    /// Returns the maximum number of rows of a segment whose text gets a dictionary, for this scan.
    pub fn most_texts(&self, plan: &ScanPlan) -> u64 {
        if rows_of(plan) <= self.most_texts { self.most_texts } else { 0 }
    }

    /// Checks whether more dictionaries would be built for a table's columns with a higher limit.
    pub fn look_at(&self, source: &SegmentSource, plan: &ScanPlan) {
        let is_late = source.columns().iter().any(|column| column.ty == Type::LateText);
        if is_late && (self.most_texts + 1..=MOST_TEXTS).contains(&rows_of(plan)) {
            self.leaves_out.set(true);
        }
    }
}

/// Returns the number of rows of the segments that are read, including blocks that are not: a
/// dictionary covers whole segments.
fn rows_of(plan: &ScanPlan) -> u64 {
    plan.blocks.segments().iter().map(|segment| segment.rows()).sum()
}
