//! Resident columns on the fake device, read by programs that run there. The answers are the same
//! for resident columns, for columns transferred for one run, and for sources with a part of a
//! segment. The moved bytes are checked, too.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringViewArray};
use onehop_io::{Hop, Ledger, LocalFile, MemoryFile, RequestedPath};
use onehop_pipeline::backend::{DevicePath, Residence, SegmentKey, Stored, TakenPath};
use onehop_pipeline::cpu::{self, Execution, ResultColumn, ResultValues};
use onehop_pipeline::ir::{Aggregate, JoinKind, Pipeline, Probe, Program, Sink, Step};
use onehop_pipeline::{CompareOp, Error as PipelineError, Expr, SegmentSource, Source};
use onehop_segment::{BlockCache, ColumnType, Segment, SegmentOptions, SegmentWriter};

use super::*;
use crate::fake::{self, Answer as Fails, Call, Fault, Machine};
use crate::fused::form::Layout;
use crate::fused::{ColumnImage, Error, Executor, Images, Options, Part, StreamFacts};
use crate::staging::Shape;

const SEGMENTS: usize = 3;
const BLOCKS: usize = 4;
const BLOCK_ROWS: usize = 1024;

/// Returns a segment with numbers with NULLs, a few strings that differ between segments, doubles,
/// a constant number, and unique strings.
fn segment(number: usize) -> Arc<Segment> {
    let file = MemoryFile::new("t.seg", Vec::new());
    written(number).finish(&file, &Ledger::default()).unwrap();
    Arc::new(Segment::open(Arc::new(file), &Ledger::default()).unwrap())
}

/// Returns the same segment in a file of a folder.
fn segment_in(folder: &std::path::Path, number: usize) -> Arc<Segment> {
    let path = folder.join(format!("{number}.seg"));
    let file = LocalFile::create(&path, RequestedPath::Buffered).unwrap();
    written(number).finish(&file, &Ledger::default()).unwrap();
    let file = LocalFile::open(&path, RequestedPath::Buffered).unwrap();
    Arc::new(Segment::open(Arc::new(file), &Ledger::default()).unwrap())
}

fn written(number: usize) -> SegmentWriter {
    let rows = || (0..BLOCKS * BLOCK_ROWS).map(move |row| number * 10_000 + row);
    let columns: [(&str, ArrayRef); 5] = [
        ("number", Arc::new(rows().map(|v| (v % 7 > 0).then_some(v as i64 * 3)).collect::<Int64Array>())),
        ("text", Arc::new(rows().map(|v| Some(format!("text {}", v % 5 + number))).collect::<StringViewArray>())),
        ("double", Arc::new(rows().map(|v| Some(v as f64 / 8.0)).collect::<Float64Array>())),
        ("same", Arc::new(rows().map(|_| Some(number as i64)).collect::<Int64Array>())),
        ("unique", Arc::new(rows().map(|v| Some(format!("row {v}"))).collect::<StringViewArray>())),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap();
    let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: BLOCK_ROWS }).unwrap();
    writer.append(&batch).unwrap();
    writer
}

struct Place {
    executor: Executor,
    segments: Vec<Arc<Segment>>,
    columns: Columns,
    assembled: Assembled,
}

impl Place {
    fn new() -> Self {
        // Several batches of each column of a segment, and several items of each.
        let staging = Shape { batch_bytes: 16 << 10, slots: 3, threads: 2 };
        let options = Options { threads: 64, wide_threads: 64, blocks: 1, many_rows: 0, staging, ..Options::default() };
        let executor = Executor::new(&fake::context(), &fake::nvrtc(), None, options);
        let segments = (0..SEGMENTS).map(segment).collect();
        Self { executor, segments, columns: Columns::default(), assembled: Assembled::default() }
    }

    fn stored(&self, is_wanted: impl Fn(usize, usize) -> bool) -> Stored {
        let blocks = self.segments.iter().enumerate().flat_map(|(number, segment)| {
            let blocks = (0..segment.blocks()).filter(|block| is_wanted(number, *block)).collect::<Vec<_>>();
            blocks.into_iter().map(move |block| (segment, block))
        });
        Stored { blocks: Arc::new(blocks.collect()), columns: (0..5).collect() }
    }

    fn source(stored: &Stored) -> Arc<dyn Source> {
        let types =
            [ColumnType::Int64, ColumnType::Varchar, ColumnType::Float64, ColumnType::Int64, ColumnType::Varchar];
        let typed: Vec<_> = types.into_iter().enumerate().map(|(place, ty)| (place, ty, true)).collect();
        let cache = Arc::new(BlockCache::new(1 << 24));
        let ledger = Arc::new(Ledger::default());
        Arc::new(SegmentSource::new("t", Arc::clone(&stored.blocks), &typed, cache, ledger, 0).unwrap())
    }

    /// Runs on the device and compares with the CPU. Returns the resident and the moved bytes.
    fn same(&self, stored: &Stored, limit: u64) -> Bytes {
        self.same_if(stored, (limit, Residence::Auto)).0
    }

    /// The same. Also returns the streamed part of the moved bytes.
    fn same_if(&self, stored: &Stored, limit: (u64, Residence)) -> (Bytes, Option<StreamFacts>) {
        let source = Self::source(stored);
        let [number, text, double, same] = [0, 1, 2, 3].map(Expr::Register);
        let aggregates = vec![
            Aggregate::CountRows,
            Aggregate::Count(number.clone()),
            Aggregate::Sum(number),
            Aggregate::Max(double),
            Aggregate::Sum(same),
        ];
        let sink = Sink::Aggregate { keys: vec![text], aggregates };
        let pipeline = Pipeline { source: 0, columns: vec![0, 1, 2, 3], steps: Vec::new(), sink };
        let program = Program { pipelines: vec![pipeline] };
        let mut execution = Execution::new(program, vec![Arc::clone(&source)], 1 << 30).unwrap();
        let ledger = Arc::new(Ledger::default());
        let sources = vec![(source, Some(stored), Arc::clone(&ledger))];
        let images = ResidentImages::new(&self.executor, &self.columns, &self.assembled, limit, sources);
        let answer = self.executor.run(&execution, &images, &AtomicBool::new(false)).unwrap();
        let expected = cpu::run(&mut execution, 1).unwrap();
        assert_eq!(rows_of(&answer.chunks), rows_of(&expected));
        let bytes = images.bytes(0);
        assert_eq!(ledger.snapshot().hop(Hop::HostToDevice), bytes.moved);
        (bytes, answer.pipelines[0].streamed)
    }

    fn names(&self) -> usize {
        self.columns.list().len()
    }
}

/// Returns the rows of an answer, sorted, as strings.
fn rows_of(chunks: &[Vec<ResultColumn>]) -> Vec<String> {
    let cell = |column: &ResultColumn, row: usize| match &column.values {
        _ if column.valid.as_ref().is_some_and(|valid| !valid[row]) => "NULL".to_string(),
        ResultValues::Bool(values) => values[row].to_string(),
        ResultValues::Int(values) => values[row].to_string(),
        ResultValues::Wide(values) => values[row].to_string(),
        ResultValues::Double(values) => values[row].to_string(),
        ResultValues::Text(codes, dictionary) => dictionary.texts().value(codes[row] as usize).to_string(),
        ResultValues::LateText(rows, _) => rows[row].to_string(),
    };
    let mut rows = Vec::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
        rows.extend((0..chunk[0].len()).map(|row| {
            let cells: Vec<String> = chunk.iter().map(|column| cell(column, row)).collect();
            cells.join("|")
        }));
    }
    rows.sort();
    rows
}

#[test]
fn what_was_brought_is_found_again() {
    let place = Place::new();
    let all = place.stored(|_, _| true);
    let first = place.same(&all, u64::MAX);
    assert!(first.resident == 0 && first.moved > 0, "{first:?}");
    // Numbers, strings, doubles and the constant: whole segments of each.
    assert_eq!(place.names(), 4 * SEGMENTS);
    let again = place.same(&all, u64::MAX);
    assert!(again.moved == 0 && again.resident > 0, "{again:?}");
    // A part of the blocks has other dictionaries. No column data is moved, only the records of the
    // image.
    for wanted in [|_, block| block % 2 == 0, |segment, _| segment == 1, |segment, block| segment != 1 && block > 1] {
        let some = place.stored(wanted);
        let part = place.same(&some, u64::MAX);
        assert!(part.resident > 0 && part.resident < again.resident && part.moved < first.moved / 4, "{part:?}");
    }
    let listed = place.columns.list();
    assert!(listed.iter().all(|listed| listed.pins == 0 && !listed.is_kept), "{listed:?}");
    // Evicted columns are transferred again.
    let key = SegmentKey::of(&place.segments[0]);
    let gone: Vec<_> = listed.iter().map(|listed| listed.key.clone()).filter(|(of, _)| *of == key).collect();
    assert!(place.columns.evict(&gone) > 0);
    let without = place.same(&all, u64::MAX);
    assert!(without.moved > 0 && without.resident > 0 && without.moved < first.moved, "{without:?}");
}

#[test]
fn what_does_not_fit_or_is_not_whole_is_copied_for_the_run() {
    let place = Place::new();
    let all = place.stored(|_, _| true);
    let first = place.same(&all, 0);
    assert!(first.moved > 0 && place.names() == 0 && place.columns.bytes() == 0, "{first:?}");
    assert_eq!(place.same(&all, 0), first);
    let some = place.stored(|segment, block| segment == 2 && block < 3);
    place.same(&some, u64::MAX);
    assert_eq!(place.names(), 0);
    // As much as there is room for, and never more.
    let limit = first.moved / 2;
    for _ in 0..3 {
        place.same(&all, limit);
        assert!(place.columns.bytes() <= limit);
    }
}

#[test]
fn what_is_not_to_stay_is_streamed_and_what_is_there_is_used() {
    let place = Place::new();
    let all = place.stored(|_, _| true);
    let off = (u64::MAX, Residence::Off);
    let (bytes, streamed) = place.same_if(&all, off);
    assert!(bytes.resident == 0 && streamed.unwrap().bytes == bytes.moved && place.names() == 0, "{bytes:?}");
    // Explicitly loaded columns serve all runs, together with streamed columns.
    let sources = vec![(Place::source(&all), Some(&all), Arc::default())];
    let limit = (u64::MAX, Residence::Auto);
    let images = ResidentImages::new(&place.executor, &place.columns, &place.assembled, limit, sources);
    images.load(0, &[0, 2], &AtomicBool::new(false)).unwrap();
    let (some, fewer) = place.same_if(&all, off);
    assert!(some.resident > 0 && fewer.unwrap().bytes < streamed.unwrap().bytes, "{some:?}, {fewer:?}");
    assert_eq!(place.names(), 2 * SEGMENTS);
    // With room for some columns, these stay and the others are transferred each time.
    place.columns.evict_if(|_| true);
    let (first, streamed) = place.same_if(&all, (bytes.moved / 2, Residence::Auto));
    assert!(streamed.is_some_and(|streamed| streamed.bytes < first.moved) && place.names() > 0, "{streamed:?}");
    let (_, again) = place.same_if(&all, (bytes.moved / 2, Residence::Auto));
    assert_eq!(again.map(|again| again.batches), streamed.map(|streamed| streamed.batches));
    assert!(place.same_if(&all, (u64::MAX, Residence::Auto)).1.is_none());
}

/// Concurrent sources have the same columns in another order, and do not deadlock.
#[test]
fn who_wants_the_same_columns_in_another_order_gets_them() {
    let place = Place::new();
    let all = place.stored(|_, _| true);
    let types = [ColumnType::Int64, ColumnType::Varchar, ColumnType::Float64, ColumnType::Int64];
    std::thread::scope(|scope| {
        // One of them has a column twice.
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 2, 1]] {
            let (place, all, types) = (&place, &all, &types);
            scope.spawn(move || {
                let stored = Stored { blocks: Arc::clone(&all.blocks), columns: order.to_vec() };
                let typed: Vec<_> = order.iter().map(|column| (*column, types[*column].clone(), true)).collect();
                let (cache, ledger) = (Arc::new(BlockCache::new(1 << 24)), Arc::new(Ledger::default()));
                let source = SegmentSource::new("t", Arc::clone(&stored.blocks), &typed, cache, ledger, 0).unwrap();
                let source: Arc<dyn Source> = Arc::new(source);
                for _ in 0..20 {
                    let sources = vec![(Arc::clone(&source), Some(&stored), Arc::default())];
                    let limit = (u64::MAX, Residence::Auto);
                    let images = ResidentImages::new(&place.executor, &place.columns, &place.assembled, limit, sources);
                    let loaded = images.load(0, &[0, 1, 2, 3], &AtomicBool::new(false)).unwrap();
                    assert!(loaded > 0);
                    place.columns.evict_if(|_| true);
                }
            });
        }
    });
    assert_eq!(place.columns.bytes(), 0);
}

/// Batches that are full to the last line.
#[test]
fn what_is_loaded_in_large_batches_stays() {
    let staging = Shape { batch_bytes: 96 << 10, slots: 2, threads: 2 };
    let executor = Executor::new(&fake::context(), &fake::nvrtc(), None, Options { staging, ..Options::default() });
    let place = Place { executor, ..Place::new() };
    let all = place.stored(|_, _| true);
    let (first, streamed) = place.same_if(&all, (u64::MAX, Residence::Auto));
    assert!(streamed.is_none() && place.names() == 4 * SEGMENTS, "{first:?}, {streamed:?}");
}

#[test]
fn loading_that_fails_leaves_nothing_and_can_be_tried_again() {
    let (machine, context) = Machine::start();
    {
        let executor = Executor::new(&context, &fake::nvrtc(), None, Options::default());
        let place = Place { executor, ..Place::new() };
        let all = place.stored(|_, _| true);
        let source = Place::source(&all);
        let load = |cancelled: &AtomicBool| {
            let sources = vec![(Arc::clone(&source), Some(&all), Arc::default())];
            let limit = (u64::MAX, Residence::Auto);
            let images = ResidentImages::new(&place.executor, &place.columns, &place.assembled, limit, sources);
            images.load(0, &[0, 1, 2, 3], cancelled)
        };
        let (no, yes) = (AtomicBool::new(false), AtomicBool::new(true));
        assert!(matches!(load(&yes), Err(Error::Pipeline(PipelineError::Cancelled))));
        for (call, at, code) in [(Call::Copy, 0, 700), (Call::Copy, 3, 700), (Call::Record, 0, 700)] {
            machine.set_faults(&[Fault { call, at, lasts: false, answer: Fails::Code(code) }]);
            assert!(matches!(load(&no), Err(Error::Device { .. })), "{call:?}");
            assert_eq!((place.names(), place.columns.bytes()), (0, 0), "{call:?}");
        }
        // No memory left, though there should be some.
        machine.set_faults(&[Fault { call: Call::Allocate, at: 5, lasts: false, answer: Fails::Code(2) }]);
        assert!(matches!(load(&no), Err(Error::Pipeline(PipelineError::Memory { .. }))));
        assert_eq!((place.names(), place.columns.bytes()), (0, 0));
        // A query that gets no memory streams the columns that do not fit.
        machine.set_faults(&[Fault { call: Call::Allocate, at: 5, lasts: false, answer: Fails::Code(2) }]);
        let (_, streamed) = place.same_if(&all, (u64::MAX, Residence::Auto));
        assert!(streamed.is_some() && place.names() == 3 * SEGMENTS, "{}", place.names());
        machine.set_faults(&[]);
        load(&no).unwrap();
        assert_eq!(place.names(), 4 * SEGMENTS);
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}

/// Forecasts from footers have the right forms, and an upper bound of the bytes.
#[test]
fn forecasts_come_true() {
    let place = Place::new();
    let wanted: [fn(usize, usize) -> bool; 3] = [|_, _| true, |segment, _| segment == 1, |_, block| block % 2 == 0];
    for wanted in wanted {
        let stored = place.stored(wanted);
        let source = Place::source(&stored);
        let morsels: Vec<(u32, u32)> =
            (0..source.morsels()).map(|morsel| (morsel as u32, source.rows(morsel) as u32)).collect();
        for column in 0..5 {
            let outlook = forecast::foreseen(&*source, &stored, &stored.runs(), column, &morsels);
            let image = ColumnImage::upload(place.executor.context(), &*source, column).unwrap();
            assert_eq!(outlook.forms, image.forms(), "column {column}");
            // Includes the records, which are not part of the blocks.
            let most: usize = outlook.bytes.iter().sum::<usize>() + morsels.len() * size_of::<Part>();
            let tables = if column == 1 { 4096 } else { 0 };
            assert!(image.bytes() <= most + tables, "column {column}: {} of {most}", image.bytes());
        }
    }
}

#[test]
fn what_is_loaded_stays() {
    let place = Place::new();
    let all = place.stored(|_, _| true);
    let source = Place::source(&all);
    let load = |column: usize, limit: u64| {
        let sources = vec![(Arc::clone(&source), Some(&all), Arc::default())];
        let images =
            ResidentImages::new(&place.executor, &place.columns, &place.assembled, (limit, Residence::Auto), sources);
        images.load(0, &[column], &AtomicBool::new(false)).map(|bytes| (bytes, images.bytes(0).moved))
    };
    let (bytes, moved) = load(0, u64::MAX).unwrap();
    assert_eq!(bytes, moved);
    assert_eq!(load(0, u64::MAX).unwrap(), (bytes, 0));
    assert!(place.columns.list().iter().all(|listed| listed.is_kept && listed.hits == 0));
    assert!(place.same(&all, u64::MAX).resident > 0);
    // Queries do not evict it.
    let kept = |place: &Place| place.columns.list().iter().filter(|listed| listed.is_kept).count();
    place.same(&all, place.columns.bytes());
    assert_eq!(kept(&place), SEGMENTS);
    // Unique strings are read in place.
    assert!(matches!(load(4, u64::MAX), Err(Error::Pipeline(PipelineError::Unsupported(_)))));
    place.columns.evict_if(|_| true);
    assert!(
        matches!(load(0, 100), Err(Error::Pipeline(PipelineError::Memory { needed, available: 100, .. })) if needed > 100)
    );
}

#[test]
fn runs_are_segments() {
    let place = Place::new();
    let is_whole =
        |stored: &Stored| stored.runs().iter().map(|run| (run.morsels.len(), run.is_whole)).collect::<Vec<_>>();
    assert_eq!(is_whole(&place.stored(|_, _| true)), [(BLOCKS, true); SEGMENTS]);
    assert_eq!(is_whole(&place.stored(|segment, block| segment > 0 && block > 0)), [(BLOCKS - 1, false); SEGMENTS - 1]);
    let first = place.stored(|segment, _| segment == 0);
    let swapped = [1, 0].into_iter().chain(2..BLOCKS).map(|block| first.blocks.at(block)).collect();
    assert_eq!(is_whole(&Stored { blocks: Arc::new(swapped), ..first }), [(BLOCKS, false)]);
}

/// Few values that are far apart are stored as codes, of other values in every segment. A filter
/// tests the code of a row if the value needs a lookup.
#[test]
fn codes_are_asked_about_wherever_their_columns_are() {
    let squares: fn(i64) -> i64 = |row| (row % 40) * (row % 40) * 50_000_007;
    codes_are_read(squares, |layout| matches!(layout, Layout::Codes64(6)));
    let steps: fn(i64) -> i64 = |row| row % 40 * 100_000_007;
    codes_are_read(steps, |layout| layout == Layout::Steps(6));
}

fn codes_are_read(spread: fn(i64) -> i64, is_expected: fn(Layout) -> bool) {
    let mut place = Place::new();
    place.segments = (0..SEGMENTS)
        .map(|number| {
            let rows = || (0..BLOCKS * BLOCK_ROWS).map(move |row| (number * 10_000 + row) as i64);
            let columns: [(&str, ArrayRef); 2] = [
                ("code", Arc::new(rows().map(|v| spread(v) + number as i64 % 2).collect::<Int64Array>())),
                ("value", Arc::new(rows().collect::<Int64Array>())),
            ];
            let batch = RecordBatch::try_from_iter(columns).unwrap();
            let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: BLOCK_ROWS }).unwrap();
            writer.append(&batch).unwrap();
            let file = MemoryFile::new("t.seg", Vec::new());
            writer.finish(&file, &Ledger::default()).unwrap();
            Arc::new(Segment::open(Arc::new(file), &Ledger::default()).unwrap())
        })
        .collect();
    let stored = Stored { columns: vec![0, 1], ..place.stored(|_, _| true) };
    let typed = [(0, ColumnType::Int64, false), (1, ColumnType::Int64, false)];
    let (cache, ledger) = (Arc::new(BlockCache::new(1 << 24)), Arc::new(Ledger::default()));
    let source = SegmentSource::new("t", Arc::clone(&stored.blocks), &typed, cache, Arc::clone(&ledger), 0).unwrap();
    let source: Arc<dyn Source> = Arc::new(source);
    assert!(source.is_coded(0));
    let register = Expr::Register;
    let is = |op, of, value: i64| Step::Filter(Expr::compare(op, register(of), Expr::int(value)));
    let few = Pipeline {
        source: 0,
        columns: vec![0, 1],
        steps: vec![is(CompareOp::Less, 1, 13)],
        sink: Sink::Build { keys: vec![register(0)], payload: vec![] },
    };
    let probe = Probe { table: 0, kind: JoinKind::Semi, keys: vec![register(0)], payload: vec![], condition: None };
    let all = Pipeline {
        source: 0,
        columns: vec![0, 1],
        steps: vec![
            Step::Probe(probe),
            is(CompareOp::Greater, 0, 200_000_000),
            is(CompareOp::LessOrEqual, 0, 900_000_063),
        ],
        sink: Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::CountRows, Aggregate::Sum(register(1))] },
    };
    let program = Program { pipelines: vec![few, all] };
    let mut execution = Execution::new(program, vec![Arc::clone(&source)], 1 << 30).unwrap();
    let expected = rows_of(&cpu::run(&mut execution, 1).unwrap());
    assert!(!expected[0].starts_with("0|"), "{expected:?}");
    // Transferred, resident, and too large to be kept.
    for limit in [u64::MAX, u64::MAX, 0] {
        let sources = vec![(Arc::clone(&source), Some(&stored), Arc::clone(&ledger))];
        let images =
            ResidentImages::new(&place.executor, &place.columns, &place.assembled, (limit, Residence::Auto), sources);
        let answer = place.executor.run(&execution, &images, &AtomicBool::new(false)).unwrap();
        assert_eq!(rows_of(&answer.chunks), expected, "{limit}");
        let image = images.column(&source, 0).unwrap();
        assert!(image.is_none_or(|image| image.forms().iter().all(|form| is_expected(Layout::of(*form)))));
    }
}

/// Blocks that are to stay are copied from the memory that they were read into.
#[test]
fn blocks_are_loaded_from_where_they_lie() {
    let mut place = Place::new();
    place.executor.register_eagerly();
    let rows = || (0..70_000i64).map(|row| row * 7919 % 16_000_000);
    let columns: [(&str, ArrayRef); 2] = [
        ("value", Arc::new(rows().collect::<Int64Array>())),
        ("nullable", Arc::new(rows().map(|value| (value % 5 > 0).then_some(value * 31)).collect::<Int64Array>())),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: 1 << 16 }).unwrap();
    writer.append(&batch).unwrap();
    let file = MemoryFile::new("t.seg", Vec::new());
    writer.finish(&file, &Ledger::default()).unwrap();
    place.segments = vec![Arc::new(Segment::open(Arc::new(file), &Ledger::default()).unwrap())];
    let stored = Stored { columns: vec![0, 1], ..place.stored(|_, _| true) };
    let typed = [(0, ColumnType::Int64, true), (1, ColumnType::Int64, true)];
    let (cache, ledger) = (Arc::new(BlockCache::new(1 << 24)), Arc::new(Ledger::default()));
    let source = SegmentSource::new("t", Arc::clone(&stored.blocks), &typed, cache, Arc::clone(&ledger), 0).unwrap();
    let source: Arc<dyn Source> = Arc::new(source);
    let [value, nullable] = [0, 1].map(|column| Aggregate::Sum(Expr::Register(column)));
    let sink = Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::CountRows, value, nullable] };
    let program = Program { pipelines: vec![Pipeline { source: 0, columns: vec![0, 1], steps: vec![], sink }] };
    let mut execution = Execution::new(program, vec![Arc::clone(&source)], 1 << 30).unwrap();
    let expected = rows_of(&cpu::run(&mut execution, 1).unwrap());
    let sources = vec![(Arc::clone(&source), Some(&stored), Arc::clone(&ledger))];
    let images =
        ResidentImages::new(&place.executor, &place.columns, &place.assembled, (u64::MAX, Residence::Auto), sources);
    let answer = place.executor.run(&execution, &images, &AtomicBool::new(false)).unwrap();
    assert_eq!(rows_of(&answer.chunks), expected);
    assert_eq!(images.bytes(0).resident, 0);
    let direct = place.executor.stager().direct_bytes();
    // Only the first block is direct; the second is short.
    assert_eq!(direct, (24 + 29) * (1 << 16) / 8);
}

#[test]
fn columns_that_stay_come_straight_from_their_files() {
    let fails = |at| Fault { call: Call::Transfer, at, lasts: false, answer: Fails::System(libc::EIO) };
    columns_stay((RequestedPath::Auto, DevicePath::Cufile), TakenPath::Compat, fails);
}

#[test]
fn columns_that_stay_are_bounced_where_nothing_else_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    segment_in(folder.path(), 0);
    if LocalFile::open(&folder.path().join("0.seg"), RequestedPath::HostDirect).is_ok() {
        let fails = |at| Fault { call: Call::Copy, at, lasts: false, answer: Fails::Code(700) };
        columns_stay((RequestedPath::HostDirect, DevicePath::Staged), TakenPath::Bounced, fails);
    }
}

/// Columns that stay are read from their files once, without the host reading them. A damaged file
/// is an error that names the block. Reads by the host request a path, and transfers to the device
/// another.
fn columns_stay((requested, path): (RequestedPath, DevicePath), taken: TakenPath, fails: impl Fn(u64) -> Fault) {
    use std::os::unix::fs::FileExt as _;
    let (machine, context) = Machine::start();
    {
        let folder = tempfile::tempdir().unwrap();
        let staging = Shape { batch_bytes: 16 << 10, slots: 3, threads: 2 };
        let options = Options { threads: 64, wide_threads: 64, blocks: 1, many_rows: 0, staging, ..Options::default() };
        let executor = Executor::new(&context, &fake::nvrtc(), None, options).with_cufile(&fake::open_cufile(&context));
        let segments: Vec<Arc<Segment>> = (0..SEGMENTS).map(|number| segment_in(folder.path(), number)).collect();
        let columns = Columns::default();
        let place = Place { executor, segments, columns, assembled: Assembled::default() };
        let stored = place.stored(|_, _| true);
        // Nothing is cached, so that all of it has to be read.
        let types = [ColumnType::Int64, ColumnType::Varchar, ColumnType::Float64, ColumnType::Int64];
        let typed: Vec<_> = types.into_iter().enumerate().map(|(at, ty)| (at, ty, true)).collect();
        let cache = Arc::new(BlockCache::new(0).by_path(requested));
        let source: Arc<dyn Source> =
            Arc::new(SegmentSource::new("t", Arc::clone(&stored.blocks), &typed, cache, Arc::default(), 0).unwrap());
        let [number, text, double, same] = [0, 1, 2, 3].map(Expr::Register);
        let aggregates = vec![
            Aggregate::CountRows,
            Aggregate::Count(number.clone()),
            Aggregate::Sum(number),
            Aggregate::Max(double),
            Aggregate::Sum(same),
        ];
        let sink = Sink::Aggregate { keys: vec![text], aggregates };
        let pipeline = Pipeline { source: 0, columns: vec![0, 1, 2, 3], steps: Vec::new(), sink };
        let program = Program { pipelines: vec![pipeline] };
        let mut execution = Execution::new(program, vec![Arc::clone(&source)], 1 << 30).unwrap();
        let expected = rows_of(&cpu::run(&mut execution, 1).unwrap());
        let run = || {
            let ledger = Arc::new(Ledger::default());
            let sources = vec![(Arc::clone(&source), Some(&stored), Arc::clone(&ledger))];
            let limit = (1 << 30, Residence::Auto);
            let images =
                ResidentImages::new(&place.executor, &place.columns, &place.assembled, limit, sources).by(path);
            let answer = place.executor.run(&execution, &images, &AtomicBool::new(false));
            (answer.map(|answer| rows_of(&answer.chunks)), images.bytes(0), images.brought(0), ledger.snapshot())
        };
        // Flips a bit in the file while nothing is resident.
        let chunk = place.segments[1].block_place(0, 2).unwrap().low.unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(folder.path().join("1.seg")).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, chunk.offset + 100).unwrap();
        file.write_all_at(&[byte[0] ^ 1], chunk.offset + 100).unwrap();
        let error = run().0.unwrap_err().to_string();
        assert!(["checksum", "1.seg", "number", "2"].iter().all(|word| error.contains(word)), "{error}");
        file.write_all_at(&byte, chunk.offset + 100).unwrap();
        // Errors of a transfer, after which runs work as before.
        for at in [0, 3, 7] {
            machine.set_faults(&[fails(at)]);
            let error = run().0.unwrap_err();
            assert!(matches!(error, Error::Device { .. }), "{error}");
        }
        machine.set_faults(&[]);
        let (rows, bytes, brought, counted) = run();
        assert_eq!(rows.unwrap(), expected);
        let brought = brought.unwrap();
        assert_eq!(brought.path, taken);
        let needed: u64 = place
            .segments
            .iter()
            .map(|segment| [0, 1, 3].map(|column| segment.all_stored_bytes(column)).iter().sum::<u64>())
            .sum();
        assert!(brought.bytes >= needed && bytes.moved > brought.bytes, "{brought:?}, {bytes:?}, {needed}");
        assert_eq!(counted.hop(Hop::HostToDevice), bytes.moved);
        assert_eq!(counted.hop(Hop::StorageToHost), brought.bytes);
        assert_eq!(counted.hop(Hop::HostToHost), 0);
        assert_eq!(counted.needed_bytes, needed);
        // The columns are resident now.
        let (rows, bytes, brought, _) = run();
        assert_eq!(rows.unwrap(), expected);
        assert!(bytes.moved == 0 && bytes.resident > 0 && brought.is_none(), "{bytes:?}");
        // The same values as through the host.
        let by_host = Place { columns: Columns::default(), assembled: Assembled::default(), ..place };
        let sources = vec![(Arc::clone(&source), Some(&stored), Arc::default())];
        let limit = (1 << 30, Residence::Auto);
        let images = ResidentImages::new(&by_host.executor, &by_host.columns, &by_host.assembled, limit, sources);
        let answer = by_host.executor.run(&execution, &images, &AtomicBool::new(false)).unwrap();
        assert_eq!(rows_of(&answer.chunks), expected);
        assert_eq!(images.brought(0).is_none(), taken != TakenPath::Bounced);
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}
