//! A secret of 32 random bytes beside the file of users, `FILE.secret`, private to its owner. It is
//! one line, `onehop-users-secret 1 <base64>`. The number is the format's version.
//!
//! `onehop user add`, or a server that starts without one, creates it once. It never changes: a new
//! secret gives other salts to names that are not in the file, and so tells them from those that
//! are. If it cannot be written, it is derived from the verifiers. They outlive the server as well,
//! but the derived secret changes when one of them does.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};

use super::{User, UsersError, sync_folder, write_private};
use crate::private::{self, Readers, Unfit};

/// The word and the version at the start of the line.
const BEGINS: &str = "onehop-users-secret 1 ";

pub(super) type Secret = [u8; 32];

/// Returns the path of the secret of a file of users.
pub(super) fn path_of(users: &Path) -> PathBuf {
    let mut path = users.as_os_str().to_os_string();
    path.push(".secret");
    path.into()
}

/// Returns the secret of a file of users. Creates one if there is none.
pub(super) fn of(path: &Path, users: &BTreeMap<String, User>) -> Result<Secret, UsersError> {
    let secret = path_of(path);
    if let Some(known) = read(&secret)? {
        return Ok(known);
    }
    match make(&secret) {
        // Another process may have created it first.
        Ok(()) => read(&secret)?.map_or_else(|| Ok(derived(users)), Ok),
        Err(e) => {
            eprintln!(
                "onehop: cannot write {}: {e}; its content follows from the file of users instead",
                secret.display()
            );
            Ok(derived(users))
        }
    }
}

fn read(path: &Path) -> Result<Option<Secret>, UsersError> {
    let unfit = |why: String| UsersError::Secret { path: path.into(), why };
    let mut file = match private::open(path, Readers::Owner) {
        Ok(file) => file,
        Err(Unfit::Io(_, e)) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(Unfit::Io(_, e)) => return Err(unfit(e.to_string())),
        Err(Unfit::Open(mode)) => return Err(unfit(format!("it is open to others (mode {mode:04o}, not 0600)"))),
    };
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|e| unfit(e.to_string()))?;
    let bytes = text.strip_prefix(BEGINS).and_then(|text| STANDARD.decode(text.trim_end()).ok());
    let secret = bytes.and_then(|bytes| bytes.try_into().ok());
    secret.map(Some).ok_or_else(|| unfit("it is damaged, or of a newer version".into()))
}

/// Creates a secret atomically. Leaves an existing one.
fn make(path: &Path) -> io::Result<()> {
    let mut secret: Secret = [0; 32];
    SystemRandom::new().fill(&mut secret).map_err(|_| io::Error::other("the system gives no random numbers"))?;
    let next = path.with_extension(format!("secret.new-{}", std::process::id()));
    let text = format!("{BEGINS}{}\n", STANDARD.encode(secret));
    let made = write_private(&next, text.as_bytes()).and_then(|()| std::fs::hard_link(&next, path));
    let _ = std::fs::remove_file(&next);
    match made {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => sync_folder(path),
    }
}

/// Derives a secret from the verifiers.
fn derived(users: &BTreeMap<String, User>) -> Secret {
    let mut all = digest::Context::new(&digest::SHA256);
    all.update(b"onehop-users-secret");
    for (name, user) in users {
        all.update(format!("\0{name}\0{}", user.verifier().text()).as_bytes());
    }
    let mut secret = [0; 32];
    secret.copy_from_slice(all.finish().as_ref());
    secret
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use onehop_engine::Rights;

    use super::super::Users;
    use super::*;

    #[test]
    fn it_is_made_once_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        Users::at(&path).add("ada", "x", Rights::Read).unwrap();
        let secret = path_of(&path);
        assert_eq!(std::fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
        let first = std::fs::read_to_string(&secret).unwrap();
        Users::at(&path).add("bob", "x", Rights::Read).unwrap();
        let users = Users::at(&path).read().unwrap();
        assert_eq!(read(&secret).unwrap().unwrap(), of(&path, &users).unwrap());
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), first);
        // A second secret that is made at the same time yields the first one.
        make(&secret).unwrap();
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), first);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn one_that_is_not_private_or_damaged_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let users = Users::at(&path);
        users.add("ada", "x", Rights::Read).unwrap();
        let secret = path_of(&path);
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(users.pretended().map(drop).unwrap_err().to_string().contains("mode 0644"));
        for text in ["", "onehop-users-secret 1 AAAA\n", "onehop-users-secret 2 AAAA\n"] {
            write_private(&secret, text.as_bytes()).unwrap();
            let message = users.pretended().map(drop).unwrap_err().to_string();
            assert!(message.contains("damaged") && message.contains("users.secret"), "{message}");
        }
    }

    #[test]
    fn without_a_place_for_it_it_follows_from_the_verifiers() {
        let folder = tempfile::tempdir().unwrap();
        let users = Users::at(folder.path().join("users"));
        users.add("ada", "x", Rights::Read).unwrap();
        let known = users.read().unwrap();
        // The folder does not exist.
        let nowhere = folder.path().join("missing/users");
        assert_eq!(of(&nowhere, &known).unwrap(), of(&nowhere, &known).unwrap());
        assert_eq!(of(&nowhere, &known).unwrap(), derived(&known));
    }
}
