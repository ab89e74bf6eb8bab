//! Execution of pipelines on a GPU. Each pipeline becomes one generated kernel, which reads columns
//! as they are stored and produces groups, a table or rows.
//!
//! ```text
//! program ─► plan ─► codegen ─► compile ─► run ─► columns of the result
//!            order   CUDA C++   images,    launches, tables and groups
//!            of acts            cached     in device memory
//! ```
//! - [`Executor`] runs a checked program and returns the same result as `onehop_pipeline::cpu`. It
//!   refuses a program that it has no code for before anything runs ([`Error::Refused`]); the
//!   caller then uses the CPU.
//! - [`Images`] provides columns on the device. [`Uploads`] copies them there for one run.
//! - [`Compiler`] caches compiled kernels in memory and in files.
//!
//! Invariants:
//! - The semantics are those of `crates/pipeline`, also for rows that fail. A query fails or
//!   succeeds depending on its rows, not on their order. If several rows fail, the query reports
//!   the failure whose check comes first in the kernel source.
//! - Kernel source contains no literals and no addresses. Values that differ between two queries of
//!   one shape are arguments.
//! - A table, or groups, that do not fit in device memory are resident one partition of their keys
//!   at a time. The result is the same.
//! - The kernel source that a device executes is the one that tests execute, compiled for the host
//!   by `host.h`.

mod bounce;
mod built;
mod codegen;
mod compile;
mod dry;
mod fold;
mod image;
mod launch;
mod memory;
mod part;
mod partition;
mod plan;
mod result;
mod run;
mod schedule;
mod sinks;
mod stream;
mod table;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use built::TableFacts;
pub use compile::{CompileCounts, Compiled, Compiler, compile};
pub use dry::{fold_texts_of, texts_of};
pub use fold::MOST_FEATURES;
pub use image::{Carried, ColumnImage, Images, Outlook, Streamed, Uploads};
pub(crate) use part::{CodeMeaning, by_frequency, bytes_of, bytes_of_table, is_read_as_stored};
pub use part::{Part, form};
pub use run::{Answer, Executor, Options, PipelineFacts, RunMemory, WhenFull};
pub use stream::StreamFacts;

/// The result of running a program on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a program did not run, or did not run to its end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The GPU has no code for the program. Nothing has run.
    #[error("the GPU has no code for {0}")]
    Refused(String),
    /// An error of the query or its data, which the CPU would return as well. Cancellation and
    /// exhausted memory ([`onehop_pipeline::Error::Memory`]) are also reported here.
    #[error(transparent)]
    Pipeline(onehop_pipeline::Error),
    /// An error of the device, its driver or its compiler.
    #[error("{attempt}: {source}")]
    Device {
        /// The operation that was attempted.
        attempt: String,
        /// The underlying error.
        source: crate::Error,
    },
}

impl Error {
    fn refused(what: &str) -> Self {
        Self::Refused(what.into())
    }

    /// Returns true if the device was out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Device { source, .. } if source.is_out_of_memory())
    }
}

impl From<onehop_pipeline::Error> for Error {
    fn from(error: onehop_pipeline::Error) -> Self {
        match error {
            onehop_pipeline::Error::Unsupported(what) => Self::Refused(what),
            other => Self::Pipeline(other),
        }
    }
}

impl From<crate::Error> for Error {
    fn from(source: crate::Error) -> Self {
        Self::Device { attempt: "a query on the GPU".into(), source }
    }
}
