//! `onehop store`: checks, prints, copies and compacts a store's file.

use std::fmt::{Display, Write as _};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use onehop_engine::{Error, ErrorKind, units};
use onehop_store::{Access, Options, Report, Store};
use serde_json::{Value, json};

use crate::args::{BackupArgs, DumpArgs, StoreArgs, StoreCommand};
use crate::exit::Stop;

/// Runs a command.
pub fn run(command: &StoreCommand) -> Result<(), Stop> {
    match command {
        StoreCommand::Check(args) => check(args),
        StoreCommand::Dump(args) => dump(args),
        StoreCommand::Compact(args) => compact(args),
        StoreCommand::Backup(args) => backup(args),
    }
}

/// Checks a store. Damage is an error, so that the exit code reports it too.
fn check(args: &StoreArgs) -> Result<(), Stop> {
    let report = match open(&args.file).and_then(|store| store.check()) {
        Ok(report) => report,
        // Damage that prevents opening is a finding of the check.
        Err(onehop_store::Error::Corrupt { object, reason }) => {
            let mut report = Report::default();
            report.findings.push(format!("{object}: {reason}"));
            report
        }
        Err(e) => return Err(stop(e)),
    };
    say(args.json, &as_json(&args.file, &report), &report)?;
    if report.is_sound() {
        return Ok(());
    }
    let found = units::plural(report.findings.len() as u64, "problem");
    Err(Error::new(ErrorKind::Corrupt, format!("{found} in {}", args.file.display()))
        .with_hint("restore the file from a backup")
        .into())
}

fn as_json(file: &Path, report: &Report) -> Value {
    let trees = report.trees.iter().map(|tree| {
        json!({
            "name": tree.name,
            "entries": tree.entries,
            "levels": tree.levels,
            "inner_pages": tree.inner_pages,
            "leaf_pages": tree.leaf_pages,
            "overflow_pages": tree.overflow_pages,
            "leaf_fill_percent": tree.leaf_fill_percent,
        })
    });
    json!({
        "schema_version": 1,
        "path": file.display().to_string(),
        "pages": report.pages,
        "trees": trees.collect::<Vec<_>>(),
        "findings": report.findings,
    })
}

fn dump(args: &DumpArgs) -> Result<(), Stop> {
    let snapshot = open(&args.file).and_then(|store| store.read()).map_err(stop)?;
    let names = match &args.tree {
        Some(name) => vec![name.clone()],
        None => snapshot.trees().map_err(stop)?,
    };
    let mut out = BufWriter::new(io::stdout().lock());
    for name in names {
        let tree = snapshot.open_tree(&name).map_err(stop)?.ok_or_else(|| {
            let message = format!("there is no tree {name:?} in {}", args.file.display());
            Stop::from(Error::new(ErrorKind::NotFound, message))
        })?;
        if !args.json && args.tree.is_none() {
            writeln!(out, "tree {name:?}")?;
        }
        let mut entries = tree.iter();
        while let Some((key, value)) = entries.next_ref().map_err(stop)? {
            match args.json {
                true => writeln!(out, "{}", json!({ "tree": name, "key": hex(key), "value": hex(value) }))?,
                false => writeln!(out, "{}\t{}", key.escape_ascii(), value.escape_ascii())?,
            }
        }
    }
    Ok(out.flush()?)
}

fn compact(args: &StoreArgs) -> Result<(), Stop> {
    let before = length(&args.file);
    Store::compact(&args.file, &Options::default()).map_err(stop)?;
    let after = length(&args.file);
    let figures = json!({
        "schema_version": 1,
        "path": args.file.display().to_string(),
        "before_bytes": before,
        "after_bytes": after,
    });
    let text = format!("{}: {} of {}", args.file.display(), units::bytes(after), units::bytes(before));
    say(args.json, &figures, &text)
}

fn backup(args: &BackupArgs) -> Result<(), Stop> {
    Store::backup_file(&args.file, &args.to).map_err(stop)?;
    let bytes = length(&args.to);
    let figures = json!({
        "schema_version": 1,
        "path": args.file.display().to_string(),
        "backup": args.to.display().to_string(),
        "backup_bytes": bytes,
    });
    say(args.json, &figures, &format!("{}: {}", args.to.display(), units::bytes(bytes)))
}

/// Prints a result as JSON or as a line.
fn say(is_json: bool, figures: &Value, text: &dyn Display) -> Result<(), Stop> {
    let text = if is_json { format!("{figures:#}\n") } else { format!("{text}\n") };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// Opens a store read-only, so that other readers may use it meanwhile.
fn open(file: &Path) -> onehop_store::Result<Store> {
    Store::open(file, &Options::default().access(Access::ReadOnly))
}

fn length(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |metadata| metadata.len())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Converts an error for the exit code, which distinguishes damage from an unreadable file.
fn stop(e: onehop_store::Error) -> Stop {
    use onehop_store::Error as Store;
    let kind = match &e {
        Store::Corrupt { .. } => ErrorKind::Corrupt,
        Store::Locked { .. } => ErrorKind::Locked,
        Store::Full { .. } | Store::SnapshotTooOld { .. } => ErrorKind::Resources,
        Store::Invalid(_) => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    };
    Error::new(kind, e.to_string()).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn made(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("a.store");
        let store = Store::open(&path, &Options::default()).unwrap();
        let transaction = store.write().unwrap();
        let mut tree = transaction.tree("colours").unwrap();
        for number in 0..2_000u32 {
            tree.insert(number.to_be_bytes(), [7; 100]).unwrap();
        }
        drop(tree);
        transaction.commit().unwrap();
        store.close().unwrap();
        path
    }

    #[test]
    fn a_sound_store_is_checked_copied_and_made_small() {
        let folder = tempfile::tempdir().unwrap();
        let (file, to) = (made(folder.path()), folder.path().join("b.store"));
        check(&StoreArgs { file: file.clone(), json: true }).unwrap();
        backup(&BackupArgs { file: file.clone(), to: to.clone(), json: false }).unwrap();
        assert!(open(&to).unwrap().check().unwrap().is_sound());
        let again = backup(&BackupArgs { file: file.clone(), to, json: false }).unwrap_err();
        assert_eq!(again.exit(), Exit::Failed, "a backup does not replace anything");
        compact(&StoreArgs { file: file.clone(), json: false }).unwrap();
        let report = open(&file).unwrap().check().unwrap();
        assert_eq!((report.trees.len(), report.trees[0].entries), (1, 2_000));
        assert_eq!(as_json(&file, &report)["trees"][0]["entries"], 2_000);
    }

    #[test]
    fn damage_and_absence_have_codes_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = made(folder.path());
        let missing = check(&StoreArgs { file: folder.path().join("none"), json: false }).unwrap_err();
        assert_eq!(missing.exit(), Exit::Failed);
        let no_tree = DumpArgs { file: file.clone(), tree: Some("none".into()), json: false };
        assert_eq!(dump(&no_tree).unwrap_err().exit(), Exit::Failed);
        let mut bytes = fs::read(&file).unwrap();
        // In the middle of the used pages: the pages after them are free.
        bytes[65_536..131_072].fill(0xa5);
        fs::write(&file, bytes).unwrap();
        assert_eq!(check(&StoreArgs { file, json: false }).unwrap_err().exit(), Exit::Corrupt);
    }

    #[test]
    fn bytes_are_hexadecimal() {
        assert_eq!((hex(&[0, 0x1f, 0xff]), hex(&[])), ("001fff".into(), String::new()));
    }
}
