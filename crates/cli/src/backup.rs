//! `onehop backup` and `onehop restore`: copies a whole database and verifies the copy. Ctrl-C
//! leaves no partial copy.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use onehop_engine::backup::{BackupOptions, BackupReport, Phase, Sharing, backup, restore};
use onehop_engine::{Error, ErrorKind, Progress, Result, units};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{DatabaseBackupArgs, RestoreArgs};
use crate::exit::Stop;
use crate::progress::{Bar, Meter};
use crate::terminal::Terminal;

/// Creates a backup.
pub fn run(args: &DatabaseBackupArgs, terminal: &Terminal) -> std::result::Result<(), Stop> {
    let sharing = if args.copy { Sharing::Nothing } else { Sharing::default() };
    let options = BackupOptions { base: args.base.clone(), sharing };
    let (report, elapsed) = watched(terminal, |hear| backup(&args.path, &args.to, &options, hear))?;
    say(args.json, &args.path, &args.to, &report, elapsed)
}

/// Restores a backup.
pub fn run_restore(args: &RestoreArgs, terminal: &Terminal) -> std::result::Result<(), Stop> {
    let (report, elapsed) = watched(terminal, |hear| restore(&args.backup, &args.to, hear))?;
    say(args.json, &args.backup, &args.to, &report, elapsed)
}

/// Copies with a progress bar, until a signal interrupts it.
fn watched(
    terminal: &Terminal,
    copy: impl FnOnce(onehop_engine::backup::Hear<'_>) -> Result<BackupReport>,
) -> std::result::Result<(BackupReport, Duration), Stop> {
    let began = Instant::now();
    let is_stopped = Arc::new(AtomicBool::new(false));
    let _signals = listen(&is_stopped)?;
    let mut meter = Meter::new(if terminal.stderr { Bar::Allowed } else { Bar::Off });
    let mut hear = |phase, done, total| {
        if is_stopped.load(SeqCst) {
            return Err(Error::new(ErrorKind::Cancelled, "interrupted: nothing of the copy was left"));
        }
        let word = if phase == Phase::Copy { "copied" } else { "verified" };
        let line = || format!("{} of {total} files {word}", units::count(done));
        // Within a file there is no total to show.
        if total > 0 {
            meter.show(Progress { done, total }, began.elapsed(), line);
        }
        Ok(())
    };
    let report = copy(&mut hear)?;
    drop(meter);
    Ok((report, began.elapsed()))
}

/// Listens for Ctrl-C and SIGTERM while the returned runtime lives.
fn listen(is_stopped: &Arc<AtomicBool>) -> std::result::Result<Runtime, Stop> {
    let runtime = onehop_engine::front(1)?;
    let guard = runtime.enter();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let heard = signal(kind).map_err(|e| Stop::System("cannot listen to Ctrl-C".into(), e))?;
        let (mut signals, is_stopped) = (heard, Arc::clone(is_stopped));
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                is_stopped.store(true, SeqCst);
            }
        });
    }
    drop(guard);
    Ok(runtime)
}

fn say(
    is_json: bool,
    from: &Path,
    to: &Path,
    report: &BackupReport,
    elapsed: Duration,
) -> std::result::Result<(), Stop> {
    let text = match is_json {
        true => format!("{:#}\n", as_json(from, to, report, elapsed)),
        false => as_text(to, report),
    };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

fn as_text(to: &Path, report: &BackupReport) -> String {
    let counts = [(report.linked_files, "linked"), (report.cloned_files, "cloned"), (report.copied_files, "copied")];
    let mut ways: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, way)| format!("{} {way}", units::count(*n))).collect();
    if report.base_files > 0 {
        ways.push(format!("{} from the base", units::count(report.base_files)));
    }
    let ways = if ways.is_empty() { String::new() } else { format!(" ({})", ways.join(", ")) };
    format!(
        "{}: {}, {}{ways}, {}; verified\n",
        to.display(),
        units::plural(report.tables, "table"),
        units::plural(report.files, "segment"),
        units::bytes(report.bytes)
    )
}

fn as_json(from: &Path, to: &Path, report: &BackupReport, elapsed: Duration) -> Value {
    json!({
        "schema_version": 1,
        "path": from.display().to_string(),
        "copy": to.display().to_string(),
        "generation": report.generation,
        "tables": report.tables,
        "files": report.files,
        "bytes": report.bytes,
        "linked_files": report.linked_files,
        "cloned_files": report.cloned_files,
        "copied_files": report.copied_files,
        "base_files": report.base_files,
        "rounds": report.rounds,
        "elapsed_ns": elapsed.as_nanos() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_one_line() {
        let report = BackupReport {
            generation: 12,
            tables: 2,
            files: 1_014,
            bytes: 182_000_000,
            linked_files: 1_000,
            copied_files: 14,
            base_files: 1_000,
            rounds: 1,
            ..BackupReport::default()
        };
        assert_eq!(
            as_text(Path::new("monday"), &report),
            "monday: 2 tables, 1,014 segments (1,000 linked, 14 copied, 1,000 from the base), 182 MB; verified\n"
        );
        let json = as_json(Path::new("db"), Path::new("monday"), &report, Duration::from_secs(1));
        assert_eq!((&json["generation"], &json["elapsed_ns"]), (&12.into(), &1_000_000_000.into()));
    }
}
