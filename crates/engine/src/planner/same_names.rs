//! Aggregates and groups to which DataFusion would give the same name.
//!
//! DataFusion names them by the expression without its parentheses and casts, and distinguishes
//! columns by name. It refuses `sum(x), sum(CAST(x AS DOUBLE))`, `sum(a * (b + c)), sum(a * b +
//! c)`, `GROUP BY t, t::date` and `GROUP BY CAST(t AS DATE), CAST(t AS TIME)`. In such a case the
//! original text becomes part of the expression: `CASE WHEN 'CAST(x AS DOUBLE)' IS NOT NULL THEN
//! CAST(x AS DOUBLE) END`. The condition is always true, and the simplifier removes it.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion::execution::SessionStateDefaults;
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    CaseWhen, CastKind, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr, Ident,
    ObjectNamePart, OrderBy, OrderByKind, Query, Select, SelectItem, SetExpr, Value, visit_expressions_mut,
};

use super::functions;
use crate::identifiers::normal;

/// Rewrites the SELECT of a query with its ORDER BY.
pub(super) fn rewrite_query(query: &mut Query) {
    if let SetExpr::Select(select) = query.body.as_mut() {
        tell_apart(select, query.order_by.as_mut());
    }
}

/// Rewrites a SELECT on one side of a set operation. Does not change one that `rewrite_query` has
/// rewritten.
pub(super) fn rewrite(select: &mut Select) {
    tell_apart(select, None);
}

fn tell_apart(select: &mut Select, mut order: Option<&mut OrderBy>) {
    let mut found = groups(select);
    for_each(select, order.as_deref_mut(), &mut |expr| {
        if value(expr).is_some() {
            found.push(Names::of(expr));
        }
    });
    let mut first_written: HashMap<String, String> = HashMap::new();
    let mut repeated = HashSet::new();
    for names in found {
        let first = first_written.entry(names.bare).or_insert_with(|| names.written.clone());
        if *first != names.written {
            repeated.insert(names.written);
        }
    }
    if repeated.is_empty() {
        return;
    }
    for_each(select, order, &mut |expr| {
        let written = Names::of(expr).written;
        if repeated.contains(&written) {
            match value(expr) {
                Some(value) => mark(value, written),
                None => mark(expr, written),
            }
        }
    });
}

/// The names of an expression.
struct Names {
    /// DataFusion's name: without parentheses and casts.
    bare: String,
    written: String,
}

impl Names {
    fn of(expr: &Expr) -> Self {
        let mut expr = expr.clone();
        without_table(&mut expr);
        let _ = visit_expressions_mut(&mut expr, |expr| {
            match expr {
                Expr::Cast { kind: kind @ CastKind::DoubleColon, .. } => *kind = CastKind::Cast,
                Expr::Identifier(name) => *name = Ident::with_quote('"', normal(name)),
                Expr::CompoundIdentifier(names) => {
                    names.iter_mut().for_each(|name| *name = Ident::with_quote('"', normal(name)));
                }
                Expr::Function(call) => call.name.0.iter_mut().for_each(|part| {
                    if let ObjectNamePart::Identifier(name) = part {
                        *name = Ident::new(normal(name));
                    }
                }),
                _ => {}
            }
            ControlFlow::<()>::Continue(())
        });
        let written = expr.to_string();
        let _ = visit_expressions_mut(&mut expr, |expr| {
            while let Expr::Nested(inner) | Expr::Cast { expr: inner, .. } = expr {
                *expr = inner.as_ref().clone();
            }
            ControlFlow::<()>::Continue(())
        });
        Self { bare: expr.to_string(), written }
    }
}

/// Removes the table of a column, also below a cast: `t.a` and `a` are one column.
fn without_table(expr: &mut Expr) {
    match expr {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => without_table(inner),
        Expr::CompoundIdentifier(names) => {
            if let Some(name) = names.pop() {
                *expr = Expr::Identifier(name);
            }
        }
        _ => {}
    }
}

/// Returns the keys of grouping sets.
fn keys(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Tuple(inner) => inner.iter().flat_map(keys).collect(),
        Expr::Rollup(sets) | Expr::Cube(sets) | Expr::GroupingSets(sets) => {
            sets.iter().flatten().flat_map(keys).collect()
        }
        other => vec![other],
    }
}

/// Returns the names of the keys of GROUP BY, with numbers and aliases resolved. Columns come
/// first, so that they keep their names.
fn groups(select: &Select) -> Vec<Names> {
    let output = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr.clone()),
        _ => None,
    };
    let meant = |expr: &Expr| match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => {
                let index = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                index.and_then(|index| select.projection.get(index)).and_then(output)
            }
            _ => None,
        },
        Expr::Identifier(name) => {
            let aliased = select.projection.iter().find_map(|item| match item {
                SelectItem::ExprWithAlias { expr, alias } if normal(alias) == normal(name) => Some(expr.clone()),
                _ => None,
            });
            aliased.or_else(|| Some(expr.clone()))
        }
        other => Some(other.clone()),
    };
    let groups: Vec<Expr> = match &select.group_by {
        GroupByExpr::Expressions(exprs, _) => exprs.iter().flat_map(keys).filter_map(meant).collect(),
        GroupByExpr::All(_) => select.projection.iter().filter_map(output).filter(|expr| !has_value(expr)).collect(),
    };
    let is_column = |expr: &&Expr| matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
    let (columns, others): (Vec<&Expr>, Vec<&Expr>) = groups.iter().partition(is_column);
    columns.into_iter().chain(others).map(Names::of).collect()
}

fn has_value(expr: &Expr) -> bool {
    let mut expr = expr.clone();
    let found = visit_expressions_mut(&mut expr, |expr| match value(expr) {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// Returns the first argument of an aggregate or window function.
fn value(expr: &mut Expr) -> Option<&mut Expr> {
    let Expr::Function(Function { name, args, over, within_group, .. }) = expr else { return None };
    let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return None };
    // The argument of `percentile_cont(0.5) WITHIN GROUP (..)` must stay a literal.
    if !within_group.is_empty() || !(over.is_some() || AGGREGATES.contains(functions::meant(&normal(name)))) {
        return None;
    }
    match args {
        FunctionArguments::List(list) => match list.args.first_mut() {
            Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(value))) => Some(value),
            _ => None,
        },
        _ => None,
    }
}

/// Returns whether a function of that name is an aggregate.
pub(super) fn is_aggregate(name: &str) -> bool {
    AGGREGATES.contains(functions::meant(name))
}

static AGGREGATES: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let functions = SessionStateDefaults::default_aggregate_functions();
    functions.iter().flat_map(|f| f.aliases().iter().cloned().chain([f.name().to_string()])).collect()
});

fn mark(expr: &mut Expr, written: String) {
    let inner = std::mem::replace(expr, Expr::Value(Value::Null.into()));
    let condition = Expr::IsNotNull(Box::new(Expr::Value(Value::SingleQuotedString(written).into())));
    *expr = Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: vec![CaseWhen { condition, result: inner }],
        else_result: None,
    };
}

/// Calls `act` on every expression that is planned over the groups, innermost first.
fn for_each(select: &mut Select, order: Option<&mut OrderBy>, act: &mut dyn FnMut(&mut Expr)) {
    let mut visit = |expr: &mut Expr| {
        let _ = visit_expressions_mut(expr, |expr| {
            act(expr);
            ControlFlow::<()>::Continue(())
        });
    };
    for item in &mut select.projection {
        if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
            visit(expr);
        }
    }
    if let GroupByExpr::Expressions(exprs, _) = &mut select.group_by {
        exprs.iter_mut().for_each(&mut visit);
    }
    select.having.iter_mut().for_each(&mut visit);
    select.qualify.iter_mut().for_each(&mut visit);
    if let Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }) = order {
        keys.iter_mut().for_each(|key| visit(&mut key.expr));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::{rewritten, rows};

    #[test]
    fn what_is_different_by_itself_stays() {
        for text in [
            "SELECT sum(a) AS s, sum(b) AS t, SUM(a) AS u FROM t",
            "SELECT count(*) AS n, count(a) AS m FROM t GROUP BY a, b + 1",
            "SELECT date_trunc('day', CAST(a AS DATE)) AS d, date_trunc('day', a) AS e FROM t",
        ] {
            assert_eq!(rewritten(text), text);
        }
    }

    #[tokio::test]
    async fn same_names_are_told_apart() {
        let table = "(VALUES (1, 2, 1.25), (2, 3, 2.25), (2, 3, 0.25)) AS t(a, b, x)";
        for (query, expected) in [
            ("SELECT sum(x), sum(CAST(x AS BIGINT)), sum(CAST(x AS REAL)) FROM t", "3.75 3 3.75"),
            ("SELECT sum(a * (b + 1)), sum(a * b + 1) FROM t", "19 17"),
            ("SELECT sum(a * (b + 1)) AS p FROM t HAVING sum(a * b + 1) > 16 ORDER BY sum(a * b + 1)", "19"),
            (
                "SELECT CAST(x AS BIGINT), CAST(x AS VARCHAR), count(*) FROM t GROUP BY 1, 2 ORDER BY 2",
                "0 0.25 1,1 1.25 1,2 2.25 1",
            ),
            (
                "SELECT CAST(x AS BIGINT) AS i, CAST(x AS DOUBLE) AS f FROM t GROUP BY i, f ORDER BY f",
                "0 0.25,1 1.25,2 2.25",
            ),
            (
                "SELECT CAST(x AS BIGINT), CAST(x AS DOUBLE), max(x) FROM t GROUP BY ALL ORDER BY 3",
                "0 0.25 0.25,1 1.25 1.25,2 2.25 2.25",
            ),
            ("SELECT a * (b + 1), sum(a) FROM t GROUP BY a * (b + 1), a * b + 1 ORDER BY a * b + 1", "3 1,8 4"),
            ("SELECT sum(x) OVER (), sum(CAST(x AS BIGINT)) OVER () FROM t LIMIT 1", "3.75 3"),
            ("SELECT CAST(x AS BIGINT) AS i, count(*) FROM t GROUP BY x, x::bigint ORDER BY x", "0 1,1 1,2 1"),
            ("SELECT a, a::bigint, count(*) FROM t GROUP BY a, a::bigint ORDER BY a::bigint DESC", "2 2 2,1 1 1"),
            ("SELECT a, a::varchar AS s, sum(a) FROM t GROUP BY 1, 2 ORDER BY 2", "1 1 1,2 2 4"),
            ("SELECT a, a::varchar AS s, sum(a) FROM t GROUP BY a, s ORDER BY s", "1 1 1,2 2 4"),
            ("SELECT a::varchar, t.a::bigint FROM t GROUP BY 1, 2 HAVING a::bigint > 1 ORDER BY 1", "2 2"),
            (
                "SELECT a::bigint AS i, t.a, count(*) FROM t WHERE b > 2 GROUP BY ROLLUP (a::bigint, t.a) ORDER BY 1, 2",
                "2 2 2,2 NULL 2,NULL NULL 2",
            ),
        ] {
            let query = query.replace("FROM t", &format!("FROM {table}"));
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
    }
}
