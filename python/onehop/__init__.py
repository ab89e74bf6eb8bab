"""Onehop: an analytical SQL engine in the process, and the bytes that it moves, counted.

>>> import onehop
>>> onehop.sql("SELECT 6 * 7 AS answer").fetchone()
(42,)

`connect` opens a database; `sql` asks one in memory that is always there. A `Result` streams to pandas, Polars, NumPy,
PyArrow, or whatever takes Arrow; what lies in memory in their formats is a table, without a copy.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from onehop import _onehop, errors, progress
from onehop._onehop import Array
from onehop.arrays import Arrays, Table
from onehop.connection import Connection, Params, connect
from onehop.errors import (
    AlreadyExistsError,
    CancelledError,
    ConflictError,
    CorruptError,
    DatabaseError,
    DataError,
    DeniedError,
    DeviceError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    IoError,
    LockedError,
    NotFoundError,
    NotSupportedError,
    OperationalError,
    OutOfResourcesError,
    ProgrammingError,
    ReadOnlyError,
    TooNewError,
    UnmetError,
)
from onehop.interval import Interval
from onehop.result import Result

__version__ = "0.1.0"

__all__ = [
    "AlreadyExistsError",
    "Array",
    "Arrays",
    "CancelledError",
    "ConflictError",
    "Connection",
    "CorruptError",
    "DataError",
    "DatabaseError",
    "DeniedError",
    "DeviceError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "Interval",
    "IoError",
    "LockedError",
    "NotFoundError",
    "NotSupportedError",
    "OperationalError",
    "OutOfResourcesError",
    "Params",
    "ProgrammingError",
    "ReadOnlyError",
    "Result",
    "Table",
    "TooNewError",
    "UnmetError",
    "connect",
    "default_connection",
    "errors",
    "execute",
    "ipc_import",
    "progress",
    "sql",
]

_lock = threading.Lock()
_default: tuple[int, Connection] | None = None


# Before the interpreter goes, what runs in the engine's threads.
atexit.register(_onehop.finish)


def _forked() -> None:
    # A thread that does not live on in the child may have had it.
    global _lock
    _lock = threading.Lock()
    _onehop.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def default_connection() -> Connection:
    """The connection of `onehop.sql`: to a database in memory, one for each process. If it was closed, to a new one."""
    global _default
    with _lock:
        process = os.getpid()
        if _default is None or _default[0] != process or _default[1].closed:
            _default = (process, connect())
        return _default[1]


def sql(query: str, params: Params | None = None, tables: Mapping[str, Any] | None = None) -> Result:
    """Runs SQL in a database in memory, which is the same throughout the process: see `Connection.sql`."""
    return default_connection().sql(query, params, tables)


def execute(query: str, params: Params | None = None, tables: Mapping[str, Any] | None = None) -> Result:
    """The same as `sql`."""
    return default_connection().sql(query, params, tables)


def ipc_import(handle: str, columns: Sequence[str] = ()) -> Arrays:
    """Columns of a table that another process has exported with ``SELECT onehop_export('table')``, where they are.

    On a GPU they are its memory, by CUDA's IPC; in host memory a file in shared memory that is only read. They stay for
    as long as anybody has them. A handle that is stale is a `NotFoundError`, one that was made up a `DeniedError`, a text
    that is none a `ProgrammingError`.
    """
    return default_connection().ipc_import(handle, columns)
