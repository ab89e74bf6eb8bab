//! LMDB: copy-on-write B-trees in a mapped file, written with `pwrite`, synced, then a page of roots through `O_DSYNC`. It
//! puts nothing off, and has no cache but the system's.

use std::fs;
use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvOpenOptions};

use super::Engine;
use crate::drive::{Failure, Key, Store, Worker};

/// Address space: more than any run needs.
const MAP_BYTES: usize = 16 << 30;

pub struct Lmdb {
    env: Env,
    pairs: Database<Bytes, Bytes>,
}

pub fn version() -> String {
    let version = heed::lmdb_version();
    format!("{}.{}.{}", version.major, version.minor, version.patch)
}

impl Lmdb {
    pub fn open(folder: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(folder)?;
        // SAFETY: nobody else has the file open, and nobody changes it but through this environment.
        let env = unsafe { EnvOpenOptions::new().map_size(MAP_BYTES).max_dbs(1).open(folder)? };
        let mut transaction = env.write_txn()?;
        let pairs = env.create_database(&mut transaction, Some("pairs"))?;
        transaction.commit()?;
        Ok(Self { env, pairs })
    }
}

impl Store for Lmdb {
    fn worker(&self) -> Result<Box<dyn Worker + '_>, Failure> {
        Ok(Box::new(self))
    }
}

impl Worker for &Lmdb {
    fn commit(&mut self, pairs: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in pairs {
            self.pairs.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }
}

impl Engine for Lmdb {
    fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }
}
