# Functions, types, queries and words that PostgreSQL's users expect.
select oid from pg_type where typname = 'int4'
select 1::oid
select typname from pg_type where oid = any(%s) order by 1 |= ([23,25],)
select array_upper(array[1,2,3], 1)
select array_length(array[1,2,3], 1)
select cardinality(array[1,2,3])
select unnest(array[1,2])
select * from unnest(array['a','b']) as u(x) where x = 'a'
select a.x from generate_series(1,3) as a(x)
select table_catalog, table_schema, table_name, table_type from information_schema.tables where table_name = 'nope'
select pg_backend_pid() > 0
select quote_literal('a''b'), quote_ident('A b')
select to_char(date '2020-01-02', 'YYYY-MM-DD')
select to_date('2020-01-02', 'YYYY-MM-DD')
select clock_timestamp() is not null
select 'a' || 1
select 'abc' ~ 'b', 'abc' !~* 'B', 'abc' similar to 'a%'
select position('b' in 'abc'), strpos('abc', 'c'), substring('abc' from 2 for 1), overlay('abc' placing 'X' from 2 for 1)
select trim(both 'x' from 'xax'), ltrim('xxa','x'), btrim('xax', 'x')
select split_part('a,b,c', ',', 2), string_to_array('a,b', ',')
select array_to_string(array[1,2], ',')
select regexp_replace('abc', 'b', 'X'), regexp_match('abc', 'b')
select md5('a'), length('äb'), octet_length('äb'), char_length('äb'), bit_length('a')
select lpad('a', 3, '.'), rpad('a', 3), repeat('a', 2), reverse('ab'), initcap('ab cd'), left('abc', -1), right('abc', 2)
select chr(65), ascii('A'), to_hex(255), translate('abc', 'ab', 'xy'), concat('a', null, 'b'), concat_ws(',', 'a', null, 'b')
select random() < 1
select greatest(1, null, 3), least(1, null, 3)
select string_agg('a', ','), array_agg(1), bool_and(true), bool_or(false), every(true)
select gen_random_uuid() is not null
select '\x01'::bytea
select time '12:34'
select interval '1 day' + interval '2 hours'
select 1::numeric(5,2)
select sum(x) from (values (1),(2)) as v(x)
select corr(x, x), covar_pop(x, x), regr_slope(x, x) from (values (1.0::float8),(2.0)) as v(x)
select percentile_cont(0.5) within group (order by x) from (values (1.0::float8),(2.0)) as v(x)
select count(*) filter (where x > 1) from (values (1),(2)) as v(x)
select x, row_number() over (order by x) from (values (1),(2)) as v(x)
select x, lag(x) over (order by x), lead(x, 1, 0) over (order by x) from (values (1),(2)) as v(x)
select x, ntile(2) over (order by x), cume_dist() over (order by x), percent_rank() over (order by x) from (values (1),(2)) as v(x)
select x, sum(x) over (order by x rows between 1 preceding and current row) from (values (1),(2)) as v(x)
select grouping(x), x, count(*) from (values (1),(2)) as v(x) group by rollup(x)
with recursive r(n) as (select 1 union all select n + 1 from r where n < 3) select * from r
select * from (values (1, 'a')) as v(x, y) fetch first 1 row only
select * from (values (1),(2)) as v(x) order by x offset 1 rows fetch next row only
select * from (values (1),(2)) as v(x) order by x limit 1 + 0
select * from (values (1),(2)) as v(x) order by x limit all
select * from (values (1),(null)) as v(x) order by x nulls first
select * from (values (1),(null)) as v(x) order by x desc
select '1500-01-01'::timestamp
select '9999-12-31 23:59:59'::timestamp
select date_trunc('month', timestamp '2020-05-17 12:00')
select make_date(2020, 1, 2)
select overlaps(1)
select exists (select 1)
select 1 where exists (select 1)
select (select max(x) from (values (1),(2)) as v(x))
select array(select x from (values (1),(2)) as v(x) order by x)
select 'a' < 'B'
select null = null, null is null, 1 is distinct from null
select true and null, false and null, true or null
select count(distinct x) from (values (1),(1),(null)) as v(x)
select case 1 when 1 then 'a' else 'b' end
select coalesce(null, 1), nullif(1, 1)
select "current_user" from (select 1 as "current_user") as q
select all 1
select distinct 1 from (values (1),(1)) as v(x)
select * from (select 1 as a) as x natural join (select 1 as a) as y
select * from (select 1 as a) as x full join (select 2 as a) as y using (a)
select x.* from (select 1 as a) as x cross join (select 2 as b) as y
select 1 union select 1 intersect select 2
(select 1) except (select 1)
SELECT 'a' LIKE 'a\', 'a' NOT LIKE 'a\', 'b' LIKE 'a\', NULL::text LIKE 'a\'
SELECT 'ab' LIKE 'a\'
SELECT x LIKE '%\' FROM (VALUES ('ab\')) t(x)
SELECT x NOT LIKE 'b\' FROM (VALUES ('ab\'), ('b')) t(x)
SELECT v FROM (SELECT a FROM (VALUES (1), (2)) t(a) UNION SELECT b FROM (VALUES (5)) u(b) WHERE 1 > 2) s(v) WHERE v > 1
SELECT v, w FROM (SELECT a, b FROM (VALUES (1, 10), (2, 20)) t(a, b) UNION ALL SELECT b, a FROM (VALUES (5, 50)) u(b, a)) s(v, w) WHERE v > 1
SELECT v, w FROM (SELECT b, a FROM (VALUES (5, 50)) u(b, a) WHERE 1 > 2 UNION ALL SELECT a, b FROM (VALUES (1, 10), (2, 20)) t(a, b)) s(v, w)
