//! Dot-commands: the commands of the shell itself, interactive and in scripts. One table drives
//! help, completion and execution.

use std::path::Path;

use onehop_engine::SettingSource;

use crate::client::{self, Client};
use crate::exit::{Failure, Stop};
use crate::format::Format;
use crate::run::run_file;
use crate::settings;
use crate::terminal::note;

/// The maximum nesting depth of scripts, which ends recursive ones.
const MAX_DEPTH: usize = 16;

/// The control flow after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue.
    Continue,
    /// Leave the shell.
    Quit,
}

/// The operand of a command, for completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// No operand, or one that cannot be completed.
    None,
    /// `on` or `off`.
    Switch,
    /// A format.
    Format,
    /// A table.
    Table,
    /// A file or directory.
    Path,
}

/// A dot-command.
pub struct Command {
    /// The name, with the dot.
    pub name: &'static str,
    /// The operand, as help shows it.
    pub usage: &'static str,
    /// The operand, for completion.
    pub operand: Operand,
    help: &'static str,
    run: fn(&mut Client, &str) -> Result<Flow, Failure>,
}

/// All commands, in the order of help.
pub const COMMANDS: [Command; 11] = [
    Command { name: ".help", usage: "", operand: Operand::None, help: "this list", run: help },
    Command { name: ".tables", usage: "", operand: Operand::None, help: "names of tables and views", run: tables },
    Command {
        name: ".schema",
        usage: "[TABLE]",
        operand: Operand::Table,
        help: "the statements that make tables and views",
        run: schema,
    },
    Command { name: ".mode", usage: "[FORMAT]", operand: Operand::Format, help: "how results are printed", run: mode },
    Command {
        name: ".maxrows",
        usage: "[N]",
        operand: Operand::None,
        help: "rows shown of a long result; 0: all",
        run: max_rows,
    },
    Command {
        name: ".timer",
        usage: "[on|off]",
        operand: Operand::Switch,
        help: "rows, time and bytes after each statement",
        run: timer,
    },
    Command {
        name: ".explain",
        usage: "[on|off]",
        operand: Operand::Switch,
        help: "plans before results; alone: the last statement's plan",
        run: explain,
    },
    Command {
        name: ".settings",
        usage: "",
        operand: Operand::None,
        help: "settings, their values and where they come from",
        run: show_settings,
    },
    Command { name: ".read", usage: "FILE", operand: Operand::Path, help: "run a script", run: read },
    Command {
        name: ".open",
        usage: "[PATH]",
        operand: Operand::Path,
        help: "go over to another database; alone: one in memory",
        run: open,
    },
    Command {
        name: ".quit",
        usage: "",
        operand: Operand::None,
        help: "leave (also Ctrl-D)",
        run: |_, _| Ok(Flow::Quit),
    },
];

/// Runs a dot-command.
pub fn run(client: &mut Client, text: &str) -> Result<Flow, Failure> {
    let text = text.trim().trim_end_matches(';').trim_end();
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    match find(name) {
        Ok(command) => (command.run)(client, unquoted(rest.trim())),
        Err(message) => Err(Stop::Usage(message).into()),
    }
}

/// Finds a command by its name, or by a unique prefix.
fn find(name: &str) -> Result<&'static Command, String> {
    let wanted = if name == ".exit" { ".quit" } else { name };
    if let Some(command) = COMMANDS.iter().find(|command| command.name == wanted) {
        return Ok(command);
    }
    let begun: Vec<&Command> = COMMANDS.iter().filter(|c| name.len() > 1 && c.name.starts_with(name)).collect();
    match begun.as_slice() {
        [only] => Ok(only),
        [] => match COMMANDS.iter().min_by_key(|c| strsim::damerau_levenshtein(name, c.name)) {
            Some(near) if strsim::damerau_levenshtein(name, near.name) <= 2 => {
                Err(format!("there is no command {name}; did you mean {}?", near.name))
            }
            _ => Err(format!("there is no command {name}; .help lists them")),
        },
        several => {
            let names: Vec<&str> = several.iter().map(|c| c.name).collect();
            Err(format!("{name} could be {}", names.join(" or ")))
        }
    }
}

fn unquoted(text: &str) -> &str {
    let inner = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('\'').or_else(|| inner('"')).unwrap_or(text)
}

fn help(_client: &mut Client, _rest: &str) -> Result<Flow, Failure> {
    let mut text = String::from("SQL ends with a semicolon and may span lines. Ctrl-C cancels; Tab completes.\n");
    for command in &COMMANDS {
        text += &format!("  {:<20} {}\n", format!("{} {}", command.name, command.usage).trim_end(), command.help);
    }
    text += "Files are tables: SELECT * FROM 'trips.parquet';";
    say(&text)
}

/// Prints an answer. The answer to a dot-command is a result, and goes to standard output.
fn say(text: &str) -> Result<Flow, Failure> {
    use std::io::Write;
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(Flow::Continue)
}

fn tables(client: &mut Client, _rest: &str) -> Result<Flow, Failure> {
    let names = client.wait(client.session().names());
    if names.tables.is_empty() {
        note("no tables yet");
        return Ok(Flow::Continue);
    }
    say(&names.tables.join("\n"))
}

fn schema(client: &mut Client, rest: &str) -> Result<Flow, Failure> {
    let mut definitions = client.session().definitions();
    if !rest.is_empty() {
        // As in SQL, a name is lowercase unless an exact match exists.
        let exact = definitions.iter().any(|definition| definition.name == rest);
        let name = if exact { rest.to_string() } else { rest.to_lowercase() };
        definitions.retain(|definition| definition.name == name);
        // Files and system tables have columns, but no definition.
        if definitions.is_empty() {
            client.print(&format!("DESCRIBE {}", quoted(rest)))?;
            return Ok(Flow::Continue);
        }
    }
    if definitions.is_empty() {
        note("no tables yet");
        return Ok(Flow::Continue);
    }
    let statements: Vec<String> = definitions.iter().map(|definition| format!("{};", definition.sql)).collect();
    say(&statements.join("\n"))
}

/// Quotes a name if SQL requires it.
pub fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if starts_well && name.chars().all(is_plain) {
        return name.to_string();
    }
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn mode(client: &mut Client, rest: &str) -> Result<Flow, Failure> {
    if rest.is_empty() {
        return say(&client.view.format.name());
    }
    match clap::ValueEnum::from_str(rest, true) {
        Ok(format) => client.view.format = format,
        Err(_) => {
            let names = Format::names().join(", ");
            return Err(Stop::Usage(format!("there is no format {rest}; formats: {names}")).into());
        }
    }
    Ok(Flow::Continue)
}

fn max_rows(client: &mut Client, rest: &str) -> Result<Flow, Failure> {
    if rest.is_empty() {
        return say(&client.view.max_rows.to_string());
    }
    let wrong = |_| Stop::Usage(format!(".maxrows takes a number (0 shows all rows), not {rest}"));
    client.view.max_rows = rest.parse().map_err(wrong)?;
    Ok(Flow::Continue)
}

fn timer(client: &mut Client, rest: &str) -> Result<Flow, Failure> {
    switch(".timer", rest, &mut client.view.footer)
}

fn explain(client: &mut Client, rest: &str) -> Result<Flow, Failure> {
    if !rest.is_empty() {
        return switch(".explain", rest, &mut client.view.explain);
    }
    match &client.last {
        Some(last) => {
            client.print(&format!("EXPLAIN {last}"))?;
        }
        None => note("no statement has run yet"),
    }
    Ok(Flow::Continue)
}

fn switch(name: &str, rest: &str, value: &mut bool) -> Result<Flow, Failure> {
    match rest {
        "" => return say(if *value { "on" } else { "off" }),
        "on" => *value = true,
        "off" => *value = false,
        other => return Err(Stop::Usage(format!("{name} takes on or off, not {other}")).into()),
    }
    Ok(Flow::Continue)
}

fn show_settings(client: &mut Client, _rest: &str) -> Result<Flow, Failure> {
    let mut text = String::new();
    for setting in client.session().settings() {
        let source = match setting.source {
            SettingSource::Default => "built in".to_string(),
            SettingSource::Env => settings::variable(setting.name),
            SettingSource::Flag => "command line".to_string(),
            SettingSource::Session => "SET".to_string(),
        };
        let (name, value, default) = (setting.name, setting.value, setting.default);
        text += &format!("{name:<24} {value:<16} from: {source}; default: {default}\n    {}\n", setting.description);
    }
    say(text.trim_end())
}

fn read(client: &mut Client, rest: &str) -> Result<Flow, Failure> {
    if rest.is_empty() {
        return Err(Stop::Usage(".read takes the name of a script".into()).into());
    }
    if client.depth >= MAX_DEPTH {
        return Err(Stop::Usage(format!("{rest}: scripts read scripts more than {MAX_DEPTH} deep")).into());
    }
    client.depth += 1;
    let ended = run_file(client, Path::new(rest));
    client.depth -= 1;
    ended
}

fn open(client: &mut Client, rest: &str) -> Result<Flow, Failure> {
    let path = client::directory((!rest.is_empty()).then(|| Path::new(rest)));
    let canonical = |path: &Path| path.canonicalize().ok();
    if let (Some(new), Some(old)) = (path, client.path())
        && canonical(new).is_some_and(|new| Some(new) == canonical(old))
    {
        note(format!("{rest} is open already"));
        return Ok(Flow::Continue);
    }
    client.reopen(path)?;
    Ok(Flow::Continue)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str) -> Result<&'static str, String> {
        find(name).map(|command| command.name)
    }

    #[test]
    fn commands_may_be_abbreviated_but_not_guessed() {
        assert_eq!(found(".tables"), Ok(".tables"));
        assert_eq!(found(".ta"), Ok(".tables"));
        assert_eq!(found(".q"), Ok(".quit"));
        assert_eq!(found(".exit"), Ok(".quit"));
        assert_eq!(found(".m"), Err(".m could be .mode or .maxrows".into()));
        assert_eq!(found(".shcema"), Err("there is no command .shcema; did you mean .schema?".into()));
        assert_eq!(found(".nonsense"), Err("there is no command .nonsense; .help lists them".into()));
        assert_eq!(found("."), Err("there is no command .; .help lists them".into()));
    }

    #[test]
    fn operands_may_be_quoted() {
        assert_eq!(unquoted("'my file.sql'"), "my file.sql");
        assert_eq!(unquoted("\"a\""), "a");
        assert_eq!(unquoted("plain"), "plain");
        assert_eq!(unquoted("'"), "'");
    }

    #[test]
    fn names_are_quoted_when_sql_would_not_take_them() {
        assert_eq!(quoted("lineorder"), "lineorder");
        assert_eq!(quoted("Mixed"), "\"Mixed\"");
        assert_eq!(quoted("2cool"), "\"2cool\"");
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
