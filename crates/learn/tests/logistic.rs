//! Fits compared with published results, and data that have no fit.

#![allow(clippy::unwrap_used, clippy::needless_range_loop)]

use onehop_learn::logistic::{Fit, Irls, Next, Options, probability};
use onehop_learn::{Aliased, CHUNK_ROWS, Chunk, Error, Extents, Intercept, Result, Warning};

fn try_fit(columns: &[Vec<f64>], intercept: Intercept, options: Options, chunk_rows: usize) -> Result<Fit> {
    let rows = columns[0].len();
    let chunks: Vec<Chunk> = (0..rows)
        .step_by(chunk_rows)
        .map(|first| {
            let part: Vec<&[f64]> = columns.iter().map(|c| &c[first..rows.min(first + chunk_rows)]).collect();
            Chunk::of_columns(&part)
        })
        .collect();
    let mut extents = Extents::new(columns.len() - 1);
    chunks.iter().for_each(|chunk| extents.merge(&Extents::of(chunk)));
    let mut irls = Irls::new(&extents, intercept, options)?;
    loop {
        let mut pass = irls.pass();
        chunks.iter().for_each(|chunk| pass.add(chunk));
        if let Next::Done(fit) = irls.step(&pass) {
            return Ok(*fit);
        }
    }
}

fn fit(columns: &[Vec<f64>]) -> Fit {
    try_fit(columns, Intercept::Fitted, Options::default(), CHUNK_ROWS).unwrap()
}

fn coefficients(fit: &Fit) -> Vec<f64> {
    fit.intercept.iter().chain(&fit.terms).map(|term| term.coefficient.unwrap_or(f64::NAN)).collect()
}

fn errors(fit: &Fit) -> Vec<f64> {
    fit.intercept.iter().chain(&fit.terms).map(|term| term.standard_error.unwrap_or(f64::NAN)).collect()
}

fn assert_near(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= tolerance * expected.abs(), "{got} instead of {expected}");
    }
}

/// Returns pseudorandom numbers between 0 and 1.
fn noise(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns features around 0, and labels of this model.
fn random(rows: usize, model: &[f64], seed: u64) -> Vec<Vec<f64>> {
    let mut next = noise(seed);
    let mut columns: Vec<Vec<f64>> =
        (1..model.len()).map(|_| (0..rows).map(|_| 4.0 * (next() + next() + next() - 1.5)).collect()).collect();
    let label = |row: usize, chance: f64| {
        let eta = model[0] + (1..model.len()).map(|n| model[n] * columns[n - 1][row]).sum::<f64>();
        f64::from(u8::from(chance < probability(eta)))
    };
    let labels = (0..rows).map(|row| label(row, next())).collect();
    columns.push(labels);
    columns
}

/// The 20 rows of the example in MADlib's documentation of `logregr_train`: treatment, trait
/// anxiety, second attack.
fn patients() -> Vec<Vec<f64>> {
    let anxiety = [70, 80, 50, 60, 40, 65, 75, 80, 70, 60, 65, 50, 45, 35, 40, 50, 55, 45, 50, 60];
    let treatment = [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0];
    let attack = (0..20).map(|row| f64::from(u8::from(row < 10))).collect();
    vec![treatment.map(f64::from).to_vec(), anxiety.map(f64::from).to_vec(), attack]
}

#[test]
fn the_documented_example_of_madlib_has_its_documented_figures() {
    let fit = fit(&patients());
    assert_near(&coefficients(&fit), &[-6.36346994178192, -1.02410605239327, 0.119044916668607], 1e-12);
    assert_near(&errors(&fit), &[3.21389766375099, 1.17107844860319, 0.0549790458269317], 1e-12);
    assert_near(&[fit.log_likelihood, fit.condition_number], &[-9.41018298388876, 326.081922791575], 1e-12);
    assert_eq!((fit.iterations, fit.converged, fit.rows), (5, true, 20));
    assert!(fit.warnings.is_empty());
    let logit = -6.36346994178192 - 1.02410605239327 + 70.0 * 0.119044916668607;
    assert!((probability(logit) - 0.720223028941527).abs() < 1e-13);
    assert!((fit.null_log_likelihood - 20.0 * 0.5f64.ln()).abs() < 1e-12);
}

#[test]
fn how_rows_are_cut_changes_last_bits_at_most_and_the_same_cuts_change_none() {
    let columns = random(5000, &[0.5, 1.0, -2.0, 0.25], 7);
    let whole = fit(&columns);
    assert_eq!(whole, fit(&columns));
    for chunk_rows in [1, 511, 512, 513, 4999] {
        let cut = try_fit(&columns, Intercept::Fitted, Options::default(), chunk_rows).unwrap();
        assert_near(&coefficients(&cut), &coefficients(&whole), 1e-12);
        assert_near(&errors(&cut), &errors(&whole), 1e-12);
        assert_eq!(cut.iterations, whole.iterations);
    }
}

#[test]
fn units_do_not_matter() {
    let columns = random(4000, &[0.5, 1.0, -2.0], 11);
    let plain = fit(&columns);
    let mut moved = columns.clone();
    moved[0].iter_mut().for_each(|x| *x = 2e9 + *x * 1e3);
    moved[1].iter_mut().for_each(|x| *x *= 1e-9);
    let fitted = fit(&moved);
    assert!(fitted.warnings.is_empty(), "{:?}", fitted.warnings);
    let expected = coefficients(&plain);
    assert_near(&coefficients(&fitted)[1..], &[expected[1] / 1e3, expected[2] * 1e9], 1e-8);
    assert_near(&[fitted.log_likelihood], &[plain.log_likelihood], 1e-12);
    assert_near(&errors(&fitted)[1..], &[errors(&plain)[1] / 1e3, errors(&plain)[2] * 1e9], 1e-8);
}

#[test]
fn labels_that_features_separate_are_said() {
    // By a gap: an exact certificate.
    let mut columns = random(1000, &[0.0, 1.0, 0.0], 3);
    columns[2] = columns[0].iter().map(|x| f64::from(u8::from(*x > 0.0))).collect();
    columns[0].iter_mut().for_each(|x| *x += x.signum());
    let fitted = fit(&columns);
    assert_eq!((fitted.warnings.as_slice(), fitted.converged), ([Warning::Separated].as_slice(), false));
    assert!(errors(&fitted).iter().all(|error| error.is_nan()) && coefficients(&fitted).iter().all(|c| c.is_finite()));

    // Without a gap, with many rows: the labels of the seed.
    let mut columns = random(200_000, &[0.0, 0.0, 0.0, 0.0, 0.0], 5);
    let label =
        |row: usize| 1.0 + 2.0 * columns[0][row] - 3.0 * columns[1][row] + columns[2][row] + 0.5 * columns[3][row];
    let labels = (0..200_000).map(|row| f64::from(u8::from(label(row) > 0.0))).collect();
    columns[4] = labels;
    let fitted = fit(&columns);
    assert!(
        matches!(fitted.warnings.as_slice(), [Warning::Separating { wrong }] if *wrong < 2000)
            || fitted.warnings == [Warning::Separated],
        "{:?}",
        fitted.warnings
    );
    let c = coefficients(&fitted);
    assert_near(&[c[1] / c[0], c[2] / c[0], c[3] / c[0], c[4] / c[0]], &[2.0, -3.0, 1.0, 0.5], 1e-2);
    let penalised = Options { l2: 1.0, ..Options::default() };
    let fitted = try_fit(&columns, Intercept::Fitted, penalised, CHUNK_ROWS).unwrap();
    assert!(fitted.converged && fitted.warnings.is_empty(), "{:?}", fitted.warnings);
}

#[test]
fn rows_that_a_feature_separates_from_the_rest_are_said() {
    for rare in [3, 400] {
        let mut columns = random(3000, &[0.5, 1.0, 0.0], 17);
        for row in 0..3000 {
            columns[1][row] = f64::from(u8::from(row < rare));
            if row < rare {
                columns[2][row] = 1.0;
            }
        }
        let options = Options { max_iterations: 50, ..Options::default() };
        let fitted = try_fit(&columns, Intercept::Fitted, options, CHUNK_ROWS).unwrap();
        assert_eq!(fitted.warnings, [Warning::QuasiSeparated { feature: Some(1) }]);
        assert!(!fitted.converged);
    }
}

#[test]
fn features_that_say_nothing_new_are_left_out_and_said() {
    let mut columns = random(2000, &[0.5, 1.0, -2.0], 19);
    let expected = fit(&columns);
    let labels = columns.pop().unwrap();
    let sum = columns[0].iter().zip(&columns[1]).map(|(a, b)| 3.0 * a - b + 7.0).collect();
    columns.extend([sum, vec![4.2; 2000], labels]);
    let fitted = fit(&columns);
    assert_eq!(
        fitted.warnings,
        [
            Warning::LeftOut { feature: 2, because: Aliased::Combination(vec![0, 1]) },
            Warning::LeftOut { feature: 3, because: Aliased::Constant },
        ]
    );
    assert!(fitted.converged);
    assert_near(&coefficients(&fitted)[..3], &coefficients(&expected), 1e-9);
    assert_near(&errors(&fitted)[..3], &errors(&expected), 1e-9);
    assert!(fitted.terms[2].coefficient.is_none() && fitted.terms[3].coefficient.is_none());

    let mut next = noise(23);
    columns.remove(3);
    columns[2].iter_mut().for_each(|x| *x += 1e-4 * next());
    assert!(matches!(fit(&columns).warnings[..], [Warning::NearlyCollinear { .. }, ..]));
}

#[test]
fn a_fit_that_ends_too_early_says_so() {
    let options = Options { max_iterations: 2, ..Options::default() };
    let fitted = try_fit(&random(1000, &[0.5, 2.0], 29), Intercept::Fitted, options, CHUNK_ROWS).unwrap();
    assert!(
        matches!(fitted.warnings[..], [Warning::NotConverged { gain: Some(gain) }] if gain > 1.0),
        "{:?}",
        fitted.warnings
    );
    assert_eq!((fitted.converged, fitted.iterations), (false, 2));
    // The gain of the first iteration is unknown.
    let options = Options { max_iterations: 1, ..Options::default() };
    let fitted = try_fit(&random(1000, &[0.5, 2.0], 29), Intercept::Fitted, options, CHUNK_ROWS).unwrap();
    assert!(matches!(fitted.warnings[..], [Warning::NotConverged { gain: None }]), "{:?}", fitted.warnings);
}

#[test]
fn what_has_no_fit_is_an_error() {
    let columns = random(10, &[0.5, 1.0, 2.0], 37);
    let run = |columns: &[Vec<f64>], options| try_fit(columns, Intercept::Fitted, options, CHUNK_ROWS);
    let none: Vec<Vec<f64>> = vec![Vec::new(), Vec::new()];
    assert_eq!(run(&none, Options::default()), Err(Error::NoRows));
    let few: Vec<Vec<f64>> = columns.iter().map(|c| c[..2].to_vec()).collect();
    let few = [few[0].clone(), few[1].clone(), vec![0.0, 1.0]];
    assert_eq!(run(&few, Options::default()), Err(Error::FewRows { rows: 2, terms: 3 }));
    let one = [columns[0].clone(), vec![1.0; 10]];
    assert_eq!(run(&one, Options::default()), Err(Error::OneClass { label: 1 }));
    for (option, options) in [
        ("max_iter", Options { max_iterations: 0, ..Options::default() }),
        ("tolerance", Options { tolerance: f64::NAN, ..Options::default() }),
        ("tolerance", Options { tolerance: -1.0, ..Options::default() }),
        ("l2", Options { l2: f64::INFINITY, ..Options::default() }),
    ] {
        assert!(matches!(run(&columns, options), Err(Error::Option(text)) if text.contains(option)));
    }
    let huge = [vec![1e300, -1e300, 0.0], vec![0.0, 1.0, 1.0]];
    assert_eq!(run(&huge, Options::default()), Err(Error::Range { feature: 0 }));
}
