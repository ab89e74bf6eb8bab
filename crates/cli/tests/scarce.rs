//! Scarce resources: little address space, few descriptors, an unusable temporary directory. The
//! process answers or fails, and ends.

mod support;

use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use support::{Said, done, onehop, run};

type Outcome = Result<(), Box<dyn Error>>;

/// The time after which a process counts as hanging. None takes a second.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// Runs the binary with some arguments under a limit of the shell.
fn under(limit: &str, words: &[&str]) -> Result<Said, Box<dyn Error>> {
    let program = onehop(words);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limit} && exec \"$@\""), "sh"]).arg(program.get_program()).args(program.get_args());
    shell.env_remove("ONEHOP_FORMAT").env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
    let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let status = ended(&mut child).ok_or_else(|| format!("{limit}: {words:?} hangs"))?;
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().ok_or("no output")?.read_to_string(&mut out)?;
    child.stderr.take().ok_or("no errors")?.read_to_string(&mut err)?;
    Ok(Said { exit: status.code(), out, err })
}

fn ended(child: &mut std::process::Child) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < HANGS_AFTER {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Checks for an answer, or an error that names the missing resource; neither a panic nor a signal.
fn assert_told(limit: &str, said: &Said, answer: &str) {
    let Said { exit, out, err } = said;
    assert!(!err.contains("panicked") && !err.contains("internal"), "{limit}: {err}");
    match exit {
        Some(0) => assert_eq!(out, answer, "{limit}"),
        Some(1..=3) => assert!(err.contains("onehop") || err.contains("error"), "{limit}: {err}"),
        other => panic!("{limit}: exit {other:?}: {err}"),
    }
}

fn database(folder: &Path) -> String {
    let path = folder.join("db").display().to_string();
    done(&[&path, "-c", "CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 200000)"]);
    path
}

#[test]
fn little_address_space_is_an_error_and_an_end() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = database(folder.path());
    // The loader's minimum for the program itself. With less the program does not start.
    let least = std::fs::metadata(env!("CARGO_BIN_EXE_onehop"))?.len() / 1024 + 100_000;
    for kib in [0, 100_000, 200_000, 500_000, 1_000_000, 2_000_000].map(|more| least + more) {
        let limit = format!("ulimit -v {kib}");
        assert_told(&limit, &under(&limit, &["-c", "SELECT 1 AS a"])?, "a\n1\n");
        let sums = under(&limit, &["--readonly", &path, "-c", "SELECT count(*) AS n, sum(a) AS s FROM t"])?;
        assert_told(&limit, &sums, "n,s\n200000,20000100000\n");
    }
    Ok(())
}

#[test]
fn few_descriptors_are_an_error_and_an_end() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = database(folder.path());
    for count in [4, 6, 8, 10, 12, 16, 20, 24, 32] {
        let limit = format!("ulimit -n {count}");
        assert_told(&limit, &under(&limit, &["-c", "SELECT 1 AS a"])?, "a\n1\n");
        assert_told(
            &limit,
            &under(&limit, &["--readonly", &path, "-c", "SELECT count(*) AS n FROM t"])?,
            "n\n200000\n",
        );
        // An interrupted copy is removed, which takes descriptors as well.
        let (copy, limit) = (folder.path().join("copy"), format!("ulimit -n {count}"));
        let said = under(&limit, &["backup", &path, &copy.display().to_string()])?;
        let mut left: Vec<_> = std::fs::read_dir(folder.path())?.flatten().map(|entry| entry.file_name()).collect();
        left.sort();
        match said.exit {
            Some(0) => assert_eq!(left, ["copy", "db"], "{limit}"),
            Some(1) => assert!(left == ["db"] && said.err.contains("open files"), "{limit}: {left:?}: {}", said.err),
            other => panic!("{limit}: exit {other:?}: {}", said.err),
        }
        if copy.exists() {
            std::fs::remove_dir_all(&copy)?;
        }
    }
    Ok(())
}

/// Sorts strings that exceed `memory_limit`.
const SPILLS: &str = "SELECT max(n) AS n FROM (SELECT row_number() OVER (ORDER BY z) AS n FROM \
                      (SELECT repeat('z' || value, 20) AS z FROM generate_series(1, 3000000)))";

#[test]
fn a_temporary_directory_of_no_use_is_an_error_of_what_spills() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    std::fs::write(&file, "")?;
    let missing = format!("temp_directory={}", folder.path().join("missing").display());
    let foreign = format!("temp_directory={}", file.display());
    for setting in [missing, foreign] {
        let settings = ["--set", &setting, "--set", "memory_limit=256MiB", "--set", "threads=2"];
        assert_eq!(run(&[&settings[..], &["-c", "SELECT 1 AS a"]].concat()).out, "a\n1\n", "{setting}");
        let said = run(&[&settings[..], &["-c", SPILLS]].concat());
        assert_eq!(said.exit, Some(1), "{setting}: {}{}", said.out, said.err);
        assert!(said.err.contains("temp_directory"), "{setting}: {}", said.err);
    }
    Ok(())
}

#[test]
fn a_process_that_is_killed_while_it_spills_leaves_nothing() -> Outcome {
    let folder = tempfile::tempdir()?;
    let setting = format!("temp_directory={}", folder.path().display());
    let settings = ["--set", &setting, "--set", "memory_limit=256MiB", "--set", "threads=2", "-c", SPILLS];
    let mut child = onehop(&settings).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    // Unnamed files are visible only through the descriptors of their process.
    let descriptors = format!("/proc/{}/fd", child.id());
    let here = folder.path().display().to_string();
    let spills = || {
        let links = std::fs::read_dir(&descriptors).into_iter().flatten().flatten();
        links.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|to| to.starts_with(&here))
    };
    let began = Instant::now();
    let mut has_spilled = false;
    while !has_spilled && began.elapsed() < HANGS_AFTER && child.try_wait()?.is_none() {
        has_spilled = spills();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(has_spilled, "nothing was spilled");
    child.kill()?;
    child.wait()?;
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
    Ok(())
}

/// An export that takes some time to write.
const EXPORT: &str = "COPY (SELECT value AS a, repeat('x', 100) AS s FROM generate_series(1, 100000000)) TO";

#[test]
fn what_a_killed_export_leaves_the_next_one_removes() -> Outcome {
    let folder = tempfile::tempdir()?;
    let names = || -> Result<Vec<String>, Box<dyn Error>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder.path())? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    };
    for target in ["rows.csv", "rows/"] {
        let path = folder.path().join(target).display().to_string();
        let mut child = onehop(&["-c", &format!("{EXPORT} '{path}' (FORMAT csv)")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let began = Instant::now();
        while names()?.is_empty() && began.elapsed() < HANGS_AFTER && child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill()?;
        child.wait()?;
        assert_eq!(names()?.len(), 1, "{target}: {:?}", names());
        assert!(names()?.iter().all(|name| name.starts_with('.')), "{target}: {:?}", names());
        done(&["-c", &format!("COPY (SELECT 1 AS a) TO '{path}' (FORMAT csv)")]);
        assert_eq!(names()?, [target.trim_end_matches('/')]);
        let whole = folder.path().join(target);
        if whole.is_dir() { std::fs::remove_dir_all(&whole)? } else { std::fs::remove_file(&whole)? }
    }
    Ok(())
}

/// Decoders panic on pages that contradict their headers. Standard error must not show the panic.
#[test]
fn a_decoder_that_gives_up_is_an_error_of_the_file_alone() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.parquet").display().to_string();
    done(&[
        "-c",
        &format!("COPY (SELECT value % 7 AS a FROM generate_series(1, 1000)) TO '{path}' (COMPRESSION uncompressed)"),
    ]);
    let whole = std::fs::read(&path)?;
    let mut refused = 0;
    // The bytes of the pages, before the footer.
    for at in (4..whole.len().min(200)).step_by(3) {
        let mut damaged = whole.clone();
        damaged[at] = 0xFF;
        std::fs::write(&path, damaged)?;
        let mut program = onehop(&["-c", &format!("SELECT count(a), sum(a) FROM '{path}'")]);
        let output = program.env("RUST_BACKTRACE", "1").output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked") && !said.contains("stack backtrace"), "byte {at}: {said}");
        assert!(matches!(output.status.code(), Some(0..=3)), "byte {at}: {:?}", output.status);
        refused += u32::from(output.status.code() != Some(0));
    }
    assert!(refused > 0);
    Ok(())
}
