//! External files as tables: Parquet, Arrow IPC, CSV, JSON, by path or pattern.
//!
//! The format follows from the name, in any case: `x.parquet`, `x.arrow`, `x.csv`, `x.tsv`,
//! `x.tbl`, `x.json`, `x.jsonl`; text formats also as `.gz`, `.bz2`, `.xz`, `.zst`.
//!
//! - [`glob`] finds the files of a path, and [`agree`] checks that they are of one table.
//! - [`listing`] determines the order in which they are read.
//! - [`directory_columns`] adds columns from the names of their directories.
//! - [`csv`] and [`json`] read text. DataFusion reads Parquet under [`named`]. [`positional`] reads
//!   Arrow. Parquet and Arrow are checked by `onehop_files`.
//! - [`export`] writes files.
//! - [`site`] is their location: the local file system, or a cluster.
//!
//! Invariant: an error that a file causes names the file as the statement did.

mod account;
mod agree;
mod arrow_schema;
mod aside;
mod csv;
mod directory_columns;
pub(crate) mod export;
mod footers;
pub(crate) mod functions;
mod glob;
pub(crate) mod json;
mod listing;
mod named;
mod number;
pub(crate) mod options;
mod positional;
mod respelled;
mod site;
mod sized;
mod store;
mod uncertain_statistics;

use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result as DataFusionResult};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning};
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt};
use onehop_files::inflate::{self, Compression};

use self::agree::Deviations;
use self::csv::DeclaredShape;
use self::csv::{CsvFormat, Types};
pub(crate) use self::csv::{Encoding, WriteOptions};
use self::directory_columns::{DirectoryColumns, DirectoryTable};
use self::glob::{Found, Match};
use self::json::{JsonFormat, JsonPlan, Opened, Sample};
use self::listing::FileTable;
use self::named::NamedFormat;
pub(crate) use self::options::CsvOptions;
use self::positional::PositionalFormat;
use self::respelled::Spelling;
use self::site::Site;
pub(crate) use self::site::{Sites, refused_by_cluster};
pub(crate) use self::store::CountingRegistry;
use crate::encoded::entered;
use crate::limits::go_on;
use crate::pg_types::zone::Zone;
use crate::postgres::functions::memory_limit_bytes;
use crate::query::Query;
use crate::{Error, ErrorKind, Result};

/// The maximum length of a text record. It is also limited to a fraction of the memory.
const MOST_RECORD_BYTES: usize = 256 << 20;
const RECORDS_IN_MEMORY: u64 = 8;
/// The minimum length of text that is divided among threads.
const SPREAD_BYTES: u64 = 10 << 20;
/// The number of files whose schemas are read concurrently.
const SCHEMAS_AT_A_TIME: usize = 8;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Parquet,
    Arrow,
    Csv,
    Json,
}

impl Format {
    /// Parses the name of a format.
    pub fn parse(name: &str) -> Result<Self> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "parquet" | "parq" | "pq" => Self::Parquet,
            "arrow" | "arrows" | "feather" | "ipc" => Self::Arrow,
            "csv" | "tsv" | "tbl" | "txt" | "text" => Self::Csv,
            "json" | "jsonl" | "ndjson" => Self::Json,
            _ => {
                let error = Error::new(ErrorKind::Invalid, format!("there is no file format \"{name}\""));
                return Err(error.with_hint("formats: parquet, arrow, csv, json"));
            }
        })
    }

    /// Returns the name of the format in DataFusion's COPY.
    pub fn copy_name(self) -> &'static str {
        match self {
            Self::Parquet => "PARQUET",
            Self::Arrow => "ARROW",
            Self::Csv => "CSV",
            Self::Json => "JSON",
        }
    }
}

/// The rule that combines the columns of several files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Union {
    /// All files have the same columns.
    #[default]
    Same,
    /// A column that a file lacks is NULL.
    ByName,
}

/// A declared table for the contents of text files.
pub(crate) struct Declared {
    /// The columns, in the order of the fields in records.
    pub schema: SchemaRef,
    pub has_header: bool,
    pub shapes: Vec<DeclaredShape>,
}

/// A parsed file name.
pub(crate) struct FileName {
    /// The extension without that of a compression, in lower case: `csv`.
    pub extension: String,
    pub compression: FileCompressionType,
}

/// Parses a name: `dir/x.csv.gz` is csv, compressed.
pub(crate) fn parse_name(path: &str) -> FileName {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let extension = |name: &str| name.rsplit_once('.').map_or_else(String::new, |(_, extension)| extension.to_string());
    let outer = extension(&name);
    let compression = match outer.as_str() {
        "gz" => FileCompressionType::GZIP,
        "bz2" => FileCompressionType::BZIP2,
        "xz" => FileCompressionType::XZ,
        "zst" => FileCompressionType::ZSTD,
        _ => return FileName { extension: outer, compression: FileCompressionType::UNCOMPRESSED },
    };
    let stem = name.strip_suffix(&format!(".{outer}")).unwrap_or_default();
    FileName { extension: extension(stem), compression }
}

/// The memory limits of a text reader, derived from those of its statement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    memory_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory_bytes: u64::MAX }
    }
}

impl Limits {
    fn of(state: &dyn DataFusionSession) -> Self {
        memory_limit_bytes(state.config_options()).map_or_else(Self::default, |memory_bytes| Self { memory_bytes })
    }

    /// Returns the maximum length of a record. A bracket or quote that is never closed extends a
    /// record to the end of a file.
    fn record_bytes(self) -> usize {
        MOST_RECORD_BYTES.min(usize::try_from(self.memory_bytes / RECORDS_IN_MEMORY).unwrap_or(usize::MAX))
    }

    /// Returns the bytes of a file, decompressed.
    fn decompressed(
        self,
        file: Box<dyn Read + Send>,
        compression: FileCompressionType,
        buffer_bytes: usize,
    ) -> io::Result<Box<dyn Read + Send>> {
        let compression = match compression {
            FileCompressionType::GZIP => Compression::Gzip,
            FileCompressionType::BZIP2 => Compression::Bzip2,
            FileCompressionType::XZ => Compression::Xz,
            FileCompressionType::ZSTD => Compression::Zstd,
            _ => return Ok(file),
        };
        let reader = inflate::reader(BufReader::with_capacity(buffer_bytes, file), compression, self.memory_bytes)?;
        Ok(Box::new(Stoppable(reader)))
    }
}

/// A reader that fails once its statement has to end. The size of a compressed file does not bound
/// the size of its contents.
struct Stoppable<R>(R);

impl<R: Read> Read for Stoppable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        may_go_on()?;
        self.0.read(buffer)
    }
}

/// [`go_on`], for readers.
fn may_go_on() -> io::Result<()> {
    go_on().map_err(io::Error::other)
}

/// Returns the error of a file whose decompression needs more memory than its statement may use.
fn over_memory(name: &str, e: &io::Error) -> Option<Error> {
    let is_memory = e.kind() == io::ErrorKind::OutOfMemory && e.raw_os_error().is_none();
    is_memory.then(|| {
        Error::new(ErrorKind::Resources, format!("cannot read '{name}': {e}"))
            .with_hint("compress the file with a smaller window, or raise memory_limit: a window may have a quarter of it, and 128 MiB")
    })
}

/// Returns whether a table's name is a path: it has a slash, a pattern, or the extension of a
/// format.
pub(crate) fn is_path(name: &str) -> bool {
    name.contains('/') || name.contains('*') || Format::parse(&parse_name(name).extension).is_ok()
}

/// The names of files in the statement, by their DataFusion location.
#[derive(Clone, Debug, Default)]
struct Names(Arc<HashMap<StorePath, String>>);

impl Names {
    /// Returns the name of a file in messages, and the path that opens it.
    fn of(&self, location: &StorePath) -> (String, String) {
        let path = format!("/{location}");
        (self.0.get(location).cloned().unwrap_or_else(|| path.clone()), path)
    }
}

/// Existing files of one format that form a table.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    site: Site,
    /// The path as written in the statement.
    name: String,
    pub format: Format,
    /// The extension. For text it determines the delimiter.
    pub extension: String,
    files: Vec<Found>,
}

impl Source {
    /// Finds the files of a path. `format` is the format in the statement. `unnamed` is the format
    /// of a file whose name does not determine one.
    pub async fn find(path: &str, format: Option<Format>, unnamed: Option<Format>, sites: Arc<Sites>) -> Result<Self> {
        let path = path.to_string();
        let find = move || {
            let found = sites.resolve(&path).and_then(|(site, path)| Self::find_at(site, &path, format, unnamed));
            found.inspect_err(|_| sites.wanted(&path))
        };
        blocking(find).await?
    }

    /// Joins the files of several paths, which must have one format.
    pub fn joined(sources: Vec<Self>) -> Result<Self> {
        let mut sources = sources.into_iter();
        let mut all = sources.next().ok_or_else(|| Error::new(ErrorKind::Invalid, "a list of paths has none"))?;
        for other in sources {
            if !all.site.is_same(&other.site) {
                let message = format!("'{}' and '{}' lie in different places", all.name, other.name);
                return Err(Error::new(ErrorKind::Invalid, message).with_hint("join their queries with UNION ALL"));
            }
            all.name = format!("{}, {}", all.name, other.name);
            all.files.extend(other.files);
        }
        Ok(all)
    }

    fn find_at(site: Site, path: &str, format: Option<Format>, unnamed: Option<Format>) -> Result<Self> {
        let name = site.shown(path);
        let Match { mut files, is_directory } = glob::find(&site, path)?;
        let own = parse_name(path).extension;
        if !is_directory && let Some(format) = format.or_else(|| Format::parse(&own).ok()).or(unnamed) {
            return Ok(Self { extension: own, site, name, format, files });
        }
        // A directory, or a pattern without an extension. The formats of the files must agree.
        let is_wanted = |file: &Found| {
            let extension = parse_name(&file.name).extension;
            let known = Format::parse(&extension).ok();
            // Beside other files, a .txt file is a note about them.
            known.is_some() && if format.is_none() { extension != "txt" } else { known == format }
        };
        files.retain(is_wanted);
        let extensions: BTreeSet<String> = files.iter().map(|file| parse_name(&file.name).extension).collect();
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

    /// Returns the shape of each text file with records, if they have `columns` fields.
    pub async fn declared_shapes(
        &self,
        csv: &CsvOptions,
        columns: usize,
        query: &Arc<Query>,
    ) -> Result<Vec<DeclaredShape>> {
        let query = Some(Arc::clone(query));
        let (zone, limits) = (Zone::default(), Limits::default());
        let format = self.csv_format(csv, Types::Declared, Names::default(), query, zone, limits);
        let files = self.files.clone();
        let read = move || {
            let mut shapes = Vec::new();
            for file in files {
                shapes.extend(format.declared(&file, columns)?);
            }
            Ok(shapes)
        };
        blocking(read).await?
    }

    /// Opens the files as a table. `declared` is the known contents of text files; then there are
    /// no other columns.
    pub async fn table(
        &self,
        state: &dyn DataFusionSession,
        csv: &CsvOptions,
        union: Union,
        declared: Option<Declared>,
    ) -> Result<Arc<dyn TableProvider>> {
        if self.format == Format::Json {
            let plan = self.json_plan(state, Sample::of(csv.sample_size), union).await?;
            return self.json_table(state, plan);
        }
        let (urls, names) = self.found(state)?;
        if let Some(Declared { schema, has_header, shapes }) = declared {
            let query = state.config().get_extension::<Query>();
            let (zone, limits) = (Zone::of_session(state.config_options()), Limits::of(state));
            let format = self.csv_format(csv, Types::Declared, names, query, zone, limits);
            let columns = schema.fields().iter().map(|field| field.name().clone()).collect();
            // A scan identifies files by their locations.
            let locations: HashMap<&str, String> = (self.files.iter().zip(&urls))
                .map(|(file, url)| (file.path.as_str(), format!("/{}", url.prefix())))
                .collect();
            for shape in &shapes {
                let path = locations.get(shape.path.as_str()).unwrap_or(&shape.path);
                format.keep_declared(path, shape, &columns, has_header);
            }
            return Ok(Arc::new(FileTable { format: Arc::new(format), urls, schema }));
        }
        let format = self.file_format(state, csv, names.clone())?;
        let Columns { schema, reading, units } = self.schema(state, &*format, &urls, union).await?;
        let schema = loosened(&schema);
        let (format, by_position) = match reading {
            Reading::Plain if self.format == Format::Parquet => (parquet(state, names, Spelling::Same, units), false),
            Reading::Plain => (format, false),
            Reading::Respelled => (parquet(state, names, Spelling::Own, units), false),
            Reading::Positional => (self.positional(state, names), false),
        };
        self.with_directories(format, urls, schema, by_position)
    }

    /// Registers the files for scans. Returns their URLs, and their names in the statement.
    fn found(&self, state: &dyn DataFusionSession) -> Result<(Vec<ListingTableUrl>, Names)> {
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
        Ok((urls, Names(Arc::new(names))))
    }

    /// Plans the columns of JSON files.
    pub async fn json_plan(&self, state: &dyn DataFusionSession, sample: Sample, union: Union) -> Result<JsonPlan> {
        let (opened, files) = (self.opened(state), self.files.clone());
        blocking(move || json::plan(&opened, &files, sample, union)).await?
    }

    /// Opens JSON files as a table of these columns.
    pub fn json_table(&self, state: &dyn DataFusionSession, plan: JsonPlan) -> Result<Arc<dyn TableProvider>> {
        let (urls, names) = self.found(state)?;
        let schema = plan.schema();
        let format = JsonFormat { opened: self.opened(state), plan: Arc::new(plan), names };
        self.with_directories(Arc::new(format), urls, schema, false)
    }

    fn opened(&self, state: &dyn DataFusionSession) -> Opened {
        let threads = state.config().target_partitions();
        let (query, limits) = (state.config().get_extension::<Query>(), Limits::of(state));
        Opened { site: self.site.clone(), query, threads, limits }
    }

    /// Returns the names of the columns in the directory names of the files.
    pub fn directory_names(&self) -> Vec<String> {
        let columns = DirectoryColumns::of(self.files.iter().map(|file| file.path.as_str()));
        columns.map_or_else(Vec::new, |columns| columns.names())
    }

    /// Returns the files as a table, with the columns of their directories.
    fn with_directories(
        &self,
        format: Arc<dyn FileFormat>,
        urls: Vec<ListingTableUrl>,
        schema: SchemaRef,
        by_position: bool,
    ) -> Result<Arc<dyn TableProvider>> {
        let Some(columns) = DirectoryColumns::of(self.files.iter().map(|file| file.path.as_str())) else {
            return Ok(Arc::new(FileTable { format, urls, schema }));
        };
        let table = DirectoryTable::new(format, urls, &schema, columns, by_position).map_err(|file| {
            let message =
                format!("'{}' has /{file} twice, by links, in directories that say different things", self.name);
            Error::new(ErrorKind::Data, message).with_hint("name the directories one by one")
        })?;
        Ok(Arc::new(table))
    }

    fn csv_format(
        &self,
        csv: &CsvOptions,
        types: Types,
        names: Names,
        query: Option<Arc<Query>>,
        zone: Zone,
        limits: Limits,
    ) -> CsvFormat {
        CsvFormat {
            site: self.site.clone(),
            extension: self.extension.clone(),
            options: csv.clone(),
            types,
            names,
            query,
            zone,
            limits,
            shapes: Arc::default(),
        }
    }

    fn positional(&self, state: &dyn DataFusionSession, names: Names) -> Arc<dyn FileFormat> {
        let query = state.config().get_extension::<Query>();
        let ledger = query.map(|query| Arc::clone(query.shared_ledger()));
        let pool = Arc::clone(&state.runtime_env().memory_pool);
        Arc::new(PositionalFormat { site: self.site.clone(), format: self.format, names, ledger, pool })
    }

    fn file_format(
        &self,
        state: &dyn DataFusionSession,
        csv: &CsvOptions,
        names: Names,
    ) -> Result<Arc<dyn FileFormat>> {
        match self.format {
            Format::Csv => {
                let query = state.config().get_extension::<Query>();
                let zone = Zone::of_session(state.config_options());
                Ok(Arc::new(self.csv_format(csv, Types::Guessed, names, query, zone, Limits::of(state))))
            }
            Format::Parquet => Ok(parquet(state, names, Spelling::Same, Arc::default())),
            Format::Arrow => Ok(self.positional(state, names)),
            Format::Json => Err(Error::new(ErrorKind::Internal, "JSON has a plan of its columns")),
        }
    }

    /// Returns the columns of all files. Empty text files are ignored.
    async fn schema(
        &self,
        state: &dyn DataFusionSession,
        format: &dyn FileFormat,
        urls: &[ListingTableUrl],
        union: Union,
    ) -> Result<Columns> {
        let Some(first) = urls.first() else {
            return Err(Error::new(ErrorKind::Internal, "a table of no files"));
        };
        let store = &state.runtime_env().object_store(first)?;
        let mut files = Vec::with_capacity(urls.len());
        for (file, url) in self.files.iter().zip(urls) {
            files.push(self.schema_of(file, url, state, store, format));
        }
        let found: Vec<(String, Columns)> =
            futures::stream::iter(files).buffered(SCHEMAS_AT_A_TIME).try_collect().await?;
        let is_plain = found.iter().all(|(_, columns)| columns.reading == Reading::Plain);
        let schema = |columns: Columns| if is_plain { columns.schema } else { positional::renamed(&columns.schema) };
        let mut files: Vec<(String, SchemaRef)> =
            found.into_iter().map(|(name, columns)| (name, schema(columns))).collect();
        if let Some((name, _)) = files.iter().find(|(_, schema)| schema.fields().is_empty())
            && (files.iter().all(|(_, schema)| schema.fields().is_empty())
                || matches!(self.format, Format::Parquet | Format::Arrow))
        {
            return Err(Error::new(ErrorKind::Data, format!("'{name}' has no columns: there is nothing in it")));
        }
        files.retain(|(_, schema)| !schema.fields().is_empty());
        let schema = agree::agree(&files, self.format, union)?;
        let deviations: Vec<Deviations> = match self.format {
            Format::Parquet => files.iter().map(|(_, own)| Deviations::of(&schema, own)).collect(),
            _ => Vec::new(),
        };
        let reading = match deviations.iter().any(|file| file.respelled) {
            _ if !is_plain => Reading::Positional,
            true => Reading::Respelled,
            false => Reading::Plain,
        };
        let units = deviations.into_iter().flat_map(|file| file.units).collect::<BTreeSet<_>>().into_iter().collect();
        Ok(Columns { schema, reading, units })
    }

    /// Returns the columns of a file; none if it is empty.
    async fn schema_of(
        &self,
        file: &Found,
        url: &ListingTableUrl,
        state: &dyn DataFusionSession,
        store: &Arc<dyn ObjectStore>,
        format: &dyn FileFormat,
    ) -> Result<(String, Columns)> {
        let mut is_odd = false;
        let schema = match self.format {
            _ if file.bytes == 0 => Arc::new(Schema::empty()),
            Format::Arrow => {
                let (site, file) = (self.site.clone(), file.clone());
                blocking(move || arrow_schema::of(&site, &file)).await??
            }
            _ => {
                let object = store.head(url.prefix()).await.map_err(DataFusionError::from);
                let object = object.map_err(|e| named::named(&file.name, e))?;
                match format.infer_schema(state, store, std::slice::from_ref(&object)).await {
                    Ok(schema) if self.format == Format::Parquet => {
                        let own = positional::with_same_names(state, store.as_ref(), &object, &schema).await;
                        own.map_err(|e| named::named(&file.name, e))?.unwrap_or(schema)
                    }
                    Ok(schema) => schema,
                    Err(e) if self.format == Format::Parquet => {
                        let (site, file) = (self.site.clone(), file.clone());
                        let schema = blocking(move || positional::of_many_row_groups(&site, &file)).await?;
                        is_odd = true;
                        schema.ok().flatten().ok_or(e)?
                    }
                    Err(e) => return Err(e.into()),
                }
            }
        };
        let is_plain = positional::is_plain(&schema, self.format) && !is_odd;
        let reading = if is_plain { Reading::Plain } else { Reading::Positional };
        Ok((file.name.clone(), Columns { schema, reading, units: Arc::default() }))
    }
}

/// Returns DataFusion's Parquet format.
fn parquet(
    state: &dyn DataFusionSession,
    names: Names,
    spelling: Spelling,
    units: Arc<[usize]>,
) -> Arc<dyn FileFormat> {
    let inner = ParquetFormat::default().with_options(state.default_table_options().parquet);
    Arc::new(NamedFormat { inner: Arc::new(inner), names, spelling, units })
}

/// The columns of one file, or of all files.
struct Columns {
    schema: SchemaRef,
    reading: Reading,
    /// The places of timestamps for which files have other units.
    units: Arc<[usize]>,
}

/// The reader of files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The format's own source.
    Plain,
    /// The same, for files that spell the names of columns differently.
    Respelled,
    /// See [`positional`].
    Positional,
}

/// Opens the files of a path as a table.
pub(crate) async fn open(state: &dyn DataFusionSession, path: &str) -> Result<Arc<dyn TableProvider>> {
    let source = Source::find(path, None, None, Sites::of(state)?).await?;
    source.table(state, &CsvOptions::default(), Union::Same, None).await
}

/// Returns the number of columns of a table that come from its files. The columns of directories
/// follow them.
pub(crate) fn own_columns(table: &dyn TableProvider) -> usize {
    let directories = table.downcast_ref::<DirectoryTable>();
    directories.map_or_else(|| table.schema().fields().len(), DirectoryTable::own_columns)
}

/// Runs work that waits for storage on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> DataFusionResult<T> {
    let done = SpawnedTask::spawn_blocking(work).join_unwind().await;
    done.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))
}

/// Returns bytes as UTF-8.
///
/// # Errors
/// The length of the valid prefix, if the bytes are not UTF-8.
fn utf8(bytes: &[u8]) -> std::result::Result<&str, usize> {
    simdutf8::basic::from_utf8(bytes).or_else(|_| {
        // Only this function returns the length.
        std::str::from_utf8(bytes).map_err(|e| e.valid_up_to())
    })
}

/// Returns a stream of all items of `next`. While one item is used, a thread that may block
/// produces the next one.
fn read_ahead<S, T, E>(
    state: S,
    next: impl Fn(&mut S) -> std::result::Result<Option<T>, E> + Clone + Send + 'static,
) -> impl Stream<Item = std::result::Result<T, E>> + Send
where
    S: Send + 'static,
    T: Send + 'static,
    E: From<DataFusionError> + Send + 'static,
{
    let read = move |mut state: S| {
        let next = next.clone();
        SpawnedTask::spawn_blocking(move || (next(&mut state), state))
    };
    futures::stream::try_unfold((read(state), read), |(reading, read)| async move {
        let done = reading.join_unwind().await.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)));
        let (item, state) = done?;
        Ok(item?.map(|item| (item, (read(state), read))))
    })
}

/// Returns a scan of text files as one stream, in which all threads parse each file; `None` for
/// files of other formats.
pub(crate) fn one_after_another(scan: &FileScanConfig, threads: usize) -> Option<FileScanConfig> {
    let source = scan.file_source().as_ref();
    let source = csv::parsed_by(source, threads).or_else(|| json::parsed_by(source, threads))?;
    let files = scan.file_groups.iter().flat_map(|group| group.files().to_vec()).collect();
    let files = vec![FileGroup::new(files)];
    Some(FileScanConfigBuilder::from(scan.clone()).with_source(source).with_file_groups(files).build())
}

/// Distributes the rows of a large text file, which arrive as one stream, to `threads` streams.
/// Rows in a requested order stay in it.
pub(crate) fn spread(plan: Arc<dyn ExecutionPlan>, threads: usize) -> Result<Arc<dyn ExecutionPlan>> {
    if threads < 2 || !is_large_text(&plan) {
        return Ok(plan);
    }
    Ok(Arc::new(RepartitionExec::try_new(plan, Partitioning::RoundRobinBatch(threads))?))
}

/// Returns whether a plan produces the rows of a large text file in one stream.
pub(crate) fn is_large_text(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_one = plan.output_partitioning().partition_count() == 1 && plan.output_ordering().is_none();
    is_one && text_bytes(plan) >= SPREAD_BYTES
}

/// Returns the bytes of text files at the end of a chain of operators.
fn text_bytes(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    if let [below] = plan.children().as_slice() {
        return text_bytes(below);
    }
    let scan = plan.downcast_ref::<DataSourceExec>();
    let scan = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
    let scan = scan.filter(|scan| matches!(scan.file_source().file_type(), "csv" | "json"));
    let files = scan.into_iter().flat_map(|scan| &scan.file_groups).flat_map(|group| group.files());
    files.map(|file| file.object_meta.size).sum()
}

/// Returns an absolute path without `..`. It follows links in directories but not the last name: a
/// file and a link to it are two names of a pattern.
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

/// Loosens a file's schema for queries.
///
/// - Columns become nullable. DataFusion gives a scalar subquery over no rows the nullability of
///   its column, and then fails on its NULL.
/// - A column without values in the first rows becomes a string, which can hold any later value.
/// - Metadata of the schema is dropped. It describes the file, not the result of a query: that of
///   pandas has the types of columns by name.
/// - Columns are [decoded](crate::encoded).
fn loosened(schema: &Schema) -> SchemaRef {
    let loosen = |field: &Field| match field.data_type() {
        DataType::Null => Field::new(field.name(), DataType::Utf8, true),
        encoded => match entered(encoded) {
            same if same == *encoded => field.clone().with_nullable(true),
            plain => Field::new(field.name(), plain, true).with_metadata(field.metadata().clone()),
        },
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
            ("A.TSV", "tsv", false),
            ("a.Csv.GZ", "csv", true),
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
