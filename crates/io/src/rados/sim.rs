//! Pools in memory whose clients die, and whose answers and requests are lost, at an operation given by number.
//!
//! Fault model. Each client counts its operations, reads and writes, in the order in which it starts them. At the one that
//! was named it
//! - dies before or after the operation was carried out: it and all later ones change nothing any more ([`SimFault::DieBefore`],
//!   [`SimFault::DieAfter`]);
//! - or gets no answer: to an operation that was carried out, that was not, or that is carried out *later*, after so many
//!   operations of anybody's ([`SimFault::LoseReply`], [`SimFault::LoseRequest`], [`SimFault::Late`]);
//! - or is refused, as by a pool that is full ([`SimFault::Refuse`]);
//! - or stands still while somebody else works ([`SimClient::pause_at`]): every interleaving of two clients at the granularity
//!   of operations is of this kind, as far as one of them is not interrupted.
//!
//! What a real pool refuses is refused: entries in a pool without omap.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::objects::{EntriesWanted, WriteStep};
use super::{Code, Done, Error, Objects, ReadOp, Reply, Result, WriteOp};

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFault {
    /// The client dies, and the operation does not happen.
    DieBefore,
    /// The operation happens, and the client dies.
    DieAfter,
    /// It happens; no answer.
    LoseReply,
    /// It does not happen; no answer.
    LoseRequest,
    /// No answer; it happens after so many further operations.
    Late(u64),
    /// It does not happen, and the answer says so.
    Refuse(Code),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SimObject {
    bytes: Vec<u8>,
    attributes: BTreeMap<String, Vec<u8>>,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug)]
struct LateWrite {
    at: u64,
    pool: SimPoolName,
    object: String,
    op: WriteOp,
}

type SimPoolName = (&'static str, bool);

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<(&'static str, String), SimObject>,
    operations: u64,
    late: Vec<LateWrite>,
}

/// Pools in memory, and who uses them.
#[derive(Clone, Debug, Default)]
pub struct SimCluster {
    state: Arc<Mutex<State>>,
}

impl SimCluster {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody new who uses the pools.
    pub fn client(&self) -> SimClient {
        SimClient { cluster: self.clone(), counted: Arc::default() }
    }

    /// Carries out all operations that are late.
    pub fn settle(&self) {
        let mut state = self.lock();
        for late in std::mem::take(&mut state.late) {
            // Nobody hears of it.
            let _ = state.write(late.pool, &late.object, &late.op);
        }
    }

    /// Flips a bit of an object's bytes; false if it has no such byte.
    pub fn damage(&self, pool: &'static str, object: &str, at: usize) -> bool {
        let mut state = self.lock();
        let byte = state.objects.get_mut(&(pool, object.to_owned())).and_then(|object| object.bytes.get_mut(at));
        byte.map(|byte| *byte ^= 1).is_some()
    }

    /// The objects of a pool.
    pub fn names(&self, pool: &str) -> Vec<String> {
        self.lock().objects.keys().filter(|(of, _)| *of == pool).map(|(_, name)| name.clone()).collect()
    }
}

#[derive(Default)]
struct Counted {
    operations: u64,
    fault: Option<(u64, SimFault)>,
    pause: Option<(u64, Box<dyn FnOnce() + Send>)>,
    dead: bool,
}

/// A user of the pools, with faults of its own.
#[derive(Clone)]
pub struct SimClient {
    cluster: SimCluster,
    counted: Arc<Mutex<Counted>>,
}

impl fmt::Debug for SimClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimClient").finish_non_exhaustive()
    }
}

impl SimClient {
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many operations it has started.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// What happens to the operation of this number, counted from the next one, which is 0.
    pub fn fail_at(&self, number: u64, fault: SimFault) {
        let mut counted = self.lock();
        counted.fault = Some((counted.operations + number, fault));
    }

    /// What others do before the operation of this number, counted from the next one, which is 0. They are other clients: a file
    /// system joins operations of its threads, and one that stands still holds up those that would be joined with its own.
    pub fn pause_at(&self, number: u64, others: impl FnOnce() + Send + 'static) {
        let mut counted = self.lock();
        counted.pause = Some((counted.operations + number, Box::new(others)));
    }

    /// A pool that has entries.
    pub fn replicated(&self, pool: &'static str) -> Arc<SimPool> {
        Arc::new(SimPool { name: format!("pool {pool}"), pool: (pool, true), client: self.clone() })
    }

    /// A pool that has none, as an erasure-coded one.
    pub fn erasure_coded(&self, pool: &'static str) -> Arc<SimPool> {
        Arc::new(SimPool { name: format!("pool {pool}"), pool: (pool, false), client: self.clone() })
    }

    /// Numbers an operation: what is to happen to it.
    fn next(&self) -> Option<SimFault> {
        let (fault, pause) = {
            let mut counted = self.lock();
            let number = counted.operations;
            counted.operations += 1;
            if counted.dead {
                return Some(SimFault::DieBefore);
            }
            let pause = counted.pause.take_if(|(at, _)| *at == number);
            let fault = counted.fault.filter(|(at, _)| *at == number).map(|(_, fault)| fault);
            counted.dead = matches!(fault, Some(SimFault::DieBefore | SimFault::DieAfter));
            (fault, pause)
        };
        if let Some((_, others)) = pause {
            others();
        }
        fault
    }
}

/// A pool in memory, as one client sees it.
#[derive(Debug)]
pub struct SimPool {
    name: String,
    pool: SimPoolName,
    client: SimClient,
}

impl SimPool {
    fn error(&self, object: &str, operation: &'static str, code: Code) -> Error {
        Error::Object { pool: self.name.clone(), object: object.into(), operation, code }
    }

    fn changed(&self, object: &str, op: &WriteOp) -> std::result::Result<(), Code> {
        let fault = self.client.next();
        let mut state = self.client.cluster.lock();
        state.tick();
        match fault {
            None => state.write(self.pool, object, op),
            Some(SimFault::DieAfter | SimFault::LoseReply) => {
                // Nobody hears of it.
                let _ = state.write(self.pool, object, op);
                Err(Code::TIMED_OUT)
            }
            Some(SimFault::DieBefore | SimFault::LoseRequest) => Err(Code::TIMED_OUT),
            Some(SimFault::Late(after)) => {
                let at = state.operations + after;
                state.late.push(LateWrite { at, pool: self.pool, object: object.into(), op: op.clone() });
                Err(Code::TIMED_OUT)
            }
            Some(SimFault::Refuse(code)) => Err(code),
        }
    }

    fn have_read(&self, object: &str, op: &ReadOp) -> std::result::Result<Reply, Code> {
        let fault = self.client.next();
        let mut state = self.client.cluster.lock();
        state.tick();
        match fault {
            None => state.read(self.pool, object, op),
            Some(SimFault::Refuse(code)) => Err(code),
            Some(_) => Err(Code::TIMED_OUT),
        }
    }
}

impl Objects for SimPool {
    fn name(&self) -> &str {
        &self.name
    }

    fn start_write(&self, object: &str, op: WriteOp, done: Done<()>) {
        done(self.changed(object, &op).map_err(|code| self.error(object, op.operation, code)));
    }

    fn start_read(&self, object: &str, op: ReadOp, done: Done<Reply>) {
        done(self.have_read(object, &op).map_err(|code| self.error(object, op.operation, code)));
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.client.cluster.names(self.pool.0))
    }
}

impl State {
    /// Another operation has come: late ones may be due.
    fn tick(&mut self) {
        self.operations += 1;
        let now = self.operations;
        let (due, late) = std::mem::take(&mut self.late).into_iter().partition(|late| late.at <= now);
        self.late = late;
        for late in due {
            // Nobody hears of it.
            let _ = self.write(late.pool, &late.object, &late.op);
        }
    }

    fn write(&mut self, pool: SimPoolName, object: &str, op: &WriteOp) -> std::result::Result<(), Code> {
        let key = (pool.0, object.to_owned());
        let before = self.objects.get(&key);
        let mut after = before.cloned();
        for step in &op.steps {
            let omap = matches!(step, WriteStep::EntryIs(..) | WriteStep::SetEntry(..) | WriteStep::RemoveEntry(_));
            if omap && !pool.1 {
                return Err(Code(libc::EOPNOTSUPP));
            }
            match step {
                WriteStep::AssertExists if before.is_none() => return Err(Code::NOT_FOUND),
                WriteStep::AssertExists => {}
                WriteStep::AttributeIs(name, value) => {
                    let has = before.ok_or(Code::NOT_FOUND)?.attributes.get(*name);
                    if has.map_or(&[][..], Vec::as_slice) != value.as_slice() {
                        return Err(Code::CONFLICT);
                    }
                }
                WriteStep::EntryIs(key, value) => {
                    let has = before.ok_or(Code::NOT_FOUND)?.entries.get(key);
                    if has.map_or(&[][..], Vec::as_slice) != value.as_slice() {
                        return Err(Code::CONFLICT);
                    }
                }
                WriteStep::CreateNew if before.is_some() => return Err(Code::EXISTS),
                WriteStep::Create | WriteStep::CreateNew => {
                    after.get_or_insert_default();
                }
                WriteStep::SetAttribute(name, value) => {
                    after.get_or_insert_default().attributes.insert((*name).into(), value.clone());
                }
                WriteStep::SetEntry(key, value) => {
                    after.get_or_insert_default().entries.insert(key.clone(), value.clone());
                }
                WriteStep::RemoveEntry(key) => {
                    after.get_or_insert_default().entries.remove(key);
                }
                WriteStep::WriteFull(bytes) => after.get_or_insert_default().bytes.clone_from(bytes),
                WriteStep::Remove if after.is_none() => return Err(Code::NOT_FOUND),
                WriteStep::Remove => after = None,
            }
        }
        match after {
            Some(after) => self.objects.insert(key, after),
            None => self.objects.remove(&key),
        };
        Ok(())
    }

    fn read(&self, pool: SimPoolName, object: &str, op: &ReadOp) -> std::result::Result<Reply, Code> {
        /// As the OSDs' `osd_max_omap_entries_per_request`, but small, so that tests have more than one page.
        const PAGE: usize = 7;
        let object = self.objects.get(&(pool.0, object.to_owned())).ok_or(Code::NOT_FOUND)?;
        if op.entries.is_some() && !pool.1 {
            return Err(Code(libc::EOPNOTSUPP));
        }
        let mut reply = Reply { size: object.bytes.len() as u64, ..Reply::default() };
        if op.attributes {
            reply.attributes.clone_from(&object.attributes);
        }
        match &op.entries {
            None => {}
            Some(EntriesWanted::Keys(keys)) => {
                let of = |key: &Vec<u8>| object.entries.get(key).map(|value| (key.clone(), value.clone()));
                reply.entries = keys.iter().filter_map(of).collect();
                reply.entries.sort();
            }
            Some(EntriesWanted::Page { prefix, after, limit }) => {
                let behind = object.entries.iter().filter(|(key, _)| key.starts_with(prefix) && *key > after);
                let limit = usize::try_from(*limit).unwrap_or(PAGE).min(PAGE);
                let mut page: Vec<_> =
                    behind.take(limit + 1).map(|(key, value)| (key.clone(), value.clone())).collect();
                reply.more = page.len() > limit;
                page.truncate(limit);
                reply.entries = page;
            }
        }
        if let Some((offset, len)) = op.bytes {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(object.bytes.len());
            let end = start.saturating_add(len).min(object.bytes.len());
            reply.bytes = object.bytes[start..end].to_vec();
        }
        Ok(reply)
    }
}
