//! The location of files: the local file system, or a Ceph cluster.
//!
//! A statement names a file on a cluster by a URL, `rados://POOL[.NAMESPACE]/PATH`. Every other
//! path is a local one. Patterns, directories and formats are the same in both places. An operation
//! on a cluster may take as long as the setting `ceph.timeout`. All functions here block like disk
//! I/O, and are called from threads that may block.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::catalog::Session as DataFusionSession;
use datafusion::datasource::listing::ListingTableUrl;
use onehop_ceph::{Authority, Connections, Location, Pinned, RadosStore, SCHEME};
use onehop_files::Input;
use onehop_io::rados::fs::Kind;
use onehop_io::rados::{self, ClusterOptions, Code, FileSystem};
use onehop_io::{Hop, Ledger, Operation};
use url::Url;

use super::absolute;
use crate::error::causes;
use crate::query::Query;
use crate::rights::Rights;
use crate::settings::Settings;
use crate::{Error, ErrorKind, Result};

/// The sites that a statement's files can be on.
#[derive(Debug)]
pub(crate) struct Sites {
    connections: Arc<Connections>,
    options: ClusterOptions,
    rights: Rights,
    /// The statement, which records the files that it requests.
    query: Option<Arc<Query>>,
    /// The file systems in use. A statement sees each file in the state of its first access.
    pinned: Mutex<HashMap<Authority, Pinned>>,
}

/// A site of files. Its paths are absolute, or those of the local file system.
#[derive(Clone)]
pub(crate) enum Site {
    Local,
    Cluster {
        /// The part of the statement's path before the path on the cluster.
        root: String,
        /// The same as a DataFusion URL, which identifies the store.
        url: Url,
        files: Pinned,
    },
}

/// The properties of a path before it is opened.
pub(super) struct Stat {
    pub bytes: u64,
    pub kind: StatKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StatKind {
    File,
    Directory,
    /// A pipe or a device.
    Other,
}

/// An entry of a directory.
pub(super) struct DirectoryEntry {
    pub name: String,
    /// False for links to directories.
    pub is_directory: bool,
}

impl Sites {
    pub fn new(connections: Arc<Connections>, settings: &Settings) -> Self {
        let (options, rights) = (settings.ceph(), settings.rights());
        Self { connections, options, rights, query: None, pinned: Mutex::default() }
    }

    /// Returns the sites for a statement.
    pub fn of_query(self, query: &Arc<Query>) -> Self {
        Self { query: Some(Arc::clone(query)), ..self }
    }

    /// Records a file that the statement requested but may not have, or that does not exist.
    pub(super) fn wanted(&self, path: &str) {
        if let Some(query) = &self.query {
            query.reads_file(path);
        }
    }

    /// Returns the sites of a statement's state.
    pub fn of(state: &dyn DataFusionSession) -> Result<Arc<Self>> {
        let sites = state.config().get_extension::<Self>();
        sites.ok_or_else(|| Error::new(ErrorKind::Internal, "a state that knows no files"))
    }

    /// Resolves a path of a statement to a site and a path on it. Connects to the cluster.
    pub fn resolve(&self, path: &str) -> Result<(Site, String)> {
        self.rights.need(Rights::Admin, "a file")?;
        let Some((scheme, _)) = path.split_once("://") else { return Ok((Site::Local, path.to_string())) };
        match scheme {
            "file" => {
                let local = Url::parse(path).ok().and_then(|url| url.to_file_path().ok());
                let local = local.and_then(|path| path.into_os_string().into_string().ok());
                let local = local.ok_or_else(|| {
                    let error = Error::new(ErrorKind::Invalid, format!("'{path}' is not the URL of a local file"));
                    error.with_hint("use a plain path")
                })?;
                Ok((Site::Local, local))
            }
            SCHEME => {
                let location = Location::parse(path).map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
                // Scans find files by URLs, which cannot have control characters. Some URL parsers
                // drop them.
                if path.chars().any(char::is_control) {
                    let message = format!("cannot use '{}': it has a control character", path.escape_debug());
                    return Err(
                        Error::new(ErrorKind::Invalid, message).with_hint("`onehop rados mv` gives it another name")
                    );
                }
                let files = self.files(&location.authority)?;
                let url = Url::parse(&location.authority.to_string());
                let url = url.map_err(|e| Error::new(ErrorKind::Internal, "a pool has no URL").with_source(e))?;
                let root = path.strip_suffix(&location.path).unwrap_or(path).to_string();
                Ok((Site::Cluster { root, url, files }, location.path))
            }
            _ => {
                let message =
                    format!("cannot use '{path}': {scheme} is not a place that files are read from or written to");
                Err(Error::new(ErrorKind::Invalid, message).with_hint("use local paths, or rados://POOL/PATH"))
            }
        }
    }

    fn files(&self, authority: &Authority) -> Result<Pinned> {
        let known = || self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(files) = known().get(authority) {
            return Ok(files.clone());
        }
        let fs = self.file_system(authority)?;
        Ok(known().entry(authority.clone()).or_insert_with(|| Pinned::new(fs)).clone())
    }

    /// Returns the live file system of a cluster, not pinned. Connects to the cluster.
    pub fn file_system(&self, authority: &Authority) -> Result<FileSystem> {
        self.connections.file_system(&self.options, authority).map_err(|e| self.refuse(e))
    }

    fn refuse(&self, e: onehop_ceph::NotMounted) -> Error {
        let hint = match (&e.source, &self.options.conf) {
            (rados::Error::Corrupt { .. }, _) => Some("see `ceph health detail`".into()),
            (rados::Error::Unknown { .. }, _) => Some("use a newer version".into()),
            (rados::Error::Object { code: Code::NOT_FOUND, .. }, _) => {
                Some(format!("`onehop rados mkfs {} --data POOL` makes a file system", e.authority))
            }
            // The cluster was found, and its message is sufficient.
            (rados::Error::Object { .. }, _) => None,
            (_, Some(conf)) => Some(format!("ceph.conf is {}", conf.display())),
            (_, None) => Some(match std::env::var_os("CEPH_CONF").filter(|conf| !conf.is_empty()) {
                Some(conf) => format!("CEPH_CONF is {}; SET \"ceph.conf\" overrides it", conf.display()),
                None => "SET \"ceph.conf\" says where the cluster's configuration is".into(),
            }),
        };
        let kind = match &e.source {
            // The superblock is missing, so there is no file system.
            rados::Error::Object { code: Code::NOT_FOUND, .. } => ErrorKind::NotFound,
            other => Error::from(other.clone()).kind(),
        };
        let error = Error::new(kind, e.to_string()).with_source(e);
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

impl Site {
    /// Returns whether both are the same file system.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local, Self::Local) => true,
            (Self::Cluster { url, .. }, Self::Cluster { url: other, .. }) => url == other,
            _ => false,
        }
    }

    /// Returns a path as the statement would write it.
    pub fn shown(&self, path: &str) -> String {
        match self {
            Self::Local => path.to_string(),
            Self::Cluster { root, .. } => format!("{root}{path}"),
        }
    }

    /// Returns the properties of a path. Follows links.
    pub(super) fn stat(&self, path: &str) -> io::Result<Stat> {
        match self {
            Self::Local => {
                let metadata = fs::metadata(path)?;
                let kind = match metadata.file_type() {
                    kind if kind.is_file() => StatKind::File,
                    kind if kind.is_dir() => StatKind::Directory,
                    _ => StatKind::Other,
                };
                Ok(Stat { bytes: metadata.len(), kind })
            }
            Self::Cluster { files, .. } => {
                let entry = files.fs().stat(path)?;
                let kind = match entry.kind {
                    Kind::File => StatKind::File,
                    Kind::Directory => StatKind::Directory,
                };
                Ok(Stat { bytes: entry.len, kind })
            }
        }
    }

    /// Returns the entries of a directory, sorted by name.
    pub(super) fn entries(&self, directory: &str) -> io::Result<Vec<DirectoryEntry>> {
        match self {
            Self::Local => {
                let mut entries = Vec::new();
                for entry in fs::read_dir(directory)? {
                    let entry = entry?;
                    // Paths are SQL strings, so a name that is not UTF-8 cannot occur in one.
                    if let Ok(name) = entry.file_name().into_string() {
                        entries.push(DirectoryEntry { name, is_directory: entry.file_type()?.is_dir() });
                    }
                }
                entries.sort_by(|a, b| a.name.cmp(&b.name));
                Ok(entries)
            }
            Self::Cluster { files, .. } => {
                let entries = files.fs().list(directory)?.into_iter();
                let entry = |entry: rados::fs::Entry| DirectoryEntry {
                    is_directory: entry.kind == Kind::Directory,
                    name: entry.name,
                };
                Ok(entries.map(entry).collect())
            }
        }
    }

    /// Opens a file for reading from its beginning, with reads counted in a ledger.
    pub fn open(&self, path: &str, ledger: Option<Arc<Ledger>>) -> io::Result<Box<dyn Read + Send>> {
        let reader: Box<dyn Read + Send> = match self {
            Self::Local => Box::new(File::open(path)?),
            Self::Cluster { files, .. } => {
                let file = files.open(path)?;
                Box::new(file.reader(0..file.size(), ledger.clone().unwrap_or_default()))
            }
        };
        let count: fn(&Ledger, usize) = match self {
            Self::Local => count_buffered,
            // The cluster's reader counts the bytes that it moves.
            Self::Cluster { .. } => Ledger::needed,
        };
        Ok(Box::new(Counted { reader, ledger, count }))
    }

    /// Returns the URL by which DataFusion finds a file, whatever characters its name has.
    pub fn url_of(&self, path: &str) -> Result<ListingTableUrl> {
        let refused = |reason: String| {
            let message = format!("cannot read '{}': {reason}", self.shown(path));
            Error::new(ErrorKind::Invalid, message)
                .with_hint("rename the file, or read it through a link with another name")
        };
        let url = match self {
            Self::Local => {
                let path = absolute(path.as_ref()).map_err(|e| onehop_io::Error::new(Operation::Open, path, e))?;
                Url::from_file_path(&path).map_err(|()| refused("its path is not one".into()))?
            }
            Self::Cluster { url, .. } => {
                let mut url = url.clone();
                let names = path.split('/').filter(|name| !name.is_empty());
                url.path_segments_mut().map_err(|()| refused("its path is not one".into()))?.extend(names);
                url
            }
        };
        let found = ListingTableUrl::try_new(url, None).map_err(|e| refused(Error::from(e).message().to_string()))?;
        // A name that a URL parser has changed would be another file's name.
        match self {
            Self::Cluster { .. } if found.prefix().as_ref() != path.trim_matches('/') => {
                Err(refused("its name cannot be part of a URL".into()))
            }
            _ => Ok(found),
        }
    }

    /// Opens a file for reading by position, with reads counted in a ledger.
    pub(super) fn input(&self, path: &str, ledger: Option<Arc<Ledger>>) -> io::Result<Arc<dyn Input>> {
        Ok(match self {
            Self::Local => Arc::new(LocalInput { file: File::open(path)?, ledger }),
            Self::Cluster { files, .. } => {
                Arc::new(ClusterInput { file: files.open(path)?, ledger: ledger.unwrap_or_default() })
            }
        })
    }

    /// Registers the site's store, so that a statement's scans find the files.
    pub fn register(&self, state: &dyn DataFusionSession, ledger: Arc<Ledger>) {
        if let Self::Cluster { url, files, .. } = self {
            state.runtime_env().register_object_store(url, Arc::new(RadosStore::pinned(files.clone(), ledger)));
        }
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Cluster { root, .. } => root,
        })
    }
}

/// Returns the error of a refusal by the operating system or the cluster, with the file's name in
/// the statement.
pub(super) fn refused(operation: Operation, name: &str, e: io::Error) -> Error {
    match of_cluster(&e).cloned() {
        Some(e) => refused_by_cluster(operation, name, &e),
        None => onehop_io::Error::new(operation, name, e).into(),
    }
}

/// Returns the error in the cluster's own words, without a name that the statement does not know.
pub(crate) fn refused_by_cluster(operation: Operation, name: &str, e: &rados::Error) -> Error {
    let reason = match e {
        rados::Error::Path { problem, .. } => problem.to_string(),
        _ => e.to_string(),
    };
    let kind = Error::from(e.clone()).kind();
    Error::new(kind, format!("cannot {operation} '{name}': {reason}")).with_source(e.clone())
}

/// Returns the cluster's error, if it is the cause of an error.
pub(super) fn of_cluster<'a>(e: &'a (dyn std::error::Error + 'static)) -> Option<&'a rados::Error> {
    causes(e).find_map(|e| {
        // The inner error of an I/O error is not its source.
        let inner = e.downcast_ref::<io::Error>().and_then(|e| e.get_ref()).and_then(|e| e.downcast_ref());
        inner.or_else(|| e.downcast_ref())
    })
}

/// Counts bytes that pass through the page cache, which adds a copy.
pub(super) fn count_buffered(ledger: &Ledger, bytes: usize) {
    ledger.read_op();
    ledger.needed(bytes);
    ledger.moved(Hop::StorageToHost, bytes);
    ledger.moved(Hop::HostToHost, bytes);
}

/// A local file.
struct LocalInput {
    file: File,
    ledger: Option<Arc<Ledger>>,
}

impl Input for LocalInput {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        Input::read_exact_at(&self.file, offset, buffer)?;
        if let Some(ledger) = &self.ledger {
            count_buffered(ledger, buffer.len());
        }
        Ok(())
    }
}

/// A file of a cluster, which counts the bytes that it moves.
struct ClusterInput {
    file: rados::fs::File,
    ledger: Arc<Ledger>,
}

impl Input for ClusterInput {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.size())
    }

    fn read_exact_at(&self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let read = self.file.read_into(offset, buffer, &self.ledger)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.ledger.needed(read);
            offset += read as u64;
            buffer = &mut buffer[read..];
        }
        Ok(())
    }
}

struct Counted {
    reader: Box<dyn Read + Send>,
    ledger: Option<Arc<Ledger>>,
    count: fn(&Ledger, usize),
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        if let Some(ledger) = self.ledger.as_ref().filter(|_| read > 0) {
            (self.count)(ledger, read);
        }
        Ok(read)
    }
}
