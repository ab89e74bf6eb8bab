//! The file of users and its operations: reading it, adding a user, removing a user.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use onehop_server::Users;

use super::{Made, Outcome, Target, Verdict, files};

struct File(tempfile::TempDir);

pub(super) fn target() -> Made {
    Ok(Box::new(File(files::folder()?)))
}

impl Target for File {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let verifier = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
            wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
        vec![
            format!("# users\n\nada admin {verifier}\ngrace read {verifier}\n").into_bytes(),
            format!("eve write {verifier}\r\n").into_bytes(),
        ]
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let path = self.0.path().join("users");
        let written = fs::write(&path, input).and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o600)));
        written.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let users = Users::at(&path);
        let Ok(found) = users.read() else { return Ok(Outcome::Refused) };
        let Some(name) = found.keys().next() else { return Ok(Outcome::Accepted) };
        // A file that was read is written again, and must read as the same. (Adding a user hashes a
        // password, which is slow.)
        users.remove(name).map_err(|e| format!("{name:?} was read, and cannot be removed: {e}"))?;
        let left = users.read().map_err(|e| format!("what is left cannot be read: {e}"))?;
        match found.len() == left.len() + 1 && left.iter().all(|(name, user)| found.get(name) == Some(user)) {
            true => Ok(Outcome::Accepted),
            false => Err("other users are left than there were".into()),
        }
    }
}
