//! Converts types that a format lacks to types that it has.
//!
//! Text files have dates. Arrow's writers print a date in milliseconds as `1970-01-01T00:00:00`,
//! which no cast to DATE prints. Parquet has timestamps and times of milliseconds and finer, and
//! dates in days. Arrow's writer (59.3) stores seconds, and dates in milliseconds, as plain
//! integers with a note for Arrow's own readers. `COPY (SELECT timestamp_of_seconds ..) TO
//! 'x.parquet'` thus made a column of BIGINT for DuckDB (arrow-rs#1920). This module converts
//! seconds to milliseconds, as Arrow's writer in C++ does.
//!
//! A type without a counterpart in the format is an error that names the column. Parquet lacks
//! intervals of months, days and nanoseconds, since its own type stores milliseconds, and decimals
//! of a negative scale.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, TimeUnit};
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, LogicalPlanBuilder};

use crate::files::Format;
use crate::identifiers::quoted;
use crate::type_names::sql_name;
use crate::{Error, ErrorKind, Result};

/// Returns a plan with the rows in types that the format has.
pub(super) fn of_plan(plan: &Arc<LogicalPlan>, format: Format) -> Result<Arc<LogicalPlan>> {
    for field in plan.schema().fields().iter().filter(|_| format == Format::Parquet) {
        if let Some(refused) = without_parquet(field.data_type()) {
            let (name, is) = (field.name(), sql_name(field.data_type()));
            let reason =
                if refused == field.data_type() { String::new() } else { format!(" with {}", sql_name(refused)) };
            let message = format!("column \"{name}\" is {is}{reason}, which Parquet has no type for");
            let hint = format!("write it as text: CAST({} AS VARCHAR)", quoted(name));
            return Err(Error::new(ErrorKind::Invalid, message).with_hint(hint));
        }
    }
    let is_written = |(_, field): (_, &FieldRef)| of_type(field.data_type(), format).is_none();
    if plan.schema().iter().all(is_written) {
        return Ok(Arc::clone(plan));
    }
    let columns = plan.schema().iter().map(|(qualifier, field)| {
        let column = Expr::from((qualifier, field));
        match of_type(field.data_type(), format) {
            Some(to) => Expr::Cast(Cast::new(Box::new(column), to)).alias_qualified(qualifier.cloned(), field.name()),
            None => column,
        }
    });
    Ok(Arc::new(LogicalPlanBuilder::from(Arc::clone(plan)).project(columns.collect::<Vec<_>>())?.build()?))
}

/// Returns a type that Parquet lacks, among a type and its nested types.
fn without_parquet(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::Interval(IntervalUnit::MonthDayNano) => Some(data_type),
        DataType::Decimal32(_, ..0)
        | DataType::Decimal64(_, ..0)
        | DataType::Decimal128(_, ..0)
        | DataType::Decimal256(_, ..0) => Some(data_type),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::Map(item, _) => without_parquet(item.data_type()),
        DataType::Struct(fields) => fields.iter().find_map(|field| without_parquet(field.data_type())),
        DataType::Dictionary(_, values) => without_parquet(values),
        DataType::RunEndEncoded(_, values) => without_parquet(values.data_type()),
        _ => None,
    }
}

/// Returns the type to convert to, if it differs.
fn of_type(data_type: &DataType, format: Format) -> Option<DataType> {
    let has_seconds = format != Format::Parquet;
    let of_field = |field: &FieldRef| {
        let to = of_type(field.data_type(), format)?;
        Some(Arc::new(Field::clone(field).with_data_type(to)))
    };
    match data_type {
        DataType::Timestamp(TimeUnit::Second, _) | DataType::Time32(TimeUnit::Second) if has_seconds => None,
        DataType::Timestamp(TimeUnit::Second, zone) => Some(DataType::Timestamp(TimeUnit::Millisecond, zone.clone())),
        DataType::Time32(TimeUnit::Second) => Some(DataType::Time32(TimeUnit::Millisecond)),
        DataType::Date64 if format != Format::Arrow => Some(DataType::Date32),
        DataType::List(item) => of_field(item).map(DataType::List),
        DataType::LargeList(item) => of_field(item).map(DataType::LargeList),
        DataType::FixedSizeList(item, length) => of_field(item).map(|item| DataType::FixedSizeList(item, *length)),
        DataType::Struct(fields) => {
            let made: Vec<_> =
                fields.iter().map(|field| of_field(field).unwrap_or_else(|| Arc::clone(field))).collect();
            let is_other = made.iter().zip(fields).any(|(made, field)| !Arc::ptr_eq(made, field));
            is_other.then(|| DataType::Struct(made.into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_milliseconds_wherever_they_are() {
        let seconds = |zone: Option<&str>| DataType::Timestamp(TimeUnit::Second, zone.map(Into::into));
        let millis = |zone: Option<&str>| DataType::Timestamp(TimeUnit::Millisecond, zone.map(Into::into));
        let list = |item| DataType::List(Arc::new(Field::new_list_field(item, true)));
        let pair =
            |item| DataType::Struct(vec![Field::new("a", DataType::Int8, true), Field::new("b", item, true)].into());
        assert_eq!(of_type(&seconds(Some("UTC")), Format::Parquet), Some(millis(Some("UTC"))));
        assert_eq!(of_type(&list(pair(seconds(None))), Format::Parquet), Some(list(pair(millis(None)))));
        assert_eq!(of_type(&list(pair(DataType::Date32)), Format::Parquet), None);
        assert_eq!(of_type(&millis(None), Format::Parquet), None);
        assert_eq!(of_type(&DataType::Date64, Format::Parquet), Some(DataType::Date32));
    }

    #[test]
    fn types_that_parquet_has_not_are_found_wherever_they_are() {
        let list = |item| DataType::List(Arc::new(Field::new_list_field(item, true)));
        let interval = DataType::Interval(IntervalUnit::MonthDayNano);
        let decimal = DataType::Decimal128(10, -2);
        for refused in [&interval, &decimal] {
            assert_eq!(without_parquet(refused), Some(refused));
            let within = DataType::Struct(vec![Field::new("a", list(refused.clone()), true)].into());
            assert_eq!(without_parquet(&within), Some(refused));
        }
        for written in [DataType::Decimal128(10, 0), DataType::Date32, list(DataType::Utf8)] {
            assert_eq!(without_parquet(&written), None, "{written}");
        }
    }
}
