//! TPC-H's eight tables, from `tpchgen`, whose rows are those of the TPC's own dbgen.
//!
//! A chunk is one of `tpchgen`'s parts. It skips each column's random stream ahead to the part's
//! first row, so parts are independent, and together they are the table. lineitem is split by
//! orders, partsupp by parts.
//!
//! All text comes out of one pool of 300 MB, built (in about a second) when the first chunk is
//! requested and kept until the process ends.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

use super::{Batches, CHUNK_ROWS, Cuts, Error, Generator, Result, TableInfo, checked_scale, unknown_table};

const SCALE_MIN: f64 = 0.001;
const SCALE_MAX: f64 = 100_000.0;

/// Small enough that the rows that `tpchgen` creates before it turns them into columns stay in the
/// cache.
const BATCH_ROWS: usize = 8_192;

const TABLES: [Table; 8] = [
    Table::Region,
    Table::Nation,
    Table::Part,
    Table::Supplier,
    Table::Partsupp,
    Table::Customer,
    Table::Orders,
    Table::Lineitem,
];

/// The generator of TPC-H at one scale.
#[derive(Clone, Debug)]
pub struct Tpch {
    scale: f64,
    chunk_rows: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Region,
    Nation,
    Part,
    Supplier,
    Partsupp,
    Customer,
    Orders,
    Lineitem,
}

impl Tpch {
    /// Creates the generator at a scale factor from 0.001 to 100,000.
    pub fn new(scale: f64) -> Result<Self> {
        Ok(Self { scale: checked_scale(scale, SCALE_MIN, SCALE_MAX)?, chunk_rows: CHUNK_ROWS })
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
        let units = table.units(self.scale);
        // tpchgen numbers its parts in 31 bits.
        let per_chunk_min = units.div_ceil(i32::MAX as u64).max(1);
        Cuts { units, per_chunk: (self.chunk_rows / table.rows_per_unit()).max(per_chunk_min) }
    }
}

impl Generator for Tpch {
    fn tables(&self) -> Vec<TableInfo> {
        let info = |table: &Table| {
            let rows = table.units(self.scale) * table.rows_per_unit();
            TableInfo::new(table.name(), table.schema(), rows)
        };
        TABLES.iter().map(info).collect()
    }

    fn chunks(&self, table: &str) -> Result<usize> {
        Ok(self.cuts(self.find(table)?).count())
    }

    fn chunk(&self, table: &str, chunk: usize) -> Result<Batches> {
        let found = self.find(table)?;
        let cuts = self.cuts(found);
        cuts.range(table, chunk)?;
        Ok(found.part(self.scale, chunk as i32 + 1, cuts.count() as i32))
    }
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Self::Region => "region",
            Self::Nation => "nation",
            Self::Part => "part",
            Self::Supplier => "supplier",
            Self::Partsupp => "partsupp",
            Self::Customer => "customer",
            Self::Orders => "orders",
            Self::Lineitem => "lineitem",
        }
    }

    fn schema(self) -> SchemaRef {
        match self {
            Self::Region => RegionArrow::schema_ref(),
            Self::Nation => NationArrow::schema_ref(),
            Self::Part => PartArrow::schema_ref(),
            Self::Supplier => SupplierArrow::schema_ref(),
            Self::Partsupp => PartSuppArrow::schema_ref(),
            Self::Customer => CustomerArrow::schema_ref(),
            Self::Orders => OrderArrow::schema_ref(),
            Self::Lineitem => LineItemArrow::schema_ref(),
        }
    }

    /// Returns the number of units a table is split into: its rows, or for partsupp the parts and
    /// for lineitem the orders.
    fn units(self, scale: f64) -> u64 {
        let base = match self {
            Self::Region => return 5,
            Self::Nation => return 25,
            Self::Part | Self::Partsupp => 200_000.0,
            Self::Supplier => 10_000.0,
            Self::Customer => 150_000.0,
            Self::Orders | Self::Lineitem => 1_500_000.0,
        };
        // Rounded down, as in tpchgen.
        (base * scale) as u64
    }

    /// Returns the number of rows of a unit; for lineitem the expectation of 1 to 7.
    fn rows_per_unit(self) -> u64 {
        match self {
            Self::Partsupp | Self::Lineitem => 4,
            _ => 1,
        }
    }

    /// Returns part `part` of `parts`, counted from 1.
    fn part(self, scale: f64, part: i32, parts: i32) -> Batches {
        match self {
            Self::Region => batches(RegionArrow::new(RegionGenerator::new(scale, part, parts))),
            Self::Nation => batches(NationArrow::new(NationGenerator::new(scale, part, parts))),
            Self::Part => batches(PartArrow::new(PartGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
            Self::Supplier => {
                batches(SupplierArrow::new(SupplierGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
            }
            Self::Partsupp => {
                batches(PartSuppArrow::new(PartSuppGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
            }
            Self::Customer => {
                batches(CustomerArrow::new(CustomerGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
            }
            Self::Orders => {
                batches(OrderArrow::new(OrderGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
            }
            Self::Lineitem => {
                batches(LineItemArrow::new(LineItemGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
            }
        }
    }
}

fn batches(rows: impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send + 'static) -> Batches {
    Box::new(rows.map(|batch| batch.map_err(Error::from)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::compute::concat_batches;
    use arrow::datatypes::DataType;

    fn whole(generator: &Tpch, info: &TableInfo) -> Result<RecordBatch> {
        let mut batches = Vec::new();
        for chunk in 0..generator.chunks(info.name)? {
            for batch in generator.chunk(info.name, chunk)? {
                batches.push(batch?);
            }
        }
        Ok(concat_batches(&info.schema, &batches)?)
    }

    #[test]
    fn rows_do_not_depend_on_the_chunks() -> Result<()> {
        let generator = Tpch::new(0.01)?;
        let cut = generator.clone().with_chunk_rows(777);
        for info in generator.tables() {
            let (once, pieces) = (whole(&generator, &info)?, whole(&cut, &info)?);
            assert_eq!(generator.chunks(info.name)?, 1);
            assert_eq!(once, pieces, "{}", info.name);
            if info.name == "lineitem" {
                assert_eq!(once.num_rows(), 60_175, "dbgen's lineitem at scale factor 0.01");
            } else {
                assert_eq!(once.num_rows() as u64, info.rows_expected, "{}", info.name);
            }
        }
        Ok(())
    }

    #[test]
    fn schemas_are_complete_and_the_ddl_names_their_types() -> Result<()> {
        for info in Tpch::new(1.0)?.tables() {
            for field in info.schema.fields() {
                assert!(!field.is_nullable(), "{}", field.name());
                assert_ne!(field.data_type(), &DataType::Utf8, "{}", field.name());
            }
        }
        let region = Tpch::new(1.0)?.table("region")?.ddl;
        assert_eq!(
            region,
            "CREATE TABLE region (\n    r_regionkey BIGINT NOT NULL,\n    r_name VARCHAR NOT NULL,\n    \
             r_comment VARCHAR NOT NULL\n)"
        );
        let lineitem = Tpch::new(1.0)?.table("lineitem")?.ddl;
        assert!(lineitem.contains("l_discount DECIMAL(15,2) NOT NULL"), "{lineitem}");
        assert!(lineitem.contains("l_shipdate DATE NOT NULL"), "{lineitem}");
        Ok(())
    }
}
