//! `bench io`: the actual performance of each path from a file to memory, and back.
//!
//! A *point* is one pattern, block size, depth, number of jobs and path. It runs for a given time
//! after a warm-up, as often as requested, and its figures are those of the repeat with the median
//! rate. The transfers use the same queues ([`onehop_io::Queue`]) that the engine reads through.
//!
//! - [`file`] creates the files: every byte is a function of its place, so that every read can be
//!   checked and a write never changes the contents.
//! - [`pattern`] selects the next block.
//! - [`run`] keeps the queues full and measures the times.
//! - [`usage`] measures the cost on the system, and the actual transfers of the device.
//! - [`device`] has the paths to the memory of a GPU.
//! - [`sweep`] combines lists into points and measures each as often as requested.
//! - [`report`] writes all of it as JSON and CSV, and marks misleading figures.
//! - [`compare`] compares one report with another, [`fio`] and [`gdsio`] return equivalent commands
//!   of those programs, and [`plot`] draws the paper's figures.
//!
//! The requested path ([`Way`]) and the path that the bytes took ([`EffectivePath`]) are two types.
//! The second comes from the open file, or from cuFile's counters.

pub mod compare;
pub mod device;
pub mod file;
pub mod fio;
pub mod gdsio;
pub mod path;
pub mod pattern;
pub mod plot;
pub mod report;
pub mod run;
pub mod sweep;
pub mod usage;

use std::fmt;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use device::Gpu;
pub use file::{BenchFile, Files};
pub use path::EffectivePath;
pub use report::{Measured, PageCache, Report};
pub use run::{Figures, Latency, measure};
pub use sweep::{Sweep, repeat};

/// The access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rw {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
}

impl Rw {
    /// All patterns, by fio's names.
    pub const ALL: [(&'static str, Rw); 4] =
        [("read", Rw::Read), ("write", Rw::Write), ("randread", Rw::RandRead), ("randwrite", Rw::RandWrite)];

    /// Returns true for writes.
    pub fn writes(self) -> bool {
        matches!(self, Rw::Write | Rw::RandWrite)
    }

    /// Returns true for random order.
    pub fn is_random(self) -> bool {
        matches!(self, Rw::RandRead | Rw::RandWrite)
    }
}

impl fmt::Display for Rw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL.iter().find(|(_, rw)| rw == self).map_or("?", |(name, _)| name))
    }
}

/// The requested path of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `pread` and `pwrite` through the page cache.
    Buffered,
    /// `pread` and `pwrite` past it, by `O_DIRECT`.
    Host,
    /// `io_uring` past the page cache, files and buffers registered.
    Uring,
    /// `io_uring` through it.
    UringBuffered,
    /// To the memory of a GPU.
    Device(onehop_cuda::Way),
}

impl Way {
    /// The paths to host memory, by name.
    pub const HOST: [(&'static str, Way); 4] = [
        ("buffered", Way::Buffered),
        ("host", Way::Host),
        ("uring", Way::Uring),
        ("uring-buffered", Way::UringBuffered),
    ];

    /// Returns the paths to the memory of a GPU, by name.
    pub fn to_devices() -> impl Iterator<Item = (&'static str, Way)> {
        onehop_cuda::Way::ALL.into_iter().map(|(name, way)| (name, Way::Device(way)))
    }

    /// Returns all paths, by name.
    pub fn all() -> impl Iterator<Item = (&'static str, Way)> {
        Self::HOST.into_iter().chain(Self::to_devices())
    }

    /// Returns the path of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::all().find(|(of, _)| *of == name).map(|(_, way)| way)
    }

    /// Returns true if the path certainly bypasses the page cache. cuFile decides for itself.
    pub fn is_direct(self) -> bool {
        match self {
            Way::Host | Way::Uring => true,
            Way::Buffered | Way::UringBuffered => false,
            Way::Device(way) => !way.is_cufile(),
        }
    }

    /// Returns true if the file is opened past the page cache.
    pub fn opens_direct(self) -> bool {
        self.is_direct() || self.is_cufile()
    }

    /// Returns true if the path leads to the memory of a GPU.
    pub fn is_device(self) -> bool {
        matches!(self, Way::Device(_))
    }

    /// Returns true if cuFile determines the path of the bytes.
    pub fn is_cufile(self) -> bool {
        matches!(self, Way::Device(way) if way.is_cufile())
    }

    /// Returns true if a job may have more than one transfer in flight.
    pub fn has_depth(self) -> bool {
        !matches!(self, Way::Buffered | Way::Host | Way::Device(onehop_cuda::Way::CufileSync))
    }
}

impl Serialize for Way {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Way {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::of_name(&name).ok_or_else(|| D::Error::custom(format!("there is no path {name}")))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::all().find(|(_, way)| way == self).map_or("?", |(name, _)| name))
    }
}

/// A point of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// The access pattern.
    pub rw: Rw,
    /// The requested path.
    #[serde(rename = "requested_path")]
    pub way: Way,
    /// The size of a transfer in bytes, a multiple of the page size.
    pub block_bytes: usize,
    /// The number of transfers in flight of each job.
    pub depth: usize,
    /// The number of threads. Sequential ones have a part of the file each.
    pub jobs: usize,
}

/// The duration and thoroughness of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The measured time.
    pub runtime: Duration,
    /// The unmeasured time before that.
    pub ramp: Duration,
    /// The seed of the file's contents and of the order of blocks.
    pub seed: u64,
    /// True if every byte read is compared with its expected value, and written data is read again.
    pub verify: bool,
    /// True if the processor reads the data in host memory, once.
    pub touch: bool,
}
