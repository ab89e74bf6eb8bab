//! Fault cases, `tests/faults/*.slt`: each runs in a new database, over every layout of its tables.
//!
//! A case begins at a line `# case NAME`. DuckDB or PostgreSQL provide the answers, by
//! `faults/fill.py`; its header documents the format. `ONEHOP_FAULTS=beside` runs only the files
//! whose name contains `beside`.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use onehop_engine::{Database, DatabaseOptions, Error};
use onehop_tests::adapter::Adapter;
use onehop_tests::canonical::Kind;
use onehop_tests::slt_files;
use sqllogictest::{AsyncDB, DBOutput, Record, Runner, parse_with_name, strict_column_validator};

/// The layout of the rows of a case's tables when a query reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// As `INSERT` left them.
    Fresh,
    /// Moved into segments by `CHECKPOINT`.
    Segments,
    /// In segments, and read by DataFusion's operators alone.
    Unfused,
    /// In Parquet files, below views. Cases that change rows keep their tables.
    Parquet,
}

impl Layout {
    const fn label(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Segments => "segments",
            Self::Unfused => "unfused",
            Self::Parquet => "parquet",
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fresh() {
    run(Layout::Fresh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn segments() {
    run(Layout::Segments).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unfused() {
    run(Layout::Unfused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parquet() {
    run(Layout::Parquet).await;
}

/// A case: its name, its first line, and its records.
struct Case {
    name: String,
    line: u32,
    text: String,
}

fn cases(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        if let Some(name) = content.strip_prefix("# case ") {
            cases.push(Case { name: name.to_string(), line, text: String::new() });
        }
        if let Some(case) = cases.last_mut() {
            case.text.push_str(content);
            case.text.push('\n');
        }
    }
    cases
}

/// A session whose tables are laid out anew before each query.
struct LaidOut {
    layout: Layout,
    adapter: Adapter,
    folder: PathBuf,
    /// The number of tables that already are views over files.
    files: usize,
}

impl LaidOut {
    fn new(layout: Layout, database: &Database, folder: &Path) -> Result<Self, Error> {
        let adapter = Adapter::new(database.session()?);
        Ok(Self { layout, adapter, folder: folder.to_path_buf(), files: 0 })
    }

    async fn lay_out(&mut self) -> Result<(), Error> {
        match self.layout {
            Layout::Fresh => Ok(()),
            Layout::Segments | Layout::Unfused => self.adapter.run("CHECKPOINT").await.map(|_| ()),
            Layout::Parquet => self.move_to_files().await,
        }
    }

    async fn move_to_files(&mut self) -> Result<(), Error> {
        let listed = self.adapter.run("SELECT table_name FROM onehop_tables").await?;
        let DBOutput::Rows { rows, .. } = listed else { return Ok(()) };
        for name in rows.into_iter().flatten() {
            let path = self.folder.join(format!("{}.parquet", self.files));
            self.files += 1;
            for statement in [
                format!("COPY \"{name}\" TO '{}'", path.display()),
                format!("DROP TABLE \"{name}\""),
                format!("CREATE VIEW \"{name}\" AS SELECT * FROM '{}'", path.display()),
            ] {
                self.adapter.run(&statement).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl AsyncDB for LaidOut {
    type Error = Error;
    type ColumnType = Kind;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Kind>, Error> {
        if is_query(sql) {
            self.lay_out().await?;
        }
        self.adapter.run(sql).await
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "onehop"
    }
}

fn first_word(sql: &str) -> String {
    sql.trim_start_matches(['(', ' ', '\n']).split(|c: char| !c.is_alphabetic()).next().unwrap_or("").to_uppercase()
}

fn is_query(sql: &str) -> bool {
    matches!(first_word(sql).as_str(), "SELECT" | "WITH" | "FROM" | "VALUES")
}

/// Returns true for a case with a transaction of its own, which keeps the layout of its tables.
fn has_transaction(records: &[Record<Kind>]) -> bool {
    records.iter().any(|record| matches!(record, Record::Statement { sql, .. } if first_word(sql) == "BEGIN"))
}

/// Returns true for a case that changes rows in place, or after it has read them, which keeps its
/// tables.
fn changes_rows(records: &[Record<Kind>]) -> bool {
    let mut read = false;
    records.iter().any(|record| {
        let (Record::Statement { sql, .. } | Record::Query { sql, .. }) = record else { return false };
        if is_query(sql) {
            read = true;
            return false;
        }
        let word = first_word(sql);
        matches!(word.as_str(), "UPDATE" | "DELETE" | "MERGE" | "DROP")
            || (read && matches!(word.as_str(), "INSERT" | "CREATE" | "COPY" | "ALTER"))
    })
}

async fn run(layout: Layout) {
    let files = root().join("files");
    let (mut count, mut queries, mut failures) = (0, 0, Vec::new());
    for path in slt_files(&root(), "ONEHOP_FAULTS").unwrap() {
        let text = std::fs::read_to_string(&path).unwrap();
        for case in cases(&text) {
            count += 1;
            let shown = format!("{} at {}:{}", case.name, path.display(), case.line);
            let folder = tempfile::tempdir().unwrap();
            let text = case.text.replace("${__TEST_DIR__}", &folder.path().display().to_string());
            let text = text.replace("${FILES}", &files.display().to_string());
            let records = match parse_with_name::<Kind>(&text, shown.as_str()) {
                Ok(records) => records,
                Err(e) => panic!("{shown}: {e}"),
            };
            queries += records.iter().filter(|record| matches!(record, Record::Query { .. })).count();
            if let Err(why) = run_case(layout, records, folder.path()).await {
                failures.push(format!("{shown}\n{why}"));
            }
        }
    }
    // Bypasses the capture of the test harness, because the number of cases is part of the result.
    let label = layout.label();
    let summary = format!("faults {label}: {count} cases, {queries} queries, {} failed\n", failures.len());
    std::io::stderr().write_all(summary.as_bytes()).unwrap();
    assert!(count > 0, "no file of faults matches");
    assert!(failures.is_empty(), "{label}: {} cases failed\n\n{}", failures.len(), failures.join("\n\n"));
}

/// Runs a case in a folder of its own.
async fn run_case(layout: Layout, records: Vec<Record<Kind>>, folder: &Path) -> Result<(), String> {
    let settings = match layout {
        Layout::Unfused => vec![("exec.mode".to_string(), "datafusion".to_string())],
        _ => Vec::new(),
    };
    let stays = has_transaction(&records) || (layout == Layout::Parquet && changes_rows(&records));
    let layout = if stays { Layout::Fresh } else { layout };
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    let mut runner = Runner::new(|| async { LaidOut::new(layout, &database, folder) });
    runner.add_label(layout.label());
    runner.with_column_validator(strict_column_validator);
    runner.with_normalizer(String::clone);
    for record in records {
        runner.run_async(record).await.map_err(|e| e.display(false).to_string())?;
    }
    Ok(())
}

/// Returns the folder of cases. Tests run in their package's folder.
fn root() -> PathBuf {
    std::path::absolute("faults").unwrap_or_else(|_| PathBuf::from("faults"))
}
