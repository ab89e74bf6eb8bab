//! A disk without room: what was acknowledged is there, what was not is not, and when there is room again the database goes on.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use onehop_engine::{Database, DatabaseOptions, ErrorKind, Session};
use onehop_io::{IoHints, Ledger, MemoryVolume, ReadAt, Result as IoResult, Volume, WriteAt};
use support::{rows, runtime};

/// A volume whose files do not grow while it is full.
#[derive(Clone, Debug)]
struct Limited {
    inner: Arc<dyn Volume>,
    is_full: Arc<AtomicBool>,
}

#[derive(Debug)]
struct LimitedFile {
    inner: Arc<dyn WriteAt>,
    is_full: Arc<AtomicBool>,
}

impl Limited {
    fn new() -> Self {
        Self { inner: Arc::new(MemoryVolume::new("limited")), is_full: Arc::default() }
    }

    fn limited(&self, inner: Arc<dyn WriteAt>) -> Arc<dyn WriteAt> {
        Arc::new(LimitedFile { inner, is_full: Arc::clone(&self.is_full) })
    }
}

impl Volume for Limited {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn open(&self, name: &str) -> IoResult<Arc<dyn ReadAt>> {
        self.inner.open(name)
    }

    fn open_for_update(&self, name: &str) -> IoResult<Arc<dyn WriteAt>> {
        Ok(self.limited(self.inner.open_for_update(name)?))
    }

    fn create(&self, name: &str) -> IoResult<Arc<dyn WriteAt>> {
        Ok(self.limited(self.inner.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> IoResult<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> IoResult<()> {
        self.inner.remove(name)
    }

    fn list(&self) -> IoResult<Vec<String>> {
        self.inner.list()
    }

    fn sync(&self) -> IoResult<()> {
        self.inner.sync()
    }

    fn folder(&self, name: &str) -> IoResult<Arc<dyn Volume>> {
        Ok(Arc::new(Self { inner: self.inner.folder(name)?, is_full: Arc::clone(&self.is_full) }))
    }
}

impl ReadAt for LimitedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn hints(&self) -> IoHints {
        self.inner.hints()
    }

    fn len(&self) -> IoResult<u64> {
        self.inner.len()
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        self.inner.try_read_at(offset, buf, ledger)
    }
}

impl WriteAt for LimitedFile {
    fn try_write_at(&self, offset: u64, buf: &[u8], ledger: &Ledger) -> io::Result<usize> {
        let grows = self.inner.len().is_ok_and(|len| offset + buf.len() as u64 > len);
        if grows && self.is_full.load(SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inner.try_write_at(offset, buf, ledger)
    }

    fn sync(&self) -> IoResult<()> {
        self.inner.sync()
    }
}

fn open(volume: &Limited) -> Database {
    Database::on_volume(Arc::new(volume.clone()), &DatabaseOptions::default()).unwrap()
}

async fn only(session: &Session, sql: &str) -> String {
    rows(session, sql).await.unwrap().remove(0)
}

/// Some hundred rows at a time, so that the store has to grow soon.
async fn insert(session: &Session, first: u64, rows_of: u64) -> onehop_engine::Result<()> {
    let values = (first..first + rows_of).map(|n| format!("({n}, '{n:0200}')")).collect::<Vec<_>>().join(", ");
    rows(session, &format!("INSERT INTO t VALUES {values}")).await.map(drop)
}

#[test]
fn what_was_acknowledged_stays_and_the_database_goes_on_when_there_is_room() {
    let (volume, runtime) = (Limited::new(), runtime());
    let database = open(&volume);
    let acknowledged = runtime.block_on(async {
        let session = database.session().unwrap();
        only_done(&session, "CREATE TABLE t (n BIGINT, v VARCHAR)").await;
        insert(&session, 0, 100).await.unwrap();
        let mut next = 100;
        for _ in 0..3 {
            volume.is_full.store(true, SeqCst);
            let error = loop {
                match insert(&session, next, 100).await {
                    Ok(()) => next += 100,
                    Err(e) => break e,
                }
            };
            assert_eq!(error.kind(), ErrorKind::Resources, "{error}");
            // Readers see what there is, and who needs no more room can still change it.
            assert_eq!(only(&session, "SELECT count(*) FROM t").await, next.to_string());
            assert_eq!(insert(&session, next, 100).await.unwrap_err().kind(), ErrorKind::Resources);
            volume.is_full.store(false, SeqCst);
            insert(&session, next, 100).await.unwrap();
            next += 100;
            only_done(&session, "UPDATE t SET n = n WHERE n < 10").await;
            assert_eq!(only(&session, "SELECT count(DISTINCT n) FROM t").await, next.to_string());
        }
        next
    });
    drop(database);
    let session = open(&volume).session().unwrap();
    let sql = "SELECT count(*) || ' ' || sum(n) FROM t";
    let expected = format!("{acknowledged} {}", acknowledged * (acknowledged - 1) / 2);
    assert_eq!(runtime.block_on(only(&session, sql)), expected);
}

async fn only_done(session: &Session, sql: &str) {
    rows(session, sql).await.unwrap();
}

#[test]
fn rows_and_tables_can_go_when_there_is_no_room_at_all() {
    let (volume, runtime) = (Limited::new(), runtime());
    let database = open(&volume);
    runtime.block_on(async {
        let session = database.session().unwrap();
        only_done(&session, "CREATE TABLE t (n BIGINT, v VARCHAR)").await;
        only_done(&session, "CREATE TABLE other (n BIGINT)").await;
        volume.is_full.store(true, SeqCst);
        let mut next = 0;
        for last in ["DELETE FROM t WHERE n % 10 = 3", "TRUNCATE t", "DELETE FROM t", "DROP TABLE t"] {
            let before = next;
            while insert(&session, next, 1).await.is_ok() {
                next += 1;
            }
            assert!(next > before, "what {last} comes after has made no room");
            let there = only(&session, "SELECT count(*) FROM t").await.parse::<u64>().unwrap();
            // Some rows beside each other, some of many pages, or all.
            only_done(&session, &format!("DELETE FROM t WHERE n >= {}", next - 20)).await;
            assert_eq!(only(&session, "SELECT count(*) FROM t").await, (there - 20).to_string());
            only_done(&session, last).await;
        }
        assert!(rows(&session, "SELECT * FROM t").await.is_err());
        only_done(&session, "INSERT INTO other VALUES (1)").await;
    });
    drop(database);
    let session = open(&volume).session().unwrap();
    assert_eq!(runtime.block_on(only(&session, "SELECT count(*) FROM other")), "1");
}

#[test]
fn who_stands_on_a_commit_that_found_no_room_does_not_commit() {
    let (volume, runtime) = (Limited::new(), runtime());
    let database = open(&volume);
    let (acknowledged, tried) = (AtomicU64::new(0), AtomicU64::new(0));
    runtime.block_on(async {
        only_done(&database.session().unwrap(), "CREATE TABLE t (n BIGINT, v VARCHAR)").await;
        only_done(&database.session().unwrap(), "CREATE TABLE copies (n BIGINT)").await;
        let work = |writer: u64| {
            let (session, volume) = (database.session().unwrap(), volume.clone());
            let (acknowledged, tried) = (&acknowledged, &tried);
            async move {
                for turn in 0..40u64 {
                    // Somebody makes room now and then, and somebody takes it.
                    volume.is_full.store(!(turn + writer).is_multiple_of(4), SeqCst);
                    let first = (writer * 40 + turn) * 50;
                    tried.fetch_add(1, SeqCst);
                    let done = async {
                        only_done(&session, "BEGIN IMMEDIATE").await;
                        insert(&session, first, 50).await?;
                        // All that is in order, acknowledged or not.
                        let copy =
                            format!("INSERT INTO copies SELECT n FROM t WHERE n >= {first} AND n < {first} + 50");
                        rows(&session, &copy).await?;
                        let lost = "SELECT count(*) FROM copies WHERE n NOT IN (SELECT n FROM t)";
                        assert_eq!(only(&session, lost).await, "0");
                        rows(&session, "COMMIT").await
                    };
                    match done.await {
                        Ok(_) => drop(acknowledged.fetch_add(50, SeqCst)),
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::Resources, "{e}");
                            let _ = rows(&session, "ROLLBACK").await;
                        }
                    }
                    let seen = only(&session, "SELECT count(*) FROM t").await.parse::<u64>().unwrap();
                    assert!(seen.is_multiple_of(50), "{seen} rows");
                }
            }
        };
        tokio::join!(work(0), work(1), work(2), work(3));
    });
    let (acknowledged, tried) = (acknowledged.into_inner(), tried.into_inner());
    assert!(acknowledged > 0 && acknowledged < tried * 50, "{acknowledged} rows of {tried} commits");
    drop(database);
    let session = open(&volume).session().unwrap();
    for table in ["t", "copies"] {
        assert_eq!(
            runtime.block_on(only(&session, &format!("SELECT count(*) FROM {table}"))),
            acknowledged.to_string()
        );
    }
}
