//! Smaller batches for a statement whose rows are wide.
//!
//! Operators exchange batches of 8,192 rows. `repeat(x, 100000)` turns one into 800 MB, and a
//! constant of 60 KB is copied once for each row. The planner estimates the widths of computed
//! values from the expressions. A plan whose batches would exceed one sixty-fourth of
//! `memory_limit` runs with smaller ones. Functions check at run time the sizes that only the rows
//! tell: [`bounded_calls`](super::bounded_calls).
//!
//! A width is an estimate from literals, in bytes. A value of a table's column counts as
//! [`COLUMN_BYTES`].

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::execution::{SessionState, TaskContext};
use datafusion::logical_expr::expr::{Alias, ScalarFunction};
use datafusion::logical_expr::{LogicalPlan, Operator, Projection, Unnest, Values};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::Expr;
use futures::{TryStreamExt, stream};

use super::own_memory::owned;
use super::unseen;
use crate::postgres::functions::memory_limit_bytes;

/// The assumed size of a value of a table's column, in bytes.
const COLUMN_BYTES: u64 = 32;

/// The assumed size of a number, Boolean, date or timestamp, in bytes.
const NUMBER_BYTES: u64 = 16;

/// The values computed for one batch may take one sixty-fourth of `memory_limit`.
const MEMORY_PART: u64 = 64;

/// The limit in bytes on the values computed for one batch, independent of `memory_limit`.
const MOST_BYTES: u64 = 16 << 20;

/// Plans operators, with smaller batches if the plan's rows are wide.
///
/// # Errors
/// Fails if the planner fails or an operator cannot be replaced.
pub(crate) async fn with_bounded_batches(
    plan: LogicalPlan,
    state: &SessionState,
    planner: &DefaultPhysicalPlanner,
) -> Result<Arc<dyn ExecutionPlan>> {
    match of(&plan, state)? {
        None => planner.create_physical_plan(&plan, state).await,
        Some(rows) => cut(planner.create_physical_plan(&plan, &planning(state, rows)).await?, rows),
    }
}

/// Returns the rows of a batch if the plan needs fewer than the configured batch size.
///
/// # Errors
/// Fails if an expression cannot be traversed.
fn of(plan: &LogicalPlan, state: &SessionState) -> Result<Option<usize>> {
    let mut widest = 0;
    columns_of(plan, &mut widest)?;
    let part = memory_limit_bytes(state.config_options()).map_or(MOST_BYTES, |limit| limit / MEMORY_PART);
    let rows = part.min(MOST_BYTES) / widest.max(1);
    let rows = usize::try_from(rows).unwrap_or(usize::MAX).max(1);
    Ok((rows < state.config().batch_size()).then_some(rows))
}

/// Returns a copy of the session state with batches of `rows` rows.
fn planning(state: &SessionState, rows: usize) -> SessionState {
    let mut state = state.clone();
    *state.config_mut() = state.config().clone().with_batch_size(rows);
    state
}

/// Limits operators that were planned for batches of `rows` rows to such batches.
///
/// # Errors
/// Fails if an operator cannot be replaced.
fn cut(operators: Arc<dyn ExecutionPlan>, rows: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let cutting = move |input: &Arc<dyn ExecutionPlan>, partition, context: Arc<TaskContext>| {
        unseen::changed(input, partition, context, |batches| {
            batches.map_ok(move |batch| stream::iter(slices(&batch, rows))).try_flatten()
        })
    };
    let cut = operators.transform_up(|node| {
        Ok(match node.children().is_empty() {
            true => Transformed::yes(unseen::over("Cutting", node, cutting)),
            false => Transformed::no(node),
        })
    })?;
    let run = move |input: &Arc<dyn ExecutionPlan>, partition, context: Arc<TaskContext>| {
        input.execute(partition, with_batches(&context, rows))
    };
    Ok(unseen::over("SmallBatches", cut.data, run))
}

/// Splits a batch into copies of at most `rows` rows. Operators that keep a slice then account for
/// its own bytes only.
fn slices(batch: &RecordBatch, rows: usize) -> Vec<Result<RecordBatch>> {
    let count = batch.num_rows();
    // A batch without rows yields one slice.
    let starts = (0..count.max(1)).step_by(rows);
    starts.map(|start| owned(batch.slice(start, rows.min(count - start)))).collect()
}

/// Returns a copy of the task context with batches of `rows` rows.
fn with_batches(context: &TaskContext, rows: usize) -> Arc<TaskContext> {
    Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        context.session_config().clone().with_batch_size(rows),
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        context.runtime_env(),
    ))
}

/// Returns the width of each column of a plan's rows, in bytes. Raises `widest` to at least the
/// bytes that any one of its operators computes for a row.
fn columns_of(plan: &LogicalPlan, widest: &mut u64) -> Result<Vec<u64>> {
    let mut inputs = Inputs(Vec::new());
    for input in plan.inputs() {
        inputs.0.push((input, columns_of(input, widest)?));
    }
    let mut computed = 0_u64;
    plan.apply_expressions(|expr| {
        expr.apply(|part| {
            if !matches!(part, Expr::Column(_) | Expr::Alias(_)) {
                computed = computed.saturating_add(inputs.width_of(part));
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    // A single row cannot be split further, at any size.
    if !is_one_row(plan) {
        *widest = (*widest).max(computed);
    }
    let of_inputs = || inputs.0.iter().flat_map(|(_, columns)| columns).copied();
    let width_of = |expr| inputs.width_of(expr);
    let count = plan.schema().fields().len();
    let columns: Vec<u64> = match plan {
        LogicalPlan::Projection(Projection { expr, .. }) => expr.iter().map(width_of).collect(),
        LogicalPlan::Aggregate(aggregate) => {
            aggregate.group_expr.iter().chain(&aggregate.aggr_expr).map(width_of).collect()
        }
        LogicalPlan::Window(window) => of_inputs().chain(window.window_expr.iter().map(width_of)).collect(),
        LogicalPlan::Values(Values { values, .. }) => {
            let widest = |column| values.iter().filter_map(|row: &Vec<Expr>| row.get(column)).map(width_of).max();
            (0..count).map(|column| widest(column).unwrap_or(COLUMN_BYTES)).collect()
        }
        LogicalPlan::Unnest(Unnest { list_type_columns, dependency_indices, .. }) => {
            let of_inputs: Vec<u64> = of_inputs().collect();
            let is_list = |at: &usize| list_type_columns.iter().any(|(list, _)| list == at);
            let width = |at: &usize| of_inputs.get(*at).copied().filter(|_| !is_list(at)).unwrap_or(COLUMN_BYTES);
            dependency_indices.iter().map(width).collect()
        }
        LogicalPlan::Union(_) => {
            let widest = |column| inputs.0.iter().filter_map(|(_, columns)| columns.get::<usize>(column)).max();
            (0..count).map(|column| widest(column).copied().unwrap_or(COLUMN_BYTES)).collect()
        }
        _ => of_inputs().collect(),
    };
    // The columns of an operator of another shape count as those of a table.
    Ok(if columns.len() == count { columns } else { vec![COLUMN_BYTES; count] })
}

/// Returns whether the operator computes its expressions for at most one row.
fn is_one_row(plan: &LogicalPlan) -> bool {
    let one = |plan: &LogicalPlan| plan.max_rows().is_some_and(|rows| rows <= 1);
    match plan.inputs().as_slice() {
        [] => one(plan),
        inputs => inputs.iter().all(|input| one(input)),
    }
}

/// The inputs of an operator, which its expressions refer to, with the widths of their columns.
struct Inputs<'a>(Vec<(&'a LogicalPlan, Vec<u64>)>);

impl Inputs<'_> {
    fn column(&self, column: &Column) -> u64 {
        let width = |(plan, columns): &(&LogicalPlan, Vec<u64>)| {
            columns.get(plan.schema().maybe_index_of_column(column)?).copied()
        };
        self.0.iter().find_map(width).unwrap_or(COLUMN_BYTES)
    }

    fn width_of(&self, expr: &Expr) -> u64 {
        match expr {
            Expr::Column(column) => self.column(column),
            Expr::Literal(value, _) => literal(value),
            Expr::Alias(Alias { expr, .. }) => self.width_of(expr),
            Expr::Cast(cast) => self.width_of(&cast.expr).max(COLUMN_BYTES),
            Expr::TryCast(cast) => self.width_of(&cast.expr).max(COLUMN_BYTES),
            Expr::BinaryExpr(both) if both.op == Operator::StringConcat => {
                self.width_of(&both.left).saturating_add(self.width_of(&both.right))
            }
            Expr::Case(case) => {
                let results = case.when_then_expr.iter().map(|(_, then)| then).chain(&case.else_expr);
                results.map(|then| self.width_of(then)).max().unwrap_or(NUMBER_BYTES)
            }
            Expr::ScalarFunction(call) => self.call(call).max(NUMBER_BYTES),
            _ => NUMBER_BYTES,
        }
    }

    fn call(&self, call: &ScalarFunction) -> u64 {
        let widths: Vec<u64> = call.args.iter().map(|arg| self.width_of(arg)).collect();
        let number = |at: usize| call.args.get(at).and_then(count);
        let sum = || widths.iter().copied().fold(0, u64::saturating_add);
        match (call.name(), widths.as_slice()) {
            ("repeat" | "array_repeat" | "list_repeat", [value, ..]) => value.saturating_mul(number(1).unwrap_or(1)),
            ("lpad" | "rpad", [text, ..]) => number(1).unwrap_or(0).max(*text),
            // Each letter may become the replacement.
            ("replace" | "regexp_replace", [text, _, with, ..]) => text.saturating_mul((*with).max(1)),
            ("range" | "generate_series", [_]) => number(0).unwrap_or(1).saturating_mul(8),
            ("range" | "generate_series", [..]) => {
                let items = number(1).unwrap_or(1).saturating_sub(number(0).unwrap_or(0));
                (items / number(2).unwrap_or(1).max(1)).saturating_mul(8)
            }
            ("concat" | "concat_ws" | "make_array" | "array_concat" | "list_concat" | "struct", [..]) => sum(),
            ("array_to_string" | "list_to_string" | "array_join" | "list_join", [list, with, ..]) => {
                list.saturating_mul(1 + with / 8)
            }
            (_, widths) => widths.iter().copied().max().unwrap_or(NUMBER_BYTES),
        }
    }
}

/// Returns the bytes of a literal.
fn literal(value: &ScalarValue) -> u64 {
    match value {
        ScalarValue::Utf8(Some(text)) | ScalarValue::LargeUtf8(Some(text)) | ScalarValue::Utf8View(Some(text)) => {
            text.len() as u64
        }
        ScalarValue::Binary(Some(bytes)) | ScalarValue::LargeBinary(Some(bytes)) => bytes.len() as u64,
        value if value.data_type().is_nested() => value.size() as u64,
        _ => NUMBER_BYTES,
    }
}

/// Returns the number that a literal holds.
fn count(expr: &Expr) -> Option<u64> {
    match expr {
        Expr::Literal(value, _) => match value.cast_to(&arrow::datatypes::DataType::Int64).ok()? {
            ScalarValue::Int64(Some(number)) => Some(u64::try_from(number).unwrap_or(0)),
            _ => None,
        },
        Expr::Cast(cast) => count(&cast.expr),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::planner::tests::state;

    /// Returns the bytes that the widest operator of a query computes for a row.
    async fn widest(sql: &str) -> u64 {
        let plan = SessionContext::new_with_state(state()).sql(sql).await.unwrap().into_optimized_plan().unwrap();
        let mut widest = 0;
        columns_of(&plan, &mut widest).unwrap();
        widest
    }

    #[tokio::test]
    async fn widths_are_those_of_texts_that_are_made() {
        let numbers = "FROM (VALUES (1), (2)) AS t(x)";
        for (sql, least, most) in [
            (format!("SELECT x + 1, x * 2 {numbers}"), 0, 500),
            (format!("SELECT repeat(CAST(x AS VARCHAR), 100000) {numbers}"), 1_000_000, 10_000_000),
            (format!("SELECT repeat('x', 100000), x {numbers}"), 100_000, 500_000),
            (
                format!("SELECT z || z || z FROM (SELECT repeat(CAST(x AS VARCHAR), 1000) AS z {numbers})"),
                90_000,
                400_000,
            ),
            (format!("SELECT x {numbers} WHERE length(lpad(CAST(x AS VARCHAR), 70000)) > 3"), 70_000, 400_000),
            (format!("SELECT range(0, 1000000), x {numbers}"), 8_000_000, 20_000_000),
            // One list, and its items.
            ("SELECT length(CAST(n AS VARCHAR)) FROM (SELECT unnest(range(0, 1000000)) AS n)".into(), 0, 500),
            // A string beside each item.
            (
                format!("SELECT n || z FROM (SELECT unnest([x, 2]) AS n, repeat('z', 9000) AS z {numbers})"),
                9_000,
                80_000,
            ),
        ] {
            let found = widest(&sql).await;
            assert!((least..=most).contains(&found), "{sql}: {found}");
        }
    }
}
