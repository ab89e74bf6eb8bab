//! Metrics of a server for Prometheus, in its text format, at `/metrics` of a separate address.
//!
//! Counters are incremented at each event. Gauges are read at each scrape.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use onehop_engine::{Activity, Hop};
use onehop_governor as governor;

use crate::http::{self, Method, Request, Response, Site, StatusCode};
use crate::server::Shared;

/// The counters since the server started.
#[derive(Debug, Default)]
pub struct Counters {
    /// The number of admitted clients.
    pub connections: AtomicU64,
    /// The number of clients that were refused because the server was full.
    pub refused_connections: AtomicU64,
    /// The number of failed log-ins.
    pub failed_logins: AtomicU64,
    /// The number of executed statements.
    pub statements: AtomicU64,
    /// The number of errors sent to clients.
    pub errors: AtomicU64,
    /// The number of rows sent to clients.
    pub rows: AtomicU64,
    /// The number of spans that a collector accepted.
    pub spans: AtomicU64,
    /// The number of failed span exports.
    pub failed_span_exports: AtomicU64,
}

impl Counters {
    /// Adds to a counter.
    pub fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Relaxed);
    }
}

/// Returns all metrics in Prometheus's text format.
fn text(shared: &Shared) -> String {
    let counters = &shared.counters;
    let (running, waiting) = shared.admission.counts();
    let open = shared.connections.connected().len();
    let of = |counter: &AtomicU64| counter.load(Relaxed);
    let memory = governor::usage();
    let fenced = governor::accounts().iter().filter(|account| account.is_fenced()).count();
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
        ("onehop_logins_open", "gauge", "Connections that have not logged in", shared.logins.count() as u64),
        (
            "onehop_logins_dropped_total",
            "counter",
            "Connections that were dropped for others before they had logged in",
            shared.logins.dropped(),
        ),
        (
            "onehop_audit_lines_lost_total",
            "counter",
            "Lines that are missing from the audit log",
            shared.witness.lost_of_audit(),
        ),
        ("onehop_statements_running", "gauge", "Statements that run", running as u64),
        ("onehop_statements_queued", "gauge", "Statements that wait for others to end", waiting as u64),
        (
            "onehop_statements_fenced",
            "gauge",
            "Statements that compute on although they were stopped: their places are taken until they end",
            fenced as u64,
        ),
        ("onehop_resident_bytes", "gauge", "Memory that the process has", memory.resident),
        ("onehop_memory_limit_bytes", "gauge", "The memory_limit of the process", shared.database.memory_limit_bytes()),
        ("onehop_allocated_bytes", "gauge", "Memory that is allocated, by all", memory.counted),
        ("onehop_statements_total", "counter", "Statements that were run", of(&counters.statements)),
        ("onehop_errors_total", "counter", "Errors that clients were told", of(&counters.errors)),
        ("onehop_rows_sent_total", "counter", "Rows that clients were sent", of(&counters.rows)),
        ("onehop_spans_total", "counter", "Spans that a collector took", of(&counters.spans)),
        (
            "onehop_span_exports_failed_total",
            "counter",
            "Batches of spans that no collector took",
            of(&counters.failed_span_exports),
        ),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in figures {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    let (moved, name) = (shared.database.moved(), "onehop_moved_bytes_total");
    let _ = writeln!(text, "# HELP {name} Bytes that statements have moved, by hop\n# TYPE {name} counter");
    for hop in Hop::ALL {
        let label = hop.name().trim_end_matches("_bytes");
        let _ = writeln!(text, "{name}{{hop=\"{label}\"}} {}", moved.hop(hop));
    }
    text
}

/// The site that serves the metrics.
pub struct Figures(pub Arc<Shared>);

impl Site for Figures {
    async fn answer(&self, request: Request, _from: IpAddr) -> Response {
        const TEXT: &str = "text/plain; charset=utf-8";
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/metrics") => {
                http::response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text(&self.0))
            }
            _ => http::response(StatusCode::NOT_FOUND, TEXT, "figures are at /metrics\n"),
        }
    }
}
