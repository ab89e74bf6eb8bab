//! Plans as snapshots: the optimised logical plan and EXPLAIN of every benchmark query and golden
//! query.
//!
//! A refactoring keeps them. A change of the planner changes lines, and its commit explains them.
//! `ONEHOP_PLANS=write` writes the files in `plans/`; without it a difference fails, and shows its
//! lines.
//!
//! Plans depend on the data, so each suite has fixed data: SSB and TPC-H of scale factor 0.01, the
//! golden fixtures as segments, and TPC-DS of scale factor 0.01 as DuckDB generates it (`make
//! test-plans`).

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use futures::TryStreamExt;
use onehop_engine::arrow::array::AsArray;
use onehop_engine::{Database, DatabaseOptions, ExplainMode, Output, Result, Session};
use onehop_lab::generate::segments::load_table;
use onehop_lab::generate::{Generator, Ssb, Tpch};
use onehop_lab::queries::{SSB, TPCH};
use onehop_tests::fixtures::{FIXTURES, Layout, execute, golden};
use onehop_tests::slt_files;
use sqllogictest::{Record, parse_file};

/// The maximum number of differing lines that a failure shows per file.
const MOST_LINES: usize = 40;

/// Settings whose defaults depend on the machine.
const FIXED: [(&str, &str); 4] =
    [("threads", "4"), ("memory_limit", "4GiB"), ("io.cache", "1GiB"), ("gpu.mode", "off")];

#[tokio::test(flavor = "multi_thread")]
async fn ssb() {
    let session = generated(&Ssb::new(0.01).unwrap()).await;
    let queries = SSB.map(|query| (query.id.to_string(), query.sql.to_string()));
    compare("ssb", &plans(&session, &queries).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn tpch() {
    let session = generated(&Tpch::new(0.01).unwrap()).await;
    let queries = TPCH.map(|query| (query.id.to_string(), query.sql.to_string()));
    compare("tpch", &plans(&session, &queries).await);
}

/// `ONEHOP_TPCDS` is a folder with a Parquet file per table and a file `q01.sql` per query.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "its data and queries are DuckDB's: make test-plans"]
async fn tpcds() {
    let folder = PathBuf::from(std::env::var("ONEHOP_TPCDS").unwrap());
    let session = database().session().unwrap();
    for (table, path) in files(&folder, "parquet") {
        execute(&session, &format!("CREATE TABLE {table} AS SELECT * FROM '{}'", path.display())).await.unwrap();
    }
    let queries: Vec<(String, String)> =
        files(&folder, "sql").into_iter().map(|(id, path)| (id, std::fs::read_to_string(path).unwrap())).collect();
    assert_eq!(queries.len(), 99);
    compare("tpcds", &plans(&session, &queries).await);
}

/// Runs each file's statements. Queries are explained, and those that change something run as well.
#[tokio::test(flavor = "multi_thread")]
async fn golden_queries() {
    let database = database();
    let session = database.session().unwrap();
    for fixture in FIXTURES {
        fixture.load(&session, Layout::Segments).await.unwrap();
    }
    let mut failures = String::new();
    let scratch = tempfile::tempdir().unwrap();
    let fixtures = scratch.path().join("fixtures");
    // Short paths, because EXPLAIN cuts long texts.
    copy(&golden().join("fixtures"), &fixtures);
    let paths = Paths(vec![("${FIXTURES}", fixtures), ("${__TEST_DIR__}", scratch.path().into())]);
    for path in slt_files(&golden().join("slt"), "ONEHOP_GOLDEN").unwrap() {
        let session = database.session().unwrap();
        let mut snapshot = String::new();
        for record in parse_file::<onehop_tests::canonical::Kind>(&path).unwrap() {
            match record {
                Record::Statement { sql, .. } => {
                    let _ = execute(&session, &paths.in_place(&sql)).await;
                }
                Record::Query { sql, .. } => {
                    // The id is not the line number: one more query would then change all ids after
                    // it.
                    let id = sql.split_whitespace().collect::<Vec<_>>().join(" ");
                    let sql = paths.in_place(&sql);
                    snapshot += &paths.taken_out(&plan(&id, &sql, &session).await);
                    if !["select", "with", "from"].iter().any(|word| sql.trim_start().to_lowercase().starts_with(word))
                    {
                        let _ = execute(&session, &sql).await;
                    }
                }
                _ => {}
            }
        }
        let _ = execute(&session, "ROLLBACK").await;
        let name = format!("golden/{}", path.file_stem().unwrap().to_str().unwrap());
        failures += &difference(&name, &snapshot);
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Copies a folder recursively.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// The variables of the golden files, and their folders.
struct Paths(Vec<(&'static str, PathBuf)>);

impl Paths {
    fn in_place(&self, text: &str) -> String {
        self.0.iter().fold(text.to_string(), |text, (name, path)| text.replace(name, &path.display().to_string()))
    }

    /// Replaces the folders by the variables. A line ends with its first path: EXPLAIN cuts the
    /// line by its width, which the folder's name affects.
    fn taken_out(&self, text: &str) -> String {
        let folders = self.0.iter().map(|(name, path)| (name, path.display().to_string()));
        let folders: Vec<_> = folders.map(|(name, path)| (name, path.trim_start_matches('/').to_string())).collect();
        let taken_out = |line: &str| {
            let found = folders.iter().find_map(|(name, path)| Some((line.find(path.as_str())?, name, path)));
            let Some((start, name, path)) = found else { return format!("{line}\n") };
            let rest = &line[start + path.len()..];
            let file = rest.split([']', ',', ' ', ':', '\'']).next().unwrap_or_default();
            format!("{}{name}{file} ...\n", line[..start].trim_end_matches('/'))
        };
        text.lines().map(taken_out).collect()
    }
}

fn database() -> Database {
    let settings = FIXED.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap()
}

async fn generated(generator: &impl Generator) -> Session {
    let session = database().session().unwrap();
    for table in generator.tables() {
        session.sql(&table.ddl).await.unwrap();
        load_table(generator, &table, &session, NonZeroUsize::MIN, &|_| {}, &AtomicBool::new(false)).unwrap();
    }
    session
}

/// Returns the files of a folder by their stems.
fn files(folder: &Path, extension: &str) -> BTreeMap<String, PathBuf> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_string(), path))
        .collect()
}

async fn plans(session: &Session, queries: &[(String, String)]) -> String {
    let mut snapshot = String::new();
    for (id, sql) in queries {
        snapshot += &plan(id, sql.trim().trim_end_matches(';'), session).await;
    }
    snapshot
}

/// Returns both plans of one query in the snapshot format.
async fn plan(id: &str, sql: &str, session: &Session) -> String {
    let logical = logical_plan(session, sql).await.unwrap_or_else(|e| format!("error: {e}"));
    let explained = match session.explain(sql, ExplainMode::Plan).await {
        Ok(explanation) => explanation.text(),
        Err(e) => format!("error: {e}"),
    };
    let trimmed = |text: &str| text.lines().map(|line| in_order(line.trim_end())).collect::<Vec<_>>().join("\n");
    format!("== {id}\n{}\n--\n{}\n\n", trimmed(&logical), trimmed(&explained))
}

/// Sorts a list of columns: DataFusion adds those of ORDER BY in the order of a hash set.
fn in_order(line: &str) -> String {
    let Some((start, columns)) = line.split_once("columns=[").or_else(|| line.split_once("columns ")) else {
        return line.to_string();
    };
    let mut columns: Vec<&str> = columns.trim_end_matches(']').split(", ").collect();
    columns.sort_unstable();
    format!("{start}columns {}", columns.join(", "))
}

/// Returns DataFusion's rendering of the optimised logical plan.
async fn logical_plan(session: &Session, sql: &str) -> Result<String> {
    let Output::Rows(rows) = session.sql(&format!("EXPLAIN FORMAT INDENT {sql}")).await? else {
        return Ok("no rows".into());
    };
    let batches: Vec<_> = rows.try_collect().await?;
    Ok(batches[0].column(1).as_string::<i32>().value(0).to_string())
}

fn compare(name: &str, snapshot: &str) {
    let difference = difference(name, snapshot);
    assert!(difference.is_empty(), "{difference}");
}

/// Writes the snapshot, or returns its differences from the existing one.
fn difference(name: &str, snapshot: &str) -> String {
    let path = Path::new("plans").join(name).with_extension("txt");
    if std::env::var("ONEHOP_PLANS").is_ok_and(|what| what == "write") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, snapshot).unwrap();
        return String::new();
    }
    let before = std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("tests/{}: {e}; ONEHOP_PLANS=write makes it", path.display()));
    if before == snapshot {
        return String::new();
    }
    let diff = similar::TextDiff::from_lines(before.as_str(), snapshot);
    let changed: Vec<String> = diff
        .iter_all_changes()
        .filter(|change| change.tag() != similar::ChangeTag::Equal)
        .map(|change| format!("{}{}", change.tag(), change.value()))
        .collect();
    let shown: String = changed.iter().take(MOST_LINES).map(String::as_str).collect();
    format!(
        "tests/{}: {} lines changed. If the change is meant: ONEHOP_PLANS=write, and the commit says why.\n{shown}",
        path.display(),
        changed.len()
    )
}
