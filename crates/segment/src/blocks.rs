//! Blocks of segments, in the order in which they are read.
//!
//! A table of some terabytes has some hundred thousand blocks, and planning a query iterates over
//! them several times. A block takes eight bytes here, its segment is held once, and questions
//! about whole segments are answered from the runs.

use std::ops::Range;
use std::sync::Arc;

use crate::Segment;

/// Blocks of segments, in an order.
#[derive(Clone, Debug, Default)]
pub struct BlockList {
    segments: Vec<Arc<Segment>>,
    blocks: Vec<Place>,
    runs: Vec<BlockRun>,
}

/// The location of a block: the number of its segment in the list, and its own number in the
/// segment.
#[derive(Clone, Copy, Debug)]
struct Place {
    segment: u32,
    block: u32,
}

/// Consecutive blocks of one segment in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// The number of the segment among those of the list.
    pub segment: usize,
    /// The places of the blocks in the list.
    pub places: Range<usize>,
    /// True if they are the first blocks of the segment, in order.
    is_prefix: bool,
}

impl BlockList {
    /// Appends a block.
    pub fn push(&mut self, segment: &Arc<Segment>, block: usize) {
        self.push_all(segment, std::iter::once(block));
    }

    /// Appends blocks of a segment.
    pub fn push_all(&mut self, segment: &Arc<Segment>, blocks: impl IntoIterator<Item = usize>) {
        let mut blocks = blocks.into_iter().peekable();
        if blocks.peek().is_none() {
            return;
        }
        let number = match self.runs.last() {
            Some(run) if Arc::ptr_eq(&self.segments[run.segment], segment) => run.segment,
            _ => self.number_of(segment),
        };
        let first = self.blocks.len();
        // A segment has fewer blocks than 2^32, and there are fewer segments.
        self.blocks.extend(blocks.map(|block| Place { segment: number as u32, block: block as u32 }));
        let (last, added) = (self.blocks.len(), &self.blocks[first..]);
        let is_next = |from: usize| added.iter().enumerate().all(|(at, place)| place.block as usize == from + at);
        match self.runs.last_mut().filter(|run| run.segment == number) {
            Some(run) => {
                run.is_prefix &= is_next(run.places.len());
                run.places.end = last;
            }
            None => {
                let is_prefix = is_next(0);
                self.runs.push(BlockRun { segment: number, places: first..last, is_prefix });
            }
        }
    }

    fn number_of(&mut self, segment: &Arc<Segment>) -> usize {
        let known = self.segments.iter().rposition(|other| Arc::ptr_eq(other, segment));
        known.unwrap_or_else(|| {
            self.segments.push(Arc::clone(segment));
            self.segments.len() - 1
        })
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the segments of the blocks, each once.
    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Returns the segment of a block, and the block's number in it.
    ///
    /// # Panics
    /// If `place` is out of range.
    pub fn at(&self, place: usize) -> (&Arc<Segment>, usize) {
        let Place { segment, block } = self.blocks[place];
        (&self.segments[segment as usize], block as usize)
    }

    /// Returns the same as [`BlockList::at`], or `None` if `place` is out of range.
    pub fn get(&self, place: usize) -> Option<(&Arc<Segment>, usize)> {
        (place < self.blocks.len()).then(|| self.at(place))
    }

    /// Returns the number of a block's segment among [`segments`](Self::segments).
    ///
    /// # Panics
    /// As [`BlockList::at`].
    pub fn segment_at(&self, place: usize) -> usize {
        self.blocks[place].segment as usize
    }

    /// Returns the blocks in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<Segment>, usize)> + Clone {
        self.blocks.iter().map(|place| (&self.segments[place.segment as usize], place.block as usize))
    }

    /// Returns the runs of consecutive blocks of one segment.
    pub fn runs(&self) -> &[BlockRun] {
        &self.runs
    }

    /// Returns true if a run is all of its segment, in stored order.
    pub fn is_whole(&self, run: &BlockRun) -> bool {
        run.is_prefix && run.places.len() == self.segments[run.segment].blocks()
    }

    /// Returns the number of rows of the blocks.
    pub fn rows(&self) -> u64 {
        let of_run = |run: &BlockRun| match self.is_whole(run) {
            true => self.segments[run.segment].rows(),
            false => self.of_run(run).map(|(segment, block)| segment.block_rows(block) as u64).sum(),
        };
        self.runs.iter().map(of_run).sum()
    }

    /// Returns the stored bytes of a column's blocks.
    pub fn stored_bytes(&self, column: usize) -> u64 {
        self.runs.iter().map(|run| self.stored_bytes_of(run, column)).sum()
    }

    /// Returns the stored bytes of a column's blocks in a run.
    pub fn stored_bytes_of(&self, run: &BlockRun, column: usize) -> u64 {
        match self.is_whole(run) {
            true => self.segments[run.segment].all_stored_bytes(column),
            false => self.of_run(run).map(|(segment, block)| segment.stored_bytes(column, block)).sum(),
        }
    }

    /// Returns the blocks of a run.
    pub fn of_run(&self, run: &BlockRun) -> impl Iterator<Item = (&Arc<Segment>, usize)> {
        let segment = &self.segments[run.segment];
        self.blocks[run.places.clone()].iter().map(move |place| (segment, place.block as usize))
    }
}

impl<'a> FromIterator<(&'a Arc<Segment>, usize)> for BlockList {
    fn from_iter<T: IntoIterator<Item = (&'a Arc<Segment>, usize)>>(blocks: T) -> Self {
        let mut list = Self::default();
        blocks.into_iter().for_each(|(segment, block)| list.push(segment, block));
        list
    }
}

impl FromIterator<(Arc<Segment>, usize)> for BlockList {
    fn from_iter<T: IntoIterator<Item = (Arc<Segment>, usize)>>(blocks: T) -> Self {
        let mut list = Self::default();
        blocks.into_iter().for_each(|(segment, block)| list.push(&segment, block));
        list
    }
}
