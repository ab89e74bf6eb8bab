//! Late texts that tell groups apart: equal texts become one row.
//!
//! Where nothing beside a late text determines it, groups by the numbers of rows could be as many as rows. So every
//! worker reads the texts, keeps those that it has met, and puts the number of the first row that had a text in the
//! place of the others'. When all rows are through, the workers agree on one row for each text: what the second has met
//! goes through the first one's texts, and so on.

use std::collections::HashMap;

use arrow_array::Array;

use super::index::hash;
use super::vector::{Data, Vector};
use crate::late::TextReader;
use crate::{Error, LateTexts, Result};

/// Bytes of texts that are kept together.
const CHUNK_BYTES: usize = 1 << 20;

/// Texts, and the row that stands for each of them.
#[derive(Debug)]
pub(crate) struct Interner {
    /// The texts' bytes. What is full stays where it is: growing would copy all of it, again and again.
    chunks: Vec<Vec<u8>>,
    /// The chunk of each text, where it starts there, and its length.
    places: Vec<(u32, u32, u32)>,
    rows: Vec<u64>,
    /// Pairs of a text's hash and its number plus one; 0 where there is none. At least half of them are free.
    slots: Vec<(u32, u32)>,
    reader: TextReader,
}

/// Rows that another one stands for, by number.
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

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        let chunks: usize = self.chunks.iter().map(Vec::capacity).sum();
        chunks + self.places.capacity() * 12 + (self.rows.capacity() + self.slots.len()) * 8
    }

    /// Puts those rows into the first `n` of a vector that stand for theirs.
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

    /// What stands for the rows of another worker's from now on, where that is another row.
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

    /// The row that stands for a text: `row`, if the text is new.
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

    /// Puts a text behind the others. None has more than 2 GiB: blocks of texts have not.
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
        // Some of the second one's texts are new to the first.
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
