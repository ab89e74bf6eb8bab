//! `sum()` and `avg()` of intervals as in PostgreSQL: months, days and nanoseconds are summed
//! separately. The remainder of a division of months goes to days, and of days to hours.
//!
//! DataFusion 55.2 sums durations, but not intervals. [`with_intervals`] extends an existing
//! function.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Field, FieldRef, IntervalMonthDayNano, IntervalMonthDayNanoType};
use datafusion::common::Result;
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification, StateFieldsArgs};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
    Signature, StatisticsArgs, Volatility,
};
use datafusion::scalar::ScalarValue;

use super::super::interval_arithmetic::scaled;
use super::INTERVAL;
use crate::{Error, ErrorKind, Rule};

/// Extends `sum` or `avg` to intervals.
pub(in super::super) fn with_intervals(inner: Arc<AggregateUDF>) -> Arc<AggregateUDF> {
    let divides = match inner.name() {
        "sum" => false,
        "avg" => true,
        _ => return inner,
    };
    Arc::new(AggregateUDF::from(WithIntervals {
        inner,
        divides,
        signature: Signature::user_defined(Volatility::Immutable),
    }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct WithIntervals {
    inner: Arc<AggregateUDF>,
    divides: bool,
    signature: Signature,
}

fn is_interval(fields: &[FieldRef]) -> bool {
    matches!(fields, [field] if matches!(field.data_type(), DataType::Interval(_)))
}

impl AggregateUDFImpl for WithIntervals {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        if let [DataType::Interval(_)] = types {
            return Ok(vec![INTERVAL]);
        }
        let fields: Vec<FieldRef> = types.iter().map(|t| Arc::new(Field::new("", t.clone(), true))).collect();
        let fields = fields_with_udf(&fields, self.inner.as_ref())?;
        Ok(fields.iter().map(|field| field.data_type().clone()).collect())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [DataType::Interval(_)] => Ok(INTERVAL),
            types => self.inner.return_type(types),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let sum = Intervals { divides: self.divides, ..Intervals::default() };
        match (is_interval(args.expr_fields), args.is_distinct) {
            (true, false) => Ok(Box::new(sum)),
            (true, true) => Ok(Box::new(DistinctIntervals { sum, seen: HashMap::new() })),
            (false, _) => self.inner.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        if !is_interval(args.input_fields) {
            return self.inner.state_fields(args);
        }
        if args.is_distinct {
            let item = Arc::new(Field::new_list_field(INTERVAL, true));
            return Ok(vec![Arc::new(Field::new(format!("{}[seen]", args.name), DataType::List(item), true))]);
        }
        let field = |part: &str| Arc::new(Field::new(format!("{}[{part}]", args.name), STATE, true));
        Ok(["months", "days", "nanos", "rows"].map(field).to_vec())
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !is_interval(args.expr_fields) && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match is_interval(args.expr_fields) {
            true => self.accumulator(args),
            false => self.inner.create_sliding_accumulator(args),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.inner.reverse_udf()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.inner.simplify()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        match data_type {
            DataType::Interval(_) => SetMonotonicity::NotMonotonic,
            data_type => self.inner.inner().set_monotonicity(data_type),
        }
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.inner.value_from_stats(args)
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        match data_type {
            DataType::Interval(_) => ScalarValue::try_from(data_type),
            data_type => self.inner.default_value(data_type),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

const STATE: DataType = DataType::Decimal128(38, 0);

/// A sum of intervals.
#[derive(Debug, Default)]
struct Intervals {
    divides: bool,
    /// The sums of months, days and nanoseconds, and the number of intervals.
    parts: [i128; 4],
}

impl Intervals {
    fn add(&mut self, values: &[ArrayRef], sign: i128) -> Result<()> {
        let [values] = values else { return Ok(()) };
        let values = cast(values, &INTERVAL)?;
        for IntervalMonthDayNano { months, days, nanoseconds } in
            values.as_primitive::<IntervalMonthDayNanoType>().iter().flatten()
        {
            for (sum, part) in self.parts.iter_mut().zip([months.into(), days.into(), nanoseconds.into(), 1]) {
                *sum += sign * part;
            }
        }
        Ok(())
    }
}

impl Accumulator for Intervals {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values, 1)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values, -1)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for (sum, state) in self.parts.iter_mut().zip(states) {
            *sum += state.as_primitive::<Decimal128Type>().iter().flatten().sum::<i128>();
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(self.parts.iter().map(|part| ScalarValue::Decimal128(Some(*part), 38, 0)).collect())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let [months, days, nanos, rows] = self.parts;
        if rows == 0 {
            return Ok(ScalarValue::IntervalMonthDayNano(None));
        }
        let out = |_| Error::new(ErrorKind::Data, "a sum of intervals is out of range").breaking(Rule::Range);
        let months = i32::try_from(months).map_err(out)?;
        let days = i32::try_from(days).map_err(out)?;
        let nanos = i64::try_from(nanos).map_err(out)?;
        let sum = IntervalMonthDayNano::new(months, days, nanos);
        let value = if self.divides { scaled(sum, rows as f64, true)? } else { sum };
        Ok(ScalarValue::IntervalMonthDayNano(Some(value)))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// A sum of distinct intervals. The first of several intervals of equal length counts.
#[derive(Debug)]
struct DistinctIntervals {
    sum: Intervals,
    /// The intervals by their lengths.
    seen: HashMap<i128, IntervalMonthDayNano>,
}

impl DistinctIntervals {
    fn see(&mut self, values: &ArrayRef) -> Result<()> {
        let values = cast(values, &INTERVAL)?;
        for interval in values.as_primitive::<IntervalMonthDayNanoType>().iter().flatten() {
            self.seen.entry(length_nanos(interval)).or_insert(interval);
        }
        Ok(())
    }

    fn values(&self) -> Vec<ScalarValue> {
        self.seen.values().map(|interval| ScalarValue::IntervalMonthDayNano(Some(*interval))).collect()
    }
}

fn length_nanos(interval: IntervalMonthDayNano) -> i128 {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    let days = i128::from(months) * 30 + i128::from(days);
    days * i128::from(super::DAY_MICROS) * 1000 + i128::from(nanoseconds)
}

impl Accumulator for DistinctIntervals {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        values.iter().try_for_each(|values| self.see(values))
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        states.iter().try_for_each(|states| self.see(states.as_list::<i32>().values()))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(&self.values(), &INTERVAL))])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut sum = Intervals { divides: self.sum.divides, ..Intervals::default() };
        if !self.seen.is_empty() {
            sum.add(&[ScalarValue::iter_to_array(self.values())?], 1)?;
        }
        sum.evaluate()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.seen.capacity() * size_of::<(i128, IntervalMonthDayNano)>()
    }
}
