#!/usr/bin/env python3
"""TPC-DS as DuckDB's extension generates it: a Parquet file per table and a file q01.sql to q99.sql per query.

    tests/plans/tpcds.py FOLDER [--sf 0.01]

The extension comes as a wheel: nothing is fetched when this runs.
"""

import argparse
from importlib import resources
from pathlib import Path

import duckdb


def extension():
    """The path of the extension for this version of DuckDB."""
    folder = resources.files("duckdb_extension_tpcds") / "extensions" / f"v{duckdb.__version__}"
    return folder / "tpcds.duckdb_extension"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sf", type=float, default=0.01)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # One thread: rows are in one order.
    with duckdb.connect(config={"threads": 1}) as db:
        db.execute(f"LOAD '{extension()}'")
        db.execute(f"CALL dsdgen(sf={options.sf})")
        for (table,) in db.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            db.execute(f"COPY {table} TO '{options.folder / table}.parquet' (FORMAT parquet)")
        for number, query in db.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall():
            (options.folder / f"q{number:02}.sql").write_text(query)


if __name__ == "__main__":
    main()
