//! Unnests correlated subqueries: they are answered for all outer rows at once.
//!
//! After Neumann and Kemper, "Unnesting Arbitrary Queries" (BTW 2015). A correlated subquery is a
//! function of the outer columns that it contains. The domain D is the set of the distinct values
//! of these columns. [`Domain::unnested`] transforms the subquery's plan into one that has the
//! subquery's rows for all of D. Columns of D, the keys, precede its own columns:
//!
//! 1. A plan without outer columns is the same for all of D: D × plan.
//! 2. A key replaces each outer column.
//! 3. An operator over all rows becomes one over the rows of each key. Aggregates group by the
//!    keys, windows are partitioned by them, and DISTINCT compares them. LIMIT becomes
//!    `row_number() OVER (PARTITION BY keys ..)`, and joins of two such inputs compare the keys.
//! 4. An aggregate without groups has a row even for a key without rows. It becomes D LEFT JOIN it,
//!    with the value of each aggregate over no rows. So has the total of ROLLUP, CUBE and GROUPING
//!    SETS, whose groups are NULL. The keys are part of each set.
//!
//! Equal values may have different representations, and a subquery may distinguish them. So keys
//! are representations, see [`looks`].
//!
//! The outer query is joined with the result on D's columns, where NULL equals NULL. D reads the
//! outer query a second time, so it must find the same rows as the first time: see [`superset`].
//!
//! LATERAL joins become such joins: see [`laterals`].

mod laterals;
mod outer_columns;
mod superset;

use std::cell::Cell;
use std::sync::Arc;

use arrow::datatypes::FieldRef;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, DataFusionError, ExprSchema, NullEquality, Result, TableReference};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::Sort as SortExpr;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Cast, Distinct, DistinctOn, ExprFunctionExt, ExprSchemable, FetchType, Filter, GroupingSet,
    Join, JoinConstraint, JoinType, Limit, LogicalPlan, LogicalPlanBuilder, Operator, Projection, SkipType,
    SubqueryAlias, Union, Unnest, Values, Window, lit, when,
};
use datafusion::prelude::Expr;

pub(super) use self::laterals::{has_lateral, is_plain_condition, without_laterals};
pub(super) use self::outer_columns::{has, names_across, outer_columns_of, subquery_in, subquery_of, with_subquery};
use self::superset::{Superset, is_volatile, superset};
use super::{expressions, looks};
use crate::{Error, ErrorKind};

/// The prefix of the names of keys; a number follows. The names are unique in a statement.
const KEY: &str = "__outer";

/// A generator of unique names.
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
/// An outer column.
#[derive(Clone)]
struct Outer {
    /// The column's name in the subquery.
    column: Column,
    /// True if its key is a representation.
    is_look: bool,
}

impl Outer {
    /// Returns the key of its value.
    fn key(&self) -> Expr {
        let value = Expr::Column(self.column.clone());
        if self.is_look { looks::look(value) } else { value }
    }

    /// Returns the value of its key.
    fn of(&self, key: Expr) -> Expr {
        if self.is_look { looks::seen(key) } else { key }
    }

    /// Returns the value of its key in a subquery of a plan that has the keys.
    fn of_outside(&self, field: &FieldRef, key: Column) -> Expr {
        let key_type = looks::look_type(field.data_type()).unwrap_or_else(|| field.data_type().clone());
        let field = Arc::new(field.as_ref().clone().with_data_type(key_type));
        self.of(Expr::OuterReferenceColumn(field, key))
    }
}

/// The domain D of a subquery: the distinct values of its outer columns.
pub(super) struct Domain<'a> {
    columns: Vec<Outer>,
    /// The operator that compares all of them. DataFusion hashes either equalities or null-safe
    /// ones, not both.
    equals: Operator,
    rows: Arc<LogicalPlan>,
    names: &'a Names,
}

/// A plan whose first columns are the keys of a row.
pub(super) struct Unnested {
    pub(super) plan: LogicalPlan,
    pub(super) keys: Vec<Column>,
}

impl Unnested {
    fn key_exprs(&self) -> Vec<Expr> {
        self.keys.iter().cloned().map(Expr::Column).collect()
    }

    /// Returns the columns after the keys.
    pub(super) fn columns(&self) -> Vec<Column> {
        self.plan.schema().columns().split_off(self.keys.len())
    }

    /// Restores the names of the original plan.
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
    /// Creates the domain of columns of the outer query.
    pub(super) fn new(around: &Arc<LogicalPlan>, columns: Vec<Column>, names: &'a Names) -> Result<Self> {
        let around = source_of(around, &columns);
        let Superset { plan, is_chance } = superset(around)?;
        if columns.iter().any(|column| is_chance.contains(column)) {
            return Err(refused("a value that may be another one when it is computed again"));
        }
        // A scalar subquery is NULL if it has no rows, even if its column is NOT NULL.
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

    /// Returns the conditions that match the rows of a subquery with a row of the outer query.
    fn is_row_of(&self, unnested: &Unnested) -> Vec<Expr> {
        pairs(self.equals, self.columns.iter().map(Outer::key), unnested.key_exprs())
    }

    fn has(&self, column: &Column) -> bool {
        self.columns.iter().any(|outer| outer.column == *column)
    }

    /// Unnests the whole subquery for all of D.
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

    /// Returns D with new names.
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
            // The order does not matter unless rows are counted.
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
            // This is FROM unnest(..), which is LATERAL by itself.
            LogicalPlan::Subquery(subquery) => self.unnested(&subquery.subquery),
            LogicalPlan::Unnest(unnest) => {
                let input = self.unnested(&unnest.input)?;
                let lists = Unnest::try_new(Arc::new(input.plan), unnest.exec_columns.clone(), unnest.options.clone())?;
                Unnested { plan: LogicalPlan::Unnest(lists), keys: input.keys }.named(&unnest.schema)
            }
            other => Err(refused(&format!("{} in it", other.display()))),
        }
    }

    /// Applies step 1.
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

    /// Applies step 2. In nested subqueries, columns of `readable` hide outer columns of the same
    /// name.
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

    /// Applies step 2 to columns that keep their names.
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
        let totals = totals(&aggregate.group_expr);
        // DataFusion does not name the computed keys of a grouping set.
        let is_set_of_outer = |expr: &Expr| matches!(expr, Expr::GroupingSet(_)) && expr.contains_outer();
        if aggregate.group_expr.iter().any(is_set_of_outer) {
            return Err(refused("a grouping set with a column of the row around it"));
        }
        if totals > 1 {
            return Err(refused("GROUPING SETS with two totals in it"));
        }
        if totals > 0 && aggregate.aggr_expr.iter().any(is_grouping) {
            return Err(refused("GROUPING() of a total in it"));
        }
        let input = self.unnested(&aggregate.input)?;
        let readable = aggregate.input.schema();
        let mut groups = input.key_exprs();
        groups.extend(self.all_keyed(&aggregate.group_expr, &input, readable)?);
        let aggregates = self.all_keyed(&aggregate.aggr_expr, &input, readable)?;
        let grouped = Aggregate::try_new(Arc::new(input.plan), groups, aggregates)?;
        let grouped = Unnested { plan: LogicalPlan::Aggregate(grouped), keys: input.keys };
        if totals == 0 { Ok(grouped) } else { self.for_nobody_as_well(grouped, aggregate) }
    }

    /// Applies step 4.
    fn for_nobody_as_well(&self, grouped: Unnested, aggregate: &Aggregate) -> Result<Unnested> {
        let columns = grouped.columns();
        let is_found = Column::from_name(self.names.next());
        let mut marked: Vec<Expr> = grouped.plan.schema().columns().into_iter().map(Expr::Column).collect();
        marked.push(lit(true).alias(&is_found.name));
        let grouped = Unnested { plan: projected(marked, grouped.plan)?, keys: grouped.keys };
        let all = self.all()?;
        let mut exprs = all.key_exprs();
        // The groups are NULL for a key without rows.
        let groups = columns.len().saturating_sub(aggregate.aggr_expr.len());
        exprs.extend(columns.iter().take(groups).cloned().map(Expr::Column));
        for (expr, column) in aggregate.aggr_expr.iter().zip(columns.into_iter().skip(groups)) {
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
            // A projection keeps the number and the order of rows.
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

    /// Returns the rows of each key after the first `skip`, up to the row `last`.
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

    /// Unnests a join. A side gets keys if it needs them, or if its rows appear without a match.
    fn joined(&self, join: &Join) -> Result<Unnested> {
        if join.null_aware || join.on.iter().any(|(left, right)| left.contains_outer() || right.contains_outer()) {
            return Err(refused("a join of that sort in it"));
        }
        let (left, right) = (self.is_named_in(&join.left)?, self.is_named_in(&join.right)?);
        // These are INTERSECT and EXCEPT, which compare all columns.
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
            // This adds no condition if only one side has keys.
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

    /// Unnests VALUES: each row is computed for all of D.
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

    /// Returns at most two rows for each key.
    pub(super) fn first_two(&self, of: Unnested) -> Result<Unnested> {
        self.numbered(of, Vec::new(), 0, Some(2))
    }

    /// Returns a correlated subquery with the rows of one outer row.
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

/// Returns the number of an aggregate's groups that contain all rows.
fn totals(groups: &[Expr]) -> usize {
    match groups {
        [] => 1,
        [Expr::GroupingSet(GroupingSet::Rollup(_) | GroupingSet::Cube(_))] => 1,
        [Expr::GroupingSet(GroupingSet::GroupingSets(sets))] => sets.iter().filter(|set| set.is_empty()).count(),
        _ => 0,
    }
}

fn is_grouping(aggregate: &Expr) -> bool {
    let is_one = |expr: &Expr| matches!(expr, Expr::AggregateFunction(call) if call.func.name() == "grouping");
    aggregate.exists(|expr| Ok(is_one(expr))).unwrap_or(true)
}

fn one_after_another(mut inputs: Vec<Unnested>) -> Result<Unnested> {
    if inputs.len() == 1
        && let Some(only) = inputs.pop()
    {
        return Ok(only);
    }
    let keys = inputs.first().map(|first| first.keys.clone()).unwrap_or_default();
    let inputs: Vec<Arc<LogicalPlan>> = inputs.into_iter().map(|input| Arc::new(input.plan)).collect();
    // If an input has no rows, DataFusion searches for its names in the other.
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

/// Adds a table's alias to all columns but the keys. The keys get other names below it: DataFusion
/// cannot distinguish `q.__outer1` from `__outer1`.
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

/// Replaces outer columns in a subquery of an expression by keys of the plan around it.
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

/// Returns the plan that supplies the columns, below LATERAL joins with other plans. Otherwise each
/// of these would contain all plans before it twice.
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

/// Returns the conditions that the columns of one side match those of the other.
fn pairs(op: Operator, left: impl IntoIterator<Item = Expr>, right: impl IntoIterator<Item = Expr>) -> Vec<Expr> {
    let same = |(left, right)| Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)));
    left.into_iter().zip(right).map(same).collect()
}

/// Runs a step with enough stack: the depth of a plan is bounded only by the statement's length.
fn deep<T>(step: impl FnOnce() -> Result<T>) -> Result<T> {
    const LEFT_BYTES: usize = 128 << 10;
    const MORE_BYTES: usize = 2 << 20;
    stacker::maybe_grow(LEFT_BYTES, MORE_BYTES, step)
}

pub(super) fn refused(what: &str) -> DataFusionError {
    refused_with(what, "write it as a join of what is computed before")
}

fn refused_with(what: &str, hint: &str) -> DataFusionError {
    let message = format!("a subquery about the row around it, with {what}, is not supported");
    Error::new(ErrorKind::Invalid, message).with_hint(hint).into()
}

#[cfg(test)]
mod tests;
