//! `logregr_evaluate('m', 'table')`: evaluates a model's probabilities on rows of a table. The
//! label and features are those that the model was trained with.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use async_trait::async_trait;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::Result as DataFusionResult;
use datafusion::execution::TaskContext;
use onehop_learn::evaluate::Evaluation;
use onehop_learn::linear_predictor;

use super::Learning;
use super::arguments::{Call, Signature};
use super::exec::{Lesson, LessonTable};
use super::model::{Kind, Model};
use super::rows::{Names, Rows, Target};
use super::source::{Planned, Source};
use crate::query::Query;
use crate::task::spawn_blocking;
use crate::{Error, ErrorKind, Result};

static SIGNATURE: Signature =
    Signature { function: "logregr_evaluate", parameters: &["model", "table"], required: 2, aliases: &[] };

/// The columns that count rows.
const COUNTS: [&str; 6] =
    ["num_rows", "num_missing_rows_skipped", "true_positives", "false_positives", "true_negatives", "false_negatives"];
const FIGURES: [&str; 3] = ["accuracy", "log_loss", "auc"];

/// The table function.
#[derive(Debug)]
pub(super) struct Evaluate;

impl TableFunctionImpl for Evaluate {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> DataFusionResult<Arc<dyn TableProvider>> {
        let call = Call::new(&SIGNATURE, args.exprs())?;
        let lesson = Evaluating { model: call.required_text("model")?, table: call.required_text("table")? };
        let figures = FIGURES.map(|name| Field::new(name, DataType::Float64, name == "auc"));
        let counts = COUNTS.map(|name| Field::new(name, DataType::Int64, false));
        let schema = Schema::new(figures.into_iter().chain(counts).collect::<Vec<_>>());
        Ok(Arc::new(LessonTable::new(Arc::new(schema), Arc::new(lesson))))
    }
}

#[derive(Debug)]
struct Evaluating {
    model: String,
    table: String,
}

impl Evaluating {
    fn model(&self, learning: &Learning) -> Result<Model> {
        let model = Model::find(&self.model, &learning.catalog).map_err(|e| e.about(SIGNATURE.function))?;
        match model.kind {
            Kind::Logistic => Ok(model),
            Kind::Linear => {
                let problem =
                    format!("{}: the model \"{}\" has no labels to be right about", SIGNATURE.function, self.model);
                Err(Error::new(ErrorKind::Invalid, problem))
            }
        }
    }
}

#[async_trait]
impl Lesson for Evaluating {
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} model={}, table={}", SIGNATURE.function, self.model, self.table)
    }

    fn source(&self, learning: &Learning) -> Result<Source> {
        let model = self.model(learning)?;
        Ok(Source {
            function: SIGNATURE.function,
            table: self.table.clone(),
            features: model.expressions,
            label: model.label,
        })
    }

    fn check(&self, _: &Learning) -> Result<()> {
        Ok(())
    }

    async fn learn(
        &self,
        planned: Arc<Planned>,
        context: &Arc<TaskContext>,
        learning: &Learning,
    ) -> Result<(RecordBatch, String)> {
        let missing = || Error::new(ErrorKind::Internal, "a statement does not know itself");
        let query = context.session_config().get_extension::<Query>().ok_or_else(missing)?;
        let model = self.model(learning)?;
        let names =
            Names { function: SIGNATURE.function, features: planned.features.clone(), label: model.label.clone() };
        let rows = Rows::collect(&planned.operators, context, &Arc::new(names), Target::Label, &query).await?;
        let count = rows.extents().rows();
        if count == 0 {
            let problem = format!("{}: no row of {} is without a NULL", SIGNATURE.function, self.table);
            return Err(Error::new(ErrorKind::Data, problem));
        }
        // All rows are in memory at once for the sort.
        rows.hold(usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(size_of::<(f64, bool)>()))?;
        let skipped = rows.skipped();
        let coefficients = model.coefficients();
        let evaluate = move || {
            let mut scored = Vec::with_capacity(count as usize);
            let mut etas = Vec::new();
            rows.each(0, 1, |chunk| {
                linear_predictor(chunk, &coefficients, &mut etas);
                scored.extend(etas.iter().copied().zip(chunk.target().iter().map(|label| *label > 0.5)));
            })?;
            Ok::<_, Error>(Evaluation::of(&mut scored))
        };
        let died = |e: tokio::task::JoinError| Error::new(ErrorKind::Internal, format!("an evaluation has ended: {e}"));
        let evaluation = spawn_blocking(evaluate).await.map_err(died)??;
        Ok((table(&evaluation, skipped)?, format!("rows={count}, null_rows={skipped}")))
    }
}

fn table(evaluation: &Evaluation, skipped: u64) -> Result<RecordBatch> {
    let figures = [Some(evaluation.accuracy()), Some(evaluation.log_loss), evaluation.auc];
    let Evaluation { true_positives, false_positives, true_negatives, false_negatives, .. } = *evaluation;
    let counts = [evaluation.rows(), skipped, true_positives, false_positives, true_negatives, false_negatives];
    let figures = FIGURES
        .iter()
        .zip(figures)
        .map(|(name, figure)| (*name, Arc::new(Float64Array::from(vec![figure])) as ArrayRef, *name == "auc"));
    let counts = COUNTS
        .iter()
        .zip(counts)
        .map(|(name, count)| (*name, Arc::new(Int64Array::from(vec![count as i64])) as _, false));
    Ok(RecordBatch::try_from_iter_with_nullable(figures.chain(counts))?)
}
