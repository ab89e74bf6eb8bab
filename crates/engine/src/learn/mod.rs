//! Machine learning in SQL: models are trained on queries, stored in the catalog, and used as
//! functions.
//!
//! ```text
//! logregr_train('t', 'm', label => .., features => ..)
//!      │ Call: arguments by name                label and features are expressions over the table
//!      ▼
//! Source::plan ── SELECT features, label FROM t ──► operators, as of any query
//!      ▼                                               │ batches, by partitions
//! Learn (operator) ◄── Rows::collect: doubles in chunks, in memory or in a temporary file
//!      │   ▲
//!      ▼   │ passes by threads: onehop-learn; or by a device: lower::DeviceFit
//! Model ── a commit to the catalog
//!              ──► logregr_predict('m', ..), logregr_evaluate('m', 't'), onehop_models
//! ```
//!
//! The CPU reads the table once, whatever it is. A view whose rows differ on each read is thus
//! still one set of rows, and a source that can be read only once is supported. The rows are kept
//! as doubles, within `memory_limit`.
//!
//! Models belong to the catalog. Other sessions see them, and they persist. A statement sees those
//! of its snapshot, and training again replaces a model in one commit.

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

/// The state that a statement's functions need of its session.
pub(crate) struct Learning {
    pub database: Database,
    pub settings: Settings,
    /// The catalog as the statement sees it.
    pub catalog: Arc<Catalog>,
    pub in_transaction: bool,
}

impl fmt::Debug for Learning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learning").finish_non_exhaustive()
    }
}

impl Learning {
    /// Registers the functions for a statement.
    ///
    /// # Errors
    /// The errors of registering a function.
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

/// Registers the functions with sessions. These find no models; those of statements do.
pub(crate) fn configure(mut builder: SessionStateBuilder) -> SessionStateBuilder {
    for (name, function) in table_functions() {
        let function = datafusion::catalog::TableFunction::new(name.into(), function);
        builder.table_functions().get_or_insert_default().insert(name.into(), Arc::new(function));
    }
    let functions: Vec<ScalarUDF> = predict::functions(&Arc::default()).into();
    builder.scalar_functions().get_or_insert_default().extend(functions.into_iter().map(Arc::new));
    builder
}
