//! Semi-join reductions: where a join says which rows are worth aggregating, they alone are aggregated, and where it
//! does not, all are. The same statement on DataFusion's operators, which reduce nothing, is the oracle; golden and
//! random queries compare with DuckDB.

#![allow(clippy::unwrap_used)]

mod support;

use onehop_engine::{Database, ErrorKind, Session};
use support::{fails, run, runtime, tiny};
use tokio::runtime::Runtime;

struct Place {
    runtime: Runtime,
    session: Session,
}

impl Place {
    /// Many rows with some 2,000 keys, a few with some of these and others, some keys missing, some several times.
    fn new() -> Self {
        let place = Self { runtime: runtime(), session: Database::memory(&tiny()).unwrap().session().unwrap() };
        place.run(
            "CREATE TABLE large AS SELECT CASE WHEN v % 7 = 3 THEN NULL ELSE v % 2000 END AS k, v % 10 AS g, \
             CAST(v % 2000 AS INTEGER) AS narrow, v AS amount, v % 13 = 0 AS odd \
             FROM (SELECT unnest(range(0, 20000)) AS v)",
        );
        place.run(
            "CREATE TABLE small AS SELECT v AS n, CASE WHEN v % 10 = 9 THEN NULL ELSE (v % 250) * 9 END AS k, \
             'tag ' || (v % 40) AS tag FROM (SELECT unnest(range(0, 500)) AS v)",
        );
        place.run(
            "CREATE TABLE keys AS SELECT CASE WHEN v % 11 <> 5 THEN v % 3000 END AS k, v % 90 AS v \
             FROM (SELECT unnest(range(0, 6000)) AS v)",
        );
        place.run("CREATE TABLE nothing (n BIGINT, k BIGINT, tag VARCHAR)");
        place
    }

    fn run(&self, sql: &str) -> Vec<String> {
        self.runtime.block_on(run(&self.session, sql))
    }

    /// Whether keys are handed down, and that the answer is the same as without.
    fn is_reduced(&self, sql: &str) -> bool {
        self.run("SET exec.mode = 'datafusion'");
        let expected = self.run(sql);
        self.run("SET exec.mode = 'fused'");
        assert_eq!(self.run(sql), expected, "{sql}");
        self.run(&format!("EXPLAIN {sql}")).join("\n").contains("wanted")
    }
}

/// Aggregates by `k` of what is large.
const TOTALS: &str = "(SELECT k, sum(amount) AS total, count(*) AS rows FROM large GROUP BY k)";

#[test]
fn what_a_join_asks_for_is_aggregated_alone() {
    let place = Place::new();
    for sql in [
        // Subqueries about the row around them, of groups that are there and of some that are not.
        "SELECT count(*), sum(n) FROM small s WHERE n < 20 AND n * 700 < (SELECT avg(amount) FROM large l WHERE l.k = s.k)",
        "SELECT n, (SELECT max(amount) FROM large l WHERE l.k = s.k) FROM small s WHERE n BETWEEN 5 AND 40",
        "SELECT n, (SELECT count(*) FROM large l WHERE l.k = s.k AND odd) FROM small s WHERE n < 20",
        // Joined by what they are grouped by, whatever is between.
        &format!("SELECT count(*), sum(total) FROM small s JOIN {TOTALS} t ON t.k = s.k WHERE n < 20 AND total > n"),
        &format!("SELECT n, total FROM {TOTALS} t JOIN small s ON t.k = s.k WHERE s.n < 20 AND rows > 8"),
        &format!("SELECT n, total FROM small s LEFT JOIN {TOTALS} t ON t.k = s.k WHERE n < 30"),
        &format!("SELECT n, total FROM {TOTALS} t RIGHT JOIN small s ON t.k = s.k WHERE n < 30"),
        &format!("SELECT n FROM small s WHERE n < 30 AND k IN (SELECT k FROM {TOTALS} t WHERE total > 90000)"),
        "SELECT n, rows FROM small s JOIN (SELECT k, g, count(*) AS rows FROM large GROUP BY k, g) t ON t.k = s.k WHERE n < 9",
        "SELECT n, x FROM small s JOIN (SELECT k, count(DISTINCT g) AS x FROM large GROUP BY k) t ON t.k = s.k WHERE n < 9",
        "SELECT n, x FROM small s JOIN (SELECT DISTINCT k, g AS x FROM large) t ON t.k = s.k WHERE n < 9",
        // An aggregate of an aggregate.
        "SELECT n, x FROM small s JOIN (SELECT k, max(y) AS x FROM (SELECT k, g, sum(amount) AS y FROM large \
         GROUP BY k, g) GROUP BY k) t ON t.k = s.k WHERE n < 9",
        // Keys of two types.
        "SELECT n, x FROM small s JOIN (SELECT narrow, sum(amount) AS x FROM large GROUP BY narrow) t ON t.narrow = s.k \
         WHERE n < 9",
        // By a key of the side that keys come from, and by what is equal to it.
        &format!(
            "SELECT s.n, total FROM small s JOIN small p ON s.k = p.k JOIN {TOTALS} t ON t.k = p.k \
             WHERE s.n BETWEEN 3 AND 9"
        ),
        // Sets that rows are looked up in.
        "SELECT count(*), sum(n) FROM small s WHERE n < 20 AND EXISTS (SELECT 1 FROM large l WHERE l.k = s.k AND odd)",
        "SELECT count(*), sum(n) FROM small s WHERE n < 20 AND NOT EXISTS (SELECT 1 FROM large l WHERE l.k = s.k AND odd)",
        "SELECT count(*), sum(n) FROM small s WHERE n < 20 AND EXISTS (SELECT 1 FROM large l WHERE l.k = s.k AND l.g <> s.n)",
        // Tables that are joined with a larger one by one key.
        "SELECT count(*), sum(amount) FROM large l JOIN small s ON s.n = l.k JOIN keys x ON x.k = l.k \
         WHERE s.tag = 'tag 7'",
        "SELECT l.g, count(*), sum(x.v) FROM large l JOIN keys x ON x.k = l.k AND x.v > l.g JOIN small s ON s.n = l.k \
         WHERE s.tag = 'tag 7' GROUP BY l.g",
        // What is empty has no keys.
        &format!("SELECT count(*), sum(total) FROM nothing s JOIN {TOTALS} t ON t.k = s.k WHERE n < 20"),
        &format!("SELECT n, total FROM nothing s LEFT JOIN {TOTALS} t ON t.k = s.k"),
        &format!("SELECT n, total FROM small s LEFT JOIN {TOTALS} t ON t.k = s.k WHERE n < -4"),
    ] {
        assert!(place.is_reduced(sql), "{sql}");
    }
}

#[test]
fn what_a_join_does_not_ask_for_is_aggregated_where_it_matters() {
    let place = Place::new();
    for sql in [
        // Groups without a partner are rows of the answer.
        &format!("SELECT count(*), sum(total), count(n) FROM {TOTALS} t LEFT JOIN small s ON t.k = s.k AND s.n < 20"),
        &format!(
            "SELECT count(*), sum(total), count(n) FROM (SELECT * FROM small WHERE n < 20) s FULL JOIN {TOTALS} t ON t.k = s.k"
        ),
        &format!(
            "SELECT count(*), sum(total) FROM {TOTALS} t WHERE NOT EXISTS (SELECT 1 FROM small s WHERE s.k = t.k AND n < 20)"
        ),
        // A NULL among what is looked into matters.
        "SELECT count(*) FROM small WHERE n < 20 AND k NOT IN (SELECT k FROM large WHERE odd)",
        "SELECT count(*) FROM small WHERE n < 20 AND k NOT IN (SELECT k FROM large WHERE odd AND k IS NOT NULL)",
        &format!(
            "SELECT count(*), sum(total) FROM (SELECT * FROM small WHERE n < 20) s JOIN {TOTALS} t ON t.k IS NOT DISTINCT FROM s.k"
        ),
        // The key is nothing that is grouped by.
        "SELECT n, k FROM (SELECT max(k) AS m, g FROM large GROUP BY g) t JOIN small s ON t.m = s.k WHERE n < 20",
        "SELECT n FROM small s JOIN (SELECT max(k) AS m FROM large) t ON t.m = s.k + 1981 WHERE n < 20",
        "SELECT n, x FROM small s JOIN (SELECT k + 0 AS kk, sum(amount) AS x FROM large GROUP BY k) t ON t.kk = s.k WHERE n < 9",
        "SELECT n, x FROM small s JOIN (SELECT k, g, sum(amount) AS x FROM large GROUP BY ROLLUP (k, g)) t ON t.k = s.k \
         WHERE n < 9",
        // The first rows of fewer are others.
        "SELECT n, x FROM small s JOIN (SELECT k, count(*) AS x FROM (SELECT k FROM large ORDER BY amount LIMIT 99) l \
         GROUP BY k) t ON t.k = s.k WHERE n < 9",
        "SELECT n, x FROM small s JOIN (SELECT k, sum(amount) AS x FROM large GROUP BY k ORDER BY k LIMIT 20) t \
         ON t.k = s.k WHERE n < 9",
        "SELECT n, x FROM small s JOIN (SELECT k, rank() OVER (ORDER BY sum(amount)) AS x FROM large GROUP BY k) t \
         ON t.k = s.k WHERE n < 9",
        // The join itself is what filters.
        "SELECT count(*), sum(amount) FROM large l JOIN small s ON s.n = l.k WHERE s.tag = 'tag 7'",
        "SELECT count(*), sum(amount) FROM large l JOIN keys x ON x.k = l.k JOIN small s ON s.k = x.v WHERE s.tag = 'tag 7'",
        // Nothing is filtered, or what is filtered by is as large.
        &format!("SELECT count(*), sum(total) FROM small s JOIN {TOTALS} t ON t.k = s.k"),
        &format!("SELECT count(*), sum(total) FROM large l JOIN {TOTALS} t ON t.k = l.k"),
        &format!("SELECT count(*), sum(total) FROM large l JOIN {TOTALS} t ON t.k = l.k WHERE l.amount > 3000"),
        // What could fail is evaluated but once, for rows that the joins leave.
        &format!("SELECT count(*), sum(total) FROM small s JOIN {TOTALS} t ON t.k = s.k WHERE 100 / (n + 1) > 3"),
    ] {
        assert!(!place.is_reduced(sql), "{sql}");
    }
}

/// A sum that leaves its type fails a query that asks for it, and no other.
#[test]
fn groups_that_nobody_asks_for_fail_no_query() {
    let place = Place::new();
    place.run("INSERT INTO large SELECT 18, 0, 0, 9223372036854775807, true FROM (SELECT unnest(range(0, 3)))");
    let sql = |n: i64| format!("SELECT total FROM small s JOIN {TOTALS} t ON t.k = s.k WHERE n = {n}");
    assert_eq!(place.run(&sql(1)), ["84081"]);
    for mode in ["datafusion", "fused"] {
        place.run(&format!("SET exec.mode = '{mode}'"));
        let e = place.runtime.block_on(fails(&place.session, &sql(2)));
        assert_eq!(e.kind(), ErrorKind::Data, "{mode}: {e}");
    }
}
