//! What a database holds: tables, their columns and segments, views, models. Values, not handles.
//!
//! A [`Catalog`] is a plain value. Statements change a copy of it and hand the new copy and the list of [`Change`]s to a
//! [`CatalogStore`], which makes them durable, atomically: after a crash at any instruction the store holds what was
//! before, or all of them. The order that makes this safe is the caller's: first the segments' bytes are synced, then
//! their names, then the catalog that mentions them is committed. Files that no catalog mentions are orphans, and are
//! collected when the database is opened.
//!
//! Rows that are in no segment, and which rows of segments are deleted, are no part of the catalog: they are records
//! beside it, and changes of the same commits.

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

/// Everything that is committed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    /// Grows by one with every commit.
    pub generation: u64,
    /// Ids of tables and segments are below this.
    pub next_id: u64,
    /// Tables by name.
    pub tables: BTreeMap<String, TableEntry>,
    /// The text of views by name.
    #[serde(default)]
    pub views: BTreeMap<String, String>,
    /// Trained models by name, as [`learn`](crate::learn) writes them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, String>,
    /// Functions by name, as [`functions`](crate::functions) writes them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub functions: BTreeMap<String, String>,
}

/// Where the segments of a database lie, if not in its directory. See [`remote`](crate::remote).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentPlace {
    /// A directory on a cluster.
    pub url: String,
    /// By which file in it one knows that it is this catalog's: one of these. The first is the last that was certain.
    pub marks: Vec<String>,
}

/// The identity of a database. Its segments have both parts in their footers, so that a report can tell segments of another
/// database, and of a history that the store does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Random bits that the database got with its first segment: 32 hexadecimal digits.
    pub database: String,
    /// Random bits of each process that has brought segments, the last at the end: 16 hexadecimal digits each.
    pub lives: Vec<String>,
}

/// A segment that a commit took out of the catalog, and whose file may still be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedSegment {
    /// The file.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// Its checksum: another segment may have its name.
    pub checksum: u32,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEntry {
    /// Never used twice, so that a table dropped and made again is another one.
    pub id: u64,
    /// The columns, in order.
    pub columns: Vec<ColumnEntry>,
    /// Rows are sorted by these columns when they are loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_by: Vec<String>,
    /// How rows are spread over partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_by: Option<PartitionBy>,
    /// The device whose memory it is to be in, of those who have such a one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residence: Option<String>,
    /// The rows.
    pub segments: Vec<SegmentEntry>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnEntry {
    /// Its name.
    pub name: String,
    /// Its type, in SQL's words.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Whether it admits NULL.
    pub nullable: bool,
}

/// A segment of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentEntry {
    /// The file, in the database's folder of segments.
    pub file: String,
    /// Its rows.
    pub rows: u64,
    /// Its length.
    pub bytes: u64,
    /// [`Segment::checksum`](onehop_segment::Segment::checksum), by which another segment under its name is noticed;
    /// `None` if it was loaded before catalogs had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<u32>,
    /// The partition it belongs to; 0 where the table has none.
    #[serde(default)]
    pub partition: u32,
}

/// How a table's rows are spread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "method")]
pub enum PartitionBy {
    /// By the first bound that the column's value is less than.
    Range {
        /// The column.
        column: String,
        /// Partitions in ascending order of their bounds.
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
        /// Their number.
        partitions: u32,
    },
}

/// `PARTITION name VALUES LESS THAN (bound)`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangePartition {
    /// Its name.
    pub name: String,
    /// Rows have values below this literal; `None` is MAXVALUE.
    pub less_than: Option<String>,
}

/// `PARTITION name VALUES IN (...)`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPartition {
    /// Its name.
    pub name: String,
    /// Literals; `None` stands for NULL.
    pub values: Vec<Option<String>>,
    /// Whether it takes what no other partition lists.
    pub is_default: bool,
}

impl PartitionBy {
    /// The column it goes by.
    pub fn column(&self) -> &str {
        match self {
            Self::Range { column, .. } | Self::List { column, .. } | Self::Hash { column, .. } => column,
        }
    }

    /// The number of partitions.
    pub fn count(&self) -> usize {
        match self {
            Self::Range { partitions, .. } => partitions.len(),
            Self::List { partitions, .. } => partitions.len(),
            Self::Hash { partitions, .. } => *partitions as usize,
        }
    }

    /// The name of a partition.
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
    /// The columns as an Arrow schema.
    pub fn schema(&self) -> Result<Schema> {
        let fields = self.columns.iter().map(|column| {
            let column_type = names::parse_type(&column.type_name)?;
            Ok(Field::new(&column.name, column_type.arrow(), column.nullable))
        });
        Ok(Schema::new(fields.collect::<Result<Vec<Field>>>()?))
    }

    /// Rows in all segments.
    pub fn rows(&self) -> u64 {
        self.segments.iter().map(|segment| segment.rows).sum()
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }
}

/// One thing that a commit changes. Tables go by name where the new catalog says more, and by id where it need not be looked
/// at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A table is new, or has become another one, or is described otherwise.
    PutTable {
        /// Its name.
        name: String,
    },
    /// A table is gone, with all that belongs to it.
    DropTable {
        /// Its name.
        name: String,
    },
    /// A table has more segments, at the end of those of their partitions.
    AddSegments {
        /// Its id.
        table: u64,
        /// The new ones.
        segments: Vec<SegmentEntry>,
    },
    /// A table has lost segments, and what was known of their rows.
    RemoveSegments {
        /// Its id.
        table: u64,
        /// Their files.
        files: Vec<String>,
    },
    /// A view is new, or has another text.
    PutView {
        /// Its name.
        name: String,
    },
    /// A view is gone.
    DropView {
        /// Its name.
        name: String,
    },
    /// A model is new, or was trained again.
    PutModel {
        /// Its name.
        name: String,
    },
    /// A model is gone.
    DropModel {
        /// Its name.
        name: String,
    },
    /// A function is new, or another.
    PutFunction {
        /// Its name.
        name: String,
    },
    /// A function is gone.
    DropFunction {
        /// Its name.
        name: String,
    },
    /// Segments lie where they lay, under another mark.
    PutPlace {
        /// What to say of it.
        place: SegmentPlace,
    },
    /// The database has another life.
    PutIdentity {
        /// All of it.
        identity: Identity,
    },
    /// Files of removed segments are gone: nothing has to remember them any more.
    ForgetRemoved {
        /// The files.
        files: Vec<String>,
    },
    /// A table has more rows that are in no segment.
    AddRows {
        /// Its id.
        table: u64,
        /// The id of the first; the others have those that follow.
        first_id: u64,
        /// The rows.
        rows: Arc<EncodedRows>,
    },
    /// Rows that are in no segment are gone: deleted, or in one now.
    RemoveRows {
        /// The id of their table.
        table: u64,
        /// Their ids.
        rows: Vec<u64>,
    },
    /// Rows of a segment are deleted.
    DeleteRows {
        /// The id of its table.
        table: u64,
        /// Its file.
        file: String,
        /// Numbers of vectors of the segment, with all rows of each that are deleted.
        vectors: Vec<(u32, VectorRows)>,
    },
}

/// What a store says of itself.
#[derive(Clone, Copy, Debug)]
pub struct StoreReport {
    /// Where what is committed is safe.
    pub domain: Domain,
    /// What it has done and has.
    pub stats: Stats,
}

/// Hears of a record: its id or its key's number, and its bytes.
pub type Hear<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// Where catalogs and fresh rows become durable. One writer at a time; the caller holds the database's lock.
pub trait CatalogStore: Send + Sync + fmt::Debug {
    /// The last committed catalog.
    fn load(&self) -> Result<Catalog>;

    /// Where segments lie, if not in the database's directory.
    fn segment_place(&self) -> Result<Option<SegmentPlace>>;

    /// The identity of the database; `None` before it had segments, or if these lie elsewhere.
    fn identity(&self) -> Result<Option<Identity>>;

    /// Segments that were removed, and whose files may be there.
    fn removed(&self) -> Result<Vec<RemovedSegment>>;

    /// Whether commits that were in order have been taken back since the last [`load`](Self::load): nothing of them has
    /// happened, and no commit is accepted before there is another.
    fn is_behind(&self) -> bool;

    /// The rows of a table that are in no segment, by id: ascending.
    fn rows(&self, table: u64, hear: Hear<'_>) -> Result<()>;

    /// Which rows of a table's segment are deleted: vectors, ascending.
    fn deleted(&self, table: u64, file: &str, hear: &mut dyn FnMut(u32, VectorRows) -> Result<()>) -> Result<()>;

    /// Makes `next` the committed catalog, which is the last one with `changes` applied, and applies those that are about
    /// rows. Commits become durable in the order of these calls, each whole or not at all. One at a time.
    ///
    /// What is returned waits until it survives a power failure. After an error it may be durable or not: the caller must not go
    /// on, and must load again.
    ///
    /// # Errors
    /// Nothing of it is committed.
    fn commit(&self, next: &Catalog, changes: &[Change]) -> Result<Pending>;

    /// What it has done since it was opened, and what it has.
    fn report(&self) -> StoreReport;

    /// Verifies all that it keeps: each finding is a sentence.
    fn check(&self, found: &mut dyn FnMut(String)) -> Result<()>;
}
