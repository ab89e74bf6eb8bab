//! The bytes of a segment file, record by record. `docs/internals/segment-format.md` has a diagram.
//!
//! ```text
//! 0        Header, then zeroes to 4096
//! 4096     per column: dictionary | validity chunks | stream 1 chunks | stream 2 chunks
//!          | stream 3 chunks
//!          each chunk (one block of one stream) and each dictionary starts on a page;
//!          all else is zeroes
//! F        Footer: FooterHead | ColumnRecord x columns | BlockRecord x columns x blocks, by column
//!          | names
//! end-64   Trailer
//! ```
//! Little-endian throughout. A reader starts at the trailer; a file without one was never finished.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The format that this build writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 1;
/// The bit of [`Trailer::features`] that is set if [`FooterHead::origin`] is filled in.
pub const FEATURE_ORIGIN: u64 = 1;
/// The bits of [`Trailer::features`] that this build knows.
pub const KNOWN_FEATURES: u64 = FEATURE_ORIGIN;
/// First and last bytes of a segment file.
pub const MAGIC: [u8; 8] = *b"1HOPSEG\0";

const _: () = assert!(cfg!(target_endian = "little"), "records are read in place as little-endian");

/// The first bytes of the file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`]
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`]
    pub version: u32,
    /// Zero.
    pub reserved: u32,
}

/// The last bytes of the file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Trailer {
    /// The offset of the footer.
    pub footer_offset: u64,
    /// The length of the footer.
    pub footer_bytes: u64,
    /// The length of the whole file, this record included.
    pub file_bytes: u64,
    /// Features a reader must know: bits of [`KNOWN_FEATURES`].
    pub features: u64,
    /// CRC-32C of the footer.
    pub footer_crc: u32,
    /// CRC-32C of this record, with this field as zero. Through `footer_crc`, and the footer's
    /// checksums of every dictionary and chunk, it depends on all stored bytes: catalogs identify a
    /// segment by it.
    pub trailer_crc: u32,
    /// Zero.
    pub reserved: [u32; 2],
    /// [`FORMAT_VERSION`]
    pub version: u32,
    /// Zero.
    pub reserved_tail: u32,
    /// [`MAGIC`]
    pub magic: [u8; 8],
}

/// The beginning of the footer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FooterHead {
    /// The number of rows in the segment.
    pub rows: u64,
    /// The number of columns.
    pub columns: u32,
    /// The number of blocks per column.
    pub blocks: u32,
    /// The rows in every block except the last: a multiple of [`FooterHead::vector_rows`].
    pub block_rows: u32,
    /// 1,024: the lane geometry, stored explicitly to avoid misreading.
    pub vector_rows: u32,
    /// 32.
    pub lanes: u32,
    /// The length of the names at the end of the footer.
    pub names_bytes: u32,
    /// The writer, if the file has [`FEATURE_ORIGIN`], otherwise zero.
    pub origin: OriginRecord,
}

/// The database that a segment was written for, and the time in its history. Query results do not
/// depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OriginRecord {
    /// The random identifier that the database got when it was created.
    pub database: [u8; 16],
    /// The random identifier of the writing session in which the segment was made.
    pub life: u64,
    /// The generation of the catalog at that time: the segment was committed in a later one, or
    /// never.
    pub generation: u64,
}

/// One column.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ColumnRecord {
    /// The least value of the column, as in [`BlockRecord::min`].
    pub min: [u8; 16],
    /// The greatest value.
    pub max: [u8; 16],
    /// The offset of the dictionary, if there is one.
    pub dictionary_offset: u64,
    /// Its length: 8 bytes an entry, or (entries + 1) 4-byte offsets and the strings.
    pub dictionary_bytes: u64,
    /// The number of rows that are NULL.
    pub null_count: u64,
    /// The number of entries of the dictionary, which are in ascending order.
    pub dictionary_entries: u32,
    /// CRC-32C of the dictionary.
    pub dictionary_crc: u32,
    /// The offset of the column's name, in the names.
    pub name_offset: u32,
    /// Its length.
    pub name_bytes: u32,
    /// The offset of a timestamp's zone, in the names.
    pub zone_offset: u32,
    /// Its length; 0 for none.
    pub zone_bytes: u32,
    /// A code of [`TypeCode`].
    pub type_code: u8,
    /// The digits of a decimal.
    pub precision: u8,
    /// The scale of a decimal.
    pub scale: i8,
    /// Timestamp unit: 0 s, 1 ms, 2 us, 3 ns.
    pub unit: u8,
    /// A code of [`EncodingCode`].
    pub encoding: u8,
    /// The bits of a packed value, code or length in this segment, or the bytes of a plain one.
    pub width: u8,
    /// 1 if the column admits NULL.
    pub nullable: u8,
    /// Bits of [`flags`] for `min` and `max`.
    pub flags: u8,
    /// Zero.
    pub reserved: [u64; 5],
}

/// One block of one column: its zone map entry, and the locations of its chunks.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockRecord {
    /// The least value that is not NULL: a 128-bit key, or the first 16 bytes of a string.
    pub min: [u8; 16],
    /// The greatest value.
    pub max: [u8; 16],
    /// Added to packed values. The value itself in a block without chunks.
    pub base: i64,
    /// The number of rows that are NULL.
    pub null_count: u32,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Validity; values, codes or lengths; the high plane or anchors; string bytes. A chunk of 0
    /// bytes is not stored.
    pub chunks: [ChunkRecord; 4],
    /// Zero.
    pub reserved: [u64; 2],
}

/// One stored range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChunkRecord {
    /// The offset, on a page.
    pub offset: u64,
    /// Its length.
    pub bytes: u32,
    /// CRC-32C of it.
    pub crc: u32,
}

/// Bits that describe `min` and `max`.
pub mod flags {
    /// There is a value that is not NULL, so `min` and `max` are valid.
    pub const HAS_VALUES: u32 = 1;
    /// `min` is the whole least value, not only its start.
    pub const MIN_WHOLE: u32 = 2;
    /// `max` is the whole greatest value, not only its start.
    pub const MAX_WHOLE: u32 = 4;
    /// All known flags.
    pub const ALL: u32 = 7;
}

/// The chunks of a block.
pub mod chunk {
    /// A bit per row, set if the row is not NULL.
    pub const VALIDITY: usize = 0;
    /// Packed values (low plane), codes or lengths; plain values.
    pub const VALUES: usize = 1;
    /// The high plane of values wider than 32 bits.
    pub const HIGH: usize = 2;
    /// For strings: a 4-byte start per vector, into [`TEXT`].
    pub const ANCHORS: usize = 2;
    /// The bytes of a string block, row after row.
    pub const TEXT: usize = 3;
}

/// The encoding of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EncodingCode {
    /// Keys less the block's base, bit-packed. Width 0: constant.
    Packed = 0,
    /// Codes of a sorted dictionary, bit-packed.
    Dictionary = 1,
    /// Unencoded values, in row order.
    Plain = 2,
    /// Bit-packed lengths, a start per vector, and the bytes.
    Text = 3,
}

impl EncodingCode {
    /// Returns the encoding with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Packed, Self::Dictionary, Self::Plain, Self::Text].into_iter().find(|e| *e as u8 == code)
    }
}

/// The stable code of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "named like the types they stand for")]
pub enum TypeCode {
    Boolean = 1,
    Int8 = 2,
    Int16 = 3,
    Int32 = 4,
    Int64 = 5,
    UInt8 = 6,
    UInt16 = 7,
    UInt32 = 8,
    UInt64 = 9,
    Float32 = 10,
    Float64 = 11,
    Decimal = 12,
    Date = 13,
    Timestamp = 14,
    Varchar = 15,
}

const _: () = {
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<Trailer>() == 64);
    assert!(size_of::<FooterHead>() == 64);
    assert!(std::mem::offset_of!(FooterHead, origin) == 32);
    assert!(size_of::<ColumnRecord>() == 128);
    assert!(size_of::<ChunkRecord>() == 16);
    assert!(size_of::<BlockRecord>() == 128);
    assert!(std::mem::offset_of!(Trailer, trailer_crc) == 36);
    assert!(std::mem::offset_of!(ColumnRecord, type_code) == 80);
    assert!(std::mem::offset_of!(BlockRecord, chunks) == 48);
};
