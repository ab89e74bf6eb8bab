//! Stored answers, and the comparison of results with them.
//!
//! The answers come from DuckDB over the generators' Parquet files (`bench/peers/answers.py`
//! documents how). NULLs, strings, integers, dates and booleans match if they are equal; decimals
//! if they are equal as numbers. Floats match within 1e-9 of the larger, and a decimal matches a
//! stored float within one in its last digit. Rows may come in any order, because ORDER BY may
//! leave ties open.

use std::cmp::Ordering;
use std::fmt;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// The scale factors with stored answers, as their folders spell them.
pub const SCALES: [&str; 3] = ["0.01", "0.1", "1"];

macro_rules! stored {
    ($suite:literal: $($id:literal),+ $(,)?) => {
        [$((
            $id,
            [
                include_str!(concat!("../../answers/", $suite, "/sf0.01/", $id, ".csv")),
                include_str!(concat!("../../answers/", $suite, "/sf0.1/", $id, ".csv")),
                include_str!(concat!("../../answers/", $suite, "/sf1/", $id, ".csv")),
            ],
        )),+]
    };
}

const SSB: [(&str, [&str; SCALES.len()]); 13] = stored!(
    "ssb": "q1.1", "q1.2", "q1.3", "q2.1", "q2.2", "q2.3", "q3.1", "q3.2", "q3.3", "q3.4", "q4.1", "q4.2", "q4.3",
);

const TPCH: [(&str, [&str; SCALES.len()]); 22] = stored!(
    "tpch": "q01", "q02", "q03", "q04", "q05", "q06", "q07", "q08", "q09", "q10", "q11", "q12", "q13", "q14", "q15",
    "q16", "q17", "q18", "q19", "q20", "q21", "q22",
);

/// Returns the stored answer to a query at a scale factor, if there is one.
pub fn stored(query: &str, scale: f64) -> Option<&'static str> {
    let scale = SCALES.iter().position(|known| known.parse() == Ok(scale))?;
    let (_, answers) = SSB.iter().chain(&TPCH).find(|(id, _)| *id == query)?;
    Some(answers[scale])
}

#[derive(Clone, Debug)]
enum Value {
    Null,
    Text(String),
    /// Integers and decimals: sign, digits without leading zeroes, and the number of digits after
    /// the point.
    Number(Number),
    Float(f64),
    /// Booleans, dates, timestamps.
    Word(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Number {
    is_negative: bool,
    digits: String,
    scale: usize,
    /// The number of digits after the point as written, trailing zeroes included.
    written_scale: usize,
}

/// Formats the value for people, with strings quoted to distinguish NULL from a string of that
/// word.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("NULL"),
            Value::Text(text) => write!(f, "{text:?}"),
            Value::Number(number) => number.fmt(f),
            Value::Float(float) => write!(f, "{float:?}"),
            Value::Word(word) => f.write_str(word),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.scale + 1;
        let digits = format!("{:0>width$}", self.digits);
        let (whole, fraction) = digits.split_at(digits.len() - self.scale);
        let point = if fraction.is_empty() { "" } else { "." };
        write!(f, "{}{whole}{point}{fraction}", if self.is_negative { "-" } else { "" })
    }
}

fn shown(row: &[Value]) -> String {
    let values: Vec<String> = row.iter().map(Value::to_string).collect();
    format!("({})", values.join(", "))
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        let (is_negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (whole, fraction) = rest.split_once('.').unwrap_or((rest, ""));
        if whole.is_empty() || !whole.chars().chain(fraction.chars()).all(|c| c.is_ascii_digit()) {
            return None;
        }
        let written_scale = fraction.len();
        let fraction = fraction.trim_end_matches('0');
        let all = format!("{whole}{fraction}");
        let digits = all.trim_start_matches('0').to_string();
        let is_negative = is_negative && !digits.is_empty();
        Some(Self { is_negative, digits, scale: fraction.len(), written_scale })
    }

    fn value(&self) -> f64 {
        let digits: f64 = self.digits.parse().unwrap_or(0.0);
        let value = digits / 10f64.powi(self.scale as i32);
        if self.is_negative { -value } else { value }
    }
}

fn is_same(got: &Value, kept: &Value) -> bool {
    match (got, kept) {
        (Value::Null, Value::Null) => true,
        (Value::Text(a), Value::Text(b)) | (Value::Word(a), Value::Word(b)) => a == b,
        (Value::Number(a), Value::Number(b)) => {
            (a.is_negative, &a.digits, a.scale) == (b.is_negative, &b.digits, b.scale)
        }
        (Value::Float(a), Value::Float(b)) => is_near(*a, *b, 0.0),
        (Value::Number(a), Value::Float(b)) => is_near(a.value(), *b, 10f64.powi(-(a.written_scale as i32))),
        (Value::Float(a), Value::Number(b)) => is_near(*a, b.value(), 0.0),
        _ => false,
    }
}

fn is_near(a: f64, b: f64, slack: f64) -> bool {
    a == b || (a - b).abs() <= (1e-9 * a.abs().max(b.abs())).max(slack) || a.is_nan() && b.is_nan()
}

/// Returns the key by which rows are sorted before they are compared pairwise: all exact values
/// first.
fn sort_key(row: &[Value]) -> (String, Vec<f64>) {
    let mut exact = String::new();
    let mut inexact = Vec::new();
    for value in row {
        match value {
            Value::Null => exact.push('\u{1}'),
            Value::Text(text) | Value::Word(text) => exact.push_str(text),
            // A number may match a stored float, and then is not exact.
            Value::Number(number) => inexact.push(number.value()),
            Value::Float(float) => inexact.push(*float),
        }
        exact.push('\u{0}');
    }
    (exact, inexact)
}

fn compare_keys(a: &(String, Vec<f64>), b: &(String, Vec<f64>)) -> Ordering {
    a.0.cmp(&b.0).then_with(|| {
        let pairs = a.1.iter().zip(&b.1);
        // Nearly equal floats must not determine the order. They are compared coarsely here and
        // precisely later.
        pairs
            .map(|(x, y)| if is_near(*x, *y, 0.0) { Ordering::Equal } else { x.total_cmp(y) })
            .find(|o| o.is_ne())
            .unwrap_or(Ordering::Equal)
    })
}

/// Compares a result with a stored answer.
///
/// # Errors
/// Returns a description of the difference.
pub fn verify(batches: &[RecordBatch], kept: &str) -> Result<(), String> {
    let mut kept = parse(kept)?;
    let mut got = Vec::new();
    for batch in batches {
        rows_of(batch, &mut got)?;
    }
    if got.len() != kept.len() {
        return Err(format!("{} rows instead of {}", got.len(), kept.len()));
    }
    got.sort_by(|a, b| compare_keys(&sort_key(a), &sort_key(b)));
    kept.sort_by(|a, b| compare_keys(&sort_key(a), &sort_key(b)));
    for (got, kept) in got.iter().zip(&kept) {
        let is_same = got.len() == kept.len() && got.iter().zip(kept).all(|(got, kept)| is_same(got, kept));
        if !is_same {
            return Err(format!("got {} where {} was expected", shown(got), shown(kept)));
        }
    }
    Ok(())
}

fn rows_of(batch: &RecordBatch, rows: &mut Vec<Vec<Value>>) -> Result<(), String> {
    let first = rows.len();
    rows.resize_with(first + batch.num_rows(), Vec::new);
    for column in batch.columns() {
        let format = FormatOptions::default();
        let formatter = ArrayFormatter::try_new(column, &format).map_err(|e| e.to_string())?;
        for (row, out) in rows[first..].iter_mut().enumerate() {
            out.push(if column.is_null(row) { Value::Null } else { value_of(column, row, &formatter) });
        }
    }
    Ok(())
}

fn value_of(column: &dyn Array, row: usize, formatter: &ArrayFormatter<'_>) -> Value {
    let text = || formatter.value(row).to_string();
    match column.data_type() {
        DataType::Float64 => Value::Float(column.as_primitive::<Float64Type>().value(row)),
        DataType::Float32 => Value::Float(column.as_primitive::<Float32Type>().value(row).into()),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Value::Text(text()),
        _ => {
            let text = text();
            Number::parse(&text).map_or_else(|| Value::Word(text), Value::Number)
        }
    }
}

fn parse(kept: &str) -> Result<Vec<Vec<Value>>, String> {
    let (head, body) = kept.split_once('\n').ok_or("the stored answer has no first line")?;
    let kinds: Vec<&str> = head.split(',').map(|column| column.rsplit(':').next().unwrap_or("")).collect();
    let mut rows = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let mut row = Vec::with_capacity(kinds.len());
        for kind in &kinds {
            let (value, after) = parse_cell(rest, kind)?;
            row.push(value);
            rest = after;
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Parses one cell and its `,` or line end.
fn parse_cell<'a>(text: &'a str, kind: &str) -> Result<(Value, &'a str), String> {
    if let Some(mut rest) = text.strip_prefix('"') {
        let mut value = String::new();
        loop {
            let end = rest.find('"').ok_or("a text in the stored answer has no end")?;
            value.push_str(&rest[..end]);
            rest = &rest[end + 1..];
            match rest.strip_prefix('"') {
                Some(more) => {
                    value.push('"');
                    rest = more;
                }
                None => break,
            }
        }
        return Ok((Value::Text(value), rest.strip_prefix([',', '\n']).unwrap_or(rest)));
    }
    let end = text.find([',', '\n']).unwrap_or(text.len());
    let word = &text[..end];
    let value = match kind {
        _ if word == "NULL" => Value::Null,
        "float" => Value::Float(word.parse().map_err(|_| format!("{word} is no float"))?),
        "integer" | "decimal" => Value::Number(Number::parse(word).ok_or(format!("{word} is no number"))?),
        _ => Value::Word(word.to_string()),
    };
    Ok((value, text.get(end + 1..).unwrap_or("")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Decimal128Array, Float64Array, Int64Array, StringViewArray};

    use super::*;

    const KEPT: &str = "name:text,n:integer,avg:float,sum:decimal\n\"a \"\"b\"\"\",1,0.5,12.50\nNULL,-2,1e300,-3.00\n";

    fn batch(avg: f64, sum: i128) -> RecordBatch {
        let sums = Decimal128Array::from(vec![-300_0000, sum]).with_precision_and_scale(20, 4).unwrap();
        RecordBatch::try_from_iter_with_nullable([
            ("name", Arc::new(StringViewArray::from(vec![None, Some("a \"b\"")])) as ArrayRef, true),
            ("n", Arc::new(Int64Array::from(vec![-2, 1])) as ArrayRef, true),
            ("avg", Arc::new(Float64Array::from(vec![1e300, avg])) as ArrayRef, true),
            ("sum", Arc::new(sums) as ArrayRef, true),
        ])
        .unwrap()
    }

    #[test]
    fn the_same_answer_is_the_same_in_any_order_and_scale() {
        assert_eq!(verify(&[batch(0.5, 12_5000)], &KEPT.replace("-3.00", "-300.00")), Ok(()));
    }

    #[test]
    fn a_wrong_answer_is_noticed() {
        assert!(verify(&[batch(0.5, 12_5000)], KEPT).is_err(), "-300 is not -3");
        let kept = KEPT.replace("-3.00", "-300.00");
        assert_eq!(verify(&[batch(0.5 + 1e-12, 12_5000)], &kept), Ok(()));
        assert!(verify(&[batch(0.51, 12_5000)], &kept).is_err());
        assert!(verify(&[batch(0.5, 12_5001)], &kept).is_err());
        assert!(verify(&[batch(0.5, 12_5000).slice(0, 1)], &kept).is_err());
    }

    #[test]
    fn values_are_shown_as_people_write_them() {
        let kept = KEPT.replace("-3.00", "-300.00");
        let shown = verify(&[batch(0.5, -5)], &kept);
        assert_eq!(
            shown,
            Err("got (\"a \\\"b\\\"\", 1, 0.5, -0.0005) where (\"a \\\"b\\\"\", 1, 0.5, 12.5) was expected".to_string())
        );
        assert_eq!(Number::parse("0.00").map(|zero| zero.to_string()).as_deref(), Some("0"));
        assert_eq!(Number::parse("-1200").map(|n| n.to_string()).as_deref(), Some("-1200"));
    }

    #[test]
    fn every_stored_answer_parses() {
        for (id, answers) in SSB.iter().chain(&TPCH) {
            for answer in answers {
                assert!(parse(answer).is_ok(), "{id}");
            }
        }
        assert!(stored("q1.1", 1.0).is_some() && stored("q22", 0.01).is_some());
        assert!(stored("q1.1", 3.0).is_none() && stored("q99", 1.0).is_none());
    }
}
