//! Rows are the same for every division into chunks.

#![allow(clippy::unwrap_used)]

use std::io::Cursor;

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;

use super::fault::{Fault, Types};
use super::plan::{JsonPlan, Unread};
use super::records::Chunks;
use super::shape::Shape;
use super::walk::walk;
use crate::files::Limits;

const PLAIN: FileCompressionType = FileCompressionType::UNCOMPRESSED;

/// Returns the types of columns and the rows, a line each, or the message of the error.
fn read(text: &[u8], chunk_bytes: usize) -> Result<Vec<String>, String> {
    let fault = |fault: Fault| fault.into_error("x.json", Types::Guessed).message().to_string();
    let file = || Box::new(Cursor::new(text.to_vec()));
    let mut shape = Shape::default();
    let mut chunks = Chunks::of(file(), PLAIN, chunk_bytes, Limits::default()).map_err(fault)?;
    while let Some(chunk) = chunks.next().map_err(fault)? {
        if let Some(from) = walk(&chunk, &mut shape).map_err(fault)? {
            chunks =
                Chunks::resume(file(), PLAIN, chunk_bytes, from, chunk.arrays, Limits::default()).map_err(fault)?;
        }
    }
    let plan = JsonPlan::of(&shape);
    let schema = plan.schema();
    let wanted: Vec<usize> = (0..schema.fields().len()).collect();
    let reader = plan.reader(&schema, &wanted, 8192);
    let types = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
    let mut all = vec![types.collect::<Vec<_>>().join(", ")];
    let mut chunks = Chunks::of(file(), PLAIN, chunk_bytes, Limits::default()).map_err(fault)?;
    while let Some(chunk) = chunks.next().map_err(fault)? {
        let (batches, resume) = reader.chunk(&chunk).map_err(|e| match e {
            Unread::Fault(found) => fault(found),
            Unread::Internal(e) => e.to_string(),
        })?;
        all.extend(batches.iter().flat_map(rows));
        if let Some(from) = resume {
            chunks =
                Chunks::resume(file(), PLAIN, chunk_bytes, from, chunk.arrays, Limits::default()).map_err(fault)?;
        }
    }
    Ok(all)
}

fn rows(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::new().with_null("NULL");
    let columns: Vec<ArrayFormatter<'_>> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    let row = |at| columns.iter().map(|column| column.value(at).to_string()).collect::<Vec<_>>().join("|");
    (0..batch.num_rows()).map(row).collect()
}

#[test]
fn rows_are_the_same_however_the_file_is_cut() {
    for (text, expected) in [
        ("{\"a\":1}\n{\"a\":2.5}\n", &["a Float64", "1.0", "2.5"][..]),
        ("[{\"a\":1},{\"a\":2,\"b\":\"x\"}]", &["a Int64, b Utf8", "1|NULL", "2|x"]),
        ("{\n\"a\":1\n}\n{\"a\":2}", &["a Int64", "1", "2"]),
        // Lines at first, then other values.
        ("{\"a\":1}\n{\n\"a\":2}\n[\n{\"a\":3}]", &["json Utf8", "{\"a\":1}", "{\"a\":2}", "[{\"a\":3}]"]),
        ("[{\"a\":1}]\n[{\"a\":2},\n{\"a\":3}]\n", &["a Int64", "1", "2", "3"]),
        ("{\"a\":1}{\"a\":2} {\"a\":3}", &["a Int64", "1", "2", "3"]),
        ("[1,2]\n[3,4]\n", &["json List(Int64)", "[1, 2]", "[3, 4]"]),
        ("[[1,2],[3]]", &["json List(Int64)", "[1, 2]", "[3]"]),
        ("1\n2\nnull\n", &["json Int64", "1", "2", "NULL"]),
        (
            "{\"z\":1,\"a\":[1]}\n{\"k\":true,\"z\":null}\n",
            &["z Int64, a List(Int64), k Boolean", "1|[1]|NULL", "NULL|NULL|true"],
        ),
        ("{\"a\":1,\"a\":2,\"b\":[1],\"b\":[2,3]}", &["a Int64, b List(Int64)", "2|[2, 3]"]),
        ("{\"a\":1,\"b\":2}\n{\"a\":3,\"a\":4}\n{\"b\":5,\"a\":6}", &["a Int64, b Int64", "1|2", "4|NULL", "6|5"]),
        ("{\"a\":null}\n{}\n{\"a\":1,\"a\":null}\n{\"a\":null,\"a\":7}", &["a Int64", "NULL", "NULL", "NULL", "7"]),
        ("{\"a\":{\"x\":1,\"x\":null}}", &["a Struct(\"x\": Int64)", "{x: NULL}"]),
        ("{\"a\":18446744073709551615}\n{\"a\":-1}", &["a Decimal128(38, 0)", "18446744073709551615", "-1"]),
        ("{\"a\":NaN}\n{\"a\":-Infinity}\n{\"a\":1}", &["a Float64", "NaN", "-inf", "1.0"]),
        ("{\"a\":1e400}\n{\"a\":1.50}", &["a Utf8", "1e400", "1.50"]),
        (
            "{\"a\":1}\n{\"a\":\"x\"}\n{\"a\":{\"b\" : [1, null, \"\\u00e9\\n\"]}}",
            &["a Utf8", "1", "\"x\"", "{\"b\":[1,null,\"é\\n\"]}"],
        ),
        ("{\"a\":\"2024-01-02\"}\n{\"a\":null}", &["a Date32", "2024-01-02", "NULL"]),
        ("{\"a\":\"0001-01-01\"}\n{\"a\":\"0000-12-31\"}", &["a Utf8", "0001-01-01", "0000-12-31"]),
        (
            "{\"a\":\"2024-01-02 00:00:00.123456789\"}\n{\"a\":\"2262-04-11 00:00:00\"}",
            &["a Timestamp(ns)", "2024-01-02T00:00:00.123456789", "2262-04-11T00:00:00"],
        ),
        // The range of nanoseconds does not include these, in any order, as a date, with an offset,
        // or in a list.
        (
            "{\"a\":\"2024-01-02 00:00:00.123456789\"}\n{\"a\":\"2400-01-01 00:00:00\"}",
            &["a Utf8", "2024-01-02 00:00:00.123456789", "2400-01-01 00:00:00"],
        ),
        (
            "{\"a\":\"1500-01-01\"}\n{\"a\":\"2024-01-02 00:00:00.123456789\"}",
            &["a Utf8", "1500-01-01", "2024-01-02 00:00:00.123456789"],
        ),
        (
            "{\"a\":[\"2024-01-02 00:00:00.123456789Z\"]}\n{\"a\":[\"2400-01-01 00:00:00Z\"]}",
            &["a List(Utf8)", "[2024-01-02 00:00:00.123456789Z]", "[2400-01-01 00:00:00Z]"],
        ),
        ("{\"a\":[]}\n{\"a\":null}", &["a List(Utf8)", "[]", "NULL"]),
        ("[ ]", &["json Utf8"]),
        ("\u{feff}{\"a\":\"é]}\"}", &["a Utf8", "é]}"]),
    ] {
        // The prefix that determines the layout of a file is never divided.
        for chunk_bytes in [8, 9, 11, 16, 1 << 20] {
            assert_eq!(read(text.as_bytes(), chunk_bytes).unwrap(), expected, "{text}: {chunk_bytes}");
        }
    }
}

#[test]
fn faults_are_found_where_they_are() {
    for (text, expected) in [
        ("[{\"a\":1},", "line 1, column 10: the file ends within a value"),
        ("{\"a\":1}\n{bad}\n", "line 2, column 2: a key in quotes is expected, and there is b"),
        ("{\"é\":1}\n {\"é\":tru}\n", "line 2, column 10: a value is expected, and there is }"),
        ("{\"a\":1},{\"a\":2}", "line 1, column 8: a value is expected, and there is ,"),
        ("[1,2]]", "line 1, column 6: a value is expected, and there is ]"),
    ] {
        let message = read(text.as_bytes(), 1 << 20).unwrap_err();
        assert_eq!(message, format!("'x.json' {expected}"), "{text}");
        assert!(read(text.as_bytes(), 8).is_err(), "{text}");
    }
}

#[test]
fn keys_that_are_values_are_maps() {
    let lines = |count: usize| (0..count).map(|at| format!("{{\"x\":{{\"k{at}\":{at}}}}}\n")).collect::<String>();
    assert!(read(lines(5).as_bytes(), 1 << 20).unwrap()[0].starts_with("x Struct"));
    let map = read(lines(20).as_bytes(), 1 << 20).unwrap();
    assert!(map[0].starts_with("x Map") && map[3] == "{k2: 2}", "{map:?}");
    // One object of many keys is a map; many objects of many keys are a table.
    let wide = format!("{{{}}}\n", (0..300).map(|at| format!("\"k{at}\":{at}")).collect::<Vec<_>>().join(","));
    assert!(read(wide.as_bytes(), 1 << 20).unwrap()[0].starts_with("json Map"));
    assert!(read(wide.repeat(2).as_bytes(), 1 << 20).unwrap()[0].starts_with("k0 Int64, k1"));
    // For a duplicate key the last value is kept.
    let twice = lines(20) + "{\"x\":{\"a\":1,\"b\":2,\"a\":3}}\n";
    assert_eq!(read(twice.as_bytes(), 1 << 20).unwrap()[21], "{b: 2, a: 3}");
}
