//! Tables, groups and rows that are resident one partition at a time, because a test requests it or
//! because memory is short. The results must be those of the CPU backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use onehop_pipeline::backend::{Control, Devices as _, Hints, MemoryLimit};
use onehop_pipeline::cpu::{Execution, TableKind};
use onehop_pipeline::ir::{Aggregate, Direction, JoinKind, Nulls, Pipeline, Probe, Program, Sink, SortKey, Step};
use onehop_pipeline::{ArithmeticOp, Bounds, Budget, CompareOp, Error as PipelineError, Expr, Source};

use super::large;
use super::shapes::{BIGINT, executor, options, r, rows_of, stored};
use crate::CudaDevices;
use crate::fake::{self, Machine};
use crate::fused::{Answer, ColumnImage, Error, Executor, Images, Result, RunMemory, Uploads, WhenFull};

type Sources = Vec<Arc<dyn Source>>;

const FAR: i64 = 3_000_017;

fn noise(row: usize, salt: u64) -> u64 {
    let mut x = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

fn column(rows: usize, of: impl Fn(usize) -> Option<i64>) -> Vec<Option<i64>> {
    (0..rows).map(of).collect()
}

fn build(source: usize, key: Expr, payload: Vec<Expr>) -> Pipeline {
    Pipeline { source, columns: vec![0, 1], steps: vec![], sink: Sink::Build { keys: vec![key], payload } }
}

fn probe(table: usize, kind: JoinKind, key: Expr, payload: Vec<usize>) -> Step {
    Step::Probe(Probe { table, kind, keys: vec![key], payload, condition: None })
}

fn execution(program: &Program, sources: &Sources) -> Execution {
    Execution::new(program.clone(), sources.clone(), 1 << 30).unwrap()
}

fn run_split(executor: &Executor, execution: &Execution, split: &[u64]) -> Result<Answer> {
    let images = Uploads::new(executor.context());
    executor.run_split(execution, &images, &AtomicBool::new(false), true, RunMemory::default(), split)
}

/// Runs a program with the given number of partitions of each pipeline's output, and compares the
/// results.
fn same_split(executor: &Executor, program: &Program, sources: &Sources, split: &[u64]) -> Answer {
    let mut execution = execution(program, sources);
    let answer = run_split(executor, &execution, split).unwrap();
    let expected = onehop_pipeline::cpu::run(&mut execution, 1).unwrap();
    assert_eq!(rows_of(&answer.chunks), rows_of(&expected), "{split:?}\n{program}");
    answer
}

/// Runs a program within some memory, with its columns on the device already.
fn within(executor: &Executor, execution: &Execution, bytes: u64) -> Result<Answer> {
    let images = Uploads::new(executor.context());
    let memory = RunMemory { bytes, when_full: WhenFull::Split };
    executor.run_within(execution, &images, &AtomicBool::new(false), true, memory)
}

/// Returns keys that are `apart` apart, with `repeats` rows each and optionally NULLs, and the
/// values that they stand for.
fn dimension(rows: usize, apart: i64, repeats: usize, has_nulls: bool) -> Arc<dyn Source> {
    let key = |row: usize| (!has_nulls || !row.is_multiple_of(7)).then_some((row / repeats) as i64 * apart);
    let value = |row: usize| (!row.is_multiple_of(5)).then_some(row as i64 - 300);
    stored(&[column(rows, key), column(rows, value)], rows.div_ceil(2), 1024)
}

fn facts(rows: usize, apart: i64, keys: u64) -> Arc<dyn Source> {
    let key = |row: usize| (!row.is_multiple_of(11)).then_some((noise(row, 6) % keys) as i64 * apart);
    stored(&[column(rows, key), column(rows, |row| Some(row as i64))], 2000, 1024)
}

#[test]
fn joins_of_all_kinds() {
    let executor = executor();
    for (apart, kind) in [(1, TableKind::Direct), (FAR, TableKind::Hashed)] {
        for (repeats, has_nulls) in [(1, true), (3, false)] {
            let sources: Sources = vec![dimension(600, apart, repeats, has_nulls), facts(2500, apart, 900)];
            let last = |step, columns| Pipeline {
                source: 1,
                columns: vec![0, 1],
                steps: vec![step],
                sink: Sink::Collect { columns },
            };
            let joins = [JoinKind::Inner, JoinKind::Left, JoinKind::Semi, JoinKind::Anti, JoinKind::NotIn];
            for (number, join) in joins.into_iter().enumerate() {
                let with_payload = matches!(join, JoinKind::Inner | JoinKind::Left);
                let payload = if with_payload { vec![0] } else { vec![] };
                let columns = if with_payload { vec![r(1), r(0), r(2)] } else { vec![r(1), r(0)] };
                let pipelines = vec![build(0, r(0), vec![r(1)]), last(probe(0, join, r(0), payload), columns)];
                let of = [2, 4, 16, 4, 2][number];
                let answer = same_split(&executor, &Program { pipelines }, &sources, &[of, 1]);
                let table = answer.pipelines[0].table.unwrap();
                assert_eq!(table.kind, kind);
                let rows = (0..600usize).filter(|row| !has_nulls || !row.is_multiple_of(7)).count() as u64;
                assert_eq!(table.rows, rows, "all partitions together");
                assert_eq!(answer.pipelines[1].passes, of, "{join:?}");
            }
            // With a condition on both rows.
            let joins = [JoinKind::Left, JoinKind::Semi, JoinKind::Anti];
            for join in joins.into_iter().filter(|_| repeats > 1) {
                let condition = Some(Expr::compare(CompareOp::Less, r(2), Expr::int(100)));
                let step = Step::Probe(Probe { table: 0, kind: join, keys: vec![r(0)], payload: vec![0], condition });
                let pipelines = vec![build(0, r(0), vec![r(1)]), last(step, vec![r(1), r(0)])];
                same_split(&executor, &Program { pipelines }, &sources, &[4, 1]);
            }
        }
    }
}

/// `NOT IN` an empty table passes rows without a key. The table is empty only if all partitions
/// are.
#[test]
fn not_in_asks_about_all_partitions() {
    let executor = executor();
    let facts = facts(300, 1, 900);
    for keep in [0, 7, 640] {
        // Only a part of the table's rows.
        let step = Step::Filter(Expr::compare(CompareOp::Less, r(0), Expr::int(keep)));
        let build = Pipeline { steps: vec![step], ..build(0, r(0), vec![]) };
        let sink = Sink::Collect { columns: vec![r(1), r(0)] };
        let step = probe(0, JoinKind::NotIn, r(0), vec![]);
        let last = Pipeline { source: 1, columns: vec![0, 1], steps: vec![step], sink };
        for apart in [1, FAR] {
            let sources = vec![dimension(640, apart, 1, false), Arc::clone(&facts)];
            let pipelines = vec![build.clone(), last.clone()];
            same_split(&executor, &Program { pipelines }, &sources, &[8, 1]);
        }
    }
}

/// A table that is built from the matches of a split table. The last pipeline probes both, in every
/// combination of partitions.
fn nested(kind: JoinKind, last: JoinKind) -> Program {
    let names = build(0, r(0), vec![r(1)]);
    // The facts that have a match, or have none, by their number.
    let payload = if kind == JoinKind::Left { vec![0] } else { vec![] };
    let values = if kind == JoinKind::Left { vec![r(0), r(2)] } else { vec![r(0), r(0)] };
    let sink = Sink::Build { keys: vec![r(1)], payload: values };
    let middle = Pipeline { source: 1, columns: vec![0, 1], steps: vec![probe(0, kind, r(0), payload)], sink };
    let steps = vec![
        probe(1, last, Expr::arithmetic(ArithmeticOp::Div, r(1), Expr::int(2), BIGINT), vec![0, 1]),
        probe(0, JoinKind::Left, r(2), vec![0]),
    ];
    let aggregates = vec![Aggregate::CountRows, Aggregate::Sum(r(1)), Aggregate::Min(r(3)), Aggregate::Sum(r(4))];
    let sink = Sink::Aggregate { keys: vec![r(0)], aggregates };
    Program { pipelines: vec![names, middle, Pipeline { source: 1, columns: vec![0, 1], steps, sink }] }
}

#[test]
fn tables_that_are_built_of_split_tables() {
    let executor = executor();
    for apart in [1, FAR] {
        let sources = vec![dimension(600, apart, 3, true), facts(2500, apart, 300)];
        for (kind, last) in
            [(JoinKind::Left, JoinKind::Inner), (JoinKind::Anti, JoinKind::Left), (JoinKind::Semi, JoinKind::Inner)]
        {
            let program = nested(kind, last);
            let answer = same_split(&executor, &program, &sources, &[4, 2, 2]);
            let passes: Vec<u64> = answer.pipelines.iter().map(|facts| facts.passes).collect();
            assert_eq!(passes[..2], [4, 8]);
            assert!(passes[2] >= 8, "{passes:?}");
        }
    }
}

#[test]
fn groups_of_all_sizes() {
    let executor = executor();
    let rows = 12_000;
    let value = column(rows, |row| Some((noise(row, 4) % 100_000) as i64 - 50_000));
    let aggregates = vec![Aggregate::CountRows, Aggregate::Sum(r(1)), Aggregate::Min(r(1)), Aggregate::Max(r(1))];
    for (keys, apart, passes) in [(3u64, 1, 1), (5000, 1, 8), (5001, 1, 8), (11_999, FAR, 8)] {
        let key = |row: usize| (row != 77).then(|| (noise(row, 5) % keys) as i64 * apart);
        let source = stored(&[column(rows, key), value.clone()], 5000, 2048);
        let sink = Sink::Aggregate { keys: vec![r(0)], aggregates: aggregates.clone() };
        let pipelines = vec![Pipeline { source: 0, columns: vec![0, 1], steps: vec![], sink }];
        let answer = same_split(&executor, &Program { pipelines }, &vec![source], &[8]);
        // Few groups are not partitioned.
        assert_eq!(answer.pipelines[0].passes, passes, "{keys} keys {apart} apart");
        assert_eq!(answer.chunks.len() as u64, passes);
    }
}

#[test]
fn groups_and_tables_at_once() {
    let executor = executor();
    for (apart, repeats) in [(1, 1), (FAR, 2)] {
        let sources = vec![dimension(3000, apart, repeats, true), facts(9000, apart, 3500)];
        let aggregates = vec![Aggregate::CountRows, Aggregate::Sum(r(1)), Aggregate::Max(r(0))];
        for keys in [vec![r(2)], vec![r(0), r(2)]] {
            let sink = Sink::Aggregate { keys, aggregates: aggregates.clone() };
            let steps = vec![probe(0, JoinKind::Left, r(0), vec![0])];
            let last = Pipeline { source: 1, columns: vec![0, 1], steps, sink };
            let program = Program { pipelines: vec![build(0, r(0), vec![r(1)]), last] };
            let answer = same_split(&executor, &program, &sources, &[4, 4]);
            assert_eq!(answer.pipelines[1].passes, 16);
        }
    }
}

/// A table that a pipeline probes twice, by different keys, is not split. A table that two
/// pipelines probe once each may be split.
#[test]
fn a_table_that_is_asked_twice_stays_whole() {
    let executor = executor();
    let sources = vec![dimension(600, 1, 1, false), facts(2500, 1, 900)];
    let other = Expr::arithmetic(ArithmeticOp::Div, r(1), Expr::int(3), BIGINT);
    let steps = vec![probe(0, JoinKind::Inner, r(0), vec![0]), probe(0, JoinKind::Left, other, vec![0])];
    let sink = Sink::Collect { columns: vec![r(1), r(2), r(3)] };
    let last = Pipeline { source: 1, columns: vec![0, 1], steps, sink };
    let program = Program { pipelines: vec![build(0, r(0), vec![r(1)]), last] };
    let answer = same_split(&executor, &program, &sources, &[8, 1]);
    assert_eq!(answer.pipelines[1].passes, 1);
}

#[test]
fn an_error_is_the_same_in_whatever_pass_it_is() {
    let executor = executor();
    let small = Bounds { min: -1000, max: 1000, type_name: "SMALL" };
    let product = |register| Expr::arithmetic(ArithmeticOp::Mul, r(register), r(register), small);
    let quotient = |register| Expr::arithmetic(ArithmeticOp::Div, Expr::int(7), r(register), BIGINT);
    let last = |steps, sink| Pipeline { source: 1, columns: vec![0, 1], steps, sink };
    let sum = |exprs: Vec<Expr>| {
        let aggregates = exprs.into_iter().map(Aggregate::Sum).collect();
        Sink::Aggregate { keys: vec![r(0)], aggregates }
    };
    let keys = column(2000, |row| Some(row as i64));
    for at in [3, 700, 1999] {
        // Too large in one row, zero in another one.
        let values = |row: usize| Some(if row == at { 40 } else { 1 + (row % 30) as i64 });
        let zeros = |row: usize| Some(if row == 1999 - at { 0 } else { 1 + (row % 20) as i64 });
        let (values, zeros) = (column(2000, values), column(2000, zeros));
        let dimension = stored(&[keys.clone(), values], 1000, 1024);
        let facts = stored(&[keys.clone(), zeros], 1000, 1024);
        let sources = vec![dimension, facts];
        let find = |payload| vec![probe(0, JoinKind::Inner, r(0), payload)];
        // The reported error is the first one: by pipeline, then by position in the kernel source.
        // The flag is true for a division by zero.
        let programs = [
            // The build fails, and the probing pipeline would fail later.
            (false, vec![build(0, r(0), vec![product(1)]), last(find(vec![0]), sum(vec![quotient(1)]))]),
            // Both in one pipeline, in different passes, in either order.
            (false, vec![build(0, r(0), vec![r(1)]), last(find(vec![0]), sum(vec![product(2), quotient(1)]))]),
            (true, vec![build(0, r(0), vec![r(1)]), last(find(vec![0]), sum(vec![quotient(1), product(2)]))]),
            (
                true,
                vec![
                    build(0, r(0), vec![r(1)]),
                    last(find(vec![0]), Sink::Collect { columns: vec![quotient(1), product(2)] }),
                ],
            ),
        ];
        for (is_division, pipelines) in programs {
            let program = Program { pipelines };
            let execution = execution(&program, &sources);
            onehop_pipeline::cpu::run(&mut execution.clone(), 1).unwrap_err();
            for split in [[1, 1], [8, 1], [1, 8], [4, 4]] {
                let error = run_split(&executor, &execution, &split).map_err(of_pipeline).unwrap_err();
                assert_eq!(matches!(error, PipelineError::DivisionByZero { .. }), is_division, "{split:?}\n{program}");
                assert_eq!(matches!(error, PipelineError::OutOfRange { .. }), !is_division, "{split:?}\n{program}");
            }
        }
    }
}

fn of_pipeline(error: Error) -> PipelineError {
    match error {
        Error::Pipeline(error) => error,
        other => panic!("{other}"),
    }
}

/// A table and groups that each take twice the available memory.
#[test]
fn what_takes_twice_the_memory_is_there_in_parts() {
    let executor = executor();
    for (apart, kind) in [(1, TableKind::Direct), (FAR, TableKind::Hashed)] {
        let sources = vec![dimension(20_000, apart, 1, true), facts(30_000, apart, 22_000)];
        let steps = vec![probe(0, JoinKind::Left, r(0), vec![0])];
        let aggregates = vec![Aggregate::CountRows, Aggregate::Sum(r(1)), Aggregate::Min(r(2))];
        let sink = Sink::Aggregate { keys: vec![r(0)], aggregates };
        let last = Pipeline { source: 1, columns: vec![0, 1], steps, sink };
        let program = Program { pipelines: vec![build(0, r(0), vec![r(1)]), last] };
        let mut execution = execution(&program, &sources);
        let expected = rows_of(&onehop_pipeline::cpu::run(&mut execution.clone(), 1).unwrap());
        let whole = within(&executor, &execution, u64::MAX).unwrap();
        let table = whole.pipelines[0].table.unwrap();
        assert_eq!(table.kind, kind);
        // Some 20,000 groups of four words and more.
        let groups = 20_000 * 32;
        assert_eq!(whole.pipelines[1].passes, 1);
        for bytes in [table.bytes / 2 + groups * 3, groups / 2 + table.bytes, groups / 2] {
            executor.give_back_idle();
            let answer = within(&executor, &execution, bytes).unwrap();
            assert_eq!(rows_of(&answer.chunks), expected, "{bytes} bytes");
            let passes = answer.pipelines[1].passes;
            println!("{kind:?}: a table of {} bytes within {bytes}: {passes} passes", table.bytes);
            assert!(bytes > groups || (2..=64).contains(&passes), "{passes} passes within {bytes} bytes");
        }
        // The expectation covers what is known: the table.
        let passes = executor.expected_passes(&execution, table.bytes / 2);
        assert!(passes[0] >= 2 && passes[1] == passes[0], "{passes:?}");
        assert_eq!(executor.expected_passes(&execution, 1 << 30), [1, 1]);
        execution = execution.with_budget(1 << 30);
        let images = Uploads::new(executor.context());
        let memory = RunMemory { bytes: groups / 2, when_full: WhenFull::Fail };
        executor.give_back_idle();
        let refused = executor.run_within(&execution, &images, &AtomicBool::new(false), true, memory);
        assert!(matches!(refused, Err(Error::Pipeline(PipelineError::Memory { .. }))), "{refused:?}");
    }
}

/// Tables that fit one at a time: one is built again on demand, and both are split when both are
/// probed at once.
#[test]
fn tables_that_do_not_fit_beside_each_other() {
    let executor = executor();
    for (apart, repeats) in [(1, 1), (FAR, 1), (1, 3), (FAR, 3)] {
        let sources =
            vec![dimension(9000, apart, repeats, true), dimension(8000, apart, 1, false), facts(6000, apart, 9500)];
        let key = |register| Expr::arithmetic(ArithmeticOp::Add, r(register), Expr::int(0), BIGINT);
        let steps = vec![probe(0, JoinKind::Left, r(0), vec![0]), probe(1, JoinKind::Left, key(0), vec![0])];
        let aggregates = vec![Aggregate::CountRows, Aggregate::Sum(r(2)), Aggregate::Sum(r(3)), Aggregate::Max(r(1))];
        let sink = Sink::Aggregate { keys: vec![], aggregates };
        let last = Pipeline { source: 2, columns: vec![0, 1], steps, sink };
        let tables = [build(0, r(0), vec![r(1)]), build(1, r(0), vec![r(1)])];
        let program = Program { pipelines: tables.into_iter().chain([last]).collect() };
        let execution = execution(&program, &sources);
        let expected = rows_of(&onehop_pipeline::cpu::run(&mut execution.clone(), 1).unwrap());
        let whole = within(&executor, &execution, u64::MAX).unwrap();
        let bytes = |answer: &Answer| answer.pipelines.iter().filter_map(|facts| facts.table).map(|of| of.bytes).sum();
        let all: u64 = bytes(&whole);
        for part in [0.9, 0.6, 0.3] {
            let limit = (all as f64 * part) as u64;
            let answer = within(&executor, &execution, limit).unwrap();
            assert_eq!(rows_of(&answer.chunks), expected, "{limit} bytes of {all}, keys {apart} apart");
            let passes: Vec<u64> = answer.pipelines.iter().map(|facts| facts.passes).collect();
            println!("keys {apart} apart, {repeats} rows each: {all} bytes within {limit}: passes {passes:?}");
            assert!(passes[2] == passes[0] * passes[1] && passes[2] > 1 && passes[2] <= 128, "{passes:?}");
            assert!(bytes(&answer) <= limit, "tables of {} bytes within {limit}", bytes(&answer));
        }
    }
}

/// Small versions of the queries that are measured on a GPU.
#[test]
fn large_queries() {
    let executor = executor();
    for (name, program, sources) in [1, 1_000_003].into_iter().flat_map(|apart| large::queries(100_000, apart)) {
        let execution = execution(&program, &sources);
        let expected = large::digest(&onehop_pipeline::cpu::run(&mut execution.clone(), 1).unwrap());
        let answer = within(&executor, &execution, 100_000).unwrap();
        assert_eq!(large::digest(&answer.chunks), expected, "{name}");
        let passes: Vec<u64> = answer.pipelines.iter().map(|facts| facts.passes).collect();
        println!("{name}: passes {passes:?}");
        assert!(passes.iter().any(|passes| *passes > 1), "{name}: {passes:?}");
        let whole = within(&executor, &execution, u64::MAX).unwrap();
        assert!(whole.pipelines.iter().all(|facts| facts.passes == 1), "{name}");
        assert_eq!(large::digest(&whole.chunks), expected, "{name}");
    }
}

/// A backend reports the number of passes to its caller.
#[test]
fn a_backend_says_how_many_passes_it_took() {
    let devices = CudaDevices::of_contexts(&[fake::context()], &fake::nvrtc(), options());
    let backend = &devices.all().unwrap()[0];
    let sources = vec![dimension(20_000, 1, 1, true), facts(10_000, 1, 22_000)];
    let steps = vec![probe(0, JoinKind::Left, r(0), vec![0])];
    let sink = Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::CountRows, Aggregate::Sum(r(2))] };
    let last = Pipeline { source: 1, columns: vec![0, 1], steps, sink };
    let program = Program { pipelines: vec![build(0, r(0), vec![r(1)]), last] };
    let execution = execution(&program, &sources);
    let expected = rows_of(&onehop_pipeline::cpu::run(&mut execution.clone(), 1).unwrap());
    for (bytes, is_split) in [(1 << 30, false), (40_000, true)] {
        let hints = Hints { stored: vec![None, None], memory: MemoryLimit::Bytes(bytes), ..Hints::default() };
        let prepared = backend.prepare(&execution, &hints).unwrap();
        let ledgers = [Arc::default(), Arc::default()];
        let cancelled = AtomicBool::new(false);
        let budget = Budget::from(0);
        let (ledgers, did_rows) = (&ledgers, &|_| {});
        let control = Control { cancelled: &cancelled, counts_steps: true, ledgers, did_rows, budget: &budget };
        let mut chunks = Vec::new();
        let mut take = |chunk| {
            chunks.push(chunk);
            Ok(())
        };
        let ran = prepared.run(&control, &mut take).unwrap();
        assert_eq!(rows_of(&chunks), expected);
        assert_eq!(ran.iter().map(|ran| ran.passes > 1).collect::<Vec<_>>(), [is_split; 2], "{ran:?}");
        // Every row was read in each pass, and passed on in one.
        assert_eq!(ran[1].steps[0].rows_out, 10_000);
        assert!(!is_split || ran[1].steps[0].rows_in > 10_000);
        assert_eq!(ran[1].rows, 10_000);
    }
}

/// A device that has less memory than stated, and reports it by failing allocations.
#[test]
fn a_driver_without_memory_leads_there_as_well() {
    let (machine, context) = Machine::start();
    let executor = Executor::new(&context, &fake::nvrtc(), None, options());
    let sources = vec![dimension(20_000, FAR, 2, true), facts(10_000, FAR, 22_000)];
    let steps = vec![probe(0, JoinKind::Inner, r(0), vec![0])];
    let sink = Sink::Aggregate { keys: vec![r(2)], aggregates: vec![Aggregate::CountRows, Aggregate::Sum(r(1))] };
    let last = Pipeline { source: 1, columns: vec![0, 1], steps, sink };
    let program = Program { pipelines: vec![build(0, r(0), vec![r(1)]), last] };
    let execution = execution(&program, &sources);
    let expected = rows_of(&onehop_pipeline::cpu::run(&mut execution.clone(), 1).unwrap());
    let whole = within(&executor, &execution, u64::MAX).unwrap();
    executor.give_back_idle();
    // Columns take some of it.
    machine.set_memory(700_000);
    let answer = within(&executor, &execution, u64::MAX).unwrap();
    assert_eq!(rows_of(&answer.chunks), expected);
    assert!(answer.pipelines[1].passes > whole.pipelines[1].passes, "{:?}", answer.pipelines);
    assert!(machine.most_memory() <= 700_000);
    drop(executor);
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
}

/// All rows of one key are in one partition, whatever their number. The error tells the user what
/// to do.
#[test]
fn one_key_for_all_rows_is_told() {
    let executor = executor();
    for key in [5, FAR] {
        let keys = column(30_000, |row| Some(if row == 0 { 1 } else { key }));
        let build_side = stored(&[keys, column(30_000, |row| Some(row as i64))], 8000, 1024);
        let sources = vec![build_side, facts(100, 1, 3)];
        let steps = vec![probe(0, JoinKind::Left, r(0), vec![0])];
        let sink = Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::CountRows] };
        let last = Pipeline { source: 1, columns: vec![0, 1], steps, sink };
        let program = Program { pipelines: vec![build(0, r(0), vec![r(1)]), last] };
        let execution = execution(&program, &sources);
        within(&executor, &execution, 1 << 20).unwrap();
        executor.give_back_idle();
        let error = within(&executor, &execution, 40_000).map_err(of_pipeline).unwrap_err();
        assert!(matches!(error, PipelineError::Memory { .. }), "{error}");
        assert!(error.to_string().contains("one key") && error.to_string().contains("gpu.memory_limit"), "{error}");
    }
}

#[test]
fn rows_that_there_is_no_room_for_leave_in_parts() {
    let executor = executor();
    let sources = vec![dimension(3000, 1, 3, true), facts(20_000, 1, 1100)];
    let key = SortKey { expr: r(1), direction: Direction::Descending, nulls: Nulls::Last };
    let sinks = [
        Sink::Collect { columns: vec![r(1), r(0), r(2)] },
        Sink::Top { rows: 3000, keys: vec![key], columns: vec![r(1)] },
    ];
    for sink in sinks {
        let steps = vec![probe(0, JoinKind::Left, r(0), vec![0])];
        let last = Pipeline { source: 1, columns: vec![0, 1], steps, sink };
        let program = Program { pipelines: vec![build(0, r(0), vec![r(1)]), last] };
        let execution = execution(&program, &sources);
        let expected = rows_of(&onehop_pipeline::cpu::run(&mut execution.clone(), 1).unwrap());
        for bytes in [200_000, 60_000] {
            executor.give_back_idle();
            let answer = within(&executor, &execution, bytes).unwrap();
            assert_eq!(rows_of(&answer.chunks), expected, "{bytes} bytes\n{program}");
            // `Top` needs less memory than all rows.
            let is_much = matches!(execution.program().pipelines[1].sink, Sink::Collect { .. }) || bytes < 100_000;
            assert_eq!(answer.pipelines[1].passes > 1, is_much, "{:?}", answer.pipelines);
        }
    }
}

/// Sets the flag when a column is requested for the n-th time.
#[derive(Debug)]
struct Impatient<'a> {
    images: Uploads,
    left: AtomicUsize,
    cancelled: &'a AtomicBool,
}

impl Images for Impatient<'_> {
    fn column(&self, source: &Arc<dyn Source>, column: usize) -> Result<Option<Arc<ColumnImage>>> {
        if self.left.fetch_sub(1, SeqCst) == 1 {
            self.cancelled.store(true, SeqCst);
        }
        self.images.column(source, column)
    }
}

#[test]
fn a_query_is_cancelled_between_passes() {
    let executor = executor();
    let sources = vec![dimension(600, 1, 1, false), facts(2500, 1, 900)];
    let sink = Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::Sum(r(2))] };
    let steps = vec![probe(0, JoinKind::Inner, r(0), vec![0])];
    let last = Pipeline { source: 1, columns: vec![0, 1], steps, sink };
    let program = Program { pipelines: vec![build(0, r(0), vec![r(1)]), last] };
    let execution = execution(&program, &sources);
    for after in [1, 3, 7, 10] {
        let cancelled = AtomicBool::new(false);
        let images = Impatient {
            images: Uploads::new(executor.context()),
            left: AtomicUsize::new(after),
            cancelled: &cancelled,
        };
        let outcome = executor.run_split(&execution, &images, &cancelled, true, RunMemory::default(), &[16, 1]);
        assert!(matches!(outcome, Err(Error::Pipeline(PipelineError::Cancelled))), "{after}: {outcome:?}");
        // At most the other column of the launch in preparation.
        let more = 0usize.wrapping_sub(images.left.load(SeqCst));
        assert!(more <= 1, "{more} columns after {after}");
    }
}

/// A column of 32 bits whose values wrap around to existing keys, in each of the partitions.
#[test]
fn values_that_are_far_from_all_keys_find_nothing() {
    let executor = executor();
    let span = i64::from(u32::MAX);
    for least in [100, -span + 900] {
        // In a block: the least value, the greatest, and some that are keys after 2^32 is added or
        // subtracted.
        let value = |row: usize| match row % 4 {
            0 => least,
            1 => least + span,
            2 => least + (noise(row, 9) % 900) as i64,
            _ => least + span - (noise(row, 8) % 900) as i64,
        };
        let probing = stored(&[column(1000, |row| Some(value(row))), column(1000, |row| Some(row as i64))], 1000, 1024);
        let sources = vec![dimension(1000, 1, 1, false), probing];
        let sink = Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::CountRows, Aggregate::Sum(r(1))] };
        let steps = vec![probe(0, JoinKind::Semi, r(0), vec![])];
        let last = Pipeline { source: 1, columns: vec![0, 1], steps, sink };
        let program = Program { pipelines: vec![build(0, r(0), vec![]), last] };
        for of in [1, 2, 7] {
            same_split(&executor, &program, &sources, &[of, 1]);
        }
    }
}
