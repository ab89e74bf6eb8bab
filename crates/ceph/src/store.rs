//! The store itself.
//!
//! An object's name is its file's, as it is: what `object_store` encodes in a path is part of the name. Directories are made
//! when a file is put into them, and stay when it goes; no listing of objects shows one that has none below it, other than
//! as a common prefix. An entity tag is a file's identity: no two files ever have the same, a rename keeps it.
//!
//! A copy is one, through this client: a chunk belongs to one file, which is why a file can be collected without asking who
//! else has it. A rename copies nothing.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    RenameTargetMode, Result,
};
use onehop_io::Ledger;
use onehop_io::rados::fs::{File, Id, Kind, Reader, Replace, Writer};
use onehop_io::rados::{FileSystem, Problem};

use crate::Pinned;
use crate::error::{convert, generic};
use crate::upload::{Upload, put_result};

/// Objects deleted at a time.
const DELETES: usize = 16;

/// Files of a file system as objects. What is moved is counted in its ledger.
#[derive(Clone, Debug)]
pub struct RadosStore {
    fs: FileSystem,
    ledger: Arc<Ledger>,
    pinned: Option<Pinned>,
}

impl RadosStore {
    /// A store on a file system.
    pub fn new(fs: FileSystem, ledger: Arc<Ledger>) -> Self {
        Self { fs, ledger, pinned: None }
    }

    /// A store for readers that know the names of what they read: an object stays what it was when it was first asked for,
    /// whoever replaces it; and one that has gone before that is an error, where a listing would just be empty.
    pub fn pinned(files: Pinned, ledger: Arc<Ledger>) -> Self {
        Self { fs: files.fs().clone(), ledger, pinned: Some(files) }
    }

    /// Work that waits for the cluster, where waiting holds up nobody.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Self) -> Result<T> + Send + 'static) -> Result<T> {
        let store = self.clone();
        tokio::task::spawn_blocking(move || work(&store)).await.map_err(generic)?
    }

    fn open(&self, location: &Path) -> Result<(File, ObjectMeta)> {
        let file = match &self.pinned {
            Some(files) => files.open(location.as_ref()),
            None => self.fs.open_file(location.as_ref()),
        };
        let file = file.map_err(|error| convert(location, error, true))?;
        let meta = meta(location.clone(), file.size(), file.mtime_ms(), file.id());
        Ok((file, meta))
    }

    /// Begins a file, in a directory that is made if it is missing.
    fn create(&self, location: &Path, replace: Replace) -> Result<Writer> {
        self.in_directory(location, || self.fs.create_file(location.as_ref(), replace, Arc::clone(&self.ledger)))
            .map_err(|error| convert(location, error, false))
    }

    /// What puts a file into a directory, again once the directory has been made.
    fn in_directory<T>(
        &self,
        location: &Path,
        put: impl Fn() -> onehop_io::rados::Result<T>,
    ) -> onehop_io::rados::Result<T> {
        match put() {
            Err(error) if error.problem() == Some(Problem::NotFound) => {
                let path = location.as_ref();
                self.fs.create_directory_all(path.rsplit_once('/').map_or("", |(directory, _)| directory))?;
                put()
            }
            outcome => outcome,
        }
    }

    fn put(&self, location: &Path, payload: &PutPayload, replace: Replace) -> Result<PutResult> {
        let mut writer = self.create(location, replace)?;
        let written = payload.iter().try_for_each(|bytes| writer.append(bytes));
        let entry = match written {
            Ok(()) => writer.close(),
            Err(error) => {
                writer.abort();
                Err(error)
            }
        };
        entry.map(|entry| put_result(&entry)).map_err(|error| convert(location, error, false))
    }

    fn copy(&self, from: &Path, to: &Path, replace: Replace) -> Result<()> {
        let (file, _) = self.open(from)?;
        let mut writer = self.create(to, replace)?;
        let mut reader = file.reader(0..file.size(), Arc::clone(&self.ledger));
        loop {
            let piece = match reader.next_piece() {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) => {
                    writer.abort();
                    return Err(convert(from, error, true));
                }
            };
            if let Err(error) = writer.append(&piece.bytes[piece.skip..]) {
                writer.abort();
                return Err(convert(to, error, false));
            }
        }
        writer.close().map(drop).map_err(|error| convert(to, error, false))
    }

    /// The objects in a directory, and the directories in it, both in the order of their names.
    fn list_objects(&self, directory: &Path) -> Result<(Vec<ObjectMeta>, Vec<Path>)> {
        let entries = match self.fs.list(directory.as_ref()) {
            // No object's name begins with this, or it is an object's.
            Err(error) if matches!(error.problem(), Some(Problem::NotFound | Problem::NotADirectory)) => Vec::new(),
            listed => listed.map_err(|error| convert(directory, error, true))?,
        };
        let (mut objects, mut directories) = (Vec::new(), Vec::new());
        for entry in entries {
            let path = below(directory, &entry.name)?;
            match entry.kind {
                Kind::Directory => directories.push(path),
                Kind::File => objects.push(meta(path, entry.len, entry.mtime_ms, entry.id)),
            }
        }
        Ok((objects, directories))
    }
}

fn meta(location: Path, size: u64, mtime_ms: u64, id: Id) -> ObjectMeta {
    let mtime_ms = i64::try_from(mtime_ms).unwrap_or(i64::MAX);
    let last_modified = DateTime::from_timestamp_millis(mtime_ms).unwrap_or_default();
    ObjectMeta { location, last_modified, size, e_tag: Some(id.to_string()), version: None }
}

/// The path of what is in a directory.
fn below(directory: &Path, name: &str) -> Result<Path> {
    let path = if directory.is_root() { name.to_owned() } else { format!("{directory}/{name}") };
    Path::parse(path).map_err(|source| object_store::Error::InvalidPath { source })
}

/// The pieces of a file as they come.
fn pieces(location: Path, reader: Reader) -> BoxStream<'static, Result<Bytes>> {
    stream::try_unfold(Some(reader), move |reader| {
        let location = location.clone();
        async move {
            let Some(mut reader) = reader else { return Ok(None) };
            let next = tokio::task::spawn_blocking(move || reader.next_piece().map(|piece| (piece, reader)));
            let (piece, reader) = next.await.map_err(generic)?.map_err(|error| convert(&location, error, true))?;
            Ok(piece.map(|piece| (Bytes::from(piece.bytes).slice(piece.skip..), Some(reader))))
        }
    })
    .boxed()
}

fn refuse_attributes(attributes: &Attributes) -> Result<()> {
    if attributes.is_empty() {
        return Ok(());
    }
    Err(object_store::Error::NotImplemented { operation: "put with attributes".into(), implementer: "rados".into() })
}

impl fmt::Display for RadosStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rados({})", self.fs.name())
    }
}

#[async_trait]
impl ObjectStore for RadosStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        refuse_attributes(&options.attributes)?;
        let replace = match options.mode {
            PutMode::Overwrite => Replace::File,
            PutMode::Create => Replace::Never,
            PutMode::Update(version) => {
                let tag = version.e_tag.as_deref().ok_or_else(|| generic("an update needs the entity tag"))?;
                Replace::Only(Id::parse(tag).ok_or_else(|| object_store::Error::Precondition {
                    path: location.to_string(),
                    source: format!("{tag} is the entity tag of no file").into(),
                })?)
            }
        };
        let location = location.clone();
        self.blocking(move |store| store.put(&location, &payload, replace)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        refuse_attributes(&options.attributes)?;
        let target = location.clone();
        let writer = self.blocking(move |store| store.create(&target, Replace::File)).await?;
        Ok(Box::new(Upload::start(location.clone(), writer)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let target = location.clone();
        self.blocking(move |store| {
            let (file, meta) = store.open(&target)?;
            options.check_preconditions(&meta)?;
            let range = match &options.range {
                Some(range) => range.as_range(meta.size).map_err(generic)?,
                None => 0..meta.size,
            };
            let payload = if options.head {
                stream::empty().boxed()
            } else {
                store.ledger.needed(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
                pieces(target, file.reader(range.clone(), Arc::clone(&store.ledger)))
            };
            Ok(GetResult { payload: GetResultPayload::Stream(payload), meta, range, attributes: Attributes::default() })
        })
        .await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (target, ranges) = (location.clone(), ranges.to_vec());
        self.blocking(move |store| {
            let (file, meta) = store.open(&target)?;
            if let Some(beyond) = ranges.iter().find(|range| range.end > meta.size || range.start > range.end) {
                return Err(generic(format!("{target} has {} bytes, and {beyond:?} were asked for", meta.size)));
            }
            let read = file.read_ranges(&ranges, &store.ledger).map_err(|error| convert(&target, error, true))?;
            store.ledger.needed(read.iter().map(Vec::len).sum());
            Ok(read.into_iter().map(Bytes::from).collect())
        })
        .await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |location: Result<Path>| {
            let store = store.clone();
            async move {
                let location = location?;
                let delete = move |store: &Self| match store.fs.remove_file(location.as_ref()) {
                    Ok(()) => Ok(location),
                    Err(error) => Err(convert(&location, error, true)),
                };
                store.blocking(delete).await
            }
        };
        locations.map(delete).buffered(DELETES).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if let (Some(_), Some(location)) = (&self.pinned, prefix) {
            let source = "it was removed while it was read".into();
            return stream::iter([Err(object_store::Error::NotFound { path: location.to_string(), source })]).boxed();
        }
        // Directories that are still to be listed, the next one last.
        let walk = (self.clone(), vec![prefix.cloned().unwrap_or_default()]);
        let objects = stream::try_unfold(walk, |(store, mut directories)| async move {
            let Some(directory) = directories.pop() else { return Ok::<_, object_store::Error>(None) };
            let (objects, below) = store.blocking(move |store| store.list_objects(&directory)).await?;
            directories.extend(below.into_iter().rev());
            Ok(Some((stream::iter(objects.into_iter().map(Ok)), (store, directories))))
        });
        objects.try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        let (objects, common_prefixes) = self.blocking(move |store| store.list_objects(&prefix)).await?;
        Ok(ListResult { common_prefixes, objects })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let replace = match options.mode {
            CopyMode::Overwrite => Replace::File,
            CopyMode::Create => Replace::Never,
        };
        let (from, to) = (from.clone(), to.clone());
        self.blocking(move |store| store.copy(&from, &to, replace)).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let replace = match options.target_mode {
            RenameTargetMode::Overwrite => Replace::File,
            RenameTargetMode::Create => Replace::Never,
        };
        let (from, to) = (from.clone(), to.clone());
        self.blocking(move |store| {
            // A directory is no object.
            store.open(&from)?;
            let rename = || store.fs.rename(from.as_ref(), to.as_ref(), replace);
            store.in_directory(&to, rename).map_err(|error| convert(&to, error, false))
        })
        .await
    }
}
