//! Queries that are asked again and again: what is kept of them has nothing of the statement that made it. Bytes, notices, memory
//! that runs out and what goes wrong are those of whoever asks.

#![allow(clippy::unwrap_used)]

mod support;

use onehop_engine::{Database, DatabaseOptions, ErrorKind, Session};
use support::{fails, options, run, runtime};

/// Lowered the first time, lowered and kept the second, bound after that.
const TIMES: usize = 5;

fn notices(session: &Session) -> Vec<String> {
    session.query().notices()
}

#[test]
fn each_statement_has_its_own_account() {
    let (runtime, folder) = (runtime(), tempfile::tempdir().unwrap());
    let database =
        Database::open(folder.path(), &options(&[("threads", "2"), ("storage.block_rows", "4096")])).unwrap();
    let (session, other) = (database.session().unwrap(), database.session().unwrap());
    let run = |session: &Session, sql: &str| runtime.block_on(run(session, sql));
    run(&session, "CREATE TABLE f AS SELECT i, i % 7 AS k, i * 3 AS v FROM (SELECT unnest(range(0, 100000)) AS i)");
    run(&session, "CREATE TABLE d AS SELECT i AS k, 'name ' || i AS name FROM (SELECT unnest(range(0, 7)) AS i)");
    let star = "SELECT d.name, sum(v), (SELECT max(i) FROM f WHERE i < 70000) FROM f JOIN d ON f.k = d.k \
                WHERE f.i > (SELECT avg(i) FROM f WHERE k < 3) GROUP BY d.name";
    let mut accounts = Vec::new();
    for session in [&session, &session, &session, &other, &session, &other] {
        let answer = run(session, star);
        let ledger = session.query().ledger();
        accounts.push((
            answer,
            (ledger.rows_scanned, ledger.blocks_considered, ledger.blocks_skipped, ledger.blocks_read),
            ledger.needed_bytes,
            notices(session),
        ));
    }
    assert!(accounts[0].0.len() == 7 && accounts[0].1.3 > 20 && accounts[0].2 > 0, "{:?}", accounts[0]);
    // The first has read what a dictionary is made of as well.
    assert!(accounts.iter().all(|of| (&of.0, &of.1, &of.3) == (&accounts[0].0, &accounts[0].1, &accounts[0].3)));
    assert!(accounts[2..].iter().all(|of| *of == accounts[2]), "{accounts:#?}");
    // The same settings, and others.
    run(&session, "SET exec.mode = 'datafusion'");
    assert_eq!(run(&session, star), accounts[0].0);
    run(&session, "SET exec.mode = 'fused'");
    run(&session, "SET io.path = 'direct'");
    assert_eq!(run(&session, star), accounts[0].0);
    run(&session, "DELETE FROM f WHERE i >= 60000");
    for _ in 0..TIMES {
        assert!(run(&session, star).iter().all(|row| row.ends_with("|59999")));
    }
}

#[test]
fn memory_runs_out_for_each_of_them() {
    let (runtime, database) = (runtime(), Database::memory(&DatabaseOptions::default()).unwrap());
    let session = database.session().unwrap();
    let run = |sql: &str| runtime.block_on(run(&session, sql));
    run("CREATE TABLE many AS SELECT v * 7 AS x, v AS y FROM (SELECT unnest(range(0, 3000000)) AS v)");
    // A subtree that was lowered before is in what takes over.
    let sql = "SELECT a.y, (SELECT count(*) FROM many WHERE y < 9) FROM many a JOIN many b ON a.x = b.x \
               WHERE b.y % 1500000 = 3 AND a.y + b.y > 0";
    for memory in ["1GiB", "16MiB", "1GiB", "16MiB"] {
        run(&format!("SET memory_limit = '{memory}'"));
        for _ in 0..TIMES {
            assert_eq!(run(sql), ["1500003|9", "3|9"], "{memory}");
            let is_told = notices(&session).iter().any(|notice| notice.contains("memory_limit"));
            assert_eq!(is_told, memory == "16MiB", "{:?}", notices(&session));
        }
    }
}

#[test]
fn what_goes_wrong_goes_wrong_each_time() {
    let (runtime, database) = (runtime(), Database::memory(&DatabaseOptions::default()).unwrap());
    let session = database.session().unwrap();
    let run = |sql: &str| runtime.block_on(run(&session, sql));
    run("CREATE TABLE t AS SELECT v % 5 AS k, v FROM (SELECT unnest(range(0, 1000)) AS v)");
    let (sum, refused) = ("SELECT sum(100 / k) FROM t", "SELECT k, avg(v) FROM t GROUP BY ROLLUP (k)");
    for _ in 0..TIMES {
        assert_eq!(runtime.block_on(fails(&session, sum)).kind(), ErrorKind::Data);
        assert_eq!(run(refused).len(), 6);
        assert!(notices(&session).iter().any(|notice| notice.contains("not fused")), "{:?}", notices(&session));
    }
    run("SET exec.fallback = 'error'");
    for _ in 0..2 {
        assert_eq!(runtime.block_on(fails(&session, refused)).kind(), ErrorKind::Invalid);
    }
    run("RESET exec.fallback");
    assert_eq!(run(refused).len(), 6);
    run("DELETE FROM t WHERE k = 0");
    for _ in 0..TIMES {
        assert_eq!(run(sum), ["41600"]);
    }
}
