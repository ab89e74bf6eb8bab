//! User-defined functions, which the catalog stores, and statements call like built-in ones.
//!
//! ```text
//! CREATE FUNCTION .. LANGUAGE python AS $$ .. $$ ─► Function, in the catalog
//!                                                       │ of the statement's snapshot
//! SELECT f(x) FROM t ─► UserFunction ── batches ──► Helper, a process ─┬ python: helper.py
//!                                                                      └ cuda: device program
//! ```
//! Table arguments are exported for the process ([`Tables`]), which maps them without a copy.
//!
//! A function has the rights of its process. Functions are disabled unless
//! `functions.allow_python`, or `functions.allow_cuda`, is set.

mod definition;
mod helper;
mod scalar;
mod tables;

use std::any::Any;
use std::sync::Arc;

use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::ScalarUDF;

pub(crate) use self::definition::{Behavior, Function, Language, OnNull, Parameter, functions, type_of};
pub(crate) use self::helper::{Helpers, Host};
use self::scalar::UserFunction;
pub(crate) use self::tables::Tables;
use crate::Result;
use crate::catalog::Catalog;

/// Registers the functions of a catalog for a statement.
///
/// # Errors
/// Invalid records.
pub(crate) fn bind(catalog: &Catalog, host: Host, state: &mut SessionState) -> Result<()> {
    let host = Arc::new(host);
    for (name, text) in &catalog.functions {
        let function = Function::decode(name, text)?;
        let function = UserFunction::new(name, function, &host)?;
        state.register_udf(Arc::new(ScalarUDF::from(function)))?;
    }
    Ok(())
}

/// Returns the columns of the rows that a function returns, empty if it returns a value; `None` if
/// it is not user-defined.
pub(crate) fn columns_of_rows(function: &ScalarUDF) -> Option<Vec<String>> {
    let function: &dyn Any = function.inner().as_ref();
    Some(function.downcast_ref::<UserFunction>()?.columns_of_rows())
}

/// Checks that the language accepts a function.
///
/// # Errors
/// The message of the language, with the line.
pub(crate) fn check(name: &str, function: &Function, host: Host) -> Result<()> {
    UserFunction::new(name, function.clone(), &Arc::new(host))?.check()
}
