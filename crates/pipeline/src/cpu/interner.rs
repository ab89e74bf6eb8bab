//! Interning of late strings that distinguish groups: equal strings become one row number.
//!
//! If no other key determines a late string, grouping by row number could yield as many groups as
//! rows. Therefore every worker reads the strings and keeps the distinct ones. It replaces each row
//! number by that of the first row with an equal string. After the last row, the workers agree on
//! one row per string: the strings of the second worker are looked up among those of the first, and
//! so on.

use std::collections::HashMap;

use arrow_array::Array;

use super::index::hash;
use super::vector::{Data, Vector};
use crate::late::TextReader;
use crate::{Error, LateTexts, Result};

/// Size of a chunk of string bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Strings, and the row that represents each of them.
#[derive(Debug)]
pub(crate) struct Interner {
    /// Bytes of the strings. A full chunk stays in place, since growing it would copy all bytes
    /// repeatedly.
    chunks: Vec<Vec<u8>>,
    /// The chunk of each string, its start there, and its length.
    places: Vec<(u32, u32, u32)>,
    rows: Vec<u64>,
    /// Pairs of a string's hash and its number plus one; 0 if the slot is free. At least half of
    /// the slots are free.
    slots: Vec<(u32, u32)>,
    reader: TextReader,
}

/// Representatives of rows, by row number.
pub(crate) type StandIns = HashMap<u64, u64>;

impl Interner {
    pub fn new() -> Self {
        Self {
            chunks: Vec::new(),
            places: Vec::new(),
            rows: Vec::new(),
            slots: vec![(0, 0); 1024],
            reader: TextReader::default(),
        }
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> usize {
        let chunks: usize = self.chunks.iter().map(Vec::capacity).sum();
        chunks + self.places.capacity() * 12 + (self.rows.capacity() + self.slots.len()) * 8
    }

    /// Replaces the first `n` row numbers of a vector by those of their representatives.
    pub fn replace(&mut self, texts: &LateTexts, vector: &mut Vector, n: usize) -> Result<()> {
        let number = |row: usize| vector.is_valid(row).then(|| vector.integer(row) as u64);
        let numbers: Vec<Option<u64>> = (0..n).map(number).collect();
        let read = texts.texts_of_vector(&numbers, &mut self.reader)?;
        for (row, number) in numbers.into_iter().enumerate() {
            let Some(number) = number.filter(|_| read.is_valid(row)) else { continue };
            let stands_for_it = self.row_of(read.value(row).as_bytes(), number)?;
            match &mut vector.data {
                Data::I32(rows) => rows[row] = stands_for_it as i32,
                Data::I64(rows) => rows[row] = stands_for_it as i64,
                _ => return Err(Error::Invalid("rows of another kind".into())),
            }
        }
        Ok(())
    }

    /// Adds the strings of another worker. Returns the new representatives of its rows, as far as
    /// they change.
    pub fn take_in(&mut self, other: &Self) -> Result<StandIns> {
        let mut stand_ins = StandIns::new();
        for (number, row) in other.rows.iter().enumerate() {
            let stands_for_it = self.row_of(other.text(number), *row)?;
            if stands_for_it != *row {
                stand_ins.insert(*row, stands_for_it);
            }
        }
        Ok(stand_ins)
    }

    fn text(&self, number: usize) -> &[u8] {
        let (chunk, start, length) = self.places[number];
        &self.chunks[chunk as usize][start as usize..][..length as usize]
    }

    /// Returns the row that represents a string: `row`, if the string is new.
    fn row_of(&mut self, text: &[u8], row: u64) -> Result<u64> {
        let hashed = hash_of(text);
        let mask = self.slots.len() - 1;
        let mut slot = hashed as usize & mask;
        while let (other, number @ 1..) = self.slots[slot] {
            let number = number as usize - 1;
            if other == hashed && self.text(number) == text {
                return Ok(self.rows[number]);
            }
            slot = (slot + 1) & mask;
        }
        let count = u32::try_from(self.rows.len() + 1);
        let count = count.map_err(|_| Error::Unsupported("a group by more texts than 32 bits can number".into()))?;
        self.keep(text);
        self.rows.push(row);
        self.slots[slot] = (hashed, count);
        if count as usize * 2 > self.slots.len() {
            self.enlarge();
        }
        Ok(row)
    }

    /// Appends a string. No string exceeds 2 GiB, since blocks of strings do not.
    fn keep(&mut self, text: &[u8]) {
        if self.chunks.last().is_none_or(|last| last.len() + text.len() > last.capacity()) {
            self.chunks.push(Vec::with_capacity(text.len().max(CHUNK_BYTES)));
        }
        let number = self.chunks.len() as u32 - 1;
        if let Some(last) = self.chunks.last_mut() {
            self.places.push((number, last.len() as u32, text.len() as u32));
            last.extend_from_slice(text);
        }
    }

    fn enlarge(&mut self) {
        let mut slots = vec![(0, 0); self.slots.len() * 2];
        let mask = slots.len() - 1;
        for entry in self.slots.iter().filter(|(_, number)| *number != 0) {
            let mut slot = entry.0 as usize & mask;
            while slots[slot].1 != 0 {
                slot = (slot + 1) & mask;
            }
            slots[slot] = *entry;
        }
        self.slots = slots;
    }
}

fn hash_of(text: &[u8]) -> u32 {
    let (words, rest) = text.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let hashed = words.iter().fold(text.len() as u64, |hashed, word| hash(u64::from_le_bytes(*word) ^ hashed));
    hash(u64::from_le_bytes(last) ^ hashed) as u32
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_one_row() {
        let text = |row: u64| format!("a text of some length {}", row * 7919 % 3000);
        let (mut first, mut second) = (Interner::new(), Interner::new());
        let mut expected: HashMap<String, u64> = HashMap::new();
        for row in 0..5000 {
            let known = *expected.entry(text(row)).or_insert(row);
            assert_eq!(first.row_of(text(row).as_bytes(), row).unwrap(), known);
        }
        // Some of the second interner's strings are new to the first.
        for row in 2500..3500 {
            second
                .row_of(format!("{}{}", text(row), if row % 2 == 0 { "" } else { "!" }).as_bytes(), row + 10_000)
                .unwrap();
        }
        let stand_ins = second.rows.clone();
        let agreed = first.take_in(&second).unwrap();
        for row in stand_ins {
            let (number, is_new) = (row - 10_000, row % 2 == 1);
            assert_eq!(agreed.get(&row).copied(), (!is_new).then(|| expected[&text(number)]), "{row}");
        }
        assert_eq!(first.row_of(b"", 77).unwrap(), 77);
        assert_eq!(first.row_of(b"", 78).unwrap(), 77);
    }
}
