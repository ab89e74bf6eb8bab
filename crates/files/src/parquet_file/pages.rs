//! The headers of pages.
//!
//! A page declares its length in the file, and its decompressed size, which parquet's reader
//! reserves. The check bounds the size by the maximum that the codec can produce from the bytes. It
//! sums the memory that a reader of the chunk holds at a time: a dictionary and one page of data.
//! It also compares a page with the checksum in its header, which Spark writes: parquet's reader
//! does not.
//!
//! A header that cannot be walked is left to parquet's reader, which returns an error for it.

use std::ops::Range;

use parquet::basic::{Compression, Type};
use parquet::file::metadata::ColumnChunkMetaData;

use super::thrift::{Kind, Walk, Walked};
use crate::input::read;
use crate::{Fault, Input};

/// The fields of a header.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    kind: i64,
    uncompressed: i64,
    compressed: i64,
    /// The checksum of the page as stored in the file, if its writer made one.
    crc: Option<i64>,
    dictionary_values: Option<i64>,
    /// The bytes of definition and repetition levels in a page of version 2. They are not
    /// compressed.
    levels: [i64; 2],
    /// The values of a page of version 1, NULLs included.
    values: i64,
    /// The encodings of its definition and repetition levels.
    level_encodings: [i64; 2],
    /// The encodings of data, by the version of the page.
    encoding: Option<i64>,
    encoding_v2: Option<i64>,
}

const DATA_PAGE: i64 = 0;
const DICTIONARY_PAGE: i64 = 2;
const DATA_PAGE_V2: i64 = 3;
/// The encoding of levels that has a fixed number of bits for each, and no length.
const BIT_PACKED: i64 = 4;
/// The encodings whose values are keys of a dictionary.
const BY_DICTIONARY: [i64; 2] = [2, 8];

impl Header {
    fn walk(walk: &mut Walk<'_>) -> Walked<Self> {
        let mut header = Self::default();
        walk.fields(|walk, id, kind| {
            match (id, kind) {
                (1, Kind::Integer) => header.kind = walk.integer()?,
                (2, Kind::Integer) => header.uncompressed = walk.integer()?,
                (3, Kind::Integer) => header.compressed = walk.integer()?,
                (4, Kind::Integer) => header.crc = Some(walk.integer()?),
                (5, Kind::Struct) => {
                    let [values, encoding, definitions, repetitions] = numbers(walk, [1, 2, 3, 4])?;
                    header.values = values;
                    header.encoding = Some(encoding);
                    header.level_encodings = [definitions, repetitions];
                }
                (7, Kind::Struct) => header.dictionary_values = Some(numbers(walk, [1])?[0]),
                (8, Kind::Struct) => {
                    let [encoding, definitions, repetitions] = numbers(walk, [4, 5, 6])?;
                    header.encoding_v2 = Some(encoding);
                    header.levels = [definitions, repetitions];
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(header)
    }
}

/// Returns the numeric fields of a struct, with 0 for a missing one.
fn numbers<const N: usize>(walk: &mut Walk<'_>, fields: [i64; N]) -> Walked<[i64; N]> {
    let mut numbers = [0; N];
    walk.fields(|walk, id, kind| {
        let wanted = fields.iter().position(|field| *field == id).filter(|_| kind == Kind::Integer);
        if let Some(at) = wanted {
            numbers[at] = walk.integer()?;
        }
        Ok(wanted.is_some())
    })?;
    Ok(numbers)
}

/// Returns the size of a page, or of a part of it, or `None` if it is invalid. Parquet's reader has
/// sizes in 32 bits.
pub(super) fn size_of_page(bytes: i64) -> Option<u64> {
    i32::try_from(bytes).ok().and_then(|bytes| u64::try_from(bytes).ok())
}

/// The memory that a reader of pages holds at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageMemory {
    /// The bytes of the dictionary.
    pub dictionary_bytes: u64,
    /// The number of values of the dictionary.
    pub dictionary_values: u64,
    /// The bytes of the largest page of data.
    pub data_bytes: u64,
    /// True if a page has keys, and no dictionary came before it.
    lacks_dictionary: bool,
    has_dictionary: bool,
}

impl PageMemory {
    /// Checks that the pages have their dictionary, if they are all pages of a column chunk.
    ///
    /// # Errors
    /// If there is none.
    pub fn with_dictionary(self) -> Result<Self, Fault> {
        match self.lacks_dictionary {
            true => Err(Fault::damaged("a page refers to a dictionary, and there is none before it")),
            false => Ok(self),
        }
    }
}

/// A page behind its header.
struct Found {
    /// Its byte range, counted from the header.
    body: Range<usize>,
    crc: Option<i64>,
}

impl Found {
    /// Compares the bytes with the checksum in the header, if there is one: 32 bits of either sign.
    fn check(&self, body: &[u8]) -> Result<(), Fault> {
        let Some(crc) = self.crc else { return Ok(()) };
        let (found, expected) = (crc32fast::hash(body), crc as u32);
        match found == expected {
            true => Ok(()),
            false => Err(Fault::Damaged(format!("a page has the checksum {found:08x}, and its header {expected:08x}"))),
        }
    }
}

/// Checks the pages of a column chunk.
#[derive(Clone, Debug)]
pub struct PageCheck {
    /// The column's path, for messages.
    path: String,
    compression: Compression,
    /// The minimum bytes of a dictionary value.
    value_bytes: i64,
    /// The bits of a definition level, and of a repetition level.
    level_bits: [u64; 2],
}

impl PageCheck {
    /// Creates the check for pages of this column chunk.
    pub fn new(column: &ColumnChunkMetaData) -> Self {
        let value_bytes = match column.column_type() {
            Type::BOOLEAN => 0,
            // A length comes first.
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY => column.column_descr().type_length().max(0).into(),
        };
        let descriptor = column.column_descr();
        let levels = [descriptor.max_def_level(), descriptor.max_rep_level()];
        let level_bits = levels.map(|most| u64::from(i16::BITS - most.max(0).leading_zeros()));
        Self { path: column.column_path().to_string(), compression: column.compression(), value_bytes, level_bits }
    }

    /// Checks the consecutive pages at the start of some bytes.
    ///
    /// # Errors
    /// If a page declares a size that its bytes cannot have.
    pub fn pages(&self, bytes: &[u8]) -> Result<PageMemory, Fault> {
        self.of_bytes(bytes).map_err(|fault| self.named(fault))
    }

    fn of_bytes(&self, bytes: &[u8]) -> Result<PageMemory, Fault> {
        let (mut memory, mut rest) = (PageMemory::default(), bytes);
        while let Some(page) = self.next(rest, &mut memory)? {
            // A page that continues behind the bytes is an error of parquet's reader.
            let (Some(body), Some(next)) = (rest.get(page.body.clone()), rest.get(page.body.end..)) else { break };
            page.check(body)?;
            rest = next;
        }
        Ok(memory)
    }

    /// Checks the pages of a chunk in a file. Reads only the headers, and the pages with checksums.
    ///
    /// # Errors
    /// If a page declares a size that its bytes cannot have.
    pub fn chunk(&self, input: &dyn Input, start: u64, len: u64) -> Result<PageMemory, Fault> {
        self.of_file(input, start, len).map_err(|fault| self.named(fault))
    }

    fn named(&self, fault: Fault) -> Fault {
        match fault {
            Fault::Damaged(reason) => Fault::Damaged(format!("column {}: {reason}", self.path)),
            fault => fault,
        }
    }

    fn of_file(&self, input: &dyn Input, mut start: u64, len: u64) -> Result<PageMemory, Fault> {
        let (mut memory, end) = (PageMemory::default(), start.saturating_add(len));
        while start < end {
            let len = (end - start).min(MOST_HEADER_BYTES) as usize;
            let Some(page) = self.next(&read(input, start, len, "a page header")?, &mut memory)? else { break };
            let Range { start: body, end: next } = page.body;
            if page.crc.is_some() && start + next as u64 <= end {
                page.check(&read(input, start + body as u64, next - body, "a page")?)?;
            }
            start += next as u64;
        }
        memory.with_dictionary()
    }

    /// Checks the header of the page at the start of some bytes. Returns `None` if there is none.
    fn next(&self, bytes: &[u8], memory: &mut PageMemory) -> Result<Option<Found>, Fault> {
        let mut walk = Walk::new(bytes);
        let Ok(header) = Header::walk(&mut walk) else { return Ok(None) };
        self.page(&header, memory)?;
        let start = walk.position();
        let end = usize::try_from(header.compressed).ok().and_then(|len| start.checked_add(len));
        Ok(end.map(|end| Found { body: start..end, crc: header.crc }))
    }

    fn page(&self, header: &Header, memory: &mut PageMemory) -> Result<(), Fault> {
        let (Some(packed), Some(size)) = (size_of_page(header.compressed), size_of_page(header.uncompressed)) else {
            let Header { compressed, uncompressed, .. } = header;
            return Err(Fault::Damaged(format!("a page declares {compressed} bytes, and {uncompressed} decompressed")));
        };
        if size > packed.saturating_mul(self.ratio()).saturating_add(SLACK_BYTES) {
            return Err(Fault::Damaged(format!("a page of {packed} bytes declares {size} when it is decompressed")));
        }
        let has_header = match header.kind {
            DATA_PAGE => header.encoding.is_some(),
            DICTIONARY_PAGE => header.dictionary_values.is_some(),
            DATA_PAGE_V2 => header.encoding_v2.is_some(),
            _ => true,
        };
        if !has_header {
            return Err(Fault::Damaged(format!("a page of kind {} declares no header of its kind", header.kind)));
        }
        let [definitions, repetitions] = header.levels.map(size_of_page);
        let levels = definitions.zip(repetitions).map(|(definitions, repetitions)| definitions + repetitions);
        if levels.is_none_or(|levels| levels > packed.min(size)) {
            let [definitions, repetitions] = header.levels;
            return Err(Fault::Damaged(format!(
                "a page of {packed} bytes, {size} decompressed, declares {definitions} and {repetitions} of levels"
            )));
        }
        if header.kind == DATA_PAGE {
            let packed = (0..2).filter(|at| header.level_encodings[*at] == BIT_PACKED).map(|at| self.level_bits[at]);
            let bytes = packed.map(|bits| header.values.unsigned_abs().saturating_mul(bits).div_ceil(8));
            if bytes.fold(0, u64::saturating_add) > size {
                let values = header.values;
                return Err(Fault::Damaged(format!(
                    "a page of {size} bytes declares {values} values with packed levels"
                )));
            }
        }
        if header.kind != DICTIONARY_PAGE {
            let encoding = if header.kind == DATA_PAGE_V2 { header.encoding_v2 } else { header.encoding };
            let is_keys = encoding.is_some_and(|encoding| BY_DICTIONARY.contains(&encoding));
            memory.lacks_dictionary |= is_keys && !memory.has_dictionary;
            memory.data_bytes = memory.data_bytes.max(size);
            return Ok(());
        }
        memory.has_dictionary = true;
        let values = header.dictionary_values.unwrap_or(0);
        if values < 0 || values.saturating_mul(self.value_bytes) as u64 > size {
            return Err(Fault::Damaged(format!("a dictionary of {size} bytes declares {values} values")));
        }
        memory.dictionary_bytes = size;
        memory.dictionary_values = values.unsigned_abs();
        Ok(())
    }

    /// Returns the maximum bytes that one byte decompresses to.
    fn ratio(&self) -> u64 {
        match self.compression {
            Compression::UNCOMPRESSED => 1,
            // A copy of 64 bytes takes 3.
            Compression::SNAPPY => 64,
            Compression::LZ4 | Compression::LZ4_RAW => 255,
            Compression::GZIP(_) => 1032,
            // A few bits copy any number of bytes: the account limits the declared size.
            Compression::BROTLI(_) => u64::MAX,
            // Blocks that repeat a byte.
            _ => 1 << 15,
        }
    }
}

/// Pages without values compress to a few bytes of framing, which some writers do not declare
/// exactly.
const SLACK_BYTES: u64 = 1 << 10;
/// Sufficient for the header of a page, which has the least and the greatest value in it.
const MOST_HEADER_BYTES: u64 = 16 << 10;
