//! What was lowered of a plan that is asked for again and again: bound to each statement anew, which takes a small part of the
//! time that lowering does.
//!
//! - Kept is what no statement has a part in: bytes of what is kept are counted nowhere, and it has no session's state.
//! - Only what the same settings would give again is handed out. That it is over the same tables is up to whoever keeps the plan.
//! - A plan that is asked once is not kept lowered; nor is one whose sources can be nobody else's ([`Source::for_ledger`]), or
//!   which has many texts with it.
//!
//! [`Source::for_ledger`]: onehop_pipeline::Source::for_ledger

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Extension, LogicalPlan};
use onehop_io::Ledger;

use super::LoweredPlan;
use super::node::{Fused, FusedNode};
use crate::fusing::Fusing;
use crate::query::Query;

/// Dictionaries of plans that are kept have no more texts than this.
const MOST_TEXTS: usize = 1 << 16;

/// The last lowering of a plan.
#[derive(Debug, Default)]
pub(super) struct KeptLowering {
    was_asked: AtomicBool,
    kept: Mutex<Option<Arc<Kept>>>,
}

#[derive(Debug)]
struct Kept {
    fusing: Fusing,
    lowered: LoweredPlan,
}

/// What a statement has a part in.
#[derive(Debug, Default)]
pub(super) struct Binding {
    pub state: Option<Arc<SessionState>>,
    pub ledger: Arc<Ledger>,
}

impl Binding {
    /// That of the statement whose state it is.
    pub fn to(state: &Arc<SessionState>) -> Self {
        let query = state.config().get_extension::<Query>();
        let ledger = query.map_or_else(Arc::default, |query| Arc::clone(query.shared_ledger()));
        Self { state: Some(Arc::clone(state)), ledger }
    }
}

impl KeptLowering {
    /// What is kept, for a statement.
    pub fn find(&self, fusing: &Fusing, state: &Arc<SessionState>) -> Result<Option<LoweredPlan>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(kept) = kept.filter(|kept| kept.fusing.lowers_as(fusing)) else { return Ok(None) };
        let LoweredPlan { plan, fused_subtrees, refused } = &kept.lowered;
        let plan = bound(plan, &Binding::to(state))?;
        Ok(Some(LoweredPlan { plan, fused_subtrees: *fused_subtrees, refused: refused.clone() }))
    }

    /// From the second time on.
    pub fn keep(&self, fusing: &Fusing, lowered: &LoweredPlan) -> Result<()> {
        if !self.was_asked.swap(true, Relaxed) || !may_be_kept(&lowered.plan)? {
            return Ok(());
        }
        let plan = unbound(&lowered.plan)?;
        let lowered = LoweredPlan { plan, fused_subtrees: lowered.fused_subtrees, refused: lowered.refused.clone() };
        let kept = Arc::new(Kept { fusing: fusing.clone(), lowered });
        let before = self.kept.lock().unwrap_or_else(PoisonError::into_inner).replace(kept);
        // Dropped without the lock.
        drop(before);
        Ok(())
    }
}

/// A plan whose fused subtrees are a statement's.
pub(super) fn bound(plan: &LogicalPlan, to: &Binding) -> Result<LogicalPlan> {
    with_each(plan, &|fused| fused.bound(to))
}

/// A plan whose fused subtrees are nobody's, nor are those that they were made of.
fn unbound(plan: &LogicalPlan) -> Result<LogicalPlan> {
    let nobody = Binding::default();
    with_each(plan, &|fused| {
        let unfused = unbound(&fused.unfused).ok()?;
        Some(Fused { unfused: Arc::new(unfused), ..fused.bound(&nobody)? })
    })
}

fn with_each(plan: &LogicalPlan, change: &dyn Fn(&Fused) -> Option<Fused>) -> Result<LogicalPlan> {
    let changed = plan.clone().transform_down_with_subqueries(|node| {
        let Some(fused) = fused_node(&node) else { return Ok(Transformed::no(node)) };
        // What cannot be changed is as it was: that of the statement that made it, which is asked before.
        let Some(changed) = change(fused.fused()) else { return Ok(Transformed::no(node)) };
        let node = Arc::new(fused.with_fused(changed));
        Ok(Transformed::yes(LogicalPlan::Extension(Extension { node })))
    });
    Ok(changed?.data)
}

fn may_be_kept(plan: &LogicalPlan) -> Result<bool> {
    let (nobody, mut may_be, mut texts) = (Binding::default(), true, 0);
    plan.apply_with_subqueries(|node| {
        if let Some(node) = fused_node(node) {
            let fused = node.fused();
            let columns = fused.execution.sources().iter().flat_map(|source| source.columns());
            texts += columns.filter_map(|column| Some(column.dictionary.as_ref()?.len())).sum::<usize>();
            may_be &= texts <= MOST_TEXTS && fused.bound(&nobody).is_some() && may_be_kept(&fused.unfused)?;
        }
        Ok(if may_be { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(may_be)
}

fn fused_node(plan: &LogicalPlan) -> Option<&FusedNode> {
    let LogicalPlan::Extension(Extension { node }) = plan else { return None };
    node.as_any().downcast_ref()
}
