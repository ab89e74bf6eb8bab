//! File systems by their URLs.
//!
//! Connecting to a cluster takes longer than most of what is asked of it, so a connection is kept, for as long as whoever
//! keeps [`Connections`] lives. Nobody who asks for another cluster waits for one that does not answer: nothing is locked
//! while somebody connects. Two who connect to the same at the same time both do, and the later connection is dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use onehop_io::rados::{Cluster, ClusterOptions, Error, FileSystem, FsOptions};

use crate::Authority;

/// File systems that have been asked for.
#[derive(Debug, Default)]
pub struct Connections {
    /// Another one for other options: another configuration, user or time to wait.
    clusters: Mutex<HashMap<ClusterOptions, Arc<Cluster>>>,
    file_systems: Mutex<HashMap<(ClusterOptions, Authority), FileSystem>>,
    /// Of no cluster that could be connected to.
    mounted: Mutex<HashMap<Authority, FileSystem>>,
}

/// A file system that could not be had.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot use {authority}: {source}")]
pub struct NotMounted {
    /// Which one.
    pub authority: String,
    /// Why not.
    pub source: Error,
}

impl Connections {
    /// Has a file system that is not a cluster's be found under a name, in place of what a cluster has there.
    pub fn mount(&self, authority: Authority, fs: FileSystem) {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner).insert(authority, fs);
    }

    /// The file system of a name. Waits for the cluster.
    ///
    /// # Errors
    /// If the cluster, the pool or the file system is not to be had.
    pub fn file_system(&self, options: &ClusterOptions, authority: &Authority) -> Result<FileSystem, NotMounted> {
        if let Some(fs) = known(&self.mounted, authority) {
            return Ok(fs);
        }
        let failed = |source| NotMounted { authority: authority.to_string(), source };
        let name = (options.clone(), authority.clone());
        if let Some(fs) = known(&self.file_systems, &name) {
            return Ok(fs);
        }
        let cluster = match known(&self.clusters, options) {
            Some(cluster) => cluster,
            None => keep(&self.clusters, options.clone(), Cluster::connect(options).map_err(failed)?),
        };
        let fs = FileSystem::open(&cluster, &authority.pool, &authority.namespace, FsOptions::default());
        Ok(keep(&self.file_systems, name, fs.map_err(failed)?))
    }
}

fn known<K: Hash + Eq, V: Clone>(all: &Mutex<HashMap<K, V>>, key: &K) -> Option<V> {
    all.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
}

/// What is known from now on: the new one, or that of somebody who was faster.
fn keep<K: Hash + Eq, V: Clone>(all: &Mutex<HashMap<K, V>>, key: K, new: V) -> V {
    all.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(new).clone()
}
