//! redb: copy-on-write B-trees, one phase of commit with checksums. It puts nothing off.

use std::path::Path;

use redb::{Database, Durability, TableDefinition};

use super::{CACHE_BYTES, Engine};
use crate::drive::{Failure, Key, Store, Worker};

const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("pairs");

pub struct Redb(Database);

impl Redb {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        Ok(Self(Database::builder().set_cache_size(CACHE_BYTES).create(path)?))
    }
}

impl Store for Redb {
    fn worker(&self) -> Result<Box<dyn Worker + '_>, Failure> {
        Ok(Box::new(&self.0))
    }
}

impl Worker for &Database {
    fn commit(&mut self, pairs: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        let mut transaction = self.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        let mut table = transaction.open_table(PAIRS)?;
        for (key, value) in pairs {
            table.insert(key.as_slice(), value.as_slice())?;
        }
        drop(table);
        Ok(transaction.commit()?)
    }
}

impl Engine for Redb {
    fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }
}
