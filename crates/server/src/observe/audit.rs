//! The audit log, in lines of JSON: log-ins and their failures, refusals, and accesses of
//! statements outside of the database.
//!
//! A line contains no statement text and no setting's value, and so no password. It contains the
//! statement's tag and its target: a path, a name, or a setting. A statement that stays within the
//! database and is not refused has no line.
//!
//! A client without a password cannot fill the log. At most [`UNJUDGED_A_SECOND`] attempts that
//! were not judged have a line, and the next line counts the others. Judged guesses are bounded by
//! their rate.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use onehop_engine::{Query, Rights};
use serde_json::Value;

use super::log::{Event, Log, LogTo};
use super::{Statement, of, sql};
use crate::connections::Connection;
use crate::login::Failed;
use crate::problem::code;
use crate::server::Result;
use crate::users::User;

/// The maximum number of lines per second for attempts that were not judged.
const UNJUDGED_A_SECOND: u64 = 20;

/// The audit log.
#[derive(Debug)]
pub(super) struct Audit {
    log: Log,
    unjudged: Mutex<Unjudged>,
}

/// The attempts of the current second that were not judged.
#[derive(Debug)]
struct Unjudged {
    since: Instant,
    count: u64,
    left_out: u64,
}

impl Unjudged {
    /// Admits an attempt to the log, unless there are too many. Returns the number of attempts that
    /// were omitted before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.count) = (now, 0);
        }
        self.count += 1;
        if self.count > UNJUDGED_A_SECOND {
            self.left_out += 1;
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Audit {
    /// Opens the audit log.
    pub fn open(to: &LogTo) -> Result<Self> {
        let unjudged = Unjudged { since: Instant::now(), count: 0, left_out: 0 };
        Ok(Self { log: Log::open(to, "the audit log")?, unjudged: Mutex::new(unjudged) })
    }

    /// Returns the underlying log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the number of lost lines.
    pub fn lost(&self) -> u64 {
        self.log.lost()
    }

    /// Logs a log-in.
    pub fn logged_in(&self, connection: &Connection) {
        let event = of(Event::new("login"), connection);
        self.log.say(event.with("role", connection.rights().name()).with("database", &*connection.database));
    }

    /// Logs a log-in to the page.
    pub fn logged_in_to_page(&self, user: &str, rights: Rights, from: impl Display) {
        let event = Event::new("login").with("user", user).with("client_address", from.to_string());
        self.log.say(event.with("role", rights.name()).with("by", "page"));
    }

    /// Logs a failed log-in, subject to the limit on attempts that were not judged.
    pub fn login_failed(&self, event: Event, failed: &Failed) {
        let event = event.with("why", failed.why.name()).with("sqlstate", failed.problem.code);
        match failed.why.is_judged() {
            true => self.log.say(event),
            false => self.say_unjudged(event),
        }
    }

    /// Logs a refusal, subject to the same limit.
    pub fn refused(&self, event: Event) {
        self.say_unjudged(event);
    }

    fn say_unjudged(&self, event: Event) {
        let admitted = self.unjudged.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
        if let Some(left_out) = admitted {
            self.log.say(event.with_some("left_out", Some(left_out).filter(|count| *count > 0)));
        }
    }

    /// Logs a change of the file of users.
    pub fn users_changed(&self, before: &BTreeMap<String, User>, now: &BTreeMap<String, User>) {
        let missing = |some: &BTreeMap<String, User>, from: &BTreeMap<String, User>| {
            some.keys().filter(|name| !from.contains_key(*name)).cloned().collect::<Vec<_>>()
        };
        let is_another = |(name, user): &(&String, &User)| before.get(*name).is_some_and(|known| known != *user);
        let changed: Vec<String> = now.iter().filter(is_another).map(|(name, _)| name.clone()).collect();
        let event = Event::new("users changed").with("added", missing(now, before));
        self.log.say(event.with("removed", missing(before, now)).with("changed", changed));
    }

    /// Logs a setting that a client changed as it connected.
    pub fn set_at_login(&self, connection: &Connection, setting: &str) {
        self.log.say(
            of(Event::new("statement"), connection).with("tag", "SET").with("target", setting).with("state", "done"),
        );
    }

    /// Logs a completed statement.
    pub fn over(&self, statement: &Statement<'_>) {
        let (tag, target) = acted(statement);
        let is_denied = statement.sqlstate == Some(code::INSUFFICIENT_PRIVILEGE);
        if !is_denied && target.is_none() {
            return;
        }
        let mut event = Event::new(if is_denied { "denied" } else { "statement" });
        if let Some(connection) = statement.connection {
            event = of(event, connection);
        }
        event = event.with_some("id", statement.query.map(Query::id)).with("tag", tag).with_some("target", target);
        let table = statement.query.and_then(Query::action).and_then(|action| action.table.as_deref());
        event = event.with_some("table", table).with("state", statement.state().name());
        // The message of a denial contains a right, and no value.
        event = event.with_some("error", statement.error.filter(|_| is_denied));
        self.log.say(event.with_some("sqlstate", statement.sqlstate));
    }
}

/// Returns the tag of a statement, and its target outside of the database or the files that it
/// read.
fn acted(statement: &Statement<'_>) -> (String, Option<Value>) {
    if let Some(action) = statement.query.and_then(Query::action) {
        return (action.tag.into(), Some(action.target.as_str().into()));
    }
    let tag = sql::operation(statement.text).unwrap_or_else(|| "unknown".into());
    let files = statement.query.map(Query::files).unwrap_or_default();
    let target = match files.as_slice() {
        [] => None,
        [file] => Some(file.as_str().into()),
        _ => Some(files.into()),
    };
    (tag, target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_that_are_not_judged_do_not_fill_the_log() {
        let now = Instant::now();
        let mut unjudged = Unjudged { since: now, count: 0, left_out: 0 };
        let admitted = (0..1_000).filter(|_| unjudged.admit(now).is_some()).count();
        assert_eq!(admitted as u64, UNJUDGED_A_SECOND);
        let later = now + Duration::from_secs(1);
        assert_eq!(unjudged.admit(later), Some(1_000 - UNJUDGED_A_SECOND));
        assert_eq!(unjudged.admit(later), Some(0));
    }
}
