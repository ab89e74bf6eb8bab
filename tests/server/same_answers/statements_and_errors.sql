# What is refused, by SQLSTATE, and what changes tables and sessions.
create table t (a int not null, d date, ts timestamp, b boolean, s smallint, n numeric(5,2), c text)
insert into t (a) values (null)
insert into t (d) values ('2020-01-01')
insert into t (a, nope) values (1, 2)
insert into t (a, a) values (1, 2)
insert into t (a, s) values (1, 70000)
insert into t (a, n) values (1, 70000)
insert into t (a) values (3000000000)
select 9223372036854775807 + 1
select cast(70000 as smallint)
select '70000'::smallint
select 'x'::date
select 'x'::timestamp
select 'a' like 'a\'
select nothing(1)
select lenght('a')
select nope from t
select t.nope from t
select * from nope
select * from nope.t
select 1 = 'a'
select a + d from t
select 1/0
select 1 % 0
select a as x, x + 1 from t
table t
table t limit 0
vacuum
vacuum t
vacuum (full, analyze) t
vacuum nope
analyze
analyze t
analyze verbose t (a, d)
unlisten *
select pg_advisory_unlock_all()
close all
reset all
discard all
create unlogged table ul (a int)
drop table ul
create table t (a int)
create table if not exists t (a int)
drop table nope
drop table if exists nope
drop view nope
create view v as select a from t
create view v as select a from t
drop view v
begin
set transaction read write
select 1
rollback
begin read only
select 1
set transaction read write
rollback
begin read only
set transaction read write
insert into t (a) values (77)
commit
select a from t where a = 77
rollback
declare c cursor for select 1
begin; declare c cursor for select 1 union all select 2; fetch all from c; commit
declare c cursor for select 1 union all select 2 order by 1; fetch 1 from c; fetch all from c
fetch c
close nope
select 1; select 2
insert into t (a) values (1001); select 1/0
select a from t where a = 1001
savepoint x
rollback to x
release x
begin; savepoint x; rollback to y
rollback
prepare p as select $1::int + 1
execute p
execute p(1, 2)
execute nope
deallocate p
deallocate nope
select $1
set nope = 1
show nope
set statement_timeout = 'abc'
select current_setting('nope')
select current_setting('nope', true)
insert into t values (1,'2020-01-01','2020-01-01',true,1,1,'a','too many')
update t set nope = 1
update t set a = null where a = 77
update nope set a = 1
delete from nope
delete from t where nope = 1
copy nope from stdin
copy t (nope) to stdout
truncate nope
create table u (a int, a int)
explain select nope from t
select coalesce(1, 'a')
select nullif(1, 'a')
select greatest(1, 'a')
select '{1,2'::int[]
select array[1,'a']
select "no"
selec 1
select (1
select 'abc
select 1 1
select * from t where
