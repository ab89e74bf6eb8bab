//! From DataFusion's optimised plan to fused pipelines.
//!
//! The plan is searched from below for subtrees that pipelines can run: an aggregate over filters, projections and joins
//! of our own tables, and of whatever else, which then is computed first. Such a subtree becomes one [`FusedNode`]; all
//! around it stays with DataFusion. For every aggregate that stays there too, the reason is kept.
//!
//! ```text
//! LogicalPlan ─ graph ─► relations, conditions over their columns
//!             ─ relation ─► tables, and plans that are computed first
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
mod input;
mod memory;
mod node;
mod relation;
mod sql;
mod text;
mod tree;
mod words;

use std::cell::Cell;
use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Extension, LogicalPlan};

use onehop_segment::BlockCache;

pub(crate) use self::exec::{DerivedRan, FusedExec, PipelineRan};
pub(crate) use self::input::{DerivedInput, Input};
use self::node::FusedNode;
pub(crate) use self::node::{Fused, FusedPlanner};

use crate::query::Query;
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
    // How many aggregates the walk is within: joins belong to them.
    let within = Cell::new(0usize);
    let down = |node: LogicalPlan| {
        within.set(within.get() + usize::from(matches!(node, LogicalPlan::Aggregate(_))));
        Ok(Transformed::no(node))
    };
    // From below: what an aggregate is computed of may have become a fused subtree before.
    let up = |node: LogicalPlan| {
        let LogicalPlan::Aggregate(aggregate) = &node else {
            if matches!(node, LogicalPlan::Join(_)) && within.get() == 0 {
                let refusal = Refusal::of(&node, "a join that no aggregate is computed of".into())?;
                refused.extend(Some(refusal).filter(|refusal| !refusal.tables.is_empty()));
            }
            return Ok(Transformed::no(node));
        };
        within.set(within.get() - 1);
        match FusedNode::of_aggregate(aggregate, state, &fusing, query.as_ref(), &mut refused) {
            Ok(fused) => {
                fused_subtrees += 1;
                Ok(Transformed::yes(LogicalPlan::Extension(Extension { node: Arc::new(fused) })))
            }
            Err(Failure::Reason(reason)) => {
                refused.push(Refusal::of(&node, reason)?);
                Ok(Transformed::no(node))
            }
            Err(Failure::Error(e)) => Err(e),
        }
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
        Ok(Self { what, columns, tables: relation::tables_below(node, true)?, reason })
    }
}

/// The error of a session that wants nothing but pipelines.
fn cannot_run(reason: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("no fused pipeline can run {reason}"))
        .with_hint("SET exec.fallback = 'warn' lets DataFusion's operators run it")
}

/// Says why not everything is lowered, as the session wants to have it said.
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
