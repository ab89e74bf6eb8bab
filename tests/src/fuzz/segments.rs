//! Segment files, damaged, with or without recomputed checksums.
//!
//! The lowest bits of the seal: 0 leaves all checksums, so that they detect the damage. Otherwise
//! those of dictionaries, chunks, footer and trailer are recomputed, so that forged numbers,
//! lengths, offsets, codes and zones pass them.

use std::ops::Range;
use std::sync::Arc;

use onehop_engine::arrow::array::*;
use onehop_engine::arrow::datatypes::Schema;
use onehop_engine::{Error, ErrorKind};
use onehop_io::{Ledger, MemoryFile};
use onehop_segment::layout::{BlockRecord, ColumnRecord, FooterHead, Header, Trailer};
use onehop_segment::{Comparison, Predicate, Segment, SegmentOptions, SegmentWriter, Value};
use zerocopy::{FromBytes, IntoBytes};

use super::damage::Damage;
use super::{Made, Mutator, Outcome, Target, Verdict};

/// The name of the file in errors.
const NAME: &str = "victim.seg";
/// The page size, to which chunks are aligned, in bytes.
const PAGE: usize = 4096;

struct Image {
    bytes: Vec<u8>,
    regions: Vec<Range<usize>>,
}

struct Segments(Vec<Image>);

pub(super) fn target() -> Made {
    let images = [every_type(2500), every_type(7), narrow(1500), every_type(0).slice(0, 0)];
    let images = images.iter().map(|batch| segment_of(batch).map(Image::new));
    Ok(Box::new(Segments(images.collect::<Result<_, _>>()?)))
}

impl Target for Segments {
    fn seeds(&self) -> Vec<Vec<u8>> {
        (0..self.0.len()).map(|image| Damage { image: image as u8, seal: 1, edits: Vec::new() }.encode()).collect()
    }

    fn mutate(&self, mutator: &mut Mutator, input: &[u8], _other: &[u8]) -> Vec<u8> {
        Damage::mutate(mutator, input)
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let damage = Damage::decode(input);
        let image = damage.pick(&self.0);
        let mut bytes = image.bytes.clone();
        damage.apply(&mut bytes, &image.regions);
        if !damage.seal.is_multiple_of(8) {
            seal(&mut bytes);
        }
        match read(bytes) {
            Ok(()) => Ok(Outcome::Accepted),
            Err(e) if e.to_string().contains(NAME) => Ok(Outcome::Refused),
            Err(e) => Err(format!("the error does not name the file: {e}")),
        }
    }
}

/// Reads all contents, by each of the methods.
fn read(bytes: Vec<u8>) -> Result<(), onehop_segment::Error> {
    let ledger = Ledger::default();
    let segment = Segment::open(Arc::new(MemoryFile::new(NAME, bytes)), &ledger)?;
    let mut first = onehop_segment::check(&segment, &ledger).problems.into_iter().next();
    let mut note = |e: onehop_segment::Error| _ = first.get_or_insert(e);
    for predicate in predicates(&segment) {
        let blocks = segment.may_match(&predicate);
        if blocks.iter().any(|may| *may) && !segment.any_may_match(&predicate) {
            note(onehop_segment::Error::Corrupt {
                file: String::new(),
                place: onehop_segment::Place::Footer,
                reason: format!("{predicate:?} may match in a block, and not in the segment"),
            });
        }
    }
    for column in 0..segment.schema().fields().len() {
        let dictionary = [
            segment.dictionary_texts(column, &ledger).map(drop),
            segment.dictionary_keys(column, &ledger).map(drop),
            segment.code_table(column, &ledger).map(|table| {
                table.map(|table| (table.ascends(), table.steps(), table.get(table.len())));
            }),
        ];
        dictionary.into_iter().filter_map(Result::err).for_each(&mut note);
        for block in 0..segment.blocks() {
            if let Err(e) = read_block(&segment, column, block, &ledger) {
                note(e);
            }
        }
    }
    first.map_or(Ok(()), Err)
}

fn read_block(segment: &Segment, column: usize, block: usize, ledger: &Ledger) -> Result<(), onehop_segment::Error> {
    let (_, _) = (segment.packed_place(column, block), segment.block_place(column, block).map(|p| p.bytes()));
    let loaded = segment.load(column, block, ledger)?;
    let rows = loaded.rows();
    let whole = loaded.decode(0..rows);
    let last = rows - rows % 1024;
    loaded.decode(last..rows)?;
    whole?;
    if segment.column(column).column_type.is_text() {
        let some: Vec<u16> = (0..rows).step_by(7).filter_map(|row| u16::try_from(row).ok()).collect();
        loaded.texts_at(&some, |text| assert!(text.is_none_or(|text| text.len() <= usize::MAX / 2)))?;
    }
    // Pipelines read stored values once they are verified.
    let verified = loaded.verify(&segment.zone(column, block));
    if let (Some(stored), Ok(())) = (loaded.stored(), &verified) {
        for plane in [stored.low, stored.high, loaded.validity()].into_iter().flatten() {
            let mut values = [0; 1024];
            for vector in 0..rows.div_ceil(1024) {
                plane.unpack(vector, &mut values);
            }
            if rows > 0 {
                let mut picked = [0; 2];
                plane.pick(&[0, (rows - 1).min(1023) as u16], &mut picked);
            }
        }
    }
    verified
}

fn predicates(segment: &Segment) -> Vec<Predicate> {
    let comparisons = [Comparison::Equal, Comparison::NotEqual, Comparison::Less, Comparison::GreaterOrEqual];
    let columns = 0..segment.schema().fields().len();
    let mut all = Vec::new();
    for column in columns {
        let value = match segment.column(column).column_type.is_text() {
            true => Value::Text("city 3".into()),
            false => Value::Key(17),
        };
        all.extend(comparisons.map(|op| Predicate::Compare { column, op, value: value.clone() }));
        all.push(Predicate::In { column, values: vec![value] });
        all.push(Predicate::IsNull { column });
        all.push(Predicate::IsNotNull { column });
        if segment.column(column).column_type.is_text() {
            all.push(Predicate::StartsWith { column, prefix: "ci".into() });
        }
    }
    let some = all.iter().step_by(5).cloned().collect();
    all.push(Predicate::Or(some));
    all
}

impl Image {
    fn new(bytes: Vec<u8>) -> Self {
        let regions = regions(&bytes);
        Self { bytes, regions }
    }
}

/// Returns header, footer and trailer, single records, and the bytes between them.
pub(super) fn regions(bytes: &[u8]) -> Vec<Range<usize>> {
    let Some(parts) = Parts::of(bytes) else { return std::iter::once(0..bytes.len()).collect() };
    let Parts { footer, columns, blocks, names } = parts;
    let head = footer.start..footer.start + size_of::<FooterHead>();
    let trailer = bytes.len() - size_of::<Trailer>()..bytes.len();
    let columns = columns.start..columns.end;
    vec![
        0..size_of::<Header>(),
        trailer,
        head,
        columns.clone(),
        columns.clone(),
        columns,
        blocks.clone(),
        blocks.clone(),
        blocks.clone(),
        blocks,
        names,
        PAGE..footer.start,
        PAGE..footer.start,
        PAGE..footer.start,
        0..bytes.len(),
    ]
}

/// The parts of a segment, as it describes them.
struct Parts {
    footer: Range<usize>,
    columns: Range<usize>,
    blocks: Range<usize>,
    names: Range<usize>,
}

impl Parts {
    fn of(bytes: &[u8]) -> Option<Self> {
        let trailer = Trailer::read_from_bytes(bytes.get(bytes.len().checked_sub(size_of::<Trailer>())?..)?).ok()?;
        let from = usize::try_from(trailer.footer_offset).ok()?;
        let footer = from..from.checked_add(usize::try_from(trailer.footer_bytes).ok()?)?;
        let (head, _) = FooterHead::read_from_prefix(bytes.get(footer.clone())?).ok()?;
        let columns = (head.columns as usize).checked_mul(size_of::<ColumnRecord>())?;
        let blocks = (head.columns as usize).checked_mul(head.blocks as usize)?.checked_mul(size_of::<BlockRecord>())?;
        let columns = from + size_of::<FooterHead>()..(from + size_of::<FooterHead>()).checked_add(columns)?;
        let blocks = columns.end..columns.end.checked_add(blocks)?;
        let names = blocks.end..footer.end;
        (names.start <= names.end).then_some(Self { footer, columns, blocks, names })
    }
}

/// Recomputes the checksums of a segment, as far as it locates the bytes that they protect.
pub(super) fn seal(bytes: &mut [u8]) {
    if let Some(parts) = Parts::of(bytes) {
        for at in parts.columns.step_by(size_of::<ColumnRecord>()) {
            let place = at..at + size_of::<ColumnRecord>();
            let Ok(mut record) = ColumnRecord::read_from_bytes(&bytes[place.clone()]) else { continue };
            if let Some(crc) = crc_of(bytes, record.dictionary_offset, record.dictionary_bytes) {
                record.dictionary_crc = crc;
                bytes[place].copy_from_slice(record.as_bytes());
            }
        }
        for at in parts.blocks.step_by(size_of::<BlockRecord>()) {
            let place = at..at + size_of::<BlockRecord>();
            let Ok(mut record) = BlockRecord::read_from_bytes(&bytes[place.clone()]) else { continue };
            for chunk in &mut record.chunks {
                chunk.crc = crc_of(bytes, chunk.offset, chunk.bytes.into()).unwrap_or(chunk.crc);
            }
            bytes[place].copy_from_slice(record.as_bytes());
        }
    }
    let Some(at) = bytes.len().checked_sub(size_of::<Trailer>()) else { return };
    let Ok(mut trailer) = Trailer::read_from_bytes(&bytes[at..]) else { return };
    trailer.footer_crc = crc_of(bytes, trailer.footer_offset, trailer.footer_bytes).unwrap_or(trailer.footer_crc);
    trailer.trailer_crc = 0;
    trailer.trailer_crc = crc32c::crc32c(trailer.as_bytes());
    bytes[at..].copy_from_slice(trailer.as_bytes());
}

fn crc_of(bytes: &[u8], offset: u64, length: u64) -> Option<u32> {
    let from = usize::try_from(offset).ok()?;
    let to = from.checked_add(usize::try_from(length).ok()?)?;
    Some(crc32c::crc32c(bytes.get(from..to)?))
}

fn segment_of(batch: &RecordBatch) -> Result<Vec<u8>, Error> {
    let failed = |e: onehop_segment::Error| Error::new(ErrorKind::Internal, e.to_string());
    let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: 1024 }).map_err(failed)?;
    if batch.num_rows() > 0 {
        writer.append(batch).map_err(failed)?;
    }
    let file = MemoryFile::new(NAME, Vec::new());
    writer.finish(&file, &Ledger::default()).map_err(failed)?;
    Ok(file.to_vec())
}

/// Returns two small columns: most of the file is footer.
fn narrow(rows: i64) -> RecordBatch {
    let number: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let text: ArrayRef = Arc::new(StringViewArray::from_iter_values((0..rows).map(|i| format!("city {}", i % 5))));
    batch(vec![("number", number), ("text", text)])
}

/// Returns a column of each type and of each encoding that it may get.
fn every_type(rows: i64) -> RecordBatch {
    let some = |i: i64| i % 5 != 2;
    let many = |i: i64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64);
    let valid = move |i: i64, value: i64| some(i).then_some(value);
    let all = 0..rows;
    let decimals = |array: Decimal128Array, precision, scale| -> ArrayRef {
        match array.clone().with_precision_and_scale(precision, scale) {
            Ok(array) => Arc::new(array),
            Err(_) => Arc::new(array),
        }
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("packed", Arc::new(Int64Array::from_iter_values(all.clone().map(|i| i * 3)))),
        ("wide", Arc::new(Int64Array::from_iter(all.clone().map(|i| valid(i, i << 35))))),
        ("full", Arc::new(Int64Array::from_iter(all.clone().map(|i| valid(i, many(i)))))),
        ("constant", Arc::new(Int32Array::from_iter_values(all.clone().map(|_| 7)))),
        ("nothing", Arc::new(Int32Array::from_iter(all.clone().map(|_| None::<i32>)))),
        ("coded", Arc::new(Int32Array::from_iter_values(all.clone().map(|i| [5, 70_000, -9][i as usize % 3])))),
        ("tiny", Arc::new(Int8Array::from_iter(all.clone().map(|i| some(i).then_some(i as i8))))),
        ("small", Arc::new(UInt16Array::from_iter_values(all.clone().map(|i| i as u16)))),
        ("unsigned", Arc::new(UInt64Array::from_iter_values(all.clone().map(|i| many(i) as u64)))),
        ("single", Arc::new(Float32Array::from_iter(all.clone().map(|i| some(i).then_some(i as f32 * 0.1))))),
        ("double", Arc::new(Float64Array::from_iter_values(all.clone().map(|i| (i as f64).sin() * 1e10)))),
        ("few", Arc::new(Float64Array::from_iter(all.clone().map(|i| some(i).then_some((i % 4) as f64 / 3.0))))),
        ("flag", Arc::new(BooleanArray::from_iter(all.clone().map(|i| some(i).then_some(i % 2 == 0))))),
        ("always", Arc::new(BooleanArray::from_iter(all.clone().map(|_| Some(true))))),
        ("date", Arc::new(Date32Array::from_iter(all.clone().map(|i| some(i).then_some(i as i32 % 700 - 300))))),
        ("micros", Arc::new(TimestampMicrosecondArray::from_iter_values(all.clone().map(|i| i * 1_000_003)))),
        (
            "zoned",
            Arc::new(
                TimestampNanosecondArray::from_iter(all.clone().map(|i| valid(i, i << 30)))
                    .with_timezone("Europe/Berlin"),
            ),
        ),
        ("city", Arc::new(StringViewArray::from_iter_values(all.clone().map(|i| format!("city {}", i % 20))))),
        ("name", Arc::new(StringViewArray::from_iter(all.clone().map(|i| some(i).then(|| format!("näme {i}")))))),
        ("empty", Arc::new(StringViewArray::from_iter_values(all.clone().map(|_| "")))),
        (
            "long",
            Arc::new(StringViewArray::from_iter_values(
                all.clone().map(|i| "x".repeat((i % 40) as usize) + &i.to_string()),
            )),
        ),
        ("price", decimals(Decimal128Array::from_iter(all.clone().map(|i| valid(i, i * 125).map(i128::from))), 10, 2)),
        ("huge", decimals(Decimal128Array::from_iter_values(all.map(|i| i128::from(i) * 10_i128.pow(30))), 38, 2)),
    ];
    batch(columns)
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    RecordBatch::try_from_iter_with_nullable(columns)
        .unwrap_or_else(|_| RecordBatch::new_empty(Arc::new(Schema::empty())))
}
