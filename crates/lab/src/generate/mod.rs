//! The tables of two benchmarks, at any scale, in chunks.
//!
//! A [`Generator`] is a pure function: (benchmark, scale factor, table) determine every row. A
//! *chunk* is a range of those rows that can be generated independently, on any thread, in any
//! order. The caller chooses the number of rows in a chunk ([`Benchmark::generator`]), which
//! changes the boundaries, never the rows.
//!
//! Every column is non-null and every string column is Utf8View.

mod calendar;
pub(crate) mod random;
pub mod segments;
pub mod ssb;
pub mod tpch;
mod views;
pub mod write;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use std::path::PathBuf;

pub(crate) use random::{GOLDEN, mix};
pub use ssb::Ssb;
pub use tpch::Tpch;

/// The maximum number of rows of a batch.
pub const BATCH_ROWS_MAX: usize = 65_536;

/// The default number of rows in a chunk; the size of a Parquet row group.
pub const CHUNK_ROWS: u64 = 1 << 20;

/// An error while tables are generated and written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The benchmark has no data at the scale factor.
    #[error("scale factor must be a number from {min} to {max}, got {given}")]
    Scale {
        /// The requested scale factor.
        given: f64,
        /// The smallest scale at which every table still has rows.
        min: f64,
        /// The largest scale at which every key fits its column.
        max: f64,
    },
    /// There is no benchmark of this name.
    #[error("unknown benchmark '{0}': expected ssb or tpch")]
    UnknownBenchmark(String),
    /// The benchmark has no table of this name.
    #[error("unknown table '{table}': expected one of {known}")]
    UnknownTable {
        /// The requested table.
        table: String,
        /// The known tables, for the message.
        known: String,
    },
    /// There is no file format of this name.
    #[error("unknown format '{0}': expected parquet, csv or tbl")]
    UnknownFormat(String),
    /// A chunk number is beyond the table's last.
    #[error("table {table} has {chunks} chunks (numbered from 0), there is no chunk {chunk}")]
    NoSuchChunk {
        /// The table.
        table: String,
        /// The requested chunk.
        chunk: usize,
        /// The number of chunks.
        chunks: usize,
    },
    /// A file exists, and overwriting was not requested.
    #[error("{} exists already; remove it, choose another directory, or ask for it to be replaced", .0.display())]
    Exists(PathBuf),
    /// Writing was cancelled. Files finished before are complete, the others do not exist.
    #[error("cancelled")]
    Cancelled,
    /// The text formats cannot write a column type.
    #[error("column {column}: {format} files cannot hold values of type {data_type}")]
    Unsupported {
        /// The column.
        column: String,
        /// The file format.
        format: &'static str,
        /// Its Arrow type.
        data_type: DataType,
    },
    /// The file system refused an operation.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// A batch could not be built.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// The database refused a table or its rows.
    #[error(transparent)]
    Engine(#[from] onehop_engine::Error),
    /// A batch could not be encoded.
    #[error(transparent)]
    Parquet(#[from] parquet::errors::ParquetError),
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The batches of one chunk, in row order, each of at most [`BATCH_ROWS_MAX`] rows.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// One table of a benchmark at one scale.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// The table's name, in lower case.
    pub name: &'static str,
    /// The columns, in the specification's order.
    pub schema: SchemaRef,
    /// The number of rows; for the fact tables (1 to 7 lines an order) its expectation.
    pub rows_expected: u64,
    /// A `CREATE TABLE` statement for the schema.
    pub ddl: String,
}

impl TableInfo {
    fn new(name: &'static str, schema: SchemaRef, rows_expected: u64) -> Self {
        let ddl = ddl(name, &schema);
        Self { name, schema, rows_expected, ddl }
    }
}

/// The tables of one benchmark at one scale, each split into independent chunks.
///
/// All methods may be called from many threads at once. A chunk generates the same rows each time.
pub trait Generator: Send + Sync {
    /// Returns all tables, small ones first. Loading in this order never leaves a dangling key.
    fn tables(&self) -> Vec<TableInfo>;

    /// Returns the number of chunks of a table; at least 1.
    fn chunks(&self, table: &str) -> Result<usize>;

    /// Returns the rows of one chunk, `0..chunks`, generated lazily by the iterator.
    fn chunk(&self, table: &str, chunk: usize) -> Result<Batches>;

    /// Returns the table of this name.
    fn table(&self, table: &str) -> Result<TableInfo> {
        let tables = self.tables();
        match tables.iter().find(|info| info.name == table) {
            Some(info) => Ok(info.clone()),
            None => Err(unknown_table(table, tables.iter().map(|info| info.name))),
        }
    }
}

/// A benchmark with a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benchmark {
    /// The Star Schema Benchmark.
    Ssb,
    /// TPC-H.
    Tpch,
}

impl Benchmark {
    /// Returns the benchmark's generator at a scale, with chunks of about `chunk_rows` rows (at
    /// least 1).
    pub fn generator(self, scale: f64, chunk_rows: u64) -> Result<Box<dyn Generator>> {
        Ok(match self {
            Self::Ssb => Box::new(Ssb::new(scale)?.with_chunk_rows(chunk_rows)),
            Self::Tpch => Box::new(Tpch::new(scale)?.with_chunk_rows(chunk_rows)),
        })
    }
}

impl std::str::FromStr for Benchmark {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name.to_ascii_lowercase().as_str() {
            "ssb" => Ok(Self::Ssb),
            "tpch" | "tpc-h" => Ok(Self::Tpch),
            _ => Err(Error::UnknownBenchmark(name.to_owned())),
        }
    }
}

fn unknown_table<'a>(table: &str, known: impl Iterator<Item = &'a str>) -> Error {
    Error::UnknownTable { table: table.to_owned(), known: known.collect::<Vec<_>>().join(", ") }
}

fn checked_scale(given: f64, min: f64, max: f64) -> Result<f64> {
    // This form of the comparison also rejects NaN.
    if given >= min && given <= max { Ok(given) } else { Err(Error::Scale { given, min, max }) }
}

/// Returns the `CREATE TABLE` statement for a schema of this module.
fn ddl(name: &str, schema: &Schema) -> String {
    // `date` is the name of a type. Quoted, every parser accepts it as a table's.
    let name = if name == "date" { "\"date\"" } else { name };
    let columns: Vec<_> = schema
        .fields()
        .iter()
        .map(|field| format!("    {} {} NOT NULL", field.name(), sql_type(field.data_type())))
        .collect();
    format!("CREATE TABLE {name} (\n{}\n)", columns.join(",\n"))
}

fn sql_type(data_type: &DataType) -> String {
    match data_type {
        DataType::Int64 => "BIGINT".to_owned(),
        DataType::Int32 => "INTEGER".to_owned(),
        DataType::Date32 => "DATE".to_owned(),
        DataType::Decimal128(precision, scale) => format!("DECIMAL({precision},{scale})"),
        _ => "VARCHAR".to_owned(),
    }
}

/// The division of `units` units (rows, or orders of several rows) into chunks of `per_chunk`, the
/// last one shorter.
#[derive(Clone, Copy, Debug)]
struct Cuts {
    units: u64,
    per_chunk: u64,
}

impl Cuts {
    fn count(self) -> usize {
        self.units.div_ceil(self.per_chunk.max(1)).max(1) as usize
    }

    fn range(self, table: &str, chunk: usize) -> Result<std::ops::Range<u64>> {
        let chunks = self.count();
        if chunk >= chunks {
            return Err(Error::NoSuchChunk { table: table.to_owned(), chunk, chunks });
        }
        let start = chunk as u64 * self.per_chunk;
        Ok(start..(start + self.per_chunk).min(self.units))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_out_of_range_are_refused_by_name() {
        for given in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            for benchmark in [Benchmark::Ssb, Benchmark::Tpch] {
                let error = benchmark.generator(given, CHUNK_ROWS).err().map(|e| e.to_string()).unwrap_or_default();
                assert!(error.starts_with("scale factor must be a number from 0.001 to "), "{error}");
                assert!(error.ends_with(&format!("got {given}")), "{error}");
            }
        }
    }

    #[test]
    fn cuts_cover_everything_once() -> Result<()> {
        for (units, per_chunk) in [(1, 1), (10, 3), (9, 3), (5, 100)] {
            let cuts = Cuts { units, per_chunk };
            let mut next = 0;
            for chunk in 0..cuts.count() {
                let range = cuts.range("t", chunk)?;
                assert_eq!(range.start, next);
                next = range.end;
            }
            assert_eq!(next, units);
            assert!(cuts.range("t", cuts.count()).is_err());
        }
        Ok(())
    }

    #[test]
    fn names_are_read_and_refused() {
        assert!(matches!("SSB".parse(), Ok(Benchmark::Ssb)));
        assert!(matches!("tpc-h".parse(), Ok(Benchmark::Tpch)));
        assert!(matches!("tpcds".parse::<Benchmark>(), Err(Error::UnknownBenchmark(_))));
    }
}
