//! Random programs over random tables give the answers of a naive interpreter: in memory, from
//! files, after changes, and in passes.
#![allow(clippy::unwrap_used)]

mod programs;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use onehop_io::{Ledger, MemoryFile, WriteAt};
use onehop_pipeline::cpu::{Answer, Execution, KeyPart, Stage, Worker, run};
use onehop_pipeline::ir::{self, Aggregate, Direction, Nulls, Pipeline, Program, Sink, SortKey, Step};
use onehop_pipeline::{Account, ArithmeticOp, Budget, CompareOp, Domain, Error, Expr, Holder, Resources, Source, Type};
use programs::naive::{Expected, expected, sorted};
use programs::random::{TYPES, program};
use programs::tables::{BIGINT, COLUMNS, FLAG, KEY, LATE, Row, TEXT, TWIN, Table, WIDE, rows_of, table};
use proptest::prelude::*;

fn actual(
    program: &Program,
    sources: &[Arc<dyn Source>],
    threads: usize,
    budget: impl Into<Budget>,
) -> Result<Vec<Row>, Error> {
    let mut execution = Execution::new(program.clone(), sources.to_vec(), budget)?;
    Ok(rows_of(&run(&mut execution, threads)?))
}

/// Returns the answer if one table is built in parts, with one run of the last pipeline per part.
fn in_passes(program: &Program, sources: &[Arc<dyn Source>], table: usize, of: u32) -> Result<Vec<Row>, Error> {
    let mut execution = Execution::new(program.clone(), sources.to_vec(), 1 << 30)?;
    let build = |execution: &mut Execution, pipeline: usize, part: KeyPart| {
        let stage = execution.stage_of_part(pipeline, part)?;
        let mut worker = Worker::new(&stage, &Arc::default());
        while worker.step()?.is_some() {}
        execution.finish(pipeline, &stage, vec![worker]).map(|_| ())
    };
    let last = execution.pipelines() - 1;
    for pipeline in 0..last {
        match pipeline == table {
            true => execution.leave_out(pipeline)?,
            false => build(&mut execution, pipeline, KeyPart::ALL)?,
        }
    }
    let mut chunks = Vec::new();
    let mut pass: Option<(Arc<Stage>, Worker)> = None;
    for number in (0..of).rev() {
        build(&mut execution, table, KeyPart { number, of })?;
        let stage = execution.stage(last)?;
        let mut worker = match pass.take() {
            Some((_, worker)) => worker.pass(&stage),
            None => Worker::new(&stage, &Arc::default()),
        };
        while let Some(chunk) = worker.step()? {
            chunks.push(chunk);
        }
        pass = Some((stage, worker));
    }
    let (stage, worker) = pass.unwrap();
    let Answer::Rows(rows) = execution.finish(last, &stage, vec![worker])? else { panic!() };
    chunks.extend(rows.chunks);
    Ok(rows_of(&chunks))
}
/// An unlimited budget that refuses one of `every` requests. Groups spill at any time and on
/// any level.
#[derive(Debug)]
struct Stingy {
    every: u64,
    requests: Arc<AtomicU64>,
    ledger: Ledger,
}

#[derive(Debug)]
struct StingyAccount {
    every: u64,
    requests: Arc<AtomicU64>,
    /// True if its holder can continue without the memory.
    may_refuse: bool,
    /// Bytes held. While they are 0, no reservation is refused.
    held: Mutex<usize>,
}

impl Stingy {
    fn budget(every: u64) -> Budget {
        Budget(Arc::new(Self { every, requests: Arc::default(), ledger: Ledger::default() }))
    }
}

impl Resources for Stingy {
    fn limit(&self) -> usize {
        1 << 30
    }

    fn account(&self, what: &'static str, holder: Holder) -> Box<dyn Account> {
        let (every, requests) = (self.every, Arc::clone(&self.requests));
        // A new holder of groups needs some memory to start; join tables cannot spill.
        let held = Mutex::new(usize::from(holder == Holder::Keeps));
        Box::new(StingyAccount { every, requests, may_refuse: what != "a join table", held })
    }

    fn file(&self) -> Result<Option<Arc<dyn WriteAt>>, Error> {
        Ok(Some(Arc::new(MemoryFile::new("memory/spill", Vec::new()))))
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl Account for StingyAccount {
    fn try_resize(&self, bytes: usize) -> Result<(), Error> {
        let mut held = self.held.lock().unwrap();
        let is_more = self.may_refuse && *held > 0 && bytes > *held;
        if is_more && self.requests.fetch_add(1, Relaxed).is_multiple_of(self.every) {
            return Err(Error::Memory { what: "groups".into(), needed: bytes, available: *held });
        }
        *held = bytes;
        Ok(())
    }
}
/// Location of a table's rows.
#[derive(Clone, Copy, Debug)]
enum Kept {
    InMemory,
    Stored,
    /// In segments with deleted rows, and in fresh rows.
    Changed(u64),
}

impl Kept {
    fn source(self, table: &Table) -> Arc<dyn Source> {
        match self {
            Self::InMemory => table.in_memory(),
            Self::Stored => table.stored(),
            Self::Changed(seed) => table.changed(seed),
        }
    }
}

impl Arbitrary for Kept {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> BoxedStrategy<Self> {
        prop_oneof![1 => Just(Self::InMemory), 1 => Just(Self::Stored), 2 => any::<u64>().prop_map(Self::Changed)]
            .boxed()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn pipelines_do_what_the_naive_interpreter_does(
        build in table(0..40, 12),
        facts in prop_oneof![table(0..60, 15), table(1000..2500, 15), table(2900..4200, 300)],
        program in program(),
        threads in 1usize..3,
        kept in any::<[Kept; 2]>(),
        every in 2u64..7,
    ) {
        let tables = [build, facts];
        let sources: Vec<Arc<dyn Source>> = tables.iter().zip(kept).map(|(table, kept)| kept.source(table)).collect();
        let domains: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
        let Ok(shapes) = ir::validate(&program, &domains) else { return Ok(()) };
        let expected = expected(&program, &shapes, &tables);
        // Neither a single group that does not fit nor a join table can be spilled.
        match (actual(&program, &sources, threads, Stingy::budget(every)), &expected) {
            (Ok(actual), Ok(expected)) => prop_assert!(expected.allows(&actual), "spilled: {actual:?} {expected:?}\n{program}"),
            (Err(Error::OutOfRange { .. } | Error::DivisionByZero { .. }), Err(())) => {}
            (Err(Error::Unsupported(_) | Error::Memory { .. }), _) => {}
            (actual, expected) => prop_assert!(false, "spilled: {actual:?} {expected:?}\n{program}"),
        }
        let execution = Execution::new(program.clone(), sources.to_vec(), 0).unwrap();
        if let Some(table) = (0..program.pipelines.len() - 1).find(|table| execution.may_pass(*table)) {
            match (in_passes(&program, &sources, table, every as u32 - 1), &expected) {
                (Ok(actual), Ok(expected)) => prop_assert!(expected.allows(&actual), "in passes: {actual:?} {expected:?}\n{program}"),
                (Err(Error::OutOfRange { .. } | Error::DivisionByZero { .. }), Err(())) => {}
                (Err(Error::Unsupported(_)), _) => {}
                (actual, expected) => prop_assert!(false, "in passes: {actual:?} {expected:?}\n{program}"),
            }
        }
        match (actual(&program, &sources, threads, 1 << 30), expected) {
            (Ok(actual), Ok(expected)) => prop_assert!(expected.allows(&actual), "{actual:?} {expected:?}\n{program}"),
            (Err(Error::OutOfRange { .. } | Error::DivisionByZero { .. }), Err(())) => {}
            (Err(Error::Unsupported(_)), _) => {}
            (actual, expected) => prop_assert!(false, "{actual:?} {expected:?}\n{program}"),
        }
    }
}

/// Checks that the features under test occur in the random programs.
#[test]
fn texts_that_hardly_repeat_are_read_late() {
    let late = |v: i128| (v % 9 > 0).then_some(v * 7919 % 1000 + 4);
    let row = |v: i128| vec![Some(v), Some(v), Some(v % 2), Some(v % 4), late(v), Some(v + 4)];
    let source = Table { rows: (0..1501).map(row).collect() }.stored();
    let types: Vec<Type> = source.columns().iter().map(|domain| domain.ty).collect();
    assert_eq!(types, TYPES);
    // Comparisons of late strings are refused.
    let (late, twin) = (Expr::Register(LATE), Expr::Register(TWIN));
    let collect = |step: Option<Step>, columns: Vec<Expr>| Pipeline {
        source: 0,
        columns: (0..COLUMNS).collect(),
        steps: step.into_iter().collect(),
        sink: Sink::Collect { columns },
    };
    let aggregate = |aggregate: Aggregate| Pipeline {
        sink: Sink::Aggregate { keys: Vec::new(), aggregates: vec![aggregate] },
        ..collect(None, Vec::new())
    };
    let compared = Expr::compare(CompareOp::Equal, late.clone(), twin.clone());
    let chosen = Expr::Case { branches: vec![(Expr::Register(FLAG), late.clone())], otherwise: Some(Box::new(twin)) };
    for pipeline in [
        collect(Some(Step::Filter(compared)), vec![Expr::Register(KEY)]),
        collect(None, vec![Expr::compare(CompareOp::Less, late.clone(), Expr::Register(TEXT))]),
        collect(None, vec![chosen]),
        collect(None, vec![Expr::Coalesce(vec![late.clone(), Expr::Register(TEXT)])]),
        aggregate(Aggregate::Min(late.clone())),
        aggregate(Aggregate::Max(late.clone())),
        aggregate(Aggregate::CountDistinct(late.clone())),
        aggregate(Aggregate::Sum(late.clone())),
        Pipeline {
            sink: Sink::Top {
                rows: 3,
                keys: vec![SortKey { expr: late, direction: Direction::Ascending, nulls: Nulls::Last }],
                columns: vec![Expr::Register(KEY)],
            },
            ..collect(None, Vec::new())
        },
    ] {
        let program = Program { pipelines: vec![pipeline] };
        let refused = Execution::new(program.clone(), vec![Arc::clone(&source)], 1 << 20);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{program} {refused:?}");
    }
}

/// If blocks are consecutive, only those that may contain the first rows are read. Columns that no
/// other expression reads are loaded from those blocks only.
#[test]
fn blocks_without_a_chance_are_never_read() {
    let row = |v: i128| vec![Some(v / 3), Some(v * 7), Some(v % 2), Some(v % 4), Some(v % 900 + 4), Some(v + 4)];
    let tables = [Table { rows: (0..30_000).map(row).collect() }];
    let keys = |expr, direction| vec![SortKey { expr, direction, nulls: Nulls::Last }];
    let quotient = Expr::arithmetic(ArithmeticOp::Div, Expr::int(1), Expr::Register(WIDE), BIGINT);
    let filter = Step::Filter(Expr::compare(CompareOp::Less, Expr::Register(KEY), Expr::int(9000)));
    for (direction, steps, computed, can_skip) in [
        (Direction::Descending, vec![], Expr::Register(WIDE), true),
        (Direction::Ascending, vec![], Expr::Register(WIDE), true),
        (Direction::Descending, vec![filter.clone()], Expr::Register(TEXT), true),
        // The expression fails for the first row, which is not in the answer.
        (Direction::Descending, vec![filter], quotient, false),
    ] {
        let source = tables[0].stored();
        let keys = keys(Expr::Register(KEY), direction);
        let columns = vec![Expr::Register(KEY), computed, Expr::Register(LATE)];
        let sink = Sink::Top { rows: 10, keys, columns };
        let pipeline = Pipeline { source: 0, columns: (0..COLUMNS).collect(), steps, sink };
        let program = Program { pipelines: vec![pipeline] };
        let shapes = ir::validate(&program, &[source.columns().to_vec()]).unwrap();
        let mut execution = Execution::new(program.clone(), vec![Arc::clone(&source)], 1 << 20).unwrap();
        let stage = execution.stage(0).unwrap();
        let mut worker = Worker::new(&stage, &Arc::default());
        let mut outcome = worker.step();
        while matches!(outcome, Ok(Some(_))) {
            outcome = worker.step();
        }
        let expected = expected(&program, &shapes, &tables);
        let skipped = stage.top().unwrap().morsels_skipped;
        assert_eq!((skipped > 20, outcome.is_ok(), expected.is_ok()), (can_skip, can_skip, can_skip), "{program}");
        let Ok(expected) = expected else { continue };
        let Answer::Rows(rows) = execution.finish(0, &stage, vec![worker]).unwrap() else { panic!() };
        assert!(expected.allows(&rows_of(&rows.chunks)), "{program}");
    }
}

/// Groups by row number of strings are merged from files, in memory in parts, and in memory by one
/// thread.
#[test]
fn equal_texts_of_spilled_groups_are_one() {
    // There are three rows per integer, most of which have equal strings. The integers have so many
    // values that they may determine the strings.
    let late = |v: i128| (v % 11 > 0).then_some(v % 6000 + if v % 10 == 0 { v / 6000 * 10_000 } else { 0 } + 4);
    let row = |v: i128| vec![Some(v % 300), Some(v % 6000 * 1_000_003), Some(v % 2), Some(v % 4), late(v), Some(v + 4)];
    let tables = [Table { rows: Vec::new() }, Table { rows: (0..18_000).map(row).collect() }];
    let sources: Vec<Arc<dyn Source>> = tables.iter().map(Table::stored).collect();
    let register = Expr::Register;
    let sink = Sink::Aggregate {
        keys: vec![register(LATE), register(WIDE)],
        aggregates: vec![
            Aggregate::CountRows,
            Aggregate::Sum(register(KEY)),
            Aggregate::Min(register(KEY)),
            Aggregate::CountDistinct(register(FLAG)),
            Aggregate::SumDistinct(register(KEY)),
        ],
    };
    let program =
        Program { pipelines: vec![Pipeline { source: 1, columns: (0..COLUMNS).collect(), steps: vec![], sink }] };
    let domains: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
    let shapes = ir::validate(&program, &domains).unwrap();
    let Expected::Rows(expected) = expected(&program, &shapes, &tables).unwrap() else { panic!() };
    assert!((6000..9000).contains(&expected.len()), "{}", expected.len());
    for threads in [1, 2] {
        assert_eq!(sorted(actual(&program, &sources, threads, 1 << 30).unwrap()), expected);
    }
    let mut spilled = 0;
    for (every, threads) in [(2, 1), (3, 2), (4, 1), (5, 2), (7, 1), (11, 2), (29, 1), (31, 2)] {
        let budget = Stingy::budget(every);
        match actual(&program, &sources, threads, budget.clone()) {
            Ok(actual) => assert_eq!(sorted(actual), expected, "{every} {threads}"),
            // There are no more levels of partitions.
            Err(Error::Memory { .. }) => continue,
            Err(e) => panic!("{e}"),
        }
        spilled += usize::from(budget.0.ledger().snapshot().spilled_bytes > 0);
    }
    assert!(spilled >= 4, "{spilled}");
    // Groups by strings that no other key determines cannot be partitioned before all strings are
    // known.
    let mut by_text = program.clone();
    if let Sink::Aggregate { keys, .. } = &mut by_text.pipelines[0].sink {
        keys.pop();
    }
    let budget = Stingy::budget(3);
    let refused = actual(&by_text, &sources, 2, budget.clone());
    assert!(matches!(refused, Err(Error::Memory { .. })), "{refused:?}");
    assert_eq!(budget.0.ledger().snapshot().spilled_bytes, 0);
}
