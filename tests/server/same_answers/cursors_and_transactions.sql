# Cursors and transactions, those of a text of several statements among them.
create table c (a int)
insert into c values (1), (2), (3)
declare x cursor for select a from c order by a; fetch 2 from x; fetch all from x; fetch 1 from x
fetch 1 from x
declare x cursor for select a from c
declare h cursor with hold for select a from c order by a
fetch 1 from h
select 1; fetch 1 from h
fetch all from h
close h
close h
declare h cursor with hold for select a from c; select 1/0
fetch 1 from h
declare h cursor with hold for select a from c order by a; select 1
fetch 2 from h
begin
fetch 1 from h
declare y cursor for select a from c order by a
move 1 from y
fetch y
savepoint s
declare z cursor for select 1
rollback to s
fetch z
rollback
fetch 1 from y
fetch 1 from h
close all
begin
declare y cursor for select a from c order by a
insert into c values (4)
fetch all from y
commit
select a from c
declare d cursor with hold for select a from nope
declare d cursor with hold for insert into c values (1)
begin; declare d cursor for select 1; close d; fetch d
rollback
fetch 0 from d
insert into c values (10); insert into c values ('x')
select count(*) from c
begin; insert into c values (11)
insert into c values (12)
select 1/0
select 1
commit
select count(*) from c
begin; savepoint a; insert into c values (20); savepoint a; insert into c values (21); rollback to a; release a; rollback to a; commit
select count(*) from c
begin read only; insert into c values (30)
rollback
begin; set transaction read only; select 1; insert into c values (31)
rollback
set default_transaction_read_only = on
insert into c values (32)
begin read write; insert into c values (33); commit
reset default_transaction_read_only
select count(*) from c
begin isolation level repeatable read
show transaction_isolation
commit
rollback and no chain
abort
end
begin work; rollback work
