//! Represents a subtree as a graph: relations, conditions over their columns, and lookups (outer,
//! semi and anti joins).
//!
//! Filters, projections and joins are decomposed. Any other node becomes a derived relation as a
//! whole: an aggregate below, a file, a window, or a join of an unsupported kind.
//!
//! Columns are qualified by the number of their relation, `#0`, `#1`, ..., whatever their name in
//! the plan. An expression thus means the same anywhere in the graph.
//!
//! The nullable side of an outer join consists of relations inside a lookup. Outside the lookup,
//! their columns are those of one more relation, a *joined* one. A condition over its columns sees
//! the NULLs of rows without a match. A condition over the relations inside, from the join itself
//! or the plan below it, does not.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DataFusionError, JoinType, NullEquality, SchemaError, TableReference};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator};
use onehop_pipeline::ir::JoinKind;

use super::reduce::WANTED;
use super::relation::{Origin, Relation, column_of, fused, has_ours, no_correlation, table_of};
use super::{Failure, Lowered, because};

/// Relations and the conditions between them.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// The operator above the subtree, for messages.
    pub below: &'static str,
    pub relations: Vec<Relation>,
    /// Conditions over columns of relations.
    pub conditions: Vec<Expr>,
    /// Conditions without a column, each with a relation whose rows it applies to. Inside a lookup,
    /// they do not affect the rows outside.
    pub constants: Vec<(usize, Expr)>,
    /// Outer, semi and anti joins. Nested ones come before those that contain them.
    pub lookups: Vec<Lookup>,
}

/// A semi, anti or outer join. A semi or anti join keeps rows of the relations outside if their key
/// is found, or not found, among the rows inside. An outer join keeps all rows, each with its
/// matches.
#[derive(Debug)]
pub(super) struct Lookup {
    pub kind: JoinKind,
    /// The relations inside, which no condition outside refers to.
    pub inside: Range<usize>,
    /// Equal expressions: outside, inside.
    pub keys: Vec<(Expr, Expr)>,
    /// Other conditions between the two sides.
    pub conditions: Vec<Expr>,
    /// The relation that represents an outer join's inner rows outside.
    pub joined: Option<usize>,
}

impl Lookup {
    /// Returns the relations outside that it reads.
    pub fn outside(&self) -> BTreeSet<usize> {
        let keys = self.keys.iter().flat_map(|(theirs, _)| theirs.column_refs());
        let all = keys.chain(self.conditions.iter().flat_map(Expr::column_refs));
        all.filter_map(relation_of).filter(|relation| !self.inside.contains(relation)).collect()
    }
}

/// A side of a join.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

/// Definitions of a plan's output columns, over columns of relations.
pub(super) type Outputs = HashMap<Column, Expr>;

impl Graph {
    /// Creates an empty graph for a subtree below an aggregate or a join.
    pub fn new(below: &'static str) -> Self {
        Self { below, ..Self::default() }
    }

    /// Decomposes a plan as far as possible. Returns the definitions of its output columns.
    pub fn add(&mut self, plan: &LogicalPlan) -> Lowered<Outputs> {
        if !has_ours(plan)? {
            return self.derive(plan, self.reason_of(plan));
        }
        let before = (self.relations.len(), self.conditions.len(), self.constants.len(), self.lookups.len());
        match self.take_apart(plan) {
            Err(Failure::Reason(reason)) => {
                self.relations.truncate(before.0);
                self.conditions.truncate(before.1);
                self.constants.truncate(before.2);
                self.lookups.truncate(before.3);
                self.derive(plan, reason)
            }
            taken_apart => taken_apart,
        }
    }

    /// Makes a plan a derived relation as a whole.
    fn derive(&mut self, plan: &LogicalPlan, reason: String) -> Lowered<Outputs> {
        let number = self.relations.len();
        let relation = Relation::of_plan(plan, reason);
        let column = |(place, column)| (column, column_of(&relation, relation_name(number), place));
        let outputs = plan.schema().columns().into_iter().enumerate().map(column).collect();
        self.relations.push(relation);
        Ok(outputs)
    }

    /// Checks that pipelines gain anything. They do not if they only read results of DataFusion
    /// that involve no tables of the database.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check_worth(&self) -> Lowered<()> {
        let mut reason = None;
        for relation in &self.relations {
            match &relation.origin {
                Origin::Table(_) => return Ok(()),
                Origin::Derived(derived) if derived.has_fused()? => return Ok(()),
                Origin::Derived(derived) => reason = reason.or(Some(derived.reason.clone())),
                Origin::Joined(_) => {}
            }
        }
        because(reason.unwrap_or_else(|| "no table".into()))
    }

    fn take_apart(&mut self, plan: &LogicalPlan) -> Lowered<Outputs> {
        // Relations from here on are never inside a lookup of this plan, since kept rows are added
        // before the rows that they look up.
        let first = self.relations.len();
        match plan {
            LogicalPlan::TableScan(scan) => {
                let Some(table) = table_of(plan)? else { return because(self.reason_of(plan)) };
                if scan.fetch.is_some() {
                    return because(format!("a LIMIT on {} below {}", scan.table_name, self.below));
                }
                let relation = self.relations.len();
                self.relations.push(Relation::of_table(&table, scan.table_name.table()));
                let qualified = |field: &str| Expr::Column(Column::new(Some(relation_name(relation)), field));
                let outputs = scan
                    .projected_schema
                    .iter()
                    .map(|(qualifier, field)| (Column::new(qualifier.cloned(), field.name()), qualified(field.name())));
                Ok(outputs.collect())
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let inner = self.add(&alias.input)?;
                // The alias of several relations names none of them. The keys that a join above
                // asks for are the exception, since it tells their purpose.
                let inside = &mut self.relations[first..];
                if inside.len() == 1 || alias.alias.table() == WANTED {
                    inside.iter_mut().for_each(|relation| relation.name = alias.alias.table().to_string());
                }
                renamed(&inner, alias.input.schema(), &alias.schema)
            }
            LogicalPlan::Projection(projection) => {
                let inner = self.add(&projection.input)?;
                let columns = projection.schema.columns();
                let mut outputs = Outputs::with_capacity(columns.len());
                for (column, expr) in columns.into_iter().zip(&projection.expr) {
                    outputs.insert(column, self.over_relations(expr, &inner)?);
                }
                Ok(outputs)
            }
            LogicalPlan::Filter(filter) => {
                let outputs = self.add(&filter.input)?;
                for condition in split_conjunction(&filter.predicate) {
                    let condition = self.over_relations(condition, &outputs)?;
                    self.push_condition(condition, first);
                }
                Ok(outputs)
            }
            LogicalPlan::Join(join) => {
                if join.null_equality != NullEquality::NullEqualsNothing {
                    return because("a join in which NULLs are equal (IS NOT DISTINCT FROM, INTERSECT, EXCEPT)");
                }
                match join.join_type {
                    JoinType::Inner => {}
                    JoinType::Left => return self.add_lookup(join, JoinKind::Left, Side::Left),
                    JoinType::Right => return self.add_lookup(join, JoinKind::Left, Side::Right),
                    JoinType::LeftSemi => return self.add_lookup(join, JoinKind::Semi, Side::Left),
                    JoinType::RightSemi => return self.add_lookup(join, JoinKind::Semi, Side::Right),
                    JoinType::LeftAnti if join.null_aware => return self.add_lookup(join, JoinKind::NotIn, Side::Left),
                    JoinType::RightAnti if join.null_aware => {
                        return self.add_lookup(join, JoinKind::NotIn, Side::Right);
                    }
                    JoinType::LeftAnti => return self.add_lookup(join, JoinKind::Anti, Side::Left),
                    JoinType::RightAnti => return self.add_lookup(join, JoinKind::Anti, Side::Right),
                    other => return because(kind_of_join(other)),
                }
                let mut outputs = self.add(&join.left)?;
                outputs.extend(self.add(&join.right)?);
                for (left, right) in &join.on {
                    let (left, right) = (substituted(left.clone(), &outputs)?, substituted(right.clone(), &outputs)?);
                    let equal = BinaryExpr::new(Box::new(left), Operator::Eq, Box::new(right));
                    self.push_condition(Expr::BinaryExpr(equal), first);
                }
                for condition in join.filter.iter().flat_map(split_conjunction) {
                    let condition = self.over_relations(condition, &outputs)?;
                    self.push_condition(condition, first);
                }
                Ok(outputs)
            }
            other => because(self.reason_of(other)),
        }
    }

    /// Returns an expression over columns of relations. Scalar subqueries become relations.
    pub fn over_relations(&mut self, expr: &Expr, outputs: &Outputs) -> Lowered<Expr> {
        let mut values = Vec::new();
        expr.apply(|expr| {
            if let Expr::ScalarSubquery(subquery) = expr {
                values.push(subquery.clone());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        let mut known = Vec::with_capacity(values.len());
        for subquery in values {
            no_correlation(&subquery)?;
            let (number, relation) = (self.relations.len(), Relation::of_scalar(&subquery)?);
            known.push((subquery, column_of(&relation, relation_name(number), 0)));
            self.relations.push(relation);
        }
        let in_place = expr.clone().unalias().transform_down(|expr| match &expr {
            // Its columns are not among the outputs.
            Expr::ScalarSubquery(subquery) => match known.iter().find(|(known, _)| known == subquery) {
                Some((_, value)) => Ok(Transformed::new(value.clone(), true, TreeNodeRecursion::Jump)),
                None => Ok(Transformed::no(expr)),
            },
            Expr::Column(column) => Ok(Transformed::new(known_as(column, outputs)?, true, TreeNodeRecursion::Jump)),
            _ => Ok(Transformed::no(expr)),
        });
        Ok(in_place?.data)
    }

    /// Adds a condition on rows that `relation` is a part of.
    fn push_condition(&mut self, condition: Expr, relation: usize) {
        match condition.column_refs().is_empty() {
            true => self.constants.push((relation, condition)),
            false => self.conditions.push(condition),
        }
    }

    /// Adds a join that keeps the rows of side `kept` and looks them up in the other.
    fn add_lookup(&mut self, join: &Join, kind: JoinKind, kept: Side) -> Lowered<Outputs> {
        let (outer, inner) = match kept {
            Side::Left => (&join.left, &join.right),
            Side::Right => (&join.right, &join.left),
        };
        let mut outputs = self.add(outer)?;
        let first = self.relations.len();
        let inside = self.add(inner)?;
        let inside_range = first..self.relations.len();
        if join.on.is_empty() {
            return because(match kind {
                JoinKind::Left => "an outer join without an equality between its two sides",
                _ => "EXISTS or IN (SELECT ...) without an equality between the two queries",
            });
        }
        // Another condition would decide which NULLs count.
        if kind == JoinKind::NotIn && (join.on.len() > 1 || join.filter.is_some()) {
            return because("NOT IN (SELECT ...) with a condition on both queries");
        }
        let mut keys = Vec::with_capacity(join.on.len());
        for (left, right) in &join.on {
            let (theirs, ours) = match kept {
                Side::Left => (left, right),
                Side::Right => (right, left),
            };
            let key = (substituted(theirs.clone(), &outputs)?, substituted(ours.clone(), &inside)?);
            if key.0.column_refs().is_empty() || key.1.column_refs().is_empty() {
                return because(match kind {
                    JoinKind::Left => "an outer join with a constant on one side of its equality",
                    _ => "EXISTS or IN (SELECT ...) with a constant on one side of its equality",
                });
            }
            keys.push(key);
        }
        let mut conditions = Vec::new();
        let mut of_both = outputs.clone();
        of_both.extend(inside.clone());
        for condition in join.filter.iter().flat_map(split_conjunction) {
            let is_inside = condition.column_refs().iter().all(|column| inside.contains_key(*column));
            let condition = substituted(condition.clone(), &of_both)?;
            match is_inside {
                true => self.push_condition(condition, first),
                false => conditions.push(condition),
            }
        }
        let mut joined = None;
        if kind == JoinKind::Left {
            let number = self.relations.len();
            let columns = inner.schema().columns();
            let what = columns.iter().map(|column| Ok(known_as(column, &inside)?)).collect::<Lowered<Vec<_>>>()?;
            let relation = Relation::of_missing(inner, what);
            for (place, column) in columns.into_iter().enumerate() {
                outputs.insert(column, column_of(&relation, relation_name(number), place));
            }
            self.relations.push(relation);
            joined = Some(number);
        }
        self.lookups.push(Lookup { kind, inside: inside_range, keys, conditions, joined });
        Ok(outputs)
    }

    /// Returns the reason why a node is not decomposed.
    fn reason_of(&self, plan: &LogicalPlan) -> String {
        match plan {
            LogicalPlan::TableScan(scan) if scan.table_name.table() == crate::identifiers::TARGET => {
                "the rows that are to be changed".into()
            }
            LogicalPlan::TableScan(scan) => format!("{}, which is not a table of this database", scan.table_name),
            _ if fused(plan).is_some() => "an aggregate, which has pipelines of its own".into(),
            // For nodes that pass rows through, the reason is their input's.
            LogicalPlan::Filter(filter) => self.reason_of(&filter.input),
            LogicalPlan::Projection(projection) => self.reason_of(&projection.input),
            LogicalPlan::SubqueryAlias(alias) => self.reason_of(&alias.input),
            _ => format!("{} below {}", kind(plan), self.below),
        }
    }

    /// Returns the schema of all columns of all relations, for expression types.
    pub fn schema(&self) -> Lowered<DFSchema> {
        let mut all = DFSchema::empty();
        for (number, relation) in self.relations.iter().enumerate() {
            let schema = DFSchema::try_from_qualified_schema(relation_name(number), &relation.schema)?;
            all.merge(&schema);
        }
        Ok(all)
    }
}

/// Returns the qualifier of a relation's columns.
pub(super) fn relation_name(number: usize) -> TableReference {
    TableReference::bare(format!("#{number}"))
}

/// Returns the relation of a column.
pub(super) fn relation_of(column: &Column) -> Option<usize> {
    column.relation.as_ref()?.table().strip_prefix('#')?.parse().ok()
}

/// Replaces columns by their definitions.
pub(super) fn substituted(expr: Expr, outputs: &Outputs) -> Lowered<Expr> {
    let transformed = expr.transform_up(|expr| match &expr {
        Expr::Column(column) => Ok(Transformed::yes(known_as(column, outputs)?)),
        _ => Ok(Transformed::no(expr)),
    });
    Ok(transformed.map_err(Failure::from)?.data)
}

/// Returns the definition of a column. DataFusion's optimizer refers to expressions that it creates
/// by name only, even behind an alias.
fn known_as(column: &Column, outputs: &Outputs) -> datafusion::common::Result<Expr> {
    let by_name = || {
        let mut known = outputs.iter().filter(|(known, _)| column.relation.is_none() && known.name == column.name);
        known.next().filter(|_| known.next().is_none()).map(|(_, known)| known)
    };
    match outputs.get(column).or_else(by_name) {
        Some(known) => Ok(known.clone()),
        // DataFusion accepts any column in ORDER BY and reports a missing one when it plans the
        // operators.
        None => {
            let mut valid_fields: Vec<Column> = outputs.keys().cloned().collect();
            valid_fields.sort();
            let error = SchemaError::FieldNotFound { field: Box::new(column.clone()), valid_fields };
            Err(DataFusionError::SchemaError(Box::new(error), Box::new(None)))
        }
    }
}

fn renamed(inner: &Outputs, from: &DFSchema, to: &DFSchema) -> Lowered<Outputs> {
    let mut outputs = HashMap::with_capacity(inner.len());
    for (from, to) in from.columns().into_iter().zip(to.columns()) {
        let Some(expr) = inner.get(&from) else { return because(format!("two columns named {}", from.name)) };
        outputs.insert(to, expr.clone());
    }
    Ok(outputs)
}

/// Returns the name of a join for users.
fn kind_of_join(kind: JoinType) -> &'static str {
    match kind {
        JoinType::Inner => "a join",
        JoinType::Left => "a LEFT JOIN",
        JoinType::Right => "a RIGHT JOIN",
        JoinType::Full => "a FULL JOIN",
        JoinType::LeftAnti | JoinType::RightAnti => "NOT EXISTS",
        JoinType::LeftSemi | JoinType::RightSemi => "EXISTS or IN (SELECT ...)",
        JoinType::LeftMark | JoinType::RightMark => "EXISTS or IN (SELECT ...) beside OR, or as a value",
    }
}

/// Returns the name of a node for users.
fn kind(plan: &LogicalPlan) -> &'static str {
    match plan {
        LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) => "a GROUP BY or DISTINCT",
        LogicalPlan::Window(_) => "a window function",
        LogicalPlan::Sort(_) => "an ORDER BY",
        LogicalPlan::Limit(_) => "a LIMIT",
        LogicalPlan::Union(_) => "a UNION",
        LogicalPlan::Values(_) | LogicalPlan::EmptyRelation(_) => "VALUES",
        LogicalPlan::Unnest(_) => "an unnest",
        LogicalPlan::RecursiveQuery(_) => "a WITH RECURSIVE query",
        _ => "an operator of DataFusion's",
    }
}
