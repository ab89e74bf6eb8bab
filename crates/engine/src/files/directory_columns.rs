//! Columns in the names of directories, as Hive, Spark and DuckDB write them:
//! `year=2024/month=5/x.parquet`.
//!
//! 1. The keys come from the path as the statement writes it, without the file's own name. If the
//!    files do not all have the same keys in the same order, there are no such columns: a directory
//!    `a=b` beside a directory `c` is an ordinary name.
//! 2. If the files have a column with the name of a key, in any case, the key replaces that column.
//!    Files are skipped by their directory, so rows must have its value. Other keys follow the
//!    files' columns.
//! 3. The type is the first of BIGINT, DATE, TIMESTAMP and VARCHAR whose canonical form all values
//!    of the key have. `01` is a string, since a number would lose the zero. Keys and values are
//!    percent-decoded. Hive's name for NULL is NULL of any type.
//! 4. A scan skips a file if a condition on these columns alone is false for its values. A
//!    condition whose evaluation fails here skips nothing. An example is a division by zero that
//!    another condition would have prevented. The operators above the scan test all conditions
//!    again on every row.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use async_trait::async_trait;
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, DFSchema, Result as DataFusionResult};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::helpers::expr_applicable_for_cols;
use datafusion::datasource::listing::{ListingTableUrl, PartitionedFile};
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener, FileScanConfig};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::logical_expr::{TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;
use futures::StreamExt;
use object_store::path::Path as StorePath;
use percent_encoding::percent_decode_str;

use super::listing::Files;
use crate::convert::parse_value;
use crate::pg_types::zone::Zone;

/// The value that Hive and Spark write for NULL, and for the empty string.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The keys and values in the directory names of a statement's files.
#[derive(Debug)]
pub(super) struct DirectoryColumns {
    fields: Vec<FieldRef>,
    /// A value for each field, of each file.
    values: Vec<Vec<ScalarValue>>,
}

/// Keys, and their values as written; `None` is NULL.
type Pairs = Vec<(String, Option<String>)>;

impl DirectoryColumns {
    /// Returns the columns of files at these paths; `None` if there are none.
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let files: Vec<Pairs> = paths.into_iter().map(pairs).collect();
        let keys: Vec<&String> = files.first()?.iter().map(|(key, _)| key).collect();
        let is_same = |file: &Pairs| file.iter().map(|(key, _)| key).eq(keys.iter().copied());
        let repeats = |(at, key): (usize, &&String)| keys[..at].contains(key);
        if !files.iter().all(is_same) || keys.iter().enumerate().any(repeats) {
            return None;
        }
        let (mut fields, mut values) = (Vec::new(), vec![Vec::new(); files.len()]);
        for (at, key) in keys.iter().enumerate() {
            let texts: Vec<Option<&str>> = files.iter().map(|file| file[at].1.as_deref()).collect();
            let (data_type, column) = typed(&texts);
            fields.push(Arc::new(Field::new(*key, data_type, true)));
            for (file, value) in values.iter_mut().zip(column) {
                file.push(value);
            }
        }
        (!fields.is_empty()).then_some(Self { fields, values })
    }

    /// Returns the keys.
    pub fn names(&self) -> Vec<String> {
        self.fields.iter().map(|field| field.name().clone()).collect()
    }

    /// Returns for each file whether it can contain rows for which all conditions hold.
    fn can_match(&self, conditions: &[Expr], state: &dyn DataFusionSession) -> DataFusionResult<Vec<bool>> {
        let names: Vec<&str> = self.fields.iter().map(|field| field.name().as_str()).collect();
        let conditions = conditions.iter().filter(|condition| expr_applicable_for_cols(&names, condition));
        let (conditions, mut can_match) = (conditions.collect::<Vec<_>>(), vec![true; self.values.len()]);
        if conditions.is_empty() {
            return Ok(can_match);
        }
        let columns = (0..self.fields.len()).map(|at| {
            let column = self.values.iter().map(|file| file[at].clone());
            ScalarValue::iter_to_array(column)
        });
        let columns: Vec<ArrayRef> = columns.collect::<DataFusionResult<_>>()?;
        let schema = Schema::new(self.fields.clone());
        let batch = RecordBatch::try_new(Arc::new(schema.clone()), columns)?;
        let schema = DFSchema::try_from(schema)?;
        for condition in conditions {
            let evaluated = state
                .create_physical_expr(condition.clone(), &schema)
                .and_then(|condition| condition.evaluate(&batch)?.into_array(batch.num_rows()));
            let Ok(evaluated) = evaluated else { continue };
            let Some(holds) = evaluated.as_boolean_opt() else { continue };
            for (can_match, holds) in can_match.iter_mut().zip(holds) {
                *can_match &= holds == Some(true);
            }
        }
        Ok(can_match)
    }
}

/// Returns the keys and values in the directories of a path.
fn pairs(path: &str) -> Pairs {
    let directories = path.rsplit_once('/').map_or("", |(directories, _)| directories).split('/');
    let pairs = directories.filter_map(|directory| directory.split_once('=')).filter(|(key, _)| !key.is_empty());
    pairs.map(|(key, value)| (decoded(key), (value != NULL).then(|| decoded(value)))).collect()
}

fn decoded(text: &str) -> String {
    // A value that does not decode to UTF-8 stays as it is written.
    percent_decode_str(text).decode_utf8().map_or_else(|_| text.to_string(), Into::into)
}

/// Returns the values of a key, and the type that holds them all.
fn typed(texts: &[Option<&str>]) -> (DataType, Vec<ScalarValue>) {
    let timestamp = DataType::Timestamp(TimeUnit::Microsecond, None);
    // NULL alone does not determine a type, and any value is a string.
    let is_known = texts.iter().any(Option::is_some);
    for data_type in [DataType::Int64, DataType::Date32, timestamp].into_iter().filter(|_| is_known) {
        let value = |text: &Option<&str>| match text {
            Some(text) => read(text, &data_type),
            None => ScalarValue::try_from(&data_type).ok(),
        };
        if let Some(values) = texts.iter().map(value).collect() {
            return (data_type, values);
        }
    }
    let text = |text: &Option<&str>| ScalarValue::Utf8View(text.map(str::to_string));
    (DataType::Utf8View, texts.iter().map(text).collect())
}

/// Parses a value. Returns `None` if it is not in the form in which values of this type are
/// written.
fn read(text: &str, data_type: &DataType) -> Option<ScalarValue> {
    let value = parse_value(text, data_type, Zone::Utc).ok()?;
    let is_written_so = match data_type {
        // Any fraction of a second is accepted, but no time zone.
        DataType::Timestamp(..) => {
            let time = text.get("2024-01-01".len()..);
            time.is_some_and(|time| time.bytes().all(|c| c.is_ascii_digit() || b" T:.".contains(&c)))
        }
        _ => value.to_string() == text,
    };
    is_written_so.then_some(value)
}

/// Returns rows of one file with columns that are nullable if `declared` says so. The value of a
/// key is constant in a file, and DataFusion declares it by that file alone. Without this, two
/// files could have different schemas if the value is NULL in one of them.
pub(super) fn as_declared(batch: RecordBatch, declared: &Schema) -> DataFusionResult<RecordBatch> {
    let schema = batch.schema();
    let fields = schema.fields().iter().zip(declared.fields());
    let fields = fields
        .map(|(field, declared)| field.as_ref().clone().with_nullable(field.is_nullable() || declared.is_nullable()));
    let schema = Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone());
    Ok(batch.with_schema(Arc::new(schema))?)
}

/// Returns the declared schema of a scan's rows if it has columns of directories.
pub(super) fn declared(config: &FileScanConfig) -> DataFusionResult<Option<SchemaRef>> {
    match config.file_source().table_schema().table_partition_cols().is_empty() {
        true => Ok(None),
        false => config.projected_schema().map(Some),
    }
}

/// Opens files whose rows are [`as_declared`].
struct DeclaredOpener {
    inner: Arc<dyn FileOpener>,
    declared: SchemaRef,
}

impl FileOpener for DeclaredOpener {
    fn open(&self, file: PartitionedFile) -> DataFusionResult<FileOpenFuture> {
        let (opened, declared) = (self.inner.open(file)?, Arc::clone(&self.declared));
        Ok(Box::pin(async move {
            let rows = opened.await?;
            Ok(rows.map(move |batch| as_declared(batch?, &declared)).boxed())
        }))
    }
}

/// Wraps an opener of a scan's files, so that all rows have one schema.
pub(super) fn opener(inner: Arc<dyn FileOpener>, config: &FileScanConfig) -> DataFusionResult<Arc<dyn FileOpener>> {
    Ok(match declared(config)? {
        Some(declared) => Arc::new(DeclaredOpener { inner, declared }),
        None => inner,
    })
}

/// Files as a table with the columns of their directories.
#[derive(Debug)]
pub(super) struct DirectoryTable {
    format: Arc<dyn FileFormat>,
    urls: Vec<ListingTableUrl>,
    columns: DirectoryColumns,
    /// The columns of the files that are read or counted, followed by those of the directories.
    scanned: TableSchema,
    /// The columns of the table.
    schema: SchemaRef,
    order: Vec<usize>,
    own_columns: usize,
}

impl DirectoryTable {
    /// Creates a table. `columns` are those of the files at `urls`, in the same order.
    /// `by_position` is true if columns of this format are found by position.
    ///
    /// # Errors
    /// The path of a file that occurs twice, by links, with different values of its directories.
    pub fn new(
        format: Arc<dyn FileFormat>,
        urls: Vec<ListingTableUrl>,
        file_schema: &Schema,
        mut columns: DirectoryColumns,
        by_position: bool,
    ) -> std::result::Result<Self, StorePath> {
        let mut places: HashMap<StorePath, usize> = HashMap::with_capacity(urls.len());
        for (at, url) in urls.iter().enumerate() {
            let first = *places.entry(url.prefix().clone()).or_insert(at);
            if columns.values[first] != columns.values[at] {
                return Err(url.prefix().clone());
            }
        }
        // As in Spark and DuckDB, `K=1` is a column `k` of the files, and gets its spelling.
        for key in &mut columns.fields {
            let is_same = |own: &&FieldRef| own.name().to_lowercase() == key.name().to_lowercase();
            let exact = file_schema.column_with_name(key.name()).is_some();
            if let Some(own) = file_schema.fields().iter().find(is_same).filter(|_| !exact) {
                *key = Arc::new(key.as_ref().clone().with_name(own.name()));
            }
        }
        let key_of = |name: &str| columns.fields.iter().find(|key| key.name() == name);
        let own = file_schema.fields().iter().filter_map(|field| match key_of(field.name()) {
            None => Some(Arc::clone(field)),
            // The column is counted, and no query can refer to it by name.
            Some(_) => {
                by_position.then(|| Arc::new(field.as_ref().clone().with_name(format!("\0own {}", field.name()))))
            }
        });
        let in_files = file_schema.fields().iter().map(|field| key_of(field.name()).unwrap_or(field));
        let added = columns.fields.iter().filter(|key| file_schema.column_with_name(key.name()).is_none());
        let with_metadata =
            |fields: Fields| Arc::new(Schema::new_with_metadata(fields, file_schema.metadata().clone()));
        let schema = with_metadata(in_files.chain(added).cloned().collect());
        let scanned = TableSchema::builder(with_metadata(own.collect()))
            .with_table_partition_cols(columns.fields.clone())
            .build();
        let place = |field: &FieldRef| scanned.table_schema().column_with_name(field.name()).map(|(place, _)| place);
        let order = schema.fields().iter().filter_map(place).collect();
        let own_columns = file_schema.fields().len();
        Ok(Self { format, urls, columns, scanned, schema, order, own_columns })
    }

    /// Returns the number of the files' own columns. They come first.
    pub fn own_columns(&self) -> usize {
        self.own_columns
    }

    /// Returns a file with its directories' values, and with statistics that include them.
    fn with_values(&self, place: usize, mut file: PartitionedFile) -> PartitionedFile {
        file.partition_values = self.columns.values.get(place).cloned().unwrap_or_default();
        if let Some(statistics) = file.statistics.take() {
            let mut statistics = Arc::unwrap_or_clone(statistics);
            let rows = statistics.num_rows;
            statistics.column_statistics.extend(file.partition_values.iter().map(|value| known(value, rows)));
            file.statistics = Some(Arc::new(statistics));
        }
        file
    }
}

/// Returns statistics of a column with one value in all rows. If the file has no rows, no row has
/// the value.
fn known(value: &ScalarValue, rows: Precision<usize>) -> ColumnStatistics {
    if value.is_null() {
        return ColumnStatistics { null_count: rows, ..ColumnStatistics::new_unknown() };
    }
    if !matches!(rows, Precision::Exact(1..)) {
        return ColumnStatistics::new_unknown();
    }
    ColumnStatistics {
        null_count: Precision::Exact(0),
        min_value: Precision::Exact(value.clone()),
        max_value: Precision::Exact(value.clone()),
        ..ColumnStatistics::new_unknown()
    }
}

#[async_trait]
impl TableProvider for DirectoryTable {
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
        let can_match = self.columns.can_match(filters, state)?;
        let urls = self.urls.iter().enumerate().zip(can_match).filter(|(_, can_match)| *can_match).map(|(url, _)| url);
        let projection =
            projection.map_or_else(|| self.order.clone(), |p| p.iter().map(|at| self.order[*at]).collect());
        let files = Files { format: &self.format, urls: urls.collect(), schema: self.scanned.clone() };
        files.scan(state, Some(projection), filters, limit, |place, file| self.with_values(place, file)).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shown(paths: &[&str]) -> Option<String> {
        let found = DirectoryColumns::of(paths.iter().copied())?;
        let fields: Vec<String> =
            found.fields.iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect();
        let values = found.values.iter().map(|file| file.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
        Some(format!("{}: {}", fields.join(", "), values.collect::<Vec<_>>().join(" ")))
    }

    #[test]
    fn columns_are_what_all_directories_say() {
        for (paths, expected) in [
            (&["t/k=1/a", "t/k=-2/b"][..], Some("k Int64: 1 -2")),
            (&["/p/k=01/a", "/p/k=1/a"], Some("k Utf8View: 01 1")),
            (&["k=+1/a"], Some("k Utf8View: +1")),
            (&["k=1/a", "k=x/a"], Some("k Utf8View: 1 x")),
            (&["k=1/a", "k=99999999999999999999/a"], Some("k Utf8View: 1 99999999999999999999")),
            (&["k=/a", "k=1/a"], Some("k Utf8View:  1")),
            (&["d=2024-02-29/a"], Some("d Date32: 2024-02-29")),
            (&["d=2023-02-29/a"], Some("d Utf8View: 2023-02-29")),
            (&["k=1/a", "k=__HIVE_DEFAULT_PARTITION__/a"], Some("k Int64: 1 NULL")),
            (&["k=__HIVE_DEFAULT_PARTITION__/a"], Some("k Utf8View: NULL")),
            (&["a%3Db=c%2Fd %25/x"], Some("a=b Utf8View: c/d %")),
            (&["k=%ff/x"], Some("k Utf8View: %ff")),
            // Without columns: keys in another order, a file without keys, a duplicate key, an
            // empty key, a file's own name.
            (&["y=1/m=2/a", "m=1/y=3/a"], None),
            (&["y=1/a", "b"], None),
            (&["y=1/y=2/a"], None),
            (&["=1/a"], None),
            (&["x/k=1"], None),
            (&[], None),
        ] {
            assert_eq!(shown(paths).as_deref(), expected, "{paths:?}");
        }
        let moment = |text: &str| shown(&[&format!("t={text}/a"), "t=2024-01-02/b"]).unwrap();
        assert!(moment("2024-01-01 12%3A30%3A00").starts_with("t Timestamp"), "{}", moment("2024-01-01 12%3A30%3A00"));
        assert_eq!(moment("2024-01-01 12:30:00%2B02"), "t Utf8View: 2024-01-01 12:30:00+02 2024-01-02");
    }
}
