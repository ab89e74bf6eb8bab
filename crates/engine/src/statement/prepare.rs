//! `PREPARE name [(type, ...)] AS statement`, `EXECUTE name[(value, ...)]`, `DEALLOCATE [PREPARE]
//! name | ALL`, `DISCARD ALL`: statements with parameters. They belong to the session. A rollback
//! leaves them unchanged.

use std::sync::{Arc, PoisonError};

use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::{Expr, Ident, ObjectName, Statement as Sql, UnaryOperator, Value as Literal};

use super::{Context, Statement, done, parse_tokens};
use crate::error::Object;
use crate::identifiers::normal;
use crate::limits::may_keep;
use crate::parameter::Value;
use crate::prepared::Prepared;
use crate::query::Done;
use crate::{Error, ErrorKind, Result};

/// A parsed statement of these.
#[derive(Debug)]
pub(super) enum Control {
    Prepare(String, Box<Prepared>),
    Execute(String, Vec<Value>),
    /// Removes the named statement, or all of them.
    Deallocate(Option<String>),
    /// Removes everything that the session has created or changed. Its temporary tables are dropped
    /// before.
    Discard,
}

/// Converts the parser's `EXECUTE` and `DEALLOCATE`.
pub(super) fn convert(sql: &Sql) -> Result<Option<Control>> {
    match sql {
        Sql::Execute {
            name: Some(name),
            parameters,
            immediate: false,
            into,
            using,
            output: false,
            default: false,
            ..
        } if into.is_empty() && using.is_empty() => {
            Ok(Some(Control::Execute(simple(name)?, parameters.iter().map(value).collect::<Result<_>>()?)))
        }
        Sql::Execute { .. } => Err(Error::new(ErrorKind::Syntax, "this EXECUTE cannot be understood")
            .with_hint("EXECUTE name, or EXECUTE name(value, ...)")),
        // A valid `PREPARE` is recognized by its tokens before this.
        Sql::Prepare { .. } => Err(about_another()),
        Sql::Deallocate { name, .. } => Ok(Some(Control::Deallocate(deallocated(name)))),
        _ => Ok(None),
    }
}

fn deallocated(name: &Ident) -> Option<String> {
    let is_all = name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all");
    (!is_all).then(|| normal(name))
}

fn simple(name: &ObjectName) -> Result<String> {
    match name.0.as_slice() {
        [part] if part.as_ident().is_some() => Ok(part.as_ident().map(normal).unwrap_or_default()),
        _ => Err(Error::new(ErrorKind::Invalid, format!("{name} is no name of a prepared statement"))),
    }
}

/// Parses a number literal.
fn number(digits: &str) -> Option<Value> {
    if let Ok(number) = digits.parse() {
        return Some(Value::Integer(number));
    }
    if !digits.contains(['e', 'E']) {
        return Some(Value::Decimal(digits.to_string()));
    }
    // A number that is too large has no value.
    digits.parse().ok().filter(|number: &f64| number.is_finite()).map(Value::Double)
}

/// Returns the value of a literal.
fn value(expr: &Expr) -> Result<Value> {
    let found = match expr {
        Expr::Value(literal) => match &literal.value {
            Literal::Null => Some(Value::Null),
            Literal::Boolean(truth) => Some(Value::Boolean(*truth)),
            Literal::SingleQuotedString(text) => Some(Value::Text(text.clone())),
            Literal::Number(digits, false) => number(digits),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match &**expr {
            Expr::Value(literal) => match &literal.value {
                Literal::Number(digits, false) => number(&format!("-{digits}")),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    };
    found.ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("EXECUTE cannot take {expr}"))
            .with_hint("values are numbers up to 1.8e308, texts, TRUE, FALSE and NULL; a date is a text: '2024-02-29'")
    })
}

impl Control {
    /// True if it is `DISCARD ALL`.
    pub fn is_discard(&self) -> bool {
        matches!(self, Self::Discard)
    }

    /// Runs the statement. For `EXECUTE`, returns the statement to run instead.
    pub fn run(self, context: &Context<'_>) -> Result<Outcome> {
        let mut all = context.session.prepared();
        match self {
            Self::Prepare(name, prepared) => {
                if all.contains_key(&name) {
                    let error = format!("there is a prepared statement \"{name}\" already");
                    return Err(Error::new(ErrorKind::AlreadyExists, error)
                        .with_hint(format!("DEALLOCATE {name} first"))
                        .of(Object::Statement));
                }
                let prepared = checked(*prepared)?;
                // Its tokens take several times as much memory as its text.
                may_keep(prepared.text().len() as u64 * 4, context.settings().memory_limit_bytes())?;
                all.insert(name, Arc::new(prepared));
                Ok(Outcome::Done(done("PREPARE", None)))
            }
            Self::Execute(name, values) => {
                let Some(prepared) = all.get(&name).cloned() else { return Err(unknown(&name)) };
                drop(all);
                Ok(Outcome::Instead(Box::new(parse_tokens(prepared.bind(&values)?)?)))
            }
            Self::Discard => {
                if context.transaction().is_some() {
                    return Err(Error::new(ErrorKind::Invalid, "DISCARD ALL cannot be part of a transaction"));
                }
                all.clear();
                context.session.detach_all();
                context.session.parameters().reset_all();
                Arc::make_mut(&mut context.settings.lock().unwrap_or_else(PoisonError::into_inner)).reset_all();
                Ok(Outcome::Done(done("DISCARD ALL", None)))
            }
            Self::Deallocate(None) => {
                all.clear();
                Ok(Outcome::Done(done("DEALLOCATE ALL", None)))
            }
            Self::Deallocate(Some(name)) => match all.remove(&name) {
                Some(_) => Ok(Outcome::Done(done("DEALLOCATE", None))),
                None => Err(unknown(&name)),
            },
        }
    }
}

/// The outcome of a statement about prepared ones.
pub(super) enum Outcome {
    Done(Done),
    Instead(Box<Statement>),
}

/// Parses a statement with its parameters.
///
/// # Errors
/// Fails if the statement cannot be parsed, manages prepared statements itself, or begins or ends a
/// transaction. A failed transaction runs only statements that end it, and EXECUTE could run any.
pub(super) fn checked(prepared: Prepared) -> Result<Prepared> {
    match parse_tokens(prepared.unbound()?)? {
        Statement::Prepared(_) => Err(about_another()),
        Statement::Transaction(_) => {
            Err(Error::new(ErrorKind::Invalid, "what begins or ends a transaction cannot be prepared"))
        }
        Statement::Insert(insert) => Ok(prepared.with_template(insert.template())),
        _ => Ok(prepared),
    }
}

/// Refuses `EXPLAIN` of statements about prepared ones.
pub(super) fn refuse_explained(mut statement: &DataFusionStatement) -> Result<()> {
    while let DataFusionStatement::Explain(explain) = statement {
        statement = &explain.statement;
    }
    match statement {
        DataFusionStatement::Statement(sql)
            if matches!(**sql, Sql::Prepare { .. } | Sql::Execute { .. } | Sql::Deallocate { .. }) =>
        {
            Err(Error::new(ErrorKind::Invalid, "EXPLAIN cannot explain PREPARE, EXECUTE or DEALLOCATE")
                .with_hint("explain the statement itself, with values in it"))
        }
        _ => Ok(()),
    }
}

fn about_another() -> Error {
    Error::new(ErrorKind::Invalid, "a prepared statement cannot be about another one")
}

fn unknown(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no prepared statement \"{name}\""))
        .with_hint("PREPARE makes one; it belongs to its session")
        .of(Object::Statement)
}
