//! HTTP endpoints of a server: metrics for Prometheus ([`crate::metrics`]), and the page
//! ([`crate::page`]).
//!
//! A site answers a request with a complete body, and reads no request body. Each site has slots of
//! its own ([`crate::slots`]), and each connection a time limit for its request. If all slots are
//! taken, a connection that waits, or does not read its answer, is dropped for a new one.
//! Connections belong to the task that serves them and end with it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub use hyper::{Method, StatusCode};

use crate::server::prepare;
use crate::slots::{Slot, Slots, Stage};

/// A request, whose body is never read.
pub type Request = hyper::Request<Incoming>;
/// A response.
pub type Response = hyper::Response<Full<Bytes>>;

/// The maximum number of concurrent connections.
const AT_ONCE: usize = 32;
/// The time limit for a request, the first or a later one, and for the TLS handshake.
const LIMIT: Duration = Duration::from_secs(30);
/// The approximate maximum size of a request, in bytes.
const MOST_REQUEST_BYTES: usize = 16 << 10;

/// A site that answers requests.
pub trait Site: Send + Sync + 'static {
    /// Answers a request from an address.
    fn answer(&self, request: Request, from: IpAddr) -> impl Future<Output = Response> + Send;
}

/// Creates a response with a body that must not be cached.
pub fn response(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Serves requests until it is dropped.
pub async fn serve<S: Site>(listener: TcpListener, tls: Option<TlsAcceptor>, site: S) {
    let (site, slots) = (Arc::new(site), Slots::new(AT_ONCE, LIMIT));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, address)) = accepted else {
            // Most likely too many open files; some close meanwhile.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if let Some(slot) = slots.enter(address.ip(), Instant::now()) {
            let (site, tls, slot) = (Arc::clone(&site), tls.clone(), Arc::new(slot));
            connections.spawn(async move {
                prepare(&stream);
                tokio::select! {
                    () = connection(stream, address, tls, site, &slot) => {}
                    () = slot.is_lost() => {}
                }
            });
        }
    }
}

async fn connection<S: Site>(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    site: Arc<S>,
    slot: &Arc<Slot>,
) {
    match tls {
        None => exchange(stream, address.ip(), site, slot).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(LIMIT, tls.accept(stream)).await {
                exchange(stream, address.ip(), site, slot).await;
            }
        }
    }
}

async fn exchange<S: Site>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    from: IpAddr,
    site: Arc<S>,
    slot: &Arc<Slot>,
) {
    let answer = service_fn(|request| {
        let (site, slot) = (Arc::clone(&site), Arc::clone(slot));
        async move {
            slot.reach(Stage::Busy);
            let answer = site.answer(request, from).await;
            slot.reach(Stage::Silent);
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(LIMIT).max_buf_size(MOST_REQUEST_BYTES);
    // An error of a connection concerns only its other end.
    let _ = server.serve_connection(TokioIo::new(stream), answer).await;
}
