//! Every byte of a small segment flipped, and the file truncated at every length: an error or the
//! right rows, nothing else.
#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::*;
use onehop_io::{Fault, Faulty, Ledger, MemoryFile, ReadAt};
use onehop_segment::{Error, Segment, SegmentOptions, SegmentWriter};

fn batch() -> RecordBatch {
    let rows = 1500i64;
    let valid = |i: i64| i % 5 != 2;
    RecordBatch::try_from_iter_with_nullable([
        ("packed", Arc::new(Int64Array::from_iter((0..rows).map(|i| Some(i * 3)))) as ArrayRef, true),
        ("wide", Arc::new(Int64Array::from_iter((0..rows).map(|i| valid(i).then_some(i << 35)))) as ArrayRef, true),
        (
            "coded",
            Arc::new(Int32Array::from_iter((0..rows).map(|i| Some([5, 70_000, -9][i as usize % 3])))) as ArrayRef,
            true,
        ),
        (
            "plain",
            Arc::new(Float64Array::from_iter((0..rows).map(|i| Some((i as f64).sin() * 1e10)))) as ArrayRef,
            true,
        ),
        (
            "flag",
            Arc::new(BooleanArray::from_iter((0..rows).map(|i| valid(i).then_some(i % 2 == 0)))) as ArrayRef,
            true,
        ),
        (
            "city",
            Arc::new(StringViewArray::from_iter((0..rows).map(|i| Some(format!("city {}", i % 20))))) as ArrayRef,
            true,
        ),
        (
            "name",
            Arc::new(StringViewArray::from_iter((0..rows).map(|i| valid(i).then(|| format!("näme {i}"))))) as ArrayRef,
            true,
        ),
        (
            "huge",
            Arc::new(
                Decimal128Array::from_iter((0..rows).map(|i| Some(i128::from(i) * 10i128.pow(30))))
                    .with_precision_and_scale(38, 2)
                    .unwrap(),
            ) as ArrayRef,
            true,
        ),
    ])
    .unwrap()
}

fn segment_bytes() -> Vec<u8> {
    let batch = batch();
    let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: 1024 }).unwrap();
    writer.append(&batch).unwrap();
    let file = MemoryFile::new("victim.seg", Vec::new());
    writer.finish(&file, &Ledger::default()).unwrap();
    file.to_vec()
}

/// Returns all rows, or the first error.
fn read_all(file: Arc<dyn ReadAt>) -> Result<Vec<Vec<ArrayRef>>, Error> {
    let ledger = Ledger::default();
    let segment = Segment::open(file, &ledger)?;
    let columns = 0..segment.schema().fields().len();
    columns
        .map(|column| {
            (0..segment.blocks())
                .map(|block| {
                    let loaded = segment.load(column, block, &ledger)?;
                    loaded.decode(0..loaded.rows())
                })
                .collect()
        })
        .collect()
}

/// Returns true if the damage was detected.
fn is_noticed(file: Arc<dyn ReadAt>, expected: &[Vec<ArrayRef>], what: &str) -> bool {
    match catch_unwind(AssertUnwindSafe(|| read_all(file))) {
        Err(_) => panic!("{what}: panicked"),
        Ok(Ok(rows)) => {
            assert!(rows == expected, "{what}: wrong rows without an error");
            false
        }
        Ok(Err(error)) => {
            assert!(error.to_string().contains("victim.seg"), "{what}: the error does not name the file: {error}");
            true
        }
    }
}

#[test]
fn every_flipped_byte_is_noticed_or_harmless() {
    let bytes = segment_bytes();
    let expected = read_all(Arc::new(MemoryFile::new("victim.seg", bytes.clone()))).unwrap();
    let mut noticed = 0;
    for at in 0..bytes.len() {
        for mask in [0xff, 1 << (at % 8)] {
            let mut damaged = bytes.clone();
            damaged[at] ^= mask;
            let file = Arc::new(MemoryFile::new("victim.seg", damaged));
            noticed += usize::from(is_noticed(file, &expected, &format!("byte {at} ^ {mask:#x}")));
        }
    }
    // The canary: a test that detects nothing is useless. Padding is the only harmless place.
    assert!(noticed > bytes.len() / 2, "only {noticed} of {} flips were noticed", 2 * bytes.len());
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = segment_bytes();
    for len in 0..bytes.len() {
        let file = Arc::new(MemoryFile::new("victim.seg", bytes[..len].to_vec()));
        assert!(is_noticed(file, &[], &format!("cut to {len} bytes")), "cut to {len} bytes was not noticed");
    }
}

/// Checksums protect against accidents, not against a malicious file. With a corrected checksum of
/// the footer, every changed byte of the footer must still give an error or rows, never a panic.
#[test]
fn a_forged_footer_never_panics() {
    let bytes = segment_bytes();
    let trailer = bytes.len() - 64;
    let footer = u64::from_le_bytes(bytes[trailer..trailer + 8].try_into().unwrap()) as usize;
    for at in footer..trailer {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut forged = bytes.clone();
            forged[at] = value;
            let crc = crc32c::crc32c(&forged[footer..trailer]);
            forged[trailer + 32..trailer + 36].copy_from_slice(&crc.to_le_bytes());
            forged[trailer + 36..trailer + 40].fill(0);
            let crc = crc32c::crc32c(&forged[trailer..]);
            forged[trailer + 36..trailer + 40].copy_from_slice(&crc.to_le_bytes());
            let file: Arc<dyn ReadAt> = Arc::new(MemoryFile::new("victim.seg", forged));
            let outcome = catch_unwind(AssertUnwindSafe(|| read_all(file).map(drop)));
            assert!(outcome.is_ok(), "footer byte {} = {value:#x} panicked", at - footer);
        }
    }
}

/// A predicate that rules out a segment must rule out each of its blocks.
#[test]
fn zones_of_a_segment_that_are_none_of_its_blocks_are_refused() {
    const COLUMNS: usize = 64;
    const COLUMN: usize = 128;
    let (null_count, max_of_name) = (COLUMNS + COLUMN + 48, COLUMNS + 6 * COLUMN + 16);
    for (at, value, reason) in [
        (null_count, [0; 8], "its NULLs are not those of its blocks"),
        (null_count, [0xff; 8], "its NULLs are not those of its blocks"),
        (max_of_name, [0; 8], "its values lie outside of the segment's"),
    ] {
        let mut bytes = segment_bytes();
        let trailer = bytes.len() - 64;
        let footer = u64::from_le_bytes(bytes[trailer..trailer + 8].try_into().unwrap()) as usize;
        bytes[footer + at..footer + at + 8].copy_from_slice(&value);
        let crc = crc32c::crc32c(&bytes[footer..trailer]);
        bytes[trailer + 32..trailer + 36].copy_from_slice(&crc.to_le_bytes());
        bytes[trailer + 36..trailer + 40].fill(0);
        let crc = crc32c::crc32c(&bytes[trailer..]);
        bytes[trailer + 36..trailer + 40].copy_from_slice(&crc.to_le_bytes());
        let error = read_all(Arc::new(MemoryFile::new("victim.seg", bytes))).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_failing_or_short_reading_disk_is_an_error_or_right() {
    let bytes = segment_bytes();
    let memory = Arc::new(MemoryFile::new("victim.seg", bytes));
    let expected = read_all(memory.clone()).unwrap();
    let calls = {
        let counting = Arc::new(Faulty::new(memory.clone(), vec![]));
        read_all(counting.clone()).unwrap();
        counting.calls()
    };
    for call in 0..calls {
        let failing = Arc::new(Faulty::new(memory.clone(), vec![Fault::FailFrom(call)]));
        assert!(is_noticed(failing, &expected, &format!("call {call} failed")));
        let short = Arc::new(Faulty::new(memory.clone(), vec![Fault::Short(call), Fault::InterruptAt(call)]));
        assert!(!is_noticed(short, &expected, "short reads"));
    }
}

#[test]
fn a_later_format_is_refused_politely() {
    let mut bytes = segment_bytes();
    bytes[8] = 2;
    let error = read_all(Arc::new(MemoryFile::new("victim.seg", bytes))).unwrap_err();
    assert_eq!(error.to_string(), "victim.seg is a segment of format 2, and this build reads format 1");
}

#[test]
fn an_unknown_feature_is_told_from_a_flipped_bit() {
    let mut bytes = segment_bytes();
    let trailer = bytes.len() - 64;
    bytes[trailer + 24] |= 1 << 5;
    let error = read_all(Arc::new(MemoryFile::new("victim.seg", bytes.clone()))).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    bytes[trailer + 36..trailer + 40].fill(0);
    let crc = crc32c::crc32c(&bytes[trailer..]);
    bytes[trailer + 36..trailer + 40].copy_from_slice(&crc.to_le_bytes());
    let error = read_all(Arc::new(MemoryFile::new("victim.seg", bytes))).unwrap_err();
    assert!(matches!(error, Error::Feature { bit: 5, .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "victim.seg was written by a newer onehop: reading it needs feature bit 5 of the segment format, which this \
         build does not know"
    );
}

/// Catalogs identify a segment by its checksum: it must depend on the values, and on nothing else.
#[test]
fn the_checksum_is_the_contents() {
    let checksum = |values: std::ops::Range<i64>| {
        let column = Arc::new(Int64Array::from_iter_values(values)) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: 1024 }).unwrap();
        writer.append(&batch).unwrap();
        let file = MemoryFile::new("x.seg", Vec::new());
        let written = writer.finish(&file, &Ledger::default()).unwrap();
        let segment = Segment::open(Arc::new(file), &Ledger::default()).unwrap();
        assert_eq!(segment.checksum(), written.checksum);
        (written.bytes, written.checksum)
    };
    assert_eq!(checksum(0..2000), checksum(0..2000));
    let (bytes, other) = checksum(5..2005);
    assert_eq!(bytes, checksum(0..2000).0);
    assert_ne!(other, checksum(0..2000).1);
}
