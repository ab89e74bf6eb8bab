//! `median()` of dates and times.
//!
//! DataFusion's function takes only numbers. For a DATE it reports "Internal error: Function
//! 'median' failed to match any signature" (seen in 55.2.0). The expected answer is the moment in
//! the middle, as in DuckDB. For dates it is a TIMESTAMP, because it may lie between two days.
//! DataFusion's accumulators receive moments as numbers, and the result is cast back to a moment.
//! DataFusion handles all other types.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::functions_aggregate::median::Median;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Documentation, GroupsAccumulator, Signature, Volatility,
};

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct MomentMedian {
    inner: Median,
    signature: Signature,
}

impl Default for MomentMedian {
    fn default() -> Self {
        Self { inner: Median::default(), signature: Signature::user_defined(Volatility::Immutable) }
    }
}

fn is_moment(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(..) | DataType::Time32(_) | DataType::Time64(_))
}

/// Returns the number type in which a moment is counted, as the field of an argument.
fn number() -> FieldRef {
    Arc::new(Field::new("moment", DataType::Int64, true))
}

impl AggregateUDFImpl for MomentMedian {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        Ok(vec![match types {
            [DataType::Date32 | DataType::Date64] => DataType::Timestamp(TimeUnit::Microsecond, None),
            [only] if is_moment(only) || only.is_decimal() || only.is_floating() => only.clone(),
            [only] if only.is_integer() || only.is_null() => DataType::Float64,
            [DataType::Dictionary(_, value)] => return self.coerce_types(&[value.as_ref().clone()]),
            [only] => return plan_err!("median() takes numbers, dates and times, not {only}"),
            _ => return plan_err!("median() takes one argument"),
        }])
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let is_moment = args.input_fields.first().is_some_and(|field| is_moment(field.data_type()));
        let fields = [number()];
        self.inner
            .state_fields(StateFieldsArgs { input_fields: if is_moment { &fields } else { args.input_fields }, ..args })
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let data_type = args.return_field.data_type().clone();
        if !is_moment(&data_type) {
            return self.inner.accumulator(args);
        }
        let fields = [number()];
        let inner = self.inner.accumulator(AccumulatorArgs { return_field: number(), expr_fields: &fields, ..args })?;
        Ok(Box::new(Moments { inner, data_type }))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !is_moment(args.return_field.data_type()) && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

/// An accumulator of moments that counts them as numbers.
#[derive(Debug)]
struct Moments {
    inner: Box<dyn Accumulator>,
    data_type: DataType,
}

impl Moments {
    fn numbers(moments: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        let number = |moments: &ArrayRef| match moments.data_type() {
            DataType::Time32(_) => Ok(cast(&cast(moments, &DataType::Int32)?, &DataType::Int64)?),
            _ => Ok(cast(moments, &DataType::Int64)?),
        };
        moments.iter().map(number).collect()
    }
}

impl Accumulator for Moments {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(&Self::numbers(values)?)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.retract_batch(&Self::numbers(values)?)
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
        let number = self.inner.evaluate()?;
        match self.data_type {
            DataType::Time32(_) => number.cast_to(&DataType::Int32)?.cast_to(&self.data_type),
            _ => number.cast_to(&self.data_type),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn the_moment_in_the_middle() {
        let table = "(VALUES (DATE '2024-01-01', TIMESTAMP '2024-01-01 10:00:00', 1), \
                     (DATE '2024-01-04', TIMESTAMP '2024-01-02 10:00:00', 2), (NULL, NULL, 3)) AS t(d, m, i)";
        let query =
            format!("SELECT median(d), median(m), median(i), median(DISTINCT m), median(CAST(m AS TIME)) FROM {table}");
        assert_eq!(rows(&query).await, ["2024-01-02T12:00:00 2024-01-01T22:00:00 2.0 2024-01-01T22:00:00 10:00:00"]);
        assert!(fails(&format!("SELECT median(CAST(i AS VARCHAR)) FROM {table}")).await.message().contains("VARCHAR"));
    }
}
