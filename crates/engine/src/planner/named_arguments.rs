//! Named arguments of table functions: `logregr_train('t', 'm', label => 'y')`.
//!
//! DataFusion's planner accepts no named arguments of table functions. So `name => value` is passed
//! as a struct of one field, `named_struct('name', value)`, which is a constant when the function
//! receives it ([`arguments`](crate::learn)). A table may be given as a query in parentheses or by
//! its bare name; both are passed as their text. This applies only to functions of ours. Other
//! functions receive numbers without a type.

use datafusion::sql::sqlparser::ast::{
    DataType, Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, ObjectNamePart, TableFactor, TableFunctionArgs,
    Value,
};

use super::expressions::call;
use crate::identifiers::normal;

/// The table functions of `learn`, whose arguments have names.
pub(crate) const LEARNING: [&str; 3] = ["logregr_train", "linregr_train", "logregr_evaluate"];

pub(super) fn rewrite_table(table: &mut TableFactor) {
    let TableFactor::Table { name, args: Some(TableFunctionArgs { args, .. }), .. } = table else { return };
    let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else { return };
    let function = normal(ident);
    if !LEARNING.contains(&function.as_str()) {
        args.iter_mut().for_each(without_type);
        return;
    }
    *name = ObjectName::from(vec![Ident::new(function)]);
    for arg in args {
        match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => quote_table(expr),
            FunctionArg::Named { name, arg: FunctionArgExpr::Expr(expr), .. } => {
                quote_table(expr);
                let field = Expr::Value(Value::SingleQuotedString(normal(name)).into());
                *arg = FunctionArg::Unnamed(FunctionArgExpr::Expr(call("named_struct", vec![field, expr.clone()])));
            }
            _ => {}
        }
    }
}

/// Removes the type of a whole number. DataFusion's own functions accept whole numbers as literals,
/// but not with a type, as the value of a parameter has.
fn without_type(arg: &mut FunctionArg) {
    let FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)) = arg else { return };
    let mut inner = &*arg;
    while let Expr::Nested(expr) = inner {
        inner = expr;
    }
    if let Expr::Cast { expr, data_type: DataType::SmallInt(_) | DataType::Int(_) | DataType::Integer(_), .. } = inner {
        let mut value = &**expr;
        while let Expr::Nested(expr) = value {
            value = expr;
        }
        if matches!(value, Expr::Value(value) if matches!(value.value, Value::Null | Value::Number(..))) {
            *arg = value.clone();
        }
    }
}

/// Replaces an expression that names a table by its text.
fn quote_table(expr: &mut Expr) {
    let text = match expr {
        Expr::Subquery(query) => format!("({query})"),
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => expr.to_string(),
        _ => return,
    };
    *expr = Expr::Value(Value::SingleQuotedString(text).into());
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rewritten;

    #[test]
    fn names_become_structs_and_tables_texts() {
        for (text, meant) in [
            (
                "SELECT * FROM LogRegr_Train(patients, 'm', label => 'a', features => ['b'])",
                "SELECT * FROM logregr_train('patients', 'm', named_struct('label', 'a'), named_struct('features', ['b']))",
            ),
            (
                "SELECT * FROM logregr_evaluate('m', (SELECT 'b' AS a FROM t))",
                "SELECT * FROM logregr_evaluate('m', '(SELECT ''b'' AS a FROM t)')",
            ),
            ("SELECT * FROM range(1, 2)", "SELECT * FROM range(1, 2)"),
        ] {
            assert_eq!(rewritten(text), meant);
        }
    }
}
