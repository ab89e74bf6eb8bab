//! Rows of a table that are in no segment yet, and the addresses of rows for deletion.
//!
//! ```text
//! chunks   ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇  ▇▇▇ ▇▇▇  ▇ ▇ ▇ ▇ ▇ ▇ ▇      fewer than eight of a size
//! + ▇      ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇  ▇▇▇ ▇▇▇ ▇▇▇                 eight are merged
//! tail     .......                                       the latest rows, as in the store
//! ```
//! A version of a table's fresh rows never changes. The next version shares its common chunks, and
//! the columns that pipelines have built from them. Sizes are powers of eight. Until there are n
//! rows, every row is copied about log8 n times, and a version has up to seven chunks of each size.
//! Deleted rows are marked, and dropped when their chunk is merged with others.
//!
//! A few rows that arrive one by one form no chunk yet. They are the bytes that went to the store,
//! in a list that versions share, of which each has a prefix. A commit of one row therefore copies
//! that row, and none of the earlier ones. The first reader of a version builds a chunk of its
//! tail, once.

mod rows;
mod tail;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, UInt64Array};
use arrow::compute::{concat_batches, filter, filter_record_batch};
use arrow::datatypes::{DataType, SchemaRef};
use onehop_pipeline::{FreshChunk, FreshRun};
use onehop_segment::{BLOCK_ROWS, DeletedBlock, DeletedRows};

pub(crate) use self::rows::{FewRows, NewRows};
use self::tail::Tail;
use crate::{Error, ErrorKind, Result};

/// The hidden column of a scan with the addresses of rows: a [`RowAddress`] in 64 bits.
pub const ROW_ADDRESS: &str = "__row_address";

/// The address of a row of a table, in one of its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowAddress {
    /// A row in a segment.
    Segment {
        /// The place of the segment among those of the version.
        segment: usize,
        /// The block.
        block: usize,
        /// The row, counted from the block's first.
        row: u16,
    },
    /// A fresh row, by its id.
    Fresh(u64),
}

/// A flag in the address of a fresh row.
const FRESH: u64 = 1 << 63;
/// The upper bound of row ids, far enough from overflow.
pub(crate) const MOST_IDS: u64 = 1 << 62;

impl From<RowAddress> for u64 {
    fn from(address: RowAddress) -> Self {
        match address {
            RowAddress::Segment { segment, block, row } => {
                debug_assert!(segment < 1 << 23 && block < 1 << 24, "{address:?}");
                (segment as u64) << 40 | (block as u64) << 16 | u64::from(row)
            }
            RowAddress::Fresh(id) => FRESH | id,
        }
    }
}

impl From<u64> for RowAddress {
    fn from(address: u64) -> Self {
        if address & FRESH != 0 {
            return Self::Fresh(address & !FRESH);
        }
        let (segment, block) = ((address >> 40) as usize, (address >> 16 & 0xff_ffff) as usize);
        Self::Segment { segment, block, row: address as u16 }
    }
}

/// Rows that no segment holds yet, each with an id below 2^63. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct FreshRows {
    chunks: Arc<Chunks>,
    tail: Tail,
    /// The last id that was assigned.
    last_id: Option<u64>,
}

/// The rows before the tail.
#[derive(Clone, Debug, Default)]
struct Chunks {
    list: Vec<Chunk>,
    live_rows: u64,
    bytes: u64,
}

/// Rows that are stored together.
#[derive(Clone, Debug)]
struct Chunk {
    run: FreshRun,
    /// The id of each row, ascending over all chunks.
    ids: Arc<[u64]>,
    /// The memory size in bytes, including deleted rows.
    bytes: u64,
}

/// The number of chunks of one size that are merged.
const FAN_OUT: usize = 8;

/// Returns the size class of a chunk: the logarithm of its number of rows.
fn size_of(rows: usize) -> u32 {
    rows.max(1).ilog(FAN_OUT)
}

impl Chunk {
    fn new(batch: RecordBatch, ids: Arc<[u64]>) -> Self {
        let bytes = batch.get_array_memory_size() as u64;
        Self { run: FreshRun { chunk: Arc::new(FreshChunk::new(batch)), deleted: None }, ids, bytes }
    }

    fn live_rows(&self) -> usize {
        self.run.chunk.rows() - self.run.deleted.as_ref().map_or(0, |deleted| deleted.count() as usize)
    }

    /// Returns the rows that are not deleted, and their ids.
    fn live(&self) -> Result<(Vec<u64>, RecordBatch)> {
        let batch = self.run.chunk.batch();
        let Some(deleted) = &self.run.deleted else { return Ok((self.ids.to_vec(), batch.clone())) };
        let is_live: Vec<bool> =
            (0..batch.num_rows()).map(|row| !deleted.has(row / BLOCK_ROWS, row % BLOCK_ROWS)).collect();
        let ids = self.ids.iter().zip(&is_live).filter(|(_, is_live)| **is_live).map(|(id, _)| *id).collect();
        Ok((ids, filter_record_batch(batch, &BooleanArray::from(is_live))?))
    }
}

impl Chunks {
    fn of(list: Vec<Chunk>) -> Self {
        let live_rows = list.iter().map(|chunk| chunk.live_rows() as u64).sum();
        let bytes = list.iter().map(|chunk| chunk.bytes).sum();
        Self { list, live_rows, bytes }
    }

    /// Returns these chunks with another one at the end, merged with some before it.
    fn with(&self, last: &Chunk) -> Result<Self> {
        let mut list = self.list.clone();
        let mut rows = last.live_rows();
        let mut parts = vec![];
        loop {
            let kept = list.len() - to_be_added(&list, rows);
            if kept == list.len() {
                break;
            }
            for chunk in list.drain(kept..).rev() {
                let (ids, batch) = chunk.live()?;
                rows += ids.len();
                parts.push((ids, batch));
            }
        }
        if parts.is_empty() {
            list.push(last.clone());
            return Ok(Self::of(list));
        }
        parts.insert(0, last.live()?);
        let ids = parts.iter().rev().flat_map(|(ids, _)| ids).copied().collect();
        let batch = concat_batches(parts[0].1.schema_ref(), parts.iter().rev().map(|(_, batch)| batch))?;
        list.push(Chunk::new(compacted(batch)?, ids));
        Ok(Self::of(list))
    }

    /// Returns these chunks without the rows of these ids.
    fn without(&self, ids: impl IntoIterator<Item = u64>) -> Self {
        let mut gone: Vec<Vec<(usize, u16)>> = vec![Vec::new(); self.list.len()];
        for id in ids {
            let after = self.list.partition_point(|chunk| chunk.ids.first().is_some_and(|first| *first <= id));
            let Some(number) = after.checked_sub(1) else { continue };
            if let Ok(row) = self.list[number].ids.binary_search(&id) {
                gone[number].push((row / BLOCK_ROWS, (row % BLOCK_ROWS) as u16));
            }
        }
        let marked = |(chunk, gone): (&Chunk, Vec<(usize, u16)>)| {
            let mut chunk = chunk.clone();
            if !gone.is_empty() {
                let before = chunk.run.deleted.as_deref().cloned().unwrap_or_default();
                chunk.run.deleted = Some(Arc::new(before.with(gone)));
            }
            chunk
        };
        let chunks = self.list.iter().zip(gone).map(marked).filter(|chunk| chunk.live_rows() > 0);
        Self::of(chunks.collect())
    }
}

impl FreshRows {
    /// Creates fresh rows from stored ones, in the schema of their table, with their ids:
    /// ascending, with gaps.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if the ids do not ascend, or if their number differs from that of
    /// rows.
    pub(crate) fn stored(batch: RecordBatch, ids: Vec<u64>) -> Result<Self> {
        if ids.len() != batch.num_rows() || !ids.is_sorted_by(|a, b| a < b) {
            let message = format!("{} ids of {} fresh rows, which do not ascend", ids.len(), batch.num_rows());
            return Err(Error::new(ErrorKind::Internal, message));
        }
        let last_id = ids.last().copied();
        let list = if ids.is_empty() { Vec::new() } else { vec![Chunk::new(batch, ids.into())] };
        Ok(Self { chunks: Arc::new(Chunks::of(list)), tail: Tail::default(), last_id })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.chunks.live_rows + self.tail.rows() as u64
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    /// Returns their memory size in bytes.
    pub fn bytes(&self) -> u64 {
        self.chunks.bytes + self.tail.bytes() as u64
    }

    /// Returns the chunks that have rows, with the tail as the last one.
    fn all(&self) -> Result<impl Iterator<Item = &Chunk>> {
        Ok(self.chunks.list.iter().filter(|chunk| chunk.live_rows() > 0).chain(self.tail.chunk()?))
    }

    /// Returns the rows for pipelines.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`]; no data causes it.
    pub fn runs(&self) -> Result<Vec<FreshRun>> {
        Ok(self.all()?.map(|chunk| chunk.run.clone()).collect())
    }

    /// Returns the rows in batches, each with the ids of its rows, in order.
    ///
    /// # Errors
    /// Errors of Arrow.
    pub fn batches(&self) -> Result<Vec<(Vec<u64>, RecordBatch)>> {
        self.all()?.map(Chunk::live).collect()
    }

    /// Returns the rows in parts of at most `most_rows`, including deleted ones, for a scan.
    ///
    /// # Errors
    /// As [`runs`](Self::runs).
    pub(crate) fn slices(&self, most_rows: usize) -> Result<Vec<FreshSlice>> {
        let of_chunk = |chunk: &Chunk| {
            let (chunk, all) = (chunk.clone(), chunk.run.chunk.rows());
            (0..all).step_by(most_rows.max(1)).map(move |first| {
                let rows = first..first.saturating_add(most_rows).min(all);
                FreshSlice { chunk: chunk.clone(), rows }
            })
        };
        Ok(self.all()?.flat_map(of_chunk).collect())
    }

    /// Returns a version with more rows, in the schema of the table. Their ids must be above all
    /// assigned ones.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if they are not.
    pub(crate) fn with(&self, new: &NewRows, schema: &SchemaRef) -> Result<Self> {
        let Some(last_id) = new.ids().last() else { return Ok(self.clone()) };
        if self.last_id.is_some_and(|last| new.first_id <= last) {
            let message = format!("ids of fresh rows do not ascend: {} is not above {:?}", new.first_id, self.last_id);
            return Err(Error::new(ErrorKind::Internal, message));
        }
        let last_id = Some(last_id);
        if self.tail.has_room_for(new) {
            return Ok(Self { chunks: Arc::clone(&self.chunks), tail: self.tail.with(new, schema), last_id });
        }
        let (chunks, tail) = (self.chunks_with_tail()?, Tail::default());
        if tail.has_room_for(new) {
            return Ok(Self { chunks, tail: tail.with(new, schema), last_id });
        }
        let chunk = Chunk::new(new.rows.batch(schema)?, new.ids().collect());
        Ok(Self { chunks: Arc::new(chunks.with(&chunk)?), tail, last_id })
    }

    /// Returns all rows in chunks.
    fn chunks_with_tail(&self) -> Result<Arc<Chunks>> {
        match self.tail.chunk()? {
            Some(tail) => Ok(Arc::new(self.chunks.with(tail)?)),
            None => Ok(Arc::clone(&self.chunks)),
        }
    }

    /// Returns a version without the rows of these ids, in any order. Missing ids are ignored.
    ///
    /// # Errors
    /// Errors of Arrow.
    pub(crate) fn without(&self, ids: impl IntoIterator<Item = u64> + Clone) -> Result<Self> {
        let first_id = self.tail.first_id();
        let is_in_tail = |id| first_id.is_some_and(|first| first <= id);
        let (before, tail) = match ids.clone().into_iter().any(is_in_tail) {
            true => (self.chunks_with_tail()?, Tail::default()),
            false => (Arc::clone(&self.chunks), self.tail.clone()),
        };
        Ok(Self { chunks: Arc::new(before.without(ids)), tail, last_id: self.last_id })
    }
}

/// Returns the number of last chunks that a chunk of `rows` rows after them is merged with: the
/// smaller ones, and those of its size if there are enough.
fn to_be_added(chunks: &[Chunk], rows: usize) -> usize {
    let sizes = || chunks.iter().rev().map(|chunk| size_of(chunk.live_rows()));
    let smaller = sizes().take_while(|size| *size < size_of(rows)).count();
    let alike = sizes().skip(smaller).take_while(|size| *size == size_of(rows)).count();
    if alike + 1 < FAN_OUT { smaller } else { smaller + alike }
}

/// A part of the fresh rows.
#[derive(Clone, Debug)]
pub(crate) struct FreshSlice {
    chunk: Chunk,
    rows: Range<usize>,
}

impl FreshSlice {
    /// Returns columns of its rows that are not deleted, by their place in the table, then the
    /// addresses of the rows, and their number.
    ///
    /// # Errors
    /// Errors of Arrow.
    pub fn read(&self, columns: &[usize]) -> Result<(Vec<ArrayRef>, ArrayRef, usize)> {
        let (batch, rows) = (self.chunk.run.chunk.batch(), self.rows.len());
        let ids = self.chunk.ids[self.rows.clone()].iter().map(|id| u64::from(RowAddress::Fresh(*id)));
        let mut arrays: Vec<ArrayRef> =
            columns.iter().map(|column| batch.column(*column).slice(self.rows.start, rows)).collect();
        arrays.push(Arc::new(UInt64Array::from_iter_values(ids)));
        let is_live = self.chunk.run.deleted.as_ref().map(|deleted| {
            let is_live = |row: usize| !deleted.has(row / BLOCK_ROWS, row % BLOCK_ROWS);
            self.rows.clone().map(|row| Some(is_live(row))).collect::<BooleanArray>()
        });
        let rows = is_live.as_ref().map_or(rows, BooleanArray::true_count);
        let arrays = filtered(arrays, is_live.as_ref())?;
        let (addresses, columns) =
            arrays.split_last().ok_or_else(|| Error::new(ErrorKind::Internal, "fresh rows without addresses"))?;
        Ok((columns.to_vec(), Arc::clone(addresses), rows))
    }
}

/// Returns the rows of arrays that a filter accepts; all without a filter.
///
/// # Errors
/// Errors of Arrow.
pub(crate) fn filtered(arrays: Vec<ArrayRef>, is_live: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
    let Some(is_live) = is_live else { return Ok(arrays) };
    Ok(arrays.iter().map(|array| filter(array, is_live)).collect::<std::result::Result<_, _>>()?)
}

/// Returns the addresses of consecutive rows of a block.
pub(crate) fn addresses(segment: usize, block: usize, rows: Range<usize>) -> ArrayRef {
    // A block has at most 65,536 rows.
    let address = |row: usize| u64::from(RowAddress::Segment { segment, block, row: row as u16 });
    Arc::new(UInt64Array::from_iter_values(rows.map(address)))
}

/// Copies the strings of merged rows into few buffers. They otherwise stay in the buffers of each
/// original row.
fn compacted(batch: RecordBatch) -> Result<RecordBatch> {
    const MOST_BUFFERS: usize = 8;
    let column = |array: &ArrayRef| -> ArrayRef {
        match array.data_type() {
            DataType::Utf8View if array.as_string_view().data_buffers().len() > MOST_BUFFERS => {
                Arc::new(array.as_string_view().gc())
            }
            _ => Arc::clone(array),
        }
    };
    Ok(RecordBatch::try_new(batch.schema(), batch.columns().iter().map(column).collect())?)
}

/// Returns a filter for the rows of a block's range that are not deleted; `None` if no row is
/// deleted.
pub(crate) fn live_mask(deleted: Option<&DeletedBlock>, rows: Range<usize>) -> Option<BooleanArray> {
    let deleted = deleted?;
    let is_live: BooleanArray = rows.map(|row| Some(!deleted.has(row))).collect();
    (is_live.true_count() < is_live.len()).then_some(is_live)
}

/// Returns the number of deleted rows of a segment.
pub(crate) fn count_of(deleted: Option<&Arc<DeletedRows>>) -> u64 {
    deleted.map_or(0, |deleted| deleted.count())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::{Int64Array, StringViewArray};
    use arrow::datatypes::{Field, Schema};

    use super::*;

    fn batch(ids: &[u64]) -> RecordBatch {
        let fields = vec![Field::new("n", DataType::Int64, false), Field::new("t", DataType::Utf8View, false)];
        let numbers: ArrayRef = Arc::new(ids.iter().map(|id| *id as i64).collect::<Int64Array>());
        let texts = ids.iter().map(|id| format!("a text too long to be in a view: {id}"));
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values(texts));
        RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![numbers, texts]).unwrap()
    }

    fn new(ids: Range<u64>) -> NewRows {
        let rows = batch(&ids.clone().collect::<Vec<_>>());
        NewRows { first_id: ids.start, rows: FewRows::of_batch(rows).unwrap() }
    }

    fn with(rows: &FreshRows, ids: Range<u64>) -> FreshRows {
        rows.with(&new(ids), &batch(&[]).schema()).unwrap()
    }

    fn all(rows: &FreshRows) -> Vec<u64> {
        let mut all = Vec::new();
        for (ids, rows) in rows.batches().unwrap() {
            assert_eq!(rows, batch(&ids));
            all.extend(ids);
        }
        assert_eq!(all.len() as u64, rows.rows());
        all
    }

    #[test]
    fn addresses_are_numbers() {
        let addresses = [
            RowAddress::Segment { segment: 0, block: 0, row: 0 },
            RowAddress::Segment { segment: 5, block: 255, row: 65535 },
            RowAddress::Segment { segment: (1 << 23) - 1, block: (1 << 24) - 1, row: 1 },
            RowAddress::Fresh(0),
            RowAddress::Fresh((1 << 63) - 1),
        ];
        for address in addresses {
            assert_eq!(RowAddress::from(u64::from(address)), address);
        }
    }

    #[test]
    fn rows_come_one_by_one_and_versions_stay() {
        let mut versions = vec![FreshRows::default()];
        for id in 0..1000 {
            let last = versions.last().unwrap();
            versions.push(with(last, id..id + 1));
            if id % 13 == 0 {
                // Reads happen at once, or after further rows have arrived.
                assert!(all(versions.last().unwrap()).into_iter().eq(0..=id));
            }
        }
        for (rows, version) in versions.iter().enumerate() {
            assert!(all(version).into_iter().eq(0..rows as u64));
            assert!(version.chunks.list.len() <= 2 * (FAN_OUT - 1), "{} chunks", version.chunks.list.len());
        }
        let buffers = |chunk: &Chunk| chunk.run.chunk.batch().column(1).as_string_view().data_buffers().len();
        assert!(versions.last().unwrap().chunks.list.iter().all(|chunk| buffers(chunk) <= 8));
    }

    #[test]
    fn versions_that_go_on_from_the_same_one_know_nothing_of_each_other() {
        let first = with(&FreshRows::default(), 0..3);
        let (left, right) = (with(&first, 3..5), with(&first, 10..11));
        let (left, right) = (with(&left, 5..6), with(&right, 11..90));
        // The tail of one version became a chunk. The first version continues as before.
        let other = with(&first, 20..21);
        assert!(all(&first).into_iter().eq(0..3));
        assert!(all(&left).into_iter().eq(0..6));
        assert!(all(&right).into_iter().eq((0..3).chain(10..90)));
        assert!(all(&other).into_iter().eq((0..3).chain(20..21)));
    }

    #[test]
    fn large_rows_are_chunks_at_once() {
        let long: ArrayRef = Arc::new(StringViewArray::from(vec!["x".repeat(40 << 10)]));
        let fields = vec![Field::new("t", DataType::Utf8View, false)];
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![long]).unwrap();
        let mut rows = FreshRows::default();
        for first_id in 0..5 {
            let new = NewRows { first_id, rows: FewRows::of_batch(batch.clone()).unwrap() };
            rows = rows.with(&new, batch.schema_ref()).unwrap();
        }
        assert!(rows.tail.bytes() <= 64 << 10);
        assert_eq!(rows.batches().unwrap().iter().map(|(ids, _)| ids.len()).sum::<usize>(), 5);
        assert!(rows.bytes() > 5 * (40 << 10));
    }

    #[test]
    fn deleted_rows_are_gone_and_stay_gone() {
        let stored: Vec<u64> = (0..100).map(|id| 3 * id).collect();
        let before = FreshRows::stored(batch(&stored), stored.clone()).unwrap();
        let after = before.without([0, 1, 3, 297, 500, 3]).unwrap();
        let left: Vec<u64> = stored.iter().copied().filter(|id| ![0, 3, 297].contains(id)).collect();
        assert_eq!(all(&after), left);
        assert_eq!((before.rows(), after.rows()), (100, 97));
        let more = with(&after, 400..700);
        assert!(all(&more).into_iter().eq(left.iter().copied().chain(400..700)));
        assert_eq!(more.chunks.list.len(), 2);
        assert!(more.without(0..700).unwrap().is_empty());
        assert!(more.without(0..700).unwrap().runs().unwrap().is_empty());
        // Rows of the tail are deleted too, and stay in earlier versions.
        let tail = with(&after, 400..410);
        let without = tail.without([405, 297]).unwrap();
        assert!(all(&without).into_iter().eq(left.iter().copied().chain((400..410).filter(|id| *id != 405))));
        assert!(all(&with(&tail, 410..411)).into_iter().eq(left.into_iter().chain(400..411)));
        assert!(all(&with(&without.without(0..410).unwrap(), 410..411)).into_iter().eq(410..411));
    }

    #[test]
    fn ids_have_to_ascend() {
        let rows = with(&FreshRows::default(), 5..7);
        for first_id in [0, 5, 6] {
            let error = rows.with(&new(first_id..first_id + 1), &batch(&[]).schema()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal);
        }
        for ids in [vec![6], vec![8, 7], vec![7, 7]] {
            assert_eq!(FreshRows::stored(batch(&[7, 8]), ids).unwrap_err().kind(), ErrorKind::Internal);
        }
    }
}
