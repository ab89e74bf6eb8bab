//! `onehop backup`, `restore` and `check --repair`: output, exit codes and leftover files.

mod support;

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

use support::{done, onehop, run};

/// Creates a folder with a database of segments and fresh rows.
fn sample() -> io::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let sql = "CREATE TABLE t AS SELECT value AS n FROM generate_series(1, 20000); INSERT INTO t VALUES (20001)";
    done(&[&path(&folder, "db"), "-c", sql]);
    Ok(folder)
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

fn count(database: &str) -> String {
    done(&["--readonly", database, "-c", "SELECT count(*) AS n FROM t"])
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

#[test]
fn a_backup_is_a_database_and_becomes_another() -> Result<(), Box<dyn std::error::Error>> {
    let folder = sample()?;
    let at = |name| path(&folder, name);
    let said = done(&["backup", &at("db"), &at("monday")]);
    assert!(said.contains("1 table") && said.ends_with("; verified\n"), "{said}");
    assert_eq!(count(&at("monday")), "n\n20001\n");
    let again = run(&["backup", &at("db"), &at("monday")]);
    assert_eq!(again.exit, Some(1), "{}", again.err);
    let json = done(&["backup", &at("db"), &at("tuesday"), "--base", &at("monday"), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&json)?;
    assert_eq!((&report["schema_version"], &report["tables"]), (&1.into(), &1.into()));
    done(&["restore", &at("tuesday"), &at("again")]);
    done(&[&at("again"), "-c", "DELETE FROM t WHERE n > 10"]);
    assert_eq!((count(&at("again")), count(&at("tuesday"))), ("n\n10\n".into(), "n\n20001\n".into()));
    let refused = run(&["restore", &at("tuesday"), &at("again")]);
    assert_eq!(refused.exit, Some(1), "{}", refused.err);
    assert_eq!(names(folder.path())?, ["again", "db", "monday", "tuesday"]);
    Ok(())
}

#[test]
fn a_database_is_backed_up_while_another_process_writes_to_it() -> Result<(), Box<dyn std::error::Error>> {
    let folder = sample()?;
    let at = |name| path(&folder, name);
    let mut writer = onehop(&["pipe", &at("db")]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(mut stdin), Some(stdout)) = (writer.stdin.take(), writer.stdout.take()) else { panic!("no pipes") };
    let mut answers = BufReader::new(stdout).lines();
    let mut ask = |sql: &str| -> io::Result<String> {
        writeln!(stdin, "{}", serde_json::json!({ "sql": sql }))?;
        answers.next().unwrap_or_else(|| Ok(String::new()))
    };
    assert!(!ask("INSERT INTO t VALUES (20002)")?.contains("error"));
    done(&["backup", &at("db"), &at("backup")]);
    assert_eq!(count(&at("backup")), "n\n20002\n");

    // A process whose store was replaced reports that to its clients.
    assert!(!ask("INSERT INTO t VALUES (20003)")?.contains("error"));
    std::fs::rename(at("backup") + "/store", at("db") + "/store")?;
    for _ in 0..2 {
        let said = ask("INSERT INTO t VALUES (20004)")?;
        assert!(said.contains("error") && said.contains("store was replaced by another file"), "{said}");
    }
    drop(stdin);
    writer.wait()?;
    Ok(())
}

#[test]
fn files_that_are_not_where_they_belong_are_listed_and_put_right() -> Result<(), Box<dyn std::error::Error>> {
    let folder = sample()?;
    let db = path(&folder, "db");
    let sound = done(&["check", "--repair", &db]);
    assert_eq!(sound, format!("{db}: every file is where it belongs\n"));
    let stray = folder.path().join("db/segments/00000001-00000099.seg");
    std::fs::write(&stray, "half a segment")?;
    std::fs::write(folder.path().join("db/store.new-1"), "half a store")?;
    let said = done(&["check", &db]);
    assert!(said.contains("not a whole segment") && said.ends_with("no problems\n"), "{said}");
    let said = done(&["check", "--repair", &db]);
    assert!(said.contains("; would move to lost+found\n") && said.contains("; would remove\n"), "{said}");
    assert!(said.ends_with("nothing was changed; --yes does it\n") && stray.exists(), "{said}");
    let json: serde_json::Value = serde_json::from_str(&done(&["check", "--repair", "--json", &db]))?;
    assert_eq!((&json["is_done"], json["findings"].as_array().map(Vec::len)), (&false.into(), Some(2)));
    let said = done(&["check", "--repair", "--yes", &db]);
    assert!(said.ends_with("2 files put right\n"), "{said}");
    assert_eq!(names(&folder.path().join("db"))?, ["LOCK", "lost+found", "segments", "store"]);
    let alone = run(&["check", "--yes", &db]);
    assert_eq!(alone.exit, Some(2), "{}", alone.err);

    // A missing segment cannot be repaired, but is restored from lost+found.
    let (segments, kept) = (folder.path().join("db/segments"), folder.path().join("db/lost+found"));
    let Some(segment) = names(&segments)?.pop() else { panic!("no segment") };
    std::fs::rename(segments.join(&segment), kept.join(&segment))?;
    let said = run(&["check", "--repair", &db]);
    assert!(said.exit == Some(3) && said.err.contains("1 segment of"), "{}", said.err);
    done(&["check", "--repair", "--yes", &db]);
    done(&["check", &db]);
    let aside = folder.path().join("aside");
    std::fs::rename(segments.join(&segment), &aside)?;
    for words in [&["check", "--repair", &db][..], &["check", "--repair", "--yes", &db]] {
        let said = run(words);
        assert!(said.exit == Some(3) && said.out.contains("no file is to be put right"), "{}{}", said.out, said.err);
    }
    std::fs::rename(&aside, segments.join(&segment))?;

    // A database without its store is damaged, regardless of how it is opened.
    std::fs::remove_file(folder.path().join("db/store"))?;
    for words in [
        &["--readonly", &db, "-c", "SELECT 1"][..],
        &[&db, "-c", "SELECT 1"],
        &["check", &db],
        &["check", "--repair", &db],
    ] {
        let said = run(words);
        assert_eq!(said.exit, Some(3), "{words:?}: {}", said.err);
    }
    let copied = run(&["backup", &db, &path(&folder, "backup")]);
    assert_eq!(copied.exit, Some(3), "{}", copied.err);
    Ok(())
}

#[test]
fn ctrl_c_leaves_nothing_of_a_backup() -> Result<(), Box<dyn std::error::Error>> {
    let folder = sample()?;
    let at = |name| path(&folder, name);
    let mut copy = onehop(&["backup", &at("db"), &at("backup"), "--copy"]).stderr(Stdio::piped()).spawn()?;
    let pid = copy.id().to_string();
    let is_sent = std::process::Command::new("kill").args(["-INT", &pid]).status()?.success();
    let exit = copy.wait()?.code();
    // The signal may arrive before any file exists, or after the backup is complete.
    let left = names(folder.path())?;
    let is_whole = exit == Some(0) && left == ["backup", "db"];
    assert!(is_sent && (is_whole || left == ["db"]), "{exit:?}: {left:?}");
    Ok(())
}
