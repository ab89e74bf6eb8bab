//! `coalesce(t, '2030-01-01')` of a date or time is of its type: the string is read as one, as PostgreSQL and DuckDB do.
//!
//! DataFusion 55.2 finds no common type for the two, and refuses the call ("Fail to find the coerced type",
//! apache/datafusion#25175). Everything else is left to its function.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::functions::core as core_functions;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};
use datafusion::prelude::Expr;

use super::declared_as::declared_as;

/// `coalesce`, which knows what strings beside dates and times are.
pub(super) fn coalesce() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Coalesce { inner: core_functions::coalesce() }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Coalesce {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Coalesce {
    declared_as!(inner);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let Some(moment) = types.iter().find(|data_type| data_type.is_temporal()) else {
            return self.inner.coerce_types(types);
        };
        let read = |data_type: &DataType| if data_type.is_string() { moment.clone() } else { data_type.clone() };
        self.inner.coerce_types(&types.iter().map(read).collect::<Vec<_>>())
    }

    fn simplify(&self, args: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.inner.simplify(args, context)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.inner.invoke_with_args(call)
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.inner.conditional_arguments(args)
    }

    fn short_circuits(&self) -> bool {
        self.inner.short_circuits()
    }
}
