//! Tables as segments and as record batches, functions of their strings, and answers as rows.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int32Array, Int64Array, RecordBatch, StringViewArray};
use arrow_schema::{DataType, Field, Schema};
use onehop_io::{Ledger, LocalFile, MemoryFile, RequestedPath};
use onehop_pipeline::backend::Stored;
use onehop_pipeline::cpu::{ResultColumn, ResultValues};
use onehop_pipeline::{
    BatchSourceBuilder, Bounds, Changes, DictionaryFunction, Error, Expr, FreshChunk, FreshRun, Interval,
    SegmentSource, Source,
};
use onehop_segment::{BlockCache, BlockList, DeletedRows, Segment, SegmentOptions, SegmentWriter};
use proptest::prelude::*;

/// A row. Booleans are 0 and 1, strings are numbers in their order ([`text_of`]).
pub type Row = Vec<Option<i128>>;

pub const TEXTS: [&str; 4] = ["ash", "birch", "cedar", "elm"];
pub const BIGINT: Bounds = Bounds { min: i64::MIN as i128, max: i64::MAX as i128, type_name: "BIGINT" };

pub fn text_of(number: i128) -> String {
    TEXTS.get(number as usize).map_or_else(|| format!("x{number:04}"), |text| (*text).into())
}

pub fn number_of(text: &str) -> i128 {
    match text.strip_prefix('x') {
        Some(number) => number.parse().unwrap(),
        None => TEXTS.iter().position(|t| *t == text).unwrap() as i128,
    }
}

/// Columns of every table in these tests: a small key, a wide integer, a boolean, a string, and two
/// strings that repeat so rarely that they are stored without a dictionary and read late.
#[derive(Clone, Debug)]
pub struct Table {
    pub rows: Vec<Row>,
}

pub const KEY: usize = 0;
pub const WIDE: usize = 1;
pub const FLAG: usize = 2;
pub const TEXT: usize = 3;
pub const LATE: usize = 4;
pub const TWIN: usize = 5;
pub const COLUMNS: usize = 6;

pub fn table(rows: std::ops::Range<usize>, keys: i128) -> impl Strategy<Value = Table> {
    let texts = TEXTS.len() as i128..(rows.end as i128 / 2).max(8);
    let null = |value: BoxedStrategy<i128>| prop::option::weighted(0.9, value);
    let wide = prop_oneof![4 => -1000i128..1000, 1 => any::<i32>().prop_map(i128::from), 1 => any::<i64>().prop_map(i128::from)];
    let text = null((0..TEXTS.len() as i128).boxed());
    let late = (null(texts.clone().boxed()), null(texts.boxed()));
    let row = (null((0..keys).boxed()), null(wide.boxed()), null((0i128..2).boxed()), text, late);
    let rows = prop::collection::vec(row.prop_map(|(a, b, c, d, (e, f))| vec![a, b, c, d, e, f]), rows);
    // Sorted columns without NULLs have vectors that pass a filter as a whole, beside other
    // vectors.
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
    /// Returns the table as segments, or as record batches.
    pub fn source(&self, in_memory: bool) -> Arc<dyn Source> {
        if in_memory { self.in_memory() } else { self.stored() }
    }

    pub fn batch(rows: &[Row]) -> RecordBatch {
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

    /// Returns batches of several sizes that start anywhere in their arrays.
    pub fn in_memory(&self) -> Arc<dyn Source> {
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

    /// Returns several segments of small blocks, so that dictionaries differ and vectors are cut.
    pub fn stored(&self) -> Arc<dyn Source> {
        self.stored_in().0
    }

    /// Returns the stored table with its location.
    pub fn stored_in(&self) -> (Arc<dyn Source>, Stored) {
        self.stored_at(Where::Memory)
    }

    /// Stores the table at a place, and returns it with its location.
    pub fn stored_at(&self, place: Where<'_>) -> (Arc<dyn Source>, Stored) {
        stored(&self.rows, |_| false, Vec::new(), place)
    }

    /// Returns the same rows after changes that depend on `seed`. The first rows are in segments
    /// and the others in chunks of fresh rows, interspersed with deleted rows. Deleted rows have
    /// values that no other row has.
    pub fn changed(&self, mut seed: u64) -> Arc<dyn Source> {
        let mut next = move |below: usize| {
            // Knuth's MMIX generator; its low bits are poor.
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let in_segments = [0, self.rows.len(), next(self.rows.len() + 1), next(self.rows.len() + 1)][next(4)];
        let one_in = [2, 10, 300, usize::MAX][next(4)];
        let mut with_deleted = |rows: &[Row]| {
            let mut all: Vec<(Row, bool)> = Vec::new();
            for row in rows {
                while next(one_in) == 1 {
                    all.push((gone(next(3)), true));
                }
                all.push((row.clone(), false));
            }
            all.extend((next(2) == 1).then(|| (gone(0), true)));
            all
        };
        let (kept, rest) = self.rows.split_at(in_segments);
        let kept = with_deleted(kept);
        let chunks = rest.chunks(700).map(|rows| {
            let (rows, is_deleted): (Vec<Row>, Vec<bool>) = with_deleted(rows).into_iter().unzip();
            let gone = (0..rows.len()).filter(|row| is_deleted[*row]).map(|row| (0, row as u16));
            let deleted = Some(DeletedRows::new(gone)).filter(|deleted| deleted.count() > 0).map(Arc::new);
            FreshRun { chunk: Arc::new(FreshChunk::new(Self::batch(&rows))), deleted }
        });
        let fresh = chunks.collect();
        let (rows, is_deleted): (Vec<Row>, Vec<bool>) = kept.into_iter().unzip();
        stored(&rows, |row| is_deleted[row], fresh, Where::Memory).0
    }
}

/// Returns a deleted row. If a query read it, it would be the first or last in any order, overflow,
/// or divide by zero.
fn gone(kind: usize) -> Row {
    match kind {
        0 => vec![Some(0), Some(i64::MAX.into()), Some(1), Some(3), Some(9000), Some(9001)],
        1 => vec![Some(i32::MIN.into()), Some(i64::MIN.into()), Some(0), Some(0), Some(0), Some(9002)],
        _ => vec![None; COLUMNS],
    }
}

/// Stores rows in segments, with the deleted rows among them and fresh rows.
fn stored(
    rows: &[Row],
    is_deleted: impl Fn(usize) -> bool,
    fresh: Vec<FreshRun>,
    place: Where<'_>,
) -> (Arc<dyn Source>, Stored) {
    let ledger = Arc::new(Ledger::default());
    let (mut blocks, mut deleted) = (BlockList::default(), Vec::new());
    // Blocks of one vector, and blocks of a whole and a short vector: rows of both may be in one
    // frame.
    let (segment_rows, block_rows) = if rows.len().is_multiple_of(2) { (1500, 1024) } else { (1124, 2048) };
    for (number, rows) in rows.chunks(segment_rows).enumerate() {
        let batch = Table::batch(rows);
        let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows }).unwrap();
        writer.append(&batch).unwrap();
        let segment = Arc::new(place.written(writer, &ledger));
        let gone = (0..rows.len()).filter(|row| is_deleted(number * segment_rows + row));
        let gone = DeletedRows::new(gone.map(|row| (row / block_rows, (row % block_rows) as u16)));
        deleted.extend((0..segment.blocks()).map(|block| gone.block(block).cloned()));
        blocks.push_all(&segment, 0..segment.blocks());
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
    let cache = Arc::new(BlockCache::new(if matches!(place, Where::Memory) { 1 << 20 } else { 0 }));
    let changes = Changes { deleted, fresh };
    let stored = Stored { blocks: Arc::new(blocks), columns: (0..COLUMNS).collect() };
    let blocks = Arc::clone(&stored.blocks);
    let source = SegmentSource::with_changes("t", blocks, &columns, cache, ledger, 0, changes).unwrap();
    (Arc::new(source), stored)
}

/// Location of segments.
#[derive(Clone, Copy, Debug)]
pub enum Where<'a> {
    Memory,
    /// Files in a directory, opened on a path. They are read whenever they are needed, and exist as
    /// long as the directory.
    Files(&'a Path, RequestedPath),
}

impl Where<'_> {
    fn written(self, writer: SegmentWriter, ledger: &Ledger) -> Segment {
        let Self::Files(folder, requested) = self else {
            let file = MemoryFile::new("t.seg", Vec::new());
            writer.finish(&file, ledger).unwrap();
            return Segment::open(Arc::new(file), ledger).unwrap();
        };
        let path = folder.join(format!("{}.seg", std::fs::read_dir(folder).unwrap().count()));
        writer.finish(&LocalFile::create(&path, RequestedPath::Buffered).unwrap(), ledger).unwrap();
        let file = LocalFile::open(&path, requested).unwrap();
        Segment::open(Arc::new(file), ledger).unwrap()
    }
}

/// Functions of a string: a test for a multiple of 3, the same test with true for NULL, its number,
/// and a third of it. The last refuses numbers that are no multiples.
#[derive(Clone, Copy, Debug)]
pub enum OfText {
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

pub fn of_text(register: usize, function: OfText) -> Expr {
    Expr::Lookup { text: Box::new(Expr::Register(register)), function: Arc::new(function) }
}
/// Represents a double as a value of these tests.
pub fn double(value: f64) -> i128 {
    value.to_bits().into()
}
pub fn rows_of(chunks: &[Vec<ResultColumn>]) -> Vec<Row> {
    let mut answer = Vec::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
        let columns: Vec<Row> = chunk.iter().map(|column| cells(column, 1)).collect();
        answer.extend((0..chunk[0].len()).map(|row| columns.iter().map(|column| column[row]).collect::<Row>()));
    }
    answer
}
pub fn cells(column: &ResultColumn, threads: usize) -> Row {
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
