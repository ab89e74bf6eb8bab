//! `SELECT EXISTS (SELECT ..)`, `SELECT CASE WHEN x IN (SELECT ..) THEN ..`: subquery conditions as
//! values.
//!
//! DataFusion supports both as conditions, of which it makes joins. As values they count rows:
//!
//! ```text
//! EXISTS (SELECT .. WHERE c)
//!     (SELECT count(*) .. WHERE c) > 0
//!
//! x IN (SELECT y ..)
//!     CASE WHEN (SELECT count(*) FROM (SELECT y ..) AS r(v) WHERE v = x) > 0 THEN TRUE
//!          WHEN (SELECT count(*) FROM (SELECT y ..) AS r(v) WHERE v IS NULL) > 0 THEN NULL
//!          WHEN x IS NULL AND (SELECT count(*) FROM (SELECT y ..) AS r(v)) > 0 THEN NULL
//!          ELSE FALSE END
//!
//! (x, y) IN (SELECT ..)
//!     CASE WHEN (SELECT count(*) FROM (SELECT ..) AS r(v, w) WHERE v = x AND w = y) > 0 THEN TRUE
//!          WHEN (SELECT count(*) FROM (SELECT ..) AS r(v, w) WHERE (v = x AND w = y) IS NULL) > 0
//!          THEN NULL ELSE FALSE END
//! ```
//!
//! ANY and ALL of rows are rewritten likewise. This applies to rows in conditions as well:
//! DataFusion compares structs there, in which NULL is an ordinary part.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CaseWhen, Expr, GroupByExpr, OrderBy, OrderByKind, Query, Select, SelectItem, SetExpr, SetOperator,
    TableFactor, UnaryOperator, Value, VisitMut, VisitorMut, visit_expressions,
};

use super::correlated_subqueries::ROWS;
use super::quantified::ANY_EQ;
use super::subquery_lists::ARRAY_OF;
use super::{expressions, quantified, row_values};

/// Rewrites a SELECT after its columns are named, and before its parts.
pub(super) fn rewrite(select: &mut Select) {
    for item in &mut select.projection {
        if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
            as_values(expr);
        }
    }
    // GROUP BY keys are looked up in the SELECT list.
    if let GroupByExpr::Expressions(keys, _) = &mut select.group_by {
        keys.iter_mut().for_each(as_values);
    }
}

/// Rewrites the keys of a query's order.
pub(super) fn rewrite_order(query: &mut Query) {
    if let Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }) = &mut query.order_by {
        keys.iter_mut().for_each(|key| as_values(&mut key.expr));
    }
}

/// Rewrites comparisons of a row with the rows of a subquery, and subqueries in the value of `IN
/// (SELECT ..)`.
pub(super) fn rewrite_rows(expr: &mut Expr) {
    match expr {
        Expr::InSubquery { expr: value, .. } if row_values::row(value).is_none() => as_values(value),
        Expr::InSubquery { .. } | Expr::AnyOp { .. } | Expr::AllOp { .. } => {
            if let Some(value) = row_among(expr) {
                *expr = value;
            }
        }
        _ => {}
    }
}

fn as_values(expr: &mut Expr) {
    let _ = expr.visit(&mut Values { depth: 0 });
}

/// Rewrites the conditions of an expression, but not those within its subqueries.
struct Values {
    depth: usize,
}

impl VisitorMut for Values {
    type Break = std::convert::Infallible;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        if let Some(value) = row_among(expr) {
            *expr = value;
            return ControlFlow::Continue(());
        }
        quantified::rewrite_to_in(expr);
        let value = match expr {
            Expr::Exists { subquery, negated } => has_rows(subquery).map(|has_rows| (has_rows, *negated)),
            Expr::InSubquery { expr, subquery, negated } => is_among(expr, subquery).map(|value| (value, *negated)),
            _ => None,
        };
        if let Some((value, negated)) = value {
            *expr = if negated { Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(value) } } else { value };
        }
        ControlFlow::Continue(())
    }
}

fn has_rows(subquery: &Query) -> Option<Expr> {
    // Either side has rows.
    if let SetExpr::SetOperation { op: SetOperator::Union, left, right, .. } = subquery.body.as_ref()
        && subquery.limit_clause.is_none()
        && subquery.fetch.is_none()
    {
        let part =
            |body: &SetExpr| has_rows(&Query { body: Box::new(body.clone()), order_by: None, ..subquery.clone() });
        let (left, right) = (Box::new(part(left)?), Box::new(part(right)?));
        return Some(Expr::Nested(Box::new(Expr::BinaryOp { left, op: BinaryOperator::Or, right })));
    }
    if let Some(counted) = counted(subquery) {
        return Some(is_positive(counted));
    }
    let mut count = super::template(&format!("SELECT count(*) FROM (SELECT 1) AS {ROWS}")).ok()?;
    *derived(&mut count)?.0 = subquery.clone();
    Some(is_positive(*count))
}

/// Returns the query with a count of its rows, if only its conditions determine their number.
fn counted(subquery: &Query) -> Option<Query> {
    let SetExpr::Select(select) = subquery.body.as_ref() else { return None };
    let is_plain = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
            matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_))
        }
        SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => true,
        _ => false,
    };
    let is_ungrouped = matches!(&select.group_by, GroupByExpr::Expressions(keys, modifiers) if keys.is_empty() && modifiers.is_empty());
    let is_simple = is_ungrouped
        && select.distinct.is_none()
        && select.having.is_none()
        && select.qualify.is_none()
        && subquery.limit_clause.is_none()
        && subquery.fetch.is_none()
        && select.projection.iter().all(is_plain);
    if !is_simple {
        return None;
    }
    let count = super::template("SELECT count(*)").ok()?;
    let SetExpr::Select(counts) = *count.body else { return None };
    let mut counted = subquery.clone();
    counted.order_by = None;
    if let SetExpr::Select(select) = counted.body.as_mut() {
        select.projection = counts.projection;
    }
    Some(counted)
}

/// Rewrites the comparison of a row with the rows of a subquery.
fn row_among(expr: &Expr) -> Option<Expr> {
    let (left, op, subquery, is_all) = match expr {
        Expr::InSubquery { expr: left, subquery, negated } => {
            let op = if *negated { BinaryOperator::NotEq } else { BinaryOperator::Eq };
            (left, op, subquery, *negated)
        }
        Expr::AnyOp { left, compare_op, right, .. } => match right.as_ref() {
            Expr::Subquery(subquery) => (left, compare_op.clone(), subquery, false),
            _ => return None,
        },
        Expr::AllOp { left, compare_op, right } => match right.as_ref() {
            Expr::Subquery(subquery) => (left, compare_op.clone(), subquery, true),
            _ => return None,
        },
        _ => return None,
    };
    let row = row_values::row(left)?;
    let not = |expr: Expr| Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(nested(expr)) };
    let counted = |is_so: &dyn Fn(Expr) -> Expr| {
        let found = row_values::rows_where(&row, &op, subquery, is_so)?;
        let mut count = super::template("SELECT count(*)").ok()?;
        if let (SetExpr::Select(count), SetExpr::Select(found)) = (count.body.as_mut(), *found.body) {
            let projection = std::mem::take(&mut count.projection);
            **count = Select { projection, ..*found };
        }
        Some(is_positive(*count))
    };
    let decides = if is_all { counted(&not)? } else { counted(&|condition| condition)? };
    let unknown = counted(&|condition| Expr::IsNull(Box::new(nested(condition))))?;
    Some(nested(cases(vec![(decides, Value::Boolean(!is_all)), (unknown, Value::Null)], Value::Boolean(is_all))))
}

fn nested(expr: Expr) -> Expr {
    Expr::Nested(Box::new(expr))
}

fn cases(whens: Vec<(Expr, Value)>, otherwise: Value) -> Expr {
    let when = |(condition, result): (Expr, Value)| CaseWhen { condition, result: Expr::Value(result.into()) };
    Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: whens.into_iter().map(when).collect(),
        else_result: Some(Box::new(Expr::Value(otherwise.into()))),
    }
}

/// The functions that return another value in each call.
const RANDOM: [&str; 3] = ["gen_random_uuid", "random", "uuid"];

fn is_random(value: &Expr) -> bool {
    let found = visit_expressions(value, |expr| match expr {
        Expr::Function(call) if RANDOM.iter().any(|name| call.name.to_string().eq_ignore_ascii_case(name)) => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

fn is_among(value: &Expr, subquery: &Query) -> Option<Expr> {
    if row_values::row(value).is_some() {
        return None;
    }
    // The value is evaluated once.
    if is_random(value) {
        let list = expressions::call(ARRAY_OF, vec![Expr::Subquery(Box::new(subquery.clone()))]);
        return Some(expressions::call(ANY_EQ, vec![value.clone(), list]));
    }
    let count = |condition: &str| {
        let text = format!("SELECT count(*) FROM (SELECT 1) AS {ROWS}(__value) WHERE {condition}");
        let mut count = super::template(&text).ok()?;
        *derived(&mut count)?.0 = subquery.clone();
        Some(count)
    };
    let mut equal = count(&format!("{ROWS}.__value = 0"))?;
    if let Some(Expr::BinaryOp { right, .. }) = derived(&mut equal)?.1 {
        **right = Expr::Nested(Box::new(value.clone()));
    }
    let has_unknown = is_positive(*count(&format!("{ROWS}.__value IS NULL"))?);
    let is_unknown = Expr::BinaryOp {
        left: Box::new(Expr::IsNull(Box::new(Expr::Nested(Box::new(value.clone()))))),
        op: BinaryOperator::And,
        right: Box::new(is_positive(*count("TRUE")?)),
    };
    let whens =
        vec![(is_positive(*equal), Value::Boolean(true)), (has_unknown, Value::Null), (is_unknown, Value::Null)];
    Some(cases(whens, Value::Boolean(false)))
}

/// Returns the subquery in a template of ours, and its condition.
fn derived(query: &mut Query) -> Option<(&mut Query, Option<&mut Expr>)> {
    let SetExpr::Select(select) = query.body.as_mut() else { return None };
    let [table] = select.from.as_mut_slice() else { return None };
    let TableFactor::Derived { subquery, .. } = &mut table.relation else { return None };
    Some((subquery.as_mut(), select.selection.as_mut()))
}

fn is_positive(count: Query) -> Expr {
    let zero = Expr::Value(Value::Number("0".into(), false).into());
    let op = BinaryOperator::Gt;
    let compared = Expr::BinaryOp { left: Box::new(Expr::Subquery(Box::new(count))), op, right: Box::new(zero) };
    Expr::Nested(Box::new(compared))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn rows_are_there_or_not() {
        // Expected values are PostgreSQL 15.18's.
        let table = "WITH t(i, a) AS (VALUES (1, 1), (2, NULL), (3, 2), (4, 7))";
        for (value, expected) in [
            ("EXISTS (SELECT 1)", "true true true true"),
            ("NOT EXISTS (SELECT 1 WHERE FALSE)", "true true true true"),
            ("EXISTS (SELECT FROM t AS u WHERE u.i = t.a)", "true false true false"),
            ("CASE WHEN EXISTS (SELECT * FROM t AS u WHERE u.i = t.a) THEN 'y' ELSE 'n' END", "y n y n"),
            ("EXISTS (SELECT max(u.i) FROM t AS u WHERE u.i > 9)", "true true true true"),
            ("EXISTS (SELECT max(u.i) FROM t AS u WHERE u.i = t.a)", "true true true true"),
            ("EXISTS (SELECT u.a FROM t AS u WHERE u.i > 9 GROUP BY u.a)", "false false false false"),
            (
                "EXISTS (SELECT 1 FROM t AS u WHERE u.i = t.a UNION SELECT 2 FROM t AS u WHERE u.a = t.i)",
                "true true true false",
            ),
            ("EXISTS (SELECT 1 FROM t LIMIT 0)", "false false false false"),
            ("i IN (SELECT a FROM t)", "true true NULL NULL"),
            ("i NOT IN (SELECT a FROM t WHERE a IS NOT NULL)", "false false true true"),
            ("a IN (SELECT i FROM t)", "true NULL true false"),
            ("a IN (SELECT i FROM t WHERE FALSE)", "false false false false"),
            ("count(*) OVER () > 0 AND EXISTS (SELECT 1)", "true true true true"),
        ] {
            let query = format!("{table} SELECT coalesce(CAST({value} AS VARCHAR), 'NULL') FROM t ORDER BY i");
            assert_eq!(rows(&query).await.join(" "), expected, "{value}");
        }
    }
}
