//! `onehop gen`: generates the tables of SSB and TPC-H, into a database or into files.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use onehop_engine::{ErrorKind, Progress};
use onehop_lab::generate::segments::load_table;
use onehop_lab::generate::write::{self, Options, Overwrite, write_tables};
use onehop_lab::generate::{Benchmark, CHUNK_ROWS, Error, Generator};

use super::{Bench, cancel_on_interrupt, threads};
use crate::args::{GenArgs, GenFormat, Suite};
use crate::exit::Stop;
use crate::progress::{Bar, Meter};
use crate::terminal::{Terminal, note};
use onehop_engine::units;

/// Set by Ctrl-C. One generation runs per process.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// Runs the generation.
pub fn run(args: &GenArgs, terminal: &Terminal) -> Result<(), Stop> {
    let threads = NonZeroUsize::new(threads(args.threads)?).unwrap_or(NonZeroUsize::MIN);
    let meter = Mutex::new(Meter::new(if terminal.stderr && !args.quiet { Bar::Allowed } else { Bar::Off }));
    let began = Instant::now();
    let progress = |p: write::Progress| {
        let mut meter = meter.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Progress { done: p.rows_done, total: p.rows_expected };
        meter.show(at, began.elapsed(), || format!("{} {}", p.table, units::plural(p.rows_done, "row")));
    };
    let lines = match args.format {
        GenFormat::Segments => to_database(args, threads, &progress),
        GenFormat::Parquet => to_files(args, write::Format::Parquet, threads, &progress),
        GenFormat::Csv => to_files(args, write::Format::Csv, threads, &progress),
        GenFormat::Tbl => to_files(args, write::Format::Tbl, threads, &progress),
    };
    drop(meter);
    let lines = lines.map_err(|e| match e {
        Error::Engine(e) if e.kind() == ErrorKind::AlreadyExists => {
            let message = format!("{}: {}", args.out.display(), e.message());
            Stop::Engine(onehop_engine::Error::new(e.kind(), message).with_hint("--replace replaces the tables"))
        }
        // Only the path of this request can be invalid.
        Error::Engine(e) if e.kind() == ErrorKind::Invalid => Stop::Misuse(e),
        Error::Engine(e) => Stop::Engine(e),
        Error::Cancelled => Stop::Interrupted(began.elapsed()),
        Error::Io { path, source } => Stop::System(format!("cannot write {}", path.display()), source),
        Error::Exists(path) => {
            let message = format!("{} exists already", path.display());
            Stop::Engine(
                onehop_engine::Error::new(ErrorKind::AlreadyExists, message).with_hint("--replace replaces it"),
            )
        }
        usage @ Error::Scale { .. } => Stop::Usage(usage.to_string()),
        other => Stop::System("cannot generate".into(), std::io::Error::other(other)),
    })?;
    if !args.quiet {
        for line in &lines {
            note(line);
        }
        note(format!("{} in {}", args.out.display(), units::time(began.elapsed())));
    }
    Ok(())
}

/// Refuses a scale factor that the benchmark does not define.
pub fn check_scale(suite: Suite, scale: f64) -> Result<(), Stop> {
    let generator = suite.name().parse::<Benchmark>().and_then(|benchmark| benchmark.generator(scale, CHUNK_ROWS));
    generator.map(drop).map_err(|e| Stop::Usage(e.to_string()))
}

fn benchmark(args: &GenArgs, chunk_rows: u64) -> Result<Box<dyn Generator>, Error> {
    args.suite.name().parse::<Benchmark>()?.generator(args.sf, chunk_rows)
}

fn to_files(
    args: &GenArgs,
    format: write::Format,
    threads: NonZeroUsize,
    progress: &dyn Fn(write::Progress),
) -> Result<Vec<String>, Error> {
    let generator = benchmark(args, format.chunk_rows())?;
    let overwrite = if args.replace { Overwrite::Replace } else { Overwrite::Refuse };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|source| Error::Io { path: args.out.clone(), source })?;
    cancel_on_interrupt(&runtime, &CANCEL);
    let written = write_tables(&*generator, &args.out, Options { format, overwrite, threads }, progress, &CANCEL)?;
    let line = |w: &write::Written| {
        format!("{:<10} {:>16}  {:>9}", w.table, units::plural(w.rows, "row"), units::bytes(w.file_bytes))
    };
    Ok(written.iter().map(line).collect())
}

fn to_database(
    args: &GenArgs,
    threads: NonZeroUsize,
    progress: &(dyn Fn(write::Progress) + Sync),
) -> Result<Vec<String>, Error> {
    let generator = benchmark(args, CHUNK_ROWS)?;
    let settings = vec![("threads".to_string(), threads.to_string())];
    let bench = Bench::open(&args.out, settings, threads.get()).map_err(engine)?;
    cancel_on_interrupt(&bench.runtime, &CANCEL);
    if !args.replace {
        refuse_tables_of(&*generator, &bench)?;
    }
    let mut lines = Vec::new();
    for table in generator.tables() {
        let began = Instant::now();
        if args.replace {
            bench.execute(&format!("DROP TABLE IF EXISTS \"{}\"", table.name)).map_err(engine)?;
        }
        bench.execute(&table.ddl).map_err(engine)?;
        match load_table(&*generator, &table, &bench.session, threads, progress, &CANCEL) {
            Ok(loaded) => lines.push(line(loaded.table, loaded.rows, began.elapsed())),
            Err(e) => {
                // An empty table of a failed load would block the next attempt.
                bench.execute(&format!("DROP TABLE \"{}\"", table.name)).map_err(engine)?;
                return Err(e);
            }
        }
    }
    Ok(lines)
}

/// Fails if a table exists. Called before the first table is created: a database must not mix
/// tables of two scale factors.
fn refuse_tables_of(generator: &dyn Generator, bench: &Bench) -> Result<(), Error> {
    let there = bench.runtime.block_on(bench.session.names()).tables;
    match generator.tables().iter().find(|table| there.iter().any(|name| name == table.name)) {
        None => Ok(()),
        Some(table) => {
            let message = format!("there is a table \"{}\" already", table.name);
            Err(Error::Engine(onehop_engine::Error::new(ErrorKind::AlreadyExists, message)))
        }
    }
}

fn line(table: &str, rows: u64, time: Duration) -> String {
    format!("{table:<10} {:>16}  {:>9}", units::plural(rows, "row"), units::time(time))
}

/// Converts a command's error back to a generator's.
fn engine(stop: Stop) -> Error {
    match stop {
        Stop::Engine(e) | Stop::Misuse(e) => Error::Engine(e),
        Stop::Usage(message) => Error::Engine(onehop_engine::Error::new(ErrorKind::Invalid, message)),
        Stop::System(_, source) => Error::Io { path: "onehop".into(), source },
        _ => Error::Cancelled,
    }
}
