//! Arrow files, and Parquet files whose columns DataFusion does not find, read front to back.
//!
//! 1. Arrow files and streams. arrow-ipc trusts them, so [`onehop_files::arrow_ipc`] reads them.
//! 2. Parquet with two columns of one name. DataFusion finds columns by name, and loses all but one
//!    of them: upstream.md. The second `a` is named `a_1`, as in a text file.
//! 3. Parquet whose footer is too large for DataFusion's cache, with more row groups than
//!    DataFusion's own footer reader supports.
//!
//! One stream reads a file, or a range of an Arrow file, one batch at a time, on a thread that may
//! block. Columns are found by their assigned names, and cast to the table's types.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::CastOptions;
use arrow::datatypes::{Field, Fields, Schema, SchemaRef};
use async_trait::async_trait;
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
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use onehop_files::arrow_ipc::{ArrowFile, Selection};
use onehop_files::{Fault, Unbounded, parquet_file};
use onehop_io::Ledger;
use parquet::arrow::parquet_to_arrow_schema;

use super::account::PoolMemory;
use super::csv::distinct;
use super::glob::Found;
use super::named::{caught_now, named};
use super::site::Site;
use super::sized::cut;
use super::{Format, Names, agree, blocking, directory_columns};
use crate::encoded::entered_batch;

/// Returns whether a file's columns are distinguished by their names.
pub(super) fn is_plain(schema: &Schema, format: Format) -> bool {
    match format {
        Format::Parquet | Format::Arrow => is_distinct(schema),
        Format::Csv | Format::Json => true,
    }
}

fn is_distinct(schema: &Schema) -> bool {
    let names: std::collections::HashSet<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    names.len() == schema.fields().len()
}

/// Returns a schema with distinct column names.
pub(super) fn renamed(schema: &Schema) -> SchemaRef {
    let names = distinct(schema.fields().iter().map(|field| field.name().clone()).collect());
    let fields = schema.fields().iter().zip(names).map(|(field, name)| field.as_ref().clone().with_name(name));
    Arc::new(Schema::new(fields.collect::<Fields>()))
}

/// Returns the columns of a Parquet file with duplicate names. DataFusion's own schema has one
/// column for each name.
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

/// Returns the columns of a Parquet file with more row groups than parquet's reader numbers.
/// Blocks.
pub(super) fn of_many_row_groups(site: &Site, file: &Found) -> DataFusionResult<Option<SchemaRef>> {
    caught_now(&file.name, || {
        let input = site.input(&file.path, None)?;
        let (metadata, _) = parquet_file::read_footer(input.as_ref(), &mut Unbounded).map_err(external)?;
        if metadata.num_row_groups() <= i16::MAX as usize {
            return Ok(None);
        }
        let file = metadata.file_metadata();
        Ok(Some(Arc::new(parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata())?)))
    })
}

fn external(fault: Fault) -> DataFusionError {
    DataFusionError::External(Box::new(fault))
}

/// A format whose files are read by position.
#[derive(Clone)]
pub(super) struct PositionalFormat {
    pub site: Site,
    pub format: Format,
    pub names: Names,
    /// The ledger that counts the bytes read.
    pub ledger: Option<Arc<Ledger>>,
    pub pool: Arc<dyn MemoryPool>,
}

impl fmt::Debug for PositionalFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PositionalFormat").field("format", &self.format).finish_non_exhaustive()
    }
}

type Batches = Box<dyn Iterator<Item = DataFusionResult<RecordBatch>> + Send>;

/// The part of a file to read.
struct Part {
    path: String,
    range: Option<Range<u64>>,
    /// The columns of all files together.
    table: SchemaRef,
    /// The columns to read.
    wanted: SchemaRef,
    batch_rows: usize,
}

impl PositionalFormat {
    /// Returns the batches of a part of a file. Blocks.
    fn batches(&self, name: &str, part: &Part) -> DataFusionResult<Batches> {
        caught_now(name, || {
            let input = self.site.input(&part.path, self.ledger.clone())?;
            let mut memory = Box::new(PoolMemory::new(&self.pool));
            if self.format == Format::Parquet {
                let reader = parquet_file::open(input, memory.as_mut()).map_err(external)?;
                let own = renamed(reader.schema());
                let reader = reader.with_batch_size(part.batch_rows).build()?;
                let batches = reader.map(move |batch| {
                    // The memory is held as long as there are batches.
                    let _ = &memory;
                    called(batch?, &own)
                });
                return Ok(Box::new(batches) as Batches);
            }
            let file = ArrowFile::open(input).map_err(external)?;
            let own = renamed(&file.schema());
            let columns = part.needed(&own);
            let own = Arc::new(own.project(&columns)?);
            let batches = file.batches(Selection { columns: Some(columns), range: part.range.clone() }, memory);
            Ok(Box::new(batches.map(move |batch| called(batch.map_err(external)?, &own))) as Batches)
        })
    }
}

impl Part {
    /// Returns the places of the wanted columns in a file of this schema.
    fn needed(&self, own: &Schema) -> Vec<usize> {
        let places = places(&self.table, own);
        let mut needed: Vec<usize> =
            self.wanted.fields().iter().filter_map(|field| places.get(field.name().as_str()).copied()).collect();
        needed.sort_unstable();
        needed.dedup();
        needed
    }
}

/// Returns a batch whose columns have the names of a schema.
fn called(batch: RecordBatch, schema: &SchemaRef) -> DataFusionResult<RecordBatch> {
    let fields = batch.schema_ref().fields().iter().zip(schema.fields());
    let fields: Fields = fields.map(|(own, named)| own.as_ref().clone().with_name(named.name())).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), batch.columns().to_vec(), &options)?)
}

/// Returns the places of a table's columns in a file.
fn places<'a>(table: &'a Schema, own: &Schema) -> HashMap<&'a str, usize> {
    let names = agree::names_of(table);
    let found = agree::places(&names, &agree::names_of(own), Format::Parquet);
    names.into_iter().zip(found).filter_map(|(name, place)| Some((name, place?))).collect()
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
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        _partition: usize,
    ) -> DataFusionResult<Arc<dyn FileOpener>> {
        let schema = self.table_schema.file_schema();
        let fields = self.projection.file_indices.iter().filter_map(|at| schema.fields().get(*at).cloned());
        let wanted = Arc::new(Schema::new(fields.collect::<Fields>()));
        let opener = Opener {
            format: Arc::clone(&self.format),
            store,
            table: Arc::clone(schema),
            wanted,
            batch_rows: self.batch_rows,
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
        match self.format.format {
            Format::Arrow => "arrow",
            _ => "positional",
        }
    }

    fn fmt_extra(
        &self,
        _kind: datafusion::physical_plan::DisplayFormatType,
        _f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        Ok(())
    }

    /// The footer of an Arrow file locates each batch.
    fn supports_repartitioning(&self) -> bool {
        self.format.format == Format::Arrow
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
    store: Arc<dyn ObjectStore>,
    /// The columns of all files together.
    table: SchemaRef,
    /// The columns to read.
    wanted: SchemaRef,
    batch_rows: usize,
}

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> DataFusionResult<FileOpenFuture> {
        let location = file.object_meta.location;
        let (name, path) = self.format.names.of(&location);
        let (format, store) = (Arc::clone(&self.format), Arc::clone(&self.store));
        let range = file.range.map(|range| range.start.unsigned_abs()..range.end.unsigned_abs());
        let (table, wanted) = (Arc::clone(&self.table), Arc::clone(&self.wanted));
        let part = Arc::new(Part { path, range, table, wanted, batch_rows: self.batch_rows });
        Ok(Box::pin(async move {
            // Checks that the file is the one whose columns were read.
            let seen = store.head(&location).await.map_err(DataFusionError::from);
            seen.map_err(|e| named(&name, e))?;
            let opened = {
                let (name, part) = (name.clone(), Arc::clone(&part));
                move || format.batches(&name, &part)
            };
            let batches = blocking(opened).await??;
            let rows = futures::stream::try_unfold(batches, move |mut batches| {
                let (part, name) = (Arc::clone(&part), name.clone());
                async move {
                    let next = blocking(move || {
                        let batch = caught_now(&name, || batches.next().transpose());
                        (batch, batches)
                    });
                    let (batch, batches) = next.await?;
                    let Some(batch) = batch? else { return Ok(None) };
                    let slices = futures::stream::iter(cut(&batch, part.batch_rows));
                    let fitted = slices.map(move |slice| fitted(slice, &part.table, &part.wanted));
                    Ok::<_, DataFusionError>(Some((fitted, batches)))
                }
            });
            Ok(rows.try_flatten().boxed())
        }))
    }
}

/// Returns the wanted columns of a batch, cast to the wanted types.
fn fitted(batch: RecordBatch, table: &Schema, wanted: &SchemaRef) -> DataFusionResult<RecordBatch> {
    let rows = batch.num_rows();
    let batch = entered_batch(batch)?;
    let places = places(table, batch.schema_ref());
    let column = |field: &Arc<Field>| match places.get(field.name().as_str()) {
        Some(place) => {
            let options = CastOptions { safe: false, ..CastOptions::default() };
            cast_column(batch.column(*place), field.data_type(), &options)
        }
        None => Ok(new_null_array(field.data_type(), rows)),
    };
    let columns = wanted.fields().iter().map(column).collect::<DataFusionResult<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(wanted), columns, &options)?)
}
