"""PEP 249, the Python Database API 2.0, on `onehop.Connection`.

- Parameters are ``?`` (`paramstyle`), or ``$1``, or ``$name`` with a mapping.
- As PEP 249 wants, a connection does not commit by itself: a transaction begins before the first statement that changes
  rows (``INSERT``, ``UPDATE``, ``DELETE``, ``COPY``, ``TRUNCATE``) and ends with `Connection.commit` or
  `Connection.rollback`; closing rolls back. Statements that change the catalog (``CREATE``, ``DROP`` ...) begin none,
  and commit by themselves unless there is one. With ``autocommit=True`` every statement is committed when it has
  run.
- A statement that fails in a transaction fails the transaction: nothing but `rollback` is left to do.
- Threads may share the module and connections (`threadsafety` 2): their statements run one after the other.
- The exceptions are `onehop.errors`'.
"""

from __future__ import annotations

import datetime
import os
import re
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import onehop
from onehop import connection as _connection
from onehop.connection import Params
from onehop.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)
from onehop.result import Result

__all__ = [
    "BINARY",
    "Binary",
    "Connection",
    "Cursor",
    "DATETIME",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NUMBER",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "ROWID",
    "STRING",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:
    """The local date of a POSIX timestamp."""
    return datetime.date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:
    """The local time of a POSIX timestamp."""
    return datetime.time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:
    """The local date and time of a POSIX timestamp."""
    return datetime.datetime(*time.localtime(ticks)[:6])


class _Kind:
    """A kind of types: equal to the SQL name of each type that is of it."""

    def __init__(self, *beginnings: str) -> None:
        self._beginnings = beginnings

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, str) and other.startswith(self._beginnings))

    __hash__ = object.__hash__


STRING = _Kind("VARCHAR", "Utf8", "LargeUtf8")
BINARY = _Kind("BYTEA")
NUMBER = _Kind("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "REAL", "DOUBLE", "DECIMAL", "Decimal", "Float16")
DATETIME = _Kind("DATE", "TIME", "INTERVAL", "Date64")
ROWID = _Kind("ROWID")

_CHANGES = {"INSERT", "UPDATE", "DELETE", "COPY", "TRUNCATE"}


def connect(
    path: str | os.PathLike[str] = _connection.MEMORY,
    read_only: bool = False,
    config: Mapping[str, str | int | float | bool] | None = None,
    *,
    autocommit: bool = False,
) -> Connection:
    """Opens a database as `onehop.connect` does."""
    return Connection(onehop.connect(path, read_only, config), autocommit)


class Connection:
    """A connection of PEP 249. Its cursors share its transaction."""

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, session: onehop.Connection, autocommit: bool) -> None:
        self._session = session
        self._autocommit = autocommit

    @property
    def session(self) -> onehop.Connection:
        """The connection below it, with all that PEP 249 does not know."""
        return self._session

    @property
    def autocommit(self) -> bool:
        """Whether statements are committed by themselves. Setting it commits."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        self.commit()
        self._autocommit = value

    def cursor(self) -> Cursor:
        """A cursor of this connection."""
        if self._session.closed:
            raise InterfaceError("the connection is closed", "connect() opens another")
        return Cursor(self)

    def commit(self) -> None:
        """Makes what was changed durable."""
        if self._session.in_transaction:
            self._session.sql("COMMIT")

    def rollback(self) -> None:
        """Takes back what was changed."""
        if self._session.in_transaction:
            self._session.sql("ROLLBACK")

    def close(self) -> None:
        """Rolls back and closes."""
        if not self._session.closed:
            self.rollback()
            self._session.close()

    def _begin(self, query: str) -> None:
        """Begins a transaction if the statement is to be in one and none was begun."""
        if not self._autocommit and _first_word(query) in _CHANGES and not self._session.in_transaction:
            self._session.sql("BEGIN")

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commits, or rolls back if there was an exception; and closes."""
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()


class Cursor:
    """A cursor of PEP 249: one result at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._result: Result | None = None
        self._closed = False
        self.arraysize = 1
        """How many rows `fetchmany` fetches unless it is told."""

    @property
    def connection(self) -> Connection:
        """The connection that it is of."""
        return self._connection

    @property
    def description(self) -> list[tuple[str, str, None, None, int | None, int | None, bool | None]] | None:
        """Of each column: name, SQL type (to be compared with `STRING`, `NUMBER` ...), and what PEP 249 has besides."""
        if self._result is None or self._result.statement is not None:
            return None
        return [
            (name, type_, None, None, *_digits(type_), None)
            for name, type_ in zip(self._result.columns, self._result.types)
        ]

    @property
    def rowcount(self) -> int:
        """Rows that the last statement wrote or removed; -1 where that is not known."""
        return -1 if self._result is None else self._result.rowcount

    def execute(self, operation: str, parameters: Params | None = None) -> Cursor:
        """Runs a statement; rows of the one before are dropped."""
        self._drop_result()
        self._connection._begin(operation)
        self._result = self._connection.session.sql(operation, parameters or None)
        return self

    def executemany(self, operation: str, seq_of_parameters: Any) -> Cursor:
        """Runs a statement that returns no rows with each of these parameters."""
        self._drop_result()
        self._connection._begin(operation)
        self._result = self._connection.session.executemany(operation, seq_of_parameters)
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; `None` after the last."""
        return self._rows().fetchone()

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next `size` rows, or `arraysize`."""
        return self._rows().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        return self._rows().fetchall()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def setinputsizes(self, sizes: object) -> None:
        """Does nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing, as PEP 249 allows."""

    def close(self) -> None:
        """Drops the result; nothing can be done with the cursor afterwards."""
        if self._result is not None:
            self._result.close()
        self._result, self._closed = None, True

    def __enter__(self) -> Cursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _drop_result(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed", "connection.cursor() makes another")
        if self._result is not None:
            self._result.close()
        self._result = None

    def _rows(self) -> Result:
        if self._closed:
            raise InterfaceError("the cursor is closed", "connection.cursor() makes another")
        if self._result is None:
            raise InterfaceError("nothing has been executed", "execute() a query first")
        if self._result.statement is not None:
            # PEP 249 has fetches fail where there is no result set.
            raise InterfaceError(f"{self._result.statement} returns no rows", "rowcount says what it did")
        return self._result


def _first_word(query: str) -> str:
    """The word that a statement begins with, behind its comments."""
    begin = re.match(r"(\s|--[^\n]*|/\*.*?\*/)*(\w*)", query, re.DOTALL)
    return begin[2].upper() if begin else ""


def _digits(type_: str) -> tuple[int | None, int | None]:
    """Precision and scale of a decimal."""
    if not type_.startswith("DECIMAL("):
        return None, None
    precision, _, scale = type_[len("DECIMAL(") : -1].partition(",")
    return int(precision), int(scale)
