//! Round trips of every type through both containers, and the results of damage.

#![allow(clippy::unwrap_used)]

use arrow::array::*;
use arrow::buffer::OffsetBuffer;
use arrow::compute::concat_batches;
use arrow::datatypes::*;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use bytes::Bytes;

use super::*;
use crate::Unbounded;
use crate::guard::guarded;

/// Returns columns of many types, with NULLs.
fn batch(rows: usize) -> RecordBatch {
    let texts: Vec<Option<String>> =
        (0..rows).map(|row| (row % 5 != 1).then(|| format!("value {row} that is longer than a view holds"))).collect();
    let items: Int32Array = (0..rows as i32 * 2).collect();
    let lists = ListArray::new(
        Arc::new(Field::new_list_field(DataType::Int32, true)),
        OffsetBuffer::from_lengths(std::iter::repeat_n(2, rows)),
        Arc::new(items.clone()),
        None,
    );
    let structs = StructArray::from(vec![(
        Arc::new(Field::new("x", DataType::Utf8, true)),
        Arc::new(StringArray::from(texts.clone())) as ArrayRef,
    )]);
    let fixed =
        FixedSizeListArray::new(Arc::new(Field::new_list_field(DataType::Int32, true)), 2, Arc::new(items), None);
    let words: DictionaryArray<Int8Type> = texts.iter().map(|text| text.as_ref().map(|_| "word")).collect();
    let ends = Int32Array::from(vec![1, rows as i32]);
    let runs = RunArray::<Int32Type>::try_new(&ends, &StringArray::from(vec!["a", "b"])).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("numbers", Arc::new((0..rows as i64).map(|row| (row % 7 != 0).then_some(row)).collect::<Int64Array>())),
        ("flags", Arc::new((0..rows).map(|row| Some(row % 3 == 0)).collect::<BooleanArray>())),
        ("texts", Arc::new(StringArray::from(texts.clone()))),
        ("views", Arc::new(StringViewArray::from_iter(texts.clone()))),
        ("long", Arc::new(LargeStringArray::from(texts.clone()))),
        ("decimals", Arc::new((0..rows as i128).map(Some).collect::<Decimal128Array>())),
        ("moments", Arc::new((0..rows as i64).map(Some).collect::<TimestampMicrosecondArray>())),
        ("lists", Arc::new(lists)),
        ("structs", Arc::new(structs)),
        ("fixed", Arc::new(fixed)),
        ("words", Arc::new(words)),
        ("runs", Arc::new(runs)),
        ("nothing", Arc::new(NullArray::new(rows))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

const CODECS: [Option<CompressionType>; 3] = [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)];

fn file(batches: &[RecordBatch], codec: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

fn stream(batches: &[RecordBatch], codec: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

fn read_all(bytes: Vec<u8>, selection: Selection) -> Result<Vec<RecordBatch>, Fault> {
    ArrowFile::open(Arc::new(Bytes::from(bytes)))?.batches(selection, Box::new(Unbounded)).collect()
}

#[test]
fn both_containers_round_trip() {
    let batches = [batch(100), batch(2), batch(63)];
    for codec in CODECS {
        for bytes in [file(&batches, codec), stream(&batches, codec)] {
            let found = read_all(bytes.clone(), Selection::default()).unwrap();
            assert_eq!(found.len(), 3);
            for (found, expected) in found.iter().zip(&batches) {
                assert_eq!(found.columns(), expected.columns(), "{codec:?}");
            }
            let columns = vec![10, 3, 0];
            let part = read_all(bytes.clone(), Selection { columns: Some(columns.clone()), range: None }).unwrap();
            assert_eq!(part[0].columns(), batches[0].project(&columns).unwrap().columns(), "{codec:?}");
            let none = read_all(bytes, Selection { columns: Some(Vec::new()), range: None }).unwrap();
            assert_eq!(none.iter().map(RecordBatch::num_rows).sum::<usize>(), 165);
        }
    }
}

#[test]
fn ranges_have_each_batch_once() {
    let batches = [batch(50), batch(51), batch(52), batch(53)];
    for bytes in [file(&batches, None), stream(&batches, None)] {
        let size = bytes.len() as u64;
        let mut rows = 0;
        for range in [0..size / 3, size / 3..size / 2, size / 2..size] {
            let part = read_all(bytes.clone(), Selection { columns: None, range: Some(range) }).unwrap();
            rows += part.iter().map(RecordBatch::num_rows).sum::<usize>();
        }
        assert_eq!(rows, 206);
    }
}

#[test]
fn dictionaries_grow_by_deltas() {
    let words = |words: &[&str]| {
        let words: DictionaryArray<Int32Type> = words.iter().copied().collect();
        RecordBatch::try_from_iter([("w", Arc::new(words) as ArrayRef)]).unwrap()
    };
    let batches = [words(&["a", "b"]), words(&["a", "b", "c"])];
    let options = IpcWriteOptions::default()
        .with_dictionary_handling(arrow::ipc::writer::DictionaryHandling::Delta)
        .try_with_compression(Some(CompressionType::LZ4_FRAME))
        .unwrap();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    let found = read_all(writer.into_inner().unwrap(), Selection::default()).unwrap();
    let found = concat_batches(&batches[0].schema(), &found).unwrap();
    assert_eq!(found.column(0).as_ref(), words(&["a", "b", "a", "b", "c"]).column(0).as_ref());
}

#[test]
fn declared_lengths_are_bounded() {
    let numbers: Int64Array = (0..1000).collect();
    let batch = RecordBatch::try_from_iter([("a", Arc::new(numbers) as ArrayRef)]).unwrap();
    let bytes = file(&[batch], Some(CompressionType::LZ4_FRAME));
    let prefix = [&8000_i64.to_le_bytes()[..], &[0x04, 0x22, 0x4D, 0x18]].concat();
    let at = bytes.windows(prefix.len()).position(|window| window == prefix).unwrap();
    for (declared, reason) in [
        (1_i64 << 60, "declare 1152921504606846976 bytes"),
        (-2, "declare -2 bytes"),
        (7999, "its rows need 8000"),
        (8008, "a compressed buffer"),
        (-1, "its rows need 8000"),
    ] {
        let mut damaged = bytes.clone();
        damaged[at..at + 8].copy_from_slice(&declared.to_le_bytes());
        let fault = read_all(damaged, Selection::default()).unwrap_err().to_string();
        assert!(fault.contains(reason), "{declared}: {fault}");
    }
}

/// arrow-ipc takes a buffer for values as a whole, and asserts that no part of a value is left.
#[test]
fn buffers_end_with_a_value() {
    for name in ["arrow_stream/views-with-a-rest.arrows", "arrow/length-of-2-60.arrow", "arrow/no-footer.arrow"] {
        let path = std::path::Path::new("../../fuzz/corpus").join(name);
        let bytes = std::fs::read(path).unwrap();
        assert!(guarded(move || read_all(bytes, Selection::default()).map(|batches| batches.len())).is_ok(), "{name}");
    }
}

#[test]
fn what_is_no_arrow_file_costs_nothing() {
    let whole = file(&[batch(1000)], None);
    let cut = whole[..whole.len() / 2].to_vec();
    assert!(read_all(cut, Selection::default()).unwrap_err().to_string().contains("no footer"));
    for text in [&b"ARRO"[..], b"", b"FEA1....", b"a,b\n1,2\n", &[0xFF; 64]] {
        assert!(read_all(text.to_vec(), Selection::default()).is_err(), "{text:?}");
    }
    struct Nothing;
    impl Memory for Nothing {
        fn resize(&mut self, _bytes: u64) -> Result<(), crate::OverMemory> {
            Err(crate::OverMemory("none is left".into()))
        }
    }
    let mut batches =
        ArrowFile::open(Arc::new(Bytes::from(whole))).unwrap().batches(Selection::default(), Box::new(Nothing));
    assert!(matches!(batches.next(), Some(Err(Fault::Memory { .. }))));
    assert!(batches.next().is_none());
}

/// A small generator: the same damage in each run.
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

#[test]
fn damage_is_an_error_and_no_panic() {
    let (mut state, mut panics) = (0x9E37_79B9_7F4A_7C15, Vec::new());
    let batches = [batch(40), batch(9)];
    for codec in CODECS {
        for bytes in [file(&batches, codec), stream(&batches, codec)] {
            for round in 0..1500 {
                let mut damaged = bytes.clone();
                for _ in 0..=random(&mut state) % 3 {
                    let at = random(&mut state) % damaged.len();
                    match random(&mut state) % 4 {
                        0 => damaged[at] ^= 1 << (random(&mut state) % 8),
                        1 => damaged[at] = [0, 1, 0x7F, 0x80, 0xFF][random(&mut state) % 5],
                        2 => drop(damaged.drain(at..(at + 4).min(damaged.len()))),
                        _ => damaged.truncate(at.max(1)),
                    }
                }
                let outcome = guarded(move || read_all(damaged, Selection::default()).map(|batches| batches.len()));
                panics.extend(outcome.err().map(|panicked| format!("{codec:?} {round}: {panicked}")));
            }
        }
    }
    assert!(panics.is_empty(), "{panics:?}");
}
