//! Device memory of a run: pieces of a few large allocations, released all at once.
//!
//! The executor keeps arenas and reuses them. If a run needs several allocations, its arena is
//! replaced with one allocation of their total size. Queries of a kind thus stop allocating after
//! the first: `cuMemAlloc` waits for the device.
//!
//! All arenas of an executor together take no more than the limit of the run that allocates; the
//! [`Pool`] counts their bytes. Exceeding it is a memory error, as if the device were full. A run
//! that is short of memory takes all that is left as one allocation ([`Arena::gather`]), so that
//! fragmentation fails no piece. It gives that allocation back when it ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use onehop_pipeline::Error as PipelineError;

use super::{Error, Result};
use crate::{Context, DeviceBuf};

/// Alignment of every piece.
const ALIGNMENT: usize = 256;
/// Size of an arena's first allocation.
const LEAST: usize = 1 << 20;
/// Smallest amount that [`Arena::gather`] tries to allocate on a device that is almost full.
const LEAST_GATHERED: usize = 64 << 10;

/// Bytes that the arenas of a device hold together.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool(Arc<AtomicU64>);

/// Device memory that is allocated piece by piece.
#[derive(Debug)]
pub(super) struct Arena {
    context: Arc<Context>,
    chunks: Vec<DeviceBuf>,
    /// Allocated ranges of each chunk: offset and length.
    taken: Vec<BTreeMap<usize, usize>>,
    pool: Pool,
    /// Maximum bytes of all arenas together while this one is in use.
    limit: u64,
    /// `true` if the arena is one allocation of all available memory.
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

    /// Limits the bytes of all arenas together. The caller must hold no piece of this arena.
    pub fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
        if self.bytes() > self.limit() {
            self.release();
        }
    }

    /// Returns the maximum number of bytes that this arena may have in all.
    pub fn limit(&self) -> u64 {
        let others = self.pool.0.load(Relaxed).saturating_sub(self.bytes());
        self.limit.saturating_sub(others)
    }

    /// Returns true if the arena is one allocation of all available memory.
    pub fn is_gathered(&self) -> bool {
        self.is_gathered
    }

    /// Returns the total size of its allocations in bytes.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    /// Returns about how many bytes the largest possible piece would have now.
    pub fn room(&self) -> u64 {
        let more = self.limit().saturating_sub(self.bytes());
        if self.is_gathered { self.largest_gap() as u64 } else { more.max(self.largest_gap() as u64) }
    }

    fn largest_gap(&self) -> usize {
        let gaps = (0..self.chunks.len()).flat_map(|chunk| self.gaps(chunk));
        gaps.map(|(from, to)| to - from).max().unwrap_or(0)
    }

    /// Returns the free ranges of a chunk.
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

    /// Allocates `len` bytes of undefined content.
    ///
    /// # Errors
    /// [`PipelineError::Memory`] if the limit leaves no room for them, and errors of the device.
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

    /// Adds an allocation with room for `len` bytes.
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

    /// Frees all memory.
    fn release(&mut self) {
        self.pool.0.fetch_sub(self.bytes(), Relaxed);
        self.chunks.clear();
        self.taken.clear();
        self.is_gathered = false;
    }

    /// Frees all pieces and makes one allocation of all memory within the limit. If the device has
    /// less, it allocates most of the rest, because columns may still have to be brought there. The
    /// caller must not use any piece afterwards.
    ///
    /// # Errors
    /// The device has almost no memory left.
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

    /// Frees all pieces except some. The freed ones must not be in use.
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

    /// Reads the first bytes of a piece.
    pub fn read(&self, piece: Piece, len: usize) -> Result<Vec<u8>> {
        assert!(len <= piece.len, "{len} bytes of {}", piece.len);
        let mut bytes = vec![0; len];
        self.chunks[piece.chunk].copy_to(piece.at, &mut bytes)?;
        Ok(bytes)
    }

    /// Frees all pieces. They must not be in use.
    pub fn clear(&mut self) {
        if self.is_gathered {
            // The next run, and columns, would otherwise find no memory.
            self.release();
        } else if self.chunks.len() > 1 {
            let all = self.bytes() as usize;
            self.release();
            // If the allocation fails, the arena stays empty, and the next run reports the error.
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
