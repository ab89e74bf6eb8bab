//! Device memory of a run: pieces of a few large allocations, given back all at once.
//!
//! Arenas are kept by the executor and used again. A run that found its arena too small leaves it as one allocation of
//! the size it needed, so that queries of a kind stop allocating after the first: `cuMemAlloc` waits for the device.
//!
//! All arenas of an executor together take no more than its [`Pool`] has for the run that asks; what it has not is an error
//! as of the device itself. A run that is short of memory takes all there is as one allocation ([`Arena::gather`]), so that
//! no piece misses its place because of where the others lie, and gives it back when it ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use onehop_pipeline::Error as PipelineError;

use super::{Error, Result};
use crate::{Context, DeviceBuf};

/// Where every piece begins.
const ALIGNMENT: usize = 256;
/// An arena's first allocation.
const LEAST: usize = 1 << 20;
/// What is not worth being looked for on a device that is all but full.
const LEAST_GATHERED: usize = 64 << 10;

/// What arenas of a device hold together, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool(Arc<AtomicU64>);

/// Device memory that is taken piece by piece.
#[derive(Debug)]
pub(super) struct Arena {
    context: Arc<Context>,
    chunks: Vec<DeviceBuf>,
    /// What is taken of each chunk: where it begins, and how long it is.
    taken: Vec<BTreeMap<usize, usize>>,
    pool: Pool,
    /// What all arenas may take together while this one is used.
    limit: u64,
    /// Whether it is as large as that.
    is_gathered: bool,
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
    pub fn new(context: &Arc<Context>, pool: &Pool) -> Self {
        let (chunks, taken) = (Vec::new(), Vec::new());
        Self { context: Arc::clone(context), chunks, taken, pool: pool.clone(), limit: u64::MAX, is_gathered: false }
    }

    /// From now on, all arenas may take so many bytes together. Nothing is taken of this one.
    pub fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
        if self.bytes() > self.limit() {
            self.release();
        }
    }

    /// Bytes that it may have in all.
    pub fn limit(&self) -> u64 {
        let others = self.pool.0.load(Relaxed).saturating_sub(self.bytes());
        self.limit.saturating_sub(others)
    }

    /// Whether it is one allocation of all that there is.
    pub fn is_gathered(&self) -> bool {
        self.is_gathered
    }

    /// Bytes of its allocations.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    /// Bytes of a piece that could be taken now, about.
    pub fn room(&self) -> u64 {
        let more = self.limit().saturating_sub(self.bytes());
        if self.is_gathered { self.largest_gap() as u64 } else { more.max(self.largest_gap() as u64) }
    }

    fn largest_gap(&self) -> usize {
        let gaps = (0..self.chunks.len()).flat_map(|chunk| self.gaps(chunk));
        gaps.map(|(from, to)| to - from).max().unwrap_or(0)
    }

    /// What is not taken of a chunk: from where to where.
    fn gaps(&self, chunk: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let end = self.chunks[chunk].len();
        let mut from = 0;
        let taken = self.taken[chunk].iter().map(|(at, len)| (*at, *len)).chain([(end, 0)]);
        taken.filter_map(move |(at, len)| {
            let gap = (from, at);
            from = (at + len).next_multiple_of(ALIGNMENT).min(end);
            (gap.0 < gap.1).then_some(gap)
        })
    }

    /// So many bytes, of no known content.
    ///
    /// # Errors
    /// [`PipelineError::Memory`] if the limit leaves no room for them, and those of the device.
    pub fn take(&mut self, len: usize) -> Result<Piece> {
        let fits = |(from, to): &(usize, usize)| to - from >= len;
        let found = (0..self.chunks.len()).find_map(|chunk| {
            let (at, _) = self.gaps(chunk).find(fits)?;
            Some((chunk, at))
        });
        let (chunk, at) = match found {
            Some(found) => found,
            None => {
                self.grow(len)?;
                (self.chunks.len() - 1, 0)
            }
        };
        self.taken[chunk].insert(at, len);
        Ok(Piece { chunk, at, len, address: self.chunks[chunk].address_of(&(at..at + len)) })
    }

    /// Another allocation, with room for so many bytes.
    fn grow(&mut self, len: usize) -> Result<()> {
        let left = self.limit().saturating_sub(self.bytes());
        if self.is_gathered || len as u64 > left {
            let available = self.room() as usize;
            let what = "a table, or groups, of a query on the GPU".into();
            return Err(Error::Pipeline(PipelineError::Memory { what, needed: len, available }));
        }
        let before = self.chunks.last().map_or(0, DeviceBuf::len);
        let wanted = len.max(LEAST).max(before * 2).min(usize::try_from(left).unwrap_or(usize::MAX));
        let chunk = match DeviceBuf::new(&self.context, wanted) {
            Err(_) if wanted > len => DeviceBuf::new(&self.context, len)?,
            other => other?,
        };
        self.push(chunk);
        Ok(())
    }

    fn push(&mut self, chunk: DeviceBuf) {
        self.pool.0.fetch_add(chunk.len() as u64, Relaxed);
        self.chunks.push(chunk);
        self.taken.push(BTreeMap::new());
    }

    /// Gives all memory back.
    fn release(&mut self) {
        self.pool.0.fetch_sub(self.bytes(), Relaxed);
        self.chunks.clear();
        self.taken.clear();
        self.is_gathered = false;
    }

    /// Takes all pieces back, and makes one allocation of all that there may be. If the device has less, it is most of that:
    /// columns may be still to come. Nobody is using the pieces.
    ///
    /// # Errors
    /// The device has next to nothing.
    pub fn gather(&mut self) -> Result<()> {
        self.release();
        let all = usize::try_from(self.limit()).unwrap_or(usize::MAX).min(self.context.device().memory_bytes as usize);
        let mut wanted = all;
        let mut chunk = loop {
            match DeviceBuf::new(&self.context, wanted) {
                Ok(chunk) => break chunk,
                Err(_) if wanted > LEAST_GATHERED => wanted -= wanted / 8,
                Err(e) => return Err(e.into()),
            }
        };
        if wanted < all {
            drop(chunk);
            chunk = DeviceBuf::new(&self.context, wanted / 4 * 3)?;
        }
        self.push(chunk);
        self.is_gathered = true;
        Ok(())
    }

    /// Takes all pieces back but some. Nobody is using them.
    pub fn keep(&mut self, pieces: impl Iterator<Item = Piece>) {
        self.taken.iter_mut().for_each(BTreeMap::clear);
        for piece in pieces {
            self.taken[piece.chunk].insert(piece.at, piece.len);
        }
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
        if self.is_gathered {
            // Whoever runs next, and columns, would find nothing.
            self.release();
        } else if self.chunks.len() > 1 {
            let all = self.bytes() as usize;
            self.release();
            // Without room for it there is none, and the next run says so.
            if all as u64 <= self.limit()
                && let Ok(chunk) = DeviceBuf::new(&self.context, all)
            {
                self.push(chunk);
            }
        }
        self.taken.iter_mut().for_each(BTreeMap::clear);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.release();
    }
}
