//! HTTP for those who look at a server: figures for Prometheus ([`crate::metrics`]), and the page ([`crate::page`]).
//!
//! A site answers a request with a whole text, and reads no body. Each site has slots of its own
//! ([`crate::slots`]), and each connection a time to say what it wants. A connection that waits, or
//! does not read its answer, is dropped for a new one when all slots are taken. Connections are of
//! the task that serves them and end with it.

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

/// A request, whose body nobody reads.
pub type Request = hyper::Request<Incoming>;
/// An answer.
pub type Response = hyper::Response<Full<Bytes>>;

/// Connections at once.
const AT_ONCE: usize = 32;
/// How long one may take to say what it wants, the first time or again, and to agree on encryption.
const LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a request, about.
const MOST_REQUEST_BYTES: usize = 16 << 10;

/// What is served.
pub trait Site: Send + Sync + 'static {
    /// Answers a request of somebody.
    fn answer(&self, request: Request, from: IpAddr) -> impl Future<Output = Response> + Send;
}

/// An answer of a text, which is nobody's to keep.
pub fn response(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Answers until it is dropped.
pub async fn serve<S: Site>(listener: TcpListener, tls: Option<TlsAcceptor>, site: S) {
    let (site, slots) = (Arc::new(site), Slots::new(AT_ONCE, LIMIT));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, address)) = accepted else {
            // Too many open files, most likely: some are closed meanwhile.
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
    // What is wrong with a connection is the business of its other end.
    let _ = server.serve_connection(TokioIo::new(stream), answer).await;
}
