//! What operators may reserve: their share of `memory_limit`, and no more than the process has left.
//!
//! Operators of DataFusion and pipelines ask for memory before, or soon after, they take it. What they
//! leave out (copies while a vector grows, batches under way, results of functions) the governor counts.
//! So a reservation is granted if both agree: the sum of reservations stays below the pool's limit, and
//! the process, with what is asked for, below `memory_limit`. An operator that is refused spills, or
//! fails with an error that names the largest consumers.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datafusion::common::{DataFusionError, Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, TrackConsumersPool,
};
use onehop_governor as governor;

use crate::Error;

/// Names the largest consumers in its out-of-memory errors.
const CONSUMERS_IN_ERRORS: usize = 3;

/// Of what statements may have, one eighth is left for what nothing reserves.
const UNRESERVED_PART: u64 = 8;

/// Operators that spill leave one part in so many of the memory that may be reserved: what they keep is
/// copied while it is sorted and written. Sorts leave as much in reservations, for the merge of their
/// rows cannot spill.
const LEFT_PART: u64 = 2;

/// The same in bytes, at most.
const LEFT_BYTES: u64 = 256 << 20;

/// Each sort of a statement reserves so much to merge what it has spilled, unless the limit is low.
const TO_MERGE_BYTES: u64 = 10 << 20;

/// Of what may be reserved, all sorts of a statement together have one quarter to merge with.
const TO_MERGE_PART: u64 = 4;

/// Sorts that merge what they have spilled may reserve one part in so many, all together. Each takes what
/// it gets, to merge as many runs at a time, and what merges the sorts' rows needs the rest.
const MERGES_PART: u64 = 2;

/// DataFusion's names of a sort's reservations: for the rows that it keeps, and to merge.
const SORT: &str = "ExternalSorter[";
const MERGE: &str = "ExternalSorterMerge[";

/// DataFusion's name of a nested-loop join's reservation for its left side.
const LOAD: &str = "NestedLoopJoinLoad";

/// An operator that has less than one part in so many of the limit is not refused for want of it: while
/// a large statement ends, small ones go on.
const UNASKED_PART: u64 = 256;

/// A pool whose grants the process's memory has to cover.
#[derive(Debug)]
pub(crate) struct CoveredPool {
    reservations: TrackConsumersPool<FairSpillPool>,
    limit: u64,
    /// What all operators may reserve together, in bytes.
    reservable: u64,
    /// Sorts.
    sorts: AtomicU64,
    /// Sorts that may merge.
    merges: AtomicU64,
}

fn reservable(limit: u64) -> u64 {
    let allowed = if governor::is_counting() { governor::allowed_to_statements(limit) } else { limit };
    allowed - allowed / UNRESERVED_PART
}

/// What each of `threads` sorts beside each other reserves to merge with, in bytes.
pub(crate) fn to_merge(limit: u64, threads: usize) -> usize {
    let share = reservable(limit) / TO_MERGE_PART / threads.max(1) as u64;
    share.min(TO_MERGE_BYTES) as usize
}

/// For a limit of resident bytes.
pub(crate) fn pool(limit: u64) -> Arc<dyn MemoryPool> {
    let reservable = reservable(limit);
    let consumers = NonZeroUsize::new(CONSUMERS_IN_ERRORS).unwrap_or(NonZeroUsize::MIN);
    let fair = FairSpillPool::new(usize::try_from(reservable).unwrap_or(usize::MAX));
    Arc::new(CoveredPool {
        reservations: TrackConsumersPool::new(fair, consumers),
        limit,
        reservable,
        sorts: AtomicU64::new(0),
        merges: AtomicU64::new(0),
    })
}

impl CoveredPool {
    /// The counter of an operator's kind, if it is counted.
    fn kind(&self, consumer: &MemoryConsumer) -> Option<&AtomicU64> {
        match consumer.name() {
            name if name.starts_with(MERGE) => Some(&self.merges),
            name if name.starts_with(SORT) => Some(&self.sorts),
            _ => None,
        }
    }

    /// Operators that spill leave so much to others, in bytes.
    fn left(&self) -> u64 {
        (self.reservable / LEFT_PART).min(LEFT_BYTES)
    }

    /// The most that an operator may reserve because of what it does, in bytes; `None` for the whole pool.
    fn share(&self, reservation: &MemoryReservation) -> Option<u64> {
        let each = |bytes: u64, kind: &AtomicU64| Some(bytes / kind.load(Relaxed).max(1));
        match reservation.consumer().name() {
            // A merge begins with the few bytes of a setting.
            name if name.starts_with(MERGE) && reservation.size() == 0 => None,
            name if name.starts_with(MERGE) => each(self.reservable / MERGES_PART, &self.merges),
            name if name.starts_with(SORT) => each(self.reservable - self.left(), &self.sorts),
            _ => None,
        }
    }
}

impl MemoryPool for CoveredPool {
    fn name(&self) -> &str {
        "covered"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        if let Some(kind) = self.kind(consumer) {
            kind.fetch_add(1, Relaxed);
        }
        self.reservations.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        if let Some(kind) = self.kind(consumer) {
            kind.fetch_sub(1, Relaxed);
        }
        self.reservations.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.reservations.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.reservations.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let granted = self.grant(reservation, additional);
        match reservation.consumer().name().starts_with(LOAD) {
            true => granted.map_err(for_good),
            false => granted,
        }
    }

    fn reserved(&self) -> usize {
        self.reservations.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.reservations.memory_limit()
    }
}

/// The same refusal as an error that no operator takes for one of a pool. A nested-loop join would answer
/// that by running its left side once more, to spill it: operators like RepartitionExec panic then, and
/// rows of the left side that other partitions have matched count as unmatched (DataFusion 55.2.0,
/// `NestedLoopJoinExec::execute`).
fn for_good(refusal: DataFusionError) -> DataFusionError {
    let refusal = Error::from(refusal);
    // Without what it stands on, where operators look for the pool's.
    let error = Error::new(refusal.kind(), refusal.message());
    match refusal.hint() {
        Some(hint) => error.with_hint(hint).into(),
        None => error.into(),
    }
}

impl CoveredPool {
    fn grant(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer();
        let wanted = (reservation.size() + additional) as u64;
        if wanted > self.limit / UNASKED_PART {
            if self.share(reservation).is_some_and(|share| wanted > share) {
                return Err(resources_datafusion_err!(
                    "Failed to allocate {additional} bytes for {}: it has {} bytes, its share of memory_limit",
                    consumer.name(),
                    reservation.size()
                ));
            }
            let left = if consumer.can_spill() { self.left() } else { 0 };
            if !governor::fits(additional as u64 + left, self.limit) {
                return Err(resources_datafusion_err!(
                    "Failed to allocate {additional} bytes for {}: the process has too little left of memory_limit",
                    consumer.name()
                ));
            }
        }
        self.reservations.try_grow(reservation, additional)
    }
}

impl fmt::Display for CoveredPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reservations.fmt(f)
    }
}
