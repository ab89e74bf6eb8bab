//! Columns whose values have 64-bit keys: integers, booleans, dates, timestamps, floats, most
//! decimals.
//!
//! Each block is kept as its least key plus packed differences. When the segment ends, the builder
//! selects the cheapest of three encodings: packed at the widest block's width; codes of a sorted
//! dictionary; for floats, plain values.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, BooleanArray};
use arrow_schema::TimeUnit;

use super::distinct::Distinct;
use super::validity::{BlockValidity, Validity};
use super::{ColumnBuilder, DictionaryBytes, EncodedColumn, PackedRun, type_mismatch};
use crate::isa::per_isa;
use crate::layout::{EncodingCode, chunk};
use crate::packed::width_of;
use crate::types::{ColumnType, f32_key, f32_of_key, f64_key, f64_of_key, u64_key};
use crate::zone::{Zeroes, Zone};
use crate::{Error, Result};

/// Collects keys.
pub(crate) struct FixedBuilder {
    name: String,
    column_type: ColumnType,
    staged: Vec<i64>,
    validity: Validity,
    blocks: Vec<KeyBlock>,
    distinct: Distinct,
}

/// A finished block: `base` plus packed differences. NULLs have difference 0.
#[derive(Debug)]
struct KeyBlock {
    base: i64,
    rows: usize,
    differences: PackedRun,
    validity: BlockValidity,
    zone: Zone,
}

impl FixedBuilder {
    /// Creates a builder of a column.
    pub fn new(name: &str, column_type: ColumnType) -> Self {
        Self {
            name: name.to_string(),
            column_type,
            staged: Vec::new(),
            validity: Validity::default(),
            blocks: Vec::new(),
            distinct: Distinct::default(),
        }
    }

    fn zeroes(&self) -> Zeroes {
        match self.column_type {
            ColumnType::Float32 | ColumnType::Float64 => Zeroes::Two,
            _ => Zeroes::One,
        }
    }

    fn stage<T: ArrowPrimitiveType>(&mut self, array: &dyn Array, key: impl Fn(T::Native) -> i64) -> Result<()> {
        let Some(array) = array.as_primitive_opt::<T>() else {
            return Err(type_mismatch(&self.name, &self.column_type, array.data_type()));
        };
        self.staged.extend(array.values().iter().map(|value| key(*value)));
        Ok(())
    }

    fn stage_booleans(&mut self, array: &BooleanArray) {
        self.staged.extend(array.values().iter().map(i64::from));
    }

    /// Stages all rows or, for a decimal beyond 64 bits, none.
    fn stage_decimals(&mut self, array: &dyn Array) -> Result<()> {
        let Some(array) = array.as_primitive_opt::<Decimal128Type>() else {
            return Err(type_mismatch(&self.name, &self.column_type, array.data_type()));
        };
        let start = self.staged.len();
        for (row, value) in array.values().iter().enumerate() {
            match i64::try_from(*value) {
                Ok(key) => self.staged.push(key),
                // The value under a NULL is arbitrary.
                Err(_) if array.is_null(row) => self.staged.push(0),
                Err(_) => {
                    self.staged.truncate(start);
                    return Err(Error::Value {
                        column: self.name.clone(),
                        reason: format!("{value} (unscaled) needs more than 64 bits"),
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns all keys of all blocks, as signed 128-bit values, with the validity: for a decimal
    /// that turns out wide.
    pub fn into_wide(mut self) -> Result<WideParts> {
        let staged: Vec<i128> = self.staged.iter().map(|key| i128::from(*key)).collect();
        let blocks = self
            .blocks
            .drain(..)
            .map(|block| {
                let mut values = Vec::with_capacity(block.rows);
                block.differences.for_each(|d| values.push(i128::from(block.base.wrapping_add(d as i64))));
                (values, block.validity, block.zone)
            })
            .collect();
        Ok(WideParts { blocks, staged, validity: self.validity })
    }
}

/// The contents of a [`FixedBuilder`], widened.
pub(crate) struct WideParts {
    /// The finished blocks.
    pub blocks: Vec<(Vec<i128>, BlockValidity, Zone)>,
    /// The values of the open block.
    pub staged: Vec<i128>,
    /// The validity of the open block.
    pub validity: Validity,
}

impl ColumnBuilder for FixedBuilder {
    fn append(&mut self, array: &dyn Array) -> Result<()> {
        match self.column_type.clone() {
            ColumnType::Boolean => match array.as_boolean_opt() {
                Some(array) => self.stage_booleans(array),
                None => return Err(type_mismatch(&self.name, &self.column_type, array.data_type())),
            },
            ColumnType::Int8 => self.stage::<Int8Type>(array, i64::from)?,
            ColumnType::Int16 => self.stage::<Int16Type>(array, i64::from)?,
            ColumnType::Int32 => self.stage::<Int32Type>(array, i64::from)?,
            ColumnType::Int64 => self.stage::<Int64Type>(array, |v| v)?,
            ColumnType::UInt8 => self.stage::<UInt8Type>(array, i64::from)?,
            ColumnType::UInt16 => self.stage::<UInt16Type>(array, i64::from)?,
            ColumnType::UInt32 => self.stage::<UInt32Type>(array, i64::from)?,
            ColumnType::UInt64 => self.stage::<UInt64Type>(array, u64_key)?,
            ColumnType::Float32 => self.stage::<Float32Type>(array, f32_key)?,
            ColumnType::Float64 => self.stage::<Float64Type>(array, f64_key)?,
            ColumnType::Date => self.stage::<Date32Type>(array, i64::from)?,
            ColumnType::Decimal { .. } => self.stage_decimals(array)?,
            ColumnType::Timestamp { unit, .. } => match unit {
                TimeUnit::Second => self.stage::<TimestampSecondType>(array, |v| v)?,
                TimeUnit::Millisecond => self.stage::<TimestampMillisecondType>(array, |v| v)?,
                TimeUnit::Microsecond => self.stage::<TimestampMicrosecondType>(array, |v| v)?,
                TimeUnit::Nanosecond => self.stage::<TimestampNanosecondType>(array, |v| v)?,
            },
            ColumnType::Varchar => return Err(type_mismatch(&self.name, &self.column_type, array.data_type())),
        }
        self.validity.append(array);
        Ok(())
    }

    fn end_block(&mut self) -> Result<()> {
        let rows = self.staged.len();
        if self.validity.has_nulls() {
            fill_nulls(&mut self.staged, &self.validity);
        }
        let (min, max) = min_max(&self.staged);
        let zeroes = self.zeroes();
        let validity = self.validity.take();
        let zone = if validity.null_count == rows {
            Zone::of_nulls(rows as u64, false)
        } else {
            Zone::of_keys(min.into(), max.into(), zeroes, validity.null_count as u64, rows as u64)
        };
        let width = width_of(max.wrapping_sub(min) as u64);
        if zone.has_values() {
            self.distinct.observe(&self.staged, min, max, width);
        }
        let differences = PackedRun::pack(width, self.staged.iter().map(|key| key.wrapping_sub(min) as u64));
        self.blocks.push(KeyBlock { base: min, rows, differences, validity, zone });
        self.staged.clear();
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn EncodedColumn>> {
        let width = self.blocks.iter().map(|block| block.differences.width()).max().unwrap_or(0);
        let rows: usize = self.blocks.iter().filter(|b| b.differences.width() > 0).map(|b| b.rows).sum();
        let packed_bits = rows as u64 * u64::from(width);
        let dictionary = self.distinct.sorted().map(|keys| Dictionary::new(&keys));
        if let Some(dictionary) = dictionary {
            let bits = rows as u64 * u64::from(dictionary.width()) + dictionary.bytes.len() as u64 * 8;
            // A lookup for every value must save a tenth of the bytes.
            if bits * 10 < packed_bits * 9 {
                return Ok(Box::new(dictionary.encode(self.blocks)));
            }
        }
        let form = match self.column_type.plain_bytes() {
            Some(bytes) if width as usize * 8 > bytes * 8 * 7 => Form::Plain { bytes },
            _ => Form::Packed { width },
        };
        Ok(Box::new(FixedColumn { blocks: self.blocks, form }))
    }

    fn memory_bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(|b| b.differences.memory_bytes() + b.validity.memory_bytes()).sum();
        blocks + self.staged.capacity() * 8
    }
}

/// Gives NULLs the least valid key, so that they neither widen the block nor count as values.
fn fill_nulls(keys: &mut [i64], validity: &Validity) {
    let least = (0..keys.len()).filter(|row| validity.is_valid(*row)).map(|row| keys[row]).min().unwrap_or(0);
    for (row, key) in keys.iter_mut().enumerate() {
        if !validity.is_valid(row) {
            *key = least;
        }
    }
}

per_isa! {
    /// Returns the least and greatest key, or (0, 0) without keys.
    fn min_max(keys: &[i64]) -> (i64, i64) {
        let Some(first) = keys.first() else { return (0, 0) };
        let (mut min, mut max) = (*first, *first);
        for key in keys {
            min = min.min(*key);
            max = max.max(*key);
        }
        (min, max)
    }
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Packed { width: u32 },
    Plain { bytes: usize },
}

/// Packed or plain.
struct FixedColumn {
    blocks: Vec<KeyBlock>,
    form: Form,
}

impl EncodedColumn for FixedColumn {
    fn encoding(&self) -> EncodingCode {
        match self.form {
            Form::Packed { .. } => EncodingCode::Packed,
            Form::Plain { .. } => EncodingCode::Plain,
        }
    }

    fn width(&self) -> u8 {
        match self.form {
            Form::Packed { width } => width as u8,
            Form::Plain { bytes } => bytes as u8,
        }
    }

    fn dictionary(&self) -> Option<DictionaryBytes<'_>> {
        None
    }

    fn zone(&self, block: usize) -> Zone {
        self.blocks[block].zone
    }

    fn base(&self, block: usize) -> i64 {
        self.blocks[block].base
    }

    fn chunk(&self, block: usize, chunk: usize, out: &mut Vec<u8>) {
        out.clear();
        let block = &self.blocks[block];
        if chunk == chunk::VALIDITY {
            block.validity.write(out);
        } else if block.differences.width() > 0 {
            match (self.form, chunk) {
                (Form::Packed { width }, chunk::VALUES) => block.differences.write_plane(width, 0, out),
                (Form::Packed { width }, chunk::HIGH) if width > 32 => block.differences.write_plane(width, 1, out),
                (Form::Plain { bytes }, chunk::VALUES) => block.write_plain(bytes, out),
                _ => {}
            }
        }
    }
}

impl KeyBlock {
    fn write_plain(&self, bytes: usize, out: &mut Vec<u8>) {
        self.differences.for_each(|difference| {
            let key = self.base.wrapping_add(difference as i64);
            if bytes == 4 {
                out.extend(f32_of_key(key).to_le_bytes());
            } else {
                out.extend(f64_of_key(key).to_le_bytes());
            }
        });
    }
}

/// Sorted keys, and the map from a key to its code.
struct Dictionary {
    low: i64,
    /// Codes by key - low, if the range is small enough, otherwise empty.
    by_offset: Vec<u32>,
    keys: Vec<i64>,
    bytes: Vec<u8>,
}

impl Dictionary {
    /// A table of codes up to this range is cheaper than a search (4 MiB).
    const TABLE_RANGE: u64 = 1 << 20;

    fn new(keys: &[i64]) -> Self {
        let (low, high) = (keys.first().copied().unwrap_or(0), keys.last().copied().unwrap_or(0));
        let range = high.wrapping_sub(low) as u64;
        let mut by_offset = Vec::new();
        if range <= Self::TABLE_RANGE {
            by_offset.resize(range as usize + 1, 0);
            for (code, key) in keys.iter().enumerate() {
                by_offset[key.wrapping_sub(low) as usize] = code as u32;
            }
        }
        let bytes = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        Self { low, by_offset, keys: keys.to_vec(), bytes }
    }

    fn width(&self) -> u32 {
        width_of(self.keys.len().saturating_sub(1) as u64)
    }

    fn code(&self, key: i64) -> u32 {
        debug_assert!(self.keys.binary_search(&key).is_ok(), "every key was counted");
        if self.by_offset.is_empty() {
            self.keys.partition_point(|entry| *entry < key) as u32
        } else {
            self.by_offset[key.wrapping_sub(self.low) as usize]
        }
    }

    fn encode(self, blocks: Vec<KeyBlock>) -> DictionaryColumn {
        let width = self.width();
        let blocks = blocks
            .into_iter()
            .map(|block| {
                if block.differences.width() == 0 {
                    // All NULL: any code is valid.
                    let is_null = !block.zone.has_values();
                    let base = if is_null { 0 } else { self.code(block.base) };
                    return CodeBlock {
                        base: base.into(),
                        codes: PackedRun::default(),
                        validity: block.validity,
                        zone: block.zone,
                    };
                }
                let mut codes = Vec::with_capacity(block.rows);
                block.differences.for_each(|d| codes.push(u64::from(self.code(block.base.wrapping_add(d as i64)))));
                let codes = PackedRun::pack(width, codes.into_iter());
                CodeBlock { base: 0, codes, validity: block.validity, zone: block.zone }
            })
            .collect();
        DictionaryColumn { width, entries: self.keys.len() as u32, bytes: self.bytes, blocks }
    }
}

/// Codes of a sorted dictionary: of keys here, of strings in the string builder.
pub(super) struct DictionaryColumn {
    /// The bits of a code.
    pub width: u32,
    /// The number of entries.
    pub entries: u32,
    /// The dictionary as stored.
    pub bytes: Vec<u8>,
    /// The blocks of codes.
    pub blocks: Vec<CodeBlock>,
}

/// One block of codes, packed at the column's width. It has none if all rows have code `base`.
pub(super) struct CodeBlock {
    /// The code of all rows, if none are packed.
    pub base: i64,
    /// The packed codes.
    pub codes: PackedRun,
    /// The validity of the rows.
    pub validity: BlockValidity,
    /// The statistics of the values.
    pub zone: Zone,
}

impl EncodedColumn for DictionaryColumn {
    fn encoding(&self) -> EncodingCode {
        EncodingCode::Dictionary
    }

    fn width(&self) -> u8 {
        self.width as u8
    }

    fn dictionary(&self) -> Option<DictionaryBytes<'_>> {
        Some(DictionaryBytes { entries: self.entries, bytes: &self.bytes })
    }

    fn zone(&self, block: usize) -> Zone {
        self.blocks[block].zone
    }

    fn base(&self, block: usize) -> i64 {
        self.blocks[block].base
    }

    fn chunk(&self, block: usize, chunk: usize, out: &mut Vec<u8>) {
        out.clear();
        let block = &self.blocks[block];
        match chunk {
            chunk::VALIDITY => block.validity.write(out),
            chunk::VALUES => block.codes.write_plane(block.codes.width(), 0, out),
            _ => {}
        }
    }
}
