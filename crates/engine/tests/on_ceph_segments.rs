//! Databases whose segments lie on a cluster: the same rows as from local ones, and no less of them whatever fails.
//!
//! The cluster is one in memory, with faults; `make test-ceph` has the first test on a real one.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onehop_ceph::{Authority, Connections};
use onehop_engine::{Access, Database, DatabaseOptions, Error, ErrorKind, Hop, Result, Session, check};
use onehop_io::rados::fs::{Depth, SystemClock};
use onehop_io::rados::{Cluster, ClusterOptions, Code, FileSystem, FsOptions, SimClient, SimCluster, SimFault};
use onehop_io::{MemoryVolume, Volume};
use support::{TINY, options, rows, run, runtime};
use tokio::runtime::Runtime;

const URL: &str = "rados://names/db/segments";

/// A cluster, and a folder for what is local.
struct Place {
    runtime: Runtime,
    cluster: SimCluster,
    dir: tempfile::TempDir,
}

/// Somebody who opens databases, with a connection of its own.
struct Process<'a> {
    place: &'a Place,
    client: SimClient,
    fs: FileSystem,
    connections: Arc<Connections>,
}

impl Place {
    fn new() -> Self {
        let (runtime, cluster, dir) = (runtime(), SimCluster::default(), tempfile::tempdir().unwrap());
        let client = cluster.client();
        let options = FsOptions { chunk_bytes: 64 << 10, ..FsOptions::default() };
        let (names, bytes) = (client.replicated("names"), client.erasure_coded("bytes"));
        FileSystem::create_on(names, bytes, "bytes", Arc::new(SystemClock), options).unwrap();
        Self { runtime, cluster, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn process(&self) -> Process<'_> {
        let client = self.cluster.client();
        let (names, bytes) = (client.replicated("names"), client.erasure_coded("bytes"));
        let fs = FileSystem::open_on(names, bytes, Arc::new(SystemClock), FsOptions::default()).unwrap();
        let connections = Arc::<Connections>::default();
        connections.mount(Authority { pool: "names".into(), namespace: String::new() }, fs.clone());
        Process { place: self, client, fs, connections }
    }

    fn run(&self, session: &Session, sql: &str) -> Vec<String> {
        self.runtime.block_on(run(session, sql))
    }

    fn try_run(&self, session: &Session, sql: &str) -> Result<Vec<String>> {
        self.runtime.block_on(rows(session, sql))
    }
}

impl Process<'_> {
    fn options(&self, segments: Option<&str>, access: Access) -> DatabaseOptions {
        let connections = Arc::clone(&self.connections);
        DatabaseOptions { access, segments: segments.map(String::from), connections, ..options(&TINY) }
    }

    fn open_as(&self, path: &Path, segments: Option<&str>, access: Access) -> Result<Session> {
        Database::open(path, &self.options(segments, access))?.session()
    }

    fn open(&self, name: &str) -> Result<Session> {
        self.open_as(&self.place.path(name), None, Access::ReadWrite)
    }

    fn create(&self, name: &str) -> Result<Session> {
        self.open_as(&self.place.path(name), Some(URL), Access::ReadWrite)
    }

    /// A database whose own directory is in memory, where nobody waits for a disk.
    fn open_on(&self, root: &Arc<MemoryVolume>) -> Result<Session> {
        let root = Arc::clone(root) as Arc<dyn Volume>;
        Database::on_volume(root, &self.options(Some(URL), Access::ReadWrite))?.session()
    }

    /// The segments that are there.
    fn segments(&self) -> Vec<String> {
        let names = self.fs.list("/db/segments").unwrap().into_iter().map(|entry| entry.name);
        names.filter(|name| name.ends_with(".seg")).collect()
    }

    fn is_sound(&self) {
        let findings = self.fs.check(Depth::Bytes).unwrap();
        assert!(findings.damage.is_empty() && findings.unknown.is_empty(), "{findings:?}");
    }
}

fn says(e: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(e.kind(), kind, "{e}");
    for word in words {
        assert!(e.to_string().contains(word), "no {word:?} in: {e}");
    }
}

/// Copies a folder as a backup does.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Statements, and the rows that they give: sums that anybody can check.
const SCRIPT: &[(&str, &[&str])] = &[
    ("CREATE TABLE t (x BIGINT NOT NULL, k INTEGER, s TEXT) CLUSTER BY (x)", &[]),
    ("INSERT INTO t SELECT x, x % 7, 'name ' || x FROM (SELECT unnest(range(0, 50000)) AS x)", &[]),
    ("SELECT count(*), sum(x), min(s), max(x) FROM t", &["50000|1249975000|name 0|49999"]),
    (
        "SELECT k, count(*) FROM t WHERE x >= 49993 GROUP BY k ORDER BY k",
        &["0|1", "1|1", "2|1", "3|1", "4|1", "5|1", "6|1"],
    ),
    ("INSERT INTO t VALUES (50000, NULL, 'ü'), (50001, 1, NULL)", &[]),
    ("UPDATE t SET k = 100 WHERE x BETWEEN 10 AND 19", &[]),
    ("DELETE FROM t WHERE x >= 40000 AND x < 49000", &[]),
    ("SELECT count(*), sum(x), count(k), count(s) FROM t", &["41002|849579501|41001|41001"]),
    ("SELECT sum(x), count(*) FROM t WHERE k = 100", &["145|10"]),
    ("CHECKPOINT", &[]),
    ("SELECT count(*), sum(x), count(k), count(s) FROM t", &["41002|849579501|41001|41001"]),
    ("SELECT s FROM t WHERE x = 50000", &["ü"]),
    (
        "CREATE TABLE u PARTITION BY HASH (k) PARTITIONS 4 AS SELECT k, count(*) AS n, sum(x) AS xs FROM t GROUP BY k",
        &[],
    ),
    ("SELECT count(*), sum(n), sum(xs) FROM u", &["9|41002|849579501"]),
    ("SELECT n FROM u WHERE k = 100", &["10"]),
    ("SELECT count(*), sum(u.n) FROM t JOIN u USING (k) WHERE t.x < 100", &["100|527133"]),
    ("CREATE TABLE gone AS SELECT unnest(range(0, 3000)) AS a", &[]),
    ("DROP TABLE gone", &[]),
    ("DELETE FROM u WHERE k IS NULL", &[]),
    ("SELECT count(*), sum(n), sum(xs) FROM u", &["8|41001|849529501"]),
];

/// Runs the script; after each of its statements the database may be opened again.
fn follow(place: &Place, mut open: impl FnMut() -> Session) {
    let mut session = open();
    for (at, (sql, wanted)) in SCRIPT.iter().enumerate() {
        let found = place.run(&session, sql);
        if !wanted.is_empty() {
            assert_eq!(found, *wanted, "{sql}");
        }
        if at % 2 == 1 {
            drop(session);
            session = open();
        }
    }
}

#[test]
fn a_database_is_the_same_with_its_segments_elsewhere() {
    let place = Place::new();
    let local = place.path("local");
    follow(&place, || Database::open(&local, &options(&TINY)).unwrap().session().unwrap());

    let process = place.process();
    let mut made = false;
    follow(&place, || {
        let segments = (!std::mem::replace(&mut made, true)).then_some(URL);
        process.open_as(&place.path("db"), segments, Access::ReadWrite).unwrap()
    });
    // All of them are there, none is here, and nothing else is.
    let session = process.open("db").unwrap();
    let known = place.run(&session, "SELECT file FROM onehop_segments ORDER BY file");
    assert!(!known.is_empty());
    assert_eq!(process.segments(), known);
    let here = fs::read_dir(place.path("db").join("segments")).map_or(0, |files| files.count());
    assert_eq!(here, 0);
    process.is_sound();
    drop(session);

    let report =
        check::check_with(&place.path("db"), &process.options(None, Access::ReadOnly), &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty() && report.files as usize == known.len(), "{report:?}");
    // Whoever only reads has the rows, and changes nothing.
    let marks = process.fs.list("/db/segments").unwrap();
    let reader = process.open_as(&place.path("db"), Some("rados://names//db/segments/"), Access::ReadOnly).unwrap();
    assert_eq!(place.run(&reader, "SELECT count(*), sum(x) FROM t"), ["41002|849579501"]);
    assert_eq!(place.try_run(&reader, "CHECKPOINT").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(process.fs.list("/db/segments").unwrap(), marks);
}

#[test]
#[ignore = "needs a Ceph cluster: make test-ceph"]
fn a_database_is_the_same_with_its_segments_elsewhere_on_a_cluster() {
    let conf = std::env::var("ONEHOP_CEPH_CONF").unwrap();
    let namespace = format!("segments-{}", std::process::id());
    let cluster = ClusterOptions { conf: Some(conf.clone().into()), ..ClusterOptions::default() };
    let cluster = Cluster::connect(&cluster).unwrap();
    let fs = FileSystem::create(&cluster, "meta", "data", &namespace, FsOptions::default()).unwrap();
    let place = Place::new();
    let segments = Some(format!("rados://meta.{namespace}/db/segments"));
    let settings: Vec<(&str, &str)> = TINY.iter().copied().chain([("ceph.conf", &*conf)]).collect();
    let options = DatabaseOptions { segments, ..options(&settings) };
    follow(&place, || Database::open(&place.path("db"), &options).unwrap().session().unwrap());
    let findings = fs.check(Depth::Bytes).unwrap();
    assert!(findings.damage.is_empty() && findings.unknown.is_empty(), "{findings:?}");
    // Nothing waits for a cluster that is not there.
    let nowhere = [("ceph.conf", "/nowhere/ceph.conf"), ("ceph.timeout", "2s")];
    let options = DatabaseOptions { segments: None, ..support::options(&nowhere) };
    says(&Database::open(&place.path("db"), &options).unwrap_err(), ErrorKind::Io, &["/nowhere/ceph.conf"]);
}

/// Blocks that zones rule out are not asked for, and what is read is counted.
#[test]
fn a_query_reads_the_blocks_that_it_needs() {
    let place = Place::new();
    let process = place.process();
    let (local, remote) =
        (Database::open(&place.path("local"), &options(&TINY)).unwrap(), process.create("db").unwrap());
    let mut counts = Vec::new();
    for session in [local.session().unwrap(), remote] {
        let t = "CREATE TABLE t CLUSTER BY (x) AS SELECT x, x * 3 AS y FROM (SELECT unnest(range(0, 100000)) AS x)";
        place.run(&session, t);
        let loaded = session.query().ledger();
        assert!(loaded.hop(Hop::HostToStorage) > 0);
        assert_eq!(place.run(&session, "SELECT sum(y) FROM t WHERE x BETWEEN 50000 AND 50009"), ["1500135"]);
        let few = session.query().ledger();
        assert_eq!(place.run(&session, "SELECT sum(y), count(x) FROM t"), ["14999850000|100000"]);
        let all = session.query().ledger();
        counts.push((few.blocks_considered, few.blocks_skipped, all.blocks_skipped));
        assert!(few.read_bytes() > 0 && few.read_bytes() * 5 < all.read_bytes(), "{few:?} {all:?}");
    }
    assert_eq!(counts[0], counts[1]);
    assert!(counts[0].1 > counts[0].0 / 2, "{counts:?}");
    // What is said of the way is what is true of it.
    let session = process.open("db").unwrap();
    let paths = place.run(&session, "SELECT path FROM onehop_segments");
    assert!(
        !paths.is_empty() && paths.iter().all(|path| path.starts_with("rados://names/db/segments/0000")),
        "{paths:?}"
    );
    let plan = place.run(&session, "EXPLAIN ANALYZE SELECT sum(y) FROM t").join("\n");
    assert!(plan.contains("remote"), "{plan}");
    place.run(&session, "SET io.path = 'direct'");
    let e = place.try_run(&session, "SELECT sum(x) FROM t").unwrap_err();
    says(&e, ErrorKind::Io, &[URL, "cannot be read past the page cache"]);
}

#[test]
fn a_directory_has_one_owner() {
    let place = Place::new();
    let process = place.process();
    let session = process.create("db").unwrap();
    place.run(&session, "CREATE TABLE t AS SELECT unnest(range(0, 3000)) AS x");
    let refused = |outcome: Result<Session>| outcome.err().unwrap();
    // Another database.
    let e = refused(process.create("other"));
    says(&e, ErrorKind::AlreadyExists, &["rados://names/db/segments: it is not empty", "it is another database's"]);
    assert!(!place.path("other/store").exists());
    // The same one, by a copy of its catalog: of before the next commit of segments, it is refused; so is one that is newer than
    // what was made of the copy.
    copy(&place.path("db"), &place.path("backup"));
    place.run(&session, "INSERT INTO t SELECT unnest(range(3000, 6000)) AS x");
    let there = process.segments();
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let e = refused(process.open_as(&place.path("backup"), None, access));
        says(
            &e,
            ErrorKind::Conflict,
            &["not those of this database", "a copy of before its last commits", "onehop rados mv"],
        );
    }
    assert_eq!(process.segments(), there);
    // Of a copy from now, the first to go on has them.
    copy(&place.path("db"), &place.path("now"));
    let second = place.process();
    let taken = second.open("now").unwrap();
    assert_eq!(place.run(&taken, "SELECT count(*), sum(x) FROM t"), ["6000|17997000"]);
    let e = place.try_run(&session, "INSERT INTO t SELECT unnest(range(6000, 9000)) AS x").unwrap_err();
    says(&e, ErrorKind::Conflict, &["another database has gone on with them"]);
    // It can go on with rows of its own, and removes nothing that is the other's.
    place.run(&session, "DROP TABLE t");
    drop(session);
    assert_eq!(place.run(&taken, "SELECT count(*), sum(x) FROM t"), ["6000|17997000"]);
    drop(taken);
    says(&refused(process.open("db")), ErrorKind::Conflict, &["another database has gone on"]);
    // What the error says to do works.
    let e = refused(process.open("backup"));
    let command = e.hint().unwrap().split('`').nth(1).unwrap().to_string();
    let mut words = command.split(' ').skip(3).map(|url| url.strip_prefix("rados://names").unwrap());
    let (from, to) = (words.next().unwrap(), words.next().unwrap());
    process.fs.rename(from, to, onehop_io::rados::fs::Replace::Never).unwrap();
    let session = process.open("backup").unwrap();
    assert_eq!(place.run(&session, "SELECT count(*), sum(x) FROM t"), ["3000|4498500"]);
    assert_eq!(process.segments(), place.run(&session, "SELECT file FROM onehop_segments ORDER BY file"));
    drop(session);
    // Without a mark nothing is believed.
    process.fs.remove_all("/db/segments").unwrap();
    says(&refused(process.open("backup")), ErrorKind::Conflict, &["the directory has no mark of an owner"]);
}

/// A copy of the local directory from any moment of a commit: it is refused, or it has what it knows of, and removes nothing that
/// the commit has brought.
#[test]
fn a_copy_from_any_moment_removes_nothing() {
    let (mut opened, mut refused) = (0, 0);
    for at in 0.. {
        let place = Place::new();
        let process = place.process();
        let session = process.create("db").unwrap();
        place.run(&session, "CREATE TABLE t AS SELECT unnest(range(0, 3000)) AS x");
        let before = process.client.operations();
        let (from, to) = (place.path("db"), place.path("copy"));
        process.client.pause_at(at, move || copy(&from, &to));
        place.run(&session, "INSERT INTO t SELECT unnest(range(3000, 6000)) AS x");
        if process.client.operations() - before <= at {
            break;
        }
        drop(session);
        let there = process.segments();
        match process.open("copy") {
            Ok(session) => {
                assert_eq!(place.run(&session, "SELECT count(*), sum(x) FROM t"), ["3000|4498500"], "{at}");
                opened += 1;
            }
            Err(e) => {
                says(&e, ErrorKind::Conflict, &["a copy of before its last commits"]);
                refused += 1;
            }
        }
        assert_eq!(process.segments(), there, "{at}");
    }
    assert!(opened > 0 && refused > opened, "{opened} {refused}");
}

#[test]
fn a_database_knows_where_its_segments_are() {
    let place = Place::new();
    let process = place.process();
    drop(process.create("db").unwrap());
    let refused =
        |name: &str, url: &str| process.open_as(&place.path(name), Some(url), Access::ReadWrite).err().unwrap();
    says(
        &refused("db", "rados://names/elsewhere"),
        ErrorKind::Invalid,
        &[URL, "not in rados://names/elsewhere", "leave the URL out"],
    );
    drop(process.open_as(&place.path("local"), None, Access::ReadWrite).unwrap());
    says(&refused("local", URL), ErrorKind::Invalid, &["lie in its own directory", "make a new database"]);
    for (url, words) in [
        ("/local/path", "it is not a place on a cluster"),
        ("s3://bucket/x", "it is not a place on a cluster"),
        ("rados://names", "it is the root of a file system"),
        ("rados:///x", "does not name a pool and a path"),
        ("rados://names/a\nb", "it has a control character"),
    ] {
        says(&refused("new", url), ErrorKind::Invalid, &[words]);
    }
    process.fs.create_directory_all("/full/sub").unwrap();
    says(
        &refused("new", "rados://names/full"),
        ErrorKind::AlreadyExists,
        &["it is not empty", "choose a new or an empty"],
    );
    assert!(!place.path("new/store").exists());
    let memory = DatabaseOptions { segments: Some(URL.into()), ..DatabaseOptions::default() };
    says(
        &Database::memory(&memory).unwrap_err(),
        ErrorKind::Invalid,
        &["a database in memory has no segments on a cluster"],
    );
}

/// What is done under faults: three commits of segments, one of rows, a removal. Each statement's outcome is kept.
const CHANGES: &[&str] = &[
    "CREATE TABLE a AS SELECT unnest(range(0, 2500)) AS x",
    "INSERT INTO a SELECT unnest(range(2500, 4000)) AS x",
    "DELETE FROM a WHERE x < 3000",
    "CHECKPOINT",
    "CREATE TABLE b AS SELECT x, 'b' AS s FROM a",
    "DROP TABLE b",
];

/// What a table may be found to have after so many of the statements.
fn state_after(done: usize) -> &'static str {
    ["", "2500|3123750", "4000|7998000", "1000|3499500", "1000|3499500", "1000|3499500", "1000|3499500"][done]
}

/// What a database says of itself, in the words of [`state_after`].
fn state(place: &Place, session: &Session) -> Result<String> {
    match place.try_run(session, "SELECT count(*), sum(x) FROM a") {
        Ok(rows) => Ok(rows[0].clone()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(e),
    }
}

/// Whichever operation fails, in whichever way: what was acknowledged is there, the rest as a whole or not; the database goes on,
/// also without being opened again; and nothing that it has is missing afterwards.
fn survives(fault: SimFault) {
    for at in 0.. {
        let place = Place::new();
        let process = place.process();
        let root = Arc::new(MemoryVolume::new("db"));
        let session = process.open_on(&root).unwrap();
        let begun = process.client.operations();
        process.client.fail_at(at, fault);
        for (number, sql) in CHANGES.iter().enumerate() {
            let outcome = place.try_run(&session, sql);
            let what = format!("{fault:?} at {at}, {sql}: {outcome:?}");
            let Err(e) = outcome else { continue };
            assert!(matches!(e.kind(), ErrorKind::Io | ErrorKind::Conflict), "{what}");
            // Nothing of it, and once more.
            let found = state(&place, &session).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(found, state_after(number), "{what}");
            place.try_run(&session, sql).unwrap_or_else(|e| panic!("{what}: again: {e}"));
        }
        let operations = process.client.operations() - begun;
        process.client.fail_at(u64::MAX / 2, fault);
        assert_eq!(state(&place, &session).unwrap(), state_after(CHANGES.len()), "{fault:?} at {at}");
        drop(session);
        place.cluster.settle();
        let mut known = Vec::new();
        for _ in 0..2 {
            let session = process.open_on(&root).unwrap_or_else(|e| panic!("{fault:?} at {at}: {e}"));
            assert_eq!(state(&place, &session).unwrap(), state_after(CHANGES.len()), "{fault:?} at {at}");
            known = place.run(&session, "SELECT file FROM onehop_segments ORDER BY file");
        }
        assert_eq!(process.segments(), known, "{fault:?} at {at}");
        process.is_sound();
        if operations <= at {
            assert!(at > 40, "{at}");
            break;
        }
    }
}

#[test]
fn an_operation_that_is_refused_loses_nothing() {
    survives(SimFault::Refuse(Code::NO_SPACE));
}

#[test]
fn an_answer_that_is_lost_loses_nothing() {
    survives(SimFault::LoseReply);
}

#[test]
fn an_operation_that_is_lost_loses_nothing() {
    survives(SimFault::LoseRequest);
}

#[test]
fn an_operation_that_comes_late_loses_nothing() {
    survives(SimFault::Late(7));
}

/// Wherever a process dies: the next one has what was acknowledged, or that and the one statement that nobody heard of; and what the
/// dead one has left is gone when the database has been opened twice.
fn is_survived(fault: SimFault) {
    for at in 0.. {
        let place = Place::new();
        let process = place.process();
        let root = Arc::new(MemoryVolume::new("db"));
        process.client.fail_at(at, fault);
        let (mut done, mut operations) = (0, 0);
        if let Ok(session) = process.open_on(&root) {
            for sql in CHANGES {
                if place.try_run(&session, sql).is_err() {
                    break;
                }
                done += 1;
            }
            operations = process.client.operations();
        }
        let next = place.process();
        let mut known = Vec::new();
        for _ in 0..2 {
            // Where it was not made, it can be.
            let session = next.open_on(&root).unwrap_or_else(|e| panic!("{fault:?} at {at}, {done} done: {e}"));
            let found = state(&place, &session).unwrap_or_else(|e| panic!("{fault:?} at {at}: {e}"));
            assert!(
                found == state_after(done) || done < CHANGES.len() && found == state_after(done + 1),
                "{fault:?} at {at}, {done} done: {found}"
            );
            known = place.run(&session, "SELECT file FROM onehop_segments ORDER BY file");
        }
        assert_eq!(next.segments(), known, "{fault:?} at {at}");
        next.is_sound();
        if done == CHANGES.len() && operations <= at {
            assert!(at > 40, "{at}");
            break;
        }
    }
}

#[test]
fn a_death_before_an_operation_loses_nothing() {
    is_survived(SimFault::DieBefore);
}

#[test]
fn a_death_after_an_operation_loses_nothing() {
    is_survived(SimFault::DieAfter);
}

/// A cluster that does not answer, for as long as it does not.
#[test]
fn a_database_goes_on_when_its_cluster_is_back() {
    let place = Place::new();
    let process = place.process();
    let session = process.create("db").unwrap();
    place.run(&session, "CREATE TABLE t AS SELECT unnest(range(0, 3000)) AS x");
    drop(session);
    // At open: whatever is asked first is refused, and what the database can do without is done without.
    let mut opened = 0;
    for (at, code) in (0..16).flat_map(|at| [Code::TIMED_OUT, Code::NO_SPACE].map(|code| (at, code))) {
        process.client.fail_at(at, SimFault::Refuse(code));
        let outcome = process.open("db");
        process.client.fail_at(u64::MAX / 2, SimFault::LoseReply);
        match outcome {
            Err(e) => says(&e, ErrorKind::Io, &[URL, if code == Code::NO_SPACE { "is full" } else { "no answer" }]),
            Ok(session) => {
                assert_eq!(place.run(&session, "SELECT count(*), sum(x) FROM t"), ["3000|4498500"], "{at}");
                opened += 1;
            }
        }
    }
    assert!(opened > 16, "{opened}");
    let session = process.open("db").unwrap();
    place.run(&session, "SET storage.fresh_rows = 100");
    place.run(&session, "INSERT INTO t VALUES (3000), (3001)");
    // At a scan.
    process.client.fail_at(0, SimFault::Refuse(Code::TIMED_OUT));
    says(
        &place.try_run(&session, "SELECT sum(x) FROM t").unwrap_err(),
        ErrorKind::Io,
        &[URL, "no answer within the time"],
    );
    // At a checkpoint: the rows stay where they are.
    process.client.fail_at(0, SimFault::Refuse(Code::NO_SPACE));
    says(&place.try_run(&session, "CHECKPOINT").unwrap_err(), ErrorKind::Io, &["the pool is full"]);
    process.client.fail_at(u64::MAX / 2, SimFault::LoseReply);
    assert_eq!(place.run(&session, "SELECT count(*), sum(x) FROM t"), ["3002|4504501"]);
    place.run(&session, "CHECKPOINT");
    assert_eq!(place.run(&session, "SELECT sum(fresh_rows) FROM onehop_tables"), ["0"]);
    drop(session);
    let session = process.open("db").unwrap();
    assert_eq!(place.run(&session, "SELECT count(*), sum(x) FROM t"), ["3002|4504501"]);
}
