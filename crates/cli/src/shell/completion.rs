//! Completions, by the text before the cursor:
//!
//! - a dot-command, at the beginning; after it, the operands of that command;
//! - a path, inside of an open string (`FROM 'da` ...);
//! - a column of `t`, after `t.`, where `t` is a table or an alias given anywhere in the statement;
//! - a table, after FROM, JOIN, INTO ...;
//! - otherwise a column (of the statement's tables, if it names some), a table, a function or a
//!   keyword.

use std::fs;

use onehop_engine::Names;

use super::dot::{COMMANDS, Operand, quoted};
use super::lex::{Kind, Token, lex};
use super::words::{KEYWORDS, is_keyword, precedes_table};
use crate::format::Format;

/// A possible completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The text in the list.
    pub shown: String,
    /// The text inserted into the line.
    pub text: String,
}

impl Candidate {
    fn plain(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { shown: text.clone(), text }
    }
}

/// Returns the offset of the word to complete, in bytes, and its possible completions.
pub fn complete(line: &str, pos: usize, names: &Names) -> (usize, Vec<Candidate>) {
    let before = &line[..pos];
    if before.trim_start().starts_with('.') {
        return complete_dot(before, names);
    }
    complete_sql(line, before, names)
}

fn complete_dot(before: &str, names: &Names) -> (usize, Vec<Candidate>) {
    let start = before.len() - before.trim_start().len();
    let Some((name, operand)) = before[start..].split_once(char::is_whitespace) else {
        let typed = &before[start..];
        let begun = COMMANDS.iter().filter(|command| command.name.starts_with(typed));
        return (start, begun.map(|command| Candidate::plain(command.name)).collect());
    };
    let operand = operand.trim_start();
    let start = before.len() - operand.len();
    let kind = COMMANDS.iter().find(|command| command.name == name).map_or(Operand::None, |command| command.operand);
    let fitting =
        |all: Vec<String>| all.into_iter().filter(|word| begins(word, operand)).map(Candidate::plain).collect();
    match kind {
        Operand::None => (start, Vec::new()),
        Operand::Switch => (start, fitting(vec!["on".into(), "off".into()])),
        Operand::Format => (start, fitting(Format::names())),
        Operand::Table => (start, tables(operand, names)),
        Operand::Path => paths(operand, start, ""),
    }
}

fn complete_sql(line: &str, before: &str, names: &Names) -> (usize, Vec<Candidate>) {
    let tokens = lex(before);
    let end = before.len();
    let (typed, earlier) = match tokens.split_last() {
        Some((last, earlier)) if last.is_open || (last.kind == Kind::Word && last.at.end == end) => {
            (Some(last), earlier)
        }
        _ => (None, tokens.as_slice()),
    };
    let start = typed.map_or(end, |token| token.at.start);
    let word = &before[start..];
    match typed.map(|token| token.kind) {
        Some(Kind::Comment) => return (end, Vec::new()),
        Some(Kind::Text) => return paths(&before[start + 1..], start + 1, "'"),
        Some(Kind::Name) => return (start, quoted_names(&word[1..], names)),
        _ => {}
    }
    let previous = earlier.last().map_or("", |token| &before[token.at.clone()]);
    if previous == "."
        && let Some(owner) = earlier.len().checked_sub(2).map(|i| &before[earlier[i].at.clone()])
    {
        return (start, columns_of(&[resolve(owner, line, names)], word, names));
    }
    if precedes_table(previous) {
        let tables = tables(word, names);
        if !tables.is_empty() {
            return (start, tables);
        }
    }
    if word.is_empty() && earlier.is_empty() {
        return (start, Vec::new());
    }
    (start, anything(word, line, names))
}

fn anything(word: &str, line: &str, names: &Names) -> Vec<Candidate> {
    let mentioned = mentioned(line, names);
    let mut all = match mentioned.is_empty() {
        true => columns(word, names.columns.iter().map(|(_, column)| column)),
        false => columns_of(&mentioned, word, names),
    };
    all.extend(tables(word, names));
    // The list of all functions and keywords would be no help.
    if !word.is_empty() {
        all.extend(keywords(word));
        let functions = names.functions.iter().filter(|name| begins(name, word));
        all.extend(functions.map(|name| Candidate { shown: format!("{name}()"), text: format!("{name}(") }));
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|candidate| seen.insert(candidate.text.clone()));
    all
}

fn begins(name: &str, word: &str) -> bool {
    name.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
}

fn keywords(word: &str) -> Vec<Candidate> {
    let is_lower = word.chars().all(|c| !c.is_ascii_uppercase());
    let cased = |keyword: &&str| if is_lower { keyword.to_lowercase() } else { keyword.to_string() };
    KEYWORDS.iter().filter(|keyword| begins(keyword, word)).map(|keyword| Candidate::plain(cased(keyword))).collect()
}

fn tables(word: &str, names: &Names) -> Vec<Candidate> {
    names.tables.iter().filter(|name| begins(name, word)).map(|name| Candidate::plain(quoted(name))).collect()
}

fn columns<'a>(word: &str, all: impl Iterator<Item = &'a String>) -> Vec<Candidate> {
    all.filter(|name| begins(name, word)).map(|name| Candidate::plain(quoted(name))).collect()
}

fn columns_of(tables: &[String], word: &str, names: &Names) -> Vec<Candidate> {
    columns(word, names.columns.iter().filter(|(table, _)| tables.contains(table)).map(|(_, column)| column))
}

fn quoted_names(word: &str, names: &Names) -> Vec<Candidate> {
    let all = names.tables.iter().chain(names.columns.iter().map(|(_, column)| column));
    all.filter(|name| begins(name, word))
        .map(|name| Candidate::plain(format!("\"{}\"", name.replace('"', "\"\""))))
        .collect()
}

/// Returns the tables that the statement names.
fn mentioned(line: &str, names: &Names) -> Vec<String> {
    let words = lex(line).into_iter().filter(|token| matches!(token.kind, Kind::Word | Kind::Name));
    words.filter_map(|token| table(&line[token.at], names)).collect()
}

fn table(word: &str, names: &Names) -> Option<String> {
    let bare = word.trim_matches('"');
    names.tables.iter().find(|name| name.eq_ignore_ascii_case(bare)).cloned()
}

/// Returns the table that `owner` refers to: itself, or the one it is an alias of (`lineorder AS
/// l`, `lineorder l`).
fn resolve(owner: &str, line: &str, names: &Names) -> String {
    if let Some(table) = table(owner, names) {
        return table;
    }
    let tokens = lex(line);
    let text = |token: &Token| &line[token.at.clone()];
    let words: Vec<&str> = tokens.iter().map(text).filter(|word| !word.eq_ignore_ascii_case("AS")).collect();
    let alias = words
        .windows(2)
        .find(|pair| pair[1].eq_ignore_ascii_case(owner) && !is_keyword(pair[1]) && table(pair[0], names).is_some());
    alias.and_then(|pair| table(pair[0], names)).unwrap_or_else(|| owner.to_string())
}

/// Returns files and directories that complete `typed`. Only its last part is replaced, because
/// long paths make unreadable lists.
fn paths(typed: &str, start: usize, close: &str) -> (usize, Vec<Candidate>) {
    let (folder, beginning) = match typed.rfind('/') {
        Some(at) => typed.split_at(at + 1),
        None => ("", typed),
    };
    let start = start + folder.len();
    if folder.contains("://") {
        return (start, Vec::new());
    }
    let Ok(entries) = fs::read_dir(if folder.is_empty() { "." } else { folder }) else { return (start, Vec::new()) };
    let mut found: Vec<Candidate> = entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path().is_dir())))
        .filter(|(name, _)| name.starts_with(beginning) && (!name.starts_with('.') || beginning.starts_with('.')))
        .map(|(name, is_folder)| {
            let end = if is_folder { "/" } else { close };
            let shown = if is_folder { format!("{name}/") } else { name.clone() };
            let name = if close == "'" { name.replace('\'', "''") } else { name };
            Candidate { shown, text: format!("{name}{end}") }
        })
        .collect();
    found.sort_by(|a, b| a.shown.cmp(&b.shown));
    (start, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let pair = |table: &str, column: &str| (table.to_string(), column.to_string());
        Names {
            tables: vec!["customer".into(), "date".into(), "Mixed".into()],
            columns: vec![
                pair("customer", "c_name"),
                pair("customer", "c_city"),
                pair("date", "d_year"),
                pair("Mixed", "c_X"),
            ],
            functions: vec!["coalesce".into(), "count".into()],
        }
    }

    /// Completes at `|`. Returns the beginning of the word, and its possible completions.
    fn at(line: &str) -> (String, Vec<String>) {
        let pos = line.find('|').unwrap_or(line.len());
        let line = line.replacen('|', "", 1);
        let (start, candidates) = complete(&line, pos, &names());
        (line[start..pos].to_string(), candidates.into_iter().map(|candidate| candidate.text).collect())
    }

    fn expect(line: &str, word: &str, candidates: &[&str]) {
        let (found_word, found) = at(line);
        assert_eq!(
            (found_word.as_str(), found.iter().map(String::as_str).collect::<Vec<_>>()),
            (word, candidates.to_vec()),
            "{line}"
        );
    }

    #[test]
    fn tables_follow_from() {
        expect("select * from cu|", "cu", &["customer"]);
        expect("select * from |", "", &["customer", "date", "\"Mixed\""]);
        expect("select * from \"Mi|", "\"Mi", &["\"Mixed\""]);
    }

    #[test]
    fn columns_are_those_of_the_named_tables() {
        expect("select c_| from customer", "c_", &["c_name", "c_city"]);
        expect("select c_|", "c_", &["c_name", "c_city", "\"c_X\""]);
        expect("select d.| from date as d", "", &["d_year"]);
        expect("select d.d_y| from customer c join date d", "d_y", &["d_year"]);
        expect("select customer.c_n|", "c_n", &["c_name"]);
    }

    #[test]
    fn keywords_keep_the_case_they_are_typed_in() {
        expect("SEL|", "SEL", &["SELECT"]);
        expect("sel|", "sel", &["select"]);
        expect("select co|", "co", &["column", "commit", "copy", "coalesce(", "count("]);
        expect("|", "", &[]);
        expect("-- sel|", "", &[]);
    }

    #[test]
    fn dot_commands_and_their_operands() {
        expect(".ti|", ".ti", &[".timer"]);
        expect(".timer |", "", &["on", "off"]);
        expect(".mode j|", "j", &["json", "jsonl"]);
        expect(".schema c|", "c", &["customer"]);
    }

    #[test]
    fn paths_complete_inside_quotes() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("trips.parquet"), "")?;
        fs::write(folder.path().join("it's.csv"), "")?;
        fs::create_dir(folder.path().join("year"))?;
        let root = folder.path().display();
        expect(&format!("select * from '{root}/tr|"), "tr", &["trips.parquet'"]);
        expect(&format!("select * from '{root}/|"), "", &["it''s.csv'", "trips.parquet'", "year/"]);
        expect(&format!(".read {root}/it|"), "it", &["it's.csv"]);
        expect("select * from 's3://bucket/|", "", &[]);
        Ok(())
    }
}
