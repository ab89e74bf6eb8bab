//! Columns in device memory as a whole, and who puts them there.
//!
//! ```text
//! data    | planes of morsel 0 | tables of its segment | planes of morsel 1 | ...      one allocation
//! parts   | Part 0 | Part 1 | ...                                                      as device.cuh reads them
//! codes   | CodeWord 0 | ...                            32 values each of the tables that codes of the parts stand for
//! ```
//! Kernels are made for the forms that a column's parts have; those of more than [`MOST_FORMS`] widths are read with the
//! width at hand.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use onehop_pipeline::backend::{Brought, DevicePath};
use onehop_pipeline::cpu::Kind;
use onehop_pipeline::{Source, ViewValues};
use onehop_segment::CodeTable;
use onehop_segment::packed::VECTOR_ROWS;

use super::Result;
use super::part::{CodeMeaning, Memory, Part, bytes_of, bytes_of_table, code_words, form_of, forms_of, part_of};
use crate::{Context, DeviceBuf};

/// Widths of a column that kernels are made for.
pub const MOST_FORMS: usize = 8;

/// Every plane begins on such a boundary: what a warp reads at once are whole lines.
const ALIGNMENT: usize = 256;

/// What the codes of a column stand for.
#[derive(Debug)]
pub(super) struct Codes {
    /// A word for every 32 of them.
    pub words: DeviceBuf,
    /// Of each morsel, which word is its first.
    pub first: DeviceBuf,
    /// The same, at hand.
    pub first_of: Vec<u32>,
    /// Words.
    pub count: usize,
}

/// A column in device memory.
#[derive(Debug)]
pub struct ColumnImage {
    data: DeviceBuf,
    parts: DeviceBuf,
    /// The same, at hand: addresses are the device's.
    parts_of: Vec<Part>,
    /// If any of the parts has codes.
    codes: Option<Codes>,
    /// The most frequent first.
    forms: Vec<u32>,
}

/// Where kernels get columns from: whoever keeps them on the device, or puts them there when they are asked for. May be
/// called from many threads.
pub trait Images: Debug + Send + Sync {
    /// A column of all morsels of a source, which stays while somebody holds it; `None` if it is not to be on the device as a
    /// whole: then it is streamed.
    ///
    /// # Errors
    /// Those of the source and of the device, which may have no memory left.
    fn column(&self, source: &Arc<dyn Source>, column: usize) -> Result<Option<Arc<ColumnImage>>>;

    /// The same of several columns, in their order.
    ///
    /// # Errors
    /// As [`Images::column`]; [`onehop_pipeline::Error::Cancelled`] soon after `cancelled` was set.
    fn columns(
        &self,
        source: &Arc<dyn Source>,
        columns: &[usize],
        _cancelled: &AtomicBool,
    ) -> Result<Vec<Option<Arc<ColumnImage>>>> {
        columns.iter().map(|column| self.column(source, *column)).collect()
    }

    /// What is known of the given morsels of a column before they are read; morsels come with their rows.
    ///
    /// # Errors
    /// Those of the source.
    fn outlook(&self, source: &dyn Source, column: usize, morsels: &[(u32, u32)]) -> Result<Outlook> {
        Outlook::of_first(source, column, morsels)
    }

    /// By which way columns that are streamed are to come from storage.
    fn path(&self) -> DevicePath {
        DevicePath::Staged
    }

    /// Is told what of a source came to the device for a run alone.
    fn streamed(&self, _source: &Arc<dyn Source>, _carried: &Carried) {}
}

/// What came to a device.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// Bytes that were copied from the host's memory.
    pub copied_bytes: u64,
    /// Bytes that were read from storage without the host looking at them.
    pub read_bytes: u64,
    /// In so many reads.
    pub reads: u64,
    /// Those of them that somebody needed.
    pub needed_bytes: u64,
    /// How they got there, if there is anything to tell.
    pub brought: Option<Brought>,
}

/// What a column's morsels are going to be on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Forms that are expected, the most frequent first. Others take another kernel when they come.
    pub forms: Vec<u32>,
    /// Bytes that each morsel takes, at most. What takes more is copied by itself, which is slow.
    pub bytes: Vec<usize>,
    /// Codes that a segment has, if it has any.
    pub codes: usize,
}

impl Outlook {
    /// Of a source of which nothing is known but the types of its columns, and its first morsel.
    ///
    /// # Errors
    /// Those of the source.
    pub fn of_first(source: &dyn Source, column: usize, morsels: &[(u32, u32)]) -> Result<Self> {
        let domain = &source.columns()[column];
        let bytes_of_value = match Kind::of(domain) {
            Kind::Bool | Kind::I32 => 4,
            Kind::I64 | Kind::F64 => 8,
            Kind::I128 => 16,
        };
        let Some((first, rows)) = morsels.first() else { return Ok(Self::default()) };
        let block = source.load(*first as usize, column)?;
        let codes = match block.view().values {
            ViewValues::Codes32(table, _) => table.len(),
            ViewValues::Codes64(table, _) => table.len(),
            _ => 0,
        };
        let forms = vec![form_of(&block, *rows as usize, domain)?];
        let bytes = |(_, rows): &(u32, u32)| {
            let rows = (*rows as usize).next_multiple_of(VECTOR_ROWS);
            rows * bytes_of_value + rows / 8 + 2 * ALIGNMENT
        };
        Ok(Self { forms, bytes: morsels.iter().map(bytes).collect(), codes })
    }
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
    fn column(&self, source: &Arc<dyn Source>, column: usize) -> Result<Option<Arc<ColumnImage>>> {
        ColumnImage::upload(&self.context, &**source, column).map(|image| Some(Arc::new(image)))
    }
}

/// No images: all columns are streamed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streamed;

impl Images for Streamed {
    fn column(&self, _: &Arc<dyn Source>, _: usize) -> Result<Option<Arc<ColumnImage>>> {
        Ok(None)
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
    pub fn of_parts(context: &Arc<Context>, data: DeviceBuf, parts: Vec<Part>) -> Result<Self> {
        let buffer = uploaded(context, bytes_of(&parts))?;
        let codes = match code_words(&parts)? {
            Some((words, first_of)) => Some(Codes {
                words: uploaded(context, bytes_of(&words))?,
                first: uploaded(context, bytes_of(&first_of))?,
                first_of,
                count: words.len(),
            }),
            None => None,
        };
        let forms = forms_of(&parts);
        Ok(Self { data, parts: buffer, parts_of: parts, codes, forms })
    }

    /// What codes stand for, if there are any.
    pub(super) fn codes(&self) -> Option<&Codes> {
        self.codes.as_ref()
    }

    /// Where the parts are.
    pub(crate) fn address(&self) -> u64 {
        self.parts.address()
    }

    /// How many parts there are.
    pub(crate) fn parts(&self) -> usize {
        self.parts_of.len()
    }

    /// The part of a morsel.
    pub(super) fn part(&self, morsel: usize) -> Part {
        self.parts_of[morsel]
    }

    /// Its forms, the most frequent ones first.
    pub(crate) fn forms(&self) -> &[u32] {
        &self.forms
    }

    /// Bytes of device memory that it takes.
    pub fn bytes(&self) -> usize {
        let codes = self.codes.as_ref().map_or(0, |codes| codes.words.len() + codes.first.len());
        self.data.len() + self.parts.len() + codes
    }
}

fn uploaded(context: &Arc<Context>, bytes: &[u8]) -> Result<DeviceBuf> {
    let mut buffer = DeviceBuf::new(context, bytes.len())?;
    buffer.copy_from(0, bytes)?;
    Ok(buffer)
}

/// The forms that a source's column would have on a device.
pub(super) fn forms_of_column(source: &dyn Source, column: usize) -> Result<Vec<u32>> {
    Ok(forms_of(&Builder::of(source, column)?.parts))
}

/// Puts an image together on the host. Until it is finished, addresses are offsets, of which 0 is none: data begins after
/// some bytes that nobody uses.
#[derive(Debug, Default)]
struct Builder {
    data: Vec<u8>,
    parts: Vec<Part>,
    /// What the codes of tables mean that were there already, by where they are on the host.
    tables: BTreeMap<usize, CodeMeaning<u64>>,
}

impl Memory for Builder {
    fn put(&mut self, bytes: &[u8]) -> Result<u64> {
        let at = (self.data.len() + 1).next_multiple_of(ALIGNMENT);
        self.data.resize(at, 0);
        self.data.extend_from_slice(bytes);
        Ok(at as u64)
    }

    fn meaning(&mut self, table: &CodeTable) -> Result<CodeMeaning<u64>> {
        let bytes = bytes_of_table(table);
        let key = bytes.as_ptr().addr();
        if let Some(meaning) = self.tables.get(&key) {
            return Ok(*meaning);
        }
        let meaning = CodeMeaning::of(table).with_table(|| self.put(bytes))?;
        self.tables.insert(key, meaning);
        Ok(meaning)
    }
}

impl Builder {
    fn of(source: &dyn Source, column: usize) -> Result<Self> {
        let mut builder = Self::default();
        for morsel in 0..source.morsels() {
            let block = source.load(morsel, column)?;
            let part = part_of(&block, source.rows(morsel), &source.columns()[column], &mut builder)?;
            builder.parts.push(part);
        }
        Ok(builder)
    }

    fn finish(mut self, context: &Arc<Context>) -> Result<ColumnImage> {
        let data = uploaded(context, &self.data)?;
        for part in &mut self.parts {
            for address in [&mut part.low, &mut part.high, &mut part.valid, &mut part.table] {
                *address += if *address == 0 { 0 } else { data.address() };
            }
        }
        ColumnImage::of_parts(context, data, self.parts)
    }
}
