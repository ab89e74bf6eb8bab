"""Makes the small binary files that the fault cases read: `tests/faults/files/`.

    python -m pip install pyarrow pandas fastparquet && python tests/faults/make_files.py

The files are part of the repository. This script says how they came to be, and makes them again.
"""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

FILES = Path(__file__).parent / "files"


def parquet() -> None:
    pq.write_table(
        pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4]), pa.array(["x", "y"])], names=["a", "a", "b"]),
        FILES / "same_names.parquet",
    )
    pq.write_table(pa.table({"B": ["bb"], "A": ["aa"]}), FILES / "swapped.parquet")
    pq.write_table(pa.table({"a": pa.nulls(1), "b": [1]}), FILES / "null_1.parquet")
    pq.write_table(pa.table({"a": ["x"], "b": [2]}), FILES / "null_2.parquet")
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), FILES / "lacks_1.parquet")
    pq.write_table(pa.table({"a": [2]}), FILES / "lacks_2.parquet")
    pq.write_table(pa.table({"a": [7]}), FILES / "short.PQ")
    struct = pa.array([{"x": 1, "y": "p"}, {"x": 2, "y": "q"}])
    pq.write_table(pa.table({"s": struct, "l": [[1, 2], [3]]}), FILES / "nested.parquet")
    for place, moments in [("Europe/Berlin", [0, 1_720_000_000_000_000]), ("UTC", [1, None]), ("+05:30", [-1])]:
        name = place.replace("/", "_").strip("+").replace(":", "")
        of_place = pa.table({"n": list(range(len(moments))), "t": pa.array(moments, pa.timestamp("us", tz=place))})
        pq.write_table(of_place, FILES / f"zone_{name}.parquet")


def intervals() -> None:
    months_days_nanos = pa.array([pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([0, -1, -1_000]), None])
    feather.write_feather(pa.table({"i": months_days_nanos}), FILES / "intervals.arrow", compression="uncompressed")


def without_row_groups() -> None:
    import fastparquet
    import pandas as pd

    frame = pd.DataFrame({"a": pd.Series(dtype="int64"), "b": pd.Series(dtype="float64")})
    fastparquet.write(str(FILES / "no_row_groups.parquet"), frame, row_group_offsets=[])


def arrow() -> None:
    nulls = pa.table({"a": [1, 2], "b": pa.nulls(2)})
    feather.write_feather(nulls, FILES / "nulls.feather", compression="uncompressed")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array(["x"])], names=["a", "a"])
    feather.write_feather(twice, FILES / "same_names.arrow", compression="uncompressed")
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_file(str(FILES / "version_4.arrow"), table.schema, options=options) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(str(FILES / "stream.arrows"), table.schema) as writer:
        writer.write_table(table)


TEXTS = [
    *("2024-02-29 10:11:12+02", "2024-02-29 10:11:12.1234575", "-2024-01-01", "0000-01-01", "2024/02/29", "2024-02-29"),
    *("101112", "1011", "10:11:12", "1.5", "2.50", "-2.5", "1e2", "1e309", "1e-400", "1e39", "2 hours 3", "1", "yes", "x", ""),
]


def encoded() -> None:
    """Each column twice: as a dictionary, and plain."""
    doubles = [0.0, -0.0, 2.5, -3.7, None, 1e20, float("nan")]
    decimals = [Decimal(text) for text in ("1.50", "-2.55", "0.05", "2.50", "-0.50", "7.00", "9.99")]
    moments = [0, 1_720_000_000_123_456, -1, None, 86_400_000_000, 1, 2]
    rows = len(TEXTS)
    columns = {"i": pa.array(range(rows))}
    for name, values in (
        ("text", pa.array(TEXTS)),
        ("double", pa.array((doubles * rows)[:rows])),
        ("decimal", pa.array((decimals * rows)[:rows], pa.decimal128(5, 2))),
        ("boolean", pa.array(([True, False, None] * rows)[:rows])),
        ("moment", pa.array((moments * rows)[:rows], pa.timestamp("us"))),
        ("bytes", pa.array(([b"ab", b"\x00", None] * rows)[:rows])),
    ):
        columns[f"{name}_dict"], columns[name] = values.dictionary_encode(), values
    feather.write_feather(pa.table(columns), FILES / "encoded.arrow", compression="uncompressed")
    # Arrow's Parquet has dictionaries of texts alone.
    pq.write_table(pa.table({name: columns[name] for name in ("i", "text_dict", "text")}), FILES / "encoded.parquet")
    keys = pa.array([0, 1, None, 2], pa.int8())
    null_values = {
        "text": pa.array(["x", None, "y"]),
        "number": pa.array([1, None, 3]),
        "decimal": pa.array([Decimal("1.50"), None, Decimal("3.00")], pa.decimal128(5, 2)),
        "day": pa.array([0, None, 2], pa.date32()),
    }
    table = pa.table({name: pa.DictionaryArray.from_arrays(keys, values) for name, values in null_values.items()})
    runs = pa.RunEndEncodedArray.from_arrays([1, 3, 4], pa.array([0.0, None, -0.0]))
    feather.write_feather(table.append_column("run", runs), FILES / "null_values.arrow", compression="uncompressed")


def hidden() -> None:
    """NULL structs, lists and maps with values behind them."""
    is_null = pa.array([False, False, True])
    struct = pa.StructArray.from_arrays([pa.array([1, None, 3])], names=["a"], mask=is_null)
    outer = pa.StructArray.from_arrays([struct], names=["s"], mask=pa.array([False, True, False]))
    items = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), pa.array([1, 2, 3]), mask=is_null)
    entries = pa.MapArray.from_arrays(pa.array([0, 1, 1, 2], pa.int32()), pa.array(["a", "a"]), pa.array([1, 3]))
    entries = pa.MapArray.from_buffers(
        entries.type, 3, [pa.py_buffer(b"\x03"), entries.buffers()[1]], children=[pa.StructArray.from_arrays(
            [entries.keys, entries.items], fields=[entries.type.key_field, entries.type.item_field])])
    table = pa.table({"i": [1, 2, 3], "s": struct, "o": outer, "l": items, "m": entries})
    feather.write_feather(table, FILES / "hidden.arrow", compression="uncompressed")


def units() -> None:
    """Timestamps of milliseconds in one file, and of microseconds in another."""
    for unit, moments in [("ms", [0, 1]), ("us", [500, 1500])]:
        table = pa.table({"i": moments, "t": pa.array(moments, pa.timestamp(unit))})
        pq.write_table(table, FILES / f"unit_{unit}.parquet")


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    parquet()
    intervals()
    without_row_groups()
    arrow()
    encoded()
    hidden()
    units()
