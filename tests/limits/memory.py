#!/usr/bin/env python3
"""Statements that allocate, under memory_limit = 256MB: resident memory stays below it, and answers are right.

    tests/limits/memory.py --onehop PATH [--statements 200] [--seed 1] [--canary]

A server over a database in memory, two threads, and clients that run generated statements: functions, lists,
cursors, files, joins, sorts. Each is answered as DuckDB answers it, if DuckDB has room for it, or with 53200.
The process's peak (VmHWM) is looked at after each statement, and what is left of it a second after the last.
The bounds are wide, for a debug build beside other lanes; --strict sets those of the documentation.
`--canary` takes the limit away: then the check must fail.
"""

import argparse
import concurrent.futures
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import psycopg

import statements
from server import Server, forget_peak, resident

LIMIT = "256MB"
MOST_MIB = 300
# For a debug build, whose program alone has 130 MiB resident, beside other lanes.
WIDE_MIB = 900
# What a process has that has run some statements and has none.
AFTER_MIB = 220
WIDE_AFTER_MIB = 500
# Address space of this process, of which DuckDB is a part.
MOST_PEER_BYTES = 14 << 30


def files_of(folder):
    """Files of several formats, small on disk and large when they are read."""
    with duckdb.connect() as db:
        db.execute("CREATE TABLE t AS SELECT x, repeat(CAST(x % 50 AS VARCHAR), 20) AS s, repeat('w', 2000) AS w FROM range(200000) AS r(x)")
        db.execute("CREATE TABLE u AS SELECT x, repeat('v', 100000) || x AS v FROM range(500) AS r(x)")
        paths = {
            "t.parquet": "COPY t TO '{}' (FORMAT parquet, COMPRESSION zstd)",
            "t.csv.gz": "COPY (SELECT x, s FROM t) TO '{}' (FORMAT csv, COMPRESSION gzip)",
            "t.json": "COPY (SELECT x, s FROM t LIMIT 100000) TO '{}' (FORMAT json)",
            "u.parquet": "COPY u TO '{}' (FORMAT parquet, COMPRESSION zstd)",
            "u.json.gz": "COPY u TO '{}' (FORMAT json, COMPRESSION gzip)",
        }
        columns = {"t.parquet": ["s", "w"], "t.csv.gz": ["s"], "t.json": ["s"], "u.parquet": ["v"], "u.json.gz": ["v"]}
        for name, copy in paths.items():
            db.execute(copy.format(folder / name))
    return [(str(folder / name), columns[name]) for name in paths]


class Peers:
    """DuckDB's answers, on demand."""

    def __init__(self, folder):
        self.db = duckdb.connect(config={"memory_limit": "6GB", "temp_directory": str(folder / "duckdb")})
        self.unknown = 0

    def answer(self, sql):
        """`None` if DuckDB has no room for it."""
        # Its lists are beside its own limit: without this one the system would end processes. Only while it runs:
        # what it keeps would leave no room for connections.
        resource.setrlimit(resource.RLIMIT_AS, (MOST_PEER_BYTES, resource.RLIM_INFINITY))
        try:
            return self.db.execute(sql).fetchone()
        except (duckdb.OutOfMemoryException, MemoryError):
            self.unknown += 1
            return None
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def run(server, rng, files, count):
    """What `count` statements of one client came to: (statement, row) or (statement, code)."""
    outcomes = []
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '20s'")
        for number in range(count):
            if rng.random() < 0.08:
                outcomes.append(cursors(connection, rng))
                continue
            sql = statements.statement(rng, files)
            try:
                outcomes.append((sql, cursor.execute(sql).fetchone(), None))
            except psycopg.Error as e:
                outcomes.append((sql, None, e))
                if connection.broken:
                    break
    return outcomes


def cursors(connection, rng):
    """Cursors that are open beside each other, and wait."""
    width = statements.size(rng, 5)
    sql = f"{rng.randrange(2, 30)} cursors over rows of {width} bytes"
    try:
        with connection.transaction(), connection.cursor() as cursor:
            for number in range(int(sql.split()[0])):
                cursor.execute(
                    f"DECLARE c{number} CURSOR FOR SELECT x, repeat('x', {width}) FROM generate_series(1, 10000000) AS t(x)"
                )
                cursor.execute(f"FETCH 3 FROM c{number}")
                if cursor.fetchall() != [(i, "x" * width) for i in (1, 2, 3)]:
                    return (sql, "other rows", None)
    except psycopg.Error as e:
        return (sql, None, e)
    return (sql, "cursors", None)


def lingering(server):
    """Statements that compute on after they were stopped."""
    sql = (
        "SELECT left(q.text, 300), m.used_bytes FROM onehop_memory AS m JOIN onehop_queries AS q "
        "ON m.name = 'statement ' || q.id WHERE q.state <> 'running'"
    )
    with server.connect() as connection:
        return connection.execute(sql).fetchall()


def problems(outcomes, peers):
    for sql, row, error in outcomes:
        if error is not None:
            if error.sqlstate not in ("53200", "57014", "54000"):
                yield f"{error.sqlstate} {str(error)[:200]}: {sql[:300]}"
        elif row == "cursors":
            pass
        elif row == "other rows":
            yield f"other rows than the first three: {sql}"
        else:
            theirs = peers.answer(sql)
            if theirs is not None and tuple(map(str, row)) != tuple(map(str, theirs)):
                yield f"{row} and not {theirs}: {sql[:300]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--onehop", required=True)
    parser.add_argument("--statements", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=10, help="statements between two looks at the peak")
    parser.add_argument("--canary", action="store_true")
    parser.add_argument("--strict", action="store_true", help="300 MiB, as documented: a release build, alone")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    most, most_after = (MOST_MIB, AFTER_MIB) if args.strict else (WIDE_MIB, WIDE_AFTER_MIB)
    with tempfile.TemporaryDirectory(prefix="onehop-limits-") as folder:
        folder = Path(folder)
        files = files_of(folder)
        settings = {"memory_limit": "3GB" if args.canary else LIMIT, "threads": 2, "temp_directory": str(folder)}
        server = Server(Path(args.onehop).resolve(), settings, folder)
        peers = Peers(folder)
        failed, refused, done, highest = [], 0, 0, 0.0
        try:
            left, part = args.statements, args.at_once
            rng = statements.generator(args.seed)
            while left > 0 and server.is_alive() and not (args.canary and failed):
                forget_peak(server.process.pid)
                rngs = [statements.generator(rng.randrange(1 << 60)) for _ in range(args.clients)]
                with concurrent.futures.ThreadPoolExecutor(args.clients) as pool:
                    parts = list(pool.map(lambda rng: run(server, rng, files, part // args.clients), rngs))
                if not server.is_alive():
                    break
                peak = resident(server.process.pid, "VmHWM")
                highest = max(highest, peak)
                outcomes = [outcome for part in parts for outcome in part]
                if peak > most:
                    failed.append(f"{peak:.0f} MiB resident among: " + "; ".join(sql[:200] for sql, *_ in outcomes))
                failed += problems(outcomes, peers)
                refused += sum(error is not None for *_, error in outcomes)
                done += len(outcomes)
                left -= part
                if args.verbose:
                    for name, _ in lingering(server):
                        print("    lingers:", name)
                    print(f"{done} {refused} {peak:.0f} {highest:.0f} {len(failed)}", flush=True)
                    for problem in failed[-3:]:
                        print("   ", problem[:400])
            if not server.is_alive():
                failed.append("the server ended: " + (folder / "server.log").read_text()[-2000:])
            else:
                time.sleep(1)
                after = resident(server.process.pid)
                if after > most_after:
                    failed.append(f"{after:.0f} MiB are left after a second")
                with server.connect() as connection:
                    rows = connection.execute("SELECT name, used_bytes FROM onehop_memory").fetchall()
                print(f"peak {highest:.0f} MiB, after it {after:.0f} MiB; {done - refused} answered ({peers.unknown} not by DuckDB), {refused} refused; {rows}")
        finally:
            server.stop()
    for problem in failed[:20]:
        print(problem, file=sys.stderr)
    print(f"memory: {done - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or done == 0 or refused == done else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
