# Subqueries about the row around them, as values, as conditions, and in FROM.
create table t(id int,a int,b int)
insert into t values (1,1,10),(2,2,20),(3,3,30),(4,1,40)
create table u(id int,a int,b int)
insert into u values (1,1,1),(2,1,2),(3,2,7),(4,1,5)
select id, (select count(*) from u where u.a=t.a group by u.a) from t
select id, (select count(*) from u where u.a=t.a having count(*) > 1) from t
select id, (select max(b) from u where u.a=t.a having max(b) > 2) from t
select id, (select count(*) from u left join t k on k.id=u.id where u.a=t.a) from t
select id, (select count(k.id) from (select * from u where u.a=t.a) v left join t k on k.id=v.id) from t
select id from t where (select count(*) from u where u.a=t.a) = 0
select id from t where (select sum(b) from u where u.a=t.a) is null
select id from t where coalesce((select sum(b) from u where u.a=t.a), 0) < 8
select id from t where 1 < (select count(distinct b) from u where u.a=t.a)
select id, (select string_agg(b::text, ',' order by b) from u where u.a=t.a) from t
select id, (select array_agg(b order by b desc) from u where u.a=t.a) from t
select t.id, s.m from t, lateral (select max(b) m from u where u.a=t.a) s
select t.id, s.m from t left join lateral (select b m from u where u.a=t.a) s on true
select t.id, s.c from t cross join lateral (select count(*) c from u where u.a=t.a) s
select id from t where exists (select 1 from u where u.a=t.a group by u.a having count(*) > 2)
select id from t where exists (select u.a from u where u.a=t.a group by u.a)
select id from t where 3 in (select count(*) from u where u.a=t.a group by u.a)
select id from t where b > all (select u.b from u where u.a=t.a)
select id from t where b > any (select u.b from u where u.a=t.a)
select id from t where not (a = any (select u.a from u where u.b = t.id))
# LATERAL, and what depends on which rows there are.
create table x(i int)
insert into x values (1),(2),(2),(null)
SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a OFFSET 1)
SELECT id FROM t WHERE id IN (SELECT row_number() OVER (ORDER BY u.id) FROM u WHERE u.a = t.a)
SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u LEFT JOIN u AS k ON k.id = u.id AND k.b = t.id WHERE u.a = 1 AND k.id IS NULL)
SELECT id FROM t WHERE (SELECT count(*) FROM u LEFT JOIN u AS k ON k.id = u.id AND k.b = t.id WHERE k.id IS NULL) = 2
SELECT id FROM t WHERE id IN (SELECT u.id FROM u WHERE u.a = t.a ORDER BY u.id DESC LIMIT 1)
SELECT id FROM t WHERE id NOT IN (SELECT u.id FROM u WHERE u.a = t.a ORDER BY u.id DESC LIMIT 1)
SELECT id FROM t WHERE (SELECT sum(x) FROM (SELECT count(*) AS x FROM u WHERE u.a = t.a) AS s) = 0
SELECT id FROM t WHERE 1 IN (SELECT count(*) FROM u WHERE u.a = t.a HAVING count(*) > 0)
SELECT id FROM t WHERE 2 NOT IN (SELECT count(*) FROM u WHERE u.a = t.a HAVING count(*) > 0)
SELECT id, (SELECT b FROM u WHERE u.a = t.a ORDER BY b DESC LIMIT 1) FROM t
SELECT id, (SELECT b FROM u WHERE u.a = t.a) FROM t WHERE id > 1
SELECT id, (SELECT b FROM u WHERE u.a = t.a) FROM t
SELECT id, (SELECT count(*) FROM u WHERE u.a < t.a) FROM t
SELECT id, (SELECT count(*) FROM u WHERE u.a < t.a OR u.b = t.id) FROM t
SELECT id FROM t WHERE EXISTS (SELECT u.a FROM u WHERE u.b = t.id EXCEPT SELECT k.id FROM u k WHERE k.a = t.a)
SELECT id FROM t WHERE id IN (SELECT u.a FROM u WHERE u.b >= t.id INTERSECT SELECT k.id FROM u k WHERE k.a <= t.a)
SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND EXISTS (SELECT 1 FROM u k WHERE k.id = u.id AND k.b >= t.id))
SELECT id, (SELECT max(b) FROM u WHERE u.b > (SELECT min(k.b) FROM u k WHERE k.a = t.a AND k.id <= u.id)) FROM t
SELECT id FROM t WHERE b > ALL (SELECT u.b * 10 FROM u WHERE u.a = t.a ORDER BY 1 LIMIT 1)
SELECT id FROM t WHERE id = ANY (SELECT u.id FROM u WHERE u.a <> t.a ORDER BY 1 LIMIT 2)
SELECT t.id, k.id FROM t JOIN u k ON k.id <= t.id AND EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.id > k.id OFFSET 1)
SELECT a, count(*) FROM t GROUP BY a HAVING EXISTS (SELECT 1 FROM u WHERE u.a = t.a OFFSET 2)
SELECT id, EXISTS (SELECT 1 FROM u WHERE u.a = t.a OFFSET 2) FROM t
SELECT id, id IN (SELECT u.id FROM u WHERE u.a = t.a ORDER BY u.id LIMIT 1) FROM t
SELECT id, (SELECT sum(s) FROM (SELECT b AS s FROM u WHERE u.a = t.a UNION ALL SELECT t.b) q) FROM t
SELECT id, (SELECT max(r) FROM (SELECT rank() OVER (ORDER BY b) r FROM u WHERE u.a = t.a) q) FROM t
SELECT id, CASE WHEN id > 1 THEN (SELECT b FROM u WHERE u.a = t.a) END FROM t
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT DISTINCT b FROM (VALUES (5,7),(6,7)) z(a,b) WHERE z.a > x.i) y
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT b FROM (VALUES (5,7),(6,7)) z(a,b) WHERE z.a > x.i GROUP BY b) y
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT max(b) m FROM (VALUES (1,7),(1,7)) z(a,b) WHERE z.a = x.i HAVING count(*) > 0) y
SELECT x.i, y.* FROM (VALUES (1),(2),(7)) x(i) CROSS JOIN LATERAL (SELECT count(*) c, max(b) m FROM (VALUES (1,7),(3,8)) z(a,b) WHERE z.a > x.i) y
SELECT x.i, y.* FROM (VALUES (1),(2),(NULL),(2)) x(i) LEFT JOIN LATERAL (SELECT b FROM (VALUES (1,7),(2,8),(2,9)) z(a,b) WHERE z.a = x.i ORDER BY b DESC LIMIT 1) y ON true
SELECT x.i, y.* FROM (VALUES (1),(2),(NULL)) x(i) CROSS JOIN LATERAL (SELECT x.i UNION ALL SELECT x.i + 10) y(v)
SELECT x.i, y.j FROM (VALUES (1),(2),(NULL)) x(i) CROSS JOIN LATERAL (SELECT x.i + 1 AS j) y
SELECT x.i, y.j, z.k FROM (VALUES (1),(2),(NULL)) x(i) CROSS JOIN LATERAL (SELECT x.i + 1 AS j) y CROSS JOIN LATERAL (SELECT y.j * x.i AS k) z
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (VALUES (x.i), (x.i * 2)) y(v)
SELECT x.i, y.* FROM (VALUES (1),(2),(3)) x(i) LEFT JOIN LATERAL (SELECT b FROM (VALUES (1,7),(2,8)) z(a,b) WHERE z.a >= x.i) y ON y.b > x.i + 6
SELECT x.i, y.* FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN LATERAL (SELECT z.a, w.b FROM (VALUES (1),(2)) z(a) LEFT JOIN (VALUES (1,7),(2,8)) w(a,b) ON w.a = z.a AND w.b > x.i + 6) y
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3)) z(a) WHERE EXISTS (SELECT 1 FROM (VALUES (2),(3)) w(b) WHERE w.b = z.a + x.i)) y
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a, row_number() OVER (ORDER BY a DESC) r, sum(a) OVER () s FROM (VALUES (1),(2),(3)) z(a) WHERE a > x.i) y
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3)) z(a) WHERE a > x.i EXCEPT SELECT x.i + 1) y
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(2)) z(a) INTERSECT ALL SELECT b FROM (VALUES (2),(2),(1)) w(b) WHERE b >= x.i) y
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT DISTINCT ON (a) a, b FROM (VALUES (1,5),(1,6),(2,7)) z(a,b) WHERE b > x.i + 4 ORDER BY a, b) y
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT z.a, w.b FROM (SELECT a FROM (VALUES (1),(2),(3)) z(a) WHERE a >= x.i) z FULL JOIN (SELECT b FROM (VALUES (2),(3),(4)) w(b) WHERE b > x.i) w ON w.b = z.a + 1) y
SELECT x.i, y.* FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3),(4)) z(a) WHERE a > x.i ORDER BY a OFFSET 1) y
SELECT x.i, y.*, w.* FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN LATERAL (SELECT a FROM (VALUES (1),(2),(3),(4)) z(a) WHERE a > x.i ORDER BY a LIMIT 2) y LEFT JOIN LATERAL (SELECT count(*) n FROM (VALUES (1),(2),(3),(4)) z(a) WHERE z.a < y.a AND z.a > x.i) w ON w.n > 0
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) CROSS JOIN LATERAL (SELECT u.a, v.c FROM (VALUES (1),(2)) u(a) CROSS JOIN LATERAL (SELECT count(*) c FROM (VALUES (1),(2),(3)) w(b) WHERE b > u.a AND b > x.i) v) y
SELECT (SELECT string_agg(y.b::text, ',' ORDER BY y.b) FROM (VALUES (1),(2)) k(a) CROSS JOIN LATERAL (SELECT k.a + x.i AS b) y) s FROM (VALUES (1),(2)) x(i)
SELECT x.i FROM (VALUES (1),(2),(3)) x(i) WHERE EXISTS (SELECT 1 FROM (VALUES (1),(2)) k(a) CROSS JOIN LATERAL (SELECT b FROM (VALUES (1),(2),(5)) w(b) WHERE w.b > k.a ORDER BY b LIMIT 1) y WHERE y.b = x.i)
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i) LEFT JOIN LATERAL (SELECT count(*) c FROM (VALUES (1),(3)) z(a) WHERE a > x.i HAVING count(*) > 1) y ON true
SELECT x.i, y.* FROM (SELECT * FROM (VALUES (1),(2),(3)) x(i) ORDER BY i DESC LIMIT 2) x CROSS JOIN LATERAL (SELECT count(*) c FROM (VALUES (1),(3)) z(a) WHERE a < x.i) y
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i), LATERAL (SELECT x.i AS i, count(*) c FROM (VALUES (1),(3)) z(a) WHERE a > x.i GROUP BY x.i) y
SELECT x.i, y.* FROM (VALUES (1),(2)) x(i), LATERAL (SELECT (SELECT max(a) FROM (VALUES (1),(3)) z(a) WHERE a > x.i + k.b) m FROM (VALUES (0),(1)) k(b)) y
SELECT x.l, y.* FROM (SELECT ARRAY[1,2] AS l UNION ALL SELECT ARRAY[3]) x, LATERAL (SELECT v FROM unnest(x.l) AS u(v)) y
SELECT x.l, u.v FROM (SELECT ARRAY[1,2] AS l UNION ALL SELECT ARRAY[3]) x, unnest(x.l) AS u(v)
SELECT x.d, y.c FROM (VALUES (0.5::float8),(2.5)) x(d), LATERAL (SELECT count(*) c FROM (VALUES (1),(3)) z(a) WHERE a > x.d) y
SELECT x.i, y.c FROM (VALUES (1),(2)) x(i), LATERAL (SELECT count(*) FILTER (WHERE z.a > x.i) c, count(DISTINCT z.a) d FROM (VALUES (1),(3),(3)) z(a) WHERE x.i < 2) y
SELECT x.i, y.v FROM (VALUES (1),(2)) x(i) JOIN LATERAL (SELECT v FROM (SELECT sum(a) v FROM (VALUES (1),(3)) z(a) WHERE a > x.i) q WHERE v > 2) y ON y.v > x.i
SELECT x.i, y.v FROM (VALUES (1),(2)) x(i) LEFT JOIN LATERAL (SELECT a AS v FROM (VALUES (1),(3)) z(a) WHERE a > x.i FETCH FIRST 1 ROW ONLY) y ON true
select x.i, y.* from x, lateral (select b, count(*) n from u where u.a >= x.i group by b) y
select x.i, y.* from x left join lateral (select b from u where u.a = x.i order by b limit 1 offset 1) y on true
select x.i, y.n from x cross join lateral (select count(*) n from u where u.a is distinct from x.i) y
select t.id, y.id from t cross join lateral (select id from u where u.a = t.a order by b desc limit 2) y where t.id > 1
select t.id, (select id from u where u.a = t.a order by b limit 1) from t order by 1
select id from t where (select id from u where u.a >= t.a) is null
select t.id, y.* from t, lateral (select u.id, lag(b) over (order by b) l from u where u.a = t.a) y
select t.id, y.s from t, lateral (select string_agg(b::text, '-' order by b) s from u where u.a = t.a and u.b < t.b) y
select x.i, y.* from x, lateral (select u.id from u where u.a = x.i union select t.id from t where t.a = x.i) y
select x.i, y.v, z.w from x, lateral (select max(b) v from u where u.a = x.i) y, lateral (select count(*) w from t where t.b > y.v) z
select count(*) from (select t.id from t limit 3) k, lateral (select u.b from u where u.a is not null limit 2) y
SELECT y.c FROM (SELECT (SELECT v FROM generate_series(1, 3) AS g(v) WHERE v > 3) AS s) AS x, LATERAL (SELECT count(*) AS c FROM (VALUES (1)) AS z(a) WHERE z.a > x.s) AS y
SELECT x.i, y.b FROM (VALUES (1),(2),(3)) x(i) LEFT JOIN LATERAL (SELECT b FROM (VALUES (1,7),(2,8),(2,9)) z(a,b) WHERE z.a = x.i ORDER BY b LIMIT 1) y ON true WHERE x.i > 1 AND (y.b IS NULL OR y.b > 7)
SELECT x.i, y.n, z.m FROM (VALUES (1),(2),(3)) x(i), LATERAL (SELECT count(*) n FROM (VALUES (1),(3)) k(a) WHERE a >= x.i) y, LATERAL (SELECT max(a) m FROM (VALUES (1),(3)) k(a) WHERE a > y.n) z WHERE x.i < 3 AND y.n > 0
SELECT x.i, y.n FROM (VALUES (1),(2),(3)) x(i) CROSS JOIN (VALUES (2),(3)) w(j), LATERAL (SELECT count(*) n FROM (VALUES (1),(3)) k(a) WHERE a >= x.i AND a <> w.j) y WHERE w.j = x.i
SELECT x.i FROM (VALUES (1),(2),(3)) x(i) WHERE x.i > 1 AND NOT EXISTS (SELECT 1 FROM (VALUES (1),(3),(3)) k(a) WHERE a >= x.i OFFSET 2)
SELECT l0.v, l1.v, l2.v, l3.v FROM (VALUES (1),(2)) x(i), LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > x.i) l0, LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > x.i + 1) l1, LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > x.i + 2) l2, LATERAL (SELECT count(*) v FROM (VALUES (1),(3)) k(a) WHERE a > l2.v) l3
SELECT x.a, y.v FROM (VALUES ('b', 1.5), ('a', NULL)) x(a, d), LATERAL (SELECT string_agg(k.t || x.a, ',' ORDER BY k.t) v FROM (VALUES ('x'), ('y')) k(t) WHERE x.d IS NULL OR k.t > 'x') y
SELECT q.s FROM (SELECT sum(y.v) s FROM (VALUES (1),(2)) x(i), LATERAL (SELECT max(a) v FROM (VALUES (1),(3)) k(a) WHERE a >= x.i) y) q
SELECT x.i, (SELECT y.v FROM (VALUES (5),(6)) w(j), LATERAL (SELECT w.j + x.i AS v) y ORDER BY y.v DESC LIMIT 1) FROM (VALUES (1),(2)) x(i)
select t.id, y.* from t, lateral (select t.id, u.b from u where u.a = t.a) y
select y.b, y.k from t, lateral (select t.b, u.id k from u where u.a = t.a union all select 0, t.id) y
select y.id, y.n from t, lateral (select t.id, count(*) n from u where u.a = t.a group by t.id) y
select y.i from x, lateral (select i from u where u.a = x.i) y
