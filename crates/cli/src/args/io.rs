//! The arguments of `onehop bench io`: fio's names, lists by comma, quantities with units.

use std::path::PathBuf;
use std::time::Duration;

use onehop_engine::{parse_size, units};
use onehop_io::PAGE_BYTES;
use onehop_lab::bench::io::{Rw, Sweep, Way};

use super::report::ReportArgs;

/// The maximum depth, and the maximum number of jobs.
const MAX_PARALLEL: usize = 1024;

/// The paths and examples of the help text.
pub const EXAMPLES: &str = "\
Paths:
  buffered         pread and pwrite through the page cache, which forgets the file before each run of reads
  host             pread and pwrite past it, by O_DIRECT
  uring            io_uring past it: --iodepth transfers in flight for each job, files and buffers registered
  uring-buffered   io_uring through the page cache
To the memory of a GPU:
  cufile-sync          cuFileRead and cuFileWrite; more at once by --numjobs
  cufile-batch         cuFile's batches, filled again as transfers come back: --iodepth of them
  cufile-batch-slots   the same, each in a batch of its own
  cufile-batch-wait    cuFile's batches, each waited for as a whole
  cufile-async         cuFileReadAsync and cuFileWriteAsync, each on a stream
  staged               io_uring into pinned memory, and copies that overlap
  staged-pread         the same with pread
Several:
  cufile, gpu, all     those of cuFile; those to a GPU; all that the machine has
  direct               cufile-sync and cufile-batch, and exit code 4 if they were not direct
It is cuFile's decision whether bytes go straight to the GPU (direct) or through the host (compat). Which way they went
is what it counted.

Examples:
  onehop bench io /data                                        a first look, in half a minute
  onehop bench io /data --bs 4KiB,64KiB,1MiB,16MiB,64MiB --rw read,randread,write,randwrite --plot figures.svg
  onehop bench io /data --path uring --bs 1MiB --iodepth 1,2,4,8,16,32,64,128 --runtime 10s --repeat 3 --json new.json
  onehop bench io /data --numjobs 1,2,4,8,16,32,64 --json new.json --compare old.json --fail-under 0.9
  onehop bench io --compare old.json new.json                  two runs side by side, nothing is measured
  onehop bench io /data --path direct,staged,host --bs 1MiB --iodepth 1,8,32 --verify
  onehop bench io /data --emit fio                             the same, said to fio
  onehop bench io db.onehop/segments/*.seg --path uring --bs 1MiB --iodepth 1,2,4,8,16
                                                               what the disk gives of a database's own bytes

The file is made by this command, and removed when it is done (--keep keeps it for the next run). Files that something
else made are never written to: reads alone, without --verify, take them as they are, whatever their length.";

/// `onehop bench io`.
#[derive(Debug, clap::Args)]
pub struct IoArgs {
    /// The file to measure on, created if it is missing; of a folder, the file onehop-bench-io in
    /// it. Several files that another program made are read as if they lay one behind the other
    #[arg(value_name = "PATH", required_unless_present = "compare")]
    pub paths: Vec<PathBuf>,
    /// The access pattern, sequential or random: read, write, randread, randwrite
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "read", value_parser = rw)]
    pub rw: Vec<Rw>,
    /// Bytes of a transfer, whole pages of 4 KiB
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64KiB,1MiB", value_parser = block_bytes)]
    pub bs: Vec<usize>,
    /// Transfers in flight of each job, by paths that have more than one
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8", value_parser = parallel)]
    pub iodepth: Vec<usize>,
    /// Jobs: threads, in order each with a part of the file of its own
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = parallel)]
    pub numjobs: Vec<usize>,
    /// Paths that the bytes are to take, see below [default: buffered,host,uring]
    #[arg(long = "path", value_name = "LIST", value_delimiter = ',', value_parser = way)]
    pub ways: Vec<Ways>,
    /// The GPU, for paths that lead to one: its number, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub gpu: usize,
    /// Exit with 4 if bytes of a cuFile path did not go directly between storage and GPU
    #[arg(long)]
    pub require_direct: bool,
    /// The measured time of each point: 500ms, 3s, 2min
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = positive_time)]
    pub runtime: Duration,
    /// The warm-up time of each point
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = time)]
    pub ramp: Duration,
    /// The number of runs of each point; its figures are those of the run with the median rate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parallel)]
    pub repeat: usize,
    /// Length of the file; longer than memory if rates of the page cache are to be those of the
    /// device
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = file_bytes)]
    pub size: u64,
    /// Compare every byte read with what was written, and read again what was written
    #[arg(long)]
    pub verify: bool,
    /// Have the processor read every byte that was read into host memory, once, as a program does
    /// that uses the bytes
    #[arg(long)]
    pub touch: bool,
    /// The seed of the file's content and of the order of blocks
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub reports: ReportArgs,
    /// Draw the figures into an SVG file
    #[arg(long, value_name = "FILE", value_parser = svg)]
    pub plot: Option<PathBuf>,
    /// Compare the figures with those of an earlier JSON file; of two files, the second with the
    /// first
    #[arg(long, value_name = "FILE", num_args = 1..=2)]
    pub compare: Vec<PathBuf>,
    /// Exit with 1 if a rate is below this share of the compared one
    #[arg(long, value_name = "RATIO", requires = "compare", value_parser = ratio)]
    pub fail_under: Option<f64>,
    /// Keep the file
    #[arg(long)]
    pub keep: bool,
    /// Print the commands of another program that measures the same; measure nothing
    #[arg(long, value_enum, value_name = "PROGRAM")]
    pub emit: Option<Emit>,
}

/// A program that measures the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Emit {
    /// The flexible I/O tester
    Fio,
    /// NVIDIA's benchmark of cuFile
    Gdsio,
}

/// A value of `--path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    /// A single path.
    One(Way),
    /// All cuFile paths.
    Cufile,
    /// The cuFile paths that must be direct.
    Direct,
    /// All paths to a GPU.
    Gpu,
    /// All paths.
    All,
}

impl Ways {
    const GROUPS: [(&'static str, Ways); 4] =
        [("cufile", Ways::Cufile), ("direct", Ways::Direct), ("gpu", Ways::Gpu), ("all", Ways::All)];

    fn all(self) -> Vec<Way> {
        use onehop_cuda::Way as Device;
        match self {
            Ways::One(way) => vec![way],
            Ways::Cufile => Way::all().map(|(_, way)| way).filter(|way| way.is_cufile()).collect(),
            Ways::Direct => [Device::CufileSync, Device::CufileBatch].map(Way::Device).into(),
            Ways::Gpu => Way::to_devices().map(|(_, way)| way).collect(),
            Ways::All => Way::all().map(|(_, way)| way).collect(),
        }
    }
}

impl IoArgs {
    /// Returns the points to measure.
    pub fn sweep(&self) -> Sweep {
        let default = [Way::Buffered, Way::Host, Way::Uring];
        Sweep {
            rw: self.rw.clone(),
            ways: if self.ways.is_empty() {
                default.to_vec()
            } else {
                self.ways.iter().flat_map(|ways| ways.all()).collect()
            },
            block_bytes: self.bs.clone(),
            depths: self.iodepth.clone(),
            jobs: self.numjobs.clone(),
        }
    }

    /// Returns true if the path is required, because the user named it.
    pub fn is_named(&self, way: Way) -> bool {
        self.ways.iter().any(|ways| *ways != Ways::All && ways.all().contains(&way))
    }

    /// Returns true if the path must be direct.
    pub fn must_be_direct(&self, way: Way) -> bool {
        way.is_cufile()
            && (self.require_direct || self.ways.contains(&Ways::Direct) && Ways::Direct.all().contains(&way))
    }
}

fn rw(text: &str) -> Result<Rw, String> {
    let found = Rw::ALL.iter().find(|(name, _)| *name == text);
    found.map(|(_, rw)| *rw).ok_or_else(|| "there are read, write, randread and randwrite".into())
}

fn way(text: &str) -> Result<Ways, String> {
    let group = Ways::GROUPS.iter().find(|(name, _)| *name == text).map(|(_, ways)| *ways);
    group.or_else(|| Way::of_name(text).map(Ways::One)).ok_or_else(|| match text {
        "compat" => {
            "cuFile takes that way where it has no direct one, and cannot be asked for it: ask for cufile, and see \
                     which path was effective"
                .into()
        }
        _ => {
            let names = Way::all().map(|(name, _)| name).chain(Ways::GROUPS.map(|(name, _)| name));
            format!("there are {}", names.collect::<Vec<_>>().join(", "))
        }
    })
}

fn block_bytes(text: &str) -> Result<usize, String> {
    let bytes = size(text, "64KiB or 1MiB")?;
    let pages = PAGE_BYTES as u64;
    if !bytes.is_multiple_of(pages) || bytes == 0 {
        let near = units::memory((bytes.div_ceil(pages) * pages).max(pages));
        return Err(format!("whole pages of 4 KiB, such as {near}; sizes without an i are powers of 1,000"));
    }
    usize::try_from(bytes).ok().filter(|bytes| *bytes <= 1 << 30).ok_or_else(|| "at most 1 GiB".into())
}

pub(super) fn file_bytes(text: &str) -> Result<u64, String> {
    size(text, "1GiB or 20GB").and_then(|n| if n == 0 { Err("more than nothing".into()) } else { Ok(n) })
}

pub(super) fn size(text: &str, example: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("a size, such as {example}"))
}

pub(super) fn parallel(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=MAX_PARALLEL).contains(n));
    number.ok_or_else(|| format!("a whole number from 1 to {MAX_PARALLEL}"))
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = match text[digits..].trim() {
        "ms" => Some(1e-3),
        "" | "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let seconds = text[..digits].parse::<f64>().ok().zip(unit).map(|(number, unit)| number * unit);
    let seconds =
        seconds.filter(|seconds| *seconds <= 86_400.0).ok_or("a time up to a day, such as 500ms, 3s or 2min")?;
    Ok(Duration::from_secs_f64(seconds))
}

pub(super) fn positive_time(text: &str) -> Result<Duration, String> {
    time(text).and_then(|time| if time < Duration::from_millis(10) { Err("10ms or more".into()) } else { Ok(time) })
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>().ok().filter(|ratio| (0.0..=100.0).contains(ratio));
    ratio.ok_or_else(|| "a ratio, such as 0.9".into())
}

pub(super) fn svg(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err("figures are drawn as SVG: name a file that ends in .svg".into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    #[test]
    fn sizes_are_whole_pages() {
        assert_eq!((block_bytes("4KiB"), block_bytes("4096"), block_bytes("1GiB")), (Ok(4096), Ok(4096), Ok(1 << 30)));
        assert!(block_bytes("4k").unwrap_err().contains("such as 4.00 KiB"));
        for wrong in ["0", "5000", "2GiB", "much", "-4KiB", ""] {
            assert!(block_bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(file_bytes("20GB"), Ok(20_000_000_000));
    }

    #[test]
    fn times_have_units() {
        let ms = Duration::from_millis;
        assert_eq!(
            (time("500ms"), time("1.5s"), time("3"), time("2min")),
            (Ok(ms(500)), Ok(ms(1500)), Ok(ms(3000)), Ok(ms(120_000)))
        );
        for wrong in ["", "s", "3 weeks", "-1s", "25h", "nan", "1e9"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(time("0s").is_ok() && positive_time("0s").is_err());
    }

    #[test]
    fn groups_are_of_ways_and_only_all_is_lenient() {
        let args = |ways: &[&str], require_direct| {
            let words = ["io".to_string(), "/data".into(), "--path".into(), ways.join(",")];
            let matches = IoArgs::augment_args(clap::Command::new("io")).get_matches_from(words);
            IoArgs { require_direct, ..IoArgs::from_arg_matches(&matches).unwrap() }
        };
        let batch = Way::of_name("cufile-batch").unwrap();
        let staged = Way::of_name("staged").unwrap();
        assert!(args(&["gpu"], false).is_named(staged) && !args(&["all"], false).is_named(staged));
        assert!(args(&["direct"], false).must_be_direct(batch) && !args(&["cufile"], false).must_be_direct(batch));
        assert!(args(&["gpu"], true).must_be_direct(batch) && !args(&["gpu"], true).must_be_direct(staged));
        assert_eq!(args(&["cufile", "staged"], false).sweep().ways.len(), 6);
    }

    #[test]
    fn words_have_their_meaning_or_say_which_there_are() {
        assert_eq!(
            (rw("randwrite"), way("uring"), way("all")),
            (Ok(Rw::RandWrite), Ok(Ways::One(Way::Uring)), Ok(Ways::All))
        );
        assert!(rw("readwrite").unwrap_err().contains("randread"));
        assert!(way("compat").unwrap_err().contains("cufile") && way("x").unwrap_err().contains("uring-buffered"));
        assert!(parallel("0").is_err() && parallel("1025").is_err() && parallel("64") == Ok(64));
        assert!(svg("a.png").is_err() && svg("a.SVG").is_ok());
        assert!(ratio("0.97") == Ok(0.97) && ratio("nan").is_err() && ratio("-1").is_err());
    }
}
