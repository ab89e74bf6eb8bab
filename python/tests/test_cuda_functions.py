"""Functions of LANGUAGE cuda, in a process of their own, on a GPU that is none: the system's C++ compiler has the very text that a
GPU's gets. Expected values are NumPy's and Python's.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

import onehop

ROWS = 20_000


@pytest.fixture
def con(monkeypatch: pytest.MonkeyPatch) -> Iterator[onehop.Connection]:
    monkeypatch.setenv("ONEHOP_TEST_DEVICE", "fake")
    with onehop.connect(config={"functions.allow_cuda": "true", "threads": 2}) as connection:
        connection.sql("CREATE TABLE t AS SELECT v AS id, v / 4.0::DOUBLE AS x, CASE WHEN v % 3 = 0 THEN NULL ELSE v END AS n, "
                       f"DATE '2024-01-01' + CAST(v % 500 AS INT) AS day FROM (SELECT unnest(range(0, {ROWS})) AS v)")
        yield connection


def one(con: onehop.Connection, sql: str) -> object:
    row = con.sql(sql).fetchone()
    assert row is not None
    return row[0]


HYPOTENUSE = """CREATE FUNCTION hypotenuse(a DOUBLE, b DOUBLE) RETURNS DOUBLE LANGUAGE cuda IMMUTABLE AS $$
#decl
double square(double x) { return x * x; }
#begin
return sqrt(square(a) + square(b));
#end
$$"""


def test_a_function_of_rows(con: onehop.Connection) -> None:
    con.sql(HYPOTENUSE)
    assert one(con, "SELECT hypotenuse(3, 4)") == 5.0
    got = con.sql("SELECT hypotenuse(x, 1) AS h FROM t ORDER BY id").numpy()["h"]
    x = numpy.arange(ROWS) / 4.0
    assert numpy.array_equal(got, numpy.sqrt(x * x + 1))
    # In a filter, under an aggregate, of no rows.
    assert one(con, "SELECT count(*) FROM t WHERE hypotenuse(x, x) < 10") == int((numpy.sqrt(2 * x * x) < 10).sum())
    assert con.sql("SELECT hypotenuse(x, 1) FROM t WHERE id < 0").fetchall() == []


def test_nulls_are_left_out_and_made(con: onehop.Connection) -> None:
    con.sql("CREATE FUNCTION odd(n BIGINT) RETURNS BIGINT LANGUAGE cuda AS $$ is_null = n % 2 == 0; return n * 10; $$")
    got = con.sql("SELECT n, odd(n) FROM t WHERE id < 100 ORDER BY id").fetchall()
    assert [row[0] for row in got] == [None if v % 3 == 0 else v for v in range(100)]
    assert [row[1] for row in got] == [None if v % 3 == 0 or v % 2 == 0 else v * 10 for v in range(100)]
    assert one(con, "SELECT odd(CAST(NULL AS BIGINT))") is None
    with pytest.raises(onehop.ProgrammingError, match="NULL input"):
        con.sql("CREATE FUNCTION f(n BIGINT) RETURNS BIGINT LANGUAGE cuda CALLED ON NULL INPUT AS $$ return 1; $$")


def test_types(con: onehop.Connection) -> None:
    con.sql("CREATE FUNCTION later(d DATE, by INT) RETURNS DATE LANGUAGE cuda AS $$ return d + by; $$")
    con.sql("CREATE FUNCTION both(a BOOLEAN, b BOOLEAN) RETURNS BOOLEAN LANGUAGE cuda AS $$ return a && b; $$")
    con.sql("CREATE FUNCTION half(a REAL) RETURNS REAL LANGUAGE cuda AS $$ return a / 2; $$")
    con.sql("CREATE FUNCTION small(a SMALLINT, b TINYINT) RETURNS SMALLINT LANGUAGE cuda AS $$ return a - b; $$")
    assert one(con, "SELECT count(*) FROM t WHERE later(day, CAST(3 AS INT)) <> day + 3") == 0
    assert con.sql("SELECT both(true, true), both(true, false), half(3), small(CAST(300 AS SMALLINT), CAST(1 AS TINYINT))").fetchall() == [
        (True, False, 1.5, 299)
    ]
    assert one(con, "SELECT count(*) FROM t WHERE both(id > 10, x < 100)") == sum(1 for v in range(ROWS) if v > 10 and v / 4 < 100)
    # Numbers as they are written, if they fit.
    con.sql("CREATE FUNCTION positive(a BIGINT UNSIGNED) RETURNS BIGINT UNSIGNED LANGUAGE cuda AS $$ return a + 1; $$")
    assert one(con, "SELECT positive(1)") == 2
    with pytest.raises(onehop.DataError, match="argument a is BIGINT UNSIGNED"):
        con.sql("SELECT positive(-1)").fetchall()
    assert con.sql("SELECT small(300, 1), half(0.5), later(DATE '2024-01-01', 31)").fetchall() == [(299, 0.25, datetime.date(2024, 2, 1))]
    with pytest.raises(onehop.DataError, match="argument b is TINYINT.*300"):
        con.sql("SELECT small(300, 300)").fetchall()
    with pytest.raises(onehop.DataError, match="argument a is REAL: 1e300 is out of range"):
        con.sql("SELECT half(1e300)").fetchall()
    for kind in ("VARCHAR", "DECIMAL(10, 2)"):
        with pytest.raises(onehop.DataError, match="functions in CUDA have numbers"):
            con.sql(f"CREATE FUNCTION f(a {kind}) RETURNS INT LANGUAGE cuda AS $$ return 1; $$")


def test_arrays_go_in_and_come_out(con: onehop.Connection) -> None:
    con.sql("CREATE FUNCTION polynomial(x DOUBLE, c DOUBLE[]) RETURNS DOUBLE LANGUAGE cuda IMMUTABLE AS $$\n"
            "double y = 0;\nfor (unsigned long long i = c.size; i > 0; --i) y = y * x + c[i - 1];\nreturn y;\n$$")
    assert one(con, "SELECT polynomial(2, [1.0, 2.0, 3.0])") == 17.0
    got = con.sql("SELECT polynomial(x, [x, 1.0, 0.5]) AS y FROM t ORDER BY id").numpy()["y"]
    x = numpy.arange(ROWS) / 4.0
    assert numpy.array_equal(got, (0.5 * x + 1.0) * x + x)
    con.sql("CREATE FUNCTION divisors(n BIGINT, most INT) RETURNS BIGINT[] LANGUAGE cuda AS $$\n"
            "is_null = n == 13;\nfor (int d = 1; d <= most; ++d)\n  if (n % d == 0) result.push(n / d);\n$$")
    rows = con.sql("SELECT n, divisors(n, CAST(6 AS INT)) FROM t WHERE id < 1000 ORDER BY id").fetchall()
    assert len(rows) == 1000
    for number, (n, found) in enumerate(rows):
        none = number % 3 == 0 or number == 13
        assert found == (None if none else [n // d for d in range(1, 7) if n % d == 0]), n
    # An array is rows for who wants rows.
    total = one(con, "SELECT sum(v) FROM (SELECT unnest(divisors(id, CAST(6 AS INT))) AS v FROM t)")
    assert total == sum(n // d for n in range(ROWS) if n != 13 for d in range(1, 7) if n % d == 0)
    assert con.sql("SELECT divisors(id, CAST(6 AS INT)) FROM t WHERE id < 0").fetchall() == []
    assert con.sql("SELECT divisors(7, CAST(0 AS INT)), divisors(NULL, CAST(1 AS INT))").fetchall() == [([], None)]
    # Integers are doubles, but no double is an integer, in an array as elsewhere.
    assert one(con, "SELECT polynomial(2, [1, 2, 3])") == 17.0
    assert one(con, "SELECT polynomial(2, [])") == 0.0
    con.sql("CREATE FUNCTION total(c BIGINT[]) RETURNS BIGINT LANGUAGE cuda AS $$\nlong long t = 0;\nfor (long long v : c) t += v;\n"
            "return t;\n$$")
    assert one(con, "SELECT total([1, 2])") == 3
    for given in ("[1.5]", "[CAST(1.5 AS DOUBLE)]", "['1']", "1", "[[1]]"):
        with pytest.raises(onehop.ProgrammingError, match=r"function total: argument c is BIGINT\[\], and .* is given"):
            con.sql(f"SELECT total({given})").fetchall()
    with pytest.raises(onehop.ProgrammingError, match=r"function total takes \(c BIGINT\[\]\), and 2 arguments are given"):
        con.sql("SELECT total([1], 2)").fetchall()
    with pytest.raises(onehop.DataError, match="an array with a NULL in it"):
        con.sql("SELECT polynomial(2, [1.0, NULL])").fetchall()
    assert one(con, "SELECT polynomial(2, CAST(NULL AS DOUBLE[]))") is None
    for kind in ("VARCHAR[]", "DOUBLE[][]"):
        with pytest.raises(onehop.Error, match="cannot take|functions in CUDA have numbers"):
            con.sql(f"CREATE FUNCTION f(a {kind}) RETURNS INT LANGUAGE cuda AS $$ return 1; $$")
    with pytest.raises(onehop.ProgrammingError, match="cannot take or return"):
        con.sql("CREATE FUNCTION f(a DOUBLE[]) RETURNS INT LANGUAGE python AS $$ return 1 $$")


POWERS = """CREATE FUNCTION powers(x DOUBLE, most INT) RETURNS TABLE(exponent INT, power DOUBLE) LANGUAGE cuda IMMUTABLE AS $$
is_null = most == 13;
double power = 1;
for (int i = 0; i <= most; ++i, power *= x) result.push(i, power);
$$"""


def test_rows_come_out(con: onehop.Connection) -> None:
    con.sql(POWERS)
    assert con.sql("SELECT * FROM powers(2, 3)").fetchall() == [(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0)]
    assert con.sql("SELECT p.power FROM powers(2, 3) AS p(a, power) WHERE a > 1").fetchall() == [(4.0,), (8.0,)]
    assert con.sql("SELECT power FROM powers($1, $2) ORDER BY exponent DESC LIMIT 1", [3.0, 4]).fetchall() == [(81.0,)]
    assert con.sql("SELECT * FROM powers(2, -1)").fetchall() == []
    for none in ("powers(2, 13)", "powers(NULL, 1)"):
        assert con.sql(f"SELECT * FROM {none}").fetchall() == []
    # For each row of the tables before it.
    expected = [(v, i, (v / 4.0) ** i) for v in range(300) for i in range(v % 5) if v % 5 != 4]
    most = "CASE WHEN id % 5 = 4 THEN 13 ELSE id % 5 - 1 END"
    for comma in (", powers(t.x, most) p", ", LATERAL powers(x, most) p",
                  " CROSS JOIN LATERAL powers(t.x, t.most) AS p", " JOIN LATERAL powers(x, most) p ON true"):
        rows = con.sql(f"SELECT id, p.exponent, power FROM (SELECT *, {most} AS most FROM t WHERE id < 300) t{comma} "
                       "ORDER BY id, exponent").fetchall()
        assert rows == expected
    rows = con.sql(f"SELECT id, count(exponent) FROM (SELECT *, {most} AS most FROM t WHERE id < 300) t "
                   "LEFT JOIN LATERAL powers(x, most) p ON true GROUP BY id ORDER BY id").fetchall()
    assert rows == [(v, v % 5 if v % 5 != 4 else 0) for v in range(300)]
    assert one(con, "SELECT (SELECT sum(power) FROM powers(x, 2)) FROM t WHERE id = 8") == 7.0
    assert con.sql("SELECT id FROM t WHERE id < 9 AND EXISTS (SELECT 1 FROM powers(x, id - 6)) ORDER BY id").fetchall() == [
        (6,), (7,), (8,)
    ]
    # Where no table may be, it is an array.
    assert one(con, "SELECT powers(2, 1)") == [{"exponent": 0, "power": 1.0}, {"exponent": 1, "power": 2.0}]
    assert one(con, "SELECT sum(r['power']) FROM (SELECT unnest(powers(x, 1)) AS r FROM t WHERE id = 4)") == 2.0
    con.sql("CREATE VIEW squares AS SELECT id, power FROM t, powers(t.x, 2) p WHERE p.exponent = 2")
    assert one(con, "SELECT sum(power) FROM squares WHERE id < 100") == sum((v / 4.0) ** 2 for v in range(100))
    assert one(con, "SELECT returns FROM onehop_functions") == "TABLE(exponent INTEGER, power DOUBLE)"
    definition = str(one(con, "SELECT definition FROM onehop_functions"))
    con.sql("DROP VIEW squares")
    con.sql("DROP FUNCTION powers")
    con.sql(definition)
    assert one(con, "SELECT count(*) FROM powers(2, 3)") == 4


def test_rows_that_are_none(con: onehop.Connection) -> None:
    con.sql(POWERS)
    con.sql("CREATE FUNCTION one(x INT) RETURNS INT LANGUAGE cuda AS $$ return 1; $$")
    con.sql("CREATE FUNCTION changing(x BIGINT) RETURNS TABLE(a INT) LANGUAGE cuda AS $$ result.push(1); $$")
    assert con.sql("SELECT count(*) FROM powers((SELECT max(x) FROM t), 3)").fetchall() == [(4,)]
    for sql, match in (
        ("SELECT * FROM powers(2)", "powers"),
        ("SELECT * FROM powers(x => 2, most => 3)", "places, no names"),
        ("SELECT * FROM powers(2, 3) WITH ORDINALITY", "WITH ORDINALITY is not supported"),
        ("SELECT * FROM t, LATERAL powers(2, 3) WITH ORDINALITY", "WITH ORDINALITY is not supported"),
        ("SELECT * FROM powers(2, 3) p, t WHERE p.missing = 1", "missing"),
        ("SELECT * FROM powers('a', 3)", "a"),
        ("SELECT * FROM t, powers(max(t.x), 3)", "is no argument in FROM"),
        ("SELECT * FROM t, powers(row_number() OVER (), 3)", "is no argument in FROM"),
        ("SELECT * FROM one(1)", "returns a value, and no rows"),
        ("SELECT * FROM t, changing(t.id)", "STABLE or IMMUTABLE"),
        ("CREATE FUNCTION f(x INT, x INT) RETURNS INT LANGUAGE cuda AS $$ return 1; $$", "two arguments have the name x"),
        ("CREATE FUNCTION unnest(x INT) RETURNS INT LANGUAGE cuda AS $$ return 1; $$", "a function of SQL's has this name"),
        ("CREATE FUNCTION f(x INT) RETURNS TABLE(a INT, a INT) LANGUAGE cuda AS $$ result.push(1, 2); $$", "each name once|no name"),
        ("CREATE FUNCTION f(x INT) RETURNS TABLE(a INT, b VARCHAR) LANGUAGE cuda AS $$ result.push(1, 2); $$", "functions in CUDA have numbers"),
        ("CREATE FUNCTION f(x INT) RETURNS TABLE(a INT[]) LANGUAGE cuda AS $$ result.push(1); $$", "numbers|cannot"),
        ("CREATE FUNCTION f(x INT) RETURNS TABLE(a INT, b INT) LANGUAGE cuda AS $$ result.push(1); $$", "line 1"),
        ("CREATE FUNCTION f(x INT) RETURNS TABLE(a INT PRIMARY KEY) LANGUAGE cuda AS $$ result.push(1); $$", "more than a name"),
        ("CREATE FUNCTION f(x INT) RETURNS TABLE(a INT) LANGUAGE python AS $$ return x $$", "functions in CUDA have tables"),
    ):
        with pytest.raises(onehop.Error, match=match):
            con.sql(sql).fetchall()


NEAREST = """CREATE FUNCTION nearest(x DOUBLE, y DOUBLE, points TABLE(id BIGINT, px DOUBLE, py DOUBLE)) RETURNS BIGINT LANGUAGE cuda AS $$
double least = 1e300;
long long found = -1;
for (unsigned long long i = 0; i < points.rows; ++i) {
  double dx = points.px[i] - x, dy = points.py[i] - y, d = dx * dx + dy * dy;
  if (d < least) { least = d; found = points.id[i]; }
}
is_null = found < 0;
return found;
$$"""


@pytest.mark.parametrize("mode", ["off", "require"])
def test_tables_are_arguments(con: onehop.Connection, mode: str) -> None:
    # In host memory, which is brought to the device, and on the device itself.
    con.sql(f"SET gpu.mode = '{mode}'")
    con.sql("CREATE TABLE points AS SELECT v AS id, sin(v) * 50 AS px, cos(v) * 50 AS py, 'x' || v AS name "
            "FROM (SELECT unnest(range(0, 300)) AS v)")
    con.sql(NEAREST)
    rows = con.sql("SELECT x, nearest(x, x / 2, 'points') FROM t WHERE id < 2000 ORDER BY id").fetchall()
    numbers = numpy.arange(300)
    px, py = numpy.sin(numbers) * 50, numpy.cos(numbers) * 50
    assert [found for _, found in rows] == [int(numpy.argmin((px - x) ** 2 + (py - x / 2) ** 2)) for x, _ in rows]
    # By its handle, whoever has exported it; nothing that a statement has exported outlives it.
    handle = one(con, "SELECT onehop_export('points', 'id, px, py')")
    assert one(con, f"SELECT nearest(0, 50, '{handle}')") == 0
    assert one(con, f"SELECT onehop_release('{handle}')") is True
    assert not list(Path("/dev/shm").glob(f"onehop-{str(handle).split(':')[1]}*"))
    # What is committed is what it sees.
    con.sql("INSERT INTO points VALUES (1000, 3000, 3000, 'far')")
    assert one(con, "SELECT nearest(2999, 2999, 'points')") == 1000
    con.sql("DELETE FROM points")
    assert one(con, "SELECT nearest(0, 0, 'points')") is None
    assert one(con, "SELECT nearest(0, 0, CAST(NULL AS VARCHAR))") is None
    assert one(con, "SELECT arguments FROM onehop_functions") == "x DOUBLE, y DOUBLE, points TABLE(id BIGINT, px DOUBLE, py DOUBLE)"
    definition = str(one(con, "SELECT definition FROM onehop_functions"))
    con.sql("DROP FUNCTION nearest")
    con.sql(definition)
    for wrong, match in (
        ("SELECT nearest(0, 0, 'nowhere')", "nowhere"),
        ("SELECT nearest(0, 0, 't')", "px"),
        ("SELECT nearest(0, 0, day::VARCHAR) FROM t", "a constant names"),
        (f"SELECT nearest(0, 0, '{handle}')", "gone"),
    ):
        with pytest.raises(onehop.Error, match=match):
            con.sql(wrong).fetchall()
    con.sql("BEGIN")
    with pytest.raises(onehop.Error, match="in a transaction"):
        con.sql("SELECT nearest(0, 0, 'points')").fetchall()
    con.sql("ROLLBACK")
    con.sql("CREATE TABLE other AS SELECT 1::INT AS id, 2.0::DOUBLE AS px, 3.0::DOUBLE AS py")
    with pytest.raises(onehop.DataError, match="column id is of type Int32, and Int64 is wanted"):
        con.sql("SELECT nearest(0, 0, 'other')").fetchall()
    for kind, match in (("TABLE", "without columns"), ("TABLE(rows INT)", "no name for a column"),
                        ("TABLE(a INT, a INT)", "no name for a column"),
                        ("TABLE(a VARCHAR)", "column a of argument p is VARCHAR: arrays have no such type"),
                        ("TABLE(b INT, a DATE)", "column a of argument p is DATE: arrays have no such type")):
        with pytest.raises(onehop.Error, match=match):
            con.sql(f"CREATE FUNCTION f(p {kind}) RETURNS INT LANGUAGE cuda AS $$ return 1; $$")
    with pytest.raises(onehop.DataError, match="line 1"):
        con.sql("CREATE FUNCTION f(p INT) RETURNS TABLE(a INT) LANGUAGE cuda AS $$ return 1; $$")


def test_errors_have_the_line_of_the_text(con: onehop.Connection) -> None:
    with pytest.raises(onehop.DataError, match=r"function f, line 3: .*missing"):
        con.sql("CREATE FUNCTION f(x DOUBLE) RETURNS DOUBLE LANGUAGE cuda AS $$\n  double y = x;\n  return y + missing;\n$$")
    with pytest.raises(onehop.DataError, match=r"function f, line 2: #library cublas"):
        con.sql("CREATE FUNCTION f(x DOUBLE) RETURNS DOUBLE LANGUAGE cuda AS $$\n#library cublas\n#begin\nreturn x;\n#end\n$$")
    assert con.sql("SELECT * FROM onehop_functions").fetchall() == []
    with pytest.raises(onehop.ProgrammingError, match="no language rust"):
        con.sql("CREATE FUNCTION f(x DOUBLE) RETURNS DOUBLE LANGUAGE rust AS $$ x $$")


def test_one_that_ends_its_process_or_does_not_end_harms_nobody(con: onehop.Connection) -> None:
    con.sql("CREATE FUNCTION ends(n BIGINT) RETURNS BIGINT LANGUAGE cuda AS $$ if (n == 77) { __builtin_trap(); } return n; $$")
    with pytest.raises(onehop.DataError, match="has ended: signal"):
        con.sql("SELECT sum(ends(id)) FROM t").fetchall()
    assert one(con, "SELECT sum(ends(id)) FROM t WHERE id < 50") == sum(range(50))
    con.sql("CREATE FUNCTION never(n BIGINT) RETURNS BIGINT LANGUAGE cuda AS $$ volatile int on = 1; while (on) { } return n; $$")
    con.sql("SET statement_timeout = '300ms'")
    began = time.monotonic()
    with pytest.raises(onehop.Error):
        con.sql("SELECT never(id) FROM t").fetchall()
    assert time.monotonic() - began < 300
    con.sql("SET statement_timeout = 0")
    assert math.isclose(float(str(one(con, "SELECT sum(x) FROM t"))), sum(range(ROWS)) / 4)


def test_it_runs_only_where_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "db")
    with onehop.connect(path) as con, pytest.raises(onehop.ProgrammingError, match="functions in CUDA are not allowed"):
        con.sql(HYPOTENUSE)
    monkeypatch.setenv("ONEHOP_TEST_DEVICE", "fake")
    with onehop.connect(path, config={"functions.allow_cuda": "true"}) as con:
        con.sql(HYPOTENUSE)
        assert con.sql("SELECT language FROM onehop_functions").fetchall() == [("cuda",)]
    with onehop.connect(path) as con, pytest.raises(onehop.ProgrammingError, match="not allowed"):
        con.sql("SELECT hypotenuse(1, 2)").fetchall()
    # Where there is no GPU that is said, and nothing else goes wrong.
    monkeypatch.delenv("ONEHOP_TEST_DEVICE")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with onehop.connect(path, config={"functions.allow_cuda": "true"}) as con:
        with pytest.raises(onehop.DataError, match="need a GPU, and there is none"):
            con.sql("SELECT hypotenuse(1, 2)").fetchall()
        assert one(con, "SELECT 6 * 7") == 42
