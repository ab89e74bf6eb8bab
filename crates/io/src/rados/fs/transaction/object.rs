//! A transaction's object: how it stands, as attributes; who takes part in it, as entries.
//!
//! | attribute | value |
//! |---|---|
//! | `state` | `pending`, `committing TOKEN`, `committed MS`, `aborted MS` |
//! | `due` | until when it must be renewed, and for how long that is good: milliseconds |
//!
//! | key | value | meaning |
//! |---|---|---|
//! | `a/TASK/ATTEMPT` | [`Attempt`] | a task attempt, and its directory |
//! | `c/TASK` | [`Winner`] | the attempt of this task that counts |
//! | `p/PATH` | [`Mark`] | the commit replaces this directory |
//! | `d/ID` | [`Mark`] | the commit may have staged names in this directory |
//! | `m/ID` | [`Mark`] | the commit may have made this directory |
//! | `w/ID` | [`Mark`] | the commit is, or was, held up by this transaction |
//!
//! Entries are added by operations that compare the state, and no state is ever come back to. The lease is an attribute of
//! its own, so that renewing it is in nobody's way.

use std::collections::BTreeMap;
use std::str::from_utf8;
use std::sync::PoisonError;

use super::super::super::objects::{ReadOp, Reply, WriteOp};
use super::super::super::{Code, Error, Result};
use super::super::directory::{Outcome, SHARDS};
use super::super::record::{Bytes, Record, put_id, put_u64};
use super::super::{FileSystem, Id};

pub(in super::super) const ATTEMPTS: &[u8] = b"a/";
pub(in super::super) const WINNERS: &[u8] = b"c/";
pub(in super::super) const REPLACED: &[u8] = b"p/";
pub(in super::super) const TOUCHED: &[u8] = b"d/";
pub(in super::super) const MADE: &[u8] = b"m/";
pub(in super::super) const WAITS: &[u8] = b"w/";

pub(super) const STATE: &str = "state";
pub(super) const DUE: &str = "due";

/// Transactions of which a client remembers something.
const REMEMBERED: usize = 4096;

pub(in super::super) fn object_of(transaction: Id) -> String {
    format!("t.{transaction}")
}

pub(in super::super) fn shard_of(transaction: Id) -> String {
    format!("g.{:x}", transaction.0 % SHARDS)
}

/// How a transaction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum State {
    Pending,
    /// Whoever has the token stages names. No task attempt is added or committed any more.
    Committing {
        token: Id,
    },
    Committed {
        at_ms: u64,
    },
    Aborted {
        at_ms: u64,
    },
}

impl State {
    pub fn encode(self) -> Vec<u8> {
        match self {
            Self::Pending => "pending".into(),
            Self::Committing { token } => format!("committing {token}"),
            Self::Committed { at_ms } => format!("committed {at_ms}"),
            Self::Aborted { at_ms } => format!("aborted {at_ms}"),
        }
        .into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (word, rest) = from_utf8(bytes).ok()?.split_once(' ').unwrap_or((from_utf8(bytes).ok()?, ""));
        match word {
            "pending" if rest.is_empty() => Some(Self::Pending),
            "committing" => Some(Self::Committing { token: Id::parse(rest)? }),
            "committed" => Some(Self::Committed { at_ms: rest.parse().ok()? }),
            "aborted" => Some(Self::Aborted { at_ms: rest.parse().ok()? }),
            _ => None,
        }
    }
}

/// Until when a transaction must be renewed, and for how long that is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub due_ms: u64,
    pub lease_ms: u64,
}

impl Lease {
    pub fn encode(self) -> Vec<u8> {
        format!("{} {}", self.due_ms, self.lease_ms).into_bytes()
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (due, lease) = from_utf8(bytes).ok()?.split_once(' ')?;
        Some(Self { due_ms: due.parse().ok()?, lease_ms: lease.parse().ok()? })
    }
}

/// A task attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Attempt {
    pub stamp: Id,
    /// Its files have names here.
    pub directory: Id,
    pub condition: Condition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Condition {
    Open,
    Aborted {
        since_ms: u64,
    },
    /// Aborted, and nothing of it is left.
    Gone,
}

/// The attempt of a task that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Winner {
    pub stamp: Id,
    pub directory: Id,
    pub attempt: String,
}

impl Record for Attempt {
    fn put(&self, to: &mut Vec<u8>) {
        put_id(to, self.stamp);
        put_id(to, self.directory);
        match self.condition {
            Condition::Open => to.push(0),
            Condition::Aborted { since_ms } => {
                to.push(1);
                put_u64(to, since_ms);
            }
            Condition::Gone => to.push(2),
        }
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let (stamp, directory) = (from.id()?, from.id()?);
        let condition = match from.u8()? {
            0 => Condition::Open,
            1 => Condition::Aborted { since_ms: from.u64()? },
            2 => Condition::Gone,
            _ => return None,
        };
        Some(Self { stamp, directory, condition })
    }
}

impl Record for Winner {
    fn put(&self, to: &mut Vec<u8>) {
        put_id(to, self.stamp);
        put_id(to, self.directory);
        to.extend(self.attempt.as_bytes());
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let (stamp, directory) = (from.id()?, from.id()?);
        Some(Self { stamp, directory, attempt: from_utf8(from.rest()).ok()?.to_owned() })
    }
}

pub(super) fn attempt_key(task: &str, attempt: &str) -> Vec<u8> {
    [ATTEMPTS, task.as_bytes(), b"/", attempt.as_bytes()].concat()
}

pub(super) fn winner_key(task: &str) -> Vec<u8> {
    [WINNERS, task.as_bytes()].concat()
}

/// What others need to know of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Fate {
    Committed,
    Aborted,
    /// Neither. Unless it is renewed it may be aborted from then on.
    Open {
        due_ms: u64,
    },
    /// There is none, so nothing of it counts: while a name is staged by a committed one, that is there.
    Gone,
}

/// What a client remembers of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Known {
    /// It was pending, and for so long it is renewed while it is.
    Pending { lease_ms: u64 },
    /// It is committed, and will not be anything else.
    Committed,
}

/// Transactions that were asked about, for as long as one answer is put together.
#[derive(Debug, Default)]
pub(in super::super) struct Fates(BTreeMap<Id, Fate>);

impl Fates {
    pub fn of(&mut self, fs: &FileSystem, transaction: Id) -> Result<Fate> {
        if let Some(fate) = self.0.get(&transaction) {
            return Ok(*fate);
        }
        let fate = fs.fate(transaction)?;
        self.0.insert(transaction, fate);
        Ok(fate)
    }
}

/// A transaction at one moment.
#[derive(Debug)]
pub(in super::super) struct Look {
    pub transaction: Id,
    pub state: State,
    pub due_ms: u64,
    pub(super) lease_ms: u64,
    reply: Reply,
    pool: String,
}

impl Look {
    pub fn raw(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.reply.entry(key).map(<[u8]>::to_vec)
    }

    pub fn record<R: Record>(&self, key: &[u8]) -> Result<Option<R>> {
        self.reply.entry(key).map(|value| self.decode(key, value)).transpose()
    }

    pub fn decode<R: Record>(&self, key: &[u8], value: &[u8]) -> Result<R> {
        R::decode(value).ok_or_else(|| Error::Corrupt {
            pool: self.pool.clone(),
            object: object_of(self.transaction),
            what: format!("its entry {} is damaged or of another version", String::from_utf8_lossy(key)),
        })
    }

    /// Whether others may abort it.
    pub fn is_due(&self, now_ms: u64) -> bool {
        matches!(self.state, State::Pending | State::Committing { .. }) && now_ms >= self.due_ms
    }

    pub fn fate(&self) -> Fate {
        match self.state {
            State::Committed { .. } => Fate::Committed,
            State::Aborted { .. } => Fate::Aborted,
            State::Pending | State::Committing { .. } => Fate::Open { due_ms: self.due_ms },
        }
    }

    pub(super) fn lease(&self) -> Lease {
        Lease { due_ms: self.due_ms, lease_ms: self.lease_ms }
    }
}

impl FileSystem {
    /// A transaction and some of its entries; `None`: there is none.
    pub(in super::super) fn look_transaction(&self, transaction: Id, keys: Vec<Vec<u8>>) -> Result<Option<Look>> {
        self.look_transaction_by(transaction, ReadOp::new("look at").entries(keys))
    }

    fn look_transaction_by(&self, transaction: Id, op: ReadOp) -> Result<Option<Look>> {
        let meta = &self.inner.meta;
        let reply = match meta.read(&object_of(transaction), op.attributes()) {
            Err(error) if error.is(Code::NOT_FOUND) => return Ok(None),
            reply => reply?,
        };
        let corrupt = |what: &str| Error::Corrupt {
            pool: meta.name().into(),
            object: object_of(transaction),
            what: format!("its {what} makes no sense"),
        };
        let state = reply.attributes.get(STATE).and_then(|state| State::decode(state)).ok_or_else(|| corrupt(STATE))?;
        let lease = reply.attributes.get(DUE).and_then(|due| Lease::decode(due)).ok_or_else(|| corrupt(DUE))?;
        if state == State::Pending {
            self.remember(transaction, Known::Pending { lease_ms: lease.lease_ms });
        }
        Ok(Some(Look {
            transaction,
            state,
            due_ms: lease.due_ms,
            lease_ms: lease.lease_ms,
            reply,
            pool: meta.name().into(),
        }))
    }

    /// All entries of a transaction with a prefix; without a prefix, all.
    pub(in super::super) fn each_record(
        &self,
        transaction: Id,
        prefix: &[u8],
        mut each: impl FnMut(&Look, &[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut after = Vec::new();
        while let Some(look) =
            self.look_transaction_by(transaction, ReadOp::new("list").page(prefix, after.clone(), 1024))?
        {
            for (key, value) in &look.reply.entries {
                each(&look, key, value)?;
            }
            match look.reply.entries.last() {
                Some((key, _)) if look.reply.more => after.clone_from(key),
                _ => break,
            }
        }
        Ok(())
    }

    /// How a transaction stands. That one is committed is remembered.
    pub(in super::super) fn fate(&self, transaction: Id) -> Result<Fate> {
        if self.known(transaction) == Some(Known::Committed) {
            return Ok(Fate::Committed);
        }
        let fate = self.look_transaction(transaction, Vec::new())?.map_or(Fate::Gone, |look| look.fate());
        if fate == Fate::Committed {
            self.remember(transaction, Known::Committed);
        }
        Ok(fate)
    }

    fn known(&self, transaction: Id) -> Option<Known> {
        self.inner.known.lock().unwrap_or_else(PoisonError::into_inner).get(&transaction).copied()
    }

    pub(super) fn remember(&self, transaction: Id, what: Known) {
        let mut known = self.inner.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(transaction, what);
    }

    /// For how long a transaction is renewed, if it was pending when it was last heard of. Whoever takes that for granted compares
    /// with it.
    pub(super) fn known_lease_ms(&self, transaction: Id) -> Option<u64> {
        match self.known(transaction)? {
            Known::Pending { lease_ms } => Some(lease_ms),
            Known::Committed => None,
        }
    }

    /// Brings a transaction from one state to another, with another lease if one is given; false: it was not in that state, or
    /// has another lease than the one that is given for it.
    pub(super) fn decide(
        &self,
        transaction: Id,
        from: State,
        to: State,
        seen: Option<Lease>,
        new: Option<Lease>,
    ) -> Result<bool> {
        let mut unknown = None;
        for _ in 0..3 {
            let mut op = WriteOp::new("decide").assert_exists().attribute_is(STATE, from.encode());
            if let Some(seen) = seen {
                op = op.attribute_is(DUE, seen.encode());
            }
            op = op.set_attribute(STATE, to.encode());
            if let Some(new) = new {
                op = op.set_attribute(DUE, new.encode());
            }
            match self.attempt(&object_of(transaction), op)? {
                Outcome::Done => return Ok(true),
                Outcome::Conflict if unknown.is_none() => return Ok(false),
                Outcome::Conflict => {}
                Outcome::Unknown(error) => unknown = Some(error),
            }
            // Asked for again it is the same: once it has happened, the state it compares with is never come back to.
            match self.look_transaction(transaction, Vec::new())?.map(|look| look.state) {
                Some(state) if state == to => return Ok(true),
                Some(state) if state == from => {}
                Some(_) => return Ok(false),
                // It may have happened, and all that follows as well.
                None => break,
            }
        }
        unknown.map_or(Ok(false), Err)
    }

    /// Makes it impossible to commit a transaction that nobody has renewed; false: somebody has, or it has ended.
    pub(in super::super) fn abort_overdue(&self, look: &Look) -> Result<bool> {
        let aborted = State::Aborted { at_ms: self.now_ms() };
        self.decide(look.transaction, look.state, aborted, Some(look.lease()), None)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn states_and_records_come_back() {
        for state in [
            State::Pending,
            State::Committing { token: Id(7) },
            State::Committed { at_ms: 8 },
            State::Aborted { at_ms: u64::MAX },
        ] {
            assert_eq!(State::decode(&state.encode()), Some(state));
        }
        assert_eq!(State::decode(b"pending x"), None);
        let lease = Lease { due_ms: 1, lease_ms: 2 };
        assert_eq!(Lease::decode(&lease.encode()), Some(lease));
        for condition in [Condition::Open, Condition::Aborted { since_ms: 3 }, Condition::Gone] {
            let attempt = Attempt { stamp: Id(1), directory: Id(2), condition };
            assert_eq!(Attempt::decode(&attempt.encode()), Some(attempt));
        }
        let winner = Winner { stamp: Id(1), directory: Id(2), attempt: "attempt_0".into() };
        assert_eq!(Winner::decode(&winner.encode()), Some(winner));
    }
}
