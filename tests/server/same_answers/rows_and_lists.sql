# Rows beside rows, and values beside lists: where NULLs are among them above all.
create table r (id int, a int, b int, c text)
insert into r values (1,1,1,'x'),(2,1,2,'y'),(3,2,0,null),(4,2,null,'z'),(5,null,1,'w'),(6,null,null,null),(7,3,3,'q')
select id from r where (a,b) < (2,0)
select id from r where (a,b) <= (2,0)
select id from r where (a,b) > (1,2)
select id from r where (a,b) >= (1,2)
select id, (a,b) < (2,0) from r
select id, (a,b) >= (2,0) from r
select id, row(a,b) = row(2,0) from r
select id, row(a,b) <> row(2,0) from r
select id, row(a,b) < row(2,0) from r
select id, (a,b) is null from r
select id, (a,b) is not null from r
select id, not ((a,b) is not null) from r
select id, row(a,b) is null from r
select id, (a,b) is distinct from (2,null) from r
select id, (a,b) is not distinct from (2,null) from r
select id from r where (a,b) between (1,1) and (2,0)
select id from r where (a,b) not between (1,1) and (2,0)
select id from r where row(a,b) in ((1,1),(2,0))
select id from r where row(a,b) in (row(1,1),row(2,0))
select id from r where (a,b) in (select a,b from r where id in (1,3))
select id from r where row(a,b) in (select a,b from r where id in (1,3))
select id from r where (a,b) = any (select a,b from r where id = 3)
select id, 2 = any(array[a,b]) from r
select id, 2 <> all(array[a,b]) from r
select id, 2 = all(array[a,b]) from r
select id, 2 <> any(array[a,b]) from r
select id, 2 < any(array[a,b]) from r
select id, 2 <= all(array[a,b]) from r
select id, 1 > any(array[a,b]) from r
select id, 1 >= all(array[a,b]) from r
select id, a = any(array[1,2]) from r
select id, a = any(array[1,null]) from r
select id, a <> all(array[1,null]) from r
select id, a = all(array[1,null]) from r
select id, a > any(array[1,null]) from r
select id, c = any(array['x','y']) from r
select id, c = any('{x,y}') from r
select id, c = any('{x,"y z",NULL}'::text[]) from r
select id, a = any('{1,3}') from r
select id, a = any('{1,3}'::int[]) from r
select id, a = any('{}'::int[]) from r
select id, a = all('{}'::int[]) from r
select id, a = any(null::int[]) from r
select id, a = any(%s) from r |= ([1,2],)
select id, a = any(%s) from r |= ([1,None],)
select id, a <> all(%s) from r |= ([1,None],)
select id, a = any(%s) from r |= ([],)
select id, not a = any(%s) from r |= ([None],)
select id from r where (a,b) > (%s,%s) |= (1,1)
select id from r where (a,b) < (%s,%s) |= (2,1)
select id from r where (a,b) in ((%s,%s)) |= (2,0)
select id from r where (a,b) >= (%s,%s) order by a, b limit 2 |= (1,1)
select array[a,b] from r where id < 3
select array[1,2] = array[1,2], array[1,null] = array[1,null], array[1,2] < array[1,3]
select id from r where array[a,b] = array[1,2]
select '{1,2}'::int[]
select '{a,"b c",null}'::text[]
select '{1.5,2}'::numeric(10,2)[]
select '{1,x}'::int[]
select '{1,2'::int[]
select '{}'::int[]
select cast('{true,f}' as bool[])
select min(a) from r group by (a,b) having (min(a), 1) = (1, 1)
select id from r where ((a,b),c) = ((1,1),'x')
select id from r where (a, b, c) > (1, 1, 'x')
select (1,2) = (1,2), (1,null) < (1,2), (1,null) < (2,2), (null,1) < (1,2)
select row(1,2) is null, row(null,null) is null, row(1,null) is not null
select exists (select 1 from r where (a,b)=(1,1))
update r set (a,b) = (9,9) where (a,b) = (3,3)
select * from r where id = 7
update r set (a,b) = row(8,8) where id = 7
select * from r where id = 7
