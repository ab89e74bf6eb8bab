//! Chaos test: clients change and read rows, create temporary tables, are killed meanwhile, and
//! cancel at any moment. They send half of a message, none, or a malformed one, and read slowly or
//! not at all.
//!
//! Claims:
//! - transactions that move money conserve its sum, and no reader sees a half of one;
//! - an acknowledged batch is present once, a refused one is absent, and an uncertain one is
//!   present completely or not at all;
//! - a query that is cancelled at any moment returns its right answer, or the cancellation error;
//! - after the clients disconnect, sessions, file descriptors and memory return to their earlier
//!   levels.
//!
//! `ONEHOP_CHAOS_SECONDS` sets the duration. `ONEHOP_SEED` repeats a run, as far as the timing
//! permits.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::SinkExt;
use support::{Place, Random, code, is_well, message, place, startup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error, NoTls};

const CLIENTS: u64 = 6;
/// The number of actions of each client in a round.
const ACTIONS: usize = 14;
const ACCOUNTS: usize = 10;
const MONEY: i64 = 1000;
/// The permitted growth of the process's memory over identical rounds, in bytes: allocators keep
/// some.
const MORE_MEMORY_BYTES: u64 = 96 << 20;

/// The number of rows of each batch, by the batch's number and outcome.
#[derive(Default)]
struct Book {
    acknowledged: BTreeMap<i64, i64>,
    uncertain: BTreeMap<i64, i64>,
    refused: BTreeMap<i64, i64>,
    done: BTreeMap<&'static str, usize>,
}

struct Visitor {
    place: Arc<Place>,
    random: Random,
    book: Arc<Mutex<Book>>,
    next: Arc<AtomicI64>,
}

type Connected = (Client, JoinHandle<Result<(), Error>>);

/// Returns true for an expected refusal: a cancellation, a lock timeout, or a full server.
fn is_refusal(e: &Error) -> bool {
    matches!(code(e), "57014" | "55P03" | "53300")
}

impl Visitor {
    async fn connect(&self) -> Connected {
        let (client, connection) = self.place.config().connect(NoTls).await.unwrap();
        (client, tokio::spawn(connection))
    }

    /// Returns a random duration of at most some milliseconds.
    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.random.below(20_000) as u64)
    }

    fn note(&self, what: &'static str) {
        *self.book.lock().unwrap().done.entry(what).or_default() += 1;
    }

    async fn act(&mut self) {
        match self.random.below(12) {
            0 => self.moves_money(Ending::Commits).await,
            1 => self.moves_money(Ending::IsKilled).await,
            2 => self.adds_rows(Ending::Commits).await,
            3 => self.adds_rows(Ending::IsKilled).await,
            4 => self.copies().await,
            5 => self.cancels().await,
            6 => self.reads().await,
            7 => self.sends_nonsense().await,
            8 => self.sends_a_half().await,
            9 => self.has_its_own(Ending::Commits).await,
            10 => self.has_its_own(Ending::IsKilled).await,
            _ => self.reads_slowly().await,
        }
    }

    async fn moves_money(&mut self, ending: Ending) {
        let (client, connection) = self.connect().await;
        let (from, to) = (self.random.below(ACCOUNTS), self.random.below(ACCOUNTS));
        let amount = self.random.below(50);
        let (moment, killed) = (self.moment(), connection.abort_handle());
        if ending == Ending::IsKilled {
            tokio::spawn(async move {
                tokio::time::sleep(moment).await;
                killed.abort();
            });
        }
        let moved = async {
            client.batch_execute("BEGIN").await?;
            client.batch_execute(&format!("UPDATE account SET money = money - {amount} WHERE id = {from}")).await?;
            client.batch_execute(&format!("UPDATE account SET money = money + {amount} WHERE id = {to}")).await?;
            let sum = client.query_one("SELECT sum(money) FROM account", &[]).await?.get::<_, i64>(0);
            assert_eq!(sum, MONEY);
            client.batch_execute("COMMIT").await
        };
        match moved.await {
            Ok(()) => self.note("money moved"),
            Err(e) if e.is_closed() && ending == Ending::IsKilled => self.note("killed while money was moved"),
            Err(e) => assert!(is_refusal(&e), "{e:?}"),
        }
    }

    /// Inserts rows by several statements of one text: all of them, or none.
    async fn adds_rows(&mut self, ending: Ending) {
        let (client, connection) = self.connect().await;
        let batch = self.next.fetch_add(1, Relaxed);
        let statements = 1 + self.random.below(3) as i64;
        let is_wrong = self.random.below(4) == 0;
        let mut text: String = (0..statements).map(|row| format!("INSERT INTO log VALUES ({batch}, {row});")).collect();
        if is_wrong {
            text.push_str("SELECT 1 / 0");
        }
        let added = tokio::spawn(async move { client.batch_execute(&text).await });
        if ending == Ending::IsKilled {
            tokio::time::sleep(self.moment()).await;
            connection.abort();
        }
        let added = added.await.unwrap();
        let mut book = self.book.lock().unwrap();
        match added {
            Ok(()) => drop(book.acknowledged.insert(batch, statements)),
            Err(e) if e.is_closed() && ending == Ending::IsKilled => {
                // A wrong batch must be absent in any case.
                let known = if is_wrong { &mut book.refused } else { &mut book.uncertain };
                known.insert(batch, statements);
            }
            Err(e) => {
                assert!(is_refusal(&e) || (is_wrong && code(&e) == "22012"), "{e:?}");
                book.refused.insert(batch, statements);
            }
        }
        *book.done.entry("rows added or refused").or_default() += 1;
    }

    async fn copies(&mut self) {
        let (client, connection) = self.connect().await;
        let batch = self.next.fetch_add(1, Relaxed);
        let rows = 1 + self.random.below(3000) as i64;
        let sink = client.copy_in::<_, Bytes>("COPY log FROM STDIN").await;
        let sink = match sink {
            Ok(sink) => sink,
            Err(e) => return assert!(is_refusal(&e), "{e:?}"),
        };
        let mut sink = pin!(sink);
        let stops_at = if self.random.below(2) == 0 { i64::MAX } else { self.random.below(3000) as i64 };
        for row in 0..rows.min(stops_at) {
            let _ = sink.send(Bytes::from(format!("{batch}\t{row}\n"))).await;
        }
        if stops_at < rows {
            // The client sends a failure, or disconnects.
            if self.random.below(2) == 0 {
                connection.abort();
            }
            self.book.lock().unwrap().refused.insert(batch, rows);
            return self.note("COPY broken off");
        }
        match sink.finish().await {
            Ok(copied) => {
                assert_eq!(copied as i64, rows);
                self.book.lock().unwrap().acknowledged.insert(batch, rows);
                self.note("COPY");
            }
            Err(e) => {
                assert!(is_refusal(&e), "{e:?}");
                self.book.lock().unwrap().refused.insert(batch, rows);
            }
        }
    }

    async fn cancels(&mut self) {
        let (client, _connection) = self.connect().await;
        let last = 1 + self.random.below(400_000) as i64;
        let token = client.cancel_token();
        let text = format!("SELECT sum(value * 2) FROM generate_series(1, {last})");
        let asked = tokio::spawn(async move {
            let outcome = client.query_one(&text, &[]).await;
            // The connection is unchanged.
            let seven = client.query_one("SELECT 7", &[]).await;
            (outcome, seven)
        });
        tokio::time::sleep(self.moment()).await;
        token.cancel_query(NoTls).await.unwrap();
        let (outcome, seven) = asked.await.unwrap();
        match outcome {
            Ok(row) => {
                assert_eq!(row.get::<_, i64>(0), last * (last + 1));
                self.note("too late to be cancelled");
            }
            Err(e) => {
                assert_eq!(code(&e), "57014", "{e:?}");
                self.note("cancelled");
            }
        }
        // The cancel request may have hit it.
        match seven {
            Ok(row) => assert_eq!(row.get::<_, i64>(0), 7),
            Err(e) => assert_eq!(code(&e), "57014", "{e:?}"),
        }
    }

    async fn reads(&mut self) {
        let (client, _connection) = self.connect().await;
        let row = client.query_one("SELECT sum(money), count(*) FROM account", &[]).await.unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (MONEY, ACCOUNTS as i64));
        self.note("read");
    }

    /// Uses temporary tables, in memory or in files, of the same name in all sessions.
    async fn has_its_own(&mut self, ending: Ending) {
        let (client, connection) = self.connect().await;
        let (rows, more, account) =
            (self.random.below(30_000) as i64, self.random.below(30_000), self.random.below(ACCOUNTS));
        let (moment, killed) = (self.moment(), connection.abort_handle());
        if ending == Ending::IsKilled {
            tokio::spawn(async move {
                tokio::time::sleep(moment).await;
                killed.abort();
            });
        }
        let worked = async {
            let series = |rows| format!("SELECT value AS x FROM generate_series(1, {rows})");
            client.batch_execute(&format!("CREATE TEMP TABLE own AS {}", series(rows))).await?;
            client.batch_execute(&format!("BEGIN; INSERT INTO own {}", series(more as i64))).await?;
            client.batch_execute(&format!("UPDATE account SET money = 0 WHERE id = {account}; ROLLBACK")).await?;
            client.batch_execute("UPDATE own SET x = x + 1 WHERE x % 2 = 0").await?;
            let row = client.query_one("SELECT count(*), coalesce(sum(x), 0)::BIGINT FROM own", &[]).await?;
            assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (rows, rows * (rows + 1) / 2 + rows / 2));
            Ok::<_, Error>(())
        };
        match worked.await {
            Ok(()) => self.note("had tables of its own"),
            Err(e) if e.is_closed() && ending == Ending::IsKilled => self.note("killed while it had tables of its own"),
            // Another client has moved money since its transaction began.
            Err(e) if code(&e) == "40001" => self.note("had to begin again"),
            Err(e) => assert!(is_refusal(&e), "{e:?}"),
        }
    }

    /// Opens a connection that is logged in, without a client behind it.
    async fn raw(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.place.address).await.unwrap();
        stream.write_all(&startup()).await.unwrap();
        stream
    }

    async fn sends_nonsense(&mut self) {
        let mut stream = self.raw().await;
        let bytes = match self.random.below(3) {
            0 => self.random.bytes(200),
            1 => [&b"Q"[..], &0x3fff_ffff_u32.to_be_bytes(), b"SELECT"].concat(),
            _ => {
                let kind = b"QPBDECSHXdcfp"[self.random.below(13)];
                message(kind, &self.random.bytes(60))
            }
        };
        let _ = stream.write_all(&bytes).await;
        let _ = tokio::time::timeout(self.moment(), stream.read_to_end(&mut Vec::new())).await;
        self.note("nonsense sent");
    }

    async fn sends_a_half(&mut self) {
        let mut stream = self.raw().await;
        let whole = [message(b'Q', b"BEGIN; UPDATE account SET money = 0\0"), message(b'Q', b"COMMIT\0")].concat();
        // Never the whole COMMIT.
        let _ = stream.write_all(&whole[..self.random.below(whole.len() - 1)]).await;
        tokio::time::sleep(self.moment()).await;
        self.note("half of a message sent");
    }

    async fn reads_slowly(&mut self) {
        let mut stream = self.raw().await;
        let text = b"SELECT value, 'a text of some length' AS t FROM generate_series(1, 200000)\0";
        stream.write_all(&message(b'Q', text)).await.unwrap();
        for _ in 0..self.random.below(4) {
            let mut some = vec![0; 1 + self.random.below(10_000)];
            let _ = stream.read(&mut some).await;
            tokio::time::sleep(self.moment()).await;
        }
        self.note("read slowly, and gone");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Commits,
    IsKilled,
}

/// Runs all clients concurrently, until each has performed its actions.
async fn round(place: &Arc<Place>, seed: u64, book: &Arc<Mutex<Book>>, next: &Arc<AtomicI64>) {
    let visitors = (0..CLIENTS).map(|number| {
        let random = Random::of(seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut visitor = Visitor { place: Arc::clone(place), random, book: Arc::clone(book), next: Arc::clone(next) };
        tokio::spawn(async move {
            for _ in 0..ACTIONS {
                visitor.act().await;
            }
        })
    });
    for visitor in visitors.collect::<Vec<_>>() {
        visitor.await.unwrap();
    }
    is_well(place).await;
    answers_are_right(place, book).await;
}

/// Checks all data. Deletes the checked rows, because a database in memory occupies memory.
async fn answers_are_right(place: &Place, book: &Mutex<Book>) {
    let client = place.connect().await;
    let sum = client.query_one("SELECT sum(money) FROM account", &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!(sum, MONEY);
    let mut found = BTreeMap::new();
    for row in
        client.query("SELECT batch, count(*), count(DISTINCT number) FROM log GROUP BY batch", &[]).await.unwrap()
    {
        let (batch, rows) = (row.get::<_, i64>(0), row.get::<_, i64>(1));
        assert_eq!(rows, row.get::<_, i64>(2), "rows of batch {batch} are there twice");
        found.insert(batch, rows);
    }
    {
        let mut book = book.lock().unwrap();
        for (batch, rows) in std::mem::take(&mut book.acknowledged) {
            assert_eq!(found.remove(&batch), Some(rows), "batch {batch} was acknowledged");
        }
        let uncertain = std::mem::take(&mut book.uncertain);
        for (batch, rows) in found {
            assert_eq!(uncertain.get(&batch), Some(&rows), "batch {batch} was refused, or is there by half");
        }
        book.refused.clear();
    }
    client.batch_execute("TRUNCATE log").await.unwrap();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Runs as many concurrent statements as the engine keeps threads for (eight), so that no later
/// round makes it keep more: each thread has descriptors.
async fn as_many_as_are_kept(place: &Place) {
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(place.connect().await);
    }
    let mut waiting = Vec::new();
    for client in &mut clients {
        let transaction = client.transaction().await.unwrap();
        let portal = transaction.bind("SELECT value FROM generate_series(1, 1000000)", &[]).await.unwrap();
        assert_eq!(transaction.query_portal(&portal, 1).await.unwrap().len(), 1);
        waiting.push((transaction, portal));
    }
}

/// Waits for the descriptors to be closed, which the last tasks do soon.
async fn eventually_at_most(most: usize) {
    let began = Instant::now();
    while descriptors() > most {
        assert!(began.elapsed() < Duration::from_secs(60), "{} descriptors, and there were {most}", descriptors());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_clients_do_nothing_is_wrong_and_nothing_is_left() {
    let place = Arc::new(place().await);
    let mut random = Random::new("chaos");
    let (book, next) = (Arc::new(Mutex::new(Book::default())), Arc::new(AtomicI64::new(0)));
    let client = place.connect().await;
    let accounts: Vec<String> = (0..ACCOUNTS).map(|id| format!("({id}, {})", MONEY / ACCOUNTS as i64)).collect();
    client
        .batch_execute("CREATE TABLE account (id BIGINT, money BIGINT); CREATE TABLE log (batch BIGINT, number BIGINT)")
        .await
        .unwrap();
    client.batch_execute(&format!("INSERT INTO account VALUES {}", accounts.join(", "))).await.unwrap();
    drop(client);
    // A first round performs all one-time allocations.
    round(&place, random.next(), &book, &next).await;
    as_many_as_are_kept(&place).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (most, before_bytes) = (descriptors(), memory_bytes());
    let seconds = std::env::var("ONEHOP_CHAOS_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    let (began, mut rounds) = (Instant::now(), 0);
    while rounds == 0 || began.elapsed() < Duration::from_secs(seconds) {
        round(&place, random.next(), &book, &next).await;
        eventually_at_most(most).await;
        rounds += 1;
    }
    let more_bytes = memory_bytes().saturating_sub(before_bytes);
    println!(
        "{rounds} rounds, {:?} in all, {most} descriptors, {} MiB more",
        book.lock().unwrap().done,
        more_bytes >> 20
    );
    assert!(more_bytes < MORE_MEMORY_BYTES, "{more_bytes} bytes more");
}
