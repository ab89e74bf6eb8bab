//! A column of a morsel as kernels read it: where its planes are, and what they mean. Nothing is decoded on the way, but for
//! what is not stored as integers.
//!
//! Widths and kinds are the *form* of a part. [`part_of`] makes one of a block, whose bytes go wherever a [`Memory`] puts them.

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
    /// Address of packed words, or of values.
    pub low: u64,
    /// Of the words of what lies above 32 bits.
    pub high: u64,
    /// Of a bit per row, in lane geometry; 0 if every row has a value.
    pub valid: u64,
    /// Of what codes stand for.
    pub table: u64,
    /// Added to what is packed, wrapped around.
    pub base: i64,
    /// Added after that. Of codes: how many there are. Of steps: how far one is from the next.
    pub bias: u64,
    /// A [`form`].
    pub form: u32,
    /// Bits of packed values, both planes together.
    pub width: u32,
}

const _: () = assert!(size_of::<Part>() == 56);

impl Part {
    /// Becomes one of codes of `width` bits, for `values` values that ascend, of 32 bits or of 64 in a table at `table`.
    pub fn set_codes(&mut self, table: u64, values: usize, is_wide: bool, width: u32) {
        let form = if is_wide { form::CODES64 } else { form::CODES };
        (self.table, self.bias, self.width, self.form) = (table, values as u64, width, form + width);
    }

    /// Becomes one of codes of `width` bits that stand for `first` and what follows it in steps: nobody looks them up. Steps
    /// of one are offsets like any other.
    pub fn set_steps(&mut self, first: i64, step: u64, width: u32) {
        (self.base, self.width) = (first, width);
        (self.bias, self.form) = match step {
            1 => (0, form::PACKED + width),
            _ => (step, form::STEPS + width),
        };
    }
}

/// What the fields of a [`Part`] mean, as device.cuh has it: the last five have a width added.
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

    /// What a form says, taken apart: numbers are the bits of a value.
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
        /// Of a form that a part has.
        pub fn of(form: u32) -> Self {
            match form {
                SAME => Self::Same,
                NULL => Self::Null,
                ROWS => Self::Rows,
                I32 => Self::I32,
                I64 => Self::I64,
                I128 => Self::I128,
                // What a width is added to has 64 forms behind it, the last of which is that of 64 bits.
                _ if form <= PACKED => Self::F64,
                _ if form <= STEPS => Self::Packed(form - PACKED),
                _ if form <= WIDE => Self::Steps(form - STEPS),
                _ if form <= CODES => Self::Wide(form - WIDE),
                _ if form <= CODES64 => Self::Codes(form - CODES),
                _ => Self::Codes64(form - CODES64),
            }
        }

        /// Bits of a value, if a vector's are in a single plane: offsets, steps, or codes.
        pub fn width_of_plane(self) -> Option<u32> {
            match self {
                Self::Packed(width) | Self::Steps(width) | Self::Codes(width) | Self::Codes64(width) => Some(width),
                _ => None,
            }
        }

        /// Bits of an offset from a base, in one plane or two.
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
    /// The number of the table's first.
    first: u32,
    count: u16,
    is_wide: u16,
}

const _: () = assert!(size_of::<CodeWord>() == 16);

/// Words that stand for all codes of parts, and of each part, which word is its first; nothing if none of them has codes.
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
        // Kernels would find nothing, and say so.
        if part.table == 0 || part.bias == 0 {
            return Err(Error::refused("codes of nobody knows what"));
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

/// The forms of parts, the most frequent first.
pub(super) fn forms_of(parts: &[Part]) -> Vec<u32> {
    by_frequency(parts.iter().map(|part| part.form))
}

/// Forms, the most frequent first.
pub(crate) fn by_frequency(forms: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut counts = BTreeMap::new();
    forms.into_iter().for_each(|form| *counts.entry(form).or_insert(0usize) += 1);
    let mut forms: Vec<(u32, usize)> = counts.into_iter().collect();
    forms.sort_by_key(|(form, morsels)| (std::cmp::Reverse(*morsels), *form));
    forms.into_iter().map(|(form, _)| form).collect()
}

/// The memory of plain values.
pub(crate) fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: numbers, and structures of numbers without anything between them.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }
}

/// The memory of a table of codes.
pub(crate) fn bytes_of_table(table: &CodeTable) -> &[u8] {
    match table {
        CodeTable::I32(values) => bytes_of(values),
        CodeTable::I64(values) => bytes_of(values),
    }
}

/// How kernels get from a code to what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeMeaning<T> {
    /// By a multiplication: it is so many steps above the first.
    Steps { first: i64, step: u64 },
    /// By a table, whose values ascend.
    Table(T),
    /// Not at all: what does not ascend is nothing that a range could be looked up in.
    Unordered,
}

impl CodeMeaning<()> {
    /// Of the codes of a table.
    pub fn of(table: &CodeTable) -> Self {
        match table.steps() {
            Some((first, step)) => Self::Steps { first, step },
            None if table.ascends() => Self::Table(()),
            None => Self::Unordered,
        }
    }

    /// With its table in a place that is asked for if there is need of one.
    pub fn with_table<T>(self, place: impl FnOnce() -> Result<T>) -> Result<CodeMeaning<T>> {
        Ok(match self {
            Self::Steps { first, step } => CodeMeaning::Steps { first, step },
            Self::Table(()) => CodeMeaning::Table(place()?),
            Self::Unordered => CodeMeaning::Unordered,
        })
    }
}

/// Where the bytes of parts go.
pub(super) trait Memory {
    /// Puts bytes where a line begins, and says where that is, which is never 0.
    fn put(&mut self, bytes: &[u8]) -> Result<u64>;

    /// The same of bytes that are the block's own, which whoever makes a part of it still has.
    fn put_stored(&mut self, bytes: &[u8]) -> Result<u64> {
        self.put(bytes)
    }

    /// What codes of a table mean. If it has to be looked up, it is put there once, however often it comes.
    fn meaning(&mut self, table: &CodeTable) -> Result<CodeMeaning<u64>>;
}

/// Puts a block of so many rows somewhere, as a part.
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

/// Whether kernels can read a block as it is stored, whoever brings its bytes: [`part_of_place`] has a part of it.
pub(crate) fn is_read_as_stored(place: &BlockPlace, meaning: StoredMeaning<'_>) -> bool {
    match meaning {
        StoredMeaning::Biased(_) => true,
        StoredMeaning::Codes(table) if place.low.is_none() => table.get(place.base as usize).is_some(),
        StoredMeaning::Codes(table) => CodeMeaning::of(table) != CodeMeaning::Unordered,
    }
}

/// As [`part_of`], of a block whose planes are on the device as they are stored.
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
            let base = table.get(place.base as usize).ok_or_else(|| Error::refused("a code of nobody knows what"))?;
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

/// Puts codes with what they mean. If that is in no order, nobody makes use of codes.
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

/// Puts the values of a block one by one, whatever they are stored as; their form, and where they are.
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

/// The form that a block would have, put nowhere.
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

/// Bytes that are 0 or 1 as bits in lane geometry.
fn lane_bits(bytes: &[u8]) -> Vec<u32> {
    let mut words = vec![0u32; bytes.len().div_ceil(VECTOR_ROWS) * LANES];
    for (row, byte) in bytes.iter().enumerate() {
        let (vector, row) = (row / VECTOR_ROWS, row % VECTOR_ROWS);
        words[vector * LANES + row % LANES] |= u32::from(*byte) << (row / LANES);
    }
    words
}
