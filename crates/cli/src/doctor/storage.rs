//! The file system under a path: its kind, its free space, and its support of direct transfers,
//! tested by making some.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use onehop_io::{AlignedBuf, Ledger, LocalFile, PAGE_BYTES, ReadAt, RequestedPath, WriteAt};

use super::Finding;
use onehop_engine::units;

/// The free space below which loading any large table fails, in bytes.
const ENOUGH_FREE_BYTES: u64 = 1_000_000_000;

/// Probes the file system of `path`, which need not exist.
pub fn probe(path: &Path) -> Vec<Finding> {
    match existing_folder(path) {
        Ok(folder) => vec![file_system(&folder), free_space(&folder), direct(&folder)],
        Err(e) => vec![
            Finding::fail("path", path.display().to_string())
                .because(e.to_string())
                .fix("name a directory that exists, or one to be made inside of one that does"),
        ],
    }
}

/// Returns `path`, or its nearest existing ancestor.
pub fn existing_folder(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let found = absolute.ancestors().find(|path| path.is_dir());
    found.ok_or_else(|| io::ErrorKind::NotFound.into()).and_then(fs::canonicalize)
}

/// Returns the kind and device of the file system of `path`, which need not exist. Returns `None`
/// if it is unknown.
pub fn file_system_of(path: &Path) -> Option<String> {
    mount_under(path).map(|mount| format!("{} on {}", mount.kind, mount.source))
}

/// Returns the mount of `path`, which need not exist.
pub fn mount_under(path: &Path) -> Option<Mount> {
    let folder = existing_folder(path).ok()?;
    mount_of(&folder, &fs::read_to_string("/proc/self/mountinfo").ok()?)
}

fn file_system(folder: &Path) -> Finding {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match mount_of(folder, &mounts) {
        Some(mount) if ["tmpfs", "ramfs"].contains(&mount.kind.as_str()) => {
            Finding::warn("file system", format!("{mount} under {}", folder.display()))
                .because("it lives in memory: databases there end with the machine, and compete with queries for room")
                .fix("keep databases on a disk")
        }
        Some(mount) => Finding::ok("file system", format!("{mount} under {}", folder.display())),
        None => Finding::info("file system", format!("unknown under {}", folder.display()))
            .because("/proc/self/mountinfo does not list it"),
    }
}

/// A mounted file system.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// The kind: `ext4`, `xfs` ...
    pub kind: String,
    /// The device, or its substitute.
    pub source: String,
    /// The mount options.
    pub options: String,
}

impl std::fmt::Display for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {} ({})", self.kind, self.source, self.options)
    }
}

/// Returns the mount with the longest path that contains `folder`. The last of several mounts at
/// one path hides the others.
fn mount_of(folder: &Path, mountinfo: &str) -> Option<Mount> {
    let mount = |line: &str| {
        let (front, back) = line.split_once(" - ")?;
        let front: Vec<&str> = front.split(' ').collect();
        let mut back = back.split(' ');
        let point = PathBuf::from(front.get(4)?.replace("\\040", " "));
        let mount = Mount {
            kind: back.next()?.to_string(),
            source: back.next()?.to_string(),
            options: front.get(5)?.to_string(),
        };
        folder.starts_with(&point).then(|| (point.components().count(), mount))
    };
    mountinfo.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).map(|(_, mount)| mount)
}

fn free_space(folder: &Path) -> Finding {
    match rustix::fs::statvfs(folder) {
        Ok(stat) => {
            let (free, all) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
            let found = format!("{} of {}", units::bytes(free), units::bytes(all));
            match free < ENOUGH_FREE_BYTES {
                true => Finding::warn("free space", found).fix("make room, or keep databases elsewhere"),
                false => Finding::ok("free space", found),
            }
        }
        Err(e) => Finding::warn("free space", "unknown").because(e.to_string()),
    }
}

/// Writes a page with `O_DIRECT` and reads it back. Some file systems accept `O_DIRECT` when a file
/// is opened and refuse it at the first transfer.
fn direct(folder: &Path) -> Finding {
    let trial = match Trial::create(folder) {
        Ok(trial) => trial,
        Err(e) => {
            return Finding::info("direct I/O", "not tried")
                .because(format!("no file can be made in {}: {e}", folder.display()))
                .fix("name a directory that can be written to: onehop doctor PATH");
        }
    };
    match transfer(&trial.path) {
        Ok(()) => Finding::ok("direct I/O", "works (O_DIRECT, a page written and read back)"),
        Err(e) => Finding::info("direct I/O", "not available: reads go through the page cache")
            .because(e)
            .fix("keep databases on ext4 or xfs, on a local disk"),
    }
}

fn transfer(path: &Path) -> Result<(), String> {
    let file = LocalFile::create(path, RequestedPath::HostDirect).map_err(|e| e.to_string())?;
    let ledger = Ledger::default();
    let mut page = AlignedBuf::zeroed(PAGE_BYTES);
    page.padded_mut().fill(0x5a);
    file.write_at(0, &page, &ledger).map_err(|e| e.to_string())?;
    let mut back = AlignedBuf::zeroed(PAGE_BYTES);
    file.read_at(0, back.padded_mut(), &ledger).map_err(|e| e.to_string())?;
    if back[..] == page[..] { Ok(()) } else { Err("what was read is not what was written".into()) }
}

/// A temporary file, removed when dropped.
pub struct Trial {
    /// The path of the file.
    pub path: PathBuf,
}

impl Trial {
    /// Creates an empty file in a folder.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!(".onehop-doctor-{}", std::process::id()));
        // Never opens an existing file.
        File::create_new(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // A leftover empty file, in a folder that changed meanwhile, is harmless.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /data rw,noatime - xfs /dev/nvme0n1 rw
24 22 0:6 / /data/with\\040blank rw - tmpfs tmpfs rw
";

    #[test]
    fn the_nearest_mount_wins() {
        let kind = |path: &str| mount_of(path.as_ref(), MOUNTS).map(|mount| mount.to_string());
        assert_eq!(kind("/home"), Some("ext4 on /dev/sda1 (rw,relatime)".into()));
        assert_eq!(kind("/data/x"), Some("xfs on /dev/nvme0n1 (rw,noatime)".into()));
        assert_eq!(kind("/data/with blank/x"), Some("tmpfs on tmpfs (rw)".into()));
        assert_eq!(mount_of("/x".as_ref(), ""), None);
    }

    #[test]
    fn a_trial_leaves_nothing_behind() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        direct(folder.path());
        assert_eq!(fs::read_dir(folder.path())?.count(), 0);
        assert_eq!(existing_folder(&folder.path().join("a/b"))?, folder.path().canonicalize()?);
        Ok(())
    }
}
