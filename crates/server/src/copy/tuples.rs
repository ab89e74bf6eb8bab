//! PostgreSQL's binary COPY format: parses rows from pieces of any size, and writes them.
//!
//! ```text
//! PGCOPY \n \xff \r \n \0   flags (i32)   length of an extension (i32)   extension
//! a row:   number of fields (i16)   for each: its length (i32), -1 for NULL, and its bytes
//! the end: -1 (i16)
//! ```
//! A row is parsed once it is complete. The buffered bytes are bounded, and fields are found by
//! their lengths.

use bytes::{Buf, BufMut, BytesMut};

use crate::problem::{Problem, code};

const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";
/// The half of the flags that a reader must know all of.
const CRITICAL: u32 = 0xffff_0000;

/// Writes the header.
pub fn put_head(out: &mut BytesMut) {
    out.put_slice(SIGNATURE);
    out.put_i32(0);
    out.put_i32(0);
}

/// Writes the trailer.
pub fn put_end(out: &mut BytesMut) {
    out.put_i16(-1);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Rows,
    Ended,
}

/// Parses rows.
#[derive(Debug)]
pub struct Tuples {
    columns: usize,
    state: State,
    buffer: BytesMut,
    /// The number of the current row, from 1.
    row: u64,
    /// The maximum size of a row or of the extension, in bytes.
    most_bytes: usize,
}

/// The ranges of a row's fields in the buffer; `None` is NULL.
type Fields = Vec<Option<(usize, usize)>>;

impl Tuples {
    /// Creates a parser of rows with `columns` columns and at most `most_bytes` bytes.
    pub fn new(columns: usize, most_bytes: usize) -> Self {
        Self { columns, state: State::Head, buffer: BytesMut::new(), row: 1, most_bytes }
    }

    /// Parses a piece. Passes each completed row to `take`, with its number.
    pub fn read(
        &mut self,
        bytes: &[u8],
        take: &mut impl FnMut(&[Option<&[u8]>], u64) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        self.buffer.extend_from_slice(bytes);
        loop {
            let length = match self.state {
                State::Head => match self.head()? {
                    Some(length) => length,
                    None => return Ok(()),
                },
                State::Rows => match self.fields()? {
                    Some((fields, length)) => {
                        let part = |place: Option<(usize, usize)>| place.map(|(from, to)| &self.buffer[from..to]);
                        let fields: Vec<Option<&[u8]>> = fields.into_iter().map(part).collect();
                        if self.state == State::Rows {
                            take(&fields, self.row)?;
                            self.row += 1;
                        }
                        length
                    }
                    None => return Ok(()),
                },
                State::Ended if self.buffer.is_empty() => return Ok(()),
                State::Ended => return Err(self.wrong("received copy data after EOF marker")),
            };
            self.buffer.advance(length);
        }
    }

    /// Ends the input.
    pub fn finish(&self) -> Result<(), Problem> {
        match (self.state, self.buffer.is_empty()) {
            (State::Ended, _) | (State::Rows, true) => Ok(()),
            (State::Head, _) => Err(self.wrong("COPY file signature not recognized")),
            (State::Rows, false) => Err(self.wrong("unexpected EOF in COPY data")),
        }
    }

    fn wrong(&self, message: impl Into<String>) -> Problem {
        Problem::error(code::BAD_COPY, message).with_context(format!("line {}", self.row))
    }

    /// Returns the length of the header, if it is complete.
    fn head(&mut self) -> Result<Option<usize>, Problem> {
        let there = self.buffer.len().min(SIGNATURE.len());
        if self.buffer[..there] != SIGNATURE[..there] {
            return Err(self.wrong("COPY file signature not recognized"));
        }
        let (Some(flags), Some(extension)) = (self.number(SIGNATURE.len()), self.number(SIGNATURE.len() + 4)) else {
            return Ok(None);
        };
        if flags as u32 & CRITICAL != 0 {
            return Err(self.wrong("unrecognized critical flags in COPY file header"));
        }
        let extension = usize::try_from(extension).ok().filter(|length| *length <= self.most_bytes);
        let Some(extension) = extension else { return Err(self.wrong("invalid COPY file header (wrong length)")) };
        let length = SIGNATURE.len() + 8 + extension;
        if self.buffer.len() < length {
            return Ok(None);
        }
        self.state = State::Rows;
        Ok(Some(length))
    }

    fn number(&self, at: usize) -> Option<i32> {
        Some(i32::from_be_bytes(self.buffer.get(at..at + 4)?.try_into().ok()?))
    }

    /// Returns the fields of the next row and its length, if it is complete. The trailer has no
    /// fields.
    fn fields(&mut self) -> Result<Option<(Fields, usize)>, Problem> {
        let Some(count) = self.buffer.get(..2) else { return Ok(None) };
        let count = i16::from_be_bytes([count[0], count[1]]);
        if count == -1 {
            self.state = State::Ended;
            return Ok(Some((Vec::new(), 2)));
        }
        if usize::try_from(count) != Ok(self.columns) {
            let message = format!("row field count is {count}, expected {}", self.columns);
            return Err(self.wrong(message));
        }
        let (mut fields, mut at) = (Vec::with_capacity(self.columns), 2);
        for _ in 0..self.columns {
            let Some(length) = self.number(at) else { return Ok(None) };
            at += 4;
            match usize::try_from(length) {
                Ok(length) if at + length <= self.most_bytes => {
                    fields.push(Some((at, at + length)));
                    at += length;
                }
                Ok(_) => {
                    return Err(self.wrong(format!("a row is longer than {}", super::mebibytes(self.most_bytes))));
                }
                Err(_) if length == -1 => fields.push(None),
                Err(_) => return Err(self.wrong("invalid field size")),
            }
        }
        Ok((at <= self.buffer.len()).then_some((fields, at)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    type Read = Result<Vec<Vec<Option<Vec<u8>>>>, String>;

    fn read(bytes: &[u8], piece: usize) -> Read {
        let (mut tuples, mut rows) = (Tuples::new(2, 256 << 20), Vec::new());
        let mut take = |fields: &[Option<&[u8]>], number: u64| {
            rows.push(fields.iter().map(|field| field.map(<[u8]>::to_vec)).collect::<Vec<_>>());
            assert_eq!(number, rows.len() as u64);
            Ok(())
        };
        let read = bytes.chunks(piece).try_for_each(|piece| tuples.read(piece, &mut take));
        read.and_then(|()| tuples.finish()).map(|()| rows).map_err(|problem| problem.message)
    }

    /// The output of `COPY (VALUES (1, 'a'), (NULL, '')) TO STDOUT (FORMAT binary)` of PostgreSQL
    /// 15.
    const BYTES: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\
        \0\x02\0\0\0\x04\0\0\0\x01\0\0\0\x01a\0\x02\xff\xff\xff\xff\0\0\0\0\xff\xff";

    #[test]
    fn rows_are_the_same_in_pieces_of_any_size() {
        let rows = vec![vec![Some(vec![0, 0, 0, 1]), Some(b"a".to_vec())], vec![None, Some(Vec::new())]];
        for piece in 1..=BYTES.len() {
            assert_eq!(read(BYTES, piece), Ok(rows.clone()), "{piece}");
        }
        // The trailer may be missing; a part of a row may not.
        assert_eq!(read(&BYTES[..BYTES.len() - 2], 7), Ok(rows));
        for cut in [5, 18, BYTES.len() - 3, BYTES.len() - 1] {
            assert!(read(&BYTES[..cut], 4).is_err(), "{cut}");
        }
    }

    #[test]
    fn what_is_no_such_thing_says_so() {
        let with = |at: usize, byte: u8| {
            let mut bytes = BYTES.to_vec();
            bytes[at] = byte;
            read(&bytes, 9).unwrap_err()
        };
        assert_eq!(with(0, b'Q'), "COPY file signature not recognized");
        assert_eq!(with(12, 1), "unrecognized critical flags in COPY file header");
        assert_eq!(with(15, 0xff), "invalid COPY file header (wrong length)");
        assert_eq!(with(20, 3), "row field count is 3, expected 2");
        assert_eq!(with(21, 0xff), "invalid field size");
        assert_eq!(with(21, 0x7f), "a row is longer than 256 MiB");
        let more = [BYTES, b"\0"].concat();
        assert_eq!(read(&more, 5).unwrap_err(), "received copy data after EOF marker");
    }
}
