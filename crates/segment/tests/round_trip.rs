//! Written values are read back: every type, odd lengths, NULLs everywhere, extreme values, every
//! encoding.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow_array::types::*;
use arrow_array::*;
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use onehop_io::{Ledger, MemoryFile};
use onehop_segment::{EncodingCode, OriginRecord, Segment, SegmentOptions, SegmentWriter, check};
use proptest::prelude::*;

const LENGTHS: [usize; 14] = [0, 1, 2, 31, 32, 33, 49, 1023, 1024, 1025, 2047, 2049, 3072, 5000];

fn write(batches: &[RecordBatch], block_rows: usize) -> Segment {
    let mut writer = SegmentWriter::new(&batches[0].schema(), SegmentOptions { block_rows }).unwrap();
    for batch in batches {
        writer.append(batch).unwrap();
    }
    let file = MemoryFile::new("test.seg", Vec::new());
    let written = writer.finish(&file, &Ledger::default()).unwrap();
    let segment = Segment::open(Arc::new(file), &Ledger::default()).unwrap();
    assert_eq!(written.rows, segment.rows());
    assert_eq!(written.bytes, segment.file().len().unwrap());
    segment
}

/// Returns all rows of a column, decoded in runs of `step` vectors.
fn read(segment: &Segment, column: usize, step: usize) -> ArrayRef {
    let mut parts: Vec<ArrayRef> = vec![new_empty_array(segment.schema().field(column).data_type())];
    for block in 0..segment.blocks() {
        let loaded = segment.load(column, block, &Ledger::default()).unwrap();
        for start in (0..loaded.rows()).step_by(step * 1024) {
            parts.push(loaded.decode(start..(start + step * 1024).min(loaded.rows())).unwrap());
        }
    }
    let parts: Vec<&dyn Array> = parts.iter().map(|part| part.as_ref()).collect();
    arrow_select::concat::concat(&parts).unwrap()
}

/// Checks single rows of a string column, some of them twice.
fn assert_texts_at(segment: &Segment, array: &ArrayRef, block_rows: usize) {
    let Some(texts) = array.as_any().downcast_ref::<StringViewArray>() else { return };
    for step in [1, 3, 700] {
        for block in 0..segment.blocks() {
            let loaded = segment.load(0, block, &Ledger::default()).unwrap();
            let twice = (0..loaded.rows()).step_by(step).flat_map(|row| [row as u16; 2]);
            let rows: Vec<u16> = twice.enumerate().filter(|(at, _)| at % 5 > 0).map(|(_, row)| row).collect();
            let mut expected = rows.iter().map(|row| block * block_rows + usize::from(*row));
            let each = |text: Option<&str>| {
                let row = expected.next().unwrap();
                assert_eq!(text, texts.is_valid(row).then(|| texts.value(row)), "{row}");
            };
            loaded.texts_at(&rows, each).unwrap();
            assert_eq!(expected.next(), None);
            if let Ok(outside) = u16::try_from(loaded.rows()) {
                assert!(loaded.texts_at(&[outside], |_| ()).is_err());
            }
        }
    }
}

fn round_trip(array: ArrayRef, block_rows: usize) -> Segment {
    let field = Field::new("c", array.data_type().clone(), true);
    let schema = Arc::new(Schema::new(vec![field]));
    // Split the input at an odd position, so that appends do not line up with vectors.
    let cut = array.len() / 3;
    let batches: Vec<RecordBatch> = [array.slice(0, cut), array.slice(cut, array.len() - cut)]
        .into_iter()
        .map(|part| RecordBatch::try_new(schema.clone(), vec![part]).unwrap())
        .collect();
    let segment = write(&batches, block_rows);
    assert_eq!(segment.rows() as usize, array.len());
    for step in [1, 3, 64] {
        assert_eq!(&read(&segment, 0, step), &array, "{:?} {:?}", segment.column(0), array.data_type());
    }
    let checked = check(&segment, &Ledger::default());
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    assert_zones_hold(&segment, &array, block_rows);
    assert_texts_at(&segment, &array, block_rows);
    segment
}

/// Checks that every value lies within its block's zone.
fn assert_zones_hold(segment: &Segment, array: &ArrayRef, block_rows: usize) {
    for block in 0..segment.blocks() {
        let zone = segment.zone(0, block);
        let rows = segment.block_rows(block);
        let part = array.slice(block * block_rows, rows);
        assert_eq!(zone.null_count as usize, part.null_count());
        assert_eq!(zone.has_values(), part.null_count() < rows);
        let keys: Vec<i128> = match array.data_type() {
            DataType::Int64 => {
                part.as_any().downcast_ref::<Int64Array>().unwrap().iter().flatten().map(i128::from).collect()
            }
            DataType::Decimal128(..) => {
                part.as_any().downcast_ref::<Decimal128Array>().unwrap().iter().flatten().collect()
            }
            _ => continue,
        };
        assert_eq!(zone.keys(), keys.iter().min().copied().zip(keys.iter().max().copied()));
    }
}

fn ints<T: ArrowPrimitiveType>(values: Vec<Option<T::Native>>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter(values))
}

/// Returns values of several shapes for a type, given its least, greatest and some others.
fn shapes<N: Copy>(len: usize, few: &[N], many: impl Fn(usize) -> N) -> Vec<Vec<Option<N>>> {
    let last = few[few.len() - 1];
    vec![
        vec![None; len],
        vec![Some(last); len],
        (0..len).map(|i| (i % 5 != 0).then_some(last)).collect(),
        (0..len).map(|i| Some(few[i % few.len()])).collect(),
        (0..len).map(|i| (i % 7 != 3).then_some(few[i * i % few.len()])).collect(),
        (0..len).map(|i| Some(many(i))).collect(),
        (0..len).map(|i| (i % 3 != 1).then_some(many(i))).collect(),
        (0..len).map(|i| if i < len / 2 { None } else { Some(many(i)) }).collect(),
    ]
}

fn scramble(i: usize) -> u64 {
    let x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

macro_rules! integer_round_trips {
    ($($test:ident: $arrow:ty, $native:ty;)*) => {$(
        #[test]
        fn $test() {
            for len in LENGTHS {
                let few = [<$native>::MIN, 0, 1, 100, <$native>::MAX];
                for values in shapes(len, &few, |i| scramble(i) as $native) {
                    round_trip(ints::<$arrow>(values), 1024);
                }
                for values in shapes(len, &few[1..4], |i| (i % 120) as $native) {
                    round_trip(ints::<$arrow>(values), 2048);
                }
            }
        }
    )*};
}

integer_round_trips! {
    int8: Int8Type, i8;
    int16: Int16Type, i16;
    int32: Int32Type, i32;
    int64: Int64Type, i64;
    uint8: UInt8Type, u8;
    uint16: UInt16Type, u16;
    uint32: UInt32Type, u32;
    uint64: UInt64Type, u64;
    date: Date32Type, i32;
}

#[test]
fn floats() {
    let few = [f64::NEG_INFINITY, -1.5, -0.0, 0.0, f64::MIN_POSITIVE, 1.0e300, f64::INFINITY, f64::NAN];
    for len in LENGTHS {
        for values in shapes(len, &few, |i| f64::from_bits(scramble(i))) {
            assert_bits_round_trip(&values);
        }
        for values in shapes(len, &few, |i| i as f64 * 0.25) {
            assert_bits_round_trip(&values);
        }
    }
}

/// NaNs are not equal to themselves, and their payloads must survive: compare bits.
fn assert_bits_round_trip(values: &[Option<f64>]) {
    let array: ArrayRef = Arc::new(Float64Array::from_iter(values.iter().copied()));
    let schema = Arc::new(Schema::new(vec![Field::new("c", DataType::Float64, true)]));
    let segment = write(&[RecordBatch::try_new(schema, vec![array]).unwrap()], 1024);
    let back = read(&segment, 0, 2);
    let back: Vec<Option<u64>> =
        back.as_any().downcast_ref::<Float64Array>().unwrap().iter().map(|v| v.map(f64::to_bits)).collect();
    assert_eq!(back, values.iter().map(|v| v.map(f64::to_bits)).collect::<Vec<_>>());

    let narrow: Vec<Option<f32>> = values.iter().map(|v| v.map(|v| f32::from_bits(v.to_bits() as u32))).collect();
    let array: ArrayRef = Arc::new(Float32Array::from_iter(narrow.iter().copied()));
    let schema = Arc::new(Schema::new(vec![Field::new("c", DataType::Float32, true)]));
    let segment = write(&[RecordBatch::try_new(schema, vec![array]).unwrap()], 1024);
    let back = read(&segment, 0, 2);
    let back: Vec<Option<u32>> =
        back.as_any().downcast_ref::<Float32Array>().unwrap().iter().map(|v| v.map(f32::to_bits)).collect();
    assert_eq!(back, narrow.iter().map(|v| v.map(f32::to_bits)).collect::<Vec<_>>());
}

#[test]
fn booleans() {
    for len in LENGTHS {
        for values in shapes(len, &[true, false], |i| scramble(i) & 1 == 1) {
            round_trip(Arc::new(BooleanArray::from_iter(values)), 1024);
        }
        for values in shapes(len, &[false, true], |_| true) {
            round_trip(Arc::new(BooleanArray::from_iter(values)), 1024);
        }
    }
}

#[test]
fn decimals_of_every_width() {
    let nines = 10i128.pow(38) - 1;
    for len in LENGTHS {
        for (precision, few) in [(9u8, [-999_999_999, 0, 1, 999_999_999]), (38, [-nines, 0, 1, nines])] {
            for values in shapes(len, &few, |i| scramble(i) as i128 % 1_000_000_000) {
                let array = Decimal128Array::from_iter(values).with_precision_and_scale(precision, 4).unwrap();
                round_trip(Arc::new(array), 1024);
            }
        }
        // Narrow blocks first, wide ones later.
        let late: Vec<Option<i128>> =
            (0..len).map(|i| Some(if i < len / 2 { i as i128 } else { nines - i as i128 })).collect();
        let array = Decimal128Array::from_iter(late).with_precision_and_scale(38, 0).unwrap();
        round_trip(Arc::new(array), 1024);
    }
}

#[test]
fn timestamps_keep_unit_and_zone() {
    let values = || (0..3000i64).map(|i| (i % 11 != 0).then_some(i * 86_400_000_123));
    round_trip(Arc::new(TimestampSecondArray::from_iter(values())), 1024);
    round_trip(Arc::new(TimestampMillisecondArray::from_iter(values())), 1024);
    round_trip(Arc::new(TimestampNanosecondArray::from_iter(values())), 1024);
    let zoned = TimestampMicrosecondArray::from_iter(values()).with_timezone("Asia/Tokyo");
    let segment = round_trip(Arc::new(zoned), 1024);
    assert_eq!(
        segment.schema().field(0).data_type(),
        &DataType::Timestamp(TimeUnit::Microsecond, Some("Asia/Tokyo".into()))
    );
}

fn texts(values: Vec<Option<String>>) -> ArrayRef {
    Arc::new(StringViewArray::from_iter(values))
}

#[test]
fn text() {
    let few = ["", "a", "exactly twelve", "twelve chars", "ünïcödé ✓ and then some more", "zz\u{0}"];
    let long = "x".repeat(5000);
    for len in LENGTHS {
        for values in shapes(len, &few, |i| few[i % few.len()]) {
            round_trip(texts(values.into_iter().map(|v| v.map(str::to_string)).collect()), 1024);
        }
        let unique =
            (0..len).map(|i| (i % 9 != 4).then(|| format!("row number {i} {}", &long[..scramble(i) as usize % 60])));
        round_trip(texts(unique.collect()), 1024);
        round_trip(texts((0..len).map(|i| Some(format!("{i:08}"))).collect()), 2048);
        round_trip(texts((0..len).map(|i| Some(long[..i % 5000].to_string())).collect()), 1024);
    }
}

#[test]
fn text_of_other_arrow_types_comes_back_as_views() {
    let values: Vec<Option<String>> = (0..2000).map(|i| (i % 5 > 0).then(|| format!("value {}", i % 37))).collect();
    for array in [
        Arc::new(StringArray::from_iter(values.clone())) as ArrayRef,
        Arc::new(LargeStringArray::from_iter(values.clone())),
    ] {
        let schema = Arc::new(Schema::new(vec![Field::new("c", array.data_type().clone(), true)]));
        let segment = write(&[RecordBatch::try_new(schema, vec![array]).unwrap()], 1024);
        assert_eq!(&read(&segment, 0, 1), &texts(values.clone()));
        assert_eq!(segment.column(0).encoding, EncodingCode::Dictionary);
    }
}

#[test]
fn encodings_are_chosen_from_the_data() {
    let chosen = |array: ArrayRef| {
        let segment = round_trip(array, 65_536);
        (segment.column(0).encoding, segment.column(0).width)
    };
    let rows = 70_000i64;
    let of = |f: &dyn Fn(i64) -> i64| ints::<Int64Type>((0..rows).map(|i| Some(f(i))).collect());
    assert_eq!(chosen(of(&|_| 42)), (EncodingCode::Packed, 0));
    assert_eq!(chosen(of(&|i| 1_000_000 + i % 50)), (EncodingCode::Packed, 6));
    assert_eq!(chosen(of(&|i| i)), (EncodingCode::Packed, 16));
    assert_eq!(chosen(of(&|i| i << 30)), (EncodingCode::Packed, 46));
    // Few values far apart: 2,406 dates as yyyymmdd span 16 bits and take 12.
    assert_eq!(chosen(of(&|i| 19_920_101 + (i % 7) * 10_000 + (i % 12) * 100 + i % 28)).0, EncodingCode::Dictionary);
    assert_eq!(chosen(of(&|i| [i64::MIN, 0, i64::MAX][i as usize % 3])), (EncodingCode::Dictionary, 2));
    let noise = Float64Array::from_iter((0..rows).map(|i| Some(f64::from_bits(scramble(i as usize)))));
    assert_eq!(chosen(Arc::new(noise)), (EncodingCode::Plain, 8));
    let prices = Float64Array::from_iter((0..rows).map(|i| Some((i % 100) as f64 + 0.99)));
    assert_eq!(chosen(Arc::new(prices)), (EncodingCode::Dictionary, 7));
    assert_eq!(
        chosen(texts((0..rows).map(|i| Some(format!("city {}", i % 250))).collect())),
        (EncodingCode::Dictionary, 8)
    );
    assert_eq!(chosen(texts((0..rows).map(|i| Some(format!("Customer#{i:09}"))).collect())), (EncodingCode::Text, 0));
}

#[test]
fn constant_blocks_take_no_bytes() {
    let values: Vec<Option<i64>> = (0..4096).map(|i| Some(if i < 3072 { 7 } else { i })).collect();
    let segment = round_trip(ints::<Int64Type>(values), 1024);
    assert_eq!(segment.stored_bytes(0, 0), 0);
    assert!(segment.stored_bytes(0, 3) > 0);
}

#[test]
fn types_without_a_place_are_refused_with_a_way_out() {
    let schema = Schema::new(vec![Field::new("tags", DataType::new_list(DataType::Utf8, true), true)]);
    let error = SegmentWriter::new(&schema, SegmentOptions::default()).err().unwrap();
    assert!(error.to_string().contains("column \"tags\"") && error.to_string().contains("unnest"), "{error}");
}

#[test]
fn not_null_is_enforced() {
    let schema = Arc::new(Schema::new(vec![Field::new("c", DataType::Int64, false)]));
    let loose = Arc::new(Schema::new(vec![Field::new("c", DataType::Int64, true)]));
    let batch = RecordBatch::try_new(loose, vec![ints::<Int64Type>(vec![Some(1), None])]).unwrap();
    let error = SegmentWriter::new(&schema, SegmentOptions::default()).unwrap().append(&batch).unwrap_err();
    assert_eq!(error.to_string(), "a value of column \"c\" does not fit: NULL in a NOT NULL column");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_integers(values in prop::collection::vec(prop::option::weighted(0.8, prop_oneof![
        any::<i64>(), -100i64..100, Just(i64::MIN), Just(i64::MAX), 1_000_000i64..1_000_100,
    ]), 0..3000)) {
        round_trip(ints::<Int64Type>(values), 1024);
    }

    #[test]
    fn any_text(values in prop::collection::vec(prop::option::weighted(0.8, prop_oneof![
        "[a-c]{0,3}", "\\PC{0,40}", "\\PC{200}",
    ]), 0..2500)) {
        round_trip(texts(values), 1024);
    }

    #[test]
    fn any_decimals(values in prop::collection::vec(prop::option::weighted(0.9, prop_oneof![
        -99_999_999_999_999_999_999_999_999_999_999_999_999i128..=99_999_999_999_999_999_999_999_999_999_999_999_999,
        -1000i128..1000,
    ]), 0..2500)) {
        let array = Decimal128Array::from_iter(values).with_precision_and_scale(38, 2).unwrap();
        round_trip(Arc::new(array), 1024);
    }
}

#[test]
fn a_segment_says_who_wrote_it_and_need_not() {
    let batch =
        RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from_iter_values(0..100)) as ArrayRef)]).unwrap();
    let origin = OriginRecord { database: [7; 16], life: 8, generation: 9 };
    for wanted in [None, Some(origin)] {
        let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions::default()).unwrap();
        if let Some(origin) = wanted {
            writer = writer.with_origin(origin);
        }
        writer.append(&batch).unwrap();
        let file = MemoryFile::new("test.seg", Vec::new());
        writer.finish(&file, &Ledger::default()).unwrap();
        let segment = Segment::open(Arc::new(file), &Ledger::default()).unwrap();
        assert_eq!(segment.origin(), wanted);
        assert!(check(&segment, &Ledger::default()).problems.is_empty());
    }
}
