//! Rows beside rows: `(a, b) = (1, 2)`, `(a, b) IN ((1, 2), (3, $1))`.
//!
//! They become what SQL says that they mean: each value beside its own, all of them, and any of the rows. DataFusion compares structs
//! instead, of literals alone, in which NULL is equal to NULL.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator};

pub(super) fn rewrite(expr: &mut Expr) {
    let rewritten = match expr {
        Expr::BinaryOp { left, op, right } => match (row(left), row(right), &*op) {
            (Some(left), Some(right), BinaryOperator::Eq) => equal(left, right),
            (Some(left), Some(right), BinaryOperator::NotEq) => equal(left, right).map(not),
            _ => None,
        },
        Expr::InList { expr: of, list, negated } => {
            let equals = row(of).and_then(|of| list.iter().map(|one| equal(of, row(one)?)).collect::<Option<Vec<_>>>());
            let any = equals.and_then(|equals| joined(equals, &BinaryOperator::Or));
            if *negated { any.map(not) } else { any }
        }
        _ => None,
    };
    if let Some(rewritten) = rewritten {
        *expr = rewritten;
    }
}

/// The values of a row.
fn row(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::Tuple(values) => Some(values),
        Expr::Nested(inner) => row(inner),
        _ => None,
    }
}

/// Rows of different lengths are left to whoever says so.
fn equal(left: &[Expr], right: &[Expr]) -> Option<Expr> {
    let equals = left.iter().zip(right).map(|(left, right)| Expr::BinaryOp {
        left: Box::new(nested(left.clone())),
        op: BinaryOperator::Eq,
        right: Box::new(nested(right.clone())),
    });
    if left.len() == right.len() { joined(equals.collect(), &BinaryOperator::And) } else { None }
}

/// Halves of halves: a list of thousands is no tree as deep.
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
            ("SELECT 1 AS x WHERE (a, b) = (1, 2, 3)", "SELECT 1 AS x WHERE (a, b) = (1, 2, 3)"),
        ] {
            assert_eq!(rewritten(text), meant);
        }
    }

    #[tokio::test]
    async fn null_is_not_known_to_be_equal() {
        // As PostgreSQL 15.18 answers.
        for (expr, answer) in [
            ("(1, 2) IN ((1, 2), (3, 4))", "true"),
            ("(1, NULL) IN ((1, 2))", "NULL"),
            ("(1, NULL) IN ((2, 2))", "false"),
            ("(1, NULL) NOT IN ((1, NULL), (2, 3))", "NULL"),
            ("(1, 2) <> (1, 3)", "true"),
            ("(1, NULL) = (1, NULL)", "NULL"),
        ] {
            assert_eq!(rows(&format!("SELECT coalesce(CAST({expr} AS VARCHAR), 'NULL')")).await, [answer], "{expr}");
        }
    }
}
