//! Columns that are streamed batch by batch give the same results as whole columns: for all sinks,
//! after restarts of a pipeline, and despite failures.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use onehop_pipeline::cpu::Execution;
use onehop_pipeline::ir::{Aggregate, Direction, JoinKind, Nulls, Pipeline, Probe, Program, Sink, SortKey, Step};
use onehop_pipeline::{
    Block, CompareOp, Domain, Error as PipelineError, Expr, Interval, Result as PipelineResult, Source,
};

use super::shapes::{executor_of, options, r, rows_of, stored};
use super::star::Star;
use crate::fake::{self, Answer as Fails, Call, Fault, Machine, Order};
use crate::fused::{Answer, ColumnImage, Error, Executor, Images, Options, Result, Streamed};
use crate::staging::Shape;

/// Returns options for batches of one morsel, filled by `threads` threads.
pub fn in_small_batches(threads: usize) -> Options {
    Options { staging: Shape { batch_bytes: 1, slots: 3, threads }, ..options() }
}

/// Runs a program on the device with streamed columns, and on the CPU, and compares the results.
fn same(executor: &Executor, images: &dyn Images, program: &Program, sources: &[Arc<dyn Source>]) -> Answer {
    let mut execution = Execution::new(program.clone(), sources.to_vec(), 1 << 30).unwrap();
    let answer = executor.run(&execution, images, &AtomicBool::new(false)).unwrap();
    let expected = onehop_pipeline::cpu::run(&mut execution, 1).unwrap();
    assert_eq!(rows_of(&answer.chunks), rows_of(&expected), "{program}");
    answer
}

pub(super) fn one(columns: usize, steps: Vec<Step>, sink: Sink) -> Program {
    Program { pipelines: vec![Pipeline { source: 0, columns: (0..columns).collect(), steps, sink }] }
}

pub(super) fn less(register: usize, value: i64) -> Step {
    Step::Filter(Expr::compare(CompareOp::Less, r(register), Expr::int(value)))
}

pub(super) fn sums(columns: usize) -> Sink {
    let mut aggregates: Vec<Aggregate> = (0..columns).map(|column| Aggregate::Sum(r(column))).collect();
    aggregates.push(Aggregate::CountRows);
    Sink::Aggregate { keys: vec![], aggregates }
}

/// A source that counts the blocks read from it, and fails or cancels at a given load.
struct Watched {
    source: Arc<dyn Source>,
    read: Mutex<BTreeSet<(usize, usize)>>,
    loads: AtomicUsize,
    fails_at: Option<usize>,
    cancels: Option<(usize, Arc<AtomicBool>)>,
}

impl Watched {
    fn new(source: &Arc<dyn Source>) -> Self {
        let (read, loads) = (Mutex::default(), AtomicUsize::new(0));
        Self { source: Arc::clone(source), read, loads, fails_at: None, cancels: None }
    }

    fn morsels_read(&self) -> Vec<usize> {
        let read = self.read.lock().unwrap();
        let morsels: BTreeSet<usize> = read.iter().map(|(morsel, _)| *morsel).collect();
        morsels.into_iter().collect()
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a watched source")
    }
}

impl Source for Watched {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn columns(&self) -> &[Domain] {
        self.source.columns()
    }

    fn morsels(&self) -> usize {
        self.source.morsels()
    }

    fn rows(&self, morsel: usize) -> usize {
        self.source.rows(morsel)
    }

    fn interval(&self, morsel: usize, column: usize) -> Option<Interval> {
        self.source.interval(morsel, column)
    }

    fn is_coded(&self, column: usize) -> bool {
        self.source.is_coded(column)
    }

    fn load(&self, morsel: usize, column: usize) -> PipelineResult<Block> {
        let number = self.loads.fetch_add(1, SeqCst);
        if self.fails_at == Some(number) {
            return Err(PipelineError::Invalid(format!("column {column} of block {morsel} is torn")));
        }
        if let Some((_, flag)) = self.cancels.as_ref().filter(|(at, _)| *at == number) {
            flag.store(true, SeqCst);
        }
        self.read.lock().unwrap().insert((morsel, column));
        self.source.load(morsel, column)
    }
}

fn ascending(rows: usize) -> Vec<Option<i64>> {
    (0..rows as i64).map(Some).collect()
}

fn scattered(rows: usize, of: i64) -> Vec<Option<i64>> {
    (0..rows as i64).map(|row| (row % 11 > 0).then_some(row * 7919 % of)).collect()
}

#[test]
fn star_queries_by_one_thread_and_by_several() {
    let star = Star::new(20_000, 0.02);
    for threads in [0, 3] {
        // Batches are so small that the facts have several, and that each has one morsel.
        let executor = executor_of(in_small_batches(threads));
        for (name, program, sources) in star.queries() {
            let answer = same(&executor, &Streamed, &program, &sources);
            let last = answer.pipelines.last().unwrap();
            let streamed = last.streamed.unwrap();
            assert!(streamed.bytes > 0 && streamed.batches == sources[0].morsels(), "{name}: {streamed:?}");
            assert_eq!(last.launches, streamed.batches);
        }
    }
}

/// A device that runs ahead unless it was told to wait.
#[test]
fn kernels_wait_for_their_columns_and_copies_for_the_kernels_before() {
    let source = stored(&[ascending(12_000), scattered(12_000, 5000)], 5000, 1024);
    let program = one(2, vec![less(0, 11_000)], sums(2));
    for order in [Order::KernelsFirst, Order::CopiesFirst] {
        let (machine, context) = Machine::start();
        machine.set_order(order);
        {
            for threads in [0, 2] {
                let executor = Executor::new(&context, &fake::nvrtc(), None, in_small_batches(threads));
                same(&executor, &Streamed, &program, &[Arc::clone(&source)]);
            }
        }
        assert!(machine.problems().is_empty(), "{:?}", machine.problems());
        assert!(machine.living().is_empty(), "{:?}", machine.living());
    }
}

#[test]
fn batches_have_what_fits_and_no_morsel_is_left_out() {
    let rows = 20_000;
    let source = stored(&[ascending(rows), scattered(rows, 5000)], 6000, 1024);
    let program = one(2, vec![], sums(2));
    let morsels = source.morsels();
    // Half a morsel, a few of them, all: without knowledge of a source, a value is assumed to be as
    // wide as its type.
    for (batch_bytes, batches) in [(5_000, morsels), (60_000, morsels.div_ceil(5)), (32 << 20, 1)] {
        let executor = executor_of(Options { staging: Shape { batch_bytes, slots: 2, threads: 2 }, ..options() });
        let answer = same(&executor, &Streamed, &program, &[Arc::clone(&source)]);
        let streamed = answer.pipelines[0].streamed.unwrap();
        assert!(streamed.batches.abs_diff(batches) <= 1, "{batch_bytes}: {streamed:?} of {morsels} morsels");
    }
}

#[test]
fn blocks_that_are_ruled_out_are_not_read() {
    let rows = 16 * 1024;
    let source = stored(&[ascending(rows), scattered(rows, 100)], rows, 1024);
    let watched = Arc::new(Watched::new(&source));
    let program = one(2, vec![less(0, 2500)], sums(2));
    let executor = executor_of(in_small_batches(2));
    let execution = Execution::new(program.clone(), vec![Arc::clone(&watched) as Arc<dyn Source>], 1 << 30).unwrap();
    executor.run(&execution, &Streamed, &AtomicBool::new(false)).unwrap();
    assert_eq!(watched.morsels_read(), [0, 1, 2]);
    let answer = same(&executor, &Streamed, &program, &[Arc::clone(&source)]);
    assert_eq!((answer.pipelines[0].morsels_skipped, answer.pipelines[0].streamed.unwrap().batches), (13, 3));
    // No morsel is left: there is nothing to bring.
    let answer = same(&executor, &Streamed, &one(2, vec![less(0, -5)], sums(2)), &[source]);
    assert_eq!(answer.pipelines[0].launches, 0);
}

/// Widths, codes of different tables, blocks of one value and of none: the first morsel tells
/// nothing about the others.
#[test]
fn forms_that_nobody_foresaw_get_a_kernel() {
    let rows = 9000usize;
    let column = |of: &dyn Fn(i64) -> Option<i64>| (0..rows as i64).map(of).collect::<Vec<_>>();
    let growing = column(&|row| Some(row * 7919 % (2 << (row / 1000)) + row));
    let blocks = column(&|row| match row / 1024 {
        0 | 3 => None,
        1 => Some(42),
        _ => (row % 5 > 0).then_some(row % 9),
    });
    let coded = column(&|row| Some(row * 31 % 5 * 1_000_000_007 * (1 + row / 2000)));
    let source = stored(&[growing, blocks, coded], 2000, 1024);
    assert!(source.is_coded(2));
    for threads in [0, 3] {
        let executor = executor_of(in_small_batches(threads));
        for (steps, keys) in [
            (vec![less(0, 8000)], vec![r(1)]),
            (vec![less(2, 3_000_000_021)], vec![]),
            (vec![less(1, 42), less(2, 3_000_000_021)], vec![r(1)]),
        ] {
            let aggregates =
                vec![Aggregate::Sum(r(0)), Aggregate::Sum(r(2)), Aggregate::Count(r(1)), Aggregate::CountRows];
            let program = one(3, steps, Sink::Aggregate { keys, aggregates });
            let answer = same(&executor, &Streamed, &program, &[Arc::clone(&source)]);
            let facts = &answer.pipelines[0];
            assert!(facts.compile_hits > 1 || !facts.compile.is_zero(), "{facts:?}");
        }
        assert!(executor.compiler().counts().compiled > 3, "{:?}", executor.compiler().counts());
    }
}

/// Resident columns beside streamed ones.
#[test]
fn some_columns_are_there_and_others_come() {
    #[derive(Debug)]
    struct EveryOther<'a>(&'a Executor);
    impl Images for EveryOther<'_> {
        fn column(&self, source: &Arc<dyn Source>, column: usize) -> Result<Option<Arc<ColumnImage>>> {
            let image = |_| ColumnImage::upload(self.0.context(), &**source, column).map(Arc::new);
            column.is_multiple_of(2).then_some(()).map(image).transpose()
        }
    }
    let rows = 8000usize;
    let coded = |seed: i64| -> Vec<Option<i64>> {
        (0..rows as i64).map(|row| Some((row + seed) * 31 % 5 * 1_000_000_007 * (1 + row / 2000))).collect()
    };
    let source = stored(&[coded(0), coded(1), ascending(rows), scattered(rows, 40)], 3000, 1024);
    let executor = executor_of(in_small_batches(2));
    // Morsels that are not adjacent, so that their numbers in a batch differ from their own.
    for steps in [vec![], vec![less(0, 4_000_000_000)], vec![less(1, 4_000_000_000), less(2, 5000)]] {
        let aggregates = (0..3).map(|column| Aggregate::Sum(r(column))).collect();
        let program = one(4, steps, Sink::Aggregate { keys: vec![r(3)], aggregates });
        let answer = same(&executor, &EveryOther(&executor), &program, &[Arc::clone(&source)]);
        let facts = &answer.pipelines[0];
        assert!(facts.column_bytes > 0 && facts.streamed.unwrap().bytes > 0);
    }
}

#[test]
fn pipelines_that_start_again_bring_their_columns_again() {
    let executor = executor_of(in_small_batches(2));
    let rows = 12_000;
    // A table with several rows of a key, probed by the same source.
    let source = stored(&[scattered(rows, 300), ascending(rows)], 5000, 1024);
    let build = Pipeline {
        source: 0,
        columns: vec![0, 1],
        steps: vec![less(1, 900)],
        sink: Sink::Build { keys: vec![r(0)], payload: vec![r(1)] },
    };
    let probe = Probe { table: 0, kind: JoinKind::Inner, keys: vec![r(0)], payload: vec![0], condition: None };
    let last = Pipeline { source: 0, columns: vec![0, 1], steps: vec![Step::Probe(probe)], sink: sums(3) };
    let program = Program { pipelines: vec![build, last] };
    let answer = same(&executor, &Streamed, &program, &[Arc::clone(&source)]);
    let built = &answer.pipelines[0];
    assert!(!built.table.unwrap().is_unique && built.streamed.unwrap().batches == 2, "{built:?}");
    // More hashed groups than there is room for at first.
    let far = (0..rows as i64).map(|row| Some(row * 1_000_000_007)).collect();
    let apart = stored(&[far, ascending(rows)], 5000, 1024);
    let aggregates = vec![Aggregate::Sum(r(1)), Aggregate::CountRows];
    let groups = one(2, vec![], Sink::Aggregate { keys: vec![r(0)], aggregates });
    same(&executor, &Streamed, &groups, &[apart]);
    // The first rows in an order: the rows of the first batches give a threshold that the others
    // must beat.
    for direction in [Direction::Ascending, Direction::Descending] {
        let keys = [0, 1].map(|by| SortKey { expr: r(by), direction, nulls: Nulls::Last }).to_vec();
        let top = one(2, vec![], Sink::Top { rows: 50, keys, columns: vec![r(0), r(1)] });
        let answer = same(&executor, &Streamed, &top, &[Arc::clone(&source)]);
        let facts = &answer.pipelines[0];
        let morsels = source.morsels();
        // One restart; the first attempt did not bring all morsels.
        assert!(facts.launches > morsels && facts.launches < 2 * morsels, "{} of {morsels}", facts.launches);
    }
}

/// Data that exceeds the foreseen size is copied separately.
#[test]
fn batches_overflow() {
    #[derive(Debug)]
    struct Modest;
    impl Images for Modest {
        fn column(&self, _: &Arc<dyn Source>, _: usize) -> Result<Option<Arc<ColumnImage>>> {
            Ok(None)
        }

        fn outlook(&self, _: &dyn Source, _: usize, morsels: &[(u32, u32)]) -> Result<crate::fused::Outlook> {
            Ok(crate::fused::Outlook { forms: vec![], bytes: vec![1; morsels.len()], codes: 0 })
        }
    }
    let (machine, context) = Machine::start();
    {
        let executor = Executor::new(&context, &fake::nvrtc(), None, in_small_batches(2));
        let staging = Shape { batch_bytes: 64 << 10, slots: 2, threads: 2 };
        let wide = Executor::new(&context, &fake::nvrtc(), None, Options { staging, ..options() });
        let rows = 60_000;
        let source = stored(&[scattered(rows, 1 << 40), ascending(rows)], 30_000, 16 << 10);
        for executor in [&executor, &wide] {
            same(executor, &Modest, &one(2, vec![], sums(2)), &[Arc::clone(&source)]);
        }
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}

#[test]
fn what_fails_on_the_way_is_an_error_and_leaves_nothing_behind() {
    let (machine, context) = Machine::start();
    let rows = 12_000;
    let source = stored(&[ascending(rows), scattered(rows, 100)], 5000, 1024);
    let program = one(2, vec![less(0, 1 << 20)], sums(2));
    {
        let executor = Executor::new(&context, &fake::nvrtc(), None, in_small_batches(2));
        let run = |source: Arc<dyn Source>, cancelled: &AtomicBool| {
            let execution = Execution::new(program.clone(), vec![source], 1 << 30).unwrap();
            executor.run(&execution, &Streamed, cancelled)
        };
        let no = AtomicBool::new(false);
        let whole = rows_of(&run(Arc::clone(&source), &no).unwrap().chunks);
        let again = || assert_eq!(rows_of(&run(Arc::clone(&source), &no).unwrap().chunks), whole);
        // A block that cannot be read: when its forms are foreseen, and at the beginning, the
        // middle and the end.
        for fails_at in [0, 2, 3, 13, 25] {
            let torn = Watched { fails_at: Some(fails_at), ..Watched::new(&source) };
            let error = run(Arc::new(torn), &no).unwrap_err();
            assert!(error.to_string().contains("is torn"), "{error}");
            again();
        }
        // The query is cancelled.
        for at in [2, 9, 20] {
            let flag = Arc::new(AtomicBool::new(false));
            let watched = Arc::new(Watched { cancels: Some((at, Arc::clone(&flag))), ..Watched::new(&source) });
            let error = run(Arc::clone(&watched) as Arc<dyn Source>, &flag).unwrap_err();
            assert!(matches!(error, Error::Pipeline(PipelineError::Cancelled)), "{error}");
            assert!(watched.loads.load(SeqCst) <= at + 4, "{:?}", watched.loads);
            again();
        }
        for call in [Call::Copy, Call::Record, Call::Wait] {
            for at in [0, 1, 5, 9] {
                machine.set_faults(&[Fault { call, at, lasts: false, answer: Fails::Code(700) }]);
                let error = run(Arc::clone(&source), &no).unwrap_err();
                assert!(matches!(&error, Error::Device { .. }) && error.to_string().contains("700"), "{error}");
                machine.set_faults(&[]);
                again();
            }
        }
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}

#[test]
fn a_device_without_room_for_all_slots_takes_turns() {
    let (machine, context) = Machine::start();
    let source = stored(&[ascending(9000), scattered(9000, 100)], 5000, 1024);
    let program = one(2, vec![], sums(2));
    {
        let mut outcomes = [0, 0];
        for lasts in [false, true] {
            for at in 0..6 {
                let executor = Executor::new(&context, &fake::nvrtc(), None, in_small_batches(0));
                let mut execution = Execution::new(program.clone(), vec![Arc::clone(&source)], 1 << 30).unwrap();
                machine.set_faults(&[Fault { call: Call::Allocate, at, lasts, answer: Fails::Code(2) }]);
                match executor.run(&execution, &Streamed, &AtomicBool::new(false)) {
                    Ok(answer) => {
                        let expected = onehop_pipeline::cpu::run(&mut execution, 1).unwrap();
                        assert_eq!(rows_of(&answer.chunks), rows_of(&expected));
                        outcomes[0] += 1;
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("OUT_OF_MEMORY"), "{error}");
                        outcomes[1] += 1;
                    }
                }
                machine.set_faults(&[]);
            }
        }
        // The output of a run takes memory, and so does the first slot; further slots only affect
        // speed.
        assert!(outcomes[0] >= 6 && outcomes[1] >= 2, "{outcomes:?}");
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}

/// Long planes are copied to the device from the memory of their blocks. Small planes, validity and
/// parts are copied with the batch.
#[test]
fn blocks_are_copied_from_where_they_lie() {
    let (machine, context) = Machine::start();
    for threads in [0, 3] {
        let mut executor = Executor::new(&context, &fake::nvrtc(), None, in_small_batches(threads));
        executor.register_eagerly();
        for (_, program, sources) in Star::new(80_000, 0.02).queries() {
            same(&executor, &Streamed, &program, &sources);
        }
        let rows = 70_000;
        let nullable = (0..rows).map(|row| (row % 7 > 0).then(|| (row * 7919 % 16_000_000) as i64)).collect();
        let wide = (0..rows).map(|row| Some((row as i64) << 38 | 1)).collect();
        let source = stored(&[nullable, wide], 1 << 20, 1 << 16);
        same(&executor, &Streamed, &one(2, vec![less(0, 9_000_000)], sums(2)), &[source]);
        // Three columns of the star have planes of this length, in five queries.
        assert!(executor.stager().direct_bytes() > 1 << 20, "{}", executor.stager().direct_bytes());
        assert!(!machine.registered().is_empty());
        drop(executor);
        assert!(machine.registered().is_empty());
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
}
