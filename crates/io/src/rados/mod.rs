//! Files on the objects of a Ceph cluster, by librados and nothing else.
//!
//! From the bottom up, each layer seeing only the one below:
//! 1. `library`: `librados.so.2`, loaded when a cluster is asked for.
//! 2. [`Cluster`] and [`Pool`]: a connection that never waits for ever; asynchronous compound operations on objects.
//! 3. [`Objects`]: the seam. What the file layer knows of a cluster; [`SimPool`] is the same in memory, with faults.
//!    `combine` joins what several threads do to one object at the same time.
//! 4. [`FileSystem`]: files and directories. [`fs`] has the layout, and the argument why it survives crashes.
//! 5. [`RadosVolume`]: one of its directories, for whoever writes files once and reads them by position.
//!
//! No async runtime: an operation tells whoever started it when it has ended, on a thread of the library's.

mod cluster;
mod combine;
mod error;
pub mod fs;
mod library;
mod location;
mod objects;
mod pool;
mod sim;
mod volume;

pub use cluster::{Cluster, ClusterOptions};
pub use error::{Code, Error, Problem, Result, TransactionProblem};
pub use fs::{FileSystem, FsOptions};
pub use location::{Authority, BadUrl, Location, SCHEME};
pub use objects::{Done, Objects, Pending, ReadOp, Reply, WriteOnce, WriteOp};
pub use pool::Pool;
pub use sim::{SimClient, SimCluster, SimFault, SimPool};
pub use volume::RadosVolume;
