//! `INTERVAL '1 day' * 1.5` is `1 day 12:00:00` and `INTERVAL '1 month' / 2` is `15 days`, as in
//! PostgreSQL.
//!
//! Arrow adds intervals but does not multiply them. A fraction of a month becomes days, 30 to the
//! month, and a fraction of a day becomes hours, as PostgreSQL's documentation of date/time
//! operators specifies.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, IntervalMonthDayNanoArray};
use arrow::datatypes::{DataType, Float64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    ColumnarValue, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, cast,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::temporal::difference_of;
use crate::{Error, ErrorKind, Rule};

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);
const MONTH_DAYS: f64 = 30.0;
const DAY_SECONDS: f64 = 86_400.0;
const MICROS: f64 = 1e6;

#[derive(Debug)]
pub(super) struct IntervalArithmetic;

impl ExprPlanner for IntervalArithmetic {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let divides = match expr.op {
            // Handled before any analyzer rule: an extraction from a difference takes its type
            // here.
            BinaryOperator::Minus => {
                let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema)) else {
                    return Ok(PlannerResult::Original(expr));
                };
                return Ok(match difference_of(&expr.left, &expr.right, [&left, &right]) {
                    Some(difference) => PlannerResult::Planned(difference),
                    None => PlannerResult::Original(expr),
                });
            }
            BinaryOperator::Multiply => false,
            BinaryOperator::Divide => true,
            _ => return Ok(PlannerResult::Original(expr)),
        };
        // An expression without a type, such as a parameter, is left to DataFusion.
        let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema)) else {
            return Ok(PlannerResult::Original(expr));
        };
        let is_interval = |t: &DataType| matches!(t, DataType::Interval(_) | DataType::Duration(_));
        let is_number = |t: &DataType| t.is_numeric() || t.is_null();
        let (interval, number) = match () {
            () if is_interval(&left) && is_number(&right) => (expr.left, expr.right),
            () if is_number(&left) && is_interval(&right) && !divides => (expr.right, expr.left),
            () => return Ok(PlannerResult::Original(expr)),
        };
        let arguments = vec![cast(interval, INTERVAL), cast(number, DataType::Float64)];
        Ok(PlannerResult::Planned(ScalarUDF::from(Scaled::new(divides)).call(arguments)))
    }
}

/// An interval multiplied or divided by a number.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Scaled {
    divides: bool,
    signature: Signature,
}

impl Scaled {
    fn new(divides: bool) -> Self {
        let signature = Signature::exact(vec![INTERVAL, DataType::Float64], Volatility::Immutable);
        Self { divides, signature }
    }
}

impl ScalarUDFImpl for Scaled {
    fn name(&self) -> &str {
        if self.divides { "interval_divided" } else { "interval_times" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(INTERVAL)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [intervals, numbers] = ColumnarValue::values_to_arrays(&call.args)?
            .try_into()
            .map_err(|_| Error::new(ErrorKind::Internal, format!("{} takes two arguments", self.name())))?;
        let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>();
        let numbers = numbers.as_primitive::<Float64Type>();
        let scaled = intervals.iter().zip(numbers).map(|pair| match pair {
            (Some(interval), Some(number)) => scaled(interval, number, self.divides).map(Some),
            _ => Ok(None),
        });
        let scaled: IntervalMonthDayNanoArray = scaled.collect::<Result<_, Error>>()?;
        Ok(ColumnarValue::Array(Arc::new(scaled) as ArrayRef))
    }
}

pub(super) fn scaled(
    interval: IntervalMonthDayNano,
    number: f64,
    divides: bool,
) -> Result<IntervalMonthDayNano, Error> {
    if divides && number == 0.0 {
        return Err(Error::new(ErrorKind::Data, "an interval is divided by zero").breaking(Rule::Divisor));
    }
    let times = |value: f64| if divides { value / number } else { value * number };
    let (all_months, all_days) = (times(interval.months.into()), times(interval.days.into()));
    let (months, days) = (all_months.trunc(), all_days.trunc());
    let days_of_months = to_micros((all_months - months) * MONTH_DAYS);
    let mut seconds = to_micros((all_days - days + days_of_months.fract()) * DAY_SECONDS);
    let mut days = days + days_of_months.trunc();
    if seconds.abs() >= DAY_SECONDS {
        days += (seconds / DAY_SECONDS).trunc();
        seconds %= DAY_SECONDS;
    }
    let micros = (times(interval.nanoseconds as f64 / 1e3) + seconds * MICROS).round_ties_even();
    let is_there = |value: f64, most: f64| value.is_finite() && value.abs() <= most;
    if !is_there(months, i32::MAX.into())
        || !is_there(days, i32::MAX.into())
        || !is_there(micros, i64::MAX as f64 / 1e3)
    {
        return Err(Error::new(ErrorKind::Data, "an interval is out of range").breaking(Rule::Range));
    }
    Ok(IntervalMonthDayNano::new(months as i32, days as i32, micros as i64 * 1000))
}

/// Rounds a number of days or seconds to six decimal places, to remove floating-point errors.
fn to_micros(value: f64) -> f64 {
    (value * MICROS).round_ties_even() / MICROS
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn intervals_are_multiplied_and_divided() {
        // Expected values are from PostgreSQL 15.18.
        for (expr, expected) in [
            ("INTERVAL '1 day' * 3", "3 days"),
            ("1.5 * INTERVAL '1 day'", "1 day 12:00:00"),
            ("INTERVAL '1 month' / 2", "15 days"),
            ("INTERVAL '1 year 1 day' * -0.5", "-6 mons -12:00:00"),
            ("INTERVAL '1 month 1 day' * 1.7", "1 mon 22 days 16:48:00"),
            ("INTERVAL '7 hours' / 3", "02:20:00"),
            ("(TIMESTAMP '2020-01-03' - TIMESTAMP '2020-01-01') / 4", "12:00:00"),
            ("INTERVAL '1 day' * NULL", "NULL"),
        ] {
            assert_eq!(rows(&format!("SELECT CAST({expr} AS VARCHAR)")).await, [expected], "{expr}");
        }
        assert!(fails("SELECT INTERVAL '1 day' / 0").await.message().contains("divided by zero"));
        assert!(fails("SELECT INTERVAL '1 day' * 1e300").await.message().contains("out of range"));
    }
}
