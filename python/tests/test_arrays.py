"""Columns as arrays, in host memory and on a GPU that is none: addresses, types, lifetimes, and what DLPack's structures say.

The GPU is that of the engine's tests, whose memory is the process's own: what lies at its addresses can be looked at. Expected
values are NumPy's and Python's.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pytest

import onehop

ROWS = 30_000
TABLE = f"""
    CREATE TABLE t CLUSTER BY (x) AS SELECT v AS x, v * 3 AS y, v / 7.0::DOUBLE AS z, v % 2 = 0 AS even, CAST(v % 100 AS SMALLINT) AS small,
        CASE WHEN v % 10 = 3 THEN NULL ELSE v END AS gaps, 'row ' || v AS name, DATE '2024-01-01' AS day,
        CAST(v AS DECIMAL(10, 2)) AS price
    FROM (SELECT unnest(range(0, {ROWS})) AS v)
"""
NUMBERS = ["x", "y", "z", "even", "small"]


def expected() -> dict[str, Any]:
    v = numpy.arange(ROWS)
    return {"x": v, "y": v * 3, "z": v / 7.0, "even": v % 2 == 0, "small": (v % 100).astype("int16")}


@pytest.fixture
def stored(con: onehop.Connection) -> onehop.Connection:
    con.sql(TABLE)
    return con


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[onehop.Connection]:
    """A connection to a database with a GPU that is none."""
    monkeypatch.setenv("ONEHOP_TEST_DEVICE", "fake")
    with onehop.connect(config={"threads": 2, "storage.block_rows": 4096, "storage.segment_rows": 16384}) as connection:
        connection.sql(TABLE)
        yield connection


# ---- in host memory -----------------------------------------------------------------------------------------------------


def test_without_a_gpu_the_calls_give_numpy_arrays(stored: onehop.Connection) -> None:
    for arrays in (stored.table("t").cupy(*NUMBERS), stored.sql(f"SELECT {', '.join(NUMBERS)} FROM t ORDER BY x").cupy()):
        for name, values in expected().items():
            assert isinstance(arrays[name], numpy.ndarray) and arrays[name].dtype == values.dtype
            assert numpy.array_equal(arrays[name], values) and not arrays[name].flags.writeable


def test_registered_columns_are_not_copied(con: onehop.Connection) -> None:
    frame = pandas.DataFrame({"a": numpy.arange(1000), "b": numpy.linspace(0, 1, 1000)})
    con.register("frame", frame)
    result = con.sql("SELECT a, b FROM frame")
    arrays = result.arrays()
    for name in ("a", "b"):
        address = frame[name].to_numpy().ctypes.data
        assert arrays[name].ptr == address
        assert arrays.numpy()[name].ctypes.data == address
        assert numpy.from_dlpack(arrays[name]).ctypes.data == address
        assert result.cupy()[name].ctypes.data == address
    assert con.table("frame").arrays("b")["b"].ptr == frame["b"].to_numpy().ctypes.data


def test_a_matrix_is_column_major(stored: onehop.Connection) -> None:
    values = numpy.stack([expected()["y"], expected()["x"]], axis=1)
    matrix = stored.table("t").cupy("y", "x", matrix=True)
    assert matrix.shape == (ROWS, 2) and matrix.flags.f_contiguous and numpy.array_equal(matrix, values)
    taken = numpy.from_dlpack(stored.table("t").matrix("y", "x"))
    assert taken.flags.f_contiguous and numpy.array_equal(taken, values)
    with pytest.raises(onehop.ProgrammingError, match='"z" is float64'):
        stored.table("t").matrix("x", "z")


def test_a_result_is_one_array_for_dlpack(stored: onehop.Connection) -> None:
    one = stored.sql("SELECT y FROM t ORDER BY x")
    taken = numpy.from_dlpack(one)
    assert taken.shape == (ROWS,) and numpy.array_equal(taken, expected()["y"])
    # The result keeps its arrays: whoever asks again has the same.
    assert numpy.from_dlpack(one).ctypes.data == taken.ctypes.data == one.arrays()["y"].ptr
    several = numpy.from_dlpack(stored.sql("SELECT x, y FROM t ORDER BY x"))
    assert several.shape == (ROWS, 2) and numpy.array_equal(several[:, 1], expected()["y"])
    with pytest.raises(onehop.InterfaceError, match="read already"):
        one.arrow()
    read = stored.sql("SELECT y FROM t")
    read.fetchone()
    with pytest.raises(onehop.InterfaceError, match="read already"):
        read.arrays()


@pytest.mark.parametrize("where", ["table", "result"])
def test_nulls_are_an_error_or_nan(stored: onehop.Connection, where: str) -> None:
    def of(**options: Any) -> dict[str, Any]:
        if where == "table":
            return stored.table("t").cupy("gaps", "x", **options)
        return stored.sql("SELECT gaps, x FROM t ORDER BY x").cupy(**options)

    with pytest.raises(onehop.DataError, match='"gaps" has 3000 NULLs') as caught:
        of()
    assert "nulls='nan'" in str(caught.value.hint) and "COALESCE" in str(caught.value.hint)
    arrays = of(nulls="nan")
    values = numpy.arange(ROWS, dtype="float64")
    values[3::10] = numpy.nan
    assert arrays["gaps"].dtype == "float64" and numpy.array_equal(arrays["gaps"], values, equal_nan=True)
    assert arrays["x"].dtype == "int64"
    with pytest.raises(ValueError, match="nulls is 'error' or 'nan'"):
        of(nulls="zero")


def test_integers_that_no_float_is_equal_to_are_not_rounded(con: onehop.Connection) -> None:
    with pytest.raises(onehop.DataError, match="no float64 is equal to"):
        con.sql("SELECT * FROM (VALUES (9007199254740993), (NULL)) AS t(n)").cupy(nulls="nan")


@pytest.mark.parametrize(
    ("column", "hint"), [("name", "numpy()"), ("day", "date_part('epoch'"), ("price", 'CAST("price" AS DOUBLE)')]
)
def test_types_that_arrays_have_not_are_named(stored: onehop.Connection, column: str, hint: str) -> None:
    for make in (lambda: stored.table("t").cupy("x", column), lambda: stored.sql(f"SELECT x, {column} FROM t").torch()):
        with pytest.raises(onehop.ProgrammingError, match=f'column "{column}" is') as caught:
            make()
        assert hint in str(caught.value.hint)


def test_what_is_not_there_is_said(stored: onehop.Connection) -> None:
    with pytest.raises(onehop.NotFoundError, match='there is no column "xx"'):
        stored.table("t").cupy("xx")
    with pytest.raises(onehop.NotFoundError, match="nothing"):
        stored.table("nothing")
    with pytest.raises(onehop.UnmetError, match="cuda:0"):
        stored.table("t").cupy("x", device="cuda:0")
    table = stored.table("t")
    assert table.name == "t" and table.columns[:2] == ["x", "y"] and table.types[0] == "BIGINT"
    stored.sql("DROP TABLE t")
    with pytest.raises(onehop.NotFoundError):
        table.cupy("x")


def test_arrays_of_no_rows(con: onehop.Connection) -> None:
    con.sql("CREATE TABLE none (x BIGINT, y BIGINT)")
    assert con.table("none").cupy()["x"].shape == (0,)
    assert con.table("none").cupy(matrix=True).shape == (0, 2)
    assert numpy.from_dlpack(con.sql("SELECT x FROM none")).shape == (0,)


def test_views_fresh_rows_and_transactions_are_as_queries_see_them(stored: onehop.Connection) -> None:
    stored.sql("CREATE VIEW v AS SELECT x + 1 AS x FROM t WHERE x < 5")
    assert stored.table("v").numpy()["x"].tolist() == [1, 2, 3, 4, 5]
    stored.sql("BEGIN")
    stored.sql("DELETE FROM t WHERE x > 1")
    assert stored.table("t").numpy("x")["x"].tolist() == [0, 1]
    stored.sql("ROLLBACK")
    assert len(stored.table("t").arrays("x")["x"]) == ROWS
    stored.sql('CREATE TABLE "A ""b" AS SELECT 1 AS "c ""d"')
    assert stored.table('A "b').numpy()['c "d'].tolist() == [1]


def test_arrays_outlive_whatever_they_came_from() -> None:
    connection = onehop.connect()
    connection.sql(TABLE)
    arrays = connection.table("t").cupy("x", "z")
    taken = numpy.from_dlpack(connection.sql("SELECT y FROM t ORDER BY x"))
    connection.close()
    del connection
    gc.collect()
    assert numpy.array_equal(arrays["x"], expected()["x"]) and numpy.array_equal(taken, expected()["y"])


def test_one_who_knows_no_versions_gets_a_copy_or_an_error(stored: onehop.Connection) -> None:
    array = stored.table("t").arrays("x")["x"]
    with pytest.raises(BufferError, match="read-only"):
        array.__dlpack__()
    with pytest.raises(BufferError, match="device="):
        array.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
    copied = numpy.from_dlpack(array, copy=True)
    copied[:] = 0
    assert copied.ctypes.data != array.ptr and numpy.asarray(array)[5] == 5
    assert not hasattr(array, "__cuda_array_interface__") and array.__dlpack_device__() == (1, 0)


class Consumer(types.ModuleType):
    """A library that takes arrays by DLPack alone, as old as it is told to be."""

    def __init__(self, name: str, knows_versions: bool) -> None:
        super().__init__(name)
        self.knows_versions = knows_versions

    def from_dlpack(self, array: Any) -> Any:
        if isinstance(array, onehop.Array):
            options = {"max_version": (1, 0)} if self.knows_versions else {}
            return Taken(array.__dlpack__(**options), array.__dlpack_device__())
        return Taken(array, None)


@pytest.mark.parametrize("knows_versions", [True, False])
def test_torch(stored: onehop.Connection, monkeypatch: pytest.MonkeyPatch, knows_versions: bool) -> None:
    monkeypatch.setitem(sys.modules, "torch", Consumer("torch", knows_versions))
    tensors = stored.table("t").torch("x", "z")
    for name, tensor in tensors.items():
        assert numpy.array_equal(tensor.values(), expected()[name])
        assert tensor.is_read_only == knows_versions
    # Nothing but a capsule and what it holds: it is given back.
    tensors.clear()


def test_missing_libraries_are_named(stored: onehop.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        stored.table("t").torch("x")


# ---- DLPack's structures ------------------------------------------------------------------------------------------------


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def _capsule(function: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, ctypes.py_object, *arguments)((f"PyCapsule_{function}", ctypes.pythonapi))


class Taken:
    """What a library does with a capsule: takes it, uses it, and calls the deleter once."""

    used_names: list[ctypes.Array[ctypes.c_char]] = []

    def __init__(self, capsule: object, device: tuple[int, int] | None) -> None:
        name = _capsule("GetName", ctypes.c_char_p)(capsule)
        self.is_versioned = name == b"dltensor_versioned"
        assert self.is_versioned or name == b"dltensor"
        self.pointer = _capsule("GetPointer", ctypes.c_void_p, ctypes.c_char_p)(capsule, name)
        # A name has to live as long as its capsule.
        used = ctypes.create_string_buffer(b"used_" + name)
        self.used_names.append(used)
        assert _capsule("SetName", ctypes.c_int, ctypes.c_void_p)(capsule, ctypes.addressof(used)) == 0
        kind = ManagedVersioned if self.is_versioned else Managed
        self.managed = ctypes.cast(self.pointer, ctypes.POINTER(kind)).contents
        self.tensor = self.managed.tensor
        assert device is None or device == (self.tensor.device_type, self.tensor.device_id)
        assert not self.is_versioned or self.managed.major == 1

    @property
    def is_read_only(self) -> bool:
        return self.is_versioned and bool(self.managed.flags & 1)

    @property
    def shape(self) -> list[int]:
        return self.tensor.shape[: self.tensor.ndim]

    @property
    def strides(self) -> list[int]:
        return self.tensor.strides[: self.tensor.ndim]

    def values(self) -> Any:
        kind = {0: "int", 1: "uint", 2: "float", 6: "bool"}[self.tensor.code]
        dtype = numpy.dtype(kind if kind == "bool" else f"{kind}{self.tensor.bits}")
        return at(self.tensor.data + self.tensor.byte_offset, dtype, self.shape, self.strides)

    def __del__(self) -> None:
        if hasattr(self, "managed"):
            self.managed.deleter(self.pointer)


def at(address: int, dtype: Any, shape: Any, strides: Any) -> Any:
    """What lies at an address of this process; `strides` count values."""
    dtype = numpy.dtype(dtype)
    interface = {
        "version": 3,
        "typestr": dtype.str,
        "shape": tuple(shape),
        "strides": tuple(n * dtype.itemsize for n in strides),
        "data": (address, True),
    }
    return numpy.asarray(types.SimpleNamespace(__array_interface__=interface)).copy()


def test_a_capsule_that_nobody_takes_is_freed(stored: onehop.Connection) -> None:
    array = stored.table("t").arrays("x")["x"]
    for _ in range(1000):
        array.__dlpack__(max_version=(1, 3))
        array.__dlpack__(copy=True)
    capsule = array.__dlpack__(max_version=(1, 0))
    del array
    gc.collect()
    assert numpy.array_equal(Taken(capsule, (1, 0)).values(), expected()["x"])


def test_arrow_takes_columns_where_they_are(stored: onehop.Connection) -> None:
    arrays = stored.table("t").arrays("x", "z", "small")
    batch = pyarrow.record_batch(arrays)
    assert batch.schema.names == ["x", "z", "small"] and batch.schema.types == [pyarrow.int64(), pyarrow.float64(), pyarrow.int16()]
    for name in batch.schema.names:
        column = batch.column(name)
        assert column.buffers()[1].address == arrays[name].ptr and column.buffers()[0] is None
        assert numpy.array_equal(column.to_numpy(), expected()[name])
    alone = pyarrow.array(arrays["z"])
    assert alone.buffers()[1].address == arrays["z"].ptr
    # A column that was moved out of the table keeps its memory, and nothing else does.
    kept = batch.column("x")
    del arrays, batch, alone
    gc.collect()
    assert numpy.array_equal(kept.to_numpy(), expected()["x"])


def test_what_arrow_has_not_is_said(stored: onehop.Connection) -> None:
    table = stored.table("t")
    with pytest.raises(BufferError, match="CAST"):
        table.arrays("x", "even").__arrow_c_device_array__()
    with pytest.raises(BufferError, match="two dimensions"):
        table.matrix("x", "y").__arrow_c_device_array__()
    with pytest.raises(NotImplementedError, match="sooner"):
        table.arrays("x").__arrow_c_device_array__(None, sooner=True)
    apart = onehop.Arrays([("a", table.arrays("x")["x"]), ("b", stored.sql("SELECT 1 AS one").arrays()["one"])])
    with pytest.raises(BufferError, match="not of one table"):
        apart.__arrow_c_device_array__()
    for _ in range(1000):
        table.arrays("x").__arrow_c_device_array__(None, later=None)


# ---- on a GPU that is none ------------------------------------------------------------------------------------------------


def test_tables_are_decoded_on_the_gpu_once(gpu: onehop.Connection) -> None:
    arrays = gpu.table("t").arrays(*NUMBERS)
    for name, values in expected().items():
        array = arrays[name]
        assert array.device == "cuda:0" and array.__dlpack_device__() == (2, 0) and array.dtype == str(values.dtype)
        interface = array.__cuda_array_interface__
        assert interface["version"] == 3 and interface["stream"] is None and interface["shape"] == (ROWS,)
        assert interface["data"] == (array.ptr, False) and interface["typestr"] == values.dtype.str
        assert numpy.array_equal(at(array.ptr, values.dtype, (ROWS,), (1,)), values)
        assert not hasattr(array, "__array_interface__")
    again = gpu.table("t").arrays("y")
    assert again["y"].ptr == arrays["y"].ptr and gpu.ledger()["host_to_device_bytes"] == 0
    with pytest.raises(TypeError, match="cuda:0"):
        numpy.asarray(arrays["x"])
    assert gpu.table("t").arrays("x", device="cpu")["x"].device == "cpu"
    assert numpy.array_equal(gpu.table("t").numpy("z")["z"], expected()["z"])


def test_results_are_copied_to_the_gpu_once(gpu: onehop.Connection) -> None:
    result = gpu.sql("SELECT x * 2 AS twice, z FROM t ORDER BY x")
    arrays = result.arrays()
    assert numpy.array_equal(at(arrays["twice"].ptr, "int64", (ROWS,), (1,)), expected()["x"] * 2)
    moved = result.ledger()["host_to_device_bytes"]
    assert moved is not None and moved >= ROWS * 16
    assert result.arrays()["twice"].ptr == arrays["twice"].ptr and result.ledger()["host_to_device_bytes"] == moved
    with pytest.raises(onehop.DataError):
        gpu.sql("SELECT gaps FROM t").arrays()


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3)])
def test_capsules_of_a_gpu(gpu: onehop.Connection, version: tuple[int, int] | None) -> None:
    matrix = gpu.table("t").matrix("y", "x")
    with pytest.raises(BufferError, match="cupy.array"):
        matrix.__dlpack__(max_version=version, copy=True)
    taken = Taken(matrix.__dlpack__(max_version=version, stream=1), matrix.__dlpack_device__())
    assert taken.is_versioned == (version is not None and version[0] >= 1) == taken.is_read_only
    assert taken.shape == [ROWS, 2] and taken.strides == [1, ROWS] and taken.tensor.data == matrix.ptr
    del matrix
    gpu.sql("EVICT TABLE t")
    gpu.sql("DROP TABLE t")
    gpu.close()
    gc.collect()
    assert numpy.array_equal(taken.values(), numpy.stack([expected()["y"], expected()["x"]], axis=1))


class ArrowArray(ctypes.Structure):
    """As Arrow's C data interface has it."""


ArrowArray._fields_ = [
    *[(name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")],
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(ArrowArray))),
    ("private_data", ctypes.c_void_p),
]


class ArrowDeviceArray(ctypes.Structure):
    """As Arrow's C device data interface has it."""

    _fields_ = [
        ("array", ArrowArray),
        ("device_id", ctypes.c_int64),
        ("device_type", ctypes.c_int32),
        ("sync_event", ctypes.c_void_p),
        ("reserved", ctypes.c_int64 * 3),
    ]


def test_arrow_has_the_address_on_a_gpu(gpu: onehop.Connection) -> None:
    arrays = gpu.table("t").arrays("x", "small")
    places = {name: array.ptr for name, array in arrays.items()}
    _, capsule = arrays.__arrow_c_device_array__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    device = ArrowDeviceArray.from_address(pointer(capsule, b"arrow_device_array"))
    assert (device.device_type, device.device_id, device.sync_event) == (2, 0, None)
    assert (device.array.length, device.array.null_count, device.array.n_buffers, device.array.n_children) == (ROWS, 0, 1, 2)
    children = [device.array.children[n].contents for n in range(2)]
    assert [child.buffers[1] for child in children] == list(places.values())
    # One child is moved out, as the interface allows, and the rest released: it lives on.
    moved = ArrowArray()
    ctypes.memmove(ctypes.byref(moved), ctypes.byref(children[1]), ctypes.sizeof(ArrowArray))
    offset = ArrowArray.release.offset
    ctypes.c_void_p.from_address(ctypes.addressof(children[1]) + offset).value = None
    device.array.release(ctypes.byref(device.array))
    assert not device.array.release
    del arrays, capsule
    gpu.sql("DROP TABLE t")
    gc.collect()
    assert numpy.array_equal(at(moved.buffers[1], "int16", (ROWS,), (1,)), expected()["small"])
    moved.release(ctypes.byref(moved))
    assert not moved.release


def test_changes_give_other_arrays_and_leave_those_that_are_held(gpu: onehop.Connection) -> None:
    before = gpu.table("t").arrays("x")["x"]
    gpu.sql("INSERT INTO t (x) VALUES (-1)")
    gpu.sql("DELETE FROM t WHERE x % 2 = 0")
    rows = gpu.sql("SELECT x FROM t").numpy()["x"]
    for _ in range(2):
        now = gpu.table("t").arrays("x")["x"]
        assert now.device == "cuda:0" and now.ptr != before.ptr
        assert sorted(at(now.ptr, "int64", now.shape, (1,)).tolist()) == sorted(rows.tolist())
        gpu.sql("CHECKPOINT")
    assert numpy.array_equal(at(before.ptr, "int64", (ROWS,), (1,)), expected()["x"])


def test_cupy_has_the_address(gpu: onehop.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[int] = []

    class Device:
        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            current.append(self.number)

        def __exit__(self, *_: object) -> None:
            current.pop()

    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(Device=Device)  # type: ignore[attr-defined]
    cupy.asarray = lambda array: (array.__cuda_array_interface__["data"][0], tuple(current))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    table = gpu.table("t")
    assert table.cupy("y")["y"] == (table.arrays("y")["y"].ptr, (0,))
    assert table.cupy("y", "x", matrix=True) == (table.matrix("y", "x").ptr, (0,))
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match="pip install cupy-cuda"):
        table.cupy("y")
    monkeypatch.setitem(sys.modules, "torch", Consumer("torch", False))
    assert table.torch("y")["y"].tensor.data == table.arrays("y")["y"].ptr


# ---- between processes ------------------------------------------------------------------------------------------------------

IMPORT = """
import sys, onehop, numpy
handle, device = sys.argv[1], sys.argv[2]
arrays = onehop.ipc_import(handle, ["y", "z"])
assert list(arrays) == ["y", "z"] and all(array.device == device for array in arrays.values()), arrays
if device == "cpu":
    values = arrays.numpy()
    assert not values["y"].flags.writeable
else:
    class At:
        def __init__(self, array):
            interface = dict(array.__cuda_array_interface__)
            interface["data"] = (interface["data"][0], True)
            del interface["stream"]
            self.__array_interface__ = interface
            self.array = array
    values = {name: numpy.asarray(At(array)) for name, array in arrays.items()}
sys.stdout.write("open\\n")
sys.stdout.flush()
sys.stdin.readline()
print(int(values["y"].sum()), float(values["z"][7]), flush=True)
"""


def run(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def exported(connection: onehop.Connection, columns: str = "x, y, z") -> str:
    row = connection.sql("SELECT onehop_export('t', ?)", [columns]).fetchone()
    assert row is not None
    return str(row[0])


def left_behind(handle: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"onehop-{handle.split(':')[1]}*"))


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_another_process_imports_what_was_exported(request: pytest.FixtureRequest, device: str) -> None:
    connection: onehop.Connection = request.getfixturevalue("stored" if device == "cpu" else "gpu")
    handle = exported(connection)
    assert handle.startswith("onehop-1:") and len(left_behind(handle)) == 2
    importer = run(IMPORT, handle, device)
    assert importer.stdin is not None and importer.stdout is not None
    assert importer.stdout.readline() == "open\n", importer.communicate()[1]
    # It goes on reading what is not to be had any more.
    assert connection.sql("SELECT onehop_release(?)", [handle]).fetchone() == (True,)
    connection.sql("DROP TABLE t")
    assert left_behind(handle) == []
    out, errors = importer.communicate("\n")
    assert out.split() == [str(int(expected()["y"].sum())), str(expected()["z"][7])], errors
    assert importer.returncode == 0
    with pytest.raises(onehop.NotFoundError, match="gone"):
        connection.ipc_import(handle)


def test_an_export_ends_with_its_process_however_that_ends() -> None:
    script = f"""
import sys, onehop
con = onehop.connect()
con.sql('''{TABLE}''')
print(con.sql("SELECT onehop_export('t', 'x')").fetchone()[0], flush=True)
sys.stdin.readline()
con.close()
"""
    for how in (signal.SIGKILL, None):
        exporter = run(script)
        assert exporter.stdout is not None
        handle = exporter.stdout.readline().strip()
        arrays = onehop.ipc_import(handle)
        if how is None:
            exporter.communicate("\n")
            assert left_behind(handle) == []
        else:
            exporter.send_signal(how)
            exporter.communicate()
            assert len(left_behind(handle)) == 2
        with pytest.raises(onehop.NotFoundError, match="its process has ended"):
            onehop.ipc_import(handle)
        assert left_behind(handle) == []
        assert numpy.array_equal(arrays.numpy()["x"], expected()["x"])


def test_handles_that_are_none_are_errors(stored: onehop.Connection) -> None:
    handle = exported(stored)
    for end in range(len(handle)):
        with pytest.raises(onehop.ProgrammingError, match="no handle"):
            onehop.ipc_import(handle[:end])
    name, ident, secret, _ = handle.split(":")
    for forged in (f"{name}:{secret}:{ident}:00000000", handle[:-1] + "g", handle + "0", handle.replace("onehop", "twohop")):
        with pytest.raises(onehop.ProgrammingError, match="no handle"):
            onehop.ipc_import(forged)
    with pytest.raises(onehop.TooNewError):
        onehop.ipc_import(handle.replace("onehop-1", "onehop-9"))
    with pytest.raises(onehop.NotFoundError, match='no column "nothing"'):
        onehop.ipc_import(handle, ["nothing"])
    other = exported(stored).split(":")
    content = left_behind(handle)
    assert all(path.stat().st_mode & 0o077 == 0 for path in content), "others cannot read it"
    assert other[1] != ident
    assert list(onehop.ipc_import(handle)) == ["x", "y", "z"]


def test_a_child_is_told_that_arrays_are_its_parents(gpu: onehop.Connection) -> None:
    array = gpu.table("t").arrays("x")["x"]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            array.__cuda_array_interface__  # noqa: B018
        except onehop.InterfaceError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert array.ptr > 0
