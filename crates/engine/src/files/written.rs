//! What `COPY .. TO` writes of values that an encoder has no form for, or another value.
//!
//! - CSV is text: bytes, intervals, lists, structs and maps are cast to VARCHAR before they are encoded. arrow-csv 59.3 refuses what
//!   is nested, and writes bytes as digits that are read as a text.
//! - JSON goes through [`json_values`] in place of DataFusion's serializer.

use std::collections::HashMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use arrow::json::writer::LineDelimited;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::catalog::Session as DataFusionSession;
use datafusion::common::config::ConfigFileType;
use datafusion::common::file_options::json_writer::JsonWriterOptions;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{GetExt, Result, Statistics, TableReference};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory, format_as_file_type};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_expr::LexRequirement;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use datafusion::prelude::{Column, Expr};
use datafusion_datasource::file_sink_config::{FileSink, FileSinkConfig};
use datafusion_datasource::sink::{DataSink, DataSinkExec};
use datafusion_datasource::write::BatchSerializer;
use datafusion_datasource::write::demux::DemuxedStreamReceiver;
use datafusion_datasource::write::orchestration::spawn_writer_tasks_and_join;
use object_store::{ObjectMeta, ObjectStore};

use super::{Format, json_values};
use crate::planner::text_of;

/// The plan of a COPY to a file of this format, so that what is written are the values that it has.
pub(crate) fn as_values(plan: LogicalPlan, format: Format) -> Result<LogicalPlan> {
    let LogicalPlan::Copy(mut copy) = plan else { return Ok(plan) };
    match format {
        Format::Csv => copy.input = Arc::new(as_texts(Arc::unwrap_or_clone(copy.input))?),
        Format::Json => copy.file_type = format_as_file_type(Arc::new(JsonRows)),
        Format::Parquet | Format::Arrow => {}
    }
    Ok(LogicalPlan::Copy(copy))
}

fn as_texts(input: LogicalPlan) -> Result<LogicalPlan> {
    if !input.schema().fields().iter().any(|field| is_cast(field.data_type())) {
        return Ok(input);
    }
    let column = |(qualifier, field): (Option<&TableReference>, &FieldRef)| {
        let column = Expr::Column(Column::from((qualifier, field.as_ref())));
        match is_cast(field.data_type()) {
            true => text_of(column).alias_qualified(qualifier.cloned(), field.name()),
            false => column,
        }
    };
    let columns: Vec<Expr> = input.schema().iter().map(column).collect();
    LogicalPlanBuilder::from(input).project(columns)?.build()
}

/// Whether values of a type are texts in CSV that arrow-csv does not write.
fn is_cast(data_type: &DataType) -> bool {
    use DataType as T;
    match data_type {
        T::Dictionary(_, values) => is_cast(values),
        T::RunEndEncoded(_, values) => is_cast(values.data_type()),
        T::Interval(_) | T::Duration(_) => true,
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => true,
        data_type => data_type.is_nested(),
    }
}

/// Makes files of JSON, an object to a line.
#[derive(Debug)]
struct JsonRows;

impl GetExt for JsonRows {
    fn get_ext(&self) -> String {
        "json".into()
    }
}

impl FileFormatFactory for JsonRows {
    fn create(&self, state: &dyn DataFusionSession, options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        let mut table = state.default_table_options();
        table.set_config_format(ConfigFileType::JSON);
        table.alter_with_string_hash_map(options)?;
        let options = JsonWriterOptions::try_from(&table.json)?;
        Ok(Arc::new(JsonRowsFormat { options, inner: JsonFormat::default().with_options(table.json) }))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(JsonFormat::default())
    }
}

/// JSON that is written here; it is read as DataFusion's.
#[derive(Debug)]
struct JsonRowsFormat {
    inner: JsonFormat,
    options: JsonWriterOptions,
}

#[async_trait]
impl FileFormat for JsonRowsFormat {
    fn get_ext(&self) -> String {
        self.inner.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
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
    ) -> Result<SchemaRef> {
        self.inner.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn DataFusionSession,
        store: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        self.inner.infer_stats(state, store, schema, object).await
    }

    async fn create_physical_plan(
        &self,
        state: &dyn DataFusionSession,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.inner.create_physical_plan(state, config).await
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        _: &dyn DataFusionSession,
        config: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let sink = JsonRowsSink { config, options: self.options.clone() };
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), order)))
    }

    fn file_source(&self, schema: TableSchema) -> Arc<dyn FileSource> {
        self.inner.file_source(schema)
    }
}

struct JsonRowsSink {
    config: FileSinkConfig,
    options: JsonWriterOptions,
}

impl Debug for JsonRowsSink {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("JsonRowsSink")
    }
}

impl DisplayAs for JsonRowsSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("JsonRowsSink")
    }
}

#[async_trait]
impl DataSink for JsonRowsSink {
    fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    async fn write_all(&self, data: SendableRecordBatchStream, context: &Arc<TaskContext>) -> Result<u64> {
        FileSink::write_all(self, data, context).await
    }
}

#[async_trait]
impl FileSink for JsonRowsSink {
    fn config(&self) -> &FileSinkConfig {
        &self.config
    }

    async fn spawn_writer_tasks_and_join(
        &self,
        context: &Arc<TaskContext>,
        demux: SpawnedTask<Result<()>>,
        files: DemuxedStreamReceiver,
        store: Arc<dyn ObjectStore>,
    ) -> Result<u64> {
        let (compression, level) = (self.options.compression.into(), self.options.compression_level);
        spawn_writer_tasks_and_join(context, Arc::new(Rows), compression, level, store, demux, files).await
    }
}

struct Rows;

impl BatchSerializer for Rows {
    fn serialize(&self, batch: RecordBatch, _: bool) -> Result<Bytes> {
        let mut writer = json_values::writer().build::<_, LineDelimited>(Vec::new());
        writer.write(&batch)?;
        Ok(writer.into_inner().into())
    }
}
