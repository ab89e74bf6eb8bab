//! Join tables map a key to the rows that have it.
//!
//! ```text
//! direct   keys are dense: a bit per possible key, payload at the key's own place
//! hashed   open addressing, linear probing, at most half full: key and place of its payload
//! ```
//! If some key has several rows, a key maps to a run of rows (`starts`), and payload lies in the
//! order of runs. The layout is chosen when the build finishes, from the observed keys. Callers
//! declare nothing. If probes only test if a key exists, equal keys are one row.

use std::sync::Arc;

use super::facts::{TableFacts, TableKind};
use super::kernels;
use super::keys::{KeyLayout, KeyScratch, NO_KEY};
use super::vector::{Data, Kind, Vector};
use crate::budget::{Growth, Room};
use crate::{Domain, Error, Interval, Result, VECTOR_ROWS};

/// A direct table has at most this many places per row, or [`SMALL`] places for any number of rows.
const SPARSE: u64 = 64;
const SMALL: u64 = 1 << 20;
/// A direct table without payload has a bit per place: this many bits take no more memory than a
/// row in a hashed table.
const SPARSE_BITS: u64 = 256;
/// Largest key range for which a hashed table also has a bitmap. The bitmap stays in a near cache,
/// and answers for nearly all rows that find nothing.
const MOST_BITS: u64 = 1 << 23;

/// Requirements of probes on a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All rows of a key.
    Rows,
    /// Only the existence of a key.
    Keys,
}

/// Bytes per row while rows are sorted by key.
const ARRANGING_BYTES: usize = 16;

/// A part of all keys. If a table does not fit in memory, one table per part is built, one after
/// the other. The parts of a key of one register are ranges of keys, which rule out blocks of the
/// probe side. Other keys are partitioned by ranges of their hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// Number of the part, less than `of`.
    pub number: u32,
    /// Number of parts.
    pub of: u32,
}

impl KeyPart {
    /// All keys.
    pub const ALL: Self = Self { number: 0, of: 1 };

    /// Calls `f` with each row, its key, and true if the part has the key. One part also has the
    /// rows without a key.
    fn for_each(self, layout: &KeyLayout, keys: &mut [u64], mut f: impl FnMut(usize, &mut u64, bool)) {
        let bound = |number: u32, of_all: u128| (of_all * u128::from(number)).div_ceil(u128::from(self.of));
        let is_range = layout.single_interval().is_some();
        let all = if is_range { layout.count.into() } else { 1u128 << u64::BITS };
        let (first, end) = (bound(self.number, all), bound(self.number + 1, all));
        for (row, key) in keys.iter_mut().enumerate() {
            let at = match is_range {
                true if *key >= layout.count => 0,
                true => *key,
                false => super::index::hash(*key),
            };
            f(row, key, (first..end).contains(&at.into()));
        }
    }

    /// Splits the part into four parts.
    pub fn split(self) -> impl Iterator<Item = Self> {
        (0..4).map(move |more| Self { number: self.number * 4 + more, of: self.of * 4 })
    }
}

/// Rows collected by one worker.
#[derive(Debug)]
pub(crate) struct Collected {
    keys: Vec<u64>,
    payload: Vec<Column>,
    /// True if some row had no key, or a key of another part.
    has_null: bool,
}

/// Values of one payload column, by row.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    values: Values,
    /// 1 for rows that are not NULL; empty if none is NULL.
    valid: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Values {
    U8(Vec<u8>),
    U16(Vec<u16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    I128(Vec<i128>),
    F64(Vec<f64>),
}

/// A complete table.
#[derive(Debug)]
pub(crate) struct JoinTable {
    layout: KeyLayout,
    index: Index,
    /// Start of the run of each place, and the end; empty if every key has one row.
    starts: Vec<u32>,
    payload: Vec<(Column, i128)>,
    /// Least and greatest key, if the key has one part. The probe side skips blocks by it.
    pub interval: Option<Interval>,
    /// Number of rows in the table.
    pub rows: usize,
    /// True if there were other rows, with a NULL in their key. It has no meaning for a part.
    pub has_null: bool,
    /// The part of the keys in this table and the layout that assigns keys to parts, if it is not
    /// all keys.
    part: Option<(KeyLayout, KeyPart)>,
}

#[derive(Debug)]
enum Index {
    /// A bit per key.
    Direct { bits: Arc<[u32]> },
    /// Pairs of a key and a place. Also a bit per key, if the key range is small enough.
    Hashed { slots: Vec<(u64, u32)>, shift: u32, bits: Option<Arc<[u32]>> },
}

/// No place: the key was not found.
pub(crate) const NOTHING: i32 = -1;

impl Collected {
    pub fn new(payload: &[Domain]) -> Self {
        let payload = payload.iter().map(|domain| Column::new(Kind::of(domain))).collect();
        Self { keys: Vec::new(), payload, has_null: false }
    }

    /// Returns a bit for each of `count` possible keys, and true if every key has one row.
    fn bits(&self, count: u64) -> (Arc<[u32]>, bool) {
        let mut bits = vec![0u32; (count as usize).div_ceil(32)];
        let mut is_unique = true;
        for key in &self.keys {
            let (word, bit) = (*key as usize / 32, 1u32 << (key % 32));
            is_unique &= bits[word] & bit == 0;
            bits[word] |= bit;
        }
        (bits.into(), is_unique)
    }

    /// Removes the keys of rows that belong to other parts.
    pub fn only(part: KeyPart, layout: &KeyLayout, keys: &mut [u64]) {
        if part != KeyPart::ALL {
            part.for_each(layout, keys, |_, key, is_in| *key = if is_in { *key } else { NO_KEY });
        }
    }

    /// Appends `n` rows, without those that have no key.
    pub fn push(&mut self, keys: &[u64; VECTOR_ROWS], payload: &[&Vector], n: usize) {
        for row in (0..n).filter(|row| keys[*row] != NO_KEY) {
            self.keys.push(keys[row]);
        }
        self.has_null |= keys[..n].contains(&NO_KEY);
        for (column, vector) in self.payload.iter_mut().zip(payload) {
            column.push(vector, (0..n).filter(|row| keys[*row] != NO_KEY));
        }
    }

    /// Returns the bytes that it takes with `rows` more rows.
    pub fn growth(&self, rows: usize) -> Growth {
        self.payload.iter().fold(Growth::of_vec(&self.keys, rows), |sum, column| sum.and(column.growth(rows)))
    }

    pub fn bytes(&self) -> usize {
        self.keys.len() * 8 + self.payload.iter().map(Column::bytes).sum::<usize>()
    }

    fn append(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.has_null |= other.has_null;
        for (column, other) in self.payload.iter_mut().zip(other.payload) {
            column.append(other);
        }
    }
}

impl Column {
    fn new(kind: Kind) -> Self {
        let values = match kind {
            Kind::Bool => Values::U8(Vec::new()),
            Kind::I32 => Values::I32(Vec::new()),
            Kind::I64 => Values::I64(Vec::new()),
            Kind::I128 => Values::I128(Vec::new()),
            Kind::F64 => Values::F64(Vec::new()),
        };
        Self { values, valid: Vec::new() }
    }

    fn len(&self) -> usize {
        match &self.values {
            Values::U8(values) => values.len(),
            Values::U16(values) => values.len(),
            Values::I32(values) => values.len(),
            Values::I64(values) => values.len(),
            Values::I128(values) => values.len(),
            Values::F64(values) => values.len(),
        }
    }

    /// Returns the bytes of a value.
    fn width(&self) -> usize {
        match &self.values {
            Values::U8(_) => 1,
            Values::U16(_) => 2,
            Values::I32(_) => 4,
            Values::I64(_) | Values::F64(_) => 8,
            Values::I128(_) => 16,
        }
    }

    fn bytes(&self) -> usize {
        self.len() * self.width() + self.valid.len()
    }

    fn growth(&self, rows: usize) -> Growth {
        let values = match &self.values {
            Values::U8(values) => Growth::of_vec(values, rows),
            Values::U16(values) => Growth::of_vec(values, rows),
            Values::I32(values) => Growth::of_vec(values, rows),
            Values::I64(values) => Growth::of_vec(values, rows),
            Values::I128(values) => Growth::of_vec(values, rows),
            Values::F64(values) => Growth::of_vec(values, rows),
        };
        // Validity bytes. The first NULL adds them for all rows before it, too.
        let valid = if self.valid.is_empty() { self.len() + rows } else { rows };
        values.and(Growth::of_vec(&self.valid, valid))
    }

    fn push(&mut self, vector: &Vector, rows: impl Iterator<Item = usize> + Clone) {
        let before = self.len();
        match (&mut self.values, &vector.data) {
            (Values::U8(to), Data::Bool(from)) => to.extend(rows.clone().map(|row| from[row])),
            (Values::I32(to), Data::I32(from)) => to.extend(rows.clone().map(|row| from[row])),
            (Values::I64(to), Data::I64(from)) => to.extend(rows.clone().map(|row| from[row])),
            (Values::I128(to), Data::I128(from)) => to.extend(rows.clone().map(|row| from[row])),
            (Values::F64(to), Data::F64(from)) => to.extend(rows.clone().map(|row| from[row])),
            _ => debug_assert!(false, "a payload column of another kind"),
        }
        if vector.has_nulls || !self.valid.is_empty() {
            self.valid.resize(before, 1);
            self.valid.extend(rows.map(|row| u8::from(vector.is_valid(row))));
        }
    }

    fn append(&mut self, other: Self) {
        if !self.valid.is_empty() || !other.valid.is_empty() {
            self.valid.resize(self.len(), 1);
            self.valid.extend(&other.valid);
            self.valid.resize(self.len() + other.len(), 1);
        }
        match (&mut self.values, other.values) {
            (Values::U8(to), Values::U8(from)) => to.extend(from),
            (Values::I32(to), Values::I32(from)) => to.extend(from),
            (Values::I64(to), Values::I64(from)) => to.extend(from),
            (Values::I128(to), Values::I128(from)) => to.extend(from),
            (Values::F64(to), Values::F64(from)) => to.extend(from),
            _ => debug_assert!(false, "payload columns of different kinds"),
        }
    }

    /// Returns a column with row `row` at place `place` for each pair of `from`; other places are
    /// arbitrary. Integers are stored as narrow as possible, less a bias, which is returned.
    fn arranged(&self, places: usize, from: impl Iterator<Item = (usize, usize)> + Clone) -> (Self, i128) {
        fn scatter<T: Copy + Default>(
            values: &[T],
            places: usize,
            from: impl Iterator<Item = (usize, usize)>,
        ) -> Vec<T> {
            let mut out = vec![T::default(); places];
            from.for_each(|(place, row)| out[place] = values[row]);
            out
        }
        let (values, bias) = match &self.values {
            Values::I32(values) => {
                let (min, max) = from
                    .clone()
                    .map(|(_, row)| values[row])
                    .fold((i32::MAX, i32::MIN), |(min, max), v| (min.min(v), max.max(v)));
                let span = i64::from(max) - i64::from(min);
                let offset = |row: usize| values[row].wrapping_sub(min);
                if (0..=255).contains(&span) {
                    let mut out = vec![0u8; places];
                    from.clone().for_each(|(place, row)| out[place] = offset(row) as u8);
                    (Values::U8(out), i128::from(min))
                } else if (0..=65_535).contains(&span) {
                    let mut out = vec![0u16; places];
                    from.clone().for_each(|(place, row)| out[place] = offset(row) as u16);
                    (Values::U16(out), i128::from(min))
                } else {
                    (Values::I32(scatter(values, places, from.clone())), 0)
                }
            }
            Values::U8(values) => (Values::U8(scatter(values, places, from.clone())), 0),
            Values::U16(values) => (Values::U16(scatter(values, places, from.clone())), 0),
            Values::I64(values) => (Values::I64(scatter(values, places, from.clone())), 0),
            Values::I128(values) => (Values::I128(scatter(values, places, from.clone())), 0),
            Values::F64(values) => (Values::F64(scatter(values, places, from.clone())), 0),
        };
        let valid = match self.valid.is_empty() {
            true => Vec::new(),
            false => scatter(&self.valid, places, from),
        };
        (Self { values, valid }, bias)
    }

    /// Writes the values at `places`; NULL at [`NOTHING`].
    fn gather(&self, bias: i128, places: &[i32], may_miss: bool, out: &mut Vector) {
        fn pick<F: Copy, T: Copy + Default>(
            from: &[F],
            places: &[i32],
            to: &mut [T; VECTOR_ROWS],
            convert: impl Fn(F) -> T,
        ) {
            for (to, place) in to.iter_mut().zip(places) {
                *to = from.get(*place as usize).map_or(T::default(), |value| convert(*value));
            }
        }
        let small = bias as i32;
        match (&self.values, &mut out.data) {
            (Values::U8(from), Data::Bool(to)) => pick(from, places, to, |v| v),
            (Values::U8(from), Data::I32(to)) => pick(from, places, to, |v| small.wrapping_add(v.into())),
            (Values::U16(from), Data::I32(to)) => pick(from, places, to, |v| small.wrapping_add(v.into())),
            (Values::I32(from), Data::I32(to)) => pick(from, places, to, |v| v),
            (Values::I64(from), Data::I64(to)) => pick(from, places, to, |v| v),
            (Values::I128(from), Data::I128(to)) => pick(from, places, to, |v| v),
            (Values::F64(from), Data::F64(to)) => pick(from, places, to, |v| v),
            _ => debug_assert!(false, "payload of another kind"),
        }
        out.has_nulls = may_miss || !self.valid.is_empty();
        if out.has_nulls {
            for (valid, place) in out.valid.iter_mut().zip(places) {
                let is_valid = *place >= 0 && self.valid.get(*place as usize).is_none_or(|valid| *valid == 1);
                *valid = is_valid.into();
            }
        }
    }
}

impl JoinTable {
    /// Builds the table from the workers' rows. Finally reserves in `room` exactly what it needs.
    /// `keys` is the layout of the workers' keys.
    pub fn build(parts: Vec<Collected>, keys: &KeyLayout, wanted: Wanted, room: &mut Room) -> Result<Self> {
        let collected_bytes: usize = parts.iter().map(Collected::bytes).sum();
        if parts.len() > 1 {
            room.hold(collected_bytes)?;
        }
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or(Collected { keys: Vec::new(), payload: Vec::new(), has_null: false });
        parts.for_each(|part| all.append(part));
        let rows = all.keys.len();
        if rows > i32::MAX as usize {
            return Err(Error::Unsupported(format!("a join table of {rows} rows")));
        }
        // The range of a key of one part shrinks to the observed values.
        let (mut layout, mut first) = (keys.clone(), 0);
        if let Some(interval) = keys.single_interval() {
            let base = interval.min;
            if let (Some(min), Some(max)) = (all.keys.iter().min(), all.keys.iter().max()) {
                first = *min;
                layout = KeyLayout::single(Interval::new(base + i128::from(*min), base + i128::from(*max)))?;
            } else if !interval.is_empty() {
                // One place suffices for a table without rows.
                layout = KeyLayout::single(Interval::new(base, base))?;
            }
        }
        let interval = if rows == 0 { Some(Interval::EMPTY) } else { layout.single_interval() };
        let wanted = if all.payload.is_empty() { wanted } else { Wanted::Rows };
        let is_direct = is_direct(&layout, rows, wanted);
        // The size of the index is known now.
        let table_bytes = match is_direct {
            true => bytes_of(&layout, rows, wanted, &all.payload),
            false => all.bytes() + slots_of(rows) * size_of::<(u64, u32)>(),
        };
        // Bits are set one by one: nothing is sorted.
        let arranging_bytes = if is_direct && wanted == Wanted::Keys { 0 } else { rows * ARRANGING_BYTES };
        room.hold(table_bytes.saturating_add(collected_bytes).saturating_add(arranging_bytes))?;
        all.keys.iter_mut().for_each(|key| *key -= first);
        let mut table = Self {
            layout,
            index: Index::Direct { bits: Arc::default() },
            starts: Vec::new(),
            payload: Vec::new(),
            interval,
            rows,
            has_null: all.has_null,
            part: None,
        };
        match is_direct {
            true => table.fill_direct(&all, wanted),
            false => table.fill_hashed(&all, wanted),
        }
        drop(all);
        room.keep(table.bytes());
        Ok(table)
    }

    fn fill_direct(&mut self, all: &Collected, wanted: Wanted) {
        let places = self.layout.count as usize;
        let (bits, is_unique) = all.bits(self.layout.count);
        let keys = bits.iter().map(|word| word.count_ones() as usize).sum();
        self.index = Index::Direct { bits };
        if wanted == Wanted::Keys {
            self.rows = keys;
            return;
        }
        let place_of = |row: usize| all.keys[row] as usize;
        self.arrange(all, places, is_unique, place_of);
    }

    fn fill_hashed(&mut self, all: &Collected, wanted: Wanted) {
        let capacity = slots_of(all.keys.len());
        let shift = 64 - capacity.trailing_zeros();
        let mut slots = vec![(NO_KEY, 0u32); capacity];
        let mut place_of = Vec::with_capacity(all.keys.len());
        let mut places = 0u32;
        for key in &all.keys {
            let mut slot = hash(*key, shift);
            while slots[slot].0 != NO_KEY && slots[slot].0 != *key {
                slot = (slot + 1) % capacity;
            }
            if slots[slot].0 == NO_KEY {
                slots[slot] = (*key, places);
                places += 1;
            }
            place_of.push(slots[slot].1);
        }
        let bits = has_bits(&self.layout).then(|| all.bits(self.layout.count).0);
        self.index = Index::Hashed { slots, shift, bits };
        if wanted == Wanted::Keys {
            self.rows = places as usize;
            return;
        }
        let is_unique = places as usize == all.keys.len();
        self.arrange(all, places as usize, is_unique, |row| place_of[row] as usize);
    }

    /// Stores the payload at its final places.
    fn arrange(&mut self, all: &Collected, places: usize, is_unique: bool, place_of: impl Fn(usize) -> usize) {
        let rows = all.keys.len();
        if is_unique {
            let from = (0..rows).map(|row| (place_of(row), row));
            self.payload = all.payload.iter().map(|column| column.arranged(places, from.clone())).collect();
            return;
        }
        let mut starts = vec![0u32; places + 1];
        (0..rows).for_each(|row| starts[place_of(row) + 1] += 1);
        for place in 0..places {
            starts[place + 1] += starts[place];
        }
        let mut next = starts.clone();
        let mut position = Vec::with_capacity(rows);
        for row in 0..rows {
            let place = place_of(row);
            position.push(next[place] as usize);
            next[place] += 1;
        }
        let from = (0..rows).map(|row| (position[row], row));
        self.payload = all.payload.iter().map(|column| column.arranged(rows, from.clone())).collect();
        self.starts = starts;
    }

    /// Returns the key range and its bitmap, if the key has one part and the table has a bitmap.
    pub fn key_bits(&self) -> Option<(Interval, &Arc<[u32]>)> {
        match &self.index {
            Index::Direct { bits } | Index::Hashed { bits: Some(bits), .. } => {
                Some((self.layout.single_interval()?, bits))
            }
            Index::Hashed { bits: None, .. } => None,
        }
    }

    /// Returns the fraction of present keys between the least and the greatest, at most 1.
    pub fn fullness(&self) -> f64 {
        (self.rows as f64 / self.layout.count.max(1) as f64).min(1.0)
    }

    /// Returns true if no row reached the table at all.
    pub fn is_empty(&self) -> bool {
        self.rows == 0 && !self.has_null
    }

    /// Returns true if every key has one row.
    pub fn is_unique(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns the planned table: its bytes if all `rows` are in it, each with a key of its own,
    /// and keys are as sparse as possible.
    pub fn planned(keys: &KeyLayout, payload: &[Domain], rows: u64) -> TableFacts {
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        let payload = Collected::new(payload).payload;
        let kind = if is_direct(keys, rows, Wanted::Rows) { TableKind::Direct } else { TableKind::Hashed };
        TableFacts { kind, is_unique: None, rows, bytes: bytes_of(keys, rows, Wanted::Rows, &payload) }
    }

    /// Returns the statistics of the table.
    pub fn facts(&self) -> TableFacts {
        let kind = match &self.index {
            Index::Direct { .. } => TableKind::Direct,
            Index::Hashed { .. } => TableKind::Hashed,
        };
        TableFacts { kind, is_unique: Some(self.is_unique()), rows: self.rows, bytes: self.bytes() }
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> usize {
        let index = match &self.index {
            Index::Direct { bits } => bits.len() * 4,
            Index::Hashed { slots, bits, .. } => slots.len() * 16 + bits.as_ref().map_or(0, |bits| bits.len() * 4),
        };
        index + self.starts.len() * 4 + self.payload.iter().map(|(column, _)| column.bytes()).sum::<usize>()
    }

    /// Declares that the table has only the rows of a part. `keys` is as for [`JoinTable::build`].
    #[must_use]
    pub fn of_part(self, part: KeyPart, keys: &KeyLayout) -> Self {
        Self { part: (part != KeyPart::ALL).then(|| (keys.clone(), part)), ..self }
    }

    /// Returns true if the table has only a part of the keys.
    pub fn is_part(&self) -> bool {
        self.part.is_some()
    }

    /// Marks which of `n` rows have a key of its part.
    pub fn in_part(&self, slots: &[usize], vectors: &[Vector], n: usize, scratch: &mut KeyScratch, is_in: &mut [u8]) {
        let Some((layout, part)) = &self.part else { return is_in[..n].fill(1) };
        layout.keys(slots, vectors, n, &mut scratch.keys);
        part.for_each(layout, &mut scratch.keys[..n], |row, _, has| is_in[row] = has.into());
    }

    /// Looks up the keys of `n` rows. Writes if each was found, and its place.
    pub fn probe(
        &self,
        slots: &[usize],
        vectors: &[Vector],
        n: usize,
        scratch: &mut KeyScratch,
        found: &mut [u8],
        places: &mut [i32],
    ) {
        let KeyScratch { short, keys } = scratch;
        match &self.index {
            Index::Direct { bits } => {
                if let Some((values, min, count)) = self.layout.plain(slots, vectors) {
                    kernels::probe_bits(&values[..n], min, count, bits, &mut found[..n], &mut places[..n]);
                    return;
                }
                self.layout.short_keys(slots, vectors, n, keys, short);
                for ((found, place), key) in found.iter_mut().zip(places).zip(short.iter()).take(n) {
                    let word = bits.get(*key as usize / 32).copied().unwrap_or(0);
                    *found = (word >> (key % 32) & 1) as u8;
                    *place = *key as i32;
                }
            }
            Index::Hashed { slots: pairs, shift, .. } => {
                self.layout.keys(slots, vectors, n, keys);
                for ((found, place), key) in found.iter_mut().zip(places).zip(keys.iter()).take(n) {
                    let mut slot = hash(*key, *shift);
                    // `NO_KEY` finds the first empty slot, which is no match.
                    while pairs[slot].0 != *key && pairs[slot].0 != NO_KEY {
                        slot = (slot + 1) % pairs.len();
                    }
                    *found = (pairs[slot].0 == *key && *key != NO_KEY).into();
                    *place = pairs[slot].1 as i32;
                }
            }
        }
    }

    /// Returns the rows of a place, as places of payload. Only valid if keys are not unique.
    pub fn run(&self, place: i32) -> std::ops::Range<u32> {
        let place = place as usize;
        self.starts[place]..self.starts[place + 1]
    }

    /// Returns the rows of a place, one or several.
    pub fn matches(&self, place: i32) -> std::ops::Range<u32> {
        if self.is_unique() { place as u32..place as u32 + 1 } else { self.run(place) }
    }

    /// Writes a payload column's values at `places`.
    pub fn payload(&self, column: usize, places: &[i32], may_miss: bool, out: &mut Vector) {
        let (column, bias) = &self.payload[column];
        column.gather(*bias, places, may_miss, out);
    }
}

/// Returns true if a table of `rows` rows has a place for every possible key.
fn is_direct(layout: &KeyLayout, rows: usize, wanted: Wanted) -> bool {
    let sparse = match wanted {
        Wanted::Rows => SPARSE,
        Wanted::Keys => SPARSE_BITS,
    };
    layout.count < u64::from(u32::MAX) && layout.count <= (rows as u64).saturating_mul(sparse).max(SMALL)
}

/// Returns true if a hashed table has a bitmap of its keys.
fn has_bits(layout: &KeyLayout) -> bool {
    layout.single_interval().is_some() && layout.count <= MOST_BITS
}

/// Returns the number of slots of a hash table of `keys` keys.
fn slots_of(keys: usize) -> usize {
    (keys * 2).next_power_of_two().max(16)
}

/// Returns the bytes of a table: its index, as an upper bound, and a place of payload for every
/// key.
fn bytes_of(layout: &KeyLayout, rows: usize, wanted: Wanted, payload: &[Column]) -> usize {
    let is_direct = is_direct(layout, rows, wanted);
    let places = if is_direct { layout.count as usize } else { rows };
    let bit_bytes = if has_bits(layout) { layout.count as usize / 8 } else { 0 };
    let index_bytes = if is_direct { places / 8 } else { rows.saturating_mul(64).saturating_add(bit_bytes) };
    index_bytes.saturating_add(places.saturating_mul(payload.iter().map(Column::width).sum::<usize>()))
}

/// Fibonacci hashing: the high bits of a product with 2^64 / golden ratio.
fn hash(key: u64, shift: u32) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
}

/// Tables that later pipelines probe.
pub(crate) type Tables = Vec<Arc<JoinTable>>;
