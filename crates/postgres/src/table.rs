//! The definition of a PostgreSQL table, from the catalogs, within a transaction that has locked
//! it: its columns cannot change until the transaction ends.

use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};

use crate::server::View;
use crate::types::{Reading, reading};
use crate::{Error, Result};

/// The kinds of relations that have rows of their own, in pages.
const WITH_PAGES: [&str; 2] = ["r", "m"];

/// A column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    /// The column's name.
    pub name: String,
    /// PostgreSQL's name of its type.
    pub type_name: String,
    /// True if equal strings have the same bytes, which some collations do not guarantee.
    pub is_deterministic: bool,
    /// The conversion of its values. `None` if it cannot be read.
    pub(crate) reading: Option<Reading>,
}

/// A table, a view or a similar relation.
#[derive(Clone, Debug)]
pub struct Table {
    /// The schema.
    pub schema: String,
    /// The table's name.
    pub name: String,
    /// The columns, in order.
    pub columns: Vec<Column>,
    /// The number of pages, if it can be read by pages.
    pub pages: Option<u64>,
    /// The number of rows when PostgreSQL last counted.
    pub rows: Option<u64>,
    arrow: SchemaRef,
}

/// Returns a name as a quoted SQL identifier.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Table {
    /// Returns the columns, as they are read. Unreadable ones are strings here, and reading them is
    /// an error.
    pub fn arrow_schema(&self) -> &SchemaRef {
        &self.arrow
    }

    /// Returns the table's qualified SQL name.
    pub fn sql_name(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.name))
    }

    /// Returns the SQL expression that reads a column.
    ///
    /// # Errors
    /// [`Error::Type`].
    pub fn sql_of(&self, column: usize) -> Result<String> {
        let Column { name, type_name, reading, .. } = &self.columns[column];
        let Some(reading) = reading else {
            return Err(Error::Type { table: self.sql_name(), column: name.clone(), type_name: type_name.clone() });
        };
        Ok(match reading.cast {
            Some(cast) => format!("{}::{cast}", quoted(name)),
            None => quoted(name),
        })
    }

    pub(crate) async fn of(view: &View, schema: &str, name: &str) -> Result<Self> {
        const RELATION: &str = "SELECT c.oid, c.relkind::text, c.relhassubclass, c.reltuples::float8, \
             CASE WHEN c.relkind IN ('r', 'm') THEN pg_catalog.pg_relation_size(c.oid) ELSE 0 END, \
             pg_catalog.current_setting('block_size')::int8 \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'm', 'v', 'f', 'p')";
        // A domain is read as its base type; a domain over a domain is read as text.
        const COLUMNS: &str = "SELECT a.attname::text, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END, \
             CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END, t.typcategory::text, a.attnotnull, \
             pg_catalog.format_type(a.atttypid, a.atttypmod), coalesce(l.collisdeterministic, true) \
             FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
             LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation \
             WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
        let client = view.client();
        let no_table = || Error::NoTable { place: view.place().into(), schema: schema.into(), name: name.into() };
        // The columns cannot change from here on: this takes the readers' lock, on all relations
        // that it depends on.
        let look = format!("SELECT FROM {}.{} LIMIT 0", quoted(schema), quoted(name));
        client.batch_execute(&look).await.map_err(|e| match e.code().map(|code| code.code()) {
            Some("42P01" | "3F000") => no_table(),
            _ => view.failed(e),
        })?;
        let failed = |e| view.failed(e);
        let relation = client.query_opt(RELATION, &[&schema, &name]).await.map_err(failed)?.ok_or_else(no_table)?;
        let kind: &str = relation.try_get(1).map_err(failed)?;
        let (has_children, rows): (bool, f64) =
            (relation.try_get(2).map_err(failed)?, relation.try_get(3).map_err(failed)?);
        let (bytes, block): (i64, i64) = (relation.try_get(4).map_err(failed)?, relation.try_get(5).map_err(failed)?);
        // Tables that inherit from it have pages of their own.
        let has_pages = WITH_PAGES.contains(&kind) && !has_children;
        let oid: u32 = relation.try_get(0).map_err(failed)?;
        let (mut columns, mut fields) = (Vec::new(), Vec::new());
        for row in client.query(COLUMNS, &[&oid]).await.map_err(failed)? {
            let (name, type_name): (String, String) =
                (row.try_get(0).map_err(failed)?, row.try_get(5).map_err(failed)?);
            let (oid, modifier): (u32, i32) = (row.try_get(1).map_err(failed)?, row.try_get(2).map_err(failed)?);
            let (category, is_not_null): (&str, bool) =
                (row.try_get(3).map_err(failed)?, row.try_get(4).map_err(failed)?);
            let reading = reading(oid, modifier, category);
            let data_type = reading.as_ref().map_or(arrow_schema::DataType::Utf8View, |r| r.data_type.clone());
            // PostgreSQL enforces NOT NULL for tables only.
            fields.push(Field::new(&name, data_type, !(is_not_null && matches!(kind, "r" | "p"))));
            columns.push(Column { name, type_name, is_deterministic: row.try_get(6).map_err(failed)?, reading });
        }
        Ok(Self {
            schema: schema.into(),
            name: name.into(),
            columns,
            pages: has_pages.then_some((bytes / block.max(1)) as u64),
            rows: (rows >= 0.0).then_some(rows as u64),
            arrow: Arc::new(Schema::new(fields)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn names_are_names_whatever_is_in_them() {
        assert_eq!(quoted("Line\"; DROP"), "\"Line\"\"; DROP\"");
    }
}
