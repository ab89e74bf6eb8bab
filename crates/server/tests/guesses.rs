//! Password guesses over any connections, names and addresses, and the indistinguishability of
//! known and unknown names. The numbers are those of the guide.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use onehop_engine::Rights;
use onehop_server::{Options, Users};
use support::scram::{self, HERE};
use support::{Place, options, place_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns the maximum number of wrong guesses that are judged from one address.
fn most_of_address(window: Duration) -> usize {
    11 + window.as_secs() as usize / 60 + 1
}

/// Returns the maximum number of judged guesses of one name's password.
fn most_of_name(window: Duration) -> usize {
    24 + window.as_secs() as usize / 10 + 1
}

async fn place_of(folder: &Path, names: &[&str]) -> Place {
    let users = Users::at(folder.join("users"));
    for name in names {
        users.add(name, &format!("{name}'s"), Rights::Read).unwrap();
    }
    place_of_file(folder).await
}

async fn place_of_file(folder: &Path) -> Place {
    let http = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    place_with(Options { users: Some(Users::at(folder.join("users"))), http, ..options() }).await
}

/// Requests the page as a user and returns the status.
async fn page(place: &Place, user: &str, password: &str) -> u16 {
    let mut stream = TcpStream::connect(place.http.unwrap()).await.unwrap();
    let basic = STANDARD.encode(format!("{user}:{password}"));
    let request = format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {basic}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn count(all: &[String], code: &str) -> usize {
    all.iter().filter(|one| *one == code).count()
}

#[tokio::test]
async fn a_log_in_of_another_user_gives_no_guesses() {
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["ada", "bob"]).await;
    let began = Instant::now();
    let mut codes = Vec::new();
    for n in 0..60 {
        codes.push(scram::guess(place.address, HERE, "ada", &format!("guess {n}")).await);
        if n % 4 == 3 {
            assert_eq!(scram::guess(place.address, HERE, "bob", "bob's").await, "ok", "he has an account");
        }
    }
    let judged = count(&codes, "28P01");
    assert!((5..=most_of_address(began.elapsed())).contains(&judged), "{judged} in {:?}", began.elapsed());
    assert_eq!(judged + count(&codes, "28000"), 60, "{codes:?}");
}

#[tokio::test]
async fn exchanges_under_way_get_no_more_verdicts_together() {
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["ada"]).await;
    let began = Instant::now();
    let mut under_way = Vec::new();
    for n in 0..90 {
        let exchange = scram::begin(place.address, HERE, "ada").await;
        let last = exchange.last(&if n == 80 { "ada's".to_string() } else { format!("guess {n}") });
        under_way.push((exchange, last));
    }
    let mut codes = Vec::new();
    for (exchange, last) in under_way {
        codes.push(exchange.end(&last).await);
    }
    let judged = codes.len() - count(&codes, "28000");
    assert!((5..=most_of_address(began.elapsed())).contains(&judged), "{judged} in {:?}", began.elapsed());
    assert_ne!(codes[80], "ok", "the right one comes too late");
}

#[tokio::test]
async fn exchanges_that_are_abandoned_cost_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["ada"]).await;
    for _ in 0..50 {
        drop(scram::begin(place.address, HERE, "ada").await);
    }
    let held = futures::future::join_all((0..50).map(|_| scram::begin(place.address, HERE, "ada"))).await;
    assert_eq!(scram::guess(place.address, HERE, "ada", "ada's").await, "ok", "{} are under way", held.len());
}

#[tokio::test]
async fn names_connections_and_the_page_share_the_limit_of_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["ada", "bob", "cleo"]).await;
    let began = Instant::now();
    let guess = async |n: usize| {
        let name = ["ada", "bob", "cleo", "nobody", "somebody"][n % 5];
        match n % 3 {
            0 => page(&place, name, "guess").await.to_string(),
            _ => scram::guess(place.address, HERE, name, "guess").await,
        }
    };
    let codes: Vec<String> = futures::stream::iter((0..300).map(guess)).buffer_unordered(20).collect().await;
    let judged = count(&codes, "28P01") + count(&codes, "401");
    assert!((5..=most_of_address(began.elapsed())).contains(&judged), "{judged} in {:?}", began.elapsed());
    assert_eq!(judged + count(&codes, "28000") + count(&codes, "429"), 300, "{codes:?}");
}

#[tokio::test]
async fn addresses_share_the_limit_of_a_name_and_lock_out_no_user() {
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["ada", "bob"]).await;
    assert_eq!(scram::guess(place.address, HERE, "ada", "ada's").await, "ok");
    for name in ["ada", "nobody"] {
        let began = Instant::now();
        let guess = |n: u8| scram::guess(place.address, Ipv4Addr::new(127, 0, 1 + n / 100, 1 + n % 100), name, "guess");
        let codes: Vec<String> = futures::stream::iter((0..200).map(guess)).buffer_unordered(8).collect().await;
        let judged = count(&codes, "28P01");
        assert!((20..=most_of_name(began.elapsed())).contains(&judged), "{name}: {judged} in {:?}", began.elapsed());
    }
    // She still gets in from her familiar address, and others from any. One of these may share an
    // attacker's counter, but not two.
    assert_eq!(scram::guess(place.address, HERE, "ada", "ada's").await, "ok");
    let bobs = [1, 2, 3].map(|n| scram::guess(place.address, Ipv4Addr::new(127, 0, 9, n), "bob", "bob's"));
    let codes = futures::future::join_all(bobs).await;
    assert!(count(&codes, "ok") >= 2, "{codes:?}");
}

#[tokio::test]
async fn guesses_of_other_names_keep_no_user_from_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["ada"]).await;
    assert_eq!(scram::guess(place.address, HERE, "ada", "ada's").await, "ok");
    while scram::guess(place.address, HERE, "nobody", "guess").await == "28P01" {}
    // Her password is not remembered, and the address has no guess left.
    for _ in 0..6 {
        assert_eq!(page(&place, "ada", "ada's").await, 200);
    }
    assert_eq!(scram::guess(place.address, HERE, "ada", "ada's").await, "ok");
}

#[tokio::test]
async fn a_known_name_is_refused_as_an_unknown_one() {
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["ada"]).await;
    assert_eq!(scram::guess(place.address, HERE, "ada", "ada's").await, "ok");
    assert_eq!(page(&place, "ada", "ada's").await, 200);
    // A wait of 4 s follows the seventh guess.
    let (mut judged, mut last) = (0, Instant::now());
    while judged < 7 {
        if scram::guess(place.address, HERE, "x", "guess").await == "28P01" {
            (judged, last) = (judged + 1, Instant::now());
        }
    }
    while last.elapsed() < Duration::from_secs(2) {
        let codes = [
            scram::guess(place.address, HERE, "nobody", "guess").await,
            scram::guess(place.address, HERE, "ada", "guess").await,
            page(&place, "nobody", "guess").await.to_string(),
            page(&place, "ada", "guess").await.to_string(),
        ];
        assert!(codes == ["28000", "28000", "429", "429"] || last.elapsed() > Duration::from_secs(4), "{codes:?}");
    }
}

#[tokio::test]
async fn a_password_that_the_page_remembers_is_no_way_around() {
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["ada"]).await;
    assert_eq!(page(&place, "ada", "ada's").await, 200);
    let began = Instant::now();
    let (mut judged, mut let_in) = (0, 0);
    for n in 0..60 {
        judged += usize::from(page(&place, "ada", &format!("guess {n}")).await == 401);
        let_in += usize::from(page(&place, "ada", "ada's").await == 200);
    }
    let most = most_of_address(began.elapsed());
    assert!((5..=most).contains(&judged), "{judged}");
    // Let in while guesses are left, by the address's counter and then by the pair's own.
    assert!((4..=2 * most).contains(&let_in), "{let_in}: what is remembered is judged like other passwords");
}

#[tokio::test]
async fn requests_to_the_page_that_come_at_once_get_no_more_verdicts() {
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["ada"]).await;
    let began = Instant::now();
    let guess = async |n: usize| page(&place, "ada", &format!("guess {n}")).await.to_string();
    let codes: Vec<String> = futures::stream::iter((0..60).map(guess)).buffer_unordered(16).collect().await;
    let judged = count(&codes, "401");
    assert!((5..=most_of_address(began.elapsed())).contains(&judged), "{judged}");
    assert_eq!(judged + count(&codes, "429"), 60, "{codes:?}");
    // A browser's first requests are concurrent as well, and have the right password.
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["bob"]).await;
    let codes = futures::future::join_all((0..16).map(|_| page(&place, "bob", "bob's"))).await;
    assert_eq!(codes, [200; 16]);
}

#[tokio::test]
async fn unknown_names_are_asked_as_known_ones_and_the_same_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut place = place_of(folder.path(), &["ada"]).await;
    let mut before = Vec::new();
    for name in ["ada", "nobody"] {
        let exchange = scram::begin(place.address, HERE, name).await;
        assert_eq!((exchange.iterations(), exchange.salt().len()), (10_000, 24));
        before.push(exchange.salt());
    }
    place.ended().await;
    let place = place_of_file(folder.path()).await;
    for (name, salt) in ["ada", "nobody"].iter().zip(before) {
        assert_eq!(scram::begin(place.address, HERE, name).await.salt(), salt, "{name}");
    }
}

#[tokio::test]
async fn imported_verifiers_are_pretended_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let imported = |n| format!("old{n} read {}\n", scram::verifier("secret", &[n; 16], 4096));
    let own = |n| format!("new{n} read {}\n", scram::verifier("secret", &[n; 16], 10_000));
    let write = |text: String| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write((0..4).map(imported).collect());
    let place = place_of_file(folder.path()).await;
    let ask = async || {
        let mut all = Vec::new();
        for n in 0..60 {
            all.push(scram::begin(place.address, HERE, &format!("nobody{n}")).await.iterations());
        }
        all
    };
    assert!(ask().await.iter().all(|iterations| *iterations == 4096));
    assert_eq!(scram::guess(place.address, HERE, "old1", "secret").await, "ok");
    write((0..4).flat_map(|n| [imported(n), own(n)]).collect());
    let mixed = ask().await;
    let of = |iterations| mixed.iter().filter(|one| **one == iterations).count();
    assert!(of(4096) > 10 && of(10_000) > 10 && of(4096) + of(10_000) == 60, "{mixed:?}");
    assert_eq!(ask().await, mixed, "a name stays what it is");
}

#[tokio::test]
async fn the_first_answer_takes_as_long_for_an_unknown_name() {
    let folder = tempfile::tempdir().unwrap();
    let place = place_of(folder.path(), &["ada"]).await;
    let count = std::env::var("ONEHOP_TIMED_LOGINS").ok().and_then(|count| count.parse().ok()).unwrap_or(2_000);
    let mut times = [Vec::new(), Vec::new()];
    for n in 0..count {
        let at = (n ^ (n >> 1)) & 1;
        let began = Instant::now();
        scram::begin(place.address, HERE, ["ada", "bob"][at]).await;
        times[at].push(began.elapsed());
    }
    let [known, unknown] = times.map(|mut times| {
        times.sort();
        times[times.len() / 2].as_secs_f64()
    });
    assert!((0.8..1.25).contains(&(known / unknown)), "medians: {known} and {unknown} s");
}
