//! The arguments of `onehop bench q6`: those of `onehop bench io`, if they mean the same.

use std::path::PathBuf;

use onehop_lab::bench::q6::{Layout, Mode, Point, Way};

use super::io::{parallel, size, svg};
use super::report::ReportArgs;

/// The maximum buffer size. The paper's buffers are up to 64 MiB.
const MAX_BUFFER_BYTES: u64 = 1 << 30;
/// The minimum buffer size: less than four columns of a vector each.
const MIN_BUFFER_BYTES: u64 = 64 << 10;

/// The paths, modes and examples of the help text.
pub const EXAMPLES: &str = "\
Paths:
  cpu              read into host memory, computed by the processor
  gpu-indirect     read into host memory, copied to the GPU, computed there
  gpu-direct       read into the GPU's memory by cuFile, computed there
  gpu-io           read into the GPU's memory by cuFile, copied back, computed by the processor
  all              all of them

Modes:
  paper            one thread, one buffer, nothing at the same time; kernels have one thread, too (--device-threads)
  overlapped       many reads in flight, copies and work meanwhile, all threads

Examples:
  onehop bench q6 /data                                        both layouts at SF 1, by every path there is
  onehop bench q6 /data --sf 10 --keep --bs 64KiB,256KiB,1MiB,4MiB,16MiB,64MiB --json q6.json --plot figure7.svg
  onehop bench q6 /data --path cpu,gpu-indirect --mode overlapped --layout rows
  onehop bench q6 --db data/tpch-sf1.onehop --layout segments  the segments of a database

Tables are made in a folder of their own under PATH and removed when it is done (--keep keeps them for the next run).
A path that this machine does not have is said to be missing, and fails the command if it was named.";

/// `onehop bench q6`.
#[derive(Debug, clap::Args)]
pub struct Q6Args {
    /// The folder for the tables, on the storage to be measured
    #[arg(required_unless_present = "db")]
    pub path: Option<PathBuf>,
    /// Scale factor: 1 is 6 million rows
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = super::scale_factor, allow_negative_numbers = true)]
    pub sf: f64,
    /// Database whose lineitem, of this scale factor, has the segments
    #[arg(long, value_name = "DIR")]
    pub db: Option<PathBuf>,
    /// The layout of the table: segments, rows [default: both; without PATH, segments]
    #[arg(long = "layout", value_name = "LIST", value_delimiter = ',', value_parser = layout)]
    pub layouts: Vec<Layout>,
    /// The reader and the processor of the bytes: cpu, gpu-indirect, gpu-direct, gpu-io, all
    /// [default: all that there are]
    #[arg(long = "path", value_name = "LIST", value_delimiter = ',', value_parser = way)]
    pub ways: Vec<Ways>,
    /// One step after the other, or all at once: paper, overlapped
    #[arg(long = "mode", value_name = "LIST", value_delimiter = ',', default_value = "paper,overlapped", value_parser = mode)]
    pub modes: Vec<Mode>,
    /// Bytes of the buffer that is filled and processed at once
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64KiB,1MiB,16MiB,64MiB", value_parser = buffer_bytes)]
    pub bs: Vec<usize>,
    /// Measured runs of each point, after one of each path that warms up; the run with the median
    /// time is shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = parallel)]
    pub runs: usize,
    /// The number of CPU threads in overlapped mode; one per core without it
    #[arg(long, value_name = "N", value_parser = super::thread_count)]
    pub threads: Option<usize>,
    /// The maximum number of reads in flight in overlapped mode
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = parallel)]
    pub iodepth: usize,
    /// The number of GPU threads in paper mode
    #[arg(long, value_enum, value_name = "HOW", default_value = "one")]
    pub device_threads: DeviceThreads,
    /// The mechanism that keeps cuFile reads in flight in overlapped mode
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto")]
    pub cufile: CufileFlight,
    /// The GPU, by its number in this process
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub gpu: usize,
    /// Keep the tables
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub reports: ReportArgs,
    /// Draw the paper's Figures 7 and 8 into an SVG file
    #[arg(long, value_name = "FILE", value_parser = svg)]
    pub plot: Option<PathBuf>,
}

/// The number of GPU threads in paper mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceThreads {
    /// One, as in the paper
    One,
    /// As many as the work permits
    Many,
}

/// The mechanism that keeps cuFile reads in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CufileFlight {
    /// A batch if bytes go direct, threads if they go through host memory
    Auto,
    /// A batch that is refilled: in compat mode it may never return
    Batch,
    /// A thread for each read
    Threads,
}

/// A value of `--path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    /// A single path.
    One(Way),
    /// All paths.
    All,
}

impl Q6Args {
    /// Returns the points to measure, in order. Points that share a warm-up are adjacent.
    pub fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        let (layouts, modes, ways, sizes) =
            (unique(self.layouts()), unique(self.modes.clone()), unique(self.ways()), unique(self.bs.clone()));
        for layout in layouts {
            for mode in &modes {
                for way in &ways {
                    points.extend(sizes.iter().map(|bytes| Point {
                        layout,
                        mode: *mode,
                        way: *way,
                        buffer_bytes: *bytes,
                    }));
                }
            }
        }
        points
    }

    fn layouts(&self) -> Vec<Layout> {
        match (self.layouts.as_slice(), &self.path) {
            ([], None) => vec![Layout::Segments],
            ([], Some(_)) => Layout::ALL.map(|(_, layout)| layout).to_vec(),
            (named, _) => named.to_vec(),
        }
    }

    fn ways(&self) -> Vec<Way> {
        let all = || Way::ALL.map(|(_, way)| way).to_vec();
        let of = |ways: &Ways| match ways {
            Ways::One(way) => vec![*way],
            Ways::All => all(),
        };
        if self.ways.is_empty() { all() } else { self.ways.iter().flat_map(of).collect() }
    }

    /// Returns true if the path is required, because the user named it.
    pub fn is_named(&self, way: Way) -> bool {
        self.ways.contains(&Ways::One(way))
    }
}

/// Returns each value once, at its first position.
fn unique<T: PartialEq>(all: Vec<T>) -> Vec<T> {
    all.into_iter().fold(Vec::new(), |mut kept, one| {
        if !kept.contains(&one) {
            kept.push(one);
        }
        kept
    })
}

fn layout(text: &str) -> Result<Layout, String> {
    let found = Layout::ALL.iter().find(|(name, _)| *name == text);
    found.map(|(_, layout)| *layout).ok_or_else(|| "there are segments and rows".into())
}

fn mode(text: &str) -> Result<Mode, String> {
    let found = Mode::ALL.iter().find(|(name, _)| *name == text);
    found.map(|(_, mode)| *mode).ok_or_else(|| "there are paper and overlapped".into())
}

fn way(text: &str) -> Result<Ways, String> {
    if text == "all" {
        return Ok(Ways::All);
    }
    let found = Way::ALL.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, way)| Ways::One(*way))
        .ok_or_else(|| "there are cpu, gpu-indirect, gpu-direct, gpu-io and all".into())
}

fn buffer_bytes(text: &str) -> Result<usize, String> {
    let bytes = size(text, "64KiB or 1MiB")?;
    let bytes = Some(bytes).filter(|bytes| (MIN_BUFFER_BYTES..=MAX_BUFFER_BYTES).contains(bytes));
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| "a size from 64 KiB to 1 GiB".into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_meaning_or_say_which_there_are() {
        assert_eq!((way("gpu-io"), way("all")), (Ok(Ways::One(Way::GpuIo)), Ok(Ways::All)));
        assert!(way("direct").unwrap_err().contains("gpu-direct"));
        assert_eq!((layout("rows"), mode("paper")), (Ok(Layout::Rows), Ok(Mode::Paper)));
        assert!(layout("pages").unwrap_err().contains("rows") && mode("fast").unwrap_err().contains("overlapped"));
    }

    #[test]
    fn buffers_hold_a_vector_of_every_column() {
        assert_eq!((buffer_bytes("64KiB"), buffer_bytes("1GiB")), (Ok(1 << 16), Ok(1 << 30)));
        for wrong in ["4KiB", "2GiB", "0", "much"] {
            assert!(buffer_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
