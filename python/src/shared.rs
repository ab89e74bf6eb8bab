//! Databases that this process has open: a second `connect()` to one has a session on the same database.
//!
//! A directory that is open for writing is locked, also against its own process. So each home is listed here by the path of
//! its directory, and found again as long as anything needs it. A path that is being opened is listed as such: others wait for it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use onehop_engine::{Access, DatabaseOptions, MEMORY, Result};
use pyo3::prelude::*;

use crate::error;
use crate::home::Home;

/// How long one that waits for a database to be opened sleeps at a time.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Locked with the interpreter's lock only, so that no thread has it when a process forks.
static HOMES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    process: u32,
    directory: PathBuf,
    access: Access,
    state: State,
}

enum State {
    Opening,
    Open(Weak<Home>),
}

impl Entry {
    fn is_of(&self, directory: &Path) -> bool {
        self.process == std::process::id() && self.directory == directory
    }

    fn is_gone(&self) -> bool {
        matches!(&self.state, State::Open(home) if home.strong_count() == 0)
    }
}

enum Found {
    Home(Arc<Home>),
    Opening,
    Nothing,
}

/// The home of the database at `path`: the one that this process has open with the same access, or a new one.
pub fn home(py: Python<'_>, path: Option<&Path>, options: &DatabaseOptions) -> PyResult<(Arc<Home>, Sharing)> {
    let open = || py.detach(|| Home::open(path, options)).map_err(|e| error::engine(py, &e));
    let Some(path) = path.filter(|path| *path != Path::new(MEMORY) && options.segments.is_none()) else {
        return Ok((Arc::new(open()?), Sharing::Alone));
    };
    let directory = directory(path);
    loop {
        match find(&directory, options.access) {
            Found::Home(home) => return Ok((home, Sharing::Shared)),
            Found::Nothing => break,
            Found::Opening => {
                py.detach(|| thread::sleep(LOOK_AGAIN));
                py.check_signals()?;
            }
        }
    }
    let opened = open().map(Arc::new);
    let mut homes = homes();
    homes.retain(|entry| !(entry.is_of(&directory) && matches!(entry.state, State::Opening)));
    let home = opened?;
    let state = State::Open(Arc::downgrade(&home));
    homes.push(Entry { process: std::process::id(), directory, access: options.access, state });
    Ok((home, Sharing::Alone))
}

/// Whether a database was open already, so that settings are those of a session alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// It was opened with the settings that were given.
    Alone,
    /// Others have opened it, with theirs.
    Shared,
}

/// Settings of a session on a database that others have opened.
pub fn set(home: &Home, options: &DatabaseOptions) -> Result<onehop_engine::Session> {
    let session = home.session()?;
    for (name, value) in &options.settings {
        session.set_parameter(name, value)?;
    }
    Ok(session)
}

/// Looks for a home; lists the directory as being opened if there is none.
fn find(directory: &Path, access: Access) -> Found {
    let mut homes = homes();
    homes.retain(|entry| !entry.is_gone());
    let found = homes.iter().find(|entry| entry.is_of(directory) && entry.access == access);
    match found.map(|entry| &entry.state) {
        Some(State::Opening) => return Found::Opening,
        Some(State::Open(home)) => {
            if let Some(home) = home.upgrade() {
                return Found::Home(home);
            }
        }
        None => {}
    }
    homes.push(Entry {
        process: std::process::id(),
        directory: directory.to_path_buf(),
        access,
        state: State::Opening,
    });
    Found::Nothing
}

fn homes() -> MutexGuard<'static, Vec<Entry>> {
    HOMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory by one name, whether it is there already or its parent is.
fn directory(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    if let Ok(canonical) = absolute.canonicalize() {
        return canonical;
    }
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => absolute,
    }
}
