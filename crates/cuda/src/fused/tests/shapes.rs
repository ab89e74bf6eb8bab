//! Star queries, and helpers shared by tests: columns stored as segments, and the comparison with
//! the CPU backend.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use onehop_io::{Ledger, MemoryFile};
use onehop_pipeline::cpu::{Execution, ResultColumn, ResultValues};
use onehop_pipeline::ir::Program;
use onehop_pipeline::{Bounds, Expr, SegmentSource, Source};
use onehop_segment::{BlockCache, BlockList, ColumnType, Segment, SegmentOptions, SegmentWriter};

use super::star::Star;
use crate::fake;
use crate::fused::{Answer, Executor, Options, Uploads};

pub const BIGINT: Bounds = Bounds { min: i64::MIN as i128, max: i64::MAX as i128, type_name: "BIGINT" };

/// Stores columns of 64-bit integers as segments of `segment_rows` rows.
pub fn stored(columns: &[Vec<Option<i64>>], segment_rows: usize, block_rows: usize) -> Arc<dyn Source> {
    let arrays = columns.iter().map(|column| Arc::new(Int64Array::from(column.clone())) as ArrayRef).collect();
    let fields = (0..columns.len()).map(|n| Field::new(format!("c{n}"), DataType::Int64, true));
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), arrays).unwrap();
    let types: Vec<_> = (0..columns.len()).map(|n| (n, ColumnType::Int64, true)).collect();
    stored_batch(&batch, &types, segment_rows, block_rows)
}

/// Stores rows as segments of `segment_rows` rows.
pub fn stored_batch(
    batch: &RecordBatch,
    types: &[(usize, ColumnType, bool)],
    segment_rows: usize,
    block_rows: usize,
) -> Arc<dyn Source> {
    let ledger = Arc::new(Ledger::default());
    let mut blocks = BlockList::default();
    for from in (0..batch.num_rows()).step_by(segment_rows) {
        let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows }).unwrap();
        writer.append(&batch.slice(from, segment_rows.min(batch.num_rows() - from))).unwrap();
        let file = MemoryFile::new("t.seg", Vec::new());
        writer.finish(&file, &ledger).unwrap();
        let segment = Arc::new(Segment::open(Arc::new(file), &ledger).unwrap());
        blocks.push_all(&segment, 0..segment.blocks());
    }
    let cache = Arc::new(BlockCache::new(1 << 24));
    // Strings get a dictionary, whatever their number.
    Arc::new(SegmentSource::new("t", Arc::new(blocks), types, cache, ledger, u64::MAX).unwrap())
}

pub fn options() -> Options {
    Options { threads: 64, wide_threads: 64, blocks: 1, many_rows: 0, ..Options::default() }
}

/// Returns the rows of a result, sorted, as integers.
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

/// Runs a program on the device and on the CPU, and compares the results.
pub fn same(executor: &Executor, program: Program, sources: Vec<Arc<dyn Source>>) -> Answer {
    let mut execution = Execution::new(program.clone(), sources, 1 << 30).unwrap();
    let images = Uploads::new(executor.context());
    let answer = executor.run(&execution, &images, &AtomicBool::new(false)).unwrap();
    let expected = onehop_pipeline::cpu::run(&mut execution, 1).unwrap();
    assert_eq!(rows_of(&answer.chunks), rows_of(&expected), "{program}");
    answer
}

pub fn executor() -> Executor {
    executor_of(options())
}

pub fn executor_of(options: Options) -> Executor {
    Executor::new(&fake::context(), &fake::nvrtc(), None, options)
}

pub fn r(register: usize) -> Expr {
    Expr::Register(register)
}

#[test]
fn star_queries() {
    let executor = executor();
    for (name, program, sources) in Star::new(20_000, 0.02).queries() {
        let answer = same(&executor, program, sources);
        assert!(!answer.chunks.is_empty(), "{name}");
        // The input of a step is the output of the previous one, and the last step passes some
        // rows.
        let steps = &answer.pipelines.last().unwrap().steps;
        assert!(steps.iter().all(|step| step.rows_out > 0 && step.rows_out <= step.rows_in), "{name}: {steps:?}");
    }
}

/// Constants that exclude any part of the rows, including none and all, share kernels.
#[test]
fn queries_of_one_shape_are_compiled_once() {
    let executor = executor_of(Options { counts: false, ..options() });
    let star = Star::new(20_000, 0.02);
    let discounts = [(1, 3), (0, 10), (11, 20)];
    let quantities = [(0, 24), (26, 35), (1, 50), (-5, 0)];
    let mut queries = 0;
    for (number, discounts) in discounts.into_iter().enumerate() {
        for (more, quantities) in quantities.into_iter().enumerate() {
            for year in [1992 + (number + more) as i64, 1998, 2005] {
                let (_, program, sources) = star.query_1(year, discounts, quantities);
                same(&executor, program, sources);
                queries += 1;
            }
        }
    }
    assert_eq!(queries, 36);
    assert_eq!(executor.compiler().counts().compiled, 2, "{:?}", executor.compiler().counts());
}
