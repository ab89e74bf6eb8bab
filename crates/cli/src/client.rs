//! One user of one database: the runtime, the session, and the display of results.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onehop_engine::{Database, DatabaseOptions, ErrorKind, Executors, MEMORY, Session};
use tokio::runtime::Runtime;

use crate::exit::Stop;
use crate::footer;
use crate::gpu;
use crate::interrupt::Interrupts;
use crate::settings;
use crate::statement::{self, Outcome};
use crate::terminal::{Paint, note};
use crate::view::View;

/// The time the end of the process waits for a cancelled statement that does not stop.
pub const END_PATIENCE: Duration = Duration::from_millis(200);

/// A session with its output.
pub struct Client {
    /// The executors of the engine.
    executors: Executors,
    /// The runtime for waiting, writing, timers and Ctrl-C. It is separate, because a runtime whose
    /// workers are all busy receives neither timers nor signals.
    front: Runtime,
    interrupts: Interrupts,
    options: DatabaseOptions,
    database: Database,
    session: Arc<Session>,
    /// The display of results.
    pub view: View,
    /// The last executed statement.
    pub last: Option<String>,
    /// The nesting depth of running scripts.
    pub depth: usize,
}

impl Client {
    /// Opens the database at `path`, or one in memory.
    pub fn open(path: Option<&Path>, options: DatabaseOptions, view: View) -> Result<Self, Stop> {
        let executors = executors(&options)?;
        let front = onehop_engine::front(1)?;
        let guard = front.enter();
        let interrupts = Interrupts::listen().map_err(|e| Stop::System("cannot listen to Ctrl-C".into(), e))?;
        drop(guard);
        let (database, session) = open(path, &options)?;
        Ok(Self { executors, front, interrupts, options, database, session, view, last: None, depth: 0 })
    }

    /// Switches to another database; keeps this one if that fails.
    pub fn reopen(&mut self, path: Option<&Path>) -> Result<(), Stop> {
        // The segment location of the first database does not apply to others.
        self.options.segments = None;
        (self.database, self.session) = open(path, &self.options)?;
        Ok(())
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Makes Ctrl-C cancel statements from now on, and never end the process.
    pub fn outlive_interrupts(&self) {
        self.interrupts.stay();
    }

    /// Returns the directory, or `None` in memory.
    pub fn path(&self) -> Option<&Path> {
        self.database.path()
    }

    /// Waits for a future of the engine.
    pub fn wait<F: Future>(&self, work: F) -> F::Output {
        self.front.block_on(work)
    }

    /// Runs a statement, prints its rows and, if enabled, its plan and footer.
    pub fn run(&mut self, sql: &str) -> Result<(), Stop> {
        if self.view.explain && is_query(sql) {
            self.print_rows(&format!("EXPLAIN {sql}"))?;
        }
        self.last = Some(sql.to_string());
        let finished = self.print_rows(sql)?;
        for notice in self.session.query().notices().iter().filter(|_| !self.view.quiet) {
            note(self.view.terminal.paint(Paint::Dim, &format!("notice: {notice}")));
        }
        if self.view.footer {
            note(self.view.terminal.paint(Paint::Dim, &footer::line(&finished)));
        }
        Ok(())
    }

    /// Runs a statement and prints only its rows. Returns the number of rows.
    pub fn print(&self, sql: &str) -> Result<u64, Stop> {
        match self.print_rows(sql)?.outcome {
            Outcome::Rows(n) => Ok(n),
            Outcome::Done(_) => Ok(0),
        }
    }

    fn print_rows(&self, sql: &str) -> Result<statement::Finished, Stop> {
        self.front.block_on(statement::run(&self.executors, &self.session, sql, &self.view, &self.interrupts))
    }

    /// Closes the database, and waits a moment for remaining work.
    pub fn close(self) {
        let Self { executors, front, database, session, .. } = self;
        drop(session);
        drop(database);
        executors.shutdown(END_PATIENCE);
        front.shutdown_background();
    }
}

/// Returns the named directory, or `None` for [`MEMORY`].
pub fn directory(path: Option<&Path>) -> Option<&Path> {
    path.filter(|path| *path != Path::new(MEMORY))
}

/// Opens a database and a session on it.
pub fn open(path: Option<&Path>, options: &DatabaseOptions) -> Result<(Database, Arc<Session>), Stop> {
    let path = directory(path);
    if let Some(path) = path {
        refuse_file(path)?;
    }
    let opened = match path {
        Some(path) => Database::open(path, options),
        None => Database::memory(options),
    };
    // Settings have been validated. An invalid argument is the path, or the access to it.
    let database = opened.map_err(|e| match e.kind() {
        ErrorKind::Invalid => Stop::Misuse(e),
        _ => Stop::Engine(e),
    })?;
    gpu::register(&database);
    let session = Arc::new(database.session()?);
    Ok((database, session))
}

/// Refuses a data file in place of a database, which is a directory. Suggests a query of the file.
fn refuse_file(path: &Path) -> Result<(), Stop> {
    if !path.is_file() {
        return Ok(());
    }
    let name = path.display();
    Err(Stop::Usage(format!(
        "{name} is a file, and a database is a directory; to query the file: onehop -c \"FROM '{name}'\""
    )))
}

/// Creates executors with the configured number of threads.
pub fn executors(options: &DatabaseOptions) -> Result<Executors, Stop> {
    // The engine reports invalid values with a better message.
    Ok(Executors::new(threads(options))?)
}

/// Returns the configured number of threads, if it is valid.
pub fn threads(options: &DatabaseOptions) -> Option<usize> {
    let by_flag = options.settings.iter().rfind(|(name, _)| name == "threads").map(|(_, n)| n.clone());
    let threads = by_flag.or_else(|| std::env::var(settings::variable("threads")).ok()).and_then(|n| n.parse().ok());
    threads.filter(|n| (1..=4096).contains(n))
}

fn is_query(sql: &str) -> bool {
    let word: String = sql.chars().take_while(char::is_ascii_alphabetic).collect();
    sql.starts_with('(') || ["select", "with", "from", "values", "table"].contains(&word.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::is_query;

    #[test]
    fn plans_are_shown_for_queries_only() {
        assert!(is_query("select 1") && is_query("WITH a AS (SELECT 1) SELECT * FROM a") && is_query("(select 1)"));
        assert!(!is_query("insert into t select 1") && !is_query("explain select 1") && !is_query(""));
    }
}
