//! Columns of segments that are to stay, brought to the device all at once: each to an allocation of its own, its blocks one
//! behind the other.
//!
//! An item is some blocks of one column of one segment, a few MiB, which one thread puts behind each other; they are copied as
//! one. Where each item goes is known beforehand, by what its blocks take at most.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use onehop_pipeline::Source;
use onehop_pipeline::backend::SegmentKey;
use onehop_segment::{EncodingCode, Segment};

use super::column::{Block, Column, Whose, bytes_of_block, bytes_of_segment};
use super::store::Loading;
use crate::fused::Result;
use crate::queue::lose;
use crate::staging::{Cargo, Failed, Put, Room, Sent, Shape, Stager};
use crate::{DeviceBuf, Stream};

/// Bytes of an item, about: enough for a copy of its own.
const ITEM_BYTES: usize = 2 << 20;
/// Items of a batch, at least, if it has as many blocks.
const ITEMS: usize = 8;

/// A column of a segment that is to be loaded.
#[derive(Debug)]
pub struct Piece<'a> {
    /// For the store.
    pub claim: Loading<'a, (SegmentKey, usize), Column>,
    pub segment: Arc<Segment>,
    /// Its place there.
    pub place: usize,
    pub source: &'a Arc<dyn Source>,
    /// All blocks of the segment, by their morsels.
    pub morsels: Range<usize>,
    /// The column in the source.
    pub column: usize,
    /// Where it is going to be.
    pub data: DeviceBuf,
}

/// Some blocks of a piece.
#[derive(Debug)]
struct Item {
    piece: usize,
    /// Of the piece.
    blocks: Range<usize>,
    /// Where in the piece's memory, and how many bytes at most.
    at: usize,
    bytes: usize,
    /// Where in the buffer it was put, and how many bytes; what the blocks are.
    filled: Mutex<((usize, usize), Vec<Block>)>,
}

struct Loads<'a> {
    pieces: Vec<Piece<'a>>,
    items: Vec<Item>,
    batches: Vec<Range<usize>>,
    bytes: u64,
    /// Of each piece: whether it has something that is not the segment's own, or more than was foreseen.
    is_odd: Vec<AtomicBool>,
    moved: AtomicUsize,
}

impl<'a> Loads<'a> {
    fn new(pieces: Vec<Piece<'a>>, batch_bytes: usize) -> Self {
        let item_bytes = ITEM_BYTES.min(batch_bytes / ITEMS);
        let mut items: Vec<Item> = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            let mut at = 0;
            for block in 0..piece.segment.blocks() {
                let bytes = bytes_of_block(&piece.segment, piece.place, block);
                match items.last_mut() {
                    Some(last) if last.piece == number && last.bytes + bytes <= item_bytes => {
                        (last.blocks.end, last.bytes) = (block + 1, last.bytes + bytes);
                    }
                    _ => items.push(Item {
                        piece: number,
                        blocks: block..block + 1,
                        at,
                        bytes,
                        filled: Mutex::default(),
                    }),
                }
                at += bytes;
            }
        }
        let mut batches: Vec<Range<usize>> = Vec::new();
        let mut filled = 0;
        for (number, item) in items.iter().enumerate() {
            match batches.last_mut() {
                Some(last) if filled + item.bytes <= batch_bytes => last.end = number + 1,
                _ => {
                    batches.push(number..number + 1);
                    filled = 0;
                }
            }
            filled += item.bytes;
        }
        let bytes = items.iter().map(|item| item.bytes as u64).sum();
        let is_odd = pieces.iter().map(|_| AtomicBool::new(false)).collect();
        Self { pieces, items, batches, bytes, is_odd, moved: AtomicUsize::new(0) }
    }

    /// Bytes of the largest batch.
    fn largest(&self) -> usize {
        let bytes = |batch: &Range<usize>| self.items[batch.clone()].iter().map(|item| item.bytes).sum();
        self.batches.iter().map(bytes).max().unwrap_or(0)
    }

    /// What came of each piece; `None` if it cannot be kept as it is stored.
    fn settle(self) -> Vec<Option<Arc<Column>>> {
        let mut blocks: Vec<(Vec<Block>, usize)> = self.pieces.iter().map(|_| Default::default()).collect();
        for item in self.items {
            let ((_, bytes), of_item) = item.filled.into_inner().unwrap_or_else(PoisonError::into_inner);
            blocks[item.piece].0.extend(of_item);
            blocks[item.piece].1 += bytes;
        }
        let pieces = self.pieces.into_iter().zip(blocks).zip(self.is_odd);
        let loaded = pieces.map(|((piece, (blocks, bytes)), is_odd)| {
            let is_whole = !is_odd.into_inner();
            is_whole.then(|| piece.claim.done(Column::new(piece.data, blocks, bytes)))
        });
        loaded.collect()
    }
}

impl Cargo for Loads<'_> {
    fn batches(&self) -> usize {
        self.batches.len()
    }

    fn items(&self, batch: usize) -> usize {
        self.batches[batch].len()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn fill(&self, batch: usize, number: usize, room: &Room) -> Result<()> {
        let item = &self.items[self.batches[batch].start + number];
        let piece = &self.pieces[item.piece];
        let is_odd = &self.is_odd[item.piece];
        let Some(mut region) = room.reserve(item.bytes).filter(|_| !is_odd.load(Relaxed)) else {
            is_odd.store(true, Relaxed);
            return Ok(());
        };
        let start = piece.data.address() + item.at as u64;
        let ty = piece.source.columns()[piece.column].ty;
        let is_coded = piece.segment.column(piece.place).encoding == EncodingCode::Dictionary;
        let mut blocks = Vec::with_capacity(item.blocks.len());
        for block in item.blocks.clone() {
            let morsel = piece.morsels.start + block;
            let (loaded, rows) = (piece.source.load(morsel, piece.column)?, piece.source.rows(morsel));
            let (mut has_room, mut is_read) = (true, false);
            let built = Block::of(&loaded, rows, ty, is_coded, |bytes, whose| {
                let put = match whose {
                    // SAFETY: nobody writes to a block's buffer any more, and the room is given the block below: if there is
                    // an error before, the batch is not sent.
                    Whose::Block => unsafe { region.put_held(bytes) },
                    Whose::Nobody => region.put(bytes).map(|at| (at, Put::Copied)),
                };
                is_read |= matches!(put, Some((_, Put::Direct)));
                has_room &= put.is_some();
                put.map_or(0, |(at, _)| start + at as u64)
            })?;
            if is_read {
                room.hold(loaded);
            }
            let Some(built) = built.filter(|_| has_room) else {
                is_odd.store(true, Relaxed);
                return Ok(());
            };
            blocks.push(built);
        }
        *item.filled.lock().unwrap_or_else(PoisonError::into_inner) = (region.filled(), blocks);
        Ok(())
    }

    fn send(&self, batch: usize, filled: Sent<'_>, stream: &Stream) -> Result<()> {
        for item in &self.items[self.batches[batch].clone()] {
            let (from, bytes) = item.filled.lock().unwrap_or_else(PoisonError::into_inner).0;
            let to = self.pieces[item.piece].data.address() + item.at as u64;
            // SAFETY: the item's own range of its piece's memory, for it is no longer than was foreseen; nobody reads that
            // before the run has ended, and it is freed after that, or leaked.
            unsafe { filled.copy(to, from, bytes, stream)? };
            self.moved.fetch_add(bytes, Relaxed);
        }
        Ok(())
    }
}

/// Loads pieces. What came of each, `None` if it cannot be kept as it is stored; and bytes that were moved.
///
/// # Errors
/// Those of the sources and of the device: then none of them is there.
pub fn load(
    stager: &Stager,
    shape: Shape,
    pieces: Vec<Piece<'_>>,
    cancelled: &AtomicBool,
) -> Result<(Vec<Option<Arc<Column>>>, usize)> {
    let bytes = |piece: &Piece<'_>| bytes_of_segment(&piece.segment, piece.place) as usize;
    let batch_bytes = shape.batch_for(pieces.iter().map(bytes).sum());
    let loads = Loads::new(pieces, batch_bytes);
    let shape = Shape { batch_bytes: loads.largest(), ..shape };
    match stager.run(&loads, shape, cancelled, |_, _| Ok(std::ops::ControlFlow::Continue(()))) {
        Ok(()) => {
            let moved = loads.moved.load(Relaxed);
            Ok((loads.settle(), moved))
        }
        Err(Failed { error, in_flight }) => {
            if in_flight {
                loads.pieces.into_iter().for_each(|piece| lose(piece.data));
            }
            Err(error)
        }
    }
}
