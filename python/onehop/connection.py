"""Connections: a session on a database each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from onehop import _onehop
from onehop.arrays import Arrays, Table
from onehop.progress import Automatic, Progress
from onehop.result import Ledger, Result
from onehop.tables import arrow_of, arrow_tables

Params = Sequence[Any] | Mapping[str, Any]
"""Values of parameters: a sequence for ``?`` or ``$1``, a mapping for ``$name``."""

MEMORY = ":memory:"


def connect(
    path: str | os.PathLike[str] = MEMORY,
    read_only: bool = False,
    config: Mapping[str, str | int | float | bool] | None = None,
    segments: str | None = None,
    progress: Progress | bool | None = None,
) -> Connection:
    """Opens the database directory at `path`, which is made if it is not there, or one that lives in memory.

    A directory that is open for writing is its process's alone, where each connection is a session of its own on the same
    database; `read_only`, any number of processes may have it.
    `config` has settings by their SQL names, such as ``{"memory_limit": "4GiB", "threads": 8}``. `segments` has a new
    database keep its segments on a Ceph cluster, ``rados://POOL[.NAMESPACE]/PATH``, which it remembers.

    Statements that take longer than two seconds show how far they are, on a terminal and in a notebook, while a call
    waits for them: with `progress` False nowhere, with True on standard error whatever that is, or else with a
    `onehop.progress.Progress` of your own.
    """
    settings = [(name, _setting(value)) for name, value in (config or {}).items()]
    where = None if path == MEMORY else os.fspath(path)
    return Connection(_onehop.Connection(where, read_only, settings, segments, _shower(progress)))


def _shower(progress: Progress | bool | None) -> Progress | None:
    if progress is False:
        return None
    if progress is None or progress is True:
        return Automatic(always=progress is True)
    if not (callable(getattr(progress, "update", None)) and callable(getattr(progress, "close", None))):
        raise TypeError(f"progress is True, False, None, or has update() and close(), and {progress!r} has not")
    return progress


def _setting(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class Connection:
    """A session on a database: `onehop.connect` opens one, and `cursor` another on the same database.

    Any thread may use it; statements of one connection run one after the other, those of two side by side. It is a
    context manager, which closes it. After a fork, the child connects anew.
    """

    def __init__(self, native: _onehop.Connection) -> None:
        self._native = native

    def sql(self, query: str, params: Params | None = None, tables: Mapping[str, Any] | None = None) -> Result:
        """Runs SQL: one statement or a script, all of which is run; the result is the last statement's.

        `params` are values for the parameters of one statement: a sequence for ``?`` or ``$1``, ``$2`` ..., a mapping
        for ``$name``. `tables` are tables for this call, by name: see `register`.

        Returns when the first rows can be read. A script that fails has done what came before.
        """
        return Result(self._native.sql(query, params, arrow_tables(tables)))

    def execute(self, query: str, params: Params | None = None, tables: Mapping[str, Any] | None = None) -> Result:
        """The same as `sql`."""
        return self.sql(query, params, tables)

    def executemany(self, query: str, rows: Iterable[Params]) -> Result:
        """Runs a statement that returns no rows once for each of these values, all or none of it.

        The result's `rowcount` counts for all. To store many rows, `register` them and INSERT from there.
        """
        return Result(self._native.execute_many(query, rows))

    def explain(self, query: str, analyze: bool = False) -> str:
        """What a query would do, as text; with `analyze` it is run, and it is what it did."""
        return self._native.explain(query, analyze)

    def ledger(self) -> Ledger:
        """The bytes that the last statement has moved so far: see `Result.ledger`."""
        return self._native.ledger()

    def register(self, name: str, rows: object) -> None:
        """Makes `rows` a table of this connection, by reference: nothing is copied that Arrow lays out in the same way.

        `rows` is a table of PyArrow, pandas or Polars, or anything else with ``__arrow_c_stream__`` or
        ``__arrow_c_array__``; a series; a data set of PyArrow's, which each statement reads anew; an array of NumPy's,
        whose column is ``column0``, or a dict of arrays. An index of pandas is no column: ``reset_index()`` makes one of
        it. What has no length, such as a ``RecordBatchReader``, is read as statements want its rows, and once.

        The name is as in quotes: statements that do not quote it have it in small letters. It must not be a table's.
        """
        self._native.register(name, arrow_of(name, rows))

    def unregister(self, name: str) -> None:
        """Takes away what was registered under this name. Results that are being read keep it."""
        self._native.unregister(name)

    def table(self, name: str) -> Table:
        """A table, or a view, whose columns are asked for as arrays. The name is as in quotes."""
        return Table(self._native, name)

    def ipc_import(self, handle: str, columns: Sequence[str] = ()) -> Arrays:
        """Columns that a connection of another process has exported: see `onehop.ipc_import`."""
        return Arrays(self._native.import_arrays(handle, list(columns)))

    def cursor(self) -> Connection:
        """Another connection to the same database, with settings, a transaction and registered tables of its own."""
        return Connection(self._native.cursor())

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was begun and has not ended."""
        return self._native.in_transaction()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.is_closed()

    def close(self) -> None:
        """Closes it, as often as you like.

        Results that are not read yet end; arrays of those that are stay as they are.
        """
        self._native.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<onehop.Connection{' (closed)' if self.closed else ''}>"
