//! A server on a port of its own, over a database in memory, for the duration of a test.

#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

pub mod scram;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use onehop_engine::{Database, DatabaseOptions, Executors};
use onehop_server::{Options, Server};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls};

/// A running server.
pub struct Place {
    pub address: SocketAddr,
    pub metrics: Option<SocketAddr>,
    pub http: Option<SocketAddr>,
    pub database: Database,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    executors: Option<Executors>,
}

/// Returns the executors of two threads.
pub fn executors() -> Executors {
    Executors::new(Some(2)).unwrap()
}

/// Returns the options of a server on a free port.
pub fn options() -> Options {
    Options { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..Options::default() }
}

/// Starts a server.
pub async fn place() -> Place {
    place_with(options()).await
}

/// Starts a server with these options.
pub async fn place_with(options: Options) -> Place {
    let settings = vec![("threads".to_string(), "2".to_string())];
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    let executors = executors();
    let server = Server::bind(database.clone(), options, executors.clone()).await.unwrap();
    let address = server.address().unwrap();
    let (metrics, http) = (server.metrics_address(), server.http_address());
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(server.run(async move {
        let _ = stopped.await;
    }));
    Place { address, metrics, http, database, stop: Some(stop), served: Some(served), executors: Some(executors) }
}

impl Place {
    /// Returns the configuration of a client.
    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.address.port()).user("ada").dbname("test");
        config
    }

    /// Connects a client.
    pub async fn connect(&self) -> Client {
        self.connect_with(&self.config()).await.unwrap()
    }

    /// Connects a client with this configuration.
    pub async fn connect_with(&self, config: &Config) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Tells the server to end. `ended` waits for the end.
    pub fn stop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
    }

    /// Stops the server and waits for its end.
    pub async fn ended(&mut self) {
        self.stop();
        self.served.take().unwrap().await.unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop();
        drop(self.executors.take());
    }
}

/// Returns the SQLSTATE of an error.
pub fn code(e: &tokio_postgres::Error) -> &str {
    e.code().map_or("none", |code| code.code())
}

/// xorshift64*
pub struct Random(u64);

impl Random {
    /// Creates a sequence from `ONEHOP_SEED` or the clock, and prints its seed.
    pub fn new(name: &str) -> Self {
        let seed = std::env::var("ONEHOP_SEED").ok().and_then(|seed| seed.parse().ok());
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed: u64 = seed.unwrap_or(clock | 1);
        println!("{name}: ONEHOP_SEED={seed}");
        Self(seed)
    }

    /// Creates the sequence of a seed, which must not be 0.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    /// Returns at most `most` random bytes.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Encodes a message.
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 4).to_be_bytes();
    [&[kind][..], &length, body].concat()
}

/// Encodes a startup message.
pub fn startup() -> Vec<u8> {
    let body = [&196_608_u32.to_be_bytes()[..], b"user\0fuzz\0database\0test\0\0"].concat();
    [&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat()
}

/// Checks that the server answers, and that no other client is left.
pub async fn is_well(place: &Place) {
    let client = place.connect().await;
    assert_eq!(client.query_one("SELECT 7", &[]).await.unwrap().get::<_, i64>(0), 7);
    let began = Instant::now();
    loop {
        let others = client.query_one("SELECT count(*) FROM onehop_activity", &[]).await.unwrap().get::<_, i64>(0);
        if others == 1 {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{others} connections are left");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
