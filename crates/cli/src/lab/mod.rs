//! The commands that generate benchmark data and run benchmarks on it.

pub mod bench;
pub mod commit;
mod environment;
pub mod generate;
pub mod io;
pub mod logreg;
pub mod osp;
mod output;
pub mod q6;
pub mod rados;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onehop_engine::{DatabaseOptions, Session, workers};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::client;
use crate::exit::Stop;
use crate::settings;

/// A database with a runtime to work on it.
struct Bench {
    runtime: Runtime,
    session: Arc<Session>,
}

impl Bench {
    fn open(path: &Path, settings: Vec<(String, String)>, threads: usize) -> Result<Self, Stop> {
        let runtime = workers(Some(threads))?;
        let options = DatabaseOptions { settings, ..DatabaseOptions::default() };
        let (_, session) = client::open(Some(path), &options)?;
        Ok(Self { runtime, session })
    }

    /// Runs a statement for its effect.
    fn execute(&self, sql: &str) -> Result<(), Stop> {
        self.runtime.block_on(self.session.sql(sql))?;
        Ok(())
    }
}

/// Returns the requested number of threads, by argument or environment, or one per core.
fn threads(asked: Option<usize>) -> Result<usize, Stop> {
    let given: Vec<(String, String)> = asked.map(|n| ("threads".into(), n.to_string())).into_iter().collect();
    Ok(settings::threads(&settings::effective(&given)?))
}

/// Sets `cancel` at the first Ctrl-C from now on. The second ends the process as usual.
fn cancel_on_interrupt(runtime: &Runtime, cancel: &'static AtomicBool) {
    // Registered before this function returns, and not when the runtime first runs the task.
    let _inside = runtime.enter();
    let Ok(mut presses) = signal(SignalKind::interrupt()) else { return };
    // Signals that end the process from outside, such as that of `timeout`, clean up as well.
    for kind in [SignalKind::terminate(), SignalKind::hangup()] {
        let Ok(mut signals) = signal(kind) else { continue };
        runtime.spawn(async move {
            if signals.recv().await.is_some() {
                cancel.store(true, Ordering::Relaxed);
            }
        });
    }
    runtime.spawn(async move {
        if presses.recv().await.is_some() {
            cancel.store(true, Ordering::Relaxed);
            let _ = presses.recv().await;
            crate::leave(crate::exit::Exit::Interrupted as u8);
        }
    });
}

/// Like [`cancel_on_interrupt`], for work without a runtime: active while the returned runtime
/// lives.
fn listen_for_interrupt(cancel: &'static AtomicBool) -> Result<Runtime, Stop> {
    let runtime = onehop_engine::front(1)?;
    cancel_on_interrupt(&runtime, cancel);
    Ok(runtime)
}

/// Returns the default path of benchmark data: `data/ssb-sf1.onehop`.
fn default_database(suite: &str, scale: f64) -> PathBuf {
    PathBuf::from(format!("data/{suite}-sf{scale}.onehop"))
}
