//! What is read of a file for blocks, in which reads: chunks that lie one after the other are read as one, up to what its reader
//! takes at a time ([`Origin::most_bytes`]).
//!
//! Reads are whole pages, at whole pages of the memory that they go to: chunks begin on pages of the file, and what is between
//! them is padding. So a chunk lies in one read, wherever that is, at the place that it has in the file.

use onehop_io::PAGE_BYTES;
use onehop_segment::{BlockPlace, ChunkPlace};

use super::origin::Origin;
use super::verify::Planes;

/// A block that is read straight to the device, and its file.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub file: Origin,
    pub place: BlockPlace,
}

/// Bytes of a file, and where they go.
#[derive(Debug)]
pub struct Read {
    pub file: Origin,
    pub offset: u64,
    /// Those that matter. The rest of the last page is read if it is there.
    pub bytes: usize,
    /// Where they go, from the start of the memory: on a page.
    pub at: usize,
}

impl Read {
    /// Bytes that they take: whole pages.
    pub fn padded_bytes(&self) -> usize {
        self.bytes.next_multiple_of(PAGE_BYTES)
    }
}

/// Reads for blocks, and where each block comes to be.
#[derive(Debug, Default)]
pub struct Plan {
    pub reads: Vec<Read>,
    /// In the order in which they were given.
    pub blocks: Vec<Landed>,
    /// Memory that it takes.
    pub bytes: usize,
}

/// Where a block comes to be: addresses count from the start of the memory, from 1 on.
#[derive(Clone, Copy, Debug)]
pub struct Landed {
    pub place: BlockPlace,
    planes: Planes,
}

impl Landed {
    /// Where its planes are if the memory begins at an address.
    pub fn planes(&self, start: u64) -> Planes {
        let at = |plane: u64| if plane == 0 { 0 } else { start + plane - 1 };
        Planes { low: at(self.planes.low), high: at(self.planes.high), valid: at(self.planes.valid) }
    }
}

/// A chunk of a block, by numbers.
struct Piece {
    file: usize,
    chunk: ChunkPlace,
    block: usize,
    plane: usize,
}

impl Plan {
    /// For blocks of any files, in any order.
    pub fn new(wanted: &[Wanted]) -> Self {
        let pieces = |(block, of): (usize, &Wanted)| {
            let BlockPlace { low, high, validity, .. } = of.place;
            let file = of.file.number();
            let chunks = [low, high, validity].into_iter().enumerate();
            let piece =
                move |(plane, chunk): (usize, Option<ChunkPlace>)| Some(Piece { file, chunk: chunk?, block, plane });
            chunks.filter_map(piece)
        };
        let mut pieces: Vec<Piece> = wanted.iter().enumerate().flat_map(pieces).collect();
        pieces.sort_by_key(|piece| (piece.file, piece.chunk.offset));
        let mut plan = Self::default();
        plan.blocks.extend(wanted.iter().map(|of| Landed { place: of.place, planes: Planes::default() }));
        for piece in pieces {
            let (read, skipped) = plan.read_for(&piece, &wanted[piece.block].file);
            let at = (plan.reads[read].at + skipped) as u64 + 1;
            let planes = &mut plan.blocks[piece.block].planes;
            *[&mut planes.low, &mut planes.high, &mut planes.valid][piece.plane] = at;
        }
        plan
    }

    /// The read that a chunk is in, and how many bytes of it come before the chunk. Chunks come by file and offset.
    fn read_for(&mut self, piece: &Piece, file: &Origin) -> (usize, usize) {
        let ChunkPlace { offset, bytes, .. } = piece.chunk;
        let end = offset + bytes as u64;
        if let Some(last) = self.reads.last_mut() {
            let is_next = last.file.is(file) && offset <= last.offset + last.padded_bytes() as u64;
            if is_next && end - last.offset <= file.most_bytes() {
                // Two columns may be the same.
                last.bytes = last.bytes.max((end - last.offset) as usize);
                self.bytes = last.at + last.padded_bytes();
                return (self.reads.len() - 1, (offset - self.reads[self.reads.len() - 1].offset) as usize);
            }
        }
        self.reads.push(Read { file: file.clone(), offset, bytes, at: self.bytes });
        self.bytes += bytes.next_multiple_of(PAGE_BYTES);
        (self.reads.len() - 1, 0)
    }

    /// Bytes of chunks.
    pub fn chunk_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.place.bytes() as u64).sum()
    }
}
