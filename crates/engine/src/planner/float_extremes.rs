//! `min()` and `max()` of floats per group return a value of the group, and NaN is the largest.
//!
//! DataFusion starts each group with the largest or least finite value, which is then the result of
//! a group of infinities. It compares with `<`, which is false for NaN, so the result depends on
//! the order of rows. Without groups, and in windows, it is correct.
//! [`nested_order`](super::nested_order) compares lists, structs and intervals. DataFusion handles
//! all other types.

use std::cmp::Ordering;
use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::ArrowPrimitiveType;
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
    Signature, StatisticsArgs,
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

use super::nested_order::{self, SlidingExtreme, is_compared_here};

/// Returns the replacements of DataFusion's `min` and `max`.
pub(super) fn functions() -> [Arc<AggregateUDF>; 2] {
    [Arc::new(Extreme::<Min>::default().into()), Arc::new(Extreme::<Max>::default().into())]
}

#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct Extreme<F> {
    inner: F,
}

/// DataFusion's function and its order of values.
trait Better: AggregateUDFImpl + Default + PartialEq + Eq + std::hash::Hash {
    fn is_better<T: PartialOrd + Copy>(value: T, than: T) -> bool;
    /// The initial value: no value is worse.
    const WORST: f64;
    /// The ordering of a better value to another.
    const BETTER: Ordering;
}

impl Better for Min {
    fn is_better<T: PartialOrd + Copy>(value: T, than: T) -> bool {
        value < than || (is_nan(than) && !is_nan(value))
    }

    const WORST: f64 = f64::NAN;
    const BETTER: Ordering = Ordering::Less;
}

impl Better for Max {
    fn is_better<T: PartialOrd + Copy>(value: T, than: T) -> bool {
        value > than || (is_nan(value) && !is_nan(than))
    }

    const WORST: f64 = f64::NEG_INFINITY;
    const BETTER: Ordering = Ordering::Greater;
}

#[allow(clippy::eq_op)]
fn is_nan<T: PartialOrd + Copy>(value: T) -> bool {
    value != value
}

fn groups<F: Better, T: ArrowPrimitiveType + Send>(worst: T::Native) -> Box<dyn GroupsAccumulator>
where
    T::Native: PartialOrd,
{
    let groups = PrimitiveGroupsAccumulator::<T, _>::new(&T::DATA_TYPE, |best: &mut T::Native, value: T::Native| {
        if F::is_better(value, *best) {
            *best = value;
        }
    });
    Box::new(groups.with_starting_value(worst))
}

impl<F: Better + 'static> AggregateUDFImpl for Extreme<F> {
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
        match args.return_field.data_type() {
            of_own if is_compared_here(of_own) => Ok(Box::new(nested_order::Extreme::new(of_own, F::BETTER))),
            _ => self.inner.accumulator(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !is_compared_here(args.return_field.data_type()) && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        match args.return_field.data_type() {
            DataType::Float32 => Ok(groups::<F, Float32Type>(F::WORST as f32)),
            DataType::Float64 => Ok(groups::<F, Float64Type>(F::WORST)),
            _ => self.inner.create_groups_accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match args.return_field.data_type() {
            of_own if is_compared_here(of_own) => Ok(Box::new(SlidingExtreme::new(of_own, F::BETTER)?)),
            _ => self.inner.create_sliding_accumulator(args),
        }
    }

    fn is_descending(&self) -> Option<bool> {
        self.inner.is_descending()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.inner.reverse_expr()
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.inner.value_from_stats(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.set_monotonicity(data_type)
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn groups_have_values_of_theirs() {
        let (inf, nan) = ("CAST('inf' AS DOUBLE)", "CAST('NaN' AS DOUBLE)");
        let all = [
            format!("(1, {inf}), (2, -{inf}), (3, {nan}), (4, {nan}), (4, 1e0), (5, 1e0), (5, {nan}), (5, {inf})"),
            "(6, NULL), (7, NULL), (7, 2e0), (8, -1e0), (8, 3e0)".to_string(),
        ]
        .join(", ");
        for data_type in ["DOUBLE", "REAL"] {
            let query = format!(
                "SELECT g, min(CAST(f AS {data_type})), max(CAST(f AS {data_type})) FROM (VALUES {all}) AS t(g, f) \
                 GROUP BY g ORDER BY g"
            );
            let expected = [
                "1 inf inf",
                "2 -inf -inf",
                "3 NaN NaN",
                "4 1.0 NaN",
                "5 1.0 NaN",
                "6 NULL NULL",
                "7 2.0 2.0",
                "8 -1.0 3.0",
            ];
            assert_eq!(rows(&query).await, expected, "{data_type}");
        }
    }
}
