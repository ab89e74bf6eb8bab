//! The relations of a graph: tables of the database, *derived* relations with the rows of any other
//! plan, and *joined* relations, the nullable side of an outer join as seen outside.
//!
//! A derived relation's plan runs before the pipelines, fused or not, and becomes an in-memory
//! source. The domains of its columns are known only then. Until then they are the domains of the
//! pipeline below, if there is one, or those of the types: a pipeline that supports these supports
//! narrower ones.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result as DataFusionResult};
use datafusion::logical_expr::expr::Alias;
use datafusion::logical_expr::{EmptyRelation, Expr, Extension, LogicalPlan, Projection, Subquery};
use onehop_pipeline::{Dictionary, Domain, Interval, Type};

use super::expr::{bounds, type_of};
use super::graph::relation_of;
use super::node::FusedNode;
use super::{Lowered, because};
use crate::scan::SegmentTable;
use crate::snapshot::Table;

/// Rows that pipelines read.
#[derive(Debug)]
pub(super) struct Relation {
    /// Its name in the statement.
    pub name: String,
    pub schema: SchemaRef,
    pub origin: Origin,
}

/// The origin of rows.
#[derive(Debug)]
pub(super) enum Origin {
    Table(Arc<Table>),
    Derived(Derived),
    /// The definition of each column over the relations inside a lookup. Without a match, the
    /// column is NULL whatever the definition. So expressions outside must not use the relations
    /// inside directly.
    Joined(Vec<Expr>),
}

/// A plan whose rows are computed first.
#[derive(Debug)]
pub(super) struct Derived {
    pub plan: LogicalPlan,
    /// The reason why pipelines do not run the plan.
    pub reason: String,
    /// True if it always has one row.
    pub has_one_row: bool,
}

impl Relation {
    /// Creates the relation of a table of the database.
    pub fn of_table(table: &Arc<Table>, name: &str) -> Self {
        let origin = Origin::Table(Arc::clone(table));
        Self { name: name.into(), schema: Arc::clone(&table.schema), origin }
    }

    /// Creates a derived relation of a plan.
    pub fn of_plan(plan: &LogicalPlan, reason: String) -> Self {
        let has_one_row = match plan {
            LogicalPlan::Extension(_) => fused(plan).is_some_and(FusedNode::has_one_row),
            LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
            _ => false,
        };
        let derived = Derived { plan: plan.clone(), reason, has_one_row };
        Self { name: name_of(plan), schema: distinct_names(plan), origin: Origin::Derived(derived) }
    }

    /// Creates the joined relation of `plan`, a side of an outer join. `columns` are their
    /// definitions over the relations inside.
    pub fn of_missing(plan: &LogicalPlan, columns: Vec<Expr>) -> Self {
        Self { name: name_of(plan), schema: distinct_names(plan), origin: Origin::Joined(columns) }
    }

    /// Creates the relation of an uncorrelated scalar subquery. DataFusion returns NULL for no row,
    /// and an error for several.
    pub fn of_scalar(subquery: &Subquery) -> Lowered<Self> {
        let value = Expr::Alias(Alias::new(Expr::ScalarSubquery(subquery.clone()), None::<&str>, "value"));
        let nothing = EmptyRelation { produce_one_row: true, schema: Arc::new(DFSchema::empty()) };
        let one_row = Projection::try_new(vec![value], Arc::new(LogicalPlan::EmptyRelation(nothing)))?;
        let mut relation = Self::of_plan(&LogicalPlan::Projection(one_row), "a scalar subquery".into());
        relation.name = "subquery".into();
        if let Origin::Derived(derived) = &mut relation.origin {
            derived.has_one_row = true;
        }
        Ok(relation)
    }

    /// Returns the table's name, or its name in the statement.
    pub fn table_name(&self) -> &str {
        match &self.origin {
            Origin::Table(table) => &table.name,
            Origin::Derived(_) | Origin::Joined(_) => &self.name,
        }
    }

    /// Returns the definitions of a joined relation's columns.
    pub fn joined(&self) -> Option<&[Expr]> {
        match &self.origin {
            Origin::Joined(columns) => Some(columns),
            Origin::Table(_) | Origin::Derived(_) => None,
        }
    }

    /// Returns the plan of a derived relation.
    pub fn derived(&self) -> Option<&Derived> {
        match &self.origin {
            Origin::Table(_) | Origin::Joined(_) => None,
            Origin::Derived(derived) => Some(derived),
        }
    }

    /// Returns whether it is a plan that always has one row.
    pub fn has_one_row(&self) -> bool {
        self.derived().is_some_and(|derived| derived.has_one_row)
    }
}

/// Returns the name of a plan in a statement.
fn name_of(plan: &LogicalPlan) -> String {
    match plan {
        LogicalPlan::TableScan(scan) => scan.table_name.table().into(),
        LogicalPlan::SubqueryAlias(alias) => alias.alias.table().into(),
        _ => "rows".into(),
    }
}

/// Returns a plan's columns, all nullable, with distinct names: both sides of a join may have
/// columns of one name.
fn distinct_names(plan: &LogicalPlan) -> SchemaRef {
    let mut names = HashSet::new();
    let mut fields = Vec::with_capacity(plan.schema().fields().len());
    for (number, field) in plan.schema().fields().iter().enumerate() {
        let mut name = field.name().clone();
        while !names.insert(name.clone()) {
            name = format!("{name}:{number}");
        }
        fields.push(Field::new(name, field.data_type().clone(), true));
    }
    Arc::new(Schema::new(fields))
}

/// Returns the column that the user knows a column as. For an outer join, it is that of the
/// relation inside.
pub(super) fn original<'a>(relations: &'a [Relation], column: &'a Column) -> &'a Column {
    let mut column = column;
    while let Some(Expr::Column(inside)) = definition(relations, column) {
        column = inside;
    }
    column
}

/// Returns the definition of an outer join's column over the relations inside.
pub(super) fn definition<'a>(relations: &'a [Relation], column: &Column) -> Option<&'a Expr> {
    let relation = relations.get(relation_of(column)?)?;
    relation.joined()?.get(relation.schema.index_of(&column.name).ok()?)
}

/// Returns the number of relations with a column of that name.
pub(super) fn named(relations: &[Relation], name: &str) -> usize {
    let has = |relation: &&Relation| relation.joined().is_none() && relation.schema.column_with_name(name).is_some();
    relations.iter().filter(has).count()
}

impl Derived {
    /// Returns the domains of some columns, as far as they are known before execution.
    pub fn expected(&self, columns: &[usize]) -> Lowered<Vec<Domain>> {
        let known = fused(&self.plan).map(FusedNode::outputs);
        let mut domains = Vec::with_capacity(columns.len());
        for column in columns {
            let domain = domain_of(self.plan.schema().field(*column).data_type())?;
            let known = known.as_ref().and_then(|known| known[*column].as_ref());
            domains.push(match known.filter(|known| known.ty == Type::Int && domain.ty == Type::Int) {
                Some(known) => Domain::int(known.interval.intersection(domain.interval), known.nullable),
                None => domain,
            });
        }
        Ok(domains)
    }

    /// Returns whether it probably has few rows: groups, values, or limited rows.
    pub fn has_few_rows(&self) -> bool {
        let is_made_few = matches!(
            self.plan,
            LogicalPlan::Aggregate(_) | LogicalPlan::Values(_) | LogicalPlan::EmptyRelation(_) | LogicalPlan::Limit(_)
        );
        self.has_one_row || is_made_few || fused(&self.plan).is_some()
    }

    /// Returns whether it is or contains a fused subtree.
    pub fn has_fused(&self) -> DataFusionResult<bool> {
        self.plan.exists(|node| Ok(fused(node).is_some()))
    }
}

/// Returns the domain of a type.
fn domain_of(data_type: &DataType) -> Lowered<Domain> {
    Ok(match type_of(data_type)? {
        Type::Bool => Domain::bool(true),
        Type::Double => Domain::double(true),
        Type::Text | Type::LateText => Domain::text(Arc::new(Dictionary::expected()), true),
        Type::Int => {
            let limits = match data_type {
                DataType::Date32 => bounds(&DataType::Int32),
                DataType::Timestamp(..) => bounds(&DataType::Int64),
                other => bounds(other),
            };
            // A key must leave some of its 64 bits free. Values of the whole range are rarer than
            // keys, and are detected when they occur.
            let (min, max) = match data_type {
                DataType::Int64 | DataType::UInt64 | DataType::Timestamp(..) => {
                    (limits.min.max(i128::from(i64::MIN) + 2), limits.max.min(i64::MAX.into()))
                }
                _ => (limits.min, limits.max),
            };
            Domain::int(Interval::new(min, max), true)
        }
    })
}

/// Returns the fused subtree of a node.
pub(super) fn fused(node: &LogicalPlan) -> Option<&FusedNode> {
    match node {
        LogicalPlan::Extension(Extension { node }) => node.as_any().downcast_ref(),
        _ => None,
    }
}

/// Returns the table of the database that a node scans.
pub(super) fn table_of(node: &LogicalPlan) -> DataFusionResult<Option<Arc<Table>>> {
    let LogicalPlan::TableScan(scan) = node else { return Ok(None) };
    let provider = source_as_provider(&scan.source)?;
    // Pipelines do not provide row addresses.
    let ours = provider.downcast_ref::<SegmentTable>().filter(|table| !table.has_addresses());
    Ok(ours.map(|table| Arc::clone(table.table())))
}

/// Returns whether a node scans a table of the database.
pub(crate) fn is_of_database(node: &LogicalPlan) -> DataFusionResult<bool> {
    Ok(table_of(node)?.is_some())
}

/// Returns the tables of the database below a node, sorted, with or without those in pipelines.
pub(super) fn tables_below(node: &LogicalPlan, includes_fused: bool) -> DataFusionResult<Vec<String>> {
    let mut tables = Vec::new();
    node.apply(|node| {
        if let Some(fused) = fused(node) {
            if !includes_fused {
                return Ok(TreeNodeRecursion::Jump);
            }
            tables.extend(fused.tables());
        }
        tables.extend(table_of(node)?.map(|table| table.name.clone()));
        Ok(TreeNodeRecursion::Continue)
    })?;
    tables.sort();
    Ok(tables)
}

/// Returns whether a plan contains tables of the database or pipelines.
pub(super) fn has_ours(plan: &LogicalPlan) -> DataFusionResult<bool> {
    plan.exists(|node| Ok(fused(node).is_some() || table_of(node)?.is_some()))
}

/// Returns the column of a relation by its position.
pub(super) fn column_of(relation: &Relation, qualifier: datafusion::common::TableReference, place: usize) -> Expr {
    Expr::Column(Column::new(Some(qualifier), relation.schema.field(place).name()))
}

/// Refuses a correlated subquery, which a pipeline cannot express.
pub(super) fn no_correlation(subquery: &Subquery) -> Lowered<()> {
    match subquery.outer_ref_columns.is_empty() {
        true => Ok(()),
        false => because("a subquery that depends on the row around it"),
    }
}
