//! The blocks of a scan, whole and in order, read ahead: for callers that know their reads
//! beforehand.
//!
//! 1. Consecutive blocks of a segment form *groups* of bounded size, or of one larger block.
//! 2. The reads of a group are in file order. There a column's neighbours are consecutive, and are
//!    read at once, into one buffer: a read is long although a block of a column is short.
//! 3. Bytes in the page cache are left to the caller, which copies them.
//!
//! Invariants:
//! - Calls do not block: a caller that polls for a block that has not arrived is woken when it
//!   should poll again.
//! - Memory is bounded: bytes in flight and arrived bytes take at most half of the budget. A group
//!   under construction takes at most the other half, or is a single block.
//! - Reading ahead does not fail. After an error nothing is read ahead any more, and blocks are
//!   read on request. The caller gets the error of a block that it requested, and of no other.
//! - Dropping the stream starts no more reads, and waits for nothing.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use onehop_io::{
    Allowance, Cut, Extent, Filled, Ledger, LentBuf, LocalFile, Order, PAGE_BYTES, Reads, RequestedPath, StreamOptions,
    StreamReader,
};

use crate::queues::{Queues, REQUEST_BYTES, Wanted};
use crate::stored_bytes::StoredBytes;
use crate::{AheadFacts, BlockColumn, BlockList, Result};

/// The maximum size of a group, regardless of the budget. Its first block is returned when most of
/// it has arrived, and memory that a scan reuses is better small.
const GROUP_BYTES: u64 = 4 << 20;
/// The number of threads without a ring. There are other streams beside this one.
const THREADS: usize = 2;

/// Blocks of columns, in order.
#[derive(Debug)]
pub struct BlockStream {
    path: RequestedPath,
    blocks: BlockList,
    /// The columns, by their index in the segments.
    columns: Vec<usize>,
    ledger: Arc<Ledger>,
    budget_bytes: usize,
    /// The block that is returned next.
    next: usize,
    state: State,
    /// The arrived bytes of blocks that were not returned yet, by the block's place and the offset.
    come: HashMap<(usize, u64), StoredBytes>,
    facts: AheadFacts,
}

#[derive(Debug)]
enum State {
    /// No block was requested yet.
    New,
    Reading(Reading),
    /// Blocks are read on request.
    Alone,
}

#[derive(Debug)]
struct Reading {
    reader: StreamReader<LentBuf>,
    /// The block's place of each extent.
    block_of: Vec<usize>,
    extents: Vec<Extent>,
    /// The number of extents of each block that have not arrived.
    missing: Vec<usize>,
    /// The last extent of each block.
    last_of: Vec<usize>,
}

impl BlockStream {
    /// Creates a stream of these columns of blocks. Reads up to `budget_bytes` ahead; with 0, none.
    pub fn new(
        path: RequestedPath,
        blocks: BlockList,
        columns: Vec<usize>,
        ledger: &Arc<Ledger>,
        budget_bytes: usize,
    ) -> Self {
        let (ledger, facts) = (Arc::clone(ledger), AheadFacts::default());
        Self { path, blocks, columns, ledger, budget_bytes, next: 0, state: State::New, come: HashMap::new(), facts }
    }

    /// Returns the columns of the next block, their checksums verified, or `None` after the last.
    ///
    /// # Errors
    /// As [`Segment::load`]. Also fails if a path that was requested by name is unavailable.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Vec<BlockColumn>>>> {
        if self.next == self.blocks.len() {
            return Poll::Ready(Ok(None));
        }
        if matches!(self.state, State::New) {
            self.state = match self.start()? {
                Some(reading) => State::Reading(reading),
                None => State::Alone,
            };
        }
        while let State::Reading(reading) = &mut self.state
            && reading.missing[self.next] > 0
        {
            match ready!(reading.reader.poll_for(context, reading.last_of[self.next])) {
                Ok(Some(filled)) => reading.take(filled, &mut self.come),
                // The reader ends when nothing is missing any more.
                Ok(None) | Err(_) => self.stop(),
            }
        }
        let columns = self.load(self.next)?;
        self.next += 1;
        Poll::Ready(Ok(Some(columns)))
    }

    /// Returns the statistics so far.
    pub fn facts(&self) -> &AheadFacts {
        &self.facts
    }

    fn load(&mut self, at: usize) -> Result<Vec<BlockColumn>> {
        let (segment, block) = self.blocks.at(at);
        let (come, facts) = (&mut self.come, &mut self.facts);
        let load = |column: &usize| {
            segment.load_by(self.path, *column, block, &self.ledger, |offset, bytes| {
                let found = come.remove(&(at, offset));
                let counter = if found.is_some() { &mut facts.ahead_bytes } else { &mut facts.late_bytes };
                *counter += bytes as u64;
                found
            })
        };
        self.columns.iter().map(load).collect()
    }

    /// Stops reading ahead.
    fn stop(&mut self) {
        if let State::Reading(reading) = std::mem::replace(&mut self.state, State::Alone) {
            reading.reader.abandon();
        }
    }

    fn stored_bytes(&self, at: usize) -> u64 {
        let (segment, block) = self.blocks.at(at);
        self.columns.iter().map(|column| segment.stored_bytes(*column, block)).sum()
    }

    /// Starts reading ahead, if it is worthwhile.
    fn start(&mut self) -> Result<Option<Reading>> {
        let left: u64 = (0..self.blocks.len()).map(|at| self.stored_bytes(at)).sum();
        if left == 0 || self.budget_bytes == 0 {
            return Ok(None);
        }
        let wanted = Wanted { path: self.path, left, is_kept: false, rings: 1, threads: THREADS, ledger: &self.ledger };
        let Some(Queues { queues, way, cached, names }) = Queues::of(self.blocks.segments(), &wanted)? else {
            return Ok(None);
        };
        let (mut block_of, mut extents) = (Vec::new(), Vec::new());
        for group in self.groups() {
            for (at, extent) in self.extents(group) {
                block_of.push(at);
                extents.push(extent);
            }
        }
        if are_in_page_cache(&extents, &cached) {
            return Ok(None);
        }
        let mut missing = vec![0; self.blocks.len()];
        let mut last_of = vec![0; self.blocks.len()];
        for (extent, at) in block_of.iter().enumerate() {
            missing[*at] += 1;
            last_of[*at] = extent;
        }
        let files = (0..names.len()).collect();
        let reads = Reads { files, queues, supply: Box::new(Allowance::new(self.budget_bytes / 2)) };
        let options = StreamOptions {
            request_bytes: REQUEST_BYTES.min(self.budget_bytes / 4),
            cut: Cut::BetweenExtents,
            // Chunks start on pages: padding follows the end of one.
            gap_bytes: Some(PAGE_BYTES - 1),
            order: Order::Given,
        };
        let reader = StreamReader::start(names, &extents, options, vec![reads]);
        self.facts.way = Some(way);
        Ok(Some(Reading { reader, block_of, extents, missing, last_of }))
    }

    /// Returns the places of blocks that are read together.
    fn groups(&self) -> Vec<Range<usize>> {
        let most = GROUP_BYTES.min(self.budget_bytes as u64 / 2);
        let (mut groups, mut bytes): (Vec<Range<usize>>, u64) = (Vec::new(), 0);
        for at in 0..self.blocks.len() {
            let more = self.stored_bytes(at);
            match groups.last_mut() {
                Some(group) if bytes + more <= most && self.blocks.segment_at(at - 1) == self.blocks.segment_at(at) => {
                    group.end += 1;
                    bytes += more;
                }
                _ => {
                    groups.push(at..at + 1);
                    bytes = more;
                }
            }
        }
        groups
    }

    /// Returns the extents of a group, in the order of the file, which has the number of its
    /// segment.
    fn extents(&self, group: Range<usize>) -> Vec<(usize, Extent)> {
        let of_block = |at: usize| {
            let (segment, block) = self.blocks.at(at);
            let chunks = self.columns.iter().flat_map(move |column| segment.chunks(*column, block));
            let file = self.blocks.segment_at(at);
            chunks.map(move |(offset, bytes)| (at, Extent { file, offset, bytes }))
        };
        let mut extents: Vec<(usize, Extent)> = group.flat_map(of_block).collect();
        extents.sort_by_key(|(_, extent)| extent.offset);
        extents
    }
}

impl Drop for BlockStream {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Reading {
    /// Takes a filled buffer, which the caller accounts for from now on.
    fn take(&mut self, filled: Filled<LentBuf>, come: &mut HashMap<(usize, u64), StoredBytes>) {
        let buffer = Arc::new(filled.buffer.into_inner());
        for piece in filled.pieces {
            let (at, extent) = (self.block_of[piece.extent], self.extents[piece.extent]);
            if let Some(bytes) = StoredBytes::part(&buffer, piece.range) {
                come.insert((at, extent.offset), bytes);
            }
            self.missing[at] = self.missing[at].saturating_sub(1);
        }
    }
}

/// Returns true if nothing has to be read, as far as known: a copy is faster without threads.
fn are_in_page_cache(extents: &[Extent], files: &[Arc<LocalFile>]) -> bool {
    let mut runs: Vec<Extent> = Vec::new();
    for extent in extents {
        let end = |run: &Extent| run.offset + (run.bytes as u64).next_multiple_of(PAGE_BYTES as u64);
        match runs.last_mut() {
            Some(run) if run.file == extent.file && end(run) == extent.offset => {
                run.bytes = (extent.offset - run.offset) as usize + extent.bytes;
            }
            _ => runs.push(*extent),
        }
    }
    let is_cached = |run: &Extent| {
        let cached = files.get(run.file).and_then(|file| file.page_cache_has(run.offset, run.bytes));
        cached.is_some_and(|cached| cached >= run.bytes as u64)
    };
    runs.iter().all(is_cached)
}
