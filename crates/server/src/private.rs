//! Files that must be private to their owner: keys, and password verifiers.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// The permitted readers of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// The owner alone: mode 0600.
    Owner,
    /// Also the group if root owns the file: mode 0640, as packages install keys. PostgreSQL has
    /// the same rule.
    GroupOfRoot,
}

/// The reason a file is not read.
#[derive(Debug)]
pub enum Unfit {
    /// The operating system refused the named operation.
    Io(&'static str, io::Error),
    /// Others can read or write the file, which has this mode.
    Open(u32),
}

/// Opens a file that others can neither read nor write. The mode is read from the open file, so
/// that no other file can take its place in between.
pub fn open(path: &Path, readers: Readers) -> Result<File, Unfit> {
    let file = File::open(path).map_err(|e| Unfit::Io("open", e))?;
    let metadata = file.metadata().map_err(|e| Unfit::Io("look at", e))?;
    let mode = metadata.permissions().mode() & 0o777;
    let is_private = match readers {
        Readers::GroupOfRoot if metadata.uid() == 0 => mode & 0o037 == 0,
        _ => mode & 0o077 == 0,
    };
    if is_private { Ok(file) } else { Err(Unfit::Open(mode)) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_let_others_in_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "x").unwrap();
        let is_root = std::fs::metadata(&path).unwrap().uid() == 0;
        let fits = |mode, readers| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            open(&path, readers).is_ok()
        };
        assert!(fits(0o600, Readers::Owner) && fits(0o400, Readers::GroupOfRoot));
        assert_eq!(fits(0o640, Readers::GroupOfRoot), is_root);
        assert!(!fits(0o640, Readers::Owner));
        for mode in [0o644, 0o604, 0o660, 0o610, 0o602, 0o666] {
            assert!(!fits(mode, Readers::GroupOfRoot) && !fits(mode, Readers::Owner), "{mode:o}");
        }
    }
}
