//! A device that does not answer until it is told to: who waits for it can go away at any time, and the others go on.
//!
//! Nothing here has a time limit: what must not wait for the device would wait for ever.

#![allow(clippy::unwrap_used)]

mod support;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use futures::StreamExt;
use onehop_engine::{Database, ErrorKind, Output, QueryState, Session, workers};
use onehop_io::{IoHints, Ledger, LocalFile, ReadAt, Result as IoResult};
use support::{SegmentVolume, made_by, options, rows, run, runtime};
use tokio::runtime::Runtime;

/// Where reads wait.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_shut: bool,
    waiting: usize,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        while state.is_shut {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
        self.changed.notify_all();
    }

    fn shut(&self) {
        self.state.lock().unwrap().is_shut = true;
    }

    fn open(&self) {
        self.state.lock().unwrap().is_shut = false;
        self.changed.notify_all();
    }

    fn wait_for(&self, is_so: impl Fn(usize) -> bool) {
        let mut state = self.state.lock().unwrap();
        while !is_so(state.waiting) {
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// Opens it, however a test ends: those who wait would keep the runtime from ending.
struct OpenAtLast(Arc<Gate>);

impl Drop for OpenAtLast {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[derive(Debug)]
struct GatedFile {
    inner: LocalFile,
    gate: Arc<Gate>,
}

impl ReadAt for GatedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn hints(&self) -> IoHints {
        self.inner.hints()
    }

    fn len(&self) -> IoResult<u64> {
        self.inner.len()
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        self.gate.pass();
        self.inner.try_read_at(offset, buf, ledger)
    }
}

fn sample(runtime: &Runtime) -> (tempfile::TempDir, PathBuf) {
    let sql = "CREATE TABLE t AS SELECT i * 7919 % 1000003 AS a, i AS b FROM (SELECT unnest(range(0, 300000)) AS i)";
    made_by(runtime, sql)
}

/// Sums, rows that leave as they are made, and rows that a LIMIT cuts off.
const QUERIES: [&str; 3] = [
    "SELECT sum(a), max(b), count(*) FROM t",
    "SELECT x.a, y.b FROM t AS x JOIN t AS y ON x.b = y.b",
    "SELECT a, b FROM t WHERE a % 3 = 1 LIMIT 1000000",
];

/// A database whose device answers, with its segments open and none of their blocks in memory.
fn opened(runtime: &Runtime, path: &Path, mode: &str) -> (Arc<Gate>, Database, Session) {
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    let volume = SegmentVolume::open(path, move |inner| Arc::new(GatedFile { inner, gate: Arc::clone(&theirs) }));
    let settings = [("threads", "2"), ("exec.mode", mode), ("io.cache", "0")];
    let database = Database::on_volume(Arc::new(volume), &options(&settings)).unwrap();
    let session = database.session().unwrap();
    runtime.block_on(run(&session, "EXPLAIN SELECT sum(a) FROM t"));
    (gate, database, session)
}

#[test]
fn who_leaves_waits_for_nothing() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    for mode in ["fused", "datafusion"] {
        for sql in QUERIES {
            let (gate, database, session) = opened(&runtime, &path, mode);
            let _open = OpenAtLast(Arc::clone(&gate));
            let expected = runtime.block_on(run(&session, sql));
            gate.shut();
            for _ in 0..3 {
                let leaving = async {
                    let waits = tokio::task::spawn_blocking({
                        let gate = Arc::clone(&gate);
                        move || gate.wait_for(|waiting| waiting > 0)
                    });
                    let rows = async {
                        let Output::Rows(mut rows) = session.sql(sql).await.unwrap() else { panic!("no rows") };
                        rows.next().await.is_some()
                    };
                    tokio::select! {
                        biased;
                        _ = rows => panic!("{mode}, {sql}: rows of a device that does not answer"),
                        _ = waits => {}
                    }
                };
                runtime.block_on(leaving);
                assert_eq!(session.query().state(), QueryState::Cancelled, "{mode}, {sql}");
                // Neither this session nor another one waits for what does not come.
                assert_eq!(runtime.block_on(run(&session, "SELECT 1 + 1")), ["2"]);
                assert_eq!(runtime.block_on(run(&database.session().unwrap(), "SELECT 2 + 2")), ["4"]);
            }
            gate.open();
            assert_eq!(runtime.block_on(run(&session, sql)), expected, "{mode}");
        }
    }
}

#[test]
fn a_statement_s_time_is_over_while_it_waits() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    for mode in ["fused", "datafusion"] {
        for sql in QUERIES {
            let (gate, _database, session) = opened(&runtime, &path, mode);
            let _open = OpenAtLast(Arc::clone(&gate));
            gate.shut();
            runtime.block_on(run(&session, "SET statement_timeout = '20ms'"));
            let error = runtime.block_on(rows(&session, sql)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{mode}, {sql}: {error}");
            runtime.block_on(run(&session, "RESET statement_timeout"));
            assert_eq!(runtime.block_on(run(&session, "SELECT 1 + 1")), ["2"]);
            gate.open();
            assert_eq!(runtime.block_on(run(&session, "SELECT count(a) FROM t")), ["300000"], "{mode}");
        }
    }
}

/// When the device answers again, nothing of what was given up is left.
#[test]
fn what_was_given_up_ends() {
    let runtime = runtime();
    let (_dir, path) = sample(&runtime);
    for mode in ["fused", "datafusion"] {
        let (gate, database, session) = opened(&runtime, &path, mode);
        let _open = OpenAtLast(Arc::clone(&gate));
        gate.shut();
        runtime.block_on(run(&session, "SET statement_timeout = '20ms'"));
        for sql in QUERIES {
            runtime.block_on(rows(&session, sql)).unwrap_err();
        }
        drop((session, database));
        gate.open();
        gate.wait_for(|waiting| waiting == 0);
    }
}

/// Where the system does not let us have the threads that a statement waits for, it would wait for ever.
#[test]
fn threads_that_cannot_start_are_an_error_before_there_is_a_statement() {
    let is_root = rustix::process::getuid().is_root();
    let (passed, output) = support::in_a_process("body_without_threads", "", &[], is_root.then_some(65_534));
    assert!(passed, "{output}");
}

#[test]
#[ignore = "run by threads_that_cannot_start_are_an_error_before_there_is_a_statement"]
fn body_without_threads() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let session = Database::memory(&options(&[("threads", "2")])).unwrap().session().unwrap();
    let sum =
        |runtime: &Runtime| runtime.block_on(rows(&session, "SELECT sum(x) FROM (SELECT unnest(range(0, 9)) AS x)"));
    assert_eq!(sum(&workers(Some(2)).unwrap()).unwrap(), ["36"]);
    let mut limit = getrlimit(Resource::Nproc);
    limit.current = Some(5);
    setrlimit(Resource::Nproc, limit).unwrap();
    let e = workers(Some(2)).unwrap_err();
    assert!(e.kind() == ErrorKind::Resources && e.message().contains("cannot start 8 threads"), "{e}");
    assert!(e.hint().is_some_and(|hint| hint.contains("ulimit -u")), "{e}");
}
