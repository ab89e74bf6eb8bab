//! Separated text as a DataFusion format with its own reader.
//!
//! DataFusion reads a text file in byte ranges and takes any line end near their bounds for the end
//! of a record. Values with line ends in large files are therefore wrong. Its errors name neither
//! file nor line. Its conversions truncate values that do not fit. It fails if a later row
//! contradicts an inferred type. The rules here are:
//!
//! 1. [`sniff`] infers dialect, header and types of a file from a sample, if no table describes it.
//!    A file of up to [`WIDENED_BYTES`] is read completely, and its types hold every value:
//!    [`CsvFormat::widen`].
//! 2. One stream reads a file front to back, in chunks that end with a record ([`records`]), and so
//!    preserves the order of its rows.
//! 3. Chunks are divided into fields and converted ([`values`]) by as many tasks as the scan has
//!    threads for the file, a few chunks ahead. The next chunk is read meanwhile. A value that its
//!    column's type does not hold is an error with its line: [`fault`].
//!
//! Each file of a table has its own dialect, and its columns are found by name.

mod fault;
mod fields;
mod forms;
mod records;
mod sniff;
mod values;
mod write;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
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

use self::fault::Fault;
pub(super) use self::forms::days;
use self::forms::{Forms, Kind, Order};
pub(crate) use self::records::Encoding;
use self::records::{CHUNK_BYTES, Chunks, TableStart};
use self::sniff::{Given, Sniffed};
use self::values::{NullText, Reader, Wanted, Width};
pub(crate) use self::write::WriteOptions;
use super::agree::{self, FITS_NANOSECONDS};
use super::glob::Found;
use super::site::Site;
use super::{CsvOptions, Format, Limits, Names, blocking, directory_columns, parse_name, read_ahead};
use crate::pg_types::zone::Zone;
use crate::query::Query;
use crate::{Error, ErrorKind, Result};

/// The sample of a file, in bytes. Records in it are sampled whatever their length.
const SAMPLE_BYTES: usize = 4 << 20;
/// The maximum length of files whose types are inferred from all rows, in bytes.
const WIDENED_BYTES: usize = 64 << 20;

/// The bytes with a special meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub delimiter: u8,
    /// The quote character; `None` if no value is quoted.
    pub quote: Option<u8>,
    /// The escape character before a quote within quotes, in addition to another quote.
    pub escape: Option<u8>,
    /// The first character of comment lines.
    pub comment: Option<u8>,
    /// The byte that ends lines.
    pub line_end: u8,
}

impl Default for Dialect {
    fn default() -> Self {
        Self { delimiter: b',', quote: Some(b'"'), escape: None, comment: None, line_end: b'\n' }
    }
}

/// The origin of column types. It determines the hints of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Types {
    Declared,
    Guessed,
}

/// The properties of a file that are known before it is scanned.
#[derive(Clone, Debug)]
pub(super) struct FileShape {
    sniffed: Sniffed,
    /// The names of the fields of a record.
    names: Arc<[String]>,
}

/// The division into records of a file for a declared table.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredShape {
    /// The name of the file in the statement.
    pub name: String,
    /// The path that opens the file.
    pub path: String,
    /// The first record, which may be a header, without the empty field of a trailing delimiter.
    pub first: Vec<String>,
    sniffed: Sniffed,
}

impl DeclaredShape {
    /// Returns whether all records end with a delimiter.
    pub fn has_trailing(&self) -> bool {
        self.sniffed.has_trailing
    }
}

/// The format of the files of one statement.
#[derive(Clone, Debug)]
pub(super) struct CsvFormat {
    pub site: Site,
    pub extension: String,
    pub options: CsvOptions,
    pub types: Types,
    pub names: Names,
    /// The query, which counts the bytes read.
    pub query: Option<Arc<Query>>,
    pub zone: Zone,
    pub limits: Limits,
    /// The shapes of the files, by path.
    pub shapes: Arc<Mutex<HashMap<String, Arc<FileShape>>>>,
}

impl CsvFormat {
    fn failed(&self, name: &str, has_header: bool) -> impl Fn(Fault) -> Error + Send + Sync + use<> {
        let (name, types) = (name.to_string(), self.types);
        move |fault| fault.into_error(&name, types, has_header)
    }

    fn text(&self, name: &str, path: &str) -> std::result::Result<Box<dyn Read + Send>, Fault> {
        let ledger = self.query.as_ref().map(|query| Arc::clone(query.shared_ledger()));
        let file = self.site.open(path, ledger).map_err(Fault::Io)?;
        records::text(file, parse_name(name).compression, self.options.encoding, self.limits)
    }

    fn chunks(&self, name: &str, path: &str, shape: &FileShape) -> std::result::Result<Chunks, Fault> {
        let Sniffed { dialect, skipped_bytes, skipped_lines, .. } = shape.sniffed;
        let start = TableStart { bytes: skipped_bytes, lines: skipped_lines };
        Chunks::of(self.text(name, path)?, dialect, start, CHUNK_BYTES, self.limits)
    }

    /// Returns the properties that the statement and the file's name determine.
    fn given(&self) -> Given {
        let options = &self.options;
        let is_tbl = self.extension == "tbl";
        Given {
            delimiter: options.delimiter.or(is_tbl.then_some(b'|')),
            likely_delimiter: (self.extension == "tsv").then_some(b'\t'),
            quote: options.quote,
            escape: options.escape,
            comment: options.comment,
            has_header: options.has_header.or(is_tbl.then_some(false)),
            skipped_lines: options.skip,
            pads: options.null_padding,
            sample_records: options.sample_size.and_then(|rows| usize::try_from(rows).ok()),
            all_text: options.all_varchar,
            null: options.null.as_ref().map(|null| null.clone().into_bytes()),
        }
    }

    /// Infers names and types of a file. NULL is the type of a column without any value.
    fn guess(&self, name: &str, path: &str, threads: usize) -> Result<Schema> {
        let failed = self.failed(name, true);
        let mut text = self.text(name, path).map_err(&failed)?;
        let (head, is_whole) = records::head(&mut text, SAMPLE_BYTES).map_err(&failed)?;
        if head.is_empty() {
            return Ok(Schema::empty());
        }
        let sniffed = sniff::sniff(&head, is_whole, &self.given());
        drop((text, head));
        let columns = sniffed.forms.len();
        let names = named(sniffed.header.as_deref().unwrap_or_default(), columns);
        let mut shape = FileShape { sniffed, names: names.into() };
        if !self.options.all_varchar && !shape.sniffed.is_all {
            self.widen(name, path, &mut shape, threads).map_err(&failed)?;
        }
        let field = |(name, forms): (&String, &Forms)| {
            let field = Field::new(name, data_type(forms.kind()), true);
            match field.data_type().is_temporal() && forms.fit_nanoseconds() {
                true => field.with_metadata(HashMap::from([(FITS_NANOSECONDS.into(), String::new())])),
                false => field,
            }
        };
        let schema = Schema::new(shape.names.iter().zip(&shape.sniffed.forms).map(field).collect::<Fields>());
        self.keep(path, shape);
        Ok(schema)
    }

    /// Widens the types to hold all values, if the file is small enough or the statement requests
    /// it.
    fn widen(&self, name: &str, path: &str, shape: &mut FileShape, threads: usize) -> std::result::Result<(), Fault> {
        let most = match self.options.sample_size {
            None => WIDENED_BYTES,
            Some(..0) => usize::MAX,
            Some(_) => return Ok(()),
        };
        if most < usize::MAX
            && !parse_name(name).compression.is_compressed()
            && self.site.stat(path).map_err(Fault::Io)?.bytes > most as u64
        {
            return Ok(());
        }
        let chunks = Mutex::new((self.chunks(name, path, shape)?, 0));
        let found = Mutex::new(shape.sniffed.forms.clone());
        let unread = Mutex::new(None);
        let (first, null) = (shape.sniffed.header.is_some(), self.given().null);
        let dialect = shape.sniffed.dialect;
        let work = || {
            let mut forms = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
            loop {
                let next = {
                    let mut chunks = chunks.lock().unwrap_or_else(PoisonError::into_inner);
                    let next = if chunks.1 > most { Ok(None) } else { chunks.0.next() };
                    // An invalid record is an error of the scan, which has the complete message.
                    let next = next.unwrap_or_else(|fault| {
                        if matches!(fault, Fault::Io(_)) {
                            *unread.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
                        }
                        None
                    });
                    chunks.1 += next.as_ref().map_or(0, |chunk| chunk.bytes.len());
                    next
                };
                let Some(chunk) = next else { break };
                sniff::narrow(&mut forms, &chunk.bytes, &dialect, first && chunk.is_first, null.as_deref());
            }
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.iter_mut().zip(forms).for_each(|(known, forms)| *known = *known & forms);
        };
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            work();
            helpers.into_iter().for_each(|helper| _ = helper.join());
        });
        if let Some(fault) = unread.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(fault);
        }
        shape.sniffed.forms = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(())
    }

    fn keep(&self, path: &str, shape: FileShape) {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_string(), Arc::new(shape));
    }

    fn shape(&self, path: &str) -> Option<Arc<FileShape>> {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    /// Determines the division into records of a file with this number of columns, and its first
    /// record; `None` for a file without records. The dialect from the statement and the file's
    /// name applies if it yields that number. Otherwise the dialect is inferred.
    pub fn declared(&self, file: &Found, columns: usize) -> Result<Option<DeclaredShape>> {
        let failed = self.failed(&file.name, true);
        let mut text = self.text(&file.name, &file.path).map_err(&failed)?;
        let (head, is_whole) = records::head(&mut text, SAMPLE_BYTES).map_err(&failed)?;
        let given = self.given();
        let plain = Given {
            delimiter: Some(given.delimiter.or(given.likely_delimiter).unwrap_or(b',')),
            quote: Some(given.quote.unwrap_or(Some(b'"'))),
            ..given.clone()
        };
        let Some(sniffed) = sniff::declared(&head, is_whole, &plain, &given, columns) else { return Ok(None) };
        let mut first = Vec::new();
        sniff::each_field(&head, sniffed.skipped_bytes, &sniffed.dialect, |_, value| {
            first.push(String::from_utf8_lossy(value).into_owned());
        });
        if sniffed.has_trailing {
            first.pop();
        }
        Ok(Some(DeclaredShape { name: file.name.clone(), first, path: file.path.clone(), sniffed }))
    }

    /// Keeps the result of [`declared`](Self::declared), with the names of the columns.
    pub fn keep_declared(&self, path: &str, shape: &DeclaredShape, names: &Arc<[String]>, has_header: bool) {
        let sniffed = Sniffed { header: has_header.then(Vec::new), ..shape.sniffed.clone() };
        self.keep(path, FileShape { sniffed, names: Arc::clone(names) });
    }

    fn reader(&self, shape: &FileShape, table: &Schema, columns: &[usize], batch_rows: usize) -> Result<Reader> {
        let names = agree::names_of(table);
        let own: Vec<&str> = shape.names.iter().map(String::as_str).collect();
        let places = agree::places(&names, &own, Format::Csv);
        let (mut wanted, mut fields) = (Vec::with_capacity(columns.len()), Vec::with_capacity(columns.len()));
        for column in columns {
            let field = table.fields().get(*column);
            let field = field.ok_or_else(|| Error::new(ErrorKind::Internal, "a scan of a column that is not there"))?;
            let place = places.get(*column).copied().flatten();
            let kind = place.and_then(|place| shape.sniffed.forms.get(place)).map(|forms| forms.kind());
            let order = match kind {
                Some(Kind::Date(order) | Kind::Timestamp(order)) => order,
                _ => Order::Iso,
            };
            wanted.push(Wanted { place, order });
            fields.push(Arc::clone(field));
        }
        let width = match () {
            () if shape.sniffed.has_trailing => Width::Trailing,
            () if self.options.null_padding => Width::Padded,
            () => Width::Exact,
        };
        Ok(Reader {
            dialect: shape.sniffed.dialect,
            has_header: shape.sniffed.header.is_some(),
            width,
            null: NullText {
                text: self.options.null.as_ref().map(|null| null.clone().into_bytes()),
                is_plain: self.types == Types::Declared,
            },
            names: Arc::clone(&shape.names),
            wanted,
            schema: Arc::new(Schema::new(fields)),
            batch_rows,
            types: self.types,
            zone: self.zone,
        })
    }
}

/// Returns the type that holds values of a kind.
fn data_type(kind: Kind) -> DataType {
    let utc = || Some(Arc::from("UTC"));
    match kind {
        Kind::Empty => DataType::Null,
        Kind::Boolean => DataType::Boolean,
        Kind::Int => DataType::Int64,
        Kind::Huge => DataType::Decimal128(38, 0),
        Kind::Double => DataType::Float64,
        Kind::Date(_) => DataType::Date32,
        Kind::Timestamp(_) => DataType::Timestamp(TimeUnit::Microsecond, None),
        Kind::Nanoseconds => DataType::Timestamp(TimeUnit::Nanosecond, None),
        Kind::Moment => DataType::Timestamp(TimeUnit::Microsecond, utc()),
        Kind::MomentNanoseconds => DataType::Timestamp(TimeUnit::Nanosecond, utc()),
        Kind::Text => DataType::Utf8,
    }
}

/// Returns names of columns that are distinct in any case, as in DuckDB. A column without a name
/// gets a number, and a duplicate gets a numeric suffix.
fn named(header: &[String], columns: usize) -> Vec<String> {
    let digits = columns.saturating_sub(1).to_string().len();
    let given: Vec<String> = (0..columns)
        .map(|at| match header.get(at).map(|name| name.trim()) {
            None | Some("") => format!("column{at:0digits$}"),
            Some(name) => name.to_string(),
        })
        .collect();
    distinct(given)
}

/// Returns names in which each duplicate gets a numeric suffix.
pub(crate) fn distinct(names: Vec<String>) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::with_capacity(names.len());
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut told_apart = Vec::with_capacity(names.len());
    for name in names {
        let mut unique = name.clone();
        while taken.contains(&unique.to_lowercase()) {
            let count = counts.entry(name.to_lowercase()).or_insert(0);
            *count += 1;
            unique = format!("{name}_{count}");
        }
        taken.insert(unique.to_lowercase());
        told_apart.push(unique);
    }
    told_apart
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
        state: &dyn DataFusionSession,
        _store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> DataFusionResult<SchemaRef> {
        let [object] = objects else {
            return Err(Error::new(ErrorKind::Internal, "the types of files are guessed one at a time").into());
        };
        let (name, path) = self.names.of(&object.location);
        let (format, threads) = (self.clone(), state.config().target_partitions());
        let guess = SpawnedTask::spawn_blocking(move || format.guess(&name, &path, threads)).join_unwind().await;
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
        let parsers = state.config().target_partitions().div_ceil(config.file_groups.len().max(1));
        let Some(source) = parsed_by(config.file_source().as_ref(), parsers) else {
            return Err(Error::new(ErrorKind::Internal, "a scan of text by another format's source").into());
        };
        Ok(DataSourceExec::from_data_source(FileScanConfigBuilder::from(config).with_source(source).build()))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(CsvSource {
            format: Arc::new(self.clone()),
            projection: SplitProjection::unprojected(&table_schema),
            table_schema,
            batch_rows: sniff::SAMPLE_RECORDS,
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
    /// The number of chunks of a file that are parsed concurrently.
    parsers: usize,
    metrics: ExecutionPlanMetricsSet,
}

/// Returns the source with `parsers` concurrent chunks; `None` if it is of another format.
pub(super) fn parsed_by(source: &dyn FileSource, parsers: usize) -> Option<Arc<dyn FileSource>> {
    let source: &CsvSource = source.downcast_ref()?;
    Some(Arc::new(CsvSource { parsers, ..source.clone() }))
}

impl FileSource for CsvSource {
    fn create_file_opener(
        &self,
        _store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        _partition: usize,
    ) -> DataFusionResult<Arc<dyn FileOpener>> {
        let schema = self.table_schema.file_schema();
        let opener = Opener {
            format: Arc::clone(&self.format),
            table: Arc::clone(schema),
            columns: self.projection.file_indices.clone(),
            batch_rows: self.batch_rows,
            parsers: self.parsers,
        };
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
        write!(f, ", parsers={}", self.parsers)
    }

    /// The end of a record is known only from the start of the file.
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
    table: SchemaRef,
    /// The wanted columns.
    columns: Vec<usize>,
    batch_rows: usize,
    parsers: usize,
}

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> DataFusionResult<FileOpenFuture> {
        let (name, path) = self.format.names.of(&file.object_meta.location);
        // A file without records has no shape.
        let Some(shape) = self.format.shape(&path) else {
            return Ok(Box::pin(async { Ok(futures::stream::empty().boxed()) }));
        };
        let reader = Arc::new(self.format.reader(&shape, &self.table, &self.columns, self.batch_rows)?);
        let (format, parsers) = (Arc::clone(&self.format), self.parsers);
        let explain = self.format.failed(&name, reader.has_header);
        Ok(Box::pin(async move {
            let opened = blocking(move || format.chunks(&name, &path, &shape)).await?;
            let chunks = opened.map_err(&explain)?;
            let chunks = read_ahead(chunks, |chunks| chunks.next().map_err(Step::Fault));
            // One more chunk is ready for the first thread that finishes.
            let ahead = parsers + 1;
            let batches = chunks.map(move |chunk| {
                let reader = Arc::clone(&reader);
                async move {
                    let chunk = chunk?;
                    let parsed = SpawnedTask::spawn(async move { reader.read(&chunk) }).join_unwind().await;
                    parsed.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?.map_err(Step::Fault)
                }
            });
            let batches = batches.buffered(ahead).map(move |batches| match batches {
                Ok(batches) => Ok(futures::stream::iter(batches.into_iter().map(Ok))),
                Err(Step::Fault(fault)) => Err(explain(fault).into()),
                Err(Step::Died(e)) => Err(e),
            });
            Ok(batches.try_flatten().boxed())
        }))
    }
}

/// An error that ends a scan.
enum Step {
    Fault(Fault),
    Died(DataFusionError),
}

impl From<DataFusionError> for Step {
    fn from(e: DataFusionError) -> Self {
        Self::Died(e)
    }
}
