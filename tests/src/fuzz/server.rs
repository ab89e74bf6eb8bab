//! A server in this process, for the targets that speak to one; and its page, by HTTP.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onehop_engine::{Database, Error, ErrorKind, Executors};
use onehop_server::{Options, Server, Users};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use super::engine::{Engine, options};
use super::protocol::{ready, startup, terminate};
use super::{Made, Outcome, Target, Verdict, files};

/// The maximum time of an answer.
pub(super) const MOST_TIME: Duration = Duration::from_secs(10);
/// The time without output after which the client stops sending to a server that waits for more.
const SILENCE: Duration = Duration::from_millis(15);

/// The tables of the conversations.
const TABLES: [&str; 4] = [
    "CREATE TABLE t (a INT, b BIGINT, s VARCHAR, d DATE, x DOUBLE)",
    "INSERT INTO t VALUES (1, 2, 'x', DATE '2024-02-29', 1.5), (2, NULL, NULL, NULL, NULL), (3, 4, 'äöü', NULL, -0.0)",
    "CREATE TABLE c (b BOOLEAN, i SMALLINT, j INT, k BIGINT, f REAL, x DOUBLE, n DECIMAL(10,2), s VARCHAR, d DATE, \
     t TIMESTAMP, z TIMESTAMPTZ)",
    "CREATE TABLE small (i INT, s VARCHAR)",
];

/// A server.
pub(super) struct Place {
    pub address: SocketAddr,
    pub http: Option<SocketAddr>,
    runtime: Runtime,
    executors: Executors,
    _folder: Option<tempfile::TempDir>,
}

/// The log-ins of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogIns {
    None,
    Users,
}

impl Place {
    /// Starts a server.
    pub fn new(log_ins: LogIns) -> Result<Self, Error> {
        let io = |e: std::io::Error| Error::new(ErrorKind::Io, e.to_string());
        let engine = Engine::new()?;
        let database = Database::memory(&options("2s", &[("lock_timeout", "1s")]))?;
        let session = database.session()?;
        for sql in TABLES {
            engine.run(&session, sql)?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(io)?;
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Options { listen: anywhere, max_message_bytes: 1 << 20, ..Options::default() };
        let mut folder = None;
        match log_ins {
            LogIns::None => server.http = Some(anywhere),
            LogIns::Users => {
                let made = files::folder()?;
                let users = Users::at(made.path().join("users"));
                let failed = |e: onehop_server::UsersError| Error::new(ErrorKind::Io, e.to_string());
                users.add("ada", "secret", onehop_engine::Rights::Admin).map_err(failed)?;
                users.add("grace", "other", onehop_engine::Rights::Read).map_err(failed)?;
                (server.users, folder) = (Some(users), Some(made));
            }
        }
        let executors = Executors::new(Some(2))?;
        let server = runtime.block_on(Server::bind(database, server, executors.clone()));
        let server = server.map_err(|e| Error::new(ErrorKind::Io, e.to_string()))?;
        let (address, http) = (server.address().map_err(io)?, server.http_address());
        runtime.spawn(server.run(std::future::pending()));
        Ok(Self { address, http, runtime, executors, _folder: folder })
    }

    /// Sends bytes from an address of this machine, and reads to the end of the answer. If the
    /// server waits for more, the client closes its side after a moment.
    pub fn converse(&self, to: SocketAddr, from: Ipv4Addr, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let stream = self.runtime.block_on(async {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(SocketAddr::from((from, 0)))?;
            let stream = socket.connect(to).await?.into_std()?;
            stream.set_nonblocking(false)?;
            std::io::Result::Ok(stream)
        });
        let mut stream = stream.map_err(|e| format!("the server accepts no connection: {e}"))?;
        let _ = stream.set_nodelay(true);
        let writer = Arc::new(stream.try_clone().map_err(|e| e.to_string())?);
        // Answers are read concurrently. Otherwise a client that only sends could deadlock with a
        // server that only answers.
        std::thread::scope(|scope| {
            let sending = Arc::clone(&writer);
            scope.spawn(move || _ = (&*sending).write_all(bytes));
            let (mut answer, mut part, began) = (Vec::new(), [0; 16 << 10], Instant::now());
            let _ = stream.set_read_timeout(Some(SILENCE));
            let result = loop {
                match stream.read(&mut part) {
                    Ok(0) => break Ok(()),
                    Ok(read) => answer.extend_from_slice(&part[..read]),
                    Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                        let _ = writer.shutdown(Shutdown::Write);
                    }
                    // The server ended before it had read all bytes.
                    Err(_) => break Ok(()),
                }
                if began.elapsed() > MOST_TIME {
                    break Err("hang: the server neither answers nor ends".to_string());
                }
            };
            let _ = writer.shutdown(Shutdown::Both);
            result.map(|()| answer)
        })
    }

    /// Checks that the server answers, and has kept no state of disconnected clients.
    pub fn is_well(&self) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let sql = b"SELECT count(*) FROM onehop_activity\0";
            let bytes =
                [startup(&[("user", "well"), ("database", "x")]), super::protocol::message(b'Q', sql), terminate()];
            let answer = self.converse(self.address, Ipv4Addr::LOCALHOST, &bytes.concat())?;
            // A row of one column, of one byte.
            let is_alone = answer.windows(12).any(|row| row == b"D\0\0\0\x0b\0\x01\0\0\0\x011");
            if is_alone && self.executors.lent() == 0 {
                return Ok(());
            }
            if began.elapsed() > MOST_TIME {
                let lent = self.executors.lent();
                return Err(format!(
                    "connections or statements are left ({lent} lent): {}",
                    String::from_utf8_lossy(&answer)
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A persistent connection, whose answers end when the server is ready again.
pub(super) struct Connection(TcpStream);

impl Connection {
    /// Connects to a server.
    pub fn new(place: &Place) -> Result<Self, String> {
        let stream = TcpStream::connect(place.address).map_err(|e| format!("the server accepts no connection: {e}"))?;
        let _ = (stream.set_read_timeout(Some(MOST_TIME)), stream.set_nodelay(true));
        let mut connection = Self(stream);
        connection.ask(&startup(&[("user", "ada"), ("database", "x")]), 1)?;
        Ok(connection)
    }

    /// Sends messages, and reads until the server has been ready `times` times.
    pub fn ask(&mut self, bytes: &[u8], times: usize) -> Result<Vec<u8>, String> {
        self.0.write_all(bytes).map_err(|e| format!("closed: {e}"))?;
        let (mut answer, mut part) = (Vec::new(), [0; 16 << 10]);
        while ready(&answer) < times {
            match self.0.read(&mut part) {
                Ok(0) => return Err(format!("closed: {}", String::from_utf8_lossy(&answer))),
                Ok(read) => answer.extend_from_slice(&part[..read]),
                Err(e) => return Err(format!("hang or end: {e}: {}", String::from_utf8_lossy(&answer))),
            }
        }
        Ok(answer)
    }
}

/// The target of requests to the page.
struct Http(Place);

pub(super) fn http() -> Made {
    Ok(Box::new(Http(Place::new(LogIns::None)?)))
}

impl Target for Http {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let seeds = [
            "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            "GET /api/state HTTP/1.1\r\nHost: 127.0.0.1:80\r\nConnection: close\r\n\r\n",
            "GET /api/queries/1 HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\nAuthorization: Basic YWRhOnNlY3JldA==\r\n\r\n",
            "POST /api/queries/1/cancel HTTP/1.1\r\nHost: localhost\r\nX-Onehop: 1\r\nContent-Length: 3\r\n\r\nabc",
            "GET http://localhost/api/state HTTP/1.0\r\nHost: localhost\r\n\r\n",
            "POST /api/state HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ];
        seeds.into_iter().map(|seed| seed.as_bytes().to_vec()).collect()
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let Some(to) = self.0.http else { return Err("there is no page".into()) };
        let answer = self.0.converse(to, Ipv4Addr::LOCALHOST, input)?;
        match answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200") {
            true => Ok(Outcome::Accepted),
            false if answer.windows(13).any(|part| part == b" 500 Internal") => {
                Err(format!("internal: {}", String::from_utf8_lossy(&answer)))
            }
            false => Ok(Outcome::Refused),
        }
    }

    fn settle(&mut self) -> Result<(), String> {
        self.0.is_well()
    }
}
