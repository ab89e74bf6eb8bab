//! `regr_r2` of a constant is 1.
//!
//! DataFusion returns NULL if all values of the first argument are equal. `regr_r2(0.0, x)` of
//! three different `x` is NULL; it is 1 in PostgreSQL and DuckDB (seen in 55.2.0). The call becomes
//! `CASE WHEN regr_syy(y, x) = 0 AND regr_sxx(y, x) > 0 THEN 1 ELSE regr_r2(y, x) END`.

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CaseWhen, Expr, Function, Ident, ObjectName, ObjectNamePart, Value,
};

use crate::identifiers::normal;

pub(super) fn rewrite(expr: &mut Expr) {
    let Expr::Function(call) = &*expr else { return };
    match call.name.0.as_slice() {
        [ObjectNamePart::Identifier(name)] if normal(name) == "regr_r2" => {}
        _ => return,
    }
    let sum = |name: &str| {
        let name = ObjectName::from(vec![Ident::new(name)]);
        Box::new(Expr::Function(Function { name, ..call.clone() }))
    };
    let number = |digits: &str| Expr::Value(Value::Number(digits.into(), false).into());
    let compared = |left, op| Box::new(Expr::BinaryOp { left, op, right: Box::new(number("0")) });
    let is_constant = Expr::BinaryOp {
        left: compared(sum("regr_syy"), BinaryOperator::Eq),
        op: BinaryOperator::And,
        right: compared(sum("regr_sxx"), BinaryOperator::Gt),
    };
    *expr = Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: vec![CaseWhen { condition: is_constant, result: number("1e0") }],
        else_result: Some(Box::new(expr.clone())),
    };
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn a_constant_is_explained_by_anything_that_varies() {
        let table = "(VALUES (1e0), (2e0), (3e0)) AS t(x)";
        let query = format!(
            "SELECT regr_r2(0.0, x), regr_r2(x, 1), regr_r2(x, 2 * x), regr_r2(x, x) FILTER (WHERE x > 3) FROM {table}"
        );
        assert_eq!(rows(&query).await, ["1.0 NULL 1.0 NULL"]);
    }
}
