//! A fused subtree in DataFusion's plans: the logical node, and who plans it.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{Column, DFSchemaRef, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Aggregate as LogicalAggregate, Expr, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};
use onehop_io::Ledger;
use onehop_pipeline::cpu::{Execution, SinkFacts};
use onehop_pipeline::ir::Sink;
use onehop_pipeline::{Domain, Expr as PipelineExpr, Value};

use super::aggregate::{self, Finish};
use super::dictionaries::Dictionaries;
use super::distinct;
use super::exec::FusedExec;
use super::graph::Graph;
use super::input::{Input, Scan};
use super::relation::{Derived, Relation, tables_below};
use super::tree::{Planned, Planner};
use super::words::Words;
use super::{Fusing, Lowered, Refusal, because};
use crate::query::Query;
use crate::settings::{ExecMode, Fallback};

/// What a fused subtree does.
#[derive(Debug)]
pub(crate) struct Fused {
    /// The program, before its first pipeline.
    pub execution: Execution,
    /// What each pipeline does, and what it ends in.
    pub words: Vec<Words>,
    pub planned: Vec<SinkFacts>,
    /// What each source reads.
    pub inputs: Vec<Input>,
    /// How the answer's columns are made of the pipeline's.
    pub(super) finish: Vec<Finish>,
    pub schema: DFSchemaRef,
    pub fallback: Fallback,
    /// What it was made of, and who can plan that.
    pub unfused: LogicalPlan,
    pub state: Arc<SessionState>,
}

impl Fused {
    /// What is read of tables.
    pub fn scans(&self) -> impl Iterator<Item = &Scan> {
        self.inputs.iter().filter_map(|input| match input {
            Input::Table(scan) => Some(scan),
            Input::Derived(_) => None,
        })
    }

    /// Whether its rows leave as they are made, not put together in groups.
    pub fn collects(&self) -> bool {
        self.execution.program().pipelines.last().is_some_and(|last| matches!(last.sink, Sink::Collect { .. }))
    }

    /// The operators that DataFusion would have run.
    pub async fn plan_unfused(&self) -> Result<Arc<dyn ExecutionPlan>> {
        self.state.query_planner().create_physical_plan(&self.unfused, self.state.as_ref()).await
    }
}

impl fmt::Display for Fused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(words) = self.words.last() else { return Ok(()) };
        if self.collects() {
            return write!(f, "columns=[{}]", words.values.join(", "));
        }
        write!(f, "groups=[{}], aggregates=[{}]", words.keys.join(", "), words.values.join(", "))
    }
}

/// Where what it moves is counted.
fn ledger_of(query: Option<&Arc<Query>>) -> Arc<Ledger> {
    query.map_or_else(Arc::default, |query| Arc::clone(query.shared_ledger()))
}

/// A state in which nothing is lowered.
fn without_fusing(state: &SessionState, fusing: &Fusing) -> Arc<SessionState> {
    let mut state = state.clone();
    state.config_mut().set_extension(Arc::new(Fusing { mode: ExecMode::DataFusion, ..fusing.clone() }));
    Arc::new(state)
}

/// Fused subtrees have no expressions, for there is nothing in them for DataFusion to change; their inputs are the plans
/// of derived relations.
#[derive(Clone, Debug)]
pub(crate) struct FusedNode {
    fused: Arc<Fused>,
    inputs: Vec<LogicalPlan>,
}

impl FusedNode {
    /// An aggregate and all below it. What of that does not run on pipelines, although it is about our tables, is told
    /// to `refused`.
    pub fn of_aggregate(
        aggregate: &LogicalAggregate,
        state: &SessionState,
        fusing: &Fusing,
        query: Option<&Arc<Query>>,
        refused: &mut Vec<Refusal>,
    ) -> Lowered<Self> {
        if let Some(flat) = distinct::flattened(aggregate)
            && let Ok(node) =
                Dictionaries::fewest(|texts| Self::of_flat(&flat, aggregate, state, fusing, query, texts, refused))
        {
            return Ok(node);
        }
        // Where sets of values do not do, the one aggregate runs above the other.
        Dictionaries::fewest(|texts| Self::of_flat(aggregate, aggregate, state, fusing, query, texts, refused))
    }

    /// What does the same as `unfused`.
    fn of_flat(
        aggregate: &LogicalAggregate,
        unfused: &LogicalAggregate,
        state: &SessionState,
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
        let read = (keys.as_slice(), calls.as_slice());
        Self::of_planned(&graph, planned, read, finish, made_of, state, fusing, refused)
    }

    /// The rows of joins, and of filters and projections above them, that no aggregate is computed of.
    pub fn of_joins(
        plan: &LogicalPlan,
        state: &SessionState,
        fusing: &Fusing,
        query: Option<&Arc<Query>>,
        refused: &mut Vec<Refusal>,
    ) -> Lowered<Self> {
        Dictionaries::fewest(|texts| Self::of_joins_with(plan, state, fusing, query, texts, refused))
    }

    fn of_joins_with(
        plan: &LogicalPlan,
        state: &SessionState,
        fusing: &Fusing,
        query: Option<&Arc<Query>>,
        dictionaries: &Dictionaries,
        refused: &mut Vec<Refusal>,
    ) -> Lowered<Self> {
        let mut graph = Graph::new("a join");
        let outputs = graph.add(plan)?;
        graph.check_worth()?;
        // DataFusion's joins read no more than one of their sides into memory.
        for derived in graph.relations.iter().filter_map(Relation::derived) {
            if !derived.has_few_rows() {
                return because(derived.reason.clone());
            }
        }
        let columns = plan.schema().columns();
        let known = |column: &Column| match outputs.get(column) {
            Some(known) => Ok(known.clone()),
            None => because(format!("two columns named {}", column.name)),
        };
        let columns = columns.iter().map(known).collect::<Lowered<Vec<Expr>>>()?;
        let planner = Planner::new(&graph, state, Arc::clone(&fusing.cache), ledger_of(query), dictionaries)?;
        let finish = (0..columns.len()).map(Finish::Column).collect();
        let planned = planner.plan(&columns, |translator| {
            let mut columns = columns.iter().map(|column| translator.translate(column)).collect::<Lowered<Vec<_>>>()?;
            if columns.is_empty() {
                // Somebody wants to know how many rows there are.
                columns.push(PipelineExpr::Literal(Value::Bool(true)));
            }
            Ok(Sink::Collect { columns })
        })?;
        let read = ([].as_slice(), columns.as_slice());
        Self::of_planned(&graph, planned, read, finish, plan.clone(), state, fusing, refused)
    }

    /// What has been planned, where all that can be refused is refused: DataFusion can still take over. `read` are keys
    /// and values of the last pipeline, `unfused` is what it was made of.
    #[allow(clippy::too_many_arguments, reason = "the last step of both of the above")]
    fn of_planned(
        graph: &Graph,
        planned: Planned,
        (keys, values): (&[Expr], &[Expr]),
        finish: Vec<Finish>,
        unfused: LogicalPlan,
        state: &SessionState,
        fusing: &Fusing,
        refused: &mut Vec<Refusal>,
    ) -> Lowered<Self> {
        let Planned { program, mut words, sources, inputs } = planned;
        let execution = Execution::new(program, sources, 0)?;
        let planned = execution.check()?;
        if let Some(words) = words.last_mut() {
            words.keys = keys.iter().map(|key| graph.sql(key)).collect();
            words.values = values.iter().map(|value| graph.sql(value)).collect();
        }
        let fused = Fused {
            execution,
            words,
            planned,
            inputs,
            finish,
            schema: Arc::clone(unfused.schema()),
            fallback: fusing.fallback,
            unfused,
            state: without_fusing(state, fusing),
        };
        let mut inputs = Vec::new();
        for Derived { plan, reason, .. } in graph.relations.iter().filter_map(Relation::derived) {
            // Of an aggregate it was said when it was met.
            if !matches!(plan, LogicalPlan::Aggregate(_)) && !tables_below(plan, false)?.is_empty() {
                refused.push(Refusal::of(plan, reason.clone())?);
            }
            inputs.push(plan.clone());
        }
        Ok(Self { fused: Arc::new(fused), inputs })
    }

    /// Whether there is always one row.
    pub fn has_one_row(&self) -> bool {
        let last = self.fused.execution.program().pipelines.last();
        last.is_some_and(|last| matches!(&last.sink, Sink::Aggregate { keys, .. } if keys.is_empty()))
    }

    /// What its columns can hold, where that is what a pipeline's can.
    pub fn outputs(&self) -> Vec<Option<Domain>> {
        let outputs = self.fused.execution.outputs();
        let domain = |finish: &Finish| match finish {
            Finish::Column(column) => outputs.get(*column).cloned(),
            _ => None,
        };
        self.fused.finish.iter().map(domain).collect()
    }

    /// The tables that its pipelines read.
    pub fn tables(&self) -> impl Iterator<Item = String> {
        self.fused.scans().map(|scan| scan.table.name.clone())
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.fused) as usize
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
        _session: &dyn Session,
        _context: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<FusedNode>() else { return Ok(None) };
        Ok(Some(Arc::new(FusedExec::new(Arc::clone(&node.fused), physical.to_vec()))))
    }
}
