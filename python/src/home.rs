//! An open database and the threads that its statements run on: there as long as a connection or a result needs them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onehop_cuda::CudaDevices;
use onehop_engine::backend::Devices;
use onehop_engine::{Database, DatabaseOptions, Executors, Result, Session};
use pyo3::prelude::*;
use tokio::runtime::Handle;

use crate::functions;

/// A database with its threads.
pub struct Home {
    // Before the threads: what is dropped with it may still need them.
    database: Database,
    devices: Arc<dyn Devices>,
    executors: Executors,
}

impl Home {
    /// Opens the database at `path`, or one in memory.
    pub fn open(path: Option<&Path>, options: &DatabaseOptions) -> Result<Self> {
        let database = match path {
            Some(path) => Database::open(path, options)?,
            None => Database::memory(options)?,
        };
        let devices = devices();
        if let Some(words) = Python::attach(functions::program) {
            devices.set_helper(words);
        }
        let devices: Arc<dyn Devices> = devices;
        database.register_devices(Arc::clone(&devices));
        let executors = Executors::new(threads(&database.session()?))?;
        Ok(Self { database, devices, executors })
    }

    /// Closes the database, so that it can be opened again. Waits up to two seconds for cancelled
    /// statements to end.
    pub fn close(self) {
        let Self { database, devices, executors } = self;
        drop((database, devices));
        // One of these threads cannot wait for itself.
        if Handle::try_current().is_err() {
            executors.shutdown(END_PATIENCE);
        }
    }

    /// A new session.
    pub fn session(&self) -> Result<Session> {
        self.database.session()
    }

    /// GPUs of this process, looked for when somebody asks.
    pub fn devices(&self) -> &Arc<dyn Devices> {
        &self.devices
    }

    /// Where statements run.
    pub fn executors(&self) -> &Executors {
        &self.executors
    }
}

#[cfg(not(feature = "fake"))]
fn devices() -> Arc<CudaDevices> {
    onehop::devices()
}

/// A GPU that is none, for tests that ask for one by `ONEHOP_TEST_DEVICE=fake`: no library that is handed out has it.
#[cfg(feature = "fake")]
pub fn devices() -> Arc<CudaDevices> {
    use onehop_cuda::{fake, fused::Options};
    match std::env::var("ONEHOP_TEST_DEVICE").as_deref() {
        Ok("fake") => {
            let options = Options { threads: 64, wide_threads: 64, blocks: 2, ..Options::default() };
            CudaDevices::of_contexts(&[fake::context()], &fake::nvrtc(), options)
        }
        _ => onehop::devices(),
    }
}

/// As many as the engine has been told to use.
fn threads(session: &Session) -> Option<usize> {
    session.settings().iter().find(|setting| setting.name == "threads").and_then(|setting| setting.value.parse().ok())
}

/// How long [`Home::close`] waits for what was cancelled.
const END_PATIENCE: Duration = Duration::from_secs(2);
