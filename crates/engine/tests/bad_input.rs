//! Statements and files that nobody should write, and somebody will.
//!
//! Model: absurd SQL, hostile names, text files and Parquet files that are damaged, mistyped or not there, targets that
//! cannot be written, types that cannot be stored. Every statement ends in rows or in an error that says whose fault it
//! is; none panics, hangs, or takes the process with it; and none leaves files in the database. What may kill a process
//! runs in one of its own. Damage is a function of the printed seed.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use onehop_engine::{Database, ErrorKind, Session};
use support::{dump, fails, files_on_disk, known_files, quoted, random, rows, run, runtime, tiny};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A database in memory with a small table.
fn memory(runtime: &Runtime) -> Session {
    let session = Database::memory(&tiny()).unwrap().session().unwrap();
    runtime.block_on(run(&session, "CREATE TABLE t AS SELECT unnest(range(0, 20)) AS x"));
    session
}

#[test]
fn what_is_wrong_with_a_call_is_the_callers_and_no_bug() {
    let runtime = runtime();
    let session = memory(&runtime);
    for (sql, said) in [
        ("SELECT last_value() OVER () FROM t", "last_value takes arguments"),
        ("SELECT first_value() OVER () FROM t", "first_value takes arguments"),
        ("SELECT c ~ '((a{0,100}){0,100}){0,100}' FROM (VALUES ('a')) AS v(c)", "invalid regular expression"),
        (
            "SELECT regexp_replace(c, '((a{0,100}){0,100}){0,100}', '') FROM (VALUES ('a')) AS v(c)",
            "regular expression",
        ),
        ("SELECT 'a' ~ '(('", "invalid regular expression"),
        ("SELECT round(1.5, a) FROM (VALUES (1.5)) AS v(a)", "function round takes no arguments of the types"),
        ("SELECT trunc(CAST(1.5 AS DOUBLE), 2.5)", "function trunc takes no arguments of the types"),
    ] {
        let e = runtime.block_on(fails(&session, sql));
        assert!(e.message().contains(said) && e.kind() != ErrorKind::Internal, "{sql}: {e}");
    }
    let padded = "SELECT lpad(c, -1, c), rpad(c, -5), repeat(c, -2) FROM (VALUES ('ab'), ('cd')) AS v(c)";
    assert_eq!(runtime.block_on(run(&session, padded)), ["||", "||"]);
}

#[test]
fn tables_of_many_columns_are_made() {
    let runtime = runtime();
    let session = memory(&runtime);
    let types = ["INT", "VARCHAR", "DECIMAL(10, 2)", "TIMESTAMP NOT NULL"];
    let columns: Vec<String> = (0..5000).map(|at| format!("c{at} {}", types[at % 4])).collect();
    runtime.block_on(run(&session, &format!("CREATE TABLE wide ({})", columns.join(", "))));
    let described =
        "SELECT count(*), count(DISTINCT data_type) FROM information_schema.columns WHERE table_name = 'wide'";
    assert_eq!(runtime.block_on(run(&session, described)), ["5000|4"]);
    let of_two = "SELECT column_name, data_type, is_nullable FROM information_schema.columns \
                  WHERE table_name = 'wide' AND ordinal_position > 4998";
    let expected = ["c4998|numeric|YES", "c4999|timestamp without time zone|NO"];
    assert_eq!(runtime.block_on(run(&session, of_two)), expected);
}

// --- Text --------------------------------------------------------------------------------------------------------

#[test]
fn statements_without_a_statement_are_syntax_errors() {
    let runtime = runtime();
    let session = memory(&runtime);
    for sql in
        ["", " \n\t", "-- only a comment", "/* only */ /* comments */", ";", "/* not closed", "'not closed", "\0"]
    {
        let e = runtime.block_on(fails(&session, sql));
        assert_eq!(e.kind(), ErrorKind::Syntax, "{sql:?}: {e}");
    }
    for sql in ["SELECT 1; SELECT 2", "SELECT", "CREATE TABLE", "INSERT INTO t", "COPY t FROM", ")("] {
        let e = runtime.block_on(fails(&session, sql));
        assert!(matches!(e.kind(), ErrorKind::Syntax | ErrorKind::Invalid), "{sql:?}: {:?} {e}", e.kind());
    }
    assert_eq!(runtime.block_on(run(&session, "SELECT 1;;; -- end")), ["1"]);
    // A byte order mark is taken or refused.
    let outcome = runtime.block_on(rows(&session, "\u{feff}SELECT 1"));
    assert!(outcome.is_ok() || outcome.is_err_and(|e| e.kind() == ErrorKind::Syntax));
}

#[test]
fn nesting_has_a_limit_and_an_error() {
    let runtime = runtime();
    let session = memory(&runtime);
    let nested = |open: &str, close: &str| format!("SELECT {}1{}", open.repeat(10_000), close.repeat(10_000));
    for sql in [
        nested("(", ")"),
        nested("abs(", ")"),
        nested("- ", ""),
        nested("NOT ", ""),
        nested("[", "]"),
        nested("(SELECT ", ")"),
        nested("EXISTS (SELECT ", ")"),
        nested("CASE WHEN true THEN ", " END"),
        format!("SELECT * FROM {}t{}", "(SELECT * FROM ".repeat(10_000), ")".repeat(10_000)),
        format!("{} SELECT 1", "/*".repeat(10_000)),
    ] {
        let e = runtime.block_on(fails(&session, &sql));
        assert_eq!(e.kind(), ErrorKind::Syntax, "{}: {e}", support::shortened(&sql));
    }
}

/// What grows to the right, and is a deep tree all the same; and how long it may be, if not as long as anybody likes.
fn chains(terms: usize) -> Vec<(String, String, usize)> {
    const ANY: usize = usize::MAX;
    let chain = |start: &str, link: &str, most| (link.to_string(), format!("{start}{}", link.repeat(terms)), most);
    let nested = |open: &str, inner: &str, close: &str, most| {
        (open.to_string(), format!("SELECT {}{inner}{}", open.repeat(terms), close.repeat(terms)), most)
    };
    let each = |name: &str, start: &str, link: &dyn Fn(usize) -> String, end: &str, most| {
        (name.to_string(), format!("{start}{}{end}", (1..=terms).map(link).collect::<String>()), most)
    };
    vec![
        chain("SELECT 1", " + 1", 990),
        chain("SELECT count(*) FROM t WHERE 5 < x", " - x", 990),
        chain("SELECT 'a'", " || 'a'", 990),
        chain("SELECT 1", "::INT", 990),
        chain("SELECT count(*) FROM t WHERE x", " IS NULL", 990),
        chain("SELECT count(*) FROM t WHERE x > 1", " AND x > 1", ANY),
        chain("SELECT count(*) FROM t WHERE x = 1", " OR x = 2", ANY),
        chain("SELECT count(*) FROM t a, t b WHERE a.x = 1", " OR a.x + 1 = b.x", ANY),
        chain("SELECT count(*) FROM t a, t b WHERE a.x = 1", " AND a.x < b.x + 1", ANY),
        chain("SELECT 1", " UNION ALL SELECT 1", 4_900),
        chain("SELECT 1", " UNION SELECT 2", 4_900),
        chain("SELECT 1", " EXCEPT SELECT 2", 100),
        chain("SELECT NULL::INT", "[]", 30),
        chain("SELECT CAST(NULL AS ", "ARRAY<", 0),
        chain("SELECT ", "INTERVAL ", 0),
        chain("", "EXPLAIN ", 0),
        chain("SELECT true", " IS NOT DISTINCT FROM true", 90),
        chain("SELECT ", "CASE WHEN true THEN ", 0),
        chain("SELECT ", "CAST(", 0),
        chain("SELECT ", "(SELECT ", 0),
        chain("SELECT ", "CASE (", 0),
        nested("CAST(CASE WHEN true THEN (", "1 +", ") END AS INT)", 0),
        each("OR", "SELECT count(*) FROM t WHERE x = 1", &|i| format!(" OR (x = {i} AND x < {i} + 1)"), "", ANY),
        each("AND", "SELECT count(*) FROM t WHERE x = 1", &|i| format!(" AND x + {i} <> {i}"), "", ANY),
        each("JOIN", "SELECT count(*) FROM t j0", &|i| format!(" JOIN t j{i} ON j{i}.x = j{}.x", i - 1), "", 100),
        each("CROSS", "SELECT count(*) FROM (SELECT 1) c0", &|i| format!(", (SELECT {i}) c{i}"), "", 100),
        each(
            "WITH",
            "WITH c0 AS (SELECT 1 AS x)",
            &|i| format!(", c{i} AS (SELECT x + 1 AS x FROM c{})", i - 1),
            &format!(" SELECT * FROM c{terms}"),
            400,
        ),
        nested("(", "1", ")", 30),
        nested("abs(", "1", ")", 90),
        nested("CASE WHEN true THEN ", "1", " END", 90),
        nested("(SELECT ", "1", ")", 12),
        nested("EXISTS (SELECT ", "1", ")", 12),
        nested("* FROM (SELECT ", "1 AS x", ") s", 45),
    ]
}

#[test]
fn chains_of_thirty_terms_work() {
    let (passed, output) = support::in_a_process("body_of_chains", "ONEHOP_TEST_TERMS=30", &[], None);
    assert!(passed, "{output}");
}

#[test]
fn chains_of_nine_hundred_terms_are_an_error_or_work() {
    let (passed, output) = support::in_a_process("body_of_chains", "ONEHOP_TEST_TERMS=900", &[], None);
    assert!(passed, "{output}");
}

#[test]
fn chains_of_ten_thousand_terms_are_an_error_or_work() {
    let (passed, output) = support::in_a_process("body_of_chains", "ONEHOP_TEST_TERMS=10000", &[], None);
    assert!(passed, "{output}");
}

#[test]
#[ignore = "run by chains_of_..._terms_..."]
fn body_of_chains() {
    let terms: usize = std::env::var("ONEHOP_TEST_TERMS").unwrap().parse().unwrap();
    let wanted = std::env::var("ONEHOP_TEST_CHAIN").unwrap_or_default();
    // Workers have 2 MiB, of which a quarter is the margin.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).thread_stack_size(1536 << 10).enable_all().build().unwrap();
    let session = std::sync::Arc::new(memory(&runtime));
    let mut wrong = Vec::new();
    for (name, sql, most) in chains(terms).into_iter().filter(|(name, ..)| name.contains(&wanted)) {
        // On a worker, as a server would run it.
        let session = std::sync::Arc::clone(&session);
        let started = std::time::Instant::now();
        let outcome = runtime.block_on(runtime.spawn(async move { rows(&session, &sql).await })).unwrap();
        let words = outcome.as_ref().map(Vec::len).map_err(|e| format!("{:?} {e}", e.kind()));
        println!("{terms} times {name:?} in {:?}: {words:?}", started.elapsed());
        match outcome {
            Err(e) if terms <= most => wrong.push(format!("{name}: {e}")),
            Err(e) if most == 0 || e.kind() == ErrorKind::Syntax => {}
            Err(e) if e.kind() != ErrorKind::Invalid || !e.message().contains("limit is") || e.hint().is_none() => {
                wrong.push(format!("{name}: {:?} {e}", e.kind()));
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Shallow by themselves: projections of views are merged, and conditions on a file become one.
#[test]
fn what_is_deep_only_when_it_is_merged_has_the_limit_too() {
    let runtime = runtime();
    let session = std::sync::Arc::new(memory(&runtime));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.parquet").display().to_string();
    runtime.block_on(run(&session, &format!("COPY t TO '{file}'")));
    let mut below = "t".to_string();
    for i in 0..3 {
        let view = format!("CREATE VIEW v{i} AS SELECT x{} AS x FROM {below}", " + 1 - 1".repeat(200));
        runtime.block_on(run(&session, &view));
        below = format!("v{i}");
    }
    let terms = |n: usize| (0..n).map(|i| format!(" AND x + {i} <> {}", i + 100)).collect::<String>();
    for (sql, works) in [
        ("SELECT max(x) FROM v1".to_string(), true),
        ("SELECT max(x) FROM v2".to_string(), false),
        (format!("SELECT count(*) FROM '{file}' WHERE x > 1{}", terms(900)), true),
        // A condition on a file is a balanced tree.
        (format!("SELECT count(*) FROM '{file}' WHERE x > 1{}", terms(20_000)), true),
    ] {
        let session = std::sync::Arc::clone(&session);
        let text = sql.clone();
        let outcome = runtime.block_on(runtime.spawn(async move { rows(&session, &text).await })).unwrap();
        match outcome {
            Ok(_) => assert!(works, "{}", support::shortened(&sql)),
            Err(e) => {
                assert!(!works, "{}: {e}", support::shortened(&sql));
                assert!(e.kind() == ErrorKind::Invalid && e.message().contains("the limit is"), "{e}");
            }
        }
    }
}

#[test]
fn long_is_not_wrong() {
    let runtime = runtime();
    let session = memory(&runtime);
    let million = "x".repeat(1 << 20);
    assert_eq!(runtime.block_on(run(&session, &format!("SELECT length('{million}')"))), ["1048576"]);
    runtime.block_on(run(&session, &format!("CREATE TABLE long AS SELECT '{million}' AS v")));
    assert_eq!(runtime.block_on(run(&session, "SELECT length(v) FROM long")), ["1048576"]);
    assert_eq!(runtime.block_on(run(&session, &format!("SELECT 1 AS \"{million}\""))), ["1"]);
    let e = runtime.block_on(fails(&session, &format!("SELECT * FROM \"{}\"", "n".repeat(10_000))));
    assert_eq!(e.kind(), ErrorKind::NotFound);

    let list = |n: usize, item: &dyn Fn(usize) -> String| (0..n).map(item).collect::<Vec<_>>().join(", ");
    let columns = list(5000, &|i| format!("c{i} INTEGER"));
    runtime.block_on(run(&session, &format!("CREATE TABLE wide ({columns})")));
    runtime.block_on(run(&session, &format!("INSERT INTO wide VALUES ({})", list(5000, &|i| i.to_string()))));
    assert_eq!(
        runtime.block_on(run(&session, "SELECT c0, c4999, count(*) FROM wide GROUP BY c0, c4999")),
        ["0|4999|1"]
    );
    runtime.block_on(run(&session, &format!("INSERT INTO t VALUES {}", list(20_000, &|i| format!("({i})")))));
    assert_eq!(
        runtime.block_on(run(
            &session,
            &format!("SELECT count(*) FROM t WHERE x IN ({})", list(5000, &|i| i.to_string()))
        )),
        ["5020"]
    );
}

#[test]
fn names_may_hold_anything_that_is_quoted() {
    let runtime = runtime();
    let (_dir, path, database) = on_disk();
    let session = database.session().unwrap();
    let good = [
        "two words",
        "ÄÖÜ ß",
        "表",
        "🦀",
        "a\"b",
        "a'b",
        "..",
        ".",
        "a;b",
        "--",
        "a\nb",
        "a\tb",
        "SELECT",
        "UPPER",
        "%s%n",
        "$1",
        "a\\b",
        "C:\\nul",
        "null",
        "\u{202e}rtl",
        "e\u{301}",
        "_",
        "0",
        "a.b.c",
    ];
    let long = "n".repeat(5000);
    let good: Vec<&str> = good.into_iter().chain([long.as_str()]).collect();
    for name in &good {
        let name = quoted(name);
        for statement in [
            format!("CREATE TABLE {name} ({name} BIGINT, other VARCHAR) CLUSTER BY ({name})"),
            format!("INSERT INTO {name} ({name}) VALUES (1), (2)"),
            format!("INSERT INTO {name} SELECT {name} + 10, 'x' FROM {name} WHERE {name} > 1"),
        ] {
            runtime.block_on(run(&session, &statement));
        }
        assert_eq!(
            runtime.block_on(run(&session, &format!("SELECT sum({name}), count(*) FROM {name}"))),
            ["15|3"],
            "{name}"
        );
        runtime.block_on(run(&session, &format!("DESCRIBE {name}")));
    }
    let before = runtime.block_on(dump(&database)).unwrap();
    drop((session, database));
    let database = Database::open(&path, &tiny()).unwrap();
    assert_eq!(runtime.block_on(dump(&database)).unwrap(), before);
    let session = database.session().unwrap();
    for name in &good {
        runtime.block_on(run(&session, &format!("DROP TABLE {}", quoted(name))));
    }
    assert!(files_on_disk(&path).is_empty());

    for name in ["a/b", "../../etc/passwd", "/tmp/x", "a.csv", "x.parquet", "*", "", "onehop_tables"] {
        let e = runtime.block_on(fails(&session, &format!("CREATE TABLE {} (x INTEGER)", quoted(name))));
        assert!(
            matches!(e.kind(), ErrorKind::Invalid | ErrorKind::AlreadyExists | ErrorKind::NotFound | ErrorKind::Syntax),
            "{name}: {e}"
        );
        let e = runtime.block_on(fails(&session, &format!("CREATE VIEW {} AS SELECT 1 AS x", quoted(name))));
        assert!(
            matches!(e.kind(), ErrorKind::Invalid | ErrorKind::AlreadyExists | ErrorKind::NotFound | ErrorKind::Syntax),
            "{name}: {e}"
        );
    }
    for sql in ["CREATE TABLE d (a INTEGER, a INTEGER)", "CREATE TABLE d (a INT, a INT)"] {
        let e = runtime.block_on(fails(&session, sql));
        assert_eq!(e.kind(), ErrorKind::Invalid, "{sql}: {e}");
    }
}

fn on_disk() -> (TempDir, PathBuf, Database) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let database = Database::open(&path, &tiny()).unwrap();
    (dir, path, database)
}

#[test]
fn types_that_cannot_be_stored_are_named() {
    let runtime = runtime();
    let session = memory(&runtime);
    for (value, column) in [
        ("[1, 2]", "list"),
        ("make_array('a')", "array"),
        ("named_struct('a', 1)", "struct"),
        ("INTERVAL '1 day'", "interval"),
        ("NULL", "nothing"),
        ("CAST('12:00:00' AS TIME)", "time"),
        ("CAST('ab' AS BYTEA)", "bytes"),
        ("map(['a'], [1])", "map"),
    ] {
        let sql = format!("CREATE TABLE n AS SELECT 1 AS one, {value} AS {column}");
        let e = runtime.block_on(fails(&session, &sql));
        assert_eq!(e.kind(), ErrorKind::Invalid, "{value}: {:?} {e}", e.kind());
        assert!(e.message().contains(column), "{value}: the column is not named: {e}");
    }
    for declared in [
        "INTEGER[]",
        "STRUCT<a INTEGER>",
        "INTERVAL",
        "TIME",
        "BYTEA",
        "JSON",
        "NOSUCHTYPE",
        "DECIMAL(77,2)",
        "DECIMAL(5,9)",
    ] {
        let e = runtime.block_on(fails(&session, &format!("CREATE TABLE n (a {declared})")));
        assert!(matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Syntax), "{declared}: {:?} {e}", e.kind());
    }
    assert_eq!(runtime.block_on(run(&session, "SHOW TABLES")).len(), 1);
}

#[test]
fn values_that_do_not_fit_are_errors_and_never_other_values() {
    let runtime = runtime();
    let session = memory(&runtime);
    runtime
        .block_on(run(&session, "CREATE TABLE n (a TINYINT, b INTEGER NOT NULL, c DECIMAL(4,2), d DATE, e BOOLEAN)"));
    for values in [
        "(128, 1, NULL, NULL, NULL)",
        "(-129, 1, NULL, NULL, NULL)",
        "(1, NULL, NULL, NULL, NULL)",
        "(1, 3000000000, NULL, NULL, NULL)",
        "(1, 1, 100, NULL, NULL)",
        "(1, 1, NULL, '2023-02-29', NULL)",
        "(1, 1, NULL, 'yesterday', NULL)",
        "('x', 1, NULL, NULL, NULL)",
        "(1, 1, NULL, NULL, 'maybe')",
        "(1, 1)",
        "(1, 1, NULL, NULL, NULL, 6)",
    ] {
        let e = runtime.block_on(fails(&session, &format!("INSERT INTO n VALUES {values}")));
        assert!(matches!(e.kind(), ErrorKind::Data | ErrorKind::Invalid), "{values}: {:?} {e}", e.kind());
    }
    for sql in ["SELECT 1 / 0 FROM t", "SELECT CAST('x' AS INTEGER)", "SELECT CAST(300 AS TINYINT)"] {
        let e = runtime.block_on(fails(&session, sql));
        assert!(matches!(e.kind(), ErrorKind::Data | ErrorKind::Invalid), "{sql}: {:?} {e}", e.kind());
    }
    assert_eq!(runtime.block_on(run(&session, "SELECT count(*) FROM n")), ["0"]);
}

#[test]
fn integer_overflow_is_an_error() {
    let runtime = runtime();
    let session = memory(&runtime);
    for sql in [
        "SELECT 9223372036854775807 + x FROM t",
        "SELECT sum(9223372036854775807 - x) FROM t",
        "SELECT (x + 1) * 9223372036854775807 FROM t",
        "SELECT abs(-9223372036854775808 + x * 0) FROM t",
    ] {
        let e = runtime.block_on(fails(&session, sql));
        assert_eq!(e.kind(), ErrorKind::Data, "{sql}: {:?} {e}", e.kind());
    }
}

// --- Files -------------------------------------------------------------------------------------------------------

#[test]
fn text_files_that_are_wrong_are_errors_and_load_nothing() {
    let runtime = runtime();
    let (dir, path, database) = on_disk();
    let session = database.session().unwrap();
    runtime.block_on(run(&session, "CREATE TABLE c (id BIGINT NOT NULL, name VARCHAR, day DATE)"));
    let file = dir.path().join("bad.csv");
    let huge = format!("1,{},2024-01-01\n", "y".repeat(3 << 20));
    let good: [(&str, &[u8], u64); 9] = [
        ("nothing", b"", 0),
        ("only a header", b"id,name,day\n", 0),
        ("only a header, not ended", b"id,name,day", 0),
        ("no newline at the end", b"1,a,2024-01-01\n2,b,2024-01-02", 2),
        ("carriage returns", b"id,name,day\r\n1,a,2024-01-01\r\n", 1),
        ("a newline and a quote in quotes", b"1,\"a\nb\"\"c\",2024-01-01\n", 1),
        ("NUL bytes in text", b"1,a\0b,2024-01-01\n", 1),
        ("empty fields", b"1,,\n", 1),
        ("a huge line", huge.as_bytes(), 1),
    ];
    for (what, bytes, count) in good {
        fs::write(&file, bytes).unwrap();
        runtime.block_on(run(&session, &format!("COPY c FROM '{}'", file.display())));
        assert_eq!(runtime.block_on(run(&session, "SELECT count(*) FROM c")), [count.to_string()], "{what}");
        runtime.block_on(run(&session, "CREATE OR REPLACE TABLE c (id BIGINT NOT NULL, name VARCHAR, day DATE)"));
    }
    let bad: [(&str, &[u8]); 13] = [
        ("a field too few", b"1,a\n"),
        ("a field too few in the second line", b"1,a,2024-01-01\n2,b\n"),
        ("a field too many", b"1,a,2024-01-01,x\n"),
        ("a field too many in the second line", b"1,a,2024-01-01\n2,b,2024-01-02,x\n"),
        ("text for a number", b"one,a,2024-01-01\n"),
        ("a number that does not fit", b"99999999999999999999,a,2024-01-01\n"),
        ("no such day", b"1,a,2023-02-29\n"),
        ("NULL where none may be", b",a,2024-01-01\n"),
        ("a quote that is not closed", b"1,\"a,2024-01-01\n2,b,2024-01-02\n"),
        ("no UTF-8", b"1,\xff\xfe,2024-01-01\n"),
        ("UTF-16", b"\xff\xfe1\0,\0a\0\n\0"),
        ("NUL bytes", b"\0\0\0\0\n"),
        ("random bytes", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
    ];
    for (what, bytes) in bad {
        fs::write(&file, bytes).unwrap();
        let e = runtime.block_on(fails(&session, &format!("COPY c FROM '{}'", file.display())));
        assert!(matches!(e.kind(), ErrorKind::Data | ErrorKind::Invalid), "{what}: {:?} {e}", e.kind());
        println!("{what}: {e}");
        assert_eq!(runtime.block_on(run(&session, "SELECT count(*) FROM c")), ["0"], "{what}");
        // Without a table the types are guessed: whatever comes of it is no panic.
        let _ = runtime.block_on(rows(&session, &format!("SELECT * FROM '{}'", file.display())));
    }
    assert_eq!(files_on_disk(&path), known_files(&database));
    // Another delimiter is found out.
    fs::write(&file, b"1;a;2024-01-01\n").unwrap();
    runtime.block_on(run(&session, &format!("COPY c FROM '{}'", file.display())));
    assert_eq!(runtime.block_on(run(&session, "SELECT * FROM c")), ["1|a|2024-01-01"]);
}

/// What an attempt to read a file may come to.
const READING: [ErrorKind; 4] = [ErrorKind::NotFound, ErrorKind::Invalid, ErrorKind::Data, ErrorKind::Io];

#[test]
fn files_that_cannot_be_read_say_why() {
    let runtime = runtime();
    let session = memory(&runtime);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::create_dir(at("folder.parquet")).unwrap();
    fs::create_dir(at("link")).unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("link/dangling.csv")).unwrap();
    fs::create_dir(at("loop")).unwrap();
    std::os::unix::fs::symlink(at("loop/loop.csv"), at("loop/loop.csv")).unwrap();
    fs::write(at("empty.parquet"), b"").unwrap();
    fs::write(at("text.parquet"), b"this is not Parquet").unwrap();
    fs::write(at("broken.json"), b"{\"a\": 1}\n{\"a\": \n").unwrap();
    fs::write(at("broken.csv.gz"), b"this is not gzip").unwrap();
    fs::write(at("file.unknown"), b"one\n").unwrap();
    let mut wrong = Vec::new();
    for name in [
        "absent.csv",
        "absent.parquet",
        "absent/x.csv",
        "*.nothing.csv",
        "absent/*.parquet",
        "folder.parquet",
        "link/dangling.csv",
        "loop/loop.csv",
        "empty.parquet",
        "text.parquet",
        "broken.json",
        "broken.csv.gz",
        "file.unknown",
        "[",
        "[a-.csv",
        "{a,b.csv",
        "a\0b.csv",
    ] {
        for sql in [
            format!("SELECT * FROM '{}'", at(name)),
            format!("COPY t FROM '{}'", at(name)),
            format!("CREATE TABLE n AS SELECT * FROM '{}'", at(name)),
        ] {
            match runtime.block_on(rows(&session, &sql)) {
                Ok(rows) => wrong.push(format!("{sql}: {} rows", rows.len())),
                Err(e) if READING.contains(&e.kind()) => println!("{name}: {:?} {e}", e.kind()),
                Err(e) => wrong.push(format!("{sql}: {:?} {e}", e.kind())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(runtime.block_on(run(&session, "SELECT count(*) FROM t")), ["20"]);
}

#[test]
fn loading_from_an_empty_directory_is_an_error() {
    let runtime = runtime();
    let session = memory(&runtime);
    let dir = tempfile::tempdir().unwrap();
    for name in ["folder", "folder.csv"] {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        let e = runtime.block_on(fails(&session, &format!("COPY t FROM '{}'", path.display())));
        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    }
}

#[test]
fn a_broken_arrow_file_is_a_fault_of_the_data() {
    let runtime = runtime();
    let session = memory(&runtime);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.arrow");
    fs::write(&path, b"this is not Arrow").unwrap();
    let e = runtime.block_on(fails(&session, &format!("SELECT * FROM '{}'", path.display())));
    assert_eq!(e.kind(), ErrorKind::Data, "{e}");
    assert!(!e.message().contains("datafusion"), "{e}");
}

#[test]
fn an_error_in_a_csv_file_names_the_file() {
    let runtime = runtime();
    let session = memory(&runtime);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("named.csv");
    for (text, line) in [("1\n2\nthree\n", "line 3,"), ("1\n2,3\n", "line 2:"), ("x\n1\n\ntwo\n", "line 4,")] {
        fs::write(&path, text).unwrap();
        let e = runtime.block_on(fails(&session, &format!("COPY t FROM '{}'", path.display())));
        assert!(e.message().contains(&format!("named.csv' {line}")), "{e}");
    }
}

/// What queries of a Parquet file come to when it is damaged in many ways.
#[derive(Debug, Default)]
struct Outcomes {
    errors: u64,
    right: u64,
    /// Parquet's pages have no checksums by default: damage within values is not seen.
    other_rows: u64,
    /// By their messages.
    panics: BTreeMap<String, u64>,
    internal: BTreeMap<String, u64>,
}

fn damage_parquet() -> Outcomes {
    const SEED: u64 = 97;
    let runtime = runtime();
    let session = memory(&runtime);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.parquet");
    let copy = format!(
        "COPY (SELECT x, 'name ' || (x % 4) AS name, x * 1.5 AS price, CASE WHEN x % 3 = 0 THEN x END AS gaps FROM t) \
         TO '{}'",
        file.display()
    );
    runtime.block_on(run(&session, &copy));
    let whole = fs::read(&file).unwrap();
    let select = format!("SELECT * FROM '{}'", file.display());
    let queries =
        [select.clone(), select.replace('*', "count(*), max(name), sum(price)"), format!("{select} WHERE x > 15")];
    let right: Vec<Vec<String>> = queries.iter().map(|sql| runtime.block_on(run(&session, sql))).collect();
    let mut outcomes = Outcomes::default();
    let mut judge = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        for (sql, right) in queries.iter().zip(&right) {
            match catch_unwind(AssertUnwindSafe(|| runtime.block_on(rows(&session, sql)))) {
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string()));
                    *outcomes.panics.entry(text.unwrap_or_default()).or_default() += 1;
                }
                Ok(Err(e)) if e.kind() == ErrorKind::Internal => {
                    *outcomes.internal.entry(e.message().to_string()).or_default() += 1;
                }
                Ok(Err(_)) => outcomes.errors += 1,
                Ok(Ok(rows)) if rows == *right => outcomes.right += 1,
                Ok(Ok(_)) => outcomes.other_rows += 1,
            }
        }
    };
    let mut dice = SEED;
    for at in (0..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (random(&mut dice) % 8);
        judge(&bytes);
    }
    for len in (0..whole.len()).step_by(53) {
        judge(&whole[..len]);
    }
    println!("seed {SEED}, {} bytes: {outcomes:#?}", whole.len());
    fs::write(&file, &whole).unwrap();
    assert_eq!(runtime.block_on(run(&session, &queries[0])), right[0]);
    outcomes
}

#[test]
fn a_damaged_parquet_file_leaves_the_session_usable() {
    let outcomes = damage_parquet();
    assert!(outcomes.errors > 100 && outcomes.right > 10);
}

#[test]
fn a_damaged_parquet_file_is_an_error_and_never_a_panic() {
    let outcomes = damage_parquet();
    assert!(outcomes.panics.is_empty(), "{:#?}", outcomes.panics);
}

#[test]
fn targets_that_cannot_be_written_say_so() {
    let runtime = runtime();
    let session = memory(&runtime);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    let mut wrong = Vec::new();
    for name in ["file/below.parquet", "noformat", "x.unknown", ""] {
        let target = dir.path().join(name).display().to_string();
        let target = if name.is_empty() { String::new() } else { target };
        let outcome = runtime.block_on(rows(&session, &format!("COPY t TO '{target}'")));
        match outcome {
            Ok(_) => wrong.push(format!("{name:?} was written")),
            Err(e) if [ErrorKind::Io, ErrorKind::Invalid, ErrorKind::NotFound].contains(&e.kind()) => {}
            Err(e) => wrong.push(format!("{name:?}: {:?} {e}", e.kind())),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_failing_export_leaves_no_file_and_keeps_the_one_that_was_there() {
    let runtime = runtime();
    let session = memory(&runtime);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("half.csv");
    let sql = format!("COPY (SELECT 100 / (15 - x) AS y FROM t) TO '{}'", target.display());
    assert_eq!(runtime.block_on(fails(&session, &sql)).kind(), ErrorKind::Data);
    assert!(!target.exists(), "half a file is left: {:?}", fs::read(&target));
    fs::write(&target, b"what was there").unwrap();
    assert_eq!(runtime.block_on(fails(&session, &sql)).kind(), ErrorKind::Data);
    assert_eq!(fs::read(&target).unwrap(), b"what was there");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_csv_target_that_cannot_be_written_says_why() {
    let runtime = runtime();
    let session = memory(&runtime);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    fs::create_dir(dir.path().join("folder.csv")).unwrap();
    for (name, reason) in [("file/below.csv", "Not a directory"), ("folder.csv", "is a directory")] {
        let sql = format!("COPY t TO '{}'", dir.path().join(name).display());
        let e = runtime.block_on(fails(&session, &sql));
        assert_eq!(e.kind(), ErrorKind::Io, "{sql}: {e}");
        assert!(e.message().contains(reason), "{sql}: {e}");
    }
    assert_eq!(fs::read_dir(dir.path().join("folder.csv")).unwrap().count(), 0);
}

const PLACE: &str = "ONEHOP_TEST_PLACE";

#[test]
fn a_full_disk_is_an_error_and_the_database_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    // Files may not grow beyond 256 KiB; a write past that is refused, as on a full disk.
    let (passed, output) =
        support::in_a_process("body_on_a_full_disk", "trap '' XFSZ; ulimit -f 256;", &[(PLACE, dir.path())], None);
    assert!(passed, "{output}");
}

#[test]
#[ignore = "run by a_full_disk_is_an_error_and_the_database_goes_on"]
fn body_on_a_full_disk() {
    let dir = PathBuf::from(std::env::var_os(PLACE).unwrap());
    let path = dir.join("db");
    let runtime = runtime();
    let mut options = tiny();
    options.settings[2].1 = "1000000".into();
    let database = Database::open(&path, &options).unwrap();
    let session = database.session().unwrap();
    runtime.block_on(run(&session, "CREATE TABLE t AS SELECT unnest(range(0, 20)) AS x"));
    let many = "(SELECT 'text ' || (a.i * b.i * 7919) AS x, a.i AS y FROM (SELECT unnest(range(0, 400)) AS i) a, \
                (SELECT unnest(range(0, 400)) AS i) b)";
    for statement in [
        format!("CREATE TABLE big AS SELECT * FROM {many}"),
        format!("INSERT INTO t SELECT length(x) * 1000003 + y * 7919 * y FROM {many}"),
        format!("COPY (SELECT * FROM {many}) TO '{}'", dir.join("big.csv").display()),
        format!("COPY (SELECT * FROM {many}) TO '{}'", dir.join("big.parquet").display()),
    ] {
        let outcome = runtime.block_on(rows(&session, &statement));
        println!("{}: {outcome:?}", support::shortened(&statement));
        if let Err(e) = outcome {
            assert!(matches!(e.kind(), ErrorKind::Io | ErrorKind::Resources), "{:?} {e}", e.kind());
            assert!(!statement.starts_with("COPY") || e.message().contains("/big."), "the target is not named: {e}");
        }
        let exports = fs::read_dir(&dir).unwrap().filter(|entry| entry.as_ref().unwrap().file_name() != "db").count();
        assert_eq!(exports, 0, "{}", support::shortened(&statement));
        support::eventually("files of what failed are gone", || files_on_disk(&path) == known_files(&database));
        runtime.block_on(run(&session, "CREATE OR REPLACE TABLE after_it AS SELECT 1 AS one"));
    }
    let e = runtime.block_on(fails(&session, &format!("CREATE TABLE big AS SELECT * FROM {many}")));
    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
    assert!(e.message().contains(".seg"), "the error does not name the file: {e}");
    drop((session, database));
    let database = Database::open(&path, &tiny()).unwrap();
    assert_eq!(runtime.block_on(run(&database.session().unwrap(), "SELECT one FROM after_it")), ["1"]);
}

#[test]
fn a_file_without_permission_says_so() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["secret.csv", "secret.parquet"] {
        fs::write(dir.path().join(name), b"x\n1\n").unwrap();
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let is_root = fs::metadata("/proc/self").map(|m| std::os::unix::fs::MetadataExt::uid(&m)).unwrap() == 0;
    let environment = [(PLACE, dir.path()), ("TMPDIR", Path::new("/tmp"))];
    let (passed, output) =
        support::in_a_process("body_without_permission", "", &environment, is_root.then_some(65_534));
    assert!(passed, "{output}");
}

#[test]
#[ignore = "run by a_file_without_permission_says_so"]
fn body_without_permission() {
    let dir = PathBuf::from(std::env::var_os(PLACE).unwrap());
    let runtime = runtime();
    let session = memory(&runtime);
    for sql in [
        format!("SELECT * FROM '{}'", dir.join("secret.csv").display()),
        format!("SELECT * FROM '{}'", dir.join("secret.parquet").display()),
        format!("COPY t FROM '{}'", dir.join("secret.csv").display()),
        format!("COPY t TO '{}'", dir.join("new.parquet").display()),
    ] {
        let e = runtime.block_on(fails(&session, &sql));
        assert_eq!(e.kind(), ErrorKind::Io, "{sql}: {:?} {e}", e.kind());
        assert!(e.message().to_lowercase().contains("permission denied"), "{sql}: {e}");
    }
}
