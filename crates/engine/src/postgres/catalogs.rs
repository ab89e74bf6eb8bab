//! PostgreSQL's system catalogs as tables. Their columns are those of PostgreSQL 15
//! (`columns.txt`), and their rows come from a statement's snapshot. The catalog of a kind of
//! object that the engine lacks never has rows within a statement. [`is_empty`] identifies these,
//! so that a query of one need not be planned.
//!
//! OIDs are BIGINT here; PostgreSQL has a separate type for them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use arrow::array::{
    ArrayRef, BooleanBuilder, Float64Builder, Int16Builder, Int32Builder, Int64Builder, ListBuilder, RecordBatch,
    StringBuilder, new_null_array,
};
use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit};

use super::objects::{DATABASE, HEAP, INFORMATION_SCHEMA, Kind, OWNER, PG_CATALOG, PUBLIC, functions, relations};
use super::{Scope, objects};
use crate::catalog::Catalog;
use crate::functions::Behavior;
use crate::pg_types::types;
use crate::{Error, ErrorKind, Result};

/// One catalog per line: its name, then its columns with a letter for each type.
const COLUMNS: &str = include_str!("columns.txt");

/// The catalogs that have rows.
const WITH_ROWS: [&str; 16] = [
    "pg_am",
    "pg_attribute",
    "pg_authid",
    "pg_class",
    "pg_database",
    "pg_language",
    "pg_namespace",
    "pg_proc",
    "pg_roles",
    "pg_settings",
    "pg_tables",
    "pg_tablespace",
    "pg_type",
    "pg_user",
    "pg_views",
    "pg_stat_activity",
];

/// The OIDs that clients hard-code.
const KNOWN: [(&str, i64); 10] = [
    ("pg_class", 1259),
    ("pg_type", 1247),
    ("pg_proc", 1255),
    ("pg_attribute", 1249),
    ("pg_namespace", 2615),
    ("pg_constraint", 2606),
    ("pg_database", 1262),
    ("pg_authid", 1260),
    ("pg_extension", 3079),
    ("pg_trigger", 2620),
];

/// The columns of all catalogs.
static CATALOGS: LazyLock<BTreeMap<&'static str, SchemaRef>> = LazyLock::new(|| {
    COLUMNS.lines().filter_map(|line| line.split_once(' ')).map(|(name, all)| (name, columns(all))).collect()
});

fn columns(all: &str) -> SchemaRef {
    let column = |text: &str| {
        let (name, letter) = text.split_once(':').unwrap_or((text, "t"));
        Field::new(name, type_of(letter), true)
    };
    Arc::new(Schema::new(all.split(',').map(column).collect::<Vec<_>>()))
}

fn type_of(letter: &str) -> DataType {
    let list = |item: DataType| DataType::List(Arc::new(Field::new("item", item, true)));
    match letter {
        "o" | "l" => DataType::Int64,
        "i" => DataType::Int32,
        "s" => DataType::Int16,
        "b" => DataType::Boolean,
        "f" => DataType::Float64,
        "z" => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
        "v" => DataType::Interval(IntervalUnit::MonthDayNano),
        "T" => list(DataType::Utf8),
        "O" => list(DataType::Int64),
        "S" => list(DataType::Int16),
        _ => DataType::Utf8,
    }
}

/// Returns the OIDs and names of the catalogs.
pub(crate) fn names() -> impl Iterator<Item = (i64, &'static str)> {
    CATALOGS.keys().enumerate().map(|(at, name)| {
        let known = KNOWN.iter().find(|(known, _)| known == name).map(|(_, oid)| *oid);
        (known.unwrap_or(12_000 + at as i64), *name)
    })
}

/// Returns the columns of a catalog.
pub(crate) fn schema(name: &str) -> Option<SchemaRef> {
    CATALOGS.get(name).cloned()
}

/// Returns whether a name is that of a catalog that never has rows.
pub(crate) fn is_empty(name: &str) -> bool {
    CATALOGS.contains_key(name) && !WITH_ROWS.contains(&name)
}

/// Returns whether a catalog lists the columns of views, which are planned for it.
pub(crate) fn is_about_columns(name: &str) -> bool {
    matches!(name, "pg_attribute" | "columns")
}

/// A value of a row.
enum Cell {
    Number(i64),
    Float(f64),
    Text(String),
    Truth(bool),
    Texts(Vec<String>),
    Numbers(Vec<i64>),
}

impl From<i64> for Cell {
    fn from(value: i64) -> Self {
        Self::Number(value)
    }
}

impl From<usize> for Cell {
    fn from(value: usize) -> Self {
        Self::Number(value as i64)
    }
}

impl From<bool> for Cell {
    fn from(value: bool) -> Self {
        Self::Truth(value)
    }
}

impl From<&str> for Cell {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}

impl From<String> for Cell {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

type Row = HashMap<&'static str, Cell>;

macro_rules! row {
    ($($name:literal: $value:expr),* $(,)?) => { HashMap::from([$(($name, Cell::from($value))),*]) };
}

/// Returns a catalog's rows, or `None` if there is no such catalog. `views` holds the columns of
/// views, if the catalog lists them.
pub(crate) fn table(name: &str, scope: &Scope, views: &BTreeMap<String, SchemaRef>) -> Result<Option<RecordBatch>> {
    let Some(schema) = schema(name) else { return Ok(None) };
    let rows = match name {
        "pg_namespace" => namespaces(),
        "pg_class" => classes(scope),
        "pg_attribute" => attributes(scope, views),
        "pg_type" => all_types(),
        "pg_proc" => procedures(scope),
        "pg_database" => vec![database(scope)],
        "pg_roles" | "pg_authid" | "pg_user" => vec![role(scope)],
        "pg_settings" => settings(scope),
        "pg_tables" => tables(scope),
        "pg_views" => view_rows(scope),
        "pg_am" => vec![row! {"oid": HEAP, "amname": "heap", "amhandler": 3_i64, "amtype": "t"}],
        "pg_language" => vec![
            row! {"oid": 12_i64, "lanname": "internal", "lanowner": OWNER, "lanispl": false, "lanpltrusted": false},
            row! {"oid": 16_000_i64, "lanname": "python", "lanowner": OWNER, "lanispl": true, "lanpltrusted": false},
        ],
        "pg_tablespace" => vec![row! {"oid": 1663_i64, "spcname": "pg_default", "spcowner": OWNER}],
        "pg_stat_activity" => activity(scope),
        _ => Vec::new(),
    };
    batch(&schema, rows).map(Some)
}

fn namespaces() -> Vec<Row> {
    let one = |oid: i64| {
        let name = objects::schema_name(oid).unwrap_or_default();
        row! {"oid": oid, "nspname": name, "nspowner": OWNER}
    };
    [PG_CATALOG, PUBLIC, INFORMATION_SCHEMA].into_iter().map(one).collect()
}

fn classes(scope: &Scope) -> Vec<Row> {
    let all = relations(&scope.snapshot).into_iter().map(|relation| {
        let rows = match relation.kind {
            Kind::Table(table) => table.rows() as f64,
            _ => -1.0,
        };
        let access = if relation.letter() == "r" { HEAP } else { 0 };
        let columns = relation.columns().len();
        let persistence = if scope.snapshot.is_temporary(relation.name) { "t" } else { "p" };
        row! {
            "oid": relation.oid, "relname": relation.name, "relnamespace": relation.schema, "relowner": OWNER,
            "relam": access, "relfilenode": relation.oid, "reltuples": rows, "relpersistence": persistence,
            "relkind": relation.letter(), "relnatts": columns, "relispopulated": true, "relreplident": "n",
        }
    });
    all.collect()
}

fn attributes(scope: &Scope, views: &BTreeMap<String, SchemaRef>) -> Vec<Row> {
    let mut rows = Vec::new();
    for relation in relations(&scope.snapshot) {
        let fields = match (&relation.kind, views.get(relation.name)) {
            (Kind::View(_), Some(schema)) => schema.fields().iter().map(|field| field.as_ref().clone()).collect(),
            _ => relation.columns(),
        };
        for (at, field) in fields.iter().enumerate() {
            let (oid, modifier) = types::of(field.data_type());
            let size = types::by_oid(oid).map_or(-1, |t| i64::from(t.size));
            rows.push(row! {
                "attrelid": relation.oid, "attname": field.name().as_str(), "atttypid": oid, "attlen": size,
                "attnum": at + 1, "atttypmod": i64::from(modifier), "attcacheoff": -1_i64, "attstattarget": -1_i64,
                "attbyval": (1..=8).contains(&size), "attalign": "i", "attstorage": if size < 0 { "x" } else { "p" },
                "attcompression": "", "attnotnull": !field.is_nullable(), "attidentity": "", "attgenerated": "",
                "attislocal": true,
            });
        }
    }
    rows
}

fn all_types() -> Vec<Row> {
    let one = |t: &types::PgType| {
        let size = i64::from(t.size);
        row! {
            "oid": t.oid, "typname": t.name, "typnamespace": PG_CATALOG, "typowner": OWNER, "typlen": size,
            "typbyval": (1..=8).contains(&size), "typtype": if t.category == "X" { "p" } else { "b" },
            "typcategory": t.category, "typispreferred": matches!(t.name, "bool" | "text" | "float8" | "timestamptz"),
            "typisdefined": true, "typdelim": ",", "typelem": t.item, "typarray": t.array, "typalign": "i",
            "typstorage": if size < 0 { "x" } else { "p" }, "typtypmod": -1_i64, "typinput": t.function("in"),
            "typoutput": t.function("out"), "typreceive": t.function("recv"), "typsend": t.function("send"),
        }
    };
    types::TYPES.iter().map(one).collect()
}

fn procedures(scope: &Scope) -> Vec<Row> {
    let all = functions(&scope.snapshot).into_iter().map(|(name, function)| {
        let type_of = |result: Result<DataType>| result.map_or(25, |data_type| types::of(&data_type).0);
        let arguments: Vec<i64> = function.arguments.iter().map(|argument| type_of(argument.data_type())).collect();
        let names = function.arguments.iter().map(|argument| argument.name.clone()).collect();
        let volatile = match function.behavior {
            Behavior::Immutable => "i",
            Behavior::Stable => "s",
            Behavior::Volatile => "v",
        };
        let mut row = row! {
            "oid": objects::function_oid(name), "proname": name, "pronamespace": PUBLIC, "proowner": OWNER,
            "prolang": 16_000_i64, "procost": 100.0, "prokind": "f", "provolatile": volatile, "proparallel": "u",
            "pronargs": arguments.len(), "prorettype": type_of(function.return_type()), "prosrc": function.source,
        };
        row.insert("proargtypes", Cell::Numbers(arguments));
        row.insert("proargnames", Cell::Texts(names));
        row
    });
    all.collect()
}

fn database(scope: &Scope) -> Row {
    row! {
        "oid": DATABASE, "datname": scope.client.database.as_str(), "datdba": OWNER, "encoding": 6_i64, "datlocprovider": "c",
        "datistemplate": false, "datallowconn": true, "datconnlimit": -1_i64, "dattablespace": 1663_i64,
        "datcollate": "C", "datctype": "C",
    }
}

fn role(scope: &Scope) -> Row {
    let user = scope.client.user.as_str();
    let is_admin = scope.settings.rights() == crate::Rights::Admin;
    row! {
        "oid": OWNER, "rolname": user, "rolsuper": is_admin, "rolinherit": true, "rolcreaterole": false,
        "rolcreatedb": false, "rolcanlogin": true, "rolreplication": false, "rolconnlimit": -1_i64,
        "rolbypassrls": is_admin, "usename": user, "usesysid": OWNER, "usecreatedb": false, "usesuper": is_admin,
        "userepl": false, "usebypassrls": is_admin,
    }
}

fn settings(scope: &Scope) -> Vec<Row> {
    let own = scope.settings.list().into_iter().map(|setting| {
        row! {
            "name": setting.name, "setting": setting.value, "category": "Onehop", "short_desc": setting.description,
            "context": "user", "vartype": "string", "source": setting.source.name(), "boot_val": setting.default,
        }
    });
    let theirs = scope.parameters.list().into_iter().map(|(name, value)| {
        row! {
            "name": name, "setting": value, "category": "PostgreSQL", "short_desc": "", "context": "user",
            "vartype": "string", "source": "default",
        }
    });
    own.chain(theirs).collect()
}

fn tables(scope: &Scope) -> Vec<Row> {
    let all = scope.snapshot.tables().map(|table| {
        row! {
            "schemaname": crate::identifiers::SCHEMA, "tablename": table.name.as_str(), "tableowner": scope.client.user.as_str(),
            "hasindexes": false, "hasrules": false, "hastriggers": false, "rowsecurity": false,
        }
    });
    all.collect()
}

fn view_rows(scope: &Scope) -> Vec<Row> {
    let catalog: &Catalog = &scope.snapshot.catalog;
    let all = catalog.views.iter().map(|(name, text)| {
        row! {
            "schemaname": crate::identifiers::SCHEMA, "viewname": name.as_str(), "viewowner": scope.client.user.as_str(),
            "definition": text.as_str(),
        }
    });
    all.collect()
}

/// Returns the session of the query.
fn activity(scope: &Scope) -> Vec<Row> {
    vec![row! {
        "datid": DATABASE, "datname": scope.client.database.as_str(), "pid": i64::from(scope.client.number), "usesysid": OWNER,
        "usename": scope.client.user.as_str(), "application_name": scope.parameters.get("application_name").unwrap_or_default(),
        "state": "active", "backend_type": "client backend",
    }]
}

/// Converts rows to columns. A missing value is zero, false or NULL.
fn batch(schema: &SchemaRef, mut rows: Vec<Row>) -> Result<RecordBatch> {
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let values: Vec<Option<Cell>> = rows.iter_mut().map(|row| row.remove(field.name().as_str())).collect();
        columns.push(column(field, values)?);
    }
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

fn column(field: &Field, values: Vec<Option<Cell>>) -> Result<ArrayRef> {
    let number = |value: Option<Cell>| match value {
        Some(Cell::Number(number)) => number,
        _ => 0,
    };
    Ok(match field.data_type() {
        DataType::Int64 => {
            let mut builder = Int64Builder::new();
            values.into_iter().for_each(|value| builder.append_value(number(value)));
            Arc::new(builder.finish())
        }
        DataType::Int32 => {
            let mut builder = Int32Builder::new();
            values.into_iter().for_each(|value| builder.append_value(number(value) as i32));
            Arc::new(builder.finish())
        }
        DataType::Int16 => {
            let mut builder = Int16Builder::new();
            values.into_iter().for_each(|value| builder.append_value(number(value) as i16));
            Arc::new(builder.finish())
        }
        DataType::Boolean => {
            let mut builder = BooleanBuilder::new();
            values.into_iter().for_each(|value| builder.append_value(matches!(value, Some(Cell::Truth(true)))));
            Arc::new(builder.finish())
        }
        DataType::Float64 => {
            let mut builder = Float64Builder::new();
            let float = |value| if let Some(Cell::Float(float)) = value { float } else { 0.0 };
            values.into_iter().for_each(|value| builder.append_value(float(value)));
            Arc::new(builder.finish())
        }
        DataType::Utf8 => {
            let mut builder = StringBuilder::new();
            let text = |value| if let Some(Cell::Text(text)) = value { Some(text) } else { None };
            values.into_iter().for_each(|value| builder.append_option(text(value)));
            Arc::new(builder.finish())
        }
        DataType::List(item) if *item.data_type() == DataType::Utf8 => {
            let mut builder = ListBuilder::new(StringBuilder::new());
            for value in values {
                match value {
                    Some(Cell::Texts(texts)) => builder.append_value(texts.into_iter().map(Some)),
                    _ => builder.append_null(),
                }
            }
            Arc::new(builder.finish())
        }
        DataType::List(item) if *item.data_type() == DataType::Int64 => {
            let mut builder = ListBuilder::new(Int64Builder::new());
            for value in values {
                match value {
                    Some(Cell::Numbers(numbers)) => builder.append_value(numbers.into_iter().map(Some)),
                    _ => builder.append_null(),
                }
            }
            Arc::new(builder.finish())
        }
        other if values.iter().all(Option::is_none) => new_null_array(other, values.len()),
        other => return Err(Error::new(ErrorKind::Internal, format!("a catalog has a column of type {other}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_catalog_has_columns_and_a_number_of_its_own() {
        let mut numbers: Vec<i64> = names().map(|(oid, _)| oid).collect();
        assert!(numbers.len() > 50, "{}", numbers.len());
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), CATALOGS.len());
        assert!(CATALOGS.values().all(|schema| schema.fields().len() > 1));
        for name in WITH_ROWS {
            assert!(CATALOGS.contains_key(name) && !is_empty(name), "{name}");
        }
        assert!(is_empty("pg_index") && !is_empty("pg_class") && !is_empty("customers"));
    }
}
