//! GPUs for queries: registered with every database that is opened, looked for when the first query is worth one.
//!
//! A command ends at once ([`crate::leave`]), wherever the driver's threads are: a short query does not wait until a GPU has been
//! looked at. Other processes do, when their databases are closed.
//!
//! Where none is *required* nothing is said about one that is not there. Compiled kernels are kept in the user's cache
//! (`$XDG_CACHE_HOME/onehop/kernels`), for all databases: what they depend on is in them.

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

/// This machine's GPUs, for processes that are not a command.
pub fn devices() -> Arc<CudaDevices> {
    onehop_cuda::devices(kernels(), Ending::WithHandlers)
}

/// Makes sure that there is a GPU, or the one of that name.
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

/// Where compiled kernels are kept; nowhere for a user without a home.
fn kernels() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("onehop").join("kernels"))
}
