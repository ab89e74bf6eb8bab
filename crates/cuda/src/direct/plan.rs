//! Plans the reads of blocks of a file: adjacent chunks are one read, up to the maximum of the
//! file's reader ([`Origin::most_bytes`]).
//!
//! Reads consist of whole pages, at page boundaries of the destination memory. Chunks begin at page
//! boundaries of the file, and the bytes between them are padding. Each chunk therefore lies in one
//! read, at the same offset as in the file.

use onehop_io::PAGE_BYTES;
use onehop_segment::{BlockPlace, ChunkPlace};

use super::origin::Origin;
use super::verify::Planes;

/// A block that is read directly to the device, and its file.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub file: Origin,
    pub place: BlockPlace,
}

/// A range of a file, and its destination.
#[derive(Debug)]
pub struct Read {
    pub file: Origin,
    pub offset: u64,
    /// Bytes that are needed. The rest of the last page is read if it exists.
    pub bytes: usize,
    /// Offset in the destination memory, at a page boundary.
    pub at: usize,
}

impl Read {
    /// Returns the length in whole pages.
    pub fn padded_bytes(&self) -> usize {
        self.bytes.next_multiple_of(PAGE_BYTES)
    }
}

/// Reads for blocks, and the destination of each block.
#[derive(Debug, Default)]
pub struct Plan {
    pub reads: Vec<Read>,
    /// Blocks in the order in which they were given.
    pub blocks: Vec<Landed>,
    /// Bytes of destination memory.
    pub bytes: usize,
}

/// Destination of a block. Addresses are offsets from the start of the memory plus 1; 0 is none.
#[derive(Clone, Copy, Debug)]
pub struct Landed {
    pub place: BlockPlace,
    planes: Planes,
}

impl Landed {
    /// Returns the addresses of its planes if the memory begins at `start`.
    pub fn planes(&self, start: u64) -> Planes {
        let at = |plane: u64| if plane == 0 { 0 } else { start + plane - 1 };
        Planes { low: at(self.planes.low), high: at(self.planes.high), valid: at(self.planes.valid) }
    }
}

/// Chunk of a block, with the numbers of its file, block and plane.
struct Piece {
    file: usize,
    chunk: ChunkPlace,
    block: usize,
    plane: usize,
}

impl Plan {
    /// Plans the reads for blocks of any files, in any order.
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

    /// Returns the read that contains a chunk, and the offset of the chunk in it. Chunks arrive
    /// sorted by file and offset.
    fn read_for(&mut self, piece: &Piece, file: &Origin) -> (usize, usize) {
        let ChunkPlace { offset, bytes, .. } = piece.chunk;
        let end = offset + bytes as u64;
        if let Some(last) = self.reads.last_mut() {
            let is_next = last.file.is(file) && offset <= last.offset + last.padded_bytes() as u64;
            if is_next && end - last.offset <= file.most_bytes() {
                // Two columns may have the same chunk.
                last.bytes = last.bytes.max((end - last.offset) as usize);
                self.bytes = last.at + last.padded_bytes();
                return (self.reads.len() - 1, (offset - self.reads[self.reads.len() - 1].offset) as usize);
            }
        }
        self.reads.push(Read { file: file.clone(), offset, bytes, at: self.bytes });
        self.bytes += bytes.next_multiple_of(PAGE_BYTES);
        (self.reads.len() - 1, 0)
    }

    /// Returns the total bytes of chunks.
    pub fn chunk_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.place.bytes() as u64).sum()
    }
}
