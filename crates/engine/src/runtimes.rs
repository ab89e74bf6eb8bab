//! DataFusion's runtime environments: memory pools and spill directories.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};

use crate::settings::Settings;
use crate::spill::SpillFiles;
use crate::{Result, memory_pool};

/// What statements run in: memory and a place for what is spilled. Sessions that have the same limit and the same place share
/// one, so that `memory_limit` is what all of them may have together.
#[derive(Debug, Default)]
pub(crate) struct Runtimes(Mutex<HashMap<(u64, PathBuf), Weak<RuntimeEnv>>>);

impl Runtimes {
    /// For each limit that is in force, how much statements have asked for.
    pub fn memory(&self) -> Vec<(u64, u64)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = |runtime: Arc<RuntimeEnv>| runtime.memory_pool.reserved() as u64;
        all.iter().filter_map(|((limit, _), runtime)| Some((*limit, used(runtime.upgrade()?)))).collect()
    }

    pub fn of(&self, settings: &Settings) -> Result<Arc<RuntimeEnv>> {
        let key = (settings.memory_limit_bytes(), settings.temp_directory());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = all.get(&key).and_then(Weak::upgrade) {
            return Ok(runtime);
        }
        all.retain(|_, runtime| runtime.strong_count() > 0);
        let runtime = runtime(settings)?;
        all.insert(key, Arc::downgrade(&runtime));
        Ok(runtime)
    }
}

fn runtime(settings: &Settings) -> Result<Arc<RuntimeEnv>> {
    let pool = memory_pool::pool(settings.memory_limit_bytes());
    let files = Arc::new(SpillFiles::new(settings.temp_directory()));
    let disk = DiskManagerBuilder::default().with_temp_file_factory(files);
    Ok(RuntimeEnvBuilder::new().with_memory_pool(pool).with_disk_manager_builder(disk).build_arc()?)
}
