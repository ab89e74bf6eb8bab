//! `CAST('{1,2,NULL}' AS INTEGER[])` is an array of three, `CAST('\x0a1b' AS BYTEA)` two bytes, `CAST('1 02:03' AS INTERVAL)` a day
//! and some hours, and the zone of `CAST('2020-01-01 10:00+02' AS TIMESTAMP)` says nothing, as in PostgreSQL.
//!
//! Arrow makes an array of one item of a text, which is the whole text, or says that it is no number; bytes of its letters; and of `1`
//! a month, where PostgreSQL has a second. It reads no time without seconds, and goes by a zone where there is none.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, IntervalMonthDayNanoArray, ListArray, StringArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, IntervalUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{
    Cast, ColumnarValue, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, cast as cast_to,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions::{self, shown};
use super::timestamps::with_seconds;
use crate::postgres::{array_text, bytea, interval_text};
use crate::{Error, ErrorKind, Rule};

#[derive(Debug)]
pub(super) struct CastTexts;

impl AnalyzerRule for CastTexts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let reads = |expr: &Expr| {
            let is_read = |to| innermost(to).0 > 0 || Read::of(to) != Read::Text;
            expressions::cast_to(expr).is_some_and(is_read) || is_arrow_cast(expr)
        };
        expressions::rewritten_if_any(plan, reads, |expr, schema| Ok(rewrite(expr, schema)))
    }

    fn name(&self) -> &str {
        "cast_texts"
    }
}

/// What types that are named in Arrow's words are cast by.
fn is_arrow_cast(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.name() == "arrow_cast")
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    if is_arrow_cast(&expr) {
        match expressions::as_cast(&expr, schema) {
            Some((value, to @ DataType::Timestamp(..), _)) => expr = cast_to(value.clone(), to),
            _ => return Transformed::no(expr),
        }
    }
    let Expr::Cast(Cast { expr: inner, field }) = &mut expr else { return Transformed::no(expr) };
    let (depth, item) = innermost(field.data_type());
    let what = Read::of(item);
    if depth == 0 && what == Read::Text {
        return Transformed::no(expr);
    }
    if !inner.get_type(schema).is_ok_and(|from| from.is_string()) {
        return Transformed::no(expr);
    }
    let text = std::mem::take(inner.as_mut());
    if let (Expr::Literal(ScalarValue::Utf8(Some(text)), _), Read::Moment { has_zone }, 0) = (&text, what, depth) {
        // It goes on being a literal, for who says what is wrong with one.
        **inner = Expr::Literal(ScalarValue::Utf8(Some(moment(text, has_zone))), None);
        return Transformed::yes(expr);
    }
    **inner = ScalarUDF::from(ReadText::new(depth, what)).call(vec![text]);
    Transformed::yes(expr)
}

/// What a text is read as; anything else Arrow makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Read {
    Text,
    Bytes,
    Interval,
    /// A timestamp, in words that Arrow reads.
    Moment {
        has_zone: bool,
    },
}

impl Read {
    fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Self::Bytes,
            DataType::Interval(_) => Self::Interval,
            DataType::Timestamp(_, zone) => Self::Moment { has_zone: zone.is_some() },
            _ => Self::Text,
        }
    }
}

/// How many arrays lie within each other, and of what.
fn innermost(data_type: &DataType) -> (usize, &DataType) {
    match data_type {
        DataType::List(item) => {
            let (depth, innermost) = innermost(item.data_type());
            (depth + 1, innermost)
        }
        other => (0, other),
    }
}

/// What its argument stands for.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ReadText {
    /// An array of items, so many arrays deep.
    depth: usize,
    what: Read,
    signature: Signature,
}

impl ReadText {
    fn new(depth: usize, what: Read) -> Self {
        Self { depth, what, signature: Signature::any(1, Volatility::Immutable) }
    }

    /// What comes of a text, so many arrays deep.
    fn read_type(&self, depth: usize) -> DataType {
        match depth {
            0 => match self.what {
                Read::Text | Read::Moment { .. } => DataType::Utf8,
                Read::Bytes => DataType::Binary,
                Read::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
            },
            depth => DataType::List(Arc::new(Field::new_list_field(self.read_type(depth - 1), true))),
        }
    }

    fn read(&self, values: &ArrayRef, depth: usize) -> Result<ArrayRef> {
        match depth {
            0 => match self.what {
                Read::Text => Ok(cast(values, &DataType::Utf8)?),
                Read::Bytes => bytes(values),
                Read::Interval => intervals(values),
                Read::Moment { has_zone } => moments(values, has_zone),
            },
            depth => self.items(values, depth),
        }
    }

    fn items(&self, values: &ArrayRef, depth: usize) -> Result<ArrayRef> {
        let values = cast(values, &DataType::Utf8)?;
        let mut all = Vec::new();
        let mut lengths = Vec::with_capacity(values.len());
        for text in values.as_string::<i32>() {
            let before = all.len();
            if let Some(text) = text {
                all.extend(array_text::items(text, depth > 1).ok_or_else(|| malformed(text))?);
            }
            lengths.push(all.len() - before);
        }
        let inner = self.read(&(Arc::new(StringArray::from(all)) as ArrayRef), depth - 1)?;
        let item = Arc::new(Field::new_list_field(self.read_type(depth - 1), true));
        let nulls = values.nulls().cloned();
        Ok(Arc::new(ListArray::try_new(item, OffsetBuffer::from_lengths(lengths), inner, nulls)?))
    }
}

impl ScalarUDFImpl for ReadText {
    fn name(&self) -> &str {
        "value_of_text"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.read_type(self.depth))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, |values| self.read(values, self.depth))
    }
}

fn bytes(values: &ArrayRef) -> Result<ArrayRef> {
    let texts = cast(values, &DataType::Utf8)?;
    let read = |text: &str| {
        bytea::bytes(text).ok_or_else(|| {
            let error = Error::new(ErrorKind::Data, format!("{} are no bytes", shown(text))).breaking(Rule::Form);
            error.with_hint("they are written '\\x0a1b'; encode and decode know other forms")
        })
    };
    let bytes =
        texts.as_string::<i32>().iter().map(|text| text.map(read).transpose()).collect::<Result<BinaryArray, _>>()?;
    Ok(Arc::new(bytes))
}

fn intervals(values: &ArrayRef) -> Result<ArrayRef> {
    let texts = cast(values, &DataType::Utf8)?;
    let read = |text: &str| {
        interval_text::parse(text).ok_or_else(|| {
            let error = Error::new(ErrorKind::Data, format!("{} is no interval", shown(text))).breaking(Rule::Moment);
            error.with_hint("one is written '1 year 2 mons 3 days 04:05:06.789'")
        })
    };
    let intervals = texts.as_string::<i32>().iter().map(|text| text.map(read).transpose());
    Ok(Arc::new(intervals.collect::<Result<IntervalMonthDayNanoArray, _>>()?))
}

fn moments(values: &ArrayRef, has_zone: bool) -> Result<ArrayRef> {
    let texts = cast(values, &DataType::Utf8)?;
    let moments = texts.as_string::<i32>().iter().map(|text| text.map(|text| moment(text, has_zone)));
    Ok(Arc::new(moments.collect::<StringArray>()))
}

/// A timestamp, in words that Arrow reads.
pub(super) fn moment(text: &str, has_zone: bool) -> String {
    let text = text.trim();
    let text = if has_zone { text } else { without_zone(text) };
    with_seconds(text).unwrap_or_else(|| text.to_string())
}

/// A timestamp without the zone behind it, which says nothing where there is none.
pub(super) fn without_zone(text: &str) -> &str {
    // Behind the date, whose parts a minus divides.
    let Some(time) = text.find([' ', 'T']) else { return text };
    match text[time..].find(['+', '-', 'Z', 'z']) {
        Some(zone) if text.as_bytes()[time + 1..].first().is_some_and(u8::is_ascii_digit) => {
            text[..time + zone].trim_end()
        }
        _ => text,
    }
}

fn malformed(text: &str) -> Error {
    let error = Error::new(ErrorKind::Data, format!("{} is no array", shown(text))).breaking(Rule::Form);
    error.with_hint("one is written '{1,2,NULL}', or '{\"a b\",c}'")
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn texts_become_what_they_stand_for() {
        for (expr, expected) in [
            ("CAST('{1,2,NULL}' AS INTEGER[])", "[1, 2, NULL]"),
            ("CAST('{}' AS INTEGER[])", "[]"),
            ("CAST(x AS VARCHAR[])", "[a, b c, NULL]"),
            ("CAST(CAST(NULL AS VARCHAR) AS VARCHAR[])", "NULL"),
            ("CAST('{{1,2},{3}}' AS INTEGER[][])", "[[1, 2], [3]]"),
            ("CAST('{1.5,2}' AS DECIMAL(10,2)[])", "[1.50, 2.00]"),
            ("CAST('{t,false}' AS BOOLEAN[])", "[true, false]"),
            ("CAST(ARRAY['1'] AS INTEGER[])", "[1]"),
            ("CAST('\\x0a1b' AS BYTEA)", "0a1b"),
            ("CAST('a' AS BYTEA)", "61"),
            ("CAST('2020-01-01 10:00:00+02' AS TIMESTAMP)", "2020-01-01T10:00:00"),
            ("CAST(CAST('2020-01-01 10:00+02' AS VARCHAR) AS TIMESTAMPTZ)", "2020-01-01T08:00:00Z"),
            ("CAST(' 2020-01-01 10:00 ' AS TIMESTAMP)", "2020-01-01T10:00:00"),
            ("CAST('2020-01-01' AS TIMESTAMP)", "2020-01-01T00:00:00"),
            ("CAST('1' AS INTERVAL) = INTERVAL '1 second'", "true"),
            ("TIMESTAMP '2020-01-01' + CAST('1 day 03:00' AS INTERVAL)", "2020-01-02T03:00:00"),
            ("TIMESTAMP '2020-01-01' + INTERVAL '1 day 03:00'", "2020-01-02T03:00:00"),
            ("CAST(CAST('{\"\\\\x01\"}' AS BYTEA[]) AS VARCHAR)", "[01]"),
        ] {
            let query = format!(r#"SELECT {expr} FROM (VALUES ('{{a,"b c",null}}')) AS t(x)"#);
            assert_eq!(rows(&query).await, [expected], "{expr}");
        }
    }

    #[tokio::test]
    async fn what_is_none_is_an_error() {
        for text in ["{1,2", "1", "{1,x}", "{{1},{2}}", ""] {
            let error = fails(&format!("SELECT CAST('{text}' AS INTEGER[])")).await;
            assert_eq!(error.kind(), ErrorKind::Data, "{text}: {error}");
        }
        assert_eq!(fails("SELECT CAST('\\xz' AS BYTEA)").await.kind(), ErrorKind::Data);
    }
}
