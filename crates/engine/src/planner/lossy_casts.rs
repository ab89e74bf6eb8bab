//! Represents a lossy numeric cast as a function, so that the optimizer does not treat it as a
//! cast.
//!
//! DataFusion compares `CAST(d AS DECIMAL(8, 2)) = 1.24` as `d = 1.2400`, and `CAST(d AS INT) = 1`
//! as `d = 1.0000`. Neither finds 1.2399, and `TRY_CAST(x AS TINYINT) <> 5` holds for an x of 300.
//! DataFusion unwraps a cast if the literal beside it can be cast back ([#23095]). Casts that
//! preserve distinct values, of INTEGER to BIGINT or to a wider DECIMAL, stay casts. Seen in
//! 55.2.0.
//!
//! DataFusion also truncates the literal beside a cast TIMESTAMP(0), so that
//! `x = TIMESTAMP '2024-01-01 00:00:00.5'` holds for the whole second. This rule converts a literal
//! of whole seconds to the column's type. Beside any other literal, the column stays under its
//! cast, and the cast becomes a function.
//!
//! Arrow converts decimals to doubles with a division by a power of ten, which rounds up to three
//! times: `CAST(3.14159265358979323846 AS DOUBLE)` is 3.1415926535897936 ([#10508]). The function
//! returns the nearest double or REAL.
//!
//! [#10508]: https://github.com/apache/arrow-rs/issues/10508
//! [#23095]: https://github.com/apache/datafusion/issues/23095

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    DataType, Decimal128Type, Decimal256Type, Field, FieldRef, Float32Type, Float64Type, TimeUnit, i256,
};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    Between, BinaryExpr, Cast, ColumnarValue, ExprSchemable, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, TryCast, Volatility, binary_expr,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;
use onehop_pipeline::decimal::{to_double, to_real};

use super::expressions;
use super::floats_beside_decimals::COMPARISONS;
use crate::type_names::sql_name;

/// Runs after types are settled, and after all other rules that examine casts.
#[derive(Debug)]
pub(super) struct LossyCasts;

impl AnalyzerRule for LossyCasts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let may_lose = |expr: &Expr| {
            expressions::cast_to(expr).is_some_and(|to| is_number(item_of(to)) || matches!(to, DataType::Timestamp(..)))
        };
        expressions::rewritten_if_any(plan, may_lose, rewrite)
    }

    fn name(&self) -> &str {
        "lossy_casts"
    }
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if let Some(same) = in_units_of_column(&expr, schema)? {
        return Ok(Transformed::yes(same));
    }
    let (inner, to, misfit) = match &expr {
        Expr::Cast(Cast { expr: inner, field }) => (inner, field.data_type(), Misfit::Error),
        Expr::TryCast(TryCast { expr: inner, field }) => (inner, field.data_type(), Misfit::Null),
        _ => return Ok(Transformed::no(expr)),
    };
    let Ok(from) = inner.get_type(schema) else { return Ok(Transformed::no(expr)) };
    if !loses(&from, to) {
        return Ok(Transformed::no(expr));
    }
    if let Expr::Literal(value, _) = inner.as_ref() {
        // The optimizer folds all others as casts.
        return Ok(match item_of(to).is_floating() {
            true => {
                let value = cast_values(&value.to_array()?, to, misfit)?;
                Transformed::yes(Expr::Literal(ScalarValue::try_from_array(&value, 0)?, None))
            }
            false => Transformed::no(expr),
        });
    }
    Ok(Transformed::yes(call(inner.as_ref().clone(), to.clone(), misfit)))
}

/// Removes the cast to a finer unit from a timestamp in a comparison if the literals beside it are
/// whole in the coarser unit. The parts of the expression are rewritten already.
fn in_units_of_column(expr: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    let coarser = |value: &Expr| -> Option<(Expr, DataType)> {
        let (inner, to) = as_any_cast(value)?;
        let from = inner.get_type(schema).ok()?;
        let is_of_zone = |moment: &DataType| matches!(moment, DataType::Timestamp(_, Some(_)));
        let is_coarser = nanos_of(&from)? > nanos_of(to)? && is_of_zone(&from) == is_of_zone(to);
        is_coarser.then(|| (inner.clone(), from))
    };
    let whole = |literal: &Expr, to: &DataType| -> Option<Expr> {
        let Expr::Literal(value, metadata) = literal else { return None };
        let units = (nanos_of(to)? / nanos_of(&value.data_type())?).max(1);
        let is_whole = moment(value)?.is_none_or(|number| number % units == 0);
        is_whole.then(|| value.cast_to(to).ok().map(|value| Expr::Literal(value, metadata.clone()))).flatten()
    };
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if COMPARISONS.contains(op) => {
            let (left, right) = match (coarser(left), coarser(right)) {
                (Some((value, unit)), None) => (Some(value), whole(right, &unit)),
                (None, Some((value, unit))) => (whole(left, &unit), Some(value)),
                _ => (None, None),
            };
            left.zip(right).map(|(left, right)| binary_expr(left, *op, right))
        }
        Expr::Between(between) => coarser(&between.expr).and_then(|(value, unit)| {
            let (low, high) = (whole(&between.low, &unit)?, whole(&between.high, &unit)?);
            Some(Expr::Between(Between::new(Box::new(value), between.negated, Box::new(low), Box::new(high))))
        }),
        Expr::InList(list) => coarser(&list.expr).and_then(|(value, unit)| {
            let all = list.list.iter().map(|literal| whole(literal, &unit)).collect::<Option<Vec<_>>>()?;
            Some(value.in_list(all, list.negated))
        }),
        _ => None,
    })
}

/// Returns a timestamp's number of units. The inner `None` is NULL.
fn moment(value: &ScalarValue) -> Option<&Option<i64>> {
    match value {
        ScalarValue::TimestampSecond(number, _)
        | ScalarValue::TimestampMillisecond(number, _)
        | ScalarValue::TimestampMicrosecond(number, _)
        | ScalarValue::TimestampNanosecond(number, _) => Some(number),
        _ => None,
    }
}

/// Returns the nanoseconds of a timestamp's unit.
fn nanos_of(data_type: &DataType) -> Option<i64> {
    match data_type {
        DataType::Timestamp(TimeUnit::Second, _) => Some(1_000_000_000),
        DataType::Timestamp(TimeUnit::Millisecond, _) => Some(1_000_000),
        DataType::Timestamp(TimeUnit::Microsecond, _) => Some(1_000),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => Some(1),
        _ => None,
    }
}

/// Returns a cast as a function.
fn call(value: Expr, to: DataType, misfit: Misfit) -> Expr {
    let signature = Signature::any(1, Volatility::Immutable);
    ScalarUDF::from(LossyCast { to, misfit, signature }).call(vec![value])
}

/// Returns the value and type of a call that is such a function, if it fails for a value that does
/// not fit.
pub(crate) fn as_lossy_cast(call: &ScalarFunction) -> Option<(&Expr, &DataType)> {
    let cast: &LossyCast = call.func.inner().downcast_ref()?;
    match (cast.misfit, call.args.as_slice()) {
        (Misfit::Error, [value]) => Some((value, &cast.to)),
        _ => None,
    }
}

/// Returns the value and type of a cast or function that fails for a value that does not fit.
pub(crate) fn as_any_cast(expr: &Expr) -> Option<(&Expr, &DataType)> {
    match expr {
        Expr::Cast(Cast { expr, field }) => Some((expr, field.data_type())),
        Expr::ScalarFunction(call) => as_lossy_cast(call),
        _ => None,
    }
}

/// Returns the same cast of another value.
pub(crate) fn recast(expr: &Expr, value: Expr) -> Option<Expr> {
    match expr {
        Expr::Cast(Cast { field, .. }) => Some(Expr::Cast(Cast { expr: Box::new(value), field: Arc::clone(field) })),
        Expr::ScalarFunction(call) if call.func.inner().is::<LossyCast>() => {
            Some(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&call.func), vec![value])))
        }
        _ => None,
    }
}

fn item_of(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::List(item) => item_of(item.data_type()),
        other => other,
    }
}

fn is_number(data_type: &DataType) -> bool {
    data_type.is_numeric()
}

/// Returns whether a cast can merge values, fail, or be inexact in Arrow, or a literal beside it
/// can have more digits.
fn loses(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::List(from), DataType::List(to)) => {
            item_of(from.data_type()).is_decimal() && item_of(to.data_type()).is_floating()
        }
        (from, to) if from.is_decimal() && to.is_floating() => true,
        (DataType::Timestamp(from, _), DataType::Timestamp(to, _)) => from != to,
        (from, to) => match (Digits::of(from), Digits::of(to)) {
            (Some(from), Some(to)) => !to.hold(&from),
            _ => false,
        },
    }
}

/// Returns whether a cast of exact numbers preserves distinct values.
pub(super) fn is_exact(from: &DataType, to: &DataType) -> bool {
    match (Digits::of(from), Digits::of(to)) {
        (Some(from), Some(to)) => to.hold(&from),
        _ => false,
    }
}

/// The digits of an exact number before and after the point.
struct Digits {
    whole: i16,
    fraction: i16,
    is_signed: bool,
    /// The width of an integer. Integers compare by their bits.
    bits: Option<usize>,
}

impl Digits {
    fn of(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Decimal32(p, s)
            | DataType::Decimal64(p, s)
            | DataType::Decimal128(p, s)
            | DataType::Decimal256(p, s) => {
                let (precision, scale) = (i16::from(*p), i16::from(*s));
                Some(Self { whole: precision - scale, fraction: scale, is_signed: true, bits: None })
            }
            integer if integer.is_integer() => {
                let bits = integer.primitive_width()? * 8;
                let whole = match bits {
                    8 => 3,
                    16 => 5,
                    32 => 10,
                    _ if integer.is_signed_integer() => 19,
                    _ => 20,
                };
                Some(Self { whole, fraction: 0, is_signed: integer.is_signed_integer(), bits: Some(bits) })
            }
            _ => None,
        }
    }

    fn hold(&self, other: &Self) -> bool {
        match (self.bits, other.bits) {
            (Some(own), Some(bits)) if self.is_signed == other.is_signed => own >= bits,
            (Some(own), Some(bits)) => self.is_signed && own > bits,
            // An integer type cannot hold all numbers of its maximum number of digits.
            (Some(_), None) => false,
            (None, _) => self.whole >= other.whole && self.fraction >= other.fraction,
        }
    }
}

/// The result for a value that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Misfit {
    Error,
    Null,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LossyCast {
    to: DataType,
    misfit: Misfit,
    signature: Signature,
}

impl LossyCast {
    fn written(&self, value: impl std::fmt::Display) -> String {
        format!("{}({value} AS {})", self.name(), sql_name(&self.to))
    }
}

impl ScalarUDFImpl for LossyCast {
    fn name(&self) -> &str {
        match self.misfit {
            Misfit::Error => "CAST",
            Misfit::Null => "TRY_CAST",
        }
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        Ok(args.first().map_or_else(|| self.name().to_string(), |value| self.written(value)))
    }

    /// Differs from the value's name, unlike a cast's: a join computes its keys beside their source
    /// columns.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        Ok(args.first().map_or_else(|| self.name().to_string(), |value| self.written(value.schema_name())))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let is_nullable = self.misfit == Misfit::Null || args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.to.clone(), is_nullable)))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, |values| cast_values(values, &self.to, self.misfit))
    }
}

fn cast_values(values: &ArrayRef, to: &DataType, misfit: Misfit) -> Result<ArrayRef> {
    if let (DataType::List(_), DataType::List(item)) = (values.data_type(), to) {
        let lists = values.as_list::<i32>();
        let items = cast_values(lists.values(), item.data_type(), misfit)?;
        let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
        return Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, items, nulls)?));
    }
    if let Some(floats) = floats(values, to) {
        return Ok(floats);
    }
    let options = CastOptions { safe: misfit == Misfit::Null, ..CastOptions::default() };
    Ok(cast_with_options(values, to, &options)?)
}

/// Casts decimals to floats. Returns `None` for other casts.
fn floats(values: &ArrayRef, to: &DataType) -> Option<ArrayRef> {
    match (values.data_type(), to) {
        (DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale), DataType::Float32 | DataType::Float64) => {
            let wide = cast(values, &DataType::Decimal128(38, *scale)).ok()?;
            floats(&wide, to)
        }
        (DataType::Decimal128(_, scale), DataType::Float64) => {
            let double = |value| parts(Some(value), *scale).map_or_else(|| parsed(value, *scale), double_of);
            Some(Arc::new(values.as_primitive::<Decimal128Type>().unary::<_, Float64Type>(double)))
        }
        (DataType::Decimal128(_, scale), DataType::Float32) => {
            let real = |value| parts(Some(value), *scale).map_or_else(|| parsed(value, *scale), real_of);
            Some(Arc::new(values.as_primitive::<Decimal128Type>().unary::<_, Float32Type>(real)))
        }
        (DataType::Decimal256(_, scale), DataType::Float64) => {
            let double = |value: i256| parts(value.to_i128(), *scale).map_or_else(|| parsed(value, *scale), double_of);
            Some(Arc::new(values.as_primitive::<Decimal256Type>().unary::<_, Float64Type>(double)))
        }
        (DataType::Decimal256(_, scale), DataType::Float32) => {
            let real = |value: i256| parts(value.to_i128(), *scale).map_or_else(|| parsed(value, *scale), real_of);
            Some(Arc::new(values.as_primitive::<Decimal256Type>().unary::<_, Float32Type>(real)))
        }
        _ => None,
    }
}

fn parts(value: Option<i128>, scale: i8) -> Option<(i128, u8)> {
    value.zip(u8::try_from(scale).ok())
}

fn double_of((value, scale): (i128, u8)) -> f64 {
    to_double(value, scale)
}

fn real_of((value, scale): (i128, u8)) -> f32 {
    to_real(value, scale)
}

/// Parses a decimal of more than 128 bits or of a negative scale.
fn parsed<F: std::str::FromStr + From<f32>>(value: impl std::fmt::Display, scale: i8) -> F {
    format!("{value}e{}", -i16::from(scale)).parse().unwrap_or(F::from(f32::NAN))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn casts_are_compared_as_casts() {
        let table = "(VALUES (1, CAST(1.2345 AS DECIMAL(8, 4))), (2, 1.2399), (3, -0.5), (4, NULL)) AS t(k, d)";
        for (condition, expected) in [
            ("CAST(d AS DECIMAL(8, 2)) = 1.24", "2"),
            ("CAST(d AS DECIMAL(8, 2)) >= 1.24", "2"),
            ("CAST(d AS INT) = 1", "1 2"),
            ("CAST(d AS INT) IN (1, 7)", "1 2"),
            ("CAST(d AS INT) BETWEEN 1 AND 1", "1 2"),
            ("TRY_CAST(k * 100 AS TINYINT) <> 5", "1"),
            ("CAST(d AS DECIMAL(10, 5)) = 1.2345", "1"),
        ] {
            let query = format!("SELECT k FROM {table} WHERE {condition} ORDER BY k");
            assert_eq!(rows(&query).await.join(" "), expected, "{condition}");
        }
        let join = format!("SELECT k FROM {table} JOIN (VALUES (1), (-1)) AS o(i) ON CAST(d AS INT) = o.i ORDER BY k");
        assert_eq!(rows(&join).await, ["1", "2", "3"]);
        let found = format!("SELECT k FROM {table} WHERE CAST(d AS DECIMAL(8, 2)) IN (SELECT 1.24)");
        assert_eq!(rows(&found).await, ["2"]);
        let grouped = format!("SELECT CAST(d AS INT), count(*) FROM {table} GROUP BY CAST(d AS INT) ORDER BY 1");
        assert_eq!(rows(&grouped).await, ["-1 1", "1 2", "NULL 1"]);
        let error = fails(&format!("SELECT k FROM {table} WHERE CAST(k * 100 AS TINYINT) = 5")).await;
        assert_eq!(error.kind(), crate::ErrorKind::Data, "{error}");
    }

    #[tokio::test]
    async fn decimals_are_the_nearest_doubles() {
        for (expression, expected) in [
            ("CAST(3.14159265358979323846 AS DOUBLE)", "3.141592653589793"),
            ("CAST(CAST(x AS DECIMAL(18, 3)) AS DOUBLE)", "123456789012345.67"),
            ("CAST(ARRAY[CAST(x AS DECIMAL(18, 3))] AS DOUBLE[])", "[123456789012345.67]"),
            ("CAST(CAST(x AS DECIMAL(60, 30)) AS DOUBLE)", "123456789012345.67"),
            ("CAST(0.33 AS REAL)", "0.33"),
            ("CAST(x AS REAL)", "1.2345679e14"),
        ] {
            let query = format!("SELECT {expression} FROM (VALUES (123456789012345.678)) AS t(x)");
            assert_eq!(rows(&query).await, [expected], "{expression}");
        }
    }
}
