//! Two transactions that stage the same names in opposite orders: each finds the other in its way, and one gives way.

use std::sync::Arc;
use std::time::Duration;

use super::{begin, stage};
use crate::rados::fs::path::Path;
use crate::rados::fs::record::{Tag, name_key};
use crate::rados::fs::tests::{CHUNK, World, clean, content, put, tree};
use crate::rados::fs::transaction::{Transaction, object};
use crate::rados::fs::{Clock, FileSystem, FsOptions, Id, Replace};
use crate::rados::{Code, Result, SimCluster, SimFault};

/// A clock that goes faster than others, and can be put forward.
#[derive(Debug)]
struct FastClock {
    begin: std::time::Instant,
    factor: u32,
    skipped_ms: std::sync::atomic::AtomicU64,
}

impl FastClock {
    fn new(factor: u32) -> Arc<Self> {
        Arc::new(Self { begin: std::time::Instant::now(), factor, skipped_ms: 1_000_000.into() })
    }

    fn skip(&self, time: Duration) {
        self.skipped_ms.fetch_add(time.as_millis() as u64, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Clock for FastClock {
    fn now_ms(&self) -> u64 {
        let passed = self.begin.elapsed() * self.factor;
        self.skipped_ms.load(std::sync::atomic::Ordering::SeqCst) + passed.as_millis() as u64
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time / self.factor);
    }
}

/// Replaces two files of two directories, by one task.
fn replacing_both(fs: &FileSystem, who: &str) -> Result<Transaction> {
    let transaction = begin(fs)?;
    let attempt = transaction.attempt("0", "0")?;
    for path in ["/1/x", "/2/x", "/2/new/x"] {
        stage(&attempt, path, Replace::File, &content(who, 300))?;
    }
    attempt.commit()?;
    Ok(transaction)
}

/// What came of two transactions that want the same names in opposite orders.
struct Crossed {
    ours: Result<()>,
    theirs: Result<()>,
    /// Whether each was held up by the other.
    is_circle: bool,
    operations: u64,
}

/// How two transactions get into each other's way.
#[derive(Clone, Copy)]
struct Crossing {
    /// Before which operation of its commit the first one is stopped.
    stop: u64,
    /// Before which one the other was stopped until then; if it was not, it begins then.
    others: Option<u64>,
    /// Which of them is the one that gives way.
    gives_way: Gives,
    fault: Option<(u64, SimFault)>,
    lease: Duration,
    factor: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gives {
    First,
    Other,
}

fn crossing_options(lease: Duration) -> FsOptions {
    FsOptions { chunk_bytes: CHUNK as u32, at_once: 1, move_lease: lease, patience: lease * 4, ..FsOptions::default() }
}

fn two_directories(fs: &FileSystem) {
    for path in ["/1", "/2"] {
        fs.create_directory(path).unwrap();
        put(fs, &format!("{path}/x"), &content("before", 300)).unwrap();
    }
}

/// Who has staged the file x of a directory of the root.
fn stager_of_x(fs: &FileSystem, directory: &str) -> Option<Id> {
    let path = Path::parse("look", "/x").unwrap();
    let id = fs.walk("look", &path, &[directory]).unwrap();
    let look = fs.look(id, vec![name_key("x")]).unwrap().unwrap();
    match look.dentry("x").unwrap().unwrap().tag {
        Some(Tag::Staged { transaction, .. }) => Some(transaction),
        _ => None,
    }
}

/// Operations of a commit before the one that stages the first name.
fn operations_before_staging() -> u64 {
    for number in 0.. {
        let (world, fs) = World::new();
        two_directories(&fs);
        let transaction = replacing_both(&fs, "ours").unwrap();
        let (client, committing) = world.client();
        let (_, watcher) = world.client();
        let is_staged = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = Arc::clone(&is_staged);
        client.pause_at(number, move || {
            seen.store(stager_of_x(&watcher, "1").is_some(), std::sync::atomic::Ordering::SeqCst);
        });
        committing.transaction(transaction.id()).commit().unwrap();
        if is_staged.load(std::sync::atomic::Ordering::SeqCst) {
            return number - 1;
        }
    }
    unreachable!()
}

/// The other one is stopped, perhaps; then the two directories change their names, so that who begins to commit later stages
/// them in the opposite order. When the first one is stopped the other one goes on, until it is held up or has done.
fn cross(crossing: Crossing) -> Crossed {
    let Crossing { stop, others, gives_way, fault, lease, factor } = crossing;
    let (cluster, clock) = (SimCluster::default(), FastClock::new(factor));
    let options = crossing_options(lease);
    let pools = || {
        let client = cluster.client();
        (client.clone(), client.replicated("meta"), client.erasure_coded("data"))
    };
    let (_, meta, data) = pools();
    let maker = FileSystem::create_on(meta, data, "data", clock.clone(), options).unwrap();
    let open = || {
        let (client, meta, data) = pools();
        (client, FileSystem::open_on(meta, data, clock.clone(), options).unwrap())
    };
    let ((client, fs), (other_client, other), (_, watcher)) = (open(), open(), open());
    two_directories(&maker);
    let (one, two) = (replacing_both(&maker, "one").unwrap().id(), replacing_both(&maker, "two").unwrap().id());
    let (least, greatest) = (one.min(two), one.max(two));
    let (our_id, their_id) = if gives_way == Gives::First { (greatest, least) } else { (least, greatest) };
    let (ours, theirs) = (fs.transaction(our_id), other.transaction(their_id));

    let (tell, told) = std::sync::mpsc::channel();
    let begin_theirs = move || {
        std::thread::spawn(move || {
            let _ = tell.send(theirs.commit());
        })
    };
    let rename = |fs: &FileSystem| {
        for (from, to) in [("/1", "/3"), ("/2", "/1"), ("/3", "/2")] {
            fs.rename(from, to, Replace::Never).unwrap();
        }
    };
    let is_circle = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (circle, watching) = (Arc::clone(&is_circle), watcher.clone());
    // Until it is held up, or has done.
    let watch = move |thread: &std::thread::JoinHandle<()>, staged_first: &str| {
        let is_held_up = || {
            let mut found = false;
            let see = |_: &object::Look, _: &[u8], _: &[u8]| {
                found = true;
                Ok(())
            };
            watching.each_record(their_id, object::WAITS, see).unwrap();
            found
        };
        while !thread.is_finished() && !is_held_up() {
            std::thread::yield_now();
        }
        let in_the_way = !thread.is_finished() && stager_of_x(&watching, staged_first) == Some(their_id);
        circle.store(in_the_way, std::sync::atomic::Ordering::SeqCst);
    };
    match others {
        None => {
            let watcher = watcher.clone();
            client.pause_at(stop, move || {
                rename(&watcher);
                watch(&begin_theirs(), "1");
            });
        }
        Some(number) => {
            let ((stopped, is_stopped), (go_on, goes_on)) =
                (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
            other_client.pause_at(number, move || {
                let _ = stopped.send(());
                let _ = goes_on.recv();
            });
            let thread = begin_theirs();
            is_stopped.recv().unwrap();
            rename(&watcher);
            client.pause_at(stop, move || {
                drop(go_on);
                watch(&thread, "2");
            });
        }
    }
    let begin = client.operations();
    if let Some((after, fault)) = fault {
        client.fail_at(stop + after, fault);
    }
    let committed = ours.commit();
    let operations = client.operations() - begin;
    if operations <= stop {
        // It was not stopped, so the other one has not gone on.
        return Crossed { ours: committed, theirs: Ok(()), is_circle: false, operations };
    }
    let theirs = told.recv().unwrap();
    cluster.settle();
    for _ in 0..4 {
        clock.skip(Duration::from_secs(25 * 3600));
        watcher.collect().unwrap();
    }
    let world = World { cluster: cluster.clone(), clock: Arc::default() };
    let what =
        format!("stopped at {stop} and {others:?}, {gives_way:?} gives way, {fault:?}: {committed:?}, {theirs:?}");
    clean(&world, &watcher, &what);
    let tree = tree(&watcher);
    let of = |path: &str| tree.get(path).and_then(Option::as_ref).and_then(|bytes| bytes.first().copied());
    // Whoever was last has both.
    assert_eq!(of("/1/x"), of("/2/x"), "{what}");
    let has = |who: &str| of("/1/x") == content(who, 1).first().copied();
    assert!(has("one") || has("two") || has("before"), "{what}");
    assert!(!has("before") || committed.is_err() && theirs.is_err(), "{what}");
    let is_circle = is_circle.load(std::sync::atomic::Ordering::SeqCst);
    Crossed { ours: committed, theirs, is_circle, operations }
}

#[test]
fn two_that_stage_the_same_names_in_opposite_orders_are_both_committed() {
    // They are not taken for dead if this machine stands still for half a minute.
    let (lease, factor) = (Duration::from_secs(600), 20);
    let crossing = Crossing { stop: 0, others: None, gives_way: Gives::First, fault: None, lease, factor };
    let both = |crossing: Crossing| {
        let crossed = cross(crossing);
        let is_ok = crossed.ours.is_ok() && crossed.theirs.is_ok();
        assert!(is_ok, "stopped at {}: {:?}, {:?}", crossing.stop, crossed.ours, crossed.theirs);
        crossed
    };
    for stop in 0.. {
        if both(Crossing { stop, ..crossing }).operations <= stop {
            break;
        }
    }
    // Each has found out what to do before the other has staged anything; then one has staged one directory.
    let first = operations_before_staging();
    for gives_way in [Gives::First, Gives::Other] {
        for stop in first..first + 3 {
            let crossed = both(Crossing { stop, others: Some(first), gives_way, ..crossing });
            assert_eq!(crossed.is_circle, stop == first + 1, "stopped at {stop}");
        }
    }
}

#[test]
fn who_dies_or_hears_nothing_while_it_gives_way_leaves_all_or_nothing() {
    let first = operations_before_staging();
    let faults = [SimFault::DieBefore, SimFault::DieAfter, SimFault::LoseReply, SimFault::Late(3)];
    for after in 1..16 {
        for fault in faults.into_iter().chain([SimFault::Refuse(Code::NO_SPACE)]) {
            // What must hold is looked at there. Leases are short, so who is waited for may be taken for dead.
            cross(Crossing {
                stop: first + 1,
                others: Some(first),
                gives_way: Gives::First,
                fault: Some((after, fault)),
                lease: Duration::from_secs(60),
                factor: 500,
            });
        }
    }
}
