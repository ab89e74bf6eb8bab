//! The words of `onehop serve` and `onehop user`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use super::setting;

pub const EXAMPLES: &str = "\
Examples:
  onehop serve flights.onehop                                   for this machine alone: psql -h 127.0.0.1 -p 5488
  onehop serve                                                  a database in memory, which ends with the server
  onehop serve flights.onehop --http 127.0.0.1:5489             and a page to look at: http://127.0.0.1:5489
  onehop serve flights.onehop --log - --log-min-duration 0.5    and what takes half a second, or fails, on standard error
  onehop serve flights.onehop --users users --listen 127.0.0.1:5488
  onehop serve flights.onehop --users users --audit audit.log   and who logs in, is refused, or reaches outside, in a file
  onehop serve flights.onehop --users users --tls-cert cert.pem --tls-key key.pem --listen 0.0.0.0:5488

Ctrl-C, or SIGTERM, ends it: nothing new begins, what runs has --grace seconds to end, and what does not is cancelled.
An address that other machines can reach needs --users and TLS. Without --users everybody who connects is an admin.";

pub const USER_EXAMPLES: &str = "\
Examples:
  onehop user add users ada --role admin          asks for a password; from a pipe, its first line is the password
  onehop user list users
  onehop user remove users ada

The file holds verifiers of SCRAM-SHA-256, from which no password follows, and is its owner's alone (mode 0600). A server reads
it anew for each log-in. FILE.secret, beside it, keeps answers for names that are not in the file the same when a server is
started again: leave it there, and copy it along.";

/// `onehop serve`.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Database directory, made if it is not there; in memory without it, or as :memory:
    pub path: Option<PathBuf>,
    /// Where to listen; port 0 is one that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5488", value_parser = address)]
    pub listen: SocketAddr,
    /// Who may log in, with which password: a file that `onehop user` writes
    #[arg(long, value_name = "FILE")]
    pub users: Option<PathBuf>,
    /// Certificates for TLS, the server's own first (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The server's private key for TLS (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Where to answer with figures for Prometheus, at /metrics
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub metrics: Option<SocketAddr>,
    /// Where to serve a page that shows what runs and what it moves
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub http: Option<SocketAddr>,
    /// Where to log who comes and goes, and what statements came to, in lines of JSON; - is standard error
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Keep an audit log there, in lines of JSON: log-ins, refusals, and what reaches outside of
    /// the database; - is standard error
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,
    /// Log statements only if they took so long, or failed [default: 0]
    #[arg(long, value_name = "SECONDS", requires = "log", value_parser = duration)]
    pub log_min_duration: Option<Duration>,
    /// Send a span for each statement to what takes OTLP over HTTP there, http://127.0.0.1:4318 for one
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp: Option<String>,
    /// Clients at once
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count)]
    pub max_connections: usize,
    /// The last of these, which only admins get, with --users; one is for any client
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub reserved_connections: usize,
    /// Connections at once that have not logged in, besides the clients; beyond them one is dropped
    /// [default: 256, or twice --max-connections]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_logins: Option<usize>,
    /// Statements that run at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count)]
    pub max_queries: usize,
    /// Statements that wait for others to end; beyond them the answer is an error
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_queued: usize,
    /// Seconds that what runs has to end in when the server does
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub grace: Duration,
    /// Open the database for reading only
    #[arg(long)]
    pub readonly: bool,
    /// Change a setting, as SET does, for all sessions (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// `onehop user`.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Let a user log in, or give one another password or role
    Add {
        /// The file, made if it is not there
        file: PathBuf,
        /// The user's name
        name: String,
        /// What the user may do. Without it a new user may write, and another keeps the role
        #[arg(long, value_enum)]
        role: Option<RoleName>,
    },
    /// Let a user log in no more
    Remove {
        /// The file
        file: PathBuf,
        /// The user's name
        name: String,
    },
    /// Print users and roles
    List {
        /// The file
        file: PathBuf,
    },
}

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleName {
    /// Queries of the database's tables
    Read,
    /// Also what changes them
    Write,
    /// Everything: also files, functions in Python, and settings that reach outside
    Admin,
}

/// An address, or a host's name in its place: of its addresses the first one of IPv4, or else the first.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let wanted = || "an address and a port, such as 127.0.0.1:5488, [::1]:5488 or localhost:5488".to_string();
    // The resolver takes its time for what has no port.
    if text.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
        return Err(wanted());
    }
    let all: Vec<_> = text.to_socket_addrs().map_err(|e| format!("{e}: {}", wanted()))?.collect();
    all.iter().find(|address| address.is_ipv4()).or(all.first()).copied().ok_or_else(wanted)
}

fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=100_000).contains(n)).ok_or_else(|| "a whole number from 1 to 100000".into())
}

fn duration(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|n| (0.0..=86_400.0).contains(n));
    number.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds, such as 0.5, up to 86400".into())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<u64>().ok().filter(|n| *n <= 86_400);
    number.map(Duration::from_secs).ok_or_else(|| "a whole number of seconds, up to 86400".into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::address;

    #[test]
    fn hosts_have_addresses() {
        assert_eq!(address("127.0.0.1:5488").unwrap().to_string(), "127.0.0.1:5488");
        assert_eq!(address("[::1]:0").unwrap().to_string(), "[::1]:0");
        let local = address("localhost:5488").unwrap();
        assert!(local.ip().is_loopback() && local.port() == 5488, "{local}");
        for text in
            ["5488", "127.0.0.1", "localhost", "localhost:", ":5488", "localhost:65536", "no.such.host.invalid:1"]
        {
            assert!(address(text).unwrap_err().contains("an address and a port"), "{text}");
        }
    }
}
