"""Random frames of pandas there and back: with indexes, metadata and odd names of columns.

Each frame has a seed of its own, which its failure names: ``ONEHOP_FRAME=17 pytest test_frames.py`` repeats it, and
``ONEHOP_FRAMES=500`` tries so many. What comes back is compared with what pandas itself says:

1. ``SELECT *``: the columns and values of the frame, without its index, of the same dtypes (those of NULLs and texts as the
   guide says).
2. Names that change places: what the frame said of a column must not follow its name.
3. Other types under the old names: ``CAST(c AS VARCHAR) AS c``.
4. ``DISTINCT``, which a hidden column would change.
5. Through a file of Parquet, which pandas reads.
"""

from __future__ import annotations

import datetime
import decimal
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pytest

import onehop

FRAMES = int(os.environ.get("ONEHOP_FRAMES", "60"))
ONLY = os.environ.get("ONEHOP_FRAME")
NAMES: list[Any] = [
    *("a", "b", "A", "Name", "select", "a b", 'q"x', "it's", "é", "日本", "index", "level_0", "__index_level_0__", "pandas"),
    *("None", "%s", "a.b", "a,b", "\\", "1", 0, 7, 2.5, ("t", "u"), datetime.date(2020, 1, 2), True),
]
TEXTS = ["", "a", "NULL", "nan", "None", "é", "日本", "🦀", "a\nb", "a\tb", '"', "'", "a,b", "x" * 40, "\\N", "\x01"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"]

Column = tuple[Any, str | None]
"""Values, and the dtype that comes back; `None` if it is that of the values."""


def holes(rng: random.Random, values: list[Any]) -> list[Any]:
    """The same with some of them missing, in some frames."""
    share = rng.choice([0, 0, 0.3, 1]) if rng.random() < 0.8 else 0.9
    return [None if rng.random() < share else value for value in values]


def has_holes(values: list[Any]) -> bool:
    return any(value is None for value in values)


def nullable(rng: random.Random, rows: int) -> Column:
    bits, sign = rng.choice([8, 16, 32, 64]), rng.choice(["Int", "UInt"])
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if sign == "Int" else (0, 2**bits - 1)
    values = holes(rng, [rng.choice([low, high, 0, 1, rng.randint(low, high)]) for _ in range(rows)])
    dtype = f"{sign}{bits}"
    return pandas.array(values, dtype=dtype), dtype if has_holes(values) else dtype.lower()


def integers(rng: random.Random, rows: int) -> Column:
    dtype = rng.choice(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
    info = numpy.iinfo(dtype)
    return numpy.array([rng.choice([info.min, info.max, 0, 1]) for _ in range(rows)], dtype=dtype), None


def floats(rng: random.Random, rows: int) -> Column:
    dtype = rng.choice(["float32", "float64"])
    numbers = [0.0, -0.0, 1.5, -2.25, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"), rng.random()]
    with numpy.errstate(over="ignore"):
        return numpy.array([rng.choice(numbers) for _ in range(rows)]).astype(dtype), None


def nullable_floats(rng: random.Random, rows: int) -> Column:
    dtype = rng.choice(["Float32", "Float64"])
    values = holes(rng, [rng.choice([0.5, -1.25, 3.0]) for _ in range(rows)])
    return pandas.array(values, dtype=dtype), dtype.lower()


def booleans(rng: random.Random, rows: int) -> Column:
    values = [rng.random() < 0.5 for _ in range(rows)]
    if rng.random() < 0.5:
        return numpy.array(values, dtype=bool), None
    missing = holes(rng, values)
    return pandas.array(missing, dtype="boolean"), "boolean" if has_holes(missing) else "bool"


def texts(rng: random.Random, rows: int) -> Column:
    values = holes(rng, [rng.choice(TEXTS) for _ in range(rows)])
    dtype = rng.choice([object, "str", "string"])
    # All that are missing are of no type, which Arrow hands back as objects.
    kept = "str" if dtype != object or any(value is not None for value in values) else "object"
    return pandas.Series(values, dtype=dtype), kept


def categories(rng: random.Random, rows: int) -> Column:
    known = rng.sample(["x", "y", "z", "a b"], 3)
    values = holes(rng, [rng.choice(known) for _ in range(rows)])
    return pandas.Categorical(values, categories=known, ordered=rng.random() < 0.5), "category"


def moments(rng: random.Random, rows: int) -> Column:
    unit = rng.choice(["s", "ms", "us", "ns"])
    days = [rng.choice([0, -20_000, 19_000, 40_000]) for _ in range(rows)]
    moments = pandas.to_datetime(pandas.Series(holes(rng, days), dtype="Int64"), unit="D", origin="unix").dt.as_unit(unit)
    if rng.random() < 0.5:
        return moments, None
    return moments.dt.tz_localize("UTC").dt.tz_convert(rng.choice(ZONES)), None


def durations(rng: random.Random, rows: int) -> Column:
    unit = rng.choice(["s", "ms", "us", "ns"])
    seconds = pandas.Series(holes(rng, [rng.randint(-(10**6), 10**6) for _ in range(rows)]), dtype="Int64")
    return pandas.to_timedelta(seconds, unit="s").dt.as_unit(unit), None


def periods(rng: random.Random, rows: int) -> Column:
    return pandas.period_range("1999-12-31", periods=rows, freq=rng.choice(["D", "M", "Y"])), None


def intervals(rng: random.Random, rows: int) -> Column:
    return pandas.arrays.IntervalArray.from_breaks(range(rows + 1), closed=rng.choice(["left", "right"])), None


def days(rng: random.Random, rows: int) -> Column:
    return pandas.Series(holes(rng, [datetime.date(1970 + rng.randrange(99), 2, 3) for _ in range(rows)]), dtype=object), "object"


def decimals(rng: random.Random, rows: int) -> Column:
    numbers = [decimal.Decimal(rng.choice(["1.50", "-0.01", "12345678901234567890.25"])) for _ in range(rows)]
    return pandas.Series(holes(rng, numbers), dtype=object), "object"


def blobs(rng: random.Random, rows: int) -> Column:
    return pandas.Series(holes(rng, [rng.choice([b"", b"\x00\xff", b"abc"]) for _ in range(rows)]), dtype=object), "object"


def lists(rng: random.Random, rows: int) -> Column:
    values = [[rng.randint(0, 9) for _ in range(rng.randrange(3))] for _ in range(rows)]
    if rng.random() < 0.5:
        return pandas.Series(values, dtype=pandas.ArrowDtype(pyarrow.list_(pyarrow.int64()))), "object"
    return pandas.Series(values, dtype=object), "object"


def structs(rng: random.Random, rows: int) -> Column:
    values = [{"x": rng.randint(0, 9), "y": rng.choice(TEXTS)} for _ in range(rows)]
    kind = pyarrow.struct([("x", pyarrow.int64()), ("y", pyarrow.string())])
    return pandas.Series(values, dtype=rng.choice([object, pandas.ArrowDtype(kind)])), "object"


def arrow_numbers(rng: random.Random, rows: int) -> Column:
    values = holes(rng, [rng.randint(-9, 9) for _ in range(rows)])
    return pandas.Series(values, dtype="int32[pyarrow]"), "Int32" if has_holes(values) else "int32"


KINDS: list[Callable[[random.Random, int], Column]] = [
    *(nullable, integers, floats, nullable_floats, booleans, texts, categories, moments, durations, periods, intervals),
    *(days, decimals, blobs, lists, structs, arrow_numbers),
]

STORED = (integers, floats, booleans, texts, moments, days, decimals)


def index(rng: random.Random, rows: int) -> Any:
    ints = rng.sample(range(1000), rows)
    return rng.choice(
        [
            lambda: pandas.RangeIndex(rows),
            lambda: pandas.RangeIndex(5, 5 + 2 * rows, 2, name="a"),
            lambda: pandas.Index(ints),
            lambda: pandas.Index(ints, name=rng.choice(NAMES)),
            lambda: pandas.Index([f"k{n}" for n in ints], name="Name"),
            lambda: pandas.date_range("2020-01-01", periods=rows, tz="Europe/Berlin", name="b"),
            lambda: pandas.MultiIndex.from_arrays([ints, ["x"] * rows], names=rng.choice([["a", "b"], [None, "c"], [0, 1]])),
            lambda: pandas.CategoricalIndex(["x"] * rows),
        ]
    )()


class Case:
    """A frame, and what is known of it."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        rows = rng.choice([0, 1, 2, 7, 30])
        kinds = [rng.choice(KINDS) for _ in range(rng.randint(1, 6))]
        made = [kind(rng, rows) for kind in kinds]
        names = rng.sample(NAMES, len(made))
        while len({str(name) for name in names}) < len(names):
            names = rng.sample(NAMES, len(made))
        frame = pandas.DataFrame({at: pandas.Series(values) for at, (values, _) in enumerate(made)}, index=range(rows))
        frame.columns = pandas.Index(names, dtype=object, name=rng.choice([None, "columns"]), tupleize_cols=False)
        self.frame = frame.set_axis(index(rng, rows))
        self.frame.attrs = {"seed": seed}
        self.names = [str(name) for name in names]
        self.dtypes = [dtype or str(frame.dtypes.iloc[at]) for at, (_, dtype) in enumerate(made)]
        self.is_stored = all(kind in STORED for kind in kinds)
        self.kinds = [kind.__name__ for kind in kinds]


def plain(value: Any) -> Any:
    """A value as it is compared: by its kind and its text, with whatever is missing alike."""
    if isinstance(value, (list, tuple, numpy.ndarray)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if value is None or value is pandas.NA or value is pandas.NaT or value != value:
        return None
    if isinstance(value, (bool, numpy.bool_)):
        return ("bool", bool(value))
    if isinstance(value, (int, numpy.integer)):
        return ("int", int(value))
    if isinstance(value, (float, numpy.floating)):
        return ("float", float(value).hex())
    if isinstance(value, pandas.Timestamp):
        return ("timestamp", value.isoformat(), str(value.tz))
    return (type(value).__name__, str(value))


def values(frame: Any, at: int) -> list[Any]:
    return [plain(value) for value in frame.iloc[:, at].tolist()]


def dtype_in(where: str, dtype: str) -> str:
    """What a column comes back as: Parquet has no seconds, which are milliseconds there."""
    return dtype.replace("datetime64[s", "datetime64[ms") if where == "Parquet" else dtype


def differences(case: Case, back: Any, where: str) -> list[str]:
    """How a frame that came back differs."""
    if list(back.columns) != case.names:
        return [f"{where}: columns {list(back.columns)}"]
    if not back.index.equals(pandas.RangeIndex(len(case.frame))):
        return [f"{where}: index {back.index}"]
    found = []
    for at, name in enumerate(case.names):
        if values(back, at) != values(case.frame, at):
            found.append(f"{where}: {case.kinds[at]} {name!r}: {values(back, at)} and not {values(case.frame, at)}")
        elif str(back.dtypes.iloc[at]) != dtype_in(where, case.dtypes[at]) and (
            # Of objects that are all missing no type is known, and in a file they are texts.
            case.dtypes[at] != "object" or values(case.frame, at).count(None) < len(case.frame)
        ):
            found.append(f"{where}: {case.kinds[at]} {name!r}: dtype {back.dtypes.iloc[at]} and not {case.dtypes[at]}")
    return found


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def try_frame(con: onehop.Connection, seed: int, folder: Path) -> list[str]:
    case = Case(seed)
    con.register("t", case.frame)
    try:
        table = con.sql("SELECT * FROM t").arrow()
        found = [] if table.schema.metadata is None else [f"metadata: {table.schema.metadata}"]
        found += differences(case, con.sql("SELECT * FROM t").df(), "SELECT *")
        shifted = case.names[1:] + case.names[:1]
        renamed = ", ".join(f"{quoted(name)} AS {quoted(to)}" for name, to in zip(case.names, shifted))
        swapped = con.sql(f"SELECT {renamed} FROM t").df().set_axis(case.names, axis="columns")
        found += differences(case, swapped, "names that change places")
        counted = ", ".join(f"count({quoted(name)})::VARCHAR AS {quoted(name)}" for name in case.names)
        row = con.sql(f"SELECT {counted} FROM t").df()
        expected = [str(len(case.frame) - values(case.frame, at).count(None)) for at in range(len(case.names))]
        if row.iloc[0].tolist() != expected:
            found.append(f"other types: {row.iloc[0].tolist()} and not {expected}")
        if not any(kind in ("intervals", "periods", "blobs", "lists", "structs", "durations") for kind in case.kinds):
            rows = {tuple(map(repr, row)) for row in zip(*(values(case.frame, at) for at in range(len(case.names))))}
            rows = {tuple(cell.replace("-0x0.0p+0", "0x0.0p+0") for cell in row) for row in rows}
            count = con.sql("SELECT count(*) FROM (SELECT DISTINCT * FROM t)").fetchone()
            if count != (len(rows),):
                found.append(f"DISTINCT: {count} and not {len(rows)}")
        if case.is_stored:
            path = folder / "t.parquet"
            con.sql(f"COPY t TO '{path}'")
            if pyarrow.parquet.read_schema(path).metadata and b"pandas" in pyarrow.parquet.read_schema(path).metadata:
                found.append("Parquet: pandas' metadata")
            found += differences(case, con.sql(f"SELECT * FROM '{path}'").df(), "Parquet")
    except Exception as error:
        found = [f"{type(error).__name__}: {error}"]
    finally:
        con.unregister("t")
    return [f"frame {seed}: {difference}" for difference in found]


def test_frames_there_and_back(con: onehop.Connection, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow.parquet  # noqa: F401

    seeds = [int(ONLY)] if ONLY else range(FRAMES)
    found = [difference for seed in seeds for difference in try_frame(con, seed, tmp_path)]
    with capsys.disabled():
        summary = f"Python: {len(seeds)} random frames with indexes, metadata and odd column names there and back"
        sys.stdout.write(f"\n{summary}, {len(found)} differences\n")
    assert not found, "\n".join(found)
