//! States of aggregate functions: for each function a vector of states, by place.
//!
//! Sums of integers are exact. They use 64 bits if the number and range of the values cannot exceed
//! them, else 128 bits. Sums and variances of doubles do not depend on the order of rows
//! ([`ExactSum`]). Doubles are compared as integers, in the total order of IEEE 754, in which -0.0
//! comes before 0.0 and NaN comes last.

use super::distinct::Distinct;
use super::exact::{ExactSum, HIGHEST, HIGHEST_OF_SQUARES, Moments, SUM_WORDS};
use super::kernels;
use super::output::{ResultColumn, ResultValues};
use super::page::{Reader, put, signed, unsigned};
use super::vector::{Data, Kind, Vector};
use crate::budget::Growth;
use crate::{Domain, Error, Result};

/// An aggregate function of a group.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub kind: FunctionKind,
    /// True if equal values count once.
    pub is_distinct: bool,
    /// The argument's slot; unused for [`FunctionKind::CountRows`].
    pub slot: usize,
    pub domain: Domain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FunctionKind {
    CountRows,
    Count,
    Sum,
    Min,
    Max,
    Variance { is_sample: bool },
}

/// The states of one function, by place.
#[derive(Debug)]
pub(crate) struct State {
    values: Values,
    /// Number of values per place; empty if every row has a value.
    counts: Vec<i64>,
    /// The values seen so far, if equal values count once.
    seen: Option<Distinct>,
}

#[derive(Debug)]
enum Values {
    /// No values, only counts.
    None,
    I64(Vec<i64>),
    I128(Vec<i128>),
    /// Doubles mapped to integers of the same order.
    Ordered(Vec<i64>),
    Sums(Vec<ExactSum>),
    Moments(Vec<Moments>),
}

impl Function {
    /// # Errors
    /// [`Error::Unsupported`] if there is no code for it.
    pub fn check(&self) -> Result<()> {
        let unsupported = |what: &str| Err(Error::Unsupported(what.into()));
        let kind = Kind::of(&self.domain);
        match self.kind {
            FunctionKind::Sum if kind == Kind::I128 => unsupported("a sum of integers of more than 64 bits"),
            _ if self.is_distinct && kind == Kind::I128 => unsupported("distinct integers of more than 64 bits"),
            _ if self.is_distinct && kind == Kind::F64 => unsupported("distinct doubles"),
            _ => Ok(()),
        }
    }

    /// Returns the most words of a state in a page.
    pub fn state_words(&self) -> usize {
        let is_double = Kind::of(&self.domain) == Kind::F64;
        match self.kind {
            FunctionKind::CountRows | FunctionKind::Count => 1,
            FunctionKind::Variance { .. } => 2 * SUM_WORDS + 1,
            FunctionKind::Sum if is_double => SUM_WORDS + 1,
            FunctionKind::Sum | FunctionKind::Min | FunctionKind::Max => 3,
        }
    }

    /// Returns the bytes of a group's result while it is made: its value and NULL flag, and for
    /// doubles also both in one option.
    pub fn result_bytes(&self) -> usize {
        17 + if Kind::of(&self.domain) == Kind::F64 { 16 } else { 0 }
    }

    /// Returns true if a group may have fewer counted values than rows.
    fn has_counts(&self) -> bool {
        self.kind != FunctionKind::CountRows && (self.domain.nullable || self.is_distinct)
    }
}

impl FunctionKind {
    /// Returns the initial value of a place.
    fn initial(self) -> i128 {
        match self {
            Self::Min => i128::MAX,
            Self::Max => i128::MIN,
            _ => 0,
        }
    }
}

/// Maps a double's bits to an integer of the same order, and back.
pub(super) fn ordered(bits: i64) -> i64 {
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

impl State {
    /// Creates the state without places. `rows` and dense `places` are upper bounds, if they are
    /// known.
    pub fn new(function: &Function, rows: Option<u64>, places: Option<usize>) -> Self {
        let fits = |rows: u64| {
            let sum = function.domain.interval.magnitude().checked_mul(rows.into());
            sum.is_some_and(|sum| sum <= i64::MAX as u128)
        };
        let kind = Kind::of(&function.domain);
        let values = match function.kind {
            FunctionKind::CountRows | FunctionKind::Count => Values::None,
            FunctionKind::Variance { .. } => Values::Moments(Vec::new()),
            FunctionKind::Sum if kind == Kind::F64 => Values::Sums(Vec::new()),
            FunctionKind::Sum if rows.is_some_and(fits) => Values::I64(Vec::new()),
            FunctionKind::Sum => Values::I128(Vec::new()),
            FunctionKind::Min | FunctionKind::Max => match kind {
                Kind::F64 => Values::Ordered(Vec::new()),
                Kind::I128 => Values::I128(Vec::new()),
                _ => Values::I64(Vec::new()),
            },
        };
        let seen = function.is_distinct.then(|| Distinct::new(function.domain.interval, places));
        Self { values, counts: Vec::new(), seen }
    }

    /// Grows the state to `places` places.
    pub fn grow(&mut self, function: &Function, places: usize) {
        if function.has_counts() {
            self.counts.resize(places, 0);
        }
        let initial = function.kind.initial();
        match &mut self.values {
            Values::None => {}
            Values::I64(values) | Values::Ordered(values) => {
                values.resize(places, initial.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
            }
            Values::I128(values) => values.resize(places, initial),
            Values::Sums(values) => values.resize(places, ExactSum::default()),
            Values::Moments(values) => values.resize(places, Moments::default()),
        }
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> usize {
        let values = match &self.values {
            Values::None => 0,
            Values::I64(values) | Values::Ordered(values) => values.capacity() * 8,
            Values::I128(values) => values.capacity() * 16,
            Values::Sums(values) => values.capacity() * size_of::<ExactSum>(),
            Values::Moments(values) => values.capacity() * size_of::<Moments>(),
        };
        values + self.counts.capacity() * 8 + self.seen.as_ref().map_or(0, Distinct::bytes)
    }

    /// Returns the bytes that it takes with `places` more places, and `values` more values in sets.
    pub fn growth(&self, function: &Function, places: usize, values: usize) -> Growth {
        let states = match &self.values {
            Values::None => Growth::default(),
            Values::I64(values) | Values::Ordered(values) => Growth::of_vec(values, places),
            Values::I128(values) => Growth::of_vec(values, places),
            Values::Sums(values) => Growth::of_vec(values, places),
            Values::Moments(values) => Growth::of_vec(values, places),
        };
        let counts = if function.has_counts() { Growth::of_vec(&self.counts, places) } else { Growth::default() };
        let seen = self.seen.as_ref().map_or(Growth::default(), |seen| seen.growth(values));
        states.and(counts).and(seen)
    }

    /// Removes all places, and keeps the memory.
    pub fn clear(&mut self) {
        match &mut self.values {
            Values::None => {}
            Values::I64(values) | Values::Ordered(values) => values.clear(),
            Values::I128(values) => values.clear(),
            Values::Sums(values) => values.clear(),
            Values::Moments(values) => values.clear(),
        }
        self.counts.clear();
        if let Some(seen) = &mut self.seen {
            seen.clear();
        }
    }

    /// Returns the sets of values, if equal values count once.
    pub fn seen(&self) -> Option<&Distinct> {
        self.seen.as_ref()
    }

    /// Writes the states of places, without sets of values and the results derived from them.
    pub fn write(&self, places: &[u32], out: &mut Vec<u8>) {
        if self.seen.is_some() {
            return;
        }
        let n = places.len();
        let at = |row: usize| places[row] as usize;
        if !self.counts.is_empty() {
            put(out, n, |row| unsigned(self.counts[at(row)]));
        }
        let mut sums = |sum: &dyn Fn(usize) -> ExactSum| {
            (0..SUM_WORDS).for_each(|word| put(out, n, |row| sum(row).words()[word]));
        };
        match &self.values {
            Values::None => {}
            Values::Sums(values) => sums(&|row| values[at(row)]),
            Values::Moments(values) => (0..2).for_each(|which| sums(&|row| *values[at(row)].sums()[which])),
            Values::I64(values) | Values::Ordered(values) => put(out, n, |row| unsigned(values[at(row)])),
            Values::I128(values) => {
                put(out, n, |row| unsigned((values[at(row)] >> 64) as i64));
                put(out, n, |row| values[at(row)] as u64);
            }
        }
    }

    /// Reads `n` states that were written.
    ///
    /// # Errors
    /// [`Error::Spill`].
    pub fn read(&mut self, function: &Function, n: usize, from: &mut Reader<'_>) -> Result<()> {
        self.clear();
        if self.seen.is_some() {
            return Ok(());
        }
        if function.has_counts() {
            from.words(n, |word| self.counts.push(signed(word)))?;
        }
        let mut sums = |highest: u32| -> Result<Vec<ExactSum>> {
            let mut words = vec![[0; SUM_WORDS]; n];
            (0..SUM_WORDS).try_for_each(|number| {
                let mut words = words.iter_mut();
                from.words(n, |word| words.by_ref().take(1).for_each(|words| words[number] = word))
            })?;
            let sums = words.into_iter().map(|words| ExactSum::of_words(words, highest));
            sums.collect::<Option<_>>().ok_or_else(|| from.corrupt("a sum that no doubles have"))
        };
        match &mut self.values {
            Values::None => {}
            Values::Sums(values) => *values = sums(HIGHEST)?,
            Values::Moments(values) => {
                let (values_of, squares) = (sums(HIGHEST)?, sums(HIGHEST_OF_SQUARES)?);
                values.extend(values_of.into_iter().zip(squares).map(|(sum, square)| Moments::of_sums([sum, square])));
            }
            Values::I64(values) | Values::Ordered(values) => from.words(n, |word| values.push(signed(word)))?,
            Values::I128(values) => {
                from.words(n, |word| values.push(i128::from(signed(word)) << 64))?;
                let mut row = 0;
                from.words(n, |word| {
                    values[row] |= i128::from(word);
                    row += 1;
                })?;
            }
        }
        Ok(())
    }

    /// Adds values that their groups may already have.
    pub fn take_values(&mut self, places: &[u32], values: impl Iterator<Item = i64>) {
        let Some(seen) = &mut self.seen else { return };
        for (place, value) in places.iter().zip(values) {
            if seen.insert(*place, value) {
                take_one(&mut self.counts, &mut self.values, *place as usize, value.into());
            }
        }
    }

    /// Returns true if a sum may be computed elsewhere and passed to [`State::add`].
    pub fn is_plain_sum(&self, function: &Function, vector: &Vector) -> bool {
        function.kind == FunctionKind::Sum && !vector.has_nulls && self.counts.is_empty()
    }

    /// Adds to the sum of a group.
    pub fn add(&mut self, place: u32, sum: i64) {
        match &mut self.values {
            Values::I64(sums) => sums[place as usize] += sum,
            Values::I128(sums) => sums[place as usize] += i128::from(sum),
            _ => {}
        }
    }

    /// Adds rows that all belong to one group.
    pub fn update_one(&mut self, function: &Function, vector: &Vector, places: &[u32]) {
        let Some(place) = places.first() else { return };
        let n = places.len();
        if self.is_plain_sum(function, vector) {
            match &vector.data {
                Data::I32(values) => return self.add(*place, kernels::sum_i32(&values[..n])),
                // A sum of that many such values fits 64 bits.
                Data::I64(values) if matches!(self.values, Values::I64(_)) => {
                    return self.add(*place, kernels::sum_i64(&values[..n]));
                }
                _ => {}
            }
        }
        if self.is_plain_end(function, vector) {
            let ends = match &vector.data {
                Data::I32(values) => Some(kernels::ends_i32(&values[..n])),
                Data::I64(values) => Some(kernels::ends_i64(&values[..n])),
                _ => None,
            };
            if let (Some((least, most)), Values::I64(state)) = (ends, &mut self.values) {
                let state = &mut state[*place as usize];
                *state = if function.kind == FunctionKind::Min { least.min(*state) } else { most.max(*state) };
                return;
            }
        }
        self.update(function, vector, places);
    }

    /// Returns true if the minimum or maximum of a whole vector can be computed without looking at
    /// its rows' flags.
    fn is_plain_end(&self, function: &Function, vector: &Vector) -> bool {
        let is_end = matches!(function.kind, FunctionKind::Min | FunctionKind::Max);
        is_end && !vector.has_nulls && self.counts.is_empty() && self.seen.is_none()
    }

    /// Adds the rows of a vector, each to its place.
    pub fn update(&mut self, function: &Function, vector: &Vector, places: &[u32]) {
        if let Some(seen) = &mut self.seen {
            let (counts, sums) = (&mut self.counts, &mut self.values);
            for_each_value(vector, places, |place, row| {
                let value = vector.integer(row);
                if seen.insert(place as u32, value as i64) {
                    take_one(counts, sums, place, value);
                }
            });
            return;
        }
        if !self.counts.is_empty() {
            let counts = &mut self.counts;
            for_each_value(vector, places, |place, _| counts[place] += 1);
        }
        macro_rules! each {
            ($values:expr, $state:expr, $f:expr) => {
                for_each_value(vector, places, |place, row| {
                    let state = &mut $state[place];
                    *state = $f(*state, $values[row].into());
                })
            };
        }
        macro_rules! integers {
            ($state:expr, $t:ty) => {
                match &vector.data {
                    Data::Bool(values) => integers!(values, $state, $t),
                    Data::I32(values) => integers!(values, $state, $t),
                    Data::I64(values) => integers!(values, $state, $t),
                    Data::I128(_) | Data::F64(_) => {}
                }
            };
            ($values:expr, $state:expr, $t:ty) => {
                match function.kind {
                    FunctionKind::Sum => each!($values, $state, |a: $t, b: $t| a + b),
                    FunctionKind::Min => each!($values, $state, |a: $t, b: $t| a.min(b)),
                    FunctionKind::Max => each!($values, $state, |a: $t, b: $t| a.max(b)),
                    FunctionKind::CountRows | FunctionKind::Count | FunctionKind::Variance { .. } => {}
                }
            };
        }
        match (&mut self.values, &vector.data) {
            (Values::Sums(sums), Data::F64(values)) => {
                for_each_value(vector, places, |place, row| sums[place].add(values[row]));
            }
            (Values::Moments(moments), Data::F64(values)) => {
                for_each_value(vector, places, |place, row| moments[place].add(values[row]));
            }
            (Values::Ordered(state), Data::F64(values)) => {
                let is_least = function.kind == FunctionKind::Min;
                for_each_value(vector, places, |place, row| {
                    let (state, value) = (&mut state[place], ordered(values[row].to_bits() as i64));
                    *state = if is_least { value.min(*state) } else { value.max(*state) };
                });
            }
            (Values::I64(state), _) => integers!(state, i64),
            (Values::I128(state), Data::I128(values)) => integers!(values, state, i128),
            (Values::I128(state), _) => integers!(state, i128),
            (Values::None | Values::Sums(_) | Values::Moments(_) | Values::Ordered(_), _) => {}
        }
    }

    /// Merges the sets of values of another worker. `ours` maps its places to this state's, or to
    /// [`NOT_HERE`].
    pub fn merge_sets(&mut self, other: &Self, ours: &[u32]) {
        let (Some(seen), Some(theirs)) = (&mut self.seen, &other.seen) else { return };
        theirs.for_each(|place, value| {
            let place = ours[place as usize];
            if place != NOT_HERE && seen.insert(place, value) {
                take_one(&mut self.counts, &mut self.values, place as usize, value.into());
            }
        });
    }

    /// Merges places of another worker, given as pairs of this and the other place, without sets of
    /// values.
    pub fn merge(&mut self, function: &Function, other: &Self, places: &[(u32, u32)]) {
        if self.seen.is_some() {
            return;
        }
        let places = places.iter().map(|(ours, theirs)| (*ours as usize, *theirs as usize));
        if !self.counts.is_empty() {
            places.clone().for_each(|(ours, theirs)| self.counts[ours] += other.counts[theirs]);
        }
        macro_rules! each {
            ($to:expr, $from:expr) => {
                places.for_each(|(ours, theirs)| {
                    let (a, b) = ($to[ours], $from[theirs]);
                    $to[ours] = match function.kind {
                        FunctionKind::Min => a.min(b),
                        FunctionKind::Max => a.max(b),
                        _ => a + b,
                    };
                })
            };
        }
        match (&mut self.values, &other.values) {
            (Values::I64(to), Values::I64(from)) | (Values::Ordered(to), Values::Ordered(from)) => each!(to, from),
            (Values::I128(to), Values::I128(from)) => each!(to, from),
            (Values::Sums(to), Values::Sums(from)) => {
                places.for_each(|(ours, theirs)| to[ours].merge(&from[theirs]));
            }
            (Values::Moments(to), Values::Moments(from)) => {
                places.for_each(|(ours, theirs)| to[ours].merge(&from[theirs]));
            }
            _ => {}
        }
    }

    /// Returns the function's results at `places`. `rows` has the number of rows by place.
    pub fn finish(&self, function: &Function, rows: &[i64], places: &[usize]) -> ResultColumn {
        let places = places.iter().copied();
        let count = |place: usize| if self.counts.is_empty() { rows[place] } else { self.counts[place] };
        let doubles = |value: &dyn Fn(usize) -> Option<f64>| {
            let all: Vec<Option<f64>> = places.clone().map(|place| value(place).filter(|_| count(place) > 0)).collect();
            let valid = Some(all.iter().map(Option::is_some).collect());
            ResultColumn {
                values: ResultValues::Double(all.into_iter().map(Option::unwrap_or_default).collect()),
                valid,
            }
        };
        let valid = || Some(places.clone().map(|place| count(place) > 0).collect());
        match (&self.values, function.kind) {
            (Values::None, _) => ResultColumn { values: ResultValues::Int(places.map(count).collect()), valid: None },
            (Values::I64(values), FunctionKind::Min | FunctionKind::Max) => {
                let integers = places.map(|place| (count(place) > 0).then(|| values[place].into()));
                ResultColumn::of_integers(&Domain { nullable: true, ..function.domain.clone() }, integers)
            }
            (Values::I64(values), _) => ResultColumn {
                values: ResultValues::Int(places.clone().map(|place| values[place]).collect()),
                valid: valid(),
            },
            (Values::I128(values), _) => ResultColumn {
                values: ResultValues::Wide(places.clone().map(|place| values[place]).collect()),
                valid: valid(),
            },
            (Values::Ordered(values), _) => doubles(&|place| Some(f64::from_bits(ordered(values[place]) as u64))),
            (Values::Sums(sums), _) => doubles(&|place| Some(sums[place].value())),
            (Values::Moments(moments), kind) => {
                let is_sample = kind == FunctionKind::Variance { is_sample: true };
                doubles(&|place| moments[place].variance(count(place), is_sample))
            }
        }
    }
}

/// The place of a group that is not wanted.
pub(crate) const NOT_HERE: u32 = u32::MAX;

/// Counts a value that is new to its group, and adds it to the sum.
fn take_one(counts: &mut [i64], sums: &mut Values, place: usize, value: i128) {
    counts[place] += 1;
    match sums {
        Values::I64(sums) => sums[place] += value as i64,
        Values::I128(sums) => sums[place] += value,
        _ => {}
    }
}

/// Calls `f` with the place and row of every value that is not NULL.
#[inline(always)]
fn for_each_value(vector: &Vector, places: &[u32], mut f: impl FnMut(usize, usize)) {
    if vector.has_nulls {
        for (row, place) in places.iter().enumerate().filter(|(row, _)| vector.valid[*row] != 0) {
            f(*place as usize, row);
        }
    } else {
        places.iter().enumerate().for_each(|(row, place)| f(*place as usize, row));
    }
}
