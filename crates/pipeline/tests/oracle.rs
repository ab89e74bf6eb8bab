//! Random programs over random tables give what a naive interpreter gives, which takes one row at a time, knows no
//! vectors and no domains, and computes in 128 bits.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int32Array, Int64Array, RecordBatch, StringViewArray};
use arrow_schema::{DataType, Field, Schema};
use onehop_io::{Ledger, MemoryFile};
use onehop_pipeline::cpu::{Execution, ResultColumn, ResultValues, run};
use onehop_pipeline::ir::{Aggregate, JoinKind, Pipeline, Probe, Program, Sink, Step};
use onehop_pipeline::{ArithmeticOp, Bounds, CompareOp, Error, Expr, SegmentSource, Source, Type, Value};
use onehop_segment::{BlockCache, Segment, SegmentOptions, SegmentWriter};
use proptest::prelude::*;

/// A row: booleans are 0 and 1, texts are their place in [`TEXTS`].
type Row = Vec<Option<i128>>;

const TEXTS: [&str; 4] = ["ash", "birch", "cedar", "elm"];
const BIGINT: Bounds = Bounds { min: i64::MIN as i128, max: i64::MAX as i128, type_name: "BIGINT" };

/// Columns of every table here: a small key, a wide integer, a boolean, a text.
#[derive(Clone, Debug)]
struct Table {
    rows: Vec<Row>,
}

const KEY: usize = 0;
const WIDE: usize = 1;
const FLAG: usize = 2;
const TEXT: usize = 3;
const COLUMNS: usize = 4;

fn table(rows: impl Into<prop::collection::SizeRange>, keys: i128) -> impl Strategy<Value = Table> {
    let null = |value: BoxedStrategy<i128>| prop::option::weighted(0.9, value);
    let wide = prop_oneof![4 => -1000i128..1000, 1 => any::<i32>().prop_map(i128::from), 1 => any::<i64>().prop_map(i128::from)];
    let row =
        (null((0..keys).boxed()), null(wide.boxed()), null((0i128..2).boxed()), null((0..TEXTS.len() as i128).boxed()));
    prop::collection::vec(row.prop_map(|(a, b, c, d)| vec![a, b, c, d]), rows).prop_map(|rows| Table { rows })
}

impl Table {
    /// Several segments of small blocks, so that dictionaries differ and vectors are cut.
    fn source(&self) -> Arc<dyn Source> {
        let ledger = Arc::new(Ledger::default());
        let mut blocks = Vec::new();
        for rows in self.rows.chunks(1500) {
            let fields = [DataType::Int32, DataType::Int64, DataType::Boolean, DataType::Utf8View];
            let fields: Vec<Field> =
                fields.into_iter().enumerate().map(|(i, t)| Field::new(format!("c{i}"), t, true)).collect();
            let column = |column: usize| rows.iter().map(move |row| row[column]);
            let arrays: Vec<ArrayRef> = vec![
                Arc::new(column(KEY).map(|v| v.map(|v| v as i32)).collect::<Int32Array>()),
                Arc::new(column(WIDE).map(|v| v.map(|v| v as i64)).collect::<Int64Array>()),
                Arc::new(column(FLAG).map(|v| v.map(|v| v == 1)).collect::<BooleanArray>()),
                Arc::new(column(TEXT).map(|v| v.map(|v| TEXTS[v as usize])).collect::<StringViewArray>()),
            ];
            let schema = Arc::new(Schema::new(fields));
            let mut writer = SegmentWriter::new(&schema, SegmentOptions { block_rows: 1024 }).unwrap();
            writer.append(&RecordBatch::try_new(schema, arrays).unwrap()).unwrap();
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
        ];
        let columns: Vec<_> = types.into_iter().enumerate().map(|(i, t)| (i, t, true)).collect();
        let cache = Arc::new(BlockCache::new(1 << 20));
        Arc::new(SegmentSource::new("t", blocks, &columns, cache, ledger).unwrap())
    }
}

/// The naive interpreter's answer for an expression: `Err` if it fails.
fn value(expr: &Expr, row: &Row) -> Result<Option<i128>, ()> {
    let all = |exprs: &[Expr]| exprs.iter().map(|e| value(e, row)).collect::<Result<Vec<_>, _>>();
    Ok(match expr {
        Expr::Register(register) => row[*register],
        Expr::Literal(Value::Int(value)) => Some(*value),
        Expr::Literal(Value::Bool(value)) => Some((*value).into()),
        Expr::Literal(_) => None,
        Expr::Arithmetic { op, left, right, bounds } => match (value(left, row)?, value(right, row)?) {
            (Some(a), Some(b)) => {
                let result = match op {
                    ArithmeticOp::Add => a + b,
                    ArithmeticOp::Sub => a - b,
                    ArithmeticOp::Mul => a * b,
                    ArithmeticOp::Div => a.checked_div(b).ok_or(())?,
                    ArithmeticOp::Rem => a.checked_rem(b).ok_or(())?,
                };
                Some(result).filter(|r| (bounds.min..=bounds.max).contains(r)).ok_or(())?.into()
            }
            _ => None,
        },
        Expr::Compare { op, left, right } => match (value(left, row)?, value(right, row)?) {
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
        Expr::And(exprs) => {
            let values = all(exprs)?;
            if values.contains(&Some(0)) {
                Some(0)
            } else {
                values.iter().copied().collect::<Option<Vec<_>>>().map(|_| 1)
            }
        }
        Expr::Or(exprs) => {
            let values = all(exprs)?;
            if values.contains(&Some(1)) {
                Some(1)
            } else {
                values.iter().copied().collect::<Option<Vec<_>>>().map(|_| 0)
            }
        }
        Expr::Not(inner) => value(inner, row)?.map(|v| 1 - v),
        Expr::IsNull(inner) => Some(value(inner, row)?.is_none().into()),
        Expr::In { expr, list } => value(expr, row)?.map(|v| list.contains(&v).into()),
        Expr::Case { branches, otherwise } => {
            for (condition, result) in branches {
                if value(condition, row)? == Some(1) {
                    return value(result, row);
                }
            }
            otherwise.as_ref().map_or(Ok(None), |otherwise| value(otherwise, row))?
        }
        Expr::Coalesce(exprs) => all(exprs)?.into_iter().flatten().next(),
        other => panic!("{other} is not generated"),
    })
}

/// Rows of a pipeline before its sink, given the rows of tables before it as (key, payload).
fn rows(pipeline: &Pipeline, sources: &[Table], tables: &[Vec<(Row, Row)>]) -> Result<Vec<Row>, ()> {
    let table = &sources[pipeline.source];
    let mut rows: Vec<Row> =
        table.rows.iter().map(|row| pipeline.columns.iter().map(|column| row[*column]).collect()).collect();
    for step in &pipeline.steps {
        let mut next = Vec::new();
        for row in rows {
            match step {
                Step::Filter(condition) => {
                    if value(condition, &row)? == Some(1) {
                        next.push(row);
                    }
                }
                Step::Map(expr) => {
                    let value = value(expr, &row)?;
                    next.push(row.into_iter().chain([value]).collect());
                }
                Step::Probe(probe) => {
                    let key: Row = probe.keys.iter().map(|key| value(key, &row)).collect::<Result<_, _>>()?;
                    let is_match = |entry: &&(Row, Row)| entry.0 == key && !key.contains(&None);
                    let matches: Vec<&(Row, Row)> = tables[probe.table].iter().filter(is_match).collect();
                    let payload = |entry: &(Row, Row)| probe.payload.iter().map(|c| entry.1[*c]).collect::<Row>();
                    let joined = |payload: Row| row.iter().copied().chain(payload).collect::<Row>();
                    match probe.kind {
                        JoinKind::Inner => next.extend(matches.into_iter().map(|entry| joined(payload(entry)))),
                        JoinKind::Left if matches.is_empty() => next.push(joined(vec![None; probe.payload.len()])),
                        JoinKind::Left => next.extend(matches.into_iter().map(|entry| joined(payload(entry)))),
                        JoinKind::Semi if matches.is_empty() => {}
                        JoinKind::Anti if !matches.is_empty() => {}
                        JoinKind::Semi | JoinKind::Anti => next.push(row),
                    }
                }
            }
        }
        rows = next;
    }
    Ok(rows)
}

/// The answer's rows, sorted.
fn expected(program: &Program, sources: &[Table]) -> Result<Vec<Row>, ()> {
    let mut tables: Vec<Vec<(Row, Row)>> = Vec::new();
    for pipeline in &program.pipelines {
        let rows = rows(pipeline, sources, &tables)?;
        let values = |exprs: &[Expr], row: &Row| exprs.iter().map(|e| value(e, row)).collect::<Result<Row, ()>>();
        match &pipeline.sink {
            Sink::Build { keys, payload } => {
                let entries = rows.iter().map(|row| Ok((values(keys, row)?, values(payload, row)?)));
                let entries = entries.collect::<Result<Vec<_>, ()>>()?;
                tables.push(entries.into_iter().filter(|(key, _)| !key.contains(&None)).collect());
            }
            Sink::Collect { columns } => {
                let mut answer = rows.iter().map(|row| values(columns, row)).collect::<Result<Vec<_>, ()>>()?;
                answer.sort();
                return Ok(answer);
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
                        let argument =
                            |row: &Row| aggregate.argument().map_or(Ok(None), |argument| value(argument, row));
                        let values = rows.iter().map(argument).collect::<Result<Vec<_>, ()>>()?;
                        let values: Vec<i128> = values.into_iter().flatten().collect();
                        key.push(match aggregate {
                            Aggregate::CountRows => Some(rows.len() as i128),
                            Aggregate::Count(_) => Some(values.len() as i128),
                            Aggregate::Sum(_) => (!values.is_empty()).then(|| values.iter().sum()),
                            Aggregate::Min(_) => values.iter().min().copied(),
                            Aggregate::Max(_) => values.iter().max().copied(),
                        });
                    }
                    answer.push(key);
                }
                answer.sort();
                return Ok(answer);
            }
        }
    }
    Ok(Vec::new())
}

fn actual(program: &Program, sources: &[Table], threads: usize) -> Result<Vec<Row>, Error> {
    let sources = sources.iter().map(Table::source).collect();
    let mut execution = Execution::new(program.clone(), sources, 1 << 30)?;
    let mut answer = Vec::new();
    for chunk in run(&mut execution, threads)? {
        answer.extend((0..chunk[0].len()).map(|row| chunk.iter().map(|column| cell(column, row)).collect::<Row>()));
    }
    answer.sort();
    Ok(answer)
}

fn cell(column: &ResultColumn, row: usize) -> Option<i128> {
    let is_valid = column.valid.as_ref().is_none_or(|valid| valid[row]);
    is_valid.then(|| match &column.values {
        ResultValues::Bool(values) => values[row].into(),
        ResultValues::Int(values) => values[row].into(),
        ResultValues::Wide(values) => values[row],
        ResultValues::Double(values) => values[row] as i128,
        ResultValues::Text(codes, dictionary) => {
            let text = dictionary.texts().value(codes[row] as usize);
            TEXTS.iter().position(|t| *t == text).unwrap() as i128
        }
    })
}

/// Expressions over registers of known types.
#[derive(Clone, Debug)]
struct Registers(Vec<Type>);

impl Registers {
    fn of(&self, ty: Type) -> Vec<usize> {
        (0..self.0.len()).filter(|register| self.0[*register] == ty).collect()
    }

    fn int(&self, depth: u32) -> BoxedStrategy<Expr> {
        let leaf = prop_oneof![
            3 => prop::sample::select(self.of(Type::Int)).prop_map(Expr::Register),
            1 => (-20i64..20).prop_map(Expr::int),
            1 => Just(Expr::Literal(Value::Null(Type::Int))),
        ];
        if depth == 0 {
            return leaf.boxed();
        }
        let ops = vec![ArithmeticOp::Add, ArithmeticOp::Sub, ArithmeticOp::Mul, ArithmeticOp::Div, ArithmeticOp::Rem];
        let bounds =
            prop_oneof![3 => Just(BIGINT), 1 => Just(Bounds { min: -50_000, max: 50_000, type_name: "SMALL" })];
        prop_oneof![
            3 => leaf,
            2 => (prop::sample::select(ops), self.int(depth - 1), self.int(depth - 1), bounds)
                .prop_map(|(op, a, b, bounds)| Expr::arithmetic(op, a, b, bounds)),
            1 => (self.bool(depth - 1), self.plain_int(), prop::option::of(self.plain_int())).prop_map(|(c, a, b)| {
                Expr::Case { branches: vec![(c, a)], otherwise: b.map(Box::new) }
            }),
            1 => prop::collection::vec(self.plain_int(), 1..3).prop_map(Expr::Coalesce),
        ]
        .boxed()
    }

    /// Cannot fail.
    fn plain_int(&self) -> BoxedStrategy<Expr> {
        self.int(0)
    }

    /// Cannot fail either.
    fn bool(&self, depth: u32) -> BoxedStrategy<Expr> {
        let ops = vec![
            CompareOp::Equal,
            CompareOp::NotEqual,
            CompareOp::Less,
            CompareOp::LessOrEqual,
            CompareOp::Greater,
            CompareOp::GreaterOrEqual,
        ];
        let compare = (prop::sample::select(ops), self.plain_int(), self.plain_int());
        let every = (0..self.0.len()).collect::<Vec<_>>();
        let leaf = prop_oneof![
            4 => compare.prop_map(|(op, a, b)| Expr::compare(op, a, b)),
            1 => prop::sample::select(self.of(Type::Bool)).prop_map(Expr::Register),
            1 => prop::sample::select(every).prop_map(|r| Expr::IsNull(Box::new(Expr::Register(r)))),
            1 => (self.plain_int(), prop::collection::vec(-20i128..20, 0..5))
                .prop_map(|(expr, list)| Expr::In { expr: Box::new(expr), list }),
            1 => Just(Expr::Literal(Value::Null(Type::Bool))),
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
        ]
        .boxed()
    }

    fn any(&self) -> BoxedStrategy<Expr> {
        let every = (0..self.0.len()).collect::<Vec<_>>();
        prop_oneof![2 => prop::sample::select(every).prop_map(Expr::Register), 1 => self.int(1), 1 => self.bool(1)]
            .boxed()
    }
}

const TYPES: [Type; COLUMNS] = [Type::Int, Type::Int, Type::Bool, Type::Text];

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

fn program() -> impl Strategy<Value = Program> {
    let kinds = prop::sample::select(&[JoinKind::Inner, JoinKind::Left, JoinKind::Semi, JoinKind::Anti][..]);
    let builds = prop::collection::vec((build(), kinds), 0..3);
    builds.prop_flat_map(|builds| {
        let mut types = TYPES.to_vec();
        let mut steps = Vec::new();
        let mut pipelines = Vec::new();
        for (number, (pipeline, kind)) in builds.into_iter().enumerate() {
            let Sink::Build { keys, .. } = &pipeline.sink else { continue };
            let payload = match kind {
                JoinKind::Inner | JoinKind::Left => vec![WIDE, FLAG],
                JoinKind::Semi | JoinKind::Anti => vec![],
            };
            types.extend(payload.iter().map(|column| TYPES[*column]));
            steps.push(Step::Probe(Probe { table: number, kind, keys: keys.clone(), payload }));
            pipelines.push(pipeline);
        }
        let registers = Registers(types);
        let filters = prop::collection::vec(registers.bool(2).prop_map(Step::Filter), 0..3);
        let aggregate = (0..5, registers.int(2)).prop_map(|(kind, expr)| match kind {
            0 => Aggregate::CountRows,
            1 => Aggregate::Count(expr),
            2 => Aggregate::Sum(expr),
            3 => Aggregate::Min(expr),
            _ => Aggregate::Max(expr),
        });
        let grouped = (prop::collection::vec(registers.any(), 0..3), prop::collection::vec(aggregate, 1..4))
            .prop_map(|(keys, aggregates)| Sink::Aggregate { keys, aggregates });
        let collected = prop::collection::vec(registers.any(), 1..4).prop_map(|columns| Sink::Collect { columns });
        (filters, prop_oneof![3 => grouped, 1 => collected]).prop_map(move |(filters, sink)| {
            let mut steps = steps.clone();
            steps.extend(filters);
            let last = Pipeline { source: 1, columns: (0..COLUMNS).collect(), steps, sink };
            Program { pipelines: pipelines.iter().cloned().chain([last]).collect() }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn pipelines_do_what_the_naive_interpreter_does(
        build in table(0..40usize, 12),
        facts in prop_oneof![table(0..60usize, 15), table(1000..2500usize, 15)],
        program in program(),
        threads in 1usize..3,
    ) {
        let sources = [build, facts];
        match (actual(&program, &sources, threads), expected(&program, &sources)) {
            (Ok(actual), Ok(expected)) => prop_assert_eq!(actual, expected, "{}", program),
            (Err(Error::OutOfRange { .. } | Error::DivisionByZero { .. }), Err(())) => {}
            (Err(Error::Unsupported(_)), _) => {}
            (actual, expected) => prop_assert!(false, "{actual:?} {expected:?}\n{program}"),
        }
    }
}
