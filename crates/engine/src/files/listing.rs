//! A statement's files as a table, in the order of the statement.
//!
//! DataFusion's listing table (55.2.0) treats a list of paths as a set: `read_csv(['b.csv',
//! 'a.csv', 'b.csv'])` reads `b.csv` once, and after `a.csv`. Here a file is read as often as the
//! statement has it, as in DuckDB. Files follow the order of the statement: the entries of a list
//! as they are written, the matches of a pattern by their names.
//!
//! Invariant: the files of a group, and then of the next one, are in the order of `urls`.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Result as DataFusionResult, Statistics, project_schema};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::{ListingTableUrl, PartitionedFile};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::logical_expr::{TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::prelude::Expr;
use datafusion_datasource::compute_all_files_statistics;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectStore, ObjectStoreExt};

/// Files as a table, with their own columns alone.
#[derive(Debug)]
pub(super) struct FileTable {
    pub format: Arc<dyn FileFormat>,
    pub urls: Vec<ListingTableUrl>,
    pub schema: SchemaRef,
}

/// Files at URLs, each with its place in a table's list.
pub(super) struct Files<'a> {
    pub format: &'a Arc<dyn FileFormat>,
    pub urls: Vec<(usize, &'a ListingTableUrl)>,
    pub schema: TableSchema,
}

impl Files<'_> {
    /// Plans a scan of the files. `projection` selects columns of the schema. `known` adds the
    /// table's knowledge of a file to it.
    pub async fn scan(
        &self,
        state: &dyn DataFusionSession,
        projection: Option<Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
        known: impl Fn(usize, PartitionedFile) -> PartitionedFile + Send,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let most = limit.filter(|_| filters.is_empty());
        let Listed { files, is_part } = list(state, self.format, &self.urls, self.schema.file_schema(), most).await?;
        let schema = self.schema.table_schema();
        let Some(store) = self.urls.first().map(|(_, url)| url.object_store()).filter(|_| !files.is_empty()) else {
            return Ok(Arc::new(EmptyExec::new(project_schema(schema, projection.as_ref())?)));
        };
        let files = files.into_iter().map(|(place, file)| known(place, file)).collect();
        let groups = grouped(files, state.config().target_partitions());
        let ordering = common_ordering(&groups);
        let collects = state.config().collect_statistics();
        let (groups, statistics) = compute_all_files_statistics(groups, Arc::clone(schema), collects, is_part)?;
        let config = FileScanConfigBuilder::new(store, self.format.file_source(self.schema.clone()))
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_projection_indices(projection)?
            .with_limit(limit)
            .with_output_ordering(ordering.into_iter().collect())
            .build();
        self.format.create_physical_plan(state, config).await
    }
}

/// The files that a scan reads.
struct Listed {
    /// The files, each with its place in the list of URLs. Empty files have no rows, and are
    /// omitted.
    files: Vec<(usize, PartitionedFile)>,
    /// True if further files are omitted because the requested rows do not need them.
    is_part: bool,
}

/// Lists the files at some URLs, with their statistics. Stops once the listed files have more than
/// `most` rows.
async fn list(
    state: &dyn DataFusionSession,
    format: &Arc<dyn FileFormat>,
    urls: &[(usize, &ListingTableUrl)],
    schema: &SchemaRef,
    most: Option<usize>,
) -> DataFusionResult<Listed> {
    let mut listed = Listed { files: Vec::with_capacity(urls.len()), is_part: false };
    let Some((_, first)) = urls.first() else { return Ok(listed) };
    let store = &state.runtime_env().object_store(first)?;
    let at_a_time = state.config_options().execution.meta_fetch_concurrency.get();
    let mut looked_up = Vec::with_capacity(urls.len());
    for (place, url) in urls {
        looked_up.push(look_up(state, format, store, *place, url, schema));
    }
    let mut looked_up = futures::stream::iter(looked_up).buffered(at_a_time);
    let mut rows = Precision::Exact(0);
    while let Some(found) = looked_up.try_next().await? {
        let Some((place, file)) = found else { continue };
        if matches!((rows, most), (Precision::Exact(rows), Some(most)) if rows > most) {
            listed.is_part = true;
            return Ok(listed);
        }
        rows = file.statistics.as_ref().map_or(Precision::Absent, |statistics| rows.add(&statistics.num_rows));
        listed.files.push((place, file));
    }
    Ok(listed)
}

/// Returns a file with its statistics; `None` if it is empty.
async fn look_up(
    state: &dyn DataFusionSession,
    format: &Arc<dyn FileFormat>,
    store: &Arc<dyn ObjectStore>,
    place: usize,
    url: &ListingTableUrl,
    schema: &SchemaRef,
) -> DataFusionResult<Option<(usize, PartitionedFile)>> {
    let object = store.head(url.prefix()).await?;
    if object.size == 0 {
        return Ok(None);
    }
    let (statistics, ordering) = match state.config().collect_statistics() {
        true => {
            let known = format.infer_stats_and_ordering(state, store, Arc::clone(schema), &object).await?;
            (known.statistics, known.ordering)
        }
        false => (Statistics::new_unknown(schema), None),
    };
    let file = PartitionedFile::from(object).with_statistics(Arc::new(statistics)).with_ordering(ordering);
    Ok(Some((place, file)))
}

/// Divides files into at most `groups` groups. Each is a contiguous part of the list.
fn grouped(files: Vec<PartitionedFile>, groups: usize) -> Vec<FileGroup> {
    let each = files.len().div_ceil(groups.max(1)).max(1);
    files.chunks(each).map(|files| FileGroup::new(files.to_vec())).collect()
}

/// Returns the order that all files declare for their rows.
fn common_ordering(files: &[FileGroup]) -> Option<LexOrdering> {
    let mut orderings = files.iter().flat_map(FileGroup::files).map(|file| file.ordering.as_ref());
    let first = orderings.next()??;
    let shared = orderings.try_fold(first.len(), |shared, ordering| {
        let is_same = first.iter().zip(ordering?.iter()).take(shared);
        Some(is_same.take_while(|(a, b)| a == b).count())
    })?;
    LexOrdering::new(first.iter().take(shared).cloned())
}

#[async_trait]
impl TableProvider for FileTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn DataFusionSession,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let schema = TableSchema::builder(Arc::clone(&self.schema)).build();
        let files = Files { format: &self.format, urls: self.urls.iter().enumerate().collect(), schema };
        files.scan(state, projection.cloned(), filters, limit, |_, file| file).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_follow_each_other_in_the_order_of_the_list() {
        let names = ["b", "a", "b", "d", "c"];
        for (groups, expected) in [
            (1, vec![vec!["b", "a", "b", "d", "c"]]),
            (2, vec![vec!["b", "a", "b"], vec!["d", "c"]]),
            (8, names.iter().map(|name| vec![*name]).collect()),
        ] {
            let files = names.iter().map(|name| PartitionedFile::new(*name, 1)).collect();
            let found = grouped(files, groups);
            let paths = found.iter().map(|group| group.files().iter().map(|file| file.path().as_ref()).collect());
            assert_eq!(paths.collect::<Vec<Vec<&str>>>(), expected);
        }
        assert!(grouped(Vec::new(), 4).is_empty());
    }
}
