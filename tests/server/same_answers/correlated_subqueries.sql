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
