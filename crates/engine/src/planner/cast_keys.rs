//! `GROUP BY t, t::date`: a cast that is a key has a name of its own.
//!
//! DataFusion (55.2) calls a cast as what it casts, and refuses two keys of one name. So where a key is a cast, and another key is
//! what it casts, or another cast of it, the cast goes through a function that gives it back and is called by it, wherever the query
//! has it.

use std::collections::HashSet;
use std::ops::ControlFlow;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::Expr as PlanExpr;
use datafusion::sql::sqlparser::ast::{
    CastKind, Expr, GroupByExpr, OrderBy, Query, Select, SelectItem, Value, VisitMut, VisitorMut,
};

use super::expressions;
use crate::statement::normal;

/// What such casts go through.
const CAST: &str = "__cast";

pub(super) fn function() -> ScalarUDF {
    ScalarUDF::from(CastKey { signature: Signature::any(1, Volatility::Immutable) })
}

/// Names the casts among the keys of GROUP BY.
pub(super) fn rewrite(select: &mut Select, order: Option<&mut OrderBy>) {
    let casts = ambiguous(select);
    if casts.is_empty() {
        return;
    }
    let mut named = Named { casts: &casts, depth: 0 };
    let _ = select.projection.visit(&mut named);
    let _ = select.group_by.visit(&mut named);
    let _ = select.having.visit(&mut named);
    if let Some(order) = order {
        let _ = order.visit(&mut named);
    }
}

/// The texts of the casts that share a name with another key.
fn ambiguous(select: &Select) -> HashSet<String> {
    let GroupByExpr::Expressions(exprs, _) = &select.group_by else { return HashSet::new() };
    let mut keys = Vec::new();
    exprs.iter().for_each(|expr| collect(expr, &select.projection, &mut keys));
    let texts: Vec<(String, String)> = keys.iter().map(|key| (plain(base(key)), plain(key))).collect();
    let is_ambiguous = |(name, text): &(String, String)| texts.iter().any(|(other, key)| other == name && key != text);
    let casts = keys.iter().zip(&texts).filter(|(key, text)| is_cast(key) && is_ambiguous(text));
    casts.map(|(_, (_, text))| text.clone()).collect()
}

/// The keys within sets; what positions and names of output columns stand for.
fn collect<'e>(expr: &'e Expr, items: &'e [SelectItem], keys: &mut Vec<&'e Expr>) {
    match expr {
        Expr::Nested(inner) => collect(inner, items, keys),
        Expr::Tuple(inner) => inner.iter().for_each(|key| collect(key, items, keys)),
        Expr::Rollup(sets) | Expr::Cube(sets) | Expr::GroupingSets(sets) => {
            sets.iter().flatten().for_each(|key| collect(key, items, keys));
        }
        Expr::Value(value) => {
            let Value::Number(number, _) = &value.value else { return };
            let position = number.parse::<usize>().ok().and_then(|position| position.checked_sub(1));
            match position.and_then(|position| items.get(position)) {
                Some(SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) => keys.push(expr),
                _ => {}
            }
        }
        Expr::Identifier(name) => {
            keys.push(expr);
            keys.extend(items.iter().filter_map(|item| match item {
                SelectItem::ExprWithAlias { expr, alias } if normal(alias) == normal(name) && is_cast(expr) => {
                    Some(expr)
                }
                _ => None,
            }));
        }
        other => keys.push(other),
    }
}

fn is_cast(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_cast(inner),
        other => matches!(other, Expr::Cast { .. }),
    }
}

/// What is cast.
fn base(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => base(inner),
        other => other,
    }
}

/// The text of an expression, however its cast is written, and without the table of a column.
fn plain(expr: &Expr) -> String {
    match expr {
        Expr::Nested(inner) => plain(inner),
        Expr::Cast { expr, data_type, kind: CastKind::Cast | CastKind::DoubleColon, .. } => {
            format!("CAST({} AS {data_type})", plain(expr)).to_lowercase()
        }
        Expr::Identifier(name) => normal(name),
        Expr::CompoundIdentifier(names) => names.last().map(normal).unwrap_or_default(),
        other => other.to_string(),
    }
}

struct Named<'a> {
    casts: &'a HashSet<String>,
    /// Subqueries around.
    depth: usize,
}

impl VisitorMut for Named<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.depth == 0 && matches!(expr, Expr::Cast { .. }) && self.casts.contains(&plain(expr)) {
            *expr = expressions::call(CAST, vec![expr.clone()]);
        }
        ControlFlow::Continue(())
    }
}

/// Its argument, with the name of a cast.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CastKey {
    signature: Signature,
}

impl ScalarUDFImpl for CastKey {
    fn name(&self) -> &str {
        CAST
    }

    fn schema_name(&self, args: &[PlanExpr]) -> Result<String> {
        Ok(args.first().map(ToString::to_string).unwrap_or_default())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        expressions::type_of_only(self.name(), types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        match args.arg_fields {
            [only] => Ok(only.clone()),
            _ => datafusion::common::internal_err!("{CAST} takes one argument"),
        }
    }

    fn simplify(&self, mut args: Vec<PlanExpr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        Ok(match args.pop() {
            Some(only) if args.is_empty() => ExprSimplifyResult::Simplified(only),
            _ => ExprSimplifyResult::Original(args),
        })
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, |values| Ok(values.clone()))
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn a_key_and_its_cast_are_two_keys() {
        let table = "(VALUES (TIMESTAMP '2024-01-01 01:00:00', 1), (TIMESTAMP '2024-01-01 02:00:00', 2), \
                     (TIMESTAMP '2024-01-02 01:00:00', 3)) AS q(t, k)";
        for (query, expected) in [
            (
                "SELECT CAST(t AS DATE) AS d, count(*) FROM q GROUP BY t, t::date ORDER BY t",
                "2024-01-01 1,2024-01-01 1,2024-01-02 1",
            ),
            ("SELECT k, k::bigint, count(*) FROM q GROUP BY k, k::bigint ORDER BY k::bigint DESC", "3 3 1,2 2 1,1 1 1"),
            ("SELECT k, k::varchar AS s, sum(k) FROM q GROUP BY 1, 2 ORDER BY 2", "1 1 1,2 2 2,3 3 3"),
            ("SELECT k, k::varchar AS s, sum(k) FROM q GROUP BY k, s ORDER BY s", "1 1 1,2 2 2,3 3 3"),
            (
                "SELECT k::varchar, k::bigint, count(*) FROM q GROUP BY 1, 2 HAVING k::bigint > 1 ORDER BY 1",
                "2 2 1,3 3 1",
            ),
            (
                "SELECT k::bigint AS b, q.k, count(*) FROM q WHERE k > 1 GROUP BY ROLLUP (k::bigint, q.k) ORDER BY 1, 2",
                "2 2 1,2 NULL 1,3 3 1,3 NULL 1,NULL NULL 2",
            ),
        ] {
            let query = query.replacen("FROM q", &format!("FROM {table}"), 1);
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
    }
}
