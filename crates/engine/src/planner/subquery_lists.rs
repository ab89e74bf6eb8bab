//! The rows of a subquery as one list: `ARRAY(SELECT ..)`, and `x > ANY (SELECT ..)`.
//!
//! DataFusion 55.2.0 (apache/datafusion #25258) moves the `x` of `x > ANY (SELECT y ..)` into the
//! subquery, as a condition on both queries. The resulting join confuses `x` with a column of the
//! subquery that has the same name and table:
//!
//! ```sql
//! SELECT id FROM p WHERE pay > ANY (SELECT pay FROM p)   -- tests pay > pay: no rows
//! ```
//!
//! DataFusion does not support `ARRAY(SELECT ..)`. Here both become a scalar subquery of one list,
//! which contains no column of the value beside it:
//!
//! 1. In the tree, `x op ANY (SELECT ..)` becomes `__any_op(x, __set_of((SELECT ..)))`, see
//!    [`quantified`]. `ARRAY(SELECT ..)` becomes `__array_of((SELECT ..))`. `= ANY` and `<> ALL`
//!    are IN and NOT IN, and stay joins.
//! 2. In the plan, `__array_of` aggregates the subquery's rows in its order. `__set_of` keeps the
//!    least value, the greatest, and NULL if there is one: order comparisons need no more. Strings
//!    beside a value of another type are ordered differently from that type, so their list keeps
//!    all values.
//! 3. No rows are an empty list. The scalar subquery returns NULL, and [`OrEmpty`] replaces it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::functions_aggregate::expr_fn::{array_agg, count};
use datafusion::functions_nested::expr_fn::make_array;
use datafusion::logical_expr::expr::{ScalarFunction, Sort as SortExpr};
use datafusion::logical_expr::{
    ColumnarValue, Distinct, DistinctOn, ExprFunctionExt, Limit, LogicalPlan, LogicalPlanBuilder, Projection,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Subquery, SubqueryAlias, Volatility, lit, when,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::sql::sqlparser::ast::{self, FunctionArguments, ObjectNamePart};

use super::{expressions, float_extremes, quantified, unnesting};
use crate::identifiers::normal;

/// The function of a list of all rows, in the subquery's order.
pub(super) const ARRAY_OF: &str = "__array_of";

/// The function of a list for which ANY and ALL return the same as for the subquery.
pub(super) const SET_OF: &str = "__set_of";

/// The name of a subquery's list.
const LIST: &str = "__list";

/// The prefix of the names of its order's keys; a number follows.
const KEY: &str = "__order";

/// Rewrites `ARRAY(SELECT ..)`.
pub(super) fn rewrite(expr: &mut ast::Expr) {
    let ast::Expr::Function(function) = expr else { return };
    let is_array = matches!(function.name.0.as_slice(), [ObjectNamePart::Identifier(name)] if normal(name) == "array");
    let FunctionArguments::Subquery(query) = &function.args else { return };
    if is_array {
        *expr = expressions::call(ARRAY_OF, vec![ast::Expr::Subquery(query.clone())]);
    }
}

/// Returns the functions that rewritten statements call until they are analyzed.
pub(super) fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    [ARRAY_OF, SET_OF].into_iter().map(|name| {
        let signature = Signature::any(1, Volatility::Immutable);
        Arc::new(ScalarUDF::from(ListOf { name, signature }))
    })
}

#[derive(Debug)]
pub(super) struct SubqueryLists;

impl AnalyzerRule for SubqueryLists {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| is_call(expr, ARRAY_OF) || is_call(expr, SET_OF);
        expressions::rewritten_if_any(plan, is_one, listed)
    }

    fn name(&self) -> &str {
        "subquery_lists"
    }
}

fn is_call(expr: &Expr, name: &str) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.name() == name)
}

fn listed(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::ScalarFunction(ScalarFunction { func, args }) = expr else { return Ok(Transformed::no(expr)) };
    match args.as_slice() {
        [Expr::ScalarSubquery(subquery)] if func.name() == ARRAY_OF => return Ok(Transformed::yes(array(subquery)?)),
        [value, set] if quantified::is_one(func.name()) => {
            if let Expr::ScalarFunction(call) = set
                && call.name() == SET_OF
                && let [Expr::ScalarSubquery(subquery)] = call.args.as_slice()
            {
                let list = set_for(&expressions::type_of(value, schema), subquery)?;
                return Ok(Transformed::yes(func.call(vec![value.clone(), list])));
            }
        }
        _ => {}
    }
    Ok(Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args })))
}

/// Aggregates the rows of a subquery of one column to a list.
pub(super) fn array(subquery: &Subquery) -> Result<Expr> {
    let (plan, order) = match ordered(&subquery.subquery)? {
        Some(Ordered { plan, keys }) => (Arc::new(plan), keys),
        None => (Arc::clone(&subquery.subquery), Vec::new()),
    };
    let items = array_agg(first_column(&plan));
    let items = if order.is_empty() { items } else { items.order_by(order).build()? };
    let list = LogicalPlanBuilder::new_from_arc(plan).aggregate(Vec::<Expr>::new(), [items.alias(LIST)])?;
    Ok(or_empty(list.build()?))
}

/// Aggregates the values of a subquery that ANY and ALL need, for a value of that type.
fn set_for(value_type: &DataType, subquery: &Subquery) -> Result<Expr> {
    let plan = &subquery.subquery;
    let item = plan.schema().field(0).data_type();
    let is_of_texts = item.is_string() && !value_type.is_string() && !value_type.is_null();
    if is_of_texts || !has_extremes(item) {
        return array(subquery);
    }
    let column = first_column(plan);
    let [min, max] = float_extremes::functions();
    let (least, greatest, rows, known) = ("__least", "__greatest", "__rows", "__known");
    let aggregates = [
        min.call(vec![column.clone()]).alias(least),
        max.call(vec![column.clone()]).alias(greatest),
        count(lit(1_i64)).alias(rows),
        count(column).alias(known),
    ];
    let named = |name: &str| Expr::Column(Column::from_name(name));
    let unknown = when(named(rows).eq(named(known)), named(least)).end()?;
    let items = make_array(vec![named(least), named(greatest), unknown]);
    let list = when(named(rows).gt(lit(0_i64)), items).end()?;
    let plan = LogicalPlanBuilder::new_from_arc(Arc::clone(plan)).aggregate(Vec::<Expr>::new(), aggregates)?;
    Ok(or_empty(plan.project([list.alias(LIST)])?.build()?))
}

/// Returns whether min() and max() use the order of a type.
fn has_extremes(item: &DataType) -> bool {
    item.is_numeric()
        || item.is_string()
        || matches!(item, DataType::Boolean | DataType::Date32 | DataType::Timestamp(..) | DataType::Time64(_))
}

fn first_column(plan: &LogicalPlan) -> Expr {
    Expr::Column(Column::from(plan.schema().qualified_field(0)))
}

fn or_empty(plan: LogicalPlan) -> Expr {
    let list = Expr::ScalarSubquery(unnesting::subquery_of(&Arc::new(plan)));
    ScalarUDF::from(OrEmpty { signature: Signature::any(1, Volatility::Immutable) }).call(vec![list])
}

/// A plan whose rows are in the order of these keys.
struct Ordered {
    plan: LogicalPlan,
    keys: Vec<SortExpr>,
}

impl Ordered {
    /// Adds columns for the keys after all others.
    fn shown(self) -> Result<Self> {
        let columns = self.plan.schema().columns().into_iter().map(Expr::Column).collect();
        with_keys(columns, self)
    }
}

/// Returns the order of a plan's rows. Adds columns of the keys if they would be lost.
fn ordered(plan: &LogicalPlan) -> Result<Option<Ordered>> {
    Ok(match plan {
        LogicalPlan::Sort(sort) => Some(Ordered { plan: plan.clone(), keys: sort.expr.clone() }),
        LogicalPlan::Limit(limit) => ordered(&limit.input)?.map(|Ordered { plan, keys }| {
            let limit = Limit { skip: limit.skip.clone(), fetch: limit.fetch.clone(), input: Arc::new(plan) };
            Ordered { plan: LogicalPlan::Limit(limit), keys }
        }),
        LogicalPlan::Projection(projection) => match ordered(&projection.input)? {
            Some(input) => Some(with_keys(projection.expr.clone(), input)?),
            None => None,
        },
        LogicalPlan::SubqueryAlias(alias) => match ordered(&alias.input)? {
            Some(input) => {
                let input = input.shown()?;
                let plan = SubqueryAlias::try_new(Arc::new(input.plan), alias.alias.clone())?;
                let under = |name: &str| Expr::Column(Column::new(Some(alias.alias.clone()), name));
                let keys = input.keys.iter().enumerate();
                let keys = keys.map(|(at, key)| key.with_expr(under(&format!("{KEY}{at}")))).collect();
                Some(Ordered { plan: LogicalPlan::SubqueryAlias(plan), keys })
            }
            None => None,
        },
        LogicalPlan::Distinct(Distinct::On(distinct)) => match &distinct.sort_expr {
            Some(order) => Some(first_of_each(distinct, order)?),
            None => None,
        },
        _ => None,
    })
}

fn with_keys(mut exprs: Vec<Expr>, input: Ordered) -> Result<Ordered> {
    exprs.extend(named_keys(&input.keys));
    let plan = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input.plan))?);
    Ok(Ordered { plan, keys: columns_of(&input.keys) })
}

fn first_of_each(distinct: &DistinctOn, order: &[SortExpr]) -> Result<Ordered> {
    let exprs = distinct.select_expr.iter().cloned().chain(named_keys(order)).collect();
    let plan = DistinctOn::try_new(distinct.on_expr.clone(), exprs, Some(order.to_vec()), Arc::clone(&distinct.input))?;
    Ok(Ordered { plan: LogicalPlan::Distinct(Distinct::On(plan)), keys: columns_of(order) })
}

fn named_keys(keys: &[SortExpr]) -> impl Iterator<Item = Expr> {
    keys.iter().enumerate().map(|(at, key)| key.expr.clone().alias(format!("{KEY}{at}")))
}

fn columns_of(keys: &[SortExpr]) -> Vec<SortExpr> {
    let column = |at: usize| Expr::Column(Column::from_name(format!("{KEY}{at}")));
    keys.iter().enumerate().map(|(at, key)| key.with_expr(column(at))).collect()
}

/// A subquery whose rows become a list when the plan is analyzed.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ListOf {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for ListOf {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let item = expressions::type_of_only(self.name, types)?;
        Ok(DataType::List(Arc::new(Field::new_list_field(item, true))))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{} was not analyzed", self.name)
    }
}

/// A function that returns its argument, or an empty list instead of NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OrEmpty {
    signature: Signature,
}

impl ScalarUDFImpl for OrEmpty {
    fn name(&self) -> &str {
        "or_empty"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        expressions::type_of_only(self.name(), types)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, without_nulls)
    }
}

fn without_nulls(lists: &ArrayRef) -> Result<ArrayRef> {
    let Some(lists) = lists.as_list_opt::<i32>() else { return internal_err!("or_empty takes a list") };
    if lists.null_count() == 0 {
        return Ok(Arc::new(lists.clone()));
    }
    // The items behind NULL lists are omitted.
    let lengths = (0..lists.len()).map(|row| if lists.is_null(row) { 0 } else { lists.value(row).len() });
    let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
    let known: Vec<ArrayRef> =
        (0..lists.len()).filter(|row| lists.is_valid(*row)).map(|row| lists.value(row)).collect();
    let known: Vec<&dyn Array> = known.iter().map(AsRef::as_ref).collect();
    let items = match known.as_slice() {
        [] => lists.values().slice(0, 0),
        known => arrow::compute::concat(known)?,
    };
    let DataType::List(field) = lists.data_type() else { return internal_err!("or_empty takes a list") };
    Ok(Arc::new(ListArray::try_new(Arc::clone(field), offsets, items, None)?))
}
