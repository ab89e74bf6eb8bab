//! Statistics of a run: columns that stay, columns that are streamed, each byte counted once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use onehop_io::{Ledger, MemoryFile};
use onehop_pipeline::cpu::ResultValues;
use onehop_pipeline::ir::{Aggregate, Pipeline, Program, Sink};
use onehop_pipeline::{Budget, Changes, Expr, FreshChunk, FreshRun, SegmentSource};
use onehop_segment::{BlockCache, BlockList, ColumnType, DeletedRows, Segment, SegmentOptions, SegmentWriter};

use super::*;
use crate::fake;
use crate::staging::Shape;

const ROWS: i64 = 5000;

/// Returns a column of ascending numbers as one segment.
fn stored() -> (Arc<dyn Source>, Stored) {
    let column: ArrayRef = Arc::new((0..ROWS).collect::<Int64Array>());
    let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
    let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: 1024 }).unwrap();
    writer.append(&batch).unwrap();
    let file = MemoryFile::new("t.seg", Vec::new());
    writer.finish(&file, &Ledger::default()).unwrap();
    let segment = Arc::new(Segment::open(Arc::new(file), &Ledger::default()).unwrap());
    let blocks = Arc::new((0..segment.blocks()).map(|block| (&segment, block)).collect::<BlockList>());
    let (cache, ledger) = (Arc::new(BlockCache::new(1 << 24)), Arc::new(Ledger::default()));
    let source =
        SegmentSource::new("t", Arc::clone(&blocks), &[(0, ColumnType::Int64, false)], cache, ledger, 0).unwrap();
    (Arc::new(source), Stored { blocks, columns: vec![0] })
}

/// Returns a program that sums the column.
fn summing(source: &Arc<dyn Source>) -> Execution {
    let sink = Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::Sum(Expr::Register(0))] };
    let pipeline = Pipeline { source: 0, columns: vec![0], steps: vec![], sink };
    Execution::new(Program { pipelines: vec![pipeline] }, vec![Arc::clone(source)], 1 << 30).unwrap()
}

/// Sums the column. Returns the statistics of the device, and the bytes to the device in its
/// ledger.
fn run(device: &Arc<dyn Backend>, stored: &(Arc<dyn Source>, Stored), residence: Residence) -> (DeviceRan, u64) {
    let execution = summing(&stored.0);
    let hints = Hints { stored: vec![Some(stored.1.clone())], residence, ..Hints::default() };
    let ledgers = [Arc::new(Ledger::default())];
    let (cancelled, did_rows) = (AtomicBool::new(false), |_| {});
    let budget = Budget::from(0);
    let control =
        Control { cancelled: &cancelled, counts_steps: false, ledgers: &ledgers, did_rows: &did_rows, budget: &budget };
    let mut sums = Vec::new();
    let prepared = device.prepare(&execution, &hints).unwrap();
    let ran = prepared.run(&control, &mut |columns| {
        sums.extend(columns.into_iter().map(|column| match column.values {
            ResultValues::Int(values) => i128::from(values[0]),
            ResultValues::Wide(values) => values[0],
            other => panic!("{other:?}"),
        }));
        Ok(())
    });
    assert_eq!(sums, [i128::from(ROWS * (ROWS - 1) / 2)]);
    (ran.unwrap().remove(0), ledgers[0].snapshot().hop(Hop::HostToDevice))
}

#[test]
fn rows_that_have_changed_are_refused() {
    let options = Options { threads: 64, wide_threads: 64, blocks: 1, ..Options::default() };
    let devices = CudaDevices::of_contexts(&[fake::context()], &fake::nvrtc(), options);
    let device = &devices.all().unwrap()[0];
    let (_, Stored { blocks, .. }) = stored();
    let column: ArrayRef = Arc::new(Int64Array::from(vec![7]));
    let chunk = Arc::new(FreshChunk::new(RecordBatch::try_from_iter([("n", column)]).unwrap()));
    let gone = DeletedRows::new([(1, 3)]).block(1).cloned();
    for (changes, is_refused) in [
        (Changes::default(), false),
        (Changes { deleted: vec![None, gone], fresh: vec![] }, true),
        (Changes { deleted: vec![], fresh: vec![FreshRun { chunk, deleted: None }] }, true),
    ] {
        let (cache, ledger) = (Arc::new(BlockCache::new(1 << 24)), Arc::new(Ledger::default()));
        let columns = [(0, ColumnType::Int64, false)];
        let source =
            SegmentSource::with_changes("t", Arc::clone(&blocks), &columns, cache, ledger, 0, changes).unwrap();
        let prepared = device.prepare(&summing(&(Arc::new(source) as Arc<dyn Source>)), &Hints::default());
        assert_eq!(
            prepared.err().map(|Refusal(why)| why.contains("fresh and deleted rows of t")),
            is_refused.then_some(true)
        );
    }
}

#[test]
fn what_is_streamed_is_told_and_counted_once() {
    let staging = Shape { batch_bytes: 1, slots: 2, threads: 2 };
    let options = Options { threads: 64, wide_threads: 64, blocks: 1, staging, ..Options::default() };
    let devices = CudaDevices::of_contexts(&[fake::context()], &fake::nvrtc(), options);
    let device = &devices.all().unwrap()[0];
    assert!(device.rates().unwrap().to_device_bytes_per_sec > 0.0);
    let stored = stored();
    for _ in 0..2 {
        let (ran, moved) = run(device, &stored, Residence::Off);
        let streamed = ran.streamed.unwrap();
        assert_eq!((streamed.batches, ran.launches, ran.resident_bytes), (5, 5, 0));
        assert!(streamed.bytes > 0 && streamed.bytes < ran.moved_bytes && ran.moved_bytes == moved, "{ran:?}, {moved}");
    }
    let (brought, moved) = run(device, &stored, Residence::Auto);
    assert!(
        brought.streamed.is_none() && brought.launches == 1 && brought.moved_bytes == moved,
        "{brought:?}, {moved}"
    );
    // The column is resident now, also for a run that loads nothing to stay.
    for residence in [Residence::Auto, Residence::Off] {
        let (ran, _) = run(device, &stored, residence);
        assert!(ran.streamed.is_none() && ran.resident_bytes > 0 && ran.moved_bytes < brought.moved_bytes, "{ran:?}");
    }
}
