//! A text file in pieces that end where a record ends.
//!
//! A line end within quotes belongs to a value, so where records end is only known from the start of the file. The
//! [`Splitter`] finds out by looking at quotes and line ends alone, many times faster than values are parsed: one
//! thread cuts the file into [`Chunk`]s, many parse them, and every chunk knows the number of its first line.
//!
//! Invariant: the splitter and arrow's reader (`csv_core`) agree on what is within quotes. A quote opens a value only at
//! the start of a field, two quotes within are one, and whatever follows a closing quote up to the delimiter is text.

use std::io::{self, BufReader, Read};

use datafusion::datasource::file_format::file_compression_type::FileCompressionType;

use super::Dialect;
use super::fault::Fault;

/// Large enough that handing chunks around costs nothing, small enough that a short file makes work for many threads.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// One quote that is never closed makes a record of the rest of the file, which may not fit in memory.
const MAX_RECORD_BYTES: usize = 256 << 20;

const LINE_END: u8 = b'\n';

/// Whole records.
pub(super) struct Chunk {
    pub bytes: Vec<u8>,
    /// The number of its first line in the file, from 1.
    pub first_line: u64,
}

impl Chunk {
    pub fn is_first(&self) -> bool {
        self.first_line == 1
    }
}

/// Finds record ends. Keeps its place, so that bytes may be added at the end.
struct Splitter {
    dialect: Dialect,
    /// What is before it has been looked at.
    position: usize,
    /// Where the value began that the position is in, if it is quoted.
    quoted_from: Option<usize>,
    /// After the last line end that ends a record.
    end: usize,
}

impl Splitter {
    /// Looks at what was not looked at yet. `is_all`: nothing follows.
    fn scan(&mut self, bytes: &[u8], is_all: bool) {
        let Dialect { quote, escape, delimiter, .. } = self.dialect;
        while self.position < bytes.len() {
            let rest = &bytes[self.position..];
            if self.quoted_from.is_none() {
                let quote_at = memchr::memchr(quote, rest);
                let plain = &rest[..quote_at.unwrap_or(rest.len())];
                if let Some(at) = memchr::memrchr(LINE_END, plain) {
                    self.end = self.position + at + 1;
                }
                let Some(at) = quote_at.map(|at| self.position + at) else {
                    self.position = bytes.len();
                    return;
                };
                let starts_field = at == 0 || [LINE_END, b'\r', delimiter].contains(&bytes[at - 1]);
                self.quoted_from = starts_field.then_some(at);
                self.position = at + 1;
                continue;
            }
            let Some(at) = memchr::memchr2(quote, escape.unwrap_or(quote), rest) else {
                self.position = bytes.len();
                return;
            };
            let at = self.position + at;
            match bytes.get(at + 1) {
                // The next byte decides what this one is.
                None if !is_all => {
                    self.position = at;
                    return;
                }
                next if bytes[at] == quote && next != Some(&quote) => {
                    self.quoted_from = None;
                    self.position = at + 1;
                }
                _ => self.position = (at + 2).min(bytes.len()),
            }
        }
    }

    /// The first `bytes` bytes are gone.
    fn cut(&mut self, bytes: usize) {
        self.position -= bytes;
        self.quoted_from = self.quoted_from.map(|from| from - bytes);
        self.end = 0;
    }
}

/// Reads a file chunk by chunk. Blocks.
pub(super) struct Chunks {
    reader: Box<dyn Read + Send>,
    splitter: Splitter,
    buffer: Vec<u8>,
    /// How much to read before looking for a record's end.
    chunk_bytes: usize,
    next_line: u64,
    is_at_end: bool,
}

impl Chunks {
    pub fn of(
        file: Box<dyn Read + Send>,
        compression: FileCompressionType,
        dialect: Dialect,
        chunk_bytes: usize,
    ) -> Result<Self, Fault> {
        let reader: Box<dyn Read + Send> = match compression.is_compressed() {
            true => {
                let file = BufReader::with_capacity(chunk_bytes / 4, file);
                compression.convert_read(file).map_err(|e| Fault::Io(io::Error::other(e)))?
            }
            false => file,
        };
        let splitter = Splitter { dialect, position: 0, quoted_from: None, end: 0 };
        let mut chunks = Self { reader, splitter, buffer: Vec::new(), chunk_bytes, next_line: 1, is_at_end: false };
        chunks.skip_mark()?;
        Ok(chunks)
    }

    /// A byte order mark is no part of the first value.
    fn skip_mark(&mut self) -> Result<(), Fault> {
        self.fill(self.chunk_bytes)?;
        match self.buffer.as_slice() {
            [0xEF, 0xBB, 0xBF, ..] => _ = self.buffer.drain(..3),
            [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => return Err(Fault::Utf16),
            [0x1F, 0x8B, ..] => return Err(Fault::NotText { is: "compressed by gzip", extension: "gz" }),
            [0x28, 0xB5, 0x2F, 0xFD, ..] => return Err(Fault::NotText { is: "compressed by zstd", extension: "zst" }),
            [0xFD, b'7', b'z', b'X', b'Z', ..] => {
                return Err(Fault::NotText { is: "compressed by xz", extension: "xz" });
            }
            [b'B', b'Z', b'h', b'1'..=b'9', b'1', b'A', b'Y', ..] => {
                return Err(Fault::NotText { is: "compressed by bzip2", extension: "bz2" });
            }
            [b'P', b'A', b'R', b'1', ..] => return Err(Fault::NotText { is: "Parquet", extension: "parquet" }),
            _ => {}
        }
        Ok(())
    }

    /// The next chunk, until there is none.
    pub fn next(&mut self) -> Result<Option<Chunk>, Fault> {
        let mut wanted = self.chunk_bytes;
        loop {
            self.fill(wanted)?;
            self.splitter.scan(&self.buffer, self.is_at_end);
            if self.is_at_end {
                if let Some(from) = self.splitter.quoted_from {
                    return Err(Fault::OpenQuote { line: self.next_line + lines(&self.buffer[..from]) });
                }
                let all = self.buffer.len();
                return Ok((all > 0).then(|| self.take(all)));
            }
            if self.splitter.end > 0 {
                return Ok(Some(self.take(self.splitter.end)));
            }
            if self.buffer.len() >= MAX_RECORD_BYTES {
                return Err(Fault::LongRecord { line: self.next_line, limit_bytes: MAX_RECORD_BYTES });
            }
            wanted = self.buffer.len() * 2;
        }
    }

    fn fill(&mut self, wanted: usize) -> Result<(), Fault> {
        while !self.is_at_end && self.buffer.len() < wanted {
            let missing = (wanted - self.buffer.len()) as u64;
            self.buffer.reserve_exact(missing as usize);
            // Stops early only at the end of the file.
            let read = self.reader.by_ref().take(missing).read_to_end(&mut self.buffer).map_err(Fault::Io)?;
            self.is_at_end = (read as u64) < missing;
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Chunk {
        let rest = self.buffer.split_off(bytes);
        let bytes = std::mem::replace(&mut self.buffer, rest);
        self.splitter.cut(bytes.len());
        let first_line = self.next_line;
        self.next_line += lines(&bytes);
        Chunk { bytes, first_line }
    }
}

/// Line ends in some bytes.
pub(super) fn lines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(LINE_END, bytes).count() as u64
}

/// A file whose bytes are counted as they are read, through the page cache.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const DIALECT: Dialect = Dialect { delimiter: b',', quote: b'"', escape: None };

    fn chunks(text: &[u8], chunk_bytes: usize, dialect: Dialect) -> Result<Vec<(u64, String)>, Fault> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut chunks =
            Chunks::of(Box::new(file.reopen().unwrap()), FileCompressionType::UNCOMPRESSED, dialect, chunk_bytes)?;
        let mut all = Vec::new();
        while let Some(chunk) = chunks.next()? {
            all.push((chunk.first_line, String::from_utf8(chunk.bytes).unwrap()));
        }
        Ok(all)
    }

    #[test]
    fn every_chunk_ends_with_a_record_wherever_the_buffer_ends() {
        let records = ["a,b\n", "\"x\ny\",2\n", "5\" pipe,\"\"\"\n\"\n", "\"\",\"a\"\"\n\"\r\n", "last,\"\n\""];
        let text = records.concat();
        for chunk_bytes in 4..text.len() + 4 {
            let found = chunks(text.as_bytes(), chunk_bytes, DIALECT).unwrap();
            let mut line = 1;
            for (first_line, chunk) in &found {
                assert_eq!(*first_line, line, "{chunk_bytes}");
                line += lines(chunk.as_bytes());
                // A run of whole records.
                let start = records.iter().position(|record| chunk.starts_with(record)).unwrap();
                let end = (start + 1..=records.len()).find(|end| records[start..*end].concat() == *chunk);
                assert!(end.is_some(), "{chunk_bytes}: {chunk:?}");
            }
            assert_eq!(found.iter().map(|(_, chunk)| chunk.as_str()).collect::<String>(), text);
        }
    }

    #[test]
    fn escapes_and_marks() {
        let dialect = Dialect { escape: Some(b'\\'), ..DIALECT };
        let text = b"\xEF\xBB\xBF\"a\\\"\n\",1\nb,2\n";
        for chunk_bytes in 8..20 {
            let found = chunks(text, chunk_bytes, dialect).unwrap();
            let whole: String = found.iter().map(|(_, chunk)| chunk.as_str()).collect();
            assert_eq!(whole, "\"a\\\"\n\",1\nb,2\n");
            assert!(found[0].1.starts_with("\"a\\\"\n\",1\n"), "{found:?}");
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_is_found_where_it_opened() {
        for chunk_bytes in [8, 16, 1 << 20] {
            let fault = chunks(b"a,b\nc,\"d\ne\nf,g\n", chunk_bytes, DIALECT).unwrap_err();
            assert!(matches!(fault, Fault::OpenQuote { line: 2 }), "{fault:?}");
        }
    }
}
