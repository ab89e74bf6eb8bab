//! The figures for people: a line per point, printed once the point has been measured, with a bar
//! beside the rate. The length of a bar is relative to the highest rate so far, so earlier bars may
//! turn out too long. Only the figures redraw all of them relative to the overall highest.

use std::io::{self, Write};
use std::path::Path;

use onehop_engine::units;
use onehop_lab::bench::io::compare::Comparison;
use onehop_lab::bench::io::{Measured, Point, Report};

use super::super::output;
use super::Environment;
use crate::args::IoArgs;
use crate::doctor::storage;
use crate::exit::Stop;
use crate::terminal::Terminal;

/// The width of a full bar, in characters.
const BAR: usize = 12;
/// The width of the whole table, in columns.
const WIDE: usize = 210;

/// The output of lines.
pub struct Table {
    /// True if nothing is printed, because a machine-readable report is.
    is_quiet: bool,
    /// True for all columns, false for those that fit a terminal.
    is_wide: bool,
}

impl Table {
    /// Creates a table for this command and this terminal.
    pub fn new(args: &IoArgs, terminal: &Terminal) -> Self {
        Self { is_quiet: args.reports.is_quiet(), is_wide: terminal.stdout_width().is_none_or(|width| width >= WIDE) }
    }

    /// Returns a short name of a point.
    pub fn name(point: &Point) -> String {
        let Point { rw, way, block_bytes, depth, jobs } = point;
        format!("{rw} {} {way} x{depth}, {}", block(*block_bytes), units::plural(*jobs as u64, "job"))
    }

    /// Prints the subject and settings of the measurement.
    pub fn head(&self, report: &Report, environment: &Environment, gpu: Option<String>) -> Result<(), Stop> {
        if self.is_quiet {
            return Ok(());
        }
        let settings = &report.settings;
        let time = |seconds| units::time(std::time::Duration::from_secs_f64(seconds));
        let runs = match settings.repeats {
            1 => "1 of each point".to_string(),
            n => format!("{n} of each point; the one with the median rate is shown"),
        };
        let checked = if settings.verify { "every byte is compared" } else { "not compared; --verify does" };
        let mut lines = vec![
            ("file", format!("{}, {}, seed {}", settings.file, units::memory(settings.file_bytes), settings.seed)),
            (
                "runs",
                format!("{runs}, {} after a ramp of {}", time(settings.runtime_seconds), time(settings.ramp_seconds)),
            ),
            ("content", checked.to_string()),
            (
                "cache",
                "host, uring, staged: bypassed (O_DIRECT); others: forgets the file before each run of reads".into(),
            ),
        ];
        lines.extend(environment.lines().into_iter().map(|(name, value)| match name {
            "storage" => (name, storage_line(Path::new(&settings.file), &value, report)),
            _ => (name, value),
        }));
        lines.extend(gpu.map(|gpu| ("gpu", gpu)));
        writeln!(io::stdout().lock(), "{}\n{}", output::head(&lines), self.header())?;
        Ok(())
    }

    fn header(&self) -> String {
        let front = format!(
            "{:<9} {:<18} {:<12} {:>9} {:>5} {:>4} {:>9} {:<BAR$} {:>9}",
            "rw", "path", "effective", "block", "depth", "jobs", "MB/s", "", "IO/s"
        );
        let latency = match self.is_wide {
            true => format!("{:>9} {:>9} {:>9} {:>9} {:>9} {:>9}", "mean", "p50", "p95", "p99", "p99.9", "max"),
            false => format!("{:>9} {:>9}", "p50", "p99"),
        };
        let cost = match self.is_wide {
            true => format!("{:>11}  {:>14}  {:>9} {:>7}", "process u/s", "machine u/s/w", "device", "spread"),
            false => format!("{:>11}", "process u/s"),
        };
        format!("{front} {latency} {cost}  notes")
    }

    /// Prints the last measured point.
    pub fn line(&self, all: &[Measured]) -> Result<(), Stop> {
        let (false, Some(measured)) = (self.is_quiet, all.last()) else { return Ok(()) };
        let highest = all.iter().map(Measured::bytes_per_sec).fold(0.0, f64::max);
        writeln!(io::stdout().lock(), "{}", self.text(measured, highest))?;
        Ok(())
    }

    fn text(&self, measured: &Measured, highest: f64) -> String {
        let figures = &measured.figures;
        let Point { rw, way, block_bytes, depth, jobs } = figures.point;
        let (latency, usage) = (&figures.latency, &figures.usage);
        let front = format!(
            "{rw:<9} {way:<18} {:<12} {:>9} {depth:>5} {jobs:>4} {:>9} {:<BAR$} {:>9}",
            figures.path,
            block(block_bytes),
            rate(figures.bytes_per_sec / 1e6),
            bar(figures.bytes_per_sec, highest),
            rate(figures.ops_per_sec),
        );
        let latency = match self.is_wide {
            true => [latency.mean_us, latency.p50_us, latency.p95_us, latency.p99_us, latency.p999_us, latency.max_us]
                .map(|us| format!("{:>9}", time(us)))
                .join(" "),
            false => [latency.p50_us, latency.p99_us].map(|us| format!("{:>9}", time(us))).join(" "),
        };
        let process = format!("{:.2}/{:.2}", usage.process_user_cores, usage.process_system_cores);
        let percent = |share: Option<f64>| share.map_or("?".to_string(), |share| format!("{:.0}", share * 100.0));
        let cost = match self.is_wide {
            true => {
                let machine = [usage.machine_user_share, usage.machine_system_share, usage.machine_iowait_share];
                let machine = machine.map(percent).join("/") + " %";
                let device = measured.device_bytes().map_or("?".to_string(), units::bytes);
                let spread = measured.spread().map_or("-".to_string(), |spread| format!("{:.1} %", spread * 100.0));
                format!("{process:>11}  {machine:>14}  {device:>9} {spread:>7}")
            }
            false => format!("{process:>11}"),
        };
        let mut notes = measured.notes.clone();
        if figures.verified_bytes > 0 {
            notes.insert(0, format!("{} verified", units::bytes(figures.verified_bytes)));
        }
        format!("{front} {latency} {cost}  {}", notes.join("; ")).trim_end().to_string()
    }

    /// Prints a point that could not be measured.
    pub fn missing(&self, point: &Point, reason: &str) -> Result<(), Stop> {
        if !self.is_quiet {
            let Point { rw, way, block_bytes, depth, jobs } = point;
            let block = block(*block_bytes);
            writeln!(
                io::stdout().lock(),
                "{rw:<9} {way:<18} {:<12} {block:>9} {depth:>5} {jobs:>4}  not to be had: {reason}",
                "none"
            )?;
        }
        Ok(())
    }

    /// Prints a short legend of the columns.
    pub fn foot(&self, report: &Report) -> Result<(), Stop> {
        if self.is_quiet || report.points.is_empty() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        writeln!(out, "\nMB are 1,000,000 bytes. process u/s: processors in its own code and in the kernel.")?;
        if self.is_wide {
            writeln!(
                out,
                "machine u/s/w: user, system, waiting for storage, of all processors. device: bytes it moved."
            )?;
        }
        Ok(())
    }
}

/// Describes the file system with its options, and the disk.
fn storage_line(file: &Path, known: &str, report: &Report) -> String {
    let mut line = storage::mount_under(file).map_or(known.to_string(), |mount| mount.to_string());
    let device = &report.environment["device"];
    for name in ["name", "model", "scheduler"] {
        if let Some(value) = device[name].as_str() {
            line += &format!(", {name} {value}");
        }
    }
    line.replace(", name ", ", disk ")
}

/// Prints two runs, point by point.
pub fn comparison(comparison: &Comparison, base: &Report, now: &Report, terminal: &Terminal) -> Result<(), Stop> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "\n{:<9} {:<18} {:>9} {:>5} {:>4} {:>11} {:>11} {:>7} {:>7} {:>7}",
        "rw", "path", "block", "depth", "jobs", "before MB/s", "MB/s", "rate", "p50", "p99"
    )?;
    for point in &comparison.points {
        let Point { rw, way, block_bytes, depth, jobs } = point.point;
        let (then, now) = (rate(point.base_bytes_per_sec / 1e6), rate(point.bytes_per_sec / 1e6));
        writeln!(
            out,
            "{rw:<9} {way:<18} {:>9} {depth:>5} {jobs:>4} {then:>11} {now:>11} {:>7.3} {:>7.3} {:>7.3}",
            block(block_bytes),
            point.rate,
            point.p50,
            point.p99
        )?;
    }
    if let Some(mean) = comparison.geometric_mean() {
        writeln!(out, "{:>71} {mean:>7.3}  geometric mean; above 1 is better than before", "")?;
    }
    if comparison.unmatched > 0 {
        writeln!(out, "{} in only one of the two runs", units::plural(comparison.unmatched as u64, "point"))?;
    }
    for name in ["cpu", "cores", "kernel", "file_system", "mount_options", "build_profile"] {
        let (then, now) = (&base.environment[name], &now.environment[name]);
        if then != now {
            let line = format!("the two runs differ in {name}: {then} before, {now} now");
            writeln!(
                out,
                "{}",
                if terminal.stdout_color() { crate::terminal::Paint::Yellow.apply(line) } else { line }
            )?;
        }
    }
    Ok(())
}

/// Formats a block size: `4 KiB`.
fn block(bytes: usize) -> String {
    match bytes {
        b if b.is_multiple_of(1 << 30) => format!("{} GiB", b >> 30),
        b if b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

/// Formats a rate: an integer with thousands separators, or three digits.
fn rate(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => units::count(v.round() as u64),
    }
}

/// Formats a time: `12.3 us`, `4.56 ms`.
fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 999.5 => (us, "us"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

fn bar(value: f64, highest: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = if highest > 0.0 { (value / highest * (BAR * 8) as f64).round() as usize } else { 0 };
    let eighths = eighths.min(BAR * 8);
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_own_scale() {
        assert_eq!(
            [block(4096), block(1 << 20), block(3 << 30), block(1536 << 10)],
            ["4 KiB", "1 MiB", "3 GiB", "1536 KiB"]
        );
        assert_eq!([rate(0.5), rate(12.34), rate(1234.5), rate(1e6)], ["0.50", "12.3", "1,235", "1,000,000"]);
        assert_eq!([time(0.8), time(12.34), time(999.7), time(2.5e6)], ["0.80 us", "12.3 us", "1.00 ms", "2.50 s"]);
    }

    #[test]
    fn bars_are_as_long_as_rates_are_high() {
        assert_eq!(bar(1.0, 1.0), "█".repeat(BAR));
        assert_eq!(bar(0.5, 1.0), "█".repeat(BAR / 2));
        assert_eq!((bar(0.0, 1.0), bar(0.0, 0.0)), (String::new(), String::new()));
        assert_eq!(bar(1.0 / 96.0, 1.0), "▏");
    }
}
