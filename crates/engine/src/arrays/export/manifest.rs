//! What an export has, at the beginning of its content:
//!
//! ```text
//! MAGIC (8 bytes) | bytes of the manifest (u32) | its CRC-32C (u32) | manifest, as JSON | zeros | array 0 | ...
//! ```
//! Arrays begin on pages, and are where the manifest says. It is believed when all that it says has been looked at.

use onehop_pipeline::arrays::{Element, Shared};
use serde::{Deserialize, Serialize};

use crate::error::NEWER;
use crate::{Error, ErrorKind, Result};

const MAGIC: [u8; 8] = *b"1HOPEXP\x01";
/// Before the manifest.
const HEAD_BYTES: usize = 16;
/// More than any manifest has.
const MOST_BYTES: usize = 16 << 20;
/// Where arrays begin.
const PAGE_BYTES: u64 = 4096;
const VERSION: u32 = 1;

/// An export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub version: u32,
    pub table: String,
    pub rows: u64,
    pub secret: String,
    /// Of the exporter.
    pub process: u32,
    pub place: Place,
    pub columns: Vec<Column>,
}

/// Where its arrays are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Behind the manifest.
    Host,
    /// On a device, known by its number that no other has, in hexadecimal digits.
    Device { name: String, uuid: String },
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    /// As arrays call it.
    pub element: String,
    /// In host memory: where it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// On a device: the driver's handle, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
}

/// What a manifest said that cannot be.
fn corrupt(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the export is damaged: {why}")).with_hint("export the table again")
}

impl Column {
    /// # Errors
    /// [`ErrorKind::Corrupt`].
    pub fn element(&self) -> Result<Element> {
        Element::parse(&self.element).ok_or_else(|| corrupt(format!("there is no type \"{}\"", self.element)))
    }

    /// Bytes of so many rows.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`].
    pub fn bytes(&self, rows: u64) -> Result<u64> {
        let bytes = rows.checked_mul(self.element()?.bytes() as u64);
        bytes
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| corrupt(format!("{rows} rows are too many")))
    }

    /// Where its bytes are in a content of `all`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they are not all there.
    pub fn place(&self, rows: u64, all: u64) -> Result<(usize, usize)> {
        let bytes = self.bytes(rows)?;
        let at = self.at.ok_or_else(|| corrupt(format!("column \"{}\" is nowhere", self.name)))?;
        let is_there = at.is_multiple_of(PAGE_BYTES) && at.checked_add(bytes).is_some_and(|end| end <= all);
        match (is_there, usize::try_from(at), usize::try_from(bytes)) {
            (true, Ok(at), Ok(bytes)) => Ok((at, bytes)),
            _ => Err(corrupt(format!("column \"{}\" does not lie in it", self.name))),
        }
    }

    /// The driver's handle.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`].
    pub fn shared(&self) -> Result<Shared> {
        let text = self.shared.as_deref().unwrap_or_default();
        from_hex(text).ok_or_else(|| corrupt(format!("column \"{}\" has no handle", self.name)))
    }
}

impl Manifest {
    pub fn new(table: &str, rows: u64, secret: &str, place: Place, columns: Vec<Column>) -> Self {
        let process = std::process::id();
        Self { version: VERSION, table: table.into(), rows, secret: secret.into(), process, place, columns }
    }

    /// The beginning of the content, whole pages; arrays of so many bytes are given their places behind it.
    ///
    /// # Errors
    /// [`ErrorKind::Resources`] if it has more columns than can be told of.
    pub fn encode(&mut self, arrays: &[u64]) -> Result<Vec<u8>> {
        // Places have digits, the number of which decides where they are: twice as many as now are enough.
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

    /// Of a content's beginning.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for what is none; [`ErrorKind::TooNew`].
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

    /// More bytes than its beginning has.
    pub fn most_bytes() -> usize {
        MOST_BYTES + HEAD_BYTES
    }
}

/// Bytes as hexadecimal digits.
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
