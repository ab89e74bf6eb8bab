//! Statistics of a Parquet file that do not bound a column's values: those of floats, and of
//! timestamps in another unit.
//!
//! Statistics of floats do not tell whether the column has NaN, or the sign of a zero. Writers omit
//! NaN from the minimum and the maximum. They write -0.0 for a minimum that is either zero, as the
//! format requires. In Onehop NaN is greater than all numbers, so the maximum of a column may be
//! NaN whatever its statistics say:
//! 1. Statistics of a table answer aggregates and order files. A maximum is therefore unknown, and
//!    so is a minimum that is zero or NaN.
//! 2. A scan skips row groups and pages if a condition holds for no value between minimum and
//!    maximum. It takes the condition as true for all rows if it holds for all such values. The
//!    result of the condition for NaN decides which of the two remains. `x < 5` is false for NaN,
//!    so it may only skip. `x > 5` is true for NaN, so it may only be taken as true. If the result
//!    is unknown, neither remains. If another condition on the column is false for NaN, a condition
//!    that is true for NaN may skip as well: a range works from both sides. [`Undecided`] stands
//!    for a result that must stay open. It is the same condition for every row.
//!
//! Statistics of timestamps in another unit than the table's do not bound values either. DataFusion
//! (55.2.0) truncates the literal of a condition to the file's unit, so that `t < '00:00:00.0005'`
//! would skip the milliseconds that begin there.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, Statistics};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{
    BinaryExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, Literal, NotExpr,
};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};
use datafusion::scalar::ScalarValue;

/// Removes the statistics of a file that bound nothing: see 1. `units` are the columns for which
/// files have other units.
pub(super) fn known(mut statistics: Statistics, schema: &Schema, units: &[usize]) -> Statistics {
    for (at, (column, field)) in statistics.column_statistics.iter_mut().zip(schema.fields()).enumerate() {
        if units.contains(&at) {
            (column.min_value, column.max_value) = (Precision::Absent, Precision::Absent);
        }
        if !is_float(field.data_type()) {
            continue;
        }
        column.max_value = Precision::Absent;
        let is_exact = |value: &ScalarValue| as_float(value).is_some_and(|value| value != 0.0 && !value.is_nan());
        if !column.min_value.get_value().is_some_and(is_exact) {
            column.min_value = Precision::Absent;
        }
    }
    statistics
}

/// Rewrites conditions for a scan without a change of their result for any row: see 2.
pub(super) fn conditions(
    filters: &[Arc<dyn PhysicalExpr>],
    schema: &Schema,
    units: &[usize],
) -> Vec<Arc<dyn PhysicalExpr>> {
    let judged = |part: &Arc<dyn PhysicalExpr>| {
        let is_unsure = |column: &Column| may_be_nan(column, schema) || units.contains(&column.index());
        let columns: HashSet<Column> = collect_columns(part).into_iter().filter(is_unsure).collect();
        let at_nan = only(&columns).and_then(|column| at_nan(part, column));
        (!columns.is_empty()).then_some((columns, at_nan))
    };
    let mut never_nan = HashSet::new();
    for part in filters.iter().flat_map(split_conjunction) {
        if let Some((columns, Some(false))) = judged(part) {
            never_nan.extend(columns);
        }
    }
    let rewritten = |part: &Arc<dyn PhysicalExpr>| -> Arc<dyn PhysicalExpr> {
        let part = Arc::clone(part);
        let Some((columns, at_nan)) = judged(&part) else { return part };
        let column = only(&columns);
        let shown = match (at_nan, column) {
            (Some(true), _) if columns.is_subset(&never_nan) => return part,
            (Some(holds), Some(column)) => format!("{column} is {}NaN", if holds { "" } else { "not " }),
            _ => part.to_string(),
        };
        let undecided = Arc::new(Undecided { condition: Arc::clone(&part), shown });
        match at_nan {
            Some(false) => Arc::new(BinaryExpr::new(part, Operator::And, undecided)),
            Some(true) => Arc::new(BinaryExpr::new(part, Operator::Or, undecided)),
            None => undecided,
        }
    };
    filters.iter().map(|filter| conjunction(split_conjunction(filter).into_iter().map(rewritten))).collect()
}

/// Returns whether a column has floats, or may contain some.
fn may_be_nan(column: &Column, schema: &Schema) -> bool {
    match schema.fields().get(column.index()) {
        Some(field) if field.name() == column.name() => is_float(field.data_type()) || field.data_type().is_nested(),
        _ => true,
    }
}

fn is_float(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => values.is_floating(),
        other => other.is_floating(),
    }
}

fn only(columns: &HashSet<Column>) -> Option<&Column> {
    let mut all = columns.iter();
    all.next().filter(|_| all.next().is_none())
}

fn as_float(value: &ScalarValue) -> Option<f64> {
    match value {
        ScalarValue::Float16(Some(value)) => Some(value.to_f64()),
        ScalarValue::Float32(Some(value)) => Some((*value).into()),
        ScalarValue::Float64(Some(value)) => Some(*value),
        _ => None,
    }
}

/// Returns whether a condition holds if a column is NaN; `None` if that is unknown, or depends on
/// something else.
fn at_nan(expr: &Arc<dyn PhysicalExpr>, column: &Column) -> Option<bool> {
    if let Some(not) = expr.downcast_ref::<NotExpr>() {
        return at_nan(not.arg(), column).map(|holds| !holds);
    }
    if let Some(test) = expr.downcast_ref::<IsNullExpr>() {
        return is_of(test.arg(), column).then_some(false);
    }
    if let Some(test) = expr.downcast_ref::<IsNotNullExpr>() {
        return is_of(test.arg(), column).then_some(true);
    }
    if let Some(list) = expr.downcast_ref::<InListExpr>() {
        let are_numbers = list.list().iter().all(|value| literal(value).is_some_and(|value| !value.is_nan()));
        return (is_of(list.expr(), column) && are_numbers).then_some(list.negated());
    }
    let binary = expr.downcast_ref::<BinaryExpr>()?;
    let (left, op, right) = (binary.left(), *binary.op(), binary.right());
    match op {
        Operator::And => return Some(at_nan(left, column)? && at_nan(right, column)?),
        Operator::Or => return Some(at_nan(left, column)? || at_nan(right, column)?),
        _ => {}
    }
    let (op, number) = match (literal(left), literal(right)) {
        (None, Some(number)) if is_of(left, column) => (op, number),
        (Some(number), None) if is_of(right, column) => (op.swap()?, number),
        _ => return None,
    };
    // NaN is greater than all numbers, and equals itself.
    match op {
        Operator::Lt => Some(false),
        Operator::LtEq | Operator::Eq => Some(number.is_nan()),
        Operator::Gt | Operator::NotEq => Some(!number.is_nan()),
        Operator::GtEq => Some(true),
        _ => None,
    }
}

/// Returns whether an expression is the column, or its value in another float type.
fn is_of(expr: &Arc<dyn PhysicalExpr>, column: &Column) -> bool {
    match expr.downcast_ref::<CastExpr>() {
        Some(cast) => cast.cast_type().is_floating() && is_of(cast.expr(), column),
        None => expr.downcast_ref::<Column>() == Some(column),
    }
}

fn literal(expr: &Arc<dyn PhysicalExpr>) -> Option<f64> {
    as_float(expr.downcast_ref::<Literal>()?.value())
}

/// A condition that statistics never decide. It is evaluated on the rows.
#[derive(Debug)]
struct Undecided {
    condition: Arc<dyn PhysicalExpr>,
    /// The description of the condition's purpose.
    shown: String,
}

// Written by hand: a derived comparison would move the condition.
impl PartialEq for Undecided {
    fn eq(&self, other: &Self) -> bool {
        self.condition.eq(&other.condition)
    }
}

impl Eq for Undecided {}

impl Hash for Undecided {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.condition.hash(state);
    }
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl PhysicalExpr for Undecided {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.condition.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.condition.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.condition.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.condition]
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(match children.pop() {
            Some(condition) => Arc::new(Self { condition, shown: self.shown.clone() }),
            None => self,
        })
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.condition.fmt_sql(f)
    }
}
