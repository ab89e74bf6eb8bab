//! Transactions over many files on a real cluster: how long a commit takes, and clients that are killed before and after the
//! operation that makes it visible.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onehop_io::rados::fs::{Depth, FsOptions, Id, Replace, TaskAttempt, Transaction, TransactionOptions};
use onehop_io::rados::fs::{Kind, TransactionState};
use onehop_io::rados::{FileSystem, Problem, TransactionProblem};

#[path = "support/ceph.rs"]
mod ceph;
use ceph::{bytes, clean, cluster, get, options, put, space};

fn stage(attempt: &TaskAttempt, path: &str, content: &[u8]) {
    let mut writer = attempt.create(path, Replace::Never, Arc::default()).unwrap();
    writer.append(content).unwrap();
    writer.close().unwrap();
}

/// So many files of a few bytes in so many directories, by tasks side by side; half of the directories are there before.
fn stage_many(fs: &FileSystem, transaction: &Transaction, files: usize, directories: usize) {
    const TASKS: usize = 20;
    for directory in (0..directories).step_by(2) {
        fs.create_directory_all(&format!("/table/p={directory}")).unwrap();
    }
    std::thread::scope(|scope| {
        for task in 0..TASKS {
            scope.spawn(move || {
                let attempt = transaction.attempt(&format!("task{task}"), "0").unwrap();
                for n in (task..files).step_by(TASKS) {
                    let path = format!("/table/p={}/part-{n:05}", n % directories);
                    stage(&attempt, &path, if n % 10 == 0 { path.as_bytes() } else { b"" });
                }
                attempt.commit().unwrap();
            });
        }
    });
}

fn files_below(fs: &FileSystem, path: &str) -> usize {
    let Ok(entries) = fs.list(path) else { return 0 };
    let below = |entry: &onehop_io::rados::fs::Entry| match entry.kind {
        Kind::File => 1,
        Kind::Directory => files_below(fs, &format!("{path}/{}", entry.name)),
    };
    entries.iter().map(below).sum()
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn ten_thousand_files_of_a_hundred_directories_are_committed_at_once() {
    const FILES: usize = 10_000;
    let space = ceph::space("commit");
    // With grace times as they are: who stages relies on them.
    let usual = FsOptions { grace: FsOptions::default().grace, ..options() };
    let fs = FileSystem::create(&cluster(), "meta", "data", &space, usual).unwrap();
    let transaction = fs.begin(TransactionOptions::default()).unwrap();
    let begin = Instant::now();
    stage_many(&fs, &transaction, FILES, 100);
    let staged = begin.elapsed();
    assert_eq!(files_below(&fs, "/table"), 0);
    let begin = Instant::now();
    transaction.commit().unwrap();
    let committed = begin.elapsed();
    println!("{FILES} files in 100 directories: staged in {staged:.2?}, committed in {committed:.2?}");
    assert_eq!(files_below(&fs, "/table"), FILES);
    assert_eq!(get(&fs, "/table/p=0/part-00000"), b"/table/p=0/part-00000");
    // All of it replaced by a few.
    let transaction = fs.begin(TransactionOptions::default()).unwrap();
    stage_many(&fs, &transaction, 100, 10);
    transaction.replace_directory("/table").unwrap();
    let begin = Instant::now();
    transaction.commit().unwrap();
    println!("replaced by 100 files in 10 directories in {:.2?}", begin.elapsed());
    assert_eq!(files_below(&fs, "/table"), 100);
    // Aborted: none of it, and nothing is left of it.
    let transaction = fs.begin(TransactionOptions::default()).unwrap();
    let attempt = transaction.attempt("t", "0").unwrap();
    stage(&attempt, "/table/x", &bytes(3_000_000, 1));
    attempt.commit().unwrap();
    transaction.abort().unwrap();
    assert_eq!(files_below(&fs, "/table"), 100);
    let collector = FileSystem::open(&cluster(), "meta", &space, options()).unwrap();
    collector.collect().unwrap();
    collector.collect().unwrap();
    let found = fs.check(Depth::Bytes).unwrap();
    assert_eq!((found.files, found.unfinished, found.transactions), (100, 0, 0), "{found:?}");
    assert_eq!((found.damage.len(), found.unknown.len()), (0, 0), "{found:?}");
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn attempts_of_other_connections_are_fenced_and_the_first_wins() {
    let name = space("fenced");
    let fs = FileSystem::create(&cluster(), "meta", "data", &name, options()).unwrap();
    put(&fs, "/f", b"old");
    let transaction = fs.begin(TransactionOptions::default()).unwrap();
    let other = FileSystem::open(&cluster(), "meta", &name, options()).unwrap().transaction(transaction.id());
    let (first, second) = (transaction.attempt("t", "0").unwrap(), other.attempt("t", "1").unwrap());
    stage(&first, "/d/f", b"first");
    stage(&second, "/d/f", b"second");
    second.commit().unwrap();
    let error = first.commit().unwrap_err();
    assert_eq!(error.transaction_problem(), Some(&TransactionProblem::OtherAttempt("1".into())), "{error}");
    let writer = second.create("/d/g", Replace::Never, Arc::default()).unwrap();
    assert_eq!(writer.close().unwrap_err().problem(), Some(Problem::AttemptEnded));
    transaction.commit().unwrap();
    assert_eq!((get(&fs, "/d/f"), get(&fs, "/f")), (b"second".to_vec(), b"old".to_vec()));
    assert!(other.attempt("u", "0").is_err());
    fs.collect().unwrap();
    fs.collect().unwrap();
    clean(&fs);
    assert!(fs.transactions().unwrap().is_empty());
}

/// Not a test by itself: commits when it is told to, and is killed meanwhile.
#[test]
#[ignore = "a process that is killed by the test below"]
fn a_client_that_is_killed() {
    let Ok(told) = std::env::var("ONEHOP_CEPH_CHILD") else { return };
    let (space, id) = told.split_once(' ').unwrap();
    let fs = FileSystem::open(&cluster(), "meta", space, options()).unwrap();
    let transaction = fs.transaction(Id::parse(id).unwrap());
    // On a line of its own, whatever the test harness has printed.
    println!("\nready");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let _ = transaction.commit();
}

fn child(space: &str, transaction: &Transaction) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "a_client_that_is_killed"]);
    command.env("ONEHOP_CEPH_CHILD", format!("{space} {}", transaction.id()));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
    child
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn a_committer_that_is_killed_has_made_all_visible_or_nothing() {
    const FILES: usize = 2_000;
    let space = ceph::space("killed");
    let short = FsOptions { move_lease: Duration::from_secs(3), ..options() };
    let fs = FileSystem::create(&cluster(), "meta", "data", &space, short).unwrap();
    let (mut all, mut nothing, mut wait) = (0, 0, Duration::from_millis(5));
    for round in 0..12 {
        let transaction = fs.begin(TransactionOptions { lease: Duration::from_secs(60) }).unwrap();
        stage_many(&fs, &transaction, FILES, 40);
        let mut child = child(&space, &transaction);
        let begin = Instant::now();
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        std::thread::sleep(wait);
        child.kill().unwrap();
        child.wait().unwrap();
        let killed = begin.elapsed();
        // One that is not there any more was committed and dealt with.
        let state = transaction.state().unwrap_or(TransactionState::Committed);
        let seen = files_below(&fs, "/table");
        println!("round {round}: killed after {killed:.2?}, {state}, {seen} files");
        match state {
            TransactionState::Committed => {
                assert_eq!(seen, FILES);
                all += 1;
                wait = wait * 2 / 3;
            }
            _ => {
                // An operation may still have been on its way.
                let late = files_below(&fs, "/table");
                assert!(seen == 0 || late == FILES, "{seen}, then {late}");
                nothing += 1;
                // However slow this machine is, it is committed in the end.
                wait = if all == 0 { wait * 2 } else { wait * 3 / 2 };
            }
        }
        // Whoever comes brings it to its end; only a lease is waited for.
        while !fs.transactions().unwrap().is_empty() {
            // Of one that is committed it is refused.
            let _ = transaction.abort();
            fs.collect().unwrap();
        }
        fs.collect().unwrap();
        let seen = files_below(&fs, "/table");
        assert!(seen == 0 || seen == FILES, "{seen}");
        let found = fs.check(Depth::Bytes).unwrap();
        assert_eq!((found.unfinished, found.damage.len(), found.unknown.len()), (0, 0, 0), "{found:?}");
        if fs.stat("/table").is_ok() {
            fs.remove_all("/table").unwrap();
        }
        fs.collect().unwrap();
    }
    assert!(all > 0 && nothing > 0, "{all} were committed, {nothing} were not");
}
