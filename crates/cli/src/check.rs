//! `onehop check`: verifies every checksum of a database, and reports damage by file. With
//! `--repair`: reports files that are not where they belong, and the actions on them.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use onehop_engine::check::{CheckReport, Problem, check};
use onehop_engine::repair::{Finding, What, repair, survey};
use onehop_engine::{DatabaseOptions, Error, ErrorKind, Progress};
use serde_json::{Value, json};

use crate::args::CheckArgs;
use crate::exit::Stop;
use crate::progress::{Bar, Meter};
use crate::terminal::Terminal;
use onehop_engine::units;

/// Checks the database and prints the findings. Damage is an error, so that the exit code reports
/// it too.
pub fn run(args: &CheckArgs, terminal: &Terminal) -> Result<(), Stop> {
    refuse_other_things(&args.path)?;
    if args.repair {
        return run_repair(args);
    }
    let began = Instant::now();
    let mut meter = Meter::new(if terminal.stderr { Bar::Allowed } else { Bar::Off });
    let mut progress = |done, total| {
        meter.show(Progress { done, total }, began.elapsed(), || format!("{} of {total} files", units::count(done)));
    };
    let report = check(&args.path, &mut progress)?;
    drop(meter);
    let elapsed = began.elapsed();
    let text = if args.json { as_json(args, &report, elapsed) } else { as_text(args, &report, elapsed) };
    io::stdout().lock().write_all(text.as_bytes())?;
    match report.problems.len() as u64 {
        0 => Ok(()),
        n => Err(Error::new(ErrorKind::Corrupt, format!("{} in {}", units::plural(n, "problem"), args.path.display()))
            .with_hint("queries that touch the damaged blocks fail, others are right; restore the files named, or load the tables anew")
            .into()),
    }
}

/// Reports misplaced files and the actions on them. Performs the actions if requested.
fn run_repair(args: &CheckArgs) -> Result<(), Stop> {
    let options = DatabaseOptions::default();
    let found = if args.yes { repair(&args.path, &options)? } else { survey(&args.path, &options)? };
    let text = match args.json {
        true => format!("{:#}\n", repair_as_json(args, &found)),
        false => repair_as_text(args, &found),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    let is_missing = |what: What| what == What::Missing || what == What::Misplaced && !args.yes;
    match found.iter().filter(|finding| is_missing(finding.what)).count() as u64 {
        0 => Ok(()),
        n => {
            let message = format!("{} of {} not there", units::plural(n, "segment"), args.path.display());
            let hint = "queries of their tables fail; restore a backup, or bring back the files";
            Err(Error::new(ErrorKind::Corrupt, message).with_hint(hint).into())
        }
    }
}

fn repair_as_json(args: &CheckArgs, found: &[Finding]) -> Value {
    json!({
        "schema_version": 1,
        "path": args.path.display().to_string(),
        "is_done": args.yes,
        "findings": found.iter().map(finding_as_json).collect::<Vec<_>>(),
    })
}

fn finding_as_json(finding: &Finding) -> Value {
    let Finding { what, file, about } = finding;
    json!({ "what": what.word(), "file": file, "about": about, "remedy": what.remedy() })
}

fn repair_as_text(args: &CheckArgs, found: &[Finding]) -> String {
    let mut text = String::new();
    for finding in found {
        let remedy = match (finding.what.remedy(), args.yes) {
            (Some(remedy), false) => format!("would {remedy}"),
            (Some(remedy), true) => format!("done: {remedy}"),
            (None, _) => "is left as it is".into(),
        };
        text += &format!("{}: {}; {remedy}\n", finding.file, finding.about);
    }
    let remedies = found.iter().filter(|finding| finding.what.remedy().is_some()).count() as u64;
    text += &match (found.is_empty(), args.yes, remedies) {
        (true, ..) => format!("{}: every file is where it belongs\n", args.path.display()),
        (false, false, 1..) => format!("{}: nothing was changed; --yes does it\n", args.path.display()),
        (false, _, 0) => format!("{}: no file is to be put right\n", args.path.display()),
        _ => format!("{}: {} put right\n", args.path.display(), units::plural(remedies, "file")),
    };
    text
}

/// Distinguishes a directory that is not a database from a database without its store, which is
/// damaged.
fn refuse_other_things(path: &Path) -> Result<(), Stop> {
    let name = path.display();
    let entries = fs::read_dir(path).map_err(|e| Stop::System(format!("there is no database at {name}"), e))?;
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    if names.iter().any(|name| name == "store" || name == "catalog") {
        return Ok(());
    }
    let segments = fs::read_dir(path.join("segments")).into_iter().flatten().flatten();
    if segments.map(|entry| entry.path()).any(|file| file.extension() == Some(OsStr::new("seg"))) {
        let error = Error::new(ErrorKind::Corrupt, format!("{name}/store is missing, and there are segment files"));
        return Err(error.with_hint("restore that file from a backup; to begin anew, remove the directory").into());
    }
    Err(Error::new(ErrorKind::NotFound, format!("there is no database at {name}: the directory has no store")).into())
}

fn as_text(args: &CheckArgs, report: &CheckReport, elapsed: Duration) -> String {
    let mut text = String::new();
    for Problem { table, error } in &report.problems {
        text += &format!("{table}: {}\n", error.message());
    }
    for Finding { file, about, .. } in &report.findings {
        text += &format!("{file}: {about}\n");
    }
    let counts =
        [(report.tables, "table"), (report.files, "file"), (report.rows, "row"), (report.blocks, "column block")];
    let mut counts: Vec<String> = counts.iter().map(|(n, thing)| units::plural(*n, thing)).collect();
    if report.fresh_rows > 0 {
        counts.push(units::plural(report.fresh_rows, "fresh row"));
    }
    let verified = units::bytes(report.verified_bytes);
    let rate = units::rate(report.verified_bytes, elapsed).map_or(String::new(), |rate| format!(" at {rate}"));
    let verdict = if report.problems.is_empty() { "no problems" } else { "damaged" };
    text += &format!("{}: {}; {verified} verified{rate}; {verdict}\n", args.path.display(), counts.join(", "));
    text
}

fn as_json(args: &CheckArgs, report: &CheckReport, elapsed: Duration) -> String {
    let problem = |Problem { table, error }: &Problem| json!({ "table": table, "message": error.message() });
    let report = json!({
        "schema_version": 1,
        "path": args.path.display().to_string(),
        "tables": report.tables,
        "files": report.files,
        "rows": report.rows,
        "fresh_rows": report.fresh_rows,
        "blocks": report.blocks,
        "verified_bytes": report.verified_bytes,
        "elapsed_ns": elapsed.as_nanos() as u64,
        "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
        "findings": report.findings.iter().map(finding_as_json).collect::<Vec<_>>(),
    });
    format!("{report:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(problems: Vec<Problem>) -> CheckReport {
        let (rows, fresh_rows, verified_bytes) = (6_001_215, 0, 182_000_000);
        CheckReport {
            tables: 1,
            files: 14,
            rows,
            fresh_rows,
            blocks: 3_312,
            verified_bytes,
            problems,
            findings: vec![],
        }
    }

    fn args() -> CheckArgs {
        CheckArgs { path: "flights".into(), repair: false, yes: false, json: false }
    }

    #[test]
    fn a_sound_database_is_one_line() {
        assert_eq!(
            as_text(&args(), &report(vec![]), Duration::from_millis(500)),
            "flights: 1 table, 14 files, 6,001,215 rows, 3,312 column blocks; 182 MB verified at 364 MB/s; no problems\n"
        );
    }

    #[test]
    fn damage_is_named() -> serde_json::Result<()> {
        let error = Error::new(ErrorKind::Corrupt, "a.seg: column x, block 4: checksum");
        let report = report(vec![Problem { table: "trips".into(), error }]);
        let text = as_text(&args(), &report, Duration::ZERO);
        assert!(
            text.starts_with("trips: a.seg: column x, block 4: checksum\n") && text.ends_with("damaged\n"),
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_str(&as_json(&args(), &report, Duration::ZERO))?;
        assert_eq!(json["problems"][0]["table"], "trips");
        Ok(())
    }
}
