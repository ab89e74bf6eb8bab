//! Footers and pages as writers make them, and the results of damage.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::WriterProperties;

use super::footer::{Outline, list_header, outline};
use super::*;
use crate::guard::guarded;
use crate::{Fault, Memory, OverMemory, Unbounded};

fn file(rows: i32, compression: Compression, group_rows: usize) -> Vec<u8> {
    let texts: StringArray = (0..rows).map(|row| Some(format!("text {}", row % 10))).collect();
    let columns: [(&str, ArrayRef); 2] = [("a", Arc::new((0..rows).collect::<Int32Array>())), ("s", Arc::new(texts))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties =
        WriterProperties::builder().set_compression(compression).set_max_row_group_row_count(Some(group_rows));
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
    // The writer divides a batch into row groups by recursion.
    for from in (0..rows as usize).step_by(group_rows) {
        writer.write(&batch.slice(from, group_rows.min(rows as usize - from))).unwrap();
    }
    writer.into_inner().unwrap()
}

fn footer_of(bytes: &[u8]) -> Result<parquet::file::metadata::ParquetMetaData, Fault> {
    let end: [u8; 8] = bytes[bytes.len() - 8..].try_into().unwrap();
    let Tail { offset, len } = tail(end, bytes.len() as u64)?;
    footer(&bytes[offset as usize..(offset + len) as usize], bytes.len() as u64, &mut Unbounded)
}

#[test]
fn footers_of_any_number_of_row_groups_are_read() {
    for (rows, group_rows) in [(100, 100), (1000, 10)] {
        let found = footer_of(&file(rows, Compression::UNCOMPRESSED, group_rows)).unwrap();
        assert_eq!(found.num_row_groups(), rows as usize / group_rows);
        assert_eq!(found.row_groups().iter().map(|group| group.num_rows()).sum::<i64>(), i64::from(rows));
    }
    // Parquet's writer makes no more of them: the row group of one row is repeated.
    let bytes = file(1, Compression::UNCOMPRESSED, 1);
    let size = bytes.len() as u64;
    let Tail { offset, len } = tail(bytes[bytes.len() - 8..].try_into().unwrap(), size).unwrap();
    let one = &bytes[offset as usize..(offset + len) as usize];
    let Outline { list_at, groups_from, groups, .. } = outline(one).unwrap();
    let (before, group, behind) = (&one[..list_at - 3], &one[groups_from..groups[0]], &one[groups[0]..]);
    assert_eq!(one[list_at - 3..list_at], [0x16, 2, 0x19]);
    let rows = [0x16, 0xD0, 0x83, 0x04, 0x19];
    let many = [before, &rows, &list_header(33_000), &group.repeat(33_000), behind].concat();
    let found = footer(&many, size, &mut Unbounded).unwrap();
    assert_eq!((found.num_row_groups(), found.file_metadata().num_rows()), (33_000, 33_000));
}

#[test]
fn footers_are_bounded() {
    let bytes = file(100, Compression::SNAPPY, 50);
    let (size, end) = (bytes.len(), bytes.len() - 8);
    for len in [u32::MAX, size as u32, size as u32 - 11] {
        let mut damaged = bytes.clone();
        damaged[end..end + 4].copy_from_slice(&len.to_le_bytes());
        assert!(footer_of(&damaged).unwrap_err().to_string().contains("declares"), "{len}");
    }
    assert!(footer_of(&bytes[..size - 1]).unwrap_err().to_string().contains("PAR1"));
    // A list of row groups that declares 2^31 - 1 elements.
    let huge = [0x15, 2, 0x39, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0x07];
    assert!(footer(&huge, 100, &mut Unbounded).unwrap_err().to_string().contains("more elements"));
    // A schema of groups, each with one child.
    let group = [0x48, 1, b'g', 0x15, 2, 0];
    let deep = [&[0x29, 0xFC, 0xE8, 0x07][..], &group.repeat(1000), &[0]].concat();
    assert!(footer(&deep, 100, &mut Unbounded).unwrap_err().to_string().contains("within each other"));
}

#[test]
fn statistics_of_wide_types_are_asked_for() {
    struct Little;
    impl Memory for Little {
        fn resize(&mut self, bytes: u64) -> Result<(), OverMemory> {
            if bytes < 1 << 20 { Ok(()) } else { Err(OverMemory("little is left".into())) }
        }
    }
    let read = |width: i32| {
        let item = Arc::new(Field::new_list_field(DataType::Int32, true));
        let list = Field::new("l", DataType::FixedSizeList(item, width), true);
        let schema = Schema::new(vec![Field::new("s", DataType::Struct(vec![list].into()), true)]);
        let bytes = ArrowWriter::try_new(Vec::new(), Arc::new(schema), None).unwrap().into_inner().unwrap();
        let Tail { offset, len } = tail(bytes[bytes.len() - 8..].try_into().unwrap(), bytes.len() as u64)?;
        footer(&bytes[offset as usize..(offset + len) as usize], bytes.len() as u64, &mut Little)
    };
    assert!(read(100).is_ok());
    assert!(matches!(read(1 << 30), Err(Fault::Memory { what, .. }) if what.contains("statistics")));
}

#[test]
fn pages_declare_what_their_bytes_can_be() {
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())] {
        let bytes = file(1000, compression, 1000);
        let metadata = footer_of(&bytes).unwrap();
        for column in metadata.row_group(0).columns() {
            let (start, len) = column.byte_range();
            let chunk = &bytes[start as usize..(start + len) as usize];
            let memory = PageCheck::new(column).pages(chunk).unwrap();
            let held = memory.dictionary_bytes + memory.data_bytes;
            assert!(held > 0 && held <= column.uncompressed_size() as u64, "{compression:?} {memory:?}");
        }
    }
    let metadata = footer_of(&file(10, Compression::SNAPPY, 10)).unwrap();
    let check = PageCheck::new(metadata.row_group(0).column(0));
    // A page of 10 bytes that declares 2 GB decompressed, and a dictionary of 10 bytes with 2^30
    // values.
    let bomb = [0x15, 0, 0x15, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 0x15, 20, 0];
    assert!(check.pages(&bomb).unwrap_err().to_string().contains("2147483647"));
    let values = [0x15, 4, 0x15, 20, 0x15, 20, 0x4C, 0x15, 0x80, 0x80, 0x80, 0x80, 0x08, 0, 0];
    assert!(check.pages(&values).unwrap_err().to_string().contains("1073741824 values"));
}

/// Files that made parquet's reader panic, with the error of their headers.
#[test]
fn headers_that_no_page_has_are_errors() {
    for (name, reason) in [
        ("page-without-header.parquet", "declares no header of its kind"),
        ("page-without-dictionary.parquet", "refers to a dictionary"),
        ("schema-of-no-type.parquet", "its Arrow schema"),
        ("schema-of-no-integer.parquet", "its Arrow schema"),
        ("schema-of-no-decimal.parquet", "its Arrow schema"),
        ("statistics-of-no-decimal.parquet", "of a decimal of"),
    ] {
        let bytes = std::fs::read(std::path::Path::new("../../fuzz/corpus/parquet").join(name)).unwrap();
        let input: Arc<dyn crate::Input> = Arc::new(bytes::Bytes::from(bytes));
        let fault = open(input, &mut Unbounded).map(drop).unwrap_err().to_string();
        assert!(fault.contains(reason), "{name}: {fault}");
    }
}

/// Reads the footer of a file with its page indexes.
fn with_indexes(bytes: bytes::Bytes) -> Result<ParquetMetaData, parquet::errors::ParquetError> {
    ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Required).parse_and_finish(&bytes)
}

/// Each byte of a page index is damaged. The check refuses it, or parquet's reader returns rows or
/// an error.
#[test]
fn indexes_point_into_their_chunks() {
    for name in ["index-before-its-chunk.parquet", "index-behind-its-chunk.parquet"] {
        let bytes = std::fs::read(std::path::Path::new("../../fuzz/corpus/parquet").join(name)).unwrap();
        let metadata = with_indexes(bytes.into());
        let fault = check_read_indexes(&metadata.unwrap()).unwrap_err().to_string();
        assert!(fault.contains("in a chunk of"), "{name}: {fault}");
    }

    let texts: StringArray = (0..300).map(|row| (row % 7 != 0).then(|| format!("text {}", row % 90))).collect();
    let columns: [(&str, ArrayRef); 2] = [("a", Arc::new((0..300).collect::<Int32Array>())), ("s", Arc::new(texts))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder()
        .set_data_page_row_count_limit(50)
        .set_write_batch_size(50)
        .set_max_row_group_row_count(Some(200))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let bytes = writer.into_inner().unwrap();
    let metadata = footer_of(&bytes).unwrap();
    let column = metadata.row_group(0).column(0);
    let from = column.column_index_offset().unwrap().min(column.offset_index_offset().unwrap()) as usize;
    let end = tail(bytes[bytes.len() - 8..].try_into().unwrap(), bytes.len() as u64).unwrap().offset as usize;
    let check = |bytes: &[u8]| check_indexes(&metadata, from as u64, &bytes[from..end]);
    check(&bytes).unwrap();
    check_read_indexes(&with_indexes(bytes.clone().into()).unwrap()).unwrap();
    let packed = [0x15, 0, 0x15, 20, 0x15, 20, 0x2C, 0x15, 0xD0, 0x0F, 0x15, 0, 0x15, 8, 0x15, 6, 0, 0];
    let fault = PageCheck::new(metadata.row_group(0).column(1)).pages(&packed).unwrap_err();
    assert!(fault.to_string().contains("1000 values with packed levels"), "{fault}");

    let read = |bytes: Vec<u8>| {
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required);
        let rows = RowSelection::from(vec![RowSelector::skip(120), RowSelector::select(100), RowSelector::skip(80)]);
        let reader = ParquetRecordBatchReaderBuilder::try_new_with_options(bytes::Bytes::from(bytes), options)?;
        reader.with_row_selection(rows).build()?.collect::<Result<Vec<_>, _>>().map_err(Into::into)
    };
    let rows = |read: Result<Vec<RecordBatch>, parquet::errors::ParquetError>| {
        read.unwrap().iter().map(RecordBatch::num_rows).sum::<usize>()
    };
    assert_eq!(rows(read(bytes.clone())), 100);
    let mut refused = Vec::new();
    for at in from..end {
        for flip in [0x01, 0x10, 0x80, 0xFF] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            match check(&damaged) {
                Err(fault) => refused.push(fault.to_string()),
                Ok(()) => assert!(guarded(|| read(damaged)).is_ok(), "byte {} of {}", at - from, end - from),
            }
        }
    }
    for reason in
        ["bytes at", "begins with row", "entries for", "row group 1: column \"s\"", "row group 0: column \"a\""]
    {
        assert!(refused.iter().any(|fault| fault.contains(reason)), "{reason}: {refused:?}");
    }
}
