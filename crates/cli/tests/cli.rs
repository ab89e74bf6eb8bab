//! The binary from outside: output and exit codes.

mod support;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use serde_json::json;
use support::{Said, onehop, run};

fn run_with_input(words: &[&str], input: &str) -> io::Result<Said> {
    let mut child = onehop(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    Ok(child.wait_with_output()?.into())
}

#[track_caller]
fn expect(said: Said, exit: i32, out: &str) -> String {
    assert_eq!((said.exit, said.out.as_str()), (Some(exit), out), "stderr: {}", said.err);
    said.err
}

#[test]
fn a_statement_prints_its_rows_and_nothing_else() {
    assert_eq!(expect(run(&["-c", "SELECT 1 AS a, 'x' AS b"]), 0, "a,b\n1,x\n"), "");
}

#[test]
fn commands_and_files_run_in_order() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("two.sql");
    std::fs::write(&script, "SELECT 2 AS n; -- done\n")?;
    let script = script.display().to_string();
    expect(run(&["-c", "SELECT 1 AS n", "-f", &script, "-c", "SELECT 3 AS n"]), 0, "n\n1\nn\n2\nn\n3\n");
    Ok(())
}

#[test]
fn standard_input_is_a_script() -> io::Result<()> {
    expect(run_with_input(&[], "SELECT 1 AS a;\nSELECT\n2 AS b")?, 0, "a\n1\nb\n2\n");
    expect(run_with_input(&["-f", "-"], "SELECT 1 AS a")?, 0, "a\n1\n");
    expect(run_with_input(&[], "")?, 0, "");
    Ok(())
}

#[test]
fn statements_run_as_soon_as_they_are_whole() -> io::Result<()> {
    let mut child = onehop(&[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else { panic!("no pipes") };
    writeln!(stdin, "SELECT 41 + 1 AS answer;")?;
    let mut answers = BufReader::new(stdout).lines();
    assert_eq!(answers.nth(1).transpose()?.as_deref(), Some("42"));
    drop(stdin);
    assert!(child.wait()?.success());
    Ok(())
}

#[test]
fn every_format_prints() {
    let sql = "SELECT 1 AS n, CAST(NULL AS VARCHAR) AS t";
    let formats = [
        ("auto", "n,t\n1,\n"),
        ("csv", "n,t\n1,\n"),
        ("tsv", "n\tt\n1\t\\N\n"),
        ("json", "[{\"n\":1,\"t\":null}]\n"),
        ("jsonl", "{\"n\":1,\"t\":null}\n"),
        ("markdown", "| n | t |\n| ---: | --- |\n| 1 | *NULL* |\n"),
        (
            "box",
            "┌────────┬─────────┐\n│      n │ t       │\n│ bigint │ varchar │\n├────────┼─────────┤\n│      1 │ NULL    │\n└────────┴─────────┘\n",
        ),
    ];
    for (format, expected) in formats {
        expect(run(&["--format", format, "-c", sql]), 0, expected);
    }
    assert!(run(&["--format", "arrow", "-c", sql]).out.starts_with('\u{fffd}'));
    let by_environment = onehop(&["-c", "SELECT 1 AS n"]).env("ONEHOP_FORMAT", "jsonl").output();
    assert_eq!(by_environment.map(|output| Said::from(output).out).ok().as_deref(), Some("{\"n\":1}\n"));
}

#[test]
fn an_error_names_file_line_and_statement_and_stops_the_script() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("bad.sql");
    std::fs::write(&script, "SELECT 1 AS n;\n\n-- a note\nSELECT *\nFROM nowhere;\nSELECT 3;\n")?;
    let name = script.display().to_string();
    let err = expect(run(&["-f", &name, "-c", "SELECT 4"]), 1, "n\n1\n");
    assert!(err.starts_with("error: ") && err.contains("nowhere"), "{err}");
    assert!(err.contains(&format!("--> {name}, line 4, statement 2\n    4 | SELECT *\n    5 | FROM nowhere")), "{err}");
    Ok(())
}

#[test]
fn errors_of_every_source_exit_1() -> io::Result<()> {
    for sql in ["SELEC 1", "SELECT nothing", "SELECT 1 +", "SELECT CAST('x' AS INT)"] {
        let err = expect(run(&["-c", sql]), 1, "");
        assert!(err.starts_with("error: ") && err.contains("-c, line 1, statement 1"), "{sql}: {err}");
    }
    assert!(
        expect(run_with_input(&[], "SELECT 1 AS n;\nSELEC;")?, 1, "n\n1\n").contains("<stdin>, line 2, statement 2")
    );
    let err = expect(run(&["-f", "/nowhere/a.sql"]), 1, "");
    assert!(err.contains("cannot read the script /nowhere/a.sql"), "{err}");
    Ok(())
}

#[test]
fn a_result_that_was_cut_off_does_not_look_whole() {
    let sql = "SELECT CAST(t AS INT) AS n FROM (VALUES ('1'), ('x')) v(t)";
    for format in ["json", "csv", "box", "markdown"] {
        assert!(expect(run(&["--format", format, "-c", sql]), 1, "").starts_with("error: "), "{format}");
    }
}

#[test]
fn sql_without_its_flag_is_pointed_to_it() {
    let err = expect(run(&[":memory:", "SELECT 1"]), 2, "");
    assert!(err.contains("SQL follows -c"), "{err}");
}

#[test]
fn wrong_usage_exits_2() {
    for words in [&["--nonsense"][..], &["--format", "xml"], &["--set", "x"], &["docter"], &["-f"]] {
        let said = run(words);
        assert!(said.exit == Some(2) && said.out.is_empty() && said.err.contains("error:"), "{words:?}: {}", said.err);
    }
    assert!(!std::path::Path::new("docter").exists());
}

#[test]
fn a_data_file_is_not_a_database() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("trips.csv");
    std::fs::write(&file, "a\n1\n")?;
    let err = expect(run(&[&file.display().to_string(), "-c", "SELECT 1"]), 2, "");
    assert!(err.contains("is a file, and a database is a directory"), "{err}");
    Ok(())
}

#[test]
fn a_reader_who_leaves_ends_it_quietly() -> io::Result<()> {
    let sql = "SELECT * FROM generate_series(1, 100000000)";
    let mut child = onehop(&["-c", sql]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut first = [0; 8];
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_exact(&mut first)?;
    }
    let said: Said = child.wait_with_output()?.into();
    assert_eq!((said.exit, said.err.as_str()), (Some(0), ""));
    Ok(())
}

#[test]
fn rows_come_before_the_query_ends() -> io::Result<()> {
    let sql = "SELECT * FROM generate_series(1, 100000000000)";
    for format in ["csv", "json", "jsonl", "tsv", "box", "markdown", "arrow"] {
        let mut child = onehop(&["--format", format, "-c", sql]).stdout(Stdio::piped()).spawn()?;
        let mut some = vec![0; 1 << 20];
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_exact(&mut some)?;
        }
        assert!(child.wait()?.success(), "{format}");
    }
    Ok(())
}

#[test]
fn an_interrupt_exits_130() -> io::Result<()> {
    let sql = "SELECT * FROM generate_series(1, 1000000000000)";
    let mut child = onehop(&["-c", sql]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // Its endless rows show that the statement runs.
    if let Some(stdout) = child.stdout.as_mut() {
        stdout.read_exact(&mut [0; 100])?;
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    let said: Said = child.wait_with_output()?.into();
    assert_eq!(said.exit, Some(130), "{}", said.err);
    assert!(said.err.starts_with("cancelled after "), "{}", said.err);
    Ok(())
}

#[test]
fn dot_commands_work_in_scripts() -> io::Result<()> {
    let input = ".mode jsonl\nSELECT 1 AS n;\n.mode csv\nSELECT 2 AS n;\n.quit\nSELECT 3 AS n;\n";
    expect(run_with_input(&[], input)?, 0, "{\"n\":1}\nn\n2\n");
    let err = expect(run_with_input(&[], "SELECT 1 AS n;\n.nonsense\n")?, 2, "n\n1\n");
    assert!(err.contains("there is no command .nonsense") && err.contains("<stdin>, line 2, statement 2"), "{err}");
    Ok(())
}

#[test]
fn scripts_read_scripts_but_not_for_ever() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("self.sql");
    std::fs::write(&script, format!(".read {}\n", script.display()))?;
    let err = expect(run(&["-f", &script.display().to_string()]), 2, "");
    assert!(err.contains("more than 16 deep"), "{err}");
    Ok(())
}

#[test]
fn the_footer_comes_when_asked_for() {
    let err = expect(run(&["--timer", "-c", "SELECT 1 AS n"]), 0, "n\n1\n");
    assert!(err.starts_with("1 row · ") && err.contains(" ms · CPU"), "{err}");
}

#[test]
fn help_is_on_standard_output_and_complete() {
    let said = run(&["--help"]);
    assert_eq!(said.exit, Some(0));
    for word in
        ["Exit codes:", "Examples:", "Formats:", "Settings", "--memory-limit", "doctor", "completions", "./doctor"]
    {
        assert!(said.out.contains(word), "{word} is missing from:\n{}", said.out);
    }
    assert!(run(&["--version"]).out.starts_with("onehop "));
}

#[test]
fn the_doctor_finds_this_machine_fit() -> serde_json::Result<()> {
    let said = run(&["doctor"]);
    assert!(said.exit == Some(0) && said.out.contains("OK    cpu"), "{}{}", said.out, said.err);
    let said = run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&said.out)?;
    let names: Vec<&str> =
        report["probes"].as_array().into_iter().flatten().filter_map(|probe| probe["name"].as_str()).collect();
    for name in
        ["cpu", "memory", "kernel", "io_uring", "file system", "free space", "direct I/O", "memlock", "gpu", "libcuda"]
    {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    Ok(())
}

#[test]
fn completion_scripts_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let said = run(&["completions", shell]);
        assert!(said.exit == Some(0) && said.out.contains("onehop"), "{shell}");
    }
}

/// Creates a database of one table with the binary itself.
fn database(folder: &std::path::Path) -> String {
    let path = folder.join("db").display().to_string();
    let sql = "CREATE TABLE t AS SELECT value AS id, 'name ' || value AS name FROM generate_series(1, 100000)";
    expect(run(&[&path, "-c", sql]), 0, "");
    path
}

#[test]
fn tables_outlive_the_process() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = database(folder.path());
    expect(run(&[&path, "-c", "SELECT count(*) AS n, max(name) AS name FROM t"]), 0, "n,name\n100000,name 99999\n");
    expect(run(&[&path, "--readonly", "-c", ".tables"]), 0, "t\n");
    let err = expect(run(&[&path, "--readonly", "-c", "DROP TABLE t"]), 1, "");
    assert!(err.starts_with("error: "), "{err}");
    Ok(())
}

#[test]
fn check_finds_a_flipped_byte() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = database(folder.path());
    let said = run(&["check", &path]);
    assert!(
        said.exit == Some(0) && said.out.contains("100,000 rows") && said.out.ends_with("no problems\n"),
        "{}",
        said.out
    );

    let segment = largest_file(&std::path::Path::new(&path).join("segments"))?;
    let mut bytes = std::fs::read(&segment)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&segment, bytes)?;
    let said = run(&["check", &path, "--json"]);
    assert_eq!(said.exit, Some(3), "{}{}", said.out, said.err);
    let report: serde_json::Value = serde_json::from_str(&said.out)?;
    assert_eq!(report["problems"][0]["table"], "t", "{}", said.out);
    let said = run(&[&path, "-c", "SELECT max(id), max(name) FROM t"]);
    assert_eq!(said.exit, Some(3), "{}{}", said.out, said.err);
    Ok(())
}

fn largest_file(folder: &std::path::Path) -> io::Result<std::path::PathBuf> {
    let mut largest = (0, folder.to_path_buf());
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let found = match entry.file_type()?.is_dir() {
            true => largest_file(&entry.path())?,
            false => entry.path(),
        };
        let size = std::fs::metadata(&found)?.len();
        if found.is_file() && size > largest.0 {
            largest = (size, found);
        }
    }
    Ok(largest.1)
}

#[test]
fn settings_come_from_flags_before_the_environment() -> io::Result<()> {
    let threads = |words: &[&str]| -> io::Result<Said> {
        let words: Vec<&str> = words.iter().copied().chain(["-c", ".settings"]).collect();
        Ok(onehop(&words).env("ONEHOP_THREADS", "3").output()?.into())
    };
    let line =
        |said: &Said| said.out.lines().find(|line| line.starts_with("threads")).map(str::to_string).unwrap_or_default();
    let by_environment = threads(&[])?;
    assert!(
        line(&by_environment).contains(" 3 ") && by_environment.out.contains("from: ONEHOP_THREADS"),
        "{}",
        by_environment.out
    );
    let by_flag = threads(&["--threads", "2"])?;
    assert!(line(&by_flag).contains(" 2 ") && by_flag.out.contains("from: command line"), "{}", by_flag.out);
    Ok(())
}

#[test]
fn a_wrong_setting_is_wrong_usage_everywhere() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("db").display().to_string();
    for words in [
        &[&path, "--set", "thread=2", "-c", "SELECT 1"][..],
        &["pipe", &path, "--set", "thread=2"],
        &["bench", "ssb", "--db", &path, "--set", "thread=2"],
    ] {
        let err = expect(run(words), 2, "");
        assert!(err.contains("no setting \"thread\"") && err.contains("did you mean \"threads\"?"), "{err}");
        assert!(err.contains("memory_limit, ") && err.contains("io.path, "), "{err}");
    }
    let err = expect(run(&[&path, "--set", "io.path=fast", "-c", "SELECT 1"]), 2, "");
    assert!(err.contains("io.path cannot be 'fast': it takes auto, buffered, direct"), "{err}");
    let err = expect(run(&[&path, "--memory-limit", "lots", "-c", "SELECT 1"]), 2, "");
    assert!(err.contains("memory_limit cannot be 'lots': it takes a size"), "{err}");
    let said: Said = onehop(&[&path, "-c", "SELECT 1"]).env("ONEHOP_IO_PATH", "fast").output()?.into();
    let err = expect(said, 2, "");
    assert!(err.contains("ONEHOP_IO_PATH: io.path cannot be 'fast'"), "{err}");
    assert!(!std::path::Path::new(&path).exists(), "nothing is made before the settings are known to be right");
    // In SQL it is a failed statement.
    expect(run(&["-c", "SET thread = 2"]), 1, "");
    Ok(())
}

#[test]
fn lines_of_a_tbl_file_end_alike() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let copy = |text: &str| -> io::Result<Said> {
        let path = folder.path().join("x.tbl");
        std::fs::write(&path, text)?;
        let sql = format!(
            "CREATE TABLE t (a INT, b VARCHAR); COPY t FROM '{}'; SELECT max(a) AS a, max(b) AS b FROM t",
            path.display()
        );
        Ok(run(&["-c", &sql]))
    };
    for text in ["1|x|\n2|y|\n", "1|x\n2|y\n", "1|x|\r\n2|y|\r\n"] {
        expect(copy(text)?, 0, "a,b\n2,y\n");
    }
    for text in ["1|x|\n2|y\n", "1|x\n2|y|\n"] {
        let err = expect(copy(text)?, 1, "");
        assert!(err.contains("x.tbl") && err.contains("line 2"), "{err}");
    }
    Ok(())
}

#[test]
fn generated_tables_come_all_or_not_at_all() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("db").display().to_string();
    expect(run(&[&path, "-c", "CREATE TABLE lineorder (a INT)"]), 0, "");
    let err = expect(run(&["gen", "ssb", "--sf", "0.01", "--out", &path]), 1, "");
    assert!(err.contains("there is a table \"lineorder\" already") && err.contains("--replace"), "{err}");
    expect(run(&[&path, "-c", ".tables"]), 0, "lineorder\n");
    Ok(())
}

#[test]
fn a_benchmark_says_what_it_ran_on_and_checks_its_answers() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("db").display().to_string();
    let bench = |more: &[&str]| {
        let words: Vec<&str> = ["bench", "ssb", "--sf", "0.01", "--db", &path].iter().chain(more).copied().collect();
        run(&words)
    };
    let said = bench(&["--queries", "1,q2.1..2.2", "--runs", "1", "--threads", "1", "--json", "-"]);
    assert_eq!(said.exit, Some(0), "{}", said.err);
    let report: serde_json::Value = serde_json::from_str(&said.out)?;
    let ids: Vec<&str> =
        report["queries"].as_array().into_iter().flatten().filter_map(|q| q["query"].as_str()).collect();
    assert_eq!(ids, ["q1.1", "q1.2", "q1.3", "q2.1", "q2.2"]);
    assert!(report["queries"].as_array().into_iter().flatten().all(|q| q["answer"]["state"] == "verified"), "{report}");
    for (name, value) in [("threads", json!(1)), ("io_path", json!("buffered")), ("cache", json!("hot"))] {
        assert_eq!(report[name], value, "{report}");
    }
    for name in ["date", "cores", "memory_bytes", "kernel", "onehop_version", "build_profile"] {
        assert!(!report["environment"][name].is_null(), "{name}: {report}");
    }
    let is_debug = report["environment"]["build_profile"] == "debug";
    assert_eq!(said.err.contains("WARNING: this is a debug build"), is_debug, "{}", said.err);

    let said = bench(&["--queries", "1.1", "--runs", "0", "--set", "io.path=buffered", "--set", "threads=1"]);
    assert!(said.exit == Some(0) && said.out.contains("\npath      buffered\n"), "{}{}", said.out, said.err);
    assert!(said.out.contains("\nthreads   1\n") && said.out.ends_with("verified\n"), "{}", said.out);
    assert!(!said.err.contains("WARNING"), "nothing was timed: {}", said.err);

    let err = expect(bench(&["--queries", "5"]), 2, "");
    assert!(err.contains("there is no query 5; there are q1.1, ") && err.contains("q4.3"), "{err}");
    // Data of another scale factor has other answers.
    let said = run(&["bench", "ssb", "--sf", "0.1", "--db", &path, "--queries", "1.1", "--runs", "1"]);
    assert!(
        said.exit == Some(1) && said.out.contains("WRONG: got (") && said.err.contains("scale factor"),
        "{}",
        said.err
    );
    Ok(())
}

#[test]
fn bench_io_measures_every_path_and_leaves_nothing() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    let place = at("");
    let bench = |more: &[&str]| {
        let words = ["bench", "io", &place, "--size", "2MiB", "--runtime", "30ms", "--ramp", "0s", "--bs", "64KiB"];
        run(&words.iter().chain(more).copied().collect::<Vec<_>>())
    };
    let (json, csv, svg) = (at("a.json"), at("a.csv"), at("a.svg"));
    let files = ["--verify", "--repeat", "2", "--json", &json, "--csv", &csv, "--plot", &svg];
    // The default paths: those that the user does not name may be missing here.
    let said = bench(&[&["--rw", "read,randwrite", "--iodepth", "1,4", "--numjobs", "2"][..], &files].concat());
    assert_eq!(said.exit, Some(0), "{}", said.err);
    assert!(said.out.starts_with("file      ") && said.out.contains("\nread      buffered"), "{}", said.out);
    assert!(
        said.out.contains("\ncache     ") && said.out.contains("\ncontent   every byte is compared"),
        "{}",
        said.out
    );
    assert!(!folder.path().join("onehop-bench-io").exists(), "it goes with the run");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    assert_eq!((&report["schema_version"], &report["benchmark"]), (&json!(1), &json!("io")), "{report}");
    for name in ["kernel", "file_system", "mount_options", "cores", "date"] {
        assert!(!report["environment"][name].is_null(), "{name}: {report}");
    }
    let points: Vec<_> = report["points"].as_array().into_iter().flatten().collect();
    let missing = report["unavailable"].as_array().map_or(0, Vec::len);
    // Two patterns by buffered and host with one depth each and io_uring with two.
    assert_eq!(points.len() + missing, 2 * (1 + 1 + 2), "{report}");
    for point in &points {
        assert!(point["effective_path"].is_string() && point["page_cache"].is_string(), "{point}");
        assert_eq!(point["repeats_bytes_per_sec"].as_array().map_or(0, Vec::len), 2, "{point}");
    }
    assert_eq!(std::fs::read_to_string(&csv)?.lines().count(), 1 + points.len());
    assert!(std::fs::read_to_string(&svg)?.starts_with("<svg "));

    // Paths to a GPU are measured if there is one, and listed with the doctor's reason if there is
    // none.
    let said = bench(&["--path", "all", "--rw", "read", "--iodepth", "2", "--json", &json]);
    assert_eq!(said.exit, Some(0), "{}", said.err);
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    let missing: Vec<_> = report["unavailable"].as_array().into_iter().flatten().collect();
    let reason = |path: &str| missing.iter().find(|one| one["requested_path"] == path).map(|one| one["reason"].clone());
    if let Some(reason) = reason("staged") {
        let doctor = run(&["doctor", "--json"]);
        let found = reason.as_str().unwrap_or_default().split(": ").next().unwrap_or_default().to_string();
        assert!(!found.is_empty() && doctor.out.contains(&found), "{reason}");
        assert_eq!(reason_of_all(&missing, "cufile-"), 5, "{report}");
        let said = bench(&["--path", "staged"]);
        assert!(said.exit == Some(1) && said.err.contains("the path staged is not to be had here"), "{}", said.err);
        let said = bench(&["--path", "direct"]);
        assert!(said.exit == Some(4) && said.err.contains("was to be direct"), "{}", said.err);
    }
    let said = bench(&["--path", "gpu", "--emit", "gdsio"]);
    assert!(said.exit == Some(0) && said.out.contains("\ngdsio -f "), "{}{}", said.out, said.err);

    let compare = |more: &[&str]| run(&[&["bench", "io", "--compare", &json, &json][..], more].concat());
    let said = compare(&["--fail-under", "0.99"]);
    assert!(said.exit == Some(0) && said.out.contains("1.000  geometric mean"), "{}{}", said.out, said.err);
    let said = compare(&["--fail-under", "1.01"]);
    assert!(said.exit == Some(1) && said.err.contains("below 1.01 of the rate before"), "{}", said.err);

    let said = bench(&["--emit", "fio", "--path", "host"]);
    assert!(
        said.exit == Some(0) && said.out.contains("\nfio --name=point ") && said.out.contains("--direct=1"),
        "{}",
        said.out
    );
    assert!(!folder.path().join("onehop-bench-io").exists(), "nothing is made for that");
    Ok(())
}

fn reason_of_all(missing: &[&serde_json::Value], prefix: &str) -> usize {
    missing.iter().filter(|one| one["requested_path"].as_str().is_some_and(|path| path.starts_with(prefix))).count()
}

#[test]
fn bench_io_writes_over_nothing_and_finds_wrong_bytes() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().join("f");
    let name = place.display().to_string();
    let bench = |more: &[&str]| {
        let words = ["bench", "io", &name, "--size", "1MiB", "--bs", "1MiB", "--path", "buffered", "--runtime", "10ms"];
        run(&words.iter().chain(more).copied().collect::<Vec<_>>())
    };
    std::fs::write(&place, "my thesis")?;
    let err = expect(bench(&["--rw", "write"]), 1, "");
    assert!(err.contains("not made by this benchmark"), "{err}");
    assert_eq!(std::fs::read_to_string(&place)?, "my thesis");
    let err = expect(bench(&[]), 2, "");
    assert!(err.contains("is too short"), "{err}");
    // Reads accept the file as it is, because its expected content is unknown.
    std::fs::write(&place, vec![7; 3_000_000])?;
    let said = bench(&["--rw", "read,randread"]);
    assert!(said.exit == Some(0) && said.out.contains("randread"), "{}", said.err);
    for refused in [&["--verify"][..], &["--rw", "read,write"]] {
        let err = expect(bench(refused), 1, "");
        assert!(err.contains("not made by this benchmark"), "{err}");
    }
    assert_eq!(std::fs::read(&place)?, vec![7; 3_000_000]);

    // Several files are read as one. The second has no whole block, and the third has one.
    let behind = ["g", "h"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&behind[0], "short")?;
    std::fs::write(&behind[1], vec![7; 1 << 20])?;
    let several = [&behind[0], &behind[1], "--rw", "read,randread", "--path", "host,uring", "--json", "-"];
    let said = bench(&several);
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_default();
    assert_eq!(
        (said.exit, &report["settings"]["file_bytes"]),
        (Some(0), &json!(2_998_272 + (1 << 20))),
        "{}",
        said.err
    );
    assert!(report["settings"]["file"].as_str().is_some_and(|name| name.ends_with("/f and 2 more")), "{report}");
    let missing = folder.path().join("i").display().to_string();
    for (more, why) in [
        (&[&behind[0][..], "--verify"][..], "several files are read and nothing else"),
        (&[&behind[0], "--rw", "write"], "several files are read and nothing else"),
        (&[&behind[0], "--emit", "fio"], "several files are read and nothing else"),
        (&[&behind[0], &missing], "it is not there"),
        (&[&behind[0], "--numjobs", "4"], "they have"),
    ] {
        let err = expect(bench(more), 2, "");
        assert!(err.contains(why), "{more:?}: {err}");
    }
    assert!(std::fs::read(&place)? == vec![7; 3_000_000] && !std::fs::exists(&missing)?);
    std::fs::remove_file(&place)?;

    let said = bench(&["--keep"]);
    assert!(said.exit == Some(0) && said.err.contains("kept "), "{}", said.err);
    let mut bytes = std::fs::read(&place)?;
    bytes[777_777] ^= 4;
    std::fs::write(&place, bytes)?;
    let said = bench(&["--verify", "--ramp", "0s"]);
    assert!(said.exit == Some(3) && said.err.contains("the byte at 777777"), "{}", said.err);
    assert!(said.err.contains("kept by an earlier run"), "{}", said.err);
    assert!(place.exists(), "an earlier run has kept it");

    for (more, why) in [
        (&["--bs", "5000"][..], "whole pages"),
        (&["--rw", "trim"], "randwrite"),
        (&["--path", "compat"], "cuFile"),
        (&["--path", "host", "--require-direct"], "--path cufile"),
        (&["--runtime", "soon"], "a time"),
        (&["--plot", "a.png"], ".svg"),
        (&["--fail-under", "0.9"], "--compare"),
        (&["--compare", &name, &name], "cannot read"),
    ] {
        let words = [&["bench", "io", &name][..], more].concat();
        let said = run(&words);
        assert!(matches!(said.exit, Some(1 | 2)) && said.err.contains(why), "{words:?}: {}", said.err);
    }
    Ok(())
}

#[test]
fn an_interrupted_bench_io_removes_its_file() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().display().to_string();
    let words = ["bench", "io", &place, "--size", "1MiB", "--bs", "64KiB", "--path", "buffered", "--runtime", "1h"];
    let mut child = onehop(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // The head is printed once the file exists and the signal handler is installed.
    if let Some(stdout) = child.stdout.as_mut() {
        stdout.read_exact(&mut [0; 20])?;
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    let said: Said = child.wait_with_output()?.into();
    assert_eq!(said.exit, Some(130), "{}", said.err);
    assert!(said.err.contains("cancelled after "), "{}", said.err);
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
    Ok(())
}

#[test]
fn bench_q6_checks_its_answers_and_leaves_nothing() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (place, json, csv, svg) = (at("data"), at("a.json"), at("a.csv"), at("a.svg"));
    std::fs::create_dir(&place)?;
    let words = ["bench", "q6", &place, "--sf", "0.01", "--bs", "64KiB,1MiB", "--runs", "2"];
    let said = run(&[&words[..], &["--json", &json, "--csv", &csv, "--plot", &svg]].concat());
    // The paths of a GPU may be missing, because none was named.
    assert_eq!(said.exit, Some(0), "{}", said.err);
    assert!(said.out.contains("\nanswer    1193053.2253, DuckDB's"), "{}", said.out);
    assert_eq!(std::fs::read_dir(&place)?.count(), 0, "tables go with the run");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    assert_eq!((&report["schema_version"], &report["benchmark"]), (&json!(1), &json!("q6")), "{report}");
    let points: Vec<_> = report["points"].as_array().into_iter().flatten().collect();
    let missing: Vec<_> = report["unavailable"].as_array().into_iter().flatten().collect();
    // Two layouts, modes and buffer sizes each, by four paths.
    assert_eq!(points.len() + missing.len(), 2 * 2 * 2 * 4, "{report}");
    assert!(points.iter().filter(|point| point["way"] == "cpu").count() == 8, "{report}");
    for point in &points {
        assert!(point["is_right"] == true && point["answer"] == "1193053.2253", "{point}");
        assert_eq!(point["runs_seconds"].as_array().map_or(0, Vec::len), 2, "{point}");
        assert!(point["figures"]["spent"]["io_seconds"].is_number(), "{point}");
    }
    assert!(missing.iter().all(|point| point["reason"].as_str().is_some_and(|why| !why.is_empty())), "{report}");
    let doctor = run(&["doctor", &place]);
    let why = "no NVIDIA GPU; queries run on the CPU";
    assert_eq!(said.out.contains(why), doctor.out.contains(why), "{}{}", said.out, doctor.out);
    assert_eq!(std::fs::read_to_string(&csv)?.lines().count(), 1 + points.len());
    let drawn = std::fs::read_to_string(&svg)?;
    assert!(drawn.contains("Figure 7: time of Query 6 (rows, paper)") && drawn.contains("Figure 8"), "{drawn}");
    Ok(())
}

#[test]
fn what_requires_a_gpu_says_why_there_is_none() -> io::Result<()> {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        // The machine's own checks cover the use of a GPU.
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let db = folder.path().join("db").display().to_string();
    for words in [
        &["--require-gpu", &db, "-c", "select 1"][..],
        &["bench", "ssb", "--sf", "0.01", "--db", &db, "--device", "cuda:0"],
        &["bench", "ssb", "--sf", "0.01", "--db", &db, "--device", "0", "--resident"],
    ] {
        let said = run(words);
        assert_eq!(said.exit, Some(4), "{words:?}: {}{}", said.out, said.err);
        assert!(said.err.contains("a GPU is required, and there is none: lib"), "{}", said.err);
        // Fails before anything is created.
        assert!(said.out.is_empty() && std::fs::read_dir(folder.path())?.count() == 0, "{}", said.out);
    }
    for words in [
        &["bench", "ssb", "--device", "gpu", "--db", &db][..],
        &["bench", "ssb", "--resident", "--db", &db],
        &["bench", "ssb", "--device", "cuda:0", "--resident", "--stream", "--db", &db],
    ] {
        assert_eq!(run(words).exit, Some(2), "{words:?}");
    }
    // Other statements print no notice.
    let said = run(&["-c", "create table t as select unnest(range(0, 300000)) as a; select sum(a) from t", "--timer"]);
    assert!(said.exit == Some(0) && said.err.contains(" · CPU") && !said.err.contains("notice"), "{}", said.err);
    // An unmet statement has its own exit code.
    let sql =
        "set gpu.mode = 'require'; set exec.fallback = 'error'; create table t as select 1 as a; select sum(a) from t";
    let said = run(&["-c", sql]);
    assert!(said.exit == Some(4) && said.err.contains("a GPU is required, and lib"), "{:?} {}", said.exit, said.err);
    Ok(())
}

#[test]
fn bench_q6_reads_a_database_and_tells_wrong_answers() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (db, place) = (path("db"), path(""));
    expect(run(&["gen", "tpch", "--sf", "0.01", "--out", &db, "--quiet"]), 0, "");
    let words = ["bench", "q6", "--db", &db, "--path", "cpu", "--runs", "1", "--bs", "1MiB"];
    let said = run(&[&words[..], &["--sf", "0.01"]].concat());
    assert!(said.exit == Some(0) && said.out.contains("\nsegments paper      cpu"), "{}{}", said.out, said.err);
    // Another scale factor: no time.
    let said = run(&[&words[..], &["--sf", "0.1"]].concat());
    assert!(said.exit == Some(1) && said.out.contains("WRONG: 1193053.2253 instead of "), "{}{}", said.out, said.err);
    assert!(said.err.contains("of scale factor 0.1?"), "{}", said.err);

    let mine = folder.path().join("onehop-bench-q6-sf0.01");
    std::fs::create_dir(&mine)?;
    std::fs::write(mine.join("lineitem.rows"), "my thesis")?;
    let said = run(&["bench", "q6", &place, "--sf", "0.01", "--path", "cpu"]);
    assert!(said.exit == Some(1) && said.err.contains("was not made by this version"), "{}", said.err);
    assert_eq!(std::fs::read_to_string(mine.join("lineitem.rows"))?, "my thesis");

    for (more, why) in [
        (&["--bs", "4KiB"][..], "64 KiB"),
        (&["--path", "direct"], "gpu-direct"),
        (&["--layout", "pages"], "rows"),
        (&["--mode", "fast"], "overlapped"),
        (&["--sf", "0"], "scale factor"),
        (&["--plot", "a.png"], ".svg"),
    ] {
        let words = [&["bench", "q6", &place][..], more].concat();
        let said = run(&words);
        assert!(matches!(said.exit, Some(1 | 2)) && said.err.contains(why), "{words:?}: {}", said.err);
    }
    let said = run(&["bench", "q6", "--db", &db, "--layout", "rows"]);
    assert!(said.exit == Some(2) && said.err.contains("name the folder"), "{}", said.err);
    Ok(())
}

#[test]
fn bench_q6_keeps_tables_and_goes_when_it_is_interrupted() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().display().to_string();
    let words = ["bench", "q6", &place, "--sf", "0.01", "--path", "cpu", "--layout", "rows", "--mode", "paper"];
    let mut child =
        onehop(&[&words[..], &["--runs", "1000"]].concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(stdout) = child.stdout.as_mut() {
        stdout.read_exact(&mut [0; 20])?;
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    let said: Said = child.wait_with_output()?.into();
    assert!(said.exit == Some(130) && said.err.contains("cancelled after "), "{}", said.err);
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);

    let said = run(&[&words[..], &["--keep", "--runs", "1", "--bs", "1MiB"]].concat());
    assert!(said.exit == Some(0) && said.err.contains("kept "), "{}", said.err);
    // Kept files are verified before they are used.
    let pages = folder.path().join("onehop-bench-q6-sf0.01/lineitem.rows");
    let mut bytes = std::fs::read(&pages)?;
    bytes[100_000] ^= 4;
    std::fs::write(&pages, bytes)?;
    let said = run(&words);
    assert!(said.exit == Some(3) && said.err.contains("page 11: it does not match its checksum"), "{}", said.err);
    assert!(pages.exists(), "an earlier run has kept it");
    Ok(())
}

#[test]
fn a_schema_can_be_run_again() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (first, second, script) = (path("first"), path("second"), path("schema.sql"));
    let sql = "CREATE TABLE sales (id BIGINT NOT NULL, \"Day\" DATE, store VARCHAR)
        PARTITION BY RANGE (\"Day\") (PARTITION old VALUES LESS THAN (DATE '2025-01-01'),
                                      PARTITION new VALUES LESS THAN (MAXVALUE))
        CLUSTER BY (\"Day\", id);
        CREATE TABLE \"order\" (a INT, \"check\" DECIMAL(9,2) NOT NULL) PARTITION BY HASH (a) PARTITIONS 3;
        CREATE VIEW recent AS SELECT id, store FROM sales WHERE \"Day\" >= DATE '2025-01-01';";
    expect(run(&[&first, "-c", sql]), 0, "");
    let schema = run(&[&first, "-c", ".schema"]).out;
    std::fs::write(&script, &schema)?;
    expect(run(&[&second, "-f", &script]), 0, "");
    assert_eq!(run(&[&second, "-c", ".schema"]).out, schema);

    let one = "CREATE TABLE sales (\n    id BIGINT NOT NULL,\n    \"Day\" DATE,\n    store VARCHAR\n)\nPARTITION BY RANGE \
               (\"Day\") (\n    PARTITION old VALUES LESS THAN (DATE '2025-01-01'),\n    PARTITION new VALUES LESS THAN \
               (MAXVALUE)\n)\nCLUSTER BY (\"Day\", id);\n";
    expect(run(&[&first, "-c", ".schema SALES"]), 0, one);
    let shown = run(&[&first, "--format", "jsonl", "-c", "SHOW CREATE VIEW recent"]).out;
    assert!(
        shown.starts_with("{\"name\":\"recent\",\"sql\":\"CREATE VIEW recent AS SELECT id, store FROM "),
        "{shown}"
    );
    assert!(expect(run(&[&first, "-c", ".schema sale"]), 1, "").contains("did you mean \"sales\"?"));
    assert!(run(&[&first, "-c", ".schema onehop_tables"]).out.starts_with("column_name,"));
    Ok(())
}

#[test]
fn segments_on_a_cluster_need_a_database_directory_and_a_place_on_a_cluster() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("db").display().to_string();
    let said = expect(run(&[&path, "--segments", "/elsewhere", "-c", "SELECT 1"]), 2, "");
    assert!(said.contains("cannot keep segments under '/elsewhere'") && said.contains("rados://POOL"), "{said}");
    let said = expect(run(&["--segments", "rados://pool/path", "-c", "SELECT 1"]), 2, "");
    assert!(said.contains("<PATH>"), "{said}");
    // The failed attempt leaves nothing that a later open would continue.
    assert_eq!(expect(run(&[&path, "-c", "SELECT 1 AS a"]), 0, "a\n1\n"), "");
    let said = expect(run(&[&path, "--segments", "rados://pool/path", "-c", "SELECT 1"]), 2, "");
    assert!(said.contains("lie in its own directory, not in rados://pool/path"), "{said}");
    Ok(())
}
