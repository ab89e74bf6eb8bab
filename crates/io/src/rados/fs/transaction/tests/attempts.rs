//! Attempts of tasks: which of them counts, how one begins beside its first bytes, and what becomes of those that come late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::{begin, fill, stage};
use crate::rados::fs::tests::{CHUNK, Tree, World, base, clean, content, tree};
use crate::rados::fs::transaction::{Staged, StagedFiles, TransactionState};
use crate::rados::fs::{Clock, Replace};
use crate::rados::{Code, Problem, Result, SimFault, TransactionProblem};

#[test]
fn the_first_attempt_that_is_committed_wins_and_says_so_again() {
    let (world, fs) = World::new();
    let transaction = begin(&fs).unwrap();
    let (first, second) = (transaction.attempt("t", "0").unwrap(), transaction.attempt("t", "1").unwrap());
    stage(&first, "/d/f", Replace::Never, b"first").unwrap();
    stage(&second, "/d/f", Replace::Never, b"second").unwrap();
    second.commit().unwrap();
    second.commit().unwrap();
    let error = first.commit().unwrap_err();
    assert_eq!(error.transaction_problem(), Some(&TransactionProblem::OtherAttempt("1".into())), "{error}");
    let error = second.abort().unwrap_err();
    assert_eq!(error.transaction_problem(), Some(&TransactionProblem::AttemptCommitted));
    first.abort().unwrap();
    // In another process.
    let (client, other) = world.client();
    let joined = other.transaction(transaction.id()).attempt("t", "1").unwrap();
    joined.commit().unwrap();
    // Though its directory takes nothing.
    client.fail_at(0, SimFault::Refuse(Code::NO_SPACE));
    joined.commit().unwrap();
    let status = other.transactions().unwrap();
    assert_eq!(status[0].committed, [("t".to_owned(), "1".to_owned())]);
    assert_eq!((status[0].attempts, status[0].state), (1, TransactionState::Pending));
    assert!(tree(&fs).is_empty());
    other.transaction(transaction.id()).commit().unwrap();
    assert_eq!(tree(&fs), Tree::from([("/d".into(), None), ("/d/f".into(), Some(b"second".to_vec()))]));
    transaction.commit().unwrap();
    second.commit().unwrap();
    assert!(transaction.abort().is_err());
    clean(&world, &world.recover(), "first wins");
}

#[test]
fn two_attempts_that_are_committed_at_once_agree_on_one_of_them() {
    let mut said = [0, 0];
    for number in 0.. {
        let (world, fs) = World::new();
        let (client, other) = world.client();
        let transaction = begin(&fs).unwrap();
        let first = other.transaction(transaction.id()).attempt("t", "0").unwrap();
        let second = transaction.attempt("t", "1").unwrap();
        stage(&first, "/f", Replace::Never, b"first").unwrap();
        stage(&second, "/f", Replace::Never, b"second").unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        client.pause_at(number, move || drop(tell.send(second.commit())));
        let ours = first.commit();
        let Ok(theirs) = told.try_recv() else { break };
        assert!(ours.is_ok() != theirs.is_ok(), "before operation {number}: {ours:?}, {theirs:?}");
        transaction.commit().unwrap();
        let winner: &[u8] = if ours.is_ok() { b"first" } else { b"second" };
        assert_eq!(tree(&fs)["/f"].as_deref(), Some(winner));
        said[usize::from(theirs.is_ok())] += 1;
        clean(&world, &world.recover(), "two attempts");
    }
    assert!(said[1] > 0, "{said:?}");
}

/// Nothing that an attempt does after it has ended, or its transaction has, is ever seen.
#[test]
fn zombies_are_fenced() {
    let (world, fs) = World::new();
    let transaction = begin(&fs).unwrap();
    let zombie = transaction.attempt("t", "0").unwrap();
    let mut open = zombie.create("/open", Replace::Never, Arc::default()).unwrap();
    open.append(&content("open", CHUNK + 1)).unwrap();
    let late = transaction.attempt("t", "1").unwrap();
    stage(&late, "/f", Replace::Never, b"f").unwrap();
    let mut unclosed = late.create("/unclosed", Replace::Never, Arc::default()).unwrap();
    unclosed.append(&content("unclosed", CHUNK + 1)).unwrap();
    late.commit().unwrap();
    // A file that was begun before its attempt was committed.
    assert_eq!(unclosed.close().unwrap_err().problem(), Some(Problem::AttemptEnded));
    assert_eq!(stage(&late, "/g", Replace::Never, b"g").unwrap_err().problem(), Some(Problem::AttemptEnded));
    transaction.commit().unwrap();
    assert_eq!(open.close().unwrap_err().problem(), Some(Problem::AttemptEnded));
    assert_eq!(stage(&zombie, "/g", Replace::Never, b"g").unwrap_err().problem(), Some(Problem::AttemptEnded));
    let ended = |result: Result<()>| result.unwrap_err().transaction_problem().cloned();
    assert_eq!(ended(zombie.commit()), Some(TransactionProblem::OtherAttempt("1".into())));
    assert_eq!(ended(transaction.attempt("u", "0").map(drop)), Some(TransactionProblem::Committed));
    assert_eq!(ended(transaction.replace_directory("/d")), Some(TransactionProblem::Committed));
    assert_eq!(tree(&fs).keys().collect::<Vec<_>>(), ["/f"]);
    // And of one that was aborted because it was not renewed.
    let transaction = begin(&fs).unwrap();
    let zombie = transaction.attempt("t", "0").unwrap();
    stage(&zombie, "/h", Replace::Never, b"h").unwrap();
    let mut open = zombie.create("/open", Replace::Never, Arc::default()).unwrap();
    open.append(&content("open", CHUNK + 1)).unwrap();
    world.clock.sleep(Duration::from_secs(3500));
    transaction.renew().unwrap();
    world.clock.sleep(Duration::from_secs(3500));
    assert_eq!(fs.collect().unwrap().transactions, 0);
    world.clock.sleep(Duration::from_secs(101));
    assert_eq!(fs.collect().unwrap().transactions, 1);
    assert_eq!(open.close().unwrap_err().problem(), Some(Problem::AttemptEnded));
    assert_eq!(ended(zombie.commit()), Some(TransactionProblem::Aborted));
    assert_eq!(ended(transaction.renew()), Some(TransactionProblem::Aborted));
    assert_eq!(ended(transaction.commit()), Some(TransactionProblem::Aborted));
    zombie.abort().unwrap();
    let fs = world.recover();
    assert_eq!(tree(&fs).keys().collect::<Vec<_>>(), ["/f"]);
    clean(&world, &fs, "zombies");
    assert_eq!(ended(transaction.commit()), Some(TransactionProblem::NotThere));
    assert!(fs.transactions().unwrap().is_empty());
}

/// What an attempt begins with may take as long as it likes, until something of it is to be sent.
#[test]
fn an_attempt_begins_beside_its_first_bytes() {
    let (world, fs) = World::new();
    let transaction = begin(&fs).unwrap();
    let (client, fs) = world.client();
    let (go_on, waits) = std::sync::mpsc::channel();
    let at_once = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&at_once);
    client.pause_at(0, move || seen.store(waits.recv_timeout(Duration::from_secs(60)).is_ok(), Relaxed));
    let attempt = fs.transaction(transaction.id()).start_attempt("t", "0").unwrap();
    let mut file = attempt.create("/f", Replace::Never, Arc::default()).unwrap();
    file.append(&content("f", CHUNK - 1)).unwrap();
    go_on.send(()).unwrap();
    file.append(&content("f", CHUNK)).unwrap();
    file.close().unwrap();
    assert!(at_once.load(Relaxed), "somebody waited for the attempt to begin");
    attempt.commit().unwrap();
    transaction.commit().unwrap();
    assert_eq!(fs.stat("/f").unwrap().len, 2 * CHUNK as u64 - 1);
    clean(&world, &world.recover(), "begun beside");
}

#[test]
fn an_attempt_that_could_not_begin_says_why_as_soon_as_something_is_to_be_sent() {
    let (world, fs) = World::new();
    let transaction = begin(&fs).unwrap();
    transaction.attempt("t", "aborted").unwrap().abort().unwrap();
    let ends = |attempt: &str, problem: &TransactionProblem| {
        let attempt = transaction.start_attempt("t", attempt).unwrap();
        let mut file = attempt.create("/f", Replace::Never, Arc::default()).unwrap();
        file.append(&content("f", CHUNK - 1)).unwrap();
        let errors = [
            file.append(&content("f", CHUNK)).unwrap_err(),
            file.close().unwrap_err(),
            stage(&attempt, "/g", Replace::Never, b"").unwrap_err(),
            attempt.commit().unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.transaction_problem() == Some(problem)), "{errors:?}");
        // There is nothing of it.
        attempt.abort().unwrap();
    };
    ends("aborted", &TransactionProblem::AttemptAborted);
    transaction.commit().unwrap();
    ends("late", &TransactionProblem::Committed);
    assert!(transaction.start_attempt("a/b", "0").is_err());
    clean(&world, &world.recover(), "not begun");
}

/// Half of what an attempt begins with may have happened.
#[test]
fn an_attempt_that_could_not_begin_can_be_aborted() {
    let mut failed = 0;
    for (number, fault) in (0..6).flat_map(|number| [(number, SimFault::LoseReply), (number, SimFault::LoseRequest)]) {
        let (world, fs) = World::new();
        let transaction = begin(&fs).unwrap();
        let (client, fs) = world.client();
        client.fail_at(number, fault);
        let attempt = fs.transaction(transaction.id()).start_attempt("t", "0").unwrap();
        failed += usize::from(stage(&attempt, "/f", Replace::Never, b"f").is_err());
        attempt.abort().unwrap();
        assert_eq!(transaction.status().unwrap().attempts, 0, "{number} {fault:?}");
        transaction.commit().unwrap();
        assert!(tree(&fs).is_empty());
        clean(&world, &world.recover(), &format!("{number} {fault:?}"));
    }
    assert!(failed >= 4, "{failed}");
}

/// A committer hears of files from nobody but the transaction.
#[test]
fn what_is_staged_is_what_the_attempts_that_count_have_written() {
    let (world, fs) = World::new();
    let transaction = begin(&fs).unwrap();
    assert_eq!(transaction.staged().unwrap(), Staged::default());
    base(&world, &fs).unwrap();
    fill(&transaction).unwrap();
    let (_, other) = world.client();
    let staged = other.transaction(transaction.id()).staged().unwrap();
    let tasks = [("0", "0"), ("1", "1"), ("driver", "0")];
    assert_eq!(staged.tasks, tasks.map(|(task, attempt)| (task.to_owned(), attempt.to_owned())));
    // By path: where, how many files, of how many bytes; nothing of the attempts that failed or were left.
    let chunk = CHUNK as u64;
    let directories = [
        ("", 1, 700),
        ("a", 1, 2 * chunk + 1),
        ("a/b", 1, chunk),
        ("a/deep", 1, 30),
        ("a/deep/er", 1, 20),
        ("z", 1, 10),
    ];
    let directories = directories.map(|(path, files, bytes)| (path.to_owned(), StagedFiles { files, bytes }));
    assert_eq!(staged.directories, BTreeMap::from(directories));
    transaction.commit().unwrap();
    // Until it is forgotten it can be asked.
    let recovered = world.recover();
    let error = recovered.transaction(transaction.id()).staged().unwrap_err();
    assert!(error.transaction_problem().is_some(), "{error}");
    clean(&world, &recovered, "staged");
}

/// An attempt that goes on writing hears of its end in time.
#[test]
fn a_writer_whose_attempt_has_ended_is_told_before_what_it_has_written_goes() {
    let (world, fs) = World::new();
    let transaction = begin(&fs).unwrap();
    let attempt = transaction.attempt("t", "0").unwrap();
    let mut writer = attempt.create("/f", Replace::Never, Arc::default()).unwrap();
    writer.append(&content("f", CHUNK)).unwrap();
    world.clock.sleep(Duration::from_secs(1799));
    writer.append(&content("f", CHUNK)).unwrap();
    transaction.abort().unwrap();
    let mut refused = None;
    // A chunk every ten minutes: there are fewer than were promised at first.
    for minutes in 0..6 {
        world.clock.sleep(Duration::from_secs(599));
        if let Err(error) = writer.append(&content("f", CHUNK)) {
            refused = Some((minutes, error.problem()));
            break;
        }
    }
    assert_eq!(refused, Some((0, Some(Problem::AttemptEnded))));
    drop(writer);
    let fs = world.recover();
    clean(&world, &fs, "told in time");
}
