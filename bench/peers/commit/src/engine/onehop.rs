//! Onehop's store.

use std::path::Path;

use onehop_store::Options;

use super::{CACHE_BYTES, Engine};
use crate::drive::{Failure, Key, Store, Worker};

pub struct Onehop(onehop_store::Store);

impl Onehop {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let options = Options::default().cache_bytes(CACHE_BYTES);
        Ok(Self(onehop_store::Store::open(path, &options)?))
    }
}

impl Store for Onehop {
    fn worker(&self) -> Result<Box<dyn Worker + '_>, Failure> {
        Ok(Box::new(&self.0))
    }
}

impl Worker for &onehop_store::Store {
    fn commit(&mut self, pairs: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        let transaction = self.write()?;
        let mut tree = transaction.tree("pairs")?;
        for (key, value) in pairs {
            tree.insert(key, value)?;
        }
        drop(tree);
        Ok(transaction.commit()?)
    }
}

impl Engine for Onehop {
    fn settle(&self) -> Result<(), Failure> {
        Ok(self.0.checkpoint()?)
    }

    fn own_counts(&self) -> Option<(u64, u64)> {
        let stats = self.0.stats().backend;
        Some((stats.written_bytes, stats.fences))
    }
}
