"""Columns as arrays, for NumPy, CuPy, PyTorch and whatever else takes DLPack: on a GPU if there is one.

`Result` and `Table` have the calls of `Columns`; what they hand out keeps its memory for as long as anybody has it. CuPy
and PyTorch are imported when they are asked for, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from onehop import _onehop
from onehop._onehop import Array

if TYPE_CHECKING:
    import numpy

Nulls = Literal["error", "nan"]
"""What NULL becomes: an error that names the column, or NaN."""

_Made = TypeVar("_Made")


class Arrays(Mapping[str, Array]):
    """Arrays by the names of their columns.

    Each is an `Array`: an address, a type and a length, which libraries take by ``__dlpack__``, ``__array_interface__``
    (in host memory) or ``__cuda_array_interface__`` (on a GPU). All of them together are a table for what takes Arrow's C
    device interface, such as cuDF and PyArrow. Nothing is to be written to them.
    """

    def __init__(self, arrays: list[tuple[str, Array]]) -> None:
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def numpy(self) -> dict[str, numpy.ndarray[Any, Any]]:
        """As NumPy arrays, read-only, where they are. They have to be in host memory."""
        np = module("numpy")
        return {name: np.asarray(array) for name, array in self.items()}

    def cupy(self) -> dict[str, Any]:
        """As CuPy arrays, where they are; as NumPy arrays if they are in host memory."""
        return {name: to_cupy(array) for name, array in self.items()}

    def torch(self) -> dict[str, Any]:
        """As PyTorch tensors, where they are."""
        return {name: to_torch(array) for name, array in self.items()}

    def __arrow_c_device_array__(
        self, requested_schema: object | None = None, **options: Any
    ) -> tuple[object, object]:
        """The columns as an array of structures, where they are."""
        # It is what it is, as the interface allows.
        del requested_schema
        return _onehop.arrow_c_device_array(list(self._arrays.items()), options)

    def __repr__(self) -> str:
        return f"<onehop.Arrays: {', '.join(f'{name} {array!r}' for name, array in self.items())}>"


class Columns:
    """What has columns that can be arrays."""

    def _make(self, columns: tuple[str, ...], device: str | None, nulls: Nulls, matrix: bool) -> list[tuple[str, Array]]:
        raise NotImplementedError

    def arrays(self, *columns: str, device: str | None = None, nulls: Nulls = "error") -> Arrays:
        """These columns, or all, as arrays that any library takes. Arguments are those of `cupy`."""
        return Arrays(self._make(columns, device, nulls, False))

    def matrix(self, *columns: str, device: str | None = None, nulls: Nulls = "error") -> Array:
        """These columns, or all, as one array of two dimensions, column-major. They are of one type."""
        return self._make(columns, device, nulls, True)[0][1]

    @overload
    def cupy(
        self, *columns: str, matrix: Literal[False] = False, device: str | None = None, nulls: Nulls = "error"
    ) -> dict[str, Any]: ...
    @overload
    def cupy(
        self, *columns: str, matrix: Literal[True], device: str | None = None, nulls: Nulls = "error"
    ) -> Any: ...
    def cupy(
        self, *columns: str, matrix: bool = False, device: str | None = None, nulls: Nulls = "error"
    ) -> dict[str, Any] | Any:
        """These columns, or all, as CuPy arrays by name; with `matrix` as one, column-major.

        Without a GPU they are NumPy arrays, read-only, by the same rules. `device` is ``"cuda:0"``, ``"cpu"``, or the
        GPU of the table's residence, or the first there is.

        Arrays hold numbers and truth values; a column of any other type is an error. So is one with NULLs, unless
        `nulls` is ``"nan"``: then floats have NaN there, and whatever else has NULLs becomes float64.
        """
        return self._as(to_cupy, columns, device, nulls, matrix)

    @overload
    def torch(
        self, *columns: str, matrix: Literal[False] = False, device: str | None = None, nulls: Nulls = "error"
    ) -> dict[str, Any]: ...
    @overload
    def torch(
        self, *columns: str, matrix: Literal[True], device: str | None = None, nulls: Nulls = "error"
    ) -> Any: ...
    def torch(
        self, *columns: str, matrix: bool = False, device: str | None = None, nulls: Nulls = "error"
    ) -> dict[str, Any] | Any:
        """The same as PyTorch tensors: on a GPU if there is one, in host memory otherwise. Arguments are those of `cupy`."""
        return self._as(to_torch, columns, device, nulls, matrix)

    def _as(
        self, convert: Callable[[Array], _Made], columns: tuple[str, ...], device: str | None, nulls: Nulls, matrix: bool
    ) -> dict[str, _Made] | _Made:
        if matrix:
            return convert(self.matrix(*columns, device=device, nulls=nulls))
        return {name: convert(array) for name, array in self.arrays(*columns, device=device, nulls=nulls).items()}

    def _whole(self) -> Array:
        """All of it as one array: a column, or a matrix of several."""
        arrays = self._make((), None, "error", len(self.columns) != 1)
        return arrays[0][1]

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        raise NotImplementedError

    def __dlpack__(self, **options: Any) -> object:
        """All columns as one array: of one dimension if it is one, else column-major."""
        return self._whole().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._whole().__dlpack_device__()


class Table(Columns):
    """A table of a database, whose columns are asked for as arrays: `Connection.table` has it.

    Each call has the rows as they are then. If the table's rows are all stored, and there is a GPU, its columns are
    decoded there once, and kept: whoever asks again has the same memory, and nothing is moved. Others, such as tables
    with rows that were inserted or deleted since the last CHECKPOINT, are read by a query.
    """

    def __init__(self, native: _onehop.Connection, name: str) -> None:
        self._native = native
        self._name = name
        rows = native.sql(f"SELECT * FROM {quoted(name)} LIMIT 0", None, None)
        self._columns, self._types = rows.columns, rows.types

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    @property
    def columns(self) -> list[str]:
        """Names of the columns, as they were when this was made."""
        return list(self._columns)

    @property
    def types(self) -> list[str]:
        """Types of the columns, as SQL has them."""
        return list(self._types)

    def _make(self, columns: tuple[str, ...], device: str | None, nulls: Nulls, matrix: bool) -> list[tuple[str, Array]]:
        return self._native.table_arrays(self._name, list(columns), device, nulls, matrix)

    def numpy(self, *columns: str, nulls: Nulls = "error") -> dict[str, numpy.ndarray[Any, Any]]:
        """These columns, or all, as NumPy arrays, by the rules of `cupy`. `Result.numpy` has masks, dates and objects."""
        return self.arrays(*columns, device="cpu", nulls=nulls).numpy()

    def __repr__(self) -> str:
        types = ", ".join(f"{name} {type_}" for name, type_ in zip(self._columns, self._types, strict=True))
        return f"<onehop.Table {self._name}: {types}>"


def quoted(name: str) -> str:
    """A name as SQL has it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def to_cupy(array: Array) -> Any:
    """An array as CuPy's, or as NumPy's in host memory."""
    if array.device == "cpu":
        return module("numpy").asarray(array)
    cupy = module("cupy", "cupy-cuda13x (or the one for your CUDA)")
    with cupy.cuda.Device(int(array.device.removeprefix("cuda:"))):
        return cupy.asarray(array)


def to_torch(array: Array) -> Any:
    """An array as PyTorch's."""
    torch = module("torch")
    try:
        return torch.from_dlpack(array)
    except BufferError:
        # It knows no versions of DLPack, and so not what is read-only: it gets one of its own.
        return torch.from_dlpack(array.__dlpack__(copy=True))


def module(name: str, package: str | None = None) -> Any:
    """An optional dependency, or what to do without it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"this needs {name}, which is not installed: pip install {package or name}") from error
