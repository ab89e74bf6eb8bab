//! The statements that make a database's tables and views again: what `SHOW CREATE` and the shell's `.schema` print.
//!
//! - Run on an empty database in the order of [`definitions`], they make the same catalog, without its rows: names,
//!   columns, types, NOT NULL, partitions and the columns that loads are sorted by.
//! - Tables come first, by name; then views, each after those that it stands on.
//! - A name is quoted where it would not be read back as itself. Literals are written as their column's type takes
//!   them, and are read back to the very texts that the catalog holds.

use std::collections::BTreeSet;

use datafusion::sql::resolve::resolve_table_references;
use onehop_segment::ColumnType;

use crate::catalog::{Catalog, ColumnEntry, ListPartition, PartitionBy, RangePartition, TableEntry, names};
use crate::identifiers::quoted;
use crate::planner;
use crate::type_names::written;

/// A table or view, and the statement that makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// The statement, without a semicolon.
    pub sql: String,
}

/// Everything, in an order in which it can be made.
pub(crate) fn definitions(catalog: &Catalog) -> Vec<Definition> {
    let views = in_order_of_need(catalog);
    catalog.tables.keys().chain(views).filter_map(|name| definition(catalog, name)).collect()
}

/// One table or view; `None` if there is none of that name.
pub(crate) fn definition(catalog: &Catalog, name: &str) -> Option<Definition> {
    let sql = match (catalog.tables.get(name), catalog.views.get(name)) {
        (Some(table), _) => create_table(name, table),
        (None, Some(query)) => format!("CREATE VIEW {} AS {query}", quoted(name)),
        (None, None) => return None,
    };
    Some(Definition { name: name.into(), sql })
}

fn create_table(name: &str, table: &TableEntry) -> String {
    let columns: Vec<String> = table.columns.iter().map(column).collect();
    let mut sql = format!("CREATE TABLE {} (\n    {}\n)", quoted(name), columns.join(",\n    "));
    if let Some(by) = &table.partition_by {
        sql += &format!("\nPARTITION BY {}", partition_by(by, table));
    }
    if !table.cluster_by.is_empty() {
        let columns: Vec<String> = table.cluster_by.iter().map(|name| quoted(name)).collect();
        sql += &format!("\nCLUSTER BY ({})", columns.join(", "));
    }
    if let Some(device) = &table.residence {
        sql += &format!("\nWITH (residence = '{device}')");
    }
    sql
}

fn column(column: &ColumnEntry) -> String {
    let not_null = if column.nullable { "" } else { " NOT NULL" };
    format!("{} {}{not_null}", quoted(&column.name), written(&column.type_name))
}

fn partition_by(by: &PartitionBy, table: &TableEntry) -> String {
    let column = by.column();
    let entry = table.columns.iter().find(|entry| entry.name == column);
    let column_type = entry.and_then(|entry| names::parse_type(&entry.type_name).ok());
    let literal = |text: &str| literal(text, column_type.as_ref());
    let column = quoted(column);
    let parts = |parts: Vec<String>| format!("(\n    {}\n)", parts.join(",\n    "));
    match by {
        PartitionBy::Hash { partitions, .. } => format!("HASH ({column}) PARTITIONS {partitions}"),
        PartitionBy::Range { partitions, .. } => {
            let part = |RangePartition { name, less_than }: &RangePartition| {
                let bound = less_than.as_deref().map_or("MAXVALUE".to_string(), literal);
                format!("PARTITION {} VALUES LESS THAN ({bound})", quoted(name))
            };
            format!("RANGE ({column}) {}", parts(partitions.iter().map(part).collect()))
        }
        PartitionBy::List { partitions, .. } => {
            let part = |ListPartition { name, values, is_default }: &ListPartition| {
                let name = quoted(name);
                let value = |value: &Option<String>| value.as_deref().map_or("NULL".to_string(), literal);
                match is_default {
                    true => format!("PARTITION {name} DEFAULT"),
                    false => {
                        let values: Vec<String> = values.iter().map(value).collect();
                        format!("PARTITION {name} VALUES IN ({})", values.join(", "))
                    }
                }
            };
            format!("LIST ({column}) {}", parts(partitions.iter().map(part).collect()))
        }
    }
}

/// A literal whose text, read back, is `text`. Everything may stand in quotes; what need not, for the reader's sake,
/// does not.
fn literal(text: &str, column_type: Option<&ColumnType>) -> String {
    let in_quotes = || format!("'{}'", text.replace('\'', "''"));
    match column_type {
        None | Some(ColumnType::Varchar) => in_quotes(),
        Some(ColumnType::Date) => format!("DATE {}", in_quotes()),
        Some(ColumnType::Timestamp { .. }) => format!("TIMESTAMP {}", in_quotes()),
        Some(ColumnType::Boolean) if text == "true" || text == "false" => text.into(),
        Some(ColumnType::Boolean) => in_quotes(),
        Some(_) if is_plain_number(text) => text.into(),
        Some(_) => in_quotes(),
    }
}

fn is_plain_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    is_digits(whole) && is_digits(fraction)
}

/// Views by name, but each after those that it stands on.
fn in_order_of_need(catalog: &Catalog) -> Vec<&String> {
    let mut ordered = Vec::new();
    let mut seen = BTreeSet::new();
    for name in catalog.views.keys() {
        visit(name, catalog, &mut seen, &mut ordered);
    }
    ordered
}

/// Depth first. A view is seen before what it stands on, so that a circle (made by replacing a view) ends.
fn visit<'a>(name: &'a String, catalog: &'a Catalog, seen: &mut BTreeSet<&'a String>, ordered: &mut Vec<&'a String>) {
    if !seen.insert(name) {
        return;
    }
    let query = catalog.views.get(name).map_or("", String::as_str);
    for below in names_in(query) {
        if let Some((below, _)) = catalog.views.get_key_value(&below) {
            visit(below, catalog, seen, ordered);
        }
    }
    ordered.push(name);
}

fn names_in(query: &str) -> Vec<String> {
    let references = planner::parse_statement(query).and_then(|s| Ok(resolve_table_references(&s, true)?));
    // A view whose text no longer parses stands on nothing.
    let (tables, _) = references.unwrap_or_default();
    tables.iter().map(|table| table.table().to_string()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use datafusion::sql::sqlparser::keywords::ALL_KEYWORDS;

    use super::*;
    use crate::{Database, DatabaseOptions, Session};

    async fn session(sql: &[&str]) -> Session {
        let session = Database::memory(&DatabaseOptions::default()).unwrap().session().unwrap();
        for statement in sql {
            session.sql(statement).await.unwrap_or_else(|e| panic!("{statement}: {e}"));
        }
        session
    }

    /// What is printed makes the same catalog, ids and rows aside.
    async fn round_trip(sql: &[&str]) -> Vec<Definition> {
        let first = session(sql).await;
        let printed = first.definitions();
        let statements: Vec<&str> = printed.iter().map(|definition| definition.sql.as_str()).collect();
        let second = session(&statements).await;
        assert_eq!(second.definitions(), printed);
        let (first, second) = (first.database().snapshot(), second.database().snapshot());
        for (name, table) in &first.catalog.tables {
            let again = &second.catalog.tables[name];
            assert_eq!(
                (&table.columns, &table.cluster_by, &table.partition_by),
                (&again.columns, &again.cluster_by, &again.partition_by)
            );
        }
        assert_eq!(first.catalog.views, second.catalog.views);
        printed
    }

    #[tokio::test]
    async fn a_table_is_shown_as_it_was_declared() {
        let sql = "CREATE TABLE sales (\n    id BIGINT NOT NULL,\n    day DATE NOT NULL,\n    \"Store\" VARCHAR,\n    \
                   amount DECIMAL(10,2)\n)\nPARTITION BY RANGE (day) (\n    PARTITION y2024 VALUES LESS THAN (DATE \
                   '2025-01-01'),\n    PARTITION later VALUES LESS THAN (MAXVALUE)\n)\nCLUSTER BY (day, \"Store\")";
        assert_eq!(round_trip(&[sql]).await, [Definition { name: "sales".into(), sql: sql.into() }]);
    }

    #[tokio::test]
    async fn literals_of_every_type_come_back() {
        round_trip(&[
            "CREATE TABLE n (a INT) PARTITION BY RANGE (a) (PARTITION low VALUES LESS THAN (-5), PARTITION mid VALUES \
             LESS THAN ('7'), PARTITION high VALUES LESS THAN MAXVALUE)",
            "CREATE TABLE d (a DECIMAL(9,2)) PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (-1.50))",
            "CREATE TABLE ts (a TIMESTAMP(3)) PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (TIMESTAMP \
             '2025-01-01 10:00:00'), PARTITION q VALUES LESS THAN (MAXVALUE))",
            "CREATE TABLE s (a TEXT) PARTITION BY LIST (a) (PARTITION \"A 1\" VALUES IN ('it''s', '5', 'NULL', ''), \
             PARTITION \"default\" VALUES IN (NULL), PARTITION rest DEFAULT)",
            "CREATE TABLE b (a BOOLEAN) PARTITION BY LIST (a) (PARTITION yes VALUES IN (true), PARTITION no DEFAULT)",
            "CREATE TABLE h (a BIGINT, b TIMESTAMP, c DOUBLE, d REAL, e BIGINT UNSIGNED) PARTITION BY HASH (a) PARTITIONS 16",
        ])
        .await;
    }

    #[tokio::test]
    async fn every_word_can_be_a_name() {
        let columns: Vec<String> = ALL_KEYWORDS.iter().map(|word| format!("\"{}\" INT", word.to_lowercase())).collect();
        let table = format!("CREATE TABLE \"order\" ({}, \"a \"\"b\"\"\" INT, \"Ä\" INT)", columns.join(", "));
        round_trip(&[&table, "CREATE TABLE \"check\" (\"unique\" INT) CLUSTER BY (\"unique\")"]).await;
    }

    #[tokio::test]
    async fn views_come_after_what_they_stand_on() {
        let printed = round_trip(&[
            "CREATE TABLE t (a INT)",
            "CREATE VIEW z AS FROM t",
            "CREATE VIEW \"M x\" AS SELECT a, 'it''s' AS s FROM z JOIN t USING (a)",
            "CREATE VIEW a AS WITH c AS (SELECT * FROM \"M x\") SELECT count(*) AS n FROM c",
        ])
        .await;
        let names: Vec<&str> = printed.iter().map(|definition| definition.name.as_str()).collect();
        assert_eq!(names, ["t", "z", "M x", "a"]);
    }
}
