//! Fits models on a device: it sums the rows of a table, pass after pass, and returns only the
//! sums.
//!
//! ```text
//! SELECT features, label FROM t ─ graph, tree, expr ─► a program that collects
//!     ─ place ─► a device ◄─ Fit: the sums of a pass ─► sums
//! ```
//! The device is chosen when the statement is planned, as for any fused subtree. `exec.fallback`
//! determines the reaction to a device that cannot run it. Rows that are joined, or come from
//! elsewhere than tables of the database, are summed on the CPU.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use onehop_pipeline::backend::{Backend, Control, DeviceRan, Refusal};
use onehop_pipeline::fit::{Fit, Parts, Sums};
use onehop_pipeline::ir::Sink;
use onehop_pipeline::{Budget, Error as PipelineError, Expr as PipelineExpr, Result as PipelineResult};

use super::device::bring;
use super::dictionaries::Dictionaries;
use super::exec::StopOnDrop;
use super::expr::Translator;
use super::graph::Graph;
use super::node::{Fused, FusedNode, columns_of, ledger_of};
use super::tree::Planner;
use super::{Failure, Lowered, Optimized, because};
use crate::fusing::Fusing;
use crate::place::{self, Placement};
use crate::query::Query;
use crate::settings::{ExecMode, Fallback, GpuMode};
use crate::task::spawn_blocking;
use crate::{Error, Result, planner};

/// Rows that a device sums.
pub(crate) struct DeviceFit {
    fused: Arc<Fused>,
    backend: Arc<dyn Backend>,
    fit: Arc<dyn Fit>,
}

impl fmt::Debug for DeviceFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceFit").field("device", &self.backend.name()).finish_non_exhaustive()
    }
}

/// The outcome of a fit on a device.
pub(crate) enum Fitted<T> {
    /// The learner after the last pass, and the statistics of the run.
    Done(T, Box<DeviceRan>),
    /// The device failed, and the CPU may run the fit.
    Failed,
}

/// Plans the sums over a plan's rows, features and then a label, on a device. Returns `None` if no
/// device runs it.
///
/// # Errors
/// The errors of planning; [`ErrorKind::Unmet`](crate::ErrorKind::Unmet) if a GPU is required and
/// not available.
pub(crate) fn plan_fit(
    plan: &LogicalPlan,
    state: &SessionState,
    query: &Arc<Query>,
    sums: &Sums,
) -> Result<Option<DeviceFit>> {
    let fusing = match state.config().get_extension::<Fusing>() {
        Some(fusing) if fusing.mode == ExecMode::Fused && fusing.placing.may_use_devices() => fusing,
        _ => return Ok(None),
    };
    let refused = |reason: String| {
        let placement = Placement::refused(reason);
        place::report(&placement, fusing.placing.mode, fusing.fallback, Some(&**query)).map(|()| None)
    };
    let state = &Arc::new(state.clone());
    let optimized = Optimized::new(planner::optimize(state, plan)?);
    let fused = match fused_fit(&optimized.plan, state, &fusing, query) {
        Ok(fused) => fused,
        // The refusal is reported only if a GPU is required.
        Err(Failure::Reason(_)) if fusing.placing.mode != GpuMode::Require => return Ok(None),
        Err(Failure::Reason(reason)) => return refused(format!("no GPU learns from {reason}")),
        Err(Failure::Error(e)) => return Err(e.into()),
    };
    let threads = state.config().target_partitions();
    let Some(placed) = fused.place(threads, Some(&**query))?.device else { return Ok(None) };
    match placed.backend.prepare_fit(&fused.execution, &placed.hints, sums) {
        Ok(fit) => Ok(Some(DeviceFit { fused, backend: Arc::clone(&placed.backend), fit })),
        Err(Refusal(reason)) => refused(format!("{} cannot run {reason}", placed.backend.name())),
    }
}

/// Builds a program that collects the rows.
fn fused_fit(
    plan: &LogicalPlan,
    state: &Arc<SessionState>,
    fusing: &Fusing,
    query: &Arc<Query>,
) -> Lowered<Arc<Fused>> {
    let mut graph = Graph::new("rows to learn from");
    let outputs = graph.add(plan)?;
    graph.check_worth()?;
    match graph.relations.as_slice() {
        [relation] if relation.derived().is_none() => {}
        [_] => return because("rows that are computed first"),
        _ => return because("a join"),
    }
    let columns = columns_of(plan, &outputs)?;
    let types: Vec<&DataType> = plan.schema().fields().iter().map(|field| field.data_type()).collect();
    let none = Dictionaries::none();
    let planner = Planner::new(&graph, state, Arc::clone(&fusing.cache), ledger_of(Some(query)), &none)?;
    let planned = planner.plan(&columns, |translator| {
        let numbers = columns.iter().zip(&types).map(|(column, data_type)| number(column, data_type, translator));
        Ok(Sink::Collect { columns: numbers.collect::<Lowered<Vec<_>>>()? })
    })?;
    let finish = Vec::new();
    let words = (Vec::new(), graph.all_sql(&columns));
    let node = FusedNode::of_planned(&graph, planned, words, finish, plan.clone(), state, fusing, &mut Vec::new())?;
    Ok(node.into_fused())
}

/// Translates a column to a number: decimals are stored as integers.
fn number(
    column: &datafusion::logical_expr::Expr,
    data_type: &DataType,
    translator: &Translator<'_>,
) -> Lowered<PipelineExpr> {
    let expr = translator.translate(column)?;
    match data_type {
        DataType::Decimal128(_, scale) => match u8::try_from(*scale) {
            Ok(scale) => Ok(PipelineExpr::ToDouble { expr: Box::new(expr), scale }),
            Err(_) => because("decimals with a negative scale"),
        },
        _ => Ok(expr),
    }
}

impl DeviceFit {
    /// Returns the name of the device in statements.
    pub fn device(&self) -> &str {
        self.backend.name()
    }

    /// Runs passes until `next` returns no more sums. `next` gets the result of the previous pass.
    ///
    /// # Errors
    /// The errors of the data and of `next`; those of the device, if `exec.fallback` is `error`.
    pub async fn run<T: Send + 'static>(
        &self,
        query: &Arc<Query>,
        mut learner: T,
        next: fn(&mut T, Option<&Parts>) -> PipelineResult<Option<Sums>>,
    ) -> Result<Fitted<T>> {
        let stop = StopOnDrop::default();
        let (fused, backend, fit) = (Arc::clone(&self.fused), Arc::clone(&self.backend), Arc::clone(&self.fit));
        let (cancelled, of) = (Arc::clone(&stop.0), Arc::clone(query));
        let task = spawn_blocking(move || {
            bring(&fused, &backend, Some(&*of), &cancelled);
            let ledgers: Vec<_> = fused.scans().map(|scan| Arc::clone(&scan.ledger)).collect();
            let rows: u64 = fused.scans().map(|scan| scan.plan.rows() as u64).sum();
            let did_rows = |rows| of.did_rows(rows);
            let budget = Budget::from(0);
            let control = Control {
                cancelled: &cancelled,
                counts_steps: false,
                ledgers: &ledgers,
                did_rows: &did_rows,
                // Nothing is merged.
                budget: &budget,
            };
            let mut pass = |last: Option<&Parts>| {
                if last.is_some() {
                    of.did_rows(rows);
                }
                let wanted = next(&mut learner, last)?;
                if wanted.is_some() {
                    of.expect_rows(rows);
                }
                Ok(wanted)
            };
            let ran = fit.run(&control, &mut pass);
            (ran, learner)
        });
        let (ran, learner) =
            task.await.map_err(|e| Error::from(datafusion::common::DataFusionError::ExecutionJoin(Box::new(e))))?;
        match ran {
            Ok(ran) => {
                query.ran_on(&[self.device()]);
                Ok(Fitted::Done(learner, Box::new(ran)))
            }
            Err(e) => self.give_up(e, query),
        }
    }

    /// Handles an error: fails, or lets the CPU run the fit.
    fn give_up<T>(&self, e: PipelineError, query: &Query) -> Result<Fitted<T>> {
        let device = self.device();
        let why = match &e {
            PipelineError::Device { .. } => e.to_string(),
            PipelineError::Memory { .. } => format!("{device}: {e}"),
            PipelineError::Unsupported(reason) => format!("{device} cannot run {reason}"),
            // The CPU would return the same error.
            _ => return Err(e.into()),
        };
        match self.fused.fallback {
            Fallback::Error => {
                let error = Error::new(Error::from(e).kind(), why);
                Err(error
                    .with_hint("SET exec.fallback = 'warn' lets the CPU do it, SET gpu.mode = 'off' does it there"))
            }
            Fallback::Warn => {
                query.notice(format!("not on a GPU after all: {why}; the CPU learns from the beginning"));
                Ok(Fitted::Failed)
            }
            Fallback::Silent => Ok(Fitted::Failed),
        }
    }
}
