//! What is kept of a statement's plan for somebody who watches: the plan itself while it runs, and what came of it afterwards.
//!
//! A plan holds on to files, memory, and what a device has made ready. Nothing of it outlives its statement.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use datafusion::physical_plan::ExecutionPlan;

use crate::explanation::{self, Explanation, Moment, Node, Refusal};

/// Builds the tree of a plan: `explain::node_of`.
pub(crate) type NodeOf = fn(&Arc<dyn ExecutionPlan>, &[Refusal], Moment) -> Node;

/// Live profile of one statement.
#[derive(Debug)]
pub(crate) struct Watched {
    node_of: NodeOf,
    course: Mutex<Course>,
    answer_bytes: AtomicU64,
}

#[derive(Debug, Default)]
enum Course {
    #[default]
    Unplanned,
    Running(Arc<dyn ExecutionPlan>),
    /// `None` if it came to no plan.
    Ended(Option<Arc<Explanation>>),
}

impl Watched {
    /// A profile whose plan is explained by `node_of`.
    pub fn new(node_of: NodeOf) -> Self {
        Self { node_of, course: Mutex::default(), answer_bytes: AtomicU64::new(0) }
    }

    /// Explains the plan.
    pub fn node_of(&self, plan: &Arc<dyn ExecutionPlan>, refused: &[Refusal], moment: Moment) -> Node {
        (self.node_of)(plan, refused, moment)
    }

    fn course(&self) -> MutexGuard<'_, Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A plan is about to run. Of several, as models and changes have, the first is what the others are a part of.
    pub fn planned(&self, plan: &Arc<dyn ExecutionPlan>) {
        let mut course = self.course();
        if matches!(*course, Course::Unplanned) {
            *course = Course::Running(Arc::clone(plan));
        }
    }

    /// Rows of the answer.
    pub fn answered(&self, batch: &RecordBatch) {
        self.answer_bytes.fetch_add(explanation::answer_bytes(batch), Relaxed);
    }

    pub fn answer_bytes(&self) -> u64 {
        self.answer_bytes.load(Relaxed)
    }

    /// The statement is over.
    pub fn end(&self, explained: impl FnOnce(&Arc<dyn ExecutionPlan>, Moment) -> Explanation) {
        let mut course = self.course();
        let explanation = match &*course {
            Course::Running(plan) => Some(Arc::new(explained(plan, Moment::Ended))),
            Course::Unplanned | Course::Ended(_) => None,
        };
        let before = std::mem::replace(&mut *course, Course::Ended(explanation));
        // Who asks does not wait for what goes with a plan.
        drop(course);
        drop(before);
    }

    /// What it does, or did.
    pub fn explanation(
        &self,
        explained: impl FnOnce(&Arc<dyn ExecutionPlan>, Moment) -> Explanation,
    ) -> Option<Arc<Explanation>> {
        // Without the lock: a plan that is told of takes as long as it is large.
        let plan = match &*self.course() {
            Course::Running(plan) => Arc::clone(plan),
            Course::Unplanned => return None,
            Course::Ended(explanation) => return explanation.clone(),
        };
        Some(Arc::new(explained(&plan, Moment::Running)))
    }
}
