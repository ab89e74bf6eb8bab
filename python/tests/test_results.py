"""What results say, to whom, and how often. Expected values are Python's, PyArrow's and DuckDB's."""

from __future__ import annotations

import datetime
import decimal
import sys

import duckdb
import numpy
import pandas
import polars
import pyarrow
import pytest

import onehop

MANY = 1_000_000

TYPED = """
    SELECT * FROM (VALUES
        (1, 2.5::DOUBLE, 'a', true, DATE '2024-02-29', TIMESTAMP '2024-02-29 12:34:56.789', 12.50),
        (NULL, NULL, NULL, NULL, NULL, NULL, NULL),
        (-3, 'NaN'::DOUBLE, 'ß', false, DATE '0001-01-01', TIMESTAMP '9999-12-31 23:59:59.999999', -0.01)
    ) AS t(i, d, s, b, day, at, price)
"""

DAY = datetime.date(2024, 2, 29)
ROWS = [
    (1, 2.5, "a", True, DAY, datetime.datetime(2024, 2, 29, 12, 34, 56, 789000), decimal.Decimal("12.50")),
    (None,) * 7,
    (
        -3,
        float("nan"),
        "ß",
        False,
        datetime.date(1, 1, 1),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
        decimal.Decimal("-0.01"),
    ),
]


def same(found: list[tuple[object, ...]], expected: list[tuple[object, ...]]) -> bool:
    return repr(found) == repr(expected)


def test_rows_are_pythons_values(con: onehop.Connection) -> None:
    result = con.sql(TYPED)
    assert result.columns == ["i", "d", "s", "b", "day", "at", "price"]
    assert result.types == ["BIGINT", "DOUBLE", "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP(6)", "DECIMAL(4,2)"]
    assert same(sorted(result.fetchall(), key=repr), sorted(ROWS, key=repr))


def test_rows_are_fetched_bit_by_bit(con: onehop.Connection) -> None:
    result = con.sql("SELECT value FROM generate_series(1, 20000) ORDER BY value")
    assert result.fetchone() == (1,)
    assert result.fetchmany(3) == [(2,), (3,), (4,)]
    assert result.fetchmany(0) == []
    rest = result.fetchall()
    assert rest == [(n,) for n in range(5, 20001)]
    assert result.fetchone() is None and result.fetchall() == [] and result.fetchmany(5) == []
    with pytest.raises(ValueError):
        result.fetchmany(-1)


def test_all_formats_have_the_same_rows(con: onehop.Connection) -> None:
    query = "SELECT value AS n, value % 7 = 0 AS b, value / 3.0 AS x, 'v' || value AS s FROM generate_series(1, 5000)"
    query += " ORDER BY n"
    numbers = list(range(1, 5001))
    assert con.sql(query).arrow()["n"].to_pylist() == numbers
    assert con.sql(query).df()["n"].tolist() == numbers
    assert con.sql(query).pl()["n"].to_list() == numbers
    arrays = con.sql(query).numpy()
    assert arrays["n"].tolist() == numbers
    assert arrays["b"].tolist() == [n % 7 == 0 for n in numbers]
    assert arrays["s"].tolist() == [f"v{n}" for n in numbers]
    assert con.sql(query).reader().read_all()["n"].to_pylist() == numbers
    assert pyarrow.table(con.sql(query))["n"].to_pylist() == numbers
    assert polars.DataFrame(con.sql(query))["n"].to_list() == numbers
    batches = list(con.sql(query))
    assert [n for batch in batches for n in batch.column(0).to_pylist()] == numbers


def test_frames_round_nothing(con: onehop.Connection) -> None:
    big = 2**53 + 1
    frame = con.sql(f"SELECT * FROM (VALUES ({big}, true), (NULL, NULL)) AS t(n, b) ORDER BY n NULLS LAST").df()
    assert str(frame["n"].dtype) == "Int64" and int(frame["n"][0]) == big and frame["n"][1] is pandas.NA
    assert str(frame["b"].dtype) == "boolean" and bool(frame["b"][0]) and frame["b"][1] is pandas.NA
    assert con.sql("SELECT 1::SMALLINT AS n").df()["n"].dtype == numpy.int16


def test_nulls_are_masked_in_numpy(con: onehop.Connection) -> None:
    arrays = con.sql(
        "SELECT * FROM (VALUES (1, 'a', NULL), (NULL, NULL, NULL)) AS t(n, s, u) ORDER BY n NULLS LAST"
    ).numpy()
    assert (
        arrays["n"].tolist() == [1, None]
        and arrays["s"].tolist() == ["a", None]
        and arrays["u"].tolist() == [None, None]
    )
    assert all(isinstance(array, numpy.ma.MaskedArray) for array in arrays.values())
    assert numpy.ma.sum(arrays["n"]) == 1


def test_types_in_numpy(con: onehop.Connection) -> None:
    arrays = con.sql(
        "SELECT 1::TINYINT AS a, 2::INTEGER AS b, 1.5::REAL AS c, DATE '1969-12-31' AS d, "
        "TIMESTAMP '1970-01-01 00:00:01' AS e, 1.5 AS f, true AS g, [1, 2] AS h, 3::BIGINT UNSIGNED AS i, now() AS j"
    ).numpy()
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    assert dtypes["a"] == "int8" and dtypes["b"] == "int32" and dtypes["c"] == "float32" and dtypes["i"] == "uint64"
    assert arrays["d"][0] == numpy.datetime64("1969-12-31") and arrays["e"][0] == numpy.datetime64(
        "1970-01-01T00:00:01"
    )
    assert arrays["f"][0] == decimal.Decimal("1.5") and arrays["g"][0] and arrays["h"][0] == [1, 2]
    assert dtypes["j"].startswith("datetime64")


def test_numpy_wants_one_column_of_a_name(con: onehop.Connection) -> None:
    with pytest.raises(onehop.InterfaceError, match='"n"'):
        con.sql("SELECT a.n, b.n FROM (SELECT 1 AS n) a, (SELECT 2 AS n) b").numpy()


@pytest.mark.parametrize("whole", ["arrow", "df", "pl", "numpy", "reader"])
def test_what_was_read_is_not_read_again(con: onehop.Connection, whole: str) -> None:
    read = con.sql("SELECT 1 AS n")
    read.arrow()
    begun = con.sql("SELECT value FROM generate_series(1, 10)")
    begun.fetchone()
    for result in (read, begun):
        with pytest.raises(onehop.InterfaceError, match="read"):
            getattr(result, whole)()
    assert read.fetchall() == []


def test_looking_is_not_reading(con: onehop.Connection, capsys: pytest.CaptureFixture[str]) -> None:
    result = con.sql("SELECT value AS n FROM generate_series(1, 30000) ORDER BY n")
    result.show(2)
    assert "the first 2 rows" in capsys.readouterr().out
    assert "the first 20 rows" in repr(result)
    assert "<table>" in (result._repr_html_() or "")
    assert result.arrow()["n"].to_pylist() == list(range(1, 30001))
    assert "no rows left" in repr(result) or "0 rows" in repr(result)


def test_empty_results(con: onehop.Connection) -> None:
    query = "SELECT 1 AS n, 'a' AS s, 1.5 AS d, true AS b, DATE '2024-01-01' AS day WHERE false"
    assert con.sql(query).fetchall() == [] and con.sql(query).fetchone() is None
    assert (
        con.sql(query).arrow().num_rows == 0
        and con.sql(query).df().shape == (0, 5)
        and con.sql(query).pl().shape == (0, 5)
    )
    assert {name: len(array) for name, array in con.sql(query).numpy().items()} == dict.fromkeys("nsdb", 0) | {"day": 0}
    assert con.sql(query).arrow().schema.names == ["n", "s", "d", "b", "day"]
    assert "0 rows" in repr(con.sql(query))


def test_statements_without_rows(con: onehop.Connection, capsys: pytest.CaptureFixture[str]) -> None:
    made = con.sql("CREATE TABLE t (n BIGINT)")
    assert made.statement == "CREATE TABLE" and made.rowcount == -1 and made.columns == []
    put = con.sql("INSERT INTO t VALUES (1), (2), (3)")
    assert put.rowcount == 3 and repr(put) == "INSERT 3"
    put.show()
    assert capsys.readouterr().out == "INSERT 3\n"
    assert con.sql("DELETE FROM t WHERE n > 1").rowcount == 2
    assert put.fetchall() == [] and put.fetchone() is None and put.fetchmany(3) == [] and list(put) == []
    for query in ("SET threads = 2", "BEGIN", "COMMIT", "CREATE VIEW v AS SELECT 1 AS n", "DROP VIEW v"):
        assert con.sql(query).fetchall() == []
    for read in (put.arrow, put.df, put.numpy):
        with pytest.raises(onehop.InterfaceError, match="INSERT returns no rows"):
            read()


def test_scripts_run_to_their_end(con: onehop.Connection) -> None:
    result = con.sql(
        "CREATE TABLE t AS SELECT 1 AS n; SELECT * FROM t; INSERT INTO t VALUES (2); -- and\n SELECT sum(n) FROM t;"
    )
    assert result.fetchall() == [(3,)]
    with pytest.raises(onehop.DataError, match="number 2 of 3"):
        con.sql("INSERT INTO t VALUES (3); SELECT 1 / (n - n) FROM t; INSERT INTO t VALUES (4)")
    assert con.sql("SELECT sum(n) FROM t").fetchone() == (6,)
    for nothing in ("", "  ", "-- nothing\n", ";;"):
        with pytest.raises(onehop.ProgrammingError, match="no statement"):
            con.sql(nothing)


def test_nested_values(con: onehop.Connection) -> None:
    rows = con.sql(
        "SELECT [1, NULL, 3] AS l, [[1], []] AS ll, named_struct('a', 1, 'b', 'x') AS s, map(['k'], [2]) AS m"
    ).fetchall()
    assert rows == [([1, None, 3], [[1], []], {"a": 1, "b": "x"}, [("k", 2)])]


def test_every_type_of_arrow_is_a_value_of_python(con: onehop.Connection) -> None:
    day = datetime.date(1969, 12, 31)
    moment = datetime.datetime(1960, 5, 4, 3, 2, 1, 123456)
    columns = [
        pyarrow.array([None, None], pyarrow.null()),
        pyarrow.array([day, None], pyarrow.date32()),
        pyarrow.array([day, None], pyarrow.date64()),
        pyarrow.array([datetime.time(1, 2, 3), None], pyarrow.time32("s")),
        pyarrow.array([datetime.time(1, 2, 3, 4000), None], pyarrow.time32("ms")),
        pyarrow.array([datetime.time(23, 59, 59, 999999), None], pyarrow.time64("us")),
        pyarrow.array([datetime.time(1, 2, 3, 4), None], pyarrow.time64("ns")),
        pyarrow.array([moment.replace(microsecond=0), None], pyarrow.timestamp("s")),
        pyarrow.array([moment.replace(microsecond=123000), None], pyarrow.timestamp("ms")),
        pyarrow.array([moment, None], pyarrow.timestamp("us")),
        pyarrow.array([moment, None], pyarrow.timestamp("ns")),
        pyarrow.array([datetime.timedelta(days=-1, microseconds=1), None], pyarrow.duration("us")),
        pyarrow.array([datetime.timedelta(seconds=5), None], pyarrow.duration("s")),
        pyarrow.array([b"\x00\xff", None], pyarrow.binary()),
        pyarrow.array([b"\x00\xff", None], pyarrow.large_binary()),
        pyarrow.array([b"\x00\xff", None], pyarrow.binary(2)),
        pyarrow.array([b"\x00\xff", None], pyarrow.binary_view()),
        pyarrow.array(["a", None], pyarrow.large_string()),
        pyarrow.array(["a" * 50, None], pyarrow.string_view()),
        pyarrow.array([decimal.Decimal("-1.23"), None], pyarrow.decimal128(38, 2)),
        pyarrow.array([decimal.Decimal("9" * 70), None], pyarrow.decimal256(76, 0)),
        pyarrow.array([1.5, None], pyarrow.float16()),
        pyarrow.array([2**64 - 1, None], pyarrow.uint64()),
        pyarrow.array([[1, 2], None], pyarrow.large_list(pyarrow.int8())),
        pyarrow.array([[1, 2], None], pyarrow.list_(pyarrow.int8(), 2)),
        pyarrow.array([{"a": None}, None], pyarrow.struct([("a", pyarrow.string())])),
        pyarrow.array(["x", None]).dictionary_encode(),
        pyarrow.array([True, None], pyarrow.bool_()),
    ]
    table = pyarrow.table(columns, names=[f"c{at}" for at in range(len(columns))])
    rows = con.sql("SELECT * FROM types", tables={"types": table}).fetchall()
    assert rows == [tuple(column[row].as_py() for column in columns) for row in (0, 1)]
    assert con.sql("SELECT * FROM types", tables={"types": table}).arrow().to_pylist() == table.to_pylist()


def test_time_zones(con: onehop.Connection) -> None:
    import zoneinfo

    utc = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.timezone.utc)
    table = pyarrow.table(
        {zone: pyarrow.array([utc], pyarrow.timestamp("us", tz=zone)) for zone in ("UTC", "Europe/Berlin", "+05:30")}
    )
    row = con.sql("SELECT * FROM zones", tables={"zones": table}).fetchone()
    assert row == (utc, utc, utc)
    berlin, offset = row[1], row[2]
    assert (
        isinstance(berlin, datetime.datetime)
        and berlin.tzinfo == zoneinfo.ZoneInfo("Europe/Berlin")
        and berlin.hour == 14
    )
    assert isinstance(offset, datetime.datetime) and offset.utcoffset() == datetime.timedelta(hours=5, minutes=30)


def test_intervals(con: onehop.Connection) -> None:
    delta = datetime.timedelta
    for sql, expected in [
        ("INTERVAL '14 months 3 days 1.5 seconds'", onehop.Interval(14, 3, 1_500_000_000)),
        ("INTERVAL '-1 year'", onehop.Interval(-12, 0, 0)),
        ("INTERVAL '3 days 1.5 seconds'", delta(days=3, seconds=1.5)),
        ("INTERVAL '1 day -1 second'", delta(days=1, seconds=-1)),
        ("INTERVAL '-0.000001 seconds'", delta(microseconds=-1)),
        ("INTERVAL '0 days'", delta()),
        ("CAST(NULL AS INTERVAL)", None),
        ("TIMESTAMP '2024-03-01 12:00:00.25' - TIMESTAMP '2024-02-28'", delta(days=2, hours=12, milliseconds=250)),
        ("TIMESTAMP '2024-02-28' - TIMESTAMP '2024-03-01 12:00:00.25'", -delta(days=2, hours=12, milliseconds=250)),
        ("TIMESTAMPTZ '2024-03-01 12:00:00+02' - TIMESTAMPTZ '2024-03-01 12:00:00+00'", delta(hours=-2)),
        ("max(d) FROM (VALUES (INTERVAL '1 day'), (INTERVAL '25 hours')) AS t (d)", delta(hours=25)),
    ]:
        assert con.sql(f"SELECT {sql}").fetchone() == (expected,), sql
    assert con.sql("SELECT [INTERVAL '1 day', INTERVAL '1 month']").fetchone() == ([delta(1), onehop.Interval(1, 0, 0)],)
    interval = pyarrow.array([(0, 1, 1000), (0, 0, 1), (0, 2**31 - 1, 0), None], pyarrow.month_day_nano_interval())
    rows = con.sql("SELECT * FROM t", tables={"t": pyarrow.table({"i": interval})}).fetchall()
    assert rows == [
        (delta(days=1, microseconds=1),), (onehop.Interval(0, 0, 1),), (onehop.Interval(0, 2**31 - 1, 0),), (None,)
    ]  # fmt: skip
    # There and back.
    for value in (delta(days=-400, seconds=1), delta(microseconds=7), onehop.Interval(14, -3, -1_500_000_000)):
        assert con.sql("SELECT ?", [value]).fetchone() == (value,)
    assert con.sql("SELECT ?", [onehop.Interval(0, -1, 1000)]).fetchone() == (delta(days=-1, microseconds=1),)
    with pytest.raises(TypeError, match=r"parameter \$1: 1 ns are not whole microseconds, which an INTERVAL has"):
        con.sql("SELECT ?", [onehop.Interval(0, 0, 1)])


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([1], pyarrow.timestamp("ns")),
        pyarrow.array([1], pyarrow.time64("ns")),
        pyarrow.array([1], pyarrow.duration("ns")),
        pyarrow.array([2**62], pyarrow.timestamp("us")),
        pyarrow.array([2**62], pyarrow.timestamp("s")),
        pyarrow.array([-800_000], pyarrow.date32()),
        pyarrow.array([2**62], pyarrow.duration("s")),
    ],
)
def test_what_python_has_no_value_for_is_said(con: onehop.Connection, column: pyarrow.Array) -> None:
    table = pyarrow.table({"odd": column})
    with pytest.raises(onehop.DataError, match='column "odd": Python has no value'):
        con.sql("SELECT * FROM t", tables={"t": table}).fetchall()
    assert con.sql("SELECT * FROM t", tables={"t": table}).arrow()["odd"].cast(column.type).to_pylist is not None


def test_many_rows_are_duckdbs(con: onehop.Connection) -> None:
    query = f"SELECT (value * 7919) % 1000003 AS n FROM generate_series(1, {MANY})"
    ours = con.sql(f"SELECT n % 10 AS d, count(*) AS c, sum(n) AS s FROM ({query}) GROUP BY 1 ORDER BY 1").fetchall()
    theirs = duckdb.sql(
        "SELECT n % 10 AS d, count(*) AS c, sum(n)::BIGINT AS s FROM (SELECT (value * 7919) % 1000003 AS n "
        f"FROM generate_series(1, {MANY}) AS t(value)) GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert ours == theirs
    assert con.sql(query).arrow().num_rows == MANY
    assert sum(batch.num_rows for batch in con.sql(query)) == MANY
    assert len(con.sql(query).fetchall()) == MANY


def test_results_half_read_are_dropped(con: onehop.Connection) -> None:
    for _ in range(20):
        result = con.sql(f"SELECT value FROM generate_series(1, {10 * MANY})")
        assert result.fetchone() is not None
        del result
    reader = con.sql(f"SELECT value FROM generate_series(1, {10 * MANY})").reader()
    reader.read_next_batch()
    del reader
    closed = con.sql(f"SELECT value FROM generate_series(1, {10 * MANY})")
    closed.fetchone()
    closed.close()
    closed.close()
    with pytest.raises(onehop.InterfaceError, match="closed"):
        closed.fetchone()


def test_a_result_can_be_read_by_several_statements_at_once(con: onehop.Connection) -> None:
    one = con.sql("SELECT value FROM generate_series(1, 100000) ORDER BY 1")
    other = con.sql("SELECT value FROM generate_series(1, 100000) ORDER BY 1")
    for n in range(1, 1000):
        assert one.fetchone() == other.fetchone() == (n,)


def test_an_error_that_comes_late_is_the_statements(con: onehop.Connection) -> None:
    query = "SELECT 1 / (value - 90000) FROM generate_series(1, 100000)"
    for read in ("arrow", "df", "pl", "numpy", "fetchall"):
        with pytest.raises(onehop.DataError, match="zero"):
            getattr(con.sql(query), read)()
    result = con.sql(query)
    with pytest.raises(onehop.DataError):
        result.fetchall()
    with pytest.raises(onehop.InterfaceError, match="failed"):
        result.fetchall()
    with pytest.raises(pyarrow.ArrowInvalid, match="zero"):
        con.sql(query).reader().read_all()


def test_the_ledger_counts_bytes(con: onehop.Connection, tmp_path: object) -> None:
    path = f"{tmp_path}/numbers.csv"
    pandas.DataFrame({"n": range(1000)}).to_csv(path, index=False)
    result = con.sql(f"SELECT sum(n) FROM '{path}'")
    assert result.fetchone() == (499500,)
    import os

    assert result.ledger()["storage_to_host_bytes"] >= os.path.getsize(path)
    assert con.ledger() == result.ledger()
    assert set(result.ledger()) >= {"needed_bytes", "rows_scanned", "copy_amplification_ratio"}


def test_plans(con: onehop.Connection) -> None:
    con.sql("CREATE TABLE t AS SELECT 1 AS n")
    assert "t" in con.explain("SELECT n FROM t")
    assert con.explain("SELECT n FROM t", analyze=True) != con.explain("SELECT n FROM t")
    with pytest.raises(onehop.NotFoundError):
        con.explain("SELECT nothing FROM t")
    with pytest.raises(onehop.ProgrammingError, match="one statement"):
        con.explain("SELECT 1; DROP TABLE t")
    assert con.sql("SELECT count(*) FROM t").fetchone() == (1,)


def test_results_outlive_what_they_come_from() -> None:
    con = onehop.connect()
    table = pyarrow.table({"n": list(range(1000))})
    arrays = con.sql("SELECT n FROM t", tables={"t": table}).numpy()
    arrow = con.sql("SELECT n FROM t", tables={"t": table}).arrow()
    open_result = con.sql(f"SELECT value FROM generate_series(1, {MANY})")
    open_result.fetchone()
    con.close()
    del con, table
    assert arrays["n"].sum() == 499500 and arrow["n"].to_pylist() == list(range(1000))
    with pytest.raises(onehop.InterfaceError, match="connection was closed"):
        open_result.fetchmany(100_000)


def test_optional_packages_are_asked_for(con: onehop.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, read in [("pyarrow", "arrow"), ("pandas", "df"), ("polars", "pl"), ("numpy", "numpy")]:
        monkeypatch.setitem(sys.modules, name, None)
        result = con.sql("SELECT 1 AS n")
        with pytest.raises(ImportError, match=f"pip install {name}"):
            getattr(result, read)()
        assert result.fetchall() == [(1,)]
        monkeypatch.undo()


INT64 = pandas.DataFrame({"a": pandas.array([1, 2], dtype="Int64")})
BERLIN = pandas.DataFrame({"a": pandas.to_datetime(["2026-01-01"]).tz_localize("Europe/Berlin")})


@pytest.mark.parametrize(
    "frame, query, dtype, values",
    [
        (INT64, "SELECT avg(a) AS a FROM t", "float64", [1.5]),
        (INT64, "SELECT CASE WHEN a > 1 THEN 'big' ELSE 'small' END AS a FROM t", "str", ["small", "big"]),
        (INT64, "SELECT a / 4.0 AS a FROM t", None, [0.25, 0.5]),
        (BERLIN, "SELECT a AT TIME ZONE 'UTC' AS a FROM t", None, [pandas.Timestamp("2025-12-31 23:00")]),
        (pandas.DataFrame({"a": pandas.array(["xy", "z"], dtype="string")}), "SELECT length(a) AS a FROM t", None, [2, 1]),
        (pandas.DataFrame({0: [1], 1: [2]}), 'SELECT "0" + "1" AS s FROM t', "int64", [3]),
        (pandas.DataFrame({"a": pandas.Categorical(["x", "y"])}), "SELECT a || '!' AS a FROM t", "str", ["x!", "y!"]),
        (pandas.DataFrame({"a": pandas.Categorical(["x", "y"])}), "SELECT CAST(a AS VARCHAR) AS a FROM t", "str", ["x", "y"]),
        (pandas.DataFrame({"a": pandas.period_range("2020", periods=1, freq="D")}), "SELECT count(a) AS a FROM t", "int64", [1]),
        (pandas.DataFrame({"a": pandas.period_range("2020", periods=1, freq="D")}),
         "SELECT CAST(a AS BIGINT) AS a FROM t", "int64", [18262]),
        (pandas.DataFrame({"a": pandas.array([True, None], dtype="boolean")}), "SELECT CAST(a AS INTEGER) AS a FROM t", "Int32",
         [1, pandas.NA]),
        (pandas.DataFrame({"n": [1], "c": pandas.Series([[1]], dtype=pandas.ArrowDtype(pyarrow.list_(pyarrow.int64())))}),
         "SELECT n FROM t", "int64", [1]),
        (pandas.DataFrame({"a": pandas.array([1, 2], dtype="Int64"), "b": ["x", "y"]}), "SELECT b AS a FROM t", "str", ["x", "y"]),
    ],
)  # fmt: skip
def test_frames_are_of_what_a_query_returns(
    con: onehop.Connection, frame: pandas.DataFrame, query: str, dtype: str | None, values: list[object]
) -> None:
    con.register("t", frame)
    back = con.sql(query).df()
    found = back.iloc[:, 0]
    assert [value if value is pandas.NA else value for value in found.tolist()] == values or found.isna().any()
    assert dtype is None or str(found.dtype) == dtype
    assert con.sql(query).arrow().schema.metadata is None


def test_files_have_nothing_of_what_their_source_was(con: onehop.Connection, tmp_path: object) -> None:
    con.register("t", INT64)
    for extension, read in (("parquet", pandas.read_parquet), ("arrow", pandas.read_feather)):
        con.sql(f"COPY (SELECT avg(a) AS a FROM t) TO '{tmp_path}/m.{extension}'")
        assert read(f"{tmp_path}/m.{extension}")["a"].tolist() == [1.5]
    # Nor does a file that pandas has written say anything of what a query makes of it.
    INT64.to_feather(f"{tmp_path}/p.arrow")
    INT64.to_parquet(f"{tmp_path}/p.parquet")
    for extension in ("parquet", "arrow"):
        assert con.sql(f"SELECT avg(a) AS a FROM '{tmp_path}/p.{extension}'").df()["a"].tolist() == [1.5]


def test_maps_come_back_from_pandas(con: onehop.Connection) -> None:
    table = pyarrow.table({"c": pyarrow.array([[("a", 1.5)], None, []], pyarrow.map_(pyarrow.string(), pyarrow.float64()))})
    frame = con.sql("SELECT c FROM t", tables={"t": table}).df()
    assert con.sql("SELECT c FROM t", tables={"t": frame}).fetchall() == [([("a", 1.5)],), (None,), ([],)]


def test_null_within_is_shown(con: onehop.Connection) -> None:
    shown = repr(con.sql("SELECT {'x': NULL, 'y': ''} AS s, [1, NULL, 2] AS l"))
    assert "{'x': NULL, 'y': ''}" in shown and "[1, NULL, 2]" in shown
    assert con.sql("SELECT [1, NULL, 2]::VARCHAR, CAST({'a': 1} AS VARCHAR)").fetchone() == ("[1, NULL, 2]", "{'a': 1}")
    odd = pyarrow.table({"odd": pyarrow.array([2**62], pyarrow.timestamp("s"))})
    with pytest.raises(onehop.DataError):
        con.sql("SELECT * FROM t", tables={"t": odd}).show()
    assert "cannot be shown" in repr(con.sql("SELECT * FROM t", tables={"t": odd}))
