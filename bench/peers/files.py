"""How fast text files are read: CSV, newline-delimited JSON and pretty-printed JSON, by Onehop and by DuckDB, in turns.

    bench/peers/.venv/bin/python bench/peers/files.py [--megabytes 1000] [--onehop target/release/onehop] [--runs 5]
        [--threads 2] [--folder DIR] [--wide]

Each file has the same rows: whole numbers, decimals, doubles, dates, timestamps, truth values, short and long strings, some
missing. *all* aggregates every column, so that every field is read as its type; *two* aggregates two columns; *count*
counts the rows. The answers are compared first. Files are in the page cache. With --wide, files of one row and up to
200,000 columns are read as well, whose time is to grow with the columns.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import duckdb
from compare import RUNS_MIN, environment, measure, warn_of_debug_build
from data import REPOSITORY
from engine import DuckDb, EngineError, Onehop

ROWS = """
SELECT i AS id, (h % 100000)::INT AS customer, (h % 1000000 / 100)::DECIMAL(12, 2) AS price, (h % 977) / 31.0::DOUBLE AS weight,
    DATE '1992-01-01' + (h % 2557)::INT AS ordered, TIMESTAMP '1992-01-01' + to_seconds(h % 200000000) AS seen,
    h % 3 = 0 AS urgent, ['AIR', 'RAIL', 'SHIP', 'TRUCK', 'MAIL'][1 + (h % 5)::INT] AS mode,
    CASE WHEN h % 10 <> 0 THEN 'comment ' || md5(h::VARCHAR) END AS comment
FROM (SELECT i, (hash(i) >> 8)::BIGINT AS h FROM range({start}, {stop}) r(i))
"""
QUERIES = {
    "all": "SELECT count(*) AS n, sum(id) AS ids, sum(customer) AS c, sum(CAST(price AS DECIMAL(12, 2))) AS p, max(weight) AS w, "
    "max(ordered) AS o, max(seen) AS s, count(CASE WHEN urgent THEN 1 END) AS u, max(mode) AS m, max(comment) AS x FROM {file}",
    "two": "SELECT max(mode) AS m, sum(customer) AS c FROM {file} WHERE id % 2 = 0",
    "count": "SELECT count(*) AS n FROM {file}",
}
# What the ratio is to be at least.
WANTED = {"rows.csv": 1.0, "lines.json": 1.0, "pretty.json": 0.8}


def make(folder: Path, size: int) -> list[Path]:
    """The three files, each of about `size` bytes; their rows are a function of their numbers."""
    made = []
    with duckdb.connect() as con:
        for name, kind in [("rows.csv", "CSV, HEADER"), ("lines.json", "JSON")]:
            path = folder / name
            con.execute(f"COPY ({ROWS.format(start=0, stop=10000)}) TO '{path}' (FORMAT {kind})")
            rows = size * 10000 // path.stat().st_size
            con.execute(f"COPY ({ROWS.format(start=0, stop=rows)}) TO '{path}' (FORMAT {kind})")
            made.append(path)
    pretty = folder / "pretty.json"
    with (folder / "lines.json").open(encoding="utf-8") as lines, pretty.open("w", encoding="utf-8") as out:
        # As json.dump(indent=2) writes it: no value here has a comma and a quote beside each other.
        for number, line in enumerate(lines):
            fields = line.strip()[1:-1].replace(',"', ',\n    "').replace('":', '": ')
            out.write(f"{',' if number else '['}\n  {{\n    {fields}\n  }}")
            if out.tell() > size:
                break
        out.write("\n]\n")
    return [*made, pretty]


def wide(folder: Path, onehop: Onehop, duck: DuckDb) -> None:
    """Files of many columns: seconds of the first reading, since the second may know the names."""
    print("\ncolumns      file            onehop s   duckdb s")
    for columns in (2_000, 20_000, 200_000):
        csv, lines = folder / f"wide{columns}.csv", folder / f"wide{columns}.json"
        names = [f"c{number}" for number in range(columns)]
        csv.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
        # Values of one type would be a map's.
        values = itertools.cycle(["1", '"a"', "true", "0.5"])
        lines.write_text("{" + ",".join(f'"{name}":{value}' for name, value in zip(names, values)) + "}\n")
        for path in (csv, lines):
            took = []
            for engine in (onehop, duck):
                began = time.monotonic()
                try:
                    engine.sql(f"SELECT c0, c{columns - 1} FROM '{path}'")
                    took.append(f"{time.monotonic() - began:10.2f}")
                except EngineError as e:
                    took.append(str(e)[:60])
            print(f"{columns:9,}    {path.suffix[1:]:12} {took[0]} {took[1]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Read text files, on Onehop and on DuckDB.")
    parser.add_argument("--megabytes", type=int, default=1000, help="size of each file (1000)")
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "release" / "onehop")
    parser.add_argument("--runs", type=int, default=RUNS_MIN, help=f"timed runs of each query ({RUNS_MIN})")
    parser.add_argument("--threads", type=int, default=2, help="of both engines (2)")
    parser.add_argument("--folder", type=Path, help="where the files go (a temporary folder)")
    parser.add_argument("--wide", action="store_true", help="read files of many columns as well")
    options = parser.parse_args()
    versions = environment(options.onehop)
    warn_of_debug_build(versions)
    for name, value in versions.items():
        print(f"{name}: {value}")
    print(f"seed: the rows are a function of their number; {options.threads} threads each")
    slow = []
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        files = make(folder, options.megabytes * 1_000_000)
        with Onehop(options.onehop, None, options.threads) as onehop, DuckDb(None, options.threads) as duck:
            print("file            query     onehop MB/s   duckdb MB/s   faster")
            for path in files:
                size = path.stat().st_size
                for name, sql in QUERIES.items():
                    timing = measure(name, sql.format(file=f"'{path}'"), onehop, duck, options.runs)
                    if timing.ratio is None:
                        print(f"{path.name:15} {name:6} WRONG: {timing.difference}")
                        slow.append(f"{path.name} {name}")
                        continue
                    ours, theirs = (
                        size * 1000 / statistics.median(times) for times in (timing.onehop_ns, timing.duckdb_ns)
                    )
                    print(f"{path.name:15} {name:6} {ours:14.0f} {theirs:13.0f} {timing.ratio:7.2f}x", flush=True)
                    slow += [f"{path.name} {name}"] if name == "all" and timing.ratio < WANTED[path.name] else []
            if options.wide:
                wide(folder, onehop, duck)
    if slow:
        sys.exit(f"FAILED: slower than wanted, or a wrong answer: {', '.join(slow)}")


if __name__ == "__main__":
    main()
