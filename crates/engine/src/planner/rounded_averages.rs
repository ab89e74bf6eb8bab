//! `avg()` of decimals is rounded half away from zero.
//!
//! DataFusion truncates the digits that the result cannot hold: the average of 1, 1 and 0 is
//! 0.66666. It also scales the sum up in a type that may overflow ("Arithmetic Overflow in
//! AvgAccumulator", [#24369](https://github.com/apache/datafusion/issues/24369)). Four digits more
//! than 38 do not fit the result. DataFusion's accumulators compute the sum; this module computes
//! the quotient in 256 bits. The average of a DECIMAL of 35 digits or more is a DECIMAL of up to
//! 42. Seen in 55.2.0; see docs/internals/upstream.md.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Decimal128Type, Decimal256Type, DecimalType,
    FieldRef, UInt64Type, i256,
};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::functions_aggregate::average::Avg;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, Signature};

use super::checked_arithmetic::out_of_range;

/// The number of digits that an average has more than its values.
const MORE_DIGITS: u8 = 4;

/// Returns a sum divided by a count, with `digits` more digits, rounded half away from zero.
/// Returns `None` if it overflows 256 bits.
pub(crate) fn average(sum: i256, count: i256, digits: u32) -> Option<i256> {
    let scaled = sum.checked_mul(i256::from_i128(10).checked_pow(digits)?)?;
    let (quotient, rest) = (scaled.checked_div(count)?, scaled.checked_rem(count)?);
    let is_away = rest.wrapping_abs() >= count.wrapping_sub(rest.wrapping_abs());
    Some(match (is_away, scaled < i256::ZERO) {
        (false, _) => quotient,
        (true, false) => quotient.wrapping_add(i256::ONE),
        (true, true) => quotient.wrapping_sub(i256::ONE),
    })
}

#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RoundedAverage {
    inner: Avg,
}

impl AggregateUDFImpl for RoundedAverage {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [DataType::Decimal128(precision, scale)] => {
                let (precision, scale) = (precision + MORE_DIGITS, scale + MORE_DIGITS as i8);
                Ok(match precision > DECIMAL128_MAX_PRECISION {
                    true => DataType::Decimal256(precision, scale),
                    false => DataType::Decimal128(precision, scale),
                })
            }
            _ => self.inner.return_type(types),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let Some(quotient) = Quotient::of(&args)? else { return self.inner.accumulator(args) };
        let inner = self.inner.accumulator(as_it_returns(&args, &quotient))?;
        Ok(Box::new(Rounded { inner, quotient }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let Some(quotient) = Quotient::of(&args)? else { return self.inner.create_groups_accumulator(args) };
        let inner = self.inner.create_groups_accumulator(as_it_returns(&args, &quotient))?;
        Ok(Box::new(RoundedGroups { inner, quotient }))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.inner.reverse_expr()
    }
}

/// Returns the call's arguments for DataFusion's accumulators, with a result type of their own.
fn as_it_returns<'a>(args: &AccumulatorArgs<'a>, quotient: &Quotient) -> AccumulatorArgs<'a> {
    AccumulatorArgs {
        return_field: Arc::clone(&quotient.inner),
        schema: args.schema,
        expr_fields: args.expr_fields,
        ignore_nulls: args.ignore_nulls,
        order_bys: args.order_bys,
        name: args.name,
        is_distinct: args.is_distinct,
        exprs: args.exprs,
        is_reversed: args.is_reversed,
    }
}

/// The computation of an average.
#[derive(Debug)]
struct Quotient {
    /// The number of digits that it has more than the sum.
    digits: u32,
    to: DataType,
    /// The field of DataFusion's average of the same values.
    inner: FieldRef,
}

impl Quotient {
    /// Returns `None` unless the values and the average are decimals.
    fn of(args: &AccumulatorArgs) -> Result<Option<Self>> {
        let (Some(from), to) = (args.expr_fields.first(), args.return_field.data_type()) else { return Ok(None) };
        let (Some(from_scale), Some(scale)) = (scale_of(from.data_type()), scale_of(to)) else { return Ok(None) };
        let inner = Avg::new().return_type(std::slice::from_ref(from.data_type()))?;
        let inner = Arc::new(args.return_field.as_ref().clone().with_data_type(inner));
        let digits = u32::try_from(scale - from_scale).unwrap_or(0);
        Ok(Some(Self { digits, to: to.clone(), inner }))
    }

    fn take(&self, counts: &UInt64Array, sums: &ArrayRef) -> Result<ArrayRef> {
        let Some(scale) = scale_of(sums.data_type()) else { return internal_err!("a sum of {}", sums.data_type()) };
        let sums = cast(sums, &DataType::Decimal256(DECIMAL256_MAX_PRECISION, scale))?;
        let sums = sums.as_primitive::<Decimal256Type>();
        let rows = counts.iter().zip(sums.iter());
        let quotients = rows.map(|(count, sum)| match (count, sum) {
            (Some(count @ 1..), Some(sum)) => self.one(sum, count).map(Some),
            _ => Ok(None),
        });
        let quotients = quotients.collect::<Result<Vec<Option<i256>>>>()?;
        match &self.to {
            DataType::Decimal256(precision, scale) => {
                let array = PrimitiveArray::<Decimal256Type>::from_iter(quotients);
                Ok(Arc::new(array.with_precision_and_scale(*precision, *scale)?))
            }
            DataType::Decimal128(precision, scale) => {
                let narrow = quotients.into_iter().map(|quotient| quotient.and_then(i256::to_i128));
                let array = PrimitiveArray::<Decimal128Type>::from_iter(narrow);
                Ok(Arc::new(array.with_precision_and_scale(*precision, *scale)?))
            }
            other => internal_err!("an average as {other}"),
        }
    }

    fn one(&self, sum: i256, count: u64) -> Result<i256> {
        let fits = |quotient: &i256| match &self.to {
            DataType::Decimal128(precision, _) => {
                quotient.to_i128().is_some_and(|value| Decimal128Type::is_valid_decimal_precision(value, *precision))
            }
            DataType::Decimal256(precision, _) => Decimal256Type::is_valid_decimal_precision(*quotient, *precision),
            _ => false,
        };
        let quotient = average(sum, i256::from_i128(count.into()), self.digits).filter(fits);
        quotient.ok_or_else(|| out_of_range(&self.to, "an average"))
    }
}

fn scale_of(data_type: &DataType) -> Option<i8> {
    match data_type {
        DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) => Some(*scale),
        _ => None,
    }
}

/// The average of all rows, or of the rows of a sliding window.
#[derive(Debug)]
struct Rounded {
    inner: Box<dyn Accumulator>,
    quotient: Quotient,
}

impl Accumulator for Rounded {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(values)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let (count, sum) = match self.inner.state()?.as_slice() {
            [count, sum] => (count.to_array()?, sum.to_array()?),
            // The state of a DISTINCT average.
            [ScalarValue::List(values)] => {
                let (mut sum, values) = (i256::ZERO, values.values());
                let scale = scale_of(values.data_type()).unwrap_or(0);
                let values = cast(values, &DataType::Decimal256(DECIMAL256_MAX_PRECISION, scale))?;
                let values = values.as_primitive::<Decimal256Type>();
                values.iter().flatten().for_each(|value| sum = sum.wrapping_add(value));
                let count = UInt64Array::from(vec![(values.len() - values.null_count()) as u64]);
                let sum = PrimitiveArray::<Decimal256Type>::from_iter([Some(sum)]);
                let sum = sum.with_precision_and_scale(DECIMAL256_MAX_PRECISION, scale)?;
                (Arc::new(count) as ArrayRef, Arc::new(sum) as ArrayRef)
            }
            _ => return internal_err!("an average of another state"),
        };
        let Some(count) = count.as_primitive_opt::<UInt64Type>() else { return internal_err!("a count as no number") };
        ScalarValue::try_from_array(&self.quotient.take(count, &sum)?, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }
}

/// The averages of groups.
struct RoundedGroups {
    inner: Box<dyn GroupsAccumulator>,
    quotient: Quotient,
}

impl GroupsAccumulator for RoundedGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        filter: Option<&BooleanArray>,
        groups: usize,
    ) -> Result<()> {
        self.inner.update_batch(values, group_indices, filter, groups)
    }

    fn merge_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], groups: usize) -> Result<()> {
        self.inner.merge_batch(values, group_indices, groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let state = self.inner.state(emit_to)?;
        match state.as_slice() {
            [counts, sums] => match counts.as_primitive_opt::<UInt64Type>() {
                Some(counts) => self.quotient.take(counts, sums),
                None => internal_err!("counts as no numbers"),
            },
            _ => internal_err!("averages of another state"),
        }
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        self.inner.state(emit_to)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.inner.convert_to_state(values, filter)
    }

    fn size(&self) -> usize {
        self.inner.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn averages_are_rounded() {
        let table =
            "(VALUES (1, CAST(1 AS DECIMAL(5, 1))), (1, 1), (1, 0), (2, -1), (2, -1), (2, 0), (3, NULL)) AS t(g, x)";
        for (query, expected) in [
            ("SELECT avg(x) FROM t WHERE g = 1", "0.66667"),
            ("SELECT g, avg(x) FROM t GROUP BY g ORDER BY g", "1 0.66667,2 -0.66667,3 NULL"),
            ("SELECT avg(DISTINCT x) FROM t WHERE g = 1", "0.50000"),
            (
                "SELECT avg(x) OVER (ORDER BY x ROWS 2 PRECEDING) AS a FROM t WHERE g = 2 ORDER BY 1",
                "-1.00000,-1.00000,-0.66667",
            ),
            (
                "SELECT avg(CAST(99999999999999999999999999999999999999 AS DECIMAL(38, 0))) FROM t",
                "99999999999999999999999999999999999999.0000",
            ),
            ("SELECT avg(CAST(x AS DECIMAL(38, 0))) FROM t WHERE g = 1", "0.6667"),
            ("SELECT avg(x) FROM t WHERE g = 3", "NULL"),
        ] {
            let query = query.replace("FROM t", &format!("FROM {table}"));
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
    }

    #[test]
    fn halves_go_away_from_zero() {
        for (sum, count, expected) in [(1, 2, 1), (-1, 2, -1), (3, 2, 2), (1, 3, 0), (2, 3, 1), (-2, 3, -1), (0, 5, 0)]
        {
            assert_eq!(average(i256::from_i128(sum), i256::from_i128(count), 0), Some(i256::from_i128(expected)));
        }
    }
}
