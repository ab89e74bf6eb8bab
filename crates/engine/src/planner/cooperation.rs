//! Makes joins that amplify their input yield to the runtime and stop on cancellation.
//!
//! DataFusion counts the batches that leave sources and yields after a fixed number. A join of two
//! small tables runs for minutes between two batches of its source, so joins count the batches they
//! emit, too. Each join has its own count: nested joins that share the runtime's budget would spend
//! it before the innermost one made progress.
//!
//! A nested-loop or hash join whose condition no row meets emits nothing. Its condition is
//! evaluated for some thousand pairs at a time, checks whether the query still runs, and fails if
//! it does not. The error is never reported, since the client no longer waits for the rows. Every
//! [`LET_GO_EVERY_MS`], the condition lets the runtime replace its thread by another. Otherwise as
//! many joins as there are threads would leave none to run timers, and no timeout would fire.
//!
//! Nested joins are also polled recursively on a thread's stack. When the stack is nearly full,
//! they continue on a new one.
//!
//! The rewrite applies to a plan that is about to run, so EXPLAIN shows the original plan.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder, SortMergeJoinExec,
};
use datafusion::physical_plan::{ExecutionPlan, RecordBatchStream};
use futures::Stream;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::unseen;
use crate::query::Query;
use crate::{Error, ErrorKind};

/// The number of batches that a join emits between two yields.
const BATCHES_AT_A_TIME: usize = 64;

/// Returns the plan with joins that can be cancelled.
pub(super) fn cancellable(plan: Arc<dyn ExecutionPlan>, query: &Arc<Query>) -> Result<Arc<dyn ExecutionPlan>> {
    let watched = plan.transform_up(|node| {
        let node = if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
            watch(join, query)?.unwrap_or(node)
        } else if let Some(join) = node.downcast_ref::<HashJoinExec>() {
            watch_hash(join, query)?.unwrap_or(node)
        } else if node.is::<CrossJoinExec>() || node.is::<SortMergeJoinExec>() {
            node
        } else {
            return Ok(Transformed::no(node));
        };
        Ok(Transformed::yes(unseen::over("Yielding", node, yielding)))
    });
    Ok(watched?.data)
}

fn yielding(
    join: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let inner = with_stack(|| join.execute(partition, context))?;
    Ok(Box::pin(YieldingStream { inner, batches_left: BATCHES_AT_A_TIME }))
}

/// The stack that a join and its inputs take, up to the next join, in bytes.
const JOIN_STACK_BYTES: usize = 256 << 10;

fn with_stack<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(JOIN_STACK_BYTES, 8 * JOIN_STACK_BYTES, work)
}

struct YieldingStream {
    inner: SendableRecordBatchStream,
    batches_left: usize,
}

impl Stream for YieldingStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.batches_left == 0 {
            self.batches_left = BATCHES_AT_A_TIME;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let inner = self.inner.as_mut();
        let next = ready!(with_stack(|| inner.poll_next(cx)));
        self.batches_left -= 1;
        Poll::Ready(next)
    }
}

impl RecordBatchStream for YieldingStream {
    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }
}

fn watch(join: &NestedLoopJoinExec, query: &Arc<Query>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(filter) = join.filter() else { return Ok(None) };
    let filter = watched(filter, query);
    let join = NestedLoopJoinExecBuilder::new(Arc::clone(join.left()), Arc::clone(join.right()), *join.join_type())
        .with_filter(Some(filter))
        .with_projection_ref(join.projection().clone())
        .build()?;
    Ok(Some(Arc::new(join)))
}

fn watch_hash(join: &HashJoinExec, query: &Arc<Query>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(filter) = &join.filter else { return Ok(None) };
    Ok(Some(Arc::new(join.builder().with_filter(Some(watched(filter, query))).build()?)))
}

fn watched(filter: &JoinFilter, query: &Arc<Query>) -> JoinFilter {
    let condition = Watched::new(filter.expression(), query);
    JoinFilter::new(Arc::new(condition), filter.column_indices().to_vec(), Arc::clone(filter.schema()))
}

/// A join condition that fails when its query was cancelled.
struct Watched {
    inner: Arc<dyn PhysicalExpr>,
    query: Arc<Query>,
    /// The time of the last thread handover, in milliseconds since `made`.
    let_go: AtomicU64,
    made: Instant,
}

/// The interval between two thread handovers, in milliseconds.
const LET_GO_EVERY_MS: u64 = 10;

impl Watched {
    fn new(inner: &Arc<dyn PhysicalExpr>, query: &Arc<Query>) -> Self {
        let (inner, query) = (Arc::clone(inner), Arc::clone(query));
        Self { inner, query, let_go: AtomicU64::new(0), made: Instant::now() }
    }

    /// Returns whether a thread handover is due. Only a multi-thread runtime supports it.
    fn lets_go(&self) -> bool {
        let now = self.made.elapsed().as_millis() as u64;
        if now < self.let_go.load(Relaxed) + LET_GO_EVERY_MS {
            return false;
        }
        self.let_go.store(now, Relaxed);
        Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread)
    }
}

impl PhysicalExpr for Watched {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        if self.query.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "the query was cancelled").into());
        }
        match self.lets_go() {
            true => block_in_place(|| self.inner.evaluate(batch)),
            false => self.inner.evaluate(batch),
        }
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.inner.return_field(schema)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.pop().unwrap_or_else(|| Arc::clone(&self.inner));
        Ok(Arc::new(Self::new(&inner, &self.query)))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PartialEq for Watched {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner)
    }
}

impl Eq for Watched {}

impl Hash for Watched {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}
