//! Rows as JSON, one object per line. [The reader](super) reads every value back unchanged.
//!
//! DataFusion's writer (55.2.0) omits keys of NULL, and writes `null` for NaN and infinities. It
//! writes `"ERROR: .."` for a date that cannot be written. For no rows it writes nothing, which no
//! reader accepts as a table. The rules here are:
//!
//! 1. Values, including NULL, are written by [`super::values`]: a column is in the file, whatever
//!    its values are.
//! 2. NaN and infinities are the words that Python and DuckDB write: `NaN`, `Infinity`,
//!    `-Infinity`.
//! 3. Dates and timestamps before the year 1 and after 9999 are the strings that a cast to VARCHAR
//!    writes, which COPY FROM reads.
//! 4. A result without rows is the array `[]`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::json::writer::LineDelimited;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::catalog::Session as DataFusionSession;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{GetExt, Result as DataFusionResult, Statistics};
use datafusion::config::JsonOptions;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::{JsonFormat, JsonFormatFactory};
use datafusion::datasource::file_format::write::BatchSerializer;
use datafusion::datasource::file_format::write::demux::DemuxedStreamReceiver;
use datafusion::datasource::file_format::write::orchestration::spawn_writer_tasks_and_join;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSink, FileSinkConfig, FileSource};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder, TaskContext};
use datafusion::physical_expr::LexRequirement;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore};

use super::values::{NonFinite, writer_with};
use crate::pg_types::column_text::rows_with_far_texts;

/// Registers this writer for COPY.
pub(crate) fn configure(mut builder: SessionStateBuilder) -> SessionStateBuilder {
    let formats = builder.file_formats().get_or_insert_default();
    let factory = Factory(JsonFormatFactory::new());
    formats.retain(|format| format.get_ext() != factory.get_ext());
    formats.push(Arc::new(factory));
    builder
}

#[derive(Debug)]
struct Factory(JsonFormatFactory);

impl GetExt for Factory {
    fn get_ext(&self) -> String {
        self.0.get_ext()
    }
}

impl FileFormatFactory for Factory {
    fn create(
        &self,
        state: &dyn DataFusionSession,
        options: &HashMap<String, String>,
    ) -> DataFusionResult<Arc<dyn FileFormat>> {
        let inner = self.0.create(state, options)?;
        let options = inner.downcast_ref::<JsonFormat>().map(|format| format.options().clone());
        Ok(Arc::new(Writer { inner, options: options.unwrap_or_default() }))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(Writer { inner: self.0.default(), options: JsonOptions::default() })
    }
}

/// DataFusion's format with another sink.
#[derive(Debug)]
struct Writer {
    inner: Arc<dyn FileFormat>,
    options: JsonOptions,
}

#[async_trait]
impl FileFormat for Writer {
    fn get_ext(&self) -> String {
        self.inner.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> DataFusionResult<String> {
        self.inner.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.inner.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn DataFusionSession,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> DataFusionResult<SchemaRef> {
        self.inner.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn DataFusionSession,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> DataFusionResult<Statistics> {
        self.inner.infer_stats(state, store, table_schema, object).await
    }

    async fn create_physical_plan(
        &self,
        state: &dyn DataFusionSession,
        config: FileScanConfig,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        self.inner.create_physical_plan(state, config).await
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        _state: &dyn DataFusionSession,
        config: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let sink = Sink { config, options: self.options.clone() };
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), order)))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.inner.file_source(table_schema)
    }
}

#[derive(Debug)]
struct Sink {
    config: FileSinkConfig,
    options: JsonOptions,
}

impl DisplayAs for Sink {
    fn fmt_as(&self, _kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JsonSink(file={})", self.config.original_url)
    }
}

#[async_trait]
impl DataSink for Sink {
    fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    async fn write_all(&self, data: SendableRecordBatchStream, context: &Arc<TaskContext>) -> DataFusionResult<u64> {
        FileSink::write_all(self, never_empty(data), context).await
    }
}

#[async_trait]
impl FileSink for Sink {
    fn config(&self) -> &FileSinkConfig {
        &self.config
    }

    async fn spawn_writer_tasks_and_join(
        &self,
        context: &Arc<TaskContext>,
        demux_task: SpawnedTask<DataFusionResult<()>>,
        file_stream_rx: DemuxedStreamReceiver,
        object_store: Arc<dyn ObjectStore>,
    ) -> DataFusionResult<u64> {
        spawn_writer_tasks_and_join(
            context,
            Arc::new(Lines),
            self.options.compression.into(),
            self.options.compression_level,
            object_store,
            demux_task,
            file_stream_rx,
        )
        .await
    }
}

/// Returns the batches that have rows, or one without any.
fn never_empty(data: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let schema = data.schema();
    let none = RecordBatch::new_empty(Arc::clone(&schema));
    let batches = futures::stream::try_unfold((data, Some(none)), |(mut data, none)| async move {
        while let Some(batch) = data.try_next().await? {
            if batch.num_rows() > 0 {
                return Ok(Some((batch, (data, None))));
            }
        }
        Ok(none.map(|none| (none, (data, None))))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, batches.boxed()))
}

/// Writes one object per line.
struct Lines;

impl BatchSerializer for Lines {
    fn serialize(&self, batch: RecordBatch, _initial: bool) -> DataFusionResult<Bytes> {
        if batch.num_rows() == 0 {
            return Ok(Bytes::from_static(b"[]\n"));
        }
        let mut bytes = Vec::with_capacity(4096);
        let batch = rows_with_far_texts(&batch, batch.schema_ref())?;
        writer_with(NonFinite::Words).build::<_, LineDelimited>(&mut bytes).write(&batch)?;
        Ok(Bytes::from(bytes))
    }
}
