//! Fresh rows: rows that a table has in memory, beside those of its segments, as record batches.
//!
//! A column becomes plain when a pipeline first requests it. The plain column stays with the rows,
//! so the next query reuses it. Rows never change. Deleted rows are marked beside them by runs of
//! [`BLOCK_ROWS`], as those of segments are.

use std::sync::{Arc, OnceLock};

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, StringViewArray};
use onehop_segment::{BLOCK_ROWS, DeletedBlock, DeletedRows};

use crate::block::Block;
use crate::plain::{Plain, PlainValues};
use crate::{BatchSourceBuilder, Domain, Error, Interval, Result};

/// Rows of one record batch in the schema of a table.
#[derive(Debug)]
pub struct FreshChunk {
    batch: RecordBatch,
    /// Plain form of the columns that a pipeline has requested.
    columns: Vec<OnceLock<Arc<FreshColumn>>>,
}

/// A column in the form that pipelines read.
#[derive(Debug)]
pub(crate) struct FreshColumn {
    plain: Arc<Plain>,
    /// Domain of the column. Codes of strings refer to a dictionary of its own.
    pub domain: Domain,
    /// Bounds of the integers of each run.
    intervals: Vec<Interval>,
}

impl FreshChunk {
    /// Wraps the rows of a batch, whose strings are `Utf8View`.
    pub fn new(batch: RecordBatch) -> Self {
        let columns = (0..batch.num_columns()).map(|_| OnceLock::new()).collect();
        Self { batch, columns }
    }

    /// Returns its rows, deleted ones included.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// Returns the number of rows that are NULL in a column.
    pub(crate) fn null_count(&self, index: usize) -> usize {
        self.batch.columns().get(index).map_or(0, |column| column.null_count())
    }

    /// Returns a column, and makes it plain on the first call.
    pub(crate) fn column(&self, index: usize) -> Result<&Arc<FreshColumn>> {
        let missing = || Error::Invalid(format!("no column {index} of fresh rows"));
        let column = self.columns.get(index).ok_or_else(missing)?;
        if let Some(made) = column.get() {
            return Ok(made);
        }
        let made = FreshColumn::new(&self.batch, index)?;
        Ok(column.get_or_init(|| Arc::new(made)))
    }
}

impl FreshColumn {
    fn new(batch: &RecordBatch, index: usize) -> Result<Self> {
        let mut builder = BatchSourceBuilder::new("fresh rows", &[(index, batch.column(index).data_type().clone())])?;
        builder.push(batch)?;
        let (plain, domain) = builder.finish().into_column()?;
        let runs = (0..batch.num_rows()).step_by(BLOCK_ROWS);
        let intervals = runs.map(|first| plain.interval_of(first..(first + BLOCK_ROWS).min(batch.num_rows())));
        Ok(Self { intervals: intervals.collect(), plain, domain })
    }
}

/// A chunk and its deleted rows, by run and row of the chunk as by block and row of a segment.
#[derive(Clone, Debug)]
pub struct FreshRun {
    /// The rows.
    pub chunk: Arc<FreshChunk>,
    /// The deleted rows.
    pub deleted: Option<Arc<DeletedRows>>,
}

/// A morsel of fresh rows: a run of a chunk.
#[derive(Clone, Debug)]
pub(crate) struct FreshMorsel {
    pub chunk: Arc<FreshChunk>,
    /// The number of the chunk among those of the source.
    pub number: usize,
    run: usize,
    pub deleted: Option<Arc<DeletedBlock>>,
}

impl FreshMorsel {
    /// Returns the morsels of chunks.
    pub fn of(runs: &[FreshRun]) -> Vec<Self> {
        let of_chunk = |(number, FreshRun { chunk, deleted }): (usize, &FreshRun)| {
            let (chunk, deleted) = (Arc::clone(chunk), deleted.clone());
            (0..chunk.rows().div_ceil(BLOCK_ROWS)).map(move |run| Self {
                deleted: deleted.as_ref().and_then(|deleted| deleted.block(run).cloned()),
                chunk: Arc::clone(&chunk),
                number,
                run,
            })
        };
        runs.iter().enumerate().flat_map(of_chunk).collect()
    }

    /// Returns its first row in the chunk.
    pub fn first(&self) -> usize {
        self.run * BLOCK_ROWS
    }

    /// Returns the number of rows, deleted ones included.
    pub fn rows(&self) -> usize {
        (self.chunk.rows() - self.first()).min(BLOCK_ROWS)
    }

    /// Returns 1 for each of its rows that is not NULL in a column, 0 for others; empty if none is
    /// NULL.
    fn valid(&self, index: usize) -> Vec<u8> {
        let nulls = self.chunk.batch.columns().get(index).and_then(|column| column.nulls().cloned());
        let nulls = nulls.map(|nulls| nulls.slice(self.first(), self.rows())).filter(|nulls| nulls.null_count() > 0);
        nulls.map_or_else(Vec::new, |nulls| nulls.iter().map(u8::from).collect())
    }

    /// Returns the strings of a column.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the column has none.
    pub fn texts(&self, index: usize) -> Result<StringViewArray> {
        let column = self.chunk.batch.columns().get(index);
        let texts = column.and_then(|column| column.as_string_view_opt());
        let texts = texts.ok_or_else(|| Error::Invalid(format!("texts of column {index} of fresh rows")))?;
        Ok(texts.slice(self.first(), self.rows()))
    }

    /// Returns the bounds of the integers of a column in this morsel.
    pub fn interval(&self, column: &FreshColumn) -> Interval {
        column.intervals.get(self.run).copied().unwrap_or(Interval::ALL)
    }

    /// Returns its rows of a column.
    pub fn block(&self, column: &FreshColumn) -> Block {
        Block::of_plain(Arc::clone(&column.plain), self.first(), self.rows())
    }

    /// Returns its rows of a string column, with each code translated by `codes`.
    pub fn block_of_texts(&self, column: &FreshColumn, codes: &[u32]) -> Block {
        let plain = column.plain.translated(self.first()..self.first() + self.rows(), codes);
        Block::of_plain(Arc::new(plain), 0, self.rows())
    }

    /// Returns the numbers of its rows, from `first` on, for a column of late strings.
    pub fn block_of_numbers(&self, first: u64, index: usize) -> Block {
        let numbers = (first..first + self.rows() as u64).map(|number| number as i64).collect();
        let plain = Plain { values: PlainValues::I64(numbers), valid: self.valid(index) };
        Block::of_plain(Arc::new(plain), 0, self.rows())
    }
}
