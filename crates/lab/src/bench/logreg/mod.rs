//! Logistic regression by SQL: `logregr_train` over some million rows of a known model.
//!
//! 1. Rows are a function of their number alone ([`data`]), and are stored in a table, or as Arrow
//!    batches in memory.
//! 2. The statement runs once unmeasured, and then as often as requested. The result is the median
//!    time of the whole statement, from its text to its last row: reading the table, the necessary
//!    passes, and storing the model.
//! 3. A wrong model has no time. Coefficients of noisy labels must be within six standard errors of
//!    the true ones. Separable labels must be reported as such, with coefficients in the right
//!    proportions.

pub mod data;
pub mod report;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, RecordBatch, RecordBatchReader};
use arrow::datatypes::{Float64Type, Int64Type};
use futures::StreamExt;
use onehop_engine::backend::Devices;
use onehop_engine::{Database, DatabaseOptions, Output, Relation, Session};
use serde::{Deserialize, Serialize};

use data::{FEATURES, Labels, MODEL, Made};
use report::Measured;

/// The result of the benchmark's steps.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the benchmark.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine returned an error.
    #[error("{0}")]
    Engine(#[from] onehop_engine::Error),
    /// The model is not that of the data.
    #[error("the model of {labels} labels is wrong: {problem}")]
    Wrong {
        /// The labels.
        labels: &'static str,
        /// The description of the error.
        problem: String,
    },
    /// The benchmark was cancelled.
    #[error("the benchmark was cancelled")]
    Cancelled,
}

/// The source of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A table.
    Table,
    /// Arrow arrays, as a program has them.
    Arrow,
}

/// A point of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// The kind of labels.
    pub labels: Labels,
    /// The device that makes the passes.
    pub device: Device,
}

/// The device that makes the passes, in the notation of `--device`: `cpu`, `cuda:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Device {
    /// The processor.
    Cpu,
    /// A GPU, by its number, with the table in its memory.
    Gpu(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = || text.strip_prefix("cuda:")?.parse().ok();
        match text {
            "cpu" => Ok(Self::Cpu),
            text => number().map(Self::Gpu).ok_or_else(|| format!("{text:?} is no device: cpu, or cuda:0")),
        }
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

/// The configuration of a benchmark.
#[derive(Debug)]
pub struct Setup {
    /// The database's directory; in memory without it.
    pub path: Option<PathBuf>,
    /// The settings of its sessions.
    pub settings: Vec<(String, String)>,
    /// The number of rows.
    pub rows: u64,
    /// The source of the rows.
    pub source: Source,
    /// The kinds of labels.
    pub labels: Vec<Labels>,
    /// The GPUs.
    pub devices: Arc<dyn Devices>,
}

/// Rows to learn from, in a database of their own.
pub struct Bench {
    session: Session,
    runtime: tokio::runtime::Runtime,
    rows: u64,
    source: Source,
    devices: Arc<dyn Devices>,
}

impl Bench {
    /// Creates the rows of all requested kinds of labels.
    ///
    /// # Errors
    /// Returns the engine's error.
    pub fn new(setup: Setup, runtime: tokio::runtime::Runtime) -> Result<Self> {
        let Setup { path, settings, rows, source, labels, devices } = setup;
        let options = DatabaseOptions { settings, ..DatabaseOptions::default() };
        let database = match path {
            Some(path) => Database::open(&path, &options)?,
            None => Database::memory(&options)?,
        };
        database.register_devices(Arc::clone(&devices));
        let bench = Self { session: database.session()?, runtime, rows, source, devices };
        for labels in labels {
            let (name, made) = (labels.name(), Made::new(rows, labels));
            match source {
                Source::Arrow => {
                    let schema = made.schema();
                    let batches: std::result::Result<Vec<_>, _> = made.collect();
                    let batches = batches.map_err(onehop_engine::Error::from)?;
                    bench.session.register(name, Relation::of_batches(schema, batches))?;
                }
                Source::Table => {
                    bench.session.register("made", Relation::of_reader(Box::new(made)))?;
                    bench.all(&format!("CREATE OR REPLACE TABLE {name} AS SELECT * FROM made"))?;
                    bench.session.unregister("made");
                }
            }
        }
        Ok(bench)
    }

    /// Returns the reason a device cannot make the passes, if it cannot.
    pub fn unavailable(&self, device: Device) -> Option<String> {
        let Device::Gpu(_) = device else { return None };
        if self.source == Source::Arrow {
            return Some("what is in Arrow's arrays is learnt from on the CPU".into());
        }
        match self.devices.all() {
            Err(why) => Some(why),
            Ok(all) if all.iter().any(|backend| backend.name() == device.to_string()) => None,
            Ok(all) => Some(format!("there is no {device} among {} GPUs", all.len())),
        }
    }

    /// Restricts further statements to the point's device, and loads the table there.
    fn settle_on(&self, point: Point) -> Result<()> {
        match point.device {
            Device::Cpu => self.all("SET gpu.mode = 'off'").map(drop),
            device @ Device::Gpu(_) => {
                let settings = ["gpu.mode = 'require'", "exec.fallback = 'error'"].map(String::from);
                for setting in settings.into_iter().chain([format!("gpu.devices = '{device}'")]) {
                    self.all(&format!("SET {setting}"))?;
                }
                self.all(&format!("LOAD TABLE {} INTO '{device}'", point.labels.name())).map(drop)
            }
        }
    }

    /// Trains `runs` times, after one unmeasured time.
    ///
    /// # Errors
    /// Returns the engine's error, or [`Error::Wrong`]. Fails if `cancel` is set.
    pub fn measure(&self, point: Point, runs: usize, threads: usize, cancel: &AtomicBool) -> Result<Measured> {
        let features: Vec<String> = (1..=FEATURES).map(|n| format!("x{n}")).collect();
        let name = point.labels.name();
        let train = format!(
            "SELECT * FROM logregr_train('{name}', '{name}', label => 'y', features => '{}')",
            features.join(", ")
        );
        self.settle_on(point)?;
        let mut times = Vec::with_capacity(runs);
        let mut passes = Vec::with_capacity(runs);
        let mut found = Found::default();
        for run in 0..=runs {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let began = Instant::now();
            let terms = self.all(&train)?;
            let elapsed = began.elapsed();
            if run > 0 {
                times.push(elapsed);
            }
            found = Found::new(&terms, &self.facts(name)?);
            found.check(point.labels)?;
            if run > 0 {
                passes.push(found.pass_seconds);
            }
        }
        times.sort_unstable();
        passes.sort_unstable_by(f64::total_cmp);
        let seconds = times[times.len() / 2].as_secs_f64();
        Ok(Measured {
            point,
            rows: self.rows,
            features: FEATURES as u64,
            threads: threads as u64,
            runs: runs as u64,
            seconds,
            min_seconds: times.first().map_or(0.0, Duration::as_secs_f64),
            max_seconds: times.last().map_or(0.0, Duration::as_secs_f64),
            ms_per_pass: passes[passes.len() / 2] * 1e3 / found.iterations.max(1) as f64,
            iterations: found.iterations,
            rows_per_sec: self.rows as f64 / seconds,
            log_likelihood: found.log_likelihood,
            converged: found.converged,
            warnings: found.warnings,
        })
    }

    fn facts(&self, model: &str) -> Result<RecordBatch> {
        let rows = self.all(&format!(
            "SELECT log_likelihood, num_iterations, converged, coalesce(warnings, '') AS warnings, \
                    seconds - read_seconds AS pass_seconds \
             FROM onehop_models WHERE model_name = '{model}'"
        ))?;
        rows.into_iter().next().ok_or(Error::Wrong { labels: "these", problem: "there is none".into() })
    }

    /// Returns the batches of a statement; none if it has no rows.
    fn all(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        self.runtime.block_on(async {
            let mut batches = Vec::new();
            if let Output::Rows(mut rows) = self.session.sql(sql).await? {
                while let Some(batch) = rows.next().await {
                    batches.push(batch?);
                }
            }
            Ok(batches)
        })
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// A trained model.
#[derive(Debug, Default)]
struct Found {
    coefficients: Vec<f64>,
    errors: Vec<Option<f64>>,
    log_likelihood: f64,
    iterations: u64,
    converged: bool,
    warnings: String,
    pass_seconds: f64,
}

impl Found {
    fn new(terms: &[RecordBatch], facts: &RecordBatch) -> Self {
        let column = |place: usize| -> Vec<Option<f64>> {
            terms.iter().flat_map(|batch| batch.column(place).as_primitive::<Float64Type>().iter()).collect()
        };
        let number = |place: usize| facts.column(place).as_primitive::<Float64Type>().value(0);
        let warnings = arrow::compute::cast(facts.column(3), &arrow::datatypes::DataType::Utf8);
        Self {
            coefficients: column(1).into_iter().flatten().collect(),
            errors: column(2),
            log_likelihood: number(0),
            iterations: facts.column(1).as_primitive::<Int64Type>().value(0) as u64,
            converged: facts.column(2).as_boolean().value(0),
            warnings: warnings.map_or_else(|e| e.to_string(), |text| text.as_string::<i32>().value(0).to_string()),
            pass_seconds: number(4),
        }
    }

    fn check(&self, labels: Labels) -> Result<()> {
        const MOST_ERRORS: f64 = 6.0;
        let wrong = |problem: String| Err(Error::Wrong { labels: labels.name(), problem });
        if self.coefficients.len() != MODEL.len() {
            return wrong(format!("it has {} terms", self.coefficients.len()));
        }
        match labels {
            Labels::Noisy => {
                for ((found, made), error) in self.coefficients.iter().zip(MODEL).zip(&self.errors) {
                    if error.is_none_or(|error| (found - made).abs() > MOST_ERRORS * error) {
                        return wrong(format!("a coefficient is {found}, and the labels were made with {made}"));
                    }
                }
                if !self.converged {
                    return wrong("it has not converged".into());
                }
            }
            Labels::Separable => {
                let scale = self.coefficients[0] / MODEL[0];
                let apart = self.coefficients.iter().zip(MODEL).map(|(found, made)| (found / scale - made).abs());
                if apart.fold(0.0, f64::max) > 0.1 || scale <= 1.0 {
                    return wrong(format!("the coefficients are {:?}", self.coefficients));
                }
                if !self.warnings.contains("separate") {
                    return wrong("it does not say that the labels are separable".into());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The devices of a machine without a GPU.
    #[derive(Debug)]
    struct NoDevices;

    impl Devices for NoDevices {
        fn all(&self) -> std::result::Result<&[Arc<dyn onehop_engine::backend::Backend>], String> {
            Err("there are none".into())
        }

        fn found(&self) -> &[Arc<dyn onehop_engine::backend::Backend>] {
            &[]
        }
    }

    #[test]
    fn both_kinds_of_labels_are_learnt_from_tables_and_arrays() {
        let labels = [Labels::Noisy, Labels::Separable];
        for source in [Source::Table, Source::Arrow] {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let threads = vec![("threads".to_string(), "2".to_string())];
            let setup = Setup {
                path: None,
                settings: threads,
                rows: 150_000,
                source,
                labels: labels.to_vec(),
                devices: Arc::new(NoDevices),
            };
            let bench = Bench::new(setup, runtime).unwrap();
            assert!(bench.unavailable(Device::Cpu).is_none() && bench.unavailable(Device::Gpu(0)).is_some());
            for labels in labels {
                let point = Point { labels, device: Device::Cpu };
                let measured = bench.measure(point, 1, 2, &AtomicBool::new(false)).unwrap();
                assert_eq!(measured.converged, labels == Labels::Noisy);
                assert!(measured.seconds > 0.0 && measured.ms_per_pass > 0.0, "{measured:?}");
            }
            let cancelled =
                bench.measure(Point { labels: Labels::Noisy, device: Device::Cpu }, 1, 2, &AtomicBool::new(true));
            assert!(matches!(cancelled, Err(Error::Cancelled)));
        }
    }

    #[test]
    fn a_wrong_model_has_no_time() {
        let found = Found { coefficients: vec![0.0; 5], errors: vec![Some(0.1); 5], ..Found::default() };
        assert!(found.check(Labels::Noisy).is_err() && found.check(Labels::Separable).is_err());
    }

    #[test]
    fn devices_are_what_they_are_called() {
        for device in [Device::Cpu, Device::Gpu(0), Device::Gpu(7)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        for text in ["gpu", "cuda", "cuda:", "cuda:x", "CPU"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }
}
