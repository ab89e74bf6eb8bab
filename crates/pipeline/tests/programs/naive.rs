//! A naive interpreter. It processes one row at a time, without vectors, in 128 bits. It evaluates
//! lazily, which is the reference for guards. From the pipelines it only uses the fallibility of
//! expressions.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, StringViewArray};
use arrow_schema::DataType;
use onehop_pipeline::bind::bind;
use onehop_pipeline::ir::{
    Aggregate, Direction, JoinKind, Nulls, Pipeline, Probe, Program, Shape, Sink, SortKey, Step,
};
use onehop_pipeline::{ArithmeticOp, CompareOp, Domain, Expr, Value};

use super::tables::{Row, Table, double, text_of};

/// Naive interpreter of one pipeline.
pub struct Naive<'a> {
    registers: &'a [Domain],
}

impl Naive<'_> {
    pub fn is_fallible(&self, expr: &Expr) -> bool {
        bind(expr, self.registers).unwrap().is_fallible
    }

    /// Returns the conditions of an AND or OR in evaluation order.
    fn in_turn<'e>(&self, all: impl Iterator<Item = &'e Expr>) -> Vec<&'e Expr> {
        let (last, first): (Vec<&Expr>, Vec<&Expr>) = all.partition(|expr| self.is_fallible(expr));
        first.into_iter().chain(last).collect()
    }

    /// Evaluates an expression: `Err` if it fails.
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

    /// Evaluates AND (decided by 0) or OR (decided by 1).
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

/// Returns the conditions of an AND, nested in any way.
pub fn conjuncts(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::And(all) => all.iter().flat_map(conjuncts).collect(),
        other => vec![other],
    }
}

/// A filter or probe, with the first register that it adds.
#[derive(Clone, Copy)]
pub enum Act<'a> {
    Filter(&'a Expr),
    Probe(&'a Probe, usize),
}

impl Naive<'_> {
    /// Returns filters and probes in the order in which they may fail: always the next one that
    /// cannot fail and whose registers exist.
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

    /// Returns the rows of a pipeline before its sink, given the rows of earlier tables as (key,
    /// payload).
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

/// Allowed answers.
#[derive(Debug, PartialEq)]
pub enum Expected {
    /// These rows, in any order.
    Rows(Vec<Row>),
    /// The first `rows` of these rows in the order of their keys, which are their leading columns.
    First { rows: usize, keys: Vec<SortedBy>, of: Vec<Row> },
}

/// Comparison of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SortedBy {
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
    /// Returns true if an answer is allowed.
    pub fn allows(&self, answer: &[Row]) -> bool {
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

pub fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort();
    rows
}

/// Returns the allowed answers of a program.
pub fn expected(program: &Program, shapes: &[Shape], sources: &[Table]) -> Result<Expected, ()> {
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

/// Returns the result for a group of `rows` rows, of which `values` are not NULL.
pub fn aggregated(aggregate: &Aggregate, rows: usize, mut values: Vec<i128>, is_double: bool) -> Option<i128> {
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
