//! A process that is killed while it commits, again and again, on one database.
//!
//! 1. A process of its own opens the database: writers transfer amounts between accounts, each transfer a transaction over
//!    two tables, and say on standard output which of them were acknowledged; readers add up all accounts.
//! 2. It is killed (`SIGKILL`) at a moment that the seed decides.
//! 3. The database is opened here. Of each writer there are the transfers 0 to some number without a gap, none missing
//!    that was acknowledged, at most one more than that; and the balance of each account is what its transfers come to.
//!
//! What the operating system has, a killed process does not lose: syncs that are left out are found by `crash.rs`, not here.
//! `ONEHOP_KILL_ROUNDS=500` runs so many rounds (`make test-crash`).

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onehop_engine::{Database, DatabaseOptions, Session};
use support::{files_on_disk, known_files, options, random, run, runtime};

const PLACE: &str = "ONEHOP_TEST_PLACE";
const ROUNDS: &str = "ONEHOP_KILL_ROUNDS";
const WRITERS: u64 = 3;
const ACCOUNTS: u64 = 8;
const BALANCE: u64 = 1000;

fn small() -> DatabaseOptions {
    options(&[
        ("threads", "1"),
        ("storage.block_rows", "1024"),
        ("storage.segment_rows", "1024"),
        ("storage.checkpoint_rows", "150"),
    ])
}

async fn transfer(session: &Session, writer: u64, number: u64, seed: &mut u64) {
    let (payer, payee) = (random(seed) % ACCOUNTS, random(seed) % ACCOUNTS);
    let amount = random(seed) % 100;
    for statement in [
        "BEGIN IMMEDIATE",
        &format!("UPDATE accounts SET balance = balance - {amount} WHERE id = {payer}"),
        &format!("INSERT INTO transfers VALUES ({writer}, {number}, {payer}, {payee}, {amount})"),
        &format!("UPDATE accounts SET balance = balance + {amount} WHERE id = {payee}"),
        "COMMIT",
    ] {
        run(session, statement).await;
    }
}

/// The process that is killed. It never ends by itself.
#[test]
#[ignore = "a process of its own, started by the test below"]
fn writers_and_readers_until_they_are_killed() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let database = Database::open(Path::new(&place), &small()).unwrap();
    let next = |writer| format!("SELECT coalesce(max(number) + 1, 0) FROM transfers WHERE writer = {writer}");
    runtime().block_on(async {
        let mut tasks = Vec::new();
        for writer in 0..WRITERS {
            let session = database.session().unwrap();
            let first: u64 = run(&session, &next(writer)).await[0].parse().unwrap();
            tasks.push(tokio::spawn(async move {
                let mut seed = writer << 32 | first;
                for number in first.. {
                    transfer(&session, writer, number, &mut seed).await;
                    println!("acknowledged {writer} {number}");
                }
            }));
        }
        let reader = database.session().unwrap();
        tasks.push(tokio::spawn(async move {
            loop {
                let sum = run(&reader, "SELECT sum(balance), count(*) FROM accounts").await;
                assert_eq!(sum, [format!("{}|{ACCOUNTS}", ACCOUNTS * BALANCE)]);
                println!("read");
            }
        }));
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// The last transfer of each writer that was acknowledged; how often all accounts were added up.
#[derive(Debug, Default)]
struct Heard {
    acknowledged: BTreeMap<u64, u64>,
    reads: u64,
}

/// Runs the process above until it is killed.
fn round(place: &Path, wanted: usize, seed: &mut u64) -> Heard {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writers_and_readers_until_they_are_killed", "--ignored", "--nocapture", "--test-threads=1"])
        .env(PLACE, place)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let heard = Arc::new(Mutex::new(Heard::default()));
    let (begun, is_begun) = std::sync::mpsc::channel();
    let stdout = BufReader::new(process.stdout.take().unwrap());
    let listener = std::thread::spawn({
        let heard = Arc::clone(&heard);
        move || {
            let mut lines = 0;
            for line in stdout.lines().map_while(Result::ok) {
                let mut words = line.split(' ').skip_while(|word| !word.contains("acknowledged"));
                if let (Some(_), Some(writer), Some(number)) = (words.next(), words.next(), words.next()) {
                    let mut heard = heard.lock().unwrap();
                    heard.acknowledged.insert(writer.parse().unwrap(), number.parse().unwrap());
                    lines += 1;
                } else if line.ends_with("read") {
                    heard.lock().unwrap().reads += 1;
                }
                if lines == wanted {
                    let _ = begun.send(());
                }
            }
        }
    });
    let errors = process.stderr.take().unwrap();
    let complaints = std::thread::spawn(move || std::io::read_to_string(errors).unwrap_or_default());
    // Ends early if the process does, which it must not.
    let _ = is_begun.recv();
    std::thread::sleep(Duration::from_micros(random(seed) % 20_000));
    let ended = process.try_wait().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    listener.join().unwrap();
    assert!(ended.is_none(), "the process ended by itself: {}", complaints.join().unwrap());
    Arc::try_unwrap(heard).unwrap().into_inner().unwrap()
}

async fn check(session: &Session, heard: &Heard) {
    for writer in 0..WRITERS {
        let query = format!(
            "SELECT count(*), coalesce(min(number), 0), coalesce(max(number), -1) FROM transfers WHERE writer = {writer}"
        );
        let found = run(session, &query).await;
        let numbers: Vec<i64> = found[0].split('|').map(|number| number.parse().unwrap()).collect();
        let [count, least, most] = numbers[..] else { panic!("{found:?}") };
        assert_eq!((least, count), (0, most + 1), "transfers of writer {writer} are not without a gap");
        if let Some(acknowledged) = heard.acknowledged.get(&writer) {
            let acknowledged = *acknowledged as i64;
            assert!(most >= acknowledged, "writer {writer}: {acknowledged} was acknowledged, the last is {most}");
        }
    }
    let query = format!(
        "SELECT id, balance FROM accounts a WHERE balance <> {BALANCE} \
         - (SELECT coalesce(sum(amount), 0) FROM transfers t WHERE t.payer = a.id) \
         + (SELECT coalesce(sum(amount), 0) FROM transfers t WHERE t.payee = a.id)"
    );
    let wrong = run(session, &query).await;
    assert_eq!(wrong, Vec::<String>::new(), "balances are not what transfers come to");
}

#[test]
fn a_killed_process_loses_nothing_and_leaves_nothing_half_done() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("db");
    {
        let session = Database::open(&place, &small()).unwrap().session().unwrap();
        for statement in [
            "CREATE TABLE accounts (id BIGINT NOT NULL, balance BIGINT NOT NULL)",
            "CREATE TABLE transfers (writer BIGINT, number BIGINT, payer BIGINT, payee BIGINT, amount BIGINT)",
            &format!("INSERT INTO accounts SELECT value, {BALANCE} FROM generate_series(0, {})", ACCOUNTS - 1),
        ] {
            runtime.block_on(run(&session, statement));
        }
    }
    let rounds: u64 = std::env::var(ROUNDS).ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(4);
    let mut seed = 20_240_601;
    println!("seed {seed}, {rounds} rounds");
    let (mut acknowledged, mut reads) = (0, 0);
    for number in 0..rounds {
        let wanted = (random(&mut seed) % 20) as usize + 1;
        let heard = round(&place, wanted, &mut seed);
        acknowledged += wanted as u64;
        reads += heard.reads;
        let database = Database::open(&place, &small()).unwrap_or_else(|e| panic!("round {number}: {e}"));
        let session = database.session().unwrap();
        runtime.block_on(check(&session, &heard));
        assert_eq!(files_on_disk(&place), known_files(&database), "round {number}");
        drop((session, database));
        let report = onehop_engine::check::check(&place, &mut |_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "round {number}: {:?}", report.problems);
    }
    println!("{rounds} rounds, more than {acknowledged} transfers, {reads} times all accounts were added up");
}
