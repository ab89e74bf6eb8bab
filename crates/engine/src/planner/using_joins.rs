//! The merged column of `JOIN .. USING (a)` and of NATURAL JOIN.
//!
//! `a` alone is COALESCE(left.a, right.a), and `*` contains it once. DataFusion takes the left
//! side's column, so that a RIGHT or FULL JOIN has NULL where only the right side has a row. In `*`
//! it takes the column of the table whose name sorts first. It finds `a` ambiguous in WHERE, and
//! wherever three tables are joined by it. Here such a join's plan has a separate column for `a`,
//! before those of the sides, which remain for `t.a` and `u.a`:
//!
//! 1. In the tree, a join with USING becomes a nested one, `(t FULL JOIN u USING (a))`, which
//!    DataFusion lets this module plan.
//! 2. Its plan is a join with ON below a projection to `" t=u".a, t.a, t.b, u.a, u.c`. The merged
//!    column's table names its sources, and starts with a space to sort before all others.
//! 3. DataFusion resolves `a`, and the columns that `*` omits, by the joins with USING that it
//!    finds in the plan. A [`hint`] is one that has these columns and joins nothing. It is removed
//!    before any other pass reads the plan. A name whose case differs between the sides has the
//!    left side's case.
//! 4. DataFusion does not do so in WHERE and ON, and in a subquery it prefers a column of the outer
//!    query. So a column without a table is wrapped in an operator of ours, and resolved when that
//!    is planned.
//!
//! Without USING, too, DataFusion takes `id` for one of several in `WHERE t.id = u.id AND id < 3`.
//! It takes the columns that a condition contains for merged ones. Such an `id` is resolved
//! likewise, and ambiguous.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, DataFusionError, NullEquality, Result, SchemaError, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::logical_expr::logical_plan::Join as PlannedJoin;
use datafusion::logical_expr::planner::{
    ExprPlanner, PlannedRelation, PlannerResult, RawBinaryExpr, RelationPlanner, RelationPlannerContext,
    RelationPlanning,
};
use datafusion::logical_expr::utils::expand_wildcard;
use datafusion::logical_expr::{
    EmptyRelation, JoinConstraint as Constraint, JoinType, LogicalPlan, LogicalPlanBuilder, lit,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr as PlannedExpr;
use datafusion::sql::sqlparser::ast::{
    AccessExpr, BinaryOperator, Expr, GroupByExpr, Join, JoinConstraint, JoinOperator, ObjectName, Query, Select,
    SelectItem, TableFactor, TableWithJoins, Value, VisitMut, VisitorMut, visit_expressions,
};

use super::spellings::Spellings;
use crate::identifiers::normal;
use crate::{Error, ErrorKind};

/// The operator around a column without a table; no text parses to it.
const LOOKED_UP: &str = "column of";

/// The prefix of a merged column's table. It sorts before the names of tables.
const MERGED: char = ' ';

pub(super) fn rewrite(select: &mut Select) {
    if !select.from.iter().any(has_using) {
        if let Some(condition) = select.selection.as_mut().filter(|condition| names_sides(condition)) {
            look_up(condition);
        }
        return;
    }
    select.from.iter_mut().for_each(nest);
    select.selection.iter_mut().for_each(look_up);
    select.having.iter_mut().for_each(look_up);
    for item in &mut select.projection {
        if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
            look_up(expr);
        }
    }
    if let GroupByExpr::Expressions(exprs, _) = &mut select.group_by {
        exprs.iter_mut().for_each(look_up);
    }
}

/// Returns whether a condition contains a name without a table, and the same name with two tables.
fn names_sides(condition: &Expr) -> bool {
    let (mut alone, mut tables) = (HashSet::new(), HashMap::<String, HashSet<String>>::new());
    let _ = visit_expressions(condition, |expr| {
        match expr {
            Expr::Identifier(name) => drop(alone.insert(normal(name))),
            Expr::CompoundIdentifier(path) => {
                if let [table @ .., name] = path.as_slice() {
                    let table: Vec<String> = table.iter().map(normal).collect();
                    tables.entry(normal(name)).or_default().insert(table.join("."));
                }
            }
            _ => {}
        }
        ControlFlow::<()>::Continue(())
    });
    alone.iter().any(|name| tables.get(name).is_some_and(|tables| tables.len() > 1))
}

/// Returns the type and the constraint of a join, if it merges columns.
fn merging(join: &Join) -> Option<(JoinType, &JoinConstraint)> {
    let (join_type, constraint) = match &join.join_operator {
        JoinOperator::Join(constraint) | JoinOperator::Inner(constraint) => (JoinType::Inner, constraint),
        JoinOperator::Left(constraint) | JoinOperator::LeftOuter(constraint) => (JoinType::Left, constraint),
        JoinOperator::Right(constraint) | JoinOperator::RightOuter(constraint) => (JoinType::Right, constraint),
        JoinOperator::FullOuter(constraint) => (JoinType::Full, constraint),
        _ => return None,
    };
    let merges = matches!(constraint, JoinConstraint::Using(_) | JoinConstraint::Natural);
    (merges && !is_left_sides(join)).then_some((join_type, constraint))
}

/// Returns whether the left side's columns are the merged ones, as in DataFusion, because the right
/// side depends on the left.
pub(super) fn is_left_sides(join: &Join) -> bool {
    match &join.relation {
        TableFactor::Derived { lateral, .. } | TableFactor::Function { lateral, .. } => *lateral,
        TableFactor::UNNEST { .. } => true,
        _ => false,
    }
}

fn has_using(table: &TableWithJoins) -> bool {
    let mut factors = std::iter::once(&table.relation).chain(table.joins.iter().map(|join| &join.relation));
    table.joins.iter().any(|join| merging(join).is_some())
        || factors.any(|factor| match factor {
            TableFactor::NestedJoin { table_with_joins, .. } => has_using(table_with_joins),
            _ => false,
        })
}

/// Applies step 1: each join that merges becomes the last of a nested join.
fn nest(table: &mut TableWithJoins) {
    nest_factor(&mut table.relation);
    for mut join in std::mem::take(&mut table.joins) {
        nest_factor(&mut join.relation);
        if let JoinOperator::Join(JoinConstraint::On(condition))
        | JoinOperator::Inner(JoinConstraint::On(condition))
        | JoinOperator::Left(JoinConstraint::On(condition))
        | JoinOperator::LeftOuter(JoinConstraint::On(condition))
        | JoinOperator::Right(JoinConstraint::On(condition))
        | JoinOperator::RightOuter(JoinConstraint::On(condition))
        | JoinOperator::FullOuter(JoinConstraint::On(condition)) = &mut join.join_operator
        {
            look_up(condition);
        }
        let merges = merging(&join).is_some();
        table.joins.push(join);
        if merges {
            let relation = std::mem::replace(&mut table.relation, nothing());
            let joins = std::mem::take(&mut table.joins);
            let table_with_joins = Box::new(TableWithJoins { relation, joins });
            table.relation = TableFactor::NestedJoin { table_with_joins, alias: None };
        }
    }
}

fn nest_factor(factor: &mut TableFactor) {
    let TableFactor::NestedJoin { table_with_joins, alias } = factor else { return };
    // The join is nested already, by this rewrite or by parentheses around one join.
    if let [join] = table_with_joins.joins.as_mut_slice()
        && merging(join).is_some()
    {
        nest_factor(&mut table_with_joins.relation);
        nest_factor(&mut join.relation);
        return;
    }
    nest(table_with_joins);
    // Only the inner nested join remains.
    if let (None, true, TableFactor::NestedJoin { alias: None, .. }) =
        (alias, table_with_joins.joins.is_empty(), &table_with_joins.relation)
    {
        let inner = std::mem::replace(&mut table_with_joins.relation, nothing());
        *factor = inner;
    }
}

/// Returns a placeholder for a table that is moved.
fn nothing() -> TableFactor {
    TableFactor::UNNEST {
        alias: None,
        array_exprs: Vec::new(),
        with_offset: false,
        with_offset_alias: None,
        with_ordinality: false,
    }
}

/// Applies step 4 to columns without a table, except in subqueries.
fn look_up(condition: &mut Expr) {
    struct Columns {
        queries: usize,
    }
    impl VisitorMut for Columns {
        type Break = std::convert::Infallible;

        fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
            self.queries += 1;
            ControlFlow::Continue(())
        }

        fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
            self.queries -= 1;
            ControlFlow::Continue(())
        }

        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
            // In `t.a[1]` neither part is a column's name alone.
            if let Expr::CompoundFieldAccess { root, access_chain } = expr
                && let Some(AccessExpr::Dot(_)) = access_chain.first()
            {
                as_written(root);
                for access in access_chain {
                    if let AccessExpr::Dot(name) = access {
                        as_written(name);
                    }
                }
            }
            if self.queries == 0 && matches!(expr, Expr::Identifier(_)) {
                let column = std::mem::replace(expr, Expr::Value(Value::Null.into()));
                *expr = Expr::BinaryOp {
                    left: Box::new(column),
                    op: BinaryOperator::Custom(LOOKED_UP.to_string()),
                    right: Box::new(Expr::Value(Value::Null.into())),
                };
            }
            ControlFlow::Continue(())
        }
    }
    let _ = condition.visit(&mut Columns { queries: 0 });
}

fn as_written(expr: &mut Expr) {
    if let Expr::BinaryOp { left, op: BinaryOperator::Custom(name), .. } = expr
        && name == LOOKED_UP
    {
        let column = std::mem::replace(left.as_mut(), Expr::Value(Value::Null.into()));
        *expr = column;
    }
}

/// A planner that resolves the columns that [`look_up`] marked.
#[derive(Debug)]
pub(super) struct MergedColumns;

impl ExprPlanner for MergedColumns {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        match &expr.op {
            BinaryOperator::Custom(name) if name == LOOKED_UP => {}
            _ => return Ok(PlannerResult::Original(expr)),
        }
        let merged = match &expr.left {
            PlannedExpr::Column(Column { relation: None, name, .. }) => merged_column(schema, name),
            // DataFusion searches for an ambiguous name in the outer query.
            PlannedExpr::OuterReferenceColumn(_, Column { name, .. }) => merged_column(schema, name),
            _ => None,
        };
        match &expr.left {
            PlannedExpr::Column(column @ Column { relation: None, name, .. })
                if merged.is_none() && is_ambiguous(schema, name) =>
            {
                let field = Box::new(column.clone());
                Err(DataFusionError::SchemaError(Box::new(SchemaError::AmbiguousReference { field }), Box::new(None)))
            }
            _ => Ok(PlannerResult::Planned(merged.map_or(expr.left, PlannedExpr::Column))),
        }
    }
}

/// Returns whether several tables have a column of that name. A single column without a table takes
/// precedence.
fn is_ambiguous(schema: &DFSchema, name: &str) -> bool {
    let found = schema.columns_with_unqualified_name(name);
    found.len() > 1 && found.iter().filter(|column| column.relation.is_none()).count() != 1
}

/// Returns the column that was merged from all others of that name.
fn merged_column(schema: &DFSchema, name: &str) -> Option<Column> {
    let found = schema.columns_with_unqualified_name(name);
    let (merged, sides): (Vec<Column>, Vec<Column>) = found.into_iter().partition(is_merged);
    match merged.as_slice() {
        [column] if column.relation == Some(merged_of(&sides)) => Some(column.clone()),
        _ => None,
    }
}

fn is_merged(column: &Column) -> bool {
    column.relation.as_ref().is_some_and(|table| table.table().starts_with(MERGED))
}

/// Returns the table of a column that is merged from these.
fn merged_of(sides: &[Column]) -> TableReference {
    TableReference::bare(table_of_merged(sides.iter().filter_map(|side| Some(side.relation.as_ref()?.table()))))
}

/// Returns the table of a column that is merged from columns of these tables.
pub(super) fn table_of_merged<'n>(tables: impl Iterator<Item = &'n str>) -> String {
    format!("{MERGED}{}", tables.collect::<Vec<_>>().join("="))
}

/// A planner of joins that merge columns.
#[derive(Debug)]
pub(super) struct UsingJoins;

impl RelationPlanner for UsingJoins {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let (mut table, alias) = match relation {
            TableFactor::NestedJoin { table_with_joins, alias }
                if table_with_joins.joins.last().is_some_and(|join| merging(join).is_some()) =>
            {
                (*table_with_joins, alias)
            }
            other => return Ok(RelationPlanning::Original(Box::new(other))),
        };
        let Some(join) = table.joins.pop() else {
            return Err(Error::new(ErrorKind::Internal, "a join without a join").into());
        };
        let Some((join_type, constraint)) = merging(&join) else {
            return Err(Error::new(ErrorKind::Internal, "a join that merges nothing").into());
        };
        let left = match table.joins.is_empty() {
            true => table.relation,
            false => TableFactor::NestedJoin { table_with_joins: Box::new(table), alias: None },
        };
        let left = context.plan(left)?;
        let right = context.plan(join.relation.clone())?;
        let (names, right) = match constraint {
            JoinConstraint::Using(columns) => {
                let (in_left, in_right) = (spellings(&left), spellings(&right));
                let mut pairs = Vec::with_capacity(columns.len());
                for column in columns {
                    let [name] = column.0.as_slice() else { return Err(no_name(column)) };
                    let Some(ident) = name.as_ident() else { return Err(no_name(column)) };
                    let (name, is_quoted) = (context.normalize_ident(ident.clone()), ident.quote_style.is_some());
                    let of_side = |side: &Spellings<'_>| {
                        let found = side.of(&name).filter(|_| !is_quoted);
                        found.unwrap_or(&name).to_string()
                    };
                    pairs.push((of_side(&in_left), of_side(&in_right)));
                }
                respelled(pairs, right)?
            }
            _ => respelled(common_names(&left, &right), right)?,
        };
        let mut plan = merge(left, right, join_type, names)?;
        if alias.is_some() {
            // The alias covers the columns of `*`.
            let columns = expand_wildcard(plan.schema(), &plan, None)?;
            plan = LogicalPlanBuilder::from(plan).project(columns)?.build()?;
        }
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
    }
}

fn no_name(column: &ObjectName) -> DataFusionError {
    Error::new(ErrorKind::Invalid, format!("USING ({column}) is not a column's name"))
        .with_hint("USING takes names without a table: USING (a, b)")
        .into()
}

/// Returns the names of a plan's columns.
fn spellings(plan: &LogicalPlan) -> Spellings<'_> {
    plan.schema().fields().iter().map(|field| field.name().as_str()).collect()
}

/// Returns the columns that both sides have, in the spelling of each.
fn common_names(left: &LogicalPlan, right: &LogicalPlan) -> Vec<(String, String)> {
    let common = spellings(left).common(&spellings(right));
    common.into_iter().map(|(name, other)| (name.to_string(), other.to_string())).collect()
}

/// Renames the right side's columns to the left side's spelling. Returns the names and the right
/// side.
fn respelled(pairs: Vec<(String, String)>, right: LogicalPlan) -> Result<(Vec<String>, LogicalPlan)> {
    let others: HashMap<&str, &str> = pairs
        .iter()
        .filter(|(left, right)| left != right)
        .map(|(left, right)| (right.as_str(), left.as_str()))
        .collect();
    let right = match others.is_empty() {
        true => right,
        false => {
            let columns = right.schema().columns().into_iter().map(|column| match others.get(column.name.as_str()) {
                Some(name) => {
                    let table = column.relation.clone();
                    PlannedExpr::Column(column).alias_qualified(table, *name)
                }
                None => PlannedExpr::Column(column),
            });
            let columns: Vec<PlannedExpr> = columns.collect();
            LogicalPlanBuilder::from(right).project(columns)?.build()?
        }
    };
    Ok((pairs.into_iter().map(|(left, _)| left).collect(), right))
}

/// Applies step 2.
fn merge(left: LogicalPlan, right: LogicalPlan, join_type: JoinType, names: Vec<String>) -> Result<LogicalPlan> {
    let keys = names.iter().map(|name| Ok((column(&left, name)?, column(&right, name)?)));
    let keys: Vec<(Column, Column)> = keys.collect::<Result<_>>()?;
    if keys.is_empty() {
        // A NATURAL JOIN without common columns joins all pairs of rows.
        return LogicalPlanBuilder::from(left).join_on(right, join_type, [lit(true)])?.build();
    }
    let join = LogicalPlanBuilder::from(left).join(right, join_type, keys.iter().cloned().unzip(), None)?.build()?;
    let mut columns = Vec::new();
    let mut merged = HashSet::new();
    let mut sides = Vec::new();
    for column in join.schema().columns() {
        let key = names.iter().position(|name| *name == column.name);
        if let Some(key) = key
            && merged.insert(column.name.clone())
        {
            let all = join.schema().columns_with_unqualified_name(&column.name);
            let all: Vec<Column> = all.into_iter().filter(|column| !is_merged(column)).collect();
            let table = merged_of(&all);
            let (left, right) = keys[key].clone();
            let value = match join_type {
                JoinType::Full => coalesce(vec![PlannedExpr::Column(left), PlannedExpr::Column(right)]),
                JoinType::Right => PlannedExpr::Column(right),
                _ => PlannedExpr::Column(left),
            };
            columns.push(value.alias_qualified(Some(table.clone()), &column.name));
            let own = Column::new(Some(table), &column.name);
            sides.extend(all.into_iter().map(|side| (own.clone(), side)));
        }
        // A column without a table cannot be named any more; a merged column is merged again.
        if key.is_none() || (column.relation.is_some() && !is_merged(&column)) {
            columns.push(PlannedExpr::Column(column));
        }
    }
    hint(LogicalPlanBuilder::from(join).project(columns)?.build()?, sides)
}

/// Returns the column of a name in one side of a join. A merged column counts as one.
fn column(plan: &LogicalPlan, name: &str) -> Result<Column> {
    let wanted = Column::from_name(name);
    match merged_column(plan.schema(), name) {
        Some(merged) => Ok(merged),
        None => wanted.normalize_with_schemas_and_ambiguity_check(&[&[plan.schema().as_ref()]], &plan.using_columns()?),
    }
}

/// Applies step 3.
fn hint(plan: LogicalPlan, sides: Vec<(Column, Column)>) -> Result<LogicalPlan> {
    let schema = plan.schema().clone();
    let on = sides.into_iter().map(|(merged, side)| (PlannedExpr::Column(merged), PlannedExpr::Column(side)));
    Ok(LogicalPlan::Join(PlannedJoin {
        left: Arc::new(plan),
        right: Arc::new(LogicalPlan::EmptyRelation(EmptyRelation {
            produce_one_row: false,
            schema: Arc::new(DFSchema::empty()),
        })),
        on: on.collect(),
        filter: None,
        join_type: JoinType::Left,
        join_constraint: Constraint::Using,
        schema,
        null_equality: NullEquality::NullEqualsNothing,
        null_aware: false,
    }))
}

/// The pass that removes the hints.
#[derive(Debug)]
pub(super) struct UsingHints;

impl AnalyzerRule for UsingHints {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let without = plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Join(join) if is_hint(&join) => Ok(Transformed::yes(Arc::unwrap_or_clone(join.left))),
            other => Ok(Transformed::no(other)),
        });
        Ok(without?.data)
    }

    fn name(&self) -> &str {
        "using_hints"
    }
}

fn is_hint(join: &PlannedJoin) -> bool {
    let has_nothing = |plan: &LogicalPlan| match plan {
        LogicalPlan::EmptyRelation(empty) => !empty.produce_one_row && empty.schema.fields().is_empty(),
        _ => false,
    };
    join.join_constraint == Constraint::Using && has_nothing(&join.right)
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    const TABLES: &str = "WITH t(a, b) AS (VALUES (1, 2), (3, 4)), u(a, c) AS (VALUES (1, 3), (9, 9)), \
                          v(a, d) AS (VALUES (9, 7), (5, 5)), b(a, e) AS (VALUES (3, 8))";

    #[tokio::test]
    async fn names_in_other_letters_are_merged() {
        let tables = "WITH t(\"Id\", b) AS (VALUES (1, 2), (3, 4)), u(\"ID\", c) AS (VALUES (1, 3), (9, 9)), \
                      v(id, \"B\") AS (VALUES (3, 4), (5, 5)), w(id, \"ID\") AS (VALUES (1, 9), (3, 8))";
        for (query, expected) in [
            ("SELECT * FROM t NATURAL JOIN u", "1 2 3"),
            ("SELECT * FROM t NATURAL LEFT JOIN u ORDER BY b", "1 2 3,3 4 NULL"),
            ("SELECT * FROM t NATURAL FULL JOIN u ORDER BY 1", "1 2 3,3 4 NULL,9 NULL 9"),
            ("SELECT * FROM t NATURAL JOIN v", "3 4"),
            ("SELECT * FROM t JOIN u USING (id)", "1 2 3"),
            ("SELECT ID, b, c FROM t JOIN u USING (iD) WHERE id > 0 GROUP BY Id, b, c", "1 2 3"),
            ("SELECT id FROM u RIGHT JOIN t USING (id) ORDER BY id", "1,3"),
            ("SELECT t.id, u.c FROM t JOIN u USING (id)", "1 3"),
            ("SELECT b, c FROM t JOIN u USING (ID) JOIN w USING (id)", "2 3"),
            // An exact match takes precedence.
            ("SELECT * FROM u NATURAL JOIN w", "9 9 1"),
        ] {
            assert_eq!(rows(&format!("{tables} {query}")).await.join(","), expected, "{query}");
        }
        let error = fails(&format!("{tables} SELECT * FROM t JOIN u USING (\"Id\")")).await;
        assert!(error.message().contains("Id"), "{error}");
    }

    #[tokio::test]
    async fn merged_columns_are_of_both_sides() {
        for (query, expected) in [
            // From DuckDB.
            ("SELECT a FROM t RIGHT JOIN u USING (a) ORDER BY a", "1,9"),
            ("SELECT a FROM t FULL JOIN u USING (a) ORDER BY a", "1,3,9"),
            ("SELECT * FROM t FULL JOIN u USING (a) ORDER BY a", "1 2 3,3 4 NULL,9 NULL 9"),
            ("SELECT * FROM t NATURAL FULL JOIN u ORDER BY a", "1 2 3,3 4 NULL,9 NULL 9"),
            ("SELECT * FROM t NATURAL RIGHT JOIN u ORDER BY 1", "1 2 3,9 NULL 9"),
            ("SELECT * FROM t LEFT JOIN b USING (a) ORDER BY a", "1 2 NULL,3 4 8"),
            ("SELECT t.a, u.a, a FROM t FULL JOIN u USING (a) ORDER BY a", "1 1 1,3 NULL 3,NULL 9 9"),
            ("SELECT t.*, u.* FROM t FULL JOIN u USING (a) ORDER BY a", "1 2 1 3,3 4 NULL NULL,NULL NULL 9 9"),
            ("SELECT b FROM t FULL JOIN u USING (a) ORDER BY a DESC", "NULL,4,2"),
            ("SELECT a, count(*) FROM t FULL JOIN u USING (a) GROUP BY a ORDER BY a", "1 1,3 1,9 1"),
            ("SELECT a + 1, sum(c) FROM t FULL JOIN u USING (a) GROUP BY a + 1 HAVING sum(c) > 3 ORDER BY 1", "10 9"),
            ("SELECT a FROM t FULL JOIN u USING (a) WHERE a > 1 ORDER BY a", "3,9"),
            ("SELECT a FROM t NATURAL FULL JOIN u WHERE a IN (3, 9) AND a IS NOT NULL ORDER BY a", "3,9"),
            ("SELECT a FROM t JOIN u USING (a) WHERE a BETWEEN 0 AND 2", "1"),
            ("SELECT a FROM t FULL JOIN u USING (a) FULL JOIN v USING (a) ORDER BY a", "1,3,5,9"),
            (
                "SELECT * FROM t FULL JOIN u USING (a) FULL JOIN v USING (a) WHERE a > 1 ORDER BY a",
                "3 4 NULL NULL,5 NULL NULL 5,9 NULL 9 7",
            ),
            ("SELECT a, t.a, u.a, v.a FROM t JOIN u USING (a) LEFT JOIN v USING (a)", "1 1 1 NULL"),
            (
                "SELECT * FROM v FULL JOIN (t FULL JOIN u USING (a)) USING (a) WHERE a <> 3 ORDER BY a",
                "1 NULL 2 3,5 5 NULL NULL,9 7 NULL 9",
            ),
            ("SELECT * FROM (SELECT * FROM t FULL JOIN u USING (a)) AS s WHERE a = 9", "9 NULL 9"),
            ("SELECT b, d FROM t FULL JOIN u USING (a) JOIN (SELECT a AS k, d FROM v) AS w ON a = k", "NULL 7"),
            ("SELECT count(*) FROM t JOIN u USING (a), v JOIN b USING (a)", "0"),
            ("SELECT a, row_number() OVER (ORDER BY a DESC) FROM t RIGHT JOIN u USING (a) ORDER BY a", "1 2,9 1"),
            ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u FULL JOIN v USING (a) WHERE a = t.a)", "1"),
            ("SELECT a, (SELECT max(a) FROM u FULL JOIN v USING (a)) AS m FROM t ORDER BY a", "1 9,3 9"),
            (
                "SELECT a FROM t WHERE 2 = (SELECT count(*) FROM (SELECT a FROM u JOIN v USING (a) GROUP BY a) AS s) + a",
                "1",
            ),
            ("SELECT t.l[1], l[2] FROM (SELECT 1 AS a, [5, 6] AS l) AS t JOIN u USING (a) WHERE t.l[1] = 5", "5 6"),
            ("SELECT DISTINCT a FROM t FULL JOIN u USING (a) UNION SELECT a FROM v ORDER BY a", "1,3,5,9"),
        ] {
            assert_eq!(rows(&format!("{TABLES} {query}")).await.join(","), expected, "{query}");
        }
    }

    #[tokio::test]
    async fn other_columns_stay_ambiguous() {
        for query in [
            "SELECT a FROM t JOIN u USING (a), v",
            "SELECT 1 FROM t JOIN u USING (a), v WHERE a = 1",
            "SELECT 1 FROM t CROSS JOIN u JOIN v USING (a)",
            "SELECT 1 FROM t JOIN u USING (x)",
            "SELECT 1 FROM t FULL JOIN u USING (a) JOIN v ON v.a = a",
        ] {
            fails(&format!("{TABLES} {query}")).await;
        }
    }
}
