use crate::ErrorKind;
use crate::planner::tests::{fails, rows};

const TABLES: &str = "WITH t(id, a, b) AS (VALUES (1, 1, 10), (2, 2, 20), (3, 3, 30), (4, 1, 40), (5, NULL, 50)), \
                      u(id, a, b) AS (VALUES (1, 1, 1), (2, 1, 2), (3, 2, 7), (4, 1, 5))";

async fn sorted(query: &str) -> String {
    let mut found = rows(query).await;
    found.sort();
    found.join(",")
}

#[tokio::test]
async fn lateral_is_about_each_row() {
    // Expected rows are PostgreSQL 15.18's.
    for (query, expected) in [
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT DISTINCT b FROM (VALUES (5,7),(6,7)) z(a,b) WHERE z.a > x.i) y",
            "1 7,2 7",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT b FROM (VALUES (5,7),(6,7)) z(a,b) WHERE z.a > x.i GROUP BY b) y",
            "1 7,2 7",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT max(b) m FROM (VALUES (1,7),(1,7)) z(a,b) WHERE z.a = x.i HAVING count(*) > 0) y",
            "1 7",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2),(7)) x(i) CROSS JOIN LATERAL (SELECT count(*) c, max(b) m FROM (VALUES (1,7),(3,8)) z(a,b) WHERE z.a > x.i) y",
            "1 1 8,2 1 8,7 0 NULL",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2),(NULL),(2)) x(i) LEFT JOIN LATERAL (SELECT b FROM (VALUES (1,7),(2,8),(2,9)) z(a,b) WHERE z.a = x.i ORDER BY b DESC LIMIT 1) y ON true",
            "1 7,2 9,2 9,NULL NULL",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2),(NULL)) x(i) CROSS JOIN LATERAL (SELECT x.i UNION ALL SELECT x.i + 10) y(v)",
            "1 1,1 11,2 12,2 2,NULL NULL,NULL NULL",
        ),
        (
            "SELECT x.i, y.j FROM (VALUES (1),(2),(NULL)) x(i) CROSS JOIN LATERAL (SELECT x.i + 1 AS j) y",
            "1 2,2 3,NULL NULL",
        ),
        (
            "SELECT x.i, y.j, z.k FROM (VALUES (1),(2),(NULL)) x(i) CROSS JOIN LATERAL (SELECT x.i + 1 AS j) y CROSS JOIN LATERAL (SELECT y.j * x.i AS k) z",
            "1 2 2,2 3 6,NULL NULL NULL",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (VALUES (x.i), (x.i * 2)) y(v)",
            "1 1,1 2,2 2,2 4",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2),(3)) x(i) LEFT JOIN LATERAL (SELECT b FROM (VALUES (1,7),(2,8)) z(a,b) WHERE z.a >= x.i) y ON y.b > x.i + 6",
            "1 8,2 NULL,3 NULL",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN LATERAL (SELECT z.a, w.b FROM (VALUES (1),(2)) z(a) LEFT JOIN (VALUES (1,7),(2,8)) w(a,b) ON w.a = z.a AND w.b > x.i + 6) y",
            "1 1 NULL,1 2 8,2 1 NULL,2 2 NULL,3 1 NULL,3 2 NULL",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3)) z(a) WHERE EXISTS (SELECT 1 FROM (VALUES (2),(3)) w(b) WHERE w.b = z.a + x.i)) y",
            "1 1,1 2,2 1",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a, row_number() OVER (ORDER BY a DESC) r, sum(a) OVER () s FROM (VALUES (1),(2),(3)) z(a) WHERE a > x.i) y",
            "1 2 2 5,1 3 1 5,2 3 1 3",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3)) z(a) WHERE a > x.i EXCEPT SELECT x.i + 1) y",
            "1 3",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(2)) z(a) INTERSECT ALL SELECT b FROM (VALUES (2),(2),(1)) w(b) WHERE b >= x.i) y",
            "1 1,1 2,1 2,2 2,2 2",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT DISTINCT ON (a) a, b FROM (VALUES (1,5),(1,6),(2,7)) z(a,b) WHERE b > x.i + 4 ORDER BY a, b) y",
            "1 1 6,1 2 7,2 2 7",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT z.a, w.b FROM (SELECT a FROM (VALUES (1),(2),(3)) z(a) WHERE a >= x.i) z FULL JOIN (SELECT b FROM (VALUES (2),(3),(4)) w(b) WHERE b > x.i) w ON w.b = z.a + 1) y",
            "1 1 2,1 2 3,1 3 4,2 2 3,2 3 4",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3),(4)) z(a) WHERE a > x.i ORDER BY a OFFSET 1) y",
            "1 3,1 4,2 4",
        ),
        (
            "SELECT x.i, y.*, w.* FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3),(4)) z(a) WHERE a > x.i ORDER BY a LIMIT 2) y LEFT JOIN LATERAL (SELECT count(*) n FROM (VALUES (1),(2),(3),(4)) z(a) WHERE z.a < y.a AND z.a > x.i) w ON w.n > 0",
            "1 2 NULL,1 3 1,2 3 NULL,2 4 1,3 4 NULL",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT u.a, v.c FROM (VALUES (1),(2)) u(a) CROSS JOIN LATERAL (SELECT count(*) c FROM (VALUES (1),(2),(3)) w(b) WHERE b > u.a AND b > x.i) v) y",
            "1 1 2,1 2 1,2 1 1,2 2 1",
        ),
        (
            "SELECT (SELECT string_agg(y.b::text, ',' ORDER BY y.b) FROM (VALUES (1),(2)) k(a) CROSS JOIN LATERAL (SELECT k.a + x.i AS b) y) s FROM (VALUES (1),(2)) x(i)",
            "2,3,3,4",
        ),
        (
            "SELECT x.i FROM (VALUES (1),(2),(3)) x(i) WHERE EXISTS (SELECT 1 FROM (VALUES (1),(2)) k(a) CROSS JOIN LATERAL (SELECT b FROM (VALUES (1),(2),(5)) w(b) WHERE w.b > k.a ORDER BY b LIMIT 1) y WHERE y.b = x.i)",
            "2",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) LEFT JOIN LATERAL (SELECT count(*) c FROM (VALUES (1),(3)) z(a) WHERE a > x.i HAVING count(*) > 1) y ON true",
            "1 NULL,2 NULL",
        ),
        (
            "SELECT x.i, y.* FROM (SELECT * FROM (VALUES (1),(2),(3)) x(i) ORDER BY i DESC LIMIT 2) x CROSS JOIN LATERAL (SELECT count(*) c FROM (VALUES (1),(3)) z(a) WHERE a < x.i) y",
            "2 1,3 1",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i), LATERAL (SELECT x.i AS i, count(*) c FROM (VALUES (1),(3)) z(a) WHERE a > x.i GROUP BY x.i) y",
            "1 1 1,2 2 1",
        ),
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i), LATERAL (SELECT (SELECT max(a) FROM (VALUES (1),(3)) z(a) WHERE a > x.i + k.b) m FROM (VALUES (0),(1)) k(b)) y",
            "1 3,1 3,2 3,2 NULL",
        ),
        (
            "SELECT x.i, y.c FROM (VALUES (1),(2)) x(i), LATERAL (SELECT count(*) FILTER (WHERE z.a > x.i) c, count(DISTINCT z.a) d FROM (VALUES (1),(3),(3)) z(a) WHERE x.i < 2) y",
            "1 2,2 0",
        ),
        (
            "SELECT x.i, y.v FROM (VALUES (1),(2)) x(i) JOIN LATERAL (SELECT v FROM (SELECT sum(a) v FROM (VALUES (1),(3)) z(a) WHERE a > x.i) q WHERE v > 2) y ON y.v > x.i",
            "1 3,2 3",
        ),
        (
            "SELECT x.i, y.v FROM (VALUES (1),(2)) x(i) LEFT JOIN LATERAL (SELECT a AS v FROM (VALUES (1),(3)) z(a) WHERE a > x.i FETCH FIRST 1 ROW ONLY) y ON true",
            "1 3,2 3",
        ),
    ] {
        assert_eq!(sorted(query).await, expected, "{query}");
    }
}

#[tokio::test]
async fn subqueries_are_about_each_row() {
    // Expected rows are PostgreSQL 15.18's.
    for (query, expected) in [
        ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a OFFSET 1)", "1,4"),
        ("SELECT id FROM t WHERE id IN (SELECT row_number() OVER (ORDER BY u.id) FROM u WHERE u.a = t.a)", "1"),
        (
            "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u LEFT JOIN u AS k ON k.id = u.id AND k.b = t.id WHERE u.a = 1 AND k.id IS NULL)",
            "1,2,3,4,5",
        ),
        (
            "SELECT id FROM t WHERE (SELECT count(*) FROM u LEFT JOIN u AS k ON k.id = u.id AND k.b = t.id WHERE k.id IS NULL) = 2",
            "",
        ),
        ("SELECT id FROM t WHERE id IN (SELECT u.id FROM u WHERE u.a = t.a ORDER BY u.id DESC LIMIT 1)", "4"),
        ("SELECT id FROM t WHERE id NOT IN (SELECT u.id FROM u WHERE u.a = t.a ORDER BY u.id DESC LIMIT 1)", "1,2,3,5"),
        ("SELECT id FROM t WHERE (SELECT sum(x) FROM (SELECT count(*) AS x FROM u WHERE u.a = t.a) AS s) = 0", "3,5"),
        ("SELECT id FROM t WHERE 1 IN (SELECT count(*) FROM u WHERE u.a = t.a HAVING count(*) > 0)", "2"),
        ("SELECT id FROM t WHERE 2 NOT IN (SELECT count(*) FROM u WHERE u.a = t.a HAVING count(*) > 0)", "1,2,3,4,5"),
        ("SELECT id, (SELECT b FROM u WHERE u.a = t.a ORDER BY b DESC LIMIT 1) FROM t", "1 5,2 7,3 NULL,4 5,5 NULL"),
        ("SELECT id, (SELECT count(*) FROM u WHERE u.a < t.a) FROM t", "1 0,2 3,3 4,4 0,5 0"),
        ("SELECT id, (SELECT count(*) FROM u WHERE u.a < t.a OR u.b = t.id) FROM t", "1 1,2 3,3 4,4 0,5 1"),
        (
            "SELECT id FROM t WHERE EXISTS (SELECT u.a FROM u WHERE u.b = t.id EXCEPT SELECT k.id FROM u k WHERE k.a = t.a)",
            "2,5",
        ),
        (
            "SELECT id FROM t WHERE id IN (SELECT u.a FROM u WHERE u.b >= t.id INTERSECT SELECT k.id FROM u k WHERE k.a <= t.a)",
            "1,2",
        ),
        (
            "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND EXISTS (SELECT 1 FROM u k WHERE k.id = u.id AND k.b >= t.id))",
            "1,2,4",
        ),
        (
            "SELECT id, (SELECT max(b) FROM u WHERE u.b > (SELECT min(k.b) FROM u k WHERE k.a = t.a AND k.id <= u.id)) FROM t",
            "1 7,2 NULL,3 NULL,4 7,5 NULL",
        ),
        ("SELECT id FROM t WHERE b > ALL (SELECT u.b * 10 FROM u WHERE u.a = t.a ORDER BY 1 LIMIT 1)", "3,4,5"),
        ("SELECT id FROM t WHERE id = ANY (SELECT u.id FROM u WHERE u.a <> t.a ORDER BY 1 LIMIT 2)", "2"),
        (
            "SELECT t.id, k.id FROM t JOIN u k ON k.id <= t.id AND EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.id > k.id OFFSET 1)",
            "1 1,4 1",
        ),
        ("SELECT a, count(*) FROM t GROUP BY a HAVING EXISTS (SELECT 1 FROM u WHERE u.a = t.a OFFSET 2)", "1 2"),
        (
            "SELECT id, EXISTS (SELECT 1 FROM u WHERE u.a = t.a OFFSET 2) FROM t",
            "1 true,2 false,3 false,4 true,5 false",
        ),
        (
            "SELECT id, id IN (SELECT u.id FROM u WHERE u.a = t.a ORDER BY u.id LIMIT 1) FROM t",
            "1 true,2 false,3 false,4 false,5 false",
        ),
        (
            "SELECT id, (SELECT sum(s) FROM (SELECT b AS s FROM u WHERE u.a = t.a UNION ALL SELECT t.b) q) FROM t",
            "1 18,2 27,3 30,4 48,5 50",
        ),
        (
            "SELECT id, (SELECT max(r) FROM (SELECT rank() OVER (ORDER BY b) r FROM u WHERE u.a = t.a) q) FROM t",
            "1 3,2 1,3 NULL,4 3,5 NULL",
        ),
    ] {
        assert_eq!(sorted(&format!("{TABLES} {query}")).await, expected, "{query}");
    }
}

#[tokio::test]
async fn conditions_and_chains_are_of_their_rows() {
    // Expected rows are PostgreSQL 15.18's.
    for (query, expected) in [
        (
            "SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT x.i FROM (VALUES (2)) u(j) WHERE 1 > 2 UNION ALL SELECT x.i + 1) y(v)",
            "1 2,2 3",
        ),
        (
            "SELECT y.i, y.j FROM (VALUES (1), (2)) AS x(i), LATERAL (SELECT x.i, j FROM (VALUES (2)) AS u(j) WHERE j > i) AS y",
            "1 2",
        ),
        (
            "SELECT y.c FROM (SELECT (SELECT v FROM generate_series(1, 3) AS g(v) WHERE v > 3) AS s) AS x, LATERAL (SELECT count(*) AS c FROM (VALUES (1)) AS z(a) WHERE z.a > x.s) AS y",
            "0",
        ),
        (
            "SELECT x.i, y.b FROM (VALUES (1),(2),(3)) x(i) LEFT JOIN LATERAL (SELECT b FROM (VALUES (1,7),(2,8),(2,9)) z(a,b) WHERE z.a = x.i ORDER BY b LIMIT 1) y ON true WHERE x.i > 1 AND (y.b IS NULL OR y.b > 7)",
            "2 8,3 NULL",
        ),
        (
            "SELECT x.i, y.n, z.m FROM (VALUES (1),(2),(3)) x(i), LATERAL (SELECT count(*) n FROM (VALUES (1),(3)) k(a) WHERE a >= x.i) y, LATERAL (SELECT max(a) m FROM (VALUES (1),(3)) k(a) WHERE a > y.n) z WHERE x.i < 3 AND y.n > 0",
            "1 2 3,2 1 3",
        ),
        (
            "SELECT x.i, y.n FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN (VALUES (2),(3)) w(j), LATERAL (SELECT count(*) n FROM (VALUES (1),(3)) k(a) WHERE a >= x.i AND a <> w.j) y WHERE w.j = x.i",
            "2 1,3 0",
        ),
        (
            "SELECT x.i FROM (VALUES (1),(2),(3)) x(i) WHERE x.i > 1 AND NOT EXISTS (SELECT 1 FROM (VALUES (1),(3),(3)) k(a) WHERE a >= x.i OFFSET 2)",
            "2,3",
        ),
        (
            "SELECT l0.v, l1.v, l2.v, l3.v FROM (VALUES (1),(2)) x(i), LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > x.i) l0, LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > x.i + 1) l1, LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > x.i + 2) l2, LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > l2.v) l3",
            "1 0 0 2,1 1 0 2",
        ),
        (
            "SELECT x.a, y.v FROM (VALUES ('b', 1.5), ('a', NULL)) x(a, d), LATERAL (SELECT string_agg(k.t || x.a, ',' ORDER BY k.t) v FROM (VALUES ('x'), ('y')) k(t) WHERE x.d IS NULL OR k.t > 'x') y",
            "a xa,ya,b yb",
        ),
        (
            "SELECT q.s FROM (SELECT sum(y.v) s FROM (VALUES (1),(2)) x(i), LATERAL (SELECT max(a) v FROM (VALUES (1),(3)) k(a) WHERE a >= x.i) y) q",
            "6",
        ),
        (
            "SELECT x.i, (SELECT y.v FROM (VALUES (5),(6)) w(j), LATERAL (SELECT w.j + x.i AS v) y ORDER BY y.v DESC LIMIT 1) FROM (VALUES (1),(2)) x(i)",
            "1 7,2 8",
        ),
    ] {
        assert_eq!(sorted(query).await, expected, "{query}");
    }
}

#[tokio::test]
async fn queries_further_out_are_named_as_well() {
    let table = "(VALUES (1, 2), (2, 3)) AS";
    for (condition, expected) in [
        ("id IN (SELECT id FROM (VALUES (1, 2)) AS c(id, x) WHERE c.x = a.x)", "1 2"),
        ("a.x IN (SELECT id FROM (VALUES (2, 2)) AS c(id, x))", "1 2"),
        ("NOT EXISTS (SELECT 1 FROM (VALUES (1, 2)) AS c(id, x) WHERE c.x = a.x AND c.id = b.id) AND b.id = 1", "2 3"),
    ] {
        let query =
            format!("SELECT * FROM {table} a(id, x) WHERE EXISTS (SELECT 1 FROM {table} b(id, y) WHERE {condition})");
        assert_eq!(sorted(&query).await, expected, "{query}");
    }
}

#[tokio::test]
async fn fields_of_what_a_lateral_subquery_has_are_found_behind_its_alias() {
    let query = "SELECT x, s.r['a'] AS a FROM (VALUES (2), (0), (1)) AS t(x), \
                 LATERAL (SELECT unnest(array_repeat(named_struct('a', 10 * t.x), t.x)) AS r) AS s \
                 WHERE s.r['a'] > 5 ORDER BY x";
    assert_eq!(rows(query).await, ["1 10", "2 20", "2 20"]);
}

#[tokio::test]
async fn what_may_be_otherwise_the_second_time_is_refused() {
    for query in [
        "SELECT * FROM (SELECT random() AS r) AS x, LATERAL (SELECT count(*) FROM u WHERE u.b > x.r) AS y",
        "SELECT * FROM t, LATERAL (SELECT random() AS r, max(b) FROM u WHERE u.a = t.a) AS y",
        "SELECT * FROM (SELECT count(*) AS n FROM (SELECT * FROM t LIMIT 3) AS s) AS x, \
         LATERAL (SELECT count(*) FROM u WHERE u.b > x.n) AS y",
        "SELECT * FROM t, LATERAL (SELECT u.a, t.id AS k, count(*) FROM u WHERE u.b > t.b GROUP BY ROLLUP (u.a, t.id)) AS y",
    ] {
        let error = fails(&format!("{TABLES} {query}")).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{query}: {error}");
        assert!(error.message().contains("is not supported"), "{query}: {error}");
    }
}

#[tokio::test]
async fn conditions_alone_are_joined_on() {
    let query = "EXPLAIN SELECT * FROM (VALUES (1), (2)) AS t(a), \
                 LATERAL (SELECT b FROM (VALUES (1, 2)) AS u(i, b) WHERE i = a AND b > i) AS y";
    let plan = rows(query).await.join(" ");
    assert!(!plan.contains("Aggregate") && plan.contains("on=[("), "{plan}");
}
