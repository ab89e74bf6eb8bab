//! The objects of a snapshot with their OIDs: schemas, relations, functions.

use arrow::datatypes::{Field, SchemaRef};

use super::catalogs;
use crate::functions::Function;
use crate::snapshot::{Snapshot, Table};

/// The OIDs of schemas.
pub(crate) const PG_CATALOG: i64 = 11;
pub(crate) const PUBLIC: i64 = 2200;
pub(crate) const INFORMATION_SCHEMA: i64 = 13_000;
/// The OID of the one database.
pub(crate) const DATABASE: i64 = 5;
/// The OID of the user who owns all objects.
pub(crate) const OWNER: i64 = 10;
/// The OID of the one access method of tables.
pub(crate) const HEAP: i64 = 2;

/// The first OID of objects that users create.
const FIRST: i64 = 16_384;
/// The first OID of objects that are numbered by name.
const NAMED: i64 = 1 << 30;

/// A relation.
#[derive(Clone, Debug)]
pub(crate) struct Relation<'a> {
    /// The OID of the relation.
    pub oid: i64,
    /// The name without the schema.
    pub name: &'a str,
    /// The OID of the schema.
    pub schema: i64,
    /// The kind of the relation.
    pub kind: Kind<'a>,
}

/// The kind of a relation.
#[derive(Clone, Debug)]
pub(crate) enum Kind<'a> {
    Table(&'a Table),
    /// A view with the text of its query.
    View(&'a str),
    /// A system table of ours or of PostgreSQL's, built on demand.
    System,
}

/// Returns the OID of an object that has only a name.
fn of_name(name: &str) -> i64 {
    NAMED + i64::from(crc32c::crc32c(name.as_bytes()) & 0x3fff_ffff)
}

pub(crate) fn table_oid(table: &Table) -> i64 {
    // OIDs have 32 bits, and ids begin at 1.
    FIRST + (table.entry.id % (1 << 29)) as i64
}

/// Returns the OID of a function.
pub(crate) fn function_oid(name: &str) -> i64 {
    of_name(&format!("{name}()"))
}

/// Returns all relations.
pub(crate) fn relations(snapshot: &Snapshot) -> Vec<Relation<'_>> {
    let tables = snapshot.tables().map(|table| Relation {
        oid: table_oid(table),
        name: &table.name,
        schema: PUBLIC,
        kind: Kind::Table(table),
    });
    let views = snapshot.catalog.views.iter().map(|(name, text)| Relation {
        oid: of_name(name),
        name,
        schema: PUBLIC,
        kind: Kind::View(text),
    });
    let ours = crate::identifiers::SYSTEM_TABLES.iter().enumerate().map(|(at, name)| Relation {
        oid: 12_500 + at as i64,
        name,
        schema: PG_CATALOG,
        kind: Kind::System,
    });
    let theirs = catalogs::names().map(|(oid, name)| Relation { oid, name, schema: PG_CATALOG, kind: Kind::System });
    tables.chain(views).chain(ours).chain(theirs).collect()
}

/// Returns the OID of a relation from a name with or without its schema, or from a number.
pub(crate) fn relation_oid(snapshot: &Snapshot, text: &str) -> Option<i64> {
    if let Ok(oid) = text.trim().parse::<u32>() {
        return Some(oid.into());
    }
    let (schema, name) = split_name(text);
    let is_in = |relation: &Relation<'_>| match schema.as_deref() {
        None => true,
        Some(name) => schema_name(relation.schema) == Some(name),
    };
    relations(snapshot).into_iter().find(|relation| relation.name == name && is_in(relation)).map(|found| found.oid)
}

/// Splits `schema.name`. A part without quotes is converted to lower case.
fn split_name(text: &str) -> (Option<String>, String) {
    let (mut parts, mut part, mut is_quoted) = (Vec::new(), String::new(), false);
    for c in text.trim().chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            '.' if !is_quoted => parts.push(std::mem::take(&mut part)),
            c if is_quoted => part.push(c),
            c => part.extend(c.to_lowercase()),
        }
    }
    (parts.pop(), part)
}

/// Returns a schema's name.
pub(crate) fn schema_name(oid: i64) -> Option<&'static str> {
    match oid {
        PG_CATALOG => Some(super::SCHEMA),
        PUBLIC => Some(crate::identifiers::SCHEMA),
        INFORMATION_SCHEMA => Some(super::INFORMATION_SCHEMA),
        _ => None,
    }
}

impl Relation<'_> {
    /// Returns the columns of a table or a system table. A view has none here.
    pub fn columns(&self) -> Vec<Field> {
        let owned = |schema: &SchemaRef| schema.fields().iter().map(|field| field.as_ref().clone()).collect();
        match &self.kind {
            Kind::Table(table) => owned(&table.schema),
            Kind::View(_) => Vec::new(),
            Kind::System => catalogs::schema(self.name).map(|schema| owned(&schema)).unwrap_or_default(),
        }
    }

    /// Returns the letter of its kind in `pg_class`.
    pub fn letter(&self) -> &'static str {
        match &self.kind {
            Kind::Table(table) if table.entry.partition_by.is_some() => "r",
            Kind::Table(_) => "r",
            Kind::View(_) => "v",
            Kind::System => "r",
        }
    }
}

/// Returns the user-defined functions that can be decoded.
pub(crate) fn functions(snapshot: &Snapshot) -> Vec<(&str, Function)> {
    let all = snapshot.catalog.functions.iter();
    all.filter_map(|(name, text)| Some((name.as_str(), Function::decode(name, text).ok()?))).collect()
}
