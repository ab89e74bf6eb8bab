//! Other people's files as tables: Parquet, Arrow IPC, CSV, JSON, by path or pattern.
//!
//! The format follows from the name, in whatever case: `x.parquet`, `x.arrow`, `x.csv`, `x.tsv`,
//! `x.tbl`, `x.json`, `x.jsonl`, the text ones also as `.gz`, `.bz2`, `.xz`, `.zst`. [`glob`] says
//! which files a path stands for, [`agree`] that they are of one table, [`listing`] in which order
//! they are read; what their directories are named by is columns as well: [`directory_columns`].
//! Text is read by [`csv`] and [`json`], Parquet by DataFusion under [`named`], and Arrow by
//! [`positional`], both behind the checks of `onehop_files`. [`export`] writes files. All of them lie at a [`site`]: the
//! local file system, or a cluster.
//!
//! Invariant: an error that a file is to blame for names the file as the statement did.

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

/// A record of text is no longer than this, and has no more than its part of the memory.
const MOST_RECORD_BYTES: usize = 256 << 20;
const RECORDS_IN_MEMORY: u64 = 8;
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

/// How the columns of several files are those of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Union {
    /// All files have the same ones.
    #[default]
    Same,
    /// A column that a file lacks is NULL.
    ByName,
}

/// A declared table: what text files hold.
pub(crate) struct Declared {
    /// The columns, in the order in which records have them.
    pub schema: SchemaRef,
    pub has_header: bool,
    pub shapes: Vec<DeclaredShape>,
}

/// A file name taken apart.
pub(crate) struct FileName {
    /// The extension without that of a compression, in lower case: `csv`.
    pub extension: String,
    pub compression: FileCompressionType,
}

/// `dir/x.csv.gz` is csv, compressed.
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

/// What a reader of text may have in memory, by what its statement may.
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

    /// The longest record: a bracket or a quote that is never closed makes one of the rest of a file.
    fn record_bytes(self) -> usize {
        MOST_RECORD_BYTES.min(usize::try_from(self.memory_bytes / RECORDS_IN_MEMORY).unwrap_or(usize::MAX))
    }

    /// The bytes of a file, decompressed.
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

/// A reader that ends with an error once its statement has to: the bytes of a file say nothing about how many it is
/// decompressed to.
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

/// The error of a file whose decompression needs more memory than its statement may have.
fn over_memory(name: &str, e: &io::Error) -> Option<Error> {
    let is_memory = e.kind() == io::ErrorKind::OutOfMemory && e.raw_os_error().is_none();
    is_memory.then(|| {
        Error::new(ErrorKind::Resources, format!("cannot read '{name}': {e}"))
            .with_hint("compress the file with a smaller window, or raise memory_limit: a window may have a quarter of it, and 128 MiB")
    })
}

/// Whether a table's name is meant as a path: it has a slash, a pattern, or the extension of a format.
pub(crate) fn is_path(name: &str) -> bool {
    name.contains('/') || name.contains('*') || Format::parse(&parse_name(name).extension).is_ok()
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
            let found = sites.resolve(&path).and_then(|(site, path)| Self::find_at(site, &path, format, unnamed));
            found.inspect_err(|_| sites.wanted(&path))
        };
        blocking(find).await?
    }

    /// The files of several paths, of one format.
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
        // A directory, or a pattern that says nothing: the files do, and have to agree.
        let is_wanted = |file: &Found| {
            let extension = parse_name(&file.name).extension;
            let known = Format::parse(&extension).ok();
            // Beside other files, .txt is a note about them.
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

    /// How each text file that has records is cut, if they have so many fields.
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

    /// The files as a table. `declared` is what text files hold, where that is known; then there are no other columns.
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
            // A scan knows files by their locations.
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

    /// Has scans find the files: their URLs, and what the statement calls them.
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

    /// The columns of JSON files.
    pub async fn json_plan(&self, state: &dyn DataFusionSession, sample: Sample, union: Union) -> Result<JsonPlan> {
        let (opened, files) = (self.opened(state), self.files.clone());
        blocking(move || json::plan(&opened, &files, sample, union)).await?
    }

    /// JSON files as a table of these columns.
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

    /// The names of the columns that the files' directories are named by.
    pub fn directory_names(&self) -> Vec<String> {
        let columns = DirectoryColumns::of(self.files.iter().map(|file| file.path.as_str()));
        columns.map_or_else(Vec::new, |columns| columns.names())
    }

    /// The files as a table, with the columns of their directories.
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

    /// The columns of all files. Empty text files have nothing to say about them.
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

    /// The columns of a file; none of an empty one.
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

/// DataFusion's Parquet.
fn parquet(
    state: &dyn DataFusionSession,
    names: Names,
    spelling: Spelling,
    units: Arc<[usize]>,
) -> Arc<dyn FileFormat> {
    let inner = ParquetFormat::default().with_options(state.default_table_options().parquet);
    Arc::new(NamedFormat { inner: Arc::new(inner), names, spelling, units })
}

/// The columns of a file, or of all.
struct Columns {
    schema: SchemaRef,
    reading: Reading,
    /// The places of timestamps that files have in other units.
    units: Arc<[usize]>,
}

/// What reads files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Their format's own source.
    Plain,
    /// The same, of files that have other spellings of their columns' names.
    Respelled,
    /// See [`positional`].
    Positional,
}

/// The files that a path stands for as a table.
pub(crate) async fn open(state: &dyn DataFusionSession, path: &str) -> Result<Arc<dyn TableProvider>> {
    let source = Source::find(path, None, None, Sites::of(state)?).await?;
    source.table(state, &CsvOptions::default(), Union::Same, None).await
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

/// The text that bytes are.
///
/// # Errors
/// They are none: so many of them at the start are.
fn utf8(bytes: &[u8]) -> std::result::Result<&str, usize> {
    simdutf8::basic::from_utf8(bytes).or_else(|_| {
        // Only this one says how many.
        std::str::from_utf8(bytes).map_err(|e| e.valid_up_to())
    })
}

/// All that `next` gives until it gives nothing. While one item is used, a thread that may wait
/// makes the next one.
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

/// A scan of text files as one stream, each file of which all threads parse; `None` for files of other formats.
pub(crate) fn one_after_another(scan: &FileScanConfig, threads: usize) -> Option<FileScanConfig> {
    let source = scan.file_source().as_ref();
    let source = csv::parsed_by(source, threads).or_else(|| json::parsed_by(source, threads))?;
    let files = scan.file_groups.iter().flat_map(|group| group.files().to_vec()).collect();
    let files = vec![FileGroup::new(files)];
    Some(FileScanConfigBuilder::from(scan.clone()).with_source(source).with_file_groups(files).build())
}

/// Gives the rows of a large text file, which come as one stream, to as many as there are threads. Rows in an order that
/// was asked for stay in it.
pub(crate) fn spread(plan: Arc<dyn ExecutionPlan>, threads: usize) -> Result<Arc<dyn ExecutionPlan>> {
    if threads < 2 || !is_large_text(&plan) {
        return Ok(plan);
    }
    Ok(Arc::new(RepartitionExec::try_new(plan, Partitioning::RoundRobinBatch(threads))?))
}

/// Whether a plan gives the rows of a large text file in one stream.
pub(crate) fn is_large_text(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_one = plan.output_partitioning().partition_count() == 1 && plan.output_ordering().is_none();
    is_one && text_bytes(plan) >= SPREAD_BYTES
}

/// Bytes of text files at the end of a chain of operators.
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
/// what comes later can be anything. Metadata of the schema is about the file, not about what a query makes of it: pandas' has the
/// types of columns by their names. Columns are [decoded](crate::encoded).
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
