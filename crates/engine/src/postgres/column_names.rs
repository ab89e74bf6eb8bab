//! PostgreSQL's names for the unnamed columns of a result: `count`, `text`, `?column?`.
//!
//! Its clients read values by these names. Within the engine, columns are named by the text of
//! their expressions, `count(*)`, so that names are unique. The server for PostgreSQL's clients
//! replaces them by these names, which may repeat. The rules are those of `FigureColname` in
//! PostgreSQL's documentation of its grammar. A column has its own name, a call its function's, and
//! a cast its type's if its argument has no name.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::sql::sqlparser::ast::{
    AccessExpr, DataType, Expr, FunctionArguments, Query, Select, SelectItem, SetExpr, Subscript, TrimWhereField, Value,
};

use crate::identifiers::normal;
use crate::pg_types::types;

/// The name of an expression without a name.
const NONE: &str = "?column?";

/// The names of a result's columns: those before the first `*`, and those after the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ColumnNames {
    before: Vec<String>,
    has_star: bool,
    after: Vec<String>,
}

impl ColumnNames {
    /// Returns the names of a query's columns.
    pub fn of_query(query: &Query) -> Self {
        first_select(&query.body).map(|select| Self::of_items(&select.projection)).unwrap_or_else(|| {
            // VALUES and a bare table keep their names.
            Self { has_star: true, ..Self::default() }
        })
    }

    /// Returns the names of a SELECT or RETURNING list.
    pub fn of_items(items: &[SelectItem]) -> Self {
        let mut names = Self::default();
        for item in items {
            let name = match item {
                SelectItem::UnnamedExpr(expr) => name(expr),
                SelectItem::ExprWithAlias { alias, .. } => normal(alias),
                _ => {
                    names.has_star = true;
                    names.after.clear();
                    continue;
                }
            };
            if names.has_star { names.after.push(name) } else { names.before.push(name) }
        }
        names
    }

    /// Renames the columns of a schema, if they correspond to these names.
    pub fn put(&self, schema: &SchemaRef) -> SchemaRef {
        let (count, known) = (schema.fields().len(), self.before.len() + self.after.len());
        if known == 0 || known > count || (known < count && !self.has_star) {
            return Arc::clone(schema);
        }
        let named = |(at, field): (usize, &Arc<Field>)| {
            let name = self.before.get(at).or_else(|| self.after.get((at + self.after.len()).checked_sub(count)?));
            match name {
                Some(name) if name != field.name() => Arc::new(Field::clone(field).with_name(name)),
                _ => Arc::clone(field),
            }
        };
        let fields: Vec<Arc<Field>> = schema.fields().iter().enumerate().map(named).collect();
        Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
    }
}

/// Returns the SELECT that names the columns of a set operation.
fn first_select(body: &SetExpr) -> Option<&Select> {
    match body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(query) => first_select(&query.body),
        SetExpr::SetOperation { left, .. } => first_select(left),
        _ => None,
    }
}

fn name(expr: &Expr) -> String {
    figured(expr).map_or_else(|| NONE.into(), |(name, _)| name)
}

/// The precedence of a name: a strong one also names a cast around it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strength {
    Weak,
    Strong,
}

fn figured(expr: &Expr) -> Option<(String, Strength)> {
    use Strength::{Strong, Weak};
    let strong = |name: &str| Some((name.to_string(), Strong));
    match expr {
        Expr::Identifier(name) => strong(&normal(name)),
        Expr::CompoundIdentifier(names) => strong(&normal(names.last()?)),
        Expr::CompoundFieldAccess { root, access_chain } => {
            let field = access_chain.iter().rev().find_map(|access| match access {
                AccessExpr::Dot(field) => figured(field),
                AccessExpr::Subscript(Subscript::Index { .. } | Subscript::Slice { .. }) => None,
            });
            field.or_else(|| figured(root))
        }
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => figured(inner),
        Expr::Function(function) => {
            let name = normal(function.name.0.last()?.as_ident()?);
            match (&function.args, name.as_str()) {
                (FunctionArguments::Subquery(_), "array") => strong("array"),
                _ => strong(&name),
            }
        }
        Expr::Cast { expr, data_type, .. } | Expr::Convert { expr, data_type: Some(data_type), .. } => {
            match figured(expr) {
                Some((name, Strong)) => strong(&name),
                _ => Some((type_name(data_type), Weak)),
            }
        }
        Expr::TypedString(typed) => Some((type_name(&typed.data_type), Weak)),
        Expr::Interval(_) => Some(("interval".into(), Weak)),
        Expr::Value(value) => matches!(value.value, Value::Boolean(_)).then(|| ("bool".into(), Weak)),
        Expr::Case { else_result, .. } => match else_result.as_deref().and_then(figured) {
            Some((name, Strong)) => strong(&name),
            _ => Some(("case".into(), Weak)),
        },
        Expr::Exists { negated: false, .. } => strong("exists"),
        Expr::Subquery(query) => match &first_select(&query.body)?.projection[..] {
            [SelectItem::ExprWithAlias { alias, .. }] => strong(&normal(alias)),
            [SelectItem::UnnamedExpr(expr)] => figured(expr),
            _ => None,
        },
        Expr::Array(_) => strong("array"),
        Expr::Tuple(_) => strong("row"),
        Expr::AtTimeZone { .. } => strong("timezone"),
        Expr::Extract { .. } => strong("extract"),
        Expr::Ceil { .. } => strong("ceil"),
        Expr::Floor { .. } => strong("floor"),
        Expr::Position { .. } => strong("position"),
        Expr::Substring { .. } => strong("substring"),
        Expr::Overlay { .. } => strong("overlay"),
        Expr::Trim { trim_where, .. } => strong(match trim_where {
            Some(TrimWhereField::Leading) => "ltrim",
            Some(TrimWhereField::Trailing) => "rtrim",
            Some(TrimWhereField::Both) | None => "btrim",
        }),
        _ => None,
    }
}

/// Returns PostgreSQL's own name of a type: `int4` for INTEGER.
fn type_name(data_type: &DataType) -> String {
    let (written, is_list) = match data_type {
        DataType::Array(_) => (data_type.to_string().trim_end_matches("[]").to_lowercase(), true),
        other => (other.to_string().to_lowercase(), false),
    };
    let written = written.split('(').next().unwrap_or_default().trim().to_string();
    let name = match written.as_str() {
        "char" | "character" => "bpchar".into(),
        "character varying" => "varchar".into(),
        "timestamp with time zone" => "timestamptz".into(),
        other => types::by_name(other).map_or_else(|| other.to_string(), |known| known.name.to_string()),
    };
    // A list has the name of its items.
    if is_list { name.trim_start_matches('_').into() } else { name }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::datatypes::DataType as ArrowType;
    use datafusion::sql::sqlparser::ast::Statement;
    use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    fn of(text: &str) -> ColumnNames {
        let parsed = Parser::parse_sql(&PostgreSqlDialect {}, text).unwrap().pop().unwrap();
        match parsed {
            Statement::Query(query) => ColumnNames::of_query(&query),
            other => panic!("{other}"),
        }
    }

    /// Expected names are PostgreSQL 15.18's (`psql -c "SELECT ..."`).
    #[test]
    fn columns_are_called_as_postgresql_calls_them() {
        for (items, names) in [
            ("count(*), sum(x), max(t.x) AS m", "count|sum|m"),
            (
                "1, 'a', NULL, -x, x + 1, x IS NULL, x = 1, NOT b",
                "?column?|?column?|?column?|?column?|?column?|?column?|?column?|?column?",
            ),
            ("x, t.x, \"X y\", (x), T.B", "x|x|X y|x|b"),
            (
                "x::text, 1::int, '1'::bigint, CAST(1.5 AS numeric(5,2)), (x + 1)::float8, CAST('a' AS varchar(3))",
                "x|int4|int8|numeric|float8|varchar",
            ),
            ("NULL::text, 'a'::char(3), 1::double precision, now()::date, '{}'::int[]", "text|bpchar|float8|now|int4"),
            (
                "date '2020-01-01', timestamp '2020-01-01', interval '1 day', true, false",
                "date|timestamp|interval|bool|bool",
            ),
            ("CASE WHEN b THEN 1 END, CASE WHEN b THEN 1 ELSE x END, CASE WHEN b THEN 1 ELSE 2 END", "case|x|case"),
            (
                "EXISTS (SELECT 1), (SELECT x), (SELECT max(x)), (SELECT 1 AS one), (SELECT 1)",
                "exists|x|max|one|?column?",
            ),
            ("ARRAY[1, 2], ARRAY(SELECT 1), ROW(1, 2), (1, 2)", "array|array|row|row"),
            (
                "coalesce(x, 1), nullif(x, 1), greatest(x, 1), current_date, version()",
                "coalesce|nullif|greatest|current_date|version",
            ),
            (
                "extract(year from d), substring(s from 1), trim(s), trim(leading 'a' from s), position('a' in s)",
                "extract|substring|btrim|ltrim|position",
            ),
            ("row_number() OVER (ORDER BY x), pg_catalog.format_type(1, 2), (a).b, l[1]", "row_number|format_type|b|l"),
        ] {
            let named = of(&format!("SELECT {items} FROM t"));
            assert_eq!(
                named,
                ColumnNames { before: names.split('|').map(Into::into).collect(), ..named.clone() },
                "{items}"
            );
        }
    }

    #[test]
    fn columns_of_a_star_keep_their_names() {
        let schema = |names: &[&str]| -> SchemaRef {
            let field = |name: &&str| Field::new(*name, ArrowType::Int32, true);
            Arc::new(Schema::new(names.iter().map(field).collect::<Vec<_>>()))
        };
        let put = |text: &str, names: &[&str]| {
            let put = of(text).put(&schema(names));
            put.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>().join("|")
        };
        assert_eq!(put("SELECT count(*), *, x FROM t", &["count(*)", "x", "y", "x_1"]), "count|x|y|x");
        assert_eq!(put("SELECT * FROM t", &["x", "x_1"]), "x|x_1");
        assert_eq!(put("SELECT 1 UNION SELECT 2 AS two", &["1"]), "?column?");
        assert_eq!(put("WITH q AS (SELECT 1) SELECT * FROM q", &["1"]), "1");
        assert_eq!(put("VALUES (1)", &["column1"]), "column1");
        // The columns do not correspond to the statement, so none is renamed.
        assert_eq!(put("SELECT unnest(x), y FROM t", &["a", "b", "c"]), "a|b|c");
    }
}
