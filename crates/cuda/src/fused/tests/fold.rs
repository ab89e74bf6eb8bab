//! Sums for fits, against a plain loop over the rows.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch};
use arrow_schema::{Field, Schema};
use onehop_pipeline::cpu::Execution;
use onehop_pipeline::fit::{COLUMN_WORDS, Family, Parts, ROW_WORDS, Sums, Target};
use onehop_pipeline::ir::{Pipeline, Program, Sink, Step};
use onehop_pipeline::{ArithmeticOp, Bounds, CompareOp, Error as PipelineError, Expr, Source};
use onehop_segment::ColumnType;

use super::shapes::{BIGINT, executor, r, stored_batch};
use crate::fused::{Error, MOST_FEATURES, RunMemory, Streamed, Uploads};

/// Returns a pseudo-random number from 0 to 1.
fn uniform(n: u64) -> f64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Rows as stored, and as the numbers to be added up. Rows with a NULL are `None`.
struct Rows {
    source: Arc<dyn Source>,
    rows: Vec<Option<Vec<f64>>>,
}

/// Returns rows of doubles, with integers in every third column and booleans in every fifth, and
/// then a label. Some values of every seventh column are NULL.
fn rows(count: usize, features: usize) -> Rows {
    let value = |row: usize, column: usize| uniform((row * 40 + column) as u64);
    let is_null = |row: usize, column: usize| column % 7 == 1 && uniform((row * 91 + column) as u64) < 0.05;
    let (mut arrays, mut types, mut fields) = (Vec::<ArrayRef>::new(), Vec::new(), Vec::new());
    let mut rows: Vec<Option<Vec<f64>>> = vec![Some(Vec::new()); count];
    for column in 0..=features {
        let nulls = |row| is_null(row, column);
        let number = |row: usize| match column {
            label if label == features => f64::from(u8::from(value(row, label) < 0.4)),
            column if column % 5 == 4 => f64::from(u8::from(value(row, column) < 0.3)),
            column if column % 3 == 2 => (value(row, column) * 1000.0).floor() - 300.0,
            column => 2000.0 + value(row, column),
        };
        let (array, ty): (ArrayRef, _) = match column {
            label if label == features => {
                (Arc::new((0..count).map(|row| Some(number(row) as i64)).collect::<Int64Array>()), ColumnType::Int64)
            }
            column if column % 5 == 4 => (
                Arc::new((0..count).map(|row| Some(number(row) != 0.0)).collect::<BooleanArray>()),
                ColumnType::Boolean,
            ),
            column if column % 3 == 2 => {
                (Arc::new((0..count).map(|row| Some(number(row) as i64)).collect::<Int64Array>()), ColumnType::Int64)
            }
            _ => {
                let values = (0..count).map(|row| (!nulls(row)).then(|| number(row)));
                (Arc::new(values.collect::<Float64Array>()), ColumnType::Float64)
            }
        };
        for (row, values) in rows.iter_mut().enumerate() {
            let is_null = array.is_null(row);
            if is_null {
                *values = None;
            }
            values.iter_mut().for_each(|values| values.push(number(row)));
        }
        fields.push(Field::new(format!("c{column}"), array.data_type().clone(), true));
        types.push((column, ty, true));
        arrays.push(array);
    }
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
    Rows { source: stored_batch(&batch, &types, 3000, 1024), rows }
}

fn program(columns: Vec<Expr>, steps: Vec<Step>, read: usize) -> Program {
    Program {
        pipelines: vec![Pipeline { source: 0, columns: (0..read).collect(), steps, sink: Sink::Collect { columns } }],
    }
}

fn of_all(features: usize) -> Program {
    program((0..=features).map(r).collect(), Vec::new(), features + 1)
}

/// Combines all parts: sums are added, minima and maxima compared.
fn total(sums: &Sums, parts: &Parts) -> Vec<f64> {
    let mut total: Option<Vec<f64>> = None;
    for part in parts.each() {
        let Some(total) = &mut total else {
            total = Some(part.to_vec());
            continue;
        };
        for (word, (total, part)) in total.iter_mut().zip(part).enumerate() {
            let of_column = word.checked_sub(ROW_WORDS).map(|word| word % COLUMN_WORDS);
            *total = match (sums, of_column) {
                (Sums::Columns { .. }, Some(2)) => total.min(*part),
                (Sums::Columns { .. }, Some(3)) => total.max(*part),
                _ => *total + part,
            };
        }
    }
    total.unwrap()
}

/// Computes the same sums by a direct implementation of their definitions.
fn expected(sums: &Sums, rows: &[Option<Vec<f64>>], features: usize) -> Vec<f64> {
    let mut words = vec![0.0; sums.words(features)];
    let whole = || rows.iter().flatten();
    match sums {
        Sums::Columns { centres, target } => {
            (words[0], words[1]) = (whole().count() as f64, (rows.len() - whole().count()) as f64);
            for (column, centre) in centres.iter().enumerate() {
                let at = ROW_WORDS + column * COLUMN_WORDS;
                let is_label = column == features && *target == Target::Label;
                (words[at + 2], words[at + 3]) = (f64::INFINITY, f64::NEG_INFINITY);
                for x in whole().map(|row| row[column]) {
                    words[at] += x - centre;
                    words[at + 1] += (x - centre) * (x - centre);
                    words[at + 2] = words[at + 2].min(x);
                    words[at + 3] = words[at + 3].max(x);
                    let is_odd = !x.is_finite() || is_label && x != 0.0 && x != 1.0;
                    words[at + 4] += f64::from(u8::from(is_odd));
                }
            }
        }
        Sums::Model { family, centres, scales, target_centre, coefficients } => {
            for row in whole() {
                let scaled = (0..features).map(|n| (row[n] - centres[n]) * scales[n]);
                let z: Vec<f64> = [1.0].into_iter().chain(scaled).collect();
                let eta: f64 = z.iter().zip(coefficients).map(|(z, b)| z * b).sum();
                let y = row[features];
                let (fit, wrong, w, r) = match family {
                    Family::Logistic => {
                        let p = 1.0 / (1.0 + (-eta).exp());
                        let wrong = f64::from(u8::from((2.0 * y - 1.0) * eta <= 0.0));
                        (y * eta - eta.exp().ln_1p(), wrong, p * (1.0 - p), y - p)
                    }
                    Family::Gaussian => {
                        let r = y - target_centre - eta;
                        (r * r, 0.0, 1.0, r)
                    }
                };
                (words[0], words[1]) = (words[0] + fit, words[1] + wrong);
                let mut place = 2 + z.len();
                for (term, value) in z.iter().enumerate() {
                    words[2 + term] += r * value;
                    for other in &z[..=term] {
                        words[place] += w * value * other;
                        place += 1;
                    }
                }
            }
        }
    }
    words
}

fn model(family: Family, features: usize) -> Sums {
    let of = |n: usize, scale: f64| (uniform(7 * n as u64) - 0.5) * scale;
    Sums::Model {
        family,
        centres: (0..features)
            .map(|n| if n % 5 == 4 { 0.3 } else { 2000.0 * f64::from(u8::from(n % 3 != 2)) })
            .collect(),
        scales: (0..features).map(|n| if n % 3 == 2 { 1e-3 } else { 1.5 }).collect(),
        target_centre: 0.25,
        coefficients: (0..=features).map(|n| of(n, 2.0)).collect(),
    }
}

fn all_sums(features: usize) -> Vec<Sums> {
    let centres = |by: f64| (0..=features).map(|n| by * n as f64).collect();
    vec![
        Sums::Columns { centres: centres(0.0), target: Target::Label },
        Sums::Columns { centres: centres(10.0), target: Target::Number },
        model(Family::Logistic, features),
        model(Family::Gaussian, features),
        model(Family::Logistic, features),
    ]
}

/// Computes all wanted sums in one run, and returns the parts of each.
fn fold(program: Program, source: &Arc<dyn Source>, wanted: &[Sums]) -> Vec<Parts> {
    let execution = Execution::new(program, vec![Arc::clone(source)], 1 << 30).unwrap();
    let executor = executor();
    let images = Uploads::new(executor.context());
    let (mut came, mut left) = (Vec::new(), wanted.iter());
    let mut next = |last: Option<&Parts>| {
        came.extend(last.cloned());
        Ok(left.next().cloned())
    };
    let facts = executor.fold(&execution, &images, &AtomicBool::new(false), RunMemory::default(), &mut next).unwrap();
    assert_eq!(facts.passes, wanted.len() as u64);
    assert!(facts.launches >= wanted.len(), "{facts:?}");
    came
}

fn check(name: &str, program: Program, source: &Arc<dyn Source>, rows: &[Option<Vec<f64>>], features: usize) {
    check_sums(name, &all_sums(features), program, source, rows, features);
}

fn check_sums(
    name: &str,
    wanted: &[Sums],
    program: Program,
    source: &Arc<dyn Source>,
    rows: &[Option<Vec<f64>>],
    features: usize,
) {
    let came = fold(program, source, wanted);
    assert_eq!(came.len(), wanted.len());
    for (sums, parts) in wanted.iter().zip(&came) {
        let (got, expected) = (total(sums, parts), expected(sums, rows, features));
        assert_eq!(got.len(), expected.len());
        for (word, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let scale = (rows.len() as f64).max(expected.abs());
            assert!(
                got == expected || (got - expected).abs() <= 1e-12 * scale,
                "{name}, word {word}: {got} instead of {expected}"
            );
        }
    }
    // Equal sums have equal results, to the last bit.
    for (one, sums) in wanted.iter().enumerate() {
        let again = wanted.iter().rposition(|other| other == sums).unwrap();
        assert_eq!(came[one], came[again], "{name}");
    }
}

#[test]
fn sums_are_those_that_one_would_write_down() {
    for (count, features) in [(33, 1), (7001, 4), (2100, 0)] {
        let Rows { source, rows } = rows(count, features);
        check(&format!("{count} rows of {features}"), of_all(features), &source, &rows, features);
    }
}

/// Sums that do not fit in registers need several kernels.
#[test]
fn many_features_are_gone_through_several_times() {
    for (features, sums) in
        [(12, all_sums(12)[..3].to_vec()), (MOST_FEATURES, vec![model(Family::Logistic, MOST_FEATURES)])]
    {
        let Rows { source, rows } = rows(1500, features);
        check_sums(&format!("{features} features"), &sums, of_all(features), &source, &rows, features);
    }
}

#[test]
fn filters_and_expressions_come_before_sums() {
    let Rows { source, rows } = rows(6000, 3);
    let filter = Step::Filter(Expr::compare(CompareOp::GreaterOrEqual, r(2), Expr::int(100)));
    let doubled = Expr::arithmetic(ArithmeticOp::Mul, r(2), Expr::int(2), BIGINT);
    let columns = vec![r(0), doubled, r(2), r(3)];
    // The second feature, which may be NULL, is not read.
    let all = (0..6000).map(|row| (uniform(row * 40 + 2) * 1000.0).floor() - 300.0);
    let kept: Vec<Option<Vec<f64>>> = (0..6000u64)
        .zip(all)
        .filter(|(_, third)| *third >= 100.0)
        .map(|(row, third)| {
            let label = f64::from(u8::from(uniform(row * 40 + 3) < 0.4));
            Some(vec![2000.0 + uniform(row * 40), third * 2.0, third, label])
        })
        .collect();
    assert!(rows.len() == 6000 && kept.len() > 1000);
    check("filtered", program(columns, vec![filter], 4), &source, &kept, 3);
    // No rows give no information.
    let none = Step::Filter(Expr::compare(CompareOp::Greater, r(2), Expr::int(100_000)));
    check("none", program((0..4).map(r).collect(), vec![none], 4), &source, &[], 3);
}

#[test]
fn values_of_no_use_are_counted() {
    let x = Float64Array::from(vec![1.0, f64::NAN, 2.0, f64::INFINITY, f64::NEG_INFINITY, -3.0]);
    let y = Float64Array::from(vec![0.0, 1.0, 0.5, 2.0, 1.0, 0.0]);
    let fields = ["x", "y"].map(|name| Field::new(name, x.data_type().clone(), false));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(x), Arc::new(y)]).unwrap();
    let types = [(0, ColumnType::Float64, false), (1, ColumnType::Float64, false)];
    let source = stored_batch(&batch, &types, 10, 1024);
    for (target, odd) in [(Target::Label, 2.0), (Target::Number, 0.0)] {
        let sums = Sums::Columns { centres: vec![0.0; 2], target };
        let parts = fold(of_all(1), &source, std::slice::from_ref(&sums));
        let words = total(&sums, &parts[0]);
        let at = ROW_WORDS + COLUMN_WORDS;
        assert_eq!((words[0], words[ROW_WORDS + 4], words[at + 4]), (6.0, 3.0, odd), "{words:?}");
    }
}

#[test]
fn what_fails_and_what_is_too_much_is_said() {
    let Rows { source, .. } = rows(3000, 3);
    let run = |program: Program, source: &Arc<dyn Source>, images: &dyn crate::fused::Images| {
        let executor = executor();
        let execution = Execution::new(program, vec![Arc::clone(source)], 1 << 30).unwrap();
        let sums = model(Family::Gaussian, 3);
        let mut next = |_: Option<&Parts>| Ok(Some(sums.clone()));
        executor.fold(&execution, images, &AtomicBool::new(false), RunMemory::default(), &mut next).map(drop)
    };
    let images = Uploads::new(executor().context());
    let bounds = Bounds { min: -10, max: 10, type_name: "TINY" };
    let quotient =
        Expr::arithmetic(ArithmeticOp::Div, r(2), Expr::arithmetic(ArithmeticOp::Sub, r(2), r(2), bounds), BIGINT);
    let failing = program(vec![r(0), r(1), quotient, r(3)], Vec::new(), 4);
    assert!(matches!(run(failing, &source, &images), Err(Error::Pipeline(PipelineError::DivisionByZero { .. }))));
    assert!(matches!(run(of_all(3), &source, &Streamed), Err(Error::Refused(what)) if what.contains("do not fit")));
    let Rows { source: wide, .. } = rows(10, MOST_FEATURES + 1);
    let refused = run(of_all(MOST_FEATURES + 1), &wide, &images);
    assert!(matches!(refused, Err(Error::Refused(what)) if what.contains("33 features")));
    // The caller may stop.
    let execution = Execution::new(of_all(3), vec![source], 1 << 30).unwrap();
    let mut next = |_: Option<&Parts>| Err(PipelineError::Cancelled);
    let ended = executor().fold(&execution, &images, &AtomicBool::new(false), RunMemory::default(), &mut next);
    assert!(matches!(ended, Err(Error::Pipeline(PipelineError::Cancelled))));
}
