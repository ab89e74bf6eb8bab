//! Caches the lowering of a plan that runs repeatedly. Binding it to another statement takes a
//! small part of the time of lowering.
//!
//! - The cached form belongs to no statement: it has no session's state, and a ledger that counts
//!   nowhere.
//! - It is reused only if the settings would produce the same. The owner of the plan ensures that
//!   the tables are the same.
//! - A plan that runs once is not cached. Neither is one whose sources cannot be rebound
//!   ([`Source::for_ledger`]), or whose dictionaries have many entries.
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

/// The maximum number of dictionary entries of a cached plan.
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

/// The parts of a lowering that belong to a statement.
#[derive(Debug, Default)]
pub(super) struct Binding {
    pub state: Option<Arc<SessionState>>,
    pub ledger: Arc<Ledger>,
}

impl Binding {
    /// Returns the binding of the statement with this state.
    pub fn to(state: &Arc<SessionState>) -> Self {
        let query = state.config().get_extension::<Query>();
        let ledger = query.map_or_else(Arc::default, |query| Arc::clone(query.shared_ledger()));
        Self { state: Some(Arc::clone(state)), ledger }
    }
}

impl KeptLowering {
    /// Returns the cached lowering, bound to a statement.
    pub fn find(&self, fusing: &Fusing, state: &Arc<SessionState>) -> Result<Option<LoweredPlan>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(kept) = kept.filter(|kept| kept.fusing.lowers_as(fusing)) else { return Ok(None) };
        let LoweredPlan { plan, fused_subtrees, refused } = &kept.lowered;
        let plan = bound(plan, &Binding::to(state))?;
        Ok(Some(LoweredPlan { plan, fused_subtrees: *fused_subtrees, refused: refused.clone() }))
    }

    /// Caches a lowering, from the second call on.
    pub fn keep(&self, fusing: &Fusing, lowered: &LoweredPlan) -> Result<()> {
        if !self.was_asked.swap(true, Relaxed) || !may_be_kept(&lowered.plan)? {
            return Ok(());
        }
        let plan = unbound(&lowered.plan)?;
        let lowered = LoweredPlan { plan, fused_subtrees: lowered.fused_subtrees, refused: lowered.refused.clone() };
        let kept = Arc::new(Kept { fusing: fusing.clone(), lowered });
        let before = self.kept.lock().unwrap_or_else(PoisonError::into_inner).replace(kept);
        // Dropped outside the lock.
        drop(before);
        Ok(())
    }
}

/// Returns a plan whose fused subtrees belong to a statement.
pub(super) fn bound(plan: &LogicalPlan, to: &Binding) -> Result<LogicalPlan> {
    with_each(plan, &|fused| fused.bound(to))
}

/// Returns a plan whose fused subtrees, and their unfused plans, belong to no statement.
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
        // A subtree that cannot be rebound is unchanged. `may_be_kept` excludes these.
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
