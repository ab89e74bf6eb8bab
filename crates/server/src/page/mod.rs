//! The web page: running and past statements, the bytes they move, and the contents of memory and
//! devices.
//!
//! ```text
//! GET  /                        the page: one file, which requests the rest
//! GET  /api/state               statements, connections, memory, bytes moved since the start
//! GET  /api/queries/ID          one statement: its statistics, and its plan as an HTML fragment
//! POST /api/queries/ID/cancel   cancels one: for admins, and for its own user
//! ```
//! A viewer sends a user's name and password, as clients do (HTTP basic authentication; TLS if the
//! server has it). On a server without log-ins, each viewer is an admin. Two checks then ensure
//! that requests come from people at this machine, and not from another site's page in their
//! browser. The request names the server by its address or as `localhost`, which defeats DNS
//! rebinding. A request that changes anything has a header that other sites' pages may not send.

mod state;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{
    ALLOW, AUTHORIZATION, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY,
    WWW_AUTHENTICATE,
};
use hyper::http::uri::Authority;
use onehop_engine::{EXPLANATION_STYLE, Rights};
use serde_json::{Value, json};

use crate::connections::Cancelled;
use crate::http::{Method, Request, Response, Site, StatusCode, response};
use crate::metrics::Counters;
use crate::problem::{Problem, code};
use crate::server::Shared;

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The header that another site's page cannot send.
const ASKED: HeaderName = HeaderName::from_static("x-onehop");

const SCRIPT: &str = include_str!("page.js");

/// The page, the same for all viewers.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    let style = format!("{EXPLANATION_STYLE}{}", include_str!("page.css"));
    include_str!("page.html").replace("/* style */", &style).replace("/* script */", SCRIPT)
});

/// The policy: the page loads nothing, runs only its own script, contacts only this server, and
/// cannot be embedded in another page.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let hash = STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, SCRIPT.as_bytes()));
    HeaderValue::from_str(&format!(
        "default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri \
         'none'; form-action 'none'; frame-ancestors 'none'"
    ))
    .ok()
});

/// The page and its API.
pub struct Page(Arc<Shared>);

/// The user of a request.
#[derive(Clone, Debug)]
struct Viewer {
    /// The name; empty if the server has no log-ins.
    name: String,
    rights: Rights,
}

impl Page {
    /// Creates the page of a server.
    pub fn new(shared: &Arc<Shared>) -> Self {
        Self(Arc::clone(shared))
    }

    /// Returns the viewer of a request, or the response that refuses it.
    async fn viewer(&self, request: &Request, from: IpAddr) -> Result<Viewer, Response> {
        if self.0.gate.is_open() {
            return match names_this_machine(request) {
                true => Ok(Viewer { name: String::new(), rights: Rights::Admin }),
                false => Err(response(
                    StatusCode::MISDIRECTED_REQUEST,
                    TEXT,
                    "name this server by its address, or as localhost\n",
                )),
            };
        }
        let Some((name, password)) = credentials(request) else {
            return Err(log_in("log in as a user of the server\n"));
        };
        match self.0.gate.check(&name, &password, from).await {
            Ok(passed) => {
                if passed.is_news {
                    self.0.witness.logged_in_to_page(&name, passed.rights, from);
                }
                Ok(Viewer { name, rights: passed.rights })
            }
            Err(failed) => {
                Counters::count(&self.0.counters.failed_logins, 1);
                self.0.witness.login_failed(&name, from, &failed);
                Err(not_let_in(failed.problem))
            }
        }
    }

    fn query(&self, id: &str, viewer: &Viewer) -> Response {
        let found = id.parse().ok().and_then(|id| state::find(&self.0, id));
        match found {
            Some(query) => answer(StatusCode::OK, &state::query(&self.0, &query, viewer)),
            None => missing("this statement is not remembered any more"),
        }
    }

    fn cancel(&self, id: &str, viewer: &Viewer) -> Response {
        let Ok(id) = id.parse() else { return missing("statements have numbers") };
        let may = |user: &str| viewer.may_cancel(user);
        match self.0.connections.cancel_statement(id, |connection| may(&connection.user)) {
            Cancelled::Told => answer(StatusCode::OK, &json!({ "cancelled": id })),
            Cancelled::Denied => failed(StatusCode::FORBIDDEN, "only admins cancel what others run"),
            Cancelled::NotRunning => failed(StatusCode::CONFLICT, "it does not run any more"),
        }
    }
}

impl Viewer {
    /// Returns true if the viewer may cancel statements of a user.
    fn may_cancel(&self, user: &str) -> bool {
        self.rights == Rights::Admin || self.name == user
    }
}

impl Site for Page {
    async fn answer(&self, request: Request, from: IpAddr) -> Response {
        let viewer = match self.viewer(&request, from).await {
            Ok(viewer) => viewer,
            Err(refused) => return refused,
        };
        let path: Vec<&str> = request.uri().path().split('/').skip(1).collect();
        let (is_get, is_post) = (request.method() == Method::GET, request.method() == Method::POST);
        match path.as_slice() {
            [""] if is_get => page(),
            ["api", "state"] if is_get => match state::all(&self.0, &viewer) {
                Ok(state) => answer(StatusCode::OK, &state),
                Err(e) => failed(StatusCode::INTERNAL_SERVER_ERROR, e.message()),
            },
            ["api", "queries", id] if is_get => self.query(id, &viewer),
            ["api", "queries", id, "cancel"] if is_post => match request.headers().contains_key(ASKED) {
                true if is_of_this_site(&request) => self.cancel(id, &viewer),
                true => failed(StatusCode::FORBIDDEN, "the page of another site asks for this"),
                false => failed(StatusCode::FORBIDDEN, "a request to cancel has the header X-Onehop"),
            },
            [""] | ["api", "state"] | ["api", "queries", _] => wrong_method("GET"),
            ["api", "queries", _, "cancel"] => wrong_method("POST"),
            _ => missing("there is nothing here"),
        }
    }
}

fn page() -> Response {
    let mut response = response(StatusCode::OK, HTML, PAGE.as_str());
    let headers = response.headers_mut();
    headers.extend(POLICY.clone().map(|policy| (CONTENT_SECURITY_POLICY, policy)));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

fn answer(status: StatusCode, value: &Value) -> Response {
    response(status, JSON, value.to_string())
}

fn failed(status: StatusCode, why: &str) -> Response {
    answer(status, &json!({ "error": why }))
}

fn missing(why: &str) -> Response {
    failed(StatusCode::NOT_FOUND, why)
}

fn wrong_method(allowed: &'static str) -> Response {
    let mut refused = failed(StatusCode::METHOD_NOT_ALLOWED, &format!("this is for {allowed}"));
    refused.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    refused
}

fn not_let_in(problem: Problem) -> Response {
    if problem.code == code::INVALID_PASSWORD {
        return log_in(problem.message + "\n");
    }
    let hint = problem.hint.unwrap_or_default();
    response(StatusCode::TOO_MANY_REQUESTS, TEXT, format!("{}\n{hint}\n", problem.message))
}

fn log_in(why: impl Into<String>) -> Response {
    let mut refused = response(StatusCode::UNAUTHORIZED, TEXT, why.into());
    let scheme = HeaderValue::from_static("Basic realm=\"onehop\", charset=\"UTF-8\"");
    refused.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    refused
}

/// Returns false if a request comes from a page of another site, by the origin that browsers send.
fn is_of_this_site(request: &Request) -> bool {
    let text = |name: HeaderName| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    let origin = text(ORIGIN).map(|origin| origin.split_once("://").map_or(origin, |(_, site)| site));
    origin.is_none_or(|site| text(HOST).is_some_and(|host| host.eq_ignore_ascii_case(site)))
}

/// Returns true if a request names an address or `localhost`, and no name that DNS could point
/// here. The whole header has to be a host, and so has the authority of the request line.
fn names_this_machine(request: &Request) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    let in_line = request.uri().authority().map(Authority::as_str);
    hosts.next().is_none() && host.is_some_and(is_this_machine) && in_line.is_none_or(is_this_machine)
}

/// Returns true for `host` or `host:port`, where the host is `localhost`, an IPv4 address, or an
/// IPv6 address in brackets.
fn is_this_machine(host: &str) -> bool {
    let (is_address, rest) = match host.strip_prefix('[') {
        Some(host) => match host.split_once(']') {
            Some((address, rest)) => (address.parse::<Ipv6Addr>().is_ok(), rest),
            None => return false,
        },
        None => {
            let (name, rest) = host.split_at(host.find(':').unwrap_or(host.len()));
            (name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok(), rest)
        }
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    is_address && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
}

/// Returns the name and password of a request.
fn credentials(request: &Request) -> Option<(String, String)> {
    let value = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?;
    let (name, password) = text.split_once(':')?;
    Some((name.into(), password.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_read_to_its_end() {
        for host in ["localhost", "LocalHost:80", "127.0.0.1", "10.1.2.3:5489", "[::1]", "[::1]:5489", "[fe80::1]"] {
            assert!(is_this_machine(host), "{host}");
        }
        let others = [
            "",
            "evil.com",
            "localhost:80@evil.com",
            "localhost@evil.com",
            "localhost:",
            "localhost:x",
            "localhost:+80",
            "localhost:80:80",
            "localhost:65536",
            "localhost.evil.com",
            "localhost.",
            " localhost",
            "localhost, evil.com",
            "127.0.0.1.evil.com",
            "127.0.0.1:80.evil.com",
            "0x7f.1",
            "[::1",
            "[::1].evil.com",
            "[::1]evil.com",
            "[::1]:80@evil.com",
            "[::1]@evil.com",
            "[localhost]",
            "[127.0.0.1]",
            "[::1%25lo]",
            "::1",
            "[]",
        ];
        for host in others {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
