//! A table of an attached database, as a table provider.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Result as DataFusionResult, Statistics};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use onehop_postgres::{Pages, Selection, Table, View};

use super::exec::AttachedExec;
use super::filters;
use crate::Error;

/// The number of pages of a part: 16 MiB with PostgreSQL's usual page size.
const PART_PAGES: u64 = 2048;

/// A table in the view of a statement.
#[derive(Debug)]
pub(super) struct AttachedTable {
    view: Arc<View>,
    table: Arc<Table>,
}

impl AttachedTable {
    pub fn new(view: Arc<View>, table: Table) -> Self {
        Self { view, table: Arc::new(table) }
    }
}

#[async_trait]
impl TableProvider for AttachedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.table.arrow_schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        let kind = |filter: &&Expr| match filters::sql(filter, &self.table) {
            Some(_) => TableProviderFilterPushDown::Inexact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(kind).collect())
    }

    fn statistics(&self) -> Option<Statistics> {
        let rows = usize::try_from(self.table.rows?).ok()?;
        Some(Statistics { num_rows: Precision::Inexact(rows), ..Statistics::new_unknown(self.table.arrow_schema()) })
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let columns = projection.cloned().unwrap_or_else(|| (0..self.table.columns.len()).collect());
        // Unsupported columns fail before execution.
        columns.iter().try_for_each(|column| self.table.sql_of(*column).map(drop)).map_err(Error::from)?;
        let conditions: Vec<String> = filters.iter().filter_map(|filter| filters::sql(filter, &self.table)).collect();
        let condition = (!conditions.is_empty()).then(|| conditions.join(" AND "));
        let limit = limit.and_then(|limit| u64::try_from(limit).ok());
        let parts = Pages::of(&self.table, self.view.version(), PART_PAGES);
        let partitions = match limit {
            // One connection returns these rows before several would be established.
            Some(_) => 1,
            None => parts.len().min(state.config().target_partitions()).max(1),
        };
        let selection = Selection { columns, condition, limit };
        Ok(Arc::new(AttachedExec::new(&self.view, &self.table, selection, parts, partitions)))
    }
}
