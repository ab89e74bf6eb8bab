//! The stored results of a benchmark of points: JSON for programs and for comparisons, CSV for
//! spreadsheets.

use std::fmt::Write;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The range of runs, as a share of the median, above which they are noted as unreliable.
pub(super) const SPREAD: f64 = 0.1;

/// The report's record of each point.
pub trait Line {
    /// The benchmark's name.
    const BENCHMARK: &'static str;
    /// The version of the JSON. Members may be added under the same number; none changes its
    /// meaning.
    const SCHEMA_VERSION: u32;
    /// The columns of the CSV, with the names of the JSON's members.
    const COLUMNS: &'static [&'static str];

    /// Returns the fields, one for each column.
    fn fields(&self) -> Vec<String>;
}

/// A point that could not be measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unavailable<P> {
    /// The point.
    #[serde(flatten)]
    pub point: P,
    /// The reason.
    pub reason: String,
}

/// A whole run: its settings, its figures, and the points that it could not measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report<S, L, P> {
    /// [`Line::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// [`Line::BENCHMARK`].
    pub benchmark: String,
    /// The settings.
    pub settings: S,
    /// The environment.
    pub environment: Value,
    /// The figures.
    pub points: Vec<L>,
    /// The points that this machine or file system does not support.
    pub unavailable: Vec<Unavailable<P>>,
}

impl<S, L: Line, P> Report<S, L, P> {
    /// Creates a report without points.
    pub fn new(settings: S, environment: Value) -> Self {
        let (points, unavailable) = (Vec::new(), Vec::new());
        let (schema_version, benchmark) = (L::SCHEMA_VERSION, L::BENCHMARK.into());
        Self { schema_version, benchmark, settings, environment, points, unavailable }
    }

    /// Returns a CSV header and a line per point.
    pub fn csv(&self) -> String {
        let mut text = L::COLUMNS.join(",") + "\n";
        for line in &self.points {
            let fields = line.fields();
            debug_assert_eq!(fields.len(), L::COLUMNS.len());
            let _ = writeln!(text, "{}", fields.join(","));
        }
        text
    }
}

impl<S: Serialize, L: Serialize, P: Serialize> Report<S, L, P> {
    /// Returns the JSON that [`Report::parse`] reads.
    ///
    /// # Errors
    /// Never fails for a report of plain figures.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

impl<S: DeserializeOwned, L: Line + DeserializeOwned, P: DeserializeOwned> Report<S, L, P> {
    /// Reads a report.
    ///
    /// # Errors
    /// Returns a description of the error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| format!("it is no JSON: {e}"))?;
        if value["benchmark"] != L::BENCHMARK {
            return Err(format!("it is no report of `onehop bench {}`", L::BENCHMARK));
        }
        if value["schema_version"] != L::SCHEMA_VERSION {
            let (version, ours) = (&value["schema_version"], L::SCHEMA_VERSION);
            return Err(format!("its schema_version is {version}, and this version reads {ours}"));
        }
        serde_json::from_value(value).map_err(|e| format!("it is damaged: {e}"))
    }
}

/// Quotes a text field.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Formats a field that may be empty.
pub(crate) fn or_empty<T: ToString>(value: Option<T>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}
