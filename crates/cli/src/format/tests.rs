//! The exact output of each format.

use std::sync::Arc;

use onehop_engine::arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float64Array, Int32Array,
    Int64Array, ListArray, NullArray, StringArray, StructArray, TimestampMicrosecondArray, TimestampSecondArray,
};
use onehop_engine::arrow::datatypes::{DataType, Field, Int32Type, Schema};
use onehop_engine::arrow::ipc::reader::StreamReader;

use super::boxed::{Boxed, Look};
use super::*;

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap_or_else(|e| panic!("{e}"))
}

fn bytes(mut writer: impl RowWriter, batches: &[RecordBatch]) -> Vec<u8> {
    let mut out = Vec::new();
    let written = (|| {
        writer.begin(&mut out)?;
        batches.iter().try_for_each(|batch| writer.batch(batch, &mut out))?;
        writer.finish(&mut out)
    })();
    written.unwrap_or_else(|e: Stop| panic!("{e:?}"));
    out
}

fn text(writer: impl RowWriter, batches: &[RecordBatch]) -> String {
    String::from_utf8(bytes(writer, batches)).unwrap_or_else(|e| panic!("{e}"))
}

fn ints(from: i64, to: i64) -> RecordBatch {
    batch(vec![("n", Arc::new(Int64Array::from_iter_values(from..=to)))])
}

/// Returns names, numbers, NULLs, and strings that need escaping in each format.
fn tricky() -> RecordBatch {
    batch(vec![
        ("id", Arc::new(Int64Array::from(vec![Some(1), None, Some(i64::MAX)]))),
        ("te,xt", Arc::new(StringArray::from(vec![Some("a\"b\n|c\\\td"), Some(""), None]))),
    ])
}

/// Returns a value of each kind of type, then NULLs.
fn kinds() -> RecordBatch {
    let decimal = Decimal128Array::from(vec![Some(-12_345), None]).with_precision_and_scale(38, 2);
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(vec![Some(vec![Some(1), None]), None]);
    let fields = vec![
        (Arc::new(Field::new("x", DataType::Int32, true)), Arc::new(Int32Array::from(vec![Some(1), None])) as ArrayRef),
        (
            Arc::new(Field::new("y", DataType::Utf8, true)),
            Arc::new(StringArray::from(vec![Some("é"), None])) as ArrayRef,
        ),
    ];
    let dictionary: DictionaryArray<Int32Type> = vec![Some("red"), None].into_iter().collect();
    batch(vec![
        ("b", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("f", Arc::new(Float64Array::from(vec![Some(0.1), None]))),
        ("dec", Arc::new(decimal.unwrap_or_else(|e| panic!("{e}")))),
        ("d", Arc::new(Date32Array::from(vec![Some(8_035), None]))),
        ("ts", Arc::new(TimestampMicrosecondArray::from(vec![Some(694_224_000_500_000), None]))),
        ("l", Arc::new(list)),
        ("s", Arc::new(StructArray::from(fields))),
        ("dict", Arc::new(dictionary)),
        ("nil", Arc::new(NullArray::new(2))),
    ])
}

fn look() -> Look {
    Look { width: None, max_rows: None, color: false }
}

fn boxed(look: Look, batches: &[RecordBatch]) -> String {
    text(Boxed::new(&batches[0].schema(), look), batches)
}

#[test]
fn csv_quotes_what_rfc_4180_says_and_tells_null_from_empty() {
    let rows = tricky();
    let expected = "id,\"te,xt\"\n1,\"a\"\"b\n|c\\\td\"\n,\"\"\n9223372036854775807,\n";
    assert_eq!(text(csv::Csv::new(&rows.schema()), &[rows]), expected);
}

#[test]
fn csv_of_every_kind() {
    let rows = kinds();
    let expected = "\
b,f,dec,d,ts,l,s,dict,nil
true,0.1,-123.45,1992-01-01,1992-01-01 00:00:00.5,\"[1, NULL]\",\"{'x': 1, 'y': é}\",red,
,,,,,,\"{'x': NULL, 'y': NULL}\",,
";
    assert_eq!(text(csv::Csv::new(&rows.schema()), &[rows]), expected);
}

#[test]
fn tsv_follows_copy_text() {
    let rows = tricky();
    let expected = "id\tte,xt\n1\ta\"b\\n|c\\\\\\td\n\\N\t\n9223372036854775807\t\\N\n";
    assert_eq!(text(tsv::Tsv::new(&rows.schema()), &[rows]), expected);
}

#[test]
fn json_is_an_array_with_every_key_and_every_digit() {
    let rows = tricky();
    let expected = r#"[{"id":1,"te,xt":"a\"b\n|c\\\td"},
{"id":null,"te,xt":""},
{"id":9223372036854775807,"te,xt":null}]
"#;
    assert_eq!(text(json::Json::new(&rows.schema()), &[rows]), expected);
}

#[test]
fn json_of_every_kind() {
    let rows = kinds();
    let expected = r#"{"b":true,"f":0.1,"dec":-123.45,"d":"1992-01-01","ts":"1992-01-01T00:00:00.500","l":[1,null],"s":{"x":1,"y":"é"},"dict":"red","nil":null}
{"b":null,"f":null,"dec":null,"d":null,"ts":null,"l":null,"s":{"x":null,"y":null},"dict":null,"nil":null}
"#;
    assert_eq!(text(jsonl::JsonLines::new(&rows.schema()), &[rows]), expected);
}

#[test]
fn json_keeps_columns_that_share_a_name_apart() {
    let column = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
    let rows = batch(vec![("a", column()), ("a", column()), ("a_1", column()), ("a", column())]);
    assert_eq!(text(jsonl::JsonLines::new(&rows.schema()), &[rows]), "{\"a\":1,\"a_2\":1,\"a_1\":1,\"a_3\":1}\n");
}

#[test]
fn json_spans_batches() {
    let schema = ints(1, 1).schema();
    assert_eq!(text(json::Json::new(&schema), &[ints(1, 1), ints(2, 2)]), "[{\"n\":1},\n{\"n\":2}]\n");
}

#[test]
fn json_has_texts_for_nan_and_infinities() {
    let rows = batch(vec![("f", Arc::new(Float64Array::from(vec![f64::NAN, f64::INFINITY, -0.0])))]);
    let expected = "{\"f\":\"NaN\"}\n{\"f\":\"Infinity\"}\n{\"f\":-0.0}\n";
    assert_eq!(text(jsonl::JsonLines::new(&rows.schema()), &[rows]), expected);
}

#[test]
fn a_value_without_a_text_is_an_error() {
    let rows = batch(vec![("t", Arc::new(TimestampSecondArray::from(vec![i64::MAX - 1])))]);
    let mut writers: Vec<Box<dyn RowWriter>> = vec![
        Box::new(csv::Csv::new(&rows.schema())),
        Box::new(tsv::Tsv::new(&rows.schema())),
        Box::new(jsonl::JsonLines::new(&rows.schema())),
        Box::new(markdown::Markdown::new(&rows.schema())),
    ];
    for writer in &mut writers {
        assert!(writer.batch(&rows, &mut Vec::new()).is_err());
    }
}

#[test]
fn bytes_and_nested_values_are_as_casts_write_them() {
    let rows = batch(vec![("b", Arc::new(BinaryArray::from(vec![&b"\x00a"[..]])))]);
    assert_eq!(text(csv::Csv::new(&rows.schema()), std::slice::from_ref(&rows)), "b\n\\x0061\n");
    assert_eq!(text(jsonl::JsonLines::new(&rows.schema()), &[rows]), "{\"b\":\"\\\\x0061\"}\n");
}

#[test]
fn markdown_escapes_markup() {
    let rows = tricky();
    let expected = "\
| id | te,xt |
| ---: | --- |
| 1 | a\"b<br>\\|c\\\\\\\\x09d |
| *NULL* |  |
| 9223372036854775807 | *NULL* |
";
    assert_eq!(text(markdown::Markdown::new(&rows.schema()), &[rows]), expected);
}

#[test]
fn arrow_comes_back_as_it_went() -> Result<(), onehop_engine::arrow::error::ArrowError> {
    let schema = ints(1, 1).schema();
    let writer = arrow_ipc::ArrowIpc::new(&schema).unwrap_or_else(|e| panic!("{e:?}"));
    let stream = bytes(writer, &[ints(1, 2), ints(3, 3)]);
    let back: Vec<RecordBatch> = StreamReader::try_new(stream.as_slice(), None)?.collect::<Result<_, _>>()?;
    assert_eq!(back, [ints(1, 2), ints(3, 3)]);
    Ok(())
}

#[test]
fn no_rows_still_have_columns() {
    let schema = ints(1, 1).schema();
    assert_eq!(text(csv::Csv::new(&schema), &[]), "n\n");
    assert_eq!(text(tsv::Tsv::new(&schema), &[]), "n\n");
    assert_eq!(text(json::Json::new(&schema), &[]), "[]\n");
    assert_eq!(text(jsonl::JsonLines::new(&schema), &[]), "");
    assert_eq!(text(markdown::Markdown::new(&schema), &[]), "| n |\n| ---: |\n");
    assert_eq!(text(Boxed::new(&schema, look()), &[]), "┌────────┐\n│      n │\n│ bigint │\n└────────┘\n");
}

#[test]
fn a_box_aligns_numbers_and_tells_null_from_its_name() {
    let rows = batch(vec![
        ("n", Arc::new(Int64Array::from(vec![Some(7), None, Some(-1_000_000)]))),
        ("t", Arc::new(StringArray::from(vec![Some("NULL"), None, Some("x")]))),
    ]);
    let expected = "\
┌──────────┬─────────┐
│        n │ t       │
│   bigint │ varchar │
├──────────┼─────────┤
│        7 │ 'NULL'  │
│     NULL │ NULL    │
│ -1000000 │ x       │
└──────────┴─────────┘
";
    assert_eq!(boxed(look(), &[rows]), expected);
}

#[test]
fn a_box_measures_wide_characters_and_disarms_control_characters() {
    let rows = batch(vec![("t", Arc::new(StringArray::from(vec!["日本", "é", "a\tb\x1b[31m", "\u{202e}x", "🦀"])))]);
    let expected = "\
┌─────────────┐
│ t           │
│ varchar     │
├─────────────┤
│ 日本        │
│ é           │
│ a\\tb\\x1b[31m │
│ \\u{202e}x   │
│ 🦀          │
└─────────────┘
";
    assert_eq!(
        boxed(look(), &[rows]),
        expected.replace("───────────", "────────────").replace(" │\n", "  │\n").replace("31m  │", "31m │")
    );
}

#[test]
fn a_box_is_cut_to_the_terminal() {
    let rows = batch(vec![
        ("id", Arc::new(Int64Array::from(vec![123_456]))),
        ("t", Arc::new(StringArray::from(vec!["日本語 and much more text than fits"]))),
    ]);
    let expected = "\
┌────────┬──────────────┐
│     id │ t            │
│ bigint │ varchar      │
├────────┼──────────────┤
│ 123456 │ 日本語 and … │
└────────┴──────────────┘
";
    assert_eq!(boxed(Look { width: Some(25), ..look() }, &[rows]), expected);
}

#[test]
fn a_box_leaves_out_columns_that_do_not_fit() {
    let column = || Arc::new(Int64Array::from(vec![1_234_567_890])) as ArrayRef;
    let rows = batch(vec![("a", column()), ("b", column()), ("c", column()), ("d", column())]);
    let expected = "\
┌────────────┬───┬────────────┐
│          a │ … │          d │
│     bigint │ … │     bigint │
├────────────┼───┼────────────┤
│ 1234567890 │ … │ 1234567890 │
└────────────┴───┴────────────┘
4 columns, 2 shown
";
    assert_eq!(boxed(Look { width: Some(40), ..look() }, &[rows]), expected);
}

/// Returns the first column of a box's rows.
fn shown(text: &str) -> Vec<String> {
    let rows = text.lines().skip_while(|line| !line.starts_with('├')).skip(1).take_while(|line| line.starts_with('│'));
    rows.map(|line| line.trim_matches(['│', ' ']).to_string()).collect()
}

#[test]
fn a_long_box_shows_its_ends_and_counts_all() {
    let limited = Look { max_rows: Some(5), ..look() };
    for batches in [vec![ints(1, 6)], vec![ints(1, 1), ints(2, 5), ints(6, 6)]] {
        let text = boxed(limited, &batches);
        assert_eq!(shown(&text), ["1", "2", "3", "·", "5", "6"]);
        assert!(text.ends_with("6 rows, 5 shown (.maxrows or --max-rows changes that)\n"), "{text}");
    }
    assert_eq!(shown(&boxed(limited, &[ints(1, 5)])), ["1", "2", "3", "4", "5"]);
}

#[test]
fn a_long_box_keeps_its_ends_however_rows_arrive() {
    for step in [1, 2, 7, 999, 1_000, 1_001, 4_000] {
        let batches: Vec<RecordBatch> =
            (1..=4_000).step_by(step).map(|n| ints(n, 4_000.min(n + step as i64 - 1))).collect();
        let limited = boxed(Look { max_rows: Some(4), ..look() }, &batches);
        assert_eq!(shown(&limited), ["1", "2", "·", "3999", "4000"], "batches of {step}");
        let all = shown(&boxed(look(), &batches));
        assert!(all.len() == 4_000 && all[3_999] == "4000", "batches of {step}");
    }
}

#[test]
fn a_box_streams_once_its_widths_are_chosen() {
    let mut writer = Boxed::new(&ints(1, 1).schema(), look());
    let mut out = Vec::new();
    let sizes: Vec<usize> = [ints(1, 1_000), ints(1_001, 1_001), ints(1_002, 1_002)]
        .iter()
        .map(|batch| {
            writer.batch(batch, &mut out).unwrap_or_else(|e| panic!("{e:?}"));
            out.len()
        })
        .collect();
    assert!(sizes[0] == 0 && sizes[1] > 0 && sizes[2] > sizes[1], "{sizes:?}");
}

#[test]
fn colour_adds_nothing_but_colour() {
    let rows = tricky();
    let colored = boxed(Look { color: true, ..look() }, std::slice::from_ref(&rows));
    let plain = ["\x1b[1m", "\x1b[2m", "\x1b[0m"].iter().fold(colored, |text, code| text.replace(code, ""));
    assert_eq!(plain, boxed(look(), &[rows]));
}

#[test]
fn plans_keep_their_lines() {
    let rows = batch(vec![
        ("plan_type", Arc::new(StringArray::from(vec!["logical_plan", "physical_plan"]))),
        ("plan", Arc::new(StringArray::from(vec!["Sort\n  Scan\n", "SortExec"]))),
    ]);
    assert!(plan::is_plan(&rows.schema()));
    assert_eq!(text(plan::Plan::default(), &[rows]), "logical plan\n  Sort\n    Scan\n\nphysical plan\n  SortExec\n");
}
