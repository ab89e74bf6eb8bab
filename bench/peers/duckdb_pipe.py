"""`onehop pipe` for DuckDB: one JSON request a line in, one JSON response a line out. See crates/cli/src/pipe.rs.

    python duckdb_pipe.py [FILE]

A timed statement ("rows": false) is timed until its answer is complete. DuckDB streams its answers, so they have to be
taken: as Python values up to FETCHED_ROWS_MAX, which costs microseconds; beyond that into a temporary table, since
making Python objects would cost more than the query.
"""

import datetime as dt
import json
import sys
import time
from decimal import Decimal

import duckdb

FETCHED_ROWS_MAX = 1000


def written(value: object) -> object:
    """A value as `onehop pipe` writes it."""
    match value:
        case float() if value != value or value in (float("inf"), float("-inf")):
            return {"nan": "NaN"}.get(str(value), str(value))
        case Decimal():
            return f"{value:f}"
        case dt.datetime():
            return value.isoformat(sep=" ")
        case dt.date():
            return value.isoformat()
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [written(element) for element in value]
    return str(value)


def timed(con: duckdb.DuckDBPyConnection, sql: str) -> tuple[int, int]:
    """(rows, nanoseconds)"""
    started = time.perf_counter_ns()
    con.execute(sql)
    rows = len(con.fetchmany(FETCHED_ROWS_MAX))
    if rows < FETCHED_ROWS_MAX:
        return rows, time.perf_counter_ns() - started
    started = time.perf_counter_ns()
    con.execute(f"CREATE OR REPLACE TEMP TABLE timed_answer AS {sql}")
    elapsed = time.perf_counter_ns() - started
    count = con.execute("SELECT count(*) FROM timed_answer").fetchone()
    con.execute("DROP TABLE timed_answer")
    return count[0] if count else 0, elapsed


def respond(con: duckdb.DuckDBPyConnection, request: dict) -> dict:
    sql = request["sql"]
    if not request.get("rows", True):
        row_count, wall_ns = timed(con, sql)
        return {"columns": [], "rows": [], "row_count": row_count, "wall_ns": wall_ns}
    started = time.perf_counter_ns()
    con.execute(sql)
    columns = [{"name": column[0], "type": str(column[1])} for column in con.description or []]
    rows = [[written(value) for value in row] for row in con.fetchall()]
    return {
        "columns": columns,
        "rows": rows,
        "row_count": len(rows),
        "wall_ns": time.perf_counter_ns() - started,
    }


def main() -> None:
    with duckdb.connect(sys.argv[1] if len(sys.argv) > 1 else ":memory:") as con:
        con.execute("SET enable_progress_bar = false")
        for line in sys.stdin:
            request = json.loads(line)
            try:
                response = {"id": request.get("id"), "ok": True} | respond(con, request)
            except duckdb.Error as e:
                error = {"kind": type(e).__name__, "message": str(e), "hint": None}
                response = {"id": request.get("id"), "ok": False, "error": error}
            print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
