"""What can be a table: rows of other libraries, brought into Arrow.

Whatever has ``__arrow_c_stream__`` or ``__arrow_c_array__`` is handed on as it is. The rest of this says what else is a
table, and what of an object is none of its columns:

- An index of pandas is no column, whatever it is; ``reset_index()`` makes columns of it.
- A column whose values Arrow has no type for is refused. None becomes another value.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onehop.arrays import module

UNNAMED = "value"
"""The column of a series that has no name."""


class Source:
    """Rows that can be asked for any number of times, and are streamed each time."""

    def __init__(self, schema: object, stream: Callable[[], object]) -> None:
        self._schema = schema
        self._stream = stream

    def _onehop_schema(self) -> object:
        return self._schema

    def _onehop_open(self) -> object:
        return self._stream()


def arrow_of(name: str, rows: Any) -> object:
    """An object with Arrow's C stream, or a `Source`: the rows of `rows`, which is to be the table `name`.

    What is no table is handed back: the engine says so.
    """
    try:
        return _arrow_of(rows)
    except _Refused as refused:
        raise TypeError(f'"{name}" cannot be a table: {refused}') from refused.__cause__


def arrow_tables(tables: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The same of all tables of a call."""
    return None if tables is None else {name: arrow_of(name, rows) for name, rows in tables.items()}


class _Refused(Exception):
    """Why something is no table."""


def _arrow_of(rows: Any) -> object:
    # What was not imported has made no object.
    if _is(rows, "pandas", "DataFrame"):
        return _of_pandas(rows) if _streams_as(rows, "DataFrame") else rows.reset_index(drop=True)
    if _is(rows, "pandas", "Series"):
        return _of_pandas(rows.to_frame(UNNAMED if rows.name is None else rows.name))
    if _is(rows, "pandas", "Index"):
        return _of_pandas(rows.to_frame(index=False, name=UNNAMED if rows.name is None else rows.name))
    if _is(rows, "polars", "LazyFrame"):
        return _of_polars(rows.collect())
    if _is(rows, "polars", "Series"):
        return _of_polars((rows if rows.name else rows.alias(UNNAMED)).to_frame())
    if _is(rows, "polars", "DataFrame"):
        return _of_polars(rows)
    if _is(rows, "pyarrow.dataset", "Dataset"):
        return Source(rows.schema, lambda: rows.scanner().to_reader())
    if _is(rows, "pyarrow.dataset", "Scanner"):
        return Source(rows.projected_schema, lambda: rows.to_reader())
    if _is(rows, "numpy", "ndarray"):
        return _of_array(rows)
    if isinstance(rows, dict):
        return _of_columns(rows)
    if isinstance(rows, (list, tuple)) and rows and all(_is(column, "numpy", "ndarray") for column in rows):
        return _of_columns({f"column{at}": column for at, column in enumerate(rows)})
    return rows


def _is(rows: object, name: str, kind: str) -> bool:
    imported = sys.modules.get(name)
    known = getattr(imported, kind, None)
    return isinstance(known, type) and isinstance(rows, known)


def _streams_as(rows: object, kind: str) -> bool:
    """Whether the class of a frame has the stream of pandas' own, and none for columns that it adds."""
    streams = [getattr(known, "__arrow_c_stream__", None) for known in (type(rows), getattr(sys.modules["pandas"], kind))]
    return streams[0] is streams[1]


def _of_pandas(frame: Any) -> object:
    """The columns of a frame, under their names as texts."""
    arrow = module("pyarrow")
    names = [str(name) for name in frame.columns]
    _refuse_twice(names)
    schema, columns = [], []
    for at, name in enumerate(names):
        column = frame.iloc[:, at]
        array = _column_of_pandas(arrow, name, column)
        columns.append(array)
        schema.append(arrow.field(name, array.type))
    if not columns:
        return frame.reset_index(drop=True)
    return arrow.table(columns, schema=arrow.schema(schema))


def _column_of_pandas(arrow: Any, name: str, column: Any) -> Any:
    if isinstance(column.dtype, sys.modules["pandas"].SparseDtype):
        column = column.sparse.to_dense()
    is_object = column.dtype == object
    try:
        # It takes NaN for NULL, as pandas does.
        made = arrow.Array.from_pandas(column)
        return _of_objects(arrow, made, column) if is_object else made
    except _Refused as refused:
        raise _Refused(f'column "{name}" {refused}') from None
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        maps = _maps(arrow, column) if is_object else None
        if maps is not None:
            return maps
        raise _Refused(f'column "{name}": {" ".join(str(part) for part in error.args)}') from error


def _of_objects(arrow: Any, made: Any, values: Any) -> Any:
    """What Arrow makes of objects, unless that has other values.

    Arrow goes by the first of them. Where that is a date, or has microseconds, or no time zone, it cuts others to that.
    """
    kind = made.type
    if not _is_made_of(arrow, kind, lambda kind: arrow.types.is_temporal(kind) or arrow.types.is_binary(kind)):
        return made
    leaves = list(_leaves(values))
    if any(isinstance(value, bytes) for value in leaves) and any(isinstance(value, str) for value in leaves):
        if not arrow.types.is_struct(kind):
            raise _Refused("has texts and bytes")
    moments = [value for value in leaves if isinstance(value, (datetime.datetime, datetime.time))]
    zoned = sum(value.tzinfo is not None for value in moments)
    if any(isinstance(value, datetime.time) and value.tzinfo is not None for value in moments):
        raise _Refused("has times with a time zone, which have no SQL type")
    if not arrow.types.is_struct(kind):
        if 0 < zoned < len(moments):
            raise _Refused("has times with a time zone, and others without")
        if 0 < sum(isinstance(value, datetime.datetime) for value in leaves) < sum(
            isinstance(value, datetime.date) for value in leaves
        ):
            raise _Refused("has dates, and timestamps")
    if not any(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0) for value in leaves):
        return made
    if arrow.types.is_timestamp(kind):
        return arrow.Array.from_pandas(values, type=arrow.timestamp("ns", kind.tz))
    if arrow.types.is_duration(kind):
        return arrow.Array.from_pandas(values, type=arrow.duration("ns"))
    raise _Refused("has nanoseconds within other values, which Arrow cuts")


def _is_made_of(arrow: Any, kind: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether a type of Arrow is such a one, or has one within."""
    return wanted(kind) or any(_is_made_of(arrow, kind.field(at).type, wanted) for at in range(kind.num_fields))


def _leaves(values: Any) -> Iterator[Any]:
    """Values that are not NULL, also those within others."""
    for value in values:
        if isinstance(value, dict):
            yield from _leaves(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)) or _is(value, "numpy", "ndarray"):
            yield from _leaves(value)
        # NaN and NaT are no more equal to themselves than NA is true.
        elif value is not None and type(value).__name__ not in ("NaTType", "NAType"):
            yield value


def _maps(arrow: Any, column: Any) -> Any | None:
    """A column of maps as Arrow hands them to pandas: lists of pairs, or None. `None` if these are no maps."""
    keys: list[Any] = []
    items: list[Any] = []
    offsets: list[int | None] = []
    for value in column:
        # An offset that is NULL says that its map is.
        offsets.append(None if value is None else len(keys))
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            return None
        keys.extend(pair[0] for pair in value)
        items.extend(pair[1] for pair in value)
    offsets.append(len(keys))
    try:
        return arrow.MapArray.from_arrays(
            arrow.array(offsets, arrow.int32()), arrow.array(keys, from_pandas=True), arrow.array(items, from_pandas=True)
        )
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _of_polars(frame: Any) -> object:
    polars = sys.modules["polars"]
    for name, kind in frame.schema.items():
        if _has(kind, polars.Object):
            raise _Refused(f'column "{name}" is of type Object, whose values only Python knows')
    # Polars exports Null with a buffer too many, which PyArrow looks over.
    if any(_has(kind, polars.Null) for kind in frame.schema.values()):
        return module("pyarrow").table(frame)
    return frame


def _has(kind: Any, wanted: Any) -> bool:
    """Whether a type of Polars is this one, or is made of it."""
    if kind == wanted:
        return True
    inner = getattr(kind, "inner", None)
    if inner is not None and _has(inner, wanted):
        return True
    return any(_has(field.dtype, wanted) for field in getattr(kind, "fields", ()))


def _of_array(array: Any) -> object:
    """An array is a column, one of two dimensions a column for each of its arrays, one with fields a column for each."""
    if array.dtype.names is not None and array.ndim == 1:
        return _of_columns({name: array[name] for name in array.dtype.names})
    if array.ndim == 1:
        return _of_columns({"column0": array})
    if array.ndim == 2:
        return _of_columns({f"column{at}": column for at, column in enumerate(array)})
    raise _Refused(f"it is an array of {array.ndim} dimensions, and a table's columns are of one")


def _of_columns(columns: dict[Any, Any]) -> object:
    arrow = module("pyarrow")
    names = [str(name) for name in columns]
    _refuse_twice(names)
    made = []
    for name, column in zip(names, columns.values()):
        if getattr(column, "ndim", 1) != 1 or isinstance(column, (str, bytes, Mapping)) or not hasattr(column, "__len__"):
            raise _Refused(f'column "{name}" is no array of one dimension')
        if _is(column, "numpy", "ndarray") and not column.dtype.isnative:
            column = column.astype(column.dtype.newbyteorder("="))
        try:
            made.append(_column(arrow, column))
        except _Refused as refused:
            raise _Refused(f'column "{name}" {refused}') from None
        except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _Refused(f'column "{name}": {" ".join(str(part) for part in error.args)}') from error
    lengths = {len(column) for column in made}
    if len(lengths) > 1:
        raise _Refused(f"its columns have {min(lengths)} to {max(lengths)} values")
    return arrow.table(made, names=names)


def _column(arrow: Any, column: Any) -> Any:
    if isinstance(column, (arrow.Array, arrow.ChunkedArray)):
        return column
    made = arrow.array(column)
    return _of_objects(arrow, made, column) if getattr(column, "dtype", object) == object else made


def _refuse_twice(names: list[str]) -> None:
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise _Refused(f'two of its columns are named "{twice}"')
