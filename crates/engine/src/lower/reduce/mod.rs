//! Semi-join reductions: the keys of one side of a join limit the rows that the other side
//! aggregates or puts into a table.
//!
//! ```text
//!          join k = k                              join k = k
//!         /          \                            /          \
//!  part, filtered   aggregate by k   ──►   part, filtered   aggregate by k
//!                        │                                      │
//!                     lineitem                            semi join on k
//!                                                        /              \
//!                                                    lineitem     keys of part, filtered
//! ```
//! A correlated subquery becomes a join with an aggregate of all keys, and EXISTS a join with a set
//! of them, however few the query needs. So a join pushes the keys of one side down into the other:
//! below the aggregates, to the table that the keys come from. This is semi-join reduction
//! (Bernstein and Chiu 1981) or magic sets (Mumick and Pirahesh 1994). The pipeline of that table
//! then probes a small table first, as a screen where possible.
//!
//! Correctness:
//! - A row whose key the other side lacks has no match in the join. The reduction applies only if
//!   such a row does not affect the result. These are both sides of an inner join, the inner side
//!   of a semi or anti join, and the nullable side of an outer join. A NULL key has no match.
//! - On its way down, the condition passes only operators that treat rows of different keys
//!   separately. These are projections, filters, the side of a join that has the key, and
//!   aggregates that group by the key. A group is kept or removed as a whole. In an inner or semi
//!   join the key may change sides: matches of a removed row are removed with it.
//! - The keys pushed down are at least those of the other side ([`keys`]); more do no harm.
//! - Errors: a row that no longer enters a sum no longer overflows it. As with any filter that is
//!   pushed below an aggregate, an unneeded group may then no longer fail the query. No query fails
//!   that did not before.
//!
//! The same helps if a third table is joined with two others by one key: the table that is built
//! keeps only the rows that the other one lets through.
//!
//! The rows that provide the keys are read twice. An estimate decides whether that pays
//! ([`estimate`]).

mod estimate;
mod keys;

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, JoinType, NullEquality, Result};
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::{
    Aggregate, Expr, ExprSchemable, Filter, Join, LogicalPlan, Projection, Sort, SubqueryAlias,
};

use self::estimate::{part_of_keys, size, values};
use self::keys::{Keys, candidates, equal_keys, kept};
use super::relation::table_of;

/// The alias of keys that a join above asks for, in plans and in EXPLAIN.
pub(super) const WANTED: &str = "wanted";
/// The cost of a row in a group or a join table, relative to 1 for reading it.
const HELD: f64 = 32.0;
/// The cost of a probe of a row.
const PROBED: f64 = 2.0;
/// The maximum fraction of rows left for a reduction to apply.
const MOST_LEFT: f64 = 0.5;
/// The maximum fraction of the cost left for a reduction to apply.
const WORTH: f64 = 0.7;

/// A side of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Side {
    /// Returns the side of a column.
    fn of(join: &Join, column: &Column) -> Option<Self> {
        match (join.left.schema().has_column(column), join.right.schema().has_column(column)) {
            (true, false) => Some(Self::Left),
            (false, true) => Some(Self::Right),
            _ => None,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    fn of_join(self, join: &Join) -> &LogicalPlan {
        match self {
            Self::Left => &join.left,
            Self::Right => &join.right,
        }
    }

    /// Returns a pair of equal keys: this side's, the other's.
    fn pair(self, (left, right): &(Expr, Expr)) -> (&Expr, &Expr) {
        match self {
            Self::Left => (left, right),
            Self::Right => (right, left),
        }
    }

    /// Returns the join with another plan on this side, of the same columns.
    fn replaced(self, join: &Join, plan: LogicalPlan) -> Join {
        let plan = Arc::new(plan);
        match self {
            Self::Left => Join { left: plan, ..join.clone() },
            Self::Right => Join { right: plan, ..join.clone() },
        }
    }
}

/// The use of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// They are joined: the largest table is streamed, and its matches are put into tables. A table
    /// that is joined with the one that has the keys is filtered by that join already. A table that
    /// is joined with both by a third is not; then `hops` equalities were followed.
    Joined { hops: usize },
    /// They are put into groups or into a table.
    Held,
}

/// Returns the plan with its joins reduced; `None` if there is nothing to gain.
pub(super) fn reduced(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    // Bottom-up, so that an inserted side of a join is not visited again.
    let reduced = plan.clone().transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(join) => reduced_join(join),
        other => Ok(Transformed::no(other)),
    })?;
    Ok(if reduced.transformed { Some(reduced.data) } else { None })
}

fn reduced_join(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let mut transformed = false;
    if join.null_equality == NullEquality::NullEqualsNothing && !join.null_aware {
        let largest = if join.join_type == JoinType::Inner { largest_scan(&join)? } else { 0.0 };
        for (side, fate) in reducible(join.join_type) {
            for pair in join.on.clone() {
                let (key, theirs) = side.pair(&pair);
                let reduction = Reduction { by: side.other().of_join(&join), key: theirs, largest };
                if !reduction.has_type_of(key, side.of_join(&join).schema()) {
                    continue;
                }
                if let Some(plan) = reduction.put_into(side.of_join(&join), key, *fate)? {
                    join = side.replaced(&join, plan);
                    transformed = true;
                }
            }
        }
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), transformed))
}

/// Returns the sides of a join whose rows do not affect the result if they have no match.
fn reducible(join_type: JoinType) -> &'static [(Side, Fate)] {
    const JOINED: Fate = Fate::Joined { hops: 0 };
    use Fate::Held;
    use Side::{Left, Right};
    match join_type {
        JoinType::Inner => &[(Left, JOINED), (Right, JOINED)],
        JoinType::LeftSemi => &[(Right, Held), (Left, JOINED)],
        JoinType::RightSemi => &[(Left, Held), (Right, JOINED)],
        JoinType::LeftAnti | JoinType::Left => &[(Right, Held)],
        JoinType::RightAnti | JoinType::Right => &[(Left, Held)],
        JoinType::Full | JoinType::LeftMark | JoinType::RightMark => &[],
    }
}

/// A side of a join, and its part of an equality.
struct Reduction<'a> {
    by: &'a LogicalPlan,
    key: &'a Expr,
    /// Rows of the largest table of an inner join, which will be streamed.
    largest: f64,
}

impl Reduction<'_> {
    fn has_type_of(&self, key: &Expr, schema: &DFSchema) -> bool {
        let of = |key: &Expr, schema: &DFSchema| key.get_type(schema).ok().filter(is_type_of_keys);
        match (of(key, schema), of(self.key, self.by.schema())) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        }
    }

    /// Pushes the reduction down: keeps only rows of `plan` whose `key` is one of the other side's,
    /// if that saves cost.
    fn put_into(&self, plan: &LogicalPlan, key: &Expr, fate: Fate) -> Result<Option<LogicalPlan>> {
        let Some(column) = key_column(key, plan.schema()) else { return Ok(None) };
        let Some(place) = plan.schema().maybe_index_of_column(column) else { return Ok(None) };
        let below = |input: &Arc<LogicalPlan>, of: Option<&Expr>, fate: Fate| -> Result<Option<Arc<LogicalPlan>>> {
            let Some(key) = of.and_then(|of| substituted_key(key, of)) else { return Ok(None) };
            Ok(self.put_into(input, &key, fate)?.map(Arc::new))
        };
        if is_filtered_table(plan)? {
            return self.put_here(plan, key, fate);
        }
        Ok(match plan {
            LogicalPlan::Projection(Projection { expr, input, schema, .. }) => {
                match below(input, expr.get(place), fate)? {
                    Some(input) => {
                        let schema = Arc::clone(schema);
                        Some(LogicalPlan::Projection(Projection::try_new_with_schema(expr.clone(), input, schema)?))
                    }
                    None => None,
                }
            }
            LogicalPlan::SubqueryAlias(SubqueryAlias { input, alias, .. }) => {
                let column = Expr::Column(column_at(input.schema(), place));
                match below(input, Some(&column), fate)? {
                    Some(input) => Some(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(input, alias.clone())?)),
                    None => None,
                }
            }
            LogicalPlan::Filter(Filter { predicate, input, .. }) => {
                match below(input, Some(&column_expr(column)), fate)? {
                    Some(input) => Some(LogicalPlan::Filter(Filter::try_new(predicate.clone(), input)?)),
                    None => None,
                }
            }
            // A Sort with a limit is excluded: fewer rows would have other first rows.
            LogicalPlan::Sort(sort @ Sort { fetch: None, .. }) => {
                let input = below(&sort.input, Some(&column_expr(column)), fate)?;
                input.map(|input| LogicalPlan::Sort(Sort { input, ..sort.clone() }))
            }
            LogicalPlan::Aggregate(Aggregate { input, group_expr, aggr_expr, schema, .. }) => {
                if group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_))) {
                    return Ok(None);
                }
                match below(input, group_expr.get(place), Fate::Held)? {
                    Some(input) => {
                        let (keys, calls) = (group_expr.clone(), aggr_expr.clone());
                        let aggregate = Aggregate::try_new_with_schema(input, keys, calls, Arc::clone(schema))?;
                        Some(LogicalPlan::Aggregate(aggregate))
                    }
                    None => None,
                }
            }
            LogicalPlan::Join(join) => self.put_into_join(join, column, key, fate)?,
            _ => None,
        })
    }

    /// Pushes it into the side of the key, or otherwise into the other one through an equal key.
    fn put_into_join(&self, join: &Join, column: &Column, key: &Expr, fate: Fate) -> Result<Option<LogicalPlan>> {
        let Some(side) = Side::of(join, column) else { return Ok(None) };
        let is_kept = match side {
            Side::Left => {
                use JoinType::{Inner, Left, LeftAnti, LeftMark, LeftSemi};
                matches!(join.join_type, Inner | Left | LeftSemi | LeftAnti | LeftMark)
            }
            Side::Right => {
                use JoinType::{Inner, Right, RightAnti, RightMark, RightSemi};
                matches!(join.join_type, Inner | Right | RightSemi | RightAnti | RightMark)
            }
        };
        if !is_kept {
            return Ok(None);
        }
        let mut reduced: Option<Join> = None;
        if let Some(plan) = self.put_into(side.of_join(join), key, fate)? {
            reduced = Some(side.replaced(join, plan));
        }
        // A semi join puts its inner side into a table of its own.
        let (other, fate) = match (join.join_type, fate) {
            (JoinType::Inner, _) if reduced.is_some() => return Ok(reduced.map(LogicalPlan::Join)),
            (JoinType::Inner, Fate::Joined { hops }) => (side.other(), Fate::Joined { hops: hops + 1 }),
            _ => (side.other(), Fate::Held),
        };
        for key in equal_keys(join, side, key) {
            let join = reduced.as_ref().unwrap_or(join);
            if let Some(plan) = self.put_into(other.of_join(join), &key, fate)? {
                reduced = Some(other.replaced(join, plan));
            }
        }
        Ok(reduced.map(LogicalPlan::Join))
    }

    /// Keeps only such rows of `plan`, if that is worth it.
    fn put_here(&self, plan: &LogicalPlan, key: &Expr, fate: Fate) -> Result<Option<LogicalPlan>> {
        let Some(rows) = size(plan)? else { return Ok(None) };
        let least_hops = match fate {
            Fate::Joined { .. } if rows.scanned >= self.largest => return Ok(None),
            Fate::Joined { hops } => 1usize.saturating_sub(hops),
            Fate::Held => 0,
        };
        let distinct = values(plan, key)?;
        let without = rows.scanned + HELD * rows.rows;
        let mut found = Vec::new();
        candidates(self.by, self.key, 0, &mut found)?;
        found.retain(|keys| keys.hops >= least_hops);
        let mut best: Option<(f64, Keys)> = None;
        for keys in found {
            let Some(theirs) = size(&keys.plan)? else { continue };
            let Some(left) = part_of_keys(&keys.plan, &keys.key, theirs, distinct)? else { continue };
            let to_collect = theirs.scanned + HELD * theirs.rows;
            let with = to_collect + (1.0 + PROBED) * rows.scanned + HELD * rows.rows * left;
            if left <= MOST_LEFT && with <= WORTH * without && best.as_ref().is_none_or(|(least, _)| with < *least) {
                best = Some((with, keys));
            }
        }
        match best {
            Some((_, keys)) => keys.keep_of(plan, key),
            None => Ok(None),
        }
    }
}

/// Returns the rows of the largest table that an inner join reads, if all sizes are known.
fn largest_scan(join: &Join) -> Result<f64> {
    fn of(plan: &LogicalPlan) -> Result<f64> {
        Ok(match plan {
            LogicalPlan::TableScan(_) => size(plan)?.map_or(0.0, |size| size.scanned),
            LogicalPlan::Projection(projection) => of(&projection.input)?,
            LogicalPlan::SubqueryAlias(alias) => of(&alias.input)?,
            LogicalPlan::Filter(filter) => of(&filter.input)?,
            LogicalPlan::Join(join) => match join.join_type {
                JoinType::Inner => largest_scan(join)?,
                JoinType::LeftSemi | JoinType::LeftAnti => of(&join.left)?,
                JoinType::RightSemi | JoinType::RightAnti => of(&join.right)?,
                _ => 0.0,
            },
            _ => 0.0,
        })
    }
    Ok(of(&join.left)?.max(of(&join.right)?))
}

/// Returns whether it is a table of the database, with only conditions and inserted joins above it.
fn is_filtered_table(plan: &LogicalPlan) -> Result<bool> {
    match plan {
        LogicalPlan::TableScan(scan) => Ok(scan.fetch.is_none() && table_of(plan)?.is_some()),
        LogicalPlan::Filter(filter) => is_filtered_table(&filter.input),
        LogicalPlan::Join(join) => kept(join).map_or(Ok(false), is_filtered_table),
        _ => Ok(false),
    }
}

/// Returns whether keys of a type can be found across tables, regardless of dictionaries, and leave
/// free bits in their word.
fn is_type_of_keys(data_type: &DataType) -> bool {
    use DataType as T;
    matches!(data_type, T::Int8 | T::Int16 | T::Int32 | T::Int64 | T::UInt8 | T::UInt16 | T::UInt32 | T::Date32)
}

/// Returns the column that a key is, possibly widened.
fn key_column<'e>(key: &'e Expr, schema: &DFSchema) -> Option<&'e Column> {
    match key {
        Expr::Column(column) => Some(column),
        Expr::Alias(alias) => key_column(&alias.expr, schema),
        Expr::Cast(cast) if widens(cast, schema) => key_column(&cast.expr, schema),
        _ => None,
    }
}

/// Returns whether a cast preserves all values as distinct.
fn widens(cast: &Cast, schema: &DFSchema) -> bool {
    use DataType as T;
    let Ok(from) = cast.expr.get_type(schema) else { return false };
    match cast.field.data_type() {
        T::Int64 => matches!(from, T::Int32 | T::Int16 | T::Int8 | T::UInt32 | T::UInt16 | T::UInt8),
        T::Int32 => matches!(from, T::Int16 | T::Int8 | T::UInt16 | T::UInt8),
        _ => false,
    }
}

/// Returns a key with its column replaced by the definition `of`.
fn substituted_key(key: &Expr, of: &Expr) -> Option<Expr> {
    match (key, of) {
        (key, Expr::Alias(alias)) => substituted_key(key, &alias.expr),
        (Expr::Column(_), of) => Some(of.clone()),
        (Expr::Alias(alias), of) => substituted_key(&alias.expr, of),
        (Expr::Cast(cast), of) => {
            let expr = Box::new(substituted_key(&cast.expr, of)?);
            Some(Expr::Cast(Cast { expr, field: Arc::clone(&cast.field) }))
        }
        _ => None,
    }
}

fn column_at(schema: &DFSchema, place: usize) -> Column {
    let (qualifier, field) = schema.qualified_field(place);
    Column::new(qualifier.cloned(), field.name())
}

fn column_expr(column: &Column) -> Expr {
    Expr::Column(column.clone())
}
