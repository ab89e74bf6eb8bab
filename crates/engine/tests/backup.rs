//! Backups of a database that is being written to, and what becomes of them.
//!
//! A writer commits numbered transactions at full speed: a row in `t` and its number in `head`, and now and then a bulk insert, a
//! table that is dropped and made again, and a checkpoint. Whatever a backup catches must be the state after one of them.
//!
//! `ONEHOP_BACKUP_ROUNDS=50` takes so many backups. `ONEHOP_BACKUP_SECONDS=600` paces the writer at 1,000 transactions a second,
//! takes a backup every ten seconds, and fails if the writer is slower than 95 of 100 while one is taken.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use onehop_engine::backup::{BackupOptions, BackupReport, Phase, Sharing, backup, restore};
use onehop_engine::check::check;
use onehop_engine::{Access, Database, DatabaseOptions, Error, ErrorKind, Result};
use support::{SMALL, files_on_disk, known_files, options, run, runtime};

/// Rows of a bulk insert: enough for segments.
const BULK: u64 = 2_000;
/// Transactions between two larger statements.
const PAUSE: u64 = 10;

/// Rows become segments when a statement says so.
fn unhurried() -> DatabaseOptions {
    options(&[&SMALL[..], &[("storage.checkpoint_rows", "0")]].concat())
}

fn whatever(_: Phase, _: u64, _: u64) -> Result<()> {
    Ok(())
}

fn made(path: &Path, to: &Path, base: Option<&Path>) -> Result<BackupReport> {
    let options = BackupOptions { base: base.map(Path::to_path_buf), sharing: Sharing::default() };
    backup(path, to, &options, &mut whatever)
}

/// What the writer has done.
#[derive(Default)]
struct Progress {
    committed: AtomicU64,
    is_over: AtomicBool,
}

/// Commits until it is told to stop; `pace`: so many a second.
fn write(database: &Database, progress: &Progress, pace: Option<u64>) {
    let (runtime, session) = (runtime(), database.session().unwrap());
    let began = Instant::now();
    for n in 0.. {
        let mut statements =
            vec![format!("BEGIN IMMEDIATE; INSERT INTO t VALUES ({n}); UPDATE head SET n = {n}; COMMIT")];
        match n % (5 * PAUSE) {
            10 => statements.push(format!("INSERT INTO bulk SELECT {n}, value FROM generate_series(1, {BULK})")),
            20 => statements.push("CHECKPOINT t, head".into()),
            30 => statements
                .push(format!("CREATE OR REPLACE TABLE other AS SELECT {n} AS n FROM generate_series(1, {BULK})")),
            40 => statements.push("DELETE FROM bulk WHERE value % 3 > 0; CHECKPOINT bulk; TRUNCATE bulk".into()),
            _ => {}
        }
        for statement in statements.iter().flat_map(|statements| statements.split("; ")) {
            runtime.block_on(run(&session, statement));
        }
        progress.committed.store(n + 1, SeqCst);
        if progress.is_over.load(SeqCst) {
            return;
        }
        if let Some(due) = pace.map(|pace| Duration::from_micros(n * 1_000_000 / pace)) {
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    }
}

/// The database at `path` is the state after one commit, not before `least`.
fn is_one_commit(path: &Path, least: u64) {
    let read_only = DatabaseOptions { access: Access::ReadOnly, ..unhurried() };
    let database = Database::open(path, &read_only).unwrap();
    let (runtime, session) = (runtime(), database.session().unwrap());
    let one = |sql: &str| runtime.block_on(run(&session, sql)).remove(0);
    let numbers = one("SELECT count(*), count(DISTINCT n), coalesce(min(n), 0), coalesce(max(n) + 1, 0) FROM t");
    let numbers: Vec<u64> = numbers.split('|').map(|number| number.parse().unwrap()).collect();
    let [count, different, first, next] = numbers[..] else { panic!("{numbers:?}") };
    assert_eq!((count, different, first), (next, next, 0), "rows without a gap");
    assert!(count >= least, "{least} transactions were acknowledged before, and {count} are there");
    assert_eq!(one("SELECT n + 1 FROM head"), count.to_string());
    let torn =
        format!("SELECT count(*) FROM (SELECT n FROM bulk GROUP BY n HAVING count(*) NOT IN ({BULK}, {BULK} / 3))");
    assert_eq!(one(&torn), "0", "bulk inserts are whole");
    let other = one("SELECT count(*), count(DISTINCT n) FROM other");
    assert!(["0|0".to_string(), format!("{BULK}|1")].contains(&other), "{other}");
    drop(session);
    let known = known_files(&database);
    assert_eq!(files_on_disk(path), known, "no other segments");
}

fn prepare(path: &Path) -> Database {
    let database = Database::open(path, &unhurried()).unwrap();
    let session = database.session().unwrap();
    for statement in [
        "CREATE TABLE t (n BIGINT)",
        "CREATE TABLE head AS SELECT CAST(-1 AS BIGINT) AS n",
        "CREATE TABLE bulk (n BIGINT, value BIGINT)",
        "CREATE TABLE other (n BIGINT)",
    ] {
        runtime().block_on(run(&session, statement));
    }
    database
}

#[test]
fn backups_of_a_busy_database_are_single_commits() {
    let directory = tempfile::tempdir().unwrap();
    let (path, at) = (directory.path().join("db"), |name: String| directory.path().join(name));
    let database = prepare(&path);
    let rounds: u64 = std::env::var("ONEHOP_BACKUP_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let progress = Progress::default();
    std::thread::scope(|scope| {
        scope.spawn(|| write(&database, &progress, None));
        let mut base = None;
        for round in 0..rounds {
            // Another part of the cycle each time.
            let wanted = progress.committed.load(SeqCst) + 1 + round * 7;
            while progress.committed.load(SeqCst) < wanted {
                std::thread::sleep(Duration::from_millis(1));
            }
            let (copy, restored) = (at(format!("backup-{round}")), at(format!("restored-{round}")));
            let least = progress.committed.load(SeqCst);
            let report = made(&path, &copy, base.as_deref()).unwrap();
            println!("round {round}: {least} transactions before, {report:?}");
            is_one_commit(&copy, least);
            restore(&copy, &restored, &mut whatever).unwrap();
            is_one_commit(&restored, least);
            assert!(check(&restored, &mut |_, _| {}).unwrap().problems.is_empty());
            base = Some(copy);
        }
        progress.is_over.store(true, SeqCst);
    });
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len() as u64, 1 + 2 * rounds, "nothing is left beside them: {left:?}");
}

/// Transactions a second from one number to another.
fn rate(before: (u64, Instant), after: (u64, Instant)) -> f64 {
    (after.0 - before.0) as f64 / (after.1 - before.1).as_secs_f64()
}

#[test]
fn backups_for_a_long_time_do_not_slow_the_writer_down() {
    let Some(seconds) = std::env::var("ONEHOP_BACKUP_SECONDS").ok().and_then(|n| n.parse::<u64>().ok()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let database = prepare(&path);
    let progress = Progress::default();
    let now = || (progress.committed.load(SeqCst), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| write(&database, &progress, Some(1_000)));
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for round in 0..seconds / 10 {
            let began = now();
            std::thread::sleep(Duration::from_secs(5));
            alone.push(rate(began, now()));
            let (copy, began) = (directory.path().join(format!("backup-{round}")), now());
            let report = made(&path, &copy, None).unwrap();
            let took = began.1.elapsed();
            std::thread::sleep(Duration::from_secs(5).saturating_sub(took));
            beside.push(rate(began, now()));
            println!("round {round}: {took:?} for {} bytes", report.bytes);
            is_one_commit(&copy, began.0);
            fs::remove_dir_all(copy).unwrap();
        }
        progress.is_over.store(true, SeqCst);
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
        let (alone, beside) = (mean(&alone), mean(&beside));
        println!("{alone:.0} transactions a second alone, {beside:.0} while a backup is taken");
        assert!(beside >= 0.95 * alone);
    });
}

/// A database as [`prepare`] makes it, with a segment.
fn with_a_segment(path: &Path) -> Database {
    let database = prepare(path);
    let session = database.session().unwrap();
    let bulk = format!("INSERT INTO bulk SELECT 1, value FROM generate_series(1, {BULK})");
    runtime().block_on(run(&session, &bulk));
    database
}

#[test]
fn a_backup_is_made_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let (path, at) = (directory.path().join("db"), |name: &str| directory.path().join(name));
    let database = with_a_segment(&path);

    // Whenever it is cancelled, nothing stays.
    for stop_at in 0.. {
        let mut calls = 0;
        let mut hear = |_, _, _| {
            calls += 1;
            if calls > stop_at { Err(Error::new(ErrorKind::Cancelled, "stop")) } else { Ok(()) }
        };
        let outcome = backup(&path, &at("cancelled"), &BackupOptions::default(), &mut hear);
        match outcome {
            Ok(_) => break,
            Err(e) => assert_eq!(e.kind(), ErrorKind::Cancelled, "{e}"),
        }
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["db"], "stopped at {stop_at}");
    }

    // What a killed process has left goes with the next one of that name; what another makes stays.
    let abandoned = at(&format!("monday.new-{:032x}", 7));
    fs::create_dir_all(abandoned.join("segments")).unwrap();
    let foreign = at("monday.new-mine");
    fs::create_dir(&foreign).unwrap();
    let first = made(&path, &at("monday"), None).unwrap();
    assert!(!abandoned.exists() && foreign.exists());
    assert_eq!((first.tables, first.files), (4, known_files(&database).len() as u64));
    let again = made(&path, &at("monday"), None).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);

    // With a base nothing is copied that it has; without sharing everything is.
    let options = BackupOptions { base: Some(at("monday")), sharing: Sharing::Blocks };
    let second = backup(&path, &at("tuesday"), &options, &mut whatever).unwrap();
    assert_eq!((second.base_files, second.linked_files), (first.files, 0));
    let options = BackupOptions { base: None, sharing: Sharing::Nothing };
    let third = backup(&path, &at("wednesday"), &options, &mut whatever).unwrap();
    assert_eq!(third.copied_files, first.files);

    // A segment that is missing or damaged is not backed up as if it were there.
    let file = known_files(&database).into_iter().next().unwrap();
    let segment = path.join("segments").join(&file);
    let bytes = fs::read(&segment).unwrap();
    fs::remove_file(&segment).unwrap();
    let missing = made(&path, &at("thursday"), None).unwrap_err();
    assert!(missing.kind() == ErrorKind::Corrupt && missing.message().contains(&file), "{missing}");
    let mut damaged = bytes;
    damaged[4_100] ^= 1;
    fs::write(&segment, damaged).unwrap();
    let damaged = made(&path, &at("friday"), None).unwrap_err();
    assert!(damaged.kind() == ErrorKind::Corrupt && damaged.message().contains(&file), "{damaged}");
    assert!(!at("thursday").exists() && !at("friday").exists());
    let absent = made(&at("none"), &at("saturday"), None).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    let within = made(&path, &path.join("segments/sunday"), None).unwrap_err();
    assert!(within.kind() == ErrorKind::Invalid && within.message().contains("is inside of"), "{within}");
    let nowhere = made(&path, &at("none/sunday"), None).unwrap_err();
    assert!(nowhere.hint().is_some_and(|hint| hint.contains("make the directory")), "{nowhere}");
}

#[test]
fn a_copy_is_as_private_as_what_it_is_of() {
    let directory = tempfile::tempdir().unwrap();
    let (path, at) = (directory.path().join("db"), |name: &str| directory.path().join(name));
    drop(with_a_segment(&path));
    let segment = format!("segments/{}", files_on_disk(&path).first().unwrap());
    let modes = [("", 0o700), ("segments", 0o750), ("store", 0o600), (segment.as_str(), 0o640)];
    for (file, mode) in modes {
        fs::set_permissions(path.join(file), Permissions::from_mode(mode)).unwrap();
    }
    made(&path, &at("linked"), None).unwrap();
    let options = BackupOptions { base: None, sharing: Sharing::Nothing };
    backup(&path, &at("copied"), &options, &mut whatever).unwrap();
    // A backup may be kept from changes; what is restored from it is not.
    fs::set_permissions(at("copied/store"), Permissions::from_mode(0o400)).unwrap();
    restore(&at("copied"), &at("restored"), &mut whatever).unwrap();
    for (copy, (file, mode)) in ["linked", "copied", "restored"].into_iter().flat_map(|copy| modes.map(|it| (copy, it)))
    {
        let found = fs::metadata(at(copy).join(file)).unwrap().permissions().mode() & 0o777;
        let is_kept = found == mode || (copy, file, found) == ("copied", "store", 0o400);
        assert!(is_kept, "{copy}/{file}: {found:o} and not {mode:o}");
    }
}

#[test]
fn a_restored_database_goes_its_own_way() {
    let directory = tempfile::tempdir().unwrap();
    let (path, at) = (directory.path().join("db"), |name: &str| directory.path().join(name));
    let runtime = runtime();
    let fill = |path: &Path, n: u64| {
        let session = Database::open(path, &unhurried()).unwrap().session().unwrap();
        let bulk = format!("INSERT INTO bulk SELECT {n}, value FROM generate_series(1, {BULK})");
        runtime.block_on(run(&session, &bulk));
        runtime.block_on(run(&session, "SELECT n, count(*) FROM bulk GROUP BY n"))
    };
    drop(prepare(&path));
    fill(&path, 1);
    made(&path, &at("backup"), None).unwrap();
    let of_backup = files_on_disk(&at("backup"));

    fs::create_dir(at("full")).unwrap();
    fs::write(at("full").join("mine"), "mine").unwrap();
    let refused = restore(&at("backup"), &at("full"), &mut whatever).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    fs::create_dir(at("empty")).unwrap();
    restore(&at("backup"), &at("empty"), &mut whatever).unwrap();
    restore(&at("backup"), &at("new"), &mut whatever).unwrap();

    // Each has a history of its own, and none removes what another has.
    let two = |n| BTreeSet::from([format!("1|{BULK}"), format!("{n}|{BULK}")]);
    for (place, n) in [("db", 2), ("empty", 3), ("new", 4)] {
        assert_eq!(BTreeSet::from_iter(fill(&at(place), n)), two(n));
    }
    assert_eq!(files_on_disk(&at("backup")), of_backup);
    assert!(check(&at("backup"), &mut |_, _| {}).unwrap().problems.is_empty());

    // Segments of one history in the directory of another are known for what they are.
    let known: BTreeSet<String> = files_on_disk(&at("new"));
    let strange = files_on_disk(&path).difference(&of_backup).next().unwrap().clone();
    fs::copy(path.join("segments").join(&strange), at("new").join("segments/00000099-00000099.seg")).unwrap();
    let report = check(&at("new"), &mut |_, _| {}).unwrap();
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert!(finding.about.contains("a session that the store does not know"), "{finding:?}");
    drop(Database::open(&at("new"), &unhurried()).unwrap());
    assert_eq!(files_on_disk(&at("new")), known);
    assert!(at("new").join("lost+found/00000099-00000099.seg").exists());
}
