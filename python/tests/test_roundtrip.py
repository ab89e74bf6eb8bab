"""Values of every type through files of every format, as they are read by Onehop, DuckDB and PyArrow.

1. A column of each type has its odd values, and random ones of a fixed seed, some of them NULL; or it has no rows.
2. ``COPY .. TO`` writes it as CSV, JSON, Parquet and Arrow. A type that a format has no room for is an error: `REFUSED`.
3. Each reader is told the column's type where the format does not say it. Every value has to be what it was. What a format or
   another reader cannot hold has a name and a reason: `UNREAD`, `DIFFERENT`.

It prints ``roundtrip: N passed, M failed``. ``ONEHOP_ROUNDTRIP_SEED=7`` tries other values, and ``ONEHOP_ROUNDTRIP=all`` columns
without NULLs and of NULLs alone as well.
"""

from __future__ import annotations

import os
import random
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet
import pytest

import onehop

SEED = int(os.environ.get("ONEHOP_ROUNDTRIP_SEED", "1"))
IS_LONG = os.environ.get("ONEHOP_ROUNDTRIP") == "all"
TEXTS = [
    "", " ", " a ", "NULL", "null", "NaN", "\\N", "a,b", "a;b", '"', '""', 'a"b', "'", "a'b", "\n", "\r", "a\r\nb", "\t", "\\", "\\n",
    "é", "日本", "🦀", "\u202e", "\ufeff", "1", "007", "1.50", "true", "2020-01-01", "[1]", "{'a': 1}", "a=b", "x" * 300, "\x7f",
    *(chr(code) for code in range(1, 32)),
]  # fmt: skip
DAY = 86_400


class Column:
    """Values of a type, and what the type is called where a file does not say."""

    def __init__(self, kind: pyarrow.DataType, values: Any, sql: str | None = None, duck: str | None = None) -> None:
        self.array = values if isinstance(values, pyarrow.Array) else pyarrow.array(values, kind)
        self.kind = kind
        self.sql = sql
        """What text is cast to; `None` if no text of it is read back."""
        self.duck = duck or sql

    @property
    def name(self) -> str:
        return str(self.kind)


def integers(rng: random.Random, low: int, high: int) -> list[int]:
    return [low, high, 0, 1, *(rng.randint(low, high) for _ in range(20))]


def floats(rng: random.Random) -> list[float]:
    odd = [0.0, -0.0, 1.0, 0.1, 1e15, 1e16, 1e-5, 1e300, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308]
    return [*odd, float("nan"), float("inf"), float("-inf"), *(rng.uniform(-1e9, 1e9) for _ in range(20))]


def decimals(rng: random.Random, digits: int, scale: int) -> list[Decimal]:
    most = 10**digits - 1
    return [Decimal(f"{number}E-{scale}") for number in integers(rng, -most, most)]


def moments(rng: random.Random, per_second: int, low_year: int, high_year: int) -> list[int]:
    low, high = ((year - 1970) * 365 * DAY * per_second for year in (low_year, high_year))
    return [0, -1, 1, per_second - 1, -per_second, low, high, *(rng.randint(low, high) for _ in range(20))]


def raw(values: list[int], kind: pyarrow.DataType, width: pyarrow.DataType) -> pyarrow.Array:
    return pyarrow.array(values, width).view(kind)


def columns(rng: random.Random) -> list[Column]:
    made = [
        Column(pyarrow.bool_(), [True, False], "BOOLEAN"),
        *(
            Column(getattr(pyarrow, name)(), integers(rng, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1), sql)
            for name, bits, sql in [("int8", 8, "TINYINT"), ("int16", 16, "SMALLINT"), ("int32", 32, "INTEGER"), ("int64", 64, "BIGINT")]
        ),
        *(
            Column(getattr(pyarrow, f"uint{bits}")(), integers(rng, 0, 2**bits - 1), f"{sql} UNSIGNED", duck)
            for bits, sql, duck in [
                (8, "TINYINT", "UTINYINT"), (16, "SMALLINT", "USMALLINT"), (32, "INTEGER", "UINTEGER"), (64, "BIGINT", "UBIGINT"),
            ]
        ),
        Column(pyarrow.float32(), [pyarrow.scalar(n).cast(pyarrow.float32(), safe=False).as_py() for n in floats(rng)], "REAL"),
        Column(pyarrow.float64(), floats(rng), "DOUBLE"),
        Column(pyarrow.float16(), pyarrow.array([0.0, -0.0, 1.5, 65504.0, 6e-8, float("nan"), float("inf")]).cast(pyarrow.float16()), "REAL"),
        *(
            Column(pyarrow.decimal128(digits, scale), decimals(rng, digits, scale), f"DECIMAL({digits},{scale})")
            for digits, scale in [(1, 0), (4, 2), (9, 9), (18, 0), (18, 6), (19, 1), (38, 0), (38, 10), (38, 38)]
        ),
        Column(pyarrow.string(), [*TEXTS, "\0", "a\0b"], "VARCHAR"),
        Column(pyarrow.large_string(), TEXTS, "VARCHAR"),
        Column(pyarrow.string_view(), TEXTS, "VARCHAR"),
        Column(pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), TEXTS, "VARCHAR"),
        *(Column(kind, [b"", b"\0", b"abc", b"\xff\xfe", bytes(range(256))], "BYTEA") for kind in (pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view())),
        Column(pyarrow.binary(3), [b"\0\0\0", b"abc"], "BYTEA"),
        Column(pyarrow.date32(), raw([0, -1, 1, -719_162, 2_932_896, *integers(rng, -700_000, 2_900_000)[4:]], pyarrow.date32(), pyarrow.int32()), "DATE"),
        Column(pyarrow.date64(), raw([number * DAY * 1000 for number in (0, -1, 1, -719_162, 2_932_896)], pyarrow.date64(), pyarrow.int64()), "DATE"),
        *(
            Column(pyarrow.time64(unit), raw([0, 1, per - 1, DAY * per - 1, *integers(rng, 0, DAY * per - 1)], pyarrow.time64(unit), pyarrow.int64()), "TIME")
            for unit, per in [("us", 10**6)]
        ),
        *(
            Column(pyarrow.time32(unit), raw([0, 1, per - 1, DAY * per - 1], pyarrow.time32(unit), pyarrow.int32()), "TIME")
            for unit, per in [("s", 1), ("ms", 10**3)]
        ),
        *(
            Column(pyarrow.timestamp(unit, zone), raw(moments(rng, per, low, high), pyarrow.timestamp(unit, zone), pyarrow.int64()), sql, duck)
            for unit, per, low, high, duck in [
                ("s", 1, 2, 9990, "TIMESTAMP"), ("ms", 10**3, 2, 9990, "TIMESTAMP"), ("us", 10**6, 2, 9990, "TIMESTAMP"),
                ("ns", 10**9, 1700, 2250, "TIMESTAMP_NS"),
            ]
            for zone, sql in [(None, "TIMESTAMP(9)" if unit == "ns" else "TIMESTAMP")]
        ),
        *(
            Column(pyarrow.timestamp("us", zone), raw(moments(rng, 10**6, 1971, 2037), pyarrow.timestamp("us", zone), pyarrow.int64()), "TIMESTAMPTZ")
            for zone in ("UTC", "Europe/Berlin", "+05:30")
        ),
        Column(pyarrow.month_day_nano_interval(), [(0, 0, 0), (14, -3, 1_500_000_000), (-1, 1, -1000), (0, 0, 86_399_999_999_000)], "INTERVAL"),
        Column(pyarrow.timestamp("s", "UTC"), raw([0, -1, 1], pyarrow.timestamp("s", "UTC"), pyarrow.int64()), "TIMESTAMPTZ"),
        Column(pyarrow.duration("us"), raw([0, -1, 1, DAY * 10**6, -DAY * 10**6 - 1], pyarrow.duration("us"), pyarrow.int64()), "INTERVAL"),
        Column(pyarrow.list_(pyarrow.int64()), [[], [1, None, 3], [-(2**63)]], None, "BIGINT[]"),
        Column(pyarrow.list_(pyarrow.string()), [[], ["", None, "NULL"], *([text] for text in TEXTS)], None, "VARCHAR[]"),
        Column(pyarrow.large_list(pyarrow.int64()), [[], [1, None, 3]], None, "BIGINT[]"),
        Column(pyarrow.list_(pyarrow.timestamp("s")), [[], [0, None, -1]], None, "TIMESTAMP[]"),
        Column(pyarrow.list_(pyarrow.list_(pyarrow.float64())), [[], [[], None, [0.5]]], None, "DOUBLE[][]"),
        Column(pyarrow.list_(pyarrow.int16(), 2), [[1, None], [3, 4]], None, "SMALLINT[]"),
        Column(
            pyarrow.struct([("x", pyarrow.int32()), ("y z", pyarrow.string())]),
            [{"x": 1, "y z": ""}, {"x": None, "y z": None}, *({"x": 0, "y z": text} for text in TEXTS)], None, 'STRUCT(x INTEGER, "y z" VARCHAR)',
        ),
        Column(
            pyarrow.map_(pyarrow.string(), pyarrow.int64()), [[], [("k", 1), ("", None)], *([(text, 1)] for text in TEXTS)], None,
            "MAP(VARCHAR, BIGINT)",
        ),
        Column(pyarrow.map_(pyarrow.int32(), pyarrow.float64()), [[(1, 0.5), (-2, None)], []], None, "MAP(INTEGER, DOUBLE)"),
    ]  # fmt: skip
    return made


REFUSED = {
    ("parquet", "month_day_nano_interval"): "Parquet's intervals have milliseconds",
}
"""What is an error when it is written, with rows or without: (format, type)."""

TEXTLESS = ("binary", "large_binary", "fixed_size_binary", "binary_view")
UNREAD = {
    ("csv", "onehop"): ("list", "large_list", "fixed_size_list", "struct", "map"),
    ("csv", "duckdb"): (*TEXTLESS, "month_day_nano_interval"),
    ("json", "duckdb"): (*TEXTLESS, "month_day_nano_interval"),
    ("csv", "pyarrow"): (
        *TEXTLESS, "list", "large_list", "fixed_size_list", "struct", "map", "month_day_nano_interval", "duration", "time32",
    ),
    ("json", "pyarrow"): (*TEXTLESS, "month_day_nano_interval", "duration", "time32", "time64", "date32", "date64"),
}  # fmt: skip
"""Types whose text a reader has no notation for; they are compared as the texts that Onehop's cast writes."""

DIFFERENT = {
    ("json", "onehop", "map<int32"): "keys of JSON's objects are texts, and an object of a few keys is a STRUCT",
    ("json", "pyarrow", "map"): "PyArrow reads objects as structs",
    ("json", "pyarrow", "large_list"): "PyArrow reads arrays as lists alone",
    ("json", "pyarrow", "fixed_size_list"): "PyArrow reads arrays as lists alone",
    ("json", "pyarrow", "float"): "PyArrow reads no NaN",
    ("json", "pyarrow", "double"): "PyArrow reads no NaN",
    ("csv", "pyarrow", "halffloat"): "PyArrow reads no halves",
    ("json", "pyarrow", "halffloat"): "PyArrow reads no halves",
    ("json", "pyarrow", "list<item: list<item: double"): "PyArrow reads no fraction in lists of lists",
    ("parquet", "duckdb", "duration"): "Parquet has no durations; DuckDB does not read Arrow's note of the type",
    **{
        ("json", "duckdb", f"decimal128({digits}"): "DuckDB reads numbers with a fraction as doubles"
        for digits in ("18, 6", "19, 1", "38, 10", "38, 38")
    },
}
"""What a reader makes of a type whatever the file says: (format, reader, the beginning of the type's name)."""

EMPTY = {
    ("json", "onehop"): "JSON of no rows, [], has no columns: a table says which there are",
    ("json", "pyarrow"): "PyArrow reads no array of rows",
}
"""The same of no rows."""

STORED = ("BYTEA", "TIME", "INTERVAL")
"""Types that no table can store."""


UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def plain(value: Any, kind: pyarrow.DataType) -> Any:
    """Values of an array as they are compared: whatever the width, the unit and the library."""
    types = pyarrow.types
    if value is None:
        return None
    if types.is_floating(kind):
        return value.hex() if isinstance(value, float) else float(value).hex()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [plain(item, kind.value_type) for item in value]
    if types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if types.is_map(kind):
        return [(plain(key, kind.key_type), plain(item, kind.item_type)) for key, item in value]
    return value


def values(array: Any) -> list[Any]:
    array = array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array
    kind = array.type
    types = pyarrow.types
    if types.is_dictionary(kind):
        return values(array.cast(kind.value_type))
    if types.is_timestamp(kind) or types.is_time(kind) or types.is_duration(kind):
        width = pyarrow.int32() if types.is_time32(kind) else pyarrow.int64()
        scale = UNITS[kind.unit]
        return [None if number is None else number * scale for number in array.view(width).to_pylist()]
    if types.is_date64(kind):
        return values(array.cast(pyarrow.date32()))
    if types.is_date32(kind):
        return array.view(pyarrow.int32()).to_pylist()
    return [plain(value, kind) for value in array.to_pylist()]


def lengths(intervals: list[Any]) -> list[Any]:
    """Intervals without months in nanoseconds, as durations are."""
    return [item if item is None or isinstance(item, int) else (item.days * DAY * 10**9 + item.nanoseconds) for item in intervals]


def sorted_by_number(table: pyarrow.Table) -> Any:
    """Its values in the order in which they were written. PyArrow orders no views."""
    views = {pyarrow.string_view(): pyarrow.string(), pyarrow.binary_view(): pyarrow.binary()}
    column = table["c"].cast(views.get(table["c"].type, table["c"].type))
    return table.set_column(table.schema.get_field_index("c"), "c", column).sort_by("i")["c"]


class Round:
    """One column in one format."""

    def __init__(self, con: onehop.Connection, column: Column, format_: str, folder: Path) -> None:
        self.con, self.column, self.format, self.path = con, column, format_, folder / f"t.{format_}"
        self.duck = duckdb.connect()

    def write(self) -> int:
        number = pyarrow.array(range(len(self.column.array)), pyarrow.int64())
        table = pyarrow.table({"i": number, "c": self.column.array})
        result = self.con.sql(f"COPY (SELECT * FROM t) TO '{self.path}'", tables={"t": table})
        return result.rowcount

    def expected(self, as_text: bool) -> list[Any]:
        if not as_text:
            return values(self.column.array)
        table = pyarrow.table({"c": self.column.array})
        return [text for (text,) in self.con.sql("SELECT CAST(c AS VARCHAR) FROM t", tables={"t": table}).fetchall()]

    def onehop(self, as_text: bool) -> list[Any]:
        kind = self.column.sql
        if self.format in ("parquet", "arrow"):
            return values(self.con.sql(f"SELECT c FROM '{self.path}' ORDER BY i").arrow()["c"])
        if as_text:
            query = f"SELECT CAST(c AS VARCHAR) FROM '{self.path}' ORDER BY i"
            return [text for (text,) in self.con.sql(query).fetchall()]
        if kind is not None and kind not in STORED:
            self.con.sql(f"CREATE OR REPLACE TABLE copied (i BIGINT, c {kind})")
            self.con.sql(f"COPY copied FROM '{self.path}'")
            return values(self.con.sql("SELECT c FROM copied ORDER BY i").arrow()["c"])
        query = "c" if kind is None else f"CAST(c AS {kind}) AS c"
        return values(self.con.sql(f"SELECT {query} FROM '{self.path}' ORDER BY i").arrow()["c"])

    def duckdb(self, as_text: bool) -> list[Any]:
        kind = "VARCHAR" if as_text else self.column.duck
        columns = f"columns = {{'i': 'BIGINT', 'c': '{kind}'}}"
        dialect = "header = true, quote = '\"', escape = '\"', allow_quoted_nulls = false, strict_mode = false"
        layout = "newline_delimited" if len(self.column.array) else "array"
        source = {
            "csv": f"read_csv('{self.path}', {dialect}, {columns})",
            "json": f"read_json('{self.path}', format = '{layout}', {columns})",
            "parquet": f"'{self.path}'",
        }[self.format]
        return values(self.duck.execute(f"SELECT c FROM {source} ORDER BY i").to_arrow_table()["c"])

    def pyarrow(self, as_text: bool) -> list[Any]:
        if self.format == "parquet":
            return values(sorted_by_number(pyarrow.parquet.read_table(self.path)))
        if self.format == "arrow":
            return values(sorted_by_number(pyarrow.feather.read_table(self.path)))
        kind = pyarrow.string() if as_text or pyarrow.types.is_dictionary(self.column.kind) else self.column.kind
        if kind == pyarrow.string_view():
            kind = pyarrow.string()
        if self.format == "csv":
            options = pyarrow.csv.ConvertOptions(
                column_types={"c": kind}, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            )
            parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
            return values(pyarrow.csv.read_csv(self.path, convert_options=options, parse_options=parse).sort_by("i")["c"])
        schema = pyarrow.schema([("i", pyarrow.int64()), ("c", kind)])
        parse_json = pyarrow.json.ParseOptions(explicit_schema=schema, newlines_in_values=False)
        return values(pyarrow.json.read_json(self.path, parse_options=parse_json).sort_by("i")["c"])


def kind_of(column: Column) -> str:
    return column.name.split("[")[0].split("<")[0].split("(")[0]


def is_different(format_: str, reader: str, column: Column) -> bool:
    """Whether a reader is known to make something else of it."""
    if len(column.array) == 0 and (format_, reader) in EMPTY:
        return reader != "onehop" or column.sql is None or column.sql in STORED
    names = (name for known, of, name in DIFFERENT if (known, of) == (format_, reader))
    return any(column.name.startswith(name) for name in names)


def try_round(con: onehop.Connection, column: Column, format_: str, folder: Path) -> list[tuple[str, str | None]]:
    """What each reader had: its name, and what was wrong."""
    tried = Round(con, column, format_, folder)
    label = f"{format_} {column.name} of {len(column.array)}"
    kind = kind_of(column)
    is_refused = (format_, kind) in REFUSED
    try:
        tried.write()
    except onehop.Error as error:
        return [(label, None if is_refused else f"not written: {error.message}")]
    if is_refused:
        return [(label, "written")]
    outcomes: list[tuple[str, str | None]] = []
    readers = ["onehop", "pyarrow"] if format_ == "arrow" else ["onehop", "duckdb", "pyarrow"]
    for reader in readers:
        if is_different(format_, reader, column):
            continue
        as_text = kind in UNREAD.get((format_, reader), ())
        try:
            expected, found = tried.expected(as_text), getattr(tried, reader)(as_text)
            if kind == "duration" and not as_text:
                found = lengths(found)
            wrong = None if found == expected else difference(expected, found)
        except Exception as error:
            wrong = f"{type(error).__name__}: {str(error)[:300]}"
        outcomes.append((f"{label}, read by {reader}", wrong))
    return outcomes


def difference(expected: list[Any], found: list[Any]) -> str:
    if len(expected) != len(found):
        return f"{len(found)} values and not {len(expected)}"
    pairs = [(one, other) for one, other in zip(expected, found) if one != other]
    return f"{len(pairs)} of {len(expected)} differ: " + ", ".join(f"{other!r} and not {one!r}" for one, other in pairs[:4])


def variants(column: Column, rng: random.Random) -> list[Column]:
    """The values with NULLs among them, none; if there is time, without NULLs, and NULLs alone."""
    missing = pyarrow.nulls(1, column.kind)
    pieces = [missing if rng.random() < 0.3 else column.array.slice(at, 1) for at in range(len(column.array))]
    holes = pyarrow.concat_arrays(pieces)
    made = []
    all_of_them = (column.array, pyarrow.nulls(3, column.kind)) if IS_LONG else ()
    for array in (holes, column.array.slice(0, 0), *all_of_them):
        copy = Column.__new__(Column)
        copy.__dict__ = {**column.__dict__, "array": array}
        made.append(copy)
    return made


def test_roundtrip(con: onehop.Connection, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(SEED)
    outcomes: list[tuple[str, str | None]] = []
    for column in columns(rng):
        for variant in variants(column, rng):
            for format_ in ("csv", "json", "parquet", "arrow"):
                outcomes.extend(try_round(con, variant, format_, tmp_path))
    failed = [f"{label}: {wrong}" for label, wrong in outcomes if wrong is not None]
    with capsys.disabled():
        sys.stdout.write(f"\nroundtrip: {len(outcomes) - len(failed)} passed, {len(failed)} failed (seed {SEED})\n")
    assert not failed, "\n".join(failed)


def test_a_file_of_more_row_groups_than_16_bits_number(con: onehop.Connection, tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    table = pyarrow.table({"a": range(40_000), "b": [f"row {row % 7}" for row in range(40_000)]})
    pyarrow.parquet.write_table(table, path, row_group_size=1)
    for condition, expected in [
        ("true", (40_000, 799_980_000, "row 6")),
        ("a > 39990", (9, 359_955, "row 6")),
        ("a = 32768 OR a = 0", (2, 32_768, "row 1")),
    ]:
        query = f"SELECT count(*), sum(a), max(b) FROM '{path}' WHERE {condition}"
        assert con.sql(query).fetchall() == [expected], condition
    con.sql("CREATE TABLE groups (a BIGINT, b VARCHAR)")
    con.sql(f"COPY groups FROM '{path}'")
    assert con.sql("SELECT count(*), sum(a) FROM groups").fetchall() == [(40_000, 799_980_000)]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_checksums_of_pages_are_checked(con: onehop.Connection, tmp_path: Path, version: str, codec: str) -> None:
    path = tmp_path / "checked.parquet"
    table = pyarrow.table({"a": random.Random(SEED).choices(range(1 << 40), k=2000)})
    options = {"compression": codec, "use_dictionary": False, "data_page_version": version}
    pyarrow.parquet.write_table(table, path, write_page_checksum=True, **options)
    query = f"SELECT count(*), sum(a) FROM '{path}'"
    assert con.sql(query).fetchall() == [(2000, sum(table["a"].to_pylist()))]
    # The one page of the column: a bit near its end is one of a value.
    column = pyarrow.parquet.read_metadata(path).row_group(0).column(0)
    whole = bytearray(path.read_bytes())
    whole[column.data_page_offset + column.total_compressed_size - 100] ^= 4
    path.write_bytes(whole)
    with pytest.raises(onehop.Error, match='column "a": a page has the checksum'):
        con.sql(query).fetchall()


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
def test_pages_that_shrink_to_nothing_are_read(con: onehop.Connection, tmp_path: Path, codec: str) -> None:
    path = tmp_path / "pages.parquet"
    table = pyarrow.table({"i": [1] + [0] * 999_999, "s": ["a"] + ["b"] * 999_999})
    options = {"use_dictionary": False, "data_page_size": 1 << 30, "row_group_size": 10**7, "max_rows_per_page": 10**7}
    pyarrow.parquet.write_table(table, path, compression=codec, **options)
    assert con.sql(f"SELECT sum(i), min(s), count(s) FROM '{path}'").fetchall() == [(1, "a", 1_000_000)]
