//! Whole columns in device memory, and the interface that puts them there.
//!
//! ```text
//! data    | planes of morsel 0 | tables of its segment | planes of morsel 1 | ...   one allocation
//! parts   | Part 0 | Part 1 | ...                                       as device.cuh reads them
//! codes   | CodeWord 0 | ...        up to 32 values each of the code tables that the parts use
//! ```
//! Kernels are generated for the forms that a column's parts have. If a column has more than
//! [`MOST_FORMS`] widths, the kernel reads parts of the others with a width that is known only at
//! run time.

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

/// Maximum number of widths of one column that a kernel is specialized for.
pub const MOST_FORMS: usize = 8;

/// Alignment of every plane, so that a warp reads whole cache lines.
const ALIGNMENT: usize = 256;

/// Values that the codes of a column stand for.
#[derive(Debug)]
pub(super) struct Codes {
    /// Code words, one for every 32 codes.
    pub words: DeviceBuf,
    /// Index of the first code word of each morsel.
    pub first: DeviceBuf,
    /// Copy of `first` in host memory.
    pub first_of: Vec<u32>,
    /// Number of code words.
    pub count: usize,
}

/// A column in device memory.
#[derive(Debug)]
pub struct ColumnImage {
    data: DeviceBuf,
    parts: DeviceBuf,
    /// Copy of the parts in host memory. Their addresses are device addresses.
    parts_of: Vec<Part>,
    /// Code words, if any part has codes.
    codes: Option<Codes>,
    /// Forms of the parts, the most frequent first.
    forms: Vec<u32>,
}

/// Source of the columns that kernels read: it keeps columns on the device, or copies them there on
/// request. Its methods may be called from many threads.
pub trait Images: Debug + Send + Sync {
    /// Returns a column of all morsels of a source. The column stays on the device as long as a
    /// caller holds it. Returns `None` if the column is not to be on the device as a whole; it is
    /// then streamed.
    ///
    /// # Errors
    /// Errors of the source and of the device, which may be out of memory.
    fn column(&self, source: &Arc<dyn Source>, column: usize) -> Result<Option<Arc<ColumnImage>>>;

    /// Returns several columns, in the order of `columns`.
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

    /// Returns the facts known about the given morsels of a column before they are read. Each
    /// morsel comes with its number of rows.
    ///
    /// # Errors
    /// Errors of the source.
    fn outlook(&self, source: &dyn Source, column: usize, morsels: &[(u32, u32)]) -> Result<Outlook> {
        Outlook::of_first(source, column, morsels)
    }

    /// Returns the path by which streamed columns come from storage.
    fn path(&self) -> DevicePath {
        DevicePath::Staged
    }

    /// Records the data of a source that was brought to the device for one run alone.
    fn streamed(&self, _source: &Arc<dyn Source>, _carried: &Carried) {}
}

/// Amount of data that was brought to a device.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// Bytes that were copied from host memory.
    pub copied_bytes: u64,
    /// Bytes that were read from storage to the device without being processed by the host.
    pub read_bytes: u64,
    /// Number of these reads.
    pub reads: u64,
    /// Bytes of these reads that the query needed.
    pub needed_bytes: u64,
    /// Transfer path, if there is anything to report.
    pub brought: Option<Brought>,
}

/// Expected representation of a column's morsels on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Expected forms, the most frequent first. A part of another form needs another kernel.
    pub forms: Vec<u32>,
    /// Maximum bytes of each morsel. A morsel that needs more is copied by itself, which is slow.
    pub bytes: Vec<usize>,
    /// Number of codes of a segment, if it has any.
    pub codes: usize,
}

impl Outlook {
    /// Derives the outlook from the type of the column and its first morsel, for a source about
    /// which nothing else is known.
    ///
    /// # Errors
    /// Errors of the source.
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

/// Images that are created for one run and freed after it.
#[derive(Debug)]
pub struct Uploads {
    context: Arc<Context>,
}

impl Uploads {
    /// Creates images in the memory of a context.
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
    /// Copies a column of a source to a device and waits for the copy.
    ///
    /// # Errors
    /// Errors of the source and of the device.
    pub fn upload(context: &Arc<Context>, source: &dyn Source, column: usize) -> Result<Self> {
        Builder::of(source, column)?.finish(context)
    }

    /// Creates an image from data on the device. `parts` are those of the morsels, in order, and
    /// hold addresses in `data`.
    ///
    /// # Errors
    /// Errors of the device.
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

    /// Returns the code words, if the column has codes.
    pub(super) fn codes(&self) -> Option<&Codes> {
        self.codes.as_ref()
    }

    /// Returns the device address of the parts.
    pub(crate) fn address(&self) -> u64 {
        self.parts.address()
    }

    /// Returns the number of parts.
    pub(crate) fn parts(&self) -> usize {
        self.parts_of.len()
    }

    /// Returns the part of a morsel.
    pub(super) fn part(&self, morsel: usize) -> Part {
        self.parts_of[morsel]
    }

    /// Returns its forms, the most frequent first.
    pub(crate) fn forms(&self) -> &[u32] {
        &self.forms
    }

    /// Returns the number of bytes of device memory that it takes.
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

/// Returns the forms that a source's column would have on a device.
pub(super) fn forms_of_column(source: &dyn Source, column: usize) -> Result<Vec<u32>> {
    Ok(forms_of(&Builder::of(source, column)?.parts))
}

/// Assembles an image in host memory. Until it is finished, addresses are offsets. Offset 0 means
/// none, so data begins after some unused bytes.
#[derive(Debug, Default)]
struct Builder {
    data: Vec<u8>,
    parts: Vec<Part>,
    /// Meanings of the code tables seen so far, by their address in host memory.
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
