//! What tests on a Ceph cluster share. `tests/ceph/run.sh` starts one and runs them; without one they are ignored.
//!
//! `ONEHOP_CEPH_CONF` names the configuration; the pools are `meta` and `data`, and the one that `ONEHOP_CEPH_EC_POOL` names
//! if there is an erasure-coded one. Each test has a namespace of its own.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onehop_io::rados::fs::{Depth, FsOptions, Replace};
use onehop_io::rados::{Cluster, ClusterOptions, Error, FileSystem, Pool};

pub fn conf() -> PathBuf {
    std::env::var_os("ONEHOP_CEPH_CONF").expect("ONEHOP_CEPH_CONF names a ceph.conf: run tests/ceph/run.sh").into()
}

pub fn cluster() -> Arc<Cluster> {
    cluster_within(Duration::from_secs(30))
}

/// A connection that waits for so long.
pub fn cluster_within(timeout: Duration) -> Arc<Cluster> {
    Cluster::connect(&ClusterOptions { conf: Some(conf()), timeout, ..ClusterOptions::default() }).unwrap()
}

/// A name that no earlier run has used.
pub fn space(name: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("{name}-{}-{}", std::process::id(), now.as_nanos())
}

pub fn options() -> FsOptions {
    FsOptions { chunk_bytes: 1 << 20, grace: Duration::ZERO, lease: Duration::from_secs(60), ..FsOptions::default() }
}

pub fn file_system(name: &str) -> FileSystem {
    FileSystem::create(&cluster(), "meta", "data", &space(name), options()).unwrap()
}

pub fn pool(name: &str) -> Arc<Pool> {
    cluster().pool("meta", &space(name)).unwrap()
}

/// Bytes that are nowhere the same.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).take(len).collect()
}

pub fn put(fs: &FileSystem, path: &str, content: &[u8]) {
    try_put(fs, path, content, Replace::File).unwrap();
}

pub fn try_put(fs: &FileSystem, path: &str, content: &[u8], replace: Replace) -> Result<(), Error> {
    let mut writer = fs.create_file(path, replace, Arc::default())?;
    for piece in content.chunks(100_000) {
        writer.append(piece)?;
    }
    writer.close().map(drop)
}

pub fn get(fs: &FileSystem, path: &str) -> Vec<u8> {
    let mut content = Vec::new();
    fs.open_file(path).unwrap().reader(0..u64::MAX, Arc::default()).read_to_end(&mut content).unwrap();
    content
}

pub fn names(fs: &FileSystem, path: &str) -> Vec<String> {
    fs.list(path).unwrap().into_iter().map(|entry| entry.name).collect()
}

pub fn clean(fs: &FileSystem) {
    let found = fs.check(Depth::Bytes).unwrap();
    assert_eq!((found.damage, found.unknown), (Vec::<String>::new(), Vec::<String>::new()));
}
