//! Subqueries about the row around them, answered for all rows at once.
//!
//! After Neumann and Kemper, "Unnesting Arbitrary Queries" (BTW 2015). A subquery is a function of the columns that it names of the
//! row around it. The domain D is what these columns are, each combination once. [`Domain::unnested`] makes of the subquery's plan
//! one that has its rows for all of D, with columns of D, the keys, before its own:
//!
//! 1. What names nothing of the row around is the same for all of D: D × plan.
//! 2. Where a column of the row around is named, there is a key instead.
//! 3. What is about all rows there are becomes about those of one key: keys are grouped by, windows are partitioned by them, DISTINCT
//!    compares them, LIMIT becomes `row_number() OVER (PARTITION BY keys ..)`, and joins of two such inputs are on equal keys.
//! 4. An aggregate without groups has a row for nobody as well: D LEFT JOIN it, with each aggregate's value of no rows.
//!
//! Values that are equal may look different, and a subquery may say so: keys are what they look like, see [`looks`].
//!
//! The query around is joined with that on D's columns, NULL beside NULL. D is read from the query around once more, so
//! it has to find what is there the first time: see [`superset`].
//!
//! LATERAL joins become such joins here. Those that have nothing but columns and conditions above what names nothing of the row around are
//! joined on these conditions, without D. DataFusion's own rule, which takes conditions on both out of a subquery wherever they are, finds none.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::FieldRef;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{
    Column, DFSchema, DFSchemaRef, DataFusionError, ExprSchema, NullEquality, Result, TableReference,
};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison, Sort as SortExpr};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Cast, Distinct, DistinctOn, ExprFunctionExt, ExprSchemable, FetchType, Filter, Join,
    JoinConstraint, JoinType, Limit, LogicalPlan, LogicalPlanBuilder, Operator, Projection, SkipType, Subquery,
    SubqueryAlias, Union, Unnest, Values, Window, lit, when,
};
use datafusion::prelude::Expr;

use super::{expressions, looks};
use crate::{Error, ErrorKind};

/// What a key is called; a number follows. No two of a statement are the same.
const KEY: &str = "__outer";

/// Names that are given once.
#[derive(Default)]
pub(super) struct Names {
    given: Cell<usize>,
}

impl Names {
    fn next(&self) -> String {
        self.given.set(self.given.get() + 1);
        format!("{KEY}{}", self.given.get())
    }
}

/// Joins that are LATERAL as joins that are not, but for those that DataFusion does right.
pub(super) fn without_laterals(plan: LogicalPlan, names: &Names) -> Result<LogicalPlan> {
    let rewritten = Laterals { names, around: Vec::new() }.without(plan)?;
    match rewritten.transformed {
        // What is above knows of columns that are NULL now.
        true => Ok(rewritten.data.transform_up(|node| node.recompute_schema().map(Transformed::yes))?.data),
        false => Ok(rewritten.data),
    }
}

/// Rewrites LATERAL joins.
struct Laterals<'a> {
    names: &'a Names,
    /// What the queries have that are around the one that is looked at.
    around: Vec<DFSchemaRef>,
}

impl<'a> Laterals<'a> {
    fn within(&self, schema: DFSchemaRef) -> Self {
        let around = self.around.iter().cloned().chain([schema]).collect();
        Self { names: self.names, around }
    }

    fn without(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        deep(|| {
            let plan = self.without_in_expressions(plan)?;
            plan.transform_data(|plan| match below_lateral(plan)? {
                LogicalPlan::Join(join) => self.join(join),
                other => other.map_children(|input| self.without(input)),
            })
        })
    }

    fn without_in_expressions(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let mut has_one = false;
        plan.apply_subqueries(|_| {
            has_one = true;
            Ok(TreeNodeRecursion::Stop)
        })?;
        if !has_one {
            return Ok(Transformed::no(plan));
        }
        let inside = self.within(Arc::new(expressions::readable(&plan)?));
        let mut has_changed = false;
        let rewritten = expressions::rewritten(plan, |expr| {
            let rewritten = with_subquery(expr, |subquery| {
                let rewritten = inside.without(subquery.subquery.as_ref().clone())?;
                if !rewritten.transformed {
                    return Ok(subquery);
                }
                has_changed = true;
                Ok(subquery_of(&Arc::new(rewritten.data)))
            });
            Ok(Transformed::yes(rewritten?))
        })?;
        Ok(Transformed::new(rewritten.data, has_changed, TreeNodeRecursion::Continue))
    }

    fn join(&self, mut join: Join) -> Result<Transformed<LogicalPlan>> {
        let left = self.without(Arc::unwrap_or_clone(join.left))?;
        join.left = Arc::new(left.data);
        let inside = self.within(Arc::clone(join.left.schema()));
        if let Some((subquery, alias)) = lateral_of(&join.right) {
            let (subquery, alias) = (subquery.subquery.as_ref().clone(), alias.cloned());
            let subquery = inside.without(subquery)?.data;
            return Ok(Transformed::yes(joined(join, subquery, alias, self.names)?));
        }
        // DataFusion does not call it LATERAL where the row is named in subqueries of the subquery alone.
        let right = inside.without(join.right.as_ref().clone())?;
        let named = outer_columns_of(&right.data)?;
        let named: Vec<&Column> = named.iter().filter(|column| has(join.left.schema(), column)).collect();
        if named.is_empty() {
            join.right = Arc::new(right.data);
            let is_changed = left.transformed || right.transformed;
            return Ok(Transformed::new(LogicalPlan::Join(join), is_changed, TreeNodeRecursion::Continue));
        }
        if named.iter().any(|column| self.around.iter().any(|schema| has(schema, column))) {
            return Err(refused("a column that two queries around it have"));
        }
        Ok(Transformed::yes(joined(join, right.data, None, self.names)?))
    }
}

/// What WHERE says of the rows that LATERAL is about, is said before it: then it is answered for these alone.
fn below_lateral(plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Filter(filter) = plan else { return Ok(plan) };
    let LogicalPlan::Join(join) = filter.input.as_ref() else { return Ok(LogicalPlan::Filter(filter)) };
    if lateral_of(&join.right).is_none() || !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
        return Ok(LogicalPlan::Filter(filter));
    }
    let is_of_left = |column: &&Column| has(join.left.schema(), column);
    let is_before = |condition: &Expr| is_plain_condition(condition) && condition.column_refs().iter().all(is_of_left);
    let (before, behind): (Vec<Expr>, Vec<Expr>) =
        split_conjunction_owned(filter.predicate.clone()).into_iter().partition(is_before);
    let Some(before) = conjunction(before) else { return Ok(LogicalPlan::Filter(filter)) };
    let left = Arc::new(LogicalPlan::Filter(Filter::try_new(before, Arc::clone(&join.left))?));
    let join = LogicalPlan::Join(Join { left, ..join.clone() });
    match conjunction(behind) {
        Some(behind) => Ok(LogicalPlan::Filter(Filter::try_new(behind, Arc::new(join))?)),
        None => Ok(join),
    }
}

/// One of the rows at hand alone, as often as it is asked.
pub(super) fn is_plain_condition(condition: &Expr) -> bool {
    !has_subquery(condition) && !condition.is_volatile() && !condition.contains_outer()
}

/// Plans may be as deep as statements are long.
fn deep<T>(step: impl FnOnce() -> Result<T>) -> Result<T> {
    const LEFT_BYTES: usize = 128 << 10;
    const MORE_BYTES: usize = 2 << 20;
    stacker::maybe_grow(LEFT_BYTES, MORE_BYTES, step)
}

/// Whether there is a LATERAL join outside of expressions.
pub(super) fn has_lateral(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Subquery(_))))
}

fn lateral_of(right: &LogicalPlan) -> Option<(&Subquery, Option<&TableReference>)> {
    match right {
        LogicalPlan::Subquery(subquery) => Some((subquery, None)),
        LogicalPlan::SubqueryAlias(alias) => match alias.input.as_ref() {
            LogicalPlan::Subquery(subquery) => Some((subquery, Some(&alias.alias))),
            _ => None,
        },
        _ => None,
    }
}

/// A subquery whose conditions on both are above all else that it does.
struct Plain {
    /// The rows that the others are of. Their keys are what these read.
    rows: Unnested,
    /// About keys, and columns of the query around.
    conditions: Vec<Expr>,
}

impl Plain {
    /// If it is one.
    fn of(plan: &LogicalPlan, around: &DFSchema, names: &Names) -> Result<Option<Self>> {
        match plan {
            LogicalPlan::Projection(projection) if projection.expr.iter().all(is_plain_condition) => {
                let Some(Self { rows, conditions }) = Self::of(&projection.input, around, names)? else {
                    return Ok(None);
                };
                let exprs = rows.key_exprs().into_iter().chain(projection.expr.iter().cloned()).collect();
                let rows = Unnested { plan: projected(exprs, rows.plan)?, keys: rows.keys };
                Ok(Some(Self { rows, conditions }))
            }
            LogicalPlan::Filter(filter) => {
                let is_odd = |condition: &Expr| condition.is_volatile() || has_subquery(condition);
                let is_of_both = outer_columns_of(plan)?.iter().all(|column| has(around, column));
                if is_odd(&filter.predicate) || !is_of_both {
                    return Ok(None);
                }
                let input = Self::of(&filter.input, around, names)?;
                input.map(|input| input.filtered(filter.predicate.clone(), names)).transpose()
            }
            source if outer_columns_of(source)?.is_empty() => {
                let rows = Unnested { plan: source.clone(), keys: Vec::new() };
                Ok(Some(Self { rows, conditions: Vec::new() }))
            }
            _ => Ok(None),
        }
    }

    fn filtered(self, condition: Expr, names: &Names) -> Result<Self> {
        let Self { rows, mut conditions } = self;
        let (both, own): (Vec<Expr>, Vec<Expr>) =
            split_conjunction_owned(condition).into_iter().partition(Expr::contains_outer);
        let mut read: Vec<(Column, Column)> = Vec::new();
        for condition in both {
            let outside = condition.transform_up(|expr| {
                Ok(Transformed::yes(Expr::Column(match expr {
                    Expr::OuterReferenceColumn(_, column) => column,
                    Expr::Column(column) => match read.iter().find(|(column_read, _)| *column_read == column) {
                        Some((_, key)) => key.clone(),
                        None => {
                            let key = Column::from_name(names.next());
                            read.push((column, key.clone()));
                            key
                        }
                    },
                    other => return Ok(Transformed::no(other)),
                })))
            });
            conditions.push(outside?.data);
        }
        let plan = match conjunction(own) {
            Some(own) => LogicalPlan::Filter(Filter::try_new(own, Arc::new(rows.plan))?),
            None => rows.plan,
        };
        let (mut keys, mut exprs) = (Vec::new(), Vec::new());
        for (column, key) in read {
            exprs.push(Expr::Column(column).alias(&key.name));
            keys.push(key);
        }
        exprs.extend(plan.schema().columns().into_iter().map(Expr::Column));
        keys.extend(rows.keys);
        Ok(Self { rows: Unnested { plan: projected(exprs, plan)?, keys }, conditions })
    }
}

/// A LATERAL join as one that is not.
fn joined(join: Join, subquery: LogicalPlan, alias: Option<TableReference>, names: &Names) -> Result<LogicalPlan> {
    if !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
        return Err(refused("LATERAL behind RIGHT or FULL JOIN"));
    }
    let columns = outer_columns_of(&subquery)?;
    let columns: Vec<Column> = columns.into_iter().filter(|column| has(join.left.schema(), column)).collect();
    let schema = Arc::clone(&join.schema);
    let aliased = |plan: LogicalPlan, keys: &[Column]| match &alias {
        Some(alias) => under_alias(plan, keys, alias.clone(), names),
        None => Ok(plan),
    };
    if columns.is_empty() {
        // Of queries further out.
        let right = Arc::new(aliased(subquery, &[])?);
        return with_right(join, right, Vec::new());
    }
    let (right, conditions) = match Plain::of(&subquery, join.left.schema(), names)? {
        Some(Plain { rows, conditions }) => (rows, conditions),
        None => {
            let domain = Domain::new(&join.left, columns, names)?;
            let unnested = domain.answered(&subquery)?;
            let is_same = domain.is_row_of(&unnested);
            (unnested, is_same)
        }
    };
    let right = aliased(right.plan, &right.keys)?;
    let plan = with_right(join, Arc::new(right), conditions)?;
    let columns: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
    projected(columns, plan)
}

fn with_right(join: Join, right: Arc<LogicalPlan>, conditions: Vec<Expr>) -> Result<LogicalPlan> {
    let conditions = conditions.into_iter().chain(join.filter);
    let Join { left, on, join_type, null_equality, .. } = join;
    let filter = conjunction(conditions);
    let join = Join::try_new(left, right, on, filter, join_type, JoinConstraint::On, null_equality, false)?;
    Ok(LogicalPlan::Join(join))
}

/// That the columns of one side are those of the other.
fn pairs(op: Operator, left: impl IntoIterator<Item = Expr>, right: impl IntoIterator<Item = Expr>) -> Vec<Expr> {
    let same = |(left, right)| Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)));
    left.into_iter().zip(right).map(same).collect()
}

/// The subquery of an expression in another way.
pub(super) fn with_subquery(expr: Expr, change: impl FnOnce(Subquery) -> Result<Subquery>) -> Result<Expr> {
    Ok(match expr {
        Expr::Exists(exists) => Expr::Exists(Exists { subquery: change(exists.subquery)?, ..exists }),
        Expr::InSubquery(is_in) => Expr::InSubquery(InSubquery { subquery: change(is_in.subquery)?, ..is_in }),
        Expr::SetComparison(set) => Expr::SetComparison(SetComparison { subquery: change(set.subquery)?, ..set }),
        Expr::ScalarSubquery(subquery) => Expr::ScalarSubquery(change(subquery)?),
        other => other,
    })
}

pub(super) fn subquery_in(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. })
        | Expr::ScalarSubquery(subquery) => Some(subquery),
        _ => None,
    }
}

pub(super) fn subquery_of(plan: &Arc<LogicalPlan>) -> Subquery {
    let outer_ref_columns = plan.all_out_ref_exprs();
    Subquery { subquery: Arc::clone(plan), outer_ref_columns, spans: Default::default() }
}

/// By that very name.
pub(super) fn has(schema: &DFSchema, column: &Column) -> bool {
    schema.iter().any(|(table, field)| table == column.relation.as_ref() && *field.name() == column.name)
}

/// The columns of queries around that a plan names, with all subqueries in it.
pub(super) fn outer_columns_of(plan: &LogicalPlan) -> Result<Vec<Column>> {
    let mut found = Vec::new();
    find_outer(plan, &|_| false, &mut found)?;
    Ok(found)
}

fn find_outer(plan: &LogicalPlan, is_near: &dyn Fn(&Column) -> bool, found: &mut Vec<Column>) -> Result<()> {
    deep(|| find_outer_in(plan, is_near, found))
}

fn find_outer_in(plan: &LogicalPlan, is_near: &dyn Fn(&Column) -> bool, found: &mut Vec<Column>) -> Result<()> {
    let readable = expressions::readable(plan)?;
    plan.apply_expressions(|expr| {
        expr.apply(|expr| {
            if let Expr::OuterReferenceColumn(_, column) = expr
                && !is_near(column)
                && !found.contains(column)
            {
                found.push(column.clone());
            }
            if let Some(subquery) = subquery_in(expr) {
                find_outer(&subquery.subquery, &|column| is_near(column) || has(&readable, column), found)?;
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    for input in plan.inputs() {
        match plan {
            LogicalPlan::Join(join) if lateral_of(input).is_some() => {
                find_outer(input, &|column| is_near(column) || has(join.left.schema(), column), found)?;
            }
            _ => find_outer(input, is_near, found)?,
        }
    }
    Ok(())
}

/// Whether a subquery that is in the expressions of another one names columns of the query around both.
pub(super) fn names_across(plan: &LogicalPlan, around: &DFSchema) -> Result<bool> {
    let mut found = false;
    plan.apply(|node| {
        let readable = expressions::readable(node)?;
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Some(subquery) = subquery_in(expr) {
                    let named = outer_columns_of(&subquery.subquery)?;
                    found = found || named.iter().any(|column| !has(&readable, column) && has(around, column));
                }
                // What is looked for is of the query around, too.
                if let Expr::InSubquery(InSubquery { expr, .. }) | Expr::SetComparison(SetComparison { expr, .. }) =
                    expr
                {
                    found = found || expr.contains_outer();
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// A column of the row around.
#[derive(Clone)]
struct Outer {
    /// As it is named in the subquery.
    column: Column,
    /// Whether its key is what it looks like.
    is_look: bool,
}

impl Outer {
    /// The key of its value.
    fn key(&self) -> Expr {
        let value = Expr::Column(self.column.clone());
        if self.is_look { looks::look(value) } else { value }
    }

    /// The value of its key.
    fn of(&self, key: Expr) -> Expr {
        if self.is_look { looks::seen(key) } else { key }
    }

    /// The same in a subquery of those that have the keys.
    fn of_outside(&self, field: &FieldRef, key: Column) -> Expr {
        let key_type = looks::look_type(field.data_type()).unwrap_or_else(|| field.data_type().clone());
        let field = Arc::new(field.as_ref().clone().with_data_type(key_type));
        self.of(Expr::OuterReferenceColumn(field, key))
    }
}

/// What the columns are that a subquery names of the row around it, each combination once.
pub(super) struct Domain<'a> {
    columns: Vec<Outer>,
    /// How they are compared, all in one way: DataFusion hashes equalities, or null-safe ones, not both.
    equals: Operator,
    rows: Arc<LogicalPlan>,
    names: &'a Names,
}

/// A plan with a row's keys before it.
pub(super) struct Unnested {
    pub(super) plan: LogicalPlan,
    pub(super) keys: Vec<Column>,
}

impl Unnested {
    fn key_exprs(&self) -> Vec<Expr> {
        self.keys.iter().cloned().map(Expr::Column).collect()
    }

    /// The columns behind the keys.
    pub(super) fn columns(&self) -> Vec<Column> {
        self.plan.schema().columns().split_off(self.keys.len())
    }

    /// With the names of the plan that it was made of.
    fn named(self, schema: &DFSchema) -> Result<Self> {
        let columns = self.columns();
        if columns == schema.columns() {
            return Ok(self);
        }
        let named = columns.into_iter().zip(schema.iter()).map(|(column, (table, field))| {
            let is_same = column.relation.as_ref() == table && column.name == *field.name();
            let column = Expr::Column(column);
            if is_same { column } else { column.alias_qualified(table.cloned(), field.name()) }
        });
        let exprs = self.key_exprs().into_iter().chain(named).collect();
        Ok(Self { plan: projected(exprs, self.plan)?, keys: self.keys })
    }
}

impl<'a> Domain<'a> {
    /// Of the columns of the query around.
    pub(super) fn new(around: &Arc<LogicalPlan>, columns: Vec<Column>, names: &'a Names) -> Result<Self> {
        let around = source_of(around, &columns);
        let Superset { plan, is_chance } = superset(around)?;
        if columns.iter().any(|column| is_chance.contains(column)) {
            return Err(refused("a value that may be another one when it is computed again"));
        }
        // A value that is a subquery is NULL if that has no rows, whatever its column says.
        let mut may_be_null = expressions::has(around, |expr| matches!(expr, Expr::ScalarSubquery(_)))?;
        for column in &columns {
            may_be_null = may_be_null || plan.schema().field_from_column(column)?.is_nullable();
        }
        let equals = if may_be_null { Operator::IsNotDistinctFrom } else { Operator::Eq };
        let columns = columns.into_iter().map(|column| {
            let is_look = looks::look_type(plan.schema().field_from_column(&column)?.data_type()).is_some();
            Ok(Outer { column, is_look })
        });
        let columns: Vec<Outer> = columns.collect::<Result<_>>()?;
        let keys = columns.iter().map(|outer| outer.key().alias(names.next()));
        let keys = Arc::new(projected(keys.collect(), plan)?);
        Ok(Self { columns, equals, rows: Arc::new(LogicalPlan::Distinct(Distinct::All(keys))), names })
    }

    /// That rows of a subquery are those of a row of the query around.
    fn is_row_of(&self, unnested: &Unnested) -> Vec<Expr> {
        pairs(self.equals, self.columns.iter().map(Outer::key), unnested.key_exprs())
    }

    fn has(&self, column: &Column) -> bool {
        self.columns.iter().any(|outer| outer.column == *column)
    }

    /// The whole subquery for all of D.
    pub(super) fn answered(&self, plan: &LogicalPlan) -> Result<Unnested> {
        if is_volatile(plan)? {
            return Err(refused_with(
                "a function that may have another value each time",
                "a function that does not is declared STABLE or IMMUTABLE; random() goes to a query before",
            ));
        }
        let unnested = self.unnested(plan)?.named(plan.schema())?;
        if unnested.keys.len() != self.columns.len() || unnested.columns() != plan.schema().columns() {
            return Err(Error::new(ErrorKind::Internal, "a subquery has lost its columns").into());
        }
        Ok(unnested)
    }

    /// D, with names of its own.
    fn all(&self) -> Result<Unnested> {
        let keys: Vec<Column> = self.columns.iter().map(|_| Column::from_name(self.names.next())).collect();
        let columns = self.rows.schema().columns().into_iter().zip(&keys);
        let named = columns.map(|(column, key)| Expr::Column(column).alias(&key.name)).collect();
        Ok(Unnested { plan: projected(named, self.rows.as_ref().clone())?, keys })
    }

    fn is_named_in(&self, plan: &LogicalPlan) -> Result<bool> {
        Ok(outer_columns_of(plan)?.iter().any(|column| self.has(column)))
    }

    fn unnested(&self, plan: &LogicalPlan) -> Result<Unnested> {
        if !self.is_named_in(plan)? {
            return self.beside(plan);
        }
        deep(|| self.unnested_node(plan))
    }

    fn unnested_node(&self, plan: &LogicalPlan) -> Result<Unnested> {
        match plan {
            LogicalPlan::Projection(projection) => {
                let input = self.unnested(&projection.input)?;
                let mut exprs = input.key_exprs();
                exprs.extend(self.all_keyed(&projection.expr, &input, projection.input.schema())?);
                Ok(Unnested { plan: projected(exprs, input.plan)?, keys: input.keys })
            }
            LogicalPlan::Filter(filter) => {
                let input = self.unnested(&filter.input)?;
                let predicate = self.keyed(filter.predicate.clone(), &input.keys, filter.input.schema())?;
                let plan = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input.plan))?);
                Ok(Unnested { plan, keys: input.keys })
            }
            LogicalPlan::Aggregate(aggregate) => self.grouped(aggregate),
            LogicalPlan::Window(window) => self.windowed(window),
            // In whatever order, unless rows are counted.
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.unnested(&sort.input),
            LogicalPlan::Limit(limit) => self.limited(limit),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let Unnested { plan, keys } = self.unnested(input)?;
                Ok(Unnested { plan: LogicalPlan::Distinct(Distinct::All(Arc::new(plan))), keys })
            }
            LogicalPlan::Distinct(Distinct::On(distinct)) => self.first_of_each(distinct),
            LogicalPlan::Join(join) => self.joined(join),
            LogicalPlan::SubqueryAlias(alias) => {
                let Unnested { plan, keys } = self.unnested(&alias.input)?;
                let plan = under_alias(plan, &keys, alias.alias.clone(), self.names)?;
                Unnested { plan, keys }.named(&alias.schema)
            }
            LogicalPlan::Union(union) => {
                let inputs = union.inputs.iter().map(|input| self.unnested(input)).collect::<Result<_>>()?;
                one_after_another(inputs)?.named(&union.schema)
            }
            LogicalPlan::Values(values) => self.valued(values),
            // FROM unnest(..), which is LATERAL by itself.
            LogicalPlan::Subquery(subquery) => self.unnested(&subquery.subquery),
            LogicalPlan::Unnest(unnest) => {
                let input = self.unnested(&unnest.input)?;
                let lists = Unnest::try_new(Arc::new(input.plan), unnest.exec_columns.clone(), unnest.options.clone())?;
                Unnested { plan: LogicalPlan::Unnest(lists), keys: input.keys }.named(&unnest.schema)
            }
            other => Err(refused(&format!("{} in it", other.display()))),
        }
    }

    /// 1.
    fn beside(&self, plan: &LogicalPlan) -> Result<Unnested> {
        let Unnested { plan: rows, keys } = self.all()?;
        if let LogicalPlan::EmptyRelation(empty) = plan
            && empty.produce_one_row
            && empty.schema.fields().is_empty()
        {
            return Ok(Unnested { plan: rows, keys });
        }
        Ok(Unnested { plan: LogicalPlanBuilder::from(rows).cross_join(plan.clone())?.build()?, keys })
    }

    /// 2. What the expression may read besides, has names that are nearer in subqueries.
    fn keyed(&self, expr: Expr, keys: &[Column], readable: &DFSchema) -> Result<Expr> {
        let named: Vec<(Outer, Column)> = self.columns.iter().cloned().zip(keys.iter().cloned()).collect();
        let further: Vec<_> = named.iter().filter(|(outer, _)| !has(readable, &outer.column)).cloned().collect();
        let keyed = expr.transform_up(|expr| match expr {
            Expr::OuterReferenceColumn(field, column) => Ok(match named_of(&column, &named) {
                Some((outer, key)) => Transformed::yes(outer.of(Expr::Column(key.clone()))),
                None => Transformed::no(Expr::OuterReferenceColumn(field, column)),
            }),
            expr if subquery_in(&expr).is_some() => Ok(Transformed::yes(renamed_in(expr, &further)?)),
            other => Ok(Transformed::no(other)),
        });
        Ok(keyed?.data)
    }

    /// The same, for columns that keep their names.
    fn all_keyed(&self, exprs: &[Expr], input: &Unnested, readable: &DFSchema) -> Result<Vec<Expr>> {
        let names = NamePreserver::new_for_projection();
        let keyed = exprs.iter().map(|expr| {
            let name = names.save(expr);
            Ok(name.restore(self.keyed(expr.clone(), &input.keys, readable)?))
        });
        keyed.collect()
    }

    fn sort_keyed(&self, order: &[SortExpr], keys: &[Column], readable: &DFSchema) -> Result<Vec<SortExpr>> {
        let keyed = order.iter().map(|sort| Ok(sort.with_expr(self.keyed(sort.expr.clone(), keys, readable)?)));
        keyed.collect()
    }

    fn grouped(&self, aggregate: &Aggregate) -> Result<Unnested> {
        if aggregate.group_expr.iter().any(|group| matches!(group, Expr::GroupingSet(_))) {
            return Err(refused("GROUPING SETS, ROLLUP or CUBE in it"));
        }
        let input = self.unnested(&aggregate.input)?;
        let readable = aggregate.input.schema();
        let mut groups = input.key_exprs();
        groups.extend(self.all_keyed(&aggregate.group_expr, &input, readable)?);
        let aggregates = self.all_keyed(&aggregate.aggr_expr, &input, readable)?;
        let grouped = Aggregate::try_new(Arc::new(input.plan), groups, aggregates)?;
        let grouped = Unnested { plan: LogicalPlan::Aggregate(grouped), keys: input.keys };
        if aggregate.group_expr.is_empty() { self.for_nobody_as_well(grouped, aggregate) } else { Ok(grouped) }
    }

    /// 4.
    fn for_nobody_as_well(&self, grouped: Unnested, aggregate: &Aggregate) -> Result<Unnested> {
        let columns = grouped.columns();
        let is_found = Column::from_name(self.names.next());
        let mut marked: Vec<Expr> = grouped.plan.schema().columns().into_iter().map(Expr::Column).collect();
        marked.push(lit(true).alias(&is_found.name));
        let grouped = Unnested { plan: projected(marked, grouped.plan)?, keys: grouped.keys };
        let all = self.all()?;
        let mut exprs = all.key_exprs();
        for (expr, column) in aggregate.aggr_expr.iter().zip(columns) {
            let Expr::AggregateFunction(call) = expr.clone().unalias_nested().data else {
                return Err(refused("what is computed of an aggregate in it"));
            };
            let field = grouped.plan.schema().field_from_column(&column)?;
            let of_nobody = call.func.default_value(field.data_type())?;
            let value = Expr::Column(column.clone());
            exprs.push(match of_nobody.is_null() {
                true => value,
                false => when(Expr::Column(is_found.clone()).is_null(), lit(of_nobody))
                    .otherwise(value)?
                    .alias_qualified(column.relation, column.name),
            });
        }
        let is_same = pairs(self.equals, all.key_exprs(), grouped.key_exprs());
        let plan = LogicalPlanBuilder::from(all.plan).join_on(grouped.plan, JoinType::Left, is_same)?.build()?;
        Ok(Unnested { plan: projected(exprs, plan)?, keys: all.keys })
    }

    fn windowed(&self, window: &Window) -> Result<Unnested> {
        let input = self.unnested(&window.input)?;
        let keys = input.key_exprs();
        let partitioned = window.window_expr.iter().map(|expr| {
            let expr = self.keyed(expr.clone(), &input.keys, window.input.schema())?;
            let partitioned = expr.transform_up(|expr| {
                Ok(match expr {
                    Expr::WindowFunction(mut call) => {
                        call.params.partition_by.splice(0..0, keys.iter().cloned());
                        Transformed::yes(Expr::WindowFunction(call))
                    }
                    other => Transformed::no(other),
                })
            });
            Ok(partitioned?.data)
        });
        let partitioned = Window::try_new(partitioned.collect::<Result<_>>()?, Arc::new(input.plan))?;
        Unnested { plan: LogicalPlan::Window(partitioned), keys: input.keys }.named(&window.schema)
    }

    fn limited(&self, limit: &Limit) -> Result<Unnested> {
        let below = |input: &Arc<LogicalPlan>| {
            Arc::new(LogicalPlan::Limit(Limit {
                skip: limit.skip.clone(),
                fetch: limit.fetch.clone(),
                input: Arc::clone(input),
            }))
        };
        let (order, input) = match limit.input.as_ref() {
            // As many, in the same order.
            LogicalPlan::Projection(projection) => {
                let projection = Projection::try_new(projection.expr.clone(), below(&projection.input))?;
                return self.unnested(&LogicalPlan::Projection(projection));
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let alias = SubqueryAlias::try_new(below(&alias.input), alias.alias.clone())?;
                return self.unnested(&LogicalPlan::SubqueryAlias(alias));
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => (sort.expr.as_slice(), sort.input.as_ref()),
            LogicalPlan::Limit(inner) => match inner.input.as_ref() {
                LogicalPlan::Sort(sort) if sort.fetch.is_none() => (sort.expr.as_slice(), limit.input.as_ref()),
                _ => (&[][..], limit.input.as_ref()),
            },
            other => (&[][..], other),
        };
        let (skip, fetch) = match (limit.get_skip_type()?, limit.get_fetch_type()?) {
            (SkipType::Literal(skip), FetchType::Literal(fetch)) => (skip, fetch),
            _ => return Err(refused("LIMIT or OFFSET of what is no number in it")),
        };
        let unnested = self.unnested(input)?;
        let order = self.sort_keyed(order, &unnested.keys, input.schema())?;
        let last = fetch.map(|fetch| skip.saturating_add(fetch));
        self.numbered(unnested, order, skip, last)
    }

    /// For each of D, the rows behind the first so many, up to the last.
    fn numbered(&self, of: Unnested, order: Vec<SortExpr>, skip: usize, last: Option<usize>) -> Result<Unnested> {
        let number = Column::from_name(self.names.next());
        let columns: Vec<Expr> = of.plan.schema().columns().into_iter().map(Expr::Column).collect();
        let numbers = row_number().partition_by(of.key_exprs());
        let numbers = if order.is_empty() { numbers } else { numbers.order_by(order) };
        let numbers = numbers.build()?.alias(&number.name);
        let number = Expr::Column(number);
        let mut conditions = Vec::new();
        if skip > 0 {
            conditions.push(number.clone().gt(lit(u64::try_from(skip).unwrap_or(u64::MAX))));
        }
        conditions.extend(last.map(|last| number.lt_eq(lit(u64::try_from(last).unwrap_or(u64::MAX)))));
        let Some(condition) = conjunction(conditions) else { return Ok(of) };
        let plan = LogicalPlanBuilder::from(of.plan).window([numbers])?.filter(condition)?.project(columns)?.build()?;
        Ok(Unnested { plan, keys: of.keys })
    }

    fn first_of_each(&self, distinct: &DistinctOn) -> Result<Unnested> {
        let input = self.unnested(&distinct.input)?;
        let readable = distinct.input.schema();
        let keys = input.key_exprs();
        let on = distinct.on_expr.iter().map(|expr| self.keyed(expr.clone(), &input.keys, readable));
        let on = keys.iter().cloned().map(Ok).chain(on).collect::<Result<Vec<_>>>()?;
        let columns = self.all_keyed(&distinct.select_expr, &input, readable)?;
        let columns = keys.iter().cloned().chain(columns).collect();
        let order = match &distinct.sort_expr {
            Some(order) => {
                let first = keys.iter().map(|key| key.clone().sort(true, false));
                Some(first.chain(self.sort_keyed(order, &input.keys, readable)?).collect())
            }
            None => None,
        };
        let plan = DistinctOn::try_new(on, columns, order, Arc::new(input.plan))?;
        Unnested { plan: LogicalPlan::Distinct(Distinct::On(plan)), keys: input.keys }.named(&distinct.schema)
    }

    /// A side has keys if it needs them, and if its rows are there without the other's.
    fn joined(&self, join: &Join) -> Result<Unnested> {
        if join.null_aware || join.on.iter().any(|(left, right)| left.contains_outer() || right.contains_outer()) {
            return Err(refused("a join of that sort in it"));
        }
        let (left, right) = (self.is_named_in(&join.left)?, self.is_named_in(&join.right)?);
        // Of INTERSECT and EXCEPT, which compare all that there is.
        let is_safe = join.null_equality == NullEquality::NullEqualsNull;
        let (left, right) = match join.join_type {
            JoinType::Inner if is_safe => (true, true),
            JoinType::Inner => (left || !right, right),
            JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti => (true, right || is_safe),
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti => (left || is_safe, true),
            JoinType::Full => (true, true),
            JoinType::LeftMark | JoinType::RightMark => return Err(refused("a join of that sort in it")),
        };
        let side = |plan: &Arc<LogicalPlan>, has_keys: bool| match has_keys {
            true => self.unnested(plan),
            false => Ok(Unnested { plan: plan.as_ref().clone(), keys: Vec::new() }),
        };
        let (left, right) = (side(&join.left, left)?, side(&join.right, right)?);
        let keys = if left.keys.is_empty() { &right.keys } else { &left.keys };
        let readable = expressions::readable(&LogicalPlan::Join(join.clone()))?;
        let filter = join.filter.clone().map(|filter| self.keyed(filter, keys, &readable)).transpose()?;
        let (mut on, mut conditions) = (join.on.clone(), Vec::from_iter(filter));
        if is_safe {
            on.extend(left.key_exprs().into_iter().zip(right.key_exprs()));
        } else {
            // Of none, if only one side has keys.
            conditions.splice(0..0, pairs(self.equals, left.key_exprs(), right.key_exprs()));
        }
        let (keys, mut exprs) = match join.join_type {
            JoinType::Full => {
                let keys: Vec<Column> = left.keys.iter().map(|_| Column::from_name(self.names.next())).collect();
                let either = left.key_exprs().into_iter().zip(right.key_exprs()).zip(&keys);
                let either = either.map(|((left, right), key)| coalesce(vec![left, right]).alias(&key.name)).collect();
                (keys, either)
            }
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti => (right.keys.clone(), right.key_exprs()),
            _ if left.keys.is_empty() => (right.keys.clone(), right.key_exprs()),
            _ => (left.keys.clone(), left.key_exprs()),
        };
        exprs.extend(join.schema.columns().into_iter().map(Expr::Column));
        let plan = Join::try_new(
            Arc::new(left.plan),
            Arc::new(right.plan),
            on,
            conjunction(conditions),
            join.join_type,
            JoinConstraint::On,
            join.null_equality,
            false,
        )?;
        Ok(Unnested { plan: projected(exprs, LogicalPlan::Join(plan))?, keys })
    }

    /// Each row is one of D's.
    fn valued(&self, values: &Values) -> Result<Unnested> {
        let rows = values.values.iter().map(|row| {
            let all = self.all()?;
            let mut exprs = all.key_exprs();
            for (value, field) in row.iter().zip(values.schema.fields()) {
                let value = self.keyed(value.clone(), &all.keys, &values.schema)?;
                let is_of_type = value.get_type(all.plan.schema())? == *field.data_type();
                let value =
                    if is_of_type { value } else { Expr::Cast(Cast::new(Box::new(value), field.data_type().clone())) };
                exprs.push(value.alias(field.name()));
            }
            Ok(Unnested { plan: projected(exprs, all.plan)?, keys: all.keys })
        });
        one_after_another(rows.collect::<Result<_>>()?)?.named(&values.schema)
    }

    /// Two rows for each of D, or fewer.
    pub(super) fn first_two(&self, of: Unnested) -> Result<Unnested> {
        self.numbered(of, Vec::new(), 0, Some(2))
    }

    /// As a subquery of the query around: the rows of its row.
    pub(super) fn of_each(&self, of: Unnested, around: &DFSchema) -> Result<LogicalPlan> {
        let outside = |expr: Expr| match expr {
            Expr::Column(column) if self.has(&column) => {
                let field = Arc::clone(around.field_from_column(&column)?);
                Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
            }
            other => Ok(Transformed::no(other)),
        };
        let conditions = self.is_row_of(&of).into_iter().map(|condition| Ok(condition.transform_up(outside)?.data));
        let condition = conjunction(conditions.collect::<Result<Vec<_>>>()?).unwrap_or_else(|| lit(true));
        Ok(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(of.plan))?))
    }
}

fn one_after_another(mut inputs: Vec<Unnested>) -> Result<Unnested> {
    if inputs.len() == 1
        && let Some(only) = inputs.pop()
    {
        return Ok(only);
    }
    let keys = inputs.first().map(|first| first.keys.clone()).unwrap_or_default();
    let inputs: Vec<Arc<LogicalPlan>> = inputs.into_iter().map(|input| Arc::new(input.plan)).collect();
    // Where one has no rows, DataFusion looks for its names in the other.
    let names = Union::try_new_with_loose_types(inputs.clone())?.schema;
    let named = inputs.into_iter().map(|input| {
        let columns = input.schema().columns().into_iter().zip(names.fields());
        let columns = columns.map(|(column, field)| Expr::Column(column).alias(field.name())).collect();
        Ok(Arc::new(projected(columns, Arc::unwrap_or_clone(input))?))
    });
    let union = Union::try_new_with_loose_types(named.collect::<Result<_>>()?)?;
    Ok(Unnested { plan: LogicalPlan::Union(union), keys })
}

fn projected(exprs: Vec<Expr>, plan: LogicalPlan) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(plan))?))
}

/// A table's alias is not the keys'. Behind it they have other names: where `q.__outer1` and `__outer1` meet, DataFusion cannot tell
/// which is meant.
fn under_alias(plan: LogicalPlan, keys: &[Column], alias: TableReference, names: &Names) -> Result<LogicalPlan> {
    if keys.is_empty() {
        return Ok(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(plan), alias)?));
    }
    let columns = plan.schema().columns().into_iter().map(Expr::Column).enumerate();
    let renamed = columns.map(|(at, column)| if at < keys.len() { column.alias(names.next()) } else { column });
    let renamed = projected(renamed.collect(), plan)?;
    let aliased = SubqueryAlias::try_new(Arc::new(renamed), alias)?;
    let columns = aliased.schema.columns().into_iter().map(Expr::Column).enumerate();
    let named = columns.map(|(at, column)| match keys.get(at) {
        Some(key) => column.alias(&key.name),
        None => column,
    });
    projected(named.collect(), LogicalPlan::SubqueryAlias(aliased))
}

fn named_of<'n>(column: &Column, named: &'n [(Outer, Column)]) -> Option<&'n (Outer, Column)> {
    named.iter().find(|(outer, _)| outer.column == *column)
}

/// A subquery in an expression, which names keys of the plan around it now.
fn renamed_in(expr: Expr, named: &[(Outer, Column)]) -> Result<Expr> {
    with_subquery(expr, |subquery| {
        let plan = subquery.subquery.as_ref().clone().transform_up(|node| {
            let readable = expressions::readable(&node)?;
            let further: Vec<_> = named.iter().filter(|(outer, _)| !has(&readable, &outer.column)).cloned().collect();
            expressions::rewritten(node, |expr| match expr {
                Expr::OuterReferenceColumn(field, column) => Ok(match named_of(&column, named) {
                    Some((outer, key)) => Transformed::yes(outer.of_outside(&field, key.clone())),
                    None => Transformed::no(Expr::OuterReferenceColumn(field, column)),
                }),
                expr if subquery_in(&expr).is_some() => Ok(Transformed::yes(renamed_in(expr, &further)?)),
                other => Ok(Transformed::no(other)),
            })
        })?;
        Ok(subquery_of(&Arc::new(plan.data)))
    })
}

/// Where the columns are from, below LATERAL joins with others: else each of these has all before it twice.
fn source_of<'p>(around: &'p LogicalPlan, columns: &[Column]) -> &'p LogicalPlan {
    let LogicalPlan::Projection(projection) = around else { return around };
    let LogicalPlan::Join(join) = projection.input.as_ref() else { return around };
    let is_unnested = join.right.schema().fields().iter().any(|field| field.name().starts_with(KEY));
    let is_of_left = columns.iter().all(|column| has(join.left.schema(), column));
    if is_unnested && is_of_left && matches!(join.join_type, JoinType::Inner | JoinType::Left) {
        source_of(&join.left, columns)
    } else {
        around
    }
}

/// All rows of a plan, and maybe more, by the plan's names.
struct Superset {
    plan: LogicalPlan,
    /// Columns that may be others when they are computed again.
    is_chance: HashSet<Column>,
}

/// The rows that a plan has, if it is run once more: which these are may be by chance, because of LIMIT, of random values, of rows that are first
/// among equals. So there may be more: what chooses by chance is left out.
fn superset(plan: &LogicalPlan) -> Result<Superset> {
    let over = |input: &Arc<LogicalPlan>| deep(|| superset(input));
    Ok(match plan {
        LogicalPlan::Limit(Limit { input, .. }) => over(input)?,
        LogicalPlan::Distinct(Distinct::All(input)) => {
            let Superset { plan, is_chance } = over(input)?;
            // Of equal values that look different it makes one, and that is what the query around has.
            let makes_one = plan.schema().fields().iter().any(|field| looks::look_type(field.data_type()).is_some());
            let plan = if makes_one { LogicalPlan::Distinct(Distinct::All(Arc::new(plan))) } else { plan };
            Superset { plan, is_chance }
        }
        LogicalPlan::Sort(sort) => over(&sort.input)?,
        LogicalPlan::Distinct(Distinct::On(distinct)) => chosen(over(&distinct.input)?, distinct.select_expr.clone())?,
        LogicalPlan::Projection(projection) => chosen(over(&projection.input)?, projection.expr.clone())?,
        LogicalPlan::Filter(filter) => {
            let Superset { plan, is_chance } = over(&filter.input)?;
            let mut kept = split_conjunction_owned(filter.predicate.clone());
            // What subqueries say is not asked twice.
            kept.retain(|condition| !is_by_chance(condition, &is_chance) && !has_subquery(condition));
            let plan = match conjunction(kept) {
                Some(condition) => LogicalPlan::Filter(Filter::try_new(condition, Arc::new(plan))?),
                None => plan,
            };
            Superset { plan, is_chance }
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let input = over(&alias.input)?;
            let aliased = SubqueryAlias::try_new(Arc::new(input.plan), alias.alias.clone())?;
            let columns = aliased.input.schema().columns().into_iter().zip(aliased.schema.columns());
            let is_chance =
                columns.filter(|(column, _)| input.is_chance.contains(column)).map(|(_, column)| column).collect();
            Superset { plan: LogicalPlan::SubqueryAlias(aliased), is_chance }
        }
        LogicalPlan::Window(window) => {
            // Of these rows, and no others.
            check_exact(&window.input)?;
            let is_chance = window.schema.columns().split_off(window.input.schema().fields().len());
            Superset { plan: plan.clone(), is_chance: is_chance.into_iter().collect() }
        }
        LogicalPlan::Aggregate(aggregate) => {
            check_exact(&aggregate.input)?;
            let is_certain = |expr: &Expr, column: &Column| match expr.clone().unalias_nested().data {
                Expr::AggregateFunction(call) => {
                    let is_float =
                        aggregate.schema.field_from_column(column).is_ok_and(|field| field.data_type().is_floating());
                    let name = call.func.name();
                    matches!(name, "count" | "min" | "max") || (matches!(name, "sum" | "avg") && !is_float)
                }
                _ => false,
            };
            let columns = aggregate.schema.columns();
            let groups = columns.len() - aggregate.aggr_expr.len();
            let values = aggregate.aggr_expr.iter().zip(&columns[groups..]);
            let is_chance = values.filter(|(expr, column)| !is_certain(expr, column)).map(|(_, column)| column.clone());
            Superset { plan: plan.clone(), is_chance: is_chance.collect() }
        }
        LogicalPlan::Join(join) if lateral_of(&join.right).is_none() => superset_of_join(join)?,
        other => {
            check_exact(other)?;
            Superset { plan: other.clone(), is_chance: HashSet::new() }
        }
    })
}

fn superset_of_join(join: &Join) -> Result<Superset> {
    let (left, right) = match join.join_type {
        JoinType::LeftSemi | JoinType::LeftAnti => return superset(&join.left),
        JoinType::RightSemi | JoinType::RightAnti => return superset(&join.right),
        JoinType::Inner => (superset(&join.left)?, superset(&join.right)?),
        JoinType::Left => (superset(&join.left)?, exact(&join.right)?),
        JoinType::Right => (exact(&join.left)?, superset(&join.right)?),
        _ => (exact(&join.left)?, exact(&join.right)?),
    };
    let is_chance: HashSet<Column> = left.is_chance.into_iter().chain(right.is_chance).collect();
    let on = join.on.iter().flat_map(|(left, right)| [left, right]);
    if on.chain(&join.filter).any(|expr| is_by_chance(expr, &is_chance)) {
        return Err(refused("a join by what may be otherwise when it is computed again"));
    }
    let (on, filter) = (join.on.clone(), join.filter.clone());
    let (left, right) = (Arc::new(left.plan), Arc::new(right.plan));
    let plan = Join::try_new(
        left,
        right,
        on,
        filter,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    Ok(Superset { plan: LogicalPlan::Join(plan), is_chance })
}

fn chosen(input: Superset, exprs: Vec<Expr>) -> Result<Superset> {
    let is_chance: Vec<bool> = exprs.iter().map(|expr| is_by_chance(expr, &input.is_chance)).collect();
    let plan = projected(exprs, input.plan)?;
    let columns = plan.schema().columns().into_iter().zip(is_chance);
    let is_chance = columns.filter(|(_, is_chance)| *is_chance).map(|(column, _)| column).collect();
    Ok(Superset { plan, is_chance })
}

/// Whether a value may be another one when it is computed again.
fn is_by_chance(expr: &Expr, is_chance: &HashSet<Column>) -> bool {
    let is_one = |expr: &Expr| match expr {
        Expr::Column(column) => is_chance.contains(column),
        other => {
            subquery_in(other).is_some_and(|subquery| check_exact(&subquery.subquery).is_err())
                || other.is_volatile_node()
        }
    };
    expr.exists(|expr| Ok(is_one(expr))).unwrap_or(true)
}

fn has_subquery(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(subquery_in(expr).is_some())).unwrap_or(true)
}

fn exact(plan: &Arc<LogicalPlan>) -> Result<Superset> {
    check_exact(plan)?;
    Ok(Superset { plan: plan.as_ref().clone(), is_chance: HashSet::new() })
}

/// Refuses what may have other rows when it is run once more.
fn check_exact(plan: &LogicalPlan) -> Result<()> {
    let mut found = is_volatile(plan)?;
    plan.apply_with_subqueries(|node| {
        found = found
            || matches!(node, LogicalPlan::Limit(_) | LogicalPlan::Window(_) | LogicalPlan::Distinct(Distinct::On(_)));
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if found { Err(refused("rows around it that may be others when they are computed again")) } else { Ok(()) }
}

fn is_volatile(plan: &LogicalPlan) -> Result<bool> {
    expressions::has(plan, Expr::is_volatile_node)
}

pub(super) fn refused(what: &str) -> DataFusionError {
    refused_with(what, "write it as a join of what is computed before")
}

fn refused_with(what: &str, hint: &str) -> DataFusionError {
    let message = format!("a subquery about the row around it, with {what}, is not supported");
    Error::new(ErrorKind::Invalid, message).with_hint(hint).into()
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    const TABLES: &str = "WITH t(id, a, b) AS (VALUES (1, 1, 10), (2, 2, 20), (3, 3, 30), (4, 1, 40), (5, NULL, 50)), \
                          u(id, a, b) AS (VALUES (1, 1, 1), (2, 1, 2), (3, 2, 7), (4, 1, 5))";

    async fn sorted(query: &str) -> String {
        let mut found = rows(query).await;
        found.sort();
        found.join(",")
    }

    #[tokio::test]
    async fn lateral_is_about_each_row() {
        // As PostgreSQL 15.18 answers.
        for (query, expected) in [
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT DISTINCT b FROM (VALUES (5,7),(6,7)) z(a,b) WHERE z.a > x.i) y",
                "1 7,2 7",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT b FROM (VALUES (5,7),(6,7)) z(a,b) WHERE z.a > x.i GROUP BY b) y",
                "1 7,2 7",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT max(b) m FROM (VALUES (1,7),(1,7)) z(a,b) WHERE z.a = x.i HAVING count(*) > 0) y",
                "1 7",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2),(7)) x(i) CROSS JOIN LATERAL (SELECT count(*) c, max(b) m FROM (VALUES (1,7),(3,8)) z(a,b) WHERE z.a > x.i) y",
                "1 1 8,2 1 8,7 0 NULL",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2),(NULL),(2)) x(i) LEFT JOIN LATERAL (SELECT b FROM (VALUES (1,7),(2,8),(2,9)) z(a,b) WHERE z.a = x.i ORDER BY b DESC LIMIT 1) y ON true",
                "1 7,2 9,2 9,NULL NULL",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2),(NULL)) x(i) CROSS JOIN LATERAL (SELECT x.i UNION ALL SELECT x.i + 10) y(v)",
                "1 1,1 11,2 12,2 2,NULL NULL,NULL NULL",
            ),
            (
                "SELECT x.i, y.j FROM (VALUES (1),(2),(NULL)) x(i) CROSS JOIN LATERAL (SELECT x.i + 1 AS j) y",
                "1 2,2 3,NULL NULL",
            ),
            (
                "SELECT x.i, y.j, z.k FROM (VALUES (1),(2),(NULL)) x(i) CROSS JOIN LATERAL (SELECT x.i + 1 AS j) y CROSS JOIN LATERAL (SELECT y.j * x.i AS k) z",
                "1 2 2,2 3 6,NULL NULL NULL",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (VALUES (x.i), (x.i * 2)) y(v)",
                "1 1,1 2,2 2,2 4",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2),(3)) x(i) LEFT JOIN LATERAL (SELECT b FROM (VALUES (1,7),(2,8)) z(a,b) WHERE z.a >= x.i) y ON y.b > x.i + 6",
                "1 8,2 NULL,3 NULL",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN LATERAL (SELECT z.a, w.b FROM (VALUES (1),(2)) z(a) LEFT JOIN (VALUES (1,7),(2,8)) w(a,b) ON w.a = z.a AND w.b > x.i + 6) y",
                "1 1 NULL,1 2 8,2 1 NULL,2 2 NULL,3 1 NULL,3 2 NULL",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3)) z(a) WHERE EXISTS (SELECT 1 FROM (VALUES (2),(3)) w(b) WHERE w.b = z.a + x.i)) y",
                "1 1,1 2,2 1",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a, row_number() OVER (ORDER BY a DESC) r, sum(a) OVER () s FROM (VALUES (1),(2),(3)) z(a) WHERE a > x.i) y",
                "1 2 2 5,1 3 1 5,2 3 1 3",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3)) z(a) WHERE a > x.i EXCEPT SELECT x.i + 1) y",
                "1 3",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(2)) z(a) INTERSECT ALL SELECT b FROM (VALUES (2),(2),(1)) w(b) WHERE b >= x.i) y",
                "1 1,1 2,1 2,2 2,2 2",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT DISTINCT ON (a) a, b FROM (VALUES (1,5),(1,6),(2,7)) z(a,b) WHERE b > x.i + 4 ORDER BY a, b) y",
                "1 1 6,1 2 7,2 2 7",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT z.a, w.b FROM (SELECT a FROM (VALUES (1),(2),(3)) z(a) WHERE a >= x.i) z FULL JOIN (SELECT b FROM (VALUES (2),(3),(4)) w(b) WHERE b > x.i) w ON w.b = z.a + 1) y",
                "1 1 2,1 2 3,1 3 4,2 2 3,2 3 4",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3),(4)) z(a) WHERE a > x.i ORDER BY a OFFSET 1) y",
                "1 3,1 4,2 4",
            ),
            (
                "SELECT x.i, y.*, w.* FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3),(4)) z(a) WHERE a > x.i ORDER BY a LIMIT 2) y LEFT JOIN LATERAL (SELECT count(*) n FROM (VALUES (1),(2),(3),(4)) z(a) WHERE z.a < y.a AND z.a > x.i) w ON w.n > 0",
                "1 2 NULL,1 3 1,2 3 NULL,2 4 1,3 4 NULL",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT u.a, v.c FROM (VALUES (1),(2)) u(a) CROSS JOIN LATERAL (SELECT count(*) c FROM (VALUES (1),(2),(3)) w(b) WHERE b > u.a AND b > x.i) v) y",
                "1 1 2,1 2 1,2 1 1,2 2 1",
            ),
            (
                "SELECT (SELECT string_agg(y.b::text, ',' ORDER BY y.b) FROM (VALUES (1),(2)) k(a) CROSS JOIN LATERAL (SELECT k.a + x.i AS b) y) s FROM (VALUES (1),(2)) x(i)",
                "2,3,3,4",
            ),
            (
                "SELECT x.i FROM (VALUES (1),(2),(3)) x(i) WHERE EXISTS (SELECT 1 FROM (VALUES (1),(2)) k(a) CROSS JOIN LATERAL (SELECT b FROM (VALUES (1),(2),(5)) w(b) WHERE w.b > k.a ORDER BY b LIMIT 1) y WHERE y.b = x.i)",
                "2",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) LEFT JOIN LATERAL (SELECT count(*) c FROM (VALUES (1),(3)) z(a) WHERE a > x.i HAVING count(*) > 1) y ON true",
                "1 NULL,2 NULL",
            ),
            (
                "SELECT x.i, y.* FROM (SELECT * FROM (VALUES (1),(2),(3)) x(i) ORDER BY i DESC LIMIT 2) x CROSS JOIN LATERAL (SELECT count(*) c FROM (VALUES (1),(3)) z(a) WHERE a < x.i) y",
                "2 1,3 1",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i), LATERAL (SELECT x.i AS i, count(*) c FROM (VALUES (1),(3)) z(a) WHERE a > x.i GROUP BY x.i) y",
                "1 1 1,2 2 1",
            ),
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i), LATERAL (SELECT (SELECT max(a) FROM (VALUES (1),(3)) z(a) WHERE a > x.i + k.b) m FROM (VALUES (0),(1)) k(b)) y",
                "1 3,1 3,2 3,2 NULL",
            ),
            (
                "SELECT x.i, y.c FROM (VALUES (1),(2)) x(i), LATERAL (SELECT count(*) FILTER (WHERE z.a > x.i) c, count(DISTINCT z.a) d FROM (VALUES (1),(3),(3)) z(a) WHERE x.i < 2) y",
                "1 2,2 0",
            ),
            (
                "SELECT x.i, y.v FROM (VALUES (1),(2)) x(i) JOIN LATERAL (SELECT v FROM (SELECT sum(a) v FROM (VALUES (1),(3)) z(a) WHERE a > x.i) q WHERE v > 2) y ON y.v > x.i",
                "1 3,2 3",
            ),
            (
                "SELECT x.i, y.v FROM (VALUES (1),(2)) x(i) LEFT JOIN LATERAL (SELECT a AS v FROM (VALUES (1),(3)) z(a) WHERE a > x.i FETCH FIRST 1 ROW ONLY) y ON true",
                "1 3,2 3",
            ),
        ] {
            assert_eq!(sorted(query).await, expected, "{query}");
        }
    }

    #[tokio::test]
    async fn subqueries_are_about_each_row() {
        // As PostgreSQL 15.18 answers.
        for (query, expected) in [
            ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a OFFSET 1)", "1,4"),
            ("SELECT id FROM t WHERE id IN (SELECT row_number() OVER (ORDER BY u.id) FROM u WHERE u.a = t.a)", "1"),
            (
                "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u LEFT JOIN u AS k ON k.id = u.id AND k.b = t.id WHERE u.a = 1 AND k.id IS NULL)",
                "1,2,3,4,5",
            ),
            (
                "SELECT id FROM t WHERE (SELECT count(*) FROM u LEFT JOIN u AS k ON k.id = u.id AND k.b = t.id WHERE k.id IS NULL) = 2",
                "",
            ),
            ("SELECT id FROM t WHERE id IN (SELECT u.id FROM u WHERE u.a = t.a ORDER BY u.id DESC LIMIT 1)", "4"),
            (
                "SELECT id FROM t WHERE id NOT IN (SELECT u.id FROM u WHERE u.a = t.a ORDER BY u.id DESC LIMIT 1)",
                "1,2,3,5",
            ),
            (
                "SELECT id FROM t WHERE (SELECT sum(x) FROM (SELECT count(*) AS x FROM u WHERE u.a = t.a) AS s) = 0",
                "3,5",
            ),
            ("SELECT id FROM t WHERE 1 IN (SELECT count(*) FROM u WHERE u.a = t.a HAVING count(*) > 0)", "2"),
            (
                "SELECT id FROM t WHERE 2 NOT IN (SELECT count(*) FROM u WHERE u.a = t.a HAVING count(*) > 0)",
                "1,2,3,4,5",
            ),
            (
                "SELECT id, (SELECT b FROM u WHERE u.a = t.a ORDER BY b DESC LIMIT 1) FROM t",
                "1 5,2 7,3 NULL,4 5,5 NULL",
            ),
            ("SELECT id, (SELECT count(*) FROM u WHERE u.a < t.a) FROM t", "1 0,2 3,3 4,4 0,5 0"),
            ("SELECT id, (SELECT count(*) FROM u WHERE u.a < t.a OR u.b = t.id) FROM t", "1 1,2 3,3 4,4 0,5 1"),
            (
                "SELECT id FROM t WHERE EXISTS (SELECT u.a FROM u WHERE u.b = t.id EXCEPT SELECT k.id FROM u k WHERE k.a = t.a)",
                "2,5",
            ),
            (
                "SELECT id FROM t WHERE id IN (SELECT u.a FROM u WHERE u.b >= t.id INTERSECT SELECT k.id FROM u k WHERE k.a <= t.a)",
                "1,2",
            ),
            (
                "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND EXISTS (SELECT 1 FROM u k WHERE k.id = u.id AND k.b >= t.id))",
                "1,2,4",
            ),
            (
                "SELECT id, (SELECT max(b) FROM u WHERE u.b > (SELECT min(k.b) FROM u k WHERE k.a = t.a AND k.id <= u.id)) FROM t",
                "1 7,2 NULL,3 NULL,4 7,5 NULL",
            ),
            ("SELECT id FROM t WHERE b > ALL (SELECT u.b * 10 FROM u WHERE u.a = t.a ORDER BY 1 LIMIT 1)", "3,4,5"),
            ("SELECT id FROM t WHERE id = ANY (SELECT u.id FROM u WHERE u.a <> t.a ORDER BY 1 LIMIT 2)", "2"),
            (
                "SELECT t.id, k.id FROM t JOIN u k ON k.id <= t.id AND EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.id > k.id OFFSET 1)",
                "1 1,4 1",
            ),
            ("SELECT a, count(*) FROM t GROUP BY a HAVING EXISTS (SELECT 1 FROM u WHERE u.a = t.a OFFSET 2)", "1 2"),
            (
                "SELECT id, EXISTS (SELECT 1 FROM u WHERE u.a = t.a OFFSET 2) FROM t",
                "1 true,2 false,3 false,4 true,5 false",
            ),
            (
                "SELECT id, id IN (SELECT u.id FROM u WHERE u.a = t.a ORDER BY u.id LIMIT 1) FROM t",
                "1 true,2 false,3 false,4 false,5 false",
            ),
            (
                "SELECT id, (SELECT sum(s) FROM (SELECT b AS s FROM u WHERE u.a = t.a UNION ALL SELECT t.b) q) FROM t",
                "1 18,2 27,3 30,4 48,5 50",
            ),
            (
                "SELECT id, (SELECT max(r) FROM (SELECT rank() OVER (ORDER BY b) r FROM u WHERE u.a = t.a) q) FROM t",
                "1 3,2 1,3 NULL,4 3,5 NULL",
            ),
        ] {
            assert_eq!(sorted(&format!("{TABLES} {query}")).await, expected, "{query}");
        }
    }

    #[tokio::test]
    async fn conditions_and_chains_are_of_their_rows() {
        // As PostgreSQL 15.18 answers.
        for (query, expected) in [
            (
                "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT x.i FROM (VALUES (2)) u(j) WHERE 1 > 2 UNION ALL SELECT x.i + 1) y(v)",
                "1 2,2 3",
            ),
            (
                "SELECT y.i, y.j FROM (VALUES (1), (2)) AS x(i), LATERAL (SELECT x.i, j FROM (VALUES (2)) AS u(j) WHERE j > i) AS y",
                "1 2",
            ),
            (
                "SELECT y.c FROM (SELECT (SELECT v FROM generate_series(1, 3) AS g(v) WHERE v > 3) AS s) AS x, LATERAL (SELECT count(*) AS c FROM (VALUES (1)) AS z(a) WHERE z.a > x.s) AS y",
                "0",
            ),
            (
                "SELECT x.i, y.b FROM (VALUES (1),(2),(3)) x(i) LEFT JOIN LATERAL (SELECT b FROM (VALUES (1,7),(2,8),(2,9)) z(a,b) WHERE z.a = x.i ORDER BY b LIMIT 1) y ON true WHERE x.i > 1 AND (y.b IS NULL OR y.b > 7)",
                "2 8,3 NULL",
            ),
            (
                "SELECT x.i, y.n, z.m FROM (VALUES (1),(2),(3)) x(i), LATERAL (SELECT count(*) n FROM (VALUES (1),(3)) k(a) WHERE a >= x.i) y, LATERAL (SELECT max(a) m FROM (VALUES (1),(3)) k(a) WHERE a > y.n) z WHERE x.i < 3 AND y.n > 0",
                "1 2 3,2 1 3",
            ),
            (
                "SELECT x.i, y.n FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN (VALUES (2),(3)) w(j), LATERAL (SELECT count(*) n FROM (VALUES (1),(3)) k(a) WHERE a >= x.i AND a <> w.j) y WHERE w.j = x.i",
                "2 1,3 0",
            ),
            (
                "SELECT x.i FROM (VALUES (1),(2),(3)) x(i) WHERE x.i > 1 AND NOT EXISTS (SELECT 1 FROM (VALUES (1),(3),(3)) k(a) WHERE a >= x.i OFFSET 2)",
                "2,3",
            ),
            (
                "SELECT l0.v, l1.v, l2.v, l3.v FROM (VALUES (1),(2)) x(i), LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > x.i) l0, LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > x.i + 1) l1, LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > x.i + 2) l2, LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > l2.v) l3",
                "1 0 0 2,1 1 0 2",
            ),
            (
                "SELECT x.a, y.v FROM (VALUES ('b', 1.5), ('a', NULL)) x(a, d), LATERAL (SELECT string_agg(k.t || x.a, ',' ORDER BY k.t) v FROM (VALUES ('x'), ('y')) k(t) WHERE x.d IS NULL OR k.t > 'x') y",
                "a xa,ya,b yb",
            ),
            (
                "SELECT q.s FROM (SELECT sum(y.v) s FROM (VALUES (1),(2)) x(i), LATERAL (SELECT max(a) v FROM (VALUES (1),(3)) k(a) WHERE a >= x.i) y) q",
                "6",
            ),
            (
                "SELECT x.i, (SELECT y.v FROM (VALUES (5),(6)) w(j), LATERAL (SELECT w.j + x.i AS v) y ORDER BY y.v DESC LIMIT 1) FROM (VALUES (1),(2)) x(i)",
                "1 7,2 8",
            ),
        ] {
            assert_eq!(sorted(query).await, expected, "{query}");
        }
    }

    #[tokio::test]
    async fn queries_further_out_are_named_as_well() {
        let table = "(VALUES (1, 2), (2, 3)) AS";
        for (condition, expected) in [
            ("id IN (SELECT id FROM (VALUES (1, 2)) AS c(id, x) WHERE c.x = a.x)", "1 2"),
            ("a.x IN (SELECT id FROM (VALUES (2, 2)) AS c(id, x))", "1 2"),
            (
                "NOT EXISTS (SELECT 1 FROM (VALUES (1, 2)) AS c(id, x) WHERE c.x = a.x AND c.id = b.id) AND b.id = 1",
                "2 3",
            ),
        ] {
            let query = format!(
                "SELECT * FROM {table} a(id, x) WHERE EXISTS (SELECT 1 FROM {table} b(id, y) WHERE {condition})"
            );
            assert_eq!(sorted(&query).await, expected, "{query}");
        }
    }

    #[tokio::test]
    async fn fields_of_what_a_lateral_subquery_has_are_found_behind_its_alias() {
        let query = "SELECT x, s.r['a'] AS a FROM (VALUES (2), (0), (1)) AS t(x), \
                     LATERAL (SELECT unnest(array_repeat(named_struct('a', 10 * t.x), t.x)) AS r) AS s \
                     WHERE s.r['a'] > 5 ORDER BY x";
        assert_eq!(rows(query).await, ["1 10", "2 20", "2 20"]);
    }

    #[tokio::test]
    async fn what_may_be_otherwise_the_second_time_is_refused() {
        for query in [
            "SELECT * FROM (SELECT random() AS r) AS x, LATERAL (SELECT count(*) FROM u WHERE u.b > x.r) AS y",
            "SELECT * FROM t, LATERAL (SELECT random() AS r, max(b) FROM u WHERE u.a = t.a) AS y",
            "SELECT * FROM (SELECT count(*) AS n FROM (SELECT * FROM t LIMIT 3) AS s) AS x, \
             LATERAL (SELECT count(*) FROM u WHERE u.b > x.n) AS y",
            "SELECT * FROM t, LATERAL (SELECT a, count(*) FROM u WHERE u.b > t.b GROUP BY ROLLUP (a)) AS y",
        ] {
            let error = fails(&format!("{TABLES} {query}")).await;
            assert_eq!(error.kind(), ErrorKind::Invalid, "{query}: {error}");
            assert!(error.message().contains("is not supported"), "{query}: {error}");
        }
    }

    #[tokio::test]
    async fn conditions_alone_are_joined_on() {
        let query = "EXPLAIN SELECT * FROM (VALUES (1), (2)) AS t(a), \
                     LATERAL (SELECT b FROM (VALUES (1, 2)) AS u(i, b) WHERE i = a AND b > i) AS y";
        let plan = rows(query).await.join(" ");
        assert!(!plan.contains("Aggregate") && plan.contains("on=[("), "{plan}");
    }
}
