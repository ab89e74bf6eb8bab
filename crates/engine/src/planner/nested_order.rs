//! Within lists and structs, NULL is greater than all values, as in PostgreSQL and DuckDB: `[1,
//! NULL] > [1, 2]`.
//!
//! Arrow compares NULL as the least value, or as ORDER BY places its NULLs. Parts of DataFusion do
//! not compare nested values at all. So for nested values:
//!
//! - operators, BETWEEN, `greatest()` and `least()` become functions that compare in this order;
//! - `min()` and `max()` keep their best value in this order;
//! - the keys of ORDER BY become bytes in this order.
//!
//! Functions that return one of several values treat [equal values](super::equal_values) as equal,
//! and return the value unchanged. So this module also handles intervals for them.
//!
//! A NULL in place of a list still compares as NULL. Seen in 55.2.0; see
//! docs/internals/upstream.md.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryArray, BooleanArray, make_comparator};
use arrow::compute::SortOptions;
use arrow::compute::kernels::zip::zip;
use arrow::datatypes::{DataType, IntervalUnit};
use arrow::row::{RowConverter, SortField};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::{Between, Sort as SortKey};
use datafusion::logical_expr::{
    Accumulator, BinaryExpr, ColumnarValue, Distinct, LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::equal_values::as_one;
use super::expressions;

const ORDER: SortOptions = SortOptions { descending: false, nulls_first: false };

/// Runs after types are settled.
#[derive(Debug)]
pub(super) struct NestedOrder;

impl AnalyzerRule for NestedOrder {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = expressions::rewritten_if_any(plan, orders, |expr, schema| Ok(rewrite(expr, schema)))?;
        let sorted = rewritten.transform_up_with_subqueries(|mut node| {
            let has_changed = match &mut node {
                LogicalPlan::Sort(sort) => in_order(keys_of(&mut sort.expr), sort.input.schema()),
                LogicalPlan::Distinct(Distinct::On(rows)) => {
                    let keys = rows.sort_expr.iter_mut().flat_map(|keys| keys_of(keys));
                    in_order(keys.chain(&mut rows.on_expr), rows.input.schema())
                }
                _ => false,
            };
            Ok(if has_changed { Transformed::yes(node) } else { Transformed::no(node) })
        });
        Ok(sorted?.data)
    }

    fn name(&self) -> &str {
        "nested_order"
    }
}

fn orders(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => holds(*op, Ordering::Less).is_some(),
        Expr::Between(_) => true,
        Expr::ScalarFunction(call) => better_of(call.name()).is_some(),
        Expr::WindowFunction(call) => !call.params.order_by.is_empty(),
        Expr::AggregateFunction(call) => !call.params.order_by.is_empty(),
        _ => false,
    }
}

/// Returns the result of an operator for two values in the given order. Returns `None` if it is not
/// an order comparison.
fn holds(op: Operator, order: Ordering) -> Option<bool> {
    match op {
        Operator::Lt => Some(order.is_lt()),
        Operator::LtEq => Some(order.is_le()),
        Operator::Gt => Some(order.is_gt()),
        Operator::GtEq => Some(order.is_ge()),
        _ => None,
    }
}

/// Returns the order in which the value that a function keeps stands to the others.
fn better_of(function: &str) -> Option<Ordering> {
    match function {
        GREATEST => Some(Ordering::Greater),
        LEAST => Some(Ordering::Less),
        _ => None,
    }
}

/// Returns whether values of a type contain others. Maps have no order.
fn is_nested(data_type: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, List, Struct};
    matches!(data_type, List(_) | LargeList(_) | FixedSizeList(..) | Struct(_))
}

/// Returns whether functions that return one of several values of a type compare them here.
pub(super) fn is_compared_here(data_type: &DataType) -> bool {
    is_nested(data_type) || matches!(data_type, DataType::Interval(IntervalUnit::MonthDayNano))
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let is = |expr: &Expr, of: fn(&DataType) -> bool| of(&expressions::type_of(expr, schema));
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if holds(op, Ordering::Less).is_some() && is(&left, is_nested) =>
        {
            Transformed::yes(compared(*left, op, *right))
        }
        Expr::Between(Between { expr, negated, low, high }) if is(&expr, is_nested) => {
            let low = compared(expr.as_ref().clone(), Operator::GtEq, *low);
            let is_between = low.and(compared(*expr, Operator::LtEq, *high));
            Transformed::yes(if negated { !is_between } else { is_between })
        }
        Expr::ScalarFunction(call) => {
            let is_here = call.args.iter().any(|arg| is(arg, is_compared_here));
            match better_of(call.name()).filter(|_| is_here) {
                Some(better) => {
                    let signature = Signature::variadic_any(Volatility::Immutable);
                    Transformed::yes(ScalarUDF::from(Best { better, signature }).call(call.args))
                }
                None => Transformed::no(Expr::ScalarFunction(call)),
            }
        }
        Expr::WindowFunction(mut call) => match in_order(keys_of(&mut call.params.order_by), schema) {
            true => Transformed::yes(Expr::WindowFunction(call)),
            false => Transformed::no(Expr::WindowFunction(call)),
        },
        // Keys beside DISTINCT are arguments as well.
        Expr::AggregateFunction(mut call) if !call.params.distinct => {
            match in_order(keys_of(&mut call.params.order_by), schema) {
                true => Transformed::yes(Expr::AggregateFunction(call)),
                false => Transformed::no(Expr::AggregateFunction(call)),
            }
        }
        other => Transformed::no(other),
    }
}

fn compared(left: Expr, op: Operator, right: Expr) -> Expr {
    let signature = Signature::any(2, Volatility::Immutable);
    ScalarUDF::from(Compare { op, signature }).call(vec![left, right])
}

fn keys_of(keys: &mut [SortKey]) -> impl Iterator<Item = &mut Expr> {
    keys.iter_mut().map(|key| &mut key.expr)
}

/// Replaces keys of nested values by bytes in their order. Returns whether there are any.
fn in_order<'e>(keys: impl Iterator<Item = &'e mut Expr>, schema: &DFSchema) -> bool {
    let mut has_changed = false;
    for key in keys {
        let data_type = expressions::type_of(key, schema);
        if is_nested(&data_type) && RowConverter::supports_fields(&[key_field(data_type)]) {
            let signature = Signature::any(1, Volatility::Immutable);
            *key = ScalarUDF::from(OrderKey { signature }).call(vec![std::mem::take(key)]);
            has_changed = true;
        }
    }
    has_changed
}

fn key_field(data_type: DataType) -> SortField {
    SortField::new_with_options(data_type, ORDER)
}

/// Bytes in the order of nested values, in Arrow's row format. NULL stays NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OrderKey {
    signature: Signature,
}

impl ScalarUDFImpl for OrderKey {
    fn name(&self) -> &str {
        "order_key"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Binary)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, |values| {
            let values = as_one(values)?;
            let converter = RowConverter::new(vec![key_field(values.data_type().clone())])?;
            let rows = converter.convert_columns(std::slice::from_ref(&values))?;
            let keys = (0..values.len()).map(|row| values.is_valid(row).then(|| rows.row(row).data().to_vec()));
            Ok(Arc::new(BinaryArray::from_iter(keys)))
        })
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
        let arrays = ColumnarValue::values_to_arrays(&call.args)?;
        let [left, right] = arrays.as_slice() else { return internal_err!("{} of two arguments", self.name()) };
        let compare = make_comparator(left, right, ORDER)?;
        let of_row = |row: usize| match left.is_valid(row) && right.is_valid(row) {
            true => holds(self.op, compare(row, row)),
            false => None,
        };
        let results: BooleanArray = (0..left.len()).map(of_row).collect();
        of_arguments(&call.args, Arc::new(results))
    }
}

/// Returns a function's result: a scalar if its arguments are scalars.
fn of_arguments(args: &[ColumnarValue], results: ArrayRef) -> Result<ColumnarValue> {
    Ok(match args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_))) {
        true => ColumnarValue::Scalar(ScalarValue::try_from_array(&results, 0)?),
        false => ColumnarValue::Array(results),
    })
}

const GREATEST: &str = "greatest";
const LEAST: &str = "least";

/// The least or the greatest of the arguments that are not NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Best {
    /// The order of a better value relative to another.
    better: Ordering,
    signature: Signature,
}

impl ScalarUDFImpl for Best {
    fn name(&self) -> &str {
        if self.better == Ordering::Greater { GREATEST } else { LEAST }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [first, ..] => Ok(first.clone()),
            [] => internal_err!("{} of nothing", self.name()),
        }
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&call.args)?;
        let mut arrays = arrays.into_iter();
        let Some(mut best) = arrays.next() else { return internal_err!("{} of nothing", self.name()) };
        for next in arrays {
            let compare = make_comparator(&as_one(&next)?, &as_one(&best)?, ORDER)?;
            let is_better = |row: usize| next.is_valid(row) && (best.is_null(row) || compare(row, row) == self.better);
            let is_better: BooleanArray = (0..next.len()).map(|row| Some(is_better(row))).collect();
            best = zip(&is_better, &next, &best)?;
        }
        of_arguments(&call.args, best)
    }
}

/// The least or the greatest of values that are compared here.
#[derive(Debug)]
pub(super) struct Extreme {
    /// An array of the best value so far, or of NULL.
    best: ArrayRef,
    /// The order of a better value relative to it.
    better: Ordering,
}

impl Extreme {
    /// Creates an accumulator without a value.
    pub fn new(data_type: &DataType, better: Ordering) -> Self {
        Self { best: arrow::array::new_null_array(data_type, 1), better }
    }
}

impl Accumulator for Extreme {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return Ok(()) };
        let compared = as_one(values)?;
        let compare = make_comparator(&compared, &compared, ORDER)?;
        let rows = (0..values.len()).filter(|row| values.is_valid(*row));
        let Some(row) = rows.reduce(|best, row| if compare(row, best) == self.better { row } else { best }) else {
            return Ok(());
        };
        let found = values.slice(row, 1);
        if self.best.is_null(0) || order(&found, &self.best)? == self.better {
            self.best = apart(&found)?;
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

/// Returns the order of the first values of two arrays.
fn order(one: &ArrayRef, other: &ArrayRef) -> Result<Ordering> {
    Ok(make_comparator(&as_one(one)?, &as_one(other)?, ORDER)?(0, 0))
}

/// Copies a value out of its batch, so that it does not keep the batch in memory.
fn apart(value: &ArrayRef) -> Result<ArrayRef> {
    ScalarValue::try_from_array(value, 0)?.compacted().to_array()
}

/// The least or the greatest value of a sliding frame.
///
/// Each value in the queue is better than all that entered the frame after it and are still in it.
/// The first one is the best of the frame.
#[derive(Debug)]
pub(super) struct SlidingExtreme {
    none: ScalarValue,
    better: Ordering,
    /// Values with the numbers of their rows.
    queue: VecDeque<(usize, ArrayRef)>,
    /// The number of rows that entered the frame. `left` counts the rows that left it.
    entered: usize,
    left: usize,
}

impl SlidingExtreme {
    /// Creates the accumulator of an empty frame.
    ///
    /// # Errors
    /// Fails if the type has no NULL.
    pub fn new(data_type: &DataType, better: Ordering) -> Result<Self> {
        let none = ScalarValue::try_from(data_type)?;
        Ok(Self { none, better, queue: VecDeque::new(), entered: 0, left: 0 })
    }
}

impl Accumulator for SlidingExtreme {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return Ok(()) };
        for row in 0..values.len() {
            if values.is_valid(row) {
                let value = apart(&values.slice(row, 1))?;
                while let Some((_, last)) = self.queue.back()
                    && order(last, &value)? != self.better
                {
                    self.queue.pop_back();
                }
                self.queue.push_back((self.entered, value));
            }
            self.entered += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.left += values.first().map_or(0, |values| values.len());
        while self.queue.front().is_some_and(|(row, _)| *row < self.left) {
            self.queue.pop_front();
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame's values are not merged")
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        match self.queue.front() {
            Some((_, best)) => ScalarValue::try_from_array(best, 0),
            None => Ok(self.none.clone()),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.queue.iter().map(|(_, value)| value.get_array_memory_size()).sum::<usize>()
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
            ("{'a': NULL} > {'a': 1}", "true"),
            ("{'a': 1, 'b': NULL} < {'a': 2, 'b': 1}", "true"),
            ("[1, NULL] BETWEEN [1, 1] AND [2, NULL]", "true"),
            ("[1, NULL] NOT BETWEEN [1, 1] AND [1, 2]", "true"),
            ("greatest([1, NULL], [1, 2], NULL)", "[1, NULL]"),
            ("least([1, NULL], NULL, [1, 2])", "[1, 2]"),
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
