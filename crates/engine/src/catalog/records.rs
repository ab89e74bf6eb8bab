//! Keys of the store's records, and encodings of the catalog's values.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `database` | `format` | 4 bytes, little-endian: [`FORMAT`], or a later format for features |
//! | | `generation`, `next_id` | 8 bytes, little-endian |
//! | | `features` | 4 bytes, little-endian: bits of used features, in [`FORMAT_WITH_FEATURES`] |
//! | | `identity` | version, [`Identity`](super::Identity) as JSON, once the directory has had segments |
//! | | `segments` | version, [`SegmentPlace`](super::SegmentPlace) as JSON, if segments lie elsewhere |
//! | `tables` | name ([`name_key`]) | version, [`TableRecord`] as JSON |
//! | `views` | name ([`name_key`]) | version, text |
//! | `models` | name ([`name_key`]) | version, JSON of [`learn`](crate::learn) |
//! | `functions` | name ([`name_key`]) | version, JSON of [`functions`](crate::functions) |
//! | `names` | key of a long name | version, the whole name |
//! | `segments` | table id, file | version, [`SegmentRecord`] as JSON |
//! | `removed` | file | version, length (8 bytes), checksum (4 bytes): a removed segment |
//! | `deleted` | table id, file, 0, vector (4 bytes) | [`VectorRows`](super::VectorRows) |
//! | `rows/<table id>` | row id | [`row`](super::row) |
//!
//! Ids in keys are 8 bytes. Ids and vector numbers are big-endian, so that keys sort in their
//! order. A version is one byte, 1. A record in `removed` stays until the file of the segment is
//! gone. JSON is for records that are few and small, and that people may want to read. Per-row
//! records are binary.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ColumnEntry, PartitionBy, SegmentEntry, TableEntry};
use crate::{Error, ErrorKind, Result};

/// The base format version. A reader knows everything that this version may contain, or refuses the
/// database.
pub(super) const FORMAT: u32 = 1;
/// The base format with models. A build without models refuses the database instead of showing it
/// without them. A database that never had a model stays readable for older builds.
pub(super) const FORMAT_WITH_MODELS: u32 = 2;
/// The base format with feature bits. A build refuses bits that it does not know. Later additions
/// are new bits, not new formats.
pub(super) const FORMAT_WITH_FEATURES: u32 = 3;

/// The feature bit of models.
pub(super) const FEATURE_MODELS: u32 = 1;
/// The feature bit of segments that lie outside the database's directory.
pub(super) const FEATURE_PLACE: u32 = 2;
/// The feature bit of functions.
pub(super) const FEATURE_FUNCTIONS: u32 = 4;
/// The feature bit of segments with an origin, of markers, and of removed segments that the catalog
/// remembers.
pub(super) const FEATURE_IDENTITY: u32 = 8;
/// All bits that this build knows.
pub(super) const FEATURES: u32 = FEATURE_MODELS | FEATURE_PLACE | FEATURE_FUNCTIONS | FEATURE_IDENTITY;

pub(super) const DATABASE: &str = "database";
pub(super) const TABLES: &str = "tables";
pub(super) const VIEWS: &str = "views";
pub(super) const MODELS: &str = "models";
pub(super) const FUNCTIONS: &str = "functions";
pub(super) const NAMES: &str = "names";
pub(super) const SEGMENTS: &str = "segments";
pub(super) const DELETED: &str = "deleted";
pub(super) const REMOVED: &str = "removed";

pub(super) const FORMAT_KEY: &[u8] = b"format";
pub(super) const GENERATION_KEY: &[u8] = b"generation";
pub(super) const NEXT_ID_KEY: &[u8] = b"next_id";
pub(super) const FEATURES_KEY: &[u8] = b"features";
pub(super) const PLACE_KEY: &[u8] = b"segments";
pub(super) const IDENTITY_KEY: &[u8] = b"identity";

const VERSION: u8 = 1;

/// Returns the name of the tree of a table's rows.
pub(super) fn rows_of(table: u64) -> String {
    format!("rows/{table}")
}

/// The maximum length of a name that is its own key, in bytes. A key of the store has at most 1,024
/// bytes.
const MOST_KEY_BYTES: usize = 900;
/// The first byte of keys of longer names. No UTF-8 string begins with it.
const LONG: u8 = 0xFF;

/// Returns the key of a name. A short name is its own key. The key of a long name is its prefix,
/// its length and a hash. The tree `names` has the whole name, so that a second long name with the
/// same key is refused.
pub(super) fn name_key(name: &str) -> Vec<u8> {
    if name.len() <= MOST_KEY_BYTES {
        return name.into();
    }
    let mut key = vec![LONG];
    key.extend(&name.as_bytes()[..MOST_KEY_BYTES]);
    key.extend((name.len() as u64).to_be_bytes());
    key.extend(crate::hash::hash_text(name).to_be_bytes());
    key
}

/// Returns whether a key stands for a name that is in the tree `names`.
pub(super) fn is_long(key: &[u8]) -> bool {
    key.first() == Some(&LONG)
}

pub(super) fn segment_key(table: u64, file: &str) -> Vec<u8> {
    [&table.to_be_bytes()[..], file.as_bytes()].concat()
}

/// Returns the common prefix of the keys of a segment's deleted rows.
pub(super) fn deleted_prefix(table: u64, file: &str) -> Vec<u8> {
    [&table.to_be_bytes()[..], file.as_bytes(), &[0]].concat()
}

pub(super) fn deleted_key(table: u64, file: &str, vector: u32) -> Vec<u8> {
    [&deleted_prefix(table, file)[..], &vector.to_be_bytes()].concat()
}

/// A table without its segments.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TableRecord {
    pub id: u64,
    pub columns: Vec<ColumnEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_by: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_by: Option<PartitionBy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residence: Option<String>,
}

impl TableRecord {
    /// Creates the record of a table.
    pub fn of(table: &TableEntry) -> Self {
        Self {
            id: table.id,
            columns: table.columns.clone(),
            cluster_by: table.cluster_by.clone(),
            partition_by: table.partition_by.clone(),
            residence: table.residence.clone(),
        }
    }

    /// Returns the table with these segments.
    pub fn with_segments(self, segments: Vec<SegmentEntry>) -> TableEntry {
        let Self { id, columns, cluster_by, partition_by, residence } = self;
        TableEntry { id, columns, cluster_by, partition_by, residence, segments }
    }
}

/// A segment, and its position among those of its table: by `generation`, then by `index`.
/// `generation` is the first one of the catalog that has the segment. `index` orders the segments
/// that were added in that generation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SegmentRecord {
    pub generation: u64,
    pub index: u64,
    pub rows: u64,
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<u32>,
    #[serde(default)]
    pub partition: u32,
}

impl SegmentRecord {
    /// Creates the record of a segment.
    pub fn of(segment: &SegmentEntry, generation: u64, index: usize) -> Self {
        let SegmentEntry { rows, bytes, checksum, partition, .. } = *segment;
        Self { generation, index: index as u64, rows, bytes, checksum, partition }
    }

    /// Returns the segment with this file.
    pub fn with_file(&self, file: &str) -> SegmentEntry {
        let Self { rows, bytes, checksum, partition, .. } = *self;
        SegmentEntry { file: file.to_string(), rows, bytes, checksum, partition }
    }
}

/// Encodes the length and checksum of a removed segment. They distinguish its file from another
/// file of the same name.
pub(super) fn encode_removed(bytes: u64, checksum: u32) -> Vec<u8> {
    [&[VERSION][..], &bytes.to_le_bytes(), &checksum.to_le_bytes()].concat()
}

/// Decodes the length and checksum of a removed segment. Fails with a message that says what is
/// wrong.
pub(super) fn decode_removed(value: &[u8]) -> std::result::Result<(u64, u32), String> {
    let short = || "it is not 13 bytes long".to_string();
    let (bytes, checksum) = versioned(value)?.split_first_chunk::<8>().ok_or_else(short)?;
    let checksum = <[u8; 4]>::try_from(checksum).map_err(|_| short())?;
    Ok((u64::from_le_bytes(*bytes), u32::from_le_bytes(checksum)))
}

/// Encodes a record as a value.
pub(super) fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    let mut value = vec![VERSION];
    serde_json::to_writer(&mut value, record)
        .map_err(|e| Error::new(ErrorKind::Internal, format!("cannot write a record of the catalog as JSON: {e}")))?;
    Ok(value)
}

/// Decodes a value as a record. Fails with a message that says what is wrong.
pub(super) fn decode<T: DeserializeOwned>(value: &[u8]) -> std::result::Result<T, String> {
    serde_json::from_slice(versioned(value)?).map_err(|e| e.to_string())
}

/// Encodes a string as a value.
pub(super) fn encode_text(text: &str) -> Vec<u8> {
    [&[VERSION], text.as_bytes()].concat()
}

/// Decodes a value as a string. Fails with a message that says what is wrong.
pub(super) fn decode_text(value: &[u8]) -> std::result::Result<String, String> {
    String::from_utf8(versioned(value)?.to_vec()).map_err(|e| e.to_string())
}

fn versioned(value: &[u8]) -> std::result::Result<&[u8], String> {
    match value {
        [VERSION, rest @ ..] => Ok(rest),
        [version, ..] => Err(format!("it has version {version}, and this build knows version {VERSION}")),
        [] => Err("it is empty".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_long_names_are_short_and_no_others() {
        let long = "ü".repeat(5000);
        let other = format!("{long}x");
        for name in ["", "t", &"n".repeat(MOST_KEY_BYTES)] {
            assert_eq!(name_key(name), name.as_bytes());
            assert!(!is_long(&name_key(name)));
        }
        assert!(is_long(&name_key(&long)) && name_key(&long).len() <= onehop_store::MAX_KEY_BYTES);
        assert_ne!(name_key(&long), name_key(&other));
    }

    #[test]
    fn keys_of_one_file_are_no_others() {
        // The name of one file may be a prefix of another's.
        let (short, long) = (deleted_prefix(1, "a"), deleted_key(1, "ab", 0));
        assert!(!long.starts_with(&short));
    }
}
