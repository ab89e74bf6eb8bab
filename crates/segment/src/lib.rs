//! Immutable columnar segment files.
//!
//! A segment holds up to [`MAX_SEGMENT_ROWS`] rows. Each column is contiguous, divided into blocks
//! of [`BLOCK_ROWS`] rows. Each block's bytes are on pages of their own, so that a run of blocks is
//! one large direct read without decoding. Values are packed in one lane geometry ([`packed`]) at
//! one width per column and segment, which both processors unpack in registers. Every block has a
//! zone map entry ([`Zone`]) that rules it out without I/O. Every stored byte has a checksum that
//! is verified before use.
//!
//! Invariants:
//! - A [`Segment`] never returns wrong rows. Bytes that do not match their checksum, and valid
//!   bytes that are inconsistent (an offset outside of the file, a code outside of the dictionary),
//!   are [`Error::Corrupt`], with file, column and block.
//! - Zones may be wider than their values, never narrower.

mod ahead;
mod blocks;
mod cache;
mod check;
mod code_table;
mod decode;
mod deleted;
mod encode;
mod error;
mod isa;
pub mod layout;
pub mod packed;
mod place;
mod queues;
mod reader;
mod stored;
mod stored_bytes;
mod stream;
pub mod types;
mod writer;
mod zone;

pub use ahead::{AheadFacts, BlockScan};
pub use blocks::{BlockList, BlockRun};
pub use cache::BlockCache;
pub use check::{Checked, check};
pub use code_table::CodeTable;
pub use decode::BlockColumn;
pub use deleted::{DeletedBlock, DeletedRows};
pub use error::{Error, Place, Result};
pub use layout::{EncodingCode, FORMAT_VERSION, OriginRecord};
pub use place::{BlockPlace, ChunkPlace, PackedPlace};
pub use reader::{ColumnInfo, Segment};
pub use stored::{Plane, Stored};
pub use stream::BlockStream;
pub use types::ColumnType;
pub use writer::{SegmentOptions, SegmentWriter, Written};
pub use zone::{Comparison, Predicate, Value, Zone};

/// The rows in a block: the unit of encoding, skipping and scheduling.
pub const BLOCK_ROWS: usize = 65_536;
/// The maximum number of rows in a segment.
pub const MAX_SEGMENT_ROWS: u64 = 1 << 24;
