//! A server on a port of its own, over a database in memory, for as long as a test has it.

#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

use std::net::SocketAddr;

use onehop_engine::{Database, DatabaseOptions, STACK_BYTES};
use onehop_server::{Options, Server};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls};

pub struct Place {
    pub address: SocketAddr,
    pub metrics: Option<SocketAddr>,
    pub database: Database,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    workers: Option<Runtime>,
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
    let workers =
        Builder::new_multi_thread().worker_threads(2).thread_stack_size(STACK_BYTES).enable_all().build().unwrap();
    let server = Server::bind(database.clone(), options, workers.handle().clone()).await.unwrap();
    let address = server.address().unwrap();
    let metrics = server.metrics_address();
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(server.run(async move {
        let _ = stopped.await;
    }));
    Place { address, metrics, database, stop: Some(stop), served: Some(served), workers: Some(workers) }
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
        if let Some(workers) = self.workers.take() {
            workers.shutdown_background();
        }
    }
}

pub fn code(e: &tokio_postgres::Error) -> &str {
    e.code().map_or("none", |code| code.code())
}
