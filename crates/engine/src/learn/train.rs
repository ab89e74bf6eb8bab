//! `logregr_train` and `linregr_train`.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::Result as DataFusionResult;
use datafusion::execution::TaskContext;
use onehop_learn::{Error as Unfit, Intercept, linear, logistic};
use onehop_pipeline::backend::Compiled;

use super::Learning;
use super::arguments::{Call, Signature};
use super::device::{Learner, Learnt};
use super::exec::{Lesson, LessonTable};
use super::model::{self, INTERCEPT, Kind, Model, ModelTerm, Number};
use super::rows::{Names, Rows, Target};
use super::source::{Planned, Source};
use crate::catalog::Change;
use crate::lower::Fitted;
use crate::new_names::check_new_name;
use crate::query::Query;
use crate::rights::Rights;
use crate::{Error, ErrorKind, Result};

static LOGISTIC: Signature = Signature {
    function: "logregr_train",
    parameters: &["table", "model", "label", "features", "grouping", "intercept", "max_iter", "tolerance", "l2"],
    required: 4,
    aliases: &[("tol", "tolerance"), ("max_iterations", "max_iter"), ("source", "table")],
};

static LINEAR: Signature = Signature {
    function: "linregr_train",
    parameters: &["table", "model", "label", "features", "grouping", "intercept"],
    required: 4,
    aliases: &[("source", "table")],
};

/// The function that trains models of a kind.
#[derive(Debug)]
pub(super) struct Train(pub Kind);

impl TableFunctionImpl for Train {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> DataFusionResult<Arc<dyn TableProvider>> {
        let lesson = Training::new(self.0, args.exprs())?;
        Ok(Arc::new(LessonTable::new(schema(self.0), Arc::new(lesson))))
    }
}

/// Returns the schema of [`coefficients_table`](model::coefficients_table).
fn schema(kind: Kind) -> SchemaRef {
    let number = |name: &str| Field::new(name, DataType::Float64, true);
    let statistic = if kind == Kind::Logistic { "z_stat" } else { "t_stat" };
    let mut fields = vec![Field::new("term", DataType::Utf8, false)];
    fields.extend(["coef", "std_err", statistic, "p_value"].map(number));
    if kind == Kind::Logistic {
        fields.push(number("odds_ratio"));
    }
    Arc::new(Schema::new(fields))
}

#[derive(Debug)]
struct Training {
    kind: Kind,
    source: Source,
    /// The name of the model; `None` if it is not stored.
    model: Option<String>,
    intercept: Intercept,
    options: logistic::Options,
}

impl Training {
    fn new(kind: Kind, args: &[datafusion::logical_expr::Expr]) -> Result<Self> {
        let signature = if kind == Kind::Logistic { &LOGISTIC } else { &LINEAR };
        let call = Call::new(signature, args)?;
        if call.text("grouping")?.is_some() {
            return Err(call.invalid("grouping is not supported: train a model of each group, WHERE it is one"));
        }
        let intercept = if call.boolean("intercept", true)? { Intercept::Fitted } else { Intercept::None };
        let defaults = logistic::Options::default();
        let options = match kind {
            Kind::Logistic => logistic::Options {
                max_iterations: call.count("max_iter", defaults.max_iterations)?,
                tolerance: call.number("tolerance", defaults.tolerance)?,
                l2: call.number("l2", defaults.l2)?,
            },
            Kind::Linear => defaults,
        };
        options.check().map_err(|e| call.invalid(e))?;
        let source = Source {
            function: signature.function,
            table: call.required_text("table")?,
            features: call.list("features")?,
            label: call.required_text("label")?,
        };
        Ok(Self { kind, source, model: call.text("model")?, intercept, options })
    }

    fn names(&self, features: &[String]) -> Names {
        Names { function: self.source.function, features: features.to_vec(), label: self.source.label.clone() }
    }

    fn target(&self) -> Target {
        match self.kind {
            Kind::Logistic => Target::Label,
            Kind::Linear => Target::Number,
        }
    }

    /// Returns the model of a device, if it completed one, and its statistics in a line.
    async fn on_device(&self, planned: &Planned, names: &Names, query: &Arc<Query>) -> Result<Option<(Model, String)>> {
        let Some(device) = &planned.device else { return Ok(None) };
        let learner = Learner::new(names.features.len(), self.target(), self.intercept, self.options);
        let Fitted::Done(learner, ran) = device.run(query, learner, Learner::step).await? else { return Ok(None) };
        let (learnt, skipped) = learner.learnt();
        let mut model = match learnt {
            Learnt::Logistic(fit) => self.logistic(&fit, names),
            Learnt::Linear(fit) => self.linear(&fit, names),
            Learnt::Unfit(error) => return Err(self.unfit(&error, names, skipped)),
            // The CPU reads the values one by one and reports invalid ones.
            Learnt::OfNoUse => return Ok(None),
        };
        model.skipped_rows = skipped;
        model.device = device.device().into();
        let (compiled, kernel) = (ran.compiled, ran.kernel.as_secs_f64() * 1e3);
        let compiled = match compiled {
            Compiled::Now(elapsed) => format!(", compiled={:.0} ms", elapsed.as_secs_f64() * 1e3),
            Compiled::Before => String::new(),
        };
        let bytes = format!("resident_bytes={}, moved_bytes={}", ran.resident_bytes, ran.moved_bytes);
        Ok(Some((model, format!("kernels={kernel:.2} ms, launches={}, {bytes}{compiled}", ran.launches))))
    }

    /// Returns the model of the CPU, and its statistics in a line.
    async fn on_cpu(
        &self,
        planned: &Planned,
        names: &Arc<Names>,
        context: &Arc<TaskContext>,
        query: &Arc<Query>,
    ) -> Result<(Model, Option<String>)> {
        let started = Instant::now();
        let rows = Arc::new(Rows::collect(&planned.operators, context, names, self.target(), query).await?);
        let read = started.elapsed();
        let mut model = self.fit(&rows, names, context.session_config().target_partitions()).await?;
        model.skipped_rows = rows.skipped();
        model.read_seconds = Number(read.as_secs_f64());
        let spilled = rows.spilled_bytes();
        Ok((model, (spilled > 0).then(|| format!("spilled_bytes={spilled}"))))
    }

    /// Returns the error of rows without a model.
    fn unfit(&self, error: &Unfit, names: &Names, skipped: u64) -> Error {
        let function = self.source.function;
        let (kind, problem, hint) = match error {
            Unfit::NoRows if skipped > 0 => (
                ErrorKind::Data,
                format!("each of the {skipped} rows has a NULL, so nothing is left to learn from"),
                None,
            ),
            Unfit::NoRows => (ErrorKind::Data, "the table has no rows".into(), None),
            Unfit::FewRows { .. } => (ErrorKind::Data, error.to_string(), Some("fewer features, or more rows")),
            Unfit::OneClass { label } => (
                ErrorKind::Data,
                format!("label {} is {label} in all rows: there is nothing to tell apart", names.label),
                None,
            ),
            Unfit::Label { .. } => (ErrorKind::Data, error.to_string(), None),
            Unfit::Range { feature } => {
                let name = names.features.get(*feature).map_or("?", String::as_str);
                (ErrorKind::Data, format!("the values of {name} are too large to be summed"), Some("divide it"))
            }
            Unfit::TargetRange => (ErrorKind::Data, error.to_string(), Some("divide the label")),
            Unfit::Option(problem) => (ErrorKind::Invalid, problem.clone(), None),
        };
        let error = Error::new(kind, format!("{function}: {problem}"));
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    /// Fits the model of rows that have been read, without the remaining fields.
    async fn fit(&self, rows: &Arc<Rows>, names: &Names, threads: usize) -> Result<Model> {
        let unfit = |error: Unfit| self.unfit(&error, names, rows.skipped());
        // The sums of a pass, each with its rounding error, for each thread.
        let terms = names.features.len() + 1;
        rows.hold((threads + 1) * (terms * (terms + 1) / 2 + 2 * terms) * 2 * size_of::<f64>())?;
        match self.kind {
            Kind::Logistic => {
                let mut irls = logistic::Irls::new(rows.extents(), self.intercept, self.options).map_err(unfit)?;
                loop {
                    let pass = rows.pass(irls.pass(), threads).await?;
                    if let logistic::Next::Done(fit) = irls.step(&pass) {
                        return Ok(self.logistic(&fit, names));
                    }
                }
            }
            Kind::Linear => {
                let mut squares = linear::LeastSquares::new(rows.extents(), self.intercept).map_err(unfit)?;
                loop {
                    let pass = rows.pass(squares.pass(), threads).await?;
                    if let linear::Next::Done(fit) = squares.step(&pass) {
                        return Ok(self.linear(&fit, names));
                    }
                }
            }
        }
    }

    fn logistic(&self, fit: &logistic::Fit, names: &Names) -> Model {
        let described = |warning| model::described(warning, &names.features, fit.iterations);
        Model {
            l2: Some(Number(self.options.l2)),
            log_likelihood: Some(Number(fit.log_likelihood)),
            null_log_likelihood: Some(Number(fit.null_log_likelihood)),
            condition_number: Number(fit.condition_number),
            iterations: fit.iterations,
            converged: fit.converged,
            warnings: fit.warnings.iter().map(described).collect(),
            ..self.bare(&fit.intercept, &fit.terms, names, fit.rows)
        }
    }

    fn linear(&self, fit: &linear::Fit, names: &Names) -> Model {
        let described = |warning| model::described(warning, &names.features, 1);
        Model {
            r2: fit.r2.is_finite().then_some(Number(fit.r2)),
            residual_error: fit.residual_error.map(Number),
            condition_number: Number(fit.condition_number),
            warnings: fit.warnings.iter().map(described).collect(),
            ..self.bare(&fit.intercept, &fit.terms, names, fit.rows)
        }
    }

    fn bare(
        &self,
        intercept: &Option<onehop_learn::Term>,
        terms: &[onehop_learn::Term],
        names: &Names,
        rows: u64,
    ) -> Model {
        let named = names.features.iter().zip(terms);
        Model {
            kind: self.kind,
            source: self.source.table.clone(),
            label: self.source.label.clone(),
            label_is_boolean: false,
            intercept: intercept.as_ref().map(|term| ModelTerm::new(INTERCEPT, term)),
            terms: named.map(|(name, term)| ModelTerm::new(name, term)).collect(),
            expressions: Vec::new(),
            l2: None,
            log_likelihood: None,
            null_log_likelihood: None,
            r2: None,
            residual_error: None,
            condition_number: Number(f64::NAN),
            rows,
            skipped_rows: 0,
            iterations: 1,
            converged: true,
            warnings: Vec::new(),
            device: "cpu".into(),
            seconds: Number(0.0),
            read_seconds: Number(0.0),
        }
    }

    async fn keep(&self, name: &str, model: &Model, learning: &Learning, query: &Query) -> Result<()> {
        let text = model.encode()?;
        let writing = learning.database.writing(&learning.settings).await?;
        query.settle()?;
        let ((), commit) = learning.database.change(writing, |catalog| {
            catalog.models.insert(name.to_string(), text);
            Ok(((), vec![Change::PutModel { name: name.to_string() }]))
        })?;
        commit.wait(query.shared_ledger()).await
    }
}

#[async_trait]
impl Lesson for Training {
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Source { function, table, features, label } = &self.source;
        write!(f, "{function} table={table}, label={label}, features=[{}]", features.join(", "))?;
        match &self.model {
            Some(model) => write!(f, ", model={model}"),
            None => Ok(()),
        }
    }

    fn source(&self, _: &Learning) -> Result<Source> {
        Ok(self.source.clone())
    }

    fn fits(&self) -> Option<Target> {
        Some(self.target())
    }

    fn check(&self, learning: &Learning) -> Result<()> {
        let Some(model) = &self.model else { return Ok(()) };
        let function = self.source.function;
        let unkept = "give NULL for the model's name: then it is shown, and not kept";
        check_new_name(model).map_err(|e| e.about(&format!("{function}: model")))?;
        learning.settings.rights().need(Rights::Write, function)?;
        learning.database.check_writable().map_err(|e| e.about(function).with_hint(unkept))?;
        if learning.in_transaction {
            let problem = format!("{function} cannot be part of a transaction: a model is kept at once");
            return Err(Error::new(ErrorKind::Invalid, problem).with_hint(format!("COMMIT first, or {unkept}")));
        }
        Ok(())
    }

    async fn learn(
        &self,
        planned: Arc<Planned>,
        context: &Arc<TaskContext>,
        learning: &Learning,
    ) -> Result<(RecordBatch, String)> {
        let started = Instant::now();
        let missing = || Error::new(ErrorKind::Internal, "a statement does not know itself");
        let query = context.session_config().get_extension::<Query>().ok_or_else(missing)?;
        let names = Arc::new(self.names(&planned.features));
        let (mut model, how) = match self.on_device(&planned, &names, &query).await? {
            Some((model, how)) => (model, Some(how)),
            None => self.on_cpu(&planned, &names, context, &query).await?,
        };
        model.label_is_boolean = planned.label_is_boolean;
        model.expressions = planned.expressions.clone();
        model.seconds = Number(started.elapsed().as_secs_f64());
        for warning in &model.warnings {
            query.notice(format!("{}: {warning}", self.source.function));
        }
        if let Some(name) = &self.model {
            self.keep(name, &model, learning, &query).await?;
        }
        let mut said = format!("rows={}, null_rows={}, passes={}", model.rows, model.skipped_rows, model.iterations);
        if let Some(how) = how {
            said += &format!(", {how}");
        }
        Ok((model::coefficients_table(&model)?, said))
    }
}
