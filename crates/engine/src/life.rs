//! One session of writing of a database, and the origin that its segments have.
//!
//! A database has random bits of its own, and each process that brings segments has some, a *life*. Both are in the footers of
//! the segments, and the catalog lists the last lives. So a segment that was found says whether it belongs to this database, and
//! whether to a part of its history that its store knows.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use onehop_io::rados::fs::Id;
use onehop_segment::OriginRecord;
use onehop_store::simulation;

use crate::catalog::{Change, Identity};
use crate::{Error, ErrorKind, Result};

/// Lives that the catalog lists at most. Segments of earlier ones count as unknown.
const MOST_LIVES: usize = 64;

/// The session of writing of this process.
#[derive(Debug)]
pub(crate) struct Life {
    /// With this life.
    identity: Identity,
    database: [u8; 16],
    life: u64,
    /// Whether the catalog lists it.
    is_recorded: AtomicBool,
}

impl Life {
    /// Another life of a database; its first, if it has no identity yet.
    ///
    /// # Errors
    /// The system has no random numbers, or the identity is none.
    pub fn begin(identity: Option<Identity>) -> Result<Self> {
        let mut identity = match identity {
            Some(identity) => identity,
            None => Identity { database: random()?, lives: Vec::new() },
        };
        let database = u128::from_str_radix(&identity.database, 16)
            .map_err(|_| Error::new(ErrorKind::Corrupt, "the identity of the database in its store is no number"))?;
        let random: String = random()?.chars().take(16).collect();
        let life = u64::from_str_radix(&random, 16).unwrap_or_default();
        identity.lives.push(random);
        identity.lives.drain(..identity.lives.len().saturating_sub(MOST_LIVES));
        Ok(Self { identity, database: database.to_be_bytes(), life, is_recorded: AtomicBool::new(false) })
    }

    /// The origin of a segment that is written now.
    pub fn origin(&self, generation: u64) -> OriginRecord {
        OriginRecord { database: self.database, life: self.life, generation }
    }

    /// The change that a commit of segments must include; `None` once the catalog lists this life.
    pub fn change(&self) -> Option<Change> {
        (!self.is_recorded.load(SeqCst)).then(|| Change::PutIdentity { identity: self.identity.clone() })
    }

    /// Notes that such a commit is durable.
    pub fn is_durable(&self) {
        self.is_recorded.store(true, SeqCst);
    }
}

fn random() -> Result<String> {
    if let (Some(high), Some(low)) = (simulation::bits(), simulation::bits()) {
        return Ok(format!("{high:016x}{low:016x}"));
    }
    let id = Id::random();
    id.map(|id| id.to_string())
        .map_err(|e| Error::new(ErrorKind::Io, format!("cannot get random numbers of the system: {e}")).with_source(e))
}

/// Describes the origin of a segment, as seen from a database.
pub(crate) fn describe(origin: Option<OriginRecord>, identity: Option<&Identity>) -> String {
    let Some(origin) = origin else { return "written by an older build, which did not say for which database".into() };
    let database = format!("{:032x}", u128::from_be_bytes(origin.database));
    let Some(identity) = identity.filter(|identity| identity.database == database) else {
        return format!("written for another database ({database})");
    };
    let life = format!("{:016x}", origin.life);
    let known = match identity.lives.contains(&life) {
        true => "in a session that the store knows",
        false => "in a session that the store does not know, so that the store is an older one",
    };
    format!("written for this database after generation {}, {known}", origin.generation)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn identity(life: &Life) -> Identity {
        match life.change() {
            Some(Change::PutIdentity { identity }) => identity,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn histories_are_told_apart() {
        let first = Life::begin(None).unwrap();
        let copy = identity(&first);
        let (one, other) = (Life::begin(Some(copy.clone())).unwrap(), Life::begin(Some(copy.clone())).unwrap());
        let said = |life: &Life, store: &Identity| describe(Some(life.origin(7)), Some(store));
        assert!(said(&first, &identity(&one)).contains("that the store knows"));
        assert!(said(&one, &copy).contains("does not know"));
        assert!(said(&one, &identity(&other)).contains("does not know"));
        let stranger = Life::begin(None).unwrap();
        assert!(said(&stranger, &copy).contains("another database"));
        first.is_durable();
        assert_eq!(first.change(), None);
    }

    #[test]
    fn the_list_of_lives_is_bounded() {
        let mut last = identity(&Life::begin(None).unwrap());
        for _ in 0..100 {
            last = identity(&Life::begin(Some(last)).unwrap());
        }
        assert_eq!(last.lives.len(), MOST_LIVES);
    }
}
