//! NVIDIA GPUs: memory, streams, and transfers between storage and device memory.
//!
//! The build needs no NVIDIA software. `libcuda` and `libcufile` are loaded on first use
//! ([`Driver::load`], [`Cufile::open`]). A missing library is an [`Error`] with its reason and, if
//! known, its cure.
//!
//! - [`driver`]: devices, contexts, device memory ([`DeviceBuf`]), pinned host memory
//!   ([`PinnedBuf`]), streams, events.
//! - [`nvrtc`]: the compiler; [`kernels`]: hand-written kernels for it to compile.
//! - [`fused`]: pipelines, each compiled to one kernel of its own.
//! - [`functions`]: user-defined functions that SQL calls.
//! - [`staging`]: parallel transfer of columns from host memory.
//! - [`cufile`]: files and buffers registered with cuFile, and the transfer path that its
//!   statistics report.
//! - `direct`: blocks read to the device by cuFile or past the page cache, without the host reading
//!   them, and verified there.
//! - [`queue`]: [`onehop_io::Queue`]s of device buffers, one for each way from storage to device
//!   memory.
//!
//! Invariants:
//! - The requested way ([`Way`]) and the observed way ([`Verdict`]) are two types. The second is
//!   derived from cuFile's counters. If it cannot be determined, it is *not verified*, never
//!   *direct*.
//! - Memory outlives the transfers that use it: a queue owns the buffers in flight and waits for
//!   them when it is dropped. A buffer that cannot be waited for is leaked rather than freed.
//!   Buffers, streams and files hold their context, which holds the library. No library is ever
//!   unloaded.

mod arrays;
pub mod backend;
pub mod cufile;
mod direct;
pub mod driver;
mod error;
#[cfg(any(test, feature = "fake"))]
#[allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::undocumented_unsafe_blocks)]
pub mod fake;
pub mod functions;
pub mod fused;
pub mod kernels;
mod library;
pub mod nvrtc;
pub mod queue;
pub mod resident;
pub mod staging;

pub use backend::{CudaDevices, Ending, devices};
pub use cufile::{Cufile, CufileFile, Effective, Verdict};
pub use direct::verify::TEXT as VERIFY_TEXT;
pub use driver::{Context, Device, DeviceBuf, Driver, Event, Grid, Kernel, PinnedBuf, SharedMemory, Stream};
pub use error::{Error, Result};
pub use nvrtc::Nvrtc;
pub use queue::{CufileAsyncQueue, CufileBatchQueue, CufileSyncQueue, StagedQueue, Way};
