//! Accounting for the memory of file readers in the session's pool.

use std::io;
use std::sync::Arc;

use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use onehop_files::{Fault, Memory, OverMemory};

use super::site::refused;
use crate::{Error, ErrorKind};

/// A reader's reservation in the pool of its session.
pub(super) struct PoolMemory(MemoryReservation);

impl PoolMemory {
    /// Creates an empty reservation.
    pub fn new(pool: &Arc<dyn MemoryPool>) -> Self {
        Self(MemoryConsumer::new("FileReader").register(pool))
    }
}

impl Memory for PoolMemory {
    fn resize(&mut self, bytes: u64) -> Result<(), OverMemory> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.0.try_resize(bytes).map_err(|e| OverMemory(Error::from(e).message().to_string()))
    }
}

/// Converts a fault of a file reader to an error.
pub(super) fn unread(name: &str, fault: Fault) -> Error {
    match fault {
        Fault::Io(e) if e.kind() != io::ErrorKind::UnexpectedEof => refused(onehop_io::Operation::Read, name, e),
        other => unread_for(name, &other),
    }
}

/// Like [`unread`], for a fault that is the cause of another error.
pub(super) fn unread_for(name: &str, fault: &Fault) -> Error {
    let message = format!("cannot read '{name}': {fault}");
    match fault {
        Fault::Memory { .. } => {
            Error::new(ErrorKind::Resources, message).with_hint("raise memory_limit: SET memory_limit = '8GiB'")
        }
        Fault::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Data, format!("cannot read '{name}': it ends within its data")).with_hint(DAMAGED)
        }
        Fault::Unsupported(_) => Error::new(ErrorKind::Data, message),
        _ => Error::new(ErrorKind::Data, message).with_hint(DAMAGED),
    }
}

/// The hint for a file that contradicts its format.
pub(super) const DAMAGED: &str = "the file is damaged, or of another format than its name says";
