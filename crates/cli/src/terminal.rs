//! What the three standard streams are connected to, and what may be done there.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// The streams, as found at the start.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// Standard input is a terminal: somebody types.
    pub stdin: bool,
    /// Standard output is a terminal: somebody reads results.
    pub stdout: bool,
    /// Standard error is a terminal: somebody reads notices.
    pub stderr: bool,
    color: bool,
}

/// A look, where colour is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Column names, prompts.
    Bold,
    /// What should not distract: types, NULL.
    Dim,
    /// Errors.
    Red,
    /// Warnings.
    Yellow,
    /// Good news.
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

    /// `text` in this look.
    pub fn apply(self, text: impl Display) -> String {
        format!("\x1b[{}m{text}\x1b[0m", self.code())
    }
}

impl Terminal {
    /// Looks at the streams and the environment (`NO_COLOR`, `TERM`).
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

    /// Streams that lead to files, for tests.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { stdin: false, stdout: false, stderr: false, color: false }
    }

    /// May results be coloured?
    pub fn stdout_color(&self) -> bool {
        self.stdout && self.color
    }

    /// May notices be coloured?
    pub fn stderr_color(&self) -> bool {
        self.stderr && self.color
    }

    /// Columns of the terminal that results go to; `None` if they go elsewhere.
    pub fn stdout_width(&self) -> Option<usize> {
        if !self.stdout {
            return None;
        }
        // A terminal that does not know its size (some serial lines, some IDEs) says 0.
        let columns = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_col);
        Some(if columns == 0 { 80 } else { columns.into() })
    }

    /// `text` for standard error, in that look if it may have one.
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        if self.stderr_color() { paint.apply(text) } else { text.to_string() }
    }
}

/// A line on standard error. A reader of notices who has left is no reason to stop, so failures are ignored.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
