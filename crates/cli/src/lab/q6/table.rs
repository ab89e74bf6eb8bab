//! The figures for people: a line per point, printed once the point has been measured. The length
//! of its bar is relative to the longest time so far, and its shades show the parts of the time.

use std::io::{self, Write};

use onehop_engine::units;
use onehop_lab::bench::q6::answer::Source;
use onehop_lab::bench::q6::report::Unavailable;
use onehop_lab::bench::q6::{Gpu, Measured, Point, Report};

use super::super::output;
use super::Environment;
use crate::args::Q6Args;
use crate::exit::Stop;
use crate::terminal::Terminal;

/// The width of a full bar, in characters.
const BAR: usize = 24;
/// The shades of a bar: I/O, transfer, compute, other.
const SHADES: [&str; 4] = ["█", "▓", "▒", "░"];
/// The width of the whole table, in columns.
const WIDE: usize = 170;

/// The output of lines.
pub struct Table {
    /// True if nothing is printed, because a machine-readable report is.
    is_quiet: bool,
    /// True for all columns, false for those that fit a terminal.
    is_wide: bool,
}

impl Table {
    /// Creates a table for this command and this terminal.
    pub fn new(args: &Q6Args, terminal: &Terminal) -> Self {
        Self { is_quiet: args.reports.is_quiet(), is_wide: terminal.stdout_width().is_none_or(|width| width >= WIDE) }
    }

    /// Returns a short name of a point.
    pub fn name(point: &Point) -> String {
        let Point { layout, mode, way, buffer_bytes } = point;
        format!("{layout} {mode} {way} {}", size(*buffer_bytes))
    }

    /// Prints the subject and settings of the measurement.
    pub fn head(&self, report: &Report, environment: &Environment, gpu: Result<&Gpu, &str>) -> Result<(), Stop> {
        if self.is_quiet {
            return Ok(());
        }
        let settings = &report.settings;
        let runs = match settings.runs {
            1 => "1 of each point".to_string(),
            n => format!("{n} of each point; the one with the median time is shown"),
        };
        let by = match settings.expected_by {
            Source::DuckDb => "DuckDB's",
            Source::Rows => "of a loop over the generator's rows",
        };
        let mut lines = vec![
            ("query", "TPC-H Query 6".to_string()),
            ("data", format!("{}, SF {}, {} rows", settings.data, settings.scale_factor, units::count(settings.rows))),
            ("answer", format!("{}, {by}; a run with another has no time", settings.expected_answer)),
            ("runs", format!("{runs}, after one of each path, layout and mode that warms up")),
            ("cache", "bypassed (O_DIRECT) where the file system has that; dropped before each run".into()),
            (
                "overlap",
                format!(
                    "{}, {} reads in flight at most",
                    units::plural(settings.threads as u64, "thread"),
                    settings.depth
                ),
            ),
        ];
        lines.push((
            "gpu",
            match gpu {
                Ok(gpu) => {
                    let threads = match settings.paper_device_threads.as_str() {
                        "one" => "kernels of one thread in paper mode",
                        _ => "kernels of many threads in both modes",
                    };
                    format!("{}, {threads}", gpu.context.device().name)
                }
                Err(why) => why.to_string(),
            },
        ));
        lines.extend(environment.lines());
        writeln!(io::stdout().lock(), "{}\n{}", output::head(&lines), self.header())?;
        Ok(())
    }

    fn header(&self) -> String {
        let front = format!(
            "{:<8} {:<10} {:<12} {:>8} {:>9} {:<BAR$} {:>8}",
            "layout", "mode", "path", "buffer", "time", "", "MB/s"
        );
        let parts = format!("{:>9} {:>9} {:>9} {:>9}", "I/O", "transfer", "compute", "other");
        match self.is_wide {
            true => format!("{front} {parts} {:>9} {:>11} {:>7}  notes", "kernels", "process u/s", "spread"),
            false => format!("{front} {parts}"),
        }
    }

    /// Prints the last measured point.
    pub fn line(&self, all: &[Measured]) -> Result<(), Stop> {
        let (false, Some(measured)) = (self.is_quiet, all.last()) else { return Ok(()) };
        let same =
            all.iter().filter(|one| (one.point.layout, one.point.mode) == (measured.point.layout, measured.point.mode));
        let longest = same.filter_map(|one| Some(one.figures.as_ref()?.seconds)).fold(0.0, f64::max);
        writeln!(io::stdout().lock(), "{}", self.text(measured, longest))?;
        Ok(())
    }

    fn text(&self, measured: &Measured, longest: f64) -> String {
        let front = front(&measured.point);
        let notes = measured.notes.join("; ");
        let Some(figures) = &measured.figures else { return format!("{front} {:>9}  {notes}", "-") };
        let spent = &figures.spent;
        let parts = [spent.io_seconds, spent.transfer_seconds, spent.compute_seconds, spent.other_seconds];
        let line = format!(
            "{front} {:>9} {} {:>8} {}",
            time(figures.seconds),
            bar(parts, longest),
            units::count((figures.bytes_per_sec / 1e6).round() as u64),
            parts.map(|seconds| format!("{:>9}", time(seconds))).join(" "),
        );
        if !self.is_wide {
            return line;
        }
        let usage = &figures.usage;
        let kernels = figures.kernel_seconds.map_or("-".into(), time);
        let process = format!("{:.2}/{:.2}", usage.process_user_cores, usage.process_system_cores);
        let spread = measured.spread().map_or("-".to_string(), |spread| format!("{:.1} %", spread * 100.0));
        let notes = if notes.is_empty() {
            figures.effective_path.clone()
        } else {
            format!("{}; {notes}", figures.effective_path)
        };
        format!("{line} {kernels:>9} {process:>11} {spread:>7}  {notes}")
    }

    /// Prints a point that could not be measured, once for all buffer sizes.
    pub fn missing(&self, point: &Point, reason: &str, before: &[Unavailable]) -> Result<(), Stop> {
        let same = |one: &Unavailable| {
            (one.point.layout, one.point.mode, one.point.way) == (point.layout, point.mode, point.way)
                && one.reason == reason
        };
        if !self.is_quiet && !before.iter().any(same) {
            let Point { layout, mode, way, .. } = point;
            writeln!(io::stdout().lock(), "{layout:<8} {mode:<10} {way:<12} not to be had: {reason}")?;
        }
        Ok(())
    }

    /// Prints a short legend of the columns.
    pub fn foot(&self, report: &Report) -> Result<(), Stop> {
        if self.is_quiet || report.points.is_empty() {
            return Ok(());
        }
        let [io, transfer, compute, other] = SHADES;
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "\n{io} I/O  {transfer} transfer  {compute} compute  {other} other: of the threads that compute; in overlapped mode \
             I/O is waiting for it. MB are 1,000,000 bytes."
        )?;
        if self.is_wide {
            writeln!(out, "kernels: by events on the GPU. process u/s: processors in its own code and in the kernel.")?;
        }
        Ok(())
    }
}

fn front(point: &Point) -> String {
    let Point { layout, mode, way, buffer_bytes } = point;
    format!("{layout:<8} {mode:<10} {way:<12} {:>8}", size(*buffer_bytes))
}

fn size(bytes: usize) -> String {
    match bytes {
        b if b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

/// Formats a time: `12.3 ms`, `4.56 s`.
fn time(seconds: f64) -> String {
    let (value, unit) = if seconds < 0.9995 { (seconds * 1e3, "ms") } else { (seconds, "s") };
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

/// Draws a bar whose length is the sum relative to the longest. The end of each part is rounded, so
/// that the bar never exceeds that length.
fn bar(parts: [f64; 4], longest: f64) -> String {
    let (mut text, mut end, mut drawn) = (String::new(), 0.0, 0);
    for (seconds, shade) in parts.iter().zip(SHADES) {
        end += seconds;
        let letters = if longest > 0.0 { (end / longest * BAR as f64).round() as usize } else { 0 }.min(BAR);
        text += &shade.repeat(letters.saturating_sub(drawn));
        drawn = letters.max(drawn);
    }
    text + &" ".repeat(BAR - drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_drawn_of_what_the_time_was_spent_on() {
        assert_eq!(bar([1.0, 0.0, 1.0, 0.0], 2.0), "█".repeat(12) + &"▒".repeat(12));
        assert_eq!(bar([0.5, 0.5, 0.5, 0.5], 4.0), "███▓▓▓▒▒▒░░░            ");
        assert_eq!(bar([0.0; 4], 0.0), " ".repeat(BAR));
        assert_eq!(bar([5.0, 5.0, 5.0, 5.0], 10.0).chars().count(), BAR);
    }

    #[test]
    fn figures_have_their_own_scale() {
        assert_eq!([time(0.00123), time(0.0123), time(0.9), time(2.5)], ["1.23 ms", "12.3 ms", "900 ms", "2.50 s"]);
        assert_eq!([size(65_536), size(64 << 20), size(1_000_448)], ["64 KiB", "64 MiB", "977 KiB"]);
    }
}
