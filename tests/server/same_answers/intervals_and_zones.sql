# Intervals, and moments where a session is. Those who compare: as long as they are, a month of 30 days, a day of 24 hours.
SET TIME ZONE 'UTC'
SELECT interval '1 day' = interval '24 hours', interval '1 mon' = interval '30 days', interval '1 day' < interval '25 hours'
SELECT timestamp '2020-01-03' - timestamp '2020-01-01' > interval '1 day', timestamp '2020-01-03' - timestamp '2020-01-01' = interval '48 hours'
SELECT a - b AS d FROM (VALUES (timestamp '2020-01-03', timestamp '2020-01-01'), (timestamp '2020-01-03', timestamp '2020-01-02')) t(a, b) WHERE a - b > interval '30 hours'
SELECT (timestamp '2020-01-03 12:00' - timestamp '2020-01-01')::text, (timestamp '2020-01-01' - timestamp '2020-01-03 12:00')::text
SELECT '1'::interval, '1.5'::interval, interval '2', '10 days 1'::interval, '1 day 03:00:00'::interval
SELECT interval '1 day 03:00:00', interval '1 year 2 mons -3 days +04:05:06.789', interval 'P1DT2H', interval '1-2', interval '1 day ago', interval '1h30m', interval '-1.5 days', interval '1.5 months', interval '@ 3 weeks'
SELECT x::interval FROM (VALUES ('1'), ('2 days 3'), ('04:05'), ('-1 mons +2 days'), (NULL)) t(x)
SELECT 'no'::interval
SELECT interval '1 day' * 3, interval '1 month' + interval '3 days', interval '1 day' / 2, 2 * interval '90 minutes', -interval '1 day', -interval '1 month 2 days'
SELECT (interval '1 month 1 day' * 1.7)::text, (interval '1 year 1 day' * -0.5)::text, (interval '7 hours' / 3)::text
SELECT interval '1 day' / 0
SELECT count(*) FROM (VALUES (interval '1 day'), (interval '24 hours')) t(i) GROUP BY i
SELECT DISTINCT i = interval '1 day' FROM (VALUES (interval '1 day'), (interval '24 hours')) t(i)
SELECT max(i) = interval '25 hours', count(DISTINCT i) FROM (VALUES (interval '1 day'), (interval '25 hours'), (interval '24 hours')) t(i)
SELECT i FROM (VALUES (interval '1 mon'), (interval '29 days'), (interval '31 days'), (interval '720 hours')) t(i) WHERE i BETWEEN interval '30 days' AND interval '30 days 5 hours'
SELECT i IN (interval '24 hours', interval '1 mon') FROM (VALUES (interval '1 day'), (interval '30 days'), (interval '5 s')) t(i)
SELECT greatest(interval '1 day', interval '25 hours'), nullif(interval '1 day', interval '24 hours'), case interval '1 day' when interval '24 hours' then 1 end
SELECT a.x FROM (VALUES (interval '1 day')) a(x) JOIN (VALUES (interval '24 hours')) b(x) ON a.x = b.x
SELECT (interval '1 day 2 hours')::text, interval '1 day' || ' x'
SELECT '2020-01-01 10:00:00+02'::timestamp, '2020-01-01 10:00+02'::timestamptz, x::timestamp, x::timestamptz FROM (VALUES ('2020-01-01 10:00+02')) t(x)
SELECT 'inf'::float8::text, '-inf'::float8::text, 'nan'::float8::text, '1e20'::float8::text, 0.1::float4::text, 2::float8 || ''
SELECT round(2.5::float8), round(3.5::float8), round(-2.5::float8), round(0.5::float8), round(2.5::float4), round(2.5), round(1e20::float8)
SELECT extract(second from timestamp '2020-01-01 10:00:01.5') = 1.5, date_part('second', timestamp '2020-01-01 10:00:01.5'), date_part('milliseconds', timestamp '2020-01-01 10:00:01.25')
CREATE TABLE moments (m timestamptz, n timestamp)
INSERT INTO moments VALUES ('2026-03-29 23:30+00', '2026-03-30 12:00:00')
SET TIME ZONE 'Europe/Berlin'
INSERT INTO moments VALUES ('2026-03-30 12:00', '2026-03-29 02:30:00'), (timestamp '2026-07-01 00:00', NULL), (date '2026-12-24', NULL)
SELECT m, m::text, m::date, m::timestamp FROM moments
SELECT n::timestamptz FROM moments
SELECT m FROM moments WHERE m >= '2026-03-30' AND m < timestamp '2026-03-30 12:00'
SELECT m FROM moments WHERE m > date '2026-03-30' ORDER BY m
SELECT date_part('hour', m)::int, date_part('day', m)::int, to_char(m, 'YYYY-MM-DD HH24:MI') FROM moments
SELECT date_trunc('day', m), date_trunc('month', m), m + interval '1 day', m - interval '12 hours' FROM moments
SELECT m AT TIME ZONE 'UTC', m AT TIME ZONE 'America/New_York', timezone('Asia/Tokyo', m) FROM moments
SELECT n AT TIME ZONE 'America/New_York', n AT TIME ZONE '+02:00' FROM moments WHERE n > '2026-03-30'
SELECT now()::date = current_date, current_timestamp = now()
SELECT timestamptz '2026-10-25 02:30', timestamptz '2026-03-29 02:30:00+01'
SELECT count(*) FROM moments WHERE m::date = date '2026-03-30'
SET TIME ZONE 'Asia/Kolkata'
SELECT m, m::text, '2026-01-01 00:00'::timestamptz FROM moments
SET TIME ZONE 'UTC'
SELECT m, m::text, m::date FROM moments
SELECT m AT TIME ZONE 'Europe/Berlin' FROM moments
SELECT now() AT TIME ZONE 'Mars/Olympus'
DROP TABLE moments
