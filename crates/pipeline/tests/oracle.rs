//! Random programs over random tables give what a naive interpreter gives, which takes one row at a time, knows no
//! vectors, and computes in 128 bits. It stops at what it need not look at: that is what guards are compared with. Of
//! the pipelines it only asks which expressions can fail.
#![allow(clippy::unwrap_used)]

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, BooleanArray, Int32Array, Int64Array, RecordBatch, StringViewArray};
use arrow_schema::{DataType, Field, Schema};
use onehop_io::{Ledger, MemoryFile, WriteAt};
use onehop_pipeline::bind::bind;
use onehop_pipeline::cpu::{Answer, Execution, KeyPart, ResultColumn, ResultValues, Stage, Worker, run};
use onehop_pipeline::ir::{
    self, Aggregate, Direction, JoinKind, Nulls, Pipeline, Probe, Program, Shape, Sink, SortKey, Step,
};
use onehop_pipeline::{
    Account, ArithmeticOp, BatchSourceBuilder, Bounds, Budget, CompareOp, DictionaryFunction, Domain, Error, Expr,
    Holder, Interval, Resources, SegmentSource, Source, Type, Value,
};
use onehop_segment::{BlockCache, Segment, SegmentOptions, SegmentWriter};
use proptest::prelude::*;

/// A row: booleans are 0 and 1, texts are numbers in their order ([`text_of`]).
type Row = Vec<Option<i128>>;

const TEXTS: [&str; 4] = ["ash", "birch", "cedar", "elm"];
const BIGINT: Bounds = Bounds { min: i64::MIN as i128, max: i64::MAX as i128, type_name: "BIGINT" };

fn text_of(number: i128) -> String {
    TEXTS.get(number as usize).map_or_else(|| format!("x{number:04}"), |text| (*text).into())
}

fn number_of(text: &str) -> i128 {
    match text.strip_prefix('x') {
        Some(number) => number.parse().unwrap(),
        None => TEXTS.iter().position(|t| *t == text).unwrap() as i128,
    }
}

/// Columns of every table here: a small key, a wide integer, a boolean, a text, and two texts that repeat so little that
/// they are stored without a dictionary, and read late.
#[derive(Clone, Debug)]
struct Table {
    rows: Vec<Row>,
}

const KEY: usize = 0;
const WIDE: usize = 1;
const FLAG: usize = 2;
const TEXT: usize = 3;
const LATE: usize = 4;
const TWIN: usize = 5;
const COLUMNS: usize = 6;

fn table(rows: std::ops::Range<usize>, keys: i128) -> impl Strategy<Value = Table> {
    let texts = TEXTS.len() as i128..(rows.end as i128 / 2).max(8);
    let null = |value: BoxedStrategy<i128>| prop::option::weighted(0.9, value);
    let wide = prop_oneof![4 => -1000i128..1000, 1 => any::<i32>().prop_map(i128::from), 1 => any::<i64>().prop_map(i128::from)];
    let text = null((0..TEXTS.len() as i128).boxed());
    let late = (null(texts.clone().boxed()), null(texts.boxed()));
    let row = (null((0..keys).boxed()), null(wide.boxed()), null((0i128..2).boxed()), text, late);
    let rows = prop::collection::vec(row.prop_map(|(a, b, c, d, (e, f))| vec![a, b, c, d, e, f]), rows);
    // Sorted ones without NULLs have vectors that a filter lets through whole, beside others.
    let sorted = prop::sample::select(vec![None, Some(KEY), Some(WIDE)]);
    (rows, sorted, any::<bool>()).prop_map(|(mut rows, sorted, has_nulls)| {
        if !has_nulls {
            rows.iter_mut().flatten().for_each(|value| *value = Some(value.unwrap_or(1)));
        }
        if let Some(column) = sorted {
            rows.sort_by_key(|row: &Row| row[column]);
        }
        Table { rows }
    })
}

impl Table {
    /// As segments, or as record batches.
    fn source(&self, in_memory: bool) -> Arc<dyn Source> {
        if in_memory { self.in_memory() } else { self.stored() }
    }

    fn batch(rows: &[Row]) -> RecordBatch {
        let text = DataType::Utf8View;
        let fields = [DataType::Int32, DataType::Int64, DataType::Boolean, text.clone(), text.clone(), text];
        let fields: Vec<Field> =
            fields.into_iter().enumerate().map(|(i, t)| Field::new(format!("c{i}"), t, true)).collect();
        let column = |column: usize| rows.iter().map(move |row| row[column]);
        let texts = |at: usize| Arc::new(column(at).map(|v| v.map(text_of)).collect::<StringViewArray>());
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(column(KEY).map(|v| v.map(|v| v as i32)).collect::<Int32Array>()),
            Arc::new(column(WIDE).map(|v| v.map(|v| v as i64)).collect::<Int64Array>()),
            Arc::new(column(FLAG).map(|v| v.map(|v| v == 1)).collect::<BooleanArray>()),
            texts(TEXT),
            texts(LATE),
            texts(TWIN),
        ];
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
    }

    /// Batches of several sizes, that begin anywhere in their arrays.
    fn in_memory(&self) -> Arc<dyn Source> {
        let all = Self::batch(&self.rows);
        let types = all.schema().fields().iter().map(|field| field.data_type().clone()).enumerate().collect::<Vec<_>>();
        let mut builder = BatchSourceBuilder::new("t", &types).unwrap();
        let mut at = 0;
        for rows in [0, 1, 700, usize::MAX] {
            let rows = rows.min(all.num_rows() - at);
            builder.push(&all.slice(at, rows)).unwrap();
            at += rows;
        }
        Arc::new(builder.finish())
    }

    /// Several segments of small blocks, so that dictionaries differ and vectors are cut.
    fn stored(&self) -> Arc<dyn Source> {
        let ledger = Arc::new(Ledger::default());
        let mut blocks = Vec::new();
        // Blocks of one vector, and of a whole one and a short one: rows of both may end up in one frame.
        let (segment_rows, block_rows) = if self.rows.len().is_multiple_of(2) { (1500, 1024) } else { (1124, 2048) };
        for rows in self.rows.chunks(segment_rows) {
            let batch = Self::batch(rows);
            let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows }).unwrap();
            writer.append(&batch).unwrap();
            let file = MemoryFile::new("t.seg", Vec::new());
            writer.finish(&file, &ledger).unwrap();
            let segment = Arc::new(Segment::open(Arc::new(file), &ledger).unwrap());
            blocks.extend((0..segment.blocks()).map(|block| (Arc::clone(&segment), block)));
        }
        let types = [
            onehop_segment::ColumnType::Int32,
            onehop_segment::ColumnType::Int64,
            onehop_segment::ColumnType::Boolean,
            onehop_segment::ColumnType::Varchar,
            onehop_segment::ColumnType::Varchar,
            onehop_segment::ColumnType::Varchar,
        ];
        let columns: Vec<_> = types.into_iter().enumerate().map(|(i, t)| (i, t, true)).collect();
        let cache = Arc::new(BlockCache::new(1 << 20));
        Arc::new(SegmentSource::new("t", blocks, &columns, cache, ledger, 0).unwrap())
    }
}

/// What is computed from a text: whether its number is a multiple of 3, the same where NULL is one, its number, and a
/// third of it, which is refused if it is no multiple.
#[derive(Clone, Copy, Debug)]
enum OfText {
    Triple,
    TripleOrNull,
    Number,
    Third,
}

impl DictionaryFunction for OfText {
    fn name(&self) -> String {
        format!("{self:?}($)")
    }

    fn apply(&self, texts: &StringViewArray) -> Result<ArrayRef, Error> {
        let numbers = texts.iter().map(|text| text.map(number_of));
        Ok(match self {
            Self::Triple => Arc::new(numbers.map(|n| n.map(|n| n % 3 == 0)).collect::<BooleanArray>()),
            Self::TripleOrNull => {
                Arc::new(numbers.map(|n| Some(n.is_none_or(|n| n % 3 == 0))).collect::<BooleanArray>())
            }
            Self::Number => Arc::new(numbers.map(|n| n.map(|n| n as i64)).collect::<Int64Array>()),
            Self::Third => {
                let third = |n: i128| (n % 3 == 0).then_some((n / 3) as i64);
                let refused = || Error::DivisionByZero { expression: self.name() };
                let thirds = numbers.map(|n| n.map(|n| third(n).ok_or_else(refused)).transpose());
                Arc::new(thirds.collect::<Result<Int64Array, _>>()?)
            }
        })
    }

    fn can_fail(&self) -> bool {
        matches!(self, Self::Third)
    }

    fn interval(&self) -> Interval {
        Interval::new(0, 100_000)
    }
}

fn of_text(register: usize, function: OfText) -> Expr {
    Expr::Lookup { text: Box::new(Expr::Register(register)), function: Arc::new(function) }
}

/// The naive interpreter of one pipeline.
struct Naive<'a> {
    registers: &'a [Domain],
}

impl Naive<'_> {
    fn is_fallible(&self, expr: &Expr) -> bool {
        bind(expr, self.registers).unwrap().is_fallible
    }

    /// The conditions of an AND or OR in the order in which they are looked at.
    fn in_turn<'e>(&self, all: impl Iterator<Item = &'e Expr>) -> Vec<&'e Expr> {
        let (last, first): (Vec<&Expr>, Vec<&Expr>) = all.partition(|expr| self.is_fallible(expr));
        first.into_iter().chain(last).collect()
    }

    /// The answer for an expression: `Err` if it fails.
    fn value(&self, expr: &Expr, row: &Row) -> Result<Option<i128>, ()> {
        let is_null = |expr: &Expr| matches!(expr, Expr::Literal(Value::Null(_)));
        Ok(match expr {
            Expr::Register(register) => row[*register],
            Expr::Literal(Value::Int(value)) => Some(*value),
            Expr::Literal(Value::Bool(value)) => Some((*value).into()),
            Expr::Literal(_) => None,
            Expr::Arithmetic { op, left, right, bounds } => match (self.value(left, row)?, self.value(right, row)?) {
                (Some(a), Some(b)) => {
                    let result = match op {
                        ArithmeticOp::Add => a.checked_add(b),
                        ArithmeticOp::Sub => a.checked_sub(b),
                        ArithmeticOp::Mul => a.checked_mul(b),
                        ArithmeticOp::Div => a.checked_div(b),
                        ArithmeticOp::Rem => a.checked_rem(b),
                    };
                    Some(result.filter(|r| (bounds.min..=bounds.max).contains(r)).ok_or(())?)
                }
                _ => None,
            },
            Expr::Compare { left, right, .. } if is_null(left) || is_null(right) => None,
            Expr::Compare { op, left, right } => match (self.value(left, row)?, self.value(right, row)?) {
                (Some(a), Some(b)) => Some(
                    match op {
                        CompareOp::Equal => a == b,
                        CompareOp::NotEqual => a != b,
                        CompareOp::Less => a < b,
                        CompareOp::LessOrEqual => a <= b,
                        CompareOp::Greater => a > b,
                        CompareOp::GreaterOrEqual => a >= b,
                    }
                    .into(),
                ),
                _ => None,
            },
            Expr::And(_) => self.logic(conjuncts(expr).into_iter(), row, 0)?,
            Expr::Or(any) => self.logic(any.iter(), row, 1)?,
            Expr::Not(inner) => self.value(inner, row)?.map(|v| 1 - v),
            Expr::IsNull(inner) => Some(self.value(inner, row)?.is_none().into()),
            Expr::In { expr, list } => self.value(expr, row)?.map(|v| list.contains(&v).into()),
            Expr::Case { branches, otherwise } => {
                for (condition, result) in branches {
                    if self.value(condition, row)? == Some(1) {
                        return self.value(result, row);
                    }
                }
                otherwise.as_ref().map_or(Ok(None), |otherwise| self.value(otherwise, row))?
            }
            Expr::Coalesce(exprs) => {
                for expr in exprs {
                    if let Some(value) = self.value(expr, row)? {
                        return Ok(Some(value));
                    }
                }
                None
            }
            Expr::Lookup { text, function } => {
                let text = self.value(text, row)?.map(text_of);
                let result = function.apply(&StringViewArray::from_iter([text])).map_err(|_| ())?;
                match result.data_type() {
                    DataType::Boolean => result.as_boolean().iter().next().unwrap().map(i128::from),
                    _ => result.as_primitive::<Int64Type>().iter().next().unwrap().map(i128::from),
                }
            }
            Expr::ToDouble { expr, .. } => self.value(expr, row)?.map(|value| double(value as f64)),
            other => panic!("{other} is not generated"),
        })
    }

    /// AND (decided by 0) or OR (decided by 1).
    fn logic<'e>(&self, all: impl Iterator<Item = &'e Expr>, row: &Row, decisive: i128) -> Result<Option<i128>, ()> {
        let mut result = Some(1 - decisive);
        for condition in self.in_turn(all) {
            match self.value(condition, row)? {
                Some(value) if value == decisive => return Ok(Some(decisive)),
                Some(_) => {}
                None => result = None,
            }
        }
        Ok(result)
    }
}

/// The conditions of an AND, however it is nested.
fn conjuncts(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::And(all) => all.iter().flat_map(conjuncts).collect(),
        other => vec![other],
    }
}

/// A filter or probe, and where the registers that it adds begin.
#[derive(Clone, Copy)]
enum Act<'a> {
    Filter(&'a Expr),
    Probe(&'a Probe, usize),
}

impl Naive<'_> {
    /// Filters and probes in the order in which they may fail: always the next that cannot, if it reads nothing that is
    /// not there yet.
    fn acts<'p>(&self, pipeline: &'p Pipeline) -> Vec<Act<'p>> {
        let mut acts = Vec::new();
        let mut next = pipeline.columns.len();
        for step in &pipeline.steps {
            match step {
                Step::Filter(condition) => acts.extend(conjuncts(condition).into_iter().map(Act::Filter)),
                Step::Probe(probe) => {
                    acts.push(Act::Probe(probe, next));
                    next += probe.payload.len();
                }
                Step::Map(_) => panic!("maps are not generated"),
            }
        }
        let mut known = vec![false; next];
        known[..pipeline.columns.len()].fill(true);
        let mut ordered = Vec::new();
        while !acts.is_empty() {
            let reads = |act: &Act<'p>| -> Vec<&'p Expr> {
                match act {
                    Act::Filter(condition) => vec![condition],
                    Act::Probe(probe, _) => probe.keys.iter().collect(),
                }
            };
            let is_ready = |act: &Act<'p>| {
                let mut is_ready = true;
                if let Act::Probe(Probe { condition: Some(condition), .. }, first) = act {
                    condition.for_each_register(&mut |register| is_ready &= register >= *first || known[register]);
                }
                reads(act).iter().for_each(|expr| expr.for_each_register(&mut |register| is_ready &= known[register]));
                is_ready
            };
            let is_fallible = |act: &Act<'p>| reads(act).iter().any(|expr| self.is_fallible(expr));
            let infallible = acts.iter().position(|act| is_ready(act) && !is_fallible(act));
            let first = || acts.iter().position(&is_fallible).unwrap();
            let act = acts.remove(infallible.unwrap_or_else(first));
            if let Act::Probe(probe, first) = act {
                known[first..first + probe.payload.len()].fill(true);
            }
            ordered.push(act);
        }
        ordered
    }

    /// Rows of a pipeline before its sink, given the rows of tables before it as (key, payload).
    fn rows(&self, pipeline: &Pipeline, sources: &[Table], tables: &[Vec<(Row, Row)>]) -> Result<Vec<Row>, ()> {
        let row = |row: &Row| -> Row {
            let missing = self.registers.len() - pipeline.columns.len();
            let columns = pipeline.columns.iter().map(|column| row[*column]);
            columns.chain(std::iter::repeat_n(None, missing)).collect()
        };
        let mut rows: Vec<Row> = sources[pipeline.source].rows.iter().map(row).collect();
        for act in self.acts(pipeline) {
            let mut next = Vec::new();
            for row in rows {
                match act {
                    Act::Filter(condition) => {
                        if self.value(condition, &row)? == Some(1) {
                            next.push(row);
                        }
                    }
                    Act::Probe(probe, first) => {
                        let key: Row = probe.keys.iter().map(|key| self.value(key, &row)).collect::<Result<_, _>>()?;
                        let is_match = |entry: &&(Row, Row)| entry.0 == key && !key.contains(&None);
                        let matches = tables[probe.table].iter().filter(is_match);
                        let joined = |entry: &(Row, Row)| {
                            let mut row = row.clone();
                            for (to, from) in row[first..].iter_mut().zip(&probe.payload) {
                                *to = entry.1[*from];
                            }
                            row
                        };
                        let is_met = |entry: &&(Row, Row)| match &probe.condition {
                            Some(condition) => self.value(condition, &joined(entry)) == Ok(Some(1)),
                            None => true,
                        };
                        let matches: Vec<&(Row, Row)> = matches.filter(is_met).collect();
                        match probe.kind {
                            JoinKind::Left if matches.is_empty() => next.push(row),
                            JoinKind::Inner | JoinKind::Left => next.extend(matches.into_iter().map(joined)),
                            JoinKind::Semi if matches.is_empty() => {}
                            JoinKind::Anti if !matches.is_empty() => {}
                            JoinKind::NotIn if tables[probe.table].is_empty() => next.push(row),
                            JoinKind::NotIn if !matches.is_empty() || key.contains(&None) => {}
                            JoinKind::NotIn if tables[probe.table].iter().any(|(key, _)| key.contains(&None)) => {}
                            JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn => next.push(row),
                        }
                    }
                }
            }
            rows = next;
        }
        Ok(rows)
    }
}

/// What an answer can be.
#[derive(Debug, PartialEq)]
enum Expected {
    /// These rows, in any order.
    Rows(Vec<Row>),
    /// The first so many of these, which begin with their keys, in the order of them.
    First { rows: usize, keys: Vec<SortedBy>, of: Vec<Row> },
}

/// How a key is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SortedBy {
    direction: Direction,
    nulls: Nulls,
    is_double: bool,
}

impl SortedBy {
    fn of(key: &SortKey) -> Self {
        let is_double = matches!(key.expr, Expr::ToDouble { .. });
        Self { direction: key.direction, nulls: key.nulls, is_double }
    }

    fn compare(&self, a: Option<i128>, b: Option<i128>) -> Ordering {
        let (a, b) = match (a, b) {
            (Some(a), Some(b)) => (a, b),
            (a, b) => {
                let first = if self.nulls == Nulls::First { a.is_none() } else { a.is_some() };
                return if a.is_some() == b.is_some() {
                    Ordering::Equal
                } else if first {
                    Ordering::Less
                } else {
                    Ordering::Greater
                };
            }
        };
        let order = if self.is_double {
            f64::from_bits(a as u64).partial_cmp(&f64::from_bits(b as u64)).unwrap()
        } else {
            a.cmp(&b)
        };
        if self.direction == Direction::Ascending { order } else { order.reverse() }
    }
}

impl Expected {
    /// Whether an answer is one that is expected.
    fn allows(&self, answer: &[Row]) -> bool {
        match self {
            Self::Rows(rows) => sorted(answer.to_vec()) == *rows,
            Self::First { rows, keys, of } => {
                let compare = |a: &Row, b: &Row| {
                    let compared = keys.iter().zip(a.iter().zip(b)).map(|(key, (a, b))| key.compare(*a, *b));
                    compared.fold(Ordering::Equal, Ordering::then)
                };
                let mut first = of.clone();
                first.sort_by(compare);
                first.truncate(*rows);
                let are_keys = first.len() == answer.len()
                    && first.iter().zip(answer).all(|(a, b)| compare(a, b) == Ordering::Equal);
                let mut left = of.clone();
                let mut take = |row: &Row| left.iter().position(|other| other == row).map(|at| left.swap_remove(at));
                are_keys && answer.iter().all(|row| take(row).is_some())
            }
        }
    }
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort();
    rows
}

/// What the answer can be.
fn expected(program: &Program, shapes: &[Shape], sources: &[Table]) -> Result<Expected, ()> {
    let mut tables: Vec<Vec<(Row, Row)>> = Vec::new();
    for (pipeline, shape) in program.pipelines.iter().zip(shapes) {
        let naive = Naive { registers: &shape.registers };
        let rows = naive.rows(pipeline, sources, &tables)?;
        let values = |exprs: &[Expr], row: &Row| exprs.iter().map(|e| naive.value(e, row)).collect::<Result<Row, ()>>();
        match &pipeline.sink {
            Sink::Build { keys, payload } => {
                let entries = rows.iter().map(|row| Ok((values(keys, row)?, values(payload, row)?)));
                let entries = entries.collect::<Result<Vec<_>, ()>>()?;
                tables.push(entries);
            }
            Sink::Collect { columns } => {
                let answer = rows.iter().map(|row| values(columns, row)).collect::<Result<Vec<_>, ()>>()?;
                return Ok(Expected::Rows(sorted(answer)));
            }
            Sink::Top { rows: first, keys, columns } => {
                let of = rows.iter().map(|row| values(columns, row)).collect::<Result<Vec<_>, ()>>()?;
                let keys = keys.iter().map(SortedBy::of).collect();
                return Ok(Expected::First { rows: *first, keys, of });
            }
            Sink::Aggregate { keys, aggregates } => {
                let mut groups: BTreeMap<Row, Vec<Row>> = BTreeMap::new();
                if keys.is_empty() {
                    groups.insert(Vec::new(), Vec::new());
                }
                for row in rows {
                    groups.entry(values(keys, &row)?).or_default().push(row);
                }
                let mut answer = Vec::new();
                for (mut key, rows) in groups {
                    for aggregate in aggregates {
                        let argument = aggregate.argument().map(|argument| match argument {
                            Expr::ToDouble { expr, .. } => (&**expr, true),
                            other => (other, false),
                        });
                        let value = |row: &Row| argument.map_or(Ok(None), |(argument, _)| naive.value(argument, row));
                        let values = rows.iter().map(value).collect::<Result<Vec<_>, ()>>()?;
                        let values = values.into_iter().flatten().collect();
                        let is_double = argument.is_some_and(|(_, is_double)| is_double);
                        key.push(aggregated(aggregate, rows.len(), values, is_double));
                    }
                    answer.push(key);
                }
                return Ok(Expected::Rows(sorted(answer)));
            }
        }
    }
    Ok(Expected::Rows(Vec::new()))
}

/// The result for a group of so many rows, of which `values` are not NULL.
fn aggregated(aggregate: &Aggregate, rows: usize, mut values: Vec<i128>, is_double: bool) -> Option<i128> {
    if is_double {
        values.iter_mut().for_each(|value| *value = *value as f64 as i128);
    }
    if aggregate.is_distinct() {
        values = values.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    }
    let result = |result: i128| if is_double { double(result as f64) } else { result };
    match aggregate {
        Aggregate::CountRows => Some(rows as i128),
        Aggregate::Count(_) | Aggregate::CountDistinct(_) => Some(values.len() as i128),
        Aggregate::Sum(_) | Aggregate::SumDistinct(_) => (!values.is_empty()).then(|| result(values.iter().sum())),
        Aggregate::Min(_) => values.iter().min().copied().map(result),
        Aggregate::Max(_) => values.iter().max().copied().map(result),
        Aggregate::VariancePop(_) | Aggregate::VarianceSamp(_) => {
            let n = values.len() as i128;
            let others = if matches!(aggregate, Aggregate::VarianceSamp(_)) { n - 1 } else { n };
            let (sum, squares) = (values.iter().sum::<i128>(), values.iter().map(|value| value * value).sum::<i128>());
            (others > 0).then(|| double((n * squares - sum * sum) as f64 / (n as f64 * others as f64)))
        }
    }
}

/// How a double is a value here.
fn double(value: f64) -> i128 {
    value.to_bits().into()
}

fn actual(
    program: &Program,
    sources: &[Arc<dyn Source>],
    threads: usize,
    budget: impl Into<Budget>,
) -> Result<Vec<Row>, Error> {
    let mut execution = Execution::new(program.clone(), sources.to_vec(), budget)?;
    Ok(rows_of(&run(&mut execution, threads)?))
}

/// The answer if one table is built part by part, and the last pipeline is carried through once for each.
fn in_passes(program: &Program, sources: &[Arc<dyn Source>], table: usize, of: u32) -> Result<Vec<Row>, Error> {
    let mut execution = Execution::new(program.clone(), sources.to_vec(), 1 << 30)?;
    let build = |execution: &mut Execution, pipeline: usize, part: KeyPart| {
        let stage = execution.stage_of_part(pipeline, part)?;
        let mut worker = Worker::new(&stage, &Arc::default());
        while worker.step()?.is_some() {}
        execution.finish(pipeline, &stage, vec![worker]).map(|_| ())
    };
    let last = execution.pipelines() - 1;
    for pipeline in 0..last {
        match pipeline == table {
            true => execution.leave_out(pipeline)?,
            false => build(&mut execution, pipeline, KeyPart::ALL)?,
        }
    }
    let mut chunks = Vec::new();
    let mut pass: Option<(Arc<Stage>, Worker)> = None;
    for number in (0..of).rev() {
        build(&mut execution, table, KeyPart { number, of })?;
        let stage = execution.stage(last)?;
        let mut worker = match pass.take() {
            Some((_, worker)) => worker.pass(&stage),
            None => Worker::new(&stage, &Arc::default()),
        };
        while let Some(chunk) = worker.step()? {
            chunks.push(chunk);
        }
        pass = Some((stage, worker));
    }
    let (stage, worker) = pass.unwrap();
    let Answer::Rows(rows) = execution.finish(last, &stage, vec![worker])? else { panic!() };
    chunks.extend(rows.chunks);
    Ok(rows_of(&chunks))
}

fn rows_of(chunks: &[Vec<ResultColumn>]) -> Vec<Row> {
    let mut answer = Vec::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
        let columns: Vec<Row> = chunk.iter().map(|column| cells(column, 1)).collect();
        answer.extend((0..chunk[0].len()).map(|row| columns.iter().map(|column| column[row]).collect::<Row>()));
    }
    answer
}

/// Memory without end, of which every so many requests is refused: groups are spilled at any time and any level.
#[derive(Debug)]
struct Stingy {
    every: u64,
    requests: Arc<AtomicU64>,
    ledger: Ledger,
}

#[derive(Debug)]
struct StingyAccount {
    every: u64,
    requests: Arc<AtomicU64>,
    /// Whether it is of those who can do without.
    may_refuse: bool,
    /// What it has, once it has anything.
    held: Mutex<usize>,
}

impl Stingy {
    fn budget(every: u64) -> Budget {
        Budget(Arc::new(Self { every, requests: Arc::default(), ledger: Ledger::default() }))
    }
}

impl Resources for Stingy {
    fn limit(&self) -> usize {
        1 << 30
    }

    fn account(&self, what: &'static str, holder: Holder) -> Box<dyn Account> {
        let (every, requests) = (self.every, Arc::clone(&self.requests));
        // Who begins to take groups in needs room for some; join tables do not spill.
        let held = Mutex::new(usize::from(holder == Holder::Keeps));
        Box::new(StingyAccount { every, requests, may_refuse: what != "a join table", held })
    }

    fn file(&self) -> Result<Option<Arc<dyn WriteAt>>, Error> {
        Ok(Some(Arc::new(MemoryFile::new("memory/spill", Vec::new()))))
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl Account for StingyAccount {
    fn try_resize(&self, bytes: usize) -> Result<(), Error> {
        let mut held = self.held.lock().unwrap();
        let is_more = self.may_refuse && *held > 0 && bytes > *held;
        if is_more && self.requests.fetch_add(1, Relaxed).is_multiple_of(self.every) {
            return Err(Error::Memory { what: "groups".into(), needed: bytes, available: *held });
        }
        *held = bytes;
        Ok(())
    }
}

fn cells(column: &ResultColumn, threads: usize) -> Row {
    let is_valid = |row: usize| column.valid.as_ref().is_none_or(|valid| valid[row]);
    if let ResultValues::LateText(rows, texts) = &column.values {
        let rows = rows.iter().enumerate().map(|(at, row)| is_valid(at).then_some(*row));
        return texts.texts(rows, threads).unwrap().iter().map(|text| text.map(number_of)).collect();
    }
    let value = |row: usize| match &column.values {
        ResultValues::Bool(values) => values[row].into(),
        ResultValues::Int(values) => values[row].into(),
        ResultValues::Wide(values) => values[row],
        ResultValues::Double(values) => double(values[row]),
        ResultValues::Text(codes, dictionary) => number_of(dictionary.texts().value(codes[row] as usize)),
        ResultValues::LateText(..) => panic!("they were read"),
    };
    (0..column.len()).map(|row| is_valid(row).then(|| value(row))).collect()
}

/// Expressions over registers of known types.
#[derive(Clone, Debug)]
struct Registers(Vec<Type>);

impl Registers {
    fn of(&self, ty: Type) -> Vec<usize> {
        (0..self.0.len()).filter(|register| self.0[*register] == ty).collect()
    }

    fn texts(&self) -> Vec<usize> {
        [self.of(Type::Text), self.of(Type::LateText)].concat()
    }

    fn int(&self, depth: u32) -> BoxedStrategy<Expr> {
        let leaf = prop_oneof![
            6 => prop::sample::select(self.of(Type::Int)).prop_map(Expr::Register),
            1 => prop::sample::select(self.texts()).prop_map(|text| of_text(text, OfText::Number)),
            2 => (-20i64..20).prop_map(Expr::int),
            2 => Just(Expr::Literal(Value::Null(Type::Int))),
        ];
        if depth == 0 {
            return leaf.boxed();
        }
        let ops = vec![ArithmeticOp::Add, ArithmeticOp::Sub, ArithmeticOp::Mul, ArithmeticOp::Div, ArithmeticOp::Rem];
        let bounds =
            prop_oneof![3 => Just(BIGINT), 1 => Just(Bounds { min: -50_000, max: 50_000, type_name: "SMALL" })];
        let branches = prop::collection::vec((self.bool(depth - 1), self.int(depth - 1)), 1..3);
        prop_oneof![
            3 => leaf,
            2 => (prop::sample::select(ops), self.int(depth - 1), self.int(depth - 1), bounds)
                .prop_map(|(op, a, b, bounds)| Expr::arithmetic(op, a, b, bounds)),
            1 => (branches, prop::option::of(self.int(depth - 1)))
                .prop_map(|(branches, otherwise)| Expr::Case { branches, otherwise: otherwise.map(Box::new) }),
            1 => prop::collection::vec(self.int(depth - 1), 1..3).prop_map(Expr::Coalesce),
            1 => self.guarded_int(),
        ]
        .boxed()
    }

    /// `k <> 0`, and `x / k`; or whether the number of a text can be divided by 3, and a third of it.
    fn divisor_and_quotient(&self) -> impl Strategy<Value = (Expr, Expr)> + use<> {
        let registers = self.of(Type::Int);
        let of_integers = (prop::sample::select(registers.clone()), prop::sample::select(registers));
        // Of a dictionary, a function that refuses one of the texts is refused itself.
        let late = prop::sample::select(self.of(Type::LateText));
        prop_oneof![
            2 => of_integers.prop_map(|(x, k)| {
                let (x, k) = (Expr::Register(x), Expr::Register(k));
                let quotient = Expr::arithmetic(ArithmeticOp::Div, x, k.clone(), BIGINT);
                (Expr::compare(CompareOp::NotEqual, k, Expr::int(0)), quotient)
            }),
            1 => late.prop_map(|text| (of_text(text, OfText::Triple), of_text(text, OfText::Third))),
        ]
    }

    /// `CASE WHEN k <> 0 THEN x / k ELSE 0 END` never fails for k = 0.
    fn guarded_int(&self) -> BoxedStrategy<Expr> {
        let case = |branch| Expr::Case { branches: vec![branch], otherwise: Some(Box::new(Expr::int(0))) };
        self.divisor_and_quotient().prop_map(case).boxed()
    }

    /// Neither do `k <> 0 AND x / k > 3` and `NOT k <> 0 OR x / k > 3`, in whichever order.
    fn guarded_bool(&self) -> BoxedStrategy<Expr> {
        let negated = |expr: Expr| Expr::Not(Box::new(expr));
        (self.divisor_and_quotient(), any::<bool>(), any::<bool>())
            .prop_map(move |((divides, quotient), is_and, is_first)| {
                let large = Expr::compare(CompareOp::Greater, quotient, Expr::int(3));
                let guard = if is_and { divides } else { negated(divides) };
                let both = if is_first { vec![guard, large] } else { vec![large, guard] };
                // Negated once or twice, an AND is not taken apart.
                negated(if is_and { negated(Expr::And(both)) } else { Expr::Or(both) })
            })
            .boxed()
    }

    /// Comparisons of `depth` 0 are of registers and literals, and cannot fail.
    fn bool(&self, depth: u32) -> BoxedStrategy<Expr> {
        let ops = vec![
            CompareOp::Equal,
            CompareOp::NotEqual,
            CompareOp::Less,
            CompareOp::LessOrEqual,
            CompareOp::Greater,
            CompareOp::GreaterOrEqual,
        ];
        let int = prop_oneof![3 => self.int(0), 1 => self.int(depth)];
        let compare = (prop::sample::select(ops), int.clone(), self.int(0));
        let every = (0..self.0.len()).collect::<Vec<_>>();
        let leaf = prop_oneof![
            4 => compare.prop_map(|(op, a, b)| Expr::compare(op, a, b)),
            1 => prop::sample::select(self.of(Type::Bool)).prop_map(Expr::Register),
            1 => prop::sample::select(every).prop_map(|r| Expr::IsNull(Box::new(Expr::Register(r)))),
            1 => (int, prop::collection::vec(-20i128..20, 0..5))
                .prop_map(|(expr, list)| Expr::In { expr: Box::new(expr), list }),
            1 => Just(Expr::Literal(Value::Null(Type::Bool))),
            1 => (prop::sample::select(self.texts()), prop::sample::select(&[OfText::Triple, OfText::TripleOrNull][..]))
                .prop_map(|(text, function)| of_text(text, function)),
        ];
        if depth == 0 {
            return leaf.boxed();
        }
        let some = prop::collection::vec(self.bool(depth - 1), 1..4);
        prop_oneof![
            3 => leaf,
            1 => some.clone().prop_map(Expr::And),
            1 => some.prop_map(Expr::Or),
            1 => self.bool(depth - 1).prop_map(|e| Expr::Not(Box::new(e))),
            1 => self.guarded_bool(),
        ]
        .boxed()
    }

    fn any(&self) -> BoxedStrategy<Expr> {
        let every = (0..self.0.len()).collect::<Vec<_>>();
        prop_oneof![2 => prop::sample::select(every).prop_map(Expr::Register), 1 => self.int(1), 1 => self.bool(1)]
            .boxed()
    }
}

const TYPES: [Type; COLUMNS] = [Type::Int, Type::Int, Type::Bool, Type::Text, Type::LateText, Type::LateText];

fn build() -> impl Strategy<Value = Pipeline> {
    let registers = Registers(TYPES.to_vec());
    let filters = prop::collection::vec(registers.bool(1).prop_map(Step::Filter), 0..2);
    let keys = prop_oneof![
        3 => Just(vec![Expr::Register(KEY)]),
        1 => Just(vec![Expr::Register(KEY), Expr::Register(FLAG)]),
        1 => Just(vec![Expr::Register(WIDE)]),
    ];
    (filters, keys).prop_map(|(steps, keys)| Pipeline {
        source: 0,
        columns: (0..COLUMNS).collect(),
        steps,
        sink: Sink::Build { keys, payload: (0..COLUMNS).map(Expr::Register).collect() },
    })
}

/// A comparison of a column with a constant: what is answered before the column is decoded.
fn range() -> impl Strategy<Value = Expr> {
    let ops = vec![CompareOp::Less, CompareOp::GreaterOrEqual, CompareOp::Equal, CompareOp::NotEqual];
    let bound =
        prop_oneof![(KEY..=KEY, prop_oneof![0i128..15, 0i128..300]), (WIDE..=WIDE, prop_oneof![-1000i128..1000])];
    (prop::sample::select(ops), bound)
        .prop_map(|(op, (column, value))| Expr::compare(op, Expr::Register(column), Expr::int(value)))
}

fn program() -> impl Strategy<Value = Program> {
    let all = [JoinKind::Inner, JoinKind::Left, JoinKind::Semi, JoinKind::Anti, JoinKind::NotIn];
    let kinds = prop::sample::select(all.to_vec());
    let builds = prop::collection::vec((build(), kinds), 0..3);
    let ops = vec![None, Some(CompareOp::NotEqual), Some(CompareOp::Less), Some(CompareOp::Equal)];
    (builds, prop::sample::select(ops)).prop_flat_map(|(builds, op)| {
        let last = builds.len();
        let mut types = TYPES.to_vec();
        let mut steps = Vec::new();
        let mut pipelines = Vec::new();
        for (number, (pipeline, kind)) in builds.into_iter().enumerate() {
            let Sink::Build { keys, .. } = &pipeline.sink else { continue };
            let kind = if keys.len() > 1 && kind == JoinKind::NotIn { JoinKind::Anti } else { kind };
            let mut condition = None;
            let payload = match (kind, op) {
                (JoinKind::Inner | JoinKind::Left, _) => {
                    // Whoever comes after a left join may read what its condition does.
                    if let (JoinKind::Left, Some(op)) = (kind, op) {
                        let register = Expr::Register(types.len());
                        condition = Some(Expr::compare(op, Expr::Register(WIDE), register));
                    }
                    types.extend([WIDE, FLAG, LATE, TWIN].map(|column| TYPES[column]));
                    vec![WIDE, FLAG, LATE, TWIN]
                }
                // Nobody else may read what a condition does: there is no register after it.
                (JoinKind::Semi | JoinKind::Anti, Some(op)) if number + 1 == last => {
                    let register = Expr::Register(types.len());
                    condition = Some(Expr::compare(op, Expr::Register(WIDE), register));
                    vec![WIDE]
                }
                (JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn, _) => vec![],
            };
            steps.push(Step::Probe(Probe { table: number, kind, keys: keys.clone(), payload, condition }));
            pipelines.push(pipeline);
        }
        let registers = Registers(types);
        let filter = prop_oneof![3 => registers.bool(2), 2 => range()];
        let filters = prop::collection::vec(filter.prop_map(Step::Filter), 0..3);
        let to_double = |expr| Expr::ToDouble { expr: Box::new(expr), scale: 0 };
        // Whose squares 128 bits hold.
        let small = move |expr| to_double(Expr::arithmetic(ArithmeticOp::Rem, expr, Expr::int(1000), BIGINT));
        let aggregate = (0..14, registers.int(2), registers.any()).prop_map(move |(kind, expr, any)| match kind {
            0 => Aggregate::CountRows,
            1 => Aggregate::Count(any),
            2 => Aggregate::Sum(expr),
            3 => Aggregate::Min(expr),
            4 => Aggregate::Max(expr),
            5 => Aggregate::CountDistinct(expr),
            6 => Aggregate::CountDistinct(any),
            7 => Aggregate::SumDistinct(expr),
            8 => Aggregate::Sum(to_double(expr)),
            9 => Aggregate::Min(to_double(expr)),
            10 => Aggregate::Max(to_double(expr)),
            11 => Aggregate::Min(any),
            12 => Aggregate::VariancePop(small(expr)),
            _ => Aggregate::VarianceSamp(small(expr)),
        });
        let late = prop::sample::select(registers.of(Type::LateText)).prop_map(Expr::Register);
        let flagged = (prop::sample::select(registers.of(Type::Bool)), late.clone())
            .prop_map(|(flag, late)| Expr::Case { branches: vec![(Expr::Register(flag), late)], otherwise: None });
        // What may determine a late text, so that groups are by its rows.
        let wide = Just(Expr::Register(WIDE));
        let key = prop_oneof![6 => registers.any(), 3 => late, 1 => flagged, 2 => wide];
        let grouped = (prop::collection::vec(key, 0..4), prop::collection::vec(aggregate, 1..4))
            .prop_map(|(keys, aggregates)| Sink::Aggregate { keys, aggregates });
        let collected = prop::collection::vec(registers.any(), 1..4).prop_map(|columns| Sink::Collect { columns });
        let direction = prop::sample::select(vec![Direction::Ascending, Direction::Descending]);
        let nulls = prop::sample::select(vec![Nulls::First, Nulls::Last]);
        let plain = prop::sample::select(vec![KEY, WIDE, FLAG, TEXT]).prop_map(Expr::Register);
        let expr = prop_oneof![4 => plain, 3 => registers.any(), 1 => registers.int(0).prop_map(to_double)];
        let key = (expr, direction, nulls).prop_map(|(expr, direction, nulls)| SortKey { expr, direction, nulls });
        let rows = prop_oneof![1usize..4, 1usize..100, 1usize..5000];
        let first = (rows, prop::collection::vec(key, 1..4), prop::collection::vec(registers.any(), 0..4));
        // What it is told by is in the answer.
        let first = first.prop_map(|(rows, keys, columns)| {
            let columns = keys.iter().map(|key| key.expr.clone()).chain(columns).collect();
            Sink::Top { rows, keys, columns }
        });
        (filters, prop_oneof![3 => grouped, 1 => collected, 2 => first]).prop_map(move |(filters, sink)| {
            let mut steps = steps.clone();
            steps.extend(filters);
            let last = Pipeline { source: 1, columns: (0..COLUMNS).collect(), steps, sink };
            Program { pipelines: pipelines.iter().cloned().chain([last]).collect() }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn pipelines_do_what_the_naive_interpreter_does(
        build in table(0..40, 12),
        facts in prop_oneof![table(0..60, 15), table(1000..2500, 15), table(2900..4200, 300)],
        program in program(),
        threads in 1usize..3,
        in_memory in any::<[bool; 2]>(),
        every in 2u64..7,
    ) {
        let tables = [build, facts];
        let sources: Vec<Arc<dyn Source>> =
            tables.iter().zip(in_memory).map(|(table, in_memory)| table.source(in_memory)).collect();
        let domains: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
        let Ok(shapes) = ir::validate(&program, &domains) else { return Ok(()) };
        let expected = expected(&program, &shapes, &tables);
        // A group that does not fit cannot be spilled, nor can a join table.
        match (actual(&program, &sources, threads, Stingy::budget(every)), &expected) {
            (Ok(actual), Ok(expected)) => prop_assert!(expected.allows(&actual), "spilled: {actual:?} {expected:?}\n{program}"),
            (Err(Error::OutOfRange { .. } | Error::DivisionByZero { .. }), Err(())) => {}
            (Err(Error::Unsupported(_) | Error::Memory { .. }), _) => {}
            (actual, expected) => prop_assert!(false, "spilled: {actual:?} {expected:?}\n{program}"),
        }
        let execution = Execution::new(program.clone(), sources.to_vec(), 0).unwrap();
        if let Some(table) = (0..program.pipelines.len() - 1).find(|table| execution.may_pass(*table)) {
            match (in_passes(&program, &sources, table, every as u32 - 1), &expected) {
                (Ok(actual), Ok(expected)) => prop_assert!(expected.allows(&actual), "in passes: {actual:?} {expected:?}\n{program}"),
                (Err(Error::OutOfRange { .. } | Error::DivisionByZero { .. }), Err(())) => {}
                (Err(Error::Unsupported(_)), _) => {}
                (actual, expected) => prop_assert!(false, "in passes: {actual:?} {expected:?}\n{program}"),
            }
        }
        match (actual(&program, &sources, threads, 1 << 30), expected) {
            (Ok(actual), Ok(expected)) => prop_assert!(expected.allows(&actual), "{actual:?} {expected:?}\n{program}"),
            (Err(Error::OutOfRange { .. } | Error::DivisionByZero { .. }), Err(())) => {}
            (Err(Error::Unsupported(_)), _) => {}
            (actual, expected) => prop_assert!(false, "{actual:?} {expected:?}\n{program}"),
        }
    }
}

/// What the random programs are about must be there.
#[test]
fn texts_that_hardly_repeat_are_read_late() {
    let late = |v: i128| (v % 9 > 0).then_some(v * 7919 % 1000 + 4);
    let row = |v: i128| vec![Some(v), Some(v), Some(v % 2), Some(v % 4), late(v), Some(v + 4)];
    let source = Table { rows: (0..1501).map(row).collect() }.stored();
    let types: Vec<Type> = source.columns().iter().map(|domain| domain.ty).collect();
    assert_eq!(types, TYPES);
    // What compares texts is refused.
    let (late, twin) = (Expr::Register(LATE), Expr::Register(TWIN));
    let collect = |step: Option<Step>, columns: Vec<Expr>| Pipeline {
        source: 0,
        columns: (0..COLUMNS).collect(),
        steps: step.into_iter().collect(),
        sink: Sink::Collect { columns },
    };
    let aggregate = |aggregate: Aggregate| Pipeline {
        sink: Sink::Aggregate { keys: Vec::new(), aggregates: vec![aggregate] },
        ..collect(None, Vec::new())
    };
    let compared = Expr::compare(CompareOp::Equal, late.clone(), twin.clone());
    let chosen = Expr::Case { branches: vec![(Expr::Register(FLAG), late.clone())], otherwise: Some(Box::new(twin)) };
    for pipeline in [
        collect(Some(Step::Filter(compared)), vec![Expr::Register(KEY)]),
        collect(None, vec![Expr::compare(CompareOp::Less, late.clone(), Expr::Register(TEXT))]),
        collect(None, vec![chosen]),
        collect(None, vec![Expr::Coalesce(vec![late.clone(), Expr::Register(TEXT)])]),
        aggregate(Aggregate::Min(late.clone())),
        aggregate(Aggregate::Max(late.clone())),
        aggregate(Aggregate::CountDistinct(late.clone())),
        aggregate(Aggregate::Sum(late.clone())),
        Pipeline {
            sink: Sink::Top {
                rows: 3,
                keys: vec![SortKey { expr: late, direction: Direction::Ascending, nulls: Nulls::Last }],
                columns: vec![Expr::Register(KEY)],
            },
            ..collect(None, Vec::new())
        },
    ] {
        let program = Program { pipelines: vec![pipeline] };
        let refused = Execution::new(program.clone(), vec![Arc::clone(&source)], 1 << 20);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{program} {refused:?}");
    }
}

/// Of blocks that follow each other only those are read that may have the first rows, and of the columns that nothing
/// else asks for only their blocks.
#[test]
fn blocks_without_a_chance_are_never_read() {
    let row = |v: i128| vec![Some(v / 3), Some(v * 7), Some(v % 2), Some(v % 4), Some(v % 900 + 4), Some(v + 4)];
    let tables = [Table { rows: (0..30_000).map(row).collect() }];
    let keys = |expr, direction| vec![SortKey { expr, direction, nulls: Nulls::Last }];
    let quotient = Expr::arithmetic(ArithmeticOp::Div, Expr::int(1), Expr::Register(WIDE), BIGINT);
    let filter = Step::Filter(Expr::compare(CompareOp::Less, Expr::Register(KEY), Expr::int(9000)));
    for (direction, steps, computed, can_skip) in [
        (Direction::Descending, vec![], Expr::Register(WIDE), true),
        (Direction::Ascending, vec![], Expr::Register(WIDE), true),
        (Direction::Descending, vec![filter.clone()], Expr::Register(TEXT), true),
        // It fails for the first row, which is not asked for.
        (Direction::Descending, vec![filter], quotient, false),
    ] {
        let source = tables[0].stored();
        let keys = keys(Expr::Register(KEY), direction);
        let columns = vec![Expr::Register(KEY), computed, Expr::Register(LATE)];
        let sink = Sink::Top { rows: 10, keys, columns };
        let pipeline = Pipeline { source: 0, columns: (0..COLUMNS).collect(), steps, sink };
        let program = Program { pipelines: vec![pipeline] };
        let shapes = ir::validate(&program, &[source.columns().to_vec()]).unwrap();
        let mut execution = Execution::new(program.clone(), vec![Arc::clone(&source)], 1 << 20).unwrap();
        let stage = execution.stage(0).unwrap();
        let mut worker = Worker::new(&stage, &Arc::default());
        let mut outcome = worker.step();
        while matches!(outcome, Ok(Some(_))) {
            outcome = worker.step();
        }
        let expected = expected(&program, &shapes, &tables);
        let skipped = stage.top().unwrap().morsels_skipped;
        assert_eq!((skipped > 20, outcome.is_ok(), expected.is_ok()), (can_skip, can_skip, can_skip), "{program}");
        let Ok(expected) = expected else { continue };
        let Answer::Rows(rows) = execution.finish(0, &stage, vec![worker]).unwrap() else { panic!() };
        assert!(expected.allows(&rows_of(&rows.chunks)), "{program}");
    }
}

/// Groups by rows of texts are put together from files, in memory by parts, and in memory by one thread.
#[test]
fn equal_texts_of_spilled_groups_are_one() {
    // Three rows of each integer, most of which have equal texts; the integers have too many values not to determine them.
    let late = |v: i128| (v % 11 > 0).then_some(v % 6000 + if v % 10 == 0 { v / 6000 * 10_000 } else { 0 } + 4);
    let row = |v: i128| vec![Some(v % 300), Some(v % 6000 * 1_000_003), Some(v % 2), Some(v % 4), late(v), Some(v + 4)];
    let tables = [Table { rows: Vec::new() }, Table { rows: (0..18_000).map(row).collect() }];
    let sources: Vec<Arc<dyn Source>> = tables.iter().map(Table::stored).collect();
    let register = Expr::Register;
    let sink = Sink::Aggregate {
        keys: vec![register(LATE), register(WIDE)],
        aggregates: vec![
            Aggregate::CountRows,
            Aggregate::Sum(register(KEY)),
            Aggregate::Min(register(KEY)),
            Aggregate::CountDistinct(register(FLAG)),
            Aggregate::SumDistinct(register(KEY)),
        ],
    };
    let program =
        Program { pipelines: vec![Pipeline { source: 1, columns: (0..COLUMNS).collect(), steps: vec![], sink }] };
    let domains: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
    let shapes = ir::validate(&program, &domains).unwrap();
    let Expected::Rows(expected) = expected(&program, &shapes, &tables).unwrap() else { panic!() };
    assert!((6000..9000).contains(&expected.len()), "{}", expected.len());
    for threads in [1, 2] {
        assert_eq!(sorted(actual(&program, &sources, threads, 1 << 30).unwrap()), expected);
    }
    let mut spilled = 0;
    for (every, threads) in [(2, 1), (3, 2), (4, 1), (5, 2), (7, 1), (11, 2), (29, 1), (31, 2)] {
        let budget = Stingy::budget(every);
        match actual(&program, &sources, threads, budget.clone()) {
            Ok(actual) => assert_eq!(sorted(actual), expected, "{every} {threads}"),
            // There are no more levels of partitions.
            Err(Error::Memory { .. }) => continue,
            Err(e) => panic!("{e}"),
        }
        spilled += usize::from(budget.0.ledger().snapshot().spilled_bytes > 0);
    }
    assert!(spilled >= 4, "{spilled}");
    // Groups by texts that nothing determines cannot be parted before all texts are known.
    let mut by_text = program.clone();
    if let Sink::Aggregate { keys, .. } = &mut by_text.pipelines[0].sink {
        keys.pop();
    }
    let budget = Stingy::budget(3);
    let refused = actual(&by_text, &sources, 2, budget.clone());
    assert!(matches!(refused, Err(Error::Memory { .. })), "{refused:?}");
    assert_eq!(budget.0.ledger().snapshot().spilled_bytes, 0);
}
