//! Scans of what is in no memory: blocks are read before they are wanted.
//!
//! Whatever happens to those reads, a query has exactly the right rows, or the error that the read of whoever wanted the
//! block met.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use onehop_engine::{Database, ErrorKind, Output, Session};
use onehop_io::{Fault, Faulty, Hop, LocalVolume, RequestedPath};
use support::{SegmentVolume, made_by, options, rows, run, runtime};
use tokio::runtime::Runtime;

const ROWS: u64 = 400_000;

/// Of a column whose values come in no order.
fn value(row: u64, column: u64) -> u64 {
    row * [7919, 6007, 9973][column as usize] % 1_000_003
}

/// What runs queries: pipelines, which learn what to read ahead, and DataFusion's operators, whose scans know it.
const MODES: [&str; 2] = ["fused", "datafusion"];

const ALL: &str = "SELECT sum(a), sum(b), max(c), count(*) FROM t";

fn answer_of_all() -> String {
    let sum = |column| (0..ROWS).map(|row| value(row, column)).sum::<u64>();
    let max = (0..ROWS).map(|row| value(row, 2)).max().unwrap();
    format!("{}|{}|{max}|{ROWS}", sum(0), sum(1))
}

/// A database of one table in one segment, closed.
fn sample(runtime: &Runtime) -> (tempfile::TempDir, PathBuf) {
    let sql = "CREATE TABLE t AS SELECT i * 7919 % 1000003 AS a, i * 6007 % 1000003 AS b, i * 9973 % 1000003 AS c \
               FROM (SELECT unnest(range(0, 400000)) AS i)";
    made_by(runtime, sql)
}

/// What comes of a query when segments misbehave, and how often the one that was called most often was.
fn with_faults(
    runtime: &Runtime,
    path: &Path,
    mode: &str,
    faults: &[Fault],
    sql: &str,
) -> (onehop_engine::Result<Vec<String>>, u64) {
    let opened = Arc::new(Mutex::new(Vec::new()));
    let (files, faults) = (Arc::clone(&opened), faults.to_vec());
    let volume = SegmentVolume::open(path, move |file| {
        let file = Arc::new(Faulty::new(Arc::new(file), faults.clone()));
        files.lock().unwrap().push(Arc::clone(&file));
        file
    });
    let database = Database::on_volume(Arc::new(volume), &options(&[("threads", "2"), ("exec.mode", mode)])).unwrap();
    let outcome = runtime.block_on(rows(&database.session().unwrap(), sql));
    let calls = opened.lock().unwrap().iter().map(|file| file.calls()).max().unwrap_or(0);
    (outcome, calls)
}

#[test]
fn an_error_at_every_read_is_that_error() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    // Rows that leave as they are made, too: none of them is taken for all.
    let join = "SELECT x.a, y.c FROM t AS x JOIN t AS y ON x.a = y.a WHERE x.b > 10";
    for (mode, sql) in MODES.iter().flat_map(|mode| [(mode, ALL), (mode, join)]) {
        let (outcome, calls) = with_faults(&runtime, &path, mode, &[], sql);
        let answer = outcome.unwrap();
        assert!(sql == join || answer == [answer_of_all()]);
        // The first page, the trailer, the footer, and each column: neighbours are read at once.
        assert!(calls >= 6, "only {calls} reads");
        let (mut elsewhere, mut errors) = (0, 0);
        for at in 0..calls {
            let (outcome, reached) = with_faults(&runtime, &path, mode, &[Fault::FailFrom(at)], sql);
            // How many reads there are depends on who was faster: there may have been none that failed.
            let error = match outcome {
                Ok(rows) if reached <= at => {
                    assert!(rows == answer);
                    continue;
                }
                outcome => outcome.unwrap_err(),
            };
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Io, "{said}");
            assert!(said.contains(".seg (") && said.contains("bytes at offset"), "{mode}: {said}");
            elsewhere += usize::from(!said.contains("(column \"") || !said.contains("block "));
            errors += 1;
        }
        assert!(errors >= 5, "{mode}: only {errors} errors");
        // The first page, the trailer and the footer are no column's.
        assert!(elsewhere <= 3, "{mode}: {elsewhere} errors name no column and block");
    }
}

#[test]
fn short_and_interrupted_reads_change_nothing() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    for seed in 0..5 {
        let faults = [Fault::Short(seed), Fault::InterruptAt(seed), Fault::InterruptAt(20 + seed)];
        for mode in MODES {
            assert_eq!(with_faults(&runtime, &path, mode, &faults, ALL).0.unwrap(), [answer_of_all()]);
        }
    }
}

#[test]
fn a_flipped_bit_is_found_in_what_was_read_ahead() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    // In the last block of each column, by the number of the bit.
    for byte in [900_000, 1_900_000, 2_900_000] {
        for mode in MODES {
            let error = with_faults(&runtime, &path, mode, &[Fault::FlipBit(8 * byte + 3)], ALL).0.unwrap_err();
            let said = error.to_string();
            assert!(error.kind() == ErrorKind::Corrupt && said.contains("column \""), "{said}");
            assert!(said.contains("block") && said.contains("do not match their checksum"), "{said}");
        }
    }
}

#[test]
fn a_segment_that_was_cut_while_it_is_open_is_an_error() {
    let runtime = runtime();
    for (how, mode) in ["auto", "buffered", "direct"].iter().flat_map(|how| MODES.map(|mode| (how, mode))) {
        let (_dir, path) = sample(&runtime);
        let Ok(database) = Database::open(&path, &options(&[("io.path", how), ("exec.mode", mode)])) else {
            eprintln!("no O_DIRECT here");
            continue;
        };
        let session = database.session().unwrap();
        // Opens the segment and reads none of its blocks.
        runtime.block_on(run(&session, "EXPLAIN SELECT sum(a) FROM t"));
        let folder = path.join("segments");
        let file = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        let length = fs::metadata(&file).unwrap().len();
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
        let error = runtime.block_on(rows(&session, ALL)).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("the file ends") && said.contains("(column \""), "{how}, {mode}: {said}");
        // What is left of it is still there to be read.
        assert_eq!(runtime.block_on(run(&session, "SELECT 1 + 1")), ["2"]);
    }
}

#[test]
fn all_paths_have_the_same_rows_and_say_what_they_are() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    for (how, way) in [("auto", ""), ("buffered", "4 threads, buffered"), ("direct", "host direct")] {
        for threads in ["1", "3"] {
            let settings = [("io.path", how), ("threads", threads)];
            let Ok(database) = Database::open(&path, &options(&settings)) else {
                eprintln!("no O_DIRECT here");
                continue;
            };
            let session = database.session().unwrap();
            let explained = runtime.block_on(run(&session, &format!("EXPLAIN ANALYZE {ALL}"))).join("\n");
            assert!(explained.contains("read ahead") && explained.contains(way), "{explained}");
            if how == "direct" && explained.contains("read ahead 0 B") {
                // Who wants a block does not wait for whoever reads ahead, who comes too late where others are busy: not always.
                let is_ahead = |_| {
                    let session = Database::open(&path, &options(&settings)).unwrap().session().unwrap();
                    let again = runtime.block_on(run(&session, &format!("EXPLAIN ANALYZE {ALL}"))).join("\n");
                    again.contains("read ahead") && !again.contains("read ahead 0 B")
                };
                drop((session, database));
                assert!((0..100).any(is_ahead), "{explained}");
                continue;
            }
            // Everything is in memory now.
            let explained = runtime.block_on(run(&session, &format!("EXPLAIN ANALYZE {ALL}"))).join("\n");
            assert!(!explained.contains("read ahead"), "{explained}");
            assert_eq!(runtime.block_on(run(&session, ALL)), [answer_of_all()]);
        }
    }
}

/// What the file system has forgotten is read again.
fn forget(path: &Path) {
    for entry in fs::read_dir(path.join("segments")).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        // Bytes that were never written back cannot be forgotten.
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

#[test]
fn scans_of_datafusion_read_ahead() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    for (how, way) in [("buffered", "2 threads, buffered"), ("direct", "host direct")] {
        for threads in ["1", "3"] {
            let settings = [("io.path", how), ("threads", threads), ("exec.mode", "datafusion")];
            let Ok(database) = Database::open(&path, &options(&settings)) else {
                eprintln!("no O_DIRECT here");
                continue;
            };
            let session = database.session().unwrap();
            forget(&path);
            let explained = runtime.block_on(run(&session, &format!("EXPLAIN ANALYZE {ALL}"))).join("\n");
            // Where files stay in memory whatever one says, they are copied from there.
            if how == "direct" || explained.contains("read ahead") {
                assert!(explained.contains(way) && !explained.contains("read ahead 0 B"), "{explained}");
                // What one part of a scan reads through the page cache, the system may read beyond, into those of others: they
                // find it there.
                let is_whole = explained.contains("read ahead 3.") && explained.contains("; 0 B when wanted");
                assert!(is_whole || (how, threads) == ("buffered", "3"), "{explained}");
            }
            assert_eq!(runtime.block_on(run(&session, ALL)), [answer_of_all()]);
            let few = "SELECT count(*) FROM (SELECT a, b FROM t LIMIT 70000)";
            assert_eq!(runtime.block_on(run(&session, few)), ["70000"]);
        }
    }
}

/// The path is that of the session, from its next statement on.
#[test]
fn the_path_is_the_session_s() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    let Ok(database) = Database::open(&path, &options(&[("io.path", "direct"), ("io.cache", "0")])) else {
        eprintln!("no O_DIRECT here");
        return;
    };
    let (session, other) = (database.session().unwrap(), database.session().unwrap());
    let copied = |session: &Session| session.query().ledger().hop(Hop::HostToHost);
    for mode in MODES {
        runtime.block_on(run(&session, &format!("SET exec.mode = '{mode}'")));
        for (set, path) in [
            ("SET io.path = 'buffered'", "path buffered"),
            ("SET io.path = 'direct'", "path host direct"),
            ("SET io.path = auto", "path buffered"),
            ("SET io.path = 'DIRECT'", "path host direct"),
            ("SET io.path = 'buffered'", "path buffered"),
            // What the database was opened with.
            ("RESET io.path", "path host direct"),
        ] {
            runtime.block_on(run(&session, set));
            let explained = runtime.block_on(run(&session, &format!("EXPLAIN {ALL}"))).join("\n");
            assert!(explained.contains(path), "{set}: {explained}");
            assert_eq!(runtime.block_on(run(&session, ALL)), [answer_of_all()]);
            if set.contains("buffered") {
                assert!(copied(&session) > 1_000_000, "{mode}: every byte was copied out of the page cache");
            } else if path == "path host direct" {
                assert!(copied(&session) < 100_000, "{mode}: {} bytes copied", copied(&session));
            }
        }
        // Another session has what the database was opened with.
        let explained = runtime.block_on(run(&other, &format!("EXPLAIN {ALL}"))).join("\n");
        assert!(explained.contains("path host direct"), "{explained}");
    }
    for path in ["staged", "compat", "fast"] {
        let error = runtime.block_on(rows(&session, &format!("SET io.path = '{path}'"))).unwrap_err();
        assert!(error.message().contains("it takes auto, buffered, direct"), "{error}");
    }
    // What is asked for by name and not to be had is an error of each statement that reads.
    let volume = SegmentVolume::open(&path, |file| Arc::new(Faulty::new(Arc::new(file), Vec::new())));
    for mode in MODES {
        let settings = [("io.path", "direct"), ("exec.mode", mode)];
        let database = Database::on_volume(Arc::new(volume.clone()), &options(&settings)).unwrap();
        let session = database.session().unwrap();
        let error = runtime.block_on(rows(&session, ALL)).unwrap_err();
        assert!(error.to_string().contains("cannot be read past the page cache (O_DIRECT)"), "{mode}: {error}");
        runtime.block_on(run(&session, "SET io.path = 'buffered'"));
        assert_eq!(runtime.block_on(run(&session, ALL)), [answer_of_all()]);
    }
}

/// A column that few rows get to is not read where none does.
#[test]
fn what_few_rows_get_to_is_read_when_it_is_wanted() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    let volume = LocalVolume::open(&path, RequestedPath::PreferHostDirect).unwrap();
    let database = Database::on_volume(Arc::new(volume), &options(&[("threads", "1")])).unwrap();
    let session = database.session().unwrap();
    let row = 350_000;
    let sql = format!("SELECT sum(b), count(*) FROM t WHERE a = {}", value(row, 0));
    assert_eq!(runtime.block_on(run(&session, &sql)), [format!("{}|1", value(row, 1))]);
    // Column a, of 20 bits a value, and a block of b, but not all of it.
    let (a, block) = (ROWS * 20 / 8, 65_536 * 20 / 8);
    let read = session.query().ledger().read_bytes();
    assert!((a + block..a + 3 * block).contains(&read), "{read}");
}

#[test]
fn two_scans_at_once_and_one_that_is_given_up() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    for how in ["buffered", "direct"] {
        let Ok(database) = Database::open(&path, &options(&[("io.path", how), ("io.cache", "0")])) else {
            eprintln!("no O_DIRECT here");
            continue;
        };
        let expected = answer_of_all();
        // Rows of a join leave as they are made: this one stays in the middle, with what it has read ahead.
        let session = database.session().unwrap();
        let join = "SELECT x.a, x.b, x.c FROM t AS x JOIN (SELECT a, c FROM t WHERE b < 900000) AS y ON x.a = y.a";
        let Output::Rows(mut given_up) = runtime.block_on(session.sql(join)).unwrap() else { panic!("no rows") };
        assert!(runtime.block_on(given_up.next()).unwrap().unwrap().num_rows() > 0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let runtime = support::runtime();
                    let session = database.session().unwrap();
                    for _ in 0..3 {
                        assert_eq!(runtime.block_on(run(&session, ALL)).join(";"), expected);
                    }
                });
            }
        });
        drop(given_up);
        let limited = runtime.block_on(run(&session, &format!("{join} LIMIT 3")));
        assert_eq!(limited.len(), 3);
    }
}
