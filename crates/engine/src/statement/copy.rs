//! `COPY table [(columns)] FROM 'path' [(options)]` and `COPY table | (query) TO 'path' [(options)]`.
//!
//! Options, after an optional WITH: `FORMAT csv`, `HEADER [true|false]`, `DELIMITER '|'`, `QUOTE '"'`, `ESCAPE '\'`,
//! `NULL 'text'`, `COMPRESSION zstd`. What is not given follows from the file: its format from its extension; a header
//! if the first line holds the table's column names; and a delimiter at the end of every line, as TPC-H's and SSB's
//! generators write it, from the first line.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Column, TableReference};
use datafusion::datasource::provider_as_source;
use datafusion::functions::core::expr_fn::nullif;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, cast, lit};
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;
use datafusion::sql::parser::{CopyToSource, CopyToStatement, Statement as DataFusionStatement};
use datafusion::sql::sqlparser::ast::{ObjectName, Value};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use futures::StreamExt;

use super::{Context, Statement, done, insert, parse_name_list, select, syntax, table_name};
use crate::database::Table;
use crate::error::nearest;
use crate::files::{self, CsvOptions, Format};
use crate::planner;
use crate::query::Done;
use crate::{Error, ErrorKind, Result};

/// `COPY ... FROM`
#[derive(Debug)]
pub(super) struct CopyFrom {
    table: String,
    columns: Vec<String>,
    path: String,
    options: Options,
}

/// `COPY ... TO`
#[derive(Debug)]
pub(super) struct CopyTo {
    source: CopyToSource,
    path: String,
    options: Options,
}

#[derive(Debug, Default)]
struct Options {
    format: Option<Format>,
    csv: CsvOptions,
    compression: Option<String>,
}

pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Statement> {
    parse_copy(parser).map_err(|e| syntax::<()>(Err(e)))?
}

fn parse_copy(parser: &mut Parser<'_>) -> std::result::Result<Result<Statement>, ParserError> {
    parser.expect_keyword(Keyword::COPY)?;
    if parser.consume_token(&Token::LParen) {
        let query = parser.parse_query()?;
        parser.expect_token(&Token::RParen)?;
        parser.expect_keyword(Keyword::TO)?;
        return parse_to(parser, CopyToSource::Query(query));
    }
    let name: ObjectName = parser.parse_object_name(false)?;
    let columns = match parser.peek_token().token {
        Token::LParen => parse_name_list(parser)?,
        _ => Vec::new(),
    };
    if parser.parse_keyword(Keyword::TO) {
        if columns.is_empty() {
            return parse_to(parser, CopyToSource::Relation(name));
        }
        return Err(ParserError::ParserError("COPY (SELECT ...) TO writes some of a table's columns".into()));
    }
    parser.expect_keyword(Keyword::FROM)?;
    let path = parser.parse_literal_string()?;
    let options = parse_options(parser)?;
    Ok(options
        .and_then(|options| Ok(Statement::CopyFrom(CopyFrom { table: table_name(&name)?, columns, path, options }))))
}

fn parse_to(parser: &mut Parser<'_>, source: CopyToSource) -> std::result::Result<Result<Statement>, ParserError> {
    let path = parser.parse_literal_string()?;
    let stored_as = if parser.parse_keywords(&[Keyword::STORED, Keyword::AS]) {
        Some(parser.parse_identifier()?.value)
    } else {
        None
    };
    let options = parse_options(parser)?;
    Ok(options.and_then(|mut options| {
        if let Some(name) = stored_as {
            options.format = Some(Format::parse(&name)?);
        }
        Ok(Statement::CopyTo(CopyTo { source, path, options }))
    }))
}

/// `[WITH | OPTIONS] (NAME [value], ...)`
fn parse_options(parser: &mut Parser<'_>) -> std::result::Result<Result<Options>, ParserError> {
    let _ = parser.parse_keyword(Keyword::WITH) || parser.parse_keyword(Keyword::OPTIONS);
    let mut options = Options::default();
    if !parser.consume_token(&Token::LParen) {
        return Ok(Ok(options));
    }
    let mut outcome = Ok(());
    loop {
        let name = parser.parse_identifier()?.value.to_lowercase();
        let value = match parser.peek_token().token {
            Token::Comma | Token::RParen => None,
            Token::Word(word) => {
                parser.next_token();
                Some(word.value)
            }
            _ => Some(match parser.parse_value()?.value {
                Value::Number(number, _) => number,
                Value::Boolean(b) => b.to_string(),
                other => other.clone().into_string().unwrap_or_else(|| other.to_string()),
            }),
        };
        outcome = outcome.and_then(|()| options.set(&name, value.as_deref()));
        if !parser.consume_token(&Token::Comma) {
            break;
        }
    }
    parser.expect_token(&Token::RParen)?;
    Ok(outcome.map(|()| options))
}

impl Options {
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let invalid =
            |wanted: &str| Err(Error::new(ErrorKind::Invalid, format!("{} takes {wanted}", name.to_uppercase())));
        match (name, value) {
            ("format", Some(format)) => self.format = Some(Format::parse(format)?),
            ("header", value) => match value.map(str::to_lowercase).as_deref() {
                None | Some("true" | "on" | "1") => self.csv.has_header = Some(true),
                Some("false" | "off" | "0") => self.csv.has_header = Some(false),
                Some(_) => return invalid("true or false"),
            },
            ("delimiter" | "delim" | "sep", Some(text)) => match text {
                "\\t" => self.csv.delimiter = Some(b'\t'),
                text if text.len() == 1 => self.csv.delimiter = Some(text.as_bytes()[0]),
                _ => return invalid("a single ASCII character"),
            },
            ("quote", Some(text)) if text.len() == 1 => self.csv.quote = Some(text.as_bytes()[0]),
            ("escape", Some(text)) if text.len() == 1 => self.csv.escape = Some(text.as_bytes()[0]),
            ("quote" | "escape", _) => return invalid("a single ASCII character"),
            ("null" | "nullstr", Some(text)) => self.csv.null = Some(text.to_string()),
            ("compression", Some(text)) => self.compression = Some(text.to_string()),
            ("format" | "delimiter" | "delim" | "sep" | "null" | "nullstr" | "compression", None) => {
                return invalid("a value");
            }
            (other, _) => {
                let known = ["format", "header", "delimiter", "quote", "escape", "null", "compression"];
                let error = Error::new(ErrorKind::Invalid, format!("COPY has no option {}", other.to_uppercase()));
                return Err(match nearest(other, known) {
                    Some(near) => error.with_hint(format!("did you mean {}?", near.to_uppercase())),
                    None => error.with_hint("options: FORMAT, HEADER, DELIMITER, QUOTE, ESCAPE, NULL, COMPRESSION"),
                });
            }
        }
        Ok(())
    }
}

impl CopyFrom {
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        let table = insert::own_table(&self.table, context)?;
        let wanted = self.wanted_columns(&table)?;
        let extension = files::parse_name(&self.path).extension;
        let format = match self.options.format {
            Some(format) => format,
            None => Format::parse(extension).unwrap_or(Format::Csv),
        };
        let source = match format {
            Format::Csv => self.open_csv(&wanted, context).await?,
            _ => files::open(&context.state, &self.path, Some(format), &self.options.csv, None).await?,
        };
        let plan = LogicalPlanBuilder::scan(TableReference::bare("file"), provider_as_source(source), None)?.build()?;
        let null = self.options.csv.null.as_deref().filter(|null| format == Format::Csv && !null.is_empty());
        let plan = fit(plan, &wanted, &table, &self.path, null)?;
        let rows = insert::append(plan, &table, context).await?;
        Ok(done("COPY", Some(rows)))
    }

    /// The table's columns that the file has, in the file's order.
    fn wanted_columns(&self, table: &Table) -> Result<Vec<Field>> {
        if self.columns.is_empty() {
            return Ok(table.schema.fields().iter().map(|f| f.as_ref().clone()).collect());
        }
        let field = |name: &String| match table.schema.field_with_name(name) {
            Ok(field) => Ok(field.clone()),
            Err(_) => {
                let error = Error::new(ErrorKind::NotFound, format!("there is no column \"{name}\" in {}", table.name));
                Err(match nearest(name, table.schema.fields().iter().map(|f| f.name().as_str())) {
                    Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                    None => error,
                })
            }
        };
        self.columns.iter().map(field).collect()
    }

    async fn open_csv(
        &self,
        wanted: &[Field],
        context: &Context<'_>,
    ) -> Result<Arc<dyn datafusion::catalog::TableProvider>> {
        let mut csv = self.options.csv.clone();
        let extension = files::parse_name(&self.path).extension;
        let delimiter = csv.delimiter.unwrap_or(match extension {
            "tsv" => b'\t',
            "tbl" => b'|',
            _ => b',',
        });
        csv.delimiter = Some(delimiter);
        // A text that stands for NULL is found among texts, before they are read as anything else.
        let as_read = |field: &Field| match csv.null.as_deref() {
            None | Some("") => field.clone().with_nullable(true),
            Some(_) => Field::new(field.name(), DataType::Utf8View, true),
        };
        let mut fields: Vec<Field> = wanted.iter().map(as_read).collect();
        let mut has_header = csv.has_header;
        if let Some(line) = first_line(&self.path)? {
            let names: Vec<String> =
                line.split(char::from(delimiter)).map(|name| name.trim().trim_matches('"').to_lowercase()).collect();
            let in_order = |name: &String| wanted.iter().find(|field| field.name().to_lowercase() == *name);
            let by_header: Option<Vec<Field>> = names.iter().map(|name| in_order(name).map(as_read)).collect();
            // A header that names the wanted columns says their order, too.
            let by_header = by_header.filter(|named| named.len() == wanted.len() && has_header != Some(false));
            has_header = Some(has_header.unwrap_or(by_header.is_some()));
            fields = by_header.unwrap_or(fields);
            if names.len() == wanted.len() + 1 && names.last().is_some_and(String::is_empty) {
                fields.push(Field::new(TRAILING, DataType::Utf8View, true));
            }
        }
        csv.has_header = Some(has_header.unwrap_or(false));
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        files::open(&context.state, &self.path, Some(Format::Csv), &csv, Some(schema)).await
    }
}

/// The empty column after a delimiter at the end of the line.
const TRAILING: &str = "\u{0}trailing";

/// The first line of a plain, uncompressed file; `None` where that is not to be had cheaply.
fn first_line(path: &str) -> Result<Option<String>> {
    use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
    let is_plain = files::parse_name(path).compression == FileCompressionType::UNCOMPRESSED;
    let first = match path.contains(['*', '?', '[']) {
        true => None,
        false => Some(std::path::PathBuf::from(path)).filter(|p| p.is_file()),
    };
    let Some(first) = first.filter(|_| is_plain) else { return Ok(None) };
    let failed = |e: std::io::Error| Error::from(onehop_io::Error::new(onehop_io::Operation::Read, path, e));
    let file = std::fs::File::open(&first).map_err(failed)?;
    let mut line = Vec::new();
    // A file without line ends is not read whole to find that out.
    BufReader::new(file.take(1 << 20)).read_until(b'\n', &mut line).map_err(failed)?;
    Ok(Some(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_string()))
}

/// Columns of a file as columns of the table: by name if the file has the wanted names, else by position if it has as
/// many; NULL for columns that the file is not asked for.
fn fit(plan: LogicalPlan, wanted: &[Field], table: &Table, path: &str, null: Option<&str>) -> Result<LogicalPlan> {
    let have: Vec<String> =
        plan.schema().fields().iter().map(|f| f.name().clone()).filter(|name| name != TRAILING).collect();
    let by_name = wanted.iter().all(|field| have.iter().any(|name| name == field.name()));
    if !by_name && have.len() != wanted.len() {
        let message = format!(
            "'{path}' has {} columns, and {} takes {}{}",
            have.len(),
            table.name,
            wanted.len(),
            if wanted.len() == table.schema.fields().len() { "" } else { " of them here" },
        );
        return Err(Error::new(ErrorKind::Invalid, message).with_hint(format!(
            "columns of the file: {}",
            have.iter().take(12).cloned().collect::<Vec<_>>().join(", ")
        )));
    }
    let source = |field: &Field| -> Option<&String> {
        let position = wanted.iter().position(|w| w.name() == field.name())?;
        if by_name { have.iter().find(|name| *name == field.name()) } else { have.get(position) }
    };
    let columns = table.schema.fields().iter().map(|field| {
        let value = match source(field) {
            Some(name) => {
                let column = Expr::Column(Column::new(Some("file"), name));
                match null {
                    Some(null) => nullif(column, lit(null)),
                    None => column,
                }
            }
            None => lit(ScalarValue::Null),
        };
        cast(value, field.data_type().clone()).alias(field.name())
    });
    Ok(LogicalPlanBuilder::new(plan).project(columns)?.build()?)
}

impl CopyTo {
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

    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        let extension = files::parse_name(&self.path).extension;
        let format = match self.options.format {
            Some(format) => format,
            None => Format::parse(extension).map_err(|_| {
                let error = Error::new(
                    ErrorKind::Invalid,
                    format!("the name '{}' does not say which format to write", self.path),
                );
                error.with_hint("end it in .parquet, .arrow, .csv or .json, or add (FORMAT ...)")
            })?,
        };
        let mut options = Vec::new();
        let mut set =
            |name: &str, value: String| options.push((format!("format.{name}"), Value::SingleQuotedString(value)));
        if format == Format::Csv {
            let csv = &self.options.csv;
            let default = if extension == "tsv" { b'\t' } else { b',' };
            set("has_header", csv.has_header.unwrap_or(true).to_string());
            set("delimiter", char::from(csv.delimiter.unwrap_or(default)).to_string());
            if let Some(quote) = csv.quote {
                set("quote", char::from(quote).to_string());
            }
            if let Some(null) = &csv.null {
                set("null_value", null.clone());
            }
        }
        if let Some(compression) = self.compression(format)? {
            set("compression", compression);
        }
        let statement = DataFusionStatement::CopyTo(CopyToStatement {
            source: self.source,
            target: self.path,
            partitioned_by: Vec::new(),
            stored_as: Some(format.copy_name().into()),
            options,
        });
        let plan = planner::plan(&context.state, statement).await?;
        let mut rows = select::query(&plan, context).await?;
        let mut written = 0;
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            let counts = arrow::compute::cast(batch.column(0), &DataType::UInt64)?;
            let counts = arrow::array::AsArray::as_primitive::<arrow::datatypes::UInt64Type>(&counts);
            written += counts.iter().flatten().sum::<u64>();
        }
        Ok(done("COPY", Some(written)))
    }
}
