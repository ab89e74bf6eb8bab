//! Utilities of rules that rewrite expressions: traversal of a plan's expressions node by node, and
//! function calls.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result, internal_err};
use datafusion::logical_expr::expr::InSubquery;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Cast, ColumnarValue, ExprSchemable, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, TryCast, cast,
};
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{
    self, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, ObjectName,
};

pub(super) use crate::error::shown;

/// Returns a function call in a syntax tree.
pub(super) fn call(name: &str, arguments: Vec<ast::Expr>) -> ast::Expr {
    let args = arguments.into_iter().map(|expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))).collect();
    ast::Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// Returns whether the plan or one of its subqueries has a matching expression. The search costs a
/// fraction of a rewrite without changes.
pub(super) fn has(plan: &LogicalPlan, mut is_one: impl FnMut(&Expr) -> bool) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            found = found || expr.exists(|expr| Ok(is_one(expr)))?;
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Returns whether the plan or one of its subqueries has a matching node.
pub(super) fn has_node(plan: &LogicalPlan, is_one: impl Fn(&LogicalPlan) -> bool) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found = found || is_one(node);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Rewrites the expressions of all nodes with their input schemas, if any expression matches.
pub(super) fn rewritten_if_any(
    plan: LogicalPlan,
    is_one: impl Fn(&Expr) -> bool,
    rewrite: impl Fn(Expr, &DFSchema) -> Result<Transformed<Expr>>,
) -> Result<LogicalPlan> {
    if !has(&plan, is_one)? {
        return Ok(plan);
    }
    let rewritten = plan.transform_up_with_subqueries(|node| {
        let schema = readable(&node)?;
        rewritten(node, |expr| rewrite(expr, &schema))
    });
    Ok(rewritten?.data)
}

/// Returns the target type of a cast.
pub(super) fn cast_to(expr: &Expr) -> Option<&DataType> {
    match expr {
        Expr::Cast(Cast { field, .. }) | Expr::TryCast(TryCast { field, .. }) => Some(field.data_type()),
        _ => None,
    }
}

/// Returns the operand and target type of a cast, and true if it returns NULL on failure. Includes
/// casts to a type in Arrow's notation.
pub(super) fn as_cast<'e>(expr: &'e Expr, schema: &DFSchema) -> Option<(&'e Expr, DataType, bool)> {
    match expr {
        Expr::Cast(Cast { expr: value, field }) => Some((value, field.data_type().clone(), false)),
        Expr::TryCast(TryCast { expr: value, field }) => Some((value, field.data_type().clone(), true)),
        Expr::ScalarFunction(call) if ["arrow_cast", "arrow_try_cast"].contains(&call.name()) => {
            Some((call.args.first()?, expr.get_type(schema).ok()?, call.name() == "arrow_try_cast"))
        }
        _ => None,
    }
}

/// Returns the columns that the expressions of a node may read.
pub(super) fn readable(node: &LogicalPlan) -> Result<DFSchema> {
    match node {
        LogicalPlan::TableScan(scan) => {
            DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())
        }
        other => Ok(merge_schema(&other.inputs())),
    }
}

/// Returns whether the expression contains a subquery.
pub(super) fn has_subquery(expr: &Expr) -> Result<bool> {
    expr.exists(|expr| Ok(matches!(expr, Expr::InSubquery(_) | Expr::Exists(_) | Expr::ScalarSubquery(_))))
}

/// Rewrites the expressions of all nodes with their input schemas, and recomputes the types of all
/// columns.
pub(super) fn rewritten_everywhere(
    plan: LogicalPlan,
    rewrite: impl Fn(Expr, &DFSchema) -> Transformed<Expr>,
) -> Result<LogicalPlan> {
    try_rewritten_everywhere(plan, |expr, schema| Ok(rewrite(expr, schema)))
}

/// As [`rewritten_everywhere`], with a rewrite that can fail.
pub(super) fn try_rewritten_everywhere(
    plan: LogicalPlan,
    rewrite: impl Fn(Expr, &DFSchema) -> Result<Transformed<Expr>>,
) -> Result<LogicalPlan> {
    let plan = plan.transform_up_with_subqueries(|node| {
        let schema = readable(&node)?;
        let rewritten = rewritten(node, |expr| rewrite(expr, &schema))?;
        // Recomputed even if unchanged: the types of an input may have changed.
        rewritten.map_data(LogicalPlan::recompute_schema)
    });
    Ok(plan?.data)
}

/// Applies `settle` to the value of an IN and the column of its subquery, with their types. Returns
/// the result of `settle`, which is true if a change was necessary.
pub(super) fn settle_subquery(
    found: &mut InSubquery,
    schema: &DFSchema,
    settle: impl FnOnce(&mut [&mut Expr], &[DataType]) -> bool,
) -> Result<bool> {
    let (table, field) = found.subquery.subquery.schema().qualified_field(0);
    let name = field.name().clone();
    let types = [type_of(&found.expr, schema), field.data_type().clone()];
    let as_it_is = Expr::Column(Column::new(table.cloned(), &name));
    let mut column = as_it_is.clone();
    let changed = settle(&mut [&mut found.expr, &mut column], &types);
    if column != as_it_is {
        let plan = LogicalPlanBuilder::new_from_arc(Arc::clone(&found.subquery.subquery));
        found.subquery.subquery = plan.project([column.alias(name)])?.build()?.into();
    }
    Ok(changed)
}

/// Returns the plan with its columns cast to the types that `wanted` returns for their positions,
/// under the same names. Returns `None` if no type changes.
pub(super) fn cast_columns(
    plan: &Arc<LogicalPlan>,
    wanted: impl Fn(usize, &DataType) -> Option<DataType>,
) -> Result<Option<LogicalPlan>> {
    let mut changed = false;
    let columns = plan.schema().columns().into_iter().zip(plan.schema().fields()).enumerate();
    let columns = columns.map(|(place, (column, field))| {
        let (table, name) = (column.relation.clone(), column.name.clone());
        match wanted(place, field.data_type()) {
            Some(wanted) => {
                changed = true;
                cast(Expr::Column(column), wanted).alias_qualified(table, name)
            }
            None => Expr::Column(column),
        }
    });
    let columns: Vec<Expr> = columns.collect();
    match changed {
        true => LogicalPlanBuilder::new_from_arc(Arc::clone(plan)).project(columns)?.build().map(Some),
        false => Ok(None),
    }
}

/// Returns the type of an expression, or the type of NULL if it has none, such as a parameter.
pub(super) fn type_of(expr: &Expr, schema: &DFSchema) -> DataType {
    expr.get_type(schema).unwrap_or(DataType::Null)
}

/// Rewrites the expressions of a node, inner before outer. The columns keep their names.
pub(super) fn rewritten(
    node: LogicalPlan,
    mut rewrite: impl FnMut(Expr) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&node);
    node.map_expressions(|expr| {
        let name = names.save(&expr);
        Ok(expr.transform_up(&mut rewrite)?.update_data(|expr| name.restore(expr)))
    })
}

/// Returns the result type of a function of one argument that preserves its type.
pub(super) fn type_of_only(name: &str, types: &[DataType]) -> Result<DataType> {
    match types {
        [only] => Ok(only.clone()),
        _ => internal_err!("{name} takes one argument"),
    }
}

/// Applies `map` to the only argument of a function.
pub(super) fn map_only(
    name: &str,
    mut call: ScalarFunctionArgs,
    map: impl Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    match call.args.pop() {
        Some(ColumnarValue::Array(values)) => Ok(ColumnarValue::Array(map(&values)?)),
        Some(ColumnarValue::Scalar(value)) => {
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&map(&value.to_array()?)?, 0)?))
        }
        None => internal_err!("{name} takes one argument"),
    }
}
