//! Other people's files as tables: Parquet, Arrow IPC, CSV, JSON, by path or pattern.
//!
//! The format follows from the name: `x.parquet`, `x.arrow`, `x.csv`, `x.tsv`, `x.tbl`, `x.json`, `x.jsonl`, the text
//! ones also as `.gz`, `.bz2`, `.xz`, `.zst`. A pattern (`data/*.parquet`) or a directory is all the files it matches.
//! Reads go through a [`CountingStore`], so that the ledger of a statement has their bytes too.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{Fields, Schema, SchemaRef};
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::object_store::ObjectStoreRegistry;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path as StorePath;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, UploadPart,
};
use onehop_io::{Hop, Ledger};
use url::Url;

use crate::{Error, ErrorKind, Result};

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

/// The files as a table. `schema` is what text files hold, where that is known.
pub(crate) async fn open(
    state: &dyn DataFusionSession,
    path: &str,
    format: Option<Format>,
    csv: &CsvOptions,
    schema: Option<SchemaRef>,
) -> Result<Arc<dyn TableProvider>> {
    let name = parse_name(path);
    let format = match format {
        Some(format) => format,
        None => format_of(path, &name)?,
    };
    check_exists(path)?;
    let url = ListingTableUrl::parse(path).map_err(|e| {
        Error::new(ErrorKind::Invalid, format!("'{path}' is not a path or pattern that can be read")).with_source(e)
    })?;
    let file_format: Arc<dyn FileFormat> = match format {
        Format::Parquet => Arc::new(ParquetFormat::default().with_options(state.default_table_options().parquet)),
        Format::Arrow => Arc::new(ArrowFormat),
        Format::Json => Arc::new(JsonFormat::default().with_file_compression_type(name.compression)),
        Format::Csv => Arc::new(csv_format(name.extension, csv).with_file_compression_type(name.compression)),
    };
    let store = state.runtime_env().object_store(&url)?;
    let matches = url.list_all_files(state, store.as_ref(), "").await?.next().await.transpose()?;
    if matches.is_none() {
        return Err(Error::new(ErrorKind::NotFound, format!("no file matches '{path}'")));
    }
    // A directory holds files of one format, by their extension; a file or pattern is taken at its word.
    let extension = if Path::new(path).is_dir() { file_format.get_ext() } else { String::new() };
    let options = ListingOptions::new(file_format).with_file_extension(extension);
    let schema = match schema {
        Some(schema) => schema,
        None => {
            let inferred: SchemaRef = options.infer_schema(state, &url).await.map_err(|e| unreadable(path, e))?;
            nullable(&inferred)
        }
    };
    if schema.fields().is_empty() {
        return Err(Error::new(ErrorKind::NotFound, format!("no file matches '{path}', or they have no columns")));
    }
    let config = ListingTableConfig::new(url).with_listing_options(options).with_schema(schema);
    Ok(Arc::new(ListingTable::try_new(config)?))
}

/// That a file's rows hold no NULL does not hold for what is made of them: DataFusion declares a scalar subquery over
/// no rows as it finds the column, and then fails on its NULL.
fn nullable(schema: &Schema) -> SchemaRef {
    let fields: Fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn format_of(path: &str, name: &FileName<'_>) -> Result<Format> {
    if Path::new(path).is_dir() {
        let entries = std::fs::read_dir(path)
            .map_err(|e| Error::from(onehop_io::Error::new(onehop_io::Operation::List, path, e)))?;
        let mut names: Vec<String> = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        if let Some(format) = names.iter().find_map(|name| Format::parse(parse_name(name).extension).ok()) {
            return Ok(format);
        }
    }
    Format::parse(name.extension).map_err(|_| {
        let message = format!("the name of '{path}' does not say its format");
        Error::new(ErrorKind::Invalid, message).with_hint("formats go by extension: .parquet, .arrow, .csv, .json")
    })
}

/// Patterns are checked by what they match; a plain path gives a better message here.
fn check_exists(path: &str) -> Result<()> {
    if let Some((scheme, _)) = path.split_once("://").filter(|(scheme, _)| *scheme != "file") {
        let message = format!("cannot read '{path}': {scheme} is not a place that files are read from");
        return Err(Error::new(ErrorKind::Invalid, message).with_hint("files are read from local paths"));
    }
    let is_plain = !path.contains(['*', '?', '[']) && !path.contains("://");
    if is_plain && let Err(e) = std::fs::metadata(path) {
        return Err(onehop_io::Error::new(onehop_io::Operation::Open, path, e).into());
    }
    Ok(())
}

fn unreadable(path: &str, e: DataFusionError) -> Error {
    let inner = Error::from(e);
    Error::new(inner.kind(), format!("cannot read '{path}': {}", inner.message())).with_source(inner)
}

fn csv_format(extension: &str, csv: &CsvOptions) -> CsvFormat {
    let delimiter = csv.delimiter.unwrap_or(match extension {
        "tsv" => b'\t',
        "tbl" => b'|',
        _ => b',',
    });
    let mut format = CsvFormat::default()
        .with_delimiter(delimiter)
        .with_has_header(csv.has_header.unwrap_or(extension != "tbl"))
        .with_escape(csv.escape)
        .with_truncated_rows(false);
    if let Some(quote) = csv.quote {
        format = format.with_quote(quote);
    }
    format
}

/// Gives out the local file system with a ledger, and everything else as registered.
#[derive(Debug)]
pub(crate) struct CountingRegistry {
    pub inner: Arc<dyn ObjectStoreRegistry>,
    pub ledger: Arc<Ledger>,
}

impl ObjectStoreRegistry for CountingRegistry {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.inner.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> datafusion::common::Result<Arc<dyn ObjectStore>> {
        self.inner.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> datafusion::common::Result<Arc<dyn ObjectStore>> {
        let inner = self.inner.get_store(url)?;
        Ok(Arc::new(CountingStore { inner, ledger: Arc::clone(&self.ledger) }))
    }
}

/// Counts the bytes that cross it. Local files come through the page cache, which is a copy more.
#[derive(Debug)]
struct CountingStore {
    inner: Arc<dyn ObjectStore>,
    ledger: Arc<Ledger>,
}

impl CountingStore {
    fn count_read(&self, bytes: usize) {
        self.ledger.read_op();
        self.ledger.moved(Hop::StorageToHost, bytes);
        self.ledger.moved(Hop::HostToHost, bytes);
    }
}

fn count_write(ledger: &Ledger, bytes: usize) {
    ledger.write_op();
    ledger.moved(Hop::HostToStorage, bytes);
    ledger.moved(Hop::HostToHost, bytes);
}

impl fmt::Display for CountingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for CountingStore {
    async fn put_opts(
        &self,
        location: &StorePath,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        count_write(&self.ledger, payload.content_length());
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &StorePath,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(CountingUpload { inner, ledger: Arc::clone(&self.ledger) }))
    }

    async fn get_opts(&self, location: &StorePath, options: GetOptions) -> object_store::Result<GetResult> {
        let result = self.inner.get_opts(location, options.clone()).await?;
        if !options.head {
            self.count_read((result.range.end - result.range.start) as usize);
        }
        Ok(result)
    }

    async fn get_ranges(&self, location: &StorePath, ranges: &[Range<u64>]) -> object_store::Result<Vec<Bytes>> {
        let result = self.inner.get_ranges(location, ranges).await?;
        self.count_read(result.iter().map(Bytes::len).sum());
        Ok(result)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<StorePath>>,
    ) -> BoxStream<'static, object_store::Result<StorePath>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&StorePath>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&StorePath>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &StorePath, to: &StorePath, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &StorePath, to: &StorePath, options: RenameOptions) -> object_store::Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct CountingUpload {
    inner: Box<dyn MultipartUpload>,
    ledger: Arc<Ledger>,
}

#[async_trait]
impl MultipartUpload for CountingUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        count_write(&self.ledger, data.content_length());
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        self.inner.complete().await
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.inner.abort().await
    }
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
