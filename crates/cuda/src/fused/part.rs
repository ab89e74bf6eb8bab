//! A column of a morsel as kernels read it: the addresses of its planes, and their encoding. Only
//! values that are not stored as integers are decoded on the way to the device.
//!
//! Width and kind together are the *form* of a part. [`part_of`] converts a block to a part, and a
//! [`Memory`] places the block's bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use onehop_pipeline::cpu::Kind;
use onehop_pipeline::{Block, Domain, StoredMeaning, Type, ViewValid, ViewValues};
use onehop_segment::packed::{LANES, VECTOR_ROWS};
use onehop_segment::{BlockPlace, CodeTable, Plane};

use self::form::Layout;
use super::{Error, Result};
use crate::direct::Planes;

/// A column of a morsel, as kernels read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Part {
    /// Address of packed words, or of plain values.
    pub low: u64,
    /// Address of the words with the bits above the low 32.
    pub high: u64,
    /// Address of one bit per row, in lane geometry; 0 if every row has a value.
    pub valid: u64,
    /// Address of the values that codes stand for.
    pub table: u64,
    /// Base that is added to packed values, with wraparound.
    pub base: i64,
    /// Second summand, added after `base`. For codes, their number. For steps, the distance of
    /// neighbouring values.
    pub bias: u64,
    /// A [`form`].
    pub form: u32,
    /// Bits of packed values, both planes together.
    pub width: u32,
}

const _: () = assert!(size_of::<Part>() == 56);

impl Part {
    /// Turns this into a part of codes of `width` bits. The `values` ascending values, of 32 or 64
    /// bits each, are in a table at address `table`.
    pub fn set_codes(&mut self, table: u64, values: usize, is_wide: bool, width: u32) {
        let form = if is_wide { form::CODES64 } else { form::CODES };
        (self.table, self.bias, self.width, self.form) = (table, values as u64, width, form + width);
    }

    /// Turns this into a part of codes of `width` bits that stand for `first` and the values that
    /// follow it in equal steps. Such codes need no lookup. Steps of one are stored as offsets.
    pub fn set_steps(&mut self, first: i64, step: u64, width: u32) {
        (self.base, self.width) = (first, width);
        (self.bias, self.form) = match step {
            1 => (0, form::PACKED + width),
            _ => (step, form::STEPS + width),
        };
    }
}

/// Values of [`Part::form`], as in device.cuh. A width is added to each of the last five.
pub mod form {
    #![allow(missing_docs, reason = "device.cuh says what they are")]
    pub const SAME: u32 = 0;
    pub const NULL: u32 = 1;
    pub const ROWS: u32 = 2;
    pub const I32: u32 = 3;
    pub const I64: u32 = 4;
    pub const I128: u32 = 5;
    pub const F64: u32 = 6;
    pub const PACKED: u32 = 64;
    pub const STEPS: u32 = 128;
    pub const WIDE: u32 = 192;
    pub const CODES: u32 = 256;
    pub const CODES64: u32 = 320;

    /// A form, decoded. Numbers are the bits of a value.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Layout {
        Same,
        Null,
        Rows,
        I32,
        I64,
        I128,
        F64,
        Packed(u32),
        Steps(u32),
        Wide(u32),
        Codes(u32),
        Codes64(u32),
    }

    impl Layout {
        /// Decodes the form of a part.
        pub fn of(form: u32) -> Self {
            match form {
                SAME => Self::Same,
                NULL => Self::Null,
                ROWS => Self::Rows,
                I32 => Self::I32,
                I64 => Self::I64,
                I128 => Self::I128,
                // Each form with a width occupies 64 numbers after its base, the last of which
                // stands for 64 bits.
                _ if form <= PACKED => Self::F64,
                _ if form <= STEPS => Self::Packed(form - PACKED),
                _ if form <= WIDE => Self::Steps(form - STEPS),
                _ if form <= CODES => Self::Wide(form - WIDE),
                _ if form <= CODES64 => Self::Codes(form - CODES),
                _ => Self::Codes64(form - CODES64),
            }
        }

        /// Returns the bits of a value, if the values of a vector are in a single plane: offsets,
        /// steps or codes.
        pub fn width_of_plane(self) -> Option<u32> {
            match self {
                Self::Packed(width) | Self::Steps(width) | Self::Codes(width) | Self::Codes64(width) => Some(width),
                _ => None,
            }
        }

        /// Returns the bits of an offset from a base, in one plane or two.
        pub fn width_of_offset(self) -> Option<u32> {
            match self {
                Self::Packed(width) | Self::Wide(width) => Some(width),
                _ => None,
            }
        }
    }
}

/// Up to 32 values that codes stand for, as kernels read them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct CodeWord {
    values: u64,
    /// Index of the table's first code word.
    first: u32,
    count: u16,
    is_wide: u16,
}

const _: () = assert!(size_of::<CodeWord>() == 16);

/// Returns the code words for all codes of parts, and the index of each part's first word. Returns
/// `None` if no part has codes.
pub(super) fn code_words(parts: &[Part]) -> Result<Option<(Vec<CodeWord>, Vec<u32>)>> {
    let mut words: Vec<CodeWord> = Vec::new();
    let mut first_of: BTreeMap<u64, u32> = BTreeMap::new();
    let mut first: Vec<u32> = Vec::with_capacity(parts.len());
    for part in parts {
        let is_wide = match Layout::of(part.form) {
            Layout::Codes(_) => false,
            Layout::Codes64(_) => true,
            _ => {
                first.push(0);
                continue;
            }
        };
        // Kernels would silently find no values.
        if part.table == 0 || part.bias == 0 {
            return Err(Error::refused("codes without a dictionary"));
        }
        let bytes = if is_wide { 8 } else { 4 };
        first.push(*first_of.entry(part.table).or_insert_with(|| {
            let at = words.len() as u32;
            for from in (0..part.bias).step_by(32) {
                let count = (part.bias - from).min(32) as u16;
                let values = part.table + from * bytes;
                words.push(CodeWord { values, first: at, count, is_wide: is_wide.into() });
            }
            at
        }));
    }
    Ok((!words.is_empty()).then_some((words, first)))
}

/// Returns the forms of parts, the most frequent first.
pub(super) fn forms_of(parts: &[Part]) -> Vec<u32> {
    by_frequency(parts.iter().map(|part| part.form))
}

/// Returns the distinct forms, the most frequent first.
pub(crate) fn by_frequency(forms: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut counts = BTreeMap::new();
    forms.into_iter().for_each(|form| *counts.entry(form).or_insert(0usize) += 1);
    let mut forms: Vec<(u32, usize)> = counts.into_iter().collect();
    forms.sort_by_key(|(form, morsels)| (std::cmp::Reverse(*morsels), *form));
    forms.into_iter().map(|(form, _)| form).collect()
}

/// Returns the memory of plain values as bytes.
pub(crate) fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: callers pass numbers, and structures of numbers without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }
}

/// Returns the memory of a code table as bytes.
pub(crate) fn bytes_of_table(table: &CodeTable) -> &[u8] {
    match table {
        CodeTable::I32(values) => bytes_of(values),
        CodeTable::I64(values) => bytes_of(values),
    }
}

/// Decoding of a code in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeMeaning<T> {
    /// By a multiplication: the code is the number of steps above the first value.
    Steps { first: i64, step: u64 },
    /// By a table of ascending values.
    Table(T),
    /// Not supported: the values do not ascend, so a range of values is not a range of codes.
    Unordered,
}

impl CodeMeaning<()> {
    /// Returns the decoding of a table's codes.
    pub fn of(table: &CodeTable) -> Self {
        match table.steps() {
            Some((first, step)) => Self::Steps { first, step },
            None if table.ascends() => Self::Table(()),
            None => Self::Unordered,
        }
    }

    /// Adds the location of the table, which `place` creates only if the decoding needs it.
    pub fn with_table<T>(self, place: impl FnOnce() -> Result<T>) -> Result<CodeMeaning<T>> {
        Ok(match self {
            Self::Steps { first, step } => CodeMeaning::Steps { first, step },
            Self::Table(()) => CodeMeaning::Table(place()?),
            Self::Unordered => CodeMeaning::Unordered,
        })
    }
}

/// Destination of the bytes of parts.
pub(super) trait Memory {
    /// Stores bytes at the beginning of a cache line and returns their address, which is never 0.
    fn put(&mut self, bytes: &[u8]) -> Result<u64>;

    /// Stores bytes that belong to a block. The caller still holds the block while it creates a
    /// part of it.
    fn put_stored(&mut self, bytes: &[u8]) -> Result<u64> {
        self.put(bytes)
    }

    /// Returns the decoding of a table's codes. A lookup table is stored once, however often it is
    /// used.
    fn meaning(&mut self, table: &CodeTable) -> Result<CodeMeaning<u64>>;
}

/// Stores a block of `rows` rows and returns its part.
pub(super) fn part_of(block: &Block, rows: usize, domain: &Domain, memory: &mut impl Memory) -> Result<Part> {
    let view = block.view();
    let mut part = Part::default();
    match view.values {
        _ if matches!(view.valid, ViewValid::None) => part.form = form::NULL,
        ViewValues::Packed { base, bias, low, high } => {
            (part.base, part.bias) = (base, bias);
            let width = |plane: Option<Plane<'_>>| plane.map_or(0, Plane::width);
            part.width = width(low) + width(high);
            match (low, high) {
                (Some(low), Some(high)) if high.width() > 0 => {
                    (part.low, part.high) = (put_plane(low, rows, memory)?, put_plane(high, rows, memory)?);
                    part.form = form::WIDE + part.width;
                }
                (Some(low), _) if low.width() > 0 => {
                    part.low = put_plane(low, rows, memory)?;
                    part.form = form::PACKED + part.width;
                }
                _ => part.form = form::SAME,
            }
        }
        ViewValues::Codes32(table, codes) if codes.width() == 0 => {
            (part.form, part.base) = (form::SAME, table.first().map_or(0, |value| i64::from(*value)));
        }
        ViewValues::Codes64(table, codes) if codes.width() == 0 => {
            (part.form, part.base) = (form::SAME, table.first().copied().unwrap_or(0));
        }
        ViewValues::Codes32(table, codes) => {
            put_codes(&CodeTable::I32(Arc::clone(table)), codes, (block, rows, domain), &mut part, memory)?
        }
        ViewValues::Codes64(table, codes) => {
            put_codes(&CodeTable::I64(Arc::clone(table)), codes, (block, rows, domain), &mut part, memory)?
        }
        ViewValues::Rows(first) => (part.form, part.base) = (form::ROWS, first as i64),
        ViewValues::I32(values) => (part.form, part.low) = (form::I32, memory.put(bytes_of(&values[..rows]))?),
        ViewValues::I64(values) => (part.form, part.low) = (form::I64, memory.put(bytes_of(&values[..rows]))?),
        ViewValues::I128(values) => (part.form, part.low) = (form::I128, memory.put(bytes_of(&values[..rows]))?),
        ViewValues::F64(values) => (part.form, part.low) = (form::F64, memory.put(bytes_of(&values[..rows]))?),
        ViewValues::Other => (part.form, part.low) = put_decoded(block, rows, domain, memory)?,
    }
    part.valid = match view.valid {
        ViewValid::All | ViewValid::None => 0,
        ViewValid::Bits(plane) => put_plane(plane, rows, memory)?,
        ViewValid::Bytes(valid) => memory.put(bytes_of(&lane_bits(&valid[..rows])))?,
    };
    Ok(part)
}

/// Returns true if kernels can read a block as it is stored, whichever path brings its bytes.
/// [`part_of_place`] creates the part of such a block.
pub(crate) fn is_read_as_stored(place: &BlockPlace, meaning: StoredMeaning<'_>) -> bool {
    match meaning {
        StoredMeaning::Biased(_) => true,
        StoredMeaning::Codes(table) if place.low.is_none() => table.get(place.base as usize).is_some(),
        StoredMeaning::Codes(table) => CodeMeaning::of(table) != CodeMeaning::Unordered,
    }
}

/// As [`part_of`], for a block whose planes are on the device as they are stored.
pub(super) fn part_of_place(
    place: &BlockPlace,
    meaning: StoredMeaning<'_>,
    planes: Planes,
    memory: &mut impl Memory,
) -> Result<Part> {
    let mut part = Part::default();
    if place.null_count == place.rows {
        part.form = form::NULL;
        return Ok(part);
    }
    let [low, high] = place.bits;
    match (meaning, place.low, place.high) {
        (StoredMeaning::Biased(bias), of_low, of_high) => {
            (part.base, part.bias) = (place.base, bias);
            (part.form, part.width) = match (of_low, of_high) {
                (Some(_), Some(_)) => (form::WIDE + low + high, low + high),
                (Some(_), None) => (form::PACKED + low, low),
                (None, _) => (form::SAME, 0),
            };
        }
        (StoredMeaning::Codes(table), None, _) => {
            let base = table.get(place.base as usize).ok_or_else(|| Error::refused("a code without a dictionary"))?;
            (part.form, part.base) = (form::SAME, base);
        }
        (StoredMeaning::Codes(table), Some(_), _) => match memory.meaning(table)? {
            CodeMeaning::Steps { first, step } => part.set_steps(first, step, low),
            CodeMeaning::Table(at) => part.set_codes(at, table.len(), matches!(table, CodeTable::I64(_)), low),
            CodeMeaning::Unordered => return Err(Error::refused("codes in no order")),
        },
    }
    (part.low, part.high, part.valid) = (planes.low, planes.high, planes.valid);
    Ok(part)
}

fn put_plane(plane: Plane<'_>, rows: usize, memory: &mut impl Memory) -> Result<u64> {
    memory.put_stored(bytes_of(plane.vectors(rows.div_ceil(VECTOR_ROWS))))
}

/// Stores codes and their decoding. If the values are in no order, it stores decoded values
/// instead.
fn put_codes(
    table: &CodeTable,
    codes: Plane<'_>,
    (block, rows, domain): (&Block, usize, &Domain),
    part: &mut Part,
    memory: &mut impl Memory,
) -> Result<()> {
    match memory.meaning(table)? {
        CodeMeaning::Steps { first, step } => part.set_steps(first, step, codes.width()),
        CodeMeaning::Table(at) => part.set_codes(at, table.len(), matches!(table, CodeTable::I64(_)), codes.width()),
        CodeMeaning::Unordered => {
            (part.form, part.low) = put_decoded(block, rows, domain, memory)?;
            return Ok(());
        }
    }
    part.low = put_plane(codes, rows, memory)?;
    Ok(())
}

/// Stores the decoded values of a block. Returns their form and address.
fn put_decoded(block: &Block, rows: usize, domain: &Domain, memory: &mut impl Memory) -> Result<(u32, u64)> {
    if domain.ty == Type::Double {
        return Ok((form::F64, memory.put(bytes_of(&block.decoded_doubles(rows)?))?));
    }
    let values = block.decoded_integers(rows)?;
    Ok(match Kind::of(domain) {
        Kind::I128 => (form::I128, memory.put(bytes_of(&values))?),
        Kind::I64 => {
            let narrow: Vec<i64> = values.iter().map(|value| *value as i64).collect();
            (form::I64, memory.put(bytes_of(&narrow))?)
        }
        _ => {
            let narrow: Vec<i32> = values.iter().map(|value| *value as i32).collect();
            (form::I32, memory.put(bytes_of(&narrow))?)
        }
    })
}

/// Returns the form that a block would have, without storing it.
pub(super) fn form_of(block: &Block, rows: usize, domain: &Domain) -> Result<u32> {
    struct Nowhere;
    impl Memory for Nowhere {
        fn put(&mut self, _: &[u8]) -> Result<u64> {
            Ok(1)
        }

        fn meaning(&mut self, table: &CodeTable) -> Result<CodeMeaning<u64>> {
            CodeMeaning::of(table).with_table(|| Ok(1))
        }
    }
    Ok(part_of(block, rows, domain, &mut Nowhere)?.form)
}

/// Converts bytes that are 0 or 1 to bits in lane geometry.
fn lane_bits(bytes: &[u8]) -> Vec<u32> {
    let mut words = vec![0u32; bytes.len().div_ceil(VECTOR_ROWS) * LANES];
    for (row, byte) in bytes.iter().enumerate() {
        let (vector, row) = (row / VECTOR_ROWS, row % VECTOR_ROWS);
        words[vector * LANES + row % LANES] |= u32::from(*byte) << (row / LANES);
    }
    words
}
