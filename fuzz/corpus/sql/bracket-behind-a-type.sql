SELECT date_part('year', day), date_part(1.5, (day)::BYTEA), count(*)
FROM numbers
GROUP BY date_part('year', day), date_part('month', day)