//! Rewrites queries of PostgreSQL's clients over its catalogs to SQL that DataFusion understands.
//!
//! - `pg_catalog.` before the name of a function, a type or an operator is removed:
//!   `OPERATOR(pg_catalog.~)` is `~`. `COLLATE` is removed, because all strings are compared by
//!   their bytes.
//! - `'t'::regclass` is the number of a relation, `oid::regclass` its name; `oid`, `name` and
//!   `"char"` are PostgreSQL's types.
//! - `ARRAY(SELECT ..)` is an aggregate.
//! - A query without aggregates of a catalog that never has a row ([`catalogs::is_empty`]) has no
//!   rows. It becomes `SELECT NULL, .. WHERE FALSE`, and DataFusion need not understand the rest of
//!   it.
//! - A scalar subquery over catalogs is correlated by columns that are unique there. DataFusion
//!   does not know that, so the subquery selects the least of possibly several values.

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, DataType, Expr, Function, GroupByExpr, JoinOperator, ObjectNamePart, Query, Select,
    SelectItem, SetExpr, TableFactor, TableWithJoins, Value,
};

use super::expressions::call;
use super::functions;
use crate::identifiers::normal;
use crate::postgres::functions::{REGCLASS_IN, REGCLASS_OUT, REGTYPE_IN};
use crate::postgres::{SCHEMA, catalogs};

/// The functions that aggregate several rows to one.
const AGGREGATES: [&str; 10] =
    ["count", "sum", "min", "max", "avg", "array_agg", "string_agg", "bool_and", "bool_or", "json_agg"];

/// The names that are calls without parentheses.
const BARE: [&str; 3] = ["current_schema", "session_user", "current_role"];

/// Rewrites a query before its parts.
pub(super) fn rewrite_query(query: &mut Query) {
    let SetExpr::Select(select) = query.body.as_mut() else { return };
    if has_no_rows(select) {
        query.order_by = None;
        query.limit_clause = None;
    }
}

/// Rewrites a SELECT before its parts.
pub(super) fn rewrite_select(select: &mut Select) {
    if has_no_rows(select) {
        empty(select);
    }
}

/// Rewrites a table function.
pub(super) fn rewrite_table(table: &mut TableFactor) {
    if let TableFactor::Table { name, args: Some(_), .. } = table
        && let [ObjectNamePart::Identifier(schema), _] = name.0.as_slice()
        && normal(schema) == SCHEMA
    {
        name.0.remove(0);
    }
}

/// Returns whether a SELECT has no rows because an input of its inner joins has none.
fn has_no_rows(select: &Select) -> bool {
    let is_inner = |operator: &JoinOperator| {
        matches!(operator, JoinOperator::Join(_) | JoinOperator::Inner(_) | JoinOperator::CrossJoin(_))
    };
    let has_empty = select.from.iter().any(|table| {
        let joined = table.joins.iter().filter(|join| is_inner(&join.join_operator)).map(|join| &join.relation);
        // A right or full join has rows of its own.
        let is_all = table.joins.iter().all(|join| {
            is_inner(&join.join_operator)
                || matches!(join.join_operator, JoinOperator::Left(_) | JoinOperator::LeftOuter(_))
        });
        is_all && std::iter::once(&table.relation).chain(joined).any(is_empty_catalog)
    });
    has_empty && !aggregates(select)
}

fn is_empty_catalog(table: &TableFactor) -> bool {
    catalog(table).is_some_and(|name| catalogs::is_empty(&name))
}

/// Returns the name of a table if it may be that of a catalog.
fn catalog(table: &TableFactor) -> Option<String> {
    let TableFactor::Table { name, args: None, .. } = table else { return None };
    let parts: Vec<String> = name.0.iter().filter_map(ObjectNamePart::as_ident).map(normal).collect();
    match parts.as_slice() {
        [schema, name] if schema == SCHEMA => Some(name.clone()),
        // No user's table has such a name.
        [name] if catalogs::schema(name).is_some() => Some(name.clone()),
        _ => None,
    }
}

fn aggregates(select: &Select) -> bool {
    let is_grouped = !matches!(&select.group_by, GroupByExpr::Expressions(all, _) if all.is_empty());
    let has_star = select
        .projection
        .iter()
        .any(|item| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..)));
    let calls = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => calls_aggregate(expr),
        _ => false,
    };
    is_grouped || has_star || select.having.is_some() || select.projection.iter().any(calls)
}

fn calls_aggregate(expr: &Expr) -> bool {
    functions::calls(expr, &|name, _| AGGREGATES.contains(&name))
}

fn null() -> Expr {
    Expr::Value(Value::Null.into())
}

fn empty(select: &mut Select) {
    for item in &mut select.projection {
        let alias = match item {
            SelectItem::ExprWithAlias { alias, .. } => Some(alias.clone()),
            SelectItem::UnnamedExpr(Expr::Identifier(name)) => Some(name.clone()),
            SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => parts.last().cloned(),
            _ => None,
        };
        *item = match alias {
            Some(alias) => SelectItem::ExprWithAlias { expr: null(), alias },
            None => SelectItem::UnnamedExpr(null()),
        };
    }
    select.from.clear();
    select.selection = Some(Expr::Value(Value::Boolean(false).into()));
}

/// Rewrites a scalar subquery before its parts.
pub(super) fn rewrite_scalar(expr: &mut Expr) {
    let Expr::Subquery(query) = expr else { return };
    if query.limit_clause.is_some() || query.with.is_some() {
        return;
    }
    let SetExpr::Select(select) = query.body.as_mut() else { return };
    let of_catalogs = |table: &TableWithJoins| {
        catalog(&table.relation).is_some() && table.joins.iter().all(|join| catalog(&join.relation).is_some())
    };
    if select.from.is_empty() || !select.from.iter().all(of_catalogs) || aggregates(select) || has_no_rows(select) {
        return;
    }
    if let [SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }] = select.projection.as_mut_slice() {
        let inner = std::mem::replace(expr, null());
        *expr = call("min", vec![inner]);
    }
}

/// Rewrites an expression after its parts.
pub(super) fn rewrite(expr: &mut Expr) {
    match expr {
        Expr::Function(function) => rewrite_function(function),
        Expr::Collate { expr: inner, .. } => {
            let inner = std::mem::replace(inner.as_mut(), null());
            *expr = inner;
            return;
        }
        Expr::BinaryOp { op, left, right } => {
            rewrite_operator(op);
            if let Some(is_there) = has_function(left, op, right) {
                *expr = is_there;
                return;
            }
        }
        Expr::Identifier(name) if name.quote_style.is_none() && BARE.contains(&normal(name).as_str()) => {
            *expr = call(&normal(name), Vec::new());
            return;
        }
        _ => {}
    }
    rewrite_cast(expr);
}

/// Rewrites `typreceive <> 0`: the functions of types are represented by their names here.
fn has_function(column: &Expr, op: &BinaryOperator, number: &Expr) -> Option<Expr> {
    const FUNCTIONS: [&str; 4] = ["typinput", "typoutput", "typreceive", "typsend"];
    let name = match column {
        Expr::Identifier(name) => name,
        Expr::CompoundIdentifier(parts) => parts.last()?,
        _ => return None,
    };
    let is_zero = matches!(number, Expr::Value(value) if matches!(&value.value, Value::Number(text, _) if text == "0"));
    if !is_zero || !FUNCTIONS.contains(&normal(name).as_str()) {
        return None;
    }
    match op {
        BinaryOperator::NotEq => Some(Expr::IsNotNull(Box::new(column.clone()))),
        BinaryOperator::Eq => Some(Expr::IsNull(Box::new(column.clone()))),
        _ => None,
    }
}

fn rewrite_function(function: &mut Function) {
    if let [ObjectNamePart::Identifier(schema), _] = function.name.0.as_slice()
        && normal(schema) == SCHEMA
    {
        function.name.0.remove(0);
    }
}

fn rewrite_operator(op: &mut BinaryOperator) {
    let BinaryOperator::PGCustomBinaryOperator(parts) = op else { return };
    let [schema, name] = parts.as_slice() else { return };
    if !schema.eq_ignore_ascii_case(SCHEMA) {
        return;
    }
    *op = match name.as_str() {
        "~" => BinaryOperator::PGRegexMatch,
        "~*" => BinaryOperator::PGRegexIMatch,
        "!~" => BinaryOperator::PGRegexNotMatch,
        "!~*" => BinaryOperator::PGRegexNotIMatch,
        "=" => BinaryOperator::Eq,
        "<>" => BinaryOperator::NotEq,
        "<" => BinaryOperator::Lt,
        ">" => BinaryOperator::Gt,
        "<=" => BinaryOperator::LtEq,
        ">=" => BinaryOperator::GtEq,
        "||" => BinaryOperator::StringConcat,
        "+" => BinaryOperator::Plus,
        "-" => BinaryOperator::Minus,
        "*" => BinaryOperator::Multiply,
        "/" => BinaryOperator::Divide,
        _ => return,
    };
}

fn rewrite_cast(expr: &mut Expr) {
    let Expr::Cast { expr: inner, data_type, .. } = expr else { return };
    let Some(name) = type_name(data_type) else { return };
    let is_text = matches!(inner.as_ref(), Expr::Value(value) if matches!(value.value, Value::SingleQuotedString(_)));
    let is_call = matches!(inner.as_ref(), Expr::Function(function) if is_of(function, REGCLASS_IN));
    let mut take = || std::mem::replace(inner.as_mut(), null());
    *expr = match name.as_str() {
        "regclass" if is_text => call(REGCLASS_IN, vec![take()]),
        "regclass" if is_call => take(),
        "regclass" => call(REGCLASS_OUT, vec![take()]),
        "regtype" if is_text => call(REGTYPE_IN, vec![take()]),
        "regtype" => call("format_type", vec![take(), null()]),
        "oid" | "xid" | "cid" | "regnamespace" | "regrole" => cast(take(), DataType::BigInt(None)),
        // A function is represented by its name.
        "regproc" => {
            let mut name = take();
            if let Expr::Value(value) = &mut name
                && let Value::SingleQuotedString(text) = &mut value.value
                && let Some(bare) = text.strip_prefix("pg_catalog.")
            {
                *text = bare.to_string();
            }
            cast(name, DataType::Varchar(None))
        }
        "name" | "char" | "text" | "information_schema.sql_identifier" => cast(take(), DataType::Varchar(None)),
        "int2" => cast(take(), DataType::SmallInt(None)),
        "int4" => cast(take(), DataType::Integer(None)),
        "int8" => cast(take(), DataType::BigInt(None)),
        "bool" => cast(take(), DataType::Boolean),
        "float8" => cast(take(), DataType::Double(datafusion::sql::sqlparser::ast::ExactNumberInfo::None)),
        _ => return,
    };
}

fn is_of(function: &Function, name: &str) -> bool {
    matches!(function.name.0.as_slice(), [ObjectNamePart::Identifier(own)] if own.value == name)
}

/// Returns the name of a type that SQL lacks, or has only without its schema.
fn type_name(data_type: &DataType) -> Option<String> {
    match data_type {
        DataType::Custom(name, modifiers) if modifiers.is_empty() => {
            let parts: Vec<String> = name.0.iter().filter_map(ObjectNamePart::as_ident).map(normal).collect();
            match parts.as_slice() {
                [schema, name] if schema == SCHEMA => Some(name.clone()),
                [name] => Some(name.clone()).filter(|name| name != "bool"),
                _ => None,
            }
        }
        DataType::Regclass => Some("regclass".into()),
        _ => None,
    }
}

fn cast(expr: Expr, data_type: DataType) -> Expr {
    Expr::Cast { kind: CastKind::Cast, expr: Box::new(expr), data_type, array: false, format: None }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::rewritten;

    #[test]
    fn what_clients_write_is_put_in_other_words() {
        for (text, meant) in [
            ("SELECT 1 AS x WHERE t.typreceive != 0", "SELECT 1 AS x WHERE t.typreceive IS NOT NULL"),
            ("SELECT CAST('pg_catalog.array_in' AS regproc) AS x", "SELECT CAST('array_in' AS VARCHAR) AS x"),
            ("SELECT pg_catalog.version() AS v", "SELECT version() AS v"),
            (
                "SELECT a FROM t WHERE a OPERATOR(pg_catalog.~) '^(t)$' COLLATE pg_catalog.default",
                "SELECT a FROM t WHERE a ~ '^(t)$'",
            ),
            ("SELECT 't'::regclass AS o", "SELECT __pg_regclass_in('t') AS o"),
            ("SELECT a::pg_catalog.regclass AS o FROM t", "SELECT __pg_regclass_out(a) AS o FROM t"),
            ("SELECT 5::oid AS o", "SELECT CAST(5 AS BIGINT) AS o"),
            (
                "SELECT i.indexrelid, f(x[1]) AS b FROM pg_class c JOIN pg_catalog.pg_index i ON c.oid = i.indrelid ORDER BY 1",
                "SELECT NULL AS indexrelid, NULL AS b WHERE false",
            ),
        ] {
            assert_eq!(rewritten(text), meant);
        }
        // These queries have rows.
        for text in [
            "SELECT count(*) AS n FROM pg_index",
            "SELECT c.oid FROM pg_class c LEFT JOIN pg_index i ON c.oid = i.indrelid",
        ] {
            assert!(rewritten(text).contains("pg_index"), "{text}");
        }
    }
}
