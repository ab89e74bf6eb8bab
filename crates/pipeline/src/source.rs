//! Where rows come from: morsels of columns, encoded as they are stored, decoded a vector at a time.
//!
//! A [`Source`] tells what its columns can hold before it reads anything, and loads a column of a morsel only when
//! somebody asks for it: a column that no row survives to need is never read.

use std::fmt;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, StringViewArray};
use onehop_io::Ledger;
use onehop_segment::{BlockCache, BlockColumn, ColumnType, Plane, Segment};

use crate::cpu::kernels;
use crate::{Dictionary, Domain, Error, Interval, Result, VECTOR_ROWS};

/// A table, as a pipeline reads it. All methods may be called from many threads.
pub trait Source: fmt::Debug + Send + Sync {
    /// The table's name.
    fn name(&self) -> &str;

    /// What each column can hold.
    fn columns(&self) -> &[Domain];

    /// Runs of rows that are scheduled as one.
    fn morsels(&self) -> usize;

    /// Rows of a morsel.
    fn rows(&self, morsel: usize) -> usize;

    /// What an integer or text column can hold in a morsel, where that is known before reading it.
    fn interval(&self, morsel: usize, column: usize) -> Option<Interval>;

    /// Loads a column of a morsel.
    ///
    /// # Errors
    /// Those of the storage, and of what is stored.
    fn load(&self, morsel: usize, column: usize) -> Result<Block>;

    /// A morsel has been read: for progress and ledgers.
    fn finished(&self, _morsel: usize) {}
}

/// A column of a morsel.
#[derive(Debug)]
pub struct Block {
    column: Arc<BlockColumn>,
    decoding: Decoding,
    /// All rows are NULL; nothing else is looked at.
    is_null: bool,
}

#[derive(Debug)]
enum Decoding {
    /// Stored integers plus this.
    Biased(i128),
    /// What each stored code stands for.
    Table(Arc<[i64]>),
    /// Codes of texts that are stored without a dictionary, looked up when the block was loaded.
    Codes(Vec<u32>),
    /// Decoded to Arrow first: types that are not stored as integers.
    Arrow,
}

/// Where vectors are unpacked to before they become values.
#[derive(Debug)]
pub(crate) struct Scratch {
    low: [u32; VECTOR_ROWS],
    high: [u32; VECTOR_ROWS],
}

impl Scratch {
    pub fn new() -> Self {
        Self { low: [0; VECTOR_ROWS], high: [0; VECTOR_ROWS] }
    }
}

/// A type that registers hold integers in.
pub(crate) trait Integer: Copy + Default {
    /// The integer as this type. The register's interval makes sure that it fits.
    fn of(value: i128) -> Self;
    fn of_i64(value: i64) -> Self;
    /// `base + offset`, wrapped.
    fn offset(base: Self, offset: u32) -> Self;
    /// A whole vector of `base + offset`.
    fn unpack(base: Self, plane: Plane<'_>, vector: usize, out: &mut [Self; VECTOR_ROWS], scratch: &mut Scratch);
}

macro_rules! integer {
    ($($t:ty => { $unpack:item })*) => {$(
        impl Integer for $t {
            fn of(value: i128) -> Self {
                value as $t
            }
            #[inline(always)]
            fn of_i64(value: i64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn offset(base: Self, offset: u32) -> Self {
                base.wrapping_add(offset as $t)
            }
            $unpack
        }
    )*};
}
integer! {
    i32 => {
        fn unpack(base: i32, plane: Plane<'_>, vector: usize, out: &mut [i32; VECTOR_ROWS], _: &mut Scratch) {
            // In place: the same bits, once as unsigned offsets and once as values.
            plane.unpack(vector, zerocopy::transmute_mut!(out));
            if base != 0 {
                kernels::add_assign_i32(out, base);
            }
        }
    }
    i64 => {
        fn unpack(base: i64, plane: Plane<'_>, vector: usize, out: &mut [i64; VECTOR_ROWS], scratch: &mut Scratch) {
            plane.unpack(vector, &mut scratch.low);
            kernels::offsets_i64(&scratch.low, base, out);
        }
    }
    i128 => {
        fn unpack(base: i128, plane: Plane<'_>, vector: usize, out: &mut [i128; VECTOR_ROWS], scratch: &mut Scratch) {
            plane.unpack(vector, &mut scratch.low);
            out.iter_mut().zip(&scratch.low).for_each(|(out, offset)| *out = Self::offset(base, *offset));
        }
    }
}

impl Block {
    /// Whether some row is NULL.
    pub(crate) fn has_nulls(&self) -> bool {
        self.column.null_count() > 0
    }

    /// 1 for each row of `rows` that is not NULL, 0 for others.
    pub(crate) fn validity(&self, vector: usize, rows: Rows<'_>, out: &mut [u8; VECTOR_ROWS], scratch: &mut Scratch) {
        let Some(plane) = self.column.validity().filter(|_| !self.is_null) else {
            out.fill(u8::from(!self.is_null));
            return;
        };
        match rows {
            Rows::Few(rows) => {
                for (out, row) in out.iter_mut().zip(rows) {
                    *out = plane.value_at(vector, usize::from(*row)) as u8;
                }
            }
            Rows::All(_) | Rows::Many(_) => {
                let bits = &mut scratch.low;
                plane.unpack(vector, bits);
                match rows {
                    Rows::Many(rows) => {
                        out.iter_mut()
                            .zip(rows)
                            .for_each(|(out, row)| *out = bits[usize::from(*row) % VECTOR_ROWS] as u8);
                    }
                    _ => out.iter_mut().zip(bits.iter()).for_each(|(out, bit)| *out = *bit as u8),
                }
            }
        }
    }

    /// The integers of `rows`.
    pub(crate) fn integers<T: Integer>(
        &self,
        vector: usize,
        rows: Rows<'_>,
        out: &mut [T; VECTOR_ROWS],
        scratch: &mut Scratch,
    ) -> Result<()> {
        if self.is_null {
            out.fill(T::default());
            return Ok(());
        }
        if let Decoding::Codes(codes) = &self.decoding {
            let codes = &codes[(vector * VECTOR_ROWS).min(codes.len())..];
            rows.for_each(|i, row| out[i] = codes.get(row).map_or(T::default(), |code| T::of_i64((*code).into())));
            return Ok(());
        }
        let Some(stored) = self.column.stored() else {
            return self.decoded_integers(vector, rows, out);
        };
        let bias = match &self.decoding {
            Decoding::Biased(bias) => *bias,
            Decoding::Table(table) => {
                return table_values(&stored, table, vector, rows, out, scratch);
            }
            Decoding::Codes(_) | Decoding::Arrow => return self.decoded_integers(vector, rows, out),
        };
        let base = i128::from(stored.base) + bias;
        let (Some(low), high) = (stored.low, stored.high) else {
            out.fill(T::of(base));
            return Ok(());
        };
        let wide_base = T::of(base);
        match (rows, high) {
            (Rows::Few(rows), None) => {
                for (out, row) in out.iter_mut().zip(rows) {
                    *out = T::offset(wide_base, low.value_at(vector, usize::from(*row)));
                }
            }
            (Rows::Few(rows), Some(high)) => {
                for (out, row) in out.iter_mut().zip(rows) {
                    let row = usize::from(*row);
                    *out = T::of(wide_value(stored.base, high.value_at(vector, row), low.value_at(vector, row), bias));
                }
            }
            (Rows::Many(rows), None) => {
                low.unpack(vector, &mut scratch.low);
                for (out, row) in out.iter_mut().zip(rows) {
                    *out = T::offset(wide_base, scratch.low[usize::from(*row) % VECTOR_ROWS]);
                }
            }
            (Rows::All(_), None) => T::unpack(wide_base, low, vector, out, scratch),
            (_, Some(high)) => {
                let Scratch { low: lows, high: highs } = scratch;
                low.unpack(vector, lows);
                high.unpack(vector, highs);
                rows.for_each(|i, row| out[i] = T::of(wide_value(stored.base, highs[row], lows[row], bias)));
            }
        }
        Ok(())
    }

    fn arrow(&self, vector: usize) -> Result<ArrayRef> {
        let start = vector * VECTOR_ROWS;
        Ok(self.column.decode(start..(start + VECTOR_ROWS).min(self.column.rows()))?)
    }

    fn decoded_integers<T: Integer>(&self, vector: usize, rows: Rows<'_>, out: &mut [T; VECTOR_ROWS]) -> Result<()> {
        let array = self.arrow(vector)?;
        let Some(values) = array.as_primitive_opt::<Decimal128Type>() else {
            return Err(Error::Invalid(format!("integers of a column of {}", array.data_type())));
        };
        let values = values.values();
        rows.for_each(|i, row| out[i] = values.get(row).map_or(T::default(), |value| T::of(*value)));
        Ok(())
    }

    /// The doubles of `rows`.
    pub(crate) fn doubles(&self, vector: usize, rows: Rows<'_>, out: &mut [f64; VECTOR_ROWS]) -> Result<()> {
        let array = self.arrow(vector)?;
        if let Some(values) = array.as_primitive_opt::<Float64Type>() {
            rows.for_each(|i, row| out[i] = values.values().get(row).copied().unwrap_or(0.0));
        } else if let Some(values) = array.as_primitive_opt::<Float32Type>() {
            rows.for_each(|i, row| out[i] = values.values().get(row).copied().unwrap_or(0.0).into());
        } else {
            return Err(Error::Invalid(format!("doubles of a column of {}", array.data_type())));
        }
        Ok(())
    }
}

/// A value of two words.
#[inline(always)]
fn wide_value(base: i64, high: u32, low: u32, bias: i128) -> i128 {
    let offset = u64::from(high) << 32 | u64::from(low);
    // The stored base is added first, wrapped as it was subtracted when the block was written.
    i128::from(base.wrapping_add(offset as i64)) + bias
}

fn table_values<T: Integer>(
    stored: &onehop_segment::Stored<'_>,
    table: &[i64],
    vector: usize,
    rows: Rows<'_>,
    out: &mut [T; VECTOR_ROWS],
    scratch: &mut Scratch,
) -> Result<()> {
    // `BlockColumn::verify` found every code to be within the table; a miss here would be a bug, not a wrong row.
    let value = |code: usize| table.get(code).map_or(T::default(), |value| T::of_i64(*value));
    let Some(low) = stored.low else {
        out.fill(value(stored.base as usize));
        return Ok(());
    };
    if let Rows::Few(rows) = rows {
        for (out, row) in out.iter_mut().zip(rows) {
            *out = value(low.value_at(vector, usize::from(*row)) as usize);
        }
        return Ok(());
    }
    let codes = &mut scratch.low;
    low.unpack(vector, codes);
    rows.for_each(|i, row| out[i] = value(codes[row] as usize));
    Ok(())
}

/// Rows of a vector that are wanted, in ascending order (or repeated, after a join with several matches).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rows<'a> {
    /// The first so many.
    All(usize),
    /// So many that the vector is unpacked whole.
    Many(&'a [u16]),
    /// So few that each is fetched by itself.
    Few(&'a [u16]),
}

impl Rows<'_> {
    /// Below this, fetching single values is cheaper than unpacking 1,024 of them.
    const FEW: usize = 40;

    pub(crate) fn of(rows: &[u16]) -> Rows<'_> {
        match rows.len() {
            n if n < Self::FEW => Rows::Few(rows),
            _ => Rows::Many(rows),
        }
    }

    /// Calls `f` with the place of each row in the output and in the vector.
    #[inline(always)]
    fn for_each(self, mut f: impl FnMut(usize, usize)) {
        match self {
            Rows::All(n) => (0..n.min(VECTOR_ROWS)).for_each(|i| f(i, i)),
            Rows::Many(rows) | Rows::Few(rows) => {
                rows.iter().enumerate().for_each(|(i, row)| f(i, usize::from(*row) % VECTOR_ROWS));
            }
        }
    }
}

/// Rows of a segment whose texts are made a dictionary while the query is planned, if they are stored without one.
const MOST_TEXTS: u64 = 1 << 17;

/// Blocks of segments.
#[derive(Debug)]
pub struct SegmentSource {
    name: String,
    blocks: Vec<(Arc<Segment>, usize)>,
    /// Which segment each block is of, counted from 0.
    segment_of: Vec<usize>,
    columns: Vec<SegmentColumn>,
    domains: Vec<Domain>,
    cache: Arc<BlockCache>,
    ledger: Arc<Ledger>,
}

#[derive(Debug)]
struct SegmentColumn {
    /// Its place in the segments' schema.
    index: usize,
    column_type: ColumnType,
    /// Of each segment: what its codes stand for, in the source's dictionary or as integers.
    codes: Vec<Option<Arc<[i64]>>>,
}

impl SegmentSource {
    /// The given blocks of segments that have one schema, with some of its columns.
    ///
    /// # Errors
    /// Those of the storage; [`Error::Unsupported`] for a column that pipelines cannot read.
    pub fn new(
        name: &str,
        blocks: Vec<(Arc<Segment>, usize)>,
        columns: &[(usize, ColumnType, bool)],
        cache: Arc<BlockCache>,
        ledger: Arc<Ledger>,
    ) -> Result<Self> {
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        let mut segment_of = Vec::with_capacity(blocks.len());
        for (segment, _) in &blocks {
            let known = segments.iter().rposition(|other| Arc::ptr_eq(other, segment));
            segment_of.push(known.unwrap_or_else(|| {
                segments.push(Arc::clone(segment));
                segments.len() - 1
            }));
        }
        let mut source =
            Self { name: name.into(), blocks, segment_of, columns: Vec::new(), domains: Vec::new(), cache, ledger };
        for (index, column_type, nullable) in columns {
            let (column, domain) = source.column(&segments, *index, column_type, *nullable)?;
            source.columns.push(column);
            source.domains.push(domain);
        }
        Ok(source)
    }

    fn column(
        &self,
        segments: &[Arc<Segment>],
        index: usize,
        column_type: &ColumnType,
        nullable: bool,
    ) -> Result<(SegmentColumn, Domain)> {
        let nullable = nullable && self.blocks.iter().any(|(s, block)| s.zone(index, *block).null_count > 0);
        let mut column = SegmentColumn { index, column_type: column_type.clone(), codes: vec![None; segments.len()] };
        let domain = match column_type {
            ColumnType::Varchar => {
                let (dictionary, codes) = self.dictionary(segments, index)?;
                column.codes = codes;
                Domain::text(dictionary, nullable)
            }
            ColumnType::Float32 | ColumnType::Float64 => Domain::double(nullable),
            ColumnType::Boolean => Domain::bool(nullable),
            _ => {
                for (segment, table) in segments.iter().zip(&mut column.codes) {
                    *table = self.integers(segment, index, bias(column_type))?;
                }
                let zones = self.blocks.iter().map(|(segment, block)| interval(segment, index, *block, column_type));
                Domain::int(zones.fold(Interval::EMPTY, Interval::union), nullable)
            }
        };
        Ok((column, domain))
    }

    /// What the codes of a segment stand for, if it stores integers as codes.
    fn integers(&self, segment: &Segment, index: usize, bias: i128) -> Result<Option<Arc<[i64]>>> {
        let Some(keys) = segment.dictionary_keys(index, &self.ledger)? else { return Ok(None) };
        let integers = keys.iter().map(|key| i64::try_from(i128::from(*key) + bias));
        match integers.collect::<std::result::Result<Arc<[i64]>, _>>() {
            Ok(integers) => Ok(Some(integers)),
            Err(_) => Err(Error::Unsupported(format!(
                "column {} of {}, whose integers need more than 64 bits",
                segment.column(index).name,
                self.name
            ))),
        }
    }

    #[allow(clippy::type_complexity, reason = "a pair that is taken apart at once")]
    fn dictionary(
        &self,
        segments: &[Arc<Segment>],
        index: usize,
    ) -> Result<(Arc<Dictionary>, Vec<Option<Arc<[i64]>>>)> {
        let mut parts = Vec::with_capacity(segments.len());
        for segment in segments {
            parts.push(match segment.dictionary_texts(index, &self.ledger)? {
                Some(texts) => Dictionary::from_sorted(texts),
                None => self.texts_of(segment, index)?,
            });
        }
        if parts.len() == 1 {
            return Ok((Arc::new(parts.remove(0)), vec![None]));
        }
        let (merged, codes) = Dictionary::merge(&parts.iter().collect::<Vec<_>>());
        let codes = codes.into_iter().map(|codes| Some(codes.into_iter().map(i64::from).collect())).collect();
        Ok((Arc::new(merged), codes))
    }
}

fn stored_as_integers(column_type: &ColumnType, block: &BlockColumn) -> bool {
    !matches!(column_type, ColumnType::Float32 | ColumnType::Float64) && block.stored().is_some()
}

fn texts(array: &ArrayRef) -> Result<&StringViewArray> {
    let texts = array.as_string_view_opt();
    texts.ok_or_else(|| Error::Invalid(format!("texts of a column of {}", array.data_type())))
}

/// What is added to a key to get the integer.
fn bias(column_type: &ColumnType) -> i128 {
    if *column_type == ColumnType::UInt64 { 1 << 63 } else { 0 }
}

fn interval(segment: &Segment, column: usize, block: usize, column_type: &ColumnType) -> Interval {
    let bias = bias(column_type);
    let keys = segment.zone(column, block).keys();
    keys.map_or(Interval::EMPTY, |(min, max)| Interval::new(min + bias, max + bias))
}

impl SegmentSource {
    /// A dictionary of texts that are stored without one, as those of small tables are.
    fn texts_of(&self, segment: &Arc<Segment>, index: usize) -> Result<Dictionary> {
        let info = segment.column(index);
        let mut arrays = Vec::new();
        if info.zone.has_values() {
            if segment.rows() > MOST_TEXTS {
                let reason =
                    format!("the texts of {} in {}, which are stored without a dictionary", info.name, self.name);
                return Err(Error::Unsupported(reason));
            }
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

    /// The codes of a block of texts that are stored without a dictionary.
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
        self.blocks.len()
    }

    fn rows(&self, morsel: usize) -> usize {
        let (segment, block) = &self.blocks[morsel];
        segment.block_rows(*block)
    }

    fn interval(&self, morsel: usize, column: usize) -> Option<Interval> {
        let column = &self.columns[column];
        let (segment, block) = &self.blocks[morsel];
        match column.column_type {
            ColumnType::Varchar | ColumnType::Float32 | ColumnType::Float64 | ColumnType::Boolean => None,
            _ => Some(interval(segment, column.index, *block, &column.column_type)),
        }
    }

    fn load(&self, morsel: usize, column: usize) -> Result<Block> {
        let SegmentColumn { index, column_type, codes: tables } = &self.columns[column];
        let (segment, block) = &self.blocks[morsel];
        let loaded = self.cache.load(segment, *index, *block, &self.ledger)?;
        let decoding = match &tables[self.segment_of[morsel]] {
            _ if column_type.is_text() && loaded.stored().is_none() => Decoding::Codes(self.codes_of(column, &loaded)?),
            Some(table) => Decoding::Table(Arc::clone(table)),
            None if stored_as_integers(column_type, &loaded) => Decoding::Biased(bias(column_type)),
            None => Decoding::Arrow,
        };
        let is_null = loaded.null_count() == loaded.rows();
        Ok(Block { column: loaded, decoding, is_null })
    }

    fn finished(&self, morsel: usize) {
        self.ledger.read_block(self.rows(morsel) as u64);
    }
}
