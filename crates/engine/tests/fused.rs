//! Fused pipelines through SQL: what must run on them does, what cannot says why, and memory that runs out fails no
//! query. Whether answers are right is for the golden tests and the comparison with DuckDB; here the same statement on
//! DataFusion's operators is the oracle for what those do not reach.

#![allow(clippy::unwrap_used)]

mod support;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::StreamExt;
use onehop_engine::{Database, DatabaseOptions, ErrorKind, Hop, Output, Session};
use support::{fails, rows, rows_as_they_come, run, runtime, tiny};
use tokio::runtime::Runtime;

struct Place {
    runtime: Runtime,
    session: Session,
}

impl Place {
    /// A star of a fact table, dimensions, one that is empty, and one with every key twice.
    fn new(options: &DatabaseOptions) -> Self {
        let place = Self { runtime: runtime(), session: Database::memory(options).unwrap().session().unwrap() };
        place.run(
            "CREATE TABLE facts AS SELECT v AS id, CASE WHEN v % 7 = 0 THEN NULL ELSE v % 50 END AS k, v * 3 AS amount, \
             CAST(v % 100 AS DECIMAL(9, 2)) AS price, 'name ' || (v % 13) AS name, v % 2 = 0 AS even \
             FROM (SELECT unnest(range(0, 5000)) AS v)",
        );
        place.run(
            "CREATE TABLE dimension AS SELECT v AS k, 'd' || v AS label, v % 5 AS region \
             FROM (SELECT unnest(range(10, 40)) AS v)",
        );
        place.run("CREATE TABLE days AS SELECT DATE '2019-12-30' + v AS day FROM (SELECT unnest(range(0, 40)) AS v)");
        place.run("CREATE TABLE nothing (k BIGINT, label VARCHAR)");
        place.run("CREATE TABLE twice AS SELECT v % 30 AS k, v AS x FROM (SELECT unnest(range(0, 60)) AS v)");
        place
    }

    fn run(&self, sql: &str) -> Vec<String> {
        self.runtime.block_on(run(&self.session, sql))
    }

    /// The same rows either way, and fused the one way.
    fn same(&self, sql: &str) -> Vec<String> {
        self.run("SET exec.fallback = 'error'");
        let rows = self.same_somehow(sql);
        self.run("RESET exec.fallback");
        rows
    }

    /// The same rows either way.
    fn same_somehow(&self, sql: &str) -> Vec<String> {
        self.run("SET exec.mode = 'datafusion'");
        let expected = self.run(sql);
        self.run("SET exec.mode = 'fused'");
        let rows = self.run(sql);
        assert_eq!(rows, expected, "{sql}");
        rows
    }
}

#[test]
fn what_pipelines_are_for_runs_on_them() {
    let place = Place::new(&tiny());
    for sql in [
        "SELECT count(*) FROM facts",
        "SELECT sum(amount), min(price), max(price), avg(price), count(k) FROM facts WHERE even AND name LIKE '%1%'",
        "SELECT region, sum(amount) FROM facts JOIN dimension USING (k) GROUP BY region",
        "SELECT label, even, count(*) FROM facts f JOIN dimension d ON f.k = d.k WHERE region IN (1, 2) GROUP BY 1, 2",
        "SELECT sum(x), count(*) FROM facts JOIN twice USING (k)",
        "SELECT sum(amount), count(*) FROM facts JOIN nothing USING (k)",
        "SELECT name, count(*) FROM facts WHERE k IS NOT DISTINCT FROM NULL GROUP BY name",
        "SELECT sum(CASE WHEN even THEN price ELSE -price END) FROM facts",
        // Semi and anti joins; a NULL key is found nowhere.
        "SELECT count(*) FROM facts WHERE EXISTS (SELECT 1 FROM dimension d WHERE d.k = facts.k AND region = 1)",
        "SELECT count(*), sum(id) FROM facts WHERE NOT EXISTS (SELECT 1 FROM twice t WHERE t.k = facts.k)",
        "SELECT count(*) FROM facts WHERE NOT EXISTS (SELECT 1 FROM nothing n WHERE n.k = facts.k)",
        "SELECT count(*) FROM facts JOIN dimension d USING (k) \
         WHERE EXISTS (SELECT 1 FROM twice t WHERE t.k = d.region AND t.x = facts.id)",
        "SELECT count(*) FROM facts WHERE EXISTS (SELECT 1 FROM twice t JOIN dimension d ON t.x = d.k \
         WHERE t.k = facts.k AND d.region <> 3 AND NOT EXISTS (SELECT 1 FROM nothing n WHERE n.k = d.k))",
        // A condition without a column is about the rows that it stands with.
        "SELECT count(*) FROM facts WHERE NOT EXISTS (SELECT 1 FROM twice t WHERE t.k = facts.k AND t.x NOT IN (NULL, 1))",
        "SELECT count(*) FROM facts WHERE NOT EXISTS (SELECT 1 FROM twice t WHERE t.k = facts.k AND t.x BETWEEN 1 AND NULL)",
        "SELECT count(*) FROM facts WHERE EXISTS (SELECT 1 FROM twice t WHERE t.k = facts.k) AND id BETWEEN 9 AND NULL",
        "SELECT count(*) FROM facts JOIN dimension d USING (k) WHERE id > 7 AND label NOT IN (NULL, 'd12')",
        // Days are numbers.
        "SELECT count(*), max(day - DATE '2020-01-01'), min(day + 7) FROM days WHERE day - DATE '2020-01-01' > 3",
        // Keys of more than 64 bits.
        "SELECT id, amount, price, name, id * 1000000007, amount * 998244353, count(*) FROM facts GROUP BY 1, 2, 3, 4, 5, 6",
    ] {
        assert!(!place.same(sql).is_empty(), "{sql}");
    }
    assert_eq!(place.same("SELECT k, count(*) FROM facts WHERE id < 0 GROUP BY k"), [""; 0]);
}

/// What everything that is counted once, filtered or added up as doubles is tried on: `g` has a group of each kind.
fn numbers(place: &Place) {
    place.run(
        "CREATE TABLE numbers AS SELECT v AS id, v % 5 AS g, v % 7000 AS h, \
         CASE WHEN v % 5 = 1 OR v % 3 = 0 THEN NULL ELSE v % 11 END AS k, \
         CASE WHEN v % 5 <> 1 THEN 'name ' || (v % 17) END AS name, \
         CASE WHEN v % 4 > 0 THEN DATE '2020-01-01' + v % 13 END AS day, \
         CAST(CASE WHEN v % 5 <> 1 THEN (v % 19) / 4.0 END AS DECIMAL(9, 2)) AS price, \
         CASE WHEN v % 5 <> 1 THEN CAST(v % 1000 AS DOUBLE) / 7 - 60 END AS x, \
         CASE v % 3 WHEN 0 THEN true WHEN 1 THEN false END AS flag FROM (SELECT unnest(range(0, 30000)) AS v)",
    );
}

#[test]
fn values_that_count_once() {
    let place = Place::new(&tiny());
    numbers(&place);
    for what in [
        "count(DISTINCT k)",
        "count(DISTINCT k), count(DISTINCT name), count(DISTINCT day), count(DISTINCT price), count(DISTINCT flag), count(*)",
        "count(DISTINCT k), count(DISTINCT id), sum(k), min(k)",
        "count(DISTINCT id), sum(DISTINCT id), max(id)",
        "sum(DISTINCT k), avg(DISTINCT k), count(DISTINCT k), avg(k)",
        "sum(DISTINCT price), avg(DISTINCT price), avg(price)",
        "count(DISTINCT k + g), count(DISTINCT CASE WHEN flag THEN name END)",
        "count(DISTINCT k) FILTER (WHERE flag), sum(DISTINCT id) FILTER (WHERE NOT flag), count(DISTINCT id)",
        "min(DISTINCT k), max(DISTINCT name)",
    ] {
        for by in ["g", "h", "name", "g, flag", "id"] {
            place.same(&format!("SELECT {by}, {what} FROM numbers GROUP BY {by}"));
        }
        for condition in ["true", "g = 1", "id < 0", "k IS NULL", "id % 100 = 3"] {
            place.same(&format!("SELECT {what} FROM numbers WHERE {condition}"));
        }
    }
    assert_eq!(place.same("SELECT count(DISTINCT k), sum(DISTINCT k) FROM numbers WHERE g = 1"), ["0|NULL"]);
    assert_eq!(place.same("SELECT count(DISTINCT k), sum(DISTINCT k) FROM numbers WHERE id < 22"), ["9|54"]);
    assert_eq!(place.same("SELECT DISTINCT flag, g = 1 FROM numbers").len(), 6);
    assert_eq!(place.same("SELECT g, count(name) FROM (SELECT DISTINCT g, name FROM numbers) GROUP BY g").len(), 5);
    // What one aggregate does not do, two do.
    place.same_somehow("SELECT g, count(*) FROM (SELECT DISTINCT g, name FROM numbers) GROUP BY g");
    place.same_somehow("SELECT g, sum(n) FROM (SELECT g, name, count(*) AS n FROM numbers GROUP BY 1, 2) GROUP BY g");
    place.same_somehow("SELECT h, count(k) FROM (SELECT DISTINCT g, h, k FROM numbers) GROUP BY h");
    place.same_somehow("SELECT count(DISTINCT x), sum(DISTINCT g) FROM numbers");
    place.run("CREATE TABLE large AS SELECT 9223372036854775807 - v % 2 AS x FROM (SELECT unnest(range(0, 9)) AS v)");
    assert_eq!(place.same("SELECT count(DISTINCT x), avg(DISTINCT x) FROM large"), ["2|9.223372036854776e18"]);
    for mode in ["datafusion", "fused"] {
        place.run(&format!("SET exec.mode = '{mode}'"));
        let e = place.runtime.block_on(fails(&place.session, "SELECT sum(DISTINCT x) FROM large"));
        assert!(e.kind() == ErrorKind::Data && e.message().starts_with("BIGINT out of range"), "{e}");
    }
}

#[test]
fn rows_that_a_filter_leaves_out() {
    let place = Place::new(&tiny());
    numbers(&place);
    for what in [
        "count(*) FILTER (WHERE flag), count(*) FILTER (WHERE flag IS NULL), count(*)",
        "count(k) FILTER (WHERE id > 100), sum(k) FILTER (WHERE k > 3), min(name) FILTER (WHERE NOT flag)",
        "avg(price) FILTER (WHERE flag), avg(k) FILTER (WHERE flag), max(day) FILTER (WHERE g <> 1)",
        "sum(id) FILTER (WHERE false), count(*) FILTER (WHERE NULL), min(flag), max(flag), bool_and(flag), bool_or(flag)",
        "bool_and(k > 0), bool_or(k > 9) FILTER (WHERE flag)",
    ] {
        place.same(&format!("SELECT {what} FROM numbers"));
        place.same(&format!("SELECT {what} FROM numbers WHERE id < 0"));
        place.same(&format!("SELECT g, {what} FROM numbers GROUP BY g"));
        place.same(&format!("SELECT h, {what} FROM numbers GROUP BY h"));
    }
    assert_eq!(
        place.same("SELECT count(*) FILTER (WHERE flag), sum(id) FILTER (WHERE flag) FROM numbers WHERE id < 10"),
        ["4|18"]
    );
    assert_eq!(place.same("SELECT count(*) FILTER (WHERE flag) FROM numbers WHERE id < 0"), ["0"]);
    // A FILTER guards what it filters; of DataFusion's operators it does not.
    assert_eq!(place.run("SELECT sum(100 / k) FILTER (WHERE k <> 0) FROM numbers WHERE id < 9 AND g <> 1"), ["121"]);
}

/// Whether two rows are the same, doubles to 12 digits.
fn is_close(a: &str, b: &str) -> bool {
    let is_close = |(a, b): (&str, &str)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a == b || (a - b).abs() <= 1e-12 * a.abs().max(b.abs()) || a.is_nan() && b.is_nan(),
        _ => a == b,
    };
    a.split('|').count() == b.split('|').count() && a.split('|').zip(b.split('|')).all(is_close)
}

#[test]
fn doubles() {
    let place = Place::new(&tiny());
    numbers(&place);
    for what in [
        "sum(x), avg(x), min(x), max(x), count(x)",
        "var_samp(x), var_pop(x), stddev(x), stddev_samp(x), stddev_pop(x)",
        "var_samp(k), stddev_pop(k), stddev(price), var_pop(price), stddev(h)",
        "sum(x) FILTER (WHERE flag), stddev(x) FILTER (WHERE id = 7), avg(CAST(price AS DOUBLE))",
        "sum(CAST(price AS DOUBLE) * 1e10), max(x * x), min(x / 3)",
    ] {
        for sql in [
            format!("SELECT {what} FROM numbers"),
            format!("SELECT {what} FROM numbers WHERE id < 0"),
            format!("SELECT {what} FROM numbers WHERE id = 7"),
            format!("SELECT g, {what} FROM numbers GROUP BY g ORDER BY g"),
            format!("SELECT h, {what} FROM numbers GROUP BY h ORDER BY h"),
        ] {
            place.run("SET exec.mode = 'datafusion'");
            let expected = place.run(&sql);
            place.run("SET exec.mode = 'fused'");
            place.run("SET exec.fallback = 'error'");
            let rows = place.run(&sql);
            place.run("RESET exec.fallback");
            assert_eq!(rows.len(), expected.len(), "{sql}");
            for (row, expected) in rows.iter().zip(&expected) {
                assert!(is_close(row, expected), "{sql}: {row}, {expected}");
            }
            assert_eq!(place.run(&sql), rows, "{sql}");
        }
    }
    place.run(
        "CREATE TABLE extremes AS SELECT g, CAST(x AS DOUBLE) AS x FROM (VALUES (1, 'NaN'), (1, '1.5'), \
         (2, 'Infinity'), (2, '1'), (3, '1e300'), (3, '1e300'), (4, '-0.0'), (4, '0.0'), (5, NULL), (6, '0.1'), \
         (6, '0.1')) AS t(g, x)",
    );
    assert_eq!(
        place.run("SELECT g, sum(x), min(x), max(x), var_samp(x), stddev_pop(x) FROM extremes GROUP BY g ORDER BY g"),
        [
            "1|NaN|1.5|NaN|NaN|NaN",
            "2|inf|1.0|inf|NaN|NaN",
            "3|2e300|1e300|1e300|0.0|0.0",
            "4|0.0|-0.0|0.0|0.0|0.0",
            "5|NULL|NULL|NULL|NULL|NULL",
            "6|0.2|0.1|0.1|0.0|0.0",
        ]
    );
    let by_all = "SELECT min(x), max(x) FROM extremes WHERE g";
    for (which, expected) in [("<> 1", "-0.0|inf"), ("= 1", "1.5|NaN"), ("= 4", "-0.0|0.0")] {
        assert_eq!(place.same(&format!("{by_all} {which}")), [expected]);
    }
}

/// What is below an aggregate may be anything: it is computed first, by pipelines of its own or by DataFusion.
#[test]
fn aggregates_of_anything_run_on_pipelines() {
    let place = Place::new(&tiny());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ks.parquet").display().to_string();
    place.run(&format!("COPY (SELECT k, label FROM dimension WHERE k > 15) TO '{file}'"));
    for sql in [
        // Aggregates of aggregates, with and without what is above them.
        "SELECT n, count(*) FROM (SELECT k, count(*) AS n FROM facts GROUP BY k) GROUP BY n",
        "SELECT max(s), min(k), count(k), count(*) FROM (SELECT k, sum(amount) AS s FROM facts GROUP BY k) WHERE s > 9",
        "SELECT count(*), min(name), max(m) FROM (SELECT name, min(name) AS m FROM facts GROUP BY name) WHERE name LIKE '%1%'",
        "SELECT length(m), count(*) FROM (SELECT k, max(name) AS m FROM facts GROUP BY k) GROUP BY 1",
        "SELECT count(*) FROM (SELECT DISTINCT k, even, name FROM facts) WHERE even",
        "SELECT sum(n), max(day) FROM (SELECT day, count(*) AS n FROM days GROUP BY day) WHERE day > DATE '2020-01-05'",
        "SELECT max(n) FROM (SELECT n, count(*) FROM (SELECT k, count(*) AS n FROM facts GROUP BY k) GROUP BY n)",
        "SELECT avg(p), max(p) FROM (SELECT k, max(price) AS p FROM facts GROUP BY k)",
        // Joined with tables: by what they are grouped by, and looked into.
        "SELECT region, sum(n) FROM dimension JOIN (SELECT k, count(*) AS n FROM facts GROUP BY k) f USING (k) GROUP BY region",
        "SELECT sum(amount) FROM facts JOIN (SELECT k, max(x) AS x FROM twice GROUP BY k) t ON t.k = facts.k AND t.x > amount",
        "SELECT count(*) FROM facts WHERE k IN (SELECT k FROM twice GROUP BY k HAVING sum(x) > 40)",
        "SELECT count(*) FROM facts WHERE NOT EXISTS \
         (SELECT 1 FROM (SELECT k, count(*) AS n FROM twice GROUP BY k) t WHERE t.k = facts.k AND n = 2)",
        "SELECT sum(amount) FROM facts f JOIN dimension d USING (k) \
         WHERE amount < (SELECT 2 * max(x) FROM twice t WHERE t.k = d.k)",
        // The value of a subquery: of one row, of none, of a NULL.
        "SELECT count(*) FROM facts WHERE price > (SELECT avg(price) FROM facts WHERE even)",
        "SELECT count(*) FROM facts WHERE amount > (SELECT max(k) FROM nothing)",
        "SELECT count(*) FROM facts WHERE amount > coalesce((SELECT k FROM dimension WHERE k > 99), 10000)",
        "SELECT count(*), sum(amount - (SELECT min(k) FROM twice)) FROM facts JOIN dimension USING (k)",
        "SELECT count(*) FROM facts WHERE k = (SELECT max(k) FROM twice) AND EXISTS \
         (SELECT 1 FROM twice t WHERE t.k = facts.k AND t.x > (SELECT min(x) FROM twice))",
        "SELECT count(*) FROM facts, (SELECT max(k) AS most FROM dimension) WHERE k < most",
        "SELECT count(*), max(m) FROM (SELECT max(k) AS m FROM nothing)",
        // Nothing comes of what is below.
        "SELECT count(*), sum(n) FROM (SELECT label, count(*) AS n FROM nothing GROUP BY label)",
        "SELECT label, sum(n) FROM (SELECT label, count(*) AS n FROM nothing GROUP BY label) GROUP BY label",
        "SELECT count(*) FROM facts JOIN (SELECT k, max(label) AS l FROM nothing GROUP BY k) n USING (k)",
        "SELECT count(*) FROM facts WHERE NOT EXISTS (SELECT 1 FROM (SELECT k FROM nothing GROUP BY k) n WHERE n.k = facts.k)",
        // Values and files.
        "SELECT sum(amount), max(w) FROM facts JOIN (VALUES (1, 'a'), (1, 'b'), (20, NULL), (NULL, 'c')) v (k, w) USING (k)",
        &format!("SELECT count(*), max(p.label) FROM facts JOIN '{file}' p USING (k)"),
        &format!(
            "SELECT sum(amount) FROM facts WHERE EXISTS (SELECT 1 FROM '{file}' p WHERE p.k = facts.k AND p.k < 30)"
        ),
        // Conditions on both queries that are no equalities.
        "SELECT count(*) FROM facts WHERE EXISTS (SELECT 1 FROM twice t WHERE t.k = facts.k AND t.x <> facts.id)",
        "SELECT count(*) FROM facts WHERE NOT EXISTS (SELECT 1 FROM twice t WHERE t.k = facts.k AND t.x > facts.id)",
        "SELECT count(*), sum(id) FROM facts a WHERE EXISTS (SELECT 1 FROM facts b WHERE b.k = a.k AND b.name <> a.name \
         AND b.id < a.id) AND NOT EXISTS (SELECT 1 FROM facts c WHERE c.k = a.k AND c.id > a.id AND c.price < a.price)",
        "SELECT region, count(*) FROM facts f JOIN dimension d USING (k) WHERE NOT EXISTS \
         (SELECT 1 FROM twice t WHERE t.k = f.k AND t.x > f.id + d.region) GROUP BY region",
    ] {
        // Texts of two columns are nothing that pipelines compare.
        if sql.contains("b.name <> a.name") {
            assert!(!place.same_somehow(sql).is_empty(), "{sql}");
        } else {
            place.same(sql);
        }
    }
}

/// Rows without a match: their columns of the other side are NULL, whatever these are made of.
#[test]
fn outer_joins() {
    let place = Place::new(&tiny());
    for sql in [
        "SELECT count(*), count(d.k), sum(region), min(label), max(label), count(f.k) FROM facts f LEFT JOIN dimension d ON f.k = d.k",
        "SELECT region, count(*), sum(amount) FROM facts f LEFT JOIN dimension d ON f.k = d.k GROUP BY region",
        "SELECT label, count(*), count(x) FROM dimension d LEFT JOIN twice t ON d.k = t.k GROUP BY label",
        "SELECT count(*), sum(f.id), count(label) FROM dimension d RIGHT JOIN facts f ON f.k = d.k",
        "SELECT count(*), count(n.label) FROM facts f LEFT JOIN nothing n ON f.k = n.k",
        "SELECT count(*), count(f.id), max(n.k) FROM nothing n LEFT JOIN facts f ON f.k = n.k",
        // What is computed inside, constants first of all, is NULL without a match; what is computed of that may not be.
        "SELECT count(*), sum(one), sum(two), count(r) FROM facts f \
         LEFT JOIN (SELECT k, 1 AS one, coalesce(region, 0) + 2 AS two, region IS NULL AS r FROM dimension) d ON f.k = d.k",
        "SELECT one, coalesce(one, 7) AS c, count(*) FROM facts f LEFT JOIN (SELECT k, 1 AS one FROM dimension) d ON f.k = d.k GROUP BY 1, 2",
        "SELECT count(*) FROM facts f LEFT JOIN (SELECT k, true AS found FROM dimension) d ON f.k = d.k WHERE found IS NOT TRUE",
        "SELECT up, count(*) FROM facts f LEFT JOIN (SELECT k, upper(label) AS up FROM dimension) d ON f.k = d.k GROUP BY up",
        // Conditions of the join decide about matches, those above it about rows.
        "SELECT count(*), count(d.k), sum(f.id) FROM facts f LEFT JOIN dimension d ON f.k = d.k AND f.even",
        "SELECT count(*), count(d.k) FROM facts f LEFT JOIN dimension d ON f.k = d.k AND region = 1",
        "SELECT count(*), count(d.k), sum(region) FROM facts f LEFT JOIN dimension d ON f.k = d.k AND f.id % 5 > region",
        "SELECT count(*), count(x), sum(x) FROM facts f LEFT JOIN twice t ON f.k = t.k AND f.id < t.x",
        "SELECT count(*), count(x), sum(x) FROM facts f LEFT JOIN twice t ON f.k = t.k AND f.id % 60 > t.x AND f.even",
        "SELECT count(*), count(x) FROM facts f LEFT JOIN twice t ON f.k = t.k AND false",
        "SELECT count(*), count(x) FROM facts f LEFT JOIN twice t ON f.k = t.k AND t.x BETWEEN 9 AND NULL",
        "SELECT count(*), sum(f.id) FROM facts f LEFT JOIN dimension d ON f.k = d.k WHERE d.k IS NULL",
        "SELECT count(*), sum(f.id) FROM facts f LEFT JOIN dimension d ON f.k = d.k WHERE region IS DISTINCT FROM 2",
        "SELECT count(*) FROM facts f LEFT JOIN dimension d ON f.k = d.k WHERE coalesce(region, f.id) > 3 AND f.id > 17",
        "SELECT count(*), count(d.k) FROM (SELECT * FROM facts WHERE id > 9 AND NOT even) f LEFT JOIN dimension d ON f.k = d.k",
        // In each other, on either side, and beside other joins.
        "SELECT count(*), count(d.k), count(x) FROM facts f LEFT JOIN dimension d ON f.k = d.k LEFT JOIN twice t ON d.region = t.k",
        "SELECT count(*), count(s.k), count(x) FROM facts f LEFT JOIN (SELECT d.k, x FROM dimension d LEFT JOIN twice t ON d.k = t.x) s ON f.k = s.k",
        "SELECT count(*), count(s.k), sum(one) FROM facts f LEFT JOIN (SELECT d.k, one FROM dimension d \
         LEFT JOIN (SELECT x, 1 AS one FROM twice) t ON d.k = t.x + 20) s ON f.k = s.k WHERE one IS NULL",
        "SELECT count(*), count(x), sum(region) FROM facts f LEFT JOIN twice t ON f.id = t.x JOIN dimension d ON t.k = d.k",
        "SELECT count(*), count(x), sum(region) FROM facts f JOIN dimension d ON f.k = d.k LEFT JOIN twice t ON t.k = d.region + f.k",
        "SELECT count(*), count(x) FROM dimension d JOIN (SELECT f.k, x FROM facts f LEFT JOIN twice t ON f.id = t.x) s ON s.x = d.k",
        "SELECT count(*), count(x), count(u.k) FROM facts f LEFT JOIN twice t ON f.k = t.k LEFT JOIN dimension u ON u.k = t.x + f.k",
        "SELECT count(*), count(a.label), count(b.label) FROM facts f LEFT JOIN dimension a ON f.k = a.k LEFT JOIN dimension b ON f.id = b.k WHERE a.k IS NULL AND b.k IS NOT NULL",
        "SELECT count(*), sum(f.id) FROM facts f LEFT JOIN dimension d ON f.k = d.k WHERE EXISTS (SELECT 1 FROM twice t WHERE t.k = d.region)",
        "SELECT count(*), sum(f.id) FROM facts f WHERE NOT EXISTS (SELECT 1 FROM twice t LEFT JOIN dimension d ON t.x = d.k WHERE t.k = f.k AND d.k IS NULL)",
        "SELECT count(*), count(n) FROM facts f LEFT JOIN (SELECT k, count(*) AS n FROM twice WHERE x < 45 GROUP BY k) t ON f.k = t.k",
        "SELECT count(*), sum(s.m) FROM facts f LEFT JOIN (SELECT max(k) AS m FROM dimension) s ON f.k = s.m",
        "SELECT n, count(*) FROM (SELECT d.k, count(f.id) AS n FROM dimension d LEFT JOIN facts f ON f.k = d.k AND f.name NOT LIKE '%1%' GROUP BY d.k) GROUP BY n",
    ] {
        place.same(sql);
    }
    // DuckDB's answers.
    for (sql, expected) in [
        (
            "SELECT count(*), count(d.k), sum(f.id) FROM facts f LEFT JOIN dimension d ON f.k = d.k AND f.even",
            "5000|1286|12497500",
        ),
        (
            "SELECT count(*), count(x), sum(x) FROM facts f LEFT JOIN twice t ON f.k = t.k AND f.id % 60 > t.x AND f.even",
            "5218|1067|18584",
        ),
        (
            "SELECT count(*), sum(one), count(d.k) FROM facts f LEFT JOIN (SELECT k, 1 AS one FROM dimension) d ON f.k = d.k",
            "5000|2572|2572",
        ),
        (
            "SELECT count(*) FROM facts f LEFT JOIN (SELECT k, true AS found FROM dimension) d ON f.k = d.k WHERE found IS NOT TRUE",
            "2428",
        ),
    ] {
        assert_eq!(place.same(sql), [expected], "{sql}");
    }
}

/// Nobody knows whether NULL is among others, or what is among others and NULL.
#[test]
fn not_in() {
    let place = Place::new(&tiny());
    for (sql, expected) in [
        ("SELECT count(*), sum(id) FROM facts WHERE k NOT IN (SELECT k FROM twice)", "1714|4311241"),
        ("SELECT count(*), sum(id) FROM facts WHERE k NOT IN (SELECT x FROM twice WHERE x % 3 = 0)", "2829|7072171"),
        ("SELECT count(*), sum(id) FROM facts WHERE k NOT IN (SELECT k FROM facts WHERE id < 20)", "0|NULL"),
        ("SELECT count(*), sum(id) FROM facts WHERE k NOT IN (SELECT k FROM facts WHERE id = 7)", "0|NULL"),
        ("SELECT count(*), count(k) FROM facts WHERE k NOT IN (SELECT k FROM nothing)", "5000|4285"),
        ("SELECT count(*), count(k) FROM facts WHERE k NOT IN (SELECT k FROM facts WHERE id < 0)", "5000|4285"),
        (
            "SELECT count(*), sum(id) FROM facts WHERE id NOT IN (SELECT k FROM facts WHERE k IS NOT NULL)",
            "4950|12496275",
        ),
        (
            "SELECT count(*), sum(id) FROM facts WHERE k + 1 NOT IN (SELECT t.k FROM twice t JOIN dimension d ON t.x = d.k)",
            "1800|4525185",
        ),
        (
            "SELECT count(*), sum(f.id) FROM facts f LEFT JOIN dimension d ON f.k = d.k WHERE region NOT IN (SELECT k FROM twice WHERE x < 3)",
            "1028|2573143",
        ),
        (
            "SELECT count(*), sum(id) FROM facts WHERE NOT EXISTS (SELECT 1 FROM twice t WHERE t.k = facts.k AND t.x NOT IN (SELECT k FROM dimension))",
            "2429|6098026",
        ),
    ] {
        assert_eq!(place.same(sql), [expected], "{sql}");
    }
    place.same("SELECT id, k FROM facts WHERE k NOT IN (SELECT k FROM twice WHERE x > 9)");
    place.same("SELECT id, k FROM facts WHERE k NOT IN (SELECT k FROM nothing)");
}

/// Joins that no aggregate is computed of: their rows leave as they are made.
#[test]
fn rows_of_joins() {
    let place = Place::new(&tiny());
    numbers(&place);
    for sql in [
        "SELECT f.id, label FROM facts f JOIN dimension d USING (k)",
        "SELECT f.id, label, region FROM facts f LEFT JOIN dimension d USING (k) WHERE f.id < 500",
        "SELECT * FROM facts f JOIN twice t ON f.k = t.k WHERE even",
        "SELECT id + x, upper(name), NOT even, price * 2 FROM facts f JOIN twice t ON f.k = t.k",
        "SELECT id, name FROM facts WHERE EXISTS (SELECT 1 FROM twice t WHERE t.k = facts.k AND t.x > facts.id)",
        "SELECT label FROM dimension d WHERE NOT EXISTS (SELECT 1 FROM facts f WHERE f.k = d.k AND id > 4960)",
        "SELECT k, id FROM facts WHERE k IN (SELECT k FROM twice GROUP BY k HAVING sum(x) > 40)",
        "SELECT id, label FROM facts f JOIN nothing n ON f.k = n.k",
        "SELECT f.id, n.label FROM facts f LEFT JOIN nothing n ON f.k = n.k",
        "SELECT 7 FROM facts f JOIN dimension d USING (k)",
        // Every type, with and without NULLs.
        "SELECT n.*, f.* FROM numbers n LEFT JOIN facts f ON n.id = f.id",
        "SELECT n.* FROM facts f LEFT JOIN numbers n ON n.id = f.id + 28000",
        "SELECT a.day, b.day FROM numbers a JOIN numbers b ON a.id = b.h",
        // What is above them is DataFusion's.
        "SELECT f.id, label FROM facts f JOIN dimension d USING (k) ORDER BY label DESC, id LIMIT 20",
        "SELECT f.id, sum(region) OVER (ORDER BY f.id) FROM facts f JOIN dimension d USING (k)",
        "SELECT f.id FROM facts f JOIN dimension d USING (k) UNION ALL SELECT f.id FROM facts f JOIN twice t ON f.id = t.x",
        "SELECT amount FROM facts f JOIN dimension d USING (k) WHERE amount > (SELECT max(x) FROM twice) AND region < 3",
    ] {
        place.same(sql);
    }
    // Parts of what cannot be fused are; a condition above a join that fails takes nothing with it.
    place.same_somehow("SELECT median(amount) FROM facts f JOIN dimension d USING (k)");
    place.same_somehow(
        "SELECT k, count(*) FROM (SELECT f.k FROM facts f JOIN dimension d USING (k) ORDER BY f.id LIMIT 99) GROUP BY k",
    );
    place.same_somehow("SELECT f.id FROM facts f JOIN dimension d USING (k) WHERE abs(region - 3) > 1");
    place.same_somehow("SELECT f.id, d.label FROM facts f JOIN dimension d USING (k) FULL JOIN twice t ON f.id = t.x");
    assert_eq!(place.run("SELECT count(*) FROM (SELECT id FROM facts f JOIN dimension d USING (k) LIMIT 5)"), ["5"]);
    for mode in ["datafusion", "fused"] {
        place.run(&format!("SET exec.mode = '{mode}'"));
        let sql = "SELECT 100 / (f.k - 12) FROM facts f JOIN dimension d USING (k)";
        let e = place.runtime.block_on(fails(&place.session, sql));
        assert!(e.kind() == ErrorKind::Data && e.to_string().contains("division by zero"), "{e}");
    }
    place.run("CREATE TABLE made AS SELECT f.id, label, price FROM facts f LEFT JOIN dimension d USING (k)");
    assert_eq!(place.run("SELECT count(*), count(label), count(price) FROM made"), ["5000|2572|5000"]);
}

/// Billions of rows, of which somebody reads a few.
#[test]
fn rows_of_joins_leave_as_they_are_made() {
    let place = Place::new(&DatabaseOptions::default());
    place.run("CREATE TABLE many AS SELECT v % 3 AS k, v FROM (SELECT unnest(range(0, 200000)) AS v)");
    let pairs = "SELECT a.v, b.v AS w FROM many a JOIN many b ON a.k = b.k";
    assert_eq!(place.run(&format!("{pairs} LIMIT 3")).len(), 3);
    assert_eq!(place.run(&format!("SELECT count(*) FROM ({pairs} LIMIT 100000)")), ["100000"]);
    // Who goes away stops it, whether rows come or not.
    place.runtime.block_on(async {
        let Output::Rows(mut stream) = place.session.sql(pairs).await.unwrap() else { panic!() };
        for _ in 0..3 {
            assert!(stream.next().await.unwrap().unwrap().num_rows() > 0);
        }
    });
    for sql in [format!("{pairs} WHERE a.v + b.v < 0"), format!("SELECT count(*) FROM ({pairs} LIMIT 100000000000)")] {
        place.run("SET statement_timeout = '50ms'");
        assert_eq!(place.runtime.block_on(fails(&place.session, &sql)).kind(), ErrorKind::Timeout, "{sql}");
        place.run("RESET statement_timeout");
    }
    assert_eq!(place.run("SELECT count(*) FROM many"), ["200000"]);
}

#[test]
fn the_first_rows_in_an_order() {
    for threads in ["1", "3"] {
        let mut options = tiny();
        options.settings.insert(0, ("threads".into(), threads.into()));
        let place = Place::new(&options);
        place.run(
            "CREATE TABLE doubles AS SELECT CAST(column1 AS DOUBLE) AS d, column2 AS id FROM (VALUES ('NaN', 1), \
             ('-0.0', 2), ('0.0', 3), ('Infinity', 4), ('-Infinity', 5), (NULL, 6), ('1.5', 7), ('-1.5', 8))",
        );
        let in_order = |sql: &str| place.runtime.block_on(rows_as_they_come(&place.session, sql)).unwrap();
        for sql in [
            "SELECT * FROM facts ORDER BY id DESC LIMIT 10",
            "SELECT * FROM facts ORDER BY id LIMIT 10 OFFSET 5",
            "SELECT id FROM facts ORDER BY id LIMIT 4 OFFSET 4998",
            "SELECT id FROM facts ORDER BY id LIMIT 60000",
            "SELECT name, id FROM facts ORDER BY name DESC, id LIMIT 7",
            "SELECT id, k FROM facts ORDER BY k, id LIMIT 3",
            "SELECT id, k FROM facts ORDER BY k NULLS FIRST, id DESC LIMIT 3",
            "SELECT id, k FROM facts ORDER BY k DESC, id LIMIT 900",
            "SELECT id, k FROM facts ORDER BY k DESC NULLS LAST, id LIMIT 900",
            "SELECT id + 1 AS x FROM facts WHERE even ORDER BY price DESC, amount LIMIT 20",
            "SELECT even, id FROM facts ORDER BY even, id DESC LIMIT 5",
            "SELECT day FROM days ORDER BY day DESC LIMIT 3",
            "SELECT CAST(price AS DOUBLE) AS d, id FROM facts ORDER BY d DESC, id LIMIT 5",
            "SELECT d, id FROM doubles ORDER BY d, id LIMIT 6",
            "SELECT d, id FROM doubles ORDER BY d DESC NULLS LAST, id LIMIT 6",
            "SELECT d, id FROM doubles ORDER BY d, id DESC LIMIT 4",
            "SELECT id, label FROM facts JOIN dimension USING (k) WHERE region < 3 ORDER BY amount DESC LIMIT 12",
            "SELECT id, label, x FROM facts f JOIN dimension d USING (k) JOIN twice t USING (k) \
             ORDER BY price, id DESC, x LIMIT 12",
            "SELECT id, label FROM facts LEFT JOIN dimension USING (k) ORDER BY region, id LIMIT 12",
            "SELECT id FROM facts ORDER BY amount * 2 - id DESC LIMIT 1",
            "SELECT id FROM facts WHERE k IN (SELECT k FROM twice) ORDER BY id DESC LIMIT 5",
            "SELECT id FROM facts f JOIN (SELECT region, max(k) AS k FROM dimension GROUP BY region) m USING (k) \
             ORDER BY id DESC LIMIT 5",
            "SELECT k, label FROM nothing ORDER BY k LIMIT 5",
            "SELECT sum(id), count(*) FROM (SELECT id FROM facts ORDER BY amount DESC LIMIT 100)",
            "SELECT f.id, t.x FROM facts f JOIN (SELECT k, x FROM twice ORDER BY x LIMIT 5) t USING (k) \
             ORDER BY f.id DESC, t.x LIMIT 4",
            "SELECT max(id) OVER () AS m, id FROM (SELECT id FROM facts ORDER BY id LIMIT 3) ORDER BY id",
            "(SELECT id FROM facts ORDER BY id LIMIT 2) UNION ALL (SELECT id FROM facts ORDER BY id DESC LIMIT 2) \
             ORDER BY 1",
        ] {
            place.run("SET exec.mode = 'datafusion'");
            let expected = in_order(sql);
            place.run("SET exec.mode = 'fused'");
            assert_eq!(in_order(sql), expected, "{sql}");
            let plan = in_order(&format!("EXPLAIN {sql}")).join("\n");
            assert!(plan.contains("CpuTopK"), "{plan}");
        }
        // Texts without a dictionary are sorted above the pipeline: none is made for them.
        let sql = "SELECT id, label FROM facts LEFT JOIN dimension USING (k) ORDER BY label, id LIMIT 12";
        let fused = in_order(sql);
        let plan = in_order(&format!("EXPLAIN {sql}")).join("\n");
        assert!(plan.contains("not fused: an ORDER BY of the texts of label") && plan.contains("CpuCollect"), "{plan}");
        place.run("SET exec.mode = 'datafusion'");
        assert_eq!(in_order(sql), fused);
        place.run("SET exec.mode = 'fused'");
        // It comes in order: nobody has to sort, or to count.
        let plan = in_order("EXPLAIN SELECT id + 1 AS x FROM facts ORDER BY price DESC LIMIT 20").join("\n");
        assert!(!plan.contains("SortExec") && !plan.contains("LimitExec"), "{plan}");
        // Ties may be any of them.
        let ties = in_order("SELECT even, id FROM facts ORDER BY even DESC LIMIT 40");
        assert!(ties.len() == 40 && ties.iter().all(|row| row.starts_with("true")), "{ties:?}");
        // Nothing to be told of: any plan sorts.
        let refused = "SELECT id FROM facts ORDER BY id LIMIT 70000";
        place.run("SET exec.fallback = 'error'");
        assert_eq!(in_order(refused).len(), 5000);
        let plan = in_order(&format!("EXPLAIN {refused}")).join("\n");
        assert!(plan.contains("not fused: an ORDER BY with a LIMIT of more than 65536 rows"), "{plan}");
        place.run("RESET exec.fallback");
    }
}

#[test]
fn what_fails_beside_the_first_rows_fails_whatever_the_order() {
    let place = Place::new(&tiny());
    for order in ["id", "id DESC", "name, id"] {
        let sql = format!("SELECT id, 1 / (id - 4990) AS q FROM facts ORDER BY {order} LIMIT 3");
        assert_eq!(place.runtime.block_on(fails(&place.session, &sql)).kind(), ErrorKind::Data, "{sql}");
        let sql = format!("SELECT id, 1 / (id - 4990) AS q FROM facts WHERE id <> 4990 ORDER BY {order} LIMIT 3");
        assert_eq!(place.run(&sql).len(), 3);
    }
    // So does a condition.
    let sql = "SELECT id FROM facts WHERE 1 / (id - 4990) >= 0 ORDER BY id LIMIT 3";
    assert_eq!(place.runtime.block_on(fails(&place.session, sql)).kind(), ErrorKind::Data);
}

#[test]
fn join_tables_that_do_not_fit_fail_no_query() {
    let place = Place::new(&DatabaseOptions::default());
    place.run("CREATE TABLE many AS SELECT v * 7 AS x, v AS y FROM (SELECT unnest(range(0, 3000000)) AS v)");
    place.run("SET memory_limit = '16MiB'");
    // The table is of all of `a`; DataFusion's operators know that a condition on `b` leaves less of that.
    let sql = "SELECT a.y FROM many a JOIN many b ON a.x = b.x WHERE b.y % 1000000 = 3";
    assert_eq!(place.run(sql), ["1000003", "2000003", "3"]);
    let notices = place.session.query().notices();
    assert!(notices.iter().any(|notice| notice.contains("memory_limit")), "{notices:?}");
    place.run("SET exec.fallback = 'error'");
    let e = place.runtime.block_on(fails(&place.session, sql));
    assert!(e.kind() == ErrorKind::Resources && e.hint().is_some_and(|h| h.contains("exec.fallback")), "{e}");
}

/// Where DataFusion has a part in it, what it says is heard; what is its own is told.
#[test]
fn what_is_computed_first_fails_and_is_told_as_ever() {
    let place = Place::new(&tiny());
    for (sql, message) in [
        ("SELECT max(s) FROM (SELECT k, sum(100 / k) AS s FROM facts GROUP BY k)", "division by zero"),
        ("SELECT count(*) FROM facts WHERE amount > (SELECT x FROM twice)", "more than one row"),
        (
            "SELECT sum(amount + x) FROM facts JOIN (SELECT k, max(100 / (k - 12)) AS x FROM dimension GROUP BY k) t USING (k)",
            "division by zero",
        ),
    ] {
        for mode in ["datafusion", "fused"] {
            place.run(&format!("SET exec.mode = '{mode}'"));
            let e = place.runtime.block_on(fails(&place.session, sql));
            assert!(e.to_string().contains(message), "{mode}: {sql}: {e}");
        }
    }
    // A join that DataFusion runs below is said; a file, which no pipeline could read, is not.
    let sql = "SELECT count(*), sum(x) FROM dimension d JOIN (SELECT f.k, x FROM facts f FULL JOIN twice t ON f.id = t.x) j USING (k)";
    place.same_somehow(sql);
    assert_eq!(place.session.query().notices(), ["not fused: a FULL JOIN"]);
    place.run("SELECT sum(amount) FROM facts JOIN (VALUES (1), (2)) v (k) USING (k)");
    assert!(place.session.query().notices().is_empty());
}

/// Values of every width, read one by one where few rows of a vector are left, and at once where many are.
#[test]
fn few_rows_are_read_as_many_are() {
    let place = Place::new(&tiny());
    for (name, least, most) in [
        ("BIGINT UNSIGNED", "0", "18446744073709551615"),
        ("BIGINT UNSIGNED", "9223372036854775800", "9223372036854775900"),
        ("BIGINT", "-9223372036854775808", "9223372036854775807"),
        ("BIGINT", "-4611686018427387904", "4611686018427387903"),
        ("BIGINT", "0", "9223372036854775807"),
        ("INTEGER UNSIGNED", "0", "4294967295"),
        ("INTEGER", "-2147483648", "2147483647"),
        ("TINYINT UNSIGNED", "0", "255"),
        ("SMALLINT", "-32768", "32767"),
        ("DECIMAL(20, 2)", "-999999999999999999.99", "999999999999999999.99"),
        ("DECIMAL(38, 0)", "-99999999999999999999999999999999999999", "99999999999999999999999999999999999999"),
    ] {
        // Once with so few values that they are a dictionary's, once without.
        let some = format!("CASE v % 3 WHEN 0 THEN {least} WHEN 1 THEN {most} END");
        let many = format!("CASE v % 3 WHEN 0 THEN {least} WHEN 1 THEN {most} ELSE v % 100 END");
        for values in [some, many] {
            place.run(&format!(
                "CREATE OR REPLACE TABLE w AS SELECT v AS id, CAST({values} AS {name}) AS x \
                 FROM (SELECT unnest(range(0, 3000)) AS v)"
            ));
            for condition in ["id > 2", "id = 1", "id = 3", "id % 100 = 1", "id % 2 = 0", "id IN (0, 1, 2, 2001)"] {
                place.same_somehow(&format!("SELECT min(x), max(x), count(x), count(*) FROM w WHERE {condition}"));
                place
                    .same_somehow(&format!("SELECT count(*) FROM w WHERE {condition} AND x >= CAST({most} AS {name})"));
                place.same_somehow(&format!("SELECT x, id, count(*) FROM w WHERE {condition} GROUP BY x, id"));
            }
        }
    }
}

#[test]
fn what_they_cannot_is_said_as_the_session_wants_it() {
    let place = Place::new(&tiny());
    let sql = "SELECT median(amount) FROM facts";
    place.run(sql);
    let notices = place.session.query().notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("median"), "{notices:?}");
    place.run("SET exec.fallback = 'silent'");
    place.run(sql);
    assert!(place.session.query().notices().is_empty());
    place.run("SET exec.fallback = 'error'");
    let e = place.runtime.block_on(fails(&place.session, sql));
    assert!(e.kind() == ErrorKind::Invalid && e.message().contains("median"), "{e}");
    for (sql, reason) in [
        ("SELECT median(amount) FROM facts", "the aggregate function median()"),
        ("SELECT var(DISTINCT amount) FROM facts", "var(DISTINCT ...)"),
        ("SELECT count(*) FROM facts WHERE abs(amount) > 3", "the function abs()"),
        ("SELECT count(*) FROM facts f FULL JOIN dimension d ON f.k = d.k", "a FULL JOIN"),
        (
            "SELECT count(*) FROM facts f LEFT JOIN dimension d ON f.k < d.k",
            "an outer join without an equality between its two sides",
        ),
        (
            "SELECT count(*) FROM facts f LEFT JOIN dimension d ON f.k = d.k AND 7 / d.region > f.id",
            "an outer join with a condition, beside its equalities, that can fail",
        ),
        (
            "SELECT count(*) FROM facts f, dimension d WHERE f.k < d.k",
            "a join without an equality between columns of two tables",
        ),
        ("SELECT count(*) FROM facts f JOIN dimension d ON f.name = d.label", "a join on texts of different columns"),
        (
            "SELECT count(*) FROM facts f JOIN dimension d USING (k) WHERE f.name || d.label > 'x'",
            "the operator || in name || label",
        ),
        ("SELECT count(DISTINCT CAST(k AS DOUBLE)), count(DISTINCT name) FROM facts", "distinct doubles"),
        ("SELECT array_agg(k ORDER BY id) FROM facts", "array_agg() with ORDER BY"),
        ("SELECT k, name, count(*) FROM facts GROUP BY ROLLUP (k, name)", "GROUPING SETS, ROLLUP or CUBE"),
        ("SELECT f.id, label FROM facts f FULL JOIN dimension d ON f.k = d.k", "a FULL JOIN"),
        ("SELECT f.id FROM facts f JOIN dimension d ON f.name = d.label", "a join on texts of different columns"),
        (
            "SELECT f.id FROM facts f JOIN dimension d ON f.k < d.k",
            "a join without an equality between columns of two tables",
        ),
        ("SELECT id, sum(x) OVER (ORDER BY id) FROM facts f FULL JOIN twice t ON f.id = t.x", "a FULL JOIN"),
    ] {
        let e = place.runtime.block_on(fails(&place.session, sql));
        assert_eq!(e.message(), format!("no fused pipeline can run {reason}"), "{sql}");
        assert!(e.hint().is_some_and(|hint| hint.contains("exec.fallback")), "{e}");
    }
    // Without a table of ours there is nothing to fuse.
    place.run("SELECT stddev(x) FROM (VALUES (1), (2)) AS t(x)");
}

/// The same kind and the same advice; what fused pipelines computed is said in SQL.
#[test]
fn errors_are_the_same_either_way() {
    let place = Place::new(&tiny());
    place.run(
        "CREATE TABLE large AS SELECT CAST(9223372036854775807 AS BIGINT) AS x, CAST(v AS INTEGER) AS i, \
         CAST(300 AS DECIMAL(9, 2)) AS p, CAST(99999999999999999999999999999999999.00 AS DECIMAL(38, 2)) AS d \
         FROM (SELECT unnest(range(0, 10)) AS v)",
    );
    for (sql, fused) in [
        ("SELECT sum(x + i) FROM large", "BIGINT out of range in x + i"),
        ("SELECT sum(x) FROM large", "BIGINT out of range in sum(large.x)"),
        ("SELECT max(x * x - (i - 1)) FROM large", "BIGINT out of range in x * x"),
        ("SELECT max(-x - 1 - (i - 1)) FROM large", "BIGINT out of range in -x - 1 - (i - 1)"),
        ("SELECT count(*) FROM large WHERE x / i > 1", "division by zero in x / i"),
        ("SELECT count(*) FROM large WHERE 7 % (i - 5) > 1", "division by zero in 7 % (i - 5)"),
        (
            "SELECT count(*) FROM facts f JOIN facts g ON f.id = g.id WHERE f.id / g.k > 1",
            "division by zero in facts.id / facts.k",
        ),
        ("SELECT sum(CAST(x AS INTEGER)) FROM large", "INTEGER out of range in CAST(x AS INTEGER)"),
        ("SELECT max(CAST(i * 100 AS TINYINT)) FROM large", "TINYINT out of range in CAST(i * 100 AS TINYINT)"),
        ("SELECT max(d * d) FROM large", "DECIMAL out of range in d * d"),
    ] {
        let mut errors = Vec::new();
        for mode in ["datafusion", "fused"] {
            place.run(&format!("SET exec.mode = '{mode}'"));
            errors.push(place.runtime.block_on(fails(&place.session, sql)));
        }
        assert_eq!(errors[1].message(), fused, "{sql}");
        assert!(
            errors.iter().all(|e| e.kind() == ErrorKind::Data && e.hint() == errors[0].hint()),
            "{sql}: {errors:?}"
        );
        assert!(errors[0].hint().is_some(), "{sql}");
    }
    // Arrow names no way out for this one.
    for mode in ["datafusion", "fused"] {
        place.run(&format!("SET exec.mode = '{mode}'"));
        let e = place.runtime.block_on(fails(&place.session, "SELECT max(CAST(p AS DECIMAL(3, 2))) FROM large"));
        assert_eq!(e.kind(), ErrorKind::Data, "{e}");
    }
}

/// `k` is 0 in facts, and in no dimension.
#[test]
fn what_fails_for_rows_that_nobody_wants_fails_no_query() {
    let place = Place::new(&tiny());
    for (sql, same_as) in [
        (
            "SELECT sum(CASE WHEN k <> 0 THEN 100 / k ELSE 0 END) FROM facts",
            "SELECT sum(100 / nullif(k, 0)) FROM facts",
        ),
        (
            "SELECT sum(CASE k WHEN 0 THEN -1 WHEN 100 / nullif(k, 0) THEN 7 ELSE 100 % k END) FROM facts",
            "SELECT sum(CASE k WHEN 0 THEN -1 WHEN 10 THEN 7 ELSE 100 % nullif(k, 0) END) FROM facts",
        ),
        (
            "SELECT sum(coalesce(nullif(k, 0), 7 / (k + 1))) FROM facts",
            "SELECT sum(CASE k WHEN 0 THEN 7 ELSE k END) FROM facts",
        ),
        (
            "SELECT count(*) FROM facts WHERE k <> 0 AND 100 / k > 3",
            "SELECT count(*) FROM facts WHERE k BETWEEN 1 AND 25",
        ),
        (
            "SELECT count(*) FROM facts WHERE 100 / k > 3 AND k > 0",
            "SELECT count(*) FROM facts WHERE k BETWEEN 1 AND 25",
        ),
        (
            "SELECT count(*) FROM facts WHERE (k <> 0 AND 100 / k > 3) OR amount = 0",
            "SELECT count(*) FROM facts WHERE k BETWEEN 1 AND 25 OR amount = 0",
        ),
        (
            "SELECT count(*) FROM facts WHERE k = 0 OR 100 / k > 3",
            "SELECT count(*) FROM facts WHERE k BETWEEN 0 AND 25",
        ),
        // The join takes the rows out for which the filter would fail.
        (
            "SELECT count(*), sum(region) FROM facts f JOIN dimension d ON f.k = d.k WHERE 100 / f.k > 3",
            "SELECT count(*), sum(region) FROM facts f JOIN dimension d ON f.k = d.k WHERE f.k <= 25",
        ),
        (
            "SELECT count(*) FROM facts f JOIN dimension d ON f.k = d.k WHERE 100 / f.k > region",
            "SELECT count(*) FROM facts f JOIN dimension d ON f.k = d.k WHERE 100 / d.k > region",
        ),
        (
            "SELECT count(*) FROM facts f JOIN dimension d ON f.k = d.k JOIN twice t ON t.k = 300 / f.k",
            "SELECT count(*) FROM facts f JOIN dimension d ON f.k = d.k JOIN twice t ON t.k = 300 / d.k",
        ),
    ] {
        place.run("SET exec.mode = 'datafusion'");
        let expected = place.run(same_as);
        place.run("SET exec.mode = 'fused'");
        place.run("SET exec.fallback = 'error'");
        assert_eq!(place.run(sql), expected, "{sql}");
        place.run("RESET exec.fallback");
    }
    for sql in ["SELECT sum(100 / k) FROM facts", "SELECT sum(CASE WHEN k >= 0 THEN 100 / k END) FROM facts"] {
        assert_eq!(place.runtime.block_on(fails(&place.session, sql)).kind(), ErrorKind::Data, "{sql}");
    }
}

#[test]
fn memory_that_runs_out_fails_no_query() {
    let place = Place::new(&DatabaseOptions::default());
    place.run("CREATE TABLE many AS SELECT v AS x, v * 7 AS y FROM (SELECT unnest(range(0, 1000000)) AS v)");
    place.run("SET memory_limit = '16MiB'");
    let sql = "SELECT count(*), sum(n), sum(s) FROM (SELECT x, y, count(*) AS n, sum(x) AS s FROM many GROUP BY x, y)";
    assert_eq!(place.run(sql), ["1000000|1000000|499999500000"]);
    let notices = place.session.query().notices();
    assert!(notices.iter().any(|notice| notice.contains("memory_limit")), "{notices:?}");
    // Who wants no other operators is told of both ways out.
    place.run("SET exec.fallback = 'error'");
    let sql = "SELECT count(DISTINCT x * 3) FROM many";
    let e = place.runtime.block_on(fails(&place.session, sql));
    assert_eq!(e.kind(), ErrorKind::Resources, "{e}");
    assert!(e.hint().is_some_and(|h| h.contains("memory_limit") && h.contains("exec.fallback")), "{e}");
}

/// Every file below a directory.
fn files_in(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_in(&path)) } else { files.push(path) }
    }
    files
}

/// A table of 3,000,000 rows with 2,500,009 keys, and little memory.
fn many_groups(dir: &std::path::Path) -> Place {
    let place = Place { runtime: runtime(), session: Database::memory(&options()).unwrap().session().unwrap() };
    place.run(
        "CREATE TABLE many AS SELECT v * 7919 % 2500009 AS x, v % 1000 AS y, v, v % 3 AS z \
         FROM (SELECT unnest(range(0, 3000000)) AS v)",
    );
    place.run(&format!("SET temp_directory = '{}'", dir.display()));
    place.run("SET memory_limit = '16MiB'");
    place.run("SET exec.fallback = 'error'");
    place
}

fn options() -> DatabaseOptions {
    DatabaseOptions { settings: vec![("threads".into(), "2".into())], ..DatabaseOptions::default() }
}

const OF_MANY_GROUPS: &str = "SELECT x, count(*), sum(y), min(v), max(v), count(DISTINCT z) FROM many GROUP BY x";

/// What the columns of all rows come to, and the rows.
async fn checksum(session: &Session, sql: &str) -> onehop_engine::Result<Vec<i64>> {
    let Output::Rows(mut stream) = session.sql(sql).await? else { panic!() };
    let mut sums = vec![0; 6];
    while let Some(batch) = stream.next().await {
        let batch = batch?;
        let column = |column: usize| batch.column(column).as_primitive::<Int64Type>().values().to_vec();
        let [x, n, s, min, max, d] = [0, 1, 2, 3, 4, 5].map(column);
        for row in 0..batch.num_rows() {
            let mixed = (x[row] * 31 + n[row] * 7 + s[row] + max[row] * 3) % 1_000_003;
            let row = [1, n[row], s[row], min[row], mixed, d[row]];
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        // The least is no sum.
        sums[3] = 0;
    }
    Ok(sums)
}

#[test]
fn groups_of_ten_times_the_memory_are_spilled() {
    let dir = tempfile::tempdir().unwrap();
    let place = many_groups(dir.path());
    // A group takes more than 64 bytes: its key and five results, each of 8, two of them twice, and its slots.
    let sums = place.runtime.block_on(checksum(&place.session, OF_MANY_GROUPS)).unwrap();
    // As DuckDB has them, of the same rows.
    assert_eq!(sums, [2_500_009, 3_000_000, 1_498_500_000, 0, 1_250_006_745_416, 3_000_000]);
    let query = place.session.query();
    let notices = query.notices();
    assert!(notices.iter().any(|n| n.contains("memory_limit") && n.contains("spilled to disk")), "{notices:?}");
    assert!(query.ledger().spilled_bytes > 32 << 20, "{:?}", query.ledger());
    assert!(query.ledger().hop(Hop::HostToStorage) >= query.ledger().spilled_bytes);
    assert!(query.ledger().hop(Hop::StorageToHost) >= query.ledger().spilled_bytes);
    assert_eq!(files_in(dir.path()), Vec::<std::path::PathBuf>::new());
    // What was reserved has been given back: there is room for others.
    place.run("SET exec.fallback = 'error'");
    assert_eq!(
        place.run("SELECT count(*) FROM (SELECT y, count(*) AS n FROM many GROUP BY y) WHERE n = 3000"),
        ["1000"]
    );
}

#[test]
fn a_join_table_that_does_not_fit_is_built_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let place = many_groups(dir.path());
    place.run(
        "CREATE TABLE others AS SELECT v AS k, v * 2654435761 % 1000003 AS w FROM (SELECT unnest(range(0, 1200000)) AS v)",
    );
    // As DuckDB has them, of the same rows.
    let inner = "SELECT count(*), sum(w), sum(y) FROM many JOIN others ON x = k";
    assert_eq!(place.run(inner), ["1440028|720013931045|719297172"]);
    let notices = place.session.query().notices();
    assert!(notices.iter().any(|n| n.contains("a join table was built in ")), "{notices:?}");
    for (sql, expected) in [
        ("SELECT count(*), sum(y) FROM many WHERE NOT EXISTS (SELECT 1 FROM others WHERE k = x)", "1559972|779202828"),
        (
            "SELECT count(*), sum(y) FROM many WHERE EXISTS (SELECT 1 FROM others WHERE k = x AND w > 500000)",
            "720009|359647045",
        ),
    ] {
        assert_eq!(place.run(sql), [expected], "{sql}");
    }
    // Left joins part their rows, whatever condition their matches have to meet.
    let left = "SELECT count(*), sum(y), count(w), sum(w) FROM many LEFT JOIN others ON x = k AND w > y * 1000";
    assert_eq!(place.run(left), ["3000000|1498500000|720747|480374474486"]);
    // So do the first rows in an order, which wait for the last part.
    let first = "SELECT x, y, w FROM many JOIN others ON x = k ORDER BY w DESC, v LIMIT 3";
    let expected = ["1138482|733|1000001", "138479|784|1000001", "569241|871|1000002"];
    assert_eq!(place.run(first), expected);
    // What a part of the keys says nothing about, and rows that would have left before the next part, are not for parts.
    let not_in = "SELECT count(*), sum(y) FROM many WHERE x NOT IN (SELECT k FROM others)";
    let collected = "SELECT x, y, w FROM many JOIN others ON x = k";
    for sql in [not_in, collected] {
        let e = place.runtime.block_on(fails(&place.session, sql));
        assert_eq!(e.kind(), ErrorKind::Resources, "{sql}: {e}");
        assert!(e.to_string().contains("a join table"), "{sql}: {e}");
    }
    place.run("SET memory_limit = '1GiB'");
    assert_eq!(place.run(not_in), ["1559972|779202828"]);
    assert_eq!(place.run(first), expected);
}

#[test]
fn groups_by_texts_without_a_dictionary_are_spilled() {
    let dir = tempfile::tempdir().unwrap();
    // One thread writes one segment, which has more rows than a dictionary is made of.
    let settings = vec![("threads".into(), "1".into())];
    let options = DatabaseOptions { settings, ..DatabaseOptions::default() };
    let place = Place { runtime: runtime(), session: Database::memory(&options).unwrap().session().unwrap() };
    // Two rows of each key, of which most have equal texts.
    place.run(
        "CREATE TABLE wide AS SELECT v % 700000 * 1000003 AS k, v, \
         'text number ' || (CASE WHEN v % 10 = 0 THEN v ELSE v % 700000 END) AS t \
         FROM (SELECT unnest(range(0, 1400000)) AS v)",
    );
    place.run("SET threads = 2");
    place.run(&format!("SET temp_directory = '{}'", dir.path().display()));
    place.run("SET exec.fallback = 'error'");
    let sql = "SELECT k, count(*), sum(v % 1000), min(v), max(v), CAST(length(t) AS BIGINT) FROM wide GROUP BY k, t";
    for (limit, is_spilled) in [("16MiB", true), ("1GiB", false)] {
        place.run(&format!("SET memory_limit = '{limit}'"));
        // As DuckDB has them, of the same rows.
        let sums = place.runtime.block_on(checksum(&place.session, sql)).unwrap();
        assert_eq!(sums, [770_000, 1_400_000, 699_300_000, 0, 371_818_277_851, 13_788_890], "{limit}");
        let notices = place.session.query().notices();
        assert_eq!(notices.iter().any(|n| n.contains("spilled to disk")), is_spilled, "{limit}: {notices:?}");
    }
    assert_eq!(files_in(dir.path()), Vec::<std::path::PathBuf>::new());
    // A text that nothing determines is known when all rows have been seen: those who spill another way take over.
    place.run("SET memory_limit = '16MiB'");
    let by_text = "SELECT t, count(*) FROM wide GROUP BY t";
    let e = place.runtime.block_on(fails(&place.session, by_text));
    assert_eq!(e.kind(), ErrorKind::Resources, "{e}");
}

#[test]
fn a_spilled_answer_that_nobody_reads_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = many_groups(dir.path());
    place.runtime.block_on(async {
        let Output::Rows(mut stream) = place.session.sql(OF_MANY_GROUPS).await.unwrap() else { panic!() };
        assert!(stream.next().await.unwrap().unwrap().num_rows() > 0);
        // Not even while it runs: whoever is killed leaves nothing either.
        assert_eq!(files_in(dir.path()), Vec::<std::path::PathBuf>::new());
        drop(stream);
        // While groups are being spilled.
        let running = checksum(&place.session, OF_MANY_GROUPS);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(300), running).await.is_err(), "it was over");
    });
    assert_eq!(files_in(dir.path()), Vec::<std::path::PathBuf>::new());
    assert_eq!(place.run("SELECT count(*) FROM many"), ["3000000"]);
}

#[test]
fn a_directory_that_cannot_be_spilled_to_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let spilled = dir.path().join("spilled");
    std::fs::create_dir(&spilled).unwrap();
    let place = many_groups(&spilled);
    std::fs::remove_dir(&spilled).unwrap();
    // What does not spill does not need it.
    place.run("SELECT count(*) FROM many");
    let e = place.runtime.block_on(fails(&place.session, OF_MANY_GROUPS));
    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
    let said = format!("cannot spill to {}: ", spilled.display());
    assert!(e.message().starts_with(&said), "{e}");
    assert!(e.hint().is_some_and(|h| h.contains("temp_directory") && h.contains("memory_limit")), "{e}");
}

#[test]
fn rows_that_do_not_fit_in_memory_fail_no_query() {
    let place = Place::new(&DatabaseOptions::default());
    place.run("CREATE TABLE many AS SELECT v AS x FROM (SELECT unnest(range(0, 3000000)) AS v)");
    place.run("SET memory_limit = '16MiB'");
    // An integer a row: more than there is room for.
    let sql = "SELECT count(*), sum(b) FROM (SELECT x AS a, x + 7 AS b, x - 7 AS c FROM many LIMIT 2900000) t \
               JOIN twice ON t.a % 60 = twice.x WHERE c > -9";
    let fused = place.run(sql);
    let notices = place.session.query().notices();
    assert!(notices.iter().any(|notice| notice.contains("memory_limit")), "{notices:?}");
    assert_eq!(fused[0].split('|').next(), Some("2900000"));
}

#[test]
fn what_is_computed_first_can_be_cancelled() {
    let place = Place::new(&DatabaseOptions::default());
    place.run("CREATE TABLE many AS SELECT v % 3 AS k, v FROM (SELECT unnest(range(0, 200000)) AS v)");
    // Some billions of pairs, below another aggregate.
    let sql = "SELECT max(n) FROM (SELECT a.v, count(*) AS n FROM many a JOIN many b ON a.k = b.k GROUP BY a.v)";
    place.runtime.block_on(async {
        let outcome = tokio::time::timeout(std::time::Duration::from_millis(50), rows(&place.session, sql)).await;
        assert!(outcome.is_err(), "it was over too early");
    });
    place.run("SET statement_timeout = '50ms'");
    assert_eq!(place.runtime.block_on(fails(&place.session, sql)).kind(), ErrorKind::Timeout);
    place.run("RESET statement_timeout");
    assert_eq!(place.run("SELECT count(*) FROM many"), ["200000"]);
}

#[test]
fn hot_blocks_are_not_read_again() {
    let dir = tempfile::tempdir().unwrap();
    for (cache, is_hot) in [("64MiB", true), ("0", false)] {
        let settings = vec![("io.cache".to_string(), cache.to_string())];
        let options = DatabaseOptions { settings, ..DatabaseOptions::default() };
        let database = Database::open(&dir.path().join(cache), &options).unwrap();
        let place = Place { runtime: runtime(), session: database.session().unwrap() };
        place.run("CREATE TABLE t AS SELECT v AS x FROM (SELECT unnest(range(0, 100000)) AS v)");
        let mut read = Vec::new();
        for _ in 0..2 {
            assert_eq!(place.run("SELECT sum(x) FROM t"), ["4999950000"]);
            read.push(place.session.query().ledger().read_bytes());
        }
        assert!(read[0] > 0 && (read[1] == 0) == is_hot, "{cache}: {read:?}");
    }
}

#[test]
fn a_cancelled_pipeline_stops() {
    let place = Place::new(&DatabaseOptions::default());
    place.run("CREATE TABLE many AS SELECT v % 3 AS k FROM (SELECT unnest(range(0, 200000)) AS v)");
    // Some billions of pairs.
    let sql = "SELECT count(*) FROM many a JOIN many b ON a.k = b.k";
    place.runtime.block_on(async {
        let outcome = tokio::time::timeout(std::time::Duration::from_millis(50), rows(&place.session, sql)).await;
        assert!(outcome.is_err(), "it was over too early");
    });
    assert_eq!(place.run("SELECT count(*) FROM many"), ["200000"]);
}

/// Tables whose texts are stored without a dictionary and are too many to make one: names are unique, `city` and `note`
/// repeat now and then, and `note` may be NULL.
fn late() -> Place {
    // One thread writes one segment, which has more rows than a dictionary is made of.
    let settings = [("threads", "1")].map(|(name, value)| (name.to_string(), value.to_string()));
    let options = DatabaseOptions { settings: settings.into(), ..DatabaseOptions::default() };
    let place = Place { runtime: runtime(), session: Database::memory(&options).unwrap().session().unwrap() };
    place.run(
        "CREATE TABLE people AS SELECT v AS id, 'name ' || v AS name, 'city' || (v * 7919 % 100000) AS city, \
         CASE WHEN v % 5 <> 0 THEN 'note ' || (v % 100003) END AS note, v % 2 = 0 AS even \
         FROM (SELECT unnest(range(0, 140000)) AS v)",
    );
    place.run(
        "CREATE TABLE orders AS SELECT v AS id, v * 31 % 140001 AS person, v % 1000 AS amount \
         FROM (SELECT unnest(range(0, 20000)) AS v)",
    );
    place.run("SET threads = 2");
    place
}

#[test]
fn texts_without_a_dictionary_are_read_late() {
    let place = late();
    for sql in [
        // As a key beside one that determines it, and beside one that does not; alone; as the texts of one row.
        "SELECT p.id, name, count(*), sum(amount) FROM orders o JOIN people p ON person = p.id GROUP BY p.id, name",
        "SELECT name, city, note, p.id, sum(amount) FROM orders o JOIN people p ON person = p.id GROUP BY 1, 2, 3, 4",
        "SELECT even, city, count(*), sum(amount) FROM orders o JOIN people p ON person = p.id GROUP BY even, city",
        "SELECT city, count(*), min(id), max(id), count(note), count(DISTINCT id % 7) FROM people GROUP BY city",
        "SELECT note, sum(id), avg(id), count(DISTINCT id % 3) FROM people GROUP BY note",
        "SELECT city, note, count(*) FROM people WHERE id % 3 = 1 GROUP BY city, note",
        "SELECT id % 3 * 100000, city, note, count(*), sum(id) FROM people GROUP BY 1, 2, 3",
        "SELECT DISTINCT note FROM people",
        "SELECT CASE WHEN even THEN city END, count(*) FROM people GROUP BY 1",
        "SELECT count(name), count(note), count(city) FILTER (WHERE even) FROM people",
        "SELECT p.id, note FROM orders o JOIN people p ON person = p.id WHERE amount = 7 GROUP BY 1, 2",
        "SELECT count(DISTINCT city) FROM people",
        // Under functions.
        "SELECT count(*) FROM people WHERE name LIKE '%99%'",
        "SELECT count(*), sum(id) FROM people WHERE note NOT LIKE '%9%' OR note IS NULL",
        "SELECT count(*) FROM people WHERE note IS NULL AND city = 'city5'",
        "SELECT count(*) FROM people WHERE name IN ('name 7', 'name 139999', 'nobody') OR note = 'note 3'",
        "SELECT length(city), count(*) FROM people GROUP BY 1",
        "SELECT sum(length(note)), sum(CASE WHEN city LIKE 'city1%' THEN id ELSE 0 END) FROM people WHERE id % 100 = 3",
        "SELECT sum(amount) FROM orders o JOIN people p ON person = p.id WHERE substring(name, 6, 1) IN ('1', '7')",
        "SELECT sum(amount) FROM orders o JOIN people p ON person = p.id WHERE name LIKE '%1' OR amount > 500",
        "SELECT count(*) FROM orders o WHERE EXISTS (SELECT 1 FROM people p WHERE p.id = person AND note LIKE 'note 1%')",
        "SELECT count(*) FROM people WHERE id < 10 AND CAST(substring(name, 6) AS BIGINT) = 7",
        "SELECT count(*) FROM people WHERE id < 0 AND name LIKE '%1'",
    ] {
        assert!(!place.same(sql).is_empty(), "{sql}");
    }
    assert_eq!(
        place.same("SELECT count(*), max(n) FROM (SELECT city, count(*) AS n FROM people GROUP BY city)"),
        ["100000|2"]
    );
    assert_eq!(place.same("SELECT name FROM people WHERE id = 77 GROUP BY name"), ["name 77"]);
    assert_eq!(place.same("SELECT count(*), count(note) FROM people"), ["140000|112000"]);
    // What compares them does not.
    for (what, reason) in [
        ("min(name)", "min() of the texts of name in people, which are stored without a dictionary"),
        ("count(*) FILTER (WHERE name = city)", "a comparison of the texts of name in people"),
        ("max(CASE WHEN even THEN name ELSE city END)", "a choice between texts of different columns"),
        ("count(DISTINCT upper(city))", "a text that is made of the texts of city in people"),
    ] {
        place.run("SET exec.fallback = 'error'");
        let e = place.runtime.block_on(fails(&place.session, &format!("SELECT {what} FROM people")));
        assert!(e.to_string().contains(reason), "{e}");
        place.run("RESET exec.fallback");
        place.same_somehow(&format!("SELECT {what} FROM people"));
    }
    place.same_somehow("SELECT count(*) FROM orders o JOIN people p ON 'name ' || o.person = p.name");
    place.same_somehow("SELECT count(*) FROM people a JOIN people b ON a.name = b.city");
    // What a function refuses is for DataFusion to say, of the rows that it sees.
    let cast = "CAST(replace(name, 'name 139999', 'x') AS BIGINT)";
    place.run("SET threads = 1");
    place.run(
        "CREATE TABLE digits AS SELECT v AS id, replace('' || v, '139999', 'x') AS name \
               FROM (SELECT unnest(range(0, 140000)) AS v)",
    );
    place.same_somehow("SELECT count(*) FROM digits WHERE CAST(name AS BIGINT) < 5 AND id < 1000");
    // Rows that a condition, a join or a CASE leaves out are not seen. (DataFusion's operators see them.)
    place.run("SET exec.fallback = 'error'");
    for (sql, answer) in [
        ("SELECT count(*) FROM digits WHERE CAST(name AS BIGINT) >= 5 AND id <> 139999", "139994"),
        (
            "SELECT count(*) FROM digits WHERE CASE WHEN id <> 139999 THEN CAST(name AS BIGINT) >= 5 ELSE false END",
            "139994",
        ),
        ("SELECT count(*) FROM digits WHERE id = 139999 OR CAST(name AS BIGINT) >= 5", "139995"),
        ("SELECT sum(CASE WHEN id <> 139999 THEN CAST(name AS BIGINT) ELSE 0 END) FROM digits", "9799790001"),
        (
            "SELECT count(*) FROM orders o JOIN digits d ON o.person = d.id AND o.amount = 7 WHERE CAST(name AS BIGINT) > 70000",
            "10",
        ),
    ] {
        assert_eq!(place.run(sql), [answer], "{sql}");
    }
    place.run("RESET exec.fallback");
    let e = place.runtime.block_on(fails(&place.session, "SELECT sum(CAST(name AS BIGINT)) FROM digits"));
    assert!(e.to_string().contains("is no BIGINT"), "{e}");
    let e = place.runtime.block_on(fails(&place.session, &format!("SELECT count(*) FROM people WHERE {cast} = 7")));
    assert!(e.to_string().contains("is no BIGINT"), "{e}");
}
