//! The manifest at the beginning of an export's content.
//!
//! ```text
//! MAGIC (8 bytes) | manifest bytes (u32) | its CRC-32C (u32) | manifest (JSON) | 0 | array 0 | ...
//! ```
//! Arrays begin on pages, at the places that the manifest gives. An importer checks all its numbers
//! before it uses them.

use onehop_pipeline::arrays::{Element, Shared};
use serde::{Deserialize, Serialize};

use crate::error::NEWER;
use crate::{Error, ErrorKind, Result};

const MAGIC: [u8; 8] = *b"1HOPEXP\x01";
/// The number of bytes before the manifest.
const HEAD_BYTES: usize = 16;
/// The maximum size of a manifest with its head, in bytes.
const MOST_BYTES: usize = 16 << 20;
/// The alignment of arrays.
const PAGE_BYTES: u64 = 4096;
const VERSION: u32 = 1;

/// A description of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub version: u32,
    pub table: String,
    pub rows: u64,
    pub secret: String,
    /// The id of the exporting process.
    pub process: u32,
    pub place: Place,
    pub columns: Vec<Column>,
}

/// The memory of the arrays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Behind the manifest, in host memory.
    Host,
    /// On a device, which is known by its UUID in hexadecimal digits.
    Device { name: String, uuid: String },
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    /// The name of its array type.
    pub element: String,
    /// The offset of its values in the content, if it is in host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// The driver's handle in hexadecimal digits, if it is on a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
}

/// Returns an error for an invalid manifest.
fn corrupt(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the export is damaged: {why}")).with_hint("export the table again")
}

impl Column {
    /// Returns the array type.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for an unknown type.
    pub fn element(&self) -> Result<Element> {
        Element::parse(&self.element).ok_or_else(|| corrupt(format!("there is no type \"{}\"", self.element)))
    }

    /// Returns the size of `rows` rows, in bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the size is too large.
    pub fn bytes(&self, rows: u64) -> Result<u64> {
        let bytes = rows.checked_mul(self.element()?.bytes() as u64);
        bytes
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| corrupt(format!("{rows} rows are too many")))
    }

    /// Returns the offset and length of its values in a content of `all` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they are not all within the content.
    pub fn place(&self, rows: u64, all: u64) -> Result<(usize, usize)> {
        let bytes = self.bytes(rows)?;
        let at = self.at.ok_or_else(|| corrupt(format!("column \"{}\" is nowhere", self.name)))?;
        let is_there = at.is_multiple_of(PAGE_BYTES) && at.checked_add(bytes).is_some_and(|end| end <= all);
        match (is_there, usize::try_from(at), usize::try_from(bytes)) {
            (true, Ok(at), Ok(bytes)) => Ok((at, bytes)),
            _ => Err(corrupt(format!("column \"{}\" does not lie in it", self.name))),
        }
    }

    /// Returns the driver's handle.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if there is none.
    pub fn shared(&self) -> Result<Shared> {
        let text = self.shared.as_deref().unwrap_or_default();
        from_hex(text).ok_or_else(|| corrupt(format!("column \"{}\" has no handle", self.name)))
    }
}

impl Manifest {
    /// Creates a manifest for an export of this process.
    pub fn new(table: &str, rows: u64, secret: &str, place: Place, columns: Vec<Column>) -> Self {
        let process = std::process::id();
        Self { version: VERSION, table: table.into(), rows, secret: secret.into(), process, place, columns }
    }

    /// Encodes the beginning of the content, in whole pages. It also assigns the offsets of the
    /// arrays, whose sizes are given in bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Resources`] if there are too many columns.
    pub fn encode(&mut self, arrays: &[u64]) -> Result<Vec<u8>> {
        // The offsets depend on the length of the manifest, which depends on their digits. 40 bytes
        // for each array are enough.
        let length = |manifest: &Self| serde_json::to_vec(manifest).map(|json| json.len()).unwrap_or(usize::MAX);
        let room = (HEAD_BYTES + length(self).saturating_add(40 * arrays.len())).next_multiple_of(PAGE_BYTES as usize);
        if room > MOST_BYTES {
            return Err(Error::new(ErrorKind::Resources, "too many columns for one export").with_hint("name fewer"));
        }
        let mut at = room as u64;
        for (column, bytes) in self.columns.iter_mut().zip(arrays) {
            column.at = Some(at);
            at += bytes.next_multiple_of(PAGE_BYTES);
        }
        let json = serde_json::to_vec(self).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
        let mut bytes = Vec::with_capacity(room);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&json).to_le_bytes());
        bytes.extend_from_slice(&json);
        bytes.resize(room, 0);
        Ok(bytes)
    }

    /// Decodes the beginning of a content.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is not a manifest; [`ErrorKind::TooNew`] for a later version.
    pub fn decode(content: &[u8]) -> Result<Self> {
        let head = content.get(..HEAD_BYTES).filter(|head| head.starts_with(&MAGIC));
        let Some(head) = head else { return Err(corrupt("it does not begin as exports do")) };
        let number = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let (length, checksum) = (number(8) as usize, number(12));
        let json = content.get(HEAD_BYTES..HEAD_BYTES.saturating_add(length)).filter(|_| length <= MOST_BYTES);
        let Some(json) = json.filter(|json| crc32c::crc32c(json) == checksum) else {
            return Err(corrupt("its manifest does not match its checksum"));
        };
        let manifest: Self = serde_json::from_slice(json).map_err(corrupt)?;
        if manifest.version > VERSION {
            let message = format!("the export is of version {}, made by a newer onehop", manifest.version);
            return Err(Error::new(ErrorKind::TooNew, message).with_hint(NEWER));
        }
        Ok(manifest)
    }

    /// Returns an upper bound of the bytes at the beginning.
    pub fn most_bytes() -> usize {
        MOST_BYTES + HEAD_BYTES
    }
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}
