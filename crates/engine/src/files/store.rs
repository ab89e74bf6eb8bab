//! Object stores with a ledger, which counts the bytes that DataFusion reads from files.
//!
//! A statement opens a file several times, for its footer and then for its parts. If another
//! process replaced it meanwhile, parts of two files would be mixed. The store therefore serves the
//! file that was opened first, or fails.
//!
//! A registry belongs to one statement, as do the stores that are registered with it: see
//! [`export`](super::export).

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::execution::object_store::ObjectStoreRegistry;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path as StorePath;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, UploadPart,
};
use onehop_io::{Hop, Ledger, Operation};
use url::{Position, Url};

use super::site::count_buffered;
use crate::error::Changed;
use crate::task::spawn_blocking;

/// Provides the local file system with a ledger, and the stores that were registered for this
/// statement.
#[derive(Debug)]
pub(crate) struct CountingRegistry {
    inner: Arc<dyn ObjectStoreRegistry>,
    ledger: Arc<Ledger>,
    seen: Arc<Seen>,
    /// The registered stores, by scheme and authority.
    own: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

impl CountingRegistry {
    pub fn new(inner: Arc<dyn ObjectStoreRegistry>, ledger: Arc<Ledger>) -> Self {
        Self { inner, ledger, seen: Arc::default(), own: Mutex::default() }
    }
}

impl ObjectStoreRegistry for CountingRegistry {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).insert(key(url).to_string(), store)
    }

    fn deregister_store(&self, url: &Url) -> datafusion::common::Result<Arc<dyn ObjectStore>> {
        self.inner.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> datafusion::common::Result<Arc<dyn ObjectStore>> {
        if let Some(own) = self.own.lock().unwrap_or_else(PoisonError::into_inner).get(key(url)) {
            return Ok(Arc::clone(own));
        }
        let inner = self.inner.get_store(url)?;
        Ok(Arc::new(CountingStore { inner, ledger: Arc::clone(&self.ledger), seen: Arc::clone(&self.seen) }))
    }
}

fn key(url: &Url) -> &str {
    &url[..Position::BeforePath]
}

/// Counts the bytes that pass through it. Local files pass through the page cache, which adds a
/// copy.
#[derive(Debug)]
struct CountingStore {
    inner: Arc<dyn ObjectStore>,
    ledger: Arc<Ledger>,
    seen: Arc<Seen>,
}

/// The files that a statement has seen.
#[derive(Debug, Default)]
struct Seen(Mutex<HashMap<StorePath, Identity>>);

/// The identity of a file, which changes with its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Seen {
    /// Checks that this is the file that was seen first under this name.
    fn check(&self, location: &StorePath, file: &File) -> object_store::Result<()> {
        let failed =
            |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic { store: "local", source };
        let metadata = file.metadata().map_err(|e| failed(e.into()))?;
        let now = Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        };
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = *seen.entry(location.clone()).or_insert(now);
        if first == now { Ok(()) } else { Err(Changed::at(location)) }
    }
}

pub(super) fn count_write(ledger: &Ledger, bytes: usize) {
    ledger.write_op();
    ledger.moved(Hop::HostToStorage, bytes);
    ledger.moved(Hop::HostToHost, bytes);
}

fn read_ranges(file: &File, path: &Path, ranges: &[Range<u64>]) -> object_store::Result<Vec<Bytes>> {
    let size = file.metadata().map(|metadata| metadata.len());
    let read = |range: &Range<u64>| {
        // A damaged footer has ranges beyond the end, which must not be allocated.
        if range.end > *size.as_ref().unwrap_or(&u64::MAX) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, range.start)?;
        Ok(Bytes::from(bytes))
    };
    let all = ranges.iter().map(read).collect::<io::Result<_>>();
    all.map_err(|e| onehop_io::Error::new(Operation::Read, path.display().to_string(), e))
        .map_err(|e| object_store::Error::Generic { store: "local", source: e.into() })
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
        if let GetResultPayload::File(file, _) = &result.payload {
            self.seen.check(location, file)?;
        }
        if !options.head {
            count_buffered(&self.ledger, (result.range.end - result.range.start) as usize);
        }
        Ok(result)
    }

    async fn get_ranges(&self, location: &StorePath, ranges: &[Range<u64>]) -> object_store::Result<Vec<Bytes>> {
        // The file is opened and checked once for all ranges.
        let opened = self.inner.get_opts(location, GetOptions::default()).await?;
        let result = match opened.payload {
            GetResultPayload::File(file, path) => {
                self.seen.check(location, &file)?;
                let ranges = ranges.to_vec();
                spawn_blocking(move || read_ranges(&file, &path, &ranges)).await??
            }
            GetResultPayload::Stream(_) => self.inner.get_ranges(location, ranges).await?,
        };
        count_buffered(&self.ledger, result.iter().map(Bytes::len).sum());
        Ok(result)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<StorePath>>,
    ) -> BoxStream<'static, object_store::Result<StorePath>> {
        self.inner.delete_stream(locations)
    }

    /// Fails for a prefix. The files of a statement are known before it is planned. If one no
    /// longer exists, DataFusion lists names that begin with its name, and would continue without
    /// its rows.
    fn list(&self, prefix: Option<&StorePath>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        match prefix {
            Some(location) => futures::stream::iter([Err(Changed::at(location))]).boxed(),
            None => self.inner.list(prefix),
        }
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
#[allow(clippy::unwrap_used)]
mod tests {
    use datafusion::execution::object_store::DefaultObjectStoreRegistry;
    use object_store::ObjectStoreExt;

    use super::*;

    #[tokio::test]
    async fn a_file_that_is_replaced_or_changed_is_an_error_to_who_has_seen_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for is_replaced in [true, false] {
            std::fs::write(at("x"), "0123456789").unwrap();
            std::fs::write(at("new"), "abcdefghij").unwrap();
            let inner = Arc::new(DefaultObjectStoreRegistry::new());
            let registry = |ledger| CountingRegistry::new(Arc::clone(&inner) as _, ledger);
            let (ledger, url) = (Arc::new(Ledger::default()), Url::parse("file:///").unwrap());
            let (one, path) = (registry(Arc::clone(&ledger)), StorePath::from_absolute_path(at("x")).unwrap());
            let read = async |registry: &CountingRegistry| {
                registry.get_store(&url).unwrap().get_ranges(&path, &[2..4, 0..1, 7..10]).await
            };
            assert_eq!(read(&one).await.unwrap(), ["23", "0", "789"]);
            assert_eq!((ledger.snapshot().read_bytes(), ledger.snapshot().needed_bytes), (6, 6));
            assert_eq!(one.get_store(&url).unwrap().head(&path).await.unwrap().size, 10);
            match is_replaced {
                true => std::fs::rename(at("new"), at("x")).unwrap(),
                false => std::fs::write(at("x"), "0123456789+").unwrap(),
            }
            let e = read(&one).await.unwrap_err();
            assert!(e.to_string().contains("it was replaced, changed or removed"), "{e}");
            assert!(one.get_store(&url).unwrap().get(&path).await.is_err());
            // Another statement sees the current file.
            assert!(read(&registry(Arc::default())).await.is_ok());
            assert!(one.get_store(&url).unwrap().list(Some(&path)).next().await.unwrap().is_err());
        }
    }
}
