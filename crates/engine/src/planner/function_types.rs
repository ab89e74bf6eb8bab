//! Tests the functions of a session over every type that they take. A result has the planned type,
//! a call of constants returns the same as a call of columns, and no call panics.
//!
//! The test plans a call of columns once for its types and evaluates it for rows of ordinary
//! values, extremes and NULL. For each row, it plans the call again with constants in place of the
//! columns, so that the optimizer folds it. Strings are then cast to strings: a string literal is
//! untyped and takes the type of the expression beside it. The test evaluates an aggregate over all
//! rows as one group, and over a window of all rows.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err};
use datafusion::datasource::MemTable;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::collect;
use datafusion::prelude::{Expr, SessionContext};
use futures::FutureExt;

use super::tests::state;
use super::{Hints, parse_statement, rewrite_statement};
use crate::query_planner::operators;

/// Functions whose results differ between calls, or that depend on the place of the call.
const DIFFER: [&str; 19] = [
    "arrow_metadata",
    "arrow_field",
    "clock_timestamp",
    "current_date",
    "current_time",
    "file_row_index",
    "gen_random_uuid",
    "input_file_name",
    "now",
    "random",
    "statement_timestamp",
    "today",
    "transaction_timestamp",
    "uuid",
    "version",
    "with_metadata",
    "current_timestamp",
    "grouping",
    "rand",
];

/// Functions with an argument that must be constant. A single row could have another.
const OF_CONSTANTS: [&str; 3] = ["array_sort", "list_sort", "to_time"];

/// Functions that evaluate arguments lazily. A constant that is not of its type is an error
/// nevertheless, as in PostgreSQL: planning parses it.
const LAZY: [&str; 4] = ["coalesce(", "ifnull(", "nvl(", "nvl2("];

/// Functions whose result size is an argument. Extremes would exhaust the memory.
const AS_LARGE_AS_ASKED: [&str; 11] = [
    "array_repeat",
    "array_resize",
    "generate_series",
    "gen_series",
    "list_repeat",
    "list_resize",
    "lpad",
    "range",
    "repeat",
    "rpad",
    "space",
];

/// (column, type, values in SQL notation). The table adds a NULL to the values.
const TYPES: [(&str, &str, &[&str]); 22] = [
    ("bool_v", "BOOLEAN", &["true", "false"]),
    ("tiny_v", "TINYINT", &["1", "-128", "127", "0"]),
    ("small_v", "SMALLINT", &["2", "-32768", "32767"]),
    ("int_v", "INTEGER", &["3", "-2147483648", "2147483647", "0"]),
    ("big_v", "BIGINT", &["4", "-9223372036854775808", "9223372036854775807", "0", "-7"]),
    ("ubig_v", "BIGINT UNSIGNED", &["5", "18446744073709551615", "0"]),
    ("real_v", "REAL", &["1.5", "-2.25", "0", "'NaN'", "'-inf'", "3e38"]),
    ("double_v", "DOUBLE", &["1.5", "-2.25", "'-0'", "'NaN'", "'inf'", "1e308", "42.5"]),
    ("dec_v", "DECIMAL(5, 2)", &["1.25", "-999.99", "999.99", "0"]),
    (
        "whole",
        "DECIMAL(38, 0)",
        &["7", "99999999999999999999999999999999999999", "-99999999999999999999999999999999999999"],
    ),
    ("part_v", "DECIMAL(38, 38)", &["0.5", "-0.99999999999999999999999999999999999999", "0"]),
    ("digits_v", "DECIMAL(18, 4)", &["1.2345", "-99999999999999.9999", "0.5"]),
    ("text_v", "VARCHAR", &["'abc'", "''", "'12'", "'2020-02-29'", "'a,b'", "'ä%_'"]),
    ("bytes_v", "BYTEA", &["'abc'", "''"]),
    ("day_v", "DATE", &["'2020-02-29'", "'1969-12-31'", "'0001-01-01'", "'9999-12-31'"]),
    ("moment_v", "TIMESTAMP", &["'2020-02-29 12:34:56.789'", "'1969-12-31 23:59:59.999999'", "'0001-01-01'"]),
    ("nano_v", "TIMESTAMP(9)", &["'2020-02-29 12:34:56.789'", "'1969-12-31 23:59:59.999999'"]),
    ("zoned_v", "TIMESTAMPTZ", &["'2020-02-29 12:34:56+02'", "'1969-12-31 23:59:59.999999'"]),
    ("clock_v", "TIME", &["'12:34:56.789'", "'00:00:00'"]),
    ("span_v", "INTERVAL", &["'1 month 2 days 03:04:05'", "'-1 day'"]),
    ("ints_v", "BIGINT[]", &["[1, 2, NULL]", "[]", "[9223372036854775807]"]),
    ("texts_v", "VARCHAR[]", &["['a', NULL, 'b']", "[]"]),
];

/// Returns a table with a column of each type, and the row number in `nr`.
async fn table(state: &SessionState) -> RecordBatch {
    let rows = TYPES.iter().map(|(_, _, values)| values.len()).max().unwrap() + 1;
    let mut union = Vec::new();
    for row in 0..rows {
        let mut select = format!("SELECT {row} AS nr");
        for (name, sql, values) in &TYPES {
            // A type with fewer values repeats them. The last row is NULL.
            let value = if row + 1 == rows { "NULL" } else { values[row % values.len()] };
            let _ = write!(select, ", CAST({value} AS {sql}) AS {name}");
        }
        union.push(select);
    }
    let mut batches = Vec::new();
    for select in union {
        batches.extend(run(state, plan(state, &select, None).await.unwrap()).await.unwrap());
    }
    let fields =
        batches[0].schema().fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect::<Vec<_>>();
    let schema = Arc::new(Schema::new(fields));
    let batches =
        batches.iter().map(|batch| RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec()).unwrap());
    arrow::compute::concat_batches(&schema, &batches.collect::<Vec<_>>()).unwrap()
}

/// Returns a statement's plan, with the values of `row`, if any, in place of its columns.
async fn plan(state: &SessionState, sql: &str, row: Option<&BTreeMap<String, ScalarValue>>) -> Result<LogicalPlan> {
    let mut statement = parse_statement(sql)?;
    rewrite_statement(&mut statement, &Hints::default())?;
    let mut plan = state.statement_to_plan(statement).await?;
    if let Some(row) = row {
        let literal = |expr: Expr| match &expr {
            Expr::Column(column) => match row.get(&column.name) {
                Some(value) => Ok(Transformed::yes(Expr::Literal(value.clone(), None))),
                None => Ok(Transformed::no(expr)),
            },
            _ => Ok(Transformed::no(expr)),
        };
        plan = match plan {
            LogicalPlan::Projection(projection) => {
                let exprs = projection.expr.into_iter().map(|expr| Ok(expr.transform_up(literal)?.data));
                LogicalPlanBuilder::empty(true).project(exprs.collect::<Result<Vec<_>>>()?)?.build()?
            }
            other => other,
        };
    }
    state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {})
}

async fn run(state: &SessionState, plan: LogicalPlan) -> Result<Vec<RecordBatch>> {
    let operators = operators(state, &plan).await?;
    collect(operators, SessionContext::new_with_state(state.clone()).task_ctx()).await
}

/// The result of a call for one row, or its error.
type Answer = std::result::Result<ScalarValue, String>;

struct Suite {
    state: SessionState,
    rows: RecordBatch,
    calls: usize,
    differences: Vec<String>,
}

impl Suite {
    async fn new() -> Self {
        let mut state = state();
        state.mark_start_execution();
        let rows = table(&state).await;
        let provider = Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows.clone()]]).unwrap());
        let context = SessionContext::new_with_state(state);
        context.register_table("t", provider).unwrap();
        Self { state: context.state(), rows, calls: 0, differences: Vec::new() }
    }

    /// Returns a suite of the same rows for another thread.
    fn another(&self) -> Self {
        Self { state: self.state.clone(), rows: self.rows.clone(), calls: 0, differences: Vec::new() }
    }

    fn differs(&mut self, call: &str, what: impl std::fmt::Display) {
        self.differences.push(format!("{call}: {what}"));
    }

    /// Returns the expression that an optimized projection computes, and its planned type.
    fn computed(&self, plan: &LogicalPlan) -> Result<(Expr, DataType)> {
        let planned = plan.schema().field(0).data_type().clone();
        let simplified = self.state.optimize(plan)?;
        let LogicalPlan::Projection(projection) = &simplified else { return internal_err!("no projection") };
        let Some(mut expr) = projection.expr.first().cloned() else { return internal_err!("no expression") };
        // The optimizer moves common subexpressions to a projection below.
        let mut input = projection.input.as_ref();
        while let LogicalPlan::Projection(below) = input {
            let substituted = expr.transform_up(|expr| {
                let place = match &expr {
                    Expr::Column(column) => below.schema.fields().iter().position(|field| *field.name() == column.name),
                    _ => None,
                };
                Ok(match place.and_then(|place| below.expr.get(place)) {
                    Some(expr) => Transformed::yes(expr.clone().unalias()),
                    None => Transformed::no(expr),
                })
            })?;
            expr = substituted.data;
            input = below.input.as_ref();
        }
        Ok((expr, planned))
    }

    /// Evaluates an expression for each row. Returns a column of results or the error.
    fn evaluate(&self, expr: &Expr, rows: &RecordBatch) -> std::result::Result<ArrayRef, String> {
        let evaluated = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let schema = DFSchema::try_from_qualified_schema("t", rows.schema().as_ref())?;
            let physical = self.state.create_physical_expr(expr.clone(), &schema)?;
            physical.evaluate(rows)?.into_array(rows.num_rows())
        }));
        match evaluated {
            Ok(Ok(array)) => Ok(array),
            Ok(Err(e)) if e.to_string().contains("Internal error") => Err(format!("PANIC {e}")),
            Ok(Err(e)) => Err(e.to_string()),
            Err(_) => Err("PANIC".into()),
        }
    }

    fn row(&self, row: usize, columns: &[&str]) -> BTreeMap<String, ScalarValue> {
        let value = |name: &&str| ScalarValue::try_from_array(self.rows.column_by_name(name).unwrap(), row).unwrap();
        columns.iter().map(|name| (name.to_string(), value(name))).collect()
    }

    /// Compares a call of columns with calls of literals.
    async fn call(&mut self, call: &str, columns: &[&str]) {
        if AssertUnwindSafe(self.call_of_columns(call, columns)).catch_unwind().await.is_err() {
            self.differs(call, "PANIC");
        }
    }

    async fn call_of_columns(&mut self, call: &str, columns: &[&str]) {
        let sql = format!("SELECT {call} FROM t");
        let Ok(analyzed) = plan(&self.state, &sql, None).await else { return };
        let (expr, planned) = match self.computed(&analyzed) {
            Ok(computed) => computed,
            Err(e) => {
                let text = e.to_string();
                if text.contains("Internal error") {
                    self.differs(call, text);
                }
                return;
            }
        };
        self.calls += 1;
        let answers: Vec<Answer> = match self.evaluate(&expr, &self.rows) {
            Ok(array) => {
                if *array.data_type() != planned {
                    self.differs(call, format!("planned as {planned}, computed as {}", array.data_type()));
                }
                (0..array.len())
                    .map(|row| ScalarValue::try_from_array(&array, row).map_err(|e| e.to_string()))
                    .collect()
            }
            Err(_) => {
                let one = |row: usize| {
                    // A slice of lists would keep the items of all rows, which Arrow casts.
                    let of_row = UInt64Array::from(vec![row as u64]);
                    let alone = take_record_batch(&self.rows, &of_row).map_err(|e| e.to_string())?;
                    let array = self.evaluate(&expr, &alone)?;
                    ScalarValue::try_from_array(&array, 0).map_err(|e| e.to_string())
                };
                (0..self.rows.num_rows()).map(one).collect()
            }
        };
        for (row, answer) in answers.into_iter().enumerate() {
            if let Err(e) = &answer
                && e.starts_with("PANIC")
            {
                self.differs(call, format!("row {row}: {e}"));
                return;
            }
            // For several arguments, a few rows suffice: values, extremes, and NULL, which is last.
            if columns.len() > 1 && (3..self.rows.num_rows() - 1).contains(&row) {
                continue;
            }
            let folded = self.folded(&sql, row, columns).await;
            let is_unread = folded.as_ref().is_err_and(|e| !e.starts_with("PANIC"));
            if is_unread && LAZY.iter().any(|lazy| call.starts_with(lazy)) {
                continue;
            }
            if let Some(difference) = difference(&answer, &folded) {
                let values: Vec<String> = self.row(row, columns).values().map(|value| format!("{value:?}")).collect();
                self.differs(call, format!("of {}: {difference}", values.join(", ")));
                return;
            }
        }
    }

    async fn folded(&self, sql: &str, row: usize, columns: &[&str]) -> Answer {
        let analyzed = plan(&self.state, sql, Some(&self.row(row, columns))).await.map_err(|e| e.to_string())?;
        let (expr, planned) = self.computed(&analyzed).map_err(|e| e.to_string())?;
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let empty: SchemaRef = Arc::new(Schema::empty());
        let one = RecordBatch::try_new_with_options(empty, vec![], &options).map_err(|e| e.to_string())?;
        let array = self.evaluate(&expr, &one)?;
        if *array.data_type() != planned {
            return Err(format!("PANIC: planned as {planned}, computed as {}", array.data_type()));
        }
        ScalarValue::try_from_array(&array, 0).map_err(|e| e.to_string())
    }

    /// Compares an aggregate over all rows, over one group, and as a window.
    async fn aggregate(&mut self, call: &str) {
        if AssertUnwindSafe(self.call_of_aggregate(call)).catch_unwind().await.is_err() {
            self.differs(call, "PANIC");
        }
    }

    async fn call_of_aggregate(&mut self, call: &str) {
        let mut answers: Vec<(String, Answer)> = Vec::new();
        for sql in [
            format!("SELECT {call} FROM t"),
            format!("SELECT {call} FROM t GROUP BY nr < 100"),
            format!(
                "SELECT {call} OVER (ORDER BY nr ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM t LIMIT 1"
            ),
        ] {
            let Ok(analyzed) = plan(&self.state, &sql, None).await else { continue };
            let planned = analyzed.schema().field(0).data_type().clone();
            let ran = AssertUnwindSafe(run(&self.state, analyzed)).catch_unwind().await;
            let answer = match ran {
                Err(_) => Err("PANIC".to_string()),
                Ok(Err(e)) if e.to_string().contains("Internal error") => Err(format!("PANIC {e}")),
                Ok(Err(e)) => Err(e.to_string()),
                Ok(Ok(batches)) => {
                    let batch = batches.iter().find(|batch| batch.num_rows() > 0).unwrap();
                    if *batch.column(0).data_type() != planned {
                        self.differs(
                            &sql,
                            format!("planned as {planned}, computed as {}", batch.column(0).data_type()),
                        );
                    }
                    ScalarValue::try_from_array(batch.column(0), 0).map_err(|e| e.to_string())
                }
            };
            if let Err(e) = &answer
                && (e.starts_with("PANIC") || e.contains("panicked"))
            {
                self.differs(&sql, e);
            }
            answers.push((sql, answer));
        }
        self.calls += answers.len();
        let Some(((_, first), rest)) = answers.split_first() else { return };
        let differing = rest.iter().find_map(|(sql, answer)| Some((sql, difference(first, answer)?)));
        // Some functions do not support this window frame.
        if let Some((sql, difference)) = differing
            && !difference.contains("not implemented")
        {
            self.differs(sql, difference);
        }
    }
}

impl Suite {
    /// Evaluates a window function over frames of all kinds.
    async fn window(&mut self, call: &str) {
        if AssertUnwindSafe(self.call_of_window(call)).catch_unwind().await.is_err() {
            self.differs(call, "PANIC");
        }
    }

    async fn call_of_window(&mut self, call: &str) {
        for over in
            ["ORDER BY nr", "PARTITION BY bool_v ORDER BY nr", "ORDER BY nr ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING"]
        {
            let sql = format!("SELECT {call} OVER ({over}) FROM t");
            let Ok(analyzed) = plan(&self.state, &sql, None).await else { continue };
            let planned = analyzed.schema().field(0).data_type().clone();
            self.calls += 1;
            match AssertUnwindSafe(run(&self.state, analyzed)).catch_unwind().await {
                Err(_) => self.differs(&sql, "PANIC"),
                Ok(Err(e)) if e.to_string().contains("Internal error") => self.differs(&sql, e),
                Ok(Err(_)) => {}
                Ok(Ok(batches)) => {
                    let types = batches.iter().map(|batch| batch.column(0).data_type().clone());
                    if let Some(other) = types.into_iter().find(|data_type| *data_type != planned) {
                        self.differs(&sql, format!("planned as {planned}, computed as {other}"));
                    }
                }
            }
        }
    }
}

/// Returns a description of the difference between two answers.
fn difference(one: &Answer, other: &Answer) -> Option<String> {
    match (one, other) {
        (Err(_), Err(e)) => e.starts_with("PANIC").then(|| e.clone()),
        (Ok(one), Ok(other)) => {
            let other_as = match one.data_type() == other.data_type() {
                true => other.clone(),
                false => {
                    let array = cast(&other.to_array().ok()?, &one.data_type()).ok()?;
                    ScalarValue::try_from_array(&array, 0).ok()?
                }
            };
            let is_close = match (one, &other_as) {
                (ScalarValue::Float64(Some(a)), ScalarValue::Float64(Some(b))) => {
                    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-12 * a.abs()
                }
                (ScalarValue::Float32(Some(a)), ScalarValue::Float32(Some(b))) => a == b || a.is_nan() && b.is_nan(),
                (a, b) => a == b || a.to_string() == b.to_string(),
            };
            (!is_close).then(|| format!("{one:?} and {other:?}"))
        }
        (Ok(one), Err(e)) => Some(format!("{one:?} and the error {}", e.lines().next().unwrap_or_default())),
        (Err(e), Ok(other)) => Some(format!("the error {} and {other:?}", e.lines().next().unwrap_or_default())),
    }
}

/// Returns argument lists: of one type, and of one type beside numbers and strings.
fn arguments() -> Vec<Vec<&'static str>> {
    let mut all: Vec<Vec<&str>> = vec![vec![]];
    for (name, ..) in TYPES {
        all.push(vec![name]);
    }
    for (name, ..) in TYPES {
        all.push(vec![name, name]);
        for other in ["big_v", "text_v"] {
            if other != name {
                all.push(vec![name, other]);
                all.push(vec![other, name]);
            }
        }
    }
    for (name, ..) in TYPES {
        all.push(vec![name, name, name]);
        all.push(vec![name, "big_v", "big_v"]);
        all.push(vec![name, "text_v", "text_v"]);
        all.push(vec![name, "big_v", name]);
    }
    all.push(vec!["text_v", "text_v", "text_v", "text_v"]);
    all.push(vec!["big_v", "big_v", "big_v", "big_v"]);
    all
}

/// One test case.
enum Job {
    Scalar(String, Vec<&'static str>),
    Aggregate(String),
    Window(String),
}

const OPERATORS: [&str; 13] = ["+", "-", "*", "/", "%", "=", "<>", "<", ">=", "||", "&", "|", "IS DISTINCT FROM"];

fn scalar_jobs(name: &str) -> impl Iterator<Item = Job> {
    arguments().into_iter().map(move |columns| Job::Scalar(format!("{name}({})", columns.join(", ")), columns))
}

fn operator_jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for (left, ..) in TYPES {
        for (right, ..) in TYPES {
            let call = |operator| Job::Scalar(format!("{left} {operator} {right}"), vec![left, right]);
            jobs.extend(OPERATORS.into_iter().map(call));
        }
        jobs.push(Job::Scalar(format!("-{left}"), vec![left]));
        for (_, to, _) in TYPES {
            jobs.push(Job::Scalar(format!("CAST({left} AS {to})"), vec![left]));
            jobs.push(Job::Scalar(format!("TRY_CAST({left} AS {to})"), vec![left]));
        }
    }
    jobs
}

fn aggregate_jobs(name: &str) -> Vec<Job> {
    let of_types = TYPES.iter().flat_map(|(argument, ..)| [argument.to_string(), format!("{argument}, {argument}")]);
    let arguments = of_types.chain(["double_v, 0.5".to_string()]);
    arguments.map(|arguments| Job::Aggregate(format!("{name}({arguments})"))).collect()
}

fn window_jobs(name: &str) -> Vec<Job> {
    let of_types = TYPES.iter().flat_map(|(argument, ..)| [argument.to_string(), format!("{argument}, 2")]);
    let arguments = [String::new(), "4".into()].into_iter().chain(of_types);
    arguments.map(|arguments| Job::Window(format!("{name}({arguments})"))).collect()
}

/// Returns the tested names of one kind of function.
fn names<'a>(all: impl Iterator<Item = &'a String>, only: &str) -> Vec<String> {
    let is_left_out = |name: &str| {
        DIFFER.contains(&name)
            || OF_CONSTANTS.contains(&name)
            || AS_LARGE_AS_ASKED.contains(&name)
            || name.starts_with("__")
    };
    let mut names: Vec<String> = all.filter(|name| name.contains(only) && !is_left_out(name)).cloned().collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_keep_their_types() {
    let suite = Suite::new().await;
    let only = std::env::var("ONEHOP_FUNCTIONS").unwrap_or_default();
    let scalars = names(suite.state.scalar_functions().keys(), &only);
    let aggregates = names(suite.state.aggregate_functions().keys(), &only);
    let windows = names(suite.state.window_functions().keys(), &only);
    let functions = scalars.len() + aggregates.len() + windows.len();
    let mut jobs: Vec<Job> = scalars.iter().flat_map(|name| scalar_jobs(name)).collect();
    if only.is_empty() || only == "operators" {
        jobs.extend(operator_jobs());
    }
    jobs.extend(aggregates.iter().flat_map(|name| aggregate_jobs(name)));
    jobs.extend(windows.iter().flat_map(|name| window_jobs(name)));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    // Runs one in five jobs, over varying functions and types, unless `ONEHOP_FUNCTIONS` is set.
    let step = if std::env::var_os("ONEHOP_FUNCTIONS").is_some() { 1 } else { 5 };
    let jobs: Arc<Vec<Job>> = Arc::new(jobs.into_iter().step_by(step).collect());
    let running = (0..workers).map(|worker| {
        let (mut suite, jobs) = (suite.another(), Arc::clone(&jobs));
        tokio::spawn(async move {
            for job in jobs.iter().skip(worker).step_by(workers) {
                match job {
                    Job::Scalar(call, columns) => suite.call(call, columns).await,
                    Job::Aggregate(call) => suite.aggregate(call).await,
                    Job::Window(call) => suite.window(call).await,
                }
            }
            (suite.calls, suite.differences)
        })
    });
    let (mut calls, mut differences) = (0, Vec::new());
    for done in running.collect::<Vec<_>>() {
        let (more, found) = done.await.unwrap();
        calls += more;
        differences.extend(found);
    }
    differences.sort();
    println!(
        "functions: {functions} functions x {} types, {calls} calls, {} differences",
        TYPES.len(),
        differences.len()
    );
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
