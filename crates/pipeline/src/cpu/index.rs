//! Where a group's states lie: a place for every possible key (*dense*), or places in the order in which keys appear,
//! found through a hash table. A key that 64 bits do not hold is several words.
//!
//! The table is asked about the rows of a vector at once. First every row's slot is read, without a branch, so that
//! the misses of the caches overlap; then keys are compared, and those that are not there are looked for further on,
//! or added.

use super::kernels;
use crate::VECTOR_ROWS;
use crate::budget::Growth;

/// A word of the keys of a vector's rows.
pub(crate) type Words = [u64; VECTOR_ROWS];

/// How the keys of groups become places.
#[derive(Debug)]
pub(crate) enum Index {
    /// A place per possible key.
    Dense,
    /// Places as keys appear.
    Hashed(Box<Table>),
}

/// Keys by place, and places by key.
#[derive(Debug)]
pub(crate) struct Table {
    /// Pairs of a key's hash and a place plus one; 0 where there is none. At least half of them are free.
    slots: Vec<(u32, u32)>,
    /// The words of the keys, by place.
    keys: Vec<u64>,
    /// Words of a key.
    words: usize,
    /// Of the rows that are looked up.
    rows: Vec<Words>,
    hashes: [u32; VECTOR_ROWS],
}

impl Table {
    /// No keys, of so many words each.
    pub fn new(words: usize) -> Self {
        Self {
            slots: vec![(0, 0); 1024],
            keys: Vec::new(),
            words,
            rows: vec![[0; VECTOR_ROWS]; words],
            hashes: [0; VECTOR_ROWS],
        }
    }

    /// Makes room for so many keys. It has none yet.
    pub fn reserve(&mut self, keys: usize) {
        let slots = (keys * 2).next_power_of_two();
        if slots > self.slots.len() {
            self.slots = vec![(0, 0); slots];
        }
        self.keys.reserve(keys * self.words);
    }

    /// Keys.
    pub fn len(&self) -> usize {
        self.keys.len() / self.words
    }

    /// Words of a key.
    pub fn words(&self) -> usize {
        self.words
    }

    /// The key of a place.
    pub fn key(&self, place: usize) -> &[u64] {
        &self.keys[place * self.words..][..self.words]
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.slots.len() * size_of::<(u32, u32)>() + self.keys.capacity() * 8 + size_of_val(self.rows.as_slice())
    }

    /// Puts other keys into the places of these, which cannot be looked up any more.
    pub fn replace_keys(&mut self, f: impl FnMut(&mut [u64])) {
        self.slots = Vec::new();
        self.keys.chunks_exact_mut(self.words).for_each(f);
    }

    /// Bytes that it takes when there are so many keys more.
    pub fn growth(&self, more: usize) -> Growth {
        const SLOT: usize = size_of::<(u32, u32)>();
        let mut size = self.slots.len();
        while (self.len() + more) * 2 > size {
            size *= 2;
        }
        let slots = Growth::new(size * SLOT, if size > self.slots.len() { size / 2 * SLOT } else { 0 });
        let keys = Growth::of_vec(&self.keys, more * self.words);
        slots.and(keys).and(Growth::none(size_of_val(self.rows.as_slice())))
    }

    /// Forgets all keys, and keeps its memory.
    pub fn clear(&mut self) {
        self.slots.fill((0, 0));
        self.keys.clear();
    }

    /// The hash of the first words of a place's key.
    pub fn hash(&self, place: usize, words: usize) -> u32 {
        hash_of(self.key(place).iter().take(words).copied())
    }

    /// Room for the words of the keys that are looked up next.
    pub fn rows(&mut self) -> &mut [Words] {
        &mut self.rows
    }

    /// The places of the first `n` keys in [`Table::rows`], new ones for new keys.
    pub fn find_or_insert(&mut self, n: usize, places: &mut [u32; VECTOR_ROWS]) {
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

    /// Whether a place has a row's key.
    #[inline]
    fn is_at(&self, place: u32, row: usize) -> bool {
        let at = place as usize * self.words;
        match self.rows.as_slice() {
            [word] => self.keys[at] == word[row],
            words => self.keys[at..].iter().zip(words).all(|(key, word)| *key == word[row]),
        }
    }

    /// The place of a row's key, wherever it is in the table.
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

    /// The same places in twice the slots. Old slots are gone through in order, so that new ones are, too.
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

/// Of a key of several words.
pub(crate) fn hash_of(words: impl Iterator<Item = u64>) -> u32 {
    words.fold(0, |hashed, word| hash(word ^ hashed)) as u32
}

/// Multiplied and folded: the low bits, which pick the slot, depend on all bits of the key.
#[inline]
pub(crate) fn hash(key: u64) -> u64 {
    let product = u128::from(key ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (product >> 64) as u64 ^ product as u64
}

/// Whether all rows of a vector are of one group.
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
}
