#!/bin/bash
# psql: lists and descriptions, its own cursor, a script, COPY; and what it asks of the server to complete words, on a terminal.
set -eu
psql -X -v ON_ERROR_STOP=1 > /dev/null <<'SQL'
\l
\dn
\d
\dt
\dv
\dm
\di
\ds
\dt pe*
\dt public.*
\d people
\d+ people
\d tall
\d+ tall
\dt+
\df
\df now
\du
\dg
\dp
\dT
\dx
\db
\dy
\dconfig work_mem
\sf now
\conninfo
\encoding
SELECT id, name, born, height, seen FROM people ORDER BY id;
SELECT id, name FROM people \gdesc
BEGIN;
SAVEPOINT one;
DELETE FROM people;
ROLLBACK TO one;
COMMIT;
\copy people TO STDOUT
\copy people (id, name) FROM STDIN
3	Eve
\.
DELETE FROM people WHERE id = 3;
\set FETCH_COUNT 1
SELECT id FROM people ORDER BY id;
\unset FETCH_COUNT
\set ON_ERROR_ROLLBACK on
BEGIN;
SELECT 1;
ROLLBACK;
SQL
python3 - <<'PYTHON'
"""Words begun, a tabulator, and away with the line."""
import os, pty, select, sys

pid, terminal = pty.fork()
if pid == 0:
    os.environ.update(TERM="dumb", PAGER="cat", PSQL_HISTORY="/dev/null")
    os.execvp("psql", ["psql", "-X"])

def read_until(mark):
    said = b""
    while mark not in said:
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, said
        said += os.read(terminal, 65536)

read_until(b"=# ")
for begun in ("SELECT * FROM peo", "SELECT na", "\\d peo", "UPDATE peo", "UPDATE people SET na", "INSERT INTO vis", "DROP TABLE vis", "\\dt pub", "SET work_m", "GRANT SELECT ON peo", "ALTER TABLE people DROP COLUMN na", "COPY peo", "DROP VIEW ta", "SELECT * FROM public.pe", "\\df no", "\\dn pu", "\\c te"):
    os.write(terminal, begun.encode() + b"\t\t")
    # Ctrl-U takes the line away, and the \\echo tells that all before it is done.
    os.write(terminal, b"\x15\\echo done-it\r")
    read_until(b"\ndone-it\r\ntest=# ")
os.write(terminal, b"\\q\r")
try:
    while os.read(terminal, 65536):
        pass
except OSError:
    pass
os.waitpid(pid, 0)
PYTHON
psql --version | sed 's/^\(psql\) (PostgreSQL) \([0-9.]*\).*/\1 \2/'
