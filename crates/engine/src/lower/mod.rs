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
//!             ─ aggregate ─► functions, and how their results become DataFusion's types
//!             ─ node  ─► in the plan; ─ exec ─► running
//! ```

mod aggregate;
mod exec;
mod expr;
mod graph;
mod node;
mod sql;
mod text;
mod tree;

use std::sync::Arc;

use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Extension, LogicalPlan};

use onehop_segment::BlockCache;

use self::node::FusedNode;
pub(crate) use self::node::FusedPlanner;
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
    let mut reasons = Vec::new();
    let lowered = plan.clone().transform_down_with_subqueries(|node| {
        let LogicalPlan::Aggregate(aggregate) = &node else {
            if matches!(node, LogicalPlan::Join(_)) && reads_own_table(&node)? {
                reasons.push("a join that no aggregate is computed of".into());
            }
            return Ok(Transformed::no(node));
        };
        match FusedNode::of_aggregate(aggregate, state, &fusing, query.as_ref()) {
            Ok(fused) => {
                let node = LogicalPlan::Extension(Extension { node: Arc::new(fused) });
                Ok(Transformed::new(node, true, TreeNodeRecursion::Jump))
            }
            Err(Failure::Reason(reason)) => {
                if reads_own_table(&node)? {
                    reasons.push(reason);
                }
                Ok(Transformed::no(node))
            }
            Err(Failure::Error(e)) => Err(e),
        }
    })?;
    report(&reasons, fusing.fallback, query.as_deref())?;
    Ok(lowered.data)
}

/// Says why not everything is lowered, as the session wants to have it said.
fn report(reasons: &[String], fallback: Fallback, query: Option<&Query>) -> DataFusionResult<()> {
    match (fallback, reasons, query) {
        (_, [], _) | (Fallback::Silent, ..) => {}
        (Fallback::Error, [reason, ..], _) => {
            let message = format!("no fused pipeline can run {reason}");
            let error = Error::new(ErrorKind::Invalid, message)
                .with_hint("SET exec.fallback = 'warn' lets DataFusion's operators run it");
            return Err(error.into());
        }
        (Fallback::Warn, reasons, Some(query)) => {
            reasons.iter().for_each(|reason| query.notice(format!("not fused: {reason}")));
        }
        (Fallback::Warn, _, None) => {}
    }
    Ok(())
}

/// Whether some scan below is one of a table of this database.
fn reads_own_table(plan: &LogicalPlan) -> DataFusionResult<bool> {
    plan.exists(|node| match node {
        LogicalPlan::TableScan(scan) => Ok(source_as_provider(&scan.source)?.is::<SegmentTable>()),
        _ => Ok(false),
    })
}
