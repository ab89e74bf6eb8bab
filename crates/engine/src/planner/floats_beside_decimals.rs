//! A float beside a decimal makes both floats.
//!
//! DataFusion does so in arithmetic, but uses Decimal(30, 15) for comparisons and for the type of
//! CASE, coalesce(), VALUES or a UNION. `x < 0.1` fails on a double of 1e16, and so does
//! `CASE WHEN b THEN x ELSE 0.0 END`. PostgreSQL and DuckDB convert both to floats. A decimal
//! beside REALs alone becomes a REAL, so that `r = 0.1` finds a REAL of 0.1.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{BinaryExpr, ExprSchemable, LogicalPlan, Operator, Union, Values, cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{CastKind, DataType as SqlType, Expr as SqlExpr, Values as SqlValues};

use super::checked_arithmetic::is_checked;
use super::expressions;
use super::lossy_casts::as_any_cast;

#[derive(Debug)]
pub(super) struct FloatsBesideDecimals;

impl AnalyzerRule for FloatsBesideDecimals {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Values(values) => Ok(Transformed::yes(LogicalPlan::Values(settle_values(values)?))),
            other => rewrite_node(other),
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "floats_beside_decimals"
    }
}

fn rewrite_node(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let schema = expressions::readable(&plan)?;
    let rewritten = expressions::rewritten(plan, |expr| rewrite(expr, &schema))?;
    let rewritten = match rewritten.data {
        LogicalPlan::Join(mut join) => {
            for (left, right) in &mut join.on {
                settle(&mut [left, right], &schema);
            }
            LogicalPlan::Join(join)
        }
        LogicalPlan::Union(union) => LogicalPlan::Union(settle_union(union)?),
        other => other,
    };
    // Recomputed even if unchanged: the types of an input may have changed.
    Ok(Transformed::yes(rewritten.recompute_schema()?))
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let changed = match &mut expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if COMPARISONS.contains(op) => {
            settle(&mut [left, right], schema)
        }
        Expr::Between(between) => settle(&mut [&mut between.expr, &mut between.low, &mut between.high], schema),
        Expr::InList(list) => {
            let mut all: Vec<&mut Expr> = list.list.iter_mut().collect();
            all.push(&mut list.expr);
            settle(&mut all, schema)
        }
        Expr::InSubquery(found) => expressions::settle_subquery(found, schema, settle_types)?,
        Expr::Case(case) => {
            let (conditions, results): (Vec<_>, Vec<_>) =
                case.when_then_expr.iter_mut().map(|(when, then)| (when.as_mut(), then.as_mut())).unzip();
            // With an operand, the conditions are values compared with it.
            let mut compared = conditions;
            compared.extend(case.expr.as_deref_mut());
            let mut results = results;
            results.extend(case.else_expr.as_deref_mut());
            let changed = settle(&mut compared, schema);
            settle(&mut results, schema) || changed
        }
        // The rule runs again over a view's plan.
        Expr::ScalarFunction(call) if !MAKES_FIELDS.contains(&call.name()) && !is_checked(call) => {
            settle(&mut call.args.iter_mut().collect::<Vec<_>>(), schema)
        }
        Expr::WindowFunction(call) => settle(&mut call.params.args.iter_mut().collect::<Vec<_>>(), schema),
        _ => false,
    };
    Ok(if changed { Transformed::yes(expr) } else { Transformed::no(expr) })
}

/// Comparison operators.
pub(super) const COMPARISONS: [Operator; 8] = [
    Operator::Eq,
    Operator::NotEq,
    Operator::Lt,
    Operator::LtEq,
    Operator::Gt,
    Operator::GtEq,
    Operator::IsDistinctFrom,
    Operator::IsNotDistinctFrom,
];

/// Functions whose arguments are independent of each other.
const MAKES_FIELDS: [&str; 2] = ["struct", "named_struct"];

/// Casts decimals to floats if a float is among the expressions. Returns whether it did.
fn settle(exprs: &mut [&mut Expr], schema: &DFSchema) -> bool {
    let types: Vec<DataType> = exprs.iter().map(|expr| expressions::type_of(expr, schema)).collect();
    settle_types(exprs, &types)
}

fn settle_types(exprs: &mut [&mut Expr], types: &[DataType]) -> bool {
    let Some(float) = common_float(types.iter()) else { return false };
    for (expr, _) in exprs.iter_mut().zip(types).filter(|(_, data_type)| data_type.is_decimal()) {
        let decimal = std::mem::take(&mut **expr);
        **expr = as_float(decimal, &float);
    }
    true
}

/// Returns the common float type if the types include decimals and floats.
pub(super) fn common_float<'a>(types: impl Iterator<Item = &'a DataType>) -> Option<DataType> {
    let mut has_decimal = false;
    let mut float = None;
    for data_type in types {
        match data_type {
            DataType::Float64 => float = Some(DataType::Float64),
            DataType::Float16 | DataType::Float32 => float = float.or(Some(DataType::Float32)),
            other => has_decimal |= other.is_decimal(),
        }
    }
    float.filter(|_| has_decimal)
}

/// Returns a decimal as a float. A literal is parsed again, since a conversion could change its
/// last digit.
fn as_float(decimal: Expr, float: &DataType) -> Expr {
    let read = match &decimal {
        Expr::Literal(value, _) if *float == DataType::Float64 => {
            value.to_string().parse().ok().map(|x| ScalarValue::Float64(Some(x)))
        }
        Expr::Literal(value, _) => value.to_string().parse().ok().map(|x| ScalarValue::Float32(Some(x))),
        _ => None,
    };
    match read {
        Some(value) => Expr::Literal(value, None),
        None => cast(decimal, float.clone()),
    }
}

/// Duplicates explicit casts to decimals in VALUES. [`settle_values`] would take a single one for
/// DataFusion's.
pub(super) fn rewrite_values(values: &mut SqlValues) {
    for value in values.rows.iter_mut().flat_map(|row| &mut row.content) {
        if let SqlExpr::Cast { data_type: SqlType::Decimal(_) | SqlType::Numeric(_) | SqlType::Dec(_), .. } = value {
            let data_type = match value {
                SqlExpr::Cast { data_type, .. } => data_type.clone(),
                _ => continue,
            };
            let expr = Box::new(value.clone());
            *value = SqlExpr::Cast { kind: CastKind::Cast, expr, data_type, array: false, format: None };
        }
    }
}

/// Restores floats in columns of values that DataFusion has cast to a decimal.
fn settle_values(mut values: Values) -> Result<Values> {
    let nothing = DFSchema::empty();
    let mut fields: Vec<_> = values.schema.iter().map(|(table, field)| (table.cloned(), field.clone())).collect();
    for (column, (_, field)) in fields.iter_mut().enumerate().filter(|(_, (_, field))| field.data_type().is_decimal()) {
        let decimal = field.data_type().clone();
        let types: Vec<DataType> = values
            .values
            .iter()
            .filter_map(|row| row.get(column))
            .filter(|value| !matches!(value, Expr::Literal(value, _) if value.is_null()))
            .map(|value| before_cast(value, &decimal).get_type(&nothing))
            .collect::<Result<_>>()?;
        // Without decimals, the column holds floats and integers. DataFusion makes floats of them.
        let Some(float) = common_float(types.iter()) else { continue };
        for value in values.values.iter_mut().filter_map(|row| row.get_mut(column)) {
            let written = before_cast(value, &decimal).clone();
            *value = match written.get_type(&nothing)? == float {
                true => written,
                false => as_float(written, &float),
            };
        }
        *field = Arc::new(field.as_ref().clone().with_data_type(float));
    }
    let schema = DFSchema::new_with_metadata(fields, values.schema.metadata().clone())?;
    Ok(Values { schema: Arc::new(schema), values: values.values })
}

/// Returns the operand of a cast to this type.
fn before_cast<'a>(expr: &'a Expr, data_type: &DataType) -> &'a Expr {
    match (expr, as_any_cast(expr)) {
        // An alias preserves the name from before the rewrite.
        (Expr::Alias(named), _) => before_cast(&named.expr, data_type),
        (_, Some((value, to))) if to == data_type => value,
        _ => expr,
    }
}

fn settle_union(union: Union) -> Result<Union> {
    let columns = union.schema.fields().len();
    let floats: Vec<Option<DataType>> = (0..columns)
        .map(|i| common_float(union.inputs.iter().map(|input| input.schema().field(i).data_type())))
        .collect();
    if floats.iter().all(Option::is_none) {
        return Ok(union);
    }
    let inputs = union.inputs.into_iter().map(|input| {
        let float = |place: usize, is: &DataType| floats.get(place)?.clone().filter(|_| is.is_decimal());
        Ok(expressions::cast_columns(&input, float)?.map_or(input, Arc::new))
    });
    Union::try_new_with_loose_types(inputs.collect::<Result<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn huge_doubles_meet_decimals() {
        for (expression, expected) in [
            ("x > 0.1", "true false"),
            ("0.1 IS NOT DISTINCT FROM x", "false true"),
            ("x BETWEEN 0.1 AND 0.5", "false true"),
            ("x IN (0.1, 7.5)", "false true"),
            ("CASE x WHEN 0.1 THEN 1 ELSE 2 END", "2 1"),
            ("CASE WHEN x > 1.0 THEN x ELSE 0.0 END", "1e300 0.0"),
            ("coalesce(nullif(x, 0.1), 2.5)", "1e300 2.5"),
            ("greatest(x, 7.5)", "1e300 7.5"),
            ("lag(x, 1, 2.5) OVER (ORDER BY x DESC)", "2.5 1e300"),
            ("x * 2.0 > 0.5 + x", "true false"),
            ("arrow_typeof(x + d)", "Float64 Float64"),
            ("x = d", "false true"),
            ("CAST(least(x, 7e0) AS REAL) = 0.1", "false true"),
        ] {
            let text =
                format!("SELECT {expression} FROM (VALUES (1e300, 0.5), (1e-1, 0.1)) AS t(x, d) ORDER BY x DESC");
            assert_eq!(rows(&text).await.join(" "), expected, "{expression}");
        }
    }

    #[tokio::test]
    async fn so_do_values() {
        for (values, expected) in [
            ("(CAST(1e-20 AS DOUBLE)), (1.0)", "Float64 1e-20,Float64 1.0"),
            ("(1.5), (NULL), (1e300), (2)", "Float64 1.5,Float64 NULL,Float64 1e300,Float64 2.0"),
            ("(0.1), (CAST(0.5 AS REAL))", "Float32 0.1,Float32 0.5"),
            ("(1.5), (2)", "Decimal128(21, 1) 1.5,Decimal128(21, 1) 2.0"),
            (
                "(CAST(1.5e0 AS DECIMAL(30, 15))), (CAST(2 AS DECIMAL(30, 15)))",
                "Decimal128(30, 15) 1.500000000000000,Decimal128(30, 15) 2.000000000000000",
            ),
        ] {
            let text = format!("SELECT arrow_typeof(x), x FROM (VALUES {values}) AS t(x)");
            assert_eq!(rows(&text).await.join(","), expected, "{values}");
        }
    }

    #[tokio::test]
    async fn so_do_joins_and_set_operations() {
        let tables = "WITH f(x) AS (VALUES (1e300), (1e-1)), d(y) AS (VALUES (0.1), (0.7))";
        for (query, expected) in [
            ("SELECT x, y FROM f JOIN d ON x = y", "0.1 0.1"),
            ("SELECT x FROM f LEFT JOIN d ON x > y WHERE y IS NULL", "0.1"),
            ("SELECT x FROM f UNION SELECT y FROM d ORDER BY 1", "0.1,0.7,1e300"),
            ("SELECT y FROM d UNION ALL SELECT x FROM f ORDER BY 1", "0.1,0.1,0.7,1e300"),
            ("SELECT x FROM f EXCEPT SELECT y FROM d", "1e300"),
            ("SELECT y FROM d INTERSECT SELECT x FROM f", "0.1"),
            ("SELECT x FROM f WHERE x IN (SELECT y FROM d)", "0.1"),
            ("SELECT 0.0 INTERSECT SELECT CAST(1e-9 AS REAL)", ""),
            ("SELECT 1.5 EXCEPT SELECT CAST(1e10 AS REAL)", "1.5"),
            ("SELECT a FROM (VALUES (0.1), (CAST(1e-9 AS REAL))) AS v(a)", "0.1,1e-9"),
        ] {
            assert_eq!(rows(&format!("{tables} {query}")).await.join(","), expected, "{query}");
        }
    }
}
