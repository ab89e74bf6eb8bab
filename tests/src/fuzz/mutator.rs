//! Damages byte inputs deterministically by a seed number.

/// A generator of damage.
#[derive(Debug)]
pub struct Mutator(u64);

/// Numbers at the edges of types, which are invalid lengths and counts.
pub(super) const EDGES: [u64; 10] =
    [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7FFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF];
/// Words with a meaning in textual formats.
const WORDS: [&str; 24] = [
    ",",
    "\"",
    "'",
    "\n",
    "\r\n",
    "|",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    "NULL",
    "-",
    "1e999",
    "99999999999999999999",
    "\\",
    "\u{FEFF}",
    "SELECT ",
    " FROM t ",
    " JOIN ",
    " OVER ",
    "CAST(",
    "::",
];

impl Mutator {
    /// Creates the generator of a seed number.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a random number below another one; 0 below 0.
    pub fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) as usize % below.max(1)
    }

    /// Selects one of several values.
    pub fn one_of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.next(things.len())]
    }

    /// Damages an input in some places. Parts may come from `other`.
    pub fn mutate(&mut self, bytes: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.next(3) {
            self.once(&mut bytes, other);
        }
        bytes
    }

    fn once(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.next(bytes.len() + 1);
        let upto = |at: usize, len: usize, bytes: &[u8]| (at + len).min(bytes.len());
        match self.next(16) {
            0 | 8 | 9 | 10 if at < bytes.len() => bytes[at] ^= 1 << self.next(8),
            1 | 11 | 12 if at < bytes.len() => bytes[at] = self.next(256) as u8,
            2 | 13 | 14 => {
                let (edge, width) = (EDGES[self.next(EDGES.len())].to_le_bytes(), 1 << self.next(4));
                let end = upto(at, width, bytes);
                bytes[at..end].copy_from_slice(&edge[..end - at]);
            }
            3 => {
                let end = upto(at, 1 << self.next(6), bytes);
                bytes.drain(at..end);
            }
            4 => {
                let from = self.next(other.len() + 1);
                let part = other[from..upto(from, 1 << self.next(8), other)].to_vec();
                bytes.splice(at..at, part);
            }
            5 => {
                let end = upto(at, 1 << self.next(8), bytes);
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            6 => {
                let word = WORDS[self.next(WORDS.len())];
                bytes.splice(at..at, word.bytes());
            }
            7 => bytes.truncate(at.max(1)),
            _ => {}
        }
    }
}
