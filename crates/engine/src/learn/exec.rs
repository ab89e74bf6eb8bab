//! `Learn`: the operator that reads all rows of its input, makes something of them, and has one batch.
//!
//! Nothing happens before it is asked for its rows: EXPLAIN trains nothing. What is below it was planned and optimized by
//! itself, and is shown in plans; the optimizer of the statement around it does not look there, where it would deal rows
//! out in another order.

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

/// What is made of rows.
#[async_trait]
pub(super) trait Lesson: fmt::Debug + Send + Sync {
    /// What of, in a line.
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Where the rows come from.
    fn source(&self, learning: &Learning) -> Result<Source>;

    /// What is fitted to the rows, if anything is: then a device may do it.
    fn fits(&self) -> Option<Target> {
        None
    }

    /// Whether it can be done in this session, before anything is.
    fn check(&self, learning: &Learning) -> Result<()>;

    /// Does it. Called once per execution. The second is what happened, in a line.
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
    /// What has come of it, once it has run.
    happened: Arc<OnceLock<String>>,
}

impl LearnExec {
    /// What it reads, for EXPLAIN.
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
            // A second execution says what the first did.
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
