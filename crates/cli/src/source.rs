//! Splits incoming SQL text into executable pieces: whole statements and dot-commands.
//!
//! A piece ends with the line that completes its last statement. A program that writes to our
//! standard input therefore sees each statement run once its line is written, and a dump of any
//! size needs memory for one statement. A line that begins with a dot at the start of a statement
//! is a dot-command.

use std::io::{self, BufRead};

use onehop_engine::is_complete;

/// A piece to run, and its first line, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A dot-command, without the surrounding blanks.
    Dot { line: u64, text: String },
    /// Statements.
    Sql { line: u64, text: String },
}

/// The pieces of a text.
pub struct Pieces<R> {
    reader: R,
    /// The number of lines read.
    lines: u64,
    held: String,
    held_line: u64,
    /// A dot-command that waits for the piece before it.
    next: Option<Piece>,
}

impl<R: BufRead> Pieces<R> {
    /// Creates the pieces of a reader's text.
    pub fn new(reader: R) -> Self {
        Self { reader, lines: 0, held: String::new(), held_line: 1, next: None }
    }

    /// Returns the next piece, or `None` at the end.
    pub fn read(&mut self) -> io::Result<Option<Piece>> {
        if let Some(piece) = self.next.take() {
            return Ok(Some(piece));
        }
        while let Some(line) = self.read_line()? {
            if self.held.trim().is_empty() {
                self.held.clear();
                self.held_line = self.lines;
            }
            if line.trim_start().starts_with('.') && is_complete(&self.held) {
                let dot = Piece::Dot { line: self.lines, text: line.trim().to_string() };
                return Ok(Some(match self.take_held() {
                    Some(sql) => {
                        self.next = Some(dot);
                        sql
                    }
                    None => dot,
                }));
            }
            self.held.push_str(&line);
            // Only a semicolon completes a statement, so other lines need no second check.
            if line.contains(';') && is_complete(&self.held) {
                return Ok(self.take_held());
            }
        }
        Ok(self.take_held())
    }

    fn take_held(&mut self) -> Option<Piece> {
        let text = std::mem::take(&mut self.held);
        (!text.trim().is_empty()).then_some(Piece::Sql { line: self.held_line, text })
    }

    fn read_line(&mut self) -> io::Result<Option<String>> {
        let mut bytes = Vec::new();
        if self.reader.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
        self.lines += 1;
        let line = String::from_utf8(bytes).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, format!("line {} is not UTF-8 text", self.lines))
        })?;
        // Some editors begin a file with a byte-order mark.
        Ok(Some(match line.strip_prefix('\u{feff}') {
            Some(rest) if self.lines == 1 => rest.to_string(),
            _ => line,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<Piece> {
        let mut pieces = Pieces::new(text.as_bytes());
        std::iter::from_fn(|| pieces.read().unwrap_or_else(|e| panic!("{e}"))).collect()
    }

    fn sql(line: u64, text: &str) -> Piece {
        Piece::Sql { line, text: text.into() }
    }

    fn dot(line: u64, text: &str) -> Piece {
        Piece::Dot { line, text: text.into() }
    }

    #[test]
    fn a_piece_ends_where_its_statement_does() {
        assert_eq!(pieces("select 1;\nselect\n2;"), [sql(1, "select 1;\n"), sql(2, "select\n2;")]);
        assert_eq!(pieces("select 1; select\n2"), [sql(1, "select 1; select\n2")]);
        assert_eq!(pieces("select '\n;\n';\n"), [sql(1, "select '\n;\n';\n")]);
        assert_eq!(pieces(" \n\n"), []);
    }

    #[test]
    fn dots_begin_commands_only_where_statements_begin() {
        assert_eq!(pieces(".mode csv\n\n  .tables \n"), [dot(1, ".mode csv"), dot(3, ".tables")]);
        assert_eq!(pieces("-- note\n.tables\nselect 1"), [sql(1, "-- note\n"), dot(2, ".tables"), sql(3, "select 1")]);
        assert_eq!(pieces("select 1\n.5;"), [sql(1, "select 1\n.5;")]);
        assert_eq!(pieces("select '\n.tables\n';"), [sql(1, "select '\n.tables\n';")]);
    }

    #[test]
    fn lines_are_counted_past_blanks_and_marks() {
        assert_eq!(pieces("\u{feff}\n\nselect 1;"), [sql(3, "select 1;")]);
    }

    #[test]
    fn text_of_another_encoding_is_named_by_line() {
        let error = Pieces::new(&b"select 1,\n'\xff';\n"[..]).read().map_err(|e| e.to_string());
        assert_eq!(error, Err("line 2 is not UTF-8 text".to_string()));
    }
}
