//! The commands that make benchmark data and run benchmarks on it.

pub mod bench;
pub mod generate;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use onehop_engine::{Database, DatabaseOptions, Session};
use tokio::runtime::{Builder, Runtime};

use crate::exit::Stop;

/// A database with a runtime to work on it.
struct Bench {
    runtime: Runtime,
    session: Session,
}

impl Bench {
    fn open(path: &Path, settings: Vec<(String, String)>, threads: usize) -> Result<Self, Stop> {
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build();
        let runtime = runtime.map_err(|e| Stop::System("cannot start worker threads".into(), e))?;
        let options = DatabaseOptions { settings, ..DatabaseOptions::default() };
        let session = Database::open(path, &options)?.session()?;
        Ok(Self { runtime, session })
    }

    /// Runs a statement for its effect.
    fn execute(&self, sql: &str) -> Result<(), Stop> {
        self.runtime.block_on(self.session.sql(sql))?;
        Ok(())
    }
}

/// The threads that were asked for, or one per core.
fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Sets `cancel` at the first Ctrl-C; the second ends the process as usual.
fn cancel_on_interrupt(runtime: &Runtime, cancel: &'static AtomicBool) {
    runtime.spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            cancel.store(true, Ordering::Relaxed);
            let _ = tokio::signal::ctrl_c().await;
            std::process::exit(crate::exit::Exit::Interrupted as i32);
        }
    });
}

/// Where benchmark data is kept unless told otherwise: `data/ssb-sf1.onehop`.
fn default_database(suite: &str, scale: f64) -> PathBuf {
    PathBuf::from(format!("data/{suite}-sf{scale}.onehop"))
}
