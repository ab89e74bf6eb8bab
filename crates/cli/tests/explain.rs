//! `onehop explain` from outside: text, JSON, and a page that is well-formed and self-contained,
//! and contains no part of the query as markup.

mod support;

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{done, run};

/// Runs a command that must fail. Returns its exit code and standard error.
fn refused(words: &[&str]) -> (Option<i32>, String) {
    let said = run(words);
    assert!(said.out.is_empty(), "{words:?} prints");
    (said.exit, said.err)
}

fn database(folder: &Path) -> String {
    let path = folder.join("db").display().to_string();
    done(&[
        &path,
        "-c",
        "CREATE TABLE t AS SELECT v, v % 10 AS k FROM (SELECT unnest(range(0, 5000)) AS v); \
         CREATE TABLE d AS SELECT v AS k, 'x' || v AS \"<b>\" FROM (SELECT unnest(range(0, 5)) AS v)",
    ]);
    path
}

const SQL: &str = "SELECT \"<b>\", sum(v) AS \"<script>alert(1)</script>\" FROM t JOIN d USING (k) \
                   WHERE \"<b>\" <> '</code><script>' GROUP BY 1";

/// Checks that every opened tag is closed, in order. Returns the tags of the page.
fn tags(page: &str) -> Vec<String> {
    let (mut open, mut seen): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for piece in page.split('<').skip(1) {
        let Some((tag, _)) = piece.split_once('>') else { panic!("an open tag: {piece}") };
        let name: String = tag.trim_start_matches('/').chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        let is_void = tag.ends_with('/') || ["meta", "!DOCTYPE"].iter().any(|void| tag.starts_with(void));
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name.as_str()), "{piece}");
        } else if !is_void {
            open.push(name.clone());
        }
        seen.push(name);
    }
    assert!(open.is_empty(), "{open:?}");
    seen
}

#[test]
fn a_page_stands_by_itself() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = database(folder.path());
    let (query, page) = (folder.path().join("q.sql"), folder.path().join("q.html"));
    std::fs::write(&query, SQL)?;
    let (query, page) = (query.display().to_string(), page.display().to_string());
    assert_eq!(done(&["explain", &path, "--html", &query, "-o", &page]), "");
    let text = std::fs::read_to_string(&page)?;
    let tags = tags(&text);
    for wanted in ["svg", "path", "rect", "title", "details", "summary", "table", "section"] {
        assert!(tags.iter().any(|tag| tag == wanted), "no {wanted}");
    }
    for unwanted in ["script", "link", "img", "iframe", "b>"] {
        assert!(!tags.iter().any(|tag| tag == unwanted), "{unwanted}");
    }
    assert!(text.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "the query is in the page");
    assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("url("), "it loads nothing");
    assert!(text.contains("prefers-color-scheme: dark") && text.contains("CpuPreAgg"));
    // Scrolling areas can be reached by keyboard, and colours are not the only distinction.
    assert!(text.matches("tabindex=\"0\"").count() >= 3 && text.contains("class=\"legend\""));
    // The time of each step, as a bar.
    assert!(text.contains("<span class=\"share\""));
    // Without -o it goes to standard output.
    assert!(done(&["explain", &path, "--html", &query]).starts_with("<!DOCTYPE html>"));
    Ok(())
}

/// Hostile names and literals.
#[test]
fn nothing_of_names_and_literals_is_markup() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("db").display().to_string();
    // Names of tables have no slashes.
    let names = ["<img src=x onerror=alert(1)>", "</title><b onmouseover=alert(2)>", "\"><svg onload=alert(3)>"];
    let [table, column, alias] = names.map(|name| format!("\"{}\"", name.replace('"', "\"\"")));
    done(&[
        &path,
        "-c",
        &format!("CREATE TABLE {table} AS SELECT v AS {column} FROM (SELECT unnest(range(0, 100)) AS v)"),
    ]);
    let literal = "</code></pre><script>alert(4)</script>";
    let sql = format!(
        "SELECT '{literal}' AS {alias}, count(*) FROM {table} t JOIN {table} {alias} ON t.{column} = {alias}.{column} \
         WHERE CAST(t.{column} AS VARCHAR) <> '{literal}' GROUP BY 1"
    );
    let query = folder.path().join("q.sql");
    std::fs::write(&query, &sql)?;
    let text = done(&["explain", &path, "--html", &query.display().to_string()]);
    let tags = tags(&text);
    for unwanted in ["script", "img", "iframe", "object", "a"] {
        assert!(!tags.iter().any(|tag| tag == unwanted), "{unwanted}");
    }
    for name in names.iter().chain([&literal]) {
        assert!(!text.contains(*name), "{name} is in the page as it is");
    }
    assert!(text.contains("&lt;script&gt;alert(4)&lt;/script&gt;"));
    Ok(())
}

#[test]
fn a_page_of_no_bytes_says_so() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let query = folder.path().join("q.sql");
    std::fs::write(&query, "SELECT\n  1")?;
    let text = done(&["explain", "--html", &query.display().to_string()]);
    tags(&text);
    assert!(text.contains("nothing was read") && !text.contains("<svg"), "{text}");
    // The query is shown as it was written.
    assert!(text.contains("SELECT\n  1"), "{text}");
    Ok(())
}

#[test]
fn text_and_json_come_from_a_file_or_the_command_line() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = database(folder.path());
    let query = folder.path().join("q.sql");
    std::fs::write(&query, format!("-- a comment\n{SQL};\n"))?;
    let query = query.display().to_string();
    let plan = done(&["explain", &path, &query]);
    assert!(plan.contains("CpuJoin inner on t.k = d.k") && !plan.contains(" -> "), "{plan}");
    assert!(done(&["explain", &path, "-c", SQL, "--analyze"]).contains("bytes moved for a byte needed"));
    let json: Value = serde_json::from_str(&done(&["explain", &path, "--analyze", "--format", "json", &query]))?;
    assert_eq!((json["analyzed"].as_bool(), json["rows"].as_u64()), (Some(true), Some(5)));
    // Without a database: values, files.
    assert!(done(&["explain", "-c", "SELECT 1"]).contains("Exec"));
    Ok(())
}

#[test]
fn an_interrupt_ends_it() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = database(folder.path());
    let sql = "SELECT sum(a.v * b.v + c.v) FROM t a, t b, t c WHERE a.v < b.v + c.v";
    let mut child = Command::new(env!("CARGO_BIN_EXE_onehop"))
        .args(["explain", &path, "--analyze", "-c", sql])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    std::thread::sleep(std::time::Duration::from_millis(500));
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    let code = child.wait()?.code();
    assert_eq!(code, Some(130));
    Ok(())
}

#[test]
fn what_makes_no_sense_is_said() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = database(folder.path());
    let missing = folder.path().join("missing").display().to_string();
    let below_missing = folder.path().join("missing/x").display().to_string();
    for (words, exit, said) in [
        (vec!["explain"], 2, "there is no query"),
        (vec!["explain", &path], 2, "there is no query"),
        (vec!["explain", &path, "-c", "SELECT 1; SELECT 2"], 2, "2 statements"),
        (vec!["explain", &path, "-c", "/* nothing */"], 2, "there is no query in -c"),
        (vec!["explain", &path, "-c", "SELECT x FROM t"], 1, "no column \"x\""),
        (vec!["explain", &path, "-c", "DROP TABLE t"], 1, "only queries"),
        (vec!["explain", &missing, "-c", "SELECT 1"], 1, "there is no database"),
        (vec!["explain", &path, "--html", &missing], 1, "cannot read the query"),
        (vec!["explain", &path, "-c", "SELECT 1", "-o", &below_missing], 1, "cannot write"),
    ] {
        let (code, error) = refused(&words);
        assert_eq!(code, Some(exit), "{words:?}: {error}");
        assert!(error.contains(said), "{words:?}: {error}");
    }
    assert!(!Path::new(&missing).exists(), "explaining makes no database");
    Ok(())
}
