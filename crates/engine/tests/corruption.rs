//! Damage to the files of a database, and directories that are not one.
//!
//! Model: bytes of the store and of segment files flipped, files cut short, missing, swapped or foreign; the lock file
//! missing; permissions taken away. Opening and querying gives an error that names the file, or exactly the right rows;
//! never a panic, never other rows; and nothing is removed that a person might still want. `check` sees whatever a
//! query stumbles over. (That every single byte of a segment matters is tested in `onehop-segment`.)
//! Positions are a function of the printed seed.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use onehop_engine::{Access, Database, DatabaseOptions, Error, ErrorKind, Result, check};
use support::{dump, files_on_disk, known_files, random, rows, runtime, tiny};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const SEED: u64 = 20_240_229;

/// Answered from statistics, from zone maps, from some columns, from all.
const QUERIES: [&str; 5] = [
    "SELECT count(*), min(id), max(id) FROM t",
    "SELECT count(*), min(name), max(price) FROM t WHERE id >= 2000",
    "SELECT name, sum(price), count(day) FROM t GROUP BY name",
    "SELECT * FROM t WHERE id % 97 = 0",
    "SELECT count(*), sum(k) FROM u WHERE k BETWEEN 10 AND 20",
];

fn read_only() -> DatabaseOptions {
    DatabaseOptions { access: Access::ReadOnly, ..tiny() }
}

/// A database of two tables, three segments and one, closed.
fn sample(runtime: &Runtime) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let database = Database::open(&path, &tiny()).unwrap();
    let session = database.session().unwrap();
    for statement in [
        "CREATE TABLE t (id BIGINT NOT NULL, name VARCHAR, price DECIMAL(10,2), day DATE, note VARCHAR)",
        "INSERT INTO t SELECT i, 'name ' || (i % 9), CASE WHEN i % 5 > 0 THEN i * 1.25 END, \
         DATE '2020-01-01' + CAST(i % 365 AS INT), 'a note that is different in every row: ' || i \
         FROM (SELECT unnest(range(0, 2500)) AS i)",
        "CREATE TABLE u PARTITION BY HASH (k) PARTITIONS 2 AS SELECT unnest(range(0, 100)) AS k",
        "CREATE VIEW v AS SELECT count(*) AS c FROM u",
    ] {
        runtime.block_on(support::run(&session, statement));
    }
    drop((session, database));
    (dir, path)
}

/// Everything there is to see; opens the database for writing, as most do.
fn look(path: &Path, runtime: &Runtime) -> Result<Vec<String>> {
    let database = Database::open(path, &tiny())?;
    let session = database.session()?;
    let mut seen = Vec::new();
    let mut first_error = None;
    for query in QUERIES {
        match runtime.block_on(rows(&session, query)) {
            Ok(rows) => seen.push(rows.join("\n")),
            Err(e) => _ = first_error.get_or_insert(e),
        }
    }
    match first_error {
        Some(e) => Err(e),
        None => {
            seen.push(runtime.block_on(dump(&database))?);
            Ok(seen)
        }
    }
}

/// Damages a file in many ways, and judges each.
struct Damage<'a> {
    path: &'a Path,
    file: PathBuf,
    whole: Vec<u8>,
    right: Vec<String>,
    runtime: &'a Runtime,
    errors: u64,
    right_answers: u64,
}

impl<'a> Damage<'a> {
    fn new(path: &'a Path, file: &str, runtime: &'a Runtime) -> Self {
        let file = path.join(file);
        let whole = fs::read(&file).unwrap();
        let right = look(path, runtime).unwrap();
        Self { path, file, whole, right, runtime, errors: 0, right_answers: 0 }
    }

    fn judge(&mut self, what: &str, bytes: &[u8]) {
        let files = files_on_disk(self.path);
        fs::write(&self.file, bytes).unwrap();
        let seen = look(self.path, self.runtime);
        let checked = check::check(self.path, &mut |_, _| {});
        let problems: Vec<Error> = match checked {
            Ok(report) => report.problems.into_iter().map(|problem| problem.error).collect(),
            Err(e) => vec![e],
        };
        let name = self.file.file_name().unwrap().to_str().unwrap();
        match seen {
            Ok(seen) => {
                assert_eq!(seen, self.right, "{what}: other rows");
                self.right_answers += 1;
            }
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::TooNew), "{what}: {:?} {e}", e.kind());
                assert!(e.message().contains(name), "{what}: the error does not name the file: {e}");
                assert!(!problems.is_empty(), "{what}: check finds nothing, and a query fails: {e}");
                self.errors += 1;
            }
        }
        for problem in problems {
            assert!(problem.message().contains(name), "{what}: check does not name the file: {problem}");
        }
        assert_eq!(files_on_disk(self.path), files, "{what}: files were removed or made");
        fs::write(&self.file, &self.whole).unwrap();
    }

    fn flip(&mut self, at: usize, bit: u32) {
        let mut bytes = self.whole.clone();
        bytes[at] ^= 1 << bit;
        self.judge(&format!("{} with bit {bit} of byte {at} flipped", self.file.display()), &bytes);
    }

    fn cut(&mut self, len: usize) {
        let bytes = self.whole[..len].to_vec();
        self.judge(&format!("{} cut to {len} bytes", self.file.display()), &bytes);
    }

    fn report(self) -> (u64, u64) {
        let name = self.file.file_name().unwrap().to_str().unwrap().to_string();
        println!("{name}: seed {SEED}, {} errors, {} right answers", self.errors, self.right_answers);
        (self.errors, self.right_answers)
    }
}

#[test]
fn a_damaged_store_is_an_error_that_names_it_or_the_right_rows() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    let mut damage = Damage::new(&path, "store", &runtime);
    let mut dice = SEED;
    let len = damage.whole.len();
    // Most of a small store is room.
    let used: Vec<usize> = (0..len).filter(|at| damage.whole[*at] != 0).collect();
    for at in used.iter().step_by((used.len() / 250).max(1)) {
        damage.flip(*at, random(&mut dice) as u32 % 8);
    }
    for at in (0..40).chain((40..len).step_by(len / 20)) {
        damage.flip(at, random(&mut dice) as u32 % 8);
    }
    for cut in (0..len).step_by(len / 30).chain([len - 1]) {
        damage.cut(cut);
    }
    let longer = [damage.whole.as_slice(), b"{}"].concat();
    damage.judge("a store with more at its end", &longer);
    let (errors, _) = damage.report();
    assert!(errors > 20, "{errors}");
}

#[test]
fn a_damaged_segment_is_an_error_that_names_it_or_the_right_rows() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    let file = files_on_disk(&path).into_iter().next().unwrap();
    let mut damage = Damage::new(&path, &format!("segments/{file}"), &runtime);
    let mut dice = SEED;
    let len = damage.whole.len();
    for _ in 0..150 {
        damage.flip(random(&mut dice) as usize % len, random(&mut dice) as u32 % 8);
    }
    // The end of the file describes the rest of it.
    for at in (len.saturating_sub(700)..len).step_by(13) {
        damage.flip(at, random(&mut dice) as u32 % 8);
    }
    for at in 0..12 {
        damage.flip(at, random(&mut dice) as u32 % 8);
    }
    for cut in (0..len).step_by(len / 20).chain([1, 4095, 4096, len - 1]) {
        damage.cut(cut);
    }
    let longer = [damage.whole.as_slice(), &[0]].concat();
    damage.judge("segment with a byte more", &longer);
    let (errors, _) = damage.report();
    assert!(errors > 60, "{errors}");
}

#[test]
fn a_missing_or_exchanged_segment_is_an_error_and_other_tables_go_on() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    let names: Vec<String> = files_on_disk(&path).into_iter().collect();
    let file = |n: usize| path.join("segments").join(&names[n]);
    let [first, second, u] = [file(0), file(1), file(3)];
    let whole = fs::read(&first).unwrap();
    let broken = |what: &str, reason: &str| {
        let database = Database::open(&path, &tiny()).unwrap();
        let session = database.session().unwrap();
        for query in
            ["SELECT * FROM t", "SELECT count(*) FROM t", "SELECT max(id) FROM t", "SELECT note FROM t LIMIT 1"]
        {
            let e = runtime.block_on(support::fails(&session, query));
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: {e}");
            assert!(e.message().contains(&names[0]) && e.message().contains(reason), "{what}: {e}");
        }
        assert_eq!(runtime.block_on(support::run(&session, "SELECT count(*), sum(k) FROM u")), ["100|4950"]);
        // What stands on system tables sees no segments, or says the same.
        let _ = runtime.block_on(rows(&session, "SELECT * FROM onehop_columns"));
        let _ = runtime.block_on(rows(&session, "SELECT * FROM onehop_segments"));
        drop((session, database));
        let report = check::check(&path, &mut |_, _| {}).unwrap();
        assert_eq!(report.problems.len(), 1, "{what}");
        assert_eq!(report.problems[0].table, "t");
        assert!(report.problems[0].error.message().contains(&names[0]), "{what}");
    };
    fs::remove_file(&first).unwrap();
    broken("missing", "is missing");
    fs::copy(&u, &first).unwrap();
    broken("a segment of another table", "rows");
    fs::write(&first, b"").unwrap();
    broken("empty", "too few for a segment");
    fs::remove_file(&first).unwrap();
    fs::create_dir(&first).unwrap();
    {
        let database = Database::open(&path, &tiny()).unwrap();
        let session = database.session().unwrap();
        let e = runtime.block_on(support::fails(&session, "SELECT * FROM t"));
        assert!(e.message().contains(&names[0]), "{e}");
    }
    fs::remove_dir(&first).unwrap();

    // As many rows, and the same columns: another segment of the same table. Its length tells them apart.
    fs::copy(&second, &first).unwrap();
    assert_ne!(fs::read(&second).unwrap().len(), whole.len(), "this needs segments of different lengths");
    broken("another segment of the table", "bytes, and the catalog says");
    // A table whose file is lost can be given up.
    fs::remove_file(&first).unwrap();
    let database = Database::open(&path, &tiny()).unwrap();
    let session = database.session().unwrap();
    runtime.block_on(support::run(&session, "DROP TABLE t"));
    assert_eq!(runtime.block_on(support::run(&session, "SELECT c FROM v")), ["100"]);
}

#[test]
fn a_segment_with_other_columns_is_an_error_though_it_is_whole() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let database = Database::open(&path, &tiny()).unwrap();
    let session = database.session().unwrap();
    for statement in [
        "CREATE TABLE a AS SELECT unnest(range(0, 100)) AS x",
        "CREATE TABLE b AS SELECT unnest(range(0, 100)) AS y",
        "CREATE TABLE c AS SELECT i AS x, 'text' AS z FROM (SELECT unnest(range(0, 100)) AS i)",
    ] {
        runtime.block_on(support::run(&session, statement));
    }
    drop((session, database));
    let names: Vec<PathBuf> = files_on_disk(&path).into_iter().map(|name| path.join("segments").join(name)).collect();
    for (from, onto, table) in [(1, 0, "a"), (2, 0, "a"), (0, 2, "c")] {
        let whole = fs::read(&names[onto]).unwrap();
        fs::copy(&names[from], &names[onto]).unwrap();
        let database = Database::open(&path, &tiny()).unwrap();
        let session = database.session().unwrap();
        for query in ["SELECT * FROM", "SELECT count(*) FROM", "SELECT max(x) FROM"] {
            let e = runtime.block_on(support::fails(&session, &format!("{query} {table}")));
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
        }
        fs::write(&names[onto], whole).unwrap();
    }
}

/// Segments of one table, with as many rows and bytes: the catalog's checksums tell them apart.
#[test]
fn a_segment_in_the_place_of_another_is_an_error() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    {
        let database = Database::open(&path, &tiny()).unwrap();
        let session = database.session().unwrap();
        for statement in [
            "CREATE TABLE s (x BIGINT NOT NULL)",
            "INSERT INTO s SELECT unnest(range(0, 1000))",
            "INSERT INTO s SELECT unnest(range(5000, 6000))",
        ] {
            runtime.block_on(support::run(&session, statement));
        }
    }
    let names: Vec<String> = files_on_disk(&path).into_iter().collect();
    let files: Vec<PathBuf> = names.iter().map(|name| path.join("segments").join(name)).collect();
    let whole: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    assert_eq!(whole[0].len(), whole[1].len(), "this needs segments of the same length");
    // One is copied over the other, each over the other, and both are there again.
    for (contents, wrong) in [([0, 0], &names[1..]), ([1, 1], &names[..1]), ([1, 0], &names[..]), ([0, 1], &[])] {
        for (file, contents) in files.iter().zip(contents) {
            fs::write(file, &whole[contents]).unwrap();
        }
        let report = check::check(&path, &mut |_, _| {}).unwrap();
        assert_eq!(report.problems.len(), wrong.len(), "{contents:?}");
        for (problem, name) in report.problems.iter().zip(wrong) {
            assert!(problem.error.message().contains(name), "{contents:?}: {}", problem.error);
        }
        let database = Database::open(&path, &tiny()).unwrap();
        let session = database.session().unwrap();
        for query in ["SELECT sum(x) FROM s", "SELECT count(*) FROM s", "SELECT x FROM s ORDER BY x LIMIT 1"] {
            match (runtime.block_on(rows(&session, query)), wrong.is_empty()) {
                (Ok(_), true) => {}
                (Err(e), false) => {
                    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
                    let is_named = wrong.iter().any(|name| e.message().contains(name.as_str()));
                    assert!(is_named && e.message().contains("of table \"s\""), "{e}");
                }
                (outcome, _) => panic!("{contents:?}: {query}: {outcome:?}"),
            }
        }
    }
}

#[test]
fn foreign_files_stay_and_orphans_go() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    let segments = path.join("segments");
    let foreign = ["notes.txt", "backup.seg", "00000001-copy.seg", "1-2.seg"];
    for name in foreign {
        fs::write(segments.join(name), b"mine").unwrap();
    }
    fs::create_dir(segments.join("99999999-99999999.seg")).unwrap();
    let orphan = "00000001-00099999.seg";
    fs::write(segments.join(orphan), b"half a segment").unwrap();
    let left_over = ["catalog.new", "catalog", "store.new"];
    for name in left_over {
        fs::write(path.join(name), b"onehop cata").unwrap();
    }

    drop(Database::open(&path, &read_only()).unwrap());
    assert!(files_on_disk(&path).contains(orphan), "a reader removed something");
    assert!(check::check(&path, &mut |_, _| {}).unwrap().problems.is_empty());
    let database = Database::open(&path, &tiny()).unwrap();
    let left = files_on_disk(&path);
    assert!(!left.contains(orphan));
    assert!(left_over.iter().all(|name| !path.join(name).exists()));
    for name in foreign.iter().chain(&["99999999-99999999.seg"]) {
        assert!(left.contains(*name), "{name} was removed");
    }
    let session = database.session().unwrap();
    runtime.block_on(support::run(&session, "CREATE TABLE more AS SELECT 1 AS one"));
    assert!(known_files(&database).is_subset(&files_on_disk(&path)));
}

#[test]
fn a_catalog_that_is_lost_or_of_another_version_is_not_replaced() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    let catalog = path.join("store");
    let whole = fs::read(&catalog).unwrap();
    let files = files_on_disk(&path);
    let refused = |kind: ErrorKind, reason: &str| {
        for options in [tiny(), read_only()] {
            let e = Database::open(&path, &options).unwrap_err();
            // To a reader a lost catalog is no database at all.
            if options.access == Access::ReadWrite || e.kind() != ErrorKind::NotFound {
                assert_eq!(e.kind(), kind, "{e}");
                assert!(e.message().contains(reason), "{e}");
            }
            assert!(e.hint().is_some(), "{e}");
        }
        assert_eq!(files_on_disk(&path), files);
    };
    fs::remove_file(&catalog).unwrap();
    refused(ErrorKind::Corrupt, "store is missing, and there are segment files");
    assert!(!catalog.exists());

    let before = path.join("catalog");
    fs::write(&before, b"onehop catalog 3 00000000\n{\"whatever\": true}\n").unwrap();
    refused(ErrorKind::TooNew, "catalog format 3");
    fs::write(&before, b"").unwrap();
    refused(ErrorKind::Corrupt, "catalog is corrupt");
    fs::write(&before, [0xff, 0xfe, 0]).unwrap();
    refused(ErrorKind::Corrupt, "it is not text");
    fs::remove_file(&before).unwrap();
    fs::write(&catalog, [0xff; 20_000]).unwrap();
    refused(ErrorKind::Corrupt, "store");

    fs::remove_file(&catalog).unwrap();
    fs::create_dir(&catalog).unwrap();
    let e = Database::open(&path, &tiny()).unwrap_err();
    assert!(e.message().contains("store"), "{e}");
    fs::remove_dir(&catalog).unwrap();

    fs::write(&catalog, whole).unwrap();
    look(&path, &runtime).unwrap();
}

/// The directory as it was before databases had a store: a text file says which tables there are.
fn to_manifest(path: &Path, format: u32) {
    let database = Database::open(path, &read_only()).unwrap();
    let snapshot = database.snapshot();
    let mut body = serde_json::to_value(&*snapshot.catalog).unwrap();
    if format == 1 {
        for table in body["tables"].as_object_mut().unwrap().values_mut() {
            for segment in table["segments"].as_array_mut().unwrap() {
                segment.as_object_mut().unwrap().remove("checksum");
            }
        }
    }
    let body = format!("{}\n", serde_json::to_string_pretty(&body).unwrap());
    let crc = crc32c::crc32c(body.as_bytes());
    fs::write(path.join("catalog"), format!("onehop catalog {format} {crc:08x}\n{body}")).unwrap();
    drop((snapshot, database));
    fs::remove_file(path.join("store")).unwrap();
}

#[test]
fn a_database_of_before_the_store_is_read_and_moved_into_one() {
    let runtime = runtime();
    for format in [1, 2] {
        let (_dir, path) = sample(&runtime);
        let right = look(&path, &runtime).unwrap();
        to_manifest(&path, format);
        // For reading it stays what it is.
        let reader = Database::open(&path, &read_only()).unwrap();
        assert_eq!(runtime.block_on(dump(&reader)).unwrap(), *right.last().unwrap());
        assert!(check::check(&path, &mut |_, _| {}).unwrap().problems.is_empty());
        drop(reader);
        assert!(path.join("catalog").exists() && !path.join("store").exists());

        assert_eq!(look(&path, &runtime).unwrap(), right);
        assert!(!path.join("catalog").exists() && path.join("store").exists());
        assert_eq!(look(&path, &runtime).unwrap(), right);
        // Cut short after the store had its name: the old file is gone the next time.
        fs::write(path.join("catalog"), b"whatever").unwrap();
        assert_eq!(look(&path, &runtime).unwrap(), right);
        assert!(!path.join("catalog").exists());
    }
}

#[test]
fn segments_may_be_missing_altogether_or_a_file() {
    let runtime = runtime();
    let (dir, path) = sample(&runtime);
    fs::rename(path.join("segments"), dir.path().join("away")).unwrap();
    let e = look(&path, &runtime).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    assert!(e.message().contains("is missing"), "{e}");
    fs::remove_dir(path.join("segments")).unwrap();

    fs::write(path.join("segments"), b"a file").unwrap();
    let e = Database::open(&path, &tiny()).unwrap_err();
    assert!(e.message().contains("segments"), "{e}");
}

#[test]
fn the_lock_file_may_be_missing_or_hold_anything() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    let lock = path.join("LOCK");
    let right = look(&path, &runtime).unwrap();
    fs::remove_file(&lock).unwrap();
    drop(Database::open(&path, &read_only()).unwrap());
    fs::remove_file(&lock).unwrap();
    assert!(check::check(&path, &mut |_, _| {}).unwrap().problems.is_empty());
    fs::write(&lock, [0xff; 5000]).unwrap();
    assert_eq!(look(&path, &runtime).unwrap(), right);
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    let e = Database::open(&path, &tiny()).unwrap_err();
    assert!(e.kind() == ErrorKind::Io && e.message().starts_with("cannot lock the database"), "{e}");
}

#[test]
fn paths_that_are_no_database_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"text").unwrap();
    let e = Database::open(&file, &tiny()).unwrap_err();
    assert!(e.kind() == ErrorKind::Io && e.message().ends_with("it is a file"), "{e}");
    let e = Database::open(&file, &read_only()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    let e = Database::open(&file.join("below"), &tiny()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
    assert_eq!(fs::read(&file).unwrap(), b"text");

    let absent = dir.path().join("absent");
    assert_eq!(Database::open(&absent, &read_only()).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!absent.exists());
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert_eq!(Database::open(&empty, &read_only()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);

    // Other programs have lock files too.
    for names in [vec!["readme.md"], vec!["LOCK", "CURRENT", "MANIFEST-000001"], vec!["segments", "data.csv"]] {
        let foreign = dir.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        for name in &names {
            fs::write(foreign.join(name), b"").unwrap();
        }
        let e = Database::open(&foreign, &tiny()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        assert!(e.message().contains("not a database"), "{e}");
        assert_eq!(fs::read_dir(&foreign).unwrap().count(), names.len());
        assert!(names.iter().all(|name| fs::read(foreign.join(name)).unwrap().is_empty()));
        fs::remove_dir_all(&foreign).unwrap();
    }
    // One that was begun and cut short is ours.
    let begun = dir.path().join("begun");
    fs::create_dir_all(begun.join("segments")).unwrap();
    fs::write(begun.join("LOCK"), b"1\n").unwrap();
    fs::write(begun.join("store.new"), b"onehop").unwrap();
    drop(Database::open(&begun, &tiny()).unwrap());
    drop(Database::open(&begun, &read_only()).unwrap());
}

const PLACE: &str = "ONEHOP_TEST_PLACE";

/// Permissions mean nothing to root: the body below runs as somebody else, if need be.
#[test]
fn a_directory_without_permission_says_so_and_can_be_read() {
    let runtime = runtime();
    let (dir, path) = sample(&runtime);
    fs::remove_file(path.join("LOCK")).unwrap();
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for place in [dir.path(), &path, &path.join("segments")] {
        mode(place, 0o555);
    }
    let is_root = fs::metadata("/proc/self").map(|m| std::os::unix::fs::MetadataExt::uid(&m)).unwrap() == 0;
    let (passed, output) = support::in_a_process(
        "body_without_permission",
        "",
        &[(PLACE, &path), ("TMPDIR", Path::new("/tmp"))],
        is_root.then_some(65_534),
    );
    for place in [dir.path(), &path, &path.join("segments")] {
        mode(place, 0o755);
    }
    assert!(passed, "{output}");
}

#[test]
#[ignore = "run by a_directory_without_permission_says_so_and_can_be_read"]
fn body_without_permission() {
    let path = PathBuf::from(std::env::var_os(PLACE).unwrap());
    let runtime = runtime();
    let e = Database::open(&path, &tiny()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
    assert!(e.message().contains("ermission denied") && e.hint() == Some("open it with --readonly"), "{e}");

    let database = Database::open(&path, &read_only()).unwrap();
    let session = database.session().unwrap();
    assert_eq!(runtime.block_on(support::run(&session, "SELECT count(*) FROM t")), ["2500"]);
    for statement in ["CREATE TABLE x (y INTEGER)", "INSERT INTO t SELECT * FROM t", "DROP TABLE t", "DROP VIEW v"] {
        let e = runtime.block_on(support::fails(&session, statement));
        assert_eq!(e.kind(), ErrorKind::ReadOnly, "{statement}: {e}");
    }
    assert!(check::check(&path, &mut |_, _| {}).unwrap().problems.is_empty());

    let e = Database::open(&path.with_file_name("new"), &tiny()).unwrap_err();
    assert!(e.kind() == ErrorKind::Io && e.message().contains("ermission denied"), "{e}");
}
