//! Pipelines on a device: for each of them a kernel that is made for it, from columns as they are stored to groups,
//! tables or rows.
//!
//! ```text
//! program ─► plan ─► codegen ─► compile ─► run ─► columns of an answer
//!            order   CUDA C++   images,    launches, tables and groups
//!            of acts            kept       in device memory
//! ```
//! - [`Executor`] runs a checked program and gives what `onehop_pipeline::cpu` gives. What it has no code for it refuses
//!   before anything runs ([`Error::Refused`]): whoever asked then uses the CPU.
//! - [`Images`] is where columns on the device come from; [`Uploads`] puts them there for a run.
//! - [`Compiler`] keeps what was compiled, in memory and in files.
//!
//! Invariants:
//! - Semantics are `crates/pipeline`'s, also where rows fail: whether a query fails depends on its rows, not on their
//!   order, and of several failures the one is told whose check comes first in the text.
//! - Texts have no literals and no addresses in them. Whatever differs between two queries of one shape is an argument.
//! - What does not fit in device memory is there one partition of its keys at a time: the answer is the same.
//! - The text that a device gets is the text that runs in tests, compiled for the host by `host.h`.

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

/// Why a program did not run, or not to its end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no code for it. Nothing has run.
    #[error("the GPU has no code for {0}")]
    Refused(String),
    /// What the query is to blame for, or its data; the CPU would say the same.
    #[error(transparent)]
    Pipeline(onehop_pipeline::Error),
    /// The device, its driver or its compiler.
    #[error("{attempt}: {source}")]
    Device {
        /// What was attempted.
        attempt: String,
        /// What came of it.
        source: crate::Error,
    },
}

impl Error {
    fn refused(what: &str) -> Self {
        Self::Refused(what.into())
    }

    /// Whether the device had no memory left.
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
