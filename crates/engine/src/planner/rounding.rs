//! `round`, `trunc`, `floor` and `ceil` have one stable type, with a digit for a carry.
//!
//! The type of DataFusion's `round(d, 2)` depends on its constant. Type coercion puts a cast around
//! that constant, and the type differs until the cast is folded. `round(a.d, 2) = b.e` compares
//! decimals of different scales, and finds no rows. `floor(-0.5)` is an error, because DECIMAL(1,
//! 1) cannot hold -1. `round(42.5e0, 400)` is NaN. Seen in 55.2.0; see docs/internals/upstream.md.
//!
//! A call on a decimal is settled before types are: the number of digits to keep becomes part of
//! the function. As in PostgreSQL and DuckDB the result has the requested number of digits after
//! the point, if the value has as many. A number of digits that differs from row to row leaves the
//! scale unchanged. The result for doubles is DuckDB's: a value that cannot be scaled stays
//! unchanged.

use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowNativeTypeOp, AsArray, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNativeType, DataType, Decimal128Type, Decimal256Type, DecimalType, Field, FieldRef, Float32Type, Float64Type,
    Int64Type,
};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::functions::math;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::checked_arithmetic::out_of_range;
use super::expressions;

/// Returns the functions that replace DataFusion's.
pub(super) fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    [Kind::Round, Kind::Trunc, Kind::Floor, Kind::Ceil]
        .into_iter()
        .map(|kind| Arc::new(ScalarUDF::from(Rounding::new(kind, Places::AsCalled))))
}

/// Runs before DataFusion settles types.
#[derive(Debug)]
pub(super) struct SettledRounding;

impl AnalyzerRule for SettledRounding {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        match expressions::has(&plan, |expr| unsettled(expr).is_some())? {
            true => expressions::rewritten_everywhere(plan, settle),
            false => Ok(plan),
        }
    }

    fn name(&self) -> &str {
        "settled_rounding"
    }
}

/// Returns a call whose type is not settled, and its arguments.
fn unsettled(expr: &Expr) -> Option<(&Rounding, &Expr, &Expr)> {
    let Expr::ScalarFunction(call) = expr else { return None };
    let rounding: &Rounding = call.func.inner().downcast_ref()?;
    match (rounding.places, call.args.as_slice()) {
        (Places::AsCalled, [value, places]) => Some((rounding, value, places)),
        _ => None,
    }
}

fn settle(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Some((rounding, value, places)) = unsettled(&expr) else { return Transformed::no(expr) };
    if !expressions::type_of(value, schema).is_decimal() {
        return Transformed::no(expr);
    }
    let settled = match constant(places) {
        Some(places) => {
            let signature = Signature::any(1, Volatility::Immutable);
            let settled = Rounding { signature, ..Rounding::new(rounding.kind, Places::Constant(places)) };
            ScalarUDF::from(settled).call(vec![value.clone()])
        }
        None => {
            // It keeps its type: DataFusion would cast it to INTEGER, which not every value fits.
            let is_whole = expressions::type_of(places, schema).is_integer();
            let mut settled = Rounding::new(rounding.kind, Places::PerRow);
            if is_whole {
                settled.signature = Signature::any(2, Volatility::Immutable);
            }
            ScalarUDF::from(settled).call(vec![value.clone(), places.clone()])
        }
    };
    Transformed::yes(settled)
}

/// Returns the number that an expression is in every row.
fn constant(expr: &Expr) -> Option<i64> {
    match expr {
        Expr::Literal(value, _) if value.data_type().is_integer() => match value.cast_to(&DataType::Int64).ok()? {
            ScalarValue::Int64(value) => value,
            _ => None,
        },
        Expr::Cast(inner) if inner.field.data_type().is_integer() => constant(&inner.expr),
        Expr::Negative(inner) => constant(inner)?.checked_neg(),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Round,
    Trunc,
    Floor,
    Ceil,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Round => "round",
            Self::Trunc => "trunc",
            Self::Floor => "floor",
            Self::Ceil => "ceil",
        }
    }

    fn datafusion(self) -> Arc<ScalarUDF> {
        match self {
            Self::Round => math::round(),
            Self::Trunc => math::trunc(),
            Self::Floor => math::floor(),
            Self::Ceil => math::ceil(),
        }
    }

    fn of_double(self, value: f64) -> f64 {
        match self {
            Self::Round => value.round(),
            Self::Trunc => value.trunc(),
            Self::Floor => value.floor(),
            Self::Ceil => value.ceil(),
        }
    }
}

/// The number of digits to keep after the point; before it, if negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Places {
    /// The second argument, or 0. The type is not settled.
    AsCalled,
    /// A constant.
    Constant(i64),
    /// The second argument, which differs by row.
    PerRow,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Rounding {
    kind: Kind,
    places: Places,
    signature: Signature,
}

impl Rounding {
    fn new(kind: Kind, places: Places) -> Self {
        Self { kind, places, signature: kind.datafusion().signature().clone() }
    }

    /// Returns the result type for a decimal.
    fn decimal(&self, data_type: &DataType, places: Option<i64>) -> Option<DataType> {
        let (precision, scale, most) = match data_type {
            DataType::Decimal128(precision, scale) => (*precision, *scale, Decimal128Type::MAX_PRECISION),
            DataType::Decimal256(precision, scale) => (*precision, *scale, Decimal256Type::MAX_PRECISION),
            _ => return None,
        };
        let carried = if self.kind == Kind::Trunc { precision } else { (precision + 1).min(most) };
        let (precision, scale) = match places {
            Some(places) if places >= i64::from(scale) => (precision, scale),
            // The result has at least one digit less after the point, so a carry fits.
            Some(places) if scale > 0 => (precision, i8::try_from(places.max(0)).unwrap_or(scale)),
            _ => (carried, scale),
        };
        Some(match data_type {
            DataType::Decimal256(..) => DataType::Decimal256(precision, scale),
            _ => DataType::Decimal128(precision, scale),
        })
    }

    fn places_of(&self, args: &ReturnFieldArgs) -> Option<i64> {
        match self.places {
            Places::Constant(places) => Some(places),
            Places::PerRow => None,
            Places::AsCalled => match args.scalar_arguments.get(1) {
                None => Some(0),
                Some(Some(value)) => constant(&Expr::Literal((*value).clone(), None)),
                Some(None) => None,
            },
        }
    }

    /// Returns the number of digits to keep in each row.
    fn per_row(&self, args: &[ColumnarValue], rows: usize) -> Result<PerRow> {
        let constant = match self.places {
            Places::Constant(places) => places,
            Places::AsCalled | Places::PerRow => match args.get(1) {
                None => 0,
                Some(places) => {
                    let places = cast(&places.to_array(rows)?, &DataType::Int64)?;
                    return Ok(PerRow::Each(places.as_primitive::<Int64Type>().clone()));
                }
            },
        };
        Ok(PerRow::All(constant))
    }

    fn decimals<T: DecimalType>(&self, values: &ArrayRef, places: &PerRow, to: &DataType) -> Result<ArrayRef>
    where
        T::Native: ArrowNativeTypeOp,
    {
        let values = values.as_primitive::<T>();
        let (from_precision, from) = (values.precision(), values.scale());
        let (DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale)) = *to else {
            return internal_err!("{} of decimals as {to}", self.kind.name());
        };
        let one = |value: T::Native, places: i64| {
            let rounded = rounded::<T>(self.kind, value, (from_precision, from), scale, places);
            rounded.filter(|value| T::is_valid_decimal_precision(*value, precision)).ok_or_else(|| {
                let value = T::format_decimal(value, from_precision, from);
                out_of_range(to, &format!("{}({value}, {places})", self.kind.name()))
            })
        };
        let rounded: PrimitiveArray<T> = match places {
            PerRow::All(places) => values.try_unary(|value| one(value, *places))?,
            PerRow::Each(places) => {
                let rows = values.iter().zip(places.iter());
                rows.map(|(value, places)| value.zip(places).map(|(value, places)| one(value, places)).transpose())
                    .collect::<Result<_>>()?
            }
        };
        Ok(Arc::new(rounded.with_precision_and_scale(precision, scale)?))
    }

    fn doubles(&self, values: &PrimitiveArray<Float64Type>, places: &PerRow) -> PrimitiveArray<Float64Type> {
        match places {
            PerRow::All(places) => values.unary(|value| double(self.kind, value, *places)),
            PerRow::Each(places) => {
                let rows = values.iter().zip(places.iter());
                rows.map(|(value, places)| value.zip(places).map(|(value, places)| double(self.kind, value, places)))
                    .collect()
            }
        }
    }
}

/// The number of digits to keep in the rows.
enum PerRow {
    All(i64),
    Each(PrimitiveArray<Int64Type>),
}

/// Returns a decimal at another scale, or `None` if it overflows its integer type.
fn rounded<T: DecimalType>(
    kind: Kind,
    value: T::Native,
    (precision, from): (u8, i8),
    to: i8,
    places: i64,
) -> Option<T::Native>
where
    T::Native: ArrowNativeTypeOp,
{
    let zero = T::Native::ZERO;
    let power = |digits: i64| T::Native::usize_as(10).pow_checked(u32::try_from(digits).ok()?).ok();
    if places >= i64::from(from) {
        return value.mul_checked(power(i64::from(to) - i64::from(from))?).ok();
    }
    let cut = i64::from(from).checked_sub(places).filter(|cut| *cut <= i64::from(precision));
    // The unit has more digits than the value: even its half is more than the value can be.
    let Some(cut) = cut else {
        return match kind {
            Kind::Floor if value.is_lt(zero) => T::Native::ONE.neg_checked().ok(),
            Kind::Ceil if value.is_gt(zero) => Some(T::Native::ONE),
            _ => Some(zero),
        };
    };
    let unit = power(cut)?;
    let (quotient, rest) = (value.div_wrapping(unit), value.mod_wrapping(unit));
    let away = |quotient: T::Native| match value.is_lt(zero) {
        true => quotient.sub_wrapping(T::Native::ONE),
        false => quotient.add_wrapping(T::Native::ONE),
    };
    let half = unit.div_wrapping(T::Native::usize_as(2));
    let is_away = match kind {
        Kind::Round => rest.is_ge(half) || rest.is_le(half.neg_wrapping()),
        Kind::Trunc => false,
        Kind::Floor => rest.is_lt(zero),
        Kind::Ceil => rest.is_gt(zero),
    };
    let quotient = if is_away { away(quotient) } else { quotient };
    quotient.mul_checked(power(i64::from(to) - places)?).ok()
}

fn double(kind: Kind, value: f64, places: i64) -> f64 {
    let unit = 10f64.powi(places.unsigned_abs().min(400) as i32);
    let rounded = match places {
        _ if !value.is_finite() => return value,
        0.. => kind.of_double(value * unit) / unit,
        _ => kind.of_double(value / unit) * unit,
    };
    match rounded.is_finite() {
        true => rounded,
        false if places < 0 => 0.0,
        false => value,
    }
}

impl ScalarUDFImpl for Rounding {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        Ok(self.written(args.iter().map(|arg| arg.to_string()).collect()))
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        Ok(self.written(args.iter().map(|arg| arg.schema_name().to_string()).collect()))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("the type of {} is that of its arguments", self.name())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let Some(value) = args.arg_fields.first() else { return internal_err!("{} of nothing", self.name()) };
        match self.decimal(value.data_type(), self.places_of(&args)) {
            Some(data_type) => {
                let is_nullable = args.arg_fields.iter().any(|field| field.is_nullable());
                Ok(Arc::new(Field::new(self.name(), data_type, is_nullable)))
            }
            None => self.kind.datafusion().return_field_from_args(args),
        }
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(value) = call.args.first() else { return internal_err!("{} of nothing", self.name()) };
        let data_type = value.data_type();
        let is_ours =
            data_type.is_decimal() || data_type.is_floating() && (call.args.len() == 2 || self.kind == Kind::Trunc);
        if !is_ours || call.arg_fields.iter().any(|field| field.data_type().is_null()) {
            return self.kind.datafusion().invoke_with_args(call);
        }
        let is_scalar = call.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { call.number_rows };
        let (values, places) = (value.to_array(rows)?, self.per_row(&call.args, rows)?);
        let rounded: ArrayRef = match &data_type {
            DataType::Decimal128(..) => self.decimals::<Decimal128Type>(&values, &places, call.return_type())?,
            DataType::Decimal256(..) => self.decimals::<Decimal256Type>(&values, &places, call.return_type())?,
            DataType::Float64 => Arc::new(self.doubles(values.as_primitive(), &places)),
            DataType::Float32 => {
                let doubles = cast(&values, &DataType::Float64)?;
                let doubles = self.doubles(doubles.as_primitive(), &places);
                Arc::new(doubles.unary::<_, Float32Type>(|value| value as f32))
            }
            _ => return self.kind.datafusion().invoke_with_args(call),
        };
        match is_scalar {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&rounded, 0)?)),
            false => Ok(ColumnarValue::Array(rounded)),
        }
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        match (self.places, inputs) {
            (Places::Constant(_), [value]) => Ok(value.sort_properties),
            _ => self.kind.datafusion().output_ordering(inputs),
        }
    }
}

impl Rounding {
    /// Returns the call as it was before the digits became part of it.
    fn written(&self, mut args: Vec<String>) -> String {
        if let Places::Constant(places) = self.places {
            args.push(places.to_string());
        }
        format!("{}({})", self.kind.name(), args.join(","))
    }
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn decimals_have_one_type() {
        let table = "(VALUES (1, CAST(1.2345 AS DECIMAL(8, 4)), 2), (2, 1.2399, 1), (3, -0.5, 0)) AS t(k, d, n)";
        for (expression, expected) in [
            ("arrow_typeof(round(d, 2))", "Decimal128(8, 2) Decimal128(8, 2) Decimal128(8, 2)"),
            ("round(d, 2)", "1.23 1.24 -0.50"),
            ("round(d, n)", "1.2300 1.2000 -1.0000"),
            ("round(d, 2) = round(d, n)", "true false false"),
            ("round(d, 1) IN (1.2, 1.3)", "true true false"),
            ("round(d, -1)", "0 0 0"),
            ("trunc(d, 2)", "1.23 1.23 -0.50"),
            ("trunc(d)", "1 1 0"),
            ("floor(d)", "1 1 -1"),
            ("ceil(d)", "2 2 0"),
            ("floor(d) = CAST(d AS DECIMAL(30, 0))", "true true true"),
            ("round(CAST(d AS DECIMAL(50, 10)), 2)", "1.23 1.24 -0.50"),
        ] {
            let query = format!("SELECT {expression} FROM {table} ORDER BY k");
            assert_eq!(rows(&query).await.join(" "), expected, "{expression}");
        }
        let joined =
            format!("SELECT a.k FROM {table} JOIN (VALUES (CAST(1.24 AS DECIMAL(8, 3)))) AS b(e) ON round(d, 2) = e");
        assert_eq!(rows(&joined.replace("t(", "a(")).await, ["2"]);
        assert_eq!(rows("SELECT floor(-0.5), ceil(0.99), round(0.99, 1), round(99, -2)").await, ["-1 1 1.0 100"]);
        let error = fails("SELECT round(99999999999999999999999999999999999999, -1)").await;
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    }

    #[tokio::test]
    async fn doubles_of_many_places() {
        for (expression, expected) in [
            ("round(x, 400)", "42.5"),
            ("round(x, -400)", "0.0"),
            ("round(x, 1)", "42.5"),
            ("round(x, -1)", "40.0"),
            ("trunc(x, 400)", "42.5"),
            ("trunc(x, -1)", "40.0"),
            ("trunc(-x)", "-42.0"),
            ("round(CAST(x AS REAL), 40)", "42.5"),
        ] {
            assert_eq!(
                rows(&format!("SELECT {expression} FROM (VALUES (42.5e0)) AS t(x)")).await,
                [expected],
                "{expression}"
            );
        }
    }
}
