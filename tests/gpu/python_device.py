"""Arrays of the Python package on a real GPU: CuPy and PyTorch over the engine's memory, and from process to process.

    python3 -m pip install --no-deps --target /tmp/onehop-wheel target/wheels/onehop-*.whl
    PYTHONPATH=/tmp/onehop-wheel python3 tests/gpu/python_device.py [--rows 100000000] [--device cuda:0]

It needs a wheel (`make wheel`), a GPU, and CuPy or PyTorch, which the environment has already; what is missing is said, and fails
if both are. Each check is a line; the last has the counts.

1. A stored table: decoded on the GPU, equal to what was computed by the library itself; the second hand-off has the same
   address and moves nothing; NULL as NaN; a matrix is F-contiguous; DLPack and CUDA's array interface have one address.
2. Lifetimes: EVICT, DELETE, CHECKPOINT, DROP and closing the connection leave what is held as it is.
3. A result: on the GPU, once.
4. Another process imports the table by CUDA IPC, compares, and keeps what it has while the exporter releases it.
5. Handles that are stale or forged are errors, on both sides of a process.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from typing import Any

import onehop

passed = failed = 0


def check(what: str, holds: bool, more: str = "") -> None:
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    print(f"{'ok    ' if holds else 'FAILED'} {what}{f': {more}' if more else ''}", flush=True)


def library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"-      {name} is not here: {error}")
        return None


def ms(since: float) -> str:
    return f"{(time.perf_counter() - since) * 1e3:.2f} ms"


def fails(what: str, error: type[Exception], f: Any) -> None:
    try:
        f()
    except error as caught:
        check(what, True, str(caught).splitlines()[0])
    except Exception as caught:  # noqa: BLE001 - any other is what is reported
        check(what, False, repr(caught))
    else:
        check(what, False, "nothing was raised")


def same(library_name: str, array: Any, values: Any) -> bool:
    if library_name == "torch":
        return bool((array == values).all().item())
    return bool((array == values).all().get())


def address(library_name: str, array: Any) -> int:
    return array.data_ptr() if library_name == "torch" else array.data.ptr


def computed(name: str, module: Any, rows: int, device: str) -> dict[str, Any]:
    if name == "torch":
        v = module.arange(rows, dtype=module.int64, device=device)
        return {"x": v, "y": v * 1000003 % 700000000000, "small": (v % 1000).to(module.int32), "half": v.double() / 8, "even": v % 2 == 0}
    v = module.arange(rows, dtype="int64")
    return {"x": v, "y": v * 1000003 % 700000000000, "small": (v % 1000).astype("int32"), "half": v.astype("float64") / 8, "even": v % 2 == 0}


TABLE = """
    CREATE TABLE t CLUSTER BY (x) WITH (residence = '{device}') AS SELECT v AS x, v * 1000003 % 700000000000 AS y,
        CAST(v % 1000 AS INTEGER) AS small, v / 8.0::DOUBLE AS half, v % 2 = 0 AS even,
        CASE WHEN v % 10 = 3 THEN NULL ELSE v END AS gaps
    FROM (SELECT unnest(range(0, {rows})) AS v)
"""
NAMES = ["x", "y", "small", "half", "even"]

IMPORTER = """
import importlib, sys, time
import onehop
handle, name = sys.argv[1:3]
module = importlib.import_module(name)
began = time.perf_counter()
arrays = onehop.ipc_import(handle, ["y", "half"])
taken = getattr(arrays, name)()
took = (time.perf_counter() - began) * 1e3
began = time.perf_counter()
again = getattr(onehop.ipc_import(handle, ["y"]), name)()
again_took = (time.perf_counter() - began) * 1e3
print("open", f"{took:.2f} ms, once more {again_took:.2f} ms", flush=True)
sys.stdin.readline()
print(int((taken["y"] % 1000).sum()), float(taken["half"][-1]), int(again["y"][-1]), flush=True)
del taken, again, arrays
"""


def check_table(con: onehop.Connection, name: str, module: Any, rows: int, device: str) -> None:
    take = getattr(con.table("t"), name)
    values = computed(name, module, rows, device)
    began = time.perf_counter()
    arrays = take(*NAMES)
    print(f"       {name}: first hand-off of {rows:,} rows and {len(NAMES)} columns: {ms(began)}")
    for column in NAMES:
        check(f"{name}: column {column}", same(name, arrays[column], values[column]))
    began = time.perf_counter()
    again = take(*NAMES)
    took = ms(began)
    check(
        f"{name}: a second hand-off has the same addresses and moves nothing",
        all(address(name, again[c]) == address(name, arrays[c]) for c in NAMES) and con.ledger()["host_to_device_bytes"] == 0,
        took,
    )
    own = con.table("t").arrays("y")["y"]
    check(f"{name}: the address is the engine's", own.ptr == address(name, arrays["y"]) == own.__cuda_array_interface__["data"][0])
    matrix = take("y", "x", matrix=True)
    is_f = matrix.T.is_contiguous() if name == "torch" else matrix.flags.f_contiguous
    check(f"{name}: a matrix is column-major", is_f and same(name, matrix[:, 0], values["y"]) and same(name, matrix[:, 1], values["x"]))
    fails(f"{name}: NULLs are refused", onehop.DataError, lambda: take("gaps"))
    gaps = take("gaps", nulls="nan")["gaps"]
    check(f"{name}: NULLs are NaN", bool(module.isnan(gaps[3::10]).all()) and bool((gaps[4::10] == values["x"][4::10]).all()))
    module_dlpack = module.from_dlpack(con.table("t").arrays("half")["half"])
    check(f"{name}: from_dlpack", address(name, module_dlpack) == address(name, arrays["half"]))
    result = con.sql("SELECT x + 1 AS more, half FROM t WHERE x < 1000000 ORDER BY x")
    taken = getattr(result, name)()
    check(f"{name}: a result", same(name, taken["more"], values["x"][: len(taken["more"])] + 1))
    check(f"{name}: a result again", address(name, getattr(result, name)()["half"]) == address(name, taken["half"]))


def check_processes(con: onehop.Connection, name: str, rows: int) -> None:
    row = con.sql("SELECT onehop_export('t', 'x, y, half')").fetchone()
    assert row is not None
    handle = row[0]
    command = [sys.executable, "-c", IMPORTER, handle, name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    line = process.stdout.readline()
    check(f"{name}: another process opens it", line.startswith("open"), line.strip())
    check(f"{name}: it is released", con.sql("SELECT onehop_release(?)", [handle]).fetchone() == (True,))
    con.sql("EVICT TABLE t")
    out, _ = process.communicate("\n")
    total = con.sql("SELECT sum(y % 1000), max(half), max(y) FILTER (WHERE x = ?) FROM t", [rows - 1]).fetchone()
    assert total is not None
    is_same = out.split() == [str(int(total[0])), str(float(total[1])), str(int(total[2]))]
    check(f"{name}: what the other process has is the table", is_same and process.returncode == 0, f"{out.strip()} {total}")
    fails(f"{name}: a handle that was released", onehop.NotFoundError, lambda: onehop.ipc_import(handle))
    fails(f"{name}: half a handle", onehop.ProgrammingError, lambda: onehop.ipc_import(handle[:40]))


def check_lifetimes(con: onehop.Connection, name: str, module: Any, rows: int, device: str) -> None:
    values = computed(name, module, rows, device)
    held = getattr(con.table("t"), name)("y")["y"]
    con.sql("DELETE FROM t WHERE x % 2 = 1")
    fewer = getattr(con.table("t"), name)("y")["y"]
    check(f"{name}: deleted rows are not there", len(fewer) == (rows + 1) // 2 and int(fewer.sum()) == int(values["y"][::2].sum()))
    con.sql("CHECKPOINT")
    settled = getattr(con.table("t"), name)("y")["y"]
    check(f"{name}: nor after a checkpoint", len(settled) == len(fewer) and int(settled.sum()) == int(fewer.sum()))
    con.sql("EVICT TABLE t")
    con.sql("DROP TABLE t")
    con.close()
    check(f"{name}: what is held outlives the table and its database", same(name, held, values["y"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    rows, device = options.rows, options.device
    modules = {name: module for name in ("torch", "cupy") if (module := library(name)) is not None}
    for name, module in modules.items():
        print(f"-      {name} {module.__version__}")
        with onehop.connect(config={"gpu.mode": "auto"}) as con:
            con.sql(TABLE.format(rows=rows, device=device))
            check_table(con, name, module, rows, device)
            check_processes(con, name, rows)
            check_lifetimes(con, name, module, rows, device)
    if not modules:
        check("CuPy or PyTorch is here", False)
    print(f"python device: {passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
