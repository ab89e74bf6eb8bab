//! Writes one segment: batches in, a finished and synced file out.
//!
//! Rows are divided into blocks. Each column's builder keeps its blocks packed in memory until the
//! segment ends (a column has one width per segment, which is unknown before). Then, in file order:
//! header page, every column's dictionary and chunks, footer, trailer, and a sync. The file is
//! written front to back, once, so that it can be stored without seeks. Readers reject a segment
//! without a trailer.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef, TimeUnit};
use onehop_io::{AlignedBuf, Ledger, PAGE_BYTES, WriteAt};
use zerocopy::{FromZeros, IntoBytes};

use crate::encode::{ColumnBuilder, EncodedColumn, builder};
use crate::layout::{
    BlockRecord, ChunkRecord, ColumnRecord, FEATURE_ORIGIN, FORMAT_VERSION, FooterHead, Header, MAGIC, OriginRecord,
    Trailer, TypeCode,
};
use crate::packed::{LANES, VECTOR_ROWS};
use crate::types::ColumnType;
use crate::{BLOCK_ROWS, Error, MAX_SEGMENT_ROWS, Result};

/// The bytes collected before they are written: large enough for any device, small compared with a
/// segment.
const WRITE_BYTES: usize = 4 << 20;

/// Options of dividing rows into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentOptions {
    /// The rows in a block: a multiple of 1,024, at most 65,536. Smaller ones are for tests.
    pub block_rows: usize,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        Self { block_rows: BLOCK_ROWS }
    }
}

/// The result of writing a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The number of rows.
    pub rows: u64,
    /// The length of the file.
    pub bytes: u64,
    /// The checksum that distinguishes it from every other segment: see
    /// [`Segment::checksum`](crate::Segment::checksum).
    pub checksum: u32,
}

/// A segment under construction.
pub struct SegmentWriter {
    schema: SchemaRef,
    types: Vec<ColumnType>,
    columns: Vec<Box<dyn ColumnBuilder>>,
    options: SegmentOptions,
    origin: Option<OriginRecord>,
    rows: u64,
    open_block_rows: usize,
}

impl SegmentWriter {
    /// Creates a segment with these columns.
    ///
    /// # Errors
    /// [`Error::Type`] if a column has a type that cannot be stored, [`Error::Usage`] if the
    /// options are out of range.
    pub fn new(schema: &Schema, options: SegmentOptions) -> Result<Self> {
        let is_whole_vectors = options.block_rows.is_multiple_of(VECTOR_ROWS);
        if !is_whole_vectors || !(VECTOR_ROWS..=BLOCK_ROWS).contains(&options.block_rows) {
            return Err(Error::Usage(format!(
                "a block has {} rows, and must have a multiple of {VECTOR_ROWS} up to {BLOCK_ROWS}",
                options.block_rows
            )));
        }
        let types =
            schema.fields().iter().map(|f| ColumnType::of(f.name(), f.data_type())).collect::<Result<Vec<_>>>()?;
        let columns = schema.fields().iter().zip(&types).map(|(f, t)| builder(f.name(), t)).collect();
        Ok(Self {
            schema: Arc::new(schema.clone()),
            types,
            columns,
            options,
            origin: None,
            rows: 0,
            open_block_rows: 0,
        })
    }

    /// Records the writer in the footer.
    #[must_use]
    pub fn with_origin(mut self, origin: OriginRecord) -> Self {
        self.origin = Some(origin);
        self
    }

    /// Returns the number of rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the memory held, approximately, in bytes: the size of the segment on storage if it
    /// ended now.
    pub fn memory_bytes(&self) -> usize {
        self.columns.iter().map(|column| column.memory_bytes()).sum()
    }

    /// Adds rows. Columns are matched by position; their types must be the segment's.
    ///
    /// # Errors
    /// [`Error::Usage`] if the batch has other columns or types, or the segment would exceed
    /// [`MAX_SEGMENT_ROWS`]; [`Error::Null`] for a NULL in a column that admits none;
    /// [`Error::Value`] for values too large. After an error the writer may hold a part of the
    /// batch: drop it.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<()> {
        self.check(batch)?;
        let mut start = 0;
        while start < batch.num_rows() {
            let rows = (batch.num_rows() - start).min(self.options.block_rows - self.open_block_rows);
            for (column, array) in self.columns.iter_mut().zip(batch.columns()) {
                column.append(&array.slice(start, rows))?;
            }
            start += rows;
            self.open_block_rows += rows;
            self.rows += rows as u64;
            if self.open_block_rows == self.options.block_rows {
                self.end_block()?;
            }
        }
        Ok(())
    }

    fn check(&self, batch: &RecordBatch) -> Result<()> {
        if batch.num_columns() != self.columns.len() {
            return Err(Error::Usage(format!(
                "a batch of {} columns for a segment of {}",
                batch.num_columns(),
                self.columns.len()
            )));
        }
        if self.rows + batch.num_rows() as u64 > MAX_SEGMENT_ROWS {
            return Err(Error::Usage(format!("a segment has at most {MAX_SEGMENT_ROWS} rows")));
        }
        for (field, array) in self.schema.fields().iter().zip(batch.columns()) {
            if !field.is_nullable() && array.logical_null_count() > 0 {
                return Err(Error::Null { column: field.name().clone() });
            }
        }
        Ok(())
    }

    fn end_block(&mut self) -> Result<()> {
        self.open_block_rows = 0;
        self.columns.iter_mut().try_for_each(|column| column.end_block())
    }

    /// Writes everything to an empty file and syncs it. The caller makes the *name* of the file
    /// durable.
    pub fn finish(mut self, file: &dyn WriteAt, ledger: &Ledger) -> Result<Written> {
        if self.open_block_rows > 0 {
            self.end_block()?;
        }
        let blocks = (self.rows as usize).div_ceil(self.options.block_rows);
        let mut sink = Sink::new(file, ledger);
        let header = Header { magic: MAGIC, version: FORMAT_VERSION, reserved: 0 };
        sink.put(header.as_bytes())?;

        let mut names = Names::default();
        let mut column_records = Vec::with_capacity(self.columns.len());
        let mut block_records = Vec::with_capacity(self.columns.len() * blocks);
        for ((builder, column_type), field) in self.columns.into_iter().zip(&self.types).zip(self.schema.fields()) {
            // One column is encoded at a time, and its memory is freed before the next.
            let column = builder.finish()?;
            let mut record = describe(field.name(), field.is_nullable(), column_type, &mut names);
            write_column(&*column, blocks, &mut record, &mut block_records, &mut sink)?;
            column_records.push(record);
        }

        let head = FooterHead {
            rows: self.rows,
            columns: column_records.len() as u32,
            blocks: blocks as u32,
            block_rows: self.options.block_rows as u32,
            vector_rows: VECTOR_ROWS as u32,
            lanes: LANES as u32,
            names_bytes: names.bytes.len() as u32,
            origin: self.origin.unwrap_or_default(),
        };
        let footer = [head.as_bytes(), column_records.as_bytes(), block_records.as_bytes(), &names.bytes].concat();
        let (bytes, checksum) = sink.finish(&footer, self.origin.map_or(0, |_| FEATURE_ORIGIN))?;
        file.sync()?;
        ledger.rows_out(self.rows);
        Ok(Written { rows: self.rows, bytes, checksum })
    }
}

fn write_column(
    column: &dyn EncodedColumn,
    blocks: usize,
    record: &mut ColumnRecord,
    block_records: &mut Vec<BlockRecord>,
    sink: &mut Sink<'_>,
) -> Result<()> {
    record.encoding = column.encoding() as u8;
    record.width = column.width();
    if let Some(dictionary) = column.dictionary() {
        let chunk = sink.put_on_page(dictionary.bytes)?;
        record.dictionary_offset = chunk.offset;
        record.dictionary_bytes = dictionary.bytes.len() as u64;
        record.dictionary_crc = chunk.crc;
        record.dictionary_entries = dictionary.entries;
    }
    let first = block_records.len();
    let mut whole = None;
    for block in 0..blocks {
        let zone = column.zone(block);
        whole = Some(whole.map_or(zone, |whole: crate::Zone| whole.union(&zone)));
        block_records.push(BlockRecord {
            min: zone.min,
            max: zone.max,
            base: column.base(block),
            null_count: zone.null_count as u32,
            flags: zone.flags,
            chunks: [ChunkRecord::default(); 4],
            reserved: [0; 2],
        });
    }
    if let Some(whole) = whole {
        (record.min, record.max) = (whole.min, whole.max);
        record.flags = whole.flags as u8;
        record.null_count = whole.null_count;
    }
    let mut bytes = Vec::new();
    for chunk in 0..4 {
        for block in 0..blocks {
            column.chunk(block, chunk, &mut bytes);
            if !bytes.is_empty() {
                block_records[first + block].chunks[chunk] = sink.put_on_page(&bytes)?;
            }
        }
    }
    Ok(())
}

#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
}

impl Names {
    fn put(&mut self, name: &str) -> (u32, u32) {
        let offset = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name.as_bytes());
        (offset, name.len() as u32)
    }
}

fn describe(name: &str, is_nullable: bool, column_type: &ColumnType, names: &mut Names) -> ColumnRecord {
    let mut record = ColumnRecord::new_zeroed();
    (record.name_offset, record.name_bytes) = names.put(name);
    record.nullable = u8::from(is_nullable);
    record.type_code = match column_type {
        ColumnType::Boolean => TypeCode::Boolean,
        ColumnType::Int8 => TypeCode::Int8,
        ColumnType::Int16 => TypeCode::Int16,
        ColumnType::Int32 => TypeCode::Int32,
        ColumnType::Int64 => TypeCode::Int64,
        ColumnType::UInt8 => TypeCode::UInt8,
        ColumnType::UInt16 => TypeCode::UInt16,
        ColumnType::UInt32 => TypeCode::UInt32,
        ColumnType::UInt64 => TypeCode::UInt64,
        ColumnType::Float32 => TypeCode::Float32,
        ColumnType::Float64 => TypeCode::Float64,
        ColumnType::Decimal { .. } => TypeCode::Decimal,
        ColumnType::Date => TypeCode::Date,
        ColumnType::Timestamp { .. } => TypeCode::Timestamp,
        ColumnType::Varchar => TypeCode::Varchar,
    } as u8;
    match column_type {
        ColumnType::Decimal { precision, scale } => {
            record.precision = *precision;
            record.scale = *scale;
        }
        ColumnType::Timestamp { unit, zone } => {
            record.unit = match unit {
                TimeUnit::Second => 0,
                TimeUnit::Millisecond => 1,
                TimeUnit::Microsecond => 2,
                TimeUnit::Nanosecond => 3,
            };
            if let Some(zone) = zone {
                (record.zone_offset, record.zone_bytes) = names.put(zone);
            }
        }
        _ => {}
    }
    record
}

/// The file, front to back, in large writes from a page-aligned buffer.
struct Sink<'a> {
    file: &'a dyn WriteAt,
    ledger: &'a Ledger,
    buffer: AlignedBuf,
    filled: usize,
    /// The offset of the buffer in the file.
    start: u64,
}

impl<'a> Sink<'a> {
    fn new(file: &'a dyn WriteAt, ledger: &'a Ledger) -> Self {
        Self { file, ledger, buffer: AlignedBuf::zeroed(WRITE_BYTES), filled: 0, start: 0 }
    }

    fn position(&self) -> u64 {
        self.start + self.filled as u64
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let n = bytes.len().min(WRITE_BYTES - self.filled);
            self.buffer[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
            self.filled += n;
            bytes = &bytes[n..];
            if self.filled == WRITE_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn put_on_page(&mut self, bytes: &[u8]) -> Result<ChunkRecord> {
        let padding = self.position().next_multiple_of(PAGE_BYTES as u64) - self.position();
        self.put(&[0; PAGE_BYTES][..padding as usize])?;
        let offset = self.position();
        self.put(bytes)?;
        Ok(ChunkRecord { offset, bytes: bytes.len() as u32, crc: crc32c::crc32c(bytes) })
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_at(self.start, &self.buffer[..self.filled], self.ledger)?;
        self.start += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    /// Writes footer and trailer. Returns the length of the file, and the trailer's checksum.
    fn finish(mut self, footer: &[u8], features: u64) -> Result<(u64, u32)> {
        let chunk = self.put_on_page(footer)?;
        let file_bytes = self.position() + size_of::<Trailer>() as u64;
        let mut trailer = Trailer {
            footer_offset: chunk.offset,
            footer_bytes: footer.len() as u64,
            file_bytes,
            features,
            footer_crc: chunk.crc,
            trailer_crc: 0,
            reserved: [0; 2],
            version: FORMAT_VERSION,
            reserved_tail: 0,
            magic: MAGIC,
        };
        trailer.trailer_crc = crc32c::crc32c(trailer.as_bytes());
        self.put(trailer.as_bytes())?;
        self.flush()?;
        Ok((file_bytes, trailer.trailer_crc))
    }
}
