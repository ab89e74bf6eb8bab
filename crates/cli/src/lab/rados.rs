//! `onehop rados bench`: the rates of files into a cluster and out of it, independent of their
//! producer.
//!
//! The requested number of streams write files one after the other, each to its end. A file counts
//! once it has its name. Then as many streams read them in turn. The written data comes from 64 MiB
//! of random bytes, each piece from another offset. A few repeated bytes would stay in the
//! processor's caches, unlike the data of real programs. Each block read is compared with its
//! checksum.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use onehop_engine::{Progress, units};
use onehop_io::Ledger;
use onehop_io::rados::fs::{FsOptions, Replace};
use onehop_io::rados::{self, FileSystem};
use onehop_lab::osp::random::Random;
use serde_json::{Value, json};

use super::environment::Environment;
use super::listen_for_interrupt;
use super::output::{head, warn_of_debug_build};
use crate::args::RadosBenchArgs;
use crate::exit::Stop;
use crate::progress::{Bar, Meter, TICK};
use crate::rados::stop;
use crate::terminal::{Terminal, note};

/// Set by Ctrl-C. One benchmark runs per process.
static CANCEL: AtomicBool = AtomicBool::new(false);

const SOURCE_BYTES: usize = 64 << 20;
/// The size of one append, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Measures in a folder of its own, which is removed at the end. `open` opens the file system.
pub fn run(
    args: &RadosBenchArgs,
    terminal: &Terminal,
    open: impl FnOnce(FsOptions) -> Result<FileSystem, Stop>,
) -> Result<(), Stop> {
    let _listening = listen_for_interrupt(&CANCEL)?;
    warn_of_debug_build("rates", terminal);
    let window_bytes = args.window;
    let options = FsOptions {
        window_bytes,
        read_ahead_bytes: window_bytes,
        in_flight_bytes: FsOptions::default().in_flight_bytes.max(window_bytes.saturating_mul(args.streams)),
        ..FsOptions::default()
    };
    let fs = open(options)?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let folder = format!("/onehop-bench-{}-{}", std::process::id(), since_1970.as_millis());
    fs.create_directory_all(&folder).map_err(stop)?;
    let bench = Bench { fs, folder, source: random(SOURCE_BYTES), args, began: Instant::now() };
    let mut meter = Meter::new(if terminal.stderr { Bar::Allowed } else { Bar::Off });
    let measured = bench.measure(&mut meter);
    drop(meter);
    // The files are removed regardless of the outcome.
    let removed = bench.fs.remove_all(&bench.folder).map_err(stop);
    let (write, read) = measured?;
    removed?;
    bench.report(&write, &read)
}

/// The work of one stream.
#[derive(Clone, Debug, Default)]
struct Done {
    bytes: u64,
    /// The times from a file's start to its end, in order.
    files: Vec<Duration>,
}

/// The combined figures of all streams.
#[derive(Clone, Debug)]
struct Figures {
    streams: usize,
    files: u64,
    bytes: u64,
    ns: u64,
    mib_per_sec: f64,
    /// The median time from a file's start to its end.
    file_p50_ns: u64,
    file_max_ns: u64,
}

impl Figures {
    fn new(streams: &[Done], took: Duration) -> Self {
        let bytes = streams.iter().map(|done| done.bytes).sum();
        let mut files: Vec<&Duration> = streams.iter().flat_map(|done| &done.files).collect();
        files.sort_unstable();
        let at = |time: Option<&Duration>| time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        Self {
            streams: streams.len(),
            files: files.len() as u64,
            bytes,
            ns: at(Some(&took)),
            mib_per_sec: bytes as f64 / (1 << 20) as f64 / took.as_secs_f64().max(1e-9),
            file_p50_ns: at(files.get(files.len() / 2).copied()),
            file_max_ns: at(files.last().copied()),
        }
    }

    fn json(&self) -> Value {
        json!({
            "streams": self.streams,
            "files": self.files,
            "bytes": self.bytes,
            "ns": self.ns,
            "mib_per_sec": self.mib_per_sec,
            "file_p50_ns": self.file_p50_ns,
            "file_max_ns": self.file_max_ns,
        })
    }
}

struct Bench<'a> {
    fs: FileSystem,
    folder: String,
    source: Vec<u8>,
    args: &'a RadosBenchArgs,
    began: Instant,
}

impl Bench<'_> {
    fn measure(&self, meter: &mut Meter) -> Result<(Figures, Figures), Stop> {
        let (written, took) = self.streams("writing", meter, |stream, number| self.write(stream, number))?;
        let write = Figures::new(&written, took);
        let (read, took) = self.streams("reading", meter, |stream, number| {
            // Every stream has written at least one file.
            self.read(stream, number % written[stream].files.len() as u64)
        })?;
        Ok((write, Figures::new(&read, took)))
    }

    /// Runs `one` for the files of each stream, one after the other, until the time is over.
    fn streams(
        &self,
        what: &str,
        meter: &mut Meter,
        one: impl Fn(usize, u64) -> Result<u64, rados::Error> + Sync,
    ) -> Result<(Vec<Done>, Duration), Stop> {
        let began = Instant::now();
        let stream = |stream: usize| {
            let mut done = Done::default();
            while done.files.is_empty() || began.elapsed() < self.args.runtime {
                let file = Instant::now();
                done.bytes += one(stream, done.files.len() as u64)?;
                done.files.push(file.elapsed());
                if CANCEL.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(done)
        };
        let done: Result<Vec<Done>, rados::Error> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.args.streams).map(|number| scope.spawn(move || stream(number))).collect();
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                std::thread::sleep(TICK.min(self.args.runtime));
                let total = u64::try_from(self.args.runtime.as_millis()).unwrap_or(u64::MAX);
                let now = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                let progress = Progress { done: now.min(total), total };
                meter.show(progress, self.began.elapsed(), || what.into());
            }
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let took = began.elapsed();
        let done = done.map_err(stop)?;
        if CANCEL.load(Ordering::Relaxed) {
            return Err(Stop::Interrupted(self.began.elapsed()));
        }
        Ok((done, took))
    }

    fn path(&self, stream: usize, number: u64) -> String {
        format!("{}/{stream}-{number}", self.folder)
    }

    fn write(&self, stream: usize, number: u64) -> Result<u64, rados::Error> {
        let mut file = self.fs.create_file(&self.path(stream, number), Replace::Never, Arc::new(Ledger::default()))?;
        let mut left = self.args.file;
        // Another offset for each stream and file.
        let mut at = (stream * 37 + usize::try_from(number).unwrap_or(0) * 11) * PIECE_BYTES;
        while left > 0 && !CANCEL.load(Ordering::Relaxed) {
            let piece = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
            at %= SOURCE_BYTES - PIECE_BYTES;
            file.append(&self.source[at..at + piece])?;
            at += PIECE_BYTES + 4096;
            left -= piece as u64;
        }
        if left > 0 {
            file.abort();
            return Ok(0);
        }
        file.close().map(|entry| entry.len)
    }

    fn read(&self, stream: usize, number: u64) -> Result<u64, rados::Error> {
        let file = self.fs.open_file(&self.path(stream, number))?;
        let mut reader = file.reader(0..file.size(), Arc::new(Ledger::default()));
        let mut bytes = 0;
        while let Some(piece) = reader.next_piece()? {
            bytes += (piece.bytes.len() - piece.skip) as u64;
            if CANCEL.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(bytes)
    }

    fn report(&self, write: &Figures, read: &Figures) -> Result<(), Stop> {
        let environment = Environment::find(Path::new("."));
        let mut out = io::stdout().lock();
        if self.args.common.json {
            let figures = json!({
                "schema_version": 1,
                "environment": environment.json(),
                "url": self.args.url,
                "file_bytes": self.args.file,
                "chunk_bytes": self.fs.chunk_bytes(),
                "window_bytes": self.args.window,
                "write": write.json(),
                "read": read.json(),
            });
            writeln!(out, "{figures:#}")?;
        } else {
            let mut lines = vec![(
                "files",
                format!(
                    "of {} in chunks of {}, {} at a time, {} of each in flight",
                    units::memory(self.args.file),
                    units::memory(u64::from(self.fs.chunk_bytes())),
                    self.args.streams,
                    units::memory(self.args.window as u64)
                ),
            )];
            lines.extend(environment.lines().into_iter().filter(|(name, _)| *name != "storage"));
            writeln!(out, "{}", head(&lines))?;
            writeln!(out, "{:<6} {:>10} {:>8} {:>12} {:>12}", "", "MiB/s", "files", "file p50", "file max")?;
            for (name, figures) in [("write", write), ("read", read)] {
                let time = |ns| units::time(Duration::from_nanos(ns));
                writeln!(
                    out,
                    "{name:<6} {:>10.0} {:>8} {:>12} {:>12}",
                    figures.mib_per_sec,
                    figures.files,
                    time(figures.file_p50_ns),
                    time(figures.file_max_ns)
                )?;
            }
        }
        drop(out);
        note(format!(
            "{} written and removed again; `onehop rados gc {}` gives the room back, an hour from now",
            units::bytes(write.bytes),
            self.args.url
        ));
        Ok(())
    }
}

/// Returns random bytes, the same ones each time.
fn random(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(1);
    (0..bytes / 8).flat_map(|_| random.bits().to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_streams() {
        let of =
            |bytes, seconds: &[u64]| Done { bytes, files: seconds.iter().copied().map(Duration::from_secs).collect() };
        let figures = Figures::new(&[of(20 << 20, &[3]), of(10 << 20, &[1, 2])], Duration::from_secs(3));
        assert!((figures.mib_per_sec - 10.0).abs() < 1e-9, "{figures:?}");
        assert_eq!((figures.files, figures.file_p50_ns, figures.file_max_ns), (3, 2_000_000_000, 3_000_000_000));
    }

    #[test]
    fn what_is_written_does_not_repeat() {
        let bytes = random(4096);
        assert!(bytes.chunks(8).collect::<std::collections::HashSet<_>>().len() == 512);
    }
}
