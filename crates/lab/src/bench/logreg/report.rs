//! The report's record of each point.

use serde::{Deserialize, Serialize};

use super::{Point, Source};
use crate::bench::report::{self, Line, quoted};

/// A whole run.
pub type Report = report::Report<Settings, Measured, Point>;

/// The settings of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The source of the rows.
    pub source: Source,
    /// The database's directory; `None` in memory.
    pub path: Option<String>,
}

/// A measured point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// The number of rows.
    pub rows: u64,
    /// The number of features.
    pub features: u64,
    /// The number of threads.
    pub threads: u64,
    /// The number of measured runs.
    pub runs: u64,
    /// The median time of whole statements.
    pub seconds: f64,
    /// The fastest time.
    pub min_seconds: f64,
    /// The slowest time.
    pub max_seconds: f64,
    /// The time of a pass over all rows, without reading the table.
    pub ms_per_pass: f64,
    /// The number of iterations.
    pub iterations: u64,
    /// The number of rows by the median time.
    pub rows_per_sec: f64,
    /// The log-likelihood of the model.
    pub log_likelihood: f64,
    /// True if the last iteration gained less than the tolerance.
    pub converged: bool,
    /// The model's warnings.
    pub warnings: String,
}

impl Line for Measured {
    const BENCHMARK: &'static str = "logreg";
    const SCHEMA_VERSION: u32 = 1;
    const COLUMNS: &'static [&'static str] = &[
        "labels",
        "device",
        "rows",
        "features",
        "threads",
        "runs",
        "seconds",
        "min_seconds",
        "max_seconds",
        "ms_per_pass",
        "iterations",
        "rows_per_sec",
        "log_likelihood",
        "converged",
        "warnings",
    ];

    fn fields(&self) -> Vec<String> {
        vec![
            self.point.labels.name().into(),
            self.point.device.to_string(),
            self.rows.to_string(),
            self.features.to_string(),
            self.threads.to_string(),
            self.runs.to_string(),
            self.seconds.to_string(),
            self.min_seconds.to_string(),
            self.max_seconds.to_string(),
            self.ms_per_pass.to_string(),
            self.iterations.to_string(),
            self.rows_per_sec.to_string(),
            self.log_likelihood.to_string(),
            self.converged.to_string(),
            quoted(&self.warnings),
        ]
    }
}
