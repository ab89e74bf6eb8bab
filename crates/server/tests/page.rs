//! The page from outside: its contents, its viewers, and the right to cancel statements.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use onehop_engine::Rights;
use onehop_server::{Options, Users};
use serde_json::Value;
use support::{Place, options, place_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A statement that runs until it is cancelled.
const ENDLESS: &str = "SELECT count(*) FROM generate_series(1, 1000000) AS a(x), generate_series(1, 1000000) AS b(y)";

fn with_page() -> Options {
    Options { http: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..options() }
}

/// The status, head and body of a response.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        assert!(self.head.contains("content-type: application/json"), "{}", self.head);
        serde_json::from_str(&self.body).unwrap()
    }
}

async fn asked(place: &Place, line: &str, headers: &[(&str, &str)]) -> Answer {
    let mut stream = TcpStream::connect(place.http.unwrap()).await.unwrap();
    let host = [("Host", "127.0.0.1"), ("Connection", "close")];
    let is_given = |name: &str| headers.iter().any(|(given, _)| *given == name);
    let headers = host.iter().filter(|(name, _)| !is_given(name)).chain(headers);
    let headers: String = headers.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    stream.write_all(format!("{line} HTTP/1.1\r\n{headers}\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.into(), body: body.into() }
}

async fn get(place: &Place, path: &str) -> Answer {
    asked(place, &format!("GET {path}"), &[]).await
}

/// Waits for a running statement with a plan, and returns it.
async fn running(place: &Place, headers: &[(&str, &str)]) -> Value {
    loop {
        let state = asked(place, "GET /api/state", headers).await.json();
        let planned = |query: &&Value| query["plan_seconds"].as_f64().unwrap() > 0.0;
        if let Some(query) = state["running"].as_array().unwrap().iter().find(planned) {
            return query.clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs the endless statement and returns its error.
async fn waits(client: tokio_postgres::Client) -> tokio_postgres::Error {
    client.query_one(ENDLESS, &[]).await.map(drop).unwrap_err()
}

#[tokio::test]
async fn it_is_one_file_that_asks_nobody_else() {
    let place = place_with(with_page()).await;
    let page = get(&place, "/").await;
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/html; charset=utf-8"), "{}", page.head);
    let script = page.body.split("<script>").nth(1).unwrap().split("</script>").next().unwrap();
    let hash = STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, script.as_bytes()));
    assert!(page.head.contains(&format!("script-src 'sha256-{hash}'")), "{}", page.head);
    for part in ["default-src 'none'", "frame-ancestors 'none'", "connect-src 'self'"] {
        assert!(page.head.contains(part), "{}", page.head);
    }
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        let body = page.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!body.contains(outside), "{outside}");
    }
    for (line, status) in [
        ("GET /nothing", 404),
        ("GET /api/queries/7/plan", 404),
        ("GET /api/queries/99", 404),
        ("GET /api/queries/x", 404),
        ("POST /", 405),
        ("DELETE /api/state", 405),
        ("GET /api/queries/1/cancel", 405),
    ] {
        assert_eq!(asked(&place, line, &[]).await.status, status, "{line}");
    }
}

#[tokio::test]
async fn what_runs_is_shown_with_its_plan_and_ended() {
    let place = place_with(with_page()).await;
    let client = place.connect().await;
    client.batch_execute("CREATE TABLE t AS SELECT value AS x FROM generate_series(1, 100000)").await.unwrap();
    client.query_one("SELECT sum(x) AS \"<b>sum</b>\" FROM t WHERE x > 5", &[]).await.unwrap();
    let state = get(&place, "/api/state").await.json();
    assert_eq!((&state["server"]["role"], &state["server"]["connections"]), (&"admin".into(), &1.into()));
    assert!(state["moved"]["rows_scanned"].as_u64().unwrap() >= 100_000, "{state}");
    assert_eq!(state["memory"][0]["name"], "block cache");
    assert_eq!(state["activity"][0]["user_name"], "ada");
    // The last completed statement comes first.
    let recent = &state["recent"][0];
    assert_eq!((&recent["state"], &recent["rows"]), (&"done".into(), &1.into()), "{state}");
    let query = get(&place, &format!("/api/queries/{}", recent["id"])).await.json();
    let html = query["html"].as_str().unwrap();
    assert!(html.contains("CpuPreAgg") && html.contains("CpuScan") && html.contains("<svg"), "{html}");
    assert!(html.contains("&lt;b&gt;sum") && !html.contains("<b>sum"), "{html}");

    let waiting = tokio::spawn(waits(client));
    let query = running(&place, &[]).await;
    assert_eq!((&query["text"], &query["may_cancel"], &query["user"]), (&ENDLESS.into(), &true.into(), &"ada".into()));
    let detail = get(&place, &format!("/api/queries/{}", query["id"])).await.json();
    assert_eq!(detail["state"], "running");
    assert!(detail["html"].as_str().unwrap().contains("Join"), "{detail}");
    let cancel = format!("POST /api/queries/{}/cancel", query["id"]);
    // As a form of another site's page would.
    assert_eq!(asked(&place, &cancel, &[]).await.status, 403);
    for origin in ["http://evil.example", "null", ""] {
        assert_eq!(asked(&place, &cancel, &[("X-Onehop", "1"), ("Origin", origin)]).await.status, 403, "{origin}");
    }
    let own = [("X-Onehop", "1"), ("Host", "127.0.0.1:5489"), ("Origin", "http://127.0.0.1:5489")];
    assert_eq!(asked(&place, &cancel, &own).await.status, 200);
    let error = waiting.await.unwrap();
    assert_eq!(error.code().unwrap().code(), "57014", "{error}");
    assert_eq!(asked(&place, &cancel, &[("X-Onehop", "1")]).await.status, 409);
    let detail = get(&place, &format!("/api/queries/{}", query["id"])).await.json();
    assert_eq!((&detail["state"], &detail["may_cancel"]), (&"cancelled".into(), &false.into()));
    assert!(detail["html"].as_str().unwrap().contains("Join"), "what it was is told afterwards");
}

#[tokio::test]
async fn names_that_lead_here_from_elsewhere_are_refused() {
    let place = place_with(with_page()).await;
    let of = async |host: &str| asked(&place, "GET /api/state", &[("Host", host)]).await.status;
    for host in ["127.0.0.1", "127.0.0.1:5489", "localhost:1", "LOCALHOST", "[::1]:80", "[::1]"] {
        assert_eq!(of(host).await, 200, "{host}");
    }
    for host in ["evil.example", "evil.example:5489", "localhost.evil.example", "127.0.0.1.evil.example", "", "[", "a]"]
    {
        assert_eq!(of(host).await, 421, "{host}");
    }
}

#[tokio::test]
async fn who_looks_logs_in_where_clients_do() {
    let folder = tempfile::tempdir().unwrap();
    let users = Users::at(folder.path().join("users"));
    users.add("ada", "Ada's: secret", Rights::Admin).unwrap();
    users.add("bob", "bob", Rights::Read).unwrap();
    let place = place_with(Options { users: Some(users.clone()), ..with_page() }).await;
    let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
    let refused = get(&place, "/").await;
    assert_eq!(refused.status, 401);
    assert!(refused.head.contains("www-authenticate: Basic realm=\"onehop\""), "{}", refused.head);
    for wrong in [&basic("ada:secret"), &basic("nobody:bob"), &basic("ada"), "Basic !", "Bearer x", "Basic", &basic("")]
    {
        let answer = asked(&place, "GET /api/state", &[("Authorization", wrong)]).await;
        assert_eq!(answer.status, 401, "{wrong}");
        assert!(!answer.body.contains("running"), "{}", answer.body);
    }
    let (ada, bob) = (basic("ada:Ada's: secret"), basic("bob:bob"));
    // Any host name is accepted, because another site's browser does not know the password.
    let by_name = [("Authorization", ada.as_str()), ("Host", "db.example")];
    assert_eq!(asked(&place, "GET /", &by_name).await.status, 200);
    let connect = async |name: &str, password: &str| {
        place.connect_with(place.config().user(name).password(password)).await.unwrap()
    };
    let (as_ada, as_bob) = ([("Authorization", ada.as_str())], [("Authorization", bob.as_str()), ("X-Onehop", "1")]);
    let of_ada = tokio::spawn(waits(connect("ada", "Ada's: secret").await));
    let query = running(&place, &as_bob).await;
    assert_eq!((&query["user"], &query["may_cancel"]), (&"ada".into(), &false.into()));
    let cancel = format!("POST /api/queries/{}/cancel", query["id"]);
    assert_eq!(asked(&place, &cancel, &as_bob).await.status, 403);
    let with_header = [as_ada[0], ("X-Onehop", "1")];
    assert_eq!(asked(&place, &cancel, &with_header).await.status, 200);
    of_ada.await.unwrap();
    // A user's own statement.
    let of_bob = tokio::spawn(waits(connect("bob", "bob").await));
    let query = running(&place, &as_bob).await;
    assert_eq!((&query["user"], &query["may_cancel"]), (&"bob".into(), &true.into()));
    let cancel = format!("POST /api/queries/{}/cancel", query["id"]);
    assert_eq!(asked(&place, &cancel, &as_bob).await.status, 200);
    of_bob.await.unwrap();
    // A remembered password is forgotten with the user.
    assert_eq!(asked(&place, "GET /api/state", &as_bob).await.status, 200);
    users.remove("bob").unwrap();
    assert_eq!(asked(&place, "GET /api/state", &as_bob).await.status, 401);
    // A guesser has to wait.
    for _ in 0..5 {
        asked(&place, "GET /", &[("Authorization", &basic("ada:guess"))]).await;
    }
    assert_eq!(asked(&place, "GET /", &as_ada).await.status, 429);
}
