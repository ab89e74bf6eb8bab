//! Serialization of groups to pages of spill files. Only the process that writes a file reads it.
//!
//! ```text
//! page     header, then columns of up to a vector's worth of entries:
//!          groups      the words of the key, the rows, and the words of each function's state
//!          values      the words of the group's key, and a value from one function's set of it
//! header   magic and version, kind, entries, bytes of the columns,
//!          CRC-32C of all of that and of the columns
//! column   width, least word, and for each entry the difference to it in that width:
//!          0, 1, 2, 4 or 8 bytes
//! ```
//! All entries are words of 64 bits. Integers have their sign bit flipped, so that the least word
//! is the least integer. Wider integers take two columns.

use super::index::Words;
use super::states::{Function, State};
use crate::{Error, Result, VECTOR_ROWS};

/// `OHG` and a version. It versions the page layout, since no process reads another's files.
const MAGIC: u32 = u32::from_le_bytes(*b"OHG1");
const HEADER_BYTES: usize = 20;

/// Largest size of a page: a larger length was not written by this module.
const MOST_BYTES: u32 = 64 << 20;

/// Kind of a page's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    Groups,
    /// Values of the function with this number.
    Values(usize),
}

/// Maps an integer to a word of the same order, and back.
pub(crate) fn unsigned(value: i64) -> u64 {
    value as u64 ^ 1 << 63
}

pub(crate) fn signed(word: u64) -> i64 {
    (word ^ 1 << 63) as i64
}

/// Begins a page in an empty buffer.
pub(crate) fn begin(out: &mut Vec<u8>) {
    out.clear();
    out.resize(HEADER_BYTES, 0);
}

/// Appends a column of `n` words.
pub(crate) fn put(out: &mut Vec<u8>, n: usize, word: impl Fn(usize) -> u64) {
    let (mut least, mut most) = (u64::MAX, 0);
    for row in 0..n {
        let word = word(row);
        (least, most) = (least.min(word), most.max(word));
    }
    let width = match most.saturating_sub(least) {
        0 => 0u8,
        1..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    };
    out.push(width);
    out.extend_from_slice(&least.to_le_bytes());
    let offset = |row: usize| word(row) - least;
    match width {
        0 => {}
        1 => out.extend((0..n).map(|row| offset(row) as u8)),
        2 => (0..n).for_each(|row| out.extend_from_slice(&(offset(row) as u16).to_le_bytes())),
        4 => (0..n).for_each(|row| out.extend_from_slice(&(offset(row) as u32).to_le_bytes())),
        _ => (0..n).for_each(|row| out.extend_from_slice(&offset(row).to_le_bytes())),
    }
}

/// Completes a page of `n` entries.
pub(crate) fn end(out: &mut [u8], kind: PageKind, n: usize) {
    let kind = match kind {
        PageKind::Groups => 0,
        PageKind::Values(function) => function as u32 + 1,
    };
    let bytes = (out.len() - HEADER_BYTES) as u32;
    for (to, word) in out.chunks_exact_mut(4).zip([MAGIC, kind, n as u32, bytes]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let crc = checksum(out).to_le_bytes();
    out[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc);
}

/// Returns the checksum of the page without the checksum field.
fn checksum(page: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&page[..HEADER_BYTES - 4]), &page[HEADER_BYTES..])
}

/// Reader of one page.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    name: &'a str,
    offset: u64,
    len: usize,
}

impl<'a> Reader<'a> {
    /// Opens the page at `offset` of a file. Returns its kind and number of entries, too.
    ///
    /// # Errors
    /// [`Error::Spill`] for bytes that are no page, or differ from those written.
    pub fn open(page: &'a [u8], name: &'a str, offset: u64) -> Result<(Self, PageKind, usize)> {
        let mut reader = Self { rest: page, name, offset, len: page.len() };
        let mut header = [0; HEADER_BYTES / 4];
        for word in &mut header {
            *word = u32::from_le_bytes(reader.take()?);
        }
        let [magic, kind, n, bytes, crc] = header;
        if magic != MAGIC || bytes > MOST_BYTES || bytes as usize != reader.rest.len() || n as usize > VECTOR_ROWS {
            return Err(reader.corrupt("no page of groups"));
        }
        if crc != checksum(page) {
            return Err(reader.corrupt("a page that does not match its checksum"));
        }
        let kind = kind.checked_sub(1).map_or(PageKind::Groups, |function| PageKind::Values(function as usize));
        Ok((reader, kind, n as usize))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((taken, rest)) = self.rest.split_first_chunk() else {
            return Err(self.corrupt("a page that ends too early"));
        };
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads the next column, of `n` words.
    pub fn words(&mut self, n: usize, mut f: impl FnMut(u64)) -> Result<()> {
        let [width] = self.take()?;
        let least = u64::from_le_bytes(self.take()?);
        let bytes = n * usize::from(width);
        if !matches!(width, 0 | 1 | 2 | 4 | 8) || bytes > self.rest.len() {
            return Err(self.corrupt("a page that ends too early"));
        }
        let (values, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        let mut word = |offset: u64| f(least.wrapping_add(offset));
        match width {
            0 => (0..n).for_each(|_| word(0)),
            1 => values.iter().for_each(|value| word(u64::from(*value))),
            2 => values.as_chunks().0.iter().for_each(|value| word(u16::from_le_bytes(*value).into())),
            4 => values.as_chunks().0.iter().for_each(|value| word(u32::from_le_bytes(*value).into())),
            _ => values.as_chunks().0.iter().for_each(|value| word(u64::from_le_bytes(*value))),
        }
        Ok(())
    }

    /// Reads the next columns as the words of keys.
    pub fn keys(&mut self, n: usize, keys: &mut [Words]) -> Result<()> {
        for key in keys {
            let mut row = 0;
            self.words(n, |word| {
                key[row] = word;
                row += 1;
            })?;
        }
        Ok(())
    }

    /// Checks that no columns are left.
    pub fn finish(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.corrupt("a page with more than its columns")) }
    }

    /// Returns an error about this page.
    pub fn corrupt(&self, what: &str) -> Error {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, format!("it holds {what}"));
        let (operation, name) = (onehop_io::Operation::Read, self.name);
        Error::Spill {
            directory: directory_of(name),
            source: onehop_io::Error::at(operation, name, self.offset, self.len, source),
        }
    }
}

/// Returns the directory of a file.
pub(crate) fn directory_of(name: &str) -> String {
    name.rsplit_once('/').map_or(name, |(directory, _)| directory).to_string()
}

/// Groups read from a page: states by entry.
#[derive(Debug)]
pub(crate) struct PageGroups {
    pub rows: Vec<i64>,
    pub states: Vec<State>,
}

impl PageGroups {
    /// Replaces the contents by the next columns.
    pub fn read(&mut self, functions: &[Function], n: usize, from: &mut Reader<'_>) -> Result<()> {
        self.rows.clear();
        from.words(n, |word| self.rows.push(signed(word)))?;
        self.states.iter_mut().zip(functions).try_for_each(|(state, function)| state.read(function, n, from))
    }
}
