//! The shapes that star queries have, written by hand, on columns that are stored as segments store them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{Field, Schema};
use onehop_io::{Ledger, MemoryFile};
use onehop_pipeline::cpu::{Execution, ResultColumn, ResultValues};
use onehop_pipeline::ir::{Aggregate, JoinKind, Pipeline, Probe, Program, Sink, Step};
use onehop_pipeline::{ArithmeticOp, Bounds, CompareOp, Expr, SegmentSource, Source};
use onehop_segment::{BlockCache, ColumnType, Segment, SegmentOptions, SegmentWriter};

use crate::fake;
use crate::fused::{Answer, Executor, Options, Uploads};

pub const BIGINT: Bounds = Bounds { min: i64::MIN as i128, max: i64::MAX as i128, type_name: "BIGINT" };

/// Columns of 64-bit integers as segments of so many rows.
pub fn stored(columns: &[Vec<Option<i64>>], segment_rows: usize, block_rows: usize) -> Arc<dyn Source> {
    let ledger = Arc::new(Ledger::default());
    let rows = columns[0].len();
    let mut blocks = Vec::new();
    for from in (0..rows).step_by(segment_rows) {
        let to = (from + segment_rows).min(rows);
        let arrays: Vec<ArrayRef> =
            columns.iter().map(|c| Arc::new(Int64Array::from(c[from..to].to_vec())) as ArrayRef).collect();
        let fields: Vec<Field> =
            (0..columns.len()).map(|n| Field::new(format!("c{n}"), arrow_schema::DataType::Int64, true)).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
        let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows }).unwrap();
        writer.append(&batch).unwrap();
        let file = MemoryFile::new("t.seg", Vec::new());
        writer.finish(&file, &ledger).unwrap();
        let segment = Arc::new(Segment::open(Arc::new(file), &ledger).unwrap());
        blocks.extend((0..segment.blocks()).map(|block| (Arc::clone(&segment), block)));
    }
    let types: Vec<_> = (0..columns.len()).map(|n| (n, ColumnType::Int64, true)).collect();
    let cache = Arc::new(BlockCache::new(1 << 24));
    Arc::new(SegmentSource::new("t", blocks, &types, cache, ledger, 0).unwrap())
}

pub fn options() -> Options {
    Options { threads: 64, blocks: 1, many_rows: 0, counts: true }
}

/// Rows of an answer, sorted, as text.
pub fn rows_of(chunks: &[Vec<ResultColumn>]) -> Vec<Vec<Option<i128>>> {
    let mut rows = Vec::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
        for row in 0..chunk[0].len() {
            rows.push(chunk.iter().map(|column| cell(column, row)).collect());
        }
    }
    rows.sort();
    rows
}

fn cell(column: &ResultColumn, row: usize) -> Option<i128> {
    if column.valid.as_ref().is_some_and(|valid| !valid[row]) {
        return None;
    }
    Some(match &column.values {
        ResultValues::Bool(values) => values[row].into(),
        ResultValues::Int(values) => values[row].into(),
        ResultValues::Wide(values) => values[row],
        ResultValues::Double(values) => values[row].to_bits().into(),
        ResultValues::Text(codes, _) => codes[row].into(),
        ResultValues::LateText(rows, _) => rows[row].into(),
    })
}

/// Runs a program on the device and on the CPU, and compares.
pub fn same(executor: &Executor, program: Program, sources: Vec<Arc<dyn Source>>) -> Answer {
    let mut execution = Execution::new(program.clone(), sources, 1 << 30).unwrap();
    let images = Uploads::new(executor.context());
    let answer = executor.run(&execution, &images, &AtomicBool::new(false)).unwrap();
    let expected = onehop_pipeline::cpu::run(&mut execution, 1).unwrap();
    assert_eq!(rows_of(&answer.chunks), rows_of(&expected), "{program}");
    answer
}

pub fn executor() -> Executor {
    Executor::new(&fake::context(), &fake::nvrtc(), None, options())
}

pub fn r(register: usize) -> Expr {
    Expr::Register(register)
}

fn between(register: usize, low: i64, high: i64) -> Step {
    Step::Filter(Expr::And(vec![
        Expr::compare(CompareOp::GreaterOrEqual, r(register), Expr::int(low)),
        Expr::compare(CompareOp::LessOrEqual, r(register), Expr::int(high)),
    ]))
}

fn values(rows: usize, of: impl Fn(u64) -> i64) -> Vec<Option<i64>> {
    (0..rows as u64).map(|row| Some(of(row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20))).collect()
}

fn facts(rows: usize) -> Arc<dyn Source> {
    let date = values(rows, |x| 19_920_101 + (x % 2556) as i64);
    let discount = values(rows, |x| (x / 7 % 11) as i64);
    let quantity = values(rows, |x| 1 + (x / 77 % 50) as i64);
    let price = values(rows, |x| 90_000 + (x / 3 % 10_000_000) as i64);
    let part = values(rows, |x| 1 + (x / 11 % 1400) as i64);
    let supplier = values(rows, |x| 1 + (x / 13 % 200) as i64);
    stored(&[date, discount, quantity, price, part, supplier], 5000, 2048)
}

fn dimension(rows: usize, attribute: impl Fn(usize) -> i64, first: i64) -> Arc<dyn Source> {
    let key = (0..rows).map(|row| Some(first + row as i64)).collect();
    let region = (0..rows).map(|row| Some(row as i64 * 7 % 5)).collect();
    let attribute = (0..rows).map(|row| Some(attribute(row))).collect();
    stored(&[key, region, attribute], 2000, 1024)
}

#[test]
fn query_1_1() {
    let pipeline = Pipeline {
        source: 0,
        columns: vec![0, 1, 2, 3],
        steps: vec![
            between(0, 19_920_400, 19_920_800),
            between(1, 1, 3),
            Step::Filter(Expr::compare(CompareOp::Less, r(2), Expr::int(25))),
        ],
        sink: Sink::Aggregate {
            keys: vec![],
            aggregates: vec![
                Aggregate::Sum(Expr::arithmetic(ArithmeticOp::Mul, r(3), r(1), BIGINT)),
                Aggregate::CountRows,
                Aggregate::Min(r(3)),
                Aggregate::Max(r(3)),
            ],
        },
    };
    let executor = executor();
    let answer = same(&executor, Program { pipelines: vec![pipeline] }, vec![facts(12_345)]);
    println!("{:?}", answer.pipelines);
}

fn build(source: usize, steps: Vec<Step>, payload: Vec<Expr>) -> Pipeline {
    Pipeline { source, columns: vec![0, 1, 2], steps, sink: Sink::Build { keys: vec![r(0)], payload } }
}

fn probe(table: usize, key: usize, payload: Vec<usize>) -> Step {
    Step::Probe(Probe { table, kind: JoinKind::Inner, keys: vec![r(key)], payload, condition: None })
}

#[test]
fn query_2_1() {
    let pipelines = vec![
        build(1, vec![], vec![r(2)]),
        build(2, vec![between(1, 2, 2)], vec![r(2)]),
        build(3, vec![between(1, 1, 1)], vec![]),
        Pipeline {
            source: 0,
            columns: vec![0, 4, 5, 3],
            steps: vec![probe(0, 0, vec![0]), probe(1, 1, vec![0]), probe(2, 2, vec![])],
            sink: Sink::Aggregate {
                keys: vec![r(4), r(5)],
                aggregates: vec![Aggregate::Sum(r(3)), Aggregate::CountRows],
            },
        },
    ];
    let sources = vec![
        facts(30_000),
        dimension(2556, |row| 1992 + row as i64 / 366, 19_920_101),
        dimension(1400, |row| row as i64 % 40, 1),
        dimension(200, |row| row as i64 % 25, 1),
    ];
    let executor = executor();
    let answer = same(&executor, Program { pipelines }, sources);
    println!("{:?}", answer.pipelines);
}
