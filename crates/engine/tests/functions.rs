//! Functions that somebody has written, as far as no Python is needed for it: what is refused before one is asked, and what comes
//! of one that is none. `python/tests/test_functions.py` has functions that run.

#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::fs::PermissionsExt;

use onehop_engine::{Database, ErrorKind, Session};
use support::{fails, options, rows_as_they_come, run};

const DOUBLED: &str = "CREATE FUNCTION doubled(x DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ return 2 * x $$";

fn session(settings: &[(&str, &str)]) -> Session {
    Database::memory(&options(settings)).unwrap().session().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn none_runs_unless_that_is_allowed() {
    let session = session(&[]);
    let error = fails(&session, DOUBLED).await;
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert!(
        error.message().contains("not allowed") && error.hint().unwrap().contains("functions.allow_python"),
        "{error:?}"
    );
    assert!(rows_as_they_come(&session, "SELECT * FROM onehop_functions").await.unwrap().is_empty());
    let error = fails(&session, "SELECT doubled(1)").await;
    assert!(error.message().contains("doubled"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_function_is_refused_before_anybody_is_asked() {
    let session = session(&[("functions.allow_python", "true"), ("functions.python", "/nowhere/python3")]);
    for (sql, expected) in [
        ("CREATE FUNCTION f(x DOUBLE) RETURNS DOUBLE LANGUAGE rust AS $$ x $$", "no language rust"),
        ("CREATE FUNCTION f(x DOUBLE) RETURNS DOUBLE AS $$ x $$", "language is missing"),
        ("CREATE FUNCTION f(x DOUBLE) LANGUAGE python AS $$ return x $$", "type that it returns is missing"),
        (
            "CREATE FUNCTION f(x DOUBLE) RETURNS SETOF DOUBLE LANGUAGE python AS $$ return x $$",
            "one value for each row",
        ),
        ("CREATE FUNCTION f(x DOUBLE) RETURNS DOUBLE LANGUAGE python", "text is missing"),
        ("CREATE FUNCTION f(DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ return 1 $$", "has no name"),
        (
            "CREATE FUNCTION f(\"a b\" DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ return 1 $$",
            "no name for an argument",
        ),
        ("CREATE FUNCTION sqrt(x DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ return x $$", "function of SQL's"),
        ("CREATE FUNCTION sum(x DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ return x $$", "function of SQL's"),
        (
            "CREATE TEMPORARY FUNCTION f(x DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ return x $$",
            "cannot be temporary",
        ),
        ("DROP FUNCTION doubled", "there is no function \"doubled\""),
        (DOUBLED, "cannot start \"/nowhere/python3\""),
    ] {
        let error = fails(&session, sql).await;
        assert!(error.message().contains(expected), "{sql}: {error:?}");
    }
    run(&session, "DROP FUNCTION IF EXISTS doubled").await;
    run(&session, "BEGIN").await;
    assert!(fails(&session, DOUBLED).await.message().contains("cannot be part of a transaction"));
}

/// Programs that are no Python, in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_or_says_nonsense_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, expected) in [
        ("ends", "exit 7", "has ended: exit status: 7"),
        ("dies", "kill -9 $$", "has ended: signal: 9"),
        ("babbles", "printf '\\003\\0\\0\\0\\0\\0\\0\\0abc\\0\\0\\0\\0\\0\\0\\0\\0'; sleep 5", "no JSON"),
        ("boasts", "printf '\\377\\377\\377\\377\\377\\377\\377\\177'; sleep 5", "has ended"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let session = session(&[("functions.allow_python", "true"), ("functions.python", path.to_str().unwrap())]);
        let error = fails(&session, DOUBLED).await;
        assert!(error.message().contains(expected), "{name}: {error:?}");
    }
}
