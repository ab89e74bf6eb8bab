//! Parquet and Arrow files whose columns DataFusion does not find: read front to back, by position.
//!
//! 1. Two columns of one name. DataFusion finds columns of Parquet by name, and loses all but one of them: upstream.md. The
//!    second `a` is named `a_1`, as a text file's is.
//! 2. An Arrow column of type Null. A table's column is text, since other files may have values, and DataFusion's scan of
//!    Arrow casts nothing: "column types must match schema types, expected Utf8 but found Null".
//! 3. Arrow files of before 1.0, whose messages are of metadata version 4: arrow's reader of files refuses them, and its
//!    reader of streams, which a file has in it, does not.
//!
//! 4. Parquet without row groups, as fastparquet writes it: the list of them has no element type, which parquet's reader
//!    refuses ("Expected list element type of Struct but got Byte"). It is given one.
//!
//! One stream reads a file, a batch at a time, on a thread that may wait. Columns are found by the names that they have
//! been given, and cast to the table's types.

use std::collections::HashMap;
use std::fmt;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::CastOptions;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::ipc::reader::StreamReader;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::catalog::Session as DataFusionSession;
use datafusion::common::nested_struct::cast_column;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as DataFusionResult, Statistics};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener, FileScanConfig, FileSource};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::csv::distinct;
use super::glob::Found;
use super::named::caught_now;
use super::site::Site;
use super::{Format, Names, agree, blocking, directory_columns};
use crate::encoded::entered_batch;

/// The eight bytes before the stream in an Arrow file.
const ARROW_MAGIC: &[u8] = b"ARROW1";

/// Whether a file's columns are found by their names and types as they are.
pub(super) fn is_plain(schema: &Schema, format: Format) -> bool {
    let has_null = || schema.fields().iter().any(|field| *field.data_type() == DataType::Null);
    match format {
        Format::Parquet => is_distinct(schema),
        Format::Arrow => is_distinct(schema) && !has_null(),
        Format::Csv | Format::Json => true,
    }
}

fn is_distinct(schema: &Schema) -> bool {
    let names: std::collections::HashSet<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    names.len() == schema.fields().len()
}

/// A schema whose columns have names of their own.
pub(super) fn renamed(schema: &Schema) -> SchemaRef {
    let names = distinct(schema.fields().iter().map(|field| field.name().clone()).collect());
    let fields = schema.fields().iter().zip(names).map(|(field, name)| field.as_ref().clone().with_name(name));
    Arc::new(Schema::new(fields.collect::<Fields>()))
}

/// Whether the messages of an Arrow file are of another version than its footer says.
pub(super) fn is_old(file: &mut (impl Read + Seek)) -> bool {
    let mut start = [0; 16];
    if file.read_exact(&mut start).is_err() || !start.starts_with(ARROW_MAGIC) {
        return false;
    }
    // The length of the first message, behind a mark that the oldest files do not have.
    let (at, len) = match start[8..12] {
        [0xFF, 0xFF, 0xFF, 0xFF] => (16, u32::from_le_bytes([start[12], start[13], start[14], start[15]])),
        _ => (12, u32::from_le_bytes([start[8], start[9], start[10], start[11]])),
    };
    let mut message = vec![0; (len as usize).min(1 << 24)];
    if file.seek(SeekFrom::Start(at)).is_err() || file.read_exact(&mut message).is_err() {
        return false;
    }
    arrow::ipc::root_as_message(&message).is_ok_and(|message| message.version() != arrow::ipc::MetadataVersion::V5)
}

/// The columns of a Parquet file of which some have the same name: DataFusion's own schema has one of those.
pub(super) async fn with_same_names(
    state: &dyn DataFusionSession,
    store: &dyn ObjectStore,
    object: &ObjectMeta,
    merged: &Schema,
) -> DataFusionResult<Option<SchemaRef>> {
    let cache = state.runtime_env().cache_manager.get_file_metadata_cache();
    let footer = DFParquetMetadata::new(store, object).with_file_metadata_cache(Some(cache));
    let columns = footer.fetch_metadata().await?.file_metadata().schema_descr().root_schema().get_fields().len();
    Ok(if columns > merged.fields().len() { Some(Arc::new(footer.fetch_schema().await?)) } else { None })
}

/// The columns of a Parquet file, if it is one that has no row groups. Blocks.
pub(super) fn without_row_groups(site: &Site, file: &Found) -> DataFusionResult<Option<SchemaRef>> {
    caught_now(&file.name, || {
        let mut bytes = Vec::new();
        site.open_anywhere(&file.path)?.read_to_end(&mut bytes)?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(with_typed_list(bytes));
        let empty = reader.ok().filter(|reader| reader.metadata().num_row_groups() == 0);
        Ok(empty.map(|reader| Arc::clone(reader.schema())))
    })
}

/// A Parquet file whose empty list of row groups is a list of structs.
fn with_typed_list(mut bytes: Vec<u8>) -> Bytes {
    // No rows, and then a list of no elements of type 0; type 12 is a struct.
    const UNTYPED: [u8; 4] = [0x16, 0x00, 0x19, 0x00];
    let footer = bytes.len().checked_sub(8).and_then(|at| {
        let len = u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
        at.checked_sub(len as usize)
    });
    let place = footer.and_then(|footer| {
        let found = bytes.get(footer..)?.windows(UNTYPED.len()).rposition(|window| window == UNTYPED)?;
        Some(footer + found + 3)
    });
    if let Some(byte) = place.and_then(|place| bytes.get_mut(place)) {
        *byte = 0x0C;
    }
    Bytes::from(bytes)
}

/// Files that are read by position.
#[derive(Clone, Debug)]
pub(super) struct PositionalFormat {
    pub site: Site,
    pub format: Format,
    pub names: Names,
}

type Batches = Box<dyn Iterator<Item = DataFusionResult<RecordBatch>> + Send>;

impl PositionalFormat {
    /// The batches of a file. Blocks.
    fn batches(&self, name: &str, path: &str, batch_rows: usize) -> DataFusionResult<Batches> {
        caught_now(name, || {
            let mut file = self.site.open_anywhere(path)?;
            if self.format == Format::Parquet {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                let reader = ParquetRecordBatchReaderBuilder::try_new(with_typed_list(bytes))?;
                let reader = reader.with_batch_size(batch_rows).build()?;
                return Ok(Box::new(reader.map(|batch| Ok(batch?))) as Batches);
            }
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            // Zeros follow the mark of the format, up to a multiple of eight bytes: the first message.
            let start = match bytes.strip_prefix(ARROW_MAGIC) {
                Some(rest) => (ARROW_MAGIC.len() + rest.iter().take_while(|byte| **byte == 0).count()) / 8 * 8,
                None => 0,
            } as u64;
            let mut stream = Cursor::new(bytes);
            stream.set_position(start);
            let reader = StreamReader::try_new(stream, None)?;
            Ok(Box::new(reader.map(|batch| Ok(batch?))) as Batches)
        })
    }
}

#[async_trait]
impl FileFormat for PositionalFormat {
    fn get_ext(&self) -> String {
        self.format.copy_name().to_lowercase()
    }

    fn get_ext_with_compression(&self, _compression: &FileCompressionType) -> DataFusionResult<String> {
        Ok(self.get_ext())
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
        datafusion::common::internal_err!("columns that are known are looked for")
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
        _state: &dyn DataFusionSession,
        config: FileScanConfig,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        Ok(DataSourceExec::from_data_source(config))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(PositionalSource {
            format: Arc::new(self.clone()),
            projection: SplitProjection::unprojected(&table_schema),
            table_schema,
            batch_rows: 8192,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }
}

/// A scan of such files.
#[derive(Clone)]
struct PositionalSource {
    format: Arc<PositionalFormat>,
    table_schema: TableSchema,
    projection: SplitProjection,
    batch_rows: usize,
    metrics: ExecutionPlanMetricsSet,
}

impl FileSource for PositionalSource {
    fn create_file_opener(
        &self,
        _store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        _partition: usize,
    ) -> DataFusionResult<Arc<dyn FileOpener>> {
        let schema = self.table_schema.file_schema();
        let fields = self.projection.file_indices.iter().filter_map(|at| schema.fields().get(*at).cloned());
        let wanted = Arc::new(Schema::new(fields.collect::<Fields>()));
        let opener =
            Opener { format: Arc::clone(&self.format), table: Arc::clone(schema), wanted, batch_rows: self.batch_rows };
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
        "positional"
    }

    fn fmt_extra(
        &self,
        _kind: datafusion::physical_plan::DisplayFormatType,
        _f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        Ok(())
    }

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
    format: Arc<PositionalFormat>,
    /// The columns that files have together, and those of them that are wanted.
    table: SchemaRef,
    wanted: SchemaRef,
    batch_rows: usize,
}

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> DataFusionResult<FileOpenFuture> {
        let (name, path) = self.format.names.of(&file.object_meta.location);
        let (format, table) = (Arc::clone(&self.format), Arc::clone(&self.table));
        let (wanted, batch_rows) = (Arc::clone(&self.wanted), self.batch_rows);
        Ok(Box::pin(async move {
            let opened = {
                let name = name.clone();
                move || format.batches(&name, &path, batch_rows)
            };
            let batches = blocking(opened).await??;
            let rows = futures::stream::try_unfold(batches, move |mut batches| {
                let (table, wanted, name) = (Arc::clone(&table), Arc::clone(&wanted), name.clone());
                async move {
                    let next = blocking(move || {
                        let batch = caught_now(&name, || batches.next().transpose());
                        (batch, batches)
                    });
                    let (batch, batches) = next.await?;
                    let Some(batch) = batch? else { return Ok(None) };
                    Ok::<_, DataFusionError>(Some((fitted(&batch, &table, &wanted)?, batches)))
                }
            });
            Ok(rows.into_stream().boxed())
        }))
    }
}

/// The wanted columns of a batch, of the wanted types.
fn fitted(batch: &RecordBatch, table: &Schema, wanted: &SchemaRef) -> DataFusionResult<RecordBatch> {
    let batch = entered_batch(batch.clone())?;
    let own = renamed(&batch.schema());
    let names = agree::names_of(table);
    let found = names.iter().zip(agree::places(&names, &agree::names_of(&own), Format::Parquet));
    let places: HashMap<&str, usize> = found.filter_map(|(name, place)| Some((*name, place?))).collect();
    let column = |field: &Arc<Field>| match places.get(field.name().as_str()) {
        Some(place) => {
            let options = CastOptions { safe: false, ..CastOptions::default() };
            cast_column(batch.column(*place), field.data_type(), &options)
        }
        None => Ok(new_null_array(field.data_type(), batch.num_rows())),
    };
    let columns = wanted.fields().iter().map(column).collect::<DataFusionResult<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(wanted), columns, &options)?)
}
