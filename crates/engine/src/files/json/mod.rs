//! JSON as a DataFusion format with its own reader. [`records`] divides files into chunks. [`walk`]
//! and [`parser`] parse them, with jiter for the rare cases. [`columns`] builds columns, and
//! [`fault`] explains errors. [`write`] writes rows, and [`values`] writes values.
//!
//! Arrow's reader is line-based. It refuses objects over several lines and data after the end of an
//! array. It reads every number as a DOUBLE. It truncates, drops or confuses values that its first
//! 1,000 rows do not show. The rules here are:
//!
//! 1. One stream reads a file front to back, in chunks that end with a record, and so preserves the
//!    order of its rows.
//! 2. Chunks are parsed by as many tasks as the scan has threads for the file, a few chunks ahead.
//!    The next chunk is read meanwhile, so that a thread that finishes one finds another.
//! 3. The columns come from the first records of all files: see [`sample`] and [`shape`]. A value
//!    that does not fit them without loss is an error with line and column.

mod columns;
mod declared;
mod fault;
mod kind;
mod moment;
mod parser;
mod plan;
mod records;
mod sample;
mod shape;
#[cfg(test)]
mod tests;
mod text;
pub(crate) mod values;
mod walk;
mod write;

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
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
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use self::fault::Fault;
pub(crate) use self::plan::JsonPlan;
use self::plan::{Reader, Unread};
use self::records::{Arrays, CHUNK_BYTES, Chunk, Chunks, Resume};
pub(crate) use self::sample::Sample;
pub(crate) use self::write::configure;
use super::glob::Found;
use super::site::Site;
use super::{Limits, Names, Union, blocking, directory_columns, named, parse_name, read_ahead};
use crate::query::Query;
use crate::{Error, ErrorKind, Result};

/// The number of rows of a batch, until DataFusion sets it.
const BATCH_ROWS: usize = 8192;

/// The site of files, and the limits and accounting of reading them.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub site: Site,
    /// The query, which counts the bytes read.
    pub query: Option<Arc<Query>>,
    /// The number of threads that sample a file.
    pub threads: usize,
    pub limits: Limits,
}

impl Opened {
    fn file(&self, path: &str) -> std::result::Result<Box<dyn std::io::Read + Send>, Fault> {
        let ledger = self.query.as_ref().map(|query| Arc::clone(query.shared_ledger()));
        self.site.open(path, ledger).map_err(Fault::Io)
    }

    fn chunks(&self, name: &str, path: &str) -> std::result::Result<Chunks, Fault> {
        Chunks::of(self.file(path)?, parse_name(name).compression, CHUNK_BYTES, self.limits)
    }

    fn resumed(&self, name: &str, path: &str, from: Resume, arrays: Arrays) -> std::result::Result<Chunks, Fault> {
        Chunks::resume(self.file(path)?, parse_name(name).compression, CHUNK_BYTES, from, arrays, self.limits)
    }
}

/// Plans the columns of files at a site. Blocks.
pub(super) fn plan(opened: &Opened, files: &[Found], sample: Sample, union: Union) -> Result<JsonPlan> {
    sample::plan(opened, files, sample, union)
}

/// The format of the files of one statement.
#[derive(Clone, Debug)]
pub(super) struct JsonFormat {
    pub opened: Opened,
    pub plan: Arc<JsonPlan>,
    pub names: Names,
}

#[async_trait]
impl FileFormat for JsonFormat {
    fn get_ext(&self) -> String {
        "json".into()
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
        _objects: &[ObjectMeta],
    ) -> DataFusionResult<SchemaRef> {
        Ok(self.plan.schema())
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
            return Err(Error::new(ErrorKind::Internal, "a scan of JSON by another format's source").into());
        };
        Ok(DataSourceExec::from_data_source(FileScanConfigBuilder::from(config).with_source(source).build()))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(JsonSource {
            format: Arc::new(self.clone()),
            projection: SplitProjection::unprojected(&table_schema),
            table_schema,
            batch_rows: BATCH_ROWS,
            parsers: 1,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }
}

/// A scan of JSON files.
#[derive(Clone)]
struct JsonSource {
    format: Arc<JsonFormat>,
    table_schema: TableSchema,
    projection: SplitProjection,
    batch_rows: usize,
    /// The number of chunks of a file that are parsed concurrently.
    parsers: usize,
    metrics: ExecutionPlanMetricsSet,
}

/// Returns the source with `parsers` concurrent chunks; `None` if it is of another format.
pub(super) fn parsed_by(source: &dyn FileSource, parsers: usize) -> Option<Arc<dyn FileSource>> {
    let source: &JsonSource = source.downcast_ref()?;
    Some(Arc::new(JsonSource { parsers, ..source.clone() }))
}

impl FileSource for JsonSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        _partition: usize,
    ) -> DataFusionResult<Arc<dyn FileOpener>> {
        let schema = self.table_schema.file_schema();
        let reader = self.format.plan.reader(schema, &self.projection.file_indices, self.batch_rows);
        let opener =
            Opener { format: Arc::clone(&self.format), reader: Arc::new(reader), parsers: self.parsers, store };
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
        "json"
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
    format: Arc<JsonFormat>,
    reader: Arc<Reader>,
    parsers: usize,
    store: Arc<dyn ObjectStore>,
}

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> DataFusionResult<FileOpenFuture> {
        let location = file.object_meta.location;
        let (name, path) = self.format.names.of(&location);
        let (format, reader, parsers) = (Arc::clone(&self.format), Arc::clone(&self.reader), self.parsers);
        let store = Arc::clone(&self.store);
        Ok(Box::pin(async move {
            // Checks that the file is the one whose records determined the columns.
            let seen = store.head(&location).await.map_err(DataFusionError::from);
            seen.map_err(|e| named::named(&name, e))?;
            let scan = Arc::new(FileScan { format, reader, parsers, name, path });
            let opened = Arc::clone(&scan);
            let chunks = blocking(move || opened.chunks()).await??;
            Ok(scan.rows(chunks))
        }))
    }
}

/// The scan of one file.
struct FileScan {
    format: Arc<JsonFormat>,
    reader: Arc<Reader>,
    parsers: usize,
    name: String,
    path: String,
}

/// The result of a chunk.
struct Parsed {
    batches: Vec<RecordBatch>,
    resume: Option<(Resume, Arrays)>,
}

impl FileScan {
    fn chunks(&self) -> DataFusionResult<Chunks> {
        self.format.opened.chunks(&self.name, &self.path).map_err(|fault| self.explain(fault))
    }

    fn explain(&self, fault: Fault) -> DataFusionError {
        fault.into_error(&self.name, self.reader.types).into()
    }

    /// Returns all rows. If a division by lines was wrong, the scan continues by brackets.
    fn rows(self: Arc<Self>, chunks: Chunks) -> BoxStream<'static, DataFusionResult<RecordBatch>> {
        let parsed = Arc::clone(&self).parsed(chunks);
        let batches = futures::stream::try_unfold((self, parsed), |(scan, mut parsed)| async move {
            let Some(Parsed { batches, resume }) = parsed.try_next().await? else { return Ok(None) };
            if let Some((from, arrays)) = resume {
                let resumed = Arc::clone(&scan);
                let opened = move || {
                    let chunks = resumed.format.opened.resumed(&resumed.name, &resumed.path, from, arrays);
                    chunks.map_err(|fault| resumed.explain(fault))
                };
                parsed = Arc::clone(&scan).parsed(blocking(opened).await??);
            }
            let batches = futures::stream::iter(batches.into_iter().map(Ok));
            Ok::<_, DataFusionError>(Some((batches, (scan, parsed))))
        });
        batches.try_flatten().boxed()
    }

    /// Parses several chunks concurrently, and returns them in order.
    fn parsed(self: Arc<Self>, chunks: Chunks) -> BoxStream<'static, DataFusionResult<Parsed>> {
        // One more chunk is ready for the first thread that finishes.
        let ahead = self.parsers + 1;
        let reading = Arc::clone(&self);
        let chunks =
            read_ahead(chunks, move |chunks: &mut Chunks| chunks.next().map_err(|fault| reading.explain(fault)));
        let parsed = chunks.map(move |chunk| {
            let scan = Arc::clone(&self);
            async move {
                let chunk: Chunk = chunk?;
                let parse = move || {
                    scan.reader
                        .chunk(&chunk)
                        .map_err(|e| match e {
                            Unread::Fault(fault) => scan.explain(fault),
                            Unread::Internal(e) => e,
                        })
                        .map(|(batches, resume)| Parsed { batches, resume: resume.map(|from| (from, chunk.arrays)) })
                };
                let parsed = SpawnedTask::spawn(async move { parse() }).join_unwind().await;
                parsed.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?
            }
        });
        parsed.buffered(ahead).boxed()
    }
}
