//! Failures as messages: the error, its place, and a hint.

use std::fmt::Write;

use crate::exit::{Failure, Place, Stop};
use crate::terminal::{Paint, Terminal, note};
use onehop_engine::units;

/// The number of lines of a statement that are shown with its error. The place locates the rest.
const SHOWN_LINES: usize = 6;
const SHOWN_COLUMNS: usize = 160;

/// Prints a failure to standard error, unless there is nothing to report.
pub fn report(failure: &Failure, terminal: &Terminal) {
    if let Some(text) = describe(failure, terminal) {
        note(text);
    }
}

fn describe(failure: &Failure, terminal: &Terminal) -> Option<String> {
    let (message, hint) = match &failure.stop {
        Stop::PipeClosed => return None,
        Stop::Interrupted(after) => return Some(format!("cancelled after {}", units::time(*after))),
        Stop::Engine(e) | Stop::Misuse(e) => (e.message().to_string(), e.hint().map(str::to_string)),
        Stop::System(attempt, e) => (format!("{attempt}: {e}"), None),
        Stop::Usage(message) | Stop::Unmet(message) => (message.clone(), None),
    };
    let mut text = format!("{} {message}", terminal.paint(Paint::Red, "error:"));
    if let Some(place) = &failure.place {
        point_at(place, &mut text);
    }
    if let Some(hint) = hint {
        let _ = write!(text, "\n  {} {hint}", terminal.paint(Paint::Green, "hint:"));
    }
    Some(text)
}

fn point_at(place: &Place, text: &mut String) {
    let _ = write!(text, "\n  --> {}, line {}, statement {}", place.source, place.line, place.statement);
    // The text may contain a password of an ATTACH, and messages end up in many places.
    let clean = onehop_engine::without_addresses(&place.text);
    let lines: Vec<&str> = clean.lines().collect();
    let margin = (place.line + lines.len() as u64).to_string().len().max(3);
    for (number, line) in (place.line..).zip(&lines).take(SHOWN_LINES) {
        let cut: String = line.chars().take(SHOWN_COLUMNS).filter(|c| !c.is_control()).collect();
        let more = if line.chars().nth(SHOWN_COLUMNS).is_some() { " ..." } else { "" };
        let _ = write!(text, "\n  {number:>margin$} | {cut}{more}");
    }
    if lines.len() > SHOWN_LINES {
        let _ = write!(text, "\n  {:>margin$} | ...", "");
    }
}

#[cfg(test)]
mod tests {
    use onehop_engine::{Error, ErrorKind};

    use super::*;

    #[test]
    fn an_error_names_file_line_and_statement_and_says_what_to_do() {
        let error =
            Error::new(ErrorKind::NotFound, "there is no table \"ordrs\"").with_hint("did you mean \"orders\"?");
        let place = Place { source: "a.sql".into(), line: 7, statement: 3, text: "SELECT *\nFROM ordrs".into() };
        let failure = Failure { stop: error.into(), place: Some(Box::new(place)) };
        assert_eq!(
            describe(&failure, &Terminal::none()),
            Some(
                "error: there is no table \"ordrs\"\n  --> a.sql, line 7, statement 3\n    7 | SELECT *\n    8 | FROM \
                 ordrs\n  hint: did you mean \"orders\"?"
                    .to_string()
            )
        );
    }

    #[test]
    fn a_closed_pipe_is_not_worth_a_word() {
        assert_eq!(describe(&Stop::PipeClosed.into(), &Terminal::none()), None);
    }
}
