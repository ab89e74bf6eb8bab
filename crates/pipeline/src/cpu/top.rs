//! The first rows in an order. Each worker keeps candidates, and all workers share a threshold.
//!
//! ```text
//! rows ─► threshold: reads keys only ─► candidates ─► at 1.5 times the wanted rows: drop all but
//!             ▲                                       the first ones, and offer the worst of these
//!             └───────────────────────────────────────┘
//! candidates of all workers ─► sorted ─► the first rows ─► put-off columns, of these rows only
//! ```
//! A worker that offers a threshold has the wanted number of rows that are at least as good, and
//! keeps them or better ones. Therefore any worker can drop a row that is not strictly before the
//! threshold. It can also skip a block whose zone map rules out all of its rows.
//!
//! An expression over a row must fail for every row that reaches this sink, or for none. If any
//! expression can fail, no row is dropped before all its expressions are evaluated. Then errors do
//! not depend on the timing of the threshold.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::aggregate::{Answer, Chunks};
use super::facts::TopFacts;
use super::output::ResultColumn;
use super::states::ordered;
use super::vector::{Data, Vector};
use super::worker::extend;
use crate::block::{Rows, Scratch};
use crate::budget::{Budget, Growth, Holder, Room};
use crate::ir::{Direction, Nulls};
use crate::{Domain, Interval, Result, Source, Type, VECTOR_ROWS};

/// Most rows for which columns that no other step reads are read at the end, by one thread.
const MOST_PUT_OFF: usize = 4096;

/// Name in memory errors.
const WHAT: &str = "the first rows in an order";

/// Position of a key in its order. `nulls` places NULL before or after all values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    nulls: i8,
    value: i128,
}

/// A key of the order.
#[derive(Debug)]
pub(super) struct TopKey {
    /// The register of the key.
    pub slot: usize,
    pub direction: Direction,
    pub nulls: Nulls,
}

impl TopKey {
    /// Returns the rank of NULL.
    fn of_null(&self) -> Rank {
        Rank { nulls: if self.nulls == Nulls::First { -1 } else { 1 }, value: 0 }
    }

    fn of(&self, vector: &Vector, row: usize) -> Rank {
        if !vector.is_valid(row) {
            return self.of_null();
        }
        let value = match &vector.data {
            Data::F64(values) => order(values[row]).into(),
            _ => vector.integer(row),
        };
        // Complement instead of negation, which would not fit for the least integer.
        Rank { nulls: 0, value: if self.direction == Direction::Ascending { value } else { !value } }
    }

    /// Returns the values that come before `worst`, or are equal to it if `or_equal`.
    fn passing(&self, worst: Rank, or_equal: bool) -> Passing {
        let null = self.of_null();
        let interval = match (worst.nulls, self.direction) {
            (..0, _) => Interval::EMPTY,
            (1.., _) => Interval::ALL,
            (0, Direction::Ascending) => {
                let max = if or_equal { Some(worst.value) } else { worst.value.checked_sub(1) };
                max.map_or(Interval::EMPTY, |max| Interval::new(i128::MIN, max))
            }
            (0, Direction::Descending) => {
                let min = if or_equal { Some(!worst.value) } else { (!worst.value).checked_add(1) };
                min.map_or(Interval::EMPTY, |min| Interval::new(min, i128::MAX))
            }
        };
        Passing { interval, null: null < worst || or_equal && null == worst }
    }
}

/// Maps a double to an integer in the same order. Both zeros are equal, and NaNs are at both ends
/// by sign.
fn order(value: f64) -> i64 {
    // -0.0 plus 0.0 is 0.0.
    ordered((value + 0.0).to_bits() as i64)
}

/// Values of a key that may still be among the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing {
    /// For doubles, in the mapping of [`order`].
    pub interval: Interval,
    /// True if NULL passes.
    pub null: bool,
}

impl Passing {
    /// Marks the rows that pass.
    pub fn mark(&self, vector: &Vector, n: usize, keep: &mut [u8; VECTOR_ROWS]) {
        fn within<T: Copy + PartialOrd>(values: &[T], min: T, max: T, keep: &mut [u8]) {
            keep.iter_mut().zip(values).for_each(|(keep, value)| *keep = u8::from(min <= *value && *value <= max));
        }
        let Interval { min, max } = self.interval;
        let keep = &mut keep[..n];
        // No value lies between bounds that are one too far apart.
        macro_rules! narrow {
            ($values:expr, $ty:ty) => {
                match self.interval.intersection(Interval::new(<$ty>::MIN.into(), <$ty>::MAX.into())) {
                    held if held.is_empty() => keep.fill(0),
                    held => within(&$values[..n], held.min as $ty, held.max as $ty, keep),
                }
            };
        }
        match &vector.data {
            Data::Bool(values) => narrow!(values, u8),
            Data::I32(values) => narrow!(values, i32),
            Data::I64(values) => narrow!(values, i64),
            Data::I128(values) => within(&values[..n], min, max, keep),
            Data::F64(values) => keep.iter_mut().zip(&values[..n]).for_each(|(keep, value)| {
                *keep = u8::from((min..=max).contains(&order(*value).into()));
            }),
        }
        if vector.has_nulls {
            let null = u8::from(self.null);
            keep.iter_mut().zip(&vector.valid[..n]).for_each(|(keep, valid)| {
                *keep = if *valid == 0 { null } else { *keep };
            });
        }
    }
}

/// A column of the answer.
#[derive(Debug)]
pub(super) enum TopColumn {
    /// Read or computed when its row becomes a candidate.
    Kept { slot: usize, domain: Domain },
    /// A column of the source that no other expression reads. It is read at the end, for the
    /// remaining rows.
    PutOff { column: usize, domain: Domain },
}

impl TopColumn {
    fn domain(&self) -> &Domain {
        match self {
            Self::Kept { domain, .. } | Self::PutOff { domain, .. } => domain,
        }
    }
}

/// Returns true if columns of the source that no other expression reads are read at the end.
pub(super) fn may_put_off(rows: usize) -> bool {
    rows <= MOST_PUT_OFF
}

/// State shared by the workers of a stage.
#[derive(Debug)]
pub(super) struct TopPlan {
    pub rows: usize,
    pub keys: Vec<TopKey>,
    pub columns: Vec<TopColumn>,
    /// Registers that are read for every row: those of the keys, and all others if an expression
    /// can fail.
    pub first: Vec<usize>,
    /// True if an expression can fail.
    pub is_fallible: bool,
    /// The step that removes rows before any other column is read, and its key column of the
    /// source.
    pub early: Option<(usize, usize)>,
    pub threshold: Threshold,
    pub counts: TopCounts,
}

/// Statistics of the sink so far.
#[derive(Debug, Default)]
pub(super) struct TopCounts {
    rows_in: AtomicU64,
    morsels_skipped: AtomicUsize,
    rows_skipped: AtomicU64,
}

/// The rank that a row must beat: the wanted number of rows are at least as good, over all workers.
#[derive(Debug, Default)]
pub(super) struct Threshold {
    version: AtomicU64,
    worst: Mutex<Option<Arc<[Rank]>>>,
}

impl Threshold {
    fn offer(&self, ranks: &[Rank]) {
        let mut worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
        if worst.as_ref().is_none_or(|worst| ranks < &worst[..]) {
            *worst = Some(ranks.into());
            self.version.fetch_add(1, Relaxed);
        }
    }
}

impl TopPlan {
    /// Returns the statistics. `left_out` is the number of rows that the early step has removed.
    pub fn facts(&self, left_out: u64) -> TopFacts {
        TopFacts {
            rows_in: self.counts.rows_in.load(Relaxed),
            rows_left_out: left_out,
            morsels_skipped: self.counts.morsels_skipped.load(Relaxed),
            rows_skipped: self.counts.rows_skipped.load(Relaxed),
        }
    }

    /// Sorts the morsels by their best possible row, so that later ones can be skipped. Morsels of
    /// unknown range are last.
    pub fn arrange(&self, morsels: &mut [usize], source: &dyn Source) {
        let (Some((_, column)), Some(key)) = (self.early, self.keys.first()) else { return };
        morsels.sort_by_cached_key(|morsel| {
            let best = match source.interval(*morsel, column) {
                None => return Rank { nulls: i8::MAX, value: 0 },
                _ if key.nulls == Nulls::First && source.may_have_nulls(*morsel, column) => return key.of_null(),
                Some(held) if held.is_empty() => return key.of_null(),
                Some(held) if key.direction == Direction::Ascending => held.min,
                Some(held) => !held.max,
            };
            Rank { nulls: 0, value: best }
        });
    }

    /// Returns true if no row of a morsel passes.
    fn is_beaten(&self, passing: Passing, source: &dyn Source, morsel: usize) -> bool {
        let Some((_, column)) = self.early else { return false };
        let is_ruled_out = |held: Interval| held.intersection(passing.interval).is_empty();
        source.interval(morsel, column).is_some_and(is_ruled_out)
            && !(passing.null && source.may_have_nulls(morsel, column))
    }
}

/// Candidates of one worker.
#[derive(Debug)]
pub(super) struct Top {
    rows: usize,
    /// Number of sort keys.
    width: usize,
    /// Ranks of each candidate, one per key.
    ranks: Vec<Rank>,
    /// Kept columns of the candidates.
    columns: Vec<ResultColumn>,
    /// Morsel and row of each candidate, if columns are put off.
    places: Vec<(u32, u16)>,
    worst: Option<Arc<[Rank]>>,
    version: u64,
    room: Room,
}

impl Top {
    pub fn new(plan: &TopPlan, budget: &Budget) -> Self {
        let kept = plan.columns.iter().filter(|column| matches!(column, TopColumn::Kept { .. }));
        Self {
            rows: 0,
            width: plan.keys.len(),
            ranks: Vec::new(),
            columns: kept.map(|column| ResultColumn::empty(column.domain())).collect(),
            places: Vec::new(),
            worst: None,
            version: 0,
            room: budget.room(WHAT, Holder::Keeps),
        }
    }

    /// Returns the bytes that it has taken.
    pub fn bytes(&self) -> usize {
        self.growth(0).bytes()
    }

    /// Returns the bytes with `more` candidates, including the memory for selecting the first ones.
    fn growth(&self, more: usize) -> Growth {
        let keys = Growth::of_vec(&self.ranks, more * self.width).and(Growth::of_vec(&self.places, more));
        let order = Growth::none((self.rows + more) * size_of::<u32>());
        self.columns.iter().fold(keys.and(order), |sum, column| sum.and(column.growth(more)))
    }

    /// Adopts the shared threshold if it is better.
    fn refresh(&mut self, plan: &TopPlan) {
        let version = plan.threshold.version.load(Relaxed);
        if version == self.version {
            return;
        }
        self.version = version;
        let offered = plan.threshold.worst.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if self.worst.is_none() || offered.is_some() && offered < self.worst {
            self.worst = offered;
        }
    }

    /// Returns the values of the first key that pass, once there is a threshold.
    pub fn passing(&mut self, plan: &TopPlan) -> Option<Passing> {
        self.refresh(plan);
        let (worst, key) = (self.worst.as_ref()?, plan.keys.first()?);
        Some(key.passing(worst[0], plan.keys.len() > 1))
    }

    /// Returns true if no row of a morsel passes.
    pub fn skips(&mut self, plan: &TopPlan, source: &dyn Source, morsel: usize) -> bool {
        let Some(passing) = self.passing(plan) else { return false };
        let is_beaten = plan.is_beaten(passing, source, morsel);
        if is_beaten {
            plan.counts.morsels_skipped.fetch_add(usize::from(source.is_block(morsel)), Relaxed);
            plan.counts.rows_skipped.fetch_add(source.live_rows(morsel) as u64, Relaxed);
        }
        is_beaten
    }

    /// Marks rows that pass, and adds their keys to the candidates. Returns their number.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn begin(
        &mut self,
        plan: &TopPlan,
        vectors: &[Vector],
        n: usize,
        keep: &mut [u8; VECTOR_ROWS],
    ) -> Result<usize> {
        plan.counts.rows_in.fetch_add(n as u64, Relaxed);
        match (self.passing(plan), plan.keys.first()) {
            (Some(passing), Some(key)) => passing.mark(&vectors[key.slot], n, keep),
            _ => keep[..n].fill(1),
        }
        let before = self.ranks.len();
        self.room.hold(self.growth(keep[..n].iter().filter(|keep| **keep != 0).count()).bytes())?;
        for row in (0..n).filter(|row| keep[*row] != 0).collect::<Vec<_>>() {
            let at = self.ranks.len();
            self.ranks.extend(plan.keys.iter().map(|key| key.of(&vectors[key.slot], row)));
            if self.worst.as_ref().is_some_and(|worst| self.ranks[at..] >= worst[..]) {
                self.ranks.truncate(at);
                keep[row] = 0;
            }
        }
        Ok((self.ranks.len() - before) / plan.keys.len())
    }

    /// Appends the kept columns and the positions of the rows that just became candidates.
    pub fn end(&mut self, plan: &TopPlan, vectors: &[Vector], places: impl ExactSizeIterator<Item = (u32, u16)>) {
        let n = places.len();
        let kept = plan.columns.iter().filter_map(|column| match column {
            TopColumn::Kept { slot, domain } => Some((*slot, domain)),
            TopColumn::PutOff { .. } => None,
        });
        for (column, (slot, domain)) in self.columns.iter_mut().zip(kept) {
            extend(column, &vectors[slot], domain, n);
        }
        if plan.columns.len() > self.columns.len() {
            self.places.extend(places);
        }
        self.rows += n;
        if self.rows > plan.rows + plan.rows / 2 {
            self.shrink(plan);
        }
    }

    /// Keeps the first rows up to the wanted number, and offers the threshold.
    fn shrink(&mut self, plan: &TopPlan) {
        if self.rows < plan.rows {
            return;
        }
        let width = plan.keys.len();
        let ranks = |row: u32| &self.ranks[row as usize * width..][..width];
        let mut picked: Vec<u32> = (0..self.rows as u32).collect();
        let (_, last, _) = picked.select_nth_unstable_by(plan.rows - 1, |a, b| ranks(*a).cmp(ranks(*b)));
        let worst: Arc<[Rank]> = ranks(*last).into();
        picked.truncate(plan.rows);
        picked.sort_unstable();
        for (to, from) in picked.iter().enumerate() {
            self.ranks.copy_within(*from as usize * width..(*from as usize + 1) * width, to * width);
        }
        self.ranks.truncate(plan.rows * width);
        self.columns.iter_mut().for_each(|column| column.compact(&picked));
        if !self.places.is_empty() {
            picked.iter().enumerate().for_each(|(to, from)| self.places[to] = self.places[*from as usize]);
            self.places.truncate(plan.rows);
        }
        self.rows = plan.rows;
        plan.threshold.offer(&worst);
        if self.worst.as_ref().is_none_or(|known| worst < *known) {
            self.worst = Some(worst);
        }
    }
}

/// Merges all workers' candidates into the first rows, in order.
///
/// # Errors
/// Those of the storage, for columns that were put off; [`crate::Error::Memory`].
pub(super) fn finish(plan: &TopPlan, tops: Vec<Top>, source: &dyn Source, budget: &Budget) -> Result<Answer> {
    let width = plan.keys.len();
    let mut tops = tops.into_iter();
    let Some(mut all) = tops.next() else { return Ok(Answer::Rows(Chunks::default())) };
    for top in tops {
        all.room.hold(all.growth(top.rows).bytes())?;
        all.rows += top.rows;
        all.ranks.extend(top.ranks);
        all.columns.iter_mut().zip(&top.columns).for_each(|(to, from)| to.append(from));
        all.places.extend(top.places);
    }
    let mut room = budget.room(WHAT, Holder::Keeps);
    let wide = plan.columns.len() * (size_of::<i128>() + 1) + size_of::<u32>();
    room.hold(all.rows.min(plan.rows) * wide + all.rows * size_of::<u32>())?;
    let ranks = |row: u32| &all.ranks[row as usize * width..][..width];
    let mut picked: Vec<u32> = (0..all.rows as u32).collect();
    picked.sort_unstable_by(|a, b| ranks(*a).cmp(ranks(*b)));
    picked.truncate(plan.rows);
    let places: Vec<(u32, u16)> = match all.places.is_empty() {
        true => Vec::new(),
        false => picked.iter().map(|row| all.places[*row as usize]).collect(),
    };
    let mut kept = all.columns.iter();
    let mut columns = Vec::with_capacity(plan.columns.len());
    for column in &plan.columns {
        columns.push(match column {
            TopColumn::Kept { domain, .. } => {
                kept.next().map_or_else(|| ResultColumn::empty(domain), |column| column.gather(&picked))
            }
            TopColumn::PutOff { column, domain } => read(source, *column, domain, &places)?,
        });
    }
    Ok(Answer::Rows(Chunks { chunks: vec![columns], rooms: vec![room] }))
}

/// Reads a column of the source at positions in any order. Each morsel is loaded once.
fn read(source: &dyn Source, column: usize, domain: &Domain, places: &[(u32, u16)]) -> Result<ResultColumn> {
    let mut order: Vec<u32> = (0..places.len() as u32).collect();
    let place = |row: &u32| places[*row as usize];
    order.sort_unstable_by_key(place);
    let mut integers = vec![None; if domain.ty == Type::Double { 0 } else { places.len() }];
    let mut doubles = vec![0.0; if domain.ty == Type::Double { places.len() } else { 0 }];
    let mut valid = vec![true; places.len()];
    let mut scratch = Box::new(Scratch::new());
    let (mut integer, mut double) = (Box::new([0i128; VECTOR_ROWS]), Box::new([0f64; VECTOR_ROWS]));
    let mut is_valid = Box::new([1u8; VECTOR_ROWS]);
    for of_morsel in order.chunk_by(|a, b| place(a).0 == place(b).0) {
        let block = source.load(place(&of_morsel[0]).0 as usize, column)?;
        for some in of_morsel.chunks(VECTOR_ROWS) {
            let rows: Vec<u16> = some.iter().map(|row| place(row).1).collect();
            if block.has_nulls() {
                block.validity(Rows::Picked(&rows), &mut is_valid, &mut scratch);
                some.iter().zip(&is_valid[..]).for_each(|(row, is_valid)| valid[*row as usize] = *is_valid != 0);
            }
            match domain.ty {
                Type::Double => {
                    block.doubles(Rows::Picked(&rows), &mut double)?;
                    some.iter().zip(&double[..]).for_each(|(row, value)| doubles[*row as usize] = *value);
                }
                _ => {
                    block.integers(Rows::Picked(&rows), &mut integer, &mut scratch)?;
                    some.iter().zip(&integer[..]).for_each(|(row, value)| {
                        integers[*row as usize] = Some(*value).filter(|_| valid[*row as usize]);
                    });
                }
            }
        }
    }
    Ok(match domain.ty {
        Type::Double => {
            ResultColumn { values: super::ResultValues::Double(doubles), valid: domain.nullable.then_some(valid) }
        }
        _ => ResultColumn::of_integers(domain, integers.into_iter()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Kind;

    const DOUBLES: [f64; 8] = [-f64::NAN, f64::NEG_INFINITY, -1.5, -0.0, 0.0, 1.5, f64::INFINITY, f64::NAN];
    const INTEGERS: [i128; 7] = [i64::MIN as i128, -7, -1, 0, 1, 7, i64::MAX as i128];

    #[test]
    fn doubles_are_in_order_and_both_zeros_are_one() {
        assert!(DOUBLES.is_sorted_by(|a, b| order(*a) < order(*b) || (*a, *b) == (0.0, 0.0)));
        assert_eq!(order(-0.0), order(0.0));
    }

    /// Returns vectors of the values, with a NULL at the end.
    fn vectors() -> [(Vector, usize); 4] {
        let (mut doubles, mut longs, mut wide) =
            (Vector::new(Kind::F64), Vector::new(Kind::I64), Vector::new(Kind::I128));
        let mut bools = Vector::new(Kind::Bool);
        if let Data::F64(values) = &mut doubles.data {
            values[..DOUBLES.len()].copy_from_slice(&DOUBLES);
        }
        for (row, value) in INTEGERS.iter().enumerate() {
            if let (Data::I64(longs), Data::I128(wide)) = (&mut longs.data, &mut wide.data) {
                (longs[row], wide[row]) = (*value as i64, *value);
            }
        }
        if let (Data::I128(wide), Data::Bool(bools)) = (&mut wide.data, &mut bools.data) {
            (wide[0], wide[6], bools[1]) = (i128::MIN, i128::MAX, 1);
        }
        [(doubles, DOUBLES.len()), (longs, INTEGERS.len()), (wide, INTEGERS.len()), (bools, 2)].map(
            |(mut vector, n)| {
                (vector.has_nulls, vector.valid[n]) = (true, 0);
                (vector, n + 1)
            },
        )
    }

    #[test]
    fn what_passes_is_what_comes_before() {
        for (vector, n) in &vectors() {
            for (direction, nulls, or_equal) in [Direction::Ascending, Direction::Descending]
                .into_iter()
                .flat_map(|direction| [Nulls::First, Nulls::Last].map(|nulls| (direction, nulls)))
                .flat_map(|(direction, nulls)| [false, true].map(|or_equal| (direction, nulls, or_equal)))
            {
                let key = TopKey { slot: 0, direction, nulls };
                for worst in 0..*n {
                    let worst = key.of(vector, worst);
                    let mut keep = [2; VECTOR_ROWS];
                    key.passing(worst, or_equal).mark(vector, *n, &mut keep);
                    for (row, keep) in keep[..*n].iter().enumerate() {
                        let rank = key.of(vector, row);
                        let expected = rank < worst || or_equal && rank == worst;
                        assert_eq!(*keep == 1, expected, "{key:?} {worst:?} {row} {or_equal}");
                    }
                }
            }
        }
    }
}
