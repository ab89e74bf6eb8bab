//! Plans operators from an optimized plan: subtrees that pipelines support are lowered to them, and
//! DataFusion plans the rest.
//!
//! [`configure`] makes DataFusion's sessions plan in this way, with the passes of [`planner`].

pub(crate) mod in_order;
mod nothing_to_optimize;

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session as DataFusionSession;
use datafusion::common::Result as DataFusionResult;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::SessionConfig;

use crate::lower::{FusedPlanner, Optimized, lower};
use crate::planner::DisabledPasses;
use crate::query::Query;
use crate::{Result, planner};

/// Adds our rules, functions and options to DataFusion's defaults.
///
/// # Errors
/// DataFusion's rules are not those that the planner knows.
pub(crate) fn configure(
    config: SessionConfig,
    builder: SessionStateBuilder,
    disabled: &DisabledPasses,
) -> Result<SessionStateBuilder> {
    let builder = planner::configure(config, builder, disabled, nothing_to_optimize::left_out)?;
    Ok(builder.with_query_planner(Arc::new(Planner)))
}

/// Plans the operators of an optimized plan, ready to run for `query`. Errors refer to `asked`, the
/// plan before optimization.
pub(crate) async fn physical_plan_of_optimized(
    state: &Arc<SessionState>,
    optimized: &Optimized,
    asked: &LogicalPlan,
    query: &Arc<Query>,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let operators = operators_of_optimized(state, optimized).await;
    let operators = operators.map_err(|e| planner::explained_subqueries(e, asked))?;
    planner::runnable(in_order::ordered(operators, state)?, query)
}

/// Plans the operators of a plan, ready to run for `query`.
pub(crate) async fn physical_plan(
    state: &SessionState,
    plan: &LogicalPlan,
    query: &Arc<Query>,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    planner::runnable(in_order::ordered(operators(state, plan).await?, state)?, query)
}

async fn operators_of_optimized(
    state: &Arc<SessionState>,
    optimized: &Optimized,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    planner::check_plan(&optimized.plan)?;
    let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(FusedPlanner)]);
    let lowered = lower(optimized, state)?;
    planner::with_bounded_batches(planner::guarded(lowered)?, state, &planner).await
}

/// Plans DataFusion's operators of a plan, with the subtrees that pipelines support lowered to
/// them.
pub(crate) async fn operators(state: &SessionState, plan: &LogicalPlan) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let optimized = planner::optimize_folding(state, plan)?;
    let operators = state.query_planner().create_physical_plan(&optimized, state).await;
    operators.map_err(|e| planner::explained_subqueries(e, plan))
}

/// DataFusion's planner for plans that are not too deep to run. Subtrees that pipelines support are
/// lowered to them.
#[derive(Debug)]
struct Planner;

#[async_trait]
impl QueryPlanner for Planner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn DataFusionSession,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        if let Some(state) = session.as_any().downcast_ref::<SessionState>() {
            return operators_of_optimized(&Arc::new(state.clone()), &Optimized::new(plan.clone())).await;
        }
        planner::check_plan(plan)?;
        DefaultPhysicalPlanner::default().create_physical_plan(plan, session).await
    }
}
