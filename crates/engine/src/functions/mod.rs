//! Functions that somebody has written: kept in the catalog, and called by statements as SQL's own are.
//!
//! ```text
//! CREATE FUNCTION .. LANGUAGE python AS $$ .. $$ ─► Function, in the catalog
//!                                                       │ of the statement's snapshot
//! SELECT f(x) FROM t ─► UserFunction ── batches ──► Helper, a process of its own ─┬─ python: helper.py
//!                                                                                 └─ cuda: the program of the devices
//! ```
//! Tables that are arguments are exported for the process ([`Tables`]), which has them where they are.
//!
//! What a function may do is what its process may: they are off unless `functions.allow_python`, or `functions.allow_cuda`, is set.

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

/// Makes the functions of a catalog known to a statement.
///
/// # Errors
/// Records that are none.
pub(crate) fn bind(catalog: &Catalog, host: Host, state: &mut SessionState) -> Result<()> {
    let host = Arc::new(host);
    for (name, text) in &catalog.functions {
        let function = Function::decode(name, text)?;
        let function = UserFunction::new(name, function, &host)?;
        state.register_udf(Arc::new(ScalarUDF::from(function)))?;
    }
    Ok(())
}

/// The columns of the rows that a function returns, none if it has a value; `None` for one that nobody has made.
pub(crate) fn columns_of_rows(function: &ScalarUDF) -> Option<Vec<String>> {
    let function: &dyn Any = function.inner().as_ref();
    Some(function.downcast_ref::<UserFunction>()?.columns_of_rows())
}

/// Whether whoever runs a function takes it.
///
/// # Errors
/// What is wrong with it, with the line.
pub(crate) fn check(name: &str, function: &Function, host: Host) -> Result<()> {
    UserFunction::new(name, function.clone(), &Arc::new(host))?.check()
}
