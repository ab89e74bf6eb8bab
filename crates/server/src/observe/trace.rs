//! Spans of statements, by OpenTelemetry's conventions for databases.
//!
//! A span is created when its statement completes, with two children: `plan` and `execute`. Its
//! parent is the client's span, if a comment of the statement names one. It follows the parent's
//! sampling decision: if the client does not record, neither does the server. Spans contain the
//! operation and no data: values are masked, and messages, which contain values, are only in the
//! log.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use onehop_engine::{Hop, Query};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span as _, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracer, SdkTracerProvider};

use super::collector::Exporter;
use super::{Statement, seconds, sql};
use crate::metrics::Counters;
use crate::server::{Error, Result};

/// Statements whose rows are their result. The row count of other statements is the number of
/// written rows.
const ASKING: [&str; 8] = ["SELECT", "WITH", "VALUES", "TABLE", "FROM", "SHOW", "EXPLAIN", "DESCRIBE"];

/// Creates and exports spans.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

impl Traces {
    /// Creates an exporter of spans to a URL, on the calling runtime.
    ///
    /// # Errors
    /// Fails if the URL cannot be used.
    pub fn new(url: &str, counters: &Arc<Counters>) -> Result<Self> {
        let exporter = Exporter::new(url, counters).map_err(Error::Refused)?;
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter).build())
            .with_resource(resource())
            .build();
        let scope = InstrumentationScope::builder("onehop").with_version(env!("CARGO_PKG_VERSION")).build();
        let tracer = provider.tracer_with_scope(scope);
        Ok(Self { provider, tracer, propagator: TraceContextPropagator::new() })
    }

    /// Creates the spans of a completed statement.
    pub fn tell(&self, statement: &Statement<'_>) {
        let headers = sql::parent(statement.text);
        let parent = headers.map(|headers| self.propagator.extract_with_context(&Context::new(), &headers));
        let operation = sql::operation(statement.text);
        let database = statement.connection.map(|connection| connection.database.as_str());
        let name = [operation.as_deref(), database].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let (from, until) = (statement.started_at(), statement.started_at() + statement.total_time());
        let builder = self.tracer.span_builder(if name.is_empty() { "onehop".into() } else { name });
        let builder = builder.with_kind(SpanKind::Server).with_start_time(from);
        let mut span = builder.start_with_context(&self.tracer, &parent.unwrap_or_default());
        if !span.is_recording() {
            return;
        }
        span.set_attributes(attributes(statement, operation));
        if statement.has_failed() {
            span.set_status(Status::error(""));
        }
        if let Some(plan_time) = statement.query.map(Query::plan_time).filter(|time| !time.is_zero()) {
            let planned = until.min(from + plan_time);
            self.part("plan", span.span_context(), from, planned);
            self.part("execute", span.span_context(), planned, until);
        }
        span.end_with_timestamp(until);
    }

    /// Creates a child span.
    fn part(&self, name: &'static str, of: &SpanContext, from: SystemTime, until: SystemTime) {
        let above = Context::new().with_remote_span_context(of.clone());
        self.tracer
            .span_builder(name)
            .with_start_time(from)
            .start_with_context(&self.tracer, &above)
            .end_with_timestamp(until);
    }

    /// Exports the remaining spans within a time limit. Must not block a thread of the runtime,
    /// which performs the export.
    pub fn end(&self, most: Duration) {
        // Failed exports have been counted.
        let _ = self.provider.shutdown_with_timeout(most);
    }
}

/// Returns the resource of the spans. Environment variables override the defaults.
fn resource() -> Resource {
    let named = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    Resource::builder_empty()
        .with_service_name("onehop")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_attributes(named.map(|name| KeyValue::new("service.name", name)))
        .build()
}

fn attributes(statement: &Statement<'_>, operation: Option<String>) -> Vec<KeyValue> {
    let mut all = vec![
        KeyValue::new("db.system.name", "onehop"),
        KeyValue::new("db.query.text", sql::masked(statement.text)),
        KeyValue::new("onehop.state", statement.state().name()),
    ];
    let is_asking = operation.as_deref().is_some_and(|operation| ASKING.contains(&operation));
    all.extend(operation.map(|operation| KeyValue::new("db.operation.name", operation)));
    if let Some(connection) = statement.connection {
        all.extend([
            KeyValue::new("db.namespace", connection.database.clone()),
            KeyValue::new("client.address", connection.address.ip().to_string()),
            KeyValue::new("client.port", i64::from(connection.address.port())),
            KeyValue::new("onehop.user", connection.user.clone()),
        ]);
    }
    if let Some(code) = statement.sqlstate {
        all.extend([KeyValue::new("db.response.status_code", code), KeyValue::new("error.type", code)]);
    }
    if let Some(query) = statement.query {
        let moved = query.ledger();
        let rows = if is_asking { "db.response.returned_rows" } else { "onehop.written_rows" };
        all.extend([
            KeyValue::new("onehop.query.id", number(query.id())),
            KeyValue::new("onehop.engine", query.engine().name()),
            KeyValue::new("onehop.plan_seconds", seconds(query.plan_time())),
            KeyValue::new("onehop.cached_bytes", number(moved.cached_bytes)),
            KeyValue::new(rows, number(query.rows())),
        ]);
        let hops = Hop::ALL.into_iter().map(|hop| (hop, moved.hop(hop))).filter(|(_, bytes)| *bytes > 0);
        all.extend(hops.map(|(hop, bytes)| {
            let name = hop.name().trim_end_matches("_bytes");
            KeyValue::new(format!("onehop.bytes.{name}"), number(bytes))
        }));
    }
    all
}

/// Converts a number. OpenTelemetry has no unsigned ones.
fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
