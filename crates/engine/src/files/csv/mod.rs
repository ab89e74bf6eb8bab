//! Separated text as a format of DataFusion's, read by ourselves: [`records`] cuts, arrow parses, [`fault`] explains.
//!
//! DataFusion reads a text file in ranges of bytes and takes any line end near their bounds for the end of a record, so
//! that values with line ends in large files come out wrong; its errors name neither file nor line; and a column that
//! is empty in the first rows stays empty, whatever comes later. Here:
//!
//! 1. One stream reads a file front to back, in chunks that end with a record, and so keeps the order of its rows.
//! 2. Chunks are parsed by as many tasks as the scan has threads for the file, a few chunks ahead.
//! 3. Names and types of a file that no table describes are those of its first chunk; see [`CsvFormat::guess`].

mod fault;
mod records;

use std::fmt;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format as Sample;
use arrow::datatypes::{DataType, Field, Fields, Float32Type, Float64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use async_trait::async_trait;
use datafusion::catalog::Session as DataFusionSession;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as DataFusionResult, Statistics};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileScanConfigBuilder, FileSource,
};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore};
use regex::Regex;

use self::fault::Fault;
use self::records::{CHUNK_BYTES, Chunk, Chunks};
use super::glob::Found;
use super::site::Site;
use super::{Names, blocking, directory_columns, parse_name};
use crate::query::Query;
use crate::{Error, ErrorKind, Result};

/// Rows that types are guessed from.
const SAMPLE_ROWS: usize = 1000;
/// Enough for the first record of most files.
const PEEK_BYTES: usize = 64 << 10;

/// The name of the column without a value that a delimiter at the end of every line makes.
pub(crate) const TRAILING: &str = "\u{0}trailing";

/// The bytes that mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub delimiter: u8,
    pub quote: u8,
    pub escape: Option<u8>,
}

/// Where the types of columns come from; errors say what to do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Types {
    Declared,
    Guessed,
}

/// How files of one statement are read.
#[derive(Clone, Debug)]
pub(super) struct CsvFormat {
    pub site: Site,
    pub dialect: Dialect,
    pub has_header: bool,
    /// Beside nothing at all, what stands for NULL.
    pub null: Option<String>,
    pub types: Types,
    pub names: Names,
    /// Counts what is read.
    pub query: Option<Arc<Query>>,
}

impl CsvFormat {
    fn chunks(&self, name: &str, path: &str, chunk_bytes: usize) -> Result<Chunks> {
        let compression = parse_name(name).compression;
        let ledger = self.query.as_ref().map(|query| Arc::clone(query.shared_ledger()));
        let file = self.site.open(path, ledger).map_err(Fault::Io);
        file.and_then(|file| Chunks::of(file, compression, self.dialect, chunk_bytes))
            .map_err(|fault| fault.into_error(name, self.types, self.has_header))
    }

    fn parse(&self, schema: SchemaRef, columns: Vec<usize>, batch_rows: usize) -> Result<Parse> {
        // Empty stays NULL as well: a file cannot tell the empty text from nothing.
        let null = self.null.as_deref().filter(|null| !null.is_empty());
        let null = null.map(|null| Regex::new(&format!("^(?:{})?$", regex::escape(null)))).transpose();
        let null = null.map_err(|e| Error::new(ErrorKind::Invalid, "the text for NULL is too long").with_source(e))?;
        Ok(Parse { dialect: self.dialect, has_header: self.has_header, null, schema, columns, batch_rows })
    }

    /// Names and types by the header and the first rows; NULL is the type of a column without any value there.
    fn guess(&self, name: &str, path: &str) -> Result<Schema> {
        let failed = |fault: Fault| fault.into_error(name, self.types, self.has_header);
        let Some(chunk) = self.chunks(name, path, CHUNK_BYTES)?.next().map_err(failed)? else {
            return Ok(Schema::empty());
        };
        let Dialect { delimiter, quote, escape } = self.dialect;
        let mut sample = Sample::default().with_header(self.has_header).with_delimiter(delimiter).with_quote(quote);
        if let Some(escape) = escape {
            sample = sample.with_escape(escape);
        }
        match sample.infer_schema(chunk.bytes.as_slice(), Some(SAMPLE_ROWS)) {
            Ok((schema, _)) => Ok(named(&schema)),
            Err(reason) => {
                let first = chunk.bytes.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
                let (fields, _) = fault::split(&chunk.bytes[first..], self.dialect);
                let text = |(at, name): (usize, &Vec<u8>)| match std::str::from_utf8(name) {
                    Ok(name) if self.has_header => Field::new(name, DataType::Utf8, true),
                    _ => Field::new(format!("column_{}", at + 1), DataType::Utf8, true),
                };
                let schema = Arc::new(Schema::new(fields.iter().enumerate().map(text).collect::<Fields>()));
                let columns = (0..fields.len()).collect();
                Err(failed(fault::find(&chunk, &self.parse(schema, columns, SAMPLE_ROWS)?, Some(reason))))
            }
        }
    }

    /// The fields of the first line that is not empty, if there is one.
    pub fn first_record(&self, file: &Found) -> Result<Option<Vec<String>>> {
        let failed = |fault: Fault| fault.into_error(&file.name, self.types, self.has_header);
        let Some(chunk) = self.chunks(&file.name, &file.path, PEEK_BYTES)?.next().map_err(failed)? else {
            return Ok(None);
        };
        let blank = chunk.bytes.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        if blank == chunk.bytes.len() {
            return Ok(None);
        }
        let (fields, _) = fault::split(&chunk.bytes[blank..], self.dialect);
        Ok(Some(fields.iter().map(|field| String::from_utf8_lossy(field).into_owned()).collect()))
    }
}

/// Columns that can be told apart: a name for those without, numbers for those that repeat one.
fn named(schema: &Schema) -> Schema {
    let mut taken: Vec<String> = Vec::new();
    let fields = schema.fields().iter().enumerate().map(|(at, field)| {
        let name = match field.name().trim() {
            "" => format!("column_{}", at + 1),
            name => name.to_string(),
        };
        let numbered = (1..).map(|n| format!("{name}_{n}"));
        let name = std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or(name);
        taken.push(name.clone());
        Field::new(name, field.data_type().clone(), true)
    });
    Schema::new(fields.collect::<Fields>())
}

/// From bytes to columns.
#[derive(Clone, Debug)]
struct Parse {
    dialect: Dialect,
    has_header: bool,
    null: Option<Regex>,
    /// All columns of the file.
    schema: SchemaRef,
    /// Those that are wanted.
    columns: Vec<usize>,
    batch_rows: usize,
}

impl Parse {
    fn chunk(&self, chunk: &Chunk) -> std::result::Result<Vec<RecordBatch>, Fault> {
        let skips_header = self.has_header && chunk.is_first();
        let refused = |reason| fault::find(chunk, self, Some(reason));
        let mut batches = match self.trailing() {
            Some(trailing) => {
                let columns: Vec<usize> = self.columns.iter().copied().chain([trailing]).collect();
                self.batches(&chunk.bytes, &columns, skips_header)
            }
            None => self.batches(&chunk.bytes, &self.columns, skips_header),
        }
        .map_err(refused)?;
        // A number that is too large for a DOUBLE is read as infinity.
        if batches.iter().any(|batch| has_infinity(batch) || has_trailing_text(batch)) {
            match fault::find(chunk, self, None) {
                Fault::Other { reason: None, .. } => {}
                fault => return Err(fault),
            }
        }
        if self.trailing().is_some() {
            let wanted: Vec<usize> = (0..self.columns.len()).collect();
            batches = batches
                .iter()
                .map(|batch| batch.project(&wanted))
                .collect::<std::result::Result<_, _>>()
                .map_err(refused)?;
        }
        Ok(batches)
    }

    /// Where the column is that has to be empty, if there is one.
    fn trailing(&self) -> Option<usize> {
        let last = self.schema.fields().len().checked_sub(1)?;
        (self.schema.field(last).name() == TRAILING).then_some(last)
    }

    fn batches(
        &self,
        bytes: &[u8],
        columns: &[usize],
        skips_header: bool,
    ) -> std::result::Result<Vec<RecordBatch>, ArrowError> {
        let mut builder = ReaderBuilder::new(Arc::clone(&self.schema))
            .with_delimiter(self.dialect.delimiter)
            .with_quote(self.dialect.quote)
            .with_header(skips_header)
            .with_batch_size(self.batch_rows)
            .with_projection(columns.to_vec());
        if let Some(escape) = self.dialect.escape {
            builder = builder.with_escape(escape);
        }
        if let Some(null) = &self.null {
            builder = builder.with_null_regex(null.clone());
        }
        let mut decoder = builder.build_decoder();
        let mut batches = Vec::new();
        let mut rest = bytes;
        loop {
            // Called once more with nothing, it ends the last record.
            let used = decoder.decode(rest)?;
            let is_done = rest.is_empty();
            rest = &rest[used..];
            if is_done || decoder.capacity() == 0 {
                batches.extend(decoder.flush()?);
            }
            if is_done {
                return Ok(batches);
            }
        }
    }
}

/// Whether something follows the delimiter that should end the line. Nothing at all is read as NULL.
fn has_trailing_text(batch: &RecordBatch) -> bool {
    batch.column_by_name(TRAILING).is_some_and(|column| column.null_count() < column.len())
}

fn has_infinity(batch: &RecordBatch) -> bool {
    batch.columns().iter().any(|column| match column.data_type() {
        DataType::Float32 => column.as_primitive::<Float32Type>().values().iter().any(|value| value.is_infinite()),
        DataType::Float64 => column.as_primitive::<Float64Type>().values().iter().any(|value| value.is_infinite()),
        _ => false,
    })
}

#[async_trait]
impl FileFormat for CsvFormat {
    fn get_ext(&self) -> String {
        "csv".into()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> DataFusionResult<String> {
        use datafusion::common::GetExt;
        Ok(format!("{}{}", self.get_ext(), compression.get_ext()))
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        None
    }

    async fn infer_schema(
        &self,
        _state: &dyn DataFusionSession,
        _store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> DataFusionResult<SchemaRef> {
        let [object] = objects else {
            return Err(Error::new(ErrorKind::Internal, "the types of files are guessed one at a time").into());
        };
        let (name, path) = self.names.of(&object.location);
        let format = self.clone();
        let guess = SpawnedTask::spawn_blocking(move || format.guess(&name, &path)).join_unwind().await;
        Ok(Arc::new(guess.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))??))
    }

    async fn infer_stats(
        &self,
        _state: &dyn DataFusionSession,
        _store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> DataFusionResult<Statistics> {
        let mut statistics = Statistics::new_unknown(&table_schema);
        statistics.total_byte_size = Precision::Inexact(object.size as usize);
        Ok(statistics)
    }

    async fn create_physical_plan(
        &self,
        state: &dyn DataFusionSession,
        config: FileScanConfig,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let Some(source) = config.file_source().downcast_ref::<CsvSource>() else {
            return Err(Error::new(ErrorKind::Internal, "a scan of text by another format's source").into());
        };
        let parsers = state.config().target_partitions().div_ceil(config.file_groups.len().max(1));
        let source = Arc::new(CsvSource { parsers, ..source.clone() });
        Ok(DataSourceExec::from_data_source(FileScanConfigBuilder::from(config).with_source(source).build()))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(CsvSource {
            format: Arc::new(self.clone()),
            projection: SplitProjection::unprojected(&table_schema),
            table_schema,
            batch_rows: SAMPLE_ROWS,
            parsers: 1,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }
}

/// A scan of text files.
#[derive(Clone)]
struct CsvSource {
    format: Arc<CsvFormat>,
    table_schema: TableSchema,
    projection: SplitProjection,
    batch_rows: usize,
    /// Chunks of a file that are parsed at a time.
    parsers: usize,
    metrics: ExecutionPlanMetricsSet,
}

impl FileSource for CsvSource {
    fn create_file_opener(
        &self,
        _store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        _partition: usize,
    ) -> DataFusionResult<Arc<dyn FileOpener>> {
        let schema = self.table_schema.file_schema();
        let columns = self.projection.file_indices.clone();
        let parse = Arc::new(self.format.parse(Arc::clone(schema), columns, self.batch_rows)?);
        let opener = Opener { format: Arc::clone(&self.format), parse, parsers: self.parsers };
        let opener = ProjectionOpener::try_new(self.projection.clone(), Arc::new(opener), schema)?;
        directory_columns::opener(opener, config)
    }

    fn table_schema(&self) -> &TableSchema {
        &self.table_schema
    }

    fn with_batch_size(&self, batch_rows: usize) -> Arc<dyn FileSource> {
        Arc::new(Self { batch_rows, ..self.clone() })
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> DataFusionResult<Option<Arc<dyn FileSource>>> {
        let merged = self.projection.source.try_merge(projection)?;
        let projection = SplitProjection::new(self.table_schema.file_schema(), &merged);
        Ok(Some(Arc::new(Self { projection, ..self.clone() })))
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        Some(&self.projection.source)
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    fn file_type(&self) -> &str {
        "csv"
    }

    fn fmt_extra(&self, _kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", has_header={}, parsers={}", self.format.has_header, self.parsers)
    }

    /// Where a record ends is known only from the start of the file.
    fn supports_repartitioning(&self) -> bool {
        false
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        datafusion::physical_plan::apply_expression_roots(self.projection.source.iter(), f)
    }
}

struct Opener {
    format: Arc<CsvFormat>,
    parse: Arc<Parse>,
    parsers: usize,
}

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> DataFusionResult<FileOpenFuture> {
        let (name, path) = self.format.names.of(&file.object_meta.location);
        let (format, parse, parsers) = (Arc::clone(&self.format), Arc::clone(&self.parse), self.parsers);
        let opened = {
            let (format, name) = (Arc::clone(&format), name.clone());
            move || format.chunks(&name, &path, CHUNK_BYTES)
        };
        Ok(Box::pin(async move {
            let chunks = blocking(opened).await??;
            let explain =
                move |fault: Fault| DataFusionError::from(fault.into_error(&name, format.types, format.has_header));
            let chunks = futures::stream::try_unfold(chunks, |mut chunks| async move {
                let (next, chunks) = blocking(move || (chunks.next(), chunks)).await?;
                let next = next.map_err(Step::Fault)?;
                Ok::<_, Step>(next.map(|chunk| (chunk, chunks)))
            });
            let batches = chunks.map(move |chunk| {
                let parse = Arc::clone(&parse);
                async move {
                    let chunk = chunk?;
                    let parsed = SpawnedTask::spawn(async move { parse.chunk(&chunk) }).join_unwind().await;
                    parsed.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?.map_err(Step::Fault)
                }
            });
            let batches = batches.buffered(parsers).map(move |batches| match batches {
                Ok(batches) => Ok(futures::stream::iter(batches.into_iter().map(Ok))),
                Err(Step::Fault(fault)) => Err(explain(fault)),
                Err(Step::Died(e)) => Err(e),
            });
            Ok(batches.try_flatten().boxed())
        }))
    }
}

/// What ends a scan before its end.
enum Step {
    Fault(Fault),
    Died(DataFusionError),
}

impl From<DataFusionError> for Step {
    fn from(e: DataFusionError) -> Self {
        Self::Died(e)
    }
}
