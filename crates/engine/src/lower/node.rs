//! Fused subtrees in DataFusion's plans: the logical node and its planner.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{Column, DFSchemaRef, Result, internal_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Aggregate as LogicalAggregate, Expr, LogicalPlan, Sort, UserDefinedLogicalNode, UserDefinedLogicalNodeCore,
};
use datafusion::physical_expr::{LexOrdering, create_physical_sort_exprs};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};
use onehop_io::Ledger;
use onehop_pipeline::backend::Stored;
use onehop_pipeline::cpu::{Execution, SinkFacts};
use onehop_pipeline::ir::{Direction, Nulls, Sink, SortKey};
use onehop_pipeline::{Domain, Expr as PipelineExpr, Value};
use onehop_segment::BlockCache;

use super::aggregate::{self, Finish};
use super::dictionaries::Dictionaries;
use super::distinct;
use super::exec::FusedExec;
use super::expr::Translator;
use super::graph::{Graph, Outputs};
use super::input::{Input, Scan};
use super::kept::{self, Binding};
use super::relation::{Derived, Relation, tables_below};
use super::tree::{Planned, Planner};
use super::words::Words;
use super::{Lowered, because, refusal_of};
use crate::explanation::Refusal;
use crate::fusing::Fusing;
use crate::place::{self, Placement, Placing, Read, homes};
use crate::query::Query;
use crate::settings::{ExecMode, Fallback};

/// A fused subtree.
#[derive(Debug)]
pub(crate) struct Fused {
    /// The program, before its first pipeline.
    pub execution: Execution,
    /// The steps and the sink of each pipeline, for EXPLAIN.
    pub words: Arc<Vec<Words>>,
    pub planned: Arc<Vec<SinkFacts>>,
    /// The input of each source.
    pub inputs: Vec<Input>,
    /// The computation of the answer's columns from the pipeline's.
    pub(super) finish: Arc<Vec<Finish>>,
    pub schema: DFSchemaRef,
    pub fallback: Fallback,
    /// The settings that determine its placement.
    pub placing: Placing,
    /// The cache through which tables are read.
    pub cache: Arc<BlockCache>,
    /// The plan that it was made of.
    pub unfused: Arc<LogicalPlan>,
    /// The statement's state, which can plan `unfused`; `None` while it is [cached](super::kept).
    pub(super) state: Option<Arc<SessionState>>,
}

impl Fused {
    /// Returns the scans of tables.
    pub fn scans(&self) -> impl Iterator<Item = &Scan> {
        self.inputs.iter().filter_map(|input| match input {
            Input::Table(scan) => Some(scan),
            Input::Derived(_) => None,
        })
    }

    /// Returns whether its rows leave as they are made instead of in groups.
    pub fn collects(&self) -> bool {
        self.execution.program().pipelines.last().is_some_and(|last| matches!(last.sink, Sink::Collect { .. }))
    }

    /// Returns the maximum number of rows, if they are the first ones in an order.
    pub fn top(&self) -> Option<usize> {
        match self.execution.program().pipelines.last()?.sink {
            Sink::Top { rows, .. } => Some(rows),
            _ => None,
        }
    }

    /// Returns the stored blocks of each source.
    pub fn stored(&self) -> Vec<Option<Stored>> {
        let stored = |input: &Input| match input {
            Input::Table(Scan { plan, columns, .. }) => {
                Some(Stored { blocks: Arc::clone(&plan.blocks), columns: columns.clone() })
            }
            Input::Derived(_) => None,
        };
        self.inputs.iter().map(stored).collect()
    }

    /// Places it on a device, or on `threads` threads of the CPU. Fails if a GPU is required and
    /// not available.
    pub(super) fn place(&self, threads: usize, query: Option<&Query>) -> Result<Placement> {
        // Without devices there is nothing to decide.
        if !self.placing.may_use_devices() {
            return Ok(Placement::default());
        }
        let sites = self.inputs.iter().map(|input| match input {
            Input::Table(Scan { table, plan, .. }) => {
                homes::sites(&table.entry, &plan.blocks, |place| plan.partition_of(place))
            }
            Input::Derived(_) => Vec::new(),
        });
        let sites = sites.collect();
        let changed = self.scans().find(|scan| !scan.plan.is_settled()).map(|scan| {
            let (fresh, deleted) = (scan.plan.fresh_rows(), scan.plan.deleted_rows());
            let rows = match (fresh, deleted) {
                (0, deleted) => format!("{deleted} deleted rows"),
                (fresh, 0) => format!("{fresh} fresh rows"),
                (fresh, deleted) => format!("{fresh} fresh and {deleted} deleted rows"),
            };
            format!("the {rows} of \"{}\", which CHECKPOINT would settle", scan.table.name)
        });
        let read = Read { stored: self.stored(), sites, changed };
        let placement = place::place(&self.placing, &self.execution, read, threads);
        place::report(&placement, self.placing.mode, self.fallback, query)?;
        Ok(placement)
    }

    /// Plans the operators that DataFusion would have run.
    pub async fn plan_unfused(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(state) = &self.state else { return internal_err!("a plan that is kept does not run") };
        let unfused = kept::bound(&self.unfused, &Binding::to(state))?;
        let state = without_fusing(state);
        state.query_planner().create_physical_plan(&unfused, &state).await
    }

    /// Returns the same subtree for another statement. Returns `None` if it cannot be rebound.
    pub(super) fn bound(&self, to: &Binding) -> Option<Self> {
        let inputs: Vec<Input> = self.inputs.iter().map(|input| input.of_query(&to.ledger)).collect();
        let execution = self.execution.for_ledgers(|number| inputs.get(number)?.ledger().cloned())?;
        Some(Self {
            execution,
            words: Arc::clone(&self.words),
            planned: Arc::clone(&self.planned),
            inputs,
            finish: Arc::clone(&self.finish),
            schema: Arc::clone(&self.schema),
            fallback: self.fallback,
            placing: self.placing.clone(),
            cache: Arc::clone(&self.cache),
            unfused: Arc::clone(&self.unfused),
            state: to.state.clone(),
        })
    }
}

impl fmt::Display for Fused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(words) = self.words.last() else { return Ok(()) };
        if self.collects() {
            return write!(f, "columns=[{}]", words.values.join(", "));
        }
        if let Some(rows) = self.top() {
            let (keys, columns) = (words.keys.join(", "), words.values.join(", "));
            return write!(f, "rows={rows}, keys=[{keys}], columns=[{columns}]");
        }
        write!(f, "groups=[{}], aggregates=[{}]", words.keys.join(", "), words.values.join(", "))
    }
}

/// Returns the ledger of a query.
pub(super) fn ledger_of(query: Option<&Arc<Query>>) -> Arc<Ledger> {
    query.map_or_else(Arc::default, |query| Arc::clone(query.shared_ledger()))
}

/// Returns a state that lowers nothing.
fn without_fusing(state: &SessionState) -> SessionState {
    let mut state = state.clone();
    if let Some(fusing) = state.config().get_extension::<Fusing>() {
        state.config_mut().set_extension(Arc::new(Fusing { mode: ExecMode::DataFusion, ..(*fusing).clone() }));
    }
    state
}

/// The logical node of a fused subtree. It exposes no expressions, since DataFusion must not change
/// them. Its inputs are the plans of derived relations.
#[derive(Clone, Debug)]
pub(crate) struct FusedNode {
    fused: Arc<Fused>,
    inputs: Vec<LogicalPlan>,
}

impl FusedNode {
    /// Fuses an aggregate and all below it. Adds the nodes below that read tables of the database
    /// and run on DataFusion to `refused`.
    pub fn of_aggregate(
        aggregate: &LogicalAggregate,
        state: &Arc<SessionState>,
        fusing: &Fusing,
        query: Option<&Arc<Query>>,
        refused: &mut Vec<Refusal>,
    ) -> Lowered<Self> {
        if let Some(flat) = distinct::flattened(aggregate)
            && let Ok(node) = Dictionaries::fewest(&fusing.placing, |texts| {
                Self::of_flat(&flat, aggregate, state, fusing, query, texts, refused)
            })
        {
            return Ok(node);
        }
        // If sets of values are not supported, one aggregate runs above the other.
        Dictionaries::fewest(&fusing.placing, |texts| {
            Self::of_flat(aggregate, aggregate, state, fusing, query, texts, refused)
        })
    }

    /// Fuses an aggregate that is equivalent to `unfused`.
    fn of_flat(
        aggregate: &LogicalAggregate,
        unfused: &LogicalAggregate,
        state: &Arc<SessionState>,
        fusing: &Fusing,
        query: Option<&Arc<Query>>,
        dictionaries: &Dictionaries,
        refused: &mut Vec<Refusal>,
    ) -> Lowered<Self> {
        let mut graph = Graph::new("an aggregate");
        let outputs = graph.add(&aggregate.input)?;
        let mut over_relations = |expr: &Expr| graph.over_relations(expr, &outputs);
        let keys = aggregate.group_expr.iter().map(&mut over_relations).collect::<Lowered<Vec<_>>>()?;
        let calls = aggregate.aggr_expr.iter().map(&mut over_relations).collect::<Lowered<Vec<_>>>()?;
        graph.check_worth()?;
        if keys.iter().any(|key| matches!(key, Expr::GroupingSet(_))) {
            return because("GROUPING SETS, ROLLUP or CUBE");
        }
        let planner = Planner::new(&graph, state, Arc::clone(&fusing.cache), ledger_of(query), dictionaries)?;
        let read: Vec<Expr> = keys.iter().chain(&calls).cloned().collect();
        let mut finish: Vec<Finish> = (0..keys.len()).map(Finish::Column).collect();
        let planned = planner.plan(&read, |translator| {
            let mut aggregates = Vec::new();
            for call in &calls {
                let Expr::AggregateFunction(call) = call else { return because("an aggregate that is no call") };
                finish.push(aggregate::translate(call, translator, keys.len(), &mut aggregates)?);
            }
            let keys = keys.iter().map(|key| translator.translate(key)).collect::<Lowered<Vec<_>>>()?;
            Ok(Sink::Aggregate { keys, aggregates })
        })?;
        let made_of = LogicalPlan::Aggregate(unfused.clone());
        let words = (graph.all_sql(&keys), graph.all_sql(&calls));
        Self::of_planned(&graph, planned, words, finish, made_of, state, fusing, refused)
    }

    /// Fuses joins, and filters and projections above them, without an aggregate.
    pub fn of_joins(
        plan: &LogicalPlan,
        state: &Arc<SessionState>,
        fusing: &Fusing,
        query: Option<&Arc<Query>>,
        refused: &mut Vec<Refusal>,
    ) -> Lowered<Self> {
        Dictionaries::fewest(&fusing.placing, |texts| Self::of_joins_with(plan, state, fusing, query, texts, refused))
    }

    fn of_joins_with(
        plan: &LogicalPlan,
        state: &Arc<SessionState>,
        fusing: &Fusing,
        query: Option<&Arc<Query>>,
        dictionaries: &Dictionaries,
        refused: &mut Vec<Refusal>,
    ) -> Lowered<Self> {
        let mut graph = Graph::new("a join");
        let outputs = graph.add(plan)?;
        graph.check_worth()?;
        check_memory(&graph)?;
        let columns = columns_of(plan, &outputs)?;
        let planner = Planner::new(&graph, state, Arc::clone(&fusing.cache), ledger_of(query), dictionaries)?;
        let finish = (0..columns.len()).map(Finish::Column).collect();
        let planned =
            planner.plan(&columns, |translator| Ok(Sink::Collect { columns: translated(&columns, translator)? }))?;
        let words = (Vec::new(), graph.all_sql(&columns));
        Self::of_planned(&graph, planned, words, finish, plan.clone(), state, fusing, refused)
    }

    /// Fuses the first rows in an order, of a table or of joins, and of filters and projections
    /// above them.
    pub fn of_sort(
        sort: &Sort,
        state: &Arc<SessionState>,
        fusing: &Fusing,
        query: Option<&Arc<Query>>,
        refused: &mut Vec<Refusal>,
    ) -> Lowered<Self> {
        let Some(rows @ 1..) = sort.fetch else { return because("an ORDER BY of all rows, or of none") };
        let mut graph = Graph::new("an ORDER BY");
        let outputs = graph.add(&sort.input)?;
        graph.check_worth()?;
        check_memory(&graph)?;
        let columns = columns_of(&sort.input, &outputs)?;
        let keys =
            sort.expr.iter().map(|key| graph.over_relations(aggregate::within_positive_zero(&key.expr), &outputs));
        let keys = keys.collect::<Lowered<Vec<Expr>>>()?;
        // Sorting the text of a few rows is faster than building a dictionary of all of it.
        let none = Dictionaries::none();
        let planner = Planner::new(&graph, state, Arc::clone(&fusing.cache), ledger_of(query), &none)?;
        let finish = (0..columns.len()).map(Finish::Column).collect();
        let read: Vec<Expr> = keys.iter().chain(&columns).cloned().collect();
        let planned = planner.plan(&read, |translator| {
            let mut order = Vec::with_capacity(keys.len());
            for (expr, key) in keys.iter().zip(&sort.expr) {
                let direction = if key.asc { Direction::Ascending } else { Direction::Descending };
                let nulls = if key.nulls_first { Nulls::First } else { Nulls::Last };
                order.push(SortKey { expr: translator.translate(expr)?, direction, nulls });
            }
            Ok(Sink::Top { rows, keys: order, columns: translated(&columns, translator)? })
        })?;
        let key_sql = keys.iter().zip(&sort.expr).map(|(expr, key)| {
            let direction = if key.asc { "" } else { " DESC" };
            // The default in descending order is NULLS FIRST.
            let nulls = match (key.asc, key.nulls_first) {
                (true, true) => " NULLS FIRST",
                (false, false) => " NULLS LAST",
                _ => "",
            };
            format!("{}{direction}{nulls}", graph.sql(expr))
        });
        let words = (key_sql.collect(), graph.all_sql(&columns));
        let made_of = LogicalPlan::Sort(sort.clone());
        Self::of_planned(&graph, planned, words, finish, made_of, state, fusing, refused)
    }

    /// Creates the node of a planned program. This is the last point that can refuse it, so that
    /// DataFusion can still run it. `keys` and `values` are those of the last pipeline; `unfused`
    /// is the plan that it was made of.
    #[allow(clippy::too_many_arguments, reason = "the last step of all of the above")]
    pub(super) fn of_planned(
        graph: &Graph,
        planned: Planned,
        (keys, values): (Vec<String>, Vec<String>),
        finish: Vec<Finish>,
        unfused: LogicalPlan,
        state: &Arc<SessionState>,
        fusing: &Fusing,
        refused: &mut Vec<Refusal>,
    ) -> Lowered<Self> {
        let Planned { program, mut words, sources, inputs } = planned;
        let execution = Execution::new(program, sources, 0)?;
        let planned = execution.check()?;
        if let Some(words) = words.last_mut() {
            (words.keys, words.values) = (keys, values);
        }
        let fused = Fused {
            execution,
            words: Arc::new(words),
            planned: Arc::new(planned),
            inputs,
            finish: Arc::new(finish),
            schema: Arc::clone(unfused.schema()),
            fallback: fusing.fallback,
            placing: fusing.placing.clone(),
            cache: Arc::clone(&fusing.cache),
            unfused: Arc::new(unfused),
            state: Some(Arc::clone(state)),
        };
        let mut inputs = Vec::new();
        for Derived { plan, reason, .. } in graph.relations.iter().filter_map(Relation::derived) {
            // The refusal of an aggregate was recorded before.
            if !matches!(plan, LogicalPlan::Aggregate(_)) && !tables_below(plan, false)?.is_empty() {
                refused.push(refusal_of(plan, reason.clone())?);
            }
            inputs.push(plan.clone());
        }
        Ok(Self { fused: Arc::new(fused), inputs })
    }

    /// Returns the same node with its subtree bound to another statement.
    pub(super) fn with_fused(&self, fused: Fused) -> Self {
        Self { fused: Arc::new(fused), inputs: self.inputs.clone() }
    }

    /// Returns the fused subtree.
    pub(super) fn fused(&self) -> &Fused {
        &self.fused
    }

    /// Returns the fused subtree, for callers that run it without a plan around it.
    pub(super) fn into_fused(self) -> Arc<Fused> {
        self.fused
    }

    /// Returns whether it always has one row.
    pub fn has_one_row(&self) -> bool {
        let last = self.fused.execution.program().pipelines.last();
        last.is_some_and(|last| matches!(&last.sink, Sink::Aggregate { keys, .. } if keys.is_empty()))
    }

    /// Returns the domains of its columns, for those that are a pipeline's columns.
    pub fn outputs(&self) -> Vec<Option<Domain>> {
        let outputs = self.fused.execution.outputs();
        let domain = |finish: &Finish| match finish {
            Finish::Column(column) => outputs.get(*column).cloned(),
            _ => None,
        };
        self.fused.finish.iter().map(domain).collect()
    }

    /// Returns the tables that its pipelines read.
    pub fn tables(&self) -> impl Iterator<Item = String> {
        self.fused.scans().map(|scan| scan.table.name.clone())
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.fused) as usize
    }
}

/// Checks that nothing is read into memory that DataFusion would not: at most one side of a join.
fn check_memory(graph: &Graph) -> Lowered<()> {
    match graph.relations.iter().filter_map(Relation::derived).find(|derived| !derived.has_few_rows()) {
        Some(derived) => because(derived.reason.clone()),
        None => Ok(()),
    }
}

/// Returns the definitions of a plan's columns.
pub(super) fn columns_of(plan: &LogicalPlan, outputs: &Outputs) -> Lowered<Vec<Expr>> {
    let known = |column: &Column| match outputs.get(column) {
        Some(known) => Ok(known.clone()),
        None => because(format!("two columns named {}", column.name)),
    };
    plan.schema().columns().iter().map(known).collect()
}

/// Translates the columns of an answer. Without columns, a constant carries the number of rows.
fn translated(columns: &[Expr], translator: &Translator<'_>) -> Lowered<Vec<PipelineExpr>> {
    match columns.is_empty() {
        true => Ok(vec![PipelineExpr::Literal(Value::Bool(true))]),
        false => columns.iter().map(|column| translator.translate(column)).collect(),
    }
}

impl PartialEq for FusedNode {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for FusedNode {}

impl PartialOrd for FusedNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.address().partial_cmp(&other.address())
    }
}

impl Hash for FusedNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

impl UserDefinedLogicalNodeCore for FusedNode {
    fn name(&self) -> &str {
        "Fused"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.inputs.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.fused.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fused: {}", self.fused)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self { fused: Arc::clone(&self.fused), inputs })
    }
}

/// Plans fused nodes.
#[derive(Debug)]
pub(crate) struct FusedPlanner;

#[async_trait]
impl ExtensionPlanner for FusedPlanner {
    async fn plan_extension(
        &self,
        _planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical: &[&LogicalPlan],
        physical: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        context: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<FusedNode>() else { return Ok(None) };
        let config = session.config();
        let query = config.get_extension::<Query>();
        let placement = Arc::new(node.fused.place(config.target_partitions(), query.as_deref())?);
        let exec = |order| {
            let (fused, placement) = (Arc::clone(&node.fused), Arc::clone(&placement));
            Arc::new(FusedExec::new(fused, placement, physical.to_vec(), order))
        };
        let LogicalPlan::Sort(sort) = &*node.fused.unfused else { return Ok(Some(exec(None))) };
        let order = create_physical_sort_exprs(&sort.expr, sort.input.schema(), session.execution_props(), context)?;
        let Some(order) = LexOrdering::new(order) else { return Ok(Some(exec(None))) };
        // DataFusion takes this sort for the one that orders the answer, finds its input sorted,
        // and removes it.
        Ok(Some(Arc::new(SortExec::new(order.clone(), exec(Some(order))).with_fetch(sort.fetch))))
    }
}
