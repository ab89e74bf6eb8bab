SELECT sum(length(s)), sum(length(code))
FROM (SELECT s, NULL AS code FROM strings UNION ALL SELECT NULL, ROW(1, 'a') FROM strings) AS t