//! Copies of whole databases: backups, which are made while others write, and restoring them.
//!
//! The copy grows in a directory beside its final name and gets that name when it is whole, verified and durable. It is a
//! database like any other.
//!
//! 1. Where hard links can be made, all segments that are there are linked: a checkpoint may remove them from now on.
//! 2. The store is copied as of one commit, without a lock ([`Store::backup_live`]).
//! 3. Segments that this commit mentions and the copy lacks are taken from the base, if that has the same, or else from the
//!    database. One that is gone by now was removed by a later commit: step 2 again, with what there is by then. Segments never
//!    change, so what was copied stays right, and each round has less left to do.
//! 4. Segments that the commit does not mention go.
//! 5. The copy is checked: every checksum, of segments that were linked as well.
//! 6. Files and directories get the modes of those that they are copies of. Until then the directory is its owner's alone.
//! 7. Names are made durable, and the directory is renamed.
//!
//! A directory that a killed process has left beside its name is removed by the next backup of that name: its maker has a lock on
//! it.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onehop_io::rados::fs::Id;
use onehop_io::{Ledger, LocalFile, LocalVolume, RequestedPath, Volume};
use onehop_segment::Segment;
use onehop_store::Store;
use rustix::fs::{FlockOperation, flock, ioctl_ficlone};
use rustix::io::Errno;

use crate::catalog::{self, Catalog, Place, STORE_FILE, SegmentEntry};
use crate::check::check_with;
use crate::database::DatabaseOptions;
use crate::directory::{SEGMENTS_FOLDER, is_segment_name, no_database};
use crate::rights::Access;
use crate::units::plural;
use crate::{Error, ErrorKind, Result};

/// Rounds until it is given up: each has only what was written in the one before.
const MOST_ROUNDS: usize = 100;
/// Bytes that are copied between two looks at whether it was cancelled.
const PIECE_BYTES: usize = 4 << 20;
/// A copy in the making has its final name, this, and digits.
const MAKING: &str = ".new-";

/// How to make a backup.
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    /// An earlier backup: segments that it has are linked to its files, or cloned from them, and not copied again.
    pub base: Option<PathBuf>,
    /// Whether the copy may share files with the database.
    pub sharing: Sharing,
}

/// Whether a copy may share files and blocks with its source. Segments never change, so a shared one is as good as a copy
/// for everything but a disk that fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Blocks where the file system clones, files where it links, nothing otherwise.
    #[default]
    Files,
    /// Blocks where the file system clones, nothing otherwise.
    Blocks,
    /// Nothing: every byte is copied.
    Nothing,
}

/// Figures of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// The generation of the catalog.
    pub generation: u64,
    /// Tables.
    pub tables: u64,
    /// Segments.
    pub files: u64,
    /// Bytes of the store and of all segments.
    pub bytes: u64,
    /// Segments that were linked.
    pub linked_files: u64,
    /// Segments that were cloned.
    pub cloned_files: u64,
    /// Segments that were copied.
    pub copied_files: u64,
    /// Segments of these that came from the base.
    pub base_files: u64,
    /// How often the store was copied.
    pub rounds: u64,
}

/// A phase of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Segments are copied.
    Copy,
    /// Checksums of the copy are verified.
    Verify,
}

/// Hears of progress: the phase, files done, files in all. If it returns an error, the copy ends and is removed.
pub type Hear<'a> = &'a mut dyn FnMut(Phase, u64, u64) -> Result<()>;

/// Copies the database at `path`, which others may be writing to, to a new directory `to`.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if there is something at `to`; [`ErrorKind::Corrupt`] if the database is damaged;
/// [`ErrorKind::Invalid`] if its segments lie on a cluster. Nothing stays at `to` then.
pub fn backup(path: &Path, to: &Path, options: &BackupOptions, hear: Hear<'_>) -> Result<BackupReport> {
    if to.symlink_metadata().is_ok() {
        return Err(exists(to, "choose a new name for the backup"));
    }
    copy_database(path, to, options, hear)
}

/// Copies a backup to a directory that is not there or empty. The backup stays as it is, and shares no file with the database that
/// comes of it.
///
/// # Errors
/// As of [`backup`].
pub fn restore(backup: &Path, to: &Path, hear: Hear<'_>) -> Result<BackupReport> {
    let is_empty = |to: &Path| fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_none());
    if to.symlink_metadata().is_ok() && !is_empty(to) {
        return Err(exists(to, "restore into a new directory, and rename that when it is as you want it"));
    }
    copy_database(backup, to, &BackupOptions { base: None, sharing: Sharing::Blocks }, hear)
}

fn exists(to: &Path, hint: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("there is something at {} already", to.display())).with_hint(hint)
}

fn copy_database(path: &Path, to: &Path, options: &BackupOptions, hear: Hear<'_>) -> Result<BackupReport> {
    if !path.join(STORE_FILE).is_file() {
        let error = no_database(path);
        return Err(if error.kind() == ErrorKind::NotFound {
            Error::new(error.kind(), error.message())
        } else {
            error
        });
    }
    if let Some(base) = options.base.as_ref().filter(|base| !base.join(SEGMENTS_FOLDER).is_dir()) {
        return Err(Error::new(ErrorKind::NotFound, format!("there is no backup at {}", base.display())));
    }
    if let (Ok(parent), Ok(from)) = (parent_of(to).canonicalize(), path.canonicalize())
        && parent.starts_with(&from)
    {
        let message = format!("{} is inside of {}", to.display(), path.display());
        return Err(Error::new(ErrorKind::Invalid, message).with_hint("choose a place outside of what is copied"));
    }
    remove_abandoned(to);
    let making = Making::new(to)?;
    let sides = Directories { from: path, to: &making.path, options };
    let mut copy = Copy { sides, hear, report: BackupReport::default(), made: HashMap::new() };
    make_directory(&making.path.join(SEGMENTS_FOLDER))?;
    if options.sharing == Sharing::Files {
        copy.link_all();
    }
    let catalog = copy.copy_segments()?;
    copy.remove_others(&catalog)?;
    copy.verify()?;
    copy.keep_modes()?;
    let report = copy.report;
    making.place(to)?;
    Ok(report)
}

/// The source of a segment, and the way it was taken.
#[derive(Clone, Copy, Debug)]
struct Made {
    way: Way,
    is_of_base: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Linked,
    Cloned,
    Copied,
}

/// A database that others may be writing to and the copy of it, wherever they lie.
trait Sides {
    /// The database, for messages.
    fn name(&self) -> String;

    /// Copies the store as of one commit, over an earlier copy; the catalog of that commit.
    fn copy_store(&mut self) -> Result<Catalog>;

    /// Copies a segment, over what an earlier round has left of it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is gone.
    fn copy_segment(&mut self, segment: &SegmentEntry, hear: &mut dyn FnMut() -> Result<()>) -> Result<Made>;
}

/// Directories of the operating system's.
struct Directories<'a> {
    from: &'a Path,
    to: &'a Path,
    options: &'a BackupOptions,
}

/// Volumes. Every byte is copied.
struct Volumes<'a> {
    from: &'a Arc<dyn Volume>,
    to: &'a Arc<dyn Volume>,
}

/// A copy in the making.
struct Copy<'a, S> {
    sides: S,
    hear: Hear<'a>,
    report: BackupReport,
    made: HashMap<String, Made>,
}

/// Copies the database on a volume, which others may be writing to, to an empty one, as [`backup`] does: for simulations.
///
/// # Errors
/// As of [`backup`].
#[doc(hidden)]
pub fn backup_volume(from: &Arc<dyn Volume>, to: &Arc<dyn Volume>) -> Result<BackupReport> {
    let (hear, report) = (&mut |_, _, _| Ok(()), BackupReport::default());
    let mut copy = Copy { sides: Volumes { from, to }, hear, report, made: HashMap::new() };
    let catalog = copy.copy_segments()?;
    let mentioned: HashSet<&str> =
        catalog.tables.values().flat_map(|table| &table.segments).map(|segment| segment.file.as_str()).collect();
    let segments = to.folder(SEGMENTS_FOLDER)?;
    for file in copy.made.keys().filter(|file| !mentioned.contains(file.as_str())) {
        segments.remove(file)?;
    }
    Ok(BackupReport { generation: catalog.generation, ..copy.report })
}

impl Directories<'_> {
    fn segment_in(directory: &Path, file: &str) -> PathBuf {
        directory.join(SEGMENTS_FOLDER).join(file)
    }
}

impl<S: Sides> Copy<'_, S> {
    /// Copies the store of one commit and all segments that it mentions; its catalog.
    fn copy_segments(&mut self) -> Result<Catalog> {
        for round in 1..=MOST_ROUNDS as u64 {
            self.report.rounds = round;
            let catalog = self.sides.copy_store()?;
            if self.copy_mentioned(&catalog)? {
                return Ok(catalog);
            }
        }
        let message = format!("segments of {} are removed faster than they can be copied", self.sides.name());
        Err(Error::new(ErrorKind::Conflict, message).with_hint("make the backup when less is being loaded"))
    }

    /// Copies segments that are not there yet; whether all are. One that is not is gone: there is a later commit.
    fn copy_mentioned(&mut self, catalog: &Catalog) -> Result<bool> {
        let mentioned: Vec<&SegmentEntry> = catalog.tables.values().flat_map(|table| &table.segments).collect();
        let (mut is_whole, all) = (true, mentioned.len() as u64);
        for (done, segment) in mentioned.into_iter().enumerate() {
            (self.hear)(Phase::Copy, done as u64, all)?;
            if self.made.contains_key(&segment.file) {
                continue;
            }
            let hear = &mut self.hear;
            match self.sides.copy_segment(segment, &mut || hear(Phase::Copy, 0, 0)) {
                Ok(made) => drop(self.made.insert(segment.file.clone(), made)),
                Err(e) if e.kind() == ErrorKind::NotFound => is_whole = false,
                Err(e) => return Err(e),
            }
        }
        match is_whole {
            true => Ok(true),
            // A segment that no later commit has removed is missing.
            false if self.report.rounds > 1 && self.is_as_it_was(catalog)? => Err(self.missing(catalog)),
            false => Ok(false),
        }
    }

    /// Whether the database still has the catalog that was copied.
    fn is_as_it_was(&mut self, catalog: &Catalog) -> Result<bool> {
        Ok(self.sides.copy_store()?.generation == catalog.generation)
    }

    fn missing(&self, catalog: &Catalog) -> Error {
        let mut segments =
            catalog.tables.iter().flat_map(|(table, entry)| entry.segments.iter().map(move |s| (table, s)));
        let lacks = segments.find(|(_, segment)| !self.made.contains_key(&segment.file));
        let (table, file) = lacks.map_or(("", ""), |(table, segment)| (table, &segment.file));
        let message =
            format!("the segment file {}/{SEGMENTS_FOLDER}/{file} of table \"{table}\" is missing", self.sides.name());
        Error::new(ErrorKind::Corrupt, message).with_hint("`onehop check` lists everything that is damaged or missing")
    }
}

impl Sides for Directories<'_> {
    fn name(&self) -> String {
        self.from.display().to_string()
    }

    fn copy_store(&mut self) -> Result<Catalog> {
        let (from, to) = (self.from.join(STORE_FILE), self.to.join(STORE_FILE));
        remove_if_there(&to)?;
        Store::backup_live(from, &to)?;
        let root: Arc<dyn Volume> = Arc::new(LocalVolume::open(self.to, RequestedPath::Buffered)?);
        let store = catalog::open(&root, Place::Directory(self.to), Access::ReadOnly, || Ok(None))?;
        if let Some(place) = store.segment_place()? {
            let message = format!("the segments of {} lie in {}, and are not copied", self.from.display(), place.url);
            return Err(Error::new(ErrorKind::Invalid, message).with_hint(
                "take a snapshot of the pool; `onehop store backup` copies the catalog and fresh rows alone",
            ));
        }
        store.load()
    }

    fn copy_segment(&mut self, segment: &SegmentEntry, hear: &mut dyn FnMut() -> Result<()>) -> Result<Made> {
        let to = Self::segment_in(self.to, &segment.file);
        let of_base = self.options.base.iter().map(|base| (Self::segment_in(base, &segment.file), true));
        let of_database = (Self::segment_in(self.from, &segment.file), false);
        let mut found = of_base.filter(|(file, _)| is_that(file, segment)).chain([of_database]);
        let (from, is_of_base) = found.next().unwrap_or_default();
        // An earlier round may have left a part of it.
        remove_if_there(&to)?;
        let way = copy_file(&from, &to, self.options.sharing, hear)?;
        Ok(Made { way, is_of_base })
    }
}

impl Sides for Volumes<'_> {
    fn name(&self) -> String {
        self.from.name().to_string()
    }

    fn copy_store(&mut self) -> Result<Catalog> {
        catalog::copy_live(self.from, self.to)?;
        catalog::open(self.to, Place::Volume, Access::ReadOnly, || Ok(None))?.load()
    }

    fn copy_segment(&mut self, segment: &SegmentEntry, _hear: &mut dyn FnMut() -> Result<()>) -> Result<Made> {
        let from = self.from.folder(SEGMENTS_FOLDER)?.open(&segment.file)?;
        let mut bytes = vec![0; usize::try_from(from.len()?).unwrap_or_default()];
        from.read_at(0, &mut bytes, &Ledger::default())?;
        let to = self.to.folder(SEGMENTS_FOLDER)?.create(&segment.file)?;
        to.write_at(0, &bytes, &Ledger::default())?;
        to.sync()?;
        Ok(Made { way: Way::Copied, is_of_base: false })
    }
}

impl Copy<'_, Directories<'_>> {
    /// Links all segments that there are. What cannot be linked is copied later, if it is needed.
    fn link_all(&mut self) {
        let names = fs::read_dir(self.sides.from.join(SEGMENTS_FOLDER)).into_iter().flatten().flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_segment_name(name))
        {
            let [from, to] = [self.sides.from, self.sides.to].map(|side| Directories::segment_in(side, &name));
            if fs::hard_link(from, to).is_ok() {
                self.made.insert(name, Made { way: Way::Linked, is_of_base: false });
            }
        }
    }

    /// Removes segments that were linked or copied and that the catalog does not mention; counts the others.
    fn remove_others(&mut self, catalog: &Catalog) -> Result<()> {
        let mentioned: HashMap<&str, &SegmentEntry> =
            catalog.tables.values().flat_map(|table| &table.segments).map(|s| (s.file.as_str(), s)).collect();
        let others: HashSet<String> =
            self.made.keys().filter(|file| !mentioned.contains_key(file.as_str())).cloned().collect();
        for file in &others {
            remove_if_there(&Directories::segment_in(self.sides.to, file))?;
            self.made.remove(file);
        }
        let store = self.sides.to.join(STORE_FILE);
        let store_bytes = fs::metadata(&store).map_err(|e| failed("look at", &store, e))?.len();
        let count = |way: Way| self.made.values().filter(|made| made.way == way).count() as u64;
        self.report = BackupReport {
            generation: catalog.generation,
            tables: catalog.tables.len() as u64,
            files: self.made.len() as u64,
            bytes: store_bytes + mentioned.values().map(|segment| segment.bytes).sum::<u64>(),
            linked_files: count(Way::Linked),
            cloned_files: count(Way::Cloned),
            copied_files: count(Way::Copied),
            base_files: self.made.values().filter(|made| made.is_of_base).count() as u64,
            rounds: self.report.rounds,
        };
        Ok(())
    }

    /// Gives files and directories the modes of those that they are copies of. Their owner may always write them.
    fn keep_modes(&self) -> Result<()> {
        let copied = self.made.iter().filter(|(_, made)| made.way != Way::Linked);
        let files = copied.map(|(file, _)| Path::new(SEGMENTS_FOLDER).join(file)).chain([STORE_FILE.into()]);
        let directories = [SEGMENTS_FOLDER.into(), PathBuf::new()];
        let of_store = self.sides.from.join(STORE_FILE);
        for (place, own) in files.map(|file| (file, 0o600)).chain(directories.map(|directory| (directory, 0o700))) {
            let (from, to) = (self.sides.from.join(&place), self.sides.to.join(&place));
            // A segment may be gone by now, or the base's.
            let metadata = fs::metadata(&from).or_else(|_| fs::metadata(&of_store));
            let mode = metadata.map_err(|e| failed("look at", &from, e))?.permissions().mode() & 0o777 | own;
            fs::set_permissions(&to, Permissions::from_mode(mode)).map_err(|e| failed("change the mode of", &to, e))?;
        }
        Ok(())
    }

    /// Verifies every checksum of the copy.
    fn verify(&mut self) -> Result<()> {
        let mut stopped = Ok(());
        let checked = check_with(self.sides.to, &DatabaseOptions::default(), &mut |done, all| {
            if stopped.is_ok() {
                stopped = (self.hear)(Phase::Verify, done, all);
            }
        })?;
        stopped?;
        match checked.problems.first() {
            None => Ok(()),
            Some(problem) => {
                let problems = plural(checked.problems.len() as u64, "problem");
                let first = problem.error.message();
                let message = format!("the copy of {} has {problems}, the first: {first}", self.sides.name());
                Err(Error::new(ErrorKind::Corrupt, message).with_hint("`onehop check` of the database lists them"))
            }
        }
    }
}

/// Whether a file has the length and the checksum that a catalog has for a segment.
fn is_that(file: &Path, segment: &SegmentEntry) -> bool {
    let Ok(file) = LocalFile::open(file, RequestedPath::Buffered) else { return false };
    let is_as_long = onehop_io::ReadAt::len(&file).is_ok_and(|bytes| bytes == segment.bytes);
    is_as_long && segment.checksum.is_some() && Segment::checksum_of(&file) == segment.checksum
}

fn failed(what: &str, path: &Path, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::StorageFull => ErrorKind::Resources,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("cannot {what} {}: {e}", path.display())).with_source(e)
}

fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir(path).map_err(|e| failed("make the directory", path, e))
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, e)),
        _ => Ok(()),
    }
}

/// Makes `to` what `from` is; `hear` is asked now and then whether to go on.
fn copy_file(from: &Path, to: &Path, sharing: Sharing, hear: &mut dyn FnMut() -> Result<()>) -> Result<Way> {
    let mut source = File::open(from).map_err(|e| failed("open", from, e))?;
    let of_target = |e: io::Error| failed("write", to, e);
    let mut target = File::create_new(to).map_err(of_target)?;
    if sharing != Sharing::Nothing && ioctl_ficlone(&target, &source).is_ok() {
        target.sync_all().map_err(of_target)?;
        return Ok(Way::Cloned);
    }
    if sharing == Sharing::Files {
        fs::remove_file(to).map_err(of_target)?;
        match fs::hard_link(from, to) {
            Ok(()) => return Ok(Way::Linked),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(failed("link", from, e)),
            Err(_) => target = File::create_new(to).map_err(of_target)?,
        }
    }
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        hear()?;
        match source.read(&mut piece).map_err(|e| failed("read", from, e))? {
            0 => break,
            bytes => target.write_all(&piece[..bytes]).map_err(of_target)?,
        }
    }
    target.sync_all().map_err(of_target)?;
    Ok(Way::Copied)
}

/// A directory in the making. Dropped, it goes with all that is in it.
struct Making {
    path: PathBuf,
    _lock: File,
    /// Descriptors for its removal, should the copy have ended because there were no more.
    spare: Vec<File>,
}

/// Descriptors that removing a directory with directories in it takes.
const REMOVING_DESCRIPTORS: usize = 4;

impl Making {
    fn new(to: &Path) -> Result<Self> {
        let id = Id::random().map_err(|e| failed("get random numbers for", to, e))?.to_string();
        let mut name: OsString = to.file_name().unwrap_or(OsStr::new("backup")).into();
        name.push(format!("{MAKING}{id}"));
        let path = to.with_file_name(name);
        let spare = (0..REMOVING_DESCRIPTORS).map(|_| File::open("/dev/null"));
        let spare = spare.collect::<io::Result<_>>().map_err(|e| failed("begin", to, e))?;
        DirBuilder::new().mode(0o700).create(&path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound if !parent_of(to).is_dir() => failed("make the directory", &path, e)
                .with_hint(format!("make the directory {} first", parent_of(to).display())),
            _ => failed("make the directory", &path, e),
        })?;
        let lock = File::open(&path).map_err(|e| failed("open", &path, e))?;
        let making = Self { path, _lock: lock, spare };
        flock(&making._lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| failed("lock", &making.path, e.into()))?;
        Ok(making)
    }

    /// Gives it its name, durably.
    fn place(self, to: &Path) -> Result<()> {
        let sync = |path: &Path| File::open(path).and_then(|it| it.sync_all()).map_err(|e| failed("sync", path, e));
        sync(&self.path.join(SEGMENTS_FOLDER))?;
        sync(&self.path)?;
        // A directory that is not empty is not replaced.
        fs::rename(&self.path, to).map_err(|e| match e.kind() {
            io::ErrorKind::DirectoryNotEmpty => exists(to, "another backup of this name was faster"),
            _ => failed("give its name to", to, e),
        })?;
        sync(parent_of(to))
    }
}

/// The directory that a path is in.
fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Drop for Making {
    fn drop(&mut self) {
        self.spare.clear();
        // After `place` the name is free. The next backup of this name finds files that cannot be removed.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes copies named `to` of processes that were killed.
fn remove_abandoned(to: &Path) {
    let Some(name) = to.file_name().map(|name| format!("{}{MAKING}", name.to_string_lossy())) else { return };
    for entry in fs::read_dir(parent_of(to)).into_iter().flatten().flatten() {
        let rest = entry.file_name().to_string_lossy().strip_prefix(&name).map(str::to_string);
        if rest.is_none_or(|rest| Id::parse(&rest).is_none()) {
            continue;
        }
        let Ok(directory) = File::open(entry.path()) else { continue };
        if flock(&directory, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK) {
            // The backup goes on without.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
