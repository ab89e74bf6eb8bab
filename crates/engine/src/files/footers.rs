//! The footers of Parquet files, checked before DataFusion uses them.
//!
//! DataFusion reads footers itself, but uses those in its cache. A footer is therefore read here
//! first, checked ([`onehop_files::parquet_file`]), and put into the cache. Page readers go through
//! [`CheckedFactory`]. It checks page headers before parquet's reader reserves the declared sizes,
//! and page indexes before pages are looked up in them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetSource;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
// This is the type that the cache has. The readers have another type of the same name.
use datafusion::datasource::physical_plan::parquet::metadata::CachedParquetMetaData;
use datafusion::execution::cache::cache_manager::{CachedFileMetadataEntry, FileMetadataCache};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::{ObjectMeta, ObjectStore};
use onehop_files::parquet_file::{
    FOOTER_TAIL_BYTES, PageCheck, PageMemory, check_indexes, check_read_indexes, footer, tail,
};
use onehop_files::{Fault, Memory};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::account::PoolMemory;

/// Reads footers and pages of the files of one session.
#[derive(Clone, Debug)]
pub(super) struct Footers {
    cache: Arc<FileMetadataCache>,
    pool: Arc<dyn MemoryPool>,
}

impl Footers {
    /// Uses the cache and the memory pool of a runtime.
    pub fn of(runtime: &RuntimeEnv) -> Self {
        let cache = runtime.cache_manager.get_file_metadata_cache();
        Self { cache, pool: Arc::clone(&runtime.memory_pool) }
    }

    fn cached(&self, object: &ObjectMeta) -> Option<Arc<ParquetMetaData>> {
        let entry = self.cache.get(&object.location).filter(|entry| entry.is_valid_for(object))?;
        let metadata = entry.file_metadata.as_any().downcast_ref::<CachedParquetMetaData>()?;
        Some(Arc::clone(metadata.parquet_metadata()))
    }

    /// Returns the footer of a file. DataFusion finds it in its cache unless it is too large for
    /// that.
    pub async fn read(&self, store: &dyn ObjectStore, object: &ObjectMeta) -> Result<Arc<ParquetMetaData>> {
        if let Some(known) = self.cached(object) {
            return Ok(known);
        }
        let damaged = |fault: Fault| DataFusionError::External(Box::new(fault));
        let short = || damaged(Fault::Damaged("it is too short for a footer".into()));
        let end = object.size.checked_sub(FOOTER_TAIL_BYTES).ok_or_else(short)?;
        let bytes = range(store, object, end..object.size).await?;
        let found = tail(bytes.as_ref().try_into().map_err(|_| short())?, object.size).map_err(damaged)?;
        let bytes = range(store, object, found.offset..end).await?;
        let metadata = footer(&bytes, object.size, &mut PoolMemory::new(&self.pool)).map_err(damaged)?;
        let metadata = Arc::new(metadata);
        let cached = Arc::new(CachedParquetMetaData::new(Arc::clone(&metadata)));
        self.cache.put(&object.location, CachedFileMetadataEntry::new(object.clone(), cached));
        Ok(metadata)
    }

    /// Returns the source with readers that check the data.
    pub fn checking(&self, source: &ParquetSource, store: Arc<dyn ObjectStore>) -> Option<ParquetSource> {
        let inner = Arc::clone(source.parquet_file_reader_factory()?);
        let factory = CheckedFactory { inner, store, footers: self.clone() };
        Some(source.clone().with_parquet_file_reader_factory(Arc::new(factory)))
    }
}

/// Returns exactly the bytes of a range. A stream of a cluster's file would read ahead.
async fn range(store: &dyn ObjectStore, object: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
    Ok(store.get_ranges(&object.location, &[range]).await?.into_iter().next().unwrap_or_default())
}

#[derive(Debug)]
struct CheckedFactory {
    inner: Arc<dyn ParquetFileReaderFactory>,
    store: Arc<dyn ObjectStore>,
    footers: Footers,
}

impl ParquetFileReaderFactory for CheckedFactory {
    fn create_reader(
        &self,
        partition: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let object = file.object_meta.clone();
        let inner = self.inner.create_reader(partition, file, metadata_size_hint, metrics)?;
        let (store, footers) = (Arc::clone(&self.store), self.footers.clone());
        let memory = PoolMemory::new(&footers.pool);
        Ok(Box::new(CheckedReader { inner, store, footers, object, chunks: None, memory }))
    }
}

struct CheckedReader {
    inner: Box<dyn AsyncFileReader + Send>,
    store: Arc<dyn ObjectStore>,
    footers: Footers,
    object: ObjectMeta,
    /// The column chunks. They are known after the first read of the footer.
    chunks: Option<Chunks>,
    memory: PoolMemory,
}

/// The column chunks of a file by their start.
struct Chunks {
    metadata: Arc<ParquetMetaData>,
    /// The start of each chunk, its row group and its column, in ascending order.
    starts: Vec<(u64, usize, usize)>,
}

impl Chunks {
    fn of(metadata: Arc<ParquetMetaData>) -> Self {
        let groups = metadata.row_groups().iter().enumerate();
        let starts = groups.flat_map(|(group, chunks)| {
            let columns = chunks.columns().iter().enumerate();
            columns.map(move |(column, chunk)| (chunk.byte_range().0, group, column))
        });
        let mut starts: Vec<_> = starts.collect();
        starts.sort_unstable();
        Self { metadata, starts }
    }

    /// Returns the chunks that contain an offset. There are several if a footer has two chunks at
    /// one place.
    fn at(&self, offset: u64) -> impl Iterator<Item = &ColumnChunkMetaData> {
        let behind = self.starts.partition_point(|(start, ..)| *start <= offset);
        let nearest = behind.checked_sub(1).map(|at| self.starts[at].0);
        let here = self.starts[..behind].iter().rev().take_while(move |(start, ..)| Some(*start) == nearest);
        let columns = here.map(|(_, group, column)| self.metadata.row_group(*group).column(*column));
        columns.filter(move |column| {
            let (start, len) = column.byte_range();
            (start..start.saturating_add(len)).contains(&offset)
        })
    }
}

impl CheckedReader {
    /// Checks the pages in ranges of column chunks, and reserves the memory that their reader
    /// needs. Checks page indexes in other ranges.
    fn check(&mut self, ranges: &[Range<u64>], bytes: &[Bytes]) -> ParquetResult<()> {
        let Some(chunks) = &self.chunks else { return Ok(()) };
        let mut held = 0_u64;
        for (range, bytes) in ranges.iter().zip(bytes) {
            let mut columns = chunks.at(range.start).peekable();
            if columns.peek().is_none() {
                check_indexes(&chunks.metadata, range.start, bytes).map_err(external)?;
            }
            for column in columns {
                let mut pages = PageCheck::new(column).pages(bytes).map_err(external)?;
                let (start, len) = column.byte_range();
                if *range == (start..start + len) {
                    pages = pages.with_dictionary().map_err(external)?;
                }
                let PageMemory { dictionary_bytes, data_bytes, .. } = pages;
                held = held.saturating_add(dictionary_bytes).saturating_add(data_bytes);
            }
        }
        let refused = |refused| external(Fault::Memory { what: "a row group".into(), bytes: held, refused });
        self.memory.resize(held).map_err(refused)
    }
}

fn external(fault: Fault) -> ParquetError {
    ParquetError::External(Box::new(fault))
}

impl AsyncFileReader for CheckedReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        async move {
            let bytes = self.inner.get_bytes(range.clone()).await?;
            self.check(&[range], std::slice::from_ref(&bytes))?;
            Ok(bytes)
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        async move {
            let bytes = self.inner.get_byte_ranges(ranges.clone()).await?;
            self.check(&ranges, &bytes)?;
            Ok(bytes)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        async move {
            let checked = self.footers.read(self.store.as_ref(), &self.object).await;
            let checked = checked.map_err(|e| ParquetError::External(Box::new(e)))?;
            self.chunks.get_or_insert_with(|| Chunks::of(Arc::clone(&checked)));
            match self.footers.cached(&self.object) {
                // The reader adds the page indexes on request.
                Some(_) => {
                    let metadata = self.inner.get_metadata(options).await?;
                    check_read_indexes(&metadata).map_err(external)?;
                    Ok(metadata)
                }
                None => Ok(checked),
            }
        }
        .boxed()
    }
}
