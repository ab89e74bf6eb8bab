//! A server on a port of its own, over a database in memory, for as long as a test has it.

#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

pub mod scram;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use onehop_engine::{Database, DatabaseOptions, Executors};
use onehop_server::{Options, Server};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls};

pub struct Place {
    pub address: SocketAddr,
    pub metrics: Option<SocketAddr>,
    pub http: Option<SocketAddr>,
    pub database: Database,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    executors: Option<Executors>,
}

pub fn executors() -> Executors {
    Executors::new(Some(2)).unwrap()
}

pub fn options() -> Options {
    Options { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..Options::default() }
}

pub async fn place() -> Place {
    place_with(options()).await
}

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
    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.address.port()).user("ada").dbname("test");
        config
    }

    pub async fn connect(&self) -> Client {
        self.connect_with(&self.config()).await.unwrap()
    }

    pub async fn connect_with(&self, config: &Config) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Tells the server to end. Whether it has is for `ended`.
    pub fn stop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
    }

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

pub fn code(e: &tokio_postgres::Error) -> &str {
    e.code().map_or("none", |code| code.code())
}

/// xorshift64*
pub struct Random(u64);

impl Random {
    pub fn new(name: &str) -> Self {
        let seed = std::env::var("ONEHOP_SEED").ok().and_then(|seed| seed.parse().ok());
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed: u64 = seed.unwrap_or(clock | 1);
        println!("{name}: ONEHOP_SEED={seed}");
        Self(seed)
    }

    /// The sequence of a seed, which is not 0.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.next() as u8).collect()
    }
}

pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 4).to_be_bytes();
    [&[kind][..], &length, body].concat()
}

pub fn startup() -> Vec<u8> {
    let body = [&196_608_u32.to_be_bytes()[..], b"user\0fuzz\0database\0test\0\0"].concat();
    [&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat()
}

/// The server answers, and nobody is left.
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
