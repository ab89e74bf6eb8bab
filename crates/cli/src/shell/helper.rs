//! The callbacks of the line editor: completeness, completion and colours.

use std::borrow::Cow;

use onehop_engine::Names;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper, Result};

use super::{PROMPT, completion, highlight, is_whole};
use crate::terminal::Paint;

/// The implementation of the callbacks.
pub struct ShellHelper {
    /// The names in the database, as of the last statement.
    pub names: Names,
    has_color: bool,
}

impl ShellHelper {
    /// Creates a helper without names.
    pub fn new(has_color: bool) -> Self {
        Self { names: Names::default(), has_color }
    }
}

impl Helper for ShellHelper {}

impl Hinter for ShellHelper {
    type Hint = String;
}

impl Validator for ShellHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> Result<ValidationResult> {
        Ok(if is_whole(context.input()) { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Highlighter for ShellHelper {
    fn highlight<'l>(&self, line: &'l str, _pos: usize) -> Cow<'l, str> {
        if self.has_color { Cow::Owned(highlight::highlight(line)) } else { Cow::Borrowed(line) }
    }

    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _default: bool) -> Cow<'b, str> {
        if self.has_color && prompt == PROMPT { Cow::Owned(Paint::Bold.apply(prompt)) } else { Cow::Borrowed(prompt) }
    }

    fn highlight_char(&self, _line: &str, _pos: usize, kind: CmdKind) -> bool {
        self.has_color && kind != CmdKind::MoveCursor
    }
}

impl Completer for ShellHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _context: &Context<'_>) -> Result<(usize, Vec<Pair>)> {
        let (start, candidates) = completion::complete(line, pos, &self.names);
        let pair = |candidate: completion::Candidate| Pair { display: candidate.shown, replacement: candidate.text };
        Ok((start, candidates.into_iter().map(pair).collect()))
    }
}
