//! A trained model as the catalog stores it: JSON, with numbers as strings that restore the same
//! bits. Also the system tables of models.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use onehop_learn::{Aliased, Term, Warning};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::catalog::Catalog;
use crate::error::{NEWER, nearest};
use crate::{Error, ErrorKind, Result};

/// A double that is written as the shortest string that restores it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Number(pub f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:?}", self.0))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// The kind of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Logistic,
    Linear,
}

impl Kind {
    /// Returns the prefix of its functions' names.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Logistic => "logregr",
            Self::Linear => "linregr",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Logistic => "logistic",
            Self::Linear => "linear",
        }
    }
}

/// A term.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ModelTerm {
    pub name: String,
    pub coefficient: Option<Number>,
    pub standard_error: Option<Number>,
    pub statistic: Option<Number>,
    pub p_value: Option<Number>,
}

/// A trained model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Model {
    pub kind: Kind,
    /// The table, as it was given.
    pub source: String,
    /// The label, as it was given.
    pub label: String,
    pub label_is_boolean: bool,
    pub intercept: Option<ModelTerm>,
    /// The features' terms.
    pub terms: Vec<ModelTerm>,
    /// The features as SQL expressions.
    pub expressions: Vec<String>,
    pub l2: Option<Number>,
    pub log_likelihood: Option<Number>,
    pub null_log_likelihood: Option<Number>,
    pub r2: Option<Number>,
    pub residual_error: Option<Number>,
    pub condition_number: Number,
    pub rows: u64,
    pub skipped_rows: u64,
    pub iterations: u32,
    pub converged: bool,
    pub warnings: Vec<String>,
    /// The device that ran the passes.
    pub device: String,
    /// The time of the whole training, in seconds.
    pub seconds: Number,
    /// The part of it that read the rows, in seconds.
    pub read_seconds: Number,
}

pub(super) const INTERCEPT: &str = "intercept";

impl ModelTerm {
    /// Creates a named term of a fit's term.
    pub fn new(name: &str, term: &Term) -> Self {
        Self {
            name: name.to_string(),
            coefficient: term.coefficient.map(Number),
            standard_error: term.standard_error.map(Number),
            statistic: term.statistic.map(Number),
            p_value: term.p_value.map(Number),
        }
    }
}

impl Model {
    /// Returns the model of a name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Corrupt`] if the record cannot be parsed.
    pub fn find(name: &str, catalog: &Catalog) -> Result<Self> {
        let Some(text) = catalog.models.get(name) else {
            let error = Error::new(ErrorKind::NotFound, format!("there is no model \"{name}\""));
            let names = catalog.models.keys().map(String::as_str);
            return Err(match nearest(name, names) {
                Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                None => error
                    .with_hint("logregr_train and linregr_train make models; onehop_models has those that are there"),
            });
        };
        serde_json::from_str(text).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("the model \"{name}\" cannot be read: {e}")).with_hint(NEWER)
        })
    }

    /// Returns the JSON for the catalog.
    pub fn encode(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("cannot write a model as JSON: {e}")))
    }

    /// Returns all terms, the intercept first.
    pub fn all_terms(&self) -> impl Iterator<Item = &ModelTerm> {
        self.intercept.iter().chain(&self.terms)
    }

    /// Returns the coefficients, the intercept first. A missing intercept and excluded features
    /// have 0.
    pub fn coefficients(&self) -> Vec<f64> {
        let value = |term: &ModelTerm| term.coefficient.map_or(0.0, |number| number.0);
        let intercept = self.intercept.as_ref().map_or(0.0, value);
        [intercept].into_iter().chain(self.terms.iter().map(value)).collect()
    }
}

/// Returns the text of a warning about a fit, with the features' names.
pub(super) fn described(warning: &Warning, features: &[String], iterations: u32) -> String {
    let name = |feature: &usize| features.get(*feature).map_or("?", String::as_str);
    match warning {
        Warning::LeftOut { feature, because: Aliased::Constant } => {
            format!("{} is left out: it has one value only, which cannot be told from the intercept", name(feature))
        }
        Warning::LeftOut { feature, because: Aliased::Combination(others) } if others.is_empty() => {
            format!("{} is left out: its values say nothing", name(feature))
        }
        Warning::LeftOut { feature, because: Aliased::Combination(others) } => {
            let others = others.iter().map(name).collect::<Vec<_>>().join(", ");
            format!("{} is left out: it is a linear combination of {others}", name(feature))
        }
        Warning::NearlyCollinear { feature, inflation } => format!(
            "{} is nearly a linear combination of the other features: they inflate the variance of its coefficient {inflation:.1e} times",
            name(feature)
        ),
        Warning::Separated => format!(
            "the features separate the labels perfectly, so there is no best model: coefficients would grow for ever; \
             these, of iteration {iterations}, have every row on its side; l2 => 1 makes them finite"
        ),
        Warning::Separating { wrong } => format!(
            "the features separate the labels of all rows but {wrong}, and coefficients still grow after {iterations} \
             iterations: most likely there is no best model; l2 => 1 makes them finite"
        ),
        Warning::QuasiSeparated { feature } => format!(
            "{} separates some rows of one label from all others, so there is no best model: its coefficient would grow \
             for ever; leave it out, or l2 => 1 makes it finite",
            feature.as_ref().map_or("the intercept", name)
        ),
        Warning::NotConverged { gain: None } => {
            "not converged: one iteration has nothing to be compared with; max_iter => 20 allows more".into()
        }
        Warning::NotConverged { gain: Some(gain) } => format!(
            "not converged: iteration {iterations} still gained {gain:.1e} of log-likelihood; max_iter => {} allows more",
            iterations.saturating_mul(2)
        ),
        Warning::Stalled => {
            "not converged: no step made the likelihood larger; are features of very different sizes, or nearly \
                             collinear?"
                .into()
        }
    }
}

fn numbers(values: impl Iterator<Item = Option<Number>>) -> ArrayRef {
    Arc::new(values.map(|number| number.map(|number| number.0)).collect::<Float64Array>())
}

fn texts<T: fmt::Display>(values: impl Iterator<Item = T>) -> ArrayRef {
    Arc::new(values.map(|value| Some(value.to_string())).collect::<StringArray>())
}

fn counts(values: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values.map(|count| count as i64)))
}

fn flags(values: impl Iterator<Item = bool>) -> ArrayRef {
    Arc::new(values.map(Some).collect::<BooleanArray>())
}

fn all(catalog: &Catalog) -> Result<Vec<(&String, Model)>> {
    catalog.models.keys().map(|name| Ok((name, Model::find(name, catalog)?))).collect()
}

/// Returns `onehop_models`: a row for each model.
pub(crate) fn models(catalog: &Catalog) -> Result<RecordBatch> {
    let models = all(catalog)?;
    let each = || models.iter().map(|(_, model)| model);
    let joined = |parts: Vec<&str>, by: &str| (!parts.is_empty()).then(|| parts.join(by));
    let features = each().map(|model| model.terms.iter().map(|term| term.name.as_str()).collect::<Vec<_>>().join(", "));
    let warnings = each().map(|model| joined(model.warnings.iter().map(String::as_str).collect(), "; "));
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("model_name", texts(models.iter().map(|(name, _)| name)), false),
        ("kind", texts(each().map(|model| model.kind.name())), false),
        ("source", texts(each().map(|model| &model.source)), false),
        ("label", texts(each().map(|model| &model.label)), false),
        ("features", texts(features), false),
        ("intercept", flags(each().map(|model| model.intercept.is_some())), false),
        ("l2", numbers(each().map(|model| model.l2)), true),
        ("log_likelihood", numbers(each().map(|model| model.log_likelihood)), true),
        ("null_log_likelihood", numbers(each().map(|model| model.null_log_likelihood)), true),
        ("r2", numbers(each().map(|model| model.r2)), true),
        ("residual_error", numbers(each().map(|model| model.residual_error)), true),
        ("condition_no", numbers(each().map(|model| Some(model.condition_number))), false),
        ("num_rows_processed", counts(each().map(|model| model.rows)), false),
        ("num_missing_rows_skipped", counts(each().map(|model| model.skipped_rows)), false),
        ("num_iterations", counts(each().map(|model| u64::from(model.iterations))), false),
        ("converged", flags(each().map(|model| model.converged)), false),
        ("warnings", Arc::new(warnings.collect::<StringArray>()) as ArrayRef, true),
        ("device", texts(each().map(|model| &model.device)), false),
        ("seconds", numbers(each().map(|model| Some(model.seconds))), false),
        ("read_seconds", numbers(each().map(|model| Some(model.read_seconds))), false),
    ])?)
}

/// Returns `onehop_model_terms`: a row for each term of each model.
pub(crate) fn model_terms(catalog: &Catalog) -> Result<RecordBatch> {
    let models = all(catalog)?;
    let terms: Vec<_> =
        models.iter().flat_map(|(name, model)| model.all_terms().enumerate().map(move |term| (name, term))).collect();
    let each = || terms.iter().map(|(_, (_, term))| *term);
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("model_name", texts(terms.iter().map(|(name, _)| name)), false),
        ("position", counts(terms.iter().map(|(_, (place, _))| *place as u64)), false),
        ("term", texts(each().map(|term| &term.name)), false),
        ("coef", numbers(each().map(|term| term.coefficient)), true),
        ("std_err", numbers(each().map(|term| term.standard_error)), true),
        ("statistic", numbers(each().map(|term| term.statistic)), true),
        ("p_value", numbers(each().map(|term| term.p_value)), true),
    ])?)
}

/// Returns the rows of a training call: one for each term.
pub(super) fn coefficients_table(model: &Model) -> Result<RecordBatch> {
    let each = || model.all_terms();
    let statistic = match model.kind {
        Kind::Logistic => "z_stat",
        Kind::Linear => "t_stat",
    };
    let mut columns = vec![
        ("term", texts(each().map(|term| &term.name)), false),
        ("coef", numbers(each().map(|term| term.coefficient)), true),
        ("std_err", numbers(each().map(|term| term.standard_error)), true),
        (statistic, numbers(each().map(|term| term.statistic)), true),
        ("p_value", numbers(each().map(|term| term.p_value)), true),
    ];
    if model.kind == Kind::Logistic {
        let odds = each().map(|term| term.coefficient.map(|number| Number(number.0.exp())));
        columns.push(("odds_ratio", numbers(odds), true));
    }
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_bit_by_bit() {
        for value in [0.1 + 0.2, -0.0, 5e-324, f64::MAX, f64::INFINITY, 1.0 / 3.0] {
            let text = serde_json::to_string(&Number(value)).unwrap();
            let back: Number = serde_json::from_str(&text).unwrap();
            assert_eq!(back.0.to_bits(), value.to_bits(), "{text}");
        }
    }
}
