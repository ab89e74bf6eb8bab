//! The startup phase: from a connection to a client that is logged in.
//!
//! 1. The client may ask for TLS, or for GSSAPI encryption, which the server refuses. The server
//!    discards bytes that arrive after that request and before the answer: an attacker may have
//!    injected them.
//! 2. The client sends a cancel request, which ends the connection, or identifies itself.
//! 3. The server sends its parameters.
//!
//! All of it happens within `login_timeout`, and in a slot that the server may give to another
//! connection instead ([`crate::slots`]).

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use onehop_engine::{ClientFacts, Rights, guarded, reaches_outside};
use pgwire::messages::cancel::CancelRequest;
use pgwire::messages::response::{GssEncResponse, SslResponse};
use pgwire::messages::startup::{Authentication, BackendKeyData, NegotiateProtocolVersion, SecretKey, Startup};
use pgwire::messages::{DecodeContext, Message as _, PgWireBackendMessage};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::Client;
use crate::encode::Style;
use crate::interrupt::Interrupt;
use crate::link::Link;
use crate::metrics::Counters;
use crate::problem::{Problem, Severity, code};
use crate::read::{End, Incoming, Reader, STARTUP_BYTES};
use crate::reported::Reported;
use crate::server::{Shared, prepare};
use crate::slots::{Full, Seat, Slot, Stage};

const SSL_REQUEST: i32 = 80_877_103;
const GSS_REQUEST: i32 = 80_877_104;
const CANCEL_REQUEST: i32 = 80_877_102;

/// The fields of a startup packet that are not parameters.
const NO_PARAMETERS: [&str; 4] = ["user", "database", "replication", "options"];

/// Serves a connection to its end.
pub async fn serve(stream: TcpStream, address: SocketAddr, slot: Slot, shared: Arc<Shared>) {
    prepare(&stream);
    let limit = shared.options.login_timeout;
    let client = tokio::select! {
        client = tokio::time::timeout(limit, log_in(stream, address, &slot, Arc::clone(&shared))) => client,
        () = slot.is_lost() => return,
    };
    drop(slot);
    if let Ok(Some(client)) = client {
        client.serve().await;
    }
}

/// The first packet of a connection.
enum Opening {
    /// The rest of the connection is encrypted.
    Tls,
    Cancel(CancelRequest),
    Startup(Startup),
}

/// The stream of a connection.
type Source = Box<dyn AsyncRead + Unpin + Send + Sync>;

/// A connection whose first packet has been read.
struct Opened {
    opening: Result<Opening, End>,
    reader: Reader<Source>,
    link: Link,
    is_encrypted: bool,
}

fn opened<S>(opening: Result<Opening, End>, reader: Reader<S>, is_encrypted: bool) -> Opened
where
    S: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static,
{
    let (stream, buffer) = reader.into_parts();
    let (source, sink) = tokio::io::split(stream);
    Opened { opening, reader: Reader::new(Box::new(source), buffer), link: Link::new(sink), is_encrypted }
}

async fn open_any(stream: TcpStream, shared: &Shared) -> Option<Opened> {
    let mut reader = Reader::new(stream, BytesMut::new());
    let opening = open(&mut reader, shared.tls.is_some()).await;
    let (Ok(Opening::Tls), Some(acceptor)) = (&opening, &shared.tls) else {
        return Some(opened(opening, reader, false));
    };
    let (stream, buffer) = reader.into_parts();
    if !buffer.is_empty() {
        // The bytes came before encryption, possibly from a man in the middle.
        return None;
    }
    let stream = acceptor.accept(stream).await.ok()?;
    let mut reader = Reader::new(stream, BytesMut::new());
    let opening = open(&mut reader, false).await;
    Some(opened(opening, reader, true))
}

async fn log_in(stream: TcpStream, address: SocketAddr, slot: &Slot, shared: Arc<Shared>) -> Option<Client> {
    let Opened { opening, mut reader, mut link, is_encrypted } = open_any(stream, &shared).await?;
    let startup = match opening {
        Ok(Opening::Cancel(cancel)) => {
            shared.connections.cancel(cancel.pid, &cancel.secret_key);
            // Over TLS, clients take an unannounced end for a truncation attack.
            link.close().await;
            return None;
        }
        Ok(Opening::Startup(startup)) => startup,
        Ok(Opening::Tls) | Err(End::Closed) => return None,
        Err(End::Nonsense(problem)) => return turn_away(link, None, address, problem, &shared).await,
    };
    slot.reach(Stage::Busy);
    let claimed = startup.parameters.get("user").cloned();
    let claimed = claimed.as_deref();
    if !is_encrypted && !address.ip().is_loopback() {
        let problem =
            Problem::fatal(code::INVALID_AUTHORIZATION, "connections from other machines have to be encrypted");
        let problem = problem.with_hint("connect with sslmode=require, or better verify-full");
        return turn_away(link, claimed, address, problem, &shared).await;
    }
    let user = match checked(&startup, &mut link) {
        Ok(user) => user,
        Err(problem) => return turn_away(link, claimed, address, problem, &shared).await,
    };
    let rights = match shared.gate.pass(&user, address.ip(), &mut reader, &mut link).await {
        Ok(rights) => rights,
        Err(failed) => {
            Counters::count(&shared.counters.failed_logins, 1);
            shared.witness.login_failed(&user, address, &failed);
            return refuse(link, failed.problem).await;
        }
    };
    // The seat is taken only now. A client that does not log in takes none, and some are for
    // admins.
    let seat = match shared.seats.take(rights) {
        Ok(seat) => seat,
        Err(full) => {
            Counters::count(&shared.counters.refused_connections, 1);
            return turn_away(link, claimed, address, no_seat(full, &shared), &shared).await;
        }
    };
    link.put(PgWireBackendMessage::Authentication(Authentication::Ok));
    reader.allow(shared.options.max_message_bytes);
    match connect(startup, user, (rights, seat), address, reader, link, Arc::clone(&shared)).await {
        Ok(client) => {
            Counters::count(&shared.counters.connections, 1);
            Some(client)
        }
        Err((link, problem)) => turn_away(link, claimed, address, problem, &shared).await,
    }
}

/// Refuses a client and logs the refusal.
async fn turn_away<T>(
    link: Link,
    user: Option<&str>,
    address: SocketAddr,
    problem: Problem,
    shared: &Shared,
) -> Option<T> {
    shared.witness.refused(user, address, &problem);
    refuse(link, problem).await
}

async fn refuse<T>(mut link: Link, problem: Problem) -> Option<T> {
    link.put_problem(Problem { severity: Severity::Fatal, ..problem });
    link.close().await;
    None
}

fn no_seat(full: Full, shared: &Shared) -> Problem {
    let most = shared.options.max_connections;
    let message = match full {
        Full::All => format!("sorry, too many clients already: there is room for {most}"),
        Full::Reserved => {
            let reserved = shared.seats.reserved();
            format!("sorry, too many clients already: of {most} places, the last {reserved} are for admins")
        }
    };
    Problem::fatal(code::TOO_MANY_CONNECTIONS, message).with_hint("start the server with a larger --max-connections")
}

/// Reads the first packets, up to the opening.
async fn open<S: AsyncRead + AsyncWrite + Unpin>(reader: &mut Reader<S>, has_tls: bool) -> Result<Opening, End> {
    loop {
        let mut packet = first_packet(reader).await?;
        let answer = match (&packet[4..8]).get_i32() {
            SSL_REQUEST if has_tls => {
                reader.answer(SslResponse::BYTE_ACCEPT).await?;
                return Ok(Opening::Tls);
            }
            SSL_REQUEST => SslResponse::BYTE_REFUSE,
            GSS_REQUEST => GssEncResponse::BYTE_REFUSE,
            CANCEL_REQUEST => {
                let cancel = CancelRequest::decode(&mut packet, &DecodeContext::default());
                return cancel.ok().flatten().map(Opening::Cancel).ok_or(End::Closed);
            }
            _ => return decode_startup(packet).map(Opening::Startup),
        };
        reader.answer(answer).await?;
    }
}

/// Reads a packet without a type: its length, then its code.
async fn first_packet<S: AsyncRead + Unpin>(reader: &mut Reader<S>) -> Result<BytesMut, End> {
    reader.fill(8).await?;
    let length = (&reader.bytes()[..4]).get_i32();
    match usize::try_from(length) {
        Ok(length) if (8..=STARTUP_BYTES).contains(&length) => {
            reader.fill(length).await?;
            Ok(reader.bytes().split_to(length))
        }
        _ => Err(End::Nonsense(Problem::fatal(code::PROTOCOL_VIOLATION, "invalid length of startup packet"))),
    }
}

fn decode_startup(mut packet: BytesMut) -> Result<Startup, End> {
    let mut context = DecodeContext::default();
    (context.awaiting_frontend_ssl, context.awaiting_frontend_startup) = (false, true);
    let decoded = guarded(|| Startup::decode(&mut packet, &context));
    match decoded {
        Ok(Ok(Some(startup))) => Ok(startup),
        _ => Err(End::Nonsense(Problem::fatal(code::PROTOCOL_VIOLATION, "invalid startup packet"))),
    }
}

/// Checks the startup packet and returns the user's name.
fn checked(startup: &Startup, link: &mut Link) -> Result<String, Problem> {
    let (major, minor) = (startup.protocol_number_major, startup.protocol_number_minor);
    if major != 3 {
        let message = format!("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.2");
        return Err(Problem::fatal(code::FEATURE_NOT_SUPPORTED, message));
    }
    let unknown: Vec<String> = startup.parameters.keys().filter(|name| name.starts_with("_pq_.")).cloned().collect();
    if !matches!(minor, 0 | 2) || !unknown.is_empty() {
        let newest = if minor > 2 { 2 } else { i32::from(minor) };
        let version = (3 << 16) | newest;
        let answer = NegotiateProtocolVersion::new(version, unknown);
        link.put(PgWireBackendMessage::NegotiateProtocolVersion(answer));
    }
    if startup
        .parameters
        .get("replication")
        .is_some_and(|value| !matches!(value.as_str(), "false" | "off" | "no" | "0"))
    {
        return Err(Problem::fatal(code::FEATURE_NOT_SUPPORTED, "replication is not supported"));
    }
    match startup.parameters.get("user").filter(|user| !user.is_empty()) {
        Some(user) => Ok(user.clone()),
        None => Err(Problem::fatal(code::INVALID_AUTHORIZATION, "no PostgreSQL user name specified in startup packet")),
    }
}

/// Generates a random secret key.
fn secret(startup: &Startup) -> Result<SecretKey, Problem> {
    let failed = |_| Problem::fatal("XX000", "the system gives no random numbers");
    let random = SystemRandom::new();
    if startup.protocol_number_minor >= 2 {
        let mut key = [0; 32];
        random.fill(&mut key).map_err(failed)?;
        return Ok(SecretKey::Bytes(key.to_vec().into()));
    }
    let mut key = [0; 4];
    random.fill(&mut key).map_err(failed)?;
    Ok(SecretKey::I32(i32::from_be_bytes(key)))
}

async fn connect(
    startup: Startup,
    user: String,
    (rights, seat): (Rights, Seat),
    address: SocketAddr,
    reader: Reader<Source>,
    mut link: Link,
    shared: Arc<Shared>,
) -> Result<Client, (Link, Problem)> {
    let session = match shared.database.session_with(rights) {
        Ok(session) => Arc::new(session),
        Err(e) => return Err((link, e.into())),
    };
    let number = shared.connections.number();
    let database = startup.parameters.get("database").unwrap_or(&user).clone();
    let facts = ClientFacts { user, database, number };
    session.set_client(facts.clone());
    let parameters = match parameters(&startup) {
        Ok(parameters) => parameters,
        Err(problem) => return Err((link, problem)),
    };
    for (name, value) in &parameters {
        if let Err(e) = session.set_parameter(name, value) {
            return Err((link, Problem::from(e)));
        }
    }
    let outside = parameters.iter().map(|(name, _)| name).filter(|name| is_outside(name));
    let secret = match secret(&startup) {
        Ok(secret) => secret,
        Err(problem) => return Err((link, problem)),
    };
    let interrupt = Arc::new(Interrupt::default());
    let mut reported = Reported::default();
    reported.put_changed(&session, &mut link);
    link.put(PgWireBackendMessage::BackendKeyData(BackendKeyData::new(number, secret.clone())));
    let registered = shared.connections.register(facts, secret, address, Arc::clone(&interrupt), Arc::clone(&session));
    let visit = shared.witness.connected(&registered.connection);
    outside.for_each(|setting| shared.witness.set_at_login(&registered.connection, setting));
    let incoming = Incoming::start(reader, Arc::clone(&interrupt));
    Ok(Client {
        link,
        incoming,
        interrupt,
        session,
        shared,
        style: Style { zone: reported.zone() },
        reported,
        statements: Default::default(),
        portals: Default::default(),
        place: None,
        is_block: false,
        is_skipping: false,
        _visit: visit,
        registered,
        _seat: seat,
    })
}

/// Returns the parameters that a client sets when it connects. Named parameters override those of
/// `options`.
fn parameters(startup: &Startup) -> Result<Vec<(String, String)>, Problem> {
    let mut parameters = match startup.parameters.get("options") {
        Some(options) => switches(options)?,
        None => Vec::new(),
    };
    let named = startup.parameters.iter();
    let named = named.filter(|(name, _)| !NO_PARAMETERS.contains(&name.as_str()) && !name.starts_with("_pq_."));
    parameters.extend(named.map(|(name, value)| (name.clone(), value.clone())));
    Ok(parameters)
}

/// Returns the parameters of `options` (`PGOPTIONS`): `-c name=value` or `--name=value`, as
/// PostgreSQL's server takes them on its command line.
fn switches(options: &str) -> Result<Vec<(String, String)>, Problem> {
    let (mut parameters, mut words) = (Vec::new(), words(options).into_iter());
    while let Some(word) = words.next() {
        let setting = match (word.strip_prefix("--"), word.strip_prefix("-c")) {
            (Some(setting), _) => Some(setting.to_string()),
            (None, Some("")) => words.next(),
            (None, setting) => setting.map(str::to_string),
        };
        match setting.as_deref().and_then(|setting| setting.split_once('=')) {
            Some((name, value)) if !name.is_empty() => parameters.push((name.replace('-', "_"), value.to_string())),
            _ => {
                let message = format!("invalid command-line argument for server process: {word}");
                let hint = "options may have -c name=value and --name=value, as in PGOPTIONS='-c statement_timeout=5s'";
                return Err(Problem::fatal(code::SYNTAX_ERROR, message).with_hint(hint));
            }
        }
    }
    Ok(parameters)
}

/// Splits at blanks. A backslash escapes the next character.
fn words(options: &str) -> Vec<String> {
    let (mut words, mut word, mut letters) = (Vec::new(), None::<String>, options.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => word.get_or_insert_default().extend(letters.next()),
            letter if letter.is_ascii_whitespace() => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// Returns true if a parameter of a startup packet is a setting of the process and its machine.
fn is_outside(name: &str) -> bool {
    reaches_outside(&name.to_lowercase())
}

impl<S: AsyncRead + AsyncWrite + Unpin> Reader<S> {
    /// Answers an encryption request with one byte.
    async fn answer(&mut self, byte: u8) -> Result<(), End> {
        self.source().write_all(&[byte]).await.map_err(|_| End::Closed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_are_switches_between_blanks() {
        let of = |options: &str| switches(options).map_err(|problem| problem.message);
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        assert_eq!(of("").unwrap(), []);
        let both = [pair("statement_timeout", "5s"), pair("search_path", "a, b")];
        assert_eq!(of("-c statement_timeout=5s  -csearch_path=a,\\ b").unwrap(), both);
        assert_eq!(of("--statement-timeout=5s --search_path=a,\\ b\t").unwrap(), both);
        assert_eq!(of("-c a.b=x=y").unwrap(), [pair("a.b", "x=y")]);
        for wrong in ["-c", "-c x", "-B 100", "--x", "x=1", "-c =1", "-"] {
            assert!(of(wrong).unwrap_err().starts_with("invalid command-line argument"), "{wrong}");
        }
    }
}
