//! What a report has of each point.

use serde::{Deserialize, Serialize};

use super::{Point, Source};
use crate::bench::report::{self, Line, quoted};

/// A whole run.
pub type Report = report::Report<Settings, Measured, Point>;

/// How it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Where the rows are.
    pub source: Source,
    /// The database's directory; `None` in memory.
    pub path: Option<String>,
}

/// A point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// What was measured.
    #[serde(flatten)]
    pub point: Point,
    /// Rows that were learnt from.
    pub rows: u64,
    /// Features.
    pub features: u64,
    /// Threads.
    pub threads: u64,
    /// Measured runs.
    pub runs: u64,
    /// The median of whole statements.
    pub seconds: f64,
    /// The fastest.
    pub min_seconds: f64,
    /// The slowest.
    pub max_seconds: f64,
    /// A pass over all rows, without reading the table.
    pub ms_per_pass: f64,
    /// Iterations.
    pub iterations: u64,
    /// Rows by the median.
    pub rows_per_sec: f64,
    /// That of the model.
    pub log_likelihood: f64,
    /// Whether the last iteration gained less than the tolerance.
    pub converged: bool,
    /// What the model says about itself.
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
