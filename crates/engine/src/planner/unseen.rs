//! Operators that do not change rows. Explanations omit them.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::Stream;

/// A function that runs a partition of the input, with the same rows in the same order.
type Run = dyn Fn(&Arc<dyn ExecutionPlan>, usize, Arc<TaskContext>) -> Result<SendableRecordBatchStream> + Send + Sync;

/// A [`Run`] without captured state.
type RunPlain = fn(&Arc<dyn ExecutionPlan>, usize, Arc<TaskContext>) -> Result<SendableRecordBatchStream>;

/// The properties that an operator declares: the order of its rows, and columns that are constant
/// or equal.
#[derive(Clone, Copy, Debug)]
enum Says {
    AsItsInput,
    Nothing,
    /// No properties, and no order is required of its input.
    NotEvenOrder,
}

struct Unseen {
    name: &'static str,
    input: Arc<dyn ExecutionPlan>,
    run: Arc<Run>,
    says: Says,
    properties: Arc<PlanProperties>,
}

impl Unseen {
    fn over(name: &'static str, input: Arc<dyn ExecutionPlan>, run: Arc<Run>, says: Says) -> Arc<dyn ExecutionPlan> {
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

/// Returns an operator with the rows of `input`, which `run` executes.
pub(super) fn over<R>(name: &'static str, input: Arc<dyn ExecutionPlan>, run: R) -> Arc<dyn ExecutionPlan>
where
    R: Fn(&Arc<dyn ExecutionPlan>, usize, Arc<TaskContext>) -> Result<SendableRecordBatchStream>,
    R: Send + Sync + 'static,
{
    Unseen::over(name, input, Arc::new(run), Says::AsItsInput)
}

/// Inserts an operator that executes `run` below each operator for which `is_above` holds.
pub(super) fn below(
    plan: Arc<dyn ExecutionPlan>,
    is_above: impl Fn(&Arc<dyn ExecutionPlan>) -> bool,
    name: &'static str,
    run: RunPlain,
) -> Result<Arc<dyn ExecutionPlan>> {
    let changed = plan.transform_up(|node| {
        if !is_above(&node) {
            return Ok(Transformed::no(node));
        }
        let inputs = node.children().into_iter().map(|input| over(name, Arc::clone(input), run)).collect();
        Ok(Transformed::yes(replace_children_if_necessary(node, inputs)?))
    });
    Ok(changed?.data)
}

/// Runs a partition of the input, and transforms its stream of batches by `change`.
pub(super) fn changed<S>(
    input: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
    change: impl FnOnce(SendableRecordBatchStream) -> S,
) -> Result<SendableRecordBatchStream>
where
    S: Stream<Item = Result<RecordBatch>> + Send + 'static,
{
    let batches = input.execute(partition, context)?;
    Ok(Box::pin(RecordBatchStreamAdapter::new(batches.schema(), change(batches))))
}

/// Returns an operator with the rows of `input` that declares no properties.
pub(super) fn silent(name: &'static str, input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    Unseen::over(name, input, Arc::new(as_it_is), Says::Nothing)
}

/// Returns an operator with the rows of `input` below which no sort is moved.
pub(super) fn barrier(name: &'static str, input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    Unseen::over(name, input, Arc::new(as_it_is), Says::NotEvenOrder)
}

fn as_it_is(
    input: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    input.execute(partition, context)
}

/// Returns the input of an operator of this name, if `plan` is one of these operators.
pub(super) fn input_of<'a>(plan: &'a Arc<dyn ExecutionPlan>, name: &str) -> Option<&'a Arc<dyn ExecutionPlan>> {
    plan.downcast_ref::<Unseen>().filter(|unseen| unseen.name == name).map(|unseen| &unseen.input)
}

/// Returns whether an operator is one of these.
pub(crate) fn is_unseen(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<Unseen>()
}

impl fmt::Debug for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.name).field("input", &self.input).field("says", &self.says).finish()
    }
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
            Some(input) => Ok(Self::over(self.name, input, Arc::clone(&self.run), self.says)),
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
