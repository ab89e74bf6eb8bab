//! The arguments of `onehop serve` and `onehop user`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use super::setting;

/// The examples of the help text.
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
An address that other machines can reach needs --users and TLS. Without --users every client is an admin.";

/// The examples of the help text of `onehop user`.
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
    /// Database directory, created if it is missing; in memory without it, or as :memory:
    pub path: Option<PathBuf>,
    /// The address to listen at; port 0 selects a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5488", value_parser = address)]
    pub listen: SocketAddr,
    /// The users that may log in, with their passwords: a file that `onehop user` writes
    #[arg(long, value_name = "FILE")]
    pub users: Option<PathBuf>,
    /// Certificates for TLS, the server's own first (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The server's private key for TLS (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Serve metrics for Prometheus at this address, at /metrics
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub metrics: Option<SocketAddr>,
    /// Serve a web page at this address that shows running statements and the bytes they move
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub http: Option<SocketAddr>,
    /// Log connections, disconnections and statement results to this file, in lines of JSON; - is
    /// standard error
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Write an audit log to this file, in lines of JSON: log-ins, refusals, and accesses outside
    /// of the database; - is standard error
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,
    /// Log statements only if they took this long, or failed [default: 0]
    #[arg(long, value_name = "SECONDS", requires = "log", value_parser = duration)]
    pub log_min_duration: Option<Duration>,
    /// Send a span for each statement to this collector by OTLP over HTTP, for example
    /// http://127.0.0.1:4318
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp: Option<String>,
    /// The maximum number of concurrent clients
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count)]
    pub max_connections: usize,
    /// The number of the connections that are for admins only, with --users; at least one is for
    /// any client
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub reserved_connections: usize,
    /// The maximum number of concurrent connections that have not logged in, besides the clients;
    /// beyond it one is dropped [default: 256, or twice --max-connections]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_logins: Option<usize>,
    /// The maximum number of concurrent statements
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count)]
    pub max_queries: usize,
    /// The maximum number of queued statements; beyond it a statement fails
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_queued: usize,
    /// The seconds that running statements have to end when the server shuts down
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub grace: Duration,
    /// Open the database for reading only
    #[arg(long)]
    pub readonly: bool,
    /// Change a setting, as SET does, for all sessions (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// Print only errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// `onehop user`.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Let a user log in, or change a user's password or role
    Add {
        /// The file, created if it is missing
        file: PathBuf,
        /// The user's name
        name: String,
        /// The user's rights. Without it a new user may write, and an existing user keeps the role
        #[arg(long, value_enum)]
        role: Option<RoleName>,
    },
    /// Remove a user
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

/// The rights of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleName {
    /// Queries of the database's tables
    Read,
    /// Also changes of the tables
    Write,
    /// Everything: also files, Python functions, and settings that reach outside
    Admin,
}

/// Parses an address, or a host name. The first IPv4 address of the name is used, or else the first
/// address.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let wanted = || "an address and a port, such as 127.0.0.1:5488, [::1]:5488 or localhost:5488".to_string();
    // The resolver is slow for names without a port.
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
