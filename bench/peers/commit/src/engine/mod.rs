//! The stores, each as its documentation has it for durable commits: a commit returns when the system says that it is on the
//! device (`fdatasync`, or writes through `O_DSYNC`). Memory for caches is the same for those that have one of their own.

mod lmdb;
mod onehop;
mod redb;
mod sqlite;

use std::path::Path;

use crate::drive::{Failure, Store};

/// Memory of a store's own cache.
pub const CACHE_BYTES: usize = 64 << 20;

/// A store under test, with what is needed beside commits.
pub trait Engine: Store {
    /// Does what the store has put off and would do later (a checkpoint, a merge of its log), so that it is counted.
    fn settle(&self) -> Result<(), Failure>;

    /// What the store itself says that it wrote, and how often it waited for the device.
    fn own_counts(&self) -> Option<(u64, u64)> {
        None
    }
}

/// The names of all.
pub const NAMES: [&str; 4] = ["onehop", "redb", "lmdb", "sqlite"];

/// What they are, with their versions.
pub fn describe(name: &str) -> String {
    match name {
        "onehop" => "onehop-store of this checkout, file, one fdatasync a commit".into(),
        "redb" => "redb 4.6, Durability::Immediate, one phase".into(),
        "lmdb" => format!("LMDB {} by heed 0.22, no flags", lmdb::version()),
        _ => format!(
            "SQLite {} by rusqlite 0.41, WAL, synchronous=FULL, autocheckpoint at 1,000 pages",
            sqlite::version()
        ),
    }
}

/// Opens one in a folder; makes it if it is not there.
pub fn open(name: &str, folder: &Path) -> Result<Box<dyn Engine>, Failure> {
    Ok(match name {
        "onehop" => Box::new(onehop::Onehop::open(&folder.join("onehop.store"))?),
        "redb" => Box::new(redb::Redb::open(&folder.join("redb.db"))?),
        "lmdb" => Box::new(lmdb::Lmdb::open(&folder.join("lmdb"))?),
        "sqlite" => Box::new(sqlite::Sqlite::open(&folder.join("sqlite.db"))?),
        other => return Err(format!("there is no {other}: there are {}", NAMES.join(", ")).into()),
    })
}
