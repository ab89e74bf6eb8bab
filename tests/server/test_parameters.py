"""Values that a driver sends with their types, and statements that are kept, beside PostgreSQL."""

import datetime
from decimal import Decimal

import psycopg
import pytest

NUMBERS = [
    ("SELECT 10 - %s", ["1.5"]),
    ("SELECT %s - 10", ["1.5"]),
    ("SELECT sum(q * %s) FROM (VALUES (10), (3)) t(q)", ["1.19"]),
    ("SELECT %s > 2, %s < 2", ["2.5", "2.5"]),
    ("SELECT %s %% 2", ["12.345"]),
    ("SELECT coalesce(NULL::int, %s)", ["1.5"]),
    ("SELECT x FROM (VALUES (%s), (1)) v(x)", ["1.5"]),
    ("SELECT p + %s FROM (VALUES (5::numeric(10,2))) t(p)", ["0.755"]),
    ("SELECT greatest(%s, 1), least(%s, 7)", ["1.25", "1.25"]),
    ("SELECT CASE WHEN q > 5 THEN %s ELSE q END FROM (VALUES (10), (3)) t(q)", ["2.75"]),
    ("SELECT %s UNION ALL SELECT 7", ["2.5"]),
    ("SELECT sum(%s), round(%s, 1), abs(%s), -%s, %s + %s", ["1.5", "1.26", "-2.5", "3.5", "1.5", "2.25"]),
    ("SELECT q FROM (VALUES (1), (2)) t(q) WHERE q > %s", ["1.5"]),
    ("SELECT q FROM (VALUES (1), (2)) t(q) WHERE q = %s", ["2"]),
]


@pytest.fixture(name="both")
def connections(postgres, server):
    postgres.renew()
    theirs, ours = (psycopg.connect(f"host=127.0.0.1 port={port} user=ada dbname=test", autocommit=True) for port in (postgres.port, server.port))
    with theirs, ours:
        yield theirs, ours


def rows(connection, text, values, binary):
    cursor = connection.cursor(binary=binary)
    return sorted(cursor.execute(text, values).fetchall())


@pytest.mark.parametrize("binary", [False, True])
def test_decimals_keep_their_digits(both, binary):
    for text, numbers in NUMBERS:
        values = [Decimal(number) for number in numbers]
        theirs, ours = (rows(connection, text, values, binary) for connection in both)
        assert ours == theirs, text


def test_a_whole_decimal_is_divided_as_one(both):
    # A quotient of decimals is a double here.
    assert float(both[1].execute("SELECT %s / 2", [Decimal("3")]).fetchone()[0]) == 1.5


def test_intervals_and_lists_of_anything(both):
    for text, values in [
        ("SELECT %s", [datetime.timedelta(days=1, hours=3)]),
        ("SELECT timestamp '2026-01-01' + %s", [datetime.timedelta(days=-2, microseconds=5)]),
        ("SELECT %s < interval '1 day'", [datetime.timedelta(hours=25)]),
        ("SELECT unnest(%s)", [[datetime.date(2024, 2, 29), datetime.date(1999, 1, 1)]]),
        ("SELECT unnest(%s)", [[True, False]]),
        ("SELECT unnest(%s) > 1.75", [[Decimal("1.5"), Decimal("2.0")]]),
    ]:
        for binary in (False, True):
            theirs, ours = (rows(connection, text, values, binary) for connection in both)
            assert ours == theirs, text


def test_what_was_announced_is_what_comes_or_an_error(server):
    connect = lambda: psycopg.connect(f"host=127.0.0.1 port={server.port} user=ada dbname=test", autocommit=True)
    changes = [
        ("(item text, amount int)", "('x', 1)", "(item text, amount decimal(10,2))", "('x', 1.75)"),
        ("(a int, b int)", "(1, 2)", "(b int, a int)", "(2, 1)"),
        ("(a int)", "(1)", "(a int, b int)", "(1, 2)"),
        ("(a date)", "('2024-02-29')", "(a timestamp)", "('2024-02-29 12:00:00')"),
    ]
    for before, row, after, other in changes:
        with connect() as one, connect() as two:
            two.execute(f"DROP TABLE IF EXISTS announced; CREATE TABLE announced {before}; INSERT INTO announced VALUES {row}")
            for _ in range(7):
                one.execute("SELECT * FROM announced").fetchall()
            two.execute(f"DROP TABLE announced; CREATE TABLE announced {after}; INSERT INTO announced VALUES {other}")
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                one.execute("SELECT * FROM announced").fetchall()
            assert one.execute("SELECT 1").fetchone() == (1,)
            two.execute("DROP TABLE announced")
