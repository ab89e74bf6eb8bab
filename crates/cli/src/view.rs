//! How results are shown: what flags chose, and what dot-commands change later.

use crate::args::SqlArgs;
use crate::format::Format;
use crate::terminal::Terminal;

/// The look of results and of what is said about them.
#[derive(Clone, Debug)]
pub struct View {
    /// The streams.
    pub terminal: Terminal,
    /// The format asked for.
    pub format: Format,
    /// Rows of a long result that a terminal shows; 0 for all.
    pub max_rows: usize,
    /// Say rows, time and bytes after each statement.
    pub footer: bool,
    /// Show the plan of each query before its rows.
    pub explain: bool,
    /// Show a bar for statements that take long.
    pub progress: bool,
    /// Say nothing but results and errors.
    pub quiet: bool,
}

impl View {
    /// What the flags ask for on these streams.
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
