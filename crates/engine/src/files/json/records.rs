//! Division of a JSON file into chunks of whole records.
//!
//! A record is a top-level value, or an element of a top-level array. One thread divides the file
//! into [`Chunk`]s, many parse them. Every chunk knows its position in the file, and whether it
//! begins within an array.
//!
//! 1. A file whose first line holds whole values is divided at line ends ([`Cut::Lines`]). A string
//!    has no raw line end in it, so only the last line end of a buffer is searched.
//! 2. Every other file is divided by its brackets ([`Cut::Brackets`]), with strings skipped.
//!
//! Invariant: the parser detects a wrong division by lines, because the record ends early. It
//! returns the start of that record, and [`Chunks::resume`] continues from there by brackets. No
//! guess about the file's layout determines the values that are read.

use std::io::{self, Read};

use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use jiter::{Jiter, Peek};

use super::fault::{Fault, is_end};
use crate::files::{Limits, may_go_on};

/// The size of a chunk, in bytes. It is large enough to make the cost of passing chunks negligible,
/// and small enough that a short file occupies many threads.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// The number of bytes that identify the format of a file.
const MARK_BYTES: usize = 8;

/// The grammatical position at which a chunk begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Between two top-level values.
    Between,
    /// After an element of a top-level array whose elements are records.
    BehindElement,
}

/// The treatment of top-level arrays: their elements are records, or the arrays themselves are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrays {
    OfRecords,
    AreRecords,
}

/// The method that finds the ends of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Lines,
    Brackets,
}

/// A position in the file: the bytes before it, and its line and column as in an editor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub bytes: u64,
    pub line: u64,
    pub column: u64,
}

impl Position {
    const START: Self = Self { bytes: 0, line: 1, column: 1 };

    /// Returns the position after a text that begins here.
    pub fn behind(self, text: &[u8]) -> Self {
        let letters = |text: &[u8]| text.iter().filter(|byte| (**byte & 0xC0) != 0x80).count() as u64;
        let bytes = self.bytes + text.len() as u64;
        match memchr::memrchr(b'\n', text) {
            Some(last) => {
                let line = self.line + memchr::memchr_iter(b'\n', text).count() as u64;
                Self { bytes, line, column: 1 + letters(&text[last + 1..]) }
            }
            None => Self { bytes, line: self.line, column: self.column + letters(text) },
        }
    }
}

/// A sequence of whole records.
#[derive(Debug)]
pub(super) struct Chunk {
    pub bytes: Vec<u8>,
    pub position: Position,
    pub place: Place,
    pub arrays: Arrays,
    pub cut: Cut,
    pub is_last: bool,
}

/// The start of a record that a chunk contains only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resume {
    pub position: Position,
    pub place: Place,
}

/// Bytes outside strings that determine the ends of records, at depths where a record can end.
static STOPS: [bool; 256] = stops(b"\"{}[],\n");
/// The same within a record.
static DEEP_STOPS: [bool; 256] = stops(b"\"{}[]");

const fn stops(bytes: &[u8]) -> [bool; 256] {
    let (mut stops, mut at) = ([false; 256], 0);
    while at < bytes.len() {
        stops[bytes[at] as usize] = true;
        at += 1;
    }
    stops
}

/// A scanner that finds the ends of records by brackets. It keeps its position, so that bytes can
/// be appended.
#[derive(Debug)]
struct Brackets {
    arrays: Arrays,
    /// The first byte that has not been scanned.
    position: usize,
    is_in_string: bool,
    depth: usize,
    /// True if the outermost open array is one of records.
    is_in_array: bool,
    /// The end of the last whole record.
    end: usize,
    /// The grammatical position of that end.
    place: Place,
}

impl Brackets {
    fn new(arrays: Arrays, place: Place) -> Self {
        let is_in_array = place == Place::BehindElement;
        Self { arrays, position: 0, is_in_string: false, depth: usize::from(is_in_array), is_in_array, end: 0, place }
    }

    fn scan(&mut self, bytes: &[u8]) {
        while let Some(rest) = bytes.get(self.position..).filter(|rest| !rest.is_empty()) {
            match self.is_in_string {
                true => self.scan_string(rest),
                false => self.scan_structure(rest),
            }
        }
    }

    /// Scans to the end of a string, or to the end of the bytes before an incomplete escape.
    fn scan_string(&mut self, rest: &[u8]) {
        match memchr::memchr2(b'"', b'\\', rest) {
            Some(at) if rest[at] == b'"' => {
                self.is_in_string = false;
                self.position += at + 1;
            }
            // The position may exceed the end of the bytes. The next byte is then skipped.
            Some(at) => self.position += at + 2,
            None => self.position += rest.len(),
        }
    }

    /// Scans to the beginning of a string.
    fn scan_structure(&mut self, rest: &[u8]) {
        let mut at = 0;
        loop {
            let stops = if self.depth > 1 { &DEEP_STOPS } else { &STOPS };
            let Some(next) = rest[at..].iter().position(|byte| stops[usize::from(*byte)]) else { break };
            at += next;
            match rest[at] {
                b'"' => {
                    self.is_in_string = true;
                    self.position += at + 1;
                    return;
                }
                b'{' => self.depth += 1,
                b'[' => {
                    self.is_in_array |= self.depth == 0 && self.arrays == Arrays::OfRecords;
                    self.depth += 1;
                }
                b'}' | b']' => self.close(self.position + at + 1),
                b',' if self.depth == 1 && self.is_in_array => {
                    (self.end, self.place) = (self.position + at, Place::BehindElement);
                }
                b'\n' if self.depth == 0 => (self.end, self.place) = (self.position + at + 1, Place::Between),
                _ => {}
            }
            at += 1;
        }
        self.position += rest.len();
    }

    fn close(&mut self, end: usize) {
        self.depth = self.depth.saturating_sub(1);
        match self.depth {
            0 => {
                self.is_in_array = false;
                (self.end, self.place) = (end, Place::Between);
            }
            1 if self.is_in_array => (self.end, self.place) = (end, Place::BehindElement),
            _ => {}
        }
    }

    /// Removes the first `bytes` bytes.
    fn cut(&mut self, bytes: usize) {
        self.position = self.position.saturating_sub(bytes);
        self.end = 0;
    }
}

/// Reads a file chunk by chunk. Blocks.
pub(super) struct Chunks {
    reader: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    /// The number of bytes to read before the search for a record's end.
    chunk_bytes: usize,
    /// The maximum length of a record, in bytes.
    most_bytes: usize,
    position: Position,
    place: Place,
    arrays: Arrays,
    cut: Cut,
    brackets: Brackets,
    is_at_end: bool,
    is_done: bool,
}

impl Chunks {
    /// Reads from the beginning.
    pub fn of(
        file: Box<dyn Read + Send>,
        compression: FileCompressionType,
        chunk_bytes: usize,
        limits: Limits,
    ) -> Result<Self, Fault> {
        let mut chunks = Self::at(file, compression, chunk_bytes, Position::START, limits)?;
        chunks.skip_mark()?;
        chunks.arrays = arrays(&chunks.buffer);
        chunks.cut = cut(&chunks.buffer, chunks.is_at_end);
        chunks.brackets = Brackets::new(chunks.arrays, Place::Between);
        Ok(chunks)
    }

    /// Reads by brackets from the start of a record.
    pub fn resume(
        mut file: Box<dyn Read + Send>,
        compression: FileCompressionType,
        chunk_bytes: usize,
        from: Resume,
        arrays: Arrays,
        limits: Limits,
    ) -> Result<Self, Fault> {
        if !compression.is_compressed() {
            io::copy(&mut file.by_ref().take(from.position.bytes), &mut io::sink()).map_err(Fault::Io)?;
        }
        let mut chunks = Self::at(file, compression, chunk_bytes, from.position, limits)?;
        if compression.is_compressed() {
            io::copy(&mut chunks.reader.by_ref().take(from.position.bytes), &mut io::sink()).map_err(Fault::Io)?;
        }
        chunks.place = from.place;
        chunks.arrays = arrays;
        chunks.brackets = Brackets::new(arrays, from.place);
        Ok(chunks)
    }

    fn at(
        file: Box<dyn Read + Send>,
        compression: FileCompressionType,
        chunk_bytes: usize,
        position: Position,
        limits: Limits,
    ) -> Result<Self, Fault> {
        let reader = limits.decompressed(file, compression, chunk_bytes / 4).map_err(Fault::Io)?;
        Ok(Self {
            reader,
            buffer: Vec::new(),
            chunk_bytes,
            most_bytes: limits.record_bytes(),
            position,
            place: Place::Between,
            arrays: Arrays::OfRecords,
            cut: Cut::Brackets,
            brackets: Brackets::new(Arrays::OfRecords, Place::Between),
            is_at_end: false,
            is_done: false,
        })
    }

    /// Skips a byte order mark, which is not part of the first value. Fails with the actual format
    /// if the file is not UTF-8 text.
    fn skip_mark(&mut self) -> Result<(), Fault> {
        self.fill(self.chunk_bytes.max(MARK_BYTES))?;
        let not_text = |is, extension| Err(Fault::NotText { is, extension });
        match self.buffer.as_slice() {
            [0xEF, 0xBB, 0xBF, ..] => {
                self.buffer.drain(..3);
                self.position.bytes += 3;
                Ok(())
            }
            [0xFF, 0xFE, 0, 0, ..] | [0, 0, 0xFE, 0xFF, ..] | [0, 0, 0, 1..=255, ..] | [1..=255, 0, 0, 0, ..] => {
                Err(Fault::Encoding("UTF-32"))
            }
            [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] | [0, 1..=255, ..] | [1..=255, 0, ..] => Err(Fault::Encoding("UTF-16")),
            [0x1F, 0x8B, ..] => not_text("compressed by gzip", "gz"),
            [0x28, 0xB5, 0x2F, 0xFD, ..] => not_text("compressed by zstd", "zst"),
            [0xFD, b'7', b'z', b'X', b'Z', ..] => not_text("compressed by xz", "xz"),
            [b'B', b'Z', b'h', b'1'..=b'9', b'1', b'A', b'Y', ..] => not_text("compressed by bzip2", "bz2"),
            [b'P', b'A', b'R', b'1', ..] => not_text("Parquet", "parquet"),
            _ => Ok(()),
        }
    }

    /// Returns the next chunk; `None` after the last one. The last one holds the rest of the file,
    /// whatever its end is.
    pub fn next(&mut self) -> Result<Option<Chunk>, Fault> {
        let mut wanted = self.chunk_bytes;
        loop {
            self.fill(wanted)?;
            if self.is_at_end {
                let all = self.buffer.len();
                let is_first = !std::mem::replace(&mut self.is_done, true);
                return Ok((is_first && (all > 0 || self.place != Place::Between)).then(|| self.take(all, self.place)));
            }
            let (end, place) = self.end();
            if end > 0 {
                return Ok(Some(self.take(end, place)));
            }
            if self.buffer.len() >= self.most_bytes {
                return Err(Fault::LongRecord { position: self.position, limit_bytes: self.most_bytes });
            }
            wanted = (self.buffer.len() * 2).min(self.most_bytes.max(self.chunk_bytes));
        }
    }

    /// Returns the end of the last whole record in the buffer.
    fn end(&mut self) -> (usize, Place) {
        match self.cut {
            Cut::Lines => (memchr::memrchr(b'\n', &self.buffer).map_or(0, |at| at + 1), Place::Between),
            Cut::Brackets => {
                self.brackets.scan(&self.buffer);
                (self.brackets.end, self.brackets.place)
            }
        }
    }

    fn fill(&mut self, wanted: usize) -> Result<(), Fault> {
        while !self.is_at_end && self.buffer.len() < wanted {
            may_go_on().map_err(Fault::Io)?;
            let missing = (wanted - self.buffer.len()) as u64;
            self.buffer.reserve_exact(missing as usize);
            // The read stops early only at the end of the file.
            let read = self.reader.by_ref().take(missing).read_to_end(&mut self.buffer).map_err(Fault::Io)?;
            self.is_at_end = (read as u64) < missing;
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize, behind: Place) -> Chunk {
        let rest = self.buffer.split_off(bytes);
        let bytes = std::mem::replace(&mut self.buffer, rest);
        self.brackets.cut(bytes.len());
        let (position, place) = (self.position, self.place);
        (self.position, self.place) = (position.behind(&bytes), behind);
        Chunk { bytes, position, place, arrays: self.arrays, cut: self.cut, is_last: self.is_done }
    }
}

/// Returns whether the elements of arrays are records. They are if the file begins with an array,
/// unless its elements are not objects and other values follow it. In that case each array is a
/// record.
fn arrays(text: &[u8]) -> Arrays {
    let mut json = Jiter::new(text).with_allow_inf_nan();
    if json.peek() != Ok(Peek::Array) {
        return Arrays::AreRecords;
    }
    let mut elements = json.clone();
    let is_of_objects = matches!(elements.known_array(), Ok(Some(Peek::Object) | None));
    let is_followed = json.next_skip().is_ok() && json.peek().is_ok();
    if is_followed && !is_of_objects { Arrays::AreRecords } else { Arrays::OfRecords }
}

/// Returns the method that divides a file with this beginning. `is_all` is true if the text is the
/// whole file.
fn cut(text: &[u8], is_all: bool) -> Cut {
    let blank = text.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let text = &text[blank..];
    let line = match memchr::memchr(b'\n', text) {
        Some(end) => &text[..end],
        None if is_all => text,
        None => return Cut::Brackets,
    };
    let mut json = Jiter::new(line).with_allow_inf_nan();
    loop {
        let begins = json.peek();
        match begins.map(|peek| json.known_skip(peek)) {
            // Nothing follows on this line.
            Err(_) => return Cut::Lines,
            Ok(Ok(())) => {}
            Ok(Err(e)) if is_end(&e) => return Cut::Brackets,
            Ok(Err(_)) => return Cut::Lines,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn chunks(text: &[u8], chunk_bytes: usize) -> Vec<Chunk> {
        let file = Box::new(io::Cursor::new(text.to_vec()));
        let mut chunks = Chunks::of(file, FileCompressionType::UNCOMPRESSED, chunk_bytes, Limits::default()).unwrap();
        let mut all = Vec::new();
        while let Some(chunk) = chunks.next().unwrap() {
            all.push(chunk);
        }
        all
    }

    #[test]
    fn a_record_has_its_part_of_the_memory() {
        let limits = Limits { memory_bytes: 16 << 20 };
        for text in [format!("{{\"a\": \"{}", "x".repeat(3 << 20)), format!("[[{}", "1,\n".repeat(1 << 20))] {
            let file = Box::new(io::Cursor::new(text.into_bytes()));
            let mut chunks = Chunks::of(file, FileCompressionType::UNCOMPRESSED, 1 << 16, limits).unwrap();
            let fault = chunks.next().unwrap_err();
            assert!(matches!(fault, Fault::LongRecord { limit_bytes, .. } if limit_bytes == 2 << 20), "{fault:?}");
        }
    }

    #[test]
    fn every_chunk_ends_with_a_record_wherever_the_buffer_ends() {
        let text = "[{\"a\": \"]\\\\\\\"}{\"},\n {\"b\": [1, {\"c\": 2}]}, 3, \"x,\",\n[4], {}] {\"d\":\n5} \"[\"\n7\n";
        for chunk_bytes in 1..text.len() + 4 {
            let found = chunks(text.as_bytes(), chunk_bytes);
            let mut position = Position::START;
            for chunk in &found {
                assert_eq!(chunk.position, position, "{chunk_bytes}");
                position = position.behind(&chunk.bytes);
                // Within the array a chunk begins after an element.
                let is_in_array = (1..text.find("{}]").unwrap() + 3).contains(&(chunk.position.bytes as usize));
                assert_eq!(chunk.place == Place::BehindElement, is_in_array, "{chunk_bytes}: {chunk:?}");
            }
            let whole: Vec<u8> = found.iter().flat_map(|chunk| chunk.bytes.clone()).collect();
            assert_eq!(whole, text.as_bytes(), "{chunk_bytes}");
        }
    }

    #[test]
    fn the_first_line_says_how_a_file_is_cut() {
        for (text, expected) in [
            ("{\"a\":1}\n{\"a\":2}\n", Cut::Lines),
            ("\n \n{\"a\":1} {\"a\":2}\n", Cut::Lines),
            ("{\"a\":1}", Cut::Lines),
            ("1\n", Cut::Lines),
            ("{bad}\n{\"a\":2}\n", Cut::Lines),
            ("{\n\"a\":1}\n", Cut::Brackets),
            ("[\n{\"a\":1}]\n", Cut::Brackets),
            ("[{\"a\":1},\n{\"a\":1}]\n", Cut::Brackets),
            ("{\"a\":\"x\n", Cut::Brackets),
        ] {
            assert_eq!(cut(text.as_bytes(), true), expected, "{text}");
        }
        assert_eq!(cut(b"{\"a\":1} ", false), Cut::Brackets);
    }

    #[test]
    fn arrays_are_of_records_or_are_records() {
        for (text, expected) in [
            ("[{\"a\":1}]", Arrays::OfRecords),
            ("[{\"a\":1}]\n[{\"a\":2}]", Arrays::OfRecords),
            ("[1, 2]", Arrays::OfRecords),
            ("[[1], 2]\n", Arrays::OfRecords),
            ("[1]\n[2]", Arrays::AreRecords),
            ("[[1]] {}", Arrays::AreRecords),
            ("[]\n[]", Arrays::OfRecords),
            ("{\"a\":1}\n[{\"a\":1}]", Arrays::AreRecords),
        ] {
            assert_eq!(arrays(text.as_bytes()), expected, "{text}");
        }
    }
}
