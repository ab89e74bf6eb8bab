//! The threads that statements run on: a runtime of Tokio's, with stacks deep enough for plans.
//!
//! A statement needs, beside the workers, threads that may wait: for storage, for a pipeline's rows. Tokio starts them when it
//! needs them. Where the system does not let it, it keeps what they were to do for one that becomes free; the workers never do, so
//! that the statement would wait for ever. Whether there can be as many threads as a statement takes is tried here, all of them at
//! once, before there is a statement. Who uses up the rest later on is not foreseen.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;

use tokio::runtime::{Builder, Runtime};

use crate::{Error, ErrorKind, Result, STACK_BYTES};

/// Threads of a statement beside its workers and as many that scan: readers, a writer, a clock.
const SPARE: usize = 4;

/// A runtime for statements, of so many workers, or of one for each core.
///
/// # Errors
/// [`ErrorKind::Io`]: the system does not let this process have so many threads.
pub fn workers(threads: Option<usize>) -> Result<Runtime> {
    let threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1);
    let needed = 2 * threads + SPARE;
    let refused = |e: io::Error| {
        Error::new(ErrorKind::Io, format!("cannot start {needed} threads, which {threads} workers need: {e}"))
            .with_hint(
                "use fewer (ONEHOP_THREADS=1), or let this user have more (ulimit -u, pids.max of its control group)",
            )
            .with_source(e)
    };
    try_threads(needed).map_err(refused)?;
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name("onehop").thread_stack_size(STACK_BYTES).enable_all();
    builder.build().map_err(refused)
}

/// Starts so many threads at once, which end at once.
fn try_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    let pass = || drop(gate.lock().unwrap_or_else(PoisonError::into_inner));
    thread::scope(|scope| {
        let _closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        (0..count).try_for_each(|_| thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, pass).map(drop))
    })
}
