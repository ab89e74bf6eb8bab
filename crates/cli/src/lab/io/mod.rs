//! `onehop bench io`: the rates of the paths between a file and memory, point by point.
//!
//! 1. Arguments are validated before anything is created.
//! 2. The file is written, or found as an earlier run with `--keep` has left it.
//! 3. Each point is measured and printed at once. A point that the machine or the file system does
//!    not support is reported as missing. It fails the command only if the user named its path.
//! 4. Reports, figures and the comparison cover all points. The file is removed with [`Made`],
//!    regardless of the outcome.

mod environment;
mod table;

use std::cell::RefCell;
use std::fs;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onehop_engine::{Error, ErrorKind, Progress, units};
use onehop_io::Operation;
use onehop_lab::bench::io::compare::Comparison;
use onehop_lab::bench::io::report::{Settings, Unavailable};
use onehop_lab::bench::io::{
    BenchFile, EffectivePath, Effort, Files, Gpu, Measured, Point, Report, fio, gdsio, plot, repeat,
};

use super::environment::Environment;
use super::listen_for_interrupt;
use super::output::{warn_of_debug_build, write_reports};
use crate::args::{Emit, IoArgs};
use crate::doctor::{gpu, memory};
use crate::exit::Stop;
use crate::progress::{Bar, Meter};
use crate::terminal::{Terminal, note};
use table::Table;

/// The name of the file in a given folder.
const FILE_NAME: &str = "onehop-bench-io";

/// Set by Ctrl-C. One benchmark runs per process.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// The files of a run. Dropping it removes the file that this run created, unless the user keeps
/// it.
struct Made {
    files: Files,
    keep: bool,
}

impl Drop for Made {
    fn drop(&mut self) {
        let file = self.files.first();
        if file.is_new() && !self.keep {
            file.remove();
        }
    }
}

/// Measures, or compares earlier measurements.
pub fn run(args: &IoArgs, terminal: &Terminal) -> Result<(), Stop> {
    let base = args.compare.first().map(|path| read_report(path)).transpose()?;
    let now = args.compare.get(1).map(|path| read_report(path)).transpose()?;
    match (&args.paths[..], base, now) {
        ([], Some(base), Some(now)) => compare(args, &base, &now, terminal),
        ([_, ..], _, Some(_)) => Err(Stop::Usage(
            "--compare: two files are compared with each other and nothing is measured: leave out PATH".into(),
        )),
        ([], ..) => Err(Stop::Usage("name a file or a folder to measure on, or two files to --compare".into())),
        ([path, more @ ..], base, None) => {
            let report = measure(args, &file_path(path), more, terminal)?;
            match (base, report) {
                (Some(base), Some(report)) => compare(args, &base, &report, terminal),
                _ => Ok(()),
            }
        }
    }
}

fn file_path(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(FILE_NAME) } else { path.to_path_buf() }
}

/// Measures all points. Returns `None` if there was nothing to measure.
fn measure(args: &IoArgs, path: &Path, more: &[PathBuf], terminal: &Terminal) -> Result<Option<Report>, Stop> {
    let points = args.sweep().points();
    let effort =
        Effort { runtime: args.runtime, ramp: args.ramp, seed: args.seed, verify: args.verify, touch: args.touch };
    check_sizes(args, &points, more.is_empty().then_some(path))?;
    if !more.is_empty() && (args.emit.is_some() || args.verify || points.iter().any(|point| point.rw.writes())) {
        let why = "several files are read and nothing else: no writes, no --verify, no --emit";
        return Err(Stop::Usage(format!("{} and {} more: {why}", path.display(), more.len())));
    }
    if let Some(program) = args.emit {
        return emit(args, program, &points, &effort, path).map(|()| None);
    }
    let _listening = listen_for_interrupt(&CANCEL)?;

    let began = Instant::now();
    let bar = Bars { meter: RefCell::new(Meter::new(if terminal.stderr { Bar::Allowed } else { Bar::Off })), began };
    let made = Made { files: find_files(args, path, more, &bar)?, keep: args.keep };
    let environment = Environment::find(path);
    let gpu = open_gpu(args, &points);
    let of_gpu = gpu.as_ref().ok();
    let about = environment::json(&environment, path, made.files.first(), of_gpu);
    let mut report = Report::new(settings(args, &made.files), about);
    warn_of_debug_build("processor times", terminal);
    let table = Table::new(args, terminal);
    table.head(&report, &environment, of_gpu.map(environment::gpu_line))?;
    let each = (effort.ramp + effort.runtime) * args.repeat as u32;
    for (number, point) in points.iter().enumerate() {
        let at = Progress { done: number as u64, total: points.len() as u64 };
        let left = each * (points.len() - number) as u32;
        let mut watch = || bar.show(at, || format!("{} · about {} left", Table::name(point), coarse(left)));
        match repeat(&made.files, &gpu, *point, &effort, args.repeat, &mut watch) {
            Ok(Some(measured)) => {
                report.points.push(measured);
                bar.aside(|| table.line(&report.points))?;
            }
            Ok(None) => return Err(Stop::Interrupted(began.elapsed())),
            // The file exists and has been written, so that only the path can fail to open.
            Err(e) if e.operation == Operation::Open => {
                let reason = e.source.to_string();
                bar.aside(|| table.missing(point, &reason))?;
                report.unavailable.push(Unavailable { point: *point, reason });
            }
            Err(e) => return Err(failed_on(made.files.first(), &e)),
        }
    }
    drop(bar);
    table.foot(&report)?;
    let plot = args.plot.as_deref();
    write_reports(&args.reports, plot, || report.json(), || report.csv(), || plot::svg(&report))?;
    if args.keep {
        note(format!("kept {}", made.files.first().path().display()));
    }
    drop(made);
    check_direct(args, &report)?;
    match report.unavailable.iter().find(|missing| args.is_named(missing.point.way)) {
        Some(missing) => {
            let message = format!("the path {} is not to be had here: {}", missing.point.way, missing.reason);
            Err(Error::new(ErrorKind::Io, message).with_hint("`onehop doctor PATH` says what there is").into())
        }
        None => Ok(Some(report)),
    }
}

/// Opens the GPU, if there are points for it.
fn open_gpu(args: &IoArgs, points: &[Point]) -> Result<Gpu, String> {
    match points.iter().any(|point| point.way.is_device()) {
        true => gpu::open(args.gpu).map(Gpu::new),
        false => Err("no path to a GPU was asked for".into()),
    }
}

/// Fails if a point that must be direct was not.
fn check_direct(args: &IoArgs, report: &Report) -> Result<(), Stop> {
    let missing = report.unavailable.iter().find(|missing| args.must_be_direct(missing.point.way));
    if let Some(missing) = missing {
        let Unavailable { point, reason } = missing;
        return Err(Stop::Unmet(format!("{} was to be direct, and is not to be had here: {reason}", point.way)));
    }
    let is_other = |measured: &&Measured| {
        args.must_be_direct(measured.figures.point.way) && measured.figures.path != EffectivePath::Direct
    };
    let others: Vec<&Measured> = report.points.iter().filter(is_other).collect();
    let Some(first) = others.first() else { return Ok(()) };
    let (figures, count) = (&first.figures, units::plural(others.len() as u64, "point"));
    let evidence = figures.evidence.as_deref().unwrap_or("not counted");
    Err(Stop::Unmet(format!(
        "{count} had to be direct and went by another way: {} was {} ({evidence})",
        figures.point.way, figures.path
    )))
}

/// Refuses impossible sizes before a file is created. `made` is the path of that file.
fn check_sizes(args: &IoArgs, points: &[Point], made: Option<&Path>) -> Result<(), Stop> {
    if args.require_direct && !points.iter().any(|point| point.way.is_cufile()) {
        return Err(Stop::Usage(
            "--require-direct is about paths of cuFile's, and there are none: --path cufile".into(),
        ));
    }
    let most = |of: fn(&Point) -> u64| points.iter().map(of).max().unwrap_or(0);
    let needed = most(|point| (point.block_bytes * if point.rw.is_random() { 1 } else { point.jobs }) as u64);
    if made.is_some() && needed > args.size {
        let (size, needed) = (units::memory(args.size), units::memory(needed));
        return Err(Stop::Usage(format!("--size {size} is too small: a block for each job takes {needed}")));
    }
    // The driver accounts for the device's memory.
    let buffers = most(|point| match point.way.is_device() {
        true => (point.block_bytes * point.jobs) as u64,
        false => (point.block_bytes * point.depth * point.jobs) as u64,
    });
    if let Some(memory) = memory::total_bytes().filter(|memory| buffers > memory / 2) {
        let (buffers, memory) = (units::memory(buffers), units::memory(memory));
        return Err(Stop::Usage(format!(
            "--bs times --iodepth times --numjobs is {buffers} of buffers, and this machine has {memory} of memory: at \
             most half of it may be used"
        )));
    }
    let Some(path) = made else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The space of an earlier run's file is reused.
    let has = fs::metadata(path).map_or(0, |found| found.blocks().saturating_mul(512));
    match rustix::fs::statvfs(folder) {
        Ok(stat) if (stat.f_bavail * stat.f_frsize).saturating_add(has) < args.size => Err(Stop::Usage(format!(
            "{} has room for {}, and --size is {}",
            folder.display(),
            units::memory((stat.f_bavail * stat.f_frsize).saturating_add(has)),
            units::memory(args.size)
        ))),
        // If the free space is unknown, the creation of the file will report an error.
        _ => Ok(()),
    }
}

/// Returns the file to measure on, created if necessary, and the files to read after it.
fn find_files(args: &IoArgs, path: &Path, more: &[PathBuf], bar: &Bars) -> Result<Files, Stop> {
    let first = to_be_read(args, path)?;
    if first.is_none() && more.is_empty() {
        return lay_out(args, path, bar).map(Files::from);
    }
    let of_several = |path: &Path, file: Option<BenchFile>| {
        let why = "it is not there, or was made by this benchmark: several files are read that something else made";
        file.ok_or_else(|| Stop::Usage(format!("{}: {why}", path.display())))
    };
    let mut files = Files::from(of_several(path, first)?);
    for path in more {
        files.push(of_several(path, to_be_read(args, path)?)?);
    }
    check_length(args, &files)?;
    Ok(files)
}

fn lay_out(args: &IoArgs, path: &Path, bar: &Bars) -> Result<BenchFile, Stop> {
    let progress = |done| {
        let at = Progress { done, total: args.size };
        bar.show(at, || {
            format!("laying out {}, {} of {}", path.display(), units::memory(done), units::memory(args.size))
        })
    };
    match BenchFile::prepare(path, args.size, args.seed, progress) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => Err(Stop::Interrupted(bar.began.elapsed())),
        Err(e) => Err(failed(&e)),
    }
}

/// Returns a file that another program made, if it is only read: as it is, and all of it.
fn to_be_read(args: &IoArgs, path: &Path) -> Result<Option<BenchFile>, Stop> {
    let points = args.sweep().points();
    if args.verify || points.iter().any(|point| point.rw.writes()) {
        return Ok(None);
    }
    BenchFile::of_others(path).map_err(|e| failed(&e))
}

/// Fails if foreign files have no block for each job.
fn check_length(args: &IoArgs, files: &Files) -> Result<(), Stop> {
    for point in args.sweep().points() {
        let (block, jobs) = (point.block_bytes as u64, if point.rw.is_random() { 1 } else { point.jobs as u64 });
        // The bytes after the last whole block of each file are not read.
        let blocks: u64 = files.iter().map(|file| file.bytes() / block).sum();
        if blocks < jobs {
            let (name, size, needed) = (files.name(), units::memory(files.bytes()), units::memory(block * jobs));
            let short = if files.count() == 1 { "is too short: it has" } else { "are too short: they have" };
            return Err(Stop::Usage(format!("{name} {short} {size}, and a block for each job takes {needed}")));
        }
    }
    Ok(())
}

/// The progress bar, and the check for Ctrl-C.
struct Bars {
    meter: RefCell<Meter>,
    began: Instant,
}

impl Bars {
    fn show(&self, at: Progress, message: impl FnOnce() -> String) -> ControlFlow<()> {
        self.meter.borrow_mut().show(at, self.began.elapsed(), message);
        if CANCEL.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.meter.borrow().aside(work)
    }
}

fn coarse(time: Duration) -> String {
    units::time(Duration::from_secs(time.as_secs().max(1)))
}

/// Like [`failed`], for a measured file. Another program may have written to a kept file since.
fn failed_on(file: &BenchFile, e: &onehop_io::Error) -> Stop {
    match failed(e) {
        Stop::Engine(error) if error.kind() == ErrorKind::Corrupt && !file.is_new() => error
            .with_hint(
                "the file was kept by an earlier run: if something else has written to it since, as fio does for a write, \
                 remove it, or give another --seed to have it laid out again",
            )
            .into(),
        stop => stop,
    }
}

/// Converts an error. Damaged content is an engine error, everything else a system error.
fn failed(e: &onehop_io::Error) -> Stop {
    let kind = match e.source.kind() {
        io::ErrorKind::InvalidData => ErrorKind::Corrupt,
        io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
        _ => ErrorKind::Io,
    };
    Error::new(kind, e.to_string()).into()
}

fn settings(args: &IoArgs, files: &Files) -> Settings {
    Settings {
        file: files.name(),
        file_bytes: files.bytes(),
        runtime_seconds: args.runtime.as_secs_f64(),
        ramp_seconds: args.ramp.as_secs_f64(),
        repeats: args.repeat,
        seed: args.seed,
        verify: args.verify,
        touch: args.touch,
    }
}

fn read_report(path: &Path) -> Result<Report, Stop> {
    let text = fs::read_to_string(path).map_err(|e| Stop::System(format!("cannot read {}", path.display()), e))?;
    Report::parse(&text).map_err(|why| Stop::Usage(format!("--compare {}: {why}", path.display())))
}

fn compare(args: &IoArgs, base: &Report, now: &Report, terminal: &Terminal) -> Result<(), Stop> {
    let comparison = Comparison::of(base, now);
    if !args.reports.is_quiet() {
        table::comparison(&comparison, base, now, terminal)?;
    }
    let Some(limit) = args.fail_under else { return Ok(()) };
    let message = match comparison.lowest() {
        Some(lowest) if lowest >= limit => return Ok(()),
        Some(_) => {
            let below = comparison.points.iter().filter(|point| point.rate < limit).count() as u64;
            format!("{} below {limit} of the rate before", units::plural(below, "point"))
        }
        None => "the two runs have no point in common".into(),
    };
    Err(Error::new(ErrorKind::Invalid, message).into())
}

fn emit(args: &IoArgs, program: Emit, points: &[Point], effort: &Effort, path: &Path) -> Result<(), Stop> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut out = io::stdout().lock();
    if !path.exists() {
        writeln!(
            out,
            "# {} lays out no file here. One that both can use is made by: onehop bench io {} --keep",
            if program == Emit::Fio { "fio" } else { "gdsio" },
            path.display()
        )?;
    }
    for point in points {
        let words = match program {
            Emit::Fio => fio::command(point, effort, &path, args.size),
            Emit::Gdsio => gdsio::command(point, effort, &path, args.size, args.gpu),
        };
        match words {
            Ok(words) => writeln!(out, "{}", fio::shell_line(&words))?,
            Err(why) => writeln!(out, "# {}: {why}", Table::name(point))?,
        }
    }
    Ok(())
}
