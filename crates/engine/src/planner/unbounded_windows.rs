//! `lead`, `lag`, `first_value`, `last_value` and `nth_value` with IGNORE NULLS, over the whole
//! partition.
//!
//! DataFusion evaluates them as rows arrive. `lead(v, 2) IGNORE NULLS` over 30, 40, NULL, NULL, 70
//! is NULL beside 30 instead of 70 (apache/datafusion #25471). Before a LIMIT it sees no row after
//! the last requested one; nor does `lag(v, -1)`. `last_value(v) IGNORE NULLS` reads its whole
//! frame for each row: 80,000 rows take 2.6 s, four times as long as 40,000 (seen in 55.2.0).
//!
//! [`UnboundedWindows`] replaces them by functions that require a whole partition. `lead` and `lag`
//! are DataFusion's own over all rows, in one pass. The others look up the partition's values that
//! are not NULL, with a binary search for each row.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::NullTreatment;
use datafusion::logical_expr::function::{ExpressionArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{
    Documentation, LimitEffect, LogicalPlan, PartitionEvaluator, Signature, WindowFunctionDefinition, WindowUDF,
    WindowUDFImpl,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions;

#[derive(Debug)]
pub(super) struct UnboundedWindows;

impl AnalyzerRule for UnboundedWindows {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        expressions::rewritten_if_any(plan, |expr| unbounded(expr).is_some(), |expr, _| rewrite(expr))
    }

    fn name(&self) -> &str {
        "unbounded_windows"
    }
}

fn rewrite(expr: Expr) -> Result<Transformed<Expr>> {
    let Some(function) = unbounded(&expr) else { return Ok(Transformed::no(expr)) };
    match expr {
        Expr::WindowFunction(mut call) => {
            call.fun = WindowFunctionDefinition::WindowUDF(Arc::new(WindowUDF::from(function)));
            Ok(Transformed::yes(Expr::WindowFunction(call)))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// Returns the function for a call that DataFusion must not evaluate as rows arrive.
fn unbounded(expr: &Expr) -> Option<Unbounded> {
    let Expr::WindowFunction(call) = expr else { return None };
    let WindowFunctionDefinition::WindowUDF(function) = &call.fun else { return None };
    if function.inner().is::<Unbounded>() {
        return None;
    }
    let ignores_nulls = call.params.null_treatment == Some(NullTreatment::IgnoreNulls);
    let place = match function.name() {
        "first_value" => Place::First,
        "last_value" => Place::Last,
        "nth_value" => Place::Nth,
        "lead" => Place::Shifted,
        "lag" if ignores_nulls || call.params.args.len() > 1 => Place::Shifted,
        _ => return None,
    };
    let looks_back = function.name() == "lag";
    (ignores_nulls || (looks_back && !is_positive(call.params.args.get(1)?)))
        .then(|| Unbounded { inner: Arc::clone(function), place })
}

fn is_positive(offset: &Expr) -> bool {
    matches!(offset, Expr::Literal(ScalarValue::Int64(Some(offset)), _) if *offset >= 0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    First,
    Last,
    Nth,
    /// Rows before or after, independent of the frame.
    Shifted,
}

/// A window function of DataFusion's that receives a whole partition.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Unbounded {
    inner: Arc<WindowUDF>,
    place: Place,
}

impl WindowUDFImpl for Unbounded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn expressions(&self, args: ExpressionArgs) -> Vec<Arc<dyn PhysicalExpr>> {
        self.inner.expressions(args)
    }

    fn partition_evaluator(&self, args: PartitionEvaluatorArgs) -> Result<Box<dyn PartitionEvaluator>> {
        let offset = args.input_exprs().get(1).cloned();
        // DataFusion refuses an invalid offset.
        let inner = self.inner.partition_evaluator_factory(args)?;
        let place = match self.place {
            Place::Shifted => return Ok(Box::new(Shifted { inner })),
            Place::First => 1,
            Place::Last => -1,
            Place::Nth => match offset.as_ref().and_then(integer) {
                Some(place) => place,
                None => return internal_err!("nth_value has no literal place"),
            },
        };
        Ok(Box::new(NthValid { place, valid: None }))
    }

    fn field(&self, args: WindowUDFFieldArgs) -> Result<FieldRef> {
        self.inner.field(args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn limit_effect(&self, _: &[Arc<dyn PhysicalExpr>]) -> LimitEffect {
        LimitEffect::Unknown
    }
}

fn integer(expr: &Arc<dyn PhysicalExpr>) -> Option<i64> {
    let literal = expr.downcast_ref::<Literal>()?;
    match literal.value().cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(value)) => value,
        _ => None,
    }
}

/// DataFusion's `lead` or `lag`, evaluated for all rows of a partition.
#[derive(Debug)]
struct Shifted {
    inner: Box<dyn PartitionEvaluator>,
}

impl PartitionEvaluator for Shifted {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        self.inner.evaluate_all(values, rows)
    }
}

/// The value at a position among those of a frame that are not NULL, counted from 1, or from the
/// end by negative numbers.
#[derive(Debug)]
struct NthValid {
    place: i64,
    /// The rows of the partition whose values are not NULL; `None` until the first row.
    valid: Option<Vec<usize>>,
}

impl PartitionEvaluator for NthValid {
    fn evaluate(&mut self, values: &[ArrayRef], frame: &Range<usize>) -> Result<ScalarValue> {
        let Some(values) = values.first() else { return internal_err!("a value is missing") };
        let valid = self.valid.get_or_insert_with(|| match values.logical_nulls() {
            Some(nulls) => nulls.valid_indices().collect(),
            None => (0..values.len()).collect(),
        });
        let first = valid.partition_point(|row| *row < frame.start);
        let end = valid.partition_point(|row| *row < frame.end).max(first);
        let distance = usize::try_from(self.place.unsigned_abs()).unwrap_or(usize::MAX);
        let found = match self.place {
            0 => None,
            1.. => first.checked_add(distance - 1).filter(|at| *at < end),
            _ => end.checked_sub(distance).filter(|at| *at >= first),
        };
        match found.and_then(|at| valid.get(at)) {
            Some(row) => ScalarValue::try_from_array(values, *row),
            None => ScalarValue::try_from(values.data_type()),
        }
    }

    fn uses_window_frame(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crate::planner::tests::rows;

    const TABLE: &str =
        "(VALUES (1, 10), (2, 20), (3, 30), (4, 40), (5, NULL), (6, NULL), (7, 70), (8, 80), (9, NULL)) AS t(id, v)";

    #[tokio::test]
    async fn nulls_are_passed_over() {
        let query = format!(
            "SELECT id, lead(v, 2) IGNORE NULLS OVER w, lag(v, 2) IGNORE NULLS OVER w, last_value(v) IGNORE NULLS OVER w, \
             nth_value(v, 2) IGNORE NULLS OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 3 FOLLOWING), lag(v, -1) OVER w \
             FROM {TABLE} WINDOW w AS (ORDER BY id) ORDER BY id"
        );
        let expected = [
            "1 30 NULL 10 20 20",
            "2 40 NULL 20 20 30",
            "3 70 10 30 30 40",
            "4 80 20 40 40 NULL",
            "5 80 30 40 70 NULL",
            "6 80 30 40 80 70",
            "7 NULL 30 70 80 80",
            "8 NULL 40 80 80 NULL",
            "9 NULL 70 80 NULL NULL",
        ];
        assert_eq!(rows(&query).await, expected);
        for call in ["lead(v) IGNORE NULLS", "lag(v, -1) IGNORE NULLS"] {
            let query = format!(
                "SELECT {call} OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS a FROM {TABLE} ORDER BY id LIMIT 4"
            );
            assert_eq!(rows(&query).await, ["20", "30", "40", "70"], "{call}");
        }
    }

    #[tokio::test]
    async fn the_time_is_that_of_the_rows() {
        for call in ["last_value(v)", "first_value(v)", "nth_value(v, 2)", "lead(v, 3)", "lag(v, 3)"] {
            let mut seconds = Vec::new();
            for rows in [20_000, 80_000] {
                let query = format!(
                    "SELECT count(l) FROM (SELECT {call} IGNORE NULLS OVER (ORDER BY id) AS l FROM \
                     (SELECT value AS id, CASE WHEN value < 2 THEN value END AS v FROM generate_series(1, {rows})) AS t) AS t"
                );
                let begin = Instant::now();
                super::super::tests::run(&query).await;
                seconds.push(begin.elapsed().as_secs_f64());
            }
            assert!(seconds[1] < 10.0 * seconds[0] + 0.5, "{call}: {seconds:?}");
        }
    }
}
