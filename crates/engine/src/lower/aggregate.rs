//! Aggregate functions, and how a pipeline's exact results become values of the types that DataFusion promised.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int64Array, StringViewArray, UInt32Array,
    new_null_array,
};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field};
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams, Cast};
use datafusion::logical_expr::{Expr, ExprSchemable};
use onehop_pipeline::Type;
use onehop_pipeline::cpu::{ResultColumn, ResultValues};
use onehop_pipeline::ir::Aggregate;

use super::expr::{Translator, bounds, type_of};
use super::{Lowered, because};
use crate::catalog::names::sql_name;
use crate::planner::MORE_ROOM;
use crate::{Error, ErrorKind, Result};

/// How a column of the answer is made of the pipeline's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Finish {
    /// It is one.
    Column(usize),
    /// A quotient of a sum and a count, in doubles after the sum has lost `scale` digits.
    Average { sum: usize, count: usize, scale: u8 },
    /// A quotient of a sum and a count as a decimal of `digits` more digits, cut off.
    DecimalAverage { sum: usize, count: usize, digits: u32 },
}

/// A call of an aggregate function. `results` has the pipeline's aggregates so far, after `keys` keys.
pub(super) fn translate(
    call: &AggregateFunction,
    translator: &Translator<'_>,
    keys: usize,
    results: &mut Vec<Aggregate>,
) -> Lowered<Finish> {
    let AggregateFunctionParams { args, distinct, filter, order_by, .. } = &call.params;
    let name = call.func.name();
    if *distinct {
        return because(format!("{name}(DISTINCT ...)"));
    }
    if filter.is_some() || !order_by.is_empty() {
        return because(format!("{name}() with FILTER or ORDER BY"));
    }
    let mut add = |aggregate: Aggregate| {
        results.push(aggregate);
        keys + results.len() - 1
    };
    match (name, args.as_slice()) {
        ("count", [Expr::Literal(value, _)]) if !value.is_null() => Ok(Finish::Column(add(Aggregate::CountRows))),
        ("count", []) => Ok(Finish::Column(add(Aggregate::CountRows))),
        ("count", [arg]) => Ok(Finish::Column(add(Aggregate::Count(translator.translate(arg)?)))),
        ("sum", [arg]) => {
            let arg = integers(arg, translator)?;
            Ok(Finish::Column(add(Aggregate::Sum(arg))))
        }
        ("min", [arg]) => Ok(Finish::Column(add(Aggregate::Min(translator.translate(arg)?)))),
        ("max", [arg]) => Ok(Finish::Column(add(Aggregate::Max(translator.translate(arg)?)))),
        ("avg", [Expr::Cast(Cast { expr: inner, field })])
            if *field.data_type() == DataType::Float64 && is_exact(&inner.get_type(&translator.schema)?) =>
        {
            let scale = match inner.get_type(&translator.schema)? {
                DataType::Decimal128(_, scale) => scale.unsigned_abs(),
                _ => 0,
            };
            let inner = integers(inner, translator)?;
            let count = add(Aggregate::Count(inner.clone()));
            Ok(Finish::Average { sum: add(Aggregate::Sum(inner)), count, scale })
        }
        ("avg", [arg]) => {
            let (DataType::Decimal128(_, from), DataType::Decimal128(_, to)) = (
                arg.get_type(&translator.schema)?,
                Expr::AggregateFunction(call.clone()).get_type(&translator.schema)?,
            ) else {
                return because(format!("avg({}) of doubles", translator.names().text(arg)));
            };
            let arg = integers(arg, translator)?;
            let count = add(Aggregate::Count(arg.clone()));
            let digits = u32::try_from(to - from).unwrap_or(0);
            Ok(Finish::DecimalAverage { sum: add(Aggregate::Sum(arg)), count, digits })
        }
        _ => because(format!("the aggregate function {name}()")),
    }
}

fn is_exact(data_type: &DataType) -> bool {
    data_type.is_integer() || matches!(data_type, DataType::Decimal128(_, 0..))
}

fn integers(arg: &Expr, translator: &Translator<'_>) -> Lowered<onehop_pipeline::Expr> {
    let data_type = arg.get_type(&translator.schema)?;
    match type_of(&data_type)? {
        Type::Int => translator.translate(arg),
        _ => because(format!("sum({}) of type {}", translator.names().text(arg), sql_name(&data_type))),
    }
}

impl Finish {
    /// The column as an array of the type it should have.
    pub fn array(self, columns: &[ResultColumn], field: &Field) -> Result<ArrayRef> {
        match self {
            Self::Column(column) => array(&columns[column], field),
            Self::Average { sum, count, scale } => {
                let divisor = 10f64.powi(scale.into());
                let averages = integers_of(&columns[sum]).zip(integers_of(&columns[count]));
                let averages = averages.map(|(sum, count)| match (sum, count) {
                    (Some(sum), Some(count @ 1..)) => Some(sum as f64 / divisor / count as f64),
                    _ => None,
                });
                Ok(Arc::new(averages.collect::<Float64Array>()))
            }
            Self::DecimalAverage { sum, count, digits } => {
                let mut averages = Vec::with_capacity(columns[sum].len());
                for (sum, count) in integers_of(&columns[sum]).zip(integers_of(&columns[count])) {
                    averages.push(match (sum, count) {
                        (Some(sum), Some(count @ 1..)) => {
                            let scaled = sum.checked_mul(10i128.pow(digits)).ok_or_else(|| out_of_range(field))?;
                            Some(scaled / count)
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
    Error::new(ErrorKind::Data, format!("{name} out of range in {}", field.name())).with_hint(MORE_ROOM)
}

fn integers_of(column: &ResultColumn) -> impl Iterator<Item = Option<i128>> {
    let value = move |row: usize| match &column.values {
        ResultValues::Int(values) => values[row].into(),
        ResultValues::Wide(values) => values[row],
        ResultValues::Bool(values) => values[row].into(),
        ResultValues::Double(_) | ResultValues::Text(..) => 0,
    };
    (0..column.len()).map(move |row| column.valid.as_ref().is_none_or(|valid| valid[row]).then(|| value(row)))
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

fn array(column: &ResultColumn, field: &Field) -> Result<ArrayRef> {
    let data_type = field.data_type();
    if matches!(data_type, DataType::Decimal128(..)) {
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
            // Through decimals: 64 bits may be unsigned.
            Arc::new(narrow.into_iter().collect::<Decimal128Array>().with_precision_and_scale(38, 0)?)
        }
        ResultValues::Text(codes, dictionary) => {
            let codes = UInt32Array::new(codes.clone().into(), nulls);
            match dictionary.is_empty() {
                true => Arc::new(StringViewArray::new_null(codes.len())),
                false => take(dictionary.texts(), &codes, None)?,
            }
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
