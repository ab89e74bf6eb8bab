//! The audit log from outside: a line for each log-in, refusal and access outside of the database,
//! and never a password.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use onehop_engine::{Database, Rights};
use onehop_server::{LogTo, Options, Server, Users};
use serde_json::Value;
use support::scram::{self, HERE};
use support::{Place, code, options, place_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == event).collect()
}

struct Audited {
    folder: tempfile::TempDir,
    users: Users,
    place: Place,
}

impl Audited {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let users = Users::at(folder.path().join("users"));
        users.add("root", "root's secret", Rights::Admin).unwrap();
        users.add("ada", "ada's secret", Rights::Read).unwrap();
        let free = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let audit = Some(LogTo::File(folder.path().join("audit")));
        let options = Options { users: Some(users.clone()), audit, http: free, metrics: free, ..options() };
        Self { folder, users, place: place_with(options).await }
    }

    async fn connect(&self, user: &str) -> tokio_postgres::Client {
        let mut config = self.place.config();
        self.place.connect_with(config.user(user).password(format!("{user}'s secret"))).await.unwrap()
    }

    async fn ended(&mut self) -> Vec<Value> {
        self.place.ended().await;
        lines(&self.folder.path().join("audit"))
    }
}

async fn page(place: &Place, user: &str, password: &str) {
    let mut stream = TcpStream::connect(place.http.unwrap()).await.unwrap();
    let basic = STANDARD.encode(format!("{user}:{password}"));
    let request = format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {basic}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn log_ins_that_succeed_and_that_fail() {
    let mut audited = Audited::new().await;
    let address = audited.place.address;
    drop(audited.connect("root").await);
    scram::guess(address, HERE, "ada", "a guess").await;
    scram::guess(address, HERE, "nobody", "a guess").await;
    page(&audited.place, "ada", "ada's secret").await;
    page(&audited.place, "ada", "ada's secret").await;
    page(&audited.place, "ada", "a guess").await;
    for _ in 0..60 {
        scram::guess(address, HERE, "x", "a guess").await;
    }
    audited.users.add("bob", "bob's secret", Rights::Read).unwrap();
    audited.users.add("ada", "another secret", Rights::Write).unwrap();
    audited.users.remove("root").unwrap();
    drop(scram::begin(address, HERE, "bob").await);
    let text = std::fs::read_to_string(audited.folder.path().join("audit")).unwrap();
    for secret in ["secret", "guess\"", &STANDARD.encode("ada:ada's secret")] {
        assert!(!text.contains(secret), "{text}");
    }
    let all = audited.ended().await;
    assert_eq!((&all[0]["event"], &all.last().unwrap()["event"]), (&"server started".into(), &"server ends".into()));
    let logins = of(&all, "login");
    assert_eq!(logins.len(), 2, "the page's second request is as its first: {logins:#?}");
    assert_eq!((&logins[0]["user"], &logins[0]["role"]), (&"root".into(), &"admin".into()));
    assert!(
        logins[0]["connection"].is_u64() && logins[0]["client_address"].as_str().unwrap().starts_with("127.0.0.1:")
    );
    assert_eq!((&logins[1]["user"], &logins[1]["by"]), (&"ada".into(), &"page".into()));
    let failed = of(&all, "login failed");
    let whys: Vec<_> =
        failed[..3].iter().map(|line| (line["user"].as_str().unwrap(), line["why"].as_str().unwrap())).collect();
    assert_eq!(whys, [("ada", "wrong password"), ("nobody", "unknown user"), ("ada", "wrong password")]);
    assert!(failed.iter().any(|line| line["why"] == "too many guesses" && line["sqlstate"] == "28000"), "{failed:#?}");
    let changed = of(&all, "users changed");
    assert_eq!(changed.len(), 1);
    let names = |what: &str| changed[0][what].as_array().unwrap().clone();
    assert_eq!(
        (names("added"), names("removed"), names("changed")),
        (vec!["bob".into()], vec!["root".into()], vec!["ada".into()])
    );
}

#[tokio::test]
async fn what_statements_do_outside_of_the_database() {
    let mut audited = Audited::new().await;
    let folder = audited.folder.path().display().to_string();
    let (root, ada) = (audited.connect("root").await, audited.connect("ada").await);
    root.batch_execute("CREATE TABLE t (a BIGINT); INSERT INTO t VALUES (1)").await.unwrap();
    root.batch_execute(&format!("COPY t TO '{folder}/out.csv'")).await.unwrap();
    root.batch_execute(&format!("COPY t FROM '{folder}/out.csv'")).await.unwrap();
    root.query(&format!("SELECT * FROM '{folder}/out.csv'"), &[]).await.unwrap();
    root.batch_execute("SELECT * FROM 'missing.csv'").await.unwrap_err();
    root.batch_execute("SET memory_limit = '1GiB'").await.unwrap();
    root.batch_execute("SET threads = 2").await.unwrap();
    root.batch_execute("ATTACH 'postgresql://bob:a-secret@127.0.0.1:1/x' AS pg").await.unwrap_err();
    let function = "CREATE FUNCTION f(a BIGINT) RETURNS BIGINT LANGUAGE python AS $$ def f(a): return a $$";
    let _ = root.batch_execute(function).await;
    let denied = [
        format!("COPY t TO '{folder}/no.csv'"),
        format!("SELECT * FROM '{folder}/out.csv'"),
        "SET memory_limit = '2GiB'".into(),
        "ATTACH 'postgresql://bob:a-secret@127.0.0.1:1/x' AS pg".into(),
        function.into(),
        "INSERT INTO t VALUES (424242)".into(),
        "COPY t FROM STDIN".into(),
    ];
    for text in &denied {
        assert_eq!(code(&ada.simple_query(text).await.unwrap_err()), "42501", "{text}");
    }
    assert_eq!(code(&ada.query("SELECT * FROM 'x.csv'", &[]).await.unwrap_err()), "42501");
    drop((root, ada));
    let all = audited.ended().await;
    let lines_of = |event: &str, user: &str| -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().replace(&folder, "");
        let all = of(&all, event).into_iter().filter(|line| line["user"] == user);
        all.map(|line| (text(&line["tag"]), text(&line["target"]), text(&line["state"]))).collect()
    };
    let line = |tag: &str, target: &str, state: &str| (tag.to_string(), target.to_string(), state.to_string());
    let mut done = lines_of("statement", "root");
    done.retain(|(tag, _, _)| tag != "CREATE FUNCTION");
    assert_eq!(
        done,
        [
            line("COPY TO", "/out.csv", "done"),
            line("COPY FROM", "/out.csv", "done"),
            line("SELECT", "/out.csv", "done"),
            line("SELECT", "missing.csv", "failed"),
            line("SET", "memory_limit", "done"),
            line("ATTACH", "pg", "failed"),
        ],
        "{all:#?}"
    );
    assert!(all.iter().any(|line| line["tag"] == "CREATE FUNCTION" && line["user"] == "root" && line["target"] == "f"));
    assert_eq!(
        lines_of("denied", "ada"),
        [
            line("COPY TO", "/no.csv", "failed"),
            line("SELECT", "/out.csv", "failed"),
            line("SET", "memory_limit", "failed"),
            line("ATTACH", "pg", "failed"),
            line("CREATE FUNCTION", "f", "failed"),
            line("INSERT", "", "failed"),
            line("COPY", "", "failed"),
            line("SELECT", "", "failed"),
        ],
        "{all:#?}"
    );
    let copied = of(&all, "statement")[0];
    assert_eq!((&copied["table"], copied["connection"].is_u64(), copied["id"].is_u64()), (&"t".into(), true, true));
    let text = all.iter().map(Value::to_string).collect::<String>();
    assert!(!text.contains("secret") && !text.contains("424242") && !text.contains("GiB"), "{text}");
}

#[tokio::test]
async fn one_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::memory(&Default::default()).unwrap();
    let audit = Some(LogTo::File(folder.path().join("missing/audit")));
    let bound = Server::bind(database, Options { audit, ..options() }, support::executors()).await;
    let message = bound.unwrap_err().to_string();
    assert!(message.contains("the audit log") && message.contains("missing/audit"), "{message}");
    // A log that is full later is counted.
    let metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let place = place_with(Options { audit: Some(LogTo::File("/dev/full".into())), metrics, ..options() }).await;
    drop(place.connect().await);
    let began = Instant::now();
    loop {
        let mut stream = TcpStream::connect(place.metrics.unwrap()).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        if text.contains("\nonehop_audit_lines_lost_total 2") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
