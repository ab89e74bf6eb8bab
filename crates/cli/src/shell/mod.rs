//! The interactive shell: reads, runs, reports and repeats. Errors and Ctrl-C end a statement,
//! never the shell.

mod completion;
pub mod dot;
mod helper;
mod highlight;
mod history;
mod lex;
mod words;

use onehop_engine::{Script, is_complete};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Behavior, CompletionType, Config, Editor};

use self::dot::Flow;
use self::helper::ShellHelper;
use crate::client::Client;
use crate::exit::{Failure, Stop};
use crate::message;
use crate::terminal::note;
use crate::version;

type LineEditor = Editor<ShellHelper, FileHistory>;

const PROMPT: &str = "onehop> ";

/// Words that leave the shell or print help without a dot or a semicolon, for users who do not know
/// its commands.
const FAREWELLS: [&str; 3] = ["exit", "quit", "\\q"];
const CALLS_FOR_HELP: [&str; 2] = ["help", "\\?"];

/// Runs the shell until Ctrl-D or `.quit`.
pub fn run(client: &mut Client) -> Result<(), Failure> {
    if !client.view.quiet {
        note(greeting(client));
    }
    client.outlive_interrupts();
    let mut editor = editor(client)?;
    let history = history::open(&mut editor);
    loop {
        let names = client.wait(client.session().names());
        if let Some(helper) = editor.helper_mut() {
            helper.names = names;
        }
        match editor.readline(PROMPT) {
            Ok(text) => {
                history::remember(&mut editor, &text, history.as_deref());
                if take(client, text.trim())? == Flow::Quit {
                    return Ok(());
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Io(e)) => return Err(terminal_failed(e).into()),
            Err(e) => return Err(terminal_failed(std::io::Error::other(e)).into()),
        }
    }
}

fn terminal_failed(e: std::io::Error) -> Stop {
    Stop::System("cannot read from the terminal".into(), e)
}

fn editor(client: &Client) -> Result<LineEditor, Stop> {
    let terminal = &client.view.terminal;
    // Prompts are not results: if standard output is redirected, they go to the terminal itself.
    let behavior = if terminal.stdout { Behavior::Stdio } else { Behavior::PreferTerm };
    let config = Config::builder()
        .max_history_size(history::ENTRIES)
        .and_then(|config| config.history_ignore_dups(true))
        .map_err(|e| terminal_failed(std::io::Error::other(e)))?
        .history_ignore_space(true)
        .completion_type(CompletionType::List)
        .behavior(behavior)
        .build();
    let mut editor = Editor::with_config(config).map_err(|e| terminal_failed(std::io::Error::other(e)))?;
    editor.set_helper(Some(ShellHelper::new(terminal.stderr_color())));
    Ok(editor)
}

/// Executes a line and reports its errors. A returned error ends the shell, because its output has
/// no reader.
fn take(client: &mut Client, text: &str) -> Result<Flow, Stop> {
    match do_text(client, text) {
        Ok(flow) => Ok(flow),
        Err(Failure { stop: Stop::PipeClosed, .. }) => Err(Stop::PipeClosed),
        Err(failure) => {
            message::report(&failure, &client.view.terminal);
            Ok(Flow::Continue)
        }
    }
}

fn do_text(client: &mut Client, text: &str) -> Result<Flow, Failure> {
    if is_word(text, &FAREWELLS) {
        return Ok(Flow::Quit);
    }
    if is_word(text, &CALLS_FOR_HELP) {
        return dot::run(client, ".help");
    }
    if text.starts_with('.') {
        return dot::run(client, text);
    }
    for statement in Script::new(text) {
        client.run(statement)?;
    }
    Ok(Flow::Continue)
}

fn is_word(text: &str, words: &[&str]) -> bool {
    let text = text.trim().trim_end_matches(';').trim_end();
    words.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Returns true if Enter runs the text, and false if it begins another line.
fn is_whole(text: &str) -> bool {
    text.trim_start().starts_with('.')
        || is_word(text, &FAREWELLS)
        || is_word(text, &CALLS_FOR_HELP)
        || is_complete(text)
}

fn greeting(client: &Client) -> String {
    let place = client.path().map_or("in-memory".into(), |path| path.display().to_string());
    let threads = threads(client);
    let threads = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
    format!("onehop {} · {place} · CPU, {threads} · .help for help", version::NUMBER)
}

fn threads(client: &Client) -> usize {
    let setting = client.session().settings().into_iter().find(|setting| setting.name == "threads");
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    setting.and_then(|setting| setting.value.parse().ok()).unwrap_or_else(cores)
}

#[cfg(test)]
mod tests {
    use super::is_whole;

    #[test]
    fn enter_runs_what_is_whole() {
        for text in ["select 1;", ".tables", "  .mode csv", "exit", "QUIT;", "help", "", "-- note", "\\q"] {
            assert!(is_whole(text), "{text:?}");
        }
        for text in ["select 1", "select 'a;", "exit now", "select 1; select 2"] {
            assert!(!is_whole(text), "{text:?}");
        }
    }
}
