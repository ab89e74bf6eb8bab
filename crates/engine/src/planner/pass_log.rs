//! Log of the passes that one statement went through: the time of each, and the plans that it
//! changed.
//!
//! EXPLAIN ANALYZE and EXPLAIN VERBOSE put a [`PassLog`] into the options of the statement's state.
//! A statement without one pays for a lookup per physical rule.
//!
//! In a debug build every plan that leaves a pass of the analyzer is checked ([`Checked`]);
//! DataFusion does the same for its optimizer and for operators.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use datafusion::common::Result as DataFusionResult;
use datafusion::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{InvariantLevel, LogicalPlan};
use datafusion::physical_optimizer::{PhysicalOptimizerContext, PhysicalOptimizerRule};
use datafusion::physical_plan::{ExecutionPlan, displayable};

use super::passes::PhysicalPass;
use crate::explanation::{PassRun, PlanChange};

/// The passes of one statement, in the order in which they ran. Clones share one log.
#[derive(Clone, Debug)]
pub(crate) struct PassLog {
    runs: Arc<Mutex<Vec<PassRun>>>,
    /// True if the plan after each pass that changed it is kept.
    keeps_plans: bool,
}

impl PassLog {
    /// Creates an empty log.
    pub fn new(keeps_plans: bool) -> Self {
        Self { runs: Arc::default(), keeps_plans }
    }

    /// Puts the log into the options of a state.
    pub fn bind(&self, state: &mut SessionState) {
        state.config_mut().options_mut().extensions.insert(self.clone());
    }

    /// Returns the log in the options, if there is one.
    fn of(options: &ConfigOptions) -> Option<&Self> {
        options.extensions.get()
    }

    /// Returns the runs so far.
    pub fn runs(&self) -> Vec<PassRun> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, stage: &'static str, pass: &str, time: Duration, change: Option<PlanChange>) {
        let run = PassRun { stage, pass: pass.to_string(), time, change };
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    }
}

// DataFusion's extensions are options that SET can change. The log has none of these.
impl ConfigExtension for PassLog {
    const PREFIX: &'static str = "onehop_pass_log";
}

impl ExtensionOptions for PassLog {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, _: &str) -> DataFusionResult<()> {
        datafusion::common::config_err!("there is no option {key}")
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        Vec::new()
    }
}

/// Runs the analyzer over a plan.
///
/// # Errors
/// Those of the passes. In a debug build, an internal error that names the first pass that left a
/// plan without its invariants.
pub(super) fn analyzed(state: &SessionState, plan: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    let mut logged = Logged::new("analyzer", state, &plan);
    let mut checked = Checked::new(&plan);
    let analyzed = state.analyzer().execute_and_check(plan, state.config_options(), |plan, rule| {
        logged.ran(rule.name(), plan);
        checked.ran(rule.name(), plan);
    });
    checked.broken?;
    analyzed
}

/// Runs the analyzer and the optimizer over a plan.
///
/// # Errors
/// Those of the passes.
pub(super) fn optimized(state: &SessionState, plan: &LogicalPlan) -> DataFusionResult<LogicalPlan> {
    // DataFusion shows the plan after each of its rules.
    if let LogicalPlan::Explain(_) = plan {
        return state.optimize(plan);
    }
    let plan = analyzed(state, plan.clone())?;
    let mut logged = Logged::new("optimizer", state, &plan);
    state.optimizer().optimize(plan, state, |plan, rule| logged.ran(rule.name(), plan))
}

/// Adds passes of the analyzer or the optimizer to the log, if there is one.
struct Logged<'a> {
    stage: &'static str,
    log: Option<&'a PassLog>,
    /// The plan before the next pass, if plans are kept.
    before: Option<LogicalPlan>,
    began: Instant,
}

impl<'a> Logged<'a> {
    fn new(stage: &'static str, state: &'a SessionState, plan: &LogicalPlan) -> Self {
        let log = PassLog::of(state.config_options());
        let before = log.filter(|log| log.keeps_plans).map(|_| plan.clone());
        Self { stage, log, before, began: Instant::now() }
    }

    fn ran(&mut self, pass: &str, plan: &LogicalPlan) {
        if let Some(log) = self.log {
            let time = self.began.elapsed();
            let changed = self.before.as_ref().filter(|before| *before != plan);
            let text = |plan: &LogicalPlan| plan.display_indent().to_string();
            let change = changed.map(|before| PlanChange { before: text(before), after: text(plan) });
            if change.is_some() {
                self.before = Some(plan.clone());
            }
            log.add(self.stage, pass, time, change);
            // The comparison is not the next pass's time.
            self.began = Instant::now();
        }
    }
}

/// Finds the first pass of the analyzer that leaves a plan without its invariants, in a debug
/// build.
struct Checked {
    columns: usize,
    broken: DataFusionResult<()>,
}

impl Checked {
    fn new(plan: &LogicalPlan) -> Self {
        Self { columns: plan.schema().fields().len(), broken: Ok(()) }
    }

    fn ran(&mut self, pass: &str, plan: &LogicalPlan) {
        if !cfg!(debug_assertions) || self.broken.is_err() {
            return;
        }
        let columns = plan.schema().fields().len();
        self.broken = match plan.check_invariants(InvariantLevel::Always) {
            Ok(()) if columns == self.columns => Ok(()),
            Ok(()) => {
                datafusion::common::internal_err!("the pass {pass} made {columns} columns of a plan's {}", self.columns)
            }
            Err(error) => Err(error.context(format!("the pass {pass} left a plan without its invariants"))),
        };
    }
}

/// Returns the pass, which adds itself to the statement's log.
pub(super) fn logged(pass: PhysicalPass) -> PhysicalPass {
    Arc::new(LoggedPass(pass))
}

#[derive(Debug)]
struct LoggedPass(PhysicalPass);

impl LoggedPass {
    fn run(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        options: &ConfigOptions,
        pass: impl FnOnce(Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let Some(log) = PassLog::of(options) else { return pass(plan) };
        let text = |plan: &Arc<dyn ExecutionPlan>| {
            log.keeps_plans.then(|| displayable(plan.as_ref()).indent(true).to_string())
        };
        let before = text(&plan);
        let began = Instant::now();
        let after = pass(plan)?;
        let time = began.elapsed();
        let change = before.zip(text(&after)).filter(|(before, after)| before != after);
        log.add("physical", self.0.name(), time, change.map(|(before, after)| PlanChange { before, after }));
        Ok(after)
    }
}

impl PhysicalOptimizerRule for LoggedPass {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        options: &ConfigOptions,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        self.run(plan, options, |plan| self.0.optimize(plan, options))
    }

    fn optimize_with_context(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: &dyn PhysicalOptimizerContext,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        self.run(plan, context.config_options(), |plan| self.0.optimize_with_context(plan, context))
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}
