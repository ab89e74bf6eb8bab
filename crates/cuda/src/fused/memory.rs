//! Device memory of a run: taken from the front of a few large allocations, given back all at once.
//!
//! Arenas are kept by the executor and used again. A run that found its arena too small leaves it as one allocation of
//! the size it needed, so that queries of a kind stop allocating after the first: `cuMemAlloc` waits for the device.

use std::sync::Arc;

use super::Result;
use crate::{Context, DeviceBuf};

/// Where every piece begins.
const ALIGNMENT: usize = 256;
/// An arena's first allocation.
const LEAST: usize = 1 << 20;

/// Device memory that is taken piece by piece.
#[derive(Debug)]
pub(super) struct Arena {
    context: Arc<Context>,
    chunks: Vec<DeviceBuf>,
    /// Of the last chunk.
    used: usize,
    /// Of all of them, with what was left over at their ends.
    taken: usize,
}

/// A piece of an arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    chunk: usize,
    at: usize,
    pub len: usize,
    pub address: u64,
}

impl Arena {
    pub fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), chunks: Vec::new(), used: 0, taken: 0 }
    }

    /// So many bytes, of no known content.
    pub fn take(&mut self, len: usize) -> Result<Piece> {
        let at = self.used.next_multiple_of(ALIGNMENT);
        let fits = self.chunks.last().is_some_and(|chunk| at + len <= chunk.len());
        if !fits {
            let before = self.chunks.last().map_or(0, DeviceBuf::len);
            self.chunks.push(DeviceBuf::new(&self.context, len.max(LEAST).max(before * 2))?);
            (self.used, self.taken) = (0, self.taken + before);
        }
        let at = self.used.next_multiple_of(ALIGNMENT);
        self.used = at + len;
        let chunk = self.chunks.len() - 1;
        Ok(Piece { chunk, at, len, address: self.chunks[chunk].address_of(&(at..at + len)) })
    }

    pub fn write(&mut self, piece: Piece, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= piece.len, "{} bytes into {}", bytes.len(), piece.len);
        Ok(self.chunks[piece.chunk].copy_from(piece.at, bytes)?)
    }

    /// The first bytes of a piece.
    pub fn read(&self, piece: Piece, len: usize) -> Result<Vec<u8>> {
        assert!(len <= piece.len, "{len} bytes of {}", piece.len);
        let mut bytes = vec![0; len];
        self.chunks[piece.chunk].copy_to(piece.at, &mut bytes)?;
        Ok(bytes)
    }

    /// Takes all pieces back. Nobody is using them.
    pub fn clear(&mut self) {
        if self.chunks.len() > 1 {
            let all = self.taken + self.used;
            self.chunks.clear();
            // Without room for it there is none, and the next run says so.
            self.chunks.extend(DeviceBuf::new(&self.context, all));
        }
        (self.used, self.taken) = (0, 0);
    }
}
