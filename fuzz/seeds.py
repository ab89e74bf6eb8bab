"""Makes the seeds of `fuzz/corpus`: small valid files of many types, layouts and codecs.

    python/tests/.venv/bin/python fuzz/seeds.py

Inputs that failed once lie beside them and are not touched.
"""

import bz2
import datetime
import decimal
import gzip
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

ROOT = Path(__file__).parent / "corpus"
ROWS = 20


def seed(target: str, name: str) -> Path:
    """The place of a seed."""
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def flat() -> pa.Table:
    """Columns of plain types, with NULLs."""
    numbers = [None if row % 7 == 3 else row for row in range(ROWS)]
    day = datetime.date(2024, 2, 28)
    return pa.table({
        "i": pa.array(numbers, pa.int32()),
        "b": pa.array(numbers, pa.int64()),
        "x": pa.array([row / 3 for row in range(ROWS)]),
        "t": pa.array([row % 2 == 0 for row in range(ROWS)]),
        "s": pa.array([f"text {row % 4}" for row in range(ROWS)]),
        "d": pa.array([day + datetime.timedelta(row) for row in range(ROWS)]),
        "m": pa.array([decimal.Decimal(row).scaleb(-2) for row in range(ROWS)], pa.decimal128(20, 2)),
        "f": pa.array([bytes([row]) * 5 for row in range(ROWS)], pa.binary(5)),
        "w": pa.array([datetime.datetime(2024, 1, 1, row) for row in range(ROWS)], pa.timestamp("us")),
    })


def nested() -> pa.Table:
    """Columns of nested and encoded types."""
    return pa.table({
        "l": pa.array([list(range(row % 4)) or None for row in range(ROWS)], pa.list_(pa.int32())),
        "r": pa.array([{"a": row, "b": str(row)} for row in range(ROWS)]),
        "k": pa.array([f"word {row % 3}" for row in range(ROWS)]).dictionary_encode(),
        "m": pa.array([[("k", row)] for row in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        "z": pa.array([[row, None] for row in range(ROWS)], pa.list_(pa.int16(), 2)),
    })


def parquet() -> None:
    """Codecs, page versions and encodings."""
    tables = {"flat": flat(), "nested": nested()}
    for name, table in tables.items():
        for codec in ["none", "snappy", "zstd", "gzip", "lz4"]:
            pq.write_table(table, seed("parquet", f"{name}-{codec}.parquet"), compression=codec)
        pq.write_table(table, seed("parquet", f"{name}-v2.parquet"), data_page_version="2.0", row_group_size=7,
                       write_page_index=True, data_page_size=64)
    plain = seed("parquet", "flat-plain.parquet")
    pq.write_table(flat(), plain, use_dictionary=False, store_schema=False, write_statistics=False)
    delta = {"i": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY", "x": "BYTE_STREAM_SPLIT"}
    table = flat().select(list(delta))
    pq.write_table(table, seed("parquet", "delta.parquet"), use_dictionary=False, column_encoding=delta)


def arrow() -> None:
    """Files and streams, and their codecs."""
    for name, table in {"flat": flat(), "nested": nested()}.items():
        for codec in [None, "lz4", "zstd"]:
            options = ipc.IpcWriteOptions(compression=codec)
            with ipc.new_file(str(seed("arrow", f"{name}-{codec}.arrow")), table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=8)
            path = str(seed("arrow_stream", f"{name}-{codec}.arrows"))
            with ipc.new_stream(path, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=8)


CSV = "id,name,when,amount\n" + "".join(
    f'{row},"name ""{row}"", with a comma",2024-01-{row + 1:02},{row}.5\n' for row in range(ROWS)
)
DIALECTS = {
    "comma": CSV,
    "semicolon": "a;b;c\n1;'x;y';3,5\n2;z;4,5\n",
    "tab": "a\tb\n1\t\n\t2\n",
    "lines": 'a,b\r\n"1\r\n2",3\r\n4,5\r\n',
    "ragged": "a,b,c\n1,2\n3,4,5,6\n",
    "quotes": 'a,b\n"open,1\n2,"3"x\n',
}


def text() -> None:
    """Dialects, layouts of JSON, and compressions."""
    for name, content in DIALECTS.items():
        seed("csv", f"{name}.csv").write_text(content, newline="")
    seed("tbl", "orders.tbl").write_text("".join(f"{row}|name {row}|2024-01-01|{row}.25|\n" for row in range(ROWS)))
    record = '{"a": %d, "b": "text \\u00e9", "c": [1, 2.5, null], "d": {"e": true}, "f": "2024-01-01"}'
    lines = [record % row for row in range(ROWS)]
    seed("json", "lines.json").write_text("\n".join(lines))
    seed("json", "array.json").write_text("[\n" + ",\n".join(lines) + "\n]")
    seed("json", "pretty.json").write_text('{\n "a": [\n  {"b": {}}\n ]\n}\n{"a": []}\n')
    seed("json", "values.json").write_text('1 "two" [3] null 1e400\n')
    content = CSV.encode()
    seed("gz", "comma.csv.gz").write_bytes(gzip.compress(content, mtime=0) * 2)
    seed("bz2", "comma.csv.bz2").write_bytes(bz2.compress(content))
    seed("xz", "comma.csv.xz").write_bytes(lzma.compress(content))
    seed("zst", "comma.csv.zst").write_bytes(pa.Codec("zstd").compress(content).to_pybytes())


STATEMENTS = [
    "SELECT a, count(*), sum(b) FROM t WHERE s LIKE 'x%' AND d > DATE '2024-01-01' GROUP BY a HAVING count(*) > 1 ORDER BY 2",
    "SELECT row_number() OVER (PARTITION BY a ORDER BY b ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r JOIN t ON n = a",
    "SELECT CASE WHEN x > 1 THEN [a, 2][1] ELSE NULL END, s || 'y', CAST(b AS VARCHAR) FROM t LIMIT 3 OFFSET 1",
    "SELECT * FROM t AS u WHERE EXISTS (SELECT 1 FROM t WHERE t.a = u.b) OR u.a IN (SELECT a FROM t)",
    "SELECT unnest([a, 1]), x::INT, INTERVAL '1 day' + d FROM t UNION SELECT 1, 2, DATE '2000-01-01'",
    "SELECT regexp_replace(s, '(a|b)*', 'c'), lpad(s, 5, 'x'), round(x, 2), extract(year FROM d) FROM t",
]


def sql() -> None:
    """Statements over the table t."""
    for at, statement in enumerate(STATEMENTS):
        seed("sql", f"{at}.sql").write_text(statement)


if __name__ == "__main__":
    for make in [parquet, arrow, text, sql]:
        make()
