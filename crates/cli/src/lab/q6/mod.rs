//! `onehop bench q6`: TPC-H Query 6 by every split of bytes and work between processor and GPU.
//!
//! 1. Arguments are validated before anything is created, and the available paths are detected.
//! 2. The tables are created, or found as an earlier run with `--keep` has left them. The expected
//!    answer is looked up.
//! 3. Each path runs once to warm up, and then as often as requested for each buffer size. A path
//!    that the machine does not support is reported as missing. It fails the command only if the
//!    user named it.
//! 4. Reports and figures cover all points. Tables that this run created are removed with [`Made`],
//!    regardless of the outcome.

mod table;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use onehop_cuda::cufile::Counting;
use onehop_cuda::kernels::q6::{Q6, Threads};
use onehop_cuda::{Cufile, Nvrtc};
use onehop_engine::{Error, ErrorKind, Progress, units};
use onehop_lab::bench::q6::answer::{self, Expected};
use onehop_lab::bench::q6::prepare::{Folder, Step};
use onehop_lab::bench::q6::report::{Settings, Unavailable};
use onehop_lab::bench::q6::rows::RowFile;
use onehop_lab::bench::q6::segments::Segments;
use onehop_lab::bench::q6::{self, Flight, Gpu, Layout, Measured, Options, Plan, Point, Report, Way, plot};
use serde_json::json;

use super::environment::Environment;
use super::listen_for_interrupt;
use super::output::{warn_of_debug_build, write_reports};
use crate::args::{CufileFlight, DeviceThreads, Q6Args, Suite};
use crate::doctor::{gpu as probe, storage};
use crate::exit::Stop;
use crate::progress::{Bar, Meter};
use crate::settings;
use crate::terminal::{Terminal, note};
use table::Table;

/// The approximate sizes of a row in each layout, in bytes.
const ROW_BYTES: f64 = 124.0;
const SEGMENT_ROW_BYTES: f64 = 6.5;

/// Set by Ctrl-C. One benchmark runs per process.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// The tables of a run. Dropping it removes them if this run created their folder, unless the user
/// keeps them.
struct Made {
    folder: Folder,
    keep: bool,
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.folder.is_new() && !self.keep {
            self.folder.remove();
        }
    }
}

/// The measured data.
struct Data {
    segments: Option<Segments>,
    rows: Option<RowFile>,
}

impl Data {
    fn plan(&self, point: &Point) -> q6::Result<Option<Plan>> {
        match point.layout {
            Layout::Rows => Ok(self.rows.as_ref().map(|rows| Plan::of_rows(rows, point.buffer_bytes))),
            Layout::Segments => {
                self.segments.as_ref().map(|all| Plan::of_segments(all, point.buffer_bytes)).transpose()
            }
        }
    }

    fn row_count(&self) -> u64 {
        self.rows.as_ref().map(|rows| rows.rows).or(self.segments.as_ref().map(Segments::rows)).unwrap_or(0)
    }
}

/// Runs the benchmark.
pub fn run(args: &Q6Args, terminal: &Terminal) -> Result<(), Stop> {
    let points = args.points();
    let needs = |layout| points.iter().any(|point| point.layout == layout);
    check(args, needs(Layout::Segments), needs(Layout::Rows))?;
    let threads = settings::threads(&settings::effective(&threads_setting(args))?);
    let _listening = listen_for_interrupt(&CANCEL)?;
    let began = Instant::now();
    let bar = Bars { meter: Mutex::new(Meter::new(if terminal.stderr { Bar::Allowed } else { Bar::Off })), began };
    let stopped = |e: q6::Error| failed(e, began);

    let gpu = match points.iter().any(|point| point.way != Way::Cpu) {
        true => open_gpu(args.gpu),
        false => Err("it was not asked for".into()),
    };
    let folder = match (&args.path, needs(Layout::Rows) || args.db.is_none()) {
        (Some(path), true) => Some(Folder::open(path, args.sf).map_err(stopped)?),
        _ => None,
    };
    let made = folder.map(|folder| Made { folder, keep: args.keep });
    let data =
        prepare(args, made.as_ref(), (needs(Layout::Segments), needs(Layout::Rows)), threads, &bar).map_err(stopped)?;
    let expected = Expected::at(args.sf, threads, &CANCEL).map_err(stopped)?;

    let place =
        made.as_ref().map_or_else(|| args.db.clone().unwrap_or_default(), |made| made.folder.path().to_path_buf());
    let mut report =
        Report::new(describe(args, &place, &data, threads, expected), environment(&place, gpu.as_ref().ok()));
    warn_of_debug_build("times", terminal);
    let table = Table::new(args, terminal);
    table.head(&report, &Environment::find(&place), gpu.as_ref().map_err(String::as_str))?;
    let device_threads = match args.device_threads {
        DeviceThreads::One => Threads::One,
        DeviceThreads::Many => Threads::Many,
    };
    let cufile = match args.cufile {
        CufileFlight::Auto => Flight::Auto,
        CufileFlight::Batch => Flight::Batch,
        CufileFlight::Threads => Flight::Threads,
    };
    let bench = Bench {
        data: &data,
        gpu: gpu.as_ref().map_err(Clone::clone),
        options: Options { threads, depth: args.iodepth, device_threads, cufile },
        expected: expected.answer,
        runs: args.runs,
    };
    let mut warm = None;
    for (number, point) in points.iter().enumerate() {
        bar.show(number as u64, points.len() as u64, || Table::name(point));
        let is_warm = warm == Some((point.layout, point.mode, point.way));
        match bench.point(point, is_warm) {
            Ok(Some(measured)) => {
                warm = Some((point.layout, point.mode, point.way));
                report.points.push(measured);
                bar.aside(|| table.line(&report.points))?;
            }
            Ok(None) => {}
            Err(q6::Error::NotHere(reason)) => {
                bar.aside(|| table.missing(point, &reason, &report.unavailable))?;
                report.unavailable.push(Unavailable { point: *point, reason });
            }
            Err(e) => return Err(failed(e, began)),
        }
    }
    drop(bar);
    table.foot(&report)?;
    let plot = args.plot.as_deref();
    write_reports(&args.reports, plot, || report.json(), || report.csv(), || plot::svg(&report))?;
    if let Some(made) = made.as_ref().filter(|made| made.keep || !made.folder.is_new()) {
        note(format!("kept {}", made.folder.path().display()));
    }
    verdict(args, &report)
}

/// The context in which points are measured.
struct Bench<'a> {
    data: &'a Data,
    gpu: Result<&'a Gpu, String>,
    options: Options,
    expected: i128,
    runs: usize,
}

impl Bench<'_> {
    /// Measures a point. Returns `None` if there is nothing to measure.
    fn point(&self, point: &Point, is_warm: bool) -> q6::Result<Option<Measured>> {
        let gpu = match (point.way, &self.gpu) {
            (Way::Cpu, _) => None,
            (_, Ok(gpu)) => Some(*gpu),
            (_, Err(why)) => return Err(q6::Error::NotHere(why.clone())),
        };
        let Some(plan) = self.data.plan(point)? else { return Ok(None) };
        if let (true, Some(gpu)) = (point.way.has_kernel(), gpu) {
            gpu.can(point.way).map_err(q6::Error::NotHere)?;
            gpu.compile(&plan)?;
        }
        let run = || q6::run(&plan, point.mode, point.way, gpu, &self.options, &CANCEL);
        if !is_warm {
            run()?;
        }
        let mut all = Vec::new();
        for _ in 0..self.runs {
            all.push(run()?);
        }
        Ok(Measured::new(*point, self.expected, all))
    }
}

/// Refuses impossible sizes before a table is created.
fn check(args: &Q6Args, segments: bool, rows: bool) -> Result<(), Stop> {
    super::generate::check_scale(Suite::Tpch, args.sf)?;
    let Some(path) = &args.path else {
        return match rows {
            true => Err(Stop::Usage("--layout rows: name the folder that the pages are to be made in".into())),
            false => Ok(()),
        };
    };
    let is_there = path.join(format!("onehop-bench-q6-sf{}", args.sf)).exists();
    let rows_bytes = if rows { ROW_BYTES } else { 0.0 };
    let segments_bytes = if segments && args.db.is_none() { SEGMENT_ROW_BYTES } else { 0.0 };
    let needed = (6e6 * args.sf * (rows_bytes + segments_bytes)) as u64;
    match rustix::fs::statvfs(path) {
        Err(e) => Err(Stop::System(format!("cannot look at {}", path.display()), e.into())),
        Ok(stat) if !is_there && stat.f_bavail * stat.f_frsize < needed => Err(Stop::Usage(format!(
            "{} has room for {}, and the tables of scale factor {} take some {}",
            path.display(),
            units::memory(stat.f_bavail * stat.f_frsize),
            args.sf,
            units::memory(needed)
        ))),
        Ok(_) => Ok(()),
    }
}

fn threads_setting(args: &Q6Args) -> Vec<(String, String)> {
    args.threads.map(|n| ("threads".into(), n.to_string())).into_iter().collect()
}

/// Opens the GPU with its available libraries. Fails with the doctor's reason if there is none.
fn open_gpu(number: usize) -> Result<Gpu, String> {
    let context = probe::open(number)?;
    let with_cure = |e: onehop_cuda::Error| match e.cure() {
        Some(cure) => format!("{e}; {cure}"),
        None => e.to_string(),
    };
    let cufile = Cufile::open(&context, Counting::On).map_err(with_cure);
    let kernels = Nvrtc::load().and_then(|nvrtc| Q6::new(&context, &nvrtc)).map(Arc::new).map_err(with_cure);
    Ok(Gpu { context, cufile, kernels })
}

fn prepare(
    args: &Q6Args,
    made: Option<&Made>,
    (segments, rows): (bool, bool),
    threads: usize,
    bar: &Bars,
) -> q6::Result<Data> {
    let expected = (6e6 * args.sf) as u64;
    let progress = |step| match step {
        Step::Writing(layout, done) => bar.show(done, expected, || format!("writing lineitem as {layout}")),
        Step::Checking(done) => bar.show(done, 0, || format!("checking pages, {} so far", units::bytes(done))),
    };
    let segments = match (segments, &args.db, made) {
        (true, Some(db), _) => Some(Segments::of_database(db)?),
        (true, None, Some(made)) => Some(made.folder.segments(threads, &progress, &CANCEL)?),
        _ => None,
    };
    let rows = match (rows, made) {
        (true, Some(made)) => Some(made.folder.rows(threads, &progress, &CANCEL)?),
        _ => None,
    };
    Ok(Data { segments, rows })
}

/// The progress bar. Generators report their progress from several threads.
struct Bars {
    meter: Mutex<Meter>,
    began: Instant,
}

impl Bars {
    fn show(&self, done: u64, total: u64, message: impl FnOnce() -> String) {
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        meter.show(Progress { done, total }, self.began.elapsed(), message);
    }

    fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner).aside(work)
    }
}

fn describe(args: &Q6Args, place: &Path, data: &Data, threads: usize, expected: Expected) -> Settings {
    Settings {
        scale_factor: args.sf,
        data: place.display().to_string(),
        rows: data.row_count(),
        runs: args.runs,
        warm_up_runs: 1,
        threads,
        depth: args.iodepth,
        paper_device_threads: match args.device_threads {
            DeviceThreads::One => "one".into(),
            DeviceThreads::Many => "many".into(),
        },
        expected_answer: answer::text(expected.answer),
        expected_by: expected.source,
    }
}

fn environment(place: &Path, gpu: Option<&Gpu>) -> serde_json::Value {
    let mut all = Environment::find(place).json();
    let mount = storage::mount_under(place);
    all["mounted_device"] = json!(mount.as_ref().map(|mount| &mount.source));
    all["mount_options"] = json!(mount.as_ref().map(|mount| &mount.options));
    if let Some(gpu) = gpu {
        all["gpu"] = json!(gpu.context.device().name);
        all["gpu_memory_bytes"] = json!(gpu.context.device().memory_bytes);
        all["cufile"] = json!(gpu.cufile.as_ref().map(|cufile| cufile.describe()).ok());
    }
    all
}

fn failed(e: q6::Error, began: Instant) -> Stop {
    let kind = match &e {
        q6::Error::Cancelled | q6::Error::Generate(onehop_lab::generate::Error::Cancelled) => {
            return Stop::Interrupted(began.elapsed());
        }
        q6::Error::Engine(_) => ErrorKind::Io,
        q6::Error::Damaged { .. } => ErrorKind::Corrupt,
        q6::Error::Refused { .. } => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    };
    let error = match e {
        q6::Error::Engine(e) => e,
        q6::Error::Segment(e) => e.into(),
        e => Error::new(kind, e.to_string()),
    };
    match error.kind() {
        ErrorKind::Corrupt => error.with_hint("tables that were kept are made anew if their folder is removed").into(),
        _ => error.into(),
    }
}

/// Fails if an answer is wrong, or if a path that the user named is missing.
fn verdict(args: &Q6Args, report: &Report) -> Result<(), Stop> {
    let wrong: Vec<String> =
        report.points.iter().filter(|one| !one.is_right).map(|one| Table::name(&one.point)).collect();
    if !wrong.is_empty() {
        let hint = match &args.db {
            Some(db) => format!("is {} of scale factor {}?", db.display(), args.sf),
            None => "please report this, with the output of `onehop doctor`".into(),
        };
        return Err(Error::new(ErrorKind::Internal, format!("wrong answers: {}", wrong.join(", ")))
            .with_hint(hint)
            .into());
    }
    match report.unavailable.iter().find(|missing| args.is_named(missing.point.way)) {
        Some(missing) => {
            let message = format!("the path {} is not to be had here: {}", missing.point.way, missing.reason);
            Err(Error::new(ErrorKind::Io, message).with_hint("`onehop doctor PATH` says what there is").into())
        }
        None => Ok(()),
    }
}
