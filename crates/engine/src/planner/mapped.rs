//! A function that only the planner calls. It maps the values of its one argument to other values
//! of the same type.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::Expr;

use super::expressions;

/// Maps NULL to NULL. Two are equal if their names are equal.
#[derive(Debug)]
pub(super) struct Mapped {
    name: &'static str,
    signature: Signature,
    map: fn(&ArrayRef) -> Result<ArrayRef>,
}

impl Mapped {
    /// Returns the function of a name. `map` accepts every type that the function is called with,
    /// and keeps it.
    pub(super) fn function(name: &'static str, map: fn(&ArrayRef) -> Result<ArrayRef>) -> ScalarUDF {
        ScalarUDF::from(Self { name, signature: Signature::any(1, Volatility::Immutable), map })
    }

    /// Returns the name of the function that an expression calls, if it is a [`Mapped`].
    pub(super) fn name_of(expr: &Expr) -> Option<&'static str> {
        match expr {
            Expr::ScalarFunction(call) => call.func.inner().downcast_ref::<Self>().map(|mapped| mapped.name),
            _ => None,
        }
    }
}

impl PartialEq for Mapped {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Mapped {}

impl std::hash::Hash for Mapped {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Mapped {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        expressions::type_of_only(self.name, types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        match args.arg_fields {
            [value] => Ok(Arc::clone(value)),
            _ => internal_err!("{} takes one argument", self.name),
        }
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name, call, self.map)
    }
}
