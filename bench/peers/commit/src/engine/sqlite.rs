//! SQLite with a write-ahead log. Each thread has a connection; statements are prepared once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::{CACHE_BYTES, Engine};
use crate::drive::{Failure, Key, Store, Worker};

pub struct Sqlite {
    path: PathBuf,
    /// Kept open, so that no thread's leaving makes a checkpoint.
    _kept: std::sync::Mutex<Connection>,
}

pub fn version() -> &'static str {
    rusqlite::version()
}

impl Sqlite {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let connection = connect(path)?;
        connection
            .execute("CREATE TABLE IF NOT EXISTS pairs (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID", [])?;
        Ok(Self { path: path.into(), _kept: std::sync::Mutex::new(connection) })
    }
}

fn connect(path: &Path) -> Result<Connection, Failure> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    let mode: String = connection.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(format!("SQLite has no write-ahead log here, but {mode}").into());
    }
    connection.execute_batch("PRAGMA synchronous=FULL")?;
    connection.pragma_update(None, "cache_size", -((CACHE_BYTES >> 10) as i64))?;
    Ok(connection)
}

impl Store for Sqlite {
    fn worker(&self) -> Result<Box<dyn Worker + '_>, Failure> {
        Ok(Box::new(connect(&self.path)?))
    }
}

impl Worker for Connection {
    fn commit(&mut self, pairs: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        let transaction = self.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut statement = transaction.prepare_cached("INSERT OR REPLACE INTO pairs (k, v) VALUES (?1, ?2)")?;
            for (key, value) in pairs {
                statement.execute((key.as_slice(), value.as_slice()))?;
            }
        }
        Ok(transaction.commit()?)
    }
}

impl Engine for Sqlite {
    fn settle(&self) -> Result<(), Failure> {
        let connection = connect(&self.path)?;
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(())
    }
}
