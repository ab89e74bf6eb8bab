//! Programs that several devices run together give the answers of a naive interpreter, for any
//! division, and failing devices are handled. The devices are emulated: they run programs as the
//! CPU does.
#![allow(clippy::unwrap_used)]

mod programs;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onehop_io::{Hop, Ledger};
use onehop_pipeline::backend::{
    Backend, Control, DeviceRan, Estimate, Hints, Prepared, Rates, Refusal, ShareRan, Take,
};
use onehop_pipeline::cpu::{Answer, Execution, ResultColumn, Worker};
use onehop_pipeline::ir::{self, Aggregate, Direction, JoinKind, Nulls, Pipeline, Probe, Program, Sink, SortKey, Step};
use onehop_pipeline::spread::Spread;
use onehop_pipeline::{ArithmeticOp, Budget, Domain, Error, Expr, Result, Source};
use programs::naive::{expected, sorted};
use programs::random::program;
use programs::tables::{BIGINT, COLUMNS, KEY, LATE, Row, TEXT, TWIN, Table, WIDE, rows_of, table};
use proptest::prelude::*;

/// Fault of a device.
#[derive(Clone, Copy, Debug, Default)]
enum Fault {
    #[default]
    None,
    /// Its driver reports an error after this number of chunks of the answer.
    Fails(usize),
    /// It has too little memory.
    IsFull,
    /// It runs until it is told to stop.
    Hangs,
    /// It has no code for the program.
    Refuses,
}

#[derive(Debug)]
struct Emulated {
    name: String,
    fault: Mutex<Fault>,
    stopped: AtomicBool,
    rows: AtomicU64,
}

#[derive(Clone, Debug)]
struct Handle(Arc<Emulated>);

#[derive(Debug)]
struct Ready {
    device: Arc<Emulated>,
    execution: Execution,
}

impl Emulated {
    fn named(name: &str) -> Arc<Self> {
        let (fault, stopped, rows) = (Mutex::default(), AtomicBool::default(), AtomicU64::default());
        Arc::new(Self { name: name.into(), fault, stopped, rows })
    }
}

impl Backend for Handle {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn description(&self) -> &str {
        "a device that is none"
    }

    fn rates(&self) -> Result<Rates> {
        Ok(Rates {
            copy_bytes_per_sec: 4e12,
            to_device_bytes_per_sec: 5e10,
            to_host_bytes_per_sec: 5e10,
            launch: Duration::ZERO,
            compile: Duration::ZERO,
        })
    }

    fn prepare(&self, execution: &Execution, hints: &Hints) -> std::result::Result<Arc<dyn Prepared>, Refusal> {
        assert_eq!(execution.sources().len(), hints.stored.len());
        match *self.0.fault.lock().unwrap() {
            Fault::Refuses => Err(Refusal("this".into())),
            _ => Ok(Arc::new(Ready { device: Arc::clone(&self.0), execution: execution.clone() })),
        }
    }
}

impl Prepared for Ready {
    fn estimate(&self) -> Estimate {
        Estimate::default()
    }

    fn run(&self, control: &Control<'_>, take: &mut Take<'_>) -> Result<Vec<DeviceRan>> {
        let fault = *self.device.fault.lock().unwrap();
        match fault {
            Fault::Hangs => {
                while !control.cancelled.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.device.stopped.store(true, Relaxed);
                return Err(Error::Cancelled);
            }
            Fault::IsFull => return Err(Error::Memory { what: "a join table".into(), needed: 1000, available: 10 }),
            Fault::None | Fault::Fails(_) | Fault::Refuses => {}
        }
        assert_eq!(control.ledgers.len(), self.execution.sources().len());
        let failed = || Error::device(&self.device.name, "it fell off the bus");
        let mut chunks = 0;
        let mut taken = |columns: Vec<ResultColumn>| {
            if matches!(fault, Fault::Fails(after) if chunks >= after) {
                return Err(failed());
            }
            chunks += 1;
            if columns.first().is_some_and(|column| !column.is_empty()) { take(columns) } else { Ok(()) }
        };
        let mut execution = self.execution.with_budget(1 << 30);
        let mut all = Vec::new();
        for pipeline in 0..execution.pipelines() {
            let stage = execution.stage(pipeline)?;
            let (sender, made) = std::sync::mpsc::channel();
            let send = move |chunk| sender.send(chunk).map_err(|_| Error::Cancelled);
            let mut worker = Worker::new(&stage, &Arc::default()).with_taker(send);
            while worker.step()?.is_some() {
                if control.cancelled.load(Relaxed) {
                    self.device.stopped.store(true, Relaxed);
                    return Err(Error::Cancelled);
                }
                made.try_iter().try_for_each(&mut taken)?;
            }
            let source = self.execution.program().pipelines[pipeline].source;
            let bytes = stage.rows() * 8;
            control.ledgers[source].moved(Hop::HostToDevice, bytes as usize);
            control.ledgers[source].read_blocks(1, stage.rows());
            (control.did_rows)(stage.rows());
            self.device.rows.fetch_add(stage.rows(), Relaxed);
            if let Answer::Rows(rows) = execution.finish(pipeline, &stage, vec![worker])? {
                made.try_iter().chain(rows.chunks).try_for_each(&mut taken)?;
            }
            let (rows, steps, moved_bytes) = (stage.rows(), stage.step_rows(), bytes);
            let skipped = stage.skipped().to_vec();
            all.push(DeviceRan { rows, steps, skipped, moved_bytes, launches: 1, ..DeviceRan::default() });
        }
        match fault {
            Fault::Fails(_) => Err(failed()),
            _ => Ok(all),
        }
    }
}

fn devices(count: usize) -> (Vec<Arc<Emulated>>, Spread) {
    let all: Vec<Arc<Emulated>> = (0..count).map(|number| Emulated::named(&format!("dev:{number}"))).collect();
    let spread =
        Spread::new(all.iter().map(|device| Arc::new(Handle(Arc::clone(device))) as Arc<dyn Backend>).collect());
    (all, spread)
}

/// Result of a run.
struct Ran {
    rows: Vec<Row>,
    pipelines: Vec<DeviceRan>,
    done: u64,
    ledgers: Vec<Arc<Ledger>>,
}

/// Runs a program; `None` if it is refused.
fn run(spread: &Spread, execution: &Execution, cancelled: &AtomicBool) -> Option<Result<Ran>> {
    let stored = vec![None; execution.sources().len()];
    let prepared = spread.divide(execution, &Hints { stored, ..Hints::default() }).ok()?;
    let ledgers: Vec<Arc<Ledger>> = execution.sources().iter().map(|_| Arc::default()).collect();
    let done = AtomicU64::new(0);
    let did_rows = |rows| {
        done.fetch_add(rows, Relaxed);
    };
    let budget = Budget::from(1 << 30);
    let control = Control { cancelled, counts_steps: true, ledgers: &ledgers, did_rows: &did_rows, budget: &budget };
    let mut chunks = Vec::new();
    let ran = prepared.run(&control, &mut |chunk| {
        chunks.push(chunk);
        Ok(())
    });
    let rows = rows_of(&chunks);
    Some(ran.map(|pipelines| Ran { rows, pipelines, done: done.into_inner(), ledgers }))
}

fn executed(program: &Program, tables: &[Arc<dyn Source>]) -> Execution {
    Execution::new(program.clone(), tables.to_vec(), 1 << 30).unwrap()
}

/// Runs a program on `count` devices.
fn on(count: usize, program: &Program, sources: &[Arc<dyn Source>]) -> Result<Ran> {
    run(&devices(count).1, &executed(program, sources), &AtomicBool::new(false)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(300), max_shrink_iters: 1000, ..ProptestConfig::default() })]

    #[test]
    fn however_divided_programs_do_what_the_naive_interpreter_does(
        build in table(0..40, 12),
        facts in prop_oneof![table(0..60, 15), table(1000..2500, 15), table(2900..4200, 300)],
        program in program(),
        kept in any::<[Option<u64>; 2]>(),
        in_memory in any::<[bool; 2]>(),
        count in 1usize..5,
    ) {
        let tables = [build, facts];
        let source = |(table, (kept, in_memory)): (&Table, (Option<u64>, bool))| match kept {
            Some(seed) => table.changed(seed),
            None => table.source(in_memory),
        };
        let sources: Vec<Arc<dyn Source>> = tables.iter().zip(kept.into_iter().zip(in_memory)).map(source).collect();
        let domains: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
        let Ok(shapes) = ir::validate(&program, &domains) else { return Ok(()) };
        let Some(ran) = run(&devices(count).1, &executed(&program, &sources), &AtomicBool::new(false)) else { return Ok(()) };
        match (ran, expected(&program, &shapes, &tables)) {
            (Ok(ran), Ok(expected)) => prop_assert!(expected.allows(&ran.rows), "{:?} {expected:?}\n{program}", ran.rows),
            (Err(Error::OutOfRange { .. } | Error::DivisionByZero { .. }), Err(())) => {}
            (Err(Error::Unsupported(_)), _) => {}
            (ran, expected) => prop_assert!(false, "{:?} {expected:?}\n{program}", ran.map(|ran| ran.rows)),
        }
    }
}

/// Returns rows in blocks with disjoint keys, so that each group is on one device, and NULLs, which
/// are on all.
fn facts(rows: i128) -> Table {
    let row = |v: i128| {
        vec![(v % 7 > 0).then_some(v / 300), Some(v), Some(v % 2), Some(v % 4), Some(v % 900 + 4), Some(v + 4)]
    };
    Table { rows: (0..rows).map(row).collect() }
}

fn pipeline(source: usize, steps: Vec<Step>, sink: Sink) -> Pipeline {
    Pipeline { source, columns: (0..COLUMNS).collect(), steps, sink }
}

fn key(register: usize, direction: Direction, nulls: Nulls) -> SortKey {
    SortKey { expr: Expr::Register(register), direction, nulls }
}

/// Returns programs with all sinks, over joins with a table that every device builds, from another
/// source and from the same one.
fn programs() -> Vec<Program> {
    let register = Expr::Register;
    let groups = |keys: &[usize]| Sink::Aggregate {
        keys: keys.iter().copied().map(register).collect(),
        aggregates: vec![
            Aggregate::CountRows,
            Aggregate::Count(register(KEY)),
            Aggregate::Sum(register(WIDE)),
            Aggregate::Min(register(WIDE)),
            Aggregate::Max(register(TEXT)),
        ],
    };
    let top = |keys: Vec<SortKey>, columns: &[usize]| Sink::Top {
        rows: 50,
        keys,
        columns: columns.iter().copied().map(register).collect(),
    };
    let sinks = [
        groups(&[]),
        groups(&[KEY]),
        groups(&[TEXT, KEY]),
        groups(&[LATE]),
        Sink::Collect { columns: vec![register(WIDE), register(LATE), register(TEXT)] },
        // The order has ties, in which any row may be returned. The interpreter requires the keys
        // as the first columns.
        top(vec![key(TEXT, Direction::Descending, Nulls::Last)], &[TEXT]),
        top(
            vec![key(KEY, Direction::Ascending, Nulls::First), key(WIDE, Direction::Descending, Nulls::Last)],
            &[KEY, WIDE, LATE, TWIN],
        ),
        top(vec![key(WIDE, Direction::Descending, Nulls::Last)], &[WIDE, TEXT]),
    ];
    let mut all = Vec::new();
    for sink in sinks {
        all.push(Program { pipelines: vec![pipeline(1, vec![], sink.clone())] });
        for source in [0, 1] {
            let build =
                pipeline(source, vec![], Sink::Build { keys: vec![register(WIDE)], payload: vec![register(TEXT)] });
            let probe =
                Probe { table: 0, kind: JoinKind::Inner, keys: vec![register(KEY)], payload: vec![0], condition: None };
            all.push(Program { pipelines: vec![build, pipeline(1, vec![Step::Probe(probe)], sink.clone())] });
        }
    }
    all
}

#[test]
fn every_sink_can_be_divided() {
    let tables = [facts(9), facts(5000)];
    for stored in [true, false] {
        let sources: Vec<Arc<dyn Source>> = tables.iter().map(|table| table.source(!stored)).collect();
        let domains: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
        for program in programs() {
            let shapes = ir::validate(&program, &domains).unwrap();
            let expected = expected(&program, &shapes, &tables).unwrap();
            for count in 1..=4 {
                let ran = on(count, &program, &sources).unwrap_or_else(|e| panic!("{e}\n{program}"));
                assert!(expected.allows(&ran.rows), "{count}: {:?}\n{program}", ran.rows);
                let last = ran.pipelines.last().unwrap();
                // A table in memory is one morsel here.
                let shares = if count > 1 && stored { count } else { 0 };
                let read = last.rows + skipped_rows(last, &*sources[1]);
                assert_eq!((read, last.shares.len()), (5000, shares), "{program}");
                let rows: u64 = last.shares.iter().map(|ShareRan { ran, .. }| ran.rows).sum();
                assert!(shares == 0 || rows == last.rows, "{last:?}");
            }
        }
    }
}

#[test]
fn nothing_to_divide_is_the_first_devices() {
    let tables = [facts(9), facts(0)];
    let sources: Vec<Arc<dyn Source>> = tables.iter().map(|table| table.source(true)).collect();
    let domains: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
    for program in programs() {
        let shapes = ir::validate(&program, &domains).unwrap();
        let expected = expected(&program, &shapes, &tables).unwrap();
        assert!(expected.allows(&on(3, &program, &sources).unwrap().rows), "{program}");
    }
}

#[test]
fn keys_of_an_order_need_not_be_columns() {
    let sources = [facts(0).stored(), facts(5000).stored()];
    let keys = vec![key(WIDE, Direction::Descending, Nulls::Last)];
    let sink = Sink::Top { rows: 50, keys, columns: vec![Expr::Register(LATE)] };
    let program = Program { pipelines: vec![pipeline(1, vec![], sink)] };
    let expected: Vec<Row> = (4950..5000).rev().map(|v| vec![Some(v % 900 + 4)]).collect();
    for count in 1..=4 {
        assert_eq!(on(count, &program, &sources).unwrap().rows, expected, "{count}");
    }
}

#[test]
fn sums_beyond_64_bits_are_exact() {
    let least = i128::from(i64::MIN);
    let rows = (0..4000).map(|v| vec![Some(v % 3), Some(least + v), Some(0), None, None, None]);
    let tables = [Table { rows: Vec::new() }, Table { rows: rows.collect() }];
    let sources: Vec<Arc<dyn Source>> = tables.iter().map(Table::stored).collect();
    let sink =
        Sink::Aggregate { keys: vec![Expr::Register(KEY)], aggregates: vec![Aggregate::Sum(Expr::Register(WIDE))] };
    let program = Program { pipelines: vec![pipeline(1, vec![], sink)] };
    let of_key = |key: i128| (0..4000).filter(|v| v % 3 == key).map(|v| least + v).sum::<i128>();
    let expected: Vec<Row> = (0..3).map(|key| vec![Some(key), Some(of_key(key))]).collect();
    for count in 1..=4 {
        assert_eq!(sorted(on(count, &program, &sources).unwrap().rows), expected, "{count}");
    }
}

/// A single row of all overflows, at any position.
#[test]
fn an_error_of_one_row_is_the_querys_however_it_is_divided() {
    for at in [0, 1499, 2999] {
        let mut table = facts(3000);
        table.rows[at][WIDE] = Some(i64::MAX.into());
        let sources = [facts(0).stored(), table.stored()];
        let more = Expr::arithmetic(ArithmeticOp::Add, Expr::Register(WIDE), Expr::int(1), BIGINT);
        for sink in [
            Sink::Aggregate { keys: vec![Expr::Register(KEY)], aggregates: vec![Aggregate::Max(more.clone())] },
            Sink::Collect { columns: vec![more.clone()] },
        ] {
            let program = Program { pipelines: vec![pipeline(1, vec![], sink)] };
            for count in 1..=4 {
                let ran = on(count, &program, &sources).map(|ran| ran.rows.len());
                assert!(matches!(ran, Err(Error::OutOfRange { .. })), "{at} {count}: {ran:?}");
            }
        }
    }
}

/// Returns the rows that did not have to be read.
fn skipped_rows(ran: &DeviceRan, source: &dyn Source) -> u64 {
    ran.skipped.iter().flat_map(|skipped| &skipped.morsels).map(|morsel| source.rows(*morsel) as u64).sum()
}

fn joined() -> (Program, Vec<Arc<dyn Source>>) {
    let program = programs().into_iter().find(|program| program.pipelines.len() == 2).unwrap();
    (program, vec![facts(9).stored(), facts(5000).stored()])
}

#[test]
fn one_that_fails_stops_the_others() {
    let (program, sources) = joined();
    let collect =
        Program { pipelines: vec![pipeline(1, vec![], Sink::Collect { columns: vec![Expr::Register(WIDE)] })] };
    for (program, fault, wanted) in [
        (&program, Fault::Fails(0), "dev:1: it fell off the bus"),
        (&collect, Fault::Fails(1), "dev:1: it fell off the bus"),
        (&program, Fault::IsFull, "a join table on dev:1 needs 1000 bytes, and 10 are left of the memory limit"),
    ] {
        let (all, spread) = devices(3);
        *all[0].fault.lock().unwrap() = Fault::Hangs;
        *all[1].fault.lock().unwrap() = fault;
        let error = run(&spread, &executed(program, &sources), &AtomicBool::new(false)).unwrap().err().unwrap();
        assert_eq!(error.to_string(), wanted);
        assert!(all[0].stopped.load(Relaxed), "{wanted}");
    }
    // Errors that the CPU would also return take precedence.
    let mut table = facts(5000);
    table.rows.iter_mut().for_each(|row| row[WIDE] = Some(i64::MAX.into()));
    let more = Expr::arithmetic(ArithmeticOp::Add, Expr::Register(WIDE), Expr::int(1), BIGINT);
    let failing = Program { pipelines: vec![pipeline(1, vec![], Sink::Collect { columns: vec![more] })] };
    let (all, spread) = devices(2);
    *all[0].fault.lock().unwrap() = Fault::IsFull;
    let execution = executed(&failing, &[facts(0).stored(), table.stored()]);
    // The other device may have been stopped before it reached the error.
    let error = run(&spread, &execution, &AtomicBool::new(false)).unwrap().err().unwrap();
    assert!(matches!(error, Error::OutOfRange { .. } | Error::Memory { .. }), "{error}");
}

#[test]
fn what_nobody_wants_any_more_is_stopped_everywhere() {
    let (program, sources) = joined();
    let (all, spread) = devices(2);
    all.iter().for_each(|device| *device.fault.lock().unwrap() = Fault::Hangs);
    let cancelled = AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        let ran = scope.spawn(|| run(&spread, &executed(&program, &sources), &cancelled).unwrap().err());
        std::thread::sleep(Duration::from_millis(20));
        cancelled.store(true, Relaxed);
        ran.join().unwrap().unwrap()
    });
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert!(all.iter().all(|device| device.stopped.load(Relaxed)));
    // Cancelled before it began.
    assert!(matches!(run(&spread, &executed(&program, &sources), &cancelled), Some(Err(Error::Cancelled))));
}

#[test]
fn whoever_takes_no_more_is_told_why() {
    let (_, sources) = joined();
    let collect =
        Program { pipelines: vec![pipeline(1, vec![], Sink::Collect { columns: vec![Expr::Register(WIDE)] })] };
    let (all, spread) = devices(2);
    *all[0].fault.lock().unwrap() = Fault::Hangs;
    let execution = executed(&collect, &sources);
    let hints = Hints { stored: vec![None; 2], ..Hints::default() };
    let prepared = spread.prepare(&execution, &hints).unwrap();
    let (cancelled, ledgers, budget) = (AtomicBool::new(false), [Arc::default(), Arc::default()], Budget::from(0));
    let control =
        Control { cancelled: &cancelled, counts_steps: false, ledgers: &ledgers, did_rows: &|_| {}, budget: &budget };
    let error = prepared.run(&control, &mut |_| Err(Error::Invalid("enough".into()))).err().unwrap();
    assert_eq!(error.to_string(), "invalid pipeline: enough");
    assert!(all[0].stopped.load(Relaxed));
}

#[test]
fn what_all_read_alike_counts_once_and_its_bytes_as_often_as_they_are_moved() {
    let (program, sources) = joined();
    for count in 1..=3 {
        let ran = on(count, &program, &sources).unwrap();
        let [build, probe] = [0, 1].map(|source: usize| ran.ledgers[source].snapshot());
        let [table, last] = ran.pipelines.as_slice() else { panic!() };
        let read = 5000 - skipped_rows(last, &*sources[1]);
        assert!((2700..5000).contains(&read), "{read}");
        let count = count as u64;
        assert_eq!((build.rows_scanned, probe.rows_scanned), (9, read), "{count}");
        // Progress does not know which device counts a source, and is capped at all rows.
        assert!((9 + read..=5009).contains(&ran.done), "{}", ran.done);
        assert_eq!((build.hop(Hop::HostToDevice), probe.hop(Hop::HostToDevice)), (72 * count, 8 * read), "{count}");
        assert_eq!((table.rows, table.moved_bytes, table.launches), (9, 72 * count, count));
        assert_eq!((last.rows, last.moved_bytes, last.launches), (read, 8 * read, count));
        assert_eq!(last.steps.iter().map(|step| step.rows_in).sum::<u64>(), read);
    }
}

#[test]
fn too_little_memory_to_put_answers_together_is_said() {
    let (program, sources) = joined();
    let execution = executed(&program, &sources);
    let hints = Hints { stored: vec![None; 2], ..Hints::default() };
    let prepared = devices(2).1.prepare(&execution, &hints).unwrap();
    let (cancelled, ledgers, budget) = (AtomicBool::new(false), [Arc::default(), Arc::default()], Budget::from(8));
    let control =
        Control { cancelled: &cancelled, counts_steps: false, ledgers: &ledgers, did_rows: &|_| {}, budget: &budget };
    let error = prepared.run(&control, &mut |_| Ok(())).err().unwrap();
    assert!(matches!(&error, Error::Memory { what, .. } if what == "the answers of devices"), "{error}");
}

#[test]
fn a_device_without_code_is_a_reason() {
    let (program, sources) = joined();
    let (all, spread) = devices(2);
    *all[1].fault.lock().unwrap() = Fault::Refuses;
    let refusal = spread.divide(&executed(&program, &sources), &Hints { stored: vec![None; 2], ..Hints::default() });
    assert_eq!(refusal.err(), Some(Refusal("this".into())));
}
