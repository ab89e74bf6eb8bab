//! Files of an open database that another process removes or replaces, and stores that are brought back from copies: nothing is
//! acknowledged that would be lost, and no segment is removed that may be the only copy of data.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use onehop_engine::check::check;
use onehop_engine::repair::{What, repair, survey};
use onehop_engine::{Access, Database, DatabaseOptions, ErrorKind, Session};
use support::{fails, files_on_disk, rows, run, runtime, small};
use tokio::runtime::Runtime;

fn read_only() -> DatabaseOptions {
    DatabaseOptions { access: Access::ReadOnly, ..small() }
}

/// A bulk insert, which makes segments.
fn bulk(n: u64) -> String {
    format!("INSERT INTO t SELECT {n} FROM generate_series(1, 1500)")
}

fn open(path: &Path) -> Session {
    Database::open(path, &small()).unwrap().session().unwrap()
}

/// A directory, and in it a database with segments and fresh rows.
fn sample(runtime: &Runtime) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let session = open(&path);
    for statement in ["CREATE TABLE t (n BIGINT)", &bulk(1), "INSERT INTO t VALUES (1)"] {
        runtime.block_on(run(&session, statement));
    }
    (directory, path)
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap().success());
}

/// Names and bytes of all files below a directory.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(path).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

fn counts(session: &Session, runtime: &Runtime) -> Vec<String> {
    runtime.block_on(run(session, "SELECT n, count(*) FROM t GROUP BY n"))
}

/// A deed of another process, to the database at the first path with a copy at the second; and words of the error.
type Mishap = (fn(&Path, &Path), &'static str);

const MISHAPS: [Mishap; 11] = [
    (|db, _| fs::remove_file(db.join("store")).unwrap(), "store was removed"),
    (|db, _| fs::rename(db.join("store"), db.join("away")).unwrap(), "store was removed"),
    (|db, copy| fs::rename(copy.join("store"), db.join("store")).unwrap(), "store was replaced by another file"),
    (
        |db, copy| {
            fs::remove_file(db.join("store")).unwrap();
            symlink(copy.join("store"), db.join("store")).unwrap();
        },
        "store was replaced by a symbolic link",
    ),
    (|db, _| fs::write(db.join("store"), "").unwrap(), "store was cut"),
    (
        |db, copy| {
            let len = db.join("store").metadata().unwrap().len();
            fs::copy(copy.join("store"), db.join("store")).unwrap();
            fs::File::options().write(true).open(db.join("store")).unwrap().set_len(len).unwrap();
        },
        "store was written over",
    ),
    (|db, _| fs::remove_file(db.join("LOCK")).unwrap(), "LOCK was removed"),
    (
        |db, _| {
            fs::write(db.join("other"), "").unwrap();
            fs::rename(db.join("other"), db.join("LOCK")).unwrap();
        },
        "LOCK was replaced by another file",
    ),
    (|db, _| fs::remove_dir_all(db).unwrap(), " was removed"),
    (
        |db, copy| {
            fs::rename(db, db.with_extension("away")).unwrap();
            fs::rename(copy, db).unwrap();
        },
        "db was replaced by another file",
    ),
    (
        |db, copy| {
            fs::rename(db, db.with_extension("away")).unwrap();
            symlink(copy, db).unwrap();
        },
        "db was replaced by a symbolic link",
    ),
];

#[test]
fn no_commit_is_acknowledged_that_would_be_lost() {
    let runtime = runtime();
    for (mishap, what) in MISHAPS {
        for first in ["INSERT INTO t VALUES (9)", &bulk(9), "CREATE TABLE u (n BIGINT)", "CHECKPOINT", "DROP TABLE t"] {
            let (directory, path) = sample(&runtime);
            let copied = directory.path().join("copy");
            copy(&path, &copied);
            let session = open(&path);
            for statement in [&bulk(2), "INSERT INTO t VALUES (2)"] {
                runtime.block_on(run(&session, statement));
            }
            let before = counts(&session, &runtime);
            mishap(&path, &copied);
            let there = contents(&path);
            let e = runtime.block_on(fails(&session, first));
            assert!(e.message().contains(what), "{what}: {first}: {e}");
            // Whatever comes next is refused, too, and queries go on.
            for next in ["INSERT INTO t VALUES (9)", "CREATE TABLE v AS SELECT 1 AS one", &bulk(9)] {
                let e = runtime.block_on(fails(&session, next));
                assert_eq!(e.kind(), ErrorKind::Io, "{what}: {next} after {first}: {e}");
            }
            assert_eq!(counts(&session, &runtime), before, "{what}: {first}");
            drop(session);
            // The files at the path belong to the other process now, but for the open store under another name, and what the
            // failed commit wrote.
            let left = contents(&path);
            for (file, bytes) in &there {
                let is_ours = file.ends_with("away") || file.ends_with("store") && !what.starts_with("store");
                assert!(left.get(file) == Some(bytes) || is_ours, "{what}: {first}: {} has changed", file.display());
            }
        }
    }
}

#[test]
fn a_directory_may_be_moved() {
    let runtime = runtime();
    let (directory, path) = sample(&runtime);
    let (session, moved) = (open(&path), directory.path().join("moved"));
    fs::rename(&path, &moved).unwrap();
    // Files are opened and made where the directory is by now.
    for statement in ["INSERT INTO t VALUES (2)", &bulk(2), "CHECKPOINT"] {
        runtime.block_on(run(&session, statement));
    }
    assert_eq!(counts(&session, &runtime), ["1|1501", "2|1501"]);
    drop(session);
    assert_eq!(counts(&open(&moved), &runtime), ["1|1501", "2|1501"]);
    assert!(!path.exists());
}

#[test]
fn segments_that_an_older_store_does_not_know_are_kept_and_found_again() {
    let runtime = runtime();
    for brought_back in ["while it is open", "when it is closed"] {
        let (directory, path) = sample(&runtime);
        let (old, new) = (directory.path().join("old"), directory.path().join("new"));
        let session = open(&path);
        // The copy is of this very session, and has everything that the store has then.
        runtime.block_on(run(&session, &bulk(2)));
        fs::copy(path.join("store"), &old).unwrap();
        for statement in [&bulk(3), "CREATE TABLE u AS SELECT value FROM generate_series(1, 2000)", &bulk(4)] {
            runtime.block_on(run(&session, statement));
        }
        let all = files_on_disk(&path);
        if brought_back == "when it is closed" {
            drop(session);
            fs::copy(path.join("store"), &new).unwrap();
            fs::copy(&old, path.join("store")).unwrap();
        } else {
            fs::copy(path.join("store"), &new).unwrap();
            fs::rename(&old, path.join("store")).unwrap();
            runtime.block_on(fails(&session, "INSERT INTO t VALUES (5)"));
            drop(session);
        }

        let report = check(&path, &mut |_, _| {}).unwrap();
        assert!(report.problems.is_empty() && !report.findings.is_empty(), "{report:?}");
        assert!(report.findings.iter().all(|finding| finding.what == What::Unknown), "{report:?}");
        let session = open(&path);
        assert_eq!(counts(&session, &runtime), ["1|1501", "2|1500"], "{brought_back}");
        // It goes on with names that none of these has.
        runtime.block_on(run(&session, &bulk(7)));
        drop(session);
        let lost: Vec<String> = fs::read_dir(path.join("lost+found"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(lost.len() >= 6 && all.len() == lost.len() + 4, "{lost:?} of {all:?}");

        // The right store comes back: what it misses is put back, and what only the older one knew is kept.
        fs::copy(&new, path.join("store")).unwrap();
        let found = survey(&path, &small()).unwrap();
        let of = |what: What| found.iter().filter(|finding| finding.what == what).count();
        assert_eq!((of(What::Misplaced) + of(What::Unknown) > 0, of(What::Unfinished)), (true, 0), "{found:#?}");
        repair(&path, &small()).unwrap();
        assert!(check(&path, &mut |_, _| {}).unwrap().problems.is_empty());
        let session = open(&path);
        assert_eq!(counts(&session, &runtime), ["1|1501", "2|1500", "3|1500", "4|1500"], "{brought_back}");
        assert_eq!(runtime.block_on(run(&session, "SELECT count(*) FROM u")), ["2000"]);
    }
}

#[test]
fn garbage_is_told_from_data() {
    let runtime = runtime();
    let (_directory, path) = sample(&runtime);
    let known = files_on_disk(&path);
    let whole = fs::read(path.join("segments").join(known.first().unwrap())).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(path.join("segments").join(name), bytes).unwrap();
    // A process that was killed: while it wrote, and just before; and a marker that outlived its segment.
    write("00000001-00000090.seg", &whole[..3000]);
    write("00000001-00000090.seg.new", b"");
    write("00000001-00000091.seg.new", b"");
    // Of this history or another.
    write("00000001-00000092.seg", &whole);
    write("00000001-00000093.seg", b"half a segment");
    fs::write(path.join("store.new-123"), "half a store").unwrap();

    let found = survey(&path, &small()).unwrap();
    let words: Vec<_> = found.iter().map(|finding| (finding.file.as_str(), finding.what)).collect();
    let expected = [
        ("store.new-123", What::LeftOver),
        ("segments/00000001-00000090.seg", What::Unfinished),
        ("segments/00000001-00000090.seg.new", What::Unfinished),
        ("segments/00000001-00000091.seg.new", What::Unfinished),
        ("segments/00000001-00000092.seg", What::Unknown),
        ("segments/00000001-00000093.seg", What::Unknown),
    ];
    assert_eq!(words, expected);
    repair(&path, &small()).unwrap();
    assert_eq!(files_on_disk(&path), known);
    let left = survey(&path, &small()).unwrap();
    let words: Vec<_> = left.iter().map(|finding| (finding.file.as_str(), finding.what)).collect();
    let kept = ["lost+found/00000001-00000092.seg", "lost+found/00000001-00000093.seg"];
    assert_eq!(words, kept.map(|file| (file, What::Kept)));
    assert!(left[0].about.contains("in a session that the store knows"), "{left:?}");
    assert!(left[1].about.contains("not a whole segment"), "{left:?}");
}

#[test]
fn a_removed_segment_that_a_crash_has_left_goes() {
    let runtime = runtime();
    let (_directory, path) = sample(&runtime);
    let before = contents(&path.join("segments"));
    let session = open(&path);
    runtime.block_on(run(&session, "DROP TABLE t"));
    drop(session);
    assert!(files_on_disk(&path).is_empty());
    for (file, bytes) in &before {
        fs::write(file, bytes).unwrap();
    }
    let found = survey(&path, &small()).unwrap();
    assert!(found.len() == before.len() && found.iter().all(|finding| finding.what == What::Removed), "{found:?}");
    drop(open(&path));
    assert!(files_on_disk(&path).is_empty() && !path.join("lost+found").exists());
    // Another segment under such a name is none of these.
    let (file, bytes) = before.first_key_value().unwrap();
    let cut = &bytes[..bytes.len() - 1];
    fs::write(file, cut).unwrap();
    drop(open(&path));
    let name = file.file_name().unwrap();
    assert_eq!(fs::read(path.join("lost+found").join(name)).unwrap(), cut);
    // In the end nothing is remembered of what is gone: a commit of segments syncs their folder.
    let session = open(&path);
    runtime.block_on(run(&session, "CREATE TABLE more AS SELECT value AS n FROM generate_series(1, 1500)"));
    drop(session);
    fs::write(file, bytes).unwrap();
    assert_eq!(survey(&path, &small()).unwrap()[0].what, What::Unknown);
}

#[test]
fn without_a_store_a_database_is_damaged_to_readers_as_well() {
    let runtime = runtime();
    let (directory, path) = sample(&runtime);
    fs::remove_file(path.join("store")).unwrap();
    for options in [small(), read_only()] {
        let e = Database::open(&path, &options).unwrap_err();
        assert!(e.kind() == ErrorKind::Corrupt && e.message().contains("store is missing"), "{e}");
    }
    let e = Database::open(&directory.path().join("none"), &read_only()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
}

/// A database that was made before segments said whose they are: `fixtures/before_origins.tar.gz`, a table `t` of 1,500 rows in
/// segments and one that is fresh.
#[test]
fn a_database_of_before_is_read_and_gets_an_identity_with_its_first_segment() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/before_origins.tar.gz");
    let mut unpack = Command::new("tar");
    assert!(unpack.arg("-xzf").arg(archive).arg("-C").arg(directory.path()).status().unwrap().success());
    let path = directory.path().join("db");
    let reader = Database::open(&path, &read_only()).unwrap().session().unwrap();
    assert_eq!(counts(&reader, &runtime), ["1|1501"]);
    drop(reader);
    // Such a segment does not say whether it was ever committed.
    let old = files_on_disk(&path).into_iter().next().unwrap();
    let segment = fs::read(path.join("segments").join(&old)).unwrap();
    fs::write(path.join("segments/00000001-00000099.seg"), segment).unwrap();
    let session = open(&path);
    assert_eq!(counts(&session, &runtime), ["1|1501"]);
    runtime.block_on(run(&session, "INSERT INTO t VALUES (1)"));
    for statement in [&bulk(2), "CHECKPOINT"] {
        runtime.block_on(run(&session, statement));
    }
    drop(session);
    assert_eq!(
        runtime.block_on(rows(&open(&path), "SELECT n, count(*) FROM t GROUP BY n")).unwrap(),
        ["1|1502", "2|1500"]
    );
    let report = check(&path, &mut |_, _| {}).unwrap();
    assert!(report.problems.is_empty());
    let [kept] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert!(kept.what == What::Kept && kept.about.contains("an older build"), "{kept:?}");
}
