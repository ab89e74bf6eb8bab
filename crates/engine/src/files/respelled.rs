//! Parquet files that spell the names of columns differently from the table: `{Id}` beside `{id}`.
//!
//! DataFusion (55.2.0) finds the columns of a Parquet file by exact names. It treats a missing
//! column as NULL, also in statistics: `id = 2` would skip a file that has the column as `Id`. Here
//! its expressions and statistics use the table's names, and are translated to the file's names.

use std::sync::Arc;

use arrow::datatypes::{Fields, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapter, PhysicalExprAdapterFactory,
};

use super::{Format, agree};

/// The spelling of a table's column names in its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// The spelling of the table.
    Same,
    /// Another case.
    Own,
}

/// Returns a table's columns under the names of a file.
pub(super) fn in_file(table: &Schema, file: &Schema) -> SchemaRef {
    let (names, own) = (agree::names_of(table), agree::names_of(file));
    let places = agree::places(&names, &own, Format::Parquet);
    let fields = table.fields().iter().zip(places).map(|(field, place)| match place.and_then(|place| own.get(place)) {
        Some(name) => Arc::new(field.as_ref().clone().with_name(*name)),
        None => Arc::clone(field),
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Fields>(), table.metadata().clone()))
}

/// Returns a file's columns under the table's names.
fn in_table(file: &Schema, table: &Schema) -> SchemaRef {
    let (names, own) = (agree::names_of(table), agree::names_of(file));
    let mut fields = file.fields().to_vec();
    for (name, place) in names.iter().zip(agree::places(&names, &own, Format::Parquet)) {
        if let Some(field) = place.and_then(|place| fields.get_mut(place)) {
            *field = Arc::new(field.as_ref().clone().with_name(*name));
        }
    }
    Arc::new(Schema::new_with_metadata(fields, file.metadata().clone()))
}

/// Finds the columns of a file as [`agree::places`] does.
#[derive(Debug)]
pub(super) struct Respelling;

impl PhysicalExprAdapterFactory for Respelling {
    fn create(&self, logical: SchemaRef, physical: SchemaRef) -> Result<Arc<dyn PhysicalExprAdapter>> {
        let inner = DefaultPhysicalExprAdapterFactory.create(Arc::clone(&logical), in_table(&physical, &logical))?;
        Ok(Arc::new(Adapter { inner, physical }))
    }
}

#[derive(Debug)]
struct Adapter {
    inner: Arc<dyn PhysicalExprAdapter>,
    physical: SchemaRef,
}

impl PhysicalExprAdapter for Adapter {
    fn rewrite(&self, expr: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let own_name = |expr: Arc<dyn PhysicalExpr>| {
            let Some(column) = expr.downcast_ref::<Column>() else { return Ok(Transformed::no(expr)) };
            match self.physical.fields().get(column.index()) {
                Some(field) if field.name() != column.name() => {
                    Ok(Transformed::yes(Arc::new(Column::new(field.name(), column.index())) as Arc<dyn PhysicalExpr>))
                }
                _ => Ok(Transformed::no(expr)),
            }
        };
        self.inner.rewrite(expr)?.transform(own_name).data()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::datatypes::{DataType, Field};
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{BinaryExpr, col};

    use super::*;

    fn schema(columns: &[(&str, DataType)]) -> SchemaRef {
        let fields = columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true));
        Arc::new(Schema::new(fields.collect::<Fields>()))
    }

    #[test]
    fn expressions_reach_a_file_under_its_own_names() {
        let table = schema(&[("Id", DataType::Int64), ("x", DataType::Int64), ("ID", DataType::Int64)]);
        let file = schema(&[("X", DataType::Int64), ("id", DataType::Int64)]);
        assert_eq!(agree::names_of(&in_file(&table, &file)), ["id", "X", "ID"]);
        assert_eq!(agree::names_of(&in_table(&file, &table)), ["x", "Id"]);
        let sum = BinaryExpr::new(col("Id", &table).unwrap(), Operator::Plus, col("x", &table).unwrap());
        let adapter = Respelling.create(Arc::clone(&table), file).unwrap();
        assert_eq!(adapter.rewrite(Arc::new(sum)).unwrap().to_string(), "id@1 + X@0");
        let missing = adapter.rewrite(col("ID", &table).unwrap()).unwrap();
        assert!(missing.downcast_ref::<Column>().is_none(), "{missing}");
    }
}
