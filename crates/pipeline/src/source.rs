//! Sources of rows: morsels of columns, encoded as they are stored and decoded a vector at a time.
//!
//! A [`Source`] knows the domains of its columns before it reads anything. It loads a column of a
//! morsel only on request: a column that no surviving row needs is never read.

use std::fmt;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StringViewArray};
use onehop_io::Ledger;
use onehop_segment::{
    BlockCache, BlockColumn, BlockList, BlockPlace, BlockRun, BlockScan, CodeTable, ColumnType, DeletedBlock,
    EncodingCode, Segment, Zone,
};

use crate::block::{Block, Decoding};
use crate::fresh::{FreshColumn, FreshMorsel};
use crate::late::NumberedBlocks;
use crate::{Dictionary, Domain, Error, FreshRun, Interval, LateTexts, Result};

/// A table as a pipeline reads it. All methods may be called from many threads.
pub trait Source: fmt::Debug + Send + Sync {
    /// Returns the table's name.
    fn name(&self) -> &str;

    /// Returns the domain of each column.
    fn columns(&self) -> &[Domain];

    /// Returns the number of morsels: runs of rows that are scheduled as one.
    fn morsels(&self) -> usize;

    /// Returns the rows of a morsel, deleted ones included: 65,536 at most, since pipelines count
    /// them in 16 bits.
    fn rows(&self, morsel: usize) -> usize;

    /// Returns the deleted rows of a morsel, which must not be visible to any query.
    fn deleted(&self, _morsel: usize) -> Option<&DeletedBlock> {
        None
    }

    /// Returns the number of rows of a morsel that are not deleted.
    fn live_rows(&self, morsel: usize) -> usize {
        self.rows(morsel).saturating_sub(self.deleted(morsel).map_or(0, DeletedBlock::count))
    }

    /// Returns true if block counts include the morsel as a block. Fresh rows of a table are not a
    /// block.
    fn is_block(&self, _morsel: usize) -> bool {
        true
    }

    /// Returns the rows of all morsels, deleted ones included.
    fn all_rows(&self) -> u64 {
        (0..self.morsels()).map(|morsel| self.rows(morsel) as u64).sum()
    }

    /// Returns the rows of all morsels that are not deleted.
    fn all_live_rows(&self) -> u64 {
        match self.is_settled() {
            true => self.all_rows(),
            false => (0..self.morsels()).map(|morsel| self.live_rows(morsel) as u64).sum(),
        }
    }

    /// Returns true if it consists of blocks as they were written, without deleted or other rows.
    fn is_settled(&self) -> bool {
        (0..self.morsels()).all(|morsel| self.deleted(morsel).is_none() && self.is_block(morsel))
    }

    /// Returns the same rows with their I/O counted in another ledger, at minimal cost. `None` if
    /// some part of the source counts in the ledger of its creator.
    fn for_ledger(&self, _ledger: &Arc<Ledger>) -> Option<Arc<dyn Source>> {
        None
    }

    /// Returns the interval of an integer or string column in a morsel, if it is known before the
    /// morsel is read.
    fn interval(&self, morsel: usize, column: usize) -> Option<Interval>;

    /// Removes the morsels in which no value of a column lies within `wanted`, as far as that is
    /// known before they are read.
    fn retain_within(&self, column: usize, wanted: Interval, morsels: &mut Vec<u32>) {
        let may_have = |held: Interval| !held.intersection(wanted).is_empty();
        morsels.retain(|morsel| self.interval(*morsel as usize, column).is_none_or(may_have));
    }

    /// Returns true if rows of a column may be NULL in a morsel.
    fn may_have_nulls(&self, _morsel: usize, column: usize) -> bool {
        self.columns()[column].nullable
    }

    /// Returns true if an integer column is stored as codes, which stand for few values.
    fn is_coded(&self, _column: usize) -> bool {
        false
    }

    /// Returns the table of the codes of a column in a morsel, if it is known before the morsel is
    /// read.
    fn code_table(&self, _morsel: usize, _column: usize) -> Option<&CodeTable> {
        None
    }

    /// Returns the storage location of a column of a morsel, for readers that read and verify it
    /// without the host's memory. `None` if it need not be read from storage, or if its meaning is
    /// unknown before it is read.
    fn stored_place(&self, _morsel: usize, _column: usize) -> Option<StoredPlace<'_>> {
        None
    }

    /// Loads a column of a morsel.
    ///
    /// # Errors
    /// Those of the storage, and of the stored data.
    fn load(&self, morsel: usize, column: usize) -> Result<Block>;

    /// Starts a scan for a reader that takes morsels in this order. The scan reads up to
    /// `horizon_bytes` ahead, if there is anything to be read. `sure` are columns that are
    /// requested of every morsel.
    fn scan(&self, _order: &[usize], _sure: &[usize], _horizon_bytes: usize) -> Option<BlockScan> {
        None
    }

    /// Loads as [`Source::load`], through a scan that has the morsel at `at` in its order.
    ///
    /// # Errors
    /// As [`Source::load`].
    fn load_of(&self, _scan: &BlockScan, _at: usize, morsel: usize, column: usize) -> Result<Block> {
        self.load(morsel, column)
    }

    /// Records that a morsel has been read, for progress and ledgers.
    fn finished(&self, _morsel: usize) {}

    /// Records that many morsels have been read.
    fn all_finished(&self, morsels: &mut dyn Iterator<Item = usize>) {
        morsels.for_each(|morsel| self.finished(morsel));
    }
}

/// A column of a morsel on storage.
#[derive(Clone, Copy, Debug)]
pub struct StoredPlace<'a> {
    /// Its segment.
    pub segment: &'a Arc<Segment>,
    /// Its location in the segment, with the checks for its verification.
    pub place: BlockPlace,
    /// Meaning of the integers that are stored there.
    pub meaning: StoredMeaning<'a>,
    /// True if the host would keep it in memory after a read, in the block cache or in the page
    /// cache. A reader that bypasses the host then causes the next reader to read storage again.
    pub is_kept: bool,
}

/// Meaning of stored integers.
#[derive(Clone, Copy, Debug)]
pub enum StoredMeaning<'a> {
    /// The integers themselves, plus this bias.
    Biased(u64),
    /// The entries of a table at these positions.
    Codes(&'a CodeTable),
}

/// Differences between the rows of a table and those of its segments.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Deleted rows of each block that is read; none for blocks beyond its length.
    pub deleted: Vec<Option<Arc<DeletedBlock>>>,
    /// Rows that no segment holds yet.
    pub fresh: Vec<FreshRun>,
}

/// Blocks of segments, followed by fresh rows as the last morsels.
#[derive(Clone, Debug)]
pub struct SegmentSource {
    name: Arc<str>,
    rows: Arc<NumberedBlocks>,
    /// Deleted rows by block, up to the last block that has any.
    deleted: Arc<[Option<Arc<DeletedBlock>>]>,
    most_texts: u64,
    columns: Arc<[SegmentColumn]>,
    domains: Arc<[Domain]>,
    cache: Arc<BlockCache>,
    ledger: Arc<Ledger>,
}

#[derive(Debug)]
struct SegmentColumn {
    /// Index in the segments' schema.
    index: usize,
    column_type: ColumnType,
    /// True if its values are row numbers of late strings.
    is_late: bool,
    /// Meaning of the codes of each segment: codes of the source's dictionary, or integers.
    codes: Vec<Option<CodeTable>>,
    /// The column's part in each chunk of fresh rows.
    fresh: Vec<FreshPart>,
}

impl SegmentColumn {
    /// Returns true if its values are integers, whose bounds are known.
    fn is_integer(&self) -> bool {
        use ColumnType::{Boolean, Float32, Float64, Varchar};
        !matches!(self.column_type, Varchar | Float32 | Float64 | Boolean)
    }
}

/// A column of a chunk of fresh rows.
#[derive(Debug)]
struct FreshPart {
    column: Arc<FreshColumn>,
    /// Its codes in the source's dictionary, if that is not its own.
    codes: Option<Vec<u32>>,
}

/// A dictionary of all strings, and the codes in it of each segment and of each chunk of fresh
/// rows.
type Merged = (Arc<Dictionary>, Vec<Option<CodeTable>>, Vec<Option<Vec<u32>>>);

impl SegmentSource {
    /// Creates a source of the given blocks of segments that have one schema, with some of its
    /// columns. Strings that are stored without a dictionary get one in segments of at most
    /// `most_texts` rows, and are read late in larger segments.
    ///
    /// # Errors
    /// Those of the storage; [`Error::Unsupported`] for a column that pipelines cannot read.
    pub fn new(
        name: &str,
        blocks: Arc<BlockList>,
        columns: &[(usize, ColumnType, bool)],
        cache: Arc<BlockCache>,
        ledger: Arc<Ledger>,
        most_texts: u64,
    ) -> Result<Self> {
        Self::with_changes(name, blocks, columns, cache, ledger, most_texts, Changes::default())
    }

    /// Creates a source as [`SegmentSource::new`] does, of rows that have changed since the
    /// segments were written.
    ///
    /// # Errors
    /// As [`SegmentSource::new`].
    pub fn with_changes(
        name: &str,
        blocks: Arc<BlockList>,
        columns: &[(usize, ColumnType, bool)],
        cache: Arc<BlockCache>,
        ledger: Arc<Ledger>,
        most_texts: u64,
        Changes { deleted, fresh }: Changes,
    ) -> Result<Self> {
        let rows = Arc::new(NumberedBlocks::new(Arc::clone(&blocks), FreshMorsel::of(&fresh)));
        let mut source = Self {
            name: name.into(),
            rows,
            deleted: deleted.into(),
            most_texts,
            columns: Arc::default(),
            domains: Arc::default(),
            cache,
            ledger,
        };
        let of = |(index, column_type, nullable): &(usize, ColumnType, bool)| {
            source.column(blocks.segments(), &fresh, *index, column_type, *nullable)
        };
        let (columns, domains): (Vec<_>, Vec<_>) =
            columns.iter().map(of).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        (source.columns, source.domains) = (columns.into(), domains.into());
        Ok(source)
    }

    fn column(
        &self,
        segments: &[Arc<Segment>],
        fresh: &[FreshRun],
        index: usize,
        column_type: &ColumnType,
        nullable: bool,
    ) -> Result<(SegmentColumn, Domain)> {
        let part = |run: &FreshRun| Ok(FreshPart { column: Arc::clone(run.chunk.column(index)?), codes: None });
        let is_late = column_type.is_text() && segments.iter().any(|segment| self.has_many_texts(segment, index));
        // Late strings are read directly from the batches.
        let parts = if is_late { &[] } else { fresh };
        let codes = vec![None; segments.len()];
        let mut column = SegmentColumn {
            index,
            column_type: column_type.clone(),
            is_late,
            codes,
            fresh: parts.iter().map(part).collect::<Result<_>>()?,
        };
        let may_be_null = || {
            self.zones(index).any(|zone| zone.null_count > 0) || fresh.iter().any(|run| run.chunk.null_count(index) > 0)
        };
        let nullable = nullable && may_be_null();
        let domain = match column_type {
            ColumnType::Varchar if is_late => {
                let name = format!("{} in {}", segments[0].column(index).name, self.name);
                let texts = LateTexts::new(name, index, &self.rows, &self.cache, &self.ledger);
                Domain::late_text(Arc::new(texts), nullable)
            }
            ColumnType::Varchar => {
                let (dictionary, codes, of_fresh) = self.dictionary(segments, index, &column.fresh)?;
                column.codes = codes;
                column.fresh.iter_mut().zip(of_fresh).for_each(|(part, codes)| part.codes = codes);
                Domain::text(dictionary, nullable)
            }
            ColumnType::Float32 | ColumnType::Float64 => Domain::double(nullable),
            ColumnType::Boolean => Domain::bool(nullable),
            _ => {
                for (segment, table) in segments.iter().zip(&mut column.codes) {
                    *table = self.integers(segment, index, bias(column_type))?;
                }
                let zones = self.zones(index).map(|zone| interval(zone.keys(), column_type));
                let all = zones.chain(column.fresh.iter().map(|part| part.column.domain.interval));
                Domain::int(all.fold(Interval::EMPTY, Interval::union), nullable)
            }
        };
        Ok((column, domain))
    }

    /// Returns the zones of a column: one per segment that is read whole, which has hundreds of
    /// blocks, and one per block of the others.
    fn zones(&self, index: usize) -> impl Iterator<Item = Zone> {
        let blocks = &*self.rows.blocks;
        let is_whole = |run: &&BlockRun| blocks.is_whole(run);
        let whole =
            blocks.runs().iter().filter(is_whole).map(move |run| blocks.segments()[run.segment].column(index).zone);
        let parts = blocks.runs().iter().filter(move |run| !is_whole(run)).flat_map(|run| blocks.of_run(run));
        whole.chain(parts.map(move |(segment, block)| segment.zone(index, block)))
    }

    /// Returns the values of a segment's codes, if it stores integers as codes.
    fn integers(&self, segment: &Segment, index: usize, bias: i128) -> Result<Option<CodeTable>> {
        if bias == 0 {
            // As they are stored: the table is made once for all queries.
            return Ok(segment.code_table(index, &self.ledger)?);
        }
        let Some(keys) = segment.dictionary_keys(index, &self.ledger)? else { return Ok(None) };
        let integers = keys.iter().map(|key| i64::try_from(i128::from(*key) + bias));
        match integers.collect::<std::result::Result<Vec<i64>, _>>() {
            Ok(integers) => Ok(Some(CodeTable::new(&integers))),
            Err(_) => Err(Error::Unsupported(format!(
                "column {} of {}, whose integers need more than 64 bits",
                segment.column(index).name,
                self.name
            ))),
        }
    }

    fn dictionary(&self, segments: &[Arc<Segment>], index: usize, fresh: &[FreshPart]) -> Result<Merged> {
        let mut parts = Vec::with_capacity(segments.len() + fresh.len());
        for segment in segments {
            parts.push(Arc::new(match segment.dictionary_texts(index, &self.ledger)? {
                Some(texts) => Dictionary::from_sorted(texts),
                None => self.texts_of(segment, index)?,
            }));
        }
        parts.extend(fresh.iter().filter_map(|part| part.column.domain.dictionary.clone()));
        if parts.len() == 1 {
            return Ok((parts.remove(0), vec![None; segments.len()], vec![None; fresh.len()]));
        }
        // Most fresh rows have strings that segments also have. Then no sort is needed.
        let known = parts.iter().take(segments.len()).enumerate().max_by_key(|(_, part)| part.len());
        if let Some((whole, dictionary)) = known.filter(|_| !fresh.is_empty())
            && let Some(codes) = parts.iter().map(|part| part.codes_in(dictionary)).collect::<Option<Vec<_>>>()
        {
            let codes = codes.into_iter().enumerate().map(|(part, codes)| (part != whole).then_some(codes));
            return Ok(of_parts(Arc::clone(dictionary), codes, segments.len()));
        }
        let (merged, codes) = Dictionary::merge(&parts.iter().map(|part| &**part).collect::<Vec<_>>());
        Ok(of_parts(Arc::new(merged), codes.into_iter().map(Some), segments.len()))
    }
}

/// Combines a dictionary with the codes of its parts: those of the first `segments` segments, then
/// those of fresh rows.
fn of_parts(dictionary: Arc<Dictionary>, codes: impl Iterator<Item = Option<Vec<u32>>>, segments: usize) -> Merged {
    let table = |codes: Vec<u32>| CodeTable::new(&codes.into_iter().map(i64::from).collect::<Vec<_>>());
    let mut codes = codes;
    let of_segments = codes.by_ref().take(segments).map(|codes| codes.map(table)).collect();
    (dictionary, of_segments, codes.collect())
}

fn stored_as_integers(column_type: &ColumnType, block: &BlockColumn) -> bool {
    !matches!(column_type, ColumnType::Float32 | ColumnType::Float64) && block.stored().is_some()
}

fn texts(array: &ArrayRef) -> Result<&StringViewArray> {
    let texts = array.as_string_view_opt();
    texts.ok_or_else(|| Error::Invalid(format!("texts of a column of {}", array.data_type())))
}

/// Returns the bias that is added to a key to get the integer.
fn bias(column_type: &ColumnType) -> i128 {
    if *column_type == ColumnType::UInt64 { 1 << 63 } else { 0 }
}

fn interval(keys: Option<(i128, i128)>, column_type: &ColumnType) -> Interval {
    let bias = bias(column_type);
    keys.map_or(Interval::EMPTY, |(min, max)| Interval::new(min + bias, max + bias))
}

impl SegmentSource {
    /// Returns true if a segment stores strings without a dictionary, and too many of them to make
    /// one.
    fn has_many_texts(&self, segment: &Segment, index: usize) -> bool {
        let info = segment.column(index);
        info.encoding != EncodingCode::Dictionary && info.zone.has_values() && segment.rows() > self.most_texts
    }

    /// Makes a dictionary of strings that are stored without one, as those of small tables are.
    fn texts_of(&self, segment: &Arc<Segment>, index: usize) -> Result<Dictionary> {
        let mut arrays = Vec::new();
        if segment.column(index).zone.has_values() {
            for block in 0..segment.blocks() {
                let column = self.cache.load(segment, index, block, &self.ledger)?;
                arrays.push(column.decode(0..column.rows())?);
            }
        }
        let mut all: Vec<&str> = Vec::new();
        for array in &arrays {
            all.extend(texts(array)?.iter().flatten());
        }
        Ok(Dictionary::from_unsorted(&StringViewArray::from_iter_values(all)).0)
    }

    /// Returns a morsel of fresh rows; `None` if the morsel is a block.
    fn fresh(&self, morsel: usize) -> Option<&FreshMorsel> {
        self.rows.fresh.get(morsel.checked_sub(self.rows.blocks.len())?)
    }

    /// Returns a column of fresh rows.
    fn fresh_block(&self, morsel: usize, fresh: &FreshMorsel, column: usize) -> Result<Block> {
        let SegmentColumn { index, is_late, fresh: parts, .. } = &self.columns[column];
        if *is_late {
            return Ok(fresh.block_of_numbers(self.rows.first(morsel), *index));
        }
        let missing = || Error::Invalid(format!("no fresh rows of {} for morsel {morsel}", self.name));
        let FreshPart { column, codes } = parts.get(fresh.number).ok_or_else(missing)?;
        Ok(match codes {
            Some(codes) => fresh.block_of_texts(column, codes),
            None => fresh.block(column),
        })
    }

    /// Returns a column of a morsel. Loads its block if needed.
    fn block(&self, morsel: usize, column: usize, load: impl FnOnce() -> Result<Arc<BlockColumn>>) -> Result<Block> {
        if let Some(fresh) = self.fresh(morsel) {
            return self.fresh_block(morsel, fresh, column);
        }
        let SegmentColumn { index, column_type, is_late, codes: tables, .. } = &self.columns[column];
        if *is_late {
            let (segment, block) = self.rows.blocks.at(morsel);
            // Row numbers need no read; their NULLs do.
            let has_nulls = segment.zone(*index, block).null_count > 0;
            let column = has_nulls.then(load).transpose()?;
            return Ok(Block::of_rows(self.rows.first(morsel), column));
        }
        let loaded = load()?;
        let decoding = match &tables[self.rows.blocks.segment_at(morsel)] {
            _ if column_type.is_text() && loaded.stored().is_none() => Decoding::Codes(self.codes_of(column, &loaded)?),
            Some(table) => Decoding::Table(table.clone()),
            None if stored_as_integers(column_type, &loaded) => Decoding::Biased(bias(column_type)),
            None => Decoding::Arrow,
        };
        Ok(Block::new(loaded, decoding))
    }

    /// Returns the codes of a block of strings that are stored without a dictionary.
    fn codes_of(&self, column: usize, block: &BlockColumn) -> Result<Vec<u32>> {
        let Some(dictionary) = &self.domains[column].dictionary else { return Ok(Vec::new()) };
        let array = block.decode(0..block.rows())?;
        let code = |text: Option<&str>| text.and_then(|text| dictionary.code_of(text).ok()).unwrap_or(0);
        Ok(texts(&array)?.iter().map(code).collect())
    }
}

impl Source for SegmentSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn columns(&self) -> &[Domain] {
        &self.domains
    }

    fn morsels(&self) -> usize {
        self.rows.blocks.len() + self.rows.fresh.len()
    }

    fn is_block(&self, morsel: usize) -> bool {
        morsel < self.rows.blocks.len()
    }

    fn deleted(&self, morsel: usize) -> Option<&DeletedBlock> {
        match self.fresh(morsel) {
            Some(fresh) => fresh.deleted.as_deref(),
            None => self.deleted.get(morsel)?.as_deref(),
        }
    }

    fn all_rows(&self) -> u64 {
        self.rows.blocks.rows() + self.rows.fresh.iter().map(|fresh| fresh.rows() as u64).sum::<u64>()
    }

    fn for_ledger(&self, ledger: &Arc<Ledger>) -> Option<Arc<dyn Source>> {
        // Late strings are read through the source in the column's domain, which counts in its own
        // ledger.
        let is_anybodys = self.columns.iter().all(|column| !column.is_late);
        is_anybodys.then(|| Arc::new(Self { ledger: Arc::clone(ledger), ..self.clone() }) as _)
    }

    fn is_settled(&self) -> bool {
        self.rows.fresh.is_empty() && self.deleted.iter().all(Option::is_none)
    }

    fn rows(&self, morsel: usize) -> usize {
        if let Some(fresh) = self.fresh(morsel) {
            return fresh.rows();
        }
        let (segment, block) = self.rows.blocks.at(morsel);
        segment.block_rows(block)
    }

    fn interval(&self, morsel: usize, column: usize) -> Option<Interval> {
        let column = &self.columns[column];
        let is_integer = column.is_integer();
        if let Some(fresh) = self.fresh(morsel) {
            let part = column.fresh.get(fresh.number).filter(|_| is_integer);
            return part.map(|part| fresh.interval(&part.column));
        }
        let (segment, block) = self.rows.blocks.at(morsel);
        match is_integer {
            false => None,
            true => Some(interval(segment.key_ends(column.index, block), &column.column_type)),
        }
    }

    fn retain_within(&self, column: usize, wanted: Interval, morsels: &mut Vec<u32>) {
        let of = &self.columns[column];
        if !of.is_integer() {
            return;
        }
        // There are thousands of blocks: their bounds are compared in stored form.
        let bias = bias(&of.column_type);
        let (min, max) = (wanted.min.saturating_sub(bias), wanted.max.saturating_sub(bias));
        morsels.retain(|morsel| match self.rows.blocks.get(*morsel as usize) {
            Some((segment, block)) => {
                segment.key_ends(of.index, block).is_some_and(|(least, greatest)| least <= max && greatest >= min)
            }
            None => {
                let held = self.interval(*morsel as usize, column);
                held.is_none_or(|held| !held.intersection(wanted).is_empty())
            }
        });
    }

    fn may_have_nulls(&self, morsel: usize, column: usize) -> bool {
        if let Some(fresh) = self.fresh(morsel) {
            return fresh.chunk.null_count(self.columns[column].index) > 0;
        }
        let (segment, block) = self.rows.blocks.at(morsel);
        segment.zone(self.columns[column].index, block).null_count > 0
    }

    fn is_coded(&self, column: usize) -> bool {
        let SegmentColumn { column_type, codes, .. } = &self.columns[column];
        !column_type.is_text() && codes.iter().all(Option::is_some)
    }

    fn code_table(&self, morsel: usize, column: usize) -> Option<&CodeTable> {
        let segment = (morsel < self.rows.blocks.len()).then(|| self.rows.blocks.segment_at(morsel))?;
        self.columns[column].codes.get(segment)?.as_ref()
    }

    fn stored_place(&self, morsel: usize, column: usize) -> Option<StoredPlace<'_>> {
        let (segment, block) = self.rows.blocks.get(morsel)?;
        let SegmentColumn { index, column_type, is_late, codes, .. } = &self.columns[column];
        let is_float = matches!(column_type, ColumnType::Float32 | ColumnType::Float64);
        if *is_late || is_float || self.cache.has(segment, *index, block) {
            return None;
        }
        let place = segment.block_place(*index, block)?;
        // As in `block`.
        let meaning = match &codes[self.rows.blocks.segment_at(morsel)] {
            Some(table) => StoredMeaning::Codes(table),
            None => StoredMeaning::Biased(bias(column_type) as u64),
        };
        Some(StoredPlace { segment, place, meaning, is_kept: self.cache.keeps(segment) })
    }

    fn load(&self, morsel: usize, column: usize) -> Result<Block> {
        self.block(morsel, column, || {
            let (segment, block) = self.rows.blocks.at(morsel);
            Ok(self.cache.load(segment, self.columns[column].index, block, &self.ledger)?)
        })
    }

    fn scan(&self, order: &[usize], sure: &[usize], horizon_bytes: usize) -> Option<BlockScan> {
        let columns = self.columns.iter().map(|column| column.index).collect();
        let (cache, ledger, blocks) = (&self.cache, &self.ledger, &self.rows.blocks);
        Some(BlockScan::new(cache, ledger, blocks, order.to_vec(), columns, sure, horizon_bytes))
    }

    fn load_of(&self, scan: &BlockScan, at: usize, morsel: usize, column: usize) -> Result<Block> {
        self.block(morsel, column, || Ok(scan.load(at, column)?))
    }

    fn finished(&self, morsel: usize) {
        let rows = self.live_rows(morsel) as u64;
        match self.is_block(morsel) {
            true => self.ledger.read_block(rows),
            false => self.ledger.rows_in(rows),
        }
    }

    fn all_finished(&self, morsels: &mut dyn Iterator<Item = usize>) {
        let add = |(blocks, rows): (u64, u64), morsel| {
            (blocks + u64::from(self.is_block(morsel)), rows + self.live_rows(morsel) as u64)
        };
        let (blocks, rows) = morsels.fold((0, 0), add);
        self.ledger.read_blocks(blocks, rows);
    }
}
