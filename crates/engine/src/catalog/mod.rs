//! The contents of a database: tables, their columns and segments, views, models and functions.
//!
//! A [`Catalog`] is a plain value. A statement changes a copy of it and passes the new copy and the
//! list of [`Change`]s to a [`CatalogStore`]. The store makes the changes durable, atomically:
//! after a crash at any instruction it holds either the previous state or all of the changes. The
//! caller is responsible for the order that makes this safe: first it syncs the bytes of segments,
//! then their names, then it commits the catalog that mentions them. Files that no catalog mentions
//! are orphans, and are collected when the database is opened.
//!
//! Rows that are in no segment, and the deleted rows of segments, are not part of the catalog. They
//! are records beside it, and changes of the same commits.

mod deleted;
mod manifest;
mod medium;
mod migrate;
pub(crate) mod names;
mod records;
pub(crate) mod row;
mod sound;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use onehop_store::medium::Domain;
use onehop_store::{Pending, Stats};
use serde::{Deserialize, Serialize};

pub(crate) use deleted::{VECTOR_ROWS, VectorRows};
pub(crate) use manifest::FILE as MANIFEST_FILE;
pub(crate) use migrate::{Place, copy_live, open};
pub(crate) use sound::MOST_PARTITIONS;
pub(crate) use store::{NEW_FILE, STORE_FILE, stands_on_nothing};

use self::row::EncodedRows;
use crate::Result;

/// The committed state of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    /// The generation. It grows by one with every commit.
    pub generation: u64,
    /// The upper bound of the ids of tables and segments: all are below it.
    pub next_id: u64,
    /// The tables by name.
    pub tables: BTreeMap<String, TableEntry>,
    /// The text of views by name.
    #[serde(default)]
    pub views: BTreeMap<String, String>,
    /// Trained models by name, in the format of [`learn`](crate::learn).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, String>,
    /// Functions by name, in the format of [`functions`](crate::functions).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub functions: BTreeMap<String, String>,
}

/// The place of a database's segments outside its directory. See [`remote`](crate::remote).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentPlace {
    /// A directory on a cluster.
    pub url: String,
    /// The marks of the catalog: one of them is the name of a file in the directory, which shows
    /// that the directory belongs to this catalog. The first mark is the last that was certain.
    pub marks: Vec<String>,
}

/// The identity of a database. The footers of its segments contain both parts. A report can
/// therefore recognize segments of another database, and segments of a history that the store does
/// not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Random bits that the database got with its first segment: 32 hexadecimal digits.
    pub database: String,
    /// Random bits of each process that added segments, 16 hexadecimal digits each, the latest
    /// last.
    pub lives: Vec<String>,
}

/// A segment that a commit took out of the catalog. Its file may still exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedSegment {
    /// The file.
    pub file: String,
    /// The length of the file, in bytes.
    pub bytes: u64,
    /// The checksum. Another segment may have the same name.
    pub checksum: u32,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEntry {
    /// The id. It is never reused, so that a table that is dropped and created again is another
    /// one.
    pub id: u64,
    /// The columns, in order.
    pub columns: Vec<ColumnEntry>,
    /// The columns by which rows are sorted when they are loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_by: Vec<String>,
    /// The partitioning of rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_by: Option<PartitionBy>,
    /// The device in whose memory the table should reside, of devices with memory of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residence: Option<String>,
    /// The segments, which contain the rows.
    pub segments: Vec<SegmentEntry>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnEntry {
    /// The name.
    pub name: String,
    /// The name of its type in SQL.
    #[serde(rename = "type")]
    pub type_name: String,
    /// True if the column admits NULL.
    pub nullable: bool,
}

/// A segment of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentEntry {
    /// The file, in the database's folder of segments.
    pub file: String,
    /// The number of rows.
    pub rows: u64,
    /// The length of the file, in bytes.
    pub bytes: u64,
    /// [`Segment::checksum`](onehop_segment::Segment::checksum), which detects another segment of
    /// the same name. `None` if the segment was loaded before catalogs had checksums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<u32>,
    /// The partition of the segment; 0 if the table has none.
    #[serde(default)]
    pub partition: u32,
}

/// The partitioning of a table's rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "method")]
pub enum PartitionBy {
    /// By the first bound that is greater than the column's value.
    Range {
        /// The column.
        column: String,
        /// The partitions in ascending order of their bounds.
        partitions: Vec<RangePartition>,
    },
    /// By the list that the column's value is in.
    List {
        /// The column.
        column: String,
        /// The partitions.
        partitions: Vec<ListPartition>,
    },
    /// By a hash of the column's value.
    Hash {
        /// The column.
        column: String,
        /// The number of partitions.
        partitions: u32,
    },
}

/// `PARTITION name VALUES LESS THAN (bound)`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangePartition {
    /// The name.
    pub name: String,
    /// The exclusive upper bound of values, a literal; `None` is MAXVALUE.
    pub less_than: Option<String>,
}

/// `PARTITION name VALUES IN (...)`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPartition {
    /// The name.
    pub name: String,
    /// The literals; `None` stands for NULL.
    pub values: Vec<Option<String>>,
    /// True if the partition takes values that no other partition lists.
    pub is_default: bool,
}

impl PartitionBy {
    /// Returns the partitioning column.
    pub fn column(&self) -> &str {
        match self {
            Self::Range { column, .. } | Self::List { column, .. } | Self::Hash { column, .. } => column,
        }
    }

    /// Returns the number of partitions.
    pub fn count(&self) -> usize {
        match self {
            Self::Range { partitions, .. } => partitions.len(),
            Self::List { partitions, .. } => partitions.len(),
            Self::Hash { partitions, .. } => *partitions as usize,
        }
    }

    /// Returns the name of a partition.
    pub fn name(&self, partition: u32) -> String {
        let name = match self {
            Self::Range { partitions, .. } => partitions.get(partition as usize).map(|p| p.name.clone()),
            Self::List { partitions, .. } => partitions.get(partition as usize).map(|p| p.name.clone()),
            Self::Hash { .. } => None,
        };
        name.unwrap_or_else(|| format!("p{partition}"))
    }
}

impl fmt::Display for PartitionBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { column, partitions } => write!(f, "RANGE ({column}), {} partitions", partitions.len()),
            Self::List { column, partitions } => write!(f, "LIST ({column}), {} partitions", partitions.len()),
            Self::Hash { column, partitions } => write!(f, "HASH ({column}), {partitions} partitions"),
        }
    }
}

impl TableEntry {
    /// Returns the columns as an Arrow schema.
    pub fn schema(&self) -> Result<Schema> {
        let fields = self.columns.iter().map(|column| {
            let column_type = names::parse_type(&column.type_name)?;
            Ok(Field::new(&column.name, column_type.arrow(), column.nullable))
        });
        Ok(Schema::new(fields.collect::<Result<Vec<Field>>>()?))
    }

    /// Returns the number of rows in all segments.
    pub fn rows(&self) -> u64 {
        self.segments.iter().map(|segment| segment.rows).sum()
    }

    /// Returns the length of all segments, in bytes.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }
}

/// One change of a commit. A change refers to a table by name if the store reads its description
/// from the new catalog, and by id otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a table, replaces it by another one, or changes its description.
    PutTable {
        /// The name of the table.
        name: String,
    },
    /// Removes a table, with everything that belongs to it.
    DropTable {
        /// The name of the table.
        name: String,
    },
    /// Adds segments to a table, after the existing ones of their partitions.
    AddSegments {
        /// The id of the table.
        table: u64,
        /// The new segments.
        segments: Vec<SegmentEntry>,
    },
    /// Removes segments from a table, with the records of their deleted rows.
    RemoveSegments {
        /// The id of the table.
        table: u64,
        /// The files of the segments.
        files: Vec<String>,
    },
    /// Adds a view, or replaces its text.
    PutView {
        /// The name of the view.
        name: String,
    },
    /// Removes a view.
    DropView {
        /// The name of the view.
        name: String,
    },
    /// Adds a model, or replaces it after new training.
    PutModel {
        /// The name of the model.
        name: String,
    },
    /// Removes a model.
    DropModel {
        /// The name of the model.
        name: String,
    },
    /// Adds or replaces a function.
    PutFunction {
        /// The name of the function.
        name: String,
    },
    /// Removes a function.
    DropFunction {
        /// The name of the function.
        name: String,
    },
    /// Gives the place of segments another mark. The segments stay where they are.
    PutPlace {
        /// The new description of the place.
        place: SegmentPlace,
    },
    /// Replaces the identity of the database, which has a new life.
    PutIdentity {
        /// The complete identity.
        identity: Identity,
    },
    /// Removes the records of removed segments whose files are gone.
    ForgetRemoved {
        /// The files.
        files: Vec<String>,
    },
    /// Adds rows to a table that are in no segment.
    AddRows {
        /// The id of the table.
        table: u64,
        /// The id of the first row. The others have consecutive ids.
        first_id: u64,
        /// The rows.
        rows: Arc<EncodedRows>,
    },
    /// Removes rows that are in no segment: they were deleted, or are in a segment now.
    RemoveRows {
        /// The id of their table.
        table: u64,
        /// The ids of the rows.
        rows: Vec<u64>,
    },
    /// Marks rows of a segment as deleted.
    DeleteRows {
        /// The id of the table.
        table: u64,
        /// The file of the segment.
        file: String,
        /// Vectors of the segment by number, each with all its deleted rows.
        vectors: Vec<(u32, VectorRows)>,
    },
}

/// A report of a store on itself.
#[derive(Clone, Copy, Debug)]
pub struct StoreReport {
    /// The failure domain in which committed data is safe.
    pub domain: Domain,
    /// Statistics of the store.
    pub stats: Stats,
}

/// A callback for a record: it takes the id or the number of its key, and its bytes.
pub type Hear<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// Durable storage of catalogs and fresh rows. It has one writer at a time; the caller holds the
/// database's lock.
pub trait CatalogStore: Send + Sync + fmt::Debug {
    /// Returns the last committed catalog.
    fn load(&self) -> Result<Catalog>;

    /// Returns the place of segments; `None` if they lie in the database's directory.
    fn segment_place(&self) -> Result<Option<SegmentPlace>>;

    /// Returns the identity of the database; `None` before it had segments, or if they lie
    /// elsewhere.
    fn identity(&self) -> Result<Option<Identity>>;

    /// Returns the removed segments whose files may still exist.
    fn removed(&self) -> Result<Vec<RemovedSegment>>;

    /// Returns whether commits that were in order have been taken back since the last
    /// [`load`](Self::load). None of their effects remain, and the store accepts no commit before
    /// the next `load`.
    fn is_behind(&self) -> bool;

    /// Passes the rows of a table that are in no segment to `hear`, in ascending order of their
    /// ids.
    fn rows(&self, table: u64, hear: Hear<'_>) -> Result<()>;

    /// Passes the deleted rows of a table's segment to `hear`, in ascending order of vectors.
    fn deleted(&self, table: u64, file: &str, hear: &mut dyn FnMut(u32, VectorRows) -> Result<()>) -> Result<()>;

    /// Makes `next` the committed catalog, and applies those `changes` that are about rows. `next`
    /// must be the last catalog with `changes` applied. Commits become durable in the order of
    /// these calls, each whole or not at all. There is one call at a time.
    ///
    /// The returned [`Pending`] waits until the commit survives a power failure. If the wait fails,
    /// the commit may be durable or not: the caller must not continue, and must load again.
    ///
    /// # Errors
    /// Any error. The store then commits none of the changes.
    fn commit(&self, next: &Catalog, changes: &[Change]) -> Result<Pending>;

    /// Returns statistics since the store was opened, and its current size.
    fn report(&self) -> StoreReport;

    /// Verifies all records. Each finding is a sentence.
    fn check(&self, found: &mut dyn FnMut(String)) -> Result<()>;
}
