//! Types that a format has no room for, written as ones that it has.
//!
//! Text files have dates; Arrow's writers make `1970-01-01T00:00:00` of one in milliseconds, which no cast to DATE writes.
//! Parquet has timestamps and times of milliseconds and finer, and dates in days. Arrow's writer (59.3) leaves seconds, and
//! dates in milliseconds, as plain integers beside a note for Arrow's own readers: `COPY (SELECT timestamp_of_seconds ..) TO
//! 'x.parquet'` made a column of BIGINT for DuckDB (arrow-rs#1920). Seconds become milliseconds here, as Arrow's writer in
//! C++ makes them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, LogicalPlanBuilder};

use crate::Result;
use crate::files::Format;

/// The rows of a plan in types that the format has.
pub(super) fn of_plan(plan: &Arc<LogicalPlan>, format: Format) -> Result<Arc<LogicalPlan>> {
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

/// The type that values are written as, if it is another.
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
}
