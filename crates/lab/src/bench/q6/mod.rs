//! `bench q6`: TPC-H Query 6 by every way that its bytes and its work can be split between processor and GPU.
//!
//! A *point* is a layout of `lineitem`, a way, a mode and a buffer size. It runs as often as asked; each run starts with
//! no page of its files cached, reads everything, and must come to the answer that is known from elsewhere
//! ([`answer`]): a run with a wrong answer has no time.
//!
//! - [`rows`] is a file of pages of whole rows, like the paper's; [`segments`] are columns, encoded as the engine stores
//!   them; [`prepare`] makes both of the generator's rows, in a folder of its own.
//! - [`plan`] cuts a layout into *units*: what fits a buffer, and is read and computed at once.
//! - [`cpu`] computes a unit on the processor, [`gpu`] on the device.
//! - [`paper`] runs a way as the paper did: one thread, one buffer, one step after the other. [`overlapped`] runs it as it
//!   should be: many reads in flight, while others are computed by as many threads as there are.
//! - [`report`] is all of it as JSON and CSV, [`plot`] draws the paper's Figures 7 and 8.

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

/// `l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01' and l_discount between 0.05 and 0.07 and
/// l_quantity < 24`, in days and hundredths.
pub const FILTER: RowFilter =
    RowFilter { shipdate_from: 8766, shipdate_before: 9131, discount_min: 5, discount_max: 7, quantity_below: 2400 };

/// Digits behind the point of the answer: two of the price, two of the discount.
pub const ANSWER_SCALE: u32 = 4;

/// How the table lies on storage.
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

/// Where bytes go and who computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Into host memory; the processor.
    Cpu,
    /// Into host memory, copied to the device; the GPU.
    GpuIndirect,
    /// Into the device's memory by cuFile; the GPU.
    GpuDirect,
    /// Into the device's memory by cuFile, copied to host memory; the processor.
    GpuIo,
}

impl Way {
    /// All of them, by name.
    pub const ALL: [(&'static str, Way); 4] =
        [("cpu", Way::Cpu), ("gpu-indirect", Way::GpuIndirect), ("gpu-direct", Way::GpuDirect), ("gpu-io", Way::GpuIo)];

    /// Whether the device computes.
    pub fn has_kernel(self) -> bool {
        matches!(self, Way::GpuIndirect | Way::GpuDirect)
    }

    /// Whether cuFile reads.
    pub fn is_cufile(self) -> bool {
        matches!(self, Way::GpuDirect | Way::GpuIo)
    }

    /// What the paper calls it, and what it does not have.
    pub fn title(self) -> &'static str {
        match self {
            Way::Cpu => "CPU I/O, CPU execution",
            Way::GpuIndirect => "GPU indirect I/O, GPU execution",
            Way::GpuDirect => "GPU direct I/O, GPU execution",
            Way::GpuIo => "GPU direct I/O, CPU execution",
        }
    }
}

/// How it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// As the paper did it: one thread of either processor, one buffer, nothing at the same time.
    Paper,
    /// Many reads in flight, copies and work meanwhile, all threads.
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

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// How the table lies.
    pub layout: Layout,
    /// How it is carried out.
    pub mode: Mode,
    /// Which way.
    pub way: Way,
    /// Bytes of the buffer that is filled and computed at once.
    pub buffer_bytes: usize,
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Storage.
    #[error(transparent)]
    Io(#[from] onehop_io::Error),
    /// A segment.
    #[error(transparent)]
    Segment(#[from] onehop_segment::Error),
    /// The device, or its libraries.
    #[error(transparent)]
    Cuda(#[from] onehop_cuda::Error),
    /// The generator.
    #[error(transparent)]
    Generate(#[from] crate::generate::Error),
    /// The database.
    #[error(transparent)]
    Engine(#[from] onehop_engine::Error),
    /// Data that does not make sense.
    #[error("{object}: {reason}")]
    Damaged {
        /// Which.
        object: String,
        /// Why.
        reason: String,
    },
    /// Data that is sound, and not what this benchmark can read, or was not made by it.
    #[error("{object}: {reason}")]
    Refused {
        /// Which.
        object: String,
        /// Why.
        reason: String,
    },
    /// The way is not to be had on this machine.
    #[error("{0}")]
    NotHere(String),
    /// Somebody wanted it to end.
    #[error("cancelled")]
    Cancelled,
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn system(path: &std::path::Path, operation: onehop_io::Operation, e: std::io::Error) -> Error {
    onehop_io::Error::new(operation, path.display().to_string(), e).into()
}
