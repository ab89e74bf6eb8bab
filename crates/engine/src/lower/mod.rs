//! Lowers DataFusion's optimized plan to fused pipelines.
//!
//! The plan is searched bottom-up for subtrees that pipelines can run: an aggregate over filters,
//! projections and joins of tables of the database. Other inputs of it are computed first. The
//! remaining joins, with filters and projections above them, are searched top-down: their rows
//! leave as they are made. The same search finds ORDER BY with a LIMIT above these or a single
//! table: the first rows leave, in their order. Such a subtree becomes one [`FusedNode`];
//! DataFusion runs the rest. For each aggregate, join and such ORDER BY that DataFusion runs, the
//! reason is recorded.
//!
//! ```text
//! LogicalPlan ─ reduce ─► with joins that select the rows worth aggregating
//!             ─ graph ─► relations, conditions over their columns
//!             ─ relation ─► tables, and plans that are computed first
//!             ─ tree  ─► the largest relation is the root, the others are (nested) join tables
//!             ─ dictionaries ─► the text columns that get one, as few as possible
//!             ─ expr  ─► DataFusion's expressions as the pipelines', each with its SQL for errors
//!             ─ distinct ─► one aggregate where DataFusion has two
//!             ─ aggregate ─► functions, and the conversion of their results to DataFusion's types
//!             ─ words ─► the same in SQL, for EXPLAIN
//!             ─ kept  ─► cached for the next run of the same plan
//!             ─ node  ─► in the plan, and placed
//!               ─ exec ─► running on the CPU, ─ device ─► or on a device
//!               ─ stream ─► rows that leave
//!             ─ fit   ─► rows that a device sums to fit a model
//! ```

mod aggregate;
mod device;
mod dictionaries;
mod distinct;
mod exec;
mod expr;
mod fit;
mod graph;
mod input;
mod kept;
mod node;
mod reduce;
mod relation;
mod sql;
mod stream;
mod text;
mod tree;
mod words;

use std::sync::{Arc, OnceLock};

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Extension, LogicalPlan};

pub(crate) use self::device::DeviceTimes;
pub(crate) use self::exec::{DerivedRan, FusedExec, PipelineRan, StopOnDrop};
pub(crate) use self::fit::{DeviceFit, Fitted, plan_fit};
pub(crate) use self::input::{DerivedInput, Input, Scan};
use self::kept::KeptLowering;
use self::node::FusedNode;
pub(crate) use self::node::{Fused, FusedPlanner};
pub(crate) use self::relation::is_of_database;

use crate::explanation::{Refusal, Refused};
use crate::fusing::Fusing;
use crate::query::Query;
use crate::settings::{ExecMode, Fallback};
use crate::{Error, ErrorKind};

/// The reason why pipelines do not run something, or an error of the attempt.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Pipelines cannot run it; DataFusion does.
    Reason(String),
    /// An error that DataFusion would return as well: a file that cannot be read.
    Error(DataFusionError),
}

pub(crate) type Lowered<T> = Result<T, Failure>;

impl From<DataFusionError> for Failure {
    fn from(e: DataFusionError) -> Self {
        Self::Error(e)
    }
}

impl From<onehop_pipeline::Error> for Failure {
    fn from(e: onehop_pipeline::Error) -> Self {
        match e {
            onehop_pipeline::Error::Unsupported(reason) => Self::Reason(reason),
            other => Self::Error(crate::Error::from(other).into()),
        }
    }
}

/// Returns a reason as a failure.
pub(crate) fn because<T>(reason: impl Into<String>) -> Lowered<T> {
    Err(Failure::Reason(reason.into()))
}

/// A plan as the optimizer left it, with its cached [reduction](reduce) and its cached
/// [lowering](kept).
#[derive(Debug)]
pub(crate) struct Optimized {
    pub plan: LogicalPlan,
    /// Computed on demand; `None` inside if there is nothing to gain.
    reduced: OnceLock<Option<LogicalPlan>>,
    lowered: KeptLowering,
}

impl Optimized {
    /// Creates it without cached forms.
    pub fn new(plan: LogicalPlan) -> Self {
        Self { plan, reduced: OnceLock::new(), lowered: KeptLowering::default() }
    }

    fn reduced(&self) -> DataFusionResult<Option<&LogicalPlan>> {
        let reduced = match self.reduced.get() {
            Some(reduced) => reduced,
            None => {
                let reduced = reduce::reduced(&self.plan)?;
                self.reduced.get_or_init(|| reduced)
            }
        };
        Ok(reduced.as_ref())
    }
}

/// Replaces the subtrees that pipelines can run.
pub(crate) fn lower(optimized: &Optimized, state: &Arc<SessionState>) -> DataFusionResult<LogicalPlan> {
    let fusing = match state.config().get_extension::<Fusing>() {
        Some(fusing) if fusing.mode == ExecMode::Fused => fusing,
        _ => return Ok(optimized.plan.clone()),
    };
    let query = state.config().get_extension::<Query>();
    let lowered = match optimized.lowered.find(&fusing, state)? {
        Some(lowered) => lowered,
        None => {
            let lowered = lower_anew(optimized, state, &fusing, query.as_ref())?;
            optimized.lowered.keep(&fusing, &lowered)?;
            lowered
        }
    };
    report(&lowered.of_tables(), fusing.fallback, query.as_deref())?;
    if let Some(query) = &query {
        query.lowered(lowered.fused_subtrees, lowered.refused);
    }
    Ok(lowered.plan)
}

fn lower_anew(
    optimized: &Optimized,
    state: &Arc<SessionState>,
    fusing: &Fusing,
    query: Option<&Arc<Query>>,
) -> DataFusionResult<LoweredPlan> {
    let plan = &optimized.plan;
    let Some(reduced) = optimized.reduced()? else { return lower_plan(plan, state, fusing, query) };
    let lowered = lower_plan(reduced, state, fusing, query)?;
    // A reduction that keeps an aggregate from its pipeline saves nothing.
    match lowered.of_tables().is_empty() {
        true => Ok(lowered),
        false => Ok(fewer_refused(lowered, lower_plan(plan, state, fusing, query)?)),
    }
}

/// A plan after lowering, and its statistics.
#[derive(Debug)]
struct LoweredPlan {
    plan: LogicalPlan,
    fused_subtrees: u64,
    refused: Vec<Refusal>,
}

impl LoweredPlan {
    /// Returns the refusals of nodes that read tables of the database.
    fn of_tables(&self) -> Vec<&Refusal> {
        let counts = |refusal: &&Refusal| !refusal.tables.is_empty() && refusal.what != Refused::Sort;
        self.refused.iter().filter(counts).collect()
    }
}

fn fewer_refused(reduced: LoweredPlan, plain: LoweredPlan) -> LoweredPlan {
    if plain.of_tables().len() < reduced.of_tables().len() { plain } else { reduced }
}

fn lower_plan(
    plan: &LogicalPlan,
    state: &Arc<SessionState>,
    fusing: &Fusing,
    query: Option<&Arc<Query>>,
) -> DataFusionResult<LoweredPlan> {
    let mut refused = Vec::new();
    let mut fused_subtrees = 0;
    // Bottom-up: an aggregate's input may contain fused subtrees already.
    let aggregates = |node: LogicalPlan| {
        let LogicalPlan::Aggregate(aggregate) = &node else { return Ok(Transformed::no(node)) };
        let fused = FusedNode::of_aggregate(aggregate, state, fusing, query, &mut refused);
        put(fused, node, &mut fused_subtrees, |refusal| refused.push(refusal))
    };
    let plan = plan.clone().transform_up_with_subqueries(aggregates)?.data;
    // Top-down, to fuse as many of the remaining joins at a time as possible.
    let joins = |node: LogicalPlan| {
        if matches!(node, LogicalPlan::RecursiveQuery(_)) {
            refuse_joins(&node, "a join in a WITH RECURSIVE query", &mut refused)?;
            return Ok(Transformed::new(node, false, TreeNodeRecursion::Jump));
        }
        if let LogicalPlan::Sort(sort) = &node
            && sort.fetch.is_some()
            && is_of_tables(&sort.input)?
        {
            let fused = FusedNode::of_sort(sort, state, fusing, query, &mut refused);
            return put(fused, node, &mut fused_subtrees, |refusal| refused.push(refusal));
        }
        if !has_join_on_top(&node) {
            return Ok(Transformed::no(node));
        }
        let fused = FusedNode::of_joins(&node, state, fusing, query, &mut refused);
        let is_join = matches!(node, LogicalPlan::Join(_));
        put(fused, node, &mut fused_subtrees, |refusal| {
            refused.extend(Some(refusal).filter(|refusal| is_join && !refusal.tables.is_empty()));
        })
    };
    let lowered = plan.transform_down_with_subqueries(joins)?;
    Ok(LoweredPlan { plan: lowered.data, fused_subtrees, refused })
}

/// Replaces a node by a fused subtree, which is counted. Otherwise keeps the node and reports its
/// refusal to `refuse`.
fn put(
    fused: Lowered<FusedNode>,
    node: LogicalPlan,
    fused_subtrees: &mut u64,
    refuse: impl FnOnce(Refusal),
) -> DataFusionResult<Transformed<LogicalPlan>> {
    match fused {
        Ok(fused) => {
            *fused_subtrees += 1;
            Ok(Transformed::yes(LogicalPlan::Extension(Extension { node: Arc::new(fused) })))
        }
        Err(Failure::Reason(reason)) => {
            refuse(refusal_of(&node, reason)?);
            Ok(Transformed::no(node))
        }
        Err(Failure::Error(e)) => Err(e),
    }
}

/// Returns whether it is a join, or computed row by row from one.
fn has_join_on_top(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Join(_) => true,
        LogicalPlan::Projection(projection) => has_join_on_top(&projection.input),
        LogicalPlan::Filter(filter) => has_join_on_top(&filter.input),
        LogicalPlan::SubqueryAlias(alias) => has_join_on_top(&alias.input),
        _ => false,
    }
}

/// Returns whether it has the rows of a table of the database, filtered and joined or not.
fn is_of_tables(plan: &LogicalPlan) -> DataFusionResult<bool> {
    Ok(match plan {
        LogicalPlan::TableScan(scan) => scan.fetch.is_none() && relation::table_of(plan)?.is_some(),
        LogicalPlan::Projection(projection) => is_of_tables(&projection.input)?,
        LogicalPlan::Filter(filter) => is_of_tables(&filter.input)?,
        LogicalPlan::SubqueryAlias(alias) => is_of_tables(&alias.input)?,
        LogicalPlan::Join(join) => is_of_tables(&join.left)? || is_of_tables(&join.right)?,
        _ => false,
    })
}

fn refuse_joins(plan: &LogicalPlan, reason: &str, refused: &mut Vec<Refusal>) -> DataFusionResult<()> {
    plan.apply(|node| {
        if matches!(node, LogicalPlan::Join(_)) {
            let refusal = refusal_of(node, reason.into())?;
            refused.extend(Some(refusal).filter(|refusal| !refusal.tables.is_empty()));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// Returns the refusal of a node.
fn refusal_of(node: &LogicalPlan, reason: String) -> DataFusionResult<Refusal> {
    let what = match node {
        LogicalPlan::Join(_) => Refused::Join,
        LogicalPlan::Sort(_) => Refused::Sort,
        _ => Refused::Aggregate,
    };
    let columns = node.schema().fields().iter().map(|field| field.name().clone()).collect();
    Ok(Refusal { what, columns, tables: relation::tables_below(node, true)?, reason })
}

/// Returns the error of a session that permits pipelines only.
fn cannot_run(reason: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("no fused pipeline can run {reason}"))
        .with_hint("SET exec.fallback = 'warn' lets DataFusion's operators run it")
}

/// Reports refused nodes as the session's settings request.
fn report(refused: &[&Refusal], fallback: Fallback, query: Option<&Query>) -> DataFusionResult<()> {
    match (fallback, refused, query) {
        (_, [], _) | (Fallback::Silent, ..) => {}
        (Fallback::Error, [Refusal { reason, .. }, ..], _) => {
            return Err(cannot_run(reason).into());
        }
        (Fallback::Warn, refused, Some(query)) => {
            refused.iter().for_each(|Refusal { reason, .. }| query.notice(format!("not fused: {reason}")));
        }
        (Fallback::Warn, _, None) => {}
    }
    Ok(())
}
