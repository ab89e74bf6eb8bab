//! A column of a morsel, stored or in memory. Values are decoded only for the requested rows.
//!
//! ```text
//! all rows of a vector        unpacked whole
//! most of a vector's rows     unpacked whole, then compressed
//! many of a vector's rows     unpacked whole, then picked
//! few of each vector          fetched one by one
//! ```

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef};
use onehop_segment::packed::{LANES, Mask};
use onehop_segment::{BlockColumn, CodeTable, Plane, Stored};

use crate::cpu::kernels;
use crate::plain::Plain;
use crate::{Error, Result, VECTOR_ROWS};

/// A column of a morsel.
#[derive(Debug)]
pub struct Block {
    held: Held,
    has_nulls: bool,
    /// True if all rows are NULL; no other field is read then.
    is_null: bool,
}

/// Location of a block's values.
#[derive(Debug)]
enum Held {
    /// As they are stored.
    Stored { column: Arc<BlockColumn>, decoding: Decoding },
    /// In memory, from row `first` of a whole column on.
    Plain { column: Arc<Plain>, first: usize },
    /// The numbers of its rows, from `first` on. The column marks the NULL rows, if there are any.
    Rows { first: u64, column: Option<Arc<BlockColumn>> },
}

/// Conversion of stored integers to values.
#[derive(Debug)]
pub(crate) enum Decoding {
    /// Stored integers plus this.
    Biased(i128),
    /// The value of each stored code.
    Table(CodeTable),
    /// Codes of strings that are stored without a dictionary, looked up when the block was loaded.
    Codes(Vec<u32>),
    /// Decoded to Arrow first: types that are not stored as integers.
    Arrow,
}

/// A block as seen by kernels that compute on encoded values. NULL rows may hold any value.
#[derive(Debug)]
pub(crate) enum Encoded<'a> {
    /// One value in every row.
    Constant(i128),
    /// `base` plus what the plane holds.
    Offsets { base: i128, plane: Plane<'a> },
    /// Codes of a table.
    Codes { table: &'a CodeTable, plane: Plane<'a> },
    /// Any other encoding, which must be decoded first.
    Other,
}

/// A block as seen by code that copies it in encoded form, such as to a device.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Its values. NULL rows may hold any value.
    pub values: ViewValues<'a>,
    /// The rows that have a value.
    pub valid: ViewValid<'a>,
}

/// Values of a [`View`].
#[derive(Clone, Copy, Debug)]
pub enum ViewValues<'a> {
    /// `base` plus the offset in the planes, wrapped around in 64 bits, plus `bias`. Without a
    /// plane the value is the same in every row.
    Packed {
        /// The base that the block was written with.
        base: i64,
        /// Bias of types that do not fit a signed integer.
        bias: u64,
        /// The low 32 bits.
        low: Option<Plane<'a>>,
        /// The high 32 bits.
        high: Option<Plane<'a>>,
    },
    /// Codes of a table of 32-bit values. All codes are within the table. Blocks that share a table
    /// share the same allocation.
    Codes32(&'a Arc<[i32]>, Plane<'a>),
    /// Codes of a table of 64-bit values.
    Codes64(&'a Arc<[i64]>, Plane<'a>),
    /// The numbers of its rows, from this one on.
    Rows(u64),
    /// A 32-bit value in memory for each row.
    I32(&'a [i32]),
    /// A 64-bit value in memory for each row.
    I64(&'a [i64]),
    /// A 128-bit value in memory for each row.
    I128(&'a [i128]),
    /// A double in memory for each row.
    F64(&'a [f64]),
    /// Values that must be decoded: [`Block::decoded_integers`], [`Block::decoded_doubles`].
    Other,
}

/// Rows of a [`View`] that have a value.
#[derive(Clone, Copy, Debug)]
pub enum ViewValid<'a> {
    /// All.
    All,
    /// None.
    None,
    /// Rows with a set bit.
    Bits(Plane<'a>),
    /// Rows whose byte is 1.
    Bytes(&'a [u8]),
}

/// Rows of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rows<'a> {
    /// The first `n` rows of a vector.
    Vector { vector: usize, n: usize },
    /// The rows of a vector whose bit is set, `n` in all.
    Masked { vector: usize, n: usize, mask: &'a Mask },
    /// These rows, counted from the block's first, in ascending order and possibly repeated.
    Picked(&'a [u16]),
}

/// Buffers for unpacked vectors before they become values.
#[derive(Debug)]
pub(crate) struct Scratch {
    low: [u32; VECTOR_ROWS],
    high: [u32; VECTOR_ROWS],
    /// A vector from which some rows are picked.
    whole: [u32; VECTOR_ROWS],
}

impl Scratch {
    pub fn new() -> Self {
        Self { low: [0; VECTOR_ROWS], high: [0; VECTOR_ROWS], whole: [0; VECTOR_ROWS] }
    }

    /// Unpacks a vector of a plane.
    pub fn unpacked(&mut self, plane: Plane<'_>, vector: usize) -> &[u32; VECTOR_ROWS] {
        plane.unpack(vector, &mut self.low);
        &self.low
    }

    /// Returns the stored words of `rows`.
    fn words(&mut self, plane: Plane<'_>, rows: Rows<'_>) -> &[u32] {
        let n = stored_words(plane, rows, &mut self.low, &mut self.whole);
        &self.low[..n]
    }
}

/// A type in which registers hold integers.
pub(crate) trait Integer: Copy + Default {
    /// Converts the integer to this type. The register's interval guarantees that it fits.
    fn of(value: i128) -> Self;
    fn of_i64(value: i64) -> Self;
    /// Returns `base + offset`, wrapped.
    fn offset(base: Self, offset: u32) -> Self;
    /// Unpacks a whole vector of `base + offset`.
    fn unpack(base: Self, plane: Plane<'_>, vector: usize, out: &mut [Self; VECTOR_ROWS], scratch: &mut Scratch);
    /// Looks up the values of codes. `BlockColumn::verify` found every code within the table; a
    /// miss here would be a bug, not a wrong row.
    fn look_up(table: &[i32], codes: &[u32], out: &mut [Self]) {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = table.get(*code as usize).map_or(Self::default(), |value| Self::of_i64((*value).into()));
        }
    }
}

macro_rules! integer {
    ($($t:ty => { $($item:item)* })*) => {$(
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
            $($item)*
        }
    )*};
}
integer! {
    i32 => {
        fn unpack(base: i32, plane: Plane<'_>, vector: usize, out: &mut [i32; VECTOR_ROWS], _: &mut Scratch) {
            // In place: the same bits serve as unsigned offsets and then as values.
            plane.unpack(vector, zerocopy::transmute_mut!(out));
            if base != 0 {
                kernels::add_assign_i32(out, base);
            }
        }
        fn look_up(table: &[i32], codes: &[u32], out: &mut [i32]) {
            kernels::look_up(table, codes, out);
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
    pub(crate) fn new(column: Arc<BlockColumn>, decoding: Decoding) -> Self {
        let (has_nulls, is_null) = (column.null_count() > 0, column.null_count() == column.rows());
        Self { held: Held::Stored { column, decoding }, has_nulls, is_null }
    }

    /// Creates a block of `rows` rows of a column in memory.
    pub(crate) fn of_plain(column: Arc<Plain>, first: usize, rows: usize) -> Self {
        let valid = column.valid.get(first..first + rows).unwrap_or_default();
        let (has_nulls, is_null) = (valid.contains(&0), !valid.is_empty() && !valid.contains(&1));
        Self { held: Held::Plain { column, first }, has_nulls, is_null }
    }

    /// Creates a block of row numbers, from `first` on. `column` has the NULL rows.
    pub(crate) fn of_rows(first: u64, column: Option<Arc<BlockColumn>>) -> Self {
        let has_nulls = column.as_ref().is_some_and(|column| column.null_count() > 0);
        let is_null = has_nulls && column.as_ref().is_some_and(|column| column.null_count() == column.rows());
        Self { held: Held::Rows { first, column }, has_nulls, is_null }
    }

    /// Returns the stored column that marks NULL rows.
    fn stored_column(&self) -> Option<&BlockColumn> {
        match &self.held {
            Held::Stored { column, .. } | Held::Rows { column: Some(column), .. } => Some(column),
            Held::Rows { column: None, .. } | Held::Plain { .. } => None,
        }
    }

    /// Returns a view of its contents in encoded form.
    pub fn view(&self) -> View<'_> {
        let values = match &self.held {
            Held::Rows { first, .. } => ViewValues::Rows(*first),
            Held::Plain { column, first } => column.view(*first),
            Held::Stored { column, decoding } => match (decoding, column.stored()) {
                (Decoding::Biased(bias), Some(stored)) => {
                    ViewValues::Packed { base: stored.base, bias: *bias as u64, low: stored.low, high: stored.high }
                }
                (Decoding::Table(CodeTable::I32(table)), Some(Stored { low: Some(plane), .. })) => {
                    ViewValues::Codes32(table, plane)
                }
                (Decoding::Table(CodeTable::I64(table)), Some(Stored { low: Some(plane), .. })) => {
                    ViewValues::Codes64(table, plane)
                }
                (Decoding::Table(table), Some(Stored { base, low: None, .. })) => match table.get(base as usize) {
                    Some(base) => ViewValues::Packed { base, bias: 0, low: None, high: None },
                    None => ViewValues::Other,
                },
                _ => ViewValues::Other,
            },
        };
        let valid = match &self.held {
            _ if self.is_null => ViewValid::None,
            _ if !self.has_nulls => ViewValid::All,
            Held::Plain { column, first } => ViewValid::Bytes(column.valid.get(*first..).unwrap_or_default()),
            Held::Stored { .. } | Held::Rows { .. } => {
                self.stored_column().and_then(BlockColumn::validity).map_or(ViewValid::All, ViewValid::Bits)
            }
        };
        View { values, valid }
    }

    /// Returns the integers of its first `rows` rows, for any encoding.
    ///
    /// # Errors
    /// Those of the stored data.
    pub fn decoded_integers(&self, rows: usize) -> Result<Vec<i128>> {
        let (mut out, mut scratch) = (Box::new([0i128; VECTOR_ROWS]), Box::new(Scratch::new()));
        let mut all = Vec::with_capacity(rows);
        for vector in 0..rows.div_ceil(VECTOR_ROWS) {
            let n = (rows - vector * VECTOR_ROWS).min(VECTOR_ROWS);
            self.integers(Rows::Vector { vector, n }, &mut out, &mut scratch)?;
            all.extend_from_slice(&out[..n]);
        }
        Ok(all)
    }

    /// Returns the doubles of its first `rows` rows.
    ///
    /// # Errors
    /// As [`Block::decoded_integers`].
    pub fn decoded_doubles(&self, rows: usize) -> Result<Vec<f64>> {
        let mut out = Box::new([0.0; VECTOR_ROWS]);
        let mut all = Vec::with_capacity(rows);
        for vector in 0..rows.div_ceil(VECTOR_ROWS) {
            let n = (rows - vector * VECTOR_ROWS).min(VECTOR_ROWS);
            self.doubles(Rows::Vector { vector, n }, &mut out)?;
            all.extend_from_slice(&out[..n]);
        }
        Ok(all)
    }

    /// Returns true if some row is NULL.
    pub(crate) fn has_nulls(&self) -> bool {
        self.has_nulls
    }

    /// Returns true if all rows are NULL.
    pub(crate) fn is_null(&self) -> bool {
        self.is_null
    }

    /// Writes a bit for each row of a vector, up to the last word that has some: 1 if it is not
    /// NULL.
    pub(crate) fn valid_mask(&self, vector: usize, n: usize, out: &mut Mask) {
        match &self.held {
            _ if self.is_null => out.fill(0),
            Held::Plain { column, first } => {
                let mut valid = [0; VECTOR_ROWS];
                column.validity(*first, Rows::Vector { vector, n }, &mut valid);
                *out = kernels::mask_of(&valid);
            }
            Held::Stored { .. } | Held::Rows { .. } => match self.stored_column().and_then(BlockColumn::validity) {
                Some(plane) => plane.within(vector, 1, 1, out),
                None => out.fill(u32::MAX),
            },
        }
    }

    /// Returns the stored encoding.
    pub(crate) fn encoded(&self) -> Encoded<'_> {
        let Held::Stored { column, decoding } = &self.held else { return Encoded::Other };
        let Some(stored) = column.stored() else { return Encoded::Other };
        match (decoding, stored.low, stored.high) {
            (Decoding::Biased(bias), None, None) => Encoded::Constant(i128::from(stored.base) + bias),
            (Decoding::Biased(bias), Some(plane), None) => {
                Encoded::Offsets { base: i128::from(stored.base) + bias, plane }
            }
            (Decoding::Table(table), Some(plane), _) => Encoded::Codes { table, plane },
            (Decoding::Table(table), None, _) => {
                table.get(stored.base as usize).map_or(Encoded::Other, |value| Encoded::Constant(value.into()))
            }
            _ => Encoded::Other,
        }
    }

    /// Returns the plane of a block that is [`Encoded::Offsets`] or [`Encoded::Codes`].
    #[inline]
    pub(crate) fn plane(&self) -> Option<Plane<'_>> {
        match &self.held {
            Held::Stored { column, .. } => column.low(),
            Held::Plain { .. } | Held::Rows { .. } => None,
        }
    }

    /// Prefetches the stored words of single rows that are about to be read.
    pub(crate) fn prefetch(&self, rows: &[u16]) {
        if let Some(plane) = self.plane() {
            plane.prefetch(rows);
        }
    }

    /// Writes 1 for each row of `rows` that is not NULL, 0 for others.
    pub(crate) fn validity(&self, rows: Rows<'_>, out: &mut [u8; VECTOR_ROWS], scratch: &mut Scratch) {
        match &self.held {
            _ if self.is_null => out.fill(0),
            Held::Plain { column, first } => column.validity(*first, rows, out),
            Held::Stored { .. } | Held::Rows { .. } => match self.stored_column().and_then(BlockColumn::validity) {
                Some(plane) => each(out, scratch.words(plane, rows), |bit| bit as u8),
                None => out.fill(1),
            },
        }
    }

    /// Decodes the integers of `rows`.
    pub(crate) fn integers<T: Integer>(
        &self,
        rows: Rows<'_>,
        out: &mut [T; VECTOR_ROWS],
        scratch: &mut Scratch,
    ) -> Result<()> {
        if self.is_null {
            out.fill(T::default());
            return Ok(());
        }
        match (self.encoded(), rows) {
            (Encoded::Constant(value), _) => out.fill(T::of(value)),
            (Encoded::Offsets { base, plane }, Rows::Vector { vector, .. }) => {
                T::unpack(T::of(base), plane, vector, out, scratch);
            }
            (Encoded::Offsets { base, plane }, _) => {
                let base = T::of(base);
                each(out, scratch.words(plane, rows), |offset| T::offset(base, offset));
            }
            (Encoded::Codes { table: CodeTable::I32(table), plane }, _) => {
                T::look_up(table, scratch.words(plane, rows), out);
            }
            (Encoded::Codes { table: CodeTable::I64(table), plane }, _) => {
                let value = |code: u32| table.get(code as usize).map_or(T::default(), |v| T::of_i64(*v));
                each(out, scratch.words(plane, rows), value);
            }
            (Encoded::Other, _) => self.other_integers(rows, out, scratch)?,
        }
        Ok(())
    }

    /// Decodes integers that are neither one plane nor codes of a table.
    fn other_integers<T: Integer>(
        &self,
        rows: Rows<'_>,
        out: &mut [T; VECTOR_ROWS],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (column, decoding) = match &self.held {
            Held::Stored { column, decoding } => (column, decoding),
            Held::Plain { column, first } => {
                column.integers(*first, rows, out);
                return Ok(());
            }
            Held::Rows { first, .. } => {
                rows.for_each(|i, row| out[i] = T::of_i64((first + row as u64) as i64));
                return Ok(());
            }
        };
        if let Decoding::Codes(codes) = decoding {
            rows.for_each(|i, row| out[i] = codes.get(row).map_or(T::default(), |code| T::of_i64((*code).into())));
            return Ok(());
        }
        if let (Decoding::Biased(bias), Some(stored)) = (decoding, column.stored())
            && let (Some(low), Some(high)) = (stored.low, stored.high)
        {
            let value = |low: u32, high: u32| {
                let offset = u64::from(high) << 32 | u64::from(low);
                // The stored base is added first, wrapped as it was when it was subtracted on
                // write.
                T::of(i128::from(stored.base.wrapping_add(offset as i64)) + bias)
            };
            let n = stored_words(low, rows, &mut scratch.low, &mut scratch.whole);
            stored_words(high, rows, &mut scratch.high, &mut scratch.whole);
            let words = scratch.low.iter().zip(&scratch.high);
            out.iter_mut().zip(words).take(n).for_each(|(out, (low, high))| *out = value(*low, *high));
            return Ok(());
        }
        each_array(column, rows, |array, rows, at| {
            let Some(values) = array.as_primitive_opt::<Decimal128Type>() else {
                return Err(Error::Invalid(format!("integers of a column of {}", array.data_type())));
            };
            let values = values.values();
            rows.for_each(|i, row| {
                out[at + i] = values.get(row % VECTOR_ROWS).map_or(T::default(), |value| T::of(*value));
            });
            Ok(())
        })
    }

    /// Decodes the doubles of `rows`.
    pub(crate) fn doubles(&self, rows: Rows<'_>, out: &mut [f64; VECTOR_ROWS]) -> Result<()> {
        let column = match &self.held {
            Held::Stored { column, .. } => column,
            Held::Plain { column, first } => {
                column.doubles(*first, rows, out);
                return Ok(());
            }
            Held::Rows { .. } => return Err(Error::Invalid("doubles of the numbers of rows".into())),
        };
        each_array(column, rows, |array, rows, at| {
            if let Some(values) = array.as_primitive_opt::<Float64Type>() {
                let values = values.values();
                rows.for_each(|i, row| out[at + i] = values.get(row % VECTOR_ROWS).copied().unwrap_or(0.0));
            } else if let Some(values) = array.as_primitive_opt::<Float32Type>() {
                let values = values.values();
                rows.for_each(|i, row| out[at + i] = values.get(row % VECTOR_ROWS).copied().unwrap_or(0.0).into());
            } else {
                return Err(Error::Invalid(format!("doubles of a column of {}", array.data_type())));
            }
            Ok(())
        })
    }
}

/// Calls `f` with every decoded vector that contains some of `rows`, those rows, and the number of
/// rows before them.
fn each_array(
    column: &BlockColumn,
    rows: Rows<'_>,
    mut f: impl FnMut(ArrayRef, Rows<'_>, usize) -> Result<()>,
) -> Result<()> {
    let decoded = |vector: usize| -> Result<ArrayRef> {
        let start = vector * VECTOR_ROWS;
        Ok(column.decode(start..(start + VECTOR_ROWS).min(column.rows()))?)
    };
    match rows {
        Rows::Vector { vector, .. } | Rows::Masked { vector, .. } => f(decoded(vector)?, rows, 0),
        Rows::Picked(picked) => {
            let mut at = 0;
            for run in runs(picked) {
                f(decoded(vector_of(run[0]))?, Rows::Picked(run), at)?;
                at += run.len();
            }
            Ok(())
        }
    }
}

/// Number of rows of a vector below which fetching each is cheaper than unpacking 1,024.
const FEW: usize = 128;

fn vector_of(row: u16) -> usize {
    usize::from(row) / VECTOR_ROWS
}

/// Splits rows into runs of one vector each.
fn runs(rows: &[u16]) -> impl Iterator<Item = &[u16]> {
    rows.chunk_by(|a, b| vector_of(*a) == vector_of(*b))
}

impl Rows<'_> {
    /// Calls `f` with the place of each row in the output and in the block.
    #[inline(always)]
    pub(crate) fn for_each(self, mut f: impl FnMut(usize, usize)) {
        match self {
            Rows::Vector { vector, n } => (0..n.min(VECTOR_ROWS)).for_each(|i| f(i, vector * VECTOR_ROWS + i)),
            Rows::Masked { vector, mask, .. } => {
                let mut i = 0;
                for (at, word) in mask.iter().enumerate() {
                    let mut word = *word;
                    while word != 0 {
                        f(i, vector * VECTOR_ROWS + at * LANES + word.trailing_zeros() as usize);
                        word &= word - 1;
                        i += 1;
                    }
                }
            }
            Rows::Picked(rows) => rows.iter().enumerate().for_each(|(i, row)| f(i, usize::from(*row))),
        }
    }
}

/// Returns true if there are few rows per vector that they span.
fn is_sparse(rows: &[u16]) -> bool {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return true };
    rows.len() < FEW * (vector_of(*last) - vector_of(*first) + 1)
}

/// Writes the stored words of `rows` to the front of `out`. Returns their number.
fn stored_words(
    plane: Plane<'_>,
    rows: Rows<'_>,
    out: &mut [u32; VECTOR_ROWS],
    whole: &mut [u32; VECTOR_ROWS],
) -> usize {
    match rows {
        Rows::Vector { vector, n } => {
            plane.unpack(vector, out);
            n.min(VECTOR_ROWS)
        }
        Rows::Masked { vector, n, mask } => {
            plane.unpack(vector, out);
            kernels::compress(out, mask);
            n.min(VECTOR_ROWS)
        }
        Rows::Picked(rows) => {
            let rows = &rows[..rows.len().min(VECTOR_ROWS)];
            if is_sparse(rows) {
                plane.pick(rows, &mut out[..rows.len()]);
                return rows.len();
            }
            let mut at = 0;
            for run in runs(rows) {
                plane.unpack(vector_of(run[0]), whole);
                for (out, row) in out[at..].iter_mut().zip(run) {
                    *out = whole[usize::from(*row) % VECTOR_ROWS];
                }
                at += run.len();
            }
            rows.len()
        }
    }
}

/// Writes `f` of each word.
#[inline(always)]
fn each<T>(out: &mut [T; VECTOR_ROWS], words: &[u32], f: impl Fn(u32) -> T) {
    out.iter_mut().zip(words).for_each(|(out, word)| *out = f(*word));
}
