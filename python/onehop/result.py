"""Results: rows as they come, to whoever takes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onehop import _onehop, display
from onehop._onehop import Array
from onehop.arrays import Columns, Nulls, module
from onehop.errors import DataError, InterfaceError

if TYPE_CHECKING:
    import numpy
    import pandas
    import polars
    import pyarrow

Ledger = dict[str, "int | float | None"]
"""Counters by name, in base units: ``storage_to_host_bytes``, ``rows_scanned`` ..."""

SHOWN_ROWS = 20
"""Rows that ``repr`` and notebooks show."""


class Result(Columns):
    """What a statement returns.

    Rows are made as they are read, and read once: by one of `arrow`, `df`, `pl`, `numpy`, `reader`, or whatever takes
    its ``__arrow_c_stream__``, as a whole; as arrays, by `cupy`, `torch`, `arrays` or ``__dlpack__``, which may be asked
    for again, for the result keeps them; or by `fetchone`, `fetchmany`, `fetchall` and iteration, bit by bit. Reading
    what has been read is an `InterfaceError`. `show`, ``repr`` and notebooks only look. Of a statement that returns no
    rows, `fetchone` is `None`, and `fetchmany`, `fetchall` and iteration have none.

    Ctrl-C while rows are waited for cancels the statement, and so does dropping the result.
    """

    def __init__(self, native: _onehop.Rows) -> None:
        self._native = native
        self._rows: _onehop.Table | None = None
        self._made: dict[tuple[tuple[str, ...], str | None, str, bool], list[tuple[str, Array]]] = {}

    @property
    def columns(self) -> list[str]:
        """Names of the columns; none if the statement returns no rows."""
        return self._native.columns

    @property
    def types(self) -> list[str]:
        """Types of the columns, as SQL has them."""
        return self._native.types

    @property
    def rowcount(self) -> int:
        """Rows that the statement wrote or removed; -1 if it returns rows instead, or that makes no sense."""
        count = self._native.rowcount
        return -1 if count is None else count

    @property
    def statement(self) -> str | None:
        """What was done, in SQL's words, by a statement that returns no rows: ``INSERT``, ``CREATE TABLE`` ..."""
        return self._native.tag

    def arrow(self) -> pyarrow.Table:
        """All rows as a PyArrow table, without a copy."""
        table: pyarrow.Table = module("pyarrow").table(self._native.collect())
        return table

    def reader(self) -> pyarrow.RecordBatchReader:
        """Rows as a PyArrow reader, which has the batches made as it is read. Errors on the way are PyArrow's."""
        reader: pyarrow.RecordBatchReader = module("pyarrow").RecordBatchReader.from_stream(self)
        return reader

    def df(self) -> pandas.DataFrame:
        """All rows as a pandas frame, whose index counts them.

        Integers and truth values with NULLs get pandas' nullable types: none is rounded.
        """
        nullable = _nullable(module("pandas"))
        table = self.arrow()
        frame: pandas.DataFrame = table.to_pandas(split_blocks=True)
        for at, column in enumerate(table.columns):
            dtype = nullable.get(str(column.type))
            if dtype is not None and column.null_count > 0:
                frame.isetitem(at, column.to_pandas(types_mapper=lambda _, dtype=dtype: dtype))
        return frame

    def pl(self) -> polars.DataFrame:
        """All rows as a Polars frame."""
        frame: polars.DataFrame = module("polars").DataFrame(self._native.collect())
        return frame

    def numpy(self) -> dict[str, numpy.ndarray[Any, Any]]:
        """All rows as NumPy arrays by column.

        Numbers and timestamps of one chunk, or of neighbouring ones, are not copied, and are read-only. A column with
        NULLs is a masked array. Timestamps with a time zone are in UTC. Text, decimals, and what else NumPy has no type
        for are arrays of Python objects.
        """
        np = module("numpy")
        names = self.columns
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise InterfaceError(f'several columns are named "{twice}"', "tell them apart: SELECT ... AS name")
        table = self._native.collect()
        arrays: dict[str, Any] = {}
        for at, name in enumerate(names):
            views = table.numpy(at)
            if views is not None:
                data, mask = np.asarray(views[0]), views[1]
            else:
                values, mask = table.values(at)
                data = np.fromiter(values, dtype=object, count=len(values))
            arrays[name] = data if mask is None else np.ma.MaskedArray(data, mask=np.asarray(mask))
        return arrays

    def _make(self, columns: tuple[str, ...], device: str | None, nulls: Nulls, matrix: bool) -> list[tuple[str, Array]]:
        wanted = (columns, device, nulls, matrix)
        if wanted not in self._made:
            if self._rows is None:
                self._rows = self._native.collect()
            # Copied to a GPU once, however often it is asked for.
            self._made[wanted] = self._rows.arrays(list(columns), device, nulls, matrix)
        return self._made[wanted]

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; `None` after the last."""
        rows = self._native.fetch(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """The next `size` rows, or those that are left."""
        if size < 0:
            raise ValueError(f"fetchmany takes a number of rows, not {size}")
        return self._native.fetch(size)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        return self._native.fetch(None)

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        """The batches that are left, as PyArrow's."""
        arrow = module("pyarrow")
        while (batch := self._native.next_batch()) is not None:
            yield arrow.record_batch(batch)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._native.__arrow_c_stream__(requested_schema)

    def ledger(self) -> Ledger:
        """The bytes that the statement has moved so far, by hop, and what else was counted.

        Names say units: ``_bytes``, ``_ratio``. ``copy_amplification_ratio`` is bytes moved for each byte that the
        answer needed; `None` if it needed none.
        """
        return self._native.ledger()

    def notices(self) -> list[str]:
        """What you should know about how it ran, such as why a part did not run as fast as it could."""
        return self._native.notices()

    def show(self, rows: int = SHOWN_ROWS) -> None:
        """Prints the first rows, which are still to be read."""
        sys.stdout.write(self._drawn(rows) + "\n")

    def close(self) -> None:
        """Cancels what is left of the statement."""
        self._native.close()

    def _drawn(self, rows: int) -> str:
        if self.statement is not None:
            return self.statement if self.rowcount < 0 else f"{self.statement} {self.rowcount}"
        shown, is_all = self._native.preview(rows)
        return display.box(self.columns, self.types, shown, is_all)

    def __repr__(self) -> str:
        try:
            return self._drawn(SHOWN_ROWS)
        except InterfaceError:
            return f"<onehop.Result: {', '.join(self.columns)} (no rows left)>"
        except DataError as error:
            return f"<onehop.Result: {', '.join(self.columns)} (cannot be shown: {error.message})>"

    def _repr_html_(self) -> str | None:
        if self.statement is not None:
            return None
        try:
            shown, is_all = self._native.preview(SHOWN_ROWS)
        except (InterfaceError, DataError):
            return None
        return display.html(self.columns, self.types, shown, is_all)


def _nullable(pandas: Any) -> dict[str, Any]:
    """The types of pandas that keep values of these types of Arrow beside NULLs."""
    integers = [f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
    return {"bool": pandas.BooleanDtype()} | {name.lower(): getattr(pandas, f"{name}Dtype")() for name in integers}
