//! `FROM read_csv('x.csv', delim = ';')`: replaces a call that reads files by a name.
//!
//! DataFusion plans table functions synchronously, and these take no named arguments. A name is
//! resolved where files may be opened: [`FileCall`].

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Array, BinaryOperator, Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, ObjectNamePart, TableAlias,
    TableFactor, UnaryOperator, Value, VisitorMut,
};

use super::visit_statement;
use crate::files::functions::{self, FileCall};
use crate::identifiers::normal;

pub(super) fn rewrite_table(table: &mut TableFactor) {
    let TableFactor::Table { name, args, alias, .. } = table else { return };
    let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else { return };
    let function = normal(ident);
    if functions::format(&function).is_none() {
        return;
    }
    let Some(arguments) = args.take() else { return };
    let call = call(&function, &arguments.args);
    *name = ObjectName::from(vec![Ident::with_quote('"', call.name())]);
    alias.get_or_insert_with(|| TableAlias {
        explicit: true,
        name: Ident::with_quote('"', function),
        columns: Vec::new(),
        at: None,
    });
}

/// Applies [`rewrite_table`] to an entire statement.
pub(super) fn rewrite(statement: &mut Statement) {
    let _: ControlFlow<()> = visit_statement(statement, &mut Calls);
}

struct Calls;

impl VisitorMut for Calls {
    type Break = ();

    fn post_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<()> {
        rewrite_table(table);
        ControlFlow::Continue(())
    }
}

fn call(function: &str, arguments: &[FunctionArg]) -> FileCall {
    let mut call = FileCall { function: function.to_string(), paths: Vec::new(), options: Vec::new(), refused: None };
    for (at, argument) in arguments.iter().enumerate() {
        let understood = match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => match (at, expr) {
                (0, path) => paths(path).map(|paths| call.paths = paths),
                (_, Expr::BinaryOp { left, op: BinaryOperator::Eq, right }) => match &**left {
                    Expr::Identifier(name) => option(&mut call, &normal(name), right),
                    // A keyword.
                    Expr::Value(value) if value.value == Value::Null => option(&mut call, "null", right),
                    _ => None,
                },
                _ => None,
            },
            FunctionArg::Named { name, arg: FunctionArgExpr::Expr(value), .. } => {
                option(&mut call, &normal(name), value)
            }
            FunctionArg::ExprNamed { name: Expr::Identifier(name), arg: FunctionArgExpr::Expr(value), .. } => {
                option(&mut call, &normal(name), value)
            }
            _ => None,
        };
        if understood.is_none() {
            call.refused.get_or_insert(format!("{argument} is neither a path nor an option"));
        }
    }
    if call.paths.is_empty() {
        call.refused.get_or_insert_with(|| "a path or a list of paths is needed".into());
    }
    call
}

/// Returns the paths of a string or a list of strings.
fn paths(expr: &Expr) -> Option<Vec<String>> {
    match expr {
        Expr::Array(Array { elem, .. }) => elem.iter().map(text).collect(),
        other => text(other).map(|path| vec![path]),
    }
}

fn text(expr: &Expr) -> Option<String> {
    let Expr::Value(value) = expr else { return None };
    value.value.clone().into_string()
}

fn option(call: &mut FileCall, name: &str, value: &Expr) -> Option<()> {
    let value = match value {
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => number.to_string(),
            Value::Boolean(flag) => flag.to_string(),
            other => other.clone().into_string()?,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match &**expr {
            Expr::Value(value) => format!("-{}", value.value),
            _ => return None,
        },
        Expr::Identifier(word) => normal(word),
        _ => return None,
    };
    call.options.push((name.to_string(), Some(value)));
    Some(())
}
