"""PostgreSQL for the suites that keep its answers in a file: started on a socket in a temporary folder, as `tests/faults/fill.py` does."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg


@contextmanager
def postgresql() -> Iterator[psycopg.Connection]:
    """A connection to a new server."""
    path = Path(__file__).parents[1] / "faults" / "fill.py"
    spec = importlib.util.spec_from_file_location("faults_fill", path)
    assert spec and spec.loader
    fill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fill)
    server = fill.Server()
    try:
        with psycopg.connect(server.dsn, autocommit=True) as con:
            yield con
    finally:
        server.stop()


def answer(con: psycopg.Connection, sql: str) -> str:
    """The only value of a query, as text; what is refused is `!`."""
    try:
        row = con.execute(sql).fetchone()
    except psycopg.Error:
        return "!"
    return "NULL" if row is None or row[0] is None else str(row[0])
