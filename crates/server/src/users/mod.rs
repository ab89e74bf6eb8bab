//! The users that may log in: a file with a line for each user, `name role verifier`.
//!
//! A verifier is PostgreSQL's, `SCRAM-SHA-256$iterations:salt$stored key:server key`. It
//! distinguishes a right password from a wrong one, and does not reveal the password. The file is
//! private to its owner, like a private key: one that others can read or write is refused. It is
//! replaced as a whole, never changed in place, so that a concurrent reader reads the old one or
//! the new one.
//!
//! Beside it is a secret ([`secret`]), from which the answers for names that are not in the file
//! are derived.

mod pretended;
mod secret;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use onehop_engine::Rights;
use pgwire::api::auth::sasl::scram::{ScramSecret, gen_salted_password};
use ring::rand::{SecureRandom, SystemRandom};

pub(crate) use self::pretended::Pretended;
use crate::private::{self, Readers, Unfit};

/// The maximum size of a password, in bytes.
pub const MOST_PASSWORD_BYTES: usize = 1000;

/// The number of hash iterations of a password: the work per guess of an attacker who has the file.
const ITERATIONS: usize = 10_000;
const SALT_BYTES: usize = 16;
/// The maximum iterations of an accepted verifier. It admits those of PostgreSQL, and none that
/// would keep the server busy.
const MOST_ITERATIONS: usize = 1_000_000;

const SCHEME: &str = "SCRAM-SHA-256";

/// An error of a file of users.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The operating system refused an operation.
    #[error("cannot {attempt} the file of users {}: {source}", path.display())]
    Io {
        /// The attempted operation.
        attempt: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Others could read or write the file.
    #[error("the file of users {} is open to others (mode {mode:04o}); chmod 600 makes it its owner's alone", path.display())]
    Open {
        /// The path of the file.
        path: PathBuf,
        /// The mode of the file.
        mode: u32,
    },
    /// The secret beside the file cannot be used.
    #[error("cannot use {}, the secret of the file of users: {why}; without it, the next start makes another", path.display())]
    Secret {
        /// The path of the secret.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A line of the file is malformed.
    #[error("line {line} of the file of users {} makes no sense", path.display())]
    Line {
        /// The path of the file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
    },
    /// The name is invalid.
    #[error("'{0}' cannot be the name of a user: it has to be 1 to 63 bytes without blanks")]
    Name(String),
    /// The password is invalid.
    #[error("a password has 1 to {MOST_PASSWORD_BYTES} bytes, none of them zero")]
    Password,
    /// There is no user of that name.
    #[error("there is no user '{0}'")]
    Unknown(String),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

/// A user.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// The rights of the user.
    pub rights: Rights,
    verifier: Verifier,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("rights", &self.rights).finish_non_exhaustive()
    }
}

/// A password's hash, which a log-in is checked against.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Verifier {
    salt: Vec<u8>,
    iterations: usize,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl Verifier {
    fn of(password: &str) -> Result<Self, UsersError> {
        let mut salt = vec![0; SALT_BYTES];
        SystemRandom::new().fill(&mut salt).map_err(|_| UsersError::Random)?;
        let salted = gen_salted_password(password, &salt, ITERATIONS);
        match ScramSecret::verifier_from_salted_password(salt, salted, ITERATIONS) {
            ScramSecret::Verifier { salt, iterations, stored_key, server_key } => {
                Ok(Self { salt, iterations, stored_key, server_key })
            }
            ScramSecret::SaltedPassword { .. } => Err(UsersError::Password),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (iterations, rest) = text.strip_prefix(SCHEME)?.strip_prefix('$')?.split_once(':')?;
        let (salt, keys) = rest.split_once('$')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let bytes = |text: &str| STANDARD.decode(text).ok();
        let iterations = iterations.parse().ok().filter(|n| (1..=MOST_ITERATIONS).contains(n))?;
        let verifier =
            Self { salt: bytes(salt)?, iterations, stored_key: bytes(stored_key)?, server_key: bytes(server_key)? };
        (verifier.stored_key.len() == 32 && verifier.server_key.len() == 32 && !verifier.salt.is_empty())
            .then_some(verifier)
    }

    /// Returns true if the verifier is of this password. Hashes the password.
    pub(crate) fn is_of(&self, password: &str) -> bool {
        let salted = gen_salted_password(password, &self.salt, self.iterations);
        match ScramSecret::verifier_from_salted_password(self.salt.clone(), salted, self.iterations) {
            ScramSecret::Verifier { stored_key, .. } => {
                // Both are of SHA-256. The comparison takes constant time.
                let differ = stored_key.iter().zip(&self.stored_key).fold(0, |all, (a, b)| all | (a ^ b));
                stored_key.len() == self.stored_key.len() && differ == 0
            }
            ScramSecret::SaltedPassword { .. } => false,
        }
    }

    /// Returns the verifier as SCRAM takes it.
    pub(crate) fn secret(&self) -> ScramSecret {
        let Self { salt, iterations, stored_key, server_key } = self.clone();
        ScramSecret::Verifier { salt, iterations, stored_key, server_key }
    }

    /// Returns the verifier as the file has it.
    pub(crate) fn text(&self) -> String {
        let text = |bytes: &[u8]| STANDARD.encode(bytes);
        let (salt, stored, server) = (text(&self.salt), text(&self.stored_key), text(&self.server_key));
        format!("{SCHEME}${}:{salt}${stored}:{server}", self.iterations)
    }
}

impl User {
    /// Returns the hash of the password.
    pub(crate) fn verifier(&self) -> &Verifier {
        &self.verifier
    }
}

/// A file of users.
#[derive(Clone, Debug)]
pub struct Users {
    path: PathBuf,
}

impl Users {
    /// Returns the file of users at a path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn failed(&self, attempt: &'static str, source: io::Error) -> UsersError {
        UsersError::Io { attempt, path: self.path.clone(), source }
    }

    /// Reads all users.
    ///
    /// # Errors
    /// Fails if the file is missing, open to others, or malformed.
    pub fn read(&self) -> Result<BTreeMap<String, User>, UsersError> {
        let file = private::open(&self.path, Readers::Owner).map_err(|unfit| match unfit {
            Unfit::Io(attempt, e) => self.failed(attempt, e),
            Unfit::Open(mode) => UsersError::Open { path: self.path.clone(), mode },
        })?;
        let text = io::read_to_string(file).map_err(|e| self.failed("read", e))?;
        let mut users = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || UsersError::Line { path: self.path.clone(), line: at + 1 };
            let (name, user) = parse_line(line).ok_or_else(wrong)?;
            users.insert(name.to_string(), user);
        }
        Ok(users)
    }

    /// Adds a user, or changes the password and, if given, the rights of one. A new user without
    /// given rights has [`Rights::Write`]. Creates the file if it is missing.
    ///
    /// # Errors
    /// Fails if the name or the password is invalid, or if the file cannot be used.
    pub fn add(&self, name: &str, password: &str, rights: impl Into<Option<Rights>>) -> Result<(), UsersError> {
        if name.is_empty()
            || name.len() > 63
            || name.starts_with('#')
            || name.chars().any(|c| c.is_whitespace() || c.is_control())
        {
            return Err(UsersError::Name(name.into()));
        }
        if password.is_empty() || password.len() > MOST_PASSWORD_BYTES || password.contains('\0') {
            return Err(UsersError::Password);
        }
        let mut users = if self.path.exists() { self.read()? } else { BTreeMap::new() };
        let rights = rights.into().or_else(|| users.get(name).map(|user| user.rights)).unwrap_or(Rights::Write);
        users.insert(name.into(), User { rights, verifier: Verifier::of(password)? });
        secret::of(&self.path, &users)?;
        self.write(&users)
    }

    /// Returns the source of verifiers for names that are not in the file.
    pub(crate) fn pretended(&self) -> Result<Pretended, UsersError> {
        Ok(Pretended::new(&secret::of(&self.path, &self.read()?)?))
    }

    /// Removes a user.
    ///
    /// # Errors
    /// Fails if there is no user of that name, or if the file cannot be used.
    pub fn remove(&self, name: &str) -> Result<(), UsersError> {
        let mut users = self.read()?;
        match users.remove(name) {
            Some(_) => self.write(&users),
            None => Err(UsersError::Unknown(name.into())),
        }
    }

    fn write(&self, users: &BTreeMap<String, User>) -> Result<(), UsersError> {
        let mut text = String::from("# Users of onehop: name, role, SCRAM verifier. Written by `onehop user`.\n");
        for (name, user) in users {
            let _ = writeln!(text, "{name} {} {}", user.rights.name(), user.verifier.text());
        }
        let next = self.path.with_extension("new");
        let written = write_private(&next, text.as_bytes()).and_then(|()| fs::rename(&next, &self.path));
        let written = written.and_then(|()| sync_folder(&self.path));
        written.map_err(|e| {
            let _ = fs::remove_file(&next);
            self.failed("write", e)
        })
    }
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // An existing file may have another mode.
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    fs::File::open(folder)?.sync_all()
}

fn parse_line(line: &str) -> Option<(&str, User)> {
    let mut words = line.split_ascii_whitespace();
    let (name, role, verifier) = (words.next()?, words.next()?, words.next()?);
    let user = User { rights: Rights::parse(role)?, verifier: Verifier::parse(verifier)? };
    words.next().is_none().then_some((name, user))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn users_come_and_go_and_no_password_is_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let users = Users::at(folder.path().join("users"));
        users.add("ada", "secret of ada", Rights::Admin).unwrap();
        users.add("bob", "secret of bob", Rights::Read).unwrap();
        users.add("bob", "another secret", Rights::Write).unwrap();
        // A password without rights leaves the rights as they are.
        users.add("ada", "another one", None).unwrap();
        assert_eq!(users.read().unwrap()["ada"].rights, Rights::Admin);
        let all = users.read().unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["ada", "bob"]);
        assert_eq!(all["bob"].rights, Rights::Write);
        let bob = all["bob"].verifier();
        assert!(bob.is_of("another secret") && !bob.is_of("secret of bob"));
        let text = fs::read_to_string(folder.path().join("users")).unwrap();
        assert!(!text.contains("secret") && text.contains("ada admin SCRAM-SHA-256$10000:"), "{text}");
        users.remove("ada").unwrap();
        assert!(matches!(users.remove("ada"), Err(UsersError::Unknown(_))));
        for name in ["", "a b", "#a", "a\nb"] {
            assert!(matches!(users.add(name, "x", Rights::Read), Err(UsersError::Name(_))), "{name:?}");
        }
        for password in ["", "a\0b", &"x".repeat(MOST_PASSWORD_BYTES + 1)] {
            assert!(matches!(users.add("a", password, Rights::Read), Err(UsersError::Password)));
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let users = Users::at(&path);
        users.add("ada", "x", Rights::Admin).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(users.read(), Err(UsersError::Open { mode: 0o640, .. })));
    }

    #[test]
    fn lines_that_make_no_sense_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        for line in
            ["ada", "ada king x", "ada admin SCRAM-SHA-256$0:AA==$AA==:AA==", "ada admin md5abc", "ada admin x y"]
        {
            write_private(&path, format!("# users\n{line}\n").as_bytes()).unwrap();
            assert!(matches!(Users::at(&path).read(), Err(UsersError::Line { line: 2, .. })), "{line}");
        }
    }
}
