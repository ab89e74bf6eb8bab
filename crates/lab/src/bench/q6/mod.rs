//! `bench q6`: TPC-H Query 6 by every split of its bytes and its work between processor and GPU.
//!
//! A *point* is a layout of `lineitem`, a path, a mode and a buffer size. It runs as often as
//! requested. Each run starts with no page of its files cached, reads everything, and must return
//! the answer from an independent source ([`answer`]): a run with a wrong answer has no time.
//!
//! - [`rows`] is a file of pages of whole rows, like the paper's. [`segments`] are columns, encoded
//!   as the engine stores them. [`prepare`] creates both from the generator's rows, in a folder of
//!   its own.
//! - [`plan`] splits a layout into *units*: each fits a buffer, and is read and processed at once.
//! - [`cpu`] processes a unit on the processor, [`gpu`] on the device.
//! - [`paper`] runs a path as the paper did: one thread, one buffer, one step after the other.
//!   [`overlapped`] runs it efficiently: many reads in flight, while all threads process others.
//! - [`report`] writes all of it as JSON and CSV, [`plot`] draws the paper's Figures 7 and 8.

pub mod answer;
pub mod cpu;
pub mod gpu;
mod overlapped;
mod paper;
pub mod plan;
pub mod plot;
pub mod prepare;
pub mod report;
pub mod rows;
pub mod run;
pub mod segments;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::fmt;

use onehop_cuda::kernels::q6::RowFilter;
use serde::{Deserialize, Serialize};

pub use gpu::Gpu;
pub use plan::Plan;
pub use report::{Measured, Report};
pub use run::{Figures, Flight, Options, run};

/// `l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01' and l_discount between 0.05
/// and 0.07 and l_quantity < 24`, in days and hundredths.
pub const FILTER: RowFilter =
    RowFilter { shipdate_from: 8766, shipdate_before: 9131, discount_min: 5, discount_max: 7, quantity_below: 2400 };

/// The number of digits after the point of the answer: two of the price, two of the discount.
pub const ANSWER_SCALE: u32 = 4;

/// The layout of the table on storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Segments: the four columns that the query needs.
    Segments,
    /// Pages of whole rows.
    Rows,
}

impl Layout {
    /// Both, by name.
    pub const ALL: [(&'static str, Layout); 2] = [("segments", Layout::Segments), ("rows", Layout::Rows)];
}

/// The destination of the bytes and the processor of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Into host memory; the CPU.
    Cpu,
    /// Into host memory, copied to the device; the GPU.
    GpuIndirect,
    /// Into the device's memory by cuFile; the GPU.
    GpuDirect,
    /// Into the device's memory by cuFile, copied to host memory; the CPU.
    GpuIo,
}

impl Way {
    /// All paths, by name.
    pub const ALL: [(&'static str, Way); 4] =
        [("cpu", Way::Cpu), ("gpu-indirect", Way::GpuIndirect), ("gpu-direct", Way::GpuDirect), ("gpu-io", Way::GpuIo)];

    /// Returns true if the device does the work.
    pub fn has_kernel(self) -> bool {
        matches!(self, Way::GpuIndirect | Way::GpuDirect)
    }

    /// Returns true if cuFile reads.
    pub fn is_cufile(self) -> bool {
        matches!(self, Way::GpuDirect | Way::GpuIo)
    }

    /// Returns the paper's name, or a similar one if the paper has none.
    pub fn title(self) -> &'static str {
        match self {
            Way::Cpu => "CPU I/O, CPU execution",
            Way::GpuIndirect => "GPU indirect I/O, GPU execution",
            Way::GpuDirect => "GPU direct I/O, GPU execution",
            Way::GpuIo => "GPU direct I/O, CPU execution",
        }
    }
}

/// The mode of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// As in the paper: one thread of either processor, one buffer, no overlap.
    Paper,
    /// Many reads in flight, concurrent copies and work, all threads.
    Overlapped,
}

impl Mode {
    /// Both, by name.
    pub const ALL: [(&'static str, Mode); 2] = [("paper", Mode::Paper), ("overlapped", Mode::Overlapped)];
}

macro_rules! named {
    ($($kind:ty),*) => { $(
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(Self::ALL.iter().find(|(_, one)| one == self).map_or("?", |(name, _)| name))
            }
        }
    )* };
}
named!(Layout, Way, Mode);

/// A point of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// The layout of the table.
    pub layout: Layout,
    /// The mode of execution.
    pub mode: Mode,
    /// The path.
    pub way: Way,
    /// The size of the buffer that is filled and processed at once, in bytes.
    pub buffer_bytes: usize,
}

/// An error of the benchmark.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Storage failed.
    #[error(transparent)]
    Io(#[from] onehop_io::Error),
    /// A segment is unusable.
    #[error(transparent)]
    Segment(#[from] onehop_segment::Error),
    /// The device, or one of its libraries, failed.
    #[error(transparent)]
    Cuda(#[from] onehop_cuda::Error),
    /// The generator failed.
    #[error(transparent)]
    Generate(#[from] crate::generate::Error),
    /// The database failed.
    #[error(transparent)]
    Engine(#[from] onehop_engine::Error),
    /// The data is invalid.
    #[error("{object}: {reason}")]
    Damaged {
        /// The object.
        object: String,
        /// The reason.
        reason: String,
    },
    /// The data is valid, but this benchmark cannot read it or did not make it.
    #[error("{object}: {reason}")]
    Refused {
        /// The object.
        object: String,
        /// The reason.
        reason: String,
    },
    /// The path is not available on this machine.
    #[error("{0}")]
    NotHere(String),
    /// The benchmark was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn system(path: &std::path::Path, operation: onehop_io::Operation, e: std::io::Error) -> Error {
    onehop_io::Error::new(operation, path.display().to_string(), e).into()
}
