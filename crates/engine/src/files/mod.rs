//! Other people's files as tables: Parquet, Arrow IPC, CSV, JSON, by path or pattern.
//!
//! The format follows from the name: `x.parquet`, `x.arrow`, `x.csv`, `x.tsv`, `x.tbl`, `x.json`, `x.jsonl`, the text
//! ones also as `.gz`, `.bz2`, `.xz`, `.zst`. [`glob`] says which files a path stands for, [`agree`] that they are of
//! one table; what their directories are named by is columns as well: [`directory_columns`]. Text is read by [`csv`], the rest
//! by DataFusion under [`named`]. [`export`] writes files. All of them lie at a [`site`]: the local file system, or a cluster.
//!
//! Invariant: an error that a file is to blame for names the file as the statement did.

mod agree;
mod arrow_schema;
mod csv;
mod directory_columns;
pub(crate) mod export;
mod glob;
pub(crate) mod json_values;
mod named;
mod nan_statistics;
mod site;
mod store;
pub(crate) mod written;

use std::collections::{BTreeSet, HashMap};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result as DataFusionResult};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt};
use onehop_io::Operation;

use self::csv::{CsvFormat, Types};
pub(crate) use self::csv::{Dialect, TRAILING};
use self::directory_columns::{DirectoryColumns, DirectoryTable};
use self::glob::{Found, Match};
use self::named::NamedFormat;
use self::site::{Site, refused};
pub(crate) use self::site::{Sites, refused_by_cluster};
pub(crate) use self::store::{CountingRegistry, gone};
use crate::query::Query;
use crate::{Error, ErrorKind, Result};

/// Less text than this is not worth a segment per thread.
const SPREAD_BYTES: u64 = 10 << 20;
/// Files whose schemas are read at a time.
const SCHEMAS_AT_A_TIME: usize = 8;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Parquet,
    Arrow,
    Csv,
    Json,
}

impl Format {
    /// A format by the name people give it.
    pub fn parse(name: &str) -> Result<Self> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "parquet" => Self::Parquet,
            "arrow" | "feather" | "ipc" => Self::Arrow,
            "csv" | "tsv" | "tbl" | "text" => Self::Csv,
            "json" | "jsonl" | "ndjson" => Self::Json,
            _ => {
                let error = Error::new(ErrorKind::Invalid, format!("there is no file format \"{name}\""));
                return Err(error.with_hint("formats: parquet, arrow, csv, json"));
            }
        })
    }

    /// The name DataFusion's COPY knows it by.
    pub fn copy_name(self) -> &'static str {
        match self {
            Self::Parquet => "PARQUET",
            Self::Arrow => "ARROW",
            Self::Csv => "CSV",
            Self::Json => "JSON",
        }
    }
}

/// How text files are written. `None` is what the file's name and first line say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CsvOptions {
    pub delimiter: Option<u8>,
    pub has_header: Option<bool>,
    pub quote: Option<u8>,
    pub escape: Option<u8>,
    /// The text that stands for NULL; empty by default.
    pub null: Option<String>,
}

impl CsvOptions {
    /// The bytes that mean something in files of an extension.
    pub fn dialect(&self, extension: &str) -> Dialect {
        let delimiter = self.delimiter.unwrap_or(match extension {
            "tsv" => b'\t',
            "tbl" => b'|',
            _ => b',',
        });
        let quote = self.quote.unwrap_or(b'"');
        // A quote is escaped by another in any case.
        Dialect { delimiter, quote, escape: self.escape.filter(|escape| *escape != quote) }
    }
}

/// A file name taken apart.
pub(crate) struct FileName<'a> {
    /// The extension without that of a compression: `csv`.
    pub extension: &'a str,
    pub compression: FileCompressionType,
}

/// `dir/x.csv.gz` is csv, compressed.
pub(crate) fn parse_name(path: &str) -> FileName<'_> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = |name: &'_ str| name.rfind('.').map(|dot| dot + 1);
    let Some(start) = extension(name) else {
        return FileName { extension: "", compression: FileCompressionType::UNCOMPRESSED };
    };
    let compression = match &name[start..] {
        "gz" => FileCompressionType::GZIP,
        "bz2" => FileCompressionType::BZIP2,
        "xz" => FileCompressionType::XZ,
        "zst" => FileCompressionType::ZSTD,
        plain => return FileName { extension: plain, compression: FileCompressionType::UNCOMPRESSED },
    };
    let stem = &name[..start - 1];
    FileName { extension: extension(stem).map_or("", |start| &stem[start..]), compression }
}

/// Whether a table's name is meant as a path: it has a slash, a pattern, or the extension of a format.
pub(crate) fn is_path(name: &str) -> bool {
    name.contains('/') || name.contains('*') || Format::parse(parse_name(name).extension).is_ok()
}

/// The files of a statement by where DataFusion finds them, as the statement calls them.
#[derive(Clone, Debug, Default)]
struct Names(Arc<HashMap<StorePath, String>>);

impl Names {
    /// What a file is called in messages, and the path that opens it.
    fn of(&self, location: &StorePath) -> (String, String) {
        let path = format!("/{location}");
        (self.0.get(location).cloned().unwrap_or_else(|| path.clone()), path)
    }
}

/// Files that are there and go together, of one format.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    site: Site,
    /// The path as the statement has it.
    name: String,
    pub format: Format,
    /// That of text says the delimiter.
    pub extension: String,
    files: Vec<Found>,
}

impl Source {
    /// The files that a path stands for. `format` is what the statement says they are, `unnamed` what a file is whose name does
    /// not say it.
    pub async fn find(path: &str, format: Option<Format>, unnamed: Option<Format>, sites: Arc<Sites>) -> Result<Self> {
        let path = path.to_string();
        let find = move || {
            let (site, path) = sites.resolve(&path)?;
            Self::find_at(site, &path, format, unnamed)
        };
        blocking(find).await?
    }

    fn find_at(site: Site, path: &str, format: Option<Format>, unnamed: Option<Format>) -> Result<Self> {
        let name = site.shown(path);
        let Match { mut files, is_directory } = glob::find(&site, path)?;
        let own = parse_name(path).extension;
        if !is_directory && let Some(format) = format.or_else(|| Format::parse(own).ok()).or(unnamed) {
            return Ok(Self { extension: own.to_string(), site, name, format, files });
        }
        // A directory, or a pattern that says nothing: the files do, and have to agree.
        let is_wanted = |file: &Found| {
            let known = Format::parse(parse_name(&file.name).extension).ok();
            known.is_some() && (format.is_none() || known == format)
        };
        files.retain(is_wanted);
        let extensions: BTreeSet<String> =
            files.iter().map(|file| parse_name(&file.name).extension.to_string()).collect();
        let mut extensions = extensions.into_iter();
        match (extensions.next(), extensions.next()) {
            (Some(extension), None) => Ok(Self { format: Format::parse(&extension)?, extension, site, name, files }),
            (Some(one), Some(other)) => {
                let message = format!("'{name}' has files of several formats, among them .{one} and .{other}");
                let hint = format!("say which: '{}/*.{one}'", name.trim_end_matches('/'));
                Err(Error::new(ErrorKind::Invalid, message).with_hint(hint))
            }
            (None, _) => {
                let (kind, message) = match is_directory {
                    true => (ErrorKind::NotFound, format!("there are no files of a known format in '{name}'")),
                    false => (ErrorKind::Invalid, format!("the name of '{name}' does not say its format")),
                };
                Err(Error::new(kind, message).with_hint("formats go by extension: .parquet, .arrow, .csv, .json"))
            }
        }
    }

    /// The first line of each text file that has one, with the file's name.
    pub async fn first_records(&self, csv: &CsvOptions, query: &Arc<Query>) -> Result<Vec<(String, Vec<String>)>> {
        let format = self.csv_format(csv, Types::Declared, Names::default(), Some(Arc::clone(query)));
        let files = self.files.clone();
        let read = move || {
            let mut records = Vec::new();
            for file in files {
                if let Some(record) = format.first_record(&file)? {
                    records.push((file.name, record));
                }
            }
            Ok(records)
        };
        blocking(read).await?
    }

    /// The files as a table. `schema` is what text files hold, where that is known; then there are no other columns.
    pub async fn table(
        &self,
        state: &dyn DataFusionSession,
        csv: &CsvOptions,
        schema: Option<SchemaRef>,
    ) -> Result<Arc<dyn TableProvider>> {
        if let Some(query) = state.config().get_extension::<Query>() {
            query.reads_file(&self.name);
            self.site.register(state, Arc::clone(query.shared_ledger()));
        }
        let mut urls = Vec::with_capacity(self.files.len());
        let mut names = HashMap::new();
        for file in &self.files {
            let url = self.site.url_of(&file.path)?;
            names.insert(url.prefix().clone(), file.name.clone());
            urls.push(url);
        }
        let names = Names(Arc::new(names));
        let types = if schema.is_some() { Types::Declared } else { Types::Guessed };
        let format = self.file_format(state, csv, types, names).await?;
        if let Some(schema) = schema {
            return Ok(Arc::new(directory_columns::listed(format, urls, schema)?));
        }
        let schema = loosened(&*self.schema(state, &*format, &urls).await?);
        let Some(columns) = DirectoryColumns::of(self.files.iter().map(|file| file.path.as_str())) else {
            return Ok(Arc::new(directory_columns::listed(format, urls, schema)?));
        };
        let by_position = matches!(self.format, Format::Csv | Format::Arrow);
        let table = DirectoryTable::new(format, urls, &schema, columns, by_position).map_err(|file| {
            let message =
                format!("'{}' has /{file} twice, by links, in directories that say different things", self.name);
            Error::new(ErrorKind::Data, message).with_hint("name the directories one by one")
        })?;
        Ok(Arc::new(table))
    }

    fn csv_format(&self, csv: &CsvOptions, types: Types, names: Names, query: Option<Arc<Query>>) -> CsvFormat {
        CsvFormat {
            site: self.site.clone(),
            dialect: csv.dialect(&self.extension),
            has_header: csv.has_header.unwrap_or(self.extension != "tbl"),
            null: csv.null.clone(),
            types,
            names,
            query,
        }
    }

    async fn file_format(
        &self,
        state: &dyn DataFusionSession,
        csv: &CsvOptions,
        types: Types,
        names: Names,
    ) -> Result<Arc<dyn FileFormat>> {
        let inner: Arc<dyn FileFormat> = match self.format {
            Format::Csv => {
                let query = state.config().get_extension::<Query>();
                return Ok(Arc::new(self.csv_format(csv, types, names, query)));
            }
            Format::Parquet => Arc::new(ParquetFormat::default().with_options(state.default_table_options().parquet)),
            Format::Arrow => Arc::new(ArrowFormat),
            Format::Json => {
                let source = self.clone();
                let lines = !blocking(move || source.is_array()).await??;
                let format = JsonFormat::default().with_newline_delimited(lines);
                Arc::new(format.with_file_compression_type(self.compression()?))
            }
        };
        Ok(Arc::new(NamedFormat { inner, names }))
    }

    /// Whether JSON begins as one array of all objects, and not with the first of them.
    fn is_array(&self) -> Result<bool> {
        let Some(first) = self.files.first() else { return Ok(false) };
        let file = self.site.open(&first.path, None).map_err(|e| refused(Operation::Read, &first.name, e))?;
        let text = BufReader::new(parse_name(&first.name).compression.convert_read(file)?);
        // What cannot be read is an error of those who read it all.
        let byte = text.bytes().map_while(std::io::Result::ok).find(|byte| !byte.is_ascii_whitespace());
        Ok(byte == Some(b'['))
    }

    fn compression(&self) -> Result<FileCompressionType> {
        let mut all = self.files.iter().map(|file| parse_name(&file.name).compression);
        let first = all.next().unwrap_or(FileCompressionType::UNCOMPRESSED);
        if all.all(|compression| compression == first) {
            return Ok(first);
        }
        let message = format!("'{}' has files that are compressed, and others that are not", self.name);
        Err(Error::new(ErrorKind::Invalid, message).with_hint("name them by two patterns"))
    }

    /// The columns of all files. Empty text files have nothing to say about them.
    async fn schema(
        &self,
        state: &dyn DataFusionSession,
        format: &dyn FileFormat,
        urls: &[ListingTableUrl],
    ) -> Result<SchemaRef> {
        let Some(first) = urls.first() else {
            return Err(Error::new(ErrorKind::Internal, "a table of no files"));
        };
        let store = &state.runtime_env().object_store(first)?;
        let mut files = Vec::with_capacity(urls.len());
        for (file, url) in self.files.iter().zip(urls) {
            files.push(self.schema_of(file, url, state, store, format));
        }
        let mut files: Vec<(String, SchemaRef)> =
            futures::stream::iter(files).buffered(SCHEMAS_AT_A_TIME).try_collect().await?;
        if let Some((name, _)) = files.iter().find(|(_, schema)| schema.fields().is_empty())
            && (files.iter().all(|(_, schema)| schema.fields().is_empty())
                || matches!(self.format, Format::Parquet | Format::Arrow))
        {
            return Err(Error::new(ErrorKind::Data, format!("'{name}' has no columns: there is nothing in it")));
        }
        files.retain(|(_, schema)| !schema.fields().is_empty());
        agree::agree(&files, self.format)
    }

    /// The columns of a file; none of an empty one.
    async fn schema_of(
        &self,
        file: &Found,
        url: &ListingTableUrl,
        state: &dyn DataFusionSession,
        store: &Arc<dyn ObjectStore>,
        format: &dyn FileFormat,
    ) -> Result<(String, SchemaRef)> {
        let schema = match self.format {
            _ if file.bytes == 0 => Arc::new(Schema::empty()),
            Format::Arrow => {
                let (site, file) = (self.site.clone(), file.clone());
                blocking(move || arrow_schema::of(&site, &file)).await??
            }
            _ => {
                let object = store.head(url.prefix()).await.map_err(DataFusionError::from);
                let object = object.map_err(|e| named::named(&file.name, e))?;
                format.infer_schema(state, store, std::slice::from_ref(&object)).await?
            }
        };
        Ok((file.name.clone(), schema))
    }
}

/// The files that a path stands for as a table.
pub(crate) async fn open(state: &dyn DataFusionSession, path: &str) -> Result<Arc<dyn TableProvider>> {
    let source = Source::find(path, None, None, Sites::of(state)?).await?;
    source.table(state, &CsvOptions::default(), None).await
}

/// How many columns of a table of files have names and places that the files give them; those of their directories come after them.
pub(crate) fn own_columns(table: &dyn TableProvider) -> usize {
    let directories = table.downcast_ref::<DirectoryTable>();
    directories.map_or_else(|| table.schema().fields().len(), DirectoryTable::own_columns)
}

/// Work that waits for storage, on a thread that may.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> DataFusionResult<T> {
    let done = SpawnedTask::spawn_blocking(work).join_unwind().await;
    done.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))
}

/// Gives the rows of a large text file, which come as one stream, to as many as there are threads. Rows in an order that
/// was asked for stay in it.
pub(crate) fn spread(plan: Arc<dyn ExecutionPlan>, threads: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let is_one = plan.output_partitioning().partition_count() == 1 && plan.output_ordering().is_none();
    if threads < 2 || !is_one || text_bytes(&plan) < SPREAD_BYTES {
        return Ok(plan);
    }
    Ok(Arc::new(RepartitionExec::try_new(plan, Partitioning::RoundRobinBatch(threads))?))
}

/// Bytes of text files at the end of a chain of operators.
fn text_bytes(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    if let [below] = plan.children().as_slice() {
        return text_bytes(below);
    }
    let scan = plan.downcast_ref::<DataSourceExec>();
    let scan = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
    let scan = scan.filter(|scan| scan.file_source().file_type() == "csv");
    let files = scan.into_iter().flat_map(|scan| &scan.file_groups).flat_map(|group| group.files());
    files.map(|file| file.object_meta.size).sum()
}

/// An absolute path without `..`, which follows links in directories but not the last name: a file and a link to it are
/// two names of a pattern.
fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    match path.file_name() {
        Some(name) => Ok(directory.canonicalize()?.join(name)),
        None => path.canonicalize(),
    }
}

/// That a file's rows hold no NULL does not hold for what is made of them: DataFusion declares a scalar subquery over
/// no rows as it finds the column, and then fails on its NULL. And a column of which the first rows say nothing is text:
/// what comes later can be anything. Metadata of the schema is about
/// the file, not about what a query makes of it: pandas' has the types of columns by their names.
fn loosened(schema: &Schema) -> SchemaRef {
    let loosen = |field: &Field| match field.data_type() {
        DataType::Null => Field::new(field.name(), DataType::Utf8, true),
        _ => field.clone().with_nullable(true),
    };
    let fields: Fields = schema.fields().iter().map(|field| loosen(field)).collect();
    Arc::new(Schema::new(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_format_and_compression() {
        for (path, extension, is_compressed) in [
            ("a.parquet", "parquet", false),
            ("dir.d/a.csv.gz", "csv", true),
            ("a.tbl.zst", "tbl", true),
            ("noextension", "", false),
            ("x.gz", "", true),
        ] {
            let name = parse_name(path);
            assert_eq!(name.extension, extension, "{path}");
            assert_eq!(name.compression != FileCompressionType::UNCOMPRESSED, is_compressed, "{path}");
        }
        for (name, expected) in
            [("lineorder", false), ("a.parquet", true), ("dir/x", true), ("*.csv", true), ("v1.2", false)]
        {
            assert_eq!(is_path(name), expected, "{name}");
        }
    }
}
