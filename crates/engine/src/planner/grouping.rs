//! GROUP BY in SQL's terms: parenthesized columns, positions, and products of grouping sets.
//! Positions in DISTINCT ON.
//!
//! DataFusion reads `GROUP BY (a, b)` as one struct, and numbers in ROLLUP, CUBE and GROUPING SETS
//! as constants. `SELECT id, sum(v) .. GROUP BY ROLLUP (1)` is an error instead of the sums by id
//! and their total. DataFusion refuses several columns in one step of a ROLLUP, and
//! `GROUP BY GROUPING SETS (a, b), (a, b)` groups by structs (seen in 55.2.0).
//!
//! This module turns parenthesized columns into separate keys, and positions into the expressions
//! of the SELECT list. It multiplies out all sets that DataFusion misreads:
//! `GROUP BY a, ROLLUP (b, (c, d))` is `GROUP BY GROUPING SETS ((a, b, c, d), (a, b), (a))`.
//!
//! `SELECT DISTINCT ON (1) ..` refers to the first column. DataFusion reads the number as a
//! constant and returns one row. It also requires the keys in the order of ORDER BY.

use datafusion::sql::sqlparser::ast::{
    Distinct, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr, ObjectNamePart, OrderBy, OrderByKind,
    Select, SelectItem, Value,
};

use super::output_names;
use crate::identifiers::normal;
use crate::{Error, ErrorKind, Result};

/// The maximum numbers of grouping sets of a GROUP BY and of columns of a CUBE, as in PostgreSQL.
const MAX_SETS: usize = 4096;
const MAX_CUBE: usize = 12;

/// Rewrites GROUP BY to DataFusion's terms.
///
/// # Errors
/// Fails for an invalid position and for more than [`MAX_SETS`] grouping sets.
pub(super) fn rewrite(select: &mut Select) -> Result<()> {
    let GroupByExpr::Expressions(keys, _) = &select.group_by else { return Ok(()) };
    let has_sets = keys.iter().any(is_set);
    if !has_sets && !keys.iter().any(|key| matches!(key, Expr::Tuple(_))) {
        return Ok(());
    }
    if keys.len() == 1 && has_sets && keys.iter().all(is_plain) {
        return Ok(());
    }
    let list = List { items: &select.projection, clause: "GROUP BY" };
    let mut sets: Vec<Vec<Expr>> = vec![Vec::new()];
    for key in keys {
        let parts = list.sets(key)?;
        check_number(sets.len().saturating_mul(parts.len()))?;
        let product = sets.iter().flat_map(|set| parts.iter().map(move |part| [&set[..], &part[..]].concat()));
        sets = product.collect();
    }
    sets.iter_mut().for_each(keep_first_of_equal);
    let GroupByExpr::Expressions(keys, _) = &mut select.group_by else { return Ok(()) };
    *keys = match sets.pop() {
        Some(only) if !has_sets && !only.is_empty() => only,
        last => vec![Expr::GroupingSets(sets.into_iter().chain(last).collect())],
    };
    Ok(())
}

/// Resolves positions in DISTINCT ON, and sorts its keys in the order of ORDER BY, whose first keys
/// they must be.
///
/// # Errors
/// Fails for an invalid position.
pub(super) fn rewrite_distinct_on(select: &mut Select, order: Option<&mut OrderBy>) -> Result<()> {
    let Some(Distinct::On(keys)) = &mut select.distinct else { return Ok(()) };
    let list = List { items: &select.projection, clause: "DISTINCT ON" };
    for key in &mut *keys {
        *key = list.name(key)?;
    }
    let Some(OrderByKind::Expressions(sorted)) = order.map(|order| &mut order.kind) else { return Ok(()) };
    // Planning of ORDER BY reports an invalid position.
    let text = |key: &Expr| output_names::normalized(&list.name(key).unwrap_or_else(|_| key.clone()));
    // DataFusion counts a duplicate key once.
    output_names::keep_first_of_equal(sorted, |key| text(&key.expr));
    let sorted: Vec<_> = sorted.iter().map(|key| text(&key.expr)).collect();
    keys.sort_by_key(|key| sorted.iter().position(|sorted| *sorted == text(key)).unwrap_or(sorted.len()));
    Ok(())
}

fn is_set(key: &Expr) -> bool {
    matches!(key, Expr::GroupingSets(_) | Expr::Rollup(_) | Expr::Cube(_))
}

/// Returns whether DataFusion reads the key with SQL's meaning.
fn is_plain(key: &Expr) -> bool {
    let is_column = |key: &Expr| !matches!(key, Expr::Value(_) | Expr::Tuple(_)) && nested(key).is_none();
    let (Expr::GroupingSets(sets) | Expr::Rollup(sets) | Expr::Cube(sets)) = key else { return false };
    let mut all = sets.concat();
    let keys = all.len();
    keep_first_of_equal(&mut all);
    let is_step = |set: &Vec<Expr>| set.len() == 1;
    match key {
        Expr::GroupingSets(sets) => all.iter().all(is_column) && sets.iter().all(|set| !repeats(set)),
        _ => all.iter().all(is_column) && sets.iter().all(is_step) && all.len() == keys,
    }
}

fn repeats(set: &[Expr]) -> bool {
    let mut unique = set.to_vec();
    keep_first_of_equal(&mut unique);
    unique.len() < set.len()
}

fn keep_first_of_equal(set: &mut Vec<Expr>) {
    output_names::keep_first_of_equal(set, output_names::normalized);
}

/// Returns ROLLUP or CUBE within GROUPING SETS, which the parser reads as a function.
fn nested(key: &Expr) -> Option<Expr> {
    let Expr::Function(call) = key else { return None };
    let ([ObjectNamePart::Identifier(name)], FunctionArguments::List(list)) = (call.name.0.as_slice(), &call.args)
    else {
        return None;
    };
    let make: fn(Vec<Vec<Expr>>) -> Expr = match normal(name).as_str() {
        "rollup" => Expr::Rollup,
        "cube" => Expr::Cube,
        _ => return None,
    };
    let steps = list.args.iter().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Tuple(keys))) => Some(keys.clone()),
        FunctionArg::Unnamed(FunctionArgExpr::Expr(key)) => Some(vec![key.clone()]),
        _ => None,
    });
    steps.collect::<Option<_>>().map(make)
}

fn check_number(sets: usize) -> Result<()> {
    if sets <= MAX_SETS {
        return Ok(());
    }
    let message = format!("GROUP BY has more than {MAX_SETS} grouping sets");
    Err(Error::new(ErrorKind::Invalid, message).with_hint("write those that are needed: GROUPING SETS ((a, b), (a))"))
}

/// The SELECT list that the positions in a clause refer to.
struct List<'a> {
    items: &'a [SelectItem],
    clause: &'static str,
}

impl List<'_> {
    /// Returns the sets of a GROUP BY key.
    fn sets(&self, key: &Expr) -> Result<Vec<Vec<Expr>>> {
        match key {
            Expr::Tuple(keys) => Ok(vec![self.keys(keys)?]),
            Expr::GroupingSets(sets) => {
                let parts = sets.iter().map(|set| match set.as_slice() {
                    [only] => self.sets(nested(only).as_ref().unwrap_or(only)),
                    keys => Ok(vec![self.keys(keys)?]),
                });
                Ok(parts.collect::<Result<Vec<_>>>()?.concat())
            }
            Expr::Rollup(steps) => {
                let steps = steps.iter().map(|step| self.keys(step)).collect::<Result<Vec<_>>>()?;
                Ok((0..=steps.len()).rev().map(|taken| steps[..taken].concat()).collect())
            }
            Expr::Cube(steps) if steps.len() > MAX_CUBE => {
                let message = format!("CUBE has more than {MAX_CUBE} columns");
                Err(Error::new(ErrorKind::Invalid, message).with_hint("GROUPING SETS names the sets that are needed"))
            }
            Expr::Cube(steps) => {
                let steps = steps.iter().map(|step| self.keys(step)).collect::<Result<Vec<_>>>()?;
                let is_taken = |set: usize, step: usize| set & (1 << (steps.len() - 1 - step)) != 0;
                let set = |set| {
                    (0..steps.len()).filter(move |step| is_taken(set, *step)).flat_map(|step| steps[step].clone())
                };
                Ok((0..1usize << steps.len()).rev().map(|number| set(number).collect()).collect())
            }
            key => Ok(vec![vec![self.key(key)?]]),
        }
    }

    fn keys(&self, keys: &[Expr]) -> Result<Vec<Expr>> {
        keys.iter().map(|key| self.key(key)).collect()
    }

    /// Resolves a position to its expression. Returns any other key unchanged.
    fn key(&self, key: &Expr) -> Result<Expr> {
        Ok(match self.item(key)? {
            // A number in the list is a constant. The parentheses keep a later pass from reading it
            // as a position.
            Some(
                SelectItem::UnnamedExpr(Expr::Value(value))
                | SelectItem::ExprWithAlias { expr: Expr::Value(value), .. },
            ) => Expr::Nested(Box::new(Expr::Value(value.clone()))),
            Some(SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) => expr.clone(),
            _ => key.clone(),
        })
    }

    /// Resolves a position to the name of its column, where names of output columns take
    /// precedence. Returns any other key unchanged.
    fn name(&self, key: &Expr) -> Result<Expr> {
        match self.item(key)? {
            Some(SelectItem::ExprWithAlias { alias, .. }) => Ok(Expr::Identifier(alias.clone())),
            _ => self.key(key),
        }
    }

    /// Returns the SELECT item at a position, or `None` for any other key. Fails if the item is not
    /// an expression.
    fn item(&self, key: &Expr) -> Result<Option<&SelectItem>> {
        let Expr::Value(value) = key else { return Ok(None) };
        let Value::Number(number, _) = &value.value else { return Ok(None) };
        let Ok(position) = number.parse::<usize>() else { return Ok(None) };
        let before = position.checked_sub(1).and_then(|last| self.items.get(..=last)).unwrap_or_default();
        match before.last() {
            Some(item @ (SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. }))
                if !before.iter().any(is_star) =>
            {
                Ok(Some(item))
            }
            _ => Err(Error::new(ErrorKind::Invalid, format!("{} has no column at position {position}", self.clause))
                .with_hint("positions count the columns of the SELECT list from 1; there is none behind a *")),
        }
    }
}

fn is_star(item: &SelectItem) -> bool {
    matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn keys_are_what_sql_says() {
        let table = "(VALUES (1, 2, 5), (1, 2, 6), (1, 3, 5)) AS t(a, b, c)";
        for (query, expected) in [
            ("SELECT a, b, count(*) AS n FROM t GROUP BY (a, b) ORDER BY b", "1 2 2,1 3 1"),
            ("SELECT a, sum(c) AS s FROM t GROUP BY ROLLUP (1) ORDER BY a", "1 16,NULL 16"),
            ("SELECT a, b, sum(c) AS s FROM t GROUP BY ROLLUP ((a, b)) ORDER BY a, b", "1 2 11,1 3 5,NULL NULL 16"),
            ("SELECT b, c FROM t GROUP BY CUBE (2), (b) ORDER BY b, c", "2 5,2 6,2 NULL,3 5,3 NULL"),
            (
                "SELECT b, count(*) AS n FROM t GROUP BY GROUPING SETS (ROLLUP (b), (b)) ORDER BY b",
                "2 2,2 2,3 1,3 1,NULL 3",
            ),
            ("SELECT 'c' AS x, a FROM t GROUP BY ROLLUP (1, a) ORDER BY x, a", "c 1,c NULL,NULL NULL"),
            (
                "SELECT 2 AS k, a, count(*) AS n FROM t GROUP BY ROLLUP (1, a) ORDER BY k, a",
                "2 1 3,2 NULL 3,NULL NULL 3",
            ),
            ("SELECT 2 AS k, count(*) AS n FROM t GROUP BY ROLLUP (1) ORDER BY k", "2 3,NULL 3"),
            ("SELECT 2 AS k, sum(c) AS s FROM t GROUP BY ROLLUP (1) HAVING sum(c) > 3 ORDER BY k", "2 16,NULL 16"),
            ("SELECT 2 AS k, b FROM t GROUP BY GROUPING SETS ((1, b), (b)) ORDER BY k, b", "2 2,2 3,NULL 2,NULL 3"),
            ("SELECT a FROM t GROUP BY ROLLUP (a, A) ORDER BY a", "1,1,NULL"),
            ("SELECT count(*) AS n FROM t GROUP BY ()", "3"),
            ("SELECT a, count(*) AS n FROM t GROUP BY (), a", "1 3"),
        ] {
            let query = query.replace("FROM t", &format!("FROM {table}"));
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
        for (key, message) in [("ROLLUP (3)", "no column at position 3"), ("ROLLUP (0)", "no column at position 0")] {
            let error = fails(&format!("SELECT a, b FROM {table} GROUP BY {key}")).await;
            assert!(error.message().contains(message), "{key}: {error}");
        }
    }
}
