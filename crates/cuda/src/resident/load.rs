//! Loads columns of segments that are to stay on the device, all at once: each to an allocation of
//! its own, with its blocks one after the other.
//!
//! An item is some blocks of one column of one segment, a few MiB, which one thread puts one after
//! the other. They are copied as one. The destination of each item is known in advance, from the
//! maximum size of its blocks.
//!
//! Blocks that are kept in their stored form may come from storage without the host reading them
//! ([`crate::direct`]). The reads of a batch are further items of it, into memory of the batch's
//! slot. In stream order, the blocks are verified there and then copied to their places. The host
//! checks the findings before the piece is published.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use onehop_pipeline::backend::SegmentKey;
use onehop_pipeline::{Source, StoredMeaning};
use onehop_segment::{EncodingCode, Segment};

use super::column::{Block, Column, Whose, bytes_of_block, bytes_of_segment};
use super::store::Loading;
use crate::direct::{Landing, Passage, Plan, Planes, Read, Wanted, doubtful};
use crate::fused::{Carried, Result, is_read_as_stored};
use crate::queue::lose;
use crate::staging::{ALIGNMENT, Cargo, Failed, Put, Room, Sent, Shape, Stager};
use crate::{DeviceBuf, Event, Stream};

/// Approximate bytes of an item: enough for a copy of its own.
const ITEM_BYTES: usize = 2 << 20;
/// Minimum number of items in a batch, if it has as many blocks.
const ITEMS: usize = 8;

/// A column of a segment that is to be loaded.
#[derive(Debug)]
pub struct Piece<'a> {
    /// Claim of the store.
    pub claim: Loading<'a, (SegmentKey, usize), Column>,
    pub segment: Arc<Segment>,
    /// Number of the column in the segment.
    pub place: usize,
    pub source: &'a Arc<dyn Source>,
    /// All blocks of the segment, by their morsels.
    pub morsels: Range<usize>,
    /// Number of the column in the source.
    pub column: usize,
    /// Destination.
    pub data: DeviceBuf,
}

/// Some blocks of a piece.
#[derive(Debug)]
struct Item {
    piece: usize,
    /// Numbers of the blocks in the piece.
    blocks: Range<usize>,
    /// Offset in the piece's memory, and maximum bytes.
    at: usize,
    bytes: usize,
    /// Offset and bytes in the buffer, and the blocks.
    filled: Mutex<((usize, usize), Vec<Block>)>,
    /// If its blocks are read directly to the device: their numbers in the batch's plan, and the
    /// bias of their values.
    straight: Option<(Range<usize>, u64)>,
}

/// Some items that are transferred together.
#[derive(Debug)]
struct Batch {
    items: Range<usize>,
    /// Numbers of the items that come through the host.
    by_host: Vec<usize>,
    plan: Plan,
    /// Slot in which the batch was sent.
    slot: AtomicUsize,
}

struct Loads<'a> {
    pieces: Vec<Piece<'a>>,
    items: Vec<Item>,
    batches: Vec<Batch>,
    passage: &'a Passage<'a>,
    /// By slot, if any block is read directly to the device.
    landings: Vec<Landing>,
    bytes: u64,
    /// By piece: true if it depends on more than its segment, or is larger than expected.
    is_odd: Vec<AtomicBool>,
    moved: AtomicUsize,
}

/// Returns a block of a piece and the bias of its values, if it is read directly to the device.
fn straight_of(piece: &Piece<'_>, block: usize, passage: &Passage<'_>) -> Result<Option<(Wanted, u64)>> {
    let stored = piece.source.stored_place(piece.morsels.start + block, piece.column);
    let Some(stored) = stored.filter(|stored| is_read_as_stored(&stored.place, stored.meaning)) else {
        return Ok(None);
    };
    // The source provides the meaning of codes.
    let bias = match stored.meaning {
        StoredMeaning::Biased(bias) => bias,
        StoredMeaning::Codes(_) => 0,
    };
    Ok(passage.file(&stored)?.map(|file| (Wanted { file, place: stored.place }, bias)))
}

impl<'a> Loads<'a> {
    fn new(pieces: Vec<Piece<'a>>, batch_bytes: usize, passage: &'a Passage<'a>) -> Result<Self> {
        let item_bytes = ITEM_BYTES.min(batch_bytes / ITEMS);
        let mut items: Vec<Item> = Vec::new();
        let mut wanted: Vec<Vec<Wanted>> = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            let mut at = 0;
            for block in 0..piece.segment.blocks() {
                let bytes = bytes_of_block(&piece.segment, piece.place, block);
                let (of, bias) = straight_of(piece, block, passage)?.unzip();
                let bias_of = |item: &Item| item.straight.as_ref().map(|(_, bias)| *bias);
                match items.last_mut() {
                    Some(last) if last.piece == number && last.bytes + bytes <= item_bytes && bias_of(last) == bias => {
                        (last.blocks.end, last.bytes) = (block + 1, last.bytes + bytes);
                    }
                    _ => {
                        let straight = bias.map(|bias| (0..0, bias));
                        let blocks = block..block + 1;
                        items.push(Item { piece: number, blocks, at, bytes, filled: Mutex::default(), straight });
                        wanted.push(Vec::new());
                    }
                }
                wanted.last_mut().into_iter().for_each(|wanted| wanted.extend(of.clone()));
                at += bytes;
            }
        }
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut filled = 0;
        for (number, item) in items.iter().enumerate() {
            match ranges.last_mut() {
                Some(last) if filled + item.bytes <= batch_bytes => last.end = number + 1,
                _ => {
                    ranges.push(number..number + 1);
                    filled = 0;
                }
            }
            filled += item.bytes;
        }
        let mut batches = Vec::with_capacity(ranges.len());
        for range in ranges {
            let mut of_batch = Vec::new();
            for (item, wanted) in items[range.clone()].iter_mut().zip(&mut wanted[range.clone()]) {
                let first = of_batch.len();
                of_batch.append(wanted);
                item.straight.iter_mut().for_each(|(blocks, _)| *blocks = first..of_batch.len());
            }
            let by_host = range.clone().filter(|number| items[*number].straight.is_none()).collect();
            batches.push(Batch { items: range, by_host, plan: Plan::new(&of_batch), slot: AtomicUsize::new(0) });
        }
        let bytes = items.iter().map(|item| item.bytes as u64).sum();
        let is_odd = pieces.iter().map(|_| AtomicBool::new(false)).collect();
        let (moved, landings) = (AtomicUsize::new(0), Vec::new());
        Ok(Self { pieces, items, batches, passage, landings, bytes, is_odd, moved })
    }

    /// Returns the bytes of the largest batch that come through the host.
    fn largest(&self) -> usize {
        let bytes = |batch: &Batch| batch.by_host.iter().map(|number| self.items[*number].bytes).sum();
        self.batches.iter().map(bytes).max().unwrap_or(0)
    }

    /// Allocates memory for direct reads of `slots` concurrent batches, or of as many as there is
    /// memory for. Returns the number of batches.
    fn make_landings(&mut self, slots: usize) -> Result<usize> {
        let slots = slots.min(self.batches.len()).max(1);
        let read_bytes = self.batches.iter().map(|batch| batch.plan.bytes).max().unwrap_or(0);
        let blocks = self.batches.iter().map(|batch| batch.plan.blocks.len()).max().unwrap_or(0);
        while blocks > 0 && self.landings.len() < slots {
            match Landing::new(self.passage, read_bytes, blocks) {
                Ok(landing) => self.landings.push(landing),
                Err(_) if !self.landings.is_empty() => break,
                Err(e) => return Err(e),
            }
        }
        Ok(if blocks > 0 { self.landings.len() } else { slots })
    }

    /// Executes a read of a batch, whose slot has no other user.
    fn read(&self, slot: usize, read: &Read) -> Result<()> {
        // SAFETY: the slot's previous batch has been copied to its places, which the ring has
        // waited for, and compared. Each item is filled once, and memory was made for the largest
        // of plans.
        unsafe { self.landings[slot].read(self.passage, read) }
    }

    /// Enqueues the copies of an item's blocks from the memory of the reads to their places.
    ///
    /// # Safety
    /// All reads of the batch have ended, and their memory stays unchanged until the stream has
    /// finished.
    unsafe fn place(&self, item: &Item, landing: &Landing, plan: &Plan, stream: &Stream) -> Result<()> {
        let Some((numbers, bias)) = &item.straight else { return Ok(()) };
        let (start, mut at) = (self.pieces[item.piece].data.address() + item.at as u64, 0);
        let mut blocks = Vec::with_capacity(item.blocks.len());
        for landed in &plan.blocks[numbers.clone()] {
            let (from, mut to) = (landed.planes(landing.start()), Planes::default());
            let place = &landed.place;
            for (chunk, from, to) in [
                (place.low, from.low, &mut to.low),
                (place.high, from.high, &mut to.high),
                (place.validity, from.valid, &mut to.valid),
            ] {
                let Some(chunk) = chunk else { continue };
                *to = start + at as u64;
                at = (at + chunk.bytes).next_multiple_of(ALIGNMENT);
                // SAFETY: `chunk.bytes` bytes were read to `from`. The item's own range of its
                // piece's memory has room for all of its blocks, each plane on a boundary, and has
                // no reader before the run has ended.
                unsafe { stream.copy_within(*to, from, chunk.bytes)? };
            }
            blocks.push(Block::of_place(place, *bias, to));
        }
        // The passage counts these bytes as read, so they do not count as copied.
        *item.filled.lock().unwrap_or_else(PoisonError::into_inner) = ((0, at), blocks);
        Ok(())
    }

    /// Checks the findings for a batch, once it has arrived.
    fn check(&self, number: usize, copied: &Event) -> Result<()> {
        let Batch { plan, items, slot, .. } = &self.batches[number];
        if plan.blocks.is_empty() {
            return Ok(());
        }
        copied.wait()?;
        let Some((wrong, _, why)) = self.landings[slot.load(Relaxed)].wrong(plan) else { return Ok(()) };
        let holds = |item: &&Item| item.straight.as_ref().is_some_and(|(blocks, _)| blocks.contains(&wrong));
        let Some(item) = self.items[items.clone()].iter().find(holds) else { return Err(doubtful("a block", why)) };
        let piece = &self.pieces[item.piece];
        let first = item.straight.as_ref().map_or(0, |(blocks, _)| blocks.start);
        let block = item.blocks.start + wrong - first;
        // The host reports the error of the block.
        piece.source.load(piece.morsels.start + block, piece.column)?;
        let name = &piece.segment.column(piece.place).name;
        Err(doubtful(&format!("block {block} of column {name} of {}", piece.segment.file().name()), why))
    }

    /// Publishes each piece; `None` if it cannot be kept in its stored form.
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
        let Batch { by_host, plan, .. } = &self.batches[batch];
        // A batch of constants alone still needs one item.
        (plan.reads.len() + by_host.len()).max(1)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn readers(&self) -> usize {
        self.passage.readers()
    }

    fn fill(&self, batch: usize, number: usize, room: &Room) -> Result<()> {
        let Batch { by_host, plan, .. } = &self.batches[batch];
        if let Some(read) = plan.reads.get(number) {
            return self.read(room.slot(), read);
        }
        let Some(item) = by_host.get(number - plan.reads.len()).map(|number| &self.items[*number]) else {
            return Ok(());
        };
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
                    // SAFETY: a block's buffer has no writer any more, and the block is given to
                    // the room below. If there is an error before that, the batch is not sent.
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
        let Batch { items, by_host, plan, slot } = &self.batches[batch];
        if !plan.blocks.is_empty() {
            slot.store(filled.room.slot(), Relaxed);
            let landing = &self.landings[filled.room.slot()];
            // SAFETY: all items of the batch are there, its reads among them. The memory of the
            // reads is kept until the stream has finished, or leaked.
            unsafe {
                landing.verify(self.passage, plan, stream)?;
                self.items[items.clone()].iter().try_for_each(|item| self.place(item, landing, plan, stream))?;
            }
        }
        for item in by_host.iter().map(|number| &self.items[*number]) {
            let (from, bytes) = item.filled.lock().unwrap_or_else(PoisonError::into_inner).0;
            let to = self.pieces[item.piece].data.address() + item.at as u64;
            // SAFETY: the item's own range of its piece's memory, as its size is within the
            // maximum. It has no reader before the run has ended, and is freed after that, or
            // leaked.
            unsafe { filled.copy(to, from, bytes, stream)? };
            self.moved.fetch_add(bytes, Relaxed);
        }
        Ok(())
    }
}

/// Loads pieces. Returns each column, `None` if it cannot be kept in its stored form, and the
/// statistics.
///
/// # Errors
/// Returns the error of the sources or of the device. Then no piece is loaded.
pub fn load(
    stager: &Stager,
    passage: &Passage<'_>,
    shape: Shape,
    pieces: Vec<Piece<'_>>,
    cancelled: &AtomicBool,
) -> Result<(Vec<Option<Arc<Column>>>, Carried)> {
    let bytes = |piece: &Piece<'_>| bytes_of_segment(&piece.segment, piece.place) as usize;
    let batch_bytes = shape.batch_for(pieces.iter().map(bytes).sum());
    let mut loads = Loads::new(pieces, batch_bytes, passage)?;
    let slots = loads.make_landings(shape.slots)?;
    let shape = Shape { batch_bytes: loads.largest(), slots, ..shape };
    let run = stager.run(&loads, shape, cancelled, |number, copied| {
        loads.check(number, copied)?;
        Ok(std::ops::ControlFlow::Continue(()))
    });
    match run {
        Ok(()) => {
            let copied_bytes = loads.moved.load(Relaxed) as u64;
            std::mem::take(&mut loads.landings).into_iter().for_each(|landing| landing.settle(passage));
            let carried = Carried { brought: passage.told()?, ..passage.carried(copied_bytes) };
            Ok((loads.settle(), carried))
        }
        Err(Failed { error, in_flight }) => {
            if in_flight {
                loads.landings.into_iter().for_each(Landing::lose);
                loads.pieces.into_iter().for_each(|piece| lose(piece.data));
            }
            Err(error)
        }
    }
}
