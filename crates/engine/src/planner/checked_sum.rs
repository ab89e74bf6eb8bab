//! `sum()` of integers returns their exact sum or an error.
//!
//! DataFusion's sum wraps around. This sum over all rows keeps 128 bits, and must fit when a thread
//! emits its partial state. A sum per group must fit at all times: sums that overflow and return
//! into range do not justify twice the memory per group. The type stays BIGINT, where DuckDB has
//! HUGEINT and PostgreSQL NUMERIC. Columns made of sums keep their type and need no conversion.
//!
//! DataFusion adds decimals in 128 bits, modulo 2^128: the sum of two values of 38 nines is
//! -1.4e37. This sum over all rows keeps 256 bits. A sum per group keeps 128 bits that must not
//! overflow. Both must have at most 38 digits in the end ([#16406]). DataFusion sums doubles and
//! intervals. Seen in 55.2.0.
//!
//! [#16406]: https://github.com/apache/datafusion/issues/16406

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, BooleanArray};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, DecimalType, FieldRef, Int64Type, UInt64Type, i256,
};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature, StatisticsArgs,
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

use super::checked_arithmetic::out_of_range;

#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CheckedSum {
    inner: Sum,
}

impl AggregateUDFImpl for CheckedSum {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let data_type = args.return_field.data_type().clone();
        match (data_type, args.is_distinct) {
            (DataType::Int64, false) => Ok(Box::new(WideSum::<Int64Type>::new())),
            (DataType::UInt64, false) => Ok(Box::new(WideSum::<UInt64Type>::new())),
            (data_type @ DataType::Decimal128(..), false) => Ok(Box::new(DecimalSum::new(data_type))),
            (data_type @ (DataType::Int64 | DataType::UInt64 | DataType::Decimal128(..)), true) => {
                Ok(Box::new(DistinctSum { inner: self.inner.accumulator(args)?, data_type }))
            }
            _ => self.inner.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        match args.return_field.data_type() {
            DataType::Int64 => Ok(groups::<Int64Type>(i64::overflowing_add)),
            DataType::UInt64 => Ok(groups::<UInt64Type>(u64::overflowing_add)),
            data_type @ DataType::Decimal128(..) => Ok(groups_of::<Decimal128Type>(data_type, i128::overflowing_add)),
            _ => self.inner.create_groups_accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match (args.return_field.data_type(), args.is_distinct) {
            (DataType::Int64, false) => Ok(Box::new(WideSum::<Int64Type>::new())),
            (DataType::UInt64, false) => Ok(Box::new(WideSum::<UInt64Type>::new())),
            (data_type @ DataType::Decimal128(..), false) => Ok(Box::new(DecimalSum::new(data_type.clone()))),
            _ => self.inner.create_sliding_accumulator(args),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.inner.reverse_expr()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.set_monotonicity(data_type)
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.inner.value_from_stats(args)
    }
}

/// A 64-bit integer type that is summed in 128 bits.
trait Number: ArrowPrimitiveType + Send + Sync {
    /// Returns the exact sum of a batch.
    fn sum(values: &[Self::Native]) -> i128;
    fn narrow(sum: i128) -> Option<Self::Native>;
    fn wide(value: Self::Native) -> i128;
}

/// The number of values whose upper and lower halves can be summed separately without overflow. The
/// separate sums vectorize.
const EXACT_ROWS: usize = 1 << 31;

impl Number for Int64Type {
    fn sum(values: &[i64]) -> i128 {
        let of_part = |values: &[i64]| {
            let (mut upper, mut lower) = (0i64, 0u64);
            for value in values {
                upper += value >> 32;
                lower += *value as u64 & u64::from(u32::MAX);
            }
            (i128::from(upper) << 32) + i128::from(lower)
        };
        values.chunks(EXACT_ROWS).map(of_part).sum()
    }

    fn narrow(sum: i128) -> Option<i64> {
        sum.try_into().ok()
    }

    fn wide(value: i64) -> i128 {
        value.into()
    }
}

impl Number for UInt64Type {
    fn sum(values: &[u64]) -> i128 {
        let of_part = |values: &[u64]| {
            let (mut upper, mut lower) = (0u64, 0u64);
            for value in values {
                upper += value >> 32;
                lower += value & u64::from(u32::MAX);
            }
            (i128::from(upper) << 32) + i128::from(lower)
        };
        values.chunks(EXACT_ROWS).map(of_part).sum()
    }

    fn narrow(sum: i128) -> Option<u64> {
        sum.try_into().ok()
    }

    fn wide(value: u64) -> i128 {
        value.into()
    }
}

/// The sum of all rows, or of a sliding window's rows.
#[derive(Debug)]
struct WideSum<T: Number> {
    sum: i128,
    /// The number of rows that are not NULL.
    rows: i64,
    number: std::marker::PhantomData<T>,
}

impl<T: Number> WideSum<T> {
    fn new() -> Self {
        Self { sum: 0, rows: 0, number: std::marker::PhantomData }
    }

    fn of(values: &ArrayRef) -> (i128, i64) {
        let values = values.as_primitive::<T>();
        let rows = (values.len() - values.null_count()) as i64;
        let sum = match values.nulls() {
            Some(nulls) if nulls.null_count() > 0 => {
                nulls.valid_indices().map(|row| T::wide(values.values()[row])).sum()
            }
            _ => T::sum(values.values()),
        };
        (sum, rows)
    }
}

impl<T: Number + Debug> Accumulator for WideSum<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (sum, rows) = Self::of(&values[0]);
        self.sum += sum;
        self.rows += rows;
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (sum, rows) = Self::of(&values[0]);
        self.sum -= sum;
        self.rows -= rows;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum = match self.rows {
            0 => None,
            _ => Some(
                T::narrow(self.sum).ok_or_else(|| out_of_range(&T::DATA_TYPE, &format!("a sum of {}", self.sum)))?,
            ),
        };
        ScalarValue::new_primitive::<T>(sum, &T::DATA_TYPE)
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The sum of all decimals, or of a sliding window's decimals.
#[derive(Debug)]
struct DecimalSum {
    sum: i256,
    /// The number of rows that are not NULL.
    rows: i64,
    data_type: DataType,
}

impl DecimalSum {
    fn new(data_type: DataType) -> Self {
        Self { sum: i256::ZERO, rows: 0, data_type }
    }

    fn of(values: &[ArrayRef]) -> Result<(i256, i64)> {
        let Some(values) = values.first().and_then(|values| values.as_primitive_opt::<Decimal128Type>()) else {
            return internal_err!("a sum of other values than decimals");
        };
        // At most 2^63 rows: 191 bits.
        let sum = values.iter().flatten().fold(i256::ZERO, |sum, value| sum.wrapping_add(i256::from_i128(value)));
        Ok((sum, (values.len() - values.null_count()) as i64))
    }

    /// Returns the sum in 128 bits, or an out-of-range error.
    fn narrow(&self) -> Result<i128> {
        self.sum.to_i128().ok_or_else(|| out_of_range(&self.data_type, "a sum of more than 128 bits"))
    }

    fn value(&self, sum: Option<i128>) -> Result<ScalarValue> {
        ScalarValue::new_primitive::<Decimal128Type>(sum, &self.data_type)
    }
}

impl Accumulator for DecimalSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (sum, rows) = Self::of(values)?;
        self.sum = self.sum.wrapping_add(sum);
        self.rows += rows;
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (sum, rows) = Self::of(values)?;
        self.sum = self.sum.wrapping_sub(sum);
        self.rows -= rows;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let sum = if self.rows == 0 { None } else { Some(self.narrow()?) };
        Ok(vec![self.value(sum)?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.rows == 0 {
            return self.value(None);
        }
        let (sum, DataType::Decimal128(precision, scale)) = (self.narrow()?, &self.data_type) else {
            return internal_err!("a sum of decimals as {}", self.data_type);
        };
        if !Decimal128Type::is_valid_decimal_precision(sum, *precision) {
            let sum = Decimal128Type::format_decimal(sum, DECIMAL128_MAX_PRECISION + 1, *scale);
            return Err(out_of_range(&self.data_type, &format!("a sum of {sum}")));
        }
        self.value(Some(sum))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// A sum of distinct values. DataFusion collects the values, but would add them unchecked.
#[derive(Debug)]
struct DistinctSum {
    inner: Box<dyn Accumulator>,
    data_type: DataType,
}

impl Accumulator for DistinctSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let state = self.inner.state()?;
        let [ScalarValue::List(values)] = state.as_slice() else { return self.inner.evaluate() };
        let mut sum: Box<dyn Accumulator> = match &self.data_type {
            DataType::UInt64 => Box::new(WideSum::<UInt64Type>::new()),
            DataType::Decimal128(..) => Box::new(DecimalSum::new(self.data_type.clone())),
            _ => Box::new(WideSum::<Int64Type>::new()),
        };
        sum.update_batch(&[Arc::clone(values.values())])?;
        sum.evaluate()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }
}

/// A sum per group: 64 bits for integers, 128 for decimals.
struct GroupSums<G> {
    inner: G,
    is_out_of_range: Arc<AtomicBool>,
    data_type: DataType,
}

/// An addition modulo 2^n that also returns true if it overflowed.
type Add<T> = fn(<T as ArrowPrimitiveType>::Native, <T as ArrowPrimitiveType>::Native) -> AddOutcome<T>;
type AddOutcome<T> = (<T as ArrowPrimitiveType>::Native, bool);

fn groups<T: Number>(add: Add<T>) -> Box<dyn GroupsAccumulator>
where
    T::Native: ArrowNativeTypeOp,
{
    groups_of::<T>(&T::DATA_TYPE, add)
}

fn groups_of<T: ArrowPrimitiveType + Send + Sync>(data_type: &DataType, add: Add<T>) -> Box<dyn GroupsAccumulator>
where
    T::Native: ArrowNativeTypeOp,
{
    let is_out_of_range = Arc::new(AtomicBool::new(false));
    let found = Arc::clone(&is_out_of_range);
    let inner = PrimitiveGroupsAccumulator::<T, _>::new(data_type, move |sum, value| {
        let (next, is_wrong) = add(*sum, value);
        *sum = next;
        if is_wrong {
            found.store(true, Relaxed);
        }
    });
    Box::new(GroupSums { inner, is_out_of_range, data_type: data_type.clone() })
}

impl<G> GroupSums<G> {
    fn wide_sum(&self, sum: i128, scale: i8) -> DataFusionError {
        let sum = Decimal128Type::format_decimal(sum, DECIMAL128_MAX_PRECISION + 1, scale);
        out_of_range(&self.data_type, &format!("a sum of {sum}"))
    }

    fn check(&self) -> Result<()> {
        if self.is_out_of_range.load(Relaxed) {
            return Err(out_of_range(&self.data_type, "the sum of a group"));
        }
        Ok(())
    }
}

impl<G: GroupsAccumulator> GroupsAccumulator for GroupSums<G> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        filter: Option<&BooleanArray>,
        groups: usize,
    ) -> Result<()> {
        self.inner.update_batch(values, group_indices, filter, groups)?;
        self.check()
    }

    fn merge_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], groups: usize) -> Result<()> {
        self.inner.merge_batch(values, group_indices, groups)?;
        self.check()
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let sums = self.inner.evaluate(emit_to)?;
        if let Some(sums) = sums.as_primitive_opt::<Decimal128Type>() {
            let is_wide = |sum: &i128| !Decimal128Type::is_valid_decimal_precision(*sum, sums.precision());
            if let Some(sum) = sums.iter().flatten().find(is_wide) {
                return Err(self.wide_sum(sum, sums.scale()));
            }
        }
        Ok(sums)
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
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn sums_fit_or_fail() {
        let table = "(VALUES (1, 9223372036854775807), (1, 1), (2, NULL), (2, 3)) AS t(g, x)";
        for query in [
            "SELECT sum(x) FROM t",
            "SELECT g, sum(x) FROM t GROUP BY g",
            "SELECT sum(DISTINCT x) FROM t",
            "SELECT sum(x) OVER () FROM t",
            "SELECT sum(x) FROM t HAVING sum(x) > 0",
        ] {
            let error = fails(&query.replace("FROM t", &format!("FROM {table}"))).await;
            assert_eq!(error.kind(), ErrorKind::Data, "{query}: {error}");
            assert!(error.message().starts_with("BIGINT out of range in"), "{query}: {error}");
        }
        for (query, expected) in [
            ("SELECT sum(x - 5) FROM t", "9223372036854775796"),
            ("SELECT g, sum(x) FROM t WHERE x < 9 GROUP BY g ORDER BY g", "1 1,2 3"),
            ("SELECT sum(x) FROM t WHERE g = 2 AND x IS NULL", "NULL"),
            ("SELECT sum(DISTINCT x), count(*) FROM t WHERE x < 9", "4 2"),
            ("SELECT sum(x) OVER (ORDER BY g, x ROWS 1 PRECEDING) AS s FROM t WHERE g = 2 ORDER BY 1", "3,3"),
            ("SELECT sum(arrow_cast(x, 'UInt64')), arrow_typeof(sum(x)) FROM t WHERE x < 9", "4 Int64"),
        ] {
            let query = query.replace("FROM t", &format!("FROM {table}"));
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
    }

    #[tokio::test]
    async fn sums_of_decimals_fit_or_fail() {
        let table = "(VALUES (1, 60000000000000000000000000000000000000), (1, 60000000000000000000000000000000000000), (2, NULL), (2, 3)) AS t(g, x)";
        for query in [
            "SELECT sum(x) FROM t",
            "SELECT g, sum(x) FROM t GROUP BY g",
            "SELECT sum(DISTINCT x + g) FROM (SELECT x, row_number() OVER () AS g FROM t) AS t",
            "SELECT sum(x) OVER () FROM t",
            "SELECT sum(x) OVER (ORDER BY g ROWS 1 PRECEDING) FROM t",
            "SELECT sum(-x) FROM t",
        ] {
            let error = fails(&query.replace("FROM t", &format!("FROM {table}"))).await;
            assert_eq!(error.kind(), ErrorKind::Data, "{query}: {error}");
            assert!(error.message().starts_with("DECIMAL(38,0) out of range in"), "{query}: {error}");
        }
        for (query, expected) in [
            (
                "SELECT sum(CASE x WHEN 3 THEN -60000000000000000000000000000000000000 ELSE x END) FROM t",
                "60000000000000000000000000000000000000",
            ),
            ("SELECT g, sum(x) FROM t WHERE x < 9 GROUP BY g", "2 3"),
            ("SELECT sum(x) FROM t WHERE x IS NULL", "NULL"),
        ] {
            let query = query.replace("FROM t", &format!("FROM {table}"));
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
    }

    #[test]
    fn batches_are_summed_exactly() {
        for values in [vec![i64::MAX; 1000], vec![i64::MIN; 1000], vec![-1, 1, i64::MIN, i64::MAX], vec![]] {
            assert_eq!(Int64Type::sum(&values), values.iter().copied().map(i128::from).sum());
        }
        let values = vec![u64::MAX; 1000];
        assert_eq!(UInt64Type::sum(&values), values.iter().copied().map(i128::from).sum());
    }
}
