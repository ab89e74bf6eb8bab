//! Places of groups: a place for every possible key (*dense*), or places in order of the keys'
//! appearance, found through a hash table. A key that does not fit 64 bits has several words.
//!
//! The table looks up all rows of a vector at once. It first reads every row's slot without a
//! branch, so that cache misses overlap. Then it compares keys, and probes further for the missing
//! ones, or inserts them.
//!
//! Rows that are stored in the order of their group key arrive in that order. As long as every key
//! is greater than or equal to the previous one, it is either that key or a new one, and no hash
//! table is needed. The table builds its slots when the first key breaks the order.

use super::kernels;
use crate::VECTOR_ROWS;
use crate::budget::Growth;

/// A word of the keys of a vector's rows.
pub(crate) type Words = [u64; VECTOR_ROWS];

/// Least number of slots of a table.
const LEAST_SLOTS: usize = 1024;

/// Mapping of group keys to places.
#[derive(Debug)]
pub(crate) enum Index {
    /// A place per possible key.
    Dense,
    /// Places in order of the keys' appearance.
    Hashed(Box<Table>),
}

/// Keys by place, and places by key.
#[derive(Debug)]
pub(crate) struct Table {
    /// Pairs of a key's hash and a place plus one; 0 if the slot is free. At least half of the
    /// slots are free. There are no slots while keys arrive in order, nor until the first lookup
    /// after that.
    slots: Vec<(u32, u32)>,
    /// The words of the keys, by place.
    keys: Vec<u64>,
    /// True if keys ascend with their places, and the keys in `rows` continue the order.
    is_in_order: bool,
    /// Words of a key.
    words: usize,
    /// Key words of the rows that are looked up.
    rows: Vec<Words>,
    hashes: [u32; VECTOR_ROWS],
}

impl Table {
    /// Creates an empty table for keys of `words` words.
    pub fn new(words: usize) -> Self {
        Self {
            slots: vec![(0, 0); LEAST_SLOTS],
            keys: Vec::new(),
            is_in_order: false,
            words,
            rows: vec![[0; VECTOR_ROWS]; words],
            hashes: [0; VECTOR_ROWS],
        }
    }

    /// Creates an empty table for keys of one word that are expected in order. After filling
    /// [`Table::rows`], the caller must call [`Table::rows_are_there`].
    pub fn in_order() -> Self {
        Self { slots: Vec::new(), is_in_order: true, ..Self::new(1) }
    }

    /// Reserves room for `keys` keys. The table must be empty.
    pub fn reserve(&mut self, keys: usize) {
        let slots = (keys * 2).next_power_of_two();
        if slots > self.slots.len() {
            self.slots = vec![(0, 0); slots];
        }
        self.keys.reserve(keys * self.words);
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.keys.len() / self.words
    }

    /// Returns the number of words of a key.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Returns the key of a place.
    pub fn key(&self, place: usize) -> &[u64] {
        &self.keys[place * self.words..][..self.words]
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.slots.len() * size_of::<(u32, u32)>() + self.keys.capacity() * 8 + size_of_val(self.rows.as_slice())
    }

    /// Returns the keys, if they ascend with their places.
    pub fn ascending(&self) -> Option<&[u64]> {
        self.is_in_order.then_some(self.keys.as_slice())
    }

    /// Declares that the first `n` keys to look up are in [`Table::rows`]. If they break the order,
    /// the next lookup needs a hash table, which [`Table::growth`] counts from now on.
    pub fn rows_are_there(&mut self, n: usize) {
        if self.is_in_order {
            let words = &self.rows[0][..n];
            let goes_on = self.keys.last().zip(words.first()).is_none_or(|(last, first)| last <= first);
            self.is_in_order = goes_on && kernels::is_ascending(words);
        }
    }

    /// Leaves ordered mode: later keys use a hash table in any case.
    pub fn leave_order(&mut self) {
        self.is_in_order = false;
    }

    /// Replaces the keys of all places. The keys cannot be looked up any more.
    pub fn replace_keys(&mut self, f: impl FnMut(&mut [u64])) {
        self.leave_order();
        self.slots = Vec::new();
        self.keys.chunks_exact_mut(self.words).for_each(f);
    }

    /// Returns the bytes that it takes with `more` additional keys.
    pub fn growth(&self, more: usize) -> Growth {
        const SLOT: usize = size_of::<(u32, u32)>();
        let size = if self.is_in_order { 0 } else { self.slots_for(more) };
        let grows = size > self.slots.len() && !self.slots.is_empty();
        let slots = Growth::new(size * SLOT, if grows { size / 2 * SLOT } else { 0 });
        let keys = Growth::of_vec(&self.keys, more * self.words);
        slots.and(keys).and(Growth::none(size_of_val(self.rows.as_slice())))
    }

    /// Returns the number of slots for `more` additional keys.
    fn slots_for(&self, more: usize) -> usize {
        let mut size = self.slots.len().max(LEAST_SLOTS);
        while (self.len() + more) * 2 > size {
            size *= 2;
        }
        size
    }

    /// Removes all keys, and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.fill((0, 0));
        self.keys.clear();
    }

    /// Returns the hash of the first words of a place's key.
    pub fn hash(&self, place: usize, words: usize) -> u32 {
        hash_of(self.key(place).iter().take(words).copied())
    }

    /// Returns the buffer for the key words of the next lookup.
    pub fn rows(&mut self) -> &mut [Words] {
        &mut self.rows
    }

    /// Finds the places of the first `n` keys in [`Table::rows`], and adds new places for new keys.
    pub fn find_or_insert(&mut self, n: usize, places: &mut [u32; VECTOR_ROWS]) {
        if self.is_in_order {
            return self.append(n, places);
        }
        if self.slots.is_empty() {
            self.make_slots(n);
        }
        let (hashes, places) = (&mut self.hashes[..n], &mut places[..n]);
        hash_rows(&self.rows, hashes);
        let mask = self.slots.len() - 1;
        for (place, hash) in places.iter_mut().zip(&*hashes) {
            let (other, found) = self.slots[*hash as usize & mask];
            *place = if other == *hash { found } else { 0 };
        }
        for (row, place) in places.iter_mut().enumerate() {
            *place = match place.checked_sub(1) {
                Some(place) if self.is_at(place, row) => place,
                _ => self.place_of(row),
            };
        }
    }

    /// Returns true if a place has a row's key.
    #[inline]
    fn is_at(&self, place: u32, row: usize) -> bool {
        let at = place as usize * self.words;
        match self.rows.as_slice() {
            [word] => self.keys[at] == word[row],
            words => self.keys[at..].iter().zip(words).all(|(key, word)| *key == word[row]),
        }
    }

    /// Finds or inserts a row's key by probing the slots. Returns its place.
    fn place_of(&mut self, row: usize) -> u32 {
        let hash = self.hashes[row];
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        while let (other, 1..) = self.slots[slot] {
            let place = self.slots[slot].1 - 1;
            if other == hash && self.is_at(place, row) {
                return place;
            }
            slot = (slot + 1) & mask;
        }
        self.keys.extend(self.rows.iter().map(|word| word[row]));
        let places = self.len();
        self.slots[slot] = (hash, places as u32);
        if places * 2 > self.slots.len() {
            self.enlarge();
        }
        places as u32 - 1
    }

    /// Assigns places to keys that continue the order.
    fn append(&mut self, n: usize, places: &mut [u32; VECTOR_ROWS]) {
        let Some(first) = self.rows[0][..n].first() else { return };
        if self.keys.is_empty() {
            self.keys.push(*first);
        }
        let mut place = self.keys.len() - 1;
        let mut last = self.keys[place];
        // Every row writes its key without a branch: over the last key, or behind it.
        self.keys.resize(place + 1 + n, 0);
        let keys = &mut self.keys[place..];
        let before = place;
        for (key, to) in self.rows[0][..n].iter().zip(places.iter_mut()) {
            place += usize::from(*key != last);
            last = *key;
            keys[place - before] = *key;
            *to = place as u32;
        }
        self.keys.truncate(place + 1);
    }

    /// Builds slots for the keys that came in order, and for `more` additional ones.
    fn make_slots(&mut self, more: usize) {
        self.slots = vec![(0, 0); self.slots_for(more)];
        let mask = self.slots.len() - 1;
        for place in 0..self.len() {
            let hash = self.hash(place, self.words);
            let mut slot = hash as usize & mask;
            while self.slots[slot].1 != 0 {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = (hash, place as u32 + 1);
        }
    }

    /// Doubles the slots. The old slots are read in order, so writes to the new ones are in order,
    /// too.
    fn enlarge(&mut self) {
        let mut slots = vec![(0, 0); self.slots.len() * 2];
        let mask = slots.len() - 1;
        for (hash, place) in self.slots.iter().filter(|(_, place)| *place != 0) {
            let mut slot = *hash as usize & mask;
            while slots[slot].1 != 0 {
                slot = (slot + 1) & mask;
            }
            slots[slot] = (*hash, *place);
        }
        self.slots = slots;
    }
}

fn hash_rows(words: &[Words], hashes: &mut [u32]) {
    match words {
        [word] => hashes.iter_mut().zip(word).for_each(|(hashed, word)| *hashed = hash(*word) as u32),
        words => {
            for (row, hashed) in hashes.iter_mut().enumerate() {
                *hashed = hash_of(words.iter().map(|word| word[row]));
            }
        }
    }
}

/// Returns the hash of a key of several words.
pub(crate) fn hash_of(words: impl Iterator<Item = u64>) -> u32 {
    words.fold(0, |hashed, word| hash(word ^ hashed)) as u32
}

/// Multiplies and folds: the low bits, which pick the slot, depend on all bits of the key.
#[inline]
pub(crate) fn hash(key: u64) -> u64 {
    let product = u128::from(key ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (product >> 64) as u64 ^ product as u64
}

/// Returns true if all rows of a vector belong to one group.
pub(crate) fn is_one(places: &[u32]) -> bool {
    match places {
        [first, .., last] => first == last && kernels::count_where(places, *first) as usize == places.len(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn keys_keep_their_places() {
        for words in 1..4 {
            let mut table = Table::new(words);
            let mut expected: HashMap<Vec<u64>, u32> = HashMap::new();
            let mut places = [0; VECTOR_ROWS];
            for vector in 0..40u64 {
                let n = 1000 + vector as usize % 24;
                let key =
                    |row: usize, word: u64| ((row as u64 * 7919 + vector * 31) % 9000 * (word + 1)) << (word * 20);
                for (number, word) in table.rows().iter_mut().enumerate() {
                    word.iter_mut().enumerate().for_each(|(row, word)| *word = key(row, number as u64));
                }
                table.find_or_insert(n, &mut places);
                for (row, place) in places.iter().enumerate().take(n) {
                    let key: Vec<u64> = (0..words as u64).map(|word| key(row, word)).collect();
                    let next = expected.len() as u32;
                    assert_eq!(*place, *expected.entry(key.clone()).or_insert(next));
                    assert_eq!(table.key(*place as usize), key);
                }
            }
            assert_eq!(table.len(), expected.len());
        }
    }

    #[test]
    fn keys_in_order_need_no_slots_until_one_is_not() {
        // The order breaks at the first row that has a predecessor, between vectors, within one, or
        // never.
        for breaks_at in [1, VECTOR_ROWS, VECTOR_ROWS + 1, 5 * VECTOR_ROWS / 2, usize::MAX] {
            let mut table = Table::in_order();
            let mut expected: HashMap<u64, u32> = HashMap::new();
            let mut places = [0; VECTOR_ROWS];
            let key = |row: usize| if row < breaks_at { 1000 + row as u64 / 3 * 2 } else { row as u64 * 7919 % 2000 };
            for vector in 0..4 {
                let n = VECTOR_ROWS - usize::from(vector == 3);
                let row = |at: usize| vector * VECTOR_ROWS + at;
                (0..n).for_each(|at| table.rows()[0][at] = key(row(at)));
                table.rows_are_there(n);
                let before = (table.len(), table.bytes(), table.growth(n).bytes());
                table.find_or_insert(n, &mut places);
                assert_eq!(table.ascending().is_some(), row(n) <= breaks_at);
                assert!(table.slots.len() * 8 + table.keys.len() * 8 <= before.2, "{before:?}");
                for (at, place) in places.iter().enumerate().take(n) {
                    let next = expected.len() as u32;
                    assert_eq!(*place, *expected.entry(key(row(at))).or_insert(next));
                    assert_eq!(table.key(*place as usize), [key(row(at))]);
                }
            }
            assert_eq!(table.len(), expected.len());
        }
    }
}
