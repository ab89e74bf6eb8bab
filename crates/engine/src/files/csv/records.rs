//! Division of a text file into chunks of whole records.
//!
//! A line end within quotes belongs to a value, so the ends of records are known only from the
//! start of the file. The [`Splitter`] finds them by quotes and line ends alone, many times faster
//! than values are parsed. One thread divides the file into [`Chunk`]s, many parse them, and every
//! chunk knows the number of its first line.
//!
//! Invariant: the splitter and [`fields`](super::fields) agree on the text within quotes. A quote
//! opens a value only at the start of a field, optionally after blanks, and not in a comment line.
//! Two quotes within a quoted value are one.

use std::io::{self, BufReader, Read};

use datafusion::datasource::file_format::file_compression_type::FileCompressionType;

use super::Dialect;
use super::fault::Fault;
use crate::files::{Limits, may_go_on};

/// The size of a chunk, in bytes. It is large enough to make the cost of passing chunks negligible,
/// and small enough that a short file occupies many threads.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// A sequence of whole records.
pub(super) struct Chunk {
    pub bytes: Vec<u8>,
    /// The number of its first line in the file, from 1.
    pub first_line: u64,
    /// True if the table begins with it.
    pub is_first: bool,
}

/// A scanner that finds the ends of records. It keeps its position, so that bytes can be appended.
struct Splitter {
    dialect: Dialect,
    /// The end of the scanned bytes.
    position: usize,
    /// The start of the quoted value that contains the position; `None` outside quotes.
    quoted_from: Option<usize>,
    /// The offset after the last line end that ends a record.
    end: usize,
}

impl Splitter {
    /// Scans the remaining bytes. `is_all` is true if nothing follows.
    fn scan(&mut self, bytes: &[u8], is_all: bool) {
        let Dialect { escape, line_end, .. } = self.dialect;
        let Some(quote) = self.dialect.quote else {
            if let Some(at) = memchr::memrchr(line_end, &bytes[self.position..]) {
                self.end = self.position + at + 1;
            }
            self.position = bytes.len();
            return;
        };
        while self.position < bytes.len() {
            let rest = &bytes[self.position..];
            if self.quoted_from.is_none() {
                let quote_at = memchr::memchr(quote, rest);
                let plain = &rest[..quote_at.unwrap_or(rest.len())];
                if let Some(at) = memchr::memrchr(line_end, plain) {
                    self.end = self.position + at + 1;
                }
                let Some(at) = quote_at.map(|at| self.position + at) else {
                    self.position = bytes.len();
                    return;
                };
                self.quoted_from = self.opens(bytes, at).then_some(at);
                self.position = at + 1;
                continue;
            }
            let Some(at) = memchr::memchr2(quote, escape.unwrap_or(quote), rest) else {
                self.position = bytes.len();
                return;
            };
            let at = self.position + at;
            match bytes.get(at + 1) {
                // The next byte determines the meaning of this one.
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

    /// Returns whether the quote at a place opens a value.
    fn opens(&self, bytes: &[u8], at: usize) -> bool {
        let Dialect { delimiter, line_end, comment, .. } = self.dialect;
        let blanks = bytes[..at].iter().rev().take_while(|byte| **byte == b' ' && delimiter != b' ').count();
        let starts_field = match bytes[..at - blanks].last() {
            None => true,
            Some(before) => *before == line_end || *before == delimiter,
        };
        let Some(comment) = comment.filter(|_| starts_field) else { return starts_field };
        let line = memchr::memrchr(line_end, &bytes[..at]).map_or(0, |end| end + 1);
        bytes.get(line) != Some(&comment)
    }

    /// Removes the first `bytes` bytes.
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
    /// The number of bytes to read before the search for a record's end.
    chunk_bytes: usize,
    /// The maximum length of a record, in bytes.
    most_bytes: usize,
    next_line: u64,
    is_first: bool,
    is_at_end: bool,
}

/// The encoding of a file's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Encoding {
    #[default]
    Utf8,
    Latin1,
}

/// The start of the table in a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TableStart {
    /// The bytes before it, without the byte order mark.
    pub bytes: usize,
    /// The line ends before it.
    pub lines: u64,
}

/// Converts ISO 8859-1 text to UTF-8.
struct Latin1<R>(R);

impl<R: Read> Read for Latin1<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Every byte becomes at most two. A buffer of one byte has no space for that.
        let mut bytes = vec![0; buffer.len().div_ceil(2).min(CHUNK_BYTES)];
        if buffer.len() < 2 {
            return Err(io::Error::other("a buffer is too small"));
        }
        let most = (buffer.len() / 2).min(bytes.len());
        let read = self.0.read(&mut bytes[..most])?;
        let mut at = 0;
        for byte in &bytes[..read] {
            at += char::from(*byte).encode_utf8(&mut buffer[at..]).len();
        }
        Ok(at)
    }
}

/// Returns the text of a file, decompressed, as UTF-8.
pub(super) fn text(
    file: Box<dyn Read + Send>,
    compression: FileCompressionType,
    encoding: Encoding,
    limits: Limits,
) -> Result<Box<dyn Read + Send>, Fault> {
    let reader = limits.decompressed(file, compression, CHUNK_BYTES / 4).map_err(Fault::Io)?;
    Ok(match encoding {
        Encoding::Utf8 => reader,
        Encoding::Latin1 => Box::new(BufReader::with_capacity(CHUNK_BYTES, Latin1(reader))),
    })
}

/// Returns the first bytes of a text without its byte order mark, and true if they are the whole
/// text.
pub(super) fn head(reader: &mut dyn Read, bytes: usize) -> Result<(Vec<u8>, bool), Fault> {
    let mut head = Vec::new();
    reader.take(bytes as u64).read_to_end(&mut head).map_err(Fault::Io)?;
    let is_whole = head.len() < bytes;
    let mark = mark(&head)?;
    head.drain(..mark);
    Ok((head, is_whole))
}

impl Chunks {
    /// Creates a reader. `reader` is the result of [`text`].
    pub fn of(
        reader: Box<dyn Read + Send>,
        dialect: Dialect,
        start: TableStart,
        chunk_bytes: usize,
        limits: Limits,
    ) -> Result<Self, Fault> {
        let splitter = Splitter { dialect, position: 0, quoted_from: None, end: 0 };
        let (buffer, next_line) = (Vec::new(), start.lines + 1);
        let most_bytes = limits.record_bytes();
        let (is_first, is_at_end) = (true, false);
        let mut chunks = Self { reader, splitter, buffer, chunk_bytes, most_bytes, next_line, is_first, is_at_end };
        chunks.skip(start.bytes)?;
        Ok(chunks)
    }

    /// Skips the byte order mark, and `bytes` bytes.
    fn skip(&mut self, bytes: usize) -> Result<(), Fault> {
        self.fill(self.chunk_bytes.max(8))?;
        let skipped = mark(&self.buffer)? + bytes;
        self.fill(skipped)?;
        self.buffer.drain(..skipped.min(self.buffer.len()));
        Ok(())
    }
}

/// Returns the length of a byte order mark. Refuses a file that is not UTF-8 text.
fn mark(head: &[u8]) -> Result<usize, Fault> {
    match head {
        [0xEF, 0xBB, 0xBF, ..] => return Ok(3),
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
    Ok(0)
}

impl Chunks {
    /// Returns the next chunk; `None` after the last one.
    pub fn next(&mut self) -> Result<Option<Chunk>, Fault> {
        let mut wanted = self.chunk_bytes;
        loop {
            self.fill(wanted)?;
            self.splitter.scan(&self.buffer, self.is_at_end);
            if self.is_at_end {
                if let Some(from) = self.splitter.quoted_from {
                    return Err(Fault::OpenQuote {
                        line: self.next_line + lines(&self.buffer[..from], self.splitter.dialect.line_end),
                    });
                }
                let all = self.buffer.len();
                return Ok((all > 0).then(|| self.take(all)));
            }
            if self.splitter.end > 0 {
                return Ok(Some(self.take(self.splitter.end)));
            }
            if self.buffer.len() >= self.most_bytes {
                return Err(Fault::LongRecord { line: self.next_line, limit_bytes: self.most_bytes });
            }
            wanted = (self.buffer.len() * 2).min(self.most_bytes.max(self.chunk_bytes));
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

    fn take(&mut self, bytes: usize) -> Chunk {
        let rest = self.buffer.split_off(bytes);
        let bytes = std::mem::replace(&mut self.buffer, rest);
        self.splitter.cut(bytes.len());
        let first_line = self.next_line;
        self.next_line += lines(&bytes, self.splitter.dialect.line_end);
        Chunk { bytes, first_line, is_first: std::mem::replace(&mut self.is_first, false) }
    }
}

/// Returns the number of line ends.
pub(super) fn lines(bytes: &[u8], line_end: u8) -> u64 {
    memchr::memchr_iter(line_end, bytes).count() as u64
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const DIALECT: Dialect =
        Dialect { delimiter: b',', quote: Some(b'"'), escape: None, comment: None, line_end: b'\n' };

    fn chunks(text: &[u8], chunk_bytes: usize, dialect: Dialect) -> Result<Vec<(u64, String)>, Fault> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let reader = super::text(
            Box::new(file.reopen().unwrap()),
            FileCompressionType::UNCOMPRESSED,
            Encoding::Utf8,
            Limits::default(),
        )?;
        let mut chunks = Chunks::of(reader, dialect, TableStart::default(), chunk_bytes, Limits::default())?;
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
                line += lines(chunk.as_bytes(), b'\n');
                // The chunk is a sequence of whole records.
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
