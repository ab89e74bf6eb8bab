//! `bench io`: what each path from a file to memory, and back, really gives.
//!
//! A *point* is one pattern, block size, depth, number of jobs and path: it runs for a while, warmed up first, as often as
//! asked, and its figures are those of the repeat with the median rate. What is measured moves through the very
//! queues ([`onehop_io::Queue`]) that the engine reads through.
//!
//! - [`file`] makes the files: every byte is a function of its place, so that every read can be checked and a write
//!   never changes what is there.
//! - [`pattern`] says which block is next.
//! - [`run`] keeps the queues full and takes the times.
//! - [`usage`] asks the system what it cost, and what the device really did.
//! - [`device`] has the ways that lead to the memory of a GPU.
//! - [`sweep`] makes points of lists and measures each as often as asked.
//! - [`report`] is all of it as JSON and CSV, and says which figures are not what they seem.
//! - [`compare`] sets one report against another, [`fio`] and [`gdsio`] say the same to those programs, [`plot`] draws the
//!   paper's figures.
//!
//! Which way was asked for ([`Way`]) and which the bytes took ([`EffectivePath`]) are two types: the second comes from the
//! open file, or from what cuFile counted.

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

/// What is done to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rw {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Reads of blocks anywhere.
    RandRead,
    /// Writes of blocks anywhere.
    RandWrite,
}

impl Rw {
    /// All of them, by the names that fio has for them.
    pub const ALL: [(&'static str, Rw); 4] =
        [("read", Rw::Read), ("write", Rw::Write), ("randread", Rw::RandRead), ("randwrite", Rw::RandWrite)];

    /// Whether bytes leave memory.
    pub fn writes(self) -> bool {
        matches!(self, Rw::Write | Rw::RandWrite)
    }

    /// Whether blocks are taken in no order.
    pub fn is_random(self) -> bool {
        matches!(self, Rw::RandRead | Rw::RandWrite)
    }
}

impl fmt::Display for Rw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL.iter().find(|(_, rw)| rw == self).map_or("?", |(name, _)| name))
    }
}

/// How bytes are asked to travel.
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
    /// Those to host memory, by name.
    pub const HOST: [(&'static str, Way); 4] = [
        ("buffered", Way::Buffered),
        ("host", Way::Host),
        ("uring", Way::Uring),
        ("uring-buffered", Way::UringBuffered),
    ];

    /// Those to the memory of a GPU, by name.
    pub fn to_devices() -> impl Iterator<Item = (&'static str, Way)> {
        onehop_cuda::Way::ALL.into_iter().map(|(name, way)| (name, Way::Device(way)))
    }

    /// All of them, by name.
    pub fn all() -> impl Iterator<Item = (&'static str, Way)> {
        Self::HOST.into_iter().chain(Self::to_devices())
    }

    /// The one of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::all().find(|(of, _)| *of == name).map(|(_, way)| way)
    }

    /// Whether it is for sure that the page cache is passed by. What cuFile does is its own affair.
    pub fn is_direct(self) -> bool {
        match self {
            Way::Host | Way::Uring => true,
            Way::Buffered | Way::UringBuffered => false,
            Way::Device(way) => !way.is_cufile(),
        }
    }

    /// Whether the file is opened past the page cache.
    pub fn opens_direct(self) -> bool {
        self.is_direct() || self.is_cufile()
    }

    /// Whether it leads to the memory of a GPU.
    pub fn is_device(self) -> bool {
        matches!(self, Way::Device(_))
    }

    /// Whether it is up to cuFile how the bytes travel.
    pub fn is_cufile(self) -> bool {
        matches!(self, Way::Device(way) if way.is_cufile())
    }

    /// Whether a job may have more than one transfer in flight.
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

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// What is done.
    pub rw: Rw,
    /// By which way.
    #[serde(rename = "requested_path")]
    pub way: Way,
    /// Bytes of a transfer, whole pages.
    pub block_bytes: usize,
    /// Transfers in flight of each job.
    pub depth: usize,
    /// Threads, each with a part of the file of its own if it goes through it in order.
    pub jobs: usize,
}

/// For how long, and how carefully.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// What is measured.
    pub runtime: Duration,
    /// What runs before that and is not.
    pub ramp: Duration,
    /// Of the file's content, and of which block is next.
    pub seed: u64,
    /// Whether every byte read is compared with what it should be, and what was written is read again.
    pub verify: bool,
    /// Whether the processor reads what was read into host memory, once.
    pub touch: bool,
}
