//! A handle as a string: `onehop-VERSION:ID:SECRET:CHECKSUM`, all but the version in hexadecimal
//! digits.
//!
//! The checksum distinguishes a truncated or mistyped handle from one whose export is gone. The
//! secret keeps other processes out.

use std::fmt;
use std::fs::File;
use std::io::Read;

use crate::error::NEWER;
use crate::{Error, ErrorKind, Result};

const NAME: &str = "onehop";
const VERSION: u32 = 1;
/// The number of digits of an id, and of a secret.
const DIGITS: usize = 32;

/// A handle: the id of an export, and the secret that grants access to it.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle {
    pub id: String,
    pub secret: String,
}

/// Omits the secret, which must not reach logs.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Handle {
    /// Creates a random handle that cannot be guessed.
    pub fn new() -> Result<Self> {
        let mut random = [0; DIGITS];
        let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
        read.map_err(|e| super::system("a handle needs random numbers, and /dev/urandom has none", e))?;
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let (id, secret) = random.split_at(DIGITS / 2);
        Ok(Self { id: digits(id), secret: digits(secret) })
    }

    /// Returns whether a string looks like a handle, valid or not.
    pub fn is_meant(text: &str) -> bool {
        text.strip_prefix(NAME).is_some_and(|rest| rest.starts_with('-'))
    }

    /// Parses a handle.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a string that is not a complete handle; [`ErrorKind::TooNew`] for
    /// a handle of a later version.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            let error = Error::new(ErrorKind::Invalid, format!("this is no handle of onehop_export: {why}"));
            Err(error.with_hint("a handle begins with onehop-1: and is passed on as it is, all of it"))
        };
        let text = text.trim();
        let Some((name, rest)) = text.split_once(':') else { return invalid("it has no parts") };
        let version = name.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('-'));
        match version.map(str::parse::<u32>) {
            Some(Ok(VERSION)) => {}
            Some(Ok(version)) if version > VERSION => {
                let error = Error::new(
                    ErrorKind::TooNew,
                    format!("this handle is of version {version}, made by a newer onehop"),
                );
                return Err(error.with_hint(NEWER));
            }
            _ => return invalid("it begins with something else"),
        }
        let parts: Vec<&str> = rest.split(':').collect();
        let [id, secret, checksum] = parts.as_slice() else { return invalid("parts of it are missing") };
        let is_hex = |text: &str| text.len() == DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hex(id) || !is_hex(secret) {
            return invalid("parts of it are cut short");
        }
        let handle = Self { id: (*id).into(), secret: (*secret).into() };
        match *checksum == handle.checksum() {
            true => Ok(handle),
            false => invalid("its checksum is that of another one"),
        }
    }

    fn checksum(&self) -> String {
        format!("{:08x}", crc32c::crc32c(format!("{NAME}-{VERSION}:{}:{}", self.id, self.secret).as_bytes()))
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME}-{VERSION}:{}:{}:{}", self.id, self.secret, self.checksum())
    }
}
