//! Running statements and seeing what a database holds, for the fault tests of this crate.

// Every test binary uses a part of this.
#![allow(dead_code)]

pub mod device;

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::Array;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use futures::StreamExt;
use onehop_engine::{Database, DatabaseOptions, Error, Output, Result, Session};
use onehop_io::{LocalFile, LocalVolume, ReadAt, RequestedPath, Result as IoResult, Volume, WriteAt};
use tokio::runtime::Runtime;

/// Options with one thread and segments so small that a few rows make several.
pub fn tiny() -> DatabaseOptions {
    options(&TINY)
}

/// Small segments, however few rows there are.
pub const TINY: [(&str, &str); 4] =
    [("threads", "1"), ("storage.block_rows", "1024"), ("storage.segment_rows", "1024"), ("storage.fresh_rows", "0")];

/// Small segments, and some rows outside of them.
pub const SMALL: [(&str, &str); 4] =
    [("threads", "1"), ("storage.block_rows", "1024"), ("storage.segment_rows", "1024"), ("storage.fresh_rows", "100")];

/// Options with one thread, small segments, and some rows outside of them.
pub fn small() -> DatabaseOptions {
    options(&SMALL)
}

/// Options with these settings.
pub fn options(settings: &[(&str, &str)]) -> DatabaseOptions {
    let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    DatabaseOptions { settings: settings.collect(), ..DatabaseOptions::default() }
}

/// A database of what a statement makes with one thread, closed.
pub fn made_by(runtime: &Runtime, sql: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let database = Database::open(&path, &options(&[("threads", "1")])).unwrap();
    runtime.block_on(run(&database.session().unwrap(), sql));
    drop(database);
    (dir, path)
}

/// A directory whose segments are not read as they are, but as something makes them.
#[derive(Clone)]
pub struct SegmentVolume {
    inner: Arc<dyn Volume>,
    made: Arc<dyn Fn(LocalFile) -> Arc<dyn ReadAt> + Send + Sync>,
}

impl SegmentVolume {
    pub fn open(path: &Path, made: impl Fn(LocalFile) -> Arc<dyn ReadAt> + Send + Sync + 'static) -> Self {
        Self { inner: Arc::new(LocalVolume::open(path, RequestedPath::Buffered).unwrap()), made: Arc::new(made) }
    }
}

impl Debug for SegmentVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Volume for SegmentVolume {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn open(&self, name: &str) -> IoResult<Arc<dyn ReadAt>> {
        if !name.ends_with(".seg") {
            return self.inner.open(name);
        }
        let file = LocalFile::open(&Path::new(self.name()).join(name), RequestedPath::Buffered)?;
        Ok((self.made)(file))
    }

    fn open_for_update(&self, name: &str) -> IoResult<Arc<dyn WriteAt>> {
        self.inner.open_for_update(name)
    }

    fn create(&self, name: &str) -> IoResult<Arc<dyn WriteAt>> {
        self.inner.create(name)
    }

    fn rename(&self, from: &str, to: &str) -> IoResult<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> IoResult<()> {
        self.inner.remove(name)
    }

    fn list(&self) -> IoResult<Vec<String>> {
        self.inner.list()
    }

    fn sync(&self) -> IoResult<()> {
        self.inner.sync()
    }

    fn folder(&self, name: &str) -> IoResult<Arc<dyn Volume>> {
        Ok(Arc::new(Self { inner: self.inner.folder(name)?, made: Arc::clone(&self.made) }))
    }
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Runs a statement to its end; its rows as text, a column after the other with '|', in no order but their own.
pub async fn rows(session: &Session, sql: &str) -> Result<Vec<String>> {
    let mut lines = rows_as_they_come(session, sql).await?;
    lines.sort();
    Ok(lines)
}

/// The same in the order in which they come.
pub async fn rows_as_they_come(session: &Session, sql: &str) -> Result<Vec<String>> {
    rows_of(session.sql(sql).await?).await
}

/// The rows of what a statement gave.
pub async fn rows_of(output: Output) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    if let Output::Rows(mut stream) = output {
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            let options = FormatOptions::default().with_null("NULL");
            let columns: Vec<ArrayFormatter<'_>> = batch
                .columns()
                .iter()
                .map(|column| ArrayFormatter::try_new(column.as_ref() as &dyn Array, &options).unwrap())
                .collect();
            for row in 0..batch.num_rows() {
                lines.push(columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|"));
            }
        }
    }
    Ok(lines)
}

/// Runs a statement that must work.
pub async fn run(session: &Session, sql: &str) -> Vec<String> {
    match rows(session, sql).await {
        Ok(rows) => rows,
        Err(e) => panic!("{}: {e}", shortened(sql)),
    }
}

/// Runs a statement that must not.
pub async fn fails(session: &Session, sql: &str) -> Error {
    match rows(session, sql).await {
        Ok(rows) => panic!("{} gave {} rows: {:?}", shortened(sql), rows.len(), rows.first()),
        Err(e) => e,
    }
}

/// A name as SQL takes it.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub fn shortened(sql: &str) -> String {
    sql.chars().take(120).collect()
}

/// Everything that a database holds, as text that is equal when and only when the contents are: descriptions of tables
/// and views, and their rows, read by queries.
pub async fn dump(database: &Database) -> Result<String> {
    let snapshot = database.snapshot();
    let session = database.session()?;
    let mut text = String::new();
    for (name, table) in &snapshot.catalog.tables {
        let (by, partitions) = (&table.cluster_by, &table.partition_by);
        let _ = writeln!(text, "table {name}: {:?} cluster by {by:?} partition by {partitions:?}", table.columns);
        let rows = rows(&session, &format!("SELECT * FROM {}", quoted(name))).await?;
        let told = snapshot.table(name).map(|table| table.rows());
        assert_eq!(Some(rows.len() as u64), told, "{name} has other rows than the catalog says");
        let _ = writeln!(text, "{}", rows.join("\n"));
    }
    for (name, query) in &snapshot.catalog.views {
        let _ = writeln!(text, "view {name}: {query}");
        // What a view stands on may have been dropped: then it stays, and says so.
        match rows(&session, &format!("SELECT * FROM {}", quoted(name))).await {
            Ok(rows) => _ = writeln!(text, "{}", rows.join("\n")),
            Err(e) => _ = writeln!(text, "{}", e.message()),
        }
    }
    Ok(text)
}

/// Segment files that the catalog mentions.
pub fn known_files(database: &Database) -> BTreeSet<String> {
    let snapshot = database.snapshot();
    snapshot.catalog.tables.values().flat_map(|t| &t.segments).map(|s| s.file.clone()).collect()
}

/// Segment files in a database directory.
pub fn files_on_disk(path: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(path.join("segments")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Files that a cancelled statement leaves to tasks that are still winding up go away soon: on a busy machine later, so
/// that only the test runner's patience is a limit.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for waits in 1.. {
        if holds() {
            return;
        }
        if waits % 2000 == 0 {
            eprintln!("still waiting: {what}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs one `#[ignore]`d test of this binary as a process of its own, which may die; its output and whether it passed.
///
/// `prepare` is shell text that comes first: limits and traps that the process inherits.
pub fn in_a_process(test: &str, prepare: &str, environment: &[(&str, &Path)], user: Option<u32>) -> (bool, String) {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let me: PathBuf = std::env::current_exe().unwrap();
    // Somebody else may not be allowed to where the build is.
    let reachable = tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let me = match user {
        Some(_) => {
            let copy = reachable.path().join("test");
            if std::fs::hard_link(&me, &copy).is_err() {
                std::fs::copy(&me, &copy).unwrap();
            }
            copy
        }
        None => me,
    };
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(format!("{prepare} exec \"$0\" \"$@\"")).arg(me);
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command.envs(environment.iter().copied()).stdin(Stdio::null());
    if let Some(user) = user {
        command.uid(user).gid(user).current_dir("/");
    }
    let output = command.output().unwrap();
    let text = format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output.status.success() && text.contains("1 passed"), text)
}

/// The next number of a sequence that a seed decides (SplitMix64).
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *state;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
