//! A subtree of filters, projections and joins as a graph: relations, conditions over their columns, and lookups (semi
//! and anti joins).
//!
//! Columns get the name of their relation, `#0`, `#1`, ..., whatever they are called in the plan, so that an expression
//! means the same wherever it is put.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, JoinType, NullEquality, TableReference};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator};
use onehop_pipeline::ir::JoinKind;

use super::{Failure, Lowered, because};
use crate::database::Table;
use crate::scan::SegmentTable;

/// Relations and what must hold between them.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub relations: Vec<Arc<Table>>,
    /// What the statement calls them.
    pub names: Vec<String>,
    /// Over columns of relations.
    pub conditions: Vec<Expr>,
    /// Conditions without a column, each with a relation whose rows it holds for: inside a lookup, they say nothing
    /// about the rows outside.
    pub constants: Vec<(usize, Expr)>,
    /// Semi and anti joins, inner ones before outer ones.
    pub lookups: Vec<Lookup>,
}

/// A semi or anti join: rows of the relations outside are kept by whether a key is found among the rows inside.
#[derive(Debug)]
pub(super) struct Lookup {
    pub kind: JoinKind,
    /// The relations inside, which no condition outside names.
    pub inside: Range<usize>,
    /// Equal expressions: outside, inside.
    pub keys: Vec<(Expr, Expr)>,
}

/// A side of a join.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

/// What the columns of a plan's output are, over columns of relations.
pub(super) type Outputs = HashMap<Column, Expr>;

impl Graph {
    /// Takes a plan apart; what its output columns are.
    pub fn add(&mut self, plan: &LogicalPlan) -> Lowered<Outputs> {
        // Never inside a lookup of this plan: rows that are kept come before those that are looked into.
        let first = self.relations.len();
        match plan {
            LogicalPlan::TableScan(scan) => {
                let provider = source_as_provider(&scan.source)?;
                let Some(table) = provider.downcast_ref::<SegmentTable>() else {
                    return because(format!("{}, which is not a table of this database", scan.table_name));
                };
                if scan.fetch.is_some() {
                    return because(format!("a LIMIT on {} below an aggregate", scan.table_name));
                }
                let relation = self.relations.len();
                self.relations.push(Arc::clone(table.table()));
                self.names.push(scan.table_name.table().to_string());
                let qualified = |field: &str| Expr::Column(Column::new(Some(relation_name(relation)), field));
                let outputs = scan
                    .projected_schema
                    .iter()
                    .map(|(qualifier, field)| (Column::new(qualifier.cloned(), field.name()), qualified(field.name())));
                Ok(outputs.collect())
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let inner = self.add(&alias.input)?;
                // The name of several is nobody's.
                if let [name] = &mut self.names[first..] {
                    *name = alias.alias.table().to_string();
                }
                renamed(&inner, alias.input.schema(), &alias.schema)
            }
            LogicalPlan::Projection(projection) => {
                let inner = self.add(&projection.input)?;
                let columns = projection.schema.columns();
                let exprs = projection.expr.iter().map(|expr| substituted(expr.clone().unalias(), &inner));
                columns.into_iter().zip(exprs).map(|(column, expr)| Ok((column, expr?))).collect()
            }
            LogicalPlan::Filter(filter) => {
                let outputs = self.add(&filter.input)?;
                for condition in split_conjunction(&filter.predicate) {
                    self.push_condition(substituted(condition.clone(), &outputs)?, first);
                }
                Ok(outputs)
            }
            LogicalPlan::Join(join) => {
                if join.null_equality != NullEquality::NullEqualsNothing {
                    return because("a join in which NULLs are equal (IS NOT DISTINCT FROM, INTERSECT, EXCEPT)");
                }
                match join.join_type {
                    JoinType::Inner => {}
                    JoinType::LeftSemi => return self.add_lookup(join, JoinKind::Semi, Side::Left),
                    JoinType::RightSemi => return self.add_lookup(join, JoinKind::Semi, Side::Right),
                    JoinType::LeftAnti if !join.null_aware => return self.add_lookup(join, JoinKind::Anti, Side::Left),
                    JoinType::RightAnti if !join.null_aware => {
                        return self.add_lookup(join, JoinKind::Anti, Side::Right);
                    }
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
                    self.push_condition(substituted(condition.clone(), &outputs)?, first);
                }
                Ok(outputs)
            }
            other => because(format!("{} below an aggregate", kind(other))),
        }
    }

    /// A condition on rows that `relation` is a part of.
    fn push_condition(&mut self, condition: Expr, relation: usize) {
        match condition.column_refs().is_empty() {
            true => self.constants.push((relation, condition)),
            false => self.conditions.push(condition),
        }
    }

    /// A join that keeps rows of one side, `kept`, and looks into the other.
    fn add_lookup(&mut self, join: &Join, kind: JoinKind, kept: Side) -> Lowered<Outputs> {
        let (outer, inner) = match kept {
            Side::Left => (&join.left, &join.right),
            Side::Right => (&join.right, &join.left),
        };
        let outputs = self.add(outer)?;
        let first = self.relations.len();
        let inside = self.add(inner)?;
        let inside_range = first..self.relations.len();
        if join.on.is_empty() {
            return because("EXISTS or IN (SELECT ...) without an equality between the two queries");
        }
        let mut keys = Vec::with_capacity(join.on.len());
        for (left, right) in &join.on {
            let (theirs, ours) = match kept {
                Side::Left => (left, right),
                Side::Right => (right, left),
            };
            let key = (substituted(theirs.clone(), &outputs)?, substituted(ours.clone(), &inside)?);
            if key.0.column_refs().is_empty() || key.1.column_refs().is_empty() {
                return because("EXISTS or IN (SELECT ...) with a constant on one side of its equality");
            }
            keys.push(key);
        }
        for condition in join.filter.iter().flat_map(split_conjunction) {
            let is_inside = condition.column_refs().iter().all(|column| inside.contains_key(*column));
            if !is_inside {
                return because("EXISTS or IN (SELECT ...) with a condition on both queries that is no equality");
            }
            self.push_condition(substituted(condition.clone(), &inside)?, first);
        }
        self.lookups.push(Lookup { kind, inside: inside_range, keys });
        Ok(outputs)
    }

    /// All columns of all relations, for asking expressions for their types.
    pub fn schema(&self) -> Lowered<DFSchema> {
        let mut all = DFSchema::empty();
        for (number, table) in self.relations.iter().enumerate() {
            let schema = DFSchema::try_from_qualified_schema(relation_name(number), &table.schema)?;
            all.merge(&schema);
        }
        Ok(all)
    }
}

/// The name of a relation's columns.
pub(super) fn relation_name(number: usize) -> TableReference {
    TableReference::bare(format!("#{number}"))
}

/// The relation that a column belongs to.
pub(super) fn relation_of(column: &Column) -> Option<usize> {
    column.relation.as_ref()?.table().strip_prefix('#')?.parse().ok()
}

/// Puts what columns are in their place.
pub(super) fn substituted(expr: Expr, outputs: &Outputs) -> Lowered<Expr> {
    let transformed = expr.transform_up(|expr| match &expr {
        Expr::Column(column) => match outputs.get(column) {
            Some(known) => Ok(Transformed::yes(known.clone())),
            None => datafusion::common::internal_err!("{column} is no column here"),
        },
        _ => Ok(Transformed::no(expr)),
    });
    Ok(transformed.map_err(Failure::from)?.data)
}

fn renamed(inner: &Outputs, from: &DFSchema, to: &DFSchema) -> Lowered<Outputs> {
    let mut outputs = HashMap::with_capacity(inner.len());
    for (from, to) in from.columns().into_iter().zip(to.columns()) {
        let Some(expr) = inner.get(&from) else { return because(format!("two columns named {}", from.name)) };
        outputs.insert(to, expr.clone());
    }
    Ok(outputs)
}

/// What users know a join as.
fn kind_of_join(kind: JoinType) -> &'static str {
    match kind {
        JoinType::Inner => "a join",
        JoinType::Left => "a LEFT JOIN",
        JoinType::Right => "a RIGHT JOIN",
        JoinType::Full => "a FULL JOIN",
        // Those without NULLs to mind have been taken.
        JoinType::LeftAnti | JoinType::RightAnti => "NOT IN (SELECT ...), where NOT EXISTS would be",
        JoinType::LeftSemi | JoinType::RightSemi => "EXISTS or IN (SELECT ...)",
        JoinType::LeftMark | JoinType::RightMark => "EXISTS or IN (SELECT ...) beside OR, or as a value",
    }
}

/// What users know a node as.
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
