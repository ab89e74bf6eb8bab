"""Where grouping could fall off a cliff: numbers of groups around a limit, one hot group, as many groups as rows.

    bench/peers/.venv/bin/python bench/peers/groups.py [--rows 10000000] [--onehop target/release/onehop] [--runs 5]
        [--threads 2]

Each case groups the same rows by another key; of each the median of RUNS on both engines, in turns, in nanoseconds a
row, after sums over their groups were found to be the same: millions of groups are no answer to compare in Python. A step is how much slower a case is than the one before it of its
family: above 2 it is a cliff, and the exit code is 1.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import duckdb
from compare import RUNS_MIN, environment, measure, warn_of_debug_build
from data import REPOSITORY
from engine import DuckDb, Onehop

# Families of keys, each from few groups to many; a cliff is between neighbours.
FAMILIES = {
    "small domains": ["g2", "g8", "g9", "g128", "g129", "g1024"],
    "one hot group": ["u1m", "hot1m"],
    "sparse keys": ["s128", "s129", "s1024", "shot"],
    "two parts": ["g8, g9", "g128, g129"],
}
# Without a neighbour: as many groups miss the caches, in every engine.
ALONE = ["s1m", "sdistinct"]

ROWS = """
COPY (
    SELECT (h % 2)::INT AS g2, (h % 8)::INT AS g8, (h % 9)::INT AS g9, (h % 128)::INT AS g128, (h % 129)::INT AS g129,
        (h % 1024)::INT AS g1024, (h % 1000000)::INT AS u1m,
        (CASE WHEN h % 1000 = 0 THEN h % 1000000 ELSE 500000 END)::INT AS hot1m,
        (h % 128)::BIGINT * 982451653 AS s128, (h % 129)::BIGINT * 982451653 AS s129,
        (h % 1024)::BIGINT * 982451653 AS s1024,
        (CASE WHEN h % 1000 = 0 THEN h % 1024 ELSE 7 END)::BIGINT * 982451653 AS shot,
        (h % 1000000)::BIGINT * 982451653 AS s1m, i::BIGINT * 982451653 AS sdistinct, (h % 10007)::INT AS v
    FROM (SELECT i, (hash(i) >> 8)::BIGINT AS h FROM range({rows}) r(i))
) TO '{path}' (FORMAT parquet)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Group by keys that could be cliffs, on Onehop and on DuckDB.")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table (10000000)")
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "release" / "onehop")
    parser.add_argument("--runs", type=int, default=RUNS_MIN, help=f"timed runs of each key ({RUNS_MIN})")
    parser.add_argument("--threads", type=int, default=2, help="of both engines (2)")
    options = parser.parse_args()
    versions = environment(options.onehop)
    warn_of_debug_build(versions)
    for name, value in versions.items():
        print(f"{name}: {value}")
    print(f"rows: {options.rows}; seed: the rows are a function of their number; {options.threads} threads each")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        with duckdb.connect() as con:
            con.execute(ROWS.format(rows=options.rows, path=path))
        onehop_, duck_ = Onehop(options.onehop, Path(folder) / "db", options.threads), DuckDb(None, options.threads)
        with onehop_ as onehop, duck_ as duck:
            for engine in (onehop, duck):
                engine.sql(f"CREATE TABLE t AS SELECT * FROM '{path}'")
            print("key                   onehop ns/row   duckdb ns/row   faster    step")
            for keys in [*FAMILIES.values(), *([key] for key in ALONE)]:
                before = None
                for key in keys:
                    groups = f"SELECT {key}, count(*) AS n, sum(v) AS s, max(v) AS m FROM t GROUP BY {key}"
                    sql = f"SELECT count(*) AS groups, sum(n) AS n, sum(s) AS s, sum(m) AS m FROM ({groups}) g"
                    timing = measure(key, sql, onehop, duck, options.runs)
                    if timing.ratio is None:
                        print(f"{key:20} WRONG: {timing.difference}")
                        failed.append(key)
                        continue
                    ours = statistics.median(timing.onehop_ns) / options.rows
                    theirs = statistics.median(timing.duckdb_ns) / options.rows
                    step = ours / before if before else 1.0
                    print(
                        f"{key:20} {ours:15.2f} {theirs:15.2f} {timing.ratio:7.2f}x {step:7.2f}",
                        flush=True,
                    )
                    failed += [key] if step > 2 else []
                    before = ours
    if failed:
        sys.exit(f"FAILED: a cliff or a wrong answer at {', '.join(failed)}")


if __name__ == "__main__":
    main()
