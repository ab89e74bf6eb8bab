//! Object stores with a ledger: what DataFusion reads of files is counted where it crosses.
//!
//! A registry belongs to one statement, and so do the stores that are registered with it: see
//! [`export`](super::export).

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::execution::object_store::ObjectStoreRegistry;
use futures::stream::BoxStream;
use object_store::path::Path as StorePath;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, UploadPart,
};
use onehop_io::{Hop, Ledger};
use url::Url;

/// Gives out the local file system with a ledger, and what was registered for this statement.
#[derive(Debug)]
pub(crate) struct CountingRegistry {
    inner: Arc<dyn ObjectStoreRegistry>,
    ledger: Arc<Ledger>,
    /// By scheme.
    own: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

impl CountingRegistry {
    pub fn new(inner: Arc<dyn ObjectStoreRegistry>, ledger: Arc<Ledger>) -> Self {
        Self { inner, ledger, own: Mutex::default() }
    }
}

impl ObjectStoreRegistry for CountingRegistry {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).insert(url.scheme().to_string(), store)
    }

    fn deregister_store(&self, url: &Url) -> datafusion::common::Result<Arc<dyn ObjectStore>> {
        self.inner.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> datafusion::common::Result<Arc<dyn ObjectStore>> {
        if let Some(own) = self.own.lock().unwrap_or_else(PoisonError::into_inner).get(url.scheme()) {
            return Ok(Arc::clone(own));
        }
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
        self.ledger.needed(bytes);
        self.ledger.moved(Hop::StorageToHost, bytes);
        self.ledger.moved(Hop::HostToHost, bytes);
    }
}

pub(super) fn count_write(ledger: &Ledger, bytes: usize) {
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
