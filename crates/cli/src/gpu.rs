//! GPUs for queries: registered with every opened database, and opened when the first query is
//! worth one.
//!
//! A command exits at once ([`crate::leave`]), regardless of the driver's threads: a short query
//! does not wait until a GPU has been examined. Other processes wait when their databases are
//! closed.
//!
//! Unless a GPU is *required*, a missing one is not reported. Compiled kernels are kept in the
//! user's cache (`$XDG_CACHE_HOME/onehop/kernels`), for all databases: their files contain all that
//! they depend on.

use std::path::PathBuf;
use std::sync::Arc;

use onehop_cuda::{CudaDevices, Ending};
use onehop_engine::Database;
use onehop_engine::backend::Devices;

use crate::exit::Stop;

/// Lets a database's queries run on this machine's GPUs.
pub fn register(database: &Database) -> Arc<dyn Devices> {
    let devices = onehop_cuda::devices(kernels(), Ending::AtOnce);
    if let Ok(program) = std::env::current_exe() {
        devices.set_helper(vec![program.into(), "run-functions".into()]);
    }
    let devices: Arc<dyn Devices> = devices;
    database.register_devices(Arc::clone(&devices));
    devices
}

/// Returns this machine's GPUs, for processes that are not a command.
pub fn devices() -> Arc<CudaDevices> {
    onehop_cuda::devices(kernels(), Ending::WithHandlers)
}

/// Fails unless there is a GPU, or the one of that name.
pub fn require(devices: &dyn Devices, name: Option<&str>) -> Result<(), Stop> {
    let all = devices.all().map_err(|why| Stop::Unmet(format!("a GPU is required, and there is none: {why}")))?;
    let names: Vec<&str> = all.iter().map(|backend| backend.name()).collect();
    match name {
        Some(name) if !names.contains(&name) => {
            Err(Stop::Unmet(format!("{name} is required, and there is no such device, but {}", names.join(", "))))
        }
        _ => Ok(()),
    }
}

/// Returns the folder of compiled kernels, or `None` for a user without a home.
fn kernels() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("onehop").join("kernels"))
}
