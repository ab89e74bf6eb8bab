//! Rows that a table has in memory, beside those of its segments: fresh rows, as record batches.
//!
//! A column is made plain when a pipeline asks for it first, and kept with the rows: the next query finds it there. Rows
//! never change; those that are deleted are marked beside them, as those of segments are, by runs of [`BLOCK_ROWS`].

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
    /// Those of its columns that somebody has asked for.
    columns: Vec<OnceLock<Arc<FreshColumn>>>,
}

/// A column as pipelines read it.
#[derive(Debug)]
pub(crate) struct FreshColumn {
    plain: Arc<Plain>,
    /// Codes of texts are those of a dictionary of its own.
    pub domain: Domain,
    /// What the integers of each run lie within.
    intervals: Vec<Interval>,
}

impl FreshChunk {
    /// The rows of a batch, of which texts are `Utf8View`.
    pub fn new(batch: RecordBatch) -> Self {
        let columns = (0..batch.num_columns()).map(|_| OnceLock::new()).collect();
        Self { batch, columns }
    }

    /// Its rows, deleted ones among them.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// How many rows of a column are NULL.
    pub(crate) fn null_count(&self, index: usize) -> usize {
        self.batch.columns().get(index).map_or(0, |column| column.null_count())
    }

    /// A column, made plain if nobody has before.
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

/// A chunk, and which of its rows are deleted: run and row of it, as block and row of a segment.
#[derive(Clone, Debug)]
pub struct FreshRun {
    /// The rows.
    pub chunk: Arc<FreshChunk>,
    /// Those that are gone.
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
    /// The morsels of chunks.
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

    /// Its first row in the chunk.
    pub fn first(&self) -> usize {
        self.run * BLOCK_ROWS
    }

    /// How many rows there are, deleted ones among them.
    pub fn rows(&self) -> usize {
        (self.chunk.rows() - self.first()).min(BLOCK_ROWS)
    }

    /// 1 for each of its rows that is not NULL in a column, 0 for others; empty if none is NULL.
    fn valid(&self, index: usize) -> Vec<u8> {
        let nulls = self.chunk.batch.columns().get(index).and_then(|column| column.nulls().cloned());
        let nulls = nulls.map(|nulls| nulls.slice(self.first(), self.rows())).filter(|nulls| nulls.null_count() > 0);
        nulls.map_or_else(Vec::new, |nulls| nulls.iter().map(u8::from).collect())
    }

    /// The texts of a column.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has none.
    pub fn texts(&self, index: usize) -> Result<StringViewArray> {
        let column = self.chunk.batch.columns().get(index);
        let texts = column.and_then(|column| column.as_string_view_opt());
        let texts = texts.ok_or_else(|| Error::Invalid(format!("texts of column {index} of fresh rows")))?;
        Ok(texts.slice(self.first(), self.rows()))
    }

    /// What the integers of a column lie within.
    pub fn interval(&self, column: &FreshColumn) -> Interval {
        column.intervals.get(self.run).copied().unwrap_or(Interval::ALL)
    }

    /// Its rows of a column.
    pub fn block(&self, column: &FreshColumn) -> Block {
        Block::of_plain(Arc::clone(&column.plain), self.first(), self.rows())
    }

    /// Its rows of a column of texts, whose codes stand for what `codes` says.
    pub fn block_of_texts(&self, column: &FreshColumn, codes: &[u32]) -> Block {
        let plain = column.plain.translated(self.first()..self.first() + self.rows(), codes);
        Block::of_plain(Arc::new(plain), 0, self.rows())
    }

    /// The numbers of its rows, from `first` on, for a column of texts that are read late.
    pub fn block_of_numbers(&self, first: u64, index: usize) -> Block {
        let numbers = (first..first + self.rows() as u64).map(|number| number as i64).collect();
        let plain = Plain { values: PlainValues::I64(numbers), valid: self.valid(index) };
        Block::of_plain(Arc::new(plain), 0, self.rows())
    }
}
