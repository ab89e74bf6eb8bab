//! `read_csv('x.csv', delim = ';')` and `read_parquet(['a.parquet', 'b.parquet'], union_by_name =
//! true)`: files as tables, with options.
//!
//! The planner replaces a call by a table name that no statement can write ([`FileCall::name`]).
//! Like a path, the name is opened when names are resolved.

use std::sync::Arc;

use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use serde::{Deserialize, Serialize};

use super::{CsvOptions, Format, Sites, Source, Union, options};
use crate::error::nearest;
use crate::{Error, ErrorKind, Result};

/// The first character of the names of calls.
const MARK: char = '\u{0}';

/// A call of one of the functions.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FileCall {
    pub function: String,
    pub paths: Vec<String>,
    /// The options: names in lower case, and values.
    pub options: Vec<(String, Option<String>)>,
    /// The reason why the call is invalid, if its syntax is wrong.
    pub refused: Option<String>,
}

/// Returns the format that a function reads.
pub(crate) fn format(function: &str) -> Option<Format> {
    Some(match function {
        "read_csv" | "read_csv_auto" => Format::Csv,
        "read_parquet" | "parquet_scan" => Format::Parquet,
        "read_json" | "read_json_auto" | "read_ndjson" => Format::Json,
        "read_arrow" => Format::Arrow,
        _ => return None,
    })
}

impl FileCall {
    /// Returns the name that represents the call.
    pub fn name(&self) -> String {
        format!("{MARK}{}", serde_json::to_string(self).unwrap_or_default())
    }

    /// Returns the call of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        serde_json::from_str(name.strip_prefix(MARK)?).ok()
    }

    /// Opens the files as a table.
    pub async fn open(&self, state: &dyn DataFusionSession) -> Result<Arc<dyn TableProvider>> {
        let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
        if let Some(reason) = &self.refused {
            return Err(invalid(format!("{}: {reason}", self.function))
                .with_hint(format!("{}('path', option = value, ...)", self.function)));
        }
        let format = format(&self.function).ok_or_else(|| invalid(format!("no function {}", self.function)))?;
        let (mut csv, mut union) = (CsvOptions::default(), Union::Same);
        for (name, value) in &self.options {
            match (name.as_str(), value.as_deref()) {
                ("union_by_name", None | Some("true")) => union = Union::ByName,
                ("union_by_name", Some("false")) => union = Union::Same,
                ("union_by_name", _) => return Err(invalid("union_by_name takes true or false".into())),
                (name, value) if takes(format, name) && csv.set(name, value)? => {}
                (name, _) => return Err(self.no_option(name, format)),
            }
        }
        csv.check()?;
        let sites = Sites::of(state)?;
        let mut sources = Vec::with_capacity(self.paths.len());
        for path in &self.paths {
            sources.push(Source::find(path, Some(format), None, Arc::clone(&sites)).await?);
        }
        let source = Source::joined(sources)?;
        source.table(state, &csv, union, None).await
    }

    fn no_option(&self, name: &str, format: Format) -> Error {
        let error = Error::new(ErrorKind::Invalid, format!("{} has no option {name}", self.function));
        let known = || options::NAMES.into_iter().filter(move |name| takes(format, name)).chain(["union_by_name"]);
        match nearest(name, known()) {
            Some(near) => error.with_hint(format!("did you mean {near}?")),
            None => error.with_hint(format!("options: {}", known().collect::<Vec<_>>().join(", "))),
        }
    }
}

/// Returns whether a format accepts a text option.
fn takes(format: Format, option: &str) -> bool {
    match format {
        Format::Csv => true,
        Format::Json => option == "sample_size",
        Format::Parquet | Format::Arrow => false,
    }
}
