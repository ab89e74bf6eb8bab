//! The three standard streams: their destinations, and the permitted formatting.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// The streams, as detected at the start.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// True if standard input is a terminal, where a user types.
    pub stdin: bool,
    /// True if standard output is a terminal, where a user reads results.
    pub stdout: bool,
    /// True if standard error is a terminal, where a user reads notices.
    pub stderr: bool,
    color: bool,
}

/// A text style, if colours are permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Column names, prompts.
    Bold,
    /// Secondary text: types, NULL.
    Dim,
    /// Errors.
    Red,
    /// Warnings.
    Yellow,
    /// Success.
    Green,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Paint::Bold => "1",
            Paint::Dim => "2",
            Paint::Red => "1;31",
            Paint::Yellow => "33",
            Paint::Green => "32",
        }
    }

    /// Returns `text` in this style.
    pub fn apply(self, text: impl Display) -> String {
        format!("\x1b[{}m{text}\x1b[0m", self.code())
    }
}

impl Terminal {
    /// Detects the streams and the environment (`NO_COLOR`, `TERM`).
    pub fn detect() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == OsStr::new("dumb"));
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            stdin: io::stdin().is_terminal(),
            stdout: io::stdout().is_terminal(),
            stderr: io::stderr().is_terminal(),
            color: !is_dumb && !no_color,
        }
    }

    /// Returns streams that lead to files, for tests.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { stdin: false, stdout: false, stderr: false, color: false }
    }

    /// Returns true if results may be coloured.
    pub fn stdout_color(&self) -> bool {
        self.stdout && self.color
    }

    /// Returns true if notices may be coloured.
    pub fn stderr_color(&self) -> bool {
        self.stderr && self.color
    }

    /// Returns the width of the terminal that results go to, in columns, or `None` if they go
    /// elsewhere.
    pub fn stdout_width(&self) -> Option<usize> {
        if !self.stdout {
            return None;
        }
        // A terminal that does not know its size (some serial lines, some IDEs) reports 0.
        let columns = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_col);
        Some(if columns == 0 { 80 } else { columns.into() })
    }

    /// Returns `text` for standard error, styled if permitted.
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        if self.stderr_color() { paint.apply(text) } else { text.to_string() }
    }
}

/// Prints a line on standard error. Failures are ignored: the loss of notices is no reason to stop.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
