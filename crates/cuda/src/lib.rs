//! NVIDIA GPUs: memory, streams, and bytes between storage and device memory.
//!
//! Nothing of NVIDIA's is needed to build this. `libcuda` and `libcufile` are loaded when they are asked for
//! ([`Driver::load`], [`Cufile::open`]); that one is not there is an [`Error`] with its reason and, where we know one,
//! its cure.
//!
//! - [`driver`]: devices, contexts, device memory ([`DeviceBuf`]), pinned host memory ([`PinnedBuf`]), streams, events.
//! - [`nvrtc`]: the compiler; [`kernels`]: what is written by hand for it to compile.
//! - [`fused`]: pipelines, each of them one kernel that is made for it.
//! - [`functions`]: what somebody has written to be called by SQL.
//! - [`staging`]: columns on their way from host memory, by many threads.
//! - [`cufile`]: files and buffers registered with cuFile, and what its statistics say about the way the bytes took.
//! - `direct`: blocks read to the device without the host looking at them, by cuFile or past the page cache, and verified there.
//! - [`queue`]: [`onehop_io::Queue`]s of device buffers, one for each way from storage to device memory.
//!
//! Invariants:
//! - Which way was asked for ([`Way`]) and which the bytes took ([`Verdict`]) are two types, and the second is found out
//!   from what cuFile counted. What cannot be known is *not verified*, never *direct*.
//! - Memory outlives what moves it: a queue owns the buffers in flight and waits for them when it is dropped; what
//!   cannot be waited for is leaked rather than freed. Buffers, streams and files hold their context, which holds the
//!   library; no library is ever unloaded.

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
