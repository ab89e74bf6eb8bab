"""Functions of LANGUAGE python: in a process of their own, over batches of NumPy's and Arrow's arrays."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow
import pytest

import onehop


@pytest.fixture
def functions() -> Iterator[onehop.Connection]:
    settings = {"functions.allow_python": "true", "functions.python": sys.executable}
    with onehop.connect(config=settings) as con:
        con.sql("CREATE TABLE t AS SELECT v AS id, v / 4.0 AS x, CASE WHEN v % 3 = 0 THEN NULL ELSE v END AS n, "
                "'text ' || v AS s FROM (SELECT unnest(range(0, 20000)) AS v)")
        yield con


def one(con: onehop.Connection, sql: str) -> object:
    row = con.sql(sql).fetchone()
    assert row is not None
    return row[0]


def test_arguments_are_taken_if_they_keep_their_values(functions: onehop.Connection) -> None:
    con = functions
    con.sql("CREATE FUNCTION twice(a DECIMAL(10, 2)) RETURNS DECIMAL(12, 2) LANGUAGE python AS $$ return [2 * v for v in a] $$")
    row = con.sql("SELECT twice(1.5), twice(CAST(2 AS DECIMAL(3, 0))), twice(7), twice(NULL)").fetchone()
    assert row == (Decimal("3.00"), Decimal("4.00"), Decimal("14.00"), None)
    for given, name in (("1.505", r"DECIMAL\(4,3\)"), ("1e0", "DOUBLE"), ("true", "BOOLEAN")):
        refusal = rf"function twice: argument a is DECIMAL\(10,2\), and {name} is given"
        with pytest.raises(onehop.ProgrammingError, match=refusal) as refused:
            con.sql(f"SELECT twice({given})").fetchall()
        assert "CAST" in str(refused.value)
    with pytest.raises(onehop.DataError):
        con.sql("SELECT twice(123456789012)").fetchall()
    con.sql("CREATE FUNCTION hundreds(a DECIMAL(10, -2)) RETURNS VARCHAR LANGUAGE python AS $$ return [str(v) for v in a] $$")
    with pytest.raises(onehop.ProgrammingError, match=r"argument a is DECIMAL\(10,-2\), and BIGINT is given"):
        con.sql("SELECT hundreds(199)").fetchall()
    con.sql("CREATE FUNCTION day_of(a DATE) RETURNS DATE LANGUAGE python AS $$ return a $$")
    con.sql("CREATE FUNCTION moment(a TIMESTAMP) RETURNS TIMESTAMP LANGUAGE python AS $$ return a $$")
    assert one(con, "SELECT day_of('2024-02-29') = DATE '2024-02-29' AND moment('2024-02-29 01:02:03') = "
               "TIMESTAMP '2024-02-29 01:02:03' AND moment(DATE '2024-02-29') = TIMESTAMP '2024-02-29' AND moment(localtimestamp) IS NOT NULL")
    with pytest.raises(onehop.ProgrammingError, match=r"argument a is TIMESTAMP\(6\), and TIMESTAMP\(6\) WITH TIME ZONE is given"):
        con.sql("SELECT moment(now())").fetchall()
    with pytest.raises(onehop.DataError, match="2024-02-30"):
        con.sql("SELECT day_of('2024-02-30')").fetchall()
    con.sql("CREATE FUNCTION small(a SMALLINT) RETURNS INT LANGUAGE python AS $$ return a $$")
    assert one(con, "SELECT small(CAST(7 AS BIGINT UNSIGNED))") == 7
    with pytest.raises(onehop.DataError, match="70000"):
        con.sql("SELECT small(CAST(70000 AS BIGINT UNSIGNED))").fetchall()
    for given in ("", "1, 2"):
        refusal = r"function twice takes \(a DECIMAL\(10,2\)\), and \d arguments are given"
        with pytest.raises(onehop.ProgrammingError, match=refusal):
            con.sql(f"SELECT twice({given})").fetchall()


def test_definitions_make_functions_again(functions: onehop.Connection) -> None:
    functions.sql("CREATE FUNCTION later(a TIMESTAMP WITH TIME ZONE, \"order\" INT) RETURNS TIMESTAMP WITH TIME ZONE LANGUAGE python STABLE "
                  "AS $$ return a $$")
    functions.sql("CREATE FUNCTION modes(\"out\" INT, \"inout\" INT) RETURNS VARCHAR LANGUAGE python AS $x$ return 'a' #$$x$")
    rows = functions.sql("SELECT function_name, definition FROM onehop_functions ORDER BY 1").fetchall()
    assert len(rows) == 2
    with pytest.raises(onehop.ProgrammingError, match="told apart by their names alone"):
        functions.sql("DROP FUNCTION later(TIMESTAMP WITH TIME ZONE, INT)")
    functions.sql("DROP FUNCTION later, later, modes")
    for _, definition in rows:
        functions.sql(definition)
    assert functions.sql("SELECT function_name, definition FROM onehop_functions ORDER BY 1").fetchall() == rows
    assert one(functions, "SELECT modes(1, 2)") == "a"


def test_a_function_sees_arrays(functions: onehop.Connection) -> None:
    functions.sql("""CREATE FUNCTION hypotenuse(a DOUBLE, b DOUBLE) RETURNS DOUBLE LANGUAGE python IMMUTABLE AS $$
        import numpy as np
        assert isinstance(a, np.ndarray) and a.dtype == np.float64
        return np.hypot(a, b)
    $$""")
    assert one(functions, "SELECT hypotenuse(3, 4)") == 5.0
    got = functions.sql("SELECT hypotenuse(x, 1) AS h, sqrt(x * x + 1) AS expected FROM t").arrow()
    assert got.num_rows == 20_000
    assert max(abs(a - b) for a, b in zip(got["h"].to_pylist(), got["expected"].to_pylist())) < 1e-9
    assert one(functions, "SELECT count(*) FROM t WHERE hypotenuse(x, 0) < 10") == 40
    assert one(functions, "SELECT sum(hypotenuse(x, 0)) FROM t") == one(functions, "SELECT sum(x) FROM t")


def test_rows_with_a_null_are_left_out_unless_they_are_asked_for(functions: onehop.Connection) -> None:
    functions.sql("CREATE FUNCTION strict_plus(n BIGINT) RETURNS BIGINT LANGUAGE python AS $$ return n + 1 $$")
    functions.sql("""CREATE FUNCTION seen(n BIGINT) RETURNS BIGINT LANGUAGE python CALLED ON NULL INPUT AS $$
        import pyarrow.compute as pc
        return pc.fill_null(n, -1)
    $$""")
    rows = functions.sql("SELECT n, strict_plus(n), seen(n) FROM t ORDER BY id").fetchall()
    assert rows[:4] == [(None, None, -1), (1, 2, 1), (2, 3, 2), (None, None, -1)]
    assert all(strict == (None if n is None else n + 1) and shown == (-1 if n is None else n) for n, strict, shown in rows)
    assert one(functions, "SELECT strict_plus(NULL)") is None


def test_every_type_comes_and_goes(functions: onehop.Connection) -> None:
    for sql_type, value in [
        ("BOOLEAN", "true"), ("SMALLINT", "7"), ("INTEGER", "-7"), ("BIGINT", "1 << 40"), ("REAL", "0.5"), ("DOUBLE", "0.1"),
        ("DECIMAL(10, 2)", "12.34"), ("DATE", "DATE '2026-11-24'"), ("TIMESTAMP", "TIMESTAMP '2026-11-24 01:02:03.5'"),
        ("VARCHAR", "'grüße'"),
    ]:
        functions.sql(f"CREATE OR REPLACE FUNCTION same(a {sql_type}) RETURNS {sql_type} LANGUAGE python AS $$ return a $$")
        assert one(functions, f"SELECT same(CAST({value} AS {sql_type})) = CAST({value} AS {sql_type})") is True, sql_type
    functions.sql("CREATE FUNCTION shout(s VARCHAR) RETURNS VARCHAR LANGUAGE python AS $$ return [t.upper() for t in s] $$")
    assert one(functions, "SELECT shout(s) FROM t WHERE id = 3") == "TEXT 3"


def test_results_are_values_or_one_for_all(functions: onehop.Connection) -> None:
    for body, expected in [
        ("return 4", 4.0), ("return None", None), ("import numpy; return numpy.float32(2.5)", 2.5),
        ("import pyarrow; return pyarrow.scalar(3)", 3.0), ("return [1.5] * len(a)", 1.5),
        ("import numpy; return numpy.ma.masked_array(a, mask=a > 0)", None),
        ("import pandas; return pandas.Series(a) + 1", 2.0),
    ]:
        functions.sql(f"CREATE OR REPLACE FUNCTION f(a DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ {body} $$")
        assert one(functions, "SELECT f(1)") == expected, body
    functions.sql("CREATE FUNCTION nothing() RETURNS BIGINT LANGUAGE python AS $$ return 42 $$")
    assert functions.sql("SELECT count(*), min(nothing()) FROM t").fetchall() == [(20_000, 42)]


def test_errors_have_the_functions_lines(functions: onehop.Connection) -> None:
    with pytest.raises(onehop.Error, match=r"function broken, line 3: SyntaxError"):
        functions.sql("CREATE FUNCTION broken(a DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$\n  b = 1\n  return (\n$$")
    functions.sql("""CREATE FUNCTION fails(a DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$
        def inner(value):
            return {}[value]

        return inner('no key')
    $$""")
    with pytest.raises(onehop.Error, match=r"function fails, line 3: KeyError: 'no key'"):
        functions.sql("SELECT fails(1)").fetchall()
    functions.sql("CREATE FUNCTION short(a DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ return a[:-1] $$")
    with pytest.raises(onehop.Error, match=r"returned 2 values for 3 rows"):
        functions.sql("SELECT short(x) FROM t WHERE id < 3").fetchall()
    functions.sql("CREATE FUNCTION wrong(a DOUBLE) RETURNS BIGINT LANGUAGE python AS $$ return ['a'] * len(a) $$")
    with pytest.raises(onehop.Error, match=r"function wrong: Arrow"):
        functions.sql("SELECT wrong(x) FROM t").fetchall()
    # Whoever failed goes on, and so does everybody else.
    with pytest.raises(onehop.Error, match=r"has ended: exit status: 3"):
        functions.sql("CREATE FUNCTION ends() RETURNS BIGINT LANGUAGE python AS $$ import os; os._exit(3) $$")
        functions.sql("SELECT ends()").fetchall()
    assert one(functions, "SELECT count(*) FROM t") == 20_000


def test_what_is_printed_does_no_harm(functions: onehop.Connection) -> None:
    functions.sql("CREATE FUNCTION loud(a DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ print('loud', len(a)); return a $$")
    assert one(functions, "SELECT sum(loud(x)) FROM t") == one(functions, "SELECT sum(x) FROM t")


def test_one_that_does_not_end_is_cancelled(functions: onehop.Connection) -> None:
    functions.sql("CREATE FUNCTION sleeps(a DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ import time; time.sleep(600) $$")
    functions.sql("SET statement_timeout = '300ms'")
    began = time.monotonic()
    with pytest.raises(onehop.Error):
        functions.sql("SELECT sleeps(x) FROM t").fetchall()
    assert time.monotonic() - began < 300


def test_functions_are_the_databases(tmp_path: Path) -> None:
    path, settings = str(tmp_path / "db"), {"functions.allow_python": "true", "functions.python": sys.executable}
    with onehop.connect(path, config=settings) as con:
        con.sql("CREATE FUNCTION doubled(x DOUBLE) RETURNS DOUBLE LANGUAGE python STABLE AS $$ return 2 * x $$")
        with pytest.raises(onehop.Error, match="OR REPLACE"):
            con.sql("CREATE FUNCTION doubled(x DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ return 3 * x $$")
        con.sql("CREATE VIEW v AS SELECT doubled(21) AS answer")
    with onehop.connect(path, config=settings) as con:
        assert one(con, "SELECT answer FROM v") == 42.0
        row = con.sql("SELECT function_name, language, arguments, returns, on_null, behavior FROM onehop_functions").fetchall()
        assert row == [("doubled", "python", "x DOUBLE", "DOUBLE", "null", "stable")]
        statement = one(con, "SELECT definition FROM onehop_functions")
        con.sql("DROP FUNCTION doubled")
        with pytest.raises(onehop.Error):
            con.sql("SELECT doubled(1)").fetchall()
        con.sql(str(statement))
        assert one(con, "SELECT doubled(4)") == 8.0
        con.sql("CREATE OR REPLACE FUNCTION doubled(x DOUBLE) RETURNS DOUBLE LANGUAGE python AS $$ return x + x + 1 $$")
        assert one(con, "SELECT doubled(4)") == 9.0
    # What was kept does not run where it is not allowed.
    with onehop.connect(path) as con:
        with pytest.raises(onehop.Error, match="not allowed"):
            con.sql("SELECT doubled(1)").fetchall()


def test_threads_have_processes_of_their_own(functions: onehop.Connection) -> None:
    functions.sql("CREATE FUNCTION plus(a BIGINT) RETURNS BIGINT LANGUAGE python AS $$ return a + 1 $$")
    functions.sql("SELECT 1")
    sums: list[object] = []

    def ask() -> None:
        cursor = functions.cursor()
        sums.append(cursor.sql("SELECT sum(plus(id)) FROM t").fetchall()[0][0])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [sum(range(1, 20_001))] * 4


def test_arrays_of_arrow_are_seen_as_they_are(functions: onehop.Connection) -> None:
    functions.register("given", pyarrow.table({"a": [1, None, 3]}))
    functions.sql("CREATE FUNCTION nulls(a BIGINT) RETURNS BIGINT LANGUAGE python CALLED ON NULL INPUT AS $$ return a.null_count $$")
    assert functions.sql("SELECT max(nulls(a)) FROM given").fetchall() == [(1,)]
