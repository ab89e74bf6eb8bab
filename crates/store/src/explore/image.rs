//! The bytes of a medium after a crash. Blocks are shared until one is written, so that thousands
//! of images that differ in a few lines cost little more than one.
//!
//! The hash is a sum over the words, so that the hash of an image that differs in a few words is
//! computed without building it. Words of zeros add nothing: growth does not change the hash.

use std::sync::Arc;

const BLOCK_BYTES: usize = 4096;

/// The bytes of a medium. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CrashImage {
    blocks: Vec<Arc<[u8; BLOCK_BYTES]>>,
    len: u64,
}

impl CrashImage {
    /// Creates an empty image.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an image of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut image = Self::new();
        image.set_len(bytes.len() as u64);
        image.write(0, bytes);
        image
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the length to `len` bytes. New bytes are zeros.
    pub fn set_len(&mut self, len: u64) {
        let blocks = (len as usize).div_ceil(BLOCK_BYTES);
        if blocks > self.blocks.len() {
            let zeros = Arc::new([0; BLOCK_BYTES]);
            self.blocks.resize(blocks, zeros);
        } else {
            self.blocks.truncate(blocks);
            let used = len as usize % BLOCK_BYTES;
            if let Some(last) = self.blocks.last_mut().filter(|_| used > 0) {
                Arc::make_mut(last)[used..].fill(0);
            }
        }
        self.len = len;
    }

    /// Copies bytes at `at`, which must be within the image, into `into`.
    pub fn read(&self, at: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let (block, from) = ((at as usize + done) / BLOCK_BYTES, (at as usize + done) % BLOCK_BYTES);
            let count = (into.len() - done).min(BLOCK_BYTES - from);
            into[done..done + count].copy_from_slice(&self.blocks[block][from..from + count]);
            done += count;
        }
    }

    /// Writes `bytes` at `at`. All of them must be within the image.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (block, from) = ((at as usize + done) / BLOCK_BYTES, (at as usize + done) % BLOCK_BYTES);
            let count = (bytes.len() - done).min(BLOCK_BYTES - from);
            Arc::make_mut(&mut self.blocks[block])[from..from + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
    }

    /// Returns the 8 bytes at `8 * word`, or zeros beyond the end.
    #[must_use]
    pub fn word(&self, word: u64) -> u64 {
        let (block, from) = ((word as usize * 8) / BLOCK_BYTES, (word as usize * 8) % BLOCK_BYTES);
        let bytes = self.blocks.get(block).and_then(|block| block[from..].first_chunk::<8>());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Sets the 8 bytes at `8 * word`.
    pub fn set_word(&mut self, word: u64, value: u64) {
        let (block, from) = ((word as usize * 8) / BLOCK_BYTES, (word as usize * 8) % BLOCK_BYTES);
        Arc::make_mut(&mut self.blocks[block])[from..from + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns the sum of [`word_hash`] over its words.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut sum = 0_u64;
        for (block, bytes) in self.blocks.iter().enumerate() {
            for (word, bytes) in bytes.as_chunks::<8>().0.iter().enumerate() {
                let place = (block * BLOCK_BYTES / 8 + word) as u64;
                sum = sum.wrapping_add(word_hash(place, u64::from_le_bytes(*bytes)));
            }
        }
        sum
    }

    /// Returns all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read(0, &mut bytes);
        bytes
    }
}

/// Returns the contribution of `value` at word number `word` to the hash of an image.
#[must_use]
pub fn word_hash(word: u64, value: u64) -> u64 {
    if value == 0 { 0 } else { mix(word.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ mix(value)) }
}

/// Applies a bijection that spreads bits (the finaliser of `SplitMix64`).
#[must_use]
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn writes_lie_where_they_were_put_and_shared_blocks_do_not_see_them() {
        let mut image = CrashImage::new();
        image.set_len(10_000);
        let before = image.clone();
        image.write(4090, &[5; 20]);
        let mut model = vec![0; 10_000];
        model[4090..4110].fill(5);
        assert_eq!(image.to_vec(), model);
        assert_eq!(before.to_vec(), vec![0; 10_000]);
    }

    #[test]
    fn the_hash_is_the_sum_of_words_and_growth_does_not_change_it() {
        let mut image = CrashImage::new();
        image.set_len(8192);
        assert_eq!(image.hash(), 0);
        image.set_word(3, 77);
        image.set_word(900, 78);
        assert_eq!(image.hash(), word_hash(3, 77).wrapping_add(word_hash(900, 78)));
        let hash = image.hash();
        image.set_len(16_384);
        assert_eq!(image.hash(), hash);
        assert_eq!((image.word(3), image.word(900), image.word(10_000)), (77, 78, 0));
    }
}
