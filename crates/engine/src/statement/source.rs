//! Builds the query for the rows of an INSERT. It casts the values, or the columns of its query, to
//! the types of their target columns.
//!
//! ```text
//! INSERT INTO t (b, a) SELECT x, y FROM u
//! SELECT CAST(c2 AS type of a) AS a, CAST(c1 AS type of b) AS b, CAST(NULL AS ..) AS c
//!     FROM (SELECT x, y FROM u) AS rows(c1, c2)
//! ```
//! DataFusion's own plan of an INSERT imposes the table's column types, and their number, on each
//! VALUES in the query, at any depth. It also unifies the types of a column's values before it
//! casts them.

use datafusion::sql::sqlparser::ast::{ObjectName, ObjectNamePart, Query, SetExpr, TableFactor};

use super::modify::{cast, sql_type};
use crate::error::nearest;
use crate::identifiers::quoted;
use crate::snapshot::Table;
use crate::template::{Misnamed, places};
use crate::{Error, ErrorKind, Object, Result, Rule, planner};

/// The alias of the source rows.
const ROWS: &str = "__onehop_rows";

/// Returns the query for the rows in the table's columns. `columns` are those that the statement
/// names.
///
/// # Errors
/// Fails if a column does not exist or is named twice, or if a row of VALUES has more or fewer
/// values.
pub(super) fn query(columns: &[ObjectName], source: &Query, table: &Table) -> Result<Box<Query>> {
    let entries = &table.entry.columns;
    let names = columns.iter().map(|column| name_of(column, table)).collect::<Result<Vec<_>>>()?;
    let places = places(&names, &table.schema).map_err(|name| misnamed(name, table))?;
    // The target column of each source column.
    let mut targets: Vec<(usize, usize)> =
        places.iter().enumerate().filter_map(|(column, place)| place.map(|place| (place, column))).collect();
    targets.sort_unstable();
    let mut source = source.clone();
    if let SetExpr::Values(values) = source.body.as_mut() {
        for (number, row) in values.rows.iter_mut().enumerate() {
            check_count(row.content.len(), targets.len(), Some(number + 1), table)?;
            for (value, (_, column)) in row.content.iter_mut().zip(&targets) {
                *value = cast(value, &entries[*column].type_name)?;
            }
        }
    }
    let items = entries.iter().zip(&places).map(|(entry, place)| {
        let value = place.map_or("NULL".to_string(), |place| format!("\"{ROWS}\".\"c{place}\""));
        format!("CAST({value} AS {}) AS {}", sql_type(&entry.type_name), quoted(&entry.name))
    });
    let names: Vec<String> = (0..targets.len()).map(|place| format!("\"c{place}\"")).collect();
    let items: Vec<String> = items.collect();
    let text = format!("SELECT {} FROM (SELECT 0) AS \"{ROWS}\"({})", items.join(", "), names.join(", "));
    let mut query = planner::template(&text)?;
    if let SetExpr::Select(select) = query.body.as_mut()
        && let [from] = select.from.as_mut_slice()
        && let TableFactor::Derived { subquery, .. } = &mut from.relation
    {
        **subquery = source;
        return Ok(query);
    }
    Err(Error::new(ErrorKind::Internal, "a query of rows is not what it was written as"))
}

/// Refuses a row whose number of values differs from its number of columns. `row` is its number,
/// from 1.
pub(super) fn check_count(values: usize, columns: usize, row: Option<usize>, table: &Table) -> Result<()> {
    if values == columns {
        return Ok(());
    }
    let of = row.map_or("the query has".to_string(), |row| format!("row {row} has"));
    let message = format!("INSERT INTO \"{}\" takes {columns} values a row, and {of} {values}", table.name);
    Err(Error::new(ErrorKind::Invalid, message)
        .breaking(Rule::Count)
        .with_hint("name the columns that the values are for: INSERT INTO t (a, b) ..."))
}

fn name_of(column: &ObjectName, table: &Table) -> Result<String> {
    match &column.0[..] {
        [ObjectNamePart::Identifier(word)] => {
            planner::as_named(word, table.entry.columns.iter().map(|column| column.name.as_str()), "column")
        }
        _ => Err(Error::new(ErrorKind::Invalid, format!("{column} is no name of a column"))
            .with_hint("columns of an INSERT are named without their table")),
    }
}

fn misnamed(name: Misnamed<'_>, table: &Table) -> Error {
    match name {
        Misnamed::Twice(name) => Error::new(ErrorKind::Invalid, format!("INSERT names the column \"{name}\" twice"))
            .breaking(Rule::NamedOnce),
        Misnamed::Unknown(name) => {
            let error =
                Error::new(ErrorKind::NotFound, format!("there is no column \"{name}\" in table \"{}\"", table.name))
                    .of(Object::Column);
            match nearest(name, table.entry.columns.iter().map(|column| column.name.as_str())) {
                Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                None => error,
            }
        }
    }
}
