//! From DataFusion's optimised plan to fused pipelines.
//!
//! The plan is searched from the top for the largest subtrees that pipelines can run: an aggregate over filters,
//! projections and inner joins of our own tables. Such a subtree becomes one [`FusedNode`]; all around it stays with
//! DataFusion. For every aggregate that stays there too, the reason is kept.
//!
//! ```text
//! LogicalPlan ─ graph ─► relations, conditions over their columns
//!             ─ tree  ─► the largest relation is the root, the others are join tables, nested where the joins are
//!             ─ expr  ─► DataFusion's expressions as the pipelines', each with its SQL for errors
//!             ─ distinct ─► one aggregate where DataFusion has two
//!             ─ aggregate ─► functions, and how their results become DataFusion's types
//!             ─ words ─► the same in SQL's words, for EXPLAIN
//!             ─ node  ─► in the plan; ─ exec ─► running
//! ```

mod aggregate;
mod distinct;
mod exec;
mod expr;
mod graph;
mod node;
mod sql;
mod text;
mod tree;
mod words;

use std::cell::Cell;
use std::sync::Arc;

use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Extension, LogicalPlan};

use onehop_segment::BlockCache;

pub(crate) use self::exec::{FusedExec, PipelineRan};
use self::node::FusedNode;
pub(crate) use self::node::{Fused, FusedPlanner};
use crate::query::Query;
use crate::scan::SegmentTable;
use crate::settings::{ExecMode, Fallback};
use crate::{Error, ErrorKind};

/// Why something is not run by pipelines, or what went wrong on the way to find out.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It cannot be; DataFusion runs it.
    Reason(String),
    /// An error that DataFusion would meet as well: a file that cannot be read.
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

/// A reason as a failure.
pub(crate) fn because<T>(reason: impl Into<String>) -> Lowered<T> {
    Err(Failure::Reason(reason.into()))
}

/// What lowering needs of the session; an extension of its configuration. Without it nothing is lowered.
#[derive(Clone, Debug)]
pub(crate) struct Fusing {
    /// Whether anything is lowered.
    pub mode: ExecMode,
    /// Hot blocks.
    pub cache: Arc<BlockCache>,
    /// What to do about what cannot be lowered.
    pub fallback: Fallback,
}

/// Replaces what pipelines can run.
pub(crate) fn lower(plan: &LogicalPlan, state: &SessionState) -> DataFusionResult<LogicalPlan> {
    let fusing = match state.config().get_extension::<Fusing>() {
        Some(fusing) if fusing.mode == ExecMode::Fused => fusing,
        _ => return Ok(plan.clone()),
    };
    let query = state.config().get_extension::<Query>();
    let mut refused = Vec::new();
    let mut fused_subtrees = 0;
    // How many aggregates that were refused the walk is within: their joins are refused with them.
    let within = Cell::new(0usize);
    let down = |node: LogicalPlan| {
        let LogicalPlan::Aggregate(aggregate) = &node else {
            if matches!(node, LogicalPlan::Join(_)) && within.get() == 0 {
                let refusal = Refusal::of(&node, "a join that no aggregate is computed of".into())?;
                refused.extend(Some(refusal).filter(|refusal| !refusal.tables.is_empty()));
            }
            return Ok(Transformed::no(node));
        };
        match FusedNode::of_aggregate(aggregate, state, &fusing, query.as_ref()) {
            Ok(fused) => {
                fused_subtrees += 1;
                let node = LogicalPlan::Extension(Extension { node: Arc::new(fused) });
                Ok(Transformed::new(node, true, TreeNodeRecursion::Jump))
            }
            Err(Failure::Reason(reason)) => {
                refused.push(Refusal::of(&node, reason)?);
                within.set(within.get() + 1);
                Ok(Transformed::no(node))
            }
            Err(Failure::Error(e)) => Err(e),
        }
    };
    let up = |node: LogicalPlan| {
        // An aggregate that is still one was refused on the way down.
        within.set(within.get().saturating_sub(usize::from(matches!(node, LogicalPlan::Aggregate(_)))));
        Ok(Transformed::no(node))
    };
    let lowered = plan.clone().transform_down_up_with_subqueries(down, up)?;
    let of_tables: Vec<&Refusal> = refused.iter().filter(|refusal| !refusal.tables.is_empty()).collect();
    report(&of_tables, fusing.fallback, query.as_deref())?;
    if let Some(query) = &query {
        query.lowered(fused_subtrees, refused);
    }
    Ok(lowered.data)
}

/// What stays with DataFusion although it is about tables of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Aggregate,
    Join,
}

/// Why an aggregate or a join stays with DataFusion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub what: Refused,
    /// The names of its columns, which its operator has, too.
    pub columns: Vec<String>,
    /// Tables of the database below it, sorted. Nobody wonders why what reads none is not fused.
    pub tables: Vec<String>,
    pub reason: String,
}

impl Refusal {
    fn of(node: &LogicalPlan, reason: String) -> DataFusionResult<Self> {
        let what = if matches!(node, LogicalPlan::Join(_)) { Refused::Join } else { Refused::Aggregate };
        let columns = node.schema().fields().iter().map(|field| field.name().clone()).collect();
        let mut tables = Vec::new();
        node.apply(|node| {
            if let LogicalPlan::TableScan(scan) = node
                && let Some(table) = source_as_provider(&scan.source)?.downcast_ref::<SegmentTable>()
            {
                tables.push(table.table().name.clone());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        tables.sort();
        Ok(Self { what, columns, tables, reason })
    }
}

/// Says why not everything is lowered, as the session wants to have it said.
fn report(refused: &[&Refusal], fallback: Fallback, query: Option<&Query>) -> DataFusionResult<()> {
    match (fallback, refused, query) {
        (_, [], _) | (Fallback::Silent, ..) => {}
        (Fallback::Error, [Refusal { reason, .. }, ..], _) => {
            let message = format!("no fused pipeline can run {reason}");
            let error = Error::new(ErrorKind::Invalid, message)
                .with_hint("SET exec.fallback = 'warn' lets DataFusion's operators run it");
            return Err(error.into());
        }
        (Fallback::Warn, refused, Some(query)) => {
            refused.iter().for_each(|Refusal { reason, .. }| query.notice(format!("not fused: {reason}")));
        }
        (Fallback::Warn, _, None) => {}
    }
    Ok(())
}
