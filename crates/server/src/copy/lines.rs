//! Parses lines into rows, from pieces of any size: PostgreSQL's text format, or CSV.
//!
//! A state machine visits each byte once. It keeps a value until its end, and a row until it is
//! complete. A malformed row is an error with its line number.

use onehop_engine::{ClientCopy, CopyFormat};

use crate::problem::{Problem, code};

/// A row's values; `None` is NULL.
pub type Row = Vec<Option<String>>;

/// The state of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Within a value.
    Plain,
    /// After a backslash.
    Escaped,
    /// After a backslash and a number of octal digits, with their value.
    Octal(u8, u16),
    /// After `\x` and a number of hexadecimal digits, with their value.
    Hex(u8, u16),
    /// Between quotes.
    Quoted,
    /// Between quotes, after an escape that is not a quote.
    QuotedEscape,
    /// After a quote within quotes: it ends them, or is the first of two.
    AfterQuote,
    /// After a carriage return.
    Return,
    /// After the end-of-data line.
    Ended,
}

/// The state machine.
#[derive(Debug)]
pub struct Lines {
    copy: ClientCopy,
    columns: usize,
    state: State,
    value: Vec<u8>,
    /// True if a part of the value was quoted or escaped, so that it is not the NULL marker.
    is_marked: bool,
    /// The raw value, to compare with the NULL marker.
    raw: Vec<u8>,
    row: Row,
    /// The number of the current line, from 1.
    line: u64,
    /// The first line of the current row.
    row_line: u64,
    skips_header: bool,
    /// The maximum size of a value, in bytes.
    most_bytes: usize,
}

impl Lines {
    /// Creates a parser of rows with `columns` columns, whose values have at most `most_bytes`
    /// bytes.
    pub fn new(copy: &ClientCopy, columns: usize, most_bytes: usize) -> Self {
        Self {
            copy: copy.clone(),
            columns,
            most_bytes,
            state: State::Plain,
            value: Vec::new(),
            is_marked: false,
            raw: Vec::new(),
            row: Vec::with_capacity(columns),
            line: 1,
            row_line: 1,
            skips_header: copy.has_header,
        }
    }

    /// Parses a piece. Passes each completed row to `take`, with its first line.
    pub fn read(
        &mut self,
        bytes: &[u8],
        take: &mut impl FnMut(Row, u64) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        for byte in bytes {
            match self.state {
                State::Ended => return Ok(()),
                State::Return => {
                    self.end_line(take)?;
                    if *byte == b'\n' {
                        continue;
                    }
                }
                _ => {}
            }
            match self.copy.format {
                CopyFormat::Csv => self.csv(*byte, take)?,
                CopyFormat::Text | CopyFormat::Binary => self.text(*byte, take)?,
            }
            if self.value.len() > self.most_bytes {
                return Err(self.wrong(format!("a value is longer than {}", super::mebibytes(self.most_bytes))));
            }
        }
        Ok(())
    }

    /// Ends the input. The last line needs no line end.
    pub fn finish(&mut self, take: &mut impl FnMut(Row, u64) -> Result<(), Problem>) -> Result<(), Problem> {
        match self.state {
            State::Quoted | State::QuotedEscape => return Err(self.wrong("unterminated CSV quoted field")),
            State::Octal(..) | State::Hex(..) => self.end_number(),
            State::Return => return self.end_line(take),
            _ => {}
        }
        if self.state == State::Ended || (self.row.is_empty() && self.raw.is_empty() && !self.is_marked) {
            return Ok(());
        }
        self.end_line(take)
    }

    fn text(&mut self, byte: u8, take: &mut impl FnMut(Row, u64) -> Result<(), Problem>) -> Result<(), Problem> {
        match self.state {
            State::Escaped => {
                self.escaped(byte);
                return Ok(());
            }
            State::Octal(count, number) if count < 3 && (b'0'..=b'7').contains(&byte) => {
                self.state = State::Octal(count + 1, number * 8 + u16::from(byte - b'0'));
                self.raw.push(byte);
                return Ok(());
            }
            State::Hex(count, number) if count < 2 && byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0) as u16;
                self.state = State::Hex(count + 1, number * 16 + digit);
                self.raw.push(byte);
                return Ok(());
            }
            State::Octal(..) | State::Hex(..) => self.end_number(),
            _ => {}
        }
        match byte {
            b'\\' => {
                self.state = State::Escaped;
                self.raw.push(byte);
                Ok(())
            }
            byte => self.plain(byte, take),
        }
    }

    fn escaped(&mut self, byte: u8) {
        self.state = State::Plain;
        let meant = match byte {
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            b'0'..=b'7' => {
                self.state = State::Octal(1, u16::from(byte - b'0'));
                return self.raw.push(byte);
            }
            b'x' => {
                self.state = State::Hex(0, 0);
                return self.raw.push(byte);
            }
            b'.' if self.row.is_empty() && self.value.is_empty() && self.raw == b"\\" => {
                self.state = State::Ended;
                return;
            }
            b'\n' => {
                self.line += 1;
                b'\n'
            }
            other => other,
        };
        self.raw.push(byte);
        self.value.push(meant);
    }

    /// Appends the byte of a numeric escape.
    fn end_number(&mut self) {
        match self.state {
            State::Octal(_, number) => self.value.push((number & 0xff) as u8),
            // Without digits it is the letter itself.
            State::Hex(0, _) => self.value.push(b'x'),
            State::Hex(_, number) => self.value.push(number as u8),
            _ => {}
        }
        self.state = State::Plain;
    }

    fn csv(&mut self, byte: u8, take: &mut impl FnMut(Row, u64) -> Result<(), Problem>) -> Result<(), Problem> {
        let ClientCopy { quote, escape, .. } = self.copy;
        match self.state {
            State::Quoted => {
                match byte {
                    byte if byte == escape && escape != quote => self.state = State::QuotedEscape,
                    byte if byte == quote => self.state = State::AfterQuote,
                    byte => {
                        self.line += u64::from(byte == b'\n');
                        self.value.push(byte);
                    }
                }
                return Ok(());
            }
            State::QuotedEscape => {
                self.state = State::Quoted;
                if byte != quote && byte != escape {
                    self.value.push(escape);
                }
                self.value.push(byte);
                return Ok(());
            }
            State::AfterQuote if byte == quote && escape == quote => {
                self.value.push(byte);
                self.state = State::Quoted;
                return Ok(());
            }
            State::AfterQuote => self.state = State::Plain,
            _ => {}
        }
        match byte {
            b'\n' if self.row.is_empty() && !self.is_marked && self.raw == b"\\." => self.state = State::Ended,
            b'\n' | b'\r' => return self.plain(byte, take),
            byte if byte == quote => {
                self.is_marked = true;
                self.state = State::Quoted;
            }
            byte => return self.plain(byte, take),
        }
        Ok(())
    }

    /// Handles a byte that means the same in both formats.
    fn plain(&mut self, byte: u8, take: &mut impl FnMut(Row, u64) -> Result<(), Problem>) -> Result<(), Problem> {
        match byte {
            b'\n' => self.end_line(take)?,
            b'\r' => self.state = State::Return,
            byte if byte == self.copy.delimiter => self.end_value()?,
            byte => {
                self.value.push(byte);
                self.raw.push(byte);
            }
        }
        Ok(())
    }

    fn end_value(&mut self) -> Result<(), Problem> {
        let is_null = !self.is_marked && self.raw == self.copy.null.as_bytes();
        self.raw.clear();
        self.is_marked = false;
        let value = std::mem::take(&mut self.value);
        let value = match is_null {
            true => None,
            false => Some(String::from_utf8(value).map_err(|_| {
                let problem = Problem::error(code::INVALID_ENCODING, "invalid byte sequence for encoding \"UTF8\"");
                problem.with_context(format!("line {}", self.line))
            })?),
        };
        if self.row.len() == self.columns && !self.skips_header {
            return Err(self.wrong("extra data after last expected column"));
        }
        self.row.push(value);
        Ok(())
    }

    fn end_line(&mut self, take: &mut impl FnMut(Row, u64) -> Result<(), Problem>) -> Result<(), Problem> {
        self.state = State::Plain;
        // An empty line is a row only for a table without columns.
        let is_empty = self.row.is_empty() && self.raw.is_empty() && !self.is_marked;
        if !(is_empty && self.columns == 0) {
            self.end_value()?;
        }
        let line = std::mem::replace(&mut self.row_line, self.line + 1);
        self.line += 1;
        let row = std::mem::replace(&mut self.row, Vec::with_capacity(self.columns));
        if std::mem::take(&mut self.skips_header) {
            return Ok(());
        }
        if row.len() < self.columns {
            self.line -= 1;
            return Err(self.wrong(format!("missing data: the line has {} of {} columns", row.len(), self.columns)));
        }
        take(row, line)
    }

    fn wrong(&self, message: impl Into<String>) -> Problem {
        Problem::error(code::BAD_COPY, message).with_context(format!("line {}", self.line))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use onehop_engine::CopyDirection;

    use super::*;

    fn copy(format: CopyFormat) -> ClientCopy {
        ClientCopy::new(CopyDirection::Out { query: String::new() }, format)
    }

    /// Returns the rows of two columns, and checks that the piece size does not matter.
    fn rows(copy: &ClientCopy, text: &[u8]) -> Result<Vec<Row>, String> {
        let read = |piece: usize| {
            let (mut lines, mut rows) = (Lines::new(copy, 2, 256 << 20), Vec::new());
            let mut take = |row, _| {
                rows.push(row);
                Ok(())
            };
            let read = text.chunks(piece).try_for_each(|piece| lines.read(piece, &mut take));
            read.and_then(|()| lines.finish(&mut take)).map(|()| rows)
        };
        let told = |problem: Problem| format!("{} ({})", problem.message, problem.context.unwrap_or_default());
        let whole = read(text.len().max(1)).map_err(told);
        for piece in 1..7 {
            assert_eq!(read(piece).map_err(told), whole, "in pieces of {piece}");
        }
        whole
    }

    fn row(a: Option<&str>, b: Option<&str>) -> Row {
        vec![a.map(String::from), b.map(String::from)]
    }

    #[test]
    fn text_is_read_as_postgresql_writes_it() {
        let text = copy(CopyFormat::Text);
        let all = b"1\t\\N\n\tx\\ty\\\\z\r\n\\101\\x42\\n\t\\\\N\n\\.\nignored";
        let expected = vec![row(Some("1"), None), row(Some(""), Some("x\ty\\z")), row(Some("AB\n"), Some("\\N"))];
        assert_eq!(rows(&text, all), Ok(expected));
        assert_eq!(rows(&text, b"a\tb"), Ok(vec![row(Some("a"), Some("b"))]));
        assert_eq!(rows(&text, b""), Ok(vec![]));
        assert_eq!(rows(&text, b"a\tb\n1\n").unwrap_err(), "missing data: the line has 1 of 2 columns (line 2)");
        assert_eq!(rows(&text, b"a\tb\tc\n").unwrap_err(), "extra data after last expected column (line 1)");
        assert!(rows(&text, b"a\t\xff\n").unwrap_err().contains("UTF8"));
    }

    #[test]
    fn csv_tells_an_empty_text_from_null() {
        let csv = copy(CopyFormat::Csv);
        let all = b"1,\n\"\",\"a,\"\"b\"\"\nc\"\r\nx\"y\"z, \n";
        let expected = vec![row(Some("1"), None), row(Some(""), Some("a,\"b\"\nc")), row(Some("xyz"), Some(" "))];
        assert_eq!(rows(&csv, all), Ok(expected));
        assert_eq!(rows(&csv, b"1,\"a").unwrap_err(), "unterminated CSV quoted field (line 1)");
        assert_eq!(rows(&csv, b"\"a\nb\",1\n2\n").unwrap_err(), "missing data: the line has 1 of 2 columns (line 3)");
        let header = ClientCopy { has_header: true, ..csv };
        assert_eq!(rows(&header, b"a,b,c\n1,2\n"), Ok(vec![row(Some("1"), Some("2"))]));
    }
}
