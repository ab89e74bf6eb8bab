//! SQL cursors: `DECLARE`, `FETCH`, `MOVE`, `CLOSE`. As in PostgreSQL, a cursor is a portal by its
//! name. Cursors only move forward.
//!
//! ```text
//! DECLARE name [ASENSITIVE | INSENSITIVE] [NO SCROLL] CURSOR [WITH | WITHOUT HOLD] FOR query
//! FETCH [NEXT | n | ALL | FORWARD [n | ALL]] [FROM | IN] name     and MOVE, which skips the rows
//! CLOSE name | ALL
//! ```
//! A cursor reads the rows as of its declaration, and ends with its transaction. One `WITH HOLD`
//! continues after the commit, and holds no place while nothing is fetched from it. A rollback,
//! also by `ROLLBACK TO`, ends all cursors of the transaction.

use std::str::CharIndices;
use std::sync::Arc;

use onehop_engine::{Prepared, StatementKind, TransactionState};

use crate::block::Place;
use crate::client::{Client, Outcome};
use crate::encode::Format;
use crate::extended::{Portal, Statement};
use crate::problem::{Problem, code};
use crate::run::Sent;

/// A cursor statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor {
    Declare(Declare),
    Fetch(Fetch),
    /// `None` means all cursors.
    Close(Option<String>),
}

/// `DECLARE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declare {
    pub name: String,
    pub is_held: bool,
    /// The offset of the query in the statement.
    query: usize,
}

/// `FETCH` or `MOVE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    pub name: String,
    /// The maximum number of rows; `None` means all that are left.
    most: Option<u64>,
    is_move: bool,
}

impl Cursor {
    /// Parses a cursor statement. Returns `None` if the text is another kind of statement.
    ///
    /// # Errors
    /// Fails if the text is a malformed cursor statement.
    pub fn parse(text: &str) -> Result<Option<Self>, Problem> {
        let mut words = Words::new(text);
        let first = words.next().unwrap_or_default();
        match first.to_uppercase().as_str() {
            "DECLARE" => declare(&mut words, text).map(Some),
            "FETCH" => fetch(&mut words, false).map(Some),
            "MOVE" => fetch(&mut words, true).map(Some),
            "CLOSE" => {
                let is_all = words.clone().next().is_some_and(|word| word.eq_ignore_ascii_case("ALL"));
                let name = words.name()?;
                words.end()?;
                Ok(Some(Self::Close((!is_all).then_some(name))))
            }
            _ => Ok(None),
        }
    }
}

impl Fetch {
    /// Returns true if the statement returns rows.
    pub fn has_rows(&self) -> bool {
        !self.is_move
    }
}

impl Declare {
    /// Returns the text of the query.
    pub fn query<'a>(&self, text: &'a str) -> &'a str {
        &text[self.query..]
    }
}

fn declare(words: &mut Words<'_>, text: &str) -> Result<Cursor, Problem> {
    let name = words.name()?;
    let (mut is_cursor, mut is_held) = (false, false);
    loop {
        let word = words.next().unwrap_or_default().to_uppercase();
        match word.as_str() {
            "CURSOR" => is_cursor = true,
            "ASENSITIVE" | "INSENSITIVE" | "HOLD" => {}
            "NO" if words.next().is_some_and(|word| word.eq_ignore_ascii_case("SCROLL")) => {}
            "WITH" => is_held = true,
            "WITHOUT" => is_held = false,
            "FOR" if is_cursor => break,
            "SCROLL" | "BINARY" => {
                let problem = Problem::error(code::FEATURE_NOT_SUPPORTED, format!("{word} cursors are not supported"));
                return Err(
                    problem.with_hint("cursors go forward; formats are those that the client asks for when it fetches")
                );
            }
            _ => return Err(wrong("DECLARE name CURSOR [WITH HOLD] FOR query")),
        }
    }
    let query = words.place();
    match text[query..].trim().is_empty() {
        true => Err(wrong("DECLARE name CURSOR [WITH HOLD] FOR query")),
        false => Ok(Cursor::Declare(Declare { name, is_held, query })),
    }
}

fn fetch(words: &mut Words<'_>, is_move: bool) -> Result<Cursor, Problem> {
    let mut most = Some(1);
    let mut peeked = words.clone();
    let word = peeked.next().unwrap_or_default().to_uppercase();
    // A cursor may have the name of one of these keywords. Then nothing follows it.
    if peeked.clone().next().is_some() {
        let count = |word: &str| match word {
            "ALL" => Some(None),
            digits => digits.parse().ok().map(Some),
        };
        match word.as_str() {
            "NEXT" => *words = peeked,
            "FORWARD" => {
                *words = peeked.clone();
                let word = peeked.next().unwrap_or_default().to_uppercase();
                if let (Some(count), true) = (count(&word), peeked.clone().next().is_some()) {
                    (most, *words) = (count, peeked);
                }
            }
            "PRIOR" | "FIRST" | "LAST" | "ABSOLUTE" | "RELATIVE" | "BACKWARD" => return Err(only_forward()),
            "FROM" | "IN" => {}
            word if word.starts_with('-') => return Err(only_forward()),
            word => match count(word) {
                Some(count) => (most, *words) = (count, peeked),
                None => return Err(wrong("FETCH [n | ALL] FROM name")),
            },
        }
        let mut peeked = words.clone();
        if peeked.next().is_some_and(|word| word.eq_ignore_ascii_case("FROM") || word.eq_ignore_ascii_case("IN")) {
            *words = peeked;
        }
    }
    let name = words.name()?;
    words.end()?;
    Ok(Cursor::Fetch(Fetch { name, most, is_move }))
}

fn wrong(meant: &str) -> Problem {
    Problem::error(code::SYNTAX_ERROR, "a statement about a cursor cannot be understood").with_hint(meant.to_string())
}

fn only_forward() -> Problem {
    Problem::error(code::NOT_IN_STATE, "cursor can only scan forward")
        .with_hint("declare another cursor for the same query to read its rows again")
}

fn no_cursor(name: &str) -> Problem {
    Problem::error(code::INVALID_CURSOR_NAME, format!("cursor \"{name}\" does not exist"))
}

/// The words of a statement: names, quoted or not, numbers with their sign, and anything else one
/// character at a time.
#[derive(Clone, Debug)]
struct Words<'a> {
    text: &'a str,
    chars: CharIndices<'a>,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, chars: text.char_indices() }
    }

    fn place(&self) -> usize {
        self.chars.offset()
    }

    /// Returns the next name, in the form in which names are compared.
    fn name(&mut self) -> Result<String, Problem> {
        let word = self.next().unwrap_or_default();
        match word.strip_prefix('"') {
            Some(quoted) => {
                let inner = quoted.strip_suffix('"').filter(|inner| !inner.is_empty());
                inner.map(|inner| inner.replace("\"\"", "\"")).ok_or_else(|| wrong("a name in quotes ends with one"))
            }
            None if word.starts_with(|c: char| c.is_alphabetic() || c == '_') => Ok(word.to_lowercase()),
            None => Err(wrong("the cursor's name is missing")),
        }
    }

    fn end(&mut self) -> Result<(), Problem> {
        match self.next() {
            None | Some(";") => Ok(()),
            Some(word) => Err(Problem::error(code::SYNTAX_ERROR, format!("syntax error at or near \"{word}\""))),
        }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (start, first) = self.chars.find(|(_, c)| !c.is_whitespace())?;
        let is_of_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        if first == '"' {
            // Two quotes within stand for one.
            while let Some((_, c)) = self.chars.next() {
                let mut next = self.chars.clone();
                match (c, next.next()) {
                    ('"', Some((_, '"'))) => self.chars = next,
                    ('"', _) => break,
                    _ => {}
                }
            }
        } else if is_of_word(first) || first == '-' || first == '+' {
            while self.chars.clone().next().is_some_and(|(_, c)| is_of_word(c)) {
                self.chars.next();
            }
        }
        Some(&self.text[start..self.place()])
    }
}

impl Client {
    /// Executes a cursor statement of the simple protocol, and returns its command tag.
    pub async fn cursor(&mut self, cursor: &Cursor, text: &str, place: Place) -> Outcome<String> {
        match cursor {
            Cursor::Declare(declare) => {
                let prepared = Arc::new(self.declared(declare, text)?);
                if prepared.parameters() > 0 {
                    return Err(Problem::error("42P02", "a cursor's query has parameters without values").into());
                }
                self.begin_block(&StatementKind::Other, place).await?;
                self.declare(declare, Statement::of_query(prepared), Vec::new()).await
            }
            Cursor::Fetch(fetch) => {
                if !fetch.is_move {
                    let columns = self.cursor_columns(&fetch.name).await?;
                    self.put_columns(&columns, &vec![Format::Text; columns.fields().len()]);
                }
                self.fetch_from(fetch, &[Format::Text]).await
            }
            Cursor::Close(name) => self.close_cursor(name.as_deref()),
        }
    }

    /// Parses the query of a declared cursor.
    pub fn declared(&self, declare: &Declare, text: &str) -> Outcome<Prepared> {
        let query = declare.query(text);
        let prepared = self.session.parse(query).map_err(|e| {
            let place = e.place();
            Problem::from(e).at(place, &text[..text.len() - query.len()], query)
        })?;
        match prepared.kind() {
            StatementKind::Query => Ok(prepared),
            _ => Err(Problem::error(code::SYNTAX_ERROR, "a cursor is declared for a query").into()),
        }
    }

    /// Creates a portal under the cursor's name. Its query starts at once, so that it reads the
    /// current rows.
    pub async fn declare(
        &mut self,
        declare: &Declare,
        statement: Statement,
        values: Vec<onehop_engine::Value>,
    ) -> Outcome<String> {
        self.refuse_in_failed()?;
        if !declare.is_held && self.session.transaction() == TransactionState::None {
            let problem = Problem::error(code::NO_TRANSACTION, "DECLARE CURSOR can only be used in transaction blocks");
            return Err(problem.with_hint("BEGIN starts one; WITH HOLD makes a cursor that needs none").into());
        }
        if self.portals.contains_key(&declare.name) {
            let message = format!("cursor \"{}\" already exists", declare.name);
            return Err(Problem::error(code::DUPLICATE_CURSOR, message).into());
        }
        self.refuse_more_portals()?;
        let is_new = self.session.transaction() != TransactionState::None;
        let mut portal = Portal::of_cursor(Arc::new(statement), values, declare.is_held, is_new);
        self.start(&mut portal).await?;
        self.portals.insert(declare.name.clone(), portal);
        Ok("DECLARE CURSOR".into())
    }

    /// Sends rows of a cursor.
    pub async fn fetch_from(&mut self, fetch: &Fetch, formats: &[Format]) -> Outcome<String> {
        self.refuse_in_failed()?;
        // A failure removes the cursor.
        let mut portal = self.portals.remove(&fetch.name).ok_or_else(|| no_cursor(&fetch.name))?;
        portal.refuse_stopped()?;
        let word = if fetch.is_move { "MOVE" } else { "FETCH" };
        let mut rows = 0;
        if fetch.most != Some(0) {
            self.start(&mut portal).await?;
            if let Some(running) = portal.running() {
                running.fetch_as(formats)?;
                let before = running.sent;
                let sent = match fetch.is_move {
                    true => self.skip_rows(running, fetch.most).await?,
                    false => self.send_rows(running, fetch.most).await?,
                };
                rows = running.sent - before;
                if sent == Sent::All {
                    portal.is_over();
                }
            }
        }
        self.portals.insert(fetch.name.clone(), portal);
        Ok(format!("{word} {rows}"))
    }

    /// Closes one cursor, or all.
    pub fn close_cursor(&mut self, name: Option<&str>) -> Outcome<String> {
        self.refuse_in_failed()?;
        match name {
            None => {
                self.portals.retain(|_, portal| !portal.is_cursor());
                Ok("CLOSE CURSOR ALL".into())
            }
            Some(name) => match self.portals.remove(name) {
                Some(_) => Ok("CLOSE CURSOR".into()),
                None => Err(no_cursor(name).into()),
            },
        }
    }

    /// Handles the end of a transaction, or a rollback to a savepoint, by its tag. Cursors that
    /// were declared in an undone transaction end.
    pub fn transaction_ended(&mut self, tag: &str) {
        match tag {
            "COMMIT" => self.portals.values_mut().for_each(Portal::is_committed),
            _ => self.portals.retain(|_, portal| !portal.is_new()),
        }
    }

    fn refuse_in_failed(&self) -> Result<(), Problem> {
        match self.session.transaction() {
            TransactionState::Failed => Err(Problem::in_failed_transaction()),
            TransactionState::None | TransactionState::Open => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn fetch(name: &str, most: Option<u64>) -> Option<Cursor> {
        Some(Cursor::Fetch(Fetch { name: name.into(), most, is_move: false }))
    }

    #[test]
    fn what_clients_write_is_understood() {
        let text = "DECLARE \"My \"\"c\" NO SCROLL CURSOR WITHOUT HOLD FOR SELECT 1";
        let Some(Cursor::Declare(declare)) = Cursor::parse(text).unwrap() else { panic!("{text}") };
        assert_eq!((declare.name.as_str(), declare.is_held, declare.query(text)), ("My \"c", false, " SELECT 1"));
        let text = "declare C insensitive cursor with hold for\n(select 2)";
        let Some(Cursor::Declare(declare)) = Cursor::parse(text).unwrap() else { panic!("{text}") };
        assert_eq!((declare.name.as_str(), declare.is_held, declare.query(text)), ("c", true, "\n(select 2)"));
        for (text, expected) in [
            ("FETCH c", fetch("c", Some(1))),
            ("fetch next from C;", fetch("c", Some(1))),
            ("FETCH 10 IN c", fetch("c", Some(10))),
            ("FETCH FORWARD 5 FROM \"C\"", fetch("C", Some(5))),
            ("FETCH FORWARD FROM c", fetch("c", Some(1))),
            ("FETCH FORWARD ALL FROM c", fetch("c", None)),
            ("FETCH ALL c", fetch("c", None)),
            ("FETCH forward", fetch("forward", Some(1))),
            ("FETCH 0 FROM c", fetch("c", Some(0))),
            ("CLOSE c", Some(Cursor::Close(Some("c".into())))),
            ("close all", Some(Cursor::Close(None))),
            ("CLOSE \"all\"", Some(Cursor::Close(Some("all".into())))),
            ("MOVE 3 c", Some(Cursor::Fetch(Fetch { name: "c".into(), most: Some(3), is_move: true }))),
            ("SELECT 1", None),
            ("", None),
        ] {
            assert_eq!(Cursor::parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_none_of_it_is_told() {
        for (text, sqlstate) in [
            ("DECLARE c CURSOR FOR", "42601"),
            ("DECLARE CURSOR FOR SELECT 1", "42601"),
            ("DECLARE c SCROLL CURSOR FOR SELECT 1", "0A000"),
            ("DECLARE c BINARY CURSOR FOR SELECT 1", "0A000"),
            ("FETCH BACKWARD 1 FROM c", "55000"),
            ("FETCH -1 FROM c", "55000"),
            ("FETCH LAST FROM c", "55000"),
            ("FETCH two FROM c", "42601"),
            ("FETCH 1 FROM c d", "42601"),
            ("FETCH", "42601"),
            ("CLOSE", "42601"),
            ("CLOSE \"c", "42601"),
        ] {
            assert_eq!(Cursor::parse(text).unwrap_err().code, sqlstate, "{text}");
        }
    }
}
