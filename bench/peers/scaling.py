"""What a second thread gains: one query with one thread and with several, in turns, on Onehop and on DuckDB.

    bench/peers/.venv/bin/python bench/peers/scaling.py [ssb|tpch] [--sf 10] [--queries 4.1] [--threads 2]
        [--onehop target/release/onehop] [--runs 31]

All four take turns in one run, so that a slow minute of a shared machine is everybody's. Of each the median, and the
gain: the time with one thread over that with several. Both engines' tables must have been loaded by `compare.py`.
"""

import argparse
import statistics
import sys
from pathlib import Path

from compare import environment, warn_of_debug_build
from data import REPOSITORY, SUITES, Data
from engine import DuckDb, Onehop


def main() -> None:
    parser = argparse.ArgumentParser(description="One thread against several, on Onehop and on DuckDB.")
    parser.add_argument("suite", nargs="?", choices=SUITES, default="ssb")
    parser.add_argument("--sf", default="10", help="scale factor (10)")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data", help="where data is kept (data)")
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "release" / "onehop")
    parser.add_argument("--runs", type=int, default=31, help="timed runs of each (31)")
    parser.add_argument("--threads", type=int, default=2, help="against one (2)")
    parser.add_argument("--queries", type=lambda text: text.split(","), default=["4.1"], help="only these (4.1)")
    options = parser.parse_args()
    versions = environment(options.onehop)
    warn_of_debug_build(versions)
    for name, value in versions.items():
        print(f"{name}: {value}")
    data = Data(options.data.resolve(), options.suite, options.sf)
    if not data.loaded():
        sys.exit(f"{data.folder} is not loaded: run compare.py {options.suite} --sf {options.sf} first")
    print(f"{options.suite} at scale factor {options.sf}; median of {options.runs}, in turns, after 1 that warms up")
    print(f"query   engine    1 thread ms   {options.threads} threads ms    gain")
    with Onehop(options.onehop, data.onehop) as onehop, DuckDb(data.duckdb) as duckdb:
        for query, sql in data.queries(options.queries).items():
            times: dict[tuple[str, int], list[int]] = {}
            for run in range(options.runs + 1):
                # Who begins changes.
                counts = [1, options.threads] if run % 2 else [options.threads, 1]
                for threads in counts:
                    for engine in (onehop, duckdb):
                        engine.sql(f"SET threads = {threads}")
                        took = engine.sql(sql, rows=False).wall_ns
                        if run > 0:
                            times.setdefault((engine.name, threads), []).append(took)
            for name in (onehop.name, duckdb.name):
                one, several = (statistics.median(times[name, n]) / 1e6 for n in (1, options.threads))
                print(f"{query:7} {name:7} {one:13.1f} {several:14.1f} {one / several:6.2f}x", flush=True)


if __name__ == "__main__":
    main()
