"""SSB loaded from `.tbl` files, as the reference generator writes them, answers like DuckDB's.

    bench/peers/.venv/bin/python tests/tbl/run.py [--sf 0.1] [--onehop target/debug/onehop]

The files are pipe-separated with a trailing pipe and no header. COPY has to find that out by itself. The tables are
declared with the generator's own types; then all 13 queries run through `onehop bench`, which compares their answers
with the stored ones (DuckDB's).
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

DDL = {
    "customer": "c_custkey INTEGER, c_name VARCHAR(25), c_address VARCHAR(25), c_city CHAR(10), c_nation CHAR(15), "
    "c_region CHAR(12), c_phone CHAR(15), c_mktsegment CHAR(10)",
    "supplier": "s_suppkey INTEGER, s_name CHAR(25), s_address VARCHAR(25), s_city CHAR(10), s_nation CHAR(15), "
    "s_region CHAR(12), s_phone CHAR(15)",
    "part": "p_partkey INTEGER, p_name VARCHAR(22), p_mfgr CHAR(6), p_category CHAR(7), p_brand1 CHAR(9), "
    "p_color VARCHAR(11), p_type VARCHAR(25), p_size INTEGER, p_container CHAR(10)",
    "date": "d_datekey INTEGER, d_date CHAR(18), d_dayofweek CHAR(9), d_month CHAR(9), d_year INTEGER, "
    "d_yearmonthnum INTEGER, d_yearmonth CHAR(7), d_daynuminweek INTEGER, d_daynuminmonth INTEGER, "
    "d_daynuminyear INTEGER, d_monthnuminyear INTEGER, d_weeknuminyear INTEGER, d_sellingseason VARCHAR(12), "
    "d_lastdayinweekfl CHAR(1), d_lastdayinmonthfl CHAR(1), d_holidayfl CHAR(1), d_weekdayfl CHAR(1)",
    "lineorder": "lo_orderkey BIGINT, lo_linenumber INTEGER, lo_custkey INTEGER, lo_partkey INTEGER, "
    "lo_suppkey INTEGER, lo_orderdate INTEGER, lo_orderpriority CHAR(15), lo_shippriority CHAR(1), "
    "lo_quantity INTEGER, lo_extendedprice INTEGER, lo_ordtotalprice INTEGER, lo_discount INTEGER, "
    "lo_revenue INTEGER, lo_supplycost INTEGER, lo_tax INTEGER, lo_commitdate INTEGER, lo_shipmode CHAR(10)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="SSB from .tbl files answers like DuckDB's.")
    parser.add_argument("--sf", default="0.1", help="scale factor (0.1)")
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "debug" / "onehop")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tbl, database = Path(folder, "tbl"), Path(folder, "db")
        run(options.onehop, "gen", "ssb", "--sf", options.sf, "--format", "tbl", "--out", tbl, "--quiet")
        first = (tbl / "date.tbl").read_text().split("\n", 1)[0]
        assert first.endswith("|") and first.count("|") == 17, f"not the reference's form: {first}"
        script = [
            f'CREATE TABLE "{name}" ({columns}); COPY "{name}" FROM \'{tbl / name}.tbl\';'
            for name, columns in DDL.items()
        ]
        run(options.onehop, database, "-c", "\n".join(script))
        run(options.onehop, "bench", "ssb", "--sf", options.sf, "--db", database, "--runs", "0")
        refuses_a_mixture(options.onehop, tbl / "supplier.tbl", Path(folder, "mixed.tbl"))
    print("tbl: 14 passed, 0 failed")


def refuses_a_mixture(onehop: Path, whole: Path, mixed: Path) -> None:
    """A line without the trailing pipe among lines with it is an error that names it, and nothing is loaded."""
    lines = whole.read_text().splitlines(keepends=True)
    lines[6] = lines[6].replace("|\n", "\n")
    mixed.write_text("".join(lines))
    sql = f"CREATE TABLE s ({DDL['supplier']}); COPY s FROM '{mixed}';"
    ended = subprocess.run([onehop, "-c", sql], capture_output=True, text=True)
    assert ended.returncode == 1 and "mixed.tbl" in ended.stderr and "line 7" in ended.stderr, ended.stderr


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


if __name__ == "__main__":
    main()
