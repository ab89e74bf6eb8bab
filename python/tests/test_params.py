"""Values of parameters are what they are: they come back the same, or are refused by name."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
from collections.abc import Mapping
from typing import Any

import numpy
import pandas
import pytest

import onehop

UTC = datetime.timezone.utc
NASTY = "it's; DROP TABLE t -- \\ \" $1 ? \u0000 \U0001f980\n"


class Color(enum.IntEnum):
    RED = 7


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        2**63 - 1,
        -(2**63),
        1.5,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        float("inf"),
        float("-inf"),
        "",
        "ß漢",
        NASTY,
        b"",
        b"\x00\xff'",
        decimal.Decimal("12.50"),
        decimal.Decimal("-0.001"),
        decimal.Decimal("9" * 38),
        decimal.Decimal("0." + "1" * 38),
        decimal.Decimal("-1e-38"),
        decimal.Decimal("1.5e20"),
        datetime.date(1, 1, 1),
        datetime.date(9999, 12, 31),
        datetime.datetime(1, 1, 1),
        datetime.datetime(2024, 2, 29, 12, 34, 56, 789),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
        datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))),
        datetime.time(0),
        datetime.time(23, 59, 59, 999999),
        Color.RED,
    ],
    ids=repr,
)
def test_values_come_back(con: onehop.Connection, value: object) -> None:
    row = con.sql("SELECT $1 AS v", [value]).fetchone()
    assert row is not None and row[0] == value and str(row[0]) == str(value) or row == (value,)
    assert con.sql("SELECT ?", (value,)).fetchone() == row
    assert con.sql("SELECT $v", {"v": value}).fetchone() == row


def test_types_of_values(con: onehop.Connection) -> None:
    moment = datetime.datetime(2024, 1, 1)
    given = [
        True,
        1,
        1.5,
        "a",
        b"a",
        decimal.Decimal("1.5"),
        moment.date(),
        moment,
        moment.replace(tzinfo=UTC),
        moment.time(),
    ]
    types = con.sql("SELECT " + ", ".join(f"${n + 1}" for n in range(len(given))), given).types
    assert types[:4] == ["BOOLEAN", "BIGINT", "DOUBLE", "VARCHAR"] or types[3] == "Utf8"
    assert types[5:8] == ["DECIMAL(2,1)", "DATE", "TIMESTAMP(6)"] and "TIME ZONE 'UTC'" in types[8]


def test_nan(con: onehop.Connection) -> None:
    row = con.sql("SELECT $1", [float("nan")]).fetchone()
    assert row is not None and row[0] != row[0]


def test_bytes_of_other_classes(con: onehop.Connection) -> None:
    given = [bytearray(b"a\x00"), memoryview(b"abcd")[::2]]
    assert con.sql("SELECT $1, $2", given).fetchone() == (b"a\x00", b"ac")


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, 10**37, -(2**63) - 1, -(10**37)])
def test_long_integers_keep_their_digits(con: onehop.Connection, number: int) -> None:
    row = con.sql("SELECT $1", [number]).fetchone()
    assert row is not None and int(row[0]) == number and not isinstance(row[0], float)


@pytest.mark.parametrize(
    "number",
    [
        10**80,
        -(10**80),
        decimal.Decimal("1e-39"),
        decimal.Decimal("9" * 39),
        decimal.Decimal(f"{'9' * 38}.5"),
        decimal.Decimal(f"{'9' * 100}.5"),
    ],
)
def test_numbers_too_long_for_any_type_are_refused(con: onehop.Connection, number: Any) -> None:
    with pytest.raises((onehop.ProgrammingError, ValueError)):
        con.sql("SELECT $1", [number]).fetchall()
    assert con.sql("SELECT 1").fetchone() == (1,)


def test_time_spans(con: onehop.Connection) -> None:
    start = datetime.datetime(2024, 1, 1)
    for span in (
        datetime.timedelta(0),
        datetime.timedelta(microseconds=-1),
        datetime.timedelta(days=3, hours=5, microseconds=7),
        datetime.timedelta(days=-400, seconds=1),
    ):
        assert con.sql("SELECT $1 + $2", [start, span]).fetchone() == (start + span,), span


def test_numpys_scalars(con: onehop.Connection) -> None:
    given = [
        numpy.int8(-3),
        numpy.uint64(2**64 - 1),
        numpy.float32(1.5),
        numpy.float64(2.5),
        numpy.bool_(True),
        numpy.str_("s"),
    ]
    row = con.sql("SELECT $1, $2, $3, $4, $5, $6", given).fetchone()
    assert row is not None and [int(row[0]), int(row[1]), *row[2:]] == [-3, 2**64 - 1, 1.5, 2.5, True, "s"]
    moment = numpy.datetime64("2024-02-29T12:00:00.5")
    assert con.sql("SELECT $1", [moment]).fetchone() == (datetime.datetime(2024, 2, 29, 12, 0, 0, 500000),)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1},
        {},
        {1: 2},
        [1, object()],
        1j,
        fractions.Fraction(1, 3),
        decimal.Decimal("NaN"),
        decimal.Decimal("Infinity"),
        datetime.time(1, tzinfo=UTC),
        numpy.datetime64("2024-01-01T00:00:00.000000001"),
        pandas.Timestamp("2024-01-01T00:00:00.000000001"),
        "\ud800",
    ],
    ids=repr,
)
def test_what_has_no_type_is_refused(con: onehop.Connection, value: object) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        con.sql("SELECT $1, $2", [1, value])
    assert "$2" in str(refused.value) or isinstance(refused.value, UnicodeEncodeError)
    assert not isinstance(refused.value, onehop.Error)


@pytest.mark.parametrize(
    "value, back",
    [
        ([1, 2], [1, 2]),
        ([], []),
        ([None, 1], [None, 1]),
        ((1, 2), [1, 2]),
        (["a'b", NASTY, ""], ["a'b", NASTY, ""]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([1, decimal.Decimal("2.5")], [decimal.Decimal("1.0"), decimal.Decimal("2.5")]),
        ([1, 2.5], [1.0, 2.5]),
        ([datetime.date(2020, 1, 2)], [datetime.date(2020, 1, 2)]),
        ([datetime.datetime(2020, 1, 2, 3), None], [datetime.datetime(2020, 1, 2, 3), None]),
        (numpy.array([1, 2]), [1, 2]),
        (numpy.array([[1], [2]]), [[1], [2]]),
        ({"a": 1, "b c": "x"}, {"a": 1, "b c": "x"}),
        ({"a": [1, None], "b": {"c": None}}, {"a": [1, None], "b": {"c": None}}),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (pathlib.PurePosixPath("/a b/c"), "/a b/c"),
        (pandas.NA, None),
        (pandas.NaT, None),
        ([pandas.NA, 1], [None, 1]),
    ],
    ids=repr,
)
def test_values_within_values(con: onehop.Connection, value: object, back: object) -> None:
    assert con.sql("SELECT ?", [value]).fetchone() == (back,)
    assert con.sql("SELECT $v AS v", {"v": value}).fetchone() == (back,)


def test_lists_of_parameters(con: onehop.Connection) -> None:
    con.sql("CREATE TABLE t AS SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (3, NULL)) AS t(n, s)")
    for query, values, expected in [
        ("n IN ?", [[1, 3]], [1, 3]),
        ("n NOT IN ?", [[1, 3]], [2]),
        ("n  not\n in $1 AND n > $2", [[1], 2], [3]),
        ("n IN ?", [[]], []),
        ("n NOT IN ?", [[]], [1, 2, 3]),
        ("n NOT IN ?", [[1, None]], []),
        ("s IN ?", [("a", "x")], [1]),
        ("n = ANY(?)", [[2, 3]], [2, 3]),
        ("n <> ALL(?)", [[2, 3]], [1]),
        ("n IN (?, ?)", [1, 2], [1, 2]),
        ("n + 1 IN ? OR s IN ?", [[2], ["b"]], [1, 2]),
        ("position(s IN ?) > 0", ["xb"], [2]),
    ]:
        found = con.sql(f"SELECT n FROM t WHERE {query} ORDER BY n", values).fetchall()
        assert found == [(n,) for n in expected], query
    assert con.sql("SELECT n FROM t WHERE n IN $these", {"these": [2]}).fetchall() == [(2,)]


def test_parameters_stand_where_literals_may(con: onehop.Connection) -> None:
    con.sql("CREATE TABLE t (n BIGINT, s VARCHAR, d DATE)")
    con.sql(
        "INSERT INTO t VALUES ($n, $s, $d), ($n + 1, NULL, NULL)", {"n": 1, "s": NASTY, "d": datetime.date(2024, 1, 1)}
    )
    assert con.sql("SELECT n FROM t WHERE s = ? AND d < ?", [NASTY, datetime.date(2024, 1, 2)]).fetchall() == [(1,)]
    assert con.sql("SELECT n FROM t ORDER BY n LIMIT ?", [1]).fetchall() == [(1,)]
    assert con.sql("SELECT $2, $1, $2", ["a", 2]).fetchone() == (2, "a", 2)
    assert con.sql("SELECT $b, $a, $b", {"a": "a", "b": 2}).fetchone() == (2, "a", 2)
    assert con.sql('SELECT \'$1\', "n" AS "?" FROM t WHERE n = $1', [1]).fetchall() == [("$1", 1)]


@pytest.mark.parametrize(
    "query, params, says",
    [
        ("SELECT $1", [], "takes 1 value, and 0 came"),
        ("SELECT $1", [1, 2], "takes 1 value, and 2 came"),
        ("SELECT 1", [1], "takes 0 values, and 1 came"),
        ("SELECT $1", None, "nothing is given for the parameter \\$1"),
        ("SELECT $a, $b", {"a": 1}, "nothing is given for the parameter \\$b"),
        ("SELECT $a", {"a": 1, "c": 2}, "no parameter 'c'"),
        ("SELECT $1", {"1": 1}, "names"),
        ("SELECT $1, ?", [1, 2], "by number, by \\? or by name"),
        ("SELECT $1; SELECT $1", [1], "one statement"),
        ("SELECT $0", [1], "is no parameter"),
    ],
)
def test_what_does_not_fit_is_said(con: onehop.Connection, query: str, params: Any, says: str) -> None:
    with pytest.raises(onehop.ProgrammingError, match=says):
        con.sql(query, params)


@pytest.mark.parametrize("params", ["text", b"bytes", 1, object(), {1, 2}])
def test_params_are_several(con: onehop.Connection, params: Any) -> None:
    with pytest.raises(TypeError, match="params"):
        con.sql("SELECT $1", params)
    with pytest.raises(TypeError, match="mapping"):
        con.sql("SELECT $name", [1])


def test_any_mapping_and_any_sequence(con: onehop.Connection) -> None:
    class Upper(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            return {"a": 1}[key]

        def __iter__(self) -> Any:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    assert con.sql("SELECT $a", Upper()).fetchone() == (1,)
    assert con.sql("SELECT ?, ?", range(2)).fetchone() == (0, 1)


def test_many_rows_at_once(con: onehop.Connection) -> None:
    con.sql("CREATE TABLE t (n BIGINT NOT NULL, s VARCHAR)")
    put = con.executemany("INSERT INTO t VALUES (?, ?)", ((n, str(n)) for n in range(500)))
    assert put.rowcount == 500 and con.sql("SELECT count(*), sum(n) FROM t").fetchone() == (500, 124750)
    with pytest.raises(onehop.DataError, match="number 2 of 3"):
        con.executemany("INSERT INTO t VALUES (?, ?)", [(1, "a"), (None, "b"), (3, "c")])
    assert not con.in_transaction and con.sql("SELECT count(*) FROM t").fetchone() == (500,)
    with pytest.raises(TypeError, match=r"\$2"):
        con.executemany("INSERT INTO t VALUES (?, ?)", [(1, object())])
    assert con.executemany("INSERT INTO t VALUES (?, ?)", []).rowcount == 0
    with pytest.raises(onehop.ProgrammingError, match="returns rows"):
        con.executemany("SELECT ?", [(1,)])
    con.sql("BEGIN")
    con.executemany("INSERT INTO t VALUES ($n, $s)", [{"n": 1, "s": "x"}])
    assert con.in_transaction
    con.sql("ROLLBACK")
    assert con.sql("SELECT count(*) FROM t").fetchone() == (500,)
