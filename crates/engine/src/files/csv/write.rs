//! Rows as separated text that [`super`] reads back unchanged.
//!
//! A value is quoted in these cases:
//! - It contains the delimiter, the quote, the escape or a line end.
//! - It is empty, or equals the string for NULL.
//! - It begins with a comment character, or with the other quote that readers recognize.
//! - The file has one column, which has no delimiter, and the value contains any delimiter that
//!   readers recognize.
//!
//! Within quotes, quotes and escapes are escaped. NULL is its string, without quotes. Dates, times,
//! timestamps, bytes, intervals, lists, structs and maps are the strings that a cast to VARCHAR
//! writes.
//!
//! Arrow's own writer (59.3) does not escape escapes, does not quote strings that read as NULL, and
//! refuses nested values. It writes bytes as digits that are read as a string. Dates before the
//! year 1 and after 9999 are written in a form that no cast reads, or not at all.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::catalog::Session as DataFusionSession;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{GetExt, Result as DataFusionResult, Statistics, not_impl_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::LexRequirement;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use datafusion_datasource::file_sink_config::{FileSink, FileSinkConfig};
use datafusion_datasource::sink::{DataSink, DataSinkExec};
use datafusion_datasource::write::BatchSerializer;
use datafusion_datasource::write::demux::DemuxedStreamReceiver;
use datafusion_datasource::write::orchestration::spawn_writer_tasks_and_join;
use object_store::{ObjectMeta, ObjectStore};

use crate::pg_types::column_text::{is_binary, texts_of_any};

/// Options for writing text.
#[derive(Clone, Debug)]
pub(crate) struct WriteOptions {
    pub delimiter: u8,
    pub quote: u8,
    pub escape: u8,
    pub null: String,
    pub has_header: bool,
    pub compression: FileCompressionType,
}

impl WriteOptions {
    /// Appends a field, in quotes if it would otherwise be read differently.
    fn field(&self, text: &str, columns: Columns, into: &mut Vec<u8>) {
        let means = |byte: &u8| {
            let ends = matches!(*byte, b'\n' | b'\r') || *byte == self.delimiter;
            let separates = columns == Columns::One && matches!(*byte, b',' | b'|' | b';' | b'\t');
            ends || separates || *byte == self.quote || *byte == self.escape
        };
        let is_other = text.is_empty()
            || text == self.null
            || text == "\\."
            || matches!(text.as_bytes().first(), Some(b'#' | b'\xEF'))
            || text.trim_start_matches(' ').starts_with(['\'', '"'])
            || text.bytes().any(|byte| means(&byte));
        if !is_other {
            into.extend_from_slice(text.as_bytes());
            return;
        }
        into.push(self.quote);
        for byte in text.bytes() {
            if byte == self.quote || byte == self.escape {
                into.push(self.escape);
            }
            into.push(byte);
        }
        into.push(self.quote);
    }

    fn header(&self, batch: &RecordBatch, into: &mut Vec<u8>) {
        for (at, field) in batch.schema_ref().fields().iter().enumerate() {
            if at > 0 {
                into.push(self.delimiter);
            }
            self.field(field.name(), Columns::of(batch), into);
        }
        into.push(b'\n');
    }

    fn rows(&self, batch: &RecordBatch, into: &mut Vec<u8>) -> DataFusionResult<()> {
        let options = FormatOptions::new().with_display_error(false);
        let number = Columns::of(batch);
        let columns: Vec<Column<'_>> =
            batch.columns().iter().map(|column| Column::of(column, &options)).collect::<DataFusionResult<_>>()?;
        for row in 0..batch.num_rows() {
            for (at, column) in columns.iter().enumerate() {
                if at > 0 {
                    into.push(self.delimiter);
                }
                match column.is_null(row) {
                    true => into.extend_from_slice(self.null.as_bytes()),
                    false => column.with_text(row, |text| self.field(text, number, into))?,
                }
            }
            into.push(b'\n');
        }
        Ok(())
    }
}

/// The number of a file's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Columns {
    One,
    Several,
}

impl Columns {
    fn of(batch: &RecordBatch) -> Self {
        if batch.num_columns() == 1 { Self::One } else { Self::Several }
    }
}

/// A column of values to write.
enum Column<'a> {
    Text(&'a arrow::array::StringArray),
    View(&'a arrow::array::StringViewArray),
    /// Values in the form of a cast to VARCHAR.
    Cast(ArrayRef),
    Other(Option<NullBuffer>, ArrayFormatter<'a>),
}

impl<'a> Column<'a> {
    fn of(column: &'a Arc<dyn Array>, options: &FormatOptions<'a>) -> DataFusionResult<Self> {
        Ok(match column.data_type() {
            DataType::Utf8 => Self::Text(column.as_string()),
            DataType::Utf8View => Self::View(column.as_string_view()),
            data_type if is_cast(data_type) => Self::Cast(texts_of_any(column, None)?),
            _ => Self::Other(column.logical_nulls(), ArrayFormatter::try_new(column, options)?),
        })
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Text(column) => column.is_null(row),
            Self::View(column) => column.is_null(row),
            Self::Cast(column) => column.is_null(row),
            Self::Other(nulls, _) => nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)),
        }
    }

    fn with_text(&self, row: usize, mut with: impl FnMut(&str)) -> DataFusionResult<()> {
        match self {
            Self::Text(column) => with(column.value(row)),
            Self::View(column) => with(column.value(row)),
            Self::Cast(column) => with(column.as_string::<i32>().value(row)),
            Self::Other(_, formatter) => with(&formatter.value(row).try_to_string()?),
        }
        Ok(())
    }
}

/// Returns whether values of a type are written in the form of a cast to VARCHAR.
fn is_cast(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_cast(values),
        DataType::RunEndEncoded(_, values) => is_cast(values.data_type()),
        DataType::Union(..) => false,
        data_type if data_type.is_temporal() => true,
        data_type => data_type.is_nested() || is_binary(data_type),
    }
}

impl BatchSerializer for WriteOptions {
    fn serialize(&self, batch: RecordBatch, initial: bool) -> DataFusionResult<Bytes> {
        let mut text = Vec::with_capacity(batch.num_rows() * batch.num_columns() * 8);
        if initial && self.has_header {
            self.header(&batch, &mut text);
        }
        self.rows(&batch, &mut text)?;
        Ok(text.into())
    }
}

impl GetExt for WriteOptions {
    fn get_ext(&self) -> String {
        "csv".into()
    }
}

impl FileFormatFactory for WriteOptions {
    fn create(
        &self,
        _state: &dyn DataFusionSession,
        _format_options: &HashMap<String, String>,
    ) -> DataFusionResult<Arc<dyn FileFormat>> {
        Ok(Arc::new(self.clone()))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(self.clone())
    }
}

#[async_trait]
impl FileFormat for WriteOptions {
    fn get_ext(&self) -> String {
        "csv".into()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> DataFusionResult<String> {
        Ok(format!("csv{}", compression.get_ext()))
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        Some(self.compression)
    }

    async fn infer_schema(
        &self,
        _state: &dyn DataFusionSession,
        _store: &Arc<dyn ObjectStore>,
        _objects: &[ObjectMeta],
    ) -> DataFusionResult<SchemaRef> {
        not_impl_err!("reading by what writes")
    }

    async fn infer_stats(
        &self,
        _state: &dyn DataFusionSession,
        _store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        _object: &ObjectMeta,
    ) -> DataFusionResult<Statistics> {
        Ok(Statistics::new_unknown(&table_schema))
    }

    async fn create_physical_plan(
        &self,
        _state: &dyn DataFusionSession,
        _config: FileScanConfig,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        not_impl_err!("reading by what writes")
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        _state: &dyn DataFusionSession,
        config: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let sink = Arc::new(Sink { config, options: Arc::new(self.clone()) });
        Ok(Arc::new(DataSinkExec::new(input, sink, order)))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        // DataFusion calls this for formats that are read, and this one is not.
        datafusion::datasource::file_format::csv::CsvFormat::default().file_source(table_schema)
    }
}

/// The destination of rows.
struct Sink {
    config: FileSinkConfig,
    options: Arc<WriteOptions>,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CsvSink").finish_non_exhaustive()
    }
}

impl DisplayAs for Sink {
    fn fmt_as(&self, _kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CsvSink")
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
        let serializer = Arc::clone(&self.options) as Arc<dyn BatchSerializer>;
        let compression = self.options.compression;
        spawn_writer_tasks_and_join(context, serializer, compression, None, object_store, demux_task, file_stream_rx)
            .await
    }
}

#[async_trait]
impl DataSink for Sink {
    fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    async fn write_all(&self, data: SendableRecordBatchStream, context: &Arc<TaskContext>) -> DataFusionResult<u64> {
        FileSink::write_all(self, data, context).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use arrow::array::StringArray;
    use arrow::datatypes::{Field, Schema};

    fn written(values: &[Option<&str>], escape: u8, null: &str) -> String {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Utf8, true)]));
        let batch = RecordBatch::try_new(schema, vec![Arc::new(StringArray::from(values.to_vec()))]).unwrap();
        let options = WriteOptions {
            delimiter: b',',
            quote: b'"',
            escape,
            null: null.into(),
            has_header: false,
            compression: FileCompressionType::UNCOMPRESSED,
        };
        String::from_utf8(options.serialize(batch, true).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn values_are_read_as_they_were() {
        let plain = written(&[Some("a"), Some("a,b"), Some("say \"x\""), Some(""), None, Some("#c")], b'"', "");
        assert_eq!(plain, "a\n\"a,b\"\n\"say \"\"x\"\"\"\n\"\"\n\n\"#c\"\n");
        assert_eq!(written(&[Some("NULL"), None], b'"', "NULL"), "\"NULL\"\nNULL\n");
        assert_eq!(written(&[Some("a;b"), Some("'c'"), Some("d'e")], b'"', ""), "\"a;b\"\n\"'c'\"\nd'e\n");
        assert_eq!(written(&[Some("a,b\\"), Some("\"")], b'\\', ""), "\"a,b\\\\\"\n\"\\\"\"\n");
    }
}
