//! Operators that do nothing to rows. Explanations leave them out.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

/// Runs a partition of the input: the same rows in the same order.
type Run = fn(&Arc<dyn ExecutionPlan>, usize, Arc<TaskContext>) -> Result<SendableRecordBatchStream>;

/// What an operator says of its rows: of their order, and of columns that are constant or equal.
#[derive(Clone, Copy, Debug)]
enum Says {
    AsItsInput,
    Nothing,
    /// Nothing, and no order is asked of what is below it.
    NotEvenOrder,
}

#[derive(Debug)]
struct Unseen {
    name: &'static str,
    input: Arc<dyn ExecutionPlan>,
    run: Run,
    says: Says,
    properties: Arc<PlanProperties>,
}

impl Unseen {
    fn over(name: &'static str, input: Arc<dyn ExecutionPlan>, run: Run, says: Says) -> Arc<dyn ExecutionPlan> {
        let properties = match says {
            Says::AsItsInput => Arc::clone(input.properties()),
            Says::Nothing | Says::NotEvenOrder => {
                let known = PlanProperties::clone(input.properties());
                Arc::new(known.with_eq_properties(EquivalenceProperties::new(input.schema())))
            }
        };
        Arc::new(Self { name, input, run, says, properties })
    }
}

/// An operator that has the rows of `input`, as `run` runs it.
pub(super) fn over(name: &'static str, input: Arc<dyn ExecutionPlan>, run: Run) -> Arc<dyn ExecutionPlan> {
    Unseen::over(name, input, run, Says::AsItsInput)
}

/// An operator that has the rows of `input`, and says nothing of them.
pub(super) fn silent(name: &'static str, input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    Unseen::over(name, input, |input, partition, context| input.execute(partition, context), Says::Nothing)
}

/// An operator that has the rows of `input`, and below which no sort is moved.
pub(super) fn barrier(name: &'static str, input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let run: Run = |input, partition, context| input.execute(partition, context);
    Unseen::over(name, input, run, Says::NotEvenOrder)
}

/// The input of an operator of this name, if it is one of these.
pub(super) fn input_of<'a>(plan: &'a Arc<dyn ExecutionPlan>, name: &str) -> Option<&'a Arc<dyn ExecutionPlan>> {
    plan.downcast_ref::<Unseen>().filter(|unseen| unseen.name == name).map(|unseen| &unseen.input)
}

/// Whether an operator is one of these.
pub(crate) fn is_unseen(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<Unseen>()
}

impl DisplayAs for Unseen {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl ExecutionPlan for Unseen {
    fn name(&self) -> &'static str {
        self.name
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![!matches!(self.says, Says::NotEvenOrder)]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match children.pop() {
            Some(input) => Ok(Self::over(self.name, input, self.run, self.says)),
            None => internal_err!("{} has no input", self.name),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        (self.run)(&self.input, partition, context)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("one input has {} statistics", inputs.len()),
        }
    }
}
