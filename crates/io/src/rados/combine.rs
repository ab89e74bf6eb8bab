//! Operations of several threads on one object, joined into one: a group commit for names.
//!
//! An object's operations are carried out one after the other, and one that looks at entries waits for the changes of that
//! object that are on their way to the disk. Threads that work in one directory would each pay for that, for every file. Here
//! the first one's operation goes at once and alone; those that come meanwhile wait until it has been answered, and then go
//! together. Nobody waits for company, so who is alone is as fast as without this.
//!
//! Why nobody can tell the difference:
//! - *Reads* are joined by asking for what any of them wants. Each gets what it has asked for, as it was at one moment between
//!   its call and its return.
//! - *Changes* are joined only if none of them changes an entry that another one changes or compares. Then the comparisons of all
//!   hold together if each one's do, and the object becomes what it would become one after the other, in any order.
//! - A joined change that is *refused* does not say whose comparison it was, and has not happened: each is carried out alone.
//! - A joined operation *without an answer* is one without an answer for each. If it happens late, all of it does: as if
//!   each had happened late, at the same moment.
//!
//! What sets attributes, writes bytes, creates or removes is never joined. Only operations that somebody waits for are: those
//! that are merely started go their way.

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::objects::{EntriesWanted, WriteStep};
use super::{Code, Done, Error, Objects, ReadOp, Reply, Result, WriteOnce, WriteOp};

/// Steps, or keys, of a joined operation. What one asks for by itself may be more.
const MAX_STEPS: usize = 1024;

/// Objects whose operations are joined, where that makes no difference but in time.
#[derive(Debug)]
pub(super) struct Combined {
    objects: Arc<dyn Objects>,
    writes: Lanes<WriteOp>,
    reads: Lanes<ReadOp>,
}

impl Combined {
    pub fn new(objects: Arc<dyn Objects>) -> Arc<Self> {
        Arc::new(Self { objects, writes: Lanes::default(), reads: Lanes::default() })
    }

    fn error(&self, object: &str, operation: &'static str, code: Code) -> Error {
        Error::Object { pool: self.objects.name().into(), object: object.into(), operation, code }
    }

    fn write_all(&self, object: &str, mut ops: Vec<WriteOp>) -> Vec<Result<()>> {
        let joined = match ops.pop() {
            Some(only) if ops.is_empty() => return vec![self.objects.write(object, only)],
            Some(last) => {
                ops.push(last);
                join_changes(&ops)
            }
            None => return Vec::new(),
        };
        match self.objects.write(object, joined) {
            Ok(()) => ops.iter().map(|_| Ok(())).collect(),
            Err(error) if error.is(Code::TIMED_OUT) => {
                ops.iter().map(|op| Err(self.error(object, op.operation, Code::TIMED_OUT))).collect()
            }
            // It has not happened.
            Err(_) => {
                let alone: Vec<_> = ops.into_iter().map(|op| self.objects.submit_write(object, op)).collect();
                alone.into_iter().map(super::Pending::wait).collect()
            }
        }
    }

    fn read_all(&self, object: &str, mut ops: Vec<ReadOp>) -> Vec<Result<Reply>> {
        let joined = match ops.pop() {
            Some(only) if ops.is_empty() => return vec![self.objects.read(object, only)],
            Some(last) => {
                ops.push(last);
                join_reads(&ops)
            }
            None => return Vec::new(),
        };
        let reply = self.objects.read(object, joined);
        let part = |op: &ReadOp| match &reply {
            Ok(reply) => Ok(part_of(reply, op)),
            Err(Error::Object { code, .. }) => Err(self.error(object, op.operation, *code)),
            Err(error) => Err(error.clone()),
        };
        ops.iter().map(part).collect()
    }
}

impl Objects for Combined {
    fn name(&self) -> &str {
        self.objects.name()
    }

    fn start_write(&self, object: &str, op: WriteOp, done: Done<()>) {
        self.objects.start_write(object, op, done);
    }

    fn gather(&self, operation: &'static str, most_bytes: usize) -> WriteOnce {
        self.objects.gather(operation, most_bytes)
    }

    fn start_write_once(&self, object: &str, whole: WriteOnce, attribute: (&'static str, &[u8]), done: Done<()>) {
        self.objects.start_write_once(object, whole, attribute, done);
    }

    fn start_read(&self, object: &str, op: ReadOp, done: Done<Reply>) {
        self.objects.start_read(object, op, done);
    }

    fn list(&self) -> Result<Vec<String>> {
        self.objects.list()
    }

    fn write(&self, object: &str, op: WriteOp) -> Result<()> {
        if !op.steps.iter().all(may_be_joined) {
            return self.objects.write(object, op);
        }
        let nobody = || self.error(object, "change", Code::TIMED_OUT);
        self.writes.go(object, op, |ops| self.write_all(object, ops)).unwrap_or_else(|| Err(nobody()))
    }

    fn read(&self, object: &str, op: ReadOp) -> Result<Reply> {
        if op.bytes.is_some() || matches!(op.entries, Some(EntriesWanted::Page { .. })) {
            return self.objects.read(object, op);
        }
        let nobody = || self.error(object, "read", Code::TIMED_OUT);
        self.reads.go(object, op, |ops| self.read_all(object, ops)).unwrap_or_else(|| Err(nobody()))
    }
}

fn may_be_joined(step: &WriteStep) -> bool {
    use WriteStep::{AssertExists, AttributeIs, EntryIs, RemoveEntry, SetEntry};
    matches!(step, AssertExists | AttributeIs(..) | EntryIs(..) | SetEntry(..) | RemoveEntry(_))
}

/// Comparisons first; what several ask for is asked for once.
fn join_changes(ops: &[WriteOp]) -> WriteOp {
    let mut joined = WriteOp::new("change");
    let mut attributes = BTreeSet::new();
    let steps = || ops.iter().flat_map(|op| &op.steps);
    if steps().any(|step| matches!(step, WriteStep::AssertExists)) {
        joined = joined.assert_exists();
    }
    for step in steps() {
        match step {
            WriteStep::AttributeIs(name, _) if attributes.insert(*name) => joined.steps.push(step.clone()),
            WriteStep::EntryIs(..) => joined.steps.push(step.clone()),
            _ => {}
        }
    }
    let changes = steps().filter(|step| matches!(step, WriteStep::SetEntry(..) | WriteStep::RemoveEntry(_)));
    joined.steps.extend(changes.cloned());
    joined
}

fn join_reads(ops: &[ReadOp]) -> ReadOp {
    let mut joined = ReadOp::new("look at");
    let mut keys = BTreeSet::new();
    for op in ops {
        joined.size |= op.size;
        joined.attributes |= op.attributes;
        if let Some(EntriesWanted::Keys(wanted)) = &op.entries {
            keys.extend(wanted);
        }
    }
    if ops.iter().any(|op| op.entries.is_some()) {
        joined = joined.entries(keys.into_iter().cloned().collect());
    }
    joined
}

/// What one of them has asked for.
fn part_of(reply: &Reply, op: &ReadOp) -> Reply {
    let mut part = Reply { size: if op.size { reply.size } else { 0 }, ..Reply::default() };
    if op.attributes {
        part.attributes.clone_from(&reply.attributes);
    }
    if let Some(EntriesWanted::Keys(keys)) = &op.entries {
        let wanted: BTreeSet<&Vec<u8>> = keys.iter().collect();
        let of = |key: &&Vec<u8>| reply.entry(key).map(|value| ((*key).clone(), value.to_vec()));
        part.entries = wanted.iter().filter_map(of).collect();
    }
    part
}

/// An operation that may be joined with others.
trait Joinable: Sized {
    /// What has to be known of those that are joined, to tell whether one more can be.
    type Footprint: Default;
    /// Adds it, if that makes no difference to any.
    fn add_to(&self, footprint: &mut Self::Footprint) -> bool;
    type Answer;
}

#[derive(Debug, Default)]
struct Changed {
    attributes: BTreeMap<&'static str, Vec<u8>>,
    compared: BTreeMap<Vec<u8>, Vec<u8>>,
    changed: BTreeSet<Vec<u8>>,
    steps: usize,
}

impl Joinable for WriteOp {
    type Footprint = Changed;
    type Answer = ();

    fn add_to(&self, all: &mut Changed) -> bool {
        if all.steps > 0 && all.steps + self.steps.len() > MAX_STEPS {
            return false;
        }
        let fits = self.steps.iter().all(|step| match step {
            WriteStep::AttributeIs(name, value) => all.attributes.get(name).is_none_or(|other| other == value),
            WriteStep::EntryIs(key, value) => {
                !all.changed.contains(key) && all.compared.get(key).is_none_or(|other| other == value)
            }
            WriteStep::SetEntry(key, _) | WriteStep::RemoveEntry(key) => {
                !all.changed.contains(key) && !all.compared.contains_key(key)
            }
            _ => true,
        });
        if !fits {
            return false;
        }
        for step in &self.steps {
            match step {
                WriteStep::AttributeIs(name, value) => _ = all.attributes.insert(name, value.clone()),
                WriteStep::EntryIs(key, value) => _ = all.compared.insert(key.clone(), value.clone()),
                WriteStep::SetEntry(key, _) | WriteStep::RemoveEntry(key) => _ = all.changed.insert(key.clone()),
                _ => {}
            }
        }
        all.steps += self.steps.len();
        true
    }
}

impl Joinable for ReadOp {
    type Footprint = usize;
    type Answer = Reply;

    fn add_to(&self, keys: &mut usize) -> bool {
        let Some(EntriesWanted::Keys(wanted)) = &self.entries else { return true };
        if *keys > 0 && *keys + wanted.len() > MAX_STEPS {
            return false;
        }
        *keys += wanted.len();
        true
    }
}

/// What a thread that waits is told.
enum Turn<O: Joinable> {
    /// How its operation has ended.
    Answer(Result<O::Answer>),
    /// It is to carry out these, of which the first is its own.
    Lead(Vec<Request<O>>),
}

struct Request<O: Joinable> {
    op: O,
    /// Where its thread waits. The one who leads has none.
    tell: SyncSender<Turn<O>>,
}

impl<O: Joinable> std::fmt::Debug for Request<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

type Waiting<O> = BTreeMap<String, VecDeque<Request<O>>>;

/// For each object that somebody has an operation of in flight, who waits for it.
#[derive(Debug)]
struct Lanes<O: Joinable>(Mutex<Waiting<O>>);

impl<O: Joinable> Default for Lanes<O> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Who carries operations out. Whatever happens to it, somebody else goes on.
struct Lead<'a, O: Joinable> {
    lanes: &'a Lanes<O>,
    object: &'a str,
}

impl<O: Joinable> Lanes<O> {
    fn lock(&self) -> MutexGuard<'_, Waiting<O>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries an operation out, with others if there are any. `None`: who carried it out has come to grief.
    fn go(&self, object: &str, op: O, all: impl FnOnce(Vec<O>) -> Vec<Result<O::Answer>>) -> Option<Result<O::Answer>> {
        let requests = match self.join(object, op) {
            Ok(op) => {
                let _lead = Lead { lanes: self, object };
                return all(vec![op]).pop();
            }
            Err(waits) => match waits.recv().ok()? {
                Turn::Answer(answer) => return Some(answer),
                Turn::Lead(requests) => requests,
            },
        };
        let _lead = Lead { lanes: self, object };
        let (ops, tell): (Vec<O>, Vec<_>) = requests.into_iter().map(|request| (request.op, request.tell)).unzip();
        let mut answers = all(ops).into_iter();
        let own = answers.next();
        for (tell, answer) in tell.into_iter().skip(1).zip(answers) {
            // It waits, and there is room for one answer.
            let _ = tell.try_send(Turn::Answer(answer));
        }
        own
    }

    /// The operation back: nobody is in the way. Else, where to wait.
    fn join(&self, object: &str, op: O) -> std::result::Result<O, Receiver<Turn<O>>> {
        match self.lock().entry(object.to_owned()) {
            MapEntry::Vacant(lane) => {
                lane.insert(VecDeque::new());
                Ok(op)
            }
            MapEntry::Occupied(mut lane) => {
                let (tell, waits) = sync_channel(1);
                lane.get_mut().push_back(Request { op, tell });
                Err(waits)
            }
        }
    }
}

impl<O: Joinable> Drop for Lead<'_, O> {
    /// Hands over to the first who waits, with all that can be joined with it. Others keep their places.
    fn drop(&mut self) {
        let mut lanes = self.lanes.lock();
        let Some(waiting) = lanes.get_mut(self.object) else { return };
        let (mut footprint, mut batch, mut rest) = (O::Footprint::default(), Vec::new(), VecDeque::new());
        for request in waiting.drain(..) {
            if request.op.add_to(&mut footprint) { batch.push(request) } else { rest.push_back(request) }
        }
        *waiting = rest;
        match batch.first().map(|first| first.tell.clone()) {
            None => _ = lanes.remove(self.object),
            Some(first) => {
                drop(lanes);
                // It waits until it is told something.
                let _ = first.try_send(Turn::Lead(batch));
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::super::{SimCluster, SimFault, SimPool};
    use super::*;

    /// A pool whose first operation waits until it is let go, so that others come meanwhile.
    #[derive(Debug)]
    struct Gate {
        pool: Arc<SimPool>,
        open: Mutex<bool>,
        opened: Condvar,
        operations: AtomicUsize,
    }

    impl Gate {
        fn pass(&self) {
            self.operations.fetch_add(1, SeqCst);
            let mut open = self.open.lock().unwrap();
            while !*open {
                open = self.opened.wait(open).unwrap();
            }
        }

        fn open(&self) {
            *self.open.lock().unwrap() = true;
            self.opened.notify_all();
        }
    }

    impl Objects for Gate {
        fn name(&self) -> &str {
            self.pool.name()
        }

        fn start_write(&self, object: &str, op: WriteOp, done: Done<()>) {
            self.pass();
            self.pool.start_write(object, op, done);
        }

        fn start_read(&self, object: &str, op: ReadOp, done: Done<Reply>) {
            self.pass();
            self.pool.start_read(object, op, done);
        }

        fn list(&self) -> Result<Vec<String>> {
            self.pool.list()
        }
    }

    fn in_live(operation: &'static str) -> WriteOp {
        WriteOp::new(operation).assert_exists().attribute_is("state", "live")
    }

    /// Starts all of them while one is held up, so that they are joined; how they end, and how many operations it took.
    fn together<O: Send + 'static, A: Send + 'static>(
        ops: Vec<O>,
        waiting: impl Fn(&Combined) -> usize,
        fault: Option<SimFault>,
        run: impl Fn(&Combined, O) -> Result<A> + Send + Sync + Copy + 'static,
    ) -> (Vec<Result<A>>, usize, Arc<SimPool>) {
        let client = SimCluster::default().client();
        let pool = client.replicated("meta");
        let object = WriteOp::new("make").create_new().set_attribute("state", "live");
        pool.write("d", object.set_entry("there", "1")).unwrap();
        let gate = Gate {
            pool: Arc::clone(&pool),
            open: Mutex::new(false),
            opened: Condvar::new(),
            operations: AtomicUsize::new(0),
        };
        let gate = Arc::new(gate);
        let objects = Combined::new(gate.clone() as Arc<dyn Objects>);
        let mut threads = Vec::new();
        for (number, op) in ops.into_iter().enumerate() {
            let theirs = Arc::clone(&objects);
            threads.push(std::thread::spawn(move || run(&theirs, op)));
            // The first one is in flight, the others wait, in this order.
            while gate.operations.load(SeqCst) == 0 || waiting(&objects) < number {
                std::thread::yield_now();
            }
        }
        if let Some(fault) = fault {
            client.fail_at(1, fault);
        }
        gate.open();
        let answers = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(objects.writes.lock().is_empty() && objects.reads.lock().is_empty());
        (answers, gate.operations.load(SeqCst), pool)
    }

    fn changes(ops: Vec<WriteOp>, fault: Option<SimFault>) -> (Vec<Result<()>>, usize, Arc<SimPool>) {
        let waiting = |objects: &Combined| objects.writes.lock().get("d").map_or(0, VecDeque::len);
        together(ops, waiting, fault, |objects, op| objects.write("d", op))
    }

    fn entries(pool: &SimPool, keys: &[&str]) -> Vec<Option<Vec<u8>>> {
        let read = ReadOp::new("read").entries(keys.iter().map(|key| key.as_bytes().to_vec()).collect());
        let reply = pool.read("d", read).unwrap();
        keys.iter().map(|key| reply.entry(key.as_bytes()).map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn changes_that_come_meanwhile_go_together() {
        let ops = (0..9).map(|n| in_live("add").entry_is(format!("n/{n}"), None).set_entry(format!("n/{n}"), "x"));
        let (answers, operations, pool) = changes(ops.collect(), None);
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(operations, 2);
        assert!(entries(&pool, &["n/0", "n/5", "n/8"]).iter().all(Option::is_some));
    }

    #[test]
    fn one_that_does_not_hold_stops_nobody_else() {
        let add = |key: &str| in_live("add").entry_is(key, None).set_entry(key, "x");
        let (answers, _, pool) = changes(vec![add("a"), add("b"), add("there"), add("c")], None);
        assert!(answers[0].is_ok() && answers[1].is_ok() && answers[3].is_ok(), "{answers:?}");
        let error = answers[2].as_ref().unwrap_err();
        assert!(error.is(Code::CONFLICT) && error.to_string().contains("add object d"), "{error}");
        assert_eq!(entries(&pool, &["a", "b", "c", "there"])[3], Some(b"1".to_vec()));
    }

    #[test]
    fn changes_of_one_entry_are_not_joined() {
        // One takes what the other compares with; both want the same name; one is of another state.
        let take = in_live("take").entry_is("there", Some(b"1".to_vec())).remove_entry("there");
        let also = in_live("take").entry_is("there", Some(b"1".to_vec())).set_entry("other", "x");
        let dead = WriteOp::new("see").attribute_is("state", "dead").set_entry("dead", "x");
        let (answers, operations, pool) = changes(vec![in_live("first").set_entry("f", "x"), take, also, dead], None);
        assert!(answers[0].is_ok() && answers[1].is_ok(), "{answers:?}");
        assert!(answers[2].is_err() && answers[3].is_err(), "{answers:?}");
        assert_eq!(operations, 4);
        assert_eq!(entries(&pool, &["there", "other", "dead"]), [None, None, None]);
    }

    #[test]
    fn no_answer_is_no_answer_to_any() {
        for fault in [SimFault::LoseReply, SimFault::LoseRequest, SimFault::Late(0)] {
            let add = |key: &str| in_live("add").set_entry(key, "x");
            let (answers, operations, pool) = changes(vec![add("a"), add("b"), add("c")], Some(fault));
            assert_eq!(operations, 2);
            assert!(answers[1..].iter().all(|answer| answer.as_ref().is_err_and(|e| e.is(Code::TIMED_OUT))));
            let there = entries(&pool, &["b", "c"]);
            assert_eq!(there[0].is_some(), there[1].is_some(), "{fault:?}");
        }
    }

    #[test]
    fn reads_that_come_meanwhile_see_what_they_have_asked_for() {
        let wanted = |keys: &[&str]| ReadOp::new("look at").entries(keys.iter().map(|key| (*key).into()).collect());
        let ops = vec![wanted(&[]), wanted(&["there"]).attributes(), wanted(&["none", "there"]), wanted(&["none"])];
        let waiting = |objects: &Combined| objects.reads.lock().get("d").map_or(0, VecDeque::len);
        let (answers, operations, _) = together(ops, waiting, None, |objects, op| objects.read("d", op));
        let answers: Vec<Reply> = answers.into_iter().collect::<Result<_>>().unwrap();
        assert_eq!(operations, 2);
        assert_eq!(answers.iter().map(|answer| answer.entries.len()).collect::<Vec<_>>(), [0, 1, 1, 0]);
        assert_eq!(answers.iter().map(|answer| answer.attributes.len()).collect::<Vec<_>>(), [0, 1, 0, 0]);
    }
}
