//! Casts of lists and structs to others: each value within is cast as it would be by itself.
//!
//! Arrow casts the values within by its own rules. It takes a time without a zone for UTC, writes
//! `2024-01-01T00:00:00`, and parses other strings. If the session's zone or the format of a string
//! matters, the cast goes through a function. Otherwise it stays.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StructArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Fields};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, exec_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{ExprSchemable, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;
use super::string_casts::with_items;
use super::temporal::{Kernel, LocalTime, MomentOfLocal, function};
use crate::convert::{OnError, parse_column};
use crate::pg_types::column_text::texts_of_any;
use crate::pg_types::zone::Zone;

/// Runs after types are settled, and after strings have become lists.
#[derive(Debug)]
pub(super) struct NestedCasts;

impl AnalyzerRule for NestedCasts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_nested = |to: &DataType| matches!(to, DataType::List(_) | DataType::Struct(_));
        expressions::rewritten_if_any(plan, |expr| expressions::cast_to(expr).is_some_and(is_nested), rewrite)
    }

    fn name(&self) -> &str {
        "nested_casts"
    }
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Some((value, to, is_try)) = expressions::as_cast(&expr, schema) else { return Ok(Transformed::no(expr)) };
    match value.get_type(schema) {
        Ok(from) if is_ours(&from, &to) => {
            let kernel = CastNested { target: to, is_try };
            Ok(Transformed::yes(function(kernel).call(vec![value.clone()])))
        }
        _ => Ok(Transformed::no(expr)),
    }
}

/// Returns whether a list or struct has values within that Arrow casts otherwise.
fn is_ours(from: &DataType, to: &DataType) -> bool {
    let within = |from: &DataType, to: &DataType| is_ours(from, to) || Leaf::of(from, to) != Leaf::Arrows;
    match (from, to) {
        (DataType::List(from), DataType::List(to)) => within(from.data_type(), to.data_type()),
        (DataType::Struct(from), DataType::Struct(to)) => match places(from, to) {
            Some(places) => places.iter().zip(to).any(|(place, to)| within(from[*place].data_type(), to.data_type())),
            None => false,
        },
        _ => false,
    }
}

/// Returns the places in `from` of the fields of `to`: by their names, or in their order if names
/// differ.
fn places(from: &Fields, to: &Fields) -> Option<Vec<usize>> {
    let named: Option<Vec<usize>> = to.iter().map(|field| Some(from.find(field.name())?.0)).collect();
    match (from.len() == to.len(), named) {
        (false, _) => None,
        (true, Some(places)) => Some(places),
        (true, None) => Some((0..from.len()).collect()),
    }
}

/// The kind of cast of a value that is neither a list nor a struct.
#[derive(Clone, Copy, PartialEq)]
enum Leaf {
    Moment,
    Local,
    Read,
    Written,
    Arrows,
}

impl Leaf {
    fn of(from: &DataType, to: &DataType) -> Self {
        use DataType::{Date32, List, Struct, Timestamp};
        match (from, to) {
            (Timestamp(_, None) | Date32, Timestamp(_, Some(_))) => Self::Moment,
            (Timestamp(_, Some(_)), Timestamp(_, None) | Date32) => Self::Local,
            (List(_) | Struct(_), _) | (_, List(_) | Struct(_)) => Self::Arrows,
            (from, to) if from.is_string() && !to.is_string() && !to.is_null() => Self::Read,
            (from, to) if to.is_string() && !from.is_string() && !from.is_null() => Self::Written,
            _ => Self::Arrows,
        }
    }
}

/// A function that casts a nested value.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CastNested {
    target: DataType,
    is_try: bool,
}

impl CastNested {
    fn converted(&self, values: &ArrayRef, to: &DataType, zone: Zone) -> Result<ArrayRef> {
        let plain = |values: &ArrayRef| {
            let options = CastOptions { safe: self.is_try, ..CastOptions::default() };
            Ok(cast_with_options(values, to, &options)?)
        };
        match (values.data_type(), to) {
            (DataType::List(_), DataType::List(item)) => {
                with_items(values.as_list(), item, |items| self.converted(items, item.data_type(), zone))
            }
            (DataType::Struct(from), DataType::Struct(fields)) => {
                let Some(places) = places(from, fields) else { return plain(values) };
                let structs = values.as_struct();
                let members = places.iter().zip(fields);
                let members = members.map(|(place, to)| self.converted(structs.column(*place), to.data_type(), zone));
                let members = members.collect::<Result<Vec<_>>>()?;
                let nulls = structs.nulls().cloned();
                Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), members, nulls, structs.len())?))
            }
            (from, to) => match Leaf::of(from, to) {
                Leaf::Moment => plain(&MomentOfLocal.run(std::slice::from_ref(values), zone)?),
                Leaf::Local => plain(&LocalTime.run(std::slice::from_ref(values), zone)?),
                Leaf::Read => {
                    let on_error = if self.is_try { OnError::Null } else { OnError::Fail };
                    Ok(parse_column(values, to, zone, on_error)?)
                }
                Leaf::Written => plain(&texts_of_any(values, Some(zone))?),
                Leaf::Arrows => plain(values),
            },
        }
    }
}

impl Kernel for CastNested {
    fn name(&self) -> &str {
        "cast_within"
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.target.clone())
    }

    fn run(&self, columns: &[ArrayRef], zone: Zone) -> Result<ArrayRef> {
        let [values] = columns else { return exec_err!("cast_within takes one argument") };
        self.converted(values, &self.target, zone)
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn what_is_within_is_cast_as_by_itself() {
        for (query, expected) in [
            (
                "(ARRAY[TIMESTAMP '2024-07-01 12:00:00']::timestamptz[])[1] = TIMESTAMPTZ '2024-07-01 12:00:00+00'",
                "true",
            ),
            ("(ARRAY[TIMESTAMPTZ '2024-07-01 23:00:00+00']::date[])[1]", "2024-07-01"),
            ("(ARRAY[TIMESTAMP '2024-01-01 01:02:03']::text[])[1]", "2024-01-01 01:02:03"),
            ("(ARRAY[1.50, NULL]::text[])[1]", "1.50"),
            (
                "(CAST({'a': '2024-07-01 12:00:00+02'} AS STRUCT(a TIMESTAMPTZ)))['a'] = TIMESTAMPTZ '2024-07-01 10:00:00+00'",
                "true",
            ),
            ("(ARRAY[2.5, 3.4]::int[])[1]", "3"),
        ] {
            assert_eq!(rows(&format!("SELECT {query}")).await, [expected], "{query}");
        }
    }
}
