//! Measures the number of stored bytes per second that a thread processes in a pipeline. The
//! pipeline filters and sums packed columns, as most scans of a fact table do.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use onehop_io::{Ledger, MemoryFile};
use onehop_pipeline::cpu::{self, Execution};
use onehop_pipeline::ir::{Aggregate, Pipeline, Program, Sink, Step};
use onehop_pipeline::{ArithmeticOp, Bounds, CompareOp, Expr, SegmentSource, Value};
use onehop_segment::{BlockCache, BlockList, ColumnType, Segment, SegmentOptions, SegmentWriter};

use crate::Result;

/// The number of rows: some milliseconds of work.
const ROWS: i64 = 1 << 18;
/// The number of runs. The first one reads and verifies the blocks.
const RUNS: usize = 3;
/// The rate in bytes per second if it cannot be measured.
const GUESS: f64 = 2e9;

/// Returns the measured rate in bytes per second.
pub(super) fn measured() -> f64 {
    // Any error leads to the default.
    measure().ok().filter(|rate| rate.is_finite() && *rate > 0.0).unwrap_or(GUESS)
}

fn measure() -> Result<f64> {
    let ledger = Arc::new(Ledger::default());
    // Widths as in a fact table: a day, a price, a discount.
    let column = |modulus: i64, factor: i64| -> ArrayRef {
        Arc::new((0..ROWS).map(|row| row * factor % modulus).collect::<Int64Array>())
    };
    let columns = [("day", column(2556, 7919)), ("price", column(1 << 20, 104_729)), ("discount", column(11, 31))];
    let batch = RecordBatch::try_from_iter(columns)?;
    let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions::default())?;
    writer.append(&batch)?;
    let file = MemoryFile::new("rows to measure with", Vec::new());
    writer.finish(&file, &ledger)?;
    let segment = Arc::new(Segment::open(Arc::new(file), &ledger)?);
    let mut blocks = BlockList::default();
    blocks.push_all(&segment, 0..segment.blocks());
    let bytes: u64 = (0..3).map(|column| blocks.stored_bytes(column)).sum();
    let typed = [0, 1, 2].map(|column| (column, ColumnType::Int64, false));
    let cache = Arc::new(BlockCache::new(16 << 20));
    let source = SegmentSource::new("rows to measure with", Arc::new(blocks), &typed, cache, ledger, 0)?;
    let execution = Execution::new(program(), vec![Arc::new(source)], 16 << 20)?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let began = Instant::now();
        cpu::run(&mut execution.with_budget(16 << 20), 1)?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    Ok(bytes as f64 / best)
}

/// Returns the program of `SELECT sum(price * discount) WHERE day < 365 * 4`.
fn program() -> Program {
    let [day, price, discount] = [0, 1, 2].map(Expr::Register);
    let days = Expr::Literal(Value::Int(365 * 4));
    let bounds = Bounds { min: i64::MIN.into(), max: i64::MAX.into(), type_name: "BIGINT" };
    let revenue = Expr::arithmetic(ArithmeticOp::Mul, price, discount, bounds);
    let steps = vec![Step::Filter(Expr::compare(CompareOp::Less, day, days))];
    let sink = Sink::Aggregate { keys: Vec::new(), aggregates: vec![Aggregate::Sum(revenue)] };
    Program { pipelines: vec![Pipeline { source: 0, columns: vec![0, 1, 2], steps, sink }] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_a_rate() {
        let rate = measure().unwrap_or_else(|e| panic!("{e}"));
        assert!(rate.is_finite() && rate > 1e6, "{rate}");
    }
}
