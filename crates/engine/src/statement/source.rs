//! The query that the rows of an INSERT come of: its values, one by one, or the columns of its query, cast to the columns that
//! they are for.
//!
//! ```text
//! INSERT INTO t (b, a) SELECT x, y FROM u
//! SELECT CAST(c2 AS type of a) AS a, CAST(c1 AS type of b) AS b, CAST(NULL AS ..) AS c FROM (SELECT x, y FROM u) AS rows(c1, c2)
//! ```
//! DataFusion's own plan of an INSERT gives the types of the table's columns, and their number, to every VALUES that is in the
//! query however deep, and lets the values of a column decide about each other's type before they are cast.

use arrow::datatypes::Schema;
use datafusion::sql::sqlparser::ast::{Insert, ObjectName, ObjectNamePart, Query, SetExpr, TableFactor, TableObject};

use super::modify::{cast, sql_type};
use crate::error::nearest;
use crate::identifiers::quoted;
use crate::planner;
use crate::snapshot::Table;
use crate::{Error, ErrorKind, Object, Result, Rule};

/// What the rows that a statement brings are called.
const ROWS: &str = "__onehop_rows";

/// The table that an INSERT names and the query of its rows, by which it says no more than what rows there are; `None` for any
/// other.
pub(super) fn parts(insert: &Insert) -> Option<(&ObjectName, &Query)> {
    // Every field has a name here: one that a later parser knows must be looked at.
    let Insert {
        insert_token: _,
        optimizer_hints,
        or: None,
        ignore: false,
        into: _,
        table: TableObject::TableName(table),
        table_alias: None,
        columns: _,
        overwrite: false,
        source: Some(source),
        assignments,
        partitioned: None,
        after_columns,
        has_table_keyword: _,
        on: None,
        returning: None,
        output: None,
        replace_into: false,
        priority: None,
        insert_alias: None,
        settings: None,
        format_clause: None,
        multi_table_insert_type: None,
        multi_table_into_clauses,
        multi_table_when_clauses,
        multi_table_else_clause: None,
    } = insert
    else {
        return None;
    };
    let is_all = optimizer_hints.is_empty()
        && assignments.is_empty()
        && after_columns.is_empty()
        && multi_table_into_clauses.is_empty()
        && multi_table_when_clauses.is_empty();
    is_all.then_some((table, source))
}

/// The rows of a query, as the table has them. `columns` are those that the statement names.
///
/// # Errors
/// A column that the table does not have, or that is named twice; rows of VALUES with more values, or fewer.
pub(super) fn query(columns: &[ObjectName], source: &Query, table: &Table) -> Result<Box<Query>> {
    let entries = &table.entry.columns;
    let names = columns.iter().map(|column| name_of(column, table)).collect::<Result<Vec<_>>>()?;
    let places = places(&names, &table.schema).map_err(|name| misnamed(name, table))?;
    // Which column each of the rows' is for.
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

/// Refuses rows that have more values than there are columns for them, or fewer. `row` is its number, from 1.
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

/// What is wrong with a name of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misnamed<'a> {
    Unknown(&'a str),
    Twice(&'a str),
}

/// Which value of a row is each column's, if the statement names the columns, or none: then it is all of them.
pub(super) fn places<'a>(
    columns: &'a [String],
    schema: &Schema,
) -> std::result::Result<Vec<Option<usize>>, Misnamed<'a>> {
    if columns.is_empty() {
        return Ok((0..schema.fields().len()).map(Some).collect());
    }
    let mut places = vec![None; schema.fields().len()];
    for (value, name) in columns.iter().enumerate() {
        let (column, _) = schema.column_with_name(name).ok_or(Misnamed::Unknown(name))?;
        if places[column].replace(value).is_some() {
            return Err(Misnamed::Twice(name));
        }
    }
    Ok(places)
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
