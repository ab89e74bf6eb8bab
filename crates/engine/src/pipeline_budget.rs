//! Memory and temporary files of a statement's pipelines: they draw on the pool that DataFusion's operators draw on, and
//! spill into the directory where those spill.
//!
//! A file loses its name as soon as it is open. However the statement ends, and the process, nothing of it is left.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use onehop_io::{Ledger, LocalFile, Operation, RequestedPath, WriteAt};
use onehop_pipeline::{Account, Budget, Error, Holder, Resources, Result};
use tempfile::NamedTempFile;

use crate::query::Query;
use crate::spill::SpillFiles;

/// Where the memory of a statement's pipelines comes from.
#[derive(Debug)]
struct SessionResources {
    pool: Arc<dyn MemoryPool>,
    files: Option<Arc<SpillFiles>>,
    ledger: Arc<Ledger>,
}

/// The budget of a statement.
pub(crate) fn budget(context: &TaskContext) -> Budget {
    let query = context.session_config().get_extension::<Query>();
    Budget(Arc::new(SessionResources {
        pool: Arc::clone(context.memory_pool()),
        files: context.session_config().get_extension::<SpillFiles>(),
        ledger: query.map_or_else(Arc::default, |query| Arc::clone(query.shared_ledger())),
    }))
}

/// Bytes that operators may take together.
pub(crate) fn limit(pool: &dyn MemoryPool) -> usize {
    match pool.memory_limit() {
        MemoryLimit::Finite(bytes) => bytes,
        _ => usize::MAX,
    }
}

/// Part of the pool.
#[derive(Debug)]
struct PoolAccount {
    what: &'static str,
    reservation: MemoryReservation,
    pool: Arc<dyn MemoryPool>,
}

impl Account for PoolAccount {
    fn try_resize(&self, bytes: usize) -> Result<()> {
        self.reservation.try_resize(bytes).map_err(|_| Error::Memory {
            what: self.what.into(),
            needed: bytes,
            available: limit(self.pool.as_ref()).saturating_sub(self.pool.reserved()),
        })
    }
}

impl Resources for SessionResources {
    fn limit(&self) -> usize {
        limit(self.pool.as_ref())
    }

    fn account(&self, what: &'static str, holder: Holder) -> Box<dyn Account> {
        let consumer = MemoryConsumer::new("CpuPreAgg").with_can_spill(holder == Holder::Spills);
        Box::new(PoolAccount { what, reservation: consumer.register(&self.pool), pool: Arc::clone(&self.pool) })
    }

    fn file(&self) -> Result<Option<Arc<dyn WriteAt>>> {
        let Some(files) = &self.files else { return Ok(None) };
        let failed = |source| Error::Spill { directory: files.directory().display().to_string(), source };
        let made = NamedTempFile::new_in(files.directory());
        let made = made.map_err(|e| failed(onehop_io::Error::new(Operation::Create, "a temporary file", e)))?;
        let file = LocalFile::create(made.path(), RequestedPath::Buffered).map_err(failed)?;
        // The name goes with `made`.
        Ok(Some(Arc::new(file)))
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}
