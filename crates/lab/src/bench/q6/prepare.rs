//! The folder of the generated tables.
//!
//! A marker file identifies the folder. It is written first, and says *ready* last. A folder
//! without it is foreign and is not changed. A folder that is not ready was left by an interrupted
//! run, and is created again. Only files with the names of this benchmark are removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use onehop_io::{Ledger, Operation};
use serde::{Deserialize, Serialize};

use super::super::held::Held;
use super::rows::RowFile;
use super::segments::{self, Segments};
use super::{Error, Layout, Result, system};

/// The marker file of the folder.
const MARK: &str = "onehop-bench-q6.json";
const ROWS: &str = "lineitem.rows";
const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Mark {
    benchmark: String,
    format: u32,
    scale_factor: f64,
    ready: Vec<Layout>,
}

/// The progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The number of rows of a layout that have been written.
    Writing(Layout, u64),
    /// The number of bytes of existing tables that have been compared with their checksums.
    Checking(u64),
}

/// A folder of this benchmark.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    scale: f64,
    is_new: bool,
    /// The lock, if the file system has locks: two runs would remove each other's tables.
    _held: Held,
}

impl Folder {
    /// Opens the folder in `parent` for a scale factor, and creates it if it is missing.
    ///
    /// # Errors
    /// Fails if a foreign file or folder has the name.
    pub fn open(parent: &Path, scale: f64) -> Result<Self> {
        let path = parent.join(format!("onehop-bench-q6-sf{scale}"));
        let refused = |reason: &str| Error::Refused { object: path.display().to_string(), reason: reason.into() };
        let is_new = match fs::create_dir(&path) {
            Ok(()) => true,
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => false,
            Err(e) => return Err(system(&path, Operation::Create, e)),
        };
        let held = fs::File::open(&path).map_err(|e| system(&path, Operation::Open, e))?;
        let held = Held::lock(held).map_err(|e| system(&path, Operation::Open, e))?.ok_or_else(|| {
            refused("another `onehop bench q6` is using it: wait for its end, or name another folder")
        })?;
        let folder = Self { path: path.clone(), scale, is_new, _held: held };
        if is_new {
            folder.mark(&[])?;
        } else if folder.read_mark()?.is_none_or(|mark| mark.format != FORMAT || mark.scale_factor != scale) {
            return Err(refused(
                "it was not made by this version of the benchmark for this scale factor, and is not touched",
            ));
        }
        Ok(folder)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the folder did not exist before.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns the segments. Creates them if they are missing, and checks existing ones.
    ///
    /// # Errors
    /// Returns the system's error. Fails if blocks are damaged. Returns [`Error::Cancelled`].
    pub fn segments(&self, threads: usize, progress: &(dyn Fn(Step) + Sync), cancel: &AtomicBool) -> Result<Segments> {
        let paths = segments::names(&self.path, self.scale)?;
        if !self.has(Layout::Segments)? {
            paths.iter().try_for_each(|path| remove(path))?;
            let told = |rows| progress(Step::Writing(Layout::Segments, rows));
            segments::create(&self.path, self.scale, threads, &told, cancel)?;
            self.add(Layout::Segments)?;
            return Segments::open(paths);
        }
        let found = Segments::open(paths)?;
        // The measured reads skip checksums.
        let mut bytes = 0;
        for source in &found.sources {
            if cancel.load(Relaxed) {
                return Err(Error::Cancelled);
            }
            let checked = onehop_segment::check(&source.segment, &Ledger::default());
            if let Some(problem) = checked.problems.into_iter().next() {
                return Err(problem.into());
            }
            bytes += checked.bytes;
            progress(Step::Checking(bytes));
        }
        Ok(found)
    }

    /// Returns the row pages. Creates them if they are missing, and checks existing ones.
    ///
    /// # Errors
    /// Returns the system's error. Fails if pages are damaged. Returns [`Error::Cancelled`].
    pub fn rows(&self, threads: usize, progress: &(dyn Fn(Step) + Sync), cancel: &AtomicBool) -> Result<RowFile> {
        let path = self.path.join(ROWS);
        if self.has(Layout::Rows)? {
            let file = RowFile::open(&path)?;
            file.check(&mut |bytes| progress(Step::Checking(bytes)), cancel)?;
            return Ok(file);
        }
        remove(&path)?;
        let file = RowFile::create(
            &path,
            self.scale,
            threads,
            &mut |rows| progress(Step::Writing(Layout::Rows, rows)),
            cancel,
        )?;
        self.add(Layout::Rows)?;
        Ok(file)
    }

    /// Removes the files of this benchmark, and the folder if it is then empty.
    pub fn remove(&self) {
        for path in segments::names(&self.path, self.scale).unwrap_or_default() {
            let _ = fs::remove_file(path);
        }
        let _ = fs::remove_file(self.path.join(ROWS));
        let _ = fs::remove_file(self.path.join(MARK));
        let _ = fs::remove_dir(&self.path);
    }

    fn has(&self, layout: Layout) -> Result<bool> {
        Ok(self.read_mark()?.is_some_and(|mark| mark.ready.contains(&layout)))
    }

    fn add(&self, layout: Layout) -> Result<()> {
        let mut ready = self.read_mark()?.map(|mark| mark.ready).unwrap_or_default();
        ready.push(layout);
        self.mark(&ready)
    }

    fn mark(&self, ready: &[Layout]) -> Result<()> {
        let mark = Mark { benchmark: "q6".into(), format: FORMAT, scale_factor: self.scale, ready: ready.to_vec() };
        let path = self.path.join(MARK);
        let text = serde_json::to_string_pretty(&mark).map_err(|e| system(&path, Operation::Write, e.into()))?;
        fs::write(&path, text + "\n").map_err(|e| system(&path, Operation::Write, e))
    }

    /// Reads the marker. Returns `None` if there is no such file, or an invalid one.
    fn read_mark(&self) -> Result<Option<Mark>> {
        let path = self.path.join(MARK);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(serde_json::from_str(&text).ok().filter(|mark: &Mark| mark.benchmark == "q6")),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(system(&path, Operation::Open, e)),
        }
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(system(path, Operation::Create, e)),
        _ => Ok(()),
    }
}
