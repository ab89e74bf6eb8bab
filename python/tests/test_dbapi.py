"""PEP 249, beside sqlite3 where both say the same."""

from __future__ import annotations

import datetime
import decimal
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

import onehop
from onehop import dbapi


@pytest.fixture
def connection() -> Iterator[dbapi.Connection]:
    with dbapi.connect() as connection:
        yield connection


def test_the_module() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 2, "qmark")
    assert issubclass(dbapi.Warning, Exception) and issubclass(dbapi.Error, Exception)
    for error in (dbapi.InterfaceError, dbapi.DatabaseError):
        assert issubclass(error, dbapi.Error)
    for error in (
        dbapi.DataError,
        dbapi.OperationalError,
        dbapi.IntegrityError,
        dbapi.InternalError,
        dbapi.ProgrammingError,
        dbapi.NotSupportedError,
    ):
        assert issubclass(error, dbapi.DatabaseError)
    for name in ("Error", "Warning", "InterfaceError", "DatabaseError", "ProgrammingError"):
        assert getattr(dbapi.Connection, name) is getattr(dbapi, name)
    assert dbapi.Error is onehop.Error


def script(module: Any, connection: Any) -> list[Any]:
    """The same calls on either module; what they return."""
    seen: list[Any] = []
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE booze (name VARCHAR(20), n BIGINT)")
    cursor.execute("INSERT INTO booze VALUES (?, ?)", ("Victoria", 1))
    seen.append(cursor.rowcount)
    cursor.executemany("INSERT INTO booze VALUES (?, ?)", [("Redback", 2), ("Boag's", 3), (None, 4)])
    seen.append(cursor.rowcount)
    connection.commit()
    cursor.execute("SELECT name, n FROM booze ORDER BY n")
    seen += [[column[0] for column in cursor.description], cursor.rowcount]
    seen += [cursor.fetchone(), cursor.fetchmany(2), cursor.fetchall(), cursor.fetchone(), cursor.fetchall()]
    cursor.execute("DELETE FROM booze WHERE n > ?", (2,))
    seen.append(cursor.rowcount)
    connection.rollback()
    cursor.execute("SELECT count(*) FROM booze")
    seen.append(cursor.fetchall())
    cursor.execute("UPDATE booze SET n = n + 1")
    connection.commit()
    cursor.arraysize = 3
    cursor.execute("SELECT n FROM booze ORDER BY n")
    seen.append(cursor.fetchmany())
    seen.append(list(cursor))
    with pytest.raises(module.Error):
        cursor.execute("SELECT * FROM nothing")
    cursor.close()
    with pytest.raises(module.Error):
        cursor.execute("SELECT 1")
    connection.close()
    with pytest.raises(module.Error):
        connection.cursor()
    return seen


def test_as_sqlite_does() -> None:
    assert script(dbapi, dbapi.connect()) == script(sqlite3, sqlite3.connect(":memory:"))


def test_descriptions(connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    assert cursor.description is None and cursor.rowcount == -1
    cursor.execute(
        "SELECT 1 AS n, 'a' AS s, 1.50 AS d, TIMESTAMP '2024-01-01 00:00:00' AS at, X'00' AS b, DATE '2024-01-01' AS d"
    )
    assert cursor.description is not None
    kinds = [column[1] for column in cursor.description]
    assert kinds == [dbapi.NUMBER, dbapi.STRING, dbapi.NUMBER, dbapi.DATETIME, dbapi.BINARY, dbapi.DATETIME]
    assert (
        kinds[0] != dbapi.STRING and kinds[1] != dbapi.NUMBER and all(len(column) == 7 for column in cursor.description)
    )
    assert cursor.description[2][4:6] == (3, 2)
    cursor.execute("SELECT CAST('10:00' AS TIME) AS t, INTERVAL '1 day' AS i, now() AS n")
    assert cursor.description is not None and all(column[1] == dbapi.DATETIME for column in cursor.description)
    cursor.execute("CREATE TABLE t (n BIGINT)")
    assert cursor.description is None
    with pytest.raises(dbapi.Error):
        cursor.fetchall()
    with pytest.raises(dbapi.Error):
        connection.cursor().fetchone()


def test_values_of_the_modules_constructors(connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    given = (dbapi.Date(2024, 2, 29), dbapi.Time(1, 2, 3), dbapi.Timestamp(2024, 2, 29, 1, 2, 3), dbapi.Binary(b"\x00"))
    assert cursor.execute("SELECT ?, ?, ?, ?", given).fetchone() == given
    assert isinstance(dbapi.DateFromTicks(0), datetime.date) and isinstance(dbapi.TimeFromTicks(0), datetime.time)
    assert isinstance(dbapi.TimestampFromTicks(0), datetime.datetime)
    assert cursor.execute("SELECT 0.1").fetchone() == (decimal.Decimal("0.1"),)


def test_transactions() -> None:
    with onehop.connect() as session:
        connection = dbapi.Connection(session.cursor(), autocommit=False)
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE t (n BIGINT)")
        cursor.execute("-- a comment\n/* another */ insert INTO t VALUES (1)")
        count = "SELECT count(*) FROM t"
        assert session.sql(count).fetchone() == (0,) and cursor.execute(count).fetchone() == (1,)
        with pytest.raises(dbapi.ProgrammingError, match="transaction"):
            cursor.execute("CHECKPOINT")
        connection.rollback()
        cursor.execute("INSERT INTO t VALUES (1)")
        connection.commit()
        connection.commit()
        assert session.sql(count).fetchone() == (1,)
        connection.autocommit = True
        cursor.execute("INSERT INTO t VALUES (2)")
        assert session.sql(count).fetchone() == (2,)
        connection.autocommit = False
        cursor.execute("INSERT INTO t VALUES (3)")
        connection.close()
        connection.close()
        assert session.sql(count).fetchone() == (2,)
        with pytest.raises(RuntimeError):
            with dbapi.Connection(session.cursor(), autocommit=False) as other:
                other.cursor().execute("INSERT INTO t VALUES (4)")
                raise RuntimeError
        assert session.sql(count).fetchone() == (2,)
        with dbapi.Connection(session.cursor(), autocommit=False) as other:
            other.cursor().execute("INSERT INTO t VALUES (4)")
        assert session.sql(count).fetchone() == (3,)


def test_parameters_of_no_parameters(connection: dbapi.Connection) -> None:
    assert connection.cursor().execute("SELECT 1", ()).fetchone() == (1,)
    assert connection.cursor().execute("SELECT $a", {"a": 2}).fetchone() == (2,)


def test_pandas_reads_from_it(connection: dbapi.Connection) -> None:
    import pandas

    with pytest.warns(UserWarning):
        frame = pandas.read_sql("SELECT 1 AS n", connection)
    assert frame["n"].tolist() == [1]
