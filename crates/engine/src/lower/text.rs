//! Evaluates DataFusion's expressions over one text column: once per entry of its dictionary, or
//! for the rows of a vector whose text is read late.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, DFSchema, DataFusionError};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, ExprSchemable, Operator};
use datafusion::physical_expr::PhysicalExpr;
use onehop_pipeline::{Bounds, DictionaryFunction, Error as PipelineError, Interval, Result as PipelineResult};

use super::expr::{bounds, cannot_fail};
use crate::planner::guarded_expression;

/// An expression over a text column.
#[derive(Debug)]
pub(super) struct TextFunction {
    name: String,
    expr: Arc<dyn PhysicalExpr>,
    schema: Arc<Schema>,
    /// The type in which pipelines take its results.
    result: DataType,
    /// The range of its results if they are integers.
    interval: Interval,
    can_fail: bool,
}

/// Returns the type in which pipelines take a type; `None` if they do not support it.
pub(super) fn canonical(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Boolean => Some(DataType::Boolean),
        DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32
        | DataType::Date32 => Some(DataType::Int64),
        DataType::Float64 => Some(DataType::Float64),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(DataType::Utf8View),
        _ => None,
    }
}

/// Functions that have a result for every text, as far as that depends on the text.
const NEVER_FAIL: &[&str] = &[
    "ascii",
    "bit_length",
    "btrim",
    "character_length",
    "coalesce",
    "concat",
    "contains",
    "ends_with",
    "left",
    "lower",
    "ltrim",
    "nullif",
    "octet_length",
    "replace",
    "reverse",
    "right",
    "rtrim",
    "split_part",
    "starts_with",
    "strpos",
    "substr",
    "upper",
];

/// Returns whether an expression may fail for some text. Unknown expressions may.
fn can_fail(expr: &Expr, schema: &DFSchema) -> Result<bool, DataFusionError> {
    expr.exists(|expr| {
        Ok(match expr {
            expr if cannot_fail(expr) => false,
            Expr::Like(_) | Expr::Case(_) | Expr::TryCast(_) => false,
            Expr::BinaryExpr(binary) => binary.op != Operator::StringConcat,
            Expr::Cast(cast) => {
                let (from, to) = (cast.expr.get_type(schema)?, cast.field.data_type());
                let is_wider = from.is_integer() && *to == DataType::Int64 && from != DataType::UInt64;
                !(is_wider || from == *to || from.is_string() && to.is_string())
            }
            Expr::ScalarFunction(call) => !NEVER_FAIL.contains(&call.name()),
            _ => true,
        })
    })
}

impl TextFunction {
    /// Creates the function of `expr`, which reads only `column` and has values of type
    /// `data_type`. Pipelines take its results as `result`.
    pub fn new(
        expr: &Expr,
        column: &Column,
        data_type: &DataType,
        result: DataType,
        state: &SessionState,
    ) -> Result<Self, DataFusionError> {
        let schema = Arc::new(Schema::new(vec![Field::new(&column.name, DataType::Utf8View, true)]));
        let qualified = match &column.relation {
            Some(relation) => DFSchema::try_from_qualified_schema(relation.clone(), &schema)?,
            None => DFSchema::try_from(Arc::clone(&schema))?,
        };
        let physical = state.create_physical_expr(guarded_expression(expr.clone(), &qualified)?, &qualified)?;
        let name = expr.human_display().to_string().replace(&column.to_string(), "$");
        let Bounds { min, max, .. } = match data_type {
            DataType::Date32 => bounds(&DataType::Int32),
            other if other.is_integer() => bounds(other),
            _ => bounds(&DataType::Int64),
        };
        let can_fail = can_fail(expr, &qualified)?;
        Ok(Self { name, expr: physical, schema, result, interval: Interval::new(min, max), can_fail })
    }

    fn evaluate(&self, texts: &StringViewArray) -> Result<ArrayRef, DataFusionError> {
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), vec![Arc::new(texts.clone())])?;
        let results = self.expr.evaluate(&batch)?.into_array(batch.num_rows())?;
        let integers = match results.data_type() {
            DataType::Date32 => cast(&results, &DataType::Int32)?,
            _ => results,
        };
        Ok(cast(&integers, &self.result)?)
    }
}

impl DictionaryFunction for TextFunction {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn interval(&self) -> Interval {
        self.interval
    }

    fn can_fail(&self) -> bool {
        self.can_fail
    }

    fn apply(&self, texts: &StringViewArray) -> PipelineResult<ArrayRef> {
        // An entry that no row uses must not fail a query: DataFusion, which evaluates only rows,
        // decides.
        self.evaluate(texts).map_err(|e| PipelineError::Unsupported(format!("{}: {}", self.name, e.strip_backtrace())))
    }
}
