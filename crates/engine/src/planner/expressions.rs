//! The expressions of a plan's nodes, for rules that rewrite them a node at a time.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::prelude::Expr;

/// The columns that the expressions of a node may read.
pub(super) fn readable(node: &LogicalPlan) -> Result<DFSchema> {
    match node {
        LogicalPlan::TableScan(scan) => {
            DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())
        }
        other => Ok(merge_schema(&other.inputs())),
    }
}

/// Rewrites the expressions of a node, inner ones before outer ones. Columns that they make keep their names.
pub(super) fn rewritten(
    node: LogicalPlan,
    mut rewrite: impl FnMut(Expr) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&node);
    node.map_expressions(|expr| {
        let name = names.save(&expr);
        Ok(expr.transform_up(&mut rewrite)?.update_data(|expr| name.restore(expr)))
    })
}
