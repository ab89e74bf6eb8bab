//! Aggregates of frames whose start moves, without subtracting the rows that have left.
//!
//! DataFusion updates one accumulator: it adds rows that enter a frame and subtracts those that
//! leave it. One large value spoils all later sums. `sum(x)` of 1, 2, 1e20, 3, 4 over two rows at a
//! time ends with 0 instead of 7. Infinity and NaN never leave, and a variance becomes negative.
//! `bit_xor` of a frame of NULLs is 0 instead of NULL. `bool_and` and `string_agg` are refused,
//! because their accumulators cannot subtract (seen in 55.2.0).
//!
//! [`SlidingAggregates`] replaces each aggregate over a window by a function that differs only in
//! the accumulator of moving frames. Counts, extremes, and sums of integers and decimals keep
//! DataFusion's accumulators, which subtract exactly. Others are computed from the rows of the
//! frame, in one of three ways:
//!
//! - `sum` and `avg` of doubles by [two stacks](TwoStacks) of compensated sums;
//! - aggregates whose state is a few numbers by two stacks of states, merged as between threads;
//! - aggregates whose state grows with the rows, `string_agg` and `median`, [again](Recomputed) for
//!   each frame.
//!
//! Two stacks form a queue: rows enter one and leave the other. Each entry of the second holds the
//! aggregate of itself and all later rows. A row moves between the stacks once, so it costs a
//! constant number of merges. Earlier rows are merged first.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::concat;
use arrow::datatypes::{DataType, FieldRef, Float64Type, Schema};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue, not_impl_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams, WindowFunctionParams};
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, LogicalPlan, Operator, ReversedUDAF,
    SetMonotonicity, Signature, StatisticsArgs, WindowFunctionDefinition,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::prelude::Expr;

use super::expressions;

#[derive(Debug)]
pub(super) struct SlidingAggregates;

impl AnalyzerRule for SlidingAggregates {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        expressions::rewritten_if_any(plan, |expr| aggregate(expr).is_some(), |expr, _| Ok(rewrite(expr)))
    }

    fn name(&self) -> &str {
        "sliding_aggregates"
    }
}

/// Returns the function of an aggregate over a window, unless it slides already.
fn aggregate(expr: &Expr) -> Option<&Arc<AggregateUDF>> {
    match expr {
        Expr::WindowFunction(call) => match &call.fun {
            WindowFunctionDefinition::AggregateUDF(function) if !function.inner().is::<Sliding>() => Some(function),
            _ => None,
        },
        _ => None,
    }
}

fn rewrite(expr: Expr) -> Transformed<Expr> {
    let Some(function) = aggregate(&expr).map(sliding) else { return Transformed::no(expr) };
    match expr {
        Expr::WindowFunction(mut call) => {
            call.fun = WindowFunctionDefinition::AggregateUDF(function);
            Transformed::yes(Expr::WindowFunction(call))
        }
        other => Transformed::no(other),
    }
}

fn sliding(inner: &Arc<AggregateUDF>) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::from(Sliding { inner: Arc::clone(inner) }))
}

/// The method that computes the aggregate of a moving frame.
enum Method {
    /// The function's own accumulator, which subtracts.
    Subtract,
    SumOfDoubles,
    AverageOfDoubles,
    MergeStates,
    Recompute,
}

impl Method {
    fn of(function: &AggregateUDF, args: &AccumulatorArgs) -> Result<Self> {
        let data_type = args.return_field.data_type();
        let doubles = args.expr_fields.iter().all(|field| *field.data_type() == DataType::Float64);
        let exact = data_type.is_integer() || data_type.is_decimal();
        let state = StateFieldsArgs {
            name: args.name,
            input_fields: args.expr_fields,
            return_field: Arc::clone(&args.return_field),
            ordering_fields: &[],
            is_distinct: args.is_distinct,
        };
        Ok(match (function.name(), args.is_distinct) {
            ("count", _) | ("min" | "max", _) => Self::Subtract,
            ("sum" | "avg", false) if exact => Self::Subtract,
            ("sum", false) if doubles && *data_type == DataType::Float64 => Self::SumOfDoubles,
            ("avg", false) if doubles && *data_type == DataType::Float64 => Self::AverageOfDoubles,
            _ if function.state_fields(state)?.iter().all(|field| is_number(field.data_type())) => Self::MergeStates,
            _ => Self::Recompute,
        })
    }
}

/// Returns whether a state of this type has a constant size.
fn is_number(data_type: &DataType) -> bool {
    data_type.is_primitive() || *data_type == DataType::Boolean
}

/// An aggregate function with another accumulator of moving frames.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Sliding {
    inner: Arc<AggregateUDF>,
}

#[warn(clippy::missing_trait_methods)] // An omitted method would not be the inner function's.
impl AggregateUDFImpl for Sliding {
    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let method = Method::of(&self.inner, &args)?;
        let call = || Call::new(Arc::clone(&self.inner), &args);
        Ok(match method {
            Method::Subtract => return self.inner.create_sliding_accumulator(args),
            Method::SumOfDoubles => Box::new(Doubles { queue: TwoStacks::default(), is_average: false }),
            Method::AverageOfDoubles => Box::new(Doubles { queue: TwoStacks::default(), is_average: true }),
            Method::MergeStates => Box::new(MergedStates { call: call(), queue: TwoStacks::default() }),
            Method::Recompute => Box::new(Recomputed { call: call(), rows: None }),
        })
    }

    /// A window that is evaluated backwards delivers rows in reverse order.
    fn reverse_expr(&self) -> ReversedUDAF {
        match (self.inner.order_sensitivity(), self.inner.reverse_udf()) {
            (AggregateOrderSensitivity::Insensitive, ReversedUDAF::Reversed(other)) => {
                ReversedUDAF::Reversed(sliding(&other))
            }
            (AggregateOrderSensitivity::Insensitive, other) => other,
            _ => ReversedUDAF::NotSupported,
        }
    }

    fn with_beneficial_ordering(self: Arc<Self>, is_beneficial: bool) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        let ordered = self.inner.as_ref().clone().with_beneficial_ordering(is_beneficial)?;
        Ok(ordered.map(|inner| Arc::new(Self { inner: Arc::new(inner) }) as Arc<dyn AggregateUDFImpl>))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn schema_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.schema_name(params)
    }

    fn human_display(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.human_display(params)
    }

    fn window_function_schema_name(&self, params: &WindowFunctionParams) -> Result<String> {
        self.inner.window_function_schema_name(params)
    }

    fn display_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.display_name(params)
    }

    fn window_function_display_name(&self, params: &WindowFunctionParams) -> Result<String> {
        self.inner.window_function_display_name(params)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field(&self, fields: &[FieldRef]) -> Result<FieldRef> {
        self.inner.return_field(fields)
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.inner.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.inner.simplify()
    }

    fn simplify_expr_op_literal(
        &self,
        function: &AggregateFunction,
        arg: &Expr,
        op: Operator,
        literal: &Expr,
        arg_is_left: bool,
    ) -> Result<Option<Expr>> {
        self.inner.inner().simplify_expr_op_literal(function, arg, op, literal, arg_is_left)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn is_descending(&self) -> Option<bool> {
        self.inner.is_descending()
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.inner.value_from_stats(args)
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(data_type)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.inner.supports_null_handling_clause()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(data_type)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

/// The call of an aggregate, which creates any number of accumulators.
#[derive(Debug)]
struct Call {
    function: Arc<AggregateUDF>,
    return_field: FieldRef,
    schema: Schema,
    ignore_nulls: bool,
    order_bys: Vec<PhysicalSortExpr>,
    is_reversed: bool,
    name: String,
    is_distinct: bool,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    expr_fields: Vec<FieldRef>,
}

impl Call {
    fn new(function: Arc<AggregateUDF>, args: &AccumulatorArgs) -> Self {
        Self {
            function,
            return_field: Arc::clone(&args.return_field),
            schema: args.schema.clone(),
            ignore_nulls: args.ignore_nulls,
            order_bys: args.order_bys.to_vec(),
            is_reversed: args.is_reversed,
            name: args.name.to_string(),
            is_distinct: args.is_distinct,
            exprs: args.exprs.to_vec(),
            expr_fields: args.expr_fields.to_vec(),
        }
    }

    fn accumulator(&self) -> Result<Box<dyn Accumulator>> {
        self.function.accumulator(AccumulatorArgs {
            return_field: Arc::clone(&self.return_field),
            schema: &self.schema,
            ignore_nulls: self.ignore_nulls,
            order_bys: &self.order_bys,
            is_reversed: self.is_reversed,
            name: &self.name,
            is_distinct: self.is_distinct,
            exprs: &self.exprs,
            expr_fields: &self.expr_fields,
        })
    }

    fn value_of(&self, rows: &[ArrayRef]) -> Result<ScalarValue> {
        let mut accumulator = self.accumulator()?;
        if !rows.is_empty() {
            accumulator.update_batch(rows)?;
        }
        accumulator.evaluate()
    }

    fn state_of(&self, rows: &[ArrayRef]) -> Result<State> {
        let mut accumulator = self.accumulator()?;
        accumulator.update_batch(rows)?;
        accumulator.state()?.iter().map(ScalarValue::to_array).collect()
    }

    fn merged(&self, states: &[&State]) -> Result<Box<dyn Accumulator>> {
        let mut accumulator = self.accumulator()?;
        for state in states {
            accumulator.merge_batch(state)?;
        }
        Ok(accumulator)
    }
}

/// A queue of parts, with the aggregate of all of them.
#[derive(Debug)]
struct TwoStacks<P> {
    /// The parts that have entered. The last one is at the end.
    entered: Vec<P>,
    /// The aggregate of all parts in `entered`.
    of_entered: Option<P>,
    /// For each part, the aggregate of it and all later parts of this stack. The next part to leave
    /// is at the end.
    leaving: Vec<P>,
}

impl<P> Default for TwoStacks<P> {
    fn default() -> Self {
        Self { entered: Vec::new(), of_entered: None, leaving: Vec::new() }
    }
}

impl<P: Clone> TwoStacks<P> {
    fn push(&mut self, part: P, merge: impl Fn(&P, &P) -> Result<P>) -> Result<()> {
        self.of_entered = Some(match &self.of_entered {
            Some(before) => merge(before, &part)?,
            None => part.clone(),
        });
        self.entered.push(part);
        Ok(())
    }

    fn pop(&mut self, merge: impl Fn(&P, &P) -> Result<P>) -> Result<()> {
        if self.leaving.is_empty() {
            self.of_entered = None;
            while let Some(part) = self.entered.pop() {
                let part = match self.leaving.last() {
                    Some(behind) => merge(&part, behind)?,
                    None => part,
                };
                self.leaving.push(part);
            }
        }
        self.leaving.pop();
        Ok(())
    }

    /// Returns the aggregates of the earlier and of the later parts.
    fn halves(&self) -> (Option<&P>, Option<&P>) {
        (self.leaving.last(), self.of_entered.as_ref())
    }

    fn len(&self) -> usize {
        self.entered.len() + self.leaving.len()
    }
}

/// A sum of doubles, its rounding error, and the number of values.
#[derive(Clone, Copy, Debug)]
struct Sum {
    sum: f64,
    rest: f64,
    values: u64,
}

impl Sum {
    const EMPTY: Self = Self { sum: 0.0, rest: 0.0, values: 0 };

    fn merge(&self, other: &Self) -> Self {
        let sum = self.sum + other.sum;
        let values = self.values + other.values;
        if !sum.is_finite() {
            return Self { sum, rest: 0.0, values };
        }
        // The rounding error of the addition: Knuth's two-sum.
        let of_other = sum - self.sum;
        let lost = (self.sum - (sum - of_other)) + (other.sum - of_other);
        Self { sum, rest: self.rest + other.rest + lost, values }
    }

    fn total(&self) -> f64 {
        if self.sum.is_finite() { self.sum + self.rest } else { self.sum }
    }
}

/// `sum` and `avg` of doubles.
#[derive(Debug)]
struct Doubles {
    queue: TwoStacks<Sum>,
    is_average: bool,
}

impl Accumulator for Doubles {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<Float64Type>() {
            let part = value.map_or(Sum::EMPTY, |sum| Sum { sum, rest: 0.0, values: 1 });
            self.queue.push(part, |a, b| Ok(a.merge(b)))?;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        (0..values[0].len()).try_for_each(|_| self.queue.pop(|a, b| Ok(a.merge(b))))
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let (earlier, later) = self.queue.halves();
        let all = earlier.unwrap_or(&Sum::EMPTY).merge(later.unwrap_or(&Sum::EMPTY));
        let value = if self.is_average { all.total() / all.values as f64 } else { all.total() };
        Ok(ScalarValue::Float64((all.values > 0).then_some(value)))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        not_impl_err!("the state of a moving frame")
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        not_impl_err!("the state of a moving frame")
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.queue.len() * size_of::<Sum>()
    }
}

/// The state of an accumulator, each column with one row.
type State = Vec<ArrayRef>;

/// An aggregate whose states are merged.
#[derive(Debug)]
struct MergedStates {
    call: Call,
    queue: TwoStacks<State>,
}

impl MergedStates {
    fn merge(call: &Call, earlier: &State, later: &State) -> Result<State> {
        call.merged(&[earlier, later])?.state()?.iter().map(ScalarValue::to_array).collect()
    }
}

impl Accumulator for MergedStates {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let call = &self.call;
        for row in 0..values[0].len() {
            let row: Vec<ArrayRef> = values.iter().map(|column| column.slice(row, 1)).collect();
            self.queue.push(call.state_of(&row)?, |a, b| Self::merge(call, a, b))?;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let call = &self.call;
        (0..values[0].len()).try_for_each(|_| self.queue.pop(|a, b| Self::merge(call, a, b)))
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let (earlier, later) = self.queue.halves();
        let halves: Vec<&State> = earlier.into_iter().chain(later).collect();
        self.call.merged(&halves)?.evaluate()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        not_impl_err!("the state of a moving frame")
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        not_impl_err!("the state of a moving frame")
    }

    fn size(&self) -> usize {
        const NUMBER: usize = 128;
        size_of_val(self) + self.queue.len() * self.call.expr_fields.len().max(1) * NUMBER
    }
}

/// An aggregate that is recomputed for each frame.
#[derive(Debug)]
struct Recomputed {
    call: Call,
    /// The arguments in the rows of the frame.
    rows: Option<Vec<ArrayRef>>,
}

impl Accumulator for Recomputed {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.rows = Some(match self.rows.take() {
            None => values.to_vec(),
            Some(rows) => {
                let columns = rows.iter().zip(values).map(|(rows, new)| Ok(concat(&[rows.as_ref(), new.as_ref()])?));
                columns.collect::<Result<_>>()?
            }
        });
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let left = values[0].len();
        for column in self.rows.iter_mut().flatten() {
            let left = left.min(column.len());
            *column = column.slice(left, column.len() - left);
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.call.value_of(self.rows.as_deref().unwrap_or_default())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        not_impl_err!("the state of a moving frame")
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        not_impl_err!("the state of a moving frame")
    }

    fn size(&self) -> usize {
        let bytes = self.rows.iter().flatten().map(|column| column.get_array_memory_size());
        size_of_val(self) + bytes.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crate::planner::tests::{rows, run};

    const DOUBLES: &str = "(VALUES (1, 1e0), (2, 2e0), (3, 1e20), (4, 3e0), (5, CAST('inf' AS DOUBLE)), (6, 4e0), (7, 5e0), \
                           (8, CAST('NaN' AS DOUBLE)), (9, 0.1e0), (10, NULL), (11, 0.2e0)) AS t(id, x)";

    #[tokio::test]
    async fn what_has_left_leaves_nothing() {
        let frame = "OVER (ORDER BY id ROWS 1 PRECEDING)";
        let query = format!("SELECT sum(x) {frame}, avg(x) {frame}, var_pop(x) {frame} FROM {DOUBLES} ORDER BY id");
        let answers = rows(&query).await;
        let after: Vec<&str> = answers.iter().map(|row| row.split(' ').next().unwrap_or_default()).collect();
        assert_eq!(after, ["1.0", "3.0", "1e20", "1e20", "inf", "inf", "9.0", "NaN", "NaN", "0.1", "0.2"]);
        assert_eq!(answers[6], "9.0 4.5 0.25");
        assert_eq!(answers[10], "0.2 0.2 0.0");
    }

    #[tokio::test]
    async fn every_aggregate_moves() {
        let table = "(VALUES (1, 5, TRUE), (2, NULL, NULL), (3, 6, FALSE), (4, 1, TRUE)) AS t(id, v, b)";
        for (call, expected) in [
            ("bit_xor(v)", "5,5,6,7"),
            ("bit_and(v)", "5,5,6,0"),
            ("bit_or(v)", "5,5,6,7"),
            ("bool_and(b)", "true,true,false,false"),
            ("bool_or(b)", "true,true,false,true"),
            ("string_agg(CAST(v AS VARCHAR), '+')", "5,5,6,6+1"),
            ("array_agg(v)", "[5],[5, NULL],[NULL, 6],[6, 1]"),
            ("count(DISTINCT v)", "1,1,1,2"),
            ("sum(DISTINCT v)", "5,5,6,7"),
            ("median(v)", "5.0,5.0,6.0,3.5"),
            ("stddev_samp(v)", "NULL,NULL,NULL,3.5355339059327378"),
            ("max(v) FILTER (WHERE b)", "5,5,NULL,1"),
            ("bit_xor(v) FILTER (WHERE b)", "5,5,NULL,1"),
        ] {
            let query = format!("SELECT {call} OVER (ORDER BY id ROWS 1 PRECEDING) FROM {table} ORDER BY id");
            assert_eq!(rows(&query).await.join(","), expected, "{call}");
        }
    }

    #[tokio::test]
    async fn a_wide_frame_costs_what_a_narrow_one_does() {
        for call in ["sum(x)", "avg(x)", "stddev_pop(x)", "bit_xor(id)"] {
            let mut seconds = Vec::new();
            for width in [2, 4000] {
                let query = format!(
                    "SELECT count(s) FROM (SELECT {call} OVER (ORDER BY id ROWS {width} PRECEDING) AS s FROM \
                     (SELECT value AS id, CAST(value AS DOUBLE) AS x FROM generate_series(1, 8000)) AS t) AS t"
                );
                let begin = Instant::now();
                run(&query).await;
                seconds.push(begin.elapsed().as_secs_f64());
            }
            assert!(seconds[1] < 10.0 * seconds[0] + 0.5, "{call}: {seconds:?}");
        }
    }
}
