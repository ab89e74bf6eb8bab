//! A wrapper for a DataFusion format whose errors name the file.
//!
//! Readers report the failure, but not the file. Some report damage as an internal error, and a few
//! panic. All of these are faults of the file. [`NamedFormat`] wraps its readers, at planning and
//! at run time, and converts such faults to errors of kind [`ErrorKind::Data`]. A refusal of the
//! operating system stays an I/O error. An error of an expression is unchanged, as scans compute
//! projections: the file does not cause it.
//!
//! It also corrects the statistics of Parquet: [`uncertain_statistics`].

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use async_trait::async_trait;
use datafusion::catalog::Session as DataFusionSession;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::config::ConfigOptions;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::{FileFormat, FileMeta};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpener, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::filter_pushdown::FilterPushdownPropagation;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan, SortOrderPushdownResult};
use datafusion_datasource::morsel::{Morsel, MorselPlan, MorselPlanner, Morselizer};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::{ObjectMeta, ObjectStore};
use onehop_files::Fault;
use onehop_files::guard::{Panicked, guarded, guarded_future, guarded_stream};

use super::account::{DAMAGED, unread_for};
use super::footers::Footers;
use super::respelled::{self, Respelling, Spelling};
use super::site::{of_cluster, refused_by_cluster};
use super::sized::cut;
use super::{Names, directory_columns, uncertain_statistics};
use crate::encoded::entered_batch;
use crate::error::{Changed, causes, within};
use crate::{Error, ErrorKind};

#[derive(Clone, Debug)]
pub(super) struct NamedFormat {
    pub inner: Arc<dyn FileFormat>,
    pub names: Names,
    pub spelling: Spelling,
    /// The places of the timestamp columns for which files have other units than the table.
    pub units: Arc<[usize]>,
}

impl NamedFormat {
    /// Returns the table's columns under the names of a file.
    async fn own_schema(
        &self,
        state: &dyn DataFusionSession,
        store: &Arc<dyn ObjectStore>,
        table_schema: &SchemaRef,
        object: &ObjectMeta,
    ) -> Result<SchemaRef> {
        match self.spelling {
            Spelling::Same => Ok(Arc::clone(table_schema)),
            Spelling::Own => {
                let file = self.inner.infer_schema(state, store, std::slice::from_ref(object)).await?;
                Ok(respelled::in_file(table_schema, &file))
            }
        }
    }
}

#[async_trait]
impl FileFormat for NamedFormat {
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
        let name = objects.first().map(|object| self.names.of(&object.location).0).unwrap_or_default();
        let footers = Footers::of(state.runtime_env());
        for object in objects {
            caught(&name, footers.read(store.as_ref(), object)).await?;
        }
        caught(&name, self.inner.infer_schema(state, store, objects)).await
    }

    async fn infer_stats(
        &self,
        state: &dyn DataFusionSession,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        let name = self.names.of(&object.location).0;
        let own = caught(&name, self.own_schema(state, store, &table_schema, object)).await?;
        let statistics = caught(&name, self.inner.infer_stats(state, store, own, object)).await?;
        Ok(uncertain_statistics::known(statistics, &table_schema, &self.units))
    }

    async fn infer_ordering(
        &self,
        state: &dyn DataFusionSession,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Option<LexOrdering>> {
        let name = self.names.of(&object.location).0;
        caught(&name, self.inner.infer_ordering(state, store, table_schema, object)).await
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn DataFusionSession,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        let name = self.names.of(&object.location).0;
        let own = caught(&name, self.own_schema(state, store, &table_schema, object)).await?;
        let is_same = own == table_schema;
        let mut meta = caught(&name, self.inner.infer_stats_and_ordering(state, store, own, object)).await?;
        // An ordering refers to columns by the file's names.
        meta.ordering = meta.ordering.filter(|_| is_same);
        meta.statistics = uncertain_statistics::known(meta.statistics, &table_schema, &self.units);
        Ok(meta)
    }

    async fn create_physical_plan(
        &self,
        state: &dyn DataFusionSession,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // Formats expect a source of their own kind, so it is wrapped afterwards.
        let plan = self.inner.create_physical_plan(state, config).await?;
        let scan = plan.downcast_ref::<DataSourceExec>();
        let config = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
        let Some(config) = config else { return Ok(plan) };
        let store = state.runtime_env().object_store(&config.object_store_url)?;
        let checking = config.file_source().downcast_ref::<ParquetSource>();
        let checking = checking.and_then(|source| Footers::of(state.runtime_env()).checking(source, store));
        let source = checking.map_or_else(|| Arc::clone(config.file_source()), |source| Arc::new(source) as _);
        let source = NamedSource::wrap(source, self.names.clone(), Arc::clone(&self.units));
        let named = FileScanConfigBuilder::from(config.clone()).with_source(source);
        let named = match self.spelling {
            Spelling::Same => named,
            Spelling::Own => named.with_expr_adapter(Some(Arc::new(Respelling))),
        };
        Ok(DataSourceExec::from_data_source(named.build()))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.inner.file_source(table_schema)
    }
}

struct NamedSource {
    inner: Arc<dyn FileSource>,
    names: Names,
    units: Arc<[usize]>,
}

impl NamedSource {
    fn wrap(inner: Arc<dyn FileSource>, names: Names, units: Arc<[usize]>) -> Arc<dyn FileSource> {
        Arc::new(Self { inner, names, units })
    }

    fn again(&self, inner: Arc<dyn FileSource>) -> Arc<dyn FileSource> {
        Self::wrap(inner, self.names.clone(), Arc::clone(&self.units))
    }
}

impl FileSource for NamedSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        self.inner.create_file_opener(store, config, partition)
    }

    fn create_morselizer(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Box<dyn Morselizer>> {
        let inner = self.inner.create_morselizer(store, config, partition)?;
        let declared = directory_columns::declared(config)?;
        Ok(Box::new(NamedMorselizer { inner, names: self.names.clone(), declared }))
    }

    fn table_schema(&self) -> &TableSchema {
        self.inner.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        self.again(self.inner.with_batch_size(batch_size))
    }

    fn filter(&self) -> Option<Arc<dyn PhysicalExpr>> {
        self.inner.filter()
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.inner.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.inner.metrics()
    }

    fn file_type(&self) -> &str {
        self.inner.file_type()
    }

    fn fmt_extra(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_extra(kind, f)
    }

    fn supports_repartitioning(&self) -> bool {
        self.inner.supports_repartitioning()
    }

    fn repartitioned(
        &self,
        target_partitions: usize,
        repartition_file_min_size: usize,
        output_ordering: Option<LexOrdering>,
        config: &FileScanConfig,
    ) -> Result<Option<FileScanConfig>> {
        self.inner.repartitioned(target_partitions, repartition_file_min_size, output_ordering, config)
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn FileSource>>> {
        let filters = uncertain_statistics::conditions(&filters, self.table_schema().table_schema(), &self.units);
        let pushed = self.inner.try_pushdown_filters(filters, config)?;
        let updated_node = pushed.updated_node.map(|inner| self.again(inner));
        Ok(FilterPushdownPropagation { filters: pushed.filters, updated_node })
    }

    fn try_pushdown_sort(
        &self,
        order: &[PhysicalSortExpr],
        properties: &EquivalenceProperties,
    ) -> Result<SortOrderPushdownResult<Arc<dyn FileSource>>> {
        Ok(self.inner.try_pushdown_sort(order, properties)?.map(|inner| self.again(inner)))
    }

    fn reorder_files(&self, files: Vec<PartitionedFile>) -> Vec<PartitionedFile> {
        self.inner.reorder_files(files)
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn FileSource>>> {
        // A computed projection must operate on batches that have been cut.
        if !projection.iter().all(|one| only_selects(&one.expr)) {
            return Ok(None);
        }
        Ok(self.inner.try_pushdown_projection(projection)?.map(|inner| self.again(inner)))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.inner.apply_expressions(f)
    }
}

/// Returns whether an expression is a column, or a field of one.
fn only_selects(expr: &Arc<dyn PhysicalExpr>) -> bool {
    if let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() {
        return function.fun().name() == "get_field" && function.args().iter().all(only_selects);
    }
    expr.downcast_ref::<Column>().is_some() || expr.downcast_ref::<Literal>().is_some()
}

/// Opens files, and names them in errors.
#[derive(Debug)]
struct NamedMorselizer {
    inner: Box<dyn Morselizer>,
    names: Names,
    /// The declared schema of rows, if a file's own rows may have another one.
    declared: Option<SchemaRef>,
}

impl Morselizer for NamedMorselizer {
    fn plan_file(&self, file: PartitionedFile) -> Result<Box<dyn MorselPlanner>> {
        let name: Arc<str> = self.names.of(&file.object_meta.location).0.into();
        let inner = caught_now(&name, || self.inner.plan_file(file))?;
        Ok(Box::new(NamedPlanner { inner, name, declared: self.declared.clone() }))
    }
}

#[derive(Debug)]
struct NamedPlanner {
    inner: Box<dyn MorselPlanner>,
    name: Arc<str>,
    declared: Option<SchemaRef>,
}

impl NamedPlanner {
    fn boxed(inner: Box<dyn MorselPlanner>, name: &Arc<str>, declared: &Option<SchemaRef>) -> Box<dyn MorselPlanner> {
        Box::new(Self { inner, name: Arc::clone(name), declared: declared.clone() })
    }
}

impl MorselPlanner for NamedPlanner {
    fn plan(self: Box<Self>) -> Result<Option<MorselPlan>> {
        let Self { inner, name, declared } = *self;
        let Some(mut plan) = caught_now(&name, || inner.plan())? else { return Ok(None) };
        let morsel = |inner| NamedMorsel { inner, name: Arc::clone(&name), declared: declared.clone() };
        let morsels = plan.take_morsels().into_iter().map(|inner| Box::new(morsel(inner)) as Box<dyn Morsel>);
        let planners = plan.take_ready_planners().into_iter().map(|inner| Self::boxed(inner, &name, &declared));
        let mut named = MorselPlan::new().with_morsels(morsels.collect()).with_planners(planners.collect());
        if let Some(pending) = plan.take_pending_planner() {
            named.set_pending_planner(async move {
                let inner = caught(&name, pending.into_future()).await?;
                Ok(Self::boxed(inner, &name, &declared))
            });
        }
        Ok(Some(named))
    }
}

#[derive(Debug)]
struct NamedMorsel {
    inner: Box<dyn Morsel>,
    name: Arc<str>,
    declared: Option<SchemaRef>,
}

impl Morsel for NamedMorsel {
    fn into_stream(self: Box<Self>) -> BoxStream<'static, Result<RecordBatch>> {
        let Self { inner, name, declared } = *self;
        let as_declared = move |batch| match &declared {
            Some(declared) => directory_columns::as_declared(batch, declared),
            None => Ok(batch),
        };
        match guarded(|| inner.into_stream()) {
            Ok(stream) => {
                let entered = |batch| Ok(entered_batch(batch)?);
                let cut = move |step| {
                    let batches = settle(&name, step).map(|batch| cut(&batch, usize::MAX));
                    let batches =
                        batches.map_or_else(|e| vec![Err(e)], |batches| batches.into_iter().map(Ok).collect());
                    futures::stream::iter(batches)
                };
                let batches = guarded_stream(stream).flat_map(cut);
                batches.map(move |batch| batch.and_then(entered).and_then(&as_declared)).boxed()
            }
            Err(panicked) => futures::stream::iter([settle(&name, Err(panicked))]).boxed(),
        }
    }
}

async fn caught<T>(name: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    settle(name, guarded_future(work).await)
}

/// Runs a reader, and adds the file's name to its error.
pub(super) fn caught_now<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    settle(name, guarded(work))
}

/// Adds the file's name to the error of a reader.
fn settle<T>(name: &str, outcome: std::result::Result<Result<T>, Panicked>) -> Result<T> {
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(named(name, e)),
        // The file violates an assumption of its reader.
        Err(panicked) => Err(damaged(name, "its reader gave up").with_source(panicked).into()),
    }
}

fn damaged(name: &str, reason: &str) -> Error {
    let error = Error::new(ErrorKind::Data, format!("cannot read '{name}': {reason}"));
    error.with_hint(DAMAGED)
}

/// Adds the file's name to a reader's error.
pub(super) fn named(name: &str, e: DataFusionError) -> DataFusionError {
    if let Some(fault) = within::<Fault>(&e) {
        return unread_for(name, fault).into();
    }
    let root = e.find_root();
    if matches!(root, DataFusionError::External(inner) if inner.is::<Error>()) || is_computed(root) {
        return e;
    }
    if let Some(refused) = of_cluster(&e) {
        return refused_by_cluster(onehop_io::Operation::Read, name, refused).into();
    }
    if let Some(changed) = within::<Changed>(&e) {
        return Error::from(changed.named(name)).into();
    }
    let refused = refusal(&e).map(|refused| io::Error::from_raw_os_error(refused.raw_os_error().unwrap_or_default()));
    if let Some(refused) = refused {
        return Error::from(onehop_io::Error::new(onehop_io::Operation::Read, name, refused)).into();
    }
    // The message of a broken invariant ends in a request to report a bug. It is omitted.
    let invariant = match root {
        DataFusionError::Internal(text) => Some(text.clone()),
        DataFusionError::ResourcesExhausted(_) => return e,
        _ => None,
    };
    let inner = Error::from(e);
    damaged(name, invariant.as_deref().unwrap_or(inner.message())).with_source(inner).into()
}

/// Returns whether an expression over the rows failed, rather than their reading.
fn is_computed(e: &DataFusionError) -> bool {
    let DataFusionError::ArrowError(inner, _) = e else { return false };
    matches!(
        **inner,
        ArrowError::DivideByZero
            | ArrowError::ArithmeticOverflow(_)
            | ArrowError::CastError(_)
            | ArrowError::ComputeError(_)
    )
}

/// Returns the error of the operating system, if it is the cause.
fn refusal<'a>(e: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    causes(e).filter_map(|e| e.downcast_ref::<io::Error>()).find(|e| e.raw_os_error().is_some())
}
