//! Crashes, lost answers and interleavings, at every operation of every change, over pools in memory.
//!
//! Each *scenario* is a file system, one change of it, and what may be seen afterwards: all of it or nothing of it. The change
//! is run once for each operation that it consists of and each fault, then somebody else recovers, and the invariants are
//! looked at: a whole tree, the bytes of every file, no unfinished business and no unknown object after the grace time.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::{Code, Error, Problem, Result, SimClient, SimCluster, SimFault};
use super::{Clock, Depth, FileSystem, FsOptions, Kind, Replace, SimClock, TreeWriter};
use crate::{Hop, Ledger};

pub(super) const CHUNK: usize = 64 << 10;

/// A cluster in memory, and a time that goes on when somebody waits.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub cluster: SimCluster,
    pub clock: Arc<SimClock>,
}

/// One operation after the other, so that they have numbers.
fn options() -> FsOptions {
    FsOptions {
        chunk_bytes: CHUNK as u32,
        window_bytes: 2 * CHUNK,
        waiting_bytes: 0,
        read_ahead_bytes: 2 * CHUNK,
        at_once: 1,
        ..FsOptions::default()
    }
}

impl World {
    pub fn new() -> (Self, FileSystem) {
        let world = Self { cluster: SimCluster::default(), clock: Arc::default() };
        let client = world.cluster.client();
        let (meta, data) = (client.replicated("meta"), client.erasure_coded("data"));
        let fs = FileSystem::create_on(meta, data, "data", world.clock.clone(), options()).unwrap();
        (world, fs)
    }

    /// Somebody else with the same file system.
    pub fn client(&self) -> (SimClient, FileSystem) {
        self.client_with(options())
    }

    pub fn client_with(&self, options: FsOptions) -> (SimClient, FileSystem) {
        let client = self.cluster.client();
        let (meta, data) = (client.replicated("meta"), client.erasure_coded("data"));
        let fs = FileSystem::open_on(meta, data, self.clock.clone(), options).unwrap();
        (client, fs)
    }

    /// All leases and grace times are over, late operations have come, and somebody has collected, more than once.
    pub fn recover(&self) -> FileSystem {
        self.cluster.settle();
        let (_, fs) = self.client();
        for _ in 0..4 {
            self.clock.sleep(Duration::from_secs(25 * 3600));
            fs.collect().unwrap();
        }
        fs
    }
}

/// Bytes that go with a name: the first so many. They are made once, as scenarios are run thousands of times.
pub(super) fn content(name: &str, len: usize) -> Vec<u8> {
    static MADE: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap();
    let bytes = made.entry(name.to_string()).or_default();
    if bytes.len() < len {
        *bytes = name.bytes().cycle().zip(0u32..).map(|(byte, n)| byte ^ (n / 7) as u8).take(len).collect();
    }
    bytes[..len].to_vec()
}

pub(super) fn put(fs: &FileSystem, path: &str, bytes: &[u8]) -> Result<()> {
    let mut writer = fs.create_file(path, Replace::File, Arc::default())?;
    for piece in bytes.chunks(50_000) {
        if let Err(error) = writer.append(piece) {
            writer.abort();
            return Err(error);
        }
    }
    writer.close().map(drop)
}

/// Every path and what it has; directories have nothing.
pub(super) type Tree = BTreeMap<String, Option<Vec<u8>>>;

pub(super) fn tree(fs: &FileSystem) -> Tree {
    fn walk(fs: &FileSystem, path: &str, tree: &mut Tree) {
        for entry in fs.list(path).unwrap() {
            let path = format!("{path}/{}", entry.name);
            match entry.kind {
                Kind::Directory => {
                    tree.insert(path.clone(), None);
                    walk(fs, &path, tree);
                }
                Kind::File => {
                    let mut bytes = Vec::new();
                    fs.open_file(&path).unwrap().reader(0..u64::MAX, Arc::default()).read_to_end(&mut bytes).unwrap();
                    assert_eq!(bytes.len() as u64, entry.len, "{path}");
                    tree.insert(path, Some(bytes));
                }
            }
        }
    }
    let mut all = Tree::new();
    walk(fs, "", &mut all);
    all
}

/// A whole file system without anything left over.
pub(super) fn clean(world: &World, fs: &FileSystem, what: &str) {
    let found = fs.check(Depth::Bytes).unwrap();
    assert!(found.damage.is_empty() && found.unknown.is_empty(), "{what}: {found:?}");
    assert_eq!(found.unfinished, 0, "{what}: {found:?}");
    let meta = world.cluster.names("meta").iter().filter(|name| name.starts_with("d.")).count();
    assert_eq!(meta as u64, found.directories, "{what}: as many objects as directories");
}

pub(super) struct Scenario {
    pub name: &'static str,
    pub before: fn(&World, &FileSystem) -> Result<()>,
    pub change: Change,
}

fn put_into(tree: &TreeWriter, name: &str, len: usize) -> Result<()> {
    let mut writer = tree.create_file(name, Arc::default())?;
    if let Err(error) = writer.append(&content(name, len)) {
        writer.abort();
        return Err(error);
    }
    writer.close().map(drop)
}

fn put_tree(fs: &FileSystem) -> Result<()> {
    let tree = fs.create_tree("/a/c")?;
    let filled = put_into(&tree, "x", 2 * CHUNK + 3).and_then(|()| put_into(&tree, "y", 0));
    match filled {
        Ok(()) => tree.close(),
        Err(error) => {
            tree.abort();
            Err(error)
        }
    }
}

pub(super) fn base(_: &World, fs: &FileSystem) -> Result<()> {
    fs.create_directory_all("/a/b")?;
    fs.create_directory_all("/z")?;
    put(fs, "/a/one", &content("one", 100))?;
    put(fs, "/a/b/two", &content("two", 3 * CHUNK + 17))?;
    put(fs, "/z/three", &content("three", CHUNK))
}

/// The same, and no directory is listed as having unfinished business.
fn quiet(world: &World, fs: &FileSystem) -> Result<()> {
    base(world, fs)?;
    world.recover();
    Ok(())
}

/// The same, and somebody has died who was moving a file, after the moment when it was moved.
fn moved_by_the_dead(world: &World, fs: &FileSystem) -> Result<()> {
    let rename: Change = |fs| fs.rename("/a/b/two", "/z/two", Replace::Never);
    let (elsewhere, other) = World::new();
    base(&elsewhere, &other)?;
    let (client, other) = elsewhere.client();
    let begin = client.operations();
    rename(&other)?;
    // What comes after it: the old name goes, the record goes.
    let last = client.operations() - begin - 2;
    base(world, fs)?;
    let (client, dying) = world.client();
    client.fail_at(last, SimFault::DieBefore);
    let _ = rename(&dying);
    assert!(fs.stat("/a/b/two").is_err() && fs.stat("/z/two").is_ok());
    Ok(())
}

pub(super) fn much_later(fs: &FileSystem) {
    fs.inner.clock.sleep(Duration::from_secs(25 * 3600));
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "write", before: base, change: |fs| put(fs, "/a/new", &content("new", 3 * CHUNK + 5)) },
    Scenario {
        name: "write one that renews its intent",
        before: base,
        change: |fs| put(fs, "/a/b/new", &content("new", 18 * CHUNK)),
    },
    Scenario { name: "write an empty one", before: base, change: |fs| put(fs, "/empty", b"") },
    Scenario { name: "overwrite", before: base, change: |fs| put(fs, "/a/b/two", &content("other", CHUNK + 1)) },
    Scenario { name: "make a directory", before: base, change: |fs| fs.create_directory("/a/c") },
    Scenario { name: "make a directory with files", before: base, change: put_tree },
    Scenario {
        name: "give up a directory with files",
        before: base,
        change: |fs| {
            let tree = fs.create_tree("/a/c")?;
            put_into(&tree, "file", CHUNK)?;
            tree.abort();
            Ok(())
        },
    },
    Scenario { name: "rename a file here", before: base, change: |fs| fs.rename("/a/one", "/a/uno", Replace::Never) },
    Scenario { name: "rename a directory here", before: base, change: |fs| fs.rename("/a", "/y", Replace::Never) },
    Scenario {
        name: "rename over a file here",
        before: |world, fs| base(world, fs).and_then(|()| put(fs, "/a/other", &content("other", CHUNK))),
        change: |fs| fs.rename("/a/one", "/a/other", Replace::File),
    },
    Scenario { name: "move a file", before: base, change: |fs| fs.rename("/a/b/two", "/z/two", Replace::Never) },
    Scenario {
        name: "move a file over one",
        before: base,
        change: |fs| fs.rename("/a/b/two", "/z/three", Replace::File),
    },
    Scenario { name: "move a directory", before: base, change: |fs| fs.rename("/a/b", "/z/b", Replace::Never) },
    Scenario { name: "move a directory up", before: base, change: |fs| fs.rename("/a/b", "/b", Replace::Never) },
    Scenario {
        name: "concatenate",
        before: |world, fs| {
            base(world, fs)?;
            put(fs, "/a/b/part", &content("part", CHUNK + 1))?;
            put(fs, "/a/b/none", b"")
        },
        change: |fs| fs.concat("/a/b", &["two", "none", "part"]).map(drop),
    },
    Scenario {
        name: "concatenate and remove",
        before: |world, fs| {
            base(world, fs)?;
            put(fs, "/a/b/part", &content("part", CHUNK + 1))?;
            fs.concat("/a/b", &["part", "two"]).map(drop)
        },
        change: |fs| fs.remove_file("/a/b/part"),
    },
    Scenario { name: "remove a file", before: base, change: |fs| fs.remove_file("/a/b/two") },
    Scenario { name: "remove a tree", before: base, change: |fs| fs.remove_all("/a") },
    Scenario {
        name: "remove an empty directory",
        before: |world, fs| base(world, fs).and_then(|()| fs.create_directory("/a/empty")),
        change: |fs| fs.remove_directory("/a/empty"),
    },
    Scenario {
        name: "collect",
        before: |world, fs| {
            base(world, fs)?;
            fs.remove_file("/z/three")?;
            fs.remove_all("/a/b")?;
            drop(fs.create_file("/a/lost", Replace::Never, Arc::default())?.append(&content("lost", 2 * CHUNK)));
            much_later(fs);
            fs.collect()?;
            much_later(fs);
            Ok(())
        },
        change: |fs| fs.collect().map(drop),
    },
    Scenario {
        name: "collect a directory that something was moved out of",
        before: |world, fs| {
            moved_by_the_dead(world, fs)?;
            fs.remove_all("/a")?;
            much_later(fs);
            Ok(())
        },
        change: |fs| fs.collect().map(drop),
    },
    Scenario {
        name: "collect a directory that something was moved into",
        before: |world, fs| {
            moved_by_the_dead(world, fs)?;
            fs.remove_all("/z")?;
            much_later(fs);
            Ok(())
        },
        change: |fs| fs.collect().map(drop),
    },
    Scenario { name: "write, first of all", before: quiet, change: |fs| put(fs, "/a/new", &content("new", CHUNK)) },
    Scenario { name: "remove a file, first of all", before: quiet, change: |fs| fs.remove_file("/a/b/two") },
    Scenario {
        name: "move a file, first of all",
        before: quiet,
        change: |fs| fs.rename("/a/b/two", "/z/two", Replace::Never),
    },
];

/// The trees before and after, and how many operations the change has.
pub(super) fn undisturbed(scenario: &Scenario) -> (Tree, Tree, u64) {
    let (world, fs) = World::new();
    (scenario.before)(&world, &fs).unwrap();
    let before = tree(&fs);
    let (client, fs) = world.client();
    let begin = client.operations();
    (scenario.change)(&fs).unwrap();
    let operations = client.operations() - begin;
    let fs = world.recover();
    clean(&world, &fs, scenario.name);
    (before, tree(&fs), operations)
}

/// The change, with a fault at one of its operations: what it says, and what others find.
pub(super) fn disturbed(scenario: &Scenario, number: u64, fault: SimFault) -> (Result<()>, World, FileSystem) {
    let (world, fs) = World::new();
    (scenario.before)(&world, &fs).unwrap();
    let (client, fs) = world.client();
    client.fail_at(number, fault);
    let result = (scenario.change)(&fs);
    (result, world.clone(), fs)
}

pub(super) fn at_every_operation(
    scenarios: &[Scenario],
    faults: &[SimFault],
    check: impl Fn(&str, SimFault, &Result<()>, &Tree, &Tree, &Tree),
) -> u64 {
    let mut runs = 0;
    for scenario in scenarios {
        let (before, after, operations) = undisturbed(scenario);
        assert!(operations > 0);
        for number in 0..operations {
            for &fault in faults {
                let what = format!("{}, {fault:?} at operation {number} of {operations}", scenario.name);
                let (result, world, fs) = disturbed(scenario, number, fault);
                // What others see at once, before anybody recovers.
                let (_, other) = world.client();
                let seen = tree(&other);
                assert!(seen == before || seen == after, "{what}: {:?}, and at once {:?}", result, seen.keys());
                drop(fs);
                let recovered = world.recover();
                clean(&world, &recovered, &what);
                check(&what, fault, &result, &before, &after, &tree(&recovered));
                runs += 1;
            }
        }
    }
    runs
}

#[test]
fn a_client_that_dies_at_any_operation_leaves_all_or_nothing() {
    let runs = at_every_operation(
        SCENARIOS,
        &[SimFault::DieBefore, SimFault::DieAfter],
        |what, _, result, before, after, now| {
            assert!(now == before || now == after, "{what}: {:?}", now.keys());
            if result.is_ok() {
                assert!(now == after, "{what}: it was said to have happened");
            }
        },
    );
    assert!(runs > 200, "{runs}");
}

#[test]
fn an_answer_that_is_lost_is_found_out_or_said_to_be_unknown() {
    let faults = [SimFault::LoseReply, SimFault::LoseRequest];
    at_every_operation(SCENARIOS, &faults, |what, _, result, before, after, now| {
        assert!(now == before || now == after, "{what}: {:?}", now.keys());
        match result {
            Ok(()) => assert!(now == after, "{what}: it was said to have happened"),
            Err(error) if error.problem() == Some(Problem::OutcomeUnknown) || error.is(Code::TIMED_OUT) => {}
            Err(error) => panic!("{what}: {error}"),
        }
    });
}

#[test]
fn an_operation_that_happens_late_does_no_harm() {
    let faults = [SimFault::Late(1), SimFault::Late(2), SimFault::Late(5), SimFault::Late(1000)];
    at_every_operation(SCENARIOS, &faults, |what, _, result, before, after, now| {
        assert!(now == before || now == after, "{what}: {:?}", now.keys());
        if result.is_ok() {
            assert!(now == after, "{what}: it was said to have happened");
        }
    });
}

#[test]
fn a_pool_that_is_full_changes_nothing_and_says_so() {
    at_every_operation(SCENARIOS, &[SimFault::Refuse(Code::NO_SPACE)], |what, _, result, before, after, now| {
        assert!(now == before || now == after, "{what}: {:?}", now.keys());
        match result {
            Ok(()) => assert!(now == after, "{what}: it was said to have happened"),
            Err(error) => assert!(error.is(Code::NO_SPACE) || error.problem().is_some(), "{what}: {error}"),
        }
    });
}

pub(super) type Change = fn(&FileSystem) -> Result<()>;

/// What somebody else does while a client stands still. Any of these may fail.
pub(super) const OTHERS: &[(&str, Change)] = &[
    ("remove all of a", |fs| fs.remove_all("/a")),
    ("remove all of z", |fs| fs.remove_all("/z")),
    ("write a/new", |fs| put(fs, "/a/new", &content("theirs", 70_000))),
    ("write z/two", |fs| put(fs, "/z/two", &content("theirs", 70_000))),
    ("overwrite a/b/two", |fs| put(fs, "/a/b/two", &content("theirs", 70_000))),
    ("overwrite z/three", |fs| put(fs, "/z/three", &content("theirs", 70_000))),
    ("remove a/b/two", |fs| fs.remove_file("/a/b/two")),
    ("move a/b/two to z/two", |fs| fs.rename("/a/b/two", "/z/two", Replace::File)),
    ("move a/b/two to two", |fs| fs.rename("/a/b/two", "/two", Replace::File)),
    ("move a/b to z/b", |fs| fs.rename("/a/b", "/z/b", Replace::Never)),
    ("move z to a/b/z", |fs| fs.rename("/z", "/a/b/z", Replace::Never)),
    ("rename a to y", |fs| fs.rename("/a", "/y", Replace::Never)),
    ("make a/empty/x", |fs| fs.create_directory_all("/a/empty/x")),
    ("write a/empty/x", |fs| put(fs, "/a/empty/x", b"x")),
    ("write a/empty/x when leases are over", |fs| {
        fs.inner.clock.sleep(Duration::from_secs(100));
        put(fs, "/a/empty/x", b"x")
    }),
    ("make a/c/d", |fs| fs.create_directory_all("/a/c/d")),
    ("remove a/b if empty", |fs| fs.remove_directory("/a/b")),
    ("collect", |fs| fs.collect().map(drop)),
    ("collect much later", |fs| {
        for _ in 0..3 {
            much_later(fs);
            fs.collect()?;
        }
        Ok(())
    }),
    ("collect much later, beside new business", |fs| {
        for _ in 0..3 {
            much_later(fs);
            for directory in ["", "/a", "/a/b", "/z"] {
                let path = format!("{directory}/unfinished");
                // Of no interest if the directory is gone.
                if let Ok(mut writer) = fs.create_file(&path, Replace::Never, Arc::default()) {
                    drop(writer.append(&content("unfinished", CHUNK)));
                }
            }
            fs.collect()?;
        }
        Ok(())
    }),
];

/// A file that was there, or was said to be written, and that nobody was told to remove, is there, under one name.
#[test]
fn two_clients_at_once_lose_nothing_whichever_operation_the_other_comes_before() {
    let mut runs = 0;
    for scenario in SCENARIOS {
        let (_, _, operations) = undisturbed(scenario);
        for &(name, other) in OTHERS {
            for number in 0..operations {
                let what = format!("{}, before operation {number} others {name}", scenario.name);
                let (world, fs) = World::new();
                (scenario.before)(&world, &fs).unwrap();
                let before = tree(&fs);
                let (client, fs) = world.client();
                let (_, theirs) = world.client();
                let (tell, told) = std::sync::mpsc::channel();
                client.pause_at(number, move || drop(tell.send(other(&theirs))));
                let ours = (scenario.change)(&fs);
                let theirs = told.try_recv().unwrap_or(Ok(()));
                acceptable(&what, &ours);
                acceptable(&what, &theirs);
                let recovered = world.recover();
                clean(&world, &recovered, &what);
                let after = tree(&recovered);
                // Every content that was there before is there still, unless one of the two that has succeeded, or does not
                // know, was about taking it away.
                let kept = |bytes: &Vec<u8>| after.values().flatten().filter(|has| *has == bytes).count();
                for (path, bytes) in before.iter().filter_map(|(path, bytes)| Some((path, bytes.as_ref()?))) {
                    let named = kept(bytes);
                    assert!(named <= 1, "{what}: {path} has {named} names: {:?}", after.keys());
                    assert!(
                        named == 1 || takes(scenario.name, name, path),
                        "{what}: {path} is lost: {:?}",
                        after.keys()
                    );
                }
                runs += 1;
            }
        }
    }
    assert!(runs > 2000, "{runs}");
}

/// Whether one of two changes is about removing what is under a path, wherever the other has moved it.
fn takes(ours: &str, theirs: &str, path: &str) -> bool {
    let ours_removes = matches!(ours, "remove a tree" | "overwrite")
        || ours.starts_with("remove a file")
        // It is part of another file then.
        || (ours.starts_with("concatenate") && path.starts_with("/a/b/"))
        || (ours == "move a file over one" && path == "/z/three")
        || (ours == "rename over a file here" && path == "/a/other");
    let theirs_removes = theirs.starts_with("remove all of") || theirs.starts_with("overwrite") || theirs == "remove a/b/two"
        // Moved onto something, by theirs or by ours.
        || (theirs == "write z/two" && path.ends_with("/two"))
        || (theirs == "write a/new" && path == "/a/new");
    ours_removes || theirs_removes
}

/// A random number generator whose seed says everything.
pub(super) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    pub fn path(&mut self) -> String {
        let names = ["a", "b", "c"];
        let depth = 1 + self.below(3);
        (0..depth).map(|_| format!("/{}", names[self.below(3) as usize])).collect()
    }
}

/// What random clients have written and been told of.
#[derive(Default)]
pub(super) struct Told {
    /// Contents that are there.
    written: Vec<Vec<u8>>,
    attempts: usize,
}

/// A random change by a new client, in the middle of which another one may come, and which may die or get no answer. Nothing
/// is ever taken away by name, so what was written must be there in the end.
fn random_change(world: &World, random: &mut Random, depth: u32, told: &Arc<Mutex<Told>>) {
    let (client, fs) = world.client();
    if depth > 0 && random.below(4) > 0 {
        let (world, told, seed) = (world.clone(), Arc::clone(told), random.below(u64::MAX >> 1) | 1);
        client.pause_at(random.below(14), move || {
            let mut random = Random(seed);
            for _ in 0..=random.below(3) {
                random_change(&world, &mut random, depth - 1, &told);
            }
        });
    }
    let fault = match random.below(6) {
        0 => Some(SimFault::DieBefore),
        1 => Some(SimFault::DieAfter),
        2 => Some(SimFault::LoseReply),
        3 => Some(SimFault::Late(random.below(40))),
        _ => None,
    };
    if let Some(fault) = fault {
        client.fail_at(random.below(16), fault);
    }
    match random.below(10) {
        0..=2 => {
            let bytes = {
                let mut told = told.lock().unwrap();
                told.attempts += 1;
                content(&format!("{}/", told.attempts), CHUNK / 2 * random.below(5) as usize + told.attempts)
            };
            let path = random.path();
            let write = || -> Result<()> {
                let mut writer = fs.create_file(&path, Replace::Never, Arc::default())?;
                writer.append(&bytes)?;
                writer.close().map(drop)
            };
            if write().is_ok() {
                told.lock().unwrap().written.push(bytes);
            }
        }
        3 => drop(fs.create_directory_all(&random.path())),
        4..=6 => drop(fs.rename(&random.path(), &random.path(), Replace::Never)),
        7 => drop(fs.remove_directory(&random.path())),
        8 => drop(fs.collect()),
        _ => {
            world.clock.sleep(Duration::from_secs([1, 61, 3601, 90_000][random.below(4) as usize]));
            drop(fs.collect());
        }
    }
}

#[test]
fn random_clients_in_the_middle_of_each_other_lose_nothing() {
    let seeds = match std::env::var("ONEHOP_RADOS_SEED").ok().and_then(|seed| seed.parse::<u64>().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..401,
    };
    let mut kept = 0;
    for seed in seeds {
        let (world, fs) = World::new();
        fs.create_directory_all("/a/b").unwrap();
        fs.create_directory_all("/b").unwrap();
        let told = Arc::default();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..12 {
            random_change(&world, &mut random, 3, &told);
        }
        let what = format!("ONEHOP_RADOS_SEED={seed}");
        let recovered = world.recover();
        let found = recovered.check(Depth::Bytes).unwrap();
        assert!(found.damage.is_empty() && found.unfinished == 0, "{what}: {found:?}");
        let after = tree(&recovered);
        let told = told.lock().unwrap();
        for bytes in &told.written {
            let names: Vec<_> =
                after.iter().filter(|(_, has)| has.as_ref() == Some(bytes)).map(|(path, _)| path).collect();
            assert_eq!(names.len(), 1, "{what}: a file of {} bytes has the names {names:?}", bytes.len());
        }
        kept += told.written.len();
    }
    assert!(kept > 0, "nothing was written");
}

pub(super) fn acceptable(what: &str, result: &Result<()>) {
    if let Err(error) = result {
        assert!(matches!(error, Error::Path { .. } | Error::Transaction { .. }), "{what}: {error}");
    }
}

#[test]
fn what_is_damaged_is_not_handed_out() {
    let (world, fs) = World::new();
    put(&fs, "/f", &content("f", 2 * CHUNK + 100)).unwrap();
    let chunk = world.cluster.names("data").into_iter().find(|name| name.ends_with(".1")).unwrap();
    assert!(world.cluster.damage("data", &chunk, 5));
    let file = fs.open_file("/f").unwrap();
    let mut buf = vec![0; 10];
    file.read_into(3, &mut buf, &crate::Ledger::default()).unwrap();
    let error = file.read_into(CHUNK as u64 + 60_000, &mut buf, &crate::Ledger::default()).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { object, .. } if *object == chunk), "{error}");
    assert_eq!(fs.check(Depth::Bytes).unwrap().damage.len(), 1);
}

#[test]
fn a_writer_that_was_silent_for_too_long_is_told_so() {
    let (world, fs) = World::new();
    let mut writer = fs.create_file("/f", Replace::Never, Arc::default()).unwrap();
    writer.append(&content("f", 2 * CHUNK)).unwrap();
    world.recover();
    let error = writer.append(&content("f", 2 * CHUNK)).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::LeaseLost), "{error}");
    assert_eq!(writer.close().unwrap_err().problem(), Some(Problem::LeaseLost));
    let fs = world.recover();
    clean(&world, &fs, "silent");
    assert!(tree(&fs).is_empty());
}

#[test]
fn a_reader_goes_on_with_a_file_that_was_replaced_until_the_grace_time_ends() {
    let (world, fs) = World::new();
    put(&fs, "/f", &content("old", CHUNK)).unwrap();
    let file = fs.open_file("/f").unwrap();
    put(&fs, "/f", &content("new", CHUNK)).unwrap();
    fs.collect().unwrap();
    let mut buf = vec![0; CHUNK];
    assert_eq!(file.read_into(0, &mut buf, &crate::Ledger::default()).unwrap(), CHUNK);
    assert_eq!(buf, content("old", CHUNK));
    world.recover();
    let error = file.read_into(0, &mut buf, &crate::Ledger::default()).unwrap_err().to_string();
    assert!(error.contains("it is missing: /f was removed longer ago than the grace time"), "{error}");
}

#[test]
fn a_file_system_is_not_made_over_files_whose_superblock_is_lost() {
    let (world, fs) = World::new();
    base(&world, &fs).unwrap();
    let client = world.cluster.client();
    let (meta, data) = (client.replicated("meta"), client.erasure_coded("data"));
    let make = || FileSystem::create_on(meta.clone(), data.clone(), "other", world.clock.clone(), options());
    assert!(make().unwrap_err().is(Code::EXISTS));
    super::super::Objects::write(&*meta, "super", super::super::WriteOp::new("lose").remove()).unwrap();
    assert!(matches!(make(), Err(Error::Corrupt { .. })));
}

#[test]
fn concatenation_moves_chunks_and_refuses_what_is_no_file() {
    let (_, fs) = World::new();
    let parts = [content("a", 3 * CHUNK + 17), Vec::new(), content("b", 5), content("c", CHUNK)];
    for (name, bytes) in ["a", "empty", "b", "c"].iter().zip(&parts) {
        put(&fs, name, bytes).unwrap();
    }
    fs.create_directory("/d").unwrap();
    for (names, problem) in [
        (&["a", "gone"][..], Problem::NotFound),
        (&["a", "b", "b"], Problem::NotFound),
        (&["a", "d"], Problem::IsADirectory),
        (&[], Problem::NotFound),
    ] {
        assert_eq!(fs.concat("/", names).unwrap_err().problem(), Some(problem), "{names:?}");
    }
    let old = fs.stat("a").unwrap();
    let reader = fs.open_file("b").unwrap();
    let entry = fs.concat("/", &["a", "empty", "b", "c"]).unwrap();
    assert_eq!(entry, fs.stat("a").unwrap());
    assert_ne!(entry.id, old.id);
    let now = tree(&fs);
    assert_eq!(now.keys().collect::<Vec<_>>(), ["/a", "/d"]);
    assert_eq!(now["/a"], Some(parts.concat()));
    // Somebody still has a part open.
    let mut bytes = Vec::new();
    reader.reader(0..5, Arc::default()).read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, parts[2]);
}

#[test]
fn times_can_be_set() {
    let (_, fs) = World::new();
    put(&fs, "f", b"x").unwrap();
    fs.create_directory("d").unwrap();
    for path in ["f", "d"] {
        let before = fs.stat(path).unwrap();
        fs.set_modified(path, 12_345).unwrap();
        assert_eq!(fs.stat(path).unwrap(), super::Entry { mtime_ms: 12_345, ..before });
    }
    assert_eq!(fs.set_modified("gone", 1).unwrap_err().problem(), Some(Problem::NotFound));
    assert_eq!(fs.set_modified("/", 1).unwrap_err().problem(), Some(Problem::Impossible));
}

/// Chunks of one piece, of several, and of several and a smaller one; bytes that come as pieces, in less, in more, and by chance.
#[test]
fn files_are_what_was_written_however_it_came() {
    let mut random = Random(7);
    for chunk_bytes in [CHUNK, 4 * CHUNK, 8 * CHUNK, 9 * CHUNK] {
        let client = SimCluster::default().client();
        let clock: Arc<SimClock> = Arc::default();
        let options = FsOptions { chunk_bytes: chunk_bytes as u32, ..options() };
        let pools = (client.replicated("meta"), client.erasure_coded("data"));
        let fs = FileSystem::create_on(pools.0, pools.1, "data", clock, options).unwrap();
        let piece = fs.piece_bytes() as u64;
        assert_eq!(piece, chunk_bytes.min(256 << 10) as u64);
        for steps in [piece, piece / 4, piece / 4 + 1, piece * 3, 0] {
            let bytes = content("steps", 2 * chunk_bytes + random.below(2 * piece) as usize);
            let ledger: Arc<Ledger> = Arc::default();
            let mut writer = fs.create_file("f", Replace::File, Arc::clone(&ledger)).unwrap();
            let mut left = bytes.as_slice();
            while !left.is_empty() {
                let step = if steps == 0 { 1 + random.below(3 * piece) } else { steps } as usize;
                let (now, later) = left.split_at(step.min(left.len()));
                writer.append(now).unwrap();
                left = later;
            }
            let entry = writer.close().unwrap();
            assert_eq!(entry.len, bytes.len() as u64);
            let mut read = Vec::new();
            fs.open_file("f").unwrap().reader(0..u64::MAX, Arc::default()).read_to_end(&mut read).unwrap();
            assert!(read == bytes, "chunks of {chunk_bytes}, steps of {steps}");
            let found = fs.check(Depth::Bytes).unwrap();
            assert!(found.damage.is_empty(), "chunks of {chunk_bytes}, steps of {steps}: {found:?}");
            let moved = ledger.snapshot();
            assert_eq!(moved.hop(Hop::HostToStorage), bytes.len() as u64);
            // Whole pieces are copied once, by the library; the last one may be less.
            let again = moved.hop(Hop::HostToHost) - bytes.len() as u64;
            let are_pieces = steps == piece && (chunk_bytes as u64).is_multiple_of(piece);
            assert!(!are_pieces || again == bytes.len() as u64 % piece, "chunks of {chunk_bytes}: {again} twice");
        }
    }
}
