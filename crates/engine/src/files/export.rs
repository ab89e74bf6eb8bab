//! Files that a statement writes. An export is atomic: the complete file gets its name, or none
//! does.
//!
//! 1. Data is written to a temporary name in the target's directory ([`Aside`]). It is created
//!    before the query starts, so that a failure is reported at that point.
//! 2. At the end the bytes are synced, the temporary name is renamed to the target in one step, and
//!    the directory is synced.
//! 3. Dropping an [`Export`] before that removes the temporary file. An existing target file is
//!    unchanged. If a process is killed earlier, the next export to the directory removes its
//!    remains.
//!
//! On a cluster a file or directory becomes visible when it is closed, so neither has a temporary
//! name. Step 2 closes it. Missing parent directories are created there, and stay.
//!
//! Pipes and devices (`/dev/stdout`) have no such name and are written to directly. DataFusion's
//! encoders write to object stores, so the target is an object store that is registered for the
//! statement. A thread of its own writes each of its objects front to back. The first refusal of
//! the operating system is kept in the original words, which encoders lose.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind as IoErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path as StorePath;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, UploadPart,
};
use onehop_io::rados::fs::{Replace, TreeWriter, Writer};
use onehop_io::rados::{self, FileSystem, Problem};
use onehop_io::{Ledger, Operation};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use url::Url;

use super::aside::Aside;
use super::site::{self, Site};
use super::store::count_write;
use super::{Sites, absolute, blocking};
use crate::task::spawn_blocking;
use crate::{Error, ErrorKind, Result};

/// Streams of the process, whatever they are redirected to.
const STANDARD: [&str; 2] = ["/dev/stdout", "/dev/stderr"];

/// The URL scheme of an export's store.
const SCHEME: &str = "onehop-export";

/// A target that is being written.
#[derive(Debug)]
pub(crate) struct Export {
    target: Arc<Shared>,
}

/// The kind of the target.
#[derive(Debug)]
enum Place {
    File {
        aside: Aside,
        target: PathBuf,
    },
    /// Several files, in a directory without other files.
    Directory {
        aside: Aside,
        target: PathBuf,
    },
    /// A pipe or a device.
    Stream,
    /// A file of a cluster.
    ClusterFile,
    /// Several files, in a directory of a cluster.
    ClusterDirectory {
        fs: FileSystem,
        target: String,
    },
}

/// The destination of an object.
#[derive(Debug)]
enum Sink {
    File(File),
    Cluster(Box<Writer>),
}

#[derive(Debug)]
struct Shared {
    /// The target as written in the statement, for messages.
    name: String,
    place: Place,
    ledger: Arc<Ledger>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The only file, until its writer takes it.
    sink: Option<Sink>,
    /// The only file of a cluster, once it is completely written.
    whole: Option<Box<Writer>>,
    /// The directory of a cluster that has no name yet.
    tree: Option<Arc<TreeWriter>>,
    /// True if the target is committed or abandoned. A late task then creates nothing.
    is_over: bool,
    refused: Option<Error>,
}

impl Export {
    /// Prepares to write `path`. A path that ends in a slash is a directory. A path in `database`
    /// is refused.
    pub async fn start(path: &str, database: Option<&Path>, sites: Arc<Sites>, ledger: Arc<Ledger>) -> Result<Self> {
        if path.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "the path to write to is empty"));
        }
        let (path, database) = (path.to_string(), database.map(Path::to_path_buf));
        let start = move || {
            let (site, path) = sites.resolve(&path)?;
            let name = site.shown(&path);
            let (place, state) = match &site {
                Site::Local => local_place(&path, database.as_deref())?,
                Site::Cluster { files, .. } => cluster_place(files.fs(), &path, &name, &ledger)?,
            };
            let state = Mutex::new(state);
            Ok(Self { target: Arc::new(Shared { name, place, ledger, state }) })
        };
        blocking(start).await?
    }

    /// Returns the store to write to, and the URL in it.
    pub fn store(&self) -> Result<(Url, Arc<dyn ObjectStore>)> {
        let is_directory = matches!(self.target.place, Place::Directory { .. } | Place::ClusterDirectory { .. });
        let object = if is_directory { "files/" } else { "file.out" };
        let url = Url::parse(&format!("{SCHEME}://target/{object}"));
        let url = url.map_err(|e| Error::new(ErrorKind::Internal, "a target has no URL").with_source(e))?;
        Ok((url, Arc::new(TargetStore(Arc::clone(&self.target)))))
    }

    /// Returns the URL of the only file of a directory to which no rows are written.
    pub fn file_without_rows(&self, extension: &str) -> Result<Option<Url>> {
        if !matches!(self.target.place, Place::Directory { .. } | Place::ClusterDirectory { .. }) {
            return Ok(None);
        }
        let url = Url::parse(&format!("{SCHEME}://target/files/none_0.{extension}"));
        url.map(Some).map_err(|e| Error::new(ErrorKind::Internal, "a target has no URL").with_source(e))
    }

    /// Returns and clears the refusal of the operating system or the cluster, if there was one. It
    /// is the cause of later failures.
    pub fn refusal(&self) -> Option<Error> {
        self.target.state().refused.take()
    }

    /// Replaces the target by the written data.
    pub async fn commit(self) -> Result<()> {
        blocking(move || self.commit_blocking()).await?
    }

    fn commit_blocking(self) -> Result<()> {
        let name = &self.target.name;
        let failed = |operation| move |e: io::Error| refused(operation, name, e);
        match &self.target.place {
            Place::Stream => self.target.state().is_over = true,
            Place::File { aside, target } | Place::Directory { aside, target } => {
                if matches!(self.target.place, Place::Directory { .. }) {
                    sync_directory(aside.path()).map_err(failed(Operation::Sync))?;
                }
                fs::rename(aside.path(), target).map_err(failed(Operation::Rename))?;
                self.target.state().is_over = true;
                sync_directory(target.parent().unwrap_or(Path::new("/"))).map_err(failed(Operation::Sync))?;
            }
            Place::ClusterFile => {
                let whole = self.target.state().whole.take();
                let whole = whole.ok_or_else(|| Error::new(ErrorKind::Internal, "a file ends that was not written"))?;
                whole.close().map_err(|e| failed(Operation::Write)(e.into()))?;
            }
            Place::ClusterDirectory { fs, target } => {
                // Other references are those of late tasks.
                let tree = self.target.state().tree.take().and_then(Arc::into_inner);
                let tree =
                    tree.ok_or_else(|| Error::new(ErrorKind::Internal, "a directory ends that is written to"))?;
                // An empty directory is replaced.
                let emptied = match fs.remove_directory(target) {
                    Err(e) if e.problem() != Some(Problem::NotFound) => Err(e),
                    _ => Ok(()),
                };
                let made = match emptied {
                    Ok(()) => tree.close(),
                    Err(e) => {
                        tree.abort();
                        Err(e)
                    }
                };
                made.map_err(|e| match e.problem() {
                    Some(Problem::Exists | Problem::NotEmpty) => not_empty(name),
                    _ => failed(Operation::Create)(e.into()),
                })?;
            }
        }
        Ok(())
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let mut state = self.target.state();
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        // There is no caller to report an error to. A temporary name that stays is hidden.
        match &self.target.place {
            Place::File { aside, .. } | Place::Directory { aside, .. } => aside.remove(),
            Place::Stream => {}
            Place::ClusterFile => {
                let writers = [state.whole.take(), state.sink.take().and_then(Sink::of_cluster)];
                writers.into_iter().flatten().for_each(|writer| later(move || writer.abort()));
            }
            Place::ClusterDirectory { .. } => {
                if let Some(tree) = state.tree.take().and_then(Arc::into_inner) {
                    later(move || tree.abort());
                }
            }
        }
    }
}

/// Cleans up on a cluster, which may not respond, without a waiting caller. The cluster's garbage
/// collector finds the rest.
fn later(work: impl FnOnce() + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn_blocking(work);
    }
}

impl Sink {
    fn of_cluster(self) -> Option<Box<Writer>> {
        match self {
            Self::File(_) => None,
            Self::Cluster(writer) => Some(writer),
        }
    }
}

/// Syncs a directory. A directory that is writable but not readable cannot be opened for that.
fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Err(e) if e.kind() == IoErrorKind::PermissionDenied => Ok(()),
        opened => opened?.sync_all(),
    }
}

/// Returns the error of a refused operation, with a hint.
fn refused(operation: Operation, name: &str, e: io::Error) -> Error {
    let hint = match e.kind() {
        IoErrorKind::StorageFull | IoErrorKind::QuotaExceeded => "make room there, or write somewhere else",
        IoErrorKind::NotFound => "COPY makes no directories: make it first",
        IoErrorKind::PermissionDenied => "the file and its directory have to be writable for the user that runs this",
        _ => return site::refused(operation, name, e),
    };
    site::refused(operation, name, e).with_hint(hint)
}

/// Checks the target on a cluster, and creates its writer.
fn cluster_place(fs: &FileSystem, path: &str, name: &str, ledger: &Arc<Ledger>) -> Result<(Place, State)> {
    let failed = |e: rados::Error| refused(Operation::Create, name, e.into());
    let target = path.trim_end_matches('/');
    let Some((parent, _)) = target.rsplit_once('/') else {
        let error = Error::new(ErrorKind::Invalid, format!("cannot write '{name}': it is the root of a file system"));
        return Err(error.with_hint("name a file or a directory in it"));
    };
    fs.create_directory_all(parent).map_err(failed)?;
    if path.ends_with('/') {
        match fs.list_page(path, None) {
            Ok(page) if page.entries.is_empty() => {}
            Err(e) if e.problem() == Some(Problem::NotFound) => {}
            Ok(_) => return Err(not_empty(name)),
            Err(e) => return Err(failed(e)),
        }
        let tree = Some(Arc::new(fs.create_tree(target).map_err(failed)?));
        let place = Place::ClusterDirectory { fs: fs.clone(), target: target.to_string() };
        return Ok((place, State { tree, ..State::default() }));
    }
    let writer = fs.create_file(path, Replace::File, Arc::clone(ledger));
    let writer = writer.map_err(|e| match e.problem() {
        Some(Problem::IsADirectory) => is_a_directory(name),
        _ => failed(e),
    })?;
    Ok((Place::ClusterFile, State { sink: Some(Sink::Cluster(Box::new(writer))), ..State::default() }))
}

fn is_a_directory(name: &str) -> Error {
    let error = Error::new(ErrorKind::Io, format!("cannot write '{name}': it is a directory"));
    error.with_hint("to make a directory of several files, name a new one with a slash at its end")
}

fn not_empty(name: &str) -> Error {
    let error = Error::new(ErrorKind::AlreadyExists, format!("cannot write '{name}': the directory is not empty"));
    error.with_hint("COPY makes a directory as a whole: name a new one, or an empty one")
}

/// Checks the target, and creates the temporary file or directory.
fn local_place(name: &str, database: Option<&Path>) -> Result<(Place, State)> {
    let of = |file: Option<File>| State { sink: file.map(Sink::File), ..State::default() };
    let failed = |e: io::Error| refused(Operation::Create, name, e);
    let is_directory = name.ends_with('/');
    let existing = match fs::metadata(name) {
        Ok(metadata) => Some(metadata),
        Err(e) if e.kind() == IoErrorKind::NotFound => None,
        Err(e) => return Err(failed(e)),
    };
    if let Some(existing) = existing.as_ref().filter(|_| !is_directory) {
        if existing.is_dir() {
            return Err(is_a_directory(name));
        }
        if !existing.is_file() || STANDARD.contains(&name) {
            return Ok((Place::Stream, of(Some(stream(name, existing.file_type()).map_err(failed)?))));
        }
        // The rename would replace the file even if it is not writable.
        OpenOptions::new().write(true).open(name).map_err(failed)?;
    }
    let is_link = fs::symlink_metadata(name).is_ok_and(|metadata| metadata.is_symlink());
    let target = match existing.is_some() && is_link {
        true => Path::new(name).canonicalize(),
        false => absolute(Path::new(name)),
    };
    let target = target.map_err(failed)?;
    refuse_database(name, &target, database)?;
    if !is_directory {
        let (aside, file) = Aside::file(&target).map_err(failed)?;
        if let Some(existing) = existing
            && let Err(e) = file.set_permissions(existing.permissions())
        {
            aside.remove();
            return Err(failed(e));
        }
        return Ok((Place::File { aside, target }, of(Some(file))));
    }
    if existing.is_some() && fs::read_dir(&target).map_err(failed)?.next().is_some() {
        return Err(not_empty(name));
    }
    let aside = Aside::directory(&target).map_err(failed)?;
    Ok((Place::Directory { aside, target }, of(None)))
}

fn stream(name: &str, kind: fs::FileType) -> io::Result<File> {
    // The descriptor shares the position of a redirected stream with other output.
    match name {
        "/dev/stdout" => return Ok(io::stdout().as_fd().try_clone_to_owned()?.into()),
        "/dev/stderr" => return Ok(io::stderr().as_fd().try_clone_to_owned()?.into()),
        _ => {}
    }
    if kind.is_block_device() || kind.is_socket() {
        return Err(io::Error::new(IoErrorKind::InvalidInput, "it is a disk or a socket"));
    }
    // Opening a pipe without a reader would block forever. With this flag it fails.
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let file = OpenOptions::new().append(true).custom_flags(flags as i32).open(name)?;
    let plain = rustix::fs::fcntl_getfl(&file)? - rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&file, plain)?;
    Ok(file)
}

/// Refuses a target in a database's directory. The database would take the file for its own, or
/// lose one of its own.
fn refuse_database(name: &str, target: &Path, database: Option<&Path>) -> Result<()> {
    let Some(database) = database.and_then(|path| path.canonicalize().ok()) else { return Ok(()) };
    if !target.starts_with(&database) {
        return Ok(());
    }
    let message = format!("cannot write '{name}': it is in the directory of the database");
    Err(Error::new(ErrorKind::Invalid, message).with_hint("write somewhere else: that directory is the database's own"))
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, operation: Operation, e: io::Error) -> object_store::Error {
        let refused = refused(operation, &self.name, e);
        let source = refused.message().into();
        self.state().refused.get_or_insert(refused);
        object_store::Error::Generic { store: "export", source }
    }

    /// Creates the destination of an object.
    fn create(&self, location: &StorePath) -> io::Result<Sink> {
        // The name is random letters, a number, and an extension. The number is sufficient.
        let object = location.filename().unwrap_or_default();
        let part = format!("part-{}", object.split_once('_').map_or(object, |(_, part)| part));
        // The lock is held during creation, so that a thread that abandons the target finds the
        // file.
        let mut state = self.state();
        // After a refusal each further file would only take time to be refused as well.
        if state.is_over || state.refused.is_some() {
            return Err(io::Error::other("the export has ended"));
        }
        match &self.place {
            Place::File { .. } | Place::Stream | Place::ClusterFile => {
                state.sink.take().ok_or_else(|| io::Error::other("a second file for one target"))
            }
            Place::Directory { aside, .. } => {
                Ok(Sink::File(OpenOptions::new().write(true).create_new(true).open(aside.path().join(part))?))
            }
            Place::ClusterDirectory { .. } => {
                let tree = state.tree.clone().ok_or_else(|| io::Error::other("the export has ended"))?;
                // A thread that abandons the target must not wait for a cluster.
                drop(state);
                Ok(Sink::Cluster(Box::new(tree.create_file(&part, Arc::clone(&self.ledger))?)))
            }
        }
    }

    fn write(&self, sink: &mut Sink, data: &PutPayload) -> object_store::Result<()> {
        for bytes in data.iter() {
            match sink {
                Sink::File(file) => {
                    file.write_all(bytes).map_err(|e| self.refuse(Operation::Write, e))?;
                    count_write(&self.ledger, bytes.len());
                }
                // The cluster's writer counts its own bytes.
                Sink::Cluster(writer) => {
                    writer.append(bytes).map_err(|e| self.refuse(Operation::Write, e.into()))?;
                }
            }
        }
        Ok(())
    }

    fn finish(&self, sink: Sink) -> object_store::Result<()> {
        match sink {
            Sink::File(_) if matches!(self.place, Place::Stream) => Ok(()),
            Sink::File(file) => file.sync_all().map_err(|e| self.refuse(Operation::Sync, e)),
            // The file becomes visible at the commit.
            Sink::Cluster(writer) if matches!(self.place, Place::ClusterFile) => {
                let mut state = self.state();
                if state.is_over {
                    drop(state);
                    writer.abort();
                } else {
                    state.whole = Some(writer);
                }
                Ok(())
            }
            Sink::Cluster(writer) => writer.close().map(drop).map_err(|e| self.refuse(Operation::Write, e.into())),
        }
    }

    /// Writes parts in order until the channel is closed.
    fn write_parts(&self, location: &StorePath, parts: mpsc::Receiver<Part>) -> object_store::Result<()> {
        let mut sink = self.create(location).map_err(|e| self.refuse(Operation::Create, e))?;
        for part in parts {
            let written = self.write(&mut sink, &part.data);
            let is_refused = written.is_err();
            // A receiver that is gone has abandoned the target.
            let _ = part.written.send(written);
            if is_refused {
                if let Sink::Cluster(writer) = sink {
                    writer.abort();
                }
                return Err(gone());
            }
        }
        self.finish(sink)
    }
}

/// The target as an object store for encoders.
#[derive(Debug)]
struct TargetStore(Arc<Shared>);

impl fmt::Display for TargetStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

fn gone() -> object_store::Error {
    object_store::Error::Generic { store: "export", source: "the writer has ended".into() }
}

fn not_there(operation: &str) -> object_store::Error {
    object_store::Error::NotImplemented { operation: operation.into(), implementer: "export".into() }
}

#[async_trait]
impl ObjectStore for TargetStore {
    async fn put_opts(
        &self,
        location: &StorePath,
        payload: PutPayload,
        _options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let mut upload = Upload::start(Arc::clone(&self.0), location.clone());
        upload.put_part(payload).await?;
        upload.complete().await
    }

    async fn put_multipart_opts(
        &self,
        location: &StorePath,
        _options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Upload::start(Arc::clone(&self.0), location.clone())))
    }

    async fn get_opts(&self, _location: &StorePath, _options: GetOptions) -> object_store::Result<GetResult> {
        Err(not_there("get"))
    }

    fn delete_stream(
        &self,
        _locations: BoxStream<'static, object_store::Result<StorePath>>,
    ) -> BoxStream<'static, object_store::Result<StorePath>> {
        futures::stream::iter([Err(not_there("delete"))]).boxed()
    }

    fn list(&self, _prefix: Option<&StorePath>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        futures::stream::iter([Err(not_there("list"))]).boxed()
    }

    async fn list_with_delimiter(&self, _prefix: Option<&StorePath>) -> object_store::Result<ListResult> {
        Err(not_there("list"))
    }

    async fn copy_opts(&self, _: &StorePath, _: &StorePath, _: CopyOptions) -> object_store::Result<()> {
        Err(not_there("copy"))
    }
}

struct Part {
    data: PutPayload,
    written: oneshot::Sender<object_store::Result<()>>,
}

/// The upload of one object to its file.
#[derive(Debug)]
struct Upload {
    parts: Option<mpsc::Sender<Part>>,
    writer: Option<JoinHandle<object_store::Result<()>>>,
}

impl Upload {
    fn start(target: Arc<Shared>, location: StorePath) -> Self {
        let (parts, incoming) = mpsc::channel();
        let writer = spawn_blocking(move || target.write_parts(&location, incoming));
        Self { parts: Some(parts), writer: Some(writer) }
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        // The caller limits the number of concurrent parts.
        let (written, outcome) = oneshot::channel();
        let is_sent = self.parts.as_ref().is_some_and(|parts| parts.send(Part { data, written }).is_ok());
        Box::pin(async move { if is_sent { outcome.await.unwrap_or_else(|_| Err(gone())) } else { Err(gone()) } })
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        self.parts = None;
        let Some(writer) = self.writer.take() else { return Err(gone()) };
        writer.await??;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.parts = None;
        Ok(())
    }
}
