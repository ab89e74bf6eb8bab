//! Crashes and bad moments of the device, at every operation of a script of statements.
//!
//! Model: `onehop_io::SimVolume`. Bytes are durable after a sync of their file, names after a sync of their directory;
//! what is not may be there after a crash, not be there, or be there in part.
//! 1. The script runs with a crash (that operation and all later ones fail), or with a failure of that operation alone,
//!    at operation 0, 1, 2 ... until it runs through. Statements up to some number were acknowledged; at most one was
//!    in flight.
//! 2. From each such end several images are made: nothing that was not synced survives, all of it does, or parts by
//!    seed.
//! 3. Each image is opened. It must hold exactly what the script's acknowledged statements made, or that and what the
//!    one in flight makes, and no segment file that no catalog mentions. A part of them, by a hash of all their bytes, must
//!    take further statements, too; and opening and closing it is itself crashed at each of its operations, and opened again.
//!
//! Not covered: media that lie about syncs (but see the canary, which makes one), and bytes that rot (`corruption.rs`).

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use onehop_engine::{Database, DatabaseOptions, Error, Ledger};
use onehop_io::{CrashImage, IoHints, MemoryVolume, ReadAt, SimVolume, Volume, WriteAt};
use support::{dump, known_files, rows, runtime, small, tiny};
use tokio::runtime::Runtime;

/// One image in so many is opened, used and closed with further crashes at every operation; the others are opened.
const THOROUGH: u64 = 4;

/// Seeds of the images in which parts survive.
const SEEDS: [u64; 4] = [1, 2, 3, 4];

fn script(csv: &str) -> Vec<String> {
    let statements = [
        "CREATE TABLE a (id BIGINT NOT NULL, name VARCHAR, price DECIMAL(10,2))",
        "INSERT INTO a VALUES (1, 'one', 1.50), (2, NULL, 2.25)",
        "CREATE TABLE p (k INTEGER, v VARCHAR, d DATE)
         PARTITION BY RANGE (k) (PARTITION low VALUES LESS THAN (10), PARTITION high VALUES LESS THAN (MAXVALUE))
         CLUSTER BY (v)",
        "INSERT INTO p SELECT value, 'v' || (value % 5), DATE '2024-02-29' FROM (SELECT unnest(range(1, 21)) AS value)",
        "CREATE TABLE h PARTITION BY HASH (id) PARTITIONS 3 CLUSTER BY (name) AS
         SELECT value AS id, 'name ' || (value % 3) AS name FROM (SELECT unnest(range(1, 31)) AS value)",
        "CREATE TABLE big AS SELECT value AS n, value % 7 AS m FROM (SELECT unnest(range(1, 2501)) AS value)",
        "COPY a FROM '{csv}'",
        "CREATE VIEW w AS SELECT m, count(*) AS c FROM big GROUP BY m",
        "CREATE OR REPLACE TABLE a AS SELECT id + 100 AS id, name, price FROM a UNION ALL SELECT id, name, price FROM a",
        "CREATE OR REPLACE VIEW w AS SELECT sum(id) AS s FROM a",
        "INSERT INTO h SELECT n, 'more' FROM big WHERE n < 4",
        "DROP TABLE p",
        "CREATE TABLE IF NOT EXISTS h (other INTEGER)",
        "CREATE TABLE p (again DOUBLE)",
        "INSERT INTO p VALUES (0.5), (NULL)",
        "DROP VIEW w",
        "DROP TABLE a, big",
    ];
    statements.iter().map(|statement| statement.replace("{csv}", csv)).collect()
}

/// Rows that are in no segment, and come and go; transactions; checkpoints.
fn changes() -> Vec<String> {
    let statements = [
        "CREATE TABLE a (id BIGINT NOT NULL, name VARCHAR, price DECIMAL(10,2))",
        "INSERT INTO a VALUES (1, 'one', 1.50), (2, NULL, 2.25), (3, 'three', NULL)",
        "CREATE TABLE p (k INTEGER, v VARCHAR)
         PARTITION BY RANGE (k) (PARTITION low VALUES LESS THAN (10), PARTITION high VALUES LESS THAN (MAXVALUE))
         CLUSTER BY (v)",
        "INSERT INTO p SELECT value, 'v' || (value % 5) FROM (SELECT unnest(range(1, 21)) AS value)",
        "UPDATE a SET price = price * 2 WHERE id = 2",
        "DELETE FROM a WHERE id = 1",
        "CHECKPOINT",
        "DELETE FROM p WHERE k % 3 = 0",
        "UPDATE p SET v = 'x', k = k + 100 WHERE k < 8",
        "BEGIN",
        "INSERT INTO a VALUES (10, 'ten', 10)",
        "DELETE FROM p WHERE v = 'x'",
        "UPDATE a SET name = 'both'",
        "COMMIT",
        "BEGIN IMMEDIATE",
        "DELETE FROM a",
        "ROLLBACK",
        "CHECKPOINT p",
        "INSERT INTO a SELECT value, 'many', value FROM (SELECT unnest(range(20, 1500)) AS value)",
        "BEGIN",
        "INSERT INTO a SELECT value, 'more', value FROM (SELECT unnest(range(1500, 1700)) AS value)",
        "DELETE FROM a WHERE id BETWEEN 30 AND 1600",
        "COMMIT",
        "CHECKPOINT",
        "TRUNCATE p",
        "DROP TABLE a",
    ];
    statements.map(String::from).into()
}

fn csv_file() -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    std::fs::write(file.path(), "id,name,price\n7,seven,7.00\n8,,8.80\n").unwrap();
    file
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Crash,
    Failure,
}

/// How a run of the script ended.
struct End {
    /// Statements that were acknowledged. Making the database is not counted.
    acknowledged: usize,
    error: Option<Error>,
}

/// Runs the script until something fails.
fn play(
    script: &[String],
    options: &DatabaseOptions,
    volume: Arc<dyn Volume>,
    states: &[String],
    runtime: &Runtime,
) -> End {
    let database = match Database::on_volume(volume, options) {
        Ok(database) => database,
        Err(e) => return End { acknowledged: 0, error: Some(e) },
    };
    let session = database.session().unwrap();
    for (acknowledged, statement) in script.iter().enumerate() {
        if let Err(error) = runtime.block_on(rows(&session, statement)) {
            // Whatever became of the statement, readers go on as if it had not been.
            let seen = runtime.block_on(dump(&database)).unwrap();
            assert_eq!(seen, states[acknowledged], "what readers see after {statement} failed with {error}");
            return End { acknowledged, error: Some(error) };
        }
    }
    End { acknowledged: script.len(), error: None }
}

/// What the database holds before the first statement, and after each.
fn states(script: &[String], runtime: &Runtime) -> Vec<String> {
    let database = Database::on_volume(Arc::new(MemoryVolume::new("model")), &tiny()).unwrap();
    let session = database.session().unwrap();
    let mut states = vec![runtime.block_on(dump(&database)).unwrap()];
    for statement in script {
        runtime.block_on(support::run(&session, statement));
        states.push(runtime.block_on(dump(&database)).unwrap());
    }
    states
}

/// Opens images and judges what is in them. Images that are the same, byte by byte, are opened once.
struct Judge<'a> {
    states: &'a [String],
    runtime: Runtime,
    seen: BTreeMap<u64, Result<usize, String>>,
    images: u64,
    recoveries: u64,
}

impl<'a> Judge<'a> {
    fn new(states: &'a [String]) -> Self {
        Self { states, runtime: runtime(), seen: BTreeMap::new(), images: 0, recoveries: 0 }
    }

    /// Whether the images of a volume are what they may be.
    fn check(&mut self, volume: &SimVolume, end: &End) -> Result<(), String> {
        let random = SEEDS.iter().map(|seed| CrashImage::Random(*seed));
        for image in [CrashImage::Durable, CrashImage::Everything].into_iter().chain(random) {
            self.images += 1;
            let state = self.open(&volume.crash_image(image)).map_err(|e| format!("{image:?}: {e}"))?;
            // By content: a statement that changes nothing leaves a state that has two numbers.
            let is_state_after = |statements: usize| self.states.get(statements) == Some(&self.states[state]);
            let is_new = end.error.is_some() && is_state_after(end.acknowledged + 1);
            if !(is_state_after(end.acknowledged) || is_new) {
                let acknowledged = end.acknowledged;
                return Err(format!("{image:?}: {acknowledged} statements were acknowledged, the state is {state}"));
            }
        }
        Ok(())
    }

    /// Opens an image in every way that there is, once; the number of the state it holds.
    fn open(&mut self, image: &SimVolume) -> Result<usize, String> {
        let key = fingerprint(image);
        if let Some(known) = self.seen.get(&key) {
            return known.clone();
        }
        // A commit writes several pages, each of several sectors, so that there are many images: some of them in all ways.
        let outcome = if key.is_multiple_of(THOROUGH) { self.open_thoroughly(image) } else { self.open_once(image) };
        self.seen.insert(key, outcome.clone());
        outcome
    }

    fn open_thoroughly(&mut self, image: &SimVolume) -> Result<usize, String> {
        let copy = image.crash_image(CrashImage::Everything);
        let opened = Database::on_volume(Arc::new(copy.clone()), &tiny()).map_err(|e| format!("opening: {e}"))?;
        let opening = copy.operations();
        drop(opened);
        let operations = copy.operations();
        let copy = image.crash_image(CrashImage::Everything);
        let state = self.open_once(&copy)?;
        self.is_usable(copy, state)?;
        // The machine goes down again while the database is being opened, or closed.
        for operation in 0..operations {
            let dying = image.crash_image(CrashImage::Everything);
            dying.crash_at(operation);
            match Database::on_volume(Arc::new(dying.clone()), &tiny()) {
                Ok(_) if operation < opening => {
                    return Err(format!("operation {operation} of opening failed, and opening did not"));
                }
                Err(e) if operation >= opening => {
                    return Err(format!("operation {operation} is one of closing, and opening failed: {e}"));
                }
                _ => {}
            }
            for left in [CrashImage::Durable, CrashImage::Everything, CrashImage::Random(operation)] {
                self.recoveries += 1;
                let again = self.open_once(&dying.crash_image(left)).map_err(|e| format!("opened again: {e}"))?;
                if again != state {
                    return Err(format!("opened again, the state is {again} and no longer {state}"));
                }
            }
        }
        Ok(state)
    }

    /// Opens an image; the number of the state it holds. It must hold nothing else.
    fn open_once(&self, image: &SimVolume) -> Result<usize, String> {
        let database = Database::on_volume(Arc::new(image.clone()), &tiny()).map_err(|e| format!("opening: {e}"))?;
        let held = self.runtime.block_on(dump(&database)).map_err(|e| format!("reading: {e}"))?;
        let known = known_files(&database);
        let found: BTreeSet<String> =
            image.folder("segments").and_then(|folder| folder.list()).unwrap().into_iter().collect();
        if known != found {
            return Err(format!("segment files are {found:?}, and the catalog knows {known:?}"));
        }
        match self.states.iter().position(|state| *state == held) {
            Some(state) => Ok(state),
            None => Err(format!("the state is none that the script ever made:\n{held}")),
        }
    }

    /// Life goes on after the crash, and what happens then survives another one.
    fn is_usable(&self, image: SimVolume, state: usize) -> Result<(), String> {
        let failed = |e: Error| format!("further statements: {e}");
        let database = Database::on_volume(Arc::new(image.clone()), &tiny()).map_err(failed)?;
        let session = database.session().map_err(failed)?;
        for statement in ["CREATE TABLE fresh (x BIGINT)", "INSERT INTO fresh VALUES (1), (2)"] {
            self.runtime.block_on(rows(&session, statement)).map_err(failed)?;
        }
        let image = image.crash_image(CrashImage::Durable);
        let database = Database::on_volume(Arc::new(image.clone()), &tiny()).map_err(failed)?;
        let session = database.session().map_err(failed)?;
        let fresh = self.runtime.block_on(rows(&session, "SELECT sum(x), count(*) FROM fresh")).map_err(failed)?;
        if fresh != ["3|2"] {
            return Err(format!("further statements: the rows are {fresh:?}"));
        }
        self.runtime.block_on(rows(&session, "DROP TABLE fresh")).map_err(failed)?;
        match self.open_once(&image.crash_image(CrashImage::Durable))? {
            after if after == state => Ok(()),
            after => Err(format!("further statements: the state is {after} and no longer {state}")),
        }
    }
}

/// A hash of all names and bytes of a volume.
fn fingerprint(image: &SimVolume) -> u64 {
    let mut hasher = DefaultHasher::new();
    let operations = image.operations();
    let folders: [Arc<dyn Volume>; 2] = [Arc::new(image.clone()), image.folder("segments").unwrap()];
    // Looking for the folder must not have made it.
    (image.operations() > operations).hash(&mut hasher);
    for folder in folders {
        for name in folder.list().unwrap() {
            let file = folder.open(&name).unwrap();
            let mut bytes = vec![0; file.len().unwrap() as usize];
            if !bytes.is_empty() {
                file.read_at(0, &mut bytes, &Ledger::default()).unwrap();
            }
            (folder.name(), name, bytes).hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn explore(fault: Fault, script: &[String], options: &DatabaseOptions) {
    let states = states(script, &runtime());
    let next = AtomicU64::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let totals = std::thread::scope(|scope| {
        let worker = || {
            let mut judge = Judge::new(&states);
            loop {
                let operation = next.fetch_add(1, SeqCst);
                let volume = SimVolume::default();
                match fault {
                    Fault::Crash => volume.crash_at(operation),
                    Fault::Failure => volume.fail_at(operation),
                }
                let end = play(script, options, Arc::new(volume.clone()), &states, &judge.runtime);
                if let Err(problem) = judge.check(&volume, &end) {
                    panic!("{fault:?} at operation {operation}, after {} statements: {problem}", end.acknowledged);
                }
                if volume.operations() <= operation {
                    assert_eq!(end.acknowledged, script.len());
                    return (operation, judge.images, judge.seen.len() as u64, judge.recoveries);
                }
            }
        };
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let results = handles.into_iter().map(|handle| handle.join().unwrap());
        results.fold((u64::MAX, 0, 0, 0), |a, b| (a.0.min(b.0), a.1 + b.1, a.2 + b.2, a.3 + b.3))
    });
    let (operations, images, opened, recoveries) = totals;
    println!(
        "{fault:?}: {operations} operations of {} statements, {images} images (seeds {SEEDS:?}), {opened} different, \
         {recoveries} crashes while opening",
        script.len()
    );
    assert!(operations > 100 && images > 600, "the script has become too short to mean anything");
}

#[test]
fn a_crash_at_any_operation_leaves_the_old_or_the_new_state() {
    let csv = csv_file();
    explore(Fault::Crash, &script(csv.path().to_str().unwrap()), &tiny());
}

#[test]
fn a_failure_of_any_one_operation_leaves_the_old_or_the_new_state() {
    let csv = csv_file();
    explore(Fault::Failure, &script(csv.path().to_str().unwrap()), &tiny());
}

#[test]
fn a_crash_at_any_operation_leaves_changed_rows_as_they_were_or_are_to_be() {
    explore(Fault::Crash, &changes(), &small());
}

#[test]
fn a_failure_of_any_one_operation_leaves_changed_rows_as_they_were_or_are_to_be() {
    explore(Fault::Failure, &changes(), &small());
}

/// A volume that says it synced, and did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgets {
    SegmentBytes,
    SegmentNames,
    CatalogBytes,
    CatalogName,
}

#[derive(Debug)]
struct Forgetful {
    inner: Arc<dyn Volume>,
    is_segments: bool,
    forgets: Forgets,
}

#[derive(Debug)]
struct ForgetfulFile(Arc<dyn WriteAt>);

impl Forgetful {
    fn forgetful(&self, file: Arc<dyn WriteAt>) -> Arc<dyn WriteAt> {
        let forgets = if self.is_segments { Forgets::SegmentBytes } else { Forgets::CatalogBytes };
        if self.forgets == forgets { Arc::new(ForgetfulFile(file)) } else { file }
    }
}

impl Volume for Forgetful {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn open(&self, name: &str) -> onehop_io::Result<Arc<dyn ReadAt>> {
        self.inner.open(name)
    }

    fn open_for_update(&self, name: &str) -> onehop_io::Result<Arc<dyn WriteAt>> {
        Ok(self.forgetful(self.inner.open_for_update(name)?))
    }

    fn create(&self, name: &str) -> onehop_io::Result<Arc<dyn WriteAt>> {
        Ok(self.forgetful(self.inner.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> onehop_io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> onehop_io::Result<()> {
        self.inner.remove(name)
    }

    fn list(&self) -> onehop_io::Result<Vec<String>> {
        self.inner.list()
    }

    fn sync(&self) -> onehop_io::Result<()> {
        let forgets = if self.is_segments { Forgets::SegmentNames } else { Forgets::CatalogName };
        if self.forgets == forgets { Ok(()) } else { self.inner.sync() }
    }

    fn folder(&self, name: &str) -> onehop_io::Result<Arc<dyn Volume>> {
        Ok(Arc::new(Self { inner: self.inner.folder(name)?, is_segments: true, forgets: self.forgets }))
    }
}

impl ReadAt for ForgetfulFile {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn hints(&self) -> IoHints {
        self.0.hints()
    }

    fn len(&self) -> onehop_io::Result<u64> {
        self.0.len()
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        self.0.try_read_at(offset, buf, ledger)
    }
}

impl WriteAt for ForgetfulFile {
    fn try_write_at(&self, offset: u64, buf: &[u8], ledger: &Ledger) -> io::Result<usize> {
        self.0.try_write_at(offset, buf, ledger)
    }

    fn sync(&self) -> onehop_io::Result<()> {
        Ok(())
    }
}

/// The canary: with any of the syncs left out, the judge above must find an image that is wrong.
#[test]
fn the_judge_notices_every_sync_that_is_left_out() {
    let csv = csv_file();
    let script: Vec<String> = script(csv.path().to_str().unwrap()).into_iter().take(4).collect();
    let states = states(&script, &runtime());
    let mut found = String::new();
    for forgets in [Forgets::SegmentBytes, Forgets::SegmentNames, Forgets::CatalogBytes, Forgets::CatalogName] {
        let mut judge = Judge::new(&states);
        let problem = (0..200).find_map(|operation| {
            let volume = SimVolume::default();
            volume.crash_at(operation);
            let root = Forgetful { inner: Arc::new(volume.clone()), is_segments: false, forgets };
            let end = play(&script, &tiny(), Arc::new(root), &states, &judge.runtime);
            judge.check(&volume, &end).err().map(|problem| (operation, problem))
        });
        let Some((operation, problem)) = problem else { panic!("nobody misses the sync of {forgets:?}") };
        let _ = writeln!(found, "without {forgets:?}, a crash at {operation}: {}", problem.lines().next().unwrap());
    }
    println!("{found}");
}

#[test]
fn after_a_commit_failed_half_way_nothing_is_committed_and_reads_go_on() {
    let runtime = runtime();
    let setup = ["CREATE TABLE t (x BIGINT)", "INSERT INTO t VALUES (1), (2)"];
    let (mut went_on, mut refused) = (0, 0);
    for operation in 0.. {
        let volume = SimVolume::default();
        let database = Database::on_volume(Arc::new(volume.clone()), &tiny()).unwrap();
        let session = database.session().unwrap();
        for statement in setup {
            runtime.block_on(support::run(&session, statement));
        }
        volume.fail_at(volume.operations() + operation);
        let Err(error) = runtime.block_on(rows(&session, "INSERT INTO t VALUES (40)")) else { break };
        assert!(error.message().contains("simulated failure"), "{error}");

        assert_eq!(runtime.block_on(support::run(&session, "SELECT sum(x) FROM t")), ["3"]);
        let other = database.session().unwrap();
        assert_eq!(runtime.block_on(support::run(&other, "SELECT count(*), sum(x) FROM t WHERE x > 1")), ["1|2"]);
        match runtime.block_on(rows(&other, "INSERT INTO t VALUES (500)")) {
            Ok(_) => went_on += 1,
            Err(e) => {
                refused += 1;
                assert_eq!(e.kind(), onehop_engine::ErrorKind::Io);
                assert!(e.message().starts_with("an earlier commit failed half-way"), "{e}");
                assert!(e.hint().is_some_and(|hint| hint.contains("open it again")), "{e}");
                for statement in ["DROP TABLE t", "CREATE VIEW v AS SELECT 1 AS one", "CREATE TABLE u (x INTEGER)"] {
                    let e = runtime.block_on(support::fails(&session, statement));
                    assert!(e.message().starts_with("an earlier commit failed half-way"), "{e}");
                }
                assert_eq!(runtime.block_on(support::run(&session, "SELECT sum(x) FROM t")), ["3"]);
            }
        }
        drop((session, other, database));
        let database = Database::on_volume(Arc::new(volume.clone()), &tiny()).unwrap();
        let session = database.session().unwrap();
        let sum = runtime.block_on(support::run(&session, "SELECT sum(x) FROM t")).remove(0);
        assert!(["3", "43", "503"].contains(&sum.as_str()), "operation {operation}: {sum}");
        runtime.block_on(support::run(&session, "INSERT INTO t VALUES (6000)"));
    }
    println!("{went_on} failures before the commit, {refused} within it");
    assert!(went_on >= 3 && refused >= 4, "{went_on} {refused}");
}
