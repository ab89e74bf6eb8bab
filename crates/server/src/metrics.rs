//! Figures of a server for Prometheus, in its text format, at `/metrics` of an address of their own.
//!
//! Counters go up where something happens; gauges are looked at when they are asked for. Who asks is answered once and sent
//! away: a request has a line and some headers, and no more.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use onehop_engine::Activity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::server::Shared;

/// Bytes of a request.
const MOST_REQUEST_BYTES: usize = 8 << 10;
/// How long one may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Requests at once.
const AT_ONCE: usize = 8;

/// What has happened since the server began.
#[derive(Debug, Default)]
pub struct Counters {
    /// Clients that were let in.
    pub connections: AtomicU64,
    /// Clients that there was no room for.
    pub refused_connections: AtomicU64,
    /// Log-ins that failed.
    pub failed_logins: AtomicU64,
    /// Statements that were run.
    pub statements: AtomicU64,
    /// Errors that clients were told.
    pub errors: AtomicU64,
    /// Rows that clients were sent.
    pub rows: AtomicU64,
}

impl Counters {
    pub fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Relaxed);
    }
}

/// All figures as Prometheus reads them.
fn text(shared: &Shared) -> String {
    let counters = &shared.counters;
    let (running, waiting) = shared.admission.counts();
    let open = shared.connections.connected().len();
    let of = |counter: &AtomicU64| counter.load(Relaxed);
    let figures = [
        ("onehop_connections", "gauge", "Clients that are connected", open as u64),
        ("onehop_connections_total", "counter", "Clients that were let in", of(&counters.connections)),
        (
            "onehop_connections_refused_total",
            "counter",
            "Clients that there was no room for",
            of(&counters.refused_connections),
        ),
        ("onehop_logins_failed_total", "counter", "Log-ins that failed", of(&counters.failed_logins)),
        ("onehop_statements_running", "gauge", "Statements that run", running as u64),
        ("onehop_statements_queued", "gauge", "Statements that wait for others to end", waiting as u64),
        ("onehop_statements_total", "counter", "Statements that were run", of(&counters.statements)),
        ("onehop_errors_total", "counter", "Errors that clients were told", of(&counters.errors)),
        ("onehop_rows_sent_total", "counter", "Rows that clients were sent", of(&counters.rows)),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in figures {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    text
}

/// Answers until it is dropped.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if let Ok(permit) = Arc::clone(&room).try_acquire_owned() {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let _ = tokio::time::timeout(LIMIT, answer(stream, &shared)).await;
                drop(permit);
            });
        }
    }
}

async fn answer(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() >= MOST_REQUEST_BYTES || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let is_asked = request.starts_with(b"GET /metrics ") || request.starts_with(b"GET /metrics?");
    let (status, body) = match is_asked {
        true => ("200 OK", text(shared)),
        false => ("404 Not Found", "figures are at /metrics\n".to_string()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
