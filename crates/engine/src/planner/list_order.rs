//! Within lists, NULL is greater than all values, as in PostgreSQL and DuckDB: `[1, NULL] > [1, 2]`.
//!
//! Arrow compares it as the least. Operators on lists become functions that compare otherwise, and `min()` and `max()` of
//! lists keep their best by that order. A NULL in place of a list is compared with nothing, as ever. Seen in 55.2.0; see
//! docs/internals/upstream.md.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, make_comparator};
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{
    Accumulator, BinaryExpr, ColumnarValue, LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;

const ORDER: SortOptions = SortOptions { descending: false, nulls_first: false };

/// After types are settled.
#[derive(Debug)]
pub(super) struct ListOrder;

impl AnalyzerRule for ListOrder {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        expressions::rewritten_if_any(plan, orders, |expr, schema| Ok(rewrite(expr, schema)))
    }

    fn name(&self) -> &str {
        "list_order"
    }
}

fn orders(expr: &Expr) -> bool {
    matches!(expr, Expr::BinaryExpr(BinaryExpr { op, .. }) if holds(*op, Ordering::Less).is_some())
}

/// Whether an operator holds for values of an order, if it is about that.
fn holds(op: Operator, order: Ordering) -> Option<bool> {
    match op {
        Operator::Lt => Some(order.is_lt()),
        Operator::LtEq => Some(order.is_le()),
        Operator::Gt => Some(order.is_gt()),
        Operator::GtEq => Some(order.is_ge()),
        _ => None,
    }
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let of_lists = |expr: &Expr| matches!(expressions::type_of(expr, schema), DataType::List(_));
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if holds(op, Ordering::Less).is_some() && of_lists(&left) => {
            let signature = Signature::any(2, Volatility::Immutable);
            Transformed::yes(ScalarUDF::from(Compare { op, signature }).call(vec![*left, *right]))
        }
        other => Transformed::no(other),
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Compare {
    op: Operator,
    signature: Signature,
}

impl ScalarUDFImpl for Compare {
    fn name(&self) -> &str {
        match self.op {
            Operator::Lt => "is_less",
            Operator::LtEq => "is_less_or_equal",
            Operator::Gt => "is_greater",
            _ => "is_greater_or_equal",
        }
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let args: Vec<String> = args.iter().map(|arg| arg.schema_name().to_string()).collect();
        Ok(args.join(&format!(" {} ", self.op)))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_scalar = call.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(&call.args)?;
        let [left, right] = arrays.as_slice() else { return internal_err!("{} of two arguments", self.name()) };
        let compare = make_comparator(left, right, ORDER)?;
        let of_row = |row: usize| match left.is_valid(row) && right.is_valid(row) {
            true => holds(self.op, compare(row, row)),
            false => None,
        };
        let results: BooleanArray = (0..left.len()).map(of_row).collect();
        let results: ArrayRef = Arc::new(results);
        Ok(match is_scalar {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&results, 0)?),
            false => ColumnarValue::Array(results),
        })
    }
}

/// The least or the greatest of lists.
#[derive(Debug)]
pub(super) struct ListExtreme {
    /// An array of the best list so far, or of NULL.
    best: ArrayRef,
    /// How a better one compares with it.
    better: Ordering,
}

impl ListExtreme {
    pub fn new(data_type: &DataType, better: Ordering) -> Self {
        Self { best: arrow::array::new_null_array(data_type, 1), better }
    }
}

impl Accumulator for ListExtreme {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return Ok(()) };
        let compare = make_comparator(values, values, ORDER)?;
        let rows = (0..values.len()).filter(|row| values.is_valid(*row));
        let Some(row) = rows.reduce(|best, row| if compare(row, best) == self.better { row } else { best }) else {
            return Ok(());
        };
        let found = values.slice(row, 1);
        if self.best.is_null(0) || make_comparator(&found, &self.best, ORDER)?(0, 0) == self.better {
            // Apart from the batch, which it would keep.
            self.best = ScalarValue::try_from_array(&found, 0)?.compacted().to_array()?;
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        ScalarValue::try_from_array(&self.best, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.best.get_array_memory_size()
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn null_is_greater_than_all_values() {
        for (expression, expected) in [
            ("[1, NULL] > [1, 2]", "true"),
            ("[1, 2] < [1, NULL]", "true"),
            ("[1, NULL] >= [1, NULL]", "true"),
            ("[1] < [1, NULL]", "true"),
            ("[2] > [1, NULL]", "true"),
            ("CAST(NULL AS INT[]) > [1]", "NULL"),
            ("['a', NULL] > ['a', 'z']", "true"),
        ] {
            assert_eq!(rows(&format!("SELECT {expression}")).await, [expected], "{expression}");
        }
        let table = "(VALUES (1, [1, NULL]), (1, [1, 2]), (2, [0]), (2, NULL), (3, NULL)) AS t(g, l)";
        assert_eq!(rows(&format!("SELECT max(l), min(l) FROM {table}")).await, ["[1, NULL] [0]"]);
        let groups = format!("SELECT g, max(l), min(l) FROM {table} GROUP BY g ORDER BY g");
        assert_eq!(rows(&groups).await, ["1 [1, NULL] [1, 2]", "2 [0] [0]", "3 NULL NULL"]);
        assert_eq!(rows(&format!("SELECT l > [1, 2] FROM {table} WHERE g = 1")).await, ["true", "false"]);
    }
}
