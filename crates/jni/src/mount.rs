//! File systems by their authority and the options that Java hands over.
//!
//! A connection to a cluster is shared by all file systems with the same options for it, and ends with the last of them:
//! nothing here keeps one alive. Nobody waits for somebody else's connecting: of two who connect at once one connection is
//! dropped.
//!
//! A file system *in memory* is for tests, of this and of programs that use it: all who ask for the same authority have the same one,
//! until the process ends.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use onehop_io::Ledger;
use onehop_io::rados::fs::SystemClock;
use onehop_io::rados::{Authority, Cluster, ClusterOptions, Code, FileSystem, FsOptions, SimCluster};

use crate::failure::{Failure, Result};

/// A file system that Java has a handle of.
#[derive(Debug)]
pub struct Mount {
    pub fs: FileSystem,
    /// What all its streams have moved.
    pub ledger: Arc<Ledger>,
}

/// How to get one.
#[derive(Debug, Default)]
pub struct MountOptions {
    cluster: ClusterOptions,
    files: FsOptions,
    /// Makes the file system, with this pool for its bytes, if there is none.
    create: Option<String>,
    /// No cluster.
    in_memory: bool,
}

impl MountOptions {
    /// From names and values. `ceph.NAME` is an option of Ceph's.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let mut options = Self::default();
        for (name, value) in pairs {
            options.set(name, value)?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let number = || value.parse::<u64>().map_err(|_| Failure::Misuse(format!("{name} is no number: {value}")));
        let bytes = || number().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        match name {
            "conf" => self.cluster.conf = Some(PathBuf::from(value)),
            "user" => self.cluster.user = value.into(),
            "timeout_ms" => self.cluster.timeout = Duration::from_millis(number()?),
            "window_bytes" => self.files.window_bytes = bytes()?,
            "waiting_bytes" => self.files.waiting_bytes = bytes()?,
            "in_flight_bytes" => self.files.in_flight_bytes = bytes()?,
            "read_ahead_bytes" => self.files.read_ahead_bytes = bytes()?,
            "chunk_bytes" => {
                self.files.chunk_bytes =
                    u32::try_from(number()?).map_err(|_| Failure::Misuse(format!("{name} is too large: {value}")))?;
            }
            "create" => self.create = Some(value.into()),
            "memory" => self.in_memory = value == "true",
            _ => match name.strip_prefix("ceph.") {
                Some(option) => self.cluster.settings.push((option.into(), value.into())),
                None => return Err(Failure::Misuse(format!("there is no option {name}"))),
            },
        }
        Ok(())
    }
}

impl Mount {
    /// Opens a file system. Waits for the cluster.
    pub fn open(authority: &Authority, options: &MountOptions) -> Result<Self> {
        let fs = if options.in_memory { in_memory(authority, options)? } else { on_cluster(authority, options)? };
        Ok(Self { fs, ledger: Arc::default() })
    }
}

fn on_cluster(authority: &Authority, options: &MountOptions) -> Result<FileSystem> {
    let cluster = connected(&options.cluster)?;
    let open = || FileSystem::open(&cluster, &authority.pool, &authority.namespace, options.files);
    let data_pool = match (open(), &options.create) {
        (Err(error), Some(data_pool)) if error.is(Code::NOT_FOUND) => data_pool,
        (opened, _) => return Ok(opened?),
    };
    match FileSystem::create(&cluster, &authority.pool, data_pool, &authority.namespace, options.files) {
        // Somebody else was faster.
        Err(error) if error.is(Code::EXISTS) => Ok(open()?),
        created => Ok(created?),
    }
}

fn connected(options: &ClusterOptions) -> Result<Arc<Cluster>> {
    static CLUSTERS: Mutex<Vec<(ClusterOptions, Weak<Cluster>)>> = Mutex::new(Vec::new());
    let known = || -> (MutexGuard<'_, _>, Option<Arc<Cluster>>) {
        let mut clusters = CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner);
        clusters.retain(|(_, cluster)| cluster.strong_count() > 0);
        let found = clusters.iter().find(|(of, _)| of == options).and_then(|(_, cluster)| cluster.upgrade());
        (clusters, found)
    };
    if let (_, Some(cluster)) = known() {
        return Ok(cluster);
    }
    let new = Cluster::connect(options)?;
    let (mut clusters, found) = known();
    Ok(found.unwrap_or_else(|| {
        clusters.push((options.clone(), Arc::downgrade(&new)));
        new
    }))
}

fn in_memory(authority: &Authority, options: &MountOptions) -> Result<FileSystem> {
    static MADE: Mutex<Option<HashMap<Authority, FileSystem>>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_default();
    if let Some(fs) = made.get(authority) {
        return Ok(fs.clone());
    }
    let client = SimCluster::default().client();
    let (names, bytes) = (client.replicated("names"), client.erasure_coded("bytes"));
    let fs = FileSystem::create_on(names, bytes, "bytes", Arc::new(SystemClock), options.files)?;
    made.insert(authority.clone(), fs.clone());
    Ok(fs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub mod tests {
    use super::*;
    use onehop_io::rados::Location;

    /// A new file system of small chunks.
    pub fn in_memory() -> Mount {
        let client = SimCluster::default().client();
        let (names, bytes) = (client.replicated("names"), client.erasure_coded("bytes"));
        let (window_bytes, read_ahead_bytes) = (1 << 20, 1 << 20);
        let options = FsOptions { chunk_bytes: 64 << 10, window_bytes, read_ahead_bytes, ..FsOptions::default() };
        let fs = FileSystem::create_on(names, bytes, "bytes", Arc::new(SystemClock), options).unwrap();
        Mount { fs, ledger: Arc::default() }
    }

    #[test]
    fn options_are_what_was_said() {
        let options = MountOptions::parse([
            ("conf", "/etc/ceph/other.conf"),
            ("user", "spark"),
            ("timeout_ms", "2500"),
            ("ceph.keyring", "/k"),
            ("window_bytes", "1"),
            ("waiting_bytes", "0"),
            ("create", "data"),
        ])
        .unwrap();
        assert_eq!(options.cluster.conf, Some("/etc/ceph/other.conf".into()));
        assert_eq!((&*options.cluster.user, options.cluster.timeout), ("spark", Duration::from_millis(2500)));
        assert_eq!(options.cluster.settings, [("keyring".into(), "/k".into())]);
        assert_eq!((options.files.window_bytes, options.files.waiting_bytes), (1, 0));
        assert_eq!(options.create.as_deref(), Some("data"));
        for bad in [("timeout_ms", "soon"), ("chunk_bytes", "99999999999"), ("kind", "fast")] {
            assert!(matches!(MountOptions::parse([bad]), Err(Failure::Misuse(_))), "{bad:?}");
        }
    }

    #[test]
    fn the_same_name_is_the_same_memory() {
        let options = MountOptions::parse([("memory", "true"), ("chunk_bytes", "65536")]).unwrap();
        let open = |url| Mount::open(&Location::parse(url).unwrap().authority, &options).unwrap();
        open("rados://a.mount").fs.create_directory("/d").unwrap();
        assert!(open("rados://a.mount").fs.stat("/d").is_ok());
        assert!(open("rados://b.mount").fs.stat("/d").is_err());
    }
}
