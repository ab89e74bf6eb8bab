"""Exceptions by meaning; connections that are closed; databases that cannot be had."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

import onehop
from onehop import errors


@pytest.mark.parametrize(
    "query, error, kind",
    [
        ("SELEC 1", errors.SyntaxError, "syntax"),
        ("SELECT * FROM nothing", errors.NotFoundError, "not_found"),
        ("SELECT nothing FROM t", errors.NotFoundError, "not_found"),
        ("SELECT * FROM 'nothing.csv'", errors.NotFoundError, "not_found"),
        ("SET nothing = 1", errors.NotFoundError, "not_found"),
        ("CREATE TABLE t (n BIGINT)", errors.AlreadyExistsError, "already_exists"),
        ("SELECT 1 + 'x'", errors.DatabaseError, None),
        ("SELECT 1 / (n - n) FROM t", errors.DataError, "data"),
        ("INSERT INTO t VALUES (NULL)", errors.DataError, "data"),
        ("BEGIN; CHECKPOINT", errors.ProgrammingError, "invalid"),
    ],
)
def test_kinds_have_classes(con: onehop.Connection, query: str, error: type[errors.Error], kind: str | None) -> None:
    con.sql("CREATE TABLE t (n BIGINT NOT NULL); INSERT INTO t VALUES (1)")
    with pytest.raises(error) as raised:
        con.sql(query).fetchall()
    assert isinstance(raised.value, onehop.Error) and (kind is None or raised.value.kind == kind)
    assert raised.value.message and raised.value.message in str(raised.value)
    con.sql("ROLLBACK")
    assert con.sql("SELECT n FROM t").fetchall() == [(1,)]


def test_hints_say_what_to_do(con: onehop.Connection) -> None:
    con.sql("CREATE TABLE lineorder (n BIGINT)")
    with pytest.raises(onehop.NotFoundError) as raised:
        con.sql("SELECT * FROM lineordr")
    assert raised.value.hint == 'did you mean "lineorder"?' and str(raised.value).endswith(
        'hint: did you mean "lineorder"?'
    )


def test_classes_are_what_python_takes_them_for() -> None:
    assert issubclass(errors.IoError, OSError) and issubclass(errors.OutOfResourcesError, MemoryError)
    assert issubclass(errors.TimeoutError, builtins.TimeoutError) and issubclass(
        errors.TimeoutError, errors.OperationalError
    )
    assert not issubclass(errors.SyntaxError, builtins.SyntaxError)


def test_a_limit_of_time(con: onehop.Connection) -> None:
    con.sql("SET statement_timeout = '100ms'")
    with pytest.raises(errors.TimeoutError):
        con.sql("SELECT count(*) FROM generate_series(1, 100000000000)").fetchall()
    con.sql("RESET statement_timeout")
    assert con.sql("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "use",
    [
        lambda con: con.sql("SELECT 1"),
        lambda con: con.execute("SELECT 1"),
        lambda con: con.executemany("SELECT ?", [(1,)]),
        lambda con: con.explain("SELECT 1"),
        lambda con: con.register("t", None),
        lambda con: con.unregister("t"),
        lambda con: con.cursor(),
        lambda con: con.ledger(),
        lambda con: con.in_transaction,
    ],
)
def test_closed_connections_say_so(use: Any) -> None:
    con = onehop.connect()
    con.close()
    con.close()
    assert con.closed and "closed" in repr(con)
    with pytest.raises((onehop.InterfaceError, TypeError)):
        use(con)


def test_the_context_closes() -> None:
    with onehop.connect() as con:
        assert not con.closed
    assert con.closed


@pytest.mark.parametrize("query", [None, 1, b"SELECT 1"])
def test_queries_are_text(con: onehop.Connection, query: Any) -> None:
    with pytest.raises(TypeError):
        con.sql(query)
    with pytest.raises(ValueError):
        con.sql("SELECT '\ud800'")


@pytest.mark.parametrize(
    "config, error",
    [
        ({"nothing": 1}, errors.NotFoundError),
        ({"threads": 0}, errors.ProgrammingError),
        ({"threads": "many"}, errors.ProgrammingError),
        ({"memory_limit": "lots"}, errors.ProgrammingError),
    ],
)
def test_settings_are_checked(config: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        onehop.connect(config=config)


def test_settings_are_the_connections() -> None:
    with onehop.connect(config={"threads": 1, "memory_limit": "1GiB"}) as con:
        assert con.sql("SHOW threads").arrow()["value"].to_pylist() == ["1"]


def test_databases_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with onehop.connect(path) as con:
        con.sql("CREATE TABLE t AS SELECT 1 AS n")
        with pytest.raises(errors.LockedError, match=r"open in this process already[^$]*cursor\(\)"):
            onehop.connect(path, read_only=True)
        with onehop.connect(str(path), config={"threads": 1}) as same:
            assert same.sql("SELECT n FROM t").fetchone() == (1,)
            assert same.sql("SHOW threads").arrow()["value"].to_pylist() == ["1"]
            same.sql("INSERT INTO t VALUES (2)")
            con.sql("DELETE FROM t WHERE n = 2")
        other = con.cursor()
    assert other.sql("SELECT n FROM t").fetchone() == (1,)
    other.close()
    with onehop.connect(str(path), read_only=True) as con, onehop.connect(path, read_only=True) as second:
        assert con.sql("SELECT n FROM t").fetchone() == second.sql("SELECT n FROM t").fetchone() == (1,)
        with pytest.raises(errors.ReadOnlyError):
            con.sql("INSERT INTO t VALUES (2)")
    with pytest.raises(errors.NotFoundError):
        onehop.connect(tmp_path / "nothing", read_only=True)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(onehop.Error):
        onehop.connect(file)


def test_connections_of_a_process_share_a_database(tmp_path: Path) -> None:
    import threading

    made: list[onehop.Connection] = []
    threads = [threading.Thread(target=lambda: made.append(onehop.connect(tmp_path / "db"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    made[0].sql("CREATE TABLE t AS SELECT 1 AS n")
    assert all(con.sql("SELECT n FROM t").fetchone() == (1,) for con in made)
    made[0].sql("BEGIN")
    assert made[0].in_transaction and not made[1].in_transaction
    for con in made:
        con.close()
    # Nobody has it any more: it can be opened in another way.
    with onehop.connect(tmp_path / "db", read_only=True) as con:
        assert con.sql("SELECT n FROM t").fetchone() == (1,)


def test_memory_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (":memory:", Path(":memory:")):
        with onehop.connect(path) as con, onehop.connect(path) as other:
            con.sql("CREATE TABLE t AS SELECT 1 AS n")
            with pytest.raises(errors.NotFoundError):
                other.sql("SELECT n FROM t")
        with pytest.raises(errors.ProgrammingError, match="in memory"):
            onehop.connect(path, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_closing_lets_go_of_the_database(tmp_path: Path) -> None:
    for _ in range(5):
        con = onehop.connect(tmp_path / "db")
        con.sql("CREATE TABLE IF NOT EXISTS t (n BIGINT)")
        con.sql("INSERT INTO t VALUES (1)")
        half = con.sql("SELECT value FROM generate_series(1, 10000000)")
        half.fetchone()
        con.close()
        assert half.columns == ["value"]
    with onehop.connect(tmp_path / "db") as con:
        assert con.sql("SELECT count(*) FROM t").fetchone() == (5,)


def test_the_default_connection() -> None:
    onehop.sql("CREATE TABLE mine AS SELECT 1 AS n")
    assert onehop.execute("SELECT n FROM mine").fetchone() == (1,)
    onehop.default_connection().close()
    with pytest.raises(errors.NotFoundError):
        onehop.sql("SELECT n FROM mine")
