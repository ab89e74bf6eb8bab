//! Machine learning in SQL.
//!
//! Claims:
//! - figures are those that MADlib's documentation has for its example, from whatever the rows come, in memory or spilled;
//! - models are the database's: in other sessions, after it was opened again, as of a statement's snapshot; training replaces;
//! - nothing is trained that was only explained, and what is cancelled ends;
//! - what has no best model says so, and bad input is an error that names function, argument and column.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use onehop_engine::{Access, Database, DatabaseOptions, ErrorKind, Relation, Session};
use support::{fails, options, rows_as_they_come, run};

const PATIENTS: &str = "CREATE TABLE patients AS SELECT * FROM (VALUES
    (1,1,1,70),(2,1,1,80),(3,1,1,50),(4,1,0,60),(5,1,0,40),(6,1,0,65),(7,1,0,75),(8,1,0,80),(9,1,0,70),(10,1,0,60),
    (11,0,1,65),(12,0,1,50),(13,0,1,45),(14,0,1,35),(15,0,1,40),(16,0,1,50),(17,0,0,55),(18,0,0,45),(19,0,0,50),(20,0,0,60)
    ) AS t(id, second_attack, treatment, trait_anxiety)";

const TRAIN: &str = "SELECT * FROM logregr_train('patients', 'm1', label => 'second_attack', \
    features => 'treatment, trait_anxiety', intercept => true, max_iter => 20, tolerance => 1e-4, l2 => 0)";

fn session_with(settings: &[(&str, &str)]) -> Session {
    Database::memory(&options(settings)).unwrap().session().unwrap()
}

async fn patients() -> Session {
    let session = session_with(&[("threads", "2")]);
    run(&session, PATIENTS).await;
    session
}

/// Numbers of the rows of a statement, whose other values are left out.
async fn numbers(session: &Session, sql: &str) -> Vec<f64> {
    let rows = rows_as_they_come(session, sql).await.unwrap();
    rows.iter().flat_map(|row| row.split('|').filter_map(|value| value.parse().ok()).collect::<Vec<f64>>()).collect()
}

fn assert_near(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{got:?} instead of {expected:?}");
    for (one, other) in got.iter().zip(expected) {
        assert!((one - other).abs() <= tolerance * other.abs(), "{got:?} instead of {expected:?}");
    }
}

const COEFFICIENTS: [f64; 3] = [-6.36346994178192, -1.02410605239327, 0.119044916668607];

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_example_of_madlib_has_its_documented_figures() {
    let session = patients().await;
    let rows = rows_as_they_come(&session, TRAIN).await.unwrap();
    let terms: Vec<&str> = rows.iter().map(|row| row.split('|').next().unwrap()).collect();
    assert_eq!(terms, ["intercept", "treatment", "trait_anxiety"]);
    assert!(session.query().notices().is_empty(), "{:?}", session.query().notices());
    let coefficients = "SELECT coef FROM onehop_model_terms WHERE model_name = 'm1' ORDER BY position";
    assert_near(&numbers(&session, coefficients).await, &COEFFICIENTS, 1e-12);
    let errors = "SELECT std_err FROM onehop_model_terms ORDER BY position";
    assert_near(&numbers(&session, errors).await, &[3.21389766375099, 1.17107844860319, 0.0549790458269317], 1e-12);
    let run_facts = "SELECT log_likelihood, condition_no, num_rows_processed, num_missing_rows_skipped, num_iterations \
        FROM onehop_models WHERE converged AND warnings IS NULL AND device = 'cpu'";
    let expected = [-9.41018298388876, 326.081922791575, 20.0, 0.0, 5.0];
    assert_near(&numbers(&session, run_facts).await, &expected, 1e-12);
    let odds = "SELECT odds_ratio FROM logregr_train('patients', NULL, 'second_attack', 'treatment, trait_anxiety') \
        WHERE term = 'treatment'";
    assert_near(&numbers(&session, odds).await, &[0.359117354054954], 1e-12);
    let chance = "SELECT logregr_predict_prob('m1', treatment, trait_anxiety) FROM patients WHERE id = 1";
    assert_near(&numbers(&session, chance).await, &[0.720223028941527], 1e-12);
    let constant = "SELECT logregr_predict_proba('m1', 1, 70) > 0.72, logregr_predict('m1', 1, 70), logregr_predict('m1', 1, NULL)";
    assert_eq!(run(&session, constant).await, ["true|1|NULL"]);
    let right = "SELECT count(*) FROM patients WHERE logregr_predict('m1', treatment, trait_anxiety) = second_attack";
    assert_eq!(run(&session, right).await, ["15"]);
    let evaluated = run(&session, "SELECT * FROM logregr_evaluate('m1', 'patients')").await;
    let evaluated: Vec<f64> = evaluated[0].split('|').map(|value| value.parse().unwrap()).collect();
    assert_near(&evaluated[..2], &[0.75, 9.41018298388876 / 20.0], 1e-9);
    assert_eq!(evaluated[3..].iter().map(|count| *count as u64).collect::<Vec<_>>()[..2], [20, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_from_whatever_gives_some() {
    let session = patients().await;
    run(&session, "CREATE VIEW seen AS SELECT * FROM patients").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.parquet").display().to_string();
    run(&session, &format!("COPY patients TO '{file}'")).await;
    let column = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let batch = RecordBatch::try_from_iter([
        ("second_attack", column((0..20).map(|row| i64::from(row < 10)).collect())),
        ("treatment", column(vec![1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0])),
        ("trait_anxiety", column(vec![70, 80, 50, 60, 40, 65, 75, 80, 70, 60, 65, 50, 45, 35, 40, 50, 55, 45, 50, 60])),
    ]);
    let batch = batch.unwrap();
    session.register("frame", Relation::of_batches(batch.schema(), vec![batch])).unwrap();
    for table in [
        "'patients'",
        "patients",
        "'public.patients'",
        "'seen'",
        "'frame'",
        &format!("'{file}'"),
        "'(SELECT * FROM patients WHERE id > 0)'",
        "(SELECT treatment, trait_anxiety, second_attack FROM patients ORDER BY id DESC)",
    ] {
        let sql =
            format!("SELECT coef FROM logregr_train({table}, 'm', 'second_attack', ['treatment', 'trait_anxiety'])");
        assert_near(&numbers(&session, &sql).await, &COEFFICIENTS, 1e-10);
    }
    let all = "SELECT coef FROM logregr_train((SELECT second_attack = 1 AS label, treatment = 1 AS t, \
        CAST(trait_anxiety AS DECIMAL(10, 2)) AS a FROM patients), 'b', 'label', '*')";
    assert_near(&numbers(&session, all).await, &COEFFICIENTS, 1e-10);
    assert_eq!(run(&session, "SELECT logregr_predict('b', true, 70.0)").await, ["true"]);
    let expressions = "SELECT term, coef FROM logregr_train(patients, 'e', 'second_attack', \
        'treatment * 2, trait_anxiety / 10.0')";
    assert_eq!(run(&session, expressions).await.len(), 3);
    let slopes = "SELECT coef FROM onehop_model_terms WHERE model_name = 'e' AND position > 0 ORDER BY position";
    assert_near(&numbers(&session, slopes).await, &[COEFFICIENTS[1] / 2.0, COEFFICIENTS[2] * 10.0], 1e-10);
    let figures = "SELECT auc FROM logregr_evaluate('e', patients)";
    let same = "SELECT auc FROM logregr_evaluate('m', 'patients')";
    assert_eq!(numbers(&session, figures).await, numbers(&session, same).await);
}

/// Rows of a known model, and some with NULLs.
const MADE: &str = "CREATE TABLE made AS SELECT n, sin(n * 0.7) * 3 AS a, cos(n * n * 0.013) AS b, \
    CASE WHEN n % 1000 = 0 THEN NULL ELSE n % 17 END AS c, \
    sin(n * 0.7) * 3 - 2 * cos(n * n * 0.013) + (n % 17) * 0.1 > tan(n * 1.1) AS y \
    FROM generate_series(1, 300000) AS t(n)";

#[tokio::test(flavor = "multi_thread")]
async fn the_same_rows_give_the_same_bits_and_what_is_spilled_is_not_lost() {
    let train = "SELECT * FROM logregr_train('made', 'm', 'y', 'a, b, c')";
    let session = session_with(&[("threads", "2"), ("storage.segment_rows", "65536")]);
    run(&session, MADE).await;
    let expected = run(&session, train).await;
    assert_eq!(run(&session, train).await, expected);
    assert_eq!(run(&session, "SELECT num_missing_rows_skipped FROM onehop_models").await, ["300"]);
    assert_eq!(session.query().ledger().hop(onehop_engine::Hop::HostToStorage), 0);
    run(&session, "SET memory_limit = '18MB'").await;
    assert_eq!(run(&session, train).await, expected);
    let ledger = session.query().ledger();
    assert!(ledger.hop(onehop_engine::Hop::HostToStorage) > 1 << 20, "{ledger:?}");
    run(&session, "SET memory_limit = '1GB'").await;
    run(&session, "SET threads = 1").await;
    let other = run(&session, train).await;
    let numbers = |rows: &[String]| -> Vec<f64> {
        rows.iter()
            .flat_map(|row| row.split('|').filter_map(|value| value.parse().ok()).collect::<Vec<f64>>())
            .collect()
    };
    assert_near(&numbers(&other), &numbers(&expected), 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_belong_to_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    {
        let database = Database::open(&path, &DatabaseOptions::default()).unwrap();
        let (one, other) = (database.session().unwrap(), database.session().unwrap());
        run(&one, PATIENTS).await;
        let predict = "SELECT logregr_predict_prob('m1', 1, 70)";
        let error = fails(&one, predict).await;
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("logregr_predict_prob: there is no model \"m1\""), "{error}");
        run(&one, TRAIN).await;
        let first = run(&other, predict).await;
        // Asked again, it is the plan that was kept, unless the model is another.
        assert_eq!(run(&other, predict).await, first);
        run(&one, &TRAIN.replace("l2 => 0", "l2 => 10")).await;
        assert_ne!(run(&other, predict).await, first);
        run(&one, TRAIN).await;
        run(&one, "SELECT * FROM logregr_train('patients', 'gone', 'second_attack', 'treatment')").await;
        run(&one, "DROP MODEL gone").await;
        run(&one, "DROP MODEL IF EXISTS gone").await;
        assert_eq!(fails(&one, "DROP MODEL gone").await.kind(), ErrorKind::NotFound);
    }
    let read_only = DatabaseOptions { access: Access::ReadOnly, ..DatabaseOptions::default() };
    let session = Database::open(&path, &read_only).unwrap().session().unwrap();
    assert_eq!(run(&session, "SELECT model_name, kind FROM onehop_models").await, ["m1|logistic"]);
    assert_near(&numbers(&session, "SELECT logregr_predict_prob('m1', 1, 70)").await, &[0.720223028941527], 1e-12);
    assert_eq!(fails(&session, TRAIN).await.kind(), ErrorKind::ReadOnly);
    let unkept = TRAIN.replace("'m1'", "NULL");
    assert_eq!(run(&session, &unkept).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_only_explained_is_not_trained_and_transactions_keep_none() {
    let session = patients().await;
    let plan = run(&session, &format!("EXPLAIN {TRAIN}")).await.join("\n");
    assert!(plan.contains("Learn") && plan.contains("CpuScan"), "{plan}");
    assert!(run(&session, "SELECT * FROM onehop_models").await.is_empty());
    let plan = run(&session, &format!("EXPLAIN ANALYZE {TRAIN}")).await.join("\n");
    assert!(plan.contains("passes=5"), "{plan}");
    assert_eq!(run(&session, "SELECT count(*) FROM onehop_models").await, ["1"]);
    run(&session, "DROP MODEL m1").await;
    run(
        &session,
        "CREATE TABLE kept AS SELECT term, coef FROM logregr_train(patients, 'k', 'second_attack', 'treatment')",
    )
    .await;
    assert_eq!(run(&session, "SELECT count(*) FROM kept").await, ["2"]);
    run(&session, "BEGIN").await;
    let error = fails(&session, TRAIN).await;
    assert!(error.message().contains("cannot be part of a transaction"), "{error}");
    run(&session, "ROLLBACK").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_best_model_says_so() {
    let session = patients().await;
    let notices = |session: &Session| session.query().notices().join("\n");
    let train = |label: &str, features: &str, more: &str| {
        format!("SELECT * FROM logregr_train(patients, 'w', '{label}', '{features}'{more})")
    };
    let rows = run(&session, &train("id > 7", "id, trait_anxiety", "")).await;
    assert!(notices(&session).contains("separate the labels perfectly"), "{}", notices(&session));
    assert!(rows.iter().all(|row| row.contains("NULL")), "{rows:?}");
    assert_eq!(run(&session, "SELECT converged FROM onehop_models WHERE warnings LIKE '%perfectly%'").await, ["false"]);
    assert_eq!(run(&session, "SELECT accuracy FROM logregr_evaluate('w', patients)").await, ["1.0"]);
    run(&session, &train("id > 7", "id, trait_anxiety", ", l2 => 1")).await;
    assert!(notices(&session).is_empty(), "{}", notices(&session));
    let call = train("second_attack", "treatment, trait_anxiety, 2 * treatment + 1, 7", "");
    let rows = rows_as_they_come(&session, &call).await.unwrap();
    let said = notices(&session);
    assert!(said.contains("2 * treatment + 1 is left out: it is a linear combination of treatment"), "{said}");
    assert!(said.contains("7 is left out: it has one value only"), "{said}");
    assert!(rows[3].ends_with("|NULL|NULL|NULL|NULL|NULL"), "{rows:?}");
    assert_eq!(run(&session, "SELECT logregr_predict_prob('w', 1, 70, 99, 99) < 0.73").await, ["true"]);
    run(&session, &train("second_attack", "treatment, trait_anxiety", ", max_iter => 2")).await;
    assert!(notices(&session).contains("not converged: iteration 2"), "{}", notices(&session));
    run(&session, &train("second_attack", "treatment, CASE WHEN id < 3 THEN 1 ELSE 0 END", ", max_iter => 50")).await;
    assert!(notices(&session).contains("separates some rows of one label"), "{}", notices(&session));
}

#[tokio::test(flavor = "multi_thread")]
async fn least_squares_are_least_squares() {
    let session = session_with(&[]);
    run(&session, "CREATE TABLE line AS SELECT * FROM (VALUES (1, 3.1), (2, 4.9), (3, 7.2), (4, 8.8), (5, 11.1), (NULL, 1.0)) AS t(x, y)").await;
    // From statsmodels 0.15: OLS(y, add_constant(x)).fit().
    let rows = numbers(&session, "SELECT * FROM linregr_train('line', 'l', label => 'y', features => 'x')").await;
    let expected = [
        1.05,
        0.19807406022327434,
        5.301047491107189,
        0.013102954247084698,
        1.99,
        0.05972157622389639,
        33.32129065950106,
        5.941539111755357e-05,
    ];
    assert_near(&rows, &expected, 1e-11);
    let fit = numbers(&session, "SELECT r2, residual_error FROM onehop_models").await;
    assert_near(&fit, &[0.9973053289009771, 0.18885620632287062], 1e-12);
    assert_near(&numbers(&session, "SELECT linregr_predict('l', 10)").await, &[20.95], 1e-12);
    let error = fails(&session, "SELECT logregr_predict('l', 10)").await;
    assert!(error.message().contains("another kind") && error.hint() == Some("use linregr_predict"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_an_error_that_names_it() {
    let session = patients().await;
    run(
        &session,
        "CREATE TABLE odd AS SELECT * FROM (VALUES (0, 1.0, 'a', DATE '2024-01-01'), (1, 2.0, 'b', NULL), \
        (2, NULL, NULL, NULL)) AS t(y, x, s, d)",
    )
    .await;
    run(&session, "CREATE TABLE none (y INTEGER, x DOUBLE)").await;
    run(&session, TRAIN).await;
    let column = |values: Vec<f64>| Arc::new(Float64Array::from(values)) as ArrayRef;
    let batch = RecordBatch::try_from_iter([
        ("x", column(vec![1.0, f64::NAN, 2.0, 0.5])),
        ("y", column(vec![0.0, 1.0, 1.0, 0.0])),
        ("z", column(vec![f64::INFINITY, 1.0, 1.0, 1e300])),
        ("t", Arc::new(StringArray::from(vec!["a", "b", "c", "d"])) as ArrayRef),
    ]);
    let batch = batch.unwrap();
    session.register("nan", Relation::of_batches(batch.schema(), vec![batch])).unwrap();
    for (call, kind, message) in [
        ("logregr_train()", ErrorKind::Invalid, "logregr_train: table is missing"),
        ("logregr_train('patients', 'm')", ErrorKind::Invalid, "label is missing"),
        ("logregr_train('patients', 'm', 'y', 'x', lable => 'y')", ErrorKind::Invalid, "there is no argument lable"),
        ("logregr_train('patients', 'm', 'y', 'x', label => 'y')", ErrorKind::Invalid, "label is given twice"),
        (
            "logregr_train('p', table => 'q', model => 'm', label => 'y', features => 'x')",
            ErrorKind::Invalid,
            "table is given twice",
        ),
        ("logregr_train('odd', 'm', 'y', 'x', grouping => 's')", ErrorKind::Invalid, "grouping is not supported"),
        (
            "logregr_train('odd', 'm', 'y', 'x', intercept => 1)",
            ErrorKind::Invalid,
            "intercept is 1, and must be true or false",
        ),
        ("logregr_train('odd', 'm', 'y', 'x', max_iter => 0)", ErrorKind::Invalid, "max_iter is 0"),
        ("logregr_train('odd', 'm', 'y', 'x', max_iter => 2.5)", ErrorKind::Invalid, "max_iter is 2.5"),
        ("logregr_train('odd', 'm', 'y', 'x', tolerance => -1)", ErrorKind::Invalid, "tolerance"),
        ("logregr_train('odd', 'm', 'y', 'x', l2 => 'a')", ErrorKind::Invalid, "l2 is a, and must be a number"),
        ("logregr_train('odd', 'm', 'y', 5)", ErrorKind::Invalid, "features is 5, and must be a text"),
        ("logregr_train('odd', '', 'y', 'x')", ErrorKind::Invalid, "model"),
        ("logregr_train('nothing', 'm', 'y', 'x')", ErrorKind::NotFound, "there is no table \"nothing\""),
        ("logregr_train('odd; DROP TABLE odd', 'm', 'y', 'x')", ErrorKind::Invalid, "table cannot be parsed"),
        ("logregr_train('odd', 'm', 'y', 'x FROM odd --')", ErrorKind::Invalid, "features cannot be parsed"),
        ("logregr_train('odd', 'm', 'y', 'w')", ErrorKind::NotFound, "there is no column \"w\""),
        ("logregr_train('odd', 'm', 'y, x', 'x')", ErrorKind::Invalid, "label is 2 expressions"),
        ("logregr_train('odd', 'm', 'y', 's')", ErrorKind::Invalid, "feature s is a text"),
        ("logregr_train('odd', 'm', 'y', 'd')", ErrorKind::Invalid, "feature d is a date"),
        ("logregr_train('odd', 'm', 's', 'x')", ErrorKind::Invalid, "label s is a text"),
        ("logregr_train((SELECT y, 1 AS x FROM odd), 'm', 'y', 'x')", ErrorKind::Data, "label y has the value 2"),
        ("logregr_train('none', 'm', 'y', 'x')", ErrorKind::Data, "the table has no rows"),
        (
            "logregr_train((SELECT y, x FROM odd WHERE y = 2), 'm', 'y', 'x')",
            ErrorKind::Data,
            "each of the 1 rows has a NULL",
        ),
        (
            "logregr_train((SELECT y, x FROM odd WHERE y = 1), 'm', 'y', 'x')",
            ErrorKind::Data,
            "label y is 1 in all rows",
        ),
        ("logregr_train('odd', 'm', 'y', 'x, x * x')", ErrorKind::Data, "2 rows are fewer than the 3 terms"),
        ("logregr_train('nan', 'm', 'y', 'x')", ErrorKind::Data, "feature x has the value NaN"),
        ("logregr_train('nan', 'm', 'y', 'z')", ErrorKind::Data, "feature z has the value inf"),
        ("logregr_train((SELECT * FROM nan WHERE z < 1e301), 'm', 'y', 'z')", ErrorKind::Data, "z are too large"),
        ("logregr_evaluate('m2', 'patients')", ErrorKind::NotFound, "there is no model \"m2\""),
        ("logregr_evaluate('m1', 'odd')", ErrorKind::NotFound, "treatment"),
        ("logregr_evaluate('m1', 'patients', 3)", ErrorKind::Invalid, "3 arguments are given, and it takes 2"),
    ] {
        let error = fails(&session, &format!("SELECT * FROM {call}")).await;
        assert!(error.message().contains(message), "{call}: {error}");
        assert_eq!(error.kind(), kind, "{call}: {error}");
    }
    for (call, message) in [
        ("logregr_predict('m1', 1)", "1 values are given, and the model \"m1\" has 2 features"),
        ("logregr_predict('m1')", "0 values are given"),
        ("logregr_predict('m2', 1, 2)", "there is no model \"m2\""),
        ("logregr_predict('m1', 'a', 2)", "takes no arguments of the types (VARCHAR, VARCHAR, BIGINT)"),
        ("logregr_predict(NULL, 1, 2)", "the model's name"),
        ("logregr_predict()", "logregr_predict"),
    ] {
        let error = fails(&session, &format!("SELECT {call}")).await;
        assert!(error.message().contains(message), "{call}: {error}");
        assert_ne!(error.kind(), ErrorKind::Internal, "{call}: {error}");
    }
    let error = fails(&session, "SELECT logregr_predict(CAST(id AS VARCHAR), 1, 2) FROM patients").await;
    assert!(error.message().contains("a text that is a constant"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_when_its_time_is_over() {
    let session = session_with(&[]);
    run(&session, MADE).await;
    run(&session, "SET statement_timeout = '30ms'").await;
    let features = (0..60).map(|n| format!("sin(a * {n})")).collect::<Vec<_>>().join(", ");
    let error = fails(&session, &format!("SELECT * FROM logregr_train('made', 'm', 'y', '{features}')")).await;
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}
