//! The Star Schema Benchmark's five tables (O'Neil, O'Neil, Chen: "Star Schema Benchmark", revision
//! 3, 2009), in the value formats of its reference generator, ssb-dbgen.
//!
//! Row `r` of a table (for lineorder: order `r` with its lines) draws all its fields in a fixed
//! order. Its random stream depends on the table and on `r` alone (`random.rs`). The rows are
//! therefore independent of the chunks, the threads and the batch size. The columns of a row are
//! independent of each other where the specification requires it.
//!
//! | table     | rows at scale factor SF                          |
//! |-----------|--------------------------------------------------|
//! | customer  | 30,000 SF                                        |
//! | supplier  | 2,000 SF                                         |
//! | part      | 200,000 floor(1 + log2 SF); 200,000 SF below 1   |
//! | date      | 2,556: 1992-01-01 to 1998-12-30                  |
//! | lineorder | 1,500,000 SF orders of 1 to 7 lines              |
//!
//! The generator reproduces the peculiarities of the reference:
//! - Orders are dated up to 1998-08-02 (2,406 days, from TPC-H), so that a full year holds 365/2406
//!   = 15.2 % of the orders, not one seventh.
//! - Customers whose key is a multiple of 3 have no orders (from TPC-H).
//! - `date` equals ssb-dbgen's output row for row (see `date.rs`); the others agree with it in
//!   format and distribution, but not in their random values.

mod customer;
mod date;
mod lineorder;
mod part;
mod supplier;
mod values;

#[cfg(test)]
mod tests;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use std::ops::Range;
use std::sync::Arc;

use super::{BATCH_ROWS_MAX, Batches, CHUNK_ROWS, Cuts, Generator, Result, TableInfo, checked_scale, unknown_table};

const SCALE_MIN: f64 = 0.001;
/// Customer keys are INTEGER: 30,000 x 50,000 still fits.
const SCALE_MAX: f64 = 50_000.0;

/// The mean number of lines of an order: 1 to 7, all equally likely.
const LINES_PER_ORDER: u64 = 4;

const TABLES: [Table; 5] = [Table::Customer, Table::Supplier, Table::Part, Table::Date, Table::Lineorder];

/// The generator of the Star Schema Benchmark at one scale.
#[derive(Clone, Debug)]
pub struct Ssb {
    sizes: Sizes,
    chunk_rows: u64,
}

/// The rows per table at one scale.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    customers: u64,
    suppliers: u64,
    parts: u64,
    orders: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Customer,
    Supplier,
    Part,
    Date,
    Lineorder,
}

impl Ssb {
    /// Creates the generator at a scale factor from 0.001 to 50,000.
    pub fn new(scale: f64) -> Result<Self> {
        let scale = checked_scale(scale, SCALE_MIN, SCALE_MAX)?;
        Ok(Self { sizes: Sizes::at(scale), chunk_rows: CHUNK_ROWS })
    }

    /// Returns a generator of the same rows in chunks of about `rows` rows (at least 1).
    pub fn with_chunk_rows(self, rows: u64) -> Self {
        Self { chunk_rows: rows.max(1), ..self }
    }

    fn find(&self, table: &str) -> Result<Table> {
        let names = TABLES.iter().map(|table| table.name());
        TABLES.into_iter().find(|known| known.name() == table).ok_or_else(|| unknown_table(table, names))
    }

    fn cuts(&self, table: Table) -> Cuts {
        let per_chunk = match table {
            Table::Lineorder => (self.chunk_rows / LINES_PER_ORDER).max(1),
            _ => self.chunk_rows,
        };
        Cuts { units: self.sizes.units(table), per_chunk }
    }
}

impl Generator for Ssb {
    fn tables(&self) -> Vec<TableInfo> {
        TABLES.iter().map(|&table| TableInfo::new(table.name(), table.schema(), self.sizes.rows(table))).collect()
    }

    fn chunks(&self, table: &str) -> Result<usize> {
        Ok(self.cuts(self.find(table)?).count())
    }

    fn chunk(&self, table: &str, chunk: usize) -> Result<Batches> {
        let found = self.find(table)?;
        let rows = self.cuts(found).range(table, chunk)?;
        Ok(match found {
            Table::Customer => by_row(rows, customer::batch),
            Table::Supplier => by_row(rows, supplier::batch),
            Table::Part => by_row(rows, part::batch),
            Table::Date => by_row(rows, date::batch),
            Table::Lineorder => Box::new(lineorder::Lines::new(self.sizes, rows)),
        })
    }
}

impl Sizes {
    fn at(scale: f64) -> Self {
        let scaled = |base: f64| ((base * scale).round() as u64).max(1);
        let parts = if scale < 1.0 { scaled(200_000.0) } else { 200_000 * (1.0 + scale.log2()).floor() as u64 };
        Self { customers: scaled(30_000.0), suppliers: scaled(2_000.0), parts, orders: scaled(1_500_000.0) }
    }

    /// Returns the number of units a table is split into: its rows, or for lineorder its orders.
    fn units(self, table: Table) -> u64 {
        match table {
            Table::Customer => self.customers,
            Table::Supplier => self.suppliers,
            Table::Part => self.parts,
            Table::Date => date::ROWS,
            Table::Lineorder => self.orders,
        }
    }

    fn rows(self, table: Table) -> u64 {
        match table {
            Table::Lineorder => self.orders * LINES_PER_ORDER,
            _ => self.units(table),
        }
    }
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Self::Customer => "customer",
            Self::Supplier => "supplier",
            Self::Part => "part",
            Self::Date => "date",
            Self::Lineorder => "lineorder",
        }
    }

    fn schema(self) -> SchemaRef {
        Arc::clone(match self {
            Self::Customer => &customer::SCHEMA,
            Self::Supplier => &supplier::SCHEMA,
            Self::Part => &part::SCHEMA,
            Self::Date => &date::SCHEMA,
            Self::Lineorder => &lineorder::SCHEMA,
        })
    }
}

/// Returns the batches of a table whose rows are generated from their numbers.
fn by_row(rows: Range<u64>, batch: fn(Range<u64>) -> Result<RecordBatch>) -> Batches {
    let starts = rows.clone().step_by(BATCH_ROWS_MAX);
    Box::new(starts.map(move |start| batch(start..(start + BATCH_ROWS_MAX as u64).min(rows.end))))
}

/// Returns a schema of non-null columns.
fn schema<const N: usize>(columns: [(&str, DataType); N]) -> SchemaRef {
    let fields: Vec<_> = columns.into_iter().map(|(name, data_type)| Field::new(name, data_type, false)).collect();
    Arc::new(Schema::new(fields))
}
