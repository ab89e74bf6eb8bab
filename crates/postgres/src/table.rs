//! What a table of PostgreSQL's is, as its catalogs tell within a transaction that has looked into it: nobody changes its columns
//! until that ends.

use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};

use crate::server::View;
use crate::types::{Reading, reading};
use crate::{Error, Result};

/// Kinds of relations that have rows of their own, in pages.
const WITH_PAGES: [&str; 2] = ["r", "m"];

/// A column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What PostgreSQL calls its type.
    pub type_name: String,
    /// Whether texts that are equal have the same bytes: not so under some collations.
    pub is_deterministic: bool,
    /// How it is read; `None` if it cannot be.
    pub(crate) reading: Option<Reading>,
}

/// A table, view or the like.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its columns, in their order.
    pub columns: Vec<Column>,
    /// Pages that it has, if it can be read by these.
    pub pages: Option<u64>,
    /// Rows that it had when PostgreSQL last counted.
    pub rows: Option<u64>,
    arrow: SchemaRef,
}

/// A name as SQL has it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Table {
    /// The columns, as they are read. Those that cannot be are texts here, and are refused when somebody reads them.
    pub fn arrow_schema(&self) -> &SchemaRef {
        &self.arrow
    }

    /// As SQL names it.
    pub fn sql_name(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.name))
    }

    /// What PostgreSQL is asked for to get a column.
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
        // A domain is what it is of; one of a domain is read as text.
        const COLUMNS: &str = "SELECT a.attname::text, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END, \
             CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END, t.typcategory::text, a.attnotnull, \
             pg_catalog.format_type(a.atttypid, a.atttypmod), coalesce(l.collisdeterministic, true) \
             FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
             LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation \
             WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
        let client = view.client();
        let no_table = || Error::NoTable { place: view.place().into(), schema: schema.into(), name: name.into() };
        // Its columns are as they are from here on: this takes the lock that readers have, of all that it stands on.
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
        // Of what others have inherited of it, each has pages of its own.
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
            // Of others than tables nobody sees to it.
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
