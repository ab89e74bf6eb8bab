//! Machine learning in SQL: models are trained of queries, kept in the catalog, and are functions from then on.
//!
//! ```text
//! logregr_train('t', 'm', label => .., features => ..)
//!      │ Call: arguments by name                     label and features are expressions over the table
//!      ▼
//! Source::plan ── SELECT features, label FROM t ──► operators, as of any query
//!      ▼                                               │ batches, by partitions
//! Learn (operator) ◄── Rows::collect: doubles in chunks, in memory or in a temporary file
//!      │   ▲
//!      ▼   │ passes by threads: onehop-learn; or by a device, of a table's columns in its memory: lower::DeviceFit
//! Model ── a commit to the catalog ──► logregr_predict('m', ..), logregr_evaluate('m', 't'), onehop_models
//! ```
//!
//! The table is read once, whatever it is: a view whose rows differ each time it is asked is still one set of rows, and what
//! can be read only once can be learnt from. What has been read is kept as doubles, within `memory_limit`.
//!
//! Models belong to the catalog: they are there in other sessions and after the database is opened again, a statement sees
//! those of its snapshot, and training again replaces a model as one commit.

mod arguments;
mod device;
mod evaluate;
mod exec;
mod model;
mod predict;
mod rows;
mod source;
mod train;

use std::fmt;
use std::sync::Arc;

use datafusion::catalog::{Session as DataFusionSession, TableFunctionImpl};
use datafusion::common::Result as DataFusionResult;
use datafusion::execution::{FunctionRegistry, SessionState, SessionStateBuilder};
use datafusion::logical_expr::ScalarUDF;

pub(crate) use self::exec::LearnExec;
pub(crate) use self::model::{model_terms, models};
use crate::catalog::Catalog;
use crate::database::Database;
use crate::planner::LEARNING;
use crate::settings::Settings;
use crate::{Error, ErrorKind, Result};

/// What functions of a statement need of its session.
pub(crate) struct Learning {
    pub database: Database,
    pub settings: Settings,
    /// As the statement sees it.
    pub catalog: Arc<Catalog>,
    pub in_transaction: bool,
}

impl fmt::Debug for Learning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learning").finish_non_exhaustive()
    }
}

impl Learning {
    /// Gives them to a statement.
    ///
    /// # Errors
    /// Those of registering a function.
    pub fn bind(self, state: &mut SessionState) -> Result<()> {
        for function in predict::functions(&self.catalog) {
            state.register_udf(Arc::new(function))?;
        }
        state.config_mut().set_extension(Arc::new(self));
        Ok(())
    }

    fn of(session: &dyn DataFusionSession) -> DataFusionResult<Arc<Self>> {
        let missing = || Error::new(ErrorKind::Internal, "a statement does not know its database").into();
        session.config().get_extension::<Self>().ok_or_else(missing)
    }
}

fn table_functions() -> [(&'static str, Arc<dyn TableFunctionImpl>); 3] {
    [
        (LEARNING[0], Arc::new(train::Train(model::Kind::Logistic))),
        (LEARNING[1], Arc::new(train::Train(model::Kind::Linear))),
        (LEARNING[2], Arc::new(evaluate::Evaluate)),
    ]
}

/// Makes the functions known to sessions: those of rows without models, which statements have.
pub(crate) fn configure(mut builder: SessionStateBuilder) -> SessionStateBuilder {
    for (name, function) in table_functions() {
        let function = datafusion::catalog::TableFunction::new(name.into(), function);
        builder.table_functions().get_or_insert_default().insert(name.into(), Arc::new(function));
    }
    let functions: Vec<ScalarUDF> = predict::functions(&Arc::default()).into();
    builder.scalar_functions().get_or_insert_default().extend(functions.into_iter().map(Arc::new));
    builder
}
