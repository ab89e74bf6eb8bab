//! Connections that do not log in, or are silent over HTTP, keep no client out. The last places are
//! for admins.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use onehop_engine::{Database, Rights};
use onehop_server::{Options, Server, TlsFiles, Users};
use support::scram::{self, HERE};
use support::{Place, code, options, place_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn looked_at() -> Options {
    let free = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    Options { http: free, metrics: free, ..options() }
}

async fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(TcpStream::connect(address).await.unwrap());
    }
    all
}

/// Returns the body of a response, or an empty string if there is none.
async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_string()).unwrap_or_default()
}

async fn figure(place: &Place, name: &str) -> u64 {
    let text = get(place.metrics.unwrap(), "/metrics").await;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

#[tokio::test]
async fn silent_connections_keep_no_client_out() {
    let place = place_with(looked_at()).await;
    let began = Instant::now();
    // More than the places for clients, and more than the slots.
    for count in [100, 300] {
        let all = silent(place.address, count).await;
        let client = place.connect().await;
        assert_eq!(client.query_one("SELECT 1", &[]).await.unwrap().get::<_, i64>(0), 1);
        drop(all);
    }
    assert!(began.elapsed() < Duration::from_secs(20), "the silent ones had not to be waited for");
    assert!(figure(&place, "onehop_logins_dropped_total").await >= 44);
}

#[tokio::test]
async fn those_that_do_not_go_on_keep_no_client_out() {
    let folder = tempfile::tempdir().unwrap();
    let users = Users::at(folder.path().join("users"));
    users.add("ada", "ada's", Rights::Read).unwrap();
    let place = place_with(Options { users: Some(users), max_logins: Some(8), ..looked_at() }).await;
    // Some identify themselves, and some begin the exchange.
    let (mut said, mut begun) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        said.push(scram::started(place.address, HERE, "ada").await);
        begun.push(scram::begin(place.address, HERE, "ada").await);
    }
    assert!(figure(&place, "onehop_logins_open").await <= 8);
    assert_eq!(scram::guess(place.address, HERE, "ada", "ada's").await, "ok");
    let elsewhere = Ipv4Addr::new(127, 0, 0, 7);
    assert_eq!(scram::guess(place.address, elsewhere, "ada", "ada's").await, "ok");
}

#[tokio::test]
async fn as_many_clients_as_there_are_places_may_log_in_at_once() {
    let place = place_with(options()).await;
    let config = place.config();
    let clients = futures::future::join_all((0..100).map(|_| place.connect_with(&config))).await;
    assert_eq!(clients.iter().filter(|client| client.is_ok()).count(), 100);
    let Err(e) = place.connect_with(&config).await else { panic!("there was room") };
    assert_eq!(code(&e), "53300");
    // A statement of one of them can still be cancelled.
    let client = clients.into_iter().next().unwrap().unwrap();
    client.cancel_token().cancel_query(tokio_postgres::NoTls).await.unwrap();
}

#[tokio::test]
async fn the_last_places_are_for_admins() {
    let folder = tempfile::tempdir().unwrap();
    let users = Users::at(folder.path().join("users"));
    users.add("root", "x", Rights::Admin).unwrap();
    users.add("ada", "x", Rights::Write).unwrap();
    let place = place_with(Options { users: Some(users), max_connections: 5, ..options() }).await;
    let connect = async |user: &str| place.connect_with(place.config().user(user).password("x")).await;
    let clients = (connect("ada").await.unwrap(), connect("ada").await.unwrap());
    let Err(e) = connect("ada").await else { panic!("there was room") };
    assert_eq!(code(&e), "53300");
    assert!(e.as_db_error().unwrap().message().contains("the last 3 are for admins"), "{e:?}");
    let admins = (connect("root").await.unwrap(), connect("root").await.unwrap(), connect("root").await.unwrap());
    let Err(e) = connect("root").await else { panic!("there was room") };
    assert_eq!(code(&e), "53300");
    drop(clients);
    drop(admins);
    let began = Instant::now();
    while connect("ada").await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "places are not given back");
    }
}

#[tokio::test]
async fn those_who_look_are_answered_while_clients_are_not() {
    let place = place_with(Options { max_connections: 1, ..looked_at() }).await;
    let _client = place.connect().await;
    let (page, metrics) = (place.http.unwrap(), place.metrics.unwrap());
    let began = Instant::now();
    let _held = (silent(place.address, 100).await, silent(page, 100).await, silent(metrics, 100).await);
    // Some have sent a part of a request, and wait.
    for address in [page, metrics] {
        for mut stream in silent(address, 40).await {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n").await;
        }
    }
    assert!(get(metrics, "/metrics").await.contains("onehop_connections 1"));
    assert!(get(page, "/").await.contains("<html"));
    assert!(began.elapsed() < Duration::from_secs(20), "the silent ones had not to be waited for");
}

#[tokio::test]
async fn a_key_that_others_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (certificates, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificates, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
    let database = Database::memory(&Default::default()).unwrap();
    for mode in [0o644, 0o604, 0o660, 0o666] {
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        let tls = Some(TlsFiles { certificates: certificates.clone(), key: key.clone() });
        let bound = Server::bind(database.clone(), Options { tls, ..options() }, support::executors()).await;
        let message = bound.unwrap_err().to_string();
        assert!(message.contains(&format!("(mode {mode:04o})")) && message.contains("key.pem"), "{message}");
    }
}
