//! The display of results: chosen by flags, and changed later by dot-commands.

use crate::args::SqlArgs;
use crate::format::Format;
use crate::terminal::Terminal;

/// The display of results and notices.
#[derive(Clone, Debug)]
pub struct View {
    /// The streams.
    pub terminal: Terminal,
    /// The requested format.
    pub format: Format,
    /// The number of rows of a long result that a terminal shows; 0 for all.
    pub max_rows: usize,
    /// True to print rows, time and bytes after each statement.
    pub footer: bool,
    /// True to show the plan of each query before its rows.
    pub explain: bool,
    /// True to show a bar for long statements.
    pub progress: bool,
    /// True to print only results and errors.
    pub quiet: bool,
}

impl View {
    /// Returns the view of the flags on these streams.
    pub fn new(args: &SqlArgs, terminal: Terminal) -> Self {
        Self {
            terminal,
            format: args.format,
            max_rows: args.max_rows,
            footer: !args.quiet && (args.timer || terminal.stderr),
            explain: false,
            progress: !args.quiet && !args.no_progress && terminal.stderr,
            quiet: args.quiet,
        }
    }
}
