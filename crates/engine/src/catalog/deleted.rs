//! The stored form of a segment's deleted rows: one record for each vector of 1,024 rows with
//! deleted rows. The deletion of a row writes a record of at most 130 bytes.
//!
//! ```text
//! record = version (1 byte: 1), form (1 byte), rows
//! form 0: all 1,024 rows of the vector; there are no further bytes
//! form 1: their places in the vector, ascending, 2 bytes each, little-endian
//! form 2: 128 bytes, bit i % 8 of byte i / 8 for the row at place i
//! ```
//! The writer chooses the shortest form. The reader accepts each form.

use onehop_segment::DeletedBlock;

/// The number of rows that a record covers.
pub(crate) const VECTOR_ROWS: usize = 1024;

const VERSION: u8 = 1;
const ALL: u8 = 0;
const LIST: u8 = 1;
const BITMAP: u8 = 2;
const BITMAP_BYTES: usize = VECTOR_ROWS / 8;

/// A set of rows of one vector, one bit each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VectorRows([u32; VECTOR_ROWS / 32]);

impl VectorRows {
    const NONE: Self = Self([0; VECTOR_ROWS / 32]);

    /// Returns the deleted rows of one vector of a block.
    pub fn of(block: &DeletedBlock, vector: usize) -> Self {
        block.vector(vector).map_or(Self::NONE, |mask| Self(*mask))
    }

    fn insert(&mut self, place: usize) {
        self.0[place / 32] |= 1 << (place % 32);
    }

    fn contains(&self, place: usize) -> bool {
        self.0[place / 32] & (1 << (place % 32)) != 0
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the places of the rows, ascending.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        (0..VECTOR_ROWS).filter(|place| self.contains(*place))
    }

    /// Encodes the set as a record.
    pub fn encode(&self) -> Vec<u8> {
        let count = self.count();
        let mut record = vec![VERSION];
        if count == VECTOR_ROWS {
            record.push(ALL);
        } else if count * 2 < BITMAP_BYTES {
            record.push(LIST);
            record.extend(self.places().flat_map(|place| (place as u16).to_le_bytes()));
        } else {
            record.push(BITMAP);
            record.extend(self.0.iter().flat_map(|word| word.to_le_bytes()));
        }
        record
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// A message that says what is wrong with the record.
    pub fn decode(record: &[u8]) -> Result<Self, String> {
        let [version, form, rest @ ..] = record else { return Err("it ends too early".into()) };
        if *version != VERSION {
            return Err(format!("it has version {version}, and this build knows version {VERSION}"));
        }
        let mut rows = Self::NONE;
        match (*form, rest.len()) {
            (ALL, 0) => Ok(Self([u32::MAX; VECTOR_ROWS / 32])),
            (LIST, length) if length % 2 == 0 => {
                let mut next = 0;
                for place in rest.chunks_exact(2).map(|bytes| usize::from(bytes[0]) | usize::from(bytes[1]) << 8) {
                    if place < next || place >= VECTOR_ROWS {
                        return Err(format!("place {place} cannot follow place {next}"));
                    }
                    rows.insert(place);
                    next = place + 1;
                }
                Ok(rows)
            }
            (BITMAP, BITMAP_BYTES) => {
                for (byte, bits) in rest.iter().enumerate() {
                    rows.0[byte / 4] |= u32::from(*bits) << (byte % 4 * 8);
                }
                Ok(rows)
            }
            (form, length) => Err(format!("it has form {form} and {length} bytes of rows")),
        }
    }
}

impl std::fmt::Debug for VectorRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.places()).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn rows(places: impl IntoIterator<Item = usize>) -> VectorRows {
        let mut rows = VectorRows::NONE;
        places.into_iter().for_each(|place| rows.insert(place));
        rows
    }

    #[test]
    fn every_form_comes_back_and_is_the_shortest() {
        let of = |rows: &VectorRows| (rows.encode()[1], rows.encode().len());
        let cases = [
            (rows([]), (LIST, 2)),
            (rows([0]), (LIST, 4)),
            (rows([3, 64, 1023]), (LIST, 8)),
            (rows(0..63), (LIST, 128)),
            (rows(0..64), (BITMAP, 130)),
            (rows((0..1024).step_by(2)), (BITMAP, 130)),
            (rows(1..1024), (BITMAP, 130)),
            (rows(0..1024), (ALL, 2)),
        ];
        for (rows, expected) in cases {
            assert_eq!(of(&rows), expected);
            assert_eq!(VectorRows::decode(&rows.encode()), Ok(rows));
        }
        assert_eq!(rows([258]).encode(), [1, 1, 2, 1]);
    }

    #[test]
    fn damaged_records_are_errors_or_other_rows_and_never_a_panic() {
        for rows in [rows([1, 5, 1023]), rows((0..1024).step_by(3)), rows(0..1024)] {
            let record = rows.encode();
            for cut in 0..record.len() {
                // A list that is cut between two places is a valid, shorter list. The store's
                // checksums detect this.
                let _ = VectorRows::decode(&record[..cut]);
            }
            for at in 0..record.len() {
                for bit in 0..8 {
                    let mut damaged = record.clone();
                    damaged[at] ^= 1 << bit;
                    let _ = VectorRows::decode(&damaged);
                }
            }
        }
        assert!(VectorRows::decode(&[]).is_err());
        assert!(VectorRows::decode(&[2, 0]).unwrap_err().contains("version 2"));
        assert!(VectorRows::decode(&[1, 1, 5, 0, 5, 0]).is_err());
        assert!(VectorRows::decode(&[1, 1, 0, 4]).is_err());
        assert!(VectorRows::decode(&[1, 2, 0]).is_err());
    }
}
