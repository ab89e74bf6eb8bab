//! Late strings: strings of columns that are stored without a dictionary and have too many strings
//! to make one.
//!
//! ```text
//! register   the number of a row, counted over all blocks of its source: no byte is read
//! function   the strings of a vector's live rows
//! answer     the strings of the remaining rows, each block loaded once
//! ```
//! Two numbers may stand for equal strings, and the order of numbers means nothing. Therefore no
//! operator may use them as codes. An operator that compares strings reads them.

use std::sync::{Arc, OnceLock};

use arrow_array::builder::make_view;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StringViewArray};
use arrow_buffer::{Buffer, NullBuffer, ScalarBuffer};
use onehop_io::Ledger;
use onehop_segment::{BlockCache, BlockColumn, BlockList};

use crate::fresh::FreshMorsel;
use crate::{DictionaryFunction, Error, Interval, Result, VECTOR_ROWS};

/// Size of the buffers for copied strings. Arrow's views number and address buffers in 32 bits.
const BUFFER_BYTES: usize = 1 << 22;

/// The morsels of a source: blocks, then fresh rows. Also the number of the first row of each
/// morsel, and the number after the last row.
#[derive(Debug)]
pub(crate) struct NumberedBlocks {
    pub blocks: Arc<BlockList>,
    pub fresh: Vec<FreshMorsel>,
    /// Computed on first use: queries without late strings do not need it.
    firsts: OnceLock<Vec<u64>>,
}

impl NumberedBlocks {
    pub fn new(blocks: Arc<BlockList>, fresh: Vec<FreshMorsel>) -> Self {
        Self { blocks, fresh, firsts: OnceLock::new() }
    }

    fn firsts(&self) -> &[u64] {
        self.firsts.get_or_init(|| {
            let mut firsts = Vec::with_capacity(self.morsels() + 1);
            let mut next = 0;
            let of_blocks = self.blocks.iter().map(|(segment, block)| segment.block_rows(block));
            for rows in of_blocks.chain(self.fresh.iter().map(FreshMorsel::rows)) {
                firsts.push(next);
                next += rows as u64;
            }
            firsts.push(next);
            firsts
        })
    }

    /// Returns the number of a morsel's first row.
    pub fn first(&self, block: usize) -> u64 {
        self.firsts()[block]
    }

    /// Returns the interval of row numbers.
    pub fn numbers(&self) -> Interval {
        Interval::new(0, i128::from(self.firsts()[self.morsels()]) - 1)
    }

    fn morsels(&self) -> usize {
        self.blocks.len() + self.fresh.len()
    }

    /// Returns the morsel of a row.
    fn block_of(&self, row: u64) -> Option<usize> {
        let block = self.firsts().partition_point(|first| *first <= row).checked_sub(1)?;
        (block < self.morsels()).then_some(block)
    }

    /// Returns the fresh rows of a morsel; `None` if the morsel is a block.
    fn fresh(&self, morsel: usize) -> Option<&FreshMorsel> {
        self.fresh.get(morsel.checked_sub(self.blocks.len())?)
    }
}

/// The strings of one column, by row number.
#[derive(Debug)]
pub struct LateTexts {
    /// `c_name in customer`
    name: String,
    /// Index in the segments' schema.
    column: usize,
    rows: Arc<NumberedBlocks>,
    cache: Arc<BlockCache>,
    ledger: Arc<Ledger>,
}

/// Read position of one thread: the block that it has read last.
#[derive(Debug, Default)]
pub(crate) struct TextReader {
    block: Option<(usize, Arc<BlockColumn>)>,
    /// Rows of the block, counted from its first.
    rows: Vec<u16>,
    /// The row after the last whole vector.
    next: u64,
    /// Results of a function from a first row on. Some of them have not been requested yet.
    ahead: Option<(u64, ArrayRef)>,
}

/// Number of rows to which a function is applied at once while whole vectors are consecutive. Some
/// functions have an expensive setup, such as the regular expression of a LIKE.
const AHEAD_ROWS: usize = 8 * VECTOR_ROWS;

/// A row whose string is requested, and the position of the string in the result.
type Wanted = (u64, u32);

/// Strings in the order of the requests: views of buffers, `None` for NULL.
#[derive(Default)]
struct Copied {
    views: Vec<Option<u128>>,
    buffers: Vec<Vec<u8>>,
}

impl Copied {
    fn push(&mut self, text: Option<&str>) {
        let Some(text) = text else { return self.views.push(None) };
        if text.len() <= 12 {
            return self.views.push(Some(make_view(text.as_bytes(), 0, 0)));
        }
        if self.buffers.last().is_none_or(|last| last.len() + text.len() > BUFFER_BYTES) {
            self.buffers.push(Vec::new());
        }
        let number = self.buffers.len() as u32 - 1;
        if let Some(last) = self.buffers.last_mut() {
            self.views.push(Some(make_view(text.as_bytes(), number, last.len() as u32)));
            last.extend_from_slice(text.as_bytes());
        }
    }
}

impl LateTexts {
    pub(crate) fn new(
        name: String,
        column: usize,
        rows: &Arc<NumberedBlocks>,
        cache: &Arc<BlockCache>,
        ledger: &Arc<Ledger>,
    ) -> Self {
        Self { name, column, rows: Arc::clone(rows), cache: Arc::clone(cache), ledger: Arc::clone(ledger) }
    }

    /// Returns the name of the strings for errors.
    pub fn name(&self) -> String {
        format!("the texts of {}, which are stored without a dictionary", self.name)
    }

    /// Returns the interval of row numbers.
    pub(crate) fn numbers(&self) -> Interval {
        self.rows.numbers()
    }

    /// Returns true if it is the same column of the same rows.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        self.is_beside(other) && self.column == other.column
    }

    /// Returns true if a row has the same number in both.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rows, &other.rows)
    }

    /// Returns the strings of rows by their numbers, in any order; `None` and NULL rows give NULL.
    /// Each block is loaded once, by one of `threads` threads.
    ///
    /// # Errors
    /// Those of the storage, and of the stored data.
    pub fn texts(&self, rows: impl Iterator<Item = Option<u64>>, threads: usize) -> Result<StringViewArray> {
        let mut wanted: Vec<Wanted> = Vec::with_capacity(rows.size_hint().0);
        let mut places = 0usize;
        for row in rows {
            wanted.extend(row.map(|row| (row, places as u32)));
            places += 1;
        }
        if u32::try_from(places).is_err() {
            return Err(Error::Unsupported(format!("{places} of {}", self.name())));
        }
        if !wanted.is_sorted() {
            wanted.sort_unstable();
        }
        let shares = self.shares(&wanted, threads);
        let copied: Vec<Result<Copied>> = match shares.as_slice() {
            [share] => vec![self.copy(share, &mut TextReader::default())],
            shares => std::thread::scope(|scope| {
                let copy = |share| scope.spawn(move || self.copy(share, &mut TextReader::default()));
                let threads: Vec<_> = shares.iter().map(|share| copy(*share)).collect();
                let joined = threads.into_iter().map(|thread| thread.join());
                joined.map(|copied| copied.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
            }),
        };
        let mut pieces = Vec::with_capacity(shares.len());
        for (share, copied) in shares.into_iter().zip(copied) {
            pieces.push((share, copied?));
        }
        Ok(array_of(places, pieces))
    }

    /// Splits sorted rows into about equal parts, such that no two parts share a block.
    fn shares<'w>(&self, wanted: &'w [Wanted], threads: usize) -> Vec<&'w [Wanted]> {
        // With fewer rows, starting a thread takes longer than reading.
        const LEAST: usize = 4096;
        let most = wanted.len().div_ceil(threads.max(1)).max(LEAST);
        let mut shares = Vec::new();
        let mut rest = wanted;
        while rest.len() > most {
            let block = self.rows.block_of(rest[most].0).unwrap_or(0);
            let first = self.rows.first(block);
            let cut = rest.partition_point(|(row, _)| *row < first);
            let next = self.rows.firsts().get(block + 1).copied().unwrap_or(u64::MAX);
            let cut = if cut == 0 { rest.partition_point(|(row, _)| *row < next) } else { cut };
            let (share, others) = rest.split_at(cut.max(1));
            shares.push(share);
            rest = others;
        }
        shares.push(rest);
        shares
    }

    /// Copies the strings of sorted rows.
    fn copy(&self, wanted: &[Wanted], reader: &mut TextReader) -> Result<Copied> {
        let mut copied = Copied { views: Vec::with_capacity(wanted.len()), buffers: Vec::new() };
        let mut rest = wanted;
        while let Some((row, _)) = rest.first() {
            let block = self.rows.block_of(*row).ok_or_else(|| self.no_row(*row))?;
            let (first, next) = (self.rows.first(block), self.rows.first(block + 1));
            let (here, others) = rest.split_at(rest.partition_point(|(row, _)| *row < next));
            let TextReader { block: last, rows, .. } = reader;
            rows.clear();
            // A block has at most 65,536 rows.
            rows.extend(here.iter().map(|(row, _)| (row - first) as u16));
            match self.rows.fresh(block) {
                Some(fresh) => {
                    let texts = fresh.texts(self.column)?;
                    let text = |row: u16| texts.is_valid(row.into()).then(|| texts.value(row.into()));
                    rows.iter().for_each(|row| copied.push(text(*row)));
                }
                None => self.block(block, last)?.texts_at(rows, |text| copied.push(text))?,
            }
            rest = others;
        }
        Ok(copied)
    }

    /// Returns the strings of a vector's rows by their numbers: views of a block if the rows are
    /// the first rows of one of its vectors, copies otherwise.
    pub(crate) fn texts_of_vector(&self, rows: &[Option<u64>], reader: &mut TextReader) -> Result<StringViewArray> {
        if let Some(texts) = self.decoded(rows, reader)? {
            return Ok(texts);
        }
        let mut wanted: Vec<Wanted> = Vec::with_capacity(rows.len());
        wanted.extend((0..).zip(rows).filter_map(|(place, row)| Some(((*row)?, place))));
        if !wanted.is_sorted() {
            wanted.sort_unstable();
        }
        let copied = self.copy(&wanted, reader)?;
        Ok(array_of(rows.len(), vec![(&wanted, copied)]))
    }

    /// Returns the results of a function for the strings of a vector's rows. Each reader serves one
    /// function.
    pub(crate) fn apply(
        &self,
        function: &dyn DictionaryFunction,
        rows: &[Option<u64>],
        reader: &mut TextReader,
    ) -> Result<ArrayRef> {
        let Some(start) = run_start(rows) else { return function.apply(&self.texts_of_vector(rows, reader)?) };
        if let Some((first, results)) = &reader.ahead
            && let Some(at) = start.checked_sub(*first).and_then(|at| usize::try_from(at).ok())
            && at + rows.len() <= results.len()
        {
            return Ok(results.slice(at, rows.len()));
        }
        let most = if start == reader.next { AHEAD_ROWS } else { VECTOR_ROWS };
        reader.next = start + rows.len() as u64;
        let Some(texts) = self.vectors_from(start, rows.len(), most, reader)? else {
            return function.apply(&self.texts_of_vector(rows, reader)?);
        };
        let results = match function.apply(&texts) {
            // The failing rows may be ones that were not requested.
            Err(_) if texts.len() > rows.len() => return function.apply(&texts.slice(0, rows.len())),
            results => results?,
        };
        if results.len() != texts.len() {
            return Err(Error::Invalid(format!("{} gave {} results", function.name(), results.len())));
        }
        let first = results.slice(0, rows.len());
        reader.next = start + results.len() as u64;
        reader.ahead = Some((start, results));
        Ok(first)
    }

    /// Returns views of the stored strings if the rows are the first rows of a vector.
    fn decoded(&self, rows: &[Option<u64>], reader: &mut TextReader) -> Result<Option<StringViewArray>> {
        let Some(start) = run_start(rows) else { return Ok(None) };
        let vector = self.vectors_from(start, rows.len(), VECTOR_ROWS, reader)?;
        Ok(vector.map(|texts| texts.slice(0, rows.len())))
    }

    /// Returns whole vectors of a block from a row that starts a vector: at least `least` rows, and
    /// about `most` if the block has them.
    fn vectors_from(
        &self,
        start: u64,
        least: usize,
        most: usize,
        reader: &mut TextReader,
    ) -> Result<Option<StringViewArray>> {
        let Some(block) = self.rows.block_of(start) else { return Ok(None) };
        let at = (start - self.rows.first(block)) as usize;
        if let Some(fresh) = self.rows.fresh(block) {
            let texts = fresh.texts(self.column)?;
            let is_whole = at.is_multiple_of(VECTOR_ROWS) && at + least <= texts.len();
            return Ok(is_whole.then(|| texts.slice(at, most.min(texts.len() - at))));
        }
        let loaded = self.block(block, &mut reader.block)?;
        if !at.is_multiple_of(VECTOR_ROWS) || at + least > loaded.rows() {
            return Ok(None);
        }
        let vectors = loaded.decode(at..(at + most).min(loaded.rows()))?;
        Ok(vectors.as_string_view_opt().cloned())
    }

    fn block<'r>(&self, block: usize, last: &'r mut Option<(usize, Arc<BlockColumn>)>) -> Result<&'r BlockColumn> {
        if last.as_ref().is_none_or(|(held, _)| *held != block) {
            let (segment, number) = self.rows.blocks.at(block);
            *last = Some((block, self.cache.load(segment, self.column, number, &self.ledger)?));
        }
        match last {
            Some((_, loaded)) => Ok(loaded),
            None => Err(Error::Invalid("a block that is not there".into())),
        }
    }

    fn no_row(&self, row: u64) -> Error {
        Error::Invalid(format!("row {row} of {}", self.name()))
    }
}

/// Returns the first row if all rows are consecutive.
fn run_start(rows: &[Option<u64>]) -> Option<u64> {
    let start = (*rows.first()?)?;
    (start..).zip(rows).all(|(expected, row)| *row == Some(expected)).then_some(start)
}

/// Assembles the strings of all pieces, each at its position.
fn array_of(places: usize, pieces: Vec<(&[Wanted], Copied)>) -> StringViewArray {
    let mut views = vec![0u128; places];
    let mut valid = vec![false; places];
    let mut buffers: Vec<Buffer> = Vec::new();
    for (wanted, copied) in pieces {
        let before = (buffers.len() as u128) << 64;
        buffers.extend(copied.buffers.into_iter().map(Buffer::from_vec));
        for ((_, place), view) in wanted.iter().zip(copied.views) {
            let (place, Some(view)) = (*place as usize, view) else { continue };
            // The third of a long view's four words is the number of its buffer.
            views[place] = if view as u32 <= 12 { view } else { view + before };
            valid[place] = true;
        }
    }
    let nulls = Some(NullBuffer::from(valid)).filter(|nulls| nulls.null_count() > 0);
    // SAFETY: `Copied::push` made every long view of a string that it copied whole into a buffer.
    // No bytes have been removed from the buffers, and views were renumbered with their buffers.
    // All other views are empty.
    unsafe { StringViewArray::new_unchecked(ScalarBuffer::from(views), buffers, nulls) }
}
