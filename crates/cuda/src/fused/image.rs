//! What a device has of a column: the planes as they are stored, and for each morsel a [`Part`] that says where they are
//! and what they mean. Nothing is decoded on the way, but for what is not stored as integers.
//!
//! ```text
//! data    | planes of morsel 0 | tables of its segment | planes of morsel 1 | ...      one allocation
//! parts   | Part 0 | Part 1 | ...                                                      as device.cuh reads them
//! codes   | CodeWord 0 | ...                            32 values each of the tables that codes of the parts stand for
//! ```
//! Widths and kinds are the *forms* of a part. Kernels are made for the forms that a column has; those of more than
//! [`MOST_FORMS`] widths are read with the width at hand.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use onehop_pipeline::cpu::Kind;
use onehop_pipeline::{Block, Domain, Source, Type, ViewValid, ViewValues};
use onehop_segment::Plane;
use onehop_segment::packed::{LANES, VECTOR_ROWS};

use super::{Error, Result};
use crate::{Context, DeviceBuf};

/// Widths of a column that kernels are made for.
pub const MOST_FORMS: usize = 8;

/// Every plane begins on such a boundary: what a warp reads at once are whole lines.
const ALIGNMENT: usize = 256;

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
    /// Added after that. Of codes: how many there are.
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
}

/// What codes of a table are to what they stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeOrder {
    /// The same: the table need not be asked. So it is with texts, if all segments have the same ones.
    Themselves,
    /// In the same order.
    Ascending,
    /// In none.
    Other,
}

impl CodeOrder {
    /// Of what the codes from 0 on stand for.
    pub fn of<T: Copy + PartialOrd + Into<i64>>(table: &[T]) -> Self {
        match () {
            () if table.iter().enumerate().all(|(code, value)| (*value).into() == code as i64) => Self::Themselves,
            () if table.is_sorted() => Self::Ascending,
            () => Self::Other,
        }
    }
}

/// What the fields of a [`Part`] mean, as device.cuh has it: the last four have a width added.
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
    pub const WIDE: u32 = 128;
    pub const CODES: u32 = 192;
    pub const CODES64: u32 = 256;
}

/// Up to 32 values that codes stand for, as kernels read them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct CodeWord {
    values: u64,
    /// The number of the table's first.
    first: u32,
    count: u16,
    is_wide: u16,
}

const _: () = assert!(size_of::<CodeWord>() == 16);

/// What the codes of a column stand for.
#[derive(Debug)]
pub(super) struct Codes {
    /// A [`CodeWord`] for every 32 of them.
    pub words: DeviceBuf,
    /// Of each morsel, which word is its first.
    pub first: DeviceBuf,
    /// Words.
    pub count: usize,
}

/// A column in device memory.
#[derive(Debug)]
pub struct ColumnImage {
    data: DeviceBuf,
    parts: DeviceBuf,
    /// If any of the parts has codes.
    codes: Option<Codes>,
    /// The most frequent first.
    forms: Vec<u32>,
}

/// Where kernels get columns from: whoever keeps them on the device, or puts them there when they are asked for. May be
/// called from many threads.
pub trait Images: Debug + Send + Sync {
    /// A column of all morsels of a source. It stays while somebody holds it.
    ///
    /// # Errors
    /// Those of the source and of the device, which may have no memory left.
    fn column(&self, source: &Arc<dyn Source>, column: usize) -> Result<Arc<ColumnImage>>;
}

/// Images that are made for a run, and gone with it.
#[derive(Debug)]
pub struct Uploads {
    context: Arc<Context>,
}

impl Uploads {
    /// Into a context's memory.
    pub fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context) }
    }
}

impl Images for Uploads {
    fn column(&self, source: &Arc<dyn Source>, column: usize) -> Result<Arc<ColumnImage>> {
        ColumnImage::upload(&self.context, &**source, column).map(Arc::new)
    }
}

impl ColumnImage {
    /// Copies a column of a source to a device, and waits.
    ///
    /// # Errors
    /// Those of the source and of the device.
    pub fn upload(context: &Arc<Context>, source: &dyn Source, column: usize) -> Result<Self> {
        Builder::of(source, column)?.finish(context)
    }

    /// Made of what is there already: `parts` are those of the morsels, in their order, and hold addresses in `data`.
    ///
    /// # Errors
    /// Those of the device.
    pub fn of_parts(context: &Arc<Context>, data: DeviceBuf, parts: &[Part]) -> Result<Self> {
        let mut buffer = DeviceBuf::new(context, size_of_val(parts))?;
        buffer.copy_from(0, bytes_of(parts))?;
        let codes = Codes::of(context, parts)?;
        Ok(Self { data, parts: buffer, codes, forms: forms_of(parts) })
    }

    /// What codes stand for, if there are any.
    pub(super) fn codes(&self) -> Option<&Codes> {
        self.codes.as_ref()
    }

    /// Where the parts are.
    pub(super) fn address(&self) -> u64 {
        self.parts.address()
    }

    /// Its forms, the most frequent ones first.
    pub(super) fn forms(&self) -> &[u32] {
        &self.forms
    }

    /// Bytes of device memory that it takes.
    pub fn bytes(&self) -> usize {
        let codes = self.codes.as_ref().map_or(0, |codes| codes.words.len() + codes.first.len());
        self.data.len() + self.parts.len() + codes
    }
}

impl Codes {
    fn of(context: &Arc<Context>, parts: &[Part]) -> Result<Option<Self>> {
        let mut words: Vec<CodeWord> = Vec::new();
        let mut first_of: BTreeMap<u64, u32> = BTreeMap::new();
        let mut first: Vec<u32> = Vec::with_capacity(parts.len());
        for part in parts {
            if part.form <= form::CODES {
                first.push(0);
                continue;
            }
            // Kernels would find nothing, and say so.
            if part.table == 0 || part.bias == 0 {
                return Err(Error::refused("codes of nobody knows what"));
            }
            let is_wide = part.form > form::CODES64;
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
        if words.is_empty() {
            return Ok(None);
        }
        let upload = |bytes: &[u8]| -> Result<DeviceBuf> {
            let mut buffer = DeviceBuf::new(context, bytes.len())?;
            buffer.copy_from(0, bytes)?;
            Ok(buffer)
        };
        Ok(Some(Self { words: upload(bytes_of(&words))?, first: upload(bytes_of(&first))?, count: words.len() }))
    }
}

/// The forms of parts, the most frequent first.
fn forms_of(parts: &[Part]) -> Vec<u32> {
    let mut counts = BTreeMap::new();
    parts.iter().for_each(|part| *counts.entry(part.form).or_insert(0) += 1);
    let mut forms: Vec<(u32, usize)> = counts.into_iter().collect();
    forms.sort_by_key(|(form, morsels)| (std::cmp::Reverse(*morsels), *form));
    forms.into_iter().map(|(form, _)| form).collect()
}

/// The forms that a source's column would have on a device.
pub(super) fn forms_of_column(source: &dyn Source, column: usize) -> Result<Vec<u32>> {
    Ok(forms_of(&Builder::of(source, column)?.parts))
}

/// The memory of plain values.
fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: numbers, and structures of numbers without anything between them.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }
}

/// Puts an image together on the host. Until it is finished, addresses are offsets, of which 0 is none: data begins after
/// some bytes that nobody uses.
#[derive(Debug, Default)]
struct Builder {
    data: Vec<u8>,
    parts: Vec<Part>,
    /// Tables that are there already, by where they are on the host.
    tables: BTreeMap<usize, u64>,
}

impl Builder {
    fn of(source: &dyn Source, column: usize) -> Result<Self> {
        let mut builder = Self::default();
        for morsel in 0..source.morsels() {
            let block = source.load(morsel, column)?;
            builder.push(&block, source.rows(morsel), &source.columns()[column])?;
        }
        Ok(builder)
    }

    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = (self.data.len() + 1).next_multiple_of(ALIGNMENT);
        self.data.resize(at, 0);
        self.data.extend_from_slice(bytes);
        at as u64
    }

    fn plane(&mut self, plane: Plane<'_>, rows: usize) -> u64 {
        let at = self.put(&[]);
        for vector in 0..rows.div_ceil(VECTOR_ROWS) {
            self.data.extend_from_slice(bytes_of(plane.vector(vector)));
        }
        at
    }

    fn table<T: Copy>(&mut self, table: &[T]) -> u64 {
        if let Some(at) = self.tables.get(&table.as_ptr().addr()) {
            return *at;
        }
        let at = self.put(bytes_of(table));
        self.tables.insert(table.as_ptr().addr(), at);
        at
    }

    fn push(&mut self, block: &Block, rows: usize, domain: &Domain) -> Result<()> {
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
                        (part.low, part.high) = (self.plane(low, rows), self.plane(high, rows));
                        part.form = form::WIDE + part.width;
                    }
                    (Some(low), _) if low.width() > 0 => {
                        part.low = self.plane(low, rows);
                        part.form = form::PACKED + part.width;
                    }
                    _ => part.form = form::SAME,
                }
            }
            ViewValues::Codes32(table, plane) if plane.width() == 0 => {
                (part.form, part.base) = (form::SAME, table.first().map_or(0, |value| i64::from(*value)));
            }
            ViewValues::Codes64(table, plane) if plane.width() == 0 => {
                (part.form, part.base) = (form::SAME, table.first().copied().unwrap_or(0));
            }
            ViewValues::Codes32(table, plane) if CodeOrder::of(table) == CodeOrder::Themselves => {
                (part.low, part.width) = (self.plane(plane, rows), plane.width());
                part.form = form::PACKED + part.width;
            }
            ViewValues::Codes32(table, plane) if CodeOrder::of(table) == CodeOrder::Ascending => {
                part.set_codes(self.table(table), table.len(), false, plane.width());
                part.low = self.plane(plane, rows);
            }
            ViewValues::Codes64(table, plane) if CodeOrder::of(table) == CodeOrder::Ascending => {
                part.set_codes(self.table(table), table.len(), true, plane.width());
                part.low = self.plane(plane, rows);
            }
            ViewValues::Rows(first) => (part.form, part.base) = (form::ROWS, first as i64),
            ViewValues::I32(values) => {
                (part.form, part.low) = (form::I32, self.put(bytes_of(&values[..rows])));
            }
            ViewValues::I64(values) => {
                (part.form, part.low) = (form::I64, self.put(bytes_of(&values[..rows])));
            }
            ViewValues::I128(values) => {
                (part.form, part.low) = (form::I128, self.put(bytes_of(&values[..rows])));
            }
            ViewValues::F64(values) => {
                (part.form, part.low) = (form::F64, self.put(bytes_of(&values[..rows])));
            }
            ViewValues::Other if domain.ty == Type::Double => {
                (part.form, part.low) = (form::F64, self.put(bytes_of(&block.decoded_doubles(rows)?)));
            }
            // Codes are in the order of what they stand for, or nobody makes use of them.
            ViewValues::Other | ViewValues::Codes32(..) | ViewValues::Codes64(..) => {
                let values = block.decoded_integers(rows)?;
                (part.form, part.low) = match Kind::of(domain) {
                    Kind::I128 => (form::I128, self.put(bytes_of(&values))),
                    Kind::I64 => {
                        let narrow: Vec<i64> = values.iter().map(|value| *value as i64).collect();
                        (form::I64, self.put(bytes_of(&narrow)))
                    }
                    _ => {
                        let narrow: Vec<i32> = values.iter().map(|value| *value as i32).collect();
                        (form::I32, self.put(bytes_of(&narrow)))
                    }
                };
            }
        }
        part.valid = match view.valid {
            ViewValid::All | ViewValid::None => 0,
            ViewValid::Bits(plane) => self.plane(plane, rows),
            ViewValid::Bytes(valid) => {
                let words = lane_bits(&valid[..rows]);
                self.put(bytes_of(&words))
            }
        };
        self.parts.push(part);
        Ok(())
    }

    fn finish(mut self, context: &Arc<Context>) -> Result<ColumnImage> {
        let mut data = DeviceBuf::new(context, self.data.len())?;
        data.copy_from(0, &self.data)?;
        for part in &mut self.parts {
            for address in [&mut part.low, &mut part.high, &mut part.valid, &mut part.table] {
                *address += if *address == 0 { 0 } else { data.address() };
            }
        }
        ColumnImage::of_parts(context, data, &self.parts)
    }
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
