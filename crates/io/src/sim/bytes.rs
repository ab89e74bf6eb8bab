//! The bytes of a simulated file, in blocks that copies share until one of them is written.
//!
//! A copy costs one reference for each block. The hash of a block is computed once, however many images have the block.

use std::sync::{Arc, OnceLock};

use crate::faulty::mix;

const BLOCK_BYTES: usize = 4096;

/// Unit in which a device writes whole: a sector has its old bytes or its new ones.
pub(super) const SECTOR_BYTES: usize = 512;

#[derive(Clone)]
struct Block {
    bytes: [u8; BLOCK_BYTES],
    hash: OnceLock<u64>,
}

impl Block {
    fn hash(&self) -> u64 {
        *self.hash.get_or_init(|| {
            let words = self.bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            mix(words.fold(0, |hash, word| (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        })
    }
}

/// Bytes of a file. Bytes of the last block beyond the length are zeros.
#[derive(Clone, Default)]
pub(super) struct Bytes {
    blocks: Vec<Arc<Block>>,
    len: usize,
}

fn zeros() -> &'static Arc<Block> {
    static ZEROS: OnceLock<Arc<Block>> = OnceLock::new();
    ZEROS.get_or_init(|| Arc::new(Block { bytes: [0; BLOCK_BYTES], hash: OnceLock::new() }))
}

impl Bytes {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes it `len` bytes long. New bytes are zeros.
    pub fn set_len(&mut self, len: usize) {
        self.blocks.resize(len.div_ceil(BLOCK_BYTES), Arc::clone(zeros()));
        let used = len % BLOCK_BYTES;
        if len < self.len
            && used > 0
            && let Some(last) = self.blocks.last_mut()
        {
            changed(last)[used..].fill(0);
        }
        self.len = len;
    }

    /// Copies bytes at `at` into `into`, as many as there are, and returns their number.
    pub fn read(&self, at: usize, into: &mut [u8]) -> usize {
        let count = into.len().min(self.len.saturating_sub(at));
        let mut done = 0;
        while done < count {
            let (block, from) = ((at + done) / BLOCK_BYTES, (at + done) % BLOCK_BYTES);
            let part = (count - done).min(BLOCK_BYTES - from);
            into[done..done + part].copy_from_slice(&self.blocks[block].bytes[from..from + part]);
            done += part;
        }
        count
    }

    /// Writes `bytes` at `at`, which makes it longer if they end behind its end.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        if at + bytes.len() > self.len {
            self.set_len(at + bytes.len());
        }
        let mut done = 0;
        while done < bytes.len() {
            let (block, from) = ((at + done) / BLOCK_BYTES, (at + done) % BLOCK_BYTES);
            let part = (bytes.len() - done).min(BLOCK_BYTES - from);
            changed(&mut self.blocks[block])[from..from + part].copy_from_slice(&bytes[done..done + part]);
            done += part;
        }
    }

    /// A sector. Bytes behind the end are zeros.
    pub fn sector(&self, sector: usize) -> [u8; SECTOR_BYTES] {
        let mut bytes = [0; SECTOR_BYTES];
        self.read(sector * SECTOR_BYTES, &mut bytes);
        bytes
    }

    /// Puts a sector in its place, as far as that is within the length.
    pub fn put_sector(&mut self, sector: usize, bytes: &[u8; SECTOR_BYTES]) {
        let at = sector * SECTOR_BYTES;
        let count = SECTOR_BYTES.min(self.len.saturating_sub(at));
        if count > 0 {
            self.write(at, &bytes[..count]);
        }
    }

    /// A hash of the length and all bytes.
    pub fn hash(&self) -> u64 {
        self.blocks.iter().fold(mix(self.len as u64), |hash, block| mix(hash ^ block.hash()))
    }
}

/// The bytes of a block that are about to change.
fn changed(block: &mut Arc<Block>) -> &mut [u8; BLOCK_BYTES] {
    let block = Arc::make_mut(block);
    block.hash = OnceLock::new();
    &mut block.bytes
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes ({:016x})", self.len, self.hash())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_lie_where_they_were_put_and_copies_do_not_see_them() {
        let mut bytes = Bytes::default();
        bytes.write(4090, &[5; 20]);
        let before = bytes.clone();
        bytes.write(0, &[7; 3]);
        let mut found = [1; 5000];
        assert_eq!(bytes.read(0, &mut found), 4110);
        assert_eq!((&found[..4], &found[4088..4092], found[4109]), (&[7, 7, 7, 0][..], &[0, 0, 5, 5][..], 5));
        assert_eq!(before.read(0, &mut found), 4110);
        assert_eq!(&found[..4], &[0; 4]);
        assert_ne!(before.hash(), bytes.hash());
        bytes.write(0, &[0; 3]);
        assert_eq!(before.hash(), bytes.hash());
    }

    #[test]
    fn what_was_cut_off_does_not_come_back() {
        let mut bytes = Bytes::default();
        bytes.write(0, &[9; 100]);
        bytes.set_len(50);
        bytes.set_len(100);
        assert_eq!((bytes.sector(0)[49], bytes.sector(0)[50]), (9, 0));
        bytes.put_sector(0, &[3; SECTOR_BYTES]);
        assert_eq!((bytes.len(), bytes.sector(0)[99], bytes.sector(0)[100]), (100, 3, 0));
    }
}
