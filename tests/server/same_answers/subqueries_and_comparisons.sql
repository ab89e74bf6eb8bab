# What was wrong once: subqueries about the row around them, comparisons that lose digits, texts of moments.
create table t(id int,a int,b int)
insert into t values (1,1,10),(2,2,20),(3,3,30)
create table u(id int,a int,b int)
insert into u values (1,1,1),(2,1,2)
select id from t where exists (select max(b) from u where u.a=t.a)
select id from t where exists (select count(*) from u where u.a=t.a)
select id from t where 0 in (select count(*) from u where u.a=t.a)
select id from t where 0 = any (select count(*) from u where u.a=t.a)
select id from t where not exists (select count(*) from u where u.a=t.a)
select id from t where exists (select 1 from u where u.a=t.a having count(*)=0)
select id from t where -1 in (select coalesce(max(b),-1) from u where u.a=t.a)
select id from t where 5 <> all (select min(b) from u where u.a=t.a)
select id from t where 1 >= all (select min(b) from u where u.a=t.a)
select id from t where exists (select distinct count(*) from u where u.a=t.a)
select id from t where exists (select count(*) from u where u.a=t.a limit 1)
select id from t where exists (select count(*) from u where u.a=t.a union all select 1 from u where false)
select id from t where exists (select 1 from u where u.a=t.a union select 2 from u where u.a=t.a)
select id from t where (a,id) in (select u.a,u.id from u where u.b=t.a)
select id from t where (a,id) = any (select u.a,u.id from u where u.b=t.a) or id = 3
select id, 0 not in (select a from u where u.b=t.b) from t
select id, a in (select u.a from u where u.a=t.a) from t
select id, exists (select 1 from u where u.a = t.a), not exists (select 1 from u where u.a = t.a) from t
select id from t where exists (select 1 from u where u.a = t.a order by u.b limit 1)
select id from t where exists (select u.b from u where u.a = t.a order by u.b)
select id from t where id in (select u.id from u where u.a = t.a order by u.b)
delete from t where not exists (select count(*) from u where u.a=t.a)
select count(*) from t
create table n (id int, n numeric(10,2), b int, f real, d date, ts timestamp)
insert into n values (1,1.00,16777217,16777216,'9999-12-31','2020-01-01 10:00'),(2,1.01,16777216,16777216,'2020-01-01','2020-01-02 10:00:00.5'),(3,2.55,3,3.5,null,null)
select id from n where n='1.001'
select id from n where n in ('1.001','2.554')
select id from n where n > '1.005'
select id from n where n between '1.001' and '1.009'
select id from n where '1.005'<n
select id from n where n is not distinct from '1.001'
select id, case n when '1.001' then 'a' when '1.00' then 'b' end from n
select id from n where (n,id)=('1.001',1)
select id from n where (n,id) in (('1.001',1),('1.01',2))
select id from n where n = any('{1.001,2.55}')
select id from n where n <> all('{1.001}')
select id from n where n > all('{1.005}')
select id from n where n >= any('{1.0049}')
select id from n where b = f
select id from n where b > f
select id from n where b = 16777217::real
select id from n where b > 16777216::real
select id from n where b in (16777217::real)
select id from n where b = any(array[16777217::real])
select id from n where d > timestamp '2020-01-01'
select id from n where ts > d
select id from n where ts::text like '2020-01-01 10%'
select id, ts::text from n
select (timestamp '2020-01-01 10:00')::text
select 'x' similar to '[[:alpha:]]', '5' similar to '[[:digit:]]+', '5' similar to '\d', 'd' similar to '\d'
select array[1.5,2.5]::int[]
select array_remove(array[1,2,1],1), array_replace(array[1,2,1],1,9)
select case (a,b) when (a,b) then 'p' else 'r' end from (values (1,null::int)) as v(a,b)
select (1,(2,null::int))=(1,(2,null::int))
select 0b11
select 1_
select array_agg(i order by i desc), array_agg(i order by i) from (values (1),(2),(1)) as v(i)
select array_agg(distinct i order by i desc) from (values (1),(2),(1)) as v(i)
select string_agg(i::text, ',' order by i desc), string_agg(i::text, ',' order by i) from (values (1),(2),(1)) as v(i)
select count(*), array_agg(i order by i desc), sum(i) from (values (1),(2),(1)) as v(i)
select array[true,false,null]
select array[date '2020-01-01', null]
select array[timestamp '2020-01-01 10:00:00', null]
select array[1.5, null]
select array[1.5::float8, null]
