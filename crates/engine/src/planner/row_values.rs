//! Comparisons of rows: `(a, b) = (1, 2)`, `ROW(a, b) < (3, $1)`, `(a, b) IN ((1, 2), (3, 4))`,
//! `(a, b) IN (SELECT x, y ..)`.
//!
//! They are rewritten as SQL defines them: equality compares each pair of values, and an order
//! compares the first pair that differs. DataFusion compares structs instead, and only literals;
//! NULL is equal to NULL there and comes before or after all values.
//!
//! A condition that is tested for truth searches the rows of a subquery by EXISTS. There it does
//! not matter that EXISTS is false where IN is NULL. Elsewhere [they are
//! values](super::subqueries_as_values).

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, JoinConstraint, JoinOperator,
    ObjectNamePart, Query, Select, SetExpr, TableAliasColumnDef, TableFactor, UnaryOperator,
};

use super::correlated_subqueries::ROWS;
use crate::identifiers::normal;

/// Rewrites the conditions of a SELECT before their parts.
pub(super) fn rewrite_conditions(select: &mut Select) {
    for table in &mut select.from {
        for join in &mut table.joins {
            if let JoinOperator::Join(JoinConstraint::On(condition))
            | JoinOperator::Inner(JoinConstraint::On(condition)) = &mut join.join_operator
            {
                look_for_rows(condition);
            }
        }
    }
    select.selection.iter_mut().chain(&mut select.having).for_each(look_for_rows);
}

/// Rewrites the parts of a condition that are tested for truth.
fn look_for_rows(condition: &mut Expr) {
    let found = match condition {
        Expr::Nested(inner) => return look_for_rows(inner),
        Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
            look_for_rows(left);
            return look_for_rows(right);
        }
        Expr::InSubquery { expr, subquery, negated: false } => row(expr).and_then(|row| found(&row, subquery)),
        Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => match right.as_ref() {
            Expr::Subquery(subquery) => row(left).and_then(|row| found(&row, subquery)),
            _ => None,
        },
        _ => None,
    };
    if let Some(found) = found {
        *condition = found;
    }
}

/// Builds `EXISTS (SELECT 1 FROM (subquery) AS t(..) WHERE ..)` with unique column names.
fn found(row: &[Expr], subquery: &Query) -> Option<Expr> {
    let subquery = rows_where(row, &BinaryOperator::Eq, subquery, &|condition| condition)?;
    Some(Expr::Exists { subquery, negated: false })
}

/// Builds `SELECT 1 FROM (subquery) AS t(..) WHERE ..`. `is_so` makes the condition from the
/// comparison of `row` with the rows.
pub(super) fn rows_where(
    row: &[Expr],
    op: &BinaryOperator,
    subquery: &Query,
    is_so: &dyn Fn(Expr) -> Expr,
) -> Option<Box<Query>> {
    let mut template = super::template("SELECT 1 FROM (SELECT 1) AS t(x) WHERE TRUE").ok()?;
    let SetExpr::Select(select) = template.body.as_mut() else { return None };
    let [table] = select.from.as_mut_slice() else { return None };
    let TableFactor::Derived { subquery: rows, alias: Some(alias), .. } = &mut table.relation else { return None };
    *rows.as_mut() = subquery.clone();
    let names: Vec<Ident> = (0..row.len()).map(|place| Ident::new(format!("__value{place}"))).collect();
    alias.name = Ident::new(ROWS);
    let column = alias.columns.pop()?;
    alias.columns = names.iter().map(|name| TableAliasColumnDef { name: name.clone(), ..column.clone() }).collect();
    let values: Vec<Expr> =
        names.into_iter().map(|name| Expr::CompoundIdentifier(vec![Ident::new(ROWS), name])).collect();
    select.selection = compared_rows(row, op, &values).map(is_so);
    select.selection.is_some().then_some(template)
}

fn compared_rows(left: &[Expr], op: &BinaryOperator, right: &[Expr]) -> Option<Expr> {
    match op {
        BinaryOperator::Eq => equal(left, right),
        BinaryOperator::NotEq => equal(left, right).map(not),
        BinaryOperator::Lt | BinaryOperator::LtEq | BinaryOperator::Gt | BinaryOperator::GtEq => {
            ordered(left, op, right)
        }
        _ => None,
    }
}

pub(super) fn rewrite(expr: &mut Expr) {
    let rewritten = match expr {
        Expr::BinaryOp { left, op, right } => {
            row(left).zip(row(right)).and_then(|(left, right)| compared_rows(&left, op, &right))
        }
        Expr::InList { expr: of, list, negated } => {
            let equals =
                row(of).and_then(|of| list.iter().map(|one| equal(&of, &row(one)?)).collect::<Option<Vec<_>>>());
            let any = equals.and_then(|equals| joined(equals, &BinaryOperator::Or));
            if *negated { any.map(not) } else { any }
        }
        Expr::Between { expr: of, negated, low, high } => {
            row(of).zip(row(low)).zip(row(high)).and_then(|((of, low), high)| {
                let ends =
                    vec![ordered(&of, &BinaryOperator::GtEq, &low)?, ordered(&of, &BinaryOperator::LtEq, &high)?];
                let between = joined(ends, &BinaryOperator::And);
                if *negated { between.map(not) } else { between }
            })
        }
        // These are not opposites: both are false for a row with one NULL.
        Expr::IsNull(of) => row(of).and_then(|of| each(&of, Expr::IsNull)),
        Expr::IsNotNull(of) => row(of).and_then(|of| each(&of, Expr::IsNotNull)),
        Expr::IsDistinctFrom(left, right) => {
            row(left).zip(row(right)).and_then(|(left, right)| same(&left, &right).map(not))
        }
        Expr::IsNotDistinctFrom(left, right) => row(left).zip(row(right)).and_then(|(left, right)| same(&left, &right)),
        _ => None,
    };
    if let Some(rewritten) = rewritten {
        *expr = rewritten;
    }
}

/// Returns the values of a row.
pub(crate) fn row(expr: &Expr) -> Option<Vec<Expr>> {
    match expr {
        Expr::Tuple(values) => Some(values.clone()),
        Expr::Nested(inner) => row(inner),
        Expr::Function(function) => {
            let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return None };
            let FunctionArguments::List(list) = &function.args else { return None };
            let value = |argument: &FunctionArg| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value.clone()),
                _ => None,
            };
            (normal(name) == "row").then(|| list.args.iter().map(value).collect())?
        }
        _ => None,
    }
}

fn compared(left: &Expr, op: BinaryOperator, right: &Expr) -> Expr {
    // A row within a row is a value that may contain NULL.
    if let (BinaryOperator::Eq, Some(left), Some(right)) = (&op, row(left), row(right))
        && let Some(same) = same(&left, &right)
    {
        return same;
    }
    Expr::BinaryOp { left: Box::new(nested(left.clone())), op, right: Box::new(nested(right.clone())) }
}

/// Compares two rows for equality. Rows of different lengths are left to DataFusion, which refuses
/// them.
fn equal(left: &[Expr], right: &[Expr]) -> Option<Expr> {
    let equals = left.iter().zip(right).map(|(left, right)| compared(left, BinaryOperator::Eq, right));
    if left.len() == right.len() { joined(equals.collect(), &BinaryOperator::And) } else { None }
}

/// Builds `a <= c AND (a < c OR (a = c AND ..))`. The first condition serves zone maps, and is NULL
/// if the order is unknown.
fn ordered(left: &[Expr], op: &BinaryOperator, right: &[Expr]) -> Option<Expr> {
    let (strict, loose) = match op {
        BinaryOperator::Lt | BinaryOperator::LtEq => (BinaryOperator::Lt, BinaryOperator::LtEq),
        _ => (BinaryOperator::Gt, BinaryOperator::GtEq),
    };
    match (left, right) {
        ([left], [right]) => Some(nested(compared(left, op.clone(), right))),
        ([left, rest_left @ ..], [right, rest_right @ ..]) => {
            let rest = ordered(rest_left, op, rest_right)?;
            let tied = joined(vec![compared(left, BinaryOperator::Eq, right), rest], &BinaryOperator::And)?;
            let either = joined(vec![compared(left, strict, right), tied], &BinaryOperator::Or)?;
            joined(vec![compared(left, loose, right), either], &BinaryOperator::And)
        }
        _ => None,
    }
}

fn same(left: &[Expr], right: &[Expr]) -> Option<Expr> {
    let same = left
        .iter()
        .zip(right)
        .map(|(left, right)| Expr::IsNotDistinctFrom(Box::new(nested(left.clone())), Box::new(nested(right.clone()))));
    if left.len() == right.len() { joined(same.collect(), &BinaryOperator::And) } else { None }
}

fn each(row: &[Expr], is: fn(Box<Expr>) -> Expr) -> Option<Expr> {
    joined(row.iter().map(|value| is(Box::new(nested(value.clone())))).collect(), &BinaryOperator::And)
}

/// Joins conditions to a tree of logarithmic depth.
fn joined(mut exprs: Vec<Expr>, op: &BinaryOperator) -> Option<Expr> {
    if exprs.len() < 2 {
        return exprs.pop().map(nested);
    }
    let right = exprs.split_off(exprs.len() / 2);
    let (left, right) = (joined(exprs, op)?, joined(right, op)?);
    Some(nested(Expr::BinaryOp { left: Box::new(left), op: op.clone(), right: Box::new(right) }))
}

fn nested(expr: Expr) -> Expr {
    match expr {
        Expr::Nested(_) | Expr::Identifier(_) | Expr::Value(_) => expr,
        expr => Expr::Nested(Box::new(expr)),
    }
}

fn not(expr: Expr) -> Expr {
    Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(expr) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::{rewritten, rows};

    #[test]
    fn each_value_is_beside_its_own() {
        for (text, meant) in [
            ("SELECT 1 AS x WHERE (a, b) = (1, 2)", "SELECT 1 AS x WHERE ((a = 1) AND (b = 2))"),
            ("SELECT 1 AS x WHERE ((a, b)) <> (1, 2)", "SELECT 1 AS x WHERE NOT ((a = 1) AND (b = 2))"),
            (
                "SELECT 1 AS x WHERE (a, b) NOT IN ((1, $1), (c, 2 + d))",
                "SELECT 1 AS x WHERE NOT (((a = 1) AND (b = $1)) OR ((a = c) AND (b = (2 + d))))",
            ),
            (
                "SELECT 1 AS x WHERE (a, b) < (1, 2)",
                "SELECT 1 AS x WHERE ((a <= 1) AND ((a < 1) OR ((a = 1) AND (b < 2))))",
            ),
            ("SELECT 1 AS x WHERE ROW(a, b) IS NULL", "SELECT 1 AS x WHERE ((a IS NULL) AND (b IS NULL))"),
            (
                "SELECT 1 AS x WHERE (a, b) IN (SELECT a, c FROM t)",
                "SELECT 1 AS x WHERE EXISTS (SELECT 1 AS \"1\" FROM (SELECT a, c FROM t) AS __rows (__value0, __value1) \
                 WHERE ((a = (__rows.__value0)) AND (b = (__rows.__value1))))",
            ),
            ("SELECT 1 AS x WHERE (a, b) = (1, 2, 3)", "SELECT 1 AS x WHERE (a, b) = (1, 2, 3)"),
        ] {
            assert_eq!(rewritten(text), meant);
        }
    }

    #[tokio::test]
    async fn null_is_not_known_to_be_equal() {
        // Expected values are PostgreSQL 15.18's.
        for (expr, answer) in [
            ("(1, 2) IN ((1, 2), (3, 4))", "true"),
            ("(1, NULL) IN ((1, 2))", "NULL"),
            ("(1, NULL) IN ((2, 2))", "false"),
            ("(1, NULL) NOT IN ((1, NULL), (2, 3))", "NULL"),
            ("(1, 2) <> (1, 3)", "true"),
            ("(1, NULL) = (1, NULL)", "NULL"),
            ("ROW(1, NULL) = ROW(2, NULL)", "false"),
            ("(1, NULL) < (1, 2)", "NULL"),
            ("(1, NULL) < (2, 2)", "true"),
            ("(1, NULL) >= (2, 2)", "false"),
            ("(NULL, 1) < (2, 2)", "NULL"),
            ("(1, 2, 3) <= (1, 2, 3)", "true"),
            ("(1, 2, 3) < (1, 2, 3)", "false"),
            ("(1, 2) BETWEEN (1, 1) AND (1, 3)", "true"),
            ("(1, NULL) NOT BETWEEN (1, 1) AND (1, 3)", "NULL"),
            ("(1, NULL) IS NULL", "false"),
            ("(1, NULL) IS NOT NULL", "false"),
            ("(NULL, NULL) IS NULL", "true"),
            ("(1, NULL) IS NOT DISTINCT FROM (1, NULL)", "true"),
            ("(1, NULL) IS DISTINCT FROM (1, 2)", "true"),
            ("((1, 2), 3) = ((1, 2), 3)", "true"),
            // For rows as values, and within rows, NULL equals NULL.
            ("CASE (1, 2) WHEN (1, 3) THEN 'a' WHEN (1, 2) THEN 'b' END", "b"),
            ("(1, (2, NULL)) = (1, (2, NULL))", "true"),
            ("(1, (2, NULL)) = (1, (3, NULL))", "false"),
        ] {
            assert_eq!(rows(&format!("SELECT coalesce(CAST({expr} AS VARCHAR), 'NULL')")).await, [answer], "{expr}");
        }
    }

    #[tokio::test]
    async fn rows_of_subqueries_are_found() {
        let table = "WITH t(i, a, b) AS (VALUES (1, 1, 1), (2, 1, NULL), (3, 2, 2), (4, NULL, 2))";
        for (condition, expected) in [
            ("(a, b) IN (SELECT a, b FROM t)", "1 3"),
            ("(b, a) = ANY (SELECT b, a FROM t WHERE i > 1)", "3"),
            ("(a, b) IN (SELECT a, b FROM t WHERE i = 1) OR i = 4", "1 4"),
        ] {
            let found = rows(&format!("{table} SELECT i FROM t WHERE {condition} ORDER BY i")).await;
            assert_eq!(found.join(" "), expected, "{condition}");
        }
    }
}
