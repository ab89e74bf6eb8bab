//! Tests of groups over rows in the order of their keys. For any number of workers, with and
//! without enough memory, and for any row that breaks the order, the answer is that of unordered
//! rows.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use onehop_io::{Ledger, MemoryFile, MemoryVolume};
use onehop_pipeline::cpu::{Execution, ResultColumn, ResultValues, run};
use onehop_pipeline::ir::{Aggregate, Pipeline, Program, Sink, Step};
use onehop_pipeline::{Budget, CompareOp, Expr, SegmentSource, Source, Value};
use onehop_segment::{BlockCache, BlockList, ColumnType, Segment, SegmentOptions, SegmentWriter};

const ROWS: i64 = 400_000;
const SEGMENT_ROWS: usize = 100_000;

type Row = (i64, i64, Option<i64>);
type Answers = BTreeMap<(i64, i64), (i64, i64, i64, Option<i64>)>;

/// Returns rows whose first column ascends as far as `key` does.
fn rows(key: impl Fn(i64) -> i64) -> Vec<Row> {
    (0..ROWS).map(|row| (key(row), row % 7 / 3, (row % 5 != 0).then_some(row % 1000 - 300))).collect()
}

/// Returns blocks of several segments, as if several threads had written them.
fn source(rows: &[Row]) -> Arc<dyn Source> {
    let ledger = Arc::new(Ledger::default());
    let names = ["k", "p", "v"];
    let schema = Arc::new(Schema::new(names.map(|name| Field::new(name, DataType::Int64, true)).to_vec()));
    let mut blocks = BlockList::default();
    for rows in rows.chunks(SEGMENT_ROWS) {
        let key = rows.iter().map(|row| row.0).collect::<Int64Array>();
        let part = rows.iter().map(|row| row.1).collect::<Int64Array>();
        let value = rows.iter().map(|row| row.2).collect::<Int64Array>();
        let columns: Vec<ArrayRef> = vec![Arc::new(key), Arc::new(part), Arc::new(value)];
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        let mut writer = SegmentWriter::new(&schema, SegmentOptions { block_rows: 8192 }).unwrap();
        writer.append(&batch).unwrap();
        let file = MemoryFile::new("t.seg", Vec::new());
        writer.finish(&file, &ledger).unwrap();
        let segment = Arc::new(Segment::open(Arc::new(file), &ledger).unwrap());
        blocks.push_all(&segment, 0..segment.blocks());
    }
    let columns: Vec<_> = (0..names.len()).map(|column| (column, ColumnType::Int64, true)).collect();
    Arc::new(
        SegmentSource::new("t", Arc::new(blocks), &columns, Arc::new(BlockCache::new(64 << 20)), ledger, 0).unwrap(),
    )
}

/// `SELECT k[, p], count(*), count(v), min(v)[, count(DISTINCT v)] WHERE v <> 7 GROUP BY k[, p]`
fn program(has_part: bool, has_sets: bool) -> Program {
    let (k, p, v) = (Expr::Register(0), Expr::Register(1), Expr::Register(2));
    let mut aggregates = vec![Aggregate::CountRows, Aggregate::Count(v.clone()), Aggregate::Min(v.clone())];
    aggregates.push(if has_sets { Aggregate::CountDistinct(v.clone()) } else { Aggregate::Sum(v.clone()) });
    let seven = Expr::Literal(Value::Int(7));
    let steps = vec![Step::Filter(Expr::compare(CompareOp::NotEqual, v, seven))];
    let sink = Sink::Aggregate { keys: if has_part { vec![k, p] } else { vec![k] }, aggregates };
    Program { pipelines: vec![Pipeline { source: 0, columns: vec![0, 1, 2], steps, sink }] }
}

fn expected(rows: &[Row], has_part: bool, has_sets: bool) -> Answers {
    let mut groups: BTreeMap<(i64, i64), Vec<i64>> = BTreeMap::new();
    for (key, part, value) in rows {
        // NULL <> 7 is not true.
        let Some(value) = value.filter(|value| *value != 7) else { continue };
        groups.entry((*key, if has_part { *part } else { 0 })).or_default().push(value);
    }
    let answer = |values: Vec<i64>| {
        let (n, least, sum) = (values.len() as i64, values.iter().min().copied(), values.iter().sum());
        let distinct = values.into_iter().collect::<std::collections::BTreeSet<_>>().len() as i64;
        (n, n, if has_sets { distinct } else { sum }, least)
    };
    groups.into_iter().map(|(key, values)| (key, answer(values))).collect()
}

fn cell(column: &ResultColumn, row: usize) -> Option<i64> {
    column.valid.as_ref().is_none_or(|valid| valid[row]).then(|| match &column.values {
        ResultValues::Int(values) => values[row],
        ResultValues::Wide(values) => values[row] as i64,
        other => panic!("{other:?}"),
    })
}

fn answers(chunks: &[Vec<ResultColumn>], has_part: bool) -> Answers {
    let mut answers = Answers::new();
    for chunk in chunks {
        let keys = 1 + usize::from(has_part);
        for row in 0..chunk[0].len() {
            let at = |column: usize| cell(&chunk[column], row);
            let key = (at(0).unwrap(), if has_part { at(1).unwrap() } else { 0 });
            let group = (at(keys).unwrap(), at(keys + 1).unwrap(), at(keys + 3).unwrap(), at(keys + 2));
            assert!(answers.insert(key, group).is_none(), "a group is there twice: {key:?}");
        }
    }
    answers
}

fn check(rows: &[Row], has_part: bool, has_sets: bool) {
    let expected = expected(rows, has_part, has_sets);
    assert!(expected.len() > 30_000);
    let ledger = Arc::new(Ledger::default());
    for (threads, budget) in [
        (1, Budget::from(1 << 30)),
        (2, Budget::from(1 << 30)),
        (5, Budget::from(1 << 30)),
        (1, Budget::with_volume(2 << 20, Arc::new(MemoryVolume::new("memory")), Arc::clone(&ledger))),
        (2, Budget::with_volume(4 << 20, Arc::new(MemoryVolume::new("memory")), Arc::clone(&ledger))),
    ] {
        let mut execution = Execution::new(program(has_part, has_sets), vec![source(rows)], budget).unwrap();
        let found = answers(&run(&mut execution, threads).unwrap(), has_part);
        assert!(found == expected, "{threads} threads, {has_part} {has_sets}");
    }
    assert!(ledger.snapshot().spilled_bytes > 1 << 20);
}

#[test]
fn keys_in_order_are_groups() {
    for (has_part, has_sets) in [(false, false), (true, false), (false, true)] {
        check(&rows(|row| row / 7 * 3), has_part, has_sets);
    }
}

#[test]
fn blocks_are_read_in_order() {
    // The last segment comes first; adjacent segments share a key.
    let keys = |row: i64| {
        let (segment, row) = (row / SEGMENT_ROWS as i64, row % SEGMENT_ROWS as i64);
        (3 - segment) * ((SEGMENT_ROWS as i64 - 1) / 7) + row / 7
    };
    check(&rows(keys), false, false);
}

#[test]
fn the_order_may_end_anywhere() {
    for end in [1, 70_000, ROWS - 1] {
        check(&rows(|row| if row < end { row / 5 } else { row * 7919 % (ROWS / 5) }), false, false);
    }
}
