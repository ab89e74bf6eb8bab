//! What a benchmark of points found, as it is kept: JSON for programs and for comparisons, CSV for spreadsheets.

use std::fmt::Write;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Runs further apart than this, as a share of the median, say little.
pub(super) const SPREAD: f64 = 0.1;

/// What a report has of each point.
pub trait Line {
    /// The benchmark's name.
    const BENCHMARK: &'static str;
    /// The version of the JSON. Members may be added under the same number; none changes its meaning.
    const SCHEMA_VERSION: u32;
    /// The columns of the CSV, with the names of the JSON's members.
    const COLUMNS: &'static [&'static str];

    /// Its fields, one for each column.
    fn fields(&self) -> Vec<String>;
}

/// A point that could not be measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unavailable<P> {
    /// The point.
    #[serde(flatten)]
    pub point: P,
    /// What the system said.
    pub reason: String,
}

/// A whole run: its settings, its figures, and the points that it could not measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report<S, L, P> {
    /// [`Line::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// [`Line::BENCHMARK`].
    pub benchmark: String,
    /// How it was measured.
    pub settings: S,
    /// On what.
    pub environment: Value,
    /// The figures.
    pub points: Vec<L>,
    /// What this machine or file system does not have.
    pub unavailable: Vec<Unavailable<P>>,
}

impl<S, L: Line, P> Report<S, L, P> {
    /// One without points.
    pub fn new(settings: S, environment: Value) -> Self {
        let (points, unavailable) = (Vec::new(), Vec::new());
        let (schema_version, benchmark) = (L::SCHEMA_VERSION, L::BENCHMARK.into());
        Self { schema_version, benchmark, settings, environment, points, unavailable }
    }

    /// A header and a line per point.
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
    /// As [`Report::parse`] reads it.
    ///
    /// # Errors
    /// None that a report of plain figures has.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

impl<S: DeserializeOwned, L: Line + DeserializeOwned, P: DeserializeOwned> Report<S, L, P> {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it.
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

/// A field of text.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// A field that may have nothing in it.
pub(crate) fn or_empty<T: ToString>(value: Option<T>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}
