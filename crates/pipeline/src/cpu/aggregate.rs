//! Grouping. Each worker keeps groups of its own; when all rows are through, they are merged.
//!
//! Where the key's domain is small, a group's place is its key (*dense*); otherwise a hash table gives groups places in
//! the order they appear. A key that 64 bits do not hold is several words (*wide*), each a key of some of its parts. Sums are exact: in 64 bits where so many rows of such values cannot exceed them, else in 128.

use super::kernels;
use super::keys::{KeyLayout, KeyScratch};
use super::output::{ResultColumn, ResultValues};
use super::vector::{Data, Kind, Vector};
use crate::{Domain, Error, Result, Type, VECTOR_ROWS};

/// Dense groups, at most. Each takes a few words per worker.
const DENSE_GROUPS: u64 = 1 << 20;

/// Groups so few that each vector is looked at once for each.
const FEW_GROUPS: usize = 8;

/// What to compute of each group.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// One, or as many as the key needs.
    words: Vec<Word>,
    keys: Vec<Domain>,
    functions: Vec<Function>,
}

/// Parts of a key that 64 bits hold.
#[derive(Clone, Debug)]
struct Word {
    layout: KeyLayout,
    slots: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub kind: FunctionKind,
    /// The argument's slot; any for [`FunctionKind::CountRows`].
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
}

/// One worker's groups.
#[derive(Debug)]
pub(crate) struct Groups {
    index: Index,
    /// Rows of each place.
    rows: Vec<i64>,
    states: Vec<State>,
}

#[derive(Debug)]
enum Index {
    /// A place per possible key.
    Dense,
    /// Pairs of a key and a place plus one, and the keys by place.
    Hashed { slots: Vec<(u64, u32)>, keys: Vec<u64> },
    /// Pairs of a key's hash and a place plus one; the words of the keys by place, and of the rows of a vector.
    Wide { slots: Vec<(u32, u32)>, keys: Vec<u64>, rows: Vec<[u64; VECTOR_ROWS]> },
}

/// One function of every place.
#[derive(Debug)]
struct State {
    values: Values,
    /// Values seen; empty if the argument is never NULL.
    counts: Vec<i64>,
}

#[derive(Debug)]
enum Values {
    /// Counts alone.
    None,
    I64(Vec<i64>),
    I128(Vec<i128>),
}

impl Plan {
    /// # Errors
    /// [`Error::Unsupported`] for keys and functions without code.
    pub fn new(keys: Vec<(usize, Domain)>, functions: Vec<Function>) -> Result<Self> {
        let words = words(&keys)?;
        let keys = keys.into_iter().map(|(_, domain)| domain).collect();
        for function in &functions {
            if function.kind == FunctionKind::Sum && Kind::of(&function.domain) == Kind::I128 {
                return Err(Error::Unsupported("a sum of integers of more than 64 bits".into()));
            }
            if function.domain.ty == Type::Double && function.kind != FunctionKind::Count {
                return Err(Error::Unsupported("the least, the greatest or the sum of doubles".into()));
            }
        }
        Ok(Self { words, keys, functions })
    }

    /// Whether groups lie at their keys.
    pub fn is_dense(&self) -> bool {
        matches!(self.words.as_slice(), [word] if word.layout.count <= DENSE_GROUPS)
    }

    /// The value of a part of a key that is given in words; `None` for NULL.
    fn part_of(&self, mut part: usize, key: &[u64]) -> Option<i128> {
        for (word, key) in self.words.iter().zip(key) {
            if part < word.slots.len() {
                return word.layout.part_of(part, *key);
            }
            part -= word.slots.len();
        }
        None
    }

    /// No groups. `rows` is how many rows there can be, where that is known.
    pub fn groups(&self, rows: Option<u64>) -> Groups {
        let places = if self.is_dense() { self.words.iter().map(|word| word.layout.count as usize).sum() } else { 0 };
        let state = |function: &Function| {
            let fits = |rows: u64| {
                let sum = function.domain.interval.magnitude().checked_mul(rows.into());
                sum.is_some_and(|sum| sum <= i64::MAX as u128)
            };
            let wide = Kind::of(&function.domain) == Kind::I128;
            let values = match function.kind {
                FunctionKind::CountRows | FunctionKind::Count => Values::None,
                FunctionKind::Sum if rows.is_some_and(fits) => Values::I64(Vec::new()),
                FunctionKind::Sum => Values::I128(Vec::new()),
                _ if wide => Values::I128(Vec::new()),
                _ => Values::I64(Vec::new()),
            };
            State { values, counts: Vec::new() }
        };
        let index = match self.words.len() {
            1 if self.is_dense() => Index::Dense,
            1 => Index::Hashed { slots: vec![(0, 0); 1024], keys: Vec::new() },
            words => Index::Wide { slots: vec![(0, 0); 1024], keys: Vec::new(), rows: vec![[0; VECTOR_ROWS]; words] },
        };
        let mut groups = Groups { index, rows: Vec::new(), states: self.functions.iter().map(state).collect() };
        groups.grow(places, self);
        groups
    }
}

/// The parts of a key in as few words as they fit, in their order.
fn words(keys: &[(usize, Domain)]) -> Result<Vec<Word>> {
    let layout_of = |keys: &[(usize, Domain)]| {
        let domains: Vec<Domain> = keys.iter().map(|(_, domain)| domain.clone()).collect();
        KeyLayout::new(&domains, true)
    };
    let mut words = Vec::new();
    let mut rest = keys;
    loop {
        let mut taken = rest.len();
        let layout = loop {
            match layout_of(&rest[..taken]) {
                Err(_) if taken > 1 => taken -= 1,
                outcome => break outcome?,
            }
        };
        words.push(Word { layout, slots: rest[..taken].iter().map(|(slot, _)| *slot).collect() });
        rest = &rest[taken..];
        if rest.is_empty() {
            return Ok(words);
        }
    }
}

impl FunctionKind {
    /// What a place starts with.
    fn initial(self) -> i128 {
        match self {
            Self::Min => i128::MAX,
            Self::Max => i128::MIN,
            _ => 0,
        }
    }
}

impl Groups {
    fn grow(&mut self, places: usize, plan: &Plan) {
        self.rows.resize(places, 0);
        for (state, function) in self.states.iter_mut().zip(&plan.functions) {
            if function.domain.nullable || function.kind == FunctionKind::Count {
                state.counts.resize(places, 0);
            }
            let initial = function.kind.initial();
            match &mut state.values {
                Values::None => {}
                Values::I64(values) => {
                    values.resize(places, initial.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
                }
                Values::I128(values) => values.resize(places, initial),
            }
        }
    }

    /// Bytes they take.
    pub fn bytes(&self) -> usize {
        let index = match &self.index {
            Index::Dense => 0,
            Index::Hashed { slots, keys } => slots.len() * 16 + keys.capacity() * 8,
            Index::Wide { slots, keys, rows } => slots.len() * 8 + keys.capacity() * 8 + rows.len() * VECTOR_ROWS * 8,
        };
        let state = |state: &State| {
            let width = match &state.values {
                Values::None => 0,
                Values::I64(_) => 8,
                Values::I128(_) => 16,
            };
            self.rows.capacity() * width + state.counts.capacity() * 8
        };
        index + self.rows.capacity() * 8 + self.states.iter().map(state).sum::<usize>()
    }

    /// Takes in `n` rows.
    pub fn update(&mut self, plan: &Plan, vectors: &[Vector], n: usize, scratch: &mut KeyScratch) {
        if plan.keys.is_empty() {
            self.update_single(plan, vectors, n);
            return;
        }
        self.places(plan, vectors, n, scratch);
        let places = &scratch.short[..n];
        if matches!(self.index, Index::Dense) && self.rows.len() <= FEW_GROUPS {
            self.update_few(plan, vectors, places);
            return;
        }
        places.iter().for_each(|place| self.rows[*place as usize] += 1);
        for (state, function) in self.states.iter_mut().zip(&plan.functions) {
            if function.kind != FunctionKind::CountRows {
                state.update(function.kind, &vectors[function.slot], places);
            }
        }
    }

    /// Takes in rows of groups so few that it is best to look at all rows once for each: rows of the same few groups
    /// one after the other would wait for each other's sums.
    fn update_few(&mut self, plan: &Plan, vectors: &[Vector], places: &[u32]) {
        let mut counts = [0; FEW_GROUPS];
        for (place, rows) in self.rows.iter_mut().enumerate() {
            counts[place] = kernels::count_where(places, place as u32);
            *rows += i64::from(counts[place]);
        }
        for (state, function) in self.states.iter_mut().zip(&plan.functions) {
            // It reads no vector: there may be none.
            if function.kind == FunctionKind::CountRows {
                continue;
            }
            let vector = &vectors[function.slot];
            let present = (0u32..).zip(&counts).filter(|(_, count)| **count > 0).map(|(place, _)| place);
            let is_plain = function.kind == FunctionKind::Sum && !vector.has_nulls && state.counts.is_empty();
            match &vector.data {
                Data::I32(values) if is_plain => {
                    present.for_each(|place| state.add(place, kernels::sum_where_i32(&values[..], places, place)));
                }
                // 1,024 such values fit 64 bits.
                Data::I64(values) if is_plain && function.domain.interval.magnitude() < 1 << 53 => {
                    present.for_each(|place| state.add(place, kernels::sum_where_i64(&values[..], places, place)));
                }
                _ => state.update(function.kind, vector, places),
            }
        }
    }

    /// The places of rows, new ones for new keys.
    fn places(&mut self, plan: &Plan, vectors: &[Vector], n: usize, scratch: &mut KeyScratch) {
        let KeyScratch { short, keys } = scratch;
        match &mut self.index {
            Index::Dense => plan.words[0].layout.digits(&plan.words[0].slots, vectors, n, keys, short),
            Index::Hashed { .. } => {
                plan.words[0].layout.keys(&plan.words[0].slots, vectors, n, keys);
                for (place, key) in short.iter_mut().zip(keys.iter()).take(n) {
                    *place = self.place_of(*key, plan);
                }
            }
            Index::Wide { rows, .. } => {
                let mut rows = std::mem::take(rows);
                for (word, keys) in plan.words.iter().zip(&mut rows) {
                    word.layout.keys(&word.slots, vectors, n, keys);
                }
                let mut key = vec![0; rows.len()];
                for (row, place) in short.iter_mut().enumerate().take(n) {
                    key.iter_mut().zip(&rows).for_each(|(word, keys)| *word = keys[row]);
                    *place = self.place_of_wide(&key, plan);
                }
                if let Index::Wide { rows: back, .. } = &mut self.index {
                    *back = rows;
                }
            }
        }
    }

    /// The place of a key of several words, new if the key is.
    fn place_of_wide(&mut self, key: &[u64], plan: &Plan) -> u32 {
        let Index::Wide { slots, keys, .. } = &mut self.index else { return 0 };
        let hashed = key.iter().fold(0, |hashed, word| hash(*word ^ hashed)) as u32;
        let mask = slots.len() - 1;
        let mut slot = hashed as usize & mask;
        loop {
            let (other, place) = slots[slot];
            if place == 0 {
                break;
            }
            let at = (place as usize - 1) * key.len();
            if other == hashed && keys[at..at + key.len()] == *key {
                return place - 1;
            }
            slot = (slot + 1) & mask;
        }
        keys.extend_from_slice(key);
        let places = keys.len() / key.len();
        slots[slot] = (hashed, places as u32);
        if places * 2 > slots.len() {
            *slots = enlarged(slots, u64::from);
        }
        if places > self.rows.len() {
            self.grow((places * 2).max(1024), plan);
        }
        places as u32 - 1
    }

    /// The place of a key in a hash table, new if the key is.
    fn place_of(&mut self, key: u64, plan: &Plan) -> u32 {
        let Index::Hashed { slots, keys } = &mut self.index else { return key as u32 };
        let mask = slots.len() - 1;
        let mut slot = hash(key) as usize & mask;
        loop {
            let (other, place) = slots[slot];
            if place == 0 {
                break;
            }
            if other == key {
                return place - 1;
            }
            slot = (slot + 1) & mask;
        }
        keys.push(key);
        let place = keys.len() as u32;
        slots[slot] = (key, place);
        if keys.len() * 2 > slots.len() {
            *slots = enlarged(slots, hash);
        }
        let places = keys.len();
        if places > self.rows.len() {
            self.grow((places * 2).max(1024), plan);
        }
        place - 1
    }

    fn update_single(&mut self, plan: &Plan, vectors: &[Vector], n: usize) {
        self.rows[0] += n as i64;
        for (state, function) in self.states.iter_mut().zip(&plan.functions) {
            // It reads no vector: there may be none.
            if function.kind == FunctionKind::CountRows {
                continue;
            }
            let vector = &vectors[function.slot];
            match (function.kind, &mut state.values, &vector.data) {
                (FunctionKind::Sum, Values::I64(sums), Data::I32(values)) if !vector.has_nulls => {
                    sums[0] += kernels::sum_i32(&values[..n]);
                    count_all(&mut state.counts, n);
                }
                (FunctionKind::Sum, Values::I64(sums), Data::I64(values)) if !vector.has_nulls => {
                    sums[0] += kernels::sum_i64(&values[..n]);
                    count_all(&mut state.counts, n);
                }
                _ => state.update(function.kind, vector, &[0; VECTOR_ROWS][..n]),
            }
        }
    }

    /// Takes in another worker's groups.
    pub fn merge(&mut self, other: &Self, plan: &Plan) {
        let places: Vec<(usize, usize)> = match &other.index {
            Index::Dense => (0..other.rows.len()).filter(|place| other.rows[*place] > 0).map(|p| (p, p)).collect(),
            Index::Hashed { keys, .. } => {
                keys.iter().enumerate().map(|(theirs, key)| (self.place_of(*key, plan) as usize, theirs)).collect()
            }
            Index::Wide { keys, .. } => {
                let keys = keys.chunks_exact(plan.words.len()).enumerate();
                keys.map(|(theirs, key)| (self.place_of_wide(key, plan) as usize, theirs)).collect()
            }
        };
        for (ours, theirs) in &places {
            self.rows[*ours] += other.rows[*theirs];
        }
        for ((state, other), function) in self.states.iter_mut().zip(&other.states).zip(&plan.functions) {
            state.merge(function.kind, other, &places);
        }
    }

    /// Keys, then functions, of all groups.
    pub fn finish(&self, plan: &Plan) -> Vec<ResultColumn> {
        let places: Vec<(usize, u64)> = match &self.index {
            // The one group of an aggregate without keys is there even without rows.
            Index::Dense if plan.keys.is_empty() => vec![(0, 0)],
            Index::Dense => {
                (0..self.rows.len()).filter(|p| self.rows[*p] > 0).map(|place| (place, place as u64)).collect()
            }
            Index::Hashed { keys, .. } => keys.iter().copied().enumerate().collect(),
            Index::Wide { keys, .. } => (0..keys.len() / plan.words.len()).map(|place| (place, 0)).collect(),
        };
        let mut columns = Vec::with_capacity(plan.keys.len() + plan.functions.len());
        for (part, domain) in plan.keys.iter().enumerate() {
            let parts = places.iter().map(|(place, key)| match &self.index {
                Index::Wide { keys, .. } => plan.part_of(part, &keys[place * plan.words.len()..]),
                _ => plan.part_of(part, &[*key]),
            });
            columns.push(ResultColumn::of_integers(domain, parts));
        }
        for (state, function) in self.states.iter().zip(&plan.functions) {
            columns.push(state.finish(function, &self.rows, &places));
        }
        columns
    }
}

/// The same places in four times the slots.
fn enlarged<K: Copy + Default>(slots: &[(K, u32)], hash: impl Fn(K) -> u64) -> Vec<(K, u32)> {
    let mut bigger = vec![(K::default(), 0); slots.len() * 4];
    let mask = bigger.len() - 1;
    for (key, place) in slots.iter().filter(|(_, place)| *place != 0) {
        let mut slot = hash(*key) as usize & mask;
        while bigger[slot].1 != 0 {
            slot = (slot + 1) & mask;
        }
        bigger[slot] = (*key, *place);
    }
    bigger
}

fn count_all(counts: &mut [i64], n: usize) {
    if let Some(count) = counts.first_mut() {
        *count += n as i64;
    }
}

fn hash(key: u64) -> u64 {
    // Multiplied and folded: the low bits, which pick the slot, depend on all bits of the key.
    let product = u128::from(key ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (product >> 64) as u64 ^ product as u64
}

/// Calls `f` with place and row of every value that is not NULL.
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

impl State {
    /// Adds to the sum of a group.
    fn add(&mut self, place: u32, sum: i64) {
        match &mut self.values {
            Values::I64(sums) => sums[place as usize] += sum,
            Values::I128(sums) => sums[place as usize] += i128::from(sum),
            Values::None => {}
        }
    }

    fn update(&mut self, kind: FunctionKind, vector: &Vector, places: &[u32]) {
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
                match kind {
                    FunctionKind::Sum => each!($values, $state, |a: $t, b: $t| a + b),
                    FunctionKind::Min => each!($values, $state, |a: $t, b: $t| a.min(b)),
                    FunctionKind::Max => each!($values, $state, |a: $t, b: $t| a.max(b)),
                    FunctionKind::CountRows | FunctionKind::Count => {}
                }
            };
        }
        match (&mut self.values, &vector.data) {
            (Values::I64(state), _) => integers!(state, i64),
            (Values::I128(state), Data::I128(values)) => integers!(values, state, i128),
            (Values::I128(state), _) => integers!(state, i128),
            (Values::None, _) => {}
        }
    }

    fn merge(&mut self, kind: FunctionKind, other: &Self, places: &[(usize, usize)]) {
        if !self.counts.is_empty() {
            places.iter().for_each(|(ours, theirs)| self.counts[*ours] += other.counts[*theirs]);
        }
        macro_rules! each {
            ($to:expr, $from:expr) => {
                for (ours, theirs) in places {
                    let (a, b) = ($to[*ours], $from[*theirs]);
                    $to[*ours] = match kind {
                        FunctionKind::Min => a.min(b),
                        FunctionKind::Max => a.max(b),
                        _ => a + b,
                    };
                }
            };
        }
        match (&mut self.values, &other.values) {
            (Values::I64(to), Values::I64(from)) => each!(to, from),
            (Values::I128(to), Values::I128(from)) => each!(to, from),
            _ => {}
        }
    }

    fn finish(&self, function: &Function, rows: &[i64], places: &[(usize, u64)]) -> ResultColumn {
        let count = |place: usize| if self.counts.is_empty() { rows[place] } else { self.counts[place] };
        let picked = places.iter().map(|(place, _)| *place);
        match (&self.values, function.kind) {
            (_, FunctionKind::CountRows) => {
                ResultColumn { values: ResultValues::Int(picked.map(|place| rows[place]).collect()), valid: None }
            }
            (_, FunctionKind::Count) | (Values::None, _) => {
                ResultColumn { values: ResultValues::Int(picked.map(count).collect()), valid: None }
            }
            (Values::I64(values), FunctionKind::Min | FunctionKind::Max) => {
                let integers = picked.map(|place| (count(place) > 0).then(|| values[place].into()));
                ResultColumn::of_integers(&Domain { nullable: true, ..function.domain.clone() }, integers)
            }
            (values, _) => {
                let valid = picked.clone().map(|place| count(place) > 0).collect();
                let values = match values {
                    Values::I64(values) => ResultValues::Int(picked.map(|place| values[place]).collect()),
                    Values::I128(values) => ResultValues::Wide(picked.map(|place| values[place]).collect()),
                    Values::None => ResultValues::Int(Vec::new()),
                };
                ResultColumn { values, valid: Some(valid) }
            }
        }
    }
}
