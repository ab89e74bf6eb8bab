//! A fused subtree in DataFusion's plans: the logical node, and who plans it.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{DFSchemaRef, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Aggregate as LogicalAggregate, Expr, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};
use onehop_pipeline::cpu::{Execution, SinkFacts};
use onehop_pipeline::ir::Sink;

use super::aggregate::{self, Finish};
use super::distinct;
use super::exec::FusedExec;
use super::graph::{Graph, substituted};
use super::tree::{Planned, Planner, Scan};
use super::words::Words;
use super::{Fusing, Lowered, because};
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
    pub scans: Vec<Scan>,
    /// How the answer's columns are made of the pipeline's.
    pub(super) finish: Vec<Finish>,
    pub schema: DFSchemaRef,
    pub fallback: Fallback,
    /// What it was made of, and who can plan that.
    pub unfused: LogicalPlan,
    pub state: Arc<SessionState>,
}

impl Fused {
    /// The operators that DataFusion would have run.
    pub async fn plan_unfused(&self) -> Result<Arc<dyn ExecutionPlan>> {
        self.state.query_planner().create_physical_plan(&self.unfused, self.state.as_ref()).await
    }
}

impl fmt::Display for Fused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(words) = self.words.last() else { return Ok(()) };
        write!(f, "groups=[{}], aggregates=[{}]", words.keys.join(", "), words.values.join(", "))
    }
}

/// A state in which nothing is lowered.
fn without_fusing(state: &SessionState, fusing: &Fusing) -> Arc<SessionState> {
    let mut state = state.clone();
    state.config_mut().set_extension(Arc::new(Fusing { mode: ExecMode::DataFusion, ..fusing.clone() }));
    Arc::new(state)
}

/// Fused subtrees have no inputs and no expressions: there is nothing in them for DataFusion to change.
#[derive(Clone, Debug)]
pub(crate) struct FusedNode {
    fused: Arc<Fused>,
}

impl FusedNode {
    /// An aggregate and all below it.
    pub fn of_aggregate(
        aggregate: &LogicalAggregate,
        state: &SessionState,
        fusing: &Fusing,
        query: Option<&Arc<Query>>,
    ) -> Lowered<Self> {
        match distinct::flattened(aggregate) {
            // Where sets of values do not do, DataFusion's second aggregate may still be one of ours.
            Some(flat) => Self::of_flat(&flat, aggregate, state, fusing, query),
            None => Self::of_flat(aggregate, aggregate, state, fusing, query),
        }
    }

    /// What does the same as `unfused`.
    fn of_flat(
        aggregate: &LogicalAggregate,
        unfused: &LogicalAggregate,
        state: &SessionState,
        fusing: &Fusing,
        query: Option<&Arc<Query>>,
    ) -> Lowered<Self> {
        let mut graph = Graph::default();
        let outputs = graph.add(&aggregate.input)?;
        let substitute = |expr: &Expr| substituted(expr.clone().unalias(), &outputs);
        let keys = aggregate.group_expr.iter().map(substitute).collect::<Lowered<Vec<_>>>()?;
        let calls = aggregate.aggr_expr.iter().map(substitute).collect::<Lowered<Vec<_>>>()?;
        if keys.iter().any(|key| matches!(key, Expr::GroupingSet(_))) {
            return because("GROUPING SETS, ROLLUP or CUBE");
        }
        let ledger = query.map_or_else(Arc::default, |query| Arc::clone(query.shared_ledger()));
        let planner = Planner::new(&graph, state, Arc::clone(&fusing.cache), ledger)?;
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
        // Everything that can be refused is refused now, while DataFusion can still take over.
        let Planned { program, mut words, sources, scans } = planned;
        let execution = Execution::new(program, sources, 0)?;
        let planned = execution.check()?;
        if let Some(words) = words.last_mut() {
            words.keys = keys.iter().map(|key| graph.sql(key)).collect();
            words.values = calls.iter().map(|call| graph.sql(call)).collect();
        }
        let fused = Fused {
            execution,
            words,
            planned,
            scans,
            finish,
            schema: Arc::clone(&aggregate.schema),
            fallback: fusing.fallback,
            unfused: LogicalPlan::Aggregate(unfused.clone()),
            state: without_fusing(state, fusing),
        };
        Ok(Self { fused: Arc::new(fused) })
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
        Vec::new()
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

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, _: Vec<LogicalPlan>) -> Result<Self> {
        Ok(self.clone())
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
        _physical: &[Arc<dyn ExecutionPlan>],
        _session: &dyn Session,
        _context: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<FusedNode>() else { return Ok(None) };
        Ok(Some(Arc::new(FusedExec::new(Arc::clone(&node.fused)))))
    }
}
