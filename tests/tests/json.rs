//! The JSON reader against the rules of JSON, and against truncated files.
//!
//! Model: `faults/files/json` has a small file for each class of valid and invalid JSON, by the
//! classes of the public JSONTestSuite: `accepted`, `refused` and `either`. `several` has
//! extensions beyond one JSON text: consecutive values, NaN and infinities. A refusal is a data
//! error that names the file; no file is read in part.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use futures::TryStreamExt;
use onehop_engine::{Database, DatabaseOptions, Error, ErrorKind, Output, Session};
use onehop_tests::canonical::lines;

fn session() -> Session {
    Database::memory(&DatabaseOptions::default()).unwrap().session().unwrap()
}

async fn run(session: &Session, sql: &str) -> Result<Vec<String>, Error> {
    match session.sql(sql).await? {
        Output::Done(_) => Ok(Vec::new()),
        Output::Rows(rows) => {
            let batches: Vec<_> = rows.try_collect().await?;
            let mut all = Vec::new();
            for batch in &batches {
                all.extend(lines(batch)?);
            }
            Ok(all)
        }
    }
}

/// Returns the number of rows of a file, and reads every value of it by a COPY to another file. The
/// columns may be of any type.
async fn count(session: &Session, path: &Path) -> Result<usize, Error> {
    let path = path.display();
    let target = tempfile::tempdir().unwrap();
    run(session, &format!("COPY (FROM '{path}') TO '{}/all.json'", target.path().display())).await?;
    let counted = run(session, &format!("SELECT count(*) FROM '{path}'")).await?;
    Ok(counted.first().and_then(|count| count.parse().ok()).unwrap())
}

fn files(class: &str) -> Vec<PathBuf> {
    let folder = root().join(class);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Returns the folder of files. Tests run in their package's folder.
fn root() -> PathBuf {
    std::path::absolute("faults/files/json").unwrap()
}

fn name(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

/// Returns true for a refusal: a data error that names the file.
fn is_refusal(path: &Path, e: &Error) -> bool {
    e.kind() == ErrorKind::Data && e.message().contains(name(path))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_json_is_read() {
    let session = session();
    let mut wrong = Vec::new();
    for path in files("accepted") {
        // Elements of an array are rows.
        let expected = match name(&path) {
            "array_empty" | "array_blank_around" | "structure_whitespace_array" => 0,
            "array_mixed" => 4,
            "array_with_newlines" | "string_quotes_end_in_backslashes" | "structure_tabs_and_returns" => 2,
            _ => 1,
        };
        match count(&session, &path).await {
            Ok(rows) if rows == expected => {}
            other => wrong.push(format!("{}: {other:?}, and not {expected}", name(&path))),
        }
    }
    for path in files("several") {
        match count(&session, &path).await {
            Ok(rows) if rows > 0 => {}
            other => wrong.push(format!("{}: {other:?}", name(&path))),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_none_is_refused() {
    let session = session();
    run(&session, "CREATE TABLE texts (a VARCHAR)").await.unwrap();
    let mut wrong = Vec::new();
    for path in files("refused") {
        for sql in ["SELECT * FROM '@'", "SELECT count(*) FROM '@'", "COPY texts FROM '@'"] {
            match run(&session, &sql.replace('@', &path.display().to_string())).await {
                Err(e) if is_refusal(&path, &e) => {}
                other => wrong.push(format!("{}: {sql}: {other:?}", name(&path))),
            }
        }
        let encoding = name(&path).strip_prefix("encoding_").map(|encoding| encoding.starts_with("utf16"));
        let e = run(&session, &format!("FROM '{}'", path.display())).await.unwrap_err();
        let word = encoding.map_or("", |is_16| if is_16 { "UTF-16" } else { "UTF-32" });
        assert!(e.message().contains(word), "{}: {e}", name(&path));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(run(&session, "SELECT count(*) FROM texts").await.unwrap(), ["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_either_is_read_or_refused() {
    let session = session();
    for path in files("either") {
        match count(&session, &path).await {
            Ok(rows) => assert_eq!(rows, 1, "{}", name(&path)),
            Err(e) => assert!(is_refusal(&path, &e), "{}: {e}", name(&path)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_cut_off_never_has_fewer_rows() {
    let session = session();
    run(&session, "CREATE TABLE t (a BIGINT, s VARCHAR, o VARCHAR)").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let lines = "{\"a\":1,\"s\":\"x\\u00e9\\\"\",\"o\":{\"l\":[1,null]}}\n{\"a\":22,\"s\":\"é\",\"o\":{}}\n{\"a\":333,\"s\":\"\",\"o\":null}";
    let array = format!("[{}]", lines.replace('\n', ","));
    let pretty = format!("[\n{}\n]\n", lines.replace('\n', ",\n").replace(":{", ":\n{"));
    let pretty_lines = lines.replace(":{", ":\n{");
    for (at, text) in [lines, &array, &pretty, &pretty_lines].into_iter().enumerate() {
        let whole = text.trim_end().len();
        for end in 0..=text.len() {
            // A unique name, because a session caches files by their names.
            let path = folder.path().join(format!("{at}-{end}.json"));
            fs::write(&path, &text.as_bytes()[..end]).unwrap();
            // A line, or an object, that ends at the end of the file is complete: nothing indicates
            // that more is missing.
            let is_between = !text.starts_with('[') && matches!(records(&text.as_bytes()[..end]), Some(1..));
            for sql in ["SELECT a, s FROM '@'", "SELECT count(*) FROM '@'", "COPY t FROM '@'"] {
                let outcome = run(&session, &sql.replace('@', &path.display().to_string())).await;
                if end >= whole || is_between {
                    assert!(outcome.is_ok(), "{at} {end} {sql}: {outcome:?}");
                } else {
                    let e = outcome.unwrap_err();
                    assert_eq!(e.kind(), ErrorKind::Data, "{at} {end} {sql}: {e}");
                    let is_named = e.message().contains(&format!("{at}-{end}.json'"));
                    assert!(is_named && (end == 0 || e.message().contains(" line ")), "{at} {end} {sql}: {e}");
                }
            }
        }
    }
}

/// Returns the number of objects in a text, if it ends with one of them. No string in it has a
/// bracket.
fn records(text: &[u8]) -> Option<usize> {
    let (mut depth, mut count) = (0, 0);
    for byte in text {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                count += usize::from(depth == 0);
            }
            _ => {}
        }
    }
    (depth == 0).then_some(count)
}

#[tokio::test(flavor = "multi_thread")]
async fn random_documents_come_back_as_they_are() {
    let session = session();
    let path = root().join("documents.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let expected: Vec<&str> =
        text.lines().map(|line| line.strip_prefix("{\"doc\":").unwrap().strip_suffix('}').unwrap()).collect();
    assert_eq!(expected.len(), 200);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let array = format!("[{}]", text.trim_end().replace('\n', " , "));
    fs::write(at("array.json"), array).unwrap();
    fs::write(at("mark.json"), format!("\u{feff}{}", text.replace('\n', "\r\n"))).unwrap();
    let pretty = root().join("documents.pretty.json").display().to_string();
    for source in [path.display().to_string(), pretty, at("array.json"), at("mark.json")] {
        run(&session, "CREATE OR REPLACE TABLE d (doc VARCHAR)").await.unwrap();
        run(&session, &format!("COPY d FROM '{source}'")).await.unwrap();
        assert_same(&session, "d", &expected).await;
        // As strings in a file, and back.
        run(&session, &format!("COPY d TO '{}'", at("texts.json"))).await.unwrap();
        run(&session, "CREATE OR REPLACE TABLE e (doc VARCHAR)").await.unwrap();
        run(&session, &format!("COPY e FROM '{}'", at("texts.json"))).await.unwrap();
        assert_same(&session, "e", &expected).await;
        // With inferred types. The types inferred for the written values are the same ones.
        run(&session, &format!("COPY (FROM '{source}') TO '{}'", at("typed.json"))).await.unwrap();
        run(&session, &format!("COPY (FROM '{}') TO '{}'", at("typed.json"), at("again.json"))).await.unwrap();
        assert_eq!(fs::read_to_string(at("typed.json")).unwrap(), fs::read_to_string(at("again.json")).unwrap());
    }
}

async fn assert_same(session: &Session, table: &str, expected: &[&str]) {
    let mut wrong = Vec::new();
    for (row, text) in expected.iter().enumerate() {
        // SQL doubles quotes.
        let sql = format!("SELECT count(*) FROM {table} WHERE doc = '{}'", text.replace('\'', "''"));
        let copies = expected.iter().filter(|other| *other == text).count().to_string();
        let found = run(session, &sql).await.unwrap();
        if found != [copies.as_str()] {
            wrong.push(format!("{row}: {text}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
