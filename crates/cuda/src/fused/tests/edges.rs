//! Edge cases that random data hits only by chance.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, Float32Array, Float64Array, RecordBatch, StringViewArray, UInt64Array,
};
use arrow_schema::{Field, Schema};
use onehop_pipeline::cpu::{Execution, TableKind};
use onehop_pipeline::ir::{Aggregate, Direction, JoinKind, Nulls, Pipeline, Probe, Program, Sink, SortKey, Step};
use onehop_pipeline::{
    ArithmeticOp, BatchSourceBuilder, Bounds, CompareOp, DatePart, Error as PipelineError, Expr, Source, Value,
};
use onehop_segment::ColumnType;

use super::shapes::{BIGINT, executor, executor_of, options, r, same, stored, stored_batch};
use crate::fused::form::Layout;
use crate::fused::image::forms_of_column;
use crate::fused::{Error, Options, Uploads};

fn one(columns: usize, steps: Vec<Step>, sink: Sink) -> Program {
    Program { pipelines: vec![Pipeline { source: 0, columns: (0..columns).collect(), steps, sink }] }
}

fn noise(row: usize, salt: u64) -> u64 {
    let mut x = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

/// Returns values of `bits` bits, starting at `base`. One of `nulls` values is NULL, if `nulls` is
/// not 0.
fn bits(rows: usize, bits: u32, base: i64, nulls: u64) -> Vec<Option<i64>> {
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    let value = |row: usize| base.wrapping_add((noise(row, bits.into()) & mask) as i64);
    (0..rows).map(|row| (nulls == 0 || !noise(row, 77).is_multiple_of(nulls)).then(|| value(row))).collect()
}

#[test]
fn every_width_is_read_as_it_was_written() {
    let rows = 4099;
    let widths: [(u32, i64); 8] =
        [(0, -5), (1, 0), (31, -7), (32, 9), (33, -(1 << 40)), (62, 0), (63, i64::MIN / 2), (17, 1 << 50)];
    for nulls in [0, 3] {
        let columns: Vec<_> = widths.iter().map(|(width, base)| bits(rows, *width, *base, nulls)).collect();
        let source = stored(&columns, 1500, 1024);
        let exprs: Vec<Expr> = (0..columns.len()).map(r).collect();
        let executor = executor();
        same(
            &executor,
            one(columns.len(), vec![], Sink::Collect { columns: exprs.clone() }),
            vec![Arc::clone(&source)],
        );
        let aggregates = exprs.iter().flat_map(|expr| {
            [
                Aggregate::Sum(expr.clone()),
                Aggregate::Min(expr.clone()),
                Aggregate::Max(expr.clone()),
                Aggregate::Count(expr.clone()),
            ]
        });
        let sink = Sink::Aggregate { keys: vec![], aggregates: aggregates.collect() };
        same(&executor, one(columns.len(), vec![], sink), vec![source]);
    }
}

/// Segments with different widths, bases and dictionaries, and blocks that are constant or all
/// NULL.
#[test]
fn segments_differ() {
    let rows = 9000;
    let column = |of: &dyn Fn(usize) -> Option<i64>| (0..rows).map(of).collect::<Vec<_>>();
    let growing = column(&|row| Some((noise(row, 1) % (2 << (row / 1000))) as i64 + row as i64));
    let blocks = column(&|row| match row / 1024 {
        0 | 3 => None,
        1 => Some(42),
        _ => (!row.is_multiple_of(5)).then_some((row % 9) as i64),
    });
    // Few values, far apart: stored as codes.
    let coded = column(&|row| Some((noise(row, 2) % 5) as i64 * 1_000_000_007 * (1 + (row / 2000) as i64)));
    let source = stored(&[growing, blocks, coded], 2000, 1024);
    let within = |register, low: i64, high: i64| {
        Step::Filter(Expr::And(vec![
            Expr::compare(CompareOp::GreaterOrEqual, r(register), Expr::int(low)),
            Expr::compare(CompareOp::LessOrEqual, r(register), Expr::int(high)),
        ]))
    };
    let aggregates = vec![Aggregate::Sum(r(0)), Aggregate::Sum(r(2)), Aggregate::Count(r(1)), Aggregate::CountRows];
    let by = |steps, keys| one(3, steps, Sink::Aggregate { keys, aggregates: aggregates.clone() });
    // If rows are not counted, two ranges of one column are merged.
    for executor in [executor(), executor_of(Options { counts: false, ..options() })] {
        // The same kernel source with other constants, which select other parts of the data.
        for (low, high) in [(0, 8000), (500, 700), (42, 42), (9, 3), (i64::MIN, i64::MAX)] {
            same(&executor, by(vec![within(0, low, high)], vec![r(1)]), vec![Arc::clone(&source)]);
        }
        assert!(executor.compiler().counts().compiled <= 2, "{:?}", executor.compiler().counts());
        for steps in [
            vec![within(1, 3, 42)],
            vec![within(2, 1, 3_000_000_021), within(0, 10, 100_000)],
            vec![Step::Filter(Expr::IsNull(Box::new(r(1))))],
        ] {
            same(&executor, by(steps, vec![]), vec![Arc::clone(&source)]);
        }
    }
}

/// A handful of groups with nearly all rows: every width, code and sign that is summed up by
/// vectors, and blocks that are not.
#[test]
fn dense_rows() {
    let rows = 40_000;
    let column = |of: &dyn Fn(usize) -> i64| (0..rows).map(|row| Some(of(row))).collect::<Vec<_>>();
    let key = column(&|row| (noise(row, 1) % 3) as i64 - 1);
    let other = column(&|row| (noise(row, 2) % 2) as i64 * 1_000_000_000);
    let negative = column(&|row| -((noise(row, 3) % 5000) as i64));
    let coded = column(&|row| [-7, 0, 3_000_000_000, 9_000_000_000][(noise(row, 4) % 4) as usize]);
    // Most segments have one width, the first ones have others; some blocks have a single value.
    let mixed = column(&|row| match row / 1024 {
        0..9 => (noise(row, 5) % 100) as i64,
        20 => 77,
        _ => (noise(row, 5) % 100_000) as i64,
    });
    let wide = column(&|row| (noise(row, 6) & 0x7fff_ffff) as i64);
    let date = column(&|row| (noise(row, 7) % 2526) as i64);
    let source = stored(&[key, other, negative, coded, mixed, wide, date], 9 << 10, 1024);
    let arithmetic = |op, left, right| Expr::arithmetic(op, left, right, BIGINT);
    let product = arithmetic(ArithmeticOp::Mul, r(2), arithmetic(ArithmeticOp::Sub, Expr::int(100), r(4)));
    let sums = [r(2), r(3), r(4), r(5), product.clone(), arithmetic(ArithmeticOp::Mul, r(5), r(5))];
    let before = |date: i64| Step::Filter(Expr::compare(CompareOp::LessOrEqual, r(6), Expr::int(date)));
    let executor = executor();
    // All rows, nearly all, a few of each vector, none.
    for steps in [vec![], vec![before(2400)], vec![before(60)], vec![before(-1)]] {
        for keys in [vec![r(0)], vec![r(0), r(1)]] {
            for few in [1, 3, 6] {
                let mut aggregates: Vec<Aggregate> = sums[..few].iter().cloned().map(Aggregate::Sum).collect();
                if few != 3 {
                    aggregates.extend([Aggregate::CountRows, Aggregate::Sum(r(2)), Aggregate::Count(r(5))]);
                }
                let sink = Sink::Aggregate { keys: keys.clone(), aggregates };
                same(&executor, one(7, steps.clone(), sink), vec![Arc::clone(&source)]);
            }
        }
    }
}

/// Values in equal steps are computed from their codes: of 32 and 64 bits, below zero, over the
/// whole value range, with NULLs. Ranges have their ends on a step, beside one, and beyond all of
/// them. The values are keys of groups and tables, and arguments.
#[test]
fn codes_in_steps_are_computed() {
    let rows = 20_000;
    let column = |of: &dyn Fn(usize) -> i64| (0..rows).map(|row| Some(of(row))).collect::<Vec<_>>();
    let steps = |salt: u64, count: u64| move |row: usize| (noise(row, salt) % count) as i64;
    let hundreds = column(&|row| 100 + 100 * steps(1, 50)(row));
    let below = column(&|row| -5_000_000 + 1_000_003 * steps(2, 11)(row));
    let wide = column(&|row| -(1 << 60) + (1 << 40) * steps(3, 200)(row));
    let whole = column(&|row| [i64::MIN, i64::MAX][steps(4, 2)(row) as usize]);
    // Each segment has other steps, and one has none.
    let mixed = column(&|row| match row / 4096 {
        2 => [0, 1000, 5000, 17_000][steps(5, 4)(row) as usize],
        segment => (segment as i64 + 1) * 1000 * steps(5, 9)(row),
    });
    let nullable: Vec<Option<i64>> = (0..rows).map(|row| (row % 5 > 0).then(|| 7000 * steps(6, 30)(row))).collect();
    let few = column(&|row| 1_000_000 * steps(7, 3)(row));
    let columns = [hundreds, below, wide, whole, mixed, nullable, few];
    let source = stored(&columns, 4096, 1024);
    for column in 0..columns.len() {
        let forms = forms_of_column(&*source, column).unwrap();
        assert!(forms.iter().any(|form| matches!(Layout::of(*form), Layout::Steps(_))), "column {column}: {forms:?}");
    }
    let executor = executor();
    let exprs: Vec<Expr> = (0..columns.len()).map(r).collect();
    same(&executor, one(7, vec![], Sink::Collect { columns: exprs.clone() }), vec![Arc::clone(&source)]);
    let within = |register, low: i64, high: i64| {
        Step::Filter(Expr::And(vec![
            Expr::compare(CompareOp::GreaterOrEqual, r(register), Expr::int(low)),
            Expr::compare(CompareOp::LessOrEqual, r(register), Expr::int(high)),
        ]))
    };
    let sums =
        || exprs.iter().cloned().flat_map(|expr| [Aggregate::Sum(expr.clone()), Aggregate::Count(expr)]).collect();
    for (register, low, high) in [
        (0, 100, 5000),
        (0, 101, 299),
        (0, 200, 300),
        (0, 199, 301),
        (0, 101, 199),
        (0, i64::MIN, 100),
        (0, 5000, i64::MAX),
        (0, 5001, i64::MAX),
        (0, 0, 99),
        (1, -4_000_000, 1),
        (2, -(1 << 60) + 1, -(1 << 59)),
        (3, i64::MIN, 0),
        (3, i64::MIN + 1, i64::MAX),
        (3, i64::MIN + 1, i64::MAX - 1),
        (4, 4000, 17_000),
        (5, 7001, 63_000),
    ] {
        let sink = Sink::Aggregate { keys: vec![], aggregates: sums() };
        same(&executor, one(7, vec![within(register, low, high)], sink), vec![Arc::clone(&source)]);
    }
    for keys in [vec![r(6)], vec![r(1), r(6)], vec![r(2)], vec![r(5)]] {
        let product = Expr::arithmetic(ArithmeticOp::Mul, r(0), r(1), BIGINT);
        let aggregates = [r(0), r(1), r(4), product].map(Aggregate::Sum).into_iter().chain([Aggregate::CountRows]);
        let sink = Sink::Aggregate { keys, aggregates: aggregates.collect() };
        same(&executor, one(7, vec![], sink), vec![Arc::clone(&source)]);
    }
    // Keys of a table in steps as well, and between them; in shared memory, and not.
    let keys = (0..60).map(|key| Some(key * 50)).collect::<Vec<_>>();
    let wide_keys = (0..60).map(|key| Some(i64::MAX - key)).collect::<Vec<_>>();
    let build_source = stored(&[keys, wide_keys], 4096, 1024);
    for executor in [executor, executor_of(Options { many_rows: u64::MAX, ..options() })] {
        for (key, register, kind) in [
            (0, 0, JoinKind::Semi),
            (0, 4, JoinKind::Inner),
            (0, 5, JoinKind::Semi),
            (0, 5, JoinKind::Anti),
            (1, 3, JoinKind::Semi),
            (1, 3, JoinKind::Anti),
        ] {
            let few = Pipeline {
                source: 0,
                columns: vec![key],
                steps: vec![],
                sink: Sink::Build { keys: vec![r(0)], payload: vec![] },
            };
            let probe =
                Step::Probe(Probe { table: 0, kind, keys: vec![r(register)], payload: vec![], condition: None });
            let sink = Sink::Aggregate { keys: vec![], aggregates: sums() };
            let all = Pipeline { source: 1, columns: (0..7).collect(), steps: vec![probe], sink };
            let program = Program { pipelines: vec![few, all] };
            same(&executor, program, vec![Arc::clone(&build_source), Arc::clone(&source)]);
        }
    }
}

#[test]
fn wide_sums_carry_both_ways() {
    let rows = 3000;
    let large: Vec<Option<i64>> = (0..rows)
        .map(|row: usize| {
            Some(if row.is_multiple_of(3) { i64::MIN + row as i64 } else { i64::MAX - (noise(row, 3) % 1000) as i64 })
        })
        .collect();
    let negative = (0..rows).map(|row| Some(-(1 << 62) - row as i64)).collect();
    let key = (0..rows).map(|row| Some((row % 3) as i64)).collect();
    let source = stored(&[large, negative, key], 1000, 1024);
    let aggregates = vec![Aggregate::Sum(r(0)), Aggregate::Sum(r(1))];
    let executor = executor();
    for keys in [vec![], vec![r(2)], vec![Expr::arithmetic(ArithmeticOp::Mul, r(2), Expr::int(1i64 << 40), BIGINT)]] {
        same(
            &executor,
            one(3, vec![], Sink::Aggregate { keys, aggregates: aggregates.clone() }),
            vec![Arc::clone(&source)],
        );
    }
}

/// Columns of every type with its own storage, as segments and as record batches.
#[test]
fn types_of_all_kinds() {
    let rows = 3000;
    let n = |row: usize, salt| noise(row, salt);
    let is_there = |row: usize| !row.is_multiple_of(7);
    let doubles = [0.0, -0.0, 1.5, -1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e-300, 3.0];
    let arrays: Vec<(ArrayRef, ColumnType)> = vec![
        (Arc::new((0..rows).map(|row| is_there(row).then(|| n(row, 1))).collect::<UInt64Array>()), ColumnType::UInt64),
        (
            Arc::new((0..rows).map(|row| is_there(row).then(|| u64::MAX - n(row, 2) % 1000)).collect::<UInt64Array>()),
            ColumnType::UInt64,
        ),
        (
            Arc::new(
                (0..rows)
                    .map(|row| is_there(row).then(|| doubles[(n(row, 3) % 10) as usize]))
                    .collect::<Float64Array>(),
            ),
            ColumnType::Float64,
        ),
        (
            Arc::new((0..rows).map(|row| is_there(row).then(|| n(row, 4) % 3 == 0)).collect::<BooleanArray>()),
            ColumnType::Boolean,
        ),
        (
            Arc::new(
                (0..rows)
                    .map(|row| is_there(row).then(|| ["ash", "birch", "elm"][(n(row, 5) % 3) as usize]))
                    .collect::<StringViewArray>(),
            ),
            ColumnType::Varchar,
        ),
        (
            Arc::new((0..rows).map(|row| is_there(row).then_some(row as i32 * 11)).collect::<Date32Array>()),
            ColumnType::Date,
        ),
        (Arc::new((0..rows).map(|row| Some((n(row, 6) as f32) / 7.0)).collect::<Float32Array>()), ColumnType::Float32),
    ];
    let fields: Vec<Field> = arrays
        .iter()
        .enumerate()
        .map(|(number, (array, _))| Field::new(format!("c{number}"), array.data_type().clone(), true))
        .collect();
    let types: Vec<_> = fields.iter().map(|field| field.data_type().clone()).enumerate().collect();
    let columns = arrays.iter().map(|(array, _)| Arc::clone(array)).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    let mut builder = BatchSourceBuilder::new("t", &types).unwrap();
    builder.push(&batch).unwrap();
    let column_types: Vec<_> = arrays.iter().enumerate().map(|(number, (_, ty))| (number, ty.clone(), true)).collect();
    let executor = executor();
    let sources: [Arc<dyn Source>; 2] = [stored_batch(&batch, &column_types, 1100, 1024), Arc::new(builder.finish())];
    for source in sources {
        let all = || (0..arrays.len()).map(r).collect::<Vec<_>>();
        let run = |steps, sink| same(&executor, one(arrays.len(), steps, sink), vec![Arc::clone(&source)]);
        run(vec![], Sink::Collect { columns: all() });
        let ends = (0..arrays.len()).flat_map(|column| [Aggregate::Min(r(column)), Aggregate::Max(r(column))]);
        // Minima and maxima of more than 64 bits are refused.
        let ends: Vec<_> = ends.skip(4).chain([Aggregate::Count(r(0)), Aggregate::CountRows]).collect();
        let literal = |value| Expr::Literal(Value::Double(value));
        for (op, value) in [(CompareOp::Less, 1.5), (CompareOp::Equal, 0.0), (CompareOp::GreaterOrEqual, f64::NAN)] {
            let steps = vec![Step::Filter(Expr::compare(op, r(2), literal(value)))];
            run(steps, Sink::Aggregate { keys: vec![r(4)], aggregates: ends.clone() });
        }
        let half = Expr::arithmetic(ArithmeticOp::Mul, r(6), literal(0.5), Bounds::NONE);
        let computed =
            Expr::arithmetic(ArithmeticOp::Add, half, Expr::ToDouble { expr: Box::new(r(5)), scale: 2 }, Bounds::NONE);
        let year = Expr::DatePart { part: DatePart::Year, date: Box::new(r(5)) };
        let month = Expr::DatePart { part: DatePart::Month, date: Box::new(r(5)) };
        let rescaled = Expr::Rescale { expr: Box::new(r(5)), digits: -2, bounds: BIGINT };
        run(vec![], Sink::Collect { columns: vec![computed, year.clone(), month.clone(), rescaled] });
        run(vec![], Sink::Aggregate { keys: vec![year, r(3)], aggregates: vec![Aggregate::Max(month)] });
        let more = Expr::arithmetic(ArithmeticOp::Add, r(0), r(1), Bounds::NONE);
        run(
            vec![Step::Filter(Expr::compare(CompareOp::Greater, more, Expr::int(1i128 << 64)))],
            Sink::Collect { columns: all() },
        );
    }
}

fn fails(program: &Program, source: &Arc<dyn Source>) -> PipelineError {
    let execution = Execution::new(program.clone(), vec![Arc::clone(source)], 1 << 30).unwrap();
    let executor = executor();
    let outcome = executor.run(&execution, &Uploads::new(executor.context()), &AtomicBool::new(false));
    let Err(Error::Pipeline(error)) = outcome else { panic!("{outcome:?}") };
    let on_the_cpu = onehop_pipeline::cpu::run(&mut execution.clone(), 1).unwrap_err();
    assert_eq!(error.to_string(), on_the_cpu.to_string(), "{program}");
    error
}

#[test]
fn what_does_not_fit_is_an_error_wherever_the_row_is() {
    let small = Bounds { min: -1000, max: 1000, type_name: "SMALL" };
    let product = |bounds| Expr::arithmetic(ArithmeticOp::Mul, r(0), r(0), bounds);
    for at in [0, 1023, 2999] {
        let values = (0..3000).map(|row| Some(if row == at { 40 } else { row as i64 % 30 })).collect();
        let source = stored(&[values], 3000, 1024);
        let sum = |expr| one(1, vec![], Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::Sum(expr)] });
        assert!(matches!(fails(&sum(product(small)), &source), PipelineError::OutOfRange { .. }));
        // There is no error if an infallible filter removes the row.
        let mut filtered = sum(product(small));
        filtered.pipelines[0].steps.push(Step::Filter(Expr::compare(CompareOp::Less, r(0), Expr::int(31))));
        same(&executor(), filtered, vec![Arc::clone(&source)]);
        let quotient = Expr::arithmetic(ArithmeticOp::Div, Expr::int(7), r(0), BIGINT);
        assert!(matches!(fails(&sum(quotient), &source), PipelineError::DivisionByZero { .. }));
    }
    let wide = stored(&[vec![Some(i64::MIN), Some(i64::MAX), Some(-1)]], 10, 1024);
    let cube = Expr::arithmetic(ArithmeticOp::Mul, product(Bounds::NONE), product(Bounds::NONE), Bounds::NONE);
    assert!(matches!(
        fails(
            &one(
                1,
                vec![Step::Filter(Expr::compare(CompareOp::Greater, cube, Expr::int(0)))],
                Sink::Collect { columns: vec![r(0)] }
            ),
            &wide
        ),
        PipelineError::OutOfRange { .. }
    ));
}

#[test]
fn groups_few_and_many() {
    let rows = 12_000;
    let executor = executor();
    let aggregates = || vec![Aggregate::CountRows, Aggregate::Sum(r(1)), Aggregate::Min(r(1)), Aggregate::Max(r(1))];
    let value: Vec<_> = (0..rows).map(|row| Some((noise(row, 4) % 100_000) as i64 - 50_000)).collect();
    for keys in [1u64, 3, 40, 128, 129, 5000, 11_999] {
        // One key is hot: every other row has it.
        let key = |row: usize| if row.is_multiple_of(2) { 0 } else { (noise(row, 5) % keys) as i64 };
        let key: Vec<_> = (0..rows).map(|row| Some(key(row))).collect();
        let source = stored(&[key, value.clone()], 5000, 2048);
        same(&executor, one(2, vec![], Sink::Aggregate { keys: vec![r(0)], aggregates: aggregates() }), vec![source]);
    }
    // In registers, with NULL among the keys and the values, and sums so large that they are
    // combined early.
    let (few, large) = (bits(rows, 2, 0, 5), bits(rows, 40, -(1 << 39), 4));
    let source = stored(&[few, large], 5000, 2048);
    let mut all = aggregates();
    all.extend([Aggregate::Count(r(1)), Aggregate::Sum(r(1)), Aggregate::Sum(r(0))]);
    same(&executor, one(2, vec![], Sink::Aggregate { keys: vec![r(0)], aggregates: all }), vec![source]);
    // Keys so far apart that they are hashed; all distinct, and NULL among them.
    let key = (0..rows).map(|row| (row != 77).then(|| row as i64 * 1_000_000_007)).collect();
    let source = stored(&[key, value], 5000, 2048);
    let answer =
        same(&executor, one(2, vec![], Sink::Aggregate { keys: vec![r(0)], aggregates: aggregates() }), vec![source]);
    assert_eq!(answer.chunks[0][0].len(), rows);
}

#[test]
fn the_first_rows_of_many() {
    let rows = 8000;
    let key = bits(rows, 20, -500_000, 9);
    let equal = (0..rows).map(|row| (!row.is_multiple_of(4)).then_some(7)).collect();
    let source = stored(&[key, equal, (0..rows as i64).map(Some).collect()], 5000, 2048);
    let executor = executor();
    for (by, direction, nulls) in [
        (0, Direction::Ascending, Nulls::Last),
        (0, Direction::Descending, Nulls::First),
        (0, Direction::Descending, Nulls::Last),
        // More equal values than the sink has room for: all values are equal, and as many are NULL.
        (1, Direction::Ascending, Nulls::Last),
    ] {
        let keys = vec![by, 2].into_iter().map(|by| SortKey { expr: r(by), direction, nulls }).collect();
        let program = one(3, vec![], Sink::Top { rows: 50, keys, columns: vec![r(0), r(1), r(2)] });
        let answer = same(&executor, program, vec![Arc::clone(&source)]);
        let is_tied = by == 1 || nulls == Nulls::First;
        assert_eq!(answer.pipelines[0].launches, if is_tied { 3 } else { 2 });
    }
}

fn join(kind: JoinKind, key: Expr, payload: Vec<usize>, build: Vec<Expr>, columns: Vec<Expr>) -> Program {
    let build = Pipeline {
        source: 0,
        columns: vec![0, 1],
        steps: vec![],
        sink: Sink::Build { keys: vec![r(0)], payload: build },
    };
    let probe = Probe { table: 0, kind, keys: vec![key], payload, condition: None };
    let last =
        Pipeline { source: 1, columns: vec![0, 1], steps: vec![Step::Probe(probe)], sink: Sink::Collect { columns } };
    Program { pipelines: vec![build, last] }
}

#[test]
fn joins_with_keys_of_all_kinds() {
    let executor = executor();
    // Distance of the keys: one bit for each, or hashed.
    for (apart, kind) in [(1i64, TableKind::Direct), (3_000_017, TableKind::Hashed)] {
        for (repeats, nulls) in [(1, false), (3, false), (1, true), (3, true)] {
            let key = |row: usize| (!nulls || !row.is_multiple_of(7)).then_some((row / repeats) as i64 * apart);
            let keys: Vec<_> = (0..600).map(key).collect();
            let payload = (0..600usize).map(|row| (!row.is_multiple_of(5)).then_some(row as i64 - 300)).collect();
            let build = stored(&[keys, payload], 400, 1024);
            let probe = |row: usize| (!row.is_multiple_of(11)).then_some((noise(row, 6) % 900) as i64 * apart);
            let facts =
                stored(&[(0..2500).map(probe).collect(), (0..2500).map(|row| Some(row as i64)).collect()], 2000, 1024);
            let sources = || vec![Arc::clone(&build), Arc::clone(&facts)];
            for join_kind in [JoinKind::Inner, JoinKind::Left] {
                let columns = vec![r(1), r(0), r(2)];
                let answer = same(&executor, join(join_kind, r(0), vec![0], vec![r(1)], columns), sources());
                let table = answer.pipelines[0].table.unwrap();
                assert_eq!((table.kind, table.is_unique), (kind, repeats == 1));
            }
            for join_kind in [JoinKind::Semi, JoinKind::Anti, JoinKind::NotIn] {
                same(&executor, join(join_kind, r(0), vec![], vec![], vec![r(1), r(0)]), sources());
            }
        }
    }
}

#[test]
fn sources_without_rows_and_with_one() {
    let executor = executor();
    let none = || stored(&[vec![], vec![]], 10, 1024);
    let single = || stored(&[vec![Some(3)], vec![None]], 10, 1024);
    let aggregates = vec![Aggregate::CountRows, Aggregate::Sum(r(0)), Aggregate::Max(r(1)), Aggregate::Count(r(1))];
    for source in [none, single] {
        for keys in [vec![], vec![r(0)]] {
            same(&executor, one(2, vec![], Sink::Aggregate { keys, aggregates: aggregates.clone() }), vec![source()]);
        }
    }
    for build in [none, single] {
        for facts in [none, single] {
            for kind in [JoinKind::Inner, JoinKind::Left, JoinKind::Anti, JoinKind::NotIn] {
                let payload = if matches!(kind, JoinKind::Inner | JoinKind::Left) { vec![0] } else { vec![] };
                same(&executor, join(kind, r(0), payload, vec![r(1)], vec![r(0)]), vec![build(), facts()]);
            }
        }
    }
}
