//! Blocks that are read ahead are correct: by streams and by scans, through the page cache and past
//! it, with much memory and with little.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use onehop_io::{Ledger, LocalFile, RequestedPath};
use onehop_segment::{
    AheadFacts, BlockCache, BlockColumn, BlockList, BlockScan, BlockStream, Segment, SegmentOptions, SegmentWriter,
};

const COLUMNS: usize = 3;
const BLOCK_ROWS: usize = 16 << 10;
const ROWS: usize = 9 * BLOCK_ROWS + 1234;

/// Returns a wide integer, different for every row and column.
fn value(column: usize, row: usize) -> i64 {
    ((row * COLUMNS + column) as i64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)
}

fn segment(folder: &std::path::Path) -> Arc<Segment> {
    let column = |column| Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| value(column, row)))) as ArrayRef;
    let batch = RecordBatch::try_from_iter((0..COLUMNS).map(|n| (format!("c{n}"), column(n)))).unwrap();
    let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: BLOCK_ROWS }).unwrap();
    writer.append(&batch).unwrap();
    let path = folder.join("segment");
    let file = LocalFile::create(&path, RequestedPath::PreferHostDirect).unwrap();
    writer.finish(&file, &Ledger::default()).unwrap();
    let file = LocalFile::open(&path, RequestedPath::Buffered).unwrap();
    Arc::new(Segment::open(Arc::new(file), &Ledger::default()).unwrap())
}

fn check(loaded: &BlockColumn, column: usize, block: usize) {
    let array = loaded.decode(0..loaded.rows()).unwrap();
    let array = array.as_any().downcast_ref::<Int64Array>().unwrap();
    let expected = (0..loaded.rows()).map(|row| value(column, block * BLOCK_ROWS + row));
    assert!(array.values().iter().copied().eq(expected), "column {column}, block {block}");
}

fn stored_bytes(segment: &Segment) -> u64 {
    (0..COLUMNS).flat_map(|c| (0..segment.blocks()).map(move |b| segment.stored_bytes(c, b))).sum()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn streams_hand_out_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let segment = segment(folder.path());
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    for path in [RequestedPath::PreferHostDirect, RequestedPath::Buffered, RequestedPath::Auto] {
        for budget in [0, 1 << 16, 1 << 20, 64 << 20] {
            let blocks = (0..segment.blocks()).map(|block| (Arc::clone(&segment), block)).collect();
            let mut stream = BlockStream::new(path, blocks, vec![2, 0], &Arc::default(), budget);
            let mut block = 0;
            loop {
                match stream.poll_next(&mut Context::from_waker(&waker)) {
                    Poll::Pending => thread::park(),
                    Poll::Ready(next) => {
                        let Some(columns) = next.unwrap() else { break };
                        check(&columns[0], 2, block);
                        check(&columns[1], 0, block);
                        block += 1;
                    }
                }
            }
            assert_eq!(block, segment.blocks());
            let AheadFacts { way, ahead_bytes, late_bytes } = stream.facts();
            assert!(way.is_none() || *late_bytes == 0, "{path:?} {budget}: {late_bytes} of {ahead_bytes} late");
        }
    }
}

#[test]
fn scans_hand_out_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let segment = segment(folder.path());
    let blocks: Arc<BlockList> = Arc::new((0..segment.blocks()).map(|block| (Arc::clone(&segment), block)).collect());
    for path in [RequestedPath::PreferHostDirect, RequestedPath::Buffered] {
        for (threads, horizon_bytes) in [(1, 0), (1, 1 << 20), (1, 32 << 20), (4, 32 << 20)] {
            let cache = Arc::new(BlockCache::new(0).by_path(path));
            // From the end to the start, with a column that is not in `sure`.
            let order: Vec<usize> = (0..blocks.len()).rev().collect();
            let (columns, sure) = ((0..COLUMNS).collect(), [0, 2]);
            let scan = BlockScan::new(&cache, &Arc::default(), &blocks, order.clone(), columns, &sure, horizon_bytes);
            let taken = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        while let Some(block) = order.get(taken.fetch_add(1, Relaxed)) {
                            let at = blocks.len() - 1 - block;
                            scan.begin(at);
                            (0..COLUMNS).for_each(|column| check(&scan.load(at, column).unwrap(), column, *block));
                            scan.end(at);
                        }
                    });
                }
            });
            let AheadFacts { way, ahead_bytes, late_bytes } = scan.facts();
            // Without reading ahead, nothing is counted.
            let counted = if way.is_some() { stored_bytes(&segment) } else { 0 };
            assert_eq!(ahead_bytes + late_bytes, counted, "{path:?} {threads} {horizon_bytes}");
            assert_eq!(way.is_some(), horizon_bytes > 0);
        }
    }
}
