"""What can go wrong, by meaning.

One hierarchy serves both: it is PEP 249's, and below that each kind of the engine's has a class of its own. Whoever
sorts errors does so by class (or by ``kind``), never by text.
"""

from __future__ import annotations

import builtins


class Warning(Exception):  # noqa: A001 - PEP 249's name
    """PEP 249 wants it; nothing raises it."""


class Error(Exception):
    """Anything that Onehop raises on purpose."""

    kind: str = "interface"
    """The stable word for it: ``not_found``, ``data`` ..."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        """What went wrong."""
        self.hint = hint
        """What to do about it, where that is known."""

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}"


class InterfaceError(Error):
    """An object cannot do that as it is: it is closed, read to its end, or another process's."""


class DatabaseError(Error):
    """The database refused, or failed."""

    kind = "internal"


class ProgrammingError(DatabaseError):
    """The statement is wrong: it cannot be parsed, or makes no sense."""

    kind = "invalid"


class SyntaxError(ProgrammingError):  # noqa: A001
    """The SQL text cannot be parsed."""

    kind = "syntax"


class NotFoundError(ProgrammingError):
    """A table, column, function, setting or file that is not there."""

    kind = "not_found"


class AlreadyExistsError(ProgrammingError):
    """Something of that name is there already."""

    kind = "already_exists"


class NotSupportedError(DatabaseError):
    """PEP 249 wants it; what is not supported is a `ProgrammingError`, as any statement that cannot be done."""

    kind = "invalid"


class DataError(DatabaseError):
    """The data broke a rule while the statement ran: overflow, division by zero, a bad field."""

    kind = "data"


class IntegrityError(DatabaseError):
    """PEP 249 wants it; a NULL where none may be is a `DataError`."""

    kind = "data"


class CorruptError(DatabaseError):
    """Stored bytes do not match their checksum or their format."""

    kind = "corrupt"


class TooNewError(DatabaseError):
    """A newer version of Onehop has stored it in a way that this one does not know."""

    kind = "too_new"


class InternalError(DatabaseError):
    """A broken invariant of Onehop's."""

    kind = "internal"


class OperationalError(DatabaseError):
    """What surrounds the database did not go along."""

    kind = "io"


class IoError(OperationalError, OSError):
    """The operating system refused."""

    kind = "io"


class LockedError(OperationalError):
    """Another process has the database, or another connection the writer's place."""

    kind = "locked"


class ConflictError(OperationalError):
    """Another connection changed what a transaction would change, after it had begun: roll back and try again."""

    kind = "conflict"


class OutOfResourcesError(OperationalError, MemoryError):
    """A limit was reached: memory, disk."""

    kind = "resources"


class CancelledError(OperationalError):
    """The statement was cancelled."""

    kind = "cancelled"


class TimeoutError(OperationalError, builtins.TimeoutError):  # noqa: A001
    """The statement took longer than `statement_timeout`."""

    kind = "timeout"


class ReadOnlyError(OperationalError):
    """The database was opened read-only."""

    kind = "read_only"


class DeniedError(OperationalError):
    """The session may not do that."""

    kind = "denied"


class UnmetError(OperationalError):
    """A device was required, and there is none, or it cannot do this."""

    kind = "unmet"


class DeviceError(OperationalError):
    """Something went wrong with a device."""

    kind = "device"


_KINDS: dict[str, type[DatabaseError]] = {
    error.kind: error
    for error in (
        SyntaxError,
        NotFoundError,
        AlreadyExistsError,
        ProgrammingError,
        DataError,
        CorruptError,
        TooNewError,
        LockedError,
        ConflictError,
        IoError,
        OutOfResourcesError,
        CancelledError,
        TimeoutError,
        ReadOnlyError,
        DeniedError,
        UnmetError,
        DeviceError,
        InternalError,
    )
}


def of_kind(kind: str, message: str, hint: str | None) -> DatabaseError:
    """The exception for an error of the engine's."""
    return _KINDS.get(kind, DatabaseError)(message, hint)
