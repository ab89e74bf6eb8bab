//! Writes a generator's tables into files, in parallel, in order, in bounded memory.
//!
//! 1. All chunks of all tables are numbered in one sequence.
//! 2. Each worker thread claims the next number, generates the chunk and encodes it (text, or a
//!    Parquet row group).
//! 3. The calling thread takes the encoded chunks in sequence and appends them to their files.
//! 4. A worker may claim number `n` only when chunk `n - threads - 1` has been written: at most
//!    `threads + 1` encoded chunks exist at any time. A smaller chunk ([`Format::chunk_rows`])
//!    therefore means less memory.
//!
//! A file is written under a hidden temporary name in its own directory, synced, and renamed when
//! it is complete. A file under its final name is therefore always complete. After an error or a
//! cancellation the temporary file is removed (after a crash `.NAME.PID.partial` is left to
//! delete).

mod parquet;
mod queue;
mod text;

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use self::parquet::{ParquetFile, RowGroup, RowGroups};
use self::queue::Queue;
use self::text::{Dialect, TextEncoder};
use super::{CHUNK_ROWS, Error, Generator, Result, TableInfo};

/// A file format of tables: one file per table, `TABLE.parquet`, `TABLE.csv` or `TABLE.tbl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Zstandard level 1; a row group per chunk.
    Parquet,
    /// Comma-separated, with a header line, quoted as RFC 4180 requires.
    Csv,
    /// The format of the benchmarks' own generators: a pipe after every value, no header.
    Tbl,
}

impl Format {
    /// Returns the chunk size for a generator whose tables are written in this format.
    ///
    /// Parquet needs large row groups. Text waits uncompressed for its turn, so its chunks are
    /// smaller.
    pub fn chunk_rows(self) -> u64 {
        match self {
            Self::Parquet => CHUNK_ROWS,
            Self::Csv | Self::Tbl => CHUNK_ROWS / 8,
        }
    }

    /// Returns the file name extension.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Csv => "csv",
            Self::Tbl => "tbl",
        }
    }
}

impl std::str::FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name.to_ascii_lowercase().as_str() {
            "parquet" => Ok(Self::Parquet),
            "csv" => Ok(Self::Csv),
            "tbl" => Ok(Self::Tbl),
            _ => Err(Error::UnknownFormat(name.to_owned())),
        }
    }
}

/// The treatment of existing files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// Write nothing at all and report the file.
    #[default]
    Refuse,
    /// Replace it atomically when its successor is complete.
    Replace,
}

/// The options of writing tables.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The file format.
    pub format: Format,
    /// The treatment of existing files.
    pub overwrite: Overwrite,
    /// The number of threads that generate and encode; the calling thread writes.
    pub threads: NonZeroUsize,
}

/// The progress of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The table.
    pub table: &'static str,
    /// The number of rows written.
    pub rows_done: u64,
    /// The expected number of rows; for fact tables `rows_done` may end slightly above or below.
    pub rows_expected: u64,
}

/// A table's complete file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The table.
    pub table: &'static str,
    /// The path of the file.
    pub path: PathBuf,
    /// The number of rows in it.
    pub rows: u64,
    /// The size of the file.
    pub file_bytes: u64,
}

/// Writes all tables of a generator into `directory`, which is created if it is missing.
///
/// `progress` is called on the calling thread after every chunk. When `cancel` becomes true,
/// writing stops at the next batch with [`Error::Cancelled`]; tables that are complete by then
/// stay.
pub fn write_tables(
    generator: &dyn Generator,
    directory: &Path,
    options: Options,
    progress: &dyn Fn(Progress),
    cancel: &AtomicBool,
) -> Result<Vec<Written>> {
    fs::create_dir_all(directory).map_err(|source| io_error(directory, source))?;
    let mut tables = Vec::new();
    for info in generator.tables() {
        let path = directory.join(format!("{}.{}", info.name, options.format.extension()));
        options.overwrite.check(&path)?;
        tables.push(TablePlan {
            chunks: generator.chunks(info.name)?,
            encoder: Encoder::new(options.format, &info)?,
            info,
            path,
        });
    }
    let chunks: Vec<_> = tables.iter().flat_map(|table| (0..table.chunks).map(move |chunk| (table, chunk))).collect();
    let queue = Queue::new(chunks.len(), options.threads.get() + 1);
    std::thread::scope(|scope| {
        // Dropped first on every exit, so that no worker waits for a turn that never comes.
        let closer = queue.closer();
        for _ in 0..options.threads.get().min(chunks.len()) {
            scope.spawn(|| {
                let _closer = queue.closer_on_panic();
                while let Some(number) = queue.claim() {
                    let (table, chunk) = chunks[number];
                    queue.deliver(number, table.encode(generator, chunk, cancel));
                }
            });
        }
        let written = tables.iter().map(|table| table.write(&queue, options.overwrite, progress)).collect();
        drop(closer);
        written
    })
}

/// One table and its file.
struct TablePlan {
    info: TableInfo,
    path: PathBuf,
    chunks: usize,
    encoder: Encoder,
}

impl TablePlan {
    fn encode(&self, generator: &dyn Generator, chunk: usize, cancel: &AtomicBool) -> Result<Encoded> {
        let batches = generator
            .chunk(self.info.name, chunk)?
            .map(|batch| if cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { batch });
        self.encoder.encode(batches)
    }

    /// Takes the table's chunks from the queue, in order, and writes them to its file.
    fn write(
        &self,
        queue: &Queue<Result<Encoded>>,
        overwrite: Overwrite,
        progress: &dyn Fn(Progress),
    ) -> Result<Written> {
        let mut file = self.encoder.start(PartialFile::create(&self.path)?)?;
        let mut rows = 0;
        for _ in 0..self.chunks {
            // The queue is closed only by the caller of this method.
            let encoded = queue.take().unwrap_or(Err(Error::Cancelled))?;
            rows += encoded.rows;
            file.append(encoded)?;
            progress(Progress { table: self.info.name, rows_done: rows, rows_expected: self.info.rows_expected });
        }
        let file_bytes = file.finish()?.publish(overwrite)?;
        Ok(Written { table: self.info.name, path: self.path.clone(), rows, file_bytes })
    }
}

/// A chunk ready to be appended to its file.
struct Encoded {
    rows: u64,
    bytes: EncodedBytes,
}

enum EncodedBytes {
    Text(Vec<u8>),
    RowGroup(RowGroup),
}

/// Encodes chunks into file contents; may be used from many threads at once.
enum Encoder {
    Text(TextEncoder),
    Parquet(RowGroups),
}

impl Encoder {
    fn new(format: Format, info: &TableInfo) -> Result<Self> {
        Ok(match format {
            Format::Parquet => Self::Parquet(RowGroups::new(&info.schema)?),
            Format::Csv => Self::Text(TextEncoder::new(Dialect::Csv, &info.schema)?),
            Format::Tbl => Self::Text(TextEncoder::new(Dialect::Tbl, &info.schema)?),
        })
    }

    fn encode(&self, batches: impl Iterator<Item = Result<arrow::array::RecordBatch>>) -> Result<Encoded> {
        match self {
            Self::Text(encoder) => {
                let (mut rows, mut text) = (0, Vec::new());
                for batch in batches {
                    let batch = batch?;
                    rows += batch.num_rows() as u64;
                    encoder.encode(&batch, &mut text)?;
                }
                Ok(Encoded { rows, bytes: EncodedBytes::Text(text) })
            }
            Self::Parquet(groups) => {
                let group = groups.encode(batches)?;
                Ok(Encoded { rows: group.rows(), bytes: EncodedBytes::RowGroup(group) })
            }
        }
    }

    fn start(&self, file: PartialFile) -> Result<OutputFile> {
        match self {
            Self::Text(encoder) => {
                let mut file = file;
                file.append(&encoder.header())?;
                Ok(OutputFile::Text(file))
            }
            Self::Parquet(groups) => Ok(OutputFile::Parquet(Box::new(groups.start(file)?))),
        }
    }
}

enum OutputFile {
    Text(PartialFile),
    Parquet(Box<ParquetFile>),
}

impl OutputFile {
    fn append(&mut self, encoded: Encoded) -> Result<()> {
        match (self, encoded.bytes) {
            (Self::Text(file), EncodedBytes::Text(text)) => file.append(&text),
            (Self::Parquet(file), EncodedBytes::RowGroup(group)) => file.append(group),
            (Self::Text(_), EncodedBytes::RowGroup(_)) | (Self::Parquet(_), EncodedBytes::Text(_)) => {
                unreachable!("a table's chunks and its file come from the same encoder")
            }
        }
    }

    fn finish(self) -> Result<PartialFile> {
        match self {
            Self::Text(file) => Ok(file),
            Self::Parquet(file) => file.finish(),
        }
    }
}

/// A file under its temporary name; removed when dropped before [`PartialFile::publish`].
struct PartialFile {
    writer: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    published: bool,
}

impl PartialFile {
    const BUFFER_BYTES: usize = 1 << 20;

    fn create(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let file = File::create(&temporary).map_err(|source| io_error(&temporary, source))?;
        let writer = BufWriter::with_capacity(Self::BUFFER_BYTES, file);
        Ok(Self { writer, temporary, path: path.to_owned(), published: false })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|source| io_error(&self.temporary, source))
    }

    /// Syncs and renames the file; returns its size.
    fn publish(mut self, overwrite: Overwrite) -> Result<u64> {
        let written = self.writer.flush().and_then(|()| self.writer.get_ref().sync_all());
        let file_bytes = written.and_then(|()| self.writer.get_ref().metadata()).map(|metadata| metadata.len());
        let file_bytes = file_bytes.map_err(|source| io_error(&self.temporary, source))?;
        // Another process may have created the file since the first check; the remaining window is
        // that of one rename.
        overwrite.check(&self.path)?;
        fs::rename(&self.temporary, &self.path).map_err(|source| io_error(&self.path, source))?;
        self.published = true;
        Ok(file_bytes)
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.published {
            // Harmless if it fails: the name identifies the file.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

impl Overwrite {
    fn check(self, path: &Path) -> Result<()> {
        match self {
            Self::Refuse if path.exists() => Err(Error::Exists(path.to_owned())),
            Self::Refuse | Self::Replace => Ok(()),
        }
    }
}

fn io_error(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
