//! Opens a segment and reads single blocks of single columns.
//!
//! Opening reads the first page, the trailer and the footer and checks their checksums. Then it
//! checks everything that later code relies on: every chunk lies inside the file with the length
//! its encoding gives it; widths, codes and counts are consistent. After that, arithmetic on the
//! records is safe for files of any writer.

use std::sync::{Arc, OnceLock};

use arrow_array::StringViewArray;
use arrow_schema::{Field, Schema, SchemaRef, TimeUnit};
use onehop_io::{AlignedBuf, Ledger, LocalFile, Operation, PAGE_BYTES, Path, ReadAt, RequestedPath};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::cache::Slot;
use crate::code_table::CodeTable;
use crate::decode::{BlockColumn, Dictionary, Origin};
use crate::layout::{
    BlockRecord, ChunkRecord, ColumnRecord, EncodingCode, FEATURE_ORIGIN, FORMAT_VERSION, FooterHead, Header,
    KNOWN_FEATURES, MAGIC, OriginRecord, Trailer, TypeCode, chunk, flags,
};
use crate::packed::{LANES, VECTOR_ROWS, vector_words};
use crate::stored_bytes::StoredBytes;
use crate::types::ColumnType;
use crate::zone::{Predicate, Value, Zone};
use crate::{BLOCK_ROWS, Error, MAX_SEGMENT_ROWS, Place, Result};

/// An open segment. Cheap to share. All methods may be called from many threads.
#[derive(Debug)]
pub struct Segment {
    file: Arc<dyn ReadAt>,
    /// The same file by the other path, opened on first request. `None` if it is unavailable.
    other_way: OnceLock<Option<Arc<LocalFile>>>,
    schema: SchemaRef,
    head: FooterHead,
    checksum: u32,
    has_origin: bool,
    columns: Vec<Column>,
    /// By column, then block.
    records: Vec<BlockRecord>,
    /// The blocks in memory, in the order of `records`.
    pub(crate) slots: Vec<Slot>,
}

#[derive(Debug)]
struct Column {
    info: ColumnInfo,
    record: ColumnRecord,
    /// The stored bytes of each block, contiguous like `ends`, and for the same reason.
    block_bytes: Box<[u64]>,
    /// The least and the greatest key of each block, if all keys fit 64 bits. Records are far
    /// apart, and a search for blocks to skip reads all keys. The greatest is less than the least
    /// in a block without values.
    ends: Option<Box<[(i64, i64)]>>,
    dictionary: OnceLock<Arc<Dictionary>>,
}

/// The storage of a column.
#[derive(Clone, Debug)]
pub struct ColumnInfo {
    /// The column's name.
    pub name: String,
    /// The column's type.
    pub column_type: ColumnType,
    /// True if the column admits NULL.
    pub nullable: bool,
    /// The column's encoding in this segment.
    pub encoding: EncodingCode,
    /// The bits of a packed value, code or length, or the bytes of a plain value.
    pub width: u8,
    /// The number of entries of its dictionary, 0 without one. With one, this is the number of
    /// distinct values.
    pub dictionary_entries: u32,
    /// The bytes in the file, without padding.
    pub stored_bytes: u64,
    /// The least and greatest value and the NULLs of the whole segment.
    pub zone: Zone,
}

impl Segment {
    /// Opens a segment.
    ///
    /// # Errors
    /// [`Error::Version`] and [`Error::Feature`] for a format that this build does not know,
    /// [`Error::Corrupt`] for a known one that is inconsistent.
    pub fn open(file: Arc<dyn ReadAt>, ledger: &Ledger) -> Result<Self> {
        let frame = |reason: &str| corrupt(&*file, Place::Frame, reason);
        let file_bytes = file.len()?;
        let least = (PAGE_BYTES + size_of::<FooterHead>() + size_of::<Trailer>()) as u64;
        if file_bytes < least {
            return Err(frame(&format!("{file_bytes} bytes are too few for a segment; it may have been truncated")));
        }
        let header: Header = read_record(&*file, 0, ledger)?;
        if header.magic != MAGIC {
            return Err(frame("it does not start like a segment"));
        }
        check_version(&*file, header.version)?;
        let trailer: Trailer = read_record(&*file, file_bytes - size_of::<Trailer>() as u64, ledger)?;
        if trailer.magic != MAGIC {
            return Err(frame("it does not end like a segment; it was not finished, or was truncated"));
        }
        check_version(&*file, trailer.version)?;
        let unsigned = Trailer { trailer_crc: 0, ..trailer };
        if crc32c::crc32c(unsigned.as_bytes()) != trailer.trailer_crc || trailer.file_bytes != file_bytes {
            return Err(frame("the trailer does not match its checksum or the file's length"));
        }
        // After the checksum: a flipped bit is damage, not a feature.
        check_features(&*file, trailer.features)?;
        let footer_end = trailer.footer_offset.checked_add(trailer.footer_bytes);
        if footer_end != Some(file_bytes - size_of::<Trailer>() as u64) {
            return Err(frame("the trailer does not point to a footer before it"));
        }
        let mut footer = vec![0; trailer.footer_bytes as usize];
        file.read_at(trailer.footer_offset, &mut footer, ledger)?;
        if crc32c::crc32c(&footer) != trailer.footer_crc {
            return Err(corrupt(&*file, Place::Footer, "it does not match its checksum"));
        }
        Self::parse(file, &footer, &trailer)
    }

    fn parse(file: Arc<dyn ReadAt>, footer: &[u8], trailer: &Trailer) -> Result<Self> {
        let bad = |reason: &str| corrupt(&*file, Place::Footer, reason);
        let (head, rest) = FooterHead::read_from_prefix(footer).map_err(|_| bad("it is too short"))?;
        let block_rows = head.block_rows as usize;
        let is_known_geometry = head.vector_rows as usize == VECTOR_ROWS
            && head.lanes as usize == LANES
            && block_rows.is_multiple_of(VECTOR_ROWS)
            && (VECTOR_ROWS..=BLOCK_ROWS).contains(&block_rows);
        if !is_known_geometry || head.rows > MAX_SEGMENT_ROWS {
            return Err(bad("its geometry is not that of this format"));
        }
        if head.rows.div_ceil(u64::from(head.block_rows)) != u64::from(head.blocks) {
            return Err(bad("the number of blocks does not fit the number of rows"));
        }
        let columns = head.columns as usize;
        let blocks = head.blocks as usize;
        let cells = columns.checked_mul(blocks).ok_or_else(|| bad("too many blocks"))?;
        let (column_records, rest) = <[ColumnRecord]>::ref_from_prefix_with_elems(rest, columns)
            .map_err(|_| bad("too short for its columns"))?;
        let (records, names) =
            <[BlockRecord]>::ref_from_prefix_with_elems(rest, cells).map_err(|_| bad("too short for its blocks"))?;
        if names.len() != head.names_bytes as usize {
            return Err(bad("the names do not fill the rest of it"));
        }
        let mut parsed = Vec::with_capacity(columns);
        for (index, record) in column_records.iter().enumerate() {
            let blocks = &records[index * blocks..][..blocks];
            parsed.push(parse_column(&*file, record, blocks, names, &head, trailer.footer_offset)?);
        }
        let fields: Vec<Field> = parsed
            .iter()
            .map(|c: &Column| Field::new(&c.info.name, c.info.column_type.arrow(), c.info.nullable))
            .collect();
        let slots = records.iter().map(|_| Slot::default()).collect();
        let schema = Arc::new(Schema::new(fields));
        let checksum = trailer.trailer_crc;
        let (records, other_way) = (records.to_vec(), OnceLock::new());
        let has_origin = trailer.features & FEATURE_ORIGIN != 0;
        Ok(Self { file, other_way, schema, head, checksum, has_origin, columns: parsed, records, slots })
    }

    /// Returns the columns, by their Arrow types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the segment's file.
    pub fn file(&self) -> &Arc<dyn ReadAt> {
        &self.file
    }

    /// Returns the file, to be read by a path. A path that is requested by name is used, or is an
    /// error.
    ///
    /// # Errors
    /// If the file cannot be read by that path.
    pub fn file_by(&self, requested: RequestedPath) -> Result<Arc<dyn ReadAt>> {
        let path = self.file.hints().path;
        let is_that = match requested {
            RequestedPath::Auto | RequestedPath::PreferHostDirect => true,
            RequestedPath::Buffered => path != Path::HostDirect,
            RequestedPath::HostDirect => path == Path::HostDirect,
        };
        // Bytes in this process's memory have no path.
        if is_that || path == Path::Memory {
            return Ok(Arc::clone(&self.file));
        }
        let open = || {
            let local = Arc::clone(&self.file).as_local()?;
            if requested == RequestedPath::HostDirect { local.past_page_cache() } else { local.by_page_cache() }
        };
        match self.other_way.get_or_init(open) {
            Some(file) => Ok(Arc::clone(file) as Arc<dyn ReadAt>),
            None => {
                let what =
                    if requested == RequestedPath::HostDirect { "past the page cache (O_DIRECT)" } else { "buffered" };
                let reason = format!("it cannot be read {what} where it lies");
                let source = std::io::Error::new(std::io::ErrorKind::Unsupported, reason);
                Err(onehop_io::Error::new(Operation::Open, self.file.name(), source).into())
            }
        }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.head.rows
    }

    /// Returns the trailer's checksum. It covers the footer's, and the footer has those of every
    /// dictionary and chunk. Together with the file's length, it distinguishes segments without
    /// reading them.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Returns the [`checksum`](Self::checksum) of the segment in a file, if the trailer is whole.
    /// Reads only the trailer.
    pub fn checksum_of(file: &dyn ReadAt) -> Option<u32> {
        let at = file.len().ok()?.checked_sub(size_of::<Trailer>() as u64)?;
        let trailer: Trailer = read_record(file, at, &Ledger::default()).ok()?;
        let unsigned = Trailer { trailer_crc: 0, ..trailer };
        let is_whole = trailer.magic == MAGIC && crc32c::crc32c(unsigned.as_bytes()) == trailer.trailer_crc;
        is_whole.then_some(trailer.trailer_crc)
    }

    /// Returns the database that the segment was written for, or `None` in files of builds that did
    /// not record it.
    pub fn origin(&self) -> Option<OriginRecord> {
        self.has_origin.then_some(self.head.origin)
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.head.blocks as usize
    }

    /// Returns the rows of a block.
    pub fn block_rows(&self, block: usize) -> usize {
        block_rows(&self.head, block)
    }

    /// Returns the storage of a column.
    pub fn column(&self, column: usize) -> &ColumnInfo {
        &self.columns[column].info
    }

    /// Returns the statistics of a block of a column, without reading it.
    pub fn zone(&self, column: usize, block: usize) -> Zone {
        let is_text = self.columns[column].info.column_type.is_text();
        zone_of(self.record(column, block), is_text, self.block_rows(block) as u64)
    }

    /// Returns the least and the greatest key of a block of a column, as [`Zone::keys`] does,
    /// without the rest of its zone.
    #[inline]
    pub fn key_ends(&self, column: usize, block: usize) -> Option<(i128, i128)> {
        match &self.columns[column].ends {
            Some(ends) => {
                let (least, greatest) = ends[block];
                (least <= greatest).then_some((least.into(), greatest.into()))
            }
            None => self.zone(column, block).keys(),
        }
    }

    /// Returns, for each block, true if a row of it may match.
    pub fn may_match(&self, predicate: &Predicate) -> Vec<bool> {
        let mut live = vec![true; self.blocks()];
        self.rule_out(predicate, &mut live);
        live
    }

    /// Clears the blocks in `live` that cannot match. A plan does this for thousands of blocks:
    /// comparisons read the ends of a column, not the records.
    fn rule_out(&self, predicate: &Predicate, live: &mut [bool]) {
        match predicate {
            Predicate::Unknown => {}
            Predicate::Never => live.fill(false),
            Predicate::And(all) => all.iter().for_each(|predicate| self.rule_out(predicate, live)),
            Predicate::Or(any) => {
                let mut left = vec![false; live.len()];
                for predicate in any {
                    let mut of_one = live.to_vec();
                    self.rule_out(predicate, &mut of_one);
                    left.iter_mut().zip(&of_one).for_each(|(left, of_one)| *left |= of_one);
                }
                live.copy_from_slice(&left);
            }
            Predicate::Compare { column, op, value: Value::Key(key) } if self.columns[*column].ends.is_some() => {
                let ends = self.columns[*column].ends.as_deref().unwrap_or_default();
                for (live, &(least, greatest)) in live.iter_mut().zip(ends) {
                    *live &= least <= greatest && op.may_hold(least.into(), greatest.into(), *key);
                }
            }
            other => {
                for (block, live) in live.iter_mut().enumerate().filter(|(_, live)| **live) {
                    *live = other.may_match(&|column| self.zone(column, block));
                }
            }
        }
    }

    /// Returns true if any row of the segment may match.
    pub fn any_may_match(&self, predicate: &Predicate) -> bool {
        predicate.may_match(&|column| self.columns[column].info.zone)
    }

    /// Returns the bytes of all blocks of a column, without its dictionary.
    pub fn all_stored_bytes(&self, column: usize) -> u64 {
        let Column { info, record, .. } = &self.columns[column];
        info.stored_bytes - record.dictionary_bytes
    }

    /// Returns the bytes of a block of a column, without its dictionary.
    pub fn stored_bytes(&self, column: usize, block: usize) -> u64 {
        self.columns[column].block_bytes[block]
    }

    pub(crate) fn record(&self, column: usize, block: usize) -> &BlockRecord {
        &self.records[column * self.blocks() + block]
    }

    /// Returns the locations of a block of a column: page-aligned offsets, and lengths.
    pub(crate) fn chunks(&self, column: usize, block: usize) -> impl Iterator<Item = (u64, usize)> + use<> {
        let chunks = self.record(column, block).chunks;
        chunks.into_iter().filter(|chunk| chunk.bytes > 0).map(|chunk| (chunk.offset, chunk.bytes as usize))
    }

    /// Reads a block of a column, as it is encoded, and verifies its checksums.
    ///
    /// # Errors
    /// [`Error::Read`] if the storage fails, [`Error::Corrupt`] if the bytes do not match their
    /// checksums or are inconsistent.
    pub fn load(&self, column: usize, block: usize, ledger: &Ledger) -> Result<BlockColumn> {
        self.load_by(RequestedPath::Auto, column, block, ledger, |_, _| None)
    }

    /// Loads as [`Segment::load`] does, by a path. `read` returns the bytes at an offset that have
    /// been read already.
    pub(crate) fn load_by(
        &self,
        path: RequestedPath,
        column: usize,
        block: usize,
        ledger: &Ledger,
        mut read: impl FnMut(u64, usize) -> Option<StoredBytes>,
    ) -> Result<BlockColumn> {
        let record = self.record(column, block);
        let mut chunks = [None, None, None, None];
        for (slot, chunk) in chunks.iter_mut().zip(&record.chunks) {
            if chunk.bytes > 0 {
                let bytes = match read(chunk.offset, chunk.bytes as usize) {
                    Some(bytes) => bytes,
                    None => read_chunk(&*self.file_by(path)?, chunk, ledger)
                        .map_err(|source| Error::Read { place: self.place(column, block), source })?
                        .into(),
                };
                self.check_chunk(column, block, chunk, &bytes)?;
                *slot = Some(bytes);
                ledger.needed(chunk.bytes as usize);
            }
        }
        let info = &self.columns[column].info;
        let dictionary = match info.encoding {
            EncodingCode::Dictionary => Some(self.dictionary(column, ledger)?),
            _ => None,
        };
        let origin = Origin { file: self.file.name().to_string(), place: self.place(column, block) };
        BlockColumn::new(info, self.block_rows(block), record, chunks, dictionary, origin)
    }

    /// Returns the location of a block of a column, for messages.
    pub(crate) fn place(&self, column: usize, block: usize) -> Place {
        Place::Block { column: self.columns[column].info.name.clone(), block }
    }

    fn check_chunk(&self, column: usize, block: usize, chunk: &ChunkRecord, buf: &[u8]) -> Result<()> {
        if crc32c::crc32c(buf) != chunk.crc {
            let place = self.place(column, block);
            let reason = format!("{} bytes at offset {} do not match their checksum", chunk.bytes, chunk.offset);
            return Err(corrupt(&*self.file, place, &reason));
        }
        Ok(())
    }

    /// Returns the strings of a column's dictionary, sorted, or `None` if it has no dictionary of
    /// strings.
    ///
    /// # Errors
    /// As [`Segment::load`].
    pub fn dictionary_texts(&self, column: usize, ledger: &Ledger) -> Result<Option<StringViewArray>> {
        match self.columns[column].info.encoding {
            EncodingCode::Dictionary => Ok(self.dictionary(column, ledger)?.texts()),
            _ => Ok(None),
        }
    }

    /// Returns the keys of a column's dictionary, sorted, or `None` if it has no dictionary of
    /// keys.
    ///
    /// # Errors
    /// As [`Segment::load`].
    pub fn dictionary_keys(&self, column: usize, ledger: &Ledger) -> Result<Option<Vec<i64>>> {
        match self.columns[column].info.encoding {
            EncodingCode::Dictionary => Ok(self.dictionary(column, ledger)?.keys().map(<[i64]>::to_vec)),
            _ => Ok(None),
        }
    }

    /// Returns the keys of the codes of a column's dictionary, shared by all callers, or `None` if
    /// it has no dictionary of keys.
    ///
    /// # Errors
    /// As [`Segment::load`].
    pub fn code_table(&self, column: usize, ledger: &Ledger) -> Result<Option<CodeTable>> {
        match self.columns[column].info.encoding {
            EncodingCode::Dictionary => Ok(self.dictionary(column, ledger)?.code_table()),
            _ => Ok(None),
        }
    }

    /// Returns the dictionary of a column, which is read on first use and kept.
    pub(crate) fn dictionary(&self, column: usize, ledger: &Ledger) -> Result<Arc<Dictionary>> {
        let column = &self.columns[column];
        if let Some(dictionary) = column.dictionary.get() {
            return Ok(Arc::clone(dictionary));
        }
        let place = || Place::Column(column.info.name.clone());
        let record = &column.record;
        let mut buf = AlignedBuf::zeroed(record.dictionary_bytes as usize);
        self.file.read_at(record.dictionary_offset, &mut buf, ledger)?;
        ledger.needed(buf.len());
        if crc32c::crc32c(&buf) != record.dictionary_crc {
            return Err(corrupt(&*self.file, place(), "the dictionary does not match its checksum"));
        }
        let dictionary = Dictionary::parse(&column.info, record.dictionary_entries as usize, buf)
            .map_err(|reason| corrupt(&*self.file, place(), &reason))?;
        Ok(Arc::clone(column.dictionary.get_or_init(|| Arc::new(dictionary))))
    }
}

fn read_chunk(file: &dyn ReadAt, chunk: &ChunkRecord, ledger: &Ledger) -> onehop_io::Result<AlignedBuf> {
    let mut buf = AlignedBuf::uncleared(chunk.bytes as usize);
    if file.hints().alignment > 1 {
        // Chunks start on pages, and behind them on the last page is padding or the next page's
        // start: a direct read of whole pages needs no bounce buffer.
        file.read_at(chunk.offset, buf.padded_mut(), ledger)?;
    } else {
        file.read_at(chunk.offset, &mut buf, ledger)?;
    }
    Ok(buf)
}

fn block_rows(head: &FooterHead, block: usize) -> usize {
    let before = block as u64 * u64::from(head.block_rows);
    head.rows.saturating_sub(before).min(u64::from(head.block_rows)) as usize
}

pub(crate) fn corrupt(file: &dyn ReadAt, place: Place, reason: &str) -> Error {
    Error::Corrupt { file: file.name().to_string(), place, reason: reason.to_string() }
}

fn check_version(file: &dyn ReadAt, version: u32) -> Result<()> {
    match version {
        FORMAT_VERSION => Ok(()),
        found => Err(Error::Version { file: file.name().to_string(), found, known: FORMAT_VERSION }),
    }
}

fn check_features(file: &dyn ReadAt, features: u64) -> Result<()> {
    match features & !KNOWN_FEATURES {
        0 => Ok(()),
        unknown => Err(Error::Feature { file: file.name().to_string(), bit: unknown.trailing_zeros() }),
    }
}

fn read_record<T: FromBytes + IntoBytes + Immutable + KnownLayout>(
    file: &dyn ReadAt,
    offset: u64,
    ledger: &Ledger,
) -> Result<T> {
    let mut record = T::new_zeroed();
    file.read_at(offset, record.as_mut_bytes(), ledger)?;
    Ok(record)
}

fn zone_of(record: &BlockRecord, is_text: bool, rows: u64) -> Zone {
    let BlockRecord { min, max, flags, null_count, .. } = *record;
    Zone { min, max, flags, is_text, null_count: null_count.into(), rows }
}

fn parse_column(
    file: &dyn ReadAt,
    record: &ColumnRecord,
    blocks: &[BlockRecord],
    names: &[u8],
    head: &FooterHead,
    data_end: u64,
) -> Result<Column> {
    let bad = |reason: &str| corrupt(file, Place::Footer, reason);
    let name =
        text(names, record.name_offset, record.name_bytes).ok_or_else(|| bad("a name lies outside the names"))?;
    let zone_name =
        text(names, record.zone_offset, record.zone_bytes).ok_or_else(|| bad("a zone lies outside the names"))?;
    let bad = |reason: &str| corrupt(file, Place::Column(name.to_string()), reason);
    let column_type = parse_type(record, zone_name).ok_or_else(|| bad("its type is not one of this format"))?;
    let encoding =
        EncodingCode::from_code(record.encoding).ok_or_else(|| bad("its encoding is not one of this format"))?;
    if !fits(encoding, record.width, &column_type) {
        return Err(bad("its encoding does not fit its type"));
    }
    check_dictionary(encoding, &column_type, record, data_end).map_err(|reason| bad(&reason))?;
    let is_text = column_type.is_text();
    let zone = Zone {
        min: record.min,
        max: record.max,
        flags: record.flags.into(),
        is_text,
        null_count: record.null_count,
        rows: head.rows,
    };
    let mut block_bytes = Vec::with_capacity(blocks.len());
    let mut ends = (!is_text).then(|| Vec::with_capacity(blocks.len()));
    for (block, block_record) in blocks.iter().enumerate() {
        let rows = block_rows(head, block);
        check_block(encoding, record.width, rows, block_record, data_end)
            .map_err(|reason| corrupt(file, Place::Block { column: name.to_string(), block }, &reason))?;
        // Code that relies on the bounds of the segment relies on them for every block.
        let of_block = zone_of(block_record, is_text, rows as u64).keys();
        ends = ends.and_then(|mut ends| {
            let (least, greatest) = of_block.unwrap_or((0, -1));
            ends.push((i64::try_from(least).ok()?, i64::try_from(greatest).ok()?));
            Some(ends)
        });
        if !zone.covers(&zone_of(block_record, is_text, rows as u64)) {
            let place = Place::Block { column: name.to_string(), block };
            return Err(corrupt(file, place, "its values lie outside of the segment's"));
        }
        block_bytes.push(block_record.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum());
    }
    if blocks.iter().map(|block| u64::from(block.null_count)).sum::<u64>() != record.null_count {
        return Err(bad("its NULLs are not those of its blocks"));
    }
    let info = ColumnInfo {
        name: name.to_string(),
        column_type,
        nullable: record.nullable != 0,
        encoding,
        width: record.width,
        dictionary_entries: record.dictionary_entries,
        stored_bytes: record.dictionary_bytes + block_bytes.iter().sum::<u64>(),
        zone,
    };
    let (block_bytes, ends) = (block_bytes.into(), ends.map(Vec::into));
    Ok(Column { info, record: *record, block_bytes, ends, dictionary: OnceLock::new() })
}

fn text(names: &[u8], offset: u32, bytes: u32) -> Option<&str> {
    let end = (offset as usize).checked_add(bytes as usize)?;
    std::str::from_utf8(names.get(offset as usize..end)?).ok()
}

fn parse_type(record: &ColumnRecord, zone: &str) -> Option<ColumnType> {
    use TypeCode as T;
    let codes = [
        (T::Boolean, ColumnType::Boolean),
        (T::Int8, ColumnType::Int8),
        (T::Int16, ColumnType::Int16),
        (T::Int32, ColumnType::Int32),
        (T::Int64, ColumnType::Int64),
        (T::UInt8, ColumnType::UInt8),
        (T::UInt16, ColumnType::UInt16),
        (T::UInt32, ColumnType::UInt32),
        (T::UInt64, ColumnType::UInt64),
        (T::Float32, ColumnType::Float32),
        (T::Float64, ColumnType::Float64),
        (T::Date, ColumnType::Date),
        (T::Varchar, ColumnType::Varchar),
    ];
    if let Some((_, simple)) = codes.into_iter().find(|(code, _)| *code as u8 == record.type_code) {
        return Some(simple);
    }
    if record.type_code == T::Decimal as u8 {
        let (precision, scale) = (record.precision, record.scale);
        let is_valid = (1..=38).contains(&precision) && scale.unsigned_abs() <= precision;
        return is_valid.then_some(ColumnType::Decimal { precision, scale });
    }
    if record.type_code == T::Timestamp as u8 {
        let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
        let unit = *units.get(record.unit as usize)?;
        return Some(ColumnType::Timestamp { unit, zone: (!zone.is_empty()).then(|| zone.into()) });
    }
    None
}

fn fits(encoding: EncodingCode, width: u8, column_type: &ColumnType) -> bool {
    let is_text = column_type.is_text();
    match encoding {
        EncodingCode::Packed => !is_text && width <= if *column_type == ColumnType::Boolean { 1 } else { 64 },
        EncodingCode::Dictionary => width <= 32 && *column_type != ColumnType::Boolean,
        EncodingCode::Plain => match column_type {
            ColumnType::Decimal { .. } => width == 16,
            other => other.plain_bytes() == Some(width as usize),
        },
        EncodingCode::Text => is_text && width <= 32,
    }
}

fn check_dictionary(
    encoding: EncodingCode,
    column_type: &ColumnType,
    record: &ColumnRecord,
    data_end: u64,
) -> std::result::Result<(), String> {
    if encoding != EncodingCode::Dictionary {
        return match record.dictionary_entries {
            0 if record.dictionary_bytes == 0 => Ok(()),
            _ => Err("it has a dictionary that its encoding does not use".into()),
        };
    }
    let entries = u64::from(record.dictionary_entries);
    let least = if column_type.is_text() { 4 * (entries + 1) } else { 8 * entries };
    let fits_entries =
        if column_type.is_text() { record.dictionary_bytes >= least } else { record.dictionary_bytes == least };
    let ends = record.dictionary_offset.checked_add(record.dictionary_bytes);
    if !fits_entries || ends.is_none_or(|end| end > data_end) {
        return Err("its dictionary does not fit its entries or the file".into());
    }
    Ok(())
}

fn check_block(
    encoding: EncodingCode,
    width: u8,
    rows: usize,
    record: &BlockRecord,
    data_end: u64,
) -> std::result::Result<(), String> {
    let nulls = record.null_count as usize;
    let has_values = record.flags & flags::HAS_VALUES != 0;
    if nulls > rows || record.flags & !flags::ALL != 0 || has_values != (nulls < rows) {
        return Err("its NULL count or flags make no sense".into());
    }
    for (slot, stored) in record.chunks.iter().enumerate() {
        let is_needed = slot == chunk::VALIDITY && nulls > 0 && nulls < rows;
        if stored.bytes == 0 {
            if is_needed {
                return Err("it has NULLs but no validity".into());
            }
            continue;
        }
        let fits = match expected_bytes(encoding, width, rows, slot) {
            Expected::Exactly(bytes) => stored.bytes as usize == bytes,
            Expected::AtMost(bytes) => stored.bytes as usize <= bytes,
        };
        let end = stored.offset.checked_add(u64::from(stored.bytes));
        let is_inside = stored.offset.is_multiple_of(PAGE_BYTES as u64) && end.is_some_and(|end| end <= data_end);
        if !fits || !is_inside || slot == chunk::VALIDITY && !is_needed {
            return Err(format!("chunk {slot} has an impossible place or length"));
        }
    }
    let has = |slot: usize| record.chunks[slot].bytes > 0;
    if width > 32 && encoding == EncodingCode::Packed && has(chunk::VALUES) != has(chunk::HIGH) {
        return Err("it has one plane of two".into());
    }
    if encoding == EncodingCode::Text && has(chunk::ANCHORS) != has(chunk::TEXT) {
        return Err("it has text without places, or places without text".into());
    }
    if encoding == EncodingCode::Plain && width == 16 && has_values && !has(chunk::VALUES) {
        return Err("it has values that are not stored".into());
    }
    Ok(())
}

enum Expected {
    Exactly(usize),
    AtMost(usize),
}

fn expected_bytes(encoding: EncodingCode, width: u8, rows: usize, slot: usize) -> Expected {
    let vectors = rows.div_ceil(VECTOR_ROWS);
    let packed = |width: u32| Expected::Exactly(vectors * vector_words(width) * 4);
    let width = u32::from(width);
    match (encoding, slot) {
        (_, chunk::VALIDITY) => packed(1),
        (EncodingCode::Plain, chunk::VALUES) => Expected::Exactly(rows * width as usize),
        (_, chunk::VALUES) => packed(width.min(32)),
        (EncodingCode::Packed, chunk::HIGH) => packed(width.saturating_sub(32)),
        (EncodingCode::Text, chunk::ANCHORS) => Expected::Exactly(vectors * 4),
        (EncodingCode::Text, chunk::TEXT) => Expected::AtMost(i32::MAX as usize),
        _ => Expected::AtMost(0),
    }
}
