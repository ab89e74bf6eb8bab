//! `COPY table | (query) TO 'path'`: rows into a file, which is there as a whole when the statement returns, or not.
//!
//! DataFusion plans and encodes, in parallel and as a stream; [`written`] says what of values, and [`Export`] is where to.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, UInt64Type};
use datafusion::sql::parser::{CopyToSource, CopyToStatement, Statement as DataFusionStatement};
use datafusion::sql::sqlparser::ast::Value;
use futures::StreamExt;

use super::Options;
use crate::files::export::Export;
use crate::files::{Format, Sites, parse_name, written};
use crate::planner;
use crate::query::Done;
use crate::statement::{Context, done, select};
use crate::{Error, ErrorKind, Result};

/// `COPY ... TO`
#[derive(Debug)]
pub(in crate::statement) struct CopyTo {
    pub(super) source: CopyToSource,
    pub(super) path: String,
    pub(super) options: Options,
}

impl CopyTo {
    /// See [`planner::settle`].
    pub fn settle(&mut self) -> Result<()> {
        match &mut self.source {
            CopyToSource::Query(query) => planner::settle(query.as_mut()),
            CopyToSource::Relation(_) => Ok(()),
        }
    }

    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        let format = self.format()?;
        self.options.check(format)?;
        let options = self.format_options(format)?;
        let (sites, ledger) = (Sites::of(&**context.state()?)?, Arc::clone(context.query.shared_ledger()));
        let export = Export::start(&self.path, context.database.path(), sites, ledger).await?;
        match write(self.source, format, options, &export, context).await {
            Ok(rows) => {
                export.commit().await?;
                Ok(done("COPY", Some(rows)))
            }
            // The encoders say that something could not be written, and not what the system said to it.
            Err(e) => Err(export.refusal().unwrap_or(e)),
        }
    }

    fn format(&self) -> Result<Format> {
        let named = || {
            Format::parse(parse_name(&self.path).extension).map_err(|_| {
                let message = format!("the name '{}' does not say which format to write", self.path);
                let error = Error::new(ErrorKind::Invalid, message);
                error.with_hint("end it in .parquet, .arrow, .csv or .json, or add (FORMAT ...)")
            })
        };
        self.options.format.map_or_else(named, Ok)
    }

    /// What was asked for; of text files, what their name promises.
    fn compression(&self, format: Format) -> Result<Option<String>> {
        let promised = match self.path.rsplit('.').next() {
            Some("gz") => Some("gzip"),
            Some("bz2") => Some("bzip2"),
            Some("xz") => Some("xz"),
            Some("zst") => Some("zstd"),
            _ => None,
        };
        let is_text = matches!(format, Format::Csv | Format::Json);
        let asked = self.options.compression.as_deref().map(str::to_lowercase);
        match (asked, promised.filter(|_| is_text)) {
            (Some(asked), Some(promised)) if asked != promised => {
                let message = format!("'{}' promises {promised}, and COMPRESSION says {asked}", self.path);
                Err(Error::new(ErrorKind::Invalid, message))
            }
            (Some(_), _) if format == Format::Arrow => {
                let error = Error::new(ErrorKind::Invalid, "COMPRESSION is for parquet, csv and json");
                Err(error.with_hint("Arrow files are written with LZ4"))
            }
            // Parquet's codecs with levels want one: their libraries' defaults.
            (Some(asked), _) if format == Format::Parquet => Ok(Some(match asked.as_str() {
                "zstd" => "zstd(3)".into(),
                "gzip" => "gzip(6)".into(),
                "brotli" => "brotli(4)".into(),
                _ => asked,
            })),
            (asked, promised) => Ok(asked.or(promised.map(str::to_string))),
        }
    }

    /// The options in DataFusion's words.
    fn format_options(&self, format: Format) -> Result<Vec<(String, Value)>> {
        let mut options = Vec::new();
        let mut set =
            |name: &str, value: String| options.push((format!("format.{name}"), Value::SingleQuotedString(value)));
        if format == Format::Csv {
            let csv = &self.options.csv;
            let default = if parse_name(&self.path).extension == "tsv" { b'\t' } else { b',' };
            set("has_header", csv.has_header.unwrap_or(true).to_string());
            set("delimiter", char::from(csv.delimiter.unwrap_or(default)).to_string());
            if let Some(quote) = csv.quote {
                set("quote", char::from(quote).to_string());
            }
            if let Some(escape) = csv.escape.filter(|escape| Some(*escape) != csv.quote.or(Some(b'"'))) {
                set("escape", char::from(escape).to_string());
                set("double_quote", "false".into());
            }
            if let Some(null) = &csv.null {
                set("null_value", null.clone());
            }
        }
        if let Some(compression) = self.compression(format)? {
            set("compression", compression);
        }
        Ok(options)
    }
}

/// Runs the query into the target; the number of rows.
async fn write(
    source: CopyToSource,
    format: Format,
    options: Vec<(String, Value)>,
    export: &Export,
    context: &Context<'_>,
) -> Result<u64> {
    let (url, store) = export.store()?;
    context.state()?.runtime_env().register_object_store(&url, store);
    let statement = DataFusionStatement::CopyTo(CopyToStatement {
        source,
        target: url.to_string(),
        partitioned_by: Vec::new(),
        stored_as: Some(format.copy_name().into()),
        options,
    });
    let plan = written::as_values(context.plan(statement).await?, format)?;
    let mut counts = select::query(plan, context).await?;
    let mut written = 0;
    while let Some(batch) = counts.next().await {
        let batch = arrow::compute::cast(batch?.column(0), &DataType::UInt64)?;
        written += batch.as_primitive::<UInt64Type>().iter().flatten().sum::<u64>();
    }
    Ok(written)
}
