//! Names that nobody else has: 128 random bits of the system's. Nothing hands them out, so nothing is asked for them.

use std::fmt;
use std::io;

/// A file's, a directory's, or a transaction's name in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u128);

impl Id {
    /// The root directory's.
    pub const ROOT: Self = Self(1);

    /// A new one.
    ///
    /// # Errors
    /// Where the system has no random numbers.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0u8; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            // SAFETY: as many bytes as the slice has.
            let n = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
            match usize::try_from(n) {
                Ok(n) => filled += n,
                Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(Self(u128::from_le_bytes(bytes)))
    }

    /// From its 32 digits.
    pub fn parse(digits: &str) -> Option<Self> {
        (digits.len() == 32).then(|| u128::from_str_radix(digits, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
