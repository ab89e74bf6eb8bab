//! `coalesce`, `ifnull`, `nvl` and `nvl2` return the common type of their values.
//!
//! `coalesce(t, '2030-01-01')` of a date or time returns that type: it casts the string to it, as
//! PostgreSQL and DuckDB do. DataFusion 55.2 finds no common type for the two and refuses the call
//! ("Fail to find the coerced type", apache/datafusion#25175). `ifnull` and `nvl` are the
//! `coalesce` of two values. DataFusion declares them for numbers up to 64 bits and strings: a
//! decimal returns a double, a date a string. `nvl2(tested, a, b)` has the common type of `a` and
//! `b`. DataFusion includes the tested value in the common type, and refuses dates beside numbers.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, plan_err};
use datafusion::functions::core as core_functions;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use datafusion::prelude::Expr;

use super::declared_as::declared_as;

/// Returns the replacements of DataFusion's functions.
pub(super) fn functions() -> [Arc<ScalarUDF>; 3] {
    let coalesce = Coalesce { of: core_functions::coalesce() };
    let of_two = CoalesceOfTwo { named: core_functions::nvl(), coalesce: Coalesce { of: core_functions::coalesce() } };
    let nvl2 = Nvl2 { of: core_functions::nvl2() };
    [Arc::new(coalesce.into()), Arc::new(of_two.into()), Arc::new(nvl2.into())]
}

/// Returns the types to cast the values to. The result has one of them.
fn common_types(types: &[DataType]) -> Result<Vec<DataType>> {
    let coalesce = core_functions::coalesce();
    let Some(moment) = types.iter().find(|data_type| data_type.is_temporal()) else {
        return coalesce.coerce_types(types);
    };
    let read = |data_type: &DataType| if data_type.is_string() { moment.clone() } else { data_type.clone() };
    coalesce.coerce_types(&types.iter().map(read).collect::<Vec<_>>())
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Coalesce {
    of: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Coalesce {
    declared_as!(of);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        common_types(types)
    }

    fn simplify(&self, args: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.of.simplify(args, context)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.of.invoke_with_args(call)
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.of.conditional_arguments(args)
    }

    fn short_circuits(&self) -> bool {
        self.of.short_circuits()
    }
}

/// `ifnull` and `nvl`: `coalesce` under another name, with exactly two arguments.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CoalesceOfTwo {
    named: Arc<ScalarUDF>,
    coalesce: Coalesce,
}

impl ScalarUDFImpl for CoalesceOfTwo {
    fn name(&self) -> &str {
        self.named.name()
    }

    fn aliases(&self) -> &[String] {
        self.named.aliases()
    }

    fn signature(&self) -> &Signature {
        self.coalesce.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.coalesce.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let field = self.coalesce.return_field_from_args(args)?;
        Ok(Arc::new(field.as_ref().clone().with_name(self.name())))
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [_, _] => common_types(types),
            _ => plan_err!("{} takes two arguments, not {}", self.name(), types.len()),
        }
    }

    fn simplify(&self, args: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.coalesce.simplify(args, context)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.coalesce.invoke_with_args(call)
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.coalesce.conditional_arguments(args)
    }

    fn short_circuits(&self) -> bool {
        true
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Nvl2 {
    of: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Nvl2 {
    declared_as!(of);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [tested, values @ ..] = types else { return self.of.coerce_types(types) };
        if values.len() != 2 {
            return plan_err!("nvl2 takes three arguments, not {}", types.len());
        }
        let mut all = vec![tested.clone()];
        all.extend(common_types(values)?);
        Ok(all)
    }

    fn simplify(&self, args: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.of.simplify(args, context)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.of.invoke_with_args(call)
    }

    fn short_circuits(&self) -> bool {
        self.of.short_circuits()
    }
}
