//! Rows as JSON: an object a line, every value as [the reader](super) reads it back.
//!
//! DataFusion's writer (55.2.0) leaves keys of NULL out, writes `null` for NaN and infinities, `"ERROR: .."` for a date that
//! cannot be written, and nothing at all for no rows, which no reader takes for a table. Here:
//!
//! 1. NULL is written: a column is one of the file, whatever its values are.
//! 2. NaN and infinities are the words that Python and DuckDB write: `NaN`, `Infinity`, `-Infinity`.
//! 3. A value that has no text is an error.
//! 4. No rows are the array `[]`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, StringArray, StringBuilder};
use arrow::datatypes::{DataType, FieldRef, Float16Type, Float32Type, Float64Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::writer::{Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, WriterBuilder};
use arrow::util::display::{ArrayFormatter, FormatOptions};
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

/// Has COPY write JSON as it is written here.
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

/// The batches that have rows, or one without any.
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

/// Writes an object a line.
struct Lines;

impl BatchSerializer for Lines {
    fn serialize(&self, batch: RecordBatch, _initial: bool) -> DataFusionResult<Bytes> {
        if batch.num_rows() == 0 {
            return Ok(Bytes::from_static(b"[]\n"));
        }
        let mut bytes = Vec::with_capacity(4096);
        let builder = WriterBuilder::new().with_explicit_nulls(true).with_encoder_factory(Arc::new(Values));
        builder.build::<_, LineDelimited>(&mut bytes).write(&batch)?;
        Ok(Bytes::from(bytes))
    }
}

/// Encoders of values that Arrow's own would change.
#[derive(Debug)]
struct Values;

impl EncoderFactory for Values {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Float16 => {
                let values = array.as_primitive::<Float16Type>();
                Box::new(Floats(
                    move |at| f64::from(values.value(at)),
                    move |at, out: &mut Vec<u8>| {
                        short(values.value(at).to_f32(), out);
                    },
                ))
            }
            DataType::Float32 => {
                let values = array.as_primitive::<Float32Type>();
                Box::new(Floats(
                    move |at| f64::from(values.value(at)),
                    move |at, out: &mut Vec<u8>| {
                        short(values.value(at), out);
                    },
                ))
            }
            DataType::Float64 => {
                let values = array.as_primitive::<Float64Type>();
                Box::new(Floats(move |at| values.value(at), move |at, out: &mut Vec<u8>| short(values.value(at), out)))
            }
            data_type if data_type.is_temporal() => Box::new(Texts(texts(array)?)),
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

/// The shortest text that is read as the same number, with a fraction or an exponent: it is no integer's.
fn short(value: impl fmt::Debug, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{value:?}").as_bytes());
}

/// Floats by their values, and by how they are written if they are numbers.
struct Floats<V, W>(V, W);

impl<V: Fn(usize) -> f64, W: Fn(usize, &mut Vec<u8>)> Encoder for Floats<V, W> {
    fn encode(&mut self, at: usize, out: &mut Vec<u8>) {
        match self.0(at) {
            value if value.is_nan() => out.extend_from_slice(b"NaN"),
            f64::INFINITY => out.extend_from_slice(b"Infinity"),
            f64::NEG_INFINITY => out.extend_from_slice(b"-Infinity"),
            _ => self.1(at, out),
        }
    }
}

/// Dates and times as text, which has nothing in it that JSON escapes.
struct Texts(StringArray);

impl Encoder for Texts {
    fn encode(&mut self, at: usize, out: &mut Vec<u8>) {
        out.push(b'"');
        out.extend_from_slice(self.0.value(at).as_bytes());
        out.push(b'"');
    }
}

fn texts(array: &dyn Array) -> Result<StringArray, ArrowError> {
    let formatter = ArrayFormatter::try_new(array, &FormatOptions::new())?;
    let mut texts = StringBuilder::with_capacity(array.len(), array.len() * 20);
    for at in 0..array.len() {
        match array.is_valid(at) {
            true => texts.append_value(formatter.value(at).try_to_string()?),
            false => texts.append_null(),
        }
    }
    Ok(texts.finish())
}
