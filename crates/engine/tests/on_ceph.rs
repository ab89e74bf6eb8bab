//! Files on a cluster in SQL: what is written is read again, as from a local file; nothing is visible that was not written
//! whole; what the cluster refuses is said in its words, about the path of the statement.
//!
//! The cluster is one in memory, with faults; `make test-ceph` has the same statements on a real one.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use onehop_ceph::Authority;
use onehop_engine::{Database, Error, ErrorKind, Session};
use onehop_io::rados::fs::{Depth, Replace, SystemClock};
use onehop_io::rados::{Cluster, ClusterOptions, Code, FileSystem, FsOptions, SimClient, SimCluster, SimFault};
use support::{eventually, fails, options, rows, run, runtime};
use tokio::runtime::Runtime;

struct Place {
    runtime: Runtime,
    session: Session,
    fs: FileSystem,
    /// Of `@` in statements.
    root: String,
}

impl Place {
    fn simulated() -> (SimClient, Self) {
        Self::on(&SimCluster::default())
    }

    /// A new file system.
    fn on(cluster: &SimCluster) -> (SimClient, Self) {
        let client = cluster.client();
        let (names, bytes) = (client.replicated("names"), client.erasure_coded("bytes"));
        let options = FsOptions { chunk_bytes: 64 << 10, ..FsOptions::default() };
        let fs = FileSystem::create_on(names, bytes, "bytes", Arc::new(SystemClock), options).unwrap();
        (client, Self::mounted(fs))
    }

    /// The same, by somebody else.
    fn again(cluster: &SimCluster) -> (SimClient, Self) {
        let client = cluster.client();
        let (names, bytes) = (client.replicated("names"), client.erasure_coded("bytes"));
        let fs = FileSystem::open_on(names, bytes, Arc::new(SystemClock), FsOptions::default()).unwrap();
        (client, Self::mounted(fs))
    }

    fn mounted(fs: FileSystem) -> Self {
        let database = Database::memory(&self::options(&[("threads", "2")])).unwrap();
        database.mount(Authority { pool: "names".into(), namespace: "a.b".into() }, fs.clone());
        Self::of(&database, fs, "rados://names.a%2Eb")
    }

    fn of(database: &Database, fs: FileSystem, root: &str) -> Self {
        Self { runtime: runtime(), session: database.session().unwrap(), fs, root: root.into() }
    }

    fn sql(&self, sql: &str) -> String {
        sql.replace('@', &self.root)
    }

    fn run(&self, sql: &str) -> Vec<String> {
        self.runtime.block_on(run(&self.session, &self.sql(sql)))
    }

    fn try_run(&self, sql: &str) -> Result<Vec<String>, Error> {
        self.runtime.block_on(rows(&self.session, &self.sql(sql)))
    }

    fn says(&self, sql: &str, kind: ErrorKind, words: &[&str]) {
        let e = self.runtime.block_on(fails(&self.session, &self.sql(sql)));
        assert_eq!(e.kind(), kind, "{sql}: {e}");
        for word in words {
            let word = self.sql(word);
            assert!(e.to_string().contains(&word), "{sql}: no {word:?} in: {e}");
        }
        assert!(!e.to_string().to_lowercase().contains("object store"), "{sql}: {e}");
    }

    fn names(&self, directory: &str) -> Vec<String> {
        self.fs.list(directory).unwrap().into_iter().map(|entry| entry.name).collect()
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        self.fs.create_directory_all(path.rsplit_once('/').unwrap().0).unwrap();
        let mut writer = self.fs.create_file(path, Replace::File, Arc::default()).unwrap();
        writer.append(bytes).unwrap();
        writer.close().unwrap();
    }

    fn is_sound(&self) {
        let findings = self.fs.check(Depth::Bytes).unwrap();
        assert!(findings.damage.is_empty() && findings.unknown.is_empty(), "{findings:?}");
    }
}

/// The statements that go over a real cluster as well.
fn what_is_written_is_read(place: &Place) {
    place.run("CREATE TABLE t AS SELECT x, x % 7 AS k, 'name ' || x AS s FROM (SELECT unnest(range(0, 50000)) AS x)");
    let wanted = place.run("SELECT k, sum(x), count(*), min(s) FROM t GROUP BY k");
    for name in ["x.parquet", "x.arrow", "x.csv", "x.csv.gz", "x.json", "a b/ü=1/_%41.parquet"] {
        place.run(&format!("COPY t TO '@/out/{name}'"));
        let found = place.run(&format!("SELECT k, sum(x), count(*), min(s) FROM '@/out/{name}' GROUP BY k"));
        assert_eq!(found, wanted, "{name}");
    }
    // Patterns, directories, and into a table.
    assert_eq!(place.run("SELECT count(*) FROM '@/out/*.csv'"), ["50000"]);
    assert_eq!(place.run("SELECT count(*) FROM '@/**/x.*et'"), ["50000"]);
    place.run("COPY t TO '@/dir/' (FORMAT parquet)");
    assert_eq!(place.run("SELECT count(*), sum(x) FROM '@/dir'"), ["50000|1249975000"]);
    assert_eq!(place.run("SELECT count(*) FROM '@/dir/*.parquet' AS a JOIN t USING (x)"), ["50000"]);
    place.run("CREATE TABLE u (x BIGINT, k BIGINT, s TEXT)");
    place.run("COPY u FROM '@/out/x.csv.gz'");
    assert_eq!(place.run("SELECT count(*) FROM u JOIN t USING (x, k, s)"), ["50000"]);
    // One row group of it is enough, and of that one column.
    place.run("SELECT max(x) FROM '@/out/x.parquet' WHERE x < 10");
    let moved = place.session.query().ledger().read_bytes();
    let all = place.fs.stat("/out/x.parquet").unwrap().len;
    assert!(moved > 0 && moved < all, "{moved} bytes of {all}");
    // Replaced as a whole.
    place.run("COPY (SELECT 1 AS one) TO '@/out/x.csv'");
    assert_eq!(place.run("SELECT * FROM '@/out/x.csv'"), ["1"]);
    place.is_sound();
}

#[test]
fn what_is_written_is_read_again() {
    let (_, place) = Place::simulated();
    what_is_written_is_read(&place);
}

#[test]
#[ignore = "needs a Ceph cluster: make test-ceph"]
fn what_is_written_is_read_again_on_a_cluster() {
    let conf = std::env::var("ONEHOP_CEPH_CONF").unwrap();
    let namespace = format!("sql-{}", std::process::id());
    let cluster = ClusterOptions { conf: Some(conf.clone().into()), ..ClusterOptions::default() };
    let cluster = Cluster::connect(&cluster).unwrap();
    let fs = FileSystem::create(&cluster, "meta", "data", &namespace, FsOptions::default()).unwrap();
    let database = Database::memory(&options(&[("threads", "2"), ("ceph.conf", &conf)])).unwrap();
    let place = Place::of(&database, fs, &format!("rados://meta.{namespace}"));
    what_is_written_is_read(&place);
    place.says("FROM 'rados://nowhere/x.csv'", ErrorKind::Io, &["rados://nowhere"]);
}

#[test]
fn what_is_wrong_is_said_of_the_path() {
    let (client, place) = Place::simulated();
    place.put("/bad.parquet", b"PAR1 and no more");
    place.put("/two.csv", b"a,b\n1,2\n3\n");
    place.put("/mixed/a.csv", b"a\n1\n");
    place.put("/mixed/a.json", b"{}");
    let invalid = [
        ("FROM '@/none.csv'", ErrorKind::NotFound, "cannot open '@/none.csv': nothing has this name"),
        ("FROM '@/*.nothing'", ErrorKind::NotFound, "no file matches '@/*.nothing'"),
        ("FROM '@/bad.parquet'", ErrorKind::Data, "'@/bad.parquet'"),
        ("FROM '@/two.csv'", ErrorKind::Data, "'@/two.csv' line 3"),
        ("FROM '@/mixed'", ErrorKind::Invalid, "'@/mixed' has files of several formats"),
        ("COPY (SELECT 1) TO '@/mixed' (FORMAT csv)", ErrorKind::Io, "cannot write '@/mixed': it is a directory"),
        ("COPY (SELECT 1) TO '@/mixed/' (FORMAT csv)", ErrorKind::AlreadyExists, "the directory is not empty"),
        ("COPY (SELECT 1) TO '@/two.csv/x.csv'", ErrorKind::Io, "a part of the path is a file"),
        ("FROM 'rados:///x.csv'", ErrorKind::Invalid, "does not name a pool and a path"),
        ("FROM 's3://bucket/x.csv'", ErrorKind::Invalid, "s3 is not a place"),
        ("COPY (SELECT 1) TO '@/' (FORMAT csv)", ErrorKind::Invalid, "it is the root of a file system"),
        ("FROM '@/a\tb.csv'", ErrorKind::Invalid, "it has a control character"),
        ("COPY (SELECT 1) TO '@/a\nb.csv'", ErrorKind::Invalid, "it has a control character"),
    ];
    for (sql, kind, words) in invalid {
        place.says(sql, kind, &[words]);
    }
    // One that no path can name is not taken for another.
    place.put("/odd/a\tb.parquet", b"");
    place.says("FROM '@/odd/*.parquet'", ErrorKind::Invalid, &["its name cannot be part of a URL"]);
    place.put("/good.csv", b"a\n1\n");
    // The client remembers a name: a later read has no operation of this number, and is right.
    let mut refused = 0;
    for at in 0..8 {
        let before = client.operations();
        client.fail_at(at, SimFault::Refuse(Code::TIMED_OUT));
        let outcome = place.try_run("FROM '@/good.csv'");
        let is_refused = client.operations() - before > at;
        client.fail_at(u64::MAX / 2, SimFault::LoseReply);
        match outcome {
            Ok(rows) => assert!(!is_refused && rows == ["1"], "operation {at}: {rows:?}"),
            Err(e) => {
                let (text, name) = (e.to_string(), place.sql("'@/good.csv'"));
                assert!(is_refused && e.kind() == ErrorKind::Io, "operation {at}: {text}");
                assert!(text.contains(&name) && text.contains("no answer within the time"), "{text}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    assert_eq!(place.run("FROM '@/good.csv'"), ["1"]);
}

/// Whatever operation is refused or gets no answer: the file is what it was, or what was written.
#[test]
fn a_copy_that_fails_leaves_what_was_there() {
    let faults = [SimFault::Refuse(Code::NO_SPACE), SimFault::LoseReply, SimFault::LoseRequest];
    for (at, fault) in (0..30).flat_map(|at| faults.map(|fault| (at, fault))) {
        let (client, place) = Place::simulated();
        place.run("COPY (SELECT 1 AS x) TO '@/d/x.csv'");
        client.fail_at(at, fault);
        let copied = place.try_run("COPY (SELECT unnest(range(0, 30000)) AS x) TO '@/d/x.csv'");
        client.fail_at(u64::MAX / 2, fault);
        let found = place.run("SELECT count(*) FROM '@/d/x.csv'");
        assert!(found == ["30000"] || (found == ["1"] && copied.is_err()), "{fault:?} at {at}: {copied:?} {found:?}");
        let directory = place.try_run("COPY (SELECT unnest(range(0, 30000)) AS x) TO '@/e/' (FORMAT csv)");
        assert!(directory.is_ok(), "{directory:?}");
        assert_eq!(place.names("/"), ["d", "e"]);
    }
}

#[test]
fn what_is_given_up_leaves_nothing() {
    let (_, place) = Place::simulated();
    for target in ["@/x.csv", "@/x/"] {
        let sql = format!(
            "COPY (SELECT 1 / (100000 - x) FROM (SELECT unnest(range(0, 200000)) AS x)) TO '{target}' (FORMAT csv)"
        );
        assert_eq!(place.try_run(&sql).unwrap_err().kind(), ErrorKind::Data, "{sql}");
        eventually("the target is gone", || place.names("/").is_empty());
    }
    // What was being written is gone, or known to the collector.
    place.is_sound();
}

/// Whatever operation of a reader somebody replaces or removes the file before: it has one of the two files, whole.
#[test]
fn a_file_that_is_replaced_while_it_is_read_is_one_of_the_two() {
    for name in ["x.parquet", "x.arrow", "x.csv", "x.json"] {
        let mut seen = [0; 2];
        for at in 0.. {
            let cluster = SimCluster::default();
            let (client, place) = Place::on(&cluster);
            let (_, other) = Place::again(&cluster);
            // Of one length and layout: parts of one would be taken for parts of the other.
            place.run(&format!("COPY (SELECT unnest(range(100000, 150000)) AS x, 5 AS k) TO '@/x/{name}'"));
            place.run(&format!("COPY (SELECT unnest(range(200000, 250000)) AS x, 7 AS k) TO '@/new/{name}'"));
            let (fs, path) = (other.fs, format!("/x/{name}"));
            let before = client.operations();
            client.pause_at(at, move || fs.rename(&format!("/new{}", &path[2..]), &path, Replace::File).unwrap());
            let found = place.run(&format!("SELECT count(*), min(x), max(x), min(k), max(k) FROM '@/x/{name}'"));
            let all = ["50000|100000|149999|5|5", "50000|200000|249999|7|7"];
            let which = all.iter().position(|whole| found == [*whole]);
            seen[which.unwrap_or_else(|| panic!("{name}, replaced before {at}: {found:?}"))] += 1;
            if client.operations() - before <= at {
                break;
            }
        }
        assert!(seen[0] > 1 && seen[1] > 1, "{name}: {seen:?}");
    }
}

/// The same with one that is removed: it is read, or it is an error, and never nothing.
#[test]
fn a_file_that_is_removed_while_it_is_read_is_there_or_an_error() {
    for name in ["x.parquet", "x.arrow", "x.csv", "x.json"] {
        let mut seen = [0; 2];
        for at in 0.. {
            let cluster = SimCluster::default();
            let (client, place) = Place::on(&cluster);
            let (_, other) = Place::again(&cluster);
            place.run(&format!("COPY (SELECT unnest(range(0, 50000)) AS x) TO '@/x/{name}'"));
            let (fs, path) = (other.fs, format!("/x/{name}"));
            let before = client.operations();
            client.pause_at(at, move || fs.remove_file(&path).unwrap());
            let from = if at % 2 == 0 { format!("@/x/{name}") } else { format!("@/x/*.{}", &name[2..]) };
            match place.try_run(&format!("SELECT count(*), sum(x) FROM '{from}'")) {
                Ok(found) => {
                    assert_eq!(found, ["50000|1249975000"], "{name}, removed before {at}");
                    seen[0] += 1;
                }
                Err(e) => {
                    assert!(matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Conflict), "{name} {at}: {e}");
                    seen[1] += 1;
                }
            }
            if client.operations() - before <= at {
                break;
            }
        }
        assert!(seen[0] > 1 && seen[1] > 1, "{name}: {seen:?}");
    }
}

/// Wherever a client dies that writes a directory: there is all of it or nothing, and nothing is left over in the end.
#[test]
fn a_directory_whose_writer_dies_is_nowhere() {
    for (at, fault) in (0..40).flat_map(|at| [SimFault::DieBefore, SimFault::DieAfter].map(|fault| (at, fault))) {
        let cluster = SimCluster::default();
        let (client, place) = Place::on(&cluster);
        client.fail_at(at, fault);
        let copied = place.try_run("COPY (SELECT unnest(range(0, 30000)) AS x) TO '@/e/' (FORMAT csv)");
        let (_, other) = Place::again(&cluster);
        let names = other.names("/");
        assert!(names.is_empty() || names == ["e"], "{fault:?} at {at}: {copied:?} {names:?}");
        if names == ["e"] {
            assert_eq!(other.run("SELECT count(*) FROM '@/e'"), ["30000"]);
        }
        other.is_sound();
    }
}
