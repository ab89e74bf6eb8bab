//! PostgreSQL 15's `information_schema`. Its columns are in `information_schema.txt`, and its rows
//! come from a statement's snapshot. Types have PostgreSQL's names, and columns count from 1.
//! Objects that the engine lacks, such as constraints, have a view without rows.
//!
//! DataFusion's own has Arrow's type names, counts from 0, and has no view of constraints,
//! privileges or identities. Views that only it has (`routines`, `parameters`, `df_settings`) are
//! still its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::Scope;
use super::objects::{Kind, PG_CATALOG, PUBLIC, Relation, relations, schema_name};
use crate::Result;
use crate::pg_types::types;

/// One view per line: its name, then its columns; `:i` follows those that are numbers.
const COLUMNS: &str = include_str!("information_schema.txt");

static VIEWS: LazyLock<BTreeMap<&'static str, SchemaRef>> = LazyLock::new(|| {
    COLUMNS.lines().filter_map(|line| line.split_once(' ')).map(|(name, all)| (name, columns(all))).collect()
});

fn columns(all: &str) -> SchemaRef {
    let column = |text: &str| match text.strip_suffix(":i") {
        Some(name) => Field::new(name, DataType::Int32, true),
        None => Field::new(text, DataType::Utf8, true),
    };
    Arc::new(Schema::new(all.split(',').map(column).collect::<Vec<_>>()))
}

/// Returns the names of the views.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    VIEWS.keys().copied()
}

/// Returns whether there is a view of that name.
pub(crate) fn has(name: &str) -> bool {
    VIEWS.contains_key(name)
}

enum Cell {
    Text(String),
    Number(i32),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i32> for Cell {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

type Row = HashMap<&'static str, Cell>;

macro_rules! row {
    ($($name:literal: $value:expr),* $(,)?) => { HashMap::from([$(($name, Cell::from($value))),*]) };
}

/// Returns a view's rows, or `None` if there is no view of that name. `views` holds the columns of
/// the database's views.
pub(crate) fn table(name: &str, scope: &Scope, views: &BTreeMap<String, SchemaRef>) -> Result<Option<RecordBatch>> {
    let Some(schema) = VIEWS.get(name) else { return Ok(None) };
    let database = scope.client.database.as_str();
    let rows = match name {
        "columns" => column_rows(scope, views),
        "tables" => relations(&scope.snapshot).iter().map(|relation| table_row(scope, relation)).collect(),
        "views" => view_rows(scope),
        "schemata" => schemata(scope),
        "information_schema_catalog_name" => vec![row! {"catalog_name": database}],
        "enabled_roles" => vec![row! {"role_name": scope.client.user.as_str()}],
        _ => Vec::new(),
    };
    batch(schema, &rows).map(Some)
}

fn schemata(scope: &Scope) -> Vec<Row> {
    let one = |name: &str| {
        row! {
            "catalog_name": scope.client.database.as_str(), "schema_name": name,
            "schema_owner": scope.client.user.as_str(),
        }
    };
    [crate::identifiers::SCHEMA, super::SCHEMA, super::INFORMATION_SCHEMA].into_iter().map(one).collect()
}

fn table_row(scope: &Scope, relation: &Relation<'_>) -> Row {
    let is_temporary = scope.snapshot.is_temporary(relation.name);
    let kind = match &relation.kind {
        Kind::View(_) => "VIEW",
        _ if is_temporary => "LOCAL TEMPORARY",
        _ => "BASE TABLE",
    };
    let is_insertable = matches!(relation.kind, Kind::Table(_));
    let mut row = row! {
        "table_catalog": scope.client.database.as_str(), "table_schema": schema_name(relation.schema).unwrap_or_default(),
        "table_name": relation.name, "table_type": kind, "is_insertable_into": yes(is_insertable), "is_typed": "NO",
    };
    if is_temporary {
        row.insert("commit_action", "PRESERVE".into());
    }
    row
}

fn view_rows(scope: &Scope) -> Vec<Row> {
    let all = scope.snapshot.catalog.views.iter().map(|(name, text)| {
        row! {
            "table_catalog": scope.client.database.as_str(), "table_schema": crate::identifiers::SCHEMA,
            "table_name": name.as_str(), "view_definition": text.as_str(), "check_option": "NONE", "is_updatable": "NO",
            "is_insertable_into": "NO", "is_trigger_updatable": "NO", "is_trigger_deletable": "NO",
            "is_trigger_insertable_into": "NO",
        }
    });
    all.collect()
}

fn column_rows(scope: &Scope, views: &BTreeMap<String, SchemaRef>) -> Vec<Row> {
    let mut rows = Vec::new();
    for relation in relations(&scope.snapshot) {
        let fields = match (&relation.kind, views.get(relation.name)) {
            (Kind::View(_), Some(schema)) => schema.fields().iter().map(|field| field.as_ref().clone()).collect(),
            _ => relation.columns(),
        };
        for (at, field) in (1..).zip(&fields) {
            rows.push(column_row(scope, &relation, field, at));
        }
    }
    rows
}

fn column_row(scope: &Scope, relation: &Relation<'_>, field: &Field, position: i32) -> Row {
    let (oid, modifier) = types::of(field.data_type());
    let known = types::by_oid(oid);
    let data_type = match known {
        Some(known) if known.category == "A" => "ARRAY",
        Some(known) => known.sql,
        None => "text",
    };
    let is_updatable = matches!(relation.kind, Kind::Table(_)) && relation.schema == PUBLIC;
    let mut row = row! {
        "table_catalog": scope.client.database.as_str(), "table_schema": schema_name(relation.schema).unwrap_or_default(),
        "table_name": relation.name, "column_name": field.name().as_str(), "ordinal_position": position,
        "is_nullable": yes(field.is_nullable()), "data_type": data_type,
        "udt_catalog": scope.client.database.as_str(), "udt_schema": schema_name(PG_CATALOG).unwrap_or_default(),
        "udt_name": known.map_or("text", |known| known.name), "dtd_identifier": position.to_string(),
        "is_self_referencing": "NO", "is_identity": "NO", "identity_cycle": "NO", "is_generated": "NEVER",
        "is_updatable": yes(is_updatable),
    };
    for (name, number) in measures(oid, modifier) {
        row.insert(name, number.into());
    }
    row
}

/// Returns the size limits of a type: bits of integers and floats, digits of decimals and of
/// fractional seconds.
fn measures(oid: i64, modifier: i32) -> Vec<(&'static str, i32)> {
    let number = |precision, radix| vec![("numeric_precision", precision), ("numeric_precision_radix", radix)];
    let integer = |bits| [number(bits, 2), vec![("numeric_scale", 0)]].concat();
    match oid {
        21 => integer(16),
        23 => integer(32),
        20 => integer(64),
        700 => number(24, 2),
        701 => number(53, 2),
        1700 if modifier >= 4 => {
            let (digits, scale) = ((modifier - 4) >> 16, (((modifier - 4) & 0x7ff) ^ 1024) - 1024);
            [number(digits, 10), vec![("numeric_scale", scale)]].concat()
        }
        1700 => vec![("numeric_precision_radix", 10)],
        1082 => vec![("datetime_precision", 0)],
        1083 | 1114 | 1184 | 1186 => vec![("datetime_precision", 6)],
        25 | 1043 => vec![("character_octet_length", 1 << 30)],
        _ => Vec::new(),
    }
}

fn yes(is: bool) -> &'static str {
    if is { "YES" } else { "NO" }
}

/// Converts rows to columns. A missing value is NULL.
fn batch(schema: &SchemaRef, rows: &[Row]) -> Result<RecordBatch> {
    let column = |field: &Arc<Field>| -> ArrayRef {
        let cells = rows.iter().map(|row| row.get(field.name().as_str()));
        match field.data_type() {
            DataType::Int32 => {
                let number =
                    |cell: Option<&Cell>| if let Some(Cell::Number(number)) = cell { Some(*number) } else { None };
                Arc::new(cells.map(number).collect::<Int32Array>())
            }
            _ => {
                let text =
                    |cell: Option<&Cell>| if let Some(Cell::Text(text)) = cell { Some(text.clone()) } else { None };
                Arc::new(cells.map(text).collect::<StringArray>())
            }
        }
    };
    Ok(RecordBatch::try_new(Arc::clone(schema), schema.fields().iter().map(column).collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_view_has_columns() {
        assert!(VIEWS.len() > 30 && VIEWS.values().all(|schema| !schema.fields().is_empty()));
        assert_eq!(VIEWS.get("columns").map(|schema| schema.fields().len()), Some(44));
        assert_eq!(
            measures(1700, types::of(&DataType::Decimal128(15, 2)).1),
            [("numeric_precision", 15), ("numeric_precision_radix", 10), ("numeric_scale", 2)]
        );
    }
}
