//! Arrays compared with the values written into segments: every type, every encoding, with NULLs;
//! kept, evicted, shared.

use std::sync::atomic::AtomicBool;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, PrimitiveArray, RecordBatch};
use arrow_schema::{Field, Schema};
use onehop_io::{Ledger, MemoryFile};
use onehop_pipeline::backend::{Backend, Devices};
use onehop_pipeline::{Budget, SegmentSource};
use onehop_segment::{BlockCache, BlockList, Segment, SegmentOptions, SegmentWriter};

use super::*;
use crate::backend::CudaDevices;
use crate::fake::{self, Machine};
use crate::fused::Options;
use crate::staging::Shape;

const BLOCK_ROWS: usize = 2048;

fn backend(context: &Arc<Context>) -> Arc<dyn Backend> {
    let staging = Shape { batch_bytes: 64 << 10, slots: 3, threads: 2 };
    let options = Options { threads: 64, wide_threads: 64, blocks: 1, staging, ..Options::default() };
    Arc::clone(&CudaDevices::of_contexts(&[Arc::clone(context)], &fake::nvrtc(), options).all().unwrap()[0])
}

fn segment(columns: &[(&str, ArrayRef)]) -> Arc<Segment> {
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let arrays = columns.iter().map(|(_, array)| Arc::clone(array)).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
    let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: BLOCK_ROWS }).unwrap();
    writer.append(&batch).unwrap();
    let file = MemoryFile::new("t.seg", Vec::new());
    writer.finish(&file, &Ledger::default()).unwrap();
    Arc::new(Segment::open(Arc::new(file), &Ledger::default()).unwrap())
}

fn stored(segments: &[Arc<Segment>], columns: &[usize]) -> (Arc<dyn Source>, Stored) {
    let blocks = segments.iter().flat_map(|segment| (0..segment.blocks()).map(move |block| (segment, block)));
    let blocks: Arc<BlockList> = Arc::new(blocks.collect());
    let typed: Vec<_> =
        columns.iter().map(|place| (*place, segments[0].column(*place).column_type.clone(), true)).collect();
    let (cache, ledger) = (Arc::new(BlockCache::new(1 << 24)), Arc::default());
    let source = SegmentSource::new("t", Arc::clone(&blocks), &typed, cache, ledger, 0).unwrap();
    (Arc::new(source), Stored { blocks, columns: columns.to_vec() })
}

fn decode(
    backend: &Arc<dyn Backend>,
    segments: &[Arc<Segment>],
    columns: &[usize],
    element: Element,
) -> PipelineResult<Arc<dyn DeviceMemory>> {
    let (source, stored) = stored(segments, columns);
    with_control(|control| backend.arrays().unwrap().decode(&source, &stored, element, MemoryLimit::default(), control))
}

fn with_control<T>(f: impl FnOnce(&Control<'_>) -> T) -> T {
    let ledgers = [Arc::default()];
    let (cancelled, budget) = (AtomicBool::new(false), Budget::from(0));
    f(&Control { cancelled: &cancelled, counts_steps: false, ledgers: &ledgers, did_rows: &|_| (), budget: &budget })
}

/// Returns the content of an array. The fake device's memory belongs to this process.
fn bytes(array: &Arc<dyn DeviceMemory>, len: usize) -> Vec<u8> {
    assert!(array.bytes() >= len as u64);
    // SAFETY: the memory of the fake device is host memory of at least that length, and is held.
    unsafe { std::slice::from_raw_parts(array.address() as *const u8, len) }.to_vec()
}

/// Returns columns of numbers: of many packed widths, constant, with a dictionary, and of the full
/// width.
fn shapes<T: ArrowPrimitiveType>(of: impl Fn(i128) -> T::Native, wide: [i128; 2]) -> Vec<ArrayRef> {
    let rows = 2 * BLOCK_ROWS as i128 + 777;
    let spread = |row: i128| wide[0] + (row * 0x9E37_79B9_7F4A_7C15) % (wide[1] - wide[0] + 1);
    let shapes: [&dyn Fn(i128) -> Option<i128>; 6] = [
        &|row| Some(row % 100),
        &|_| Some(42),
        &|row| Some(spread(row)),
        // A few values far from each other.
        &|row| Some([wide[0], wide[1], 0, 7][row as usize % 4]),
        &|row| (row % 5 > 0).then_some(row % 90),
        &|row| (row > BLOCK_ROWS as i128).then_some(row % 3),
    ];
    let array = |shape: &&dyn Fn(i128) -> Option<i128>| -> ArrayRef {
        Arc::new((0..rows).map(|row| shape(row).map(&of)).collect::<PrimitiveArray<T>>())
    };
    shapes.iter().map(array).collect()
}

/// Returns the values of an array one after the other, with `null` in the place of NULL.
fn expected<T: ArrowPrimitiveType>(array: &ArrayRef, null: T::Native) -> Vec<u8> {
    let array = array.as_primitive::<T>();
    let values: Vec<T::Native> = array.iter().map(|value| value.unwrap_or(null)).collect();
    crate::fused::bytes_of(&values).to_vec()
}

fn check<T: ArrowPrimitiveType>(element: Element, of: impl Fn(i128) -> T::Native, wide: [i128; 2], null: T::Native) {
    let backend = backend(&fake::context());
    for (number, array) in shapes::<T>(of, wide).iter().enumerate() {
        let halves = [array.slice(0, array.len() / 2), array.slice(array.len() / 2, array.len() - array.len() / 2)];
        let segments = halves.map(|half| segment(&[("n", half)]));
        let decoded = decode(&backend, &segments, &[0], element).unwrap_or_else(|e| panic!("{element} {number}: {e}"));
        let expected = expected::<T>(array, null);
        assert!(bytes(&decoded, expected.len()) == expected, "{element}, shape {number}");
    }
}

#[test]
fn numbers_of_every_type() {
    let signed = |bits: u32| [-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1];
    let unsigned = |bits: u32| [0, (1i128 << bits) - 1];
    check::<Int8Type>(Element::Int8, |n| n as i8, signed(8), 0);
    check::<Int16Type>(Element::Int16, |n| n as i16, signed(16), 0);
    check::<Int32Type>(Element::Int32, |n| n as i32, signed(32), 0);
    check::<Int64Type>(Element::Int64, |n| n as i64, signed(64), 0);
    check::<UInt8Type>(Element::UInt8, |n| n as u8, unsigned(8), 0);
    check::<UInt16Type>(Element::UInt16, |n| n as u16, unsigned(16), 0);
    check::<UInt32Type>(Element::UInt32, |n| n as u32, unsigned(32), 0);
    // Another test covers values from 2^63 on: no source has them with a dictionary.
    check::<UInt64Type>(Element::UInt64, |n| n as u64, unsigned(62), 0);
    check::<Float32Type>(Element::Float32, |n| n as f32 / 8.0, signed(60), f32::NAN);
    check::<Float64Type>(Element::Float64, |n| n as f64 / 3.0, signed(60), f64::NAN);
}

#[test]
fn truth_values_and_integers_as_doubles() {
    let backend = backend(&fake::context());
    let truths: BooleanArray = (0..5000).map(|row| Some(row % 3 == 1)).collect();
    let numbers: PrimitiveArray<Int64Type> = (0..5000).map(|row| (row % 4 > 0).then_some(row * 1000)).collect();
    let large: PrimitiveArray<UInt64Type> = (0..5000u64).map(|row| Some((1 << 63) + row * 4096)).collect();
    let odd: PrimitiveArray<Int64Type> = (0..5000).map(|row| Some((1 << 60) + row)).collect();
    let segments = [segment(&[
        ("truth", Arc::new(truths)),
        ("number", Arc::new(numbers)),
        ("large", Arc::new(large)),
        ("odd", Arc::new(odd)),
    ])];
    let decoded = bytes(&decode(&backend, &segments, &[0], Element::Bool).unwrap(), 5000);
    assert!(decoded.iter().enumerate().all(|(row, truth)| *truth == u8::from(row % 3 == 1)));
    let doubles = |column, rows: usize| -> Vec<f64> {
        let bytes = bytes(&decode(&backend, &segments, &[column], Element::Float64).unwrap(), rows * 8);
        bytes.chunks_exact(8).map(|double| f64::from_ne_bytes(double.try_into().unwrap())).collect()
    };
    let numbers = doubles(1, 5000);
    assert!(numbers.iter().enumerate().all(|(row, n)| if row % 4 > 0 { *n == row as f64 * 1e3 } else { n.is_nan() }));
    assert!(doubles(2, 5000).iter().enumerate().all(|(row, n)| *n == (1u64 << 63) as f64 + row as f64 * 4096.0));
    let inexact = decode(&backend, &segments, &[3], Element::Float64).unwrap_err();
    assert!(
        matches!(inexact, PipelineError::OutOfRange { .. }) && inexact.to_string().contains("\"odd\""),
        "{inexact}"
    );
}

/// Returns a segment of two columns of numbers, which start at `from`.
fn numbers(from: i64) -> Arc<Segment> {
    let column = |by: i64| -> ArrayRef {
        Arc::new((0..3000).map(|row| Some((from + row) * by)).collect::<PrimitiveArray<Int64Type>>())
    };
    segment(&[("x", column(1)), ("y", column(-2))])
}

#[test]
fn a_matrix_is_columns_without_a_gap() {
    let backend = backend(&fake::context());
    let segments = [numbers(0), numbers(3000)];
    let matrix = bytes(&decode(&backend, &segments, &[1, 0], Element::Int64).unwrap(), 2 * 6000 * 8);
    let expected: Vec<i64> = (0..6000).map(|row| row * -2).chain(0..6000).collect();
    assert!(matrix == crate::fused::bytes_of(&expected));
}

#[test]
fn who_asks_again_has_the_same_and_holders_keep_it() {
    let (machine, context) = Machine::start();
    let backend = backend(&context);
    let mut segments = vec![numbers(0)];
    let first = decode(&backend, &segments, &[0], Element::Int64).unwrap();
    let launched = machine.calls(fake::Call::Synchronize);
    let again = decode(&backend, &segments, &[0], Element::Int64).unwrap();
    assert_eq!((again.address(), machine.calls(fake::Call::Synchronize)), (first.address(), launched));
    // Arrays of another type or of other columns are separate.
    let double = decode(&backend, &segments, &[0], Element::Float64).unwrap();
    let both = decode(&backend, &segments, &[0, 1], Element::Int64).unwrap();
    assert!(double.address() != first.address() && both.address() != first.address());
    // With more rows, the earlier array belongs to its holder alone.
    segments.push(numbers(3000));
    let longer = decode(&backend, &segments, &[0], Element::Int64).unwrap();
    assert_ne!(longer.address(), first.address());
    // Evicted while it is held.
    let key = (SegmentKey::of(&segments[0]), 0);
    backend.residency().unwrap().evict(std::slice::from_ref(&key));
    let anew = decode(&backend, &segments, &[0], Element::Int64).unwrap();
    assert_ne!(anew.address(), longer.address());
    let expected: Vec<i64> = (0..6000).collect();
    assert!(bytes(&longer, 48_000) == crate::fused::bytes_of(&expected));
    // The segments are gone.
    drop((segments, again, double, both, anew, first));
    backend.residency().unwrap().sweep();
    assert!(bytes(&longer, 48_000) == crate::fused::bytes_of(&expected));
    drop((longer, backend));
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(!machine.living().contains(&"device memory"), "{:?}", machine.living());
}

#[test]
fn what_is_full_says_so_and_lets_go_of_what_nobody_holds() {
    let (_, context) = Machine::start();
    let backend = backend(&context);
    let segments = [numbers(0)];
    let (source, stored) = stored(&segments, &[0]);
    let decode = |mib: u64| {
        let limit = MemoryLimit::Bytes(mib << 20);
        with_control(|control| backend.arrays().unwrap().decode(&source, &stored, Element::Int64, limit, control))
    };
    let full = decode(1).unwrap_err();
    assert!(matches!(full, PipelineError::Memory { .. }), "{full}");
    let held = decode(64).unwrap();
    // An existing array is returned, whatever the limit is now.
    assert_eq!(decode(1).unwrap().address(), held.address());
    let parts: [&[u8]; 2] = [&[1, 2, 3], &[4]];
    let uploaded = with_control(|control| backend.arrays().unwrap().upload(&parts, MemoryLimit::default(), control));
    let uploaded = uploaded.unwrap();
    assert_eq!(bytes(&uploaded, 4), [1, 2, 3, 4]);
    // The upload counts as long as it lives.
    let full = with_control(|control| backend.arrays().unwrap().upload(&parts, MemoryLimit::Bytes(6 << 20), control));
    assert!(matches!(full, Err(PipelineError::Memory { .. })), "{full:?}");
    drop((uploaded, held));
    with_control(|control| backend.arrays().unwrap().upload(&parts, MemoryLimit::Bytes(6 << 20), control)).unwrap();
    let full = with_control(|control| backend.arrays().unwrap().upload(&parts, MemoryLimit::Bytes(1 << 20), control));
    assert!(matches!(full, Err(PipelineError::Memory { .. })), "{full:?}");
}

#[test]
fn another_process_has_the_same_bytes_and_forged_handles_are_errors() {
    let (ours, theirs) = (backend(&fake::context()), Machine::start());
    let segments = [numbers(0)];
    let array = decode(&ours, &segments, &[1], Element::Int64).unwrap();
    let shared = array.share().unwrap();
    let other = backend(&theirs.1);
    let arrays = other.arrays().unwrap();
    let opened = arrays.open(&shared, 24_000).unwrap();
    assert_eq!(bytes(&opened, 24_000), bytes(&array, 24_000));
    assert!(opened.share().is_err());
    let mut forged = shared;
    forged[20] ^= 1;
    for (handle, wanted) in [(forged, 8), ([0; 64], 8), (shared, 1 << 40)] {
        let refused = arrays.open(&handle, wanted).unwrap_err();
        assert!(matches!(refused, PipelineError::Device { .. }), "{refused}");
    }
    assert!(ours.arrays().unwrap().open(&shared, 8).is_err(), "the driver does not open what it gave out itself");
    drop((opened, array));
    drop(other);
    assert!(!theirs.0.living().contains(&"shared memory"));
}
