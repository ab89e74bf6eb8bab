//! `Learn`: the operator that reads all rows of its input, computes a result, and returns one
//! batch.
//!
//! It does nothing before its rows are requested: EXPLAIN trains nothing. The plan below it was
//! optimized separately, and is shown in plans. The optimizer of the surrounding statement does not
//! visit it, since it would distribute the rows in another order.

use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as DataFusionResult, Statistics, internal_err};
use datafusion::datasource::TableType;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};

use super::Learning;
use super::rows::Target;
use super::source::{Planned, Source};
use crate::query::Query;
use crate::{Error, ErrorKind, Result};

/// A computation over rows.
#[async_trait]
pub(super) trait Lesson: fmt::Debug + Send + Sync {
    /// Describes the computation in a line.
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Returns the source of the rows.
    fn source(&self, learning: &Learning) -> Result<Source>;

    /// Returns the target of a fit, if it is one. Then a device may run it.
    fn fits(&self) -> Option<Target> {
        None
    }

    /// Checks whether the session permits it, before anything runs.
    fn check(&self, learning: &Learning) -> Result<()>;

    /// Runs it. Called once per execution. Returns the result, and its statistics in a line.
    async fn learn(
        &self,
        rows: Arc<Planned>,
        context: &Arc<TaskContext>,
        learning: &Learning,
    ) -> Result<(RecordBatch, String)>;
}

/// A call of a table function, as a table.
#[derive(Debug)]
pub(super) struct LessonTable {
    schema: SchemaRef,
    lesson: Arc<dyn Lesson>,
}

impl LessonTable {
    /// Creates the table of a call.
    pub fn new(schema: SchemaRef, lesson: Arc<dyn Lesson>) -> Self {
        Self { schema, lesson }
    }
}

#[async_trait]
impl TableProvider for LessonTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        session: &dyn DataFusionSession,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let learning = Learning::of(session)?;
        let missing = || Error::new(ErrorKind::Internal, "a statement is planned without its state");
        let state = session.as_any().downcast_ref::<SessionState>().ok_or_else(missing)?;
        let query = session.config().get_extension::<Query>().ok_or_else(missing)?;
        self.lesson.check(&learning)?;
        let rows = self.lesson.source(&learning)?.plan(state, &query, self.lesson.fits()).await?;
        let schema = match projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => Arc::clone(&self.schema),
        };
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Ok(Arc::new(LearnExec {
            lesson: Arc::clone(&self.lesson),
            rows: Arc::new(rows),
            learning,
            projection: projection.cloned(),
            schema,
            properties: Arc::new(properties),
            happened: Arc::default(),
        }))
    }
}

/// The operator.
#[derive(Debug)]
pub(crate) struct LearnExec {
    lesson: Arc<dyn Lesson>,
    rows: Arc<Planned>,
    learning: Arc<Learning>,
    projection: Option<Vec<usize>>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    /// Its statistics, once it has run.
    happened: Arc<OnceLock<String>>,
}

impl LearnExec {
    /// Returns its input, for EXPLAIN.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.rows.operators
    }
}

impl fmt::Debug for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planned").field("features", &self.features).finish_non_exhaustive()
    }
}

impl DisplayAs for LearnExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !matches!(t, DisplayFormatType::TreeRender) {
            f.write_str("Learn: ")?;
        }
        self.lesson.describe(f)?;
        if let Some(device) = &self.rows.device {
            write!(f, ", device={}", device.device())?;
        }
        match self.happened.get() {
            Some(happened) => write!(f, ", {happened}"),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for LearnExec {
    fn name(&self) -> &'static str {
        "Learn"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("what is learnt has no partition {partition}");
        }
        let (lesson, rows, learning) = (Arc::clone(&self.lesson), Arc::clone(&self.rows), Arc::clone(&self.learning));
        let (projection, happened) = (self.projection.clone(), Arc::clone(&self.happened));
        let learnt = async move {
            let (batch, said) = lesson.learn(rows, &context, &learning).await?;
            // The first execution's statistics are kept.
            let _ = happened.set(said);
            match projection {
                Some(columns) => Ok(batch.project(&columns)?),
                None => Ok(batch),
            }
        };
        let stream = futures::stream::once(learnt);
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), stream)))
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], _: &StatisticsArgs) -> DataFusionResult<Arc<Statistics>> {
        Ok(Arc::new(Statistics::new_unknown(&self.schema)))
    }
}
