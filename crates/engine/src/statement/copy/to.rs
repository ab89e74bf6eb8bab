//! `COPY table | (query) TO 'path'`: rows into a file, which exists as a whole when the statement
//! returns, or not at all.
//!
//! DataFusion plans and encodes, in parallel and as a stream, and writes to an [`Export`]. Text is
//! encoded by [`WriteOptions`].

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, UInt64Type};
use datafusion::common::GetExt;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::format_as_file_type;
use datafusion::logical_expr::dml::CopyTo as DataFusionCopyTo;
use datafusion::logical_expr::{EmptyRelation, LogicalPlan};
use datafusion::sql::parser::{CopyToSource, CopyToStatement, Statement as DataFusionStatement};
use datafusion::sql::sqlparser::ast::Value;
use futures::StreamExt;

use super::{Options, written_types};
use crate::files::export::Export;
use crate::files::{Encoding, Format, Sites, WriteOptions, parse_name};
use crate::planner;
use crate::query::Done;
use crate::statement::{Context, done, select};
use crate::{Error, ErrorKind, Result};

/// A parsed `COPY ... TO`.
#[derive(Debug)]
pub(in crate::statement) struct CopyTo {
    pub(super) source: CopyToSource,
    pub(super) path: String,
    pub(super) options: Options,
}

impl CopyTo {
    /// Returns the table, unless the source is a query, and the path.
    pub fn ends(&self) -> (Option<String>, &str) {
        let table = match &self.source {
            CopyToSource::Relation(name) => Some(name.to_string()),
            CopyToSource::Query(_) => None,
        };
        (table, &self.path)
    }

    /// See [`planner::settle`].
    pub fn settle(&mut self) -> Result<()> {
        match &mut self.source {
            CopyToSource::Query(query) => planner::settle(query.as_mut()),
            CopyToSource::Relation(_) => Ok(()),
        }
    }

    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        let format = self.format()?;
        self.options.check(format)?;
        let options = self.format_options(format)?;
        let text = (format == Format::Csv).then(|| self.text_options()).transpose()?;
        let (sites, ledger) = (Sites::of(&**context.state()?)?, Arc::clone(context.query.shared_ledger()));
        let export = Export::start(&self.path, context.database.path(), sites, ledger).await?;
        let extension = self.extension(format)?;
        match write(self.source, (format, &extension), options, text, &export, context).await {
            Ok(rows) => {
                export.commit().await?;
                Ok(done("COPY", Some(rows)))
            }
            // The encoders' errors lack the operating system's error, which the export keeps.
            Err(e) => Err(export.refusal().unwrap_or(e)),
        }
    }

    fn format(&self) -> Result<Format> {
        let named = || {
            Format::parse(&parse_name(&self.path).extension).map_err(|_| {
                let message = format!("the name '{}' does not say which format to write", self.path);
                let error = Error::new(ErrorKind::Invalid, message);
                error.with_hint("end it in .parquet, .arrow, .csv or .json, or add (FORMAT ...)")
            })
        };
        self.options.format.map_or_else(named, Ok)
    }

    /// Returns the requested compression or, for text files, the one that the file's extension
    /// names.
    fn compression(&self, format: Format) -> Result<Option<String>> {
        let extension = self.path.rsplit('.').next().map(str::to_ascii_lowercase);
        let promised = match extension.as_deref() {
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
            // Parquet's codecs with levels require one: these are the defaults of their libraries.
            (Some(asked), _) if format == Format::Parquet => Ok(Some(match asked.as_str() {
                "zstd" => "zstd(3)".into(),
                "gzip" => "gzip(6)".into(),
                "brotli" => "brotli(4)".into(),
                _ => asked,
            })),
            (asked, promised) => Ok(asked.or(promised.map(str::to_string))),
        }
    }

    /// Returns the extension of the files in a directory.
    fn extension(&self, format: Format) -> Result<String> {
        let compression = match format {
            Format::Csv | Format::Json => self.compression(format)?,
            Format::Parquet | Format::Arrow => None,
        };
        let compression = compression.map(|name| name.parse::<FileCompressionType>()).transpose()?;
        let suffix = compression.map_or_else(String::new, |compression| compression.get_ext());
        Ok(format!("{}{suffix}", format.copy_name().to_lowercase()))
    }

    /// Returns the options for writing text.
    fn text_options(&self) -> Result<WriteOptions> {
        let csv = &self.options.csv;
        let of_reading = [
            ("SKIP", csv.skip.is_some()),
            ("COMMENT", csv.comment.is_some()),
            ("NULL_PADDING", csv.null_padding),
            ("SAMPLE_SIZE", csv.sample_size.is_some()),
            ("ALL_VARCHAR", csv.all_varchar),
            ("ENCODING latin1", csv.encoding != Encoding::Utf8),
        ];
        if let Some((name, _)) = of_reading.iter().find(|(_, is_given)| *is_given) {
            return Err(Error::new(ErrorKind::Invalid, format!("{name} is an option of COPY FROM")));
        }
        let quote = csv.quote.unwrap_or(Some(b'"'));
        let quote = quote.ok_or_else(|| Error::new(ErrorKind::Invalid, "COPY TO needs a QUOTE"))?;
        let default = if parse_name(&self.path).extension == "tsv" { b'\t' } else { b',' };
        let compression = match self.compression(Format::Csv)? {
            Some(name) => name.parse::<FileCompressionType>()?,
            None => FileCompressionType::UNCOMPRESSED,
        };
        Ok(WriteOptions {
            delimiter: csv.delimiter.unwrap_or(default),
            quote,
            escape: csv.escape.unwrap_or(quote),
            null: csv.null.clone().unwrap_or_default(),
            has_header: csv.has_header.unwrap_or(true),
            compression,
        })
    }

    /// Returns the options in DataFusion's terms.
    fn format_options(&self, format: Format) -> Result<Vec<(String, Value)>> {
        if format == Format::Csv {
            return Ok(Vec::new());
        }
        let compression = self.compression(format)?;
        let option = |value| ("format.compression".to_string(), Value::SingleQuotedString(value));
        Ok(compression.map(option).into_iter().collect())
    }
}

/// Runs the query into the target. Returns the number of rows.
async fn write(
    source: CopyToSource,
    (format, extension): (Format, &str),
    options: Vec<(String, Value)>,
    text: Option<WriteOptions>,
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
    let mut plan = context.plan(statement).await?;
    if let LogicalPlan::Copy(copy) = &mut plan {
        if let Some(text) = text {
            copy.file_type = format_as_file_type(Arc::new(text));
        }
        copy.input = written_types::of_plan(&copy.input, format)?;
    }
    let empty = match (&plan, export.file_without_rows(extension)?) {
        (LogicalPlan::Copy(copy), Some(url)) => {
            let none = EmptyRelation { produce_one_row: false, schema: Arc::clone(copy.input.schema()) };
            let input = Arc::new(LogicalPlan::EmptyRelation(none));
            Some(LogicalPlan::Copy(DataFusionCopyTo { input, output_url: url.to_string(), ..copy.clone() }))
        }
        _ => None,
    };
    let written = rows_of(plan, context).await?;
    // A directory without files would have no columns.
    if let Some(empty) = empty.filter(|_| written == 0) {
        rows_of(empty, context).await?;
    }
    Ok(written)
}

/// Runs a plan that writes. Returns the number of rows.
async fn rows_of(plan: LogicalPlan, context: &Context<'_>) -> Result<u64> {
    let mut counts = select::query(plan, context).await?;
    let mut written = 0;
    while let Some(batch) = counts.next().await {
        let batch = arrow::compute::cast(batch?.column(0), &DataType::UInt64)?;
        written += batch.as_primitive::<UInt64Type>().iter().flatten().sum::<u64>();
    }
    Ok(written)
}
