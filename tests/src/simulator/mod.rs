//! A simulation of the whole database: statements of several sessions over a failing disk, and a
//! crash after every operation.
//!
//! 1. A *life* is a database from its opening to its end. It runs on a [`SimVolume`] that keeps its
//!    contents after every operation. The seed schedules the sessions. Each statement must return
//!    what the [model](model::Model) predicts.
//! 2. While a committing statement runs, a crash may reveal the state before it or the one after
//!    it. Before it begins and after its acknowledgment only one state is permitted. Each moment of
//!    the life therefore has one or two permitted states.
//! 3. At the end, for every operation, images of a crash after it are made and
//!    [judged](judge::Judge): the image must open and hold a permitted state.
//! 4. The next life begins with one of these images, with the volume as of a kill of the process,
//!    or with the closed database.
//!
//! In some lives the device fails: operations, syncs, reads, or for a while all operations that
//! allocate space. Readers must not see a statement that fails then. If the database still accepts
//! commits, the statement must be absent after a crash as well. If it refuses them, the statement
//! may be present.
//!
//! Everything is a function of the seed: one thread, no clock, names from the seed in place of
//! random ones.

// A failure here is one of the simulator itself.
#![allow(clippy::expect_used)]

mod judge;
mod model;
mod workload;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::join_all;
use onehop_engine::arrow::array::AsArray;
use onehop_engine::arrow::datatypes::Int64Type;
use onehop_engine::backup::backup_volume;
use onehop_engine::{Database, DatabaseOptions, Error, ErrorKind, Output, Session};
use onehop_io::{CrashImage, CrashPoint, Faults, Replay, SimVolume, Volume};
use onehop_store::explore::Random;
use onehop_store::{mutant, simulation};
use tokio::runtime::Runtime;

use self::judge::{Judge, add_rows};
use self::model::{Model, Outcome, Rows, State, Statement};
use self::workload::Workload;

/// The options of a simulated seed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of lives. Each continues from the end of the one before.
    pub lives: usize,
    /// The number of statements in a life.
    pub statements: usize,
    /// The number of sessions.
    pub sessions: usize,
    /// The number of crash images after each operation.
    pub images: usize,
    /// The interval of thorough checks: one image in this number.
    pub thorough: u64,
    /// The interval of backups: another process backs up one life in this number while it runs.
    pub backups: u64,
    /// True if devices fail, too.
    pub has_faults: bool,
    /// A precaution that the engine omits.
    pub mutant: Option<&'static str>,
    /// Syncs that the disk omits.
    pub forgotten: Option<fn(&str) -> bool>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lives: 2,
            statements: 10,
            sessions: 3,
            images: 1,
            thorough: 32,
            backups: 4,
            has_faults: true,
            mutant: None,
            forgotten: None,
        }
    }
}

/// The counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// The number of seeds.
    pub seeds: u64,
    /// The number of statements.
    pub statements: u64,
    /// The number of statements that failed because a device did.
    pub failed: u64,
    /// The number of statements that were stopped during a slow device access.
    pub stopped: u64,
    /// The number of operations that were followed by a crash.
    pub points: u64,
    /// The number of judged images of these crashes.
    pub images: u64,
    /// The number of distinct images, within each seed.
    pub distinct: u64,
    /// The number of backups that were made and opened.
    pub backups: u64,
    /// A hash of the whole run.
    pub trace: u64,
}

impl Counts {
    /// Returns the sum of both.
    pub fn with(self, other: Self) -> Self {
        Self {
            seeds: self.seeds + other.seeds,
            statements: self.statements + other.statements,
            failed: self.failed + other.failed,
            stopped: self.stopped + other.stopped,
            points: self.points + other.points,
            images: self.images + other.images,
            distinct: self.distinct + other.distinct,
            backups: self.backups + other.backups,
            trace: self.trace.wrapping_add(other.trace),
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, statements, failed, stopped, points, images, distinct, backups, trace: _ } = self;
        write!(
            f,
            "{seeds} seeds, {statements} statements ({failed} failed with the device, {stopped} were stopped), {points} crash points, \
             {images} images, {distinct} different, {backups} backups"
        )
    }
}

/// A violation.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The number of the life, from 0.
    pub life: usize,
    /// The operation after which the machine crashed, and the kind of image; `None` if the
    /// violation was found while the database was open.
    pub crash: Option<(String, CrashImage)>,
    /// The description of the violation.
    pub reason: String,
    /// The statements and operations, in order.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, life {}: {}", self.seed, self.life, self.reason)?;
        if let Some((event, image)) = &self.crash {
            writeln!(f, "after a crash that leaves {image:?} after operation {}", event.trim_start())?;
        }
        let skipped = self.trace.len().saturating_sub(120);
        if skipped > 0 {
            writeln!(f, "    ... {skipped} lines before")?;
        }
        self.trace.iter().skip(skipped).try_for_each(|line| writeln!(f, "    {line}"))?;
        write!(f, "to see it again: make simulate SEED={} SEEDS=1", self.seed)
    }
}

/// Returns options with which few rows make segments, and nothing happens in the background.
fn options() -> DatabaseOptions {
    let settings = [
        ("threads", "1"),
        ("exec.mode", "datafusion"),
        ("lock_timeout", "1ms"),
        ("storage.block_rows", "1024"),
        ("storage.segment_rows", "1024"),
        ("storage.fresh_rows", "20"),
        ("storage.checkpoint_rows", "0"),
    ];
    let settings = settings.map(|(name, value)| (name.to_string(), value.to_string()));
    DatabaseOptions { settings: settings.into(), ..DatabaseOptions::default() }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime without threads")
}

/// Simulates a seed. On a thread with [`STACK_BYTES`](onehop_engine::STACK_BYTES) no work needs a
/// stack of its own.
///
/// # Errors
/// Returns the first violation.
pub fn simulate(seed: u64, options: &Options) -> Result<Counts, Box<Failure>> {
    simulation::simulate(Some(seed));
    mutant::leave_out(options.mutant);
    let mut simulator = Simulator::new(seed, options);
    // Also runs on a panic.
    let _ends = Ends;
    let outcome = simulator.run();
    outcome.map(|()| simulator.counts)
}

/// The number of the operation that grows a new store to its initial length.
const GROW_STORE: u64 = 3;

/// The minimum number of slots: a store of this size hardly has space for a catalog and some rows.
const LEAST_SLOTS: u64 = 12;
const SLOT_BYTES: u64 = 4096;

/// One in `STOPS` statements is stopped during a slow access, one of the first `STOPS_WITHIN`.
const STOPS: u64 = 6;
const STOPS_WITHIN: u64 = 12;

struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        mutant::leave_out(None);
        simulation::simulate(None);
    }
}

struct Simulator<'a> {
    seed: u64,
    options: &'a Options,
    random: Random,
    judge: Judge,
    counts: Counts,
    /// True if the store is created on a nearly full device, and cannot grow as it must in its
    /// first life.
    is_small: bool,
}

/// The permitted states from an operation on.
struct Moment {
    operations: u64,
    allowed: Vec<State>,
}

/// One database from its opening to its end.
struct Life {
    number: usize,
    volume: SimVolume,
    model: Model,
    moments: Vec<Moment>,
    /// The segments of acknowledged commits, with the number of operations at their first mention.
    known: BTreeMap<String, u64>,
    /// The segments that were already in lost+found.
    lost: BTreeSet<String>,
    statements: Vec<(u64, String)>,
    /// True after a commit has failed half-way, so that the database accepts no others.
    is_in_doubt: bool,
}

impl Life {
    fn allow(&mut self, allowed: Vec<State>) {
        self.moments.push(Moment { operations: self.volume.operations(), allowed });
    }

    fn say(&mut self, line: String) {
        self.statements.push((self.volume.operations(), line));
    }
}

impl<'a> Simulator<'a> {
    fn new(seed: u64, options: &'a Options) -> Self {
        let judge = Judge::new(self::options(), options.thorough);
        let counts = Counts { seeds: 1, ..Counts::default() };
        let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let is_small = options.has_faults && random.below(6) == 0;
        Self { seed, options, random, judge, counts, is_small }
    }

    fn run(&mut self) -> Result<(), Box<Failure>> {
        let mut start = (SimVolume::default(), vec![State::default()]);
        for number in 0..self.options.lives {
            start = self.live(number, start.0, start.1)?;
        }
        (self.counts.images, self.counts.distinct) = (self.judge.images, self.judge.distinct());
        Ok(())
    }

    fn failure(&self, life: &Life, points: &[CrashPoint], until: u64, reason: String) -> Box<Failure> {
        let mut statements = life.statements.iter().filter(|(operations, _)| *operations <= until).peekable();
        let mut trace = Vec::new();
        for point in points.iter().filter(|point| point.operations() <= until) {
            while let Some((_, line)) = statements.next_if(|(operations, _)| *operations < point.operations()) {
                trace.push(line.clone());
            }
            trace.push(point.event().to_string());
        }
        trace.extend(statements.map(|(_, line)| line.clone()));
        Box::new(Failure { seed: self.seed, life: life.number, crash: None, reason, trace })
    }

    /// Runs a life, and the crashes in it. Returns the volume and the permitted states of the next
    /// one.
    fn live(
        &mut self,
        number: usize,
        volume: SimVolume,
        start: Vec<State>,
    ) -> Result<(SimVolume, Vec<State>), Box<Failure>> {
        // Judged on a copy, so that the database itself has opened only the files that it has read.
        let judged = match number {
            0 => Ok((0, BTreeSet::new())),
            _ => {
                let judged = self.judge.judge(&volume.crash_image(CrashImage::Everything), &start, &runtime());
                judged.map(|(place, held)| (place, held.lost.clone()))
            }
        };
        let (state, lost, wrong) = match judged {
            Ok((place, lost)) => (start[place].clone(), lost, None),
            Err(reason) => (State::default(), BTreeSet::new(), Some(reason)),
        };
        let model = Model::new(state, self.options.sessions, number);
        let mut life = Life {
            number,
            volume: volume.clone(),
            model,
            moments: Vec::new(),
            known: BTreeMap::new(),
            lost,
            statements: Vec::new(),
            is_in_doubt: false,
        };
        if let Some(reason) = wrong {
            return Err(self.failure(&life, &[], 0, format!("as it begins, {reason}")));
        }
        volume.set_faults(self.faults(number));
        volume.record();
        life.allow(start);
        let lived = self.play(&mut life);
        let points = volume.take_recording();
        volume.set_faults(Faults { forgotten: self.options.forgotten, ..Faults::default() });
        self.counts.trace = self.counts.trace.wrapping_mul(31) ^ volume.trace();
        if let Err(reason) = lived {
            return Err(self.failure(&life, &points, u64::MAX, reason));
        }
        self.crash(&life, &points)?;
        if self.random.below(self.options.backups) == 0 {
            self.back_up(&life, &points)?;
        }
        // The next life. After a failed sync has lost names, the machine is restarted.
        let has_lost_names = points.iter().any(|point| point.event().ends_with("of names fails"));
        Ok(match self.random.below(4) {
            0 if !has_lost_names => (volume.kill_image(), self.allowed(&life, u64::MAX)),
            _ => {
                let point = &points[self.random.below(points.len() as u64) as usize];
                (point.image(self.image()), self.allowed(&life, point.operations()))
            }
        })
    }

    fn allowed(&self, life: &Life, operations: u64) -> Vec<State> {
        let last = life.moments.iter().rfind(|moment| moment.operations <= operations);
        last.map(|moment| moment.allowed.clone()).unwrap_or_default()
    }

    fn faults(&mut self, life: usize) -> Faults {
        let mut faults = Faults { seed: self.random.draw(), forgotten: self.options.forgotten, ..Faults::default() };
        if !self.options.has_faults {
            return faults;
        }
        if self.is_small && life == 0 {
            faults.full = GROW_STORE..GROW_STORE + 2 + self.random.below(3);
            faults.longest = Some((LEAST_SLOTS + self.random.below(LEAST_SLOTS)) * SLOT_BYTES);
            return faults;
        }
        match self.random.below(if self.is_small { 3 } else { 8 }) {
            0..=1 => faults.failing = (0..1 + self.random.below(2)).map(|_| self.random.below(90)).collect(),
            2 => {
                let from = self.random.below(90);
                faults.full = from..from + 1 + self.random.below(60);
            }
            3 => {
                let from = self.random.below(200);
                faults.unreadable = from..from + 1 + self.random.below(3);
            }
            _ => {}
        }
        faults
    }

    fn image(&mut self) -> CrashImage {
        match self.random.below(8) {
            0 => CrashImage::Durable,
            1 => CrashImage::Everything,
            2 => CrashImage::Garbled(self.random.draw()),
            _ => CrashImage::Random(self.random.draw()),
        }
    }

    /// Backs the database up in another process while it is written to. The copy must hold one of
    /// the states of that time, durable or about to be.
    fn back_up(&mut self, life: &Life, points: &[CrashPoint]) -> Result<(), Box<Failure>> {
        // Before the store has its name there is nothing to copy.
        let first = points.iter().position(|point| point.image(CrashImage::Everything).open("store").is_ok());
        let Some(first) = first else { return Ok(()) };
        let first = first + self.random.below((points.len() - first) as u64) as usize;
        let replay =
            Replay::new(points.to_vec(), first, self.random.draw(), [4, 16, 64][self.random.below(3) as usize]);
        let from: Arc<dyn Volume> = Arc::new(replay.clone());
        let (copy, runtime) = (SimVolume::default(), runtime());
        let to: Arc<dyn Volume> = Arc::new(copy.clone());
        let outcome = backup_volume(&from, &to).map_err(|e| e.to_string()).and_then(|_| {
            let (from, until) = (points[first].operations(), points[replay.now()].operations());
            let meanwhile = life.moments.iter().filter(|moment| (from..=until).contains(&moment.operations));
            let meanwhile = meanwhile.flat_map(|moment| moment.allowed.clone());
            let allowed: Vec<State> = self.allowed(life, from).into_iter().chain(meanwhile).collect();
            self.judge.judge(&copy, &allowed, &runtime)
        });
        self.counts.backups += 1;
        match outcome {
            Ok(_) => Ok(()),
            Err(reason) => {
                let until = points[replay.now()].operations();
                let reason = format!("a backup from operation {} to {until}: {reason}", points[first].operations());
                Err(self.failure(life, points, until, reason))
            }
        }
    }

    /// Opens the database, and runs statements until the end of the life.
    fn play(&mut self, life: &mut Life) -> Result<(), String> {
        let opened = Database::on_volume(Arc::new(life.volume.clone()), &options());
        let database = match opened {
            Ok(database) => database,
            Err(_) if life.volume.failures() > 0 => {
                life.say("opening fails with the device".into());
                return Ok(());
            }
            Err(e) => return Err(format!("opening: {e}")),
        };
        let state = life.model.committed.clone();
        life.allow(vec![state]);
        let runtime = runtime();
        let ended = self.work(life, &database, &runtime);
        drop(database);
        drop(runtime);
        ended
    }

    fn work(&mut self, life: &mut Life, database: &Database, runtime: &Runtime) -> Result<(), String> {
        let sessions = (0..self.options.sessions).map(|_| database.session());
        let sessions = sessions.collect::<Result<Vec<Session>, Error>>().map_err(|e| e.to_string())?;
        let mut workload = Workload::new(Random::new(self.random.draw()), self.options.sessions);
        let mut left = self.options.statements;
        while left > 0 {
            left -= 1;
            if let Some(together) = workload.together(&life.model).filter(|_| !life.is_in_doubt) {
                self.together(life, database, runtime, &sessions, &together)?;
            } else {
                let (session, statement) = workload.next(&life.model);
                self.step(life, database, runtime, &sessions, session, &statement)?;
            }
            if life.is_in_doubt {
                left = left.min(2);
            }
        }
        sessions.iter().for_each(Session::roll_back);
        // Uncommitted files are gone by now, and so are removed ones.
        let left = if life.volume.failures() == 0 { judge::strangers(&life.volume, database)? } else { Vec::new() };
        match left.is_empty() {
            true => Ok(()),
            false => Err(format!("nothing is open, and the folder of segments and the catalog differ in {left:?}")),
        }
    }

    /// Runs statements of several sessions concurrently. Each adds rows and commits, and they share
    /// a flush.
    fn together(
        &mut self,
        life: &mut Life,
        database: &Database,
        runtime: &Runtime,
        sessions: &[Session],
        statements: &[(usize, Statement)],
    ) -> Result<(), String> {
        self.counts.statements += statements.len() as u64;
        let (failures, before) = (life.volume.failures(), life.model.committed.clone());
        let (mut next, mut states, mut expected) = (life.model.clone(), vec![before.clone()], Vec::new());
        for (session, statement) in statements {
            life.say(format!("session {session}, at once with others: {statement}"));
            expected.push(next.run(*session, statement));
            states.push(next.committed.clone());
        }
        life.allow(states.clone());
        // The acknowledged statements, with the operations at that time. The first one is the first
        // to hand over.
        let acknowledged: RefCell<Vec<(u64, usize)>> = RefCell::default();
        let volume = life.volume.clone();
        let running = statements.iter().zip(&expected).enumerate().map(|(place, ((session, statement), expected))| {
            let (sql, acknowledged, volume) = (statement.to_string(), &acknowledged, &volume);
            async move {
                let given = given(&sessions[*session], &sql, expected).await;
                if given.is_ok() {
                    acknowledged.borrow_mut().push((volume.operations(), place));
                }
                given
            }
        });
        let given: Vec<Result<Outcome, Error>> = runtime.block_on(join_all(running));
        let mut least = 0;
        for (operations, place) in acknowledged.into_inner() {
            least = least.max(place + 1);
            life.moments.push(Moment { operations, allowed: states[least..].to_vec() });
        }
        if life.volume.failures() > failures && given.iter().any(Result::is_err) {
            self.counts.failed += 1;
            life.say("    one of these fails with the device".into());
            let done = given.iter().take_while(|given| given.is_ok()).count();
            if let Some(late) = given.iter().skip(done).position(Result::is_ok) {
                return Err(format!("statement {} was acknowledged, and one before it was not", done + late));
            }
            life.model = Model::clone(&life.model);
            for (session, statement) in &statements[..done] {
                life.model.run(*session, statement);
            }
            return self.failed(life, database, runtime, sessions, states[done..].to_vec());
        }
        for (((_, statement), given), expected) in statements.iter().zip(&given).zip(&expected) {
            match given {
                Ok(given) if given == expected => {}
                given => return Err(format!("{statement} gives {given:?}, and should give {expected:?}")),
            }
        }
        life.model = next;
        let committed = life.model.committed.clone();
        life.allow(vec![committed]);
        self.known(life, database);
        Ok(())
    }

    /// Runs a statement and compares its result.
    fn step(
        &mut self,
        life: &mut Life,
        database: &Database,
        runtime: &Runtime,
        sessions: &[Session],
        session: usize,
        statement: &Statement,
    ) -> Result<(), String> {
        self.counts.statements += 1;
        let sql = statement.to_string();
        life.say(format!("session {session}: {sql}"));
        let failures = life.volume.failures();
        let mut next = life.model.clone();
        let expected = next.run(session, statement);
        let before = life.model.committed.clone();
        let commits = next.committed != before;
        if commits && !life.is_in_doubt {
            life.allow(vec![before.clone(), next.committed.clone()]);
        }
        let (seen, snapshot) = (versions(database), database.snapshot());
        let may_stop = self.options.has_faults && self.random.below(STOPS) == 0;
        if may_stop {
            let database = database.clone();
            // Completed statements ignore the stop.
            life.volume.call_after(self.random.below(STOPS_WITHIN), move || {
                database.queries().iter().for_each(|query| _ = query.try_stop())
            });
        }
        let given = runtime.block_on(given(&sessions[session], &sql, &expected));
        let was_stopped = may_stop && !life.volume.call_nothing();
        if was_stopped {
            finish(runtime);
        }
        let is_faulty = life.volume.failures() > failures;
        match (&given, &expected) {
            (Ok(given), expected) if given == expected => {
                if life.is_in_doubt && commits {
                    return Err("a commit was accepted after one had failed half-way".to_string());
                }
                life.model = next;
            }
            (Err(e), Outcome::Error(kinds)) if kinds.contains(&e.kind()) => life.model = next,
            (Err(e), _) if life.is_in_doubt && e.kind() == ErrorKind::Io => life.model.fail(session, statement),
            (Err(e), _) if is_faulty => {
                life.say(format!("    fails: {}", e.message()));
                self.counts.failed += 1;
                life.model.fail(session, statement);
                return self.failed(life, database, runtime, sessions, vec![before, next.committed]);
            }
            // A commit was undone before or after the start of this transaction. The engine does
            // not distinguish the two.
            (Err(e), _) if failures > 0 && e.message().contains("this one would stand on, found no room") => {
                life.say("    stands on a commit that found no room".into());
                self.counts.failed += 1;
                life.model.fail(session, statement);
                is_unseen(life, database)?;
            }
            (Err(e), _) if was_stopped && e.kind() == ErrorKind::Cancelled => {
                life.say("    is stopped".into());
                self.counts.stopped += 1;
                life.model.fail(session, statement);
                is_unseen(life, database)?;
            }
            (Err(e), expected) => return Err(format!("{sql} fails, and should give {expected:?}: {e}")),
            (Ok(given), expected) => return Err(format!("{sql} gives {given:?}, and should give {expected:?}")),
        }
        if life.is_in_doubt {
            return Ok(());
        }
        if let Statement::Checkpoint { .. } = statement {
            self.rewritten(life, database, &seen);
        }
        drop(snapshot);
        let committed = life.model.committed.clone();
        life.allow(vec![committed]);
        self.known(life, database);
        Ok(())
    }

    /// Handles a statement that failed because the device did: no reader may see any of it.
    /// `states` are the state before it and those that it may have made.
    fn failed(
        &mut self,
        life: &mut Life,
        database: &Database,
        runtime: &Runtime,
        sessions: &[Session],
        states: Vec<State>,
    ) -> Result<(), String> {
        if life.is_in_doubt {
            return Ok(());
        }
        // Reads of other sessions may be repeated, and return other versions.
        for (session, open) in sessions.iter().enumerate() {
            if life.model.in_transaction(session) {
                life.model.run(session, &Statement::Rollback);
            }
            open.roll_back();
        }
        // A missing table is an error in any case, but a database in doubt reports that first.
        let probe = runtime.block_on(given(&sessions[0], "CHECKPOINT nowhere", &Outcome::Done(None)));
        let refused = probe.is_err_and(|e| e.kind() == ErrorKind::Io);
        if refused {
            life.is_in_doubt = true;
            life.say("    the database is in doubt from now on".into());
            life.allow(states);
        } else {
            life.allow(states[..1].to_vec());
        }
        is_unseen(life, database)
    }

    /// Tells the model which tables the engine has rewritten.
    fn rewritten(&self, life: &mut Life, database: &Database, before: &BTreeMap<String, usize>) {
        let now = versions(database);
        for (name, _) in now.iter().filter(|(name, version)| before.get(*name) != Some(version)) {
            life.model.rewritten(name);
        }
    }

    /// Records the committed segments.
    fn known(&self, life: &mut Life, database: &Database) {
        let operations = life.volume.operations();
        for segment in database.snapshot().tables().flat_map(|table| &table.segments) {
            if !life.known.contains_key(&segment.entry.file) {
                life.known.insert(segment.entry.file.clone(), operations);
            }
        }
    }

    /// Crashes after every operation of a life.
    fn crash(&mut self, life: &Life, points: &[CrashPoint]) -> Result<(), Box<Failure>> {
        let runtime = runtime();
        for point in points {
            self.counts.points += 1;
            let allowed = self.allowed(life, point.operations());
            for _ in 0..self.options.images {
                let image = self.image();
                let judged = self.judge.judge(&point.image(image), &allowed, &runtime);
                let judged = judged.and_then(|(_, held)| kept_rightly(life, point, &held.lost));
                if let Err(reason) = judged {
                    let mut failure = self.failure(life, points, point.operations(), reason);
                    failure.crash = Some((point.event().to_string(), image));
                    return Err(failure);
                }
            }
        }
        Ok(())
    }
}

/// Waits for work that outlives its statement.
fn finish(runtime: &Runtime) {
    while runtime.metrics().num_alive_tasks() > 0 {
        runtime.block_on(tokio::task::yield_now());
    }
}

/// Checks that no reader sees a failed statement.
fn is_unseen(life: &Life, database: &Database) -> Result<(), String> {
    let Ok((tables, views)) = judge::read(database) else { return Ok(()) };
    let held = judge::Held { tables, views, lost: BTreeSet::new() };
    match held.is(&life.model.committed) {
        true => Ok(()),
        false => Err("a statement that failed is seen by others".to_string()),
    }
}

/// Checks that no segment of an acknowledged commit is kept as an unknown one.
fn kept_rightly(life: &Life, point: &CrashPoint, lost: &BTreeSet<String>) -> Result<(), String> {
    let is_known = |name: &&String| life.known.get(*name).is_some_and(|since| *since <= point.operations());
    match lost.iter().filter(|name| !life.lost.contains(*name)).find(is_known) {
        Some(name) => Err(format!("{name} was committed, and is in lost+found")),
        None => Ok(()),
    }
}

/// Returns the versions of tables, which are addresses: the snapshot must stay alive while they are
/// compared.
fn versions(database: &Database) -> BTreeMap<String, usize> {
    let snapshot = database.snapshot();
    snapshot.tables().map(|table| (table.name.clone(), Arc::as_ptr(table).addr())).collect()
}

/// Returns the result of a statement, in the form of the expected one.
async fn given(session: &Session, sql: &str, expected: &Outcome) -> Result<Outcome, Error> {
    let mut stream = match session.sql(sql).await? {
        Output::Done(done) => {
            // Not every statement reports its number of rows.
            let rows = if matches!(expected, Outcome::Done(None)) { None } else { done.rows };
            return Ok(Outcome::Done(rows));
        }
        Output::Rows(stream) => stream,
    };
    let (mut rows, mut count) = (Rows::new(), None);
    while let Some(batch) = stream.next().await {
        let batch = batch?;
        if matches!(expected, Outcome::Count(..)) {
            let column = |index: usize| batch.column(index).as_primitive::<Int64Type>().iter().next().flatten();
            count = Some((column(0).unwrap_or(-1), column(1)));
        } else {
            add_rows(&mut rows, &batch, |_| true);
        }
    }
    Ok(match count {
        Some((count, sum)) => Outcome::Count(count as u64, sum),
        None => Outcome::Rows(rows),
    })
}
