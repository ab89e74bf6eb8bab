//! Crashes, lost answers and interleavings at every operation of transactions, over pools in memory: as in
//! [`fs::tests`](super::super::tests), whose worlds and scenarios these are.

mod attempts;
mod opposite_orders;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use crate::rados::fs::tests::{
    CHUNK, Change, OTHERS, Random, Scenario, World, acceptable, at_every_operation, base, clean, content, much_later,
    put, tree, undisturbed,
};
use crate::rados::fs::transaction::{TaskAttempt, Transaction, TransactionOptions, TransactionState};
use crate::rados::fs::{Clock, Depth, FileSystem, FsOptions, Id, Replace};
use crate::rados::{Code, Error, Problem, Result, SimFault, TransactionProblem};

fn begin(fs: &FileSystem) -> Result<Transaction> {
    fs.begin(TransactionOptions::default())
}

fn stage(attempt: &TaskAttempt, path: &str, replace: Replace, bytes: &[u8]) -> Result<()> {
    let mut writer = attempt.create(path, replace, Arc::default())?;
    if let Err(error) = writer.append(bytes) {
        writer.abort();
        return Err(error);
    }
    writer.close().map(drop)
}

/// A new file of one attempt, which is committed.
fn task(transaction: &Transaction, name: &str, paths: &[&str]) -> Result<()> {
    let attempt = transaction.attempt(name, "0")?;
    for path in paths {
        stage(&attempt, path, Replace::Never, &content(path, 700))?;
    }
    attempt.commit()
}

/// New files in directories that are there, one that is replaced, new directories, an attempt that fails, one that is left.
fn fill(transaction: &Transaction) -> Result<()> {
    let first = transaction.start_attempt("0", "0")?;
    stage(&first, "/a/new", Replace::Never, &content("new", 2 * CHUNK + 1))?;
    stage(&first, "/a/b/two", Replace::File, &content("replaces two", CHUNK))?;
    first.commit()?;
    let failed = transaction.attempt("1", "0")?;
    stage(&failed, "/z/part", Replace::Never, &content("of the attempt that failed", CHUNK))?;
    failed.abort()?;
    stage(&transaction.attempt("1", "2")?, "/z/part", Replace::Never, &content("left", CHUNK))?;
    let second = transaction.start_attempt("1", "1")?;
    stage(&second, "/z/part", Replace::Never, &content("part", 10))?;
    stage(&second, "/a/deep/er/x", Replace::Never, &content("x", 20))?;
    stage(&second, "/a/deep/y", Replace::File, &content("y", 30))?;
    second.commit()?;
    task(transaction, "driver", &["/_SUCCESS"])
}

fn job(fs: &FileSystem) -> Result<()> {
    let transaction = begin(fs)?;
    let result = fill(&transaction).and_then(|()| transaction.commit());
    if result.is_err() {
        let _ = transaction.abort();
    }
    result
}

/// A small one, all of whose attempts count, with a directory that is replaced.
fn fill_replacing(transaction: &Transaction) -> Result<()> {
    task(transaction, "0", &["/z/part", "/z/p=1/part", "/a/part"])?;
    transaction.replace_directory("/z")?;
    transaction.replace_directory("/empty/new")
}

fn job_replacing(fs: &FileSystem) -> Result<()> {
    let transaction = begin(fs)?;
    let result = fill_replacing(&transaction).and_then(|()| transaction.commit());
    if result.is_err() {
        let _ = transaction.abort();
    }
    result
}

/// The transaction that there is, and is not somebody else's.
fn there(fs: &FileSystem) -> Result<Transaction> {
    let all = fs.transactions()?;
    let ours = all.iter().find(|status| status.committed.iter().all(|(task, _)| task != "theirs"));
    let nobody = || super::error("find", Id(0), TransactionProblem::NotThere);
    ours.map(|status| fs.transaction(status.id)).ok_or_else(nobody)
}

fn filled(world: &World, fs: &FileSystem) -> Result<()> {
    base(world, fs)?;
    let transaction = begin(fs)?;
    // Nobody knows any more what has become of this one.
    let lost = transaction.attempt("0", "1")?;
    drop(lost.create("/z/lost", Replace::Never, Arc::default())?.append(&content("lost", 2 * CHUNK)));
    fill(&transaction)
}

fn filled_replacing(world: &World, fs: &FileSystem) -> Result<()> {
    base(world, fs)?;
    fill_replacing(&begin(fs)?)
}

type Before = fn(&World, &FileSystem) -> Result<()>;

/// Operations of a commit up to the one that makes it visible, and this one.
fn operations_to_the_flip(before: Before) -> u64 {
    static KNOWN: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());
    let known = KNOWN.lock().unwrap().get(&(before as usize)).copied();
    known.unwrap_or_else(|| {
        let operations = find_the_flip(before);
        KNOWN.lock().unwrap().insert(before as usize, operations);
        operations
    })
}

fn find_the_flip(before: Before) -> u64 {
    for number in 0.. {
        let (world, fs) = World::new();
        before(&world, &fs).unwrap();
        let (client, dying) = world.client();
        let transaction = there(&dying).unwrap();
        client.fail_at(number, SimFault::DieAfter);
        let _ = transaction.commit();
        if transaction_state(&world) == TransactionState::Committed {
            return number + 1;
        }
    }
    unreachable!()
}

fn transaction_state(world: &World) -> TransactionState {
    let (_, fs) = world.client();
    there(&fs).unwrap().state().unwrap()
}

/// Somebody has died who was committing, with everything staged.
fn staged_by_the_dead(before: Before, world: &World, fs: &FileSystem) -> Result<()> {
    let flip = operations_to_the_flip(before);
    before(world, fs)?;
    let (client, dying) = world.client();
    let transaction = there(&dying)?;
    client.fail_at(flip - 1, SimFault::DieBefore);
    assert!(transaction.commit().is_err());
    assert_eq!(transaction_state(world), TransactionState::Committing);
    Ok(())
}

/// Somebody has died who was committing, when it was committed.
fn committed_by_the_dead(before: Before, world: &World, fs: &FileSystem) -> Result<()> {
    let flip = operations_to_the_flip(before);
    before(world, fs)?;
    let (client, dying) = world.client();
    let transaction = there(&dying)?;
    client.fail_at(flip, SimFault::DieBefore);
    let _ = transaction.commit();
    assert_eq!(transaction_state(world), TransactionState::Committed);
    Ok(())
}

fn collect(fs: &FileSystem) -> Result<()> {
    fs.collect().map(drop)
}

fn collect_twice(fs: &FileSystem) -> Result<()> {
    fs.collect()?;
    much_later(fs);
    fs.collect().map(drop)
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "a job", before: base, change: job },
    Scenario { name: "a job that replaces", before: base, change: job_replacing },
    Scenario { name: "commit", before: filled, change: |fs| there(fs)?.commit() },
    Scenario { name: "commit and replace", before: filled_replacing, change: |fs| there(fs)?.commit() },
    Scenario { name: "abort", before: filled, change: |fs| there(fs)?.abort() },
    Scenario {
        name: "abort what the dead have staged",
        before: |world, fs| staged_by_the_dead(filled, world, fs),
        change: |fs| there(fs)?.abort(),
    },
    Scenario {
        name: "collect what the dead have staged",
        before: |world, fs| {
            staged_by_the_dead(filled_replacing, world, fs)?;
            much_later(fs);
            Ok(())
        },
        change: collect_twice,
    },
    Scenario {
        name: "collect what the dead have committed",
        before: |world, fs| committed_by_the_dead(filled, world, fs),
        change: collect_twice,
    },
    Scenario {
        name: "collect what the dead have committed and replaced",
        before: |world, fs| committed_by_the_dead(filled_replacing, world, fs),
        change: collect,
    },
    Scenario {
        name: "collect attempts of a transaction that goes on",
        before: |world, fs| {
            filled(world, fs)?;
            world.clock.sleep(Duration::from_secs(3_599));
            there(fs)?.renew()?;
            world.clock.sleep(Duration::from_secs(2));
            Ok(())
        },
        change: collect,
    },
];

#[test]
fn a_client_that_dies_at_any_operation_leaves_all_or_nothing() {
    let faults = [SimFault::DieBefore, SimFault::DieAfter];
    let runs = at_every_operation(SCENARIOS, &faults, |what, _, result, before, after, now| {
        assert!(now == before || now == after, "{what}: {:?}", now.keys());
        if result.is_ok() {
            assert!(now == after, "{what}: it was said to have happened");
        }
    });
    assert!(runs > 500, "{runs}");
}

#[test]
fn an_answer_that_is_lost_is_found_out_or_said_to_be_unknown() {
    let faults = [SimFault::LoseReply, SimFault::LoseRequest];
    at_every_operation(SCENARIOS, &faults, |what, _, result, before, after, now| {
        assert!(now == before || now == after, "{what}: {:?}", now.keys());
        match result {
            Ok(()) => assert!(now == after, "{what}: it was said to have happened"),
            Err(error) if error.is(Code::TIMED_OUT) || error.problem() == Some(Problem::OutcomeUnknown) => {}
            Err(error) => {
                let unknown = Some(&TransactionProblem::OutcomeUnknown);
                assert!(error.transaction_problem() == unknown, "{what}: {error}");
            }
        }
    });
}

#[test]
fn an_operation_that_happens_late_does_no_harm() {
    let faults = [SimFault::Late(1), SimFault::Late(3), SimFault::Late(8), SimFault::Late(1000)];
    at_every_operation(SCENARIOS, &faults, |what, _, result, before, after, now| {
        assert!(now == before || now == after, "{what}: {:?}", now.keys());
        if result.is_ok() {
            assert!(now == after, "{what}: it was said to have happened");
        }
    });
}

#[test]
fn a_pool_that_is_full_changes_nothing_and_says_so() {
    at_every_operation(SCENARIOS, &[SimFault::Refuse(Code::NO_SPACE)], |what, _, result, before, after, now| {
        assert!(now == before || now == after, "{what}: {:?}", now.keys());
        match result {
            Ok(()) => assert!(now == after, "{what}: it was said to have happened"),
            Err(error) => assert!(error.is(Code::NO_SPACE) || error.problem().is_some(), "{what}: {error}"),
        }
    });
}

/// Whoever looks at any moment, at whatever he likes, sees all or nothing, and what he has once seen stays.
#[test]
fn readers_see_all_or_nothing_before_every_operation() {
    for scenario in SCENARIOS {
        let (before, after, operations) = undisturbed(scenario);
        let mut flipped = false;
        for number in 0..operations {
            let what = format!("{}, before operation {number} of {operations}", scenario.name);
            let (world, fs) = World::new();
            (scenario.before)(&world, &fs).unwrap();
            let (client, fs) = world.client();
            let (_, reader) = world.client();
            let (tell, told) = std::sync::mpsc::channel();
            client.pause_at(number, move || {
                let seen = tree(&reader);
                for (path, content) in &seen {
                    assert_eq!(reader.stat(path).unwrap().len, content.as_ref().map_or(0, Vec::len) as u64);
                }
                drop(tell.send(seen));
            });
            (scenario.change)(&fs).unwrap();
            let seen = told.recv().unwrap();
            assert!(seen == before || seen == after, "{what}: {:?}", seen.keys());
            assert!(!flipped || seen == after, "{what}: it was seen, and is not any more");
            flipped = seen == after && before != after;
        }
        assert!(flipped || before == after, "{}", scenario.name);
    }
}

/// What is of ours, when all of it is there.
const OURS: &[&str] = &["new", "replaces two", "part", "x", "y"];

fn is_ours(bytes: &[u8]) -> bool {
    static ALL: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let lens = [2 * CHUNK + 1, CHUNK, 10, 20, 30];
        OURS.iter().zip(lens).chain([(&"/_SUCCESS", 700)]).map(|(name, len)| content(name, len)).collect()
    });
    ALL.iter().any(|ours| ours == bytes)
}

#[test]
fn others_in_the_middle_of_a_commit_lose_nothing_and_take_nothing_apart() {
    let mut runs = 0;
    for scenario in SCENARIOS {
        let (_, _, operations) = undisturbed(scenario);
        let is_job = scenario.name.starts_with("a job");
        for (index, &(name, other)) in (0u64..).zip(OTHER_TRANSACTIONS.iter().chain(OTHERS)) {
            // Names are changed by the commit, which is a scenario of its own; most of a job is attempts.
            if is_job && !name.contains("all") && !name.starts_with("collect") {
                continue;
            }
            // All of a commit, and some of the others: which ones is another for each.
            let stride = if scenario.name.starts_with("commit") { 2 } else { 5 };
            for number in (index % stride..operations).step_by(stride as usize) {
                let what = format!("{}, before operation {number} others {name}", scenario.name);
                let (world, fs) = World::new();
                (scenario.before)(&world, &fs).unwrap();
                let before = tree(&fs);
                let (client, fs) = world.client();
                let (_, theirs) = world.client();
                let (tell, told) = std::sync::mpsc::channel();
                client.pause_at(number, move || drop(tell.send(other(&theirs))));
                let ours = (scenario.change)(&fs);
                let theirs = told.try_recv().unwrap_or(Ok(()));
                acceptable(&what, &ours);
                acceptable(&what, &theirs);
                let recovered = world.recover();
                clean(&world, &recovered, &what);
                let after = tree(&recovered);
                let kept = |bytes: &Vec<u8>| after.values().flatten().filter(|has| *has == bytes).count();
                for (path, bytes) in before.iter().filter_map(|(path, bytes)| Some((path, bytes.as_ref()?))) {
                    assert!(kept(bytes) <= 1, "{what}: {path} has two names: {:?}", after.keys());
                    assert!(
                        kept(bytes) == 1 || takes(scenario.name, name, path),
                        "{what}: {path} is lost: {:?}",
                        after.keys()
                    );
                }
                // All of ours or none, unless they have taken some of it, as they said they would.
                let count = after.values().flatten().filter(|bytes| is_ours(bytes)).count();
                let all = count == OURS.len() + 1;
                // One that others commit between two tasks is committed with the first.
                let is_other = scenario.name.contains("replace") || (is_job && name == "commit all");
                let is_whole = is_other || count == 0 || all;
                assert!(is_whole || takes_ours(name), "{what}: {count} of ours: {:?}", after.keys());
                if matches!(scenario.name, "a job" | "commit") && ours.is_ok() {
                    assert!(all || takes_ours(name), "{what}: {count} of ours: {:?}", after.keys());
                }
                runs += 1;
            }
        }
    }
    assert!(runs > 2000, "{runs}");
}

const OTHER_TRANSACTIONS: &[(&str, Change)] = &[
    ("commit a/theirs, a/deep/theirs, z/theirs", |fs| {
        let transaction = begin(fs)?;
        task(&transaction, "theirs", &["/a/theirs", "/a/deep/theirs", "/z/theirs"])?;
        transaction.commit()
    }),
    ("leave a/deep/theirs staged", |fs| {
        let transaction = begin(fs)?;
        task(&transaction, "theirs", &["/a/deep/theirs"])
    }),
    ("abort it when its lease is over", |fs| {
        fs.inner.clock.sleep(Duration::from_secs(4000));
        fs.collect().map(drop)
    }),
    ("abort all", |fs| {
        for status in fs.transactions()? {
            // One that is committed cannot be.
            let _ = fs.transaction(status.id).abort();
        }
        Ok(())
    }),
    ("commit all", |fs| {
        for status in fs.transactions()? {
            // One that is aborted cannot be.
            let _ = fs.transaction(status.id).commit();
        }
        Ok(())
    }),
    ("remove a/deep/er if empty", |fs| fs.remove_directory("/a/deep/er")),
];

/// Whether one of two changes is about removing what is under a path.
fn takes(ours: &str, theirs: &str, path: &str) -> bool {
    let ours = path == "/a/b/two"
        || is_ours_by(path)
        || (ours.contains("replace") && path.starts_with("/z"))
        || {
            // They have put it where we replace.
            ours.contains("replace") && (theirs.starts_with("move a/b"))
        }
        || ours.contains("the dead have staged");
    let theirs = theirs.starts_with("remove all of")
        || theirs.starts_with("overwrite")
        || theirs == "remove a/b/two"
        || theirs == "write z/two"
        || theirs == "write a/new"
        || (theirs.contains("z/two") && path.ends_with("/two"));
    ours || theirs
}

fn is_ours_by(path: &str) -> bool {
    ["/a/new", "/z/part", "/a/part"].contains(&path)
}

/// Whether theirs is about something that a job writes.
fn takes_ours(theirs: &str) -> bool {
    theirs.starts_with("remove")
        || theirs.starts_with("overwrite")
        || theirs == "write a/new"
        || theirs.contains("/two")
}

/// An operation of a commit that has no answer may come when nobody knows the transaction any more. It finds the directories
/// listed, for others have unfinished business in them.
#[test]
fn what_comes_when_the_transaction_is_forgotten_counts_for_nothing() {
    let flip = operations_to_the_flip(filled);
    let mut staged = 0;
    for number in 0..flip {
        let what = format!("operation {number} of {flip}");
        let (world, fs) = World::new();
        filled(&world, &fs).unwrap();
        let open: Vec<_> = ["/open", "/a/open", "/a/b/open", "/z/open"]
            .into_iter()
            .map(|path| {
                let mut writer = fs.create_file(path, Replace::Never, Arc::default()).unwrap();
                writer.append(&content("open", CHUNK)).unwrap();
                writer
            })
            .collect();
        let before = tree(&fs);
        let (client, late) = world.client();
        let transaction = there(&late).unwrap();
        client.fail_at(number, SimFault::Late(1_000_000));
        if transaction.commit().is_ok() {
            continue;
        }
        for _ in 0..3 {
            world.clock.sleep(Duration::from_secs(4000));
            fs.collect().unwrap();
        }
        // The flip itself is not asked for again before it is known that it has not happened.
        assert!(fs.transactions().unwrap().is_empty(), "{what}");
        world.cluster.settle();
        let (_, other) = world.client();
        let is_staged = other.check(Depth::Chunks).unwrap().unfinished > 4;
        staged += usize::from(is_staged);
        assert_eq!(tree(&other), before, "{what}");
        let found = other.check(Depth::Bytes).unwrap();
        assert!(found.damage.is_empty(), "{what}: {found:?}");
        // Names can be given and taken as if nothing were there.
        put(&other, "/a/new", b"theirs").unwrap();
        other.rename("/a/b/two", "/z/part", Replace::Never).unwrap();
        other.create_directory("/a/deep").unwrap();
        drop(open);
        let fs = world.recover();
        let found = fs.check(Depth::Bytes).unwrap();
        assert!(found.damage.is_empty() && found.unfinished == 0, "{what}: {found:?}");
        // A directory that is made when nobody remembers what for.
        let is_made = |object: &String| object.starts_with("pool meta/d.");
        assert!(found.unknown.len() <= 1 && found.unknown.iter().all(is_made), "{what}: {found:?}");
        assert_eq!(tree(&fs)["/a/new"].as_deref(), Some(&b"theirs"[..]), "{what}");
        assert_eq!(tree(&fs)["/z/part"], before["/a/b/two"], "{what}");
    }
    assert!(staged > 2, "{staged}");
}

/// Names that are staged late, in a directory that is just being brought back, are found by the mark that comes with them.
#[test]
fn what_comes_late_into_a_directory_that_is_being_settled_is_found() {
    let setup: Before = |world, fs| {
        base(world, fs)?;
        task(&begin(fs)?, "t", &["/z/1", "/z/2", "/z/3", "/z/4", "/z/5", "/z/6", "/z/7"])
    };
    let flip = operations_to_the_flip(setup);
    for number in 5..flip {
        for late in 1..24 {
            let (world, fs) = World::new();
            setup(&world, &fs).unwrap();
            let before = tree(&fs);
            let (client, fs) = world.client();
            let transaction = there(&fs).unwrap();
            client.fail_at(number, SimFault::Late(late));
            let is_committed = transaction.commit().is_ok();
            let (_, other) = world.client();
            assert_eq!(tree(&other) == before, !is_committed, "operation {number} comes {late} late");
            clean(&world, &world.recover(), &format!("operation {number} comes {late} late"));
        }
    }
}

/// Marks become garbage while the collector finds out that a directory need not be listed any more.
#[test]
fn a_directory_stays_listed_whatever_is_staged_and_settled_while_it_is_collected() {
    /// Where the directory's turn comes is another operation each time, for its identity is; the window between not finding
    /// garbage and not finding a mark is one operation wide.
    const FIRST: std::ops::Range<u64> = 20..76;
    const ROUNDS: u64 = 5;
    let setup: Before = |world, fs| {
        base(world, fs)?;
        let transaction = begin(fs)?;
        let attempt = transaction.attempt("t", "0")?;
        stage(&attempt, "/a/b/two", Replace::File, &content("instead", CHUNK))?;
        attempt.commit()
    };
    for first in FIRST {
        for second in (0..ROUNDS).flat_map(|_| 3..6) {
            let (world, fs) = World::new();
            setup(&world, &fs).unwrap();
            let (client, collector) = world.client();
            let (again, theirs) = (client.clone(), world.clone());
            client.pause_at(first, move || {
                let (_, fs) = theirs.client();
                assert!(there(&fs).unwrap().make_visible().unwrap().is_some());
                again.pause_at(second - 1, move || {
                    let (_, fs) = theirs.client();
                    // Unless the collector has.
                    if let Ok(transaction) = there(&fs) {
                        transaction.commit().unwrap();
                    }
                });
            });
            collector.collect().unwrap();
            clean(&world, &world.recover(), &format!("staged before operation {first}, settled {second} later"));
        }
    }
}

#[test]
fn what_may_not_be_where_it_is_to_be_fails_the_commit_and_nothing_is_seen() {
    let problem = |world: &World, fs: &FileSystem, fill: &dyn Fn(&Transaction)| {
        let before = tree(fs);
        let transaction = begin(fs).unwrap();
        task(&transaction, "other", &["/a/elsewhere"]).unwrap();
        fill(&transaction);
        let error = transaction.commit().unwrap_err();
        assert_eq!(transaction.state().unwrap(), TransactionState::Aborted);
        assert_eq!(tree(fs), before);
        clean(world, &world.recover(), "refused");
        error.problem()
    };
    let (world, fs) = World::new();
    base(&world, &fs).unwrap();
    let one = fs.stat("/a/one").unwrap().id;
    let staged = |path: &'static str, replace| {
        move |transaction: &Transaction| {
            let attempt = transaction.attempt("t", "0").unwrap();
            stage(&attempt, path, replace, b"x").unwrap();
            attempt.commit().unwrap();
        }
    };
    assert_eq!(problem(&world, &fs, &staged("/a/one", Replace::Never)), Some(Problem::Exists));
    assert_eq!(problem(&world, &fs, &staged("/a/b", Replace::File)), Some(Problem::IsADirectory));
    assert_eq!(problem(&world, &fs, &staged("/a/one/x", Replace::File)), Some(Problem::NotADirectory));
    assert_eq!(problem(&world, &fs, &staged("/a/one", Replace::Only(Id(7)))), Some(Problem::Changed));
    assert_eq!(problem(&world, &fs, &staged("/a/none/x", Replace::Only(one))), Some(Problem::Changed));
    assert_eq!(problem(&world, &fs, &staged("/a/elsewhere", Replace::File)), Some(Problem::WrittenTwice));
    assert_eq!(
        problem(&world, &fs, &|transaction| transaction.replace_directory("/a/one").unwrap()),
        Some(Problem::NotADirectory)
    );
    let transaction = begin(&fs).unwrap();
    staged("/a/one", Replace::Only(one))(&transaction);
    transaction.commit().unwrap();
    assert_eq!(tree(&fs)["/a/one"], Some(b"x".to_vec()));
    assert!(begin(&fs).unwrap().attempt("a/b", "0").is_err());
    begin(&fs).unwrap().commit().unwrap();
}

/// Changes of names that a transaction has staged wait for it, and say so in the end; when its lease is over they go on.
#[test]
fn who_changes_a_staged_name_waits_for_its_transaction_until_its_lease_is_over() {
    let changes: [(&str, Change); 7] = [
        ("write", |fs| put(fs, "/a/new", b"theirs")),
        ("rename onto", |fs| fs.rename("/a/one", "/a/new", Replace::File)),
        ("rename from", |fs| fs.rename("/a/b/two", "/a/b/second", Replace::Never)),
        ("move", |fs| fs.rename("/a/b/two", "/z/two", Replace::Never)),
        ("remove", |fs| fs.remove_file("/a/b/two")),
        ("make a directory", |fs| fs.create_directory("/a/deep")),
        ("commit", |fs| {
            let transaction = begin(fs)?;
            task(&transaction, "t", &["/a/deep/theirs"])?;
            transaction.commit()
        }),
    ];
    for (name, change) in changes {
        let (world, fs) = World::new();
        staged_by_the_dead(filled, &world, &fs).unwrap();
        let id = there(&fs).unwrap().id();
        let impatient = FsOptions { patience: Duration::from_secs(10), ..fs.inner.options };
        let client = world.cluster.client();
        let (meta, data) = (client.replicated("meta"), client.erasure_coded("data"));
        let other = FileSystem::open_on(meta, data, world.clock.clone(), impatient).unwrap();
        let error = change(&other).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::InTransaction(id)), "{name}: {error}");
        world.clock.sleep(Duration::from_secs(60));
        change(&other).unwrap();
        assert_eq!(transaction_state(&world), TransactionState::Aborted, "{name}");
        clean(&world, &world.recover(), name);
        // One that is committed is carried out at once.
        let (world, fs) = World::new();
        committed_by_the_dead(filled, &world, &fs).unwrap();
        let before = world.clock.now_ms();
        let result = change(&fs);
        assert!(result.is_ok() || result.as_ref().is_err_and(|e| e.problem() == Some(Problem::Exists)), "{name}");
        assert_eq!(world.clock.now_ms(), before, "{name} has waited");
        let fs = world.recover();
        clean(&world, &fs, name);
        assert!(tree(&fs).contains_key("/a/deep/er/x"), "{name}");
    }
}

#[test]
fn a_directory_with_staged_names_is_not_empty_and_takes_them_along() {
    // It holds nothing but what is staged in it.
    let setup = |world: &World, fs: &FileSystem| -> Result<()> {
        base(world, fs)?;
        fs.create_directory_all("/empty/below")?;
        let transaction = begin(fs)?;
        task(&transaction, "t", &["/empty/below/f", "/z/f"])
    };
    let flip = operations_to_the_flip(setup);
    let during = |change: Change| {
        let (world, fs) = World::new();
        setup(&world, &fs).unwrap();
        let (client, fs) = world.client();
        let (_, theirs) = world.client();
        let transaction = there(&fs).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        client.pause_at(flip - 1, move || drop(tell.send(change(&theirs))));
        let ours = transaction.commit();
        let fs = world.recover();
        clean(&world, &fs, "staged names");
        (ours, told.recv().unwrap(), tree(&fs))
    };
    let (ours, theirs, now) = during(|fs| fs.remove_directory("/empty/below"));
    ours.unwrap();
    assert!(matches!(theirs.unwrap_err().problem(), Some(Problem::InTransaction(_))));
    assert!(now.contains_key("/empty/below/f") && now.contains_key("/z/f"));
    let (ours, theirs, now) = during(|fs| fs.rename("/empty", "/moved", Replace::Never));
    ours.and(theirs).unwrap();
    assert!(now.contains_key("/moved/below/f") && now.contains_key("/z/f"));
    let (ours, theirs, now) = during(|fs| fs.rename("/empty/below", "/z/below", Replace::Never));
    ours.and(theirs).unwrap();
    assert!(now.contains_key("/z/below/f") && now.contains_key("/z/f"));
    let (ours, theirs, now) = during(|fs| fs.remove_all("/empty"));
    ours.and(theirs).unwrap();
    assert!(!now.contains_key("/empty") && now.contains_key("/z/f"));
    let (ours, theirs, now) = during(|fs| {
        let transaction = begin(fs)?;
        transaction.replace_directory("/empty")?;
        task(&transaction, "u", &["/empty/theirs"])?;
        transaction.commit()
    });
    ours.and(theirs).unwrap();
    assert!(now.contains_key("/empty/theirs") && !now.contains_key("/empty/below") && now.contains_key("/z/f"));
}

#[test]
fn many_names_many_directories_and_many_at_once() {
    let (world, _) = World::new();
    let client = world.cluster.client();
    let (meta, data) = (client.replicated("meta"), client.erasure_coded("data"));
    let many = FsOptions { at_once: 8, chunk_bytes: CHUNK as u32, ..FsOptions::default() };
    let fs = FileSystem::open_on(meta, data, world.clock.clone(), many).unwrap();
    for directory in 0..10 {
        fs.create_directory(&format!("/{directory}")).unwrap();
    }
    let transaction = begin(&fs).unwrap();
    std::thread::scope(|scope| {
        for task in 0..8 {
            let transaction = transaction.clone();
            scope.spawn(move || {
                let attempt = transaction.attempt(&format!("{task}"), "0").unwrap();
                for n in 0..300 {
                    // In one new directory and one old one, more than fit into one operation.
                    let path =
                        format!("/{}/f{task}-{n}", if n % 2 == 0 { "5".into() } else { format!("new{}", n % 3) });
                    stage(&attempt, &path, Replace::Never, path.as_bytes()).unwrap();
                }
                for directory in 0..20 {
                    stage(&attempt, &format!("/{directory}/g{task}"), Replace::Never, b"g").unwrap();
                }
                attempt.commit().unwrap();
            });
        }
    });
    for n in 0..2500 {
        let attempt = if n == 0 { Some(transaction.attempt("many", "0").unwrap()) } else { None };
        if let Some(attempt) = attempt {
            for n in 0..2500 {
                stage(&attempt, &format!("/many/{n}"), Replace::Never, b"").unwrap();
                stage(&attempt, &format!("/6/{n}"), Replace::Never, b"").unwrap();
            }
            attempt.commit().unwrap();
        }
    }
    transaction.commit().unwrap();
    let found = fs.check(Depth::Bytes).unwrap();
    assert_eq!((found.files, found.unfinished, found.damage.len()), (8 * 320 + 5000, 0, 0), "{:?}", found.damage);
    assert_eq!(fs.list("/many").unwrap().len(), 2500);
    clean(&world, &world.recover(), "many");
}

/// More directories than fit into one operation, some of them twice, some not there; those that are not named stay.
#[test]
fn many_directories_are_replaced_at_one_moment() {
    const DIRECTORIES: usize = 11;
    let (world, fs) = World::new();
    for n in 0..DIRECTORIES {
        fs.create_directory_all(&format!("/t/p={n}")).unwrap();
        put(&fs, &format!("/t/p={n}/old"), b"old").unwrap();
    }
    let transaction = begin(&fs).unwrap();
    let attempt = transaction.attempt("0", "0").unwrap();
    for n in 0..DIRECTORIES {
        stage(&attempt, &format!("/t/p={n}/new"), Replace::Never, b"new").unwrap();
    }
    attempt.commit().unwrap();
    transaction.replace_directories(&[]).unwrap();
    let mut replaced: Vec<String> = (1..DIRECTORIES).map(|n| format!("/t/p={n}")).collect();
    replaced.extend(["/t/p=1".to_owned(), "/t/empty".to_owned()]);
    let replaced: Vec<&str> = replaced.iter().map(String::as_str).collect();
    transaction.replace_directories(&replaced).unwrap();
    // One that cannot be replaced is refused before any is.
    assert!(transaction.replace_directories(&["/t/p=0", "/"]).is_err());
    let names = |path: &str| -> Vec<String> { fs.list(path).unwrap().into_iter().map(|entry| entry.name).collect() };
    assert_eq!(names("/t/p=3"), ["old"]);
    transaction.commit().unwrap();
    assert_eq!(names("/t/p=0"), ["new", "old"]);
    for n in 1..DIRECTORIES {
        assert_eq!(names(&format!("/t/p={n}")), ["new"], "{n}");
    }
    assert_eq!(names("/t/empty"), [""; 0]);
    assert!(transaction.replace_directories(&["/t/p=0"]).is_err());
    clean(&world, &world.recover(), "replaced");
}

/// The superblock says that there may be transactions since there was one, and nothing else has changed.
#[test]
fn a_file_system_says_that_it_has_transactions_when_it_has() {
    let (world, fs) = World::new();
    let text = || {
        let client = world.cluster.client();
        let read = super::ReadOp::new("read").bytes(0, 1000);
        String::from_utf8(super::super::super::Objects::read(&*client.replicated("meta"), "super", read).unwrap().bytes)
            .unwrap()
    };
    assert!(text().contains("\nfeatures=\n"), "{}", text());
    begin(&fs).unwrap().abort().unwrap();
    assert!(text().contains("\nfeatures=transactions\n") && text().contains("\ndata_pool=data\n"), "{}", text());
    let (client, fs) = world.client();
    let operations = client.operations();
    begin(&fs).unwrap();
    assert_eq!(client.operations() - operations, 3);
    let later = b"onehop file system\nversion=1\nfeatures=transactions,holes\nchunk_bytes=65536\ndata_pool=data\n";
    let write = super::WriteOp::new("write").write_full(later.to_vec());
    super::super::super::Objects::write(&*client.replicated("meta"), "super", write).unwrap();
    let (meta, data) = (client.replicated("meta"), client.erasure_coded("data"));
    let error = FileSystem::open_on(meta, data, world.clock.clone(), FsOptions::default()).unwrap_err().to_string();
    assert!(error.contains("the features transactions,holes, which this version of Onehop does not know"), "{error}");
}

/// What random transactions have been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Visible,
    Never,
    Unknown,
}

#[derive(Default)]
struct Told {
    written: Vec<Vec<u8>>,
    transactions: BTreeMap<usize, (Vec<Vec<u8>>, Outcome)>,
    attempts: usize,
}

/// A random change by a new client, in the middle of which others may come, and which may die or get no answer. Nothing is
/// ever taken away by name, so what was written must be there in the end, and of each transaction all or nothing.
fn random_change(world: &World, random: &mut Random, depth: u32, told: &Arc<Mutex<Told>>) {
    let (client, fs) = world.client();
    if depth > 0 && random.below(4) > 0 {
        let (world, told, seed) = (world.clone(), Arc::clone(told), random.below(u64::MAX >> 1) | 1);
        client.pause_at(random.below(40), move || {
            let mut random = Random(seed);
            for _ in 0..=random.below(3) {
                random_change(&world, &mut random, depth - 1, &told);
            }
        });
    }
    let fault = match random.below(8) {
        0 => Some(SimFault::DieBefore),
        1 => Some(SimFault::DieAfter),
        2 => Some(SimFault::LoseReply),
        3 => Some(SimFault::Late(random.below(60))),
        _ => None,
    };
    if let Some(fault) = fault {
        client.fail_at(random.below(50), fault);
    }
    match random.below(14) {
        0..=5 => random_transaction(&fs, random, told),
        6 => {
            let bytes = next_content(told, random);
            let result = fs.create_file(&random.path(), Replace::Never, Arc::default()).and_then(|mut writer| {
                writer.append(&bytes)?;
                writer.close()
            });
            if result.is_ok() {
                told.lock().unwrap().written.push(bytes);
            }
        }
        7 => drop(fs.create_directory_all(&random.path())),
        8..=9 => drop(fs.rename(&random.path(), &random.path(), Replace::Never)),
        10 => drop(fs.remove_directory(&random.path())),
        11 => drop(fs.collect()),
        12 => {
            if let Ok(all) = fs.transactions()
                && let Some(status) = all.first()
            {
                let _ = fs.transaction(status.id).abort();
            }
        }
        _ => {
            world.clock.sleep(Duration::from_secs([1, 61, 3601, 90_000][random.below(4) as usize]));
            drop(fs.collect());
        }
    }
}

fn next_content(told: &Mutex<Told>, random: &mut Random) -> Vec<u8> {
    let mut told = told.lock().unwrap();
    told.attempts += 1;
    content(&format!("{}/", told.attempts), CHUNK / 2 * random.below(3) as usize + told.attempts)
}

fn random_transaction(fs: &FileSystem, random: &mut Random, told: &Arc<Mutex<Told>>) {
    let mut contents = Vec::new();
    let mut run = |contents: &mut Vec<Vec<u8>>| -> Result<()> {
        let transaction = begin(fs)?;
        for task in 0..=random.below(2) {
            for attempt in 0..=random.below(2) {
                let attempt = transaction.start_attempt(&task.to_string(), &attempt.to_string())?;
                let mut staged = BTreeMap::new();
                for _ in 0..=random.below(3) {
                    let bytes = next_content(told, random);
                    let path = random.path();
                    stage(&attempt, &path, Replace::Never, &bytes)?;
                    // It replaces one that this attempt has written before.
                    staged.insert(path, bytes);
                }
                match attempt.commit() {
                    Ok(()) => contents.extend(staged.into_values()),
                    Err(error) if matches!(error.transaction_problem(), Some(TransactionProblem::OtherAttempt(_))) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        transaction.commit()
    };
    let outcome = match run(&mut contents) {
        Ok(()) => Outcome::Visible,
        Err(error) if error.transaction_problem() == Some(&TransactionProblem::OutcomeUnknown) => Outcome::Unknown,
        Err(_) => Outcome::Never,
    };
    let mut told = told.lock().unwrap();
    let number = told.transactions.len();
    told.transactions.insert(number, (contents, outcome));
}

#[test]
fn random_clients_and_transactions_in_the_middle_of_each_other_lose_nothing() {
    let seeds = match std::env::var("ONEHOP_RADOS_SEED").ok().and_then(|seed| seed.parse::<u64>().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..401,
    };
    let mut outcomes = BTreeMap::from([("visible", 0), ("never", 0), ("unknown", 0)]);
    for seed in seeds {
        let (world, fs) = World::new();
        fs.create_directory_all("/a/b").unwrap();
        fs.create_directory_all("/b").unwrap();
        let told: Arc<Mutex<Told>> = Arc::default();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..10 {
            random_change(&world, &mut random, 3, &told);
        }
        let what = format!("ONEHOP_RADOS_SEED={seed}");
        let recovered = world.recover();
        let found = recovered.check(Depth::Bytes).unwrap();
        assert!(found.damage.is_empty() && found.unfinished == 0 && found.transactions == 0, "{what}: {found:?}");
        let after = tree(&recovered);
        let told = told.lock().unwrap();
        let names = |bytes: &Vec<u8>| after.values().filter(|has| has.as_ref() == Some(bytes)).count();
        for bytes in &told.written {
            assert_eq!(names(bytes), 1, "{what}: a file of {} bytes", bytes.len());
        }
        for (number, (contents, outcome)) in &told.transactions {
            let counts: Vec<usize> = contents.iter().map(names).collect();
            let (all, none) = (counts.iter().all(|n| *n == 1), counts.iter().all(|n| *n == 0));
            let is_right = match outcome {
                Outcome::Visible => all,
                Outcome::Never => none,
                Outcome::Unknown => all || none,
            };
            assert!(
                is_right,
                "{what}: transaction {number} is {outcome:?}, and its files have so many names: {counts:?}"
            );
            let outcome = match outcome {
                Outcome::Visible => "visible",
                Outcome::Never => "never",
                Outcome::Unknown => "unknown",
            };
            *outcomes.entry(outcome).or_default() += usize::from(!contents.is_empty());
        }
    }
    if std::env::var_os("ONEHOP_RADOS_SEED").is_none() {
        assert!(outcomes["visible"] > 100 && outcomes["never"] > 20, "{outcomes:?}");
    }
}

/// They are handed from thread to thread, and used by several.
#[test]
fn handles_are_anybodys() {
    fn shared<T: Send + Sync + Clone + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<Transaction>();
    shared::<TaskAttempt>();
    sent::<super::super::Writer>();
}

/// What is about to be committed is said by errors with what to do.
#[test]
fn errors_name_the_transaction_and_what_to_do() {
    let (_, fs) = World::new();
    let error = fs.transaction(Id(5)).commit().unwrap_err();
    assert!(matches!(error, Error::Transaction { .. }));
    let text = error.to_string();
    assert!(text.contains("cannot commit transaction 00000000000000000000000000000005: there is none"), "{text}");
}
