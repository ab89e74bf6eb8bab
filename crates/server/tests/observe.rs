//! Observability from outside: the lines of the log, and the spans that a collector receives.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use onehop_engine::{Database, DatabaseOptions, Rights};
use onehop_server::{Error, LogTo, Options, Server, Users};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::Value;
use support::{Place, code, options, place_with, startup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// A statement that runs until it is cancelled.
const ENDLESS: &str = "SELECT count(*) FROM generate_series(1, 1000000) AS a(x), generate_series(1, 1000000) AS b(y)";

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Returns the parsed lines of a log.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == event).collect()
}

fn with_log(path: &Path) -> Options {
    Options { log: Some(LogTo::File(path.into())), ..options() }
}

/// A collector that keeps the received spans, and responds with a fixed status.
struct Collector {
    url: String,
    requests: mpsc::UnboundedReceiver<(String, ExportTraceServiceRequest)>,
}

impl Collector {
    async fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                if let Some(request) = request(stream, status).await {
                    let _ = sender.send(request);
                }
            }
        });
        Self { url, requests }
    }

    fn options(&self) -> Options {
        Options { otlp: Some(self.url.clone()), ..options() }
    }

    /// Returns the spans received so far.
    fn spans(&mut self) -> Vec<Span> {
        let mut all = Vec::new();
        while let Ok((head, request)) = self.requests.try_recv() {
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("content-type: application/x-protobuf\r\n"), "{head}");
            for resource in request.resource_spans {
                let about = resource.resource.unwrap().attributes;
                assert!(about.iter().any(|one| one.key == "service.name" && text(&one.value) == "onehop"), "{about:?}");
                all.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        all
    }
}

async fn request(mut stream: TcpStream, status: &str) -> Option<(String, ExportTraceServiceRequest)> {
    let mut bytes = Vec::new();
    let (head, length, from) = loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..at + 2].to_vec()).unwrap();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            break (head, length.unwrap(), at + 4);
        }
    };
    while bytes.len() < from + length {
        stream.read_buf(&mut bytes).await.ok()?;
    }
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.ok()?;
    Some((head, ExportTraceServiceRequest::decode(&bytes[from..]).unwrap()))
}

fn text(value: &Option<opentelemetry_proto::tonic::common::v1::AnyValue>) -> String {
    match value.as_ref().and_then(|value| value.value.as_ref()).unwrap() {
        Any::StringValue(text) => text.clone(),
        Any::IntValue(n) => n.to_string(),
        Any::DoubleValue(n) => n.to_string(),
        other => format!("{other:?}"),
    }
}

fn attributes(span: &Span) -> HashMap<&str, String> {
    span.attributes.iter().map(|one| (one.key.as_str(), text(&one.value))).collect()
}

fn find<'a>(spans: &'a [Span], part_of_text: &str) -> &'a Span {
    let is_it = |span: &&Span| attributes(span).get("db.query.text").is_some_and(|text| text.contains(part_of_text));
    spans.iter().find(is_it).unwrap_or_else(|| panic!("no span of {part_of_text} among {spans:#?}"))
}

fn parts<'a>(spans: &'a [Span], of: &Span) -> Vec<&'a Span> {
    let mut parts: Vec<_> = spans.iter().filter(|span| span.parent_span_id == of.span_id).collect();
    parts.sort_by_key(|span| span.start_time_unix_nano);
    parts
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn figure(place: &Place, name: &str) -> u64 {
    let mut stream = TcpStream::connect(place.metrics.unwrap()).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
}

#[tokio::test]
async fn a_line_for_all_that_happens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    std::fs::write(&path, "{\"event\":\"before\"}\n").unwrap();
    let mut place = place_with(Options { max_connections: 1, ..with_log(&path) }).await;
    let client = place.connect().await;
    client.batch_execute("CREATE TABLE t AS SELECT value AS x FROM generate_series(1, 1000)").await.unwrap();
    client.query_one("SELECT sum(x) FROM t WHERE x > $1", &[&5_i64]).await.unwrap();
    // The server is full.
    assert!(place.connect_with(&place.config()).await.is_err());
    client.batch_execute("SELECT 'a\nb\"}' AS x, CAST('x' AS INTEGER)").await.unwrap_err();
    // Statements that never begin: they cannot be parsed or described, have invalid values, or
    // their transaction has failed.
    client.batch_execute("SELEKT 1").await.unwrap_err();
    client.query("SELECT * FROM missing", &[]).await.unwrap_err();
    client.batch_execute("BEGIN").await.unwrap();
    client.batch_execute("SELECT 1/0").await.unwrap_err();
    client.batch_execute("SELECT 'refused'").await.unwrap_err();
    client.batch_execute("ROLLBACK").await.unwrap();
    // The statement fails after it has returned some rows, which were fetched separately.
    let mut client = client;
    let transaction = client.transaction().await.unwrap();
    let text = "SELECT 10 / (90000 - value) AS later FROM generate_series(1, 100000)";
    let portal = transaction.bind(text, &[]).await.unwrap();
    assert_eq!(transaction.query_portal(&portal, 3).await.unwrap().len(), 3);
    assert_eq!(code(&transaction.query_portal(&portal, 0).await.unwrap_err()), "22012");
    drop(transaction);
    let token = client.cancel_token();
    let waiting = tokio::spawn(async move { client.query_one(ENDLESS, &[]).await.map(drop).unwrap_err() });
    while place.database.queries().last().unwrap().text() != ENDLESS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    token.cancel_query(tokio_postgres::NoTls).await.unwrap();
    assert_eq!(code(&waiting.await.unwrap()), "57014");
    place.ended().await;

    let all = lines(&path);
    let events: Vec<&str> = all.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(&events[..3], ["before", "server started", "connected"], "it is added to what is there");
    assert_eq!(&events[events.len() - 2..], ["disconnected", "server ends"]);
    let address = place.address.to_string();
    assert_eq!((&all[1]["address"], &all[1]["database"]), (&address.into(), &":memory:".into()));
    assert_eq!((&all[2]["user"], &all[2]["database"]), (&"ada".into(), &"test".into()));
    assert!(all[2]["client_address"].as_str().unwrap().starts_with("127.0.0.1:"));
    let refused = of(&all, "refused");
    assert_eq!((refused.len(), &refused[0]["sqlstate"], &refused[0]["user"]), (1, &"53300".into(), &"ada".into()));

    let statements = of(&all, "statement");
    let find = |text: &str| *statements.iter().find(|line| line["text"].as_str().unwrap().contains(text)).unwrap();
    let sum = find("sum(x)");
    assert_eq!((&sum["state"], &sum["rows"], &sum["engine"]), (&"done".into(), &1.into(), &"cpu".into()));
    assert_eq!((&sum["connection"], &sum["user"]), (&all[2]["connection"], &"ada".into()));
    assert!(sum["seconds"].as_f64().unwrap() >= sum["plan_seconds"].as_f64().unwrap(), "{sum}");
    assert!(sum["id"].is_u64() && sum["session"].is_u64() && sum["moved_bytes"].is_u64(), "{sum}");
    assert_eq!((sum.get("error"), sum.get("sqlstate")), (None, None));
    let failed = find("CAST('x'");
    assert_eq!((&failed["state"], &failed["sqlstate"]), (&"failed".into(), &"22P02".into()), "{failed}");
    assert_eq!(failed["text"], "SELECT 'a\nb\"}' AS x, CAST('x' AS INTEGER)");
    assert!(failed["error"].as_str().unwrap().contains('x'), "{failed}");
    for (text, sqlstate) in [("SELEKT 1", "42601"), ("missing", "42P01"), ("'refused'", "25P02")] {
        let line = find(text);
        assert_eq!((line.get("id"), &line["state"]), (None, &"failed".into()), "{line}");
        assert_eq!((&line["sqlstate"], &line["user"]), (&sqlstate.into(), &"ada".into()), "{line}");
        assert_eq!(statements.iter().filter(|other| other["text"] == line["text"]).count(), 1, "once");
    }
    assert_eq!(find("1/0")["sqlstate"], "22012");
    assert_eq!(find("AS later")["sqlstate"], "22012");
    let count = statements.iter().filter(|line| line["text"].as_str().unwrap().contains("AS later")).count();
    assert_eq!(count, 1, "once, by the engine");
    let mut ids: Vec<_> = statements.iter().filter_map(|line| line["id"].as_u64()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "each is told of once");
    let cancelled = find("count(*)");
    assert_eq!((&cancelled["state"], &cancelled["sqlstate"]), (&"cancelled".into(), &"57014".into()), "{cancelled}");
}

#[tokio::test]
async fn what_is_fast_and_well_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let log_min_duration = Duration::from_secs(3600);
    let mut place = place_with(Options { log_min_duration, ..with_log(&path) }).await;
    let client = place.connect().await;
    client.batch_execute("SELECT 1").await.unwrap();
    client.batch_execute("SELECT 1/0").await.unwrap_err();
    drop(client);
    place.ended().await;
    let all = lines(&path);
    let texts: Vec<_> = of(&all, "statement").iter().map(|line| line["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["SELECT 1/0"]);
    assert_eq!((of(&all, "connected").len(), of(&all, "disconnected").len()), (1, 1));
}

#[tokio::test]
async fn nothing_of_a_password_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let users = Users::at(folder.path().join("users"));
    users.add("ada", "right-one", Rights::Admin).unwrap();
    let http = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut place = place_with(Options { users: Some(users), http, ..with_log(&path) }).await;
    let client = place.connect_with(place.config().password("right-one")).await.unwrap();
    // In an address, whether the statement begins or not.
    for text in
        ["ATTACH 'postgresql://bob:wrong-two@127.0.0.1:1/x' AS pg", "ATTACH 'postgresql://bob:wrong-two@h/x' pg"]
    {
        client.simple_query(text).await.unwrap_err();
    }
    drop(client);
    place.connect_with(place.config().password("wrong-one")).await.unwrap_err();
    // The client sends no valid password message.
    let mut stream = TcpStream::connect(place.address).await.unwrap();
    stream.write_all(&startup()).await.unwrap();
    stream.write_all(&support::message(b'p', b"wrong-one\0")).await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    for (password, status) in [("right-one", "200"), ("wrong-one", "401")] {
        let mut stream = TcpStream::connect(place.http.unwrap()).await.unwrap();
        let basic = STANDARD.encode(format!("ada:{password}"));
        let request = format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {basic}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(status));
    }
    place.ended().await;
    let all = lines(&path);
    let failed = of(&all, "login failed");
    let of_ada = failed.iter().filter(|line| line["user"] == "ada" && line["sqlstate"] == "28P01");
    assert_eq!((failed.len(), of_ada.count()), (3, 2), "{failed:#?}");
    let text = std::fs::read_to_string(&path).unwrap();
    for secret in
        ["right-one", "wrong-one", "wrong-two", &STANDARD.encode("ada:wrong-one"), &STANDARD.encode("ada:right-one")]
    {
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn statements_are_spans_with_two_parts() {
    let mut collector = Collector::start("200 OK").await;
    let metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut place = place_with(Options { metrics, ..collector.options() }).await;
    let client = place.connect().await;
    client
        .batch_execute("CREATE TABLE t AS SELECT value AS x, 'secret' AS y FROM generate_series(1, 1000)")
        .await
        .unwrap();
    client.batch_execute("INSERT INTO t VALUES (1001, 'secret'), (1002, E'it\\'s secret')").await.unwrap();
    let text = format!("SELECT x, 'secret' FROM t WHERE x <= $1 AND x > 10 /*app='x',traceparent='{PARENT}'*/");
    assert_eq!(client.query(&text, &[&15_i64]).await.unwrap().len(), 5);
    client.batch_execute("SELECT 7 / (x - x) FROM t").await.unwrap_err();
    client.batch_execute("SELEKT 'secret'").await.unwrap_err();
    let not_recorded = PARENT.replace("-01", "-00");
    client.batch_execute(&format!("SELECT 'not recorded' AS z /*traceparent='{not_recorded}'*/")).await.unwrap();
    let forged = "SELECT 8 AS forged /*traceparent='00-0-0-01'*/";
    client.batch_execute(forged).await.unwrap();
    drop(client);
    place.ended().await;

    // The last spans are exported as well, before the server ends.
    let spans = collector.spans();
    let (create, insert) = (find(&spans, "CREATE"), find(&spans, "INSERT"));
    let (select, failed) = (find(&spans, "$1"), find(&spans, "(x - x)"));
    assert_eq!((&*create.name, &*insert.name, &*select.name), ("CREATE test", "INSERT test", "SELECT test"));
    let about = attributes(select);
    for (name, value) in [
        ("db.system.name", "onehop"),
        ("db.namespace", "test"),
        ("db.operation.name", "SELECT"),
        ("db.query.text", "SELECT x, ? FROM t WHERE x <= $1 AND x > ?"),
        ("db.response.returned_rows", "5"),
        ("client.address", "127.0.0.1"),
        ("onehop.engine", "cpu"),
        ("onehop.state", "done"),
        ("onehop.user", "ada"),
    ] {
        assert_eq!(about.get(name).map(String::as_str), Some(value), "{name} of {about:#?}");
    }
    assert!(about["client.port"].parse::<u16>().unwrap() > 0 && about["onehop.query.id"].parse::<u64>().unwrap() > 0);
    assert!(about["onehop.plan_seconds"].parse::<f64>().unwrap() > 0.0, "{about:#?}");
    assert!(!about.contains_key("error.type") && select.status.as_ref().is_none_or(|status| status.code == 0));
    assert_eq!(select.kind, 2, "of a server");
    assert_eq!(attributes(insert)["onehop.written_rows"], "2");
    assert_eq!(attributes(insert)["db.query.text"], "INSERT INTO t VALUES (?, ?), (?, ?)");
    assert!(attributes(create).keys().any(|name| name.starts_with("onehop.bytes.")), "{:#?}", attributes(create));

    // The span is a child of the client's, and its two parts are its children, one after the other.
    assert_eq!((hex(&select.trace_id), hex(&select.parent_span_id)), (PARENT[3..35].into(), PARENT[36..52].into()));
    let of_select = parts(&spans, select);
    assert_eq!(of_select.iter().map(|span| &*span.name).collect::<Vec<_>>(), ["plan", "execute"]);
    assert!(of_select.iter().all(|span| span.trace_id == select.trace_id));
    assert_eq!(of_select[0].start_time_unix_nano, select.start_time_unix_nano);
    assert_eq!(of_select[0].end_time_unix_nano, of_select[1].start_time_unix_nano);
    assert_eq!(of_select[1].end_time_unix_nano, select.end_time_unix_nano);
    assert!(create.parent_span_id.is_empty() && create.trace_id != insert.trace_id);
    assert!(find(&spans, "forged").parent_span_id.is_empty());

    for (span, sqlstate) in [(failed, "22012"), (find(&spans, "SELEKT"), "42601")] {
        let about = attributes(span);
        assert_eq!((&*about["db.response.status_code"], &*about["error.type"]), (sqlstate, sqlstate));
        assert_eq!(span.status.as_ref().unwrap().code, 2, "{span:#?}");
    }
    assert!(parts(&spans, find(&spans, "SELEKT")).is_empty());
    let all = format!("{spans:?}");
    assert!(!all.contains("secret") && !all.contains("recorded"), "{all}");
}

#[tokio::test]
async fn a_collector_that_takes_nothing_keeps_nobody_waiting() {
    let refusing = Collector::start("400 Bad Request").await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    // A collector that accepts connections, and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    for (url, is_counted) in [(refusing.url.clone(), true), (nobody, true), (silent_url, false)] {
        let metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let mut place = place_with(Options { metrics, otlp: Some(url.clone()), ..options() }).await;
        let client = place.connect().await;
        let began = Instant::now();
        // More than one batch, so that some are in flight.
        for n in 0..600 {
            client.batch_execute(&format!("SELECT {n}")).await.unwrap();
        }
        let took = began.elapsed();
        while is_counted && figure(&place, "onehop_span_exports_failed_total ").await == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "{url}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(figure(&place, "onehop_spans_total ").await, 0);
        assert!(took < Duration::from_secs(30), "{url}: {took:?}");
        drop(client);
        let began = Instant::now();
        place.ended().await;
        assert!(began.elapsed() < Duration::from_secs(8), "{url}: the server's end took {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn spans_that_are_taken_are_counted() {
    let mut collector = Collector::start("200 OK").await;
    let metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let place = place_with(Options { metrics, ..collector.options() }).await;
    let client = place.connect().await;
    // A batch is exported when it is full.
    for n in 0..200 {
        client.batch_execute(&format!("SELECT {n}")).await.unwrap();
    }
    let began = Instant::now();
    while figure(&place, "onehop_spans_total ").await < 512 {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(collector.spans().len() >= 512);
    assert_eq!(figure(&place, "onehop_span_exports_failed_total ").await, 0);
}

#[tokio::test]
async fn what_cannot_be_is_the_end_of_the_server() {
    let database = Database::memory(&DatabaseOptions::default()).unwrap();
    let bind = async |options| Server::bind(database.clone(), options, support::executors()).await;
    let missing = Path::new("/nowhere/at/all/log");
    match bind(with_log(missing)).await {
        Err(Error::Log { path, .. }) => assert_eq!(path, missing),
        other => panic!("{other:?}"),
    }
    for url in ["https://127.0.0.1:4318", "127.0.0.1:4318", "nonsense"] {
        let refused = bind(Options { otlp: Some(url.into()), ..options() }).await.unwrap_err();
        assert!(matches!(refused, Error::Refused(_)), "{refused}");
        assert!(refused.to_string().contains("--otlp"), "{refused}");
    }
}

#[tokio::test]
async fn whoever_observes_keeps_no_database_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d");
    let open = || Database::open(&path, &DatabaseOptions::default());
    let options = || with_log(&folder.path().join("log"));
    let server = Server::bind(open().unwrap(), options(), support::executors()).await.unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(server.run(async move { drop(stopped.await) }));
    let (client, connection) = {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(address.port()).user("ada");
        config.connect(tokio_postgres::NoTls).await.unwrap()
    };
    let connection = tokio::spawn(connection);
    client.batch_execute("SHOW server_version").await.unwrap();
    stop.send(()).unwrap();
    served.await.unwrap();
    let _ = connection.await;
    assert!(open().is_ok(), "it is locked as long as it is open");
}
