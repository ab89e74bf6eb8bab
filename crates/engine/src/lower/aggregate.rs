//! Translates aggregate functions, and converts a pipeline's exact results to the types that
//! DataFusion promised.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int64Array, StringViewArray, UInt32Array,
    new_null_array,
};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field, i256};
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion::logical_expr::{Expr, ExprSchemable};
use onehop_pipeline::cpu::{ResultColumn, ResultValues};
use onehop_pipeline::ir::Aggregate;
use onehop_pipeline::{Expr as Pipeline, Type, Value};

use super::expr::{Translator, bounds, type_of};
use super::{Lowered, because};
use crate::planner::{POSITIVE_ZERO, as_any_cast, average, room_for};
use crate::type_names::sql_name;
use crate::{Error, ErrorKind, Result, Rule};

/// The computation of an answer column from the pipeline's columns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Finish {
    /// The column itself.
    Column(usize),
    /// The quotient of a sum and a count, in doubles. The sum is divided by 10^`scale` first.
    Average { sum: usize, count: usize, scale: u8 },
    /// The square root of a column, which is a double.
    Root(usize),
    /// The quotient of a sum and a count as a decimal of `digits` more digits, rounded half away
    /// from zero.
    DecimalAverage { sum: usize, count: usize, digits: u32 },
}

/// Translates a call of an aggregate function. `results` has the pipeline's aggregates so far,
/// after `keys` keys.
pub(super) fn translate(
    call: &AggregateFunction,
    translator: &Translator<'_>,
    keys: usize,
    results: &mut Vec<Aggregate>,
) -> Lowered<Finish> {
    let AggregateFunctionParams { args, distinct, filter, order_by, .. } = &call.params;
    let name = call.func.name();
    if !order_by.is_empty() {
        return because(format!("{name}() with ORDER BY"));
    }
    let args = args.iter().map(|arg| without_zeros(arg, translator)).collect::<Lowered<Vec<&Expr>>>()?;
    if *distinct && args.iter().any(|arg| is_positive_zero(arg)) {
        return because(format!("{name}(DISTINCT ...) of doubles"));
    }
    let only = match filter {
        Some(filter) => Some(translator.translate(filter)?),
        None => None,
    };
    // Functions ignore NULLs, so rows that a FILTER excludes become NULL.
    let value = |arg: Pipeline| match &only {
        Some(condition) => Pipeline::Case { branches: vec![(condition.clone(), arg)], otherwise: None },
        None => arg,
    };
    let one = || value(Pipeline::Literal(Value::Bool(true)));
    let mut add = |aggregate: Aggregate| {
        results.push(aggregate);
        keys + results.len() - 1
    };
    let of = |data_type: &Expr| data_type.get_type(&translator.schema);
    let count = |arg| if *distinct { Aggregate::CountDistinct(arg) } else { Aggregate::Count(arg) };
    let sum = |arg| if *distinct { Aggregate::SumDistinct(arg) } else { Aggregate::Sum(arg) };
    match (name, args.as_slice()) {
        ("count", [Expr::Literal(literal, _)]) if !literal.is_null() && !distinct => {
            Ok(Finish::Column(add(if filter.is_some() { Aggregate::Count(one()) } else { Aggregate::CountRows })))
        }
        ("count", []) if filter.is_some() => Ok(Finish::Column(add(Aggregate::Count(one())))),
        ("count", []) => Ok(Finish::Column(add(Aggregate::CountRows))),
        ("count", [arg]) => Ok(Finish::Column(add(count(value(translator.translate(arg)?))))),
        ("sum", [arg]) => Ok(Finish::Column(add(sum(value(numbers(name, arg, translator)?))))),
        ("min" | "bool_and", [arg]) => Ok(Finish::Column(add(Aggregate::Min(value(translator.translate(arg)?))))),
        ("max" | "bool_or", [arg]) => Ok(Finish::Column(add(Aggregate::Max(value(translator.translate(arg)?))))),
        ("avg", [cast])
            if let Some((inner, DataType::Float64)) = as_any_cast(cast)
                && is_exact(&of(inner)?) =>
        {
            let scale = match of(inner)? {
                DataType::Decimal128(_, scale) => scale.unsigned_abs(),
                _ => 0,
            };
            let inner = value(numbers(name, inner, translator)?);
            Ok(Finish::Average { count: add(count(inner.clone())), sum: add(sum(inner)), scale })
        }
        ("avg", [arg]) => {
            let arg_type = of(arg)?;
            let result_type = Expr::AggregateFunction(call.clone()).get_type(&translator.schema)?;
            let arg = value(numbers(name, arg, translator)?);
            let (count, sum) = (add(count(arg.clone())), add(sum(arg)));
            match (arg_type, result_type) {
                (DataType::Decimal128(_, from), DataType::Decimal128(_, to)) => {
                    Ok(Finish::DecimalAverage { sum, count, digits: u32::try_from(to - from).unwrap_or(0) })
                }
                (DataType::Float64, DataType::Float64) => Ok(Finish::Average { sum, count, scale: 0 }),
                (other, _) => because(format!("avg() of type {}", sql_name(&other))),
            }
        }
        ("var" | "var_pop" | "stddev" | "stddev_pop", [arg]) if !distinct => {
            let arg = value(numbers(name, arg, translator)?);
            let variance = add(match name.ends_with("_pop") {
                true => Aggregate::VariancePop(arg),
                false => Aggregate::VarianceSamp(arg),
            });
            Ok(if name.starts_with("var") { Finish::Column(variance) } else { Finish::Root(variance) })
        }
        _ if *distinct => because(format!("{name}(DISTINCT ...)")),
        _ => because(format!("the aggregate function {name}()")),
    }
}

/// Returns whether it is a double under DISTINCT: the planner has removed its negative zeros.
fn is_positive_zero(arg: &Expr) -> bool {
    matches!(arg, Expr::ScalarFunction(call) if call.func.name() == POSITIVE_ZERO)
}

/// Returns the sort key without that conversion: pipelines order both zeros as equal.
pub(super) fn within_positive_zero(key: &Expr) -> &Expr {
    match key {
        Expr::ScalarFunction(call) if is_positive_zero(key) => call.args.first().unwrap_or(key),
        _ => key,
    }
}

/// Removes the conversion from a double that is cast from a type without negative zeros.
fn without_zeros<'e>(arg: &'e Expr, translator: &Translator<'_>) -> Lowered<&'e Expr> {
    match arg {
        Expr::ScalarFunction(call) if is_positive_zero(arg) => match call.args.as_slice() {
            [cast] => match as_any_cast(cast) {
                Some((expr, _)) if is_exact(&expr.get_type(&translator.schema)?) => Ok(cast),
                _ => Ok(arg),
            },
            _ => Ok(arg),
        },
        _ => Ok(arg),
    }
}

fn is_exact(data_type: &DataType) -> bool {
    data_type.is_integer() || matches!(data_type, DataType::Decimal128(_, 0..))
}

fn numbers(function: &str, arg: &Expr, translator: &Translator<'_>) -> Lowered<Pipeline> {
    let data_type = arg.get_type(&translator.schema)?;
    match type_of(&data_type)? {
        Type::Int | Type::Double => translator.translate(arg),
        _ => because(format!("{function}({}) of type {}", translator.names().text(arg), sql_name(&data_type))),
    }
}

impl Finish {
    /// Returns the column as an array of the field's type. `threads` threads read late text.
    pub fn array(self, columns: &[ResultColumn], field: &Field, threads: usize) -> Result<ArrayRef> {
        match self {
            Self::Column(column) => array(&columns[column], field, threads),
            Self::Average { sum, count, scale } => {
                let divisor = 10f64.powi(scale.into());
                let averages = doubles_of(&columns[sum]).zip(integers_of(&columns[count]));
                let averages = averages.map(|(sum, count)| match (sum, count) {
                    (Some(sum), Some(count @ 1..)) => Some(sum / divisor / count as f64),
                    _ => None,
                });
                Ok(Arc::new(averages.collect::<Float64Array>()))
            }
            Self::Root(variance) => {
                let roots = doubles_of(&columns[variance]).map(|variance| variance.map(f64::sqrt));
                Ok(Arc::new(roots.collect::<Float64Array>()))
            }
            Self::DecimalAverage { sum, count, digits } => {
                let mut averages = Vec::with_capacity(columns[sum].len());
                for (sum, count) in integers_of(&columns[sum]).zip(integers_of(&columns[count])) {
                    averages.push(match (sum, count) {
                        (Some(sum), Some(count @ 1..)) => {
                            let quotient = average(i256::from_i128(sum), i256::from_i128(count), digits);
                            Some(quotient.and_then(i256::to_i128).ok_or_else(|| out_of_range(field))?)
                        }
                        _ => None,
                    });
                }
                decimals(averages, field)
            }
        }
    }
}

fn out_of_range(field: &Field) -> Error {
    let name = sql_name(field.data_type());
    let error = Error::new(ErrorKind::Data, format!("{name} out of range in {}", field.name()));
    error.breaking(Rule::Range).with_hint(room_for(field.data_type()))
}

fn integers_of(column: &ResultColumn) -> impl Iterator<Item = Option<i128>> {
    let value = move |row: usize| match &column.values {
        ResultValues::Int(values) => values[row].into(),
        ResultValues::Wide(values) => values[row],
        ResultValues::Bool(values) => values[row].into(),
        ResultValues::Double(_) | ResultValues::Text(..) | ResultValues::LateText(..) => 0,
    };
    (0..column.len()).map(move |row| column.valid.as_ref().is_none_or(|valid| valid[row]).then(|| value(row)))
}

fn doubles_of(column: &ResultColumn) -> impl Iterator<Item = Option<f64>> {
    integers_of(column).enumerate().map(|(row, integer)| match &column.values {
        ResultValues::Double(values) => integer.map(|_| values[row]),
        _ => integer.map(|integer| integer as f64),
    })
}

fn decimals(values: Vec<Option<i128>>, field: &Field) -> Result<ArrayRef> {
    let DataType::Decimal128(precision, scale) = field.data_type() else {
        return Err(Error::new(ErrorKind::Internal, format!("a decimal for {}", field.data_type())));
    };
    let limit = bounds(&DataType::Decimal128(DECIMAL128_MAX_PRECISION.min(*precision), *scale));
    if values.iter().flatten().any(|value| !(limit.min..=limit.max).contains(value)) {
        return Err(out_of_range(field));
    }
    Ok(Arc::new(values.into_iter().collect::<Decimal128Array>().with_precision_and_scale(*precision, *scale)?))
}

fn array(column: &ResultColumn, field: &Field, threads: usize) -> Result<ArrayRef> {
    let data_type = field.data_type();
    if let DataType::Decimal128(precision, scale) = data_type {
        let most = i64::try_from(bounds(data_type).max).unwrap_or(i64::MAX);
        // Values nearly always fit. A NULL may have any value here.
        if let ResultValues::Int(values) = &column.values
            && values.iter().all(|value| (-most..=most).contains(value))
        {
            let values = values.iter().map(|value| i128::from(*value)).collect::<Vec<i128>>();
            let nulls = column.valid.as_ref().map(|valid| valid.clone().into());
            return Ok(Arc::new(
                Decimal128Array::new(values.into(), nulls).with_precision_and_scale(*precision, *scale)?,
            ));
        }
        return decimals(integers_of(column).collect(), field);
    }
    if *data_type == DataType::Null {
        return Ok(new_null_array(data_type, column.len()));
    }
    let nulls = column.valid.as_ref().map(|valid| valid.clone().into());
    let plain: ArrayRef = match &column.values {
        ResultValues::Bool(values) => Arc::new(BooleanArray::new(values.clone().into(), nulls)),
        ResultValues::Double(values) => Arc::new(Float64Array::new(values.clone().into(), nulls)),
        ResultValues::Int(values) => Arc::new(Int64Array::new(values.clone().into(), nulls)),
        ResultValues::Wide(_) => {
            let limit = bounds(data_type);
            let mut narrow = Vec::with_capacity(column.len());
            for value in integers_of(column) {
                let fits = |value: &i128| (limit.min..=limit.max).contains(value);
                if value.as_ref().is_some_and(|value| !fits(value)) {
                    return Err(out_of_range(field));
                }
                narrow.push(value);
            }
            // Through decimals, since 64 bits may be unsigned.
            Arc::new(narrow.into_iter().collect::<Decimal128Array>().with_precision_and_scale(38, 0)?)
        }
        ResultValues::Text(codes, dictionary) => {
            let codes = UInt32Array::new(codes.clone().into(), nulls);
            match dictionary.is_empty() {
                true => Arc::new(StringViewArray::new_null(codes.len())),
                false => take(dictionary.texts(), &codes, None)?,
            }
        }
        ResultValues::LateText(rows, texts) => {
            let is_valid = |row: usize| column.valid.as_ref().is_none_or(|valid| valid[row]);
            let rows = rows.iter().enumerate().map(|(place, row)| is_valid(place).then_some(*row));
            Arc::new(texts.texts(rows, threads)?)
        }
    };
    let through = match (plain.data_type(), data_type) {
        (DataType::Int64, DataType::Date32) => cast_with_options(&plain, &DataType::Int32, &strict())?,
        _ => plain,
    };
    cast_with_options(&through, data_type, &strict()).map_err(|_| out_of_range(field))
}

fn strict() -> CastOptions<'static> {
    CastOptions { safe: false, ..CastOptions::default() }
}
