//! The exporter of spans: OTLP over HTTP, by a client of our own.
//!
//! An OpenTelemetry thread gathers spans, and waits for a batch to be sent before it makes the
//! next. It is not a runtime thread: the request is a task of the front runtime.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Uri;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::metrics::Counters;

/// The time limit of a request.
const LIMIT: Duration = Duration::from_secs(10);
/// The maximum size of a response, in bytes. Responses are nearly empty.
const MOST_ANSWER_BYTES: usize = 1 << 20;

/// The path for a URL without one.
const PATH: &str = "/v1/traces";

/// Sends spans, and counts the results.
#[derive(Debug)]
pub struct Exporter {
    url: String,
    otlp: OtlpExporter,
    client: Arc<Client>,
    counters: Arc<Counters>,
    has_complained: AtomicBool,
}

impl Exporter {
    /// Creates an exporter to a URL, on the calling runtime.
    ///
    /// # Errors
    /// Returns a message if the URL or the OTLP environment variables are invalid.
    pub fn new(url: &str, counters: &Arc<Counters>) -> Result<Self, String> {
        let url = endpoint(url)?;
        let client = Arc::new(Client { runtime: Handle::current(), last_error: Mutex::default() });
        let otlp = OtlpExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&url)
            .with_timeout(LIMIT)
            .with_shared_http_client(Arc::clone(&client) as _)
            .build();
        let otlp = otlp.map_err(|e| format!("cannot send spans: {e}"))?;
        Ok(Self { url, otlp, client, counters: Arc::clone(counters), has_complained: AtomicBool::new(false) })
    }
}

/// Returns the URL that spans are sent to.
fn endpoint(url: &str) -> Result<String, String> {
    let wrong = |why: &str| format!("--otlp takes a URL such as http://127.0.0.1:4318: {why}");
    let uri: Uri = url.parse().map_err(|e| wrong(&format!("'{url}' is none: {e}")))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err(wrong("spans are sent unencrypted; run a collector on this machine, which sends them on"));
        }
        _ => return Err(wrong(&format!("'{url}' does not begin with http://"))),
    }
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if authority.contains('@') {
        return Err(wrong("what a collector wants to be told beside spans goes into OTEL_EXPORTER_OTLP_HEADERS"));
    }
    match uri.path() {
        "" | "/" => Ok(format!("http://{authority}{PATH}")),
        _ => Ok(uri.to_string()),
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let sent = self.otlp.export(batch).await;
        match &sent {
            Ok(()) => Counters::count(&self.counters.spans, count),
            Err(e) => {
                Counters::count(&self.counters.failed_span_exports, 1);
                if !self.has_complained.swap(true, Relaxed) {
                    let why = self.client.last_error.lock().unwrap_or_else(PoisonError::into_inner).take();
                    let why = why.unwrap_or_else(|| e.to_string());
                    eprintln!("onehop: cannot send spans to {}: {why}; those that cannot be sent are lost", self.url);
                }
            }
        }
        sent
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}

/// An HTTP client: one connection per request.
#[derive(Debug)]
struct Client {
    runtime: Handle,
    /// The last error. OpenTelemetry reports only that one occurred.
    last_error: Mutex<Option<String>>,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.runtime.spawn(async { tokio::time::timeout(LIMIT, send(request)).await });
        let sent = match sent.await {
            Ok(Ok(sent)) => sent,
            Ok(Err(_)) => Err(format!("there was no answer for {} s", LIMIT.as_secs()).into()),
            Err(_) => Err("the server ends".into()),
        };
        let said = sent.as_ref().err().map(ToString::to_string);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = said;
        sent
    }
}

async fn send(mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri().clone();
    let (host, port) = (uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(80));
    // An IPv6 address is in brackets.
    let stream = match format!("{host}:{port}").parse::<SocketAddr>() {
        Ok(address) => TcpStream::connect(address).await?,
        Err(_) => TcpStream::connect((host, port)).await?,
    };
    let path = uri.path_and_query().map_or(PATH, |path| path.as_str());
    *request.uri_mut() = path.parse()?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_str(uri.authority().map_or("", |authority| authority.as_str()))?);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The connection ends with this function, regardless of the request's outcome.
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, MOST_ANSWER_BYTES).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_of_a_collector_here() {
        for (url, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
            ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
            ("http://h/otlp/v1/traces", "http://h/otlp/v1/traces"),
        ] {
            assert_eq!(endpoint(url).as_deref(), Ok(expected));
        }
        for (url, why) in [
            ("https://127.0.0.1:4318", "run a collector on this machine"),
            ("127.0.0.1:4318", "http://"),
            ("ftp://h/", "does not begin with http://"),
            ("/v1/traces", "does not begin with http://"),
            ("", "http://"),
            ("http://a:b@h", "OTEL_EXPORTER_OTLP_HEADERS"),
        ] {
            let refused = endpoint(url).unwrap_err();
            assert!(refused.contains(why), "{url}: {refused}");
        }
    }
}
